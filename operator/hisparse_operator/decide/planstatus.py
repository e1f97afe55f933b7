"""status.plan and status.mode: a plan in the words of the API. Decimals are text, bytes are quantities."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any, Final

from hisparse.plan import Mode, Plan, Shortfall, Term
from hisparse.rounding import decimal, round_up
from hisparse.status import HbmTerm, ModeStatus, PlanStatus
from hisparse.units import MIB, format_bytes, format_quantity
from hisparse_operator.decide.recall import REMEMBERED, Same

_NOTE: Final = "today's plan would differ"


def of_plan(plan: Plan) -> dict[str, Any]:
    """A plan that fits."""
    return dict(_of_plan(Same(plan)))


@lru_cache(maxsize=REMEMBERED)
def _of_plan(same: Same[Plan]) -> dict[str, Any]:
    plan = same.value
    host, seconds = plan.host, plan.seconds
    gain, speedup = plan.at_typical.gain, plan.at_typical.speedup
    status = PlanStatus(
        feasible=True,
        summary=summary(plan),
        mode=plan.mode.value,
        kv_cache_dtype=plan.kv_dtype,
        hbm_per_gpu=_terms(plan.hbm),
        kv_bytes_per_token=plan.plain.token_bytes,
        gpu_blocks=plan.gpu_blocks,
        host_blocks=plan.host_blocks or None,
        host_pool=_quantity(host.pool) if host.pool else None,
        host_memory=_quantity(host.physical) if host.physical else None,
        indexer_offload=_quantity(host.indexer_offload) if host.indexer_offload else None,
        shm=_quantity(host.shm),
        pod_memory=_quantity(host.pod),
        max_concurrency_at_max_tokens=decimal(plan.at_max.tier),
        max_concurrency_at_typical_tokens=decimal(plan.at_typical.tier),
        concurrency_gain=decimal(gain) if gain is not None else None,
        expected_speedup=decimal(speedup) if speedup is not None else None,
        max_num_seqs=plan.max_requests,
        max_batched_tokens=plan.max_batched_tokens,
        startup_seconds=seconds.startup,
        teardown_seconds=seconds.teardown,
        prefill_seconds=plan.at_max.prefill_seconds,
        binding_limit=plan.limit.resource.value,
        binding_message=plan.limit.message,
        cheapest_change=plan.limit.remedy,
        warnings=list(plan.warnings) or None,
    )
    return status.model_dump(by_alias=True, exclude_none=True)


def of_shortfall(shortfall: Shortfall) -> dict[str, Any]:
    """A plan that does not fit: what it would take, and what would change that."""
    status = PlanStatus(
        feasible=False,
        summary=shortfall.limit.message,
        mode=shortfall.mode.value if shortfall.mode else None,
        hbm_per_gpu=_terms(shortfall.hbm) or None,
        binding_limit=shortfall.limit.resource.value,
        binding_message=shortfall.limit.message,
        cheapest_change=shortfall.limit.remedy,
    )
    return status.model_dump(by_alias=True, exclude_none=True)


def mode_of(plan: Plan) -> dict[str, Any]:
    """The tier that the plan uses, and why."""
    return ModeStatus(effective=plan.mode.value, reason=plan.mode_reason).model_dump(by_alias=True)


def summary(plan: Plan) -> str:
    """The plan in one sentence."""
    tier = "no host tier" if plan.mode is Mode.NONE else plan.mode.value
    pool = f" with a host pool of {format_bytes(plan.host.pool)}" if plan.host.pool else ""
    at_max, typical = plan.at_max, plan.at_typical
    holds = f"{_counted(at_max.tier, 'request')} of {_counted(at_max.tokens, 'token')}"
    if typical.tokens != at_max.tokens:
        holds += f" or {_count(typical.tier)} of {typical.tokens:,}"
    return f"{tier}{pool}, KV in {plan.kv_dtype}: {holds} at once; binding is {plan.limit.resource.value}"


def differs(frozen: Mapping[str, Any], today: Mapping[str, Any]) -> tuple[str, ...]:
    """Fields that pods notice in which today's plan is not the frozen one."""
    noticed = (
        "mode",
        "kvCacheDtype",
        "hostPool",
        "indexerOffload",
        "shm",
        "podMemory",
        "maxNumSeqs",
        "maxBatchedTokens",
    )
    return tuple(
        f"{name} {today.get(name, 'none')} instead of {frozen.get(name, 'none')}"
        for name in noticed
        if frozen.get(name) != today.get(name)
    )


def noted(frozen: Mapping[str, Any], today: Mapping[str, Any] | None) -> dict[str, Any]:
    """The frozen plan, with a note where today's would differ in what pods notice."""
    differences = differs(frozen, today) if today else ()
    if not differences:
        return dict(frozen)
    note = f"{_NOTE}: {', '.join(differences)}; change spec.restartToken to take it"
    return {**frozen, "warnings": [*(frozen.get("warnings") or ()), note]}


def without_note(plan: Mapping[str, Any]) -> dict[str, Any]:
    """The frozen plan again, from a status that shows it."""
    warnings = [warning for warning in plan.get("warnings") or () if not warning.startswith(_NOTE)]
    kept = {name: value for name, value in plan.items() if name != "warnings"}
    return kept | ({"warnings": warnings} if warnings else {})


def _count(value: Fraction | int) -> str:
    """A number for people: "26,217", "15.26"; cut off, not rounded up."""
    hundredths = int(value * 100)
    number, rest = divmod(hundredths, 100)
    return f"{number:,}.{rest:02d}" if rest else f"{number:,}"


def _counted(value: Fraction | int, noun: str) -> str:
    return f"{_count(value)} {noun if value == 1 else f'{noun}s'}"


def _terms(terms: tuple[Term, ...]) -> list[HbmTerm]:
    return [HbmTerm(name=term.name, bytes=_quantity(term.bytes), estimate=term.estimate or None) for term in terms]


def _quantity(count: int) -> str:
    """Whole MiB, rounded up: a number that people read."""
    return format_quantity(round_up(count, MIB))
