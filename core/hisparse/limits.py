"""What a plan that fits says of itself: times, what binds first, from where the tier pays, and warnings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

from hisparse import estimates
from hisparse.architectures import Attention
from hisparse.dialect import dialect
from hisparse.hardware import NodeClass
from hisparse.hbm import prefill_workspace_bytes
from hisparse.plan import HostMemory, LengthRow, Limit, Mode, Plan, Resource, Seconds, Target
from hisparse.room import GPU_COUNTS, Room, indexer_offload_bytes, node_memory_for, overhead_bytes
from hisparse.rope import format_factor, rope_advice, scaling_cost
from hisparse.rounding import ceil, number_text, whole_gib
from hisparse.tier import HiSparseLayout
from hisparse.units import GIB, format_bytes

_MINIMUM_STARTUP_BUDGET = 20 * 60
_DRAIN = 300
_WORKER_SHUTDOWN = 120
_STOP_OVERHEAD = estimates.ENDPOINT_GRACE_SECONDS + estimates.SHUTDOWN_TIMEOUT_SECONDS + 30
_FP8_KV = (8, 9)
_SAFE_FP8_BATCH = 16_384
_HOPPER = 9
_MORE = "add a replica"
"""What always helps; the planner puts before it what it has tried."""


def pays_above(typical: LengthRow, most: int, *, ranks: int) -> int | None:
    """Concurrent typical requests above which the tier decodes more tokens per second than plain KV would.

    None where not so many run: memory holds whole requests on each data-parallel rank, and the scheduler takes `most`.
    """
    plain, tier = _whole_requests(typical.plain, ranks), _whole_requests(typical.tier, ranks)
    breaks_even = int(plain * estimates.HOST_READ_SLOWDOWN)
    return breaks_even if breaks_even < min(tier, most) else None


def _whole_requests(at_once: Fraction, ranks: int) -> int:
    """Each data-parallel rank holds whole requests."""
    return ranks * int(at_once / ranks)


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
    held = _whole_requests(requests, target.data)
    if seqs < held:
        return Limit(
            Resource.SEQUENCES,
            f"max_num_seqs {seqs:,} is below the {held:,} requests of {tokens:,} tokens that memory holds",
            f"raise context.maxConcurrentRequests up to {held}"
            if target.max_requests
            else f"set context.maxConcurrentRequests up to {held}",
        )
    at = target.max_tokens
    if tiered is not None:
        gpu, pool = tiered.gpu_concurrency(gpu_blocks, at), tiered.host_concurrency(host_blocks, at)
        if pool < gpu:
            return Limit(
                Resource.HOST_POOL,
                f"the host pool of {format_bytes(host.pool)} holds {number_text(pool)} requests of {at:,} tokens where"
                f" HBM would allow {number_text(gpu)}",
                _MORE,
            )
        return Limit(
            Resource.HBM,
            f"{format_bytes(room.budget)} of HBM hold {number_text(gpu)} requests of {at:,} tokens "
            f"({format_bytes(tiered.steady_blocks(at) * tiered.gpu_block_bytes)} each for indexer and hot rows)",
            _MORE,
        )
    plain = room.plain.concurrency(gpu_blocks, at)
    return Limit(
        Resource.HBM,
        f"{format_bytes(room.budget)} of HBM hold {number_text(plain)} requests of {at:,} tokens "
        f"({format_bytes(room.plain.request_bytes(at))} each)",
        _MORE,
    )


def relief(plan: Plan) -> Iterator[tuple[str, Target, NodeClass]]:
    """Changes that may lift a plan's limit, the cheapest first; nobody has tried them yet."""
    if plan.limit.resource is Resource.HOST_POOL and plan.tiered is not None:
        yield from _larger_pool(plan, plan.tiered)
    if plan.limit.resource is not Resource.HBM:
        return
    target, node = plan.target, plan.node
    if plan.kv_dtype == "Bf16":
        yield "set context.kvCacheDtype Fp8", replace(target, kv_dtype="Fp8"), node
    for gpus in GPU_COUNTS:
        if target.gpus < gpus <= node.gpus:
            # fewer weights on each
            more = replace(target, gpus=gpus, tensor=None, data=1, pipeline=1, decode_context=1, kv_bytes=None)
            yield f"set resources.gpus to {gpus}", more, node


def _larger_pool(plan: Plan, tiered: HiSparseLayout) -> Iterator[tuple[str, Target, NodeClass]]:
    """As much pool as HBM can use: of this node, of more resources.memory, or of a larger node."""
    target, node, at = plan.target, plan.node, plan.target.max_tokens
    blocks = int(tiered.gpu_concurrency(plan.gpu_blocks, at) * tiered.host_request_blocks(at)) + 2
    size = whole_gib(blocks * tiered.host_block_bytes)
    asked = target.host_pool_bytes is not None or target.pool_requests is not None
    wish = replace(target, host_pool_bytes=size if asked else None, pool_requests=None, pool_tokens=None)
    pool = f"set kvTier.hostPool.size to {size // GIB}Gi" if asked else ""
    if asked:
        yield pool, wish, node
    copies = target.data * (1 if tiered.shared else target.tp)
    # the planner keeps the indexer offload beside a pool that it sizes
    both = size * copies + indexer_offload_bytes(target, tiered, size // tiered.host_block_bytes)
    memory = whole_gib(node_memory_for(both, target))
    and_pool = f"{pool} and " if pool else ""
    if target.memory_bytes is not None:
        own = whole_gib(both + overhead_bytes(target))
        yield f"{and_pool}raise resources.memory to {own // GIB}Gi", replace(wish, memory_bytes=own), node
        text = f"{and_pool}leave resources.memory out on nodes with {memory // GIB}Gi of memory"
    else:
        text = f"{and_pool}use nodes with {memory // GIB}Gi of memory"
    yield text, replace(wish, memory_bytes=None), replace(node, host_memory_bytes=memory)


def warnings_of(room: Room, overhead: int, held: Fraction) -> list[str]:
    """What somebody should know of a plan that fits; held is how many requests of typicalTokens run at once."""
    target, found = room.target, []
    workspace = prefill_workspace_bytes(room.model, room.batched)
    left = room.node.gpu.memory_bytes * (100 - target.utilization_percent) // 100
    if workspace > left:
        found.append(
            f"prefill workspace grows to about {format_bytes(workspace)} at max_num_batched_tokens {room.batched:,} "
            f"and only {format_bytes(left)} are left free: the engine may start and die on the first long prompt; "
            "lower resources.gpuMemoryUtilizationPercent or context.maxBatchedTokens"
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
        room.model.has_indexer
        and room.model.has_states
        and room.kv_dtype == "Fp8"
        and room.node.gpu.capability[0] == _HOPPER
    ):
        found.append(f"vLLM has been seen to refuse fp8 KV of {room.model.name} on Hopper (vllm#55221): try it first")
    on_hopper = room.node.gpu.capability[0] == _HOPPER
    if (
        on_hopper
        and room.model.attention is Attention.DSA
        and room.kv_dtype == "Fp8"
        and room.batched > _SAFE_FP8_BATCH
    ):
        found.append(
            f"maxBatchedTokens {room.batched} with fp8 KV on Hopper has run out of memory in FlashMLA; 8192 is safe"
        )
    found += _scaling_costs(room)
    if target.max_requests is not None and target.max_requests > held:
        found.append(
            f"context.maxConcurrentRequests {target.max_requests:,} is more than the {number_text(held)} requests of "
            f"{target.typical:,} tokens that memory holds: the others wait"
        )
    if room.fell_back:
        found.append(f"KV cache in Fp8: {room.kv_reason}")
    if target.mode in {Mode.OFFLOAD, Mode.HISPARSE} and room.model.attention is not Attention.DSA:
        found.append("a dense model reads its whole KV each step: a host tier saves prefill, not HBM")
    spoken = dialect(target.engine_version)
    if not (spoken.checks_pool_minimum and spoken.host_gauges) and room.model.attention is Attention.DSA:
        found.append(
            f"vLLM {target.engine_version} checks no host pool minimum and reports no host gauges; prefer 0.32 or 0.33"
        )
    return found


def _scaling_costs(room: Room) -> Iterator[str]:
    target, rope = room.target, room.model.rope
    if target.rope_factor is None:
        return
    setting = f"context.ropeScaling.factor {format_factor(target.rope_factor)}"
    enough = rope_advice(rope, target.max_tokens).factor
    if target.rope_type == "Yarn" and enough is not None and enough < target.rope_factor:
        yield (
            f"{setting} is more than {target.max_tokens:,} tokens need: {format_factor(enough)} is enough, and a "
            "smaller one costs short prompts less"
        )
    base = target.rope_original_tokens or rope.trained
    yield f"{setting}: {scaling_cost(rope, target.rope_type.lower(), target.rope_factor, base)}"
