"""Whose a value is, and which checks a person has told us to leave alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from hisparse.spec import GROUP
from hisparse_agent.records import Phase, Record, Records

MUTE: Final = timedelta(hours=24)
"""How long a check is left alone after a person stepped in."""
UNMUTE_ANNOTATION: Final = f"{GROUP}/unmute"
"""On the Node: checks with commas between them, or "all". While it stands they are not muted."""


class Whose(StrEnum):
    """Whose value a setting has now."""

    OURS = "Ours"
    EARLIER = "Earlier"
    """The one from before: we never came to change it, or it has been put back."""
    FOREIGN = "Foreign"


def whose(record: Record, present: str, boot_id: str) -> Whose:
    """Whose the present value of a record's setting is.

    Nothing that the actuator sets outlives a reboot. So after another boot any value but ours is the node's earlier
    state, and our value there means that somebody wrote it into the node's own configuration: it is theirs.
    """
    if record.boot_id != boot_id:
        return Whose.FOREIGN if present == record.new else Whose.EARLIER
    if present == record.new:
        return Whose.OURS
    return Whose.EARLIER if present == record.old else Whose.FOREIGN


@dataclass(frozen=True)
class Mute:
    """No remedy for this check until then."""

    check: str
    until: datetime
    why: str


@dataclass(frozen=True)
class NodeMarks:
    """What a person can take off a node: our taint, with the check that asked for it, and the cordon."""

    tainted_for: str | None = None
    unschedulable: bool = False


def mutes_of(records: Records | None, now: datetime) -> tuple[Mute, ...]:
    """Checks muted because somebody else has changed a value that was ours."""
    found = (
        Mute(record.check, record.ended + MUTE, f"somebody has changed {record.target}, which {record.verb} had set")
        for record in (records.records if records else ())
        if record.phase is Phase.FOREIGN and record.ended is not None
    )
    return in_force(found, now)


def uncordoned(
    before: NodeMarks, after: NodeMarks, *, removed_by_us: bool, active: Iterable[str], now: datetime
) -> tuple[Mute, ...]:
    """Checks muted because a person took our taint off, or uncordoned the node, between two looks at it.

    active are the checks that actions in force are for: an uncordon speaks of all of them.
    """
    muted: dict[str, str] = {}
    if before.tainted_for is not None and after.tainted_for is None and not removed_by_us:
        muted[before.tainted_for] = "somebody has taken the taint off the node"
    if before.unschedulable and not after.unschedulable:
        told = [*active, *([before.tainted_for] if before.tainted_for is not None else [])]
        muted |= dict.fromkeys(told, "somebody has uncordoned the node")
    return tuple(Mute(check, now + MUTE, why) for check, why in muted.items())


def in_force(mutes: Iterable[Mute], now: datetime) -> tuple[Mute, ...]:
    """The mutes that still hold, one a check: the one that holds longest."""
    found: dict[str, Mute] = {}
    for mute in mutes:
        if mute.until > now and (mute.check not in found or mute.until > found[mute.check].until):
            found[mute.check] = mute
    return tuple(found[check] for check in sorted(found))


def lifted(mutes: Iterable[Mute], unmute: str) -> tuple[Mute, ...]:
    """The mutes without those that a person has lifted: the text of UNMUTE_ANNOTATION, empty where there is none."""
    named = {one.strip() for one in unmute.split(",")}
    return () if "all" in named else tuple(mute for mute in mutes if mute.check not in named)


def unmuting_command(node: str, check: str) -> str:
    """The command with which a person lifts a mute."""
    return f"kubectl annotate node {node} {UNMUTE_ANNOTATION}={check} --overwrite"


def mute_of(check: str, mutes: Iterable[Mute], now: datetime) -> Mute | None:
    """The mute of a check, if it is muted."""
    return next((mute for mute in in_force(mutes, now) if mute.check == check), None)
