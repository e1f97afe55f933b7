"""Requests to the API server: deadlines, what an answer means, and a mirror of a list. Only the writer writes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping
from types import TracebackType
from typing import Any, Final, Generic, Protocol, Self, TypeVar

import aiohttp
import structlog

from hisparse.errors import Transient
from hisparse.nodes.report import STALE_SECONDS
from hisparse.spec import GROUP, VERSION
from hisparse.units import MIB
from hisparse_agent.credentials import Credentials

log: Final = structlog.get_logger(__name__)
T = TypeVar("T")

JSON: Final = "application/json"
APPLY: Final = "application/apply-patch+yaml"
MERGE: Final = "application/merge-patch+json"
STRATEGIC: Final = "application/strategic-merge-patch+json"
GROUP_PATH: Final = f"/apis/{GROUP}/{VERSION}"
_LIMIT_S: Final = 10.0
_WATCH_S: Final = 120
_LONGEST_LINE: Final = 16 * MIB
_BACK_OFF_S: Final = (1.0, 60.0)
_LONGEST_WAIT_S: Final = 300.0
"""However long an answer asks us to wait: a wrong header must not silence an agent for days."""
_OK: Final = range(200, 300)
NOT_FOUND, CONFLICT, _GONE, _TOO_MANY, _SERVER_ERROR = 404, 409, 410, 429, 500


class Refused(Exception):
    """The API server said no, and would say it again: missing rights, a bad object, something that is not there."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason


class Conflict(Transient):
    """The object changed or exists already: read it again."""


class Observer(Protocol):
    """What counts requests: metrics.py, or nothing in a test."""

    def __call__(self, verb: str, resource: str, code: str) -> None:
        """One request has ended; code is the HTTP status, or "timeout" or "error"."""


def _uncounted(verb: str, resource: str, code: str) -> None:
    del verb, resource, code


def failure(status: int, body: bytes, retry_after: str | None = None) -> Exception:
    """What an answer outside 2xx means."""
    reason, message = "", body.decode(errors="replace").strip()[:500]
    with contextlib.suppress(ValueError, AttributeError):
        answer = json.loads(body)
        reason, message = str(answer.get("reason", "")), str(answer.get("message", message))[:500]
    if status == CONFLICT:
        return Conflict(f"{status} {reason}: {message}", retry_seconds=0)
    if status in (_GONE, _TOO_MANY) or status >= _SERVER_ERROR:
        wait = min(_LONGEST_WAIT_S, float(retry_after)) if retry_after and retry_after.isdecimal() else 0.0
        return Transient(f"{status} {reason}: {message}", retry_seconds=wait)
    return Refused(status, reason, message)


def back_off(failures: int) -> float:
    """Seconds until the next try: doubled from one second to a minute, spread so that nodes do not come together."""
    least, most = _BACK_OFF_S
    return min(most, least * 2.0 ** min(failures, 10)) * random.uniform(0.75, 1.25)  # noqa: S311 - no secret


class Api:
    """One session with the API server."""

    def __init__(self, credentials: Credentials, observer: Observer = _uncounted, limit_s: float = _LIMIT_S) -> None:
        self._credentials = credentials
        self._observer = observer
        self._limit_s = limit_s
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=credentials.trust, limit=8, keepalive_timeout=90),
            headers={"User-Agent": "hisparse-agent", "Accept": JSON},
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def get(self, path: str) -> dict[str, Any] | None:
        """One object, None where there is none. Raises Refused and Transient as all of these do."""
        try:
            return await self.send("GET", path)
        except Refused as refused:
            if refused.status == NOT_FOUND:
                return None
            raise

    async def send(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        content: str = JSON,
        query: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """One request and its JSON answer. Raises Refused, Conflict, or Transient for what may be tried again."""
        code = "error"
        try:
            async with (
                asyncio.timeout(self._limit_s),
                self._session.request(
                    method,
                    self._credentials.server + path,
                    params=query,
                    data=None if body is None else json.dumps(body, separators=(",", ":")),
                    headers=self._headers() | {"Content-Type": content},
                ) as answer,
            ):
                text = await answer.read()
                code = str(answer.status)
            if answer.status not in _OK:
                raise failure(answer.status, text, answer.headers.get("Retry-After"))
            found: dict[str, Any] = json.loads(text)
        except TimeoutError as error:
            code = "timeout"
            raise Transient(f"{method} {path}: no answer within {self._limit_s:g} s", retry_seconds=0) from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise Transient(f"{method} {path}: {str(error) or type(error).__name__}", retry_seconds=0) from error
        else:
            return found
        finally:
            self._observer(method, _resource(path), code)

    async def watch(self, path: str, query: Mapping[str, str], version: str) -> AsyncIterator[dict[str, Any]]:
        """Changes after a version until the server ends the watch, which is no error."""
        asked = {
            **query,
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(_WATCH_S),
        }
        timeout = aiohttp.ClientTimeout(total=_WATCH_S + 15, sock_connect=self._limit_s)
        try:
            async with self._session.get(
                self._credentials.server + path, params=asked, headers=self._headers(), timeout=timeout
            ) as answer:
                self._observer("WATCH", _resource(path), str(answer.status))
                if answer.status not in _OK:
                    raise failure(answer.status, await answer.read())
                async for line in _lines(answer.content):
                    yield json.loads(line)
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
            raise Transient(f"WATCH {path}: {str(error) or type(error).__name__}", retry_seconds=0) from error

    def _headers(self) -> dict[str, str]:
        token = self._credentials.token()
        return {"Authorization": f"Bearer {token}"} if token else {}


async def _lines(stream: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Lines of any length: readline() of a stream ends at its buffer."""
    kept = b""
    async for part in stream.iter_any():
        *whole, kept = (kept + part).split(b"\n")
        for line in whole:
            if line:
                yield line
        if len(kept) > _LONGEST_LINE:
            raise ValueError(f"an object of more than {_LONGEST_LINE} bytes")


def _resource(path: str) -> str:
    """The plural in a path, for a label: never a name."""
    words = path.strip("/").split("/")
    words = words[2:] if words[0] == "api" else words[3:]
    if words[:1] == ["namespaces"] and len(words) > 2:  # noqa: PLR2004 - namespaces/NAME/PLURAL
        words = words[2:]
    subresource = f"/{words[2]}" if len(words) > 2 else ""  # noqa: PLR2004 - PLURAL/NAME/SUBRESOURCE
    return f"{words[0]}{subresource}" if words else ""


class Mirror(Generic[T]):
    """The objects of one list as the API server told of them last; through an outage they stay as they were.

    keep makes of an object what is worth its memory, None for nothing.
    """

    def __init__(
        self, api: Api, path: str, query: Mapping[str, str], keep: Callable[[Mapping[str, Any]], T | None]
    ) -> None:
        self._api, self._path, self._query, self._keep = api, path, dict(query), keep
        self._objects: dict[str, T] = {}
        self._version = ""
        self.synced = False
        """Whether the list has been had once."""
        self.refused = ""
        """Why we may not have it, empty where we may."""
        self.answered = asyncio.Event()
        """The list has been had, or we may not have it."""
        self.heard: float | None = None
        """When the API server answered last, by the monotonic clock."""

    @property
    def known(self) -> bool:
        """Whether what is here may still be true: the list has been had, and is not older than an outage may be."""
        return self.synced and self.heard is not None and time.monotonic() - self.heard < STALE_SECONDS

    @property
    def objects(self) -> tuple[T, ...]:
        """What is there now."""
        return tuple(self._objects.values())

    async def run(self) -> None:
        """Follow the list until cancelled."""
        failures = 0
        while True:
            try:
                if not self._version:
                    await self._list()
                async for event in self._api.watch(self._path, self._query, self._version):
                    self._take(event)
                    failures = 0
                self.heard = time.monotonic()  # the server ends a watch in its own time, and had nothing to tell
            except (Transient, Refused) as error:
                self._version = ""  # after an error the list says best what is true
                self.refused = str(error) if isinstance(error, Refused) else ""
                if self.refused:
                    self.answered.set()
                log.warning("not followed", path=self._path, error=str(error), failures=failures)
                await asyncio.sleep(max(getattr(error, "retry_seconds", 0.0), back_off(failures)))
                failures += 1

    def _kept(self, item: Mapping[str, Any]) -> T | None:
        """What is worth keeping of an object. One that nobody foresaw costs itself, and not the others."""
        try:
            return self._keep(item)
        except Exception:
            log.exception("object not understood", path=self._path, object=_key(item))
            return None

    async def _list(self) -> None:
        answer = await self._api.send("GET", self._path, query={**self._query, "resourceVersion": "0"})
        found = {_key(item): kept for item in answer.get("items") or () if (kept := self._kept(item)) is not None}
        self._objects = found
        self._version = answer["metadata"]["resourceVersion"]
        self.synced, self.refused, self.heard = True, "", time.monotonic()
        self.answered.set()

    def _take(self, event: Mapping[str, Any]) -> None:
        self.heard = time.monotonic()
        item = event["object"]
        if event["type"] == "ERROR":
            raise Transient(f"{item.get('code')} {item.get('reason')}: {item.get('message')}", retry_seconds=0)
        self._version = item["metadata"]["resourceVersion"]
        if event["type"] == "BOOKMARK":
            return
        kept = None if event["type"] == "DELETED" else self._kept(item)
        if kept is None:
            self._objects.pop(_key(item), None)
        else:
            self._objects[_key(item)] = kept


def _key(item: Mapping[str, Any]) -> str:
    meta = item["metadata"]
    return f"{meta.get('namespace', '')}/{meta['name']}"
