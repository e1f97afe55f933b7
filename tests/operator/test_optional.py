"""The watch of a kind that need not be there: it is missing, comes late, goes, or must not be seen."""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from scripted_api import DOWN, Script, ran

from hisparse_operator.cluster.cache import Cache, Change
from hisparse_operator.cluster.kube import Api, ApiError, NotFoundError
from hisparse_operator.cluster.optional import OptionalReflector
from hisparse_operator.kinds import NODE_REPORT
from hisparse_operator.world import Sight

Runner = Callable[[Coroutine[Any, Any, Any]], Any]
ABSENT = NotFoundError(404, "NotFound", "no such kind")
FORBIDDEN = ApiError(403, "Forbidden", "no")


def report(name: str, version: int, state: str = "Ok") -> dict[str, Any]:
    finding = {"check": "c", "subject": "host", "state": state}
    return {
        "metadata": {"name": name, "uid": name, "resourceVersion": str(version), "managedFields": ["long"]},
        "status": {"observedAt": "2026-11-29T12:00:00Z", "findings": [finding], "inventory": {"gpus": ["long"]}},
    }


@dataclass
class Told:
    """What the watch told of."""

    cache: Cache = field(default_factory=Cache)
    changes: list[Change] = field(default_factory=list)
    sights: list[Sight] = field(default_factory=list)

    def of(self, api: Api) -> OptionalReflector:
        seen = lambda: self.sights.append(self.cache.sight(NODE_REPORT))  # noqa: E731 - short
        return OptionalReflector(api, self.cache, NODE_REPORT, self.changes.append, seen)


def play(on_jumping_time: Runner, api: Script, seconds: float) -> Told:
    told = Told()
    on_jumping_time(ran(told.of(api), seconds))
    return told


def test_a_kind_that_is_not_there_is_asked_for_now_and_then_and_seen_when_it_comes(on_jumping_time: Runner) -> None:
    api = Script(deque([ABSENT, ABSENT, ABSENT, ([report("n0", 5)], "7")]))
    told = play(on_jumping_time, api, 200)
    assert api.listed == [0, 15, 30, 45]
    assert told.sights == [Sight.ABSENT, Sight.SEEN], "what stays as it is, is not told again"
    assert [one["metadata"]["name"] for one in told.cache.node_reports()] == ["n0"]
    assert api.watched == ["7"]


def test_a_kind_that_goes_takes_its_reports_along_and_may_come_back(on_jumping_time: Runner) -> None:
    api = Script(deque([([report("n0", 5)], "7"), ABSENT, ABSENT, ([], "99")]), deque([ABSENT]))
    told = Told()

    async def run() -> None:
        task = asyncio.ensure_future(told.of(api).run())
        await asyncio.sleep(1)
        assert told.cache.sight(NODE_REPORT) is Sight.ABSENT
        assert told.cache.node_reports() == ()
        await asyncio.sleep(100)
        task.cancel()

    on_jumping_time(run())
    assert told.sights == [Sight.SEEN, Sight.ABSENT, Sight.SEEN]
    assert told.cache.node_reports() == (), "the old ones do not come back with the kind"


def test_without_the_right_it_is_hidden_and_asked_for_rarely(on_jumping_time: Runner) -> None:
    api = Script(deque([FORBIDDEN, FORBIDDEN, ([], "1")]))
    told = play(on_jumping_time, api, 200)
    assert api.listed == [0, 60, 120]
    assert told.sights == [Sight.HIDDEN, Sight.SEEN]


def test_credentials_that_run_out_are_no_missing_right(on_jumping_time: Runner) -> None:
    expired = ApiError(401, "Unauthorized", "who are you")
    told = play(on_jumping_time, Script(deque([([report("n0", 5)], "7"), expired]), deque([expired])), 300)
    assert told.sights == [Sight.SEEN]
    told = play(on_jumping_time, Script(deque([expired, ([], "7")])), 300)
    assert told.sights == [Sight.HIDDEN, Sight.SEEN], "the first passes do not wait for it"


def test_an_api_server_that_is_down_is_not_taken_for_a_missing_kind(on_jumping_time: Runner) -> None:
    api = Script(deque([([report("n0", 5)], "7"), DOWN]), deque([DOWN] * 10_000))
    told = play(on_jumping_time, api, 300)
    assert told.sights == [Sight.SEEN]
    assert len(told.cache.node_reports()) == 1, "what we have grows old by itself"
    assert 300 / 15 <= len(api.watched) <= 40, "slower and slower, and no slower than every 15 s"


def test_before_the_first_answer_nothing_is_known(on_jumping_time: Runner) -> None:
    told = Told()

    async def run() -> None:
        watch = told.of(Script(deque([DOWN, DOWN, ABSENT])))
        task = asyncio.ensure_future(watch.run())
        await asyncio.sleep(0.1)
        assert not watch.known.is_set()
        await asyncio.wait_for(watch.known.wait(), 60)
        assert told.sights == [Sight.ABSENT]
        task.cancel()

    on_jumping_time(run())
