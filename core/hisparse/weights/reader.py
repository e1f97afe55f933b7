"""Every weight of a model, read from its config.json layer by layer.

Layers are of few kinds; each kind is counted once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from hisparse.architectures import NEMOTRON_BLOCKS, indexer_layers, layer_count, nemotron_blocks
from hisparse.errors import SpecError
from hisparse.experts import read_experts
from hisparse.weights.families import FAMILIES, Backbone
from hisparse.weights.feed_forward import feed_forward, mixture, mlp, sparse_layers
from hisparse.weights.fields import UnknownError, WeightFields
from hisparse.weights.mixers import Mixer, attention, draft_mixer, indexer, mamba, mixer, mixers
from hisparse.weights.tensors import Part, Split, Tensor, Weights, norm
from hisparse.weights.vision import vision_tower

_MOST_LAYERS = 1024

_OTHER_SHAPES: Final = ("hidden_size_per_layer_input", "num_kv_shared_layers", "use_double_wide_mlp")
"""Per-layer embeddings and keys shared between layers change what a layer holds."""


def read_weights(config: Mapping[str, Any]) -> Weights | None:
    """Every weight of a Hugging Face config.json, the language model nested under text_config or llm_config or not.

    None where the architecture or a needed field is not known.
    """
    try:
        return _weights(WeightFields(config))
    except SpecError:
        return None


@dataclass(frozen=True)
class _Decoder:
    """A kind of layer: a mixer and an MLP. draft: one for multi-token prediction."""

    mixer: Mixer
    indexer: bool
    sparse: bool
    draft: bool = False


@dataclass(frozen=True)
class _Blocks:
    """A kind of Nemotron-H layer: one block, in a layer for multi-token prediction several."""

    blocks: tuple[str, ...]
    draft: bool = False


_Kind = _Decoder | _Blocks


def _weights(fields: WeightFields) -> Weights:
    model = _backbone(fields)
    hidden, family = model.hidden, model.family
    vocabulary = family.vocabulary if fields.get("vocab_size") is None else fields.count("vocab_size")
    if vocabulary is None:
        raise UnknownError("vocab_size")
    tied = fields.flag("tie_word_embeddings", "tie_embedding", default=family.tied)
    table = Tensor(Part.EMBEDDING, "embed_tokens", vocabulary, hidden, split=Split.VOCABULARY, linear=False)
    head = Tensor(Part.EMBEDDING, "lm_head", vocabulary, hidden, split=Split.VOCABULARY, linear=False, stored=not tied)
    layers, drafts = _nemotron_kinds(model) if model.architecture == "NemotronHForCausalLM" else _decoder_kinds(model)
    # in order of appearance, so that equal configs are read into equal weights
    places = {kind: place for place, kind in enumerate(dict.fromkeys((*layers, *drafts)))}
    kinds = tuple(tuple(_layer(model, kind)) for kind in places)
    top_k = read_experts(fields).per_token
    if top_k is None and any(tensor.part is Part.EXPERTS for tensors in kinds for tensor in tensors):
        raise UnknownError("num_experts_per_tok")
    return Weights(
        first=(table, *vision_tower(fields, hidden)),
        kinds=kinds,
        layers=tuple(places[kind] for kind in layers),
        last=(norm("norm", hidden), head),
        drafts=tuple(places[kind] for kind in drafts),
        tied=tied,
        top_k=top_k or 0,
    )


def _backbone(fields: WeightFields) -> Backbone:
    architecture = fields.architecture()
    family = FAMILIES.get(architecture)
    if family is None or any(fields.get(key) for key in _OTHER_SHAPES):
        raise UnknownError("architectures")
    layers = layer_count(fields)
    if layers > _MOST_LAYERS:
        raise UnknownError("num_hidden_layers")
    return Backbone(fields, family, architecture, layers, fields.count("hidden_size"))


def _drafts(model: Backbone) -> int:
    """Layers for multi-token prediction."""
    count = model.fields.count("num_nextn_predict_layers", "mtp_num_hidden_layers", default=0)
    return min(count, _MOST_LAYERS)


def _decoder_kinds(model: Backbone) -> tuple[list[_Kind], list[_Kind]]:
    """The kind of each layer of the backbone, and of each layer for multi-token prediction."""
    fields = model.fields
    kinds, sparse = mixers(model), sparse_layers(model)
    indexed = Mixer.MLA in kinds and fields.get("index_topk") is not None
    owners = frozenset(indexer_layers(fields, model.layers)) if indexed else frozenset()
    layers: list[_Kind] = [_Decoder(kind, index in owners, sparse[index]) for index, kind in enumerate(kinds)]
    # its MLP is like the last layer's, and it always chooses for itself (models/deepseek_v2.py)
    return layers, [_Decoder(draft_mixer(kinds[0]), indexed, sparse[-1], draft=True)] * _drafts(model)


def _nemotron_kinds(model: Backbone) -> tuple[list[_Kind], list[_Kind]]:
    """The same for Nemotron-H: every layer of the backbone is one block (models/nemotron_h.py)."""
    blocks = _known_blocks(model)
    if len(blocks) != model.layers:
        raise UnknownError("hybrid_override_pattern")
    count = _drafts(model)
    drafts = _known_blocks(model, "mtp_hybrid_override_pattern", "mtp_layers_block_type") if count else ()
    return [_Blocks((block,)) for block in blocks], [_Blocks(drafts, draft=True)] * count


def _known_blocks(model: Backbone, *keys: str) -> tuple[str, ...]:
    """The blocks that one of the keys names. Raises SpecError where there are none, or one that is not known."""
    blocks = nemotron_blocks(model.fields, *keys)
    if not blocks or not set(blocks) <= set(NEMOTRON_BLOCKS.values()):
        raise UnknownError("hybrid_override_pattern")
    return blocks


def _layer(model: Backbone, kind: _Kind) -> Iterator[Tensor]:
    """The tensors of one layer.

    A layer for multi-token prediction is a layer like the others and the projection that joins it to the backbone.
    Input table and output matrix are the backbone's own in vLLM. Sources: models/deepseek_mtp.py, qwen3_5_mtp.py.
    """
    if isinstance(kind, _Blocks):
        for block in kind.blocks:
            yield from _nemotron(model, block)
    else:
        yield from mixer(model, kind.mixer)
        if kind.indexer:
            yield from indexer(model)
        yield from feed_forward(model, sparse=kind.sparse)
        for number in range(model.family.norms):
            yield norm(f"layernorm_{number}", model.hidden)
    if kind.draft:
        yield Tensor(Part.OTHER, "eh_proj", model.hidden, 2 * model.hidden, split=Split.REPLICATED, linear=False)
        for name in ("enorm", "hnorm", "shared_head.norm"):
            yield norm(name, model.hidden)


def _nemotron(model: Backbone, block: str) -> Iterator[Tensor]:
    """One block; experts may work in a latent space of their own."""
    fields, hidden = model.fields, model.hidden
    yield norm("norm", hidden)
    if block == "mamba":
        yield from mamba(model, "mixer")
    elif block == "attention":
        yield from attention(model, "mixer")
    elif block == "mlp":
        yield from mlp(model, Part.DENSE_MLP, "mixer", fields.count("intermediate_size"))
    else:
        latent = fields.count("moe_latent_size", default=0)
        yield from mixture(model, latent or hidden)
        if latent:
            yield Tensor(Part.OTHER, "mixer.fc1_latent_proj", latent, hidden, split=Split.REPLICATED)
            yield Tensor(Part.OTHER, "mixer.fc2_latent_proj", hidden, latent, split=Split.REPLICATED)
        shared = fields.count("n_shared_experts", default=0)
        if shared:
            width = fields.count("moe_shared_expert_intermediate_size") * shared
            yield from mlp(model, Part.SHARED_EXPERTS, "mixer.shared_experts", width)
