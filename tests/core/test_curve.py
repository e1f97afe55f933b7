"""The curve has the plan's own numbers, at more lengths."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shapes import GLM, LLAMA_70B, MILLION, glm_target, h200

from hisparse.curve import SHORTEST, curve, lengths
from hisparse.plan import Plan, Target
from hisparse.planner import plan


@pytest.mark.parametrize(
    ("most", "found"),
    [
        (1, (1,)),
        (8_192, (8_192,)),
        (8_193, (8_192, 8_193)),
        (32_768, (8_192, 12_288, 16_384, 24_576, 32_768)),
        (40_000, (8_192, 12_288, 16_384, 24_576, 32_768, 40_000)),
    ],
)
def test_lengths(most: int, found: tuple[int, ...]) -> None:
    assert lengths(most) == found


@given(st.integers(1, 16_777_216))
def test_lengths_rise_to_the_last(most: int) -> None:
    found = lengths(most)
    assert found[-1] == most
    assert list(found) == sorted(set(found))
    assert found[0] == min(most, SHORTEST)


def test_the_points_of_a_plan_are_on_its_curve() -> None:
    answer = plan(GLM, h200(), glm_target())
    assert isinstance(answer, Plan)
    points = curve(answer, [row.tokens for row in answer.curve])
    for point, row in zip(points, answer.curve, strict=True):
        assert (point.tokens, point.plain, point.tier, point.ratio) == (row.tokens, row.plain, row.tier, row.gain)


def test_the_ratio_is_none_where_plain_kv_holds_not_one() -> None:
    answer = plan(GLM, h200(), glm_target())
    assert isinstance(answer, Plan)
    points = {point.tokens: point for point in curve(answer)}
    assert points[MILLION].plain < 1
    assert points[MILLION].ratio is None
    assert points[SHORTEST].ratio is not None


def test_without_a_tier_there_is_no_ratio() -> None:
    answer = plan(LLAMA_70B, h200(), Target(131_072, gpus=4))
    assert isinstance(answer, Plan)
    assert all(point.ratio is None and point.plain == point.tier for point in curve(answer))


def test_longer_requests_are_fewer() -> None:
    answer = plan(GLM, h200(), glm_target())
    assert isinstance(answer, Plan)
    held = [point.tier for point in curve(answer)]
    assert held == sorted(held, reverse=True)
