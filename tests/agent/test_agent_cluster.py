"""The agent as a real process against a real API server, with the rights and the admission policy of its manifests."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shlex
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import kubernetes_validate
import pytest
import yaml
from audit import Request, asked, granted, needed
from node_readings import changed, healthy

from hisparse.nodes.catalogue import NodeCondition
from hisparse.nodes.report import HiSparseNodeStatus
from hisparse_agent.publish.conditions import TAINT_KEY
from hisparse_agent.readings import Absence, Missing, NodeReading, NvLink
from hisparse_agent.replay import Recorder
from hisparse_testenv.api import ApiError
from hisparse_testenv.shared import Cluster

T = TypeVar("T")
ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "node_agent" / "deploy"
DOCUMENTS: list[dict[str, Any]] = [
    one for path in sorted(DEPLOY.glob("*.yaml")) for one in yaml.safe_load_all(path.read_text())
]
NAMESPACE = "hisparse-nodes"
ACCOUNT = "hisparse-agent"
USER = f"system:serviceaccount:{NAMESPACE}:{ACCOUNT}"
API = "/apis/inference.hisparse.dev/v1alpha1"
ADOPTS = ("inference.hisparse.dev", "hisparsenodes", "patch")
SPEED = 60
"""Polls are recorded 15 s apart, so that one comes every quarter of a second."""


def until(condition: Callable[[], T | None], what: str, limit_s: float = 60.0) -> T:
    deadline = time.monotonic() + limit_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {limit_s:g} s: {what}"
        time.sleep(0.05)
    return value


# --- manifests, without a cluster ------------------------------------------------------------------------------------


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda one: f"{one['kind']} {one['metadata']['name']}")
def test_every_document_is_valid(document: dict[str, Any]) -> None:
    kubernetes_validate.validate(document, "1.34", strict=True)


def test_the_roles_give_neither_secrets_nor_config_maps_nor_wildcards() -> None:
    for role in (one for one in DOCUMENTS if one["kind"].endswith("Role")):
        for rule in role["rules"]:
            assert not {"secrets", "configmaps", "*"} & set(rule["resources"])
            assert not {"delete", "deletecollection", "*"} & set(rule["verbs"])


def pods_of(name: str) -> dict[str, Any]:
    documents = list(yaml.safe_load_all((DEPLOY / name).read_text()))
    found: dict[str, Any] = next(one for one in documents if one["kind"] == "DaemonSet")["spec"]["template"]["spec"]
    return found


@pytest.mark.parametrize("name", ["agent.yaml", "actuator.yaml"])
def test_the_reader_is_unprivileged_and_sees_the_host_read_only(name: str) -> None:
    pod = pods_of(name)
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
    agent = next(one for one in pod["containers"] if one["name"] == "agent")
    security = {**pod["securityContext"], **agent["securityContext"]}
    assert security["runAsNonRoot"] is True
    assert security["allowPrivilegeEscalation"] is False
    assert security["readOnlyRootFilesystem"] is True
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert "privileged" not in security
    writable = {one["name"] for one in agent["volumeMounts"] if not one.get("readOnly")}
    assert writable == ({"state"} if name == "actuator.yaml" else set())


def test_the_actuator_has_no_token() -> None:
    pod = pods_of("actuator.yaml")
    assert pod["automountServiceAccountToken"] is False
    actuator = next(one for one in pod["containers"] if one["name"] == "actuator")
    assert [one["name"] for one in actuator["volumeMounts"]] == ["state"]


def test_both_forms_are_one_daemon_set() -> None:
    plain, both = pods_of("agent.yaml"), pods_of("actuator.yaml")
    agent, beside = plain["containers"][0], both["containers"][0]
    assert {key: agent[key] for key in ("image", "env", "ports", "resources", "livenessProbe", "readinessProbe")} == {
        key: beside[key] for key in ("image", "env", "ports", "resources", "livenessProbe", "readinessProbe")
    }
    assert set(agent["args"]) < set(beside["args"])


# --- a cluster with agents -------------------------------------------------------------------------------------------


@dataclass
class Proxy:
    """Passes TCP to the API server, until it is told not to."""

    server: str
    listener: socket.socket = field(default_factory=lambda: socket.create_server(("127.0.0.1", 0)))
    up: bool = True
    open: list[socket.socket] = field(default_factory=list)

    def __post_init__(self) -> None:
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.listener.getsockname()[1]}"

    def cut(self) -> None:
        self.up = False
        for one in self.open:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        self.open.clear()

    def restore(self) -> None:
        self.up = True

    def close(self) -> None:
        self.cut()
        self.listener.close()

    def _accept(self) -> None:
        host, _, port = self.server.removeprefix("https://").partition(":")
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            if not self.up:
                client.close()
                continue
            upstream = socket.create_connection((host, int(port)))
            self.open += [client, upstream]
            threading.Thread(target=self._join, args=(client, upstream), daemon=True).start()

    def _join(self, client: socket.socket, upstream: socket.socket) -> None:
        with client, upstream:
            back = threading.Thread(target=self._pass, args=(upstream, client), daemon=True)
            back.start()
            self._pass(client, upstream)
            back.join()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


@dataclass
class Running:
    process: subprocess.Popen[bytes]
    port: int
    log: Path

    def page(self, path: str) -> str:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
                return str(answer.read().decode())
        except OSError as error:
            return f"{error}"

    def metric(self, name: str) -> float | None:
        for line in self.page("/metrics").splitlines():
            if line.startswith(f"{name} "):
                return float(line.split()[-1])
        return None

    def polls(self) -> float:
        return self.metric("hisparse_node_poll_duration_seconds_count") or 0

    def after_polls(self, count: int) -> None:
        target = self.polls() + count
        until(lambda: self.polls() >= target, f"{count} more polls")

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(20)


@dataclass
class Fleet:
    """A cluster with what the manifests install, simulated nodes of this test, and agents with tokens of pods there."""

    cluster: Cluster
    folder: Path
    running: list[Running] = field(default_factory=list)
    proxies: list[Proxy] = field(default_factory=list)
    nodes: list[str] = field(default_factory=list)
    policies: list[str] = field(default_factory=list)

    @property
    def api(self) -> Any:
        return self.cluster.control_plane.api

    def node(self) -> str:
        name = f"agent-{secrets.token_hex(3)}"
        self.cluster.add_node(name, gpus=2, labels={"test": name})
        self.nodes.append(name)
        return name

    def token(self, node: str) -> str:
        """As a pod of the DaemonSet on that node has it."""
        pod = {
            "metadata": {"name": f"agent-on-{node}", "namespace": NAMESPACE},
            "spec": {
                "nodeName": node,
                "serviceAccountName": ACCOUNT,
                "tolerations": [{"operator": "Exists"}],
                "containers": [{"name": "agent", "image": "agent"}],
            },
        }
        path = f"/api/v1/namespaces/{NAMESPACE}/pods"
        made = self.api.get(f"{path}/agent-on-{node}") or self.api.request("POST", path, pod)
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {
                "audiences": [],
                "expirationSeconds": 3600,
                "boundObjectRef": {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "name": made["metadata"]["name"],
                    "uid": made["metadata"]["uid"],
                },
            },
        }
        account = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{ACCOUNT}/token"
        return str(self.api.request("POST", account, request)["status"]["token"])

    def proxy(self) -> Proxy:
        self.proxies.append(Proxy(self.cluster.control_plane.server))
        return self.proxies[-1]

    def kubeconfig(self, node: str, server: str | None = None) -> Path:
        plane = self.cluster.control_plane
        cluster = {"server": server or plane.server, "certificate-authority": str(plane.authority.cert)}
        config = {
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": {"token": self.token(node)}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        path = self.folder / f"{node}-{len(self.running)}.kubeconfig"
        path.write_text(json.dumps(config))
        return path

    def start(self, node: str, readings: Sequence[NodeReading], *words: str, server: str | None = None) -> Running:
        recording = self.folder / f"{node}-{len(self.running)}"
        recorder = Recorder(recording)
        for reading in readings:
            recorder.write(reading)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        log = self.folder / f"{node}-{len(self.running)}.log"
        arguments = [
            *("--kubeconfig", str(self.kubeconfig(node, server)), "--node", node, "--namespace", NAMESPACE),
            *("--replay", str(recording), "--replay-speed", str(SPEED), "--listen", f"127.0.0.1:{port}"),
            *("--log-format", "json", *words),
        ]
        with log.open("wb") as sink:
            process = subprocess.Popen(
                [sys.executable, "-X", "faulthandler", "-m", "hisparse_agent", *arguments],
                stdout=sink,
                stderr=subprocess.STDOUT,
                env={key: value for key, value in os.environ.items() if not key.startswith("HISPARSE_")},
            )
        found = Running(process, port, log)
        self.running.append(found)
        until(lambda: found.page("/readyz") == "reading\n" or process.poll() is not None, "the agent reads")
        assert process.poll() is None, log.read_text()
        return found

    def policy(self, node: str, **spec: Any) -> str:
        name = f"p-{node}"
        document = {
            "apiVersion": "inference.hisparse.dev/v1alpha1",
            "kind": "HiSparseNodePolicy",
            "metadata": {"name": name},
            "spec": {"nodeSelector": {"test": node}, **spec},
        }
        self.api.request("POST", f"{API}/hisparsenodepolicies", document)
        self.policies.append(name)
        return name

    def report(self, node: str) -> dict[str, Any]:
        return (self.api.get(f"{API}/hisparsenodes/{node}") or {}).get("status") or {}

    def version(self, node: str) -> str:
        return str(self.api.request("GET", f"{API}/hisparsenodes/{node}")["metadata"]["resourceVersion"])

    def conditions(self, node: str) -> dict[str, dict[str, Any]]:
        live = self.api.request("GET", f"/api/v1/nodes/{node}")
        return {one["type"]: one for one in live["status"]["conditions"]}

    def condition(self, node: str, kind: NodeCondition) -> str:
        return str(self.conditions(node).get(kind.value, {}).get("status", ""))

    def taints(self, node: str) -> list[dict[str, Any]]:
        live = self.api.request("GET", f"/api/v1/nodes/{node}")
        return [one for one in live["spec"].get("taints") or () if one["key"] == TAINT_KEY]

    def events(self, node: str) -> list[tuple[str, str]]:
        query = f"fieldSelector=involvedObject.name%3D{node},reportingComponent%3Dhisparse-agent"
        found = self.api.request("GET", f"/api/v1/namespaces/default/events?{query}")["items"]
        return [(one["reason"], one["message"]) for one in found]

    def writes(self, node: str) -> list[str]:
        """What the agents asked to be changed of or about a node, as the audit log has it."""
        return [
            f"{one.verb} {one.uri} {one.code}" for one in self.asked(node) if one.changes and one.resource != "leases"
        ]

    def asked(self, node: str) -> list[Request]:
        """Everything that the agents of a node asked for."""
        return [one for one in asked(self.cluster.audit_log, USER) if one.node == node]


def served(cluster: Cluster) -> bool:
    answer = cluster.control_plane.api.get(API)
    names = {one["name"] for one in (answer or {}).get("resources", ())}
    return {"hisparsenodes/status", "hisparsenodepolicies"} <= names


@pytest.fixture(scope="module")
def installed(cluster: Cluster) -> Cluster:
    apply = ("apply", "--server-side", "--force-conflicts", "-f")
    cluster.kubectl(*apply, str(ROOT / "crds"))
    cluster.kubectl(*apply, str(DEPLOY / "rbac.yaml"))
    cluster.kubectl(*apply, str(DEPLOY / "admission.yaml"))
    cluster.kubectl("create", "serviceaccount", ACCOUNT, "-n", NAMESPACE, check=False)
    until(lambda: served(cluster), "the API group is served")
    policy = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/hisparse-agent-own-node"
    checked = until(
        lambda: ((cluster.control_plane.api.get(policy) or {}).get("status") or {}).get("observedGeneration"),
        "the admission policy has been looked at",
    )
    assert checked
    status = cluster.control_plane.api.request("GET", policy)["status"]
    assert not (status.get("typeChecking") or {}).get("expressionWarnings"), status
    return cluster


@pytest.fixture
def fleet(installed: Cluster, tmp_path: Path) -> Iterator[Fleet]:
    found = Fleet(installed, tmp_path)
    yield found
    for one in found.running:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait()
        sys.stdout.write(f"--- {one.log.name}\n{one.log.read_text()[-5000:]}\n")
    for proxy in found.proxies:
        proxy.close()
    for name in found.policies:
        with contextlib.suppress(ApiError):
            found.api.request("DELETE", f"{API}/hisparsenodepolicies/{name}")
    for node in found.nodes:
        for path in (
            f"/api/v1/namespaces/{NAMESPACE}/pods/agent-on-{node}?gracePeriodSeconds=0",
            f"/api/v1/nodes/{node}",
        ):
            with contextlib.suppress(ApiError):
                found.api.request("DELETE", path)


def node_at(poll: int) -> NodeReading:
    """Without an exporter: when the recording is over, its counters would stand still, and that is a finding."""
    return replace(healthy(poll), exporter=Missing(Absence.UNSUPPORTED, "none here"))


def well(polls: int, first: int = 0) -> list[NodeReading]:
    return [node_at(poll) for poll in range(first, first + polls)]


def half_of_the_links(polls: int, first: int = 0) -> list[NodeReading]:
    """The case of 18 links that fall to 9, on the second GPU."""
    links = tuple(NvLink(port, 1 if port < 9 else 0, 26_562_000_000 if port < 9 else 0, 0, 0, 0) for port in range(18))
    return [changed(node_at(poll), {"nvml.gpus.1.links": links}) for poll in range(first, first + polls)]


pytestmark_cluster = pytest.mark.cluster


@pytestmark_cluster
def test_a_healthy_node_is_reported_and_then_left_in_peace(fleet: Fleet) -> None:
    node = fleet.node()
    running = fleet.start(node, well(3), "--quiet-writes", "1s")
    # rates need some minutes of readings, and until then they are Unknown
    until(lambda: fleet.report(node).get("state") == "Ok", "the report says Ok")
    status = HiSparseNodeStatus.model_validate(fleet.report(node))
    assert (status.faults, status.gpus) == (0, 2)
    assert status.inventory is not None
    assert status.inventory.driver == "580.159.04"
    live = fleet.api.request("GET", f"{API}/hisparsenodes/{node}")
    (owner,) = live["metadata"]["ownerReferences"]
    assert owner["kind"] == "Node"
    assert owner["uid"] == fleet.api.request("GET", f"/api/v1/nodes/{node}")["metadata"]["uid"]
    until(lambda: all(fleet.condition(node, kind) == "True" for kind in NodeCondition), "all conditions are True")
    assert fleet.conditions(node)["Ready"]["status"] == "True", "the kubelet's own are still there"
    assert fleet.taints(node) == []

    running.after_polls(10)
    before, version = fleet.writes(node), fleet.version(node)
    running.after_polls(30)
    assert fleet.writes(node) == before, "nothing changed, nothing is written"
    assert fleet.version(node) == version
    assert fleet.events(node) == []
    assert running.stop() == 0


@pytestmark_cluster
def test_a_heartbeat_is_written_and_moves_no_transition(fleet: Fleet) -> None:
    node = fleet.node()
    running = fleet.start(node, well(3), "--heartbeat", "1s", "--quiet-writes", "300ms")
    until(lambda: fleet.condition(node, NodeCondition.GPU) == "True", "the condition is there")
    first, version = fleet.conditions(node)[NodeCondition.GPU.value], fleet.version(node)
    observed = fleet.report(node)["observedAt"]
    until(lambda: fleet.report(node)["observedAt"] > observed, "a heartbeat of the report")
    later = until(
        lambda: (
            (one := fleet.conditions(node)[NodeCondition.GPU.value])["lastHeartbeatTime"] > first["lastHeartbeatTime"]
            and one
        ),
        "a heartbeat of the condition",
    )
    assert later["lastTransitionTime"] == first["lastTransitionTime"]
    assert fleet.version(node) != version
    assert running.stop() == 0


@pytestmark_cluster
def test_lost_links_are_told_at_once_and_again_when_they_are_back(fleet: Fleet) -> None:
    node = fleet.node()
    fleet.policy(node, taint="PreferNoSchedule", checks=[{"check": "nvlink.links", "leavePolls": 4}], dryRun=False)
    recording = well(8) + half_of_the_links(80, 8) + well(40, 88)
    running = fleet.start(node, recording)
    until(lambda: fleet.condition(node, NodeCondition.LINK) == "False", "the condition turns")
    assert fleet.condition(node, NodeCondition.GPU) == "True"
    found = until(
        lambda: [one for one in fleet.report(node).get("findings", ()) if one["state"] == "Critical"], "it is reported"
    )
    assert {(one["check"], one["subject"]) for one in found} >= {("nvlink.links", "gpu-1")}
    assert {one["subject"] for one in found} == {"gpu-1"}
    taint = until(lambda: fleet.taints(node), "the node is tainted")
    assert [one["effect"] for one in taint] == ["PreferNoSchedule"]
    assert taint[0]["value"] in {one["check"] for one in found}, "it names a check that asks for it"
    lease = fleet.api.request(
        "GET", f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/hisparse-pool-p-{node}"
    )
    assert json.loads(lease["metadata"]["annotations"]["inference.hisparse.dev/slots"])[0]["node"] == node
    until(lambda: any("nvlink.links on gpu-1" in message for _, message in fleet.events(node)), "an Event says so")
    told = [reason for reason, _ in fleet.events(node)]
    assert "Tainted" in told

    until(lambda: fleet.condition(node, NodeCondition.LINK) == "True", "the condition turns back")
    until(lambda: not fleet.taints(node), "the taint goes")
    until(lambda: "FaultCleared" in [reason for reason, _ in fleet.events(node)], "an Event says so")

    def released() -> bool:
        path = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/hisparse-pool-p-{node}"
        return "inference.hisparse.dev/slots" not in (
            fleet.api.request("GET", path)["metadata"].get("annotations") or {}
        )

    until(released, "the slot is given back")
    told = [reason for reason, _ in fleet.events(node)]
    assert told.count("Tainted") == 1
    assert running.stop() == 0

    # this life needs every right that the manifests give, and no other; adopting a report is a test of its own
    rights = granted(rule for one in DOCUMENTS if one["kind"].endswith("Role") for rule in one["rules"])
    assert not [one for one in fleet.asked(node) if one.code == 403]
    assert rights >= needed(fleet.asked(node)) >= rights - {ADOPTS}


@pytestmark_cluster
def test_a_report_without_an_owner_is_adopted(fleet: Fleet) -> None:
    """Restored from a backup, or left of a Node of the same name."""
    node = fleet.node()
    report = {"apiVersion": API.removeprefix("/apis/"), "kind": "HiSparseNode", "metadata": {"name": node}}
    fleet.api.request("POST", f"{API}/hisparsenodes", report)
    running = fleet.start(node, well(3), "--quiet-writes", "1s")
    until(lambda: fleet.report(node).get("state"), "it is written")
    (owner,) = fleet.api.request("GET", f"{API}/hisparsenodes/{node}")["metadata"]["ownerReferences"]
    assert owner["uid"] == fleet.api.request("GET", f"/api/v1/nodes/{node}")["metadata"]["uid"]
    assert running.stop() == 0
    assert ADOPTS in needed(fleet.asked(node))


@pytestmark_cluster
def test_a_dry_run_says_what_it_would_do_and_does_nothing(fleet: Fleet) -> None:
    node = fleet.node()
    fleet.policy(node, taint="NoSchedule", remedies=[{"verb": "power-cap"}])
    hot = [changed(one, {"nvml.gpus.0.heat.margin": 1, "nvml.gpus.0.heat.gpu": 86}) for one in half_of_the_links(60)]
    running = fleet.start(node, hot)
    reasons = until(
        lambda: (
            (told := [reason for reason, _ in fleet.events(node)])
            and {"WouldTaint", "RemedyWould"} <= set(told)
            and told
        ),
        "both are told",
    )
    running.after_polls(20)
    assert fleet.taints(node) == []
    assert fleet.report(node).get("actions", []) == []
    told = [reason for reason, _ in fleet.events(node)]
    assert (told.count("WouldTaint"), told.count("RemedyWould")) == (1, 1), reasons
    assert running.stop() == 0


@pytestmark_cluster
def test_deleting_the_policy_is_the_stop_switch(fleet: Fleet) -> None:
    node = fleet.node()
    name = fleet.policy(node, taint="PreferNoSchedule", dryRun=False)
    running = fleet.start(node, half_of_the_links(5))
    until(lambda: fleet.taints(node), "the node is tainted")
    fleet.api.request("DELETE", f"{API}/hisparsenodepolicies/{name}")
    until(lambda: not fleet.taints(node), "the taint goes")
    assert fleet.condition(node, NodeCondition.LINK) == "False", "what is found is still told"
    assert running.stop() == 0


@pytestmark_cluster
def test_a_person_who_takes_the_taint_off_is_heard(fleet: Fleet) -> None:
    node = fleet.node()
    fleet.policy(node, taint="PreferNoSchedule", dryRun=False)
    running = fleet.start(node, half_of_the_links(5), "--quiet-writes", "300ms")
    until(lambda: fleet.taints(node), "the node is tainted")
    running.after_polls(4)
    fleet.cluster.kubectl("taint", "node", node, f"{TAINT_KEY}-")
    until(lambda: any(one["type"] == "Muted" for one in fleet.report(node).get("conditions", ())), "the check is muted")
    running.after_polls(12)
    muted = next(one for one in fleet.report(node)["conditions"] if one["type"] == "Muted")
    assert "somebody has taken the taint off" in muted["message"]
    assert not [one for one in fleet.taints(node) if one["value"] in muted["message"]]
    assert running.stop() == 0

    # the next run of the agent knows of it
    again = fleet.start(node, half_of_the_links(5), "--quiet-writes", "300ms")
    again.after_polls(12)
    assert not [one for one in fleet.taints(node) if one["value"] in muted["message"]]


@pytestmark_cluster
def test_an_agent_that_starts_again_repeats_and_drops_nothing(fleet: Fleet) -> None:
    node = fleet.node()
    fleet.policy(node, taint="PreferNoSchedule", dryRun=False)
    first = fleet.start(node, half_of_the_links(5))
    until(lambda: fleet.taints(node), "the node is tainted")
    until(lambda: "Tainted" in [reason for reason, _ in fleet.events(node)], "an Event says so")
    taints, events = fleet.taints(node), sorted(fleet.events(node))
    since = fleet.conditions(node)[NodeCondition.LINK.value]["lastTransitionTime"]
    first.process.kill()
    first.process.wait()
    second = fleet.start(node, half_of_the_links(5))
    second.after_polls(15)
    assert fleet.taints(node) == taints
    assert fleet.conditions(node)[NodeCondition.LINK.value]["lastTransitionTime"] == since
    assert sorted(fleet.events(node)) == events


@pytest.mark.chaos
@pytestmark_cluster
def test_an_outage_is_survived_and_the_last_findings_are_told_after_it(fleet: Fleet) -> None:
    node = fleet.node()
    proxy = fleet.proxy()
    running = fleet.start(node, well(100) + half_of_the_links(5, 100), server=proxy.url)
    until(lambda: fleet.condition(node, NodeCondition.LINK) == "True", "the condition is there")
    proxy.cut()
    critical = 'hisparse_node_check_status{check="nvlink.links",subject="gpu-1"}'
    assert running.metric(critical) == 0, "the fault comes while the API server is away"
    until(lambda: running.metric(critical) == 2, "the fault is seen")
    running.after_polls(8)
    assert running.page("/healthz") == "ok\n", "an API server that is away is no reason to be restarted"
    assert fleet.condition(node, NodeCondition.LINK) == "True"
    proxy.restore()
    until(lambda: fleet.condition(node, NodeCondition.LINK) == "False", "it is told after the outage", 120)
    until(lambda: fleet.report(node).get("state") == "Critical", "and reported", 120)
    until(lambda: any("nvlink.links" in message for _, message in fleet.events(node)), "with its Event", 120)
    assert running.stop() == 0


@pytestmark_cluster
def test_an_api_server_that_is_away_at_the_start_is_waited_for(fleet: Fleet) -> None:
    node = fleet.node()
    proxy = fleet.proxy()
    proxy.cut()
    running = fleet.start(node, half_of_the_links(5), server=proxy.url)
    until(lambda: running.metric('hisparse_node_check_status{check="nvlink.links",subject="gpu-1"}') == 2, "it is seen")
    assert fleet.report(node) == {}
    proxy.restore()
    until(lambda: fleet.report(node).get("state") == "Critical", "it is told", 120)
    assert running.stop() == 0


@pytestmark_cluster
def test_a_report_that_somebody_deletes_is_made_again(fleet: Fleet) -> None:
    node = fleet.node()
    running = fleet.start(node, well(3), "--heartbeat", "500ms", "--quiet-writes", "2s")
    first = until(lambda: fleet.api.get(f"{API}/hisparsenodes/{node}"), "it is there")
    until(lambda: fleet.report(node), "and written")
    fleet.api.request("DELETE", f"{API}/hisparsenodes/{node}")
    until(lambda: fleet.report(node).get("state"), "it is there again", 90)
    again = fleet.api.request("GET", f"{API}/hisparsenodes/{node}")
    assert again["metadata"]["uid"] != first["metadata"]["uid"]
    assert running.stop() == 0


@pytestmark_cluster
def test_the_commands_of_the_docs_leave_nothing_of_us_on_a_node(fleet: Fleet) -> None:
    node = fleet.node()
    path = f"/api/v1/nodes/{node}"
    taints = [{"key": TAINT_KEY, "value": "nvlink.links", "effect": "PreferNoSchedule"}]
    fleet.api.request("PATCH", path, {"spec": {"taints": taints}}, content="application/merge-patch+json")
    ours = [{"type": kind.value, "status": "True", "reason": "x", "message": "x"} for kind in NodeCondition]
    strategic = "application/strategic-merge-patch+json"
    fleet.api.request("PATCH", f"{path}/status", {"status": {"conditions": ours}}, content=strategic)
    assert fleet.taints(node)
    kept = set(fleet.conditions(node)) - {kind.value for kind in NodeCondition}
    told = (ROOT / "docs" / "node-agent.md").read_text().partition("## Uninstall")[2]
    commands = [line for line in told.splitlines() if line.startswith(("kubectl taint", "kubectl patch"))]
    assert len(commands) == 2
    for command in commands:
        fleet.cluster.kubectl(*shlex.split(command.replace("NODE", node))[1:])
    assert fleet.taints(node) == []
    assert set(fleet.conditions(node)) == kept


# --- whose node ------------------------------------------------------------------------------------------------------


def send(fleet: Fleet, token: str, method: str, path: str, body: Mapping[str, Any], content: str) -> tuple[int, str]:
    plane = fleet.cluster.control_plane
    request = urllib.request.Request(
        f"{plane.server}{path}",
        json.dumps(body).encode(),
        {"Authorization": f"Bearer {token}", "Content-Type": content},
        method=method,
    )
    try:
        with urllib.request.urlopen(
            request, timeout=20, context=ssl.create_default_context(cafile=str(plane.authority.cert))
        ) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
OURS = {"key": TAINT_KEY, "value": "nvlink.links", "effect": "PreferNoSchedule"}
THEIRS = {"key": "somebody/else", "effect": "NoSchedule"}


def ours_on(kind: str) -> dict[str, Any]:
    stamp = "2026-11-29T00:00:00Z"
    condition = {"type": kind, "status": "False", "reason": "R", "message": "m"}
    return {"status": {"conditions": [{**condition, "lastHeartbeatTime": stamp, "lastTransitionTime": stamp}]}}


@pytestmark_cluster
def test_an_agent_writes_to_its_own_node_and_to_no_other(fleet: Fleet) -> None:
    mine, other = fleet.node(), fleet.node()
    token = fleet.token(mine)
    for node, allowed in ((mine, True), (other, False)):
        report = {
            "apiVersion": "inference.hisparse.dev/v1alpha1",
            "kind": "HiSparseNode",
            "metadata": {"name": node},
        }
        code, text = send(fleet, token, "POST", f"{API}/hisparsenodes", report, "application/json")
        assert (code == 201) is allowed, text
        if not allowed:
            assert f"the agent of the node {mine} may not write to {node}" in text
            fleet.api.request("POST", f"{API}/hisparsenodes", report)
        for path, body, content in (
            (f"{API}/hisparsenodes/{node}/status", {"status": {"state": "Ok"}}, MERGE),
            (f"{API}/hisparsenodes/{node}", {"metadata": {"annotations": {"a": "b"}}}, MERGE),
            (f"/api/v1/nodes/{node}/status", ours_on("HiSparseLinkHealthy"), STRATEGIC),
            (f"/api/v1/nodes/{node}", {"spec": {"taints": [OURS]}}, MERGE),
        ):
            code, text = send(fleet, token, "PATCH", path, body, content)
            assert code == (200 if allowed else 422), text
    assert fleet.taints(other) == []


@pytestmark_cluster
@pytest.mark.parametrize(
    ("subresource", "body", "content"),
    [
        pytest.param("", {"spec": {"taints": [OURS, THEIRS]}}, MERGE, id="a taint of somebody else"),
        pytest.param("", {"spec": {"taints": [{**OURS, "effect": "NoExecute"}]}}, MERGE, id="an eviction"),
        pytest.param("", {"spec": {"unschedulable": True}}, MERGE, id="a cordon"),
        pytest.param("", {"metadata": {"labels": {"a": "b"}}}, MERGE, id="a label"),
        pytest.param("", {"metadata": {"annotations": {"a": "b"}}}, MERGE, id="an annotation"),
        pytest.param("/status", ours_on("Ready"), STRATEGIC, id="the kubelet's condition"),
        pytest.param("/status", {"status": {"capacity": {"nvidia.com/gpu": "9"}}}, MERGE, id="what it has"),
    ],
)
def test_of_its_own_node_an_agent_changes_only_what_is_ours(
    fleet: Fleet, subresource: str, body: dict[str, Any], content: str
) -> None:
    node = fleet.node()
    code, text = send(fleet, fleet.token(node), "PATCH", f"/api/v1/nodes/{node}{subresource}", body, content)
    assert code == 422, text
    assert "hisparse-agent-own-node" in text


@pytestmark_cluster
def test_a_taint_of_somebody_else_stays_where_it_is(fleet: Fleet) -> None:
    node = fleet.node()
    fleet.api.request("PATCH", f"/api/v1/nodes/{node}", {"spec": {"taints": [THEIRS]}}, MERGE)
    code, text = send(fleet, fleet.token(node), "PATCH", f"/api/v1/nodes/{node}", {"spec": {"taints": [OURS]}}, MERGE)
    assert code == 422, text
    body = {"spec": {"taints": [THEIRS, OURS]}}
    code, text = send(fleet, fleet.token(node), "PATCH", f"/api/v1/nodes/{node}", body, MERGE)
    assert code == 200, text


@pytestmark_cluster
def test_a_token_that_names_no_node_writes_nothing(fleet: Fleet) -> None:
    node = fleet.node()
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
    account = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{ACCOUNT}/token"
    token = fleet.api.request("POST", account, request)["status"]["token"]
    code, text = send(fleet, token, "PATCH", f"/api/v1/nodes/{node}", {"spec": {"taints": [OURS]}}, MERGE)
    assert code == 422
    assert "names no node" in text
