"""A queue of keys: each at most once in it, each in at most one worker's hands, failures wait longer and longer."""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Generic, TypeVar

Key = TypeVar("Key")

FIRST_RETRY_S: Final = 0.5
LONGEST_RETRY_S: Final = 300.0
_SPREAD: Final = 0.25
_TICK_S: Final = 0.001


def backoff(failures: int, chance: float, *, first: float = FIRST_RETRY_S, longest: float = LONGEST_RETRY_S) -> float:
    """Seconds before the next try after so many failures in a row; `chance` in 0..1 spreads it by a quarter."""
    # 2**60 is past any cap; a larger exponent would only cost time
    return min(longest, first * 2.0 ** min(max(failures - 1, 0), 60)) * (1 - _SPREAD * chance)


class WorkQueue(Generic[Key]):
    """Keys to work on. Time is the event loop's.

    A key added while a worker holds it comes back when the worker is done. After a failure it stays away until its
    delay is over, whatever is added meanwhile; only `urgent` (the user edited the object) ends that and forgets
    the failures. A failure with `looks` lets the key come meanwhile, for a look: `waits` says that it is no try.
    """

    def __init__(self, chance: Callable[[], float] = random.random) -> None:
        self._chance = chance
        self._ready: OrderedDict[Key, None] = OrderedDict()
        self._held: set[Key] = set()
        self._again: dict[Key, float] = {}  # added while held: the earliest time asked for
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._failures: dict[Key, int] = {}
        self._not_before: dict[Key, float] = {}
        self._looks: set[Key] = set()
        self._looking: set[Key] = set()  # held for a look
        self._edited: set[Key] = set()  # urgent while held
        self._wake = asyncio.Event()
        self._closed = False

    def __len__(self) -> int:
        """Keys that could be worked on now."""
        return len(self._ready)

    @property
    def held(self) -> int:
        """Keys that workers hold."""
        return len(self._held)

    @property
    def delayed(self) -> int:
        """Keys that wait for their time."""
        return len(self._timers)

    def add(self, key: Key, after: float = 0.0, *, urgent: bool = False) -> None:
        """Work on this key after so many seconds, or earlier if that was asked for before."""
        if urgent:
            self.forget(key)
        due = max(self._now() + after, self._earliest(key))
        if key in self._held:
            if urgent:
                self._edited.add(key)
            self._again[key] = min(due, self._again.get(key, due))
        else:
            self._schedule(key, due)

    def fail(self, key: Key, at_least: float = 0.0, *, looks: bool = False) -> float:
        """Try again later; returns the seconds until then. Call before `done`."""
        self._failures[key] = failures = self._failures.get(key, 0) + 1
        wait = max(at_least, backoff(failures, self._chance()))
        self._not_before[key] = self._now() + wait
        if looks:
            self._looks.add(key)
        else:
            self._looks.discard(key)
        self.add(key, wait)
        return wait

    def waits(self, key: Key) -> bool:
        """Whether the held key came for a look: the delay after its failure is still on."""
        return key in self._looking

    def forget(self, key: Key) -> None:
        """It went well: the next failure counts as the first."""
        self._failures.pop(key, None)
        self._not_before.pop(key, None)
        self._looks.discard(key)
        self._looking.discard(key)

    def failures(self, key: Key) -> int:
        """How often in a row it failed."""
        return self._failures.get(key, 0)

    def drop(self, key: Key) -> None:
        """The object is gone: forget everything about the key."""
        self.forget(key)
        self._ready.pop(key, None)
        self._again.pop(key, None)
        self._edited.discard(key)
        if timer := self._timers.pop(key, None):
            timer.cancel()

    async def get(self) -> Key | None:
        """The next key, now in the caller's hands until `done`; None once the queue is closed."""
        while not self._closed:
            if self._ready:
                key, _ = self._ready.popitem(last=False)
                self._held.add(key)
                if self._not_before.get(key, 0.0) > self._now() + _TICK_S:
                    self._looking.add(key)
                return key
            self._wake.clear()
            await self._wake.wait()
        self._wake.set()  # pass it on to the next waiting worker
        return None

    def done(self, key: Key) -> None:
        """The worker lets go of the key."""
        self._held.discard(key)
        if key in self._edited:
            self._edited.discard(key)
            self.forget(key)  # a failure of this pass was one of the object as it was before
        if (due := self._again.pop(key, None)) is not None:
            # what was asked for meanwhile still waits out a failure of this very pass
            self._schedule(key, max(due, self._earliest(key)))
        if key in self._looking:
            self._looking.discard(key)
            self._schedule(key, self._not_before[key])  # a look has used up the timer of the next try

    def close(self) -> None:
        """Hand out no more keys."""
        self._closed = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._wake.set()

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _earliest(self, key: Key) -> float:
        return 0.0 if key in self._looks else self._not_before.get(key, 0.0)

    def _schedule(self, key: Key, due: float) -> None:
        if self._closed or key in self._ready:
            return
        if timer := self._timers.pop(key, None):
            due = min(due, timer.when())
            timer.cancel()
        if due <= self._now():
            self._ready[key] = None
            self._wake.set()
        else:
            self._timers[key] = asyncio.get_running_loop().call_at(due, self._fire, key)

    def _fire(self, key: Key) -> None:
        del self._timers[key]
        self._ready[key] = None
        self._wake.set()
