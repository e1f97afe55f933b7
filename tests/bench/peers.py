"""Public KV planners against public vLLM start-up logs: the tables of docs/peers.md.

`python tests/bench/peers.py` prints them, `--write` puts them into the page, `--check` exits 1 when the page is out
of date.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path

ROOT = Path(__file__).parents[2]
# a script finds the modules of its own folder only
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

from kv_logs import predict  # noqa: E402 - the path has to be there first
from tests.bench.pages import run, table  # noqa: E402
from tests.bench.peer_formulas import (  # noqa: E402
    PEERS,
    Case,
    Formula,
    Spread,
    by_class,
    left_out,
    request_tokens,
    spread,
)

CASES = ROOT / "tests" / "data" / "kv-logs" / "cases.json"
PAIR = 2


def ours(case: Case) -> Fraction:
    """What this project's arithmetic charges."""
    return Fraction(predict(case).request_bytes(request_tokens(case)))


COLUMNS: Mapping[str, Formula] = {"hisparse": ours, **PEERS}


def page_tables(cases: Sequence[Case]) -> str:
    """Both tables, as Markdown."""
    groups = by_class(cases)
    usable = [case for members in groups.values() for case in members]
    rows = [
        ["class (cases)", *COLUMNS],
        ["---", *("---:" for _ in COLUMNS)],
        *(
            [f"{name} ({len(members)})", *(_cell(spread(members, formula)) for formula in COLUMNS.values())]
            for name, members in groups.items()
        ),
        ["**within 2 %**", *(_close(spread(usable, formula)) for formula in COLUMNS.values())],
    ]
    reasons: dict[str, list[str]] = {}
    for case in cases:
        if reason := left_out(case):
            reasons.setdefault(reason, []).append(case["id"])
    missing = [
        ["left out because", "cases"],
        ["---", "---"],
        *([reason, ", ".join(names)] for reason, names in reasons.items()),
    ]
    counts = f"{len(usable)} of {len(cases)} cases are compared.\n"
    return "\n".join((table(rows), counts, table(missing)))


def _cell(errors: Spread) -> str:
    if errors.percent is None:
        return "-"
    median, least, most = errors.percent
    if least == most:
        return f"{median:+d} %"
    # the middle of two cases is neither
    return f"{least:+d} %, {most:+d} %" if len(errors.errors) == PAIR else f"{median:+d} % ({least:+d}..{most:+d})"


def _close(errors: Spread) -> str:
    return f"{errors.close} of {len(errors.errors)}"


def main(arguments: Sequence[str]) -> int:
    """0; 1 when --check finds the page out of date; 2 for arguments that mean nothing."""
    return run(
        "docs/peers.md", "tests/bench/peers.py", lambda: page_tables(json.loads(CASES.read_text())["cases"]), arguments
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
