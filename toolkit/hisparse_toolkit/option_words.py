"""Options in place of fields: what the planner says in words of YAML, for whoever wrote none."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

OPTION_OF: Final[Mapping[str, str]] = MappingProxyType(
    {
        "spec.model.huggingFace.repo": "--model",
        "spec.model.hostPath.path": "--model",
        "spec.model": "--model",
        "spec.model.config": "--model",
        "spec.model.facts.weights": "--weights",
        "spec.context.maxTokens": "--context",
        "spec.context": "--context",
        "spec.context.typicalTokens": "--typical",
        "spec.context.maxConcurrentRequests": "--concurrency",
        "spec.context.maxBatchedTokens": "--batched-tokens",
        "spec.context.kvCacheDtype": "--kv-dtype",
        "spec.context.ropeScaling": "--rope-factor, --rope-original, --rope-type",
        "spec.context.ropeScaling.factor": "--rope-factor",
        "spec.context.ropeScaling.originalMaxTokens": "--rope-original",
        "spec.context.ropeScaling.type": "--rope-type",
        "spec.kvTier.mode": "--mode",
        "spec.kvTier.sharing": "--sharing",
        "spec.kvTier.hostPool.size": "--host-pool",
        "spec.resources.gpus": "--gpus",
        "spec.resources": "--gpus",
        "spec.resources.memory": "--pod-memory",
        "spec.resources.gpuMemoryUtilizationPercent": "--utilization",
        "spec.parallelism": "--tensor, --data, --pipeline",
        "spec.parallelism.tensor": "--tensor",
        "spec.parallelism.data": "--data",
        "spec.parallelism.pipeline": "--pipeline",
        "spec.parallelism.expert": "--expert",
        "spec.engine.version": "--engine-version",
        "draftTokens": "--mtp-tokens",
        "decodeContext": "--decode-context",
    }
)
"""The option that sets a field of the spec, for whoever wrote no YAML."""

_ALONE: Final[Mapping[str, str]] = MappingProxyType(
    {
        path.removeprefix("spec."): option
        for path, option in OPTION_OF.items()
        # a block has several options, and a word without a dot may be any word
        if "," not in option and "." in path.removeprefix("spec.")
    }
    | {"kvTier.hostPool": "--host-pool"}
)
_FIELD: Final = re.compile(
    r"(?<![\w.-])(?:spec\.)?("
    + "|".join(re.escape(one) for one in sorted(_ALONE, key=len, reverse=True))
    + r")(?!\w|\.\w)"
)
_SCALING: Final = re.compile(
    r"context\.ropeScaling \{type: (?P<type>\w+), factor: '(?P<factor>[0-9./]+)', originalMaxTokens: (?P<base>[0-9]+)\}"
)
_SWITCHES: Final = (("set parallelism.expert to true", "add --expert"),)


def in_options(text: str) -> str:
    """The sentence with the options that set the fields it names: "set --gpus to 8" for "set resources.gpus to 8".

    Fields that no option sets stay as they are.
    """
    for words, said in _SWITCHES:
        text = text.replace(words, said)
    text = _SCALING.sub(_scaling, text)
    return _FIELD.sub(lambda found: _ALONE[found[1]], text)


def _scaling(found: re.Match[str]) -> str:
    kind = "" if found["type"] == "Yarn" else f" --rope-type {found['type']}"
    return f"--rope-factor {found['factor']} --rope-original {found['base']}{kind}"
