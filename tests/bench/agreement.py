"""The planner against public vLLM start-up logs: the table of docs/kv-logs.md.

`python tests/bench/agreement.py` prints it, `--write` puts it into the page, `--check` exits 1 when the page is out of
date.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

ROOT = Path(__file__).parents[2]
# a script finds the modules of its own folder only
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

from kv_logs import Case, cases, predict  # noqa: E402 - the path has to be there first
from tests.bench.pages import run, table  # noqa: E402

from hisparse.errors import SpecError  # noqa: E402

_CHOSEN = ("chosen to fit", "derived from the logged")


def part() -> str:
    """Medians and every case."""
    rows = [["case", "vLLM", "printed", "planned", "error as printed"], ["---", "---", "---", "---", "---:"]]
    every: list[Fraction] = []
    unchosen: list[Fraction] = []
    inside = 0
    for case in cases():
        try:
            checks = list(predict(case).checks())
        except SpecError:
            rows.append([_name(case), case["vllm_version"], _printed(case), "refused: not modelled", "-"])
            continue
        if case["flag"] in (None, "rank-mismatch"):
            every += [one.raw_error for one in checks]
            inside += sum(not one.error for one in checks)
            if not any(word in said for said in case["assumptions"] for word in _CHOSEN):
                unchosen += [one.raw_error for one in checks]
        rows.append(
            [
                _name(case),
                case["vllm_version"],
                "; ".join(f"{one.name} {_figure(one.logged)}" for one in checks),
                "; ".join(_figure(one.said) for one in checks),
                _percent(max(one.raw_error for one in checks)),
            ]
        )
    summary = (
        f"{len(every)} numbers of {len(cases())} cases are judged. {inside} lie inside the rounding of the log's own GiB"
        f" line; the median error as printed is {_percent(statistics.median(every))}, the largest"
        f" {_percent(max(every))}. Without the cases in which a value was chosen to fit: {len(unchosen)} numbers, median"
        f" {_percent(statistics.median(unchosen))}, largest {_percent(max(unchosen))}.\n"
    )
    return f"{summary}\n{table(rows)}"


def _name(case: Case) -> str:
    mark = " *" if any(word in said for said in case["assumptions"] for word in _CHOSEN) else ""
    return f"{case['id']}{mark}" + (f" ({case['flag']})" if case["flag"] else "")


def _printed(case: Case) -> str:
    return "; ".join(f"{key} {value}" for key, value in case["log"].items() if key in ("needed_gib", "tokens"))


def _figure(value: Fraction) -> str:
    return f"{value.numerator:,}" if value.denominator == 1 else f"{float(value):,.2f}"


def _percent(value: Fraction) -> str:
    return f"{float(100 * value):.3f} %"


def main(arguments: Sequence[str]) -> int:
    """0; 1 when --check finds the page out of date; 2 for arguments that mean nothing."""
    return run("docs/kv-logs.md", "tests/bench/agreement.py", part, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
