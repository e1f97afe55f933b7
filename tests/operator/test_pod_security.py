"""Which level of Pod Security each pod of ours needs, asked of a real API server that enforces it."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from simulator import SETTINGS, SmallCluster, dense, node

from hisparse_testenv.api import ApiError
from hisparse_testenv.shared import Cluster

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parents[2]
LEVEL = "pod-security.kubernetes.io/enforce"
USER = {"securityContext": {"runAsNonRoot": True, "runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 1000}}
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "hidden_size": 8192,
    "num_hidden_layers": 80,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
}
GLM = {
    "model": {"huggingFace": {"repo": "zai-org/GLM-5.3-FP8", "revision": "a" * 40}},
    "context": {"maxTokens": 1048576},
    "resources": {"gpus": 8},
}
SIDECAR = {
    "name": "proxy",
    "image": "proxy:1",
    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
}
FOLDER = {"hostPath": {"path": "/mnt/models"}, "config": CONFIG, "facts": {"weights": "100Gi"}}
SHAPES: dict[str, dict[str, Any]] = {
    "dense": dense(),
    "HiSparse with a host pool": GLM,
    "Offload with a host pool": dense(kvTier={"mode": "Offload"}),
    "an image without the launcher": dense(engine={"image": "registry.example/vllm:v0.33.0"}),
    "weights on a claim": dense(
        model={"pvc": {"claimName": "weights"}, "config": CONFIG, "facts": {"weights": "100Gi"}}
    ),
    "a cache on a claim, keys from Secrets": dense(
        model={
            "huggingFace": {"repo": "meta-llama/Llama-3.1-70B", "tokenSecret": {"name": "hub", "key": "token"}},
            "cache": {"pvc": {"claimName": "cache"}},
        },
        networking={"apiKeySecret": {"name": "keys", "key": "engine"}},
    ),
    "a sidecar": dense(podTemplate={"sidecars": [SIDECAR]}),
    "a read-only root": dense(podTemplate={"containerSecurityContext": {"readOnlyRootFilesystem": True}}),
}
ON_THE_NODE: dict[str, dict[str, Any]] = {
    "weights of the node": dense(model=FOLDER),
    "a cache of the node": dense(
        model={"huggingFace": {"repo": "meta-llama/Llama-3.1-70B"}, "cache": {"hostPath": {"path": "/mnt/cache"}}}
    ),
}


@pytest.fixture(scope="module")
def levels(cluster: Cluster) -> Iterator[dict[str, str]]:
    """A namespace that enforces each level."""
    found = {level: f"pss-{level}-{secrets.token_hex(3)}" for level in ("restricted", "baseline", "privileged")}
    api = cluster.control_plane.api
    for level, name in found.items():
        api.request("POST", "/api/v1/namespaces", {"metadata": {"name": name, "labels": {LEVEL: level}}})
    yield found
    for name in found.values():
        api.request("DELETE", f"/api/v1/namespaces/{name}")


def rendered(spec: dict[str, Any]) -> dict[str, Any]:
    outcome = SmallCluster(spec, [node("a")], SETTINGS).decide()
    found = next(one for one in outcome.apply if one["kind"] == "ReplicaSet")
    pod: dict[str, Any] = found["spec"]["template"]
    return pod


def as_a_user(spec: dict[str, Any]) -> dict[str, Any]:
    return {**spec, "podTemplate": {**spec.get("podTemplate", {}), **USER}}


def violations(cluster: Cluster, namespace: str, pod: dict[str, Any]) -> set[str]:
    """What the API server holds against a pod there; empty where it takes it."""
    # the account is made by the operator, or by our manifests, before the pod
    spec = {key: value for key, value in pod["spec"].items() if key not in ("serviceAccountName", "priorityClassName")}
    document = {"apiVersion": "v1", "kind": "Pod", "metadata": {**pod["metadata"], "name": "x"}, "spec": spec}
    said = refusal(cluster, f"/api/v1/namespaces/{namespace}/pods?dryRun=All", document)
    assert not said or "violates PodSecurity" in said, said
    return set(re.findall(r"[:,] ([a-zA-Z !=.]+?) \(", said.partition("violates PodSecurity")[2]))


def refusal(cluster: Cluster, path: str, document: dict[str, Any]) -> str:
    try:
        cluster.control_plane.api.request("POST", path, document)
    except ApiError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("shape", SHAPES)
def test_with_a_user_every_shape_is_admitted_as_restricted(
    cluster: Cluster, levels: dict[str, str], shape: str
) -> None:
    pod = rendered(as_a_user(SHAPES[shape]))
    assert violations(cluster, levels["restricted"], pod) == set()
    assert pod["spec"]["automountServiceAccountToken"] is False


@pytest.mark.parametrize("shape", SHAPES)
def test_without_one_it_is_baseline_and_a_user_is_all_that_is_missing(
    cluster: Cluster, levels: dict[str, str], shape: str
) -> None:
    pod = rendered(SHAPES[shape])
    assert violations(cluster, levels["baseline"], pod) == set()
    assert violations(cluster, levels["restricted"], pod) == {"runAsNonRoot != true"}
    assert pod["spec"]["automountServiceAccountToken"] is False


@pytest.mark.parametrize("shape", ON_THE_NODE)
def test_a_folder_of_the_node_needs_privileged_and_for_nothing_else(
    cluster: Cluster, levels: dict[str, str], shape: str
) -> None:
    pod = rendered(as_a_user(ON_THE_NODE[shape]))
    assert violations(cluster, levels["privileged"], pod) == set()
    assert violations(cluster, levels["baseline"], pod) == {"hostPath volumes"}
    assert violations(cluster, levels["restricted"], pod) == {"restricted volume types"}


def manifest(path: str) -> dict[str, Any]:
    documents = list(yaml.safe_load_all((ROOT / path).read_text()))
    found: dict[str, Any] = next(one for one in documents if one["kind"] in ("Deployment", "DaemonSet"))
    pod: dict[str, Any] = found["spec"]["template"]
    return pod


def enforced(path: str) -> str:
    documents = yaml.safe_load_all((ROOT / path).read_text())
    namespace = next(one for one in documents if one["kind"] == "Namespace")
    return str(namespace["metadata"]["labels"][LEVEL])


def test_the_operator_is_restricted_and_its_namespace_says_so(cluster: Cluster, levels: dict[str, str]) -> None:
    assert enforced("operator/deploy/operator.yaml") == "restricted"
    assert violations(cluster, levels["restricted"], manifest("operator/deploy/operator.yaml")) == set()


@pytest.mark.parametrize(
    ("path", "wrong"),
    [
        ("node_agent/deploy/agent.yaml", {"hostPath volumes"}),
        ("node_agent/deploy/actuator.yaml", {"hostPath volumes", "privileged"}),
    ],
)
def test_the_agent_needs_folders_of_the_host_and_only_the_actuator_is_privileged(
    cluster: Cluster, levels: dict[str, str], path: str, wrong: set[str]
) -> None:
    assert enforced("node_agent/deploy/rbac.yaml") == "privileged"
    assert violations(cluster, levels["privileged"], manifest(path)) == set()
    assert violations(cluster, levels["baseline"], manifest(path)) == wrong
