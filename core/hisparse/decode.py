"""Seconds of one decoded token: a roofline of the bytes that every step reads, and what was measured of host reads.

A step reads the weights that its tokens use and the KV rows of all its requests. Over HBM bandwidth that is a bound:
launches, all-reduces, sampling and anything short of the data sheet's bandwidth only make it slower.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import Final

from hisparse.estimates import HOST_READ_SLOWDOWN
from hisparse.hardware import Gpu
from hisparse.layers import (
    Cache,
    ChunkedAttention,
    FullAttention,
    IndexerKeys,
    Latent,
    RecurrentState,
    SlidingWindow,
)
from hisparse.model import ModelFacts
from hisparse.prefill import INDEX_HEADS, eight_bit, state_flop
from hisparse.rounding import cdiv, ceil
from hisparse.rows import KvDtype, attention_row_bytes, indexer_row_bytes, latent_row_bytes, state_bytes

USUAL_BANDWIDTH: Final = (Fraction(60, 100), Fraction(85, 100))
"""Share of the data sheet's HBM bandwidth that decoding usually reaches, slow and fast: an estimate, the range that
public glossaries give for "model bandwidth utilization". Small models at small batches stay below it."""

GOOD_BANDWIDTH: Final = Fraction(90, 100)
"""Share that a plain copy reaches: 4.25 to 4.3 TB/s of 4.8 on an H200. A decode step does more than copy."""


class Binds(StrEnum):
    """What a decode step waits for."""

    HBM = "HBM"
    HOST = "host link"
    COMPUTE = "tensor cores"


@dataclass(frozen=True)
class StepBytes:
    """Bytes that one GPU reads for one decode step: weights and KV from HBM, and what comes from host memory."""

    weights: int
    kv: int
    host: int = 0

    def hbm_seconds(self, hbm_rate: int) -> Fraction:
        """Seconds at `hbm_rate` bytes per second."""
        return Fraction(self.weights + self.kv, hbm_rate)

    def host_seconds(self, host_rate: int) -> Fraction:
        """Seconds that host reads take on their own link."""
        return Fraction(self.host, host_rate)

    def serial_seconds(self, hbm_rate: int, host_rate: int) -> Fraction:
        """Seconds where host reads wait for the rest of the step; where they overlap, the longer of the two counts."""
        return self.hbm_seconds(hbm_rate) + self.host_seconds(host_rate)


@dataclass(frozen=True)
class DecodeBound:
    """An upper bound on the speed of `requests` that decode at once, each `tokens` long; bytes are those of one GPU.

    seconds are those of a step, which gives every request step_tokens: more than one where drafted tokens are accepted.
    """

    requests: int
    tokens: int
    reads: StepBytes
    seconds: Fraction
    binds: Binds
    step_tokens: int = 1

    @property
    def each(self) -> Fraction:
        """Tokens per second of one request, at most."""
        return self.step_tokens / self.seconds

    @property
    def together(self) -> Fraction:
        """Tokens per second of all requests, at most."""
        return self.requests * self.each


@dataclass(frozen=True)
class Spread:
    """How one replica spreads over its GPUs; context are ranks that share the rows of a request (decode context)."""

    tensor: int = 1
    data: int = 1
    pipeline: int = 1
    context: int = 1


def decode_bound(
    model: ModelFacts,
    gpu: Gpu,
    dtype: KvDtype,
    *,
    tokens: int,
    requests: int,
    spread: Spread | None = None,
    drafted: int = 0,
    kv_in_host: bool = False,
) -> DecodeBound:
    """The roofline of one step. kv_in_host: every row is read from host memory, as a dense model would have to.

    drafted tokens are all accepted, and what drafts them is not counted: the bound stays one.
    Requests are spread over data-parallel ranks and pipeline stages. A token passes all stages one after the other, so
    that a pipeline reads as many weights per token as one stage alone would.
    """
    way = spread or Spread()
    batch = cdiv(requests, way.data * way.pipeline)
    kv = batch * kv_bytes_read(model, gpu, dtype, tokens=tokens, tensor=way.tensor) // way.context
    step_tokens = 1 + drafted
    weights = ceil(weight_bytes_read(model, batch * step_tokens, tensor=way.tensor, data=way.data))
    reads = StepBytes(weights, 0, kv) if kv_in_host else StepBytes(weights, kv)
    rate = gpu.fp8_flops if gpu.fp8_flops is not None and eight_bit(model) else gpu.bf16_flops
    candidates = (
        (reads.hbm_seconds(gpu.hbm_bytes_per_second), Binds.HBM),
        (reads.host_seconds(gpu.host_bytes_per_second), Binds.HOST),
        (Fraction(batch * step_tokens * decode_flop(model, tokens), way.tensor * rate), Binds.COMPUTE),
    )
    seconds, binds = max(candidates, key=lambda one: one[0])
    return DecodeBound(requests, tokens, reads, seconds, binds, step_tokens)


# --- weights ---------------------------------------------------------------------------------------------------------


def distinct_experts(experts: int, chosen: int, tokens: int) -> Fraction:
    """Experts of one layer that `tokens` tokens use together, expected, if each picks `chosen` of them evenly.

    Real routers favour some experts, so that fewer are used.
    """
    return experts * (1 - Fraction(experts - chosen, experts) ** tokens)


def weight_bytes_read(model: ModelFacts, batch: int, *, tensor: int, data: int = 1) -> Fraction:
    """Bytes of weights that one GPU reads for a step in which each data-parallel rank decodes `batch` tokens.

    A single token reads the active parameters; every other token adds the experts that no token before it used. Experts
    lie over all tensor x data ranks and are read for the tokens of all; the rest is on every data-parallel rank.
    """
    active = Fraction(model.active_parameters, model.parameters)
    share, chosen = _expert_share(model), model.experts_per_token
    if not share:
        return model.weight_bytes * active / tensor
    rest = max(Fraction(0), active - share * Fraction(chosen, model.experts))
    used = share * distinct_experts(model.experts, chosen, batch * data) / model.experts
    return model.weight_bytes * (rest / tensor + used / (tensor * data))


def _expert_share(model: ModelFacts) -> Fraction:
    """The part of the parameters that routed experts are; 0 where the model is dense."""
    if not model.experts:
        return Fraction(0)
    if model.checkpoint is not None:
        return Fraction(model.checkpoint.parameters.experts, model.parameters)
    return Fraction(model.expert_bytes, model.weight_bytes)


# --- keys, values and states -----------------------------------------------------------------------------------------


def kv_bytes_read(model: ModelFacts, gpu: Gpu, dtype: KvDtype, *, tokens: int, tensor: int) -> int:
    """Bytes of KV cache and states that one GPU reads to decode one token of a request of `tokens`.

    A window reads its window, a sparse layer the rows that its indexer chose and all keys of the indexer. States are
    read and written. Pipeline stages are counted together.
    """
    return sum(
        _cache_bytes(model, cache, gpu, dtype, tokens=tokens, tensor=tensor)
        for layer in model.caches
        for cache in layer
    )


def _cache_bytes(model: ModelFacts, cache: Cache, gpu: Gpu, dtype: KvDtype, *, tokens: int, tensor: int) -> int:
    match cache:
        case FullAttention() | SlidingWindow() | ChunkedAttention():
            return attention_row_bytes(cache, dtype, tensor=tensor) * _rows(model, cache, tokens)
        case Latent():
            row = latent_row_bytes(cache, dtype, gpu, sparse=model.has_indexer)
            return row * _rows(model, cache, tokens)
        case IndexerKeys():
            return indexer_row_bytes(cache) * cdiv(tokens, cache.pool)
        case RecurrentState():
            return 2 * state_bytes(cache, tensor=tensor)


def _rows(model: ModelFacts, cache: Cache, tokens: int) -> int:
    """Rows of keys and values that the last of `tokens` tokens attends to."""
    match cache:
        case SlidingWindow():
            return min(tokens, cache.window)
        case ChunkedAttention():
            return (tokens - 1) % cache.chunk + 1
        case Latent() if model.indexer is not None:
            return min(tokens, model.indexer.top_k)
    return tokens


def decode_flop(model: ModelFacts, tokens: int) -> int:
    """FLOP of one token decoded behind `tokens`, on all tensor-parallel ranks. Latent rows are read absorbed."""
    heads, flop = model.attention_heads, 2 * model.active_parameters
    for layer in model.caches:
        for cache in layer:
            match cache:
                case FullAttention() | SlidingWindow() | ChunkedAttention():
                    rows = _rows(model, cache, tokens)
                    flop += 2 * heads * (cache.key_dim + cache.value_dim) * rows
                case Latent():
                    flop += 2 * heads * (2 * cache.rank + cache.rope_dim) * _rows(model, cache, tokens)
                case IndexerKeys():
                    flop += 2 * INDEX_HEADS * cache.head_dim * cdiv(tokens, cache.pool)
                case RecurrentState():
                    flop += state_flop(cache)
    return flop


# --- the tier: host reads as measured --------------------------------------------------------------------------------


@dataclass(frozen=True)
class HostReadRun:
    """Median inter-token latency with `decoding` requests of 128K tokens, in microseconds.

    hbm_us with all KV in HBM, tier_us with every latent row read from host memory. One rank of GLM-5.3 on an H200.
    """

    decoding: int
    hbm_us: int
    tier_us: int

    @property
    def added_us(self) -> int:
        """What reading from host adds to every step."""
        return self.tier_us - self.hbm_us

    @property
    def slowdown(self) -> Fraction:
        """How much longer a token takes."""
        return Fraction(self.tier_us, self.hbm_us)


HOST_READ_RUNS: Final = (
    HostReadRun(1, 10_850, 29_070),
    HostReadRun(4, 12_340, 33_280),
    HostReadRun(11, 14_100, 38_100),
)
"""Measured with vLLM 0.33: the cost is a latency per step, not bandwidth, and the ratio hardly depends on the batch."""


def tier_throughput(concurrency_gain: Fraction) -> Fraction:
    """Decode throughput of the tier over plain KV, where it runs `concurrency_gain` times the requests.

    Takes the batch to cost nothing. It does: 11 requests against 1 give 4.07 here and 3.12 measured (measured_gain).
    """
    return concurrency_gain / HOST_READ_SLOWDOWN


def break_even_requests(plain: int) -> int:
    """Requests at once from which the tier decodes at least as many tokens per second as `plain` ones in HBM."""
    return ceil(plain * HOST_READ_SLOWDOWN)


def measured_gain(plain: HostReadRun, tier: HostReadRun) -> Fraction:
    """Tokens per second of the tier's run over those of the plain run, by their latencies."""
    return Fraction(tier.decoding, tier.tier_us) / Fraction(plain.decoding, plain.hbm_us)
