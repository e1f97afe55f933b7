"""Conditions with metav1 semantics, as values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

from hisparse_operator.decide.reasons import ConditionType, Reason

MESSAGE_LIMIT: Final = 32_768
"""metav1.Condition.message may not be longer."""


class Status(StrEnum):
    """Unknown is an answer: we could not look, or it is too early."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


@dataclass(frozen=True)
class Condition:
    """One judgement of this pass. When it last changed is worked out against the old status."""

    type: ConditionType
    status: Status
    reason: Reason
    message: str

    @property
    def true(self) -> bool:
        """Whether the status is True; Unknown is not."""
        return self.status is Status.TRUE


def documents(
    conditions: Iterable[Condition], *, old: Iterable[Mapping[str, Any]], generation: int, now: datetime
) -> list[dict[str, Any]]:
    """The conditions as status.conditions; lastTransitionTime moves only where the status differs from the old one."""
    before = {condition.get("type"): condition for condition in old}
    return [_document(condition, before.get(condition.type.value), generation, now) for condition in conditions]


def status_of(documents: Iterable[Mapping[str, Any]], wanted: ConditionType) -> Mapping[str, Any]:
    """The old condition of that type, empty where there is none."""
    return next((document for document in documents if document.get("type") == wanted.value), {})


def timestamp(moment: datetime) -> str:
    """metav1.Time: UTC, whole seconds."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def shortened(message: str) -> str:
    """The message as the API server takes it."""
    return message if len(message) <= MESSAGE_LIMIT else f"{message[: MESSAGE_LIMIT - 3]}..."


def share(count: int, total: int, is_so: str, are_so: str, noun: str = "pod") -> str:
    """As in: 1 of 1 pod has a node, 1 of 2 pods has a node, 2 of 2 pods have a node."""
    return f"{count} of {total} {noun if total == 1 else f'{noun}s'} {is_so if 1 in (count, total) else are_so}"


def _document(condition: Condition, old: Mapping[str, Any] | None, generation: int, now: datetime) -> dict[str, Any]:
    unchanged = old is not None and old.get("status") == condition.status.value and "lastTransitionTime" in old
    return {
        "type": condition.type.value,
        "status": condition.status.value,
        "reason": condition.reason.value,
        "message": shortened(condition.message),
        "lastTransitionTime": old["lastTransitionTime"] if old is not None and unchanged else timestamp(now),
        "observedGeneration": generation,
    }
