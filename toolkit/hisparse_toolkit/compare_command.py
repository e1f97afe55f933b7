"""`hisparse compare`: variants of one question side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from hisparse.comparison import Axis, Row, compare, variants
from hisparse.hardware import NodeClass
from hisparse.losses import Loss
from hisparse.model import ModelFacts
from hisparse.plan import Shortfall
from hisparse.rounding import decimal
from hisparse.spec import KvCacheDtype
from hisparse.units import format_bytes
from hisparse_toolkit.amounts import amount, tokens_text
from hisparse_toolkit.answering import Answer, Canvas, say
from hisparse_toolkit.brief_json import scaling_json
from hisparse_toolkit.manifest import read_manifest
from hisparse_toolkit.open_question import Scaled, scaled
from hisparse_toolkit.plan_json import request_json
from hisparse_toolkit.problems import BadInputError, ExitCode, Problem, bad
from hisparse_toolkit.question import Options, named_gpu, question_of
from hisparse_toolkit.sheet import Columns, Sheet, Tone, by_reason

_DTYPES = tuple(one.value for one in KvCacheDtype if one is not KvCacheDtype.AUTO)
_NONE = "-"


@dataclass(frozen=True)
class Others:
    """Names that stand beside the question: other models, other GPUs, as they were typed."""

    models: str | None = None
    gpu_kinds: str | None = None


def run_compare(file: str | None, options: Options, others: Others, *, as_json: bool) -> ExitCode:
    """Answer, and return the exit code."""
    return say("compare", lambda: _ask(file, options, others), as_json=as_json)


def _ask(file: str | None, options: Options, others: Others) -> Answer:
    manifest = read_manifest(file) if file is not None else None
    names = _words("--models", others.models)
    first, *rest = names or [None]
    asked = scaled(manifest, replace(options, model=first) if options.model is None and first else options)
    question = asked.question
    beside = names if options.model is not None or manifest is not None else rest
    models = _others(question.model, [_model(name, options) for name in beside if name is not None])
    nodes = _nodes(others.gpu_kinds, question.nodes[0])
    repeated = [
        *_repeated("models", others.models, question.model.name, differ=bool(models)),
        *_repeated("GPU kinds", others.gpu_kinds, question.nodes[0].gpu.name, differ=bool(nodes)),
    ]
    rows = compare(
        variants(question.model, question.nodes[0], question.target, dtypes=_DTYPES, models=models, nodes=nodes)
    )
    tone = Tone.YES if any(row.plan for row in rows if _on_what_was_asked(row)) else Tone.NO
    if tone is Tone.YES and asked.assumed is not None:
        tone = Tone.WARNING
    return Answer(
        tone,
        {Tone.YES: "SomeFit", Tone.WARNING: "SomeFitWithWarnings", Tone.NO: "NoneFits"}[tone],
        lambda canvas: sheet_of(asked, rows, tone, repeated, canvas),
        lambda: body_of(asked, rows),
        from_manifest=manifest is not None,
    )


def _words(option: str, text: str | None) -> list[str | None]:
    if text is None:
        return []
    names = [one.strip() for one in text.split(",")]
    if not all(names):
        raise bad(option, f'"{text}" has an empty name; write names with commas between them, as in a,b')
    return list(names)


def _model(name: str, options: Options) -> ModelFacts:
    """The facts of another model; its own length and GPUs are judged in its row, not here."""
    short = replace(
        options,
        model=name,
        weights=None,
        context="1",
        typical=None,
        gpus="1",
        tensor=None,
        data=None,
        pipeline=None,
        rope_factor=None,
        rope_original=None,
        rope_type=None,
        mode="Auto",
        sharing=None,
        expert=None,
        host_pool=None,
    )
    try:
        return question_of(None, short).model
    except BadInputError as error:
        raise BadInputError(
            Problem("--models" if one.field == "--model" else one.field, one.message) for one in error.problems
        ) from None


def _others(asked: ModelFacts, named: Sequence[ModelFacts]) -> Sequence[ModelFacts]:
    """Each of the others once: a name that was typed twice is one model."""
    return list({one.name: one for one in named if one.name != asked.name}.values())


def _nodes(text: str | None, node: NodeClass) -> Sequence[NodeClass]:
    """The other kinds, each once."""
    found: dict[str, NodeClass] = {}
    for name in _words("--gpu-kinds", text):
        gpu, product = named_gpu(name or "", "--gpu-kinds")
        if gpu.name != node.gpu.name:
            found.setdefault(gpu.name, NodeClass(gpu, node.gpus, node.host_memory_bytes, product))
    return list(found.values())


def _repeated(what: str, named: str | None, asked: str, *, differ: bool) -> list[tuple[str, str]]:
    """That every name means what is asked about anyway, so that none of that sort stands beside it."""
    if named is None or differ:
        return []
    *before, last = (one.strip() for one in named.split(","))
    names = f"{', '.join(before)} and {last} are all {asked}" if before else f"{last} is {asked}"
    return [(what, f"{names}, which is asked about anyway: no other one is beside it here")]


def _on_what_was_asked(row: Row) -> bool:
    """Another number of GPUs is a way out, not an answer to the question."""
    return row.variant.axis is not Axis.GPUS


# --- the screen ------------------------------------------------------------------------------------------------------


def sheet_of(asked: Scaled, rows: tuple[Row, ...], tone: Tone, repeated: Sequence[tuple[str, str]], _: Canvas) -> Sheet:
    """The screen of a comparison. repeated is what was named and is what was asked about anyway."""
    target, node = asked.question.target, asked.question.nodes[0]
    shown = _distinct([row for row in rows if not _is_foreign(row)])
    marks = _marks(rows)
    notes = [f"{mark} {loss.what} [{loss.source}]" for loss, mark in marks.items()]
    gpus = f"{target.gpus} x {node.product.removeprefix('NVIDIA-')}"
    answer, headline = _said(shown, gpus)
    return Sheet(
        tone,
        answer,
        f"{asked.question.model.name} at {tokens_text(target.max_tokens)}{headline}",
        facts=(
            ("at once", f"requests of {tokens_text(target.max_tokens)}; typical: of {tokens_text(target.typical)}"),
            *repeated,
        ),
        warnings=asked.warnings,
        tables=(*_table(shown, marks), *_refusals(rows, _asked_label(rows))),
        notes=tuple(notes),
    )


def _said(shown: Sequence[Row], gpus: str) -> tuple[str, str]:
    """The answer, and how the headline goes on: about the hardware that was asked about, then what else would do."""
    fitting = [row for row in shown if row.plan]
    if not fitting or any(_on_what_was_asked(row) for row in fitting):
        return f"{len(fitting)} OF {len(shown)} FIT", f" on {gpus}"
    # the fewest come first
    enough = fitting[0].variant.value
    return f"NONE FITS ON {gpus}", f"; {enough} GPU{' does' if enough == '1' else 's do'}"


def _distinct(rows: Sequence[Row]) -> list[Row]:
    """Without a mode or dtype that says of its own what the question as asked comes to anyway."""
    asked = next((row for row in rows if row.variant.axis is Axis.ASKED), None)
    if asked is None or asked.plan is None:
        return list(rows)
    same = asked.plan
    return [
        row
        for row in rows
        if row.variant.axis not in (Axis.MODE, Axis.KV_DTYPE)
        or row.plan is None
        or (row.plan.mode, row.plan.kv_dtype, row.plan.kv_budget) != (same.mode, same.kv_dtype, same.kv_budget)
        or (row.at_max, row.at_typical, row.longest, row.host_bytes)
        != (asked.at_max, asked.at_typical, asked.longest, asked.host_bytes)
    ]


def _marks(rows: tuple[Row, ...]) -> dict[Loss, str]:
    found: dict[Loss, str] = {}
    for row in rows:
        for loss in row.losses:
            found.setdefault(loss, str(len(found) + 1))
    return found


def _is_foreign(row: Row) -> bool:
    """A KV dtype that this model's cache cannot have."""
    return row.variant.axis is Axis.KV_DTYPE and row.answer is None


def _table(rows: Sequence[Row], marks: Mapping[Loss, str]) -> tuple[Columns, ...]:
    """What fits, and what would with a shorter context."""
    heads = ("variant", "tier", "KV cache", "longest", "at once", "typical", "KV in HBM", "host memory", "loses")
    asked = _asked_label(rows)
    shown = tuple(_cells(row, asked, marks) for row in rows if row.plan or row.longest)
    return (Columns("", heads, shown, texts=(0, 1, 2, 8), gap=1, optional=(7, 5, 6, 3)),) if shown else ()


def _asked_label(rows: Sequence[Row]) -> str:
    """The name of the first row: beside other models or kinds it is one of them."""
    axes = {row.variant.axis for row in rows}
    asked = rows[0].variant
    if Axis.MODEL in axes and Axis.GPU_KIND in axes:
        return f"{_last(asked.model.name)}, {asked.node.gpu.name}"
    if Axis.MODEL in axes:
        return _last(asked.model.name)
    return asked.node.gpu.name if Axis.GPU_KIND in axes else "as asked"


def _last(repo: str) -> str:
    return repo.rsplit("/", 1)[-1]


def _cells(row: Row, asked: str, marks: Mapping[Loss, str]) -> tuple[str, ...]:
    plan = row.plan
    return (
        _label(row, asked),
        plan.mode.value if plan else "no",
        _dtype(row),
        f"{row.longest:,}{'*' if row.positions_bind else ''}" if row.longest else _NONE,
        _fraction(row.at_max),
        _fraction(row.at_typical),
        _NONE if not row.kv_bytes else format_bytes(row.kv_bytes),
        _NONE if row.host_bytes is None else format_bytes(row.host_bytes),
        " ".join(marks[one] for one in row.losses) or _NONE,
    )


def _dtype(row: Row) -> str:
    if row.variant.axis is Axis.KV_DTYPE:
        return row.variant.value
    return row.plan.kv_dtype if row.plan else _NONE


def _label(row: Row, asked: str) -> str:
    variant = row.variant
    if variant.axis is Axis.ASKED:
        return asked
    if variant.axis is Axis.GPUS:
        return f"{variant.value} GPU{'' if variant.value == '1' else 's'}"
    if variant.axis is Axis.MODEL:
        return _last(variant.value)
    if variant.axis is Axis.KV_DTYPE:
        return "KV dtype"
    return f"{variant.axis.value} {variant.value}" if variant.axis is Axis.MODE else variant.value


def _fraction(value: Fraction | None) -> str:
    return _NONE if value is None else amount(value)


def _refusals(rows: tuple[Row, ...], asked: str) -> tuple[Columns, ...]:
    told = [(_name(row, asked), _why(row)) for row in rows if row.plan is None and not _is_foreign(row)]
    foreign = [row for row in rows if _is_foreign(row)]
    if foreign:
        names = ", ".join(row.variant.value for row in foreign)
        told.append(("KV dtypes", f"{names}: {foreign[0].refusal}"))
    legend = tuple(row for row in rows if row.positions_bind)
    tables = [Columns("does not fit", ("variant", "why"), by_reason(told), texts=(0, 1))] if told else []
    if legend:
        tables.append(Columns("", ("* the model's positions end there, not the memory",), (), texts=(0,)))
    return tuple(tables)


def _name(row: Row, asked: str) -> str:
    return f"KV dtype {row.variant.value}" if row.variant.axis is Axis.KV_DTYPE else _label(row, asked)


def _why(row: Row) -> str:
    return row.answer.limit.message if isinstance(row.answer, Shortfall) else row.refusal


# --- the document ----------------------------------------------------------------------------------------------------


def body_of(asked: Scaled, rows: tuple[Row, ...]) -> Mapping[str, Any]:
    """The keys of hisparse.dev/compare/v1 beside those of every schema."""
    marks = _marks(rows)
    return {
        "request": request_json(asked.question.target),
        "assumedScaling": scaling_json(asked),
        "rows": [_row_json(row, marks) for row in rows],
        "losses": [
            {"mark": mark, "what": loss.what, "lossless": loss.lossless, "source": loss.source}
            for loss, mark in marks.items()
        ],
    }


def _row_json(row: Row, marks: Mapping[Loss, str]) -> Mapping[str, Any]:
    plan, variant = row.plan, row.variant
    return {
        "axis": variant.axis.name.title().replace("_", ""),
        "value": variant.value,
        "model": variant.model.name,
        "gpu": variant.node.gpu.name,
        "gpus": variant.target.gpus,
        "fits": plan is not None,
        "mode": plan.mode.value if plan else None,
        "kvCacheDtype": plan.kv_dtype if plan else None,
        "longestTokens": row.longest,
        "positionsBind": row.positions_bind,
        "concurrencyAtMaxTokens": None if row.at_max is None else decimal(row.at_max),
        "concurrencyAtTypicalTokens": None if row.at_typical is None else decimal(row.at_typical),
        "kvBytes": row.kv_bytes,
        "podBytes": row.host_bytes,
        "losses": [marks[one] for one in row.losses],
        "warnings": list(plan.warnings) if plan else [],
        "reason": None if plan else _why(row),
    }
