"""What is said where an outcome could not be put in place: pure."""

from datetime import UTC, datetime
from typing import Any

import pytest

from hisparse_operator.decide.blocked import (
    LIMIT,
    Blocked,
    Hindrance,
    blocked_status,
    bounded,
    last_status,
    refused,
    told,
)
from hisparse_operator.decide.catalogue import may_stand
from hisparse_operator.world import Event, World

NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
THEN = "2026-01-01T00:00:00Z"
NO = Blocked(Hindrance.REFUSED, "no")
LABEL, REVISION = "inference.hisparse.dev/inference", "inference.hisparse.dev/revision"
TEMPLATE = {"metadata": {"labels": {}}, "spec": {"containers": [{"name": "engine"}]}}

TYPED = "failed to create typed patch object (team/glm-abc; apps/v1, Kind=ReplicaSet): "
INVALID = 'ReplicaSet.apps "glm-abc" is invalid: '
POD = "spec.template.spec"


def inference(status: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    meta = {"name": "glm", "namespace": "team", "uid": "u", "generation": 3}
    return {"metadata": meta, "spec": spec, "status": status or {}}


def replica_set(**pod: Any) -> dict[str, Any]:
    engine = {"name": "engine", "image": "x", "env": [{"name": "OURS", "value": "1"}], **pod.pop("engine", {})}
    rendered = {
        "containers": [engine, *pod.pop("sidecars", ())],
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}, *pod.pop("tolerations", ())],
        "volumes": [{"name": "hisparse-shm", "emptyDir": {}}, *pod.pop("volumes", ())],
        **pod,
    }
    return {"kind": "ReplicaSet", "metadata": {"name": "glm-abc"}, "spec": {"template": {"spec": rendered}}}


VARIABLE = {"name": "A", "valueFrom": {"bogus": 1}}
SIDECAR = {"name": "s"}
SCRATCH = {"name": "scratch", "hostPath": {"path": "a/../b"}}
MOUNT = {"name": "nope", "mountPath": "/n"}


@pytest.mark.parametrize(
    ("status", "message", "spec", "pod", "said", "field"),
    [
        pytest.param(
            500,
            f"{TYPED}.{POD}.tolerations[1].bogus: field not declared in schema",
            {"placement": {"tolerations": [{"bogus": 1}]}},
            {"tolerations": [{"bogus": 1}]},
            "spec.placement.tolerations[0].bogus: field not declared in schema. ",
            "Correct spec.placement.tolerations[0];",
            id="an unknown field, with the index that the user counts",
        ),
        pytest.param(
            500,
            f'{TYPED}.{POD}.containers[name="engine"].env[name="A"].valueFrom.bogus: field not declared in schema',
            {"engine": {"env": [VARIABLE]}},
            {"engine": {"env": [{"name": "OURS"}, VARIABLE]}},
            "spec.engine.env[0].valueFrom.bogus: field not declared in schema. ",
            "Correct spec.engine.env[0];",
            id="an element that the API server names",
        ),
        pytest.param(
            422,
            f"{INVALID}{POD}.containers[1].image: Required value",
            {"podTemplate": {"sidecars": [SIDECAR]}},
            {"sidecars": [SIDECAR]},
            "spec.podTemplate.sidecars[0].image: Required value. ",
            "Correct spec.podTemplate.sidecars[0];",
            id="a sidecar",
        ),
        pytest.param(
            422,
            f"{INVALID}{POD}.volumes[1].hostPath.path: Invalid value",
            {"podTemplate": {"volumes": [SCRATCH]}},
            {"volumes": [SCRATCH]},
            "spec.podTemplate.volumes[0].hostPath.path: Invalid value. ",
            "Correct spec.podTemplate.volumes[0];",
            id="a volume behind ours",
        ),
        pytest.param(
            422,
            f'{INVALID}{POD}.containers[0].volumeMounts[0].name: Not found: "nope"',
            {"podTemplate": {"volumeMounts": [MOUNT]}},
            {"engine": {"volumeMounts": [MOUNT]}},
            'spec.podTemplate.volumeMounts[0].name: Not found: "nope". ',
            "Correct spec.podTemplate.volumeMounts[0];",
            id="a mount",
        ),
        pytest.param(
            500,
            f"{TYPED}.{POD}.securityContext.runAsUser: expected numeric (int or float), got string",
            {"podTemplate": {"securityContext": {"runAsUser": "root"}}},
            {"securityContext": {"runAsUser": "root"}},
            "spec.podTemplate.securityContext.runAsUser: expected numeric (int or float), got string. ",
            "Correct spec.podTemplate.securityContext;",
            id="another type",
        ),
        pytest.param(
            422,
            f"{INVALID}[{POD}.affinity.nodeAffinity: no, spec.template.annotations: Invalid value, "
            f"{POD}.nodeSelector: x, {POD}.priorityClassName: y]",
            {},
            {},
            "[spec.placement.affinity.nodeAffinity: no, spec.podTemplate.annotations: Invalid value, "
            "spec.placement.nodeSelector: x, spec.placement.priorityClassName: y]. ",
            "Correct spec.placement.affinity, spec.podTemplate.annotations, spec.placement.nodeSelector and 1 more;",
            id="several",
        ),
        pytest.param(
            422,
            f"{INVALID}{POD}.containers[0].livenessProbe: no",
            {},
            {},
            f"{POD}.containers[0].livenessProbe: no. ",
            "report a bug",
            id="a field that only we set",
        ),
        pytest.param(
            422,
            f"{INVALID}{POD}.volumes[0].name: no",
            {},
            {},
            f"{POD}.volumes[0].name: no. ",
            "report",
            id="our volume",
        ),
        pytest.param(
            403,
            'replicasets.apps is forbidden: User "x" cannot create resource "replicasets"',
            {},
            {},
            'User "x" cannot create',
            "operator/deploy/rbac.yaml",
            id="a missing right",
        ),
        pytest.param(
            403, "exceeded quota: small, requested: pods=1", {}, {}, "exceeded quota", "Raise that", id="a quota"
        ),
        pytest.param(
            400, 'admission webhook "x" denied the request: no', {}, {}, "denied", "ask for an exception", id="a policy"
        ),
        pytest.param(
            403, "cannot create: namespace team is being terminated", {}, {}, "", "nothing is left", id="a namespace"
        ),
        pytest.param(500, f"{TYPED}.{POD}.tolerations: {'x' * 200_000}", {}, {}, "xxx...", "Correct", id="no end"),
    ],
)
def test_a_refusal_names_our_field_and_the_next_step(
    status: int, message: str, spec: dict[str, Any], pod: dict[str, Any], said: str, field: str
) -> None:
    found = refused(status, message, inference(**spec), replica_set(**pod))
    assert found.reason == "Refused"
    assert found.message.startswith("the API server refused ReplicaSet glm-abc: ")
    assert said in found.message
    assert field in found.message
    assert len(found.message) <= LIMIT


def test_without_the_document_the_field_is_named_without_an_index() -> None:
    found = refused(500, f"{TYPED}.{POD}.tolerations[1].bogus: field not declared", inference())
    assert "refused: spec.placement.tolerations.bogus: field not declared. Correct" in found.message


def test_text_is_cut_after_a_word() -> None:
    assert bounded("short") == "short"
    assert bounded("one two three four", 17) == "one two three ..."
    assert bounded("x" * 50, 10) == "xxxxxxx..."
    assert len(bounded("word " * 1000)) <= LIMIT


@pytest.mark.parametrize("why", Hindrance)
def test_what_hinders_may_stand_in_ready_and_progressing_as_the_catalogue_says(why: Hindrance) -> None:
    status = blocked_status(WANTED, World(inference()), Blocked(why, "no"), NOW)
    told = [one for one in status["conditions"] if one["reason"] == why.value]
    assert {one["type"] for one in told} == {"Progressing", "Ready"}
    assert all(may_stand(one["type"], one["status"], one["reason"]) for one in told)
    assert not may_stand("Available", "False", why.value)


# --- status ------------------------------------------------------------------------------------------------------


def revision(digest: str) -> dict[str, Any]:
    meta = {"name": f"glm-{digest}", "labels": {REVISION: digest, LABEL: "glm"}}
    return {
        "metadata": meta,
        "revision": 1,
        "data": {"templateVersion": 1, "launch": {"engine": {}}, "template": TEMPLATE},
    }


def pod(name: str, digest: str, *, ready: bool = True) -> dict[str, Any]:
    condition = {"type": "Ready", "status": str(ready)}
    return {
        "metadata": {"name": name, "uid": name, "labels": {REVISION: digest, LABEL: "glm"}},
        "spec": {"nodeName": "n"},
        "status": {"phase": "Running", "conditions": [condition]},
    }


def routed(*names: str) -> dict[str, Any]:
    endpoints = [{"targetRef": {"kind": "Pod", "name": name}, "conditions": {"ready": True}} for name in names]
    return {"metadata": {"name": "slice"}, "endpoints": endpoints}


def by_type(status: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {one["type"]: one for one in status["conditions"]}


def condition(kind: str, status: str, reason: str = "Why") -> dict[str, Any]:
    return {"type": kind, "status": status, "reason": reason, "message": "m", "lastTransitionTime": THEN}


WANTED = {
    "phase": "RollingOut",
    "replicas": 2,
    "updatedReplicas": 0,
    "servingReplicas": 2,
    "updateRevision": "new",
    "currentRevision": "old",
    "plan": {"summary": "new"},
    "mode": {"effective": "None"},
    "conditions": [condition("Ready", "True"), condition("Accepted", "True"), condition("Progressing", "True")],
}


def test_nothing_is_ready_or_progresses_and_the_time_of_an_earlier_no_stays() -> None:
    before = {"conditions": [condition("Ready", "False"), condition("Progressing", "True")]}
    world = World(inference(before), controller_revisions=(revision("old"), revision("new")))
    status = blocked_status(WANTED, world, NO, NOW)
    found = by_type(status)
    assert list(found) == ["Ready", "Accepted", "Progressing"], "in the order of before"
    for kind in ("Ready", "Progressing"):
        assert (found[kind]["status"], found[kind]["reason"], found[kind]["message"]) == ("False", "Refused", "no")
        assert found[kind]["observedGeneration"] == 3
    assert found["Ready"]["lastTransitionTime"] == THEN
    assert found["Progressing"]["lastTransitionTime"] == "2026-11-29T12:00:00Z"
    assert found["Accepted"] == condition("Accepted", "True")
    assert (status["updateRevision"], status["currentRevision"], status["phase"]) == ("new", "old", "Degraded")
    again = World(inference(status), controller_revisions=world.controller_revisions)
    assert blocked_status(WANTED, again, NO, NOW) == status, "a fixed point"


def test_a_revision_that_was_never_written_is_not_named() -> None:
    before = {"updateRevision": "old", "plan": {"summary": "old"}, "mode": {"effective": "HiSparse"}}
    world = World(
        inference(before),
        controller_revisions=(revision("old"),),
        pods=(pod("a", "old"), pod("b", "old")),
    )
    status = blocked_status(WANTED, world, NO, NOW)
    assert (status["updateRevision"], status["plan"], status["mode"]) == tuple(before.values())
    assert status["updatedReplicas"] == 2, "of the revision that it names"


def test_of_a_new_object_no_revision_is_named() -> None:
    status = blocked_status(WANTED, World(inference()), NO, NOW)
    assert not {"updateRevision", "currentRevision", "plan", "mode"} & set(status)
    assert status["phase"] == "Degraded"
    assert blocked_status({**WANTED, "servingReplicas": 0}, World(inference()), NO, NOW)["phase"] == "Failed"


def test_the_message_is_bounded() -> None:
    status = blocked_status(WANTED, World(inference()), Blocked(Hindrance.REFUSED, "word " * 1000), NOW)
    assert all(len(one["message"]) <= LIMIT for one in status["conditions"])


def test_after_a_bug_the_numbers_are_counted_anew() -> None:
    before = {
        "observedGeneration": 2,
        "updateRevision": "new",
        "replicas": 3,
        "readyReplicas": 3,
        "conditions": [condition("Available", "True"), condition("Ready", "True"), condition("Accepted", "True")],
    }
    world = World(
        inference(before),
        pods=(pod("a", "old"), pod("b", "new", ready=False)),
        endpoint_slices=(routed("a"),),
    )
    status = last_status(world, Blocked(Hindrance.INTERNAL_ERROR, "a bug"), NOW)
    counts = ("replicas", "readyReplicas", "updatedReplicas", "servingReplicas", "observedGeneration")
    assert [status[one] for one in counts] == [2, 1, 1, 1, 3]
    found = by_type(status)
    assert (found["Ready"]["status"], found["Ready"]["reason"]) == ("False", "InternalError")
    assert (found["Progressing"]["status"], found["Progressing"]["reason"]) == ("False", "InternalError")
    assert (found["Available"]["status"], found["Available"]["message"]) == ("True", "1 of 2 pods take requests")
    assert found["Accepted"] == condition("Accepted", "True")


def test_after_a_bug_with_all_pods_gone_nothing_is_available() -> None:
    before = {"conditions": [condition("Available", "True")]}
    status = last_status(World(inference(before)), Blocked(Hindrance.INTERNAL_ERROR, "a bug"), NOW)
    assert by_type(status)["Available"]["status"] == "False"
    assert status["phase"] == "Failed"


def test_a_bug_in_a_new_object_gives_it_a_status() -> None:
    status = last_status(World(inference()), Blocked(Hindrance.INTERNAL_ERROR, "a bug"), NOW)
    assert sorted(by_type(status)) == ["Progressing", "Ready"], "what nobody judged is absent"


def test_only_events_of_what_is_are_told() -> None:
    reasons = ["RevisionCreated", "PlanWarning", "RolloutStarted", "RolloutComplete", "NotReady", "Ready", "Why"]
    events = tuple(Event("Normal", reason, "x") for reason in (*reasons, "Unavailable", "EngineFailed"))
    same = [event.reason for event in told(events, WANTED, WANTED)]
    assert same == ["RevisionCreated", "PlanWarning", "Unavailable", "EngineFailed"]
    other = [event.reason for event in told(events, WANTED, {**WANTED, "updateRevision": "old"})]
    assert other == ["Unavailable", "EngineFailed"]
