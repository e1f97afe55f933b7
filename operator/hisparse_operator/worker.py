"""One pass over one object: observe, reconcile, apply; and what each way to fail means for the next try.

SpecError          the user edits the object: no retry, an edit brings it back
ChildTakenError         the user sorts it out: status and Event say so, looked at again now and then
Transient, LeaseLostError    retried with backoff, a server's Retry-After honoured
ApiError           the API server refuses what we send (no rights, an invalid podTemplate): status and Event
anything else      a bug. Logged with its traceback, counted, an Event; this one object is retried with backoff
                   (at most every five minutes) and all others go on. A crash would stop them too: the bug comes
                   back with the object after each restart, so one poisonous object would take down all. Bugs
                   outside of a pass (cache, queue, watches, lease) do crash the process.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import structlog

from hisparse.errors import SpecError, Transient
from hisparse_operator.cluster.apply import Applier, ChildTakenError
from hisparse_operator.cluster.cache import Key
from hisparse_operator.cluster.kube import ApiError, Conflict, LeaseLostError
from hisparse_operator.cluster.observe import Decisions, Observer
from hisparse_operator.metrics import Metrics
from hisparse_operator.workqueue import WorkQueue
from hisparse_operator.world import Event, Object, Outcome

log: Final = structlog.get_logger(__name__)
_AGAIN_S: Final = 0.05
_AGAIN_LONGEST_S: Final = 60.0
_BLOCKED_RETRY_S: Final = 15.0
_JITTER: Final = 0.1


@dataclass(frozen=True)
class Blocked:
    """Why an outcome could not be put in place, for status and Event."""

    reason: str
    message: str


def blocked_status(status: Object, live: Object, blocked: Blocked, now: datetime) -> Mapping[str, Any]:
    """The wanted status with Ready=False for this reason; `since` moves only when Ready does."""
    wanted = {one["type"]: one for one in status.get("conditions") or ()}
    before = {one["type"]: one for one in (live.get("status") or {}).get("conditions") or ()}
    old = before.get("Ready", {})
    since = old.get("lastTransitionTime") if old.get("status") == "False" else None
    wanted["Ready"] = {
        "type": "Ready",
        "status": "False",
        "reason": blocked.reason,
        "message": blocked.message,
        "observedGeneration": live["metadata"].get("generation", 0),
        "lastTransitionTime": since or now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    return {**status, "conditions": list(wanted.values())}


class Worker:
    """Takes keys from the queue until it is closed. `run` may run several times at once, never two on one key."""

    def __init__(
        self,
        queue: WorkQueue[Key],
        observer: Observer,
        decisions: Decisions,
        applier: Applier,
        metrics: Metrics,
        *,
        resync_s: float,
        now: Callable[[], datetime],
    ) -> None:
        self._queue = queue
        self._observer = observer
        self._decisions = decisions
        self._applier = applier
        self._metrics = metrics
        self._resync_s = resync_s
        self._now = now
        self._busy_passes: dict[Key, int] = {}

    async def run(self) -> None:
        """Work until the queue is closed."""
        while (key := await self._queue.get()) is not None:
            begun = time.monotonic()
            try:
                result = await self._pass(key)
            finally:
                self._queue.done(key)
            self._metrics.reconciled(result, time.monotonic() - begun)

    async def _pass(self, key: Key) -> str:
        try:
            return await self._reconcile(key)
        except SpecError as error:
            self._queue.forget(key)
            log.warning("spec error outside of the status", inference=str(key), error=str(error))
            return "spec"
        except (Transient, LeaseLostError) as error:
            least = error.retry_seconds if isinstance(error, Transient) else 0
            wait = self._queue.fail(key, least)
            level = log.info if isinstance(error, Conflict) else log.warning
            level("retrying", inference=str(key), error=str(error), after_s=round(wait, 1))
            return "transient"
        except Exception as error:
            wait = self._queue.fail(key)
            log.exception("bug", inference=str(key), after_s=round(wait, 1))
            await self._tell(key, Blocked("InternalError", f"a bug in the operator: {type(error).__name__}: {error}"))
            return "bug"

    async def _reconcile(self, key: Key) -> str:
        world = await self._observer.world(key)
        if world is None:
            self._queue.drop(key)
            self._busy_passes.pop(key, None)
            return "ok"
        if world.inference["metadata"].get("deletionTimestamp"):
            return "ok"  # its children go by their owner references; making new ones would be wrong
        outcome = self._decisions.reconcile(world, self._now())
        try:
            applied = await self._applier.apply(world.inference, outcome)
        except ChildTakenError as error:
            await self._block(key, world.inference, outcome, Blocked("ChildConflict", str(error)))
            return "taken"
        except ApiError as error:
            await self._block(key, world.inference, outcome, Blocked("Refused", f"the API server refused: {error}"))
            return "refused"
        self._queue.forget(key)
        if applied.children:
            # what is there now may ask for the next step; a pass that never comes to rest gets slower and slower
            busy = self._busy_passes[key] = self._busy_passes.get(key, 0) + 1
            self._queue.add(key, min(_AGAIN_S * 2 ** min(busy - 1, 16), _AGAIN_LONGEST_S))
        else:
            self._busy_passes.pop(key, None)
        if outcome.retry_seconds is not None:
            self._queue.add(key, outcome.retry_seconds)
        self._queue.add(key, self._resync_s * (1 + _JITTER * (2 * random.random() - 1)))  # noqa: S311 - spread, no secret
        return "wrote" if applied.writes else "ok"

    async def _block(self, key: Key, inference: Object, outcome: Outcome, blocked: Blocked) -> None:
        wait = self._queue.fail(key, _BLOCKED_RETRY_S)
        log.warning("blocked", inference=str(key), **vars(blocked), after_s=round(wait, 1))
        if outcome.status is not None:
            status = blocked_status(outcome.status, inference, blocked, self._now())
            event = Event("Warning", blocked.reason, blocked.message)
            try:
                await self._applier.apply(inference, Outcome(status=status, events=(event,)))
            except ApiError:
                log.exception("status refused", inference=str(key))

    async def _tell(self, key: Key, blocked: Blocked) -> None:
        inference = self._observer.inference(key)
        if inference is not None:
            try:
                await self._applier.post(inference, Event("Warning", blocked.reason, blocked.message))
            except LeaseLostError as error:
                log.info("event not posted", inference=str(key), error=str(error))
