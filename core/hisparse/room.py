"""The room that one replica has on one node class: HBM for KV on each GPU and host memory for pools."""

from __future__ import annotations

from dataclasses import dataclass

from hisparse.hardware import NodeClass
from hisparse.layout import KvLayout
from hisparse.model import ModelFacts
from hisparse.plan import Target, Term
from hisparse.tier import HiSparseLayout, hisparse_layout
from hisparse.units import GIB

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
