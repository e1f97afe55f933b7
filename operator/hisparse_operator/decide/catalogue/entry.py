"""The shape of one entry, and the few commands that many entries name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from hisparse_operator.decide.conditions import Status
from hisparse_operator.decide.reasons import ConditionType, EventReason, Reason

Stand = tuple[ConditionType, Status]
"""A condition, and the status that it has."""

DESCRIBE: Final = "`kubectl -n NAMESPACE describe hsi NAME`"
PODS: Final = "`kubectl -n NAMESPACE get pods -l inference.hisparse.dev/inference=NAME -o wide`"
DESCRIBE_POD: Final = "`kubectl -n NAMESPACE describe pod POD`"
LAST_FAILURE: Final = "`kubectl -n NAMESPACE get hsi NAME -o jsonpath='{.status.lastFailure}'`"
PREVIOUS_LOG: Final = "`kubectl -n NAMESPACE logs POD -c engine --previous`"
CAPACITY: Final = "`kubectl -n NAMESPACE get hsi NAME -o jsonpath='{.status.capacity}'`"
PLAN: Final = "`kubectl -n NAMESPACE get hsi NAME -o yaml | hisparse plan -f -`"
NODES: Final = "`kubectl get nodes -L nvidia.com/gpu.product`"
OPERATOR_LOG: Final = "`kubectl -n hisparse logs deploy/hisparse-operator`"
POLICY: Final = "`kubectl describe hsnp POLICY`"
NOTHING: Final = "Nothing."


@dataclass(frozen=True)
class Entry:
    """A reason of conditions. stands: each condition and status that it may be the reason of, its own one first.

    The three texts are whole sentences, in Markdown. Words in capitals (NAMESPACE, NAME, POD, NODE, POLICY) are the
    reader's to fill in; the messages name them.
    """

    word: Reason
    stands: tuple[Stand, ...]
    means: str
    check: str
    do: str


@dataclass(frozen=True)
class EventEntry:
    """A reason of Events that is none of a condition. warns: its Events are Warnings."""

    word: EventReason
    warns: bool
    means: str
    check: str
    do: str


@dataclass(frozen=True)
class TypeEntry:
    """A condition: of which kind, what True says of it, and whether an Event tells when it becomes True."""

    word: ConditionType
    of: tuple[str, ...]
    means: str
    told_when_true: bool = False
