"""The Lease of a pool of nodes: read and written under its version. What goes into it is decided in remedies.slots."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from urllib.parse import urlencode

import structlog

from hisparse.errors import Transient
from hisparse.nodes.breaker import LEASE_PREFIX
from hisparse_agent.kube import MERGE, NOT_FOUND, Conflict, Refused
from hisparse_agent.publish.writer import Api
from hisparse_agent.remedies.allowance import SlotState
from hisparse_agent.remedies.slots import BrokenLeaseError, Pool, alive, annotations_of, may_count_on, parse

log: Final = structlog.get_logger(__name__)
LEASES: Final = "/apis/coordination.k8s.io/v1"
_TRIES: Final = 6
_LIMIT_S: Final = 4.0
_PAGE: Final = 500


@dataclass(frozen=True)
class Seen:
    """The Lease as it was read. pool None: it is not known, and why tells the reason."""

    pool: Pool | None = None
    why: str = "not read yet"


class PoolLease:
    """The Lease that the nodes under one policy share."""

    def __init__(self, api: Api, namespace: str, node: str) -> None:
        self._api, self._namespace, self._node = api, namespace, node
        self._policy = ""
        self._version: str | None = None
        self._renewed: datetime | None = None
        self.seen = Seen()

    @property
    def namespace(self) -> str:
        """Where the Lease is: the namespace of the node agents."""
        return self._namespace

    @property
    def holds(self) -> bool:
        """Whether we took a slot and have not given it back."""
        return self._renewed is not None

    def slot(self, most: int, now: datetime) -> SlotState:
        """Where this node stands with the budget."""
        pool = self.seen.pool
        if pool is None:
            if self._renewed is None:
                return SlotState.UNKNOWN
            return SlotState.HELD if may_count_on(self._renewed, now) else SlotState.LOST
        held = alive(pool, now)
        if (own := next((slot for slot in held if slot.node == self._node), None)) is not None:
            self._renewed = own.renewed
            return SlotState.HELD if may_count_on(own.renewed, now) else SlotState.LOST
        if self._renewed is not None:
            self._renewed = None
            return SlotState.LOST
        return SlotState.FREE if len(held) < most else SlotState.FULL

    async def look(self, policy: str) -> Seen:
        """Read it. Never raises for an API server that is away: then nothing is known."""
        if policy != self._policy:
            self._policy, self._version, self._renewed = policy, None, None
        try:
            async with asyncio.timeout(_LIMIT_S):
                self.seen = await self._read()
        except (Transient, Refused, TimeoutError) as error:
            self.seen = Seen(None, str(error) or "no answer in time")
        except BrokenLeaseError as error:
            self.seen = Seen(None, str(error))
        if self.seen.pool is None:
            log.warning("pool not read", policy=policy, why=self.seen.why)
        return self.seen

    async def change(self, what: Callable[[Pool], Pool | None]) -> bool:
        """Write what the function makes of the pool; whether it is so now. It is called again after every conflict."""
        try:
            async with asyncio.timeout(_LIMIT_S):
                for attempt in range(_TRIES):
                    if self.seen.pool is None or attempt:
                        self.seen = await self._read()
                    wanted = what(self.seen.pool or Pool())
                    if wanted is None:
                        return False
                    if wanted == self.seen.pool:
                        return True
                    try:
                        await self._write(wanted)
                    except Conflict:
                        # a rack that fails at once has all its nodes here
                        await asyncio.sleep(random.uniform(0.02, 0.1) * 2**attempt)  # noqa: S311 - no secret
                    else:
                        self.seen = Seen(wanted, "")
                        return True
        except (Transient, Refused, TimeoutError, BrokenLeaseError) as error:
            log.warning("pool not written", policy=self._policy, error=str(error) or "no answer in time")
            self.seen = Seen(None, str(error) or "no answer in time")
            return False
        log.warning("pool not written", policy=self._policy, error="others were faster each time")
        return False

    def forget(self) -> None:
        """The slot has been given back."""
        self._renewed = None

    async def size(self, selector: dict[str, str]) -> int | None:
        """How many nodes there are with these labels; None where it cannot be found out."""
        query = {"limit": str(_PAGE), "resourceVersion": "0"}
        if selector:
            query["labelSelector"] = ",".join(f"{name}={value}" for name, value in sorted(selector.items()))
        count = 0
        try:
            async with asyncio.timeout(_LIMIT_S):
                while True:
                    page = await self._api.send("GET", f"/api/v1/nodes?{urlencode(query)}")
                    count += len(page.get("items") or ())
                    going_on = (page.get("metadata") or {}).get("continue")
                    if not going_on:
                        return count
                    query = {key: value for key, value in query.items() if key != "resourceVersion"}
                    query["continue"] = going_on
        except (Transient, Refused, TimeoutError) as error:
            log.warning("pool not counted", policy=self._policy, error=str(error) or "no answer in time")
            return None

    async def _read(self) -> Seen:
        lease = await self._api.get(self._path())
        if lease is None:
            self._version = None
            return Seen(Pool(), "")
        self._version = lease["metadata"]["resourceVersion"]
        return Seen(parse(lease["metadata"].get("annotations") or {}), "")

    async def _write(self, pool: Pool) -> None:
        annotations = annotations_of(pool)
        if self._version is None:
            document: dict[str, Any] = {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {
                    "name": f"{LEASE_PREFIX}{self._policy}",
                    "namespace": self._namespace,
                    "annotations": {name: value for name, value in annotations.items() if value is not None},
                },
            }
            answer = await self._api.send("POST", f"{LEASES}/namespaces/{self._namespace}/leases", document)
        else:
            patch = {"metadata": {"resourceVersion": self._version, "annotations": annotations}}
            try:
                answer = await self._api.send("PATCH", self._path(), patch, content=MERGE)
            except Refused as error:
                if error.status == NOT_FOUND:
                    raise Conflict("the Lease is gone", retry_seconds=0) from error
                raise
        self._version = answer["metadata"]["resourceVersion"]

    def _path(self) -> str:
        return f"{LEASES}/namespaces/{self._namespace}/leases/{LEASE_PREFIX}{self._policy}"
