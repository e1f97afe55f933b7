"""What each way to fail means for the next try, on jumping time; the API is not asked."""

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any

import pytest

from hisparse.errors import SpecError, Transient
from hisparse_operator.cluster.apply import Applied, Applier, ChildTakenError
from hisparse_operator.cluster.cache import Cache, Key
from hisparse_operator.cluster.kube import ApiError, Conflict, LeaseLostError, NotFoundError
from hisparse_operator.cluster.observe import Decisions, Observer
from hisparse_operator.cluster.recorder import Recorder
from hisparse_operator.kinds import INFERENCE, POD
from hisparse_operator.metrics import Metrics
from hisparse_operator.worker import Worker
from hisparse_operator.workqueue import WorkQueue
from hisparse_operator.world import Event, Object, Outcome, World

Run = Callable[[Coroutine[Any, Any, Any]], Any]
NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)


class Applying(Applier):
    """Keeps what it is asked to write; raises or answers what a test wants."""

    def __init__(self, answers: dict[str, Any]) -> None:
        self.answers = answers
        self.asked: list[tuple[float, str, Outcome]] = []
        self.wait_s = 0.01
        self.status_too: type[Exception] | tuple[()] = ()

    async def apply(self, inference: Object, outcome: Outcome) -> Applied:
        name = inference["metadata"]["name"]
        self.asked.append((asyncio.get_running_loop().time(), name, outcome))
        if self.wait_s:
            await asyncio.sleep(self.wait_s)
        answer = self.answers.get(name, Applied())
        if callable(answer):
            answer = answer()
        # a blocked outcome comes again as its status alone
        if isinstance(answer, Exception) and (outcome.apply or isinstance(answer, self.status_too)):
            raise answer
        return answer if isinstance(answer, Applied) else Applied()

    def told(self, name: str = "one") -> list[tuple[float, dict[str, Any], tuple[Event, ...]]]:
        """What was written as a status alone: when, its conditions by type, the events."""
        return [
            (round(time, 1), {one["type"]: one for one in outcome.status["conditions"]}, outcome.events)
            for time, who, outcome in self.asked
            if who == name and not outcome.apply and outcome.status is not None
        ]

    def times(self, name: str) -> list[float]:
        return [round(time, 1) for time, who, outcome in self.asked if who == name and outcome.apply]


class Recording(Recorder):
    """Keeps what it is asked to post."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    async def post(self, inference: Object, event: Event, *, repeat_s: float = 10.0) -> bool:
        del inference, repeat_s
        self.events.append(event)
        return True


def decide(world: World, now: datetime) -> Outcome:
    del now
    if world.inference["metadata"]["name"] == "poisonous":
        raise ZeroDivisionError("a bug")
    if world.inference["metadata"]["name"] == "misspelt":
        raise SpecError("spec.model", "no")
    event = Event("Warning", "Unavailable", "0 of 1")
    return Outcome(apply=({"kind": "Service"},), status={"replicas": len(world.pods)}, events=(event,))


class Scene:
    def __init__(self, *names: str, resync_s: float = 600, **answers: Any) -> None:
        self.cache = Cache()
        self.queue: WorkQueue[Key] = WorkQueue(chance=lambda: 0.0)
        self.metrics = Metrics()
        self.applier, self.recorder = Applying(answers), Recording()
        decisions = Decisions(decide)
        observer = Observer(None, self.cache, None, decisions, nodes=False)  # type: ignore[arg-type]
        self.worker = Worker(
            self.queue,
            observer,
            decisions,
            self.applier,
            self.recorder,
            self.metrics,
            resync_s=resync_s,
            now=lambda: NOW,
        )
        for number, name in enumerate(names, start=1):
            meta = {"namespace": "team", "name": name, "uid": name, "resourceVersion": str(number), "generation": 1}
            self.cache.put(INFERENCE, {"metadata": meta})

    async def pods(self, *times: float, name: str = "one") -> None:
        """At these times a pod of the object appears."""
        for number, time in enumerate(times):
            await asyncio.sleep(time - asyncio.get_running_loop().time())
            meta = {"namespace": "team", "name": f"{name}-{number}", "uid": f"{name}-{number}"}
            labels = {"inference.hisparse.dev/inference": name, "inference.hisparse.dev/revision": "abc"}
            self.cache.put(POD, {"metadata": {**meta, "labels": labels, "resourceVersion": str(100 + number)}})
            self.queue.add(Key("team", name), 0.05)

    async def run(self, seconds: float, *others: Coroutine[Any, Any, None]) -> None:
        for key in self.cache.keys():  # noqa: SIM118 - not a dict
            self.queue.add(key)
        tasks = [asyncio.create_task(self.worker.run()) for _ in range(2)]
        await asyncio.gather(asyncio.sleep(seconds), *others)
        self.queue.close()
        await asyncio.gather(*tasks)

    def results(self) -> dict[str, float]:
        text = self.metrics.text().decode()
        lines = [line for line in text.splitlines() if line.startswith("hisparse_operator_reconciles_total{")]
        return {line.split('"')[1]: float(line.split()[-1]) for line in lines}


def test_passes_that_wait_for_nothing_let_others_run_between_them(on_jumping_time: Run) -> None:
    """After a start there are as many as objects: the lease has to be renewed meanwhile."""
    scene = Scene(*(f"object-{number}" for number in range(50)))
    scene.applier.wait_s = 0
    turns: list[int] = []

    async def renews() -> None:
        while len(scene.applier.asked) < 50:
            turns.append(len(scene.applier.asked))
            await asyncio.sleep(0)

    on_jumping_time(scene.run(1, renews()))
    assert max(after - before for before, after in itertools.pairwise(turns)) <= 2, "one pass of each worker"


def test_a_poisonous_object_is_retried_more_and_more_rarely_and_stops_no_other(on_jumping_time: Run) -> None:
    scene = Scene("poisonous", "healthy", resync_s=10)
    on_jumping_time(scene.run(2000))
    results = scene.results()
    assert 10 <= results["bug"] <= 20
    assert len(scene.applier.times("healthy")) > 150
    assert {event.reason for event in scene.recorder.events} == {"InternalError"}
    assert "ZeroDivisionError: a bug" in scene.recorder.events[0].message


@pytest.mark.parametrize(
    ("failure", "times"),
    [
        pytest.param(Conflict("Conflict", "modified"), [0, 0.5, 1.5, 3.5, 7.5], id="a conflict soon"),
        pytest.param(Transient("429", retry_seconds=4), [0, 4.0, 8.0], id="never before the server asked for it"),
        pytest.param(LeaseLostError("not ours"), [0, 0.5, 1.5, 3.5, 7.5], id="without the lease until it is back"),
        pytest.param(ChildTakenError("Service", "x", "y"), [0], id="a taken child now and then"),
        pytest.param(ApiError(422, "Invalid", "no"), [0], id="a refusal now and then"),
    ],
)
def test_retries(on_jumping_time: Run, failure: Exception, times: list[float]) -> None:
    scene = Scene("one", one=failure)
    on_jumping_time(scene.run(10))
    assert scene.applier.times("one") == times


def test_a_spec_error_waits_for_the_edit(on_jumping_time: Run) -> None:
    scene = Scene("misspelt")
    on_jumping_time(scene.run(10_000))
    assert scene.results() == {"spec": 1}


def test_a_taken_child_is_told_in_status_and_event(on_jumping_time: Run) -> None:
    scene = Scene("one", one=ChildTakenError("Service", "x", "Deployment y"))
    on_jumping_time(scene.run(5))
    told = scene.applier.asked[-1][2]
    assert told.status is not None
    assert told.status["replicas"] == 0
    for one in told.status["conditions"]:
        assert (one["status"], one["reason"]) == ("False", "ChildConflict")
    assert [one["type"] for one in told.status["conditions"]] == ["Progressing", "Ready"]
    assert [event.reason for event in told.events] == ["Unavailable"], "what is so although it could not be written"
    assert [event.reason for event in scene.recorder.events] == ["ChildConflict"]


def test_a_blocked_status_follows_the_pods_while_the_writes_wait(on_jumping_time: Run) -> None:
    scene = Scene("one", one=ApiError(422, "Invalid", "no"))
    on_jumping_time(scene.run(40, scene.pods(3, 5, 20)))
    assert [int(time) for time in scene.applier.times("one")] == [0, 15, 30], "tried as rarely as without"
    statuses = [outcome.status for _, _, outcome in scene.applier.asked if not outcome.apply]
    assert [one["replicas"] for one in statuses if one is not None] == [0, 1, 2, 2, 3, 3]
    assert [int(time) for time, _, _ in scene.applier.told()] == [0, 3, 5, 15, 20, 30]
    assert {one["Ready"]["reason"] for _, one, _ in scene.applier.told()} == {"Refused"}
    assert len(scene.recorder.events) == 3, "an Event for each try, none for a look"
    assert scene.results() == {"refused": 3, "look": 3}


def test_after_the_block_the_status_is_the_wanted_one_again(on_jumping_time: Run) -> None:
    answers = iter([ApiError(422, "Invalid", "no")])
    scene = Scene("one", one=lambda: next(answers, Applied()))
    on_jumping_time(scene.run(40, scene.pods(20)))
    assert [int(time) for time in scene.applier.times("one")] == [0, 15, 20]
    assert len(scene.applier.told()) == 1


@pytest.mark.parametrize(
    "failure",
    [
        pytest.param(Transient("webhook", retry_seconds=0), id="a webhook that is down"),
        pytest.param(Transient("x"), id="x"),
    ],
)
def test_several_failures_in_a_row_are_told_in_the_status(on_jumping_time: Run, failure: Exception) -> None:
    scene = Scene("one", one=failure)
    on_jumping_time(scene.run(100))
    tries, told = scene.applier.times("one"), scene.applier.told()
    assert [int(time) for time, _, _ in told] == [int(time) for time in tries[3:]]
    ready = told[0][1]["Ready"]
    assert (ready["status"], ready["reason"], told[0][1]["Progressing"]["status"]) == ("False", "NotWritten", "False")
    assert str(failure) in ready["message"]


@pytest.mark.parametrize("failure", [Conflict("Conflict", "modified"), LeaseLostError("not ours")])
def test_a_conflict_or_a_lost_lease_says_nothing_about_the_object(on_jumping_time: Run, failure: Exception) -> None:
    scene = Scene("one", one=failure)
    on_jumping_time(scene.run(100))
    assert scene.applier.told() == []


def test_a_status_that_cannot_be_written_either_stops_nobody(on_jumping_time: Run) -> None:
    scene = Scene("one", "healthy", one=Transient("down", retry_seconds=0), resync_s=10)
    scene.applier.status_too = Transient
    on_jumping_time(scene.run(200, scene.pods(10, 12)))
    assert len(scene.applier.times("healthy")) > 10
    assert len(scene.applier.times("one")) > 5


def test_an_object_that_is_deleted_while_it_is_blocked_is_no_error(
    on_jumping_time: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    scene = Scene("one", one=NotFoundError(404, "NotFound", "gone"))
    scene.applier.status_too = NotFoundError
    on_jumping_time(scene.run(5))
    assert scene.recorder.events == [], "nobody would read it"
    printed = capsys.readouterr()
    assert "Traceback" not in printed.out + printed.err


def test_a_bug_is_told_in_the_status_too(on_jumping_time: Run) -> None:
    scene = Scene("poisonous")
    on_jumping_time(scene.run(0.3))
    ((_, conditions, _),) = scene.applier.told("poisonous")
    for kind in ("Ready", "Progressing"):
        assert (conditions[kind]["status"], conditions[kind]["reason"]) == ("False", "InternalError")
    assert "ZeroDivisionError: a bug" in conditions["Ready"]["message"]


def test_a_bug_in_telling_of_a_failure_stops_nobody(on_jumping_time: Run) -> None:
    scene = Scene("poisonous", "healthy", poisonous=ZeroDivisionError("a second bug"), resync_s=10)
    scene.applier.status_too = ZeroDivisionError
    on_jumping_time(scene.run(200))
    assert len(scene.applier.times("healthy")) > 10
    assert scene.results()["bug"] > 5


def test_what_somebody_keeps_undoing_is_looked_at_when_it_may_be_written_again(on_jumping_time: Run) -> None:
    answers = iter([Applied(again_s=7.0)])
    scene = Scene("one", one=lambda: next(answers, Applied()))
    on_jumping_time(scene.run(10))
    assert scene.applier.times("one") == [0, 7.0]


def test_after_a_write_it_looks_again_and_at_rest_only_at_the_resync(on_jumping_time: Run) -> None:
    answers = iter([Applied(children=7), Applied(children=1), Applied(status=True)])
    scene = Scene("one", one=lambda: next(answers, Applied()), resync_s=600)
    on_jumping_time(scene.run(1000))
    times = scene.applier.times("one")
    assert times[:3] == [0, 0.1, 0.2]
    assert len(times) == 4
    assert 540 <= times[3] <= 661


def test_an_outcome_that_never_comes_to_rest_gets_slower(on_jumping_time: Run) -> None:
    scene = Scene("one", one=Applied(children=1))
    on_jumping_time(scene.run(3600))
    assert len(scene.applier.times("one")) < 75


def test_an_object_that_is_being_deleted_is_left_alone(on_jumping_time: Run) -> None:
    scene = Scene()
    meta = {"namespace": "team", "name": "going", "uid": "g", "resourceVersion": "1", "deletionTimestamp": "now"}
    scene.cache.put(INFERENCE, {"metadata": meta})

    async def work() -> None:
        scene.queue.add(Key("team", "going"))
        scene.queue.add(Key("team", "gone"))
        await scene.run(10)

    on_jumping_time(work())
    assert scene.applier.asked == []
