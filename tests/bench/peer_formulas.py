"""What other public KV planners charge one request, re-expressed from their published sources, and the judging of it.

Pure. A formula takes a case of tests/data/kv-logs/cases.json and gives bytes per GPU for one request of the case's
length, or None where the recorded config lacks a field that the tool needs. Each tool gets the best input that it
accepts: the text part of config.json, and the KV cache dtype of the log by name where it has such an option.
Versions and files that were read stand in docs/peers.md. No code of theirs is used.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from hisparse.units import GIB

Case = Mapping[str, Any]
Formula = Callable[[Case], Fraction | None]

CLOSE = Fraction(2, 100)
"""An error up to this counts as right: the logs print GiB with one or two decimals."""

_HALF = 2
_WIZARD_FRAGMENTATION = Fraction(115, 100)
_PLANNER_MLA = ("DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM")
_FULL_ATTENTION = ("attention", "full_attention", "global_attention")
_CALCULATOR_ROW = {1: 576, 2: 1152}
_CALCULATOR_INDEXER_ROW = 132


def request_tokens(case: Case) -> int:
    """Tokens of the request: max_model_len of the log, else what the model allows."""
    length: int | None = case["max_model_len"]
    return length if length is not None else int(case["config"]["max_position_embeddings"])


def vllm_wizard(case: Case) -> Fraction | None:
    """vllm-wizard 0.2.0, planning/memory.py and models/metadata.py.

    K and V of every layer, heads of hidden_size / num_attention_heads whatever head_dim says, 15 % for fragmentation.
    The total is held against the memory of all TP ranks together.
    """
    config = case["config"]
    if not _has(config, "hidden_size", "num_attention_heads"):
        return None
    head_dim = config["hidden_size"] // config["num_attention_heads"]
    elements = 2 * _kv_heads(config) * head_dim * config["num_hidden_layers"]
    total = int(elements * request_tokens(case) * _cache_bytes(case) * _WIZARD_FRAGMENTATION)
    return Fraction(total, case["tp"])


def llmd_planner(case: Case) -> Fraction | None:
    """llm-d planner, src/planner/capacity_planner.py (KVCacheDetail, max_concurrent_requests).

    The model's own dtype, never the cache's; MLA by two class names; the total is held against all GPUs' memory.
    """
    config = case["config"]
    if not _has(config, "architectures", "num_attention_heads", "num_key_value_heads"):
        return None
    if config["architectures"][0] in _PLANNER_MLA:
        elements = config["kv_lora_rank"] + config["qk_rope_head_dim"]
    else:
        elements = 2 * config["num_key_value_heads"] * _head_dim(config)
    total = elements * config["num_hidden_layers"] * _HALF * request_tokens(case)
    return Fraction(total, case["tp"] * case["pp"])


def kaito_node_estimator(case: Case) -> Fraction | None:
    """KAITO as its node estimator counts: nodesestimator/estimator.go divides by the node's GPUs for every model."""
    total = _kaito_token_bytes(case["config"]) * request_tokens(case)
    return Fraction(total, case["tp"])


def kaito_documented(case: Case) -> Fraction | None:
    """KAITO as website/docs/memory-estimator.md says: an MLA cache is whole on every tensor-parallel rank."""
    replicated = "kv_lora_rank" in case["config"]
    total = _kaito_token_bytes(case["config"]) * request_tokens(case)
    return Fraction(total, case["pp"] * (1 if replicated else case["tp"]))


def hf_mem_056(case: Case) -> Fraction | None:
    """hf-mem 0.5.6, safetensors/kv_cache.py: where kinds of layers are mixed, every layer keeps the whole request."""
    return _hf_mem(case, capped=False)


def hf_mem_055(case: Case) -> Fraction | None:
    """hf-mem 0.5.5: layers without full attention keep sliding_window tokens, where the config has that."""
    return _hf_mem(case, capped=True)


def hisparse_calculator(case: Case) -> Fraction | None:
    """Row sizes of vLLM's HiSparse concurrency calculator, on the layers of the case's model.

    The page is for GLM-5.3: blocks of 3,052,800 B (fp8) and 5,928,192 B (bf16) of 64 tokens are 78 rows of 576 or
    1,152 B and 21 indexer rows of 132 B. It says itself that TP does not divide them and that MTP is not counted.
    """
    config = case["config"]
    if case["arch"] != "dsa":
        return None
    row = _CALCULATOR_ROW[_cache_bytes(case)] + _CALCULATOR_INDEXER_ROW
    return Fraction(row * config["num_hidden_layers"] * request_tokens(case))


PEERS: Mapping[str, Formula] = {
    "vllm-wizard 0.2.0": vllm_wizard,
    "llm-d planner": llmd_planner,
    "KAITO node estimator": kaito_node_estimator,
    "KAITO as documented": kaito_documented,
    "hf-mem 0.5.6": hf_mem_056,
    "hf-mem 0.5.5": hf_mem_055,
    "HiSparse calculator's rows": hisparse_calculator,
}

_CLASSES = {
    "dense-gqa": "dense",
    "dense-mha": "dense",
    "moe-gqa": "MoE",
    "moe-gqa-kvreplicated": "KV heads < TP",
    "mla": "MLA, bf16",
    "dsa": "DSA",
    "swa-hybrid": "sliding-window hybrid",
    "linear-hybrid": "linear hybrid",
    "linear-hybrid-moe": "linear hybrid",
    "linear-hybrid-int8kv": "linear hybrid, int8 or int4 KV",
}

_UNUSABLE_FLAGS = {
    "pp-check-bug": "vLLM's own check was wrong: it charged all layers to one pipeline rank",
    "inconsistent": "the log's GiB and its concurrency do not belong together",
    "not-modelled": "a cache layout that no planner here models",
}
"""Flag `rank-mismatch` stays in: the two lines come from ranks whose memory is 0.3 % apart."""


def left_out(case: Case) -> str | None:
    """Why a case gives nothing to compare with, or None."""
    if case["flag"] in _UNUSABLE_FLAGS:
        return _UNUSABLE_FLAGS[case["flag"]]
    if case["dcp"] > 1:
        return "decode context parallelism, for which no peer has an option"
    if logged_request_bytes(case) is None:
        return "the log has no GiB of KV cache"
    return None


def logged_request_bytes(case: Case) -> Fraction | None:
    """Bytes per GPU that one request takes by the log, or None where it does not say.

    "x GiB is needed" says it directly. Otherwise it is available / concurrency, taken from the token count where
    that has more digits: since about 0.20 tokens are concurrency x max_model_len, before that they are those of the
    blocks, which means nothing where groups of layers share the blocks.
    """
    log, tokens = case["log"], request_tokens(case)
    if "needed_gib" in log:
        return _exact(log["needed_gib"]) * GIB
    if "avail_gib" not in log:
        return None
    available = _exact(log["avail_gib"]) * GIB
    if "tokens" in log and (case["log_style"] == "new" or "hybrid" not in case["arch"]):
        return available * Fraction(tokens, log["tokens"])
    return available / _exact(log["concurrency"]) if "concurrency" in log else None


@dataclass(frozen=True)
class Spread:
    """Errors of one formula over a class of cases, as fractions of what the log says; empty without a figure."""

    errors: tuple[Fraction, ...]

    @property
    def close(self) -> int:
        """Cases within 2 %."""
        return sum(abs(error) <= CLOSE for error in self.errors)

    @property
    def percent(self) -> tuple[int, int, int] | None:
        """Median, smallest and largest error in whole percent."""
        if not self.errors:
            return None
        chosen = (statistics.median(self.errors), min(self.errors), max(self.errors))
        median, least, most = (round(error * 100) for error in chosen)
        return median, least, most


def by_class(cases: Sequence[Case]) -> dict[str, list[Case]]:
    """The cases that can be compared, by the kind of their cache, in the order of the table."""
    usable = [case for case in cases if left_out(case) is None]
    groups: dict[str, list[Case]] = {name: [] for name in _CLASSES.values()}
    for case in usable:
        groups[_CLASSES[case["arch"]]].append(case)
    return {name: members for name, members in groups.items() if members}


def spread(cases: Sequence[Case], formula: Formula) -> Spread:
    """How far a formula is from the logs: plus charges too much, minus promises room that is not there."""
    errors = []
    for case in cases:
        charged, logged = formula(case), logged_request_bytes(case)
        if charged is not None and logged is not None:
            errors.append(charged / logged - 1)
    return Spread(tuple(errors))


def _hf_mem(case: Case, *, capped: bool) -> Fraction | None:
    config, tokens = case["config"], request_tokens(case)
    if not _has(config, "architectures", "hidden_size", "num_attention_heads"):
        return None
    full = _full_layers(config)
    others = config["num_hidden_layers"] - full
    window = min(config.get("sliding_window") or tokens, tokens)
    kept = window if capped or not full else tokens
    rows = full * tokens + others * kept
    # it has no notion of tensor parallelism: the total, shared out
    return Fraction(2 * _kv_heads(config) * _head_dim(config) * rows * _cache_bytes(case), case["tp"])


def _full_layers(config: Mapping[str, Any]) -> int:
    layers: int = config["num_hidden_layers"]
    if "sliding_window_pattern" in config:
        return layers // int(config["sliding_window_pattern"])
    if "layer_types" in config:
        # cases.json holds this list as counts
        counts = Counter(config["layer_types"])
        return sum(counts[kind] for kind in _FULL_ATTENTION)
    return layers


def _kaito_token_bytes(config: Mapping[str, Any]) -> int:
    """presets/workspace/generator/generator.go: all layers, 2 bytes, latent and rope where there is a kv_lora_rank."""
    if "kv_lora_rank" in config:
        elements = config["kv_lora_rank"] + config.get("qk_rope_head_dim", 0)
    else:
        elements = 2 * _kv_heads(config) * _head_dim(config)
    return int(elements * config["num_hidden_layers"] * _HALF)


def _cache_bytes(case: Case) -> int:
    """Bytes of one element by the option that the tools have: fp8, else the model's 16 bits (int8 and int4 too)."""
    return 1 if case["kv_cache_dtype"].startswith("fp8") else _HALF


def _kv_heads(config: Mapping[str, Any]) -> int:
    return int(config.get("num_key_value_heads", config["num_attention_heads"]))


def _head_dim(config: Mapping[str, Any]) -> int:
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])


def _has(config: Mapping[str, Any], *keys: str) -> bool:
    return all(key in config for key in keys)


def _exact(printed: float) -> Fraction:
    """The decimal that the log printed, not the binary float next to it."""
    return Fraction(str(printed))
