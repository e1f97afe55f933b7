"""Verdicts on published speeds: what arithmetic and bandwidth rule out, and what nobody has come near."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import Final

from hisparse.architectures import Attention
from hisparse.decode import GOOD_BANDWIDTH, HOST_READ_RUNS, USUAL_BANDWIDTH, Binds, DecodeBound, HostReadRun
from hisparse.hardware import GPUS, Gpu
from hisparse.model import ModelFacts
from hisparse.prefill import FIT_BAND, Prefill

MEASURED_LAYERS: Final = 78
"""Layers of GLM-5.3, whose steps were measured (HOST_READ_RUNS)."""

MEASURED_ON: Final = next(gpu for gpu in GPUS if gpu.name == "h200")


class Plausibility(StrEnum):
    """IMPOSSIBLE is faster than the hardware's peak, IMPLAUSIBLE faster than the best that is known."""

    PLAUSIBLE = "Plausible"
    IMPLAUSIBLE = "Implausible"
    IMPOSSIBLE = "Impossible"


@dataclass(frozen=True)
class Judgement:
    """A verdict on one claim. All figures are in the claim's unit: seconds, or tokens per second.

    bound is the hardware's own limit, good the best that is known, usual what is common, faster figure first.
    times is how many times faster the claim is than the faster of the usual figures; below 1 where it is slower.
    """

    plausibility: Plausibility
    claimed: Fraction
    bound: Fraction
    good: Fraction
    usual: tuple[Fraction, Fraction]
    times: Fraction


def judge_seconds(found: Prefill, claimed: Fraction) -> Judgement:
    """A claim that this prompt is prefilled in `claimed` seconds."""
    fast, slow = found.usual
    return Judgement(
        _plausibility(claimed < found.bound, claimed < found.good),
        claimed,
        found.bound,
        found.good,
        (fast, slow),
        fast / claimed,
    )


@dataclass(frozen=True)
class MeasuredStep:
    """A decode step of a sparse model as it was measured on one rank, scaled by the model's layers.

    seconds are all of it; from_host says that rows came from host memory.
    """

    run: HostReadRun
    seconds: Fraction
    from_host: bool

    @property
    def band(self) -> tuple[Fraction, Fraction]:
        """Seconds of the fastest and the slowest step that are taken for usual: FIT_BAND around it, as for prefill."""
        return self.seconds * (1 - FIT_BAND), self.seconds * (1 + FIT_BAND)


def measured_step(model: ModelFacts, gpu: Gpu, *, decoding: int, from_host: bool) -> MeasuredStep | None:
    """The measured step of the most requests up to `decoding` on one rank; None where none says anything.

    Measured with 128K tokens, small dummy experts and no all-reduces: longer requests, real weights and more ranks only
    take longer. Of a GPU with more bandwidth than the one that was measured nothing follows.
    """
    if model.attention is not Attention.DSA or gpu.hbm_bytes_per_second > MEASURED_ON.hbm_bytes_per_second:
        return None
    run = max((one for one in HOST_READ_RUNS if one.decoding <= decoding), key=lambda one: one.decoding)
    microseconds = run.tier_us if from_host else run.hbm_us
    return MeasuredStep(run, Fraction(microseconds * model.layers, 10**6 * MEASURED_LAYERS), from_host)


def judge_rate(found: DecodeBound, claimed: Fraction, measured: MeasuredStep | None = None) -> Judgement:
    """A claim that one request of these decodes `claimed` tokens per second.

    Where a step was measured, the best that is known is the fast end of its band, and never above the bandwidth's.
    """
    slow, fast = (found.each * share for share in USUAL_BANDWIDTH)
    # a step that waits for arithmetic is not helped by what a copy reaches
    good = found.each * (1 if found.binds is Binds.COMPUTE else GOOD_BANDWIDTH)
    if measured is not None:
        shortest, longest = measured.band
        slow, fast = min(slow, found.step_tokens / longest), min(fast, found.step_tokens / shortest)
        good = min(good, found.step_tokens / shortest)
    return Judgement(
        _plausibility(claimed > found.each, claimed > good), claimed, found.each, good, (fast, slow), claimed / fast
    )


def _plausibility(impossible: bool, implausible: bool) -> Plausibility:  # noqa: FBT001  two comparisons
    if impossible:
        return Plausibility.IMPOSSIBLE
    return Plausibility.IMPLAUSIBLE if implausible else Plausibility.PLAUSIBLE
