"""What the screens of the smaller commands say: a first line that is the answer, facts, tables and notes.

Values and words, no terminal; `hisparse_toolkit.sheet_paint` knows columns and colours.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from hisparse_toolkit.problems import ExitCode

_NAMES_WIDTH: Final = 28
_STUCK: Final = "\0"
"""Stands for a blank at which no line ends."""


class Tone(Enum):
    """How the first line ends: its colour and the exit code."""

    YES = ExitCode.YES
    WARNING = ExitCode.WARNING
    NO = ExitCode.NO
    UNKNOWN = ExitCode.UNKNOWN

    @property
    def code(self) -> ExitCode:
        """What the command ends with."""
        return ExitCode(self.value)

    @property
    def word(self) -> str:
        """The verdict of the JSON document."""
        return {Tone.YES: "Fits", Tone.WARNING: "FitsWithWarnings", Tone.NO: "DoesNotFit", Tone.UNKNOWN: "Unknown"}[
            self
        ]


@dataclass(frozen=True)
class Columns:
    """A table. texts are the columns that stand to the left; the others are numbers. title may be empty.

    gap is blanks between two columns. optional are those that a narrow terminal does without, the first one first.
    """

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    texts: tuple[int, ...] = (0,)
    gap: int = 2
    optional: tuple[int, ...] = ()


@dataclass(frozen=True)
class Sheet:
    """One screen, in the order in which it is shown.

    answer is the answer in a few words, headline what was asked. Drawings are lines as they are, before the
    tables. A note begins with its mark. command is one to paste,
    never broken over lines.
    """

    tone: Tone
    answer: str
    headline: str
    facts: tuple[tuple[str, str], ...] = ()
    warnings: tuple[str, ...] = ()
    tables: tuple[Columns, ...] = ()
    drawings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    command: str = ""
    legend: str = ""

    def worded(self, change: Callable[[str], str]) -> Sheet:
        """The same with other words in every sentence; the command to paste stays."""
        tables = (
            replace(one, rows=tuple(tuple(change(cell) for cell in row) for row in one.rows)) for one in self.tables
        )
        return replace(
            self,
            facts=tuple((name, change(text)) for name, text in self.facts),
            warnings=tuple(change(text) for text in self.warnings),
            tables=tuple(tables),
            notes=tuple(change(text) for text in self.notes),
        )


def by_reason(told: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Names and why: every reason once, behind the names of all that have it, a few of them to a line."""
    names: dict[str, list[str]] = {}
    for name, why in told:
        names.setdefault(why, []).append(name.replace(" ", _STUCK))
    return tuple(
        (textwrap.fill(", ".join(found), _NAMES_WIDTH, break_on_hyphens=False).replace(_STUCK, " "), why)
        for why, found in names.items()
    )
