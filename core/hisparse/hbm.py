"""Where the memory of one GPU goes before KV: the sum that the engine makes at start-up.

KV budget = utilisation x total - weights - peak activation - what is not PyTorch's - CUDA graphs (since vLLM 0.20).
Source: vLLM 0.33, v1/worker/gpu_worker.py, determine_available_memory; seven start-up logs that print every term are
tests (docs/kv-logs.md). The terms that no rule gives are estimates, each with its evidence.
"""

from __future__ import annotations

from fractions import Fraction

from hisparse.accounting import Accounting, accounting
from hisparse.architectures import Attention
from hisparse.hardware import Gpu, NodeClass, format_memory
from hisparse.model import ModelFacts
from hisparse.plan import Target, Term
from hisparse.rounding import cdiv
from hisparse.units import GIB, format_bytes
from hisparse.weights import Parallel

LARGE_CARD = 70 * GIB
"""From this memory on the engine's own defaults are 8192 batched tokens, 2048 below (engine/arg_utils.py)."""

BATCHED_TOKENS = 8192
SMALL_BATCHED_TOKENS = 2048
MAX_REQUESTS = 256
"""What max_num_seqs is set to at most; the engine's own default is 1024 on large cards."""

USUAL_VOCABULARY = 151_936
ACTIVATION_WIDTH = 2
HIDDEN_COPIES = 6
EIGHT_BIT_ROUTED_COPIES = 2
FLOAT32 = 4
WORKSPACE = 42 * GIB // 10
NON_TORCH_ALONE = GIB // 4
NON_TORCH_RANKS = 9 * GIB // 4
GRAPHS = 8 * GIB // 10

_HOPPER = 9


def kv_budget(
    total: int, utilization: Fraction, *, weights: int, activation: int, non_torch: int, graphs: int, rules: Accounting
) -> int:
    """Bytes for KV on one GPU, negative where nothing is left; graphs only count where the release subtracts them."""
    return int(total * utilization) - weights - activation - non_torch - (graphs if rules.graphs_in_budget else 0)


def default_batched_tokens(gpu: Gpu) -> int:
    """max_num_batched_tokens where nobody said; FlashMLA scratch at 32K tokens has killed fp8 engines on Hopper."""
    return BATCHED_TOKENS if gpu.memory_bytes >= LARGE_CARD else SMALL_BATCHED_TOKENS


def most_sequences(target: Target) -> int:
    """The largest max_num_seqs that a plan may end with on one data-parallel rank: what the profile run samples."""
    return MAX_REQUESTS if target.max_requests is None else cdiv(target.max_requests, target.data)


def activation_bytes(
    model: ModelFacts, gpu: Gpu, *, tensor: int, batched_tokens: int, requests: int, rules: Accounting
) -> int:
    """Peak activation in the engine's profile run: the larger of one forward pass and one round of sampling."""
    forward = forward_bytes(model, gpu, tensor=tensor, tokens=batched_tokens)
    return max(forward, sampling_bytes(model.vocabulary or USUAL_VOCABULARY, requests, rules))


def forward_bytes(model: ModelFacts, gpu: Gpu, *, tensor: int, tokens: int) -> int:
    """One forward pass, from the widest layer: residual, norms and attention, and an MLP or the experts of a token.

    A count of the tensors that are alive at once, not a rule of the engine. Few logs show it, since sampling is larger
    on most: DeepSeek-R1 and V3.2 on H200 imply 3.9 GiB at 8192 tokens where this says 2.6, GLM-5 on H200 at most 2.2
    where this says 2.3. Experts in 8 bits on Hopper keep their tokens twice, regrouped by expert.
    """
    dense = cdiv(3 * model.dense_width, tensor)
    routed = model.experts_per_token * (model.hidden_size + cdiv(3 * model.expert_width, tensor))
    if model.weight_width == 1 and gpu.capability[0] == _HOPPER:
        routed *= EIGHT_BIT_ROUTED_COPIES
    return tokens * ACTIVATION_WIDTH * (HIDDEN_COPIES * model.hidden_size + max(dense, routed))


def sampling_bytes(vocabulary: int, requests: int, rules: Accounting) -> int:
    """Logits of max_num_seqs requests in float32 and what sampling makes of them (Accounting.sampling_copies)."""
    return int(rules.sampling_copies * requests * vocabulary * FLOAT32)


def prefill_workspace_bytes(model: ModelFacts, batched_tokens: int) -> int:
    """HBM that grows after start-up, outside the KV budget, once a long prompt is prefilled.

    Sparse attention only: 4.2 GiB at 8192 tokens, measured on an H200 (docs/engine-facts.md). An engine whose budget
    leaves less free starts, and dies on the first long prompt.
    """
    if model.attention is not Attention.DSA:
        return 0
    return WORKSPACE * batched_tokens // BATCHED_TOKENS


def position_table_bytes(model: ModelFacts, max_tokens: int) -> int:
    """HBM that the engine counts as the model's and that grows with max_model_len.

    1.8-2.2 KiB per token for sparse MLA, measured (2 GiB at 1M); one table of rotations for the rest.
    """
    if model.attention is Attention.DSA:
        return 2048 * max_tokens
    width = model.latent.rope_dim if model.latent else model.head_dim
    return 2 * width * max(max_tokens, model.max_positions)


def non_torch_bytes(world: int) -> int:
    """CUDA context and NCCL: 0.13-0.25 GiB alone, 2.0 to 2.5 GiB with several ranks in logs since vLLM 0.18.

    Before, 0.5 to 1.4 GiB with several ranks.
    """
    return NON_TORCH_ALONE if world == 1 else NON_TORCH_RANKS


def graph_bytes() -> int:
    """CUDA graphs: 0.4-0.8 GiB in the logs at hand."""
    return GRAPHS


def hbm_terms(model: ModelFacts, node: NodeClass, target: Target, batched: int) -> tuple[tuple[Term, ...], int]:
    """(terms of one GPU, what is left for KV). The terms and the KV budget add up to the card's memory."""
    gpu, total = node.gpu, node.gpu.memory_bytes
    rules = accounting(target.engine_version)
    usable = total * target.utilization_percent // 100
    weights, spread = _weights_on_one_gpu(model, target)
    world = target.tp * target.pipeline
    requests = most_sequences(target)
    workspace = min(prefill_workspace_bytes(model, batched), total - usable)
    terms = (
        Term(
            "left free",
            total - usable - workspace,
            f"{100 - target.utilization_percent} % of {format_memory(gpu)} (gpuMemoryUtilizationPercent "
            f"{target.utilization_percent})" + (" less what prefill grows into" if workspace else ""),
        ),
        Term(
            "prefill workspace",
            workspace,
            f"allocated on the first long prompt, outside the budget, at max_num_batched_tokens {batched:,}",
            estimate=True,
        ),
        Term("weights", weights, spread, estimate=model.checkpoint is None),
        Term(
            "peak activation",
            activation_bytes(model, gpu, tensor=target.tp, batched_tokens=batched, requests=requests, rules=rules),
            f"profile run: the larger of a forward pass of {batched:,} tokens and sampling of {requests:,} requests",
            estimate=True,
        ),
        Term(
            "position tables",
            position_table_bytes(model, target.max_tokens),
            f"part of the engine's model memory, grow with max_model_len {target.max_tokens}",
            estimate=True,
        ),
        Term(
            "CUDA context and NCCL",
            non_torch_bytes(world),
            f"{world} rank(s) per engine",
            estimate=True,
        ),
        Term("CUDA graphs", graph_bytes() if rules.graphs_in_budget else 0, "captured decode batches", estimate=True),
    )
    named = tuple(term for term in terms if term.bytes or term.name not in ("prefill workspace", "CUDA graphs"))
    left = total - sum(term.bytes for term in named)
    if target.kv_bytes is None:
        return named, left
    # somebody read the engine's log: the difference to the estimates belongs to no one term
    why = "kvBytes was given: what the log differs by from the terms above"
    return (*named, Term("difference to the log", left - target.kv_bytes, why)), target.kv_bytes


def _weights_on_one_gpu(model: ModelFacts, target: Target) -> tuple[int, str]:
    """What the fullest GPU holds: replicated tensors whole, the rest divided."""
    ranks = target.tp * target.pipeline
    parallel = Parallel(target.tp, target.pipeline, target.data, target.expert)
    held = _held(model, parallel, draft=target.draft_tokens > 0)
    whole = f"{format_bytes(model.weight_bytes)} over {ranks} GPU(s)"
    if held is not None:
        spread = f"{whole} of {target.data} data-parallel ranks, experts over all" if target.data > 1 else whole
        return held, f"{spread}, replicated tensors on each: {model.weight_source}"
    if target.data == 1 or not model.expert_bytes:
        return cdiv(model.weight_bytes, ranks), f"{whole}: {model.weight_source}"
    rest = model.weight_bytes - model.expert_bytes
    each = cdiv(rest, ranks) + cdiv(model.expert_bytes, ranks * target.data)
    return each, (
        f"{format_bytes(rest)} over {ranks} GPU(s) of each data-parallel rank and "
        f"{format_bytes(model.expert_bytes)} of experts over all {ranks * target.data}"
    )


def _held(model: ModelFacts, parallel: Parallel, *, draft: bool) -> int | None:
    """Bytes by the tensors of the checkpoint; a size that somebody gave scales them, whatever it is near to."""
    if model.checkpoint is None:
        return None
    counted = model.checkpoint.file_bytes
    if counted is not None and model.weight_source.startswith("model.facts"):
        held = model.checkpoint.on_one_gpu(parallel, draft=draft)
        return None if held is None else cdiv(held * model.weight_bytes, counted)
    return model.checkpoint.on_one_gpu(parallel, total_bytes=model.weight_bytes, draft=draft)
