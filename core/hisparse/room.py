"""The room that one replica has on one node class: HBM for KV on each GPU and host memory for pools."""

from __future__ import annotations

from dataclasses import dataclass

from hisparse import estimates
from hisparse.hardware import NodeClass, format_memory
from hisparse.layout import KvLayout
from hisparse.model import ModelFacts
from hisparse.plan import Target, Term
from hisparse.tier import HiSparseLayout, hisparse_layout
from hisparse.units import GIB, format_bytes

RAM_CHECK_PERCENT = 95
"""The engine refuses a pool larger than this share of the RAM that it finds available."""


@dataclass(frozen=True)
class Room:
    """What one attempt has to work with."""

    model: ModelFacts
    node: NodeClass
    target: Target
    kv_dtype: str
    kv_reason: str
    batched: int
    hbm: tuple[Term, ...]
    budget: int
    plain: KvLayout


def hbm_terms(model: ModelFacts, node: NodeClass, target: Target, batched: int) -> tuple[tuple[Term, ...], int]:
    """(terms of one GPU, what is left for KV). The terms add up to the card's memory."""
    gpu, total = node.gpu, node.gpu.memory_bytes
    usable = total * target.utilization_percent // 100
    weights, spread = _weights_on_one_gpu(model, target)
    world = target.tp * target.pipeline
    terms = (
        Term(
            "left free",
            total - usable,
            f"{100 - target.utilization_percent} % of {format_memory(gpu)} (gpuMemoryUtilizationPercent "
            f"{target.utilization_percent}); prefill workspace grows into it",
        ),
        Term(
            "weights",
            weights,
            f"{spread}: {model.weight_source}",
            estimate=target.data > 1 and model.experts > 0,
        ),
        Term(
            "peak activation",
            estimates.activation_bytes(batched),
            f"profile run at max_num_batched_tokens {batched}; 4.8 to 5.6 GiB at 8192 in public logs",
            estimate=True,
        ),
        Term(
            "position tables",
            estimates.position_table_bytes(model, target.max_tokens),
            f"grow with max_model_len {target.max_tokens}, outside the KV budget",
            estimate=True,
        ),
        Term(
            "CUDA context and NCCL",
            estimates.non_torch_bytes(world),
            f"{world} rank(s) per engine",
            estimate=True,
        ),
        Term("CUDA graphs", estimates.graph_bytes(), "captured decode batches", estimate=True),
    )
    return terms, total - sum(term.bytes for term in terms)


def _weights_on_one_gpu(model: ModelFacts, target: Target) -> tuple[int, str]:
    """Data-parallel ranks each hold what is not an expert; experts are spread over all GPUs."""
    ranks = target.tp * target.pipeline
    if target.data == 1 or not model.expert_bytes:
        return -(-model.weight_bytes // ranks), f"{format_bytes(model.weight_bytes)} over {ranks} GPUs"
    rest = model.weight_bytes - model.expert_bytes
    each = -(-rest // ranks) + -(-model.expert_bytes // (ranks * target.data))
    return each, (
        f"{format_bytes(rest)} over {ranks} GPU(s) of each data-parallel rank and "
        f"{format_bytes(model.expert_bytes)} of experts over all {ranks * target.data}"
    )


def tier_layout(room: Room) -> HiSparseLayout:
    """The layout under HiSparse for this room."""
    return hisparse_layout(
        room.model,
        room.kv_dtype,
        room.node.gpu,
        max_batched_tokens=room.batched,
        shared=shared_pool(room.target),
        device_buffer=room.target.device_buffer_tokens,
        mtp_layers=room.model.mtp_layers if room.target.draft_tokens else 0,
        draft_tokens=room.target.draft_tokens,
    )


def shared_pool(target: Target) -> bool:
    """Whether all ranks of a replica map one pool (vLLM v1/hisparse/runtime.py); else each pins its own."""
    return target.sharing != "Private" and target.tp > 1 and target.pipeline == 1 and target.decode_context == 1


def overhead_bytes(target: Target) -> int:
    """Host memory that a pod is planned with beside its pools."""
    return 16 * GIB + 4 * GIB * target.gpus


def least_overhead_bytes(target: Target) -> int:
    """What a user's own resources.memory has to leave beside the pools."""
    return 4 * GIB + GIB * target.gpus


def host_room(room: Room) -> int | None:
    """Host memory for pools: of the user's own limit, else of the node, less overhead; None where neither is known."""
    own, node = room.target.memory_bytes, room.node.host_memory_bytes
    if own is not None:
        return max(0, own - least_overhead_bytes(room.target))
    return None if node is None else max(0, node - overhead_bytes(room.target))
