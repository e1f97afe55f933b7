import asyncio
import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from aiohttp import web
from kubernetes.aio import client

from hisparse.errors import Transient
from hisparse_operator.cluster import kube
from hisparse_operator.cluster.kube import Api, ApiError, Conflict, Expired, NotFoundError, failure
from hisparse_operator.kinds import BY_NAME

SERVICE = BY_NAME["v1", "Service"]


def body(reason: str, message: str = "m") -> bytes:
    return json.dumps({"kind": "Status", "reason": reason, "message": message}).encode()


@pytest.mark.parametrize(
    ("status", "text", "retry_after", "kind", "seconds"),
    [
        pytest.param(404, body("NotFound"), None, NotFoundError, None, id="gone"),
        pytest.param(409, body("Conflict"), None, Conflict, 0, id="somebody was faster"),
        pytest.param(409, body("AlreadyExists"), None, Conflict, 0, id="exists"),
        pytest.param(422, body("Invalid", "metadata.uid: immutable"), None, Conflict, 0, id="a namesake"),
        pytest.param(422, body("Invalid", "spec.ports: no"), None, ApiError, None, id="nonsense"),
        pytest.param(403, body("Forbidden"), None, ApiError, None, id="no right"),
        pytest.param(410, body("Expired"), None, Expired, 0, id="an old version"),
        pytest.param(429, body("TooManyRequests"), "7", Transient, 7, id="slow down"),
        pytest.param(429, b"", "Wed, 21 Oct 2015 07:28:00 GMT", Transient, 0, id="a date is not read"),
        pytest.param(503, b"<html>no backend</html>", "1", Transient, 1, id="a page of a proxy"),
        pytest.param(
            500,
            body("", "failed to create typed patch object (n/x; v1, Kind=Pod): .y: no"),
            None,
            ApiError,
            None,
            id="typo",
        ),
        pytest.param(
            500, body("", "failed to convert new object (n/x; v1, Kind=Pod): no"), None, ApiError, None, id="a quantity"
        ),
        pytest.param(500, body("InternalError", "failed calling webhook"), None, Transient, 0, id="a webhook"),
        pytest.param(503, body("", "failed to create typed patch object"), None, Transient, 0, id="not only by words"),
        pytest.param(500, b"null", None, Transient, 0, id="nothing at all"),
    ],
)
def test_what_an_answer_means(
    status: int, text: bytes, retry_after: str | None, kind: type[Exception], seconds: float | None
) -> None:
    found = failure(status, text, retry_after)
    assert type(found) is kind
    assert getattr(found, "retry_seconds", None) == seconds


def test_paths() -> None:
    assert SERVICE.path("n", "x") == "/api/v1/namespaces/n/services/x"
    assert BY_NAME["apps/v1", "ReplicaSet"].path() == "/apis/apps/v1/replicasets"
    assert BY_NAME["v1", "Node"].path("n", "x") == "/api/v1/nodes/x"


@pytest_asyncio.fixture
async def slow() -> AsyncIterator[str]:
    """A server that takes requests and never answers."""

    over = asyncio.Event()

    async def never(_: web.Request) -> web.Response:
        await over.wait()
        return web.Response()

    pages = web.Application()
    pages.router.add_route("*", "/{path:.*}", never)
    runner = web.AppRunner(pages, shutdown_timeout=0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    over.set()
    await runner.cleanup()


async def test_a_write_has_ended_when_its_time_is_over(slow: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kube, "WRITE_S", 0.3)
    seen: list[tuple[str, str, str]] = []
    async with Api(
        client.Configuration(host=slow), lambda verb, resource, code, _: seen.append((verb, resource, code))
    ) as api:
        begun = asyncio.get_running_loop().time()
        with pytest.raises(Transient, match="no answer within"):
            await api.create(SERVICE, {"metadata": {"namespace": "n", "name": "x"}})
        assert asyncio.get_running_loop().time() - begun < 1
    assert seen == [("create", "services", "timeout")]
