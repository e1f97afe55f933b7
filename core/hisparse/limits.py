"""What a plan that fits says of itself: times, what binds first, from where the tier pays, and warnings."""

from __future__ import annotations

from fractions import Fraction

from hisparse import estimates
from hisparse.architectures import Attention
from hisparse.dialect import dialect
from hisparse.hbm import prefill_workspace_bytes
from hisparse.plan import HostMemory, LengthRow, Limit, Mode, Resource, Seconds
from hisparse.room import Room, overhead_bytes
from hisparse.rounding import ceil, decimal, whole_gib
from hisparse.tier import HiSparseLayout
from hisparse.units import GIB, format_bytes

_MINIMUM_STARTUP_BUDGET = 20 * 60
_DRAIN = 300
_WORKER_SHUTDOWN = 120
_STOP_OVERHEAD = estimates.ENDPOINT_GRACE_SECONDS + estimates.SHUTDOWN_TIMEOUT_SECONDS + 30
_FP8_KV = (8, 9)
_SAFE_FP8_BATCH = 16_384
_HOPPER = 9


def pays_above(tiered: HiSparseLayout | None, typical: LengthRow) -> int | None:
    """Concurrent typical requests above which the tier decodes more tokens per second than plain KV would."""
    if tiered is None:
        return None
    breaks_even = int(typical.plain) * estimates.HOST_READ_SLOWDOWN
    return int(breaks_even) if breaks_even <= typical.tier else None


def lifecycle_seconds(room: Room, mode: Mode, host: HostMemory, at_max: LengthRow) -> Seconds:
    target = room.target
    pool = host.pool * target.data if mode is Mode.HISPARSE else 0
    region = host.indexer_offload if mode is Mode.HISPARSE else host.physical
    load = estimates.load_seconds(room.model, downloads=target.downloads_weights)
    pin = estimates.pin_seconds(pool, ranks=target.tp, shared=host.shared) + estimates.offload_pin_seconds(region)
    startup = ceil(estimates.FIXED_START_SECONDS + load + pin)
    teardown = ceil(estimates.teardown_seconds(pool, region, ranks=target.tp, shared=host.shared))
    worker = _given(target.worker_seconds, max(_WORKER_SHUTDOWN, ceil(Fraction(teardown * 3, 2))))
    drain = _given(target.drain_seconds, max(_DRAIN, at_max.prefill_seconds * 2))
    return Seconds(
        startup=startup,
        startup_budget=_given(target.startup_seconds, max(_MINIMUM_STARTUP_BUDGET, startup * 2 + 300)),
        teardown=teardown,
        drain=drain,
        worker_shutdown=worker,
        termination_grace=_given(target.grace_seconds, drain + worker + _STOP_OVERHEAD),
    )


def _given(wanted: int | None, planned: int) -> int:
    """What spec.lifecycle says; 0 is an answer."""
    return planned if wanted is None else wanted


def timing_warnings(seconds: Seconds) -> list[str]:
    """Where what spec.lifecycle says leaves less time than the plan expects to be needed."""
    found = []
    needed = seconds.drain + seconds.worker_shutdown + _STOP_OVERHEAD
    if seconds.termination_grace < needed:
        found.append(
            f"lifecycle.terminationGrace {seconds.termination_grace}s is less than the {needed}s that drain and "
            "unpinning may take: a pod that is killed meanwhile can hold its node's memory for minutes"
        )
    if seconds.startup_budget < seconds.startup:
        found.append(
            f"lifecycle.startupBudget {seconds.startup_budget}s is less than the {seconds.startup}s that a start is "
            "expected to take: the pod would be killed while it loads"
        )
    if seconds.worker_shutdown < seconds.teardown:
        found.append(
            f"lifecycle.workerShutdown {seconds.worker_shutdown}s is less than the {seconds.teardown}s that "
            "unpinning is expected to take: workers would be killed in the middle of it"
        )
    return found


def binding(
    room: Room,
    tiered: HiSparseLayout | None,
    gpu_blocks: int,
    host_blocks: int,
    host: HostMemory,
    seqs: int,
    requests: Fraction,
) -> Limit:
    target, tokens = room.target, room.target.typical
    held = target.data * int(requests / target.data)  # each rank holds whole requests
    if seqs < held:
        return Limit(
            Resource.SEQUENCES,
            f"max_num_seqs {seqs} is below the {held} requests of {tokens:,} tokens that memory holds",
            f"raise context.maxConcurrentRequests up to {held}"
            if target.max_requests
            else f"set context.maxConcurrentRequests up to {held}",
        )
    if tiered is not None:
        at = target.max_tokens
        gpu, pool = tiered.gpu_concurrency(gpu_blocks, at), tiered.host_concurrency(host_blocks, at)
        if pool < gpu:
            size = whole_gib((int(gpu * tiered.host_request_blocks(at)) + 2) * tiered.host_block_bytes)
            return Limit(
                Resource.HOST_POOL,
                f"the host pool of {format_bytes(host.pool)} holds {decimal(pool)} requests of {at:,} tokens where HBM"
                f" would allow {decimal(gpu)}",
                f"set kvTier.hostPool.size to {size // GIB}Gi on a node that has it",
            )
        return Limit(
            Resource.HBM,
            f"{format_bytes(room.budget)} of HBM hold {decimal(gpu)} requests of {at:,} tokens "
            f"({format_bytes(tiered.steady_blocks(at) * tiered.gpu_block_bytes)} each for indexer and hot rows)",
            "more GPUs per replica (fewer weights on each), or another replica",
        )
    plain = room.plain.concurrency(gpu_blocks, target.max_tokens)
    cheaper = room.kv_dtype == "Bf16"
    return Limit(
        Resource.HBM,
        f"{format_bytes(room.budget)} of HBM hold {decimal(plain)} requests of {target.max_tokens:,} tokens "
        f"({format_bytes(room.plain.request_bytes(target.max_tokens))} each)",
        "set context.kvCacheDtype Fp8 for twice as many, or add a replica" if cheaper else "add a replica or GPUs",
    )


def warnings_of(room: Room, overhead: int) -> list[str]:
    target, found = room.target, []
    workspace = prefill_workspace_bytes(room.model, room.batched)
    left = room.node.gpu.memory_bytes * (100 - target.utilization_percent) // 100
    if workspace > left:
        found.append(
            f"prefill workspace grows to about {format_bytes(workspace)} at max_num_batched_tokens {room.batched} and "
            f"only {format_bytes(left)} are left free: the engine may start and die on the first long prompt; lower "
            "resources.gpuMemoryUtilizationPercent or context.maxBatchedTokens"
        )
    own, planned = target.memory_bytes, overhead_bytes(target)
    if own is not None and overhead < planned:
        found.append(
            f"resources.memory leaves {format_bytes(overhead)} beside the pools and an engine with {target.gpus} "
            f"GPU(s) is planned with {format_bytes(planned)}: the kernel may kill it"
        )
    if room.kv_dtype == "Fp8" and room.node.gpu.capability < _FP8_KV:
        found.append(
            f"fp8 KV on {room.node.gpu.name} (compute capability below 8.9): not every attention backend of vLLM "
            "takes it"
        )
    if (
        room.model.is_sparse
        and room.model.has_states
        and room.kv_dtype == "Fp8"
        and room.node.gpu.capability[0] == _HOPPER
    ):
        found.append(f"vLLM has been seen to refuse fp8 KV of {room.model.name} on Hopper (vllm#55221): try it first")
    if room.model.attention is Attention.DSA and room.kv_dtype == "Fp8" and room.batched > _SAFE_FP8_BATCH:
        found.append(
            f"maxBatchedTokens {room.batched} with fp8 KV on Hopper has run out of memory in FlashMLA; 8192 is safe"
        )
    if room.kv_reason.startswith("Bf16 does not fit"):
        found.append(f"KV cache in Fp8: {room.kv_reason}")
    if target.mode in {Mode.OFFLOAD, Mode.HISPARSE} and room.model.attention is not Attention.DSA:
        found.append("a dense model reads its whole KV each step: a host tier saves prefill, not HBM")
    spoken = dialect(target.engine_version)
    if not (spoken.checks_pool_minimum and spoken.host_gauges) and room.model.attention is Attention.DSA:
        found.append(
            f"vLLM {target.engine_version} checks no host pool minimum and reports no host gauges; prefer 0.32 or 0.33"
        )
    return found
