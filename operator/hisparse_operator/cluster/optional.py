"""Lists and watches a kind that need not be there, or not for us: it may be installed later, or be deleted.

The kinds of the node agents: what they report, the policies that they follow, the Leases of their pools. The kind is
asked for again now and then, and nothing that happens to it ends the operator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog

from hisparse_operator.cluster.cache import Cache, Change
from hisparse_operator.cluster.kube import Api, ApiError, NotFoundError
from hisparse_operator.cluster.reflector import Reflector
from hisparse_operator.kinds import Kind
from hisparse_operator.world import Sight

log: Final = structlog.get_logger(__name__)
_FORBIDDEN: Final = 403


@dataclass(frozen=True)
class Patience:
    """Seconds between two looks for a kind that is not there, or not for us."""

    absent: float = 15.0
    hidden: float = 60.0


class OptionalReflector(Reflector):
    """A Reflector that never ends by itself, and tells of a change of sight too.

    `known` is set once we know whether we see the kind: a pass before that would take away what is written of it.
    """

    def __init__(
        self,
        api: Api,
        cache: Cache,
        kind: Kind,
        on_change: Callable[[Change], None],
        on_sight: Callable[[], None],
        *,
        namespace: str | None = None,
        patience: Patience | None = None,
    ) -> None:
        super().__init__(api, cache, kind, on_change, namespace=namespace)
        self._on_sight = on_sight
        self._patience = patience or Patience()

    def _listed(self) -> None:
        self._see(Sight.SEEN)

    def _refused(self, error: ApiError) -> float:
        if isinstance(error, NotFoundError):
            self._see(Sight.ABSENT)
            return self._patience.absent
        if error.status == _FORBIDDEN or not self.known.is_set():
            self._see(Sight.HIDDEN, str(error))
            return self._patience.hidden
        return self._later(error)

    def _see(self, sight: Sight, error: str | None = None) -> None:
        if self.known.is_set() and sight is self._cache.sight(self.kind):
            return
        log.info("optional kind", kind=self.kind.kind, sight=sight.name.lower(), **({"error": error} if error else {}))
        self._cache.see(self.kind, sight)
        self.known.set()
        self._on_sight()
