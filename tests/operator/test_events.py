"""The Events of one life, as somebody reads them who was not there."""

import re

from simulator import BAD, SmallCluster, dense, node

from hisparse_operator.decide.reasons import ConditionType
from hisparse_operator.world import Event

NUMBER_OR_FIELD = re.compile(r"\d|spec\.|Accepted")


def served(replicas: int = 2) -> SmallCluster:
    cluster = SmallCluster(dense(replicas=replicas), [node(f"n{number}") for number in range(3)])
    cluster.settle()
    return cluster


def told(cluster: SmallCluster) -> list[Event]:
    found = list(cluster.events)
    cluster.events.clear()
    return found


def reasons(cluster: SmallCluster) -> list[str]:
    return [event.reason for event in told(cluster)]


def test_a_rollout_is_told_from_its_revision_to_its_end() -> None:
    cluster = served()
    told(cluster)
    cluster.edit(dense(replicas=2, restartToken="one"))
    cluster.settle()
    assert reasons(cluster) == [
        "RevisionCreated",
        "PlanWarning",
        "RolloutStarted",
        "NotReady",
        "Ready",
        "RolloutComplete",
    ]


def test_what_was_asked_for_is_no_warning() -> None:
    cluster = served()
    told(cluster)
    cluster.edit(dense(replicas=2, restartToken="one"))
    cluster.settle()
    cluster.scale(1)
    cluster.settle()
    assert {event.reason for event in told(cluster) if event.type == "Warning"} == {"PlanWarning"}


def test_every_event_of_a_life_is_a_whole_sentence_with_a_number_or_a_field() -> None:
    cluster = served()
    for spec in (
        dense(replicas=2, restartToken="one"),
        dense(replicas=2, engine={"args": [BAD]}),
        dense(replicas=1, restartToken="one"),
        dense(replicas=4, restartToken="one"),
        dense(replicas=2, context={"maxTokens": 9_000_000}),
        dense(replicas=2, resources={"gpus": 1}),
        dense(replicas=2, paused=True),
        dense(replicas=0),
        dense(replicas=2),
    ):
        cluster.edit(spec)
        cluster.settle()
    for pod in cluster.pods():
        cluster.crash(pod)
    cluster.operate()
    found = told(cluster)
    assert len({event.reason for event in found}) > 15
    for event in found:
        assert re.fullmatch(r"(?s)[A-Z0-9a-z].*[^.:;, ]\.", event.message), event
        assert not event.message[0].islower() or event.message.startswith(("spec.", "llama-")), event
        assert NUMBER_OR_FIELD.search(event.message), event
        assert not re.search(r"\b2 of 1\b|at least \d+ of 2 go\b", event.message), event


def test_a_rollout_is_told_of_when_it_begins_and_not_while_it_is_paused() -> None:
    cluster = served()
    cluster.edit(dense(replicas=2, restartToken="one"))
    cluster.settle()
    told(cluster)
    cluster.edit(dense(replicas=2, paused=True))
    cluster.settle()
    assert "RolloutStarted" not in reasons(cluster)
    cluster.edit(dense(replicas=2))
    cluster.settle()
    found = reasons(cluster)
    assert (found.count("RolloutStarted"), found[-1]) == (1, "RolloutComplete")


def test_an_outage_names_its_cause() -> None:
    cluster = served()
    told(cluster)
    for pod in cluster.pods():
        cluster.crash(pod)
    cluster.operate()
    (event,) = [one for one in told(cluster) if one.reason == "Unavailable"]
    assert event.message.startswith("0 of 2 pods take requests: CrashLoop: 0 of 2 replicas of revision ")
    assert cluster.condition(ConditionType.READY)["message"] in event.message


def test_too_many_replicas_are_counted_as_such() -> None:
    cluster = served(replicas=3)
    cluster.scale(1)
    cluster.operate()
    message = cluster.condition(ConditionType.WORKLOAD_READY)["message"]
    assert re.fullmatch(r"3 replicas of revision \w+ are ready and 1 wanted", message)
