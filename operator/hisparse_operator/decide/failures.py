"""What is wrong with a pod, in the words of whoever said so: the kubelet, the runtime, the scheduler, the engine."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final

from hisparse import signatures
from hisparse_operator.decide.identity import is_going, name_of
from hisparse_operator.decide.pods import CRASHING, ENGINE, EnginePod, condition, container_status, ended_badly
from hisparse_operator.decide.reasons import Reason
from hisparse_operator.world import Object, World

LOG_TAIL_BYTES: Final = 1024
UNKNOWN_SIGNATURE: Final = "Unknown"
_IMAGE: Final = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "ErrImageNeverPull",
        "ImageInspectError",
        "RegistryUnavailable",
        "SignatureValidationFailed",
    }
)
_CONFIG: Final = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
_KILLED: Final = frozenset({137, 143})
_SCHEDULER_WORDS: Final = (
    # in the order of what helps most: a message counts the nodes of every cause
    ("persistentvolumeclaim", Reason.PVC_NOT_BOUND),
    ("insufficient nvidia.com/", Reason.INSUFFICIENT_GPU),
    ("insufficient memory", Reason.INSUFFICIENT_MEMORY),
    ("untolerated taint", Reason.TAINT_MISMATCH),
)
_STEPS: Final[Mapping[Reason, str]] = MappingProxyType(
    {
        Reason.INSUFFICIENT_GPU: "free GPUs, add a node, or lower spec.replicas",
        Reason.INSUFFICIENT_MEMORY: "free memory of a node, or lower kvTier.hostPool",
        Reason.TAINT_MISMATCH: "add a toleration to placement.tolerations, or mend the nodes",
        Reason.PVC_NOT_BOUND: "create or bind that claim, or correct its name",
        Reason.NODES_CORDONED: "kubectl uncordon a node that may take it",
        Reason.QUOTA_EXCEEDED: "raise that ResourceQuota, or lower spec.replicas",
        Reason.PODS_REFUSED: "change podTemplate or placement so that it is taken",
        Reason.IMAGE_PULL_FAILED: "correct engine.image or engine.pullSecrets",
        Reason.CONTAINER_CONFIG_ERROR: "create what it names, or correct the name",
    }
)
"""What to do where others found the words for what is wrong. The scheduler's own words may say more."""
_OWN_TAINT: Final = re.compile(r"untolerated taint(\(s\))? \{node\.kubernetes\.io/[^}]*\}")
_CORDONED: Final = ("node.kubernetes.io/unschedulable", "were unschedulable")


@dataclass(frozen=True)
class Trouble:
    """One thing that keeps a pod from getting ready."""

    pod: str
    reason: Reason
    message: str


def trouble_of(pod: EnginePod) -> Trouble | None:
    """Why this pod does not get ready; None where it is ready, or loading and has not failed."""
    if pod.ready or not pod.active:
        return None
    for status in _statuses(pod.raw):
        waiting = (status.get("state") or {}).get("waiting") or {}
        name, said = waiting.get("reason", ""), waiting.get("message", "")
        for names, reason in ((_IMAGE, Reason.IMAGE_PULL_FAILED), (_CONFIG, Reason.CONTAINER_CONFIG_ERROR)):
            if name in names:
                return Trouble(pod.name, reason, _with_step(reason, f"{pod.name}: {name}: {said}"))
        if ended := ended_badly(status):
            return _ended_badly(pod, status, ended)
        if name == CRASHING:
            which = status.get("name", ENGINE)
            return Trouble(pod.name, Reason.CRASH_LOOP, f"{pod.name}: container {which} ends again and again: {said}")
    return None


def scheduling_of(pod: EnginePod, gpu_resource: str) -> tuple[Reason, str] | None:
    """The scheduler's word on a pod without a node; None where it has one."""
    if pod.scheduled:
        return None
    said = condition(pod.raw, "PodScheduled")
    message = str(said.get("message", ""))
    if said.get("reason") == "SchedulingGated":
        return Reason.SCHEDULING_GATED, f"{pod.name}: {message or 'held back by a scheduling gate'}"
    if said.get("status") != "False":
        return Reason.WAITING_FOR_PODS, f"{pod.name}: the scheduler has not looked at it yet"
    words = (*_SCHEDULER_WORDS, (f"insufficient {gpu_resource.lower()}", Reason.INSUFFICIENT_GPU))
    # taints that Kubernetes sets itself are nobody's to tolerate: a cordon is lifted, a node that is down comes back
    text = _OWN_TAINT.sub("", message.lower())
    reason = next((reason for word, reason in words if word in text), Reason.UNSCHEDULABLE)
    if reason is Reason.UNSCHEDULABLE and any(word in message.lower() for word in _CORDONED):
        reason = Reason.NODES_CORDONED
    return reason, _with_step(reason, f"{pod.name}: {message}")


def refusal_of(replica_set: Object) -> tuple[Reason, str] | None:
    """Why a ReplicaSet cannot make its pods, in the API server's words."""
    for entry in (replica_set.get("status") or {}).get("conditions") or ():
        if entry.get("type") == "ReplicaFailure" and entry.get("status") == "True":
            message = str(entry.get("message", ""))
            reason = Reason.QUOTA_EXCEEDED if "exceeded quota" in message else Reason.PODS_REFUSED
            return reason, _with_step(reason, f"{name_of(replica_set)}: {message}")
    return None


def _with_step(reason: Reason, told: str) -> str:
    """The words of somebody else, and what to do."""
    return f"{told.rstrip(' .:')}; {_STEPS[reason]}" if reason in _STEPS else told


def last_failure(
    pods: Sequence[EnginePod], previous_logs: Mapping[str, str], old: Mapping[str, Any] | None
) -> dict[str, Any] | None:
    """status.lastFailure: the latest end of an engine container that was not asked for, else the one known before.

    It stays after the pod is gone, so that a person finds it in the morning.
    """
    found = [failure for pod in pods if (failure := _failure(pod)) is not None]
    latest = max(found, key=lambda failure: (failure["time"], failure["pod"]), default=None)
    if latest is None or (old and str(old.get("time", "")) > latest["time"]):
        return dict(old) if old else None
    if old and _same(old, latest):
        latest = {**latest, **{key: old[key] for key in ("signature", "advice", "logTail") if key in old}}
    log = previous_logs.get(latest["pod"])
    if log is not None and "signature" not in latest:
        latest |= _explained(log)
    return latest


def wants_logs(world: World) -> tuple[str, ...]:
    """Pods whose previous log has to be read: the latest failure, where the status does not name its cause yet."""
    old = (world.inference.get("status") or {}).get("lastFailure") or {}
    found = [(failure, pod) for pod in world.pods if not is_going(pod) and (failure := _ended_record(pod)) is not None]
    latest = max(found, key=lambda pair: (pair[0]["time"], pair[0]["pod"]), default=None)
    if latest is None or str(old.get("time", "")) > latest[0]["time"]:
        return ()
    if _same(old, latest[0]) and "signature" in old:
        return ()
    return (name_of(latest[1]),)


def _statuses(pod: Object) -> Iterator[Mapping[str, Any]]:
    status = pod.get("status") or {}
    yield from status.get("initContainerStatuses") or ()
    yield from status.get("containerStatuses") or ()


def _ended_badly(pod: EnginePod, status: Mapping[str, Any], ended: Mapping[str, Any]) -> Trouble:
    code, name = ended.get("exitCode"), status.get("name", ENGINE)
    # the kubelet counts a restart when the next run begins
    times = max(1, int(status.get("restartCount", 0)) + bool((status.get("state") or {}).get("terminated")))
    often = "once" if times == 1 else f"{times} times"
    what = f"{pod.name}: container {name} ended {often}, last with exit code {code} ({ended.get('reason', 'Error')})"
    if ended.get("reason") == "OOMKilled":
        limit = _memory_limit(pod.raw, name)
        return Trouble(
            pod.name,
            Reason.OOM_KILLED,
            f"{what}: it went over its memory limit{limit}; lower kvTier.hostPool or raise resources.memory",
        )
    budget = _startup_budget(pod.raw, name)
    ran = _seconds(ended)
    if code in _KILLED and budget and ran is not None and ran >= budget and not pod.started:
        return Trouble(
            pod.name,
            Reason.STARTUP_TIMEOUT,
            f"{what}: killed after {ran} s, its start-up budget is {budget} s; raise lifecycle.startupBudget or give "
            "it a faster model.cache",
        )
    return Trouble(pod.name, Reason.CRASH_LOOP, f"{what}; status.lastFailure has the cause")


def _failure(pod: EnginePod) -> dict[str, Any] | None:
    if pod.terminating:
        return None  # asked for: an exit code of a drain that was cut short is no news
    if pod.finished and (record := _pod_record(pod.raw)) is not None:
        return record
    return _ended_record(pod.raw)


def _pod_record(pod: Object) -> dict[str, Any] | None:
    """The end of a whole pod (evicted, refused by the kubelet)."""
    status = pod.get("status") or {}
    if not status.get("reason"):
        return None
    moment = condition(pod, "Ready").get("lastTransitionTime") or status.get("startTime")
    moment = moment or pod["metadata"].get("creationTimestamp", "")
    record = {"pod": name_of(pod), "reason": str(status["reason"]), "time": str(moment), "signature": UNKNOWN_SIGNATURE}
    return record | ({"logTail": tail(str(status["message"]))} if status.get("message") else {})


def _ended_record(pod: Object) -> dict[str, Any] | None:
    ended = ended_badly(container_status(pod))
    if not ended:
        return None
    return {
        "pod": name_of(pod),
        "reason": str(ended.get("reason") or "Error"),
        "exitCode": int(ended.get("exitCode", 0)),
        "time": str(ended.get("finishedAt") or ""),
    }


def _same(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    return all(old.get(key) == new.get(key) for key in ("pod", "time", "exitCode"))


def _explained(log: str) -> dict[str, Any]:
    """The known cause, where the log shows one, and the lines that say it."""
    match = signatures.find(log)
    if match is None:
        return {"signature": UNKNOWN_SIGNATURE} | ({"logTail": tail(log)} if log.strip() else {})
    known = match.signature
    return {"signature": known.name, "advice": f"{known.cause}; {known.next_step}", "logTail": tail(match.line)}


def tail(text: str) -> str:
    """The last KiB of a text, whole characters."""
    clean = text.replace("\r\n", "\n").rstrip()
    return clean.encode()[-LOG_TAIL_BYTES:].decode(errors="ignore")


def _containers(pod: Object) -> Iterable[Mapping[str, Any]]:
    spec = pod.get("spec") or {}
    return (*(spec.get("initContainers") or ()), *(spec.get("containers") or ()))


def _memory_limit(pod: Object, name: str) -> str:
    container = next((entry for entry in _containers(pod) if entry.get("name") == name), {})
    limit = ((container.get("resources") or {}).get("limits") or {}).get("memory")
    return f" of {limit}" if limit else ""


def _startup_budget(pod: Object, name: str) -> int | None:
    container = next((entry for entry in _containers(pod) if entry.get("name") == name), {})
    probe = container.get("startupProbe")
    return int(probe.get("periodSeconds", 10)) * int(probe.get("failureThreshold", 3)) if probe else None


def _seconds(ended: Mapping[str, Any]) -> int | None:
    started, finished = ended.get("startedAt"), ended.get("finishedAt")
    if not started or not finished:
        return None
    return int((datetime.fromisoformat(finished) - datetime.fromisoformat(started)).total_seconds())
