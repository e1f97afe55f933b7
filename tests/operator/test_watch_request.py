"""The request of a watch: how events are read from its stream, and what each way to end means."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from kubernetes.aio import client

from hisparse.errors import Transient
from hisparse_operator.cluster import kube
from hisparse_operator.cluster.kube import SILENT_S, Api, ApiError, Cut, Expired, NotFoundError, load_configuration
from hisparse_operator.kinds import BY_NAME, LABEL, POD

SERVICE = BY_NAME["v1", "Service"]


def report(name: str, version: int) -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": name, "resourceVersion": str(version)}, "status": {"findings": [{}]}}


Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@contextlib.asynccontextmanager
async def served(answer: Answer) -> AsyncIterator[str]:
    pages = web.Application()
    pages.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(pages, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@dataclass
class Stream:
    """A watch whose stream is these chunks, and then silence for a while."""

    chunks: tuple[bytes, ...]
    status: int = 200
    then_s: float = 0
    first_s: float = 0
    answered: int = 0
    query: dict[str, str] = field(default_factory=dict)
    seen: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    async def watched(self, silent_s: float = SILENT_S) -> None:
        take = lambda sort, item: self.seen.append((sort, item))  # noqa: E731 - short
        async with served(self._answer) as host, Api(client.Configuration(host=host)) as api:
            await api.watch(POD, "7", take, 5, silent_s=silent_s, answered=self._count)

    def _count(self) -> None:
        self.answered += 1

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.query = dict(request.query)
        await asyncio.sleep(self.first_s)
        response = web.StreamResponse(status=self.status)
        await response.prepare(request)
        for chunk in self.chunks:
            await response.write(chunk)
        await asyncio.sleep(self.then_s)
        return response


def line(sort: str, item: dict[str, Any]) -> bytes:
    return json.dumps({"type": sort, "object": item}).encode() + b"\n"


async def test_events_come_whole_however_the_stream_is_cut() -> None:
    big = report("n0", 8)
    big["status"]["findings"] *= 5000
    text = line("ADDED", big) + line("MODIFIED", report("n0", 9)) + line("BOOKMARK", report("", 12))
    cut = [text[at : at + 70_001] for at in range(0, len(text), 70_001)]
    stream = Stream((*cut, b'{"type": "ADDED", "obj'))
    await stream.watched()
    versions = [(sort, item["metadata"]["resourceVersion"]) for sort, item in stream.seen]
    assert versions == [("ADDED", "8"), ("MODIFIED", "9"), ("BOOKMARK", "12")]
    assert (stream.seen[0][1]["apiVersion"], stream.seen[0][1]["kind"]) == ("v1", "Pod")
    assert len(stream.seen[0][1]["status"]["findings"]) == 5000
    assert stream.query == {
        "watch": "true",
        "allowWatchBookmarks": "true",
        "resourceVersion": "7",
        "timeoutSeconds": "5",
        "labelSelector": LABEL,
    }


async def test_an_error_in_the_stream_is_one_of_the_watch() -> None:
    gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
    with pytest.raises(Expired, match="410 Expired: too old"):
        await Stream((line("ADDED", report("n0", 8)), line("ERROR", gone))).watched()


async def test_an_error_in_the_stream_that_may_come_again_and_again_breaks_it_off() -> None:
    wrong = {"kind": "Status", "code": 500, "reason": "InternalError", "message": "etcd is slow"}
    with pytest.raises(Cut, match="500 InternalError: etcd is slow"):
        await Stream((line("ERROR", wrong),)).watched()


@pytest.mark.parametrize(
    "text",
    [
        b"<html>",
        b"null",
        b"{}",
        b'{"type": "ADDED", "object": {}}',
        b'{"type": "ADDED", "object": null}',
        b'{"type": "ERROR", "object": null}',
    ],
)
async def test_what_is_no_event_is_transient(text: bytes) -> None:
    with pytest.raises(Transient, match="no watch event"):
        await Stream((text + b"\n",)).watched()


@pytest.mark.parametrize(
    ("status", "kind"), [pytest.param(404, NotFoundError, id="gone"), pytest.param(403, ApiError, id="no right")]
)
async def test_a_watch_that_is_refused(status: int, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        await Stream((b"{}",), status).watched()


async def test_a_watch_without_a_server_is_transient() -> None:
    async with Api(client.Configuration(host="http://127.0.0.1:9")) as api:
        with pytest.raises(Transient, match="watch /api/v1/pods: Cannot connect") as found:
            await api.watch(POD, "7", lambda *_: None, 5)
    assert type(found.value) is Transient, "nobody to be asked for a list"


@pytest.mark.parametrize("chunks", [(), (line("ADDED", report("n0", 8)),)], ids=["from the start", "after an event"])
async def test_a_watch_that_says_nothing_any_more_ends(chunks: tuple[bytes, ...]) -> None:
    """Its connection may be dead. What it did not tell of, the next one does, from the same version."""
    stream = Stream(chunks, then_s=60)
    await asyncio.wait_for(stream.watched(silent_s=0.2), 10)
    assert len(stream.seen) == len(chunks)
    assert stream.answered == 1


async def test_a_watch_that_nobody_answers_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kube, "READ_S", 0.2)
    stream = Stream((), first_s=60)
    with pytest.raises(Transient, match=r"watch /api/v1/pods: no answer within 0\.2 s") as found:
        await asyncio.wait_for(stream.watched(), 10)
    assert type(found.value) is Transient
    assert stream.answered == 0


async def test_a_watch_that_was_answered_goes_on_for_its_whole_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kube, "READ_S", 0.2)

    class Late(Stream):
        async def _answer(self, request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse()
            await response.prepare(request)
            await asyncio.sleep(0.6)
            await response.write(line("ADDED", report("n0", 8)))
            return response

    stream = Late(())
    await stream.watched()
    assert len(stream.seen) == 1


async def test_a_watch_that_breaks_off() -> None:
    class Broken(Stream):
        async def _answer(self, request: web.Request) -> web.StreamResponse:
            response = await super()._answer(request)
            assert request.transport is not None
            request.transport.abort()
            return response

    stream = Broken((line("ADDED", report("n0", 8)),), then_s=0.1)
    with pytest.raises(Cut, match="watch /api/v1/pods"):
        await stream.watched()
    assert len(stream.seen) == 1


async def test_credentials_that_cannot_be_read_now_are_no_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    async def unreadable(*_: object, **__: object) -> None:
        raise OSError("the token is being replaced")

    async with Api(client.Configuration(host="http://127.0.0.1:9")) as api:
        monkeypatch.setattr(api._client, "param_serialize", unreadable)
        with pytest.raises(Transient, match="the token is being replaced"):
            await api.watch(POD, "7", lambda *_: None, 5)


async def test_no_request_waits_for_a_connection_that_watches_hold(tmp_path: Path) -> None:
    """In a hundred namespaces there are a thousand watches."""
    all_watch = asyncio.Barrier(151)

    async def answer(request: web.Request) -> web.Response:
        if "watch" in request.query:
            await all_watch.wait()
            await asyncio.sleep(60)
        return web.json_response({"metadata": {}})

    async with served(answer) as host:
        entry = {"cluster": {"server": host}, "user": {}, "context": {"cluster": "c", "user": "c"}}
        config = {f"{part}s": [{"name": "c", part: entry[part]}] for part in entry} | {"current-context": "c"}
        (tmp_path / "config").write_text(json.dumps(config))
        async with Api(await load_configuration(tmp_path / "config")) as api:
            watches = [asyncio.create_task(api.watch(POD, "7", lambda *_: None, 60)) for _ in range(150)]
            await asyncio.wait_for(all_watch.wait(), 30)
            assert await asyncio.wait_for(api.get(SERVICE, "team", "glm"), 10)
            for each in watches:
                each.cancel()
