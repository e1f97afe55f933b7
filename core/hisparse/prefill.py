"""Seconds of a prefill: the arithmetic that a prompt takes, and how fast a GPU may, and usually does, get through it.

Counted: 2 FLOP per active parameter and token, and per layer the scores and sums over the rows that a token looks at.
Active parameters include the output matrix, which an engine multiplies once per prompt; layers that read the keys of an
earlier layer have no cache here and their attention is not counted. Norms, softmax and rotations are left out.

The bound is arithmetic: all of it at the tensor cores' dense peak, nothing lost. Seconds are labelled estimates: DSA by
a fit to measured prefills, everything else by a usual share of that peak.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import Final

from hisparse.architectures import Attention
from hisparse.hardware import Gpu
from hisparse.layers import (
    ChunkedAttention,
    FullAttention,
    IndexerKeys,
    Latent,
    LayerCaches,
    RecurrentState,
    SlidingWindow,
)
from hisparse.model import ModelFacts
from hisparse.rounding import cdiv, ceil

USUAL_EFFICIENCY: Final = (Fraction(40, 100), Fraction(60, 100))
"""Share of the dense peak that prefill of long prompts usually reaches, slow and fast: an estimate.

Between the measured layers of a dense model on an H200 with older kernels (36 to 59 %) and with those made for the
card (62 to 69 %), which leave out norms, RoPE, cache writes, all-reduces and the scheduler (docs/engine-facts.md).
"""

GOOD_EFFICIENCY: Final = Fraction(69, 100)
"""The best share that was measured: one layer's matrices and attention alone, without the rest of a step.

Whole runs stay below: Llama-3 405B, a million tokens, 128 H100, 77 s (arXiv 2411.01783) is 63 % by the authors' count
and 50 % by ours against the data sheet's 989 TFLOPS.
"""

FIT_BAND: Final = Fraction(25, 100)
"""The fit for DSA is within this share of every prefill that was measured."""

EXPANDED_DIM: Final = 128
"""Dimensions of a head's own keys, and of its values, once prefill has expanded latent rows (DeepSeek-V2/V3, Kimi)."""

INDEX_HEADS: Final = 32
"""Query heads of a lightning indexer: 32 in GLM-5.x, 64 in DeepSeek-V3.2; the smaller, so that a bound stays one."""

_STATE_FLOP: Final = 6
"""Decay, update and read of one element of a recurrent state: two operations each."""

_KIB_64: Final = 65_536
_FIT_LAYERS: Final = 78
_FIT_RANKS: Final = 8
_FIT_GPU_FLOPS: Final = 989_000_000_000_000


class Basis(StrEnum):
    """What an estimate of seconds rests on."""

    FIT = "fit to measured prefills of one tensor-parallel rank of GLM-5.3 on H200, dummy experts, scaled by layers"
    EFFICIENCY = "FLOP at 40 % of the dense peak"
    WEIGHTS = "weights read once per chunk at HBM bandwidth"


@dataclass(frozen=True)
class Work:
    """FLOP of one prompt on all GPUs together.

    expansion is what latent attention spends on expanding earlier chunks again.
    """

    parameters: int
    attention: int
    indexer: int = 0
    expansion: int = 0

    @property
    def total(self) -> int:
        """All of it."""
        return self.parameters + self.attention + self.indexer + self.expansion


@dataclass(frozen=True)
class Prefill:
    """One prompt, alone on the engine, on `ranks` GPUs that share the work.

    seconds is the estimate and basis what it rests on; usual are the seconds at USUAL_EFFICIENCY, or the band of the
    fit, fast and slow; bound is all of the work at 100 % of the peak; good is the fastest that has been seen.
    """

    tokens: int
    ranks: int
    work: Work
    seconds: Fraction
    basis: Basis
    usual: tuple[Fraction, Fraction]
    bound: Fraction
    good: Fraction


def causal_pairs(tokens: int, reach: int | None = None) -> int:
    """Pairs of a token and one that it sees, itself included; `reach` is how many it sees at most."""
    near = tokens if reach is None else min(tokens, reach)
    return near * (near + 1) // 2 + (tokens - near) * near


def prefill_work(model: ModelFacts, tokens: int, *, chunk: int | None = None) -> Work:
    """FLOP of a prompt of `tokens`, prefilled `chunk` tokens at a time (None: in one pass)."""
    layers = [_layer_work(model, layer, tokens, chunk or tokens) for layer in model.caches]
    return Work(
        parameters=2 * model.active_parameters * tokens,
        attention=sum(one.attention for one in layers),
        indexer=sum(one.indexer for one in layers),
        expansion=sum(one.expansion for one in layers),
    )


def prefill(model: ModelFacts, gpu: Gpu, tokens: int, *, ranks: int, chunk: int | None = None) -> Prefill:
    """What a prompt of `tokens` takes on `ranks` GPUs of one replica (tensor x pipeline parallel).

    A fit to measurements stays as it is whatever the GPU and the ranks. All-reduces are not added (allreduce_seconds):
    the usual efficiency has them in it.
    """
    work = prefill_work(model, tokens, chunk=chunk)
    bound = Fraction(work.total, ranks * _best_rate(model, gpu))
    full = _at_peak(model, gpu, work, ranks)
    good = max(bound, full / GOOD_EFFICIENCY)
    fitted = _fitted(model, tokens)
    if fitted is not None:
        usual = (fitted * (1 - FIT_BAND), fitted * (1 + FIT_BAND))
        if ranks * gpu.bf16_flops <= _FIT_RANKS * _FIT_GPU_FLOPS:
            good = max(good, usual[0])
        return Prefill(tokens, ranks, work, fitted, Basis.FIT, usual, bound, good)
    slow, fast = (full / share for share in USUAL_EFFICIENCY)
    reads = Fraction(cdiv(tokens, chunk or tokens) * model.weight_bytes, ranks * gpu.hbm_bytes_per_second)
    seconds, basis = max((slow, Basis.EFFICIENCY), (reads, Basis.WEIGHTS))
    return Prefill(tokens, ranks, work, seconds, basis, (fast, slow), bound, good)


def prefill_seconds(model: ModelFacts, gpu: Gpu, tokens: int, *, ranks: int, chunk: int | None = None) -> int:
    """Estimated seconds until the first token of a fresh prompt, alone on the engine, rounded up.

    DSA: 4.06 s x (n/64K) + 1.54 s x (n/64K)^2, fitted on one tensor-parallel rank of GLM-5.3 with dummy experts and
    scaled by layers: real weights will be slower. Others: `prefill_work` at 40 % of the dense peak.
    """
    return ceil(prefill(model, gpu, tokens, ranks=ranks, chunk=chunk).seconds)


def allreduce_seconds(model: ModelFacts, gpu: Gpu, tokens: int, *, tensor: int) -> Fraction | None:
    """Seconds that tensor-parallel ranks spend on links if nothing overlaps: two ring all-reduces a layer, 2 bytes.

    None where the GPU has no NVLink to every other: then the host's links carry it, which nobody measured here.
    """
    if tensor == 1:
        return Fraction(0)
    if not gpu.nvlink_bytes_per_second:
        return None
    sent = 2 * Fraction(2 * (tensor - 1), tensor) * tokens * model.hidden_size * 2
    return model.layers * sent / gpu.nvlink_bytes_per_second


def eight_bit(model: ModelFacts) -> bool:
    """Whether weights have about one byte per parameter; 4-bit weights are multiplied in 16 bits."""
    return model.weight_width == 1 and 4 * model.weight_bytes >= 3 * model.parameters


def _fitted(model: ModelFacts, tokens: int) -> Fraction | None:
    if model.attention is not Attention.DSA:
        return None
    x = Fraction(tokens, _KIB_64)
    return (Fraction(406, 100) * x + Fraction(154, 100) * x * x) * Fraction(model.layers, _FIT_LAYERS)


def _best_rate(model: ModelFacts, gpu: Gpu) -> int:
    """FLOP per second at the most generous: FP8 also for attention where the weights are FP8."""
    return gpu.fp8_flops if gpu.fp8_flops is not None and eight_bit(model) else gpu.bf16_flops


def _at_peak(model: ModelFacts, gpu: Gpu, work: Work, ranks: int) -> Fraction:
    """Seconds at the peak of the usual kernels: parameters in the dtype of the weights, attention in 16 bits."""
    rest = work.total - work.parameters
    return Fraction(work.parameters, ranks * _best_rate(model, gpu)) + Fraction(rest, ranks * gpu.bf16_flops)


def _layer_work(model: ModelFacts, layer: LayerCaches, tokens: int, chunk: int) -> Work:
    heads = model.attention_heads
    attention = indexer = expansion = 0
    for cache in layer:
        match cache:
            case FullAttention():
                attention += 2 * heads * (cache.key_dim + cache.value_dim) * causal_pairs(tokens)
            case SlidingWindow():
                attention += 2 * heads * (cache.key_dim + cache.value_dim) * causal_pairs(tokens, cache.window)
            case ChunkedAttention():
                whole, rest = divmod(tokens, cache.chunk)
                pairs = whole * causal_pairs(cache.chunk) + causal_pairs(rest)
                attention += 2 * heads * (cache.key_dim + cache.value_dim) * pairs
            case Latent() if model.indexer is not None:
                # absorbed: queries and sums have the width of the latent row
                attention += 2 * heads * (2 * cache.rank + cache.rope_dim) * causal_pairs(tokens, model.indexer.top_k)
            case Latent():
                attention += 2 * heads * (2 * EXPANDED_DIM + cache.rope_dim) * causal_pairs(tokens)
                passes = cdiv(tokens, chunk)
                expansion += 2 * cache.rank * heads * 2 * EXPANDED_DIM * chunk * (passes * (passes - 1) // 2)
            case IndexerKeys():
                indexer += 2 * INDEX_HEADS * cache.head_dim * causal_pairs(tokens) // cache.pool
            case RecurrentState():
                attention += state_flop(cache) * tokens
    return Work(0, attention, indexer, expansion)


def state_flop(state: RecurrentState) -> int:
    """FLOP of one token in a recurrent layer beside its parameters."""
    return _STATE_FLOP * state.heads * state.rows * state.columns
