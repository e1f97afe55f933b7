"""Recurrent states beside attention: Mamba, gated delta nets, Kimi delta attention, short convolutions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from hisparse.architectures.anatomy import (
    Anatomy,
    Attention,
    Indexer,
    attention_kind,
    drafts_of,
    full_attention,
    heads_of,
    layer_count,
)
from hisparse.architectures.latent import latent_rows
from hisparse.config import ConfigFields, in_turns, of_each_layer
from hisparse.errors import SpecError
from hisparse.layers import Cache, IndexerKeys, LayerCaches, RecurrentState, StateExport


def _state_width(fields: ConfigFields, key: str, *, default: int = 2) -> int:
    """Bytes of one element of the recurrence: a dtype of its own in the config, else the default."""
    named = fields.get(key)
    if not isinstance(named, str):
        return default
    return 4 if named.removeprefix("torch.") == "float32" else 2


def _delta_net(fields: ConfigFields) -> RecurrentState:
    """Gated delta net (Qwen3-Next, Qwen3.5 and later)."""
    key_heads = fields.whole("linear_num_key_heads", least=1)
    heads = fields.whole("linear_num_value_heads", least=1)
    key_dim = fields.whole("linear_key_head_dim", least=1)
    value_dim = fields.whole("linear_value_head_dim", least=1)
    return RecurrentState(
        conv_channels=2 * key_heads * key_dim + heads * value_dim,
        conv_taps=fields.whole("linear_conv_kernel_dim", least=1) - 1,
        heads=heads,
        rows=value_dim,
        columns=key_dim,
        width=_state_width(fields, "mamba_ssm_dtype"),
        export=StateExport.DELTA_NET,
    )


def linear(fields: ConfigFields) -> Anatomy:
    """Gated delta nets, and full attention in every n-th layer (qwen3_next.py, qwen3_5.py)."""
    full, state = full_attention(fields), _delta_net(fields)
    layers = layer_count(fields)
    every = fields.whole("full_attention_interval", default=4, least=1)
    kinds = fields.names("layer_types") or in_turns(layers, every, "linear_attention")
    return _hybrid(fields, kinds, {"linear_attention": (state,)}, full)


def _hybrid(fields: ConfigFields, kinds: tuple[str, ...], states: Mapping[str, LayerCaches], full: Cache) -> Anatomy:
    kinds = of_each_layer(kinds, layer_count(fields))
    known: dict[str, LayerCaches] = {"full_attention": (full,), "attention": (full,), **states}
    unknown = sorted({kind for kind in kinds if kind not in known})
    if unknown:
        raise SpecError(
            "spec.model.config",
            f"layer_types has {', '.join(unknown)}, whose cache this planner cannot size in this architecture (known: "
            f"{', '.join(sorted(known))}); name the architecture that has it in model.facts.architecture",
        )
    return Anatomy(Attention.LINEAR, tuple(known[kind] for kind in kinds), drafts_of(fields, (full,)))


def nemotron(fields: ConfigFields) -> Anatomy:
    """One letter per layer: M recurs, * attends, - and E only mix channels (nemotron_h.py)."""
    heads = fields.whole("mamba_num_heads", least=1)
    dim = fields.whole("mamba_head_dim", least=1)
    state = replace(
        _mamba2(
            fields,
            inner=heads * dim,
            heads=heads,
            dim=dim,
            keys=("ssm_state_size", "n_groups", "conv_kernel"),
        ),
        # NemotronHForCausalLMConfig: float32 unless the config says otherwise
        width=_state_width(fields, "mamba_ssm_cache_dtype", default=4),
    )
    kinds = nemotron_blocks(fields) or fields.names("layer_types") or ()
    return _hybrid(fields, kinds, {"mamba": (state,), "mlp": (), "moe": ()}, full_attention(fields))


NEMOTRON_BLOCKS: Final[Mapping[str, str]] = MappingProxyType({"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"})
"""The blocks of Nemotron-H, by the letters of older configs."""


def nemotron_blocks(
    fields: ConfigFields, letters: str = "hybrid_override_pattern", names: str = "layers_block_type"
) -> tuple[str, ...]:
    """The block of each layer, spelt with one letter in older configs and by name in newer ones; empty without both."""
    pattern = fields.get(letters)
    if isinstance(pattern, str) and pattern:
        return tuple(NEMOTRON_BLOCKS.get(one, one) for one in pattern)
    return fields.names(names) or ()


def _mamba2(fields: ConfigFields, *, inner: int, heads: int, dim: int, keys: tuple[str, str, str]) -> RecurrentState:
    state, groups, kernel = (fields.whole(key, least=1) for key in keys)
    return RecurrentState(
        conv_channels=inner,
        conv_taps=kernel - 1,
        groups=groups,
        group_channels=state,
        heads=heads,
        rows=dim,
        columns=state,
        export=StateExport.MAMBA2,
    )


_MAMBA_KEYS: Final = ("mamba_d_state", "mamba_n_groups", "mamba_d_conv")


def granite_hybrid(fields: ConfigFields) -> Anatomy:
    """Mamba2 and attention by layer_types; a config without Mamba layers is a dense model (granitemoehybrid.py)."""
    kinds = fields.names("layer_types") or fields.names("layers_block_type") or ("attention",) * layer_count(fields)
    full = full_attention(fields)
    if "mamba" not in kinds:
        return replace(_hybrid(fields, kinds, {}, full), attention=attention_kind(fields))
    inner = fields.whole("mamba_expand", default=2, least=1) * fields.number("hidden_size", "hiddenSize")
    heads, dim = fields.whole("mamba_n_heads", least=1), fields.whole("mamba_d_head", least=1)
    state = _mamba2(fields, inner=inner, heads=heads, dim=dim, keys=_MAMBA_KEYS)
    return _hybrid(fields, kinds, {"mamba": (state,)}, full)


def bamba(fields: ConfigFields) -> Anatomy:
    """Mamba2, with attention in the layers of attn_layer_indices (bamba.py)."""
    attending = {int(one) for one in fields.names("attn_layer_indices") or ()}
    kinds = tuple("attention" if i in attending else "mamba" for i in range(layer_count(fields)))
    inner = fields.whole("mamba_expand", default=2, least=1) * fields.number("hidden_size", "hiddenSize")
    heads, dim = fields.whole("mamba_n_heads", least=1), fields.whole("mamba_d_head", least=1)
    state = _mamba2(fields, inner=inner, heads=heads, dim=dim, keys=_MAMBA_KEYS)
    return _hybrid(fields, kinds, {"mamba": (state,)}, full_attention(fields))


def falcon_h1(fields: ConfigFields) -> Anatomy:
    """Every layer attends and recurs side by side (falcon_h1.py)."""
    inner = fields.get("mamba_d_ssm")
    if not isinstance(inner, int):
        inner = fields.whole("mamba_expand", default=2, least=1) * fields.number("hidden_size", "hiddenSize")
    heads, dim = fields.whole("mamba_n_heads", least=1), fields.whole("mamba_d_head", least=1)
    state = _mamba2(fields, inner=inner, heads=heads, dim=dim, keys=_MAMBA_KEYS)
    caches: LayerCaches = (full_attention(fields), state)
    return Anatomy(Attention.LINEAR, (caches,) * layer_count(fields))


def jamba(fields: ConfigFields) -> Anatomy:
    """Mamba1, with attention in every attn_layer_period-th layer (jamba.py)."""
    period = fields.whole("attn_layer_period", least=1)
    offset = fields.whole("attn_layer_offset", default=0)
    kinds = tuple("attention" if i % period == offset else "mamba" for i in range(layer_count(fields)))
    inner = fields.whole("mamba_expand", default=2, least=1) * fields.number("hidden_size", "hiddenSize")
    state = RecurrentState(
        conv_channels=inner,
        conv_taps=fields.whole("mamba_d_conv", least=1) - 1,
        heads=inner,
        rows=1,
        columns=fields.whole("mamba_d_state", least=1),
        speculative_taps=False,
    )
    return _hybrid(fields, kinds, {"mamba": (state,)}, full_attention(fields))


def lfm2(fields: ConfigFields) -> Anatomy:
    """Short convolutions and attention (lfm2.py)."""
    width = fields.get("conv_dim")
    channels = width if isinstance(width, int) else fields.number("hidden_size", "hiddenSize")
    state = RecurrentState(
        conv_channels=channels,
        conv_taps=fields.whole("conv_L_cache", default=3, least=1) - 1,
        speculative_taps=False,
    )
    full_at = fields.get("full_attn_idxs")
    kinds = fields.names("layer_types")
    if kinds is None:
        attending = set(full_at) if isinstance(full_at, list) else set()
        kinds = tuple("full_attention" if i in attending else "conv" for i in range(layer_count(fields)))
    return _hybrid(fields, kinds, {"conv": (state,)}, full_attention(fields))


def lightning(fields: ConfigFields) -> Anatomy:
    """Lightning attention, with full attention where attn_type_list has a 1 (minimax_text_01.py)."""
    heads, _, dim = heads_of(fields)
    state = RecurrentState(heads=heads, rows=dim, columns=dim)
    kinds = tuple("attention" if one == "1" else "linear_attention" for one in fields.names("attn_type_list") or ())
    return _hybrid(fields, kinds, {"linear_attention": (state,)}, full_attention(fields))


def _kda(heads: int, dim: int, kernel: int) -> RecurrentState:
    """Kimi delta attention: a float32 state unless the engine is told otherwise."""
    return RecurrentState(
        conv_channels=3 * heads * dim, conv_taps=kernel - 1, heads=heads, rows=dim, columns=dim, width=4
    )


def _linear_config(fields: ConfigFields) -> ConfigFields:
    linear = fields.get("linear_attn_config")
    if not isinstance(linear, Mapping):
        raise SpecError("spec.model.config", "linear_attn_config is missing; put the model's whole config.json here")
    return ConfigFields(linear)


def _kda_of(fields: ConfigFields) -> RecurrentState:
    inner = _linear_config(fields)
    kernel = inner.whole("short_conv_kernel_size", default=4, least=1)
    return _kda(inner.whole("num_heads", least=1), inner.whole("head_dim", least=1), kernel)


def kimi_linear(fields: ConfigFields) -> Anatomy:
    """Kimi delta attention with MLA in between; linear_attn_config counts layers from 1."""
    state, inner = _kda_of(fields), _linear_config(fields)
    recurring = {int(one) for one in inner.names("kda_layers") or ()}
    layers = layer_count(fields)
    kinds = tuple("linear_attention" if i + 1 in recurring else "attention" for i in range(layers))
    return _hybrid(fields, kinds, {"linear_attention": (state,)}, latent_rows(fields))


def glm_flash(fields: ConfigFields) -> Anatomy:
    """Kimi delta attention, and latent rows with pooled indexer keys in between (models/glm5next).

    Keys that are not pooled yet wait in a ring, which hisparse.layout adds.
    """
    if isinstance(fields.get("linear_attn_config"), Mapping):
        state = _kda_of(fields)
    else:
        state = _kda(
            fields.whole("linear_num_heads", least=1),
            fields.whole("linear_head_dim", least=1),
            fields.whole("linear_conv_kernel_dim", default=4, least=1),
        )
    state = replace(state, export=StateExport.FLASH_KDA)
    latent = latent_rows(fields)
    keys = IndexerKeys(fields.number("index_head_dim", "indexHeadDim"), fields.whole("index_kpool", default=1, least=1))
    kinds = fields.names("layer_types") or ()
    sparse: LayerCaches = (latent, keys)
    known = {"linear_attention": (state,), "deepseek_sparse_attention": sparse, "indexed_attention": sparse}
    found = _hybrid(fields, kinds, {**known, "full_attention": sparse, "attention": sparse}, latent)
    indexer = Indexer(
        layers=tuple(index for index, layer in enumerate(found.layers) if keys in layer),
        head_dim=keys.head_dim,
        top_k=fields.number("index_topk", "indexTopK"),
    )
    return replace(found, drafts=drafts_of(fields, sparse), indexer=indexer)
