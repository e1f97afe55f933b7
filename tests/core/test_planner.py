"""The plan as a whole: what fits, what does not, what binds, and that the advice is right."""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shapes import DENSE_32B, GLM, LLAMA_8B, LLAMA_70B, MILLION, glm_target, gpu, h200, model

from hisparse.acceptance import accept
from hisparse.estimates import AUTO_GAIN
from hisparse.hardware import GPUS, Gpu, NodeClass
from hisparse.limits import pays_above
from hisparse.model import ModelFacts
from hisparse.plan import LengthRow, Mode, Plan, Resource, Shortfall, Target
from hisparse.planner import plan, smallest
from hisparse.room import SPARSE_KERNELS
from hisparse.rounding import decimal
from hisparse.units import GIB, TIB, format_bytes

GEMMA = model("google/gemma-3-27b-it")
HYBRID = model("Qwen/Qwen3-Next-80B-A3B-Instruct")


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
        assert "host reads pay from" in got.mode_reason

    def test_a_dense_model_has_no_tier(self) -> None:
        got = fits(LLAMA_8B, h200(1), Target(max_tokens=131_072, gpus=1))
        assert (got.mode, got.kv_dtype) == (Mode.NONE, "Bf16")

    def test_a_dense_model_falls_back_to_fp8_with_a_warning(self) -> None:
        got = fits(DENSE_32B, h200(1), Target(max_tokens=524_288, gpus=1))
        assert got.kv_dtype == "Fp8"
        assert any("digits" in warning for warning in got.warnings)

    def test_a_pool_that_the_node_cannot_give_gains_nothing(self) -> None:
        """HBM alone would allow 9.7 times as many; the pool of this node holds about as many as plain KV does."""
        got = fits(GLM, h200(memory=100 * GIB), glm_target(max_tokens=262_144))
        assert got.mode is Mode.NONE
        said = re.match(r"HiSparse would give ([\d.]+) times .*: the host pool of ([\d.]+ GiB) holds", got.mode_reason)
        assert said is not None, got.mode_reason
        tier = fits(GLM, h200(memory=100 * GIB), glm_target(max_tokens=262_144, mode="HiSparse"))
        assert said[1] == decimal(tier.at_typical.tier / tier.at_typical.plain)
        assert said[2] == format_bytes(tier.host.pool)

    def test_a_node_without_any_room_for_a_pool_still_serves_what_plain_kv_holds(self) -> None:
        got = fits(GLM, h200(memory=49 * GIB), glm_target(max_tokens=262_144))
        assert got.mode is Mode.NONE
        assert got.mode_reason.startswith("HiSparse does not fit here: the host pool needs")

    def test_requests_that_the_scheduler_does_not_take_are_no_gain(self) -> None:
        target = glm_target(max_tokens=262_144)
        free, bound = (fits(GLM, h200(), replace(target, max_requests=most)) for most in (None, 8))
        assert 8 / free.at_typical.plain < AUTO_GAIN < free.at_typical.tier / free.at_typical.plain
        assert (free.mode, bound.mode) == (Mode.HISPARSE, Mode.NONE)
        assert ": no more than 8 requests run at once;" in bound.mode_reason

    def test_plain_kv_that_holds_all_that_run_needs_no_tier(self) -> None:
        got = fits(GLM, h200(), glm_target(max_tokens=262_144, typical_tokens=1_024))
        assert got.at_typical.plain >= 256 == got.max_requests
        assert got.mode_reason == "plain KV holds the 256 requests that run at once, of 1,024 tokens each"


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


class TestThePoolMinimumOfTheGpuAtHand:
    """fp8 rows of GLM-5.3 take 656 bytes on Hopper and 576 on Blackwell: the engine's minimum goes with them."""

    B200 = NodeClass(gpu("b200"), 8, 2 * TIB, "NVIDIA-B200")

    def test_what_is_enough_for_blackwell_is_planned_there(self) -> None:
        target = glm_target(mode="HiSparse", host_pool_bytes=44 * GIB)
        got = fits(GLM, self.B200, target)
        assert got.tiered is not None
        assert got.host.pool >= got.tiered.minimum_pool_bytes(MILLION)

    def test_and_falls_short_on_hopper_in_the_words_of_acceptance(self) -> None:
        target = glm_target(mode="HiSparse", host_pool_bytes=44 * GIB)
        got = falls_short(GLM, h200(), target)
        assert (got.reason, got.limit.resource) == ("HostMemoryInsufficient", Resource.HOST_POOL)
        assert "44Gi is below the 50.01 GiB that one request of maxTokens 1048576 needs" in got.limit.message
        assert "set kvTier.hostPool.size to 51Gi" in got.limit.remedy
        check_every_way_out(GLM, h200(), target)

    def test_a_small_node_is_named_with_the_pool(self) -> None:
        node, target = h200(memory=60 * GIB), glm_target(mode="HiSparse", host_pool_bytes=44 * GIB)
        assert "set kvTier.hostPool.size to 51Gi on nodes with" in falls_short(GLM, node, target).limit.remedy
        check_every_way_out(GLM, node, target)

    def test_drafting_layers_count(self) -> None:
        least = fits(GLM, h200(), glm_target(mode="HiSparse"))
        assert least.tiered is not None
        pool = least.tiered.minimum_pool_bytes(MILLION)
        fits(GLM, h200(), glm_target(mode="HiSparse", host_pool_bytes=pool))
        falls_short(GLM, h200(), glm_target(mode="HiSparse", host_pool_bytes=pool, draft_tokens=3))
        blackwell = 16_386 * 2_875_392
        assert not accept(GLM, glm_target(mode="HiSparse", host_pool_bytes=blackwell))
        assert accept(GLM, glm_target(mode="HiSparse", host_pool_bytes=blackwell, draft_tokens=3))

    @pytest.mark.parametrize("kind", [one for one in GPUS if one.capability[0] in SPARSE_KERNELS], ids=lambda g: g.name)
    @pytest.mark.parametrize(("sharing", "drafted"), [("Auto", 0), ("Private", 0), ("Auto", 2)])
    def test_one_byte_less_is_refused_on_every_gpu(self, kind: Gpu, sharing: str, drafted: int) -> None:
        """GLM with weights that fit anywhere, so that nothing but the pool decides."""
        light = replace(GLM, weight_bytes=8 * GIB, checkpoint=None, expert_bytes=0)
        node = NodeClass(kind, 8, 16 * TIB, kind.name)
        target = Target(65_536, gpus=8, mode="HiSparse", sharing=sharing, draft_tokens=drafted)
        got = fits(light, node, target)
        assert got.tiered is not None
        least = got.tiered.minimum_pool_bytes(65_536)
        fits(light, node, replace(target, host_pool_bytes=least))
        small = replace(target, host_pool_bytes=least - 1)
        assert accept(light, small) or isinstance(plan(light, node, small), Shortfall)


class TestDrafting:
    def test_the_indexer_offload_keeps_the_mtp_layers_too(self) -> None:
        plain = fits(GLM, h200(), glm_target(host_pool_bytes=100 * GIB))
        drafting = fits(GLM, h200(), glm_target(host_pool_bytes=100 * GIB, draft_tokens=3))
        for got, layers in ((plain, 21), (drafting, 22)):
            assert got.tiered is not None
            keys = got.tiered.offload_token_bytes * 64
            assert keys == -(-64 * 132 * layers * 8 // 4096) * 4096
            tokens = got.host_blocks * 64
            assert 0 <= got.host.indexer_offload - got.tiered.offload_token_bytes * tokens < 64 * 2**20


class TestWhatLifts:
    """A remedy of a plan names a factor, and doing it gives that factor."""

    @pytest.mark.parametrize(
        ("model", "node", "target", "says"),
        [
            pytest.param(LLAMA_70B, h200(4), Target(131_072, gpus=4), "kvCacheDtype Fp8", id="a dense model"),
            pytest.param(GEMMA, h200(1), Target(131_072, gpus=1), "kvCacheDtype Fp8", id="a model with windows"),
            pytest.param(LLAMA_70B, h200(8), Target(8192, gpus=2, kv_dtype="Fp8"), "gpus to 4", id="more GPUs"),
            pytest.param(GLM, h200(memory=512 * GIB), glm_target(), "use nodes with", id="a small node"),
            pytest.param(
                GLM, h200(), glm_target(memory_bytes=200 * GIB), "raise resources.memory to", id="a small own memory"
            ),
            pytest.param(
                GLM,
                h200(memory=300 * GIB),
                glm_target(memory_bytes=200 * GIB),
                "leave resources.memory out on nodes with",
                id="a small own memory on a small node",
            ),
            pytest.param(
                GLM, h200(), glm_target(host_pool_bytes=100 * GIB), "set kvTier.hostPool.size to", id="a small pool"
            ),
            pytest.param(
                GLM,
                h200(),
                glm_target(host_pool_bytes=60 * GIB, memory_bytes=200 * GIB),
                " and raise resources.memory to",
                id="a small pool in a small own memory",
            ),
        ],
    )
    def test_by_the_factor_that_it_names(self, model: ModelFacts, node: NodeClass, target: Target, says: str) -> None:
        got = fits(model, node, target)
        way, _, last = got.limit.remedy.partition(", or ")
        assert says in way
        assert last == "add a replica"
        done, _, times = way.partition(" for ")
        for part in done.split(" and "):
            target, node = follow(part, target, node)
        assert times == f"{decimal(fits(model, node, target).at_max.tier / got.at_max.tier)} times as many"

    def test_states_do_not_shrink_with_the_dtype(self) -> None:
        got = fits(HYBRID, h200(2), Target(32_768, gpus=2, kv_dtype="Bf16"))
        said = re.search(r"Fp8 for (1\.\d+) times", got.limit.remedy)
        assert said is not None, got.limit.remedy

    def test_nothing_is_promised_where_nothing_helps(self) -> None:
        got = fits(GLM, h200(), glm_target())
        assert got.limit.remedy == "add a replica"

    def test_whole_requests_of_every_rank_bind(self) -> None:
        """2 ranks hold 1.6 each: that is 3.2 in all and two whole ones, so that 2 sequences are no limit."""
        target = Target(131_072, gpus=8, tensor=4, data=2, kv_bytes=16 * GIB)
        got = fits(LLAMA_70B, h200(), target)
        assert got.at_max.tier > 3
        assert got.max_requests == 2
        two, one = (fits(LLAMA_70B, h200(), replace(target, max_requests=most)) for most in (2, 1))
        assert (two.limit.resource, one.limit.resource) == (Resource.HBM, Resource.SEQUENCES)
        assert "below the 2 requests" in one.limit.message


class TestPaysAbove:
    @pytest.mark.parametrize(
        ("plain", "tier", "most", "ranks", "found"),
        [
            pytest.param("10", "28", 256, 1, 27, id="28 are more than 2.7 x 10"),
            pytest.param("10", "27", 256, 1, None, id="27 are as many"),
            pytest.param("3", "8.99", 256, 1, None, id="above 8.1 there is no whole request"),
            pytest.param("3", "9", 256, 1, 8, id="nine are above 8.1"),
            pytest.param("10", "40", 27, 1, None, id="the scheduler stops at the break-even"),
            pytest.param("10", "40", 28, 1, 27, id="the scheduler takes one more"),
            pytest.param("3.8", "40", 256, 2, 5, id="two ranks hold one each, so 2 x 2.7"),
            pytest.param("0.5", "4", 256, 1, 0, id="plain KV holds none"),
        ],
    )
    def test_whole_requests_decide(self, plain: str, tier: str, most: int, ranks: int, found: int | None) -> None:
        row = LengthRow(8192, Fraction(plain), Fraction(tier), None, None, 1)
        assert pays_above(row, most, ranks=ranks) == found


class TestWarnings:
    def test_flash_mla_scratch_is_hoppers(self) -> None:
        target = glm_target(max_tokens=131_072, max_batched_tokens=32_768)
        b200 = NodeClass(gpu("b200"), 8, 2 * TIB, "NVIDIA-B200")
        assert any("FlashMLA" in warning for warning in fits(GLM, h200(), target).warnings)
        assert not any("FlashMLA" in warning for warning in fits(GLM, b200, target).warnings)

    @pytest.mark.parametrize(
        ("tokens", "factor", "too_much"),
        [(262_144, 2, False), (262_144, 4, True), (262_144, 3, True)],
    )
    def test_scaling_says_what_it_costs_and_whether_less_is_enough(
        self, tokens: int, factor: int, too_much: bool
    ) -> None:
        got = fits(
            LLAMA_8B, h200(1), Target(tokens, gpus=1, rope_factor=Fraction(factor), rope_original_tokens=131_072)
        )
        said = [warning for warning in got.warnings if "context.ropeScaling" in warning]
        assert any(f"factor {factor} turns every prompt" in one for one in said)
        assert any("2 is enough" in one for one in said) == too_much

    def test_a_fall_back_is_a_warning_and_a_wish_is_none(self) -> None:
        auto = fits(DENSE_32B, h200(1), Target(524_288, gpus=1))
        asked = fits(DENSE_32B, h200(1), Target(524_288, gpus=1, kv_dtype="Fp8"))
        assert any(warning.startswith("KV cache in Fp8") for warning in auto.warnings)
        assert not any(warning.startswith("KV cache in Fp8") for warning in asked.warnings)

    def test_a_drain_lasts_two_prefills_of_the_longest_prompt(self) -> None:
        got = fits(GLM, h200(), glm_target())
        assert got.at_max.prefill_seconds * 2 > 300
        assert got.seconds.drain == got.at_max.prefill_seconds * 2


class TestDistance:
    """Which of several shortfalls is told: the nearest."""

    def test_bytes_are_nearer_than_gpus_and_those_than_other_gpus(self) -> None:
        target = glm_target()
        bytes_short = falls_short(GLM, h200(), replace(target, mode="None"))
        gpus_short = falls_short(GLM, h200(4), target)
        too_old = falls_short(GLM, OLD, target)
        assert bytes_short.needed - bytes_short.available > gpus_short.needed - gpus_short.available
        assert bytes_short.distance < gpus_short.distance < too_old.distance

    def test_of_two_the_one_that_lacks_less(self) -> None:
        near, far = (falls_short(GLM, h200(memory=memory * GIB), glm_target()) for memory in (96, 60))
        assert near.distance < far.distance

    def test_a_kernel_is_not_counted_in_capabilities(self) -> None:
        short = falls_short(GLM, OLD, glm_target())
        assert (short.needed, short.available, short.hopeless) == (8, 0, True)


class TestTheDtypeOfAShortfall:
    @pytest.mark.parametrize(
        ("model", "node", "target", "dtype"),
        [
            pytest.param(DENSE_32B, h200(1), Target(MILLION, gpus=1), "Fp8", id="Auto ends with Fp8"),
            pytest.param(DENSE_32B, h200(1), Target(MILLION, gpus=1, kv_dtype="Bf16"), "Bf16", id="as asked"),
            pytest.param(GLM, h200(), glm_target(mode="None"), "Fp8", id="Auto of a DSA model"),
            pytest.param(
                LLAMA_8B,
                h200(1, 8 * GIB),
                Target(8192, gpus=1),
                "Bf16",
                id="host memory fell short, so Fp8 was no help",
            ),
            pytest.param(LLAMA_8B, h200(1), Target(8192, gpus=2), "Bf16", id="nothing was tried"),
        ],
    )
    def test_is_the_last_that_was_tried(self, model: ModelFacts, node: NodeClass, target: Target, dtype: str) -> None:
        assert falls_short(model, node, target).kv_dtype == dtype


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
        "hostPool.size to": replace(target, host_pool_bytes=number * GIB, pool_requests=None, pool_tokens=None),
        "resources.memory to": replace(target, memory_bytes=number * GIB),
    }
    if "set resources.gpus" in way:
        gpus = int(way.rsplit(" ", 1)[1])
        return replace(target, gpus=gpus, tensor=None, data=1), replace(node, gpus=max(gpus, node.gpus))
    if found := re.search(r"use nodes with (\d+) GPUs", way):
        return target, replace(node, gpus=int(found[1]))
    if found := re.search(r"nodes with (\d+)Gi", way):
        own = None if "leave resources.memory out" in way else target.memory_bytes
        size = re.search(r"hostPool.size to (\d+)Gi", way)
        pool = int(size[1]) * GIB if size else target.host_pool_bytes
        changed = replace(target, memory_bytes=own, host_pool_bytes=pool)
        return changed, replace(node, host_memory_bytes=int(found[1]) * GIB)
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
                "32Gi is below the 43.88 GiB to 50.01 GiB (by the GPU)",
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
def test_the_pod_memory_of_a_plan_is_enough_for_that_plan(node: NodeClass, target: Target) -> None:
    found = plan(GLM, node, target)
    if not isinstance(found, Plan) or found.mode is not Mode.HISPARSE:
        return
    again = plan(GLM, node, replace(found.target, memory_bytes=found.host.pod, mode="HiSparse"))
    assert isinstance(again, Plan)
    assert (again.host.pool, again.host.indexer_offload) == (found.host.pool, found.host.indexer_offload)


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


@given(
    node=NODES,
    tokens=st.integers(1, MILLION),
    typical=st.integers(1, MILLION),
    most=st.none() | st.integers(1, 300),
    own=st.none() | st.integers(12, 900),
    pool=st.none() | st.integers(1, 600),
    data=st.sampled_from([1, 2]),
)
def test_auto_takes_the_tier_only_where_it_is_needed_or_wins(
    node: NodeClass, tokens: int, typical: int, most: int | None, own: int | None, pool: int | None, data: int
) -> None:
    target = glm_target(
        max_tokens=tokens,
        typical_tokens=min(typical, tokens),
        max_requests=most,
        memory_bytes=own * GIB if own else None,
        host_pool_bytes=pool * GIB if pool else None,
        tensor=8 // data,
        data=data,
        expert=data > 1,
    )
    if accept(GLM, target):
        return
    got = plan(GLM, replace(node, gpus=8), target)
    if not isinstance(got, Plan):
        # what plain KV would hold is not refused
        assert not isinstance(plan(GLM, replace(node, gpus=8), replace(target, mode="None")), Plan)
        return
    if got.mode is Mode.HISPARSE and got.plain.holds(got.kv_budget, tokens):
        tier = min(got.at_typical.tier, Fraction(most)) if most else got.at_typical.tier
        assert tier >= AUTO_GAIN * got.at_typical.plain


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


@given(
    node=NODES,
    target=TARGETS,
    batched=st.sampled_from([None, 1024, 32_768]),
    own=st.none() | st.integers(8, 900),
    pool=st.none() | st.integers(1, 400),
)
def test_no_advice_is_given_that_does_not_help(
    node: NodeClass, target: Target, batched: int | None, own: int | None, pool: int | None
) -> None:
    target = replace(
        target,
        max_batched_tokens=batched,
        memory_bytes=own * GIB if own else None,
        host_pool_bytes=pool * GIB if pool else None,
    )
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
