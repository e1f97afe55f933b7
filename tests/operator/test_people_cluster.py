"""What people do to an inference and its children while an operator runs, or does not."""

import json
import sys
import time
from collections import Counter
from typing import Any

import pytest
import yaml
from pod_history import PodHistory

pytestmark = [pytest.mark.chaos, pytest.mark.cluster, pytest.mark.timeout(180)]

Namespace = Any  # of conftest.py, from which a test module cannot import
NAME = "small"
REPLICAS = 2
LABEL = "inference.hisparse.dev/inference"
REVISION = "inference.hisparse.dev/revision"
KINDS = {
    "controllerrevisions.apps": "ControllerRevision",
    "replicasets.apps": "ReplicaSet",
    "configmaps": "ConfigMap",
    "services": "Service",
    "serviceaccounts": "ServiceAccount",
    "networkpolicies": "NetworkPolicy",
    "poddisruptionbudgets": "PodDisruptionBudget",
}
JUMPING = """
import sys
from datetime import timedelta
from pathlib import Path
from hisparse_operator import __main__, wiring

offset = Path(sys.argv.pop(1))
now = wiring._utc_now
wiring._utc_now = lambda: now() + timedelta(hours=float(offset.read_text()))
__main__.main()
"""


def spec(**rest: Any) -> dict[str, Any]:
    model = {"huggingFace": {"repo": "meta-llama/Llama-3.1-8B-Instruct"}}
    return {"model": model, "context": {"maxTokens": 65536}, "resources": {"gpus": 1}, "replicas": REPLICAS, **rest}


def events(space: Namespace, reason: str) -> list[str]:
    found = space.api.request("GET", f"/api/v1/namespaces/{space.name}/events")["items"]
    return [one["message"] for one in found if one["reason"] == reason]


@pytest.fixture
def served(space: Namespace) -> Namespace:
    """A namespace with an operator, and an inference that serves and rests."""
    space.operators.leading()
    space.create(NAME, **spec())
    space.until(lambda: space.converged(NAME), "it serves", 60)
    space.settled()
    return space


def test_replaced_by_the_users_file_nothing_restarts(served: Namespace, tmp_path: Any) -> None:
    """A file knows no status, no defaults and no field managers."""
    space = served
    before = space.inference(NAME)
    document = {
        "apiVersion": before["apiVersion"],
        "kind": before["kind"],
        "metadata": {"name": NAME, "namespace": space.name},
        "spec": spec(),
    }
    file = tmp_path / "small.yaml"
    file.write_text(yaml.safe_dump(document))
    with PodHistory(space.api, space.name) as history:
        begun = time.monotonic()
        space.kubectl("replace", "-f", str(file))
        space.until(lambda: space.converged(NAME), "it serves")
        space.settled()
        assert not history.made(begun)
        assert not history.deleted(begun)
    after = space.inference(NAME)["status"]
    assert after["updateRevision"] == before["status"]["updateRevision"]

    space.kubectl(
        "replace", "--force", "-f", str(file)
    )  # deletes it first: a new object, and everything of the old goes
    space.until(lambda: space.inference(NAME)["metadata"]["uid"] != before["metadata"]["uid"], "there is a new one")
    space.until(lambda: space.converged(NAME), "the new one serves", 60)
    space.settled()
    owners = json.loads(space.kubectl("-n", space.name, "get", "replicasets,services", "-o", "json").stdout)["items"]
    uid = space.inference(NAME)["metadata"]["uid"]
    assert {one["uid"] for item in owners for one in item["metadata"]["ownerReferences"]} == {uid}


def test_a_status_that_is_wiped_is_written_anew_and_nothing_restarts(served: Namespace) -> None:
    space = served
    before = space.inference(NAME)["status"]
    with PodHistory(space.api, space.name) as history:
        begun = time.monotonic()
        space.api.request("PATCH", f"{space.path(NAME)}/status", {"status": None}, "application/merge-patch+json")
        space.until(lambda: space.converged(NAME), "the status is back")
        space.settled()
        assert not history.made(begun)
        assert not history.deleted(begun)
    after = space.inference(NAME)["status"]
    for part in ("updateRevision", "currentRevision", "observedGeneration", "replicas", "readyReplicas"):
        assert after.get(part) == before.get(part), part


def children(space: Namespace, kind: str) -> dict[str, dict[str, Any]]:
    """The children of a kind by their names, as they are now."""
    text = space.kubectl("-n", space.name, "get", kind, "-l", LABEL, "-o", "json").stdout
    return {one["metadata"]["name"]: one for one in json.loads(text)["items"]}


def ours(item: dict[str, Any]) -> dict[str, str]:
    """Those of an object's labels and annotations that the operator has put there."""
    both = {**(item["metadata"].get("labels") or {}), **(item["metadata"].get("annotations") or {})}
    return {key: value for key, value in both.items() if "hisparse" in key or "app.kubernetes.io" in key}


def test_a_child_without_its_labels_and_annotations_gets_them_back(served: Namespace) -> None:
    space = served
    with PodHistory(space.api, space.name) as history:
        begun = time.monotonic()
        for kind in KINDS:
            before = {name: ours(item) for name, item in children(space, kind).items()}
            assert before, kind
            for name, item in children(space, kind).items():
                wiped = {part: dict.fromkeys(item["metadata"].get(part) or {}) for part in ("labels", "annotations")}
                patch = json.dumps({"metadata": wiped})
                space.kubectl("-n", space.name, "patch", kind, name, "--type=merge", "-p", patch)
            space.until(
                lambda kind=kind, before=before: (
                    {name: ours(it) for name, it in children(space, kind).items()} == before
                ),
                f"labels and annotations of {kind} are back",
            )
        space.until(lambda: space.converged(NAME), "it serves")
        assert not history.deleted(begun), "no pod paid for it"
        assert not history.made(begun)


EDITS: dict[str, dict[str, Any]] = {
    "replicasets.apps": {"spec": {"replicas": 1}},
    "services": {"spec": {"selector": {"app": "another"}}},
    "networkpolicies": {"spec": {"podSelector": {"matchLabels": {"app": "another"}}}},
    "poddisruptionbudgets": {"spec": {"maxUnavailable": 0}},
}


def test_a_child_that_a_person_edits_is_put_back_and_told(served: Namespace) -> None:
    space = served
    for kind, patch in EDITS.items():
        (name,) = children(space, kind)
        (part,) = patch
        before = children(space, kind)[name][part]
        space.kubectl("-n", space.name, "patch", kind, name, "--type=merge", "-p", json.dumps(patch))
        space.until(
            lambda kind=kind, name=name, part=part, before=before: children(space, kind)[name][part] == before,
            f"{kind} is as before",
        )
        said = space.until(
            lambda kind=kind: [one for one in events(space, "ChildPutBack") if KINDS[kind] in one], f"{kind} is told of"
        )
        assert name in said[0]
        assert "kubectl" in said[0], "who changed it"
    space.until(lambda: space.converged(NAME), "it serves")


def test_a_child_that_a_person_deletes_comes_back_and_is_told(served: Namespace) -> None:
    space = served
    for kind, word in KINDS.items():
        space.settled()
        names = set(children(space, kind))
        name = min(names)
        with PodHistory(space.api, space.name) as history:
            begun = time.monotonic()
            space.kubectl("-n", space.name, "delete", kind, name)
            space.until(lambda kind=kind, names=names: set(children(space, kind)) == names, f"{kind} is back")
            space.until(lambda: space.converged(NAME), "it serves")
            said = space.until(
                lambda word=word: [one for one in events(space, "ChildPutBack") if word in one],
                f"{kind} is told of",
            )
            assert name in said[0]
            if kind != "replicasets.apps":
                assert not history.deleted(begun), "no pod paid for it"
            assert len(history.made(begun)) <= REPLICAS


def test_a_child_that_somebody_else_owns_is_never_taken_over(space: Namespace) -> None:
    """Of each kind that has a name which a person could have used."""
    taken: dict[str, dict[str, Any]] = {
        "Service": {"apiVersion": "v1", "spec": {"selector": {"app": "theirs"}, "ports": [{"port": 80}]}},
        "ServiceAccount": {"apiVersion": "v1"},
        "NetworkPolicy": {
            "apiVersion": "networking.k8s.io/v1",
            "spec": {"podSelector": {"matchLabels": {"app": "theirs"}}},
        },
        "PodDisruptionBudget": {"apiVersion": "policy/v1", "spec": {"maxUnavailable": 1}},
    }
    space.operators.leading()
    for number, (kind, rest) in enumerate(taken.items()):
        name = f"taken-{number}"
        theirs = {"kind": kind, "metadata": {"name": name, "namespace": space.name}, **rest}
        space.kubectl("create", "-f", "-", input=yaml.safe_dump(theirs))
        plural = f"{kind.lower().removesuffix('y')}{'ies' if kind.endswith('y') else 's'}"
        before = space.kubectl("-n", space.name, "get", plural, name, "-o", "yaml").stdout
        space.create(name, **spec())
        space.until(
            lambda name=name: space.condition("Ready", name).get("reason") == "ChildConflict",
            f"{kind} {name} is told of",
        )
        assert kind in space.condition("Ready", name)["message"]
        assert space.kubectl("-n", space.name, "get", plural, name, "-o", "yaml").stdout == before
        space.api.request("DELETE", space.path(name))
        assert space.kubectl("-n", space.name, "get", plural, name, "-o", "yaml").stdout == before


def test_three_edits_in_ten_seconds_end_in_the_last_one_and_it_serves_all_along(served: Namespace) -> None:
    """No edit restarts all pods at once, and none that was overtaken goes on."""
    space = served
    with PodHistory(space.api, space.name) as history:
        begun = time.monotonic()
        for number in range(3):
            space.edit(NAME, {"engine": {"args": [f"--seed={number}"]}})
            time.sleep(3)
        space.until(lambda: space.converged(NAME), "it serves", 60)
        space.settled()
        wanted = space.inference(NAME)["status"]["updateRevision"]
        made = Counter(one.revision for one in history.made(begun))
        sys.stdout.write(f"pods made: {dict(made)}\n")
        assert made[wanted] == REPLICAS
        assert all(count <= REPLICAS for count in made.values())
        assert history.least_serving(begun) >= REPLICAS - 1
    pods = space.api.request("GET", f"/api/v1/namespaces/{space.name}/pods?labelSelector={REVISION}={wanted}")["items"]
    assert all("--seed=2" in one["spec"]["containers"][0]["args"] for one in pods)


def test_an_edit_that_is_reverted_in_the_middle_leaves_what_served_alone(served: Namespace) -> None:
    space = served
    first = space.inference(NAME)["status"]["updateRevision"]
    slow = {"podTemplate": {"annotations": {"testenv.hisparse.dev/outcome": "never-ready"}}}
    with PodHistory(space.api, space.name) as history:
        begun = time.monotonic()
        space.edit(NAME, {"engine": {"args": ["--seed=1"]}, **slow})
        space.until(lambda: [one for one in history.made(begun) if one.revision != first], "the new revision has a pod")
        time.sleep(2)
        space.edit(NAME, {"engine": None, "podTemplate": None})
        space.until(lambda: space.converged(NAME), "it serves", 60)
        space.settled()
        assert space.inference(NAME)["status"]["updateRevision"] == first
        kept = [one for one in history.pods.values() if one.made < begun and one.deleted is None]
        assert kept, "one pod of the old revision served all along and was not restarted"
        assert history.least_serving(begun) >= REPLICAS - 1


def test_a_namespace_is_deleted_with_the_operator_down(served: Namespace) -> None:
    space = served
    assert space.operators.running[0].stop() == 0
    space.kubectl("delete", "namespace", space.name, "--wait=false")
    space.until(lambda: space.api.get(f"/api/v1/namespaces/{space.name}") is None, "nothing holds it up", 60)


def test_a_clock_that_jumps_costs_no_pod_and_stops_nothing(space: Namespace, tmp_path: Any) -> None:
    """A day ahead, then an hour behind, in the middle of a rollout too."""
    offset = tmp_path / "hours"
    offset.write_text("0")
    operator = space.operators.leading("--resync", "2s", program=("-c", JUMPING, str(offset)))
    space.create(NAME, **spec())
    space.until(lambda: space.converged(NAME), "it serves", 60)
    space.settled()
    with PodHistory(space.api, space.name) as history:
        begun = time.monotonic()
        for hours in ("24", "-1", "0"):
            offset.write_text(hours)
            time.sleep(4)
        assert not history.made(begun)
        assert not history.deleted(begun)
        for hours in ("24", "-1"):
            offset.write_text("0")
            space.edit(NAME, {"engine": {"args": [f"--seed={len(hours)}"]}})
            offset.write_text(hours)
            space.until(lambda: space.converged(NAME), f"the rollout ends though the clock is {hours} h off", 60)
        assert history.least_serving(begun) >= REPLICAS - 1
    assert operator.process.poll() is None
    assert operator.page("/healthz") == "ok\n"
