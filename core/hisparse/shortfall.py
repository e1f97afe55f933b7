"""What to say when it does not fit: the limit, the amount, and the cheapest change that would make it fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hisparse.hardware import NodeClass, format_memory
from hisparse.kv import HiSparseLayout
from hisparse.model import Attention, ModelFacts
from hisparse.plan import Limit, Mode, Resource, Shortfall, Target, Term
from hisparse.room import RAM_CHECK_PERCENT, Room, hbm_terms, overhead_bytes, tier_layout
from hisparse.rounding import quantity_at_least
from hisparse.units import GIB, format_bytes

_COMMON_SERVER = 8
"""GPUs of a usual server: what to suggest where a plan is made without a cluster."""

Fits = Callable[[Target, NodeClass], bool]
"""Asks the planner itself whether a changed target fits."""


def too_few_gpus(model: ModelFacts, node: NodeClass, target: Target) -> Shortfall:
    """A replica wants more GPUs than a node of this class has."""
    return Shortfall(
        model=model,
        node=node,
        target=target,
        reason="NoMatchingNodes",
        limit=Limit(
            Resource.GPUS,
            f"{target.gpus} GPUs are asked for and a {node.product} node has {node.gpus}",
            f"set resources.gpus to at most {node.gpus}",
        ),
        needed=target.gpus,
        available=node.gpus,
        hbm=(),
    )


def hbm_shortfall(room: Room, mode: Mode | None, *, needed: int, fits: Fits | None) -> Shortfall:
    """One request of maxTokens does not fit in HBM. Without `fits` no change is looked for."""
    model, target = room.model, room.target
    have = max(0, room.budget)
    weights = next(term.bytes for term in room.hbm if term.name == "weights")
    if room.budget <= 0:
        message = (
            f"nothing of a {format_memory(room.node.gpu)} GPU is left for KV: weights take {format_bytes(weights)} of "
            f"each and the engine itself the rest ({format_bytes(-room.budget)} short before the first token)"
        )
    else:
        message = (
            f"one request of {target.max_tokens:,} tokens needs {format_bytes(needed)} of KV on each GPU and "
            f"{format_bytes(have)} are there ({format_bytes(needed - have)} short)"
        )
    return Shortfall(
        model=model,
        node=room.node,
        target=target,
        reason="HBMInsufficient",
        limit=Limit(Resource.HBM, message, _cheapest(room, fits) if fits else ""),
        needed=needed,
        available=have,
        hbm=(*room.hbm, Term("KV cache", room.budget, "what is left")),
        mode=mode,
    )


def _cheapest(room: Room, fits: Fits) -> str:
    """The first change, cheapest first, after which the plan fits; the planner itself is asked."""
    model, node, target = room.model, room.node, room.target
    untiered = model.attention is Attention.DSA and target.mode in ("None", "Offload")
    if untiered and fits(replace(target, mode="HiSparse"), node):
        return "set kvTier.mode HiSparse (lossless: KV pages move to host memory)"
    if room.kv_dtype == "Bf16" and fits(replace(target, kv_dtype="Fp8"), node):
        return "set context.kvCacheDtype Fp8"
    options: list[str] = []
    if (longest := _longest(room)) is not None:
        options.append(f"lower context.maxTokens to {longest}")
    for gpus in (n for n in (2, 4, 8, 16) if target.gpus < n <= max(node.gpus, _COMMON_SERVER)):
        if fits(replace(target, gpus=gpus, tensor=None), replace(node, gpus=max(node.gpus, gpus))):
            options.append(f"set resources.gpus to {gpus}")
            break
    return " or ".join(options) or "use a smaller or more quantised model: no change of this spec makes it fit"


def _longest(room: Room) -> int | None:
    """The largest maxTokens, in whole 1,024s, that the same spec can serve."""
    low, high = 0, room.target.max_tokens // 1024
    while low < high:
        middle = (low + high + 1) // 2
        typical = min(room.target.typical, middle * 1024)
        changed = replace(
            room.target,
            max_tokens=middle * 1024,
            typical_tokens=typical,
            pool_tokens=None,
            pool_requests=None,
        )
        hbm, budget = hbm_terms(room.model, room.node, changed, room.batched)
        smaller = replace(room, target=changed, hbm=hbm, budget=budget)
        if budget > 0 and _one_fits(smaller):
            low = middle
        else:
            high = middle - 1
    return low * 1024 or None


def _one_fits(room: Room) -> bool:
    tokens = room.target.max_tokens
    if room.budget // room.plain.block_bytes >= room.plain.request_blocks(tokens):
        return True
    if room.model.attention is not Attention.DSA or room.target.mode not in ("Auto", Mode.HISPARSE):
        return False
    layout = tier_layout(room)
    return room.budget // layout.gpu_block_bytes >= layout.admission_blocks(tokens)


def host_shortfall(
    room: Room, layout: HiSparseLayout, *, pool: int, minimum: int, copies: int, space: int
) -> Shortfall:
    """The host pool (or the smallest one that the engine takes) is more than the node gives."""
    target = room.target
    needed = pool * copies
    offered = room.node.host_memory_bytes if target.memory_bytes is None else target.memory_bytes
    most = space * RAM_CHECK_PERCENT // 100 // copies // GIB * GIB // layout.host_block_bytes - 2
    options: list[str] = []
    if pool > minimum and minimum * copies * 100 <= space * RAM_CHECK_PERCENT:
        largest = most * layout.host_block_bytes // GIB
        options.append(f"set kvTier.hostPool.size to {quantity_at_least(minimum)} or up to {largest}Gi")
    elif most > 0:
        options.append(f"lower context.maxTokens to {most * layout.block_tokens // 1024 * 1024}")
    if target.memory_bytes is not None:
        options.append(f"raise resources.memory to {quantity_at_least(needed * 100 // RAM_CHECK_PERCENT + 4 * GIB)}")
    else:
        options.append(
            f"use nodes with {quantity_at_least(needed * 100 // RAM_CHECK_PERCENT + overhead_bytes(target))} of memory"
        )
    return Shortfall(
        model=room.model,
        node=room.node,
        target=target,
        reason="HostMemoryInsufficient",
        limit=Limit(
            Resource.HOST_MEMORY,
            f"the host pool needs {format_bytes(needed)}"
            + (f" ({copies} copies of {format_bytes(pool)})" if copies > 1 else "")
            + f" of pinned memory; {format_bytes(offered or 0)} less overhead leave {format_bytes(space)}, of which "
            f"the engine takes at most {RAM_CHECK_PERCENT} %",
            " or ".join(options),
        ),
        needed=needed,
        available=space * RAM_CHECK_PERCENT // 100,
        hbm=room.hbm,
        host_terms=(Term("host pool", needed, f"{copies} x {format_bytes(pool)}"),),
        mode=Mode.HISPARSE,
    )
