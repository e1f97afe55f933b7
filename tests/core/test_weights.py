"""Weights counted from config.json alone, against published counts and what vLLM logged for one GPU.

Configs are the published config.json files as far as they matter. Counts without "about" are those of the model
cards and of Hugging Face's safetensors metadata. Logged sizes are "Model loading took ... GiB" lines of public logs
(docs and tests/data/kv-logs name them). That line also holds what is no weight: the rotary tables, which
estimates.position_table_bytes counts (131,072 x 128 x 2 bytes are all that Llama-3.1-8B lacks here).
"""

from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisparse.catalogue import ENTRIES, Entry
from hisparse.pipeline import pipeline_split
from hisparse.units import GIB
from hisparse.weights import (
    ARCHITECTURES,
    Checkpoint,
    Parallel,
    Parameters,
    Precision,
    Tensor,
    read_checkpoint,
    read_weights,
    weight_format,
)
from hisparse.weights.module_names import module_names
from hisparse.weights.ranks import held_bytes

Config = dict[str, Any]
ONE = Parallel()
FP8_BLOCKS: Config = {"quant_method": "fp8", "weight_block_size": [128, 128]}
FP8_CHANNELS: Config = {
    "quant_method": "compressed-tensors",
    "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True},
        }
    },
}
INT4_GROUPS: Config = {
    "num_bits": 4,
    "type": "int",
    "strategy": "group",
    "group_size": 32,
    "symmetric": True,
}


def dense(
    name: str,
    layers: int,
    hidden: int,
    heads: tuple[int, int],
    width: int,
    vocabulary: int,
    **more: object,
) -> Config:
    return {
        "architectures": [name],
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads[0],
        "num_key_value_heads": heads[1],
        "intermediate_size": width,
        "vocab_size": vocabulary,
        **more,
    }


def quantized(config: Config, how: Config) -> Config:
    return {**config, "quantization_config": how}


LLAMA, QWEN2, QWEN3, QWEN3_MOE = "LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM"
LLAMA_8B = dense(LLAMA, 32, 4096, (32, 8), 14_336, 128_256)
LLAMA_70B = dense(LLAMA, 80, 8192, (64, 8), 28_672, 128_256)
LLAMA_1B = dense(LLAMA, 16, 2048, (32, 8), 8192, 128_256, head_dim=64, tie_word_embeddings=True)
QWEN2_05B = dense(QWEN2, 24, 896, (14, 2), 4864, 151_936, tie_word_embeddings=True)
QWEN2_7B = dense(QWEN2, 28, 3584, (28, 4), 18_944, 152_064)
QWEN2_72B = dense(QWEN2, 80, 8192, (64, 8), 29_568, 152_064)
QWEN2_MOE = dense(
    "Qwen2MoeForCausalLM",
    24,
    2048,
    (16, 16),
    5632,
    151_936,
    moe_intermediate_size=1408,
    shared_expert_intermediate_size=5632,
    num_experts=60,
    num_experts_per_tok=4,
    decoder_sparse_step=1,
)
QWEN3_06B = dense(QWEN3, 28, 1024, (16, 8), 3072, 151_936, head_dim=128, tie_word_embeddings=True)
QWEN3_32B = dense(QWEN3, 64, 5120, (64, 8), 25_600, 151_936, head_dim=128)
QWEN3_30B = dense(
    QWEN3_MOE,
    48,
    2048,
    (32, 4),
    6144,
    151_936,
    head_dim=128,
    num_experts=128,
    num_experts_per_tok=8,
    moe_intermediate_size=768,
)
QWEN3_235B = dense(
    QWEN3_MOE,
    94,
    4096,
    (64, 4),
    12_288,
    151_936,
    head_dim=128,
    num_experts=128,
    num_experts_per_tok=8,
    moe_intermediate_size=1536,
)
QWEN3_VL_8B: Config = {
    "architectures": ["Qwen3VLForConditionalGeneration"],
    "text_config": dense("", 36, 4096, (32, 8), 12_288, 151_936, head_dim=128),
    "tie_word_embeddings": False,
    "vision_config": {
        "model_type": "qwen3_vl",
        "depth": 27,
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "patch_size": 16,
        "temporal_patch_size": 2,
        "spatial_merge_size": 2,
        "num_position_embeddings": 2304,
        "out_hidden_size": 4096,
        "deepstack_visual_indexes": [8, 16, 24],
    },
}
QWEN3_NEXT = dense(
    "Qwen3NextForCausalLM",
    48,
    2048,
    (16, 2),
    5120,
    151_936,
    head_dim=256,
    full_attention_interval=4,
    num_experts=512,
    num_experts_per_tok=10,
    moe_intermediate_size=512,
    shared_expert_intermediate_size=512,
    linear_conv_kernel_dim=4,
    linear_key_head_dim=128,
    linear_num_key_heads=16,
    linear_num_value_heads=32,
    linear_value_head_dim=128,
)
QWEN35_35B: Config = {
    "architectures": ["Qwen3_5MoeForConditionalGeneration"],
    "tie_word_embeddings": False,
    "text_config": {
        **QWEN3_NEXT,
        "num_hidden_layers": 40,
        "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 10,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "vocab_size": 248_320,
        "mtp_num_hidden_layers": 1,
    },
}
MIXTRAL = dense("MixtralForCausalLM", 32, 4096, (32, 8), 14_336, 32_000, num_local_experts=8, num_experts_per_tok=2)
MINIMAX = dense(
    "MiniMaxM2ForCausalLM",
    62,
    3072,
    (48, 8),
    1536,
    200_064,
    head_dim=128,
    num_local_experts=256,
    num_experts_per_tok=8,
    quantization_config={**FP8_BLOCKS, "modules_to_not_convert": ["gate", "e_score_correction_bias", "lm_head"]},
)
GPT_OSS = dense(
    "GptOssForCausalLM",
    24,
    2880,
    (64, 8),
    2880,
    201_088,
    head_dim=64,
    attention_bias=True,
    num_local_experts=32,
    num_experts_per_tok=4,
    layer_types=["sliding_attention", "full_attention"] * 12,
    quantization_config={
        "quant_method": "mxfp4",
        "modules_to_not_convert": [
            "model.layers.*.self_attn",
            "model.layers.*.mlp.router",
            "model.embed_tokens",
            "lm_head",
        ],
    },
)
MLA: Config = {
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
DEEPSEEK_V2_LITE = dense(
    "DeepseekV2ForCausalLM",
    27,
    2048,
    (16, 16),
    10_944,
    102_400,
    **{**MLA, "q_lora_rank": None},
    moe_intermediate_size=1408,
    n_routed_experts=64,
    n_shared_experts=2,
    num_experts_per_tok=6,
    first_k_dense_replace=1,
)
DEEPSEEK_V2 = dense(
    "DeepseekV2ForCausalLM",
    60,
    5120,
    (128, 128),
    12_288,
    102_400,
    **MLA,
    moe_intermediate_size=1536,
    n_routed_experts=160,
    n_shared_experts=2,
    num_experts_per_tok=6,
    first_k_dense_replace=1,
)
DEEPSEEK_V3 = dense(
    "DeepseekV3ForCausalLM",
    61,
    7168,
    (128, 128),
    18_432,
    129_280,
    **MLA,
    moe_intermediate_size=2048,
    n_routed_experts=256,
    n_shared_experts=1,
    num_experts_per_tok=8,
    first_k_dense_replace=3,
    num_nextn_predict_layers=1,
    quantization_config=FP8_BLOCKS,
)
KIMI_K25: Config = {
    "architectures": ["KimiK25ForConditionalGeneration"],
    "text_config": {
        **DEEPSEEK_V3,
        "num_attention_heads": 64,
        "vocab_size": 163_840,
        "n_routed_experts": 384,
        "first_k_dense_replace": 1,
        "num_nextn_predict_layers": 0,
        "quantization_config": {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": INT4_GROUPS}},
            "ignore": [
                "lm_head",
                "re:.*self_attn.*",
                "re:.*shared_experts.*",
                r"re:.*mlp\.(gate|up|gate_up|down)_proj.*",
            ],
        },
    },
}
GLM5 = dense(
    "GlmMoeDsaForCausalLM",
    78,
    6144,
    (64, 64),
    12_288,
    154_880,
    kv_lora_rank=512,
    q_lora_rank=2048,
    qk_nope_head_dim=192,
    qk_rope_head_dim=64,
    v_head_dim=256,
    index_topk=2048,
    index_n_heads=32,
    index_head_dim=128,
    moe_intermediate_size=2048,
    n_routed_experts=256,
    n_shared_experts=1,
    num_experts_per_tok=8,
    first_k_dense_replace=3,
    num_nextn_predict_layers=1,
)
GLM53 = {**GLM5, "index_topk_freq": 4, "index_skip_topk_offset": 3}
GLM51_NVFP4 = quantized(
    GLM5,
    {
        "quant_method": "modelopt",
        "quant_algo": "NVFP4",
        "ignore": ["lm_head", "model.layers.0.*", "model.layers.1.*", "model.layers.2.*"]
        + [f"model.layers.{i}.{name}*" for i in range(3, 79) for name in ("self_attn", "mlp.shared_experts")],
    },
)
GLM45 = dense(
    "Glm4MoeForCausalLM",
    92,
    5120,
    (96, 8),
    12_288,
    151_552,
    head_dim=128,
    attention_bias=True,
    use_qk_norm=True,
    n_routed_experts=160,
    n_shared_experts=1,
    num_experts_per_tok=8,
    moe_intermediate_size=1536,
    first_k_dense_replace=3,
)
GLM4_9B = dense("Glm4ForCausalLM", 40, 4096, (32, 2), 13_696, 151_552, head_dim=128, attention_bias=True)
GRANITE_8B = dense("GraniteForCausalLM", 40, 4096, (32, 8), 12_800, 49_155, tie_word_embeddings=True)
GRANITE4 = "GraniteMoeHybridForCausalLM"
GRANITE4_MICRO = dense(
    GRANITE4,
    40,
    2560,
    (40, 8),
    8192,
    100_352,
    shared_intermediate_size=8192,
    num_local_experts=0,
    layer_types=["attention"] * 40,
    tie_word_embeddings=True,
)
GRANITE4_TINY = dense(
    GRANITE4,
    40,
    1536,
    (12, 4),
    512,
    100_352,
    shared_intermediate_size=1024,
    num_local_experts=64,
    num_experts_per_tok=6,
    mamba_n_heads=48,
    mamba_d_head=64,
    mamba_d_state=128,
    mamba_n_groups=1,
    mamba_d_conv=4,
    layer_types=(["mamba"] * 5 + ["attention"] + ["mamba"] * 4) * 4,
    tie_word_embeddings=True,
)
MISTRAL_SMALL: Config = {
    "architectures": ["Mistral3ForConditionalGeneration"],
    "spatial_merge_size": 2,
    "text_config": dense("", 40, 5120, (32, 8), 32_768, 131_072, head_dim=128),
    "vision_config": {
        "model_type": "pixtral",
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 24,
        "patch_size": 14,
    },
}
PHI3_MINI = dense("Phi3ForCausalLM", 32, 3072, (32, 32), 8192, 32_064)
OLMO3_7B = dense("Olmo3ForCausalLM", 32, 4096, (32, 32), 11_008, 100_278)
GEMMA2_9B = dense("Gemma2ForCausalLM", 42, 3584, (16, 8), 14_336, 256_000, head_dim=256)
GEMMA3_27B: Config = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "text_config": {
        "num_hidden_layers": 62,
        "hidden_size": 5376,
        "num_attention_heads": 32,
        "num_key_value_heads": 16,
        "intermediate_size": 21_504,
        "head_dim": 128,
    },
    "vision_config": {
        "model_type": "siglip_vision_model",
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "num_hidden_layers": 27,
        "patch_size": 14,
        "image_size": 896,
    },
}
GEMMA4_31B: Config = {
    "architectures": ["Gemma4ForConditionalGeneration"],
    "text_config": dense(
        "",
        60,
        5376,
        (32, 16),
        21_504,
        262_144,
        head_dim=256,
        global_head_dim=512,
        num_global_key_value_heads=4,
        attention_k_eq_v=True,
        num_kv_shared_layers=0,
        hidden_size_per_layer_input=0,
        layer_types=(["sliding_attention"] * 5 + ["full_attention"]) * 10,
        tie_word_embeddings=True,
    ),
    "vision_config": {
        "model_type": "gemma4_vision",
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "num_hidden_layers": 27,
        "patch_size": 16,
        "position_embedding_size": 10_240,
    },
}
LFM2 = dense(
    "Lfm2ForCausalLM",
    16,
    2048,
    (32, 8),
    0,
    65_536,
    block_ff_dim=12_288,
    block_multiple_of=256,
    block_ffn_dim_multiplier=1.0,
    block_auto_adjust_ff_dim=True,
    conv_L_cache=3,
    layer_types=["full_attention" if i in (2, 5, 8, 10, 12, 14) else "conv" for i in range(16)],
)
FALCON_H1 = dense(
    "FalconH1ForCausalLM",
    36,
    1024,
    (8, 2),
    2048,
    32_784,
    head_dim=64,
    mamba_d_ssm=1536,
    mamba_n_heads=24,
    mamba_d_head=64,
    mamba_d_state=128,
    mamba_n_groups=1,
    mamba_d_conv=4,
    mamba_rms_norm=False,
)
NEMOTRON_NANO = dense(
    "NemotronHForCausalLM",
    52,
    2688,
    (32, 2),
    1856,
    131_072,
    head_dim=128,
    hybrid_override_pattern="MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
    mamba_num_heads=64,
    mamba_head_dim=64,
    ssm_state_size=128,
    n_groups=8,
    conv_kernel=4,
    n_routed_experts=128,
    n_shared_experts=1,
    num_experts_per_tok=6,
    moe_intermediate_size=1856,
    moe_shared_expert_intermediate_size=3712,
)


def read(config: Config) -> Checkpoint:
    checkpoint = read_checkpoint(config)
    assert checkpoint is not None
    return checkpoint


def count(config: Config) -> Parameters:
    return read(config).parameters


def on_one_gpu(config: Config, parallel: Parallel = ONE, *, draft: bool = False, total: int | None = None) -> int:
    held = read(config).on_one_gpu(parallel, draft=draft, total_bytes=total)
    assert held is not None
    return held


def file_bytes(config: Config) -> int:
    size = read(config).file_bytes
    assert size is not None
    return size


@pytest.mark.parametrize(
    ("config", "total"),
    [
        pytest.param(LLAMA_1B, 1_235_814_400, id="Llama-3.2-1B"),
        pytest.param(LLAMA_8B, 8_030_261_248, id="Llama-3.1-8B"),
        pytest.param(LLAMA_70B, 70_553_706_496, id="Llama-3.1-70B"),
        pytest.param(QWEN2_05B, 494_032_768, id="Qwen2.5-0.5B"),
        pytest.param(QWEN2_7B, 7_615_616_512, id="Qwen2.5-7B"),
        pytest.param(QWEN2_72B, 72_706_203_648, id="Qwen2-72B"),
        pytest.param(QWEN2_MOE, 14_315_784_192, id="Qwen1.5-MoE-A2.7B: a shared expert with a gate"),
        pytest.param(QWEN3_VL_8B, 8_767_123_696, id="Qwen3-VL-8B with its vision tower"),
        pytest.param(PHI3_MINI, 3_821_079_552, id="Phi-3-mini"),
        pytest.param(GLM4_9B, 9_400_279_040, id="GLM-4-9B-0414: four norms a layer"),
        pytest.param(OLMO3_7B, 7_298_011_136, id="OLMo-3-7B: norms over all heads"),
        pytest.param(GRANITE_8B, 8_170_848_256, id="Granite-3.1-8B"),
        pytest.param(MIXTRAL, 46_702_792_704, id="Mixtral-8x7B"),
        pytest.param(GPT_OSS, 20_914_757_184, id="gpt-oss-20b: biases and sinks"),
        pytest.param(DEEPSEEK_V2_LITE, 15_706_484_224, id="DeepSeek-V2-Lite: MLA without a query latent"),
        pytest.param(DEEPSEEK_V2, 235_741_434_880, id="DeepSeek-V2"),
        pytest.param(GEMMA2_9B, 9_241_705_984, id="Gemma-2-9B"),
        pytest.param(GEMMA3_27B, 27_432_406_640, id="Gemma-3-27B with its vision tower"),
        pytest.param(MISTRAL_SMALL, 24_011_361_280, id="Mistral-Small-3.2 with its vision tower"),
        pytest.param(LFM2, 1_170_340_608, id="LFM2-1.2B: short convolutions"),
        pytest.param(FALCON_H1, 521_411_104, id="Falcon-H1-0.5B: attention and Mamba-2 side by side"),
        pytest.param(GRANITE4_TINY, 6_939_037_248, id="Granite-4.0-H-Tiny: Mamba-2 and experts"),
    ],
)
def test_parameters_are_those_published(config: Config, total: int) -> None:
    assert count(config).total == total


@pytest.mark.parametrize(
    ("config", "total", "active", "draft"),
    [
        pytest.param(QWEN3_30B, "30.5", "3.0", "0.0", id="Qwen3-30B-A3B: 30.5B, 3.3B active with the input table"),
        pytest.param(QWEN3_235B, "235.1", "21.6", "0.0", id="Qwen3-235B-A22B: 22B with the input table"),
        pytest.param(QWEN3_NEXT, "79.7", "3.6", "0.0", id="Qwen3-Next-80B-A3B"),
        pytest.param(QWEN35_35B, "34.7", "2.9", "0.8", id="Qwen3.5-35B-A3B, without the vision tower"),
        pytest.param(MINIMAX, "228.7", "10.4", "0.0", id="MiniMax-M2.5: 229B-A10B"),
        pytest.param(GPT_OSS, "20.9", "3.6", "0.0", id="gpt-oss-20b: 20.9B, 3.6B active"),
        pytest.param(DEEPSEEK_V3, "671.0", "36.6", "11.6", id="DeepSeek-V3: 671B-A37B, MTP 11.6B of its own"),
        pytest.param(KIMI_K25, "1026.4", "31.7", "0.0", id="Kimi-K2.5: 1T-A32B"),
        pytest.param(GLM5, "743.9", "40.8", "10.0", id="GLM-5.1: 744B-A40B"),
        pytest.param(GLM53, "743.4", "40.3", "10.0", id="GLM-5.3: 21 indexers instead of 78"),
        pytest.param(GLM45, "352.8", "32.9", "0.0", id="GLM-4.5: 355B-A32B with the MTP layer"),
        pytest.param(GEMMA4_31B, "31.3", "30.7", "0.0", id="Gemma-4-31B: K is V in full layers"),
        pytest.param(NEMOTRON_NANO, "31.6", "3.2", "0.0", id="Nemotron-3-Nano-30B-A3B: 31.6B, 3.2B active"),
    ],
)
def test_active_parameters_and_draft_layers(config: Config, total: str, active: str, draft: str) -> None:
    got = count(config)
    assert [f"{value / 10**9:.1f}" for value in (got.total, got.active, got.draft)] == [total, active, draft]


def test_parts_add_up_to_the_total() -> None:
    for config in (LLAMA_8B, QWEN3_VL_8B, QWEN35_35B, GLM5, GPT_OSS, NEMOTRON_NANO, GRANITE4_TINY):
        got = count(config)
        parts = (got.embedding, got.attention, got.dense_mlp, got.experts, got.shared_experts, got.other, got.vision)
        assert sum(parts) == got.total
        assert min(parts) >= 0


def test_parts_of_glm_5() -> None:
    got = count(GLM5)
    assert got.embedding == 2 * 154_880 * 6144
    assert got.dense_mlp == 3 * 3 * 6144 * 12_288
    assert got.experts == 75 * 256 * 3 * 6144 * 2048
    assert got.shared_experts == 75 * 3 * 6144 * 2048
    assert got.active < got.total - got.experts * 247 // 256


NVFP4_MTP = "the checkpoint's own list of layers left in bf16 is not known; nvidia/GLM-5.1-NVFP4's, MTP experts in fp4"


@pytest.mark.parametrize(
    ("config", "parallel", "draft", "logged", "error"),
    [
        pytest.param(LLAMA_8B, ONE, False, "14.9888", "-0.21", id="Llama-3.1-8B (llama31-8b-3090-v0-20k)"),
        pytest.param(LLAMA_1B, ONE, False, "2.32", "-0.78", id="Llama-3.2-1B (llama3.2-1b-44gb)"),
        pytest.param(QWEN2_05B, ONE, False, "0.93", "-1.05", id="Qwen2.5-0.5B (qwen2.5-0.5b-24gb): log has 2 digits"),
        pytest.param(GRANITE_8B, ONE, False, "15.25", "-0.20", id="Granite-3.1-8B (granite3.1-8b-a10g)"),
        pytest.param(
            quantized(GRANITE4_MICRO, {"quant_method": "fp8"}),
            ONE,
            False,
            "3.4244",
            "-0.46",
            id="Granite-4.0-Micro, fp8 on load (granite4-micro-l40s)",
        ),
        pytest.param(MISTRAL_SMALL, ONE, False, "44.76", "-0.08", id="Mistral-Small-3.2 with its tower"),
        pytest.param(QWEN3_06B, ONE, False, "1.12", "-0.87", id="Qwen3-0.6B (llmd-Qwen3-0.6B-tp1): log has 2 digits"),
        pytest.param(QWEN3_32B, Parallel(2), False, "30.59", "-0.25", id="Qwen3-32B TP2 (llmd-Qwen3-32B-tp2)"),
        pytest.param(
            quantized(LLAMA_70B, FP8_CHANNELS), Parallel(2), False, "33.88", "-0.10", id="Llama-3.3-70B FP8 TP2"
        ),
        pytest.param(
            quantized(QWEN3_30B, FP8_BLOCKS), ONE, False, "29.09", "-0.19", id="Qwen3-30B-A3B FP8 (qwen3-30b-a3b-fp8kv)"
        ),
        pytest.param(
            quantized(QWEN3_235B, FP8_BLOCKS),
            Parallel(8),
            False,
            "27.7183",
            "-0.23",
            id="Qwen3-235B FP8 TP8: 4 KV heads on 8 ranks (qwen3-235b-2507-fp8-tp8-l40s)",
        ),
        pytest.param(
            MINIMAX, Parallel(4), False, "53.75", "-0.23", id="MiniMax-M2.5 FP8 TP4 (minimax-m2.5-tp4-rtx6000)"
        ),
        pytest.param(
            GPT_OSS,
            ONE,
            False,
            "13.47",
            "+1.49",
            id="gpt-oss-20b (llmd-gpt-oss-20b-tp1): padded as the largest of vLLM's MXFP4 kernels wants it",
        ),
        pytest.param(QWEN3_NEXT, Parallel(2), False, "74.28", "-0.04", id="Qwen3-Next-80B TP2 (qwen3next-tp2-h200)"),
        pytest.param(
            GEMMA3_27B, ONE, False, "51.7891", "-1.34", id="Gemma-3-27B: 0.7 GiB unexplained, ROCm (gemma3-27b-mi300x)"
        ),
        pytest.param(
            GEMMA4_31B,
            ONE,
            False,
            "58.99",
            "-0.91",
            id="Gemma-4-31B (gemma4-31b-b300): 0.38 GiB of the gap are rotary tables of 262,144 positions",
        ),
        pytest.param(
            quantized(GLM5, FP8_BLOCKS), Parallel(8), False, "89.39", "-0.42", id="GLM-5.1 FP8 TP8 (glm5-h200-bf16kv-a)"
        ),
        pytest.param(
            GLM51_NVFP4, Parallel(8), False, "55.67", "-0.57", id=f"GLM-5.1 NVFP4 TP8 (glm51-tp8-mtp0): {NVFP4_MTP}"
        ),
        pytest.param(
            GLM51_NVFP4,
            Parallel(8),
            True,
            "56.62",
            "-0.71",
            id=f"GLM-5.1 NVFP4 TP8 + MTP (glm51-tp8-mtp3): {NVFP4_MTP}",
        ),
    ],
)
def test_one_gpu_holds_what_vllm_logged(
    config: Config, parallel: Parallel, draft: bool, logged: str, error: str
) -> None:
    """The table states each error in percent of the log; none is above 1.5."""
    off = 100 * (on_one_gpu(config, parallel, draft=draft) / GIB / float(logged) - 1)
    assert f"{off:+.2f}" == error
    assert abs(off) < 1.5


@pytest.mark.parametrize(
    ("config", "size"),
    [
        pytest.param(quantized(GLM53, FP8_BLOCKS), "703.7 GiB", id="GLM-5.3 FP8 with its MTP layer"),
        pytest.param(GPT_OSS, "12.8 GiB", id="gpt-oss-20b: 13.76 GB"),
        pytest.param(KIMI_K25, "553.4 GiB", id="Kimi-K2.5: experts in 4 bits, 594 GB"),
        pytest.param(
            quantized(QWEN2_7B, {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}),
            "5.2 GiB",
            id="Qwen2.5-7B AWQ: 5.57 GB",
        ),
    ],
)
def test_checkpoint_sizes(config: Config, size: str) -> None:
    assert f"{file_bytes(config) / GIB:.1f} GiB" == size


# one matrix of 256 x 512 under each format: data, scales, zero points
@pytest.mark.parametrize(
    ("how", "size"),
    [
        pytest.param({"quant_method": "fp8"}, 131_072 + 4, id="fp8, one fp32 scale"),
        pytest.param(FP8_BLOCKS, 131_072 + 2 * 4 * 4, id="fp8 in blocks of 128 x 128"),
        pytest.param({"quant_method": "fbgemm_fp8"}, 131_072 + 256 * 4, id="fp8, one fp32 scale a row"),
        pytest.param(FP8_CHANNELS, 131_072 + 256 * 4, id="compressed-tensors fp8 by channel"),
        pytest.param(
            {"quant_method": "gptq", "bits": 4, "group_size": 128}, 65_536 + 256 * 4 * 5 // 2, id="GPTQ 4 bits"
        ),
        pytest.param({"quant_method": "gptq", "bits": 8, "group_size": -1}, 131_072 + 256 * 3, id="GPTQ by row"),
        pytest.param({"quant_method": "awq", "bits": 4, "group_size": 64}, 65_536 + 256 * 8 * 5 // 2, id="AWQ"),
        pytest.param(
            {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": INT4_GROUPS}}},
            65_536 + 256 * 16 * 2,
            id="compressed-tensors int4, symmetric",
        ),
        pytest.param(
            {"quant_method": "modelopt", "quant_algo": "NVFP4"}, 65_536 + 256 * 32 + 4, id="NVFP4: fp8 scale per 16"
        ),
        pytest.param({"quant_algo": "FP8"}, 131_072 + 4, id="modelopt without quant_method"),
        pytest.param({"quant_method": "modelopt", "quant_algo": "MXFP8"}, 131_072 + 256 * 16, id="MXFP8"),
        pytest.param({"quant_method": "bitsandbytes", "load_in_4bit": True}, 65_536 + 256 * 8 * 4, id="nf4"),
        pytest.param({"quant_method": "bitsandbytes", "load_in_8bit": True}, 131_072 + 256 * 4, id="int8"),
    ],
)
def test_bytes_of_one_matrix(how: Config, size: int) -> None:
    precision = weight_format({"quantization_config": how}).precision("layers.0.mlp.down_proj")
    assert precision is not None
    assert precision.matrix_bytes(256, 512) == size


@pytest.mark.parametrize(
    "how",
    [
        pytest.param({"quant_method": "exl3", "bits": 4}, id="a method without a rule"),
        pytest.param({"quant_method": "gptq", "bits": 5, "group_size": 128}, id="a width that GPTQ lacks"),
        pytest.param(
            {"quant_method": "gptq", "bits": 4, "group_size": 128, "dynamic": {"-:x": {}}}, id="rules by layer"
        ),
        pytest.param({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}, id="a modelopt algorithm without a rule"),
        pytest.param({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}, id="mixed, but no layers named"),
        pytest.param({"quant_method": "compressed-tensors"}, id="no groups"),
        pytest.param({**FP8_CHANNELS, "sparsity_config": {"format": "sparse-24-bitmask"}}, id="sparse"),
        pytest.param({**FP8_CHANNELS, "ignore": ["re:(a+)+$"]}, id="a regular expression that is not plain"),
        pytest.param({"quant_method": "fp8", "weight_block_size": [128]}, id="half a block"),
        pytest.param({"quant_method": "fp8", "modules_to_not_convert": 3}, id="not a list"),
        pytest.param({"quant_method": "bitsandbytes"}, id="neither 4 nor 8 bits"),
    ],
)
def test_an_unknown_format_has_a_name_and_no_size(how: Config) -> None:
    checkpoint = read(quantized(LLAMA_8B, how))
    assert not checkpoint.format.known
    assert checkpoint.format.method == how["quant_method"]
    assert checkpoint.file_bytes is None
    assert checkpoint.on_one_gpu(ONE) is None
    # the size of the files still says what a rank holds
    assert checkpoint.on_one_gpu(ONE, total_bytes=5 * GIB) == 5 * GIB


def test_modules_left_out_keep_the_dtype() -> None:
    how = {
        "quant_method": "fp8",
        "modules_to_not_convert": ["model.layers.0.mlp", "gate", r"re:^model\.layers\.2\.(self_attn|mlp).up_proj$"],
    }
    with_regex = weight_format({"quantization_config": how})
    assert with_regex.precision("layers.0.mlp.up_proj") is None
    assert with_regex.precision("layers.10.mlp.up_proj") is not None
    assert with_regex.precision("layers.2.mlp.up_proj") is None
    assert with_regex.precision("layers.2.mlp.up_proj_too") is not None
    assert with_regex.precision("layers.1.mlp.gate") is None
    assert with_regex.precision("layers.1.mlp.gate_proj") is not None
    kimi = weight_format(KIMI_K25)
    assert kimi.precision("layers.0.mlp.gate_proj") is None
    assert kimi.precision("layers.1.mlp.experts.0.gate_proj") is not None
    nvfp4 = weight_format(GLM51_NVFP4)
    assert nvfp4.precision("layers.1.mlp.up_proj") is None
    assert nvfp4.precision("layers.10.mlp.experts.0.up_proj") is not None
    assert nvfp4.precision("layers.10.self_attn.o_proj") is None


def test_mixed_precision_goes_by_layer() -> None:
    how = {
        "quant_method": "modelopt",
        "quant_algo": "MIXED_PRECISION",
        "quantized_layers": {
            "model.layers.0.mlp.up_proj": {"quant_algo": "W4A16_NVFP4", "group_size": 16},
            "lm_head": {"quant_algo": "FP8"},
        },
    }
    form = weight_format({"quantization_config": how})
    assert form.precision("layers.0.mlp.up_proj") == Precision(4, (1, 16), 8, tensor_bytes=4)
    assert form.precision("layers.0.mlp.down_proj") is None
    assert form.head == Precision(8, scale_bits=32)


def test_output_matrix_is_quantized_only_where_the_config_says_so() -> None:
    gptq = {"quant_method": "gptq", "bits": 4, "group_size": 128}
    without, with_head = (file_bytes(quantized(LLAMA_8B, {**gptq, "lm_head": head})) for head in (False, True))
    assert without - with_head == 128_256 * 4096 * 2 - Precision(4, (1, 128), 16, 4).matrix_bytes(128_256, 4096)


def test_float32_files_are_loaded_in_16_bits() -> None:
    single = {**LLAMA_8B, "torch_dtype": "float32"}
    assert file_bytes(single) == 2 * file_bytes(LLAMA_8B)
    assert on_one_gpu(single) == on_one_gpu(LLAMA_8B)
    assert on_one_gpu(single, total=file_bytes(single)) == on_one_gpu(LLAMA_8B)


def test_kv_heads_latents_and_norms_are_not_divided_below_one() -> None:
    four, eight = (on_one_gpu(QWEN3_235B, Parallel(tensor)) for tensor in (4, 8))
    kv = 94 * 2 * 128 * 4096 * 2
    replicated = 94 * (128 * 4096 + 2 * 4096 + 2 * 128) * 2 + 4096 * 2
    assert 2 * (eight - kv - replicated) == four - kv - replicated
    latent = (2048 + 576) * 6144
    assert on_one_gpu(GLM5, Parallel(8)) > file_bytes({**GLM5, "num_nextn_predict_layers": 0}) // 8 + 78 * latent


def test_vocabulary_is_padded_to_64() -> None:
    assert on_one_gpu(GRANITE_8B) - file_bytes(GRANITE_8B) == (49_216 - 49_155) * 4096 * 2


def test_k_is_held_as_v_too() -> None:
    assert on_one_gpu(GEMMA4_31B) - file_bytes(GEMMA4_31B) == 10 * 4 * 512 * 5376 * 2


def test_quantized_mla_keeps_a_dequantized_up_projection() -> None:
    plain = {**GLM5, "num_nextn_predict_layers": 0}
    fp8 = quantized(plain, FP8_BLOCKS)
    assert on_one_gpu(fp8) - file_bytes(fp8) == 78 * 64 * (192 + 256) * 512 * 2
    assert on_one_gpu(plain) == file_bytes(plain)


@pytest.mark.parametrize(
    ("layers", "pipeline", "stages"),
    [
        pytest.param(32, 1, (32,), id="one stage"),
        pytest.param(61, 2, (31, 30), id="the last stage holds fewer"),
        pytest.param(78, 4, (19, 20, 20, 19), id="so does the first, once there are others"),
        pytest.param(5, 4, (1, 1, 2, 1), id="one left over goes before the last"),
    ],
)
def test_pipeline_stages(layers: int, pipeline: int, stages: tuple[int, ...]) -> None:
    assert pipeline_split(layers, pipeline) == stages


def test_the_largest_pipeline_rank_counts() -> None:
    layer = (file_bytes(LLAMA_8B) - 2 * 128_256 * 4096 * 2 - 4096 * 2) // 32
    assert on_one_gpu(LLAMA_8B, Parallel(pipeline=2)) == 16 * layer + 128_256 * 4096 * 2 + 4096 * 2
    # a tied table is on the first rank and, as output matrix, on the last
    tied = on_one_gpu(QWEN2_05B, Parallel(pipeline=2))
    assert 2 * tied > file_bytes(QWEN2_05B) + 151_936 * 896 * 2
    assert read(LLAMA_8B).on_one_gpu(Parallel(pipeline=33)) is None


def test_experts_are_spread_over_data_parallel_ranks() -> None:
    """With or without expert parallelism, as FusedMoEParallelConfig.make does; the rest is each rank's own."""
    experts = count(QWEN3_30B).experts * 2
    one = on_one_gpu(QWEN3_30B)
    for expert in (False, True):
        assert one - on_one_gpu(QWEN3_30B, Parallel(data=8, expert=expert)) == experts * 7 // 8
    # whole experts do not divide evenly by 3
    sliced, whole = (on_one_gpu(QWEN3_30B, Parallel(data=3, expert=expert)) for expert in (False, True))
    assert whole - sliced == pytest.approx(experts * (43 / 128 - 1 / 3), abs=1000)
    assert on_one_gpu(LLAMA_8B, Parallel(data=4)) == on_one_gpu(LLAMA_8B)


def test_shared_experts_are_whole_under_sequence_parallel_moe() -> None:
    shared = count(DEEPSEEK_V3).shared_experts
    sliced, whole = (on_one_gpu(DEEPSEEK_V3, Parallel(2, data=4, expert=expert)) for expert in (False, True))
    scales = 58 * 3 * 16 * 56 * 4
    assert whole - sliced == (shared + scales) // 2


def test_known_files_scale_the_count() -> None:
    counted = file_bytes(LLAMA_8B)
    assert on_one_gpu(LLAMA_8B, Parallel(2), total=counted) == on_one_gpu(LLAMA_8B, Parallel(2))
    assert on_one_gpu(LLAMA_8B, total=counted + GIB) == counted + GIB
    half = on_one_gpu(LLAMA_8B, Parallel(2), total=2 * counted)
    assert half == 2 * on_one_gpu(LLAMA_8B, Parallel(2))


def test_files_that_leave_drafts_out_or_store_a_tied_matrix_do_not_scale() -> None:
    table = 151_936 * 1024 * 2
    assert on_one_gpu(QWEN3_06B, total=file_bytes(QWEN3_06B) + table) == on_one_gpu(QWEN3_06B)
    without = file_bytes({**DEEPSEEK_V3, "num_nextn_predict_layers": 0})
    assert without < file_bytes(DEEPSEEK_V3)
    for total in (without, file_bytes(DEEPSEEK_V3)):
        assert on_one_gpu(DEEPSEEK_V3, Parallel(8), total=total) == on_one_gpu(DEEPSEEK_V3, Parallel(8))


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"architectures": ["Mamba3ForCausalLM"]}, id="an architecture nobody counted"),
        pytest.param({"architectures": None}, id="no architecture"),
        pytest.param({"vocab_size": None}, id="no vocabulary"),
        pytest.param({"intermediate_size": None}, id="no MLP width"),
        pytest.param({"hidden_size": "4096"}, id="text where a number belongs"),
        pytest.param({"num_hidden_layers": 10**9}, id="more layers than any model has"),
        pytest.param({"num_hidden_layers": True}, id="a flag where a number belongs"),
        pytest.param({"num_local_experts": 8, "num_experts_per_tok": None}, id="experts without a top k"),
        pytest.param({"layer_types": ["full_attention"]}, id="too few layer types"),
        pytest.param({"layer_types": ["retention"] * 32}, id="a layer type nobody counted"),
        pytest.param({"hidden_size_per_layer_input": 256}, id="per-layer embeddings"),
        pytest.param({"kv_lora_rank": 512}, id="MLA with half its fields"),
    ],
)
def test_what_is_not_known_is_not_counted(changes: Config) -> None:
    assert read_checkpoint({**LLAMA_8B, **changes}) is None


@pytest.mark.parametrize("multiplier", [-1, 0, float("nan"), float("inf"), "1.0"])
def test_a_width_that_cannot_be_is_not_counted(multiplier: object) -> None:
    assert read_checkpoint({**LFM2, "block_ffn_dim_multiplier": multiplier}) is None


def test_an_unknown_vision_tower_counts_nothing() -> None:
    text = {**MISTRAL_SMALL, "vision_config": {"model_type": "somevit", "hidden_size": 1024}}
    assert count(text).vision == 0
    assert count(text).total == count(MISTRAL_SMALL).total - count(MISTRAL_SMALL).vision


def test_architectures_are_listed_once_and_sorted() -> None:
    assert list(ARCHITECTURES) == sorted(set(ARCHITECTURES))


configs = st.builds(
    dense,
    st.sampled_from([LLAMA, QWEN2, QWEN3, "Olmo3ForCausalLM", "Gemma2ForCausalLM"]),
    st.integers(1, 12),
    st.integers(1, 8).map(lambda n: 128 * n),
    st.sampled_from([(8, 8), (8, 2), (8, 1), (12, 3)]),
    st.integers(1, 4096),
    st.integers(1, 4096),
    head_dim=st.sampled_from([64, 128]),
    tie_word_embeddings=st.booleans(),
)
moe_configs = st.builds(
    lambda config, experts, top: (
        {**config, "architectures": [QWEN3_MOE], "num_experts": experts}
        | {"num_experts_per_tok": min(top, experts), "moe_intermediate_size": 256}
    ),
    configs,
    st.integers(1, 64),
    st.integers(1, 8),
)
formats = st.sampled_from(
    [{}, {"quant_method": "fp8"}, FP8_BLOCKS, FP8_CHANNELS, {"quant_method": "modelopt", "quant_algo": "NVFP4"}]
)
ranks = st.integers(1, 16)


@given(
    st.one_of(configs, moe_configs),
    formats,
    st.builds(Parallel, ranks, st.just(1), ranks, st.booleans()),
    st.sampled_from(["tensor", "data"]),
    st.one_of(st.none(), st.integers(1, 10**12)),
)
def test_more_ranks_never_hold_more_each(
    config: Config, how: Config, parallel: Parallel, axis: str, total: int | None
) -> None:
    """No shared experts here: under sequence-parallel MoE a second data rank makes them whole again."""
    config = quantized(config, how) if how else config
    more = Parallel(
        parallel.tensor + (axis == "tensor"), parallel.pipeline, parallel.data + (axis == "data"), parallel.expert
    )
    assert on_one_gpu(config, more, total=total) <= on_one_gpu(config, parallel, total=total)


@given(configs, st.integers(1, 11))
def test_more_stages_of_equal_layers_never_hold_more_each(config: Config, pipeline: int) -> None:
    layers = config["num_hidden_layers"]
    fewer, more = min(pipeline, layers), min(pipeline + 1, layers)
    # one stage needs no second copy of a tied matrix
    if fewer > 1 or not config["tie_word_embeddings"]:
        assert on_one_gpu(config, Parallel(pipeline=more)) <= on_one_gpu(config, Parallel(pipeline=fewer))


@given(st.one_of(configs, moe_configs), ranks)
def test_all_ranks_together_hold_the_checkpoint(config: Config, tensor: int) -> None:
    assert tensor * on_one_gpu(config, Parallel(tensor)) >= file_bytes(config)


json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)


@given(st.sampled_from([LLAMA_8B, QWEN3_NEXT, GLM53, LFM2, NEMOTRON_NANO, GRANITE4_TINY]), st.data())
def test_a_strange_config_is_counted_or_unknown_but_never_fails(config: Config, data: st.DataObject) -> None:
    key = data.draw(st.sampled_from(sorted(config)))
    checkpoint = read_checkpoint({**config, key: data.draw(json)})
    assert checkpoint is None or checkpoint.parameters.total >= checkpoint.parameters.active >= 0


def tensor_by_tensor(config: Config, parallel: Parallel, stages: list[int]) -> dict[tuple[int, bool], int]:
    """Bytes on the fullest GPU by (stages, draft), with one look at every tensor of every layer."""
    weights, form = read_weights(config), weight_format(config)
    assert weights is not None

    def held(tensor: Tensor, name: str) -> int:
        precision = form.head if name == "lm_head" else form.precision(name) if tensor.linear else None
        return held_bytes(tensor, precision, form.dtype_bytes, parallel)

    layers = [
        sum(held(tensor, f"layers.{index}.{tensor.name}") for tensor in weights.kinds[kind])
        for index, kind in enumerate((*weights.layers, *weights.drafts))
    ]
    backbone, drafts = layers[: len(weights.layers)], sum(layers[len(weights.layers) :])
    table = sum(held(tensor, tensor.name) for tensor in weights.first)
    final_norm, head = (held(tensor, tensor.name) for tensor in weights.last)
    most = {}
    for count in stages:
        ranks = [rank for rank, share in enumerate(pipeline_split(len(backbone), count)) for _ in range(share)]
        for draft in (False, True):
            sums = [sum(size for size, at in zip(backbone, ranks, strict=True) if at == rank) for rank in range(count)]
            sums[0] += table
            sums[-1] += final_norm + (0 if weights.tied and count == 1 else head) + (drafts if draft else 0)
            most[count, draft] = max(sums)
    return most


COUNTED = [entry for entry in ENTRIES if (found := read_checkpoint(entry.config)) is not None and found.format.known]


@pytest.mark.parametrize("entry", COUNTED, ids=lambda entry: entry.repo)
def test_lots_hold_what_the_tensors_of_the_catalogue_hold_one_by_one(entry: Entry) -> None:
    checkpoint = read(dict(entry.config))
    for tensor in (1, 2, 4, 8, 16):
        for data, expert in ((1, False), (4, False), (4, True)):
            one = Parallel(tensor, 1, data, expert)
            for (stages, draft), most in tensor_by_tensor(dict(entry.config), one, [1, 2, 3]).items():
                assert checkpoint.on_one_gpu(replace(one, pipeline=stages), draft=draft) == most


PATTERNS = st.sampled_from(
    [
        "lm_head",
        "mlp",
        "layers.1",
        "model.layers.2.self_attn",
        "model.layers.3*",
        "model.layers.1.mlp*",
        "*o_proj",
        "layers.?.mlp.up_proj",
        "model.layers.[02].*",
        "re:.*self_attn.*",
        r"re:^model\.layers\.1\.mlp\.(gate|up)_proj$",
        "experts",
        "proj",
    ]
)


@given(
    st.one_of(configs, moe_configs),
    st.sampled_from([{"quant_method": "fp8"}, FP8_BLOCKS, {"quant_method": "modelopt", "quant_algo": "NVFP4"}]),
    st.lists(PATTERNS, max_size=4),
    st.builds(Parallel, ranks, st.just(1), ranks, st.booleans()),
)
def test_lots_are_exact_where_formats_differ_between_layers(
    config: Config, how: Config, patterns: list[str], parallel: Parallel
) -> None:
    key = "exclude_modules" if how["quant_method"] == "modelopt" else "modules_to_not_convert"
    config = {**config, "num_hidden_layers": 5, "num_nextn_predict_layers": 1}
    config = quantized(config, {**how, key: patterns})
    checkpoint = read(config)
    for (stages, draft), most in tensor_by_tensor(config, parallel, [1, 2, 5]).items():
        assert checkpoint.on_one_gpu(replace(parallel, pipeline=stages), draft=draft) == most


components = st.sampled_from(["layers", "1", "10", "mlp", "up_proj", "self_attn", "experts"])
paths = st.lists(components, min_size=1, max_size=5).map(".".join)


@given(st.lists(st.one_of(paths, st.text("a.*?l1", max_size=6), paths.map(lambda path: path + "*"))), paths)
def test_named_modules_are_found_as_a_search_finds_them(patterns: list[str], name: str) -> None:
    parts = name.split(".")
    runs = {".".join(parts[i:j]) for i in range(len(parts)) for j in range(i + 1, len(parts) + 1)}
    plain = {pattern for pattern in patterns if not set("*?[") & set(pattern)}
    found = bool(runs & plain) or any(fnmatchcase(name, pattern) for pattern in set(patterns) - plain)
    assert module_names(patterns).holds(name) == found


def test_checkpoints_are_values() -> None:
    for config in (LLAMA_8B, GLM51_NVFP4, NEMOTRON_NANO):
        assert read(config) == read(dict(config))
        assert hash(read(config)) == hash(read(dict(config)))
    assert read(LLAMA_8B) != read(quantized(LLAMA_8B, FP8_BLOCKS))
    assert read(GLM5) != read(GLM53)


def test_a_draft_layer_always_has_an_indexer() -> None:
    """Even where a list of kinds is longer than the backbone and says otherwise (vLLM models/deepseek_v2.py)."""
    shared = read({**GLM5, "index_topk_pattern": "F" + "S" * 80}).parameters
    assert shared.draft == count(GLM5).draft
    assert shared.other < count(GLM5).other


def test_a_down_projection_is_padded_along_its_inputs_whatever_its_name() -> None:
    """Experts in MXFP4: the intermediate size to 128 on each rank, the hidden size to 256."""
    how = {"quant_method": "mxfp4"}
    gate_up_down, w1_w3_w2 = (
        quantized({**config, "architectures": [name], "hidden_size": 2048, "moe_intermediate_size": 900}, how)
        for config, name in ((QWEN3_30B, QWEN3_MOE), (QWEN3_30B, "MixtralForCausalLM"))
    )
    norms = 48 * 2 * 128 * 2  # Mixtral has none over queries and keys
    for tensor in (1, 2, 8):
        assert on_one_gpu(gate_up_down, Parallel(tensor)) - norms == on_one_gpu(w1_w3_w2, Parallel(tensor))


@given(
    st.sampled_from(
        [
            FP8_BLOCKS,
            FP8_CHANNELS,
            KIMI_K25["text_config"]["quantization_config"],
            GLM51_NVFP4["quantization_config"],
            {"quant_method": "gptq", "bits": 4, "group_size": 128, "modules_to_not_convert": []},
            {"quant_method": "bitsandbytes", "load_in_4bit": True, "llm_int8_skip_modules": []},
            {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": {"a": {}}},
        ]
    ),
    st.data(),
)
def test_a_strange_format_is_read_or_unknown_but_never_fails(how: Config, data: st.DataObject) -> None:
    key = data.draw(st.sampled_from(sorted(how)))
    checkpoint = read(quantized(LLAMA_1B, {**how, key: data.draw(json)}))
    assert (checkpoint.file_bytes is None) == (not checkpoint.format.known)


@given(
    st.integers(1, 4096),
    st.integers(1, 4096),
    st.integers(2, 16),
    st.sampled_from([(0, 0), (1, 0), (1, 16), (128, 128)]),
    st.sampled_from([0, 8, 16, 32]),
)
def test_bytes_grow_with_bits_and_with_scales(
    rows: int, columns: int, bits: int, block: tuple[int, int], scale: int
) -> None:
    precision = Precision(bits, block, scale)
    size = precision.matrix_bytes(rows, columns)
    assert replace(precision, bits=bits - 1).matrix_bytes(rows, columns) <= size
    assert size <= replace(precision, scale_bits=scale + 8).matrix_bytes(rows, columns)
    assert size <= precision.matrix_bytes(rows + 1, columns)
    assert 8 * size >= rows * columns * bits
