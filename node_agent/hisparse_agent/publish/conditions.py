"""Conditions and the taint of the Node: what other controllers act on. Pure.

A condition is False where a check that feeds it is critical, else Unknown where a check that decides it (`decides` in
the catalogue) is Unknown on any subject. A warning leaves it True and says so. Of checks that do not decide, silence
makes it Unknown only where nothing else was read, so that one silent sensor is no alarm. lastTransitionTime moves with
the status and never with reason or message: whoever counts on it (node repair of karpenter and of clouds) would wait
for ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from hisparse.nodes.catalogue import Check, NodeCondition
from hisparse.nodes.findings import Finding, State
from hisparse.nodes.policy import TaintEffect
from hisparse.spec import GROUP
from hisparse_agent.publish.report import shortened, sorted_findings, stamp, transition

TAINT_KEY: Final = f"{GROUP}/degraded"
_GOOD_REASON: Final = {
    NodeCondition.GPU: "GpusHealthy",
    NodeCondition.LINK: "LinksHealthy",
    NodeCondition.HOST_MEMORY: "HostMemoryHealthy",
}
_TOLD: Final = 3
UNREAD: Final = "Unread"
_UNSUPPORTED: Final = "Unsupported"
BLIND_POLLS: Final = 3
"""So many polls in a row in which it could not be judged make a condition Unknown."""


@dataclass(frozen=True)
class Judged:
    """One condition of this poll, without the times."""

    type: NodeCondition
    status: str
    reason: str
    message: str

    @property
    def essence(self) -> tuple[str, str, str]:
        """What is compared; a message holds figures that move."""
        return (self.type.value, self.status, self.reason)

    @property
    def is_blind(self) -> bool:
        """Whether it could not be judged this time; where there is nothing to judge, waiting would not help."""
        return self.status == "Unknown" and self.reason != _UNSUPPORTED


@dataclass(frozen=True)
class Taint:
    """Our taint: the check that asks for it and what it does."""

    check: str
    effect: TaintEffect

    @property
    def document(self) -> dict[str, str]:
        """As it stands in spec.taints, without the time."""
        return {"key": TAINT_KEY, "value": self.check, "effect": self.effect.value}


def judged(findings: Iterable[Finding], checks: Mapping[str, Check]) -> tuple[Judged, ...]:
    """The conditions that the findings make. A finding of a check that feeds none is left out."""
    by_condition: dict[NodeCondition, list[Finding]] = {one: [] for one in NodeCondition}
    for finding in findings:
        check = checks.get(finding.check)
        if check is not None and check.condition is not None:
            by_condition[check.condition].append(finding)
    return tuple(_judged(kind, sorted_findings(found), checks) for kind, found in by_condition.items())


@dataclass(frozen=True)
class Patient:
    """The conditions as they are told, and how often in a row each could not be judged."""

    told: tuple[Judged, ...] = ()
    blind: Mapping[NodeCondition, int] = field(default_factory=dict)


def patient(before: Patient, now: Sequence[Judged]) -> Patient:
    """The conditions to tell: one that cannot be judged for a moment stays as it was, so that it does not flap."""
    old = {one.type: one for one in before.told}
    blind = {one.type: before.blind.get(one.type, 0) + 1 for one in now if one.is_blind}
    told = tuple(old[one.type] if one.type in old and 0 < blind.get(one.type, 0) < BLIND_POLLS else one for one in now)
    return Patient(told, blind)


def told_before(conditions: Iterable[Mapping[str, Any]]) -> Patient:
    """What the last run of the agent told, from the Node's conditions."""
    known = {kind.value: kind for kind in NodeCondition}
    return Patient(
        tuple(
            Judged(known[one["type"]], str(one["status"]), str(one.get("reason", "")), str(one.get("message", "")))
            for one in conditions
            if one.get("type") in known
        )
    )


def _judged(kind: NodeCondition, findings: Sequence[Finding], checks: Mapping[str, Check]) -> Judged:
    states = {one.state for one in findings}
    if State.CRITICAL in states:
        bad = [one for one in findings if one.state is State.CRITICAL]
        return Judged(kind, "False", bad[0].reason, _told(bad))
    if open_ := [one for one in findings if one.state is State.UNKNOWN and checks[one.check].decides]:
        return Judged(kind, "Unknown", open_[0].reason, _told(open_))
    if State.WARN in states:
        bad = [one for one in findings if one.state is State.WARN]
        return Judged(kind, "True", bad[0].reason, f"warning: {_told(bad)}")
    if State.OK in states:
        good = sum(one.state is State.OK for one in findings)
        unknown = sum(one.state is State.UNKNOWN for one in findings)
        rest = f"; {unknown} could not be judged" if unknown else ""
        return Judged(kind, "True", _GOOD_REASON[kind], f"{good} check{'s' * (good != 1)} found no fault{rest}")
    if State.UNKNOWN in states:
        unread = [one for one in findings if one.state is State.UNKNOWN]
        return Judged(kind, "Unknown", UNREAD, _told(unread))
    return Judged(kind, "Unknown", _UNSUPPORTED, "this machine has none of what is judged here, or hides it")


def _told(findings: Sequence[Finding]) -> str:
    """The first of each check, with where else it was found."""
    lines = []
    for check in dict.fromkeys(one.check for one in findings):
        same = [one for one in findings if one.check == check]
        subjects = ", ".join(one.subject for one in same)
        lines.append(f"{check} on {subjects}: {same[0].message}")
    rest = len(lines) - _TOLD
    more = f"; and {rest} more check{'s' * (rest != 1)}" if rest > 0 else ""
    return shortened("; ".join(lines[:_TOLD]) + more)


def documents(conditions: Iterable[Judged], before: Iterable[Mapping[str, Any]], now: datetime) -> list[dict[str, Any]]:
    """The conditions for a merge by type into the Node; `before` are those that it has."""
    old = {one.get("type"): one for one in before}
    return [_document(one, old.get(one.type.value, {}), now) for one in conditions]


def _document(one: Judged, old: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    return {
        "type": one.type.value,
        "status": one.status,
        "reason": one.reason,
        "message": one.message,
        "lastHeartbeatTime": stamp(now),
        "lastTransitionTime": transition(old, one.status, now),
    }


def wanted_taint(
    findings: Iterable[Finding], checks: Mapping[str, Check], effect: TaintEffect | None, present: Taint | None = None
) -> Taint | None:
    """The taint that critical findings ask for. Of several checks the one that the node carries already stays."""
    if effect is None:
        return None
    asking = {
        one.check
        for one in findings
        if one.state is State.CRITICAL and (check := checks.get(one.check)) is not None and check.taints
    }
    if not asking:
        return None
    stays = present is not None and present.check in asking
    return Taint(present.check if stays and present is not None else min(asking), effect)


def own_taint(taints: Iterable[Mapping[str, Any]]) -> Taint | None:
    """Our taint on a node, if it has one of a form that we write."""
    for taint in taints:
        if taint.get("key") == TAINT_KEY and taint.get("effect") in list(TaintEffect):
            return Taint(str(taint.get("value", "")), TaintEffect(taint["effect"]))
    return None


def tainted(taints: Sequence[Mapping[str, Any]], wanted: Taint | None, now: datetime) -> list[dict[str, Any]] | None:
    """The whole list with our taint as wanted, None where it is so already. Nobody else's taint is touched.

    The list is one field for the API server: whoever writes it has to write the others' taints back as they were.
    """
    others = [dict(one) for one in taints if one.get("key") != TAINT_KEY]
    ours = [one for one in taints if one.get("key") == TAINT_KEY]
    if wanted is None:
        return others if ours else None
    if len(ours) == 1 and own_taint(ours) == wanted:
        return None
    return [*others, {**wanted.document, "timeAdded": stamp(now)}]
