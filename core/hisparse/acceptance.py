"""What no schema can know: whether this model can be served as the spec asks."""

from __future__ import annotations

import re
from fractions import Fraction

from hisparse.architectures import Attention
from hisparse.engine import TEMPLATE_VERSION
from hisparse.errors import SpecError
from hisparse.hardware import GPUS
from hisparse.layers import RecurrentState
from hisparse.model import ModelFacts
from hisparse.plan import Mode, Target
from hisparse.room import GPU_COUNTS, SPARSE_KERNELS, drafting_layers, shared_pool
from hisparse.rope import RopeState, obstacle, rope_advice
from hisparse.rounding import quantity_at_least
from hisparse.rows import KV_DTYPES
from hisparse.spec import HiSparseInferenceSpec
from hisparse.tier import MAX_DEVICE_BUFFER_TOKENS, device_buffer_tokens, host_block_bytes, minimum_host_blocks
from hisparse.units import format_bytes, format_quantity

_LATENT_DTYPES = ("Bf16", "Fp8")
"""What latent rows can be stored as."""

_COMMIT = re.compile(r"[0-9a-f]{40}")


def accept(model: ModelFacts, target: Target) -> tuple[SpecError, ...]:
    """What no schema can know: whether this model can be served as asked. Empty where it can."""
    found = [
        *_positions(model, target),
        *_parallelism(model, target),
        *_dtype(model, target),
        *_drafting(model, target),
        *_decode_context(model, target),
        *_tier(model, target),
        *_template(target),
    ]
    return tuple(found)


def possible_dtypes(model: ModelFacts, target: Target) -> tuple[str, ...]:
    """KV dtypes that the target may end in, the one that loses least first: what Auto means."""
    if target.kv_dtype != "Auto":
        return (target.kv_dtype,)
    # fp8 is the native KV format of DSA models
    return ("Fp8",) if model.attention is Attention.DSA else ("Bf16", "Fp8")


def tier_obstacle(model: ModelFacts, target: Target) -> str:
    """Why HiSparse cannot be, whatever the memory; empty where it can: what mode Auto may end in."""
    if model.attention is not Attention.DSA:
        return f"{model.attention.value} model: HiSparse needs a DSA indexer"
    if target.pipeline > 1:
        return f"pipeline {target.pipeline}: HiSparse does not support pipeline parallelism"
    if target.decode_context > 1:
        return f"decode context parallel {target.decode_context}: HiSparse does not support it"
    return ""


def _positions(model: ModelFacts, target: Target) -> list[SpecError]:
    if target.rope_factor is not None:
        return _scaling(model, target, target.rope_factor)
    if target.max_tokens <= model.max_positions:
        return []
    found = rope_advice(model.rope, target.max_tokens)
    step = f"lower it to {model.max_positions}"
    if found.state is RopeState.NEEDS_SCALING:
        kind = "Linear" if model.rope.parameters[0].rope_type == "linear" else "Yarn"
        step += (
            f", or set context.ropeScaling {{type: {kind}, factor: '{found.factor}', originalMaxTokens: "
            f"{found.original_positions}}} if the model was trained for it"
        )
    elif reason := obstacle(model.rope):
        step += f" (no RoPE scaling helps: {reason})"
    return [
        SpecError(
            "spec.context.maxTokens",
            f"{target.max_tokens} is above the {model.max_positions} positions of {model.name}; {step}",
        )
    ]


def _scaling(model: ModelFacts, target: Target, factor: Fraction) -> list[SpecError]:
    field = "spec.context.ropeScaling"
    if target.max_tokens <= model.max_positions:
        return [
            SpecError(
                field,
                f"{target.max_tokens} tokens need no scaling: {model.name} has {model.max_positions} positions;"
                " leave ropeScaling out (scaling costs accuracy on short prompts)",
            )
        ]
    if (reason := obstacle(model.rope)) is not None:
        return [
            SpecError(
                "spec.model.config" if model.rope.parameters else field,
                f"RoPE of {model.name} cannot be scaled: {reason}; lower context.maxTokens to {model.max_positions}"
                " or correct the config",
            )
        ]
    if target.rope_type == "Dynamic":
        return [
            SpecError(
                f"{field}.type",
                f"Dynamic gives no rotation beyond the {model.max_positions} positions of {model.name}: the engine's "
                "table does not grow with the factor; set Yarn",
            )
        ]
    longest = int(factor * (target.rope_original_tokens or model.rope.trained))
    if target.max_tokens <= longest:
        return []
    return [
        SpecError(
            "spec.context.maxTokens",
            f"{target.max_tokens} is above the {longest} positions of {model.name}; lower it to {longest} or raise "
            "context.ropeScaling.factor",
        )
    ]


def _parallelism(model: ModelFacts, target: Target) -> list[SpecError]:
    tp = target.tp
    field = "spec.parallelism.tensor" if target.tensor else "spec.resources.gpus"
    good = [
        n
        for n in GPU_COUNTS
        if model.attention_heads % n == 0 and _kv_heads_split(model, n) and _states_split(model, n)
    ]
    if target.expert and not model.experts:
        return [
            SpecError(
                "spec.parallelism.expert",
                f"true needs a model with experts; {model.name} ({model.architecture}) has none: leave it out",
            )
        ]
    if target.pipeline > model.layers:
        return [
            SpecError(
                "spec.parallelism.pipeline",
                f"{target.pipeline} is more than the {model.layers} layers of {model.name}; lower it",
            )
        ]
    if model.attention_heads % tp:
        return [
            SpecError(
                field,
                f"tensor parallel size {tp} does not divide the {model.attention_heads} attention heads of "
                f"{model.name}; use one of {', '.join(map(str, good))}",
            )
        ]
    if not _kv_heads_split(model, tp):
        heads = " and ".join(map(str, model.kv_head_counts))
        return [
            SpecError(
                field,
                f"tensor parallel size {tp} and the {heads} KV heads of {model.name} do not divide one "
                f"another; use one of {', '.join(map(str, good))}",
            )
        ]
    if not _states_split(model, tp):
        return [
            SpecError(
                field,
                f"tensor parallel size {tp} does not divide the heads of the recurrent states of {model.name}; use one "
                f"of {', '.join(map(str, good))}",
            )
        ]
    return []


def _states_split(model: ModelFacts, tensor: int) -> bool:
    """Heads of recurrent states are divided over the ranks, never replicated (mamba_utils.py)."""
    states = [cache for layer in model.caches for cache in layer if isinstance(cache, RecurrentState)]
    return all(state.heads % tensor == 0 and state.conv_channels % tensor == 0 for state in states)


def _dtype(model: ModelFacts, target: Target) -> list[SpecError]:
    field, dtype = "spec.context.kvCacheDtype", KV_DTYPES.get(target.kv_dtype)
    if dtype is None or dtype.name in _LATENT_DTYPES:
        return []
    if model.latent is not None:
        message = (
            f"{dtype.name} stores keys and values of heads, and {model.name} keeps latent rows; set Auto, Bf16 or Fp8"
        )
        return [SpecError(field, message)]
    if dtype.packed and model.attention is Attention.WINDOWED:
        return [
            SpecError(
                field,
                f"{dtype.name} has no sliding windows in the engine, which {model.name} has; set Int8PerTokenHead, "
                "Int4PerTokenHead, Fp8 or Bf16",
            )
        ]
    return []


def _drafting(model: ModelFacts, target: Target) -> list[SpecError]:
    if not target.draft_tokens or model.drafts:
        return []
    return [SpecError("draftTokens", f"{model.name} has no MTP layers that could draft tokens; leave it out")]


def _decode_context(model: ModelFacts, target: Target) -> list[SpecError]:
    """VLLM 0.33, config/model.py: tokens are spread over tensor-parallel ranks that would hold the same KV."""
    ranks = target.decode_context
    if ranks == 1:
        return []
    copies = target.tp if model.latent is not None else target.tp // max(model.kv_head_counts, default=1)
    if model.has_states or model.attention is Attention.WINDOWED:
        return [SpecError("decodeContext", f"{model.name} has windows or states, which cannot be spread; set 1")]
    if copies < 2:  # noqa: PLR2004 - one rank holds no copy of anything
        return [
            SpecError(
                "decodeContext",
                f"{ranks} spreads tokens over ranks that hold copies of the same KV, and with tensor parallel size "
                f"{target.tp} none of {model.name} does (MLA does, or more ranks than KV heads); leave it out",
            )
        ]
    if ranks > copies or copies % ranks:
        return [
            SpecError(
                "decodeContext",
                f"{ranks} does not divide the {copies} rank(s) that hold copies of the same KV (tensor parallel size "
                f"{target.tp}); set a divisor of {copies}",
            )
        ]
    return []


def _kv_heads_split(model: ModelFacts, tensor: int) -> bool:
    """KV heads are divided over the ranks, or each is replicated over a whole number of them."""
    return all(heads % tensor == 0 or tensor % heads == 0 for heads in model.kv_head_counts)


def _tier(model: ModelFacts, target: Target) -> list[SpecError]:
    """The rules of HiSparse, where it is asked for or where Auto may end in it."""
    may_be = target.mode == "Auto" and not tier_obstacle(model, target)
    if target.mode != Mode.HISPARSE and not may_be:
        return []
    found: list[SpecError] = []
    if model.attention is not Attention.DSA:
        return [
            SpecError(
                "spec.kvTier.mode",
                f"HiSparse needs a DSA model (with an indexer); {model.name} ({model.architecture}) is "
                f"{model.attention.value}: set Auto, Offload or None",
            )
        ]
    if target.pipeline > 1:
        found.append(
            SpecError(
                "spec.parallelism.pipeline",
                f"{target.pipeline} is above 1: HiSparse does not support it; set 1",
            )
        )
    assert model.indexer is not None  # noqa: S101 - DSA models have one
    wanted = target.device_buffer_tokens
    if wanted is not None and not model.indexer.top_k <= wanted <= MAX_DEVICE_BUFFER_TOKENS:
        found.append(
            SpecError(
                "spec.kvTier.hiSparse.deviceBufferTokens",
                f"{wanted} is outside {model.indexer.top_k} (index_topk of {model.name}) to "
                f"{MAX_DEVICE_BUFFER_TOKENS}; leave it out for {device_buffer_tokens(model, None)}",
            )
        )
    if target.sharing == "RequireShared" and not shared_pool(target):
        found.append(
            SpecError(
                "spec.kvTier.sharing",
                f"RequireShared cannot hold with tensor parallel size {target.tp} and pipeline {target.pipeline}: the "
                "engine shares its pool only over two or more tensor-parallel ranks; set Auto or parallelism.tensor",
            )
        )
    if target.decode_context > 1 and target.mode == Mode.HISPARSE:
        found.append(
            SpecError("decodeContext", f"{target.decode_context} is above 1: HiSparse does not support it; set 1")
        )
    found += _pool_minimum(model, target)
    return found


def advice(spec: HiSparseInferenceSpec, model: ModelFacts) -> tuple[str, ...]:
    """Warnings that come from the manifest itself rather than from the plan."""
    found = []
    hub = spec.model.hugging_face
    if hub is not None and not _COMMIT.fullmatch(hub.revision or ""):
        what = f"revision {hub.revision} is no commit" if hub.revision else "no revision is set"
        found.append(
            f"{what}: a pod that starts later may load other weights; set model.huggingFace.revision to a commit hash"
        )
    if hub is not None and spec.model.cache is None:
        found.append(
            f"every start downloads {format_bytes(model.weight_bytes)} of weights again: set model.cache to a claim "
            "or a folder of the node"
        )
    return tuple(found)


def _template(target: Target) -> list[SpecError]:
    version = target.template_version
    if version is None or version <= TEMPLATE_VERSION:
        return []
    return [
        SpecError(
            "spec.engine.templateVersion",
            f"{version} is newer than {TEMPLATE_VERSION}, the newest that this release knows; lower it or upgrade",
        )
    ]


def _pool_minimum(model: ModelFacts, target: Target) -> list[SpecError]:
    """A pool that is too small on every GPU; the planner judges those that are so on the GPU at hand only."""
    wanted, (dtype, *_) = target.host_pool_bytes, possible_dtypes(model, target)
    if wanted is None or dtype not in _LATENT_DTYPES:
        return []
    blocks, shared, drafting = (
        minimum_host_blocks(target.max_tokens),
        shared_pool(target),
        drafting_layers(model, target),
    )
    capable = [gpu for gpu in GPUS if gpu.capability[0] in SPARSE_KERNELS]
    sizes = [blocks * host_block_bytes(model, dtype, gpu, shared=shared, mtp_layers=drafting) for gpu in capable]
    least, most = min(sizes), max(sizes)
    if wanted >= least:
        return []
    span = format_bytes(least) if least == most else f"{format_bytes(least)} to {format_bytes(most)} (by the GPU)"
    return [
        SpecError(
            "spec.kvTier.hostPool.size",
            f"{pool_fault(wanted, span, target.max_tokens)}; set {quantity_at_least(most)} or lower context.maxTokens",
        )
    ]


def pool_fault(wanted: int, least: str, max_tokens: int) -> str:
    """What is wrong with a host pool of this size."""
    return (
        f"{format_quantity(wanted)} is below the {least} that one request of maxTokens {max_tokens} needs (the engine "
        "refuses to start)"
    )
