"""Models that need no look-up: their config.json as far as the planner reads it, with sources.

To add one, see CONTRIBUTING.md. A test loads every entry.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hisparse.units import GIB


@dataclass(frozen=True)
class Entry:
    """One model. aliases are other repos with the same geometry and weights."""

    repo: str
    config: Mapping[str, Any]
    weight_bytes: int
    weight_source: str
    source: str
    aliases: tuple[str, ...] = field(default=())


_GLM_5_SHARED_INDEX: Mapping[str, Any] = {
    "architectures": ["GlmMoeDsaForCausalLM"],
    "model_type": "glm_moe_dsa",
    "num_hidden_layers": 78,
    "num_nextn_predict_layers": 1,
    "hidden_size": 6144,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "kv_lora_rank": 512,
    "q_lora_rank": 2048,
    "qk_rope_head_dim": 64,
    "index_head_dim": 128,
    "index_n_heads": 32,
    "n_routed_experts": 256,
    "moe_intermediate_size": 2048,
    "first_k_dense_replace": 3,
    "index_topk": 2048,
    "index_topk_freq": 4,
    "index_skip_topk_offset": 3,
    "max_position_embeddings": 1_048_576,
    "rope_theta": 8_000_000,
    "dtype": "bfloat16",
    "quantization_config": {"quant_method": "fp8"},
}

ENTRIES: tuple[Entry, ...] = (
    Entry(
        repo="zai-org/GLM-5.3",
        aliases=("zai-org/GLM-5.3-FP8",),
        config=_GLM_5_SHARED_INDEX,
        weight_bytes=7_037 * GIB // 10,
        weight_source="FP8 checkpoint, 703.7 GiB (vLLM HiSparse concurrency calculator: 19.556 + 684.167 GiB)",
        source="GlmMoeDsaConfig and public transcriptions of the config.json",
    ),
    Entry(
        repo="zai-org/GLM-5.2",
        aliases=("zai-org/GLM-5.2-FP8",),
        config=_GLM_5_SHARED_INDEX,
        weight_bytes=7_037 * GIB // 10,
        weight_source="FP8 checkpoint, same shape as GLM-5.3: 703.7 GiB",
        source="GlmMoeDsaConfig; vllm recipes",
    ),
    Entry(
        repo="deepseek-ai/DeepSeek-V3.2",
        aliases=("deepseek-ai/DeepSeek-V3.2-Exp",),
        config={
            "architectures": ["DeepseekV32ForCausalLM"],
            "model_type": "deepseek_v32",
            "num_hidden_layers": 61,
            "num_nextn_predict_layers": 1,
            "hidden_size": 7168,
            "num_attention_heads": 128,
            "num_key_value_heads": 128,
            "kv_lora_rank": 512,
            "q_lora_rank": 1536,
            "qk_rope_head_dim": 64,
            "index_head_dim": 128,
            "index_n_heads": 64,
            "n_routed_experts": 256,
            "moe_intermediate_size": 2048,
            "first_k_dense_replace": 3,
            "index_topk": 2048,
            "max_position_embeddings": 163_840,
            "rope_theta": 10_000,
            "rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096},
            "dtype": "bfloat16",
            "quantization_config": {"quant_method": "fp8"},
        },
        weight_bytes=690_000_000_000,
        weight_source="about 690 GB in FP8 (671B parameters, the indexers and the MTP layer); not verified to the GB",
        source="config.json of the public repo",
    ),
    Entry(
        repo="meta-llama/Llama-3.1-8B-Instruct",
        aliases=("meta-llama/Llama-3.1-8B", "meta-llama/Meta-Llama-3.1-8B-Instruct"),
        config={
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "num_hidden_layers": 32,
            "hidden_size": 4096,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 131_072,
            "rope_theta": 500_000,
            "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192},
            "dtype": "bfloat16",
        },
        weight_bytes=16_060_522_496,
        weight_source="8,030,261,248 parameters x 2 bytes",
        source="config.json of the public repo",
    ),
    Entry(
        repo="meta-llama/Llama-3.1-70B-Instruct",
        aliases=("meta-llama/Llama-3.1-70B", "meta-llama/Llama-3.3-70B-Instruct"),
        config={
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "num_hidden_layers": 80,
            "hidden_size": 8192,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 131_072,
            "rope_theta": 500_000,
            "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192},
            "dtype": "bfloat16",
        },
        weight_bytes=141_107_412_992,
        weight_source="70,553,706,496 parameters x 2 bytes",
        source="config.json of the public repo",
    ),
    Entry(
        repo="Qwen/Qwen2-72B-Instruct",
        aliases=("Qwen/Qwen2-72B", "Qwen/Qwen2.5-72B-Instruct"),
        config={
            "architectures": ["Qwen2ForCausalLM"],
            "model_type": "qwen2",
            "num_hidden_layers": 80,
            "hidden_size": 8192,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "max_position_embeddings": 32_768,
            "rope_theta": 1_000_000,
            "use_sliding_window": False,
            "sliding_window": 131_072,
            "dtype": "bfloat16",
        },
        weight_bytes=145_412_407_296,
        weight_source="72,706,203,648 parameters x 2 bytes",
        source="config.json of the public repo",
    ),
    Entry(
        repo="shape/dense-32b",
        config={
            "architectures": ["Qwen3ForCausalLM"],
            "num_hidden_layers": 40,
            "hidden_size": 5120,
            "num_attention_heads": 40,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 1_048_576,
            "dtype": "bfloat16",
        },
        weight_bytes=64_000_000_000,
        weight_source="32e9 parameters x 2 bytes",
        source="no public model: the dense 32B shape of published claims, kept so that they can be checked",
    ),
)

_BY_NAME = {name.lower(): entry for entry in ENTRIES for name in (entry.repo, *entry.aliases)}


def lookup(name: str) -> Entry | None:
    """The entry of a repo; the organisation may be left out, case does not matter."""
    wanted = name.lower()
    if wanted in _BY_NAME:
        return _BY_NAME[wanted]
    if "/" in wanted:
        return None
    return next((entry for known, entry in _BY_NAME.items() if known.rsplit("/", 1)[-1] == wanted), None)


def suggest(name: str) -> str | None:
    """The known repo whose name is nearest, if one is near."""
    names = {known.rsplit("/", 1)[-1]: known for known in _BY_NAME}
    near = difflib.get_close_matches(name.lower().rsplit("/", 1)[-1], names, n=1, cutoff=0.75)
    if not near:
        return None
    entry = _BY_NAME[names[near[0]]]
    return next(known for known in (entry.repo, *entry.aliases) if known.lower() == names[near[0]])
