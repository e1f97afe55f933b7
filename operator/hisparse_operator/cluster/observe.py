"""Reads everything that bears on one inference: from the cache, and live only what a decision asks for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

import structlog

from hisparse.errors import Transient
from hisparse_operator.cluster.cache import Cache, Key
from hisparse_operator.cluster.hub import Hub
from hisparse_operator.cluster.kube import Api, ApiError
from hisparse_operator.decide import shown
from hisparse_operator.decide.pods import ENGINE, container_status
from hisparse_operator.kinds import CHILDREN, NODE_REPORT, POD
from hisparse_operator.world import Object, Outcome, Sight, World

log: Final = structlog.get_logger(__name__)
LOG_LINES: Final = 400
_LOG_BYTES: Final = 4 * 1024**2


@dataclass(frozen=True)
class Decisions:
    """The pure core: what should be, and which slow reads that needs. Injected: the shell's tests bring their own."""

    reconcile: Callable[[World, datetime], Outcome]
    wants_hub: Callable[[World], tuple[str, str] | None] = lambda _: None
    wants_logs: Callable[[World], tuple[str, ...]] = lambda _: ()


class Observer:
    """Puts the World together."""

    def __init__(self, api: Api, cache: Cache, hub: Hub, decisions: Decisions, *, nodes: bool) -> None:
        self._api = api
        self._cache = cache
        self._hub = hub
        self._decisions = decisions
        self._nodes = nodes

    def inference(self, key: Key) -> Object | None:
        """The object alone, as it was seen last."""
        return self._cache.inference(key)

    async def world(self, key: Key) -> World | None:
        """One inference and what bears on it, None if it is gone. Sends nothing for a converged one."""
        world = self.cached(key)
        if world is None:
            return None
        if wanted := self._decisions.wants_hub(world):
            world = replace(world, hub=await self._hub.files(*wanted))
        if pods := self._decisions.wants_logs(world):
            by_name = {pod["metadata"]["name"]: pod for pod in world.pods}
            hidden = shown.redaction_of(world.inference)
            logs = {name: shown.log(await self._log(key, by_name[name]), hidden) for name in pods if name in by_name}
            world = replace(world, previous_logs=logs)
        return world

    def cached(self, key: Key) -> World | None:
        """The same without what has to be asked for."""
        inference = self._cache.inference(key)
        if inference is None:
            return None
        children: dict[str, Any] = {
            kind.world: self._cache.children(kind, key) for kind in CHILDREN if kind.world is not None
        }
        return World(
            inference,
            **children,
            nodes=self._cache.nodes() if self._nodes else None,
            node_reports=self._cache.node_reports() if self._nodes else (),
            report_sight=self._cache.sight(NODE_REPORT) if self._nodes else Sight.HIDDEN,
        )

    async def _log(self, key: Key, pod: Object) -> str:
        """The last lines of the run that ended; empty where they cannot be had (evicted, node gone)."""
        ended = ended_run(pod)
        query = {
            "container": ENGINE,
            "previous": "false" if ended else "true",
            "tailLines": LOG_LINES,
            "limitBytes": _LOG_BYTES,
        }
        name = pod["metadata"]["name"]
        try:
            return await self._api.log(POD, key.namespace, name, query)
        except (ApiError, Transient) as error:
            # a node that is down must not keep us from saying what else we know
            log.warning("no log", inference=str(key), pod=name, error=str(error))
            return ""


def ended_run(pod: Object) -> bool:
    """Whether the engine's ended run is still the current one (else it is the previous)."""
    return bool((container_status(pod).get("state") or {}).get("terminated"))
