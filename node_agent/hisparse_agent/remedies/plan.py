"""One poll of the remedies: from findings and what stood before to the wish that is written down.

    before, findings, policy, records ──> wishes ──> asked ──> gates ──> allowed ─┐
                                             └────── standing ────────────────────┴──> wish, or "would" in a dry run

The caller writes `wish` into wanted.json at every poll, so that the actuator hears us. It holds a slot of the pool
as long as `needs_slot`: where `slot` was Free it takes one before it writes, and where that fails it calls again with
Full.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from hisparse.nodes.catalogue import Check
from hisparse.nodes.findings import Finding
from hisparse.nodes.policy import HiSparseNodePolicySpec
from hisparse_agent.readings import NodeReading
from hisparse_agent.records import ALL_CPUS, Change, Record, Records, Wanted, is_over
from hisparse_agent.remedies.allowance import (
    Decision,
    Situation,
    SlotState,
    Taken,
    Where,
    decide,
    history_of,
    still_allowed,
)
from hisparse_agent.remedies.ours import Mute, in_force, lifted, mute_of, mutes_of
from hisparse_agent.remedies.wishes import Basis, Note, held, wishes


@dataclass(frozen=True)
class Standing:
    """What one poll leaves to the next. would: the actions were only said, in a dry run.

    history are the actions that were allowed, or would have been, in the last day.
    """

    actions: tuple[Wanted, ...] = ()
    would: bool = True
    history: tuple[Taken, ...] = ()


@dataclass(frozen=True)
class Circumstances:
    """Everything that one poll looks at. mutes are a person's, beside those that follow from the records.

    unmute is the text with which a person lifts some (ours.UNMUTE_ANNOTATION).
    """

    findings: tuple[Finding, ...]
    policy: HiSparseNodePolicySpec | None
    policy_name: str
    checks: Mapping[str, Check]
    reading: NodeReading
    records: Records | None
    slot: SlotState
    breaker_open: bool | None
    now: datetime
    mutes: tuple[Mute, ...] = ()
    unmute: str = ""
    where: Where = field(default_factory=Where)


@dataclass(frozen=True)
class Outcome:
    """What to write, what to tell, and what to remember.

    wish is empty in a dry run, without a policy and where nothing is wanted. mutes are all that hold now.
    """

    standing: Standing
    wish: tuple[Wanted, ...] = ()
    decisions: tuple[Decision, ...] = ()
    notes: tuple[Note, ...] = ()
    mutes: tuple[Mute, ...] = ()

    @property
    def needs_slot(self) -> bool:
        """Whether the node has to hold a slot of its pool's budget for this."""
        return bool(self.wish)


def step(before: Standing, about: Circumstances) -> Outcome:
    """Decide what is wanted of this node now."""
    mutes = _mutes(about)
    policy = about.policy
    if policy is None:
        return Outcome(Standing(history=before.history), mutes=mutes)
    would = policy.dry_run
    records = None if would else about.records
    # What was only said must not come true without asking, and what is in force goes when the policy says dry run.
    same_kind = before.would is would
    actions = before.actions if same_kind and _may_go_on(about.slot, would=would) else ()
    situation = Situation(policy, about.slot, about.breaker_open, mutes, about.records, about.now, about.where)
    # what the actuator has not taken up is new, and nothing new is done once a gate has closed
    recalled = {action.id for action in _pending(before, records) if not would and not still_allowed(action, situation)}
    actions = tuple(action for action in actions if action.id not in recalled)
    remembered = _remembered(before, records, about.now) if same_kind else ()
    history = history_of(records, (taken for taken in remembered if taken.id not in recalled), about.now)
    unmuted = tuple(action for action in actions if mute_of(action.check, mutes, about.now) is None)
    basis = Basis(about.findings, policy, about.policy_name, about.checks, about.reading, about.now)
    found = wishes(basis, unmuted, records)
    standing = found.standing
    decisions: list[Decision] = []
    for asked in found.asked:
        decision = decide(asked, situation, history)
        decisions.append(decision)
        if decision.allowed:
            standing = (*_without(standing, asked), asked)
            history = (*history, Taken(asked.id, about.now))
    return Outcome(
        standing=Standing(standing, would, history),
        wish=() if would else standing,
        decisions=tuple(decisions),
        notes=found.notes,
        mutes=mutes,
    )


def hold(before: Standing, about: Circumstances) -> Outcome:
    """Go on while it is not known which policy is in force: nothing begins, and what has cleared ends."""
    mutes = _mutes(about)
    basis = Basis(about.findings, HiSparseNodePolicySpec(), "", about.checks, about.reading, about.now)
    # what was only said in a dry run is not in force, and cannot go on
    actions = () if before.would or about.slot is SlotState.LOST else before.actions
    unmuted = tuple(action for action in actions if mute_of(action.check, mutes, about.now) is None)
    actions = held(basis, unmuted, about.records)
    return Outcome(Standing(actions, before.would, before.history), actions, mutes=mutes)


def after_restart(records: Records | None) -> Standing:
    """What stood before the agent was started again, as far as the host carries it."""
    holding: dict[str, list[Record]] = {}
    for record in records.records if records else ():
        if record.phase.holds:
            holding.setdefault(record.action, []).append(record)
    return Standing(tuple(_wanted_again(of_one) for of_one in holding.values()), would=not holding)


def _remembered(before: Standing, records: Records | None, now: datetime) -> tuple[Taken, ...]:
    """What memory adds to the records: an action that the actuator has not taken up may be taken up only now."""
    if before.would:
        return before.history
    pending = before.actions if records is None else _pending(before, records)
    return (*before.history, *(Taken(action.id, now) for action in pending))


def _pending(before: Standing, records: Records | None) -> tuple[Wanted, ...]:
    """Actions that the actuator has not taken up; none where its records cannot be read, since nobody knows then."""
    if records is None:
        return ()
    recorded = {record.action for record in records.records}
    return tuple(action for action in before.actions if action.id not in recorded)


def _mutes(about: Circumstances) -> tuple[Mute, ...]:
    found = in_force((*about.mutes, *mutes_of(about.records, about.now)), about.now)
    return lifted(found, about.unmute)


def why_gone(action: Wanted, about: Circumstances, mutes: Iterable[Mute]) -> str:
    """Why an action of the last poll left the wish, as far as the agent knows; empty where it does not."""
    policy = about.policy
    if policy is None or about.policy_name != action.policy:
        return f"the policy {action.policy} is gone, cannot be used or is not in force on this node"
    if policy.dry_run:
        return f"the policy {action.policy} is a dry run"
    if about.slot in (SlotState.FULL, SlotState.LOST):
        return "the node has lost its slot of the pool's budget"
    if (mute := mute_of(action.check, mutes, about.now)) is not None:
        return f"{action.check} is muted, since {mute.why}"
    if is_over(action.since, action.ttl_seconds, about.now):
        return "its time is over"
    if action.verb not in {remedy.verb for remedy in policy.remedies or ()}:
        return f"the policy {action.policy} has no remedy {action.verb} any more"
    if not any(finding.check == action.check and finding.state.is_fault for finding in about.findings):
        return f"{action.check} has cleared"
    return ""


def _wanted_again(records: list[Record]) -> Wanted:
    first = records[0]
    changes = dict.fromkeys(Change(_asked_target(record.target), record.new) for record in records)
    return Wanted(
        id=first.action,
        verb=first.verb,
        changes=tuple(changes),
        reason=first.reason,
        check=first.check,
        policy=first.policy,
        ttl_seconds=first.ttl_seconds,
        since=min(record.since for record in records),
    )


def _asked_target(recorded: str) -> str:
    cpu, slash, setting = recorded.partition("/")
    return f"{ALL_CPUS}/{setting}" if slash and cpu.removeprefix(ALL_CPUS).isdigit() else recorded


def _may_go_on(slot: SlotState, *, would: bool) -> bool:
    """Whether actions from before keep their share of the budget. One that is free again is simply taken again."""
    return would or slot not in (SlotState.FULL, SlotState.LOST)


def _without(standing: tuple[Wanted, ...], asked: Wanted) -> tuple[Wanted, ...]:
    targets = {change.target for change in asked.changes}
    left = (
        replace(action, changes=tuple(change for change in action.changes if change.target not in targets))
        for action in standing
    )
    return tuple(action for action in left if action.changes)
