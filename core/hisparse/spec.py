"""The object `HiSparseInference` as people write it: every field, its rule and its meaning, once.

The CRD and its field reference are generated from these models, so a docstring here is what `kubectl explain` shows.
Fields are optional and stay absent where they are not set: what shapes a pod gets its default in the planner, per
template version, so that a default can change without restarting anybody. `replicas` is the one exception: it shapes
no pod, and `kubectl scale` needs a number to read.
"""

import difflib
import json
import math
import re
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Annotated, Any, Final, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationError
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, ErrorDetails, core_schema

from hisparse.errors import SpecError, SpecErrors
from hisparse.reserved import (
    ENGINE_CONTAINER,
    FLAG_NAME_CEL,
    RESERVED_ENV,
    RESERVED_FLAGS,
    RESERVED_KEY_PREFIXES,
    RESERVED_NAME_PREFIX,
    RESERVED_PATHS,
    check_argument,
    flag_name,
)
from hisparse.rules import (
    RULE_ERROR,
    AllOrNone,
    AtLeastQuantity,
    Between,
    DurationBetween,
    ExactlyOne,
    Form,
    IsQuantity,
    MultipleOf,
    NotAbove,
    OneOf,
    Rule,
    Strict,
    Term,
    at_path,
    cel_has,
    cel_is_duration,
    cel_list,
    cel_map,
    cel_or,
    cel_text,
)
from hisparse.units import exact_seconds, shortened

GROUP: Final = "inference.hisparse.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
KIND: Final = "HiSparseInference"
PLURAL: Final = "hisparseinferences"

# Those whose flags, logs and metrics have been read or run (facts: 0.31 has not).
ENGINE_VERSIONS: Final = ("0.30", "0.32", "0.33")

# A child is "<name>-<10 of hash>", its pods add 6 more, and a label value holds 63 characters.
MAX_NAME_LENGTH: Final = 46
MAX_CONFIG_BYTES: Final = 256 * 1024

_MAX_LIST: Final = 64
_MAX_MAP: Final = 64


class KvCacheDtype(StrEnum):
    """What one KV entry is stored as."""

    AUTO = "Auto"
    BF16 = "Bf16"
    FP8 = "Fp8"


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


# --- texts and numbers with a form -------------------------------------------------------------------------------


class _IntOrText:
    """A quantity in YAML may be a bare number; inside it is always text."""

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        number = core_schema.no_info_after_validator_function(str, core_schema.int_schema(strict=True))
        return core_schema.union_schema([core_schema.str_schema(strict=True, max_length=64), number])

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {
            "x-kubernetes-int-or-string": True,
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "maxLength": 64,
        }


class _FreeForm:
    """A Kubernetes object passed on as it is; only the fields that the operator judges are declared."""

    def __init__(self, **declared: JsonSchemaValue) -> None:
        self.declared = declared

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        fields = {
            name: core_schema.typed_dict_field(
                core_schema.str_schema(strict=True, max_length=schema["maxLength"], min_length=1)
            )
            for name, schema in self.declared.items()
        }
        return core_schema.typed_dict_schema(fields, extra_behavior="allow") if fields else handler(source)

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        free: JsonSchemaValue = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        if self.declared:
            free |= {"properties": dict(self.declared), "required": sorted(self.declared)}
        return free


def _text(longest: int) -> JsonSchemaValue:
    return {"type": "string", "minLength": 1, "maxLength": longest}


Quantity: TypeAlias = Annotated[str, _IntOrText()]
FreeForm: TypeAlias = Annotated[dict[str, Any], _FreeForm()]
Positive: TypeAlias = Annotated[int, Between(1, 2**53 - 1, "set a whole number above 0")]
Layers: TypeAlias = Annotated[int, Between(1, 1024, "set the number that the model's config.json gives")]
Count: TypeAlias = Annotated[int, Between(0, 1024, "set the number that the model's config.json gives")]
Width: TypeAlias = Annotated[int, Between(1, 1_048_576, "set the number that the model's config.json gives")]

_DNS_LABEL: Final = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
ObjectName: TypeAlias = Annotated[
    str,
    Field(max_length=253),
    Form(
        rf"{_DNS_LABEL}(?:\.{_DNS_LABEL})*",
        "the name of an object",
        'write lower-case letters, digits and "-", as in "model-weights"',
    ),
]
AbsolutePath: TypeAlias = Annotated[
    str,
    Field(max_length=1024),
    Form(r"/(?:[^/:\s]+/?)*", "an absolute path", 'start it with "/", as in "/mnt/models/glm-5.3"'),
    Rule(
        '!self.split("/").exists(part, part == "..")',
        '"{self}" leads upwards; write the path without ".."',
        lambda value: ".." not in value.split("/"),
    ),
]
RelativePath: TypeAlias = Annotated[
    str,
    Field(max_length=1024),
    Form(
        r"[^/:\s]+(?:/[^/:\s]+)*/?",
        "a path inside the volume",
        'write it without a leading "/", as in "glm-5.3"',
    ),
    Rule(
        '!self.split("/").exists(part, part == "..")',
        '"{self}" leads out of the volume; write the path without ".."',
        lambda value: ".." not in value.split("/"),
    ),
]
LabelValue: TypeAlias = Annotated[
    str,
    Field(max_length=63),
    Form(
        r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?)?",
        "the value of a label",
        'write letters, digits, "-", "_" and ".", with a letter or digit at both ends',
    ),
]
_LABEL_KEY: Final = r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_LABEL_KEY_FORM: Final = re.compile(_LABEL_KEY)


def _no_key(keys: Mapping[str, object]) -> list[str]:
    return [key for key in keys if _LABEL_KEY_FORM.fullmatch(key) is None]


_KEY_MATCHES: Final = f"key.matches({cel_text(f'^{_LABEL_KEY}$')})"
# JSON schema has propertyNames for this; a structural schema has not.
LabelKeys: Final = Rule(
    f"self.all(key, {_KEY_MATCHES})",
    '{wrong} is not a key; write name or domain/name, as in "example.com/team"',
    lambda keys: not _no_key(keys),
    terms={"wrong": Term(f'self.map(key, !{_KEY_MATCHES}, key)', _no_key)},
)
Tokens: TypeAlias = Annotated[int, Between(1, 16_777_216, "set a number of tokens, for example 1048576")]
Sequences: TypeAlias = Annotated[int, Between(1, 4096, "set how many requests may run at once")]
Parallel: TypeAlias = Annotated[int, Between(1, 64, "set how many ways the model is split")]
Memory: TypeAlias = Annotated[
    str, _IntOrText(), IsQuantity("200Gi"), AtLeastQuantity("1Gi", "add the unit, for example 200Gi")
]


# --- model -------------------------------------------------------------------------------------------------------


class SecretKeyRef(Strict):
    """One key of a Secret in the same namespace; the operator never reads it, only the pod does."""

    name: ObjectName
    """Name of the Secret."""
    key: Annotated[
        str,
        Field(max_length=253),
        Form(
            r"[-._A-Za-z0-9]+", "a key of a Secret", 'write letters, digits, "-", "_" and ".", as in "token"'
        ),
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
        Annotated[str, _IntOrText(), IsQuantity("704Gi"), AtLeastQuantity("1Mi", "add the unit")] | None
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
    rope_head_dim: (
        Annotated[int, Between(0, 4096, "set qk_rope_head_dim of the model's config.json")] | None
    ) = None
    """MLA: width of the rotary part."""
    index_layers: Count | None = None
    """DSA: layers with an indexer of their own."""
    index_head_dim: Width | None = None
    """DSA: width of one indexer key."""
    index_top_k: Width | None = None
    """DSA: rows that a query reads."""
    mtp_layers: Annotated[int, Between(0, 64, "set num_nextn_predict_layers of the config.json")] | None = (
        None
    )
    """Layers for multi-token prediction."""
    max_positions: Positive | None = None
    """Positions that the model knows without scaling."""


def _config_bytes(value: Any) -> int:  # noqa: ANN401  a config.json holds anything
    return len(json.dumps(value, separators=(",", ":"), default=str))


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
    config: (
        Annotated[
            dict[str, Any],
            _FreeForm(),
            Rule(
                None,
                "{size} bytes are more than a config.json of 262144 bytes; keep the fields that describe the model",
                lambda value: _config_bytes(value) <= MAX_CONFIG_BYTES,
                terms={"size": Term("", _config_bytes)},
            ),
        ]
        | None
    ) = None
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
            lambda value: not value.replace(".", "", 1).isdigit() or float(value) >= 1,
        ),
    ]
    """By how much, as decimal text."""
    original_max_tokens: Tokens | None = None
    """Positions before scaling."""

    rules = (
        Rule(
            'self.type != "Yarn" || has(self.originalMaxTokens)',
            "type {type} needs originalMaxTokens; set the positions that the model was trained with, for example 32768",
            lambda scaling: (
                scaling.type is not RopeScalingType.YARN or scaling.original_max_tokens is not None
            ),
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
        Annotated[int, Between(64, 1_048_576, "set how many tokens one step may compute, for example 8192")]
        | None
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
            lambda pool: (
                (pool.size is not None) != (pool.for_requests is not None or pool.at_tokens is not None)
            ),
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
        Annotated[int, Between(50, 97, "set the percentage of HBM that the engine may use, for example 92")]
        | None
    ) = None
    """Percentage of HBM that the engine may use; 92 where it is absent."""
    cpu: Annotated[str, _IntOrText(), IsQuantity("16")] | None = None
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


def _reserved_flag(argument: str) -> bool:
    return argument.startswith("-") and flag_name(argument) in RESERVED_FLAGS


Argument: TypeAlias = Annotated[
    str,
    Field(max_length=4096),
    Rule(
        f'!self.startsWith("-") || !({FLAG_NAME_CEL} in {cel_list(tuple(RESERVED_FLAGS))})',
        '"{name}" {why}',
        lambda argument: not _reserved_flag(argument),
        terms={
            "name": Term(FLAG_NAME_CEL, flag_name),
            "why": Term(
                f"{cel_map(RESERVED_FLAGS)}[{FLAG_NAME_CEL}]",
                lambda argument: RESERVED_FLAGS[flag_name(argument)],
            ),
        },
    ),
    # The API server cannot know which abbreviations vLLM's parser completes; the operator says this.
    Rule(
        None,
        "{why}",
        lambda argument: _reserved_flag(argument) or check_argument(argument) is None,
        terms={"why": Term("", check_argument)},
    ),
    Rule(
        r'!self.matches("^-[^= ]* ")',
        '"{self}" is a flag and its value in one item, which the engine reads as one word; '
        'make two items of it, or write "--flag=value"',
        lambda argument: not (argument.startswith("-") and " " in argument.split("=")[0]),
    ),
]


class EnvVar(Strict):
    """One environment variable of the engine."""

    name: Annotated[
        str,
        Field(max_length=253),
        Form(r"[A-Za-z_][A-Za-z0-9_]*", "the name of a variable", 'write letters, digits and "_"'),
        Rule(
            f"!(self in {cel_list(tuple(RESERVED_ENV))})",
            '"{self}" {why}',
            lambda name: name not in RESERVED_ENV,
            terms={"why": Term(f"{cel_map(RESERVED_ENV)}[self]", lambda name: RESERVED_ENV[name])},
        ),
    ]
    """Name."""
    value: Annotated[str, Field(max_length=32_768)] | None = None
    """Value as text."""
    value_from: FreeForm | None = None
    """Source of the value, as in a Pod."""

    rules = (
        Rule(
            "!has(self.value) || !has(self.valueFrom)",
            "value and valueFrom of {name} are both set; keep one",
            lambda env: env.value is None or env.value_from is None,
        ),
    )


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
            ),
            Rule(
                '!self.endsWith(":latest")',
                '"{self}" changes under a running service; set the tag of a release, as in "vllm/vllm-openai:v0.33.0"',
                lambda image: not image.endswith(":latest"),
            ),
        ]
        | None
    ) = None
    """Image with a tag or digest; the pinned image of this release where it is absent."""
    version: (
        Annotated[
            str, Field(max_length=32), OneOf(ENGINE_VERSIONS, "a vLLM version that this operator knows")
        ]
        | None
    ) = None
    """vLLM release in the image; picks flags, log lines and metrics."""
    pull_policy: Annotated[PullPolicy, Field(strict=False)] | None = None
    """When the image is pulled."""
    pull_secrets: Annotated[list[SecretRef], Field(max_length=8)] | None = None
    """Secrets for the image's registry."""
    args: Annotated[list[Argument], Field(max_length=128)] | None = None
    """More arguments for vllm serve. Those that the operator owns are refused."""
    env: Annotated[list[EnvVar], Field(max_length=128)] | None = None
    """More environment for the engine. Variables that the operator owns are refused."""
    env_from: Annotated[list[FreeForm], Field(max_length=32)] | None = None
    """More environment for the engine, from ConfigMaps and Secrets, as in a Pod."""
    template_version: Annotated[int, Between(1, 1000, "set a version that this operator knows")] | None = None
    """Version of the pod template. It is fixed when the object is made; raise it to take new defaults."""

    rules = (
        Rule(
            '!has(self.args) || self.args.size() == 0 || self.args[0].startsWith("-")',
            'the first item, "{first}", is not a flag, and the model is named by spec.model; start with a flag',
            lambda engine: not engine.args or engine.args[0].startswith("-"),
            field="args",
            terms={"first": Term("self.args[0]", lambda engine: engine.args[0])},
        ),
    )


# --- where, how long, how reachable ------------------------------------------------------------------------------


class PlacementSpec(Strict):
    """Which nodes."""

    node_selector: Annotated[dict[str, LabelValue], Field(max_length=_MAX_MAP), LabelKeys] | None = None
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
_STALL = DurationBetween("1m", "24h", 'set how long an engine may show no progress, for example "10m"')
_GRACE = DurationBetween("1s", "4h", 'set how long a pod may take to stop, for example "15m"')
_WORKER = DurationBetween("5s", "2h", 'set how long unpinning host memory may take, for example "10m"')


def _seconds_in_order(low: str, high: str, why: str) -> Rule:
    def holds(block: object) -> bool:
        short, long = at_path(block, low), at_path(block, high)
        return (
            not isinstance(short, str)
            or not isinstance(long, str)
            or exact_seconds(short) <= exact_seconds(long)
        )

    return Rule(
        f"!({cel_has(low, high)}) || !{cel_is_duration(low)} || !{cel_is_duration(high)}"
        f" || duration(self.{low}) <= duration(self.{high})",
        f"{{{high}}} is shorter than {low}, which is {{{low}}}; {why}",
        holds,
        field=high,
    )


class LifecycleSpec(Strict):
    """How long things may take; each from the plan where it is absent."""

    startup_budget: Annotated[str, Field(max_length=32), _START[0], _START[1]] | None = None
    """From the container's start until it serves."""
    drain: Annotated[str, Field(max_length=32), _DRAIN[0], _DRAIN[1]] | None = None
    """For requests that are running when a pod is asked to stop."""
    stall: Annotated[str, Field(max_length=32), _STALL[0], _STALL[1]] | None = None
    """Requests are running and nothing has moved for this long: the engine hangs."""
    termination_grace: Annotated[str, Field(max_length=32), _GRACE[0], _GRACE[1]] | None = None
    """From the request to stop until the pod is killed; draining and unpinning have to fit."""
    worker_shutdown: Annotated[str, Field(max_length=32), _WORKER[0], _WORKER[1]] | None = None
    """For the workers to unpin host memory; one that is killed meanwhile can block its node."""

    rules = (
        _seconds_in_order(
            "drain", "terminationGrace", "a pod is killed in the middle of its drain, so raise it"
        ),
        _seconds_in_order(
            "workerShutdown", "terminationGrace", "a pod is killed while it unpins memory, so raise it"
        ),
    )


class DisruptionSpec(Strict):
    """What a drain of nodes may take away at once."""

    max_unavailable: (
        Annotated[int, Between(1, 1000, "set how many replicas a drain may stop; 0 would block it for ever")]
        | None
    ) = None
    """Replicas that may be down for it; 1 where it is absent. Only where replicas > 1."""


class NetworkingSpec(Strict):
    """How the engine is reached."""

    port: Annotated[int, Between(1, 65_535, "set a TCP port, for example 8000")] | None = None
    """Port of the Service and the engine; 8000 where it is absent."""
    network_policy: bool | None = None
    """Make a NetworkPolicy; true where it is absent."""
    api_key_secret: SecretKeyRef | None = None
    """Key that requests have to bring."""


# --- pod template ------------------------------------------------------------------------------------------------


def _own_keys(what: str) -> Rule:
    """Keys of labels or annotations outside the operator's prefixes."""
    mine = " || ".join(f'key.startsWith("{prefix}")' for prefix in RESERVED_KEY_PREFIXES)

    def taken(value: Mapping[str, str]) -> list[str]:
        return [key for key in value if key.startswith(RESERVED_KEY_PREFIXES)]

    return Rule(
        f"!self.exists(key, {mine})",
        f"{{taken}} belongs to the operator; remove it, or use {what} of your own domain",
        lambda value: not taken(value),
        terms={
            "taken": Term(
                f"self.map(key, {mine}, key)", taken
            )
        },
    )


_MOUNT_TAKEN: Final = " || ".join(
    f'self.mountPath == "{path}" || self.mountPath.startsWith("{path}/")' for path in RESERVED_PATHS
)


def _mount_taken(mount: Mapping[str, Any]) -> bool:
    return any(
        mount["mountPath"] == path or mount["mountPath"].startswith(f"{path}/") for path in RESERVED_PATHS
    )


def _own_name(what: str) -> Rule:
    return Rule(
        f'!self.name.startsWith("{RESERVED_NAME_PREFIX}") && self.name != "{ENGINE_CONTAINER}"',
        f'the name "{{name}}" belongs to the operator; give the {what} another',
        lambda value: (
            not value["name"].startswith(RESERVED_NAME_PREFIX) and value["name"] != ENGINE_CONTAINER
        ),
    )


VolumeObject: TypeAlias = Annotated[dict[str, Any], _FreeForm(name=_text(63)), _own_name("volume")]
ContainerObject: TypeAlias = Annotated[dict[str, Any], _FreeForm(name=_text(63)), _own_name("container")]
MountObject: TypeAlias = Annotated[
    dict[str, Any],
    _FreeForm(name=_text(63), mountPath=_text(1024)),
    Rule(
        f"!({_MOUNT_TAKEN})",
        f'the path "{{mountPath}}" belongs to the operator ({", ".join(RESERVED_PATHS)}); mount it elsewhere',
        lambda mount: not _mount_taken(mount),
    ),
    Rule(
        'self.mountPath.startsWith("/")',
        'the path "{mountPath}" is not absolute; start it with "/"',
        lambda mount: bool(mount["mountPath"].startswith("/")),
    ),
]


class PodTemplateOverlay(Strict):
    """Additions to the engine's pods. They cannot replace what the operator owns."""

    labels: Annotated[dict[str, LabelValue], Field(max_length=_MAX_MAP), LabelKeys, _own_keys("a label")] | None = (
        None
    )
    """More labels."""
    annotations: (
        Annotated[
            dict[str, Annotated[str, Field(max_length=16_384)]],
            Field(max_length=_MAX_MAP),
            LabelKeys,
            _own_keys("an annotation"),
        ]
        | None
    ) = None
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
    tensor, data, pipeline = (
        at_path(spec, name) or default for name, default in zip(names, defaults, strict=True)
    )
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
            terms={
                "product": Term(
                    f"\"%d x %d x %d = %d\".format([{', '.join((*_WAYS, ' * '.join(_WAYS)))}])",
                    lambda spec: (
                        f"{' x '.join(str(way) for way in _split(spec))} = {math.prod(_split(spec))}"
                    ),
                )
            },
        ),
        Rule(
            f'!({cel_has("kvTier.mode", "parallelism.pipeline")}) || self.kvTier.mode != "HiSparse"'
            " || self.parallelism.pipeline == 1",
            "pipeline is {parallelism.pipeline}, and HiSparse runs only with 1; "
            "set parallelism.pipeline to 1 and parallelism.tensor to the number of GPUs, or another kvTier.mode",
            lambda spec: (
                at_path(spec, "kvTier.mode") != TierMode.HISPARSE
                or at_path(spec, "parallelism.pipeline") in (None, 1)
            ),
            field="parallelism.pipeline",
            reads=("kvTier.mode",),
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
        terms={
            "size": Term(
                "self.metadata.name.size()",
                lambda manifest: len(str(at_path(manifest, "metadata.name"))),
            )
        },
    ),
    Rule(
        'self.metadata.name.matches("^[a-z]([-a-z0-9]*[a-z0-9])?$")',
        '"{metadata.name}" as metadata.name cannot name a Service too; start with a letter and write only lower-case letters, '
        'digits and "-", as in "glm-5-3"',
        lambda manifest: re.fullmatch("[a-z]([-a-z0-9]*[a-z0-9])?", str(at_path(manifest, "metadata.name"))) is not None,
    ),
)


# --- from text to object -----------------------------------------------------------------------------------------

_Path: TypeAlias = tuple[str | int, ...]


def parse_spec(
    raw: Mapping[str, object], *, metadata: Mapping[str, object] | None = None
) -> HiSparseInferenceSpec:
    """The spec that a manifest's `spec` holds, judged as the API server judges it, and by the rules it cannot know.

    `metadata` adds the rules for the object's name. Raises SpecErrors with every fault that can be told at once.
    """
    found = [] if metadata is None else _name_faults(metadata)
    try:
        spec = _validated(raw)
    except ValidationError as error:
        found += [SpecError(_field(path), message) for path, message in _all_faults(raw, error)]
        raise SpecErrors(found) from None
    if found:
        raise SpecErrors(found)
    return spec


def parse_manifest(manifest: Mapping[str, object]) -> HiSparseInferenceSpec:
    """The spec of a whole HiSparseInference as it stands in a file. Raises SpecErrors."""
    for field, wanted in (("apiVersion", API_VERSION), ("kind", KIND)):
        if (given := manifest.get(field)) != wanted:
            raise SpecErrors([SpecError(field, f'"{given}" is not what this release reads; set {wanted}')])
    spec, metadata = manifest.get("spec"), manifest.get("metadata")
    if not isinstance(spec, Mapping):
        raise SpecErrors([SpecError("spec", "is needed and not set; set model, context and resources")])
    return parse_spec(spec, metadata=metadata if isinstance(metadata, Mapping) else None)


def _name_faults(metadata: Mapping[str, object]) -> list[SpecError]:
    if metadata.get("name") is None:
        return []
    messages = (rule.fault({"metadata": metadata}) for rule in NAME_RULES)
    return [SpecError("metadata.name", message) for message in messages if message is not None]


def _validated(raw: object) -> HiSparseInferenceSpec:
    # Through JSON, because that is what the API server sees: "8" is no number there, and a tuple or date is no value.
    return HiSparseInferenceSpec.model_validate_json(
        json.dumps(raw, default=str), by_alias=True, by_name=False
    )


def _all_faults(raw: Mapping[str, object], error: ValidationError) -> list[tuple[_Path, str]]:
    """Every fault: a block's own rules are only judged once its fields are sound, so look again without the bad ones."""
    details = error.errors(include_url=False)
    faults = [(_path(detail), _message(detail)) for detail in details]
    bad = [_path(detail) for detail in details]
    try:
        _validated(_without(json.loads(json.dumps(raw, default=str)), bad))
    except ValidationError as again:
        for detail in again.errors(include_url=False):
            path, message = _path(detail), _message(detail)
            if (
                detail["type"] == RULE_ERROR
                and (path, message) not in faults
                and not _touches(detail, path, bad)
            ):
                faults.append((path, message))
    return faults


def _touches(detail: ErrorDetails, path: _Path, bad: list[_Path]) -> bool:
    """Whether a broken rule looks at a field that was left out, and so speaks of a hole that we made."""
    rule = detail["ctx"].get("rule")
    if not isinstance(rule, Rule):
        return False
    block = path[: len(path) - len(rule.field.split("."))] if rule.field else path
    names = [(*block, *name.split(".")) for name in rule.names()]
    if not names:
        return any(one[: len(block)] == block for one in bad)
    # A block that lost a field is still there, which is all that a rule asks of it; a list that lost an item is another.
    return any(
        name[: len(one)] == one or (one[: len(name)] == name and isinstance(one[len(name)], int))
        for name in names
        for one in bad
    )


def _without(raw: Any, paths: list[_Path]) -> Any:  # noqa: ANN401  JSON
    for path in sorted(paths, key=_depth_and_place, reverse=True):
        at = raw
        try:
            for step in path[:-1]:
                at = at[step]
            if path:
                del at[path[-1]]
        except (KeyError, IndexError, TypeError):
            continue
    return raw


def _depth_and_place(path: _Path) -> tuple[int, list[tuple[bool, int, str]]]:
    # later items of a list go first, so that earlier ones keep their place
    return len(path), [
        (isinstance(step, int), step if isinstance(step, int) else 0, str(step)) for step in path
    ]


# what pydantic adds to a location for its own unions and dictionary keys
_INNER_STEPS: Final = frozenset({"[key]", "str", "int", "function-after[str(), int]", "constrained-str"})


def _path(detail: ErrorDetails) -> _Path:
    return tuple(step for step in detail["loc"] if step not in _INNER_STEPS)


def _field(path: _Path) -> str:
    steps = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return f"spec{steps}"


def _message(detail: ErrorDetails) -> str:
    """What to tell for an error that pydantic found itself; rules bring their own words."""
    kind, given = detail["type"], _shown(detail.get("input"))
    context = detail.get("ctx", {})
    path = _path(detail)
    if kind == RULE_ERROR:
        return str(context["message"])
    if kind == "missing":
        return f"is needed and not set; {_meaning(path)}"
    if kind == "extra_forbidden":
        return f"unknown field{_near(str(path[-1]), _siblings(path))}"
    if kind == "enum":
        known = [word.strip("'") for word in str(context["expected"]).replace(" or ", ", ").split(", ")]
        return f"{given} is not known; set one of {', '.join(known)}{_near(given.strip(chr(34)), known)}"
    if kind in _TYPES:
        return f"{given} is not {_TYPES[kind]}"
    if kind in _LENGTHS:
        limit = next(iter(context[key] for key in ("max_length", "min_length") if key in context))
        return f"{given} is {_LENGTHS[kind].format(limit=limit)}"
    return f"{given}: {detail['msg']}"


_TYPES: Final[Mapping[str, str]] = {
    "int_type": "a whole number; write digits without quotes, as in 8",
    "int_parsing": "a whole number; write digits without quotes, as in 8",
    "int_from_float": "a whole number; write digits without a point, as in 8",
    "int_parsing_size": "a whole number of 64 bits; write a smaller one",
    "string_type": 'text; put it in quotes, as in "0.33"',
    "bool_type": "true or false; write one of them without quotes",
    "list_type": "a list; start each item with a dash",
    "dict_type": "a block of fields; indent its fields below it",
    "model_type": "a block of fields; indent its fields below it",
    "model_attributes_type": "a block of fields; indent its fields below it",
}
_LENGTHS: Final[Mapping[str, str]] = {
    "string_too_long": "too long; {limit} characters are the most",
    "string_too_short": "too short; {limit} characters are the least",
    "too_long": "too many; {limit} are the most",
    "too_short": "too few; {limit} are the least",
}


def _shown(value: object) -> str:
    if isinstance(value, str):
        return f'"{shortened(value)}"'
    return shortened(json.dumps(value, default=str))


def _near(name: str, known: list[str]) -> str:
    folded = {other.lower(): other for other in known}
    close = difflib.get_close_matches(name.lower(), folded, n=1)
    return f'; did you mean "{folded[close[0]]}"?' if close else ""


def _meaning(path: _Path) -> str:
    block = _block(path[:-1])
    for name, field in block.model_fields.items() if block else ():
        if to_camel(name) == path[-1] and field.description:
            return f"it says: {field.description[0].lower()}{field.description[1:]}".split("\n")[0]
    return "set it"


def _siblings(path: _Path) -> list[str]:
    block = _block(path[:-1])
    return [to_camel(name) for name in block.model_fields] if block else []


def _block(path: _Path) -> type[BaseModel] | None:
    """The model that stands at a path."""
    block: type[BaseModel] = HiSparseInferenceSpec
    for step in path:
        if isinstance(step, int):
            continue
        field = next((field for name, field in block.model_fields.items() if to_camel(name) == step), None)
        models = list(_models(field.annotation)) if field else []
        if not models:
            return None
        block = models[0]
    return block


def _models(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in getattr(annotation, "__args__", ()):
        yield from _models(inner)


# --- status ------------------------------------------------------------------------------------------------------


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


class EngineStatus(Reported):
    """What the engine itself said."""

    version: str | None = None
    """vLLM release."""
    gpu_blocks: int | None = None
    """KV blocks in HBM."""
    host_blocks: int | None = None
    """KV blocks in the host pool."""
    steady_state_concurrency: str | None = None
    """Requests of maxTokens that run at once."""


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
    free_nodes: int | None = None
    """Candidate nodes with enough free for one more replica."""
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
    """Revision that serves."""
    update_revision: str | None = None
    """Revision that is wanted."""
    mode: ModeStatus | None = None
    """The KV tier in force."""
    plan: PlanStatus | None = None
    """The plan of today's operator for this spec."""
    engine: EngineStatus | None = None
    """What the engine itself said."""
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
