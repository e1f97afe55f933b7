"""Every printed formula comes out at the planner's own figure, and the figures hang together."""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction

import pytest
from formulas import evaluated
from hypothesis import given, settings
from hypothesis import strategies as st
from shapes import GLM, LLAMA_8B, LLAMA_70B, MILLION, glm_target, gpu, h200, model

from hisparse import catalogue
from hisparse.acceptance import accept
from hisparse.explanation import BLOCKS, BYTES, REQUESTS, Section, Step, explain
from hisparse.hardware import GPUS, NodeClass
from hisparse.layers import Cache, FullAttention, SlidingWindow
from hisparse.lengths import at_length
from hisparse.model import ModelFacts
from hisparse.plan import Mode, Plan, Shortfall, Target
from hisparse.planner import plan
from hisparse.rounding import number_text
from hisparse.rows import KV_DTYPES
from hisparse.units import GIB

FLASH = model("zai-org/GLM-5.3-Flash")
GPT_OSS = model("openai/gpt-oss-20b")
GIVEN = {
    "memory",
    "CUDA context and NCCL",
    "CUDA graphs",
    "hot groups",
    "offload region",
}
"""Steps that no rule reckons from others; beside the weights of a known checkpoint, every other one has a formula."""


def answered(model_: ModelFacts, target: Target, kind: str = "h200", memory: int | None = None) -> Plan | Shortfall:
    return plan(model_, NodeClass(gpu(kind), 8, memory, gpu(kind).products[0]), target)


def with_layers(*caches: Cache) -> ModelFacts:
    return replace(LLAMA_8B, caches=tuple((cache,) for cache in caches))


def steps(sections: tuple[Section, ...]) -> list[Step]:
    return [step for section in sections for step in section.steps]


def named(sections: tuple[Section, ...], name: str) -> Step:
    return next(step for step in steps(sections) if step.name == name)


CASES = [
    pytest.param(GLM, glm_target(), "h200", id="GLM-5.3 with the tier"),
    pytest.param(GLM, glm_target(sharing="Private"), "h200", id="a private pool"),
    pytest.param(GLM, glm_target(mode="None", max_tokens=131_072), "h200", id="GLM-5.3 in plain KV"),
    pytest.param(GLM, glm_target(kv_dtype="Bf16"), "b200", id="another GPU and dtype"),
    pytest.param(GLM, glm_target(draft_tokens=3), "h200", id="drafting"),
    pytest.param(GLM, glm_target(gpus=4), "h200", id="weights that are too large"),
    pytest.param(FLASH, glm_target(gpus=4), "h200", id="a hybrid with states"),
    pytest.param(LLAMA_70B, Target(131_072, gpus=4), "h100", id="a dense model"),
    pytest.param(LLAMA_70B, Target(131_072, gpus=8, pipeline=2, tensor=4), "h100", id="a pipeline"),
    pytest.param(LLAMA_70B, Target(131_072, gpus=8, data=2, tensor=4), "h200", id="data parallel"),
    pytest.param(LLAMA_70B, Target(131_072, gpus=4, mode="Offload"), "h200", id="offload"),
    pytest.param(LLAMA_8B, Target(131_072, gpus=1), "rtx-4090", id="a request that is too long"),
    pytest.param(GPT_OSS, Target(131_072, gpus=1), "rtx-4090", id="windows"),
    *[pytest.param(LLAMA_70B, Target(131_072, gpus=4, kv_dtype=dtype), "h200", id=dtype) for dtype in KV_DTYPES],
]


@pytest.mark.parametrize(("model_", "target", "kind"), CASES)
def test_every_formula_comes_out_at_its_value(model_: ModelFacts, target: Target, kind: str) -> None:
    sections = explain(answered(model_, target, kind))
    for step in steps(sections):
        if step.figure is not None:
            assert evaluated(step.figure.text) == step.value, step


@pytest.mark.parametrize(("model_", "target", "kind"), CASES)
def test_every_step_has_a_formula_and_a_source(model_: ModelFacts, target: Target, kind: str) -> None:
    answer = answered(model_, target, kind)
    sections = explain(answer)
    assert sections
    without = {step.name for step in steps(sections) if step.figure is None and "blocks of a request" not in step.name}
    alone = isinstance(answer, Plan) and sum(term.bytes > 0 for term in answer.host_terms) == 1
    counted = {"weights"} if model_.checkpoint is not None else set()
    shm = {"of it /dev/shm at most"} if isinstance(answer, Plan) and answer.host.shm == 8 * GIB else set()
    assert without - GIVEN == counted | shm | ({"pod memory"} if alone else set())
    assert all(step.source for step in steps(sections))
    assert {step.unit for step in steps(sections)} <= {BYTES, BLOCKS, REQUESTS, "groups"}


@pytest.mark.parametrize(("model_", "target", "kind"), CASES)
def test_no_formula_is_its_own_value(model_: ModelFacts, target: Target, kind: str) -> None:
    for step in steps(explain(answered(model_, target, kind))):
        assert step.figure is None or step.figure.text != number_text(step.value), step


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(catalogue.ENTRIES),
    st.sampled_from(GPUS),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from(sorted(KV_DTYPES)),
    st.integers(1, 2 * MILLION),
)
def test_no_model_has_a_formula_that_is_wrong(
    entry: catalogue.Entry, kind: object, gpus: int, dtype: str, tokens: int
) -> None:
    model_ = model(entry.repo)
    target = at_length(model_, Target(1, gpus=gpus, kv_dtype=dtype), min(tokens, model_.max_positions))
    if accept(model_, target):
        return
    answer = plan(model_, NodeClass(kind, 8, None, "any"), target)  # type: ignore[arg-type]
    for step in steps(explain(answer)):
        if step.figure is not None:
            assert evaluated(step.figure.text) == step.value, step


# --- factors ---------------------------------------------------------------------------------------------------------

WINDOWED = [pytest.param(GPT_OSS, Target(131_072, gpus=1, max_batched_tokens=2_048), id="a window")]
RESIDENT = [
    pytest.param(GLM, glm_target(), id="the tier"),
    pytest.param(GLM, glm_target(draft_tokens=3), id="drafting"),
]


@pytest.mark.parametrize(("model_", "target"), [*WINDOWED, *RESIDENT])
def test_batches_in_flight_are_a_product_with_its_reason(model_: ModelFacts, target: Target) -> None:
    answer = answered(model_, target)
    assert isinstance(answer, Plan)
    flight = f"2 x {answer.max_batched_tokens:,}"
    them = [one for one in steps(explain(answer)) if one.figure is not None and "min(" in one.figure.text]
    told = [one for one in them if flight in str(one.figure)]
    assert told
    assert not [one for one in them if f"{2 * answer.max_batched_tokens:,}, " in str(one.figure)]
    assert any("async scheduling" in one.source and "max_concurrent_batches" in one.source for one in told)


def test_batches_in_flight_of_a_pipeline() -> None:
    target = Target(131_072, gpus=4, tensor=2, pipeline=2, max_batched_tokens=8_192)
    sections = explain(answered(GPT_OSS, target))
    told = [one for one in steps(sections) if one.figure is not None and "3 x 8,192" in one.figure.text]
    assert told
    assert all("each of 2 pipeline ranks, and one more since async scheduling" in one.source for one in told)


def test_a_slot_of_the_indexer_offload_is_reckoned() -> None:
    answer = answered(GLM, glm_target(indexer_offload_bytes=None), memory=2048 * GIB)
    assert isinstance(answer, Plan)
    assert answer.host.indexer_offload
    sections = explain(answer)
    slot, offload = named(sections, "one block of the indexer offload"), named(sections, "indexer offload")
    assert slot.figure is not None
    assert slot.figure.text == "ceil(64 x 132 x 21 x 8 / 4,096) x 4,096"
    assert offload.figure is not None
    assert f" x {number_text(slot.value)} / " in offload.figure.text
    assert "22,208 B of each host-pool token" in offload.source
    assert ".00" not in offload.source


@pytest.mark.parametrize(("model_", "target", "kind"), CASES)
def test_what_a_measured_constant_stands_for_is_said(model_: ModelFacts, target: Target, kind: str) -> None:
    sections = explain(answered(model_, target, kind))
    for name, figures in (
        ("prefill workspace", r"4,509,715,660 B were measured at 8,192 tokens"),
        ("position tables", r"\d B (of each token|for each of [\d,]+ rotated dimensions)"),
        ("peak activation", r"2 B a value, 6 copies of hidden_size"),
    ):
        for step in steps(sections):
            assert step.name != name or re.search(figures, step.source), step


def test_shared_memory_is_the_sum_of_what_is_mapped() -> None:
    for target in (glm_target(), glm_target(sharing="Private"), Target(131_072, gpus=4, mode="Offload")):
        answer = answered(LLAMA_70B if target.mode == "Offload" else GLM, target)
        step = named(explain(answer), "of it /dev/shm at most")
        assert step.figure is not None
        assert step.figure.text.endswith(" + 8,589,934,592")


class TestTheFiguresAreThoseOfThePlan:
    def test_hbm_adds_up_to_the_card(self) -> None:
        answer = answered(GLM, glm_target())
        assert isinstance(answer, Plan)
        hbm = explain(answer)[0].steps
        assert hbm[0].value == sum(step.value for step in hbm[1:])
        assert hbm[-1].value == answer.kv_budget

    def test_blocks_and_concurrency(self) -> None:
        answer = answered(GLM, glm_target())
        assert isinstance(answer, Plan)
        sections = explain(answer)
        tier = next(section for section in sections if "HiSparse" in section.title)
        by_name = {step.name: step.value for step in tier.steps}
        assert by_name["blocks in HBM"] == answer.gpu_blocks
        assert by_name["blocks of the host pool"] == answer.host_blocks
        assert by_name["at once, 1,048,576 tokens"] == answer.at_max.tier
        assert by_name["at once, 131,072 tokens"] == answer.at_typical.tier
        plain = next(section for section in sections if "plain KV" in section.title)
        assert {step.name: step.value for step in plain.steps}["at once, 131,072 tokens"] == answer.at_typical.plain

    def test_host_memory_is_that_of_the_pod(self) -> None:
        answer = answered(GLM, glm_target(), memory=2048 * GIB)
        assert isinstance(answer, Plan)
        sections = explain(answer)
        assert named(sections, "pod memory").value == answer.host.pod
        assert named(sections, "host pool").value == answer.host.pool
        assert named(sections, "of it /dev/shm at most").value == answer.host.shm

    def test_data_parallel_ranks_multiply(self) -> None:
        answer = answered(LLAMA_70B, Target(131_072, gpus=8, data=2, tensor=4))
        assert isinstance(answer, Plan)
        step = named(explain(answer), "at once, 131,072 tokens")
        assert step.value == answer.at_max.tier
        assert step.figure is not None
        assert step.figure.text.endswith(" x 2")

    def test_rows_that_were_worked_out_by_hand(self) -> None:
        rows = explain(answered(GLM, glm_target()))[1].steps
        assert [(step.name, int(step.value)) for step in rows] == [
            ("78 layers of latent (MLA, whole on every rank)", 656),
            ("21 layers of indexer keys", 132),
        ]
        (row,) = explain(answered(LLAMA_70B, Target(131_072, gpus=4)))[1].steps
        assert row.figure is not None
        assert (int(row.value), row.figure.text) == (1024, "max(1, floor(8 / 4)) x (128 + 128) x 2")


class TestWhatIsGiven:
    def test_memory_for_kv_from_a_log_is_no_result(self) -> None:
        target = Target(131_072, gpus=4, kv_bytes=40 * GIB)
        hbm = explain(answered(LLAMA_70B, target))[0].steps
        assert (int(hbm[-1].value), hbm[-1].figure, hbm[-1].source) == (40 * GIB, None, "kvBytes was given")
        assert hbm[-2].name == "difference to the log"
        assert hbm[-2].figure is not None
        assert hbm[-2].figure.text.endswith(f" - {40 * GIB:,}")

    def test_weights_are_divided_only_where_no_tensor_is_known(self) -> None:
        known = named(explain(answered(LLAMA_70B, Target(131_072, gpus=4))), "weights")
        assert known.figure is None
        assert known.source.startswith("counted tensor by tensor")
        unknown = replace(LLAMA_70B, checkpoint=None)
        step = named(explain(answered(unknown, Target(131_072, gpus=4))), "weights")
        assert step.figure is not None
        assert step.figure.text == f"ceil({LLAMA_70B.weight_bytes:,} / 4)"

    def test_states_do_not_grow(self) -> None:
        found = [
            step for step in steps(explain(answered(FLASH, glm_target(gpus=4)))) if "blocks of a request" in step.name
        ]
        assert any(step.figure is None for step in found)
        assert any(step.figure is not None for step in found)


class TestPages:
    def test_a_smaller_page_is_filled_up_to_the_larger(self) -> None:
        """9 x 16 tokens in 3 heads beside 4 would be 3/4 of a page."""
        odd = with_layers(FullAttention(3, 128, 128), SlidingWindow(4, 128, 128, 1024))
        blocks = explain(answered(odd, Target(8192, gpus=1)))[2].steps
        assert {step.figure.text for step in blocks[:2] if step.figure} == {
            "1 x max(16 x 1,536, 32,768)",
            "1 x 16 x 2,048",
        }

    def test_blocks_of_unlike_pages_are_whole_strides(self) -> None:
        step = named(explain(answered(FLASH, glm_target(gpus=4))), "one block of the pool")
        assert step.figure is not None
        assert " x 33,792" in step.figure.text


class TestAShortfall:
    def test_is_explained_as_far_as_it_went(self) -> None:
        answer = answered(LLAMA_8B, Target(131_072, gpus=1), "rtx-4090")
        assert isinstance(answer, Shortfall)
        sections = explain(answer)
        assert [section.title.partition(",")[0] for section in sections] == [
            "HBM of each rtx-4090",
            "one token in one layer",
            "blocks in HBM",
        ]
        assert named(sections, "needed for it and the null block").value == answer.needed
        assert named(sections, "KV cache").value == answer.available

    def test_of_the_tier_has_the_same_sum(self) -> None:
        answer = answered(GLM, glm_target(), memory=64 * GIB)
        assert isinstance(answer, Shortfall)
        assert answer.mode is Mode.HISPARSE
        sections = explain(answer)
        assert sections
        assert named(sections, "memory").value == answer.node.gpu.memory_bytes

    def test_without_any_sum_has_none(self) -> None:
        answer = answered(GLM, glm_target(), "a100-80")
        assert isinstance(answer, Shortfall)
        assert explain(answer) == ()


def test_a_formula_that_does_not_come_out_is_not_shown() -> None:
    answer = answered(LLAMA_70B, Target(131_072, gpus=4))
    assert isinstance(answer, Plan)
    other = tuple(replace(term, bytes=term.bytes + 1) if term.name == "CUDA graphs" else term for term in answer.hbm)
    step = named(explain(replace(answer, hbm=other)), "CUDA graphs")
    assert step.figure is None
    assert step.value == Fraction(next(term.bytes for term in other if term.name == "CUDA graphs"))


def test_nor_one_of_a_count_that_is_not_the_planners() -> None:
    answer = answered(GLM, glm_target())
    assert isinstance(answer, Plan)
    step = named(explain(replace(answer, gpu_blocks=answer.gpu_blocks + 1)), "blocks in HBM")
    assert (int(step.value), step.figure) == (answer.gpu_blocks + 1, None)


def test_of_h200() -> None:
    assert explain(plan(GLM, h200(), glm_target())) == explain(answered(GLM, glm_target(), memory=2048 * GIB))
