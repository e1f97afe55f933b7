"""May this action be taken? The gates, in order: policy, budget slot, rate limit, breaker, mute, actuator.

Putting back passes no gate. A dry run asks the same questions, but for the actuator, which it does not need.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from hisparse.nodes.breaker import LEASE_PREFIX, closing_command
from hisparse.nodes.policy import (
    DEFAULT_PER_NODE_PER_DAY,
    DEFAULT_PER_NODE_PER_HOUR,
    Budget,
    HiSparseNodePolicySpec,
)
from hisparse_agent.records import ACTUATOR_SILENT, Records, Wanted
from hisparse_agent.remedies.ours import Mute, mute_of, unmuting_command

_HOUR: Final = timedelta(hours=1)
_DAY: Final = timedelta(days=1)


class Gate(StrEnum):
    """What refused."""

    POLICY = "Policy"
    BUDGET = "Budget"
    RATE = "Rate"
    BREAKER = "Breaker"
    MUTE = "Mute"
    ACTUATOR = "Actuator"


class SlotState(StrEnum):
    """This node and the budget of its pool."""

    HELD = "Held"
    FREE = "Free"
    """There is one; it has to be taken before anything is written."""
    FULL = "Full"
    LOST = "Lost"
    """We held one and may not count on it any more."""
    UNKNOWN = "Unknown"
    """The Lease cannot be read."""


@dataclass(frozen=True)
class Taken:
    """An action that was allowed, and when: what the rate limit counts."""

    id: str
    at: datetime


@dataclass(frozen=True)
class Where:
    """What the next step of a refusal has to name: this node, and the namespace of the node agents with the Lease."""

    node: str = "NODE"
    namespace: str = "NAMESPACE"


@dataclass(frozen=True)
class Situation:
    """What the gates look at. policy is None where none selects the node; breaker_open None where it is not known."""

    policy: HiSparseNodePolicySpec | None
    slot: SlotState
    breaker_open: bool | None
    mutes: tuple[Mute, ...]
    records: Records | None
    now: datetime
    where: Where = Where()


@dataclass(frozen=True)
class Refusal:
    """Why an action is not taken, and the next step."""

    gate: Gate
    message: str


@dataclass(frozen=True)
class Decision:
    """An action that was asked for. would: it is a dry run, and nothing follows from it."""

    action: Wanted
    refusal: Refusal | None
    would: bool

    @property
    def allowed(self) -> bool:
        """Whether no gate refused."""
        return self.refusal is None

    @property
    def key(self) -> tuple[str, ...]:
        """The same from poll to poll as long as there is nothing new to tell; the id of a refused action is not."""
        gate = self.refusal.gate if self.refusal else ""
        targets = (change.target for change in self.action.changes)
        return (self.action.verb, self.action.check, str(gate), str(self.would), *targets)


def history_of(records: Records | None, remembered: Iterable[Taken], now: datetime) -> tuple[Taken, ...]:
    """The actions of the last day, from the records of the host and from memory, each once, oldest first.

    The host says when it was really done, which is later than it was allowed. Refused ones count as well: an attempt
    is an attempt, and without that one would follow at every poll.
    """
    found = {taken.id: taken for taken in remembered}
    found |= {record.action: Taken(record.action, record.since) for record in (records.records if records else ())}
    return tuple(sorted((one for one in found.values() if now - one.at < _DAY), key=lambda one: (one.at, one.id)))


def decide(action: Wanted, situation: Situation, history: Sequence[Taken]) -> Decision:
    """Whether the action may be taken now, and by which gate not."""
    policy = situation.policy
    would = policy is None or policy.dry_run
    gates = (
        _policy(action, policy),
        _budget(situation.slot, action.policy, situation.where),
        _rate(policy.budget if policy else None, history, situation.now),
        _breaker(situation.breaker_open, action.policy, situation.where),
        _mute(action, situation),
        None if would else _actuator(situation),
    )
    return Decision(action, next((refusal for refusal in gates if refusal is not None), None), would)


def taint_refusal(policy: str, slot: SlotState, breaker_open: bool | None, where: Where) -> Refusal | None:  # noqa: FBT001  None is a third answer
    """Why a taint that a policy asks for is not set; of the gates only budget and breaker are asked."""
    return _budget(slot, policy, where) or _breaker(breaker_open, policy, where)


def still_allowed(action: Wanted, situation: Situation) -> bool:
    """Whether what was allowed may still begin: every gate again but the rate, which counts it already."""
    return decide(action, situation, ()).allowed


def _policy(action: Wanted, policy: HiSparseNodePolicySpec | None) -> Refusal | None:
    if policy is None:
        return Refusal(Gate.POLICY, "no HiSparseNodePolicy selects this node")
    if action.verb not in {remedy.verb for remedy in policy.remedies or ()}:
        return Refusal(Gate.POLICY, f"the policy {action.policy} has no remedy {action.verb}")
    return None


def _budget(slot: SlotState, policy: str, where: Where) -> Refusal | None:
    if slot in (SlotState.HELD, SlotState.FREE):
        return None
    look = f"kubectl get lease -n {where.namespace} {LEASE_PREFIX}{policy} -o yaml"
    if slot is SlotState.UNKNOWN:
        return Refusal(
            Gate.BUDGET,
            f"the Lease with the budget of the pool cannot be read; the agent's log says why, see also {look}",
        )
    if slot is SlotState.LOST:
        return Refusal(
            Gate.BUDGET,
            f"the node has lost its slot of the pool's budget, or cannot know that it holds one; the holders: {look}",
        )
    return Refusal(
        Gate.BUDGET,
        f"as many nodes of the pool as the budget of policy {policy} allows are acted on now; {look} names them, "
        "spec.budget.maxNodes allows more",
    )


def _rate(budget: Budget | None, history: Sequence[Taken], now: datetime) -> Refusal | None:
    per_hour = (budget.per_node_per_hour if budget else None) or DEFAULT_PER_NODE_PER_HOUR
    per_day = (budget.per_node_per_day if budget else None) or DEFAULT_PER_NODE_PER_DAY
    for limit, span, word in ((per_hour, _HOUR, "hour"), (per_day, _DAY, "day")):
        # A time ahead of ours counts too: a clock that was set back is no reason to act more often.
        times = sorted(taken.at for taken in history if now - taken.at < span)
        if len(times) >= limit:
            again = (times[-limit] + span).isoformat(timespec="seconds")
            return Refusal(
                Gate.RATE, f"{len(times)} of {limit} actions of one {word} are used; the next is from {again}"
            )
    return None


def _breaker(is_open: bool | None, policy: str, where: Where) -> Refusal | None:  # noqa: FBT001  None is a third answer
    if is_open is None:
        return Refusal(
            Gate.BREAKER, f"whether the breaker of policy {policy} is open cannot be read; the agent's log says why"
        )
    if is_open:
        close = closing_command(where.namespace, policy)
        return Refusal(
            Gate.BREAKER, f"the breaker of policy {policy} is open; when the cause is found, close it with {close}"
        )
    return None


def _mute(action: Wanted, situation: Situation) -> Refusal | None:
    mute = mute_of(action.check, situation.mutes, situation.now)
    if mute is None:
        return None
    until = mute.until.isoformat(timespec="seconds")
    undo = unmuting_command(situation.where.node, mute.check)
    return Refusal(Gate.MUTE, f"{mute.check} is muted until {until}, since {mute.why}; to lift it: {undo}")


def _actuator(situation: Situation) -> Refusal | None:
    look = (
        f"look at the container actuator of the agent's pod: kubectl get pods -n {situation.where.namespace} -o wide "
        f"--field-selector spec.nodeName={situation.where.node}"
    )
    if situation.records is None:
        return Refusal(
            Gate.ACTUATOR,
            "no records of an actuator can be read on this node: install it (node_agent/deploy/actuator.yaml), or "
            f"{look}",
        )
    if abs(situation.now - situation.records.written) >= ACTUATOR_SILENT:
        return Refusal(Gate.ACTUATOR, f"the actuator of this node has been silent for more than 3 minutes: {look}")
    return None
