"""kopf, used for one thing: the list and the watch of the inferences, and of our lease, that end up in a callback.

Only `on.event` handlers: kopf then writes nothing (no annotations, no finalizers, no Events), and objects can be
deleted while the operator is down.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from types import SimpleNamespace
from typing import Any, Final

import aiohttp
import kopf
from kubernetes.aio import client

from hisparse_operator.cluster.kube import PAGE
from hisparse_operator.kinds import Kind
from hisparse_operator.rights import need

Credentials = Callable[[], Awaitable[client.Configuration]]
OnEvent = Callable[[Kind, str | None, Mapping[str, Any]], None]
OnWatch = Callable[[str], None]
"""Hears the path of each watch that begins: kopf has read the list before it to its end."""
_CLIENT_TIMEOUT_S: Final = 600.0
_LIST_TIMEOUT_S: Final = 60.0
_CONNECT_TIMEOUT_S: Final = 10.0
_IDLE_S: Final = 0.1
"""kopf keeps a task with the last event of an object for so long: after a list, with the whole list."""
BURST: Final = 4
"""Requests for one list or its watch that may begin at once: a list, its watch, and both once more."""
INTERVAL_S: Final = 1.0
_SAID_TWICE: Final = ("kopf._core.reactor.orchestration", "kopf._core.reactor.running")
"""Loggers of kopf that write a traceback of an error that then reaches us, who tell of it."""


class _NoDiffs(kopf.DiffBaseStorage):
    """Compares nothing with what it was: kopf would copy each object of each event for handlers that we do not have."""

    def build(self, *, body: kopf.Body, extra_fields: object = None) -> kopf.BodyEssence:
        """No part of an object is of interest."""
        del body, extra_fields
        return {}

    def fetch(self, *, body: kopf.Body) -> None:
        """Nothing was stored."""
        del body

    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: kopf.BodyEssence) -> None:
        """Nothing is stored: kopf writes nothing here."""
        del body, patch, essence


class Pacer:
    """Lets a burst of requests for one path begin at once, and then one each interval.

    kopf opens a watch that ended at once again without a pause: behind a load balancer that accepts and closes, that is
    hundreds of requests a second.
    """

    def __init__(self, burst: int = BURST, interval_s: float = INTERVAL_S) -> None:
        self._allowance_s = (burst - 1) * interval_s
        self._interval_s = interval_s
        self._due: dict[str, float] = {}

    def wait(self, path: str, now: float) -> float:
        """Seconds until a request for this path may begin, which is then counted."""
        due = max(self._due.get(path, now), now)
        self._due[path] = due + self._interval_s
        return max(0.0, due - self._allowance_s - now)

    def trace(self) -> aiohttp.TraceConfig:
        """The same as a hook of an HTTP session."""

        async def begins(_: object, __: SimpleNamespace, about: aiohttp.TraceRequestStartParams) -> None:
            if "continue" not in about.url.query:  # the next page of a list that has begun
                await asyncio.sleep(self.wait(about.url.path, asyncio.get_running_loop().time()))

        found = aiohttp.TraceConfig()
        found.on_request_start.append(begins)
        return found


def telling(on_watch: OnWatch) -> aiohttp.TraceConfig:
    """Tells of the watches that a session begins."""

    async def begins(_: object, __: SimpleNamespace, about: aiohttp.TraceRequestStartParams) -> None:
        if "watch" in about.url.query:
            on_watch(about.url.path)

    found = aiohttp.TraceConfig()
    found.on_request_start.append(begins)
    return found


def session_of(info: kopf.ConnectionInfo, *hooks: aiohttp.TraceConfig) -> kopf.AiohttpSession:
    """A session with these credentials, as kopf would make it, with hooks of ours. kopf closes it."""
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ssl=info.as_ssl_context()),
        headers=info.as_http_headers() | {"User-Agent": "hisparse-operator"},
        proxy=info.proxy_url,
        trace_configs=list(hooks),
    )
    return kopf.AiohttpSession(server=info.server, aiohttp_session=session)


async def connection(configuration: client.Configuration) -> kopf.ConnectionInfo:
    """Our credentials in kopf's form, so that both talk to the same cluster as the same user."""
    header = await configuration.get_api_key_with_prefix("BearerToken")
    scheme, _, token = (header or "").rpartition(" ")
    return kopf.ConnectionInfo(
        server=configuration.host,
        ca_path=configuration.ssl_ca_cert,
        insecure=not configuration.verify_ssl,
        username=configuration.username or None,
        password=configuration.password or None,
        # RFC 6750 writes it so; kubernetes.aio has it in lower case
        scheme=scheme.capitalize() or None,
        token=token or None,
        certificate_path=configuration.cert_file,
        private_key_path=configuration.key_file,
        proxy_url=configuration.proxy,
    )


def registry(
    kinds: Collection[Kind], credentials: Credentials, on_event: OnEvent, on_watch: OnWatch
) -> kopf.OperatorRegistry:
    """Handlers for these kinds, and the login. Credentials are loaded anew whenever the API server says 401."""
    found = kopf.OperatorRegistry()
    pacer = Pacer()

    async def login(**_: object) -> kopf.AiohttpSession:
        return session_of(await connection(await credentials()), pacer.trace(), telling(on_watch))

    kopf.on.login(id="login", registry=found)(login)
    for kind in kinds:
        need(kind, "list", "watch")

        async def handle(event: kopf.RawEvent, kind: Kind = kind, **_: object) -> None:
            # a list leaves these two out of its items
            stamp = {"apiVersion": kind.api_version, "kind": kind.kind}
            on_event(kind, event["type"], stamp | dict(event["object"]))

        kopf.on.event(group=kind.group, version=kind.version, plural=kind.plural, id=kind.plural, registry=found)(
            handle
        )
    return found


def settings(kinds: Collection[Kind]) -> kopf.OperatorSettings:
    """Settings of kopf with everything off that we do not use."""
    for name in _SAID_TWICE:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    found = kopf.OperatorSettings()
    found.peering.standalone = True
    found.posting.enabled = False
    found.persistence.diffbase_storage = _NoDiffs()
    found.scanning.disabled = True  # needs no rights on namespaces and CRDs
    found.process.ultimate_exiting_timeout = None
    found.queueing.exit_timeout = 0.1  # our handlers never wait
    found.queueing.idle_timeout = _IDLE_S
    found.watching.chunk_size = PAGE
    found.watching.client_timeout = _CLIENT_TIMEOUT_S
    found.networking.request_timeout = _LIST_TIMEOUT_S
    found.networking.connect_timeout = _CONNECT_TIMEOUT_S
    for kind in kinds:
        matches = _matcher(kind)
        if kind.selector is not None:
            found.watching.label_selectors[matches] = kind.selector
        if kind.field_selector is not None:
            found.watching.field_selectors[matches] = kind.field_selector
    return found


def _matcher(kind: Kind) -> Callable[[kopf.Resource], bool]:
    def matches(resource: kopf.Resource) -> bool:
        return (resource.group, resource.version, resource.plural) == (kind.group, kind.version, kind.plural)

    return matches
