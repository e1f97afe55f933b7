"""Rollouts on a small cluster: they converge, keep their promise, stop where they should, and can be turned round."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from simulator import BAD, SmallCluster, dense, node, rollouts

from hisparse_operator.decide.pods import EnginePod
from hisparse_operator.decide.reasons import ConditionType
from hisparse_operator.decide.rollout import Fleet, Phase, step


def pod(name: str, *, serving: bool = True, started: bool = True, restarts: int = 0, **more: Any) -> EnginePod:
    values: dict[str, Any] = {
        "name": name,
        "uid": name,
        "revision": name[:1],
        "terminating": False,
        "finished": False,
        "scheduled": True,
        "started": started,
        "ready": serving,
        "serving": serving,
        "restarts": restarts,
        "created": "2026-11-29T12:00:00Z",
        "raw": {},
    }
    return EnginePod(**values | more)


def fleet(revision: str, replicas: int, *pods: EnginePod) -> Fleet:
    return Fleet(revision, replicas, pods)


DOWN: dict[str, Any] = {"serving": False, "started": False, "restarts": 3}
LOADING: dict[str, Any] = {"serving": False, "started": False}
STUCK: dict[str, Any] = {"serving": False, "started": True}


@pytest.mark.parametrize(
    ("wanted", "fleets", "phase", "replicas"),
    [
        pytest.param(2, [], Phase.SCALE_UP, {"n": 2}, id="the first time all pods are made at once"),
        pytest.param(1, [fleet("n", 1, pod("n1"))], Phase.COMPLETE, {"n": 1}, id="done"),
        pytest.param(1, [fleet("n", 1)], Phase.WAIT_READY, {"n": 1}, id="the pod is not made yet: wait"),
        pytest.param(0, [fleet("n", 2, pod("n1"), pod("n2"))], Phase.SCALE_DOWN, {"n": 0}, id="scaled to zero"),
        pytest.param(
            1,
            [fleet("o", 1, pod("o1"))],
            Phase.REPLACE,
            {"o": 0, "n": 0},
            id="one replica: the old pod makes room first",
        ),
        pytest.param(
            1,
            [fleet("o", 0, pod("o1", terminating=True))],
            Phase.WAIT_GONE,
            {"o": 0, "n": 0},
            id="the old pod drains and still holds its GPUs: wait",
        ),
        pytest.param(
            1, [fleet("o", 0)], Phase.SCALE_UP, {"o": 0, "n": 1}, id="the old pod is gone: the new one takes its place"
        ),
        pytest.param(
            3,
            [fleet("o", 3, pod("o1"), pod("o2"), pod("o3"))],
            Phase.REPLACE,
            {"o": 2, "n": 0},
            id="three replicas: one goes, two serve",
        ),
        pytest.param(
            3,
            [fleet("o", 2, pod("o1"), pod("o2")), fleet("n", 1, pod("n1", **LOADING))],
            Phase.WAIT_READY,
            {"o": 2, "n": 1},
            id="the new pod loads: no second old one goes",
        ),
        pytest.param(
            3,
            [fleet("o", 2, pod("o1"), pod("o2")), fleet("n", 1, pod("n1", **DOWN))],
            Phase.WAIT_READY,
            {"o": 2, "n": 1},
            id="the new pod crashes: the old ones stay",
        ),
        pytest.param(
            2,
            [fleet("o", 1, pod("o1")), fleet("n", 1, pod("n1", ready=True, serving=False))],
            Phase.WAIT_READY,
            {"o": 1, "n": 1},
            id="the new pod is ready and not routed yet: no gap",
        ),
        pytest.param(
            3,
            [fleet("o", 3, pod("o1"), pod("o2", **STUCK), pod("o3"))],
            Phase.REPLACE,
            {"o": 2, "n": 0},
            id="an old pod that does not serve goes first",
        ),
        pytest.param(
            3,
            [fleet("o", 3, pod("o1", **STUCK), pod("o2", **DOWN), pod("o3"))],
            Phase.REPLACE,
            {"o": 2, "n": 0},
            id="old pods that have been up may come back: one at a time",
        ),
        pytest.param(
            3,
            [fleet("o", 3, pod("o1", **LOADING), pod("o2", **LOADING), pod("o3", **LOADING))],
            Phase.REPLACE,
            {"o": 0, "n": 0},
            id="old pods that were never up are all replaced at once",
        ),
        pytest.param(
            3,
            [fleet("o", 1, pod("o1")), fleet("m", 1, pod("m1", **DOWN)), fleet("n", 1, pod("n1"))],
            Phase.REPLACE,
            {"o": 1, "m": 0, "n": 1},
            id="of two old revisions the broken one goes first",
        ),
        pytest.param(
            1,
            [fleet("o", 2, pod("o1"), pod("o2")), fleet("n", 1, pod("n1", **LOADING))],
            Phase.SCALE_DOWN,
            {"o": 1, "n": 0},
            id="scaling down in a rollout takes what does not serve first",
        ),
        pytest.param(
            2,
            [fleet("o", 1, pod("o1"), pod("o2", finished=True, serving=False)), fleet("n", 1, pod("n1"))],
            Phase.REPLACE,
            {"o": 0, "n": 1},
            id="an evicted pod holds no place",
        ),
    ],
)
def test_next_step(wanted: int, fleets: list[Fleet], phase: Phase, replicas: dict[str, int]) -> None:
    got = step(wanted, "n", fleets)
    assert got.phase is phase
    assert got.replicas == replicas


def test_a_held_rollout_fills_places_but_takes_no_old_pod() -> None:
    old = fleet("o", 2, pod("o1"), pod("o2"))
    assert step(2, "n", [old], advance=False).phase is Phase.HELD
    half = step(2, "n", [fleet("o", 1, pod("o1"))], advance=False)
    assert half.phase is Phase.SCALE_UP
    assert half.replicas == {"o": 1, "n": 1}


def test_the_victim_is_the_pod_with_most_restarts() -> None:
    old = fleet("o", 3, pod("o1"), pod("o2", restarts=4), pod("o3"))
    assert [victim.name for victim in step(3, "n", [old]).victims] == ["o2"]


def nodes(count: int) -> list[dict[str, Any]]:
    return [node(f"node-{index}") for index in range(count)]


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_a_new_revision_replaces_pods_one_at_a_time(replicas: int) -> None:
    cluster = SmallCluster(dense(replicas=replicas), nodes(replicas))
    cluster.settle()
    first = cluster.status["currentRevision"]
    cluster.edit(dense(replicas=replicas, restartToken="again"))
    served = list(rollouts(cluster))
    assert min(served) == replicas - 1
    assert cluster.serving() == replicas
    assert cluster.reason(ConditionType.READY) == "True/Proven"
    assert cluster.status["currentRevision"] == cluster.status["updateRevision"] != first
    assert cluster.names("ReplicaSet") == [f"llama-{cluster.status['currentRevision']}"]
    assert f"llama-{first}" in cluster.names("ControllerRevision")


def test_the_pod_that_restarted_most_is_the_one_that_goes() -> None:
    cluster = SmallCluster(dense(replicas=3), nodes(3))
    cluster.settle()
    shaky = cluster.pods()[0]
    shaky["status"]["containerStatuses"][0]["restartCount"] = 4
    cluster.edit(dense(replicas=3, restartToken="b"))
    cluster.operate()
    cluster.control()
    assert [one["metadata"]["name"] for one in cluster.pods() if "deletionTimestamp" in one["metadata"]] == [
        shaky["metadata"]["name"]
    ]


def test_a_bad_revision_stops_at_one_pod_and_a_revert_undoes_it() -> None:
    good = dense(replicas=3)
    cluster = SmallCluster(good, nodes(3))
    cluster.settle()
    first, kept = cluster.status["currentRevision"], set(cluster.names("Pod"))
    cluster.edit(dense(replicas=3, engine={"args": [BAD]}))
    cluster.settle()
    assert cluster.serving() == 2
    assert cluster.reason(ConditionType.PROGRESSING) == "False/NewRevisionFailing"
    assert cluster.reason(ConditionType.AVAILABLE) == "True/Serving"
    assert cluster.reason(ConditionType.READY) == "False/CrashLoop"
    assert cluster.status["currentRevision"] == first
    cluster.edit(good)
    assert min(rollouts(cluster)) == 2
    assert cluster.serving() == 3
    assert cluster.status["updateRevision"] == first
    assert len(kept & set(cluster.names("Pod"))) == 2, "healthy pods were replaced by the revert"
    assert cluster.reason(ConditionType.READY) == "True/Proven"


def test_an_invalid_edit_in_the_middle_of_a_rollout_holds_what_runs() -> None:
    cluster = SmallCluster(dense(replicas=2), nodes(2))
    cluster.settle()
    cluster.edit(dense(replicas=2, restartToken="b"))
    cluster.operate()
    cluster.control()  # one old pod drains
    bad = dense(replicas=2, restartToken="b", context={"maxTokens": -1})
    cluster.edit(bad)
    cluster.settle()
    assert cluster.reason(ConditionType.ACCEPTED) == "False/InvalidSpec"
    assert "maxTokens" in cluster.condition(ConditionType.ACCEPTED)["message"]
    assert cluster.serving() == 2, "the place that was free already is filled"
    assert len(cluster.names("ReplicaSet")) == 2, "the other old pod stays"
    assert cluster.reason(ConditionType.READY) == "False/InvalidSpec"
    assert cluster.reason(ConditionType.AVAILABLE) == "True/Serving"
    cluster.edit(dense(replicas=2, restartToken="b"))
    cluster.settle()
    assert cluster.reason(ConditionType.READY) == "True/Proven"


def test_a_scarce_gpu_is_waited_for_in_the_schedulers_words() -> None:
    cluster = SmallCluster(dense(replicas=2), nodes(1))
    cluster.settle()
    assert cluster.reason(ConditionType.SCHEDULED) == "False/InsufficientGPU"
    assert "2 Insufficient nvidia.com/gpu" in cluster.condition(ConditionType.READY)["message"]
    assert cluster.status["phase"] == "WaitingForCapacity"
    cluster.scale(1)
    cluster.settle()
    assert cluster.reason(ConditionType.READY) == "True/Proven"


edits = st.sampled_from(
    [
        ("spec", dense(replicas=2)),
        ("spec", dense(replicas=3)),
        ("spec", dense(replicas=2, restartToken="b")),
        ("spec", dense(replicas=3, restartToken="c")),
        ("spec", dense(replicas=1, restartToken="c")),
        ("spec", dense(replicas=2, engine={"args": [BAD]})),
        ("spec", dense(replicas=3, engine={"args": [BAD]}, restartToken="c")),
        ("spec", dense(replicas=2, context={"maxTokens": 0})),
        ("spec", dense(replicas=2, context={"maxTokens": 10_000_000})),
        ("spec", dense(replicas=2, model={"huggingFace": {"repo": "nobody/nothing"}})),
        ("delete", "ReplicaSet"),
        ("delete", "ConfigMap"),
        ("delete", "ControllerRevision"),
        ("delete", "Service"),
        ("unready", ""),
    ]
)
actors = st.sampled_from(["operate", "operate", "control", "schedule", "start", "finish"])
actions = st.lists(st.one_of(actors, edits), max_size=40)


def act(cluster: SmallCluster, action: Any) -> None:
    if isinstance(action, str):
        getattr(cluster, action)()
        return
    what, value = action
    if what == "spec":
        cluster.edit(value)
    elif what == "delete" and (names := cluster.names(value)):
        cluster.delete(value, names[0])
    elif what == "unready":
        for one in cluster.pods()[:1]:
            if one["spec"].get("nodeName"):
                cluster.set_ready(one, ready=False)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(before=actions, replicas=st.integers(0, 3))
@example(before=["operate", "control", ("delete", "ReplicaSet"), "operate"], replicas=1)
def test_whatever_happened_before_a_good_spec_converges(before: list[Any], replicas: int) -> None:
    cluster = SmallCluster(dense(replicas=2), nodes(3))
    for action in before:
        act(cluster, action)
    cluster.edit(dense(replicas=replicas, restartToken="final"))
    cluster.settle()
    assert cluster.serving() == replicas
    assert len(cluster.names("Pod")) == replicas
    ready = "True/Proven" if replicas else "False/ScaledToZero"
    assert cluster.reason(ConditionType.READY) == ready
    assert cluster.names("ReplicaSet") == cluster.names("ConfigMap") == [f"llama-{cluster.status['updateRevision']}"]
    assert (cluster.names("PodDisruptionBudget") == ["llama"]) == (replicas > 1)
    cluster.events.clear()
    assert cluster.operate() == 0
    assert cluster.events == []


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(middle=st.lists(st.one_of(actors, edits.filter(lambda edit: edit[0] == "spec")), max_size=60))
def test_a_rollout_never_serves_less_than_wanted_minus_one(middle: list[Any]) -> None:
    """Nobody deletes anything and no pod fails by itself: every serving pod that goes was taken by us."""
    cluster = SmallCluster(dense(replicas=3), nodes(3))
    cluster.settle()
    wanted = 3  # as of our last pass: what somebody asks for since then comes with the next one
    served = [(cluster.serving(), wanted)]
    for action in middle:
        if action == "operate":
            wanted = int(cluster.inference["spec"]["replicas"])
        act(cluster, action)
        served.append((cluster.serving(), wanted))
    for (before, _), (after, wanted) in pairwise(served):
        assert after >= min(before, wanted - 1)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(before=actions)
def test_every_rest_is_a_fixed_point(before: list[Any]) -> None:
    cluster = SmallCluster(dense(replicas=2), nodes(2))
    for action in before:
        act(cluster, action)
    cluster.settle()
    cluster.events.clear()
    assert cluster.operate() == 0
    assert cluster.events == []
