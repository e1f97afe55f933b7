"""Prefill and decode against what was measured and against arithmetic worked out by hand; verdicts on claims."""

from __future__ import annotations

import json
import statistics
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from shapes import DENSE_32B, GLM, LLAMA_8B, MILLION, gpu, model

from hisparse import decode, estimates
from hisparse.catalogue import ENTRIES
from hisparse.claims import Plausibility, judge_rate, judge_seconds
from hisparse.decode import HOST_READ_RUNS, Binds, Spread, StepBytes, decode_bound, distinct_experts
from hisparse.hybrid import RHT_INT4_ZERO, HybridGeometry
from hisparse.layers import ChunkedAttention, FullAttention, RecurrentState, SlidingWindow
from hisparse.model import ModelFacts
from hisparse.prefill import (
    FIT_BAND,
    GOOD_EFFICIENCY,
    USUAL_EFFICIENCY,
    Basis,
    allreduce_seconds,
    causal_pairs,
    prefill,
    prefill_work,
)
from hisparse.rows import KV_DTYPES, KvDtype

H200, A100, H100 = gpu("h200"), gpu("a100-80"), gpu("h100")
BF16, FP8, INT4 = KV_DTYPES["Bf16"], KV_DTYPES["Fp8"], KV_DTYPES["Int4PerTokenHead"]
DEEPSEEK = model("deepseek-ai/DeepSeek-V3")
GLM_FLASH = model("zai-org/GLM-5.3-Flash")


# --- the work of a prompt ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "reach", "pairs"),
    [
        pytest.param(1, None, 1, id="a token sees itself"),
        pytest.param(4, None, 10, id="1 + 2 + 3 + 4"),
        pytest.param(4, 2, 7, id="1 + 2 + 2 + 2"),
        pytest.param(4, 9, 10, id="a window that is never full"),
    ],
)
def test_pairs(tokens: int, reach: int | None, pairs: int) -> None:
    assert causal_pairs(tokens, reach) == pairs
    # one by one
    assert pairs == sum(min(i, reach or i) for i in range(1, tokens + 1))


def test_work_of_a_dense_model_by_hand() -> None:
    work = prefill_work(DENSE_32B, 800_000)
    assert work.parameters == 2 * 31_999_687_680 * 800_000
    # 40 layers, 40 heads of 128: a multiplication and an addition for the score, and for the sum
    assert work.attention == 40 * 40 * 2 * 2 * 128 * (800_000 * 800_001 // 2)
    assert (work.indexer, work.expansion) == (0, 0)


@pytest.mark.parametrize(
    ("cache", "flop"),
    [
        # 32 heads, 2 x (128 + 128) FLOP a pair
        pytest.param(FullAttention(8, 128, 128), 32 * 512 * 36, id="full: 36 pairs of 8 tokens"),
        pytest.param(SlidingWindow(8, 128, 128, 3), 32 * 512 * 21, id="a window of 3: 1 + 2 + 6 x 3"),
        pytest.param(ChunkedAttention(8, 128, 128, 3), 32 * 512 * 15, id="chunks of 3, 3 and 2: 6 + 6 + 3"),
        pytest.param(RecurrentState(heads=4, rows=16, columns=8), 8 * 6 * 512, id="a state: six per element"),
        pytest.param(None, 0, id="a layer that only mixes channels"),
    ],
)
def test_attention_by_kind_of_layer(cache: FullAttention | None, flop: int) -> None:
    one = replace(LLAMA_8B, caches=((cache,) if cache else (),))
    assert prefill_work(one, 8).attention == flop


def test_latent_layers_expand_earlier_chunks_again() -> None:
    one = replace(DEEPSEEK, caches=DEEPSEEK.caches[:1])
    whole, chunked = prefill_work(one, 32_768), prefill_work(one, 32_768, chunk=8192)
    # 128 heads with keys of 128 + 64 and values of 128
    assert whole.attention == chunked.attention == 2 * 128 * (128 + 64 + 128) * causal_pairs(32_768)
    assert whole.expansion == 0
    # chunks 2, 3 and 4 expand 1, 2 and 3 chunks before them: rows of 512 to 128 heads x (128 + 128)
    assert chunked.expansion == 6 * 8192 * 2 * 512 * 128 * 256


def test_sparse_layers_attend_to_the_rows_that_their_indexers_choose() -> None:
    work = prefill_work(GLM, MILLION)
    assert work.attention == 78 * 64 * 2 * (576 + 512) * causal_pairs(MILLION, 2048)
    assert work.indexer == 21 * 2 * 32 * 128 * causal_pairs(MILLION)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.repo)
def test_every_model_of_the_catalogue(entry: object) -> None:
    one = model(entry.repo)  # type: ignore[attr-defined]
    short, long = (prefill(one, H200, tokens, ranks=8, chunk=8192) for tokens in (8192, 131_072))
    assert 0 < short.bound < long.bound < long.good <= long.usual[1] or long.basis is Basis.FIT
    assert long.bound < long.seconds
    # sixteen times the tokens are at least sixteen times the work, and at most 256 times
    assert 16 * short.work.total <= long.work.total < 256 * short.work.total
    first, many = (
        decode_bound(one, H200, BF16, tokens=8192, requests=n, spread=Spread(min(8, one.attention_heads)))
        for n in (1, 64)
    )
    assert first.seconds < many.seconds < 64 * first.seconds
    assert first.each > many.each
    assert first.together < many.together


def test_active_parameters_of_a_mixture_whose_tensors_are_not_known() -> None:
    assert GLM_FLASH.checkpoint is None
    assert 5 * GLM_FLASH.active_parameters < GLM_FLASH.parameters
    known = replace(DEEPSEEK, checkpoint=None)
    # against those counted from the tensors: experts of draft layers blur it
    assert known.active_parameters == pytest.approx(DEEPSEEK.active_parameters, rel=0.35)


def test_a_hybrid_with_an_indexer_reads_as_many_rows_as_its_config_says() -> None:
    assert GLM_FLASH.indexer is not None
    fewer = replace(GLM_FLASH, indexer=replace(GLM_FLASH.indexer, top_k=1024))
    read = [decode.kv_bytes_read(one, H200, BF16, tokens=MILLION, tensor=1) for one in (GLM_FLASH, fewer)]
    assert read[0] - read[1] == 11 * 1024 * 512 * 2
    work = [prefill_work(one, MILLION).attention for one in (GLM_FLASH, fewer)]
    pairs = causal_pairs(MILLION, 2048) - causal_pairs(MILLION, 1024)
    # absorbed: scores and sums as wide as the latent row, two operations each
    assert work[0] - work[1] == 11 * 64 * 4 * 512 * pairs
    packed = decode.kv_bytes_read(GLM_FLASH, H200, FP8, tokens=MILLION, tensor=1)
    assert read[0] - packed == 11 * 2048 * 512


# --- seconds of a prompt -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "measured"),
    [
        pytest.param(65_536, 5.59, id="64K"),
        pytest.param(65_536, 7.1, id="64K without the tier"),
        pytest.param(131_072, 14.3, id="128K"),
        pytest.param(974_848, 383, id="975K"),
    ],
)
def test_the_fit_is_near_every_prefill_that_was_measured(tokens: int, measured: float) -> None:
    found = prefill(GLM, H200, tokens, ranks=8)
    assert found.basis is Basis.FIT
    assert float(found.seconds) == pytest.approx(measured, rel=float(FIT_BAND))


def test_the_arithmetic_of_a_published_million_token_prefill() -> None:
    """Llama-3 405B, 1M tokens, 128 H100, 77 s (arXiv 2411.01783): the authors count about 500 TFLOPS per GPU."""
    found = prefill(model("meta-llama/Llama-3.1-405B-Instruct"), H100, 1_000_000, ranks=128)
    per_gpu = Fraction(found.work.total, 77 * 128)
    assert float(per_gpu) == pytest.approx(501e12, rel=0.01)
    assert float(found.bound / 77) == pytest.approx(0.506, abs=0.001)
    assert judge_seconds(found, Fraction(77)).plausibility is Plausibility.PLAUSIBLE


def test_the_shares_are_those_that_were_measured() -> None:
    """tests/data/gpu: one dense layer on an H200, by shape, kernel and length."""
    rows = json.loads((Path(__file__).parents[1] / "data" / "gpu" / "h200-prefill.json").read_text())["rows"]
    peak = gpu("h200").bf16_flops
    shares = {
        kernel: [
            (row["gemmFlop"] + row["attentionFlop"]) / (row["gemmSeconds"] + row["attentionSeconds"]) / peak
            for row in rows
            if row["backend"] == kernel
        ]
        for kernel in ("FLASH_ATTENTION", "CUDNN_ATTENTION")
    }
    slow, fast = (float(share) for share in USUAL_EFFICIENCY)
    assert max(shares["CUDNN_ATTENTION"]) == pytest.approx(float(GOOD_EFFICIENCY), abs=0.005)
    assert min(shares["FLASH_ATTENTION"]) < slow < fast < max(shares["CUDNN_ATTENTION"])
    assert statistics.median(shares["FLASH_ATTENTION"]) == pytest.approx(slow, abs=0.02)


def test_usual_and_good_shares_of_the_peak() -> None:
    found = prefill(DENSE_32B, A100, 800_000, ranks=2)
    slow, fast = USUAL_EFFICIENCY
    assert found.bound == Fraction(found.work.total, 2 * 312 * 10**12)
    assert found.usual == (found.bound / fast, found.bound / slow)
    assert found.good == found.bound / GOOD_EFFICIENCY
    assert found.seconds == found.usual[1]


def test_fp8_weights_use_the_fp8_peak_and_attention_does_not() -> None:
    eight = replace(DENSE_32B, weight_bytes=32_000_000_000, weight_width=1)
    plain, fp8 = (prefill(one, H200, 131_072, ranks=1) for one in (DENSE_32B, eight))
    work = fp8.work
    assert work == plain.work
    slow, _ = USUAL_EFFICIENCY
    at_peak = Fraction(work.parameters, 1979 * 10**12) + Fraction(work.attention, 989 * 10**12)
    assert fp8.seconds == at_peak / slow
    # the bound gives attention the FP8 rate too, so that nobody is called impossible who is not
    assert fp8.bound == Fraction(work.total, 1979 * 10**12)
    # a card without FP8 multiplies the same weights in 16 bits
    assert prefill(eight, A100, 131_072, ranks=1).bound == Fraction(work.total, 312 * 10**12)


def test_four_bit_weights_are_multiplied_in_sixteen() -> None:
    four = model("moonshotai/Kimi-K2-Thinking")
    assert four.weight_width == 1
    found = prefill(four, H200, 8192, ranks=8)
    assert found.bound == Fraction(found.work.total, 8 * 989 * 10**12)


def test_small_chunks_are_bound_by_reading_the_weights_again() -> None:
    large, small = (prefill(DENSE_32B, H200, 8192, ranks=1, chunk=chunk) for chunk in (8192, 32))
    assert (large.basis, small.basis) == (Basis.EFFICIENCY, Basis.WEIGHTS)
    assert small.seconds == Fraction(256 * 64_000_000_000, 4_800_000_000_000)


def test_links_between_ranks() -> None:
    # 40 layers x 2 all-reduces x 2 x 1/2 x 800,000 x 5,120 x 2 B over 300 GB/s
    assert allreduce_seconds(DENSE_32B, A100, 800_000, tensor=2) == Fraction(40 * 2 * 800_000 * 5120 * 2, 300 * 10**9)
    assert allreduce_seconds(DENSE_32B, A100, 800_000, tensor=1) == 0
    assert allreduce_seconds(DENSE_32B, gpu("l40s"), 800_000, tensor=2) is None


# --- one step of decoding ------------------------------------------------------------------------------------------

HBM_COPY, HOST_COPY = 4_300_000_000_000, 55_000_000_000


@pytest.mark.parametrize(
    ("shape", "weights", "dtype", "in_host", "kv_ms", "total_ms", "rate"),
    [
        pytest.param(LLAMA_8B, 16, BF16, False, 30.48, 34.20, 29.2, id="8B bf16"),
        pytest.param(LLAMA_8B, 16, FP8, False, 15.24, 18.96, 52.7, id="8B fp8"),
        pytest.param(LLAMA_8B, 16, INT4, False, 8.10, 11.82, 84.6, id="8B int4"),
        pytest.param(LLAMA_8B, 16, BF16, True, 2383.13, 2386.85, 0.4, id="8B bf16 in host"),
        pytest.param(LLAMA_8B, 16, INT4, True, 633.02, 636.74, 1.6, id="8B int4 in host"),
        pytest.param(DENSE_32B, 64, BF16, False, 38.10, 52.99, 18.9, id="32B bf16"),
        pytest.param(DENSE_32B, 64, FP8, False, 19.05, 33.93, 29.5, id="32B fp8"),
        pytest.param(DENSE_32B, 64, INT4, False, 10.12, 25.00, 40.0, id="32B int4"),
        pytest.param(DENSE_32B, 64, BF16, True, 2978.91, 2993.79, 0.3, id="32B bf16 in host"),
        pytest.param(DENSE_32B, 64, INT4, True, 791.27, 806.16, 1.2, id="32B int4 in host"),
        pytest.param(DENSE_32B, 32, FP8, False, 19.05, 26.49, 37.7, id="32B fp8 weights, fp8"),
        pytest.param(DENSE_32B, 32, INT4, False, 10.12, 17.56, 56.9, id="32B fp8 weights, int4"),
        pytest.param(DENSE_32B, 32, BF16, True, 2978.91, 2986.35, 0.3, id="32B fp8 weights, bf16 in host"),
    ],
)
def test_roofline_at_a_million_tokens(
    shape: ModelFacts,
    weights: int,
    dtype: KvDtype,
    in_host: bool,
    kv_ms: float,
    total_ms: float,
    rate: float,
) -> None:
    """Worked out by hand for 4.3 TB/s of HBM copy and 55 GB/s of host reads that wait for the rest of the step."""
    rows = decode.kv_bytes_read(shape, H200, dtype, tokens=1_000_000, tensor=1)
    size = weights * 10**9
    reads = StepBytes(size, 0, rows) if in_host else StepBytes(size, rows)
    seconds = reads.serial_seconds(HBM_COPY, HOST_COPY)
    assert float(1000 * (seconds - Fraction(size, HBM_COPY))) == pytest.approx(kv_ms, abs=0.006)
    assert float(1000 * seconds) == pytest.approx(total_ms, abs=0.006)
    assert float(1 / seconds) == pytest.approx(rate, abs=0.051)


def test_what_a_step_reads_of_each_kind_of_layer() -> None:
    def rows(*caches: object, tokens: int = 10_000) -> int:
        one = replace(LLAMA_8B, caches=(caches,))  # type: ignore[arg-type]
        return decode.kv_bytes_read(one, H200, BF16, tokens=tokens, tensor=1)

    row = 8 * 256 * 2
    assert rows(FullAttention(8, 128, 128)) == 10_000 * row
    assert rows(SlidingWindow(8, 128, 128, 4096)) == 4096 * row
    assert rows(SlidingWindow(8, 128, 128, 4096), tokens=100) == 100 * row
    assert rows(ChunkedAttention(8, 128, 128, 8192)) == (10_000 - 8192) * row
    assert rows(ChunkedAttention(8, 128, 128, 8192), tokens=8192) == 8192 * row
    # read and written
    assert rows(RecurrentState(heads=4, rows=16, columns=8)) == 2 * 4 * 16 * 8 * 2
    assert rows() == 0


def test_a_sparse_model_reads_chosen_rows_and_all_keys_of_its_indexers() -> None:
    size = decode.kv_bytes_read(GLM, H200, FP8, tokens=MILLION, tensor=8)
    assert size == 78 * 2048 * 656 + 21 * MILLION * 132
    assert decode.kv_bytes_read(GLM, H200, FP8, tokens=100, tensor=8) == 78 * 100 * 656 + 21 * 100 * 132


def test_latent_rows_are_not_divided_over_ranks() -> None:
    one, eight = (decode.kv_bytes_read(DEEPSEEK, H200, BF16, tokens=1000, tensor=ranks) for ranks in (1, 8))
    assert one == eight == 61 * 1000 * 1152


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        pytest.param(1, Fraction(8), id="one token uses the experts that it picks"),
        pytest.param(2, Fraction(256) * (1 - Fraction(31, 32) ** 2), id="two share some"),
        pytest.param(10_000, Fraction(256), id="many use them all"),
    ],
)
def test_distinct_experts(tokens: int, expected: Fraction) -> None:
    assert float(distinct_experts(256, 8, tokens)) == pytest.approx(float(expected))


def test_a_mixture_reads_more_experts_the_more_tokens_there_are() -> None:
    one, many = (decode.weight_bytes_read(DEEPSEEK, n, tensor=8) for n in (1, 4096))
    share = Fraction(DEEPSEEK.active_parameters, DEEPSEEK.parameters)
    assert one == DEEPSEEK.weight_bytes * share / 8
    # all experts and the rest; the input table is not read
    assert float(many) == pytest.approx(DEEPSEEK.weight_bytes / 8, rel=0.01)
    assert many < Fraction(DEEPSEEK.weight_bytes, 8)
    assert decode.weight_bytes_read(DENSE_32B, 1, tensor=2) == decode.weight_bytes_read(DENSE_32B, 64, tensor=2)


def test_experts_are_spread_over_data_parallel_ranks_and_the_rest_is_not() -> None:
    size, total = DEEPSEEK.weight_bytes, DEEPSEEK.parameters
    counts = DEEPSEEK.checkpoint.parameters if DEEPSEEK.checkpoint else None
    assert counts is not None
    rest = Fraction(counts.active - counts.experts * 8 // 256, total)
    used = Fraction(counts.experts, total) * distinct_experts(256, 8, 8) / 256
    assert decode.weight_bytes_read(DEEPSEEK, 1, tensor=1, data=8) == size * (rest + used / 8)


def test_a_step_is_as_fast_as_what_it_waits_for() -> None:
    short = decode_bound(DENSE_32B, H200, BF16, tokens=1000, requests=1)
    assert (short.binds, short.seconds) == (Binds.HBM, Fraction(64 * 10**9 + 163_840 * 1000, 4_800_000_000_000))
    host = decode_bound(DENSE_32B, H200, BF16, tokens=MILLION, requests=1, kv_in_host=True)
    assert (host.binds, host.seconds) == (Binds.HOST, Fraction(163_840 * MILLION, 55_200_000_000))
    batch = decode_bound(DENSE_32B, H200, BF16, tokens=1, requests=2048)
    assert batch.binds is Binds.COMPUTE
    assert batch.seconds == Fraction(2048 * decode.decode_flop(DENSE_32B, 1), 989 * 10**12)


def test_decode_work_is_what_the_last_token_of_a_prompt_takes() -> None:
    for one in (DENSE_32B, LLAMA_8B, GLM):
        longer, shorter = (prefill_work(one, tokens).total for tokens in (10_000, 9_999))
        assert decode.decode_flop(one, 10_000) == longer - shorter


def test_requests_are_spread_over_data_ranks_and_stages() -> None:
    alone = decode_bound(DENSE_32B, H200, BF16, tokens=1000, requests=4)
    for way in (Spread(1, 2, 1), Spread(1, 1, 2)):
        both = decode_bound(DENSE_32B, H200, BF16, tokens=1000, requests=8, spread=way)
        assert both.seconds == alone.seconds
        assert both.together == 2 * alone.together


def test_drafted_tokens_are_taken_as_accepted() -> None:
    plain, drafting = (decode_bound(DENSE_32B, H200, BF16, tokens=1000, requests=1, drafted=n) for n in (0, 3))
    # a dense model reads the same weights and rows for four tokens as for one
    assert (drafting.seconds, drafting.each) == (plain.seconds, 4 * plain.each)
    one, four = (decode_bound(DENSE_32B, H200, BF16, tokens=1, requests=2048, drafted=n) for n in (0, 3))
    # where arithmetic binds, every drafted token is one more to compute
    assert (four.binds, four.each) == (Binds.COMPUTE, one.each)
    first, more = (decode_bound(GLM, H200, FP8, tokens=1000, requests=1, drafted=n) for n in (0, 3))
    assert first.reads.weights < more.reads.weights < 4 * first.reads.weights


def test_decode_context_ranks_share_the_rows_of_a_request() -> None:
    one, two = (
        decode_bound(DENSE_32B, H200, BF16, tokens=MILLION, requests=1, spread=Spread(16, context=n)) for n in (1, 2)
    )
    assert two.reads.kv == one.reads.kv // 2
    assert two.reads.weights == one.reads.weights


def test_pages_of_the_three_tiers_over_the_host_link() -> None:
    cold = HybridGeometry(
        layers=32,
        kv_heads=8,
        head_dim=128,
        warm_k=None,
        warm_v=None,
        cold_k=RHT_INT4_ZERO,
        cold_v=RHT_INT4_ZERO,
    )
    # 4,096 refined tokens of an 8B model at 4.25 bits
    every, few = (cold.bytes_fetched_per_step(4096, miss) for miss in (Fraction(1), Fraction(15, 100)))
    assert [round(size / 1e6, 1) for size in (every, few)] == [142.6, 21.4]
    reads = StepBytes(16 * 10**9, 5_460_000_000, every)
    assert float(1000 * reads.host_seconds(HOST_COPY)) == pytest.approx(2.59, abs=0.01)
    assert float(1000 * reads.serial_seconds(HBM_COPY, HOST_COPY)) == pytest.approx(7.58, abs=0.01)


# --- host reads as measured ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("decoding", "added_ms", "ratio"),
    [pytest.param(1, 18.2, 2.68, id="1"), pytest.param(4, 20.9, 2.70, id="4"), pytest.param(11, 24.0, 2.70, id="11")],
)
def test_host_reads(decoding: int, added_ms: float, ratio: float) -> None:
    run = next(one for one in HOST_READ_RUNS if one.decoding == decoding)
    assert run.added_us / 1000 == pytest.approx(added_ms, abs=0.05)
    assert float(run.slowdown) == pytest.approx(ratio, abs=0.005)
    assert float(estimates.HOST_READ_SLOWDOWN) == pytest.approx(ratio, rel=0.01)


def test_the_tier_pays_from_three_times_the_requests() -> None:
    assert [decode.break_even_requests(plain) for plain in (1, 2, 10)] == [3, 6, 27]
    assert decode.tier_throughput(Fraction(27, 10)) == 1
    assert decode.tier_throughput(Fraction(3)) > 1 > decode.tier_throughput(Fraction(5, 2))


def test_a_large_batch_gives_less_than_the_ratio_says() -> None:
    one, four, eleven = HOST_READ_RUNS
    # 288.8 tokens/s against 92.6
    assert float(decode.measured_gain(one, eleven)) == pytest.approx(288.8 / 92.6, rel=0.01)
    assert float(decode.tier_throughput(Fraction(11))) == pytest.approx(4.07, abs=0.01)
    # at the same batch the ratio holds
    assert float(decode.measured_gain(four, four)) == pytest.approx(
        float(decode.tier_throughput(Fraction(1))), rel=0.01
    )


# --- verdicts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "verdict"),
    [
        pytest.param(78, Plausibility.IMPOSSIBLE, id="ten times faster than usual"),
        pytest.param(502, Plausibility.IMPOSSIBLE, id="just below the peak"),
        pytest.param(503, Plausibility.IMPLAUSIBLE, id="at the peak"),
        pytest.param(727, Plausibility.IMPLAUSIBLE, id="above the best that is known"),
        pytest.param(798, Plausibility.PLAUSIBLE, id="at the best that is known"),
        pytest.param(5000, Plausibility.PLAUSIBLE, id="slow"),
    ],
)
def test_eight_hundred_thousand_tokens_on_two_a100(seconds: int, verdict: Plausibility) -> None:
    found = judge_seconds(prefill(DENSE_32B, A100, 800_000, ranks=2), Fraction(seconds))
    assert found.plausibility is verdict


def test_about_ten_times_too_fast() -> None:
    found = judge_seconds(prefill(DENSE_32B, A100, 800_000, ranks=2), Fraction(78))
    assert float(found.bound) == pytest.approx(502, abs=0.5)
    assert [float(one) for one in found.usual] == pytest.approx([837, 1255], abs=0.5)
    assert int(found.times) == 10


def test_the_measured_prefill_of_a_sparse_model_is_what_a_claim_is_held_against() -> None:
    found = prefill(GLM, H200, MILLION, ranks=8)
    assert judge_seconds(found, Fraction(40)).plausibility is Plausibility.IMPLAUSIBLE
    assert judge_seconds(found, Fraction(383)).plausibility is Plausibility.PLAUSIBLE
    assert judge_seconds(found, Fraction(10)).plausibility is Plausibility.IMPOSSIBLE
    # on more GPUs than were measured only arithmetic speaks
    more = prefill(GLM, gpu("b200"), MILLION, ranks=8)
    assert judge_seconds(more, Fraction(40)).plausibility is Plausibility.PLAUSIBLE


@pytest.mark.parametrize(
    ("rate", "verdict"),
    [
        pytest.param("18.7", Plausibility.PLAUSIBLE, id="in the usual range"),
        pytest.param("24.9", Plausibility.IMPLAUSIBLE, id="more than a copy reaches"),
        pytest.param("27.3", Plausibility.IMPOSSIBLE, id="more than the memory gives"),
    ],
)
def test_tokens_per_second(rate: str, verdict: Plausibility) -> None:
    # on each GPU 32 GB of weights and 40 GiB of bf16 KV over 2.039 TB/s
    found = decode_bound(DENSE_32B, A100, BF16, tokens=524_288, requests=1, spread=Spread(2))
    assert float(found.each) == pytest.approx(27.2, abs=0.01)
    assert judge_rate(found, Fraction(rate)).plausibility is verdict
