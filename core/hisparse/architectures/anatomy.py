"""What every reader of an architecture starts from: the anatomy that it answers, and fields that most of them share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from hisparse.config import ConfigFields
from hisparse.errors import SpecError
from hisparse.layers import FullAttention, LayerCaches


class Attention(StrEnum):
    """How a model keeps its keys and values."""

    MHA = "MHA"
    GQA = "GQA"
    MQA = "MQA"
    MLA = "MLA"
    DSA = "DSA"
    WINDOWED = "SlidingWindow"
    LINEAR = "LinearHybrid"


@dataclass(frozen=True)
class Indexer:
    """The lightning indexer of a sparse-attention model. layers own an indexer cache; MTP layers always do."""

    layers: tuple[int, ...]
    head_dim: int
    top_k: int


@dataclass(frozen=True)
class Anatomy:
    """The caches of a model, layer by layer. drafts are those of its MTP layers."""

    attention: Attention
    layers: tuple[LayerCaches, ...]
    drafts: tuple[LayerCaches, ...] = ()
    indexer: Indexer | None = None


Family = Callable[[ConfigFields], Anatomy]
"""The reader of one family of architectures."""


def layer_count(fields: ConfigFields) -> int:
    """Layers of the backbone; where Nemotron-H does not count them, as many as it names."""
    named = fields.first("hybrid_override_pattern", "layers_block_type")
    default = len(named) if isinstance(named, str | list | tuple) and named else None
    return fields.number("num_hidden_layers", "layers", default=default, least=1)


def heads_of(fields: ConfigFields) -> tuple[int, int, int]:
    """(attention heads, KV heads, head dim). Raises SpecError where the heads do not divide."""
    heads = fields.number("num_attention_heads", "attentionHeads")
    hidden = fields.number("hidden_size", "hiddenSize")
    kv_heads = fields.number("num_key_value_heads", "kvHeads", default=heads, least=1)
    head_dim = fields.number("head_dim", "headDim", default=max(1, hidden // heads), least=1)
    if kv_heads > heads or heads % kv_heads:
        raise SpecError(
            "spec.model.facts.kvHeads",
            f"{kv_heads} KV heads do not divide the {heads} attention heads; set the number of config.json here",
        )
    return heads, kv_heads, head_dim


def full_attention(fields: ConfigFields) -> FullAttention:
    _, kv_heads, head_dim = heads_of(fields)
    return FullAttention(kv_heads, head_dim, head_dim)


def attention_kind(fields: ConfigFields) -> Attention:
    heads, kv_heads, _ = heads_of(fields)
    if kv_heads == heads:
        return Attention.MHA
    return Attention.MQA if kv_heads == 1 else Attention.GQA


def drafts_of(fields: ConfigFields, layer: LayerCaches) -> tuple[LayerCaches, ...]:
    key = "mtp_num_hidden_layers" if fields.get("num_nextn_predict_layers") is None else "num_nextn_predict_layers"
    return (layer,) * fields.number(key, "mtpLayers", default=0)
