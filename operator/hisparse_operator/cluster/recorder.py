"""Posts Events of inferences: each once, then counted, in the order in which they were told."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import structlog

from hisparse.errors import Transient
from hisparse_operator.cluster.kube import Api, ApiError, NotFoundError
from hisparse_operator.cluster.memory import digest, remember
from hisparse_operator.decide import shown
from hisparse_operator.decide.blocked import bounded
from hisparse_operator.kinds import EVENT, FIELD_MANAGER, INFERENCE
from hisparse_operator.world import Event, Object

log: Final = structlog.get_logger(__name__)
_EVENTS: Final = 2048
"""Those that come again and again are few, and each takes some half a KiB."""
REPEAT_S: Final = 10.0
"""An Event of a transition that comes back is counted, at most so often."""
REPEAT_RARELY_S: Final = 600.0
"""The same for one that each try would post again."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Recorder:
    """Posts Events as one instance of the operator, and remembers which."""

    def __init__(self, api: Api, now: Callable[[], datetime], instance: str = "") -> None:
        self._api = api
        self._now = now
        self._instance = instance
        self._posted: OrderedDict[str, tuple[str, datetime]] = OrderedDict()
        self._last_tick = 0

    async def post(self, inference: Object, event: Event, *, repeat_s: float = REPEAT_S) -> bool:
        """Post an Event; of one posted before the count goes up, not within `repeat_s`. Never raises for it."""
        meta = inference["metadata"]
        now = self._now()
        message = bounded(shown.message(event.message, shown.redaction_of(inference)))
        told = digest([meta["uid"], event.type, event.reason, message])
        before = self._posted.get(told)
        if before is not None and (now - before[1]).total_seconds() < repeat_s:
            return False
        name = before[0] if before is not None else self._event_name(meta["name"], now)
        remember(self._posted, told, (name, now), most=_EVENTS)
        stamp = now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        document = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"namespace": meta["namespace"], "name": name},
            "involvedObject": {
                "apiVersion": INFERENCE.api_version,
                "kind": INFERENCE.kind,
                "namespace": meta["namespace"],
                "name": meta["name"],
                "uid": meta["uid"],
                "resourceVersion": meta["resourceVersion"],
            },
            "type": event.type,
            "reason": event.reason,
            "message": message,
            "source": {"component": FIELD_MANAGER},
            "reportingComponent": FIELD_MANAGER,
            "reportingInstance": self._instance,
            "firstTimestamp": stamp,
            "lastTimestamp": stamp,
            "count": 1,
        }
        try:
            if before is None or not await self._count(document, stamp):
                await self._api.create(EVENT, document)
        except (ApiError, Transient) as error:
            # an Event tells of a write that is done; it is no reason to do the pass again
            log.warning("event not posted", inference=f"{meta['namespace']}/{meta['name']}", error=str(error))
            return False
        return True

    def _event_name(self, name: str, now: datetime) -> str:
        """As client-go names Events: by the time in ns, so that a list by name is in order within one second too."""
        self._last_tick = max(self._last_tick + 1, (now - _EPOCH) // timedelta(microseconds=1) * 1000)
        return f"{name[:200]}.{self._last_tick:016x}"

    async def _count(self, document: Mapping[str, Any], stamp: str) -> bool:
        """One more of an Event that was posted before; False where it is not there any more."""
        namespace, name = document["metadata"]["namespace"], document["metadata"]["name"]
        known = await self._api.get(EVENT, namespace, name)
        if known is None:
            return False
        count = int(known.get("count") or 1) + 1
        try:
            await self._api.merge(EVENT, namespace, name, {"count": count, "lastTimestamp": stamp})
        except NotFoundError:
            return False
        return True
