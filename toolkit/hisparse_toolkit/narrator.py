"""The voice of the demo: numbered steps, the commands it runs, what they say, and how long it took."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.text import Text

from hisparse_toolkit.paint import indented


class Narrator:
    """Tells one story on one console."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._begun = time.monotonic()
        self._steps = 0

    @property
    def elapsed_s(self) -> float:
        """Seconds since the story began."""
        return time.monotonic() - self._begun

    def step(self, title: str) -> None:
        """Begin the next step."""
        self._steps += 1
        self._console.print()
        self._console.print(
            Text.assemble((f"{self._steps}. {title}", "bold"), (f"  [{self.elapsed_s:.0f} s]", "dim")),
            soft_wrap=True,
        )

    def say(self, text: str) -> None:
        """One sentence of our own."""
        self._console.print(Text(f"   {text}"), soft_wrap=True)

    def command(self, line: str) -> None:
        """A command as a person would type it."""
        self._console.print(Text.assemble(("   $ ", "dim"), (line, "cyan")), soft_wrap=True)

    def output(self, text: str) -> None:
        """What a command said."""
        if text.strip():
            indented(text, self._console)

    def shown(self, text: str) -> None:
        """Something that was checked and holds."""
        self._console.print(Text.assemble(("   ok ", "bold green"), text), soft_wrap=True)

    def failed(self, text: str) -> None:
        """Something that was checked and does not hold."""
        self._console.print(Text.assemble(("   FAILED ", "bold red"), text), soft_wrap=True)

    def stopped(self, text: str) -> None:
        """The story ends here because somebody wants it to."""
        self._console.print(Text.assemble(("   stopped ", "bold yellow"), text), soft_wrap=True)

    @contextmanager
    def busy(self, text: str) -> Iterator[None]:
        """Long work: a spinner on a terminal, one line elsewhere."""
        if not self._console.is_terminal:
            self.say(f"{text} ...")
            yield
            return
        with self._console.status(text, spinner="line" if self._console.options.ascii_only else "dots"):
            yield
