"""Sheets on a terminal or in a pipe."""

from __future__ import annotations

import textwrap
from dataclasses import replace
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from hisparse_toolkit.sheet import Columns, Sheet, Tone

_LEAST_TEXT: Final = 24
"""Columns that a text is given before it is broken into lines of a word or two."""

_STYLES: Final = {Tone.YES: "bold green", Tone.WARNING: "bold yellow", Tone.NO: "bold red", Tone.UNKNOWN: "bold yellow"}


def paint_sheet(sheet: Sheet, console: Console) -> None:
    """Print the whole sheet."""
    if console.is_terminal:
        _paint(sheet, console)
        return
    # tables pad their lines; a file or a diff should not hold that
    with console.capture() as capture:
        _paint(sheet, console)
    for line in capture.get().splitlines():
        console.file.write(f"{line.rstrip()}\n")


def _paint(sheet: Sheet, console: Console) -> None:
    console.print(Text.assemble((sheet.answer, _STYLES[sheet.tone]), "  ", (sheet.headline, "bold")))
    if sheet.facts:
        console.print(_pairs(sheet.facts, "cyan"))
    if sheet.warnings:
        console.print(_pairs(tuple(("warning", one) for one in sheet.warnings), "yellow"))
    for drawing in sheet.drawings:
        console.print(Text.from_ansi(drawing), soft_wrap=True)
    for table in sheet.tables:
        console.print(columns(table, console.width))
    if sheet.notes:
        console.print(_pairs(tuple(_split(note) for note in sheet.notes), "dim"))
    if sheet.command:
        console.print(Text(sheet.command), soft_wrap=True)
    if sheet.legend:
        console.print(Text(sheet.legend, style="dim"))


def _split(note: str) -> tuple[str, str]:
    """A note begins with its mark."""
    mark, _, text = note.partition(" ")
    return mark, text


def _pairs(pairs: tuple[tuple[str, str], ...], style: str) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style=style, no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in pairs:
        table.add_row(name, Text(text))
    return table


# --- tables ----------------------------------------------------------------------------------------------------------


def columns(one: Columns, width: int) -> RenderableType:
    """The table in `width` columns. No cell is ever cut.

    What has no room gets its heads in several lines, then does without its optional columns, one at a time, and
    says so; where even that is too wide, every row becomes a block of lines.
    """
    if _needs(one) <= width:
        return _table(one)
    narrow = _with_broken_heads(one)
    for told in range(len(one.optional) + 1):
        left_out = one.optional[:told]
        fewer = _without(narrow, left_out)
        if _needs(fewer) <= width:
            names = ", ".join(one.heads[index] for index in sorted(left_out))
            note = f"no room for: {names}; a wider terminal or --json has it"
            return Group(_table(fewer), Text(note, style="dim")) if left_out else _table(fewer)
    return _stacked(one)


def _needs(one: Columns) -> int:
    """The least width that cuts nothing; the last column of text may be broken between its words."""
    last = len(one.heads) - 1
    cells = list(zip(one.heads, *one.rows, strict=True))
    widths = [max(_widest(cell) for cell in column) for column in cells]
    if last in one.texts:
        longest_word = max(len(word) for cell in cells[last] for word in (cell.split() or [""]))
        widths[last] = max(longest_word, min(widths[last], _LEAST_TEXT))
    if last:
        widths[0] = max(widths[0], len(one.title))
    return sum(widths) + one.gap * last


def _widest(cell: str) -> int:
    return max(len(line) for line in (cell.splitlines() or [""]))


def _with_broken_heads(one: Columns) -> Columns:
    heads = []
    for index, head in enumerate(one.heads):
        room = max(len(part) for part in (*(row[index] for row in one.rows), *head.split(), ""))
        heads.append("\n".join(textwrap.wrap(head, max(room, 1), break_long_words=False)))
    return replace(one, heads=tuple(heads))


def _without(one: Columns, left_out: tuple[int, ...]) -> Columns:
    kept = [index for index in range(len(one.heads)) if index not in left_out]
    return replace(
        one,
        heads=tuple(one.heads[index] for index in kept),
        rows=tuple(tuple(row[index] for index in kept) for row in one.rows),
        texts=tuple(place for place, index in enumerate(kept) if index in one.texts),
        optional=(),
    )


def _stacked(one: Columns) -> RenderableType:
    blocks: list[RenderableType] = [Text(one.title, style="bold")] if one.title else []
    for row in one.rows:
        # a number says nothing without its head
        blocks.append(Text(row[0] if 0 in one.texts else f"{one.heads[0]} {row[0]}", style="bold"))
        pairs = Table.grid(padding=(0, 2))
        pairs.add_column(no_wrap=True)
        pairs.add_column(overflow="fold")
        for head, cell in zip(one.heads[1:], row[1:], strict=True):
            pairs.add_row(f"  {head}", Text(cell))
        blocks.append(pairs)
    return Group(*blocks)


def _table(one: Columns) -> Table:
    table = Table.grid(padding=(0, one.gap))
    last = len(one.heads) - 1
    for index, _ in enumerate(one.heads):
        text = index in one.texts
        # only the last column of text may be broken over lines
        table.add_column(justify="left" if text else "right", no_wrap=not (text and index == last), overflow="fold")
    if one.title:
        table.add_row(Text(one.title, style="bold"))
    table.add_row(*(Text(head, style="bold") for head in one.heads))
    for row in one.rows:
        table.add_row(*(Text(cell) for cell in row))
    return table
