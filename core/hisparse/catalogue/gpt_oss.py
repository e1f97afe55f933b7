"""gpt-oss of OpenAI: layers of a sliding window and of full attention in turn."""

from __future__ import annotations

from hisparse.catalogue.entry import Entry

ENTRIES: tuple[Entry, ...] = (
    Entry(
        repo="openai/gpt-oss-20b",
        config={
            "architectures": ["GptOssForCausalLM"],
            "model_type": "gpt_oss",
            "num_hidden_layers": 24,
            "hidden_size": 2880,
            "intermediate_size": 2880,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "head_dim": 64,
            "layer_types": ["sliding_attention", "full_attention"] * 12,
            "sliding_window": 128,
            "num_local_experts": 32,
            "num_experts_per_tok": 4,
            "vocab_size": 201_088,
            "tie_word_embeddings": False,
            "max_position_embeddings": 131_072,
            "rope_theta": 150_000,
            "rope_scaling": {
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "factor": 32.0,
                "original_max_position_embeddings": 4096,
                "rope_type": "yarn",
                "truncate": False,
            },
            "quantization_config": {"quant_method": "mxfp4"},
        },
        weight_bytes=13_761_264_768,
        weight_source="size of the repo's files, MXFP4 experts and the rest in BF16; the engine pads the experts",
        source="config.json as copied in ai-dynamo/aiconfigurator (aiconfigurator-core 0.12.0)",
    ),
    Entry(
        repo="openai/gpt-oss-120b",
        config={
            "architectures": ["GptOssForCausalLM"],
            "model_type": "gpt_oss",
            "num_hidden_layers": 36,
            "hidden_size": 2880,
            "intermediate_size": 2880,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "head_dim": 64,
            "layer_types": ["sliding_attention", "full_attention"] * 18,
            "sliding_window": 128,
            "num_local_experts": 128,
            "num_experts_per_tok": 4,
            "vocab_size": 201_088,
            "tie_word_embeddings": False,
            "max_position_embeddings": 131_072,
            "rope_theta": 150_000,
            "rope_scaling": {
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "factor": 32.0,
                "original_max_position_embeddings": 4096,
                "rope_type": "yarn",
                "truncate": False,
            },
            "quantization_config": {"quant_method": "mxfp4"},
        },
        weight_bytes=65_248_815_744,
        weight_source="size of the repo's files, MXFP4 experts and the rest in BF16; the engine pads the experts",
        source="config.json as copied in ai-dynamo/aiconfigurator (aiconfigurator-core 0.12.0)",
    ),
)
