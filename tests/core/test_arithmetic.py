"""Figures: the text is the arithmetic, brackets included."""

from __future__ import annotations

from fractions import Fraction

from formulas import evaluated
from hypothesis import given
from hypothesis import strategies as st

from hisparse.arithmetic import (
    Figure,
    ceil_of,
    figure,
    floor_of,
    least_of,
    most_of,
    multiple_of,
    total_of,
)
from hisparse.rounding import number_text

NUMBERS = st.builds(figure, st.integers(0, 10**12) | st.fractions(min_value=0, max_value=1000, max_denominator=99))


def grown(inner: st.SearchStrategy[Figure]) -> st.SearchStrategy[Figure]:
    pair = st.tuples(inner, inner)
    return st.one_of(
        pair.map(lambda two: two[0] + two[1]),
        pair.map(lambda two: two[0] - two[1]),
        pair.map(lambda two: two[0] * two[1]),
        pair.filter(lambda two: two[1].value != 0).map(lambda two: two[0] / two[1]),
        pair.map(lambda two: least_of(*two)),
        pair.map(lambda two: most_of(*two)),
        inner.map(floor_of),
        inner.map(ceil_of),
    )


@given(st.recursive(NUMBERS, grown, max_leaves=12))
def test_the_text_comes_out_at_the_value(one: Figure) -> None:
    assert evaluated(one.text) == one.value


def test_brackets_stand_only_where_they_are_needed() -> None:
    one, two, three = figure(1), figure(2), figure(3)
    assert (one + two * three).text == "1 + 2 x 3"
    assert ((one + two) * three).text == "(1 + 2) x 3"
    assert (one - (two - three)).text == "1 - (2 - 3)"
    assert (one / (two / three)).text == "1 / (2 / 3)"
    assert multiple_of(figure(10), 4).text == "ceil(10 / 4) x 4"
    assert multiple_of(figure(10), 4).value == 12
    assert total_of([one, two, three]).text == "1 + 2 + 3"


def test_numbers_as_people_read_them() -> None:
    assert number_text(Fraction(1_234_567)) == "1,234,567"
    assert number_text(Fraction(29, 3)) == "9.66"
    assert number_text(Fraction(-12_345_678, 10)) == "-1,234,567.80"
    assert number_text(Fraction(-1, 3)) == "-0.33"
