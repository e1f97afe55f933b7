"""The conditions themselves, in the order in which one reads them."""

from __future__ import annotations

from typing import Final

from hisparse_operator.decide.catalogue.entry import TypeEntry
from hisparse_operator.decide.reasons import ConditionType

_INFERENCE: Final = ("HiSparseInference",)
_POLICY: Final = ("HiSparseNodePolicy",)

ENTRIES: Final = (
    TypeEntry(
        ConditionType.ACCEPTED,
        (*_INFERENCE, *_POLICY),
        "The spec can be used. Where it is False, what an earlier spec made goes on as it was.",
    ),
    TypeEntry(
        ConditionType.PLAN_FEASIBLE,
        _INFERENCE,
        "A replica fits at least one kind of node. Unknown: nobody could look at the nodes or at the model.",
    ),
    TypeEntry(ConditionType.SCHEDULED, _INFERENCE, "Every pod that should exist has a node.", told_when_true=True),
    TypeEntry(
        ConditionType.WORKLOAD_READY,
        _INFERENCE,
        "Every wanted replica runs the revision of the present spec and is ready. Pods of older revisions "
        "do not count.",
        told_when_true=True,
    ),
    TypeEntry(
        ConditionType.TIER_ACTIVE,
        _INFERENCE,
        "The engine uses the host tier that was planned. False is no fault where the plan has none.",
    ),
    TypeEntry(ConditionType.ROUTE_READY, _INFERENCE, "The Service has at least one endpoint that takes requests."),
    TypeEntry(
        ConditionType.AVAILABLE,
        _INFERENCE,
        "At least one replica, of whichever revision, takes requests. Alert on this one.",
        told_when_true=True,
    ),
    TypeEntry(
        ConditionType.PROGRESSING,
        _INFERENCE,
        "What was asked for is done (Complete) or on its way. False: it stands still, and the message says what for.",
    ),
    TypeEntry(
        ConditionType.READY,
        _INFERENCE,
        "The present spec is accepted, planned, running and routed. Where it is False its reason and message are those "
        "of the condition that one would mend first.",
        told_when_true=True,
    ),
    TypeEntry(
        ConditionType.DEGRADED,
        _INFERENCE,
        "A node agent found a fault on a node of a pod: True is the bad state. Ready and Available do not look at it. "
        "Absent where the cluster has no HiSparseNode objects.",
    ),
    TypeEntry(ConditionType.IN_FORCE, _POLICY, "The policy decides on at least one node that it selects."),
    TypeEntry(
        ConditionType.BREAKER_CLOSED,
        _POLICY,
        "Remedies and taints of the policy may begin. False: the breaker is open.",
    ),
)
