"""Tensors of what stands between a token and the tokens before it: attention, latent attention, recurrences."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum

from hisparse.config import in_turns, of_each_layer
from hisparse.weights.families import Backbone, Norm
from hisparse.weights.fields import UnknownError
from hisparse.weights.tensors import Part, Split, Tensor, norm

_OUTPUT_BIAS = frozenset({"LlamaForCausalLM", "GraniteForCausalLM", "GptOssForCausalLM", "NemotronHForCausalLM"})
"""Architectures whose attention_bias covers the output projection too."""

_TYPED_LAYERS = frozenset(
    {"Gemma4ForCausalLM", "Gemma4ForConditionalGeneration", "GraniteMoeHybridForCausalLM", "Lfm2ForCausalLM"}
)
"""Architectures whose layers cannot be told apart without layer_types."""


class Mixer(StrEnum):
    """What a layer mixes tokens with."""

    GQA = "grouped-query attention"
    WINDOW = "grouped-query attention to a window"
    MLA = "multi-head latent attention"
    DELTA = "gated delta net"
    MAMBA = "Mamba-2"
    CONV = "short convolution"
    BOTH = "grouped-query attention beside Mamba-2"


_LAYER_TYPES = {
    "full_attention": Mixer.GQA,
    "sliding_attention": Mixer.WINDOW,
    "attention": Mixer.GQA,
    "linear_attention": Mixer.DELTA,
    "mamba": Mixer.MAMBA,
    "conv": Mixer.CONV,
}


def mixers(model: Backbone) -> tuple[Mixer, ...]:
    """The mixer of each layer of the backbone. Raises SpecError where one is not known."""
    fields, layers = model.fields, model.layers
    if model.architecture == "FalconH1ForCausalLM":
        return (Mixer.BOTH,) * layers
    if fields.get("kv_lora_rank") is not None:
        return (Mixer.MLA,) * layers
    kinds = fields.names("layer_types")
    every = fields.count("full_attention_interval", default=0)
    if kinds is None and every:
        kinds = in_turns(layers, every, "linear_attention")
    if kinds is None:
        if model.family.output_gate or model.architecture in _TYPED_LAYERS:
            raise UnknownError("layer_types")
        return (Mixer.GQA,) * layers
    kinds = of_each_layer(kinds, layers)
    if not set(kinds) <= _LAYER_TYPES.keys():
        raise UnknownError("layer_types")
    return tuple(_LAYER_TYPES[kind] for kind in kinds)


def draft_mixer(first: Mixer) -> Mixer:
    """The mixer of a layer for multi-token prediction: what all layers have, else the attention of the full ones."""
    return first if first in (Mixer.MLA, Mixer.BOTH) else Mixer.GQA


def mixer(model: Backbone, kind: Mixer) -> Iterator[Tensor]:
    """The tensors of one mixer, indexer apart."""
    if kind in (Mixer.GQA, Mixer.WINDOW, Mixer.BOTH):
        yield from attention(model, "self_attn", window=kind is Mixer.WINDOW)
    if kind in (Mixer.MAMBA, Mixer.BOTH):
        yield from mamba(model, "mamba")
    if kind is Mixer.MLA:
        yield from _latent_attention(model)
    if kind is Mixer.DELTA:
        yield from _delta_net(model)
    if kind is Mixer.CONV:
        yield from _short_convolution(model)


def attention(model: Backbone, prefix: str, *, window: bool = False) -> Iterator[Tensor]:
    """Attention with keys and values of its own. window: in a layer that looks back over one."""
    fields, family, hidden = model.fields, model.family, model.hidden
    heads = fields.count("num_attention_heads")
    kv_heads = fields.count("num_key_value_heads", default=heads) or heads
    size = fields.count("head_dim", "attention_head_dim", default=hidden // heads) or hidden // heads
    value_stored = True
    if model.architecture.startswith("Gemma4") and not window:
        size = fields.count("global_head_dim")
        if fields.flag("attention_k_eq_v", default=False):
            # K is loaded into the V slot too (models/gemma4.py)
            kv_heads, value_stored = fields.count("num_global_key_value_heads"), False
    bias = fields.flag("attention_bias", default=family.qkv_bias)
    gate = 2 if family.output_gate and fields.flag("attn_output_gate", default=True) else 1
    queries, keys = heads * size, kv_heads * size
    part = Part.ATTENTION
    yield Tensor(part, f"{prefix}.q_proj", queries * gate, hidden, bias=bias)
    for name, stored in (("k_proj", True), ("v_proj", value_stored)):
        yield Tensor(
            part, f"{prefix}.{name}", keys, hidden, split=Split.HEADS, heads=kv_heads, bias=bias, stored=stored
        )
    output_bias = bias and model.architecture in _OUTPUT_BIAS
    yield Tensor(part, f"{prefix}.o_proj", hidden, queries, by_columns=True, bias=output_bias)
    norms = family.qk_norm
    if model.architecture == "Glm4MoeForCausalLM" and fields.flag("use_qk_norm", default=False):
        norms = Norm.HEAD
    if norms is not Norm.NONE:
        whole = norms is Norm.FULL
        yield norm(f"{prefix}.q_norm", queries if whole else size)
        yield norm(f"{prefix}.k_norm", keys if whole else size)
    if family.sinks:
        yield Tensor(Part.OTHER, f"{prefix}.sinks", heads, linear=False)


def _latent_attention(model: Backbone) -> Iterator[Tensor]:
    """MLA: the projections down to the latents are replicated, those up from them are divided by heads."""
    fields, hidden, part = model.fields, model.hidden, Part.ATTENTION
    heads = fields.count("num_attention_heads")
    rank, rope = fields.count("kv_lora_rank"), fields.count("qk_rope_head_dim")
    nope, value = fields.count("qk_nope_head_dim"), fields.count("v_head_dim")
    queries = heads * (nope + rope)
    if fields.get("q_lora_rank") is None:
        yield Tensor(part, "self_attn.q_proj", queries, hidden)
    else:
        query_rank = fields.count("q_lora_rank")
        yield Tensor(part, "self_attn.q_a_proj", query_rank, hidden, split=Split.REPLICATED)
        yield norm("self_attn.q_a_layernorm", query_rank)
        yield Tensor(part, "self_attn.q_b_proj", queries, query_rank)
    yield Tensor(part, "self_attn.kv_a_proj_with_mqa", rank + rope, hidden, split=Split.REPLICATED)
    yield norm("self_attn.kv_a_layernorm", rank)
    # decode takes W_UK and W_UV, dequantized once after loading (vLLM layers/attention/mla_attention.py)
    yield Tensor(part, "self_attn.kv_b_proj", heads * (nope + value), rank, dequantized=True)
    yield Tensor(part, "self_attn.o_proj", hidden, heads * value, by_columns=True)


def indexer(model: Backbone) -> Iterator[Tensor]:
    """Replicated; keys and head weights are one bf16 projection whatever the checkpoint's format."""
    fields, hidden = model.fields, model.hidden
    heads, size = fields.count("index_n_heads"), fields.count("index_head_dim")
    rank, prefix = fields.count("q_lora_rank"), "self_attn.indexer"
    yield Tensor(Part.OTHER, f"{prefix}.wq_b", heads * size, rank, split=Split.REPLICATED)
    yield Tensor(Part.OTHER, f"{prefix}.wk", size, hidden, split=Split.REPLICATED, linear=False)
    yield Tensor(Part.OTHER, f"{prefix}.weights_proj", heads, hidden, split=Split.REPLICATED, linear=False)
    yield norm(f"{prefix}.k_norm", 2 * size)


def _delta_net(model: Backbone) -> Iterator[Tensor]:
    """Gated delta net (vLLM layers/mamba/gdn/qwen_gdn_linear_attn.py)."""
    fields, hidden, part, prefix = model.fields, model.hidden, Part.ATTENTION, "linear_attn"
    heads = fields.count("linear_num_value_heads")
    keys = fields.count("linear_num_key_heads") * fields.count("linear_key_head_dim")
    size = fields.count("linear_value_head_dim")
    values = heads * size
    # Qwen3-Next stores two fused projections, Qwen3.5 the four of them
    fused = model.architecture.startswith("Qwen3Next")
    yield Tensor(part, f"{prefix}.{'in_proj_qkvz' if fused else 'in_proj_qkv'}", 2 * keys + values, hidden)
    yield Tensor(part, f"{prefix}.{'in_proj_qkvz' if fused else 'in_proj_z'}", values, hidden)
    yield Tensor(part, f"{prefix}.{'in_proj_ba' if fused else 'in_proj_b'}", heads, hidden)
    yield Tensor(part, f"{prefix}.{'in_proj_ba' if fused else 'in_proj_a'}", heads, hidden)
    kernel = fields.count("linear_conv_kernel_dim")
    yield Tensor(part, f"{prefix}.conv1d", 2 * keys + values, kernel, linear=False)
    yield Tensor(part, f"{prefix}.out_proj", hidden, values, by_columns=True)
    yield Tensor(Part.OTHER, f"{prefix}.dt_bias", heads, linear=False)
    yield Tensor(Part.OTHER, f"{prefix}.A_log", heads, linear=False)
    yield norm(f"{prefix}.norm", size)


def mamba(model: Backbone, prefix: str) -> Iterator[Tensor]:
    """Mamba-2 (vLLM layers/mamba/mamba_mixer2.py): groups are replicated once ranks outnumber them."""
    fields, hidden, part = model.fields, model.hidden, Part.ATTENTION
    heads = fields.count("mamba_num_heads", "mamba_n_heads")
    inner = heads * fields.count("mamba_head_dim", "mamba_d_head")
    groups = fields.count("n_groups", "mamba_n_groups")
    states = 2 * groups * fields.count("ssm_state_size", "mamba_d_state")
    kernel = fields.count("conv_kernel", "mamba_d_conv")
    bias = fields.flag("use_bias", "mamba_proj_bias", default=False)
    conv_bias = fields.flag("use_conv_bias", "mamba_conv_bias", default=True)
    yield Tensor(part, f"{prefix}.in_proj", 2 * inner + heads, hidden, bias=bias)
    yield Tensor(part, f"{prefix}.in_proj", states, hidden, split=Split.HEADS, heads=groups, bias=bias)
    yield Tensor(part, f"{prefix}.conv1d", inner, kernel, linear=False, bias=conv_bias)
    yield Tensor(
        part, f"{prefix}.conv1d", states, kernel, split=Split.HEADS, heads=groups, linear=False, bias=conv_bias
    )
    yield Tensor(part, f"{prefix}.out_proj", hidden, inner, by_columns=True, bias=bias)
    yield Tensor(Part.OTHER, f"{prefix}.A_D_dt", 3 * heads, linear=False)
    if fields.flag("mamba_rms_norm", default=model.architecture != "FalconH1ForCausalLM"):
        yield Tensor(Part.OTHER, f"{prefix}.norm", inner, linear=False)


def _short_convolution(model: Backbone) -> Iterator[Tensor]:
    """LFM2's gated convolution (vLLM layers/mamba/short_conv.py)."""
    fields, hidden = model.fields, model.hidden
    bias = fields.flag("conv_bias", default=False)
    yield Tensor(Part.ATTENTION, "conv.in_proj", 3 * hidden, hidden, bias=bias)
    kernel = fields.count("conv_L_cache")
    yield Tensor(Part.ATTENTION, "conv.conv", hidden, kernel, linear=False, bias=bias)
    yield Tensor(Part.ATTENTION, "conv.out_proj", hidden, hidden, by_columns=True, bias=bias)
