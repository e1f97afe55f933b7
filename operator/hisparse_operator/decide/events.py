"""Events on transitions: the old status against the new one. Whole sentences with a number and a next step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from hisparse.acceptance import advice
from hisparse_operator.decide.conditions import Condition, Status, status_of
from hisparse_operator.decide.judge import Scene, stray_notes
from hisparse_operator.decide.reasons import ConditionType, EventReason, Reason
from hisparse_operator.decide.rollout import Phase
from hisparse_operator.world import Event

_QUIET: Final = frozenset(
    {Reason.STARTING, Reason.NOT_ROLLED_OUT, Reason.WAITING_FOR_PODS, Reason.SCALED_TO_ZERO, Reason.DISABLED}
)
"""Reasons that are on the way to something: a condition shows them, an Event of their own would be noise."""
_STANDSTILL: Final = frozenset({Reason.PAUSED.value, Reason.PLAN_ONLY.value, Reason.HELD.value})
_TWO: Final = 2
_BEFORE_READY: Final = (ConditionType.SCHEDULED, ConditionType.WORKLOAD_READY, ConditionType.AVAILABLE)
"""What Ready says as well, where it becomes True with them: one Event is better than four."""


def events(scene: Scene, judged: Sequence[Condition], status: Mapping[str, Any]) -> tuple[Event, ...]:
    """What is worth telling about this pass. At a fixed point: nothing."""
    told = (
        *_rollout_started(scene, status),
        *_conditions(scene, judged),
        *_strays(scene),
        *_failure(scene, status),
        *_rollout_complete(scene, status),
    )
    # while another owner has a name that we need, the revision is not written
    return told if scene.conflicts else (*_revision(scene), *told)


def _revision(scene: Scene) -> Iterator[Event]:
    target, spec, planned = scene.intent.target, scene.intent.spec, scene.intent.planned
    if not scene.intent.created or target is None or spec is None:
        return
    if scene.before.get("updateRevision") == target.hash:
        return  # its record was lost, or its label; it has been told of
    yield Event(
        "Normal",
        EventReason.REVISION_CREATED.value,
        f"Revision {target.hash} (number {target.number}): {target.plan.get('summary', '')}.",
    )
    if planned is not None and planned.plan is not None:
        for warning in (*planned.notes, *planned.plan.warnings, *advice(spec, planned.plan.model)):
            yield Event("Warning", EventReason.PLAN_WARNING.value, f"Revision {target.hash}: {warning}.")


def _rollout_started(scene: Scene, status: Mapping[str, Any]) -> Iterator[Event]:
    before, after = scene.before.get("updateRevision"), status.get("updateRevision")
    going = sum(fleet.replicas for fleet in scene.old)
    stood = status_of(scene.before.get("conditions") or (), ConditionType.PROGRESSING).get("reason") in _STANDSTILL
    if not before or not after or not going or not (before != after or stood) or not _moves(scene):
        return
    promise = (
        f"at least {scene.wanted - 1} of {scene.wanted} {'goes' if scene.wanted == _TWO else 'go'} on serving"
        if scene.wanted > 1
        else "nothing serves between the old pod's drain and the new one's start; replicas: 2 would avoid that"
    )
    yield Event(
        "Normal",
        EventReason.ROLLOUT_STARTED.value,
        f"{going} {'pod moves' if going == 1 else 'pods move'} to revision {after} in place, one at a time: {promise}.",
    )


def _moves(scene: Scene) -> bool:
    """Whether anything is done about pods of other revisions now."""
    return (
        not scene.intent.quiet
        and scene.intent.rolled_out
        and scene.step is not None
        and scene.step.phase is not Phase.HELD
    )


def _rollout_complete(scene: Scene, status: Mapping[str, Any]) -> Iterator[Event]:
    served, now = scene.before.get("currentRevision"), status.get("currentRevision")
    done = scene.wanted and scene.step is not None and scene.step.phase is Phase.COMPLETE and scene.intent.rolled_out
    # a revert ends in the revision that was current all along
    if done and served and (served != now or scene.was_rolling):
        who = "The one replica is" if scene.wanted == 1 else f"All {scene.wanted} replicas are"
        serve = "serves" if scene.wanted == 1 else "serve"
        left = "" if scene.old else f"; {served if served != now else 'any other'} has no pods left"
        yield Event("Normal", EventReason.ROLLOUT_COMPLETE.value, f"{who} of revision {now} and {serve}{left}.")


def _conditions(scene: Scene, judged: Sequence[Condition]) -> Iterator[Event]:
    old = scene.before.get("conditions") or ()
    ready = next((one for one in judged if one.type is ConditionType.READY), None)
    gets_ready = ready is not None and ready.true and status_of(old, ConditionType.READY).get("status") != "True"
    for condition in judged:
        before = status_of(old, condition.type)
        if gets_ready and condition.true and condition.type in _BEFORE_READY:
            continue
        same = before.get("status") == condition.status.value and before.get("reason") == condition.reason.value
        if same and (condition.type is not ConditionType.ACCEPTED or before.get("message") == condition.message):
            continue
        if condition.reason is Reason.ALL_SCHEDULED and before.get("status") == "Unknown" and scene.serving:
            continue  # a step of a rollout
        if condition.reason is Reason.NEW_REVISION_FAILING and not scene.old:
            continue  # WorkloadReady says as much
        if condition.type is ConditionType.DEGRADED and before.get("reason") == Reason.NO_PODS_ON_NODES.value:
            before = {}  # nothing was known of any node, so nothing is lost
        if (event := _event(condition, str(before.get("status", "")), judged)) is not None:
            yield event


def _event(condition: Condition, before: str, judged: Sequence[Condition]) -> Event | None:
    message = _sentence(condition.message)
    match condition.type, condition.status:
        case ConditionType.ACCEPTED, Status.FALSE:
            return Event(
                "Warning", condition.reason.value, f"The spec cannot be used: {condition.message.rstrip('.')}."
            )
        case ConditionType.DEGRADED, Status.TRUE:
            return Event("Warning", condition.reason.value, message)
        case ConditionType.DEGRADED, _:
            # the end of a fault, or of what was known; that it has never been known is no news
            told = condition.reason is Reason.NODES_HEALTHY and before == "True"
            lost = condition.status is Status.UNKNOWN and before in ("True", "False")
            return Event("Normal", condition.reason.value, message) if told or lost else None
        case ConditionType.PLAN_FEASIBLE, Status.TRUE if before != "True":
            return Event("Normal", EventReason.PLAN_FITS.value, message)
        case (
            ConditionType.SCHEDULED | ConditionType.WORKLOAD_READY | ConditionType.AVAILABLE | ConditionType.READY,
            Status.TRUE,
        ) if before != "True":
            return Event("Normal", condition.type.value, message)
        case ConditionType.READY, Status.FALSE if condition.reason is Reason.SCALED_TO_ZERO:
            return Event("Normal", condition.reason.value, f"No replicas are wanted: {condition.message}.")
        case _, Status.FALSE if condition.reason is Reason.SCALED_TO_ZERO:
            return None  # asked for, and told once
        case ConditionType.AVAILABLE, Status.FALSE if before == "True":
            why = next((f": {one.reason}: {one.message}" for one in judged if one.type is ConditionType.READY), "")
            return Event("Warning", EventReason.UNAVAILABLE.value, _sentence(f"{condition.message}{why}"))
        case ConditionType.READY, Status.FALSE if before == "True":
            sort = "Normal" if condition.reason in _QUIET else "Warning"
            return Event(sort, EventReason.NOT_READY.value, f"{condition.reason}: {message}")
        case (
            (ConditionType.AVAILABLE | ConditionType.READY | ConditionType.ROUTE_READY | ConditionType.TIER_ACTIVE),
            _,
        ):
            return None  # what is behind it has said it already
        case ConditionType.PROGRESSING, Status.FALSE if condition.reason in (Reason.PAUSED, Reason.PLAN_ONLY):
            return Event("Normal", condition.reason.value, message)
        case _, Status.FALSE if condition.reason not in _QUIET:
            return Event("Warning", condition.reason.value, message)
        case ConditionType.PLAN_FEASIBLE, Status.UNKNOWN:
            return Event("Warning", condition.reason.value, message)
        case _:
            return None


def _strays(scene: Scene) -> Iterator[Event]:
    told = str(status_of(scene.before.get("conditions") or (), ConditionType.PROGRESSING).get("message", ""))
    for note in stray_notes(scene):
        if note not in told:
            yield Event("Warning", EventReason.STRAY_POD.value, f"Beside the wanted replicas, {note}.")


def _sentence(text: str) -> str:
    """The text with a full stop, and a capital where it begins with a word (not with a field or the name of a pod)."""
    start = text.split(" ", 1)[0]
    return f"{text[:1].upper() if start.isalpha() else text[:1]}{text[1:].rstrip('.')}."


def _failure(scene: Scene, status: Mapping[str, Any]) -> Iterator[Event]:
    failure, old = status.get("lastFailure"), scene.before.get("lastFailure") or {}
    if not failure or "signature" not in failure:
        return  # its log has not been read yet: one Event that says why is better than two
    if all(failure.get(key) == old.get(key) for key in ("pod", "time", "signature")):
        return
    code = f" with exit code {failure['exitCode']}" if "exitCode" in failure else ""
    cause = failure.get("logTail", "").strip().splitlines()
    advice = failure.get("advice") or (
        f"The cause is none that hisparse knows: kubectl logs {failure['pod']} -c engine --previous has the whole log"
    )
    yield Event(
        "Warning",
        EventReason.ENGINE_FAILED.value,
        f"Pod {failure['pod']} ended{code} ({failure['reason']}, signature {failure['signature']})"
        + (f": {cause[-1][:400]}" if cause else "")
        + f". {advice}.",
    )
