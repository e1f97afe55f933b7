"""Operators with exactly the roles of deploy/rbac.yaml, judged by the audit log: every rule is used, nothing else is asked.

A right that this life does not need has to go, and code that needs a new one has to live here.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from audit import Grant, asked, granted, needed

from hisparse_operator.cluster.recorder import REPEAT_S
from hisparse_testenv.api import MERGE_PATCH

pytestmark = [pytest.mark.cluster, pytest.mark.chaos, pytest.mark.timeout(280)]

Namespace = Any  # of conftest.py, from which a test module cannot import
ROOT = Path(__file__).parents[2]
ROLES: dict[str, list[dict[str, Any]]] = {
    one["metadata"]["name"]: one["rules"]
    for one in yaml.safe_load_all((ROOT / "operator" / "deploy" / "rbac.yaml").read_text())
}
NAME = "glm"
POLICIES = "/apis/inference.hisparse.dev/v1alpha1/hisparsenodepolicies"
LLAMA = {
    "model": {"huggingFace": {"repo": "meta-llama/Llama-3.1-8B-Instruct"}},
    "context": {"maxTokens": 65536},
    "resources": {"gpus": 1},
}
KEPT_REVISIONS = 5
MANY = 2000
LABEL = "inference.hisparse.dev/inference"
LABELLED = (
    "controllerrevisions",
    "replicasets",
    "configmaps",
    "services",
    "serviceaccounts",
    "networkpolicies",
    "poddisruptionbudgets",
)


def rules(*roles: str) -> set[Grant]:
    return granted(rule for role in roles for rule in ROLES[role])


def used(space: Namespace) -> set[Grant]:
    """What the operators of this namespace asked for; nothing was refused for want of a right."""
    requests = list(asked(space.operators.cluster.audit_log, space.operators.user))
    refused = [one for one in requests if one.code == 403]
    assert not refused, refused
    return needed(requests)


def settled(space: Namespace, what: str) -> str:
    """Wait until the status speaks of the last edit; its revision."""
    space.until(lambda: space.observed(NAME), what, 60)
    return str(space.inference(NAME)["status"].get("updateRevision"))


def ready(space: Namespace, replicas: int) -> None:
    def so() -> bool:
        found = space.inference(NAME).get("status") or {}
        return bool(
            space.observed(NAME)
            and space.condition("Ready", NAME).get("status") == "True"
            and found["replicas"] == replicas
        )

    space.until(so, f"{replicas} are ready", 90)


@pytest.fixture
def policy(everywhere: Namespace) -> Iterator[Namespace]:
    """A policy of node agents, and the right to see the Leases of their pools."""
    space = everywhere
    bind = ("create", "rolebinding", "pools", "--clusterrole=hisparse-operator-pools", f"--user={space.operators.user}")
    space.kubectl("-n", space.name, *bind)
    document = {
        "apiVersion": "inference.hisparse.dev/v1alpha1",
        "kind": "HiSparseNodePolicy",
        "metadata": {"name": "all"},
        "spec": {},
    }
    space.api.request("POST", POLICIES, document)
    yield space
    space.kubectl("delete", "hisparsenodepolicies", "--all")


def test_of_the_whole_cluster_every_right_is_used_and_no_other_is_asked_for(policy: Namespace) -> None:
    space = policy
    words = ("--agents-namespace", space.name, "--resync", "2s")
    operator = space.operators.leading(*words)
    space.create(NAME, **LLAMA, replicas=2)
    ready(space, 2)
    space.until(lambda: (space.api.get(f"{POLICIES}/all") or {}).get("status"), "the policy has a status")

    # what has lost its label is asked for before it is written again
    for kind in LABELLED:
        space.kubectl("-n", space.name, "label", kind, "--all", f"{LABEL}-")
        space.until(
            lambda kind=kind: space.kubectl("-n", space.name, "get", kind, "-l", LABEL, "-o", "name").stdout,
            f"{kind} have their label again",
        )

    # a rollout marks the pods that go first; and an inference that changes while its status is written is read again
    space.edit(NAME, {"restartToken": "one"})
    looked: Grant = ("inference.hisparse.dev", "hisparseinferences", "get")
    for number in range(MANY):
        space.api.request("PATCH", space.path(NAME), {"metadata": {"annotations": {"n": f"{number}"}}}, MERGE_PATCH)
        if number % 50 == 0 and looked in used(space):
            break
    settled(space, "the rollout began")
    ready(space, 2)
    # one replica needs no disruption budget
    space.edit(NAME, {"replicas": 1, "networking": {"networkPolicy": False}})
    ready(space, 1)

    # a crash, whose log is read
    (pod,) = [one.partition("/")[2] for one in space.children() if one.startswith("Pod/")]
    space.kubectl("-n", space.name, "annotate", "pod", pod, "testenv.hisparse.dev/outcome=crash")
    space.until(lambda: space.inference(NAME)["status"].get("lastFailure"), "the failure is told", 60)
    space.kubectl("-n", space.name, "annotate", "pod", pod, "testenv.hisparse.dev/outcome-")

    # an Event that was posted before
    space.edit(NAME, {"paused": True})
    settled(space, "it is paused")
    space.edit(NAME, {"paused": False})
    settled(space, "it goes on")
    time.sleep(REPEAT_S)
    space.edit(NAME, {"paused": True})
    settled(space, "it is paused again")

    def counted() -> bool:
        events = json.loads(space.kubectl("-n", space.name, "get", "events", "-o", "json").stdout)["items"]
        return any(one["reason"] == "Paused" and one["count"] > 1 for one in events)

    space.until(counted, "the Event is counted")

    # more revisions than are kept
    space.edit(NAME, {"paused": False, "replicas": 0})
    seen = {settled(space, "it is stopped")}
    for number in range(KEPT_REVISIONS + 2):
        space.edit(NAME, {"restartToken": f"again-{number}"})
        space.until(lambda: settled(space, "seen") not in seen, "another revision", 60)
        seen.add(settled(space, "seen"))
    revisions = [one for one in space.children() if one.startswith("ControllerRevision/")]
    assert len(revisions) < len(seen)
    assert operator.stop() == 0

    allowed = rules(
        "hisparse-operator", "hisparse-operator-cluster", "hisparse-operator-pools", "hisparse-operator-lease"
    )
    found = used(space)
    assert found - allowed == set()
    assert allowed - found == set(), "rights that nothing uses"


def test_in_one_namespace_no_more_is_asked_for_than_lies_in_it(space: Namespace) -> None:
    operator = space.operators.leading("--resync", "2s")
    space.create(NAME, **LLAMA)
    ready(space, 1)
    assert operator.stop() == 0
    found = used(space)
    assert found <= rules("hisparse-operator", "hisparse-operator-lease")
    assert rules("hisparse-operator-lease") <= found
    requests = asked(space.operators.cluster.audit_log, space.operators.user)
    assert {one.namespace for one in requests} == {space.name}
