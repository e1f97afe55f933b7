"""Memory of the host: how much is left, why it is low, who waits for it, and what is pinned."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from fractions import Fraction
from functools import partial
from types import MappingProxyType
from typing import Final

from hisparse.nodes.catalogue import Check, Threshold
from hisparse.nodes.findings import State
from hisparse.units import GIB, format_bytes
from hisparse_agent.judge.offload import pool_to_come
from hisparse_agent.judge.rates import change
from hisparse_agent.judge.verdict import HOST, Verdict, absent, fine, graded, percent, plain, unsupported
from hisparse_agent.judge.view import Judge, View, of_host, pod_key, share_of_percent
from hisparse_agent.readings import Absence, Memory, Missing, NumaNode, Number, Pressure

LEAST_SHARE: Final = (Fraction(10, 100), Fraction(3, 100))
"""Of the total, for warning and critical: small hosts have lower limits than the table's bytes."""

PRESSURE_TOLD: Final = Fraction(1, 100)
PINS_TOLD: Final = Fraction(1, 4)
NODE_EXHAUSTED: Final = 4 * GIB
NUMA_RATIO: Final = 4
SWAP_WINDOW_S: Final = 120


# --- what is left ----------------------------------------------------------------------------------------------------


def _available(view: View, row: Check) -> Verdict:
    memory = view.reading.memory
    if isinstance(memory.available, Missing):
        return absent(HOST, memory.available, "MemAvailable")
    if isinstance(memory.total, Missing):
        return absent(HOST, memory.total, "MemTotal")
    limits = view.limits(row, here=partial(_of_this_host, memory.total))
    message = f"{format_bytes(memory.available)} of {format_bytes(memory.total)} are available"
    verdict = graded(HOST, memory.available, limits, message)
    if not verdict.state.is_fault:
        return verdict
    limit = format_bytes(int(Fraction(verdict.limit or 0)))
    return replace(verdict, message=f"{message}, below {limit}; {_why(view)}")


def _of_this_host(total: int, limits: Threshold) -> Threshold:
    """The lesser of the table's bytes and a share of the total."""
    if limits.warn is None or limits.critical is None:
        return limits
    warn, critical = (
        min(int(bytes_), int(total * share))
        for bytes_, share in zip((limits.warn, limits.critical), LEAST_SHARE, strict=True)
    )
    return replace(limits, warn=str(warn), critical=str(critical))


def _why(view: View) -> str:
    """What is known to take the memory, in one clause each."""
    causes = [*_pins(view), *_exhausted(view), *_waiting(view), *_to_come(view)]
    return "because " + ", and ".join(causes) if causes else "no pins, NUMA node, pressure or pool explains it"


def _pins(view: View) -> Iterable[str]:
    memory = view.reading.memory
    pinned = memory.pinned_bytes
    if isinstance(pinned, int) and isinstance(memory.total, int) and pinned >= memory.total * PINS_TOLD:
        yield f"{format_bytes(pinned)} are pinned (a shared pool counts once per rank) and cannot be reclaimed"


def _exhausted(view: View) -> Iterable[str]:
    nodes = view.reading.memory.nodes
    for node in () if isinstance(nodes, Missing) else nodes:
        left = reclaimable(node)
        if isinstance(left, int) and left < NODE_EXHAUSTED:
            yield f"NUMA node {node.index} is exhausted ({format_bytes(left)} left)"


def _waiting(view: View) -> Iterable[str]:
    pressure = view.reading.memory.pressure
    if isinstance(pressure, Missing):
        return
    some, full = share_of_percent(pressure.some), share_of_percent(pressure.full)
    if isinstance(some, Fraction) and isinstance(full, Fraction) and some > PRESSURE_TOLD:
        yield f"programs wait for memory {percent(some)} of the time, all of them {percent(full)}"


def _to_come(view: View) -> Iterable[str]:
    available = view.reading.memory.available
    for pod in view.pods:
        need = pool_to_come(pod)
        if isinstance(need, int) and isinstance(available, int) and need > available:
            yield f"{pod.subject} still has to fill {format_bytes(need)} of its pool, which will not fit"


# --- who waits -------------------------------------------------------------------------------------------------------


def _pressure(view: View, row: Check) -> Iterable[Verdict]:
    yield _waits(view, row, HOST, view.reading.memory.pressure)
    for pod in view.pods:
        yield replace(_waits(view, row, pod.subject, pod.pressure), holder=pod_key(pod))


def _waits(view: View, row: Check, subject: str, pressure: Pressure | Missing) -> Verdict:
    """Some tasks waiting warns, all of them waiting is critical."""
    if isinstance(pressure, Missing):
        return absent(subject, pressure, "memory pressure")
    some, full = share_of_percent(pressure.some), share_of_percent(pressure.full)
    if isinstance(some, Missing):
        return absent(subject, some, "memory pressure")
    if isinstance(full, Missing):
        return absent(subject, full, "memory pressure")
    limits = view.limits(row)
    by_all = graded(subject, full, replace(limits, warn=None), f"all programs waited for memory {percent(full)}")
    by_some = graded(subject, some, replace(limits, critical=None), f"some programs waited for memory {percent(some)}")
    worse = by_all if by_all.state is State.CRITICAL else by_some
    return replace(worse, message=f"{worse.message} of the last minute")


def _swap(view: View, row: Check) -> Verdict:
    memory = view.reading.memory
    if memory.swap_total == 0:
        return fine(HOST, "swap is off", value="0")
    moved = change(view, lambda moment: _swapped(moment.reading.memory), window_s=SWAP_WINDOW_S)
    if isinstance(moved, Missing):
        return absent(HOST, moved, "pages swapped")
    faults = change(view, lambda moment: moment.reading.memory.major_faults, window_s=SWAP_WINDOW_S)
    also = "" if isinstance(faults, Missing) else f", with {plain(int(faults.per_second))} major faults"
    message = f"{plain(int(moved.per_second))} pages a second are swapped in and out over 2 minutes{also}"
    return graded(HOST, moved.per_second, view.limits(row), message)


def _swapped(memory: Memory) -> Number:
    if isinstance(memory.swap_in, Missing):
        return memory.swap_in
    return memory.swap_out if isinstance(memory.swap_out, Missing) else memory.swap_in + memory.swap_out


# --- where it lies ---------------------------------------------------------------------------------------------------


def reclaimable(node: NumaNode) -> Number:
    """Bytes that an engine can have on a node: what is free, and file cache that is given back."""
    if isinstance(node.free, Missing):
        return node.free
    return node.free if isinstance(node.file_cache, Missing) else node.free + node.file_cache


def _numa(view: View, row: Check) -> Iterable[Verdict]:
    nodes = view.reading.memory.nodes
    if isinstance(nodes, Missing):
        return (absent(HOST, nodes, "memory by NUMA node"),)
    near = _nodes_of_gpus(view, nodes)
    if isinstance(near, Missing):
        return (absent(HOST, near, "NUMA node of the GPUs"),)
    return tuple(_node(view, row, node, nodes) for node in nodes if node.index in near)


def _nodes_of_gpus(view: View, nodes: tuple[NumaNode, ...]) -> frozenset[int] | Missing:
    if isinstance(view.reading.nvml, Missing):
        return view.reading.nvml
    if not view.gpus:
        return Missing(Absence.UNSUPPORTED, "the machine has no GPU")
    if len(nodes) == 1:
        return frozenset({nodes[0].index})
    there = {node.index for node in nodes}
    near = frozenset(gpu.numa_node for gpu in view.gpus if isinstance(gpu.numa_node, int) and gpu.numa_node in there)
    if near:
        return near
    told = view.gpus[0].numa_node
    return told if isinstance(told, Missing) else Missing(Absence.UNKNOWN, f"sysfs says {told}, which is no node")


def _node(view: View, row: Check, node: NumaNode, nodes: tuple[NumaNode, ...]) -> Verdict:
    subject = f"numa-{node.index}"
    left = reclaimable(node)
    if isinstance(left, Missing):
        return absent(subject, left, "free memory of the node")
    verdict = graded(subject, left, view.limits(row), f"{format_bytes(left)} of the node are free or file cache")
    if verdict.state.is_fault:
        return verdict
    others = [most for other in nodes if isinstance(most := reclaimable(other), int)]
    if max(others) >= NUMA_RATIO * left:
        message = f"{verdict.message}, and another node has {format_bytes(max(others))}, {NUMA_RATIO} times as much"
        return Verdict(subject, State.WARN, message, str(left), str(max(others) // NUMA_RATIO))
    return verdict


def _pinned(view: View, row: Check) -> Iterable[Verdict]:
    memory = view.reading.memory
    nodes = memory.nodes
    if not isinstance(nodes, Missing) and all(isinstance(node.pinned_pages, int) for node in nodes):
        return tuple(
            _pinned_share(view, row, f"numa-{node.index}", node.pinned_pages, node.total, reclaimable(node))
            for node in nodes
        )
    return (_pinned_share(view, row, HOST, memory.pinned_pages, memory.total, memory.available),)


def _pinned_share(view: View, row: Check, subject: str, pages: Number, total: Number, left: Number) -> Verdict:
    pinned = view.reading.memory.bytes_of(pages)
    if isinstance(pinned, Missing):
        return absent(subject, pinned, "pinned pages")
    if isinstance(total, Missing):
        return absent(subject, total, "memory")
    if isinstance(left, Missing):
        return absent(subject, left, "memory that is left")
    if total <= 0:
        return unsupported(subject, "the node has no memory")
    # what is free or can be reclaimed is not pinned, however often a shared pool was counted
    most = min(pinned, max(total - left, 0))
    counted = f" (counted as {format_bytes(pinned)}: a shared pool counts once per rank)" if most < pinned else ""
    share = Fraction(most, total)
    message = f"{format_bytes(most)} of {format_bytes(total)} are pinned, {percent(share)}{counted}"
    return graded(subject, share, view.limits(row), message)


JUDGES: Final[Mapping[str, Judge]] = MappingProxyType(
    {
        "host.mem.available": of_host(_available),
        "host.mem.psi": _pressure,
        "host.mem.numa": _numa,
        "host.mem.pinned": _pinned,
        "host.swap": of_host(_swap),
    }
)
