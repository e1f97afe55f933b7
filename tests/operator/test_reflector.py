"""A kind that must be there: what is listed, where a watch goes on after each way to end, and what ends all of it."""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
from scripted_api import BROKEN, DOWN, OLD, Script, ran

from hisparse.errors import Transient
from hisparse_operator.cluster.cache import Cache, Change
from hisparse_operator.cluster.kube import BOOKMARK, Api, ApiError, NotFoundError
from hisparse_operator.cluster.reflector import Reflector
from hisparse_operator.kinds import BY_NAME, LABEL, Kind

Runner = Callable[[Coroutine[Any, Any, Any]], Any]
SERVICE = BY_NAME["v1", "Service"]


def service(name: str, version: int) -> dict[str, Any]:
    labels = {LABEL: "glm"}
    return {
        "metadata": {
            "namespace": "team",
            "name": name,
            "uid": name,
            "resourceVersion": str(version),
            "labels": labels,
        }
    }


def bookmark(version: int) -> tuple[str, dict[str, Any]]:
    return BOOKMARK, {"metadata": {"resourceVersion": str(version)}}


@dataclass
class Told:
    """What the reflector told of."""

    cache: Cache = field(default_factory=Cache)
    changes: list[Change] = field(default_factory=list)

    def of(self, api: Api) -> Reflector:
        return Reflector(api, self.cache, SERVICE, self.changes.append)

    def names(self) -> list[str]:
        return [(one.new or one.old or {})["metadata"]["name"] for one in self.changes]

    def known(self) -> list[str]:
        return [name for name in ("a", "b", "c", "d", "e") if self.cache.get(SERVICE, "team", name) is not None]


def play(on_jumping_time: Runner, api: Script, seconds: float) -> Told:
    told = Told()
    on_jumping_time(ran(told.of(api), seconds))
    return told


def test_a_watch_goes_on_where_it_stood(on_jumping_time: Runner) -> None:
    events = [("ADDED", service("b", 8)), ("MODIFIED", service("a", 9)), ("DELETED", service("b", 11))]
    api = Script(deque([([service("a", 5)], "7")]), deque([events, [bookmark(40)]]))
    told = play(on_jumping_time, api, 100)
    assert api.watched == ["7", "11", "40"]
    changes = [(change.old is not None, change.new is not None) for change in told.changes]
    assert changes == [(False, True), (False, True), (True, True), (True, False)]
    assert told.known() == ["a"]
    assert len(api.listed) == 1


@pytest.mark.parametrize("end", [DOWN, [("ADDED", service("b", 8)), BROKEN]], ids=["unanswered", "cut"])
def test_after_a_failure_it_goes_on_where_it_stood(on_jumping_time: Runner, end: Any) -> None:
    api = Script(deque([([], "7")]), deque([end, [("ADDED", service("c", 9))]]))
    told = play(on_jumping_time, api, 100)
    assert api.watched[:2] == ["7", "7" if end is DOWN else "8"]
    assert len(api.listed) == 1
    assert told.known()[-1] == "c"


def test_a_version_that_is_too_old_costs_a_list_which_tells_of_what_is_gone(on_jumping_time: Runner) -> None:
    api = Script(
        deque([([service("a", 5), service("b", 6)], "7"), ([service("b", 20)], "30")]),
        deque([[bookmark(9), OLD], [("ADDED", service("c", 31))]]),
    )
    told = play(on_jumping_time, api, 100)
    assert api.watched[:2] == ["7", "30"]
    assert told.names() == ["a", "b", "b", "a", "c"]
    assert told.known() == ["b", "c"]


@pytest.mark.parametrize("end", [BROKEN, []], ids=["broken off", "over at once"])
def test_a_watch_that_ends_again_and_again_without_an_event_is_helped_by_lists(
    on_jumping_time: Runner, end: Any
) -> None:
    """One event that never comes through, too long for some proxy: the list has the object."""
    api = Script(deque([([], "7"), ([service("a", 8)], "8")]), deque([end] * 3))
    told = play(on_jumping_time, api, 100)
    assert api.watched == ["7", "7", "7", "8"]
    assert told.known() == ["a"]


def test_an_event_between_them_says_that_it_works(on_jumping_time: Runner) -> None:
    events: list[Any] = [[("ADDED", service("a", version)), BROKEN] for version in range(8, 20)]
    api = Script(deque([([], "7")]), deque(events))
    play(on_jumping_time, api, 100)
    assert len(api.listed) == 1


def test_an_api_server_that_is_down_is_not_asked_for_lists_when_it_is_back(on_jumping_time: Runner) -> None:
    """It has enough to do: all clients come back at once."""
    busy = Transient("429 too many requests", retry_seconds=30)
    api = Script(deque([([], "7")]), deque([DOWN] * 10 + [busy] * 2))
    begun = play(on_jumping_time, api, 400)
    assert len(api.listed) == 1
    assert len(api.watched) == 13
    assert not begun.changes


def test_how_long_it_was_not_heard_of(on_jumping_time: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every page, event, bookmark and answered watch is a word; a refusal, an error or nothing at all is none."""
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    api = Script(deque([([], "7")]), deque([DOWN] * 5 + [[bookmark(9)]]))
    reflector = Told().of(api)

    async def run() -> None:
        nonlocal now
        task = asyncio.ensure_future(reflector.run())
        for _ in range(40):
            await asyncio.sleep(1)
            now = asyncio.get_running_loop().time()
            if 3 <= now <= 5:
                assert now - 1 <= reflector.silence <= now
        assert len(api.watched) == 7
        assert reflector.silence > 10, "the last watch was answered, and says nothing"
        task.cancel()

    on_jumping_time(run())


@pytest.mark.parametrize("end", [[], OLD, DOWN, BROKEN], ids=["over at once", "expired", "unanswered", "broken off"])
def test_watches_that_end_at_once_do_not_spin(on_jumping_time: Runner, end: Any) -> None:
    api = Script(deque([([], "1")]), deque([end] * 10_000))
    play(on_jumping_time, api, 60)
    assert len(api.watched) <= 15
    assert len(api.listed) <= 15


def test_a_watch_that_ends_after_a_while_is_followed_by_the_next_at_once(on_jumping_time: Runner) -> None:
    begun: list[float] = []

    class Timed(Script):
        async def watch(self, *args: Any, **kwargs: Any) -> None:
            begun.append(asyncio.get_running_loop().time())
            await super().watch(*args, **kwargs)

    play(on_jumping_time, Timed(deque([([], "1")])), 1000)
    assert len(begun) in (3, 4)
    assert all(300 <= later - earlier <= 450 for earlier, later in pairwise(begun))


def test_it_is_known_only_when_the_whole_list_was_read(on_jumping_time: Runner) -> None:
    class Paged(Script):
        async def pages(self, *_: Any, **__: Any) -> Any:
            yield [service("a", 5)], "7"
            await asyncio.sleep(10)
            if len(self.listed) == 0:
                self.listed.append(0)
                raise DOWN
            yield [service("b", 6)], "7"

    told = Told()

    async def run() -> None:
        reflector = told.of(Paged(deque()))
        task = asyncio.ensure_future(reflector.run())
        await asyncio.sleep(19)
        assert told.known() == ["a"]
        assert not reflector.known.is_set()
        await asyncio.sleep(10)
        assert told.known() == ["a", "b"]
        assert reflector.known.is_set()
        task.cancel()

    on_jumping_time(run())


@pytest.mark.parametrize("where", ["list", "watch"])
def test_a_kind_that_somebody_says_is_not_there_is_asked_for_again(on_jumping_time: Runner, where: str) -> None:
    """A proxy, or an API server that is just starting: every cluster has Services."""
    gone = NotFoundError(404, "NotFound", "no")
    lists: list[Any] = [gone, gone, ([service("a", 8)], "8")] if where == "list" else [([service("a", 5)], "7")]
    api = Script(deque(lists), deque([] if where == "list" else [gone]))
    told = play(on_jumping_time, api, 60)
    assert told.known() == ["a"]
    assert len(api.listed) == (3 if where == "list" else 2)


@pytest.mark.parametrize("status", [401, 403])
def test_a_refusal_of_the_first_list_ends_it(on_jumping_time: Runner, status: int) -> None:
    api = Script(deque([DOWN, ApiError(status, "No", "no")]))

    async def run() -> None:
        await asyncio.wait_for(Told().of(api).run(), 60)

    with pytest.raises(ApiError, match=str(status)):
        on_jumping_time(run())


@pytest.mark.parametrize("status", [401, 403])
def test_what_was_seen_before_is_asked_for_again_when_it_is_refused(on_jumping_time: Runner, status: int) -> None:
    """One of several API servers starts, and has not read yet who may do what."""
    refusal = ApiError(status, "No", "no")
    lists: list[Any] = [([service("a", 5)], "7"), refusal, ([service("a", 5), service("b", 8)], "9")]
    api = Script(deque(lists), deque([refusal]))
    assert play(on_jumping_time, api, 60).known() == ["a", "b"]


def test_something_on_the_way_that_ends_what_is_idle_is_no_failure(on_jumping_time: Runner) -> None:
    begun: list[float] = []

    class Idle(Script):
        async def watch(self, *_: Any, **kwargs: Any) -> None:
            begun.append(asyncio.get_running_loop().time())
            kwargs["answered"]()
            await asyncio.sleep(50)
            raise BROKEN

    api = Idle(deque([([], "7")]))
    play(on_jumping_time, api, 1000)
    assert begun == list(range(0, 1000, 50))
    assert len(api.listed) == 1


def test_it_waits_as_long_as_the_api_server_asks_for(on_jumping_time: Runner) -> None:
    begun: list[float] = []
    busy = Transient("429 too many requests", retry_seconds=40)

    class Busy(Script):
        async def watch(self, *_: Any, **__: Any) -> None:
            begun.append(asyncio.get_running_loop().time())
            raise busy

    play(on_jumping_time, Busy(deque([([], "7")])), 100)
    assert begun == [0, 40, 80]


def test_only_its_own_namespace_is_asked_for(on_jumping_time: Runner) -> None:
    asked: list[Any] = []

    class Asked(Script):
        async def pages(self, kind: Kind, namespace: str | None, size: int = 1) -> AsyncGenerator[Any]:
            asked.append((kind, namespace))
            async for page in super().pages(kind, namespace, size):
                yield page

        async def watch(self, kind: Kind, *args: Any, **kwargs: Any) -> None:
            asked.append((kind, kwargs["namespace"]))
            await super().watch(kind, *args, **kwargs)

    async def run() -> None:
        reflector = Reflector(Asked(deque([([], "7")])), Cache(), SERVICE, print, namespace="team")
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(reflector.run(), 5)

    on_jumping_time(run())
    assert asked == [(SERVICE, "team")] * 2
