"""Concurrency and capacity ratio by the length of requests, at more lengths than a plan has."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from hisparse.plan import Plan

SHORTEST: Final = 8_192


@dataclass(frozen=True)
class Point:
    """Requests of `tokens` each that run at once, without and with the tier (the same where there is none).

    ratio is tier over plain: capacity, never speed. None without a tier, and where plain KV holds not even one.
    """

    tokens: int
    plain: Fraction
    tier: Fraction
    ratio: Fraction | None


def lengths(most: int) -> tuple[int, ...]:
    """From 8K in steps of a half power of two (8K, 12K, 16K, 24K, ...) to `most`, which is always the last."""
    found = []
    step = SHORTEST
    while step < most:
        found += [step, *([step * 3 // 2] if step * 3 // 2 < most else [])]
        step *= 2
    return (*found, most)


def curve(plan: Plan, tokens: Iterable[int] | None = None) -> tuple[Point, ...]:
    """The plan's curve at these lengths; those of `lengths` up to maxTokens unless said."""
    wanted = lengths(plan.target.max_tokens) if tokens is None else tokens
    return tuple(_point(plan, one) for one in wanted)


def _point(plan: Plan, tokens: int) -> Point:
    data, tiered = plan.target.data, plan.tiered
    plain = plan.plain.concurrency(plan.plain.blocks_in(plan.kv_budget), tokens) * data
    if tiered is None:
        return Point(tokens, plain, plain, None)
    tier = tiered.concurrency(plan.gpu_blocks, plan.host_blocks, tokens) * data
    # every data-parallel rank has to hold one
    return Point(tokens, plain, tier, tier / plain if plain >= data else None)
