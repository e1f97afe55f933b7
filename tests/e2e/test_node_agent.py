"""The node agent as it is deployed: its own image, its manifests as they stand, on a real kubelet.

It reads this machine's /proc and /sys, and the actuator changes vm.swappiness of this machine for real and puts it
back. There is no GPU: that must be said and must alarm nobody. What makes the remedy due is real as well: the machine
swaps a little, and a policy takes any of it for critical.
"""

from __future__ import annotations

import contextlib
import json
import platform
import shutil
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import agent_image
import psutil
import pytest
import yaml
from killed_at import Trap
from swapping import CannotSwapError, swapping

from hisparse.nodes.checks import CHECKS
from hisparse.nodes.report import HiSparseNodeStatus
from hisparse.units import GIB
from hisparse_testenv.api import MERGE_PATCH
from hisparse_testenv.shared import RealCluster

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

T = TypeVar("T")
ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "node_agent" / "deploy"
NAMESPACE = "hisparse-nodes"
POLICY = "calm"
SWAPPINESS = Path("/proc/sys/vm/swappiness")
STATE = Path("/var/lib/hisparse/node")
OLD = "57"
"""What vm.swappiness is before each test: no default of anybody, so that only a revert brings it back."""

NEW = "10"
AGENT = 65532
"""The account of the image; the actuator's manifest makes that one root."""

OFTEN = {"perNodePerHour": 60, "perNodePerDay": 1000}
STEP_LIMIT_S = 90
JUDGED_LIMIT_S = 200
"""Swapping is judged over two minutes, of which the agent has to see most."""

HOST = {"host.mem.available", "host.mem.psi", "host.mem.pinned", "host.swap", "host.sysctl", "host.thp"}
"""Checks that any Linux with pressure information can judge; where swap is on, host.swap after two minutes."""


def until(condition: Callable[[], T | None], what: str, limit_s: float = STEP_LIMIT_S) -> T:
    deadline = time.monotonic() + limit_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {limit_s:g} s: {what}"
        time.sleep(0.5)
    return value


@dataclass(frozen=True)
class Site:
    """The real node, with what rbac.yaml and admission.yaml install."""

    cluster: RealCluster

    def kubectl(self, *words: str, **more: Any) -> str:
        return self.cluster.kubectl("-n", NAMESPACE, *words, **more).stdout

    def read(self, *words: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.kubectl("get", *words, "-o", "json"))
        return found

    @property
    def node(self) -> str:
        return self.cluster.node.name

    def deploy(self, name: str) -> None:
        """One of the two manifests as it stands, but for the image's name."""
        documents = list(yaml.safe_load_all((DEPLOY / name).read_text()))
        (pod,) = [one["spec"]["template"]["spec"] for one in documents if one["kind"] == "DaemonSet"]
        for container in pod["containers"]:
            container["image"] = agent_image.REFERENCE
        self.kubectl("apply", "-f", "-", input=yaml.safe_dump_all(documents))
        self.kubectl("rollout", "status", "daemonset/hisparse-agent", f"--timeout={STEP_LIMIT_S}s")
        until(lambda: len(self.pods()) == 1, "the pod of the earlier form has gone")

    def pods(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.read("pods", "-l", "app.kubernetes.io/name=hisparse-agent")["items"]
        return found

    def report(self) -> dict[str, Any]:
        found = self.cluster.kubectl("get", "hisparsenode", self.node, "-o", "json", check=False).stdout
        status: dict[str, Any] = json.loads(found or "{}").get("status") or {}
        return status

    def conditions(self) -> dict[str, dict[str, Any]]:
        return {one["type"]: one for one in self.read("node", self.node)["status"]["conditions"]}

    def events(self) -> list[dict[str, Any]]:
        query = f"involvedObject.name={self.node},reportingComponent=hisparse-agent"
        return list(self.read("events", "-n", "default", "--field-selector", query)["items"])

    def told(self, reason: str) -> list[str]:
        return [one["message"] for one in self.events() if one["reason"] == reason]

    def process(self, program: str) -> psutil.Process:
        """The process of one of the two programs in the pod, as this machine sees it."""

        def found() -> psutil.Process | None:
            (pod,) = self.pods()
            for one in psutil.process_iter():
                with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError, FileNotFoundError):
                    ours = pod["metadata"]["uid"] in Path(f"/proc/{one.pid}/cgroup").read_text()
                    if ours and f"/opt/hisparse/bin/{program}" in one.cmdline():
                        return one
            return None

        return until(found, f"{program} runs")

    def policy(self, **spec: Any) -> None:
        """Allow vm.swappiness 10 where the machine swaps at all, and not only where it swaps much."""
        rest = {
            "checks": [{"check": "host.swap", "warn": "0", "critical": "0", "enterPolls": 1, "leavePolls": 10000}],
            "remedies": [{"verb": "sysctl", "checks": ["host.swap"], "ttl": "10m"}],
        }
        document = {
            "apiVersion": "inference.hisparse.dev/v1alpha1",
            "kind": "HiSparseNodePolicy",
            "metadata": {"name": POLICY},
            "spec": {**rest, **spec},
        }
        self.kubectl("apply", "-f", "-", input=yaml.safe_dump(document))

    def actions(self) -> list[dict[str, Any]]:
        return list(self.report().get("actions", ()))

    def explain(self) -> str:
        """What a person would look at when something did not happen."""
        parts = [self.kubectl("get", "pods", "-o", "wide", check=False)]
        parts += [
            self.kubectl("logs", "daemonset/hisparse-agent", "-c", name, "--tail=40", check=False)
            for name in ("agent", "actuator")
        ]
        parts += [path.read_text() for path in sorted(STATE.glob("*.json"))]
        parts += [f"{one['reason']}: {one['message']}" for one in self.events()]
        return "\n".join(parts)


def swappiness() -> str:
    return SWAPPINESS.read_text().strip()


def records() -> list[dict[str, Any]]:
    """What the actuator wrote on this machine, the newest first."""
    path = STATE / "records.json"
    found: list[dict[str, Any]] = json.loads(path.read_text())["content"]["records"] if path.exists() else []
    return sorted(found, key=lambda one: str(one["since"]), reverse=True)


@pytest.fixture(scope="module")
def installed(real_cluster: RealCluster) -> Site:
    site = Site(real_cluster)
    real_cluster.node.import_image(agent_image.agent_image())
    _without_gpus(real_cluster)
    real_cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(ROOT / "crds"))
    for name in ("rbac.yaml", "admission.yaml"):
        real_cluster.kubectl("apply", "-f", str(DEPLOY / name))
    for kind in ("hisparsenodes", "hisparsenodepolicies"):
        until(partial(_served, real_cluster, kind), f"{kind} are served")
    return site


def _served(cluster: RealCluster, kind: str) -> bool:
    return cluster.kubectl("get", kind, check=False).returncode == 0


def _without_gpus(cluster: RealCluster) -> None:
    """Another test of the session may have promised some, and that they are missing is a finding."""
    path = f"/api/v1/nodes/{cluster.node.name}"
    labels = cluster.control_plane.api.request("GET", path)["metadata"]["labels"]
    gone = {name: None for name in labels if name.startswith("nvidia.com/")}
    cluster.control_plane.api.request("PATCH", path, {"metadata": {"labels": gone}}, MERGE_PATCH)
    nothing = {"nvidia.com/gpu": None}
    body = {"status": {"capacity": nothing, "allocatable": nothing}}
    cluster.control_plane.api.request("PATCH", f"{path}/status", body, MERGE_PATCH)


@pytest.fixture
def read_only(installed: Site) -> Iterator[Site]:
    """The form without actuator."""
    yield installed
    _explain_and_remove(installed)


@pytest.fixture
def actuated(installed: Site, tmp_path: Path) -> Iterator[Site]:
    """A machine that swaps, with the actuator; afterwards all is as it was."""
    if platform.machine() != "x86_64":
        pytest.skip("killing at one system call is written for x86-64")
    if any(one["phase"] in ("Recorded", "InForce", "RevertFailed") for one in records()):
        pytest.fail(f"{STATE} is of an actuator that still holds something of this machine; end it first")
    before = swappiness()
    try:
        SWAPPINESS.write_text(f"{OLD}\n")
    except OSError as error:
        pytest.skip(f"{SWAPPINESS} cannot be written here, not even by root: {error.strerror}")
    shutil.rmtree(STATE, ignore_errors=True)
    try:
        with swapping(tmp_path):
            # as one would go over to it: the other form is there already
            installed.deploy("agent.yaml")
            installed.deploy("actuator.yaml")
            yield installed
    except CannotSwapError as error:
        pytest.skip(f"nothing makes the remedy due: this machine does not swap: {error}")
    finally:
        _explain_and_remove(installed)
        SWAPPINESS.write_text(f"{before}\n")
        shutil.rmtree(STATE, ignore_errors=True)
        with contextlib.suppress(OSError):
            STATE.parent.rmdir()


def _explain_and_remove(site: Site) -> None:
    print(site.explain())  # noqa: T201 - shown with a failure only
    site.cluster.kubectl("delete", "hisparsenodepolicy", POLICY, "--ignore-not-found", check=False)
    _remove(site)


def _remove(site: Site) -> None:
    site.kubectl("delete", "daemonset", "hisparse-agent", "--ignore-not-found", "--timeout=70s", check=False)
    until(lambda: not site.pods(), "no pod is left")


# --- the reader ------------------------------------------------------------------------------------------------------


def test_the_agent_reads_this_machine_and_reports_it(read_only: Site, real_namespace: str) -> None:
    site = read_only
    engine = _like_an_engine(site, real_namespace)
    before, kept = swappiness(), STATE.exists()
    site.deploy("agent.yaml")
    process = site.process("hisparse-agent")
    assert process.uids().effective == AGENT
    assert int(_of_status(process, "CapEff"), 16) == 0
    assert STATE.exists() is kept, "the form without actuator keeps nothing on the host"

    first = until(site.report, "there is a report")
    assert [one for one in first["findings"] if "has not answered" in one["message"]] == [], "it waits for the cluster"
    status = HiSparseNodeStatus.model_validate(first)
    assert status.inventory is not None
    assert status.inventory.kernel == platform.release()
    assert status.inventory.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert status.inventory.host_memory == f"{psutil.virtual_memory().total // GIB}Gi"
    assert status.gpus == 0
    (owner,) = site.read("hisparsenode", site.node)["metadata"]["ownerReferences"]
    assert owner["uid"] == site.read("node", site.node)["metadata"]["uid"]

    found = {one["check"]: one for one in first["findings"] if one["subject"] == "host"}
    at_once = HOST - {"host.swap"}
    assert {check for check in at_once if found[check]["state"] in ("Ok", "Warn", "Critical")} == at_once
    with_gpus = {one.id for one in CHECKS if one.id.split(".")[0] in ("nvlink", "fabric", "thermal", "throttle", "ecc")}
    assert with_gpus
    for check in with_gpus:
        assert found[check]["state"] == "Unsupported", found[check]
        assert "libnvidia-ml" in found[check]["message"]
    assert found["xid"]["state"] == "Unsupported", "an unprivileged container has no kernel log"
    for one in first["findings"]:
        assert one["reason"], one
        assert one["message"], one
    of_pod = {one["check"]: one for one in first["findings"] if one["subject"] == engine}
    assert of_pod["host.pool.orphan"]["state"] == "Unsupported", "an unprivileged reader sees no pod's /dev/shm"

    conditions = site.conditions()
    assert conditions["Ready"]["status"] == "True"
    for kind in ("HiSparseGpuHealthy", "HiSparseLinkHealthy"):
        assert (conditions[kind]["status"], conditions[kind]["reason"]) == ("Unknown", "Unsupported")
    assert conditions["HiSparseHostMemoryHealthy"]["status"] in ("True", "False")
    # this machine's own memory may be low; that it has no GPU is no fault
    faults = {one["check"] for one in first["findings"] if one["state"] in ("Warn", "Critical")}
    assert faults <= HOST
    alarms = [one["message"] for one in site.events() if one["type"] == "Warning"]
    assert [one for one in alarms if not any(check in one for check in faults)] == []
    assert "taints" not in site.read("node", site.node)["spec"]

    # 0 is Ok. These take a second reading, which the report tells of a minute later
    memcg = f'hisparse_node_check_status{{check="host.memcg",subject="{engine}"}}'
    until(lambda: _metrics(site).get(memcg) == 0, "the pod's cgroup is read through the host's /sys")
    page = _metrics(site)
    assert page['hisparse_node_check_status{check="pin.window",subject="host"}'] == 0
    assert page["hisparse_node_memory_total_bytes"] == psutil.virtual_memory().total
    assert page["hisparse_node_poll_duration_seconds_count"] > 0
    assert 'hisparse_node_check_status{check="host.mem.available",subject="host"}' in page
    log = site.kubectl("logs", "daemonset/hisparse-agent")
    assert [line for line in log.splitlines() if json.loads(line)["level"] != "info"] == []
    assert swappiness() == before


def _like_an_engine(site: Site, namespace: str) -> str:
    """A pod with what the agent knows an engine by; the subject of what is found about it."""
    labels = {"inference.hisparse.dev/inference": "tiny", "app.kubernetes.io/component": "engine"}
    container = {
        "name": "engine",
        "image": agent_image.REFERENCE,
        "imagePullPolicy": "Never",
        "command": ["sleep", "900"],
        "resources": {"limits": {"memory": "64Mi"}},
        "volumeMounts": [{"name": "hisparse-shm", "mountPath": "/dev/shm"}],
    }
    volume = {"name": "hisparse-shm", "emptyDir": {"medium": "Memory", "sizeLimit": "16Mi"}}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "engine", "labels": labels},
        "spec": {"terminationGracePeriodSeconds": 0, "containers": [container], "volumes": [volume]},
    }
    kubectl = partial(site.cluster.kubectl, "-n", namespace)
    kubectl("apply", "-f", "-", input=json.dumps(pod))
    kubectl("wait", "--for=condition=Ready", "pod/engine", f"--timeout={STEP_LIMIT_S}s")
    return f"pod-{namespace}/engine"


def _of_status(process: psutil.Process, field: str) -> str:
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next(line.partition(":")[2].strip() for line in lines if line.startswith(f"{field}:"))


def _metrics(site: Site) -> dict[str, float]:
    (pod,) = site.pods()
    with urllib.request.urlopen(f"http://{pod['status']['podIP']}:9401/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[:1] != "#")}


# --- the actuator ----------------------------------------------------------------------------------------------------


def test_the_actuator_changes_this_machine_and_puts_it_back(actuated: Site) -> None:
    site = actuated
    assert site.process("hisparse-actuator").uids().effective == 0
    assert site.process("hisparse-agent").uids().effective == AGENT
    until((STATE / "wanted.json").exists, "the unprivileged agent can write into the folder")
    assert (STATE / "wanted.json").stat().st_uid == AGENT
    assert (STATE / "records.json").stat().st_uid == 0
    assert int(_of_status(site.process("hisparse-agent"), "CapEff"), 16) == 0
    assert _has_token(site.process("hisparse-agent"))
    assert not _has_token(site.process("hisparse-actuator")), "it has no way to the API"

    # a dry run, as every policy is at first
    site.policy()
    would = until(lambda: site.told("RemedyWould"), "it is told what would be done", JUDGED_LIMIT_S)
    assert f"vm.swappiness to {NEW}" in would[0]
    assert "the policy is a dry run" in would[0]
    assert until(lambda: site.told("Swapping"), "the finding itself is told")
    assert (swappiness(), records(), site.actions()) == (OLD, [], [])

    # killed between record and act: the record is there, the change is not
    trap = Trap(site.process("hisparse-actuator").pid, "/sys/vm/swappiness", after=False)
    site.policy(dryRun=False)
    trap.wait(STEP_LIMIT_S)
    (cut,) = records()
    assert (cut["phase"], cut["old"], cut["new"], swappiness()) == ("Recorded", OLD, NEW, OLD)
    settled = until(lambda: (one := records()[0])["phase"] != "Recorded" and one, "the next start settles it")
    assert (settled["action"], settled["phase"]) == (cut["action"], "Reverted")
    assert "cut off before it was done" in settled["message"]
    refused = until(lambda: site.told("RemedyRefused"), "a second action within the hour is refused")
    assert "the next is from" in refused[0]
    assert swappiness() == OLD

    # killed between act and read-back: the change is there, and nobody has noted that it is
    trap = Trap(site.process("hisparse-actuator").pid, "/sys/vm/swappiness", after=True)
    site.policy(dryRun=False, budget=OFTEN)
    trap.wait(STEP_LIMIT_S)
    assert (records()[0]["phase"], swappiness()) == ("Recorded", NEW)
    settled = until(lambda: (one := records()[0])["phase"] != "Recorded" and one, "the next start settles it")
    assert (settled["phase"], settled["old"], settled["new"]) == ("InForce", OLD, NEW)
    told = until(lambda: [one for one in site.actions() if one["phase"] == "InForce"], "it is reported")
    assert (told[0]["target"], told[0]["old"], told[0]["new"], told[0]["policy"]) == ("vm.swappiness", OLD, NEW, POLICY)
    assert swappiness() == NEW

    # a dry run again
    site.policy(dryRun=True, budget=OFTEN)
    _put_back("it is no longer wanted")
    until(lambda: {one["phase"] for one in site.actions()} == {"Reverted"}, "it is reported")

    # the policy goes
    site.policy(dryRun=False, budget=OFTEN)
    until(lambda: swappiness() == NEW, "it is changed")
    site.cluster.kubectl("delete", "hisparsenodepolicy", POLICY)
    _put_back("it is no longer wanted")

    # the agent goes, and with it the actuator: a SIGTERM
    site.policy(dryRun=False, budget=OFTEN)
    until(lambda: swappiness() == NEW, "it is changed")
    until(lambda: records()[0]["phase"] == "InForce", "and noted")
    _remove(site)
    _put_back("the actuator stops")
    assert {one["phase"] for one in records()} == {"Reverted"}


def _has_token(process: psutil.Process) -> bool:
    # not through /var/run: that link would lead out of the container
    root = Path(f"/proc/{process.pid}", "root")
    return (root / "run/secrets/kubernetes.io/serviceaccount/token").exists()


def _put_back(why: str) -> None:
    until(lambda: swappiness() == OLD, "the old value is back")
    last = until(lambda: (one := records()[0])["phase"] != "InForce" and one, "it is noted")
    assert (last["phase"], last["message"]) == ("Reverted", why)
