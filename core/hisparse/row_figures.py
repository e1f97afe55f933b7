"""The formulas of hisparse.rows in the words of a calculator; each is named after the function that it spells out."""

from __future__ import annotations

from hisparse.arithmetic import Figure, ceil_of, figure, floor_of, most_of, multiple_of
from hisparse.hardware import Gpu
from hisparse.layers import ChunkedAttention, FullAttention, IndexerKeys, Latent, RecurrentState, SlidingWindow
from hisparse.rows import FP8_SCALE_BYTES, FP8_SCALE_GROUP, KvDtype, packs_scales


def attention_row(cache: FullAttention | SlidingWindow | ChunkedAttention, dtype: KvDtype, *, tensor: int) -> Figure:
    """The sum of attention_row_bytes."""
    heads = most_of(figure(1), floor_of(figure(cache.kv_heads) / figure(tensor)))
    if tensor == 1:
        heads = figure(cache.kv_heads)
    key, value = figure(cache.key_dim), figure(cache.value_dim)
    if dtype.name == "Bf16":
        return heads * (key + value) * figure(2)
    slot = _stored(key, dtype.key_bits, dtype.key_extra) + _stored(value, dtype.value_bits, dtype.value_extra)
    return heads * (multiple_of(slot, 2) if dtype.packed else slot)


def _stored(width: Figure, bits: int, extra: int) -> Figure:
    size = ceil_of(width * figure(bits) / figure(8))
    return size + figure(extra) if extra else size


def indexer_row(cache: IndexerKeys) -> Figure:
    """The sum of indexer_row_bytes."""
    return _with_scales(cache.head_dim)


def _with_scales(width: int) -> Figure:
    """fp8 values, and an fp32 scale for each group of them."""
    return figure(width) + ceil_of(figure(width) / figure(FP8_SCALE_GROUP)) * figure(FP8_SCALE_BYTES)


def latent_row(cache: Latent, dtype: KvDtype, gpu: Gpu, *, sparse: bool) -> Figure:
    """The sum of latent_row_bytes."""
    rank, rope = figure(cache.rank), figure(cache.rope_dim)
    if dtype.name == "Bf16":
        return (rank + rope) * figure(2)
    if packs_scales(cache, gpu, sparse=sparse):
        return _with_scales(cache.rank) + rope * figure(2)
    return rank + rope


def state_size(state: RecurrentState, *, tensor: int, speculative: int) -> Figure:
    """The sum of state_bytes."""
    ranks = figure(tensor)
    groups = state.groups if state.groups % tensor == 0 else tensor
    recurrent = ceil_of(figure(state.heads) / ranks)
    for size in (state.rows, state.columns, state.width):
        recurrent = recurrent * figure(size)
    if not state.conv_taps:
        return recurrent
    channels = figure(state.conv_channels) + figure(2) * figure(groups) * figure(state.group_channels)
    taps = state.conv_taps + (speculative if state.speculative_taps else 0)
    return ceil_of(channels / ranks) * figure(taps) * figure(state.conv_width) + recurrent
