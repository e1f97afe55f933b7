"""Rollouts on a small cluster: they converge, keep their promise, stop where they should, and can be turned round."""

from collections.abc import Callable
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from simulator import BAD, GRACE, H200, REFUSED, UNMADE, SmallCluster, dense, node, rollouts

from hisparse_operator.decide.identity import REVISION_LABEL
from hisparse_operator.decide.pods import SLACK, EnginePod
from hisparse_operator.decide.reasons import ConditionType
from hisparse_operator.decide.rollout import Fleet, Phase, Terms, step
from hisparse_operator.kinds import LABEL


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
GOING: dict[str, Any] = {"terminating": True, "serving": False}
LEAVES: dict[str, Any] = GOING | {"makes_room": True}
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
            Phase.PREPARE,
            {"o": 1, "n": 0},
            id="the new ReplicaSet is made before a pod goes for it",
        ),
        pytest.param(
            1,
            [fleet("o", 1, pod("o1")), fleet("n", 0)],
            Phase.REPLACE,
            {"o": 0, "n": 0},
            id="one replica: the old pod makes room first",
        ),
        pytest.param(
            1,
            [fleet("o", 0, pod("o1", **LEAVES))],
            Phase.WAIT_GONE,
            {"o": 0, "n": 0},
            id="the old pod drains and still holds its GPUs: wait",
        ),
        pytest.param(
            1,
            [fleet("o", 0, pod("o1", **LEAVES, overdue=True))],
            Phase.SCALE_UP,
            {"o": 0, "n": 1},
            id="the old pod should have ended: nobody waits for it any longer",
        ),
        pytest.param(
            2,
            [fleet("o", 2, pod("o1"), pod("o2"), pod("o3", **GOING)), fleet("n", 0)],
            Phase.REPLACE,
            {"o": 1, "n": 0},
            id="a pod that somebody deleted has been replaced: it is not waited for",
        ),
        pytest.param(
            3,
            [fleet("o", 0, pod("o1", **GOING), pod("o2", **GOING))],
            Phase.SCALE_UP,
            {"o": 0, "n": 3},
            id="scaled to zero and up again: what still goes is not waited for",
        ),
        pytest.param(
            1,
            [fleet("o", 0, pod("o1", **GOING)), fleet("n", 1, pod("n1"))],
            Phase.COMPLETE,
            {"o": 0, "n": 1},
            id="a pod that hangs does not keep a rollout from being complete",
        ),
        pytest.param(
            5,
            [fleet("o", 2, pod("o1"), pod("o2")), fleet("n", 1, pod("n1"))],
            Phase.SCALE_UP,
            {"o": 2, "n": 3},
            id="scaling up in a rollout adds new ones",
        ),
        pytest.param(
            1, [fleet("o", 0)], Phase.SCALE_UP, {"o": 0, "n": 1}, id="the old pod is gone: the new one takes its place"
        ),
        pytest.param(
            3,
            [fleet("o", 3, pod("o1"), pod("o2"), pod("o3")), fleet("n", 0)],
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
            [fleet("o", 3, pod("o1"), pod("o2", **STUCK), pod("o3")), fleet("n", 0)],
            Phase.REPLACE,
            {"o": 2, "n": 0},
            id="an old pod that does not serve goes first",
        ),
        pytest.param(
            3,
            [fleet("o", 3, pod("o1", **STUCK), pod("o2", **DOWN), pod("o3")), fleet("n", 0)],
            Phase.REPLACE,
            {"o": 2, "n": 0},
            id="old pods that have been up may come back: one at a time",
        ),
        pytest.param(
            3,
            [fleet("o", 3, pod("o1", **LOADING), pod("o2", **LOADING), pod("o3", **LOADING)), fleet("n", 0)],
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
    assert step(2, "n", [old, fleet("n", 0)], Terms(advance=False)).phase is Phase.HELD
    half = step(2, "n", [fleet("o", 1, pod("o1"))], Terms(advance=False))
    assert half.phase is Phase.SCALE_UP
    assert half.replicas == {"o": 1, "n": 1}


def test_the_victim_is_the_pod_with_most_restarts() -> None:
    old = fleet("o", 3, pod("o1"), pod("o2", restarts=4), pod("o3"))
    assert [victim.name for victim in step(3, "n", [old, fleet("n", 0)]).victims] == ["o2"]


def only(*names: str) -> Callable[[EnginePod], bool]:
    return lambda one: one.name in names


@pytest.mark.parametrize(
    ("terms", "fleets", "phase", "victims"),
    [
        pytest.param(
            Terms(may_go=only("o2")), [fleet("o", 2, pod("o1"), pod("o2"))], Phase.REPLACE, ["o2"], id="one can"
        ),
        pytest.param(Terms(may_go=only()), [fleet("o", 2, pod("o1"), pod("o2"))], Phase.NO_PLACE, [], id="none can"),
        pytest.param(
            Terms(may_go=only("o2")),
            [fleet("o", 2, pod("o1", **STUCK), pod("o2"))],
            Phase.WAIT_OLD,
            [],
            id="one that does not serve cannot: the other is not taken on top of it",
        ),
        pytest.param(
            Terms(covers=lambda _: False),
            [fleet("o", 2, pod("o1", **LOADING, scheduled=False), pod("o2", **LOADING, scheduled=False))],
            Phase.REPLACE,
            ["o1"],
            id="those without a node could come up elsewhere: one at a time",
        ),
        pytest.param(
            Terms(),
            [fleet("o", 2, pod("o1", **LOADING, scheduled=False), pod("o2", **LOADING, scheduled=False))],
            Phase.REPLACE,
            ["o1", "o2"],
            id="those without a node could come up nowhere else: all",
        ),
        pytest.param(Terms(refused=True), [fleet("o", 2, pod("o1"), pod("o2"))], Phase.WAIT_READY, [], id="refused"),
    ],
)
def test_a_victim_leaves_a_place_that_the_new_pod_may_have(
    terms: Terms, fleets: list[Fleet], phase: Phase, victims: list[str]
) -> None:
    got = step(2, "n", [*fleets, fleet("n", 0)], terms)
    assert got.phase is phase
    assert sorted(victim.name for victim in got.victims) == victims


@pytest.mark.parametrize("terms", [Terms(failing=True), Terms(refused=True)], ids=["failing", "refused"])
def test_scaling_up_beside_a_revision_that_fails_adds_pods_of_the_one_that_serves(terms: Terms) -> None:
    fleets = [fleet("o", 2, pod("o1"), pod("o2")), fleet("m", 1, pod("m1")), fleet("n", 1, pod("n1", **DOWN))]
    assert step(6, "n", fleets, terms).replicas == {"o": 4, "m": 1, "n": 1}
    assert step(2, "n", [fleet("n", 1, pod("n1", **DOWN))], terms).replicas == {"n": 2}, "none serves"
    assert step(2, "n", [fleet("o", 1, pod("o1"))], terms).replicas == {"o": 1, "n": 1}, "the new one has to be tried"


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


def settled(replicas: int = 3, count: int | None = None, **spec: Any) -> SmallCluster:
    cluster = SmallCluster(dense(replicas=replicas, **spec), nodes(count or replicas))
    cluster.settle()
    cluster.events.clear()
    return cluster


def where(cluster: SmallCluster) -> dict[str, str]:
    return {one["spec"]["nodeName"]: one["metadata"]["name"] for one in cluster.pods() if "nodeName" in one["spec"]}


def told(cluster: SmallCluster) -> list[str]:
    return [event.reason for event in cluster.events]


# --- nothing is taken for a pod that cannot come -----------------------------------------------------------------


@pytest.mark.parametrize("replicas", [1, 3])
def test_a_template_that_the_api_server_refuses_costs_no_pod(replicas: int) -> None:
    cluster = settled(replicas)
    kept = cluster.names("Pod")
    cluster.edit(dense(replicas=replicas, **REFUSED))
    cluster.settle()
    assert cluster.names("Pod") == kept
    assert cluster.serving() == replicas
    cluster.edit(dense(replicas=replicas))
    cluster.settle()
    assert cluster.names("Pod") == kept
    assert cluster.reason(ConditionType.READY) == "True/Proven"


def test_the_new_replica_set_is_written_before_an_old_one_shrinks() -> None:
    cluster = settled(2)
    cluster.edit(dense(replicas=2, restartToken="b"))
    first = [(doc["spec"]["replicas"]) for doc in cluster.decide().apply if doc["kind"] == "ReplicaSet"]
    assert first == [0, 2], "the new one, empty, and the old one as it is"
    cluster.operate()
    second = [(doc["spec"]["replicas"]) for doc in cluster.decide().apply if doc["kind"] == "ReplicaSet"]
    assert second == [0, 1]


def test_pods_that_the_api_server_refuses_cost_one_pod() -> None:
    cluster = settled(3)
    cluster.edit(dense(replicas=3, **UNMADE))
    cluster.settle()
    assert cluster.serving() == 2
    assert cluster.reason(ConditionType.SCHEDULED) == "False/PodsRefused"
    cluster.scale(4)
    cluster.settle()
    assert cluster.serving() == 3, "the node that one gave up takes one of the revision that serves"


def test_the_pod_on_a_cordoned_node_is_not_taken_and_the_others_are() -> None:
    cluster = settled(3)
    stays = where(cluster)["node-1"]
    cluster.cordon("node-1")
    cluster.edit(dense(replicas=3, restartToken="b"))
    assert min(rollouts(cluster)) == 2
    assert cluster.serving() == 3
    assert stays in cluster.names("Pod")
    assert cluster.status["updatedReplicas"] == 2
    assert cluster.reason(ConditionType.PROGRESSING) == "False/NoPlaceForNewRevision"
    assert cluster.reason(ConditionType.READY) == "False/NoPlaceForNewRevision"
    message = cluster.condition(ConditionType.PROGRESSING)["message"]
    assert f"{stays} is on node-1, which is cordoned; kubectl uncordon node-1" in message
    assert told(cluster).count("NoPlaceForNewRevision") == 1
    cluster.events.clear()
    assert cluster.operate() == 0
    assert cluster.events == []
    cluster.cordon("node-1", on=False)
    assert min(rollouts(cluster)) == 2
    assert cluster.reason(ConditionType.READY) == "True/Proven"
    assert "RolloutComplete" in told(cluster)


def test_full_nodes_elsewhere_take_no_pod_from_where_it_is() -> None:
    cluster = settled(2, 4)
    for index, one in enumerate(cluster.nodes or ()):
        one["metadata"]["labels"]["pool"] = "new" if index > 1 else "old"
    cluster.full |= {"node-2", "node-3"}
    moved = dense(replicas=2, placement={"nodeSelector": {"pool": "new"}})
    cluster.edit(moved)
    assert min(rollouts(cluster)) == 2
    message = cluster.condition(ConditionType.PROGRESSING)["message"]
    assert "is on node-0, which does not match placement.nodeSelector" in message
    assert "raise spec.replicas by one" in message
    # the advice works: a place beside the old ones comes up
    cluster.full.clear()
    cluster.edit({**moved, "replicas": 3})
    assert min(rollouts(cluster)) == 2
    assert cluster.status["updatedReplicas"] == 1
    cluster.scale(2)
    assert min(rollouts(cluster)) == 2
    cluster.scale(3)
    assert min(rollouts(cluster)) == 2
    cluster.scale(2)
    assert min(rollouts(cluster)) == 2
    assert cluster.reason(ConditionType.READY) == "True/Proven"
    assert set(where(cluster)) == {"node-2", "node-3"}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"resources": {"gpus": 8, "gpuProducts": ["NVIDIA-L40S"]}}, "another GPU product"),
        ({"placement": {"nodeSelector": {"no": "node"}}}, ""),
        ({"resources": {"gpus": 8, "cpu": "5000"}}, ""),
    ],
    ids=str,
)
def test_nothing_is_taken_where_no_node_may_hold_the_new_pod(change: dict[str, Any], why: str) -> None:
    cluster = settled(2)
    cluster.edit(dense(replicas=2, **change))
    assert min(rollouts(cluster)) == 2
    assert cluster.condition(ConditionType.READY)["status"] == "False"
    assert why in cluster.condition(ConditionType.PROGRESSING)["message"]


def test_where_nodes_are_not_visible_a_rollout_goes_on_as_ever() -> None:
    cluster = settled(2, resources={"gpus": 8, "gpuProducts": [H200]})
    visible, cluster.nodes = cluster.nodes, None
    cluster.edit(dense(replicas=2, resources={"gpus": 8, "gpuProducts": [H200]}, restartToken="b"))
    for _ in range(20):
        cluster.nodes = None
        cluster.operate()
        cluster.nodes = visible
        for actor in (cluster.control, cluster.schedule, cluster.start, cluster.finish):
            actor()
    assert cluster.reason(ConditionType.READY) == "True/Proven"


def test_a_pod_in_trouble_may_go_from_wherever_it_is() -> None:
    cluster = SmallCluster(dense(engine={"args": [BAD]}), nodes(2))
    cluster.settle()
    (name,) = where(cluster)
    cluster.cordon(name)
    cluster.edit(dense())
    cluster.settle()
    assert cluster.reason(ConditionType.READY) == "True/Proven"


# --- pods that do not end ----------------------------------------------------------------------------------------


def test_a_pod_that_hangs_holds_up_neither_a_rollout_nor_scaling() -> None:
    cluster = settled(3, 6)
    victim = cluster.names("Pod")[0]
    cluster.evict(victim, hangs=True)
    cluster.settle()
    assert cluster.serving() == 3
    cluster.edit(dense(replicas=3, restartToken="b"))
    assert min(rollouts(cluster)) == 2
    assert cluster.serving() == 3
    assert cluster.reason(ConditionType.READY) == "True/Proven"
    cluster.scale(5)
    cluster.settle()
    assert cluster.serving() == 5
    cluster.scale(0)
    cluster.settle()
    cluster.scale(2)
    cluster.settle()
    assert cluster.serving() == 2
    assert cluster.reason(ConditionType.PROGRESSING) == "True/Complete"


def test_the_place_of_a_victim_that_hangs_is_given_up_when_it_should_have_ended() -> None:
    cluster = settled(2, 3)
    cluster.edit(dense(replicas=2, restartToken="b"))
    cluster.operate()
    cluster.operate()
    cluster.control()
    (victim,) = [one for one in cluster.pods() if "deletionTimestamp" in one["metadata"]]
    cluster.hanging.add(victim["metadata"]["name"])
    cluster.settle()
    assert cluster.serving() == 1
    assert cluster.reason(ConditionType.PROGRESSING) == "True/NewRevision"
    wait = cluster.decide().retry_seconds
    assert wait is not None
    assert wait <= (GRACE + SLACK).total_seconds()
    cluster.now += timedelta(seconds=wait)
    cluster.settle()
    assert cluster.serving() == 2, "there was a node free all the while"
    name = victim["metadata"]["name"]
    message = cluster.condition(ConditionType.PROGRESSING)["message"]
    assert f"pod {name} on node {victim['spec']['nodeName']} should have ended at" in message
    assert cluster.decide().retry_seconds is None


def test_a_pod_on_a_node_that_is_gone_is_named_with_what_to_do() -> None:
    cluster = settled(2)
    victim = cluster.names("Pod")[0]
    on = cluster.objects["Pod", victim]["spec"]["nodeName"]
    cluster.evict(victim, hangs=True)
    cluster.settle()
    assert cluster.reason(ConditionType.PROGRESSING) == "True/Scaling"
    cluster.now += GRACE + SLACK
    cluster.settle()
    assert cluster.reason(ConditionType.PROGRESSING) == "False/PodStuckTerminating"
    message = cluster.condition(ConditionType.PROGRESSING)["message"]
    assert f"pod {victim} on node {on} should have ended at" in message
    assert f"kubectl delete pod {victim} --force" in message
    assert "PodStuckTerminating" in told(cluster)
    cluster.events.clear()
    assert cluster.operate() == 0
    assert cluster.events == []
    cluster.heal()
    cluster.settle()
    assert cluster.reason(ConditionType.READY) == "True/Proven"
    assert cluster.reason(ConditionType.PROGRESSING) == "True/Complete"


# --- ReplicaSets that somebody took away ---------------------------------------------------------------------------


def away(cluster: SmallCluster, how: str) -> None:
    name = f"llama-{cluster.status['currentRevision']}"
    match how:
        case "orphan":
            cluster.orphan(name)
        case "lose":
            cluster.lose(name)
        case label:
            cluster.unlabel("ReplicaSet", name, label)


@pytest.mark.parametrize("how", ["orphan", REVISION_LABEL, LABEL])
@pytest.mark.parametrize("remembered", [True, False], ids=["remembered", "forgotten"])
def test_a_replica_set_that_is_gone_keeps_the_pods_that_it_has(how: str, *, remembered: bool) -> None:
    cluster = settled(4)
    good = cluster.inference["spec"]
    cluster.edit(dense(replicas=4, engine={"args": [BAD]}))
    cluster.settle()
    cluster.events.clear()
    kept = {one["metadata"]["name"] for one in cluster.pods() if cluster.is_ready(one)}
    if not remembered:
        cluster.delete("ControllerRevision", f"llama-{cluster.status['currentRevision']}")
    away(cluster, how)
    assert min(rollouts(cluster)) == 3
    assert kept <= set(cluster.names("Pod"))
    if not remembered and how == LABEL:
        assert told(cluster).count("StrayPod") == 1
        step = f"kubectl label rs llama-{cluster.status['currentRevision']} {LABEL}=llama"
        assert step in cluster.condition(ConditionType.PROGRESSING)["message"]
        cluster.heal()
    cluster.edit(good)
    assert min(rollouts(cluster)) == 3
    assert cluster.serving() == 4
    assert cluster.reason(ConditionType.READY) == "True/Proven"


def test_a_lost_replica_set_ends_in_what_is_wanted() -> None:
    cluster = settled(3)
    cluster.edit(dense(replicas=3, restartToken="b"))
    away(cluster, "lose")
    cluster.settle()
    assert cluster.reason(ConditionType.READY) == "True/Proven"
    assert cluster.names("ReplicaSet") == [f"llama-{cluster.status['updateRevision']}"]


def test_a_pod_without_its_revision_is_reported() -> None:
    cluster = settled(2, 3)
    name = cluster.names("Pod")[0]
    cluster.unlabel("Pod", name, REVISION_LABEL)
    cluster.settle()
    assert cluster.status["replicas"] == 2
    assert cluster.reason(ConditionType.READY) == "True/Proven"
    message = cluster.condition(ConditionType.PROGRESSING)["message"]
    assert f"{name} belongs to no revision" in message
    assert f"kubectl delete pod {name}" in message
    assert told(cluster).count("StrayPod") == 1
    cluster.events.clear()
    assert cluster.operate() == 0
    assert cluster.events == []
    cluster.evict(name)
    cluster.settle()
    assert name not in cluster.condition(ConditionType.PROGRESSING)["message"]


# --- scaling, drains, reverts --------------------------------------------------------------------------------------


def test_scaling_up_beside_a_revision_that_fails_serves_as_many_as_can() -> None:
    cluster = settled(3, 6)
    cluster.edit(dense(replicas=3, engine={"args": [BAD]}))
    cluster.settle()
    assert cluster.serving() == 2
    cluster.scale(6)
    cluster.settle()
    assert cluster.serving() == 5
    assert cluster.status["updatedReplicas"] == 1
    assert "what is added meanwhile" in cluster.condition(ConditionType.PROGRESSING)["message"]
    cluster.edit(dense(replicas=6))
    assert min(rollouts(cluster)) == 5
    assert cluster.serving() == 6


def test_after_a_drain_the_rollout_does_not_read_complete_before_pods_are_up() -> None:
    cluster = settled(2)
    for name in cluster.names("Pod"):
        cluster.evict(name)
    for one in cluster.nodes or ():
        one["spec"]["unschedulable"] = True
    for _ in range(3):
        cluster.settle()
        assert cluster.reason(ConditionType.PROGRESSING) == "True/Scaling"
    assert "wait for a node" in cluster.condition(ConditionType.WORKLOAD_READY)["message"]
    assert "start-up budget" not in cluster.condition(ConditionType.WORKLOAD_READY)["message"]
    cluster.heal()
    cluster.settle()
    assert cluster.reason(ConditionType.PROGRESSING) == "True/Complete"
    assert "RolloutComplete" not in told(cluster)


@pytest.mark.parametrize("replicas", [1, 3])
def test_a_revert_completes_with_an_event(replicas: int) -> None:
    cluster = settled(replicas)
    cluster.edit(dense(replicas=replicas, engine={"args": [BAD]}))
    cluster.settle()
    assert "RolloutComplete" not in told(cluster)
    cluster.edit(dense(replicas=replicas))
    cluster.settle()
    complete = [event.message for event in cluster.events if event.reason == "RolloutComplete"]
    revision = cluster.status["currentRevision"]
    who = "The one replica is" if replicas == 1 else "All 3 replicas are"
    verb = "serves" if replicas == 1 else "serve"
    assert complete == [f"{who} of revision {revision} and {verb}; any other has no pods left."]


def test_ready_says_that_all_take_requests_when_all_do() -> None:
    """A pod is ready before the endpoints of the Service have it."""
    cluster = SmallCluster(dense(replicas=3), nodes(3))
    cluster.settle()
    cluster.unrouted |= set(cluster.names("Pod")[:2])
    cluster.settle()
    assert cluster.reason(ConditionType.WORKLOAD_READY) == "True/MinimumReplicasReady"
    assert cluster.reason(ConditionType.AVAILABLE) == "True/Serving"
    assert cluster.reason(ConditionType.READY) == "False/NoEndpoints"
    told = cluster.condition(ConditionType.READY)["message"]
    assert "1 of 3 replicas is ready and takes requests" in told
    assert "the Service llama has no endpoint of the others yet" in told
    cluster.heal()
    cluster.settle()
    assert cluster.reason(ConditionType.READY) == "True/Proven"


def test_current_revision_is_absent_until_something_has_served() -> None:
    cluster = SmallCluster(dense(engine={"args": [BAD]}), nodes(1))
    cluster.settle()
    assert "currentRevision" not in cluster.status
    cluster.edit(dense(replicas=0))
    cluster.settle()
    assert "currentRevision" not in cluster.status
    cluster.scale(1)
    cluster.settle()
    assert cluster.status["currentRevision"] == cluster.status["updateRevision"]


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
        ("delete", "Pod"),
        ("unready", ""),
        ("spoil", ""),
        ("evict", "ends"),
        ("evict", "hangs"),
        ("unlabel pod", ""),
        ("lose", ""),
    ]
)
gentle = st.sampled_from(
    # of people and nodes, none of which takes a pod away
    [
        ("spec", dense(replicas=3, **REFUSED)),
        ("spec", dense(replicas=3, **UNMADE)),
        ("spec", dense(replicas=3, placement={"nodeSelector": {"kubernetes.io/hostname": "node-1"}})),
        ("orphan", ""),
        ("unlabel", REVISION_LABEL),
        ("unlabel", LABEL),
        ("cordon", "node-0"),
        ("cordon", "node-1"),
        ("uncordon", "node-0"),
        ("full", "node-2"),
        ("time", ""),
    ]
)
actors = st.sampled_from(["operate", "operate", "control", "schedule", "start", "finish", "collect"])
actions = st.lists(st.one_of(actors, edits, gentle), max_size=40)


def act(cluster: SmallCluster, action: Any) -> None:
    if isinstance(action, str):
        getattr(cluster, action)()
        return
    what, value = action
    if what == "spec":
        cluster.edit(value)
    elif what == "delete" and (names := cluster.names(value)):
        cluster.delete(value, names[0])
    elif what in {"orphan", "lose"} and (names := cluster.names("ReplicaSet")):
        getattr(cluster, what)(names[0])
    elif what == "unlabel" and (names := cluster.names("ReplicaSet")):
        cluster.unlabel("ReplicaSet", names[0], value)
    elif what == "unlabel pod" and (names := cluster.names("Pod")):
        cluster.unlabel("Pod", names[0], REVISION_LABEL)
    elif what == "evict" and (names := cluster.names("Pod")):
        cluster.evict(names[-1], hangs=value == "hangs")
    elif what in {"cordon", "uncordon"}:
        cluster.cordon(value, on=what == "cordon")
    elif what == "full":
        cluster.full.add(value)
    elif what == "time":
        cluster.now += GRACE + SLACK
    elif what == "spoil" and (names := cluster.names("ControllerRevision")):
        cluster.objects["ControllerRevision", names[-1]]["data"] = {"template": {}}
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
    cluster.heal()
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
@given(middle=st.lists(st.one_of(actors, edits.filter(lambda edit: edit[0] == "spec"), gentle), max_size=60))
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


# the target fails, a stand-in is given the free place on a node that has none: it was taken from it and given back
STAND_IN_WITHOUT_A_PLACE = [
    ("spec", dense(replicas=3, placement={"nodeSelector": {"kubernetes.io/hostname": "node-1"}})),
    "operate",
    "control",
    ("spec", dense(replicas=3, engine={"args": ["--enable-nonsense"]}, restartToken="c")),
    ("evict", "ends"),
    ("orphan", ""),
]


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(before=actions)
@example(before=STAND_IN_WITHOUT_A_PLACE)
def test_every_rest_is_a_fixed_point(before: list[Any]) -> None:
    cluster = SmallCluster(dense(replicas=2), nodes(2))
    for action in before:
        act(cluster, action)
    cluster.settle()
    cluster.events.clear()
    assert cluster.operate() == 0
    assert cluster.events == []
    cluster.now += GRACE + SLACK
    cluster.settle()
    cluster.events.clear()
    assert cluster.operate() == 0
    assert cluster.events == []
