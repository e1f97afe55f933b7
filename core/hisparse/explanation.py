"""A plan as a sum that a person can redo by hand: every term with its formula in numbers and its source.

The formulas are written here a second time, in the words of a calculator. Each is held against the planner's own
figure: one that does not come out at it is not shown, and the term then says in words where it comes from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from math import gcd, lcm
from typing import Final

from hisparse.architectures import Attention
from hisparse.arithmetic import (
    Figure,
    ceil_of,
    figure,
    floor_of,
    least_of,
    most_of,
    multiple_of,
    total_of,
)
from hisparse.hbm import default_batched_tokens
from hisparse.layers import Cache, ChunkedAttention, FullAttention, IndexerKeys, Latent, RecurrentState, SlidingWindow
from hisparse.layout import SPARSE_BLOCK_TOKENS, Drafting, Group, KvLayout, Reach, kv_layout
from hisparse.model import ModelFacts
from hisparse.plan import Mode, Plan, Resource, Shortfall, Target, Term
from hisparse.rows import (
    KV_DTYPES,
    KvDtype,
    attention_row_bytes,
    indexer_row_bytes,
    latent_row_bytes,
    state_bytes,
)
from hisparse.tier import HiSparseLayout, indexer_count, indexer_offload_token_bytes
from hisparse.units import GIB, MIB

BYTES: Final = "B"
BLOCKS: Final = "blocks"
REQUESTS: Final = "requests"

_PAGE: Final = 4096
_SKIPPED_ENDS: Final = 2
_KERNEL_ROWS: Final = (1, 32, 64, 128)
"""Rows that attention kernels read at a time, one by one or in pages."""
_INTERFACE: Final = "vLLM v1/kv_cache_interface.py"
_PLANNING: Final = "vLLM v1/core/kv_cache_planning.py"
_TIER: Final = "vLLM v1/hisparse/layout.py"
_WORKER: Final = "vLLM v1/worker/gpu_worker.py"


@dataclass(frozen=True)
class Step:
    """One line of the sum. figure is its formula in numbers; None where the value is given, or is in words only.

    estimate says that no rule of the engine gives it.
    """

    name: str
    value: Fraction
    unit: str
    figure: Figure | None
    source: str
    estimate: bool = False


@dataclass(frozen=True)
class Section:
    """Steps that belong together, in the order in which they are reckoned."""

    title: str
    steps: tuple[Step, ...]


def explain(answer: Plan | Shortfall) -> tuple[Section, ...]:
    """The sum behind an answer: HBM, bytes of a token in each kind of layer, blocks, the tier, host memory.

    Of a shortfall, what was reckoned until it fell short.
    """
    if isinstance(answer, Shortfall):
        return tuple(_of_shortfall(answer))
    sections = [
        Section(f"HBM of each {answer.node.gpu.name}", tuple(_hbm(answer, answer.hbm))),
        Section(f"one token in one layer, {answer.kv_dtype}", tuple(_rows(answer, answer.kv_dtype))),
        Section("blocks in HBM, plain KV", tuple(_plain(answer))),
    ]
    if answer.tiered is not None:
        sections.append(Section("blocks with the HiSparse tier", tuple(_tier(answer, answer.tiered))))
    sections.append(Section("host memory of the pod", tuple(_host(answer))))
    return tuple(sections)


def _of_shortfall(short: Shortfall) -> Iterator[Section]:
    if short.limit.resource is Resource.GPUS or not short.hbm:
        return
    yield Section(f"HBM of each {short.node.gpu.name}", tuple(_hbm(short, short.hbm)))
    dtype = _tried_dtype(short)
    yield Section(f"one token in one layer, {dtype}", tuple(_rows(short, dtype)))
    layout = _layout(short, dtype)
    yield Section("blocks in HBM, plain KV", tuple(_blocks(short, layout, dtype)))


def _tried_dtype(short: Shortfall) -> str:
    """The KV dtype that fell short: the last one that Auto tries."""
    if short.target.kv_dtype != "Auto":
        return short.target.kv_dtype
    fp8 = short.model.attention is Attention.DSA or short.limit.resource is Resource.HBM
    return "Fp8" if fp8 else "Bf16"


def _layout(short: Shortfall, dtype: str) -> KvLayout:
    target = short.target
    return kv_layout(
        short.model,
        dtype,
        short.node.gpu,
        tensor=target.tp,
        pipeline=target.pipeline,
        context=target.decode_context,
        batched_tokens=_batched(short),
        version=target.engine_version,
        drafting=Drafting(short.model.drafts if target.draft_tokens else (), target.draft_tokens),
    )


def _batched(answer: Plan | Shortfall) -> int:
    if isinstance(answer, Plan):
        return answer.max_batched_tokens
    return answer.target.max_batched_tokens or default_batched_tokens(answer.node.gpu)


def _step(
    name: str, value: int | Fraction, unit: str, formula: Figure | None, source: str, *, estimate: bool = False
) -> Step:
    exact = Fraction(value)
    shown = formula if formula is not None and formula.value == exact else None
    return Step(name, exact, unit, shown, source, estimate)


def _proved(value: int | Fraction, candidates: Iterable[Figure]) -> Figure | None:
    """The first formula that comes out at the planner's own figure."""
    return next((one for one in candidates if one.value == value), None)


# --- HBM -------------------------------------------------------------------------------------------------------------


def _hbm(answer: Plan | Shortfall, terms: tuple[Term, ...]) -> Iterator[Step]:
    gpu = answer.node.gpu
    yield _step("memory", gpu.memory_bytes, BYTES, None, gpu.source)
    whole = figure(gpu.memory_bytes)
    named = {term.name: term.bytes for term in terms}
    for term in terms[:-1]:
        formula = _proved(term.bytes, _of_term(answer, term, named))
        yield _step(term.name, term.bytes, BYTES, formula, term.why, estimate=term.estimate)
    last = terms[-1]
    rest = whole - total_of([figure(term.bytes) for term in terms[:-1]])
    yield _step(last.name, last.bytes, BYTES, rest, f"{_WORKER}, determine_available_memory: what is left")


def _of_term(answer: Plan | Shortfall, term: Term, named: dict[str, int]) -> Iterator[Figure]:
    target, model = answer.target, answer.model
    batched = figure(_batched(answer))
    if term.name == "left free":
        total, percent = figure(answer.node.gpu.memory_bytes), figure(target.utilization_percent)
        left = total - floor_of(total * percent / figure(100))
        yield left
        yield left - figure(named.get("prefill workspace", 0))
    elif term.name == "prefill workspace":
        yield floor_of(figure(42) * figure(GIB) * batched / (figure(10) * figure(8192)))
    elif term.name == "weights":
        ranks = target.tp * target.pipeline
        even = figure(model.weight_bytes)
        even = ceil_of(even / figure(ranks)) if ranks > 1 else even
        yield even
        # counted tensor by tensor (hisparse.weights): what is replicated or padded comes on top
        beside = term.bytes - int(even.value)
        yield even + figure(beside) if beside > 0 else even - figure(-beside)
    elif term.name == "peak activation":
        yield from _activation(answer)
    elif term.name == "position tables":
        yield figure(2048) * figure(target.max_tokens)
        width = model.latent.rope_dim if model.latent else model.head_dim
        yield figure(2) * figure(width) * most_of(figure(target.max_tokens), figure(model.max_positions))
    elif term.name == "CUDA context and NCCL":
        yield figure(GIB) / figure(4)
        yield floor_of(figure(14) * figure(GIB) / figure(10))
    elif term.name == "CUDA graphs":
        yield floor_of(figure(8) * figure(GIB) / figure(10))


def _activation(answer: Plan | Shortfall) -> Iterator[Figure]:
    """The larger of a forward pass of the widest layer and of sampling (hisparse.hbm)."""
    target, model = answer.target, answer.model
    tokens, hidden, ranks = figure(_batched(answer)), figure(model.hidden_size), figure(target.tp)
    parts = [ceil_of(figure(3) * figure(model.dense_width) / ranks)]
    if model.experts_per_token:
        expert = hidden + ceil_of(figure(3) * figure(model.expert_width) / ranks)
        parts.append(figure(model.experts_per_token) * expert)
    widest = parts[0] if len(parts) == 1 else most_of(*parts)
    forward = tokens * figure(2) * (figure(6) * hidden + widest)
    yield forward
    requests = figure(min(target.max_requests or 256, 256))
    for copies in (figure(4), figure(Fraction(48, 5))):
        sampling = copies * requests * figure(model.vocabulary or 151_936) * figure(4)
        yield sampling
        yield floor_of(sampling)
        yield floor_of(most_of(forward, sampling))


# --- one token in one layer ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Kind:
    """Layers that keep the same thing of a token: `count` of them over all pipeline ranks."""

    cache: Cache
    dtype: KvDtype
    count: int


def _kinds(answer: Plan | Shortfall, dtype: str) -> list[_Kind]:
    model, stored = answer.model, KV_DTYPES[dtype]
    last = len(model.caches) - _SKIPPED_ENDS
    skips = stored.packed and not model.has_states
    counts: Counter[tuple[Cache, str]] = Counter()
    for index, layer in enumerate(model.caches):
        end = skips and not _SKIPPED_ENDS <= index < last
        for cache in layer:
            counts[cache, "Bf16" if end else dtype] += 1
    if answer.target.draft_tokens:
        counts.update((cache, dtype) for layer in model.drafts for cache in layer)
    return [_Kind(cache, KV_DTYPES[name], count) for (cache, name), count in counts.items()]


def _rows(answer: Plan | Shortfall, dtype: str) -> Iterator[Step]:
    for kind in _kinds(answer, dtype):
        layers = f"{kind.count} layer{'s' if kind.count > 1 else ''}"
        name, value, formula, source = _row(answer, kind)
        yield _step(f"{layers} of {name}", value, BYTES, formula, source)


def _row(answer: Plan | Shortfall, kind: _Kind) -> tuple[str, int, Figure, str]:
    model, target, gpu, cache = answer.model, answer.target, answer.node.gpu, kind.cache
    if isinstance(cache, RecurrentState):
        value = state_bytes(cache, tensor=target.tp, speculative=target.draft_tokens)
        return "state (one per request)", value, _state(cache, target), "vLLM mamba_utils.py"
    if isinstance(cache, IndexerKeys):
        scales = ceil_of(figure(cache.head_dim) / figure(128)) * figure(4)
        each = f"indexer keys{f' (one row for {cache.pool} tokens)' if cache.pool > 1 else ''}"
        return each, indexer_row_bytes(cache), figure(cache.head_dim) + scales, "fp8 keys, one fp32 scale per 128"
    if isinstance(cache, Latent):
        value = latent_row_bytes(cache, kind.dtype, gpu, sparse=model.indexer is not None)
        return "latent (MLA, whole on every rank)", value, _latent(cache, value), f"{_INTERFACE}, MLAAttentionSpec"
    value = attention_row_bytes(cache, kind.dtype, tensor=target.tp, native_width=model.kv_width)
    formula = _heads(cache, kind.dtype, target, model)
    stored = "" if kind.dtype.name != "Bf16" else " in 16 bits"
    if isinstance(cache, SlidingWindow):
        return f"keys and values{stored}, window {cache.window:,}", value, formula, f"{_INTERFACE}, SlidingWindowSpec"
    if isinstance(cache, ChunkedAttention):
        name = f"keys and values{stored}, chunk {cache.chunk:,}"
        return name, value, formula, f"{_INTERFACE}, ChunkedLocalAttentionSpec"
    return f"keys and values{stored}", value, formula, f"{_INTERFACE}, FullAttentionSpec"


def _heads(
    cache: FullAttention | SlidingWindow | ChunkedAttention, dtype: KvDtype, target: Target, model: ModelFacts
) -> Figure:
    heads = most_of(figure(1), floor_of(figure(cache.kv_heads) / figure(target.tp)))
    if target.tp == 1:
        heads = figure(cache.kv_heads)
    key, value = figure(cache.key_dim), figure(cache.value_dim)
    if dtype.name == "Bf16":
        return heads * (key + value) * figure(model.kv_width)
    slot = _stored(key, dtype.key_bits, dtype.key_extra) + _stored(value, dtype.value_bits, dtype.value_extra)
    return heads * (multiple_of(slot, 2) if dtype.packed else slot)


def _stored(width: Figure, bits: int, extra: int) -> Figure:
    size = ceil_of(width * figure(bits) / figure(8))
    return size + figure(extra) if extra else size


def _latent(cache: Latent, value: int) -> Figure:
    rank, rope = figure(cache.rank), figure(cache.rope_dim)
    packed = rank + ceil_of(rank / figure(128)) * figure(4) + rope * figure(2)
    candidates = ((rank + rope) * figure(2), packed, rank + rope)
    return next((one for one in candidates if one.value == value), figure(value))


def _state(state: RecurrentState, target: Target) -> Figure:
    tensor = target.tp
    ranks = figure(tensor)
    groups = state.groups if state.groups % tensor == 0 else tensor
    recurrent = ceil_of(figure(state.heads) / ranks)
    for size in (state.rows, state.columns, state.width):
        recurrent = recurrent * figure(size)
    if not state.conv_taps:
        return recurrent
    channels = figure(state.conv_channels) + figure(2) * figure(groups) * figure(state.group_channels)
    taps = state.conv_taps + (target.draft_tokens if state.speculative_taps else 0)
    return ceil_of(channels / ranks) * figure(taps) * figure(state.conv_width) + recurrent


# --- blocks ----------------------------------------------------------------------------------------------------------


def _plain(plan: Plan) -> Iterator[Step]:
    yield from _blocks(plan, plan.plain, plan.kv_dtype)
    layout, blocks = plan.plain, plan.plain.blocks_in(plan.kv_budget)
    for tokens in _lengths(plan.target):
        held = layout.concurrency(blocks, tokens) * plan.target.data
        formula = _times(figure(blocks) / figure(layout.request_blocks(tokens)), plan.target.data)
        yield _step(f"at once, {tokens:,} tokens", held, REQUESTS, formula, f"{_PLANNING}, maximum concurrency")


def _lengths(target: Target) -> list[int]:
    return sorted({target.typical, target.max_tokens})


def _times(one: Figure, data: int) -> Figure:
    return one if data == 1 else one * figure(data)


def _blocks(answer: Plan | Shortfall, layout: KvLayout, dtype: str) -> Iterator[Step]:
    target, kinds = answer.target, _kinds(answer, dtype)
    alike = list(Counter(layout.groups).items())
    names = list(_group_names([count for _, count in alike]))
    for name, (group, _) in zip(names, alike, strict=True):
        padding = f", {group.padding} of padding" if group.padding else ""
        head = f"{name}: {group.layers} caches{padding}, {_reach(group)}, block of {group.block_tokens:,} tokens"
        formula = _proved(group.bytes, _block_bytes(answer, group, kinds, layout))
        yield _step(head, group.bytes, BYTES, formula, f"{_INTERFACE}, page_size_bytes")
    if len({group.bytes for group in layout.groups}) > 1:
        formula = _proved(layout.block_bytes, _pool_block(answer, layout, kinds))
        yield _step("one block of the pool", layout.block_bytes, BYTES, formula, f"{_PLANNING}, bytes per block")
    budget = answer.kv_budget if isinstance(answer, Plan) else answer.hbm[-1].bytes
    formula = floor_of(most_of(figure(0), figure(budget)) / figure(layout.block_bytes))
    if budget >= 0:
        formula = floor_of(figure(budget) / figure(layout.block_bytes))
    yield _step("blocks of the pool", layout.blocks_in(budget), BLOCKS, formula, f"{_PLANNING}, num_blocks")
    tokens = target.max_tokens
    each = []
    for name, (group, count) in zip(names, alike, strict=True):
        value = group.blocks(tokens, layout.in_flight_tokens, layout.context_ranks)
        each.append(_copies(figure(value), figure(count)))
        head = f"{name}: blocks of a request of {tokens:,} tokens"
        yield _step(head, value, BLOCKS, _group_blocks(group, layout, tokens), f"{_INTERFACE}, max_memory_usage_bytes")
    whole = layout.request_blocks(tokens)
    if len(layout.groups) > 1:
        yield _step("blocks of that request", whole, BLOCKS, total_of(each), f"{_INTERFACE}, sum of its groups")
    needed = (figure(whole) + figure(layout.reserved_blocks)) * figure(layout.block_bytes)
    reserved = " and the null block" if layout.reserved_blocks else ""
    yield _step(f"needed for it{reserved}", layout.needed_bytes(tokens), BYTES, needed, f"{_PLANNING}, the check")


def _pool_block(answer: Plan | Shortfall, layout: KvLayout, kinds: list[_Kind]) -> Iterator[Figure]:
    """The largest group; where unlike pages share blocks, in whole strides of their kernels."""
    largest = most_of(*(figure(size) for size in sorted({group.bytes for group in layout.groups})))
    yield largest
    tokens = max(group.block_tokens for group in layout.groups)
    for rows in _KERNEL_ROWS:
        strides = [1]
        for kind in kinds:
            row = _row(answer, kind)[1]
            if isinstance(kind.cache, Latent):
                strides.append(row * rows)
            elif isinstance(kind.cache, IndexerKeys):
                strides.append(row * gcd(kind.cache.pool * SPARSE_BLOCK_TOKENS, tokens) // kind.cache.pool)
        yield multiple_of(largest, lcm(*strides))


def _group_names(counts: list[int]) -> Iterator[str]:
    first = 1
    for count in counts:
        yield f"group {first}" if count == 1 else f"{count} groups from {first}, each"
        first += count


def _reach(group: Group) -> str:
    return {
        Reach.FULL: "all tokens",
        Reach.WINDOW: f"window of {group.tokens:,}",
        Reach.CHUNK: f"chunk of {group.tokens:,}",
        Reach.STATE: "state",
    }[group.reach]


_REACH_OF: Final = {
    FullAttention: Reach.FULL,
    Latent: Reach.FULL,
    IndexerKeys: Reach.FULL,
    SlidingWindow: Reach.WINDOW,
    ChunkedAttention: Reach.CHUNK,
    RecurrentState: Reach.STATE,
}


def _block_bytes(answer: Plan | Shortfall, group: Group, kinds: list[_Kind], layout: KvLayout) -> Iterator[Figure]:
    """A group is layers of one kind, or all kinds in their numbers, or pages that are padded to those of another."""
    here = [kind for kind in kinds if _REACH_OF[type(kind.cache)] is group.reach]
    layers, tokens = figure(group.layers), figure(group.block_tokens)
    for kind in here:
        yield layers * _page(answer, kind, tokens)
    if here:
        yield total_of([figure(kind.count) * _page(answer, kind, tokens) for kind in here])
        share = Fraction(group.layers, sum(kind.count for kind in here))
        if all((share * kind.count).denominator == 1 for kind in here):
            yield total_of([figure(share * kind.count) * _page(answer, kind, tokens) for kind in here])
    for kind in kinds:
        yield from (layers * _page(answer, kind, figure(other.block_tokens)) for other in layout.groups)
    if group.layers and group.bytes % group.layers == 0:
        yield layers * figure(group.bytes // group.layers)


def _page(answer: Plan | Shortfall, kind: _Kind, tokens: Figure) -> Figure:
    row = figure(_row(answer, kind)[1])
    if isinstance(kind.cache, RecurrentState):
        return row
    if isinstance(kind.cache, IndexerKeys) and kind.cache.pool > 1:
        return floor_of(tokens * row / figure(kind.cache.pool))
    return tokens * row


def _group_blocks(group: Group, layout: KvLayout, tokens: int) -> Figure:
    block, length = figure(group.block_tokens), figure(tokens)
    flight = figure(layout.in_flight_tokens)
    if group.reach is Reach.STATE:
        return figure(group.states)
    if group.reach is Reach.WINDOW:
        held = least_of(figure(group.tokens) - figure(1) + flight, length)
        return ceil_of(held / block) + figure(1)
    if group.reach is Reach.CHUNK:
        return ceil_of(least_of(figure(group.tokens) + flight, length) / block)
    if layout.context_ranks > 1:
        length = ceil_of(length / figure(layout.context_ranks))
    return ceil_of(length / block)


# --- the tier --------------------------------------------------------------------------------------------------------


def _tier(plan: Plan, tier: HiSparseLayout) -> Iterator[Step]:
    model, target = plan.model, plan.target
    page = _tier_page(plan, tier)
    yield _step("latent page of one layer", page.value, BYTES, page, _TIER)
    size = int(page.value)
    indexers = _indexer_page(plan, tier)
    yield _step("indexer pages of all layers", indexers.value, BYTES, indexers, _TIER)
    per_block = tier.gpu_block_bytes // size
    packed = _proved(
        tier.gpu_block_bytes,
        (multiple_of(figure(int(indexers.value)), size), figure(per_block) * figure(size)),
    )
    yield _step("one block in HBM", tier.gpu_block_bytes, BYTES, packed, f"{_TIER}: in whole latent pages")
    layers = model.layers + (model.mtp_layers if target.draft_tokens else 0)
    host = figure(layers) * figure(size)
    yield _step(
        "one block of the host pool",
        tier.host_block_bytes,
        BYTES,
        multiple_of(host, _PAGE) if tier.shared else host,
        "shared by the ranks: in whole 4 KiB pages" if tier.shared else "private to each rank: not padded",
    )
    yield _step("hot groups", tier.groups, "groups", None, f"{_TIER}: layers that share an indexer stay together")
    yield _step("hot rows of a request", tier.hot_blocks, BLOCKS, _hot(plan, tier), f"{_TIER}: of one group")
    blocks = floor_of(figure(plan.kv_budget) / figure(tier.gpu_block_bytes))
    yield _step("blocks in HBM", plan.gpu_blocks, BLOCKS, blocks, _TIER)
    pool = floor_of(figure(plan.host.pool) / figure(tier.host_block_bytes))
    yield _step("blocks of the host pool", plan.host_blocks, BLOCKS, pool, _TIER)
    for tokens in _lengths(target):
        yield from _tier_request(plan, tier, tokens)


def _tier_page(plan: Plan, tier: HiSparseLayout) -> Figure:
    latent = plan.model.latent
    assert latent is not None  # noqa: S101 - a tier has one
    row = latent_row_bytes(latent, KV_DTYPES[plan.kv_dtype], plan.node.gpu, sparse=True)
    return figure(tier.block_tokens) * figure(row)


def _indexer_page(plan: Plan, tier: HiSparseLayout) -> Figure:
    indexer = plan.model.indexer
    assert indexer is not None  # noqa: S101 - a tier has one
    count = indexer_count(plan.model, plan.model.mtp_layers if plan.target.draft_tokens else 0)
    return figure(tier.block_tokens) * figure(indexer_row_bytes(IndexerKeys(indexer.head_dim))) * figure(count)


def _hot(plan: Plan, tier: HiSparseLayout) -> Figure:
    wanted = plan.target.device_buffer_tokens
    indexer = plan.model.indexer
    assert indexer is not None  # noqa: S101 - a tier has one
    rows = figure(plan.target.draft_tokens + 2) * figure(indexer.top_k) if wanted is None else figure(wanted)
    return ceil_of(rows / figure(tier.block_tokens))


def _tier_request(plan: Plan, tier: HiSparseLayout, tokens: int) -> Iterator[Step]:
    data, at = plan.target.data, f"{tokens:,} tokens"
    block, length = figure(tier.block_tokens), figure(tokens)
    indexed = ceil_of(length / block)
    resident = ceil_of(least_of(figure(tier.in_flight_tokens), length) / block)
    groups, hot = figure(tier.groups), figure(tier.hot_blocks)
    admission, steady = tier.admission_blocks(tokens), tier.steady_blocks(tokens)
    yield _step(f"to start a request of {at}", admission, BLOCKS, indexed + groups * (hot + resident), _TIER)
    kept = indexed + groups * (hot + least_of(resident, figure(2)))
    yield _step(f"to keep one of {at}", steady, BLOCKS, kept, f"{_TIER}: two pages behind its end stay in HBM")
    there = figure(plan.gpu_blocks)
    by_hbm = figure(1) + (there - figure(admission)) / figure(steady)
    if plan.gpu_blocks < admission:
        by_hbm = there / figure(admission)
    by_pool = figure(plan.host_blocks) / indexed
    held = tier.concurrency(plan.gpu_blocks, plan.host_blocks, tokens) * data
    formula = _times(least_of(by_hbm, by_pool), data)
    yield _step(f"at once, {at}", held, REQUESTS, formula, f"{_TIER}, get_hisparse_steady_state_concurrency")


# --- host memory -----------------------------------------------------------------------------------------------------


def _host(plan: Plan) -> Iterator[Step]:
    for term in plan.host_terms:
        formula = _proved(term.bytes, _of_host_term(plan, term))
        yield _step(term.name, term.bytes, BYTES, formula, term.why, estimate=term.estimate)
    terms = [figure(term.bytes) for term in plan.host_terms if term.bytes]
    own = "resources.memory" if plan.target.memory_bytes is not None else "the pod's request and limit"
    yield _step("pod memory", plan.host.pod, BYTES, total_of(terms), own)
    beside = plan.host.shm - plan.host.physical
    inside = plan.host.physical
    if plan.mode is Mode.HISPARSE and not plan.host.shared:
        inside, beside = plan.host.indexer_offload, plan.host.shm - plan.host.indexer_offload
    formula = figure(inside) + figure(beside) if inside else None
    yield _step("of it /dev/shm at most", plan.host.shm, BYTES, formula, "what is mapped there, and 8 GiB for queues")


def _of_host_term(plan: Plan, term: Term) -> Iterator[Figure]:
    target, tier = plan.target, plan.tiered
    if term.name == "overhead":
        yield figure(16) * figure(GIB) + figure(4) * figure(GIB) * figure(target.gpus)
        if target.memory_bytes is not None:
            yield figure(target.memory_bytes) - figure(plan.host.physical)
    elif term.name == "host pool" and tier is not None:
        copies = figure(plan.host.pool and term.bytes // plan.host.pool)
        yield from (_copies(one, copies) for one in _pools(plan, tier))
        yield _copies(figure(plan.host.pool // GIB) * figure(GIB), copies)
    elif term.name == "offload region":
        yield figure(plan.host.pool) * figure(target.data)
    elif term.name == "indexer offload" and tier is not None:
        yield _copies(_indexer_offload(plan, tier), figure(target.data))


def _copies(one: Figure, copies: Figure) -> Figure:
    return one if copies.value == 1 else one * copies


def _pools(plan: Plan, tier: HiSparseLayout) -> Iterator[Figure]:
    """As much as HBM can make use of at maxTokens, or the least that the engine starts with; in whole GiB."""
    tokens = plan.target.max_tokens
    block, host = tier.host_request_blocks(tokens), figure(tier.host_block_bytes)
    admission, steady = figure(tier.admission_blocks(tokens)), figure(tier.steady_blocks(tokens))
    held = figure(1) + (figure(plan.gpu_blocks) - admission) / steady
    yield multiple_of((floor_of(held * figure(block)) + figure(2)) * host, GIB)
    yield multiple_of((figure(block) + figure(2)) * host, GIB)


def _indexer_offload(plan: Plan, tier: HiSparseLayout) -> Figure:
    """One slot holds a block of all ranks, in whole 4 KiB pages; the file is whole 64 MiB."""
    slot = indexer_offload_token_bytes(plan.model, tensor=plan.target.tp) * tier.block_tokens
    return multiple_of(figure(plan.host_blocks) * figure(int(slot)), 64 * MIB)
