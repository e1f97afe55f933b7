"""Settings of a KV cache with the layout that vLLM itself gave them, as tests/data/vllm/ holds them.

tests/engine/record_layouts.py writes the files from real runs of vLLM's planning code; the engine lane says when they
are out of date. Counts are exact: a concurrency is a fraction of the blocks that vLLM counted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from shapes import LLAMA_8B
from vllm_answers import VERSIONS, layers_said

from hisparse import catalogue
from hisparse.hardware import GPUS, Gpu
from hisparse.layers import (
    ChunkedAttention,
    FullAttention,
    IndexerKeys,
    LayerCaches,
    SlidingWindow,
)
from hisparse.layout import Drafting, KvLayout, kv_layout
from hisparse.model import ModelFacts, read_config
from hisparse.rows import KV_DTYPES

DATA = Path(__file__).parents[1] / "data" / "vllm"
REACHES = {
    "FullAttentionSpec": "full",
    "MLAAttentionSpec": "full",
    "SlidingWindowSpec": "window",
    "ChunkedLocalAttentionSpec": "chunk",
    "MambaSpec": "state",
    # a ring of keys that are not pooled yet: one block per request, as a state
    "CircularBufferSpec": "state",
}
_KINDS = {one.__name__: one for one in (FullAttention, SlidingWindow, ChunkedAttention)}
_LLAMA = {"architectures": ["LlamaForCausalLM"], "num_attention_heads": 32}


@dataclass(frozen=True)
class Setting:
    """One question. rule is what it is there for.

    The model is an entry of the catalogue, the config of another, or layers of no model: turns, each said as how
    often it comes and its layers, whose draft layer is the first with full attention.
    """

    rule: str
    repo: str | None = None
    config: Mapping[str, Any] | None = None
    turns: Sequence[tuple[int, Sequence[Mapping[str, Any]]]] = ()
    dtype: str = "Bf16"
    capability: tuple[int, int] = (9, 0)
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    batched: int = 8192
    drafted: int = 0
    caching: bool = True
    block_tokens: int | None = None
    lengths: tuple[int, ...] = (131_072, 7_777)

    @property
    def id(self) -> str:
        """What no other setting is called."""
        return f"recorded: {self.rule}"

    @property
    def model(self) -> ModelFacts:
        """The model as the planner knows it."""
        if self.turns:
            caches = tuple((_cache(one),) for times, turn in self.turns for one in list(turn) * times)
            full = next(layer for layer in caches if isinstance(layer[0], FullAttention))
            return replace(LLAMA_8B, caches=caches, drafts=(full,))
        return read_config(self._config, name=self.repo or "recorded", weight_bytes=1)

    @property
    def _config(self) -> Mapping[str, Any]:
        if self.repo is not None:
            entry = catalogue.lookup(self.repo)
            assert entry is not None, self.repo
            return entry.config
        return self.config or {**_LLAMA, "num_hidden_layers": sum(times * len(turn) for times, turn in self.turns)}

    @property
    def gpu(self) -> Gpu:
        """A card of that generation: the cache depends on nothing else of it."""
        return replace(GPUS[0], capability=self.capability)

    def layout(self, version: str) -> KvLayout:
        """Our answer."""
        model = self.model
        return kv_layout(
            model,
            self.dtype,
            self.gpu,
            tensor=self.tensor,
            pipeline=self.pipeline,
            context=self.context,
            batched_tokens=self.batched,
            version=version,
            drafting=Drafting(model.drafts[:1] if self.drafted else (), self.drafted),
            block_tokens=self.block_tokens,
            prefix_caching=self.caching,
        )

    def question(self) -> dict[str, Any]:
        """What tests/engine/vllm_layout.py is asked."""
        model = self.model
        return {
            "id": self.id,
            "ask": "plain",
            "config": self._config,
            "layers": layers_said(model.caches),
            "drafts": layers_said(model.drafts[:1]) if self.drafted else [],
            "sparse": any(isinstance(cache, IndexerKeys) for layer in model.caches for cache in layer),
            "capability": self.capability,
            "dtype": KV_DTYPES[self.dtype].engine,
            "block_size": self.block_tokens,
            "caching": self.caching,
            "tensor": self.tensor,
            "pipeline": self.pipeline,
            "context": self.context,
            "batched": self.batched,
            "drafted": self.drafted,
            "lengths": self.lengths,
            "shares": (3.7, 0.4),
        }


def turns_of(*turns: tuple[int, Sequence[LayerCaches]]) -> tuple[tuple[int, list[dict[str, Any]]], ...]:
    """Turns of layers that keep one cache each, as a setting says them."""
    return tuple((times, [said for (said,) in layers_said(layers)]) for times, layers in turns)


def _cache(said: Mapping[str, Any]) -> FullAttention | SlidingWindow | ChunkedAttention:
    rest = {name: value for name, value in said.items() if name != "kind"}
    return _KINDS[said["kind"]](**rest)


# --- what vLLM answered ----------------------------------------------------------------------------------------------


def record_of(setting: Setting, answer: Mapping[str, Any]) -> dict[str, Any]:
    """Setting and answer as a file holds them: those of the pipeline rank whose blocks are largest."""
    assert "error" not in answer, (setting.rule, answer)
    sizes = answer["block_bytes"]
    groups = answer["workers"][sizes.index(max(sizes))]
    defaults = {one.name: one.default for one in fields(Setting)}
    said = {name: value for name, value in asdict(setting).items() if value != defaults[name]}
    as_read: dict[str, Any] = json.loads(json.dumps(said))
    return as_read | {
        # without prefix caching the engine says max_model_len for the block of a state, which nothing reads
        "groups": sorted(
            [
                REACHES[one["kind"]],
                one["layers"],
                0 if REACHES[one["kind"]] == "state" else one["block_size"],
                one["bytes"],
            ]
            for one in groups
        ),
        "blockBytes": max(sizes),
        "requests": [_request(plan, max(sizes)) for plan in answer["plans"]],
    }


def _request(plan: Mapping[str, Any], block_bytes: int) -> dict[str, Any]:
    needed = plan["needed"]
    pools: list[dict[str, Any]] = []
    for fit in plan["budgets"]:
        if not fit["starts"]:
            pools.append({"bytes": fit["budget"], "starts": False, "longest": fit["longest"]})
            continue
        concurrency = Fraction(fit["blocks"] * block_bytes, needed)
        # vLLM prints the nearest float
        assert float(concurrency) == fit["concurrency"]
        pools.append({"bytes": fit["budget"], "starts": True, "blocks": fit["blocks"], "concurrency": str(concurrency)})
    return {"tokens": plan["tokens"], "needed": needed, "pools": pools}


def path_of(version: str) -> Path:
    """The file of a release: 0.33.0 has layouts-0.33.json."""
    return DATA / f"layouts-{version.rpartition('.')[0]}.json"


def recorded(version: str) -> list[dict[str, Any]]:
    """Every record of a release."""
    found: list[dict[str, Any]] = json.loads(path_of(version).read_text())["layouts"]
    return found


def setting_of(record: Mapping[str, Any]) -> Setting:
    """The setting that a record is about."""
    known = {one.name for one in fields(Setting)}
    said: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in record.items() if name in known
    }
    return Setting(**said)


__all__ = ["REACHES", "VERSIONS", "Setting", "path_of", "record_of", "recorded", "setting_of", "turns_of"]
