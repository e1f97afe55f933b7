"""Power limits that somebody else set, and persistence mode."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from types import MappingProxyType
from typing import Final

from hisparse.nodes.catalogue import Check
from hisparse.nodes.findings import State
from hisparse.units import format_watts
from hisparse_agent.judge.verdict import Verdict, absent, fine, graded
from hisparse_agent.judge.view import Judge, View, each_gpu, unless_lost
from hisparse_agent.readings import Absence, GpuReading, Missing, Number


def _out_of_band(view: View, row: Check, gpu: GpuReading) -> Verdict:
    """Two ways of being capped: below what the driver was asked for, and below the card's default by another's wish."""
    power = gpu.power
    own = view.own_caps.get(view.holder(gpu), 0)
    ours = own == power.limit
    reference = own if ours else power.default
    shares = (_share(power.enforced, power.requested), _share(power.limit, reference))
    words = (
        "{} are enforced of {} that were asked for",
        "the power limit is {} on a GPU with " + ("a cap of this project of {}" if ours else "a default of {}"),
    )
    known = [(share, text) for share, text in zip(shares, words, strict=True) if not isinstance(share, Missing)]
    limits = view.limits(row, gpu.product)
    if known:
        worst, text = min(known, key=lambda one: one[0][0])
        # while nothing is capped, the limit says more than that it is enforced
        capped, text = (worst, text) if worst[0] < 1 else known[-1]
        verdict = graded(gpu.subject, capped[0], limits, text.format(format_watts(capped[1]), format_watts(capped[2])))
        if verdict.state.is_fault or not any(_is_unread(share) for share in shares):
            return verdict
    missing = [share for share in shares if isinstance(share, Missing)]
    return absent(gpu.subject, next(filter(_is_unread, missing), missing[0]), "power limits")


def _is_unread(share: object) -> bool:
    return isinstance(share, Missing) and share.absence is Absence.UNKNOWN


def _share(limit: Number, reference: Number) -> tuple[Fraction, int, int] | Missing:
    """A limit as a share of what it is compared with, and both."""
    if isinstance(limit, Missing):
        return limit
    if isinstance(reference, Missing):
        return reference
    if reference <= 0:
        return Missing(Absence.UNKNOWN, f"NVML reports a limit of {format_watts(reference)}")
    return Fraction(limit, reference), limit, reference


def _persistence(_view: View, _row: Check, gpu: GpuReading) -> Verdict:
    mode = gpu.power.persistent
    if isinstance(mode, Missing):
        return absent(gpu.subject, mode, "persistence mode")
    if mode:
        return fine(gpu.subject, "persistence mode is on", value="on", limit="on")
    return Verdict(gpu.subject, State.WARN, "persistence mode is off", "off", "on")


JUDGES: Final[Mapping[str, Judge]] = MappingProxyType(
    {
        "power.oob": each_gpu(unless_lost(_out_of_band)),
        "power.persistence": each_gpu(unless_lost(_persistence)),
    }
)
