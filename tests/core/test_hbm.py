"""The memory of one GPU before KV: the sum against every log that prints its terms, and our estimates of the terms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kv_logs import budgets, release_of
from shapes import GLM, LLAMA_8B, QWEN_72B, glm_target, gpu, h200, model

from hisparse import catalogue
from hisparse.accounting import accounting
from hisparse.hardware import NodeClass
from hisparse.hbm import (
    default_batched_tokens,
    hbm_terms,
    kv_budget,
    most_sequences,
    position_table_bytes,
    prefill_workspace_bytes,
    sampling_bytes,
)
from hisparse.model import read_config
from hisparse.plan import Plan, Shortfall, Target
from hisparse.planner import plan
from hisparse.spec import ModelFactsSpec
from hisparse.units import GIB

ROWS = {row["id"]: row for row in budgets()}
CARD_OF = {
    "llmd-gpt-oss-20b-tp1": "h100",
    "llmd-Llama-3.3-70B-FP8-tp2": "h100",
    "llmd-Qwen3-0.6B-tp1": "h100",
    "llmd-Qwen3-32B-tp2": "h100",
    "qwen3next-tp2-h200": "h200",
    "qwen2.5-0.5b": "rtx-4090",
}
VOCABULARY = {"gpt-oss-20b": 201_088, "Llama-3.3-70B-FP8": 128_256, "gemma-4-31B": 262_144}


def of(gib: float | None) -> int:
    return int(Fraction(str(gib or 0)) * GIB)


@pytest.mark.parametrize("row", [pytest.param(row, id=name) for name, row in ROWS.items()])
def test_the_terms_of_a_log_add_up_to_its_budget(row: Mapping[str, Any]) -> None:
    """Within the rounding of seven figures with two decimals, and of the share where the log rounds that as well."""
    share = Fraction(1, 200) if "util printed with two decimals" in (row["note"] or "") else Fraction(0)
    graphs = row["cudagraph_estimate_subtracted_gib"]
    left = kv_budget(
        of(row["total_gib"]),
        Fraction(str(row["gpu_memory_utilization"])),
        weights=of(row["weights_gib"]),
        activation=of(row["peak_activation_gib"]),
        non_torch=of(row["non_torch_gib"]),
        graphs=of(graphs),
        rules=accounting(release_of(row)),
    )
    assert abs(left - of(row["logged_available_gib"])) <= of(0.02) + share * of(row["total_gib"])


def test_releases_before_0_20_leave_the_graphs_out() -> None:
    row = ROWS["gemma4-31b-b300"]
    of_0_26, of_0_19 = (
        kv_budget(
            of(row["total_gib"]), Fraction(92, 100), weights=0, activation=0, non_torch=0, graphs=GIB, rules=rules
        )
        for rules in (accounting("0.26"), accounting("0.19.1"))
    )
    assert of_0_19 - of_0_26 == GIB


@pytest.mark.parametrize(
    ("name", "requests", "most_percent"),
    [
        pytest.param("llmd-gpt-oss-20b-tp1", 1024, 1, id="gpt-oss on an H100"),
        pytest.param("llmd-Llama-3.3-70B-FP8-tp2", 1024, 3, id="Llama 70B on two H100"),
        pytest.param("llmd-Qwen3-0.6B-tp1", 1024, 1, id="Qwen3 0.6B on an H100"),
        pytest.param("llmd-Qwen3-32B-tp2", 1024, 2, id="Qwen3 32B on two H100"),
        pytest.param("qwen3next-tp2-h200", 1024, 1, id="Qwen3-Next on two H200"),
        pytest.param("gemma4-31b-b300", 1024, 3, id="Gemma 4 on a B300, a later release"),
    ],
)
def test_sampling_is_the_peak_of_a_profile_run(name: str, requests: int, most_percent: int) -> None:
    """The peak that the engine found, from its default max_num_seqs and the vocabulary alone."""
    row = ROWS[name]
    vocabulary = VOCABULARY.get(row["model"], 151_936)
    said = sampling_bytes(vocabulary, requests, accounting(row["vllm_version"]))
    logged = of(row["peak_activation_gib"])
    assert abs(said - logged) * 100 <= most_percent * logged


def test_a_small_card_with_a_late_release_is_an_upper_bound() -> None:
    row = ROWS["qwen2.5-0.5b"]
    said = sampling_bytes(151_936, 256, accounting(row["vllm_version"]))
    assert of(row["peak_activation_gib"]) <= said <= of(row["peak_activation_gib"]) + GIB // 2


@pytest.mark.parametrize(("utilization", "available"), [(90, "32.06"), (92, "34.86")])
def test_glm_5_on_eight_h200(utilization: int, available: str) -> None:
    """Two logs of May 2026 that differ by 2 % of the card: the sum that plans use promises less, by less than 3 GiB."""
    target = Target(
        max_tokens=202_752,
        gpus=8,
        max_requests=1024,
        utilization_percent=utilization,
        engine_version="0.21",
        kv_dtype="Bf16",
    )
    _, left = hbm_terms(model("zai-org/GLM-5.1-FP8"), h200(), target, 8192)
    assert of(float(available)) - 3 * GIB <= left <= of(float(available))


@pytest.mark.parametrize(
    ("repo", "row", "gpus", "most_percent"),
    [
        pytest.param("openai/gpt-oss-20b", "llmd-gpt-oss-20b-tp1", 1, 3, id="gpt-oss-20b"),
        pytest.param(
            "RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic", "llmd-Llama-3.3-70B-FP8-tp2", 2, 6, id="Llama 70B FP8"
        ),
        pytest.param("Qwen/Qwen3-0.6B", "llmd-Qwen3-0.6B-tp1", 1, 1, id="Qwen3 0.6B"),
        pytest.param("Qwen/Qwen3-32B", "llmd-Qwen3-32B-tp2", 2, 6, id="Qwen3 32B"),
        pytest.param("Qwen/Qwen3-Next-80B-A3B-Instruct", "qwen3next-tp2-h200", 2, 7, id="Qwen3-Next"),
        pytest.param("Qwen/Qwen2.5-0.5B-Instruct", "qwen2.5-0.5b", 1, 5, id="Qwen2.5 0.5B, vLLM 0.27"),
    ],
)
def test_the_sum_that_plans_use_against_the_logs(repo: str, row: str, gpus: int, most_percent: int) -> None:
    """KV on each GPU from nothing but the model, the card, the release and the engine's own default of requests."""
    log = ROWS[row]
    card = next(gpu(name) for name in ("h100", "h200", "rtx-4090") if gpu(name).name in CARD_OF[row])
    card = replace(card, memory_bytes=of(log["total_gib"]))
    requests = 1024 if card.memory_bytes > 70 * GIB else 256
    target = Target(
        max_tokens=32_000,
        gpus=gpus,
        max_requests=requests,
        utilization_percent=int(100 * log["gpu_memory_utilization"]),
        engine_version=log["vllm_version"].removesuffix("-era"),
    )
    _, left = hbm_terms(model(repo), NodeClass(card, gpus, None, card.name), target, 8192 if requests > 256 else 2048)
    logged = of(log["logged_available_gib"])
    assert abs(left - logged) * 100 <= most_percent * logged
    # what falls short of the log is held back, what exceeds it is promised: the second has to be small
    assert left <= logged * 101 // 100


def test_position_tables_take_two_gib_per_million_tokens() -> None:
    assert position_table_bytes(GLM, 1_048_576) == 2 * GIB


def test_the_prefill_workspace_is_a_term_of_its_own() -> None:
    got = plan(GLM, h200(), glm_target())
    assert isinstance(got, Plan)
    term = next(term for term in got.hbm if term.name == "prefill workspace")
    assert f"{term.bytes / GIB:.1f}" == "4.2"
    assert sum(term.bytes for term in got.hbm) == got.node.gpu.memory_bytes


def test_an_engine_that_would_die_on_its_first_long_prompt_is_foreseen() -> None:
    """It starts: the workspace is outside the budget. The plan says so before the first prompt does."""
    got = plan(GLM, h200(), glm_target(utilization_percent=97, max_batched_tokens=16_384))
    assert isinstance(got, Plan)
    assert prefill_workspace_bytes(GLM, 16_384) > got.node.gpu.memory_bytes * 3 // 100
    assert any("die on the first long prompt" in warning for warning in got.warnings)
    assert not any("die on" in warning for warning in plan(GLM, h200(), glm_target()).warnings)  # type: ignore[union-attr]


def test_a_dense_model_has_no_workspace() -> None:
    assert prefill_workspace_bytes(LLAMA_8B, 8192) == 0


@pytest.mark.parametrize(("card", "tokens"), [("h200", 8192), ("a100-80", 8192), ("l40s", 2048), ("l4", 2048)])
def test_small_cards_prefill_in_smaller_chunks(card: str, tokens: int) -> None:
    assert default_batched_tokens(gpu(card)) == tokens


def test_a_budget_from_a_log_takes_the_place_of_the_estimates() -> None:
    got = plan(GLM, h200(), glm_target(kv_bytes=of(30.5)))
    assert isinstance(got, Plan)
    assert got.kv_budget == of(30.5)
    assert sum(term.bytes for term in got.hbm) == got.node.gpu.memory_bytes


CARDS = [h200(), NodeClass(gpu("a100-80"), 8, None, "A100"), NodeClass(gpu("rtx-4090"), 8, None, "RTX 4090")]
TARGETS = st.builds(
    Target,
    max_tokens=st.integers(1, 32_768),
    gpus=st.sampled_from([1, 2, 4, 8]),
    utilization_percent=st.integers(50, 97),
    max_batched_tokens=st.sampled_from([512, 2048, 8192, 32_768]),
)


@given(facts=st.sampled_from([GLM, LLAMA_8B, QWEN_72B]), node=st.sampled_from(CARDS), target=TARGETS)
def test_the_terms_and_the_budget_are_the_card(facts: Any, node: NodeClass, target: Target) -> None:
    terms, left = hbm_terms(facts, node, target, target.max_batched_tokens or 8192)
    assert sum(term.bytes for term in terms) + left == node.gpu.memory_bytes
    assert all(term.bytes >= 0 for term in terms)


@given(target=TARGETS, more=st.integers(1, 24 * GIB))
def test_a_larger_card_never_holds_less(target: Target, more: int) -> None:
    small = NodeClass(gpu("l40s"), 8, None, "L40S")
    large = replace(small, gpu=replace(small.gpu, memory_bytes=small.gpu.memory_bytes + more))
    target = replace(target, gpus=1, max_batched_tokens=2048)
    first, second = plan(LLAMA_8B, small, target), plan(LLAMA_8B, large, target)
    if isinstance(first, Plan):
        assert isinstance(second, Plan)
        assert second.at_max.plain >= first.at_max.plain
    else:
        assert isinstance(first, Shortfall)


def test_the_profile_run_samples_as_many_requests_as_are_asked_for() -> None:
    """--max-num-seqs above 256 is passed on, so its sampling has to be in the sum."""
    few, many = (
        next(
            term.bytes
            for term in hbm_terms(
                model("openai/gpt-oss-20b"), h200(), Target(max_tokens=8192, gpus=1, max_requests=n), 8192
            )[0]
            if term.name == "peak activation"
        )
        for n in (16, 1024)
    )
    assert f"{many / GIB:.2f}" == "3.07"
    assert few < many


def test_data_parallel_ranks_sample_their_share() -> None:
    target = Target(max_tokens=8192, gpus=8, data=8, tensor=1, max_requests=1024)
    assert most_sequences(target) == 128


@pytest.mark.parametrize(
    ("repo", "logged"),
    [
        pytest.param("openai/gpt-oss-120b", 65.9651, id="gpt-oss-120b with Marlin kernels (vllm#23278)"),
        pytest.param("openai/gpt-oss-20b", 13.47, id="gpt-oss-20b"),
    ],
)
def test_experts_in_mxfp4_are_padded_once(repo: str, logged: float) -> None:
    facts = model(repo)
    weights = next(t for t in hbm_terms(facts, h200(), Target(max_tokens=8192, gpus=1), 8192)[0] if t.name == "weights")
    assert weights.bytes == pytest.approx(of(logged), rel=0.016)


@given(size=st.integers(10, 60), more=st.integers(0, 1000))
def test_a_larger_size_of_weights_never_holds_less(size: int, more: int) -> None:
    """As given on the command line, also where a tied matrix could explain the difference."""
    config = next(one for one in catalogue.ENTRIES if one.repo == "google/gemma-3-4b-it").config
    first, second = (
        read_config(config, name="x", facts=ModelFactsSpec(weights=f"{mib}Mi"))
        for mib in (size * 100, size * 100 + more)
    )
    held = [
        next(t.bytes for t in hbm_terms(facts, h200(), Target(max_tokens=8192, gpus=2), 8192)[0] if t.name == "weights")
        for facts in (first, second)
    ]
    assert held[0] <= held[1]
