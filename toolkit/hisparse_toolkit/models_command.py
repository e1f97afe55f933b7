"""`hisparse models`: what the catalogue knows, so that a name need not be guessed."""

from __future__ import annotations

from typing import Any, Final

from hisparse import catalogue
from hisparse.catalogue import Entry
from hisparse.model import read_config
from hisparse.units import format_bytes
from hisparse_toolkit.problems import ExitCode, Problem
from hisparse_toolkit.streams import print_json, tell

SCHEMA: Final = "hisparse.dev/models/v1"


def run_models(word: str | None, *, as_json: bool) -> ExitCode:
    """List every model whose name has `word` in it; all of them where it is None."""
    found = [one for one in catalogue.ENTRIES if word is None or _has(one, word)]
    if not found:
        tell(Problem("NAME", f'no model of the catalogue has "{word}" in its name; leave it out to see all'))
        return ExitCode.BAD_INPUT
    rows = [_row(one) for one in found]
    if as_json:
        print_json({"schema": SCHEMA, "models": rows})
    else:
        _show(rows)
    return ExitCode.YES


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
    width = max(len(row["repo"]) for row in rows)
    print(f"{'model':<{width}}  {'attention':<13}  {'positions':>9}  weights")
    for row in rows:
        size = format_bytes(row["weightBytes"])
        print(f"{row['repo']:<{width}}  {row['attention']:<13}  {row['maxPositions']:>9,}  {size}")
