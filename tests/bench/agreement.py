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

from kv_logs import AT_HAND, BLIND, EXCEPTIONS, Case, Check, cases, predict  # noqa: E402 - the path has to be there first
from tests.bench.pages import run, table  # noqa: E402

from hisparse.errors import SpecError  # noqa: E402

_CHOSEN = ("chosen to fit", "derived from the logged")


def part() -> str:
    """Medians and every case, file by file."""
    return "\n".join(
        f"### {title}\n{_summary(cases(name))}\n{_cases(cases(name))}"
        for title, name in (("At hand while the rules were written", AT_HAND), ("Blind", BLIND))
    )


def _summary(found: Sequence[Case]) -> str:
    judged = [case for case in found if case["id"] not in EXCEPTIONS]
    every = [check for case in judged for check in predict(case).checks()]
    unchosen = [check for case in judged if not _chosen(case) for check in predict(case).checks()]
    inside = sum(not check.error for check in every)
    return (
        f"{len(every)} numbers of {len(judged)} of {len(found)} cases are judged; {inside} lie inside the rounding of the "
        f"log's own GiB line. Error as printed: {_spread(every)}. Without the cases in which a value was chosen to fit, "
        f"{len(unchosen)} numbers: {_spread(unchosen)}.\n"
    )


def _spread(checks: Sequence[Check]) -> str:
    errors = [check.raw_error for check in checks]
    return f"median {_percent(statistics.median(errors))}, largest {_percent(max(errors))}"


def _cases(found: Sequence[Case]) -> str:
    rows = [["case", "vLLM", "printed", "planned", "error as printed"], ["---", "---", "---", "---", "---:"]]
    for case in found:
        try:
            checks = list(predict(case).checks())
        except SpecError:
            rows.append([_name(case), case["vllm_version"], _printed(case), "refused: not modelled", "-"])
            continue
        rows.append(
            [
                _name(case),
                case["vllm_version"],
                "; ".join(f"{one.name} {_figure(one.logged)}" for one in checks),
                "; ".join(_figure(one.said) for one in checks),
                _percent(max(one.raw_error for one in checks)),
            ]
        )
    return table(rows)


def _chosen(case: Case) -> bool:
    return any(word in said for said in case["assumptions"] for word in _CHOSEN)


def _name(case: Case) -> str:
    mark = " *" if _chosen(case) else ""
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
