"""A list of the API server as it was told of last."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from hisparse.errors import Transient
from hisparse.nodes.report import STALE_SECONDS
from hisparse_agent.kube import Mirror, failure

SOUND = {"metadata": {"name": "sound", "resourceVersion": "1"}, "value": 1}
ODD = {"metadata": {"name": "odd", "resourceVersion": "1"}}


def value(item: Mapping[str, Any]) -> int:
    found = item["value"]
    assert isinstance(found, int)
    return found


class Server:
    """Lists two objects and then tells of changes."""

    def __init__(self, *events: Mapping[str, Any]) -> None:
        self.events, self.done = events, asyncio.Event()

    async def send(self, *_: Any, **__: Any) -> Mapping[str, Any]:
        return {"metadata": {"resourceVersion": "1"}, "items": [SOUND, ODD]}

    async def watch(self, *_: Any) -> AsyncIterator[Mapping[str, Any]]:
        for event in self.events:
            yield event
        self.done.set()
        await asyncio.sleep(3600)


async def after(*events: Mapping[str, Any]) -> Mirror[int]:
    server = Server(*events)
    mirror = Mirror(server, "/things", {}, value)  # type: ignore[arg-type]
    task = asyncio.create_task(mirror.run())
    async with asyncio.timeout(30):
        await server.done.wait()
    assert not task.done()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    return mirror


async def test_an_object_that_nobody_foresaw_costs_itself_and_not_the_others() -> None:
    changed = {"type": "MODIFIED", "object": {**SOUND, "value": 2}}
    broken = {"type": "MODIFIED", "object": {**SOUND, "value": "text"}}
    assert (await after()).objects == (1,)
    assert (await after({"type": "ADDED", "object": ODD}, changed)).objects == (2,)
    assert (await after(broken)).objects == ()


async def test_what_was_heard_long_ago_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    mirror = await after()
    assert mirror.known
    later = time.monotonic() + STALE_SECONDS
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert not mirror.known
    assert mirror.objects == (1,)


@pytest.mark.parametrize(
    ("header", "seconds"), [("7", 7), ("300", 300), ("99999999", 300), ("-1", 0), ("²", 0), ("", 0), (None, 0)]
)
def test_an_answer_that_asks_us_to_wait_is_heard_within_reason(header: str | None, seconds: float) -> None:
    error = failure(429, b"", header)
    assert isinstance(error, Transient)
    assert error.retry_seconds == seconds
