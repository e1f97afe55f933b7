"""The catalogue: every entry is whole, names one model, and weighs what its own geometry says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from hisparse.catalogue import ENTRIES, Entry, lookup, suggest
from hisparse.weights import read_checkpoint

COUNTS = [
    "num_hidden_layers",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "max_position_embeddings",
    "sliding_window",
    "n_routed_experts",
    "num_experts",
    "num_local_experts",
    "moe_intermediate_size",
    "num_experts_per_tok",
    "n_shared_experts",
    "q_lora_rank",
    "kv_lora_rank",
    "qk_nope_head_dim",
    "v_head_dim",
    "index_head_dim",
    "index_n_heads",
    "index_topk",
    "full_attention_interval",
    "linear_num_value_heads",
    "linear_num_key_heads",
    "linear_key_head_dim",
    "linear_value_head_dim",
    "linear_conv_kernel_dim",
]
NEEDED = ("num_hidden_layers", "hidden_size", "num_attention_heads", "max_position_embeddings")
LAYER_KINDS = {"full_attention", "sliding_attention", "linear_attention", "deepseek_sparse_attention"}

each_entry = pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.repo)


def names_of(entry: Entry) -> tuple[str, ...]:
    return (entry.repo, *entry.aliases)


def language_model(config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the language model, those of the file's top level behind them."""
    return {**config, **config.get("text_config", {})}


@each_entry
def test_the_fields_have_the_types_of_a_config(entry: Entry) -> None:
    config = language_model(entry.config)
    assert all(isinstance(name, str) for name in entry.config["architectures"])
    for key in NEEDED:
        assert key in config, key
    for key in COUNTS:
        value = config.get(key)
        assert value is None or (type(value) is int and value > 0), (key, value)
    heads, kv_heads = config["num_attention_heads"], config.get("num_key_value_heads", 1)
    assert heads % kv_heads == 0
    for key in ("qk_rope_head_dim", "shared_expert_intermediate_size", "num_nextn_predict_layers"):
        assert type(config.get(key, 0)) is int
        assert config.get(key, 0) >= 0
    kinds = config.get("layer_types")
    if kinds is not None:
        assert len(kinds) == config["num_hidden_layers"]
        assert set(kinds) <= LAYER_KINDS
    for key in ("rope_scaling", "rope_parameters", "quantization_config"):
        assert isinstance(config.get(key, {}), dict)
    assert (config.get("dtype") or config.get("torch_dtype") or "bfloat16") == "bfloat16"


@each_entry
def test_an_entry_says_where_it_is_from_and_what_it_weighs(entry: Entry) -> None:
    assert len(entry.source) > 10
    assert len(entry.weight_source) > 10
    assert type(entry.weight_bytes) is int
    assert entry.weight_bytes > 900_000_000


def test_a_name_means_one_entry() -> None:
    names = Counter(name.lower() for entry in ENTRIES for name in names_of(entry))
    assert [name for name, count in names.items() if count > 1] == []
    last_parts: dict[str, set[str]] = {}
    for entry in ENTRIES:
        for name in names_of(entry):
            last_parts.setdefault(name.rsplit("/", 1)[-1].lower(), set()).add(entry.repo)
    assert [part for part, repos in last_parts.items() if len(repos) > 1] == []


@each_entry
def test_an_entry_is_found_under_all_its_names(entry: Entry) -> None:
    for name in names_of(entry):
        assert name.count("/") == 1
        assert lookup(name) is entry
        assert lookup(name.upper()) is entry
        assert lookup(name.rsplit("/", 1)[-1]) is entry
        assert suggest(name) is not None


def test_what_is_not_there_is_not_found() -> None:
    assert lookup("some/model") is None
    assert lookup("someone-else/GLM-5.3") is None
    assert lookup("") is None


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("GML-5.3", "zai-org/GLM-5.3"),
        ("zai/GLM-5.3-FP9", "zai-org/GLM-5.3-FP8"),
        ("GLM-5.3-Falsh", "zai-org/GLM-5.3-Flash"),
        ("meta/Llama-3.1-8B-Instrukt", "meta-llama/Llama-3.1-8B-Instruct"),
        ("Qwen/Qwen3-30B-3A", "Qwen/Qwen3-30B-A3B"),
        ("deepseek/DeepSeek-V3.02", "deepseek-ai/DeepSeek-V3.2"),
        ("openai/gpt-os-120b", "openai/gpt-oss-120b"),
        ("gemma3-27b-it", "google/gemma-3-27b-it"),
        ("Kimi-K2-Thinkng", "moonshotai/Kimi-K2-Thinking"),
        ("Mistral-Neemo-Instruct-2407", "mistralai/Mistral-Nemo-Instruct-2407"),
        ("nothing-like-it", None),
        ("", None),
    ],
)
def test_a_slip_has_a_suggestion(typed: str, meant: str | None) -> None:
    assert suggest(typed) == meant


def test_a_quantised_sibling_is_lighter_and_has_the_same_geometry() -> None:
    by_repo = {entry.repo: entry for entry in ENTRIES}
    pairs = [(by_repo[repo.removesuffix("-FP8")], one) for repo, one in by_repo.items() if repo.endswith("-FP8")]
    assert len(pairs) > 5
    for plain, small in pairs:
        assert small.weight_bytes < 0.6 * plain.weight_bytes
        assert "quantization_config" in small.config
        assert {**small.config, "quantization_config": None} == {**plain.config, "quantization_config": None}


@pytest.mark.parametrize(
    "entry", [one for one in ENTRIES if not one.repo.startswith("shape/")], ids=lambda one: one.repo
)
def test_the_weights_agree_with_the_geometry(entry: Entry) -> None:
    """A wrong digit in a size or a field shows here: norms, biases and vision towers are less than the tolerance."""
    assert entry.weight_bytes == pytest.approx(_weight_bytes(entry.config), rel=0.13 if _is_small(entry) else 0.05)


@each_entry
def test_the_format_of_the_weights_is_known(entry: Entry) -> None:
    """A quantisation that is written down in part would be taken as one width for all tensors."""
    counted = read_checkpoint(entry.config)
    if counted is None:
        assert entry.config["architectures"] == ["Glm5NextForConditionalGeneration"]
        return
    assert counted.format.known
    # gpt-oss says the padded size that the engine holds; MTP layers may hold copies of embedding and head
    assert min(abs(entry.weight_bytes - size) for size in counted.readings) < 0.06 * entry.weight_bytes


def _is_small(entry: Entry) -> bool:
    """A vision tower of 0.4e9 parameters is a tenth of the smallest model that has one."""
    return "text_config" in entry.config and entry.weight_bytes < 10_000_000_000


def _weight_bytes(config: Mapping[str, Any]) -> float:
    model = language_model(config)
    hidden, layers = model["hidden_size"], model["num_hidden_layers"]
    embedding: int = model["vocab_size"] * hidden * (1 if model["tie_word_embeddings"] else 2)
    mtp = model.get("num_nextn_predict_layers", 0) or model.get("mtp_num_hidden_layers", 0)
    experts = model.get("n_routed_experts") or model.get("num_experts") or model.get("num_local_experts") or 0
    width = model.get("moe_intermediate_size") or model["intermediate_size"]
    dense = model.get("first_k_dense_replace", 0) if experts else layers + mtp
    shared = model.get("n_shared_experts", 0) * width + model.get("shared_expert_intermediate_size", 0)
    attention = sum(_attention(model, layer) for layer in range(layers + mtp))
    mlp: int = 3 * hidden * (dense * model.get("intermediate_size", 0) + (layers + mtp - dense) * shared)
    routed: int = 3 * hidden * (layers + mtp - dense) * experts * width
    method = (model.get("quantization_config") or {}).get("quant_method")
    if method == "mxfp4":  # 4 bits and a scale of 8 per 32
        return 2 * (embedding + attention + mlp) + routed * 17 / 32
    if method == "compressed-tensors" and experts:  # 4 bits and a scale of 16 per 32
        return 2 * (embedding + attention + mlp) + routed * 9 / 16
    return 2 * embedding + (attention + mlp + routed) * (1 if method else 2)


def _attention(model: Mapping[str, Any], layer: int) -> int:
    """Parameters of the projections of one layer."""
    hidden, heads = model["hidden_size"], model["num_attention_heads"]
    kinds, interval = model.get("layer_types"), model.get("full_attention_interval")
    kind = kinds[layer] if kinds and layer < len(kinds) else "full_attention"
    if not kinds and interval and (layer + 1) % interval:
        kind = "linear_attention"
    if kind == "linear_attention":
        kda = model.get("linear_attn_config")
        if kda:
            return int(4 * hidden * kda["num_heads"] * kda["head_dim"])
        keys = model["linear_num_key_heads"] * model["linear_key_head_dim"]
        values = model["linear_num_value_heads"] * model["linear_value_head_dim"]
        return int(hidden * (2 * keys + 3 * values))
    if "kv_lora_rank" in model:
        query, latent, rope = model["q_lora_rank"], model["kv_lora_rank"], model["qk_rope_head_dim"]
        nope, value = model["qk_nope_head_dim"], model["v_head_dim"]
        indexer = query * model.get("index_n_heads", 0) * model.get("index_head_dim", 0)
        return int(
            hidden * (query + latent + rope + heads * value)
            + heads * (query * (nope + rope) + latent * (nope + value))
            + indexer
        )
    head, kv_heads = model.get("head_dim") or hidden // heads, model["num_key_value_heads"]
    if kind == "full_attention" and "global_head_dim" in model:
        head, kv_heads = model["global_head_dim"], model["num_global_key_value_heads"]
    gated = 2 if interval else 1
    return int(hidden * head * ((1 + gated) * heads + 2 * kv_heads))
