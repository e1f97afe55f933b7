"""What the screens of the smaller commands say: a first line that is the answer, facts, tables and notes.

Values and words, no terminal; `hisparse_toolkit.sheet_paint` knows columns and colours.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from hisparse_toolkit.problems import ExitCode


class Tone(Enum):
    """How the first line ends: its colour and the exit code."""

    YES = ExitCode.YES
    WARNING = ExitCode.WARNING
    NO = ExitCode.NO

    @property
    def code(self) -> ExitCode:
        """What the command ends with."""
        return ExitCode(self.value)

    @property
    def word(self) -> str:
        """The verdict of the JSON document."""
        return {Tone.YES: "Fits", Tone.WARNING: "FitsWithWarnings", Tone.NO: "DoesNotFit"}[self]


@dataclass(frozen=True)
class Columns:
    """A table. texts are the columns that stand to the left; the others are numbers. title may be empty.

    gap is blanks between two columns.
    """

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    texts: tuple[int, ...] = (0,)
    gap: int = 2


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
