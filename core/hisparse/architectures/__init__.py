"""Which caches the layers of an architecture keep, read from its config.json.

One reader per family, one row of the table per architecture. Sources: the model files of vLLM 0.33
(model_executor/models), which name the window, the state shapes and the layers without a cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from hisparse.architectures import dense, hybrids, latent
from hisparse.architectures.anatomy import Anatomy, Attention, Family, Indexer, layer_count
from hisparse.architectures.hybrids import NEMOTRON_BLOCKS, nemotron_blocks
from hisparse.architectures.latent import indexer_layers
from hisparse.config import ConfigFields
from hisparse.errors import SpecError

__all__ = [
    "FAMILIES",
    "NEMOTRON_BLOCKS",
    "Anatomy",
    "Attention",
    "Indexer",
    "anatomy",
    "indexer_layers",
    "layer_count",
    "nemotron_blocks",
]


def anatomy(fields: ConfigFields, architecture: str) -> Anatomy:
    """The caches of this architecture. Raises SpecError where it is not known or a field is missing."""
    family = FAMILIES.get(architecture)
    if family is None:
        raise SpecError(
            "spec.model.facts.architecture",
            f"{architecture} is not an architecture whose KV cache this planner can size; "
            f"if its attention is that of a known one, name that one here (known: {', '.join(sorted(FAMILIES))})",
        )
    layer_count(fields)  # the first field that is told where several are missing
    return family(fields)


FAMILIES: Final[Mapping[str, Family]] = MappingProxyType(
    {
        **dict.fromkeys(
            (
                "ApertusForCausalLM",
                "ArceeForCausalLM",
                "CohereForCausalLM",
                "DeepseekForCausalLM",
                "Ernie4_5ForCausalLM",
                "Ernie4_5_MoeForCausalLM",
                "ExaoneForCausalLM",
                "Exaone4ForCausalLM",
                "GemmaForCausalLM",
                "GlmForCausalLM",
                "Glm4ForCausalLM",
                "Glm4MoeForCausalLM",
                "Glm4vForConditionalGeneration",
                "Glm4vMoeForConditionalGeneration",
                "GraniteForCausalLM",
                "GraniteMoeForCausalLM",
                "HunYuanDenseV1ForCausalLM",
                "HunYuanMoEV1ForCausalLM",
                "InternVLChatModel",
                "InternLMForCausalLM",
                "InternLM2ForCausalLM",
                "InternLM3ForCausalLM",
                "LlamaForCausalLM",
                "LlavaForConditionalGeneration",
                "LlavaNextForConditionalGeneration",
                "LlavaOnevisionForConditionalGeneration",
                "MiMoForCausalLM",
                "MiniCPMForCausalLM",
                "MiniMaxM2ForCausalLM",
                "MistralForCausalLM",
                "Mistral3ForConditionalGeneration",
                "Ministral3ForCausalLM",
                "MixtralForCausalLM",
                "NemotronForCausalLM",
                "OPTForCausalLM",
                "OlmoForCausalLM",
                "Olmo2ForCausalLM",
                "Olmo3ForCausalLM",
                "OlmoeForCausalLM",
                "PhiForCausalLM",
                "Phi3ForCausalLM",
                "PhiMoEForCausalLM",
                "PixtralForConditionalGeneration",
                "Qwen2ForCausalLM",
                "Qwen2MoeForCausalLM",
                "Qwen2VLForConditionalGeneration",
                "Qwen2_5_VLForConditionalGeneration",
                "Qwen3ForCausalLM",
                "Qwen3MoeForCausalLM",
                "Qwen3VLForConditionalGeneration",
                "Qwen3VLMoeForConditionalGeneration",
                "SeedOssForCausalLM",
                "SmolLM3ForCausalLM",
                "StableLmForCausalLM",
                "Starcoder2ForCausalLM",
            ),
            dense.dense,
        ),
        **dict.fromkeys(("Gemma2ForCausalLM", "GptOssForCausalLM"), dense.alternating(full_every=2)),
        **dict.fromkeys(("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"), dense.alternating(full_every=6)),
        **dict.fromkeys(("Gemma3nForCausalLM", "Gemma3nForConditionalGeneration"), dense.alternating(full_every=5)),
        "Cohere2ForCausalLM": dense.alternating(full_every=4),
        **dict.fromkeys(("Gemma4ForCausalLM", "Gemma4ForConditionalGeneration"), dense.gemma4),
        **dict.fromkeys(("Llama4ForCausalLM", "Llama4ForConditionalGeneration"), dense.llama4),
        **dict.fromkeys(
            (
                "DeepseekV2ForCausalLM",
                "DeepseekV3ForCausalLM",
                "Glm4MoeLiteForCausalLM",
                "KimiK25ForConditionalGeneration",
                "MistralLarge3ForCausalLM",
            ),
            latent.mla,
        ),
        **dict.fromkeys(("DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM"), latent.dsa),
        **dict.fromkeys(
            (
                "Qwen3NextForCausalLM",
                "Qwen3_5ForCausalLM",
                "Qwen3_5ForConditionalGeneration",
                "Qwen3_5MoeForCausalLM",
                "Qwen3_5MoeForConditionalGeneration",
                "OlmoHybridForCausalLM",
            ),
            hybrids.linear,
        ),
        **dict.fromkeys(
            ("NemotronHForCausalLM", "NemotronH_Nano_VL_V2", "NemotronH_Nano_Omni_Reasoning_V3"), hybrids.nemotron
        ),
        "GraniteMoeHybridForCausalLM": hybrids.granite_hybrid,
        "BambaForCausalLM": hybrids.bamba,
        "FalconH1ForCausalLM": hybrids.falcon_h1,
        "JambaForCausalLM": hybrids.jamba,
        **dict.fromkeys(("Lfm2ForCausalLM", "Lfm2MoeForCausalLM"), hybrids.lfm2),
        **dict.fromkeys(("MiniMaxText01ForCausalLM", "MiniMaxM1ForCausalLM"), hybrids.lightning),
        "KimiLinearForCausalLM": hybrids.kimi_linear,
        **dict.fromkeys(("Glm5NextForCausalLM", "Glm5NextForConditionalGeneration"), hybrids.glm_flash),
    }
)
"""The reader of each architecture; names are those of `architectures` in a config.json."""
