"""Pages of docs/ with a part that a script writes: between two marks, so that the rest is prose."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(page: str, script: str, made: Callable[[], str], arguments: Sequence[str]) -> int:
    """Print the part; --write puts it into the page; --check: 1 where the page is out of date. 2 for other words."""
    if set(arguments) - {"--check", "--write"}:
        print(f"usage: python {script} [--check | --write]", file=sys.stderr)
        return 2
    part = made()
    if not arguments:
        print(part, end="")
        return 0
    path = ROOT / page
    text = path.read_text()
    current = renewed(text, script, part)
    if "--write" in arguments:
        path.write_text(current)
        return 0
    if text != current:
        print(f"{page} is out of date: run python {script} --write", file=sys.stderr)
    return int(text != current)


def renewed(text: str, script: str, part: str) -> str:
    """The page with `part` between the marks of `script`."""
    begin, end = f"<!-- begin: {script} -->\n", f"<!-- end: {script} -->\n"
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n{part}\n{end}{after}"


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows as a Markdown table; the second row is the one with dashes."""
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)
