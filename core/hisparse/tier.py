"""Bytes and blocks of a KV cache, as vLLM lays it out.

Every count is an integer and every concurrency an exact Fraction. Sources: vLLM 0.32/0.33,
v1/kv_cache_interface.py (pages), v1/core/kv_cache_utils.py (bytes per block), v1/hisparse/layout.py (HiSparse),
and the start-up logs of a real run (docs/engine-facts.md), which the tests reproduce.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from hisparse.errors import SpecError
from hisparse.hardware import Gpu
from hisparse.model import Attention, ModelFacts

DENSE_BLOCK_TOKENS = 16
MLA_BLOCK_TOKENS = 64
"""The sparse indexer kernel takes no other block size on CUDA, FlashMLA none either."""

_PAGE = 4096
_FP8_SCALE_GROUP = 128
_ACTIVE_TAIL_PAGES = 2
"""Pages behind a request's end that stay in HBM while it reads from host (hisparse/types.py)."""

_CONCURRENT_BATCHES = 2
"""Async scheduling keeps two batches in flight, so twice max_num_batched_tokens is reserved."""

MAX_DEVICE_BUFFER_TOKENS = 32_768


def cdiv(value: int, step: int) -> int:
    """Ceiling division of non-negative integers."""
    return -(-value // step)


def round_up(value: int, step: int) -> int:
    """The smallest multiple of `step` that is at least `value`."""
    return cdiv(value, step) * step


def latent_row_bytes(model: ModelFacts, kv_dtype: str, gpu: Gpu) -> int:
    """Bytes of one token in one MLA layer.

    fp8 on Hopper (and SM120) is fp8_ds_mla for DSA models: fp8 latent, one fp32 scale per 128, bf16 rope.
    Elsewhere fp8 is one byte per element.
    """
    if kv_dtype == "Bf16":
        return (model.latent_rank + model.rope_dim) * 2
    if model.attention is Attention.DSA and gpu.capability[0] in (9, 12):
        return model.latent_rank + cdiv(model.latent_rank, _FP8_SCALE_GROUP) * 4 + model.rope_dim * 2
    return model.latent_rank + model.rope_dim


def indexer_row_bytes(model: ModelFacts) -> int:
    """Bytes of one token in one indexer cache: fp8 keys and one fp32 scale per 128."""
    if model.indexer is None:
        return 0
    return model.indexer.head_dim + cdiv(model.indexer.head_dim, _FP8_SCALE_GROUP) * 4


def indexer_count(model: ModelFacts, mtp_layers: int = 0) -> int:
    """Layers that own an indexer cache; every MTP layer owns one."""
    return len(model.indexer.layers) + mtp_layers if model.indexer else 0


@dataclass(frozen=True)
class PlainLayout:
    """KV wholly in HBM: one block of block_tokens tokens takes block_bytes on each GPU."""

    block_tokens: int
    block_bytes: int

    @property
    def token_bytes(self) -> int:
        """Bytes per token on each GPU."""
        return self.block_bytes // self.block_tokens

    def request_blocks(self, tokens: int) -> int:
        """Blocks of one request of `tokens`."""
        return cdiv(tokens, self.block_tokens)

    def concurrency(self, blocks: int, tokens: int) -> Fraction:
        """Requests of `tokens` that `blocks` hold at once."""
        return Fraction(blocks, self.request_blocks(tokens))


def plain_layout(
    model: ModelFacts, kv_dtype: str, gpu: Gpu, *, tensor: int, pipeline: int = 1, mtp_layers: int = 0
) -> PlainLayout:
    """The layout without a tier.

    MLA rows are replicated over tensor-parallel ranks; KV heads are divided, and replicated once ranks outnumber
    them. A pipeline rank holds its share of the layers, the largest rank counts.
    """
    layers = cdiv(model.layers, pipeline) + mtp_layers
    if model.is_mla:
        latent = layers * latent_row_bytes(model, kv_dtype, gpu)
        indexers = _most_indexers(model, pipeline) + (mtp_layers if model.indexer else 0)
        token = latent + indexers * indexer_row_bytes(model)
        return PlainLayout(MLA_BLOCK_TOKENS, MLA_BLOCK_TOKENS * token)
    heads = max(1, model.kv_heads // tensor)
    token = layers * 2 * heads * model.head_dim * (2 if kv_dtype == "Bf16" else 1)
    return PlainLayout(DENSE_BLOCK_TOKENS, DENSE_BLOCK_TOKENS * token)


def _most_indexers(model: ModelFacts, pipeline: int) -> int:
    """Indexers of the pipeline rank that holds the most."""
    if model.indexer is None:
        return 0
    step = cdiv(model.layers, pipeline)
    held = [
        sum(first <= layer < first + step for layer in model.indexer.layers) for first in range(0, model.layers, step)
    ]
    return max(held)


@dataclass(frozen=True)
class HiSparseLayout:
    """KV under HiSparse: indexer pages and hot rows in HBM, every latent page in the host pool.

    All GPU groups share one pool of gpu_block_bytes blocks. groups is the number of hot groups (and of resident
    groups). hot_blocks are a request's hot rows in one group, in_flight_tokens what one step may keep in HBM.
    host_block_bytes is one host block with its padding.
    """

    gpu_block_bytes: int
    host_block_bytes: int
    groups: int
    hot_blocks: int
    in_flight_tokens: int
    shared: bool
    block_tokens: int = MLA_BLOCK_TOKENS

    def host_request_blocks(self, tokens: int) -> int:
        """Host blocks of one request: every page is written through."""
        return cdiv(tokens, self.block_tokens)

    def minimum_host_blocks(self, max_tokens: int) -> int:
        """What the engine demands: one request of max_tokens, the null block and a copy-on-write tail."""
        return cdiv(max_tokens, self.block_tokens) + 2

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


def device_buffer_tokens(model: ModelFacts, wanted: int | None, mtp_layers: int = 0) -> int:
    """Hot rows per request and group: (query length + 1) x index_topk unless set, in whole blocks."""
    if model.indexer is None:
        raise SpecError("spec.kvTier.hiSparse", f"{model.name} has no indexer, so it has no hot rows; leave this out")
    # a speculating model asks for its own tokens and the drafted ones: one MTP layer drafts three
    query = 1 + 3 * (1 if mtp_layers else 0)
    rows = wanted if wanted is not None else (query + 1) * model.indexer.top_k
    return round_up(rows, MLA_BLOCK_TOKENS)


def hisparse_layout(
    model: ModelFacts,
    kv_dtype: str,
    gpu: Gpu,
    *,
    max_batched_tokens: int,
    shared: bool,
    device_buffer: int | None = None,
    mtp_layers: int = 0,
) -> HiSparseLayout:
    """The layout under HiSparse.

    Layers that share one indexer form a unit; units are packed into a hot group while the group is no larger than
    the indexer page, so that the groups can share blocks of one size. A private host pool has unpadded blocks,
    a shared one whole 4 KiB pages.
    """
    if model.indexer is None:
        raise SpecError(
            "spec.kvTier.mode",
            f"HiSparse needs a DSA model with an indexer; {model.name} is {model.attention.value}: set None or Offload",
        )
    page = MLA_BLOCK_TOKENS * latent_row_bytes(model, kv_dtype, gpu)
    indexer_page = MLA_BLOCK_TOKENS * indexer_row_bytes(model) * indexer_count(model, mtp_layers)
    groups = _pack(_units(model, mtp_layers), indexer_page // page)
    largest = max(indexer_page, max(groups) * page)
    host = page * (model.layers + mtp_layers)
    buffer = device_buffer_tokens(model, device_buffer, mtp_layers)
    return HiSparseLayout(
        gpu_block_bytes=round_up(largest, page),
        host_block_bytes=round_up(host, _PAGE) if shared else host,
        groups=len(groups),
        hot_blocks=buffer // MLA_BLOCK_TOKENS,
        in_flight_tokens=_CONCURRENT_BATCHES * max_batched_tokens,
        shared=shared,
    )


def indexer_offload_token_bytes(model: ModelFacts, *, tensor: int, mtp_layers: int = 0) -> Fraction:
    """Host bytes per token of an OffloadingConnector that keeps the indexer group.

    Every rank stores its own copy; one slot holds a block of all ranks, in whole 4 KiB pages.
    """
    slot = MLA_BLOCK_TOKENS * indexer_row_bytes(model) * indexer_count(model, mtp_layers) * tensor
    return Fraction(round_up(slot, _PAGE), MLA_BLOCK_TOKENS)


def _units(model: ModelFacts, mtp_layers: int) -> list[int]:
    """Sizes, in layers, of the runs that share one indexer; layers before the first leader join its run."""
    assert model.indexer is not None  # noqa: S101 - the caller checked
    leaders = set(model.indexer.layers)
    units: list[int] = []
    for layer in range(model.layers):
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
