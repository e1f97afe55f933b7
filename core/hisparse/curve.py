"""Concurrency and capacity ratio by the length of requests, at more lengths than a plan has."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from hisparse.layout import KvLayout
from hisparse.plan import Plan
from hisparse.tier import HiSparseLayout

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
    return point(
        plan.plain,
        plan.tiered,
        tokens,
        budget=plan.kv_budget,
        gpu_blocks=plan.gpu_blocks,
        host_blocks=plan.host_blocks,
        ranks=plan.target.data,
    )


def point(
    layout: KvLayout,
    tiered: HiSparseLayout | None,
    tokens: int,
    *,
    budget: int,
    gpu_blocks: int,
    host_blocks: int,
    ranks: int,
) -> Point:
    """One point of the curve; the blocks are those of the tier, ranks are the data-parallel ones."""
    plain = layout.concurrency(layout.blocks_in(budget), tokens) * ranks
    if tiered is None:
        return Point(tokens, plain, plain, None)
    tier = tiered.concurrency(gpu_blocks, host_blocks, tokens) * ranks
    # every data-parallel rank has to hold one
    return Point(tokens, plain, tier, tier / plain if plain >= ranks else None)
