"""Latent attention: one row per token for all heads (MLA), with the keys of an indexer beside it (DSA)."""

from __future__ import annotations

from collections.abc import Sequence

from hisparse.architectures.anatomy import Anatomy, Attention, Indexer, drafts_of, layer_count
from hisparse.config import ConfigFields
from hisparse.errors import SpecError
from hisparse.layers import IndexerKeys, Latent, LayerCaches


def latent_rows(fields: ConfigFields) -> Latent:
    rank = fields.number("kv_lora_rank", "kvLoraRank")
    return Latent(rank, fields.number("qk_rope_head_dim", "ropeHeadDim", least=0))


def mla(fields: ConfigFields) -> Anatomy:
    latent = latent_rows(fields)
    return Anatomy(Attention.MLA, ((latent,),) * layer_count(fields), drafts_of(fields, (latent,)))


def dsa(fields: ConfigFields) -> Anatomy:
    """Latent rows in every layer, indexer keys in those that choose for themselves (deepseek_v2.py)."""
    latent = latent_rows(fields)
    layers = layer_count(fields)
    indexer = Indexer(
        layers=_index_layers(fields, layers),
        head_dim=fields.number("index_head_dim", "indexHeadDim"),
        top_k=fields.number("index_topk", "indexTopK"),
    )
    keys = IndexerKeys(indexer.head_dim)
    owners = frozenset(indexer.layers)
    caches: tuple[LayerCaches, ...] = tuple((latent, keys) if i in owners else (latent,) for i in range(layers))
    return Anatomy(Attention.DSA, caches, drafts_of(fields, (latent, keys)), indexer)


def _index_layers(fields: ConfigFields, layers: int) -> tuple[int, ...]:
    found = indexer_layers(fields, layers)
    count = fields.fact("indexLayers")
    if count is None or count == len(found):
        return found
    if count == layers:
        return tuple(range(layers))
    raise SpecError(
        "spec.model.facts.indexLayers",
        f"{count} says how many of {layers} layers own an indexer but not which (config.json says {len(found)}); "
        "put index_topk_freq and index_skip_topk_offset, or index_topk_pattern, into model.config",
    )


def indexer_layers(fields: ConfigFields, layers: int) -> tuple[int, ...]:
    """The layers that own an indexer as config.json says (deepseek_v2.py); MTP layers always do.

    Raises SpecError where a field has another form.
    """
    kinds = fields.get("indexer_types") or fields.get("index_topk_pattern")
    if kinds:
        if not isinstance(kinds, Sequence):
            raise SpecError(
                "spec.model.config",
                f"indexer_types or index_topk_pattern is {kinds!r}, not one kind per layer; "
                "put the model's whole config.json here",
            )
        # "S"/"shared" layers reuse the choice of the layer before them
        return tuple(i for i in range(layers) if i >= len(kinds) or str(kinds[i]) not in ("S", "shared"))
    every = fields.whole("index_topk_freq", default=1) or 1
    offset = fields.whole("index_skip_topk_offset", default=2)
    return tuple(i for i in range(layers) if max(i - offset + 1, 0) % every == 0)
