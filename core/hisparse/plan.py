"""The plan: does it fit, what does it cost, what binds, what would lift it.

One implementation for operator, command and launcher. Memory is binary (GiB = 2**30) everywhere. Block counts
are integer arithmetic and concurrency is an exact fraction, so that no rounding decides anything. Seconds are
labelled estimates.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from hisparse.dialect import PINNED_VERSION
from hisparse.hardware import NodeClass
from hisparse.layout import KvLayout
from hisparse.model import ModelFacts
from hisparse.rounding import cdiv
from hisparse.tier import HiSparseLayout


class Mode(StrEnum):
    """What the engine will really do; the wish is spec.kvTier.mode."""

    HISPARSE = "HiSparse"
    OFFLOAD = "Offload"
    NONE = "None"


class Resource(StrEnum):
    """What binds or falls short."""

    HBM = "HBM"
    HOST_POOL = "HostPool"
    HOST_MEMORY = "HostMemory"
    SEQUENCES = "Sequences"
    GPUS = "GPUs"


@dataclass(frozen=True)
class Term:
    """One line of a sum. `estimate` says that the number was not computed from the engine's own rules."""

    name: str
    bytes: int
    why: str
    estimate: bool = False


@dataclass(frozen=True)
class Limit:
    """What binds first, and the cheapest change that lifts it."""

    resource: Resource
    message: str
    remedy: str


@dataclass(frozen=True)
class LengthRow:
    """Requests of `tokens` each that run at once, without and with the tier; None where one does not fit.

    speedup is the decode throughput of the tier over plain KV: gain / HOST_READ_SLOWDOWN once requests read from host.
    prefill_seconds is an estimate.
    """

    tokens: int
    plain: Fraction
    tier: Fraction
    gain: Fraction | None
    speedup: Fraction | None
    prefill_seconds: int


@dataclass(frozen=True)
class Target:
    """What one replica is asked to do: the spec without its Kubernetes side, defaults not yet worked out.

    The seconds are what spec.lifecycle sets in place of estimates.
    host_pool_bytes, or pool_requests x pool_tokens; neither: as much as helps and the node gives.
    engine_version is "0.33" and the like.
    draft_tokens are drafted per step by the model's own MTP layers, 0 without speculative decoding; decode_context is
    ranks over which the tokens of a request are spread (--decode-context-parallel-size).
    kv_bytes is HBM for KV on each GPU as somebody knows it, from a log; None: worked out.
    """

    max_tokens: int
    gpus: int
    mode: str = "Auto"
    kv_dtype: str = "Auto"
    typical_tokens: int | None = None
    max_requests: int | None = None
    max_batched_tokens: int | None = None
    tensor: int | None = None
    data: int = 1
    pipeline: int = 1
    expert: bool = False
    utilization_percent: int = 92
    draft_tokens: int = 0
    decode_context: int = 1
    kv_bytes: int | None = None
    host_pool_bytes: int | None = None
    pool_requests: int | None = None
    pool_tokens: int | None = None
    sharing: str = "Auto"
    device_buffer_tokens: int | None = None
    eager_host_mirror: bool | None = None
    indexer_offload: bool | None = None
    indexer_offload_bytes: int | None = None
    memory_bytes: int | None = None
    engine_version: str = PINNED_VERSION
    template_version: int | None = None
    rope_type: str = "Yarn"
    rope_factor: Fraction | None = None
    rope_original_tokens: int | None = None
    downloads_weights: bool = True
    startup_seconds: int | None = None
    drain_seconds: int | None = None
    worker_seconds: int | None = None
    grace_seconds: int | None = None

    @property
    def tp(self) -> int:
        """Tensor parallel size; the default uses every GPU that data and pipeline leave."""
        return self.tensor or max(1, self.gpus // (self.data * self.pipeline))

    @property
    def typical(self) -> int:
        """What requests usually look like: 131,072 tokens unless said, never above max_tokens."""
        return self.typical_tokens or min(self.max_tokens, 131_072)


@dataclass(frozen=True)
class Seconds:
    """Times that probes, grace periods and time-outs hang on. Estimates, rounded up."""

    startup: int
    startup_budget: int
    teardown: int
    drain: int
    worker_shutdown: int
    termination_grace: int


@dataclass(frozen=True)
class HostMemory:
    """What one pod takes from the node.

    pool is per data-parallel replica, whatever the mode; physical counts every replica, every copy and the indexer
    offload.
    """

    pool: int
    physical: int
    shared: bool
    indexer_offload: int
    shm: int
    overhead: int
    pod: int


@dataclass(frozen=True)
class Plan:
    """A plan that fits the node class it names."""

    model: ModelFacts
    node: NodeClass
    target: Target
    mode: Mode
    mode_reason: str
    kv_dtype: str
    kv_dtype_reason: str
    hbm: tuple[Term, ...]
    kv_budget: int
    plain: KvLayout
    tiered: HiSparseLayout | None
    gpu_blocks: int
    host_blocks: int
    host: HostMemory
    host_terms: tuple[Term, ...]
    seconds: Seconds
    max_requests: int
    max_batched_tokens: int
    curve: tuple[LengthRow, ...]
    at_max: LengthRow
    at_typical: LengthRow
    admission_at_max: Fraction
    pays_above: int | None
    limit: Limit
    warnings: tuple[str, ...]

    @property
    def max_num_seqs(self) -> int:
        """max_requests of one data-parallel rank: each has a scheduler of its own."""
        return cdiv(self.max_requests, self.target.data)


@dataclass(frozen=True)
class Shortfall:
    """Why it does not fit, by how much, and what would change that. reason is a reason of PlanFeasible.

    kv_dtype is the one that was tried last, or would have been first where nothing was tried. needed and available are
    bytes, and GPUs where the limit is GPUs. hopeless: no number of these GPUs would do.
    """

    model: ModelFacts
    node: NodeClass
    target: Target
    reason: str
    limit: Limit
    kv_dtype: str
    needed: int
    available: int
    hbm: tuple[Term, ...]
    host_terms: tuple[Term, ...] = ()
    mode: Mode | None = None
    hopeless: bool = False

    @property
    def distance(self) -> tuple[bool, bool, int]:
        """How far from fitting, to be compared: lack of bytes is nearer than lack of GPUs, and that than other GPUs."""
        return self.hopeless, self.limit.resource is Resource.GPUS, self.needed - self.available
