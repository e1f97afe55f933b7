"""What is said of one flag, variable or program."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Final

# what these hold is not repeated
_SECRET: Final = re.compile(r"(?:key|token|secret|password)(?:_id)?$", re.IGNORECASE)
HIDDEN: Final = "***"


def shown_value(name: str, value: str) -> str:
    """A value as it may be repeated: keys, tokens and passwords are not."""
    return HIDDEN if value and _SECRET.search(name) else value


class Severity(Enum):
    """What follows for the command: it starts, it starts and does not do what is written, or vLLM refuses to start."""

    FINE = 0
    WARNING = 1
    REFUSED = 2


class Kind(StrEnum):
    """What a name is, in this release and in this command."""

    REAL = "Real"
    DEFAULT = "Default"
    """Real, and what holds without it as well."""
    ABBREVIATED = "Abbreviated"
    """The beginning of one flag, which the parser completes."""
    DEPRECATED = "Deprecated"
    RENAMED = "Renamed"
    REMOVED = "Removed"
    NOT_YET = "NotYet"
    """A later release has it."""
    NEVER_EXISTED = "NeverExisted"
    UNKNOWN = "Unknown"
    """No flag or variable of any release read here; a plugin or a fork may know it."""
    NO_EFFECT = "NoEffect"
    HARMFUL = "Harmful"
    """Real, and does damage that the command does not show."""
    BAD_VALUE = "BadValue"
    CONFLICT = "Conflict"
    """Real, and not together with something else in this command."""
    OTHER_PROGRAM = "OtherProgram"
    """Not vLLM's; another program or library reads it."""
    NOT_JUDGED = "NotJudged"


@dataclass(frozen=True)
class Item:
    """One answer. `value` is what was written after the name; `operator` what a HiSparseInference has for it."""

    name: str
    value: str
    kind: Kind
    severity: Severity
    says: str = ""
    instead: str = ""
    source: str = ""
    operator: str = ""


@dataclass(frozen=True)
class Report:
    """All answers for one paste. `release_from` says why it was judged for that release."""

    release: str
    release_from: str
    items: tuple[Item, ...]
    others: tuple[str, ...] = ()
    """Commands of other programs, by their first word."""
    judged: bool = True
    """Whether anything was: not where vLLM is started with subcommands only whose flags are not known here."""

    @property
    def severity(self) -> Severity:
        """The worst of all."""
        return max((item.severity for item in self.items), key=lambda one: one.value, default=Severity.FINE)
