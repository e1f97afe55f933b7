"""The children as documents: against what the API server and the launcher expect of them."""

import json
from typing import Any

import pytest
from simulator import BAD, SETTINGS, SmallCluster, dense, node

from hisparse_engine import plan as launcher_plan
from hisparse_operator.settings import OperatorSettings
from hisparse_operator.world import Object

IMAGE = "registry.example/my-vllm:v0.33.0"


def children(spec: dict[str, Any], settings: OperatorSettings = SETTINGS, **nodes: Any) -> dict[str, Object]:
    """The first set of documents, by kind."""
    outcome = SmallCluster(spec, [node("a", **nodes), node("b", **nodes)], settings).decide()
    return {str(document["kind"]): document for document in outcome.apply}


def pod(spec: dict[str, Any]) -> Any:
    return children(spec)["ReplicaSet"]["spec"]["template"]["spec"]


def engine(spec: dict[str, Any]) -> Any:
    return pod(spec)["containers"][0]


def env(spec: dict[str, Any]) -> dict[str, Any]:
    return {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in engine(spec)["env"]}


def mounts(spec: dict[str, Any]) -> dict[str, str]:
    return {mount["mountPath"]: mount["name"] for mount in engine(spec)["volumeMounts"]}


def volumes(spec: dict[str, Any]) -> dict[str, Any]:
    return {volume["name"]: {k: v for k, v in volume.items() if k != "name"} for volume in pod(spec)["volumes"]}


def test_the_set_of_children() -> None:
    assert list(children(dense())) == [
        "ControllerRevision",
        "ServiceAccount",
        "Service",
        "NetworkPolicy",
        "ConfigMap",
        "ReplicaSet",
    ]
    assert "PodDisruptionBudget" in children(dense(replicas=2))
    assert "NetworkPolicy" not in children(dense(networking={"networkPolicy": False}))


def test_every_child_is_labelled_and_owned_so_that_deleting_needs_no_operator() -> None:
    for document in children(dense(replicas=2)).values():
        metadata = document["metadata"]
        assert metadata["labels"]["inference.hisparse.dev/inference"] == "llama"
        assert metadata["labels"]["app.kubernetes.io/managed-by"] == "hisparse-operator"
        assert metadata["namespace"] == "serving"
        (owner,) = metadata["ownerReferences"]
        assert owner["controller"] is True
        assert owner["blockOwnerDeletion"] is False
        assert "finalizers" not in metadata


def test_the_same_world_renders_the_same_bytes() -> None:
    one, two = children(dense()), children(dense())
    assert json.dumps(one) == json.dumps(two)


def test_describe_shows_the_vllm_line_behind_the_launcher() -> None:
    container = engine(dense(engine={"args": ["--seed", "7"]}))
    assert container["command"] == ["hisparse-launch", "--plan", "/etc/hisparse/plan.json", "--"]
    assert container["args"][:3] == ["vllm", "serve", "meta-llama/Llama-3.1-70B"]
    assert container["args"][-2:] == ["--seed", "7"]
    assert container["args"][container["args"].index("--revision") + 1] == "a" * 40


def test_the_launcher_can_read_its_plan() -> None:
    text = children(dense(networking={"port": 9000}))["ConfigMap"]["data"]["plan.json"]
    plan = launcher_plan.parse(text)
    assert plan.engine.port == 9000
    assert plan.engine.served_name == "Llama-3.1-70B"


def test_memory_and_gpus_are_requested_as_they_are_limited() -> None:
    resources = engine(dense())["resources"]
    for name in ("memory", "nvidia.com/gpu"):
        assert resources["requests"][name] == resources["limits"][name]
    assert resources["limits"]["nvidia.com/gpu"] == "8"
    assert "cpu" not in resources["limits"]


@pytest.mark.parametrize(
    ("spec", "disk"),
    [
        pytest.param({}, "145Gi", id="downloads on every start: weights x 1.1"),
        pytest.param({"model": {"hostPath": {"path": "/m"}}}, None, id="a model of the node"),
        pytest.param({"resources": {"gpus": 8, "ephemeralStorage": "300Gi"}}, "300Gi", id="the user says how much"),
    ],
)
def test_local_disk_is_asked_for_only_where_weights_land_on_it(spec: dict[str, Any], disk: str | None) -> None:
    whole = dense(**spec)
    if "hostPath" in whole["model"]:
        whole["model"] |= {"config": LLAMA_CONFIG, "facts": {"weights": "141Gi"}}
    assert engine(whole)["resources"]["requests"].get("ephemeral-storage") == disk


LLAMA_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "hidden_size": 8192,
    "num_hidden_layers": 80,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
}
LOCAL = {"config": LLAMA_CONFIG, "facts": {"weights": "141Gi"}}


@pytest.mark.parametrize(
    ("model", "path", "mount", "volume"),
    [
        pytest.param(
            {"huggingFace": {"repo": "meta-llama/Llama-3.1-70B"}},
            "meta-llama/Llama-3.1-70B",
            "/models/cache",
            {"emptyDir": {}},
            id="hub without a cache",
        ),
        pytest.param(
            {"huggingFace": {"repo": "meta-llama/Llama-3.1-70B"}, "cache": {"pvc": {"claimName": "weights"}}},
            "meta-llama/Llama-3.1-70B",
            "/models/cache",
            {"persistentVolumeClaim": {"claimName": "weights"}},
            id="hub with a claim",
        ),
        pytest.param(
            {"huggingFace": {"repo": "meta-llama/Llama-3.1-70B"}, "cache": {"hostPath": {"path": "/var/hf"}}},
            "meta-llama/Llama-3.1-70B",
            "/models/cache",
            {"hostPath": {"path": "/var/hf", "type": "DirectoryOrCreate"}},
            id="hub with a folder of the node",
        ),
        pytest.param(
            {"pvc": {"claimName": "weights", "path": "llama/70b"}, **LOCAL},
            "/models/llama/70b",
            "/models",
            {"persistentVolumeClaim": {"claimName": "weights", "readOnly": True}},
            id="a claim",
        ),
        pytest.param(
            {"hostPath": {"path": "/srv/llama"}, **LOCAL},
            "/models",
            "/models",
            {"hostPath": {"path": "/srv/llama", "type": "Directory"}},
            id="a folder of the node",
        ),
    ],
)
def test_where_the_weights_come_from(model: dict[str, Any], path: str, mount: str, volume: dict[str, Any]) -> None:
    spec = dense(model=model)
    assert engine(spec)["args"][2] == path
    assert volumes(spec)[mounts(spec)[mount]] == volume
    assert env(spec)["HF_HOME"] == ("/models/cache" if "huggingFace" in model else "/cache/huggingface")


def test_every_path_that_is_written_is_a_volume_so_that_a_read_only_root_works() -> None:
    spec = dense(podTemplate={"containerSecurityContext": {"readOnlyRootFilesystem": True}})
    variables, paths = env(spec), mounts(spec)
    for name in ("HOME", "HF_HOME", "TRITON_CACHE_DIR", "VLLM_CACHE_ROOT"):
        assert any(variables[name] == path or variables[name].startswith(f"{path}/") for path in paths)
    assert "/tmp" in paths
    context = engine(spec)["securityContext"]
    assert context == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }


def test_secrets_are_named_and_never_read() -> None:
    token, key = {"name": "hf", "key": "token"}, {"name": "api", "key": "key"}
    spec = dense(
        model={"huggingFace": {"repo": "meta-llama/Llama-3.1-70B", "tokenSecret": token}},
        networking={"apiKeySecret": key},
    )
    assert env(spec)["HF_TOKEN"] == {"secretKeyRef": token}
    assert env(spec)["VLLM_API_KEY"] == {"secretKeyRef": key}


def test_a_name_stands_once_in_the_environment_and_the_users_wins() -> None:
    spec = dense(
        engine={"env": [{"name": "VLLM_NO_USAGE_STATS", "value": "0"}, {"name": "NCCL_DEBUG", "value": "INFO"}]}
    )
    names = [entry["name"] for entry in engine(spec)["env"]]
    assert len(names) == len(set(names))
    assert env(spec)["VLLM_NO_USAGE_STATS"] == "0"
    assert env(spec)["NCCL_DEBUG"] == "INFO"


def test_a_users_own_image_gets_the_launcher_from_ours() -> None:
    spec = dense(engine={"image": IMAGE})
    (installer,) = pod(spec)["initContainers"]
    assert installer["image"] == SETTINGS.launcher_image
    assert installer["command"] == ["hisparse-launch", "--install", "/hisparse"]
    assert engine(spec)["command"][:2] == ["python3", "/hisparse/hisparse-launch.pyz"]
    assert mounts(spec)["/hisparse"] == installer["volumeMounts"][0]["name"]


def test_an_image_that_has_the_launcher_needs_no_init_container() -> None:
    found = children(dense(engine={"image": IMAGE}), OperatorSettings(engine_image=IMAGE))
    template = found["ReplicaSet"]["spec"]["template"]["spec"]
    assert "initContainers" not in template
    assert template["containers"][0]["command"][0] == "hisparse-launch"


def test_probes_ask_the_launcher_and_follow_the_plan() -> None:
    spec = dense(lifecycle={"startupBudget": "1h", "drain": "2m", "terminationGrace": "10m"})
    container = engine(spec)
    startup = container["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] == 3600
    paths = [container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "readiness", "liveness")]
    assert paths == ["/startedz", "/readyz", "/livez"]
    drain = container["lifecycle"]["preStop"]["httpGet"]
    assert (drain["path"], drain["port"]) == ("/drain", "launcher")
    (header,) = drain["httpHeaders"]
    assert header["name"] == "X-Hisparse-Drain-Key"
    assert header["value"] == json.loads(children(spec)["ConfigMap"]["data"]["plan.json"])["launcher"]["drainKey"]
    assert pod(spec)["terminationGracePeriodSeconds"] == 600


def test_the_product_is_required_beside_what_the_user_requires() -> None:
    zone = {"key": "zone", "operator": "In", "values": ["a"]}
    required = {"nodeSelectorTerms": [{"matchExpressions": [zone]}, {"matchExpressions": [zone | {"values": ["b"]}]}]}
    given: dict[str, Any] = {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required},
        "podAffinity": {"x": 1},
    }
    spec = dense(placement={"affinity": given})
    outcome = SmallCluster(spec, [node("a")])
    assert outcome.nodes is not None
    outcome.nodes[0]["metadata"]["labels"]["zone"] = "a"
    document = next(doc for doc in outcome.decide().apply if doc["kind"] == "ReplicaSet")
    affinity = document["spec"]["template"]["spec"]["affinity"]
    terms = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert [len(term["matchExpressions"]) for term in terms] == [2, 2]
    assert all(term["matchExpressions"][1]["values"] == ["NVIDIA-H200"] for term in terms)
    assert affinity["podAffinity"] == {"x": 1}
    assert given["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] == required, (
        "the input is not changed"
    )


SPREAD = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}


def test_placement_is_passed_on() -> None:
    template = pod(
        dense(
            placement={
                "tolerations": [{"key": "team", "operator": "Exists"}],
                "priorityClassName": "high",
                "runtimeClassName": "nvidia",
                "schedulerName": "mine",
                "topologySpread": [SPREAD],
            }
        )
    )
    assert {"key": "nvidia.com/gpu", "operator": "Exists"} in template["tolerations"]
    assert {"key": "team", "operator": "Exists"} in template["tolerations"]
    assert (template["priorityClassName"], template["runtimeClassName"], template["schedulerName"]) == (
        "high",
        "nvidia",
        "mine",
    )
    assert template["topologySpreadConstraints"] == [SPREAD]
    assert template["automountServiceAccountToken"] is False
    assert template["enableServiceLinks"] is False


def test_the_overlay_adds_and_cannot_replace() -> None:
    overlay = {
        "labels": {"team": "search"},
        "annotations": {"note": "x"},
        "volumes": [{"name": "extra", "emptyDir": {}}],
        "volumeMounts": [{"name": "extra", "mountPath": "/extra"}, {"name": "extra", "mountPath": "/tmp"}],
        "sidecars": [{"name": "proxy", "image": "proxy:1", "ports": [{"containerPort": 8443}]}],
        "securityContext": {"runAsUser": 1000, "runAsNonRoot": True, "fsGroup": 1000},
    }
    found = children(dense(podTemplate=overlay))
    template = found["ReplicaSet"]["spec"]["template"]
    assert template["metadata"]["labels"]["team"] == "search"
    assert template["metadata"]["annotations"]["note"] == "x"
    spec = template["spec"]
    assert [container["name"] for container in spec["containers"]] == ["engine", "proxy"]
    paths = [mount["mountPath"] for mount in spec["containers"][0]["volumeMounts"]]
    assert paths.count("/tmp") == 1
    assert len(paths) == len(set(paths))
    names = [volume["name"] for volume in spec["volumes"]]
    assert len(names) == len(set(names))
    assert spec["securityContext"] == {
        "seccompProfile": {"type": "RuntimeDefault"},
        "runAsUser": 1000,
        "runAsNonRoot": True,
        "fsGroup": 1000,
    }
    ports = found["NetworkPolicy"]["spec"]["ingress"][0]["ports"]
    assert [port["port"] for port in ports] == [8000, 8443], (
        "the launcher is for the kubelet; a sidecar's ports are reachable"
    )


def test_the_service_speaks_to_pods_of_every_revision_and_to_no_other() -> None:
    found = children(dense(networking={"port": 9000}))
    service, template = found["Service"]["spec"], found["ReplicaSet"]["spec"]["template"]
    assert service["ports"] == [{"name": "http", "port": 9000, "targetPort": "http", "protocol": "TCP"}]
    assert service["selector"].items() <= template["metadata"]["labels"].items()
    assert "inference.hisparse.dev/revision" not in service["selector"]
    assert found["ReplicaSet"]["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()


def test_nothing_of_an_operator_version_is_in_a_pod() -> None:
    text = json.dumps(children(dense())["ReplicaSet"])
    assert "0.1.0" not in text.replace(SETTINGS.engine_image, "")


def test_pull_policy_and_secrets() -> None:
    spec = dense(
        engine={
            "image": IMAGE,
            "pullPolicy": "Always",
            "pullSecrets": [{"name": "registry"}],
            "envFrom": [{"configMapRef": {"name": "tuning"}}],
        }
    )
    assert engine(spec)["imagePullPolicy"] == "Always"
    assert pod(spec)["imagePullSecrets"] == [{"name": "registry"}]
    assert engine(spec)["envFrom"] == [{"configMapRef": {"name": "tuning"}}]
    assert BAD not in engine(spec)["args"]
