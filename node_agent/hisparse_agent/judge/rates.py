"""Rates of counters over the readings that were kept.

A counter that went backwards says nothing about its window, and neither does a window that is too short yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Final

from hisparse_agent.judge.verdict import TooShort
from hisparse_agent.judge.view import NS, Moment, View
from hisparse_agent.readings import Absence, GpuReading, Missing, Number

_LEAST_PERCENT: Final = 80
"""A window counts from this share of its length on: polls are never exactly on time."""

PAIR_S: Final = 120
"""Two readings further apart than this are no pair."""


@dataclass(frozen=True)
class Change:
    """How much a counter rose, and in how long."""

    amount: int
    ns: int

    @property
    def per_second(self) -> Fraction:
        return Fraction(self.amount * NS, self.ns)

    @property
    def per_minute(self) -> Fraction:
        return self.per_second * 60

    @property
    def share(self) -> Fraction:
        """Of wall time, for a counter of nanoseconds."""
        return Fraction(self.amount, self.ns)


Counter = Callable[[Moment], Number]


def of_gpu(key: str, pick: Callable[[GpuReading], Number]) -> Counter:
    """A counter of one GPU, found by its UUID or subject."""

    def read(moment: Moment) -> Number:
        gpu = moment.gpus.get(key)
        return Missing(Absence.UNKNOWN, "the GPU was not listed") if gpu is None else pick(gpu)

    return read


def change(view: View, counter: Counter, *, window_s: int) -> Change | Missing:
    """How a counter moved in the last window_s seconds; Missing where that cannot be said (yet)."""
    samples = list(_samples(view, counter, window_s))
    if isinstance(samples[-1][1], Missing):
        return samples[-1][1]
    values = [(age, value) for age, value in samples if isinstance(value, int)]
    if any(later < earlier for (_, earlier), (_, later) in pairwise(values)):
        return Missing(Absence.UNKNOWN, "its counter went backwards")
    span = values[0][0]
    if not reaches(span, window_s):
        return too_short(span, window_s)
    return Change(values[-1][1] - values[0][1], span)


def last_change(view: View, counter: Counter) -> Change | Missing:
    """How a counter moved since the reading before."""
    samples = list(_samples(view, counter, PAIR_S))
    if isinstance(samples[-1][1], Missing):
        return samples[-1][1]
    values = [(age, value) for age, value in samples if isinstance(value, int)][-2:]
    if len(values) == 1:
        return TooShort(Absence.UNKNOWN, "it needs a second reading")
    if values[1][1] < values[0][1]:
        return Missing(Absence.UNKNOWN, "its counter went backwards")
    return Change(values[1][1] - values[0][1], values[0][0])


def lasted(view: View, holds: Callable[[Moment], bool], *, seconds: int) -> bool:
    """Whether something has held in every reading for that long, this one included."""
    span = 0
    for moment in reversed(view.past):
        if not holds(moment):
            return False
        span = moment.age_ns
        if span >= seconds * NS:
            return True
    return reaches(span, seconds)


def reaches(span_ns: int, window_s: int) -> bool:
    """Whether readings over so many nanoseconds fill a window."""
    return span_ns * 100 >= window_s * NS * _LEAST_PERCENT


def too_short(span_ns: int, window_s: int) -> TooShort:
    """The readings do not reach far enough back."""
    if span_ns == 0:
        return TooShort(Absence.UNKNOWN, "it needs a second reading")
    return TooShort(Absence.UNKNOWN, f"it needs {window_s} s of readings and has {span_ns // NS} s")


def _samples(view: View, counter: Counter, window_s: int) -> Iterator[tuple[int, Number]]:
    for moment in view.past:
        if moment.age_ns <= window_s * NS:
            yield moment.age_ns, counter(moment)
