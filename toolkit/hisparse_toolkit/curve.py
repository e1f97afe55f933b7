"""The curve behind `hisparse plan --plot`: requests at once by their length, plain and with the tier."""

from __future__ import annotations

from typing import Final

from hisparse.plan import Plan

HEIGHT: Final = 15
_ASCII: Final = str.maketrans({**dict.fromkeys("┌┐└┘├┤┬┴┼", "+"), "─": "-", "│": "|", "•": "*"})


def curve_of(plan: Plan, *, width: int, colour: bool, ascii_only: bool = False) -> str:
    """The curve as text; one step of length per tick, concurrency on a logarithmic axis."""
    import plotext  # noqa: PLC0415  only this option needs it

    figure = plotext.figure
    figure.clear()
    figure.plot_size(width, HEIGHT)
    figure.theme("default" if colour else "colorless")
    rows = [row for row in plan.curve if row.plain > 0 and row.tier > 0]
    places = list(range(len(rows)))
    lines = [("plain KV", [float(row.plain) for row in rows], "x")]
    if plan.tiered is not None:
        lines.append((plan.mode.value, [float(row.tier) for row in rows], "dot"))
    for label, values, marker in lines:
        figure.draw(figure.signal(places, values, marker=marker).lines().label(label))
    figure.ruler("y").scale("log")
    figure.ruler("x").ticks(places, [f"{row.tokens:,}" for row in rows])
    figure.title("requests at once by their length in tokens")
    drawn = str(figure.build().string(colorless=not colour))
    return drawn.translate(_ASCII) if ascii_only else drawn
