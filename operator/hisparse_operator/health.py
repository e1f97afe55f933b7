"""/healthz, /readyz and /metrics on one server, and the judgement behind the first two."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Final

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from hisparse_operator.metrics import Metrics

_TICK_S: Final = 0.5


@dataclass(frozen=True)
class Limits:
    """Seconds above which the process should be restarted."""

    loop_lag: float = 10.0
    watch_age: float = 120.0
    lease_age: float = 120.0


@dataclass(frozen=True)
class Vitals:
    """How the process does; an age is None where it does not apply (a replica that waits watches nothing)."""

    loop_lag: float
    watch_age: float | None
    lease_age: float | None
    leads: bool
    synced: bool


def unwell(vitals: Vitals, limits: Limits) -> tuple[str, ...]:
    """What is wrong enough to be restarted for; empty if nothing is."""
    ages = (
        ("event loop lag", vitals.loop_lag, limits.loop_lag),
        ("watch without a word", vitals.watch_age, limits.watch_age),
        ("last answer about the lease", vitals.lease_age, limits.lease_age),
    )
    return tuple(
        f"{name}: {age:.1f} s, at most {limit:g} s" for name, age, limit in ages if age is not None and age > limit
    )


class LoopLag:
    """How late the event loop runs: something that blocks it stalls every object."""

    def __init__(self) -> None:
        self._due: float | None = None
        self._last = 0.0

    @property
    def seconds(self) -> float:
        """The lag of the last tick, or of the one that is overdue now if that is worse."""
        overdue = 0.0 if self._due is None else asyncio.get_running_loop().time() - self._due
        return max(self._last, overdue, 0.0)

    async def watch(self) -> None:
        """Tick until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            self._due = loop.time() + _TICK_S
            await asyncio.sleep(_TICK_S)
            self._last = loop.time() - self._due


def application(metrics: Metrics, vitals: Callable[[], Vitals], limits: Limits) -> web.Application:
    """The three pages."""

    async def healthz(_: web.Request) -> web.Response:
        wrong = unwell(vitals(), limits)
        return web.Response(status=503 if wrong else 200, text="\n".join(wrong or ("ok",)) + "\n")

    async def readyz(_: web.Request) -> web.Response:
        now = vitals()
        if now.leads and not now.synced:
            return web.Response(status=503, text="leading, but not all objects are listed yet\n")
        return web.Response(text="leading\n" if now.leads else "standing by\n")

    async def page(_: web.Request) -> web.Response:
        return web.Response(body=metrics.text(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    pages = web.Application()
    pages.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", page)])
    return pages


@contextlib.asynccontextmanager
async def serving(pages: web.Application, host: str | None, port: int) -> AsyncIterator[int]:
    """Serve while the block runs; gives the port (of use with port 0). A host of None means every address."""
    runner = web.AppRunner(pages, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()
