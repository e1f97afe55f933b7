"""`hisparse curve`: concurrency and capacity ratio by the length of requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hisparse.curve import Point, curve
from hisparse.plan import Plan, Shortfall
from hisparse.rounding import decimal
from hisparse_toolkit.amounts import amount, tokens_text
from hisparse_toolkit.answering import Answer, Canvas, say
from hisparse_toolkit.brief_json import scaling_json
from hisparse_toolkit.manifest import read_manifest
from hisparse_toolkit.open_question import Scaled, scaled
from hisparse_toolkit.plan_command import answer_to
from hisparse_toolkit.plan_json import model_json, node_json, request_json
from hisparse_toolkit.problems import ExitCode
from hisparse_toolkit.question import Options
from hisparse_toolkit.screen import verdict_of
from hisparse_toolkit.sheet import Columns, Sheet, Tone

_NONE = "-"


def run_curve(file: str | None, options: Options, *, as_json: bool) -> ExitCode:
    """Answer, and return the exit code, which is that of the plan."""
    return say("curve", lambda: _ask(file, options), as_json=as_json)


def _ask(file: str | None, options: Options) -> Answer:
    manifest = read_manifest(file) if file is not None else None
    asked = scaled(manifest, options)
    answer = answer_to(asked.question)
    tone = Tone(verdict_of(answer).code)
    if tone is Tone.YES and asked.assumed is not None:
        tone = Tone.WARNING
    points = curve(answer) if isinstance(answer, Plan) else ()
    return Answer(
        tone,
        tone.word,
        lambda canvas: sheet_of(asked, answer, points, canvas),
        lambda: body_of(asked, answer, points),
        from_manifest=manifest is not None,
    )


# --- the screen ------------------------------------------------------------------------------------------------------


def sheet_of(asked: Scaled, answer: Plan | Shortfall, points: tuple[Point, ...], canvas: Canvas) -> Sheet:
    """The screen: one plot of concurrency, one of the ratio where there is a tier, and the numbers."""
    target = answer.target
    length = f"up to {tokens_text(target.max_tokens)}" if target.max_tokens > 1 else "of 1 token"
    headline = f"{answer.model.name} {length} on {target.gpus} x "
    headline += answer.node.product.removeprefix("NVIDIA-")
    if isinstance(answer, Shortfall):
        facts = (
            ("binds", f"{answer.limit.resource.value}: {answer.limit.message}"),
            ("change", answer.limit.remedy),
        )
        return Sheet(Tone.NO, "DOES NOT FIT", headline, facts=facts, warnings=asked.warnings)
    # the library behind it costs a tenth of a second, which --json does not pay
    from hisparse_toolkit.curve import drawing  # noqa: PLC0415

    tiered = answer.tiered is not None
    lines = [("plain KV", "x", [(point.tokens, point.plain) for point in points])]
    if tiered:
        lines.append((answer.mode.value, "dot", [(point.tokens, point.tier) for point in points]))
    drawings = [
        drawing(
            "requests at once by their length in tokens",
            lines,
            width=canvas.width,
            colour=canvas.colour,
            ascii_only=canvas.ascii_only,
        )
    ]
    ratios = [(point.tokens, point.ratio) for point in points if point.ratio is not None]
    if ratios:
        drawings.append(
            drawing(
                f"capacity ratio, {answer.mode.value} over plain KV (requests, not speed)",
                [("ratio", "dot", ratios)],
                width=canvas.width,
                colour=canvas.colour,
                ascii_only=canvas.ascii_only,
            )
        )
    best = max(points, key=lambda point: point.tier)
    least, most = amount(answer.at_max.tier), amount(best.tier)
    held = f"{most} REQUEST{'' if most == '1' else 'S'}" if least == most else f"{least} TO {most} REQUESTS"
    tone = Tone.WARNING if answer.warnings or asked.assumed else Tone.YES
    return Sheet(
        tone,
        held,
        headline,
        facts=(
            ("tier", f"{answer.mode.value}: {answer.mode_reason}"),
            ("KV cache", f"{answer.kv_dtype}: {answer.kv_dtype_reason}"),
        ),
        warnings=asked.beside(answer.warnings),
        tables=(_table(points, tiered=tiered),),
        drawings=tuple(drawings),
    )


def _table(points: tuple[Point, ...], *, tiered: bool) -> Columns:
    if not tiered:
        rows = tuple((f"{point.tokens:,}", amount(point.plain)) for point in points)
        return Columns("", ("tokens", "plain KV"), rows, texts=())
    rows_of_three = tuple(
        (
            f"{point.tokens:,}",
            amount(point.plain),
            amount(point.tier),
            _NONE if point.ratio is None else f"x {decimal(point.ratio)}",
        )
        for point in points
    )
    return Columns("", ("tokens", "plain KV", "with tier", "capacity ratio"), rows_of_three, texts=())


# --- the document ----------------------------------------------------------------------------------------------------


def body_of(asked: Scaled, answer: Plan | Shortfall, points: tuple[Point, ...]) -> Mapping[str, Any]:
    """The keys of hisparse.dev/curve/v1 beside those of every schema."""
    plan = answer if isinstance(answer, Plan) else None
    return {
        "model": model_json(answer.model),
        "node": node_json(answer.node),
        "request": request_json(answer.target),
        "assumedScaling": scaling_json(asked),
        "mode": plan.mode.value if plan else None,
        "kvCacheDtype": plan.kv_dtype if plan else None,
        "points": [
            {
                "tokens": point.tokens,
                "plain": decimal(point.plain),
                "tier": decimal(point.tier),
                "ratio": None if point.ratio is None else decimal(point.ratio),
            }
            for point in points
        ],
    }
