"""Llama 3 of Meta, and what was tuned from it: dense, grouped-query attention."""

from __future__ import annotations

from typing import Any

from hisparse.catalogue.entry import Entry

_LLAMA_3_1_70B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 80,
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 128_256,
    "tie_word_embeddings": False,
    "max_position_embeddings": 131_072,
    "rope_theta": 500_000,
    "rope_scaling": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "torch_dtype": "bfloat16",
}

ENTRIES: tuple[Entry, ...] = (
    Entry(
        repo="meta-llama/Llama-3.1-8B-Instruct",
        aliases=(
            "meta-llama/Llama-3.1-8B",
            "meta-llama/Meta-Llama-3.1-8B-Instruct",
            "deepseek-ai/DeepSeek-R1-Distill-Llama-8B",
        ),
        config={
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "num_hidden_layers": 32,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "vocab_size": 128_256,
            "tie_word_embeddings": False,
            "max_position_embeddings": 131_072,
            "rope_theta": 500_000,
            "rope_scaling": {
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
                "rope_type": "llama3",
            },
            "torch_dtype": "bfloat16",
        },
        weight_bytes=2 * 8_030_261_248,
        weight_source="8,030,261,248 parameters x 2 bytes, counted from the geometry",
        source="config.json as copied in ai-dynamo/aiconfigurator (aiconfigurator-core 0.12.0)",
    ),
    Entry(
        repo="meta-llama/Llama-3.1-70B-Instruct",
        aliases=(
            "meta-llama/Llama-3.1-70B",
            "meta-llama/Meta-Llama-3.1-70B-Instruct",
            "meta-llama/Llama-3.3-70B-Instruct",
            "deepseek-ai/DeepSeek-R1-Distill-Llama-70B",
        ),
        config=_LLAMA_3_1_70B,
        weight_bytes=2 * 70_553_706_496,
        weight_source="70,553,706,496 parameters x 2 bytes, counted from the geometry",
        source="config.json as copied in ai-dynamo/aiconfigurator (aiconfigurator-core 0.12.0)",
    ),
    Entry(
        repo="RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic",
        config=_LLAMA_3_1_70B
        | {
            "quantization_config": {
                "quant_method": "compressed-tensors",
                "format": "float-quantized",
                "config_groups": {
                    "group_0": {
                        "targets": ["Linear"],
                        "weights": {
                            "num_bits": 8,
                            "type": "float",
                            "symmetric": True,
                            "strategy": "channel",
                            "dynamic": False,
                        },
                    },
                },
                "ignore": ["lm_head"],
            }
        },
        weight_bytes=72_683_241_472,
        weight_source=(
            "linear layers in 1 byte with a 4-byte scale per output channel, embeddings and head in 2, counted from "
            "the geometry: 67.7 GiB, as 2 x 33.88 GiB in a public vLLM log"
        ),
        source=(
            "config.json of Llama-3.1-70B as copied in ai-dynamo/aiconfigurator (aiconfigurator-core 0.12.0); "
            "quantisation: scheme FP8_DYNAMIC of llm-compressor, all linear layers but the head (model card)"
        ),
    ),
    Entry(
        repo="meta-llama/Llama-3.1-405B-Instruct",
        aliases=("meta-llama/Llama-3.1-405B", "meta-llama/Meta-Llama-3.1-405B-Instruct"),
        config={
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "num_hidden_layers": 126,
            "hidden_size": 16384,
            "intermediate_size": 53248,
            "num_attention_heads": 128,
            "num_key_value_heads": 8,
            "vocab_size": 128_256,
            "tie_word_embeddings": False,
            "max_position_embeddings": 131_072,
            "rope_theta": 500_000,
            "rope_scaling": {
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
                "rope_type": "llama3",
            },
            "torch_dtype": "bfloat16",
        },
        weight_bytes=2 * 405_853_388_800,
        weight_source="405,853,388,800 parameters x 2 bytes, counted from the geometry",
        source="config.json as copied in ai-dynamo/aiconfigurator (aiconfigurator-core 0.12.0)",
    ),
    Entry(
        repo="meta-llama/Llama-3.2-1B-Instruct",
        aliases=("meta-llama/Llama-3.2-1B",),
        config={
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "num_hidden_layers": 16,
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 64,
            "vocab_size": 128_256,
            "tie_word_embeddings": True,
            "max_position_embeddings": 131_072,
            "rope_theta": 500_000,
            "rope_scaling": {
                "factor": 32.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
                "rope_type": "llama3",
            },
            "torch_dtype": "bfloat16",
        },
        weight_bytes=2 * 1_235_814_400,
        weight_source="1,235,814,400 parameters x 2 bytes, counted from the geometry, the tied embedding once",
        source="geometry as in litgpt 0.5.13, which cites the config.json",
    ),
    Entry(
        repo="meta-llama/Llama-3.2-3B-Instruct",
        aliases=("meta-llama/Llama-3.2-3B",),
        config={
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "num_hidden_layers": 28,
            "hidden_size": 3072,
            "intermediate_size": 8192,
            "num_attention_heads": 24,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "vocab_size": 128_256,
            "tie_word_embeddings": True,
            "max_position_embeddings": 131_072,
            "rope_theta": 500_000,
            "rope_scaling": {
                "factor": 32.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
                "rope_type": "llama3",
            },
            "torch_dtype": "bfloat16",
        },
        weight_bytes=2 * 3_212_749_824,
        weight_source="3,212,749,824 parameters x 2 bytes, counted from the geometry, the tied embedding once",
        source="geometry as in litgpt 0.5.13, which cites the config.json",
    ),
)
