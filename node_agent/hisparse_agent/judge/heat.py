"""Heat and throttling: what is left until the GPU throttles, and how much of the time it did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from functools import partial
from types import MappingProxyType
from typing import Final

from hisparse.nodes.catalogue import Check, Threshold
from hisparse.nodes.findings import State
from hisparse_agent.judge.rates import Change, change, last_change, of_gpu, reaches, too_short
from hisparse_agent.judge.verdict import Verdict, absent, fine, graded, limit_of, percent, plain, unknown
from hisparse_agent.judge.view import NS, GpuJudge, Judge, View, each_gpu, unless_lost
from hisparse_agent.readings import GpuReading, Heat, Missing, Number, Throttle, is_unsupported

WINDOW_S: Final = 300

BELIEVED_WITHIN: Final = 5
"""Degrees under its limit from which on a GPU is believed to have no margin left."""

HBM_WARN_BELOW: Final = 5
"""Degrees under the card's own limit of its memory, where that is lower than the table's."""

SW_POWER: Final = 0x4
SW_THERMAL: Final = 0x20
HW_THERMAL: Final = 0x40
POWER_BRAKE: Final = 0x80


def _margin(view: View, row: Check, gpu: GpuReading) -> Verdict:
    heat = gpu.heat
    margin, how = heat.margin, ""
    if isinstance(margin, Missing) and is_unsupported(margin):
        # an A100 has no margin of its own
        if isinstance(heat.gpu, int) and isinstance(heat.gpu_limit, int):
            margin, how = heat.gpu_limit - heat.gpu, f", {heat.gpu} of {heat.gpu_limit} C"
        else:
            return absent(gpu.subject, margin, "thermal margin")
    if isinstance(margin, Missing):
        return absent(gpu.subject, margin, "thermal margin")
    if margin <= 0 and (doubt := _doubt(heat, margin)):
        return unknown(gpu.subject, doubt)
    message = (
        f"{margin} C {'is' if margin == 1 else 'are'} left until the GPU throttles{how}"
        if margin >= 0
        else f"the GPU is {-margin} C above where it begins to throttle{how}"
    )
    return graded(gpu.subject, margin, view.limits(row, gpu.product), message)


def _doubt(heat: Heat, margin: int) -> str:
    """Why a margin of nothing is not believed: drivers report it by mistake on cool cards too."""
    limit = heat.gpu_limit if isinstance(heat.gpu_limit, int) else heat.slowdown
    if isinstance(heat.gpu, Missing):
        return f"NVML reports a margin of {margin} C, and the temperature could not be read to confirm it"
    if isinstance(limit, Missing):
        return f"NVML reports a margin of {margin} C at {heat.gpu} C, and no limit to compare with"
    if heat.gpu < limit - BELIEVED_WITHIN:
        return f"NVML reports a margin of {margin} C at {heat.gpu} C, which is far below {limit} C: not believed"
    return ""


def _hbm(view: View, row: Check, gpu: GpuReading) -> Verdict:
    heat = gpu.heat
    if isinstance(heat.hbm, Missing):
        return absent(gpu.subject, heat.hbm, "memory temperature")
    own = heat.hbm_limit
    limits = view.limits(row, gpu.product, partial(_no_higher, own) if isinstance(own, int) else None)
    return graded(gpu.subject, heat.hbm, limits, f"the GPU's memory is at {heat.hbm} C, of {limits.critical} C")


def _no_higher(own: int, limits: Threshold) -> Threshold:
    """The thresholds, lowered to what the card itself says where that is lower."""
    if limits.critical is None or own >= Fraction(limits.critical):
        return limits
    return replace(limits, warn=str(own - HBM_WARN_BELOW), critical=str(own))


def throttled_share(view: View, gpu: GpuReading, bit: int) -> Fraction | Missing:
    """Share of the last 5 minutes with one cause of throttling.

    From the driver's counter of nanoseconds; where it has none, the share of readings that show the cause's bit.
    """
    key = view.holder(gpu)
    counted = change(view, of_gpu(key, lambda gpu: _counter(gpu.throttle, bit)), window_s=WINDOW_S)
    if isinstance(counted, Change):
        return counted.share
    if is_unsupported(_counter(gpu.throttle, bit)) and isinstance(gpu.throttle.reasons, int):
        return _sampled(view, key, bit)
    return counted


def _counter(throttle: Throttle, bit: int) -> Number:
    return {
        SW_POWER: throttle.sw_power_ns,
        SW_THERMAL: throttle.sw_thermal_ns,
        HW_THERMAL: throttle.hw_thermal_ns,
        POWER_BRAKE: throttle.power_brake_ns,
    }[bit]


def _sampled(view: View, key: str, bit: int) -> Fraction | Missing:
    samples = [
        (moment.age_ns, gpu.throttle.reasons)
        for moment in view.past
        if moment.age_ns <= WINDOW_S * NS
        and (gpu := moment.gpus.get(key)) is not None
        and isinstance(gpu.throttle.reasons, int)
    ]
    span = samples[0][0] if samples else 0
    if not reaches(span, WINDOW_S):
        return too_short(span, WINDOW_S)
    return Fraction(sum(1 for _, reasons in samples if reasons & bit), len(samples))


def _throttle(bit: int, words: str) -> GpuJudge:
    def judge(view: View, row: Check, gpu: GpuReading) -> Verdict:
        share = throttled_share(view, gpu, bit)
        if isinstance(share, Missing):
            return absent(gpu.subject, share, f"time {words}")
        message = f"the GPU was {words} for {percent(share)} of the last 5 minutes"
        return graded(gpu.subject, share, view.limits(row, gpu.product), message)

    return judge


def _brake(view: View, row: Check, gpu: GpuReading) -> Verdict:
    """Any time since the last reading warns, three polls in a row; a share of 5 minutes is critical."""
    words = "slowed down by the power brake"
    limits = view.limits(row, gpu.product)
    share = throttled_share(view, gpu, POWER_BRAKE)
    if isinstance(share, Fraction) and limits.state_of(share) is State.CRITICAL:
        message = f"the GPU was {words} for {percent(share)} of the last 5 minutes"
        return Verdict(gpu.subject, State.CRITICAL, message, plain(share), limits.critical)
    latest = _latest_brake(view, gpu)
    if isinstance(latest, Missing):
        return absent(gpu.subject, latest, f"time {words}")
    message = f"the GPU was {words} for {percent(latest)} of the time since the last reading"
    state = State.WARN if limits.state_of(latest) is not State.OK else State.OK
    return Verdict(gpu.subject, state, message, plain(latest), limit_of(limits, state))


def _latest_brake(view: View, gpu: GpuReading) -> Fraction | Missing:
    counter = gpu.throttle.power_brake_ns
    if is_unsupported(counter) and isinstance(gpu.throttle.reasons, int):
        return Fraction(1 if gpu.throttle.reasons & POWER_BRAKE else 0)
    latest = last_change(view, of_gpu(view.holder(gpu), lambda gpu: gpu.throttle.power_brake_ns))
    return latest if isinstance(latest, Missing) else latest.share


def _sw_power(view: View, _row: Check, gpu: GpuReading) -> Verdict:
    """Information only: a GPU under full load sits at its power limit, which is what the limit is for."""
    share = throttled_share(view, gpu, SW_POWER)
    if isinstance(share, Missing):
        return absent(gpu.subject, share, "time at the power limit")
    return fine(
        gpu.subject,
        f"the GPU was at its power limit for {percent(share)} of the last 5 minutes, which is normal under load",
        value=plain(share),
    )


JUDGES: Final[Mapping[str, Judge]] = MappingProxyType(
    {
        "thermal.margin": each_gpu(unless_lost(_margin)),
        "thermal.hbm": each_gpu(unless_lost(_hbm)),
        "throttle.hw_thermal": each_gpu(
            unless_lost(_throttle(HW_THERMAL, "slowed down by its hardware because of heat"))
        ),
        "throttle.sw_thermal": each_gpu(
            unless_lost(_throttle(SW_THERMAL, "slowed down by the driver because of heat"))
        ),
        "throttle.power_brake": each_gpu(unless_lost(_brake)),
        "throttle.sw_power": each_gpu(unless_lost(_sw_power)),
    }
)
