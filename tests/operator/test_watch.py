"""kopf's session: our credentials, at our pace."""

import asyncio
from typing import Any

import aiohttp
import kopf
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from hisparse_operator.cluster.watch import BURST, INTERVAL_S, Pacer, session_of, settings, telling
from hisparse_operator.kinds import CHILDREN, INFERENCE, OWN_LEASE


@given(st.lists(st.floats(0, 5), min_size=1, max_size=60))
def test_a_burst_at_once_and_then_one_each_interval(gaps: list[float]) -> None:
    pacer, now, begun = Pacer(), 0.0, list[float]()
    for gap in gaps:
        now += gap
        wait = pacer.wait("/pods", now)
        assert wait >= 0
        begun.append(now + wait)
    for first in range(len(begun)):
        for last in range(first, len(begun)):
            most = BURST + (begun[last] - begun[first]) / INTERVAL_S
            assert last - first + 1 <= most + 1e-6


def test_whoever_asks_rarely_never_waits() -> None:
    pacer = Pacer()
    assert [pacer.wait("/pods", at * INTERVAL_S) for at in range(10)] == [0.0] * 10


def test_one_path_does_not_hold_up_another() -> None:
    pacer = Pacer()
    assert sum(pacer.wait("/pods", 0.0) for _ in range(20)) > 0
    assert pacer.wait("/services", 0.0) == 0.0


async def test_the_pages_of_a_list_do_not_wait_for_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, waits, told = await asked(monkeypatch, "limit=2", *(f"limit=2&continue={page}" for page in range(3 * BURST)))
    assert len(seen) == 1 + 3 * BURST
    assert waits == []
    assert told == []


async def test_kopfs_session_has_our_credentials_and_keeps_the_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, waits, told = await asked(monkeypatch, *["watch=true"] * (BURST + 2))
    assert told == ["/pods"] * (BURST + 2)
    assert {one.headers["Authorization"] for one in seen} == {"Bearer t0ken"}
    assert {one.headers["User-Agent"] for one in seen} == {"hisparse-operator"}
    assert len(waits) == 2, "the burst at once, and then each waits"


async def asked(monkeypatch: pytest.MonkeyPatch, *queries: str) -> tuple[list[web.Request], list[float], list[str]]:
    """Requests of kopf's session as a server sees them, the waits before them (not slept), and the watches told of."""
    seen: list[web.Request] = []
    told: list[str] = []
    slept: list[float] = []
    sleep = asyncio.sleep

    async def counted(seconds: float) -> None:
        slept.append(seconds)
        await sleep(0)

    async def page(request: web.Request) -> web.Response:
        seen.append(request)
        return web.Response()

    app = web.Application()
    app.router.add_get("/pods", page)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server = f"http://127.0.0.1:{runner.addresses[0][1]}"
    info = kopf.ConnectionInfo(server=server, scheme="Bearer", token="t0ken")  # noqa: S106 - it is none
    session: Any = session_of(info, Pacer().trace(), telling(told.append)).aiohttp_session
    monkeypatch.setattr(asyncio, "sleep", counted)
    try:
        async with session:
            assert isinstance(session, aiohttp.ClientSession)
            for query in queries:
                await (await session.get(f"{server}/pods?{query}")).read()
    finally:
        await runner.cleanup()
    return seen, [one for one in slept if one > 0], told


def test_kopf_reads_lists_in_pages_and_keeps_no_object() -> None:
    kinds = (INFERENCE, *CHILDREN, OWN_LEASE)
    found = settings(kinds)
    assert found.watching.chunk_size
    # a task of kopf holds the last event of its object for so long: all of a list at once would be all of the cluster
    assert 0 < found.queueing.idle_timeout <= 0.2
    for kind in kinds:
        resource = kopf.Resource(group=kind.group, version=kind.version, plural=kind.plural)
        assert list(found.watching.label_selectors.collect(resource)) == ([kind.selector] if kind.selector else [])
