"""Sheets on a terminal or in a pipe."""

from __future__ import annotations

from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from hisparse_toolkit.sheet import Columns, Sheet, Tone

_STYLES: Final = {Tone.YES: "bold green", Tone.WARNING: "bold yellow", Tone.NO: "bold red"}


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
        console.print(_columns(table))
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


def _columns(one: Columns) -> Table:
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
