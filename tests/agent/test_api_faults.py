"""An API server that is away, slow, too busy or of another opinion: over real HTTP, with the agent's own client."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from aiohttp import web

from hisparse.errors import Transient
from hisparse.nodes.catalogue import NodeCondition
from hisparse.nodes.findings import Finding, State
from hisparse.nodes.policy import TaintEffect
from hisparse_agent.credentials import Credentials
from hisparse_agent.kube import Api, Conflict, Refused
from hisparse_agent.pool import PoolLease
from hisparse_agent.publish.conditions import Judged, Taint
from hisparse_agent.publish.events import Notice
from hisparse_agent.publish.report import Report
from hisparse_agent.publish.writer import Pace, Publication, Writer
from hisparse_agent.remedies.slots import take

NODE = "/api/v1/nodes/n"
REPORT = "/apis/inference.hisparse.dev/v1alpha1/hisparsenodes/n"
EVENTS = "/api/v1/namespaces/default/events"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/ns/leases/hisparse-pool-p"
THEIRS = {"key": "somebody/else", "effect": "NoSchedule"}
START = datetime(2026, 11, 30, tzinfo=UTC)
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


def says(status: int, text: str = "", **headers: str) -> Answer:
    async def answer(_: web.Request) -> web.Response:
        body = text or json.dumps({"kind": "Status", "reason": "R", "message": "m", "code": status})
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return web.Response(status=status, text=body, headers=named)

    return answer


async def hangs(_: web.Request) -> web.Response:
    await asyncio.sleep(600)
    return web.Response()


@dataclass
class Server:
    """Merges what it is sent into objects by path. faults are answers to the next requests of a method and path."""

    objects: dict[str, dict[str, Any]] = field(default_factory=dict)
    faults: dict[tuple[str, str], list[Answer]] = field(default_factory=dict)
    seen: list[tuple[str, str, Any]] = field(default_factory=list)
    port: int = 0
    version: int = 0
    runner: web.AppRunner | None = None

    async def start(self) -> None:
        pages = web.Application()
        pages.router.add_route("*", "/{path:.*}", self._answer)
        self.runner = web.AppRunner(pages, shutdown_timeout=0.1)
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", self.port).start()
        self.port = int(self.runner.addresses[0][1])

    async def stop(self) -> None:
        if self.runner is not None:
            await self.runner.cleanup()

    def put(self, path: str, document: dict[str, Any]) -> None:
        self.version += 1
        document.setdefault("metadata", {})["resourceVersion"] = str(self.version)
        self.objects[path] = document

    def fails(self, method: str, path: str, *answers: Answer) -> None:
        self.faults[method, path] = list(answers)

    def count(self, method: str, path: str) -> int:
        return Counter((seen, where) for seen, where, _ in self.seen)[method, path]

    def bodies(self, method: str, path: str) -> list[Any]:
        return [body for seen, where, body in self.seen if (seen, where) == (method, path)]

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        text = await request.text()
        body: Any = json.loads(text) if text else {}
        self.seen.append((request.method, request.path, body))
        if waiting := self.faults.get((request.method, request.path)):
            return await waiting.pop(0)(request)
        path = request.path.removesuffix("/status")
        if request.method == "POST" and path.endswith("/hisparsenodes"):
            path = REPORT
        if request.method == "GET":
            return web.json_response(self.objects[path]) if path in self.objects else await says(404)(request)
        old = self.objects.get(path, {})
        self.put(path, {**old, **body, "metadata": {**old.get("metadata", {}), **body.get("metadata", {})}})
        return web.json_response(self.objects[path])


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    found = Server()
    await found.start()
    found.put(NODE, {"metadata": {"name": "n", "uid": "u"}, "spec": {"taints": [THEIRS]}, "status": {}})
    yield found
    await found.stop()


@pytest.fixture
async def api(server: Server) -> AsyncIterator[Api]:
    login = Credentials(f"http://127.0.0.1:{server.port}", ssl.create_default_context(), lambda: None)
    async with Api(login, limit_s=30.0) as found:
        yield found


# --- what an answer means --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "kind", "wait"),
    [
        pytest.param(says(409), Conflict, 0, id="conflict"),
        pytest.param(says(410), Transient, 0, id="gone"),
        pytest.param(says(429, Retry_After="7"), Transient, 7, id="too many requests, and for how long"),
        pytest.param(says(429), Transient, 0, id="too many requests"),
        pytest.param(says(429, Retry_After="Mon, 30 Nov 2026 12:00:00 GMT"), Transient, 0, id="until a date"),
        pytest.param(says(500, "<html>"), Transient, 0, id="a page of a proxy"),
        pytest.param(says(503, Retry_After="1"), Transient, 1, id="starting"),
        pytest.param(says(200, "[1, "), Transient, 0, id="no JSON"),
        pytest.param(says(403), Refused, None, id="no right"),
        pytest.param(says(422, "[]"), Refused, None, id="a strange refusal"),
    ],
)
async def test_what_an_answer_means(
    server: Server, api: Api, answer: Answer, kind: type[Exception], wait: int | None
) -> None:
    server.fails("PATCH", NODE, answer)
    with pytest.raises(kind) as found:
        await api.send("PATCH", NODE, {})
    assert type(found.value) is kind
    assert getattr(found.value, "retry_seconds", None) == wait
    assert (await api.send("GET", NODE))["metadata"]["name"] == "n", "the next one is another matter"


async def test_a_server_that_does_not_answer_is_given_up(server: Server) -> None:
    login = Credentials(f"http://127.0.0.1:{server.port}", ssl.create_default_context(), lambda: None)
    server.fails("GET", NODE, hangs)
    async with Api(login, limit_s=0.1) as api:
        with pytest.raises(Transient, match=r"no answer within 0\.1 s"):
            await api.get(NODE)


async def test_a_server_that_is_away_may_come_back(server: Server, api: Api) -> None:
    await server.stop()
    with pytest.raises(Transient):
        await api.get(NODE)
    await server.start()
    assert await api.get(NODE) is not None


# --- the writer ------------------------------------------------------------------------------------------------------


class Publisher:
    """A writer whose time the test moves."""

    def __init__(self, api: Api) -> None:
        self.now = 1000.0
        self.writer = Writer(
            api,
            "n",
            "v",
            pace=Pace(quiet=60, heartbeat=270, urgent=1),
            clock=lambda: self.now,
            now=lambda: START + timedelta(seconds=self.now),
        )

    async def writes(self, publication: Publication, *notices: Notice, after: float = 0.0) -> None:
        self.now += after
        self.writer.publish(publication, notices)
        await self.writer.step()


def told(state: State = State.OK, taint: Taint | None = None) -> Publication:
    finding = Finding("nvlink.links", "gpu-0", state, "Reason", "message", START)
    status = "False" if state is State.CRITICAL else "True"
    return Publication(Report((finding,)), (Judged(NodeCondition.LINK, status, "Reason", "message"),), taint)


TAINT = Taint("nvlink.links", TaintEffect.NO_SCHEDULE)
STATUS = f"{REPORT}/status"


def state_of(server: Server) -> str:
    return str(server.objects[REPORT].get("status", {}).get("state"))


async def test_429_is_obeyed_and_only_the_latest_is_written_after_it(server: Server, api: Api) -> None:
    publisher = Publisher(api)
    server.fails("PATCH", STATUS, says(429, Retry_After="100"))
    await publisher.writes(told())
    for state in (State.WARN, State.CRITICAL):
        await publisher.writes(told(state), after=40)
    assert server.count("PATCH", STATUS) == 1, "not before it may"
    await publisher.writes(told(State.WARN), after=25)
    assert server.count("PATCH", STATUS) == 2
    assert state_of(server) == "Warn"
    assert server.objects[NODE]["status"]["conditions"][0]["status"] == "True", "the Node was not held up by it"


async def test_news_that_cannot_be_told_are_tried_less_and_less_often(server: Server, api: Api) -> None:
    publisher = Publisher(api)
    server.fails("PATCH", STATUS, *[says(503)] * 1000)
    for _ in range(600):
        await publisher.writes(told(), after=1)
    # after 1, 2, 4 ... 60 s and then every minute, each by up to a quarter more or less
    assert 12 <= server.count("PATCH", STATUS) <= 20
    server.faults.clear()
    await publisher.writes(told(State.CRITICAL), after=80)
    assert state_of(server) == "Critical"
    assert publisher.writer.counts.writes["HiSparseNode", "written"] == 1


async def test_a_conflict_about_taints_is_settled_on_what_is_there_now(server: Server, api: Api) -> None:
    publisher = Publisher(api)
    more = {"key": "a third/one", "effect": "NoSchedule"}

    async def somebody_was_faster(request: web.Request) -> web.StreamResponse:
        server.objects[NODE]["spec"]["taints"].append(more)
        server.put(NODE, server.objects[NODE])
        return await says(409)(request)

    server.fails("PATCH", NODE, somebody_was_faster)
    await publisher.writes(told(State.CRITICAL, TAINT))
    keys = [one["key"] for one in server.objects[NODE]["spec"]["taints"]]
    assert keys == [THEIRS["key"], more["key"], "inference.hisparse.dev/degraded"]
    first, second = server.bodies("PATCH", NODE)
    assert first["metadata"]["resourceVersion"] != second["metadata"]["resourceVersion"]


async def test_conflicts_without_end_hold_nothing_else_up_and_are_left_for_later(server: Server, api: Api) -> None:
    publisher = Publisher(api)
    server.fails("PATCH", NODE, *[says(409)] * 5)
    await publisher.writes(told(State.CRITICAL, TAINT))
    assert server.count("PATCH", NODE) == 5
    assert state_of(server) == "Critical"
    assert server.objects[NODE]["spec"]["taints"] == [THEIRS]
    await publisher.writes(told(State.CRITICAL, TAINT), after=2)
    assert len(server.objects[NODE]["spec"]["taints"]) == 2


async def test_an_event_that_is_there_already_is_posted(server: Server, api: Api) -> None:
    publisher = Publisher(api)
    one, other = Notice("Normal", "A", "first"), Notice("Normal", "B", "second")
    server.fails("POST", EVENTS, says(409))
    await publisher.writes(told(), one, other)
    assert [body["reason"] for body in server.bodies("POST", EVENTS)] == ["A", "B"]


async def test_events_wait_for_a_server_that_is_too_busy_and_keep_their_order(server: Server, api: Api) -> None:
    publisher = Publisher(api)
    server.fails("POST", EVENTS, says(429, Retry_After="30"))
    notices = [Notice("Normal", reason, "m") for reason in "ABC"]
    await publisher.writes(told(), *notices)
    await publisher.writes(told(), after=20)
    assert server.count("POST", EVENTS) == 1
    await publisher.writes(told(), after=20)
    assert [body["reason"] for body in server.bodies("POST", EVENTS)] == ["A", "A", "B", "C"]


async def test_a_right_that_is_missing_stops_only_what_it_is_for(server: Server, api: Api) -> None:
    publisher = Publisher(api)
    server.fails("PATCH", f"{NODE}/status", *[says(403)] * 10)
    await publisher.writes(told(State.CRITICAL, TAINT))
    assert state_of(server) == "Critical"
    assert len(server.objects[NODE]["spec"]["taints"]) == 2
    assert publisher.writer.counts.writes["conditions", "refused"] == 1


async def test_an_agent_with_nothing_to_say_writes_once_a_minute_at_most(server: Server, api: Api) -> None:
    publisher = Publisher(api)
    await publisher.writes(told())
    written = []
    for _ in range(4 * 60):
        before = len([one for one in server.seen if one[0] != "GET"])
        await publisher.writes(told(), after=15)
        written += [publisher.now] * (len([one for one in server.seen if one[0] != "GET"]) - before)
    assert all(later - earlier >= 60 for earlier, later in pairwise(written))
    reports, conditions = server.count("PATCH", STATUS) - 1, server.count("PATCH", f"{NODE}/status") - 1
    assert reports == 60 * 60 // 270, "every 270 s, as promised"
    assert conditions >= 60 * 60 // 400


# --- the Lease -------------------------------------------------------------------------------------------------------


async def test_a_slot_is_taken_in_what_others_left_after_a_conflict(server: Server, api: Api) -> None:
    first, second = PoolLease(api, "ns", "a"), PoolLease(api, "ns", "b")
    server.fails("POST", LEASE.rpartition("/")[0], says(409))
    server.put(LEASE, {"metadata": {}})
    await first.look("p")
    await second.look("p")
    assert await first.change(lambda pool: take(pool, "a", 1, START))

    async def too_late(request: web.Request) -> web.StreamResponse:
        return await says(409)(request)

    server.fails("PATCH", LEASE, too_late)
    assert not await second.change(lambda pool: take(pool, "b", 1, START)), "the other has the only one"
    assert [slot.node for slot in (second.seen.pool.slots if second.seen.pool else ())] == ["a"]


async def test_a_lease_that_is_never_ours_in_time_is_not_taken(server: Server, api: Api) -> None:
    lease = PoolLease(api, "ns", "a")
    server.put(LEASE, {"metadata": {}})
    server.fails("PATCH", LEASE, *[says(409)] * 100)
    await lease.look("p")
    assert not await lease.change(lambda pool: take(pool, "a", 1, START))
    assert server.count("PATCH", LEASE) <= 6


@pytest.mark.parametrize("answer", [says(429, Retry_After="60"), says(500), says(403)], ids=["429", "500", "403"])
async def test_a_lease_that_cannot_be_read_is_unknown_and_not_free(server: Server, api: Api, answer: Answer) -> None:
    lease = PoolLease(api, "ns", "a")
    server.fails("GET", LEASE, answer)
    seen = await lease.look("p")
    assert seen.pool is None
    assert seen.why
    assert lease.slot(10, START).value == "Unknown"
