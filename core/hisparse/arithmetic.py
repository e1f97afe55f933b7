"""Numbers that remember how they were made, so that a person can make them again with a pocket calculator."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from hisparse.rounding import ceil

_ATOM: Final = 3
_PRODUCT: Final = 2
_SUM: Final = 1


@dataclass(frozen=True)
class Figure:
    """An exact value and its arithmetic: + - x /, floor, ceil, min and max over whole numbers.

    bond is how strongly the last operation holds its parts together, which decides about brackets.
    """

    value: Fraction
    text: str
    bond: int = _ATOM

    def __add__(self, other: Figure) -> Figure:
        return Figure(self.value + other.value, f"{self.text} + {other.text}", _SUM)

    def __sub__(self, other: Figure) -> Figure:
        return Figure(self.value - other.value, f"{self.text} - {other._inside(_PRODUCT)}", _SUM)

    def __mul__(self, other: Figure) -> Figure:
        return Figure(self.value * other.value, f"{self._inside(_PRODUCT)} x {other._inside(_PRODUCT)}", _PRODUCT)

    def __truediv__(self, other: Figure) -> Figure:
        return Figure(self.value / other.value, f"{self._inside(_PRODUCT)} / {other._inside(_ATOM)}", _PRODUCT)

    def _inside(self, least: int) -> str:
        return self.text if self.bond >= least else f"({self.text})"


def figure(value: int | Fraction) -> Figure:
    """A number that is given; a fraction is written as one."""
    exact = Fraction(value)
    if exact.denominator == 1:
        return Figure(exact, f"{exact.numerator:,}")
    return Figure(exact, f"{exact.numerator:,} / {exact.denominator:,}", _PRODUCT)


def floor_of(one: Figure) -> Figure:
    """Rounded down."""
    return Figure(Fraction(one.value.numerator // one.value.denominator), f"floor({one.text})")


def ceil_of(one: Figure) -> Figure:
    """Rounded up."""
    return Figure(Fraction(ceil(one.value)), f"ceil({one.text})")


def least_of(*them: Figure) -> Figure:
    """The smallest."""
    return Figure(min(one.value for one in them), f"min({', '.join(one.text for one in them)})")


def most_of(*them: Figure) -> Figure:
    """The largest."""
    return Figure(max(one.value for one in them), f"max({', '.join(one.text for one in them)})")


def multiple_of(one: Figure, step: int) -> Figure:
    """Rounded up to a whole multiple of `step`."""
    return ceil_of(one / figure(step)) * figure(step)


def total_of(them: list[Figure]) -> Figure:
    """The sum of at least one figure."""
    first, *rest = them
    for one in rest:
        first = first + one
    return first
