"""The same wish at another length, and the search for the last length that will do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hisparse.model import ModelFacts
from hisparse.plan import Target


def at_length(model: ModelFacts, target: Target, tokens: int) -> Target:
    """The same wish for requests of up to `tokens`: what cannot be longer is cut, and no scaling without need."""
    at = target.pool_tokens
    typical = target.typical_tokens
    return replace(
        target,
        max_tokens=tokens,
        typical_tokens=min(typical, tokens) if typical is not None else None,
        pool_tokens=min(at, tokens) if at is not None else None,
        rope_factor=target.rope_factor if tokens > model.max_positions else None,
    )


def last_that(holds: Callable[[int], bool], low: int, high: int) -> int:
    """The last number from `low` (taken for granted) to `high` that holds, where all above one that does not do not."""
    while low < high:
        middle = (low + high + 1) // 2
        if holds(middle):
            low = middle
        else:
            high = middle - 1
    return low
