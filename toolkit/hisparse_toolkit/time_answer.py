"""How long: prefill by length, decoding by concurrency, and what to make of a published speed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from typing import Final

from hisparse.architectures import Attention
from hisparse.claims import Judgement, MeasuredStep, Plausibility, judge_rate, judge_seconds, measured_step
from hisparse.decode import DecodeBound, Spread, break_even_requests, decode_bound
from hisparse.errors import UnitError
from hisparse.hbm import default_batched_tokens
from hisparse.plan import Plan, Shortfall
from hisparse.prefill import Prefill, allreduce_seconds, prefill
from hisparse.rounding import cdiv
from hisparse.rows import KV_DTYPES
from hisparse.units import exact_seconds, shortened
from hisparse_toolkit.plan_command import answer_to
from hisparse_toolkit.problems import BadInputError, ExitCode, Problem
from hisparse_toolkit.question import Question

_USUAL_LENGTHS: Final = (8_192, 32_768, 131_072, 524_288, 1_048_576)
_MOST_REQUESTS: Final = 4096
_LONGEST_SECONDS: Final = 10**9
_RATE: Final = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9})?")
_COUNT: Final = re.compile(r"[0-9]{1,4}")
_SPEED: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) ?t[a-z]*(?:/| ?p(?:er)? ?)s[a-z]*", re.IGNORECASE)
"""Tokens per second as people write them: 1000tok/s, 18.7 tokens/s, 30tps."""


class TimeVerdict(Enum):
    """The answer in one word, and the exit code that says the same to a script."""

    ESTIMATED = ("Estimated", ExitCode.YES)
    ESTIMATED_ONLY = ("EstimatedWithWarnings", ExitCode.WARNING)
    """Nothing was claimed, and memory does not hold what is asked: the length, or so many requests of it."""
    PLAUSIBLE = ("Plausible", ExitCode.YES)
    IMPLAUSIBLE = ("Implausible", ExitCode.WARNING)
    IMPOSSIBLE = ("Impossible", ExitCode.NO)

    def __init__(self, word: str, code: ExitCode) -> None:
        self.word = word
        self.code = code


@dataclass(frozen=True)
class ClaimWords:
    """Claims as they were typed; None where nothing was."""

    seconds: str | None = None
    tokens_per_second: str | None = None
    batch: str | None = None


@dataclass(frozen=True)
class Claims:
    """Published speeds: seconds of a prefill of --context tokens, tokens per second of one request of `batch`."""

    seconds: Fraction | None = None
    rate: Fraction | None = None
    batch: int | None = None


@dataclass(frozen=True)
class Timing:
    """Everything that `hisparse time` says.

    prefills are shortest first, the last is that of --context; decodes are at that length, fewest requests first.
    plan is None where no request of that length fits, which `short` then explains. links are seconds of all-reduces of
    the longest prefill, None where nobody measured them. from_host is a dense model that reads its KV from host memory.
    batch is the number of requests that was asked for, and rate_step the measured step that a decode speed is held
    against.
    """

    question: Question
    answer: Plan | Shortfall
    kv_dtype: str
    chunk: int
    prefills: tuple[Prefill, ...]
    decodes: tuple[DecodeBound, ...]
    from_host: DecodeBound | None
    links: Fraction | None
    seconds_claim: Judgement | None
    rate_claim: Judgement | None
    rate_bound: DecodeBound | None
    rate_step: MeasuredStep | None
    batch: int | None = None

    @property
    def plan(self) -> Plan | None:
        """The plan, where it fits."""
        return self.answer if isinstance(self.answer, Plan) else None

    @property
    def batch_fits(self) -> bool | None:
        """Whether memory holds as many requests of that length as were asked for; None where no number was."""
        if self.batch is None:
            return None
        return self.plan is not None and self.batch <= int(self.plan.at_max.tier)

    @property
    def break_even(self) -> int | None:
        """Requests of that length from which the tier decodes as much as plain KV; None without both."""
        plan = self.plan
        if plan is None or plan.tiered is None or int(plan.at_max.plain) < 1:
            return None
        return break_even_requests(int(plan.at_max.plain))

    @property
    def verdict(self) -> TimeVerdict:
        """That of the worst claim."""
        words = [one.plausibility for one in (self.seconds_claim, self.rate_claim) if one is not None]
        if not words:
            short = self.plan is None or self.batch_fits is False
            return TimeVerdict.ESTIMATED_ONLY if short else TimeVerdict.ESTIMATED
        worst = max(words, key=list(Plausibility).index)
        return next(verdict for verdict in TimeVerdict if verdict.word == worst.value)


def claims_of(words: ClaimWords) -> Claims:
    """Read the claims. Raises BadInputError with every fault."""
    problems: list[Problem] = []
    seconds = _seconds(words.seconds, problems)
    rate = _rate(words.tokens_per_second, problems)
    batch = _batch(words.batch, problems)
    if problems:
        raise BadInputError(problems)
    return Claims(seconds, rate, batch)


def timing_of(question: Question, claims: Claims) -> Timing:
    """Work it all out for the node class that a plan would take."""
    answer = answer_to(question)
    model, target, gpu = question.model, question.target, answer.node.gpu
    dtype = answer.kv_dtype if isinstance(answer, Plan) else _wished_dtype(question)
    chunk = target.max_batched_tokens or default_batched_tokens(gpu)
    spread = Spread(target.tp, target.data, target.pipeline, target.decode_context)
    longest = target.max_tokens
    lengths = sorted({*(tokens for tokens in _USUAL_LENGTHS if tokens < longest), longest})
    ranks = target.tp * target.pipeline

    def bound(requests: int, *, kv_in_host: bool = False) -> DecodeBound:
        return decode_bound(
            model,
            gpu,
            KV_DTYPES[dtype],
            tokens=longest,
            requests=requests,
            spread=spread,
            drafted=target.draft_tokens,
            kv_in_host=kv_in_host,
        )

    prefills = tuple(prefill(model, gpu, tokens, ranks=ranks, chunk=chunk) for tokens in lengths)
    claimed = bound(claims.batch or 1)
    step = measured_step(
        model,
        gpu,
        decoding=cdiv(claimed.requests, target.data * target.pipeline),
        from_host=isinstance(answer, Plan) and answer.tiered is not None,
    )
    return Timing(
        question=question,
        answer=answer,
        kv_dtype=dtype,
        chunk=chunk,
        prefills=prefills,
        decodes=tuple(bound(requests) for requests in _concurrencies(answer, claims.batch)),
        from_host=None if model.attention is Attention.DSA else bound(claims.batch or 1, kv_in_host=True),
        links=allreduce_seconds(model, gpu, longest, tensor=target.tp),
        seconds_claim=None if claims.seconds is None else judge_seconds(prefills[-1], claims.seconds),
        rate_claim=None if claims.rate is None else judge_rate(claimed, claims.rate, step),
        rate_bound=None if claims.rate is None else claimed,
        rate_step=None if claims.rate is None else step,
        batch=claims.batch,
    )


def _concurrencies(answer: Plan | Shortfall, batch: int | None) -> tuple[int, ...]:
    """Powers of two as far as memory goes, and how far that is; 1 where not even one request fits."""
    if batch is not None:
        return (batch,)
    most = 1
    if isinstance(answer, Plan):
        row = answer.at_max
        most = min(_MOST_REQUESTS, max(1, int(row.tier if answer.tiered else row.plain)))
    return tuple(sorted({*(1 << power for power in range(most.bit_length())), most}))


def _wished_dtype(question: Question) -> str:
    """What the planner tries last before it gives up."""
    wish = question.target.kv_dtype
    return "Fp8" if wish == "Auto" else wish


# --- claims as they are typed ----------------------------------------------------------------------------------------


def _seconds(text: str | None, problems: list[Problem]) -> Fraction | None:
    if text is None:
        return None
    if (speed := _SPEED.fullmatch(text)) is not None:
        message = f'"{shortened(text)}" is a speed and no time; write --claim-tokens-per-second {speed[1]}'
        problems.append(Problem("--claim", message))
        return None
    try:
        value = exact_seconds(text)
    except UnitError:
        message = f'"{shortened(text)}" is no time; write numbers with the units h, m, s, ms or us, as in 78s or 1m18s'
        problems.append(Problem("--claim", message))
        return None
    if not 0 < value <= _LONGEST_SECONDS:
        problems.append(Problem("--claim", f'"{shortened(text)}" is no time that a prefill takes; write it as in 78s'))
        return None
    return value


def _rate(text: str | None, problems: list[Problem]) -> Fraction | None:
    if text is None:
        return None
    if (speed := _SPEED.fullmatch(text)) is not None:
        message = f'"{shortened(text)}" has a unit, which is tokens per second anyway; write {speed[1]}'
        problems.append(Problem("--claim-tokens-per-second", message))
        return None
    if _RATE.fullmatch(text) is None or not Fraction(text):
        message = f'"{shortened(text)}" is not a number of tokens per second above 0; write it as in 18.7'
        problems.append(Problem("--claim-tokens-per-second", message))
        return None
    return Fraction(text)


def _batch(text: str | None, problems: list[Problem]) -> int | None:
    if text is None:
        return None
    if _COUNT.fullmatch(text) is None or not 1 <= int(text) <= _MOST_REQUESTS:
        message = f'"{shortened(text)}" is not a whole number from 1 to {_MOST_REQUESTS}; write digits, as in 8'
        problems.append(Problem("--batch", message))
        return None
    return int(text)
