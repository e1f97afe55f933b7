"""Blocks of a KV cache under HiSparse: indexer pages and hot rows in HBM, every latent page in pinned host memory.

Every count is an integer and every concurrency an exact Fraction. Sources: vLLM 0.32/0.33, v1/hisparse/layout.py and
types.py, and the start-up logs of a real run (docs/engine-facts.md), which the tests reproduce.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from hisparse.architectures import Indexer
from hisparse.errors import SpecError
from hisparse.hardware import Gpu
from hisparse.layers import IndexerKeys
from hisparse.layout import SPARSE_BLOCK_TOKENS
from hisparse.model import ModelFacts
from hisparse.rounding import cdiv, round_up
from hisparse.rows import KV_DTYPES, indexer_row_bytes, latent_row_bytes

_PAGE = 4096
_ACTIVE_TAIL_PAGES = 2
"""Pages behind a request's end that stay in HBM while it reads from host (hisparse/types.py)."""

MAX_DEVICE_BUFFER_TOKENS = 32_768


def indexer_count(model: ModelFacts, mtp_layers: int = 0) -> int:
    """Layers that own an indexer cache; every MTP layer owns one."""
    return len(model.indexer.layers) + mtp_layers if model.indexer else 0


@dataclass(frozen=True)
class HiSparseLayout:
    """KV under HiSparse: indexer pages and hot rows in HBM, every latent page in the host pool.

    All GPU groups share one pool of gpu_block_bytes blocks. groups is the number of hot groups (and of resident
    groups). hot_blocks are a request's hot rows in one group, in_flight_tokens what one step may keep in HBM.
    host_block_bytes is one host block with its padding. offload_token_bytes is what the indexer offload takes of host
    memory for every token, on all ranks of a data-parallel replica together.
    """

    gpu_block_bytes: int
    host_block_bytes: int
    groups: int
    hot_blocks: int
    in_flight_tokens: int
    offload_token_bytes: Fraction
    shared: bool
    block_tokens: int = SPARSE_BLOCK_TOKENS

    def host_request_blocks(self, tokens: int) -> int:
        """Host blocks of one request: every page is written through."""
        return cdiv(tokens, self.block_tokens)

    def minimum_host_blocks(self, max_tokens: int) -> int:
        """What the engine demands of its host pool."""
        return minimum_host_blocks(max_tokens)

    def minimum_pool_bytes(self, max_tokens: int) -> int:
        """The same in bytes."""
        return self.minimum_host_blocks(max_tokens) * self.host_block_bytes

    def admission_blocks(self, tokens: int) -> int:
        """GPU blocks that must be free to start a request of `tokens`."""
        resident = cdiv(min(self.in_flight_tokens, tokens), self.block_tokens)
        return self.host_request_blocks(tokens) + self.groups * (self.hot_blocks + resident)

    def steady_blocks(self, tokens: int) -> int:
        """GPU blocks that a request keeps once it reads from host."""
        resident = min(cdiv(min(self.in_flight_tokens, tokens), self.block_tokens), _ACTIVE_TAIL_PAGES)
        return self.host_request_blocks(tokens) + self.groups * (self.hot_blocks + resident)

    def gpu_concurrency(self, gpu_blocks: int, tokens: int) -> Fraction:
        """Requests at once as far as HBM goes: all but one in steady state, one being admitted."""
        admission = self.admission_blocks(tokens)
        if gpu_blocks < admission:
            return Fraction(gpu_blocks, admission)
        return 1 + Fraction(gpu_blocks - admission, self.steady_blocks(tokens))

    def host_concurrency(self, host_blocks: int, tokens: int) -> Fraction:
        """Requests at once as far as the host pool goes."""
        return Fraction(host_blocks, self.host_request_blocks(tokens))

    def concurrency(self, gpu_blocks: int, host_blocks: int, tokens: int) -> Fraction:
        """What the engine logs as "HiSparse steady-state maximum concurrency"."""
        return min(self.gpu_concurrency(gpu_blocks, tokens), self.host_concurrency(host_blocks, tokens))

    def admission_concurrency(self, gpu_blocks: int, host_blocks: int, tokens: int) -> Fraction:
        """What the engine logs as "Maximum concurrency": every request charged as if it were being admitted."""
        gpu = Fraction(gpu_blocks, self.admission_blocks(tokens))
        return min(gpu, self.host_concurrency(host_blocks, tokens))


def device_buffer_tokens(model: ModelFacts, wanted: int | None, draft_tokens: int = 0) -> int:
    """Hot rows per request and group: (query length + 1) x index_topk unless set, in whole blocks."""
    if model.indexer is None:
        raise SpecError("spec.kvTier.hiSparse", f"{model.name} has no indexer, so it has no hot rows; leave this out")
    # a query is the next token and the drafted ones
    rows = wanted if wanted is not None else (draft_tokens + 2) * model.indexer.top_k
    return round_up(rows, SPARSE_BLOCK_TOKENS)


def hisparse_layout(
    model: ModelFacts,
    kv_dtype: str,
    gpu: Gpu,
    *,
    in_flight_tokens: int,
    shared: bool,
    tensor: int = 1,
    device_buffer: int | None = None,
    mtp_layers: int = 0,
    draft_tokens: int = 0,
) -> HiSparseLayout:
    """The layout under HiSparse. in_flight_tokens are those of the plain layout: one scheduler serves both.

    Layers that share one indexer form a unit; units are packed into a hot group while the group is no larger than
    the indexer page, so that the groups can share blocks of one size.
    """
    page, indexer = _latent_page_bytes(model, kv_dtype, gpu), model.indexer
    assert indexer is not None  # noqa: S101 - asked for above
    indexer_page = _indexer_page_bytes(indexer) * indexer_count(model, mtp_layers)
    groups = _pack(_units(model.layers, indexer, mtp_layers), indexer_page // page)
    largest = max(indexer_page, max(groups) * page)
    buffer = device_buffer_tokens(model, device_buffer, draft_tokens)
    return HiSparseLayout(
        gpu_block_bytes=round_up(largest, page),
        host_block_bytes=host_block_bytes(model, kv_dtype, gpu, shared=shared, mtp_layers=mtp_layers),
        groups=len(groups),
        hot_blocks=buffer // SPARSE_BLOCK_TOKENS,
        in_flight_tokens=in_flight_tokens,
        offload_token_bytes=indexer_offload_token_bytes(model, tensor=tensor, mtp_layers=mtp_layers),
        shared=shared,
    )


def host_block_bytes(model: ModelFacts, kv_dtype: str, gpu: Gpu, *, shared: bool, mtp_layers: int = 0) -> int:
    """One block of the host pool: a page of every layer. Blocks of a shared pool are padded to 4 KiB."""
    block = _latent_page_bytes(model, kv_dtype, gpu) * (model.layers + mtp_layers)
    return round_up(block, _PAGE) if shared else block


def minimum_host_blocks(max_tokens: int) -> int:
    """What the engine demands: one request of max_tokens, the null block and a copy-on-write tail."""
    return cdiv(max_tokens, SPARSE_BLOCK_TOKENS) + 2


def indexer_offload_token_bytes(model: ModelFacts, *, tensor: int, mtp_layers: int = 0) -> Fraction:
    """Host bytes per token of an OffloadingConnector that keeps the indexer group.

    Every rank stores its own copy; one slot holds a block of all ranks, in whole 4 KiB pages.
    """
    if model.indexer is None:
        return Fraction(0)
    slot = _indexer_page_bytes(model.indexer) * indexer_count(model, mtp_layers) * tensor
    return Fraction(round_up(slot, _PAGE), SPARSE_BLOCK_TOKENS)


def _latent_page_bytes(model: ModelFacts, kv_dtype: str, gpu: Gpu) -> int:
    if model.indexer is None or model.latent is None:
        raise SpecError(
            "spec.kvTier.mode",
            f"HiSparse needs a DSA model with an indexer; {model.name} is {model.attention.value}: set None or Offload",
        )
    return SPARSE_BLOCK_TOKENS * latent_row_bytes(model.latent, KV_DTYPES[kv_dtype], gpu, sparse=True)


def _indexer_page_bytes(indexer: Indexer) -> int:
    return SPARSE_BLOCK_TOKENS * indexer_row_bytes(IndexerKeys(indexer.head_dim))


def _units(layers: int, indexer: Indexer, mtp_layers: int) -> list[int]:
    """Sizes, in layers, of the runs that share one indexer; layers before the first leader are a run of their own."""
    leaders = set(indexer.layers)
    units: list[int] = []
    for layer in range(layers):
        if layer in leaders or not units:
            units.append(0)
        units[-1] += 1
    return units + [1] * mtp_layers


def _pack(units: list[int], limit: int) -> list[int]:
    """Group consecutive units while the group has at most `limit` layers; a larger unit stands alone."""
    groups: list[int] = []
    for unit in units:
        if groups and groups[-1] + unit <= limit:
            groups[-1] += unit
        else:
            groups.append(unit)
    return groups
