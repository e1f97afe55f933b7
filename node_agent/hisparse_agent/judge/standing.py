"""Patience: how many readings it takes until a subject is called bad, and how many until it is called well again.

A pure state machine for one check on one subject. What could not be read is told at once and proves nothing: it ends
no fault, and it breaks every row of readings, good or bad.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from hisparse.nodes.catalogue import Check
from hisparse.nodes.findings import State
from hisparse.nodes.policy import CheckOverride
from hisparse_agent.judge.verdict import Verdict


@dataclass(frozen=True)
class Patience:
    """Readings in a row. leave None: only another boot, or a person, ends a fault; critical_stays: a critical one."""

    enter: int
    critical_enter: int
    leave: int | None
    critical_stays: bool

    def leave_of(self, held: State) -> int | None:
        """Good readings that end a fault; None where none do."""
        return None if held is State.CRITICAL and self.critical_stays else self.leave


def patience_of(check: Check, override: CheckOverride | None) -> Patience:
    """A check's patience, with what a policy says otherwise; a policy sets one figure for both levels."""
    enter = override.enter_polls if override else None
    leave = override.leave_polls if override else None
    return Patience(
        enter=enter or check.enter_polls,
        critical_enter=enter or check.critical_enter_polls or check.enter_polls,
        leave=leave or check.leave_polls,
        critical_stays=check.critical_stays,
    )


@dataclass(frozen=True)
class Standing:
    """Where a subject stands with a check.

    held is the last state that was proved; None before the first. told is what is said of it now, which differs while
    it cannot be read. bad and critical count readings in a row that are worse than Ok, and critical; good those that
    end a fault, milder those that are less than critical. proof is the last reading that showed the held fault.
    """

    held: State | None
    held_since: datetime
    told: State
    since: datetime
    bad: int = 0
    critical: int = 0
    good: int = 0
    milder: int = 0
    proof: Verdict | None = None


class _Row(NamedTuple):
    """Readings in a row, as in Standing."""

    bad: int = 0
    critical: int = 0
    good: int = 0
    milder: int = 0


def step(standing: Standing | None, verdict: Verdict, patience: Patience, at: datetime) -> Standing:
    """Where a subject stands after one more reading."""
    old = standing or Standing(held=None, held_since=at, told=State.UNKNOWN, since=at)
    told: State = verdict.state
    if told in (State.UNKNOWN, State.UNSUPPORTED):
        row, held, proof = _Row(), old.held, old.proof
    else:
        row = _counted(old, verdict)
        held = _held(old.held, row, verdict, patience)
        told = held or State.UNKNOWN
        fault = held is not None and held.is_fault
        # it may step down to a warning that no reading showed: then what showed the critical fault is the proof
        proof = old.proof if fault else None
        if fault and verdict.state.is_fault and (held is verdict.state or proof is None):
            proof = verdict
    held_since = old.held_since if held is old.held else at
    return Standing(held, held_since, told, _since(standing, told, held, held_since, at), *row, proof)


def _counted(old: Standing, verdict: Verdict) -> _Row:
    state = verdict.state
    return _Row(
        bad=old.bad + 1 if state.is_fault else 0,
        critical=old.critical + 1 if state is State.CRITICAL else 0,
        good=old.good + 1 if state is State.OK and verdict.ended else 0,
        milder=old.milder + 1 if state is not State.CRITICAL else 0,
    )


def _held(held: State | None, row: _Row, verdict: Verdict, patience: Patience) -> State | None:
    """What is proved now. One step worse takes enter readings, one better leave readings."""
    leave = patience.leave_of(held) if held else None
    if held is State.CRITICAL:
        if leave is None:
            return held
        if row.good >= leave:
            return State.OK
        return State.WARN if row.milder >= leave else held
    if row.critical >= patience.critical_enter:
        return State.CRITICAL
    if held is State.WARN:
        return State.OK if leave is not None and row.good >= leave else held
    if row.bad >= patience.enter:
        return State.WARN
    return State.OK if verdict.state is State.OK else held


def _since(was: Standing | None, told: State, held: State | None, held_since: datetime, at: datetime) -> datetime:
    """Since when this is told. A fault that is told again after blindness is as old as it was."""
    if was is not None and was.told is told:
        return was.since
    return held_since if told is held and told.is_fault else at
