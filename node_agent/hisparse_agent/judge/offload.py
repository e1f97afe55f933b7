"""The offload pools of engine pods: whether they fit, are pinned, were left behind, or burst their limit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from types import MappingProxyType
from typing import Final

from hisparse.nodes.catalogue import Check
from hisparse.nodes.findings import State
from hisparse.units import GIB, format_bytes
from hisparse_agent.judge.rates import Change, Counter, last_change, lasted
from hisparse_agent.judge.verdict import BEING_WATCHED, HOST, Verdict, absent, fine, graded, unknown, unsupported
from hisparse_agent.judge.view import Judge, Moment, View, each_pod, of_host, pod_key
from hisparse_agent.readings import Absence, EnginePod, Missing, Number, ShmFile

SPARE: Final = Fraction(10, 100)
LEAST_POOL: Final = 8 * GIB
PINNED_SHARE: Final = Fraction(90, 100)
LASTING_S: Final = 600
OF_HOST: Final = Fraction(10, 100)


# --- fit -------------------------------------------------------------------------------------------------------------


def pool_to_come(pod: EnginePod) -> Number:
    """Bytes of the declared pool that the pod does not hold yet. Pools are shared memory, or anonymous at one rank."""
    if isinstance(pod.pool, Missing):
        return pod.pool
    if not pod.running:
        return pod.pool
    if isinstance(pod.shmem, Missing):
        return pod.shmem
    if isinstance(pod.anon, Missing):
        return pod.anon
    return max(pod.pool - pod.shmem - pod.anon, 0)


def _fit(view: View, _row: Check, pod: EnginePod) -> Verdict:
    if isinstance(pod.pool, Missing):
        return absent(pod.subject, pod.pool, "host pool")
    if pod.pool == 0:
        return fine(pod.subject, "the pod declares no host pool", value="0")
    if isinstance(pod.limit, int) and pod.pool > pod.limit:
        message = f"a pool of {format_bytes(pod.pool)} is above the pod's memory limit of {format_bytes(pod.limit)}"
        return Verdict(pod.subject, State.CRITICAL, message, str(pod.pool), str(pod.limit))
    need = pool_to_come(pod)
    if isinstance(need, Missing):
        return absent(pod.subject, need, "memory of the pod")
    if need == 0:
        return fine(pod.subject, f"the pod holds its pool of {format_bytes(pod.pool)}", value="0")
    available = view.reading.memory.available
    if isinstance(available, Missing):
        return absent(pod.subject, available, "MemAvailable")
    return _against(view, pod, need, available)


def _against(view: View, pod: EnginePod, need: int, available: int) -> Verdict:
    """All pods that still fill a pool draw on the same memory."""
    others = sum(
        more for other in view.pods if pod_key(other) != pod_key(pod) and isinstance(more := pool_to_come(other), int)
    )
    total = need + others
    also = f", with {format_bytes(others)} for other pods," if others else ""
    message = f"{format_bytes(need)} of the pool are still to be filled{also} and {format_bytes(available)} available"
    if total > available:
        state = State.CRITICAL
    elif available - total < total * SPARE:
        state = State.WARN
    else:
        state = State.OK
    return Verdict(pod.subject, state, message, str(total), str(available))


# --- pinned or not ---------------------------------------------------------------------------------------------------


def _unpinned(view: View, _row: Check, pod: EnginePod) -> Verdict:
    if isinstance(pod.shmem, Missing):
        return absent(pod.subject, pod.shmem, "shared memory of the pod")
    if pod.shmem < LEAST_POOL:
        return fine(pod.subject, f"the pod holds {format_bytes(pod.shmem)} of shared memory, below 8 GiB: no pool")
    pinned = view.reading.memory.pinned_bytes
    if isinstance(pinned, Missing):
        return absent(pod.subject, pinned, "pinned pages")
    pools = _pools(view.past[-1])
    message = f"{format_bytes(pinned)} are pinned on a node whose engine pods hold {format_bytes(pools)} of pools"
    if pinned >= pools * PINNED_SHARE:
        return fine(pod.subject, message, value=str(pinned), limit=str(int(pools * PINNED_SHARE)))
    if not lasted(view, _pins_are_behind, seconds=LASTING_S):
        return unknown(pod.subject, f"{message}, for less than 10 minutes: it may still pin", reason=BEING_WATCHED)
    swap = view.reading.memory.swap_total
    state = State.CRITICAL if isinstance(swap, int) and swap > 0 else State.WARN
    return Verdict(pod.subject, state, f"{message}, for 10 minutes", str(pinned), str(int(pools * PINNED_SHARE)))


def _pools(moment: Moment) -> int:
    return sum(pod.shmem for pod in moment.pods.values() if isinstance(pod.shmem, int) and pod.shmem >= LEAST_POOL)


def _pins_are_behind(moment: Moment) -> bool:
    pinned, pools = moment.reading.memory.pinned_bytes, _pools(moment)
    return pools > 0 and isinstance(pinned, int) and pinned < pools * PINNED_SHARE


# --- left behind -----------------------------------------------------------------------------------------------------


def _orphan(view: View, _row: Check, pod: EnginePod) -> Verdict:
    if isinstance(pod.files, Missing):
        return absent(pod.subject, pod.files, "files of the pod's /dev/shm")
    left = [file for file in pod.files if file.opened is False]
    unread = next((file.opened for file in pod.files if isinstance(file.opened, Missing)), None)
    old = [file for file in left if lasted(view, _is_left(pod_key(pod), file.name), seconds=LASTING_S)]
    if old:
        return _left_behind(view, pod, old)
    if unread is not None:
        return absent(pod.subject, unread, "whether a process has an offload file open")
    if left:
        message = f"{_names(left)} without a process for less than 10 minutes"
        return unknown(pod.subject, message, reason=BEING_WATCHED)
    return fine(pod.subject, "every offload file in the pod's /dev/shm is in use, or there is none", value="0")


def _left_behind(view: View, pod: EnginePod, files: list[ShmFile]) -> Verdict:
    size = sum(file.size for file in files)
    total = view.reading.memory.total
    message = f"{_names(files)} in the pod's /dev/shm, {format_bytes(size)}, without a process for 10 minutes"
    critical = isinstance(total, int) and size > total * OF_HOST
    limit = str(int(total * OF_HOST)) if critical and isinstance(total, int) else "0"
    return Verdict(pod.subject, State.CRITICAL if critical else State.WARN, message, str(size), limit)


def _names(files: list[ShmFile]) -> str:
    names = sorted(file.name for file in files)
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")  # noqa: PLR2004


def _is_left(key: str, name: str) -> Callable[[Moment], bool]:
    def holds(moment: Moment) -> bool:
        pod = moment.pods.get(key)
        if pod is None or isinstance(pod.files, Missing):
            return False
        return any(file.name == name and file.opened is False for file in pod.files)

    return holds


def _leak(view: View, row: Check) -> Verdict:
    memory, pinned = view.reading.memory, view.reading.memory.pinned_bytes
    if isinstance(pinned, Missing):
        return absent(HOST, pinned, "pinned pages")
    if isinstance(view.reading.nvml, Missing):
        return absent(HOST, view.reading.nvml, "NVML")
    if not view.gpus:
        return unsupported(HOST, "the machine has no GPU")
    if isinstance(view.reading.pods, Missing) and view.reading.pods.absence is Absence.UNKNOWN:
        return absent(HOST, view.reading.pods, "engine pods")
    unread = next((gpu.processes for gpu in view.gpus if isinstance(gpu.processes, Missing)), None)
    if any(isinstance(gpu.processes, int) and gpu.processes > 0 for gpu in view.gpus):
        return fine(HOST, "a process uses a GPU, so pins are expected")
    if any(pod.running for pod in view.pods):
        return fine(HOST, "an engine pod runs, so pins are expected")
    if unread is not None:
        return absent(HOST, unread, "processes on a GPU")
    message = f"{format_bytes(pinned)} are pinned while no process uses a GPU"
    if isinstance(memory.total, int) and pinned > memory.total * OF_HOST:
        return Verdict(HOST, State.CRITICAL, message, str(pinned), str(int(memory.total * OF_HOST)))
    return graded(HOST, pinned, view.limits(row), message)


# --- limits ----------------------------------------------------------------------------------------------------------


def _memcg(view: View, _row: Check, pod: EnginePod) -> Verdict:
    kills = last_change(view, _of_pod(pod_key(pod), lambda pod: pod.oom_kills))
    if isinstance(kills, Change) and kills.amount > 0:
        held = "" if isinstance(pod.shmem, Missing) else f"; it holds {format_bytes(pod.shmem)} of shared memory"
        message = f"the kernel has ended {kills.amount} processes of the pod at its memory limit{held}"
        return Verdict(pod.subject, State.CRITICAL, message, str(kills.amount), "0")
    if isinstance(kills, Missing):
        return absent(pod.subject, kills, "processes ended at the memory limit")
    reached = last_change(view, _of_pod(pod_key(pod), lambda pod: pod.max_events))
    if isinstance(reached, Missing):
        return absent(pod.subject, reached, "times at the memory limit")
    if reached.amount > 0:
        message = f"the pod was at its memory limit {reached.amount} times since the last reading"
        return Verdict(pod.subject, State.WARN, message, str(reached.amount), "0")
    return fine(pod.subject, "the pod stays below its memory limit", value="0", limit="0")


def _of_pod(key: str, pick: Callable[[EnginePod], Number]) -> Counter:
    def read(moment: Moment) -> Number:
        pod = moment.pods.get(key)
        return Missing(Absence.UNKNOWN, "the pod was not there") if pod is None else pick(pod)

    return read


JUDGES: Final[Mapping[str, Judge]] = MappingProxyType(
    {
        "host.mem.fit": each_pod(_fit),
        "host.pool.unpinned": each_pod(_unpinned),
        "host.pool.orphan": each_pod(_orphan),
        "host.pool.leak": of_host(_leak),
        "host.memcg": each_pod(_memcg),
    }
)
