"""Gemma 3 and 4: five layers of a sliding window to one of full attention."""

from __future__ import annotations

from hisparse.catalogue.entry import Entry
from hisparse.units import GIB

ENTRIES: tuple[Entry, ...] = (
    Entry(
        repo="google/gemma-3-1b-it",
        aliases=("google/gemma-3-1b-pt",),
        config={
            "architectures": ["Gemma3ForCausalLM"],
            "model_type": "gemma3_text",
            "num_hidden_layers": 26,
            "hidden_size": 1152,
            "intermediate_size": 6912,
            "num_attention_heads": 4,
            "num_key_value_heads": 1,
            "head_dim": 256,
            "sliding_window": 512,
            "sliding_window_pattern": 6,
            "vocab_size": 262_144,
            "tie_word_embeddings": True,
            "max_position_embeddings": 32768,
            "rope_theta": 1_000_000,
            "dtype": "bfloat16",
        },
        weight_bytes=2 * 999_885_952,
        weight_source="999,885,952 parameters x 2 bytes, counted from the geometry, the tied embedding once",
        source="geometry as in litgpt 0.5.13, which cites the config.json; 32,768 positions as on the model card",
    ),
    Entry(
        repo="google/gemma-3-4b-it",
        aliases=("google/gemma-3-4b-pt",),
        config={
            "architectures": ["Gemma3ForConditionalGeneration"],
            "model_type": "gemma3",
            "text_config": {
                "model_type": "gemma3_text",
                "num_hidden_layers": 34,
                "hidden_size": 2560,
                "intermediate_size": 10240,
                "num_attention_heads": 8,
                "num_key_value_heads": 4,
                "head_dim": 256,
                "sliding_window": 1024,
                "sliding_window_pattern": 6,
                "vocab_size": 262_208,
                "tie_word_embeddings": True,
                "max_position_embeddings": 131_072,
                "rope_theta": 1_000_000,
                "rope_scaling": {"rope_type": "linear", "factor": 8.0},
            },
            "dtype": "bfloat16",
        },
        weight_bytes=2 * 4_300_079_472,
        weight_source=(
            "4,300,079,472 parameters x 2 bytes, counted from the geometry, the tied embedding once, the vision "
            "tower included"
        ),
        source="geometry as in litgpt 0.5.13, which cites the config.json; defaults of Gemma3TextConfig written out",
    ),
    Entry(
        repo="google/gemma-3-12b-it",
        aliases=("google/gemma-3-12b-pt",),
        config={
            "architectures": ["Gemma3ForConditionalGeneration"],
            "model_type": "gemma3",
            "text_config": {
                "model_type": "gemma3_text",
                "num_hidden_layers": 48,
                "hidden_size": 3840,
                "intermediate_size": 15360,
                "num_attention_heads": 16,
                "num_key_value_heads": 8,
                "head_dim": 256,
                "sliding_window": 1024,
                "sliding_window_pattern": 6,
                "vocab_size": 262_208,
                "tie_word_embeddings": True,
                "max_position_embeddings": 131_072,
                "rope_theta": 1_000_000,
                "rope_scaling": {"rope_type": "linear", "factor": 8.0},
            },
            "dtype": "bfloat16",
        },
        weight_bytes=2 * 12_187_325_040,
        weight_source=(
            "12,187,325,040 parameters x 2 bytes, counted from the geometry, the tied embedding once, the "
            "vision tower included"
        ),
        source="geometry as in litgpt 0.5.13, which cites the config.json; defaults of Gemma3TextConfig written out",
    ),
    Entry(
        repo="google/gemma-3-27b-it",
        aliases=("google/gemma-3-27b-pt",),
        config={
            "architectures": ["Gemma3ForConditionalGeneration"],
            "model_type": "gemma3",
            "text_config": {
                "model_type": "gemma3_text",
                "num_hidden_layers": 62,
                "hidden_size": 5376,
                "intermediate_size": 21504,
                "num_attention_heads": 32,
                "num_key_value_heads": 16,
                "head_dim": 128,
                "sliding_window": 1024,
                "sliding_window_pattern": 6,
                "vocab_size": 262_208,
                "tie_word_embeddings": True,
                "max_position_embeddings": 131_072,
                "rope_theta": 1_000_000,
                "rope_scaling": {"rope_type": "linear", "factor": 8.0},
            },
            "dtype": "bfloat16",
        },
        weight_bytes=2 * 27_432_406_640,
        weight_source=(
            "27,432,406,640 parameters x 2 bytes, counted from the geometry, the tied embedding once, the "
            "vision tower included"
        ),
        source="geometry as in litgpt 0.5.13, which cites the config.json; defaults of Gemma3TextConfig written out",
    ),
    Entry(
        repo="google/gemma-4-31B-it",
        aliases=("google/gemma-4-31B",),
        config={
            "architectures": ["Gemma4ForConditionalGeneration"],
            "model_type": "gemma4",
            "text_config": {
                "model_type": "gemma4_text",
                "num_hidden_layers": 60,
                "hidden_size": 5376,
                "intermediate_size": 21504,
                "num_attention_heads": 32,
                "num_key_value_heads": 16,
                "head_dim": 256,
                "num_global_key_value_heads": 4,
                "global_head_dim": 512,
                "attention_k_eq_v": True,
                "num_kv_shared_layers": 0,
                "layer_types": [*["sliding_attention"] * 5, "full_attention"] * 10,
                "sliding_window": 1024,
                "vocab_size": 262_144,
                "tie_word_embeddings": True,
                "max_position_embeddings": 262_144,
                "rope_parameters": {
                    "full_attention": {
                        "partial_rotary_factor": 0.25,
                        "rope_theta": 1_000_000,
                        "rope_type": "proportional",
                    },
                    "sliding_attention": {"rope_theta": 10000, "rope_type": "default"},
                },
                "dtype": "bfloat16",
            },
            "tie_word_embeddings": True,
            "dtype": "bfloat16",
        },
        weight_bytes=5_899 * GIB // 100,
        weight_source="58.99 GiB in a public vLLM 0.26 log (BF16)",
        source=(
            "config.json as copied in ai-dynamo/aiconfigurator (aiconfigurator-core 0.12.0; the NVFP4 copy, "
            "without its quantisation)"
        ),
    ),
)
