"""What a check found on a node."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final


class State(StrEnum):
    """The verdict of a check. Unknown and Unsupported are no verdicts on the node: they never act and never alarm."""

    OK = "Ok"
    WARN = "Warn"
    CRITICAL = "Critical"
    UNKNOWN = "Unknown"
    """It could not be read this time."""
    UNSUPPORTED = "Unsupported"
    """This machine has no such thing, or hides it."""

    @property
    def is_fault(self) -> bool:
        """Whether something is wrong, rather than not known."""
        return self in (State.WARN, State.CRITICAL)


WORST_FIRST: Final = (State.CRITICAL, State.WARN, State.UNKNOWN, State.OK, State.UNSUPPORTED)
"""The order in which people are told: faults, then what is not known."""

POD_SUBJECT: Final = "pod-"
"""What a subject that is a pod begins with."""


def pod_subject(namespace: str, name: str) -> str:
    """The subject of findings about a pod."""
    return f"{POD_SUBJECT}{namespace}/{name}"


@dataclass(frozen=True)
class Finding:
    """One check on one subject ("gpu-3", "numa-0", "nic-NAME:PORT", "pod-NAMESPACE/NAME", "host").

    value and limit are in `unit`, a base unit ("bytes", "celsius", "watts", "ratio", "count", "seconds", or "" for
    words), and None where there is nothing to compare. since is when the state began.
    """

    check: str
    subject: str
    state: State
    reason: str
    message: str
    since: datetime
    value: str | None = None
    limit: str | None = None
    unit: str = ""


def worst(states: tuple[State, ...]) -> State:
    """The first of these by WORST_FIRST; Unsupported where there are none."""
    return next((state for state in WORST_FIRST if state in states), State.UNSUPPORTED)
