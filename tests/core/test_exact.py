"""No float decides about bytes or blocks: what the deciding modules are written in, and counts beyond a float's digits."""

from __future__ import annotations

import ast
from collections.abc import Collection
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shapes import LLAMA_8B, gpu

import hisparse
from hisparse.layers import SlidingWindow
from hisparse.layout import kv_layout

CORE = Path(hisparse.__file__).parent
DECIDING = (
    "rows",
    "grouping",
    "layout",
    "tier",
    "hbm",
    "room",
    "planner",
    "sizing",
    "limits",
    "hybrid",
    "accounting",
    "rounding",
    "units",
    "weights/ranks",
    "weights/checkpoint",
)
FRACTIONS = {
    "planner": {
        "tier": "LengthRow.tier",
        "at": "LengthRow",
        "requests": "HiSparseLayout.concurrency or KvLayout.concurrency",
        "offload_token_bytes": "HiSparseLayout.offload_token_bytes",
    },
    "sizing": {"tier": "LengthRow.tier"},
    "limits": {
        "at_once": "a concurrency",
        "offload_token_bytes": "HiSparseLayout.offload_token_bytes",
        "both": "a Fraction of bytes",
    },
    "hybrid": {"_side": "Codec._side"},
}
"""Names that stand for Fractions, by module, and why: a true division by or of one of them makes a Fraction."""


EXACT = {"ceil", "floor", "gcd", "lcm", "prod"}
"""Of math, what is exact on whole numbers and Fractions."""


def floats(source: str, fractions: Collection[str] = ()) -> set[str]:
    """What in a module is a float or makes one. fractions are names whose quotients are exact."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.BinOp(op=ast.Div()) | ast.AugAssign(op=ast.Div()):
                names = {
                    one.id if isinstance(one, ast.Name) else one.attr
                    for one in ast.walk(node)
                    if isinstance(one, ast.Name | ast.Attribute)
                }
                if not names & {"Fraction", *fractions}:
                    found.add(ast.unparse(node))
            case ast.Call(func=ast.Name(id="float")) | ast.Constant(value=float()):
                found.add(ast.unparse(node))
            case ast.ImportFrom(module="math", names=imported):
                found |= {one.name for one in imported} - EXACT
            case ast.Attribute(value=ast.Name(id="math"), attr=name) if name not in EXACT:
                found.add(ast.unparse(node))
    return found


@pytest.mark.parametrize("module", DECIDING)
def test_no_float_is_written(module: str) -> None:
    assert floats((CORE / f"{module}.py").read_text(), FRACTIONS.get(module, ())) == set()


@pytest.mark.parametrize(
    "source",
    [
        "size = budget / block",
        "size /= 2",
        "int(float(budget))",
        "int(budget * 0.92)",
        "from math import sqrt",
        "math.log2(budget)",
    ],
)
def test_a_float_that_is_written_is_seen(source: str) -> None:
    assert floats(source, {"tier"})


def test_a_quotient_of_fractions_is_none() -> None:
    assert floats("gain = row.tier / here + Fraction(3, 2) / 4 + 7 // 2", {"tier"}) == set()


# --- counts that a float cannot hold, against whole-number arithmetic of their own -----------------------------------

BLOCK = 32 * 16 * 8 * (128 + 128) * 2
"""One block of Llama 3.1 8B: 32 layers of 16 tokens of 8 heads in 16 bits."""

LAYOUT = kv_layout(LLAMA_8B, "Bf16", gpu("h200"))


@given(blocks=st.integers(10**15 // BLOCK, 2**80), beside=st.integers(-2, 2))
def test_blocks_of_a_huge_pool(blocks: int, beside: int) -> None:
    assert LAYOUT.blocks_in(blocks * BLOCK + beside) == (blocks if beside >= 0 else blocks - 1)


@given(tokens=st.integers(10**7, 2**70))
def test_blocks_of_a_huge_request(tokens: int) -> None:
    whole, rest = divmod(tokens, 16)
    blocks = whole + (rest > 0)
    assert LAYOUT.request_blocks(tokens) == blocks
    assert LAYOUT.needed_bytes(tokens) == (blocks + 1) * BLOCK
    assert not LAYOUT.holds((blocks + 1) * BLOCK - 1, tokens)


@given(blocks=st.integers(10**8, 2**60), beside=st.integers(0, BLOCK - 1))
def test_the_longest_request_of_a_huge_pool(blocks: int, beside: int) -> None:
    """All tokens of all blocks but the null block's."""
    assert LAYOUT.longest(blocks * BLOCK + beside, 2**70) == (blocks - 1) * 16


@given(blocks=st.integers(10**15, 2**80), tokens=st.integers(10**7, 10**9))
def test_concurrency_is_a_fraction_of_whole_blocks(blocks: int, tokens: int) -> None:
    found = LAYOUT.concurrency(blocks, tokens)
    assert isinstance(found, Fraction)
    assert found.numerator * ((tokens + 15) // 16) == blocks * found.denominator


@given(window=st.integers(1, 2**40), tokens=st.integers(1, 2**70))
def test_a_window_of_a_huge_request(window: int, tokens: int) -> None:
    layout = kv_layout(replace(LLAMA_8B, caches=((SlidingWindow(8, 128, 128, window),),)), "Bf16", gpu("h200"))
    held = min(window - 1 + 2 * 8192, tokens)
    assert (layout.request_blocks(tokens) - 2) * 16 < held <= (layout.request_blocks(tokens) - 1) * 16
