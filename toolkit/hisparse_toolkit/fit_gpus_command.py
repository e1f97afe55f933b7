"""`hisparse fit-gpus`: the fewest GPUs for a context, and which kinds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hisparse.hardware import format_memory
from hisparse.plan import Plan
from hisparse.sizing import Fleet, fewest_gpus
from hisparse.units import format_bytes
from hisparse_toolkit.amounts import amount, tokens_text
from hisparse_toolkit.answering import Answer, Canvas, say
from hisparse_toolkit.brief_json import losses_json, plan_json, scaling_json
from hisparse_toolkit.manifest import read_manifest
from hisparse_toolkit.open_question import Scaled, kinds, plan_command, requests_of, without_gpus
from hisparse_toolkit.plan_json import model_json, request_json
from hisparse_toolkit.problems import ExitCode
from hisparse_toolkit.question import Options
from hisparse_toolkit.sheet import Columns, Sheet, Tone, by_reason


def run_fit_gpus(file: str | None, options: Options, *, as_json: bool) -> ExitCode:
    """Answer, and return the exit code."""
    return say("fit-gpus", lambda: _ask(file, options), as_json=as_json)


def _ask(file: str | None, options: Options) -> Answer:
    manifest = read_manifest(file) if file is not None else None
    asked = without_gpus(manifest, options)
    requests = requests_of(options)
    question = asked.question
    fleets = fewest_gpus(question.model, kinds(question, manifest, options), question.target, requests=requests)
    tone = _tone(fleets, asked)
    return Answer(
        tone,
        tone.word,
        lambda canvas: sheet_of(asked, fleets, requests, plan_of(file, options, fleets), canvas),
        lambda: body_of(asked, fleets, requests),
        from_manifest=manifest is not None,
    )


def _tone(fleets: tuple[Fleet, ...], asked: Scaled) -> Tone:
    best = fleets[0].plan
    if best is None:
        return Tone.NO
    return Tone.WARNING if best.warnings or asked.assumed else Tone.YES


def plan_of(file: str | None, options: Options, fleets: tuple[Fleet, ...]) -> str:
    """The command that plans the first answer; empty where there is none."""
    best = fleets[0].plan
    if best is None:
        return ""
    changes: dict[str, str | None] = {"gpus": str(best.target.gpus), "gpu": fleets[0].gpu.name}
    if best.target.rope_factor is not None and options.rope_factor is None and file is None:
        changes |= {
            "rope_factor": str(best.target.rope_factor),
            "rope_original": str(best.target.rope_original_tokens),
        }
    return plan_command(file, options, **changes)


# --- the screen ------------------------------------------------------------------------------------------------------


def sheet_of(asked: Scaled, fleets: tuple[Fleet, ...], requests: int, command: str, _: Canvas) -> Sheet:
    """The screen of an answer."""
    target, best = asked.question.target, fleets[0]
    many = f"{requests:,} requests of " if requests > 1 else ""
    headline = f"{asked.question.model.name} at {many}{tokens_text(target.max_tokens)}"
    if best.plan is None:
        answer = f"NO {best.gpu.name} NODE IS ENOUGH" if len(fleets) == 1 else "NO KIND OF GPU IS ENOUGH"
        note = f", up to {best.node.gpus} GPUs of one node"
        return Sheet(Tone.NO, answer, headline + note, warnings=asked.warnings, tables=(_refused(fleets),))
    tone = _tone(fleets, asked)
    tables = [_enough(fleets)]
    if any(one.plan is None for one in fleets):
        tables.append(_refused(fleets))
    return Sheet(
        tone,
        f"{best.gpus} x {best.gpu.name} {'IS' if best.gpus == 1 else 'ARE'} ENOUGH",
        headline,
        warnings=asked.beside(best.plan.warnings),
        tables=tuple(tables),
        command=command,
    )


def _enough(fleets: tuple[Fleet, ...]) -> Columns:
    rows = tuple(_row(one, one.plan) for one in fleets if one.plan is not None)
    heads = ("GPUs", "of each", "memory in all", "tier", "KV cache", "at once", "of typical", "pod memory")
    return Columns("", heads, rows, texts=(0, 3, 4), optional=(6, 7, 1))


def _row(one: Fleet, plan: Plan) -> tuple[str, ...]:
    return (
        f"{one.gpus} x {one.gpu.name}",
        format_memory(one.gpu),
        # of one GPU to the last digit what stands beside it
        format_memory(one.gpu) if one.gpus == 1 else format_bytes(one.memory_bytes),
        plan.mode.value,
        plan.kv_dtype,
        amount(plan.at_max.tier),
        amount(plan.at_typical.tier),
        format_bytes(plan.host.pod),
    )


def _refused(fleets: tuple[Fleet, ...]) -> Columns:
    rows = by_reason((one.gpu.name, one.reason) for one in fleets if one.plan is None)
    return Columns("cannot, on one node", ("kind", "why"), rows, texts=(0, 1))


# --- the document ----------------------------------------------------------------------------------------------------


def body_of(asked: Scaled, fleets: tuple[Fleet, ...], requests: int) -> Mapping[str, Any]:
    """The keys of hisparse.dev/fit-gpus/v1 beside those of every schema."""
    question = asked.question
    open_keys = {"gpus": None, "tensor": None, "data": None, "pipeline": None}
    return {
        "model": model_json(question.model),
        "request": request_json(question.target) | open_keys,
        "requests": requests,
        "assumedScaling": scaling_json(asked),
        "fleets": [_fleet_json(one, one.plan) for one in fleets if one.plan is not None],
        "refused": [
            {"gpu": one.gpu.name, "product": one.node.product, "reason": one.reason}
            for one in fleets
            if one.plan is None
        ],
    }


def _fleet_json(one: Fleet, plan: Plan) -> Mapping[str, Any]:
    return {
        "gpu": one.gpu.name,
        "product": one.node.product,
        "gpus": one.gpus,
        "gpuMemoryBytes": one.gpu.memory_bytes,
        "memoryBytes": one.memory_bytes,
        "plan": plan_json(plan),
        "losses": losses_json(plan),
    }
