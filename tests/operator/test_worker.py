"""What each way to fail means for the next try, on jumping time; the API is not asked."""

import asyncio
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any

import pytest

from hisparse.errors import SpecError, Transient
from hisparse_operator.cluster.apply import Applied, Applier, ChildTakenError
from hisparse_operator.cluster.cache import Cache, Key
from hisparse_operator.cluster.kube import ApiError, Conflict, LeaseLostError
from hisparse_operator.cluster.observe import Decisions, Observer
from hisparse_operator.kinds import INFERENCE
from hisparse_operator.metrics import Metrics
from hisparse_operator.worker import Blocked, Worker, blocked_status
from hisparse_operator.workqueue import WorkQueue
from hisparse_operator.world import Event, Object, Outcome, World

Run = Callable[[Coroutine[Any, Any, Any]], Any]
NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)


class Applying(Applier):
    """Keeps what it is asked to write; raises or answers what a test wants."""

    def __init__(self, answers: dict[str, Any]) -> None:
        self.answers = answers
        self.asked: list[tuple[float, str, Outcome]] = []
        self.events: list[Event] = []

    async def apply(self, inference: Object, outcome: Outcome) -> Applied:
        name = inference["metadata"]["name"]
        self.asked.append((asyncio.get_running_loop().time(), name, outcome))
        await asyncio.sleep(0.01)
        answer = self.answers.get(name, Applied())
        if callable(answer):
            answer = answer()
        # a blocked outcome comes again as its status alone
        if isinstance(answer, Exception) and outcome.apply:
            raise answer
        return answer if isinstance(answer, Applied) else Applied()

    async def post(self, inference: Object, event: Event) -> bool:
        del inference
        self.events.append(event)
        return True

    def times(self, name: str) -> list[float]:
        return [round(time, 1) for time, who, outcome in self.asked if who == name and outcome.apply]


def decide(world: World, now: datetime) -> Outcome:
    del now
    if world.inference["metadata"]["name"] == "poisonous":
        raise ZeroDivisionError("a bug")
    if world.inference["metadata"]["name"] == "misspelt":
        raise SpecError("spec.model", "no")
    return Outcome(apply=({"kind": "Service"},), status={"replicas": 1})


class Scene:
    def __init__(self, *names: str, resync_s: float = 600, **answers: Any) -> None:
        self.cache = Cache()
        self.queue: WorkQueue[Key] = WorkQueue(chance=lambda: 0.0)
        self.metrics = Metrics()
        self.applier = Applying(answers)
        decisions = Decisions(decide)
        observer = Observer(None, self.cache, None, decisions, nodes=False)  # type: ignore[arg-type]
        self.worker = Worker(
            self.queue, observer, decisions, self.applier, self.metrics, resync_s=resync_s, now=lambda: NOW
        )
        for number, name in enumerate(names, start=1):
            meta = {"namespace": "team", "name": name, "uid": name, "resourceVersion": str(number), "generation": 1}
            self.cache.put(INFERENCE, {"metadata": meta})

    async def run(self, seconds: float) -> None:
        for key in self.cache.keys():  # noqa: SIM118 - not a dict
            self.queue.add(key)
        tasks = [asyncio.create_task(self.worker.run()) for _ in range(2)]
        await asyncio.sleep(seconds)
        self.queue.close()
        await asyncio.gather(*tasks)

    def results(self) -> dict[str, float]:
        text = self.metrics.text().decode()
        lines = [line for line in text.splitlines() if line.startswith("hisparse_operator_reconciles_total{")]
        return {line.split('"')[1]: float(line.split()[-1]) for line in lines}


def test_a_poisonous_object_is_retried_more_and_more_rarely_and_stops_no_other(on_jumping_time: Run) -> None:
    scene = Scene("poisonous", "healthy", resync_s=10)
    on_jumping_time(scene.run(2000))
    results = scene.results()
    assert 10 <= results["bug"] <= 20
    assert len(scene.applier.times("healthy")) > 150
    assert {event.reason for event in scene.applier.events} == {"InternalError"}
    assert "ZeroDivisionError: a bug" in scene.applier.events[0].message


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
    (ready,) = told.status["conditions"]
    assert (ready["status"], ready["reason"], told.status["replicas"]) == ("False", "ChildConflict", 1)
    assert [event.reason for event in told.events] == ["ChildConflict"]


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


def test_blocked_keeps_the_time_of_an_earlier_no() -> None:
    old = {"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    live = {"metadata": {"generation": 3}, "status": {"conditions": [old]}}
    wanted = {"conditions": [{"type": "Ready", "status": "True"}, {"type": "Accepted", "status": "True"}]}
    first = blocked_status(wanted, live, Blocked("Refused", "no"), NOW)
    assert [(one["type"], one["status"]) for one in first["conditions"]] == [("Ready", "False"), ("Accepted", "True")]
    assert first["conditions"][0]["lastTransitionTime"] == "2026-01-01T00:00:00Z"
    assert first["conditions"][0]["observedGeneration"] == 3
    assert blocked_status(wanted, {**live, "status": first}, Blocked("Refused", "no"), NOW) == first
