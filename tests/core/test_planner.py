"""The plan as a whole: what fits, what does not, what binds, and that the advice is right."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shapes import DENSE_32B, GLM, LLAMA_8B, LLAMA_70B, MILLION, glm_target, h200

from hisparse.acceptance import accept
from hisparse.hardware import NodeClass
from hisparse.model import ModelFacts
from hisparse.plan import Mode, Plan, Resource, Shortfall, Target
from hisparse.planner import plan, smallest
from hisparse.units import GIB, TIB


def fits(model: ModelFacts, node: NodeClass, target: Target) -> Plan:
    assert not accept(model, target)
    got = plan(model, node, target)
    assert isinstance(got, Plan), got
    return got


def falls_short(model: ModelFacts, node: NodeClass, target: Target) -> Shortfall:
    assert not accept(model, target)
    got = plan(model, node, target)
    assert isinstance(got, Shortfall), got
    return got


class TestGlmAtOneMillion:
    def test_no_request_fits_in_plain_kv(self) -> None:
        got = falls_short(GLM, h200(), glm_target(mode="None"))
        assert got.reason == "HBMInsufficient"
        assert got.limit.remedy.startswith("set kvTier.mode HiSparse")

    def test_auto_takes_hisparse_and_says_why(self) -> None:
        got = fits(GLM, h200(), glm_target())
        assert got.mode is Mode.HISPARSE
        assert got.mode_reason == "one request of 1,048,576 tokens does not fit in plain KV"
        assert got.kv_dtype == "Fp8"
        assert 1 < got.at_max.tier < 10
        assert got.at_max.plain < 1

    def test_terms_add_up_to_the_card(self) -> None:
        got = fits(GLM, h200(), glm_target())
        assert sum(term.bytes for term in got.hbm) == got.node.gpu.memory_bytes

    def test_gain_and_speedup_are_two_numbers(self) -> None:
        row = fits(GLM, h200(), glm_target()).at_typical
        assert row.gain is not None
        assert row.speedup is not None
        assert 9 < row.gain < 10  # "9x" is concurrency at 128K ...
        assert 3 < row.speedup < 4  # ... and not throughput

    def test_says_from_where_the_tier_pays(self) -> None:
        got = fits(GLM, h200(), glm_target())
        assert got.pays_above is not None
        assert got.at_typical.plain < got.pays_above < got.at_typical.tier

    def test_host_memory_counts_pool_and_indexer_offload_and_overhead(self) -> None:
        got = fits(GLM, h200(), glm_target(host_pool_bytes=384 * GIB))
        assert got.host.shared
        assert got.host.pool == 384 * GIB
        assert 166 * GIB < got.host.indexer_offload < 168 * GIB
        assert got.host.pod == got.host.pool + got.host.indexer_offload + got.host.overhead
        assert got.host.shm >= got.host.pool + got.host.indexer_offload

    def test_a_private_pool_is_paid_once_per_rank(self) -> None:
        shared = fits(GLM, h200(), glm_target(host_pool_bytes=64 * GIB))
        private = fits(GLM, h200(), glm_target(host_pool_bytes=64 * GIB, sharing="Private"))
        assert private.host.physical - private.host.indexer_offload == 8 * 64 * GIB
        assert shared.host.physical - shared.host.indexer_offload == 64 * GIB
        assert any("cannot be shared" in warning for warning in private.warnings)

    def test_a_small_node_gets_a_smaller_pool_and_the_pool_binds(self) -> None:
        got = fits(GLM, h200(memory=512 * GIB), glm_target())
        assert got.limit.resource is Resource.HOST_POOL
        assert got.host.pod <= 512 * GIB

    def test_a_node_without_room_for_one_request_is_refused_with_the_way_out(self) -> None:
        got = falls_short(GLM, h200(memory=96 * GIB), glm_target())
        assert got.reason == "HostMemoryInsufficient"
        assert "use nodes with" in got.limit.remedy
        lowered = re.search(r"lower context\.maxTokens to (\d+)", got.limit.remedy)
        assert lowered is not None
        fits(GLM, h200(memory=96 * GIB), glm_target(max_tokens=int(lowered[1])))

    def test_the_offload_switch_and_its_warning(self) -> None:
        got = fits(GLM, h200(), glm_target(indexer_offload=False))
        assert got.host.indexer_offload == 0
        assert any("prefilled again" in warning for warning in got.warnings)

    def test_four_gpus_are_not_enough_and_eight_are_named(self) -> None:
        got = falls_short(GLM, h200(), glm_target(gpus=4))
        assert got.reason == "HBMInsufficient"
        assert "set resources.gpus to 8" in got.limit.remedy


class TestAuto:
    def test_a_short_context_with_little_gain_stays_plain(self) -> None:
        got = fits(GLM, h200(), glm_target(max_tokens=16_384))
        assert got.mode is Mode.NONE
        assert "host reads cost more" in got.mode_reason

    def test_a_dense_model_has_no_tier(self) -> None:
        got = fits(LLAMA_8B, h200(1), Target(max_tokens=131_072, gpus=1))
        assert (got.mode, got.kv_dtype) == (Mode.NONE, "Bf16")

    def test_a_dense_model_falls_back_to_fp8_with_a_warning(self) -> None:
        got = fits(DENSE_32B, h200(1), Target(max_tokens=524_288, gpus=1))
        assert got.kv_dtype == "Fp8"
        assert any("digits" in warning for warning in got.warnings)


class TestOffload:
    def test_it_never_raises_the_feasible_context(self) -> None:
        plain = falls_short(LLAMA_70B, h200(2), Target(max_tokens=131_072, gpus=1, mode="None"))
        offload = falls_short(LLAMA_70B, h200(2), Target(max_tokens=131_072, gpus=1, mode="Offload"))
        assert plain.needed == offload.needed

    def test_the_region_is_counted_in_shm_and_ram(self) -> None:
        got = fits(LLAMA_8B, h200(1), Target(max_tokens=8192, gpus=1, mode="Offload", host_pool_bytes=32 * GIB))
        assert got.host.shm >= 32 * GIB
        assert got.host.pod >= 32 * GIB
        assert any("does not raise the feasible context" in warning for warning in got.warnings)


class TestAdvice:
    @pytest.mark.parametrize(
        ("model", "node", "target"),
        [
            pytest.param(LLAMA_70B, h200(8), Target(max_tokens=131_072, gpus=1), id="70B on one GPU"),
            pytest.param(DENSE_32B, h200(8), Target(max_tokens=MILLION, gpus=1, kv_dtype="Bf16"), id="32B bf16 on one"),
            pytest.param(GLM, h200(8), glm_target(mode="None"), id="GLM without a tier"),
        ],
    )
    def test_doing_what_the_remedy_says_makes_it_fit(self, model: ModelFacts, node: NodeClass, target: Target) -> None:
        remedy = falls_short(model, node, target).limit.remedy
        changed = follow(remedy, target)
        assert changed != target, remedy
        assert isinstance(plan(model, node, changed), Plan), remedy

    def test_lowering_the_context_to_what_is_named_fits_and_one_step_more_does_not(self) -> None:
        target = Target(max_tokens=MILLION, gpus=1, kv_dtype="Fp8")
        found = re.search(r"maxTokens to (\d+)", falls_short(DENSE_32B, h200(1), target).limit.remedy)
        assert found is not None
        longest = int(found[1])
        fits(DENSE_32B, h200(1), replace(target, max_tokens=longest))
        falls_short(DENSE_32B, h200(1), replace(target, max_tokens=longest + 1024))


def follow(remedy: str, target: Target) -> Target:
    first = remedy.split(" or ", maxsplit=1)[0]
    if "kvTier.mode HiSparse" in first:
        return replace(target, mode="HiSparse")
    if "kvCacheDtype Fp8" in first:
        return replace(target, kv_dtype="Fp8")
    number = int(first.rsplit(" ", 1)[1])
    if "maxTokens" in first:
        return replace(target, max_tokens=number)
    return replace(target, gpus=number)


class TestAccept:
    @pytest.mark.parametrize(
        ("model", "target", "field", "says"),
        [
            pytest.param(
                LLAMA_8B,
                Target(max_tokens=MILLION, gpus=1),
                "spec.context.maxTokens",
                "1048576 is above the 131072 positions",
                id="context above the model's positions",
            ),
            pytest.param(
                GLM,
                glm_target(gpus=6),
                "spec.resources.gpus",
                "6 does not divide the 64",
                id="TP that divides no heads",
            ),
            pytest.param(
                LLAMA_8B,
                Target(max_tokens=8192, gpus=1, mode="HiSparse"),
                "spec.kvTier.mode",
                "needs a DSA model",
                id="HiSparse with a dense model",
            ),
            pytest.param(
                GLM,
                glm_target(mode="HiSparse", host_pool_bytes=32 * GIB),
                "spec.kvTier.hostPool.size",
                "32Gi is below the 50.01 GiB",
                id="host pool under the minimum",
            ),
            pytest.param(
                GLM,
                glm_target(mode="HiSparse", device_buffer_tokens=1024),
                "spec.kvTier.hiSparse.deviceBufferTokens",
                "1024 is outside 2048",
                id="device buffer below top-k",
            ),
            pytest.param(
                GLM,
                glm_target(mode="HiSparse", gpus=1, sharing="RequireShared"),
                "spec.kvTier.sharing",
                "RequireShared cannot hold",
                id="sharing one pool with oneself",
            ),
            pytest.param(
                GLM,
                glm_target(rope_factor=4),
                "spec.context.ropeScaling",
                "need no scaling",
                id="scaling a model that needs none",
            ),
        ],
    )
    def test_says_field_value_limit_and_next_step(
        self, model: ModelFacts, target: Target, field: str, says: str
    ) -> None:
        (error,) = accept(model, target)
        assert error.field == field
        assert says in error.message


NODES = st.builds(
    lambda gpus, memory: h200(gpus, memory * GIB), gpus=st.sampled_from([1, 2, 4, 8]), memory=st.integers(16, 3000)
)
TARGETS = st.builds(
    lambda tokens, gpus, mode: Target(max_tokens=tokens, gpus=gpus, mode=mode, typical_tokens=min(tokens, 32_768)),
    tokens=st.integers(1, MILLION),
    gpus=st.sampled_from([1, 2, 4, 8]),
    mode=st.sampled_from(["Auto", "None", "HiSparse"]),
)


@given(node=NODES, target=TARGETS)
def test_every_answer_is_whole(node: NodeClass, target: Target) -> None:
    got = plan(GLM, node, target)
    if isinstance(got, Shortfall):
        assert got.limit.message
        assert got.limit.remedy
        return
    assert sum(term.bytes for term in got.hbm) == node.gpu.memory_bytes
    assert got.at_max.tier >= 1
    assert got.max_requests >= 1
    assert node.host_memory_bytes is not None
    assert got.host.pod <= node.host_memory_bytes
    assert got.host.physical + got.host.overhead <= got.host.pod
    assert got.seconds.termination_grace > got.seconds.drain + got.seconds.teardown
    if got.tiered is not None:
        assert got.host_blocks >= got.tiered.minimum_host_blocks(target.max_tokens)


@given(node=NODES, target=TARGETS, more=st.integers(1, 2000))
def test_more_host_memory_never_shrinks_the_answer(node: NodeClass, target: Target, more: int) -> None:
    here = plan(GLM, node, target)
    assert node.host_memory_bytes is not None
    there = plan(GLM, replace(node, host_memory_bytes=node.host_memory_bytes + more * GIB), target)
    if isinstance(here, Plan):
        assert isinstance(there, Plan)
        assert there.at_max.tier >= here.at_max.tier


@given(node=NODES, target=TARGETS)
def test_less_context_never_needs_more(node: NodeClass, target: Target) -> None:
    shorter = replace(target, max_tokens=max(1, target.max_tokens // 2), typical_tokens=1)
    if isinstance(plan(GLM, node, replace(target, typical_tokens=1)), Plan):
        assert isinstance(plan(GLM, node, shorter), Plan)


def test_smallest_is_the_plan_whose_flags_run_everywhere() -> None:
    large = fits(GLM, h200(memory=2 * TIB), glm_target())
    small = fits(GLM, h200(memory=512 * GIB), glm_target())
    assert smallest([large, small]) is small
