"""A cluster of simulated GPU nodes with a real operator process, and what each process costs.

API server, etcd, controller manager and scheduler are real and run on this machine beside the operator; kwok plays the
kubelets. The operator has exactly the rights of operator/deploy/rbac.yaml.
"""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import json
import os
import re
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import yaml
from tests.bench.figures import cpu_seconds

from hisparse_testenv.control_plane import ControlPlane
from hisparse_testenv.simulated import SIMULATED_NODES, SimulatedNodes, node_manifest

ROOT: Final = Path(__file__).parents[2]
DEPLOY: Final = ROOT / "operator" / "deploy"
API: Final = "/apis/inference.hisparse.dev/v1alpha1"
OBJECTS: Final = f"{API}/namespaces/default/hisparseinferences"
LABEL: Final = "inference.hisparse.dev/inference"
CHILDREN: Final = (
    "/apis/apps/v1/controllerrevisions",
    "/apis/apps/v1/replicasets",
    "/api/v1/configmaps",
    "/api/v1/services",
    "/api/v1/serviceaccounts",
    "/apis/networking.k8s.io/v1/networkpolicies",
    "/apis/policy/v1/poddisruptionbudgets",
)
"""What the operator itself writes; pods and EndpointSlices come from Kubernetes' own controllers."""
GPUS_PER_NODE: Final = 8
_USER: Final = "system:serviceaccount:hisparse:hisparse-operator"
_GROUPS: Final = ("system:serviceaccounts", "system:serviceaccounts:hisparse", "system:authenticated")
_SAMPLE: Final = re.compile(r"(?P<name>[a-z_]+)(?:\{(?P<labels>.*)\})? (?P<value>\S+)")
_LABEL: Final = re.compile(r'(\w+)="([^"]*)"')
_PAGE_LIMIT_S: Final = 30
_REQUEST_LIMIT_S: Final = 60


def samples(page: str) -> Iterator[tuple[str, dict[str, str], float]]:
    """Name, labels and value of each line of a page that Prometheus reads."""
    for line in page.splitlines():
        if not line.startswith("#") and (match := _SAMPLE.fullmatch(line)):
            yield match["name"], dict(_LABEL.findall(match["labels"] or "")), float(match["value"])


class Session:
    """Requests of the administrator over one connection that stays open."""

    def __init__(self, plane: ControlPlane) -> None:
        self._address = urllib.parse.urlsplit(plane.server)
        api = plane.api
        self._context = ssl.create_default_context(cafile=str(api.authority.cert))
        self._context.load_cert_chain(api.user.cert, api.user.key)
        self._connection = self._connect()

    def _connect(self) -> http.client.HTTPSConnection:
        host, port = self._address.hostname or "", self._address.port
        return http.client.HTTPSConnection(host, port, timeout=_REQUEST_LIMIT_S, context=self._context)

    def text(self, method: str, path: str, body: Mapping[str, Any] | None = None, content: str = "") -> tuple[int, str]:
        """Status and body of an answer."""
        headers = {"Content-Type": content or "application/json"}
        data = None if body is None else json.dumps(body)
        try:
            return self._answer(method, path, data, headers)
        except (http.client.RemoteDisconnected, ConnectionError):
            # the API server closes what was idle for long, before it reads anything
            self._connection.close()
            return self._answer(method, path, data, headers)

    def _answer(self, method: str, path: str, data: str | None, headers: Mapping[str, str]) -> tuple[int, str]:
        self._connection.request(method, path, data, headers)
        answer = self._connection.getresponse()
        return answer.status, answer.read().decode()

    def send(self, method: str, path: str, body: Mapping[str, Any] | None = None, content: str = "") -> dict[str, Any]:
        """The JSON object that comes back. Ends the benchmark where the API server refuses."""
        status, text = self.text(method, path, body, content)
        if status >= http.HTTPStatus.MULTIPLE_CHOICES:
            raise SystemExit(f"{method} {path}: {status} {text[:500]}")
        found: dict[str, Any] = json.loads(text)
        return found

    def items(self, path: str) -> list[dict[str, Any]]:
        """The objects of a list."""
        found: list[dict[str, Any]] = self.send("GET", path)["items"]
        return found

    def lines(self, path: str) -> Iterator[dict[str, Any]]:
        """The events of a watch, until the connection ends."""
        connection = self._connect()
        connection.request("GET", path)
        for line in connection.getresponse():
            yield json.loads(line)


@dataclass
class Fleet:
    """The control plane, its nodes and an operator that is started and stopped as often as wanted."""

    folder: Path
    plane: ControlPlane
    nodes: SimulatedNodes
    session: Session
    operator: Operator | None = None
    _kubeconfig: Path | None = None

    @classmethod
    @contextlib.contextmanager
    def start(cls, folder: Path, nodes: int) -> Iterator[Self]:
        """A cluster with our CRDs, the operator's rights and so many nodes of eight H200."""
        subprocess.run(
            [sys.executable, "-m", "hisparse_operator", "--version"],
            check=True,
            env=_environment(),
            capture_output=True,
        )
        with ControlPlane.start(folder / "plane", say=lambda _: None) as plane, SimulatedNodes.start(plane) as kwok:
            plane.kubectl("apply", "--server-side", "-f", str(ROOT / "crds"))
            plane.kubectl("create", "namespace", "hisparse-nodes")
            rest = yaml.safe_load_all((DEPLOY / "operator.yaml").read_text())
            rights = [one for one in rest if one["kind"] != "Deployment"]
            plane.kubectl("apply", "--server-side", "-f", "-", input=yaml.safe_dump_all(rights))
            plane.kubectl("apply", "--server-side", "-f", str(DEPLOY / "rbac.yaml"))
            found = cls(folder, plane, kwok, Session(plane), _kubeconfig=plane.user(_USER, _GROUPS))
            until(lambda: found.session.text("GET", OBJECTS)[0] == http.HTTPStatus.OK, "the kind is served", 60)
            found.add_nodes(nodes)
            try:
                yield found
            finally:
                found.stop_operator()

    def add_nodes(self, count: int) -> None:
        """Add nodes and wait until pods can be bound to each."""
        network = ipaddress.ip_network(SIMULATED_NODES)
        for number in range(count):
            manifest = node_manifest(
                f"gpu-{number:03}",
                str(network[number + 1]),
                product="NVIDIA-H200",
                gpus=GPUS_PER_NODE,
                memory="2Ti",
                gpu_memory_mib=143771,
                taints=(),
                labels={},
            )
            self.session.send("POST", "/api/v1/nodes", manifest)

        def usable() -> bool:
            nodes = self.session.items("/api/v1/nodes")
            return all(_is_usable(node) for node in nodes if node["metadata"]["name"].startswith("gpu-"))

        until(usable, "the nodes are ready", 120)

    def create(self, count: int, **spec: Any) -> None:
        """Objects of Llama-3.1-8B on one GPU each, as a user would write them."""
        for number in range(count):
            self.session.send("POST", OBJECTS, inference(f"llama-{number:04}", **spec))

    def start_operator(self, *words: str) -> Operator:
        """Start the operator; it need not be ready yet."""
        self.stop_operator()
        self.operator = Operator(self.folder, str(self._kubeconfig), *words)
        return self.operator

    def stop_operator(self) -> None:
        """Stop the operator, if one runs."""
        if self.operator is not None:
            self.operator.stop()
        self.operator = None

    def processes(self) -> dict[str, int]:
        """Process ids by what they are."""
        found = {one.name: one.pid for one in (*self.plane.processes, *self.nodes.processes)}
        return ({"operator": self.operator.process.pid} if self.operator else {}) | found

    def served(self) -> Counter[str]:
        """Requests that the API server has answered so far, from whomever, by verb."""
        found: Counter[str] = Counter()
        for name, labels, value in samples(self.session.text("GET", "/metrics")[1]):
            if name == "apiserver_request_total":
                found[labels["verb"]] += int(value)
        return found

    def versions(self) -> dict[str, str]:
        """Resource versions of the objects and of all that the operator wrote for them."""
        paths = (OBJECTS, *(f"{path}?labelSelector={LABEL}" for path in CHILDREN))
        return {
            f"{path}/{one['metadata']['name']}": one["metadata"]["resourceVersion"]
            for path in paths
            for one in self.session.items(path)
        }


class Operator:
    """One operator process that serves the whole cluster."""

    def __init__(self, folder: Path, kubeconfig: str, *words: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self.log = folder / f"operator-{time.monotonic_ns()}.log"
        arguments = [
            *("--kubeconfig", kubeconfig, "--lease-namespace", "hisparse", "--no-hub"),
            *("--listen", f"127.0.0.1:{self._port}", "--log-format", "json", *words),
        ]
        self.begun = time.monotonic()
        with self.log.open("wb") as sink:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "hisparse_operator", *arguments],
                stdout=sink,
                stderr=subprocess.STDOUT,
                env=_environment(),
            )

    def page(self, path: str) -> str:
        """A page of the operator, empty while there is none."""
        if self.process.poll() is not None:
            raise SystemExit(f"the operator has ended:\n{self.log.read_text()[-3000:]}")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}{path}", timeout=_PAGE_LIMIT_S) as answer:
                return str(answer.read().decode())
        except OSError:
            return ""

    @property
    def ready(self) -> bool:
        """Whether it leads and has listed everything."""
        return self.page("/readyz").startswith("leading\n")

    def readings(self) -> Readings:
        """Its own metrics now."""
        return Readings.of(self.page("/metrics"))

    def stop(self) -> None:
        """End it; it lets go of its lease."""
        self.process.terminate()
        self.process.wait(60)


@dataclass(frozen=True)
class Readings:
    """What the operator's page says: requests by (verb, resource, code), passes by result, pass durations, gauges."""

    requests: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    passes: Counter[str] = field(default_factory=Counter)
    durations: Counter[float] = field(default_factory=Counter)
    gauges: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, page: str) -> Readings:
        """Read the page."""
        requests: Counter[tuple[str, str, str]] = Counter()
        passes: Counter[str] = Counter()
        durations: Counter[float] = Counter()
        gauges: dict[str, float] = {}
        for name, labels, value in samples(page):
            match name.removeprefix("hisparse_operator_"):
                case "api_requests_total":
                    requests[labels["verb"], labels["resource"], labels["code"]] = int(value)
                case "reconciles_total":
                    passes[labels["result"]] = int(value)
                case "reconcile_duration_seconds_bucket":
                    durations[float(labels["le"])] = int(value)
                case short if not labels:
                    gauges[short] = value
        return cls(requests, passes, durations, gauges)

    def since(self, before: Readings) -> Readings:
        """What has come since; gauges as they are."""
        return Readings(
            self.requests - before.requests,
            self.passes - before.passes,
            self.durations - before.durations,
            self.gauges,
        )

    @property
    def by_verb(self) -> Counter[str]:
        """Requests by verb; those of the lease, which go on at rest, apart."""
        found: Counter[str] = Counter()
        for (verb, resource, _), count in self.requests.items():
            found[verb] += 0 if resource == "leases" else count
        return +found

    @property
    def writes(self) -> int:
        """Requests that change something."""
        return sum(count for verb, count in self.by_verb.items() if verb not in ("get", "list"))

    def quantile(self, share: float) -> float:
        """The bucket's upper bound that this share of the passes stayed below, in seconds."""
        total = max(self.durations.values(), default=0)
        return next((edge for edge, count in sorted(self.durations.items()) if count >= share * total), 0.0)


@dataclass
class Meter:
    """CPU of every process and requests of everybody, from `start` until now."""

    fleet: Fleet
    cpu: dict[str, float] = field(default_factory=dict)
    served: Counter[str] = field(default_factory=Counter)
    begun: float = 0.0

    @classmethod
    def start(cls, fleet: Fleet) -> Meter:
        """From now on."""
        cpu = {name: cpu_seconds(pid) for name, pid in fleet.processes().items()}
        return cls(fleet, cpu, fleet.served(), time.monotonic())

    def stop(self) -> Cost:
        """The cost until now."""
        seconds = time.monotonic() - self.begun
        now = {name: cpu_seconds(pid) for name, pid in self.fleet.processes().items()}
        cpu = {name: value - self.cpu.get(name, 0.0) for name, value in now.items()}
        return Cost(seconds, cpu, self.fleet.served() - self.served)


@dataclass(frozen=True)
class Cost:
    """Wall-clock seconds, CPU seconds by process, and requests that the API server answered by verb."""

    seconds: float
    cpu: Mapping[str, float]
    served: Counter[str]


class Watch:
    """Events of a list, each with the moment when it came, in a thread of its own."""

    def __init__(self, plane: ControlPlane, path: str, take: Callable[[dict[str, Any], float], None]) -> None:
        self._session = Session(plane)
        version = self._session.send("GET", f"{path}&limit=1")["metadata"]["resourceVersion"]
        self._path = f"{path}&watch=true&resourceVersion={version}"
        self._take = take
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        with contextlib.suppress(OSError, http.client.HTTPException):  # the API server ends
            for event in self._session.lines(self._path):
                self._take(event, time.monotonic())


def inference(name: str, **spec: Any) -> dict[str, Any]:
    """A small dense model on one GPU."""
    model = {"huggingFace": {"repo": "meta-llama/Llama-3.1-8B-Instruct"}}
    return {
        "apiVersion": "inference.hisparse.dev/v1alpha1",
        "kind": "HiSparseInference",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"model": model, "context": {"maxTokens": 65536}, "resources": {"gpus": 1}, **spec},
    }


def is_converged(item: Mapping[str, Any]) -> bool:
    """Whether the operator has seen this generation and all its replicas serve."""
    status = item.get("status") or {}
    ready = any(one["type"] == "Ready" and one["status"] == "True" for one in status.get("conditions") or ())
    return ready and status.get("observedGeneration") == item["metadata"]["generation"]


def until(condition: Callable[[], bool], what: str, limit_s: float, poll_s: float = 0.5) -> None:
    """Wait for something; ends the benchmark where it does not come."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"not within {limit_s:g} s: {what}")
        time.sleep(poll_s)


def _environment() -> dict[str, str]:
    # with bytecode kept, as in the image: compiling all modules takes longer than anything else at a start
    ours = ("HISPARSE_", "PYTHONDONTWRITEBYTECODE")
    return {key: value for key, value in os.environ.items() if not key.startswith(ours)}


def _is_usable(node: Mapping[str, Any]) -> bool:
    conditions = {one["type"]: one["status"] for one in node.get("status", {}).get("conditions", ())}
    return conditions.get("Ready") == "True" and not (node.get("spec") or {}).get("taints")
