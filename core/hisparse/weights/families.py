"""What a config.json leaves to the architecture's code: one row of the table per architecture.

Source: the model files of vLLM 0.33 (model_executor/models), and the names of tensors in public checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from hisparse.weights.fields import WeightFields


class Norm(StrEnum):
    """Norms of queries and keys: none, one weight per head dimension, or one over all heads."""

    NONE = "none"
    HEAD = "head"
    FULL = "full"


@dataclass(frozen=True)
class Family:
    """One architecture. Booleans that a config.json has a field for are the default of that field.

    norms are those of one layer over the hidden size. gated: an MLP has a gate beside its up projection.
    moe, router and expert_names (gate, up, down) are names of modules. vocabulary is that of a config without it.
    """

    qkv_bias: bool = False
    qk_norm: Norm = Norm.NONE
    output_gate: bool = False
    norms: int = 2
    gated: bool = True
    tied: bool = False
    moe: str = "mlp"
    expert_names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
    router: str = "gate"
    router_bias: bool = False
    expert_bias: bool = False
    sinks: bool = False
    vocabulary: int | None = None


_W = ("w1", "w3", "w2")
_LLAMA = Family()
_QWEN2 = Family(qkv_bias=True)
_QWEN3 = Family(qk_norm=Norm.HEAD)
_QWEN3_NEXT = Family(qk_norm=Norm.HEAD, output_gate=True)
_DEEPSEEK = Family(router_bias=True)
_GEMMA3 = Family(qk_norm=Norm.HEAD, norms=4, tied=True, vocabulary=262_208)
_GEMMA4 = Family(qk_norm=Norm.HEAD, norms=4, tied=True, moe="moe")

FAMILIES: Final[Mapping[str, Family]] = MappingProxyType(
    {
        "LlamaForCausalLM": _LLAMA,
        "MistralForCausalLM": _LLAMA,
        "Mistral3ForConditionalGeneration": _LLAMA,
        "GraniteForCausalLM": _LLAMA,
        "Phi3ForCausalLM": _LLAMA,
        "GlmForCausalLM": _LLAMA,
        "Glm4ForCausalLM": Family(norms=4),
        "Olmo2ForCausalLM": Family(qk_norm=Norm.FULL),
        "Olmo3ForCausalLM": Family(qk_norm=Norm.FULL),
        "Qwen2ForCausalLM": _QWEN2,
        "Qwen2_5_VLForConditionalGeneration": _QWEN2,
        "Qwen2MoeForCausalLM": _QWEN2,
        "Qwen3ForCausalLM": _QWEN3,
        "Qwen3MoeForCausalLM": _QWEN3,
        "Qwen3VLForConditionalGeneration": _QWEN3,
        "Qwen3VLMoeForConditionalGeneration": _QWEN3,
        "Qwen3NextForCausalLM": _QWEN3_NEXT,
        "Qwen3_5ForCausalLM": _QWEN3_NEXT,
        "Qwen3_5ForConditionalGeneration": _QWEN3_NEXT,
        "Qwen3_5MoeForCausalLM": _QWEN3_NEXT,
        "Qwen3_5MoeForConditionalGeneration": _QWEN3_NEXT,
        "MixtralForCausalLM": Family(moe="block_sparse_moe", expert_names=_W),
        "MiniMaxM2ForCausalLM": Family(qk_norm=Norm.FULL, moe="block_sparse_moe", expert_names=_W, router_bias=True),
        "GptOssForCausalLM": Family(router="router", router_bias=True, expert_bias=True, sinks=True),
        "Glm4MoeForCausalLM": _DEEPSEEK,
        "DeepseekV2ForCausalLM": _LLAMA,
        "DeepseekV3ForCausalLM": _DEEPSEEK,
        "DeepseekV32ForCausalLM": _DEEPSEEK,
        "KimiK25ForConditionalGeneration": _DEEPSEEK,
        "GlmMoeDsaForCausalLM": _DEEPSEEK,
        "Glm4MoeLiteForCausalLM": _DEEPSEEK,
        "Gemma2ForCausalLM": Family(norms=4, tied=True),
        "Gemma3ForCausalLM": _GEMMA3,
        "Gemma3ForConditionalGeneration": _GEMMA3,
        "Gemma4ForCausalLM": _GEMMA4,
        "Gemma4ForConditionalGeneration": _GEMMA4,
        "GraniteMoeHybridForCausalLM": Family(moe="block_sparse_moe"),
        "FalconH1ForCausalLM": _LLAMA,
        "Lfm2ForCausalLM": Family(qk_norm=Norm.HEAD, tied=True),
        "NemotronHForCausalLM": Family(gated=False, norms=1, moe="mixer", router_bias=True),
    }
)

ARCHITECTURES: Final = tuple(sorted(FAMILIES))
"""What this package can count; the same names as `architectures` in a config.json."""


@dataclass(frozen=True)
class Backbone:
    """One model whose layers are to be counted: its config.json, its architecture, its layers and hidden size."""

    fields: WeightFields
    family: Family
    architecture: str
    layers: int
    hidden: int
