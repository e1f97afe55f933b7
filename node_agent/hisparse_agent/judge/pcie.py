"""The link to the host, over which the host tier is read."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from hisparse.nodes.catalogue import Check
from hisparse.nodes.findings import State
from hisparse_agent.judge.links import is_sxm
from hisparse_agent.judge.rates import Change, change, of_gpu
from hisparse_agent.judge.verdict import Verdict, absent, fine, graded, plain, unknown
from hisparse_agent.judge.view import Judge, View, each_gpu, unless_lost
from hisparse_agent.readings import Absence, GpuReading, Missing, Number, Pcie

UNDER_LOAD_PERCENT: Final = 20
"""Cards other than SXM lower their link when idle; above this utilisation they do not."""

LOW_GENERATION: Final = 3
"""A card that can do more and runs at this or less has lost at least half of its rate."""

ERROR_WINDOW_S: Final = 600


def _link(_view: View, _row: Check, gpu: GpuReading) -> Verdict:
    pcie = gpu.pcie
    for value, what in (
        (pcie.generation, "PCIe generation"),
        (pcie.most_generation, "highest PCIe generation"),
        (pcie.width, "PCIe lanes"),
        (pcie.most_width, "most PCIe lanes"),
    ):
        if isinstance(value, Missing):
            return absent(gpu.subject, value, what)
    state = _state(pcie)
    here, most = f"gen{pcie.generation} x{pcie.width}", f"gen{pcie.most_generation} x{pcie.most_width}"
    message = f"the PCIe link runs at {here} of {most}"
    if state is State.OK:
        return fine(gpu.subject, message, value=here, limit=most)
    if not is_sxm(gpu.product):
        load = gpu.utilisation_percent
        if isinstance(load, Missing):
            return unknown(gpu.subject, f"{message}, and whether the GPU is idle could not be read: {load.why}")
        if load <= UNDER_LOAD_PERCENT:
            return unknown(gpu.subject, f"{message} while the GPU is idle; it is judged above {UNDER_LOAD_PERCENT} %")
    return Verdict(gpu.subject, state, message, here, most)


def _state(pcie: Pcie) -> State:
    generation, most = _number(pcie.generation), _number(pcie.most_generation)
    if _number(pcie.width) < _number(pcie.most_width) or (generation < most and generation <= LOW_GENERATION):
        return State.CRITICAL
    return State.WARN if generation < most else State.OK


def _number(value: Number) -> int:
    return value if isinstance(value, int) else 0


def _errors(view: View, row: Check, gpu: GpuReading) -> Verdict:
    key = view.holder(gpu)
    serious = change(view, of_gpu(key, _serious), window_s=ERROR_WINDOW_S)
    if isinstance(serious, Change) and serious.amount > 0:
        message = f"{serious.amount} non-fatal or fatal PCIe errors in 10 minutes; there should be none"
        return Verdict(gpu.subject, State.CRITICAL, message, str(serious.amount), "0")
    replays = change(view, of_gpu(key, lambda gpu: gpu.pcie.replays), window_s=ERROR_WINDOW_S)
    if isinstance(replays, Missing):
        return absent(gpu.subject, replays, "PCIe replays")
    message = f"the PCIe link repeats {plain(replays.per_minute)} packets a minute"
    verdict = graded(gpu.subject, replays.per_minute, view.limits(row, gpu.product), message)
    if verdict.state is State.OK and isinstance(serious, Missing) and serious.absence is Absence.UNKNOWN:
        return absent(gpu.subject, serious, "PCIe errors")
    return verdict


def _serious(gpu: GpuReading) -> Number:
    if isinstance(gpu.pcie.nonfatal, Missing):
        return gpu.pcie.nonfatal
    if isinstance(gpu.pcie.fatal, Missing):
        return gpu.pcie.fatal
    return gpu.pcie.nonfatal + gpu.pcie.fatal


JUDGES: Final[Mapping[str, Judge]] = MappingProxyType(
    {
        "pcie.link": each_gpu(unless_lost(_link)),
        "pcie.errors": each_gpu(unless_lost(_errors)),
    }
)
