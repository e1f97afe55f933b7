"""What the planner says of a public vLLM start-up log (tests/data/kv-logs/cases.json).

Reads a case as a person would read the log: the config, the GPU, the parallelism, the dtype, and of the run's switches
only those that the case states; the others are the release's defaults. docs/kv-logs.md says what each case states, and
which cannot be met. What a case says of its own analysis (geometry, evaluation) is not read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from hisparse.accounting import Accounting
from hisparse.architectures import layer_count
from hisparse.config import ConfigFields
from hisparse.grouping import Reach
from hisparse.hardware import GPUS, Gpu
from hisparse.hbm import BATCHED_TOKENS
from hisparse.layers import RecurrentState
from hisparse.layout import NO_DRAFTING, Drafting, KvLayout, kv_layout
from hisparse.model import ModelFacts, read_config
from hisparse.rows import KV_DTYPES, state_bytes
from hisparse.units import GIB

DATA = Path(__file__).parents[1] / "data" / "kv-logs"
Case = Mapping[str, Any]

# the newest release at a date, for sources that give no version
_RELEASES = (
    ("2026-11", "0.33"),
    ("2026-09", "0.30"),
    ("2026-08", "0.27"),
    ("2026-07", "0.26"),
    ("2026-06", "0.22"),
    ("2026-05", "0.20"),
    ("2026-03", "0.17"),
    ("2026-01", "0.14"),
    ("2025-12", "0.12"),
    ("2025-10", "0.11"),
    ("2025-08", "0.10"),
    ("2025-06", "0.9"),
)
# what a config that was derived from its log leaves out and the cache does not depend on
_UNSAID = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "num_attention_heads": 32,
    "hidden_size": 4096,
    "max_position_embeddings": 1_048_576,
}


AT_HAND, BLIND = "cases.json", "blind.json"

_OTHER_RUN = "the GiB line and the concurrency line do not belong together"
_NOT_SIZED = "a layout of its own, which the planner refuses"
_OTHER_RANK = "the GiB line is another GPU's than the token line"
_XPU = "an Intel GPU, whose platform code rounds the blocks of delta nets to 64"

EXCEPTIONS: Mapping[str, str] = {
    "olmo3-7b-6144": _OTHER_RUN,
    "olmo3-7b-34048": _OTHER_RUN,
    "qwen3-coder-30b-pp2": "vLLM 0.15 charged the layers of all pipeline ranks to one",
    "dsv4flash-gh200-need": _NOT_SIZED,
    "dsv4flash-gb10": _NOT_SIZED,
    "whisper-large-v3": _NOT_SIZED,
    "db-r1-h200-020": _OTHER_RANK,
    "nemotron3-nano30-nvfp4-tp2": _OTHER_RANK,
    "qwen35-4b-xpu-5k": _XPU,
    "qwen35-4b-xpu-1k": _XPU,
}
"""Cases that cannot be met, and why: docs/kv-logs.md says more, tests/core/test_kv_logs.py tests each cause."""


def cases(name: str = "*.json") -> list[dict[str, Any]]:
    """Every case of the files of that name; all of them, so that a new file of logs needs no code."""
    return [case for path in sorted(DATA.glob(name)) for case in json.loads(path.read_text())["cases"]]


def budgets() -> list[dict[str, Any]]:
    """The rows that print a whole memory budget."""
    rows = (json.loads(path.read_text()).get("budget_cases", []) for path in sorted(DATA.glob("*.json")))
    return [row for some in rows for row in some]


@dataclass(frozen=True)
class Check:
    """One number of a log, what the planner says in its place, and the range that the log's own rounding leaves."""

    name: str
    logged: Fraction
    said: Fraction
    low: Fraction
    high: Fraction

    @property
    def error(self) -> Fraction:
        """Relative error of the planner's number; 0 inside the log's own rounding."""
        if self.low <= self.logged <= self.high:
            return Fraction(0)
        return abs(self.said - self.logged) / self.logged

    @property
    def raw_error(self) -> Fraction:
        """Relative error against the number as it is printed."""
        return abs(self.said - self.logged) / self.logged


@dataclass(frozen=True)
class Prediction:
    """The planner's answer to one case."""

    case: Case
    model: ModelFacts
    layout: KvLayout
    drafting: Drafting

    def request_bytes(self, tokens: int) -> int:
        """Bytes that one request of `tokens` takes of the pool, on each GPU."""
        return self.layout.request_bytes(tokens)

    def checks(self) -> Iterator[Check]:
        """Every number that the log printed and the planner can say."""
        log, layout = self.case["log"], self.layout
        length = self.case["max_model_len"]
        if "avail_gib" in log:
            low, middle, high = (layout.blocks_in(int(size * GIB)) for size in _interval(log["avail_gib"]))
            if "gpu_blocks" in log:
                yield _check("blocks", log["gpu_blocks"], low, middle, high)
            if "tokens" in log:
                yield _check("tokens", log["tokens"], *(_tokens(layout, n, length) for n in (low, middle, high)))
            if "concurrency" in log and length:
                yield _rounded(
                    "concurrency",
                    log["concurrency"],
                    *(layout.logged_concurrency(n, length) for n in (low, middle, high)),
                )
            if "est_max_len" in log:
                yield _check(
                    "est_max_len",
                    log["est_max_len"],
                    *(layout.longest(int(size * GIB), length) for size in _interval(log["avail_gib"])),
                )
        elif "tokens" in log and "concurrency" in log:
            yield self._two_lines()
        if "needed_gib" in log:
            size = Fraction(layout.request_bytes(length), GIB)
            yield _rounded("needed_gib", log["needed_gib"], size, size, size)
        if "cpu_blocks" in log:
            blocks = layout.blocks_in(log["swap_gib"] * GIB)
            yield _check("cpu_blocks", log["cpu_blocks"], blocks, blocks, blocks)
        yield from self._pages()

    def _two_lines(self) -> Check:
        """Without a GiB line: the concurrency of a pool that prints these tokens."""
        log, layout, length = self.case["log"], self.layout, self.case["max_model_len"]
        groups, block = len(layout.groups), layout.block_tokens
        first = log["tokens"] // block // layout.context_ranks * groups
        low, high = (layout.logged_concurrency(n, length) for n in (first, first + groups - 1))
        return _rounded("concurrency of the printed tokens", log["concurrency"], low, (low + high) / 2, high)

    def _pages(self) -> Iterator[Check]:
        """Block size and padding of hybrids, which the engine works out."""
        log, model = self.case["log"], self.model
        if not model.has_states:
            return
        block = next(g.block_tokens for g in self.layout.groups if g.reach is Reach.FULL)
        logged = log.get("block_logged") or self.case.get("block_size")
        if logged:
            yield _check("block size", logged, block, block, block)
        if "mamba_pad_pct" in log:
            group = next(g for g in self.layout.groups if g.reach is Reach.STATE)
            states = [s for layer in model.caches for s in layer if isinstance(s, RecurrentState)]
            own = max(state_bytes(s, tensor=self.case["tp"], speculative=self.drafting.tokens) for s in states)
            padded = Fraction(100 * (group.bytes // group.layers - own), own)
            yield _rounded("padding of states in %", log["mamba_pad_pct"], padded, padded, padded)


def predict(case: Case) -> Prediction:
    """Answer one case. Raises SpecError where the planner cannot size the architecture."""
    model = read_config(_config(case), name=case["model"], weight_bytes=1)
    drafting = _drafting(case, model)
    layout = kv_layout(
        model,
        _dtype(case["kv_cache_dtype"]),
        _gpu(case["gpu"]),
        tensor=case["tp"],
        pipeline=case["pp"],
        context=case["dcp"],
        batched_tokens=case.get("max_num_batched_tokens") or BATCHED_TOKENS,
        version=release_of(case),
        drafting=drafting,
        block_tokens=None if model.has_states else case.get("block_size"),
        prefix_caching=case.get("prefix_caching"),
        layer_split=_split(case),
    )
    return Prediction(case, model, replace(layout, rules=_as_printed(case, layout.rules)), drafting)


def _as_printed(case: Case, rules: Accounting) -> Accounting:
    """How the token line of this log is made, where the case names no release but a build between two of them."""
    if re.fullmatch(r"\d+\.\d+(\.\d+)?", case["vllm_version"]) or "log_style" not in case:
        return rules
    return replace(rules, tokens_by_concurrency=case["log_style"] == "new")


def _interval(printed: float) -> tuple[Fraction, Fraction, Fraction]:
    """(least, as printed, most) that a figure with two decimals may stand for."""
    text = str(printed)
    half = Fraction(1, 2 * 10 ** max(2, len(text.partition(".")[2])))
    value = Fraction(text)
    return value - half, value, value + half


def _check(name: str, logged: int, low: int, said: int, high: int) -> Check:
    return Check(name, Fraction(logged), Fraction(said), Fraction(low), Fraction(high))


def _rounded(name: str, logged: float, low: Fraction, said: Fraction, high: Fraction) -> Check:
    """A figure that the log prints with two decimals."""
    half = Fraction(1, 200)
    return Check(name, Fraction(str(logged)), said, low - half, high + half)


def _tokens(layout: KvLayout, blocks: int, length: int | None) -> int:
    return layout.logged_tokens(blocks, length or layout.block_tokens)


def release_of(case: Case) -> str:
    said = case["vllm_version"]
    if said.startswith("V0"):
        return "0.6"
    dated = re.search(r"20\d\d-\d\d", said)
    if found := re.search(r"\b0\.\d+(?:\.\d+)?", said):
        # a fork's own number may be older than what it was built from
        return found[0] if "fork" not in said or dated is None else _at(dated[0])
    return _at(dated[0]) if dated else "0.11"


def _at(month: str) -> str:
    return next((version for since, version in _RELEASES if month >= since), "0.6")


def _config(case: Case) -> dict[str, Any]:
    config = {**_UNSAID, **{key: value for key, value in case["config"].items() if not key.startswith("_")}}
    config.setdefault("max_position_embeddings", case["max_model_len"] or 1)
    kinds = config.get("layer_types")
    if isinstance(kinds, Mapping):
        layers = layer_count(ConfigFields(config))
        config["layer_types"] = _spread(kinds, config.pop("layer_types_period", None), layers)
    return config


def _spread(counts: Mapping[str, int], period: list[str] | None, layers: int) -> list[str]:
    """A list of layers from how many there are of each kind; their order only matters to pipeline ranks."""
    if period and layers % len(period) == 0:
        return period * (layers // len(period))
    return [kind for kind, count in counts.items() for _ in range(count)]


def _drafting(case: Case, model: ModelFacts) -> Drafting:
    said = case.get("speculative")
    if not said:
        return NO_DRAFTING
    tokens = re.search(r"(\d+) tokens?", said)
    if "EAGLE" in said:
        return Drafting((model.caches[-1],), int(tokens[1]) if tokens else 1)
    return Drafting(model.drafts[:1], int(tokens[1]) if tokens else 1)


def _split(case: Case) -> tuple[int, ...] | None:
    found = re.search(r"VLLM_PP_LAYER_PARTITION=([\d,]+)", case.get("note") or "")
    return tuple(int(one) for one in found[1].split(",")) if found else None


def _dtype(said: str) -> str:
    word = said.split(" ", maxsplit=1)[0]
    if word in ("auto", "bf16", "bfloat16", "float16"):
        return "Bf16"
    if word.startswith("fp8"):
        return "Fp8"
    return next(name for name, dtype in KV_DTYPES.items() if dtype.engine == word)


def _gpu(said: str) -> Gpu:
    """A card of the right generation: the cache depends on nothing else of it."""
    hopper = re.search(r"H100|H200|H20|GH200", said)
    newest = re.search(r"RTX PRO 6000|50[5-9]0|GB10", said)
    datacentre = re.search(r"B200|B300", said)
    capability = (10, 0) if datacentre else (9, 0) if hopper else (12, 0) if newest else (8, 0)
    return replace(GPUS[0], capability=capability)
