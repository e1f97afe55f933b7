"""What one reading says about one subject, before any patience; and how values are written for people."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from hisparse.nodes.catalogue import Threshold
from hisparse.nodes.findings import State
from hisparse_agent.readings import UNREAD, Absence, Missing

HOST: Final = "host"

AS_EXPECTED: Final = "AsExpected"
NOT_READ: Final = "NotRead"
NOT_THERE: Final = "NotThere"
NOT_NEEDED: Final = "NotNeeded"
BEING_WATCHED: Final = "BeingWatched"
BOOT_GRACE: Final = "BootGrace"
PIN_WINDOW: Final = "PinWindow"
DRIVER_UPGRADE: Final = "DriverUpgrade"
MAINTENANCE: Final = "Maintenance"
SWITCHED_OFF: Final = "SwitchedOff"

NO_FAULT_REASONS: Final = {
    State.OK: AS_EXPECTED,
    State.UNKNOWN: NOT_READ,
    State.UNSUPPORTED: NOT_THERE,
}
"""The reason of a verdict that is no fault and names none of its own; a fault has its check's."""


@dataclass(frozen=True)
class TooShort(Missing):
    """A rate that the readings so far do not give: nothing failed, and time will tell."""


@dataclass(frozen=True)
class Verdict:
    """The state of a subject in this reading alone.

    value and limit are text in the check's unit. holder is what the standing is kept by: a GPU's UUID, since its index
    may change, else the subject. ended is False for a value that is no fault and does not end one either.
    """

    subject: str
    state: State
    message: str
    value: str | None = None
    limit: str | None = None
    reason: str = ""
    holder: str = ""
    ended: bool = True

    @property
    def kept_by(self) -> str:
        """What its standing is filed under."""
        return self.holder or self.subject


def fine(subject: str, message: str, *, value: str | None = None, limit: str | None = None) -> Verdict:
    """As it should be."""
    return Verdict(subject, State.OK, message, value, limit)


def unknown(subject: str, message: str, *, reason: str = NOT_READ) -> Verdict:
    """It could not be found out this time."""
    return Verdict(subject, State.UNKNOWN, message, reason=reason)


def unsupported(subject: str, message: str, *, reason: str = NOT_THERE) -> Verdict:
    """This machine has no such thing, hides it, or does not need it."""
    return Verdict(subject, State.UNSUPPORTED, message, reason=reason)


def absent(subject: str, missing: Missing, what: str) -> Verdict:
    """The verdict on a value that is not there."""
    if missing.absence is Absence.UNSUPPORTED:
        return unsupported(subject, f"{what}: not there: {missing.why}")
    if isinstance(missing, TooShort):
        return unknown(subject, f"{what}: not known yet: {missing.why}", reason=BEING_WATCHED)
    if missing == UNREAD:
        return unknown(subject, f"{what}: {missing.why}")
    return unknown(subject, f"{what}: could not be read: {missing.why}")


def graded(subject: str, value: Fraction | int, limits: Threshold, message: str) -> Verdict:
    """A value against its thresholds."""
    state = limits.state_of(value)
    return Verdict(subject, state, message, plain(value), limit_of(limits, state), ended=limits.ended_by(value))


def limit_of(limits: Threshold, state: State) -> str | None:
    """The limit that a state is about: the nearest one while all is well."""
    return limits.critical if state is State.CRITICAL else limits.warn or limits.critical


def plain(value: Fraction | int) -> str:
    """A number as decimal text, at most four places, cut towards zero: never rounded up to a limit that it misses."""
    exact = Fraction(value)
    if exact.denominator == 1:
        return str(exact.numerator)
    sign = "-" if exact < 0 else ""
    whole, part = divmod(abs(exact.numerator) * 10_000 // exact.denominator, 10_000)
    return f"{sign}{whole}.{part:04d}".rstrip("0").rstrip(".")


def percent(share: Fraction | int) -> str:
    """A share for people, one decimal, cut towards zero: "12.5 %"."""
    tenths = int(Fraction(share) * 1000)
    sign = "-" if tenths < 0 else ""
    return f"{sign}{abs(tenths) // 10}.{abs(tenths) % 10} %"


def gigabytes_per_second(rate: int) -> str:
    """A link rate for people, decimal as the trade does: "956.2 GB/s"."""
    return f"{rate // 10**9}.{rate // 10**8 % 10} GB/s"
