"""What to say where an outcome could not be put in place: a status that is true, and a message that helps.

The wanted status speaks of what reconcile asked for. After a refused write some of it is not so: nothing progresses,
and a revision may not exist. What is there is counted anew from the world as it is now.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from hisparse_operator.decide import pods, revisions, shown
from hisparse_operator.decide.conditions import Status, timestamp
from hisparse_operator.decide.identity import family, parent_of
from hisparse_operator.decide.reasons import ConditionType, EventReason, Reason
from hisparse_operator.world import Event, Object, World

LIMIT: Final = 1024
"""Longest message: what an Event holds, and as much as one reads in a condition."""
_NAMED: Final = 3


class Hindrance(StrEnum):
    """Why an outcome is not in place: reasons of Ready and Progressing, and of the Event."""

    CHILD_CONFLICT = Reason.CHILD_CONFLICT.value
    REFUSED = Reason.REFUSED.value
    NOT_WRITTEN = Reason.NOT_WRITTEN.value
    INTERNAL_ERROR = Reason.INTERNAL_ERROR.value


@dataclass(frozen=True)
class Blocked:
    """Why an outcome could not be put in place, for status and Event."""

    reason: Hindrance
    message: str


def bounded(text: str, limit: int = LIMIT) -> str:
    """The text, cut after a word where it is longer."""
    if len(text) <= limit:
        return text
    room = text[: limit - 3]
    head, space, _ = room.rpartition(" ")
    # one word may fill it all
    return f"{head} ..." if space and len(head) > limit // 2 else f"{room}..."


# --- status ------------------------------------------------------------------------------------------------------


def blocked_status(wanted: Object, world: World, why: Blocked, now: datetime) -> dict[str, Any]:
    """The wanted status of this very world, with Ready and Progressing False for this reason, and no promise in it."""
    before: Object = world.inference.get("status") or {}
    known = _revisions(world)
    status = dict(wanted)
    if status.get("updateRevision") not in known:
        # the plan, the mode and the count are those of the revision
        for part in ("updateRevision", "plan", "mode"):
            status.pop(part, None)
        if before.get("updateRevision") in known:
            status |= {part: before[part] for part in ("updateRevision", "plan", "mode") if part in before}
        if "updatedReplicas" in status:
            status["updatedReplicas"] = _count(world, status.get("updateRevision"))["updatedReplicas"]
    if status.get("currentRevision") not in known:
        status.pop("currentRevision", None)
        if before.get("currentRevision") in known:
            status["currentRevision"] = before["currentRevision"]
    return _hindered(status, world, why, now)


def last_status(world: World, why: Blocked, now: datetime) -> dict[str, Any]:
    """Where nothing could be decided: the old status, its numbers counted anew, Ready and Progressing False."""
    before: Object = world.inference.get("status") or {}
    counts = _count(world, before.get("updateRevision"))
    conditions = list(before.get("conditions") or ())
    if any(one.get("type") == ConditionType.AVAILABLE for one in conditions):
        serving = counts["servingReplicas"]
        status, reason = (Status.TRUE, Reason.SERVING) if serving else (Status.FALSE, Reason.NO_SERVING_REPLICAS)
        told = f"{serving} of {counts['replicas']} pods take requests"
        conditions = _replaced(conditions, world, now, (ConditionType.AVAILABLE, status, reason, told))
    generation = int(world.inference["metadata"].get("generation", 1))
    status_now = {**before, **counts, "observedGeneration": generation, "conditions": conditions}
    return _hindered(status_now, world, why, now)


def told(events: Iterable[Event], wanted: Object, written: Object) -> tuple[Event, ...]:
    """The events of an outcome that are true although it was not put in place: of what is, not of what was to come."""
    never = (EventReason.ROLLOUT_STARTED, EventReason.ROLLOUT_COMPLETE, EventReason.NOT_READY, ConditionType.READY)
    untrue = {word.value for word in never}
    if wanted.get("updateRevision") != written.get("updateRevision"):
        untrue |= {EventReason.REVISION_CREATED.value, EventReason.PLAN_WARNING.value}
    # these two conditions say something else now, so each pass would tell of them again
    untrue |= {
        str(one["reason"])
        for one in wanted.get("conditions") or ()
        if one["type"] in (ConditionType.READY, ConditionType.PROGRESSING)
    }
    return tuple(event for event in events if event.reason not in untrue)


def _hindered(status: dict[str, Any], world: World, why: Blocked, now: datetime) -> dict[str, Any]:
    message = bounded(shown.message(why.message, shown.redaction_of(world.inference)))
    conditions = _replaced(
        status.get("conditions") or (),
        world,
        now,
        (ConditionType.PROGRESSING, Status.FALSE, why.reason, message),
        (ConditionType.READY, Status.FALSE, why.reason, message),
    )
    phase = status.get("phase")
    if phase != "Invalid":
        phase = "Degraded" if status.get("servingReplicas") else "Failed"
    return {**status, "phase": phase, "conditions": conditions}


def _replaced(
    conditions: Iterable[Mapping[str, Any]],
    world: World,
    now: datetime,
    *judged: tuple[ConditionType, Status, StrEnum, str],
) -> list[dict[str, Any]]:
    """The conditions with these in their places; lastTransitionTime moves only where a status differs from the old."""
    before = {one.get("type"): one for one in (world.inference.get("status") or {}).get("conditions") or ()}
    found = {str(one["type"]): dict(one) for one in conditions}
    for kind, status, reason, message in judged:
        old = before.get(kind.value) or {}
        since = old.get("lastTransitionTime") if old.get("status") == status.value else None
        found[kind.value] = {
            "type": kind.value,
            "status": status.value,
            "reason": reason.value,
            "message": message,
            "lastTransitionTime": since or timestamp(now),
            "observedGeneration": int(world.inference["metadata"].get("generation", 1)),
        }
    return list(found.values())


def _revisions(world: World) -> frozenset[str]:
    ours = family(world, parent_of(world.inference)).ours
    return frozenset(one.hash for one in revisions.read(ours))


def _count(world: World, update: object) -> dict[str, int]:
    ours = family(world, parent_of(world.inference)).ours
    active = [pod for pod in pods.read(ours.pods, ours.endpoint_slices) if pod.active and pod.revision]
    return {
        "replicas": len(active),
        "readyReplicas": sum(pod.ready for pod in active),
        "updatedReplicas": sum(pod.revision == update for pod in active),
        "servingReplicas": sum(pod.serving for pod in active),
    }


# --- what the API server says, in our words ----------------------------------------------------------------------

_FORBIDDEN: Final = 403
_PATH: Final = re.compile(r"\.?\bspec\.template(?:\.\w+|\[[^\]]*\])+")
_PREAMBLE: Final = re.compile(
    r'^(?:failed to create typed patch object \([^)]*\): |[A-Z]\w+(?:\.[a-z0-9.]+)? "[^"]*" is invalid: )'
)
_POD: Final = r"spec\.template\.spec"
_ENGINE: Final = rf'{_POD}\.containers\[(?:0|name="engine")\]'
_FIELDS: Final[tuple[tuple[re.Pattern[str], str | None, tuple[str | int, ...]], ...]] = tuple(
    (re.compile(pattern), field, place)
    for pattern, field, place in (
        (r"spec\.template(?:\.metadata)?\.labels", "spec.podTemplate.labels", ()),
        (r"spec\.template(?:\.metadata)?\.annotations", "spec.podTemplate.annotations", ()),
        (rf"{_POD}\.tolerations", "spec.placement.tolerations", ("tolerations",)),
        (rf"{_POD}\.nodeSelector", "spec.placement.nodeSelector", ()),
        (rf"{_POD}\.affinity", "spec.placement.affinity", ()),
        (
            rf"{_POD}\.topologySpreadConstraints",
            "spec.placement.topologySpread",
            ("topologySpreadConstraints",),
        ),
        (rf"{_POD}\.schedulerName", "spec.placement.schedulerName", ()),
        (rf"{_POD}\.priorityClassName", "spec.placement.priorityClassName", ()),
        (rf"{_POD}\.runtimeClassName", "spec.placement.runtimeClassName", ()),
        (rf"{_POD}\.imagePullSecrets", "spec.engine.pullSecrets", ("imagePullSecrets",)),
        (rf"{_POD}\.volumes", "spec.podTemplate.volumes", ("volumes",)),
        (rf"{_POD}\.securityContext", "spec.podTemplate.securityContext", ()),
        (rf"{_ENGINE}\.env\b", "spec.engine.env", ("containers", 0, "env")),
        (rf"{_ENGINE}\.envFrom", "spec.engine.envFrom", ("containers", 0, "envFrom")),
        (rf"{_ENGINE}\.imagePullPolicy", "spec.engine.pullPolicy", ()),
        (rf"{_ENGINE}\.image\b", "spec.engine.image", ()),
        (rf"{_ENGINE}\.args", "spec.engine.args", ()),
        (rf"{_ENGINE}\.resources", "spec.resources", ()),
        (rf"{_ENGINE}\.ports", "spec.networking.port", ()),
        (rf"{_ENGINE}\.volumeMounts", "spec.podTemplate.volumeMounts", ("containers", 0, "volumeMounts")),
        (rf"{_ENGINE}\.securityContext", "spec.podTemplate.containerSecurityContext", ()),
        (_ENGINE, None, ()),
        (rf"{_POD}\.containers", "spec.podTemplate.sidecars", ("containers",)),
    )
)


def refused(status: int, message: str, inference: Object, document: Object | None = None) -> Blocked:
    """A refusal of the API server: its words with our field names, and what to do. document is what it refused."""
    fields: dict[str, None] = {}
    message = shown.message(message, shown.redaction_of(inference))

    def ours(match: re.Match[str]) -> str:
        if (found := _our_field(match[0].lstrip("."), inference, document)) is None:
            return match[0]
        fields[found[0]] = None
        return "".join(found)

    text = _PREAMBLE.sub("", _PATH.sub(ours, message)).strip().rstrip(".")
    what = f" {document['kind']} {document['metadata']['name']}" if document is not None else ""
    head, step = f"the API server refused{what}: ", f". {_next_step(status, message, tuple(fields))}"
    return Blocked(Hindrance.REFUSED, head + bounded(text, LIMIT - len(head) - len(step)) + step)


def _next_step(status: int, message: str, fields: Sequence[str]) -> str:
    if fields:
        more = f" and {len(fields) - _NAMED} more" if len(fields) > _NAMED else ""
        return f"Correct {', '.join(fields[:_NAMED])}{more}; until then nothing is rolled out"
    if "is being terminated" in message:
        return "The namespace is being deleted, so nothing is left to do"
    if "exceeded quota" in message:
        return "Raise that ResourceQuota, or delete what is not needed any more"
    if status == _FORBIDDEN and " cannot " in message:
        return "Give this right to the operator's service account (operator/deploy/rbac.yaml has all that it needs)"
    if "admission" in message or "denied" in message:
        return "A policy of the cluster forbids it: change the spec so that it complies, or ask for an exception"
    return (
        "Undo the last edit of spec.podTemplate, spec.placement or spec.engine, whose contents reach the pod as they "
        "are; if there was none, please report a bug of the operator"
    )


def _our_field(path: str, inference: Object, document: Object | None) -> tuple[str, str] | None:
    """The field of our spec that a path of the pod template comes from, and the rest of the path."""
    for pattern, field, place in _FIELDS:
        if (match := pattern.match(path)) is None:
            continue
        rest = path[match.end() :]
        if field is None or not place or not rest.startswith("["):
            return None if field is None else (field, rest)
        element, _, rest = rest[1:].partition("]")
        theirs: Any = inference
        for part in field.split("."):
            theirs = theirs.get(part) if isinstance(theirs, Mapping) else None
        index = _index(element, _list_at(document, place), theirs if isinstance(theirs, Sequence) else ())
        if index is None:  # one of ours stands between theirs
            return None if document is not None else (field, rest)
        return f"{field}[{index}]", rest
    return None


def _list_at(document: Object | None, place: Iterable[str | int]) -> Sequence[Any]:
    found: Any = document or {}
    for part in ("spec", "template", "spec", *place):
        try:
            found = found[part]
        except (KeyError, IndexError, TypeError):
            return ()
    return found if isinstance(found, Sequence) else ()


def _index(element: str, rendered: Sequence[Any], given: Sequence[Any]) -> int | None:
    """Where an element of a rendered list stands in the user's: as "3" or as 'name="x"' the API server names it."""
    if element.isdigit():
        found = rendered[int(element)] if int(element) < len(rendered) else None
    else:
        keys = dict(_keys(element))
        found = next((one for one in rendered if _has(one, keys)), keys)
    if found in given:
        return given.index(found)
    for key in ("mountPath", "name"):
        if isinstance(found, Mapping) and key in found:
            return next((at for at, one in enumerate(given) if _has(one, {key: found[key]})), None)
    return None


def _keys(element: str) -> Iterator[tuple[str, str]]:
    for match in re.finditer(r'(\w+)="([^"]*)"', element):
        yield match[1], match[2]


def _has(one: object, keys: Mapping[str, Any]) -> bool:
    return isinstance(one, Mapping) and all(one.get(key) == value for key, value in keys.items())
