"""One engine pod as the rollout and the status see it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from hisparse_operator.decide.identity import REVISION_LABEL, ROOM_ANNOTATION, is_going, labels_of, name_of, uid_of
from hisparse_operator.world import Object

ENGINE: Final = "engine"
SLACK: Final = timedelta(seconds=30)
"""A kubelet needs a moment after the grace period to clean up and to say so."""
CRASHING: Final = "CrashLoopBackOff"
_OVER: Final = ("Failed", "Succeeded")


@dataclass(frozen=True)
class EnginePod:
    """What matters of a pod.

    finished: it will never run again (evicted, refused by the kubelet); it holds no GPU and its ReplicaSet has
    replaced it. started: the start-up probe has passed in this run of the container. serving: ready and listed
    by an EndpointSlice, so that requests reach it. makes_room: a rollout took it, so its ReplicaSet has not replaced it
    and its place is kept for another revision. overdue: it should have ended, and nobody says that it has.
    crashed: a run of the engine ended badly, whether or not the kubelet counts it as a restart.
    """

    name: str
    uid: str
    revision: str
    terminating: bool
    finished: bool
    scheduled: bool
    started: bool
    ready: bool
    serving: bool
    restarts: int
    created: str
    raw: Object
    makes_room: bool = False
    overdue: bool = False
    crashed: bool = False

    @property
    def active(self) -> bool:
        """Whether its ReplicaSet counts it."""
        return not self.terminating and not self.finished

    @property
    def leaving(self) -> bool:
        """On its way out, with a place that is kept for another revision."""
        return self.terminating and not self.finished and self.makes_room and not self.overdue

    @property
    def fresh(self) -> bool:
        """Never been up: nothing is lost by replacing it."""
        return not self.started and not self.ready and self.restarts == 0 and not self.crashed

    @property
    def node(self) -> str:
        """Name of its node, empty before it has one."""
        return str((self.raw.get("spec") or {}).get("nodeName") or "")

    @property
    def ends(self) -> str:
        """When it has to be gone, as the API server says it; empty where nobody has deleted it."""
        return str((self.raw.get("metadata") or {}).get("deletionTimestamp") or "")

    def worth(self) -> tuple[bool, bool, int, str, str]:
        """Sorts the pod that should go first to the front: not serving, not started, most restarts, youngest."""
        return (self.serving, self.started, -self.restarts, _newest_first(self.created), self.name)


def read(
    pods: Iterable[Object], endpoint_slices: Iterable[Object], now: datetime | None = None
) -> tuple[EnginePod, ...]:
    """The pods in the order of their names. Without `now` none is overdue."""
    routed = _routed(endpoint_slices)
    return tuple(sorted((_read(pod, routed, now) for pod in pods), key=lambda pod: pod.name))


def due(pod: Object) -> datetime | None:
    """When a pod that was deleted is overdue, None for one that was not."""
    text = pod["metadata"].get("deletionTimestamp")
    return datetime.fromisoformat(str(text)) + SLACK if text else None


def container_status(pod: Object, name: str = ENGINE) -> Mapping[str, Any]:
    """The status of one container, empty before the kubelet has written it."""
    statuses: Sequence[Mapping[str, Any]] = (pod.get("status") or {}).get("containerStatuses") or ()
    return next((status for status in statuses if status.get("name") == name), {})


def condition(pod: Object, wanted: str) -> Mapping[str, Any]:
    """One of the pod's conditions, empty where it is absent."""
    found: Sequence[Mapping[str, Any]] = (pod.get("status") or {}).get("conditions") or ()
    return next((entry for entry in found if entry.get("type") == wanted), {})


def _read(pod: Object, routed: frozenset[str], now: datetime | None) -> EnginePod:
    status: Mapping[str, Any] = pod.get("status") or {}
    engine = container_status(pod)
    terminating, end = is_going(pod), due(pod)
    finished = status.get("phase") in _OVER
    ready = not finished and condition(pod, "Ready").get("status") == "True"
    return EnginePod(
        name=name_of(pod),
        uid=uid_of(pod) or "",
        revision=labels_of(pod).get(REVISION_LABEL, ""),
        terminating=terminating,
        finished=finished,
        scheduled=bool((pod.get("spec") or {}).get("nodeName")),
        started=bool(engine.get("started")),
        ready=ready,
        serving=ready and not terminating and name_of(pod) in routed,
        restarts=int(engine.get("restartCount", 0)),
        created=str(pod["metadata"].get("creationTimestamp", "")),
        raw=pod,
        makes_room=ROOM_ANNOTATION in (pod["metadata"].get("annotations") or {}),
        overdue=end is not None and now is not None and now >= end,
        crashed=_crashed(engine),
    )


def ended_badly(status: Mapping[str, Any]) -> Mapping[str, Any]:
    """How the last run of a container ended badly, empty where none did."""
    for state in ("state", "lastState"):
        ended: Mapping[str, Any] = (status.get(state) or {}).get("terminated") or {}
        if ended and (ended.get("exitCode", 0) != 0 or ended.get("reason") == "OOMKilled"):
            return ended
    return {}


def _crashed(status: Mapping[str, Any]) -> bool:
    waiting = (status.get("state") or {}).get("waiting") or {}
    return bool(ended_badly(status)) or waiting.get("reason") == CRASHING


def _routed(endpoint_slices: Iterable[Object]) -> frozenset[str]:
    """Names of the pods that receive requests. A missing ready condition means ready (discovery.k8s.io/v1)."""
    return frozenset(
        str(endpoint["targetRef"]["name"])
        for endpoint_slice in endpoint_slices
        for endpoint in endpoint_slice.get("endpoints") or ()
        if (endpoint.get("targetRef") or {}).get("kind") == "Pod"
        and (endpoint.get("conditions") or {}).get("ready") is not False
    )


def _newest_first(timestamp: str) -> str:
    """Reverses the order of RFC 3339 texts."""
    return "".join(chr(0x10FF - ord(character)) for character in timestamp)
