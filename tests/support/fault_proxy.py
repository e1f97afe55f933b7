"""A proxy between one operator and the API server that does to its requests what networks and API servers do.

It takes plain HTTP on loopback and passes requests on with the operator's own certificate, so that the API server
sees the user whose rights count. `rule` decides for each request, and for each event of a watch, what becomes of it;
None passes it on. It can be changed while requests run.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import aiohttp
import yaml
from aiohttp import web

from hisparse_testenv.control_plane import ControlPlane

_HOP: Final = frozenset({"connection", "content-length", "host", "keep-alive", "transfer-encoding", "upgrade"})
_FOREVER_S: Final = 3600.0
_HELD_S: Final = 1.0
_LONGEST_LINE: Final = 4 * 1024**2
_REASONS: Final = {
    401: "Unauthorized",
    409: "Conflict",
    410: "Expired",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


@dataclass(frozen=True)
class Asked:
    """One request of the operator. number counts the writes apart from those of leases, from 1; 0 for all others."""

    method: str
    path: str
    query: Mapping[str, str]
    number: int
    at: float
    body: bytes = field(repr=False, default=b"")

    @property
    def watches(self) -> bool:
        """Whether it is a watch."""
        return self.query.get("watch") == "true"

    @property
    def of_lease(self) -> bool:
        """Whether it is about the leader's lease."""
        return "/leases" in self.path

    @property
    def writes(self) -> bool:
        """Whether it asks for a change."""
        return self.method != "GET"

    @property
    def lists(self) -> bool:
        """Whether it asks for a whole list."""
        return self.method == "GET" and not self.watches and self.plural == self.path.rpartition("/")[2]

    @property
    def plural(self) -> str:
        """The kind that it is about, as it stands in the path."""
        parts = self.path.strip("/").split("/")
        parts = parts[2:] if parts[0] == "api" else parts[3:]
        if parts[:1] == ["namespaces"] and len(parts) > 2:
            parts = parts[2:]
        return parts[0] if parts else ""  # discovery


@dataclass(frozen=True)
class Answer:
    """Instead of the API server's answer; `done`: it has done what was asked, and its answer is lost."""

    status: int
    retry_after: int | None = None
    done: bool = False

    def response(self) -> web.Response:
        """As the API server says it."""
        text = {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "code": self.status,
            "reason": _REASONS[self.status],
            "message": f"the fault proxy answers {self.status}",
        }
        headers = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        return web.json_response(text, status=self.status, headers=headers)


@dataclass(frozen=True)
class Cut:
    """The connection ends without an answer; of a watch: now, in the middle of a line."""

    done: bool = False


@dataclass(frozen=True)
class Hang:
    """No answer, ever, on a connection that stays open; of a watch: no event any more."""

    done: bool = False


@dataclass(frozen=True)
class Slow:
    """Everything comes, so many seconds later."""

    seconds: float


@dataclass(frozen=True)
class Stale:
    """A list is answered as it was the first time."""


@dataclass(frozen=True)
class Expired:
    """A watch is told that its version is too old, in the stream."""


@dataclass(frozen=True)
class Swapped:
    """Each event of a watch waits until the next one has been passed on, or for a second."""


@dataclass(frozen=True)
class Call:
    """Something happens on the test's side before the request is passed on, or before it is answered."""

    what: Callable[[], None]
    done: bool = False


Fault = Answer | Cut | Hang | Slow | Stale | Expired | Swapped | Call
Rule = Callable[[Asked], Fault | None]


def nothing(_: Asked) -> None:
    """No fault."""


class FaultProxy:
    """Runs on a thread of its own while the block runs."""

    def __init__(self, plane: ControlPlane, user: str) -> None:
        self.rule: Rule = nothing
        self.seen: list[Asked] = []
        self.answered: dict[int, int] = {}
        """What the API server answered to each write that was passed on, by its number."""
        self.kubeconfig: Path
        self._plane = plane
        self._user = user
        self._lists: dict[str, bytes] = {}
        self._writes = 0
        self._watches: set[asyncio.Task[Any]] = set()
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(10), "the proxy did not start"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)
        self._loop.close()

    def cut_watches(self) -> None:
        """Every watch that is open ends now, in the middle of a line."""
        self._loop.call_soon_threadsafe(lambda: [task.cancel() for task in self._watches])

    def asked(self, since: float, **parts: Any) -> list[Asked]:
        """Requests since a time (monotonic), with these attributes."""
        return [one for one in self.seen if one.at >= since and all(getattr(one, key) == parts[key] for key in parts)]

    async def _serve(self) -> None:
        credentials = yaml.safe_load(self._plane.user(self._user).read_text())
        user = credentials["users"][0]["user"]
        context = ssl.create_default_context(cafile=credentials["clusters"][0]["cluster"]["certificate-authority"])
        context.load_cert_chain(user["client-certificate"], user["client-key"])
        app = web.Application(client_max_size=16 * 1024**2)
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self._write_kubeconfig(int(runner.addresses[0][1]))
        connector = aiohttp.TCPConnector(ssl=context, limit=0)
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False) as self._upstream:
            self._ready.set()
            await self._stop.wait()
            await runner.cleanup()

    def _write_kubeconfig(self, port: int) -> None:
        self.kubeconfig = self._plane.state / f"{self._user}-{port}.proxied"
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "proxied", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
            "users": [{"name": "operator", "user": {}}],
            "contexts": [{"name": "proxied", "context": {"cluster": "proxied", "user": "operator"}}],
            "current-context": "proxied",
        }
        self.kubeconfig.write_text(yaml.safe_dump(document))

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        asked = await self._note(request)
        fault = self.rule(asked)
        if isinstance(fault, Slow):
            await asyncio.sleep(fault.seconds)
            fault = None
        if isinstance(fault, Call) and not fault.done:
            await asyncio.to_thread(fault.what)
            fault = None
        if isinstance(fault, Stale) and asked.lists and (old := self._lists.get(request.path_qs)) is not None:
            return web.Response(body=old, content_type="application/json")
        if asked.watches:
            return await self._watch(request, asked, fault)
        if fault is not None and not getattr(fault, "done", True):
            return await self._failed(request, fault)
        headers = {key: value for key, value in request.headers.items() if key.lower() not in _HOP}
        url = f"{self._plane.server}{request.path_qs}"
        async with self._upstream.request(request.method, url, headers=headers, data=asked.body or None) as answer:
            body = await answer.read()
            if asked.number:
                self.answered[asked.number] = answer.status
            if asked.lists and answer.status == 200:
                self._lists.setdefault(request.path_qs, body)
            if isinstance(fault, Call):
                await asyncio.to_thread(fault.what)
            elif fault is not None and getattr(fault, "done", False):
                return await self._failed(request, fault)
            kept = {key: value for key, value in answer.headers.items() if key.lower() not in _HOP}
            return web.Response(body=body, status=answer.status, headers=kept)

    async def _note(self, request: web.Request) -> Asked:
        body = await request.read()
        counted = request.method != "GET" and "/leases" not in request.path
        self._writes += counted
        number = self._writes if counted else 0
        asked = Asked(request.method, request.path, dict(request.query), number, time.monotonic(), body)
        self.seen.append(asked)
        return asked

    async def _failed(self, request: web.Request, fault: Fault) -> web.StreamResponse:
        if isinstance(fault, Answer):
            return fault.response()
        if isinstance(fault, Hang):
            await asyncio.sleep(_FOREVER_S)
        if request.transport is not None:
            request.transport.abort()
        return web.Response()

    async def _watch(self, request: web.Request, asked: Asked, fault: Fault | None) -> web.StreamResponse:
        if isinstance(fault, Answer | Cut):
            return await self._failed(request, fault)
        task = asyncio.current_task()
        assert task is not None
        self._watches.add(task)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        url = f"{self._plane.server}{request.path_qs}"
        lines: asyncio.Queue[bytes] = asyncio.Queue()
        try:
            async with (
                self._upstream.get(url, headers={"Accept": "application/json"}, read_bufsize=_LONGEST_LINE) as answer,
                asyncio.TaskGroup() as tasks,
            ):
                tasks.create_task(_read(answer.content, lines))
                async for event in self._faulty(asked, lines):
                    await response.write(event)
        except (asyncio.CancelledError, ExceptionGroup) as error:
            # cancelled by cut_watches, or because the operator has gone
            if isinstance(error, ExceptionGroup) and error.split((_Broken, ConnectionError))[1]:
                raise
            if request.transport is not None:
                with contextlib.suppress(ConnectionError):
                    await response.write(b'{"type":"MODIFIED","object":{"metada')
                request.transport.abort()
        finally:
            self._watches.discard(task)
        return response

    async def _faulty(self, asked: Asked, lines: asyncio.Queue[bytes]) -> AsyncIterator[bytes]:
        """The events of a watch, as the rule of the moment lets them through."""
        held = b""
        while True:
            try:
                async with asyncio.timeout(_HELD_S if held else None):
                    line = await lines.get()
            except TimeoutError:
                yield held
                held = b""
                continue
            if not line:
                yield held
                return
            fault = self.rule(asked)
            if isinstance(fault, Slow):
                await asyncio.sleep(fault.seconds)
            elif isinstance(fault, Cut):
                raise _Broken
            elif isinstance(fault, Hang):
                await asyncio.sleep(_FOREVER_S)
            elif isinstance(fault, Expired):
                status = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
                yield json.dumps({"type": "ERROR", "object": status}).encode() + b"\n"
                return
            elif isinstance(fault, Swapped) and not held:
                held = line
                continue
            yield line + held
            held = b""


async def _read(content: aiohttp.StreamReader, lines: asyncio.Queue[bytes]) -> None:
    """Whole lines, and an empty one at the end."""
    async for line in content:
        await lines.put(line)
    await lines.put(b"")


class _Broken(Exception):
    """The watch is to be cut."""
