"""From findings to the actions that would help: what goes on, what is asked for anew, and what is only told.

An action starts at Critical, or at Warn for a check of configuration, which knows no Critical. It goes on as long as
there is a fault, so that a card that has cooled a little is not let loose at once; it ends when the finding clears, is
no longer judged, or after its TTL. Unknown and Unsupported start nothing and end nothing. A check of configuration is
good because of the action, so that its being good ends nothing either. An action belongs to the policy that allowed it
and goes with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from fractions import Fraction
from typing import Final

from hisparse.nodes.acceptance import able_to_ask
from hisparse.nodes.catalogue import Check, Pace, Verb
from hisparse.nodes.findings import Finding, State
from hisparse.nodes.policy import (
    DEFAULT_CPUFREQ,
    DEFAULT_STEP_PERCENT,
    DEFAULT_SYSCTL,
    DEFAULT_SYSCTL_VALUE,
    DEFAULT_TTL,
    LEAST_POWER_PERCENT,
    HiSparseNodePolicySpec,
    Remedy,
    RemedyParameters,
)
from hisparse.units import format_watts, parse_duration
from hisparse_agent.readings import Cpufreq, GpuReading, Missing, NodeReading
from hisparse_agent.records import ALL_CPUS, Change, Phase, Record, Records, Wanted, covers, is_over

BETWEEN_STEPS: Final = timedelta(minutes=5)
"""A card answers a cap within seconds and its heat sink within minutes; before that a second step is a guess."""

GOVERNOR: Final = f"{ALL_CPUS}/scaling_governor"
PREFERENCE: Final = f"{ALL_CPUS}/energy_performance_preference"
_WATT: Final = 1000
_POOL_DOES_NOT_FIT: Final = (
    "the host pool does not fit this node beside what else runs here: lower spec.kvTier.hostPool of the inference or "
    "give the node more memory; swap is not enlarged, because a pinned pool never goes there"
)


@dataclass(frozen=True)
class Note:
    """Something to tell where there is nothing to do, or where doing is not enough."""

    verb: Verb
    check: str
    message: str


@dataclass(frozen=True)
class Wishes:
    """standing are actions from before that go on, asked those that need leave. A target is in one of asked at most.

    Where an asked action has a target of a standing one, it takes its place: the actuator puts the first back before.
    """

    standing: tuple[Wanted, ...]
    asked: tuple[Wanted, ...]
    notes: tuple[Note, ...]


@dataclass(frozen=True)
class Basis:
    """What wishes are made of. checks is the catalogue, by id."""

    findings: tuple[Finding, ...]
    policy: HiSparseNodePolicySpec
    policy_name: str
    checks: Mapping[str, Check]
    reading: NodeReading
    now: datetime


def checks_of(remedy: Remedy, checks: Mapping[str, Check]) -> frozenset[str]:
    """The checks that may ask for a remedy: those that the policy names, else those of the catalogue with its verb."""
    if remedy.checks is not None:
        return frozenset(remedy.checks)
    return frozenset(able_to_ask(remedy.verb, checks.values()))


def wishes(basis: Basis, before: Sequence[Wanted], records: Records | None) -> Wishes:
    """What is wanted of this node now. before are the actions of the last poll, records what became of them."""
    standing = tuple(
        kept
        for action in before
        for kept in (_still_wanted(action, basis, records.records if records else ()),)
        if kept.changes
    )
    asked: list[Wanted] = []
    notes: list[Note] = []
    for remedy in basis.policy.remedies or ():
        findings = _asking(remedy, basis)
        if not findings:
            continue
        changes, told = _changes(remedy, findings, basis, standing, records)
        notes += told
        spoken_for = {change.target for action in asked for change in action.changes}
        changes = tuple(change for change in changes if change.target not in spoken_for)
        if changes:
            action = _action(remedy, findings[0], changes, basis)
            if any(action.id == other.id for other in asked):
                # a second remedy of one verb for one check
                action = replace(action, id=f"{action.id}-{len(asked)}")
            asked.append(action)
    return Wishes(standing, tuple(asked), tuple(dict.fromkeys(notes)))


def held(basis: Basis, before: Sequence[Wanted], records: Records | None) -> tuple[Wanted, ...]:
    """What goes on of the last poll while the policy is not known: what has neither cleared nor had its time.

    basis.policy is not looked at.
    """
    kept = (
        _without_ended(action, frozenset({action.check}), basis, records.records if records else ())
        for action in before
        if not is_over(action.since, action.ttl_seconds, basis.now)
    )
    return tuple(action for action in kept if action.changes)


def _action(remedy: Remedy, cause: Finding, changes: tuple[Change, ...], basis: Basis) -> Wanted:
    stamp = basis.now.strftime("%Y%m%dT%H%M%S")
    return Wanted(
        id=f"{remedy.verb}-{cause.check}-{stamp}",
        verb=remedy.verb,
        changes=changes,
        reason=f"{cause.check} {cause.subject}: {cause.message}"[:256],
        check=cause.check,
        policy=basis.policy_name,
        ttl_seconds=_ttl_seconds(remedy),
        since=basis.now,
    )


def _ttl_seconds(remedy: Remedy) -> int:
    return parse_duration(remedy.ttl or DEFAULT_TTL)


# --- what goes on ----------------------------------------------------------------------------------------------------


def _still_wanted(action: Wanted, basis: Basis, records: Iterable[Record]) -> Wanted:
    """The action with the changes that are still wanted; none where it has ended."""
    allowing = [remedy for remedy in basis.policy.remedies or () if _allows(remedy, action, basis)]
    if not allowing or action.policy != basis.policy_name:
        return replace(action, changes=())
    asking = frozenset[str]().union(*(checks_of(remedy, basis.checks) for remedy in allowing))
    allowed = (change for change in action.changes if any(_asks_for(remedy, change) for remedy in allowing))
    return _without_ended(replace(action, changes=tuple(allowed)), asking, basis, records)


def _without_ended(action: Wanted, asking: frozenset[str], basis: Basis, records: Iterable[Record]) -> Wanted:
    own = [record for record in records if record.action == action.id]
    return replace(
        action,
        changes=tuple(
            change
            for change in action.changes
            if not _ended(change, own) and not _cleared(change.target, action, asking, basis)
        ),
    )


def _allows(remedy: Remedy, action: Wanted, basis: Basis) -> bool:
    """Whether a remedy, which may have been edited since, still allows an action for its check, and for so long."""
    switched_off = {one.check for one in basis.policy.checks or () if one.enabled is False}
    return (
        remedy.verb is action.verb
        and action.check in checks_of(remedy, basis.checks) - switched_off
        and not is_over(action.since, min(action.ttl_seconds, _ttl_seconds(remedy)), basis.now)
    )


def _asks_for(remedy: Remedy, change: Change) -> bool:
    """Whether a remedy still asks for this value of this setting. A cap stands whatever the next step is."""
    given = remedy.parameters or RemedyParameters()
    if remedy.verb is Verb.POWER_CAP:
        return True
    if remedy.verb is Verb.SYSCTL:
        return change == _sysctl_change(given)
    if change.target == GOVERNOR:
        return change.new == (given.governor or DEFAULT_CPUFREQ)
    return change.new == (given.preference or DEFAULT_CPUFREQ) and bool(given.preference or not given.governor)


def _sysctl_change(given: RemedyParameters) -> Change:
    value = DEFAULT_SYSCTL_VALUE if given.value is None else given.value
    return Change(given.sysctl or DEFAULT_SYSCTL, str(value))


def _ended(change: Change, own: Sequence[Record]) -> bool:
    of_it = [record for record in own if covers(change.target, record.target)]
    return bool(of_it) and not any(record.phase.holds for record in of_it)


def _cleared(target: str, action: Wanted, asking: frozenset[str], basis: Basis) -> bool:
    """Whether nothing speaks for the change any more."""
    gpu = _gpu_of(target, basis.reading) if action.verb is Verb.POWER_CAP else None
    if action.verb is Verb.POWER_CAP and gpu is None:
        # NVML may be silent, which is no news of the card; or it answers and the card is not there
        return not isinstance(basis.reading.nvml, Missing)
    if gpu is None and _is_configuration(action.check, basis.checks):
        return False
    about = [finding for finding in basis.findings if gpu is None or finding.subject == gpu.subject]
    if any(finding.state.is_fault and finding.check in asking for finding in about):
        return False
    return not any(
        finding.state in (State.UNKNOWN, State.UNSUPPORTED) and finding.check == action.check for finding in about
    )


# --- what is asked for -----------------------------------------------------------------------------------------------


def _asking(remedy: Remedy, basis: Basis) -> tuple[Finding, ...]:
    """The findings that ask for a remedy, in their order."""
    names = checks_of(remedy, basis.checks)
    return tuple(finding for finding in basis.findings if finding.check in names and _acts(finding, basis.checks))


def _acts(finding: Finding, checks: Mapping[str, Check]) -> bool:
    if finding.state is State.WARN:
        return _is_configuration(finding.check, checks)
    return finding.state is State.CRITICAL


def _is_configuration(check: str, checks: Mapping[str, Check]) -> bool:
    return check in checks and checks[check].pace is Pace.CONFIG


def _changes(
    remedy: Remedy, findings: tuple[Finding, ...], basis: Basis, standing: Sequence[Wanted], records: Records | None
) -> tuple[tuple[Change, ...], list[Note]]:
    given = remedy.parameters or RemedyParameters()
    found: list[Change] = []
    notes: list[Note] = []

    def add(finding: Finding, answer: Change | str) -> None:
        if isinstance(answer, Change):
            found.append(answer)
        elif answer:
            notes.append(Note(remedy.verb, finding.check, answer))

    if remedy.verb is Verb.POWER_CAP:
        for finding in _one_a_subject(findings):
            add(finding, _lower(finding, given, basis, standing, records))
        return tuple(found), notes
    cause = findings[0]
    if remedy.verb is Verb.SYSCTL:
        add(cause, _sysctl(given, basis.reading, standing))
        notes += [
            Note(remedy.verb, check, _POOL_DOES_NOT_FIT)
            for check in dict.fromkeys(finding.check for finding in findings)
            if not _is_configuration(check, basis.checks)
        ]
    else:
        add(cause, _cpufreq(given, basis.reading.host.cpufreq, standing))
    return tuple(found), notes


def _one_a_subject(findings: Iterable[Finding]) -> list[Finding]:
    return list({finding.subject: finding for finding in reversed(tuple(findings))}.values())[::-1]


def _held(target: str, standing: Iterable[Wanted]) -> tuple[Wanted, Change] | None:
    return next(
        ((action, change) for action in standing for change in action.changes if change.target == target),
        None,
    )


def _lower(
    finding: Finding, given: RemedyParameters, basis: Basis, standing: Sequence[Wanted], records: Records | None
) -> Change | str:
    """One step down for the GPU of a finding, or why not; empty where a step has been taken and must show its effect.

    A step is a share of the card's default, not of the present limit, so that steps do not shrink. The floor is that
    of the actuator; both are rounded up to whole watts, which every driver takes as they are.
    """
    gpu = _gpu_with(finding.subject, basis.reading)
    if gpu is None:
        return f"{finding.subject}: no such GPU can be read"
    default, least, limit = gpu.power.default, gpu.power.least, gpu.power.limit
    if not gpu.uuid or isinstance(default, Missing) or isinstance(least, Missing) or isinstance(limit, Missing):
        return f"{finding.subject}: its power limits cannot be read"
    present = limit
    held = _held(gpu.uuid, standing)
    if held is not None:
        action, change = held
        if basis.now - action.since < BETWEEN_STEPS or not _in_force(action, change, records):
            return ""
        present = int(change.new)
    floor = _whole_watts(max(Fraction(least), Fraction(default * LEAST_POWER_PERCENT, 100)))
    step = Fraction(default * (given.step_percent or DEFAULT_STEP_PERCENT), 100)
    new = max(floor, _whole_watts(present - step))
    if new >= default:
        return f"{finding.subject}: a cap to {format_watts(new)} is the default of the card: nothing to do"
    if new >= present:
        capped = f"it is capped to {format_watts(present)}, and {format_watts(floor)} is the least"
        return f"{finding.subject}: {capped}: nothing to do"
    return Change(gpu.uuid, str(new))


def _in_force(action: Wanted, change: Change, records: Records | None) -> bool:
    return any(
        record.action == action.id and record.target == change.target and record.phase is Phase.IN_FORCE
        for record in (records.records if records else ())
    )


def _sysctl(given: RemedyParameters, reading: NodeReading, standing: Sequence[Wanted]) -> Change | str:
    change = _sysctl_change(given)
    name, value = change.target, int(change.new)
    if _held(name, standing):
        return ""
    sysctls = reading.host.sysctls
    present = None if isinstance(sysctls, Missing) else sysctls.get(name)
    if present is None or not present.isdigit():
        return f"{name} cannot be read"
    if int(present) == value:
        return f"{name} is {value} as it is: nothing to do"
    if name == DEFAULT_SYSCTL and int(present) < value:
        return f"{name} is {present}, which swaps less than {value} would: nothing to do"
    return change


def _cpufreq(given: RemedyParameters, cpufreq: Cpufreq | Missing, standing: Sequence[Wanted]) -> Change | str:
    """The preference where the driver chooses frequencies itself (it then offers some), else the governor.

    With such a driver the governor "powersave" is no slow one; a policy that names a governor alone still gets it.
    """
    if isinstance(cpufreq, Missing):
        return f"cpufreq cannot be read: {cpufreq.why}"
    offered: tuple[str, ...] = cpufreq.offered
    present: tuple[str, ...] | Missing = cpufreq.governors
    target, new = GOVERNOR, given.governor or DEFAULT_CPUFREQ
    preferences = cpufreq.offered_preferences
    if not isinstance(preferences, Missing) and preferences and (given.preference or not given.governor):
        target, new = PREFERENCE, given.preference or DEFAULT_CPUFREQ
        offered, present = preferences, cpufreq.preferences
    if _held(target, standing):
        return ""
    word = target.partition("/")[2]
    if new not in offered:
        return f"the driver {cpufreq.driver} offers no {word} {new}"
    if isinstance(present, Missing):
        return f"{word} cannot be read: {present.why}"
    if set(present) == {new}:
        return f"{word} is {new} on every CPU: nothing to do"
    return Change(target, new)


def _whole_watts(milliwatts: Fraction | int) -> int:
    return -(-Fraction(milliwatts) // _WATT) * _WATT


def _gpus(reading: NodeReading) -> tuple[GpuReading, ...]:
    return () if isinstance(reading.nvml, Missing) else reading.nvml.gpus


def _gpu_of(uuid: str, reading: NodeReading) -> GpuReading | None:
    return next((gpu for gpu in _gpus(reading) if gpu.uuid == uuid), None)


def _gpu_with(subject: str, reading: NodeReading) -> GpuReading | None:
    return next((gpu for gpu in _gpus(reading) if gpu.subject == subject), None)
