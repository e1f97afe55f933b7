"""What a spec asks of one replica, without its Kubernetes side."""

from __future__ import annotations

from fractions import Fraction

from hisparse.dialect import PINNED_VERSION
from hisparse.plan import Target
from hisparse.spec import HiSparseInferenceSpec, LifecycleSpec
from hisparse.units import parse_duration, parse_quantity


def target_of(spec: HiSparseInferenceSpec) -> Target:
    """What a spec asks of one replica."""
    context, resources = spec.context, spec.resources
    tier, parallel, engine = spec.kv_tier, spec.parallelism, spec.engine
    pool = tier.host_pool if tier else None
    tuning = tier.hi_sparse if tier else None
    offload = tuning.indexer_offload if tuning else None
    rope = context.rope_scaling
    times = spec.lifecycle or LifecycleSpec()
    return Target(
        max_tokens=context.max_tokens,
        gpus=resources.gpus,
        mode=tier.mode.value if tier and tier.mode else "Auto",
        kv_dtype=context.kv_cache_dtype.value if context.kv_cache_dtype else "Auto",
        typical_tokens=context.typical_tokens,
        max_requests=context.max_concurrent_requests,
        max_batched_tokens=context.max_batched_tokens,
        tensor=parallel.tensor if parallel else None,
        data=(parallel.data if parallel else None) or 1,
        pipeline=(parallel.pipeline if parallel else None) or 1,
        expert=bool(parallel and parallel.expert),
        utilization_percent=resources.gpu_memory_utilization_percent or 92,
        host_pool_bytes=parse_quantity(pool.size) if pool and pool.size else None,
        pool_requests=pool.for_requests if pool else None,
        pool_tokens=pool.at_tokens if pool else None,
        sharing=tier.sharing.value if tier and tier.sharing else "Auto",
        device_buffer_tokens=tuning.device_buffer_tokens if tuning else None,
        eager_host_mirror=tuning.eager_host_mirror if tuning else None,
        indexer_offload=offload.enabled if offload else None,
        indexer_offload_bytes=parse_quantity(offload.size) if offload and offload.size else None,
        memory_bytes=parse_quantity(resources.memory) if resources.memory else None,
        engine_version=(engine.version if engine else None) or PINNED_VERSION,
        template_version=engine.template_version if engine else None,
        rope_type=rope.type.value if rope else "Yarn",
        rope_factor=Fraction(rope.factor) if rope else None,
        rope_original_tokens=rope.original_max_tokens if rope else None,
        downloads_weights=spec.model.hugging_face is not None and spec.model.cache is None,
        startup_seconds=_seconds(times.startup_budget),
        drain_seconds=_seconds(times.drain),
        worker_seconds=_seconds(times.worker_shutdown),
        grace_seconds=_seconds(times.termination_grace),
    )


def _seconds(duration: str | None) -> int | None:
    return parse_duration(duration) if duration else None
