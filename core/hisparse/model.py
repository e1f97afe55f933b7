"""Model facts: what the planner needs to know of a model, read from its config.json.

Order of sources: a single fact in model.facts, then the catalogue, then model.config, then files of the hub.
A missing or unknown field is a SpecError that names the model.facts entry which would supply it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hisparse import catalogue
from hisparse.architectures import FAMILIES, Anatomy, Attention, Indexer, anatomy
from hisparse.config import ConfigFields
from hisparse.errors import SpecError
from hisparse.experts import ExpertFields, expert_layers, read_experts
from hisparse.layers import (
    ChunkedAttention,
    FullAttention,
    Latent,
    LayerCaches,
    RecurrentState,
    SlidingWindow,
)
from hisparse.rope import RopeFacts, read_rope
from hisparse.spec import ModelFactsSpec, ModelSpec
from hisparse.units import parse_quantity
from hisparse.weights import Checkpoint, Precision, WeightFormat, read_checkpoint, weight_format

_UNQUANTISED = "none"
"""What a WeightFormat is called whose config.json names no method."""


@dataclass(frozen=True)
class ModelFacts:
    """Geometry of a model's KV cache and the size of its weights.

    caches are those of every backbone layer; drafts, those of its MTP layers, come on top when speculative decoding
    uses them.
    experts is 0 for a dense model; expert_bytes is the part of the weights that experts take (0 where not known), top_k
    how many of them a token uses (None where the config of a mixture does not say).
    weight_width is bytes per parameter (1 where quantised).
    checkpoint is None where the tensors of the architecture are not known; vocabulary and widths (of the MLP, of one
    expert) are 0 where the config does not say.
    """

    name: str
    architecture: str
    attention: Attention
    caches: tuple[LayerCaches, ...]
    drafts: tuple[LayerCaches, ...]
    indexer: Indexer | None
    hidden_size: int
    attention_heads: int
    experts: int
    expert_bytes: int
    weight_width: int
    rope: RopeFacts
    weight_bytes: int
    weight_source: str
    checkpoint: Checkpoint | None
    vocabulary: int
    dense_width: int
    expert_width: int
    top_k: int | None
    dtype: str

    @property
    def layers(self) -> int:
        """Layers of the backbone."""
        return len(self.caches)

    @property
    def mtp_layers(self) -> int:
        """Layers that draft tokens, where the model has them."""
        return len(self.drafts)

    @property
    def max_positions(self) -> int:
        """The longest context that the engine takes without further RoPE scaling."""
        return self.rope.usable

    @property
    def is_mla(self) -> bool:
        """Whether KV is one latent row per token, replicated on every tensor-parallel rank."""
        return self.attention in (Attention.MLA, Attention.DSA)

    @property
    def parameters(self) -> int:
        """Parameters of the checkpoint; from its bytes where its tensors are not known."""
        return self.checkpoint.parameters.total if self.checkpoint else self.weight_bytes // self.weight_width

    @property
    def active_parameters(self) -> int:
        """Parameters that take part in the forward pass of one token.

        Where the tensors of a mixture are not known, its experts are told from their part of the weights.
        """
        if self.checkpoint is not None:
            return self.checkpoint.parameters.active
        if not self.experts:
            return self.parameters
        idle = self.expert_bytes * (self.experts - self.experts_per_token) // self.experts
        return self.parameters - self.parameters * idle // max(1, self.weight_bytes)

    @property
    def experts_per_token(self) -> int:
        """Experts of a layer that one token uses; 0 for a dense model. Raises SpecError where a config does not say."""
        if not self.experts:
            return 0
        if self.top_k is None:
            raise SpecError(
                "spec.model.config",
                f"num_experts_per_tok is missing, and {self.name} has {self.experts} experts per layer; "
                "put the model's whole config.json here",
            )
        return min(self.top_k, self.experts)

    @property
    def has_indexer(self) -> bool:
        """Whether an indexer chooses the rows that latent layers attend to, and keeps a cache of keys for it.

        Every latent layer attends to chosen rows then: by its own indexer, or by that of an earlier layer. Needs
        sparse-MLA kernels, which old GPUs do not have.
        """
        return self.indexer is not None

    @property
    def has_states(self) -> bool:
        """Whether some layers keep a state of fixed size in place of keys and values."""
        return any(isinstance(cache, RecurrentState) for layer in self.caches for cache in layer)

    @property
    def kv_head_counts(self) -> tuple[int, ...]:
        """The numbers of KV heads that layers have, which tensor parallelism has to divide or be a multiple of."""
        kinds = (FullAttention, SlidingWindow, ChunkedAttention)
        return tuple(sorted({one.kv_heads for layer in self.caches for one in layer if isinstance(one, kinds)}))

    @property
    def head_dim(self) -> int:
        """The largest head of a layer with keys and values of its own; 0 where there is none."""
        kinds = (FullAttention, SlidingWindow, ChunkedAttention)
        return max((one.key_dim for layer in self.caches for one in layer if isinstance(one, kinds)), default=0)

    @property
    def latent(self) -> Latent | None:
        """The latent row of MLA layers; None for dense attention."""
        return next((one for layer in self.caches for one in layer if isinstance(one, Latent)), None)


ARCHITECTURES: tuple[str, ...] = tuple(sorted(FAMILIES))
"""What the planner can size; the same names as `architectures` in a config.json."""


def needs_hub(model: ModelSpec) -> bool:
    """Whether the model's facts need files of the hub: not in the catalogue and no model.config."""
    return model.hugging_face is not None and model.config is None and _entry(model) is None


def served_name(model: ModelSpec) -> str:
    """The name that clients ask for: model.servedName, else the last part of the repo or path."""
    if model.served_name:
        return model.served_name
    if model.hugging_face is not None:
        return model.hugging_face.repo.rsplit("/", 1)[-1]
    if model.pvc is not None:
        return (model.pvc.path or model.pvc.claim_name).rstrip("/").rsplit("/", 1)[-1]
    return model.host_path.path.rstrip("/").rsplit("/", 1)[-1] if model.host_path else "model"


def facts_for(
    model: ModelSpec,
    *,
    hub_config: Mapping[str, Any] | None = None,
    hub_index: Mapping[str, Any] | None = None,
) -> ModelFacts:
    """Facts of the model that a spec names.

    hub_config and hub_index are config.json and model.safetensors.index.json of a public repo, where needed.
    Raises SpecError where a fact that a plan needs is missing or the architecture is not known.
    """
    entry = _entry(model)
    config: Mapping[str, Any] | None = model.config
    if config is None:
        config = entry.config if entry else hub_config
    if config is None:
        raise SpecError(
            "spec.model.config",
            f"nothing is known of {_source(model)}: it is not in the catalogue"
            f"{_near(model)} and its config.json could not be read; paste the model's config.json here",
        )
    weights = _index_bytes(hub_index)
    source = "total_size of model.safetensors.index.json"
    if weights is None and entry is not None:
        weights, source = entry.weight_bytes, entry.weight_source
    found = read_config(config, name=_source(model), facts=model.facts, weight_bytes=weights, weight_source=source)
    _ = found.experts_per_token  # no plan without it: a fault is told with those of the spec
    return found


def read_config(
    config: Mapping[str, Any],
    *,
    name: str,
    facts: ModelFactsSpec | None = None,
    weight_bytes: int | None = None,
    weight_source: str = "",
) -> ModelFacts:
    """Read a Hugging Face config.json, also one whose language model is nested under text_config.

    facts overrides single values. Raises SpecError naming the missing field and the model.facts entry.
    """
    fields = ConfigFields(config, facts)
    architecture = fields.architecture()
    found = anatomy(fields, architecture)
    heads = fields.number("num_attention_heads", "attentionHeads")
    hidden = fields.number("hidden_size", "hiddenSize")
    rope = read_rope(config, max_positions=fields.fact("maxPositions"))
    checkpoint = read_checkpoint(config)
    form = checkpoint.format if checkpoint else weight_format(config)
    weights, weight_source = _weights(fields, form, weight_bytes, weight_source, checkpoint)
    experts = _experts(fields, found, form, hidden, checkpoint, weights)
    return ModelFacts(
        name=name,
        architecture=architecture,
        attention=found.attention,
        caches=found.layers,
        drafts=found.drafts,
        indexer=found.indexer,
        hidden_size=hidden,
        attention_heads=heads,
        experts=experts.named.count,
        top_k=experts.named.per_token,
        weight_width=form.dtype_bytes if form.method == _UNQUANTISED else 1,
        expert_bytes=experts.size,
        rope=rope,
        weight_bytes=weights,
        weight_source=weight_source,
        checkpoint=checkpoint,
        vocabulary=fields.count("vocab_size", default=0),
        dense_width=experts.dense_width,
        expert_width=experts.width,
        dtype=fields.dtype(),
    )


@dataclass(frozen=True)
class _Experts:
    """The fields of the experts, bytes of them all, and the widths of a dense MLP and of one expert."""

    named: ExpertFields
    size: int
    dense_width: int
    width: int


def _weights(
    fields: ConfigFields, form: WeightFormat, known: int | None, source: str, checkpoint: Checkpoint | None
) -> tuple[int, str]:
    if (text := fields.fact("weights")) is not None:
        return parse_quantity(text), "model.facts.weights"
    if (count := fields.fact("parameterCount")) is not None:
        return count * _weight_width(fields, form), "model.facts.parameterCount x dtype"
    if known is not None:
        return known, source
    if checkpoint is not None and checkpoint.file_bytes is not None:
        return checkpoint.file_bytes, f"{checkpoint.parameters.total:,} parameters, counted from config.json"
    raise SpecError(
        "spec.model.facts.weights",
        "the size of the weights is not known (no total_size in model.safetensors.index.json); "
        "set it here, e.g. 141Gi, or set facts.parameterCount",
    )


def _experts(
    fields: ConfigFields, found: Anatomy, form: WeightFormat, hidden: int, checkpoint: Checkpoint | None, weights: int
) -> _Experts:
    """From the checkpoint's own tensors where they are known, else from the fields of config.json."""
    named = read_experts(fields)
    if checkpoint is not None:
        share = int(weights * checkpoint.expert_share)
        return _Experts(named, share, checkpoint.dense_width, checkpoint.expert_width)
    dense = fields.widest("intermediate_size_mlp", "intermediate_size") or 0
    if not named.count or named.width is None:
        return _Experts(named, 0, dense, 0)
    layers = len(found.layers)
    name = f"layers.{layers - 1}.mlp.experts.0.up_proj"
    # a format that is not known counts as 8 bits: experts are then too small rather than too large
    precision = form.precision(name) if form.known else Precision(8)
    matrix = (precision or Precision(8 * form.dtype_bytes)).matrix_bytes(named.width, hidden)
    mixtures = sum(expert_layers(fields, layers)) + len(found.drafts)
    # gate, up and down projection of each expert
    return _Experts(named, min(weights, mixtures * named.count * 3 * matrix), dense, named.width)


def _weight_width(fields: ConfigFields, form: WeightFormat) -> int:
    if form.method == _UNQUANTISED:
        if (width := fields.dtype_bytes()) is not None:
            return width
        said = f"dtype {fields.dtype()!r}"
    elif "fp8" in form.method:
        return 1
    else:
        said = f"quantization_config.quant_method {form.method!r}"
    raise SpecError(
        "spec.model.facts.weights",
        f"{said} does not give the size of {fields.fact('parameterCount')} parameters; "
        "set the size of the weight files here",
    )


def _index_bytes(index: Mapping[str, Any] | None) -> int | None:
    metadata = (index or {}).get("metadata")
    size = metadata.get("total_size") if isinstance(metadata, Mapping) else None
    return size if isinstance(size, int) and size > 0 else None


def _entry(model: ModelSpec) -> catalogue.Entry | None:
    return catalogue.lookup(model.hugging_face.repo) if model.hugging_face else None


def _near(model: ModelSpec) -> str:
    near = catalogue.suggest(model.hugging_face.repo) if model.hugging_face else None
    return f" (did you mean {near}?)" if near else ""


def _source(model: ModelSpec) -> str:
    if model.hugging_face is not None:
        return model.hugging_face.repo
    return served_name(model)
