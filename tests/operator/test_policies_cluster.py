"""Status of HiSparseNodePolicy objects, written by an operator as a process with its own rights on a real API server."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hisparse.nodes import breaker
from hisparse.nodes.breaker import Opened
from hisparse_testenv.api import MERGE_PATCH

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

Namespace = Any  # of conftest.py, from which a test module cannot import
CRDS = Path(__file__).parents[2] / "crds"
CRD = str(CRDS / "inference.hisparse.dev_hisparsenodepolicies.yaml")
VERSION = "inference.hisparse.dev/v1alpha1"
POLICIES = f"/apis/{VERSION}/hisparsenodepolicies"
BAD = {"remedies": [{"verb": "power-cap", "checks": ["thermal.margn"]}]}
TIER = "test/tier"


@pytest.fixture
def pool(everywhere: Namespace) -> Iterator[Namespace]:
    """A namespace of the private cluster in which the node agents would run; afterwards there is no policy."""
    space = everywhere
    bind = ("create", "rolebinding", "pools", "--clusterrole=hisparse-operator-pools", f"--user={space.operators.user}")
    space.kubectl("-n", space.name, *bind)
    yield space
    space.kubectl("apply", "--server-side", "--force-conflicts", "-f", CRD)
    clear = ("delete", "hisparsenodepolicies", "--all")
    space.until(lambda: space.kubectl(*clear, check=False).returncode == 0, "the kind is served and empty")
    space.kubectl("label", "nodes", "--all", f"{TIER}-")


def leading(space: Namespace) -> Any:
    return space.operators.leading("--agents-namespace", space.name)


def create(space: Namespace, name: str, **spec: Any) -> None:
    document = {"apiVersion": VERSION, "kind": "HiSparseNodePolicy", "metadata": {"name": name}, "spec": spec}
    space.api.request("POST", POLICIES, document)


def status(space: Namespace, name: str) -> dict[str, Any]:
    return (space.api.get(f"{POLICIES}/{name}") or {}).get("status") or {}


def condition(space: Namespace, name: str, kind: str) -> dict[str, Any]:
    return next((one for one in status(space, name).get("conditions") or () if one["type"] == kind), {})


def until(space: Namespace, name: str, kind: str, wanted: str, limit_s: float = 30.0) -> str:
    def so() -> bool:
        found = condition(space, name, kind)
        return f"{found.get('status')}/{found.get('reason')}" == wanted

    space.until(so, f"{kind} of {name} is {wanted}", limit_s)
    return str(condition(space, name, kind)["message"])


def writes(space: Namespace) -> list[str]:
    return [one for one in space.writes() if "hisparsenodepolicies" in one]


def test_it_says_what_became_of_each(pool: Namespace) -> None:
    space = pool
    create(space, "old", nodeSelector={TIER: "gold"}, dryRun=False)
    operator = leading(space)
    space.kubectl("label", "node", "gpu-0", "gpu-1", f"{TIER}=gold")
    until(space, "old", "InForce", "True/InForce")
    time.sleep(1.1)  # creation times are whole seconds, and the older one has to be older
    create(space, "young")
    said = until(space, "young", "InForce", "True/PartlyOverlapped")
    assert "on 5 of the 7 nodes that it selects, as a dry run" in said
    assert "the older policy old wins on 2 nodes (gpu-0, gpu-1)" in said
    until(space, "young", "Accepted", "True/Valid")
    assert until(space, "old", "InForce", "True/InForce") == "on all 2 nodes that it selects"
    assert (status(space, "old")["selected"], status(space, "young")["selected"]) == (2, 5)

    shown = space.kubectl("get", "hsnp", "young", "-o", "wide").stdout.splitlines()[1].split()
    assert shown[:5] == ["young", "true", "True", "PartlyOverlapped", "5"]

    # the API server knows no check by name, so that this is accepted there and refused here
    since = condition(space, "young", "Accepted")["lastTransitionTime"]
    space.api.request("PATCH", f"{POLICIES}/old", {"spec": BAD}, MERGE_PATCH)
    said = until(space, "old", "Accepted", "False/InvalidSpec")
    assert 'spec.remedies[0].checks[0]: "thermal.margn"' in said
    assert 'did you mean "thermal.margin"?' in said
    assert status(space, "old")["observedGeneration"] == 2
    assert status(space, "old")["selected"] == 0
    until(space, "old", "InForce", "False/NotAccepted")
    space.until(lambda: "cannot be used" in condition(space, "young", "InForce")["message"], "the young one says so")
    assert condition(space, "young", "Accepted")["lastTransitionTime"] == since

    space.kubectl("delete", "hsnp", "old")
    assert until(space, "young", "InForce", "True/InForce").startswith("on all 7 nodes")
    assert 'result="bug"' not in operator.page("/metrics")
    assert not [one for one in operator.lines() if one["level"] in ("error", "critical")]
    assert operator.stop() == 0


def test_the_breaker_is_told_and_closed_with_the_command_that_it_names(pool: Namespace) -> None:
    space = pool
    create(space, "all")
    operator = leading(space)
    until(space, "all", "BreakerClosed", "True/BreakerClosed")
    lease = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {
            "name": f"{breaker.LEASE_PREFIX}all",
            "namespace": space.name,
            "annotations": {breaker.ANNOTATION: Opened(nodes=3, pool=7).text},
        },
    }
    space.kubectl("create", "-f", "-", input=json.dumps(lease))
    said = until(space, "all", "BreakerClosed", "False/BreakerOpen")
    command = said.partition("closes it with kubectl ")[2].split()
    assert command[:2] == ["-n", space.name]
    space.kubectl(*command)
    until(space, "all", "BreakerClosed", "True/BreakerClosed")
    assert operator.stop() == 0


@pytest.mark.chaos
def test_what_is_true_is_not_written_again_and_nodes_are_coalesced(pool: Namespace) -> None:
    space = pool
    create(space, "gold", nodeSelector={TIER: "gold"})
    operator = leading(space)
    until(space, "gold", "InForce", "False/NoNodesSelected")
    before = writes(space)
    assert len(before) == 1
    for number in range(7):
        space.kubectl("label", "node", f"gpu-{number}", f"{TIER}=gold")
    space.until(lambda: status(space, "gold").get("selected") == 7, "all of them are seen", 40)
    assert len(writes(space)) <= 3, "one write, or one more where the labels took longer than the delay"
    found = status(space, "gold")

    # a restart has nothing to write
    assert operator.stop() == 0
    before = writes(space)
    operator = leading(space)
    time.sleep(2)
    assert writes(space) == before
    assert status(space, "gold") == found

    # what somebody else writes there is put right
    space.api.request("PATCH", f"{POLICIES}/gold/status", {"status": {"selected": 99}}, MERGE_PATCH)
    space.until(lambda: status(space, "gold") == found, "it is put right")
    assert operator.stop() == 0


@pytest.mark.chaos
def test_the_kind_may_be_missing_come_late_and_go_again(pool: Namespace) -> None:
    space = pool
    space.kubectl("delete", "-f", CRD, "--timeout=60s")
    operator = leading(space)
    space.kubectl("apply", "--server-side", "-f", CRD)
    space.until(lambda: space.kubectl("get", "hsnp", check=False).returncode == 0, "the kind is served")
    create(space, "all")
    until(space, "all", "InForce", "True/InForce", 40)
    space.kubectl("delete", "-f", CRD, "--timeout=60s")
    time.sleep(2)
    assert operator.process.poll() is None
    assert not [one for one in operator.lines() if one["level"] in ("error", "critical")]
    assert operator.stop() == 0


def test_without_the_rights_it_works_and_says_so(everywhere: Namespace) -> None:
    """No RoleBinding for the Leases; and an upgrade whose rbac.yaml nobody has applied."""
    space = everywhere
    space.operators.lose_rights()
    role = "clusterrole/hisparse-operator-cluster"
    rules = json.loads(space.kubectl("get", role, "-o", "json").stdout)
    create(space, "all")
    try:
        operator = leading(space)
        said = until(space, "all", "BreakerClosed", "Unknown/PoolsHidden")
        assert f"of the namespace {space.name}" in said
        until(space, "all", "InForce", "True/InForce")
        assert operator.stop() == 0

        less = {"rules": [one for one in rules["rules"] if "hisparsenodepolicies/status" not in one["resources"]]}
        assert len(less["rules"]) == len(rules["rules"]) - 1
        space.kubectl("patch", role, "--type=merge", "-p", json.dumps(less))
        operator = leading(space)
        space.api.request("PATCH", f"{POLICIES}/all", {"spec": {"dryRun": False}}, MERGE_PATCH)
        space.until(
            lambda: [one for one in operator.lines() if one["event"] == "policies: status refused"], "it says so"
        )
        space.create("one", planOnly=True)
        space.until(lambda: space.observed("one"), "inferences are served all the same")
        assert operator.stop() == 0
    finally:
        space.kubectl("patch", role, "--type=merge", "-p", json.dumps({"rules": rules["rules"]}))
        space.kubectl("delete", "hisparsenodepolicies", "--all")


def test_an_operator_of_one_namespace_leaves_policies_alone(space: Namespace) -> None:
    name = f"p-{space.name}"
    create(space, name)
    try:
        operator = space.operators.leading()
        space.create("one", planOnly=True)
        space.until(lambda: space.observed("one"), "it works")
        assert status(space, name) == {}
        assert operator.metric('hisparse_operator_api_requests_total{code="200",resource="hisparsenodepolicies",verb="list"}') is None  # fmt: skip
        assert operator.stop() == 0
    finally:
        space.kubectl("delete", "hsnp", name)
