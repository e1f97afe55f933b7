"""The room that one replica has on one node class: HBM for KV on each GPU and host memory for pools."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from hisparse.hardware import NodeClass
from hisparse.layout import KvLayout
from hisparse.model import ModelFacts
from hisparse.plan import Target, Term
from hisparse.rounding import ceil, round_up
from hisparse.tier import HiSparseLayout, hisparse_layout
from hisparse.units import GIB, MIB

RAM_CHECK_PERCENT = 95
"""The engine refuses a pool larger than this share of the RAM that the node has available, whatever the pod's limit is
(vLLM 0.33, v1/hisparse/runtime.py, check_hisparse_host_memory)."""

SPARSE_KERNELS = (9, 10, 12)
"""Compute capabilities with sparse-MLA backends (vLLM 0.32/0.33, v1/attention/backends/mla)."""

GPU_COUNTS = (1, 2, 4, 8, 16, 32, 64)
"""GPUs of one replica that are tried or named: powers of two, which widths and vocabularies divide where heads do."""


@dataclass(frozen=True)
class Room:
    """What one attempt has to work with. fell_back: the dtype is Fp8 only because Bf16 does not fit."""

    model: ModelFacts
    node: NodeClass
    target: Target
    kv_dtype: str
    kv_reason: str
    fell_back: bool
    batched: int
    hbm: tuple[Term, ...]
    budget: int
    plain: KvLayout


def tier_layout(room: Room) -> HiSparseLayout:
    """The layout under HiSparse for this room."""
    return hisparse_layout(
        room.model,
        room.kv_dtype,
        room.node.gpu,
        in_flight_tokens=room.plain.in_flight_tokens,
        shared=shared_pool(room.target),
        tensor=room.target.tp,
        device_buffer=room.target.device_buffer_tokens,
        mtp_layers=drafting_layers(room.model, room.target),
        draft_tokens=room.target.draft_tokens,
    )


def drafting_layers(model: ModelFacts, target: Target) -> int:
    """MTP layers that keep KV: those of the model where tokens are drafted."""
    return model.mtp_layers if target.draft_tokens else 0


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


def pool_room(room: Room) -> int | None:
    """Host memory that HiSparse's pools may take: what the pod has, and no more of the node than the engine pins."""
    node, own = room.node.host_memory_bytes, room.target.memory_bytes
    if node is None:
        return host_room(room)
    beside = overhead_bytes(room.target) if own is None else least_overhead_bytes(room.target)
    pinned = max(0, node - beside) * RAM_CHECK_PERCENT // 100
    return pinned if own is None else min(pinned, max(0, own - least_overhead_bytes(room.target)))


def node_memory_for(pinned: int, target: Target) -> int:
    """Memory of a node that gives a pod `pinned` bytes for its pools."""
    return ceil(Fraction(pinned * 100, RAM_CHECK_PERCENT)) + overhead_bytes(target)


def indexer_offload_bytes(target: Target, layout: HiSparseLayout, host_blocks: int) -> int:
    """Host memory for the indexer keys of all tokens of the pools; 0 where it is switched off."""
    if target.indexer_offload is False:
        return 0
    tokens = host_blocks * layout.block_tokens
    size = target.indexer_offload_bytes or round_up(int(layout.offload_token_bytes * tokens), 64 * MIB)
    return size * target.data
