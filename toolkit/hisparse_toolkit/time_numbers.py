"""Numbers of `hisparse time` as texts: claims as they were given, bounds cut off, estimates rounded up."""

from __future__ import annotations

from fractions import Fraction
from typing import Final

from hisparse.rounding import ceil
from hisparse.units import format_duration

MOST_PLACES: Final = 27
"""Decimals that are written; a claim of nanoseconds has fewer."""

_MINUTE: Final = 60
_LONG: Final = 1000
_READABLE: Final = 6


def power(value: int) -> str:
    """A large whole number with three digits, cut off: 3.13e17."""
    digits = str(value)
    if len(digits) <= _READABLE:
        return f"{value:,}"
    return f"{digits[0]}.{digits[1:3]}e{len(digits) - 1}"


def exact(value: Fraction, least: int = 0) -> str:
    """A number as it was given, with all of its decimals and at least so many."""
    places = least
    while places < MOST_PLACES and value * 10**places % 1:
        places += 1
    return _places(int(value * 10**places), places)


def given(value: Fraction) -> str:
    """Seconds as they were claimed."""
    return _whole(int(value)) if value.denominator == 1 else f"{exact(value)} s"


def seconds_text(value: Fraction) -> str:
    """Seconds with a decimal below a minute, whole ones above, rounded up."""
    if value >= _MINUTE:
        return _whole(ceil(value))
    return f"{exact(Fraction(ceil(10 * value), 10))} s"


def at_least(value: Fraction, beside: Fraction | None = None) -> str:
    """Seconds cut off, since a bound is not rounded towards what it rules out: two decimals below a minute."""
    if value < _MINUTE:
        return f"{cut(value, 2, beside)} s"
    text = cut(value, 0, beside)
    return f"{text} s" if "." in text else _whole(int(value))


def cut(value: Fraction, places: int, beside: Fraction | None) -> str:
    """A value with `places` decimals, cut off; with more where it would not show on which side of another it is."""
    while beside is not None and beside < value and int(value * 10**places) <= beside * 10**places:
        if places == MOST_PLACES:
            break
        places += 1
    return _places(int(value * 10**places), places)


def _places(scaled: int, places: int) -> str:
    whole, rest = divmod(scaled, 10**places)
    return f"{whole:,}.{rest:0{places}d}" if places else f"{whole:,}"


def _whole(seconds: int) -> str:
    return f"{seconds} s" if seconds < _LONG else f"{seconds:,} s ({format_duration(seconds)})"
