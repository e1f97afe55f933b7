"""Rounding, always to the side that promises less."""

from __future__ import annotations

from fractions import Fraction

from hisparse.units import GIB


def whole(value: int, step: int) -> int:
    return -(-value // step) * step


def whole_gib(value: int) -> int:
    return whole(value, GIB)


def quantity_at_least(value: int) -> str:
    return f"{whole_gib(value) // GIB}Gi"


def ceil(value: Fraction | int) -> int:
    exact = Fraction(value)
    return -(-exact.numerator // exact.denominator)


def decimal(value: Fraction) -> str:
    """Two decimals, cut off rather than rounded up: a promise is never rounded in its own favour."""
    hundredths = int(value * 100)
    return f"{hundredths // 100}.{hundredths % 100:02d}"


def cdiv(value: int, step: int) -> int:
    """Ceiling division of non-negative integers."""
    return -(-value // step)


def round_up(value: int, step: int) -> int:
    """The smallest multiple of `step` that is at least `value`."""
    return cdiv(value, step) * step
