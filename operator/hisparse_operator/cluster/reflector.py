"""Keeps the cache's objects of one kind as the API server has them: a list, and a watch from where it ended.

Not through kopf, which gives each object of a list a task of its own: with ten children for each inference that was
most of a start. kopf watches the inferences; what the operator made of them comes through here.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import structlog

from hisparse.errors import Transient
from hisparse_operator.cluster.cache import Cache, Change
from hisparse_operator.cluster.kube import BOOKMARK, Api, Expired
from hisparse_operator.cluster.relist import relist
from hisparse_operator.kinds import Kind
from hisparse_operator.workqueue import backoff

log: Final = structlog.get_logger(__name__)
_LIST_AFTER: Final = 3
"""Failures in a row, not one event between them, after which a watch is not gone on with."""


@dataclass(frozen=True)
class Pace:
    """Seconds: of one watch; at least from one watch to the next; at most after a failure."""

    watch: float = 300.0
    between: float = 1.0
    longest: float = 15.0


class Reflector:
    """Lists and watches a kind in a namespace (None: in all) that we must see; tells of each change."""

    def __init__(
        self,
        api: Api,
        cache: Cache,
        kind: Kind,
        on_change: Callable[[Change], None],
        *,
        namespace: str | None = None,
        pace: Pace | None = None,
    ) -> None:
        self.kind = kind
        self._api = api
        self._cache = cache
        self._namespace = namespace
        self._on_change = on_change
        self._pace = pace or Pace()
        self._version: str | None = None
        self._failures = 0
        self.known = asyncio.Event()
        """Set once the cache has what there is. A pass before that would take what is not known yet for lost."""

    async def run(self) -> None:
        """Ends only by an ApiError: we may not see the kind, or the API server does not know it."""
        while True:
            wait = await self._try()
            await asyncio.sleep(wait)

    async def _try(self) -> float:
        """List, unless there is a version to go on from, and watch until that fails; seconds before the next try."""
        try:
            if self._version is None:
                self._version = await relist(self._api, self._cache, self.kind, self._namespace, self._on_change)
                self._listed()
            while True:
                await self._follow(self._version)
        except Transient as error:
            wait = self._later(error)
            if isinstance(error, Expired) or self._failures % _LIST_AFTER == 0:
                self._version = None
            return max(error.retry_seconds, wait)

    async def _follow(self, version: str) -> None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        await self._api.watch(self.kind, version, self._take, self._pace.watch, namespace=self._namespace)
        self._failures = 0
        # behind a load balancer that accepts and closes this would be hundreds of requests a second
        await asyncio.sleep(begun + self._pace.between - loop.time())

    def _listed(self) -> None:
        self.known.set()

    def _later(self, error: Exception) -> float:
        """Seconds to wait; what we have stays, and grows old by itself."""
        log.warning("not watched", kind=self.kind.kind, error=str(error))
        self._failures += 1
        return backoff(self._failures, random.random(), longest=self._pace.longest)  # noqa: S311 - spread, no secret

    def _take(self, sort: str, item: Mapping[str, Any]) -> None:
        self._failures = 0
        change = None
        if sort == "DELETED":
            change = self._cache.remove(self.kind, item)
        elif sort != BOOKMARK:
            change = self._cache.put(self.kind, item)
        self._version = item["metadata"]["resourceVersion"]
        if change is not None:
            self._on_change(change)
