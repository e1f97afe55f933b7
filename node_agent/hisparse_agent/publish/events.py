"""Events about the Node, on changes only. Pure.

What was known before comes from the published status, so that an agent that starts again repeats nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final

from hisparse.nodes.findings import Finding, State
from hisparse.nodes.report import ActionStatus, FindingStatus
from hisparse_agent.publish.report import WANTED, shortened, stamp
from hisparse_agent.records import NO_LONGER_WANTED, Phase, spelled
from hisparse_agent.remedies.allowance import Decision

CLEARED: Final = "FaultCleared"
Known = Mapping[tuple[str, str], Finding]
"""The last verdict on a check and subject. What could not be read is none and leaves the one before."""


@dataclass(frozen=True)
class Notice:
    """One Event: type Normal or Warning."""

    type: str
    reason: str
    message: str


def known_from(status: Mapping[str, Any]) -> Known:
    """What a published status tells of earlier verdicts. What is not in the form that we write is left out."""
    known: dict[tuple[str, str], Finding] = {}
    for one in status.get("findings") or ():
        try:
            found = FindingStatus.model_validate(one)
            since = datetime.fromisoformat(found.since)
        except ValueError:
            continue
        if found.state is not State.UNKNOWN:
            known[found.check, found.subject] = Finding(
                check=found.check,
                subject=found.subject,
                state=found.state,
                reason=found.reason,
                message=found.message,
                since=since,
                value=found.value,
                limit=found.limit,
                unit=found.unit or "",
            )
    return known


def actions_from(status: Mapping[str, Any]) -> tuple[ActionStatus, ...]:
    """What a published status tells of actions. What is not in the form that we write is left out."""
    found = []
    for one in status.get("actions") or ():
        with contextlib.suppress(ValueError):
            found.append(ActionStatus.model_validate(one))
    return tuple(found)


def after(known: Known, findings: Sequence[Finding]) -> Known:
    """What is known after these findings. What is judged no more is forgotten, what could not be read is not."""
    found = {(one.check, one.subject): one for one in findings if one.state is not State.UNKNOWN}
    unread = {(one.check, one.subject) for one in findings if one.state is State.UNKNOWN}
    blind = _blind(findings)
    kept = {key: one for key, one in known.items() if key in unread or (key not in found and key[0] in blind)}
    return found | kept


def standing(known: Known, findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """The findings, with a fault in place of what could not be read after it: not looking ends no fault."""
    known = after(known, findings)
    read = [one for one in findings if one.state is not State.UNKNOWN]
    unread = [one for one in findings if one.state is State.UNKNOWN]
    faults = {key: one for key, one in known.items() if one.state.is_fault and one not in read}
    kept = [replace(one, message=f"{one.message} (last known; it cannot be read now)") for one in faults.values()]
    return (*read, *(one for one in unread if (one.check, one.subject) not in faults), *kept)


def _blind(findings: Sequence[Finding]) -> frozenset[str]:
    """Checks of which nothing could be read: which subjects there are is not known then either."""
    read = {one.check for one in findings if one.state is not State.UNKNOWN}
    return frozenset(one.check for one in findings) - read


def of_findings(known: Known, findings: Sequence[Finding]) -> tuple[Notice, ...]:
    """One Event for each check that turned bad or good, with all its subjects."""
    groups: dict[tuple[str, State], list[Finding]] = {}
    for one in findings:
        last = known.get((one.check, one.subject))
        before = last.state if last else None
        if one.state is State.UNKNOWN or one.state is before:
            continue
        if one.state.is_fault or (before is not None and before.is_fault):
            groups.setdefault((one.check, one.state), []).append(one)
    return tuple(_notice(check, state, found) for (check, state), found in groups.items())


def _notice(check: str, state: State, found: Sequence[Finding]) -> Notice:
    subjects = ", ".join(one.subject for one in found)
    if state.is_fault:
        return Notice("Warning", found[0].reason, f"{state.value}: {check} on {subjects}: {found[0].message}")
    return Notice("Normal", CLEARED, f"{check} on {subjects} is {state.value} again: {found[0].message}")


def of_actions(
    before: Iterable[ActionStatus], now: Iterable[ActionStatus], why: Mapping[str, str] = MappingProxyType({})
) -> tuple[Notice, ...]:
    """One Event for each action and phase that is new; the targets of one action together.

    why tells by the action's id why the agent has taken it out of its wish.
    """
    old = {(one.id, one.target): one.phase for one in before}
    groups: dict[tuple[str, str], list[ActionStatus]] = {}
    for one in now:
        if old.get((one.id, one.target)) != one.phase and one.phase != WANTED:
            groups.setdefault((one.id, one.phase), []).append(one)
    return tuple(_of_action(phase, found, why.get(name, "")) for (name, phase), found in groups.items())


def _of_action(phase: str, found: Sequence[ActionStatus], why: str) -> Notice:
    one = found[0]
    verb = one.verb or ""
    old, new = spelled(verb, one.old or ""), spelled(verb, one.new or "")
    what = f"{verb} of {', '.join(each.target or '' for each in found)}"
    about = f"(policy {one.policy}, for {_cause(one.reason or '')})"
    said = one.message or ""
    if phase == Phase.REVERTED:
        said = why if why and said in ("", NO_LONGER_WANTED) else said
        text = f"{what} put back to {old} after {new}: {said or NO_LONGER_WANTED} {about}"
    elif phase == Phase.REFUSED:
        text = f"{what} to {new} refused by the actuator: {said} {about}"
    elif phase in (Phase.FOREIGN, Phase.REVERT_FAILED):
        text = f"{what}, which had set {new} in place of {old}: {said} {about}"
    else:
        text = f"{what} set from {old} to {new} {about}"
    kind = "Warning" if phase in (Phase.FOREIGN, Phase.REVERT_FAILED) else "Normal"
    return Notice(kind, f"Remedy{phase}", text)


def of_decision(decision: Decision, subjects: Mapping[str, str]) -> Notice:
    """What was decided about an action that was asked for. subjects are those of GPUs, by UUID."""
    action = decision.action
    targets: dict[str, list[str]] = {}
    for one in action.changes:
        targets.setdefault(spelled(action.verb, one.new), []).append(subjects.get(one.target, one.target))
    parts = (f"{', '.join(same)} to {new}" for new, same in targets.items())
    what = f"{action.verb} of {', '.join(parts)}"
    cause = f"for {_cause(action.reason)}"
    dry = ", dry run" if decision.would else ""
    if decision.refusal is not None:
        word = "would be refused" if decision.would else "refused"
        text = f"{what} {word}: {decision.refusal.message} ({cause}{dry})"
        return Notice("Normal", "RemedyRefused", text)
    if decision.would:
        return Notice(
            "Normal", "RemedyWould", f"would do {what}: the policy is a dry run (policy {action.policy}, {cause})"
        )
    return Notice("Normal", "RemedyAsked", f"{what} asked of the actuator (policy {action.policy}, {cause})")


def _cause(reason: str) -> str:
    """Check and subject of what an action was asked for by; its reason begins with them."""
    check, space, subject = reason.partition(": ")[0].partition(" ")
    return f"{check} on {subject}" if space else check


def document(notice: Notice, *, node: str, uid: str, instance: str, at: datetime) -> dict[str, Any]:
    """The Event object, named after its time. One about a Node, which has no namespace, lies in `default`."""
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"namespace": "default", "name": f"{node[:200]}.{int(at.timestamp() * 1e6):x}"},
        "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid},
        "type": notice.type,
        "reason": notice.reason,
        "message": shortened(notice.message),
        "source": {"component": "hisparse-agent", "host": node},
        "reportingComponent": "hisparse-agent",
        "reportingInstance": instance,
        "firstTimestamp": stamp(at),
        "lastTimestamp": stamp(at),
        "count": 1,
    }
