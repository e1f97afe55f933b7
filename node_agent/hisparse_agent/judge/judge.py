"""From a reading to findings: every check on every subject, with its grace and its patience."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from types import MappingProxyType
from typing import Final, TypeVar

from hisparse.nodes.catalogue import Check, NodeCondition
from hisparse.nodes.checks import CHECKS
from hisparse.nodes.findings import Finding, State
from hisparse.nodes.policy import CheckOverride
from hisparse.spec import GROUP
from hisparse.units import shortened
from hisparse_agent.judge import faults, heat, ledger, links, memory, offload, pcie, power, rdma, settings, watching
from hisparse_agent.judge.ledger import Ledger
from hisparse_agent.judge.standing import Patience, Standing, patience_of, step
from hisparse_agent.judge.verdict import (
    BEING_WATCHED,
    BOOT_GRACE,
    DRIVER_UPGRADE,
    HOST,
    MAINTENANCE,
    NO_FAULT_REASONS,
    PIN_WINDOW,
    SWITCHED_OFF,
    Verdict,
    unknown,
    unsupported,
)
from hisparse_agent.judge.view import Judge, View, view_of
from hisparse_agent.readings import Missing, NodeReading, Rdma

T = TypeVar("T")
UPGRADE_LABEL: Final = "nvidia.com/gpu-driver-upgrade-state"
UPGRADE_DONE: Final = "upgrade-done"
MAINTENANCE_ANNOTATION: Final = f"{GROUP}/maintenance"
_MAINTENANCE_SHOWN: Final = 120

_NO_OVERRIDES: Final[Mapping[str, CheckOverride]] = MappingProxyType({})
_NO_CAPS: Final[Mapping[str, int]] = MappingProxyType({})

JUDGES: Final[Mapping[str, Judge]] = MappingProxyType(
    {
        **faults.JUDGES,
        **links.JUDGES,
        **pcie.JUDGES,
        **heat.JUDGES,
        **power.JUDGES,
        **rdma.JUDGES,
        **memory.JUDGES,
        **offload.JUDGES,
        **settings.JUDGES,
        **watching.JUDGES,
    }
)
"""How each check of the catalogue is judged."""


@dataclass(frozen=True)
class Judgement:
    """What is to be told, and what is to be carried to the next reading."""

    findings: tuple[Finding, ...]
    ledger: Ledger
    pin_window: bool


def judge(
    reading: NodeReading,
    history: Sequence[NodeReading],
    book: Ledger,
    *,
    overrides: Mapping[str, CheckOverride] = _NO_OVERRIDES,
    own_caps: Mapping[str, int] = _NO_CAPS,
) -> Judgement:
    """Findings of one poll.

    history: earlier readings, oldest first, kept for about 15 minutes. overrides: by check. own_caps: power limits in
    milliwatts that this project has set, by UUID. Of paces that were not read anew in this reading the last finding
    stands, and no poll is counted.
    """
    before = ledger.in_this_boot(book, reading)
    view = view_of(reading, history, ledger.learned(before, reading), overrides, own_caps)
    window = watching.pin_window(view)
    findings: list[Finding] = []
    told_before = _by_check((finding.check, finding) for finding in before.findings)
    held_before = _by_check((name, (holder, standing)) for (name, holder), standing in before.standings.items())
    standings: dict[tuple[str, str], Standing] = {}
    for check in CHECKS:
        held = dict(held_before.get(check.id, ()))
        if check.pace not in reading.fresh and check.id in told_before:
            findings += told_before[check.id]
            standings |= _filed(check, held)
            continue
        override = overrides.get(check.id)
        kept: dict[str, Standing] = {}
        for verdict in _verdicts(view, check, override):
            grace = _grace(view, check, pin_window=window)
            was = held.get(verdict.kept_by)
            patience = patience_of(check, override)
            now = step(was, _graced(verdict, grace), patience, reading.at)
            kept[verdict.kept_by] = now
            findings.append(_finding(check, verdict, now, patience, grace))
        standings |= _filed(check, _kept_on(held, check) | kept)
    after = replace(
        _learned_of_nics(view.ledger, reading), standings=MappingProxyType(standings), findings=tuple(findings)
    )
    return Judgement(tuple(findings), after, window)


def once(
    reading: NodeReading,
    history: Sequence[NodeReading] = (),
    *,
    overrides: Mapping[str, CheckOverride] = _NO_OVERRIDES,
) -> tuple[Finding, ...]:
    """Findings of one reading, without patience. What needs a rate that history does not give is Unknown."""
    book = Ledger()
    for one in (*history, reading):
        book = ledger.learned(book, one)
    view = view_of(*_with_lines(reading, history), book, overrides, _NO_CAPS)
    window = watching.pin_window(view)
    findings = []
    for check in CHECKS:
        for verdict in _verdicts(view, check, overrides.get(check.id)):
            told = _graced(verdict, _grace(view, check, pin_window=window))
            findings.append(_plain_finding(check, told, reading.at))
    return tuple(findings)


def _with_lines(reading: NodeReading, history: Sequence[NodeReading]) -> tuple[NodeReading, tuple[NodeReading, ...]]:
    """A reader gives each line of the kernel log once; the reading that stands alone tells of all of this boot."""
    if isinstance(reading.xids, Missing):
        return reading, tuple(history)
    earlier = (one.xids for one in history if one.host.boot_id == reading.host.boot_id)
    lines = dict.fromkeys(line for xids in (*earlier, reading.xids) if not isinstance(xids, Missing) for line in xids)
    return replace(reading, xids=tuple(lines)), tuple(replace(one, xids=()) for one in history)


def _verdicts(view: View, check: Check, override: CheckOverride | None) -> tuple[Verdict, ...]:
    if override is not None and override.enabled is False:
        return (unsupported(HOST, "the HiSparseNodePolicy has switched this check off", reason=SWITCHED_OFF),)
    return tuple(JUDGES[check.id](view, check))


# --- grace -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Grace:
    """Why a fault is not taken for one now."""

    reason: str
    words: str


def _grace(view: View, check: Check, *, pin_window: bool) -> _Grace | None:
    reading = view.reading
    if why := reading.annotations.get(MAINTENANCE_ANNOTATION):
        told = shortened(" ".join(why.split()), _MAINTENANCE_SHOWN)
        return _Grace(MAINTENANCE, f"the node is in maintenance (annotation {MAINTENANCE_ANNOTATION}: {told})")
    upgrade = reading.labels.get(UPGRADE_LABEL, UPGRADE_DONE)
    # memory of the host is none of the driver's, and a node may wait for its upgrade for days
    if upgrade != UPGRADE_DONE and check.condition is not NodeCondition.HOST_MEMORY:
        return _Grace(DRIVER_UPGRADE, f"the driver is being upgraded (label {UPGRADE_LABEL} is {upgrade})")
    uptime = reading.host.uptime
    if isinstance(uptime, int) and uptime < check.boot_grace_s:
        return _Grace(BOOT_GRACE, f"the node booted {uptime} s ago and has {check.boot_grace_s} s to settle")
    if pin_window and check.pin_grace:
        return _Grace(PIN_WINDOW, "an engine is pinning its pool, which stalls NVML and DCGM")
    return None


def _graced(verdict: Verdict, grace: _Grace | None) -> Verdict:
    if grace is None or not verdict.state.is_fault:
        return verdict
    message = f"{grace.words}; not taken for a fault: {verdict.message}"
    return replace(unknown(verdict.subject, message, reason=grace.reason), holder=verdict.holder)


# --- findings --------------------------------------------------------------------------------------------------------


def _plain_finding(check: Check, verdict: Verdict, at: datetime) -> Finding:
    fault = verdict.state.is_fault
    return Finding(
        check=check.id,
        subject=verdict.subject,
        state=verdict.state,
        reason=check.reason if fault else verdict.reason or NO_FAULT_REASONS[verdict.state],
        message=f"{verdict.message}; {check.remedy}" if fault else verdict.message,
        since=at,
        value=verdict.value,
        limit=verdict.limit,
        unit=check.unit if verdict.value is not None else "",
    )


def _finding(check: Check, verdict: Verdict, now: Standing, patience: Patience, grace: _Grace | None) -> Finding:
    """What is told of a subject, which is its standing and not this reading alone."""
    if now.told.is_fault and grace is not None:
        # a fault that was proved before the grace began is not acted on during it
        message = f"{grace.words}; before it: {now.proof.message if now.proof else verdict.message}"
        told = replace(unknown(verdict.subject, message, reason=grace.reason), holder=verdict.holder)
        return _plain_finding(check, told, now.since)
    graced = _graced(verdict, grace)
    if now.told is graced.state:
        return _plain_finding(check, graced, now.since)
    told = replace(graced, state=now.told, message=_while_waiting(graced, now, patience), reason="")
    if now.told is State.UNKNOWN:
        told = replace(told, reason=BEING_WATCHED)
    return _plain_finding(check, told, now.since)


def _while_waiting(verdict: Verdict, now: Standing, patience: Patience) -> str:
    """The words for a reading that says otherwise than what is told."""
    if not now.told.is_fault:
        needed = patience.critical_enter if verdict.state is State.CRITICAL else patience.enter
        seen = now.critical if verdict.state is State.CRITICAL else now.bad
        if now.told is State.UNKNOWN:
            return f"being watched: {seen} of {needed} polls: {verdict.message}"
        return f"{verdict.message}: {seen} of {needed} polls that make it a fault"
    proof = now.proof.message if now.proof else ""
    if verdict.state is State.CRITICAL:
        return f"{verdict.message}: {now.critical} of {patience.critical_enter} polls that make it critical"
    leave = patience.leave_of(now.told)
    if leave is None:
        return f"{proof}; now: {verdict.message}, and it stays until the node is booted again"
    seen = now.good if verdict.state is State.OK else now.milder
    return f"{proof}; now: {verdict.message} ({seen} of {leave} polls that end it)"


# --- what is carried on ----------------------------------------------------------------------------------------------


def _by_check(pairs: Iterable[tuple[str, T]]) -> dict[str, list[T]]:
    """What belongs to each check; a loop of every check over everything would cost more than the judging."""
    found: dict[str, list[T]] = {}
    for check, one in pairs:
        found.setdefault(check, []).append(one)
    return found


def _filed(check: Check, held: Mapping[str, Standing]) -> dict[tuple[str, str], Standing]:
    return {(check.id, holder): standing for holder, standing in held.items()}


def _kept_on(held: Mapping[str, Standing], check: Check) -> dict[str, Standing]:
    """A subject that is gone is forgotten, unless only another boot ends its fault."""
    return {holder: standing for holder, standing in held.items() if _stays(check, standing)}


def _stays(check: Check, standing: Standing) -> bool:
    ends_by_boot = check.leave_polls is None or check.critical_stays
    return ends_by_boot and standing.held is State.CRITICAL


def _learned_of_nics(book: Ledger, reading: NodeReading) -> Ledger:
    if not isinstance(reading.rdma, Rdma) or isinstance(reading.rdma.nics, Missing):
        return book
    rates = dict(book.nic_rates)
    for nic in reading.rdma.nics:
        if rdma.is_up(nic) is True and isinstance(nic.rate, int):
            subject = rdma.nic_subject(nic)
            rates[subject] = max(rates.get(subject, 0), nic.rate)
    return replace(book, nic_rates=MappingProxyType(rates))
