"""An API server that answers lists and watches as a test tells it to."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import Any

from hisparse.errors import Transient
from hisparse_operator.cluster.kube import SILENT_S, Api, Cut, Expired, Taker
from hisparse_operator.cluster.reflector import Reflector
from hisparse_operator.kinds import Kind

DOWN = Transient("the API server is down", retry_seconds=0)
BROKEN = Cut("the watch broke off", retry_seconds=0)
OLD = Expired("410 Expired: too old", retry_seconds=0)


@dataclass
class Script(Api):
    """Whatever comes last in `lists` is answered again and again; after the last of `watches` they tell of nothing."""

    lists: deque[Any]
    watches: deque[Any] = field(default_factory=deque)
    listed: list[float] = field(default_factory=list)
    """When."""
    watched: list[str] = field(default_factory=list)
    """From which version."""

    async def pages(self, kind: Kind, namespace: str | None, size: int = 1) -> AsyncGenerator[Any]:
        """One page: the items and the version of the next of `lists`, or its error."""
        del kind, namespace, size
        self.listed.append(asyncio.get_running_loop().time())
        answer = self.lists.popleft() if len(self.lists) > 1 else self.lists[0]
        if isinstance(answer, Exception):
            raise answer
        yield answer

    async def watch(
        self,
        kind: Kind,
        version: str,
        take: Taker,
        limit_s: float,
        *,
        namespace: str | None = None,
        silent_s: float = SILENT_S,
        answered: Callable[[], None] = lambda: None,
    ) -> None:
        """The events of the next of `watches`, and the error if that is the last of them."""
        del kind, namespace, silent_s
        self.watched.append(version)
        if not self.watches or type(self.watches[0]) in (list, Cut, Expired):
            answered()
        if not self.watches:
            await asyncio.sleep(limit_s)
            return
        answer = self.watches.popleft()
        for one in [answer] if isinstance(answer, Exception) else answer:
            if isinstance(one, Exception):
                raise one
            take(*one)


async def ran(reflector: Reflector, seconds: float) -> None:
    """Let it run for so long; it must not end by itself."""
    task = asyncio.ensure_future(reflector.run())
    await asyncio.sleep(seconds)
    assert not task.done(), "it never ends"
    task.cancel()
