"""Model facts: what the planner needs to know of a model, read from its config.json.

Order of sources: a single fact in model.facts, then the catalogue, then model.config, then files of the hub.
A missing or unknown field is a SpecError that names the model.facts entry which would supply it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from hisparse import catalogue
from hisparse.errors import SpecError
from hisparse.spec import ModelFactsSpec, ModelSpec
from hisparse.units import parse_quantity


class Attention(StrEnum):
    """How a model keeps its keys and values."""

    MHA = "MHA"
    GQA = "GQA"
    MQA = "MQA"
    MLA = "MLA"
    DSA = "DSA"


@dataclass(frozen=True)
class Indexer:
    """The lightning indexer of a DSA model. layers are those that own an indexer cache; MTP layers always do."""

    layers: tuple[int, ...]
    head_dim: int
    top_k: int


@dataclass(frozen=True)
class ModelFacts:
    """Geometry of a model's KV cache and the size of its weights.

    layers counts the backbone; mtp_layers come on top when speculative decoding uses them.
    latent_rank and rope_dim describe one MLA row; 0 for dense attention.
    rope_theta is passed on where the engine's RoPE parameters are replaced; None where the config does not say.
    experts is 0 for a dense model; expert_bytes is the part of the weights that experts take (0 where not known).
    max_positions is what the engine takes without further scaling, native_positions what a YaRN config was scaled from.
    weight_width is bytes per parameter.
    """

    name: str
    architecture: str
    attention: Attention
    layers: int
    hidden_size: int
    attention_heads: int
    kv_heads: int
    head_dim: int
    latent_rank: int
    rope_dim: int
    indexer: Indexer | None
    mtp_layers: int
    experts: int
    expert_bytes: int
    weight_width: int
    max_positions: int
    native_positions: int
    rope_theta: int | float | None
    weight_bytes: int
    weight_source: str
    dtype: str

    @property
    def is_mla(self) -> bool:
        """Whether KV is one latent row per token, replicated on every tensor-parallel rank."""
        return self.attention in (Attention.MLA, Attention.DSA)


_DENSE = frozenset(
    {
        "LlamaForCausalLM",
        "MistralForCausalLM",
        "Mistral3ForConditionalGeneration",
        "MixtralForCausalLM",
        "Qwen2ForCausalLM",
        "Qwen2MoeForCausalLM",
        "Qwen3ForCausalLM",
        "Qwen3MoeForCausalLM",
        "Qwen2_5_VLForConditionalGeneration",
        "Qwen3VLForConditionalGeneration",
        "Qwen3VLMoeForConditionalGeneration",
        "GlmForCausalLM",
        "Glm4ForCausalLM",
        "Glm4MoeForCausalLM",
        "GraniteForCausalLM",
        "MiniMaxM2ForCausalLM",
        "Phi3ForCausalLM",
    }
)
_MLA = frozenset({"DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "KimiK25ForConditionalGeneration"})
_DSA = frozenset({"DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM"})

ARCHITECTURES: tuple[str, ...] = tuple(sorted(_DENSE | _MLA | _DSA))
"""What the planner can size; the same names as `architectures` in a config.json."""

_LARGEST = 16_777_216
"""More than any field of a config.json: positions are the largest that models have."""

_BYTES_PER_WEIGHT = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1}


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
    Raises SpecError where a fact is missing or the architecture is not known.
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
    return read_config(config, name=_source(model), facts=model.facts, weight_bytes=weights, weight_source=source)


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
    Source of the indexer rule: vLLM 0.32/0.33, model_executor/models/deepseek_v2.py, index_topk_freq.
    """
    fields = _Fields(config, facts or ModelFactsSpec())
    architecture = fields.architecture()
    attention = fields.attention(architecture)
    heads = fields.number("num_attention_heads", "attentionHeads")
    hidden = fields.number("hidden_size", "hiddenSize")
    layers = fields.number("num_hidden_layers", "layers")
    mtp = fields.number("num_nextn_predict_layers", "mtpLayers", default=0)
    native, positions = fields.positions()
    indexer = None
    if attention in (Attention.MLA, Attention.DSA):
        kv_heads, head_dim = 1, 0
        rank = fields.number("kv_lora_rank", "kvLoraRank")
        rope = fields.number("qk_rope_head_dim", "ropeHeadDim")
    else:
        fields.refuse_unmodelled(layers)
        rank = rope = 0
        kv_heads = fields.number("num_key_value_heads", "kvHeads", default=heads, least=1)
        head_dim = fields.number("head_dim", "headDim", default=hidden // heads, least=1)
        if kv_heads > heads or heads % kv_heads:
            raise SpecError(
                "spec.model.facts.kvHeads",
                f"{kv_heads} KV heads do not divide the {heads} attention heads; set the number of config.json here",
            )
        attention = _dense_kind(kv_heads, heads)
    if attention is Attention.DSA:
        indexer = Indexer(
            layers=fields.index_layers(layers),
            head_dim=fields.number("index_head_dim", "indexHeadDim"),
            top_k=fields.number("index_topk", "indexTopK"),
        )
    weights, weight_source = fields.weights(weight_bytes, weight_source)
    experts, expert_parameters = fields.experts(layers + mtp, hidden)
    return ModelFacts(
        name=name,
        architecture=architecture,
        attention=attention,
        layers=layers,
        hidden_size=hidden,
        attention_heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        latent_rank=rank,
        rope_dim=rope,
        indexer=indexer,
        mtp_layers=mtp,
        experts=experts,
        weight_width=fields.bytes_per_weight(),
        expert_bytes=min(weights, expert_parameters * fields.bytes_per_weight()),
        max_positions=positions,
        native_positions=native,
        rope_theta=fields.rope_theta(),
        weight_bytes=weights,
        weight_source=weight_source,
        dtype=fields.dtype(),
    )


class _Fields:
    """One config.json seen through model.facts: the fact wins, then the config, then the default."""

    def __init__(self, config: Mapping[str, Any], facts: ModelFactsSpec) -> None:
        nested = config.get("text_config") or config.get("llm_config")
        self._top = config
        self._config: Mapping[str, Any] = nested if isinstance(nested, Mapping) else config
        self._facts: Mapping[str, Any] = facts.model_dump(by_alias=True, exclude_none=True)

    def _get(self, key: str) -> Any:  # noqa: ANN401 - whatever JSON holds
        value = self._config.get(key)
        return self._top.get(key) if value is None else value

    def number(self, key: str, fact: str, *, default: int | None = None, least: int | None = None) -> int:
        """A count of at least 0 (at least 1 where there is no default), and no larger than any model has."""
        value = self._facts.get(fact, self._get(key))
        if value is None:
            value = default
        lowest = least if least is not None else (1 if default is None else 0)
        if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= _LARGEST:
            wanted = f"a whole number from {lowest} to {_LARGEST}"
            said = "is missing from" if value is None else f"is {value!r}, not {wanted}, in"
            raise SpecError(f"spec.model.facts.{fact}", f"{key} {said} the model's config.json; set it here")
        return value

    def architecture(self) -> str:
        fact = self._facts.get("architecture")
        names = [fact] if fact else self._top.get("architectures") or self._config.get("architectures")
        if not isinstance(names, Sequence) or isinstance(names, str) or not names or not isinstance(names[0], str):
            raise SpecError(
                "spec.model.facts.architecture",
                "architectures is missing from the model's config.json; set it here, e.g. LlamaForCausalLM",
            )
        return str(names[0])

    def attention(self, architecture: str) -> Attention:
        if architecture in _DSA:
            return Attention.DSA
        if architecture in _MLA:
            return Attention.MLA
        if architecture in _DENSE:
            return Attention.MHA
        raise SpecError(
            "spec.model.facts.architecture",
            f"{architecture} is not an architecture whose KV cache this planner can size; "
            f"if its attention is that of a known one, name that one here (known: {', '.join(ARCHITECTURES)})",
        )

    def refuse_unmodelled(self, layers: int) -> None:
        """Sliding windows and linear attention have other arithmetic: no answer is better than a wrong one."""
        kinds = self._get("layer_types")
        other = sorted({str(kind) for kind in kinds} - {"full_attention"}) if isinstance(kinds, list) else []
        window = self._get("sliding_window")
        windowed = window is not None and self._get("use_sliding_window") is not False
        if not other and not windowed:
            return
        what = f"layer_types has {', '.join(other)}" if other else f"sliding_window is {window}"
        raise SpecError(
            "spec.model.config",
            f"{what}: hybrid attention over {layers} layers is not planned yet; "
            "a model with full attention in every layer, MLA or DSA is",
        )

    def index_layers(self, layers: int) -> tuple[int, ...]:
        found = self._index_pattern(layers)
        count = self._facts.get("indexLayers", len(found))
        if count == len(found):
            return found
        if count == layers:
            return tuple(range(layers))
        raise SpecError(
            "spec.model.facts.indexLayers",
            f"{count} says how many of {layers} layers own an indexer but not which (config.json says {len(found)}); "
            "put index_topk_freq and index_skip_topk_offset, or index_topk_pattern, into model.config",
        )

    def _index_pattern(self, layers: int) -> tuple[int, ...]:
        kinds = self._get("indexer_types") or self._get("index_topk_pattern")
        if kinds:
            # "S"/"shared" layers reuse the choice of the layer before them
            return tuple(i for i in range(layers) if i >= len(kinds) or str(kinds[i]) not in ("S", "shared"))
        every, offset = self._whole("index_topk_freq", 1) or 1, self._whole("index_skip_topk_offset", 2)
        return tuple(i for i in range(layers) if max(i - offset + 1, 0) % every == 0)

    def _whole(self, key: str, default: int) -> int:
        value = self._get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise SpecError("spec.model.config", f"{key} is {value!r}, not a whole number of at least 0; correct it")
        return value

    def positions(self) -> tuple[int, int]:
        """(trained positions, what the engine takes): YaRN configs give max_position_embeddings already scaled."""
        longest = self.number("max_position_embeddings", "maxPositions")
        rope = self._get("rope_scaling") or self._get("rope_parameters") or {}
        yarn = isinstance(rope, Mapping) and "yarn" in str(rope.get("rope_type") or rope.get("type"))
        original = rope.get("original_max_position_embeddings") if yarn else None
        return (original if isinstance(original, int) and original > 0 else longest), longest

    def rope_theta(self) -> int | float | None:
        rope = self._get("rope_parameters")
        value = rope.get("rope_theta") if isinstance(rope, Mapping) else None
        value = self._get("rope_theta") if value is None else value
        return value if isinstance(value, int | float) and not isinstance(value, bool) and value > 0 else None

    def dtype(self) -> str:
        return str(self._get("dtype") or self._get("torch_dtype") or "bfloat16")

    def weights(self, known: int | None, source: str) -> tuple[int, str]:
        if (text := self._facts.get("weights")) is not None:
            return parse_quantity(text), "model.facts.weights"
        if (count := self._facts.get("parameterCount")) is not None:
            return count * self._weight_bytes(), "model.facts.parameterCount x dtype"
        if known is not None:
            return known, source
        raise SpecError(
            "spec.model.facts.weights",
            "the size of the weights is not known (no total_size in model.safetensors.index.json); "
            "set it here, e.g. 141Gi, or set facts.parameterCount",
        )

    def experts(self, layers: int, hidden: int) -> tuple[int, int]:
        """(experts per layer, parameters of all of them); 0 where the model is dense or does not say."""
        keys = ("n_routed_experts", "num_experts", "num_local_experts")
        count = next((value for key in keys if isinstance(value := self._get(key), int) and value > 0), 0)
        width = self._get("moe_intermediate_size") or self._get("intermediate_size")
        dense = self._get("first_k_dense_replace")
        if not count or not isinstance(width, int):
            return count, 0
        # gate, up and down projection of each expert
        return count, count * 3 * hidden * width * (layers - (dense if isinstance(dense, int) else 0))

    def bytes_per_weight(self) -> int:
        """1 in 8 bits and for formats that it does not know: experts are then counted too small, not too large."""
        quantized = self._get("quantization_config")
        return 1 if isinstance(quantized, Mapping) else _BYTES_PER_WEIGHT.get(self.dtype(), 2)

    def _weight_bytes(self) -> int:
        quantized = self._get("quantization_config")
        if isinstance(quantized, Mapping):
            method = str(quantized.get("quant_method", ""))
            if "fp8" in method:
                return 1
            raise SpecError(
                "spec.model.facts.weights",
                f"quantization_config.quant_method is {method!r}: parameter count x dtype does not give its size; "
                "set the size of the weight files here",
            )
        return _BYTES_PER_WEIGHT.get(self.dtype(), 2)


def _dense_kind(kv_heads: int, heads: int) -> Attention:
    if kv_heads == heads:
        return Attention.MHA
    return Attention.MQA if kv_heads == 1 else Attention.GQA


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
