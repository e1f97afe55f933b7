"""Reasons of RouteReady, Available, Progressing and Ready."""

from __future__ import annotations

from typing import Final

from hisparse_operator.decide.catalogue.entry import (
    CAPACITY,
    DESCRIBE,
    DESCRIBE_POD,
    LAST_FAILURE,
    NOTHING,
    OPERATOR_LOG,
    PODS,
    Entry,
)
from hisparse_operator.decide.conditions import Status
from hisparse_operator.decide.reasons import ConditionType, Reason

_ROUTE: Final = ConditionType.ROUTE_READY
_AVAILABLE: Final = ConditionType.AVAILABLE
_PROGRESSING: Final = ConditionType.PROGRESSING
_NOT_READY: Final = (ConditionType.READY, Status.FALSE)
_ENDPOINTS: Final = "`kubectl -n NAMESPACE get endpointslices -l kubernetes.io/service-name=NAME`"

ENTRIES: Final = (
    Entry(
        Reason.ENDPOINTS_READY,
        ((_ROUTE, Status.TRUE),),
        "The Service has endpoints that take requests.",
        f"{_ENDPOINTS}.",
        NOTHING,
    ),
    Entry(
        Reason.NO_ENDPOINTS,
        ((_ROUTE, Status.FALSE), _NOT_READY),
        "The Service has no endpoint that takes requests, or (in Ready) not yet one for each ready pod.",
        f"{_ENDPOINTS}, and {PODS}.",
        "Where no pod is ready follow the reason of WorkloadReady. Where pods are ready the endpoints follow within "
        "seconds; if not, look at kube-controller-manager.",
    ),
    Entry(
        Reason.SERVING,
        ((_AVAILABLE, Status.TRUE),),
        "At least one replica takes requests, perhaps one of an older revision.",
        f"{PODS}.",
        NOTHING,
    ),
    Entry(
        Reason.NO_SERVING_REPLICAS,
        ((_AVAILABLE, Status.FALSE),),
        "No replica takes requests: this is an outage, or the first start.",
        f"{DESCRIBE}: the reason of Ready is what to mend first.",
        "Follow the reason of Ready.",
    ),
    Entry(
        Reason.SCALED_TO_ZERO,
        (
            (_AVAILABLE, Status.FALSE),
            (ConditionType.WORKLOAD_READY, Status.FALSE),
            (_ROUTE, Status.FALSE),
            _NOT_READY,
        ),
        "spec.replicas is 0, so nothing serves. Somebody asked for that.",
        "`kubectl -n NAMESPACE get hsi NAME -o jsonpath='{.spec.replicas}'`.",
        "`kubectl -n NAMESPACE scale hsi NAME --replicas=1` to serve again.",
    ),
    Entry(
        Reason.NEW_REVISION,
        ((_PROGRESSING, Status.TRUE),),
        "Pods move to another revision, one at a time.",
        f"{PODS}; the message has how far it is and what it waits for.",
        f"{NOTHING} To stop it: spec.paused true. To go back: apply the earlier manifest.",
    ),
    Entry(
        Reason.SCALING,
        ((_PROGRESSING, Status.TRUE),),
        "Pods are being added, removed or made again.",
        f"{PODS}.",
        NOTHING,
    ),
    Entry(
        Reason.COMPLETE,
        ((_PROGRESSING, Status.TRUE),),
        "Nothing is left to do. A pod that restarts later is told by WorkloadReady.",
        f"{PODS}.",
        NOTHING,
    ),
    Entry(
        Reason.NEW_REVISION_FAILING,
        ((_PROGRESSING, Status.FALSE),),
        "A pod of the new revision does not start. Healthy pods of older revisions are left alone and go on serving.",
        f"{LAST_FAILURE}, and {DESCRIBE}: the reason of WorkloadReady.",
        "Correct the spec, or apply the earlier manifest: its revision is kept and needs no new start. The pod is "
        "tried again by itself.",
    ),
    Entry(
        Reason.NO_PLACE,
        ((_PROGRESSING, Status.FALSE), _NOT_READY),
        "No old pod is on a node that may take a new one (cordoned, tainted, another product), so none is taken.",
        f"{DESCRIBE}: the message has each old pod, its node, and what keeps new pods from it; then {CAPACITY}.",
        "`kubectl uncordon NODE`, or raise spec.replicas by one so that a new pod is made beside the old ones, or "
        "delete an old pod that may go.",
    ),
    Entry(
        Reason.POD_STUCK_TERMINATING,
        ((_PROGRESSING, Status.FALSE),),
        "A deleted pod should have ended by now; its GPUs are not free and the next step waits for them.",
        f"`kubectl get node NODE`, and {DESCRIBE_POD}; the message names both.",
        "If the node is gone for good: `kubectl -n NAMESPACE delete pod POD --force`. If it runs, its kubelet has to "
        "end the pod: a force would leave the engine on the GPUs.",
    ),
    Entry(
        Reason.HELD,
        ((_PROGRESSING, Status.FALSE),),
        "The spec is invalid, does not fit or cannot be planned: what runs stays as it is, and nothing new is made.",
        f"{DESCRIBE}: Accepted and PlanFeasible say why.",
        "Follow the reason of Accepted or PlanFeasible.",
    ),
    Entry(
        Reason.PAUSED,
        ((_PROGRESSING, Status.FALSE), _NOT_READY),
        "spec.paused is true: nothing but status is written. Pods go on; a rollout, a scale and repairs stand still.",
        "`kubectl -n NAMESPACE get hsi NAME -o jsonpath='{.spec.paused}'`.",
        """`kubectl -n NAMESPACE patch hsi NAME --type=merge -p '{"spec":{"paused":false}}'` when the work is done.""",
    ),
    Entry(
        Reason.PLAN_ONLY,
        ((_PROGRESSING, Status.FALSE), _NOT_READY),
        "spec.planOnly is true: the plan is made and shown, and nothing but status is written.",
        "`kubectl -n NAMESPACE get hsi NAME -o jsonpath='{.status.plan}'` has the plan.",
        """`kubectl -n NAMESPACE patch hsi NAME --type=merge -p '{"spec":{"planOnly":false}}'` to run it.""",
    ),
    Entry(
        Reason.CHILD_CONFLICT,
        ((_PROGRESSING, Status.FALSE), _NOT_READY),
        "An object that belongs to somebody else has a name that one of our children needs. It is never taken over.",
        f"{DESCRIBE}: the message has its kind, name and owner.",
        "Delete or rename that object, or make the HiSparseInference under another name. The pods of a ReplicaSet end "
        "with it: where it was made for this inference, remove the foreign ownerReference instead. After the deletion "
        "of a namesake wait until its children are gone.",
    ),
    Entry(
        Reason.PROVEN,
        ((ConditionType.READY, Status.TRUE),),
        "The present spec is accepted, planned, running with all its replicas, and routed.",
        f"{DESCRIBE}.",
        NOTHING,
    ),
    Entry(
        Reason.REFUSED,
        ((_PROGRESSING, Status.FALSE), _NOT_READY),
        "The API server refuses an object that the operator writes: a value that reaches the pod as it is, a quota, an "
        "admission policy, or a right that the operator lacks.",
        f"{DESCRIBE}: the message is the API server's, with the fields of our spec. For a right: `kubectl auth can-i "
        "patch replicasets.apps -n NAMESPACE --as=system:serviceaccount:hisparse:hisparse-operator`.",
        "Do what the end of the message says. It is tried again by itself.",
    ),
    Entry(
        Reason.NOT_WRITTEN,
        ((_PROGRESSING, Status.FALSE), _NOT_READY),
        "Several tries in a row to write failed, and the operator goes on trying with growing pauses.",
        f"{OPERATOR_LOG}: lines `retrying`. `kubectl get --raw '/readyz?verbose'` says how the API server does.",
        "Mend what the message names: an API server that does not answer, or an object that is still being deleted "
        "(remove the finalizer that holds it).",
    ),
    Entry(
        Reason.INTERNAL_ERROR,
        ((_PROGRESSING, Status.FALSE), _NOT_READY),
        "A bug in the operator. Pods go on, other objects are served, and this one is tried again at most every five "
        "minutes.",
        f"{OPERATOR_LOG}: the line `bug` has the trace.",
        "Undo the last edit of the spec, which may help, and report the trace.",
    ),
)
