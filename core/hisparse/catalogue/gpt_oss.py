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
        weight_bytes=14_438_087_808,
        weight_source=(
            "MXFP4 experts as the engine keeps them, one side padded from 2,880 to 3,072, the rest in BF16, "
            "counted from the geometry (files: 13,761,264,768 bytes; 13.47 GiB in a public vLLM log)"
        ),
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
        weight_bytes=69_309_753_984,
        weight_source=(
            "MXFP4 experts as the engine keeps them, one side padded from 2,880 to 3,072, the rest in BF16, "
            "counted from the geometry (files: 65,248,815,744 bytes)"
        ),
        source="config.json as copied in ai-dynamo/aiconfigurator (aiconfigurator-core 0.12.0)",
    ),
)
