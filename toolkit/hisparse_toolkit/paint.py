"""Screens on a terminal or in a pipe: the only module that knows columns and colours."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import IO, Final

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from hisparse_toolkit.screen import UNTOLD, Amount, LengthLine, Screen, Shell, Sum, Verdict
from hisparse_toolkit.sheet import Columns
from hisparse_toolkit.sheet_paint import columns
from hisparse_toolkit.streams import wished_width

PIPED_WIDTH: Final = 100
"""Columns where nobody looks and COLUMNS does not say: the same text on every machine."""

_WIDEST: Final = 132
_SIDE_BY_SIDE: Final = 96
_WHY_COLUMN: Final = 40

_VERDICTS: Final[dict[Verdict, tuple[str, str]]] = {
    Verdict.FITS: ("FITS", "bold green"),
    Verdict.FITS_WITH_WARNINGS: ("FITS, with warnings", "bold yellow"),
    Verdict.DOES_NOT_FIT: ("DOES NOT FIT", "bold red"),
}


def console_for(file: IO[str] | None = None) -> Console:
    """A console that colours only a terminal, and is as wide as COLUMNS says, else as it, else PIPED_WIDTH."""
    target = sys.stdout if file is None else file
    console = Console(file=target, highlight=False, soft_wrap=False)
    width = min(console.width, _WIDEST) if console.is_terminal else PIPED_WIDTH
    return Console(file=target, highlight=False, width=wished_width() or width)


def paint(screen: Screen, console: Console) -> None:
    """Print the whole screen."""
    page(console, lambda: _paint(screen, console))


def page(console: Console, draw: Callable[[], object]) -> None:
    """Draw on a terminal as it is, elsewhere without blanks at the ends of lines."""
    if console.is_terminal:
        draw()
        return
    # tables pad their lines; a file or a diff should not hold that
    with console.capture() as capture:
        draw()
    for line in capture.get().splitlines():
        console.file.write(f"{line.rstrip()}\n")


def _paint(screen: Screen, console: Console) -> None:
    word, style = _VERDICTS[screen.verdict]
    console.print(Text.assemble((word, style), "  ", (screen.headline, "bold")))
    console.print(_pairs(screen.answers))
    for warning in screen.warnings:
        console.print(_hanging("warning  ", warning, "yellow"))
    blocks = [_sum(one) for one in screen.sums]
    if blocks:
        console.print(_beside(blocks, console))
    if screen.lengths:
        console.print(_beside([_lengths(screen.lengths, console.width), _times(screen.times)], console))
    for line in screen.script:
        # what somebody pastes is never broken over lines by us
        console.print(_shell(line, console.width), soft_wrap=True)
    console.print(Text(screen.legend, style="dim"))


def _pairs(pairs: Iterable[tuple[str, str]]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in pairs:
        table.add_row(name, Text(text))
    return table


def _sum(one: Sum) -> Table:
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_row(Text(one.title, style="bold"))
    for amount in one.amounts:
        table.add_row(*_amount(amount))
    return table


def _amount(amount: Amount) -> tuple[Text, Text, Text]:
    style = "bold" if amount.total else ""
    return (
        Text(f"  {amount.name}", style=style),
        Text("~" if amount.estimate else "", style="yellow"),
        Text(amount.text, style=style),
    )


def _lengths(lines: tuple[LengthLine, ...], width: int) -> RenderableType:
    found = [
        ("tokens", [line.tokens for line in lines]),
        ("plain KV", [line.plain for line in lines]),
        ("with tier", [line.tier for line in lines]),
        ("gain", [line.gain for line in lines]),
        ("speed-up", [line.speedup for line in lines]),
        ("prefill", [line.prefill for line in lines]),
    ]
    told = [(head, cells) for head, cells in found if any(cell != UNTOLD for cell in cells)]
    rows = tuple(zip(*(cells for _, cells in told), strict=True))
    return columns(Columns("", tuple(head for head, _ in told), rows, texts=()), width)


def _times(times: Iterable[tuple[str, str]]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, justify="right")
    table.add_row(Text("times", style="bold"))
    for name, text in times:
        table.add_row(f"  {name}", text)
    return table


def _beside(blocks: Sequence[RenderableType], console: Console) -> RenderableType:
    if console.width < _SIDE_BY_SIDE or len(blocks) == 1:
        return Group(*blocks)
    row = Table.grid(padding=(0, 4))
    for _ in blocks:
        row.add_column()
    row.add_row(*blocks)
    return row


def _hanging(head: str, text: str, style: str) -> Table:
    table = Table.grid()
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row(Text(head, style=style), Text(text))
    return table


def _shell(line: Shell, width: int) -> Text:
    """The line and its reason: beside it where there is room, else above it in as many lines as it takes."""
    if not line.why:
        return Text(line.text)
    gap = " " * max(2, _WHY_COLUMN - len(line.text))
    beside = f"# {line.why}"
    if len(line.text) + len(gap) + len(beside) <= width:
        return Text.assemble(line.text, gap, (beside, "dim"))
    mark = f"{' ' * (len(line.text) - len(line.text.lstrip()))}# "
    above = textwrap.fill(
        line.why,
        width,
        initial_indent=mark,
        subsequent_indent=mark,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return Text.assemble((above, "dim"), "\n", line.text)


def indented(text: str, console: Console, spaces: int = 5) -> None:
    """Print the output of something else, set off from our own words; its lines keep their length."""
    for line in text.rstrip("\n").splitlines():
        console.print(Text(f"{' ' * spaces}{line}".rstrip()), soft_wrap=True)
