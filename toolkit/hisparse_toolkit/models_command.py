"""`hisparse models`: what the catalogue knows, so that a name need not be guessed."""

from __future__ import annotations

from typing import Any, Final

from hisparse import catalogue
from hisparse.catalogue import Entry
from hisparse.model import read_config
from hisparse.units import format_bytes
from hisparse_toolkit.problems import ExitCode, NoAnswerError, bad
from hisparse_toolkit.streams import print_json, tell

SCHEMA: Final = "hisparse.dev/models/v1"


def run_models(word: str | None, *, as_json: bool) -> ExitCode:
    """List every model whose name has `word` in it; all of them where it is None."""
    found = [one for one in catalogue.ENTRIES if word is None or _has(one, word)]
    if not found:
        error = bad("NAME", f'no model of the catalogue has "{word}" in its name; leave it out to see all')
        if as_json:
            print_problem(error)
        for problem in error.problems:
            tell(problem)
        return error.code
    rows = [_row(one) for one in found]
    if as_json:
        head = {"schema": SCHEMA, "verdict": "Found", "exitCode": int(ExitCode.YES)}
        print_json({**head, "models": rows, "errors": []})
    else:
        _show(rows)
    return ExitCode.YES


def print_problem(error: NoAnswerError) -> None:
    """The JSON document where there is no answer: the same keys, and why."""
    print_json(
        {
            "schema": SCHEMA,
            "verdict": error.word,
            "exitCode": int(error.code),
            "models": None,
            "errors": [{"field": one.field, "message": one.message} for one in error.problems],
        }
    )


def _has(entry: Entry, word: str) -> bool:
    return any(word.lower() in name.lower() for name in (entry.repo, *entry.aliases))


def _row(entry: Entry) -> dict[str, Any]:
    facts = read_config(entry.config, name=entry.repo, weight_bytes=entry.weight_bytes)
    return {
        "repo": entry.repo,
        "aliases": list(entry.aliases),
        "attention": facts.attention.value,
        "layers": facts.layers,
        "maxPositions": facts.max_positions,
        "weightBytes": entry.weight_bytes,
        "weightSource": entry.weight_source,
        "source": entry.source,
    }


def _show(rows: list[dict[str, Any]]) -> None:
    # rich costs a tenth of a second, which --json does not pay
    from hisparse_toolkit.paint import console_for, page  # noqa: PLC0415
    from hisparse_toolkit.sheet import Columns  # noqa: PLC0415
    from hisparse_toolkit.sheet_paint import columns  # noqa: PLC0415

    cells = tuple(
        (row["repo"], row["attention"], f"{row['maxPositions']:,}", format_bytes(row["weightBytes"])) for row in rows
    )
    tables = [Columns("", ("model", "attention", "positions", "weights"), cells, texts=(0, 1), optional=(1,))]
    others = tuple((other, row["repo"]) for row in rows for other in row["aliases"])
    if others:
        tables.append(Columns("", ("also known as", "which is planned as"), others, texts=(0, 1)))
    console = console_for()

    def draw() -> None:
        for table in tables:
            console.print(columns(table, console.width))

    page(console, draw)
