"""plan(model, node, target): the sum of every byte, what binds and the cheapest change that lifts it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction

from hisparse import estimates
from hisparse.acceptance import accept, possible_dtypes, tier_obstacle
from hisparse.architectures import Attention
from hisparse.curve import point
from hisparse.hardware import NodeClass
from hisparse.hbm import MAX_REQUESTS, default_batched_tokens, hbm_terms
from hisparse.layout import Drafting, kv_layout
from hisparse.lengths import last_that
from hisparse.limits import binding, lifecycle_seconds, pays_above, relief, timing_warnings, warnings_of
from hisparse.model import ModelFacts
from hisparse.plan import HostMemory, LengthRow, Limit, Mode, Plan, Resource, Shortfall, Target, Term
from hisparse.prefill import prefill_seconds
from hisparse.room import (
    SPARSE_KERNELS,
    Room,
    host_room,
    indexer_offload_bytes,
    least_overhead_bytes,
    overhead_bytes,
    pool_room,
    tier_layout,
)
from hisparse.rounding import decimal, number_text, quantity_at_least, whole_gib
from hisparse.shortfall import (
    Fits,
    hbm_shortfall,
    memory_shortfall,
    pool_minimum_shortfall,
    pool_shortfall,
    too_few_gpus,
    too_old_gpu,
)
from hisparse.tier import HiSparseLayout
from hisparse.units import GIB, format_bytes

_SHM_FLOOR = 8 * GIB
"""Message queues (0.7 GB apparent) and NCCL."""

_OFFLOAD_CEILING = 64 * GIB
"""Default of mode Offload; larger regions have failed to register with some models."""

_WORTHWHILE = Fraction(11, 10)
"""A change that lifts the limit by less is not worth the words."""

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
    if model.has_indexer and node.gpu.capability[0] not in SPARSE_KERNELS:
        return too_old_gpu(model, node, target)
    if (short := memory_shortfall(model, node, target)) is not None:
        without = plan(model, node, replace(target, memory_bytes=None))
        way = _WITHOUT_MEMORY + (f", then: {without.limit.remedy}" if isinstance(without, Shortfall) else "")
        return replace(short, limit=replace(short.limit, remedy=way))
    answer = _best_dtype(model, node, target, fits=fits)
    return _relieved(answer) if isinstance(answer, Plan) else answer


def plan_without_advice(model: ModelFacts, node: NodeClass, target: Target) -> Plan | Shortfall:
    """The same for a node class with enough GPUs, without a search for what would help: for whoever asks many times.

    What would lift the limit of a plan is then told without by how much.
    """
    if model.has_indexer and node.gpu.capability[0] not in SPARSE_KERNELS:
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


def _relieved(plan: Plan) -> Plan:
    """The plan with the first change that really lifts its limit, and by how much."""
    for text, target, node in relief(plan):
        if accept(plan.model, target):
            continue
        other = plan_without_advice(plan.model, node, target)
        if not isinstance(other, Plan):
            continue
        gain = other.at_max.tier / plan.at_max.tier
        # replicas on the same GPUs would give their number
        if gain > max(_WORTHWHILE, Fraction(target.gpus, plan.target.gpus)):
            remedy = f"{text} for {decimal(gain)} times as many, or {plan.limit.remedy}"
            return replace(plan, limit=replace(plan.limit, remedy=remedy))
    return plan


def _best_dtype(model: ModelFacts, node: NodeClass, target: Target, *, fits: Fits | None) -> Plan | Shortfall:
    first, *others = possible_dtypes(model, target)
    if not others:
        return _attempt(model, node, target, first, fits)
    answer = _attempt(model, node, target, first, None)
    if isinstance(answer, Plan) or answer.limit.resource is not Resource.HBM:
        return answer
    return _attempt(model, node, target, others[-1], fits, fell_back=True)


def smallest(plans: Sequence[Plan]) -> Plan:
    """The plan that makes the flags: that of the class with the least HBM for KV, then the smallest pool.

    A class runs it if its nodes hold this plan's pod; the caller checks that.
    """
    return min(plans, key=lambda p: (p.kv_budget, p.host.pool, p.node.host_memory_bytes or 0, p.node.product))


def _attempt(
    model: ModelFacts, node: NodeClass, target: Target, kv_dtype: str, fits: Fits | None, *, fell_back: bool = False
) -> Plan | Shortfall:
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
    kv_reason = _dtype_reason(model, target, fell_back=fell_back)
    room = Room(model, node, target, kv_dtype, kv_reason, fell_back, batched, hbm, budget, plain)
    if budget <= 0:
        return hbm_shortfall(room, None, needed=plain.needed_bytes(target.max_tokens), fits=fits)
    if target.mode == "Auto":
        return _auto(room, fits)
    return _in_mode(room, Mode(target.mode), "kvTier.mode says so", fits)


def _in_mode(room: Room, mode: Mode, reason: str, fits: Fits | None) -> Plan | Shortfall:
    if mode is Mode.HISPARSE:
        return _with_hisparse(room, reason, fits)
    plain, longest = room.plain, room.target.max_tokens
    if not plain.holds(room.budget, longest):
        return hbm_shortfall(room, mode, needed=plain.needed_bytes(longest), fits=fits)
    return _without_tier(room, mode, reason, plain.blocks_in(room.budget))


def _dtype_reason(model: ModelFacts, target: Target, *, fell_back: bool) -> str:
    if target.kv_dtype != "Auto":
        return "context.kvCacheDtype says so"
    if model.attention is Attention.DSA:
        return "DSA model: fp8 is its native KV format"
    if fell_back:
        return "Bf16 does not fit maxTokens: digits deep in a long prompt may be recalled wrongly"
    return "full precision fits"


def _auto(room: Room, fits: Fits | None) -> Plan | Shortfall:
    """HiSparse where plain KV holds not one request of maxTokens, or where the tier that this node gives wins."""
    target, plain = room.target, room.plain
    if why := tier_obstacle(room.model, target):
        return _in_mode(room, Mode.NONE, why, fits)
    if not plain.holds(room.budget, target.max_tokens):
        why = f"one request of {target.max_tokens:,} tokens does not fit in plain KV"
        return _with_hisparse(room, why, fits)
    mode, typical = Mode.NONE, target.typical
    here = plain.concurrency(plain.blocks_in(room.budget), typical) * target.data
    # no more than the scheduler runs at once, whatever memory holds
    most = target.max_requests or target.data * MAX_REQUESTS
    if here >= most:
        which = "of context.maxConcurrentRequests" if target.max_requests else "that run at once"
        return _in_mode(room, mode, f"plain KV holds the {most} requests {which}, of {typical:,} tokens each", fits)
    tiered = _with_hisparse(room, "", None)
    if isinstance(tiered, Shortfall):
        return _in_mode(room, mode, f"HiSparse does not fit here: {tiered.limit.message}", fits)
    gain = min(tiered.at_typical.tier, Fraction(most)) / here
    text = f"{decimal(gain)} times the concurrency at {typical:,} tokens"
    if gain >= estimates.AUTO_GAIN:
        return replace(tiered, mode_reason=f"{text}, at least {estimates.AUTO_GAIN}")
    ends = _what_ends(tiered, most)
    why = f"HiSparse would give {text}{ends}; its host reads pay from {estimates.AUTO_GAIN} times on"
    return _in_mode(room, mode, why, fits)


def _what_ends(plan: Plan, most: int) -> str:
    """What keeps the tier from more requests of typicalTokens than it has, where that is not HBM."""
    tiered, target = plan.tiered, plan.target
    assert tiered is not None  # noqa: S101 - asked of a tier only
    if most < plan.at_typical.tier:
        return f": no more than {most} requests run at once"
    pool = tiered.host_concurrency(plan.host_blocks, target.typical)
    if pool < tiered.gpu_concurrency(plan.gpu_blocks, target.typical):
        return f": the host pool of {format_bytes(plan.host.pool)} holds {decimal(pool)} requests"
    return ""


def _with_hisparse(room: Room, reason: str, fits: Fits | None) -> Plan | Shortfall:
    target, layout = room.target, tier_layout(room)
    gpu_blocks = room.budget // layout.gpu_block_bytes
    admission = layout.admission_blocks(target.max_tokens) + room.plain.reserved_blocks
    if gpu_blocks < admission:
        needed = admission * layout.gpu_block_bytes
        return hbm_shortfall(room, Mode.HISPARSE, needed=needed, fits=fits)
    copies = target.data * (1 if layout.shared else target.tp)
    minimum = layout.minimum_pool_bytes(target.max_tokens)
    if target.host_pool_bytes is not None and target.host_pool_bytes < minimum:
        return pool_minimum_shortfall(room, minimum=minimum, copies=copies, fits=fits)
    space = pool_room(room)
    pool = _wanted_pool(room, layout, gpu_blocks, minimum, copies, space)
    needed = pool * copies
    if space is not None and needed > space:
        return pool_shortfall(room, pool=pool, minimum=minimum, copies=copies, space=space, fits=fits)
    host_blocks = pool // layout.host_block_bytes
    left = host_room(room) if target.memory_bytes is None else max(needed, target.memory_bytes - overhead_bytes(target))
    offload, warnings = _indexer_offload(target, layout, host_blocks, needed, left)
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
            f"{number_text(layout.offload_token_bytes)} B per host-pool token: repeated prefixes stay warm",
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
    """The logical pool of one data-parallel replica: as asked, else where HBM binds at maxTokens or the node ends.

    What is not asked for in bytes grows and shrinks with maxTokens in one way: requests at once never rise with it. So
    the least that the engine takes is not rounded up to whole GiB, and of a user's own resources.memory the usual
    overhead stays free of all but that least.
    """
    target = room.target
    if target.host_pool_bytes is not None:
        return target.host_pool_bytes
    if target.pool_requests is not None and target.pool_tokens is not None:
        return max(_asked_pool(layout, target.pool_requests, target.pool_tokens), minimum)
    useful = _useful_pool(layout, gpu_blocks, target.max_tokens)
    if space is None:
        return useful
    if target.memory_bytes is not None:
        space = min(space, max(0, target.memory_bytes - overhead_bytes(target)))

    def holds(gib: int) -> bool:
        # the indexer offload is kept beside the pool
        offload = indexer_offload_bytes(target, layout, gib * GIB // layout.host_block_bytes)
        return gib * GIB * copies + offload <= space

    return max(last_that(holds, 0, useful // GIB) * GIB, minimum)


def _asked_pool(layout: HiSparseLayout, requests: int, tokens: int) -> int:
    """The pool of kvTier.hostPool forRequests and atTokens, with the two blocks that the engine keeps for itself."""
    return (requests * layout.host_request_blocks(tokens) + 2) * layout.host_block_bytes


def _useful_pool(layout: HiSparseLayout, gpu_blocks: int, tokens: int) -> int:
    """What HBM can make use of where all requests have `tokens`, in whole GiB."""
    blocks = int(layout.gpu_concurrency(gpu_blocks, tokens) * layout.host_request_blocks(tokens)) + 2
    return whole_gib(blocks * layout.host_block_bytes)


def _indexer_offload(
    target: Target, layout: HiSparseLayout, host_blocks: int, pinned: int, space: int | None
) -> tuple[int, list[str]]:
    """(bytes on the node, warnings)."""
    without = "repeated prefixes are prefilled again once other prompts have passed through HBM"
    total = indexer_offload_bytes(target, layout, host_blocks)
    if not total:
        return 0, [f"the indexer offload is off: {without}"]
    if space is not None and pinned + total > space:
        return 0, [f"{format_bytes(total)} for the indexer offload do not fit beside the host pool: {without}"]
    return total, []


def _pool_warnings(room: Room, layout: HiSparseLayout, gpu_blocks: int, pool: int) -> list[str]:
    target = room.target
    most = _useful_pool(layout, gpu_blocks, target.max_tokens)
    found = []
    if target.host_pool_bytes is not None and pool > most:
        found.append(f"HBM can make use of {format_bytes(most)} of host pool; {format_bytes(pool - most)} stay idle")
    if target.pool_requests is not None and target.pool_tokens is not None:
        asked = _asked_pool(layout, target.pool_requests, target.pool_tokens)
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
        kv_dtype=room.kv_dtype,
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
    at = point(
        room.plain,
        layout,
        tokens,
        budget=room.budget,
        gpu_blocks=gpu_blocks,
        host_blocks=host_blocks,
        ranks=room.target.data,
    )
    return LengthRow(
        tokens=tokens,
        plain=at.plain,
        tier=at.tier,
        gain=at.ratio,
        speedup=at.ratio / estimates.HOST_READ_SLOWDOWN if at.ratio is not None else None,
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
        pays_above=pays_above(at_typical, seqs, ranks=target.data) if tiered is not None else None,
        limit=binding(room, tiered, gpu_blocks, host_blocks, host, seqs, requests),
        warnings=(*warnings, *warnings_of(room, host.overhead, requests), *timing_warnings(seconds)),
    )
