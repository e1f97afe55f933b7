"""What one screen about a plan says: values and words, no terminal. The numbers are the planner's own."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from enum import Enum
from fractions import Fraction
from itertools import accumulate
from typing import Final

from hisparse import engine
from hisparse.estimates import (
    FIXED_START_SECONDS,
    HOST_READ_SLOWDOWN,
    load_seconds,
    offload_pin_seconds,
    pin_seconds,
)
from hisparse.plan import LengthRow, Mode, Plan, Resource, Seconds, Shortfall, Term
from hisparse.rounding import ceil, decimal
from hisparse.spec import HiSparseInferenceSpec
from hisparse.units import format_bytes, format_duration, parse_quantity
from hisparse_toolkit.amounts import amount, tokens_text
from hisparse_toolkit.option_words import in_options
from hisparse_toolkit.problems import ExitCode
from hisparse_toolkit.question import Question

UNTOLD: Final = "-"
MODEL_MOUNT: Final = "/models"
"""Where the pods of the operator have a model from a claim or from the node."""

LEGEND: Final = "~ estimate. Memory is binary: 1 GiB = 1,073,741,824 B. K and M of tokens: 1,024 and 1,048,576."


class Verdict(Enum):
    """The answer in one word, and the exit code that says the same to a script."""

    FITS = ("Fits", ExitCode.YES)
    FITS_WITH_WARNINGS = ("FitsWithWarnings", ExitCode.WARNING)
    DOES_NOT_FIT = ("DoesNotFit", ExitCode.NO)

    def __init__(self, word: str, code: ExitCode) -> None:
        self.word = word
        self.code = code


@dataclass(frozen=True)
class Amount:
    """One line of a sum of bytes."""

    name: str
    text: str
    estimate: bool = False
    total: bool = False


@dataclass(frozen=True)
class Sum:
    """One tier: its terms and what they add up to."""

    title: str
    amounts: tuple[Amount, ...]


@dataclass(frozen=True)
class LengthLine:
    """Requests of one length that run at once; "-" where there is nothing to compare."""

    tokens: str
    plain: str
    tier: str
    gain: str
    speedup: str
    prefill: str


@dataclass(frozen=True)
class Shell:
    """One line of a script that starts the engine by hand, and why it is there."""

    text: str
    why: str = ""


@dataclass(frozen=True)
class Screen:
    """Everything that `hisparse plan` shows, in the order in which it shows it."""

    verdict: Verdict
    headline: str
    answers: tuple[tuple[str, str], ...]
    sums: tuple[Sum, ...]
    lengths: tuple[LengthLine, ...] = ()
    times: tuple[tuple[str, str], ...] = ()
    script: tuple[Shell, ...] = ()
    warnings: tuple[str, ...] = ()
    legend: str = LEGEND


def screen_of(question: Question, answer: Plan | Shortfall, *, in_cluster: bool) -> Screen:
    """The screen of an answer. in_cluster: the command is the one of the operator's pods, not of this machine."""
    screen = _shortfall(answer) if isinstance(answer, Shortfall) else _fits(question, answer, in_cluster=in_cluster)
    if in_cluster:
        return screen
    return replace(
        screen,
        answers=tuple((name, in_options(text)) for name, text in screen.answers),
        warnings=tuple(in_options(text) for text in screen.warnings),
        script=tuple(replace(line, why=in_options(line.why)) for line in screen.script),
    )


def verdict_of(answer: Plan | Shortfall) -> Verdict:
    """The verdict of an answer."""
    if isinstance(answer, Shortfall):
        return Verdict.DOES_NOT_FIT
    return Verdict.FITS_WITH_WARNINGS if answer.warnings else Verdict.FITS


# --- a plan ----------------------------------------------------------------------------------------------------


def _fits(question: Question, plan: Plan, *, in_cluster: bool) -> Screen:
    return Screen(
        verdict=verdict_of(plan),
        headline=f"{_asked(plan)}, {_copies(question.spec)}",
        answers=(*_answers(plan), *(_requests(question, plan) if in_cluster else ())),
        sums=(_hbm_sum(plan.hbm, _gpu_title(plan)), _host_sum(plan)),
        lengths=tuple(_length_line(row, tiered=plan.tiered is not None) for row in plan.curve),
        times=tuple(_times(plan.seconds)),
        script=script_of(question, plan, in_cluster=in_cluster),
        warnings=plan.warnings,
    )


def _asked(answer: Plan | Shortfall) -> str:
    target = answer.target
    gpus = f"{target.gpus} x {answer.node.product.removeprefix('NVIDIA-')}"
    return f"{answer.model.name} at {tokens_text(target.max_tokens)} on {gpus}"


def _copies(spec: HiSparseInferenceSpec) -> str:
    return "per replica" if spec.replicas == 1 else f"per replica of {spec.replicas}"


def _answers(plan: Plan) -> list[tuple[str, str]]:
    found = [
        ("tier", f"{plan.mode.value}: {plan.mode_reason}"),
        ("KV cache", f"{plan.kv_dtype}: {plan.kv_dtype_reason}"),
        ("one token", _token(plan)),
        ("one request", _request(plan)),
        ("binds", f"{plan.limit.resource.value}: {plan.limit.message}"),
        ("lift it", plan.limit.remedy),
    ]
    if plan.tiered is not None:
        found.append(("worth it", worth(plan)))
    found.append(("start", _start(plan)))
    return found


@dataclass(frozen=True)
class Pod:
    """What the operator's pod asks of its node beside GPUs and memory; disk is None where it asks for none."""

    cpu: str
    disk_bytes: int | None


def pod_of(question: Question, plan: Plan) -> Pod:
    """As `hisparse render` shows it."""
    # a few hundredths of a second, which only a manifest pays
    from hisparse_operator.decide.planning import download_bytes  # noqa: PLC0415

    wanted = question.spec.resources
    own = parse_quantity(wanted.ephemeral_storage) if wanted.ephemeral_storage else None
    # one for each rank is what the operator asks for; a test compares them
    return Pod(wanted.cpu or str(wanted.gpus), own or download_bytes(question.spec, plan.model) or None)


def _requests(question: Question, plan: Plan) -> list[tuple[str, str]]:
    pod = pod_of(question, plan)
    disk = f" and {format_bytes(pod.disk_bytes)} of local disk" if pod.disk_bytes else ""
    return [("pod takes", f"{pod.cpu} CPU(s){disk}, beside its GPUs and memory")]


def _token(plan: Plan) -> str:
    text = f"{plan.plain.token_bytes:,} B on each GPU in plain KV"
    if not plan.plain.is_uniform:
        text += ", once a request is long: windows and states do not grow"
    if plan.tiered is None:
        return text
    host = Fraction(plan.tiered.host_block_bytes, plan.tiered.block_tokens)
    gpu = Fraction(plan.tiered.gpu_block_bytes, plan.tiered.block_tokens)
    return f"{text}; with the tier {_whole(host)} B of host pool + {_whole(gpu)} B and hot rows"


def _request(plan: Plan) -> str:
    tokens, plain = plan.target.max_tokens, plan.plain
    text = f"of {tokens_text(tokens)}: {format_bytes(plain.request_bytes(tokens))} in plain KV"
    tier = plan.tiered
    if tier is None:
        return text
    host = format_bytes(tier.host_request_blocks(tokens) * tier.host_block_bytes)
    gpu = format_bytes(tier.steady_blocks(tokens) * tier.gpu_block_bytes)
    least = format_bytes(tier.minimum_host_blocks(tokens) * tier.host_block_bytes)
    return f"{text}; with the tier {host} of host pool + {gpu} of HBM; smallest pool {least}"


def worth(plan: Plan) -> str:
    """The two numbers of a tier, concurrency and speed, and from where on it pays."""
    row = plan.at_typical
    at = f"at {tokens_text(row.tokens)}"
    if row.gain is None or row.speedup is None:
        return f"{at} plain KV holds not even one request, so only the tier serves it at all"
    numbers = f"{at} {decimal(row.gain)} times the concurrency, expected decode speed-up ~{decimal(row.speedup)}"
    slower = f"host reads make a token ~{decimal(HOST_READ_SLOWDOWN).rstrip('0')} times slower"
    if plan.pays_above is None:
        return f"{numbers}; {slower}, so it never pays at that length: take it for longer requests only"
    return f"{numbers}; {slower}, so it pays above {plan.pays_above:,} requests at once"


def _whole(value: Fraction) -> str:
    return f"{value.numerator:,}" if value.denominator == 1 else decimal(value)


def _gpu_title(answer: Plan | Shortfall) -> str:
    return f"HBM of each GPU, {format_bytes(answer.node.gpu.memory_bytes)}"


def _hbm_sum(terms: tuple[Term, ...], title: str) -> Sum:
    return Sum(title, tuple(_amount(term) for term in terms))


def _amount(term: Term) -> Amount:
    return Amount(term.name, format_bytes(term.bytes), term.estimate)


def _host_sum(plan: Plan) -> Sum:
    host, given = plan.host, plan.node.host_memory_bytes
    amounts = [_amount(term) for term in plan.host_terms if term.bytes]
    # with a limit of the user's own the overhead is not in the sum
    guessed = plan.target.memory_bytes is None
    amounts.append(Amount("pod memory", format_bytes(host.pod), estimate=guessed, total=True))
    amounts.append(Amount("of it /dev/shm at most", format_bytes(host.shm)))
    if given is None:
        amounts.append(Amount("node memory", "not given"))
    else:
        amounts.append(Amount("node memory", format_bytes(given)))
    if plan.mode is Mode.HISPARSE:
        amounts.append(Amount("pool shared by ranks", "yes" if host.shared else "no, one per rank"))
    return Sum("host memory of the pod", tuple(amounts))


def _length_line(row: LengthRow, *, tiered: bool) -> LengthLine:
    return LengthLine(
        tokens=f"{row.tokens:,}",
        plain=amount(row.plain),
        tier=amount(row.tier) if tiered else UNTOLD,
        gain=UNTOLD if row.gain is None else f"x {decimal(row.gain)}",
        speedup=UNTOLD if row.speedup is None else f"~ x {decimal(row.speedup)}",
        prefill=f"~ {format_duration(row.prefill_seconds)}",
    )


def _start(plan: Plan) -> str:
    parts = " + ".join(f"{format_duration(part.seconds)} {part.name}" for part in startup_parts(plan))
    return f"{_about(plan.seconds.startup)}: {parts}"


def _times(seconds: Seconds) -> list[tuple[str, str]]:
    return [
        ("start", _about(seconds.startup)),
        ("start budget", _about(seconds.startup_budget)),
        ("drain", _about(seconds.drain)),
        ("teardown", _about(seconds.teardown)),
        ("termination grace", _about(seconds.termination_grace)),
    ]


@dataclass(frozen=True)
class Part:
    """One part of a start, in whole seconds."""

    name: str
    seconds: int


def startup_parts(plan: Plan) -> tuple[Part, ...]:
    """What a start spends its time on; the parts add up to `seconds.startup`, and none is nothing."""
    host, downloads = plan.host, plan.target.downloads_weights
    tiered = plan.mode is Mode.HISPARSE
    pool, region = (host.pool, host.indexer_offload) if tiered else (0, host.pool)
    exact = (
        ("for imports, workers and graphs", Fraction(FIXED_START_SECONDS)),
        ("to download weights" if downloads else "to load weights", load_seconds(plan.model, downloads=downloads)),
        ("to pin the host pool", pin_seconds(pool, ranks=plan.target.tp, shared=host.shared)),
        ("to pin the indexer offload" if tiered else "to pin the offload pool", offload_pin_seconds(region)),
    )
    parts, before = [], 0
    # rounded up as a sum, as the whole is, so that nothing is lost between the parts
    for (name, _), until in zip(exact, accumulate(seconds for _, seconds in exact), strict=True):
        parts.append(Part(name, ceil(until) - before))
        before = ceil(until)
    return tuple(part for part in parts if part.seconds)


def _about(seconds: int) -> str:
    return f"~ {format_duration(seconds)}"


# --- the command -----------------------------------------------------------------------------------------------


def script_of(question: Question, plan: Plan, *, in_cluster: bool) -> tuple[Shell, ...]:
    """The engine's environment and flags as a script that bash takes as it stands, each line with its reason."""
    spec = question.spec
    lines = [Shell(f"export {one.name}={shlex.quote(one.value)}", one.why) for one in engine.environment(plan)]
    lines.append(Shell("flags=("))
    for flag in flags_of(question, plan):
        value = "" if flag.value is None else f" {shlex.quote(flag.value)}"
        lines.append(Shell(f"  {flag.name}{value}", flag.why))
    extra = (spec.engine.args if spec.engine else None) or ()
    if extra:
        lines.append(Shell(f"  {shlex.join(extra)}", "engine.args"))
    lines.append(Shell(")"))
    path = shlex.quote(model_path(spec, in_cluster=in_cluster))
    lines.append(Shell(f'vllm serve {path} "${{flags[@]}}"'))
    return tuple(lines)


def flags_of(question: Question, plan: Plan) -> tuple[engine.Flag, ...]:
    """Every flag that the operator would set."""
    spec = question.spec
    hub = spec.model.hugging_face
    return engine.serve_flags(
        plan,
        served_name=question.served_name,
        port=(spec.networking.port if spec.networking else None) or engine.ENGINE_PORT,
        trust_remote_code=bool(spec.model.trust_remote_code),
        revision=hub.revision if hub else None,
    )


def command_of(question: Question, plan: Plan, *, in_cluster: bool) -> tuple[str, ...]:
    """The same as one argument vector."""
    spec = question.spec
    extra = (spec.engine.args if spec.engine else None) or ()
    return engine.command(model_path(spec, in_cluster=in_cluster), flags_of(question, plan), extra)


def model_path(spec: HiSparseInferenceSpec, *, in_cluster: bool) -> str:
    """What `vllm serve` is given: a repository, or the folder of the weights."""
    model = spec.model
    if model.hugging_face is not None:
        return model.hugging_face.repo
    if model.host_path is not None and not in_cluster:
        return model.host_path.path
    if model.pvc is not None and model.pvc.path:
        return f"{MODEL_MOUNT}/{model.pvc.path.rstrip('/')}"
    return MODEL_MOUNT


# --- a shortfall -----------------------------------------------------------------------------------------------


def _shortfall(short: Shortfall) -> Screen:
    answers = [
        ("binds", f"{short.limit.resource.value}: {short.limit.message}"),
        ("change", short.limit.remedy),
    ]
    if short.mode is not None:
        answers.insert(0, ("tier", short.mode.value))
    sums = []
    if short.hbm:
        sums.append(_hbm_sum(short.hbm, _gpu_title(short)))
        sums.append(Sum("falls short", _missing(short)))
    return Screen(
        verdict=Verdict.DOES_NOT_FIT,
        headline=_asked(short),
        answers=tuple(answers),
        sums=tuple(sums),
    )


def _missing(short: Shortfall) -> tuple[Amount, ...]:
    missing = short.needed - short.available
    # what HBM lacks before the first token, which one request comes on top of
    before = max((-term.bytes for term in short.hbm), default=0)
    parts: tuple[Amount, ...] = ()
    if short.limit.resource is Resource.HBM and before > 0:
        parts = (
            Amount("KV of one request", format_bytes(short.needed - before)),
            Amount("short before it", format_bytes(before)),
        )
    return (
        *(_amount(term) for term in short.host_terms if term.bytes),
        *parts,
        Amount("needed", format_bytes(short.needed)),
        Amount("there", format_bytes(short.available)),
        Amount("missing", format_bytes(missing), total=True),
    )
