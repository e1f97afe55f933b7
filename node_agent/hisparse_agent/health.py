"""/healthz, /readyz and /metrics on one server."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Final

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from hisparse.errors import HiSparseError
from hisparse_agent.metrics import Metrics

LEAST_AGE_S: Final = 120.0


def unwell(poll_age_s: float, interval_s: float) -> str:
    """What is wrong enough to be restarted for; empty if nothing is. An API server that is away is not our fault."""
    limit = max(LEAST_AGE_S, 8 * interval_s)
    return f"last poll: {poll_age_s:.1f} s ago, at most {limit:g} s" if poll_age_s > limit else ""


def application(
    metrics: Metrics, poll_age_s: Callable[[], float], interval_s: float, polled: Callable[[], bool]
) -> web.Application:
    """The three pages."""

    async def healthz(_: web.Request) -> web.Response:
        wrong = unwell(poll_age_s(), interval_s)
        return web.Response(status=503 if wrong else 200, text=f"{wrong or 'ok'}\n")

    async def readyz(_: web.Request) -> web.Response:
        return web.Response(text="reading\n") if polled() else web.Response(status=503, text="no reading yet\n")

    async def page(_: web.Request) -> web.Response:
        return web.Response(body=metrics.text(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    pages = web.Application()
    pages.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", page)])
    return pages


class ListenError(HiSparseError):
    """The pages cannot be served where they should be."""


@contextlib.asynccontextmanager
async def serving(pages: web.Application, host: str | None, port: int) -> AsyncIterator[int]:
    """Serve while the block runs; gives the port (of use with port 0). A host of None means every address.

    Raises ListenError.
    """
    runner = web.AppRunner(pages, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            raise ListenError(f"--listen {host or ''}:{port}: {error.strerror}; give another address") from error
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()
