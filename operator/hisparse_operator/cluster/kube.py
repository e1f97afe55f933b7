"""Requests to the API server: credentials, paths, deadlines and what an answer means. No retries in here."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol, Self

import aiohttp
from kubernetes.aio import client, config

from hisparse.errors import Transient
from hisparse.redaction import PLAIN
from hisparse_operator.kinds import Kind
from hisparse_operator.rights import need

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
JSON: Final = "application/json"
# with a charset the client library leaves the body as it is
APPLY: Final = "application/apply-patch+yaml; charset=utf-8"
MERGE: Final = "application/merge-patch+json"
READ_S: Final = 30.0
WRITE_S: Final = 4.0
"""A write ends within this time, one way or the other: leader.py counts on it."""
SILENT_S: Final = 70.0
"""A watch that says nothing for so long is opened anew: its connection may be dead. Longer than from one bookmark to
the next (a minute; they are not promised), and shorter than the API server keeps events at least (75 s)."""
BOOKMARK: Final = "BOOKMARK"
PAGE: Final = 250
"""Objects of one answer to a list. A whole list of pods would be many times what is kept of it."""
_OK: Final = range(200, 300)
_NOT_IN_YAML: Final = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff\ud800-\udfff]")
_SURROGATES: Final = range(0xD800, 0xE000)
_REPLACEMENT: Final = 0xFFFD
# an apply of a field that the kind does not have, or of another type, is answered with 500: it never gets better
_NONSENSE: Final = ("failed to create typed patch object", "failed to convert new object")
_NOT_FOUND, _CONFLICT, _GONE, _INVALID, _TOO_MANY, _SERVER_ERROR = 404, 409, 410, 422, 429, 500


class ApiError(Exception):
    """The API server refused; retrying the same request won't help. A field that the user set, or missing rights (403).

    document is what it refused, where that was one of our children.
    """

    document: Mapping[str, Any] | None = None

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message


class NotFoundError(ApiError):
    """There is no such object, or no such kind."""


class Conflict(Transient):
    """The object changed, vanished or exists already: look again. `reason` is the API server's word for it."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message, retry_seconds=0)
        self.reason = reason


class Expired(Transient):
    """The API server does not keep that version any more (410): list anew."""


class Cut(Transient):
    """A watch that was answered, and broke off."""


class LeaseLostError(Exception):
    """We may no longer write: another replica may hold the lease by now."""


def failure(status: int, body: bytes, retry_after: str | None) -> Exception:
    """What an answer outside 2xx means for the caller."""
    reason, message = "", PLAIN.over(body.decode(errors="replace").strip())[:500]
    with contextlib.suppress(ValueError, AttributeError):
        answer = json.loads(body)
        reason, message = str(answer.get("reason", "")), str(answer.get("message", message))
    if status == _NOT_FOUND:
        return NotFoundError(status, reason, message)
    # the API server's way to say that an object with this name has another uid than the one that we mean
    if status == _CONFLICT or (status == _INVALID and "metadata.uid:" in message):
        return Conflict(reason, message)
    if status == _SERVER_ERROR and message.startswith(_NONSENSE):
        return ApiError(status, reason, message)
    if status == _GONE:
        return Expired(f"{status} {reason}: {message}", retry_seconds=0)
    if status == _TOO_MANY or status >= _SERVER_ERROR:
        wait = float(retry_after) if retry_after and retry_after.isdigit() else 0.0
        return Transient(f"{status} {reason}: {message}", retry_seconds=wait)
    return ApiError(status, reason, message)


class Observer(Protocol):
    """What counts requests: metrics.py, or nothing in a test."""

    def __call__(self, verb: str, resource: str, code: str, seconds: float) -> None:
        """One request has ended; code is the HTTP status, or "timeout" or "error"."""


Taker = Callable[[str, dict[str, Any]], None]
"""Takes in one watch event: its type (ADDED, MODIFIED, DELETED) and the object; of a BOOKMARK it has a version only."""


def _uncounted(verb: str, resource: str, code: str, seconds: float) -> None:
    del verb, resource, code, seconds


async def load_configuration(kubeconfig: Path | None = None, context: str | None = None) -> client.Configuration:
    """Credentials from a kubeconfig if one is named, else from the pod's service account."""
    settings = client.Configuration()
    if kubeconfig is None and context is None and (SERVICE_ACCOUNT / "token").exists():
        config.load_incluster_config(  # type: ignore[no-untyped-call]
            client_configuration=settings
        )
    else:
        await config.load_kube_config(  # type: ignore[no-untyped-call]
            config_file=str(kubeconfig) if kubeconfig else None,
            context=context,
            client_configuration=settings,
            persist_config=False,
        )
    settings.connection_pool_maxsize = 0  # no limit: each watch has a connection for itself, and no write waits for one
    return settings


class Api:
    """One session with the API server. Writes ask `may_write` first; a no is a LeaseLostError."""

    def __init__(self, configuration: client.Configuration, observer: Observer = _uncounted) -> None:
        self.configuration = configuration
        self._client = client.ApiClient(configuration)
        self._client.user_agent = "hisparse-operator"
        self._observer = observer
        self.may_write: Callable[[], bool] = lambda: True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.close()  # type: ignore[no-untyped-call]

    async def get(self, kind: Kind, namespace: str | None, name: str) -> dict[str, Any] | None:
        """One object as it is now, None if there is none."""
        try:
            return await self._json("get", kind, kind.path(namespace, name))
        except NotFoundError:
            return None

    async def pages(
        self, kind: Kind, namespace: str | None, size: int = PAGE
    ) -> AsyncGenerator[tuple[list[dict[str, Any]], str]]:
        """All objects of a kind that concern us, some at a time, and the resource version at which that was true.

        Transient (410) where reading took longer than the API server keeps the rest: begin again.
        """
        query = {"labelSelector": kind.selector, "fieldSelector": kind.field_selector, "limit": str(size)}
        stamp = {"apiVersion": kind.api_version, "kind": kind.kind}  # a list leaves them out of its items
        rest: str | None = None
        while rest != "":
            answer = await self._json("list", kind, kind.path(namespace), query=query | {"continue": rest})
            meta = answer["metadata"]
            rest = meta.get("continue", "")
            page = [stamp | item for item in answer.get("items") or ()]
            del answer
            yield page, meta["resourceVersion"]
            del page

    async def watch(
        self,
        kind: Kind,
        version: str,
        take: Taker,
        limit_s: float,
        *,
        namespace: str | None = None,
        silent_s: float = SILENT_S,
        answered: Callable[[], None] = lambda: None,
    ) -> None:
        """Give each event since a resource version to `take`, bookmarks too, until the API server or the time ends it.

        The version of the last event is where to go on from, also after Cut and what else is Transient, and after a
        silence; Expired where there is no going on. Like kopf's watches it is not among the requests that the observer
        counts.
        """
        need(kind, "watch")
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "labelSelector": kind.selector,
            "fieldSelector": kind.field_selector,
            "resourceVersion": version,
            "timeoutSeconds": str(int(limit_s)),
        }
        path = kind.path(namespace)
        stamp = {"apiVersion": kind.api_version, "kind": kind.kind}
        timeout = aiohttp.ClientTimeout(sock_read=silent_s)
        response: aiohttp.ClientResponse | None = None
        try:
            async with asyncio.timeout(READ_S) as limit:
                _, url, headers, *_ = await self._client.param_serialize(
                    "GET",
                    path,
                    query_params=_given(query),
                    header_params={"Accept": JSON},
                    auth_settings=["BearerToken"],
                )
                response = (await self._client.call_api("GET", url, headers, _request_timeout=timeout)).response
                async with response:
                    if response.status not in _OK:
                        raise failure(response.status, await response.read(), response.headers.get("Retry-After"))
                    answered()
                    limit.reschedule(asyncio.get_running_loop().time() + limit_s + READ_S)
                    async for line in _lines(response.content.iter_any()):
                        sort, item = _event(line)
                        take(sort, stamp | item)
        except (aiohttp.ClientError, OSError) as error:
            late = isinstance(error, TimeoutError)
            if response is None:
                what = f"no answer within {READ_S:g} s" if late else str(error) or type(error).__name__
                raise Transient(f"watch {path}: {what}", retry_seconds=0) from error
            if not late:
                raise Cut(f"watch {path}: {str(error) or type(error).__name__}", retry_seconds=0) from error

    async def apply(
        self, kind: Kind, document: Mapping[str, Any], manager: str, *, force: bool, subresource: str | None = None
    ) -> dict[str, Any]:
        """Server-side apply; the answer is the object as it is now. Without force the object may be new."""
        if not force:
            need(kind, "create", subresource=subresource)
        meta = document["metadata"]
        return await self._write(
            "apply",
            kind,
            kind.path(meta.get("namespace"), meta["name"], subresource),
            subresource=subresource,
            query={"fieldManager": manager, "force": str(force).lower()},
            body=document,
            content=APPLY,
        )

    async def create(self, kind: Kind, document: Mapping[str, Any]) -> dict[str, Any]:
        """Create an object; Conflict with reason AlreadyExists when there is one."""
        path = kind.path(document["metadata"].get("namespace"))
        return await self._write("create", kind, path, body=document)

    async def merge(self, kind: Kind, namespace: str, name: str, patch: Mapping[str, Any]) -> dict[str, Any]:
        """JSON merge patch."""
        return await self._write("patch", kind, kind.path(namespace, name), body=patch, content=MERGE)

    async def replace(self, kind: Kind, document: Mapping[str, Any]) -> dict[str, Any]:
        """Update under optimistic locking; Conflict when somebody was faster."""
        meta = document["metadata"]
        return await self._write("update", kind, kind.path(meta.get("namespace"), meta["name"]), body=document)

    async def delete(
        self, kind: Kind, namespace: str | None, name: str, uid: str | None, version: str | None = None
    ) -> dict[str, Any]:
        """Delete in the background; with a uid only that very object, with a version only as it was (else Conflict)."""
        body: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        given = {"uid": uid, "resourceVersion": version}
        conditions = {name: value for name, value in given.items() if value}
        precondition = {"preconditions": conditions} if conditions else {}
        return await self._write("delete", kind, kind.path(namespace, name), body=body | precondition)

    async def log(self, kind: Kind, namespace: str, name: str, query: Mapping[str, Any]) -> str:
        """The log of a pod's container as text."""
        path = kind.path(namespace, name, "log")
        body = await self._request("get", kind, path, subresource="log", query=query, accept="*/*")
        return body.decode(errors="replace")

    async def _write(self, verb: str, kind: Kind, path: str, **rest: Any) -> dict[str, Any]:  # noqa: ANN401
        if not self.may_write():
            raise LeaseLostError(f"not {verb} {path}: the lease may have passed to another replica")
        return await self._json(verb, kind, path, limit=WRITE_S, **rest)

    async def _json(self, verb: str, kind: Kind, path: str, **rest: Any) -> dict[str, Any]:  # noqa: ANN401
        answer: dict[str, Any] = json.loads(await self._request(verb, kind, path, **rest))
        return answer

    async def _request(
        self,
        verb: str,
        kind: Kind,
        path: str,
        *,
        subresource: str | None = None,
        query: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        content: str = JSON,
        accept: str = JSON,
        limit: float = READ_S,
    ) -> bytes:
        need(kind, "patch" if verb == "apply" else verb, subresource=subresource)
        method = {"list": "GET", "apply": "PATCH", "create": "POST", "update": "PUT"}.get(verb, verb.upper())
        begun = time.monotonic()
        code = "error"
        try:
            async with asyncio.timeout(limit):
                _, url, headers, *_ = await self._client.param_serialize(
                    method,
                    path,
                    query_params=_given(query or {}),
                    header_params={"Accept": accept, "Content-Type": content},
                    auth_settings=["BearerToken"],
                )
                # past param_serialize, which copies every value of the body to look for models of the client's own
                timeout = aiohttp.ClientTimeout(total=limit)
                sent = _yaml(body) if content == APPLY else body
                answer = await self._client.call_api(method, url, headers, sent, _request_timeout=timeout)
                text: bytes = await answer.read()  # type: ignore[no-untyped-call]
            code = str(answer.status)
            if answer.status not in _OK:
                raise failure(answer.status, text, answer.headers.get("Retry-After"))
        except TimeoutError as error:
            code = "timeout"
            raise Transient(f"{method} {path}: no answer within {limit:g} s", retry_seconds=0) from error
        except (aiohttp.ClientError, OSError) as error:
            raise Transient(f"{method} {path}: {str(error) or type(error).__name__}", retry_seconds=0) from error
        else:
            return text
        finally:
            self._observer(verb, kind.plural, code, time.monotonic() - begun)


def _given(query: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(key, value) for key, value in query.items() if value is not None]


def _yaml(body: object) -> bytes:
    """JSON that is YAML too, which knows no pairs of surrogates (json.dumps writes an emoji so) and no raw controls."""
    text = json.dumps(body, ensure_ascii=False)
    return _NOT_IN_YAML.sub(lambda found: _escaped(ord(found[0])), text).encode()


def _escaped(code: int) -> str:
    return f"\\u{_REPLACEMENT if code in _SURROGATES else code:04x}"


def _event(line: bytes) -> tuple[str, dict[str, Any]]:
    """One watch event; raises what an error in the stream means."""
    try:
        event = json.loads(line)
        sort, item = str(event["type"]), event["object"]
        if sort != "ERROR":
            int(item["metadata"]["resourceVersion"])
        code = int(item.get("code", _SERVER_ERROR))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Cut(f"no watch event: {line[:200]!r}", retry_seconds=0) from error
    if sort == "ERROR":
        failed = failure(code, json.dumps(item).encode(), None)
        # the watch itself was answered: asked the same again, it may say the same again
        raise Cut(str(failed), retry_seconds=0) if type(failed) is Transient else failed
    return sort, item


async def _lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Whole lines, of any length; what is left of a broken one is dropped."""
    rest = b""
    async for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            if line:
                yield line
