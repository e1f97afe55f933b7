"""What to say when it does not fit: the limit, the amount, and the cheapest change that would make it fit.

No advice is given that the planner itself has not tried: every change named here was planned, and fits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from hisparse.acceptance import pool_fault, possible_dtypes
from hisparse.architectures import Attention
from hisparse.hardware import NodeClass, format_memory
from hisparse.hbm import BATCHED_TOKENS
from hisparse.lengths import at_length, last_that
from hisparse.model import ModelFacts
from hisparse.plan import Limit, Mode, Resource, Shortfall, Target, Term
from hisparse.room import (
    GPU_COUNTS,
    RAM_CHECK_PERCENT,
    SPARSE_KERNELS,
    Room,
    least_overhead_bytes,
    node_memory_for,
    overhead_bytes,
)
from hisparse.rounding import quantity_at_least, whole_gib
from hisparse.units import GIB, format_bytes, format_quantity

Fits = Callable[[Target, NodeClass], bool]
"""Asks the planner itself whether a changed target fits."""

_COMMON_SERVER = 8
"""GPUs of a usual server: what to suggest where a plan is made without a cluster."""

_USUAL_UTILIZATION = 92
_SMALL_BATCH = 2048
_STEP = 1024
_KERNELS = f"{', '.join(map(str, SPARSE_KERNELS[:-1]))} or {SPARSE_KERNELS[-1]}"


@dataclass(frozen=True)
class _Change:
    text: str
    target: Target


def too_few_gpus(model: ModelFacts, node: NodeClass, target: Target, fits: Fits | None) -> Shortfall:
    """A replica wants more GPUs than a node of this class has."""
    fewer = replace(target, gpus=node.gpus, tensor=None, data=1, pipeline=1)
    use = f"use nodes with {target.gpus} GPUs"
    can = fits is not None and fits(fewer, node)
    return Shortfall(
        model=model,
        node=node,
        target=target,
        reason="NoMatchingNodes",
        limit=Limit(
            Resource.GPUS,
            f"{target.gpus} GPUs are asked for and a {node.product} node has {node.gpus}",
            f"set resources.gpus to {node.gpus} or {use}" if can else use,
        ),
        kv_dtype=possible_dtypes(model, target)[0],
        needed=target.gpus,
        available=node.gpus,
        hbm=(),
    )


def too_old_gpu(model: ModelFacts, node: NodeClass, target: Target) -> Shortfall:
    """The GPU has no kernels for the model's attention."""
    major, minor = node.gpu.capability
    return Shortfall(
        model=model,
        node=node,
        target=target,
        reason="NoMatchingNodes",
        limit=Limit(
            Resource.GPUS,
            f"{model.name} has sparse attention, whose kernels need compute capability {_KERNELS}; {node.product} has "
            f"{major}.{minor}",
            "use H100, H200 or newer GPUs",
        ),
        kv_dtype=possible_dtypes(model, target)[0],
        needed=target.gpus,
        available=0,
        hbm=(),
        hopeless=True,
    )


def memory_shortfall(model: ModelFacts, node: NodeClass, target: Target) -> Shortfall | None:
    """Whether resources.memory is more than the node has, or less than any engine takes; the caller adds the remedy."""
    own, offered = target.memory_bytes, node.host_memory_bytes
    if own is None:
        return None
    least = least_overhead_bytes(target)
    if own < least:
        message = (
            f"resources.memory {format_quantity(own)} is below the {format_bytes(least)} that an engine with "
            f"{target.gpus} GPU(s) takes beside its pools"
        )
        needed, available = least, own
    elif offered is not None and own > offered:
        message = (
            f"resources.memory {format_quantity(own)} is more than the {format_bytes(offered)} that a {node.product} "
            "node gives"
        )
        needed, available = own, offered
    else:
        return None
    return Shortfall(
        model=model,
        node=node,
        target=target,
        reason="HostMemoryInsufficient",
        limit=Limit(Resource.HOST_MEMORY, message, ""),
        kv_dtype=possible_dtypes(model, target)[0],
        needed=needed,
        available=available,
        hbm=(),
    )


def hbm_shortfall(room: Room, mode: Mode | None, *, needed: int, fits: Fits | None) -> Shortfall:
    """One request of maxTokens does not fit in HBM. Without `fits` no change is looked for."""
    model, target = room.model, room.target
    weights = next(term.bytes for term in room.hbm if term.name == "weights")
    if room.budget <= 0:
        message = (
            f"nothing of a {format_memory(room.node.gpu)} GPU is left for KV: weights take {format_bytes(weights)} of "
            f"each and the engine itself the rest ({format_bytes(-room.budget)} short before the first token)"
        )
    else:
        message = (
            f"one request of {target.max_tokens:,} tokens needs {format_bytes(needed)} of KV ({room.kv_dtype}) on each "
            f"GPU and {format_bytes(room.budget)} are there ({format_bytes(needed - room.budget)} short)"
        )
    changes = _remedy(room, fits) if fits else []
    none = "use a smaller, more quantised model: no single change of this spec was found that makes it fit"
    return Shortfall(
        model=model,
        node=room.node,
        target=target,
        reason="HBMInsufficient",
        limit=Limit(Resource.HBM, message, " or ".join(changes) or none),
        kv_dtype=room.kv_dtype,
        needed=needed + max(0, -room.budget),
        available=max(0, room.budget),
        hbm=(*room.hbm, Term("KV cache", room.budget, "what is left")),
        mode=mode,
    )


def pool_shortfall(room: Room, *, pool: int, minimum: int, copies: int, space: int, fits: Fits | None) -> Shortfall:
    """The host pool (or the smallest one that the engine takes) is more than the node gives."""
    target = room.target
    needed = pool * copies
    own = target.memory_bytes
    offered = room.node.host_memory_bytes if own is None else own
    beside = least_overhead_bytes(target) if own is not None else overhead_bytes(target)
    nodes = quantity_at_least(node_memory_for(needed, target))
    largest = space // copies // GIB * GIB
    smaller = replace(target, host_pool_bytes=largest, pool_requests=None, pool_tokens=None)
    asked = target.host_pool_bytes is not None or target.pool_requests is not None
    first = (_Change(f"set kvTier.hostPool.size to at most {largest // GIB}Gi", smaller),) if largest >= minimum else ()
    changes = _remedy(room, fits, first=first if asked else ()) if fits else []
    node = room.node.host_memory_bytes
    if own is None:
        changes.append(f"use nodes with {nodes} of memory")
    elif node is None or node_memory_for(needed, target) <= node:
        changes.append(f"raise resources.memory to {quantity_at_least(needed + overhead_bytes(target))}")
    else:
        changes.append(f"leave resources.memory out on nodes with {nodes} of memory")
    by_node = own is None or (node is not None and own - beside > space)
    if by_node:
        offered = node
    return Shortfall(
        model=room.model,
        node=room.node,
        target=target,
        reason="HostMemoryInsufficient",
        limit=Limit(
            Resource.HOST_MEMORY,
            f"the host pool needs {format_bytes(needed)}"
            + (f" ({copies} copies of {format_bytes(pool)})" if copies > 1 else "")
            + f" of pinned memory; {format_bytes(offered or 0)} less {format_bytes(beside)} for the engine itself "
            f"leave {format_bytes(space)}" + (f", as the engine pins at most {RAM_CHECK_PERCENT} %" if by_node else ""),
            " or ".join(changes),
        ),
        kv_dtype=room.kv_dtype,
        needed=needed,
        available=space,
        hbm=room.hbm,
        host_terms=(Term("host pool", needed, f"{copies} x {format_bytes(pool)}"),),
        mode=Mode.HISPARSE,
    )


def pool_minimum_shortfall(room: Room, *, minimum: int, copies: int, fits: Fits | None) -> Shortfall:
    """The host pool that was asked for is smaller than the engine takes with this GPU's rows."""
    target, wanted = room.target, room.target.host_pool_bytes or 0
    fault = pool_fault(wanted, format_bytes(minimum), target.max_tokens)
    larger = replace(target, host_pool_bytes=whole_gib(minimum))
    changes = []
    if fits is not None:
        if fits(larger, room.node):
            changes.append(f"set kvTier.hostPool.size to {quantity_at_least(minimum)}")
        if (longest := _longest(room.model, room.node, target, fits)) is not None:
            changes.append(f"lower context.maxTokens to {longest}")
    memory = quantity_at_least(node_memory_for(whole_gib(minimum) * copies, target))
    own = "" if target.memory_bytes is None else " and leave resources.memory out"
    both = f"set kvTier.hostPool.size to {quantity_at_least(minimum)}{own} on nodes with {memory} of memory"
    return Shortfall(
        model=room.model,
        node=room.node,
        target=target,
        reason="HostMemoryInsufficient",
        limit=Limit(
            Resource.HOST_POOL,
            f"kvTier.hostPool.size {fault} on {room.node.gpu.name}",
            " or ".join(changes) or both,
        ),
        kv_dtype=room.kv_dtype,
        needed=minimum,
        available=wanted,
        hbm=room.hbm,
        host_terms=(Term("host pool", wanted, "as kvTier.hostPool.size says"),),
        mode=Mode.HISPARSE,
    )


def _remedy(room: Room, fits: Fits, *, first: tuple[_Change, ...] = ()) -> list[str]:
    """The first change that costs nothing; where there is none, those that cost something, cheapest first."""
    node, target = room.node, room.target
    for change in (*first, *_free(room.model, target)):
        if fits(change.target, node):
            return [change.text]
    found = [change.text for change in _costly(room) if fits(change.target, node)][:1]
    if (longest := _longest(room.model, node, target, fits)) is not None:
        found.append(f"lower context.maxTokens to {longest}")
    for gpus in (n for n in GPU_COUNTS if target.gpus < n <= max(node.gpus, _COMMON_SERVER)):
        more = replace(target, gpus=gpus, tensor=None, data=1, pipeline=1)
        if fits(more, replace(node, gpus=max(node.gpus, gpus))):
            found.append(f"set resources.gpus to {gpus}")
            break
    return found


def _free(model: ModelFacts, target: Target) -> Iterator[_Change]:
    if model.attention is Attention.DSA and target.mode in {"None", "Offload"}:
        yield _Change(
            "set kvTier.mode HiSparse (lossless: KV pages move to host memory)", replace(target, mode="HiSparse")
        )
    if target.utilization_percent < _USUAL_UTILIZATION:
        yield _Change(
            f"raise resources.gpuMemoryUtilizationPercent to {_USUAL_UTILIZATION}",
            replace(target, utilization_percent=_USUAL_UTILIZATION),
        )
    if (target.max_batched_tokens or 0) > BATCHED_TOKENS:
        yield _Change(
            f"lower context.maxBatchedTokens to {BATCHED_TOKENS}", replace(target, max_batched_tokens=BATCHED_TOKENS)
        )
    if target.sharing == "Private":
        yield _Change("leave kvTier.sharing out: one pool for all ranks", replace(target, sharing="Auto"))
    if (target.tp, target.data, target.pipeline) != (target.gpus, 1, 1):
        yield _Change(
            f"set parallelism to tensor {target.gpus}, data 1, pipeline 1",
            replace(target, tensor=target.gpus, data=1, pipeline=1),
        )
    if model.experts and target.data > 1 and not target.expert:
        yield _Change("set parallelism.expert to true", replace(target, expert=True))


def _costly(room: Room) -> Iterator[_Change]:
    target = room.target
    if target.kv_dtype == "Bf16":
        yield _Change("set context.kvCacheDtype Fp8", replace(target, kv_dtype="Fp8"))
    if room.batched > _SMALL_BATCH:
        yield _Change(
            f"lower context.maxBatchedTokens to {_SMALL_BATCH} (slower prefill)",
            replace(target, max_batched_tokens=_SMALL_BATCH),
        )


def _longest(model: ModelFacts, node: NodeClass, target: Target, fits: Fits) -> int | None:
    """The largest maxTokens, in whole 1,024s, with which the same spec fits."""
    steps = last_that(lambda step: fits(at_length(model, target, step * _STEP), node), 0, target.max_tokens // _STEP)
    return steps * _STEP or None
