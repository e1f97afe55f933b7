"""Seconds and bytes that no rule of the engine gives: measured once, labelled as estimates wherever they show.

Measured on one and two H200 SXM with vLLM 0.33 (docs/engine-facts.md); bands are in the tests.
"""

from __future__ import annotations

from fractions import Fraction

from hisparse.architectures import Attention
from hisparse.hardware import Gpu
from hisparse.model import ModelFacts
from hisparse.units import GIB

HOST_READ_SLOWDOWN = Fraction(27, 10)
"""Inter-token latency of a request that reads KV from host over one that reads HBM: 2.68-2.70 at 1 to 11 requests."""

ENDPOINT_GRACE_SECONDS = 10
"""Between not ready and the last request that an endpoint controller or client still sends."""

SHUTDOWN_TIMEOUT_SECONDS = 60
"""What vLLM itself waits for requests after SIGTERM; the launcher has drained before."""

AUTO_GAIN = 3
"""Concurrency gain from which mode Auto takes the tier: below it host reads cost more than they gain."""

BATCHED_TOKENS = 8192
"""max_num_batched_tokens; FlashMLA scratch at 32K tokens has killed fp8 engines on Hopper."""

_KIB_64 = 65_536


def activation_bytes(max_batched_tokens: int) -> int:
    """Peak activation in the engine's profile run: 4.8-5.6 GiB in public H100/H200 logs at 8192 tokens."""
    return 56 * GIB * max_batched_tokens // (10 * BATCHED_TOKENS)


def prefill_workspace_bytes(model: ModelFacts, max_batched_tokens: int) -> int:
    """HBM that grows after start-up, outside the KV budget: 4.2 GiB at 8192 tokens, sparse attention only."""
    if model.attention is not Attention.DSA:
        return 0
    return 42 * GIB * max_batched_tokens // (10 * BATCHED_TOKENS)


def position_table_bytes(model: ModelFacts, max_tokens: int) -> int:
    """HBM per token of max_model_len outside the KV budget: 1.8-2.2 KiB for sparse MLA (2 GiB at 1M)."""
    if model.attention is Attention.DSA:
        return 2048 * max_tokens
    width = model.latent.rope_dim if model.latent else model.head_dim
    return 2 * width * max(max_tokens, model.max_positions)


def non_torch_bytes(world: int) -> int:
    """CUDA context and NCCL: 0.13-0.25 GiB alone, up to 1.4 GiB with several ranks, in public logs."""
    return GIB // 4 if world == 1 else 14 * GIB // 10


def graph_bytes() -> int:
    """CUDA graphs: 0.4-0.8 GiB in the logs at hand."""
    return 8 * GIB // 10


def pin_seconds(pool: int, *, ranks: int, shared: bool) -> Fraction:
    """Fault-in and registration of the host pool: (0.37 + 0.04 x ranks) s per GiB; private pools pay per rank."""
    gib = Fraction(pool, GIB)
    return gib * Fraction(37 + 4 * ranks, 100) if shared else gib * ranks * Fraction(41, 100)


def offload_pin_seconds(size: int) -> Fraction:
    """Fault-in of an OffloadingConnector region, one thread: 0.65 s per GiB."""
    return Fraction(size, GIB) * Fraction(65, 100)


def load_seconds(model: ModelFacts, *, downloads: bool) -> Fraction:
    """Reading weights at 1 GiB/s from local storage, or fetching them at 0.25 GiB/s. Plain assumptions."""
    rate = Fraction(1, 4) if downloads else Fraction(1)
    return Fraction(model.weight_bytes, GIB) / rate


FIXED_START_SECONDS = 93
"""Imports, worker start and CUDA graphs: 80 s + 13 s."""


def teardown_seconds(pool: int, offload: int, *, ranks: int, shared: bool) -> Fraction:
    """From SIGTERM of an idle engine until its memory is back.

    One rank: 4 s, unpin at 55 GiB/s, free at 0.08 s per GiB. Shared pool: 13 s, every rank unpins the whole pool
    (67 GiB/s in sum), tmpfs pages are freed at 15.6 GiB/s.
    """
    gib, offload_gib = Fraction(pool, GIB), Fraction(offload, GIB)
    if shared:
        return 13 + gib * ranks / 67 + (gib + offload_gib) * 10 / 156
    physical = gib * ranks + offload_gib
    return (4 if ranks == 1 else 13) + physical / 55 + physical * Fraction(8, 100)


def prefill_seconds(model: ModelFacts, gpu: Gpu, tokens: int, *, ranks: int) -> int:
    """Seconds until the first token of a fresh prompt, alone on the engine.

    DSA: 4.06 s x (n/64K) + 1.54 s x (n/64K)^2, fitted on one tensor-parallel rank of GLM-5.3 with dummy experts and
    scaled by layers: real weights will be slower. Others: 2 x parameters and causal attention at 40 % of
    peak dense bf16 arithmetic, taken as 200 FLOP per byte of HBM bandwidth.
    """
    if model.attention is Attention.DSA:
        x = Fraction(tokens, _KIB_64)
        seconds = (Fraction(406, 100) * x + Fraction(154, 100) * x * x) * Fraction(model.layers, 78)
    else:
        parameters = model.weight_bytes // model.weight_width
        width = model.attention_heads * (model.latent.rank if model.latent else model.head_dim)
        flop = 2 * parameters * tokens + 2 * model.layers * width * tokens * tokens
        seconds = Fraction(flop, ranks * 200 * gpu.hbm_bytes_per_second) * Fraction(10, 4)
    return -(-seconds.numerator // seconds.denominator)
