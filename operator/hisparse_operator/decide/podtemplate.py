"""The pod of one revision, rendered once: template version 1.

A change here that would alter the pod of the same intent belongs to a new template version, since frozen revisions
are never rendered again and new ones must not differ from them by accident.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from hisparse import engine
from hisparse.model import ModelFacts, served_name
from hisparse.plan import Plan
from hisparse.reserved import LAUNCHER_PORT, SHM_VOLUME
from hisparse.rounding import cdiv
from hisparse.spec import HiSparseInferenceSpec, PodTemplateOverlay
from hisparse.units import format_quantity, parse_quantity
from hisparse_operator.decide.capacity import CPU_PER_GPU, GPU_RESOURCE, PRODUCT_LABEL, tolerations_of
from hisparse_operator.decide.identity import Parent
from hisparse_operator.decide.planning import Planned, download_bytes, engine_version
from hisparse_operator.decide.pods import ENGINE
from hisparse_operator.settings import OperatorSettings

DRAIN_KEY_HEADER: Final = "X-Hisparse-Drain-Key"
HTTP: Final = "http"
LAUNCHER: Final = "launcher"
PLAN_FOLDER: Final = "/etc/hisparse"
MODELS: Final = "/models"
MODEL_CACHE: Final = "/models/cache"
CACHE: Final = "/cache"
INSTALLED: Final = "/hisparse"
TMP: Final = "/tmp"
_PLAN, _CACHE, _TMP = "hisparse-plan", "hisparse-cache", "hisparse-tmp"
_MODELS, _MODEL_CACHE, _LAUNCHER = "hisparse-models", "hisparse-model-cache", "hisparse-launcher"

# What vLLM needs of the kernel is there without any capability; pinning goes through the driver, not through mlock.
# Its images run as root, so runAsNonRoot is left to podTemplate.securityContext: every path that is written is a
# volume of ours, and a user of one's own, or a read-only root, works.
_POD_SECURITY: Final[Mapping[str, Any]] = {"seccompProfile": {"type": "RuntimeDefault"}}
_CONTAINER_SECURITY: Final[Mapping[str, Any]] = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
}


def engine_port(spec: HiSparseInferenceSpec) -> int:
    """Port of the engine and of the Service."""
    return (spec.networking.port if spec.networking else None) or engine.ENGINE_PORT


def engine_image(spec: HiSparseInferenceSpec, settings: OperatorSettings) -> str:
    """engine.image, else the one that the operator was installed with."""
    return (spec.engine.image if spec.engine else None) or settings.engine_image


def serve_command(spec: HiSparseInferenceSpec, plan: Plan) -> tuple[str, ...]:
    """The `vllm serve` line, as kubectl describe shows it."""
    hub = spec.model.hugging_face
    flags = engine.serve_flags(
        plan,
        served_name=served_name(spec.model),
        port=engine_port(spec),
        trust_remote_code=bool(spec.model.trust_remote_code),
        revision=hub.revision if hub else None,
    )
    return engine.command(_model_path(spec), flags, (spec.engine.args if spec.engine else None) or ())


def _arguments(spec: HiSparseInferenceSpec, plan: Plan) -> list[str]:
    """The same as the kubelet is told it: in what is not the user's own wording no variable is put in."""
    theirs = (spec.engine.args if spec.engine else None) or []
    words = serve_command(spec, plan)
    return [*map(_literal, words[: len(words) - len(theirs)]), *theirs]


def _literal(word: str) -> str:
    return word.replace("$", "$$") if "$$" in word or "$(" in word else word


def drain_key(parent: Parent, revision: str) -> str:
    """What the preStop hook shows to /drain: known to whoever may read the pod, and not to users of the engine."""
    return hashlib.sha256(f"{parent.uid}/{revision}/drain".encode()).hexdigest()[:32]


def launch_document(parent: Parent, revision: str, spec: HiSparseInferenceSpec, plan: Plan) -> dict[str, Any]:
    """plan.json."""
    return engine.launch_document(
        plan,
        served_name=served_name(spec.model),
        engine_port=engine_port(spec),
        launcher_port=LAUNCHER_PORT,
        drain_key=drain_key(parent, revision),
    )


def pod_template(
    parent: Parent,
    revision: str,
    spec: HiSparseInferenceSpec,
    model: ModelFacts,
    planned: Planned,
    settings: OperatorSettings,
) -> dict[str, Any]:
    """The template of the revision's ReplicaSet. planned must have a plan."""
    plan = planned.plan
    if plan is None:
        raise ValueError(f"{parent.child(revision)} cannot be rendered without a plan")
    overlay = spec.pod_template or PodTemplateOverlay()
    image = engine_image(spec, settings)
    borrowed = image != settings.engine_image
    mounts = _mounts(spec, overlay, borrowed=borrowed)
    container: dict[str, Any] = {
        "name": ENGINE,
        "image": image,
        "command": _command(borrowed=borrowed),
        "args": _arguments(spec, plan),
        "ports": [
            {"name": HTTP, "containerPort": engine_port(spec), "protocol": "TCP"},
            {"name": LAUNCHER, "containerPort": LAUNCHER_PORT, "protocol": "TCP"},
        ],
        "env": _environment(spec, plan),
        "resources": _resources(spec, model, plan),
        "volumeMounts": mounts,
        # the launcher's last words (exit 2 and 3) reach the pod's status
        "terminationMessagePolicy": "FallbackToLogsOnError",
        **_probes(plan, drain_key(parent, revision)),
        "securityContext": {**_CONTAINER_SECURITY, **(overlay.container_security_context or {})},
    }
    if spec.engine and spec.engine.env_from:
        container["envFrom"] = spec.engine.env_from
    if spec.engine and spec.engine.pull_policy:
        container["imagePullPolicy"] = spec.engine.pull_policy.value
    pod: dict[str, Any] = {
        "serviceAccountName": parent.child(),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": plan.seconds.termination_grace,
        "securityContext": {**_POD_SECURITY, **(overlay.security_context or {})},
        "containers": [container, *(overlay.sidecars or ())],
        "volumes": [*_volumes(parent, revision, spec, plan, mounts), *(overlay.volumes or ())],
        "tolerations": [dict(one) for one in tolerations_of(spec)],
        **_placement(spec, planned.products),
    }
    if borrowed:
        pod["initContainers"] = [_installer(settings)]
    if spec.engine and spec.engine.pull_secrets:
        pod["imagePullSecrets"] = [{"name": secret.name} for secret in spec.engine.pull_secrets]
    return {
        "metadata": {
            "labels": {**(overlay.labels or {}), **parent.labels(revision, engine_version(spec))},
            "annotations": {**(overlay.annotations or {}), "kubectl.kubernetes.io/default-container": ENGINE},
        },
        "spec": pod,
    }


def _model_path(spec: HiSparseInferenceSpec) -> str:
    if spec.model.hugging_face is not None:
        return spec.model.hugging_face.repo
    if spec.model.pvc is not None and spec.model.pvc.path:
        return f"{MODELS}/{spec.model.pvc.path.rstrip('/')}"
    return MODELS


def _command(*, borrowed: bool) -> list[str]:
    launcher = ["python3", f"{INSTALLED}/hisparse-launch.pyz"] if borrowed else ["hisparse-launch"]
    return [*launcher, "--plan", f"{PLAN_FOLDER}/plan.json", "--"]


def _installer(settings: OperatorSettings) -> dict[str, Any]:
    """Brings the launcher into an engine image that is not ours."""
    small = {"cpu": "100m", "memory": "128Mi"}
    return {
        "name": "hisparse-install",
        "image": settings.launcher_image,
        "command": ["hisparse-launch", "--install", INSTALLED],
        "resources": {"requests": small, "limits": {"memory": small["memory"]}},
        "volumeMounts": [{"name": _LAUNCHER, "mountPath": INSTALLED}],
        "securityContext": dict(_CONTAINER_SECURITY),
    }


def _environment(spec: HiSparseInferenceSpec, plan: Plan) -> list[dict[str, Any]]:
    """One entry per name: ours, unless the user names the same (the operator's own names are refused earlier)."""
    hub = spec.model.hugging_face
    ours: list[dict[str, Any]] = [
        *({"name": variable.name, "value": variable.value} for variable in engine.environment(plan)),
        {"name": "HOME", "value": CACHE},
        {"name": "HF_HOME", "value": MODEL_CACHE if hub else f"{CACHE}/huggingface"},
        {"name": "TRITON_CACHE_DIR", "value": f"{CACHE}/triton"},
        {"name": "VLLM_CACHE_ROOT", "value": f"{CACHE}/vllm"},
    ]
    if hub is not None and hub.token_secret is not None:
        ours.append(_from_secret("HF_TOKEN", hub.token_secret.name, hub.token_secret.key))
    key = spec.networking.api_key_secret if spec.networking else None
    if key is not None:
        ours.append(_from_secret("VLLM_API_KEY", key.name, key.key))
    given = (spec.engine.env if spec.engine else None) or ()
    theirs = [variable.model_dump(mode="json", by_alias=True, exclude_none=True) for variable in given]
    by_name = {entry["name"]: entry for entry in (*ours, *theirs)}
    return list(by_name.values())


def _from_secret(name: str, secret: str, key: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}


def _resources(spec: HiSparseInferenceSpec, model: ModelFacts, plan: Plan) -> dict[str, Any]:
    """Memory and GPUs: request equals limit, so that nothing that was planned for can be taken away."""
    wanted = spec.resources
    fixed = {
        wanted.gpu_resource_name or GPU_RESOURCE: str(wanted.gpus),
        "memory": format_quantity(plan.host.pod),
    }
    requests = fixed | {"cpu": wanted.cpu or str(CPU_PER_GPU * wanted.gpus)}
    if disk := _disk(spec, model):
        requests["ephemeral-storage"] = disk
    return {"requests": requests, "limits": fixed}


def _disk(spec: HiSparseInferenceSpec, model: ModelFacts) -> str | None:
    """Local disk is asked for only where weights land on it: a node that does not count its disk offers none."""
    if spec.resources.ephemeral_storage:
        return format_quantity(parse_quantity(spec.resources.ephemeral_storage))
    return format_quantity(size) if (size := download_bytes(spec, model)) else None


def _probes(plan: Plan, key: str) -> dict[str, Any]:
    """The launcher answers: it knows that an engine drains, hangs or loads, which a port does not tell."""

    def get(path: str) -> dict[str, Any]:
        return {"path": path, "port": LAUNCHER, "scheme": "HTTP"}

    return {
        "startupProbe": {
            "httpGet": get("/startedz"),
            "periodSeconds": 10,
            "timeoutSeconds": 5,
            "failureThreshold": max(1, cdiv(plan.seconds.startup_budget, 10)),
        },
        "readinessProbe": {"httpGet": get("/readyz"), "periodSeconds": 5, "timeoutSeconds": 5, "failureThreshold": 2},
        "livenessProbe": {"httpGet": get("/livez"), "periodSeconds": 10, "timeoutSeconds": 10, "failureThreshold": 6},
        # answers when the drain is over; SIGTERM comes after that
        "lifecycle": {
            "preStop": {"httpGet": get("/drain") | {"httpHeaders": [{"name": DRAIN_KEY_HEADER, "value": key}]}},
        },
    }


def _mounts(spec: HiSparseInferenceSpec, overlay: PodTemplateOverlay, *, borrowed: bool) -> list[dict[str, Any]]:
    theirs = [dict(mount) for mount in overlay.volume_mounts or ()]
    ours: list[dict[str, Any]] = [
        {"name": SHM_VOLUME, "mountPath": "/dev/shm"},
        {"name": _PLAN, "mountPath": PLAN_FOLDER, "readOnly": True},
        {"name": _CACHE, "mountPath": CACHE},
    ]
    if all(mount["mountPath"].rstrip("/") != TMP for mount in theirs):
        ours.append({"name": _TMP, "mountPath": TMP})
    if spec.model.hugging_face is not None:
        ours.append({"name": _MODEL_CACHE, "mountPath": MODEL_CACHE})
    else:
        ours.append({"name": _MODELS, "mountPath": MODELS, "readOnly": True})
    if borrowed:
        ours.append({"name": _LAUNCHER, "mountPath": INSTALLED, "readOnly": True})
    return [*ours, *theirs]


def _volumes(
    parent: Parent, revision: str, spec: HiSparseInferenceSpec, plan: Plan, mounts: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    known: dict[str, dict[str, Any]] = {
        SHM_VOLUME: {"emptyDir": {"medium": "Memory", "sizeLimit": format_quantity(plan.host.shm)}},
        _PLAN: {"configMap": {"name": parent.child(revision)}},
        _MODELS: _model_volume(spec),
        _MODEL_CACHE: _cache_volume(spec),
    }
    ours = [mount["name"] for mount in mounts if mount["name"].startswith("hisparse-")]
    return [{"name": name, **known.get(name, {"emptyDir": {}})} for name in ours]


def _model_volume(spec: HiSparseInferenceSpec) -> dict[str, Any]:
    if spec.model.pvc is not None:
        return {"persistentVolumeClaim": {"claimName": spec.model.pvc.claim_name, "readOnly": True}}
    if spec.model.host_path is not None:
        return {"hostPath": {"path": spec.model.host_path.path, "type": "Directory"}}
    return {"emptyDir": {}}


def _cache_volume(spec: HiSparseInferenceSpec) -> dict[str, Any]:
    cache = spec.model.cache
    if cache is not None and cache.pvc is not None:
        return {"persistentVolumeClaim": {"claimName": cache.pvc.claim_name}}
    if cache is not None and cache.host_path is not None:
        return {"hostPath": {"path": cache.host_path.path, "type": "DirectoryOrCreate"}}
    return {"emptyDir": {}}


def _placement(spec: HiSparseInferenceSpec, products: tuple[str, ...]) -> dict[str, Any]:
    given = spec.placement
    wanted: dict[str, Any] = {}
    if affinity := _affinity((given.affinity if given else None) or {}, products):
        wanted["affinity"] = affinity
    if given is None:
        return wanted
    optional = {
        "nodeSelector": given.node_selector,
        "topologySpreadConstraints": given.topology_spread,
        "schedulerName": given.scheduler_name,
        "priorityClassName": given.priority_class_name,
        "runtimeClassName": given.runtime_class_name,
    }
    return wanted | {name: value for name, value in optional.items() if value}


def _affinity(given: Mapping[str, Any], products: tuple[str, ...]) -> dict[str, Any]:
    """The user's affinity, with the products that fit in every one of its required terms (terms are alternatives)."""
    if not products:
        return dict(given)
    ours = {"key": PRODUCT_LABEL, "operator": "In", "values": list(products)}
    node = dict(given.get("nodeAffinity") or {})
    required = node.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    alternatives: Sequence[Mapping[str, Any]] = required.get("nodeSelectorTerms") or ({},)
    terms = [{**term, "matchExpressions": [*(term.get("matchExpressions") or ()), ours]} for term in alternatives]
    node["requiredDuringSchedulingIgnoredDuringExecution"] = {"nodeSelectorTerms": terms}
    return {**given, "nodeAffinity": node}
