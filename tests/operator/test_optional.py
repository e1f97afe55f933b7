"""The watch of a kind that need not be there: it is missing, comes late, goes, or must not be seen."""

import asyncio
import json
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web
from kubernetes.aio import client

from hisparse.errors import Transient
from hisparse_operator.cluster.cache import Cache, Change, Key
from hisparse_operator.cluster.kube import Api, ApiError, NotFoundError, Taker
from hisparse_operator.cluster.optional import OptionalWatch, Pace
from hisparse_operator.kinds import NODE_REPORT, POD, Kind
from hisparse_operator.world import Sight

Runner = Callable[[Coroutine[Any, Any, Any]], Any]
ABSENT = NotFoundError(404, "NotFound", "no such kind")
FORBIDDEN = ApiError(403, "Forbidden", "no")
DOWN = Transient("the API server is down")
OLD = Transient("410 Expired: too old")


def report(name: str, version: int, state: str = "Ok") -> dict[str, Any]:
    finding = {"check": "c", "subject": "host", "state": state}
    return {
        "metadata": {"name": name, "uid": name, "resourceVersion": str(version), "managedFields": ["long"]},
        "status": {"observedAt": "2026-11-29T12:00:00Z", "findings": [finding], "inventory": {"gpus": ["long"]}},
    }


@dataclass
class Script(Api):
    """An API server that answers as told, and whatever comes last again and again."""

    lists: deque[Any]
    watches: deque[Any] = field(default_factory=deque)
    listed: list[float] = field(default_factory=list)
    watched: list[str] = field(default_factory=list)

    async def pages(self, kind: Kind, namespace: str | None, size: int = 1) -> AsyncGenerator[Any]:
        del size
        assert (kind, namespace) == (NODE_REPORT, None)
        self.listed.append(asyncio.get_running_loop().time())
        answer = self.lists.popleft() if len(self.lists) > 1 else self.lists[0]
        if isinstance(answer, Exception):
            raise answer
        yield answer

    async def watch(
        self, kind: Kind, version: str, take: Taker, limit_s: float, *, namespace: str | None = None
    ) -> str:
        assert (kind, namespace) == (NODE_REPORT, None)
        self.watched.append(version)
        if not self.watches:
            await asyncio.sleep(limit_s)
            return version
        answer = self.watches.popleft()
        if isinstance(answer, Exception):
            raise answer
        for sort, item in answer:
            take(sort, item)
            version = item["metadata"]["resourceVersion"]
        return version


@dataclass
class Told:
    """What the watch told of."""

    cache: Cache = field(default_factory=Cache)
    changes: list[Change] = field(default_factory=list)
    sights: list[Sight] = field(default_factory=list)

    def of(self, api: Api) -> OptionalWatch:
        seen = lambda: self.sights.append(self.cache.sight(NODE_REPORT))  # noqa: E731 - short
        return OptionalWatch(api, self.cache, NODE_REPORT, self.changes.append, seen, pace=Pace())


def play(on_jumping_time: Runner, api: Script, seconds: float) -> Told:
    """Let it run for so long."""
    told = Told()

    async def run() -> None:
        task = asyncio.ensure_future(told.of(api).run())
        await asyncio.sleep(seconds)
        assert not task.done(), "it never ends"
        task.cancel()

    on_jumping_time(run())
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
    api = Script(deque([([report("n0", 5)], "7"), DOWN]), deque([DOWN]))
    told = play(on_jumping_time, api, 300)
    assert told.sights == [Sight.SEEN]
    assert len(told.cache.node_reports()) == 1, "what we have grows old by itself"
    assert 300 / 15 <= len(api.listed) <= 40, "slower and slower, and no slower than every 15 s"


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


def test_a_watch_goes_on_where_it_stood_and_lists_again_only_when_that_is_too_old(on_jumping_time: Runner) -> None:
    events = [("ADDED", report("n1", 8)), ("MODIFIED", report("n0", 9, "Warn")), ("DELETED", report("n1", 11))]
    api = Script(deque([([report("n0", 5)], "7"), ([], "30")]), deque([events, [], OLD]))
    told = play(on_jumping_time, api, 100)
    assert api.watched == ["7", "11", "11", "30"]
    kinds = [(change.old is not None, change.new is not None) for change in told.changes]
    assert kinds == [(False, True), (False, True), (True, True), (True, False), (True, False)]
    assert told.cache.node_reports() == ()
    assert told.sights == [Sight.SEEN]


def test_watches_that_end_at_once_do_not_spin(on_jumping_time: Runner) -> None:
    api = Script(deque([([], "1")]), deque([[] for _ in range(10_000)]))
    play(on_jumping_time, api, 60)
    assert len(api.watched) <= 61


def test_lists_that_work_with_watches_that_do_not_get_slower(on_jumping_time: Runner) -> None:
    api = Script(deque([([], "1")]), deque([OLD] * 10_000))
    play(on_jumping_time, api, 600)
    assert len(api.listed) <= 65


def test_the_cache_keeps_what_matters_of_a_report() -> None:
    cache = Cache()
    cache.put(NODE_REPORT, report("n0", 1, "Critical"))
    cache.put(NODE_REPORT, report("n1", 2, "Ok"))
    assert cache.node_reports() == (), "nobody has said that we see them"
    cache.see(NODE_REPORT, Sight.SEEN)
    bad, good = cache.node_reports()
    assert bad["status"]["findings"][0]["state"] == "Critical"
    assert good["status"] == {"observedAt": "2026-11-29T12:00:00Z", "findings": []}
    assert "managedFields" not in bad["metadata"]
    assert cache.put(NODE_REPORT, report("n0", 1)) is None


def test_the_cache_knows_who_is_on_a_node() -> None:
    cache = Cache()
    for name, owner, where in (("a-1", "a", "n0"), ("a-2", "a", "n1"), ("b-1", "b", "n1"), ("c-1", "c", None)):
        labels = {"inference.hisparse.dev/inference": owner}
        meta = {"namespace": "team", "name": name, "uid": name, "resourceVersion": "1", "labels": labels}
        cache.put(POD, {"metadata": meta, "spec": {"nodeName": where} if where else {}})
    assert sorted(cache.keys_on("n1")) == [Key("team", "a"), Key("team", "b")]
    assert cache.keys_on("n2") == ()


# --- the request itself ------------------------------------------------------------------------------------------


async def serve(*chunks: bytes, status: int = 200) -> tuple[web.AppRunner, str, list[dict[str, str]]]:
    asked: list[dict[str, str]] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        asked.append(dict(request.query))
        response = web.StreamResponse(status=status)
        await response.prepare(request)
        for chunk in chunks:
            await response.write(chunk)
        return response

    pages = web.Application()
    pages.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(pages)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner, f"http://127.0.0.1:{runner.addresses[0][1]}", asked


async def watched(*chunks: bytes, status: int = 200) -> tuple[str, list[tuple[str, dict[str, Any]]], Any]:
    runner, host, asked = await serve(*chunks, status=status)
    seen: list[tuple[str, dict[str, Any]]] = []
    try:
        async with Api(client.Configuration(host=host)) as api:
            return await api.watch(NODE_REPORT, "7", lambda sort, item: seen.append((sort, item)), 5), seen, asked[0]
    finally:
        await runner.cleanup()


def line(sort: str, item: dict[str, Any]) -> bytes:
    return json.dumps({"type": sort, "object": item}).encode() + b"\n"


async def test_events_come_whole_however_the_stream_is_cut() -> None:
    big = report("n0", 8)
    big["status"]["findings"] *= 5000
    stream = line("ADDED", big) + line("MODIFIED", report("n0", 9)) + line("BOOKMARK", report("", 12))
    cut = [stream[at : at + 70_001] for at in range(0, len(stream), 70_001)]
    version, seen, asked = await watched(*cut, b'{"type": "ADDED", "obj')
    assert version == "12"
    assert [(sort, item["metadata"]["resourceVersion"]) for sort, item in seen] == [("ADDED", "8"), ("MODIFIED", "9")]
    assert seen[0][1]["kind"] == "HiSparseNode"
    assert len(seen[0][1]["status"]["findings"]) == 5000
    assert (asked["watch"], asked["resourceVersion"], asked["timeoutSeconds"]) == ("true", "7", "5")


async def test_an_error_in_the_stream_is_one_of_the_watch() -> None:
    gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
    with pytest.raises(Transient, match="410 Expired: too old"):
        await watched(line("ADDED", report("n0", 8)), line("ERROR", gone))


@pytest.mark.parametrize(
    "text", [b"<html>", b"null", b"{}", b'{"type": "ADDED", "object": {}}', b'{"type": "ADDED", "object": null}']
)
async def test_what_is_no_event_is_transient(text: bytes) -> None:
    with pytest.raises(Transient, match="no watch event"):
        await watched(text + b"\n")


@pytest.mark.parametrize(
    ("status", "kind"), [pytest.param(404, NotFoundError, id="gone"), pytest.param(403, ApiError, id="no right")]
)
async def test_a_watch_that_is_refused(status: int, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        await watched(b"{}", status=status)


async def test_a_watch_without_a_server_is_transient() -> None:
    async with Api(client.Configuration(host="http://127.0.0.1:9")) as api:
        with pytest.raises(Transient, match="watch"):
            await api.watch(NODE_REPORT, "7", lambda *_: None, 5)
