"""What a command says instead of an answer, and the exit codes that scripts see."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from hisparse.errors import SpecError


class ExitCode(IntEnum):
    """The exit codes of every `hisparse` command."""

    YES = 0
    WARNING = 1
    BAD_INPUT = 2
    NO = 3
    UNKNOWN = 4
    BUG = 70
    """EX_SOFTWARE of sysexits.h: the command itself is at fault, and there is no answer."""
    INTERRUPTED = 130
    TERMINATED = 143


@dataclass(frozen=True)
class Problem:
    """One fault of the input. `field` is a field of the object, an option, or a file; the message says what to do."""

    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


class NoAnswerError(Exception):
    """Why there is no answer; `code` is what the command ends with."""

    code: ExitCode
    word: str
    """What a JSON document says in place of a verdict."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class BadInputError(NoAnswerError):
    """The person who asks has to change something."""

    code = ExitCode.BAD_INPUT
    word = "BadInput"

    @classmethod
    def of(cls, error: SpecError) -> BadInputError:
        """Every fault that a SpecError carries."""
        return cls(Problem(fault.field, fault.message) for fault in error.errors)


class NotFoundOutError(NoAnswerError):
    """The question is sound and a fact for its answer could not be had."""

    code = ExitCode.UNKNOWN
    word = "Unknown"


def bad(field: str, message: str) -> BadInputError:
    """One fault as an exception."""
    return BadInputError([Problem(field, message)])
