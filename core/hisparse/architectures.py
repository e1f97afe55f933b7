"""Which caches the layers of an architecture keep, read from its config.json.

One reader per family, one row of the table per architecture. Sources: the model files of vLLM 0.33
(model_executor/models), which name the window, the state shapes and the layers without a cache.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from hisparse.config import ConfigFields
from hisparse.errors import SpecError
from hisparse.layers import (
    Cache,
    ChunkedAttention,
    FullAttention,
    IndexerKeys,
    Latent,
    LayerCaches,
    RecurrentState,
    SlidingWindow,
    StateExport,
)


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


def anatomy(fields: ConfigFields, architecture: str) -> Anatomy:
    """The caches of this architecture. Raises SpecError where it is not known or a field is missing."""
    family = FAMILIES.get(architecture)
    if family is None:
        raise SpecError(
            "spec.model.facts.architecture",
            f"{architecture} is not an architecture whose KV cache this planner can size; "
            f"if its attention is that of a known one, name that one here (known: {', '.join(sorted(FAMILIES))})",
        )
    layer_count(fields)  # the first field that is told where several are missing
    return family(fields)


def layer_count(fields: ConfigFields) -> int:
    """Layers of the backbone."""
    pattern = fields.get("hybrid_override_pattern")
    if isinstance(pattern, str) and pattern and fields.get("num_hidden_layers") is None:
        return fields.number("num_hidden_layers", "layers", default=len(pattern))
    return fields.number("num_hidden_layers", "layers")


# --- attention in every layer --------------------------------------------------------------------------------------


def _heads(fields: ConfigFields) -> tuple[int, int, int]:
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


def _full(fields: ConfigFields) -> FullAttention:
    _, kv_heads, head_dim = _heads(fields)
    return FullAttention(kv_heads, head_dim, head_dim)


def _kind(fields: ConfigFields) -> Attention:
    heads, kv_heads, _ = _heads(fields)
    if kv_heads == heads:
        return Attention.MHA
    return Attention.MQA if kv_heads == 1 else Attention.GQA


def _dense(fields: ConfigFields) -> Anatomy:
    """Full attention everywhere; layer_types, or a window that the config switches on, make some layers look less far.

    A language model with latent rows inside a wrapper of another name (Mistral Small 4) is MLA.
    """
    if fields.get("kv_lora_rank") is not None:
        return _mla(fields)
    full = _full(fields)
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


def _alternating(*, full_every: int | None = None) -> Callable[[ConfigFields], Anatomy]:
    """Local and full layers in turns where layer_types does not say: every n-th layer is full."""

    def read(fields: ConfigFields) -> Anatomy:
        full = _full(fields)
        layers = layer_count(fields)
        every = fields.whole("sliding_window_pattern", default=full_every, least=1)
        turns = tuple("sliding_attention" if (i + 1) % every else "full_attention" for i in range(layers))
        return _mixed(fields, full, fields.names("layer_types") or turns, local=full)

    return read


def _gemma4(fields: ConfigFields) -> Anatomy:
    """Full layers have heads of their own number and size (gemma4.py)."""
    local = _full(fields)
    heads = fields.whole("num_global_key_value_heads", default=local.kv_heads, least=1)
    dim = fields.whole("global_head_dim", default=local.key_dim, least=1)
    kinds = fields.names("layer_types") or _turns(fields, every=6)
    return _mixed(fields, FullAttention(heads, dim, dim), kinds, local=local)


def _turns(fields: ConfigFields, *, every: int) -> tuple[str, ...]:
    layers = layer_count(fields)
    return tuple("sliding_attention" if (i + 1) % every else "full_attention" for i in range(layers))


def _llama4(fields: ConfigFields) -> Anatomy:
    """Layers with RoPE look at their chunk, those without at everything (llama4.py)."""
    full = _full(fields)
    layers = layer_count(fields)
    chunk = fields.get("attention_chunk_size")
    rope = fields.get("no_rope_layers")
    every = fields.whole("no_rope_layer_interval", default=4, least=1)
    with_rope = (
        [bool(one) for one in rope]
        if isinstance(rope, list) and rope
        else [bool((i + 1) % every) for i in range(layers)]
    )
    kinds = tuple("chunked_attention" if local and chunk else "full_attention" for local in with_rope)
    return _mixed(fields, full, kinds, local=full)


def _mixed(fields: ConfigFields, full: FullAttention, kinds: tuple[str, ...], *, local: FullAttention) -> Anatomy:
    """Layers by their kinds. Layers that read an earlier layer's keys keep none of their own (num_kv_shared_layers)."""
    layers = layer_count(fields)
    if len(kinds) < layers:
        raise SpecError(
            "spec.model.config",
            f"layer_types names {len(kinds)} of {layers} layers; put the model's whole config.json here",
        )
    owners = layers - fields.whole("num_kv_shared_layers", default=0)
    caches: list[LayerCaches] = [
        (_attention(fields, kind, full, local),) if index < owners else () for index, kind in enumerate(kinds[:layers])
    ]
    looks = {type(cache) for layer in caches for cache in layer}
    label = _kind(fields) if looks == {FullAttention} else Attention.WINDOWED
    return Anatomy(label, tuple(caches), _drafts(fields, (full,)))


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


def _drafts(fields: ConfigFields, layer: LayerCaches) -> tuple[LayerCaches, ...]:
    key = "mtp_num_hidden_layers" if fields.get("num_nextn_predict_layers") is None else "num_nextn_predict_layers"
    return (layer,) * fields.number(key, "mtpLayers", default=0)


# --- latent attention ----------------------------------------------------------------------------------------------


def _latent(fields: ConfigFields) -> Latent:
    rank = fields.number("kv_lora_rank", "kvLoraRank")
    return Latent(rank, fields.number("qk_rope_head_dim", "ropeHeadDim", least=0))


def _mla(fields: ConfigFields) -> Anatomy:
    latent = _latent(fields)
    return Anatomy(Attention.MLA, ((latent,),) * layer_count(fields), _drafts(fields, (latent,)))


def _dsa(fields: ConfigFields) -> Anatomy:
    """Latent rows in every layer, indexer keys in those that choose for themselves (deepseek_v2.py)."""
    latent = _latent(fields)
    layers = layer_count(fields)
    indexer = Indexer(
        layers=_index_layers(fields, layers),
        head_dim=fields.number("index_head_dim", "indexHeadDim"),
        top_k=fields.number("index_topk", "indexTopK"),
    )
    keys = IndexerKeys(indexer.head_dim)
    owners = frozenset(indexer.layers)
    caches: tuple[LayerCaches, ...] = tuple((latent, keys) if i in owners else (latent,) for i in range(layers))
    return Anatomy(Attention.DSA, caches, _drafts(fields, (latent, keys)), indexer)


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


# --- recurrent states beside attention -------------------------------------------------------------------------------


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


def _linear(fields: ConfigFields) -> Anatomy:
    """Gated delta nets, and full attention in every n-th layer (qwen3_next.py, qwen3_5.py)."""
    full, state = _full(fields), _delta_net(fields)
    layers = layer_count(fields)
    every = fields.whole("full_attention_interval", default=4, least=1)
    turns = tuple("linear_attention" if (i + 1) % every else "full_attention" for i in range(layers))
    return _hybrid(fields, fields.names("layer_types") or turns, {"linear_attention": (state,)}, full)


def _hybrid(fields: ConfigFields, kinds: tuple[str, ...], states: Mapping[str, LayerCaches], full: Cache) -> Anatomy:
    layers = layer_count(fields)
    if len(kinds) < layers:
        raise SpecError(
            "spec.model.config",
            f"layer_types names {len(kinds)} of {layers} layers; put the model's whole config.json here",
        )
    known: dict[str, LayerCaches] = {"full_attention": (full,), "attention": (full,), **states}
    unknown = sorted({kind for kind in kinds[:layers] if kind not in known})
    if unknown:
        raise SpecError(
            "spec.model.config",
            f"layer_types has {', '.join(unknown)}, whose cache this planner cannot size in this architecture (known: "
            f"{', '.join(sorted(known))}); name the architecture that has it in model.facts.architecture",
        )
    return Anatomy(Attention.LINEAR, tuple(known[kind] for kind in kinds[:layers]), _drafts(fields, (full,)))


def _nemotron(fields: ConfigFields) -> Anatomy:
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
    letters = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
    pattern = fields.get("hybrid_override_pattern")
    kinds = tuple(letters.get(one, one) for one in pattern) if isinstance(pattern, str) else None
    kinds = kinds or fields.names("layers_block_type") or fields.names("layer_types") or ()
    return _hybrid(fields, kinds, {"mamba": (state,), "mlp": (), "moe": ()}, _full(fields))


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


def _granite_hybrid(fields: ConfigFields) -> Anatomy:
    """Mamba2 and attention by layer_types; a config without Mamba layers is a dense model (granitemoehybrid.py)."""
    kinds = fields.names("layer_types") or fields.names("layers_block_type") or ("attention",) * layer_count(fields)
    full = _full(fields)
    if "mamba" not in kinds:
        return replace(_hybrid(fields, kinds, {}, full), attention=_kind(fields))
    inner = fields.whole("mamba_expand", default=2, least=1) * fields.number("hidden_size", "hiddenSize")
    heads, dim = fields.whole("mamba_n_heads", least=1), fields.whole("mamba_d_head", least=1)
    state = _mamba2(fields, inner=inner, heads=heads, dim=dim, keys=_MAMBA_KEYS)
    return _hybrid(fields, kinds, {"mamba": (state,)}, full)


def _bamba(fields: ConfigFields) -> Anatomy:
    """Mamba2, with attention in the layers of attn_layer_indices (bamba.py)."""
    attending = {int(one) for one in fields.names("attn_layer_indices") or ()}
    kinds = tuple("attention" if i in attending else "mamba" for i in range(layer_count(fields)))
    inner = fields.whole("mamba_expand", default=2, least=1) * fields.number("hidden_size", "hiddenSize")
    heads, dim = fields.whole("mamba_n_heads", least=1), fields.whole("mamba_d_head", least=1)
    state = _mamba2(fields, inner=inner, heads=heads, dim=dim, keys=_MAMBA_KEYS)
    return _hybrid(fields, kinds, {"mamba": (state,)}, _full(fields))


def _falcon_h1(fields: ConfigFields) -> Anatomy:
    """Every layer attends and recurs side by side (falcon_h1.py)."""
    inner = fields.get("mamba_d_ssm")
    if not isinstance(inner, int):
        inner = fields.whole("mamba_expand", default=2, least=1) * fields.number("hidden_size", "hiddenSize")
    heads, dim = fields.whole("mamba_n_heads", least=1), fields.whole("mamba_d_head", least=1)
    state = _mamba2(fields, inner=inner, heads=heads, dim=dim, keys=_MAMBA_KEYS)
    caches: LayerCaches = (_full(fields), state)
    return Anatomy(Attention.LINEAR, (caches,) * layer_count(fields))


def _jamba(fields: ConfigFields) -> Anatomy:
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
    return _hybrid(fields, kinds, {"mamba": (state,)}, _full(fields))


def _lfm2(fields: ConfigFields) -> Anatomy:
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
    return _hybrid(fields, kinds, {"conv": (state,)}, _full(fields))


def _lightning(fields: ConfigFields) -> Anatomy:
    """Lightning attention, with full attention where attn_type_list has a 1 (minimax_text_01.py)."""
    heads, _, dim = _heads(fields)
    state = RecurrentState(heads=heads, rows=dim, columns=dim)
    kinds = tuple("attention" if one == "1" else "linear_attention" for one in fields.names("attn_type_list") or ())
    return _hybrid(fields, kinds, {"linear_attention": (state,)}, _full(fields))


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


def _kimi_linear(fields: ConfigFields) -> Anatomy:
    """Kimi delta attention with MLA in between; linear_attn_config counts layers from 1."""
    state, inner = _kda_of(fields), _linear_config(fields)
    recurring = {int(one) for one in inner.names("kda_layers") or ()}
    layers = layer_count(fields)
    kinds = tuple("linear_attention" if i + 1 in recurring else "attention" for i in range(layers))
    return _hybrid(fields, kinds, {"linear_attention": (state,)}, _latent(fields))


def _glm_flash(fields: ConfigFields) -> Anatomy:
    """Kimi delta attention, and latent rows with pooled indexer keys in between (models/glm5next).

    The ring of keys that are not pooled yet (one small block per request and layer) is not counted.
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
    latent = _latent(fields)
    keys = IndexerKeys(fields.number("index_head_dim", "indexHeadDim"), fields.whole("index_kpool", default=1, least=1))
    kinds = fields.names("layer_types") or ()
    sparse: LayerCaches = (latent, keys)
    known = {"linear_attention": (state,), "deepseek_sparse_attention": sparse, "indexed_attention": sparse}
    found = _hybrid(fields, kinds, {**known, "full_attention": sparse, "attention": sparse}, latent)
    return replace(found, drafts=_drafts(fields, sparse))


# --- the table -------------------------------------------------------------------------------------------------------

Family = Callable[[ConfigFields], Anatomy]

FAMILIES: Final[Mapping[str, Family]] = MappingProxyType(
    {
        **dict.fromkeys(
            (
                "ApertusForCausalLM",
                "ArceeForCausalLM",
                "CohereForCausalLM",
                "DeepseekForCausalLM",
                "Ernie4_5ForCausalLM",
                "Ernie4_5_MoeForCausalLM",
                "ExaoneForCausalLM",
                "Exaone4ForCausalLM",
                "GlmForCausalLM",
                "Glm4ForCausalLM",
                "Glm4MoeForCausalLM",
                "Glm4vMoeForConditionalGeneration",
                "GraniteForCausalLM",
                "GraniteMoeForCausalLM",
                "HunYuanDenseV1ForCausalLM",
                "HunYuanMoEV1ForCausalLM",
                "InternLM2ForCausalLM",
                "InternLM3ForCausalLM",
                "LlamaForCausalLM",
                "LlavaForConditionalGeneration",
                "MiMoForCausalLM",
                "MiniCPMForCausalLM",
                "MiniMaxM2ForCausalLM",
                "MistralForCausalLM",
                "Mistral3ForConditionalGeneration",
                "Ministral3ForCausalLM",
                "MixtralForCausalLM",
                "NemotronForCausalLM",
                "OlmoForCausalLM",
                "Olmo2ForCausalLM",
                "Olmo3ForCausalLM",
                "OlmoeForCausalLM",
                "Phi3ForCausalLM",
                "PhiMoEForCausalLM",
                "PixtralForConditionalGeneration",
                "Qwen2ForCausalLM",
                "Qwen2MoeForCausalLM",
                "Qwen2VLForConditionalGeneration",
                "Qwen2_5_VLForConditionalGeneration",
                "Qwen3ForCausalLM",
                "Qwen3MoeForCausalLM",
                "Qwen3VLForConditionalGeneration",
                "Qwen3VLMoeForConditionalGeneration",
                "SeedOssForCausalLM",
                "SmolLM3ForCausalLM",
                "StableLmForCausalLM",
                "Starcoder2ForCausalLM",
            ),
            _dense,
        ),
        **dict.fromkeys(("Gemma2ForCausalLM", "GptOssForCausalLM"), _alternating(full_every=2)),
        **dict.fromkeys(("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"), _alternating(full_every=6)),
        **dict.fromkeys(("Gemma3nForCausalLM", "Gemma3nForConditionalGeneration"), _alternating(full_every=5)),
        "Cohere2ForCausalLM": _alternating(full_every=4),
        **dict.fromkeys(("Gemma4ForCausalLM", "Gemma4ForConditionalGeneration"), _gemma4),
        **dict.fromkeys(("Llama4ForCausalLM", "Llama4ForConditionalGeneration"), _llama4),
        **dict.fromkeys(
            (
                "DeepseekV2ForCausalLM",
                "DeepseekV3ForCausalLM",
                "KimiK25ForConditionalGeneration",
                "MistralLarge3ForCausalLM",
            ),
            _mla,
        ),
        **dict.fromkeys(("DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM"), _dsa),
        **dict.fromkeys(
            (
                "Qwen3NextForCausalLM",
                "Qwen3_5ForCausalLM",
                "Qwen3_5ForConditionalGeneration",
                "Qwen3_5MoeForCausalLM",
                "Qwen3_5MoeForConditionalGeneration",
                "OlmoHybridForCausalLM",
            ),
            _linear,
        ),
        **dict.fromkeys(("NemotronHForCausalLM", "NemotronH_Nano_VL_V2"), _nemotron),
        "GraniteMoeHybridForCausalLM": _granite_hybrid,
        "BambaForCausalLM": _bamba,
        "FalconH1ForCausalLM": _falcon_h1,
        "JambaForCausalLM": _jamba,
        **dict.fromkeys(("Lfm2ForCausalLM", "Lfm2MoeForCausalLM"), _lfm2),
        **dict.fromkeys(("MiniMaxText01ForCausalLM", "MiniMaxM1ForCausalLM"), _lightning),
        "KimiLinearForCausalLM": _kimi_linear,
        **dict.fromkeys(("Glm5NextForCausalLM", "Glm5NextForConditionalGeneration"), _glm_flash),
    }
)
"""The reader of each architecture; names are those of `architectures` in a config.json."""
