"""Bytes of one token, or of one state, in one layer on one rank.

Sources: vLLM 0.30 to 0.33, v1/kv_cache_interface.py, v1/attention/backends (customize_spec of Triton, TurboQuant and
sparse MLA), model_executor/layers/mamba/mamba_utils.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from hisparse.hardware import Gpu
from hisparse.layers import ChunkedAttention, FullAttention, IndexerKeys, Latent, RecurrentState, SlidingWindow
from hisparse.rounding import cdiv, round_up

if TYPE_CHECKING:
    from collections.abc import Mapping

FP8_SCALE_GROUP: Final = 128
FP8_SCALE_BYTES: Final = 4
_FLOAT32: Final = 4
_FLOAT16: Final = 2
_PACKED_ROW_CAPABILITIES: Final = (9, 12)
"""Major compute capabilities on which fp8 sparse-MLA rows are fp8_ds_mla; others keep one byte per element."""


@dataclass(frozen=True)
class KvDtype:
    """One way to store keys and values. Bits are those of one element; *_extra are bytes per head and token.

    engine is the value of --kv-cache-dtype. packed (TurboQuant): keys and values share one slot of even size, and the
    first and last two layers of a dense model stay in 16 bits.
    """

    name: str
    engine: str
    key_bits: int
    value_bits: int
    key_extra: int = 0
    value_extra: int = 0
    packed: bool = False


KV_DTYPES: Final[Mapping[str, KvDtype]] = MappingProxyType(
    {
        one.name: one
        for one in (
            KvDtype("Bf16", "bfloat16", 16, 16),
            KvDtype("Fp8", "fp8", 8, 8),
            # one float32 scale behind each head's data
            KvDtype("Int8PerTokenHead", "int8_per_token_head", 8, 8, _FLOAT32, _FLOAT32),
            KvDtype("Int4PerTokenHead", "int4_per_token_head", 4, 4, _FLOAT32, _FLOAT32),
            # keys: fp8, or codes and a float16 norm; values: codes, float16 scale and zero point
            KvDtype("TurboQuantK8V4", "turboquant_k8v4", 8, 4, 0, 2 * _FLOAT16, packed=True),
            KvDtype("TurboQuant4BitNc", "turboquant_4bit_nc", 4, 4, _FLOAT16, 2 * _FLOAT16, packed=True),
            KvDtype("TurboQuantK3V4Nc", "turboquant_k3v4_nc", 3, 4, _FLOAT16, 2 * _FLOAT16, packed=True),
            KvDtype("TurboQuant3BitNc", "turboquant_3bit_nc", 3, 3, _FLOAT16, 2 * _FLOAT16, packed=True),
        )
    }
)
"""By the name that spec.context.kvCacheDtype uses; presets of vLLM 0.33 (quantization/turboquant/config.py)."""


def attention_row_bytes(cache: FullAttention | SlidingWindow | ChunkedAttention, dtype: KvDtype, *, tensor: int) -> int:
    """Bytes of one token's keys and values on one rank. Ranks beyond the KV heads hold copies."""
    heads = max(1, cache.kv_heads // tensor)
    if dtype.name == "Bf16":
        return heads * (cache.key_dim + cache.value_dim) * 2
    key = cdiv(cache.key_dim * dtype.key_bits, 8) + dtype.key_extra
    value = cdiv(cache.value_dim * dtype.value_bits, 8) + dtype.value_extra
    slot = key + value
    return heads * (round_up(slot, 2) if dtype.packed else slot)


def latent_row_bytes(cache: Latent, dtype: KvDtype, gpu: Gpu, *, sparse: bool) -> int:
    """Bytes of one token in one MLA layer; every tensor-parallel rank holds all of it.

    fp8 on Hopper (and SM120) is fp8_ds_mla for sparse attention: fp8 latent, one fp32 scale per 128, bf16 rope.
    Elsewhere fp8 is one byte per element.
    """
    if dtype.name == "Bf16":
        return (cache.rank + cache.rope_dim) * 2
    if packs_scales(cache, gpu, sparse=sparse):
        return cache.rank + cdiv(cache.rank, FP8_SCALE_GROUP) * FP8_SCALE_BYTES + cache.rope_dim * 2
    return cache.rank + cache.rope_dim


def packs_scales(cache: Latent, gpu: Gpu, *, sparse: bool) -> bool:
    """Whether a row in fp8 is fp8_ds_mla on this GPU: fp8 latent, fp32 scales, bf16 rotated keys.

    A sparse model without rotated keys (GLM-5.3-Flash) has one byte per element on Hopper all the same: of the
    backends for its 512-wide rows only FLASHINFER_MLA_SPARSE_SM90 takes fp8 (vLLM 0.33, platforms/cuda.py and
    v1/attention/backends/mla).
    """
    return sparse and cache.rope_dim > 0 and gpu.capability[0] in _PACKED_ROW_CAPABILITIES


def indexer_row_bytes(cache: IndexerKeys) -> int:
    """Bytes of one row of an indexer cache: fp8 keys and one fp32 scale per 128."""
    return cache.head_dim + cdiv(cache.head_dim, FP8_SCALE_GROUP) * FP8_SCALE_BYTES


def state_bytes(state: RecurrentState, *, tensor: int, speculative: int = 0) -> int:
    """Bytes of one request's state in one layer on one rank, with `speculative` drafted tokens per step.

    Groups that ranks do not divide are extended so that every rank has those of its heads (mamba_utils.py).
    """
    groups = state.groups if state.groups % tensor == 0 else tensor
    channels = state.conv_channels + 2 * groups * state.group_channels
    taps = state.conv_taps + (speculative if state.speculative_taps else 0)
    conv = cdiv(channels, tensor) * taps * state.conv_width if state.conv_taps else 0
    return conv + cdiv(state.heads, tensor) * state.rows * state.columns * state.width
