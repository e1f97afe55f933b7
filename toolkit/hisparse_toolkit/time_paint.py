"""The screen of `hisparse time` on a terminal or in a pipe."""

from __future__ import annotations

from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from hisparse_toolkit.sheet import Columns
from hisparse_toolkit.sheet_paint import columns
from hisparse_toolkit.time_answer import TimeVerdict
from hisparse_toolkit.time_screen import TimeScreen

_VERDICTS: Final[dict[TimeVerdict, tuple[str, str]]] = {
    TimeVerdict.ESTIMATED: ("ESTIMATES", "bold"),
    TimeVerdict.ESTIMATED_ONLY: ("ESTIMATES", "bold yellow"),
    TimeVerdict.PLAUSIBLE: ("PLAUSIBLE", "bold green"),
    TimeVerdict.IMPLAUSIBLE: ("IMPLAUSIBLE", "bold yellow"),
    TimeVerdict.IMPOSSIBLE: ("IMPOSSIBLE", "bold red"),
}


def paint_time(screen: TimeScreen, console: Console) -> None:
    """Print the whole screen."""
    if console.is_terminal:
        _paint(screen, console)
        return
    # tables pad their lines; a file or a diff should not hold that
    with console.capture() as capture:
        _paint(screen, console)
    for line in capture.get().splitlines():
        console.file.write(f"{line.rstrip()}\n")


def _paint(screen: TimeScreen, console: Console) -> None:
    word, style = _VERDICTS[screen.verdict]
    console.print(Text.assemble((word, style), "  ", (screen.headline, "bold")))
    pairs = Table.grid(padding=(0, 2))
    pairs.add_column(style="cyan", no_wrap=True)
    pairs.add_column(overflow="fold")
    for name, text in screen.answers:
        pairs.add_row(name, Text(text))
    console.print(pairs)
    for grid in screen.grids:
        console.print(Text(grid.title, style="bold"))
        console.print(columns(Columns("", grid.heads, grid.rows, texts=()), console.width))
    console.print(Text(screen.legend, style="dim"))
