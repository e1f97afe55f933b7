"""What `hisparse time` shows: values and words, no terminal."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from hisparse.claims import MEASURED_ON, Judgement, MeasuredStep, Plausibility
from hisparse.decode import HOST_READ_RUNS, USUAL_BANDWIDTH, Binds, DecodeBound
from hisparse.estimates import HOST_READ_SLOWDOWN
from hisparse.plan import Shortfall
from hisparse.prefill import USUAL_EFFICIENCY, Basis, Prefill, eight_bit
from hisparse.rounding import decimal
from hisparse.units import format_bytes
from hisparse_toolkit.amounts import amount, requests_text, tokens_text
from hisparse_toolkit.time_answer import TimeVerdict, Timing
from hisparse_toolkit.time_numbers import at_least, cut, exact, given, power, seconds_text

TIME_LEGEND: Final = (
    "~ estimate; bounds are the hardware's own. Memory is binary. K and M of tokens: 1,024 and 1,048,576."
)


@dataclass(frozen=True)
class Grid:
    """A table of texts; every column is right-aligned."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class TimeScreen:
    """Everything that `hisparse time` shows, in the order in which it shows it."""

    verdict: TimeVerdict
    headline: str
    answers: tuple[tuple[str, str], ...]
    grids: tuple[Grid, ...]
    legend: str = TIME_LEGEND


def time_screen_of(timing: Timing) -> TimeScreen:
    """The screen of an answer."""
    target, node = timing.question.target, timing.answer.node
    gpus = f"{target.gpus} x {node.product.removeprefix('NVIDIA-')}"
    room = "" if timing.plan else ": DOES NOT FIT in memory"
    if timing.plan and timing.batch is not None and not timing.batch_fits:
        room = f": {timing.batch:,} at once DO NOT FIT in memory"
    return TimeScreen(
        verdict=timing.verdict,
        headline=f"{timing.question.model.name} at {tokens_text(target.max_tokens)} on {gpus}{room}",
        answers=(*_claims(timing), *_grounds(timing)),
        grids=(_prefill_grid(timing), _decode_grid(timing)),
    )


# --- claims ----------------------------------------------------------------------------------------------------------


def _claims(timing: Timing) -> list[tuple[str, str]]:
    found = []
    if timing.seconds_claim is not None:
        found += _seconds_claim(timing, timing.prefills[-1], timing.seconds_claim)
    if timing.rate_claim is not None and timing.rate_bound is not None:
        found += _rate_claim(timing, timing.rate_bound, timing.rate_claim)
    return found


def _seconds_claim(timing: Timing, found: Prefill, claim: Judgement) -> list[tuple[str, str]]:
    fast, slow = claim.usual
    work = found.work
    parts = [f"{power(work.parameters)} for 2 x {timing.question.model.active_parameters:,} parameters per token"]
    parts += [f"{power(value)} for {name}" for name, value in _attention_parts(found) if value]
    takes = "would still take" if claim.plausibility is Plausibility.IMPOSSIBLE else "takes"
    usual = "as measured" if found.basis is Basis.FIT else f"at a usual {_percent(USUAL_EFFICIENCY)}"
    return [
        ("claim", f"{tokens_text(found.tokens)} prefilled in {given(claim.claimed)}: {_times(claim)}"),
        ("arithmetic", f"{power(work.total)} FLOP = {' + '.join(parts)}"),
        (
            "at 100 %",
            f"of the tensor cores' peak ({found.ranks} x {_peak(timing)}) it {takes} "
            f"{at_least(claim.bound, claim.claimed)}; {usual} ~ {seconds_text(fast)} to {seconds_text(slow)}",
        ),
    ]


def _attention_parts(found: Prefill) -> tuple[tuple[str, int], ...]:
    work = found.work
    return (("attention", work.attention), ("indexers", work.indexer), ("expanding latent rows", work.expansion))


def _rate_claim(timing: Timing, found: DecodeBound, claim: Judgement) -> list[tuple[str, str]]:
    fast, slow = claim.usual
    reads, step = found.reads, timing.rate_step
    usual = (
        f"at a usual {_percent(USUAL_BANDWIDTH)}"
        if step is None or fast * step.band[0] < found.step_tokens
        else "as measured"
    )
    return [
        (
            "claim",
            f"{exact(claim.claimed)} tokens/s each for {_requests(found)} of {tokens_text(found.tokens)}: "
            f"{_times(claim)}",
        ),
        (
            "bytes",
            f"each GPU reads {format_bytes(reads.weights)} of weights and {format_bytes(reads.kv)} of KV "
            f"({timing.kv_dtype}) for every step",
        ),
        (
            "at 100 %",
            f"of {_limit(timing, found)} that gives at most {cut(claim.bound, 2, claim.claimed)} tokens/s; {usual} ~ "
            f"{decimal(slow)} to {decimal(fast)}",
        ),
        *([] if step is None else [("measured", _step(found, step))]),
    ]


def _step(found: DecodeBound, step: MeasuredStep) -> str:
    """The step that was measured, and what it makes of the claim's requests."""
    run = step.run
    parts = f"{_milliseconds(run.hbm_us)} ms"
    if step.from_host:
        parts += f" and {_milliseconds(run.added_us)} ms for rows from host"
    scaled = "" if step.seconds * 10**6 in (run.hbm_us, run.tier_us) else ", scaled by layers"
    each = decimal(found.step_tokens / step.seconds)
    return (
        f"on one rank of GLM-5.3 ({MEASURED_ON.name}, small experts, 128K tokens, "
        f"{requests_text(run.decoding)} at once) a step took {parts}: {each} tokens/s{scaled}; "
        "longer requests and more ranks take longer"
    )


def _milliseconds(microseconds: int) -> str:
    return decimal(Fraction(microseconds, 1000))


def _limit(timing: Timing, found: DecodeBound) -> str:
    if found.binds is Binds.COMPUTE:
        return f"the tensor cores' peak ({_peak(timing)})"
    return f"HBM bandwidth ({_giga(timing.answer.node.gpu.hbm_bytes_per_second)} GB/s)"


def _requests(found: DecodeBound) -> str:
    return requests_text(found.requests)


def _percent(shares: tuple[Fraction, Fraction]) -> str:
    low, high = (int(100 * share) for share in shares)
    return f"{low}-{high} %"


def _times(claim: Judgement) -> str:
    if claim.times < 1:
        return (
            "within what is usual" if claim.plausibility is Plausibility.PLAUSIBLE else "faster than was ever measured"
        )
    if claim.plausibility is Plausibility.PLAUSIBLE:
        return "faster than usual, and possible"
    if claim.times >= 2:  # noqa: PLR2004  below that a whole number says too little
        return f"about {int(claim.times):,} times too fast"
    return f"{decimal(claim.times)} times as fast as usual"


# --- grounds ---------------------------------------------------------------------------------------------------------


def _grounds(timing: Timing) -> list[tuple[str, str]]:
    answer = timing.answer
    found = [
        ("prefill", f"{timing.prefills[-1].basis.value}{_links(timing)}"),
        ("decode", f"bytes of one step at HBM bandwidth, {timing.kv_dtype} KV: upper bounds{_measured(timing)}"),
    ]
    if isinstance(answer, Shortfall):
        found.append(("memory", f"does not fit ({answer.limit.message}), so this cannot be run as asked"))
    if timing.plan is not None and timing.batch is not None and not timing.batch_fits:
        held = amount(timing.plan.at_max.tier)
        text = f"holds {held} of {tokens_text(timing.plan.at_max.tokens)} at once and not {requests_text(timing.batch)}"
        found.append(("memory", f"{text}, so this cannot be run as asked"))
    if timing.from_host is not None:
        host = timing.from_host
        rate = _giga(answer.node.gpu.host_bytes_per_second)
        text = f"all KV read from host memory at {rate} GB/s for every token: at most {decimal(host.each)} tokens/s"
        found.append(("from host", f"{text} each for {_requests(host)}"))
    return found + _tier(timing)


def _measured(timing: Timing) -> str:
    """How far from the bound the one engine was that was measured."""
    if timing.prefills[-1].basis is not Basis.FIT:
        return ""
    steps = ", ".join(decimal(Fraction(run.hbm_us, 1000)) for run in HOST_READ_RUNS)
    counts = ", ".join(str(run.decoding) for run in HOST_READ_RUNS)
    return (
        f", far from what was measured: one rank of GLM-5.3 with small experts took {steps} ms a step at {counts} "
        "requests of 128K"
    )


def _links(timing: Timing) -> str:
    tensor = timing.question.target.tp
    if tensor == 1:
        return ""
    if timing.links is None:
        return f"; all-reduces of {tensor} ranks without NVLink come on top"
    return f"; all-reduces of {tensor} ranks take ~ {seconds_text(timing.links)} of it if nothing overlaps"


def _tier(timing: Timing) -> list[tuple[str, str]]:
    plan = timing.plan
    if plan is None or plan.tiered is None:
        return []
    added = ", ".join(f"+{decimal(Fraction(run.added_us, 1000))}" for run in HOST_READ_RUNS)
    counts = ", ".join(str(run.decoding) for run in HOST_READ_RUNS)
    text = (
        f"measured on H200: rows from host add {added} ms a step at {counts} requests, "
        f"{decimal(HOST_READ_SLOWDOWN).rstrip('0')} times as long whatever the batch"
    )
    if timing.break_even is None:
        return [("tier", f"{text}; plain KV holds not even one request, so only the tier serves it at all")]
    plain = int(plan.at_max.plain)
    return [("tier", f"{text}; {timing.break_even:,} requests decode as much as the {plain:,} that plain KV holds")]


# --- tables ----------------------------------------------------------------------------------------------------------


def _prefill_grid(timing: Timing) -> Grid:
    measured = timing.prefills[-1].basis is Basis.FIT
    low, high = (int(100 * share) for share in USUAL_EFFICIENCY)
    band = ("fit, low", "fit, high") if measured else (f"at {high} %", f"at {low} %")
    return Grid(
        f"prefill of one prompt, chunks of {tokens_text(timing.chunk)}",
        ("tokens", "FLOP", "estimate", *band, "bound"),
        tuple(
            (
                f"{one.tokens:,}",
                power(one.work.total),
                f"~ {seconds_text(one.seconds)}",
                *(f"~ {seconds_text(seconds)}" for seconds in one.usual),
                at_least(one.bound),
            )
            for one in timing.prefills
        ),
    )


def _decode_grid(timing: Timing) -> Grid:
    return Grid(
        f"decoding behind {tokens_text(timing.question.target.max_tokens)}, upper bounds",
        ("requests", "weights", "KV", "step", "tokens/s each", "all", "binds"),
        tuple(
            (
                f"{one.requests:,}",
                format_bytes(one.reads.weights),
                format_bytes(one.reads.kv),
                f"{decimal(1000 * one.seconds)} ms",
                cut(one.each, 2, None),
                cut(one.together, 2, None),
                one.binds.value,
            )
            for one in timing.decodes
        ),
    )


def _peak(timing: Timing) -> str:
    """The rate that the bound rests on."""
    gpu = timing.answer.node.gpu
    if gpu.fp8_flops is not None and eight_bit(timing.question.model):
        return f"{gpu.fp8_flops // 10**12:,} TFLOPS of {gpu.name}, FP8"
    return f"{gpu.bf16_flops // 10**12:,} TFLOPS of {gpu.name}, BF16"


def _giga(rate: int) -> str:
    return f"{rate // 10**9:,}"
