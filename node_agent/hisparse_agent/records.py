"""What agent and actuator tell each other, in two files of one folder of the host. The actuator has no API access.

`wanted.json` is written by the agent: every action that it wants in force now. What is not in it is put back.
`records.json` is written by the actuator: what it did, with the value from before, before it does it. Both are
replaced whole (write, fsync, rename); a file that cannot be read is no wish and no record, and is kept aside.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from hisparse.nodes.catalogue import Verb
from hisparse.units import format_watts

WANTED_FILE: Final = "wanted.json"
RECORDS_FILE: Final = "records.json"
FORMAT: Final = 1
ACTUATOR_SILENT: Final = timedelta(minutes=3)
"""The actuator writes its records at least once a minute; older than this, it does not run."""
ALL_CPUS: Final = "cpu"
"""What the target of a cpufreq change begins with, before the slash: every CPU of the node."""
NO_LONGER_WANTED: Final = "it is no longer wanted"
"""What the actuator says of a change that has left the wish; why it did, only the agent knows."""
CLOCK_STEP: Final = timedelta(minutes=2)
"""So far ahead a time may lie for us to believe it: clocks are set by seconds all the time."""


class Phase(StrEnum):
    """Where an action stands."""

    RECORDED = "Recorded"
    """Written down, perhaps not done yet: the next start finds out."""
    IN_FORCE = "InForce"
    REVERTED = "Reverted"
    REFUSED = "Refused"
    """Outside the bounds, or nothing to do; nothing was changed."""
    FOREIGN = "Foreign"
    """Somebody else has changed the value since: left alone, and the check is muted for a day."""
    REVERT_FAILED = "RevertFailed"

    @property
    def holds(self) -> bool:
        """Whether the host may still carry our value."""
        return self in (Phase.RECORDED, Phase.IN_FORCE, Phase.REVERT_FAILED)


@dataclass(frozen=True)
class Change:
    """One setting of the host. target is a GPU's UUID, the name of a sysctl, or "cpu/scaling_governor" for all CPUs.

    A `Record` names the CPU that it is of: "cpu7/scaling_governor".

    Values are text as the host spells them; power in milliwatts.
    """

    target: str
    new: str


def covers(target: str, recorded: str) -> bool:
    """Whether a change's target is, or comprises, that of a record: "cpu/x" comprises "cpu7/x"."""
    if target == recorded:
        return True
    if not target.startswith(f"{ALL_CPUS}/"):
        return False
    cpu, slash, setting = recorded.partition("/")
    return cpu.removeprefix(ALL_CPUS).isdigit() and slash + setting == target.removeprefix(ALL_CPUS)


def spelled(verb: str, value: str) -> str:
    """A value of a change as people read it: power in watts, an empty one as "unset"."""
    if verb == Verb.POWER_CAP and value.isdigit():
        return format_watts(int(value))
    return value or "unset"


def is_over(since: datetime, ttl_seconds: int, now: datetime) -> bool:
    """Whether a change that began at `since` has had its time. It has, too, where the clock was set back since."""
    return not -CLOCK_STEP <= now - since < timedelta(seconds=ttl_seconds)


@dataclass(frozen=True)
class Wanted:
    """One remedy on all its targets of this node. id is the same from poll to poll as long as it is the same wish."""

    id: str
    verb: Verb
    changes: tuple[Change, ...]
    reason: str
    check: str
    policy: str
    ttl_seconds: int
    since: datetime


@dataclass(frozen=True)
class Wish:
    """The whole of wanted.json. boot_id is that of the boot in which it was written."""

    written: datetime
    boot_id: str
    actions: tuple[Wanted, ...]


@dataclass(frozen=True)
class Record:
    """One change of one setting, by the action that asked for it."""

    action: str
    verb: Verb
    target: str
    old: str
    new: str
    reason: str
    check: str
    policy: str
    since: datetime
    ttl_seconds: int
    boot_id: str
    phase: Phase
    message: str = ""
    ended: datetime | None = None


@dataclass(frozen=True)
class Records:
    """The whole of records.json: changes in force first, then the last that ended."""

    written: datetime
    records: tuple[Record, ...]
