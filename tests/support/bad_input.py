"""Manifests that people write by mistake, what has to be said about each, and the good ones that they are made from.

One table for everybody who judges a spec: `hisparse.spec.parse_spec`, the API server with the CRD, `hisparse plan -f`
and the operator. `judged_by` says who can know:

- rule: a rule with the same words in Python and in the CRD;
- schema: type, enum, length and required fields, in the API server's own words there;
- operator: `parse_spec` alone; the API server accepts the object;
- planner: needs the model or the plan; both accept it.
"""

import copy
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

SMALLEST: dict[str, Any] = {
    "apiVersion": "inference.hisparse.dev/v1alpha1",
    "kind": "HiSparseInference",
    "metadata": {"name": "glm-5-3"},
    "spec": {
        "model": {"huggingFace": {"repo": "zai-org/GLM-5.3-FP8"}},
        "context": {"maxTokens": 1048576},
        "resources": {"gpus": 8},
    },
}

# every field once; unions take one branch, the others are in GOOD
FULL_SPEC: dict[str, Any] = {
    "model": {
        "huggingFace": {
            "repo": "zai-org/GLM-5.3-FP8",
            "revision": "0123456789abcdef0123456789abcdef01234567",
            "tokenSecret": {"name": "hub", "key": "token"},
        },
        "servedName": "glm-5.3",
        "trustRemoteCode": False,
        "cache": {"pvc": {"claimName": "weights"}},
        "config": {"architectures": ["GlmMoeDsaForCausalLM"], "rope_scaling": None},
        "facts": {
            "weights": "704Gi",
            "parameterCount": 753000000000,
            "architecture": "GlmMoeDsaForCausalLM",
            "layers": 78,
            "hiddenSize": 6144,
            "attentionHeads": 64,
            "kvHeads": 64,
            "headDim": 192,
            "kvLoraRank": 512,
            "ropeHeadDim": 64,
            "indexLayers": 21,
            "indexHeadDim": 128,
            "indexTopK": 2048,
            "mtpLayers": 1,
            "maxPositions": 1048576,
        },
    },
    "context": {
        "maxTokens": 1048576,
        "kvCacheDtype": "Fp8",
        "typicalTokens": 131072,
        "maxConcurrentRequests": 32,
        "maxBatchedTokens": 8192,
        "ropeScaling": {"type": "Yarn", "factor": "4.0", "originalMaxTokens": 262144},
    },
    "kvTier": {
        "mode": "HiSparse",
        "hostPool": {"size": "384Gi"},
        "sharing": "RequireShared",
        "hiSparse": {
            "deviceBufferTokens": 6144,
            "eagerHostMirror": True,
            "indexerOffload": {"enabled": True, "size": "16Gi"},
        },
    },
    "resources": {
        "gpus": 8,
        "gpuResourceName": "nvidia.com/gpu",
        "gpuProducts": ["NVIDIA-H200"],
        "gpuMemoryUtilizationPercent": 92,
        "cpu": 32,
        "memory": "900Gi",
        "ephemeralStorage": "1Ti",
    },
    "parallelism": {"tensor": 8, "data": 1, "pipeline": 1, "expert": True},
    "engine": {
        "image": "registry.example.com:5000/vllm/vllm-openai:v0.33.0",
        "version": "0.33",
        "pullPolicy": "IfNotPresent",
        "pullSecrets": [{"name": "registry"}],
        "args": ["--enable-auto-tool-choice", "--tool-call-parser", "glm47", "--kv-cache-metrics", "--seed=1"],
        "env": [
            {"name": "VLLM_LOG_STATS_INTERVAL", "value": "5"},
            {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        ],
        "envFrom": [{"configMapRef": {"name": "engine"}}],
        "templateVersion": 1,
    },
    "replicas": 2,
    "placement": {
        "nodeSelector": {"example.com/pool": "gpu"},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "affinity": {"nodeAffinity": {}},
        "topologySpread": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}],
        "schedulerName": "default-scheduler",
        "priorityClassName": "system-cluster-critical",
        "runtimeClassName": "nvidia",
    },
    "lifecycle": {
        "startupBudget": "40m",
        "drain": "5m",
        "terminationGrace": "20m",
        "workerShutdown": "10m",
    },
    "disruption": {"maxUnavailable": 1},
    "networking": {"port": 8000, "networkPolicy": True, "apiKeySecret": {"name": "api", "key": "key"}},
    "podTemplate": {
        "labels": {"team": "search"},
        "annotations": {"example.com/note": "long contexts, no limits"},
        "volumes": [{"name": "scratch", "emptyDir": {}}],
        "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
        "sidecars": [{"name": "logs", "image": "example.com/logs:1"}],
        "securityContext": {"runAsUser": 1000},
        "containerSecurityContext": {"readOnlyRootFilesystem": True},
    },
    "planOnly": False,
    "paused": False,
    "restartToken": "2026-11-29",
}


def patched(base: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON merge patch: blocks are merged, None takes a field away, anything else replaces it."""
    result = copy.deepcopy(dict(base))
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, Mapping):
            below = result.get(key)
            result[key] = patched(below if isinstance(below, dict) else {}, value)
        else:
            result[key] = copy.deepcopy(value)
    return result


GOOD: dict[str, dict[str, Any]] = {
    "the smallest": SMALLEST,
    "every field": patched(SMALLEST, {"spec": FULL_SPEC}),
    "weights on a claim, and a pool for a number of requests": patched(
        SMALLEST,
        {
            "spec": {
                "model": {"huggingFace": None, "pvc": {"claimName": "weights", "path": "glm/5.3"}},
                "kvTier": {"hostPool": {"forRequests": 8, "atTokens": 1048576}},
            }
        },
    ),
    "weights on the node, without a tier, scaled to nothing": patched(
        SMALLEST,
        {
            "spec": {
                "model": {"huggingFace": None, "hostPath": {"path": "/mnt/models/glm-5.3"}},
                "kvTier": {"mode": "None"},
                "context": {"kvCacheDtype": "Bf16"},
                "replicas": 0,
            }
        },
    ),
    "a digest, pipeline without a tier, a bare number of bytes": patched(
        SMALLEST,
        {
            "spec": {
                "model": {"cache": {"hostPath": {"path": "/var/cache/models"}}},
                "engine": {"image": f"vllm/vllm-openai@sha256:{'0' * 64}", "args": ["--hf-config-path", "x=y z"]},
                "kvTier": {"mode": "Offload", "hostPool": {"size": 214748364800}},
                "parallelism": {"tensor": 4, "pipeline": 2},
            }
        },
    ),
    "whole numbers that are written as floats": patched(
        SMALLEST,
        {"spec": {"context": {"maxTokens": 1e6}, "resources": {"gpus": 8.0, "memory": 1e12}, "replicas": 2.0}},
    ),
}


@dataclass(frozen=True)
class BadInput:
    """One mistake: a merge patch over the smallest manifest, where it has to show, and words that have to be there."""

    id: str
    field: str
    must_mention: tuple[str, ...]
    spec: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    judged_by: Literal["rule", "schema", "operator", "planner"] = "rule"

    @property
    def manifest(self) -> dict[str, Any]:
        """The whole object."""
        return patched(SMALLEST, {"spec": self.spec, "metadata": self.metadata})


def _arg(*words: str) -> dict[str, Any]:
    return {"engine": {"args": list(words)}}


def _flag(sentence: str, word: str, *mentions: str) -> BadInput:
    return BadInput(
        sentence, "spec.engine.args[0]", (word.split("=", maxsplit=1)[0].replace("_", "-"), *mentions), _arg(word)
    )


_CONFIG = "spec.model.config"
_LIMIT = 46

BAD_INPUT: tuple[BadInput, ...] = (
    # --- the model
    BadInput(
        "two model sources",
        "spec.model",
        ("huggingFace", "pvc", "exactly one"),
        {"model": {"pvc": {"claimName": "weights"}}},
    ),
    BadInput("no model source", "spec.model", ("exactly one", "[]"), {"model": {"huggingFace": None}}),
    BadInput(
        "a repository without its owner",
        "spec.model.huggingFace.repo",
        ('"GLM-5.3"', "owner/name"),
        {"model": {"huggingFace": {"repo": "GLM-5.3"}}},
    ),
    BadInput(
        "a repository as a web address",
        "spec.model.huggingFace.repo",
        ("https://", "owner/name"),
        {"model": {"huggingFace": {"repo": "https://huggingface.co/zai-org/GLM-5.3"}}},
    ),
    BadInput(
        "a claim's name with capitals",
        "spec.model.pvc.claimName",
        ('"Weights"', "lower-case"),
        {"model": {"huggingFace": None, "pvc": {"claimName": "Weights"}}},
    ),
    BadInput(
        "a path that leaves the volume",
        "spec.model.pvc.path",
        ('"../etc"', "out of the volume"),
        {"model": {"huggingFace": None, "pvc": {"claimName": "weights", "path": "../etc"}}},
    ),
    BadInput(
        "a relative path on the node",
        "spec.model.hostPath.path",
        ('"models/glm"', "absolute"),
        {"model": {"huggingFace": None, "hostPath": {"path": "models/glm"}}},
    ),
    BadInput(
        "a cache in two places",
        "spec.model.cache",
        ("exactly one", "pvc", "hostPath"),
        {"model": {"cache": {"pvc": {"claimName": "c"}, "hostPath": {"path": "/c"}}}},
    ),
    BadInput(
        "a cache for a model that is not downloaded",
        "spec.model.cache",
        ("downloads nothing", "remove cache"),
        {"model": {"huggingFace": None, "pvc": {"claimName": "w"}, "cache": {"pvc": {"claimName": "c"}}}},
    ),
    BadInput(
        "a served name in unicode with a space",
        "spec.model.servedName",
        ('"größtes modell"', "letters, digits"),
        {"model": {"servedName": "größtes modell"}},
    ),
    BadInput(
        "weights without a unit",
        "spec.model.facts.weights",
        ('"704"', "1Mi", "unit"),
        {"model": {"facts": {"weights": 704}}},
    ),
    BadInput(
        "a model of zero layers", "spec.model.facts.layers", ("0", "1 and 1024"), {"model": {"facts": {"layers": 0}}}
    ),
    # --- the context
    BadInput("no context length", "spec.context.maxTokens", (), {"context": {"maxTokens": None}}, judged_by="schema"),
    BadInput(
        "a context of nothing", "spec.context.maxTokens", ("0", "16777216", "1048576"), {"context": {"maxTokens": 0}}
    ),
    BadInput("a negative context", "spec.context.maxTokens", ("-1", "16777216"), {"context": {"maxTokens": -1}}),
    BadInput(
        "a context with a suffix", "spec.context.maxTokens", (), {"context": {"maxTokens": "1M"}}, judged_by="schema"
    ),
    BadInput(
        "a context beyond any model",
        "spec.context.maxTokens",
        ("100000000", "16777216"),
        {"context": {"maxTokens": 100000000}},
    ),
    BadInput(
        "a dtype in the engine's spelling",
        "spec.context.kvCacheDtype",
        ("fp8", "Fp8"),
        {"context": {"kvCacheDtype": "fp8"}},
        judged_by="schema",
    ),
    BadInput(
        "typical requests longer than the longest",
        "spec.context.typicalTokens",
        ("2097152", "1048576", "maxTokens"),
        {"context": {"typicalTokens": 2097152}},
    ),
    BadInput(
        "no concurrent request",
        "spec.context.maxConcurrentRequests",
        ("0", "1 and 4096"),
        {"context": {"maxConcurrentRequests": 0}},
    ),
    BadInput(
        "a step smaller than its requests",
        "spec.context.maxBatchedTokens",
        ("128", "256", "raise maxBatchedTokens"),
        {"context": {"maxBatchedTokens": 128, "maxConcurrentRequests": 256}},
    ),
    BadInput(
        "a scaling factor that is no number",
        "spec.context.ropeScaling.factor",
        ('"four"', '"4.0"'),
        {"context": {"ropeScaling": {"type": "Linear", "factor": "four"}}},
    ),
    BadInput(
        "a scaling factor below one",
        "spec.context.ropeScaling.factor",
        ('"0.5"', "below 1"),
        {"context": {"ropeScaling": {"type": "Linear", "factor": "0.5"}}},
    ),
    BadInput(
        "YaRN without the trained length",
        "spec.context.ropeScaling",
        ("Yarn", "originalMaxTokens"),
        {"context": {"ropeScaling": {"type": "Yarn", "factor": "4.0"}}},
    ),
    # --- the tier
    BadInput(
        "a mode in lower case",
        "spec.kvTier.mode",
        ("hisparse", "HiSparse"),
        {"kvTier": {"mode": "hisparse"}},
        judged_by="schema",
    ),
    BadInput(
        "the tuning of a tier that is off",
        "spec.kvTier.hiSparse",
        ('"Offload"', "HiSparse"),
        {"kvTier": {"mode": "Offload", "hiSparse": {"deviceBufferTokens": 4096}}},
    ),
    BadInput(
        "a host pool without a tier",
        "spec.kvTier.hostPool",
        ('"None"', "Offload"),
        {"kvTier": {"mode": "None", "hostPool": {"size": "200Gi"}}},
    ),
    BadInput(
        "both forms of a host pool",
        "spec.kvTier.hostPool",
        ("size", "forRequests", "both"),
        {"kvTier": {"hostPool": {"size": "200Gi", "forRequests": 2, "atTokens": 1048576}}},
    ),
    BadInput(
        "an empty host pool", "spec.kvTier.hostPool", ("neither", "remove hostPool"), {"kvTier": {"hostPool": {}}}
    ),
    BadInput(
        "a host pool for requests of unknown length",
        "spec.kvTier.hostPool",
        ("atTokens", "set both"),
        {"kvTier": {"hostPool": {"forRequests": 2}}},
    ),
    BadInput(
        "a host pool in disk-shop units",
        "spec.kvTier.hostPool.size",
        ('"200GB"', '"200Gi"'),
        {"kvTier": {"hostPool": {"size": "200GB"}}},
    ),
    BadInput(
        "a host pool with a space",
        "spec.kvTier.hostPool.size",
        ('"200 Gi"', "space"),
        {"kvTier": {"hostPool": {"size": "200 Gi"}}},
    ),
    BadInput(
        "a host pool of 200 bytes",
        "spec.kvTier.hostPool.size",
        ('"200"', "1Gi", "bytes"),
        {"kvTier": {"hostPool": {"size": 200}}},
    ),
    BadInput(
        "a negative host pool",
        "spec.kvTier.hostPool.size",
        ('"-200Gi"', "above 0"),
        {"kvTier": {"hostPool": {"size": "-200Gi"}}},
    ),
    BadInput(
        "a host pool for requests longer than the longest",
        "spec.kvTier.hostPool.atTokens",
        ("2097152", "1048576", "context.maxTokens"),
        {"kvTier": {"hostPool": {"forRequests": 2, "atTokens": 2097152}}},
    ),
    BadInput(
        "a device buffer between two blocks",
        "spec.kvTier.hiSparse.deviceBufferTokens",
        ("4100", "64"),
        {"kvTier": {"hiSparse": {"deviceBufferTokens": 4100}}},
    ),
    BadInput(
        "a device buffer past its index",
        "spec.kvTier.hiSparse.deviceBufferTokens",
        ("65536", "32768"),
        {"kvTier": {"hiSparse": {"deviceBufferTokens": 65536}}},
    ),
    BadInput(
        "memory for an offload that is off",
        "spec.kvTier.hiSparse.indexerOffload.size",
        ("16Gi", "enabled"),
        {"kvTier": {"hiSparse": {"indexerOffload": {"enabled": False, "size": "16Gi"}}}},
    ),
    # --- resources and parallelism
    BadInput("no GPU", "spec.resources.gpus", ("0", "1 and 64", "number of GPUs"), {"resources": {"gpus": 0}}),
    BadInput("a negative number of GPUs", "spec.resources.gpus", ("-8", "1 and 64"), {"resources": {"gpus": -8}}),
    BadInput("GPUs in quotes", "spec.resources.gpus", (), {"resources": {"gpus": "8"}}, judged_by="schema"),
    BadInput("half a GPU", "spec.resources.gpus", (), {"resources": {"gpus": 0.5}}, judged_by="schema"),
    BadInput(
        "all of HBM",
        "spec.resources.gpuMemoryUtilizationPercent",
        ("100", "50 and 97", "92"),
        {"resources": {"gpuMemoryUtilizationPercent": 100}},
    ),
    BadInput(
        "utilisation as a fraction",
        "spec.resources.gpuMemoryUtilizationPercent",
        (),
        {"resources": {"gpuMemoryUtilizationPercent": 0.92}},
        judged_by="schema",
    ),
    BadInput(
        "a GPU resource without its domain",
        "spec.resources.gpuResourceName",
        ('"gpu"', '"nvidia.com/gpu"'),
        {"resources": {"gpuResourceName": "gpu"}},
    ),
    BadInput(
        "a GPU product as people say it",
        "spec.resources.gpuProducts[0]",
        ('"NVIDIA H200"', "label"),
        {"resources": {"gpuProducts": ["NVIDIA H200"]}},
    ),
    BadInput("memory in words", "spec.resources.memory", ('"lots"', '"200Gi"'), {"resources": {"memory": "lots"}}),
    BadInput(
        "parallelism that is not the number of GPUs",
        "spec.parallelism",
        ("4 x 1 x 1 = 4", "8", "product"),
        {"parallelism": {"tensor": 4}},
    ),
    BadInput(
        "pipeline stages with HiSparse",
        "spec.parallelism.pipeline",
        ("2", "HiSparse", "parallelism.pipeline to 1"),
        {"kvTier": {"mode": "HiSparse"}, "parallelism": {"tensor": 4, "pipeline": 2}},
    ),
    BadInput(
        "a split into nothing",
        "spec.parallelism.data",
        ("0", "1 and 64"),
        {"parallelism": {"data": 0}},
    ),
    BadInput(
        "a path with a control character",
        "spec.model.pvc.path",
        ("a path inside the volume",),
        {"model": {"huggingFace": None, "pvc": {"claimName": "weights", "path": "a\x1b[2Jb"}}},
    ),
    BadInput("an argument with a NUL", "spec.engine.args[0]", ("NUL", "remove it"), {"engine": {"args": ["a\0b"]}}),
    BadInput(
        "a variable with a NUL",
        "spec.engine.env[0].value",
        ("NUL", "remove it"),
        {"engine": {"env": [{"name": "A", "value": "a\0b"}]}},
    ),
    # --- the engine
    BadInput(
        "an image without a tag",
        "spec.engine.image",
        ('"vllm/vllm-openai"', "tag", "v0.33.0"),
        {"engine": {"image": "vllm/vllm-openai"}},
    ),
    BadInput(
        "a registry's port is no tag",
        "spec.engine.image",
        ('"localhost:5000/vllm"', "tag"),
        {"engine": {"image": "localhost:5000/vllm"}},
    ),
    BadInput(
        "an image that moves",
        "spec.engine.image",
        (":latest", "release"),
        {"engine": {"image": "vllm/vllm-openai:latest"}},
    ),
    BadInput(
        "an image with a capital letter and a space",
        "spec.engine.image",
        ('"VLLM openai:1"', "registry/name:tag"),
        {"engine": {"image": "VLLM openai:1"}},
    ),
    BadInput(
        "an engine before HiSparse",
        "spec.engine.version",
        ('"0.29"', "0.33"),
        {"engine": {"version": "0.29"}},
    ),
    BadInput(
        "a version that YAML reads as a number",
        "spec.engine.version",
        (),
        {"engine": {"version": 0.33}},
        judged_by="schema",
    ),
    _flag("an argument that the plan owns", "--max-model-len=4096", "context.maxTokens"),
    _flag("an argument in underscores", "--max_model_len=4096", "context.maxTokens"),
    _flag("an argument in two items", "--kv-transfer-config", "kvTier.mode"),
    BadInput(
        "an argument with a path into its value",
        "spec.engine.args[0]",
        ("--kv-transfer-config", "kvTier.mode"),
        _arg("--kv-transfer-config.kv_connector=HiSparseConnector"),
    ),
    _flag("the KV dtype past the plan", "--kv-cache-dtype=fp8", "context.kvCacheDtype"),
    _flag("the tier's tuning past the plan", "--attention-config={}", "kvTier.mode", "kvTier.hiSparse"),
    _flag("the split past the plan", "--tensor-parallel-size=4", "parallelism.tensor"),
    _flag("the split in short", "-tp=4", "parallelism.tensor"),
    _flag("concurrency past the plan", "--max-num-seqs=2", "context.maxConcurrentRequests"),
    _flag("the step past the plan", "--max-num-batched-tokens=2048", "context.maxBatchedTokens"),
    _flag("HBM past the plan", "--gpu-memory-utilization=0.92", "resources.gpuMemoryUtilizationPercent"),
    _flag("the name past the object", "--served-model-name=x", "model.servedName"),
    _flag("the port past the Service", "--port=80", "networking.port"),
    _flag("draining past the grace period", "--shutdown-timeout=5", "lifecycle.drain"),
    _flag("metrics switched off", "--disable-log-stats", "metric", "remove"),
    _flag("code from the hub", "--trust-remote-code", "model.trustRemoteCode"),
    _flag("Ray", "--distributed-executor-backend=ray", "multiply the host pool"),
    _flag("admission that HiSparse refuses", "--no-scheduler-reserve-full-isl", "HiSparse refuses"),
    _flag("swap space, which is gone", "--swap-space=128", "does not exist", "kvTier.hostPool.size"),
    _flag("a build flag that never was", "--enable-hybrid-kv", "does not exist", "kvTier.mode"),
    _flag("a ratio that never was", "--moekv-sparse-ratio=0.5", "does not exist"),
    _flag("a window that never was", "--kv-cache-profiling-window=8", "does not exist", "--kv-cache-metrics"),
    _flag("RoPE scaling, which is gone", "--rope-scaling={}", "does not exist", "context.ropeScaling"),
    BadInput(
        "an argument in short for one that the plan owns",
        "spec.engine.args[1]",
        ('"--max-model"', "--max-model-len", "context.maxTokens"),
        _arg("--enforce-eager", "--max-model=4096"),
        judged_by="operator",
    ),
    BadInput(
        "a flag and its value in one item",
        "spec.engine.args[0]",
        ('"--seed 1"', "two items"),
        _arg("--seed 1"),
    ),
    BadInput(
        "the model among the arguments",
        "spec.engine.args",
        ('"zai-org/GLM-5.3"', "spec.model"),
        _arg("zai-org/GLM-5.3", "--seed=1"),
    ),
    BadInput(
        "a variable that the operator owns",
        "spec.engine.env[0].name",
        ('"VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS"', "lifecycle.workerShutdown"),
        {"engine": {"env": [{"name": "VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS", "value": "5"}]}},
    ),
    BadInput(
        "a variable with two values",
        "spec.engine.env[0]",
        ("A", "keep one"),
        {"engine": {"env": [{"name": "A", "value": "1", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}]}},
    ),
    BadInput(
        "a variable that is set twice",
        "spec.engine.env",
        ("B", "more than once", "keep one"),
        {"engine": {"env": [{"name": name, "value": "1"} for name in ("A", "B", "B")]}},
    ),
    # --- the rest
    BadInput("fewer than no replicas", "spec.replicas", ("-1", "0 and 1000"), {"replicas": -1}),
    BadInput("a duration without a unit", "spec.lifecycle.drain", ('"300"', '"15m"'), {"lifecycle": {"drain": "300"}}),
    BadInput("a duration as a number", "spec.lifecycle.drain", (), {"lifecycle": {"drain": 300}}, judged_by="schema"),
    BadInput("a drain of a day", "spec.lifecycle.drain", ('"24h"', "0s and 2h"), {"lifecycle": {"drain": "24h"}}),
    BadInput(
        "a grace period shorter than the drain",
        "spec.lifecycle.terminationGrace",
        ("1m", "drain", "10m"),
        {"lifecycle": {"drain": "10m", "terminationGrace": "1m"}},
    ),
    BadInput(
        "a disruption budget that blocks every drain",
        "spec.disruption.maxUnavailable",
        ("0", "block"),
        {"disruption": {"maxUnavailable": 0}},
    ),
    BadInput("a port that is none", "spec.networking.port", ("70000", "65535"), {"networking": {"port": 70000}}),
    BadInput(
        "a secret's key with a slash",
        "spec.networking.apiKeySecret.key",
        ('"a/b"', "letters, digits"),
        {"networking": {"apiKeySecret": {"name": "api", "key": "a/b"}}},
    ),
    BadInput(
        "a label of the operator",
        "spec.podTemplate.labels",
        ("inference.hisparse.dev/inference", "belongs to the operator"),
        {"podTemplate": {"labels": {"inference.hisparse.dev/inference": "x"}}},
    ),
    BadInput(
        "a label's key with a space",
        "spec.podTemplate.labels",
        ("my team", "domain/name"),
        {"podTemplate": {"labels": {"my team": "x"}}},
    ),
    BadInput(
        "a mount over the shared memory",
        "spec.podTemplate.volumeMounts[0]",
        ("/dev/shm", "belongs to the operator"),
        {"podTemplate": {"volumeMounts": [{"name": "a", "mountPath": "/dev/shm"}]}},
    ),
    BadInput(
        "a volume with the operator's prefix",
        "spec.podTemplate.volumes[0]",
        ("hisparse-shm", "belongs to the operator"),
        {"podTemplate": {"volumes": [{"name": "hisparse-shm", "emptyDir": {}}]}},
    ),
    BadInput(
        "a second engine container",
        "spec.podTemplate.sidecars[0]",
        ('"engine"', "belongs to the operator"),
        {"podTemplate": {"sidecars": [{"name": "engine", "image": "x:1"}]}},
    ),
    BadInput(
        "an annotation of 1 MiB",
        "spec.podTemplate.annotations",
        ("16384",),
        {"podTemplate": {"annotations": {"blob": "x" * 2**20}}},
        judged_by="schema",
    ),
    BadInput(
        "an argument of 1 MiB", "spec.engine.args[0]", ("4096",), _arg(f"--seed={'1' * 2**20}"), judged_by="schema"
    ),
    BadInput(
        "a config.json of 1 MiB",
        _CONFIG,
        ("262144", "bytes"),
        {"model": {"config": {"vocabulary": "x" * 2**20}}},
        judged_by="operator",
    ),
    BadInput(
        "a field that is nearly right",
        "spec.context.maxToken",
        ("maxToken",),
        {"context": {"maxToken": 1048576}},
        judged_by="schema",
    ),
    BadInput(
        "a block in place of a number",
        "spec.context.maxTokens",
        (),
        {"context": {"maxTokens": {"a": 1}}},
        judged_by="schema",
    ),
    BadInput(
        "a name that makes labels too long",
        "metadata.name",
        ("47", str(_LIMIT), "shorter"),
        metadata={"name": "a" * (_LIMIT + 1)},
    ),
    BadInput(
        "a name that starts with a digit",
        "metadata.name",
        ('"5-glm"', "letter"),
        metadata={"name": "5-glm"},
    ),
    BadInput(
        "a name with a dot, which no Service can have",
        "metadata.name",
        ('"glm-5.3"', "Service"),
        metadata={"name": "glm-5.3"},
    ),
    BadInput("a name in unicode", "metadata.name", ("größe",), metadata={"name": "größe"}, judged_by="schema"),
    BadInput(
        "a mount above what the operator mounts",
        "spec.podTemplate.volumeMounts[0]",
        ("/dev", "belongs to the operator"),
        {"podTemplate": {"volumeMounts": [{"name": "devices", "mountPath": "/dev"}]}},
    ),
    BadInput(
        "a mount of the operator's own volume",
        "spec.podTemplate.volumeMounts[0]",
        ("hisparse-cache", "belongs to the operator"),
        {"podTemplate": {"volumeMounts": [{"name": "hisparse-cache", "mountPath": "/data"}]}},
    ),
    BadInput(
        "a mount with two slashes",
        "spec.podTemplate.volumeMounts[0]",
        ("//dev/shm", "single"),
        {"podTemplate": {"volumeMounts": [{"name": "shm", "mountPath": "//dev/shm"}]}},
    ),
    _flag("draft layers that nobody planned", "--speculative-config", "does not plan"),
    _flag("TLS that the launcher cannot speak", "--ssl-keyfile", "plain HTTP"),
    # --- what only the plan can know
    BadInput(
        "a context above what the model knows",
        "spec.context.maxTokens",
        ("2097152", "1048576"),
        {"context": {"maxTokens": 2097152}},
        judged_by="planner",
    ),
    BadInput(
        "a host pool under one request",
        "spec.kvTier.hostPool.size",
        ("40", "50.01 GiB"),
        {"kvTier": {"mode": "HiSparse", "hostPool": {"size": "40Gi"}}},
        judged_by="planner",
    ),
    BadInput(
        "a split that does not divide the heads",
        "spec.resources.gpus",
        ("7", "64"),
        {"resources": {"gpus": 7}},
        judged_by="planner",
    ),
    BadInput(
        "an architecture that nobody knows",
        "spec.model.facts.architecture",
        ("NobodyForCausalLM", "GlmMoeDsaForCausalLM"),
        {"model": {"config": {"architectures": ["NobodyForCausalLM"]}}},
        judged_by="planner",
    ),
    BadInput(
        "a config.json that lacks a field",
        "spec.model.facts.layers",
        ("num_hidden_layers", "set it here"),
        {"model": {"config": {"architectures": ["GlmMoeDsaForCausalLM"], "num_attention_heads": 64, "hidden_size": 8}}},
        judged_by="planner",
    ),
    BadInput(
        "layers of a kind that cannot be sized",
        "spec.model.config",
        ("layer_types", "martian_attention", "model.facts.architecture"),
        {
            "model": {
                "config": {
                    "architectures": ["MistralForCausalLM"],
                    "num_hidden_layers": 32,
                    "num_attention_heads": 32,
                    "hidden_size": 4096,
                    "max_position_embeddings": 2097152,
                    "layer_types": ["martian_attention"] * 32,
                }
            }
        },
        judged_by="planner",
    ),
    BadInput(
        "a pool to share with nobody",
        "spec.kvTier.sharing",
        ("RequireShared", "tensor parallel size 1"),
        {"resources": {"gpus": 1}, "kvTier": {"mode": "HiSparse", "sharing": "RequireShared"}},
        judged_by="planner",
    ),
    BadInput(
        "hot rows for less than one query",
        "spec.kvTier.hiSparse.deviceBufferTokens",
        ("1024", "2048"),
        {"kvTier": {"mode": "HiSparse", "hiSparse": {"deviceBufferTokens": 1024}}},
        judged_by="planner",
    ),
    BadInput(
        "HiSparse for a dense model",
        "spec.kvTier.mode",
        ("HiSparse", "LlamaForCausalLM"),
        {
            "model": {"huggingFace": {"repo": "meta-llama/Llama-3.1-70B-Instruct"}},
            "context": {"maxTokens": 131072},
            "kvTier": {"mode": "HiSparse"},
        },
        judged_by="planner",
    ),
    BadInput(
        "scaling for a model that needs none",
        "spec.context.ropeScaling",
        ("1048576",),
        {"context": {"ropeScaling": {"type": "Linear", "factor": "2.0"}}},
        judged_by="planner",
    ),
)
