"""A whole list in pages: complete, and half of one takes nothing away."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web
from kubernetes.aio import client

from hisparse.errors import Transient
from hisparse_operator.cluster.cache import Cache, Change, Key
from hisparse_operator.cluster.kube import Api
from hisparse_operator.cluster.relist import relist
from hisparse_operator.kinds import BY_NAME, LABEL

SERVICE = BY_NAME["v1", "Service"]
KEY = Key("team", "glm")


def service(name: str, version: int = 5) -> dict[str, Any]:
    labels = {LABEL: KEY.name}
    meta = {"namespace": "team", "name": name, "uid": f"of-{name}", "resourceVersion": str(version), "labels": labels}
    return {"metadata": meta}


class Shelf:
    """An API server with some services; it answers with no more than it is asked for."""

    def __init__(self) -> None:
        self.names = ["a", "b", "c", "d", "e"]
        self.expires = False
        self.asked: list[dict[str, str]] = []

    async def list(self, request: web.Request) -> web.Response:
        query = dict(request.query)
        self.asked.append(query)
        begin, size = int(query.get("continue", "0")), int(query["limit"])
        if begin and self.expires:
            body = {"kind": "Status", "reason": "Expired", "message": "the provided continue parameter is too old"}
            return web.json_response(body, status=410)
        meta = {"resourceVersion": "40"}
        if begin + size < len(self.names):
            meta["continue"] = str(begin + size)
        return web.json_response(
            {"metadata": meta, "items": [service(name) for name in self.names[begin : begin + size]]}
        )


@pytest_asyncio.fixture
async def shelf() -> AsyncIterator[tuple[Shelf, Api]]:
    found = Shelf()
    pages = web.Application()
    pages.router.add_get(SERVICE.path(), found.list)
    runner = web.AppRunner(pages)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with Api(client.Configuration(host=f"http://127.0.0.1:{runner.addresses[0][1]}")) as api:
        yield found, api
    await runner.cleanup()


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Api.pages, "__defaults__", (2,))


def names(cache: Cache) -> list[str]:
    return [one["metadata"]["name"] for one in cache.children(SERVICE, KEY)]


async def test_a_list_is_read_to_its_end(shelf: tuple[Shelf, Api]) -> None:
    server, api = shelf
    cache, told = Cache(), list[Change]()
    cache.put(SERVICE, service("ghost"))
    cache.put(SERVICE, service("born-meanwhile", 41))
    assert await relist(api, cache, SERVICE, None, told.append) == "40"
    assert names(cache) == ["a", "b", "born-meanwhile", "c", "d", "e"]
    assert {(one["apiVersion"], one["kind"]) for one in cache.children(SERVICE, KEY)[:1]} == {("v1", "Service")}
    assert [one.new is None for one in told] == [False] * 5 + [True]
    assert [one.get("continue") for one in server.asked] == [None, "2", "4"]
    assert {one["labelSelector"] for one in server.asked} == {SERVICE.selector}


async def test_half_a_list_says_of_nothing_that_it_is_gone(shelf: tuple[Shelf, Api]) -> None:
    server, api = shelf
    server.expires = True
    cache = Cache()
    cache.put(SERVICE, service("e"))
    with pytest.raises(Transient, match="too old"):
        await relist(api, cache, SERVICE, None, lambda _: None)
    assert names(cache) == ["a", "b", "e"]
    server.expires = False
    await relist(api, cache, SERVICE, None, lambda _: None)
    assert names(cache) == server.names
