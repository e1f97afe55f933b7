"""kopf, used for one thing: lists and watches that end up in a callback.

Only `on.event` handlers: kopf then writes nothing (no annotations, no finalizers, no Events), and objects can be
deleted while the operator is down.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, Final

import kopf
from kubernetes.aio import client

from hisparse_operator.kinds import Kind
from hisparse_operator.rights import need

Credentials = Callable[[], Awaitable[client.Configuration]]
OnEvent = Callable[[Kind, str | None, Mapping[str, Any]], None]
_CLIENT_TIMEOUT_S: Final = 600.0
_SAID_TWICE: Final = ("kopf._core.reactor.orchestration", "kopf._core.reactor.running")
"""Loggers of kopf that write a traceback of an error that then reaches us, who tell of it."""


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


def registry(kinds: Collection[Kind], credentials: Credentials, on_event: OnEvent) -> kopf.OperatorRegistry:
    """Handlers for these kinds, and the login. Credentials are loaded anew whenever the API server says 401."""
    found = kopf.OperatorRegistry()

    async def login(**_: object) -> kopf.ConnectionInfo:
        return await connection(await credentials())

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
    found.scanning.disabled = True  # needs no rights on namespaces and CRDs
    found.process.ultimate_exiting_timeout = None
    found.queueing.exit_timeout = 0.1  # our handlers never wait
    found.watching.client_timeout = _CLIENT_TIMEOUT_S
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
