"""A model's weights, counted from its config.json alone, and the bytes of them that one GPU holds.

The shapes are those of the checkpoint's tensors. How a rank holds them follows vLLM 0.33: model_executor/layers/
linear.py (column and row parallel), vocab_parallel_embedding.py (vocabulary padded to 64), fused_moe/config.py
(experts over tensor x data ranks), distributed/utils.py (layers of a pipeline stage). Unknown is an answer: an
architecture, field or quantization method that this module does not know gives None, never a guess.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from functools import cached_property
from typing import Any, Final

_VOCAB_PADDING = 64
_LARGEST = 16_777_216
_MOST_LAYERS = 1024
_MOST_GLOBS = 1024
_LONGEST_PATTERN = 256


class Part(StrEnum):
    """What a tensor belongs to."""

    EMBEDDING = "embedding"
    ATTENTION = "attention"
    DENSE_MLP = "dense MLP"
    EXPERTS = "experts"
    SHARED_EXPERTS = "shared experts"
    OTHER = "other"
    VISION = "vision"


class Split(StrEnum):
    """How tensor-parallel ranks share a tensor.

    HEADS are divided by whole KV heads or state groups and replicated once ranks outnumber them.
    """

    DIVIDED = "divided"
    HEADS = "heads"
    REPLICATED = "replicated"
    VOCABULARY = "vocabulary"
    EXPERTS = "experts"
    SHARED_EXPERTS = "shared experts"


@dataclass(frozen=True)
class Tensor:
    """One weight of `rows` outputs and `columns` inputs, `copies` times over (experts).

    name is the module inside its layer, as checkpoints and quantization configs spell it.
    linear: a quantization method may apply. bias: one more element per row, at the model's dtype.
    stored: False for what the engine holds beside the checkpoint. dequantized: held a second time at the model's
    dtype where it is quantized.
    """

    part: Part
    name: str
    rows: int
    columns: int = 1
    copies: int = 1
    split: Split = Split.DIVIDED
    heads: int = 1
    linear: bool = True
    bias: bool = False
    stored: bool = True
    dequantized: bool = False

    @property
    def elements(self) -> int:
        """Parameters, all copies."""
        return self.copies * self.rows * (self.columns + self.bias)


@dataclass(frozen=True)
class Parameters:
    """Parameters by part.

    total is the checkpoint without draft; embedding counts the input table and an output matrix of its own.
    other: norms, routers, indexers. active take part in one token's forward: the top-k routed experts and all else
    but the input table (where it is tied, it is the output matrix and counts) and the vision tower.
    draft: layers for speculative decoding. vision is 0 where the tower is not known.
    """

    total: int
    embedding: int
    attention: int
    dense_mlp: int
    experts: int
    shared_experts: int
    other: int
    vision: int
    active: int
    draft: int


@dataclass(frozen=True)
class Weights:
    """Every tensor of a checkpoint, by where a pipeline puts it.

    first and last stand on the first and last pipeline rank; top_k experts of each MoE layer see a token.
    """

    first: tuple[Tensor, ...]
    layers: tuple[tuple[Tensor, ...], ...]
    last: tuple[Tensor, ...]
    draft: tuple[tuple[Tensor, ...], ...]
    tied: bool
    top_k: int

    @property
    def parameters(self) -> Parameters:
        """The counts of what the checkpoint stores."""
        counts = dict.fromkeys(Part, 0)
        idle = 0
        for tensor in (*self.first, *(one for layer in self.layers for one in layer), *self.last):
            if tensor.stored:
                counts[tensor.part] += tensor.elements
                if tensor.part is Part.EXPERTS:
                    idle += tensor.elements * max(0, tensor.copies - self.top_k) // tensor.copies
        total = sum(counts.values())
        table = 0 if self.tied else self.first[0].elements
        return Parameters(
            total=total,
            embedding=counts[Part.EMBEDDING],
            attention=counts[Part.ATTENTION],
            dense_mlp=counts[Part.DENSE_MLP],
            experts=counts[Part.EXPERTS],
            shared_experts=counts[Part.SHARED_EXPERTS],
            other=counts[Part.OTHER],
            vision=counts[Part.VISION],
            active=total - idle - table - counts[Part.VISION],
            draft=sum(tensor.elements for layer in self.draft for tensor in layer if tensor.stored),
        )


def count_parameters(config: Mapping[str, Any]) -> Parameters | None:
    """The parameters of a Hugging Face config.json; None where the architecture or a needed field is not known."""
    weights = read_weights(config)
    return None if weights is None else weights.parameters


def read_weights(config: Mapping[str, Any]) -> Weights | None:
    """Every weight of a Hugging Face config.json, the language model nested under text_config or llm_config or not.

    None where the architecture or a needed field is not known.
    """
    try:
        return _weights(_Fields(config))
    except _UnknownError:
        return None


# --- reading the config -------------------------------------------------------------------------------------------


class _UnknownError(Exception):
    """A fact is missing: the count has no answer."""


class _Fields:
    """A config.json with the language model's own fields first."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        nested = config.get("text_config") or config.get("llm_config")
        self._top = config
        self._text: Mapping[str, Any] = nested if isinstance(nested, Mapping) else config

    def get(self, *keys: str) -> Any:  # noqa: ANN401 - whatever JSON holds
        """The first value that is not null."""
        for key in keys:
            for place in (self._text, self._top):
                if (value := place.get(key)) is not None:
                    return value
        return None

    def number(self, *keys: str, default: int | None = None) -> int:
        """A whole number from 0 (from 1 where there is no default); the first key that is there counts."""
        value = self.get(*keys)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int) or not (default is None) <= value <= _LARGEST:
            raise _UnknownError(keys[0])
        return value

    def flag(self, key: str, *, default: bool) -> bool:
        value = self.get(key)
        return value if isinstance(value, bool) else default

    def names(self, key: str, count: int) -> tuple[str, ...] | None:
        """One name per layer; None where the config has no such list."""
        value = self.get(key)
        if value is None:
            return None
        if isinstance(value, str) or not isinstance(value, Sequence) or len(value) < count:
            raise _UnknownError(key)
        return tuple(str(name) for name in value[:count])

    def mapping(self, key: str) -> Mapping[str, Any] | None:
        value = self._top.get(key)
        return value if isinstance(value, Mapping) else None

    def architecture(self) -> str:
        names = self._top.get("architectures") or self._text.get("architectures")
        if isinstance(names, str) or not isinstance(names, Sequence) or not names:
            raise _UnknownError("architectures")
        return str(names[0])


class _Norm(StrEnum):
    """Norms of queries and keys: none, one weight per head dimension, or one over all heads."""

    NONE = "none"
    HEAD = "head"
    FULL = "full"


class _Mixer(StrEnum):
    """What stands between a token and the tokens before it."""

    GQA = "grouped-query attention"
    MLA = "multi-head latent attention"
    DELTA = "gated delta net"
    MAMBA = "Mamba-2"
    CONV = "short convolution"


@dataclass(frozen=True)
class _Family:
    """What a config.json leaves to the architecture's code."""

    qkv_bias: bool = False
    qk_norm: _Norm = _Norm.NONE
    output_gate: bool = False
    norms: int = 2
    gated: bool = True
    tied: bool = False
    moe: str = "mlp"
    expert_names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
    router: str = "gate"
    router_bias: bool = False
    expert_bias: bool = False
    sinks: bool = False
    vocabulary: int | None = None


_W = ("w1", "w3", "w2")
_LLAMA = _Family()
_QWEN2 = _Family(qkv_bias=True)
_QWEN3 = _Family(qk_norm=_Norm.HEAD)
_QWEN3_NEXT = _Family(qk_norm=_Norm.HEAD, output_gate=True)
_DEEPSEEK = _Family(router_bias=True)
_GEMMA3 = _Family(qk_norm=_Norm.HEAD, norms=4, tied=True, vocabulary=262_208)
_GEMMA4 = _Family(qk_norm=_Norm.HEAD, norms=4, tied=True, moe="moe")

_FAMILIES: Final[Mapping[str, _Family]] = {
    "LlamaForCausalLM": _LLAMA,
    "MistralForCausalLM": _LLAMA,
    "Mistral3ForConditionalGeneration": _LLAMA,
    "GraniteForCausalLM": _LLAMA,
    "Phi3ForCausalLM": _LLAMA,
    "GlmForCausalLM": _LLAMA,
    "Glm4ForCausalLM": _Family(norms=4),
    "Olmo2ForCausalLM": _Family(qk_norm=_Norm.FULL),
    "Olmo3ForCausalLM": _Family(qk_norm=_Norm.FULL),
    "Qwen2ForCausalLM": _QWEN2,
    "Qwen2_5_VLForConditionalGeneration": _QWEN2,
    "Qwen2MoeForCausalLM": _QWEN2,
    "Qwen3ForCausalLM": _QWEN3,
    "Qwen3MoeForCausalLM": _QWEN3,
    "Qwen3VLForConditionalGeneration": _QWEN3,
    "Qwen3VLMoeForConditionalGeneration": _QWEN3,
    "Qwen3NextForCausalLM": _QWEN3_NEXT,
    "Qwen3_5ForCausalLM": _QWEN3_NEXT,
    "Qwen3_5ForConditionalGeneration": _QWEN3_NEXT,
    "Qwen3_5MoeForCausalLM": _QWEN3_NEXT,
    "Qwen3_5MoeForConditionalGeneration": _QWEN3_NEXT,
    "MixtralForCausalLM": _Family(moe="block_sparse_moe", expert_names=_W),
    "MiniMaxM2ForCausalLM": _Family(qk_norm=_Norm.FULL, moe="block_sparse_moe", expert_names=_W, router_bias=True),
    "GptOssForCausalLM": _Family(router="router", router_bias=True, expert_bias=True, sinks=True),
    "Glm4MoeForCausalLM": _DEEPSEEK,
    "DeepseekV2ForCausalLM": _LLAMA,
    "DeepseekV3ForCausalLM": _DEEPSEEK,
    "DeepseekV32ForCausalLM": _DEEPSEEK,
    "KimiK25ForConditionalGeneration": _DEEPSEEK,
    "GlmMoeDsaForCausalLM": _DEEPSEEK,
    "Glm4MoeLiteForCausalLM": _DEEPSEEK,
    "Gemma2ForCausalLM": _Family(norms=4, tied=True),
    "Gemma3ForCausalLM": _GEMMA3,
    "Gemma3ForConditionalGeneration": _GEMMA3,
    "Gemma4ForCausalLM": _GEMMA4,
    "Gemma4ForConditionalGeneration": _GEMMA4,
    "GraniteMoeHybridForCausalLM": _Family(moe="block_sparse_moe"),
    "FalconH1ForCausalLM": _LLAMA,
    "Lfm2ForCausalLM": _Family(qk_norm=_Norm.HEAD, tied=True),
    "NemotronHForCausalLM": _Family(gated=False, norms=1, moe="mixer", router_bias=True),
}

ARCHITECTURES: Final = tuple(sorted(_FAMILIES))
"""What this module can count; the same names as `architectures` in a config.json."""


# --- layers -------------------------------------------------------------------------------------------------------


def _weights(fields: _Fields) -> Weights:
    architecture = fields.architecture()
    family = _FAMILIES.get(architecture)
    # per-layer embeddings and keys shared between layers have other shapes
    if family is None or any(
        fields.get(key) for key in ("hidden_size_per_layer_input", "num_kv_shared_layers", "use_double_wide_mlp")
    ):
        raise _UnknownError(architecture)
    blocks = fields.get("layers_block_type")
    layers = fields.number("num_hidden_layers", default=len(blocks) if isinstance(blocks, list) else 0)
    if not 0 < layers <= _MOST_LAYERS:
        raise _UnknownError("num_hidden_layers")
    hidden = fields.number("hidden_size")
    vocabulary = family.vocabulary if fields.get("vocab_size") is None else fields.number("vocab_size")
    if vocabulary is None:
        raise _UnknownError("vocab_size")
    tied = fields.flag("tie_word_embeddings", default=fields.flag("tie_embedding", default=family.tied))
    table = Tensor(Part.EMBEDDING, "embed_tokens", vocabulary, hidden, split=Split.VOCABULARY, linear=False)
    head = Tensor(Part.EMBEDDING, "lm_head", vocabulary, hidden, split=Split.VOCABULARY, linear=False, stored=not tied)
    reader = _Reader(fields, family, architecture, layers, hidden)
    body = tuple(tuple(reader.layer(index)) for index in range(layers))
    mixture = any(tensor.part is Part.EXPERTS for layer in body for tensor in layer)
    return Weights(
        first=(table, *_vision(fields, hidden)),
        layers=body,
        last=(_norm("norm", hidden), head),
        draft=tuple(reader.drafts()),
        tied=tied,
        top_k=fields.number("num_experts_per_tok", "top_k_experts", "experts_per_token") if mixture else 0,
    )


def _norm(name: str, size: int) -> Tensor:
    return Tensor(Part.OTHER, name, size, split=Split.REPLICATED, linear=False)


@dataclass(frozen=True)
class _Reader:
    """The tensors of each layer of one model."""

    fields: _Fields
    family: _Family
    architecture: str
    layers: int
    hidden: int

    def layer(self, index: int) -> Iterator[Tensor]:
        if self.architecture == "NemotronHForCausalLM":
            yield from self._nemotron(self._blocks[index], index)
            return
        yield from self._mixer(index)
        yield from self._feed_forward(index)
        for number in range(self.family.norms):
            yield _norm(f"layernorm_{number}", self.hidden)

    def drafts(self) -> Iterator[tuple[Tensor, ...]]:
        """Layers for multi-token prediction: one decoder layer and the projection that joins it to the backbone.

        Input table and output matrix are the backbone's own in vLLM. Sources: models/deepseek_mtp.py, qwen3_5_mtp.py.
        """
        count = self.fields.number("num_nextn_predict_layers", "mtp_num_hidden_layers", default=0)
        if not count:
            return
        join = Tensor(Part.OTHER, "eh_proj", self.hidden, 2 * self.hidden, split=Split.REPLICATED, linear=False)
        norms = tuple(_norm(name, self.hidden) for name in ("enorm", "hnorm", "shared_head.norm"))
        for index in range(self.layers, self.layers + min(count, _MOST_LAYERS)):
            if self.architecture == "NemotronHForCausalLM":
                kinds = self._pattern("mtp_hybrid_override_pattern", "mtp_layers_block_type")
                body = tuple(tensor for kind in kinds for tensor in self._nemotron(kind, index))
            else:
                body = tuple(self.layer(index))
            yield (*body, join, *norms)

    @cached_property
    def _heads(self) -> int:
        return self.fields.number("num_attention_heads")

    @cached_property
    def _mixers(self) -> tuple[_Mixer, ...]:
        """What each layer of the backbone mixes tokens with."""
        if self.architecture == "FalconH1ForCausalLM":
            return (_Mixer.GQA,) * self.layers
        if self.fields.get("kv_lora_rank") is not None:
            return (_Mixer.MLA,) * self.layers
        kinds = self.fields.names("layer_types", self.layers)
        every = self.fields.number("full_attention_interval", default=0)
        if kinds is None and every:
            kinds = tuple(
                "full_attention" if (index + 1) % every == 0 else "linear_attention" for index in range(self.layers)
            )
        if kinds is None:
            if self.family.output_gate or self.architecture in ("GraniteMoeHybridForCausalLM", "Lfm2ForCausalLM"):
                raise _UnknownError("layer_types")
            return (_Mixer.GQA,) * self.layers
        known = {
            "full_attention": _Mixer.GQA,
            "sliding_attention": _Mixer.GQA,
            "attention": _Mixer.GQA,
            "linear_attention": _Mixer.DELTA,
            "mamba": _Mixer.MAMBA,
            "conv": _Mixer.CONV,
        }
        if not set(kinds) <= known.keys():
            raise _UnknownError("layer_types")
        return tuple(known[kind] for kind in kinds)

    def _mixer(self, index: int) -> Iterator[Tensor]:
        # a layer for multi-token prediction has the attention of the full layers
        kind = self._mixers[index] if index < self.layers else _Mixer.GQA
        if kind is _Mixer.MLA or self._mixers[0] is _Mixer.MLA:
            yield from self._latent_attention()
            if self.fields.get("index_topk") is not None and self._owns_indexer(index):
                yield from self._indexer()
        elif kind is _Mixer.DELTA:
            yield from self._delta_net()
        elif kind is _Mixer.MAMBA:
            yield from self._mamba("mamba")
        elif kind is _Mixer.CONV:
            yield from self._short_convolution()
        else:
            yield from self._attention("self_attn", index)
            if self.architecture == "FalconH1ForCausalLM":
                yield from self._mamba("mamba")

    def _attention(self, prefix: str, index: int) -> Iterator[Tensor]:
        fields, family, heads = self.fields, self.family, self._heads
        kv_heads = fields.number("num_key_value_heads", default=heads) or heads
        size = fields.number("head_dim", "attention_head_dim", default=self.hidden // heads) or self.hidden // heads
        value_stored = True
        if self.architecture.startswith("Gemma4"):
            kinds = fields.names("layer_types", self.layers)
            if kinds is None:
                raise _UnknownError("layer_types")
            if kinds[min(index, self.layers - 1)] == "full_attention":
                size = fields.number("global_head_dim")
                if fields.flag("attention_k_eq_v", default=False):
                    # K is loaded into the V slot too (models/gemma4.py)
                    kv_heads, value_stored = fields.number("num_global_key_value_heads"), False
        bias = fields.flag("attention_bias", default=family.qkv_bias)
        gate = 2 if family.output_gate and fields.flag("attn_output_gate", default=True) else 1
        queries, keys = heads * size, kv_heads * size
        part = Part.ATTENTION
        yield Tensor(part, f"{prefix}.q_proj", queries * gate, self.hidden, bias=bias)
        for name, stored in (("k_proj", True), ("v_proj", value_stored)):
            yield Tensor(
                part, f"{prefix}.{name}", keys, self.hidden, split=Split.HEADS, heads=kv_heads, bias=bias, stored=stored
            )
        output_bias = bias and self.architecture in _OUTPUT_BIAS
        yield Tensor(part, f"{prefix}.o_proj", self.hidden, queries, bias=output_bias)
        if self.architecture == "Glm4MoeForCausalLM":
            norm = _Norm.HEAD if fields.flag("use_qk_norm", default=False) else _Norm.NONE
        else:
            norm = family.qk_norm
        if norm is not _Norm.NONE:
            whole = norm is _Norm.FULL
            yield _norm(f"{prefix}.q_norm", queries if whole else size)
            yield _norm(f"{prefix}.k_norm", keys if whole else size)
        if family.sinks:
            yield Tensor(Part.OTHER, f"{prefix}.sinks", heads, linear=False)

    def _latent_attention(self) -> Iterator[Tensor]:
        """MLA: the projections down to the latents are replicated, those up from them are divided by heads."""
        fields, heads, part = self.fields, self._heads, Part.ATTENTION
        rank, rope = fields.number("kv_lora_rank"), fields.number("qk_rope_head_dim")
        nope, value = fields.number("qk_nope_head_dim"), fields.number("v_head_dim")
        queries = heads * (nope + rope)
        if fields.get("q_lora_rank") is None:
            yield Tensor(part, "self_attn.q_proj", queries, self.hidden)
        else:
            query_rank = fields.number("q_lora_rank")
            yield Tensor(part, "self_attn.q_a_proj", query_rank, self.hidden, split=Split.REPLICATED)
            yield _norm("self_attn.q_a_layernorm", query_rank)
            yield Tensor(part, "self_attn.q_b_proj", queries, query_rank)
        yield Tensor(part, "self_attn.kv_a_proj_with_mqa", rank + rope, self.hidden, split=Split.REPLICATED)
        yield _norm("self_attn.kv_a_layernorm", rank)
        # decode takes W_UK and W_UV, dequantized once after loading (vLLM layers/attention/mla_attention.py)
        yield Tensor(part, "self_attn.kv_b_proj", heads * (nope + value), rank, dequantized=True)
        yield Tensor(part, "self_attn.o_proj", self.hidden, heads * value)

    def _owns_indexer(self, index: int) -> bool:
        """Layers that reuse the choice of the layer before them have none (vLLM models/deepseek_v2.py)."""
        kinds = self.fields.get("indexer_types") or self.fields.get("index_topk_pattern")
        if kinds:
            if not isinstance(kinds, Sequence):
                raise _UnknownError("indexer_types")
            return index >= len(kinds) or str(kinds[index]) not in ("S", "shared")
        every = self.fields.number("index_topk_freq", default=1) or 1
        offset = self.fields.number("index_skip_topk_offset", default=2)
        return index >= self.layers or max(index - offset + 1, 0) % every == 0

    def _indexer(self) -> Iterator[Tensor]:
        """Replicated; keys and head weights are one bf16 projection whatever the checkpoint's format."""
        heads, size = self.fields.number("index_n_heads"), self.fields.number("index_head_dim")
        rank, prefix = self.fields.number("q_lora_rank"), "self_attn.indexer"
        yield Tensor(Part.OTHER, f"{prefix}.wq_b", heads * size, rank, split=Split.REPLICATED)
        yield Tensor(Part.OTHER, f"{prefix}.wk", size, self.hidden, split=Split.REPLICATED, linear=False)
        yield Tensor(Part.OTHER, f"{prefix}.weights_proj", heads, self.hidden, split=Split.REPLICATED, linear=False)
        yield _norm(f"{prefix}.k_norm", 2 * size)

    def _delta_net(self) -> Iterator[Tensor]:
        """Gated delta net (vLLM layers/mamba/gdn/qwen_gdn_linear_attn.py)."""
        fields, part, prefix = self.fields, Part.ATTENTION, "linear_attn"
        heads = fields.number("linear_num_value_heads")
        keys = fields.number("linear_num_key_heads") * fields.number("linear_key_head_dim")
        size = fields.number("linear_value_head_dim")
        values = heads * size
        # Qwen3-Next stores two fused projections, Qwen3.5 the four of them
        fused = self.architecture.startswith("Qwen3Next")
        yield Tensor(part, f"{prefix}.{'in_proj_qkvz' if fused else 'in_proj_qkv'}", 2 * keys + values, self.hidden)
        yield Tensor(part, f"{prefix}.{'in_proj_qkvz' if fused else 'in_proj_z'}", values, self.hidden)
        yield Tensor(part, f"{prefix}.{'in_proj_ba' if fused else 'in_proj_b'}", heads, self.hidden)
        yield Tensor(part, f"{prefix}.{'in_proj_ba' if fused else 'in_proj_a'}", heads, self.hidden)
        kernel = fields.number("linear_conv_kernel_dim")
        yield Tensor(part, f"{prefix}.conv1d", 2 * keys + values, kernel, linear=False)
        yield Tensor(part, f"{prefix}.out_proj", self.hidden, values)
        yield Tensor(Part.OTHER, f"{prefix}.dt_bias", heads, linear=False)
        yield Tensor(Part.OTHER, f"{prefix}.A_log", heads, linear=False)
        yield _norm(f"{prefix}.norm", size)

    def _mamba(self, prefix: str) -> Iterator[Tensor]:
        """Mamba-2 (vLLM layers/mamba/mamba_mixer2.py): groups are replicated once ranks outnumber them."""
        fields, part = self.fields, Part.ATTENTION
        heads = fields.number("mamba_num_heads", "mamba_n_heads")
        inner = heads * fields.number("mamba_head_dim", "mamba_d_head")
        groups = fields.number("n_groups", "mamba_n_groups")
        states = 2 * groups * fields.number("ssm_state_size", "mamba_d_state")
        kernel = fields.number("conv_kernel", "mamba_d_conv")
        bias = fields.flag("use_bias", default=fields.flag("mamba_proj_bias", default=False))
        conv_bias = fields.flag("use_conv_bias", default=fields.flag("mamba_conv_bias", default=True))
        yield Tensor(part, f"{prefix}.in_proj", 2 * inner + heads, self.hidden, bias=bias)
        yield Tensor(part, f"{prefix}.in_proj", states, self.hidden, split=Split.HEADS, heads=groups, bias=bias)
        yield Tensor(part, f"{prefix}.conv1d", inner, kernel, linear=False, bias=conv_bias)
        yield Tensor(
            part, f"{prefix}.conv1d", states, kernel, split=Split.HEADS, heads=groups, linear=False, bias=conv_bias
        )
        yield Tensor(part, f"{prefix}.out_proj", self.hidden, inner, bias=bias)
        yield Tensor(Part.OTHER, f"{prefix}.A_D_dt", 3 * heads, linear=False)
        if fields.flag("mamba_rms_norm", default=self.architecture != "FalconH1ForCausalLM"):
            yield Tensor(Part.OTHER, f"{prefix}.norm", inner, linear=False)

    def _short_convolution(self) -> Iterator[Tensor]:
        """LFM2's gated convolution (vLLM layers/mamba/short_conv.py)."""
        bias = self.fields.flag("conv_bias", default=False)
        yield Tensor(Part.ATTENTION, "conv.in_proj", 3 * self.hidden, self.hidden, bias=bias)
        kernel = self.fields.number("conv_L_cache")
        yield Tensor(Part.ATTENTION, "conv.conv", self.hidden, kernel, linear=False, bias=bias)
        yield Tensor(Part.ATTENTION, "conv.out_proj", self.hidden, self.hidden, bias=bias)

    def _feed_forward(self, index: int) -> Iterator[Tensor]:
        fields = self.fields
        experts = self._experts
        if self.architecture == "GraniteMoeHybridForCausalLM":
            yield from self._mlp(Part.SHARED_EXPERTS if experts else Part.DENSE_MLP, "shared_mlp", self._number_shared)
        if not experts or not self._is_sparse(index):
            if self.architecture != "GraniteMoeHybridForCausalLM":
                yield from self._mlp(Part.DENSE_MLP, "mlp", self._dense_width)
            return
        if self.architecture.startswith("Gemma4"):
            # the dense MLP stands beside the experts
            yield from self._mlp(Part.DENSE_MLP, "mlp", self._dense_width)
            for number in range(3):
                yield _norm(f"moe_layernorm_{number}", self.hidden)
            yield _norm("router.scale", self.hidden + experts)
        yield from self._moe(experts, self.hidden)
        shared = self._shared_width
        if shared:
            name = "shared_expert" if fields.get("shared_expert_intermediate_size") else "shared_experts"
            yield from self._mlp(Part.SHARED_EXPERTS, f"{self.family.moe}.{name}", shared)
            if name == "shared_expert":
                yield _norm(f"{self.family.moe}.shared_expert_gate", self.hidden)

    @cached_property
    def _experts(self) -> int:
        if self.architecture.startswith("Gemma4") and not self.fields.flag("enable_moe_block", default=False):
            return 0
        return self.fields.number("n_routed_experts", "num_experts", "num_local_experts", default=0)

    @cached_property
    def _number_shared(self) -> int:
        return self.fields.number("shared_intermediate_size")

    @cached_property
    def _expert_width(self) -> int:
        return self.fields.number("moe_intermediate_size", "expert_intermediate_size", "intermediate_size")

    @cached_property
    def _shared_width(self) -> int:
        each = self.fields.number("shared_expert_intermediate_size", default=0)
        return each or self.fields.number("n_shared_experts", default=0) * self._expert_width

    @cached_property
    def _dense_width(self) -> int:
        """Width of the dense MLP; LFM2 derives it from block_ff_dim."""
        fields = self.fields
        if self.architecture != "Lfm2ForCausalLM":
            return fields.number("intermediate_size")
        width = fields.number("block_ff_dim", "intermediate_size")
        if not fields.flag("block_auto_adjust_ff_dim", default=True):
            return width
        multiplier = fields.get("block_ffn_dim_multiplier")
        multiplier = 1 if multiplier is None else multiplier
        if isinstance(multiplier, bool) or not isinstance(multiplier, int | float) or not 0 < multiplier <= _LARGEST:
            raise _UnknownError("block_ffn_dim_multiplier")
        width = int(Fraction(str(multiplier)) * (2 * width // 3))
        step = fields.number("block_multiple_of", default=256) or 1
        return -(-width // step) * step

    def _is_sparse(self, index: int) -> bool:
        """Whether a layer's MLP is a mixture of experts; a layer for multi-token prediction is like the last."""
        fields = self.fields
        kinds = fields.names("mlp_layer_types", self.layers)
        at = min(index, self.layers - 1)
        if kinds is not None:
            return kinds[at] == "sparse"
        dense = fields.get("mlp_only_layers")
        if isinstance(dense, Sequence) and at in dense:
            return False
        step = fields.number("decoder_sparse_step", default=1) or 1
        every = fields.number("moe_layer_freq", default=1) or 1
        return at >= fields.number("first_k_dense_replace", default=0) and at % every == 0 and (at + 1) % step == 0

    def _mlp(self, part: Part, prefix: str, width: int) -> Iterator[Tensor]:
        split = Split.SHARED_EXPERTS if part is Part.SHARED_EXPERTS else Split.DIVIDED
        bias = self.fields.flag("mlp_bias", default=False)
        for name in ("gate_proj", "up_proj") if self.family.gated else ("up_proj",):
            yield Tensor(part, f"{prefix}.{name}", width, self.hidden, split=split, bias=bias)
        yield Tensor(part, f"{prefix}.down_proj", self.hidden, width, split=split, bias=bias)

    def _moe(self, experts: int, width_in: int) -> Iterator[Tensor]:
        """Router and routed experts that take `width_in` features."""
        family, width = self.family, self._expert_width
        gate, up, down = (f"{family.moe}.experts.0.{name}" for name in family.expert_names)
        for name in (gate, up) if family.gated else (up,):
            yield _expert(name, width, width_in, experts, bias=family.expert_bias)
        yield _expert(down, width_in, width, experts, bias=family.expert_bias)
        yield Tensor(
            Part.OTHER,
            f"{family.moe}.{family.router}",
            experts,
            self.hidden,
            split=Split.REPLICATED,
            linear=False,
            bias=family.router_bias,
        )

    @cached_property
    def _blocks(self) -> tuple[str, ...]:
        """The kind of each Nemotron-H layer."""
        kinds = self._pattern("hybrid_override_pattern", "layers_block_type")
        if len(kinds) != self.layers:
            raise _UnknownError("hybrid_override_pattern")
        return kinds

    def _pattern(self, short: str, long: str) -> tuple[str, ...]:
        """Kinds of layers, spelt with one letter each in older configs and by name in newer ones."""
        letters = self.fields.get(short)
        names = [_NEMOTRON.get(letter) for letter in letters] if isinstance(letters, str) else self.fields.get(long)
        if not isinstance(names, list) or not names or not {str(name) for name in names} <= set(_NEMOTRON.values()):
            raise _UnknownError(short)
        return tuple(names)

    def _nemotron(self, kind: str, index: int) -> Iterator[Tensor]:
        """One mixer a layer (vLLM models/nemotron_h.py); experts may work in a latent space of their own."""
        fields = self.fields
        yield _norm("norm", self.hidden)
        if kind == "mamba":
            yield from self._mamba("mixer")
        elif kind == "attention":
            yield from self._attention("mixer", index)
        elif kind == "mlp":
            yield from self._mlp(Part.DENSE_MLP, "mixer", fields.number("intermediate_size"))
        else:
            latent = fields.number("moe_latent_size", default=0)
            yield from self._moe(fields.number("n_routed_experts"), latent or self.hidden)
            if latent:
                yield Tensor(Part.OTHER, "mixer.fc1_latent_proj", latent, self.hidden, split=Split.REPLICATED)
                yield Tensor(Part.OTHER, "mixer.fc2_latent_proj", self.hidden, latent, split=Split.REPLICATED)
            shared = fields.number("n_shared_experts", default=0)
            if shared:
                width = fields.number("moe_shared_expert_intermediate_size") * shared
                yield from self._mlp(Part.SHARED_EXPERTS, "mixer.shared_experts", width)


_NEMOTRON: Final = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}

_OUTPUT_BIAS = frozenset({"LlamaForCausalLM", "GraniteForCausalLM", "GptOssForCausalLM", "NemotronHForCausalLM"})
"""Architectures whose attention_bias covers the output projection too."""


def _expert(name: str, rows: int, columns: int, experts: int, *, bias: bool) -> Tensor:
    return Tensor(Part.EXPERTS, name, rows, columns, copies=experts, split=Split.EXPERTS, bias=bias)


# --- vision towers ------------------------------------------------------------------------------------------------


def _vision(fields: _Fields, text: int) -> Iterator[Tensor]:
    """The image encoder and its projector, where the kind of tower is known; nothing where it is not."""
    config = fields.mapping("vision_config")
    if config is None:
        return
    tower = _Fields(config)
    count = _VISION.get(str(config.get("model_type")))
    if count is None:
        return
    try:
        matrices, rest = count(tower, text)
    except _UnknownError:
        return
    yield Tensor(Part.VISION, "vision_tower", matrices, linear=False)
    yield Tensor(Part.VISION, "vision_tower.embeddings", rest, split=Split.REPLICATED, linear=False)


def _pixtral(tower: _Fields, text: int) -> tuple[int, int]:
    """(divided, replicated) parameters of Pixtral's tower and Mistral 3's patch merger."""
    hidden, width, depth = _tower_size(tower)
    patch = 3 * tower.number("patch_size") ** 2 * hidden
    merged = tower.number("spatial_merge_size", default=2) ** 2
    projector = merged * hidden * hidden + hidden * text + text * text + hidden
    return depth * (4 * hidden * hidden + 3 * hidden * width), depth * 2 * hidden + patch + hidden + projector


def _siglip(tower: _Fields, text: int) -> tuple[int, int]:
    """(divided, replicated) parameters of a SigLIP tower and Gemma 3's projector."""
    hidden, width, depth = _tower_size(tower)
    side = tower.number("patch_size")
    positions = (tower.number("image_size") // side) ** 2
    biased = 4 * hidden * hidden + 2 * hidden * width + 9 * hidden + width
    rest = (3 * side**2 + 1) * hidden + positions * hidden + 2 * hidden
    return depth * biased, rest + hidden * text + hidden


def _gemma4(tower: _Fields, text: int) -> tuple[int, int]:
    """(divided, replicated) parameters of Gemma 4's tower: gated MLP, two tables of positions."""
    hidden, width, depth = _tower_size(tower)
    patch = 3 * tower.number("patch_size") ** 2 * hidden
    positions = 2 * tower.number("position_embedding_size") * hidden
    return depth * (4 * hidden * hidden + 3 * hidden * width), depth * 4 * hidden + patch + positions + hidden * text


def _qwen(tower: _Fields, text: int) -> tuple[int, int]:
    """(divided, replicated) parameters of Qwen3-VL's tower, its merger and one more merger per deepstack layer."""
    hidden, width = tower.number("hidden_size"), tower.number("intermediate_size")
    depth = tower.number("depth")
    merged = tower.number("spatial_merge_size") ** 2 * hidden
    stacked = tower.get("deepstack_visual_indexes")
    more = len(stacked) if isinstance(stacked, Sequence) else 0
    norms = 2 * hidden + more * 2 * merged
    patch = 3 * tower.number("temporal_patch_size") * tower.number("patch_size") ** 2 * hidden
    out = tower.number("out_hidden_size", default=text) or text
    biased = 4 * hidden * hidden + 2 * hidden * width + 9 * hidden + width
    rest = patch + hidden + tower.number("num_position_embeddings") * hidden
    return depth * biased + (1 + more) * (merged + 1) * (merged + out), rest + norms


def _tower_size(tower: _Fields) -> tuple[int, int, int]:
    """(hidden size, MLP width, layers)."""
    return tower.number("hidden_size"), tower.number("intermediate_size"), tower.number("num_hidden_layers")


_VISION: Final = {
    "pixtral": _pixtral,
    "siglip_vision_model": _siglip,
    "gemma4_vision": _gemma4,
    "qwen3_vl": _qwen,
    "qwen3_vl_moe": _qwen,
    "qwen3_5": _qwen,
    "qwen3_5_moe": _qwen,
}


# --- formats ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Precision:
    """How a matrix is stored: `bits` an element, and one scale for each block.

    block is (rows, columns) that share a scale, 0 for all of them; zero_bits: a zero point beside each scale.
    tensor_bytes: one more scale for the whole matrix.
    """

    bits: int
    block: tuple[int, int] = (0, 0)
    scale_bits: int = 0
    zero_bits: int = 0
    tensor_bytes: int = 0

    def matrix_bytes(self, rows: int, columns: int) -> int:
        """Bytes of one matrix with its scales."""
        if not rows or not columns:
            return 0
        scales = -(-rows // (self.block[0] or rows)) * -(-columns // (self.block[1] or columns))
        bits = rows * columns * self.bits + scales * (self.scale_bits + self.zero_bits)
        return -(-bits // 8) + self.tensor_bytes


_FP8 = Precision(8, scale_bits=32)
_FP8_CHANNEL = Precision(8, (1, 0), 32)
_NVFP4 = Precision(4, (1, 16), 8, tensor_bytes=4)
_MXFP4 = Precision(4, (1, 32), 8)
_MXFP8 = Precision(8, (1, 32), 8)
_MODELOPT: Final = {
    "FP8": _FP8,
    "FP8_PER_CHANNEL_PER_TOKEN": _FP8_CHANNEL,
    "FP8_PB_WO": Precision(8, (128, 128), 32),
    "NVFP4": _NVFP4,
    "NVFP4_AWQ": _NVFP4,
    "W4A16_NVFP4": _NVFP4,
    "MXFP8": _MXFP8,
}


@dataclass(frozen=True)
class WeightFormat:
    """How a checkpoint stores its weights.

    dtype_bytes: what is not quantized takes this many bytes an element.
    default applies to every linear layer that neither rules nor ignored name; None leaves them alone.
    known is False where the method is not one that this module knows: only `method` means something then.
    """

    method: str
    dtype_bytes: int
    default: Precision | None = None
    rules: tuple[tuple[_Names, Precision], ...] = ()
    ignored: _Names | None = None
    head: Precision | None = None
    known: bool = True

    def precision(self, name: str) -> Precision | None:
        """The precision of a linear layer by its full name ("layers.0.mlp.down_proj"); None where not quantized."""
        if self.ignored is not None and self.ignored.holds(name):
            return None
        return next((precision for names, precision in self.rules if names.holds(name)), self.default)


@dataclass(frozen=True)
class _Names:
    """Modules that a quantization config names: plain names, also of a part of the path, and patterns."""

    plain: frozenset[str]
    globs: tuple[re.Pattern[str], ...]

    def holds(self, name: str) -> bool:
        """Whether a run of the name's components is named, or a pattern fits the whole name."""
        parts = name.split(".")
        runs = (".".join(parts[i:j]) for i in range(len(parts)) for j in range(i + 1, len(parts) + 1))
        return any(run in self.plain for run in runs) or any(glob.match(name) for glob in self.globs)


def _names(patterns: object) -> _Names:
    """Raises _UnknownError for a pattern in a form that this module does not read."""
    if isinstance(patterns, str) or not isinstance(patterns, Sequence):
        raise _UnknownError("quantization_config")
    plain: set[str] = set()
    globs: set[str] = set()
    for pattern in patterns:
        if len(str(pattern)) > _LONGEST_PATTERN:
            raise _UnknownError("quantization_config")
        for text in _expanded(str(pattern)):
            bare = _bare(text)
            if any(sign in bare for sign in "*?["):
                globs.add(bare)
            else:
                plain.add(bare)
    if len(globs) > _MOST_GLOBS:
        raise _UnknownError("quantization_config")
    return _Names(frozenset(plain), tuple(re.compile(fnmatch.translate(glob)) for glob in sorted(globs)))


def _expanded(pattern: str) -> tuple[str, ...]:
    """The globs of a compressed-tensors "re:" pattern; what is no more than literals, ".*" and one choice is read.

    A dot without a backslash is read as a dot. Patterns are user input, so none runs as a regular expression.
    """
    if not pattern.startswith("re:"):
        return (pattern,)
    match = _SIMPLE.fullmatch(pattern.removeprefix("re:"))
    if match is None:
        raise _UnknownError(pattern)
    before, choices, after, end = match["before"], match["choices"], match["after"], match["end"]
    tail = "" if end else "*"
    return tuple(
        f"{before}{choice}{after}{tail}".replace(".*", "*").replace("\\.", ".")
        for choice in (choices.split("|") if choices else [""])
    )


_LITERAL = r"(?:\w|\\\.|\.\*|\.|-)*"
_SIMPLE = re.compile(rf"\^?(?P<before>{_LITERAL})(?:\((?P<choices>[\w|]+)\))?(?P<after>{_LITERAL})(?P<end>\$?)")


def _bare(name: str) -> str:
    """A module's name without the wrappers that differ between checkpoints of one model."""
    while (short := re.sub(r"^(model|language_model|backbone)\.", "", name)) != name:
        name = short
    return name


def weight_format(config: Mapping[str, Any]) -> WeightFormat:
    """How a config.json says that its weights are stored; known is False for a method without a rule here.

    Sources: vLLM 0.33, model_executor/layers/quantization; compressed-tensors' QuantizationArgs; OCP MX formats.
    """
    fields = _Fields(config)
    width = _DTYPE_BYTES.get(str(fields.get("dtype", "torch_dtype") or "bfloat16").removeprefix("torch."))
    quantized = fields.get("quantization_config", "compression_config")
    if not isinstance(quantized, Mapping):
        return WeightFormat("none", width or 2, known=width is not None)
    inner = quantized.get("quantization")
    described = inner if isinstance(inner, Mapping) else quantized
    fallback = "modelopt" if "quant_algo" in described else "unknown"
    method = str(quantized.get("quant_method") or fallback)
    read = _METHODS.get(method)
    if read is None or width is None:
        return WeightFormat(method, width or 2, known=False)
    try:
        return read(method, width, described)
    except _UnknownError:
        return WeightFormat(method, width, known=False)


_DTYPE_BYTES: Final = {"float32": 4, "bfloat16": 2, "float16": 2, "half": 2, "float": 4}


def _ignored(quantized: Mapping[str, Any], *keys: str) -> _Names | None:
    """The modules that stay at the model's dtype, of the first key that the config has."""
    return next((_names(quantized[key]) for key in keys if quantized.get(key)), None)


def _size(quantized: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = quantized.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or not -1 <= value <= _LARGEST:
        raise _UnknownError(key)
    return value


def _fp8(method: str, width: int, quantized: Mapping[str, Any]) -> WeightFormat:
    block = quantized.get("weight_block_size")
    precision = _FP8_CHANNEL if method == "fbgemm_fp8" else _FP8
    if block is not None:
        precision = Precision(8, _block(block), 32)
    ignored = _ignored(quantized, "modules_to_not_convert", "ignored_layers")
    return WeightFormat(method, width, precision, ignored=ignored)


def _block(value: object) -> tuple[int, int]:
    match value:
        case [int(rows), int(columns)] if rows > 0 and columns > 0:
            return rows, columns
    raise _UnknownError("weight_block_size")


def _grouped(method: str, width: int, quantized: Mapping[str, Any]) -> WeightFormat:
    """GPTQ and AWQ: fp16 scale and packed zero point for each group of input features."""
    bits = _size(quantized, "bits")
    group = max(0, _size(quantized, "group_size"))
    if bits not in (2, 3, 4, 8) or quantized.get("dynamic"):
        raise _UnknownError("bits")
    precision = Precision(bits, (1, group), 16, bits)
    head = precision if quantized.get("lm_head") is True else None
    return WeightFormat(method, width, precision, ignored=_ignored(quantized, "modules_to_not_convert"), head=head)


def _compressed(method: str, width: int, quantized: Mapping[str, Any]) -> WeightFormat:
    groups = quantized.get("config_groups")
    sparsity = quantized.get("sparsity_config")
    if not isinstance(groups, Mapping) or (isinstance(sparsity, Mapping) and sparsity.get("format") != "dense"):
        raise _UnknownError("config_groups")
    default: Precision | None = None
    rules: list[tuple[_Names, Precision]] = []
    for group in groups.values():
        if not isinstance(group, Mapping) or not isinstance(group.get("weights"), Mapping):
            raise _UnknownError("config_groups")
        precision = _arguments(group["weights"])
        targets = group.get("targets", ["Linear"])
        if targets == ["Linear"]:
            default = precision
        else:
            rules.append((_names(targets), precision))
    head = next((precision for names, precision in rules if "lm_head" in names.plain), None)
    return WeightFormat(method, width, default, tuple(rules), _ignored(quantized, "ignore"), head)


def _arguments(weights: Mapping[str, Any]) -> Precision:
    """The precision of compressed-tensors' weight arguments: fp32 scales for fp8, 16 bits for integers."""
    bits, kind = _size(weights, "num_bits"), weights.get("type", "int")
    group = _size(weights, "group_size", -1) if weights.get("group_size") is not None else -1
    strategy = str(weights.get("strategy") or ("group" if group > 0 else "tensor"))
    if kind == "float" and bits == 4 and group in (16, 32):  # noqa: PLR2004 - NVFP4's and MXFP4's groups
        return _NVFP4 if group == 16 else _MXFP4  # noqa: PLR2004
    if kind not in ("int", "float") or bits not in (4, 8) or (kind == "float" and bits != 8):  # noqa: PLR2004
        raise _UnknownError("num_bits")
    scale = 32 if kind == "float" else 16
    zero = 0 if weights.get("symmetric", True) else bits
    if strategy == "block":
        return Precision(bits, _block(weights.get("block_structure")), scale, zero)
    blocks = {"tensor": (0, 0), "channel": (1, 0), "group": (1, max(0, group))}
    if strategy not in blocks:
        raise _UnknownError("strategy")
    return Precision(bits, blocks[strategy], scale, zero)


def _modelopt(method: str, width: int, quantized: Mapping[str, Any]) -> WeightFormat:
    algorithm = str(quantized.get("quant_algo"))
    ignored = _ignored(quantized, "ignore", "exclude_modules")
    if algorithm != "MIXED_PRECISION":
        if algorithm not in _MODELOPT:
            raise _UnknownError("quant_algo")
        return WeightFormat(method, width, _MODELOPT[algorithm], ignored=ignored)
    layers = quantized.get("quantized_layers")
    if not isinstance(layers, Mapping):
        raise _UnknownError("quantized_layers")
    by_algorithm: dict[str, list[str]] = {}
    for name, layer in layers.items():
        said = str(layer.get("quant_algo")) if isinstance(layer, Mapping) else ""
        if said not in _MODELOPT:
            raise _UnknownError("quant_algo")
        by_algorithm.setdefault(said, []).append(str(name))
    rules = tuple((_names(names), _MODELOPT[said]) for said, names in by_algorithm.items())
    head = next((precision for names, precision in rules if "lm_head" in names.plain), None)
    return WeightFormat(method, width, None, rules, ignored, head)


def _mxfp4(method: str, width: int, quantized: Mapping[str, Any]) -> WeightFormat:
    """gpt-oss: experts only; vLLM leaves linear layers alone under this method."""
    ignored = _ignored(quantized, "modules_to_not_convert")
    return WeightFormat(method, width, rules=((_names(["experts"]), _MXFP4),), ignored=ignored)


def _bitsandbytes(method: str, width: int, quantized: Mapping[str, Any]) -> WeightFormat:
    """4 bits with an absolute maximum per 64, itself 8 bits where quantized twice; or 8 bits with one per row."""
    ignored = _ignored(quantized, "llm_int8_skip_modules")
    if quantized.get("load_in_8bit") is True:
        return WeightFormat(method, width, Precision(8, (1, 0), 32), ignored=ignored)
    if quantized.get("load_in_4bit") is not True:
        raise _UnknownError("load_in_4bit")
    scale = 8 if quantized.get("bnb_4bit_use_double_quant") is True else 32
    return WeightFormat(method, width, Precision(4, (1, 64), scale), ignored=ignored)


_METHODS: Final = {
    "fp8": _fp8,
    "fbgemm_fp8": _fp8,
    "gptq": _grouped,
    "gptq_marlin": _grouped,
    "awq": _grouped,
    "awq_marlin": _grouped,
    "compressed-tensors": _compressed,
    "modelopt": _modelopt,
    "modelopt_fp4": _modelopt,
    "modelopt_mixed": _modelopt,
    "mxfp4": _mxfp4,
    "bitsandbytes": _bitsandbytes,
}


# --- bytes --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Parallel:
    """Ranks of one replica: each data-parallel rank is `tensor` x `pipeline` GPUs.

    expert: --enable-expert-parallel, whole experts on each rank instead of a slice of every expert.
    """

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    expert: bool = False


def weight_bytes(weights: Weights, form: WeightFormat) -> int | None:
    """Bytes of the checkpoint, draft layers included; None where the format is not known."""
    if not form.known:
        return None
    return sum(_file_bytes(tensor, name, form) for name, tensor in _named(weights))


def weights_on_one_gpu(
    weights: Weights,
    form: WeightFormat,
    parallel: Parallel,
    *,
    total_bytes: int | None = None,
    draft: bool = False,
) -> int | None:
    """Bytes of weights on the GPU that holds the most; draft: with the layers for speculative decoding.

    total_bytes is the size of the checkpoint's files (total_size in model.safetensors.index.json): where the count
    differs from it, every tensor is scaled by the same ratio. A format that is not known is then taken as one
    width for all tensors; without total_bytes it gives None. More stages than layers give None as well.
    """
    if (not form.known and total_bytes is None) or parallel.pipeline > len(weights.layers):
        return None
    stages = _stages(weights, parallel.pipeline, draft=draft)
    most = max(sum(_held_bytes(tensor, name, form, parallel) for name, tensor in stage) for stage in stages)
    if total_bytes is None:
        return most
    return -(-most * total_bytes // _closest_count(weights, form, total_bytes))


def _closest_count(weights: Weights, form: WeightFormat, total_bytes: int) -> int:
    """The counted bytes of a checkpoint with what its config.json does not say: the reading closest to its files.

    Draft layers may be left out, and a tied output matrix may be stored all the same (Qwen3-0.6B).
    """
    counted = sum(_file_bytes(tensor, name, form) for name, tensor in _named(weights))
    drafts = sum(
        _file_bytes(tensor, f"layers.{index}.{tensor.name}", form)
        for index, layer in enumerate(weights.draft, len(weights.layers))
        for tensor in layer
    )
    table = weights.first[0].elements * form.dtype_bytes if weights.tied else 0
    readings = [counted - less + more for less in (0, drafts) for more in (0, table)]
    return min(readings, key=lambda reading: abs(total_bytes - reading))


def stage_layers(layers: int, pipeline: int) -> tuple[int, ...]:
    """Layers of each pipeline rank: what is left over goes to the ranks before the last.

    Source: vLLM 0.33, distributed/utils.py, get_pp_indices.
    """
    each, left = divmod(layers, pipeline)
    return tuple(each + (pipeline - 1 - left <= rank < pipeline - 1) for rank in range(pipeline))


def _named(weights: Weights) -> Iterator[tuple[str, Tensor]]:
    """Every tensor with its full name."""
    for tensor in (*weights.first, *weights.last):
        yield tensor.name, tensor
    for index, layer in enumerate((*weights.layers, *weights.draft)):
        for tensor in layer:
            yield f"layers.{index}.{tensor.name}", tensor


def _stages(weights: Weights, pipeline: int, *, draft: bool) -> Iterator[list[tuple[str, Tensor]]]:
    """The named tensors of each pipeline rank."""
    start = 0
    for rank, count in enumerate(stage_layers(len(weights.layers), pipeline)):
        last = rank == pipeline - 1
        held = list(enumerate(weights.layers[start : start + count], start))
        start += count
        if last and draft:
            held += enumerate(weights.draft, len(weights.layers))
        stage = [(f"layers.{index}.{tensor.name}", tensor) for index, layer in held for tensor in layer]
        if rank == 0:
            stage += [(tensor.name, tensor) for tensor in weights.first]
        if last:
            # a tied output matrix is the input table itself, and a second copy of it on another rank
            stage += [
                (tensor.name, tensor)
                for tensor in weights.last
                if tensor.name != "lm_head" or tensor.stored or pipeline > 1
            ]
        yield stage


def _precision(tensor: Tensor, name: str, form: WeightFormat) -> Precision | None:
    if tensor.name == "lm_head":
        return form.head
    return form.precision(name) if tensor.linear else None


def _file_bytes(tensor: Tensor, name: str, form: WeightFormat) -> int:
    """Bytes of a tensor in the checkpoint."""
    if not tensor.stored:
        return 0
    plain = Precision(8 * form.dtype_bytes)
    matrix = (_precision(tensor, name, form) or plain).matrix_bytes(tensor.rows, tensor.columns)
    return tensor.copies * (matrix + tensor.bias * tensor.rows * form.dtype_bytes)


def _held_bytes(tensor: Tensor, name: str, form: WeightFormat, parallel: Parallel) -> int:
    """Bytes of a tensor on one rank, as vLLM holds it."""
    # vLLM loads float32 checkpoints in 16 bits (config/model.py, dtype auto)
    width = min(2, form.dtype_bytes)
    precision = _precision(tensor, name, form)
    copies, rows, columns = tensor.copies, tensor.rows, tensor.columns
    share = _share(tensor, parallel)
    if tensor.split is Split.VOCABULARY:
        rows = _round_up(rows, _VOCAB_PADDING)
    if tensor.split is Split.EXPERTS:
        if parallel.expert:
            copies, share = -(-copies // (parallel.tensor * parallel.data)), Fraction(1)
        if precision == _MXFP4:
            rows, columns, share = _padded_expert(tensor, share)
    matrix = (precision or Precision(8 * width)).matrix_bytes(rows, columns)
    if tensor.dequantized and precision is not None:
        matrix += rows * columns * width
    held = copies * (matrix + tensor.bias * rows * width) * share
    return -(-held.numerator // held.denominator)


def _share(tensor: Tensor, parallel: Parallel) -> Fraction:
    """The part of a tensor that one rank holds."""
    match tensor.split:
        case Split.REPLICATED:
            return Fraction(1)
        case Split.HEADS:
            return Fraction(-(-tensor.heads // parallel.tensor), tensor.heads)
        case Split.EXPERTS:
            # sliced over all ranks, data-parallel ones included (FusedMoEParallelConfig.make)
            return Fraction(1, parallel.tensor * parallel.data)
        case Split.SHARED_EXPERTS if parallel.expert and parallel.tensor > 1 and parallel.data > 1:
            # MoE layers run sequence parallel then (config/parallel.py, use_sequence_parallel_moe)
            return Fraction(1)
        case _:
            return Fraction(1, parallel.tensor)


def _padded_expert(tensor: Tensor, share: Fraction) -> tuple[int, int, Fraction]:
    """(rows, columns, share) of an MXFP4 expert on one rank, padded as the Marlin and TRT-LLM kernels want it.

    A rank's slice of the intermediate size is rounded up to 128, the hidden size to 256; other kernels pad less
    (fused_moe/oracle/mxfp4.py, mxfp4_round_up_hidden_size_and_intermediate_size).
    """
    if tensor.name.endswith("down_proj"):
        return _round_up(tensor.rows, 256), _round_up(-int(-tensor.columns * share // 1), 128), Fraction(1)
    return _round_up(-int(-tensor.rows * share // 1), 128), _round_up(tensor.columns, 256), Fraction(1)


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step
