"""The operator as a process, with just its own rights, on a real API server."""

import json
import signal
import time
from typing import Any

import pytest
from audit import asked
from fault_proxy import FaultProxy, Slow

from hisparse_operator.kinds import CHILDREN, INFERENCE
from hisparse_testenv.api import MERGE_PATCH

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

Namespace = Any  # of conftest.py, from which a test module cannot import
SELECTOR = "inference.hisparse.dev/inference"


def test_the_smallest_object_gets_its_children_and_then_rests(space: Namespace) -> None:
    operator = space.operators.leading("--resync", "200ms")
    space.create()
    space.until(space.observed, "the status speaks of this generation")
    children = space.settled()
    kinds = {one.partition("/")[0] for one in children}
    assert kinds >= {"ReplicaSet", "ControllerRevision", "Service", "ServiceAccount", "NetworkPolicy", "ConfigMap"}
    before = space.writes()
    passes = operator.metric('hisparse_operator_reconciles_total{result="ok"}') or 0
    space.until(
        lambda: (operator.metric('hisparse_operator_reconciles_total{result="ok"}') or 0) > passes + 20,
        "twenty resyncs",
    )
    assert space.writes() == before
    assert not [one for one in before if not one.endswith((" 200", " 201"))], before
    assert operator.page("/healthz") == "ok\n"
    assert 'result="bug"' not in operator.page("/metrics")
    assert operator.metric("hisparse_operator_leader") == 1
    assert (operator.metric("hisparse_operator_watch_age_seconds") or 99) < 15
    assert operator.stop() == 0

    # a new process finds everything as it should be
    operator = space.operators.leading("--resync", "200ms")
    space.until(lambda: (operator.metric('hisparse_operator_reconciles_total{result="ok"}') or 0) > 5, "some resyncs")
    assert space.writes() == before
    assert space.children() == children


def test_a_child_that_is_edited_or_deleted_is_put_back(space: Namespace) -> None:
    space.operators.leading()
    space.create()
    space.until(space.observed, "the status speaks of this generation")
    space.settled()
    service = space.child("Service")
    space.kubectl("-n", space.name, "patch", "service", service, "-p", '{"spec":{"selector":{"app":"mine"}}}')

    def selects_ours() -> bool:
        text = space.kubectl("-n", space.name, "get", "service", service, "-o", "json").stdout
        return bool(json.loads(text)["spec"]["selector"].get(SELECTOR))

    space.until(selects_ours, "the selector is put back")
    space.kubectl("-n", space.name, "label", "service", service, f"{SELECTOR}-")
    space.until(lambda: f"Service/{service}" in space.children(), "the label by which we watch is put back")
    space.kubectl("-n", space.name, "delete", "service", service)
    space.until(selects_ours_or_gone(selects_ours), "the service is made again")
    space.kubectl("-n", space.name, "delete", "replicasets.apps", "--all", "--wait=false")
    space.until(lambda: any(one.startswith("ReplicaSet/") for one in space.children()), "the ReplicaSet is made again")


def selects_ours_or_gone(condition: Any) -> Any:
    def judged() -> bool:
        try:
            return bool(condition())
        except Exception:  # noqa: BLE001 - kubectl fails while it is gone
            return False

    return judged


def test_what_somebody_else_controls_is_left_alone_and_told(space: Namespace) -> None:
    space.kubectl("-n", space.name, "create", "service", "clusterip", "glm", "--tcp=80:80")
    before = space.kubectl("-n", space.name, "get", "service", "glm", "-o", "jsonpath={.metadata.resourceVersion}")
    operator = space.operators.leading()
    space.create()
    found = space.until(
        lambda: (one := space.condition("Ready")).get("reason") == "ChildConflict" and one, "Ready says ChildConflict"
    )
    assert found["status"] == "False"
    assert "Service glm exists and belongs to somebody else" in found["message"]
    going = space.condition("Progressing")
    assert (going["status"], going["reason"]) == ("False", "ChildConflict")
    assert "updateRevision" not in space.inference()["status"], "none was written"
    after = space.kubectl("-n", space.name, "get", "service", "glm", "-o", "jsonpath={.metadata.resourceVersion}")
    assert before.stdout == after.stdout
    assert space.children() == {}, "nothing is half applied"
    events = space.kubectl("-n", space.name, "get", "events", "-o", "jsonpath={.items[*].reason}").stdout
    assert "ChildConflict" in events
    # the user sorts it out and touches the object
    space.kubectl("-n", space.name, "delete", "service", "glm")
    space.kubectl("-n", space.name, "annotate", "hsi", "glm", "note=again")
    space.until(lambda: space.condition("Ready").get("reason") != "ChildConflict", "the conflict is over")
    space.until(lambda: "Service/glm" in space.children(), "the service is made")
    assert operator.process.poll() is None


@pytest.mark.chaos
def test_of_two_one_leads_and_the_other_takes_over(space: Namespace) -> None:
    first = space.operators.leading()
    second = space.operators.start()
    space.until(lambda: second.page("/readyz") == "standing by\n", "the second stands by")
    space.create()
    space.until(space.observed, "the first works")
    assert second.metric("hisparse_operator_leader") == 0

    assert first.stop() == 0, "SIGTERM is a clean end"
    space.until(second.leads, "the second takes over at once: the lease was released", 10)
    space.edit("glm", {"context": {"maxTokens": 524288}})
    space.until(space.observed, "and works")

    third = space.operators.start()
    space.until(lambda: third.page("/readyz") == "standing by\n", "a third stands by")
    second.process.send_signal(signal.SIGSTOP)  # a frozen machine; it still believes that it leads
    space.until(third.leads, "it takes over when the lease has run out", 40)
    told = len(second.lines())
    second.process.send_signal(signal.SIGCONT)
    space.edit("glm", {"context": {"maxTokens": 262144}})
    assert second.process.wait(20) == 1, "whoever wakes up as a stranger ends"
    assert not [one for one in second.lines()[told:] if one["event"].startswith("child ")], "and writes nothing"
    space.until(space.observed, "the third works")
    assert third.stop() == 0


def test_sigterm_in_the_middle_of_work_ends_the_writes_before_the_lease_is_given_back(space: Namespace) -> None:
    for number in range(20):
        space.create(f"glm-{number}")
    operator = space.operators.leading()
    space.until(lambda: "child applied" in operator.log.read_text(), "it is in the middle of it")
    assert operator.stop() == 0
    lease = space.api.request("GET", f"/apis/coordination.k8s.io/v1/namespaces/{space.name}/leases/hisparse-operator")
    assert lease["spec"]["holderIdentity"] == ""
    found = asked(space.operators.cluster.audit_log, space.operators.user)
    ends = [one.ended for one in found if one.changes and one.resource != "leases"]
    assert len(ends) > 0
    assert max(ends) < lease["spec"]["renewTime"]
    assert not [one for one in operator.lines() if one["event"] == "bug"]


def test_a_leader_whose_lease_is_taken_ends(space: Namespace) -> None:
    operator = space.operators.leading()
    lease = f"/apis/coordination.k8s.io/v1/namespaces/{space.name}/leases/hisparse-operator"
    space.api.request("PATCH", lease, {"spec": {"holderIdentity": "thief"}}, MERGE_PATCH)
    assert operator.process.wait(20) == 1
    assert space.api.request("GET", lease)["spec"]["holderIdentity"] == "thief"


def test_deletion_with_the_operator_down_leaves_nothing(space: Namespace) -> None:
    operator = space.operators.leading()
    space.create()
    space.until(space.observed, "the status speaks of this generation")
    space.settled()
    assert space.inference()["metadata"].get("finalizers") is None
    assert "annotations" not in space.inference()["metadata"]
    assert operator.stop() == 0
    space.kubectl("-n", space.name, "delete", "hsi", "glm", "--timeout=20s")
    space.until(lambda: space.children() == {}, "the garbage collector has taken the children", 60)


def test_deletion_with_the_operator_up_leaves_nothing_either(space: Namespace) -> None:
    operator = space.operators.leading()
    for policy in ("background", "foreground"):
        space.create()
        space.until(space.observed, "the status speaks of this generation")
        space.settled()
        space.kubectl("-n", space.name, "delete", "hsi", "glm", f"--cascade={policy}", "--timeout=60s")
        space.until(lambda: space.children() == {}, "the children are gone", 60)
        time.sleep(1)
        assert space.children() == {}, "and do not come back"
    assert operator.metric("hisparse_operator_objects") == 0


def test_a_spec_that_is_edited_while_the_operator_is_down_is_seen(space: Namespace) -> None:
    space.create()
    operator = space.operators.leading()
    space.until(space.observed, "what was there before it is worked on")
    assert operator.stop() == 0
    space.edit("glm", {"planOnly": True})
    space.operators.leading()
    space.until(space.observed, "the edit is seen")


def test_nothing_is_written_before_every_kind_was_listed_and_is_watched(space: Namespace) -> None:
    """A pass that knows no EndpointSlices would say that nothing serves, and take pods for it."""
    space.create("glm")
    with FaultProxy(space.operators.cluster.control_plane, space.operators.user) as proxy:
        proxy.rule = lambda one: Slow(2) if one.lists and one.plural == "endpointslices" else None
        space.operators.start(kubeconfig=proxy.kubeconfig)
        space.until(lambda: space.condition("Ready").get("status") == "True", "it serves")
        requests = proxy.asked(0)
    first_write = next(one.at for one in requests if one.number == 1)
    before = {one.plural for one in requests if one.watches and one.at < first_write}
    assert before >= {kind.plural for kind in (INFERENCE, *CHILDREN)}
