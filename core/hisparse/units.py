"""Texts for bytes, seconds, watts and tokens, and the exact whole numbers that they mean.

Memory is binary everywhere in this project: texts are Kubernetes quantities ("200Gi") in objects and "50.01 GiB"
for people. Nothing here uses floating point: a pool of 1.1Ti is the same number of bytes on every machine. What is
not whole is rounded up, because every size that is parsed here is a demand.
"""

import math
import re
from fractions import Fraction
from typing import Final

from hisparse.errors import UnitError

KIB: Final = 1024
MIB: Final = 1024**2
GIB: Final = 1024**3
TIB: Final = 1024**4

_DECIMAL_POWERS: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY_SUFFIXES: Final = ("Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_BINARY_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")

# Kubernetes keeps quantities in 64 bits; an exponent of more digits than this is only a way to burn memory.
_QUANTITY = re.compile(
    r"(?P<sign>[+-]?)(?P<number>[0-9]{1,40}(?:\.[0-9]{0,40})?|\.[0-9]{1,40})"
    r"(?P<suffix>[numkMGTPE]?|[KMGTPE]i|[eE][+-]?[0-9]{1,2})"
)
_NUMBER: Final = r"[0-9]{1,18}(?:\.[0-9]{0,18})?|\.[0-9]{1,18}"
_UNIT: Final = r"ns|us|µs|μs|ms|s|m|h"
_DURATION_PART = re.compile(f"(?P<number>{_NUMBER})(?P<unit>{_UNIT})")
_DURATION = re.compile(f"(?:(?:{_NUMBER})(?:{_UNIT}))+")
_SECONDS: Final = {
    "ns": Fraction(1, 10**9),
    "us": Fraction(1, 10**6),
    "µs": Fraction(1, 10**6),
    "μs": Fraction(1, 10**6),
    "ms": Fraction(1, 1000),
    "s": Fraction(1),
    "m": Fraction(60),
    "h": Fraction(3600),
}
_TOKENS = re.compile(r"(?P<number>[0-9]{1,18}(?:\.[0-9]{1,18})?)(?P<suffix>[kKmM]?)")


def parse_quantity(text: str) -> int:
    """The whole number that a Kubernetes quantity means, rounded up as there ("1.5Ti", "64Gi", "500m", "2e3").

    Raises UnitError for anything that Kubernetes would not read as a quantity.
    """
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise UnitError(
            f'"{shortened(text)}" is not a quantity; write a number and, without a space, one of '
            'Ki, Mi, Gi, Ti (binary) or k, M, G, T (decimal), as in "200Gi"'
        )
    value = Fraction(match["number"].rstrip(".")) * _quantity_factor(match["suffix"])
    # Kubernetes rounds away from zero when it has to give a whole number
    whole = math.ceil(value)
    return -whole if match["sign"] == "-" else whole


def _quantity_factor(suffix: str) -> Fraction:
    if suffix in _BINARY_SUFFIXES:
        return Fraction(1024 ** (_BINARY_SUFFIXES.index(suffix) + 1))
    if suffix in _DECIMAL_POWERS:
        return Fraction(10) ** _DECIMAL_POWERS[suffix]
    return Fraction(10) ** int(suffix[1:])


def format_quantity(count: int) -> str:
    """The shortest exact binary quantity: 214748364800 is "200Gi", 1536 MiB is "1536Mi", 1000 is "1000"."""
    suffix = ""
    for larger in _BINARY_SUFFIXES:
        if count == 0 or count % KIB:
            break
        count, suffix = count // KIB, larger
    return f"{count}{suffix}"


def format_bytes(count: int) -> str:
    """Bytes for people, binary, two decimals: "50.01 GiB"; below 1 KiB "512 B"."""
    sign, size = ("-", -count) if count < 0 else ("", count)
    if size < KIB:
        return f"{sign}{size} B"
    for power, unit in enumerate(_BINARY_UNITS[1:], start=1):
        divisor = KIB**power
        hundredths = (size * 200 + divisor) // (2 * divisor)
        if hundredths < KIB * 100 or unit == _BINARY_UNITS[-1]:
            break
    return f"{sign}{hundredths // 100}.{hundredths % 100:02d} {unit}"


def format_watts(milliwatts: int) -> str:
    """Power for people, exact: "700 W", "612.5 W"."""
    whole, rest = divmod(milliwatts, 1000)
    return f"{whole}.{rest:03d}".rstrip("0") + " W" if rest else f"{whole} W"


def parse_duration(text: str) -> int:
    """Whole seconds of a Go duration ("15m", "1h30m", "1.5h", "500ms"), rounded up.

    Raises UnitError for anything else, negative durations and bare numbers other than "0" included.
    """
    return math.ceil(exact_seconds(text))


def exact_seconds(text: str) -> Fraction:
    """The seconds of a Go duration, not rounded: for comparing it with another."""
    if text == "0":
        return Fraction(0)
    if _DURATION.fullmatch(text) is None:
        raise UnitError(
            f'"{shortened(text)}" is not a duration; write numbers with the units h, m, s or ms, as in "15m" or "1h30m"'
        )
    return sum(
        (Fraction(part["number"].rstrip(".")) * _SECONDS[part["unit"]] for part in _DURATION_PART.finditer(text)),
        start=Fraction(0),
    )


def format_duration(seconds: int) -> str:
    """Go duration text without empty parts: 5400 is "1h30m", 90 is "1m30s", 0 is "0s"."""
    if seconds < 0:
        raise UnitError(f"{seconds} seconds is negative; a duration starts at 0")
    hours, rest = divmod(seconds, 3600)
    minutes, rest = divmod(rest, 60)
    parts = ((hours, "h"), (minutes, "m"), (rest, "s"))
    return "".join(f"{number}{unit}" for number, unit in parts if number) or "0s"


def parse_tokens(text: str) -> int:
    """A count of tokens as typed on the command line: "1048576", "128K" (x 1024), "1M" (x 1048576), "1.5M".

    Only the command line reads this; objects hold plain integers, so that nobody has to ask whether K is 1000.
    """
    match = _TOKENS.fullmatch(text)
    value = Fraction(match["number"]) * {"": 1, "k": KIB, "m": MIB}[match["suffix"].lower()] if match else Fraction(0)
    if value <= 0 or value.denominator != 1:
        raise UnitError(
            f'"{shortened(text)}" is not a count of tokens; write a whole number above 0, or one with '
            'K (1,024) or M (1,048,576), as in "128K" or "1M"'
        )
    return value.numerator


def shortened(text: str, limit: int = 64) -> str:
    """The text as it can stand in a message: at most `limit` characters, the rest told by its length."""
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text)} characters)"
