"""What each layer of a model keeps of a request: the shapes behind a KV cache, before any dtype or block.

A layer keeps a tuple of caches: none (a layer that only mixes channels, or that reads an earlier layer's keys), one, or
two (a sparse-attention layer has its latent rows and its indexer's keys; a Falcon-H1 layer attends and recurs).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True)
class FullAttention:
    """Keys and values of every token. kv_heads are those of the whole model, before they are split over ranks."""

    kv_heads: int
    key_dim: int
    value_dim: int


@dataclass(frozen=True)
class SlidingWindow:
    """Keys and values of the last `window` tokens."""

    kv_heads: int
    key_dim: int
    value_dim: int
    window: int


@dataclass(frozen=True)
class ChunkedAttention:
    """Keys and values of the present chunk of `chunk` tokens (Llama 4)."""

    kv_heads: int
    key_dim: int
    value_dim: int
    chunk: int


@dataclass(frozen=True)
class Latent:
    """One row per token for all heads (MLA): `rank` latent values and `rope_dim` rotated ones."""

    rank: int
    rope_dim: int


@dataclass(frozen=True)
class IndexerKeys:
    """Keys of a lightning indexer. One row covers `pool` tokens."""

    head_dim: int
    pool: int = 1


class StateExport(StrEnum):
    """Which kernel can export a state from inside a prefill, which costs a request one state more."""

    NEVER = "never"
    MAMBA2 = "Mamba2"
    FLASH_KDA = "FlashKDA"
    DELTA_NET = "gated delta net"


@dataclass(frozen=True)
class RecurrentState:
    """A state of fixed size per request, whatever its length: short convolution, Mamba, gated delta net and the like.

    The convolution keeps `conv_taps` earlier values of `conv_channels` + 2 x `groups` x `group_channels` channels, in
    the model's dtype unless conv_width (bytes) says otherwise; the recurrence keeps heads x rows x columns values of
    `width` bytes. Both are divided over tensor-parallel ranks. speculative_taps: every drafted token adds one tap.
    export says which kernel computes it, as far as that decides how many states a request keeps.
    """

    conv_channels: int = 0
    conv_taps: int = 0
    conv_width: int = 2
    groups: int = 0
    group_channels: int = 0
    heads: int = 0
    rows: int = 0
    columns: int = 0
    width: int = 2
    speculative_taps: bool = True
    export: StateExport = StateExport.NEVER


Cache = FullAttention | SlidingWindow | ChunkedAttention | Latent | IndexerKeys | RecurrentState
LayerCaches = tuple[Cache, ...]
