"""Keeps the cache's objects of one kind as the API server has them: a list, and a watch from where it ended.

Not through kopf, which gives each object of a list a task of its own: with ten children for each inference that was
most of a start. kopf watches the inferences; what the operator made of them comes through here.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import structlog

from hisparse.errors import Transient
from hisparse_operator.cluster.cache import Cache, Change
from hisparse_operator.cluster.kube import BOOKMARK, Api, ApiError, Cut, Expired, NotFoundError
from hisparse_operator.cluster.relist import relist
from hisparse_operator.kinds import Kind
from hisparse_operator.workqueue import backoff

log: Final = structlog.get_logger(__name__)
_LIST_AFTER: Final = 3
"""Watches in a row that broke off without an event, after which a list tells what they do not."""


@dataclass(frozen=True)
class Pace:
    """Seconds: of one watch, spread by half; the shortest that is none to be repeated; at most after a failure."""

    watch: float = 300.0
    shortest: float = 1.0
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
        self._fruitless = 0
        self._heard = time.monotonic()
        self.known = asyncio.Event()
        """Set once the cache has what there is. A pass before that would take what is not known yet for lost."""

    @property
    def silence(self) -> float:
        """Seconds since the API server said anything of this kind: a page of a list, an event, yes to a watch."""
        return time.monotonic() - self._heard

    async def run(self) -> None:
        """Ends only by an ApiError: we may not list the kind at all."""
        self._hear()
        while True:
            wait = await self._try()
            await asyncio.sleep(wait)

    async def _try(self) -> float:
        """List, unless there is a version to go on from, and watch until that fails; seconds before the next try."""
        try:
            if self._version is None:
                self._version = await relist(
                    self._api, self._cache, self.kind, self._namespace, self._on_change, on_page=self._hear
                )
                self._listed()
            while True:
                await self._follow(self._version)
        except Transient as error:
            self._fruitless += isinstance(error, Cut)
            if isinstance(error, Expired) or self._fruitless >= _LIST_AFTER:
                self._version = None
                self._fruitless = 0
            return max(error.retry_seconds, self._later(error))
        except ApiError as error:
            self._version = None
            return self._refused(error)

    async def _follow(self, version: str) -> None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        limit = self._pace.watch * random.uniform(1, 1.5)  # noqa: S311 - spread, no secret
        try:
            await self._api.watch(self.kind, version, self._take, limit, namespace=self._namespace, answered=self._hear)
        except Cut:
            if loop.time() - begun < self._pace.longest:
                raise
            # something on the way ends what is idle: no failure, and the next one tells of what this one did not
        if loop.time() - begun < self._pace.shortest and self._version == version:
            # behind a load balancer that accepts and closes this would be hundreds of requests a second
            raise Cut(f"watch {self.kind.path(self._namespace)}: over at once, without an event", retry_seconds=0)
        self._failures = self._fruitless = 0

    def _hear(self) -> None:
        self._heard = time.monotonic()

    def _listed(self) -> None:
        self.known.set()

    def _refused(self, error: ApiError) -> float:
        """Seconds to wait, or the error again where it ends everything.

        An API server that is just starting refuses what it allows later, and a proxy may not find what every cluster
        has: what we saw before is asked for again, and the silence grows.
        """
        if self.known.is_set() or isinstance(error, NotFoundError):
            return self._later(error)
        raise error

    def _later(self, error: Exception) -> float:
        """Seconds to wait; what we have stays, and grows old by itself."""
        log.warning("not watched", kind=self.kind.kind, namespace=self._namespace, error=str(error))
        self._failures += 1
        return backoff(self._failures, random.random(), longest=self._pace.longest)  # noqa: S311 - spread, no secret

    def _take(self, sort: str, item: Mapping[str, Any]) -> None:
        self._hear()
        self._failures = self._fruitless = 0
        change = None
        if sort == "DELETED":
            change = self._cache.remove(self.kind, item)
        elif sort != BOOKMARK:
            change = self._cache.put(self.kind, item)
        self._version = item["metadata"]["resourceVersion"]
        if change is not None:
            self._on_change(change)
