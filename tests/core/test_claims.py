"""docs/claims.md is what the planner computes, and its commands end as it says."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import pytest
from tests.bench import claims
from tests.bench.claims import BEGIN, END, PAGE, Row, all_rows, fit_verdict, page_tables, vector_bits, wide_shape

from hisparse.units import GIB
from hisparse_toolkit.cli import main

ROWS = all_rows()


def row(start: str) -> Row:
    return next(one for one in ROWS if one.claim.startswith(start))


def test_the_page_says_what_is_computed() -> None:
    _, _, rest = PAGE.read_text().partition(BEGIN)
    told, _, _ = rest.partition(END)
    assert told.strip() == page_tables().strip()


def test_a_changed_figure_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = tmp_path / "claims.md"
    copy.write_text(PAGE.read_text().replace("8,388,608", "8,388,609"))
    monkeypatch.setattr(claims, "PAGE", copy)
    monkeypatch.setattr(claims, "ROOT", tmp_path)
    assert claims.main(["--check"]) == 1
    assert claims.main(["--write"]) == 0
    assert copy.read_text() == PAGE.read_text()
    assert claims.main(["--check"]) == 0


def test_the_script_knows_its_arguments() -> None:
    script = Path(claims.__file__)
    done = subprocess.run([sys.executable, script, "--bogus"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--write" in done.stderr


@pytest.mark.parametrize("one", [one for one in ROWS if one.command], ids=lambda one: one.claim[:40])
def test_every_command_ends_as_the_page_says(
    one: Row, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HISPARSE_NO_HUB", "1")
    name, *words = shlex.split(one.command or "")
    assert name == "hisparse"
    assert main(words) == one.code
    assert capsys.readouterr().err == ""


def test_the_command_shows_the_figure_of_its_claim(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HISPARSE_NO_HUB", "1")
    for start, pattern in (
        ("800,000 tokens prefilled", r"about \d+ times too fast"),
        ("That model decodes", r"at most [\d.]+"),
        ("Two A100", r"[\d.]+ GiB of KV"),
    ):
        one = row(start)
        figure = re.search(pattern, f"{one.verdict} {one.arithmetic}")
        assert figure is not None
        main(shlex.split(one.command or "")[1:])
        shown = " ".join(capsys.readouterr().out.split())
        assert figure[0].removesuffix(" of KV") in shown


# --- the figures, worked out by hand -------------------------------------------------------------------------------


def test_bytes_of_the_wide_shape() -> None:
    assert claims.token_bytes(wide_shape(), "Bf16") == 2 * 128**3 * 2 == 8_388_608
    assert "8.38 TB" in row("128 layers x 128 heads").arithmetic
    assert "1,997 times" in row("128 layers x 128 heads").verdict


@pytest.mark.parametrize(
    ("index_bits", "block", "bits"),
    [
        # 64 atoms x 128 values x 16 bits over the block
        pytest.param(10, 1000, 208 + Fraction(131_072, 1000), id="as written"),
        pytest.param(6, 1000, 176 + Fraction(131_072, 1000), id="indices of 64 atoms"),
        pytest.param(10, 100, 208 + Fraction(131_072, 100), id="short blocks"),
    ],
)
def test_bits_of_a_sparse_code(index_bits: int, block: int, bits: Fraction) -> None:
    assert vector_bits(index_bits=index_bits, block_tokens=block) == bits


def test_arithmetic_of_a_million_tokens_of_the_wide_shape() -> None:
    # 128 layers, 128 heads, 4 x 128 FLOP a pair, 10^12 / 2 pairs
    assert "4.19e18 FLOP, 530 s" in row("1M tokens in").arithmetic


@pytest.mark.parametrize(
    ("over", "verdict"),
    [
        pytest.param(5 * GIB, "true: fits, 5.00 GiB over on each GPU", id="over"),
        pytest.param(-5 * GIB, "false: 5.00 GiB short on each GPU", id="short"),
        pytest.param(GIB // 2, "true: fits, 512.00 MiB over on each GPU; the estimates", id="barely over"),
        pytest.param(-GIB // 2, "false: 512.00 MiB short on each GPU; the estimates", id="barely short"),
    ],
)
def test_what_is_said_of_a_fit(over: int, verdict: str) -> None:
    assert fit_verdict(over).startswith(verdict)


def test_every_row_has_a_verdict_of_a_known_kind() -> None:
    kinds = ("true", "false", "impossible", "implausible", "plausible", "inconsistent", "capacity true")
    assert [one.verdict for one in ROWS if not one.verdict.startswith(kinds)] == []
    assert len({one.claim for one in ROWS}) == len(ROWS)
