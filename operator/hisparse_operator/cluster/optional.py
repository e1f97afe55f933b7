"""Lists and watches a kind that need not be there, or not for us: it may be installed later, or be deleted.

The kinds of the node agents: what they report, the policies that they follow, the Leases of their pools.

Not through kopf, which never comes back to a kind that does not exist when it starts, and ends the process when one
goes. Here the kind is asked for again now and then, and nothing that happens to it ends the operator.
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
from hisparse_operator.cluster.kube import Api, ApiError, NotFoundError
from hisparse_operator.cluster.relist import relist
from hisparse_operator.kinds import Kind
from hisparse_operator.workqueue import backoff
from hisparse_operator.world import Sight

log: Final = structlog.get_logger(__name__)
_FORBIDDEN: Final = 403


@dataclass(frozen=True)
class Pace:
    """Seconds: between two looks for a kind that is not there, or not for us; of one watch; between two watches."""

    absent: float = 15.0
    hidden: float = 60.0
    watch: float = 300.0
    between: float = 1.0


class OptionalWatch:
    """Keeps the cache's objects of a kind as the API server has them; tells of changes, and of a change of sight."""

    def __init__(
        self,
        api: Api,
        cache: Cache,
        kind: Kind,
        on_change: Callable[[Change], None],
        on_sight: Callable[[], None],
        *,
        namespace: str | None = None,
        pace: Pace | None = None,
    ) -> None:
        self._api = api
        self._cache = cache
        self._kind = kind
        self._namespace = namespace
        self._on_change = on_change
        self._on_sight = on_sight
        self._pace = pace or Pace()
        self._failures = 0
        self.known = asyncio.Event()
        """Set once we know whether we see the kind: a pass before that would take away what is written of it."""

    async def run(self) -> None:
        """Never ends by itself."""
        while True:
            wait = await self._try()
            await asyncio.sleep(wait)

    async def _try(self) -> float:
        """List, then watch until that fails; the seconds to wait before the next try."""
        try:
            version = await relist(self._api, self._cache, self._kind, self._namespace, self._on_change)
            self._see(Sight.SEEN)
            while True:
                version = await self._api.watch(
                    self._kind, version, self._take, self._pace.watch, namespace=self._namespace
                )
                self._failures = 0
                await asyncio.sleep(self._pace.between)
        except NotFoundError:
            self._see(Sight.ABSENT)
            return self._pace.absent
        except ApiError as error:
            if error.status == _FORBIDDEN or not self.known.is_set():
                self._see(Sight.HIDDEN, str(error))
                return self._pace.hidden
            return self._later(error)
        except Transient as error:
            return max(error.retry_seconds, self._later(error))

    def _later(self, error: Exception) -> float:
        """Seconds to wait; what we have stays, and grows old by itself."""
        log.warning("not watched", kind=self._kind.kind, error=str(error))
        self._failures += 1
        return backoff(self._failures, random.random(), longest=self._pace.absent)  # noqa: S311 - spread, no secret

    def _take(self, sort: str, item: Mapping[str, Any]) -> None:
        self._failures = 0
        removed = sort == "DELETED"
        change = self._cache.remove(self._kind, item) if removed else self._cache.put(self._kind, item)
        if change is not None:
            self._on_change(change)

    def _see(self, sight: Sight, error: str | None = None) -> None:
        if self.known.is_set() and sight is self._cache.sight(self._kind):
            return
        log.info("optional kind", kind=self._kind.kind, sight=sight.name.lower(), **({"error": error} if error else {}))
        self._cache.see(self._kind, sight)
        self.known.set()
        self._on_sight()
