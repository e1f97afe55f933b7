"""`hisparse fit-context`: the longest context of given GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hisparse.losses import OF_MODE, dtype_losses
from hisparse.plan import Plan
from hisparse.rope import RopeState
from hisparse.rounding import decimal
from hisparse.sizing import MOST_TOKENS, LongestContext, Way, longest_context
from hisparse.units import format_bytes
from hisparse_toolkit.amounts import amount, requests_text, tokens_text
from hisparse_toolkit.answering import Answer, Canvas, say
from hisparse_toolkit.brief_json import losses_json, plan_json
from hisparse_toolkit.manifest import Manifest, read_manifest
from hisparse_toolkit.open_question import plan_command, requests_of, without_length
from hisparse_toolkit.plan_json import model_json, node_json, request_json
from hisparse_toolkit.problems import ExitCode
from hisparse_toolkit.question import Options
from hisparse_toolkit.sheet import Columns, Sheet, Tone


def run_fit_context(file: str | None, options: Options, *, as_json: bool) -> ExitCode:
    """Answer, and return the exit code."""
    return say("fit-context", lambda: _ask(file, options), as_json=as_json)


def _ask(file: str | None, options: Options) -> Answer:
    manifest = read_manifest(file) if file is not None else None
    found = answer_to(manifest, options)
    tone = Tone.NO
    if found.plan is not None:
        tone = Tone.WARNING if found.plan.warnings else Tone.YES
    return Answer(
        tone,
        tone.word,
        lambda canvas: sheet_of(found, file, options, tone, canvas),
        lambda: body_of(found),
        from_manifest=file is not None,
    )


def answer_to(manifest: Manifest | None, options: Options) -> LongestContext:
    """The longest context on the kind of node that holds the longest. Raises NoAnswerError."""
    question = without_length(manifest, options)
    requests = requests_of(options)
    answers = [longest_context(question.model, node, question.target, requests=requests) for node in question.nodes]
    return max(answers, key=lambda one: one.tokens)


# --- the screen ------------------------------------------------------------------------------------------------------


def sheet_of(found: LongestContext, file: str | None, options: Options, tone: Tone, _: Canvas) -> Sheet:
    """The screen of an answer."""
    asked = f"{found.model.name} on {found.target.gpus} x {found.node.product.removeprefix('NVIDIA-')}, per replica"
    many = f", {found.requests:,} requests of it at once" if found.requests > 1 else ""
    if found.plan is None:
        return Sheet(tone, "NO CONTEXT FITS", f"{asked}{many}", facts=tuple(_why_none(found)), tables=_ways(found))
    return Sheet(
        tone,
        f"UP TO {tokens_text(found.tokens)}",
        f"{asked}{many}",
        facts=tuple(_facts(found, found.plan)),
        warnings=found.plan.warnings,
        tables=_ways(found),
        command=_command(found, file, options),
    )


def _why_none(found: LongestContext) -> list[tuple[str, str]]:
    if found.shortfall is not None:
        limit = found.shortfall.limit
        return [("binds", f"{limit.resource.value}: {limit.message}"), ("change", limit.remedy)]
    return [("binds", found.ways[0].beyond)]


def _facts(found: LongestContext, plan: Plan) -> list[tuple[str, str]]:
    best = next((way for way in found.ways if way.tokens == found.tokens), found.ways[0])
    if found.positions_bind:
        least = "at least " if found.memory_tokens == MOST_TOKENS else ""
        held = f"{least}{tokens_text(found.memory_tokens)}"
        binds = f"positions: the model counts {found.positions:,}; memory would hold {held}"
    elif found.tokens == found.positions:
        binds = f"positions and memory alike end at {tokens_text(found.positions)}"
    else:
        binds = f"memory: {best.beyond}"
    facts = [
        ("tier", f"{plan.mode.value}: {plan.mode_reason}"),
        ("KV cache", f"{plan.kv_dtype}: {plan.kv_dtype_reason}"),
        ("binds", binds),
        *_rope(found),
        ("at once", _at_once(plan)),
        (
            "takes",
            f"{format_bytes(plan.kv_budget)} of HBM for KV on each GPU, {format_bytes(plan.host.pod)} of host memory",
        ),
    ]
    accuracy = dtype_losses(plan.kv_dtype, plan.model)
    facts.append(("accuracy", "; ".join(one.what for one in accuracy)))
    facts.append(("tier costs", "; ".join(one.what for one in OF_MODE[plan.mode])))
    return facts


def _at_once(plan: Plan) -> str:
    texts = [f"{requests_text(plan.at_max.tier)} of {tokens_text(plan.at_max.tokens)}"]
    if plan.at_typical.tokens != plan.at_max.tokens:
        texts.append(f"{amount(plan.at_typical.tier)} of {plan.at_typical.tokens:,}")
    return ", ".join(texts)


def _rope(found: LongestContext) -> list[tuple[str, str]]:
    rope = found.rope
    if rope is None:
        return []
    if rope.state is not RopeState.NEEDS_SCALING:
        return [("RoPE", rope.sentence)]
    *steps, last = found.rope_steps
    gives = "".join(f"{step.tokens:,} with factor {step.factor}, " for step in steps)
    all_of_it = f"{gives}{last.tokens:,} (all that memory holds) with factor {last.factor}"
    return [
        ("RoPE", f"scaling from {rope.original_positions:,} positions gives {all_of_it}: {_rope_options(found)}"),
        ("its cost", rope.cost),
    ]


def _rope_options(found: LongestContext) -> str:
    base = found.rope.original_positions if found.rope else None
    return f"--rope-factor N --rope-original {base}"


def _ways(found: LongestContext) -> tuple[Columns, ...]:
    if not found.ways:
        return ()
    heads = ("KV cache", "tier", "longest", "at once", "one token more")
    return (Columns("", heads, tuple(_way(found, way) for way in found.ways), texts=(0, 1, 4)),)


def _way(found: LongestContext, way: Way) -> tuple[str, ...]:
    held = amount(way.plan.at_max.tier) if way.plan else "-"
    beyond = way.beyond or f"the model has {found.positions:,} positions"
    return way.kv_dtype, way.mode.value, f"{way.tokens:,}" if way.tokens else "-", held, beyond


def _command(found: LongestContext, file: str | None, options: Options) -> str:
    plan = found.plan
    assert plan is not None  # noqa: S101 - only asked for an answer
    changes: dict[str, str | None] = {"context": str(found.tokens)}
    if found.tokens <= found.model.max_positions and file is None:
        changes |= {"rope_factor": None, "rope_original": None, "rope_type": None}
    if plan.target.mode != found.target.mode:
        changes["mode"] = plan.target.mode
    if plan.target.kv_dtype != found.target.kv_dtype:
        changes["kv_dtype"] = plan.target.kv_dtype
    return plan_command(file, options, **changes)


# --- the document ----------------------------------------------------------------------------------------------------


def body_of(found: LongestContext) -> Mapping[str, Any]:
    """The keys of hisparse.dev/fit-context/v1 beside those of every schema."""
    plan = found.plan
    binds = None if plan is None else ("Positions" if found.tokens == found.positions else "Memory")
    return {
        "model": model_json(found.model),
        "node": node_json(found.node),
        "request": request_json(plan.target if plan else found.target) | {"maxTokens": found.tokens or None},
        "requests": found.requests,
        "maxTokens": found.tokens,
        "binds": binds,
        "positions": found.positions,
        "memoryTokens": found.memory_tokens,
        "rope": _rope_json(found),
        "ways": [_way_json(way) for way in found.ways],
        "plan": None if plan is None else plan_json(plan),
        "losses": [] if plan is None else losses_json(plan),
        "shortfall": _shortfall_json(found),
    }


def _rope_json(found: LongestContext) -> Mapping[str, Any] | None:
    rope = found.rope
    if rope is None:
        return None
    return {
        "state": rope.state.value,
        "sentence": rope.sentence,
        "factor": None if rope.factor is None else str(rope.factor),
        "originalTokens": rope.original_positions,
        "hfOverrides": rope.hf_overrides,
        "cost": rope.cost,
        "steps": [{"factor": step.factor, "maxTokens": step.tokens} for step in found.rope_steps],
    }


def _way_json(way: Way) -> Mapping[str, Any]:
    return {
        "mode": way.mode.value,
        "kvCacheDtype": way.kv_dtype,
        "maxTokens": way.tokens,
        "concurrency": decimal(way.plan.at_max.tier) if way.plan else None,
        "beyond": way.beyond or None,
    }


def _shortfall_json(found: LongestContext) -> Mapping[str, Any] | None:
    if found.plan is not None:
        return None
    if found.shortfall is None:
        return {"resource": None, "message": found.ways[0].beyond, "remedy": None}
    limit = found.shortfall.limit
    return {"resource": limit.resource.value, "message": limit.message, "remedy": limit.remedy}
