"""`hisparse explain`: every term of a plan with its formula in numbers and its source."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any, Final

from hisparse.explanation import BYTES, Section, Step, explain
from hisparse.plan import Plan, Shortfall
from hisparse.rounding import number_text
from hisparse.units import format_bytes
from hisparse_toolkit.amounts import tokens_text
from hisparse_toolkit.answering import Answer, Canvas, say
from hisparse_toolkit.brief_json import scaling_json
from hisparse_toolkit.manifest import read_manifest
from hisparse_toolkit.open_question import Scaled, scaled
from hisparse_toolkit.plan_command import answer_to
from hisparse_toolkit.plan_json import model_json, node_json, request_json
from hisparse_toolkit.problems import ExitCode
from hisparse_toolkit.question import Options
from hisparse_toolkit.screen import verdict_of
from hisparse_toolkit.sheet import Sheet, Tone

_WIDEST: Final = 100
"""Columns: a figure that is far from its name is hard to find."""

_LEGEND: Final = (
    "~ estimate: no rule of the engine gives it. ceil rounds up, floor down; min and max take the smallest and the "
    "largest. Memory is binary: 1 GiB = 1,073,741,824 B."
)


def run_explain(file: str | None, options: Options, *, as_json: bool) -> ExitCode:
    """Answer, and return the exit code, which is that of the plan."""
    return say("explain", lambda: _ask(file, options), as_json=as_json)


def _ask(file: str | None, options: Options) -> Answer:
    manifest = read_manifest(file) if file is not None else None
    asked = scaled(manifest, options)
    answer = answer_to(asked.question)
    tone = Tone(verdict_of(answer).code)
    if tone is Tone.YES and asked.assumed is not None:
        tone = Tone.WARNING
    sections = explain(answer)
    return Answer(
        tone,
        tone.word,
        lambda canvas: sheet_of(asked, answer, sections, tone, canvas),
        lambda: body_of(asked, answer, sections),
        from_manifest=manifest is not None,
    )


# --- the screen ------------------------------------------------------------------------------------------------------


def sheet_of(
    asked: Scaled, answer: Plan | Shortfall, sections: tuple[Section, ...], tone: Tone, canvas: Canvas
) -> Sheet:
    """The screen of an explanation: a table for each part of the sum."""
    target = answer.target
    limit = answer.limit
    facts = [("binds", f"{limit.resource.value}: {limit.message}")]
    if isinstance(answer, Plan):
        facts = [
            ("tier", f"{answer.mode.value}: {answer.mode_reason}"),
            ("KV cache", f"{answer.kv_dtype}: {answer.kv_dtype_reason}"),
            *facts,
        ]
    return Sheet(
        tone,
        {Tone.YES: "FITS", Tone.WARNING: "FITS, with warnings", Tone.NO: "DOES NOT FIT"}[tone],
        f"{answer.model.name} at {tokens_text(target.max_tokens)} on {target.gpus} x "
        f"{answer.node.product.removeprefix('NVIDIA-')}: how each figure comes about",
        facts=tuple(facts),
        warnings=asked.warnings,
        drawings=tuple(_block(section, min(canvas.width, _WIDEST)) for section in sections),
        legend=_LEGEND,
    )


def _block(section: Section, width: int) -> str:
    """What it is and how much, and below it the formula and where it comes from."""
    lines = [section.title]
    for step in section.steps:
        mark = "~ " if step.estimate else ""
        lines.append(_ends(f"  {step.name}", f"{mark}{_amount(step)}", width))
        formula = f"= {step.figure.text} " if step.figure is not None else "given:"
        lines.append(_hanging(f"{formula} [{step.source}]", width))
    return "\n".join(lines)


def _ends(left: str, right: str, width: int) -> str:
    return f"{left}{' ' * max(2, width - len(left) - len(right))}{right}"


def _hanging(text: str, width: int) -> str:
    return textwrap.fill(
        text,
        width,
        initial_indent="      ",
        subsequent_indent="        ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _amount(step: Step) -> str:
    text = f"{number_text(step.value)} {step.unit}"
    if step.unit == BYTES and abs(step.value) >= 1024**2:
        return f"{text} ({format_bytes(int(step.value))})"
    return text


# --- the document ----------------------------------------------------------------------------------------------------


def body_of(asked: Scaled, answer: Plan | Shortfall, sections: tuple[Section, ...]) -> Mapping[str, Any]:
    """The keys of hisparse.dev/explain/v1 beside those of every schema."""
    limit = answer.limit
    return {
        "model": model_json(answer.model),
        "node": node_json(answer.node),
        "request": request_json(answer.target),
        "assumedScaling": scaling_json(asked),
        "limit": {"resource": limit.resource.value, "message": limit.message, "remedy": limit.remedy},
        "sections": [
            {"title": section.title, "steps": [_step_json(step) for step in section.steps]} for section in sections
        ],
    }


def _step_json(step: Step) -> Mapping[str, Any]:
    whole = step.value.denominator == 1
    return {
        "name": step.name,
        "value": int(step.value) if whole else number_text(step.value).replace(",", ""),
        "unit": step.unit,
        "formula": step.figure.text if step.figure is not None else None,
        "source": step.source,
        "estimate": step.estimate,
    }
