"""One writer at a time, by a Lease.

kubernetes.aio.leaderelection is not used: it judges other replicas by wall clock, has no deadline on its requests
(a hanging renewal leaves two leaders), lets connection errors escape without stopping the leader, and never
releases the lease.

The rule that keeps two writers apart: a write may begin until `renew_deadline` after the last renewal was *sent*
and ends within kube.WRITE_S; another replica takes the lease only `duration` after it *saw* that renewal, by its
own monotonic clock. duration > renew_deadline + WRITE_S, so the one has ended before the other begins.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import structlog

from hisparse.errors import Transient
from hisparse_operator.cluster.kube import WRITE_S, Api, ApiError, NotFoundError
from hisparse_operator.kinds import LEASE, OWN_LEASE

log: Final = structlog.get_logger(__name__)
_RELEASE_S: Final = 2.0


@dataclass(frozen=True)
class Times:
    """Seconds: how long a lease holds, until when the holder writes, how often it renews."""

    duration: float = 15.0
    renew_deadline: float = 10.0
    period: float = 3.0

    def __post_init__(self) -> None:
        if self.duration <= self.renew_deadline + WRITE_S:
            raise ValueError(f"duration {self.duration} must exceed renew_deadline {self.renew_deadline} + {WRITE_S}")


@dataclass(frozen=True)
class Seen:
    """A state of the lease and when we first saw it, by our own clock."""

    resource_version: str
    at: float


def free(spec: dict[str, Any], identity: str, seen: Seen, now: float) -> bool:
    """Whether we may take the lease: it is ours, released, or nobody renewed it for its whole duration."""
    holder = spec.get("holderIdentity")
    return not holder or holder == identity or now - seen.at > float(spec.get("leaseDurationSeconds") or 0)


class Leader:
    """Our claim on the lease."""

    def __init__(
        self,
        api: Api,
        namespace: str,
        identity: str,
        times: Times = Times(),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._namespace = namespace
        self._identity = identity
        self._times = times
        self._clock = clock
        self._lease: dict[str, Any] | None = None
        self._seen: Seen | None = None
        self._renewed: float | None = None
        self.last_contact: float = clock()
        """When the API server last answered us about the lease."""

    @property
    def leads(self) -> bool:
        """Whether we may begin a write now."""
        return self._renewed is not None and self._clock() < self._renewed + self._times.renew_deadline

    async def acquire(self) -> None:
        """Wait until the lease is ours."""
        told = ""
        while True:
            if await self._attempt():
                log.info("leading", identity=self._identity)
                return
            holder = ((self._lease or {}).get("spec") or {}).get("holderIdentity", "")
            if holder != told:
                log.info("waiting for the lease", holder=holder, namespace=self._namespace, lease=LEASE)
                told = holder
            await asyncio.sleep(self._times.period)

    async def hold(self) -> None:
        """Renew the lease; returns when it is lost."""
        while True:
            await asyncio.sleep(self._times.period)
            await self._attempt()
            if self._renewed is None or not self.leads:
                log.error("lease lost", identity=self._identity)
                self._renewed = None
                return

    async def release(self) -> None:
        """Give the lease back, so that another replica need not wait. Call when no write is in flight any more."""
        lease, self._renewed = self._lease, None
        if lease is None or (lease.get("spec") or {}).get("holderIdentity") != self._identity:
            return
        spec = {**lease["spec"], "holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": _stamp()}
        try:
            async with asyncio.timeout(_RELEASE_S):
                self._lease = await self._api.replace(OWN_LEASE, {**lease, "spec": spec})
        except (ApiError, Transient, TimeoutError) as error:
            log.warning("lease not released; it will run out", error=str(error))
        else:
            log.info("lease released", identity=self._identity)

    async def _attempt(self) -> bool:
        """Take or renew the lease; whether it is ours now. A failed request leaves an earlier renewal in force."""
        sent = self._clock()
        try:
            # a read that hangs must not outlast what we know
            async with asyncio.timeout(self._times.renew_deadline / 2):
                ours = await self._take(sent)
        except (Transient, NotFoundError, TimeoutError) as error:
            self._lease = None  # look before the next try
            log.warning("lease not renewed", error=str(error) or "no answer in time")
            return False
        self.last_contact = self._clock()
        self._renewed = sent if ours else None
        return ours

    async def _take(self, sent: float) -> bool:
        if not self.leads or self._lease is None:
            self._lease = await self._api.get(OWN_LEASE, self._namespace, LEASE)
        lease = self._lease
        if lease is None:
            self._lease = await self._api.create(OWN_LEASE, self._document({}, transitions=0, acquired=_stamp()))
            return True
        spec = lease.get("spec") or {}
        version = lease["metadata"]["resourceVersion"]
        if self._seen is None or self._seen.resource_version != version:
            self._seen = Seen(version, self._clock())
        if not free(spec, self._identity, self._seen, sent):
            return False
        kept = spec.get("holderIdentity") == self._identity
        transitions = int(spec.get("leaseTransitions") or 0) + (0 if kept else 1)
        acquired = spec.get("acquireTime") if kept else None
        document = self._document(lease["metadata"], transitions=transitions, acquired=acquired or _stamp())
        self._lease = await self._api.replace(OWN_LEASE, document)
        return True

    def _document(self, meta: dict[str, Any], *, transitions: int, acquired: str) -> dict[str, Any]:
        return {
            "apiVersion": OWN_LEASE.api_version,
            "kind": OWN_LEASE.kind,
            "metadata": {**meta, "name": LEASE, "namespace": self._namespace},
            "spec": {
                "holderIdentity": self._identity,
                # rounded up: another replica waits by what it reads here
                "leaseDurationSeconds": -int(-self._times.duration // 1),
                "acquireTime": acquired,
                "renewTime": _stamp(),
                "leaseTransitions": transitions,
            },
        }


def _stamp() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
