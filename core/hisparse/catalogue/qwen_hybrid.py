"""Qwen3-Next, Qwen3.5 and Qwen3.6: three layers of linear attention (gated DeltaNet) to one of full attention."""

from __future__ import annotations

from hisparse.catalogue.entry import Entry

ENTRIES: tuple[Entry, ...] = (
    Entry(
        repo="Qwen/Qwen3-Next-80B-A3B-Instruct",
        aliases=("Qwen/Qwen3-Next-80B-A3B-Thinking",),
        config={
            "architectures": ["Qwen3NextForCausalLM"],
            "model_type": "qwen3_next",
            "num_hidden_layers": 48,
            "hidden_size": 2048,
            "intermediate_size": 5120,
            "num_attention_heads": 16,
            "num_key_value_heads": 2,
            "head_dim": 256,
            "full_attention_interval": 4,
            "linear_num_key_heads": 16,
            "linear_num_value_heads": 32,
            "linear_key_head_dim": 128,
            "linear_value_head_dim": 128,
            "linear_conv_kernel_dim": 4,
            "use_sliding_window": False,
            "num_experts": 512,
            "num_experts_per_tok": 10,
            "moe_intermediate_size": 512,
            "shared_expert_intermediate_size": 512,
            "decoder_sparse_step": 1,
            "vocab_size": 151_936,
            "tie_word_embeddings": False,
            "max_position_embeddings": 262_144,
            "rope_theta": 10_000_000,
            "torch_dtype": "bfloat16",
        },
        weight_bytes=2 * 81_324_862_720,
        weight_source=(
            "81,324,862,720 parameters x 2 bytes, counted from the geometry, the MTP layer included; without it "
            "148.4 GiB, as 2 x 74.28 GiB in a public vLLM log"
        ),
        source="config.json as copied in ai-dynamo/aiconfigurator (the Thinking model)",
    ),
    Entry(
        repo="Qwen/Qwen3.5-27B",
        aliases=("Qwen/Qwen3.6-27B",),
        config={
            "architectures": ["Qwen3_5ForConditionalGeneration"],
            "model_type": "qwen3_5",
            "text_config": {
                "model_type": "qwen3_5_text",
                "num_hidden_layers": 64,
                "mtp_num_hidden_layers": 1,
                "hidden_size": 5120,
                "intermediate_size": 17408,
                "num_attention_heads": 24,
                "num_key_value_heads": 4,
                "head_dim": 256,
                "full_attention_interval": 4,
                "layer_types": [*["linear_attention"] * 3, "full_attention"] * 16,
                "linear_num_key_heads": 16,
                "linear_num_value_heads": 48,
                "linear_key_head_dim": 128,
                "linear_value_head_dim": 128,
                "linear_conv_kernel_dim": 4,
                "mamba_ssm_dtype": "float32",
                "vocab_size": 248_320,
                "max_position_embeddings": 262_144,
                "rope_parameters": {
                    "mrope_interleaved": True,
                    "mrope_section": [11, 11, 10],
                    "rope_type": "default",
                    "rope_theta": 10_000_000,
                    "partial_rotary_factor": 0.25,
                },
                "dtype": "bfloat16",
            },
            "tie_word_embeddings": False,
        },
        weight_bytes=2 * 27_781_427_952,
        weight_source=(
            "27,781,427,952 parameters x 2 bytes, counted from the geometry, MTP layer and vision tower included"
        ),
        source=(
            "config.json as copied in ai-dynamo/aiconfigurator (aiconfigurator-core 0.12.0); Qwen3.6 has the "
            "same geometry (its NVFP4 copy there)"
        ),
    ),
    Entry(
        repo="Qwen/Qwen3.5-35B-A3B",
        aliases=("Qwen/Qwen3.6-35B-A3B",),
        config={
            "architectures": ["Qwen3_5MoeForConditionalGeneration"],
            "model_type": "qwen3_5_moe",
            "text_config": {
                "model_type": "qwen3_5_moe_text",
                "num_hidden_layers": 40,
                "mtp_num_hidden_layers": 1,
                "hidden_size": 2048,
                "num_attention_heads": 16,
                "num_key_value_heads": 2,
                "head_dim": 256,
                "full_attention_interval": 4,
                "layer_types": [*["linear_attention"] * 3, "full_attention"] * 10,
                "linear_num_key_heads": 16,
                "linear_num_value_heads": 32,
                "linear_key_head_dim": 128,
                "linear_value_head_dim": 128,
                "linear_conv_kernel_dim": 4,
                "mamba_ssm_dtype": "float32",
                "num_experts": 256,
                "num_experts_per_tok": 8,
                "moe_intermediate_size": 512,
                "shared_expert_intermediate_size": 512,
                "vocab_size": 248_320,
                "max_position_embeddings": 262_144,
                "rope_parameters": {
                    "mrope_interleaved": True,
                    "mrope_section": [11, 11, 10],
                    "rope_type": "default",
                    "rope_theta": 10_000_000,
                    "partial_rotary_factor": 0.25,
                },
                "dtype": "bfloat16",
            },
            "tie_word_embeddings": False,
        },
        weight_bytes=2 * 35_951_822_704,
        weight_source=(
            "35,951,822,704 parameters x 2 bytes, counted from the geometry, MTP layer and vision tower included"
        ),
        source=(
            "config.json as copied in ai-dynamo/aiconfigurator (aiconfigurator-core 0.12.0); Qwen3.6 has the "
            "same geometry (its NVFP4 copy there)"
        ),
    ),
)
