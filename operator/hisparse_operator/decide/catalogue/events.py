"""Reasons of Events that are none of a condition."""

from __future__ import annotations

from typing import Final

from hisparse_operator.decide.catalogue.entry import DESCRIBE, LAST_FAILURE, NOTHING, PODS, PREVIOUS_LOG, EventEntry
from hisparse_operator.decide.reasons import EventReason

ENTRIES: Final = (
    EventEntry(
        EventReason.REVISION_CREATED,
        warns=False,
        means="The spec asks for pods that no earlier revision has: its plan and pod template are frozen now.",
        check="`kubectl -n NAMESPACE get controllerrevisions -l inference.hisparse.dev/inference=NAME` lists them.",
        do=NOTHING,
    ),
    EventEntry(
        EventReason.PLAN_WARNING,
        warns=True,
        means="The plan fits and has a drawback that one should know: an unpinned model, a download at every start, a "
        "smaller kind of node that decides for all.",
        check="`kubectl -n NAMESPACE get hsi NAME -o jsonpath='{.status.plan.warnings}'`.",
        do="Nothing must be done; the message names the field that would lift it.",
    ),
    EventEntry(
        EventReason.PLAN_FITS,
        warns=False,
        means="PlanFeasible became True.",
        check="`kubectl -n NAMESPACE get hsi NAME -o jsonpath='{.status.plan.summary}'`.",
        do=NOTHING,
    ),
    EventEntry(
        EventReason.ROLLOUT_STARTED,
        warns=False,
        means="Pods begin to move to another revision; the message says how many, and how many go on serving.",
        check=f"{PODS}; {DESCRIBE}: Progressing says what it waits for.",
        do=f"{NOTHING} To stop it set spec.paused; to go back apply the earlier manifest.",
    ),
    EventEntry(
        EventReason.ROLLOUT_COMPLETE,
        warns=False,
        means="Every wanted replica is of the new revision and serves.",
        check=f"{PODS}.",
        do=NOTHING,
    ),
    EventEntry(
        EventReason.ENGINE_FAILED,
        warns=True,
        means="An engine container ended badly, for a cause that had not been told yet.",
        check=f"{LAST_FAILURE}; it stays after the pod is gone. {PREVIOUS_LOG} while it is there.",
        do="Do what the message says last; without a known cause read the log of the pod.",
    ),
    EventEntry(
        EventReason.UNAVAILABLE,
        warns=True,
        means="Available became False: nothing takes requests any more.",
        check=f"{DESCRIBE}: the reason of Ready is what to mend first.",
        do="Follow the reason of Ready.",
    ),
    EventEntry(
        EventReason.NOT_READY,
        warns=True,
        means="Ready became False; the message begins with the reason. Normal where that is on the way to something, "
        "as in a rollout.",
        check=f"{DESCRIBE}.",
        do="Follow that reason. During a rollout or a scale it becomes True again by itself.",
    ),
    EventEntry(
        EventReason.STRAY_POD,
        warns=True,
        means="A pod behind the Service belongs to no revision any more, since a label was removed: it takes requests "
        "and GPUs and is counted nowhere.",
        check="`kubectl -n NAMESPACE get pods,rs --show-labels`.",
        do="Label the ReplicaSet again or delete the pod, as the message says.",
    ),
    EventEntry(
        EventReason.CHILD_PUT_BACK,
        warns=True,
        means="Somebody changed or deleted an object that the operator made, and the operator has put it back. The "
        "message names the field manager where the object tells; who deleted it no object tells.",
        check="`kubectl -n NAMESPACE get KIND CHILD -o yaml --show-managed-fields` shows who owns which field; the "
        "audit log of the cluster knows who deleted it.",
        do="Edit the HiSparseInference instead. spec.paused true makes the operator leave its children alone for a "
        "while.",
    ),
    EventEntry(
        EventReason.WRITE_CONTESTED,
        warns=True,
        means="Somebody has changed back what the operator writes five times in a row, so it writes more and more "
        "rarely (at least every five minutes).",
        check="`kubectl -n NAMESPACE get KIND CHILD -o yaml --show-managed-fields`; of the status `kubectl -n "
        "NAMESPACE get hsi NAME -o yaml --show-managed-fields`.",
        do="Make the other writer leave it alone. Where it has our own name, two operators serve the namespace with "
        "different leases: stop one.",
    ),
)
