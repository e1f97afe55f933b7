import json
from typing import Any

import pytest

from hisparse_operator.cluster.cache import Cache, Key
from hisparse_operator.kinds import BY_NAME, FIELD_MANAGER, INFERENCE, NODE, NODE_REPORT, POD, Kind
from hisparse_operator.world import Sight

SERVICE = BY_NAME["v1", "Service"]
KEY = Key("team", "glm")


def service(version: int, uid: str = "u1", name: str = "glm", **labels: str) -> dict[str, Any]:
    labels = {"inference.hisparse.dev/inference": "glm"} | labels
    meta = {"namespace": "team", "name": name, "uid": uid, "resourceVersion": str(version), "labels": labels}
    return {"apiVersion": "v1", "kind": "Service", "metadata": meta}


def node(version: int, *, heartbeat: str = "1", ready: str = "True", gpus: str = "8") -> dict[str, Any]:
    return {
        "metadata": {"name": "gpu-0", "uid": "n1", "resourceVersion": str(version), "labels": {"a": "b"}},
        "spec": {"podCIDR": "198.18.0.0/24"},
        "status": {
            "allocatable": {"nvidia.com/gpu": gpus},
            "conditions": [{"type": "Ready", "status": ready, "lastHeartbeatTime": heartbeat}],
            "images": [{"names": ["x"]}],
        },
    }


def versions(cache: Cache, kind: Kind = SERVICE) -> list[str]:
    return [one["metadata"]["resourceVersion"] for one in cache.children(kind, KEY)]


def test_an_older_version_never_replaces_a_newer_one() -> None:
    cache = Cache()
    assert cache.put(SERVICE, service(9)) is not None  # the answer to our write
    assert cache.put(SERVICE, service(7)) is None  # a watch event that was on its way
    assert cache.put(SERVICE, service(9)) is None  # the echo of our write
    assert versions(cache) == ["9"]


def test_a_late_event_does_not_bring_back_what_was_deleted() -> None:
    cache = Cache()
    cache.put(SERVICE, service(9))
    cache.remove(SERVICE, service(9), dead=True)  # our own delete
    assert cache.put(SERVICE, service(12)) is None
    assert cache.put(SERVICE, service(14, uid="u2")) is not None
    assert cache.remove(SERVICE, service(13, uid="u1")) is None, "the end of the first is no end of its namesake"
    assert versions(cache) == ["14"]


def test_an_object_that_lost_its_label_may_come_back() -> None:
    cache = Cache()
    cache.put(SERVICE, service(9))
    cache.remove(SERVICE, service(10))  # what a watch with a selector tells
    assert cache.put(SERVICE, service(9)) is None
    assert cache.put(SERVICE, service(11)) is not None
    assert versions(cache) == ["11"]


def test_a_list_removes_what_no_watch_has_told_of_but_nothing_newer() -> None:
    cache = Cache()
    cache.put(SERVICE, service(5, uid="ghost", name="ghost"))
    cache.put(SERVICE, service(30, uid="new", name="new"))
    cache.put(SERVICE, service(8))
    (change,) = cache.retain(SERVICE, None, {service(8)["metadata"]["uid"]}, "20")
    assert change.new is None
    assert change.old is not None
    assert change.old["metadata"]["name"] == "ghost"
    assert versions(cache) == ["8", "30"]


def test_a_list_of_one_namespace_says_nothing_about_others() -> None:
    cache = Cache()
    cache.put(SERVICE, service(5))
    assert cache.retain(SERVICE, "elsewhere", (), "20") == ()
    assert versions(cache) == ["5"]


def test_a_child_follows_its_label() -> None:
    cache = Cache()
    cache.put(SERVICE, service(5))
    cache.put(SERVICE, service(6, **{"inference.hisparse.dev/inference": "other"}))
    assert versions(cache) == []
    assert [one["metadata"]["name"] for one in cache.children(SERVICE, Key("team", "other"))] == ["glm"]


@pytest.mark.parametrize(
    ("later", "matters"),
    [
        pytest.param(node(2, heartbeat="2"), False, id="a heartbeat does not matter"),
        pytest.param(node(2, ready="Unknown"), True, id="a node that is lost does"),
        pytest.param(node(2, gpus="7"), True, id="a GPU that is gone does"),
    ],
)
def test_node_changes(later: dict[str, Any], matters: bool) -> None:
    cache = Cache()
    cache.put(NODE, node(1))
    assert (cache.put(NODE, later) is not None) is matters
    assert "images" not in cache.nodes()[0]["status"]
    assert cache.nodes()[0]["metadata"]["resourceVersion"] == "2"


def test_inferences_are_found_by_key() -> None:
    cache = Cache()
    meta = {"namespace": "team", "name": "glm", "uid": "i", "resourceVersion": "1"}
    cache.put(INFERENCE, {"metadata": meta})
    assert cache.keys() == (KEY,)
    assert cache.inference(KEY) == {"metadata": meta}
    assert cache.inference(Key("team", "other")) is None


def test_of_a_pod_is_kept_what_its_template_does_not_say_and_of_owners_who_they_are() -> None:
    cache = Cache()
    engine = {"name": "engine", "env": [{"name": "A", "value": "b"}], "resources": {"limits": {"memory": "1Gi"}}}
    pod = {
        "metadata": service(1)["metadata"] | {"managedFields": [{"manager": "kubelet", "fieldsV1": {"f:status": {}}}]},
        "spec": {"nodeName": "gpu-0", "volumes": [{"name": "x"}], "containers": [engine]},
        "status": {"phase": "Running"},
    }
    cache.put(POD, pod)
    (kept,) = cache.children(POD, KEY)
    assert kept["spec"] == {
        "nodeName": "gpu-0",
        "containers": [{"name": "engine", "resources": {"limits": {"memory": "1Gi"}}}],
    }
    assert kept["status"] == {"phase": "Running"}
    assert "managedFields" not in kept["metadata"]
    assert pod["spec"]["volumes"], "what came is not changed"


def test_the_fields_of_other_managers_are_dropped_and_ours_kept_once_for_all_objects() -> None:
    cache = Cache()
    ours = {"manager": FIELD_MANAGER, "operation": "Apply", "fieldsV1": {"f:spec": {"f:ports": {}}, "k:uid": {}}}
    theirs = {"manager": "kubectl-edit", "operation": "Update", "time": "2026-11-30T00:00:00Z"}
    for name in ("glm", "glm-b"):
        item = service(1, name, name)
        item["metadata"]["managedFields"] = [json.loads(json.dumps(ours)), theirs | {"fieldsV1": {"f:spec": {}}}]
        cache.put(SERVICE, item)
    one, other = cache.children(SERVICE, KEY)
    assert one["metadata"]["managedFields"] == [ours, theirs]
    assert one["metadata"]["managedFields"][0]["fieldsV1"] is other["metadata"]["managedFields"][0]["fieldsV1"]


def test_an_answer_that_comes_after_a_whole_list_brings_nothing_back_that_was_gone_by_then() -> None:
    """No watch from there on would ever tell that it is gone."""
    cache = Cache()
    cache.put(SERVICE, service(5))
    cache.retain(SERVICE, None, (), "12")
    assert cache.put(SERVICE, service(10)) is None, "known before"
    assert cache.put(SERVICE, service(11, uid="u2")) is None, "never seen"
    assert cache.children(SERVICE, KEY) == ()
    assert cache.put(SERVICE, service(13, uid="u3")) is not None


def test_a_list_is_believed_whatever_an_older_one_said() -> None:
    cache = Cache()
    cache.retain(SERVICE, "team", (), "12")
    assert cache.put(SERVICE, service(11)) is None
    assert cache.put(SERVICE, service(11), listed=True) is not None


def test_a_list_of_one_namespace_says_nothing_of_another() -> None:
    cache = Cache()
    cache.retain(SERVICE, "other", (), "12")
    assert cache.put(SERVICE, service(11)) is not None


def report(name: str, version: int, state: str = "Ok") -> dict[str, Any]:
    finding = {"check": "c", "subject": "host", "state": state}
    return {
        "metadata": {"name": name, "uid": name, "resourceVersion": str(version), "managedFields": ["long"]},
        "status": {"observedAt": "2026-11-29T12:00:00Z", "findings": [finding], "inventory": {"gpus": ["long"]}},
    }


def test_the_cache_keeps_what_matters_of_a_report() -> None:
    cache = Cache()
    cache.put(NODE_REPORT, report("n0", 1, "Critical"))
    cache.put(NODE_REPORT, report("n1", 2, "Ok"))
    assert cache.node_reports() == (), "nobody has said that we see them"
    cache.see(NODE_REPORT, Sight.SEEN)
    bad, good = cache.node_reports()
    assert bad["status"]["findings"][0]["state"] == "Critical"
    assert good["status"] == {"observedAt": "2026-11-29T12:00:00Z", "findings": []}
    assert "managedFields" not in bad["metadata"]
    assert cache.put(NODE_REPORT, report("n0", 1)) is None


def test_the_cache_knows_who_is_on_a_node() -> None:
    cache = Cache()
    for name, owner, where in (("a-1", "a", "n0"), ("a-2", "a", "n1"), ("b-1", "b", "n1"), ("c-1", "c", None)):
        labels = {"inference.hisparse.dev/inference": owner}
        meta = {"namespace": "team", "name": name, "uid": name, "resourceVersion": "1", "labels": labels}
        cache.put(POD, {"metadata": meta, "spec": {"nodeName": where} if where else {}})
    assert sorted(cache.keys_on("n1")) == [Key("team", "a"), Key("team", "b")]
    assert cache.keys_on("n2") == ()
