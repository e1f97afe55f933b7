"""Event-loop time that jumps, and operators as real processes."""

import asyncio
import json
import os
import re
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest
import yaml
from audit import asked, forbidden

from hisparse_operator.decide.catalogue import may_stand
from hisparse_operator.decide.conditions import Condition
from hisparse_testenv.api import MERGE_PATCH
from hisparse_testenv.control_plane import ControlPlane
from hisparse_testenv.shared import Cluster
from hisparse_testenv.simulated import SimulatedNodes

T = TypeVar("T")
ROOT = Path(__file__).parents[2]
RBAC = ROOT / "operator" / "deploy" / "rbac.yaml"
CRDS = ROOT / "crds"
API = "/apis/inference.hisparse.dev/v1alpha1"


class _JumpingSelector(selectors.DefaultSelector):
    """Where the loop would sleep, its clock moves on instead."""

    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        found = super().select(0)
        if not found:
            assert timeout is not None, "nothing will ever happen again"
            self.now += timeout
        return found


class _JumpingLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


@pytest.fixture(scope="session", autouse=True)
def only_conditions_of_the_catalogue() -> Iterator[None]:
    """Whatever condition a test makes the operator judge, its catalogue knows."""
    made = Condition.__init__

    def checked(self: Condition, *values: Any, **named: Any) -> None:
        made(self, *values, **named)
        told = (self.type.value, self.status.value, self.reason.value)
        assert may_stand(*told), f"{' '.join(told)} is not in hisparse_operator.decide.catalogue"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Condition, "__init__", checked)
        yield


@pytest.fixture
def on_jumping_time() -> Callable[[Coroutine[Any, Any, T]], T]:
    """Run a coroutine on a loop whose clock jumps over every wait."""

    def run(work: Coroutine[Any, Any, T]) -> T:
        loop = _JumpingLoop()
        try:
            return loop.run_until_complete(work)
        finally:
            loop.close()

    return run


def until(condition: Callable[[], T | None], what: str, limit_s: float = 30.0) -> T:
    """Wait for something to become true; its value."""
    deadline = time.monotonic() + limit_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {limit_s:g} s: {what}"
        time.sleep(0.05)
    return value


@pytest.fixture(scope="session")
def installed(cluster: Cluster) -> Iterator[Cluster]:
    """The shared cluster with our CRDs and the operator's roles."""
    yield install(cluster)
    never_refused(cluster)


@pytest.fixture(scope="session")
def private_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster that no other test sees, for an operator that serves all namespaces. Seven servers with 8 GPUs."""
    with (
        ControlPlane.start(tmp_path_factory.mktemp("private"), audit=True) as plane,
        SimulatedNodes.start(plane) as nodes,
    ):
        for number in range(7):
            nodes.add_node(f"gpu-{number}")
        cluster = install(Cluster(plane, nodes, plane.kubeconfig, plane.state / "audit.log"))
        yield cluster
        never_refused(cluster)


WITH_ALL_RIGHTS: set[str] = set()
"""Users of this session whose rights no test has taken away."""


def never_refused(cluster: Cluster) -> None:
    """In a whole session no operator asked for anything that its roles do not give it."""
    found = [one for one in forbidden(cluster.audit_log, WITH_ALL_RIGHTS) if not one.is_optional]
    assert not found, found


def install(cluster: Cluster) -> Cluster:
    """Give a cluster our CRDs and the operator's roles."""
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(CRDS))
    until(lambda: cluster.control_plane.api.get(API) is not None, "the API group is served")
    roles = [one for one in yaml.safe_load_all(RBAC.read_text()) if one["kind"] == "ClusterRole"]
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", input=yaml.safe_dump_all(roles))
    return cluster


def grant(cluster: Cluster, namespace: str, user: str, *, everywhere: bool = False) -> None:
    """Bind a user to the rights of an operator that serves one namespace, or all, and keeps its lease here."""
    role = next(one for one in yaml.safe_load_all(RBAC.read_text()) if one["kind"] == "Role")
    subjects = [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}]
    references: tuple[dict[str, str], ...] = (
        {"kind": "ClusterRole", "name": "hisparse-operator"},
        {"kind": "Role", "name": "hisparse-operator-lease"},
    )
    bindings: list[dict[str, Any]] = [
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": ref["name"], "namespace": namespace},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", **ref},
            "subjects": subjects,
        }
        for ref in references
    ]
    if everywhere:
        bindings += [
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "ClusterRoleBinding",
                "metadata": {"name": name},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
                "subjects": subjects,
            }
            for name in ("hisparse-operator", "hisparse-operator-cluster")
        ]
    role["metadata"]["namespace"] = namespace
    cluster.kubectl(
        "apply", "--server-side", "--force-conflicts", "-f", "-", input=yaml.safe_dump_all([role, *bindings])
    )


@dataclass
class Running:
    """An operator process."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path

    def page(self, path: str) -> str:
        """One of its pages; the text of an error too."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
                return str(answer.read().decode())
        except OSError as error:
            return f"{error}"

    def metric(self, name: str) -> float | None:
        """One sample of /metrics, by its name and labels as they stand there."""
        for line in self.page("/metrics").splitlines():
            if line.startswith(f"{name} "):
                return float(line.split()[-1])
        return None

    def leads(self) -> bool:
        """Whether it leads and has seen everything once."""
        return self.page("/readyz").startswith("leading\n")

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and wait for the exit code."""
        begun = time.monotonic()
        self.process.send_signal(number)
        code = self.process.wait(15)
        sys.stdout.write(f"{self.log.name}: ended with {code} after {time.monotonic() - begun:.1f} s\n")
        return code

    def lines(self) -> list[dict[str, Any]]:
        """What it logged."""
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]


@dataclass
class Operators:
    """Starts operators that serve one namespace, or all, with just the rights of deploy/rbac.yaml."""

    cluster: Cluster
    namespace: str
    folder: Path
    everywhere: bool = False
    running: list[Running] = field(default_factory=list)

    @property
    def user(self) -> str:
        """The name under which they appear in the audit log."""
        return f"operator-{self.namespace}"

    def lose_rights(self) -> None:
        """A test takes rights away: the API server will say no."""
        WITH_ALL_RIGHTS.discard(self.user)

    def start(
        self, *words: str, program: tuple[str, ...] = ("-m", "hisparse_operator"), kubeconfig: Path | None = None
    ) -> Running:
        """Start one; it need not lead yet. A kubeconfig of a FaultProxy puts that between."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        log = self.folder / f"operator-{len(self.running)}.log"
        arguments = [
            "--kubeconfig",
            str(kubeconfig or self.cluster.control_plane.user(self.user)),
            "--lease-namespace",
            self.namespace,
        ]
        arguments += [] if self.everywhere else ["--namespace", self.namespace]
        arguments += ["--listen", f"127.0.0.1:{port}", "--log-format", "json", "--no-hub", *words]
        with log.open("wb") as sink:
            process = subprocess.Popen(
                [sys.executable, "-X", "faulthandler", *program, *arguments],
                stdout=sink,
                stderr=subprocess.STDOUT,
                env={key: value for key, value in os.environ.items() if not key.startswith("HISPARSE_")},
            )
        found = Running(process, port, log)
        self.running.append(found)
        return found

    def leading(
        self, *words: str, program: tuple[str, ...] = ("-m", "hisparse_operator"), kubeconfig: Path | None = None
    ) -> Running:
        """Start one and wait until it leads."""
        found = self.start(*words, program=program, kubeconfig=kubeconfig)
        until(lambda: found.leads() or found.process.poll() is not None, "the operator leads")
        assert found.process.poll() is None, found.log.read_text()
        return found


@pytest.fixture
def operators(installed: Cluster, namespace: str, tmp_path: Path) -> Iterator[Operators]:
    """Operators for this test's namespace; whichever still run are ended."""
    found = Operators(installed, namespace, tmp_path)
    grant(installed, namespace, found.user)
    WITH_ALL_RIGHTS.add(found.user)
    yield found
    end(found)


@pytest.fixture
def operators_everywhere(private_cluster: Cluster, tmp_path: Path) -> Iterator[Operators]:
    """Operators for all namespaces of the private cluster."""
    found = Operators(private_cluster, f"everywhere-{secrets.token_hex(3)}", tmp_path, everywhere=True)
    private_cluster.kubectl("create", "namespace", found.namespace)
    grant(private_cluster, found.namespace, found.user, everywhere=True)
    WITH_ALL_RIGHTS.add(found.user)
    yield found
    end(found)
    # its pods hold GPUs that the next test counts on
    private_cluster.kubectl("-n", found.namespace, "delete", "hisparseinferences", "--all", "--wait=false", check=False)
    pods = f"/api/v1/namespaces/{found.namespace}/pods"
    until(lambda: not (private_cluster.control_plane.api.get(pods) or {"items": []})["items"], "its pods are gone")


def end(operators: Operators) -> None:
    """End those that still run; their logs go to a failed test's report."""
    for one in operators.running:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait()
        sys.stdout.write(f"--- {one.log.name}\n{one.log.read_text()[-6000:]}\n")


def smallest(namespace: str, name: str, **spec: Any) -> dict[str, Any]:
    """The smallest object of the reference."""
    return {
        "apiVersion": "inference.hisparse.dev/v1alpha1",
        "kind": "HiSparseInference",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "model": {"huggingFace": {"repo": "zai-org/GLM-5.3-FP8"}},
            "context": {"maxTokens": 1048576},
            "resources": {"gpus": 8},
            **spec,
        },
    }


CHILDREN = (
    "controllerrevisions.apps,replicasets.apps,configmaps,services,serviceaccounts,networkpolicies,pods,"
    "poddisruptionbudgets"
)
SELECTOR = "inference.hisparse.dev/inference"


class Namespace:
    """Plain requests in the namespace of a test, and operators for it."""

    def __init__(self, operators: Operators) -> None:
        self.operators = operators
        self.api = operators.cluster.control_plane.api
        self.kubectl = operators.cluster.kubectl
        self.name = operators.namespace

    def path(self, name: str = "") -> str:
        return f"{API}/namespaces/{self.name}/hisparseinferences" + (f"/{name}" if name else "")

    def create(self, name: str = "glm", **spec: Any) -> dict[str, Any]:
        found: dict[str, Any] = self.api.request("POST", self.path(), smallest(self.name, name, **spec))
        return found

    def edit(self, name: str, spec: dict[str, Any]) -> None:
        self.api.request("PATCH", self.path(name), {"spec": spec}, MERGE_PATCH)

    def inference(self, name: str = "glm") -> dict[str, Any]:
        found: dict[str, Any] = self.api.request("GET", self.path(name))
        return found

    def condition(self, wanted: str, name: str = "glm") -> dict[str, Any]:
        conditions = (self.inference(name).get("status") or {}).get("conditions") or ()
        found: dict[str, Any] = next((one for one in conditions if one["type"] == wanted), {})
        return found

    def observed(self, name: str = "glm") -> bool:
        found = self.inference(name)
        observed = (found.get("status") or {}).get("observedGeneration")
        return bool(observed == found["metadata"]["generation"])

    def converged(self, name: str = "glm") -> bool:
        """Whether the status says that all is done, for this generation."""
        found = self.api.get(self.path(name)) or {}
        status = found.get("status") or {}
        conditions = {one["type"]: one for one in status.get("conditions", ())}
        return bool(
            status.get("observedGeneration") == found.get("metadata", {}).get("generation")
            and conditions.get("Ready", {}).get("status") == "True"
            and conditions.get("Progressing", {}).get("reason") == "Complete"
        )

    def children(self) -> dict[str, str]:
        """Kind and name of every child, and its version."""
        text = self.kubectl("-n", self.name, "get", CHILDREN, "-l", SELECTOR, "-o", "json").stdout
        return {
            f"{one['kind']}/{one['metadata']['name']}": one["metadata"]["resourceVersion"]
            for one in json.loads(text)["items"]
        }

    def shape(self, name: str) -> set[str]:
        """The children of the revision that is wanted and those of all, without what differs from life to life."""
        revision = self.inference(name)["status"]["updateRevision"]
        names = [one for one in self.children() if revision in one or not re.search(f"{name}-[0-9a-z]{{8,}}", one)]
        return {re.sub(r"-[a-z0-9]{5}$", "-x", one.replace(revision, "REVISION")) for one in names}

    def child(self, kind: str) -> str:
        """The name of the one child of a kind."""
        (found,) = [one.partition("/")[2] for one in self.children() if one.startswith(f"{kind}/")]
        return found

    def settled(self, limit_s: float = 60.0) -> dict[str, str]:
        """Wait until the children exist and nothing about them changes any more."""
        before: dict[str, str] = {}

        def still() -> bool:
            nonlocal before
            time.sleep(1)
            now = self.children()
            rests = bool(now) and now == before
            before = now
            return rests

        until(still, "the children come to rest", limit_s)
        return before

    def until(self, condition: Callable[[], T | None], what: str, limit_s: float = 30.0) -> T:
        """Wait for something to become true; its value."""
        return until(condition, what, limit_s)

    def writes(self) -> list[str]:
        """What the operators asked the API server to change, their Lease apart."""
        return [
            f"{one.verb} {one.uri} {one.code}"
            for one in asked(self.operators.cluster.audit_log, self.operators.user)
            if one.changes and one.resource != "leases"
        ]


@pytest.fixture
def everywhere(operators_everywhere: Operators) -> Namespace:
    """A namespace of the private cluster, for an operator that serves all."""
    return Namespace(operators_everywhere)


@pytest.fixture
def space(operators: Operators) -> Namespace:
    """This test's namespace, in which an operator may be started."""
    return Namespace(operators)
