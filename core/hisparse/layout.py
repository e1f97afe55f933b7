"""Blocks of a KV cache that lies wholly in HBM, as vLLM lays it out: which layers share a block table, how large a
block is, and how many blocks one request takes.

Every count is an integer and every concurrency an exact Fraction. Sources: vLLM 0.33, v1/kv_cache_interface.py (blocks
of one request), platforms/interface.py (block size of hybrids), distributed/utils.py (layers of pipeline ranks);
hisparse.grouping has which layers share a table, hisparse.accounting what older releases do otherwise. Tests hold it
against start-up logs (docs/kv-logs.md) and against vLLM's own functions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import gcd, lcm
from typing import Final

from hisparse.accounting import Accounting, accounting
from hisparse.dialect import PINNED_VERSION
from hisparse.grouping import Page, Reach, Table, block_sizes, strides, tables_of
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
_DELTA_NET_STEP: Final = 64
_WIDE_HEAD: Final = 256
_WIDE_HEAD_STEP: Final = 32
_CHECKPOINT_DIM: Final = 128
_CHECKPOINT_CAPABILITIES: Final = (9, 10, 12)
_TRTLLM_ROWS: Final = 32
_BF16: Final = 2
_SKIPPED_ENDS: Final = 2
"""Layers at either end of a dense model that TurboQuant leaves in the model's dtype; never more than half of them."""


@dataclass(frozen=True)
class Group:
    """Layers that share one block table. parts are the pages of one of its blocks, and how many layers have each.

    padding is layers that the group size adds. tokens is the window or the chunk, 0 otherwise; states is how many
    states a request keeps.
    """

    reach: Reach
    parts: tuple[tuple[int, Page], ...]
    padding: int
    block_tokens: int
    tokens: int = 0
    states: int = 0

    @property
    def layers(self) -> int:
        """Caches in it, so that a sparse-attention layer counts twice."""
        return sum(layers for layers, _ in self.parts)

    @property
    def bytes(self) -> int:
        """Bytes that one of its blocks needs, before padding to the pool's."""
        return sum(layers * page.bytes for layers, page in self.parts)

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

    Blocks are a multiple of stride apart, which is 1 unless unlike pages share them. in_flight_tokens bound what
    windows hold beside themselves. reserved_blocks are never given to a request.
    """

    groups: tuple[Group, ...]
    block_bytes: int
    stride: int
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
        """Requests of `tokens` that `blocks` hold at once."""
        return Fraction(blocks, self.request_blocks(tokens))

    def logged_concurrency(self, blocks: int, max_tokens: int) -> Fraction:
        """What the engine logs as "Maximum concurrency": before 0.9.1, of tokens and not of whole blocks."""
        if self.rules.requests_in_blocks:
            return self.concurrency(blocks, max_tokens)
        return Fraction(blocks * self.block_tokens, max_tokens)

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
    tables, steps = tables_of(pages, rules), strides(pages, pipeline)
    sizes = block_sizes(tables, steps)
    largest = sizes.index(max(sizes))
    groups = tuple(_group(table, largest) for table in tables)
    return KvLayout(groups, sizes[largest], steps[largest], in_flight, context, rules)


def _group(table: Table, rank: int) -> Group:
    first = table.pages[0]
    return Group(first.reach, table.on(rank), table.padding, first.block_tokens, first.tokens, first.states)


def layer_dtypes(model: ModelFacts, kv_dtype: str) -> tuple[KvDtype, ...]:
    """How each layer of the backbone stores what it keeps: TurboQuant leaves the ends of dense models in 16 bits.

    Source: vLLM 0.33, quantization/turboquant/config.py, get_boundary_skip_layers.
    """
    dtype, layers = KV_DTYPES[kv_dtype], model.layers
    ends = min(_SKIPPED_ENDS, layers // 2) if dtype.packed and not model.has_states else 0
    return tuple(dtype if ends <= index < layers - ends else KV_DTYPES["Bf16"] for index in range(layers))


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

    def pages(self, block: int, pipeline: int, split: Sequence[int] | None) -> list[Page]:
        if self.dtype.packed and not self.model.has_states:
            # the engine takes quantised rows for one byte per element here, whatever the preset packs them to
            block *= cdiv(BLOCK_TOKENS * _BF16, block)
        block, state_page = self._aligned(block)
        return list(self._raw(block, state_page, pipeline, split))

    def _raw(self, block: int, state_page: int, pipeline: int, split: Sequence[int] | None) -> Iterator[Page]:
        layers = self.model.caches
        split = split or pipeline_split(len(layers), pipeline)
        if sum(split) != len(layers) or len(split) != pipeline:
            raise ValueError(f"layer split {list(split)} does not name {pipeline} ranks of {len(layers)} layers in all")
        ranks = [rank for rank, count in enumerate(split) for _ in range(count)]
        for rank, caches, dtype in zip(ranks, layers, layer_dtypes(self.model, self.dtype.name), strict=True):
            yield from self._of_layer(caches, rank, block, state_page, dtype)
        for caches in self.drafting.layers:
            yield from self._of_layer(caches, pipeline - 1, block, state_page, self.dtype)

    def _of_layer(self, caches: LayerCaches, rank: int, block: int, state_page: int, dtype: KvDtype) -> Iterator[Page]:
        for cache in caches:
            yield self._page(cache, rank, block, state_page, dtype)
            if isinstance(cache, IndexerKeys) and cache.pool > 1:
                yield self._ring(cache, rank, block)

    def _ring(self, cache: IndexerKeys, rank: int, block: int) -> Page:
        """Keys and gates, in bf16, of the pool that is still being filled: one small block per request."""
        span = cdiv(cache.pool + self.drafting.tokens, cache.pool)
        slots = cache.pool * (1 << (span - 1).bit_length())
        return Page(rank, Reach.STATE, slots * 2 * cache.head_dim * _BF16, block, states=1)

    def _page(self, cache: Cache, rank: int, block: int, state_page: int, dtype: KvDtype) -> Page:
        if isinstance(cache, RecurrentState):
            size = state_bytes(cache, tensor=self.tensor, speculative=self.drafting.tokens)
            return Page(rank, Reach.STATE, size, block, states=self._states, padded=state_page)
        if isinstance(cache, IndexerKeys):
            row = indexer_row_bytes(cache)
            kernel = gcd(cache.pool * SPARSE_BLOCK_TOKENS, block)
            stride = row * kernel // cache.pool if kernel < block else 1
            return Page(rank, Reach.FULL, row, block, pool=cache.pool, fixed=True, stride=stride)
        if isinstance(cache, Latent):
            row = latent_row_bytes(cache, dtype, self.gpu, sparse=self.model.has_indexer)
            # TRT-LLM kernels read pages of rows, the others rows
            rows = _TRTLLM_ROWS if self.gpu.capability[0] == 10 and dtype.name == "Fp8" else 1  # noqa: PLR2004
            row = round_up(row, self.rules.padded_latent_bytes)
            return Page(rank, Reach.FULL, row, block, fixed=True, stride=row * rows)
        row = attention_row_bytes(cache, dtype, tensor=self.tensor)
        if isinstance(cache, SlidingWindow):
            return Page(rank, Reach.WINDOW, row, block, tokens=cache.window)
        if isinstance(cache, ChunkedAttention):
            return Page(rank, Reach.CHUNK, row, block, tokens=cache.chunk)
        return Page(rank, Reach.FULL, row, block)

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
            return 1 if self.rules.checkpoint_states and wide else 0
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
        step = block
        if any(isinstance(cache, Latent) for cache in caches):
            step = max(block, self.rules.latent_hybrid_step)
        elif self.rules.blackwell_wide_heads and self.gpu.capability[0] == 10 and self.model.head_dim == _WIDE_HEAD:  # noqa: PLR2004
            step = max(block, _WIDE_HEAD_STEP)
        if self.caching and self._checkpoints and self._is_delta_net:
            step = lcm(step, _DELTA_NET_STEP)
        row = rows[0]
        block = max(block, step * cdiv(max(states), step * row))
        return block, block * row

    def _attention_row(self, cache: FullAttention | Latent) -> int:
        if isinstance(cache, Latent):
            return latent_row_bytes(cache, self.dtype, self.gpu, sparse=self.model.has_indexer)
        return attention_row_bytes(cache, self.dtype, tensor=self.tensor)
