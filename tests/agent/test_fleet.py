"""Two hundred nodes on a real API server, driven by this one process: what a rack that gets hot may set off.

Each node has the agent's own loop, pool and writer with a session of its own, and the actuator's own code on a folder
that looks like a host. Only time is made up: a tick is one poll of 15 s, and every node has polled, written and acted
before the next. Temperatures follow the caps that are set; the cards are those of the fake NVML.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import fake_power_nvml as nvml
import pytest
from node_readings import POLL_S, changed, healthy

from hisparse.nodes.breaker import ANNOTATION as BREAKER_ANNOTATION
from hisparse.nodes.breaker import LEASE_PREFIX
from hisparse.nodes.in_force import Policy, policy_of
from hisparse.nodes.policy import PLURAL as POLICIES
from hisparse_agent import credentials
from hisparse_agent.actuator.act import Actuator
from hisparse_agent.actuator.hosts import MachineHost
from hisparse_agent.cluster import NodeObject, View, node_object
from hisparse_agent.exchange import read_records, read_wish, write_records
from hisparse_agent.kube import GROUP_PATH, Api, Mirror
from hisparse_agent.loop import Agent
from hisparse_agent.metrics import Metrics
from hisparse_agent.pool import LEASES, PoolLease
from hisparse_agent.publish.conditions import TAINT_KEY
from hisparse_agent.publish.writer import Writer
from hisparse_agent.readings import Absence, Missing, NodeReading, NvLink, Nvml
from hisparse_agent.records import Phase
from hisparse_agent.remedies.slots import SLOTS_ANNOTATION
from hisparse_agent.replay import Recorder, load
from hisparse_testenv.api import MERGE_PATCH, ApiError
from hisparse_testenv.shared import Cluster

NODES = 200
RACK = 60
BUDGET = 20
"""10 % of the nodes."""
FIRST_HOT = 5
LEAVE_POLLS = 4
OF_RATES = (
    *(f"throttle.{cause}" for cause in ("hw_thermal", "sw_thermal", "power_brake", "sw_power")),
    *("nvlink.errors", "pcie.errors", "power.oob", "nvml.latency", "host.swap"),
)
"""Off: each costs every node minutes of readings before it says anything, and none of them is what this is about."""
TOGETHER = 13
TICKS_PER_MINUTE = 60 // POLL_S
DEFAULT = 700_000
NAMESPACE = "default"
WATCHING = ("GET", "WATCH")
THEIRS = {"key": "fleet/test", "effect": "NoSchedule"}
"""So that nothing is placed on these nodes; and a taint of somebody else, which has to stay."""
LIMIT_S = 60.0

WELL, HOT, HOT_AND_WORN = "well", "hot", "hot-and-worn"


class Clock:
    """Time, which passes when the test says so."""

    def __init__(self) -> None:
        self.tick = 0
        self._start = datetime.now(UTC)

    def monotonic(self) -> float:
        return 1000.0 + self.tick * POLL_S

    def now(self) -> datetime:
        return self._start + timedelta(seconds=self.tick * POLL_S)


def one_gpu(poll: int) -> NodeReading:
    """A node of one GPU, so that the test spends its time on the fleet."""
    reading = healthy(poll)
    assert isinstance(reading.nvml, Nvml)
    gpu = replace(reading.nvml.gpus[0], peers={})
    none = Missing(Absence.UNSUPPORTED, "none here")
    return replace(reading, nvml=replace(reading.nvml, gpus=(gpu,)), expected_gpus=1, exporter=none)


def recordings(folder: Path) -> dict[str, NodeReading]:
    """The three states of a node, recorded and played back."""
    links = tuple(NvLink(port, 1 if port < 9 else 0, 26_562_000_000 if port < 9 else 0, 0, 0, 0) for port in range(18))
    heat = {"nvml.gpus.0.heat.margin": 1, "nvml.gpus.0.heat.gpu": 86}
    readings: dict[str, dict[str, Any]] = {WELL: {}, HOT: heat, HOT_AND_WORN: {**heat, "nvml.gpus.0.links": links}}
    recorder = Recorder(folder)
    for edits in readings.values():
        recorder.write(changed(one_gpu(0), edits))
    return dict(zip(readings, load(folder), strict=True))


@dataclass
class Member:
    """One node: what runs on it, and every request that it made, by tick."""

    name: str
    uuid: str
    clock: Clock
    state: Path
    api: Api
    agent: Agent
    writer: Writer
    actuator: Actuator
    writes: Counter[tuple[int, str]]
    due: asyncio.Queue[NodeReading] = field(default_factory=asyncio.Queue)
    task: asyncio.Task[None] | None = None

    async def readings(self) -> AsyncIterator[NodeReading]:
        while True:
            yield await self.due.get()
            self.due.task_done()

    async def polled(self, reading: NodeReading) -> None:
        """One poll, start to end."""
        self.task = self.task or asyncio.create_task(self.agent.run(self))
        self.due.put_nowait(reading)
        done = asyncio.create_task(self.due.join())
        await asyncio.wait([done, self.task], return_when=asyncio.FIRST_COMPLETED)
        if self.task.done():
            self.task.result()
        await done

    def acts(self) -> None:
        self.actuator.poll(read_wish(self.state).content, self.clock.now(), self.clock.monotonic())

    def phases(self) -> list[Phase]:
        found = read_records(self.state, own=False)
        assert not found.fault
        return [record.phase for record in (found.content.records if found.content else ())]

    def written(self, first: int, last: int) -> int:
        """Writes in these ticks."""
        return sum(count for (tick, _), count in self.writes.items() if first <= tick <= last)

    def told(self, first: int, last: int) -> str:
        """Name and writes in these ticks."""
        return f"{self.name} {sorted((tick, what) for tick, what in self.writes if first <= tick <= last)}"


@dataclass
class Fleet:
    """The nodes, what each of them is like, and what the API server says of them."""

    name: str
    cluster: Cluster
    clock: Clock
    played: dict[str, NodeReading]
    cards: Path
    nodes: Mirror[NodeObject]
    policies: Mirror[Policy]
    members: list[Member] = field(default_factory=list)
    like: dict[str, str] = field(default_factory=dict)
    most_at_once: int = 0
    ever_acted: set[str] = field(default_factory=set)

    def view(self, name: str) -> View:
        node = next((one for one in self.nodes.objects if one.name == name), None)
        return View(node=node, pods=(), policies=self.policies.objects if self.policies.synced else None)

    def reading(self, member: Member, moving: NodeReading, cards: dict[str, Any]) -> NodeReading:
        """The recording of its state at this tick; counters move on, and figures tremble as those of a node do."""
        base = self.played[self.like.get(member.name, WELL)]
        assert isinstance(base.nvml, Nvml)
        assert isinstance(moving.nvml, Nvml)
        gpu, now = base.nvml.gpus[0], moving.nvml.gpus[0]
        tremble = self.clock.tick % 3
        gpu = replace(
            gpu,
            uuid=member.uuid,
            heat=replace(gpu.heat, hbm=60 + tremble),
            throttle=now.throttle,
            power=replace(now.power, limit=cards[member.uuid]["limit"], draw=600_000 + tremble),
        )
        return replace(
            base,
            at=self.clock.now(),
            monotonic=self.clock.monotonic(),
            node=member.name,
            nvml=replace(base.nvml, gpus=(gpu,)),
            memory=replace(base.memory, available=base.memory.available - tremble),  # type: ignore[operator]
            host=moving.host,
            pods=(),
        )

    async def ticks(self, count: int, members: list[Member] | None = None) -> None:
        """So many polls of these nodes; of all where none are named."""
        members = members or self.members
        for _ in range(count):
            self.clock.tick += 1
            cards, moving = nvml.read(self.cards), one_gpu(self.clock.tick)
            async with asyncio.timeout(LIMIT_S):
                for batch in batched(members):
                    await asyncio.gather(*(one.polled(self.reading(one, moving, cards)) for one in batch))
                await asyncio.gather(*(one.writer.step() for one in members))
            for member in members:
                member.acts()
            acting = self.capped() | self.tainted()
            self.ever_acted |= acting
            self.most_at_once = max(self.most_at_once, len(acting))
            assert len(acting) <= BUDGET, f"tick {self.clock.tick}: {len(acting)} nodes are acted on"

    async def until(self, holds: Callable[[], bool], what: str, most: int) -> None:
        for _ in range(most):
            if holds():
                return
            await self.ticks(1)
        assert holds(), f"not within {most} polls: {what}"

    def capped(self) -> set[str]:
        """Nodes whose card has another limit than its default, by the card."""
        cards = nvml.read(self.cards)
        return {one.name for one in self.members if cards[one.uuid]["limit"] != DEFAULT}

    def tainted(self) -> set[str]:
        """Nodes with our taint, by the API server."""
        found = self.cluster.control_plane.api.request("GET", f"/api/v1/nodes?labelSelector=fleet%3D{self.name}")
        return {
            one["metadata"]["name"]
            for one in found["items"]
            if any(taint["key"] == TAINT_KEY for taint in one["spec"].get("taints") or ())
        }

    @property
    def lease_path(self) -> str:
        return f"{LEASES}/namespaces/{NAMESPACE}/leases/{LEASE_PREFIX}{self.name}"

    def lease(self, annotation: str) -> Any:
        """What an annotation of the Lease says, None where there is none."""
        lease = self.cluster.control_plane.api.get(self.lease_path) or {"metadata": {}}
        text = (lease["metadata"].get("annotations") or {}).get(annotation)
        return None if text is None else json.loads(text)

    def busiest(self, first: int, last: int) -> tuple[int, str]:
        """The most that one node wrote in these ticks, and what."""
        return max((one.written(first, last), one.told(first, last)) for one in self.members)

    def per_minute(self, first: int, last: int, members: list[Member]) -> float:
        """What a node wrote in a minute, the mean of these."""
        count = sum(one.written(first, last) for one in members)
        return count * TICKS_PER_MINUTE / (last - first + 1) / len(members)


def batched(members: list[Member]) -> Iterator[list[Member]]:
    """Those that poll at one moment. In a cluster the polls of 200 nodes are spread over 15 s, 13 in each."""
    for first in range(0, len(members), TOGETHER):
        yield members[first : first + TOGETHER]


def member(fleet: Fleet, index: int, login: credentials.Credentials, folder: Path) -> Member:
    name, uuid = f"{fleet.name}-{index:03d}", f"GPU-{index:08x}-0000-4000-8000-000000000000"
    clock, writes = fleet.clock, Counter[tuple[int, str]]()

    def seen(verb: str, resource: str, code: str) -> None:
        if verb not in WATCHING:
            writes[clock.tick, f"{verb} {resource} {code}"] += 1

    api = Api(login, seen)
    root, state = folder / name / "root", folder / name / "state"
    boot_id = root / "proc/sys/kernel/random/boot_id"
    boot_id.parent.mkdir(parents=True)
    boot_id.write_text("boot-1\n")
    state.mkdir()
    writer = Writer(api, name, "test", clock=clock.monotonic, now=clock.now)
    agent = Agent(
        name,
        view=partial(fleet.view, name),
        writer=writer,
        pool=PoolLease(api, NAMESPACE, name),
        metrics=Metrics(),
        state=state,
        clock=clock.monotonic,
    )
    actuator = Actuator(MachineHost(root, 30.0), partial(write_records, state), lambda _: None)
    actuator.start(None, clock.now(), clock.monotonic())
    return Member(name, uuid, clock, state, api, agent, writer, actuator, writes)


def create(api: Any, path: str, document: dict[str, Any]) -> None:
    """A type that was made just now is served a moment later."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        try:
            api.request("POST", path, document)
        except ApiError as error:
            if error.status not in (404, 429) or time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return


@pytest.fixture
def named(cluster: Cluster) -> Iterator[str]:
    """Nodes without GPUs for the scheduler, the API types and a policy; their name."""
    name = f"fleet-{secrets.token_hex(3)}"
    root = Path(__file__).parents[2]
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(root / "crds"))
    api = cluster.control_plane.api
    document = {
        "apiVersion": "inference.hisparse.dev/v1alpha1",
        "kind": "HiSparseNodePolicy",
        "metadata": {"name": name},
        "spec": {
            "nodeSelector": {"fleet": name},
            "taint": "NoSchedule",
            "remedies": [{"verb": "power-cap"}],
            "checks": [
                *({"check": check, "leavePolls": LEAVE_POLLS} for check in ("thermal.margin", "nvlink.links")),
                *({"check": check, "enabled": False} for check in OF_RATES),
            ],
            "dryRun": False,
        },
    }
    create(api, f"{GROUP_PATH}/{POLICIES}", document)
    for index in range(NODES):
        meta = {"name": f"{name}-{index:03d}", "labels": {"fleet": name}}
        api.request("POST", "/api/v1/nodes", {"metadata": meta, "spec": {"taints": [THEIRS]}})
    yield name
    for path in (
        f"{GROUP_PATH}/{POLICIES}/{name}",
        f"/api/v1/nodes?labelSelector=fleet%3D{name}",
        f"{LEASES}/namespaces/{NAMESPACE}/leases/{LEASE_PREFIX}{name}",
    ):
        with contextlib.suppress(ApiError):
            api.request("DELETE", path)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one: 200 hosts that replace a file at every poll share one disk here."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="hisparse-fleet-", dir=memory) as name:
        yield Path(name)


@pytest.fixture
async def fleet(named: str, cluster: Cluster, disk: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Fleet]:
    login = credentials.from_kubeconfig(cluster.kubeconfig)
    clock = Clock()
    watching = Api(login)
    found = Fleet(
        named,
        cluster,
        clock,
        recordings(disk / "recording"),
        disk / "nvml",
        Mirror(watching, "/api/v1/nodes", {"labelSelector": f"fleet={named}"}, node_object),
        Mirror(watching, f"{GROUP_PATH}/{POLICIES}", {}, policy_of),
    )
    found.members = [member(found, index, login, disk) for index in range(NODES)]
    for name, value in nvml.install(found.cards, {one.uuid: nvml.card() for one in found.members}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(os, "fsync", lambda _: None)  # a power cut is no part of this test
    mirrors = [asyncio.create_task(one.run()) for one in (found.nodes, found.policies)]
    yield found
    tasks = [*mirrors, *(one.task for one in found.members if one.task is not None)]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.gather(
        watching.__aexit__(None, None, None), *(one.api.__aexit__(None, None, None) for one in found.members)
    )


@pytest.mark.chaos
@pytest.mark.cluster
@pytest.mark.timeout(900)
async def test_a_hot_rack_trips_the_breaker_within_the_budget_and_all_is_put_back(fleet: Fleet) -> None:
    clock, rack = fleet.clock, fleet.members[:RACK]
    async with asyncio.timeout(LIMIT_S):
        while not (len(fleet.nodes.objects) == NODES and fleet.policies.synced):  # noqa: ASYNC110 - watches tell nobody
            await asyncio.sleep(0.05)

    # once all has been told nothing changes but figures
    await fleet.ticks(8)
    steady = clock.tick + 1
    await fleet.ticks(20)
    for start in range(steady, clock.tick - TICKS_PER_MINUTE + 2):
        most, name = fleet.busiest(start, start + TICKS_PER_MINUTE - 1)
        assert most <= 1, f"{name} wrote {most} times in the minute from tick {start}"
    sys.stdout.write(f"healthy: {fleet.per_minute(steady, clock.tick, fleet.members):.2f} writes a node and minute\n")
    assert all(one.written(steady, clock.tick) > 0 for one in fleet.members), "each still says that it lives"

    # the first nodes get hot, and are helped
    for one in rack[:FIRST_HOT]:
        fleet.like[one.name] = HOT
    await fleet.until(lambda: len(fleet.capped()) == FIRST_HOT, "the first are capped", 8)
    assert fleet.lease(BREAKER_ANNOTATION) is None

    # the whole rack does, and half of it loses links as well, which asks for a taint
    for place, one in enumerate(rack):
        fleet.like[one.name] = HOT_AND_WORN if place % 2 else HOT
    await fleet.until(lambda: fleet.lease(BREAKER_ANNOTATION) is not None, "the breaker is open", 12)
    opened = fleet.lease(BREAKER_ANNOTATION)
    assert opened["nodes"] * 100 >= 20 * NODES
    await fleet.ticks(4)
    acted = set(fleet.ever_acted)
    steady = clock.tick + 1
    # the others have nothing to do with it, and were counted before
    await fleet.ticks(40, rack)
    mean = fleet.per_minute(steady, clock.tick, rack)
    sys.stdout.write(f"rack with an open breaker: {mean:.2f} writes a node and minute\n")
    assert fleet.ever_acted == acted, "an open breaker lets nothing begin"
    assert acted <= {one.name for one in rack}
    assert FIRST_HOT < fleet.most_at_once <= BUDGET
    most, what = fleet.busiest(steady, clock.tick)
    assert most <= 40 / TICKS_PER_MINUTE, f"{what}: {most} writes in 10 minutes of an open breaker"

    # it is over
    fleet.like.clear()
    await fleet.until(lambda: not fleet.capped() and not fleet.tainted(), "all is put back", LEAVE_POLLS + 4)
    await fleet.until(lambda: not fleet.lease(SLOTS_ANNOTATION), "the slots are given back", 4)
    phases = Counter(phase for one in fleet.members for phase in one.phases())
    assert set(phases) == {Phase.REVERTED}
    assert phases[Phase.REVERTED] >= FIRST_HOT
    live = fleet.cluster.control_plane.api.request("GET", f"/api/v1/nodes?labelSelector=fleet%3D{fleet.name}")["items"]
    assert all(any(taint["key"] == THEIRS["key"] for taint in one["spec"]["taints"]) for one in live)

    # only a person closes the breaker, and then it stays closed
    assert fleet.lease(BREAKER_ANNOTATION) == opened
    gone = {"metadata": {"annotations": {BREAKER_ANNOTATION: None}}}
    fleet.cluster.control_plane.api.request("PATCH", fleet.lease_path, gone, MERGE_PATCH)
    steady = clock.tick + 1
    await fleet.ticks(8)
    assert fleet.lease(BREAKER_ANNOTATION) is None
    most, name = fleet.busiest(steady, clock.tick)
    assert most <= 8 / TICKS_PER_MINUTE, f"{name} wrote {most} times in 2 minutes after it"
