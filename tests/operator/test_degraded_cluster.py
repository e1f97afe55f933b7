"""Condition Degraded of an operator as a process: HiSparseNode objects on a real API server, with its own rights."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from hisparse.nodes.report import STALE_SECONDS
from hisparse_testenv.api import MERGE_PATCH

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

Namespace = Any  # of conftest.py, from which a test module cannot import
CRDS = Path(__file__).parents[2] / "crds"
CRD = str(CRDS / "inference.hisparse.dev_hisparsenodes.yaml")
VERSION = "inference.hisparse.dev/v1alpha1"
REPORTS = f"/apis/{VERSION}/hisparsenodes"
PASSES = 'hisparse_operator_reconciles_total{result="ok"}'


@pytest.fixture
def fleet(everywhere: Namespace) -> Iterator[Namespace]:
    """A namespace of the private cluster; afterwards it has the kind again, and no reports."""
    yield everywhere
    everywhere.kubectl("apply", "--server-side", "--force-conflicts", "-f", CRD)
    clear = ("delete", "hisparsenodes", "--all")
    everywhere.until(lambda: everywhere.kubectl(*clear, check=False).returncode == 0, "the kind is served and empty")


def spec() -> dict[str, Any]:
    model = {"huggingFace": {"repo": "meta-llama/Llama-3.1-8B-Instruct"}}
    return {"model": model, "context": {"maxTokens": 65536}, "resources": {"gpus": 1}}


def fault(value: str = "9") -> dict[str, Any]:
    return {
        "check": "nvlink.links",
        "subject": "gpu-3",
        "state": "Critical",
        "since": stamp(),
        "reason": "LinksDown",
        "message": "9 of 18 links are active.",
        "value": value,
        "limit": "18",
        "unit": "count",
    }


def stamp(age: timedelta = timedelta(0)) -> str:
    return (datetime.now(UTC) - age).strftime("%Y-%m-%dT%H:%M:%SZ")


def report(space: Namespace, name: str, *findings: dict[str, Any], age: timedelta = timedelta(0)) -> None:
    """What an agent would write."""
    if space.api.get(f"{REPORTS}/{name}") is None:
        space.api.request("POST", REPORTS, {"apiVersion": VERSION, "kind": "HiSparseNode", "metadata": {"name": name}})
    status = {"observedAt": stamp(age), "findings": list(findings)}
    space.api.request("PATCH", f"{REPORTS}/{name}/status", {"status": status}, MERGE_PATCH)


def reason(space: Namespace) -> str:
    found = space.condition("Degraded", "one")
    return f"{found.get('status')}/{found.get('reason')}"


def until(space: Namespace, wanted: str, limit_s: float = 30.0) -> str:
    space.until(lambda: reason(space) == wanted, f"Degraded is {wanted}", limit_s)
    return str(space.condition("Degraded", "one").get("message", ""))


def served(space: Namespace) -> str:
    """Create one inference and wait until it is Ready; the name of its node."""
    space.create("one", **spec())
    space.until(lambda: space.condition("Ready", "one").get("status") == "True", "it is ready", 60)
    pods = space.api.request("GET", f"/api/v1/namespaces/{space.name}/pods")
    (pod,) = pods["items"]
    return str(pod["spec"]["nodeName"])


def events(space: Namespace) -> str:
    said = space.kubectl("-n", space.name, "get", "events", "-o", "jsonpath={.items[*].reason}")
    return str(said.stdout)


def test_faults_come_and_go_and_a_silent_agent_is_unknown(fleet: Namespace) -> None:
    space = fleet
    operator = space.operators.leading()
    where = served(space)
    said = until(space, "Unknown/NodeNotReported")
    assert f"node {where} has no report" in said

    report(space, where)
    assert until(space, "False/NodesHealthy") == "1 of 1 pod is on a node without a fault that concerns it"
    report(space, where, fault())
    said = until(space, "True/NodeCritical")
    assert f"node {where}: nvlink.links of gpu-3 is Critical (9, limit 18): " in said
    assert space.condition("Ready", "one")["status"] == "True"
    assert space.condition("Available", "one")["status"] == "True"
    assert space.inference("one")["status"]["phase"] == "Ready"

    # what an agent writes all the time makes no pass and no write
    space.until(lambda: "NodeCritical" in events(space), "the Event is posted")
    time.sleep(2)
    writes, passes = space.writes(), operator.metric(PASSES)
    for value in ("8", "7", "8"):
        report(space, where, fault(value))
    report(space, "gpu-5" if where != "gpu-5" else "gpu-4", fault())
    time.sleep(2)
    assert (space.writes(), operator.metric(PASSES)) == (writes, passes)

    report(space, where)
    until(space, "False/NodesHealthy")
    old = timedelta(seconds=STALE_SECONDS + 60)
    space.api.request("PATCH", f"{REPORTS}/{where}/status", {"status": {"observedAt": stamp(old)}}, MERGE_PATCH)
    # a report that is old when it comes is noticed at the next look: here somebody touches the object
    space.kubectl("-n", space.name, "annotate", "hsi", "one", "look=again")
    assert "more than 15m ago" in until(space, "Unknown/NodeReportStale")
    report(space, where)
    until(space, "False/NodesHealthy")
    space.kubectl("delete", "hisparsenode", where)
    until(space, "Unknown/NodeNotReported")
    assert 'result="bug"' not in operator.page("/metrics")
    assert operator.stop() == 0


def test_staleness_is_noticed_without_an_event(fleet: Namespace) -> None:
    space = fleet
    space.operators.leading()
    where = served(space)
    report(space, where, age=timedelta(seconds=STALE_SECONDS - 12))
    until(space, "False/NodesHealthy", 10)
    # nothing is written to the API by anybody from here on
    assert "reported last at" in until(space, "Unknown/NodeReportStale", 40)


@pytest.mark.chaos
def test_the_kind_may_be_missing_come_late_and_go_again(fleet: Namespace) -> None:
    space = fleet
    space.kubectl("delete", "-f", CRD, "--timeout=60s")
    operator = space.operators.leading()
    where = served(space)
    assert reason(space) == "None/None"
    asked = operator.metric('hisparse_operator_api_requests_total{code="404",resource="hisparsenodes",verb="list"}')
    assert asked is not None
    assert asked <= 5, "it does not spin"

    space.kubectl("apply", "--server-side", "-f", CRD)
    until(space, "Unknown/NodeNotReported", 40)
    report(space, where, fault())
    until(space, "True/NodeCritical")

    # a restart in this state takes nothing away and writes nothing
    space.until(lambda: "NodeCritical" in events(space), "the Event is posted")
    since, before = space.condition("Degraded", "one")["lastTransitionTime"], space.writes()
    assert operator.stop() == 0
    operator = space.operators.leading()
    space.until(lambda: (operator.metric(PASSES) or 0) > 0, "a pass")
    time.sleep(1)
    assert space.condition("Degraded", "one")["lastTransitionTime"] == since
    assert space.writes() == before

    space.kubectl("delete", "-f", CRD, "--timeout=60s")
    until(space, "None/None", 40)
    assert operator.process.poll() is None
    assert space.condition("Ready", "one")["status"] == "True"
    assert operator.stop() == 0


def test_an_operator_of_one_namespace_says_that_it_may_not_look(space: Namespace) -> None:
    space.operators.leading()
    space.create("one", **spec(), planOnly=True)
    said = until(space, "Unknown/NodeReportsHidden")
    assert "hisparse-operator-cluster" in said


def test_without_the_right_it_works_and_says_so(fleet: Namespace) -> None:
    """An upgrade whose rbac.yaml nobody has applied."""
    space = fleet
    space.operators.lose_rights()
    role = "clusterrole/hisparse-operator-cluster"
    rules = space.kubectl("get", role, "-o", "json").stdout
    patch = '[{"op": "test", "path": "/rules/1/resources/0", "value": "hisparsenodes"}, {"op": "remove", "path": "/rules/1"}]'
    space.kubectl("patch", role, "--type=json", "-p", patch)
    try:
        operator = space.operators.leading()
        served(space)
        until(space, "Unknown/NodeReportsHidden")
        assert operator.stop() == 0
    finally:
        space.kubectl("replace", "--force", "-f", "-", input=rules)
