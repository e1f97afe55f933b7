"""What no schema can know of a HiSparseNodePolicy: whether the checks of this release can do what it asks.

The agent and the operator both ask here, so that one never acts on what the other calls wrong. What has a fault is not
used at all, not even the parts that are sound: half of what a person meant is another policy than the one that they
wrote.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Final

from hisparse.errors import SpecError, SpecErrors
from hisparse.faults import nearest
from hisparse.nodes.catalogue import Check, Threshold, Verb
from hisparse.nodes.checks import CHECKS
from hisparse.nodes.policy import (
    ALLOWED_SYSCTLS,
    DEFAULT_SYSCTL,
    DEFAULT_SYSCTL_VALUE,
    CheckOverride,
    HiSparseNodePolicySpec,
    Remedy,
    RemedyParameters,
    parse_policy,
)

_NOT_NEGATIVE: Final = ("bytes", "seconds", "count")


def accepted(raw: Mapping[str, object]) -> HiSparseNodePolicySpec:
    """The spec of a policy that can be used. Raises SpecErrors with every fault that can be told at once."""
    spec = parse_policy(raw)
    if found := faults(spec):
        raise SpecErrors(found)
    return spec


def faults(spec: HiSparseNodePolicySpec, checks: Sequence[Check] = CHECKS) -> tuple[SpecError, ...]:
    """Everything that is wrong with a policy whose form is right, by field; empty where nothing is."""
    known = {check.id: check for check in checks}
    return (*_overrides(spec.checks or (), known), *_remedies(spec, known))


# --- checks ----------------------------------------------------------------------------------------------------------


def _overrides(overrides: Sequence[CheckOverride], known: Mapping[str, Check]) -> Iterator[SpecError]:
    first: dict[str, int] = {}
    for place, override in enumerate(overrides):
        field = f"spec.checks[{place}]"
        if override.check not in known:
            yield _unknown(f"{field}.check", override.check, known)
            continue
        if override.check in first:
            yield SpecError(
                f"{field}.check",
                f'"{override.check}" is in spec.checks[{first[override.check]}] already; make one entry of both',
            )
        first.setdefault(override.check, place)
        yield from _override(field, override, known[override.check])


def _override(field: str, override: CheckOverride, check: Check) -> Iterator[SpecError]:
    limits = [one for one in (check.threshold, *check.profiles.values()) if one.warn or one.critical]
    given = {name: text for name in ("warn", "critical") if (text := getattr(override, name)) is not None}
    sound = True
    for name, text in given.items():
        if fault := _level(check, name, text, limits):
            sound = False
            yield SpecError(f"{field}.{name}", fault)
    if sound and given and (fault := _order(override, limits)):
        yield SpecError(f"{field}.{next(reversed(given))}", fault)
    if override.leave_polls is not None and check.leave_polls is None:
        yield SpecError(
            f"{field}.leavePolls",
            f"a fault of {check.id} ends with another boot, and not after so many good polls; remove the line",
        )


def _level(check: Check, name: str, text: str, limits: Sequence[Threshold]) -> str:
    """Why a threshold cannot be set to this; empty where it can. A policy moves thresholds and invents none."""
    if not any(getattr(one, name) for one in limits):
        has = f"no {name} to set" if limits else "no threshold to set"
        return f"{check.id} has {has}; remove the line"
    value = Fraction(text)
    if check.unit == "ratio" and not 0 <= value <= 1:
        return f'{text} is no share; write a number between 0 and 1, as in "0.85" for 85 %'
    if check.unit in _NOT_NEGATIVE and value < 0:
        return f"{text} is never reached: {check.unit} are not negative; write the limit in {check.unit}"
    if check.unit == "count" and not all(one.rising for one in limits) and (value < 1 or value.denominator > 1):
        return f'{text} is no number of things that there should be; write a whole number, as in "18"'
    return ""


def _order(override: CheckOverride, limits: Sequence[Threshold]) -> str:
    """Why warn and critical cannot be as they are with this override; empty where they can.

    They are compared for each GPU product, because the level that the policy leaves alone may be another on each.
    """
    for limit in limits:
        warn, critical = override.warn or limit.warn, override.critical or limit.critical
        if limit.apart or warn is None or critical is None:
            continue
        if Fraction(warn) != Fraction(critical) and (Fraction(warn) > Fraction(critical)) is limit.rising:
            side, worse = ("above", "more") if limit.rising else ("below", "less")
            own = " (the catalogue's)"
            return (
                f"warn {warn}{'' if override.warn else own} is {side} critical {critical}"
                f"{'' if override.critical else own}, and {worse} is worse, so it would never warn; set both, with "
                "warn the first to be reached"
            )
    return ""


# --- remedies --------------------------------------------------------------------------------------------------------


def _remedies(spec: HiSparseNodePolicySpec, known: Mapping[str, Check]) -> Iterator[SpecError]:
    off = {one.check for one in spec.checks or () if one.enabled is False}
    before: list[tuple[int, str, frozenset[str]]] = []
    for place, remedy in enumerate(spec.remedies or ()):
        field = f"spec.remedies[{place}]"
        asking = _asking(remedy, known)
        yield from _names(field, remedy, known)
        yield from _switched_off(field, remedy, asking, off)
        yield from _parameters(field, remedy)
        target = _target(remedy)
        for earlier, same, others in before:
            if same == target and (twice := sorted(asking & others)):
                yield SpecError(
                    field,
                    f"spec.remedies[{earlier}] is for {remedy.verb} of {target} and {', '.join(twice)} already, and "
                    "always comes first; give each its own checks, or remove one",
                )
        before.append((place, target, asking))


def _asking(remedy: Remedy, known: Mapping[str, Check]) -> frozenset[str]:
    """Checks that may ask for a remedy and do exist."""
    able = able_to_ask(remedy.verb, known.values())
    return frozenset(able) if remedy.checks is None else frozenset(remedy.checks) & frozenset(able)


def able_to_ask(verb: Verb, checks: Iterable[Check] = CHECKS) -> tuple[str, ...]:
    """The checks whose findings a verb helps, in the order of the catalogue."""
    return tuple(check.id for check in checks if verb in check.verbs)


def _names(field: str, remedy: Remedy, known: Mapping[str, Check]) -> Iterator[SpecError]:
    able = ", ".join(able_to_ask(remedy.verb, known.values()))
    if remedy.checks is not None and not remedy.checks:
        yield SpecError(
            f"{field}.checks",
            f"names no check, so that nothing would ever ask for {remedy.verb}; remove the line, which means {able}",
        )
    for place, name in enumerate(remedy.checks or ()):
        if name not in known:
            yield _unknown(f"{field}.checks[{place}]", name, known)
        elif remedy.verb not in known[name].verbs:
            yield SpecError(
                f"{field}.checks[{place}]", f'{remedy.verb} is no remedy for "{name}"; it is one for {able}'
            )


def _switched_off(field: str, remedy: Remedy, asking: frozenset[str], off: set[str]) -> Iterator[SpecError]:
    if remedy.checks is None:
        if asking and asking <= off:
            yield SpecError(
                field, f"every check that asks for {remedy.verb} is switched off in spec.checks; remove the remedy"
            )
        return
    for place, name in enumerate(remedy.checks):
        if name in asking & off:
            yield SpecError(
                f"{field}.checks[{place}]", f'"{name}" is switched off in spec.checks; remove one of the two lines'
            )


def _parameters(field: str, remedy: Remedy) -> Iterator[SpecError]:
    if remedy.verb is not Verb.SYSCTL:
        return
    given = remedy.parameters or RemedyParameters()
    name = given.sysctl or DEFAULT_SYSCTL
    value = DEFAULT_SYSCTL_VALUE if given.value is None else given.value
    least, most = ALLOWED_SYSCTLS[name]
    if not least <= value <= most:
        told = f"{value} is not allowed" if given.value is not None else f"is not set, and {value} is not allowed"
        wanted = f"{least}" if least == most else f"{least} to {most}"
        yield SpecError(f"{field}.parameters.value", f"{told} for {name}; set {wanted}")


def _target(remedy: Remedy) -> str:
    """What a remedy changes, as far as the policy tells."""
    given = remedy.parameters or RemedyParameters()
    if remedy.verb is Verb.SYSCTL:
        return given.sysctl or DEFAULT_SYSCTL
    if remedy.verb is Verb.CPUFREQ:
        return "the governor" if given.governor and not given.preference else "the energy preference"
    return "the GPU"


def _unknown(field: str, name: str, known: Mapping[str, Check]) -> SpecError:
    return SpecError(field, f'"{name}" is no check of this release{nearest(name, list(known))}')
