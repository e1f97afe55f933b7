"""The budget of a pool of nodes: who may act now, and when everything stops. Pure maths over annotations of one Lease.

Every node that acts or is tainted holds a slot, which it renews. The nodes with a critical finding mark themselves
there as well; when too many do so within the window the breaker opens, and the marks go. It stays open until a person
removes its annotation; from then on only nodes that are still critical count. Whoever writes the Lease does so under
its resourceVersion, so that of two takers one has to look again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from fractions import Fraction
from typing import Final
from zlib import crc32

from pydantic import TypeAdapter, ValidationError

from hisparse.nodes import breaker
from hisparse.nodes.breaker import Opened
from hisparse.nodes.policy import DEFAULT_MAX_NODES
from hisparse.nodes.report import STALE_SECONDS
from hisparse.spec import GROUP

SLOTS_ANNOTATION: Final = f"{GROUP}/slots"
CRITICAL_ANNOTATION: Final = f"{GROUP}/critical-nodes"

SILENT: Final = timedelta(seconds=STALE_SECONDS)
"""A holder that has not renewed for so long has lost its slot; the same age at which its report reads as Unknown."""
MARGIN: Final = timedelta(seconds=180)
"""A holder stops counting on its slot this much earlier: time to put back, and for clocks that differ."""
RENEWED: Final = timedelta(seconds=360)
"""A slot is renewed at the latest when it is so old: half of the time for which its holder may count on it."""
SPREAD_S: Final = 120
"""Nodes that took their slots at once do not all renew them at once: each has its own share of this time."""
LEAST_STORM: Final = 2
"""One node is no storm, however small the pool: without this a pool of five would never be helped."""


class BrokenLeaseError(ValueError):
    """An annotation cannot be read. Nobody may act on a guess; a person deletes the annotation."""


@dataclass(frozen=True)
class Slot:
    """A node that holds a share of the budget."""

    node: str
    since: datetime
    renewed: datetime


@dataclass(frozen=True)
class Mark:
    """When a node had a critical finding last."""

    node: str
    at: datetime


@dataclass(frozen=True)
class Pool:
    """What the Lease of a pool holds."""

    slots: tuple[Slot, ...] = ()
    critical: tuple[Mark, ...] = ()
    opened: Opened | None = None


_SLOTS: Final = TypeAdapter(tuple[Slot, ...])
_MARKS: Final = TypeAdapter(tuple[Mark, ...])


def parse(annotations: Mapping[str, str]) -> Pool:
    """The pool that a Lease's annotations describe. Raises BrokenLeaseError.

    A breaker that cannot be read is open: whatever a person or a newer version wrote there, it says stop.
    """
    try:
        slots = _SLOTS.validate_json(annotations.get(SLOTS_ANNOTATION) or "[]")
        marks = _MARKS.validate_json(annotations.get(CRITICAL_ANNOTATION) or "[]")
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise BrokenLeaseError(
            f"an annotation of the Lease cannot be read ({first['msg']}); delete {SLOTS_ANNOTATION} and "
            f"{CRITICAL_ANNOTATION} there"
        ) from error
    times = [time for slot in slots for time in (slot.since, slot.renewed)] + [mark.at for mark in marks]
    if any(time.tzinfo is None for time in times):
        raise BrokenLeaseError(f"a time in {SLOTS_ANNOTATION} or {CRITICAL_ANNOTATION} has no zone; delete both")
    return Pool(slots, marks, breaker.opened(annotations))


def annotations_of(pool: Pool) -> dict[str, str | None]:
    """The annotations that describe it; None where one has to be absent."""
    return {
        SLOTS_ANNOTATION: _SLOTS.dump_json(pool.slots).decode() if pool.slots else None,
        CRITICAL_ANNOTATION: _MARKS.dump_json(pool.critical).decode() if pool.critical else None,
        breaker.ANNOTATION: pool.opened.text if pool.opened else None,
    }


def most_nodes(max_nodes: str | None, pool_nodes: int) -> int:
    """How many nodes of a pool may hold a slot: a number, or a percentage rounded down; at least 1."""
    text = max_nodes or DEFAULT_MAX_NODES
    if not text.endswith("%"):
        return max(1, int(text))
    return max(1, math.floor(Fraction(int(text[:-1]), 100) * pool_nodes))


def take(pool: Pool, node: str, most: int, now: datetime) -> Pool | None:
    """The pool with a slot for the node, or None where all are held. A node that holds one keeps it."""
    held = alive(pool, now)
    if any(slot.node == node for slot in held):
        return renew(pool, node, now)
    if len(held) >= most:
        return None
    return replace(pool, slots=(*held, Slot(node, now, now)))


def renew(pool: Pool, node: str, now: datetime) -> Pool | None:
    """The pool with the node's slot renewed, or None where it has none any more: then its actions are put back."""
    held = alive(pool, now)
    if not any(slot.node == node for slot in held):
        return None
    return replace(pool, slots=tuple(replace(slot, renewed=now) if slot.node == node else slot for slot in held))


def renewal(node: str) -> timedelta:
    """The age at which a node renews its slot."""
    return RENEWED - timedelta(seconds=crc32(node.encode()) % SPREAD_S)


def release(pool: Pool, node: str) -> Pool:
    """The pool without the node's slot."""
    return replace(pool, slots=tuple(slot for slot in pool.slots if slot.node != node))


def may_count_on(renewed: datetime, now: datetime) -> bool:
    """Whether a holder that renewed last at that time, and cannot reach the API since, may still act on its slot."""
    return now - renewed < SILENT - MARGIN


def mark(pool: Pool, node: str, window: timedelta, now: datetime) -> Pool:
    """The pool with the node marked as critical now, and without marks that have left the window."""
    others = tuple(one for one in pool.critical if one.node != node and now - one.at < window)
    return replace(pool, critical=(*others, Mark(node, now)))


def judge(pool: Pool, pool_nodes: int, percent: int, window: timedelta, now: datetime) -> Pool:
    """The pool with the breaker opened where the share of critical nodes within the window asks for it.

    An open breaker stays as it is: only a person closes it. Opening takes the marks away, so that what opened it once
    does not open it again at once when a person has closed it: nodes that are critical then mark themselves anew.
    """
    if pool.opened is not None:
        return pool
    nodes = len({one.node for one in pool.critical if now - one.at < window})
    if nodes < LEAST_STORM or nodes * 100 < percent * pool_nodes:
        return pool
    return replace(pool, critical=(), opened=Opened(now, nodes, pool_nodes))


def brought_up_to_date(
    pool: Pool, node: str, *, critical: bool, size: int | None, percent: int, window: timedelta, now: datetime
) -> Pool:
    """The pool with what a poll of this node adds: its mark while it is critical, its slot renewed, the breaker judged.

    size is the number of nodes of the pool, None where nobody knows: a share of nobody knows how many is none.
    """
    last = next((one.at for one in pool.critical if one.node == node), None)
    # an open breaker needs no more marks; when a person has closed it, the next poll marks anew
    if critical and pool.opened is None and (last is None or now - last >= window / 3):
        pool = mark(pool, node, window, now)
    own = next((one for one in pool.slots if one.node == node), None)
    if own is not None and now - own.renewed >= renewal(node):
        pool = renew(pool, node, now) or pool
    return pool if size is None else judge(pool, size, percent, window, now)


def alive(pool: Pool, now: datetime) -> tuple[Slot, ...]:
    """The slots that still count."""
    # A clock that runs far ahead must not hold a slot for ever.
    return tuple(slot for slot in pool.slots if abs(now - slot.renewed) < SILENT)
