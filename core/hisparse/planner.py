"""plan(model, node, target): the sum of every byte, what binds and the cheapest change that lifts it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction

from hisparse import estimates
from hisparse.acceptance import accept
from hisparse.architectures import Attention
from hisparse.hardware import NodeClass
from hisparse.hbm import MAX_REQUESTS, default_batched_tokens, hbm_terms
from hisparse.layout import Drafting, kv_layout
from hisparse.limits import binding, lifecycle_seconds, pays_above, timing_warnings, warnings_of
from hisparse.model import ModelFacts
from hisparse.plan import HostMemory, LengthRow, Limit, Mode, Plan, Resource, Shortfall, Target, Term
from hisparse.prefill import prefill_seconds
from hisparse.room import (
    RAM_CHECK_PERCENT,
    Room,
    host_room,
    least_overhead_bytes,
    overhead_bytes,
    tier_layout,
)
from hisparse.rounding import decimal, quantity_at_least, whole, whole_gib
from hisparse.shortfall import (
    Fits,
    hbm_shortfall,
    memory_shortfall,
    pool_shortfall,
    too_few_gpus,
    too_old_gpu,
)
from hisparse.tier import HiSparseLayout, indexer_offload_token_bytes
from hisparse.units import GIB, MIB, format_bytes

_SHM_FLOOR = 8 * GIB
"""Message queues (0.7 GB apparent) and NCCL."""

_OFFLOAD_CEILING = 64 * GIB
"""Default of mode Offload; larger regions have failed to register with some models."""

_SPARSE_KERNELS = (9, 10, 12)
"""Compute capabilities with sparse-MLA backends (vLLM 0.32/0.33, v1/attention/backends/mla)."""

_WITHOUT_MEMORY = "leave resources.memory out"


def plan(model: ModelFacts, node: NodeClass, target: Target) -> Plan | Shortfall:
    """Plan one replica on one node of this class.

    The spec must have passed `accept`. Returns a Shortfall that names the limit, the amount and the cheapest
    change where it does not fit.
    """
    fits = _fits(model)
    if target.gpus > node.gpus:
        larger = plan(model, replace(node, gpus=target.gpus), target)
        if isinstance(larger, Plan):
            return too_few_gpus(model, node, target, fits)
        way = f"on nodes with {target.gpus} GPUs: {larger.limit.remedy}"
        return replace(larger, node=node, limit=replace(larger.limit, remedy=way))
    if model.is_sparse and node.gpu.capability[0] not in _SPARSE_KERNELS:
        return too_old_gpu(model, node, target)
    if (short := memory_shortfall(model, node, target)) is not None:
        without = plan(model, node, replace(target, memory_bytes=None))
        way = _WITHOUT_MEMORY + (f", then: {without.limit.remedy}" if isinstance(without, Shortfall) else "")
        return replace(short, limit=replace(short.limit, remedy=way))
    return _best_dtype(model, node, target, fits=fits)


def plan_without_advice(model: ModelFacts, node: NodeClass, target: Target) -> Plan | Shortfall:
    """The same for a node class with enough GPUs, without a search for what would help: for whoever asks many times."""
    if model.is_sparse and node.gpu.capability[0] not in _SPARSE_KERNELS:
        return too_old_gpu(model, node, target)
    if (short := memory_shortfall(model, node, target)) is not None:
        return short
    return _best_dtype(model, node, target, fits=None)


def _fits(model: ModelFacts) -> Fits:
    def fits(target: Target, node: NodeClass) -> bool:
        if accept(model, target) or target.gpus > node.gpus:
            return False
        return isinstance(plan_without_advice(model, node, target), Plan)

    return fits


def _best_dtype(model: ModelFacts, node: NodeClass, target: Target, *, fits: Fits | None) -> Plan | Shortfall:
    if not _falls_back_to_fp8(model, target):
        return _attempt(model, node, target, _dtype(model, target, fits=True), fits)
    first = _attempt(model, node, target, _dtype(model, target, fits=True), None)
    if isinstance(first, Plan) or first.limit.resource is not Resource.HBM:
        return first
    return _attempt(model, node, target, _dtype(model, target, fits=False), fits)


def smallest(plans: Sequence[Plan]) -> Plan:
    """The plan that makes the flags: that of the class with the least HBM for KV, then the smallest pool.

    A class runs it if its nodes hold this plan's pod; the caller checks that.
    """
    return min(plans, key=lambda p: (p.kv_budget, p.host.pool, p.node.host_memory_bytes or 0, p.node.product))


def _attempt(
    model: ModelFacts, node: NodeClass, target: Target, dtype: tuple[str, str], fits: Fits | None
) -> Plan | Shortfall:
    kv_dtype, kv_reason = dtype
    batched = target.max_batched_tokens or default_batched_tokens(node.gpu)
    hbm, budget = hbm_terms(model, node, target, batched)
    plain = kv_layout(
        model,
        kv_dtype,
        node.gpu,
        tensor=target.tp,
        pipeline=target.pipeline,
        context=target.decode_context,
        batched_tokens=batched,
        version=target.engine_version,
        drafting=Drafting(model.drafts if target.draft_tokens else (), target.draft_tokens),
    )
    room = Room(model, node, target, kv_dtype, kv_reason, batched, hbm, budget, plain)
    if budget <= 0:
        return hbm_shortfall(room, None, needed=plain.needed_bytes(target.max_tokens), fits=fits)
    mode, reason = _mode(room)
    if mode is Mode.HISPARSE:
        return _with_hisparse(room, reason, fits)
    if not plain.holds(budget, target.max_tokens):
        return hbm_shortfall(room, mode, needed=plain.needed_bytes(target.max_tokens), fits=fits)
    return _without_tier(room, mode, reason, plain.blocks_in(budget))


def _dtype(model: ModelFacts, target: Target, *, fits: bool) -> tuple[str, str]:
    if target.kv_dtype != "Auto":
        return target.kv_dtype, "context.kvCacheDtype says so"
    if model.attention is Attention.DSA:
        return "Fp8", "DSA model: fp8 is its native KV format"
    if fits:
        return "Bf16", "full precision fits"
    return "Fp8", "Bf16 does not fit maxTokens: digits deep in a long prompt may be recalled wrongly"


def _falls_back_to_fp8(model: ModelFacts, target: Target) -> bool:
    return target.kv_dtype == "Auto" and model.attention is not Attention.DSA


def _mode(room: Room) -> tuple[Mode, str]:
    target, plain = room.target, room.plain
    if target.mode != "Auto":
        return Mode(target.mode), "kvTier.mode says so"
    if room.model.attention is not Attention.DSA:
        return Mode.NONE, f"{room.model.attention.value} model: HiSparse needs a DSA indexer"
    if target.pipeline > 1:
        return Mode.NONE, f"pipeline {target.pipeline}: HiSparse does not support pipeline parallelism"
    if target.decode_context > 1:
        return Mode.NONE, f"decode context parallel {target.decode_context}: HiSparse does not support it"
    blocks = plain.blocks_in(room.budget)
    if not plain.holds(room.budget, target.max_tokens):
        return Mode.HISPARSE, f"one request of {target.max_tokens:,} tokens does not fit in plain KV"
    layout = tier_layout(room)
    typical = target.typical
    tier, here = (
        layout.gpu_concurrency(room.budget // layout.gpu_block_bytes, typical) * target.data,
        plain.concurrency(blocks, typical) * target.data,
    )
    most = target.max_requests
    if most is not None and here >= most:
        return Mode.NONE, f"plain KV holds the {most} requests of context.maxConcurrentRequests at {typical:,} tokens"
    gain = (min(tier, Fraction(most)) if most is not None else tier) / here
    text = f"{decimal(gain)} times the concurrency at {typical:,} tokens"
    if gain >= estimates.AUTO_GAIN:
        return Mode.HISPARSE, f"{text}, at least {estimates.AUTO_GAIN}"
    return (
        Mode.NONE,
        f"HiSparse would give {text}; host reads cost more than that below {estimates.AUTO_GAIN}",
    )


def _with_hisparse(room: Room, reason: str, fits: Fits | None) -> Plan | Shortfall:
    model, target = room.model, room.target
    layout = tier_layout(room)
    gpu_blocks = room.budget // layout.gpu_block_bytes
    admission = layout.admission_blocks(target.max_tokens) + room.plain.reserved_blocks
    if gpu_blocks < admission:
        needed = admission * layout.gpu_block_bytes
        return hbm_shortfall(room, Mode.HISPARSE, needed=needed, fits=fits)
    copies = target.data * (1 if layout.shared else target.tp)
    minimum = layout.minimum_host_blocks(target.max_tokens) * layout.host_block_bytes
    space = host_room(room)
    per_token = indexer_offload_token_bytes(model, tensor=target.tp)
    pool = _wanted_pool(room, layout, gpu_blocks, minimum, copies, space)
    needed = pool * copies
    if space is not None and needed * 100 > space * RAM_CHECK_PERCENT:
        return pool_shortfall(room, pool=pool, minimum=minimum, copies=copies, space=space, fits=fits)
    host_blocks = pool // layout.host_block_bytes
    left = space if target.memory_bytes is None else max(needed, target.memory_bytes - overhead_bytes(target))
    offload, warnings = _indexer_offload(target, per_token, host_blocks * layout.block_tokens, needed, left)
    warnings += _private_pool_warning(target, layout, pool, copies)
    warnings += _pool_warnings(room, layout, gpu_blocks, pool)
    shm = (needed if layout.shared else 0) + offload + _SHM_FLOOR
    host = HostMemory(
        pool=pool,
        physical=needed + offload,
        shared=layout.shared,
        indexer_offload=offload,
        shm=shm,
        overhead=_overhead(target, needed + offload),
        pod=target.memory_bytes or needed + offload + overhead_bytes(target),
    )
    terms = (
        Term(
            "host pool",
            needed,
            f"{host_blocks:,} blocks of {layout.host_block_bytes:,} B"
            + ("" if copies == 1 else f", {copies} copies")
            + (" (one shared by all ranks)" if layout.shared else " (private)"),
        ),
        Term(
            "indexer offload",
            offload,
            f"{decimal(per_token)} B per host-pool token: repeated prefixes stay warm",
        ),
        _overhead_term(target, host.overhead),
    )
    rows = tuple(_row(room, tokens, layout, gpu_blocks, host_blocks) for tokens in _lengths(target))
    steady = layout.concurrency(gpu_blocks, host_blocks, target.typical) * target.data
    return _finish(
        room,
        mode=Mode.HISPARSE,
        mode_reason=reason,
        tiered=layout,
        gpu_blocks=gpu_blocks,
        host_blocks=host_blocks,
        host=host,
        host_terms=terms,
        rows=rows,
        requests=steady,
        admission=layout.admission_concurrency(gpu_blocks, host_blocks, target.max_tokens) * target.data,
        warnings=tuple(warnings),
    )


def _wanted_pool(
    room: Room, layout: HiSparseLayout, gpu_blocks: int, minimum: int, copies: int, space: int | None
) -> int:
    """The logical pool of one data-parallel replica: as asked, else where HBM binds at maxTokens or the node ends."""
    target = room.target
    if target.host_pool_bytes is not None:
        return target.host_pool_bytes
    if target.pool_requests is not None and target.pool_tokens is not None:
        blocks = target.pool_requests * layout.host_request_blocks(target.pool_tokens) + 2
        return whole_gib(max(blocks * layout.host_block_bytes, minimum))
    useful = layout.gpu_concurrency(gpu_blocks, target.max_tokens) * layout.host_request_blocks(target.max_tokens)
    pool = whole_gib((int(useful) + 2) * layout.host_block_bytes)
    if space is not None:
        # of a user's own resources.memory, the usual overhead stays free where one request still fits then
        usual = max(0, space - (overhead_bytes(target) - least_overhead_bytes(target)))
        if target.memory_bytes is not None and usual * RAM_CHECK_PERCENT >= minimum * copies * 100:
            space = usual
        # keep the indexer offload beside the pool: both grow with the pool's tokens
        pinned = Fraction(layout.host_block_bytes * copies, layout.block_tokens)
        share = pinned / (pinned + indexer_offload_token_bytes(room.model, tensor=target.tp) * target.data)
        give = int(Fraction(space * RAM_CHECK_PERCENT, 100 * copies) * share)
        pool = min(pool, give // GIB * GIB)
    return max(pool, whole_gib(minimum))


def _indexer_offload(
    target: Target, per_token: Fraction, pool_tokens: int, pinned: int, space: int | None
) -> tuple[int, list[str]]:
    """(bytes on the node, warnings)."""
    without = "repeated prefixes are prefilled again once other prompts have passed through HBM"
    if target.indexer_offload is False:
        return 0, [f"the indexer offload is off: {without}"]
    size = target.indexer_offload_bytes or whole(int(per_token * pool_tokens), 64 * MIB)
    total = size * target.data
    if space is not None and pinned + total > space:
        return 0, [f"{format_bytes(total)} for the indexer offload do not fit beside the host pool: {without}"]
    return total, []


def _pool_warnings(room: Room, layout: HiSparseLayout, gpu_blocks: int, pool: int) -> list[str]:
    target, at = room.target, room.target.max_tokens
    useful = int(layout.gpu_concurrency(gpu_blocks, at) * layout.host_request_blocks(at)) + 2
    most = whole_gib(useful * layout.host_block_bytes)
    found = []
    if target.host_pool_bytes is not None and pool > most:
        found.append(f"HBM can make use of {format_bytes(most)} of host pool; {format_bytes(pool - most)} stay idle")
    if target.pool_requests is not None and target.pool_tokens is not None:
        asked = whole_gib(
            (target.pool_requests * layout.host_request_blocks(target.pool_tokens) + 2) * layout.host_block_bytes
        )
        if pool > asked:
            found.append(
                f"kvTier.hostPool asks for {format_bytes(asked)}; the engine does not start with less than "
                f"{format_bytes(pool)}, which holds one request of maxTokens"
            )
    return found


def _private_pool_warning(target: Target, layout: HiSparseLayout, pool: int, copies: int) -> list[str]:
    if layout.shared or copies == target.data:
        return []
    every = f"each of {target.tp} ranks pins its own {format_bytes(pool)}, {format_bytes(pool * copies)} in all"
    return [f"the host pool cannot be shared: {every}"]


def _without_tier(room: Room, mode: Mode, reason: str, blocks: int) -> Plan | Shortfall:
    target = room.target
    space = host_room(room)
    warnings = list(_no_effect(room))
    region = 0
    if mode is Mode.OFFLOAD:
        region = _offload_region(room, space)
        warnings.append(
            "mode Offload keeps evicted prefixes in host memory; it does not raise the feasible context, since a "
            "running request is wholly in HBM"
        )
    planned = overhead_bytes(target)
    node = room.node.host_memory_bytes
    if space is not None and (
        region * target.data > space or (target.memory_bytes is None and node is not None and node < planned)
    ):
        return _region_shortfall(room, mode, region=region * target.data, space=space)
    host = HostMemory(
        pool=region,
        physical=region * target.data,
        shared=False,
        indexer_offload=0,
        shm=region * target.data + _SHM_FLOOR,
        overhead=_overhead(target, region * target.data),
        pod=target.memory_bytes or region * target.data + planned,
    )
    why = "OffloadingConnector cpu_bytes_to_use, in /dev/shm"
    regions = (Term("offload region", host.physical, why),) if region else ()
    rows = tuple(_row(room, tokens, None, blocks, 0) for tokens in _lengths(target))
    return _finish(
        room,
        mode=mode,
        mode_reason=reason,
        tiered=None,
        gpu_blocks=blocks,
        host_blocks=0,
        host=host,
        host_terms=(*regions, _overhead_term(target, host.overhead)),
        rows=rows,
        requests=room.plain.concurrency(blocks, target.typical) * target.data,
        admission=room.plain.concurrency(blocks, target.max_tokens) * target.data,
        warnings=tuple(warnings),
    )


def _offload_region(room: Room, space: int | None) -> int:
    """Bytes of one data-parallel replica, every rank's part included."""
    target, plain = room.target, room.plain
    if target.host_pool_bytes is not None:
        return target.host_pool_bytes
    if target.pool_requests is not None and target.pool_tokens is not None:
        ranks = target.tp * target.pipeline
        return target.pool_requests * plain.request_blocks(target.pool_tokens) * plain.block_bytes * ranks
    return _OFFLOAD_CEILING if space is None else min(_OFFLOAD_CEILING, space // target.data)


def _region_shortfall(room: Room, mode: Mode, *, region: int, space: int) -> Shortfall:
    target, planned = room.target, overhead_bytes(room.target)
    offered = target.memory_bytes or room.node.host_memory_bytes or 0
    ways = []
    if region and (most := space // target.data // GIB):
        ways.append(f"set kvTier.hostPool.size to at most {most}Gi")
    if target.memory_bytes is None and offered - region >= least_overhead_bytes(target):
        ways.append(f"set resources.memory to {offered // GIB}Gi")
    use = "use nodes" if target.memory_bytes is None else "leave resources.memory out on nodes"
    ways.append(f"{use} with {quantity_at_least(region + planned)} of memory")
    return Shortfall(
        model=room.model,
        node=room.node,
        target=target,
        reason="HostMemoryInsufficient",
        limit=Limit(
            Resource.HOST_MEMORY,
            f"{format_bytes(region + planned)} of host memory are needed (offload {format_bytes(region)} and "
            f"{format_bytes(planned)} for the engine itself) and {format_bytes(offered)} are there",
            " or ".join(ways),
        ),
        needed=region + planned,
        available=offered,
        hbm=room.hbm,
        mode=mode,
    )


def _no_effect(room: Room) -> Iterator[str]:
    """Fields of the tier that Auto ended without."""
    target = room.target
    if target.mode != "Auto":
        return
    given = {
        "kvTier.hostPool": target.host_pool_bytes is not None or target.pool_requests is not None,
        "kvTier.hiSparse": target.device_buffer_tokens is not None or target.eager_host_mirror is not None,
        "kvTier.sharing": target.sharing != "Auto",
    }
    if names := [name for name, there in given.items() if there]:
        yield f"{' and '.join(names)} have no effect: mode Auto ended with None"


def _overhead(target: Target, pools: int) -> int:
    """Host memory beside the pools: as planned, or what a user's own resources.memory leaves."""
    return overhead_bytes(target) if target.memory_bytes is None else target.memory_bytes - pools


def _overhead_term(target: Target, size: int) -> Term:
    if target.memory_bytes is None:
        return Term("overhead", size, "16 GiB + 4 GiB per GPU, until measured", estimate=True)
    return Term("overhead", size, "what resources.memory leaves beside the pools")


def _lengths(target: Target) -> tuple[int, ...]:
    """8K, 32K, 128K, 512K and 1M as far as they go, with typicalTokens and maxTokens."""
    usual = (8_192, 32_768, 131_072, 524_288, 1_048_576)
    return tuple(sorted({*(n for n in usual if n <= target.max_tokens), target.typical, target.max_tokens}))


def _row(room: Room, tokens: int, layout: HiSparseLayout | None, gpu_blocks: int, host_blocks: int) -> LengthRow:
    data = room.target.data
    plain = room.plain.concurrency(room.plain.blocks_in(room.budget), tokens) * data
    tier = layout.concurrency(gpu_blocks, host_blocks, tokens) * data if layout else plain
    gain = tier / plain if layout and plain >= data else None  # each rank has to hold one
    return LengthRow(
        tokens=tokens,
        plain=plain,
        tier=tier,
        gain=gain,
        speedup=gain / estimates.HOST_READ_SLOWDOWN if gain is not None else None,
        prefill_seconds=prefill_seconds(room.model, room.node.gpu, tokens, ranks=room.target.tp * room.target.pipeline),
    )


def _finish(
    room: Room,
    *,
    mode: Mode,
    mode_reason: str,
    tiered: HiSparseLayout | None,
    gpu_blocks: int,
    host_blocks: int,
    host: HostMemory,
    host_terms: tuple[Term, ...],
    rows: tuple[LengthRow, ...],
    requests: Fraction,
    admission: Fraction,
    warnings: tuple[str, ...],
) -> Plan:
    target = room.target
    by_tokens = {row.tokens: row for row in rows}
    at_max, at_typical = by_tokens[target.max_tokens], by_tokens[target.typical]
    seqs = target.max_requests or target.data * min(MAX_REQUESTS, max(1, int(requests / target.data)))
    seconds = lifecycle_seconds(room, mode, host, at_max)
    return Plan(
        model=room.model,
        node=room.node,
        target=target,
        mode=mode,
        mode_reason=mode_reason,
        kv_dtype=room.kv_dtype,
        kv_dtype_reason=room.kv_reason,
        hbm=(*room.hbm, Term("KV cache", room.budget, f"{gpu_blocks:,} blocks")),
        kv_budget=room.budget,
        plain=room.plain,
        tiered=tiered,
        gpu_blocks=gpu_blocks,
        host_blocks=host_blocks,
        host=host,
        host_terms=host_terms,
        seconds=seconds,
        max_requests=seqs,
        max_batched_tokens=room.batched,
        curve=rows,
        at_max=at_max,
        at_typical=at_typical,
        admission_at_max=admission,
        pays_above=pays_above(tiered, at_typical),
        limit=binding(room, tiered, gpu_blocks, host_blocks, host, seqs, requests),
        warnings=(*warnings, *warnings_of(room, host.overhead), *timing_warnings(seconds)),
    )
