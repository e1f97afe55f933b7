"""Models and nodes that several core tests speak of."""

from __future__ import annotations

from dataclasses import replace

from hisparse.hardware import Gpu, NodeClass, gpu_named
from hisparse.model import ModelFacts, facts_for
from hisparse.plan import Target
from hisparse.spec import HuggingFaceSource, ModelSpec
from hisparse.units import GIB, TIB


def model(repo: str) -> ModelFacts:
    return facts_for(ModelSpec(hugging_face=HuggingFaceSource(repo=repo)))


def gpu(name: str) -> Gpu:
    found = gpu_named(name)
    assert found is not None
    return found


def h200(gpus: int = 8, memory: int | None = 2 * TIB) -> NodeClass:
    return NodeClass(gpu("h200"), gpus, memory, "NVIDIA-H200")


GLM = model("zai-org/GLM-5.3")
LLAMA_8B = model("meta-llama/Llama-3.1-8B-Instruct")
LLAMA_70B = model("meta-llama/Llama-3.1-70B-Instruct")
QWEN_72B = model("Qwen/Qwen2-72B-Instruct")
DENSE_32B = model("shape/dense-32b")
MILLION = 1_048_576


def glm_target(**changes: object) -> Target:
    return replace(Target(max_tokens=MILLION, gpus=8), **changes)  # type: ignore[arg-type]


def gib(number: float) -> int:
    """A figure of a log or table in GiB, as bytes."""
    return int(number * GIB)
