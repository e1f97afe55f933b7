"""GLM: DSA from GLM-5 on, KDA and DSA in GLM-5.3-Flash, grouped-query attention before."""

from __future__ import annotations

from typing import Any

from hisparse.catalogue.entry import Entry
from hisparse.units import GIB

_FLASH_LAYERS: list[str] = [*[*["linear_attention"] * 3, "deepseek_sparse_attention"] * 11, "linear_attention"]

_GLM_5_3: dict[str, Any] = {
    "architectures": ["GlmMoeDsaForCausalLM"],
    "model_type": "glm_moe_dsa",
    "num_hidden_layers": 78,
    "num_nextn_predict_layers": 1,
    "hidden_size": 6144,
    "intermediate_size": 12288,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "head_dim": 192,
    "q_lora_rank": 2048,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 192,
    "qk_rope_head_dim": 64,
    "v_head_dim": 256,
    "index_head_dim": 128,
    "index_n_heads": 32,
    "index_topk": 2048,
    "index_topk_freq": 4,
    "index_skip_topk_offset": 3,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "first_k_dense_replace": 3,
    "vocab_size": 154_880,
    "tie_word_embeddings": False,
    "max_position_embeddings": 1_048_576,
    "rope_parameters": {"rope_theta": 8_000_000, "rope_type": "default"},
    "dtype": "bfloat16",
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128], "fmt": "e4m3"},
}

_GLM_5_3_BF16 = {key: value for key, value in _GLM_5_3.items() if key != "quantization_config"}

_GLM_5_3_FLASH: dict[str, Any] = {
    "architectures": ["Glm5NextForConditionalGeneration"],
    "model_type": "glm5_next",
    "text_config": {
        "model_type": "glm5_next_text",
        "num_hidden_layers": 45,
        "num_nextn_predict_layers": 1,
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_attention_heads": 64,
        "num_key_value_heads": 64,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 256,
        "qk_rope_head_dim": 0,
        "v_head_dim": 256,
        "mla_use_nope": True,
        "index_head_dim": 128,
        "index_n_heads": 32,
        "index_topk": 2048,
        "index_kpool": 4,
        "index_kpool_compress": True,
        "index_kpool_always_select_tail": True,
        "layer_types": _FLASH_LAYERS,
        "linear_attn_config": {"num_heads": 64, "head_dim": 128, "short_conv_kernel_size": 4},
        # the same three as Transformers and vLLM name them once they have read the file
        "linear_num_heads": 64,
        "linear_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "n_routed_experts": 288,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 2048,
        "first_k_dense_replace": 3,
        "vocab_size": 154_880,
        "tie_word_embeddings": False,
        "max_position_embeddings": 1_048_576,
        "dtype": "bfloat16",
    },
}

_GLM_5_1: dict[str, Any] = {
    "architectures": ["GlmMoeDsaForCausalLM"],
    "model_type": "glm_moe_dsa",
    "num_hidden_layers": 78,
    "num_nextn_predict_layers": 1,
    "hidden_size": 6144,
    "intermediate_size": 12288,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "head_dim": 64,
    "q_lora_rank": 2048,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 192,
    "qk_rope_head_dim": 64,
    "v_head_dim": 256,
    "index_head_dim": 128,
    "index_n_heads": 32,
    "index_topk": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "first_k_dense_replace": 3,
    "vocab_size": 154_880,
    "tie_word_embeddings": False,
    "max_position_embeddings": 202_752,
    "rope_parameters": {"rope_theta": 1_000_000, "rope_type": "default"},
    "dtype": "bfloat16",
}

ENTRIES: tuple[Entry, ...] = (
    Entry(
        repo="zai-org/GLM-5.3",
        aliases=("zai-org/GLM-5.3-FP8",),
        config=_GLM_5_3,
        weight_bytes=7_037 * GIB // 10,
        weight_source="FP8 checkpoint, 703.7 GiB (vLLM HiSparse concurrency calculator: 19.556 + 684.167 GiB)",
        source="config.json as copied in ai-dynamo/aiconfigurator (aiconfigurator-core 0.12.0; the FP8 repo)",
    ),
    Entry(
        repo="zai-org/GLM-5.3-BF16",
        config=_GLM_5_3_BF16,
        weight_bytes=1_506_659_880_960,
        weight_source="753,329,940,480 parameters x 2 bytes, counted from the geometry, the MTP layer included",
        source="config.json as copied in ai-dynamo/aiconfigurator (aiconfigurator-core 0.12.0), unquantised",
    ),
    Entry(
        repo="zai-org/GLM-5.2",
        config=_GLM_5_3_BF16,
        weight_bytes=1_506_659_880_960,
        weight_source="753,329,940,480 parameters x 2 bytes, counted from the geometry, the MTP layer included",
        source="config.json as copied in ai-dynamo/aiconfigurator (aiconfigurator-core 0.12.0), unquantised",
    ),
    Entry(
        repo="zai-org/GLM-5.2-FP8",
        config=_GLM_5_3,
        weight_bytes=7_037 * GIB // 10,
        weight_source="FP8 checkpoint, same shape as GLM-5.3: 703.7 GiB",
        source="config.json as copied in ai-dynamo/aiconfigurator (aiconfigurator-core 0.12.0; the FP8 repo)",
    ),
    Entry(
        repo="zai-org/GLM-5.3-Flash",
        config=_GLM_5_3_FLASH | {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}},
        weight_bytes=328_326_771_576,
        weight_source="size of the repo's files (FP8), 305.8 GiB, as listed in a public comparison of checkpoints",
        source=(
            "config.json as trimmed in public tests of freetoken and memra; Glm5NextTextConfig of transformers "
            "5.24 agrees"
        ),
    ),
    Entry(
        repo="zai-org/GLM-5.3-Flash-BF16",
        config=_GLM_5_3_FLASH,
        weight_bytes=642_676_397_788,
        weight_source="size of the repo's files (BF16), 598.5 GiB, as listed in a public comparison of checkpoints",
        source=(
            "config.json as trimmed in public tests of freetoken and memra; Glm5NextTextConfig of transformers "
            "5.24 agrees"
        ),
    ),
    Entry(
        repo="zai-org/GLM-5.1",
        config=_GLM_5_1,
        weight_bytes=2 * 753_864_139_008,
        weight_source=(
            "753,864,139,008 parameters x 2 bytes, counted from the geometry, the MTP layer included (model "
            "card: about 1.5 TB)"
        ),
        source="config.json as copied in ai-dynamo/aiconfigurator (aiconfigurator-core 0.12.0)",
    ),
    Entry(
        repo="zai-org/GLM-5.1-FP8",
        config=_GLM_5_1
        | {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128], "fmt": "e4m3"}},
        weight_bytes=756_087_162_336,
        weight_source=(
            "linear layers in 1 byte with block scales, embeddings and head in 2, counted from the geometry, "
            "the MTP layer included"
        ),
        source="config.json as copied in ai-dynamo/aiconfigurator (aiconfigurator-core 0.12.0)",
    ),
    Entry(
        repo="zai-org/GLM-5",
        config=_GLM_5_1,
        weight_bytes=2 * 753_864_139_008,
        weight_source=(
            "753,864,139,008 parameters x 2 bytes, counted from the geometry, the MTP layer included (model "
            "card: about 1.5 TB)"
        ),
        source="config.json as copied in ai-dynamo/aiconfigurator (aiconfigurator-core 0.12.0)",
    ),
    Entry(
        repo="zai-org/GLM-5-FP8",
        config=_GLM_5_1
        | {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128], "fmt": "e4m3"}},
        weight_bytes=756_087_162_336,
        weight_source=(
            "linear layers in 1 byte with block scales, embeddings and head in 2, counted from the geometry, "
            "the MTP layer included"
        ),
        source="config.json as copied in ai-dynamo/aiconfigurator (aiconfigurator-core 0.12.0)",
    ),
    Entry(
        repo="zai-org/GLM-4.5",
        aliases=("zai-org/GLM-4.5-Base",),
        config={
            "architectures": ["Glm4MoeForCausalLM"],
            "model_type": "glm4_moe",
            "num_hidden_layers": 92,
            "num_nextn_predict_layers": 1,
            "hidden_size": 5120,
            "intermediate_size": 12288,
            "num_attention_heads": 96,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "n_routed_experts": 160,
            "n_shared_experts": 1,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 1536,
            "first_k_dense_replace": 3,
            "vocab_size": 151_552,
            "tie_word_embeddings": False,
            "max_position_embeddings": 131_072,
            "rope_theta": 1_000_000,
            "dtype": "bfloat16",
        },
        weight_bytes=2 * 358_337_791_296,
        weight_source=(
            "358,337,791,296 parameters x 2 bytes, counted from the geometry, the MTP layer and its copies of "
            "embedding and head included"
        ),
        source=(
            "geometry of GLM-4.7 as copied in ai-dynamo/aiconfigurator (the same model class and size); 131,072 "
            "positions as on the model card"
        ),
    ),
    Entry(
        repo="zai-org/GLM-4.5-Air",
        aliases=("zai-org/GLM-4.5-Air-Base",),
        config={
            "architectures": ["Glm4MoeForCausalLM"],
            "model_type": "glm4_moe",
            "num_hidden_layers": 46,
            "num_nextn_predict_layers": 1,
            "hidden_size": 4096,
            "intermediate_size": 10944,
            "num_attention_heads": 96,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "n_routed_experts": 128,
            "n_shared_experts": 1,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 1408,
            "first_k_dense_replace": 1,
            "vocab_size": 151_552,
            "tie_word_embeddings": False,
            "max_position_embeddings": 131_072,
            "rope_theta": 1_000_000,
            "dtype": "bfloat16",
        },
        weight_bytes=2 * 110_468_824_832,
        weight_source=(
            "110,468,824,832 parameters x 2 bytes, counted from the geometry, the MTP layer and its copies of "
            "embedding and head included"
        ),
        source="defaults of Glm4MoeConfig in transformers 5.24, which are those of this model",
    ),
    Entry(
        repo="zai-org/GLM-4-32B-0414",
        aliases=("zai-org/GLM-Z1-32B-0414", "THUDM/GLM-4-32B-0414", "THUDM/GLM-Z1-32B-0414"),
        config={
            "architectures": ["Glm4ForCausalLM"],
            "model_type": "glm4",
            "num_hidden_layers": 61,
            "hidden_size": 6144,
            "intermediate_size": 23040,
            "num_attention_heads": 48,
            "num_key_value_heads": 2,
            "head_dim": 128,
            "vocab_size": 151_552,
            "tie_word_embeddings": False,
            "max_position_embeddings": 32768,
            "rope_theta": 10000,
            "dtype": "bfloat16",
        },
        weight_bytes=2 * 32_566_487_552,
        weight_source="32,566,487,552 parameters x 2 bytes, counted from the geometry",
        source=(
            "GGUF metadata of the model in public llama.cpp logs (ik_llama.cpp pull request 344); 32.57e9 "
            "parameters there"
        ),
    ),
    Entry(
        repo="zai-org/GLM-4-9B-0414",
        aliases=("zai-org/GLM-Z1-9B-0414", "THUDM/GLM-4-9B-0414", "THUDM/GLM-Z1-9B-0414"),
        config={
            "architectures": ["Glm4ForCausalLM"],
            "model_type": "glm4",
            "num_hidden_layers": 40,
            "hidden_size": 4096,
            "intermediate_size": 13696,
            "num_attention_heads": 32,
            "num_key_value_heads": 2,
            "head_dim": 128,
            "vocab_size": 151_552,
            "tie_word_embeddings": False,
            "max_position_embeddings": 32768,
            "dtype": "bfloat16",
        },
        weight_bytes=2 * 9_400_279_040,
        weight_source="9,400,279,040 parameters x 2 bytes, counted from the geometry",
        source="defaults of Glm4Config in transformers 5.24; 32,768 positions as in the xinference documentation",
    ),
    Entry(
        repo="zai-org/glm-4-9b-chat-hf",
        aliases=("THUDM/glm-4-9b-chat-hf",),
        config={
            "architectures": ["GlmForCausalLM"],
            "model_type": "glm",
            "num_hidden_layers": 40,
            "hidden_size": 4096,
            "intermediate_size": 13696,
            "num_attention_heads": 32,
            "num_key_value_heads": 2,
            "head_dim": 128,
            "vocab_size": 151_552,
            "tie_word_embeddings": False,
            "max_position_embeddings": 131_072,
            "dtype": "bfloat16",
        },
        weight_bytes=2 * 9_399_951_360,
        weight_source="9,399,951,360 parameters x 2 bytes, counted from the geometry",
        source="defaults of GlmConfig in transformers 5.24, which are those of this model",
    ),
)
