"""What a mode or a KV dtype costs beside memory: accuracy, speed and repeated prefixes, each with its source.

Nothing here is computed and nothing decides. Where nobody has measured a thing, that is what the entry says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from hisparse.architectures import Attention
from hisparse.model import ModelFacts
from hisparse.plan import Mode


@dataclass(frozen=True)
class Loss:
    """One thing that is lost, or the words that nothing is. `lossless` says that answers do not change."""

    what: str
    source: str
    lossless: bool = False


_OWN_RUN: Final = "own run of vLLM 0.33 on H200 (docs/engine-facts.md, Speed)"
_OWN_CODECS: Final = "own measurement on SmolLM2-135M, 7,680 tokens of prefix (hisparse.hybrid); ranks dtypes only"
_FP8_STUDY: Final = "vLLM blog, The State of FP8 KV-Cache and Attention Quantization in vLLM (22 April 2026)"
_TURBOQUANT_STUDY: Final = "vLLM blog, A First Comprehensive Study of TurboQuant (11 May 2026)"
_PRESETS: Final = "vLLM 0.33, quantization/turboquant/config.py"

_EXACT: Final = Loss("nothing: keys and values stay as the model computes them", "no conversion", lossless=True)
_SPARSE_FP8: Final = Loss(
    "little: scales per 128 values and rotated keys in 16 bits; the format that DSA models are served in",
    "vLLM 0.33, sparse MLA backends (fp8_ds_mla)",
)
_LATENT_FP8: Final = Loss("not measured for latent rows, which every head reads", "no source: measure recall first")
_UNKNOWN: Final = Loss("not measured", "no source: measure recall first")
_FP8: Final = (
    Loss("KL 0.00064, top-1 98.0 % against 16 bits", _OWN_CODECS),
    Loss(
        "94 to 99 % of benchmark scores; exact digits deep in a prompt: 91 % fell to 13 % on Hopper before FA3 summed "
        "in two levels, so use a release that has it",
        _FP8_STUDY,
    ),
)


def _perplexity(percent: str) -> Loss:
    return Loss(f"perplexity {percent} % higher", _PRESETS)


_SMALL_TURBO: Final = Loss(
    "about 20 points of AIME25 (Qwen3-30B-A3B-Thinking) and about 30 % of retrieval at 256K; a third of the throughput",
    _TURBOQUANT_STUDY,
)

OF_DTYPE: Final[Mapping[str, tuple[Loss, ...]]] = MappingProxyType(
    {
        "Bf16": (_EXACT,),
        "Fp8": _FP8,
        "Int8PerTokenHead": (Loss("KL 0.00001, top-1 100 % against 16 bits", _OWN_CODECS),),
        "Int4PerTokenHead": (Loss("KL 0.00312, top-1 96.3 % against 16 bits", _OWN_CODECS),),
        "TurboQuantK8V4": (
            _perplexity("1.17"),
            Loss("retrieval at 256K within a few points; 20 to 25 % of the throughput", _TURBOQUANT_STUDY),
        ),
        "TurboQuant4BitNc": (
            _perplexity("2.71"),
            Loss("KL 0.00312, top-1 96.7 % against 16 bits", _OWN_CODECS),
            Loss("1 to 4 points of benchmarks; a quarter of the throughput", _TURBOQUANT_STUDY),
        ),
        "TurboQuantK3V4Nc": (_perplexity("10.63"), _SMALL_TURBO),
        "TurboQuant3BitNc": (
            _perplexity("20.59"),
            Loss("KL 0.0138, top-1 93.6 % against 16 bits", _OWN_CODECS),
            _SMALL_TURBO,
        ),
    }
)
"""By the name that spec.context.kvCacheDtype uses."""

OF_MODE: Final[Mapping[Mode, tuple[Loss, ...]]] = MappingProxyType(
    {
        Mode.NONE: (Loss("prefixes that were evicted are prefilled again", "no host tier", lossless=True),),
        Mode.OFFLOAD: (
            Loss(
                "nothing; evicted prefixes come back from host memory, and the longest context stays what it was",
                "vLLM 0.33, OffloadingConnector: a running request is wholly in HBM",
                lossless=True,
            ),
        ),
        Mode.HISPARSE: (
            Loss(
                "no accuracy: every page is kept, in host memory",
                "vLLM 0.33, v1/hisparse: the model's own indexer chooses the rows",
                lossless=True,
            ),
            Loss("a token takes ~2.7 times as long once requests read from host", _OWN_RUN, lossless=True),
            Loss("6 to 8 % of decode throughput while everything fits in HBM", _OWN_RUN, lossless=True),
            Loss(
                "repeated prefixes hit only while their indexer pages are in HBM, or with the indexer offload",
                _OWN_RUN,
                lossless=True,
            ),
        ),
    }
)


def dtype_losses(kv_dtype: str, model: ModelFacts) -> tuple[Loss, ...]:
    """What a KV dtype loses in this model."""
    if kv_dtype == "Fp8" and model.attention is Attention.DSA:
        return (_SPARSE_FP8,)
    if kv_dtype == "Fp8" and model.latent is not None:
        return (_LATENT_FP8,)
    return OF_DTYPE.get(kv_dtype, (_UNKNOWN,))


def losses(mode: Mode, kv_dtype: str, model: ModelFacts) -> tuple[Loss, ...]:
    """What a plan in this mode and KV dtype loses, dtype first."""
    return (*dtype_losses(kv_dtype, model), *OF_MODE[mode])
