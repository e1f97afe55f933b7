"""What the operator reports about a HiSparseInference: the models behind `status` in the CRD.

Everything but a few words is optional: what nobody has found out is absent, never zero or true.
"""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel


class Reported(BaseModel):
    """A block of status: written by the operator, read by people and scripts."""

    model_config = ConfigDict(
        frozen=True,
        extra="ignore",
        alias_generator=to_camel,
        populate_by_name=True,
        use_attribute_docstrings=True,
    )


class ModeStatus(Reported):
    """The KV tier in force."""

    effective: str
    """Mode that runs or will run: HiSparse, Offload or None."""
    reason: str
    """Why this one."""


class HbmTerm(Reported):
    """One term of the HBM of a GPU."""

    name: str
    """What it is for."""
    bytes: str
    """Size as a quantity."""
    estimate: bool | None = None
    """True where it is an estimate and not arithmetic."""


class PlanStatus(Reported):
    """The plan of today's operator for this spec. Decimals are text."""

    feasible: bool
    """Whether it fits at least one kind of node."""
    summary: str | None = None
    """The plan in one sentence."""
    mode: str | None = None
    """KV tier: HiSparse, Offload or None."""
    kv_cache_dtype: str | None = None
    """What KV is stored as."""
    hbm_per_gpu: list[HbmTerm] | None = None
    """HBM of one GPU, term by term."""
    kv_bytes_per_token: int | None = None
    """KV of one token on one GPU, in bytes."""
    gpu_blocks: int | None = None
    """KV blocks in HBM."""
    host_blocks: int | None = None
    """KV blocks in the host pool."""
    host_pool: str | None = None
    """Host pool of one data-parallel replica."""
    host_memory: str | None = None
    """Physical host memory for KV; more than the pool where ranks cannot share it."""
    indexer_offload: str | None = None
    """Host memory for indexer keys."""
    shm: str | None = None
    """Size of /dev/shm."""
    pod_memory: str | None = None
    """Memory request and limit of the pod."""
    max_concurrency_at_max_tokens: str | None = None
    """Requests of maxTokens that run at once."""
    max_concurrency_at_typical_tokens: str | None = None
    """Requests of typicalTokens that run at once."""
    concurrency_gain: str | None = None
    """Times as many requests at typicalTokens as without the tier."""
    expected_speedup: str | None = None
    """Times as many tokens a second at that concurrency; reading from host makes each token slower."""
    max_num_seqs: int | None = None
    """Requests that the engine runs at once, at most."""
    max_batched_tokens: int | None = None
    """Tokens of one engine step, at most."""
    startup_seconds: int | None = None
    """From the container's start until it serves."""
    teardown_seconds: int | None = None
    """For unpinning and exit."""
    prefill_seconds: int | None = None
    """Estimate for one prompt of maxTokens."""
    binding_limit: str | None = None
    """What ends concurrency or feasibility first."""
    binding_message: str | None = None
    """The same as a sentence, with numbers."""
    cheapest_change: str | None = None
    """The smallest change that lifts it."""
    warnings: list[str] | None = None
    """What to know before relying on it."""


class RejectedNodes(Reported):
    """Nodes that cannot hold a replica, by reason."""

    reason: str
    """One word for why."""
    count: int
    """How many nodes."""
    product: str | None = None
    """GPU product of these nodes."""
    message: str | None = None
    """Why, with numbers and the next step."""
    example_node: str | None = None
    """One of them."""


class CapacityStatus(Reported):
    """Nodes as far as allocatable, labels and taints tell; what is free is the scheduler's word."""

    candidate_nodes: int | None = None
    """Nodes that could hold a replica."""
    rejected: list[RejectedNodes] | None = None
    """The others."""


class LastFailure(Reported):
    """The last container that ended by itself."""

    pod: str
    """Name of the pod."""
    reason: str | None = None
    """Reason that the kubelet gave."""
    exit_code: int | None = None
    """Exit code."""
    signature: str | None = None
    """Known cause that the log shows."""
    advice: str | None = None
    """What that cause means and what to do."""
    time: str | None = None
    """When, RFC 3339."""
    log_tail: str | None = None
    """End of the log, at most 1 KiB."""


class Endpoint(Reported):
    """Where requests go."""

    url: str | None = None
    """Address inside the cluster."""
    service: str | None = None
    """Name of the Service."""


class Condition(Reported):
    """One condition, as everywhere in Kubernetes."""

    type: str
    """What it is about."""
    status: str
    """True, False or Unknown."""
    reason: str
    """One word for why."""
    message: str
    """Why, for people."""
    last_transition_time: str
    """When the status last changed, RFC 3339."""
    observed_generation: int | None = None
    """Generation of the object that this speaks of."""


class HiSparseInferenceStatus(Reported):
    """What the operator found and did. Conditions are the part for programs; phase is for people."""

    observed_generation: int | None = None
    """Generation of the object that all of this speaks of."""
    phase: str | None = None
    """One word for people; nothing depends on it."""
    model: str | None = None
    """The model in one word, for the list."""
    replicas: int | None = None
    """Pods that exist."""
    ready_replicas: int | None = None
    """Pods that are ready."""
    updated_replicas: int | None = None
    """Pods of the newest revision."""
    serving_replicas: int | None = None
    """Pods that get requests, of any revision."""
    selector: str | None = None
    """Labels of the pods, for autoscalers."""
    current_revision: str | None = None
    """Revision that was rolled out last: every wanted replica was of it and served. Absent until then."""
    update_revision: str | None = None
    """Revision that is wanted."""
    mode: ModeStatus | None = None
    """The KV tier in force."""
    plan: PlanStatus | None = None
    """The plan of today's operator for this spec."""
    capacity: CapacityStatus | None = None
    """Nodes that could hold a replica, and those that cannot."""
    last_failure: LastFailure | None = None
    """The last container that ended by itself."""
    endpoint: Endpoint | None = None
    """Where requests go."""
    conditions: Annotated[
        list[Condition] | None,
        Field(json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}),
    ] = None
    """Accepted, PlanFeasible, ModelReady, Scheduled, WorkloadReady, TierActive, Verified, RouteReady, Available,
    Progressing, Ready, Degraded. One that nobody can judge yet is absent."""
