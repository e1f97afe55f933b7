"""`hisparse time --json`: the schema `hisparse.dev/time/v1` (docs/reference/time-json.md).

Counts, bytes, FLOP, milliseconds and microseconds are whole numbers; fractions are texts with two decimals, cut off,
and a claim is a text with all that it was given.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Final

from hisparse.claims import Judgement
from hisparse.decode import HOST_READ_RUNS, USUAL_BANDWIDTH, DecodeBound
from hisparse.estimates import HOST_READ_SLOWDOWN
from hisparse.plan import Shortfall
from hisparse.prefill import GOOD_EFFICIENCY, USUAL_EFFICIENCY, Prefill
from hisparse.rounding import ceil, decimal
from hisparse_toolkit.problems import NoAnswerError
from hisparse_toolkit.time_answer import Timing
from hisparse_toolkit.time_numbers import cut, exact

SCHEMA: Final = "hisparse.dev/time/v1"

_Json = dict[str, Any]


def timing_document(timing: Timing) -> _Json:
    """The document of an answer."""
    return {
        "schema": SCHEMA,
        "verdict": timing.verdict.word,
        "exitCode": int(timing.verdict.code),
        "model": _model(timing),
        "node": _node(timing),
        "request": _request(timing),
        "fits": not isinstance(timing.answer, Shortfall),
        "batchFits": timing.batch_fits,
        "prefill": [_prefill(one) for one in timing.prefills],
        "prefillEfficiency": {
            "usual": [decimal(share) for share in USUAL_EFFICIENCY],
            "good": decimal(GOOD_EFFICIENCY),
        },
        "allReduceMilliseconds": None if timing.links is None else ceil(1000 * timing.links),
        "decode": [_decode(one) for one in timing.decodes],
        "decodeBandwidth": {"usual": [decimal(share) for share in USUAL_BANDWIDTH]},
        "decodeFromHost": None if timing.from_host is None else _decode(timing.from_host),
        "tier": _tier(timing),
        "claims": _claims(timing),
        "errors": [],
    }


def problem_document(error: NoAnswerError) -> _Json:
    """The document where there is no answer: the same keys, and why."""
    return {
        "schema": SCHEMA,
        "verdict": error.word,
        "exitCode": int(error.code),
        "model": None,
        "node": None,
        "request": None,
        "fits": None,
        "batchFits": None,
        "prefill": [],
        "prefillEfficiency": None,
        "allReduceMilliseconds": None,
        "decode": [],
        "decodeBandwidth": None,
        "decodeFromHost": None,
        "tier": None,
        "claims": [],
        "errors": [{"field": one.field, "message": one.message} for one in error.problems],
    }


def _model(timing: Timing) -> _Json:
    model = timing.question.model
    return {
        "name": model.name,
        "architecture": model.architecture,
        "attention": model.attention.value,
        "layers": model.layers,
        "parameters": model.parameters,
        "activeParameters": model.active_parameters,
        "weightBytes": model.weight_bytes,
    }


def _node(timing: Timing) -> _Json:
    node = timing.answer.node
    return {
        "gpu": node.gpu.name,
        "product": node.product,
        "bf16Flops": node.gpu.bf16_flops,
        "fp8Flops": node.gpu.fp8_flops,
        "hbmBytesPerSecond": node.gpu.hbm_bytes_per_second,
        "hostBytesPerSecond": node.gpu.host_bytes_per_second,
    }


def _request(timing: Timing) -> _Json:
    target = timing.question.target
    return {
        "maxTokens": target.max_tokens,
        "gpus": target.gpus,
        "tensor": target.tp,
        "data": target.data,
        "pipeline": target.pipeline,
        "kvCacheDtype": timing.kv_dtype,
        "maxBatchedTokens": timing.chunk,
    }


def _prefill(one: Prefill) -> _Json:
    fast, slow = one.usual
    return {
        "tokens": one.tokens,
        "flop": one.work.total,
        "parameterFlop": one.work.parameters,
        "attentionFlop": one.work.attention,
        "indexerFlop": one.work.indexer,
        "expansionFlop": one.work.expansion,
        "estimateMilliseconds": ceil(1000 * one.seconds),
        "basis": one.basis.value,
        "usualMilliseconds": [ceil(1000 * fast), ceil(1000 * slow)],
        # a bound is never rounded towards what it rules out
        "boundMilliseconds": int(1000 * one.bound),
    }


def _decode(one: DecodeBound) -> _Json:
    return {
        "requests": one.requests,
        "tokens": one.tokens,
        "weightBytesPerGpu": one.reads.weights,
        "kvBytesPerGpu": one.reads.kv,
        "hostBytesPerGpu": one.reads.host,
        "stepMicrosecondsAtLeast": int(1_000_000 * one.seconds),
        "tokensPerSecondEachAtMost": decimal(one.each),
        "tokensPerSecondTogetherAtMost": decimal(one.together),
        "binds": one.binds.value,
    }


def _tier(timing: Timing) -> _Json | None:
    plan = timing.plan
    if plan is None or plan.tiered is None:
        return None
    return {
        "hostReadSlowdown": decimal(HOST_READ_SLOWDOWN),
        "plainRequests": decimal(plan.at_max.plain),
        "tierRequests": decimal(plan.at_max.tier),
        "breakEvenRequests": timing.break_even,
        "measured": [
            {
                "requests": run.decoding,
                "hbmMicroseconds": run.hbm_us,
                "tierMicroseconds": run.tier_us,
                "slowdown": decimal(run.slowdown),
            }
            for run in HOST_READ_RUNS
        ],
    }


def _claims(timing: Timing) -> list[_Json]:
    found = []
    if timing.seconds_claim is not None:
        found.append(_claim("prefillSeconds", timing.seconds_claim, timing.prefills[-1].tokens, 1))
    if timing.rate_claim is not None and timing.rate_bound is not None:
        bound = timing.rate_bound
        found.append(_claim("tokensPerSecond", timing.rate_claim, bound.tokens, bound.requests))
    return found


def _claim(kind: str, found: Judgement, tokens: int, requests: int) -> _Json:
    return {
        "kind": kind,
        "tokens": tokens,
        "requests": requests,
        "claimed": exact(found.claimed, least=2),
        "verdict": found.plausibility.value,
        "bound": cut(found.bound, 2, found.claimed),
        "good": _text(found.good),
        "usual": [_text(value) for value in found.usual],
        "timesFasterThanUsual": _text(found.times),
    }


def _text(value: Fraction) -> str:
    return decimal(value)
