"""The same wish at another length, and the search for the last one that will do."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st
from shapes import LLAMA_8B

from hisparse.lengths import at_length, last_that
from hisparse.plan import Target


@given(low=st.integers(0, 50), more=st.integers(0, 50), last=st.integers(0, 120))
def test_the_last_that_holds(low: int, more: int, last: int) -> None:
    found = last_that(lambda number: number <= last, low, low + more)
    assert found == max([low, *(number for number in range(low, low + more + 1) if number <= last)])


def test_what_cannot_be_longer_is_cut() -> None:
    target = Target(100_000, gpus=1, typical_tokens=90_000, pool_requests=2, pool_tokens=80_000)
    assert at_length(LLAMA_8B, target, 1_000) == replace(
        target, max_tokens=1_000, typical_tokens=1_000, pool_tokens=1_000
    )
    assert at_length(LLAMA_8B, target, 85_000) == replace(target, max_tokens=85_000, typical_tokens=85_000)


def test_scaling_is_for_lengths_beyond_the_positions() -> None:
    target = Target(200_000, gpus=1, rope_factor=Fraction(2))
    kept, dropped = (at_length(LLAMA_8B, target, LLAMA_8B.max_positions + more) for more in (1, 0))
    assert (kept.rope_factor, dropped.rope_factor) == (Fraction(2), None)
