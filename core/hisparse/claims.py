"""Verdicts on published speeds: what arithmetic and bandwidth rule out, and what nobody has come near."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from hisparse.decode import GOOD_BANDWIDTH, USUAL_BANDWIDTH, Binds, DecodeBound
from hisparse.prefill import Prefill


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


def judge_rate(found: DecodeBound, claimed: Fraction) -> Judgement:
    """A claim that one request of these decodes `claimed` tokens per second."""
    slow, fast = (found.each * share for share in USUAL_BANDWIDTH)
    # a step that waits for arithmetic is not helped by what a copy reaches
    good = found.each * (1 if found.binds is Binds.COMPUTE else GOOD_BANDWIDTH)
    return Judgement(
        _plausibility(claimed > found.each, claimed > good), claimed, found.each, good, (fast, slow), claimed / fast
    )


def _plausibility(impossible: bool, implausible: bool) -> Plausibility:  # noqa: FBT001  two comparisons
    if impossible:
        return Plausibility.IMPOSSIBLE
    return Plausibility.IMPLAUSIBLE if implausible else Plausibility.PLAUSIBLE
