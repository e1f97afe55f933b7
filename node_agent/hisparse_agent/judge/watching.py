"""Whether the watching itself works: NVML's answers, dcgm-exporter's, and the window in which neither is to be had."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from types import MappingProxyType
from typing import Final

from hisparse.nodes.catalogue import Check
from hisparse.units import GIB, format_bytes
from hisparse_agent.judge.rates import Change, last_change
from hisparse_agent.judge.verdict import HOST, TooShort, Verdict, absent, fine, graded, plain, unknown, unsupported
from hisparse_agent.judge.view import NS, Judge, Moment, View, exact, of_host
from hisparse_agent.readings import Absence, Exporter, Missing, Number, Nvml

PIN_BYTES_PER_SECOND: Final = GIB
LATENCY_WINDOW_S: Final = 300
LEAST_SAMPLES: Final = 20
"""Fewer have no 95th percentile."""


# --- the pin window --------------------------------------------------------------------------------------------------


def _pinned(moment: Moment) -> Number:
    return moment.reading.memory.pinned_bytes


def _shmem(moment: Moment) -> Number:
    return moment.reading.memory.shmem


def _rise(view: View) -> Fraction | Missing:
    """Bytes a second by which pins or shared memory rose since the reading before; a fall counts as none."""
    rises = []
    for counter in (_pinned, _shmem):
        now = counter(view.past[-1])
        if isinstance(now, Missing):
            continue
        moved = last_change(view, counter)
        if isinstance(moved, Change):
            rises.append(moved.per_second)
        elif len(view.past) > 1 and isinstance(counter(view.past[-2]), int):
            # these are levels and not counters: a fall is one, and no window
            rises.append(Fraction(0))
    if rises:
        return max(rises)
    for counter in (_pinned, _shmem):
        if isinstance(now := counter(view.past[-1]), Missing):
            return now
    return TooShort(Absence.UNKNOWN, "it needs a second reading")


def pin_window(view: View) -> bool:
    """Whether an engine is filling or pinning its pool, which stalls NVML and DCGM of the whole node."""
    rise = _rise(view)
    return isinstance(rise, Fraction) and rise > PIN_BYTES_PER_SECOND


def _window(view: View, _row: Check) -> Verdict:
    rise = _rise(view)
    if isinstance(rise, Missing):
        return absent(HOST, rise, "pinned bytes")
    where = "an engine fills its pool" if rise > PIN_BYTES_PER_SECOND else "nobody fills a pool"
    message = f"pins or shared memory rise by {format_bytes(int(rise))} a second: {where}"
    return fine(HOST, message, value=str(int(rise)), limit=str(PIN_BYTES_PER_SECOND))


# --- NVML ------------------------------------------------------------------------------------------------------------


def _latency(view: View, row: Check) -> Verdict:
    nvml = view.reading.nvml
    if isinstance(nvml, Missing):
        return absent(HOST, nvml, "NVML")
    now = exact(nvml.seconds)
    if isinstance(now, Missing):
        return absent(HOST, now, "time of the NVML poll")
    times = sorted(
        time
        for moment in view.past
        if moment.age_ns <= LATENCY_WINDOW_S * NS
        and isinstance(moment.reading.nvml, Nvml)
        and isinstance(time := exact(moment.reading.nvml.seconds), Fraction)
    )
    if len(times) < LEAST_SAMPLES:
        return graded(HOST, now, view.limits(row), f"an NVML poll of the node takes {plain(now)} s")
    # nearest rank
    slow = times[-(-len(times) * 95 // 100) - 1]
    message = (
        f"an NVML poll of the node takes {plain(now)} s now, and 95 % of {len(times)} took at most {plain(slow)} s"
    )
    return graded(HOST, slow, view.limits(row), message)


# --- dcgm-exporter ---------------------------------------------------------------------------------------------------


def _fresh(view: View, row: Check) -> Verdict:
    exporter = view.reading.exporter
    if isinstance(exporter, Missing):
        return absent(HOST, exporter, "dcgm-exporter")
    here = {gpu.uuid for gpu in view.gpus if gpu.uuid}
    energies = _energies(exporter)
    if here and exporter.gpus and not here & {gpu.uuid for gpu in exporter.gpus}:
        return unknown(HOST, f"{exporter.pod} speaks of other GPUs than NVML: it is not this node's dcgm-exporter")
    if not energies:
        return unsupported(HOST, f"{exporter.pod} exports no energy counter, so its age cannot be told")
    still = _standing_still(view, energies)
    if isinstance(still, Missing):
        return absent(HOST, still, "energy counters of dcgm-exporter")
    seconds = Fraction(still, NS)
    message = f"the energy counters of {exporter.pod} have stood still for {plain(int(seconds))} s"
    return graded(HOST, seconds, view.limits(row), message if still else f"{exporter.pod} answers with new figures")


def _energies(exporter: Exporter) -> dict[str, int]:
    return {gpu.uuid: gpu.energy_mj for gpu in exporter.gpus if gpu.energy_mj is not None}


def _standing_still(view: View, energies: Mapping[str, int]) -> int | Missing:
    """Nanoseconds for which the counter of the GPU that stood still longest has not moved; 0 where all moved."""
    longest = 0
    compared = False
    for uuid, energy in energies.items():
        for moment in reversed(view.past[:-1]):
            if isinstance(moment.reading.exporter, Missing):
                continue
            before = _energies(moment.reading.exporter).get(uuid)
            if before is None:
                continue
            compared = True
            if before != energy:
                break
            longest = max(longest, moment.age_ns)
    return longest if compared else TooShort(Absence.UNKNOWN, "it needs a second reading")


JUDGES: Final[Mapping[str, Judge]] = MappingProxyType(
    {
        "nvml.latency": of_host(_latency),
        "pin.window": of_host(_window),
        "exporter.fresh": of_host(_fresh),
    }
)
