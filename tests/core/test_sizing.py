"""The reverse questions, held against the planner that they search."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shapes import GLM, LLAMA_8B, LLAMA_70B, MILLION, glm_target, gpu, h200, model

from hisparse.acceptance import accept
from hisparse.hardware import GPUS, NodeClass
from hisparse.lengths import at_length
from hisparse.model import ModelFacts
from hisparse.plan import Mode, Plan, Shortfall, Target
from hisparse.planner import plan
from hisparse.rope import RopeState
from hisparse.sizing import (
    MOST_TOKENS,
    LongestContext,
    Way,
    allowed_counts,
    fewest_gpus,
    longest_context,
    longest_tokens,
    on_gpus,
    positions_of,
)
from hisparse.units import GIB

FLASH = model("zai-org/GLM-5.3-Flash")
GPT_OSS = model("openai/gpt-oss-20b")
GEMMA = model("google/gemma-3-27b-it")


def node(name: str, gpus: int = 8, memory: int | None = None) -> NodeClass:
    kind = gpu(name)
    return NodeClass(kind, gpus, memory, kind.products[0])


def held(model_: ModelFacts, node_: NodeClass, target: Target, way: Way, tokens: int) -> int:
    """Whole requests at once by the planner itself, 0 where it does not fit."""
    wish = replace(at_length(model_, target, tokens), mode=way.mode.value, kv_dtype=way.kv_dtype)
    answer = plan(model_, node_, wish)
    return target.data * int(answer.at_max.tier / target.data) if isinstance(answer, Plan) else 0


def assert_exact(found: LongestContext) -> None:
    for way in found.ways:
        fits = held(found.model, found.node, found.target, way, way.tokens) if way.tokens else found.requests
        assert fits >= found.requests
        assert (way.beyond == "") == (way.tokens == found.positions)
        if way.tokens < found.positions:
            assert held(found.model, found.node, found.target, way, way.tokens + 1) < found.requests


Question = tuple[tuple[ModelFacts, str, int], str, str, int, int | None, Target]

HOST_MEMORY = st.builds(
    lambda own, pool, requests, at, sharing: Target(
        max_tokens=1,
        gpus=1,
        memory_bytes=own,
        host_pool_bytes=pool if requests is None else None,
        pool_requests=requests,
        pool_tokens=at if requests is not None else None,
        sharing=sharing,
    ),
    own=st.none() | st.integers(12 * GIB, 400 * GIB),
    pool=st.none() | st.integers(GIB, 200 * GIB),
    requests=st.none() | st.integers(1, 4),
    at=st.integers(1, MILLION),
    sharing=st.sampled_from(["Auto", "Private"]),
)
"""Targets that differ in what sizes a host pool."""

QUESTIONS = st.tuples(
    st.sampled_from(
        [
            (GLM, "h200", 8),
            (GLM, "b200", 8),
            (FLASH, "h200", 4),
            (LLAMA_70B, "h200", 2),
            (LLAMA_70B, "h100", 4),
            (LLAMA_8B, "rtx-4090", 1),
            (GPT_OSS, "l4", 1),
            (GEMMA, "a100-80", 2),
        ]
    ),
    st.sampled_from(["Auto", "Bf16", "Fp8"]),
    st.sampled_from(["Auto", "None", "Offload", "HiSparse"]),
    st.sampled_from([1, 2, 3, 7, 40]),
    st.sampled_from([None, 256 * GIB, 2048 * GIB]),
    HOST_MEMORY,
)


def asked(question: Question) -> LongestContext | None:
    """The answer, None where the question itself does not hold: HiSparse for a dense model."""
    (model_, kind, gpus), dtype, mode, requests, memory, host = question
    target = replace(host, gpus=gpus, kv_dtype=dtype, mode=mode)
    own = target.memory_bytes
    there = node(kind, memory=memory if memory is None or own is None else max(memory, own))
    if any(one.field == "spec.kvTier.mode" for one in accept(model_, target)):
        return None
    return longest_context(model_, there, target, requests=requests)


class TestTheLongestContext:
    @settings(max_examples=40, deadline=None)
    @given(QUESTIONS)
    def test_fits_and_one_token_more_does_not(self, question: Question) -> None:
        found = asked(question)
        if found is None:
            return
        assert_exact(found)
        if found.plan is not None:
            assert found.tokens == max(way.tokens for way in found.ways)
            assert isinstance(plan(found.model, found.node, found.plan.target), Plan)

    @settings(max_examples=60, deadline=None)
    @given(QUESTIONS, st.integers(0, MILLION))
    def test_what_fits_fits_at_every_shorter_length(self, question: Question, less: int) -> None:
        found = asked(question)
        for way in found.ways if found else ():
            if found and way.tokens:
                for tokens in (1 + less % way.tokens, max(1, way.tokens - less % 4096)):
                    assert held(found.model, found.node, found.target, way, tokens) >= found.requests

    @settings(max_examples=150, deadline=None)
    @given(HOST_MEMORY, st.integers(1, MILLION), st.integers(1, 70_000), st.sampled_from([300, 500, 900, None]))
    def test_longer_requests_are_never_more(self, host: Target, tokens: int, more: int, memory: int | None) -> None:
        """The rule that every search here stands on, for HiSparse and whatever sizes its pool."""
        target = replace(host, gpus=8, mode="HiSparse")
        there = node("h200", memory=memory * GIB if memory else None)
        way = Way(Mode.HISPARSE, "Fp8", tokens, None, "")
        longer = held(GLM, there, target, way, min(tokens + more, MILLION))
        assert held(GLM, there, target, way, tokens) >= longer

    def test_own_memory_below_the_usual_overhead_is_no_jump(self) -> None:
        """62Gi on 8 GPUs leave 14 GiB beside the usual overhead: a pool that grew with the length held more of it."""
        target = glm_target(mode="HiSparse", memory_bytes=62 * GIB)
        found = longest_context(GLM, h200(), target, requests=2)
        (way,) = found.ways
        assert 0 < found.tokens < 320_000
        for tokens in range(found.tokens + 1, MILLION, 32_768):
            assert held(GLM, h200(), target, way, tokens) < 2

    @pytest.mark.parametrize(
        "changes",
        [
            pytest.param({"memory_bytes": 48 * GIB}, id="the least pool of an own memory"),
            pytest.param({"pool_requests": 1, "pool_tokens": MILLION}, id="a pool for requests"),
        ],
    )
    def test_a_pool_just_above_a_whole_gib_holds_no_more_than_one_below(self, changes: dict[str, int]) -> None:
        """One request of 20,000 tokens takes 0.97 GiB and one of 20,900 1.01: rounded up, that would hold two."""
        target, way = glm_target(**changes), Way(Mode.HISPARSE, "Fp8", 1, None, "")
        assert held(GLM, h200(), target, way, 20_000) >= held(GLM, h200(), target, way, 20_900) == 1

    @pytest.mark.parametrize("ranks", [1, 2])
    def test_every_data_parallel_rank_holds_whole_requests(self, ranks: int) -> None:
        """5 requests take 3 on one of two ranks, as 6 do."""
        target = Target(1, gpus=8, tensor=8 // ranks, data=ranks, kv_dtype="Fp8")
        five, six = (longest_tokens(LLAMA_70B, h200(), target, requests=many) for many in (50, 51))
        even = longest_tokens(LLAMA_70B, h200(), target, requests=52)
        assert (six == even) == (ranks == 2)
        assert five > six

    def test_ends_within_a_block_where_blocks_end(self) -> None:
        found = longest_context(LLAMA_8B, node("rtx-4090"), Target(1, gpus=1, kv_dtype="Fp8"))
        assert found.plan is not None
        layout = found.plan.plain
        assert found.tokens % layout.block_tokens == 0
        assert layout.longest(found.plan.kv_budget, found.positions) == found.tokens
        assert not layout.holds(found.plan.kv_budget, found.tokens + layout.block_tokens)

    def test_auto_tries_what_auto_may_use_and_says_which(self) -> None:
        found = longest_context(LLAMA_8B, node("rtx-4090"), Target(1, gpus=1))
        assert [(way.kv_dtype, way.mode) for way in found.ways] == [("Fp8", Mode.NONE), ("Bf16", Mode.NONE)]
        assert found.ways[0].tokens > found.ways[1].tokens * 19 // 10
        assert found.plan is not None
        assert found.plan.kv_dtype == "Fp8"
        assert any("Fp8" in warning for warning in found.plan.warnings)

    def test_of_equal_ways_the_one_that_loses_less_is_first(self) -> None:
        found = longest_context(LLAMA_70B, h200(), Target(1, gpus=4))
        assert [way.kv_dtype for way in found.ways] == ["Bf16", "Fp8"]
        assert found.plan is not None
        assert found.plan.kv_dtype == "Bf16"

    def test_the_tier_goes_further_than_plain_kv(self) -> None:
        found = longest_context(GLM, h200(), glm_target())
        assert [way.mode for way in found.ways] == [Mode.HISPARSE, Mode.NONE]
        assert found.ways[0].tokens == MILLION > found.ways[1].tokens

    def test_more_requests_shorten_it(self) -> None:
        lengths = [longest_tokens(GLM, h200(), glm_target(), requests=many) for many in (1, 20, 60, 100)]
        assert lengths == sorted(lengths, reverse=True)
        assert lengths[-1] < lengths[0]

    def test_a_host_pool_that_was_asked_for_ends_it(self) -> None:
        target = glm_target(mode="HiSparse", host_pool_bytes=30 * GIB)
        found = longest_context(GLM, h200(), target)
        (way,) = found.ways
        assert 0 < found.tokens < MILLION
        assert not accept(GLM, at_length(GLM, target, found.tokens))
        assert isinstance(plan(GLM, h200(), at_length(GLM, target, found.tokens + 1)), Shortfall)
        assert "30Gi is below" in way.beyond

    def test_a_number_alone_is_the_same_number(self) -> None:
        target = Target(1, gpus=1)
        assert (
            longest_tokens(LLAMA_8B, node("rtx-4090"), target)
            == longest_context(LLAMA_8B, node("rtx-4090"), target).tokens
        )

    def test_weights_that_are_too_large_leave_nothing(self) -> None:
        found = longest_context(LLAMA_70B, node("rtx-4090"), Target(1, gpus=1))
        assert (found.tokens, found.plan, found.ways) == (0, None, ())
        assert found.shortfall is not None
        assert "weights take" in found.shortfall.limit.message
        assert longest_tokens(LLAMA_70B, node("rtx-4090"), Target(1, gpus=1)) == 0

    def test_more_requests_than_one_token_each_can_have(self) -> None:
        found = longest_context(LLAMA_8B, node("rtx-4090"), Target(1, gpus=1), requests=10_000_000)
        assert (found.tokens, found.plan, found.shortfall) == (0, None, None)
        assert "are wanted" in found.ways[0].beyond

    def test_a_length_that_was_asked_does_not_matter(self) -> None:
        short, long = (replace(glm_target(), max_tokens=tokens) for tokens in (1, MILLION))
        assert longest_context(GLM, h200(), short).tokens == longest_context(GLM, h200(), long).tokens


class TestPositions:
    def test_bind_before_the_memory(self) -> None:
        found = longest_context(LLAMA_70B, h200(), Target(1, gpus=4))
        assert (found.tokens, found.positions) == (131_072, 131_072)
        assert found.positions_bind
        assert found.memory_tokens > 2_000_000

    def test_what_scaling_would_give_is_what_it_gives(self) -> None:
        found = longest_context(LLAMA_70B, h200(), Target(1, gpus=4))
        assert [step.factor for step in found.rope_steps][:3] == [2, 4, 8]
        assert found.rope_steps[-1].tokens == found.memory_tokens
        for step in found.rope_steps:
            target = Target(1, gpus=4, rope_factor=Fraction(step.factor), rope_original_tokens=131_072)
            assert longest_context(LLAMA_70B, h200(), target).tokens == step.tokens

    def test_a_model_that_cannot_be_scaled_says_so(self) -> None:
        found = longest_context(FLASH, h200(), Target(1, gpus=4))
        assert found.rope is not None
        assert found.rope.state is RopeState.CANNOT_SCALE
        assert found.rope_steps == ()

    def test_do_not_bind_where_the_memory_ends_first(self) -> None:
        found = longest_context(LLAMA_8B, node("rtx-4090"), Target(1, gpus=1))
        assert not found.positions_bind
        assert found.rope is None

    def test_no_scaling_is_asked_for_below_the_positions(self) -> None:
        target = Target(1, gpus=1, rope_factor=Fraction(2), rope_original_tokens=131_072)
        found = longest_context(LLAMA_8B, node("rtx-4090"), target)
        assert found.plan is not None
        assert found.tokens < found.model.max_positions
        assert found.plan.target.rope_factor is None
        assert not accept(LLAMA_8B, found.plan.target)

    def test_never_exceed_what_a_spec_takes(self) -> None:
        target = Target(1, gpus=1, rope_factor=Fraction(1000), rope_original_tokens=131_072)
        assert positions_of(LLAMA_8B, target) == MOST_TOKENS


class TestTheFewestGpus:
    @pytest.mark.parametrize(
        ("model_", "tokens"), [(LLAMA_8B, 131_072), (LLAMA_70B, 131_072), (FLASH, 500_000), (GLM, MILLION)]
    )
    def test_are_enough_and_fewer_are_not(self, model_: ModelFacts, tokens: int) -> None:
        target = Target(max_tokens=tokens, gpus=1)
        for fleet in fewest_gpus(model_, [node(one.name) for one in GPUS], target):
            counts, _ = allowed_counts(model_, fleet.node, target)
            fewer = [count for count in counts if fleet.plan is None or count < fleet.gpus]
            for count in fewer:
                assert isinstance(plan(model_, fleet.node, on_gpus(target, count)), Shortfall)
            if fleet.plan is not None:
                assert isinstance(plan(model_, fleet.node, on_gpus(target, fleet.gpus)), Plan)
            assert (fleet.reason == "") == (fleet.plan is not None)

    def test_come_first_and_then_the_least_memory(self) -> None:
        found = [
            one for one in fewest_gpus(LLAMA_70B, [node(one.name) for one in GPUS], Target(131_072, gpus=1)) if one.plan
        ]
        order = [(one.gpus, round(Fraction(one.memory_bytes, GIB))) for one in found]
        assert order == sorted(order)
        assert len(found) > 5

    def test_names_what_a_kind_lacks(self) -> None:
        found = {one.gpu.name: one for one in fewest_gpus(GLM, [node("a100-80"), node("h100")], glm_target())}
        assert "compute capability" in found["a100-80"].reason
        assert found["h100"].reason.startswith("8 are too few: nothing of a 79.18 GiB GPU is left for KV")

    def test_heads_decide_which_numbers_are_tried(self) -> None:
        heads = replace(LLAMA_8B, attention_heads=12)
        assert allowed_counts(heads, node("h200"), Target(8192, gpus=1))[0] == (1, 2, 4)

    def test_no_number_that_the_heads_allow(self) -> None:
        # HiSparse has no use for a dense model, on any number of GPUs
        (found,) = fewest_gpus(LLAMA_8B, [node("h200")], Target(8192, gpus=1, mode="HiSparse"))
        assert found.plan is None
        assert "HiSparse needs a DSA model" in found.reason

    def test_requests_at_once_take_more(self) -> None:
        one, many = (
            fewest_gpus(LLAMA_70B, [node("h200")], Target(131_072, gpus=1), requests=wanted)[0] for wanted in (1, 8)
        )
        assert one.gpus < many.gpus
        assert many.plan is not None
        assert many.plan.at_max.tier >= 8

    def test_says_how_many_would_run_where_they_are_too_few(self) -> None:
        (found,) = fewest_gpus(LLAMA_70B, [node("h200")], Target(131_072, gpus=1), requests=500)
        assert found.plan is None
        assert "500 are wanted" in found.reason

    def test_a_small_node_ends_the_search(self) -> None:
        (found,) = fewest_gpus(LLAMA_70B, [node("h200", gpus=1)], Target(131_072, gpus=1))
        assert found.plan is None
        assert found.reason.startswith("1 are too few")


@pytest.mark.parametrize(("gpu_name", "tokens", "requests"), [("h200", 262_144, 9), ("b200", MILLION, 20)])
def test_many_long_requests_get_the_tier_that_auto_would_not_take(gpu_name: str, tokens: int, requests: int) -> None:
    target = Target(tokens, gpus=8, max_requests=requests)
    (fleet,) = fewest_gpus(GLM, [node(gpu_name)], target, requests=requests)
    assert fleet.plan is not None, fleet.reason
    assert fleet.plan.mode is Mode.HISPARSE
    found = longest_context(GLM, node(gpu_name), fleet.plan.target, requests=requests)
    assert found.tokens >= tokens
