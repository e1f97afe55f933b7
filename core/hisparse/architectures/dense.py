"""Attention with keys and values of its own in every layer: full, to a window, or to a chunk."""

from __future__ import annotations

from hisparse.architectures.anatomy import (
    Anatomy,
    Attention,
    Family,
    attention_kind,
    drafts_of,
    full_attention,
    layer_count,
)
from hisparse.architectures.latent import mla
from hisparse.config import ConfigFields, in_turns, of_each_layer
from hisparse.errors import SpecError
from hisparse.layers import Cache, ChunkedAttention, FullAttention, LayerCaches, SlidingWindow


def dense(fields: ConfigFields) -> Anatomy:
    """Full attention everywhere; layer_types, or a window that the config switches on, make some layers look less far.

    A language model with latent rows inside a wrapper of another name (Mistral Small 4) is MLA.
    """
    if fields.get("kv_lora_rank") is not None:
        return mla(fields)
    full = full_attention(fields)
    kinds = fields.names("layer_types") or _one_kind(fields)
    return _mixed(fields, full, kinds, local=full)


def _one_kind(fields: ConfigFields) -> tuple[str, ...]:
    """layer_types of a config that has none: the window of all layers, or of those from max_window_layers on."""
    layers = layer_count(fields)
    window = fields.get("sliding_window")
    if window is None or fields.get("use_sliding_window") is False:
        return ("full_attention",) * layers
    first = fields.get("max_window_layers") if fields.get("use_sliding_window") else 0
    full = min(first if isinstance(first, int) else 0, layers)
    return ("full_attention",) * full + ("sliding_attention",) * (layers - full)


def alternating(*, full_every: int) -> Family:
    """Local and full layers in turns where layer_types does not say: every n-th layer is full."""

    def read(fields: ConfigFields) -> Anatomy:
        full = full_attention(fields)
        every = fields.whole("sliding_window_pattern", default=full_every, least=1)
        return _mixed(fields, full, _named_or_in_turns(fields, every), local=full)

    return read


def gemma4(fields: ConfigFields) -> Anatomy:
    """Full layers have heads of their own number and size (gemma4.py)."""
    local = full_attention(fields)
    heads = fields.whole("num_global_key_value_heads", default=local.kv_heads, least=1)
    dim = fields.whole("global_head_dim", default=local.key_dim, least=1)
    return _mixed(fields, FullAttention(heads, dim, dim), _named_or_in_turns(fields, every=6), local=local)


def _named_or_in_turns(fields: ConfigFields, every: int) -> tuple[str, ...]:
    return fields.names("layer_types") or in_turns(layer_count(fields), every, "sliding_attention")


def llama4(fields: ConfigFields) -> Anatomy:
    """Layers with RoPE look at their chunk, those without at everything (llama4.py)."""
    full = full_attention(fields)
    layers = layer_count(fields)
    chunk = fields.get("attention_chunk_size")
    rope = fields.get("no_rope_layers")
    every = fields.whole("no_rope_layer_interval", default=4, least=1)
    local = "chunked_attention" if chunk else "full_attention"
    if isinstance(rope, list) and rope:
        kinds = tuple(local if rotated else "full_attention" for rotated in rope)
    else:
        kinds = in_turns(layers, every, local)
    return _mixed(fields, full, kinds, local=full)


def _mixed(fields: ConfigFields, full: FullAttention, kinds: tuple[str, ...], *, local: FullAttention) -> Anatomy:
    """Layers by their kinds. Layers that read an earlier layer's keys keep none of their own (num_kv_shared_layers)."""
    layers = layer_count(fields)
    kinds = of_each_layer(kinds, layers)
    owners = layers - fields.whole("num_kv_shared_layers", default=0)
    caches: list[LayerCaches] = [
        (_attention(fields, kind, full, local),) if index < owners else () for index, kind in enumerate(kinds)
    ]
    looks = {type(cache) for layer in caches for cache in layer}
    label = attention_kind(fields) if looks == {FullAttention} else Attention.WINDOWED
    return Anatomy(label, tuple(caches), drafts_of(fields, (full,)))


def _attention(fields: ConfigFields, kind: str, full: FullAttention, local: FullAttention) -> Cache:
    if kind in ("full_attention", "attention"):
        return full
    if kind == "sliding_attention":
        window = fields.whole("sliding_window", least=1)
        return SlidingWindow(local.kv_heads, local.key_dim, local.value_dim, window)
    if kind == "chunked_attention":
        chunk = fields.whole("attention_chunk_size", least=1)
        return ChunkedAttention(local.kv_heads, local.key_dim, local.value_dim, chunk)
    raise SpecError(
        "spec.model.config",
        f"layer_types has {kind!r}, whose cache this planner cannot size in this architecture (known: full_attention, "
        "sliding_attention, chunked_attention); name the architecture that has it in model.facts.architecture",
    )
