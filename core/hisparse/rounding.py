"""Rounding of whole numbers and fractions, always exact and always to the side that promises less."""

from __future__ import annotations

import math
from fractions import Fraction

from hisparse.units import GIB


def cdiv(value: int, step: int) -> int:
    """The number of steps that hold `value`: value / step rounded up."""
    return -(-value // step)


def round_up(value: int, step: int) -> int:
    """The smallest multiple of `step` that is at least `value`."""
    return cdiv(value, step) * step


def ceil(value: Fraction | int) -> int:
    """The smallest whole number that is at least `value`; exact, since a Fraction is never made a float."""
    return math.ceil(value)


def whole_gib(value: int) -> int:
    """The smallest number of whole GiB, in bytes, that is at least `value` bytes."""
    return round_up(value, GIB)


def quantity_at_least(value: int) -> str:
    """The same as a Kubernetes quantity: "12Gi"."""
    return f"{cdiv(value, GIB)}Gi"


def decimal(value: Fraction) -> str:
    """Two decimals, cut off rather than rounded up: a promise is never rounded in its own favour."""
    hundredths = int(value * 100)
    return f"{hundredths // 100}.{hundredths % 100:02d}"


def number_text(value: Fraction) -> str:
    """A value as people read it: with separators; unless it is whole two decimals, cut off."""
    if value.denominator == 1:
        return f"{value.numerator:,}"
    whole, hundredths = decimal(abs(value)).split(".")
    return f"{'-' if value < 0 else ''}{int(whole):,}.{hundredths}"
