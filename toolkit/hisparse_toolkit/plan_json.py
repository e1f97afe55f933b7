"""`hisparse plan --json`: the schema `hisparse.dev/plan/v1` (docs/reference/plan-json.md).

Bytes, tokens, blocks and seconds are whole numbers; fractions are texts with two decimals, cut off. No floats.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import Any, Final

from hisparse import engine
from hisparse.estimates import HOST_READ_SLOWDOWN
from hisparse.hardware import NodeClass
from hisparse.model import ModelFacts
from hisparse.plan import LengthRow, Limit, Plan, Resource, Shortfall, Target, Term
from hisparse.rounding import decimal
from hisparse_toolkit.problems import NoAnswerError
from hisparse_toolkit.question import Question
from hisparse_toolkit.screen import command_of, flags_of, pod_of, startup_parts, verdict_of

SCHEMA: Final = "hisparse.dev/plan/v1"

_Json = dict[str, Any]


def answer_document(question: Question, answer: Plan | Shortfall, *, in_cluster: bool) -> _Json:
    """The document of an answer, whether it fits or not."""
    verdict = verdict_of(answer)
    return {
        "schema": SCHEMA,
        "verdict": verdict.word,
        "exitCode": int(verdict.code),
        "model": model_json(answer.model),
        "node": node_json(answer.node),
        "request": request_json(answer.target),
        "plan": _plan(question, answer, in_cluster=in_cluster) if isinstance(answer, Plan) else None,
        "shortfall": _shortfall(answer) if isinstance(answer, Shortfall) else None,
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
        "plan": None,
        "shortfall": None,
        "errors": [{"field": one.field, "message": one.message} for one in error.problems],
    }


def model_json(model: ModelFacts) -> _Json:
    return {
        "name": model.name,
        "architecture": model.architecture,
        "attention": model.attention.value,
        "layers": model.layers,
        "indexerLayers": len(model.indexer.layers) if model.indexer else 0,
        "maxPositions": model.max_positions,
        "parameters": model.parameters,
        "activeParameters": model.active_parameters,
        "weightBytes": model.weight_bytes,
        "weightSource": model.weight_source,
    }


def node_json(node: NodeClass) -> _Json:
    return {
        "gpu": node.gpu.name,
        "product": node.product,
        "gpus": node.gpus,
        "gpuMemoryBytes": node.gpu.memory_bytes,
        "hostMemoryBytes": node.host_memory_bytes,
    }


def request_json(target: Target) -> _Json:
    return {
        "maxTokens": target.max_tokens,
        "typicalTokens": target.typical,
        "gpus": target.gpus,
        "tensor": target.tp,
        "data": target.data,
        "pipeline": target.pipeline,
        "decodeContext": target.decode_context,
        "draftTokens": target.draft_tokens,
        "kvBytes": target.kv_bytes,
        "mode": target.mode,
        "kvCacheDtype": target.kv_dtype,
        "gpuMemoryUtilizationPercent": target.utilization_percent,
        "engineVersion": target.engine_version,
    }


def _plan(question: Question, plan: Plan, *, in_cluster: bool) -> _Json:
    host, seconds = plan.host, plan.seconds
    return {
        "mode": plan.mode.value,
        "modeReason": plan.mode_reason,
        "kvCacheDtype": plan.kv_dtype,
        "kvCacheDtypeReason": plan.kv_dtype_reason,
        "hbmPerGpu": _terms(plan.hbm),
        "kvBytes": plan.kv_budget,
        "gpuBlocks": plan.gpu_blocks,
        "hostBlocks": plan.host_blocks,
        "plainLayout": {
            "blockTokens": plan.plain.block_tokens,
            "blockBytes": plan.plain.block_bytes,
            "tokenBytes": plan.plain.token_bytes,
            "requestBytes": plan.plain.request_bytes(plan.target.max_tokens),
            "groups": [
                {
                    "reach": group.reach.value,
                    "layers": group.layers,
                    "padding": group.padding,
                    "blockTokens": group.block_tokens,
                    "bytes": group.bytes,
                    "tokens": group.tokens,
                    "states": group.states,
                }
                for group in plan.plain.groups
            ],
        },
        "tierLayout": _tier(plan),
        "host": {
            "terms": _terms(plan.host_terms),
            "poolBytes": host.pool,
            "poolShared": host.shared,
            "indexerOffloadBytes": host.indexer_offload,
            "physicalBytes": host.physical,
            "overheadBytes": host.overhead,
            "shmBytes": host.shm,
            "podBytes": host.pod,
        },
        "pod": _pod(question, plan) if in_cluster else None,
        "concurrency": [_row(row) for row in plan.curve],
        "atMaxTokens": _row(plan.at_max),
        "atTypicalTokens": _row(plan.at_typical),
        "admissionAtMaxTokens": decimal(plan.admission_at_max),
        "hostReadSlowdown": decimal(HOST_READ_SLOWDOWN),
        "paysAboveRequests": plan.pays_above,
        "maxConcurrentRequests": plan.max_requests,
        "maxBatchedTokens": plan.max_batched_tokens,
        "seconds": {
            "startup": seconds.startup,
            "startupParts": [{"name": part.name, "seconds": part.seconds} for part in startup_parts(plan)],
            "startupBudget": seconds.startup_budget,
            "teardown": seconds.teardown,
            "drain": seconds.drain,
            "workerShutdown": seconds.worker_shutdown,
            "terminationGrace": seconds.termination_grace,
            "prefillMax": plan.at_max.prefill_seconds,
        },
        "limit": _limit(plan.limit),
        "warnings": list(plan.warnings),
        "environment": [{"name": one.name, "value": one.value, "why": one.why} for one in engine.environment(plan)],
        "flags": [{"name": one.name, "value": one.value, "why": one.why} for one in flags_of(question, plan)],
        "command": list(command_of(question, plan, in_cluster=in_cluster)),
    }


def _pod(question: Question, plan: Plan) -> _Json:
    pod = pod_of(question, plan)
    return {"cpu": pod.cpu, "ephemeralStorageBytes": pod.disk_bytes}


def _tier(plan: Plan) -> _Json | None:
    tier, tokens = plan.tiered, plan.target.max_tokens
    if tier is None:
        return None
    return {
        "blockTokens": tier.block_tokens,
        "gpuBlockBytes": tier.gpu_block_bytes,
        "hostBlockBytes": tier.host_block_bytes,
        "minimumPoolBytes": tier.minimum_host_blocks(tokens) * tier.host_block_bytes,
        "requestHostBytes": tier.host_request_blocks(tokens) * tier.host_block_bytes,
        "requestGpuBytes": tier.steady_blocks(tokens) * tier.gpu_block_bytes,
    }


def _shortfall(short: Shortfall) -> _Json:
    return {
        "reason": short.reason,
        "mode": short.mode.value if short.mode else None,
        "limit": _limit(short.limit),
        "unit": "gpus" if short.limit.resource is Resource.GPUS else "bytes",
        "needed": short.needed,
        "available": short.available,
        "hbmPerGpu": _terms(short.hbm),
        "hostTerms": _terms(short.host_terms),
    }


def _limit(limit: Limit) -> _Json:
    return {"resource": limit.resource.value, "message": limit.message, "remedy": limit.remedy}


def _terms(terms: Iterable[Term]) -> list[_Json]:
    return [{"name": t.name, "bytes": t.bytes, "estimate": t.estimate, "why": t.why} for t in terms]


def _row(row: LengthRow) -> _Json:
    return {
        "tokens": row.tokens,
        "plain": decimal(row.plain),
        "tier": decimal(row.tier),
        "gain": _maybe(row.gain),
        "speedup": _maybe(row.speedup),
        "prefillSeconds": row.prefill_seconds,
    }


def _maybe(value: Fraction | None) -> str | None:
    return None if value is None else decimal(value)
