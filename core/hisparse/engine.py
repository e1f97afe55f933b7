"""The `vllm serve` command, environment and launch document of a plan."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hisparse.estimates import ENDPOINT_GRACE_SECONDS, SHUTDOWN_TIMEOUT_SECONDS
from hisparse.plan import Mode, Plan
from hisparse.rope import rope_overrides
from hisparse.rows import KV_DTYPES
from hisparse.units import GIB

PINNED_IMAGE = "hisparse-engine:0.1.0-vllm0.33.0"
"""engine_image/ of this release; a chart value or --engine-image puts a registry before it."""

TEMPLATE_VERSION = 1
"""Raised when rendering changes in a way that only new revisions may see (docs/decisions/0004)."""

ENGINE_PORT = 8000
LAUNCH_SCHEMA = "hisparse.dev/launch/v1"


@dataclass(frozen=True)
class Flag:
    """One argument of `vllm serve` and why it is there. value is None for a switch."""

    name: str
    value: str | None
    why: str


@dataclass(frozen=True)
class EnvVar:
    """One environment variable of the engine and why it is there."""

    name: str
    value: str
    why: str


def serve_flags(
    plan: Plan,
    *,
    served_name: str,
    port: int = ENGINE_PORT,
    trust_remote_code: bool = False,
    revision: str | None = None,
) -> tuple[Flag, ...]:
    """Every flag that the operator owns, in the order in which they are printed."""
    target = plan.target
    flags = [
        Flag("--served-model-name", served_name, "the name that clients ask for"),
        Flag("--port", str(port), "where the launcher and the Service look for it"),
        Flag("--tensor-parallel-size", str(target.tp), "one rank per GPU"),
    ]
    if revision:
        flags.append(Flag("--revision", revision, "the commit that was asked for"))
    if target.data > 1:
        flags.append(
            Flag("--data-parallel-size", str(target.data), "each replica of the model has its own KV and pool")
        )
    if target.pipeline > 1:
        flags.append(Flag("--pipeline-parallel-size", str(target.pipeline), "layers are split over GPUs"))
    if target.decode_context > 1:
        why = "the tokens of a request are spread over ranks that would hold copies"
        flags.append(Flag("--decode-context-parallel-size", str(target.decode_context), why))
    if target.draft_tokens:
        drafting = _json({"method": "mtp", "num_speculative_tokens": target.draft_tokens})
        flags.append(Flag("--speculative-config", drafting, "the model's own MTP layers draft tokens"))
    if target.expert:
        flags.append(Flag("--enable-expert-parallel", None, "experts are spread over all GPUs"))
    flags += [
        Flag("--max-model-len", str(target.max_tokens), "context.maxTokens"),
        Flag("--kv-cache-dtype", _kv_cache_dtype(plan), plan.kv_dtype_reason),
        Flag(
            "--max-num-seqs",
            str(plan.max_num_seqs),
            "context.maxConcurrentRequests"
            if target.max_requests
            else "what memory holds at typicalTokens, at most 256",
        ),
        Flag(
            "--max-num-batched-tokens",
            str(plan.max_batched_tokens),
            "prefill chunk: larger needs more HBM and stalls decoding",
        ),
        Flag(
            "--gpu-memory-utilization",
            f"0.{target.utilization_percent}",
            "share of HBM to budget; prefill workspace needs the rest",
        ),
    ]
    if target.tp > 1:
        why = "Ray would give every rank a private host pool" if plan.tiered else "all ranks are on one node"
        flags.append(Flag("--distributed-executor-backend", "mp", why))
    if (transfer := _transfer(plan)) is not None:
        flags.append(Flag("--kv-transfer-config", transfer, plan.mode_reason))
    if (tuning := _tuning(plan)) is not None:
        flags.append(Flag("--attention-config", tuning, "kvTier.hiSparse"))
    if target.rope_factor is not None:
        flags.append(Flag("--hf-overrides", _rope(plan), "context.ropeScaling"))
    if trust_remote_code:
        flags.append(Flag("--trust-remote-code", None, "model.trustRemoteCode"))
    flags += [
        Flag(
            "--shutdown-timeout",
            str(SHUTDOWN_TIMEOUT_SECONDS),
            "for requests that slip in after the launcher's drain",
        ),
        Flag("--disable-access-log-for-endpoints", "/health,/metrics,/v1/models", "the launcher asks twice a second"),
    ]
    return tuple(flags)


def command(model_path: str, flags: Sequence[Flag], extra_args: Sequence[str] = ()) -> tuple[str, ...]:
    """The argument vector, ("vllm", "serve", MODEL, ...), engine.args last."""
    words = ["vllm", "serve", model_path]
    for flag in flags:
        words.append(flag.name)
        if flag.value is not None:
            words.append(flag.value)
    return (*words, *extra_args)


def environment(plan: Plan) -> tuple[EnvVar, ...]:
    """VLLM_* variables that the plan decides."""
    return (
        EnvVar(
            "VLLM_ENGINE_READY_TIMEOUT_S",
            str(plan.seconds.startup_budget),
            "the start-up budget; 600 s unless set",
        ),
        EnvVar(
            "VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS",
            str(plan.seconds.worker_shutdown),
            "5 s unless set; a killed unpin keeps memory",
        ),
        EnvVar("VLLM_NO_USAGE_STATS", "1", "no telemetry from a cluster"),
    )


def launch_document(
    plan: Plan, *, served_name: str, engine_port: int, launcher_port: int, drain_key: str = ""
) -> dict[str, Any]:
    """plan.json as hisparse-launch reads it (engine_image/README.md)."""
    target, seconds = plan.target, plan.seconds
    return {
        "schema": LAUNCH_SCHEMA,
        "engine": {
            "port": engine_port,
            "servedName": served_name,
            "startupSeconds": seconds.startup_budget,
            "drainSeconds": seconds.drain,
            "endpointGraceSeconds": ENDPOINT_GRACE_SECONDS,
            "shutdownSeconds": seconds.worker_shutdown,
        },
        "launcher": {"port": launcher_port} | ({"drainKey": drain_key} if drain_key else {}),
        "memory": {
            "shmBytes": (plan.host.pool * target.data if plan.host.shared else 0) + _region_bytes(plan),
            "hostPoolBytes": plan.host.pool * target.data if plan.mode is Mode.HISPARSE else 0,
            "sharedPool": plan.host.shared,
            "tensorParallel": target.tp,
        },
    }


def _kv_cache_dtype(plan: Plan) -> str:
    """Bf16 is said by name where it is the model's own type, else "auto": 16 bits of the model's type."""
    if plan.kv_dtype == "Bf16" and plan.model.dtype != "bfloat16":
        return "auto"
    return KV_DTYPES[plan.kv_dtype].engine


def _region_bytes(plan: Plan) -> int:
    return plan.host.physical if plan.mode is Mode.OFFLOAD else plan.host.indexer_offload


def _transfer(plan: Plan) -> str | None:
    if plan.mode is Mode.OFFLOAD:
        return _json(_offloading(plan.host.pool))
    if plan.mode is not Mode.HISPARSE:
        return None
    hisparse = {
        "kv_connector": "HiSparseConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"host_pool_gib": _gib(plan.host.pool)},
    }
    if not plan.host.indexer_offload:
        return _json(hisparse)
    both = [hisparse, _offloading(plan.host.indexer_offload // plan.target.data)]
    return _json(
        {
            "kv_connector": "MultiConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"connectors": both},
        }
    )


def _offloading(size: int) -> dict[str, Any]:
    return {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"cpu_bytes_to_use": size},
    }


def _tuning(plan: Plan) -> str | None:
    target = plan.target
    if plan.mode is not Mode.HISPARSE:
        return None
    wanted: dict[str, Any] = {}
    if target.device_buffer_tokens is not None:
        wanted["device_buffer_size"] = target.device_buffer_tokens
    if target.eager_host_mirror is not None:
        wanted["eager_host_mirror"] = target.eager_host_mirror
    return _json({"hisparse_config": wanted}) if wanted else None


def _rope(plan: Plan) -> str:
    target, rope = plan.target, plan.model.rope
    assert target.rope_factor is not None  # noqa: S101 - the caller checked
    base = target.rope_original_tokens or rope.trained
    return rope_overrides(rope, target.rope_type.lower(), target.rope_factor, base)


def _gib(size: int) -> int | float:
    """Whole GiB where it is whole: the engine takes a decimal number of GiB."""
    return size // GIB if size % GIB == 0 else size / GIB


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"))
