"""A plan as a sum that a person can redo by hand: every term with its formula in numbers and its source.

The formulas are those of the modules that decide, in the words of a calculator, with their constants. Each is held
against the planner's own figure: one that does not come out at it is not shown. A term that is no sum of others, such
as a measured one, is given, and its source says by whom.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

from hisparse.accounting import accounting
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
from hisparse.grouping import Page, Reach
from hisparse.hbm import default_batched_tokens
from hisparse.hbm_figures import term_factors, term_figure
from hisparse.layers import Cache, ChunkedAttention, IndexerKeys, Latent, RecurrentState, SlidingWindow
from hisparse.layout import Drafting, Group, KvLayout, kv_layout, layer_dtypes
from hisparse.plan import Plan, Resource, Shortfall, Target, Term
from hisparse.room import overhead_bytes
from hisparse.rounding import number_text
from hisparse.row_figures import attention_row, indexer_row, latent_row, state_size
from hisparse.rows import (
    KV_DTYPES,
    KvDtype,
    attention_row_bytes,
    indexer_row_bytes,
    latent_row_bytes,
    state_bytes,
)
from hisparse.tier import HiSparseLayout, indexer_count
from hisparse.units import GIB, MIB

BYTES: Final = "B"
BLOCKS: Final = "blocks"
REQUESTS: Final = "requests"

_HOST_PAGE: Final = 4096
_TAIL_PAGES: Final = 2
_OFFLOAD_STEP: Final = 64 * MIB
_SHM_FLOOR: Final = 8 * GIB
_IN_SHM: Final = ("host pool", "indexer offload", "offload region")
_INTERFACE: Final = "vLLM v1/kv_cache_interface.py"
_PLANNING: Final = "vLLM v1/core/kv_cache_planning.py"
_TIER: Final = "vLLM v1/hisparse/layout.py"
_BATCHES: Final = "vLLM config/vllm.py, max_concurrent_batches"
_WORKER: Final = "vLLM v1/worker/gpu_worker.py"


@dataclass(frozen=True)
class Step:
    """One line of the sum. figure is its formula in numbers; None where the value is given, and source says by whom.

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
    dtype = short.kv_dtype
    yield Section(f"one token in one layer, {dtype}", tuple(_rows(short, dtype)))
    layout = _layout(short, dtype)
    yield Section("blocks in HBM, plain KV", tuple(_blocks(short, layout)))


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


# --- HBM -------------------------------------------------------------------------------------------------------------


def _hbm(answer: Plan | Shortfall, terms: tuple[Term, ...]) -> Iterator[Step]:
    gpu, given = answer.node.gpu, answer.target.kv_bytes
    yield _step("memory", gpu.memory_bytes, BYTES, None, gpu.source)
    *before, last = terms
    for index, term in enumerate(before):
        formula = term_figure(answer, term.name, _batched(answer))
        if given is not None and index == len(before) - 1:
            formula = _rest(answer, before[:-1]) - figure(given)
        counted = "counted tensor by tensor: " if term.name == "weights" and answer.model.checkpoint else ""
        factors = term_factors(answer, term.name)
        why = f"{counted}{term.why}{f'; {factors}' if factors else ''}"
        yield _step(term.name, term.bytes, BYTES, formula, why, estimate=term.estimate)
    if given is not None:
        yield _step(last.name, last.bytes, BYTES, None, "kvBytes was given")
        return
    rest = _rest(answer, before)
    yield _step(last.name, last.bytes, BYTES, rest, f"{_WORKER}, determine_available_memory: what is left")


def _rest(answer: Plan | Shortfall, terms: list[Term]) -> Figure:
    return figure(answer.node.gpu.memory_bytes) - total_of([figure(term.bytes) for term in terms])


# --- one token in one layer ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Kind:
    """Layers that keep the same thing of a token: `count` of them over all pipeline ranks."""

    cache: Cache
    dtype: KvDtype
    count: int


def _kinds(answer: Plan | Shortfall, dtype: str) -> list[_Kind]:
    model = answer.model
    counts: Counter[tuple[Cache, KvDtype]] = Counter()
    for layer, stored in zip(model.caches, layer_dtypes(model, dtype), strict=True):
        counts.update((cache, stored) for cache in layer)
    if answer.target.draft_tokens:
        counts.update((cache, KV_DTYPES[dtype]) for layer in model.drafts for cache in layer)
    return [_Kind(cache, stored, count) for (cache, stored), count in counts.items()]


def _rows(answer: Plan | Shortfall, dtype: str) -> Iterator[Step]:
    for kind in _kinds(answer, dtype):
        layers = f"{kind.count} layer{'s' if kind.count > 1 else ''}"
        name, value, formula, source = _row(answer, kind)
        yield _step(f"{layers} of {name}", value, BYTES, formula, source)


def _row(answer: Plan | Shortfall, kind: _Kind) -> tuple[str, int, Figure, str]:
    model, target, gpu, cache = answer.model, answer.target, answer.node.gpu, kind.cache
    tensor, drafted, sparse = target.tp, target.draft_tokens, model.indexer is not None
    if isinstance(cache, RecurrentState):
        value = state_bytes(cache, tensor=tensor, speculative=drafted)
        formula = state_size(cache, tensor=tensor, speculative=drafted)
        return "state (one per request)", value, formula, "vLLM mamba_utils.py"
    if isinstance(cache, IndexerKeys):
        name = "indexer keys" + (f" (one row for {cache.pool} tokens)" if cache.pool > 1 else "")
        return name, indexer_row_bytes(cache), indexer_row(cache), "fp8 keys, one fp32 scale per 128"
    if isinstance(cache, Latent):
        value = latent_row_bytes(cache, kind.dtype, gpu, sparse=sparse)
        formula = latent_row(cache, kind.dtype, gpu, sparse=sparse)
        return "latent (MLA, whole on every rank)", value, formula, f"{_INTERFACE}, MLAAttentionSpec"
    value = attention_row_bytes(cache, kind.dtype, tensor=tensor)
    formula = attention_row(cache, kind.dtype, tensor=tensor)
    name = "keys and values" + (" in 16 bits" if kind.dtype.name == "Bf16" else "")
    if isinstance(cache, SlidingWindow):
        return f"{name}, window {cache.window:,}", value, formula, f"{_INTERFACE}, SlidingWindowSpec"
    if isinstance(cache, ChunkedAttention):
        return f"{name}, chunk {cache.chunk:,}", value, formula, f"{_INTERFACE}, ChunkedLocalAttentionSpec"
    return name, value, formula, f"{_INTERFACE}, FullAttentionSpec"


# --- blocks ----------------------------------------------------------------------------------------------------------


def _plain(plan: Plan) -> Iterator[Step]:
    yield from _blocks(plan, plan.plain)
    layout, blocks = plan.plain, plan.plain.blocks_in(plan.kv_budget)
    for tokens in _lengths(plan.target):
        held = layout.concurrency(blocks, tokens) * plan.target.data
        formula = _times(figure(blocks) / figure(layout.request_blocks(tokens)), plan.target.data)
        yield _step(f"at once, {_length(tokens)}", held, REQUESTS, formula, f"{_PLANNING}, maximum concurrency")


def _lengths(target: Target) -> list[int]:
    return sorted({target.typical, target.max_tokens})


def _length(tokens: int) -> str:
    return "1 token" if tokens == 1 else f"{tokens:,} tokens"


def _times(one: Figure, data: int) -> Figure:
    return one if data == 1 else one * figure(data)


def _blocks(answer: Plan | Shortfall, layout: KvLayout) -> Iterator[Step]:
    target = answer.target
    alike = list(Counter(layout.groups).items())
    names = list(_group_names([count for _, count in alike]))
    for name, (group, _) in zip(names, alike, strict=True):
        padding = f", {group.padding} of padding" if group.padding else ""
        head = f"{name}: {group.layers} caches{padding}, {_reach(group)}, block of {_length(group.block_tokens)}"
        yield _step(head, group.bytes, BYTES, _group_bytes(group), f"{_INTERFACE}, page_size_bytes")
    sizes = sorted({group.bytes for group in layout.groups})
    if len(sizes) > 1 or layout.stride > 1:
        whole = most_of(*map(figure, sizes)) if len(sizes) > 1 else figure(sizes[0])
        whole = multiple_of(whole, layout.stride) if layout.stride > 1 else whole
        yield _step("one block of the pool", layout.block_bytes, BYTES, whole, f"{_PLANNING}, bytes per block")
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
        head = f"{name}: blocks of a request of {_length(tokens)}"
        kept = ": states of one request, whatever its length" if group.reach is Reach.STATE else ""
        source = f"{_INTERFACE}, max_memory_usage_bytes{kept}"
        if group.reach in (Reach.WINDOW, Reach.CHUNK):
            source += f"; {_why_in_flight(answer)}"
        flight = _in_flight(layout.in_flight_tokens, _batched(answer))
        yield _step(head, value, BLOCKS, _group_blocks(group, layout, tokens, flight), source)
    request = layout.request_blocks(tokens)
    if len(layout.groups) > 1:
        yield _step("blocks of that request", request, BLOCKS, total_of(each), f"{_INTERFACE}, sum of its groups")
    needed = (figure(request) + figure(layout.reserved_blocks)) * figure(layout.block_bytes)
    reserved = " and the null block" if layout.reserved_blocks else ""
    yield _step(f"needed for it{reserved}", layout.needed_bytes(tokens), BYTES, needed, f"{_PLANNING}, the check")


def _in_flight(tokens: int, batched: int) -> Figure:
    """Batches that may be scheduled and not settled, as their number times their size."""
    batches = Fraction(tokens, batched)
    return figure(batched) if batches == 1 else figure(batches) * figure(batched)


def _why_in_flight(answer: Plan | Shortfall) -> str:
    """Why there are so many of them."""
    ranks = answer.target.pipeline
    whose = "one batch" if ranks == 1 else f"one batch for each of {ranks} pipeline ranks"
    if accounting(answer.target.engine_version).async_batches:
        whose += ", and one more since async scheduling does not wait for the last"
    return f"{whose}, of max_num_batched_tokens {_batched(answer):,}, may be in flight ({_BATCHES})"


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


def _group_bytes(group: Group) -> Figure:
    """The pages of all its layers; those that are smaller than another kind's are filled up to it."""
    return total_of([figure(layers) * _page(page) for layers, page in group.parts])


def _page(page: Page) -> Figure:
    own = figure(page.row_bytes)
    if page.reach is not Reach.STATE:
        own = figure(page.block_tokens) * own
    if page.pool > 1:
        own = floor_of(own / figure(page.pool))
    return most_of(own, figure(page.padded)) if page.padded > page.own_bytes else own


def _group_blocks(group: Group, layout: KvLayout, tokens: int, flight: Figure) -> Figure | None:
    """None for states, whose number is given."""
    block, length = figure(group.block_tokens), figure(tokens)
    if group.reach is Reach.STATE:
        return None
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
    packed = multiple_of(most_of(indexers, figure(_longest_run(plan)) * figure(size)), size)
    source = f"{_TIER}: also the longest run of layers that share an indexer, in whole latent pages"
    yield _step("one block in HBM", tier.gpu_block_bytes, BYTES, packed, source)
    layers = model.layers + (model.mtp_layers if target.draft_tokens else 0)
    host = figure(layers) * figure(size)
    yield _step(
        "one block of the host pool",
        tier.host_block_bytes,
        BYTES,
        multiple_of(host, _HOST_PAGE) if tier.shared else host,
        "shared by the ranks: in whole 4 KiB pages" if tier.shared else "private to each rank: not padded",
    )
    yield _step("hot groups", tier.groups, "groups", None, f"{_TIER}: layers that share an indexer stay together")
    hot = f"{_TIER}: of one group{_why_hot(plan)}"
    yield _step("hot rows of a request", tier.hot_blocks, BLOCKS, _hot(plan, tier), hot)
    blocks = floor_of(figure(plan.kv_budget) / figure(tier.gpu_block_bytes))
    yield _step("blocks in HBM", plan.gpu_blocks, BLOCKS, blocks, _TIER)
    pool = floor_of(figure(plan.host.pool) / figure(tier.host_block_bytes))
    yield _step("blocks of the host pool", plan.host_blocks, BLOCKS, pool, _TIER)
    if plan.host.indexer_offload:
        slot = _indexer_slot(plan, tier)
        why = f"{_TIER}: the indexer pages of all {target.tp} ranks, in whole 4 KiB pages"
        yield _step("one block of the indexer offload", slot.value, BYTES, slot, why)
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


def _longest_run(plan: Plan) -> int:
    indexer = plan.model.indexer
    assert indexer is not None  # noqa: S101 - a tier has one
    starts = sorted({0, *indexer.layers})
    return max(after - start for start, after in zip(starts, [*starts[1:], plan.model.layers], strict=True))


def _hot(plan: Plan, tier: HiSparseLayout) -> Figure:
    wanted, indexer = plan.target.device_buffer_tokens, plan.model.indexer
    assert indexer is not None  # noqa: S101 - a tier has one
    rows = figure(plan.target.draft_tokens + 2) * figure(indexer.top_k) if wanted is None else figure(wanted)
    return ceil_of(rows / figure(tier.block_tokens))


def _why_hot(plan: Plan) -> str:
    drafted = plan.target.draft_tokens
    if plan.target.device_buffer_tokens is not None:
        return ", as many as were asked for"
    query = f"each of the {drafted + 1} tokens of a query ({drafted} drafted)" if drafted else "the token"
    return f", index_topk rows for {query} and once more"


def _indexer_slot(plan: Plan, tier: HiSparseLayout) -> Figure:
    return multiple_of(_indexer_page(plan, tier) * figure(plan.target.tp), _HOST_PAGE)


def _tier_request(plan: Plan, tier: HiSparseLayout, tokens: int) -> Iterator[Step]:
    data, at = plan.target.data, _length(tokens)
    block, length = figure(tier.block_tokens), figure(tokens)
    indexed = ceil_of(length / block)
    resident = ceil_of(least_of(_in_flight(tier.in_flight_tokens, plan.max_batched_tokens), length) / block)
    groups, hot = figure(tier.groups), figure(tier.hot_blocks)
    admission, steady = tier.admission_blocks(tokens), tier.steady_blocks(tokens)
    starts = f"{_TIER}: {_why_in_flight(plan)}"
    yield _step(f"to start a request of {at}", admission, BLOCKS, indexed + groups * (hot + resident), starts)
    kept = indexed + groups * (hot + least_of(resident, figure(_TAIL_PAGES)))
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
        why = _why_host(plan, term)
        yield _step(term.name, term.bytes, BYTES, _of_host_term(plan, term.name), why, estimate=term.estimate)
    if plan.target.memory_bytes is not None:
        yield _step("pod memory", plan.host.pod, BYTES, None, "resources.memory")
    else:
        terms = [figure(term.bytes) for term in plan.host_terms if term.bytes]
        formula = total_of(terms) if len(terms) > 1 else None
        yield _step("pod memory", plan.host.pod, BYTES, formula, "the pod's request and limit: all of these terms")
    mapped = [term.bytes for term in plan.host_terms if term.name in _IN_SHM and term.bytes]
    if plan.tiered is not None and not plan.tiered.shared:
        # private pools are pinned memory of their own ranks
        mapped = [plan.host.indexer_offload] if plan.host.indexer_offload else []
    shm = total_of([*(figure(size) for size in mapped), figure(_SHM_FLOOR)]) if mapped else None
    yield _step("of it /dev/shm at most", plan.host.shm, BYTES, shm, "what is mapped there, and 8 GiB for queues")


def _why_host(plan: Plan, term: Term) -> str:
    """The planner's reason; that of the indexer offload with its bytes of a token as they are reckoned."""
    tier = plan.tiered
    if term.name != "indexer offload" or tier is None:
        return term.why
    each = f"{number_text(tier.offload_token_bytes)} B of each host-pool token"
    whole = f"{plan.host_blocks:,} blocks, in whole 64 MiB"
    return f"{each}, so that repeated prefixes stay warm; {whole}" if term.bytes else term.why


def _of_host_term(plan: Plan, name: str) -> Figure | None:
    """The formula of hisparse.planner; None for a size that was asked for, or that the node's memory leaves."""
    target, tier, data = plan.target, plan.tiered, figure(plan.target.data)
    match name:
        case "overhead" if target.memory_bytes is not None:
            return figure(target.memory_bytes) - figure(plan.host.physical)
        case "overhead":
            alone = overhead_bytes(replace(target, gpus=0))
            each = overhead_bytes(replace(target, gpus=1)) - alone
            return figure(alone) + figure(each) * figure(target.gpus)
        case "host pool" if tier is not None and target.host_pool_bytes is None:
            return _copies(_pool(plan, tier), data * figure(1 if tier.shared else target.tp))
        case "indexer offload" if tier is not None and target.indexer_offload_bytes is None:
            return _copies(_indexer_offload(plan, tier), data)
    return None


def _copies(one: Figure, copies: Figure) -> Figure:
    return one if copies.value == 1 else one * copies


def _pool(plan: Plan, tier: HiSparseLayout) -> Figure:
    """As much as was asked for or as HBM can make use of, no less than the engine starts with; in whole GiB."""
    target, tokens = plan.target, plan.target.max_tokens
    host = figure(tier.host_block_bytes)
    block = tier.host_request_blocks(tokens)
    least = multiple_of(figure(tier.minimum_host_blocks(tokens)) * host, GIB)
    if target.pool_requests is not None and target.pool_tokens is not None:
        blocks = figure(target.pool_requests) * figure(tier.host_request_blocks(target.pool_tokens))
        return most_of(multiple_of((blocks + figure(2)) * host, GIB), least)
    admission, steady = figure(tier.admission_blocks(tokens)), figure(tier.steady_blocks(tokens))
    held = figure(1) + (figure(plan.gpu_blocks) - admission) / steady
    return most_of(multiple_of((floor_of(held * figure(block)) + figure(2)) * host, GIB), least)


def _indexer_offload(plan: Plan, tier: HiSparseLayout) -> Figure:
    """One slot holds a block of all ranks, in whole 4 KiB pages; the file is whole 64 MiB."""
    slot = figure(tier.offload_token_bytes * tier.block_tokens)
    return multiple_of(figure(plan.host_blocks) * slot, _OFFLOAD_STEP)
