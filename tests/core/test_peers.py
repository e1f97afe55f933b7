"""The formulas of other planners, by hand on a few logs, and what the comparison finds."""

from __future__ import annotations

import json
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import pytest
from tests.bench.peer_formulas import PEERS, Case, by_class, left_out, logged_request_bytes, spread

from hisparse.units import GIB

ROOT = Path(__file__).parents[2]
CASES: dict[str, Case] = {
    case["id"]: case for case in json.loads((ROOT / "tests" / "data" / "kv-logs" / "cases.json").read_text())["cases"]
}
GROUPS = by_class(list(CASES.values()))


@pytest.mark.parametrize(
    ("case", "peer", "expected"),
    [
        # 32 layers x 2 x 8 heads x 128 x 2 B = 131,072 B
        pytest.param("llama31-8b-3090-v0-20k", "llm-d planner", 131_072 * 20_000, id="dense: llm-d"),
        pytest.param("llama31-8b-3090-v0-20k", "KAITO node estimator", 131_072 * 20_000, id="dense: KAITO"),
        pytest.param("llama31-8b-3090-v0-20k", "hf-mem 0.5.6", 131_072 * 20_000, id="dense: hf-mem"),
        pytest.param("llama31-8b-3090-v0-20k", "vllm-wizard 0.2.0", 3_014_656_000, id="dense: 15 % more"),
        # 40 layers x 2 x 8 heads x 160 (5,120 / 32, where head_dim is 128) x 2 B x 1.15 = 235,520 B
        pytest.param("mistral-small3.2-24b-h100", "vllm-wizard 0.2.0", 235_520 * 16_000, id="head_dim not read"),
        # 48 layers x 2 x 4 heads x 128 = 49,152 B at one byte
        pytest.param("qwen3-30b-a3b-fp8kv", "hf-mem 0.5.6", 49_152 * 100_000, id="fp8: hf-mem has the option"),
        pytest.param("qwen3-30b-a3b-fp8kv", "llm-d planner", 98_304 * 100_000, id="fp8: llm-d has none"),
        # 94 layers x 2 x 4 heads x 128 x 2 B = 192,512 B over eight ranks that hold a head each
        pytest.param("qwen3-235b-2507-fp8-tp8-l40s", "KAITO as documented", 24_064 * 32_768, id="replicated heads"),
        # 61 layers x 576 x 2 B = 70,272 B
        pytest.param("kimi-k2-thinking-tp8", "llm-d planner", 8_784 * 131_072, id="MLA: llm-d divides by TP"),
        pytest.param("kimi-k2-thinking-tp8", "KAITO node estimator", 8_784 * 131_072, id="MLA: KAITO's code too"),
        pytest.param("kimi-k2-thinking-tp8", "KAITO as documented", 70_272 * 131_072, id="MLA: KAITO's document not"),
        # 61 layers x 2 x 64 heads x 112 x 2 B / 8
        pytest.param("kimi-k2-thinking-tp8", "hf-mem 0.5.6", 218_624 * 131_072, id="MLA: hf-mem counts heads"),
        # 78 rows of 576 and 78 indexer rows of 132 B; at bf16 rows of 1,152 B
        pytest.param("glm51-tp8-mtp0", "HiSparse calculator's rows", 55_224 * 202_752, id="DSA, fp8: calculator"),
        pytest.param("glm5-h200-bf16kv-a", "HiSparse calculator's rows", 100_152 * 202_752, id="DSA, bf16: calculator"),
        pytest.param("glm51-tp8-mtp0", "llm-d planner", 159_744 * 202_752, id="DSA: llm-d counts heads"),
        pytest.param("glm51-tp8-mtp0", "KAITO as documented", 89_856 * 202_752, id="DSA: KAITO, no indexers, bf16"),
        pytest.param("glm51-tp8-mtp0", "vllm-wizard 0.2.0", Fraction(223_480_066_867, 8), id="DSA: vllm-wizard"),
        # 8,192 B a layer; 62 layers of 4,096 tokens, or 10 of them and 52 of the window's 1,024
        pytest.param("gemma3-27b-mi300x", "hf-mem 0.5.6", 2_080_374_784, id="sliding windows: reserved in full"),
        pytest.param("gemma3-27b-mi300x", "hf-mem 0.5.5", 771_751_936, id="sliding windows: capped"),
        # 64 layers, 16 of them with a cache: 64 x 2 x 4 heads x 256 x 2 B
        pytest.param("qwen38-27b-5090-int8tok", "hf-mem 0.5.6", 262_144 * 262_144, id="linear layers counted, int8"),
    ],
)
def test_formula_by_hand(case: str, peer: str, expected: int | Fraction) -> None:
    assert PEERS[peer](CASES[case]) == expected


def test_a_config_that_lacks_a_field_gives_no_figure() -> None:
    case = CASES["mistral-small4-119b-h100x2"]
    assert {name for name, formula in PEERS.items() if formula(case) is not None} == {
        "KAITO node estimator",
        "KAITO as documented",
    }


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        pytest.param("granite3.1-8b-a10g", Fraction(5 * GIB), id="what the refusal says is needed"),
        pytest.param("minimax-m2-tp4-need", Fraction(1162, 100) * GIB, id="the decimal as printed"),
        pytest.param("llama31-8b-3090-v0-20k", Fraction(381, 156) * GIB, id="available by concurrency"),
        pytest.param("glm51-tp8-mtp0", Fraction(1955, 100) * GIB * 202_752 / 341_504, id="by tokens, which say more"),
        pytest.param("gemma3-27b-mi300x", Fraction(10_986, 5_005) * GIB, id="an old hybrid's tokens mean nothing"),
        pytest.param(
            "gemma4-31b-b300", Fraction(18_237, 100) * GIB * 16_384 / 217_116, id="a new hybrid's are concurrency"
        ),
        pytest.param("qwen35-27b-h20", None, id="no GiB in the log"),
    ],
)
def test_bytes_by_the_log(case: str, expected: Fraction | None) -> None:
    assert logged_request_bytes(CASES[case]) == expected


def test_every_case_is_compared_or_left_out_with_a_reason() -> None:
    compared = {case["id"] for members in GROUPS.values() for case in members}
    without = {name for name, case in CASES.items() if left_out(case) is not None}
    assert compared | without == set(CASES)
    assert not compared & without
    assert (len(compared), len(without)) == (36, 13)


@pytest.mark.parametrize(
    ("group", "count", "medians"),
    [
        pytest.param("dense", 11, (15, 0, 0, 0, 0, 0, None), id="dense"),
        pytest.param("MoE", 4, (-42, 50, 50, 50, 0, 0, None), id="MoE"),
        pytest.param("KV heads < TP", 1, (-71, -50, -50, -50, -50, -50, None), id="KV heads < TP"),
        pytest.param("MLA, bf16", 2, (258, -88, -69, 0, 211, 211, None), id="MLA"),
        pytest.param("DSA", 6, (123, 157, -82, 44, 29, 29, -11), id="DSA"),
        pytest.param("sliding-window hybrid", 2, (8, -1, -1, -1, -1, -72, None), id="sliding windows"),
        pytest.param("linear hybrid", 8, (232, 589, 589, 589, 256, 256, None), id="linear"),
        pytest.param("linear hybrid, int8 or int4 KV", 2, (836, 878, 878, 878, 878, 878, None), id="linear, int8"),
    ],
)
def test_median_error_in_percent(group: str, count: int, medians: tuple[int | None, ...]) -> None:
    members = GROUPS[group]
    found = [spread(members, formula).percent for formula in PEERS.values()]
    assert len(members) == count
    assert tuple(percent and percent[0] for percent in found) == medians


def test_within_two_percent() -> None:
    usable = [case for members in GROUPS.values() for case in members]
    found = {name: spread(usable, formula) for name, formula in PEERS.items()}
    assert {name: (errors.close, len(errors.errors)) for name, errors in found.items()} == {
        "vllm-wizard 0.2.0": (0, 35),
        "llm-d planner": (12, 35),
        "KAITO node estimator": (12, 36),
        "KAITO as documented": (14, 36),
        "hf-mem 0.5.6": (14, 35),
        "hf-mem 0.5.5": (14, 35),
        "HiSparse calculator's rows": (2, 6),
    }


def test_the_page_shows_what_the_command_prints() -> None:
    command = [sys.executable, str(ROOT / "tests" / "bench" / "peers.py"), "--check"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
