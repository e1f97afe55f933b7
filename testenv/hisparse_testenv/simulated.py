"""Nodes with GPUs that exist only in the API: kwok plays their kubelets."""

import ipaddress
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from hisparse_testenv import process, tools
from hisparse_testenv.control_plane import LOOPBACK, ControlPlane
from hisparse_testenv.process import Process
from hisparse_testenv.stages import pod_stages

START_LIMIT_S: Final = 30.0
NODE_LIMIT_S: Final = 30.0
RECORD: Final = "simulated.json"
# halves of the pod range: a real node takes its pods from the lower one
SIMULATED_PODS: Final = "198.18.128.1/18"
SIMULATED_NODES: Final = "198.18.192.0/18"
MANAGED: Final = "kwok.x-k8s.io/node"
GPU_TAINT: Final[dict[str, str]] = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}


def gpu_labels(product: str, gpus: int, gpu_memory_mib: int) -> dict[str, str]:
    """Labels as node and GPU feature discovery set them; none about GPUs on a node without one."""
    found = {"feature.node.kubernetes.io/cpu-model.vendor_id": "Intel"}
    if not gpus:
        return found
    return found | {
        "feature.node.kubernetes.io/pci-10de.present": "true",
        "nvidia.com/gpu.present": "true",
        "nvidia.com/gpu.product": product,
        "nvidia.com/gpu.memory": str(gpu_memory_mib),
        "nvidia.com/gpu.count": str(gpus),
        "nvidia.com/gpu.replicas": "1",
        "nvidia.com/gpu.family": "hopper",
        "nvidia.com/gpu.compute.major": "9",
        "nvidia.com/gpu.compute.minor": "0",
        "nvidia.com/mig.capable": "true",
        "nvidia.com/mig.strategy": "single",
        "nvidia.com/cuda.driver.major": "580",
    }


def node_manifest(
    name: str,
    address: str,
    *,
    product: str,
    gpus: int,
    memory: str,
    gpu_memory_mib: int,
    taints: Sequence[Mapping[str, str]],
    labels: Mapping[str, str],
) -> dict[str, Any]:
    """The Node object of a simulated GPU server."""
    capacity = {
        "cpu": "192",
        "memory": memory,
        "ephemeral-storage": "1800Gi",
        "hugepages-1Gi": "0",
        "hugepages-2Mi": "0",
        "pods": "110",
    } | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {MANAGED: "fake"},
            "labels": {
                "kubernetes.io/arch": "amd64",
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                **gpu_labels(product, gpus, gpu_memory_mib),
                **labels,
            },
        },
        "spec": {"taints": [dict(taint) for taint in taints]},
        "status": {
            "capacity": capacity,
            "allocatable": capacity,
            "addresses": [
                {"type": "InternalIP", "address": address},
                {"type": "Hostname", "address": name},
            ],
            "nodeInfo": {
                "architecture": "amd64",
                "bootID": "",
                "containerRuntimeVersion": "containerd://simulated",
                "kernelVersion": "5.15.0-simulated",
                "kubeProxyVersion": tools.KUBERNETES,
                "kubeletVersion": tools.KUBERNETES,
                "machineID": "",
                "operatingSystem": "linux",
                "osImage": "simulated",
                "systemUUID": "",
            },
        },
    }


def _settled(node: Mapping[str, Any] | None) -> bool:
    """Ready, and without the taint that every new node gets until it is."""
    if node is None:
        return False
    conditions = {one["type"]: one["status"] for one in node.get("status", {}).get("conditions", ())}
    taints = {one["key"] for one in node["spec"].get("taints", ())}
    return conditions.get("Ready") == "True" and "node.kubernetes.io/not-ready" not in taints


@dataclass(frozen=True)
class SimulatedNodes:
    """A running kwok. As a context manager it stops when the block ends; the Node objects stay."""

    control_plane: ControlPlane

    @classmethod
    def start(cls, control_plane: ControlPlane, *, say: Callable[[str], None] = print) -> Self:
        """Start kwok; it plays only nodes that `add_node` makes."""
        found = tools.ensure("control-plane", say)
        state = control_plane.state
        stop_state(state)
        config = state / "stages.yaml"
        # JSON documents are YAML documents
        config.write_text("\n---\n".join(json.dumps(stage, indent=1) for stage in pod_stages()) + "\n")
        # a name of its own, so that an audit log tells its writes from those of the administrator
        user = control_plane.user("testenv:kwok", ("system:masters",))
        (port,) = process.free_ports(1)
        words: list[str | Path] = [
            found["kwok"],
            f"--kubeconfig={user}",
            f"--config={config}",
            "--manage-all-nodes=false",
            f"--manage-nodes-with-annotation-selector={MANAGED}=fake",
            f"--server-address={LOOPBACK}:{port}",
            f"--cidr={SIMULATED_PODS}",
            "--node-lease-duration-seconds=40",
        ]
        kwok = process.spawn("kwok", words, state / "logs" / "kwok.log")
        process.write_json(state / RECORD, {"processes": process.to_record([kwok])})
        process.wait_for("kwok", lambda: process.http_ok(LOOPBACK, port, "/healthz"), [kwok], timeout_s=START_LIMIT_S)
        return cls(control_plane)

    @classmethod
    def attach(cls, control_plane: ControlPlane) -> Self | None:
        """The kwok that runs beside this control plane, None if none does."""
        nodes = cls(control_plane)
        return nodes if nodes.processes and all(map(process.alive, nodes.processes)) else None

    @property
    def processes(self) -> tuple[Process, ...]:
        """The kwok process, as recorded in the state folder."""
        return process.from_record(process.read_json(self.control_plane.state / RECORD))

    def add_node(
        self,
        name: str,
        *,
        product: str = "NVIDIA-H200",
        gpus: int = 8,
        memory: str = "2Ti",
        gpu_memory_mib: int = 143771,
        taints: Sequence[Mapping[str, str]] = (),
        labels: Mapping[str, str] | None = None,
    ) -> None:
        """Add a simulated GPU server and wait until pods can be bound to it. GPU_TAINT is the usual taint."""
        api = self.control_plane.api
        taken = len(api.request("GET", "/api/v1/nodes")["items"])
        address = str(ipaddress.ip_network(SIMULATED_NODES)[taken + 1])
        manifest = node_manifest(
            name,
            address,
            product=product,
            gpus=gpus,
            memory=memory,
            gpu_memory_mib=gpu_memory_mib,
            taints=taints,
            labels=labels or {},
        )
        api.request("POST", "/api/v1/nodes", manifest)
        process.wait_for(
            f"node {name}",
            lambda: _settled(api.get(f"/api/v1/nodes/{name}")),
            self.processes,
            timeout_s=NODE_LIMIT_S,
        )

    def stop(self) -> None:
        """Stop kwok."""
        stop_state(self.control_plane.state)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def stop_state(state: Path) -> None:
    """Stop the kwok that `state` records; harmless to repeat."""
    process.stop(process.from_record(process.read_json(state / RECORD)))
    (state / RECORD).unlink(missing_ok=True)
