"""Curves by the length of requests, drawn with characters: those of `hisparse plan --plot` and `hisparse curve`."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Final

from hisparse.plan import Plan
from hisparse.rounding import cdiv
from hisparse.units import KIB, MIB

HEIGHT: Final = 15
_ASCII: Final = str.maketrans({**dict.fromkeys("┌┐└┘├┤┬┴┼", "+"), "─": "-", "│": "|", "•": "*"})
_TICK: Final = 9
"""Columns that one length takes below the axis, and some air."""

Line = tuple[str, str, Sequence[tuple[int, Fraction]]]
"""Its name, its marker, and its points: tokens and value."""


def curve_of(plan: Plan, *, width: int, colour: bool, ascii_only: bool = False) -> str:
    """The plan's own curve as text."""
    lines: list[Line] = [("plain KV", "x", [(row.tokens, row.plain) for row in plan.curve])]
    if plan.tiered is not None:
        lines.append((plan.mode.value, "dot", [(row.tokens, row.tier) for row in plan.curve]))
    title = "requests at once by their length in tokens"
    return drawing(title, lines, width=width, colour=colour, ascii_only=ascii_only)


def drawing(title: str, lines: Sequence[Line], *, width: int, colour: bool, ascii_only: bool = False) -> str:
    """Curves as text; one step of length per tick, values on a logarithmic axis. What is not above 0 is left out."""
    import plotext  # noqa: PLC0415  only plots need it

    figure = plotext.figure
    figure.clear()
    figure.plot_size(width, HEIGHT)
    figure.theme("default" if colour else "colorless")
    lengths = sorted({tokens for _, _, points in lines for tokens, value in points if value > 0})
    places = {tokens: place for place, tokens in enumerate(lengths)}
    for label, marker, points in lines:
        shown = [(places[tokens], float(value)) for tokens, value in points if value > 0]
        xs, ys = [place for place, _ in shown], [value for _, value in shown]
        figure.draw(figure.signal(xs, ys, marker=marker).lines().label(label))
    figure.ruler("y").scale("log")
    ticks = _ticks(lengths, width)
    figure.ruler("x").ticks([places[tokens] for tokens in ticks], [_short(tokens) for tokens in ticks])
    figure.title(title)
    drawn = str(figure.build().string(colorless=not colour))
    return drawn.translate(_ASCII) if ascii_only else drawn


def _ticks(lengths: Sequence[int], width: int) -> Sequence[int]:
    """The lengths that have room below the axis, the longest always among them."""
    step = cdiv(len(lengths) * _TICK, width) or 1
    return lengths[::-1][::step][::-1]


def _short(tokens: int) -> str:
    """A length in K (1,024) or M (1,048,576) where it is whole ones."""
    for size, unit in ((MIB, "M"), (KIB, "K")):
        if tokens % size == 0:
            return f"{tokens // size}{unit}"
    return f"{tokens:,}"
