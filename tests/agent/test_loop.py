"""The agent's loop, pool and writer against an API server in memory that can be told to fail."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import structlog
from node_readings import changed, healthy
from remedy_shapes import BOOT, CAP, policy

from hisparse.errors import Transient
from hisparse.nodes.breaker import ANNOTATION as BREAKER_ANNOTATION
from hisparse.nodes.catalogue import Verb
from hisparse.nodes.in_force import Policy
from hisparse_agent import exchange
from hisparse_agent.cluster import NodeObject, View
from hisparse_agent.kube import CONFLICT, NOT_FOUND, Conflict, Refused
from hisparse_agent.loop import UNSURE_S, Agent
from hisparse_agent.metrics import Metrics
from hisparse_agent.pool import LEASES, PoolLease
from hisparse_agent.publish.conditions import TAINT_KEY
from hisparse_agent.publish.events import Notice
from hisparse_agent.publish.report import Report
from hisparse_agent.publish.writer import NOTE_ANNOTATION, Publication, Writer
from hisparse_agent.records import NO_LONGER_WANTED, Phase, Record, Records, Wanted
from hisparse_agent.remedies.slots import CRITICAL_ANNOTATION, SLOTS_ANNOTATION

if TYPE_CHECKING:
    from pathlib import Path

    from hisparse_agent.readings import NodeReading

NODE = "/api/v1/nodes/n"
REPORT = "/apis/inference.hisparse.dev/v1alpha1/hisparsenodes/n"
LEASE = f"{LEASES}/namespaces/ns/leases/hisparse-pool-p"
POLL_S = 15
HOT: Mapping[str, Any] = {"nvml.gpus.0.heat.margin": 1, "nvml.gpus.0.heat.gpu": 86}
WORN: Mapping[str, Any] = {"nvml.gpus.0.faults.remap_failed": True}
AWAY = Transient("away", retry_seconds=0)


class Server:
    """Objects by path. down: requests that begin so fail."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.events: list[dict[str, Any]] = []
        self.down: dict[str, Exception] = {}
        self._version = 0
        self.new_node("first")

    def new_node(self, uid: str) -> None:
        self.put(NODE, {"metadata": {"name": "n", "uid": uid}, "spec": {}, "status": {}})

    def put(self, path: str, document: Mapping[str, Any]) -> dict[str, Any]:
        self._version += 1
        found: dict[str, Any] = json.loads(json.dumps(document))
        found["metadata"]["resourceVersion"] = str(self._version)
        self.objects[path] = found
        return found

    def annotations(self, path: str) -> dict[str, str]:
        return self.objects[path]["metadata"].get("annotations") or {}

    def reasons(self) -> list[str]:
        return [one["reason"] for one in self.events]

    async def get(self, path: str) -> dict[str, Any] | None:
        try:
            return await self.send("GET", path)
        except Refused as refused:
            if refused.status == NOT_FOUND:
                return None
            raise

    async def send(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        content: str = "",
        query: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        del content, query
        for beginning, error in self.down.items():
            if f"{method} {path}".startswith(beginning):
                raise error
        if path.startswith("/api/v1/nodes?"):
            return {"items": [{}] * 200, "metadata": {}}
        place = path.removesuffix("/status")
        if method == "POST":
            return self._made(path, dict(body or {}))
        if place not in self.objects:
            raise Refused(NOT_FOUND, "NotFound", path)
        if method == "PATCH":
            version = ((body or {}).get("metadata") or {}).get("resourceVersion")
            if version and version != self.objects[place]["metadata"]["resourceVersion"]:
                raise Conflict(f"{CONFLICT}", retry_seconds=0)
            self.put(place, merged(self.objects[place], body))
        found: dict[str, Any] = json.loads(json.dumps(self.objects[place]))
        return found

    def _made(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        if not path.endswith("/events"):
            return self.put(f"{path}/{body['metadata']['name']}", body)
        if any(one["metadata"]["name"] == body["metadata"]["name"] for one in self.events):
            raise Conflict(f"{CONFLICT}", retry_seconds=0)
        self.events.append(body)
        return body


def merged(old: Any, new: Any) -> Any:
    """What a merge patch makes."""
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        return new
    both = {**old, **{key: merged(old.get(key, {}), value) for key, value in new.items()}}
    return {key: value for key, value in both.items() if value is not None}


class Time:
    """It passes when the test says so."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def clock(self) -> float:
        return self.seconds

    def now(self) -> datetime:
        return datetime(2026, 11, 30, 12, tzinfo=UTC) + timedelta(seconds=self.seconds)


class World:
    """One agent. Its actuator's records are written by hand, and its Node and policy are seen at once."""

    def __init__(self, folder: Path, server: Server, time: Time) -> None:
        self.folder, self.server, self.time = folder, server, time
        self.policies: tuple[Policy, ...] | None = ()
        self.knows_node = True
        self.records: tuple[Record, ...] = ()
        self.agent = Agent(
            "n",
            view=self.view,
            writer=Writer(server, "n", "v", clock=time.clock, now=time.now),
            pool=PoolLease(server, "ns", "n"),
            metrics=Metrics(),
            state=folder,
            clock=time.clock,
        )
        writer = self.agent._writer
        assert writer is not None
        self.writer = writer

    def view(self) -> View:
        live = self.server.objects[NODE]
        taints = tuple(live["spec"].get("taints") or ())
        notes = live["metadata"].get("annotations") or {}
        node = NodeObject("n", live["metadata"]["uid"], {}, notes, taints, (), unschedulable=False, gpus=2)
        return View(node=node if self.knows_node else None, pods=(), policies=self.policies)

    async def polls(self, count: int, edits: Mapping[str, Any] = {}) -> None:
        for _ in range(count):
            self.time.seconds += POLL_S
            exchange.write_records(self.folder, Records(self.time.now(), self.records))
            await self.agent.poll(self.reading(edits))
            await self.writer.step()

    def reading(self, edits: Mapping[str, Any]) -> NodeReading:
        found: NodeReading = changed(healthy(int(self.time.seconds) // POLL_S), edits)
        return replace(found, at=self.time.now(), monotonic=self.time.seconds)

    def wish(self) -> tuple[Wanted, ...]:
        found = exchange.read_wish(self.folder).content
        assert found is not None
        return found.actions

    def told(self, reason: str) -> list[str]:
        return [one["message"] for one in self.server.events if one["reason"] == reason]

    def annotate(self, path: str, **annotations: str | None) -> None:
        both = {f"inference.hisparse.dev/{name}": text for name, text in annotations.items()}
        self.server.put(path, merged(self.server.objects[path], {"metadata": {"annotations": both}}))

    def taints(self) -> list[str]:
        return [one["key"] for one in self.server.objects[NODE]["spec"].get("taints") or ()]


def under(name: str = "p", **rest: Any) -> tuple[Policy, ...]:
    return (Policy(name, "2026-01-01T00:00:00Z", spec=policy(CAP, **rest)),)


async def world(folder: Path, policies: tuple[Policy, ...] | None = None, *, like: World | None = None) -> World:
    """An agent that knows what the last run left; like: another run on the same node."""
    found = World(folder, like.server if like else Server(), like.time if like else Time())
    found.policies = policies
    found.records = like.records if like else ()
    await found.agent._seed()
    return found


def capped(at: datetime) -> Record:
    return Record(
        "power-cap-thermal.margin-x", Verb.POWER_CAP, "GPU-0", "700000", "630000", "thermal.margin gpu-0: hot", "thermal.margin", "p",
        at, 24 * 3600, BOOT, Phase.IN_FORCE,
    )  # fmt: skip


# --- the writer ------------------------------------------------------------------------------------------------------


async def test_events_of_one_poll_are_all_posted() -> None:
    server, time = Server(), Time()
    writer = Writer(server, "n", "v", clock=time.clock, now=time.now)
    writer.publish(Publication(Report()), tuple(Notice("Normal", f"R{index}", "m") for index in range(5)))
    await writer.step()
    assert server.reasons() == ["R0", "R1", "R2", "R3", "R4"]


async def test_the_note_is_written_again_after_the_report_was_deleted() -> None:
    server, time = Server(), Time()
    writer = Writer(server, "n", "v", clock=time.clock, now=time.now)
    await writer.published()
    for poll in range(12):
        if poll == 4:
            assert server.annotations(REPORT)[NOTE_ANNOTATION] == "mutes"
            del server.objects[REPORT]
        writer.publish(Publication(Report(), note="mutes"))
        await writer.step()
        time.seconds += 100
    assert server.annotations(REPORT)[NOTE_ANNOTATION] == "mutes"


# --- starting again --------------------------------------------------------------------------------------------------


async def test_an_agent_that_starts_again_tells_of_no_action_twice(tmp_path: Path) -> None:
    first = await world(tmp_path, under())
    await first.polls(10, HOT)
    (action,) = first.wish()
    (change,) = action.changes
    first.records = (replace(capped(first.time.now()), action=action.id, new=change.new),)
    await first.polls(10, HOT)
    assert first.server.reasons().count("RemedyInForce") == 1
    again = await world(tmp_path, under(), like=first)
    await again.polls(3, HOT)
    assert again.server.reasons().count("RemedyInForce") == 1
    assert [one.id for one in again.wish()] == [action.id]
    again.records = tuple(replace(one, phase=Phase.REVERTED, ended=again.time.now()) for one in again.records)
    await again.polls(10, HOT)
    assert again.server.reasons().count("RemedyReverted") == 1


async def test_a_node_that_is_not_known_yet_is_none_without_a_policy(tmp_path: Path) -> None:
    found = await world(tmp_path, under())
    found.records = (capped(found.time.now()),)
    found.knows_node = False
    await found.polls(2, HOT)
    assert [one.id for one in found.wish()] == [found.records[0].action]
    found.policies, found.knows_node = (), True
    await found.polls(1, HOT)
    assert found.wish() == ()


async def test_what_cleared_is_put_back_though_the_api_server_is_away_since_the_start(tmp_path: Path) -> None:
    found = World(tmp_path, Server(), Time())
    found.policies = None
    found.records = (capped(found.time.now()),)
    await found.polls(2, HOT)
    assert found.wish()
    await found.polls(2)
    assert found.wish() == ()


async def test_nobody_goes_on_for_ever_with_a_slot_that_may_be_another_nodes(tmp_path: Path) -> None:
    found = await world(tmp_path, under())
    found.server.down[f"GET {LEASE}"] = AWAY
    found.records = (capped(found.time.now()),)
    before = int(UNSURE_S) // POLL_S
    await found.polls(before, HOT)
    assert found.wish()
    await found.polls(2, HOT)
    assert found.wish() == ()


async def test_a_note_with_a_time_without_a_zone_is_none(tmp_path: Path) -> None:
    server = Server()
    note = json.dumps([{"check": "thermal.margin", "until": "2027-01-01T00:00:00", "why": "x"}])
    server.put(REPORT, {"metadata": {"name": "n", "annotations": {NOTE_ANNOTATION: note}}})
    found = World(tmp_path, server, Time())
    found.policies = under()
    await found.agent._seed()
    await found.polls(10, HOT)
    assert found.wish()


# --- the pool --------------------------------------------------------------------------------------------------------


async def test_nodes_that_cannot_be_counted_open_no_breaker(tmp_path: Path) -> None:
    found = await world(tmp_path, under())
    marks = json.dumps([{"node": "other", "at": found.time.now().isoformat()}])
    found.server.put(LEASE, {"metadata": {"name": "x", "annotations": {CRITICAL_ANNOTATION: marks}}})
    found.server.down["GET /api/v1/nodes?"] = AWAY
    await found.polls(10, HOT)
    assert {one["node"] for one in json.loads(found.server.annotations(LEASE)[CRITICAL_ANNOTATION])} == {"n", "other"}
    assert BREAKER_ANNOTATION not in found.server.annotations(LEASE)
    assert found.wish(), "and the least budget is one node"


async def test_a_taint_that_cannot_be_removed_keeps_its_slot(tmp_path: Path) -> None:
    found = await world(tmp_path, under(taint="NoSchedule"))
    await found.polls(3, WORN)
    assert found.taints() == [TAINT_KEY]
    found.server.down[f"PATCH {NODE}"] = Refused(403, "Forbidden", "a webhook says no")
    await found.polls(30)
    assert found.taints() == [TAINT_KEY]
    assert [one["node"] for one in json.loads(found.server.annotations(LEASE)[SLOTS_ANNOTATION])] == ["n"]
    found.server.down.clear()
    await found.polls(10)
    assert found.taints() == []
    assert SLOTS_ANNOTATION not in found.server.annotations(LEASE)


async def test_a_node_that_was_made_again_gets_the_taint_again_and_mutes_nothing(tmp_path: Path) -> None:
    found = await world(tmp_path, under(taint="NoSchedule"))
    await found.polls(3, WORN)
    assert found.taints() == [TAINT_KEY]
    found.server.new_node("second")
    await found.polls(2, WORN)
    assert found.agent._mutes == ()
    await found.polls(20, WORN)
    assert found.taints() == [TAINT_KEY]


# --- what is told of it ----------------------------------------------------------------------------------------------


async def test_a_taint_that_is_refused_is_told_once_with_the_next_step(tmp_path: Path) -> None:
    found = await world(tmp_path, under(taint="NoSchedule"))
    found.server.put(LEASE, {"metadata": {"name": "x", "annotations": {BREAKER_ANNOTATION: "stop"}}})
    await found.polls(10, WORN)
    assert found.taints() == []
    (message,) = found.told("TaintRefused")
    assert "kubectl annotate lease -n ns hisparse-pool-p inference.hisparse.dev/breaker-" in message
    found.annotate(LEASE, breaker=None)
    await found.polls(2, WORN)
    assert found.taints() == [TAINT_KEY]


async def test_a_person_who_takes_the_taint_off_is_told_how_to_undo_it(tmp_path: Path) -> None:
    found = await world(tmp_path, under(taint="NoSchedule"))
    await found.polls(6, WORN)
    assert found.taints() == [TAINT_KEY]
    found.server.put(NODE, {**found.server.objects[NODE], "spec": {}})
    await found.polls(10, WORN)
    assert found.taints() == []
    (message,) = found.told("Muted")
    assert "unmute=" in message
    assert found.told("TaintRemoved") == []
    found.annotate(NODE, unmute="all")
    await found.polls(2, WORN)
    assert found.taints() == [TAINT_KEY]
    assert found.agent._mutes == ()


async def test_a_mute_of_the_last_run_is_not_told_again(tmp_path: Path) -> None:
    first = await world(tmp_path, under(taint="NoSchedule"))
    await first.polls(6, WORN)
    first.server.put(NODE, {**first.server.objects[NODE], "spec": {}})
    await first.polls(10, WORN)
    again = await world(tmp_path, under(taint="NoSchedule"), like=first)
    await again.polls(10, WORN)
    assert len(again.told("Muted")) == 1


async def test_a_change_that_nobody_puts_back_is_told_once(tmp_path: Path) -> None:
    found = await world(tmp_path, under())
    found.records = (replace(capped(found.time.now()), phase=Phase.REVERT_FAILED, message="NVML says no"),)
    await found.polls(5)
    assert len(found.told("PutBackFailed")) == 1
    found.records = ()
    await found.polls(2)
    found.records = (replace(capped(found.time.now()), phase=Phase.REVERT_FAILED, message="NVML says no"),)
    await found.polls(2)
    assert len(found.told("PutBackFailed")) == 2


async def test_the_reason_of_putting_back_is_told(tmp_path: Path) -> None:
    found = await world(tmp_path, under())
    found.records = (capped(found.time.now()),)
    await found.polls(3, HOT)
    found.policies = ()
    await found.polls(2, HOT)
    now = found.time.now()
    found.records = tuple(
        replace(one, phase=Phase.REVERTED, message=NO_LONGER_WANTED, ended=now) for one in found.records
    )
    await found.polls(2, HOT)
    (message,) = found.told("RemedyReverted")
    assert "the policy p is gone" in message
    assert "700 W after 630 W" in message


async def test_faults_are_in_the_log_of_an_agent_without_a_cluster() -> None:
    agent = Agent("n", view=View, writer=None, pool=None, metrics=Metrics())
    with structlog.testing.capture_logs() as lines:
        for poll in range(6):
            await agent.poll(changed(healthy(poll), WORN))
    (line,) = [one for one in lines if one.get("reason") == "RowRemap"]
    assert line["log_level"] == "warning"
    assert "gpu-0" in line["event"]
