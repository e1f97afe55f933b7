"""Whose child an object is: our labels alone make nothing ours."""

from copy import deepcopy
from typing import Any

import pytest
from simulator import SmallCluster, dense, node

from hisparse_operator.decide.identity import REVISION_LABEL, family, parent_of
from hisparse_operator.decide.reasons import ConditionType
from hisparse_operator.kinds import FIELD_MANAGER, LABEL
from hisparse_operator.world import World


@pytest.fixture
def cluster() -> SmallCluster:
    """Two replicas that serve, and room for a third."""
    found = SmallCluster(dense(replicas=2), [node("a"), node("b"), node("c")])
    found.settle()
    assert found.serving() == 2
    return found


def put(cluster: SmallCluster, kind: str, name: str, document: dict[str, Any], **labels: str) -> dict[str, Any]:
    """Somebody makes an object with our label, and without an owner."""
    made = deepcopy(document)
    made["kind"] = kind
    made["metadata"] = {
        "name": name,
        "namespace": "serving",
        "uid": f"uid-of-{name}",
        "resourceVersion": "1",
        "labels": {LABEL: "llama", **labels},
        "managedFields": [{"manager": "kubectl-client-side-apply", "operation": "Update"}],
    }
    cluster.objects[kind, name] = made
    return made


def test_a_users_object_with_our_labels_is_not_deleted(cluster: SmallCluster) -> None:
    put(cluster, "ConfigMap", "my-notes", {"data": {}}, **{REVISION_LABEL: "1111111111"})
    cluster.settle()
    assert ("ConfigMap", "my-notes") in cluster.objects


@pytest.mark.parametrize("revision", ["mytest", None], ids=["a revision that nobody knows", "the revision that runs"])
def test_a_copy_of_a_replica_set_costs_no_pod_and_is_left_alone(cluster: SmallCluster, revision: str | None) -> None:
    (real,) = cluster.replica_sets()
    pods = {pod["metadata"]["name"] for pod in cluster.pods()}
    copy = put(cluster, "ReplicaSet", f"llama-{revision or 'debug'}", real)
    labels = copy["spec"]["selector"]["matchLabels"] | {"debug": "yes"}
    labels |= {REVISION_LABEL: revision} if revision else {}
    copy["spec"]["selector"]["matchLabels"] = labels
    copy["spec"]["template"]["metadata"]["labels"] = dict(labels)
    copy["spec"]["replicas"] = 1
    copy["metadata"]["labels"] = labels
    before = deepcopy(copy)

    cluster.settle()
    assert cluster.objects["ReplicaSet", copy["metadata"]["name"]] == before
    assert real["spec"]["replicas"] == 2
    assert pods <= {pod["metadata"]["name"] for pod in cluster.pods()}, "no pod paid for it"
    assert cluster.condition(ConditionType.READY)["status"] == "True"

    cluster.edit(dense(replicas=2, restartToken="one"))
    cluster.settle()
    assert cluster.objects["ReplicaSet", copy["metadata"]["name"]] == before
    assert cluster.condition(ConditionType.READY)["status"] == "True", "nor does it hold up a rollout"


@pytest.mark.parametrize(
    ("name", "revision", "manager", "records", "ours"),
    [
        pytest.param("llama-0123abcdef", "0123abcdef", FIELD_MANAGER, (), True, id="we wrote it"),
        pytest.param(
            "llama-0123abcdef", "0123abcdef", "velero", ("0123abcdef",), True, id="restored, and its revision is known"
        ),
        pytest.param(
            "llama-0123abcdef",
            "0123abcdef",
            "kubectl",
            (),
            False,
            id="a name like ours, of a revision that nobody knows",
        ),
        pytest.param("llama-x", "0123abcdef", FIELD_MANAGER, ("0123abcdef",), False, id="another name"),
        pytest.param("llama", "", "velero", (), True, id="the name of what all revisions share"),
    ],
)
def test_what_has_no_owner(name: str, revision: str, manager: str, records: tuple[str, ...], *, ours: bool) -> None:
    inference = {"metadata": {"name": "llama", "namespace": "serving", "uid": "u"}, "spec": {}}
    labels = {LABEL: "llama"} | ({REVISION_LABEL: revision} if revision else {})
    child = {"metadata": {"name": name, "uid": "c", "labels": labels, "managedFields": [{"manager": manager}]}}
    known = tuple({"metadata": {"name": f"llama-{one}", "uid": one, "labels": {}}} for one in records)
    found = family(World(inference, controller_revisions=known, config_maps=(child,)), parent_of(inference))
    assert (child in found.ours.config_maps) is ours
