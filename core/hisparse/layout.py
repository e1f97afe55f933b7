"""Blocks of a KV cache that lies wholly in HBM, as vLLM lays it out: which layers share a block table, how large a
block is, and how many blocks one request takes.

Every count is an integer and every concurrency an exact Fraction. Sources: vLLM 0.33, v1/core/kv_cache_planning.py
(grouping, bytes per block), v1/kv_cache_interface.py (blocks of one request), platforms/interface.py (block size of
hybrids), distributed/utils.py (layers of pipeline ranks); hisparse.accounting has what older releases do otherwise.
Tests hold it against start-up logs (docs/kv-logs.md) and against vLLM's own functions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from math import gcd, lcm
from typing import Final

from hisparse.accounting import Accounting, accounting
from hisparse.dialect import PINNED_VERSION
from hisparse.hardware import Gpu
from hisparse.layers import (
    Cache,
    ChunkedAttention,
    FullAttention,
    IndexerKeys,
    Latent,
    LayerCaches,
    RecurrentState,
    SlidingWindow,
    StateExport,
)
from hisparse.model import ModelFacts
from hisparse.pipeline import pipeline_split
from hisparse.rounding import cdiv, round_up
from hisparse.rows import (
    KV_DTYPES,
    KvDtype,
    attention_row_bytes,
    indexer_row_bytes,
    latent_row_bytes,
    state_bytes,
)

BLOCK_TOKENS: Final = 16
SPARSE_BLOCK_TOKENS: Final = 64
"""The sparse indexer kernel takes no other block size on CUDA."""

_FLASH_MLA_BLOCK: Final = 64
_FLASHINFER_MLA_BLOCK: Final = 32
_FLASH_MLA_RANK: Final = 512
_HYBRID_MLA_STEP: Final = 128
_DELTA_NET_STEP: Final = 64
_CHECKPOINT_DIM: Final = 128
_CHECKPOINT_CAPABILITIES: Final = (9, 10, 12)
_TRTLLM_ROWS: Final = 32
_BF16: Final = 2
_SKIPPED_ENDS: Final = 2
"""Layers at either end of a dense model that TurboQuant leaves in the model's dtype; never more than half of them."""


class Reach(StrEnum):
    """How far back the layers of a group look, which decides how many blocks a request keeps."""

    FULL = "full"
    WINDOW = "window"
    CHUNK = "chunk"
    STATE = "state"


@dataclass(frozen=True)
class Group:
    """Layers that share one block table. bytes are those that one of its blocks needs, before padding to the pool's.

    layers counts caches, so a sparse-attention layer counts twice. padding is layers that the group size adds.
    tokens is the window or the chunk, 0 otherwise; states is how many states a request keeps.
    """

    reach: Reach
    layers: int
    padding: int
    block_tokens: int
    bytes: int
    tokens: int = 0
    states: int = 0

    def blocks(self, tokens: int, in_flight: int, context: int) -> int:
        """Blocks that one request of `tokens` may hold at once in this group.

        in_flight tokens may be scheduled and not settled; context is decode-context-parallel ranks.
        """
        if self.reach is Reach.STATE:
            return self.states
        if self.reach is Reach.WINDOW:
            # one more, since a window need not begin where a block does
            return cdiv(min(self.tokens - 1 + in_flight, tokens), self.block_tokens) + 1
        if self.reach is Reach.CHUNK:
            return cdiv(min(self.tokens + in_flight, tokens), self.block_tokens)
        return cdiv(cdiv(tokens, context), self.block_tokens)


@dataclass(frozen=True)
class KvLayout:
    """KV wholly in HBM: every group draws blocks of block_bytes from one pool on each GPU.

    in_flight_tokens bound what windows hold beside themselves. reserved_blocks are never given to a request.
    """

    groups: tuple[Group, ...]
    block_bytes: int
    in_flight_tokens: int
    context_ranks: int
    rules: Accounting

    @property
    def block_tokens(self) -> int:
        """Tokens of the smallest block, which is the unit of prefix caching."""
        return min(group.block_tokens for group in self.groups)

    @property
    def token_bytes(self) -> int:
        """Bytes on each GPU that one more token of a long request costs: windows and states cost nothing more."""
        return int(sum(Fraction(self.block_bytes, g.block_tokens) for g in self.groups if g.reach is Reach.FULL))

    @property
    def is_uniform(self) -> bool:
        """Whether every token costs the same, so that bytes per token say all."""
        return len(self.groups) == 1 and self.groups[0].reach is Reach.FULL

    @property
    def reserved_blocks(self) -> int:
        """Blocks held back when a request is checked against the pool."""
        return 1 if self.rules.null_block_reserved else 0

    def blocks_in(self, budget: int) -> int:
        """Blocks of a pool of `budget` bytes on each GPU."""
        return max(0, budget) // self.block_bytes

    def request_blocks(self, tokens: int) -> int:
        """Blocks of one request of `tokens`."""
        return sum(group.blocks(tokens, self.in_flight_tokens, self.context_ranks) for group in self.groups)

    def request_bytes(self, tokens: int) -> int:
        """Bytes of one request of `tokens` on each GPU; the engine's "GiB KV cache is needed"."""
        return self.request_blocks(tokens) * self.block_bytes

    def holds(self, budget: int, tokens: int) -> bool:
        """Whether the engine starts: one request of `tokens` fits in the pool."""
        return self.needed_bytes(tokens) <= budget

    def needed_bytes(self, tokens: int) -> int:
        """The smallest pool with which the engine starts for requests of `tokens`."""
        return (self.request_blocks(tokens) + self.reserved_blocks) * self.block_bytes

    def longest(self, budget: int, most: int) -> int:
        """The longest request up to `most` tokens that the pool holds, 0 if none: "estimated maximum model length"."""
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            if self.holds(budget, middle):
                low = middle
            else:
                high = middle - 1
        return low

    def concurrency(self, blocks: int, tokens: int) -> Fraction:
        """Requests of `tokens` that `blocks` hold at once: "Maximum concurrency"."""
        return Fraction(blocks, self.request_blocks(tokens))

    def logged_tokens(self, blocks: int, max_tokens: int) -> int:
        """What the engine logs as "GPU KV cache size: N tokens"; for hybrids that is no cost per token."""
        if self.rules.tokens_by_concurrency:
            return int(self.concurrency(blocks, max_tokens) * max_tokens)
        return blocks // len(self.groups) * self.block_tokens * self.context_ranks


@dataclass(frozen=True)
class Drafting:
    """Speculative decoding as far as the cache is concerned: draft layers and tokens drafted per step."""

    layers: tuple[LayerCaches, ...]
    tokens: int


NO_DRAFTING: Final = Drafting((), 0)


@dataclass(frozen=True)
class _Page:
    """One cache of one layer with its block: what vLLM calls a KV cache spec.

    fixed pages cannot be padded. stride: where unlike pages share a block, blocks are a multiple of it apart.
    """

    rank: int
    reach: Reach
    row_bytes: int
    block_tokens: int
    tokens: int = 0
    states: int = 0
    pool: int = 1
    padded: int = 0
    fixed: bool = False
    stride: int = 1

    @property
    def bytes(self) -> int:
        """Bytes of one block, padding included."""
        return max(self.padded, self.own_bytes)

    @property
    def own_bytes(self) -> int:
        """Bytes of one block without padding; a state's block is the state."""
        if self.reach is Reach.STATE:
            return self.row_bytes
        return self.row_bytes * self.block_tokens // self.pool

    @property
    def kind(self) -> tuple[object, ...]:
        """Pages of one kind may share a group."""
        return (self.reach, self.tokens, self.row_bytes, self.block_tokens, self.pool, self.bytes)


def kv_layout(
    model: ModelFacts,
    kv_dtype: str,
    gpu: Gpu,
    *,
    tensor: int = 1,
    pipeline: int = 1,
    context: int = 1,
    batched_tokens: int = 8192,
    version: str = PINNED_VERSION,
    drafting: Drafting = NO_DRAFTING,
    block_tokens: int | None = None,
    prefix_caching: bool | None = None,
    layer_split: Sequence[int] | None = None,
) -> KvLayout:
    """The layout on the pipeline rank whose blocks are largest, which decides how many blocks all ranks have.

    block_tokens and prefix_caching are the engine's own unless said. layer_split is layers per pipeline rank
    (VLLM_PP_LAYER_PARTITION). Raises ValueError where layer_split does not sum up to the model's layers.
    """
    rules = accounting(version)
    dtype = KV_DTYPES[kv_dtype]
    caching = rules.hybrid_prefix_caching if prefix_caching is None else prefix_caching
    block = block_tokens or _base_block(model, dtype, gpu, rules)
    shape = _Shape(model, dtype, gpu, tensor, rules, drafting, caching)
    pages = shape.pages(block, pipeline, layer_split)
    in_flight = batched_tokens * (pipeline + 1 if rules.async_batches else pipeline)
    groups, block_bytes = _largest_rank(pages, rules, pipeline)
    return KvLayout(groups, block_bytes, in_flight, context, rules)


def _base_block(model: ModelFacts, dtype: KvDtype, gpu: Gpu, rules: Accounting) -> int:
    """The block size before hybrids are aligned: 16, unless the attention kernels want another."""
    caches = [cache for layer in model.caches for cache in layer]
    if any(isinstance(cache, IndexerKeys) for cache in caches):
        return SPARSE_BLOCK_TOKENS
    latent = next((cache for cache in caches if isinstance(cache, Latent)), None)
    if latent is None:
        return BLOCK_TOKENS
    generation = gpu.capability[0]
    if latent.rank != _FLASH_MLA_RANK or generation not in (9, 10):
        return BLOCK_TOKENS
    if rules.flash_mla_blocks or (generation == 9 and dtype.name == "Fp8"):  # noqa: PLR2004 - compute capability 9.0
        return _FLASH_MLA_BLOCK
    return BLOCK_TOKENS if generation == 9 else _FLASHINFER_MLA_BLOCK  # noqa: PLR2004


@dataclass(frozen=True)
class _Shape:
    """What decides the bytes of every page."""

    model: ModelFacts
    dtype: KvDtype
    gpu: Gpu
    tensor: int
    rules: Accounting
    drafting: Drafting
    caching: bool

    def pages(self, block: int, pipeline: int, split: Sequence[int] | None) -> list[_Page]:
        if self._skips:
            # the engine takes quantised rows for one byte per element here, whatever the preset packs them to
            block *= cdiv(BLOCK_TOKENS * self.model.kv_width, block)
        block, state_page = self._aligned(block)
        return list(self._raw(block, state_page, pipeline, split))

    @property
    def _skips(self) -> int:
        """Layers at either end that TurboQuant leaves alone: dense models only (turboquant/config.py)."""
        return min(_SKIPPED_ENDS, self.model.layers // 2) if self.dtype.packed and not self.model.has_states else 0

    def _raw(self, block: int, state_page: int, pipeline: int, split: Sequence[int] | None) -> Iterator[_Page]:
        layers = self.model.caches
        split = split or pipeline_split(len(layers), pipeline)
        if sum(split) != len(layers) or len(split) != pipeline:
            raise ValueError(f"layer split {list(split)} does not name {pipeline} ranks of {len(layers)} layers in all")
        ranks = [rank for rank, count in enumerate(split) for _ in range(count)]
        ends = {*range(self._skips), *range(len(layers) - self._skips, len(layers))}
        for index, (rank, caches) in enumerate(zip(ranks, layers, strict=True)):
            dtype = KV_DTYPES["Bf16"] if index in ends else self.dtype
            yield from self._of_layer(caches, rank, block, state_page, dtype)
        for caches in self.drafting.layers:
            yield from self._of_layer(caches, pipeline - 1, block, state_page, self.dtype)

    def _of_layer(self, caches: LayerCaches, rank: int, block: int, state_page: int, dtype: KvDtype) -> Iterator[_Page]:
        for cache in caches:
            yield self._page(cache, rank, block, state_page, dtype)
            if isinstance(cache, IndexerKeys) and cache.pool > 1:
                yield self._ring(cache, rank, block)

    def _ring(self, cache: IndexerKeys, rank: int, block: int) -> _Page:
        """Keys and gates, in bf16, of the pool that is still being filled: one small block per request."""
        span = cdiv(cache.pool + self.drafting.tokens, cache.pool)
        slots = cache.pool * (1 << (span - 1).bit_length())
        return _Page(rank, Reach.STATE, slots * 2 * cache.head_dim * _BF16, block, states=1)

    def _page(self, cache: Cache, rank: int, block: int, state_page: int, dtype: KvDtype) -> _Page:
        if isinstance(cache, RecurrentState):
            size = state_bytes(cache, tensor=self.tensor, speculative=self.drafting.tokens)
            return _Page(rank, Reach.STATE, size, block, states=self._states, padded=state_page)
        if isinstance(cache, IndexerKeys):
            row = indexer_row_bytes(cache)
            kernel = gcd(cache.pool * SPARSE_BLOCK_TOKENS, block)
            stride = row * kernel // cache.pool if kernel < block else 1
            return _Page(rank, Reach.FULL, row, block, pool=cache.pool, fixed=True, stride=stride)
        if isinstance(cache, Latent):
            row = latent_row_bytes(cache, dtype, self.gpu, sparse=self.model.indexer is not None)
            # TRT-LLM kernels read pages of rows, the others rows
            rows = _TRTLLM_ROWS if self.gpu.capability[0] == 10 and dtype.name == "Fp8" else 1  # noqa: PLR2004
            row = round_up(row, self.rules.padded_latent_bytes)
            return _Page(rank, Reach.FULL, row, block, fixed=True, stride=row * rows)
        row = attention_row_bytes(cache, dtype, tensor=self.tensor, native_width=self.model.kv_width)
        if isinstance(cache, SlidingWindow):
            return _Page(rank, Reach.WINDOW, row, block, tokens=cache.window)
        if isinstance(cache, ChunkedAttention):
            return _Page(rank, Reach.CHUNK, row, block, tokens=cache.chunk)
        return _Page(rank, Reach.FULL, row, block)

    @property
    def _states(self) -> int:
        """States of one request: one, one per drafted token; with prefix caching one to copy from and checkpoints."""
        drafted = self.drafting.tokens if self.rules.speculative_states else 0
        return (2 + self._checkpoints if self.caching else 1) + drafted

    @property
    def _checkpoints(self) -> int:
        """States that a prefill exports on its way, where the kernel of the recurrence can."""
        states = [cache for layer in self.model.caches for cache in layer if isinstance(cache, RecurrentState)]
        exports = {state.export for state in states}
        if StateExport.MAMBA2 in exports:
            return 1 if self.rules.checkpoint_states else 0
        generation = self.gpu.capability[0]
        if generation not in _CHECKPOINT_CAPABILITIES:
            return 0
        wide = all(state.columns == _CHECKPOINT_DIM for state in states)
        if StateExport.FLASH_KDA in exports:
            return 1 if self.rules.checkpoint_states and wide and self.model.kv_width == _BF16 else 0
        delta_net = self.rules.delta_net_checkpoints and StateExport.DELTA_NET in exports
        return 1 if delta_net and (wide or generation == 9) else 0  # noqa: PLR2004 - compute capability 9.0

    @property
    def _is_delta_net(self) -> bool:
        layers = self.model.caches
        return any(isinstance(one, RecurrentState) and one.export is StateExport.DELTA_NET for x in layers for one in x)

    def _aligned(self, block: int) -> tuple[int, int]:
        """(block size, bytes that states are padded to): attention pages of hybrids are as large as their states."""
        caches = [cache for layer in self.model.caches for cache in layer]
        states = [
            state_bytes(cache, tensor=self.tensor, speculative=self.drafting.tokens)
            for cache in caches
            if isinstance(cache, RecurrentState)
        ]
        rows = [self._attention_row(cache) for cache in caches if isinstance(cache, FullAttention | Latent)]
        if not states or not rows or not max(states):
            return block, 0
        step = max(block, _HYBRID_MLA_STEP) if any(isinstance(cache, Latent) for cache in caches) else block
        if self.caching and self._checkpoints and self._is_delta_net:
            step = lcm(step, _DELTA_NET_STEP)
        row = rows[0]
        block = max(block, step * cdiv(max(states), step * row))
        return block, block * row

    def _attention_row(self, cache: FullAttention | Latent) -> int:
        if isinstance(cache, Latent):
            return latent_row_bytes(cache, self.dtype, self.gpu, sparse=self.model.indexer is not None)
        return attention_row_bytes(cache, self.dtype, tensor=self.tensor, native_width=self.model.kv_width)


# --- grouping ----------------------------------------------------------------------------------------------------


def _largest_rank(pages: list[_Page], rules: Accounting, pipeline: int) -> tuple[tuple[Group, ...], int]:
    tables = _tables(pages, rules)
    sizes = [
        max((sum(page.bytes for page in table.pages if page.rank == rank) for table in tables), default=0)
        for rank in range(pipeline)
    ]
    if _shares_blocks(pages):
        strides = [lcm(*(page.stride for page in pages if page.rank == rank)) for rank in range(pipeline)]
        sizes = [round_up(size, stride) for size, stride in zip(sizes, strides, strict=True)]
    rank = max(range(pipeline), key=lambda one: sizes[one])
    groups = tuple(table.group(rank) for table in tables)
    return groups, max(sizes)


def _shares_blocks(pages: list[_Page]) -> bool:
    """Whether unlike pages lie side by side in a block (block-outermost layout), which rings of pooled keys ask for."""
    return any(page.pool > 1 for page in pages)


@dataclass(frozen=True)
class _Table:
    """Pages that share a block table, over all pipeline ranks."""

    pages: tuple[_Page, ...]
    size: int

    def group(self, rank: int) -> Group:
        first = self.pages[0]
        here = [page for page in self.pages if page.rank == rank]
        return Group(
            reach=first.reach,
            layers=len(here),
            padding=max(0, self.size - len(self.pages)),
            block_tokens=first.block_tokens,
            bytes=sum(page.bytes for page in here),
            tokens=first.tokens,
            states=first.states,
        )


def _tables(pages: list[_Page], rules: Accounting) -> list[_Table]:
    if _needs_same_slots(pages):
        return [_Table(tuple(pages), len(pages))]
    equal = None if _shares_blocks(pages) else _equal_pages(pages)
    if equal is None:
        return _packed(pages)
    buckets: dict[tuple[object, ...], list[_Page]] = {}
    for page in equal:
        buckets.setdefault(page.kind, []).append(page)
    size = _group_size([len(bucket) for bucket in buckets.values()], rules)
    return [
        _Table(tuple(bucket[first :: cdiv(len(bucket), size)]), size)
        for bucket in buckets.values()
        for first in range(cdiv(len(bucket), size))
    ]


def _needs_same_slots(pages: list[_Page]) -> bool:
    """Whether all layers need the same tokens, so that one table serves them whatever their sizes."""
    first = pages[0]
    if first.reach is Reach.STATE:
        return len({(page.reach, page.bytes, page.states) for page in pages}) == 1
    return len({(page.reach, page.tokens, page.block_tokens) for page in pages}) == 1


def _group_size(counts: list[int], rules: Accounting) -> int:
    """Layers per group: the smallest count, or the largest where they are nearly even (less padding)."""
    smallest, largest = min(counts), max(counts)
    if rules.even_groups is not None and largest < smallest * rules.even_groups:
        return largest
    return smallest


def _equal_pages(pages: list[_Page]) -> list[_Page] | None:
    """Pages of one size: smaller ones get longer blocks, or padding where that does not divide; None where a latent
    page cannot be either.
    """
    largest = max(page.bytes for page in pages)
    found = []
    for page in pages:
        if page.bytes == largest:
            found.append(page)
        elif page.reach is not Reach.STATE and largest % page.bytes == 0:
            found.append(replace(page, block_tokens=page.block_tokens * (largest // page.bytes)))
        elif page.fixed:
            return None
        else:
            found.append(replace(page, padded=largest))
    return found


def _packed(pages: list[_Page]) -> list[_Table]:
    """Groups of unlike pages side by side in one block (block-outermost layout): whole runs of full attention, and as
    many states as the block that they need has room for.
    """
    buckets: dict[tuple[object, ...], list[_Page]] = {}
    for page in pages:
        key = (page.reach, page.tokens, page.bytes) if page.reach is Reach.STATE else (page.reach, page.tokens)
        buckets.setdefault(key, []).append(page)
    whole = [bucket for bucket in buckets.values() if bucket[0].reach is not Reach.STATE]
    repeats = _repeats(list(buckets.values()))
    room = max((_widest(bucket, _splits(bucket, repeats)) for bucket in whole), default=0)
    tables = []
    for bucket in buckets.values():
        splits = _splits(bucket, repeats)
        if bucket[0].reach is Reach.STATE:
            splits = max(splits, cdiv(len(bucket), max(1, room // bucket[0].bytes)))
        tables += [_Table(part, 0) for part in _parts(bucket, splits)]
    return tables


def _parts(bucket: list[_Page], splits: int) -> list[tuple[_Page, ...]]:
    """The bucket in `splits` parts, each with the same number of pages of each size."""
    if splits == 1:
        return [tuple(bucket)]
    sizes: dict[int, list[_Page]] = {}
    for page in bucket:
        sizes.setdefault(page.bytes, []).append(page)
    repeats = list(zip(*sizes.values(), strict=False))
    return [tuple(page for repeat in repeats[first::splits] for page in repeat) for first in range(splits)]


def _per_size(bucket: list[_Page]) -> dict[int, int]:
    counts: dict[int, int] = {}
    for page in bucket:
        counts[page.bytes] = counts.get(page.bytes, 0) + 1
    return counts


def _repeats(buckets: list[list[_Page]]) -> int | None:
    """Pattern repeats per group; None where no bucket mixes page sizes evenly, so that nothing has to be packed."""
    even = [_per_size(bucket) for bucket in buckets]
    even = [counts for counts in even if len(set(counts.values())) == 1]
    floor = max((max(counts.values()) for counts in even if len(counts) > 1), default=0)
    if not floor:
        return None
    counts = [max(one.values()) for one in even]
    # the size with the least padding; the larger one where two are alike
    return min(range(floor, max(floor, *counts) + 1), key=lambda size: (sum(-count % size for count in counts), -size))


def _splits(bucket: list[_Page], repeats: int | None) -> int:
    counts = _per_size(bucket)
    even = len(set(counts.values())) == 1
    return cdiv(max(counts.values()), repeats) if even and repeats else 1


def _widest(bucket: list[_Page], splits: int) -> int:
    return sum(cdiv(count, splits) * size for size, count in _per_size(bucket).items())
