"""The object `HiSparseInference` as people write it: every field, its rule and its meaning, once.

The CRD and its field reference are generated from these models, so a docstring here is what `kubectl explain` shows.
Fields are optional and stay absent where they are not set: what shapes a pod gets its default in the planner, per
template version, so that a default can change without restarting anybody. `replicas` is the one exception: it shapes
no pod, and `kubectl scale` needs a number to read.
"""

import math
import re
from collections.abc import Mapping
from enum import StrEnum
from fractions import Fraction
from typing import Annotated, Final

from pydantic import Field

from hisparse.dialect import DIALECTS
from hisparse.errors import SpecError, SpecErrors
from hisparse.faults import judged, known
from hisparse.fields import (
    AbsolutePath,
    Annotations,
    Argument,
    ContainerObject,
    Count,
    EnvName,
    FreeForm,
    IntOrText,
    Labels,
    LabelValue,
    Layers,
    Memory,
    ModelConfig,
    MountObject,
    NodeSelector,
    NoNul,
    ObjectName,
    Parallel,
    Positive,
    RelativePath,
    Sequences,
    Tokens,
    VolumeObject,
    Width,
)
from hisparse.reserved import LAUNCHER_PORT
from hisparse.rules import (
    AllOrNone,
    AtLeastQuantity,
    Between,
    DurationBetween,
    ExactlyOne,
    Form,
    IsQuantity,
    MultipleOf,
    NotAbove,
    NotLonger,
    OneOf,
    Rule,
    Strict,
    Term,
    at_path,
    cel_has,
    cel_list,
    cel_or,
)

GROUP: Final = "inference.hisparse.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
KIND: Final = "HiSparseInference"
PLURAL: Final = "hisparseinferences"

ENGINE_VERSIONS: Final = tuple(one.version for one in DIALECTS)

# A child is "<name>-<10 of hash>", its pods add 6 more, and a label value holds 63 characters.
MAX_NAME_LENGTH: Final = 46

_MAX_LIST: Final = 64


class KvCacheDtype(StrEnum):
    """What one KV entry is stored as."""

    AUTO = "Auto"
    BF16 = "Bf16"
    FP8 = "Fp8"
    INT8_PER_TOKEN_HEAD = "Int8PerTokenHead"  # noqa: S105 - a token of text
    INT4_PER_TOKEN_HEAD = "Int4PerTokenHead"  # noqa: S105
    TURBOQUANT_K8V4 = "TurboQuantK8V4"
    TURBOQUANT_4BIT_NC = "TurboQuant4BitNc"
    TURBOQUANT_K3V4_NC = "TurboQuantK3V4Nc"
    TURBOQUANT_3BIT_NC = "TurboQuant3BitNc"


class RopeScalingType(StrEnum):
    """How positions beyond the trained ones are reached."""

    YARN = "Yarn"
    LINEAR = "Linear"
    DYNAMIC = "Dynamic"


class TierMode(StrEnum):
    """Where KV may live besides HBM."""

    AUTO = "Auto"
    HISPARSE = "HiSparse"
    OFFLOAD = "Offload"
    NONE = "None"


class PoolSharing(StrEnum):
    """Whether the ranks of a replica share one host pool."""

    AUTO = "Auto"
    REQUIRE_SHARED = "RequireShared"
    PRIVATE = "Private"


class PullPolicy(StrEnum):
    """When the engine image is pulled."""

    ALWAYS = "Always"
    IF_NOT_PRESENT = "IfNotPresent"
    NEVER = "Never"


# --- model -------------------------------------------------------------------------------------------------------


class SecretKeyRef(Strict):
    """One key of a Secret in the same namespace; the operator never reads it, only the pod does."""

    name: ObjectName
    """Name of the Secret."""
    key: Annotated[
        str,
        Field(max_length=253),
        Form(r"[-._A-Za-z0-9]+", "a key of a Secret", 'write letters, digits, "-", "_" and ".", as in "token"'),
    ]
    """Key inside the Secret."""


class SecretRef(Strict):
    """A Secret in the same namespace."""

    name: ObjectName
    """Name of the Secret."""


class HuggingFaceSource(Strict):
    """A repository on the Hugging Face hub."""

    repo: Annotated[
        str,
        Field(max_length=200),
        Form(
            r"[A-Za-z0-9][-A-Za-z0-9_.]*/[A-Za-z0-9][-A-Za-z0-9_.]*",
            "a Hugging Face repository",
            'write owner/name, as in "zai-org/GLM-5.3-FP8"',
        ),
    ]
    """Repository as owner/name."""
    revision: (
        Annotated[
            str,
            Field(max_length=200),
            Form(
                r"[A-Za-z0-9][-A-Za-z0-9_./]*",
                "a revision",
                "set the 40 characters of a commit, which never change under a running service",
            ),
        ]
        | None
    ) = None
    """Commit to serve. A branch or tag works and is warned about, because what it names can change."""
    token_secret: SecretKeyRef | None = None
    """Where the pod finds the token for a gated repository."""


class PvcSource(Strict):
    """Weights on a PersistentVolumeClaim, mounted read-only."""

    claim_name: ObjectName
    """Name of the claim, in the same namespace."""
    path: RelativePath | None = None
    """Folder of the model inside the volume; the volume's root where it is absent."""


class HostPathSource(Strict):
    """A folder of the node."""

    path: AbsolutePath
    """Absolute path on the node."""


class CacheClaim(Strict):
    """A PersistentVolumeClaim that keeps downloads."""

    claim_name: ObjectName
    """Name of the claim, in the same namespace; it has to be writable by the pods of all replicas."""


class ModelCache(Strict):
    """Where downloaded weights stay between starts."""

    pvc: CacheClaim | None = None
    """Keep them on a claim."""
    host_path: HostPathSource | None = None
    """Keep them in a folder of the node."""

    rules = (ExactlyOne(("pvc", "hostPath"), "keep one of them"),)


class ModelFactsSpec(Strict):
    """Facts of the model that win over its config.json and the catalogue."""

    weights: (
        Annotated[
            str,
            IntOrText(),
            IsQuantity('write bytes or a number with Gi, as in "704Gi"'),
            AtLeastQuantity("1Mi", "add the unit"),
        ]
        | None
    ) = None
    """Bytes of all weight files together."""
    parameter_count: Positive | None = None
    """Number of parameters, for weights that are not known."""
    architecture: (
        Annotated[
            str,
            Field(max_length=128),
            Form(
                r"[A-Za-z][A-Za-z0-9_]*",
                "an architecture",
                'write it as in config.json, "GlmMoeDsaForCausalLM"',
            ),
        ]
        | None
    ) = None
    """Architecture as config.json names it."""
    layers: Layers | None = None
    """Layers that keep KV."""
    hidden_size: Width | None = None
    """Width of the model."""
    attention_heads: Width | None = None
    """Query heads."""
    kv_heads: Width | None = None
    """Key-value heads."""
    head_dim: Width | None = None
    """Width of one head."""
    kv_lora_rank: Width | None = None
    """MLA: width of the latent."""
    rope_head_dim: Annotated[int, Between(0, 4096, "set qk_rope_head_dim of the model's config.json")] | None = None
    """MLA: width of the rotary part."""
    index_layers: Count | None = None
    """DSA: layers with an indexer of their own."""
    index_head_dim: Width | None = None
    """DSA: width of one indexer key."""
    index_top_k: Width | None = None
    """DSA: rows that a query reads."""
    mtp_layers: Annotated[int, Between(0, 64, "set num_nextn_predict_layers of the config.json")] | None = None
    """Layers for multi-token prediction."""
    max_positions: Positive | None = None
    """max_position_embeddings as the engine takes it; a YaRN config gives it already scaled."""


class ModelSpec(Strict):
    """What is served."""

    hugging_face: HuggingFaceSource | None = None
    """A repository on the hub."""
    pvc: PvcSource | None = None
    """A folder on a claim."""
    host_path: HostPathSource | None = None
    """A folder of the node."""
    served_name: (
        Annotated[
            str,
            Field(max_length=128),
            Form(
                r"[A-Za-z0-9][-A-Za-z0-9_.:/]*",
                "a name for requests",
                'write letters, digits, "-", "_", ".", ":" and "/", as in "glm-5.3"',
            ),
        ]
        | None
    ) = None
    """Name that requests use; the last part of the repository where it is absent."""
    trust_remote_code: bool | None = None
    """Run code that comes with the weights. False where it is absent; none of the known models needs it."""
    cache: ModelCache | None = None
    """Where downloaded weights stay. Without it every start downloads them again."""
    config: ModelConfig | None = None
    """The model's config.json, for a model that is neither in the catalogue nor public."""
    facts: ModelFactsSpec | None = None
    """Single facts that win over config and catalogue."""

    rules = (
        ExactlyOne(("huggingFace", "pvc", "hostPath"), "keep the one that holds the weights"),
        Rule(
            "!has(self.cache) || has(self.huggingFace)",
            "cache keeps downloads, and a model from pvc or hostPath downloads nothing; remove cache",
            lambda model: model.cache is None or model.hugging_face is not None,
            field="cache",
            reads=("huggingFace",),
        ),
    )


# --- context -----------------------------------------------------------------------------------------------------


class RopeScaling(Strict):
    """Scaling of positions, for a model that needs it to reach maxTokens."""

    type: Annotated[RopeScalingType, Field(strict=False)]
    """Method."""
    factor: Annotated[
        str,
        Field(max_length=16),
        Form(r"[0-9]{1,4}(?:\.[0-9]{1,6})?", "a decimal number in quotes", 'write it as text, as in "4.0"'),
        Rule(
            '!self.matches("^[0-9]{1,4}([.][0-9]{1,6})?$") || double(self) >= 1.0',
            '"{self}" is below 1; set by how much positions are stretched, for example "4.0"',
            lambda value: not value.replace(".", "", 1).isdigit() or Fraction(value) >= 1,
            must="at least 1",
        ),
    ]
    """By how much, as decimal text."""
    original_max_tokens: Tokens | None = None
    """Positions before scaling."""

    rules = (
        Rule(
            'self.type != "Yarn" || has(self.originalMaxTokens)',
            "type {type} needs originalMaxTokens; set the positions that the model was trained with, for example 32768",
            lambda scaling: scaling.type is not RopeScalingType.YARN or scaling.original_max_tokens is not None,
            must="type Yarn with originalMaxTokens",
        ),
    )


class ContextSpec(Strict):
    """How long and how many requests may be."""

    max_tokens: Tokens
    """Longest request in tokens, prompt and answer together."""
    kv_cache_dtype: Annotated[KvCacheDtype, Field(strict=False)] | None = None
    """What KV is stored as. Auto: Fp8 for DSA models, else Bf16 where it fits; the plan says why."""
    typical_tokens: Tokens | None = None
    """What requests usually look like; sizes concurrency. The smaller of maxTokens and 131072 where it is absent."""
    max_concurrent_requests: Sequences | None = None
    """Requests that run at once, at most; worked out where it is absent."""
    max_batched_tokens: (
        Annotated[int, Between(64, 1_048_576, "set how many tokens one step may compute, for example 8192")] | None
    ) = None
    """Tokens of one engine step, at most; worked out where it is absent."""
    rope_scaling: RopeScaling | None = None
    """Scaling of positions; from the model's config where it is absent."""

    rules = (
        NotAbove("typicalTokens", "maxTokens", "lower typicalTokens or raise maxTokens"),
        Rule(
            f"!({cel_has('maxBatchedTokens', 'maxConcurrentRequests')})"
            " || self.maxBatchedTokens >= self.maxConcurrentRequests",
            "{maxBatchedTokens} is below maxConcurrentRequests, which is {maxConcurrentRequests}; "
            "one step computes at least one token of every running request, so raise maxBatchedTokens",
            lambda context: (
                context.max_batched_tokens is None
                or context.max_concurrent_requests is None
                or context.max_batched_tokens >= context.max_concurrent_requests
            ),
            field="maxBatchedTokens",
            must="maxBatchedTokens at least maxConcurrentRequests",
        ),
    )


# --- KV tier -----------------------------------------------------------------------------------------------------


class HostPool(Strict):
    """Host memory for KV, of one data-parallel replica: a size, or the requests that it has to hold."""

    size: Memory | None = None
    """Size of the pool."""
    for_requests: Sequences | None = None
    """Hold this many requests..."""
    at_tokens: Tokens | None = None
    """... of this many tokens each."""

    rules = (
        Rule(
            "has(self.size) != (has(self.forRequests) || has(self.atTokens))",
            "a pool is size, or forRequests with atTokens, and {given} given; "
            "keep one form, or remove hostPool to have it worked out",
            must="size, or forRequests with atTokens",
            holds=lambda pool: (pool.size is not None) != (pool.for_requests is not None or pool.at_tokens is not None),
            terms={
                "given": Term(
                    '(has(self.size) ? "both are" : "neither is")',
                    lambda pool: "neither is" if pool.size is None else "both are",
                )
            },
        ),
        AllOrNone(("forRequests", "atTokens"), "set both"),
    )


class IndexerOffload(Strict):
    """Host memory for indexer keys, so that a repeated prefix is not computed again."""

    enabled: bool | None = None
    """False switches it off; where it is absent, it is on if the node's memory allows."""
    size: Memory | None = None
    """Host memory for it; worked out from the pool where it is absent."""

    rules = (
        Rule(
            "!has(self.size) || !has(self.enabled) || self.enabled",
            "enabled is false and size is {size}; remove size, or set enabled to true",
            lambda offload: offload.size is None or offload.enabled is not False,
            field="size",
            must="size only where enabled is not false",
        ),
    )


class HiSparseTuning(Strict):
    """Tuning of the HiSparse tier."""

    device_buffer_tokens: (
        Annotated[
            int,
            Between(64, 32_768, "set rows for one request, for example 4096"),
            MultipleOf(64, "a block holds 64 tokens, so set for example 4096"),
        ]
        | None
    ) = None
    """Rows that one request keeps in HBM while it reads from host; a multiple of 64."""
    eager_host_mirror: bool | None = None
    """Copy decoded rows to host at once instead of when their page is given up."""
    indexer_offload: IndexerOffload | None = None
    """Host memory for indexer keys."""


def _tier_block(block: str, modes: tuple[str, ...], advice: str) -> Rule:
    """A block that only some modes read; Auto, and no mode at all, may still turn out to be one of them."""
    allowed = ("Auto", *modes)

    def holds(tier: object) -> bool:
        mode = at_path(tier, "mode")
        return at_path(tier, block) is None or mode is None or mode in allowed

    return Rule(
        f"!has(self.{block}) || !has(self.mode) || self.mode in {cel_list(allowed)}",
        f'{block} has no meaning with mode "{{mode}}"; {advice}',
        holds,
        field=block,
        must=f"{block} only with mode {', '.join(allowed)}",
    )


class KvTierSpec(Strict):
    """Where KV lives."""

    mode: Annotated[TierMode, Field(strict=False)] | None = None
    """HiSparse: rows in host memory, read on demand (DSA models). Offload: whole prefixes in host memory. None: HBM
    only. Auto chooses from the model and says why in status."""
    host_pool: HostPool | None = None
    """Host memory for KV; worked out where it is absent."""
    sharing: Annotated[PoolSharing, Field(strict=False)] | None = None
    """RequireShared refuses a plan in which every rank would have a pool of its own."""
    hi_sparse: HiSparseTuning | None = None
    """Tuning of the HiSparse tier; only with that mode."""

    rules = (
        _tier_block("hiSparse", ("HiSparse",), "remove it, or set mode to HiSparse"),
        _tier_block("hostPool", ("HiSparse", "Offload"), "remove it, or set mode to HiSparse or Offload"),
        _tier_block("sharing", ("HiSparse",), "remove it, or set mode to HiSparse"),
    )


# --- resources and parallelism -----------------------------------------------------------------------------------


class ResourcesSpec(Strict):
    """What one replica takes of a node."""

    gpus: Annotated[int, Between(1, 64, "set the number of GPUs of one replica, for example 8")]
    """GPUs of one replica; a replica is one pod on one node."""
    gpu_resource_name: (
        Annotated[
            str,
            Field(max_length=253),
            Form(
                r"[a-z0-9](?:[-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?",
                "an extended resource",
                'write domain/name, as in "nvidia.com/gpu"',
            ),
        ]
        | None
    ) = None
    """Extended resource that stands for a GPU; nvidia.com/gpu where it is absent."""
    gpu_products: Annotated[list[LabelValue], Field(min_length=1, max_length=16)] | None = None
    """Values of the nodes' GPU product label to choose from; any that fits where it is absent."""
    gpu_memory_utilization_percent: (
        Annotated[int, Between(50, 97, "set the percentage of HBM that the engine may use, for example 92")] | None
    ) = None
    """Percentage of HBM that the engine may use; 92 where it is absent."""
    cpu: Annotated[str, IntOrText(), IsQuantity('write a number of cores, as in "16"')] | None = None
    """CPU of one replica; from the plan where it is absent."""
    memory: Memory | None = None
    """Memory of one replica, request and limit; from the plan where it is absent."""
    ephemeral_storage: Memory | None = None
    """Local disk of one replica; from the plan where it is absent."""


class ParallelismSpec(Strict):
    """How the GPUs of a replica share the model: tensor x data x pipeline is the number of GPUs."""

    tensor: Parallel | None = None
    """Ways that a layer is split; the number of GPUs where it is absent."""
    data: Parallel | None = None
    """Copies of the attention part, each with its own KV; 1 where it is absent."""
    pipeline: Parallel | None = None
    """Ways that the layers are divided; 1 where it is absent, and HiSparse needs 1."""
    expert: bool | None = None
    """Spread whole experts over the GPUs instead of splitting each."""


# --- engine ------------------------------------------------------------------------------------------------------


class EnvVar(Strict):
    """One environment variable of the engine."""

    name: EnvName
    """Name."""
    value: Annotated[str, Field(max_length=32_768), NoNul] | None = None
    """Value as text. $(NAME) is another variable and $$ a single $, as in a Pod."""
    value_from: FreeForm | None = None
    """Source of the value, as in a Pod."""

    rules = (
        Rule(
            "!has(self.value) || !has(self.valueFrom)",
            "value and valueFrom of {name} are both set; keep one",
            lambda env: env.value is None or env.value_from is None,
            must="value or valueFrom, not both",
        ),
    )


def _twice(variables: list[EnvVar] | None) -> str | None:
    names = [variable.name for variable in variables or ()]
    return next((name for name in names if names.count(name) > 1), None)


class EngineSpec(Strict):
    """The vLLM that runs."""

    image: (
        Annotated[
            str,
            Field(max_length=512),
            Form(
                r"[a-z0-9](?:[-a-z0-9._]*(?::[0-9]+)?/)?[-a-z0-9._/]*"
                r"(?::[A-Za-z0-9_][-A-Za-z0-9_.]{0,127})?(?:@sha256:[0-9a-f]{64})?",
                "an image",
                'write registry/name:tag or registry/name@sha256:digest, as in "vllm/vllm-openai:v0.33.0"',
            ),
            Rule(
                'self.contains("@") || self.split("/")[self.split("/").size() - 1].contains(":")',
                '"{self}" has neither tag nor digest, so nodes may run different engines; '
                'add one, as in "vllm/vllm-openai:v0.33.0"',
                lambda image: "@" in image or ":" in image.split("/")[-1],
                must="with a tag or digest",
            ),
            Rule(
                '!self.endsWith(":latest")',
                '"{self}" changes under a running service; set the tag of a release, as in "vllm/vllm-openai:v0.33.0"',
                lambda image: not image.endswith(":latest"),
                must="not :latest",
            ),
        ]
        | None
    ) = None
    """Image with a tag or digest; the pinned image of this release where it is absent."""
    version: (
        Annotated[str, Field(max_length=32), OneOf(ENGINE_VERSIONS, "a vLLM version that this operator knows")] | None
    ) = None
    """vLLM release in the image; picks flags, log lines and metrics."""
    pull_policy: Annotated[PullPolicy, Field(strict=False)] | None = None
    """When the image is pulled."""
    pull_secrets: Annotated[list[SecretRef], Field(max_length=8)] | None = None
    """Secrets for the image's registry."""
    args: Annotated[list[Argument], Field(max_length=128)] | None = None
    """More arguments for vllm serve. Those that the operator owns are refused. No shell sees them: each reaches the
    engine as it is, except that $(NAME) is a variable of the container and $$ a single $, as in a Pod."""
    env: Annotated[list[EnvVar], Field(max_length=128)] | None = None
    """More environment for the engine. Variables that the operator owns are refused."""
    env_from: Annotated[list[FreeForm], Field(max_length=32)] | None = None
    """More environment for the engine, from ConfigMaps and Secrets, as in a Pod. Nobody looks inside: what the operator
    sets by name wins, anything else that they hold reaches the engine."""
    template_version: Annotated[int, Between(1, 1000, "set a version that this operator knows")] | None = None
    """Version of the pod template. It is fixed when the object is made; raise it to take new defaults."""

    rules = (
        Rule(
            '!has(self.args) || self.args.size() == 0 || self.args[0].startsWith("-")',
            'the first item, "{first}", is not a flag, and the model is named by spec.model; start with a flag',
            lambda engine: not engine.args or engine.args[0].startswith("-"),
            must="args begin with a flag",
            field="args",
            terms={"first": Term("self.args[0]", lambda engine: engine.args[0])},
        ),
        Rule(
            "!has(self.env) || self.env.all(one, self.env.exists_one(other, other.name == one.name))",
            "{twice} is set more than once; keep one",
            lambda engine: _twice(engine.env) is None,
            must="each name of env once",
            field="env",
            terms={
                "twice": Term(
                    "self.env.filter(one, !self.env.exists_one(other, other.name == one.name))[0].name",
                    lambda engine: _twice(engine.env),
                )
            },
        ),
    )


# --- where, how long, how reachable ------------------------------------------------------------------------------


class PlacementSpec(Strict):
    """Which nodes."""

    node_selector: NodeSelector | None = None
    """Labels that a node must have."""
    tolerations: Annotated[list[FreeForm], Field(max_length=_MAX_LIST)] | None = None
    """Tolerations as in a Pod, beside the one for GPU nodes."""
    affinity: FreeForm | None = None
    """Affinity as in a Pod."""
    topology_spread: Annotated[list[FreeForm], Field(max_length=16)] | None = None
    """Topology spread constraints as in a Pod."""
    scheduler_name: ObjectName | None = None
    """Scheduler."""
    priority_class_name: ObjectName | None = None
    """Priority class."""
    runtime_class_name: ObjectName | None = None
    """Runtime class, for example nvidia."""


_START = DurationBetween("1m", "24h", 'set how long loading may take, for example "40m"')
_DRAIN = DurationBetween("0s", "2h", 'set how long running requests may finish, for example "5m"')
_GRACE = DurationBetween("1s", "4h", 'set how long a pod may take to stop, for example "15m"')
_WORKER = DurationBetween("5s", "2h", 'set how long unpinning host memory may take, for example "10m"')


class LifecycleSpec(Strict):
    """How long things may take; each from the plan where it is absent."""

    startup_budget: Annotated[str, Field(max_length=32), _START[0], _START[1]] | None = None
    """From the container's start until it serves."""
    drain: Annotated[str, Field(max_length=32), _DRAIN[0], _DRAIN[1]] | None = None
    """For requests that are running when a pod is asked to stop."""
    termination_grace: Annotated[str, Field(max_length=32), _GRACE[0], _GRACE[1]] | None = None
    """From the request to stop until the pod is killed; draining and unpinning have to fit."""
    worker_shutdown: Annotated[str, Field(max_length=32), _WORKER[0], _WORKER[1]] | None = None
    """For the workers to unpin host memory; one that is killed meanwhile can block its node."""

    rules = (
        NotLonger("drain", "terminationGrace", "a pod is killed in the middle of its drain, so raise it"),
        NotLonger("workerShutdown", "terminationGrace", "a pod is killed while it unpins memory, so raise it"),
    )


class DisruptionSpec(Strict):
    """What a drain of nodes may take away at once."""

    max_unavailable: (
        Annotated[int, Between(1, 1000, "set how many replicas a drain may stop; 0 would block it for ever")] | None
    ) = None
    """Replicas that may be down for it; 1 where it is absent. Only where replicas > 1."""


class NetworkingSpec(Strict):
    """How the engine is reached."""

    port: (
        Annotated[
            int,
            Between(1, 65_535, "set a TCP port, for example 8000"),
            Rule(
                f"self != {LAUNCHER_PORT}",
                "{self} is where the launcher answers probes; set another port, for example 8000",
                lambda port: port != LAUNCHER_PORT,
                must=f"not {LAUNCHER_PORT}, where the launcher answers",
            ),
        ]
        | None
    ) = None
    """Port of the Service and the engine; 8000 where it is absent."""
    network_policy: bool | None = None
    """Make a NetworkPolicy; true where it is absent."""
    api_key_secret: SecretKeyRef | None = None
    """Key that requests have to bring."""


# --- pod template ------------------------------------------------------------------------------------------------


class PodTemplateOverlay(Strict):
    """Additions to the engine's pods. They cannot replace what the operator owns."""

    labels: Labels | None = None
    """More labels."""
    annotations: Annotations | None = None
    """More annotations."""
    volumes: Annotated[list[VolumeObject], Field(max_length=_MAX_LIST)] | None = None
    """More volumes, as in a Pod."""
    volume_mounts: Annotated[list[MountObject], Field(max_length=_MAX_LIST)] | None = None
    """More mounts of the engine container, as in a Pod."""
    sidecars: Annotated[list[ContainerObject], Field(max_length=16)] | None = None
    """More containers, as in a Pod."""
    security_context: FreeForm | None = None
    """Security context of the pod, over the operator's."""
    container_security_context: FreeForm | None = None
    """Security context of the engine container, over the operator's."""


# --- the whole ---------------------------------------------------------------------------------------------------


def _split(spec: object) -> tuple[int, int, int]:
    """Tensor, data and pipeline as they count: the number of GPUs, 1 and 1 where they are not set."""
    names = ("parallelism.tensor", "parallelism.data", "parallelism.pipeline")
    defaults = (at_path(spec, "resources.gpus"), 1, 1)
    tensor, data, pipeline = (at_path(spec, name) or default for name, default in zip(names, defaults, strict=True))
    return int(str(tensor)), int(str(data)), int(str(pipeline))


_WAYS: Final = (
    cel_or("parallelism.tensor", "self.resources.gpus"),
    cel_or("parallelism.data", "1"),
    cel_or("parallelism.pipeline", "1"),
)


class HiSparseInferenceSpec(Strict):
    """One model served for long contexts: what it is, how long requests get, and how many GPUs it may take."""

    model: ModelSpec
    """What is served."""
    context: ContextSpec
    """How long and how many requests may be."""
    resources: ResourcesSpec
    """What one replica takes of a node."""
    kv_tier: KvTierSpec | None = None
    """Where KV lives; chosen from the model where it is absent."""
    parallelism: ParallelismSpec | None = None
    """How the GPUs of a replica share the model."""
    engine: EngineSpec | None = None
    """The vLLM that runs."""
    replicas: Annotated[int, Between(0, 1000, "set how many copies of the service run")] = 1
    """Copies of the service; left to an autoscaler where one owns it."""
    placement: PlacementSpec | None = None
    """Which nodes."""
    lifecycle: LifecycleSpec | None = None
    """How long things may take."""
    disruption: DisruptionSpec | None = None
    """What a drain of nodes may take away at once."""
    networking: NetworkingSpec | None = None
    """How the engine is reached."""
    pod_template: PodTemplateOverlay | None = None
    """Additions to the engine's pods."""
    plan_only: bool | None = None
    """Only work out status.plan; make no pods."""
    paused: bool | None = None
    """Leave everything as it is until this is false again."""
    restart_token: (
        Annotated[
            str,
            Field(max_length=63),
            Form(r"[-A-Za-z0-9_.:+]*", "a token", 'write letters, digits and "-_.:+", for example a date'),
        ]
        | None
    ) = None
    """Any new text here replaces the pods."""

    rules = (
        Rule(
            f"{' * '.join(_WAYS)} == self.resources.gpus",
            "tensor x data x pipeline is {product}, and resources.gpus is {resources.gpus}; "
            "set them so that the product is the number of GPUs",
            lambda spec: math.prod(_split(spec)) == spec.resources.gpus,
            field="parallelism",
            reads=("parallelism.tensor", "parallelism.data", "parallelism.pipeline"),
            must="parallelism.tensor x data x pipeline is resources.gpus",
            terms={
                "product": Term(
                    f'"%d x %d x %d = %d".format([{", ".join((*_WAYS, " * ".join(_WAYS)))}])',
                    lambda spec: f"{' x '.join(str(way) for way in _split(spec))} = {math.prod(_split(spec))}",
                )
            },
        ),
        Rule(
            f'!({cel_has("kvTier.mode", "parallelism.pipeline")}) || self.kvTier.mode != "HiSparse"'
            " || self.parallelism.pipeline == 1",
            "pipeline is {parallelism.pipeline}, and HiSparse runs only with 1; "
            "set parallelism.pipeline to 1 and parallelism.tensor to the number of GPUs, or another kvTier.mode",
            lambda spec: (
                at_path(spec, "kvTier.mode") != TierMode.HISPARSE or at_path(spec, "parallelism.pipeline") in (None, 1)
            ),
            field="parallelism.pipeline",
            reads=("kvTier.mode",),
            must="kvTier.mode HiSparse only with parallelism.pipeline 1",
        ),
        NotAbove(
            "kvTier.hostPool.atTokens",
            "context.maxTokens",
            "no request is longer than that, so lower atTokens or raise context.maxTokens",
        ),
    )


NAME_RULES: Final = (
    Rule(
        f"self.metadata.name.size() <= {MAX_NAME_LENGTH}",
        f'"{{metadata.name}}" as metadata.name has {{size}} characters, and {MAX_NAME_LENGTH} are the most: '
        "a pod's name and labels add 17 to it; choose a shorter name",
        lambda manifest: len(str(at_path(manifest, "metadata.name"))) <= MAX_NAME_LENGTH,
        must=f"metadata.name has at most {MAX_NAME_LENGTH} characters",
        terms={
            "size": Term(
                "self.metadata.name.size()",
                lambda manifest: len(str(at_path(manifest, "metadata.name"))),
            )
        },
    ),
    Rule(
        'self.metadata.name.matches("^[a-z]([-a-z0-9]*[a-z0-9])?$")',
        '"{metadata.name}" as metadata.name cannot name a Service too; start with a letter and write only '
        'lower-case letters, digits and "-", as in "glm-5-3"',
        lambda manifest: (
            re.fullmatch("[a-z]([-a-z0-9]*[a-z0-9])?", str(at_path(manifest, "metadata.name"))) is not None
        ),
        must='metadata.name begins with a letter and has only lower-case letters, digits and "-"',
    ),
)


# --- from a file to the object -----------------------------------------------------------------------


def parse_spec(raw: Mapping[str, object], *, metadata: Mapping[str, object] | None = None) -> HiSparseInferenceSpec:
    """The spec that a manifest's `spec` holds, judged as the API server does and by the rules it cannot know.

    `metadata` adds the rules for the object's name. Raises SpecErrors with every fault that can be told at once.
    """
    found = [] if metadata is None else name_faults(metadata)
    try:
        spec = judged(HiSparseInferenceSpec, raw, "spec")
    except SpecErrors as error:
        raise SpecErrors([*found, error]) from None
    if found:
        raise SpecErrors(found)
    return spec


def parse_stored_spec(
    raw: Mapping[str, object], *, metadata: Mapping[str, object]
) -> tuple[HiSparseInferenceSpec, tuple[str, ...]]:
    """The spec as the API server keeps it, and the fields in it that this release does not know. Raises SpecErrors.

    The API server drops what its CRD does not have, so such a field is of a newer CRD, which may have filled it in.
    """
    document, strange = known(HiSparseInferenceSpec, raw, "spec")
    return parse_spec(document, metadata=metadata), strange


def parse_manifest(manifest: Mapping[str, object]) -> HiSparseInferenceSpec:
    """The spec of a whole HiSparseInference as it stands in a file. Raises SpecErrors."""
    for field, wanted in (("apiVersion", API_VERSION), ("kind", KIND)):
        if (given := manifest.get(field)) != wanted:
            raise SpecErrors([SpecError(field, f'"{given}" is not what this release reads; set {wanted}')])
    spec, metadata = manifest.get("spec"), manifest.get("metadata")
    if not isinstance(spec, Mapping):
        raise SpecErrors([SpecError("spec", "is needed and not set; set model, context and resources")])
    return parse_spec(spec, metadata=metadata if isinstance(metadata, Mapping) else None)


def name_faults(metadata: Mapping[str, object]) -> list[SpecError]:
    """What is wrong with an object's name; nothing where it has none yet."""
    if metadata.get("name") is None:
        return []
    messages = (rule.fault({"metadata": metadata}) for rule in NAME_RULES)
    return [SpecError("metadata.name", message) for message in messages if message is not None]
