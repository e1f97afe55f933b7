"""The plan as a whole: what fits, what does not, what binds, and that the advice is right."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shapes import DENSE_32B, GLM, LLAMA_8B, LLAMA_70B, MILLION, glm_target, gpu, h200

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


OLD = NodeClass(gpu("a100-80"), 8, 2 * TIB, "NVIDIA-A100-SXM4-80GB")


class TestOwnMemory:
    """resources.memory is the users' knob on a shared node: the sum must hold, and the plan must say what it costs."""

    def test_terms_add_up_to_the_pod(self) -> None:
        for own in (120, 300, 700):
            got = fits(GLM, h200(), glm_target(memory_bytes=own * GIB))
            assert sum(term.bytes for term in got.host_terms) == got.host.pod == own * GIB

    def test_too_little_for_any_engine(self) -> None:
        got = falls_short(LLAMA_8B, h200(1), Target(max_tokens=8192, gpus=1, memory_bytes=GIB))
        assert got.reason == "HostMemoryInsufficient"
        assert "1Gi is below the 5.00 GiB" in got.limit.message

    def test_less_than_planned_is_a_warning(self) -> None:
        got = fits(LLAMA_8B, h200(1), Target(max_tokens=8192, gpus=1, memory_bytes=7 * GIB))
        assert any("the kernel may kill it" in warning for warning in got.warnings)

    def test_more_than_the_node_has(self) -> None:
        got = falls_short(GLM, h200(), glm_target(memory_bytes=4 * TIB))
        assert "4Ti is more than the 2.00 TiB" in got.limit.message or "4Ti is more than" in got.limit.message

    def test_a_pool_that_does_not_fit_in_it_says_how_much_would(self) -> None:
        target = glm_target(memory_bytes=30 * GIB)
        remedy = falls_short(GLM, h200(), target).limit.remedy
        found = re.search(r"raise resources.memory to (\d+)Gi", remedy)
        assert found is not None, remedy
        enough = fits(GLM, h200(), replace(target, memory_bytes=int(found[1]) * GIB))
        assert not any("the kernel may kill it" in warning for warning in enough.warnings)


class TestAutoIsHeldToTheRulesOfWhatItEndsIn:
    @pytest.mark.parametrize(
        ("changes", "field"),
        [
            pytest.param({"host_pool_bytes": 20 * GIB}, "spec.kvTier.hostPool.size", id="a pool under one request"),
            pytest.param(
                {"device_buffer_tokens": 64}, "spec.kvTier.hiSparse.deviceBufferTokens", id="rows for less than a query"
            ),
            pytest.param(
                {"sharing": "RequireShared", "tensor": 1, "data": 8, "expert": True},
                "spec.kvTier.sharing",
                id="a pool to share with nobody",
            ),
        ],
    )
    def test_refused(self, changes: dict[str, object], field: str) -> None:
        assert [error.field for error in accept(GLM, glm_target(**changes))] == [field]

    def test_no_tier_where_plain_kv_holds_all_that_may_run(self) -> None:
        few = fits(GLM, h200(), glm_target(max_tokens=131_072, max_requests=4))
        many = fits(GLM, h200(), glm_target(max_tokens=131_072, max_requests=40))
        assert (few.mode, many.mode) == (Mode.NONE, Mode.HISPARSE)
        assert "maxConcurrentRequests" in few.mode_reason

    def test_fields_of_a_tier_that_is_not_taken_are_said_to_have_no_effect(self) -> None:
        got = fits(LLAMA_8B, h200(1), Target(max_tokens=8192, gpus=1, host_pool_bytes=64 * GIB))
        assert any("kvTier.hostPool have no effect" in warning for warning in got.warnings)

    def test_a_pool_beyond_what_hbm_can_use_is_said_to_stay_idle(self) -> None:
        got = fits(GLM, h200(memory=16 * TIB), glm_target(host_pool_bytes=10 * TIB))
        assert any("stay idle" in warning for warning in got.warnings)


class TestDataParallel:
    """Each rank has a scheduler, KV and a pool of its own; what a plan promises is for all of them."""

    def test_sequences_are_per_rank(self) -> None:
        one = fits(LLAMA_8B, h200(1), Target(max_tokens=131_072, gpus=1))
        eight = fits(LLAMA_8B, h200(8), Target(max_tokens=131_072, gpus=8, tensor=1, data=8))
        assert one.max_num_seqs == eight.max_num_seqs
        assert eight.at_max.tier == 8 * one.at_max.tier

    def test_auto_compares_whole_replicas(self) -> None:
        half = glm_target(max_tokens=131_072, tensor=4, data=2, expert=True)
        got = fits(GLM, h200(memory=8 * TIB), half)
        assert got.at_typical.gain is not None
        said = re.match(r"([\d.]+) times", got.mode_reason)
        assert said is not None, got.mode_reason
        assert float(got.at_typical.gain) == pytest.approx(float(said[1]), abs=0.02)

    def test_offload_is_shared_out(self) -> None:
        got = fits(LLAMA_8B, h200(8, 200 * GIB), Target(max_tokens=8192, gpus=8, tensor=1, data=8, mode="Offload"))
        assert got.host.physical == 8 * got.host.pool <= 152 * GIB

    def test_offload_for_requests_at_tokens(self) -> None:
        target = Target(max_tokens=131_072, gpus=1, mode="Offload", pool_requests=10, pool_tokens=131_072)
        assert fits(LLAMA_8B, h200(1), target).host.pool == 160 * GIB


class TestHardware:
    def test_sparse_attention_needs_hopper(self) -> None:
        got = falls_short(replace(GLM, weight_bytes=300 * GIB), OLD, glm_target(max_tokens=131_072))
        assert (got.reason, got.limit.resource) == ("NoMatchingNodes", Resource.GPUS)
        assert "8.0" in got.limit.message

    def test_fp8_kv_on_an_old_gpu_is_a_warning(self) -> None:
        got = fits(LLAMA_8B, replace(OLD, gpus=1), Target(max_tokens=8192, gpus=1, kv_dtype="Fp8"))
        assert any("8.9" in warning for warning in got.warnings)


class TestExperts:
    def test_glm_experts_are_those_of_the_calculator(self) -> None:
        assert f"{GLM.expert_bytes / GIB:.0f}" == "684"

    def test_data_parallel_ranks_each_hold_what_is_no_expert(self) -> None:
        target = glm_target(max_tokens=8192, data=8, tensor=1, expert=True)
        got = plan(GLM, h200(), target)
        weights = next(term for term in got.hbm if term.name == "weights")
        assert f"{weights.bytes / GIB:.0f}" == "106"

    def test_a_dense_model_has_none_to_spread(self) -> None:
        (error,) = accept(LLAMA_70B, Target(max_tokens=8192, gpus=8, expert=True))
        assert error.field == "spec.parallelism.expert"


class TestAdvice:
    @pytest.mark.parametrize(
        ("model", "node", "target"),
        [
            pytest.param(LLAMA_70B, h200(8), Target(max_tokens=131_072, gpus=1), id="70B on one GPU"),
            pytest.param(DENSE_32B, h200(8), Target(max_tokens=MILLION, gpus=1, kv_dtype="Bf16"), id="32B bf16 on one"),
            pytest.param(DENSE_32B, h200(8), Target(max_tokens=MILLION, gpus=1), id="32B on one, Auto"),
            pytest.param(GLM, h200(8), glm_target(mode="None"), id="GLM without a tier"),
            pytest.param(
                LLAMA_70B, h200(8), Target(max_tokens=8192, gpus=8, data=8, tensor=1), id="eight copies of a 70B"
            ),
            pytest.param(GLM, h200(8), glm_target(max_batched_tokens=MILLION), id="a batch that takes all HBM"),
            pytest.param(GLM, h200(8), glm_target(utilization_percent=50), id="half of HBM left alone"),
            pytest.param(GLM, h200(memory=60 * GIB), glm_target(), id="a node without room for one request"),
            pytest.param(GLM, h200(memory=101 * GIB), glm_target(host_pool_bytes=51 * GIB), id="a pool above the node"),
            pytest.param(GLM, h200(memory=200 * GIB), glm_target(host_pool_bytes=400 * GIB), id="far above the node"),
            pytest.param(GLM, h200(memory=300 * GIB), glm_target(sharing="Private"), id="eight private pools"),
            pytest.param(GLM, h200(4), glm_target(), id="more GPUs than a node has"),
            pytest.param(
                LLAMA_8B,
                h200(1, 64 * GIB),
                Target(max_tokens=8192, gpus=1, mode="Offload", host_pool_bytes=90 * GIB, memory_bytes=32 * GIB),
                id="an offload region above resources.memory",
            ),
            pytest.param(
                GLM, h200(memory=64 * GIB), glm_target(memory_bytes=20 * GIB), id="own memory on a small node"
            ),
        ],
    )
    def test_doing_what_the_remedy_says_makes_it_fit(self, model: ModelFacts, node: NodeClass, target: Target) -> None:
        check_every_way_out(model, node, target)

    def test_lowering_the_context_to_what_is_named_fits_and_one_step_more_does_not(self) -> None:
        target = Target(max_tokens=MILLION, gpus=1, kv_dtype="Fp8")
        found = re.search(r"maxTokens to (\d+)", falls_short(DENSE_32B, h200(1), target).limit.remedy)
        assert found is not None
        longest = int(found[1])
        fits(DENSE_32B, h200(1), replace(target, max_tokens=longest))
        falls_short(DENSE_32B, h200(1), replace(target, max_tokens=longest + 1024))

    def test_what_is_missing_is_what_the_message_says(self) -> None:
        got = falls_short(GLM, h200(), glm_target(gpus=4))
        assert got.available == 0
        assert got.needed > 52 * GIB + 52 * GIB


def check_every_way_out(model: ModelFacts, node: NodeClass, target: Target) -> None:
    remedy = falls_short(model, node, target).limit.remedy
    for way in remedy.split(" or "):
        changed, where = follow(way, target, node)
        assert (changed, where) != (target, node), f"nobody knows what to do with: {way}"
        assert not accept(model, changed), way
        assert isinstance(plan(model, where, changed), Plan), way


def follow(way: str, target: Target, node: NodeClass) -> tuple[Target, NodeClass]:
    """Do what one alternative of a remedy says."""
    number = int(found[1]) if (found := re.search(r"(\d+)(?:Gi| |$)", way.rsplit(" to ", 1)[-1])) else 0
    whole: dict[str, Target] = {
        "kvTier.mode HiSparse": replace(target, mode="HiSparse"),
        "kvCacheDtype Fp8": replace(target, kv_dtype="Fp8"),
        "kvTier.sharing": replace(target, sharing="Auto"),
        "maxTokens to": replace(target, max_tokens=number, typical_tokens=min(target.typical, max(1, number))),
        "maxBatchedTokens": replace(target, max_batched_tokens=number),
        "gpuMemoryUtilization": replace(target, utilization_percent=number),
        "parallelism to": replace(target, tensor=target.gpus, data=1, pipeline=1),
        "parallelism.expert": replace(target, expert=True),
        "hostPool.size to at most": replace(target, host_pool_bytes=number * GIB),
        "resources.memory to": replace(target, memory_bytes=number * GIB),
    }
    if "set resources.gpus" in way:
        gpus = int(way.rsplit(" ", 1)[1])
        return replace(target, gpus=gpus, tensor=None, data=1), replace(node, gpus=max(gpus, node.gpus))
    if found := re.search(r"use nodes with (\d+) GPUs", way):
        return target, replace(node, gpus=int(found[1]))
    if found := re.search(r"nodes with (\d+)Gi", way):
        own = None if "leave resources.memory out" in way else target.memory_bytes
        return replace(target, memory_bytes=own), replace(node, host_memory_bytes=int(found[1]) * GIB)
    return next((changed for text, changed in whole.items() if text in way), target), node


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


@given(node=NODES, target=TARGETS, batched=st.sampled_from([None, 1024, 32_768]), own=st.none() | st.integers(8, 900))
def test_no_advice_is_given_that_does_not_help(
    node: NodeClass, target: Target, batched: int | None, own: int | None
) -> None:
    target = replace(target, max_batched_tokens=batched, memory_bytes=own * GIB if own else None)
    got = plan(GLM, node, target)
    if isinstance(got, Shortfall) and not accept(GLM, target):
        remedy = got.limit.remedy
        if found := re.match(r"on nodes with (\d+) GPUs: ", remedy):
            node, remedy = replace(node, gpus=int(found[1])), remedy[found.end() :]
        if remedy == "leave resources.memory out" or remedy.startswith("leave resources.memory out, then"):
            target, remedy = replace(target, memory_bytes=None), remedy.partition(", then: ")[2]
        if found := re.match(r"on nodes with (\d+) GPUs: ", remedy):
            node, remedy = replace(node, gpus=int(found[1])), remedy[found.end() :]
        if "quantised" in remedy:
            return
        for way in remedy.split(" or ") if remedy else ["nothing else"]:
            changed, where = follow(way, target, node)
            assert isinstance(plan(GLM, where, changed), Plan), way
