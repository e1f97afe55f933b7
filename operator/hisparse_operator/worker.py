"""One pass over one object: observe, reconcile, apply; and what each way to fail means for the next try.

SpecError          the user edits the object: no retry, an edit brings it back
ChildTakenError         the user sorts it out: status and Event say so, looked at again now and then
Transient, LeaseLostError    retried with backoff, a server's Retry-After honoured
                   (several in a row: the status says so)
ApiError           the API server refuses what we send (no rights, an invalid podTemplate): status and Event
anything else      a bug. Logged with its traceback, counted, status and Event; this one object is retried with
                   backoff (at most every five minutes) and all others go on. A crash would stop them too: the bug
                   comes back with the object after each restart, so one poisonous object would take down all. Bugs
                   outside of a pass (cache, queue, watches, lease) do crash the process.

While the writes of an object wait, what happens to its pods still brings a pass that writes the status alone.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Final

import structlog

from hisparse.errors import SpecError, Transient
from hisparse_operator import logs
from hisparse_operator.cluster.apply import Applier, ChildTakenError
from hisparse_operator.cluster.cache import Key
from hisparse_operator.cluster.kube import ApiError, Conflict, LeaseLostError, NotFoundError
from hisparse_operator.cluster.observe import Decisions, Observer
from hisparse_operator.cluster.recorder import REPEAT_RARELY_S, Recorder
from hisparse_operator.decide import shown
from hisparse_operator.decide.blocked import Blocked, Hindrance, blocked_status, last_status, refused, told
from hisparse_operator.metrics import Metrics
from hisparse_operator.workqueue import WorkQueue
from hisparse_operator.world import Event, Object, Outcome, World

log: Final = structlog.get_logger(__name__)
_AGAIN_S: Final = 0.05
_AGAIN_LONGEST_S: Final = 60.0
_BLOCKED_RETRY_S: Final = 15.0
_JITTER: Final = 0.1
_TOLD_AFTER: Final = 4
_LOOK_AGAIN_S: Final = 2.0


class Worker:
    """Takes keys from the queue until it is closed. `run` may run several times at once, never two on one key."""

    def __init__(
        self,
        queue: WorkQueue[Key],
        observer: Observer,
        decisions: Decisions,
        applier: Applier,
        recorder: Recorder,
        metrics: Metrics,
        *,
        resync_s: float,
        now: Callable[[], datetime],
    ) -> None:
        self._queue = queue
        self._observer = observer
        self._decisions = decisions
        self._applier = applier
        self._recorder = recorder
        self._metrics = metrics
        self._resync_s = resync_s
        self._now = now
        self._busy_passes: dict[Key, int] = {}
        self._blocked: dict[Key, Blocked] = {}

    async def run(self) -> None:
        """Work until the queue is closed."""
        while (key := await self._queue.get()) is not None:
            begun = time.monotonic()
            try:
                with logs.hiding(shown.redaction_of(self._observer.inference(key) or {})):
                    result = await self._pass(key)
            finally:
                self._queue.done(key)
            self._metrics.reconciled(result, time.monotonic() - begun)
            # a pass that has nothing to ask or to write never waits, and after a start there are as many as objects:
            # the lease is renewed and probes are answered between them
            await asyncio.sleep(0)

    async def _pass(self, key: Key) -> str:
        try:
            return await self._reconcile(key)
        except SpecError as error:
            self._queue.forget(key)
            log.warning("spec error outside of the status", inference=str(key), error=str(error))
            return "spec"
        except (Transient, LeaseLostError) as error:
            least = error.retry_seconds if isinstance(error, Transient) else 0
            stuck = not isinstance(error, Conflict | LeaseLostError) and self._queue.failures(key) + 1 >= _TOLD_AFTER
            wait = self._queue.fail(key, least, looks=stuck)
            level = log.info if isinstance(error, Conflict) else log.warning
            level("retrying", inference=str(key), error=str(error), after_s=round(wait, 1))
            if stuck:
                message = f"several tries in a row to write failed, and the operator goes on trying: {error}"
                await self._safely(key, self._say(key, Blocked(Hindrance.NOT_WRITTEN, message)))
            return "transient"
        except Exception as error:
            wait = self._queue.fail(key)
            log.exception("bug", inference=str(key), after_s=round(wait, 1))
            message = (
                f"a bug in the operator: {type(error).__name__}: {error}. Its log has the trace, please report it; "
                "undoing the last edit of the spec may help"
            )
            await self._safely(key, self._confess(key, Blocked(Hindrance.INTERNAL_ERROR, message)))
            return "bug"

    async def _reconcile(self, key: Key) -> str:
        world = await self._observer.world(key)
        if world is None:
            self._queue.drop(key)
            self._busy_passes.pop(key, None)
            self._blocked.pop(key, None)
            return "ok"
        if world.inference["metadata"].get("deletionTimestamp"):
            return "ok"  # its children go by their owner references; making new ones would be wrong
        outcome = self._decisions.reconcile(world, self._now())
        blocked = self._blocked.get(key)
        if blocked is not None and self._queue.waits(key):
            await self._show(key, world, outcome, blocked, outcome.events)
            return "look"
        try:
            applied = await self._applier.apply(world.inference, outcome)
        except ChildTakenError as error:
            await self._block(key, outcome, Blocked(Hindrance.CHILD_CONFLICT, str(error)))
            return "taken"
        except ApiError as error:
            await self._block(
                key, outcome, refused(error.status, error.message or str(error), world.inference, error.document)
            )
            return "refused"
        self._queue.forget(key)
        self._blocked.pop(key, None)
        if applied.children:
            # what is there now may ask for the next step; a pass that never comes to rest gets slower and slower
            busy = self._busy_passes[key] = self._busy_passes.get(key, 0) + 1
            self._queue.add(key, min(_AGAIN_S * 2 ** min(busy - 1, 16), _AGAIN_LONGEST_S))
        else:
            self._busy_passes.pop(key, None)
        if applied.again_s is not None:
            self._queue.add(key, applied.again_s)
        if outcome.retry_seconds is not None:
            self._queue.add(key, outcome.retry_seconds)
        self._queue.add(key, self._resync_s * (1 + _JITTER * (2 * random.random() - 1)))  # noqa: S311 - spread, no secret
        return "wrote" if applied.writes else "ok"

    async def _block(self, key: Key, outcome: Outcome, blocked: Blocked) -> None:
        wait = self._queue.fail(key, _BLOCKED_RETRY_S, looks=True)
        log.warning("blocked", inference=str(key), **vars(blocked), after_s=round(wait, 1))
        inference = await self._say(key, blocked, outcome.events)
        if inference is not None:
            event = Event("Warning", blocked.reason, blocked.message)
            await self._recorder.post(inference, event, repeat_s=REPEAT_RARELY_S)

    async def _say(self, key: Key, blocked: Blocked, events: tuple[Event, ...] = ()) -> Object | None:
        """Write why nothing goes on, with the world as it is after what was written; the object, None if it is gone."""
        self._blocked[key] = blocked
        world = await self._observer.world(key)
        if world is None:
            return None
        outcome = self._decisions.reconcile(world, self._now())
        return world.inference if await self._show(key, world, outcome, blocked, events) else None

    async def _show(
        self, key: Key, world: World, outcome: Outcome, blocked: Blocked, events: tuple[Event, ...]
    ) -> bool:
        """Write the status alone; whether the object still exists."""
        if outcome.status is None:
            return True
        status = blocked_status(outcome.status, world, blocked, self._now())
        events = told(events, outcome.status, status)
        try:
            applied = await self._applier.apply(world.inference, Outcome(status=status, events=events))
        except NotFoundError:
            log.info("deleted meanwhile", inference=str(key))
            return False
        except ApiError as error:
            log.error("status refused; is the CRD that of this version?", inference=str(key), error=str(error))  # noqa: TRY400 - says all
        except (Transient, LeaseLostError) as error:
            log.info("status not written", inference=str(key), error=str(error))
            self._queue.add(key, _LOOK_AGAIN_S)
        else:
            if applied.again_s is not None:
                self._queue.add(key, applied.again_s)
        return True

    async def _confess(self, key: Key, blocked: Blocked) -> None:
        """Tell of a bug without asking reconcile, which may be what has it."""
        world = self._observer.cached(key)
        if world is not None:
            await self._applier.apply(world.inference, Outcome(status=last_status(world, blocked, self._now())))
            event = Event("Warning", blocked.reason, blocked.message)
            await self._recorder.post(world.inference, event, repeat_s=REPEAT_RARELY_S)

    async def _safely(self, key: Key, work: Awaitable[object]) -> None:
        """Tell of a failure: what failed before may fail here too, and must not take the others down."""
        try:
            await work
        except (ApiError, Transient, LeaseLostError) as error:
            log.info("failure not told", inference=str(key), error=str(error))
        except Exception:
            log.exception("failure not told", inference=str(key))
