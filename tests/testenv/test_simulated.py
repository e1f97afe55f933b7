"""The simulated cluster behaves like a cluster where the operator looks at it."""

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from hisparse_testenv.shared import Cluster
from hisparse_testenv.stages import CONTAINER, DELAY, EXIT_CODE, OUTCOME

pytestmark = pytest.mark.cluster

LIMIT_S = 20


def pod_spec(gpus: int = 1, **more: Any) -> dict[str, Any]:
    engine = {"name": "engine", "image": "none", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
    return {"containers": [engine, {"name": "sidecar", "image": "none"}], **more}


def pod(name: str, annotations: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    metadata = {"name": name, "labels": {"app": name}, "annotations": annotations or {}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod_spec(**spec)}


def create(cluster: Cluster, namespace: str, manifest: dict[str, Any]) -> None:
    cluster.kubectl("-n", namespace, "create", "-f", "-", input=json.dumps(manifest))


def get(cluster: Cluster, namespace: str, *what: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(cluster.kubectl("-n", namespace, "get", *what, "-o", "json").stdout)
    return answer


def until(look: Callable[[], dict[str, Any]], holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    deadline = time.monotonic() + LIMIT_S
    while not holds(seen := look()):
        assert time.monotonic() < deadline, json.dumps(seen.get("status", seen), indent=1)
        time.sleep(0.1)
    return seen


def condition(thing: dict[str, Any], kind: str) -> str | None:
    found = {one["type"]: one["status"] for one in thing.get("status", {}).get("conditions", ())}
    return found.get(kind)


def states(thing: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in thing.get("status", {}).get("containerStatuses", ())}


def test_a_pod_that_asks_for_gpus_becomes_ready_on_a_simulated_node(cluster: Cluster, namespace: str) -> None:
    create(cluster, namespace, pod("engine", gpus=8))
    seen = until(lambda: get(cluster, namespace, "pod", "engine"), lambda p: condition(p, "Ready") == "True")
    assert seen["spec"]["nodeName"].startswith("gpu-")
    assert seen["status"]["podIP"].startswith("198.18.")
    assert all(one["ready"] and "running" in one["state"] for one in states(seen).values())
    node = get(cluster, namespace, "node", seen["spec"]["nodeName"])
    assert node["metadata"]["labels"]["nvidia.com/gpu.product"] == "NVIDIA-H200"
    assert node["status"]["allocatable"]["nvidia.com/gpu"] == "8"


def test_a_pod_that_asks_for_more_gpus_than_a_node_has_stays_pending(cluster: Cluster, namespace: str) -> None:
    create(cluster, namespace, pod("wide", gpus=9))
    seen = until(lambda: get(cluster, namespace, "pod", "wide"), lambda p: condition(p, "PodScheduled") == "False")
    reason = next(one for one in seen["status"]["conditions"] if one["type"] == "PodScheduled")
    assert reason["reason"] == "Unschedulable"
    assert "Insufficient nvidia.com/gpu" in reason["message"]


def test_a_deployment_rolls_and_its_service_gets_endpoints(cluster: Cluster, namespace: str) -> None:
    labels = {"app": "web"}

    def deployment(image: str) -> dict[str, Any]:
        template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "web", "image": image}]}}
        spec = {"replicas": 2, "selector": {"matchLabels": labels}, "template": template}
        return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": spec}

    create(cluster, namespace, deployment("one"))
    service = {"selector": labels, "ports": [{"port": 80}]}
    create(
        cluster,
        namespace,
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": service},
    )
    cluster.kubectl("-n", namespace, "rollout", "status", "deployment/web", f"--timeout={LIMIT_S}s")
    cluster.kubectl("-n", namespace, "replace", "-f", "-", input=json.dumps(deployment("two")))
    cluster.kubectl("-n", namespace, "rollout", "status", "deployment/web", f"--timeout={LIMIT_S}s")
    # old pods are really gone, not stuck in deletion
    pods = until(lambda: get(cluster, namespace, "pods"), lambda found: len(found["items"]) == 2)
    assert {one["spec"]["containers"][0]["image"] for one in pods["items"]} == {"two"}
    addresses = {one["status"]["podIP"] for one in pods["items"]}

    def ready_addresses(slices: dict[str, Any]) -> set[str]:
        ends = [end for item in slices["items"] for end in item["endpoints"] or ()]
        return {end["addresses"][0] for end in ends if end["conditions"]["ready"]}

    until(lambda: get(cluster, namespace, "endpointslices"), lambda s: ready_addresses(s) == addresses)


@pytest.mark.parametrize(
    ("annotations", "code", "reason"),
    [
        pytest.param({OUTCOME: "crash", EXIT_CODE: "3"}, 3, "Error", id="a crash shows its exit code"),
        pytest.param({OUTCOME: "oom"}, 137, "OOMKilled", id="an OOM kill shows 137"),
    ],
)
def test_a_crash_looks_like_one(
    cluster: Cluster, namespace: str, annotations: dict[str, str], code: int, reason: str
) -> None:
    create(cluster, namespace, pod("bad", annotations | {DELAY: "100ms"}))
    seen = until(
        lambda: get(cluster, namespace, "pod", "bad"),
        lambda p: "waiting" in states(p).get("engine", {"state": {}})["state"],
    )
    engine, sidecar = states(seen)["engine"], states(seen)["sidecar"]
    assert engine["state"]["waiting"]["reason"] == "CrashLoopBackOff"
    assert engine["lastState"]["terminated"]["exitCode"] == code
    assert engine["lastState"]["terminated"]["reason"] == reason
    assert "running" in sidecar["state"]
    assert condition(seen, "Ready") == "False"


def test_a_pod_that_never_restarts_fails(cluster: Cluster, namespace: str) -> None:
    notes = {OUTCOME: "crash", DELAY: "100ms", CONTAINER: "sidecar"}
    create(cluster, namespace, pod("bad", notes, restartPolicy="Never"))
    seen = until(lambda: get(cluster, namespace, "pod", "bad"), lambda p: p["status"].get("phase") == "Failed")
    assert states(seen)["sidecar"]["state"]["terminated"]["exitCode"] == 1


def test_a_slow_pod_is_ready_later_and_a_never_ready_one_is_not(cluster: Cluster, namespace: str) -> None:
    create(cluster, namespace, pod("slow", {OUTCOME: "slow", DELAY: "1s"}))
    create(cluster, namespace, pod("never", {OUTCOME: "never-ready"}))
    until(lambda: get(cluster, namespace, "pod", "slow"), lambda p: condition(p, "Ready") == "False")
    until(lambda: get(cluster, namespace, "pod", "slow"), lambda p: condition(p, "Ready") == "True")
    assert condition(get(cluster, namespace, "pod", "never"), "Ready") == "False"


def test_a_readiness_gate_is_left_to_its_owner(cluster: Cluster, namespace: str) -> None:
    gate = "inference.example/warm"
    create(cluster, namespace, pod("gated", readinessGates=[{"conditionType": gate}]))
    seen = until(lambda: get(cluster, namespace, "pod", "gated"), lambda p: condition(p, "ContainersReady") == "True")
    assert condition(seen, "Ready") == "False"
    patch = {"status": {"conditions": [{"type": gate, "status": "True"}]}}
    words = ("patch", "pod", "gated", "--subresource=status", "--type=strategic", f"-p={json.dumps(patch)}")
    cluster.kubectl("-n", namespace, *words)
    until(lambda: get(cluster, namespace, "pod", "gated"), lambda p: condition(p, "Ready") == "True")


def test_a_living_pod_crashes_when_told_to_and_every_write_is_in_the_audit_log(
    cluster: Cluster, namespace: str
) -> None:
    create(cluster, namespace, pod("engine"))
    until(lambda: get(cluster, namespace, "pod", "engine"), lambda p: condition(p, "Ready") == "True")
    cluster.kubectl("-n", namespace, "annotate", "pod", "engine", f"{OUTCOME}=crash", f"{DELAY}=10ms")
    until(lambda: get(cluster, namespace, "pod", "engine"), lambda p: condition(p, "Ready") == "False")
    cluster.kubectl("-n", namespace, "delete", "pod", "engine", f"--timeout={LIMIT_S}s")
    events = [json.loads(line) for line in cluster.audit_log.read_text().splitlines() if namespace in line]
    verbs = {
        (event["verb"], event["user"]["username"]) for event in events if event["objectRef"].get("name") == "engine"
    }
    assert ("delete", "kubernetes-admin") in verbs
    assert ("patch", "testenv:kwok") in verbs


def test_a_cel_rule_of_a_crd_refuses_with_its_message(cluster: Cluster, namespace: str) -> None:
    rule = {"rule": "self.low <= self.high", "message": "low must not exceed high"}
    number = {"type": "integer"}
    spec = {
        "type": "object",
        "properties": {"low": number, "high": number},
        "required": ["low", "high"],
        "x-kubernetes-validations": [rule],
    }
    schema = {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}}
    group = f"{namespace}.example"
    crd = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"ranges.{group}"},
        "spec": {
            "group": group,
            "names": {"kind": "Range", "plural": "ranges", "singular": "range", "listKind": "RangeList"},
            "scope": "Namespaced",
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
        },
    }
    create(cluster, namespace, crd)
    try:
        words = ("wait", "--for=condition=Established", f"crd/ranges.{group}", f"--timeout={LIMIT_S}s")
        cluster.kubectl(*words)
        bad = {
            "apiVersion": f"{group}/v1",
            "kind": "Range",
            "metadata": {"name": "bad"},
            "spec": {"low": 2, "high": 1},
        }
        refused = cluster.kubectl("-n", namespace, "create", "-f", "-", input=json.dumps(bad), check=False)
        assert refused.returncode != 0
        assert "low must not exceed high" in refused.stderr
    finally:
        cluster.kubectl("delete", f"crd/ranges.{group}", "--wait=false")
