"""A real pod on this machine: network, Service, logs, exec, GPUs as a resource, and a clean end."""

import json
from pathlib import Path
from typing import Any

import psutil
import pytest

from hisparse_testenv import images, process, real_node
from hisparse_testenv.shared import RealCluster

pytestmark = pytest.mark.e2e

GREETING = "hello from a real pod"
LIMIT_S = 90


def pod(name: str, image: images.Image, **container: Any) -> dict[str, Any]:
    one = {"name": name, "image": image.reference, "imagePullPolicy": "Never", **container}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [one]},
    }


@pytest.mark.timeout(900)
def test_a_service_answers_from_another_pod(real_cluster: RealCluster, real_namespace: str) -> None:
    image = images.image_with(
        {"/srv/www/index.html": GREETING.encode(), "/usr/local/bin/greet": b"#!/bin/sh\necho greetings\n"},
        images.base_image(),
        "testenv.hisparse.dev/hello:1",
        settings={"Entrypoint": ["python3", "-u", "-m", "http.server", "8000", "--directory", "/srv/www"]},
    )
    real_cluster.node.import_image(image)
    real_cluster.node.advertise_gpus(8)
    probe = {"httpGet": {"path": "/", "port": 8000}, "periodSeconds": 1}
    manifests = [
        pod("web", image, readinessProbe=probe, resources={"limits": {"nvidia.com/gpu": "8"}}),
        pod("client", image, command=["sleep", "3600"]),
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "web"},
            "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8000}]},
        },
    ]
    listing = {"apiVersion": "v1", "kind": "List", "items": manifests}

    def kubectl(*words: str, **more: Any) -> str:
        return real_cluster.kubectl("-n", real_namespace, *words, **more).stdout

    kubectl("create", "-f", "-", input=json.dumps(listing))
    kubectl("wait", "--for=condition=Ready", "pod/web", "pod/client", f"--timeout={LIMIT_S}s")
    address = kubectl("get", "service", "web", "-o", "jsonpath={.spec.clusterIP}")
    fetch = ("curl", "-sS", "--retry", "5", "--retry-connrefused", "--max-time", "10", f"http://{address}/")
    assert kubectl("exec", "client", "--", *fetch) == GREETING
    # a pod reaches itself through its Service too
    assert kubectl("exec", "web", "--", *fetch) == GREETING
    assert '"GET / HTTP/1.1" 200' in kubectl("logs", "web")
    assert kubectl("exec", "client", "--", "greet") == "greetings\n"
    inside = (
        "curl -sS --max-time 10 --cacert /var/run/secrets/kubernetes.io/serviceaccount/ca.crt "
        'https://$KUBERNETES_SERVICE_HOST/version -H "Authorization: Bearer '
        '$(cat /var/run/secrets/kubernetes.io/serviceaccount/token)"'
    )
    assert '"major": "1"' in kubectl("exec", "client", "--", "sh", "-c", inside)
    kubectl("delete", "pod", "web", "client", f"--timeout={LIMIT_S}s")


@pytest.mark.timeout(900)
def test_a_stopped_node_leaves_no_process_mount_or_rule(ending_real_cluster: RealCluster) -> None:
    image = images.base_image()
    real_cluster, node = ending_real_cluster, ending_real_cluster.node
    node.import_image(image)
    manifest = pod("sleeper", image, command=["sleep", "3600"])
    real_cluster.kubectl("create", "-f", "-", input=json.dumps(manifest))
    words = ("wait", "--for=condition=Ready", "pod/sleeper", f"--timeout={LIMIT_S}s")
    real_cluster.kubectl(*words)
    places = real_node._places(real_cluster.control_plane.state)
    inside = real_node._in_containers(places)
    assert "sleep" in {one.name for one in inside}
    ours = [*node.processes, *real_node._shims(places), *inside]
    # as after a crash: nobody is left to end the pods the orderly way
    kubelet = next(one for one in node.processes if one.name == "kubelet")
    psutil.Process(kubelet.pid).kill()
    node.stop()
    assert not [one.name for one in ours if process.alive(one)]
    assert "hisparse-" not in Path("/proc/self/mounts").read_text()
    assert not list(Path("/sys/class/net").glob("hisp*"))
    assert not list(Path("/sys/fs/cgroup").glob("*/kubepods"))
