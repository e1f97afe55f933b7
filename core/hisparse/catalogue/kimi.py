"""Kimi K2: MLA as in DeepSeek-V3."""

from __future__ import annotations

from typing import Any

from hisparse.catalogue.entry import Entry

_KIMI_K2: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "kimi_k2",
    "num_hidden_layers": 61,
    "num_nextn_predict_layers": 0,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 384,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "first_k_dense_replace": 1,
    "vocab_size": 163_840,
    "tie_word_embeddings": False,
    "max_position_embeddings": 131_072,
    "rope_theta": 50000,
    "rope_scaling": {
        "beta_fast": 1.0,
        "beta_slow": 1.0,
        "factor": 32.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
        "type": "yarn",
    },
    "torch_dtype": "bfloat16",
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128], "fmt": "e4m3"},
}

_INT4_EXPERTS: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {
                "num_bits": 4,
                "type": "int",
                "symmetric": True,
                "strategy": "group",
                "group_size": 32,
                "dynamic": False,
            },
        },
    },
    "ignore": [
        "lm_head",
        "re:.*self_attn.*",
        "re:.*shared_experts.*",
        r"re:.*mlp\.(gate|up|gate_up|down)_proj.*",
    ],
}

ENTRIES: tuple[Entry, ...] = (
    Entry(
        repo="moonshotai/Kimi-K2-Instruct",
        aliases=("moonshotai/Kimi-K2-Base",),
        config=_KIMI_K2,
        weight_bytes=1_029_173_196_976,
        weight_source="1,026e9 parameters in FP8 with block scales, counted from the geometry",
        source="config.json as copied in ai-dynamo/aiconfigurator (aiconfigurator-core 0.12.0)",
    ),
    Entry(
        repo="moonshotai/Kimi-K2-Instruct-0905",
        config=_KIMI_K2
        | {
            "max_position_embeddings": 262_144,
            "rope_scaling": {
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "factor": 64.0,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "original_max_position_embeddings": 4096,
                "type": "yarn",
            },
        },
        weight_bytes=1_029_173_196_976,
        weight_source="as Kimi-K2-Instruct: 1,026e9 parameters in FP8 with block scales, counted from the geometry",
        source=(
            "config.json as copied in ai-dynamo/aiconfigurator (aiconfigurator-core 0.12.0; Kimi-K2-Instruct), "
            "with the RoPE scaling of Kimi-K2.5, which has the same 262,144 positions"
        ),
    ),
    Entry(
        repo="moonshotai/Kimi-K2-Thinking",
        config=_KIMI_K2
        | {
            "max_position_embeddings": 262_144,
            "rope_scaling": {
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "factor": 64.0,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "original_max_position_embeddings": 4096,
                "type": "yarn",
            },
            "quantization_config": _INT4_EXPERTS,
        },
        weight_bytes=594_205_305_856,
        weight_source=(
            "routed experts in INT4 with a 2-byte scale per 32, the rest in 2 bytes, counted from the geometry; "
            "about 594 GB"
        ),
        source=(
            "config.json as copied in ai-dynamo/aiconfigurator; RoPE scaling and quantisation as in its copy of "
            "Kimi-K2.5"
        ),
    ),
    Entry(
        repo="moonshotai/Kimi-K2.5",
        config={
            "architectures": ["KimiK25ForConditionalGeneration"],
            "model_type": "kimi_k25",
            "text_config": {
                "architectures": ["DeepseekV3ForCausalLM"],
                "model_type": "kimi_k2",
                "num_hidden_layers": 61,
                "num_nextn_predict_layers": 0,
                "hidden_size": 7168,
                "intermediate_size": 18432,
                "num_attention_heads": 64,
                "num_key_value_heads": 64,
                "q_lora_rank": 1536,
                "kv_lora_rank": 512,
                "qk_nope_head_dim": 128,
                "qk_rope_head_dim": 64,
                "v_head_dim": 128,
                "n_routed_experts": 384,
                "n_shared_experts": 1,
                "num_experts_per_tok": 8,
                "moe_intermediate_size": 2048,
                "first_k_dense_replace": 1,
                "vocab_size": 163_840,
                "tie_word_embeddings": False,
                "max_position_embeddings": 262_144,
                "rope_theta": 50000,
                "rope_scaling": {
                    "beta_fast": 32.0,
                    "beta_slow": 1.0,
                    "factor": 64.0,
                    "mscale": 1.0,
                    "mscale_all_dim": 1.0,
                    "original_max_position_embeddings": 4096,
                    "type": "yarn",
                },
                "dtype": "bfloat16",
                "quantization_config": _INT4_EXPERTS,
            },
            "tie_word_embeddings": False,
            "dtype": "bfloat16",
        },
        weight_bytes=595_205_305_856,
        weight_source="as Kimi-K2-Thinking, and about 1 GB for the vision tower and its projector",
        source="config.json as copied in ai-dynamo/aiconfigurator (aiconfigurator-core 0.12.0)",
    ),
)
