"""The status of HiSparseNode. Pure.

Figures move with every poll and a status must not, so two reports are compared by what they say and not by their
figures (`Report.essence`); the figures of the moment go along with whatever is written, at least with each heartbeat.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, Final

from hisparse.nodes.checks import CHECKS, DECIDING
from hisparse.nodes.findings import WORST_FIRST, Finding, State, worst
from hisparse.nodes.report import (
    MOST_ACTIONS,
    MOST_FINDINGS,
    ActionStatus,
    FindingStatus,
    GpuInventory,
    HiSparseNodeStatus,
    Inventory,
    NodeConditionStatus,
)
from hisparse.units import GIB, format_duration, format_quantity
from hisparse_agent.judge.verdict import NOT_READ
from hisparse_agent.readings import Missing, NodeReading, Number, Nvml, known
from hisparse_agent.records import ACTUATOR_SILENT, Phase, Record, Records, Wanted, spelled

WANTED: Final = "Wanted"
"""The phase of what the actuator has not done yet; beside it those of records."""
MESSAGE_LIMIT: Final = 1024
ENDED_SHOWN: Final = timedelta(hours=24)
"""How long an action that has ended is still shown."""
_PLACE: Final = {check.id: place for place, check in enumerate(CHECKS)}


@dataclass(frozen=True)
class Report:
    """What is to be told of the node now.

    unread names sources that could not be read, muted says what and why. refused says why the policy that the node is
    under cannot be used; policy is None then. stuck says what stays changed on the node though it should not. waits:
    the Node's conditions are not Unknown, so that what decides was not known for a moment only and Healthy stays, too.
    """

    findings: tuple[Finding, ...] = ()
    inventory: Inventory = field(default_factory=Inventory)
    actions: tuple[ActionStatus, ...] = ()
    policy: str | None = None
    unread: tuple[str, ...] = ()
    muted: tuple[str, ...] = ()
    refused: str = ""
    stuck: str = ""
    waits: bool = False

    @cached_property
    def faults(self) -> frozenset[tuple[str, str, State]]:
        """What is wrong. When this changes, others are told at once."""
        return frozenset((one.check, one.subject, one.state) for one in self.findings if one.state.is_fault)

    @cached_property
    def urgent(self) -> tuple[object, ...]:
        """What is told at once when it changes: faults, and what was done about them."""
        return (
            self.faults,
            tuple(sorted((one.id, one.target, one.phase) for one in self.actions)),
            self.policy,
            self.refused,
            self.stuck,
        )

    @cached_property
    def essence(self) -> tuple[object, ...]:
        """What the report says, figures left out."""
        said = frozenset((one.check, one.subject, one.state, one.reason) for one in self.findings)
        return (self.urgent, said, self.inventory, self.unread, self.muted, self.waits)


def sorted_findings(findings: Iterable[Finding]) -> list[Finding]:
    """Faults first, the worst first; then what is not known; in each the order of the catalogue.

    There nvlink.links comes before nvlink.capacity, which follows from it: the first one gives a condition its reason.
    """
    return sorted(
        findings,
        key=lambda one: (WORST_FIRST.index(one.state), _PLACE.get(one.check, len(_PLACE)), one.check, one.subject),
    )


def document(report: Report, *, before: Mapping[str, Any], version: str, now: datetime) -> dict[str, Any]:
    """The whole status. `before` is the one that was there; its conditions keep their times while nothing changes."""
    findings = sorted_findings(report.findings)
    status = HiSparseNodeStatus(
        state=worst(tuple({one.state for one in findings})),
        faults=sum(one.state.is_fault for one in findings),
        gpus=len(report.inventory.gpus or ()),
        findings=[_finding(one) for one in findings[:MOST_FINDINGS]],
        inventory=report.inventory,
        actions=list(report.actions[:MOST_ACTIONS]),
        policy=report.policy,
        observed_at=stamp(now),
        agent_version=version,
        conditions=_conditions(report, findings, before.get("conditions") or (), now),
    )
    found: dict[str, Any] = status.model_dump(mode="json", by_alias=True, exclude_none=True)
    return found


def inventory_of(reading: NodeReading, before: Inventory | None = None) -> Inventory:
    """What the node is made of. While NVML does not answer, the GPUs that were there last stay."""
    nvml, memory, host = reading.nvml, reading.memory, reading.host
    last = before or Inventory()
    nodes = None if isinstance(memory.nodes, Missing) else [_size(one.total) for one in memory.nodes]
    return Inventory(
        gpus=_gpus(nvml) if isinstance(nvml, Nvml) else last.gpus,
        driver=nvml.driver if isinstance(nvml, Nvml) else last.driver,
        cuda=nvml.cuda if isinstance(nvml, Nvml) else last.cuda,
        kernel=known(host.kernel) or last.kernel,
        boot_id=known(host.boot_id) or last.boot_id,
        host_memory=_size(memory.total) or last.host_memory,
        host_memory_by_numa=[one or "0" for one in nodes] if nodes else last.host_memory_by_numa,
    )


def action_statuses(
    records: Sequence[Record], wanted: Sequence[Wanted], subjects: Mapping[str, str], now: datetime
) -> tuple[ActionStatus, ...]:
    """Changes in force, those that are wanted and have no record yet, and those that ended in the last day.

    subjects names a GPU by its place ("gpu-3") where a record has its UUID.
    """
    shown = [one for one in records if one.phase.holds or (one.ended is not None and now - one.ended < ENDED_SHOWN)]
    shown.sort(key=lambda one: (not one.phase.holds, -one.since.timestamp(), one.action, one.target))
    done = {(one.action, one.target) for one in shown}
    actions = {one.action for one in shown}
    waiting = [
        ActionStatus(
            id=wish.id,
            verb=wish.verb.value,
            target=subjects.get(change.target, change.target),
            new=change.new,
            phase=WANTED,
            reason=wish.reason,
            policy=wish.policy,
            since=stamp(wish.since),
            ttl=format_duration(wish.ttl_seconds),
        )
        for wish in wanted
        if wish.id not in actions
        for change in wish.changes
        if (wish.id, change.target) not in done
    ]
    return (*(_action(one, subjects) for one in shown), *waiting)[:MOST_ACTIONS]


def stuck(records: Records | None, now: datetime) -> str:
    """What a person has to put back, and why nobody else will; empty where that is not so."""
    holding = [one for one in (records.records if records else ()) if one.phase.holds]
    if records is None or not holding:
        return ""
    if abs(now - records.written) >= ACTUATOR_SILENT:
        values = ", ".join(f"{one.target} to {spelled(one.verb, one.old)}" for one in holding)
        since = stamp(records.written)
        return f"the actuator has been silent since {since}: start it again, or put back by hand {values}"
    failed = (one for one in holding if one.phase is Phase.REVERT_FAILED)
    return "; ".join(
        f"{one.target} is still {spelled(one.verb, one.new)}: put it back to {spelled(one.verb, one.old)} by hand "
        f"({one.message})"
        for one in failed
    )


def stamp(moment: datetime) -> str:
    """metav1.Time: UTC, whole seconds."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def transition(before: Mapping[str, Any], status: str, now: datetime) -> str:
    """The lastTransitionTime of a condition that was `before`: it moves with the status, never with the words."""
    kept = before.get("lastTransitionTime") if before.get("status") == status else None
    return kept or stamp(now)


def shortened(text: str, limit: int = MESSAGE_LIMIT) -> str:
    """The text, with an ellipsis where it is longer."""
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def _finding(one: Finding) -> FindingStatus:
    return FindingStatus(
        check=one.check,
        subject=one.subject,
        state=one.state,
        since=stamp(one.since),
        reason=one.reason,
        message=shortened(one.message),
        value=one.value,
        limit=one.limit,
        unit=one.unit or None,
    )


def _action(one: Record, subjects: Mapping[str, str]) -> ActionStatus:
    phase = WANTED if one.phase is Phase.RECORDED else one.phase.value
    return ActionStatus(
        id=one.action,
        verb=one.verb.value,
        target=subjects.get(one.target, one.target),
        old=one.old,
        new=one.new,
        phase=phase,
        reason=one.reason,
        policy=one.policy,
        since=stamp(one.since),
        ttl=format_duration(one.ttl_seconds),
        message=shortened(one.message) if one.message else None,
    )


def _conditions(
    report: Report, findings: Sequence[Finding], before: Sequence[Mapping[str, Any]], now: datetime
) -> list[NodeConditionStatus]:
    old = {one.get("type"): one for one in before}

    def condition(kind: str, status: str, reason: str, message: str) -> NodeConditionStatus:
        return NodeConditionStatus(
            type=kind,
            status=status,
            reason=reason,
            message=shortened(message),
            last_transition_time=transition(old.get(kind, {}), status, now),
        )

    health = _health(findings)
    was = old.get("Healthy")
    if report.waits and was and health[0] == "Unknown":
        health = (str(was.get("status")), str(was.get("reason")), str(was.get("message")))
    found = [condition("Healthy", *health)]
    if unread := report.unread or _undecided(findings):
        found.append(condition("Observed", "False", "Unread", f"could not be read: {'; '.join(unread)}"))
    else:
        found.append(condition("Observed", "True", "AllRead", "every source was read"))
    if report.muted:
        found.append(condition("Muted", "True", "Muted", "; ".join(report.muted)))
    if report.refused:
        found.append(condition("PolicyAccepted", "False", "InvalidSpec", report.refused))
    if report.stuck:
        found.append(condition("PutBack", "False", "ByHand", report.stuck))
    return found


def _undecided(findings: Sequence[Finding]) -> tuple[str, ...]:
    """What was not read of what decides; no source needs to have failed, as where NVML is not there at all."""
    open_ = (one for one in findings if one.check in DECIDING and (one.state, one.reason) == (State.UNKNOWN, NOT_READ))
    return tuple(dict.fromkeys(one.message for one in open_))


def _health(findings: Sequence[Finding]) -> tuple[str, str, str]:
    """Status, reason and message. A warning is no fault of health, and what is not known is not healthy."""
    state = worst(tuple({one.state for one in findings}))
    first = next((one for one in findings if one.state is state), None)
    others = sum(one.state is state for one in findings) - 1
    more = f" (and {others} more)" if others > 0 else ""
    if first is None or state is State.UNSUPPORTED:
        return "Unknown", "NothingToJudge", "no check has anything to judge on this machine"
    if state is State.CRITICAL:
        return "False", first.reason, f"{first.check} on {first.subject}: {first.message}{more}"
    if open_ := [one for one in findings if one.state is State.UNKNOWN and one.check in DECIDING]:
        more = f" (and {len(open_) - 1} more)" if len(open_) > 1 else ""
        return "Unknown", open_[0].reason, f"{open_[0].check} on {open_[0].subject}: {open_[0].message}{more}"
    if state is State.WARN:
        return "True", first.reason, f"warning: {first.check} on {first.subject}: {first.message}{more}"
    if not any(one.state is State.OK for one in findings):
        return "Unknown", first.reason, f"{first.check} on {first.subject}: {first.message}{more}"
    unknown = sum(one.state is State.UNKNOWN for one in findings)
    rest = f"; {unknown} could not be judged" if unknown else ""
    return "True", "NoFault", f"no check has found a fault{rest}"


def _gpus(nvml: Nvml) -> list[GpuInventory]:
    return [
        GpuInventory(
            index=gpu.index,
            product=gpu.product,
            uuid=gpu.uuid,
            memory=_size(gpu.memory),
            # what the link can do: many cards slow it down while they idle
            pci_gen=known(gpu.pcie.most_generation),
            pci_width=known(gpu.pcie.width),
            nvlinks=known(gpu.active_links),
            numa_node=known(gpu.numa_node),
        )
        for gpu in nvml.gpus
        if gpu.product  # a card that is lost tells nothing of itself
    ]


def _size(value: Number) -> str | None:
    """Whole GiB where it is more than one: on a machine whose memory grows the rest moves all the time."""
    if isinstance(value, Missing):
        return None
    return f"{value // GIB}Gi" if value >= GIB else format_quantity(value)
