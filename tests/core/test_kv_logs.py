"""The planner against what real vLLM printed: every public start-up log of tests/data/kv-logs.

A new file beside cases.json is picked up without code. docs/kv-logs.md lists the exceptions with their causes.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from kv_logs import BLIND, EXCEPTIONS, Check, cases, predict

from hisparse.errors import SpecError
from hisparse.grouping import Reach
from hisparse.units import GIB

ONE_PERCENT = Fraction(1, 100)

CASES = {case["id"]: case for case in cases()}


def judged() -> list[Any]:
    return [pytest.param(case, id=name) for name, case in CASES.items() if name not in EXCEPTIONS]


def errors(*, without_chosen: bool) -> list[Fraction]:
    """Errors of every number of every judged case, as printed; without the cases whose assumptions chose a value."""
    chosen = {
        name
        for name, case in CASES.items()
        if any("chosen to fit" in one or "derived from the logged" in one for one in case["assumptions"])
    }
    kept = [case for name, case in CASES.items() if name not in EXCEPTIONS and not (without_chosen and name in chosen)]
    return [check.raw_error for case in kept for check in predict(case).checks()]


@pytest.mark.parametrize("case", judged())
def test_every_number_of_the_log_within_one_percent(case: Mapping[str, Any]) -> None:
    checks = list(predict(case).checks())
    assert checks, "the log prints no number that the planner can say"
    assert [_told(one) for one in checks if one.error > ONE_PERCENT] == []


@pytest.mark.parametrize("case", [one for one in judged() if one.values[0]["flag"] is None])
def test_every_number_inside_the_rounding_of_the_log(case: Mapping[str, Any]) -> None:
    assert [_told(one) for one in predict(case).checks() if one.error] == []


@pytest.mark.parametrize("without_chosen", [False, True], ids=["all cases", "without values that were chosen to fit"])
def test_the_median_error_is_at_most_half_a_percent(without_chosen: bool) -> None:
    found = errors(without_chosen=without_chosen)
    assert len(found) >= 70
    assert statistics.median(found) <= Fraction(1, 200)


def _told(check: Check) -> str:
    return f"{check.name}: logged {float(check.logged):g}, planned {float(check.said):g}"


# --- the exceptions, each with its cause -----------------------------------------------------------------------------


def test_a_check_over_all_pipeline_ranks_is_not_copied() -> None:
    """One rank with all 48 layers gives the log's numbers; ours are those of the rank with 32 of them."""
    case = CASES["qwen3-coder-30b-pp2"]
    whole = predict({**case, "pp": 1, "note": ""})
    assert [one.error for one in whole.checks()] == [0, 0]
    assert predict(case).request_bytes(262_144) == 16 * GIB


@pytest.mark.parametrize("pair", [("olmo3-7b-6144", "olmo3-7b-34048")])
def test_two_concurrencies_of_one_pool_have_the_logged_ratio(pair: tuple[str, str]) -> None:
    """What the pool's size does not decide is met: the ratio of both lines; the GiB line is of another run.

    The logs do not say how many tokens a batch has; 2048 is fitted.
    """
    short, long = (predict({**CASES[name], "max_num_batched_tokens": 2048}) for name in pair)
    ratio = Fraction(long.layout.request_blocks(34_048), short.layout.request_blocks(6_144))
    logged = Fraction("23.73") / Fraction("11.12")
    assert abs(ratio - logged) < Fraction(1, 500)
    for one in (short, long):
        printed = next(check for check in one.checks() if check.name == "concurrency")
        assert printed.error > ONE_PERCENT


@pytest.mark.parametrize(
    ("name", "architecture"),
    [
        ("dsv4flash-gh200-need", "DeepseekV4ForCausalLM"),
        ("dsv4flash-gb10", "DeepseekV4ForCausalLM"),
        ("whisper-large-v3", "WhisperForConditionalGeneration"),
    ],
)
def test_a_layout_that_is_not_modelled_is_refused(name: str, architecture: str) -> None:
    with pytest.raises(SpecError, match=architecture):
        predict(CASES[name])


def test_both_lines_of_another_gpu_belong_together() -> None:
    """Two unlike cards: the printed tokens and concurrency are those of one pool of 222 blocks, not of the GiB line."""
    layout = predict(CASES["nemotron3-nano30-nvfp4-tp2"]).layout
    assert layout.logged_tokens(222, 29_768) == 183_744
    printed = CASES["nemotron3-nano30-nvfp4-tp2"]
    assert round(float(layout.concurrency(222, printed["max_model_len"])), 2) == printed["log"]["concurrency"]


@pytest.mark.parametrize("name", ["qwen35-4b-xpu-5k", "qwen35-4b-xpu-1k"])
def test_blocks_of_64_are_what_an_intel_gpu_adds(name: str) -> None:
    """576 in place of 528 tokens gives the printed concurrency."""
    case = CASES[name]
    layout = predict(case).layout
    full = next(group for group in layout.groups if group.reach is Reach.FULL)
    assert full.block_tokens == 528
    others = sum(group.states for group in layout.groups)
    blocks = layout.blocks_in(int(Fraction(str(case["log"]["avail_gib"])) * GIB)) * 528 // 576
    concurrency = Fraction(blocks, others + -(-case["max_model_len"] // 576))
    assert abs(concurrency - Fraction(str(case["log"]["concurrency"]))) < Fraction(1, 50)


def test_the_blind_cases_are_met_as_the_others_are() -> None:
    """Written down before the planner was asked: 151 numbers, all but those of the exceptions inside the rounding."""
    found = [check for case in cases(BLIND) if case["id"] not in EXCEPTIONS for check in predict(case).checks()]
    assert len(found) >= 140
    assert [_told(one) for one in found if one.error] == []


def test_the_exceptions_are_cases() -> None:
    assert set(EXCEPTIONS) <= set(CASES)


# --- the checks themselves can fail ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "case", [CASES["llama31-8b-eagle-h100"], CASES["gemma3-27b-mi300x"], CASES["qwen38-27b-5090-fp8"]]
)
def test_a_pool_that_is_five_percent_smaller_is_told_apart(case: dict[str, Any]) -> None:
    smaller = {**case, "log": {**case["log"], "avail_gib": round(case["log"]["avail_gib"] * 0.95, 2)}}
    assert any(one.error > ONE_PERCENT for one in predict(smaller).checks())


def test_a_block_more_or_less_is_told_apart() -> None:
    prediction = predict(CASES["qwen36-27b-mtp1-3090"])
    shifted = replace(prediction.layout, block_bytes=prediction.layout.block_bytes * 101 // 100)
    assert any(one.error for one in replace(prediction, layout=shifted).checks())
