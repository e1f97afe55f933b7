"""Whole numbers as they are typed after an option."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from hisparse.units import parse_tokens, shortened
from hisparse_toolkit.problems import bad

_DIGITS: Final = re.compile(r"[+-]?[0-9]{1,18}")
_GROUPED: Final = re.compile(r"[0-9]{1,3}(?:,[0-9]{3}){1,4}|[0-9]{1,3}(?:_[0-9]{3}){1,4}")
_POWER: Final = re.compile(r"([1-9][0-9]{0,5})[eE]\+?([0-9])")


@dataclass(frozen=True)
class Range:
    """What an option takes. Fields of a spec have the same limits, and judge a number that is one."""

    least: int
    most: int | None
    example: int
    unit: str = ""

    def __str__(self) -> str:
        words = f"a whole number{self.unit} of at least {self.least}"
        return words if self.most is None else f"a whole number{self.unit} from {self.least} to {self.most}"


_PARALLEL: Final = Range(1, 64, 2)
RANGES: Final[Mapping[str, Range]] = {
    "--gpus": Range(1, 64, 8),
    "--node-gpus": Range(1, None, 8),
    "--concurrency": Range(1, 4096, 16),
    "--batched-tokens": Range(64, 1_048_576, 8192),
    "--utilization": Range(50, 97, 92, " of percent"),
    "--tensor": _PARALLEL,
    "--data": _PARALLEL,
    "--pipeline": _PARALLEL,
    "--mtp-tokens": Range(1, 16, 3),
    "--decode-context": _PARALLEL,
    "--wait": Range(1, None, 60, " of seconds"),
    "--deadline": Range(1, 120, 10, " of seconds"),
}


def number(option: str, text: str) -> int:
    """The number that was typed. Raises BadInputError for what is none; limits of spec fields are left to the spec."""
    if _DIGITS.fullmatch(text) is None:
        raise bad(option, f'"{shortened(text)}" is not {RANGES[option]}; write digits, as in {RANGES[option].example}')
    return int(text)


def tokens(text: str) -> int:
    """A count of tokens as core reads it, and with its digits in groups or as a power of ten: 1,000,000 and 1e6.

    Raises UnitError.
    """
    if _GROUPED.fullmatch(text):
        text = re.sub("[,_]", "", text)
    elif power := _POWER.fullmatch(text):
        text = f"{power[1]}{'0' * int(power[2])}"
    return parse_tokens(text)


def bounded(option: str, text: str) -> int:
    """The same for an option that is no field of a spec: its limits are judged here."""
    value, allowed = number(option, text), RANGES[option]
    if value < allowed.least:
        raise bad(option, f"{value} is below {allowed.least}; write for example {allowed.example}")
    if allowed.most is not None and value > allowed.most:
        raise bad(option, f"{value} is above {allowed.most}; write for example {allowed.example}")
    return value
