"""The lease: by its arithmetic on jumping time, and by real replicas on a real API server."""

import asyncio
from collections.abc import Callable, Coroutine
from copy import deepcopy
from typing import Any

import pytest

from hisparse.errors import Transient
from hisparse_operator.cluster.kube import WRITE_S, Api, Conflict, load_configuration
from hisparse_operator.cluster.leader import Leader, Times
from hisparse_operator.kinds import OWN_LEASE
from hisparse_testenv.shared import Cluster

Run = Callable[[Coroutine[Any, Any, Any]], Any]
TIMES = Times()


class LeaseStore:
    """The part of the API server that keeps a lease: optimistic locking and nothing else. Can be cut off."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.version = 0
        self.down: set[str] = set()
        self.writes = 0

    def keep(self, document: dict[str, Any]) -> dict[str, Any]:
        self.version += 1
        self.writes += 1
        self.lease = deepcopy(document)
        self.lease["metadata"]["resourceVersion"] = str(self.version)
        return deepcopy(self.lease)


class LeaseApi(Api):
    """What one replica sees of it."""

    def __init__(self, store: LeaseStore, who: str) -> None:
        self.store, self.who = store, who

    async def _way(self) -> None:
        await asyncio.sleep(0.01)
        if self.who in self.store.down:
            await asyncio.sleep(WRITE_S)
            raise Transient("no answer", retry_seconds=0)

    async def get(self, *_: Any) -> dict[str, Any] | None:
        await self._way()
        return deepcopy(self.store.lease)

    async def create(self, _: Any, document: Any) -> dict[str, Any]:
        await self._way()
        if self.store.lease is not None:
            raise Conflict("AlreadyExists", "exists")
        return self.store.keep(document)

    async def replace(self, _: Any, document: Any) -> dict[str, Any]:
        await self._way()
        if self.store.lease is None or document["metadata"]["resourceVersion"] != str(self.store.version):
            raise Conflict("Conflict", "modified")
        return self.store.keep(document)


def replica(store: LeaseStore, who: str) -> Leader:
    return Leader(LeaseApi(store, who), "system", who, TIMES, clock=lambda: asyncio.get_running_loop().time())


def now() -> float:
    return asyncio.get_running_loop().time()


def test_times_must_leave_a_write_the_time_to_end() -> None:
    with pytest.raises(ValueError, match="must exceed"):
        Times(duration=12, renew_deadline=10)


def test_one_of_two_leads_and_the_other_waits(on_jumping_time: Run) -> None:
    async def scene() -> None:
        store = LeaseStore()
        first, second = replica(store, "a"), replica(store, "b")
        await first.acquire()
        holding = asyncio.create_task(first.hold())
        waiting = asyncio.create_task(second.acquire())
        await asyncio.sleep(600)
        assert first.leads
        assert not second.leads
        assert not waiting.done()
        assert store.writes <= 600 / TIMES.period + 2
        for task in (holding, waiting):
            task.cancel()
        await asyncio.gather(holding, waiting, return_exceptions=True)

    on_jumping_time(scene())


@pytest.mark.parametrize("cut_after", [0.0, 0.5, 1.7, 2.99, 3.005, 3.02, 4.4, 11.0])
def test_a_cut_off_leader_stops_writing_before_another_begins(on_jumping_time: Run, cut_after: float) -> None:
    async def scene() -> None:
        store = LeaseStore()
        first, second = replica(store, "a"), replica(store, "b")
        await first.acquire()
        holding = asyncio.create_task(first.hold())
        waiting = asyncio.create_task(second.acquire())
        await asyncio.sleep(cut_after)
        store.down.add("a")
        last_write_began = now()
        while not waiting.done():
            if first.leads:
                last_write_began = now()
            await asyncio.sleep(0.01)
        assert not first.leads
        assert last_write_began + WRITE_S < now(), "the last write has ended when the other may begin"
        assert now() < cut_after + TIMES.duration + 2 * TIMES.period
        await asyncio.sleep(TIMES.duration)
        assert holding.done()

    on_jumping_time(scene())


def test_a_short_outage_does_not_end_the_leadership(on_jumping_time: Run) -> None:
    async def scene() -> None:
        store = LeaseStore()
        leader = replica(store, "a")
        await leader.acquire()
        holding = asyncio.create_task(leader.hold())
        await asyncio.sleep(4)
        store.down.add("a")
        await asyncio.sleep(4)
        store.down.clear()
        await asyncio.sleep(60)
        assert not holding.done()
        assert leader.leads
        holding.cancel()
        await asyncio.gather(holding, return_exceptions=True)

    on_jumping_time(scene())


def test_a_released_lease_is_taken_within_one_period(on_jumping_time: Run) -> None:
    async def scene() -> None:
        store = LeaseStore()
        first, second = replica(store, "a"), replica(store, "b")
        await first.acquire()
        waiting = asyncio.create_task(second.acquire())
        await asyncio.sleep(1)
        await first.release()
        assert not first.leads
        released = now()
        await waiting
        assert now() - released <= TIMES.period + 0.1
        assert store.lease is not None
        assert store.lease["spec"]["holderIdentity"] == "b"
        assert store.lease["spec"]["leaseTransitions"] == 1

    on_jumping_time(scene())


def test_a_lease_that_somebody_else_took_is_lost_at_once(on_jumping_time: Run) -> None:
    async def scene() -> None:
        store = LeaseStore()
        leader = replica(store, "a")
        await leader.acquire()
        assert store.lease is not None
        store.keep(store.lease | {"spec": store.lease["spec"] | {"holderIdentity": "thief"}})
        await leader.hold()
        assert not leader.leads
        await leader.release()
        assert store.lease["spec"]["holderIdentity"] == "thief", "what is not ours is not released"

    on_jumping_time(scene())


@pytest.mark.cluster
async def test_the_lease_on_a_real_api_server(cluster: Cluster, namespace: str) -> None:
    configuration = await load_configuration(cluster.kubeconfig)
    async with Api(configuration) as api:
        first, second = (Leader(api, namespace, who, Times(5.5, 1.2, 0.3)) for who in ("a", "b"))
        await first.acquire()
        holding = asyncio.create_task(first.hold())
        waiting = asyncio.create_task(second.acquire())
        await asyncio.sleep(1.5)
        assert first.leads
        assert not waiting.done()
        holding.cancel()
        await asyncio.gather(holding, return_exceptions=True)
        await first.release()
        async with asyncio.timeout(5):
            await waiting
        lease = await api.get(OWN_LEASE, namespace, "hisparse-operator")
        assert lease is not None
        assert lease["spec"]["holderIdentity"] == "b"
        await second.release()
