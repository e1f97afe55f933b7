"""A policy that cannot be used: the agent does nothing under it, keeps the catalogue's thresholds, and says so."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from node_readings import changed, healthy
from structlog.testing import capture_logs

from hisparse.nodes.in_force import policy_of
from hisparse_agent import exchange
from hisparse_agent.cluster import NodeObject, View
from hisparse_agent.loop import Agent
from hisparse_agent.metrics import Metrics
from hisparse_agent.pool import PoolLease
from hisparse_agent.publish import report
from hisparse_agent.publish.report import Report
from hisparse_agent.publish.writer import Left, Publication
from hisparse_agent.records import Records, Wanted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from hisparse_agent.publish.events import Notice

POLL_S = 15
BEGUN = datetime(2026, 11, 30, 12, tzinfo=UTC)
HOT = {"nvml.gpus.0.heat.margin": 1, "nvml.gpus.0.heat.gpu": 86}
WARM = {"nvml.gpus.0.heat.margin": 20}
WORN = {"nvml.gpus.0.faults.remap_failed": True}
ACTS: dict[str, Any] = {"remedies": [{"verb": "power-cap"}], "taint": "NoSchedule", "dryRun": False}
NO_CHECK: dict[str, Any] = {**ACTS, "remedies": [{"verb": "power-cap"}, {"verb": "sysctl", "checks": []}]}
TOUCHY: dict[str, Any] = {**ACTS, "checks": [{"check": "thermal.margin", "warn": "30", "critical": "25"}]}
TOUCHY_AND_WRONG: dict[str, Any] = {**TOUCHY, "checks": [*TOUCHY["checks"], {"check": "thermal.hmb", "warn": "80"}]}


class Leases:
    """An API server that has the Lease of a pool and two nodes."""

    lease: dict[str, Any] | None = None

    async def get(self, path: str) -> dict[str, Any] | None:
        assert "/leases/" in path
        return self.lease

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
        if path.startswith("/api/v1/nodes?"):
            return {"items": [{}, {}], "metadata": {}}
        assert method in ("POST", "PATCH")
        annotations = {**((self.lease or {"metadata": {}})["metadata"].get("annotations") or {})}
        annotations |= (body or {})["metadata"].get("annotations") or {}
        kept = {key: text for key, text in annotations.items() if text is not None}
        self.lease = {"metadata": {"resourceVersion": "1", "annotations": kept}}
        return self.lease


class Told:
    """A writer that remembers what it was given last."""

    last: Publication | None = None

    async def published(self) -> Left:
        return Left(known={}, actions=(), note="", conditions=(), taint=None)

    def publish(self, what: Publication, notices: Iterable[Notice] = ()) -> None:
        del notices
        self.last = what


class Node:
    """One agent and the policies that it sees."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.told, self.polled = folder, Told(), 0
        self.policies: tuple[dict[str, Any], ...] = ()
        self.agent = Agent(
            "n",
            view=self.view,
            writer=self.told,  # type: ignore[arg-type]  # as far as it is asked
            pool=PoolLease(Leases(), "ns", "n"),
            metrics=Metrics(),
            state=folder,
            clock=lambda: self.polled * POLL_S,
        )

    def view(self) -> View:
        node = NodeObject("n", "uid", {"tier": "gold"}, {}, (), (), unschedulable=False, gpus=2)
        return View(node=node, pods=(), policies=tuple(policy_of(one) for one in self.policies))

    async def polls(self, count: int, edits: Mapping[str, Any]) -> None:
        await self.agent._seed()
        for _ in range(count):
            self.polled += 1
            now = BEGUN + timedelta(seconds=self.polled * POLL_S)
            exchange.write_records(self.folder, Records(now, ()))
            reading = changed(healthy(self.polled), {**edits, "at": now, "monotonic": float(self.polled * POLL_S)})
            await self.agent.poll(reading)

    @property
    def wish(self) -> tuple[Wanted, ...]:
        found = exchange.read_wish(self.folder).content
        return found.actions if found else ()

    @property
    def report(self) -> Report:
        assert self.told.last is not None
        return self.told.last.report

    @property
    def tainted(self) -> bool:
        return self.told.last is not None and self.told.last.taint is not None

    def state(self, check: str) -> str:
        return next(one.state for one in self.report.findings if (one.check, one.subject) == (check, "gpu-0"))


def document(name: str, spec: Mapping[str, Any], created: int = 0) -> dict[str, Any]:
    meta = {"name": name, "creationTimestamp": f"2026-11-30T10:00:{created:02}Z"}
    return {"metadata": meta, "spec": {"nodeSelector": {"tier": "gold"}, **spec}}


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


async def test_with_one_that_can_be_used_it_acts(node: Node) -> None:
    """What the tests below rest on."""
    node.policies = (document("p", ACTS),)
    await node.polls(10, {**HOT, **WORN})
    assert [one.verb for one in node.wish] == ["power-cap"]
    assert node.tainted
    assert (node.report.policy, node.report.refused) == ("p", "")


async def test_nothing_of_it_is_done_not_even_what_is_sound(node: Node) -> None:
    node.policies = (document("p", NO_CHECK),)
    with capture_logs() as logs:
        await node.polls(10, {**HOT, **WORN})
    assert (node.wish, node.tainted) == ((), False)
    assert node.report.policy is None
    assert "the HiSparseNodePolicy p cannot be used: spec.remedies[1].checks: names no check" in node.report.refused
    assert [one["event"] for one in logs if one["log_level"] == "warning"].count("policy not used") == 1


async def test_its_thresholds_are_not_used_either(node: Node) -> None:
    node.policies = (document("p", TOUCHY),)
    await node.polls(10, WARM)
    assert (node.state("thermal.margin"), len(node.wish)) == ("Critical", 1)
    node.policies = (document("p", TOUCHY_AND_WRONG),)
    await node.polls(60, WARM)
    assert (node.state("thermal.margin"), node.wish) == ("Ok", ())


async def test_an_edit_that_breaks_it_puts_back_and_one_that_mends_it_acts_again(node: Node) -> None:
    node.policies = (document("p", ACTS),)
    await node.polls(10, {**HOT, **WORN})
    assert node.wish
    assert node.tainted
    node.policies = (document("p", NO_CHECK),)
    await node.polls(1, {**HOT, **WORN})
    assert (node.wish, node.tainted) == ((), False)
    node.policies = (document("p", ACTS),)
    await node.polls(1, {**HOT, **WORN})
    assert node.tainted
    assert node.report.refused == ""


async def test_a_younger_one_does_not_act_in_its_place(node: Node) -> None:
    node.policies = (document("young", ACTS, 9), document("broken", NO_CHECK, 1))
    await node.polls(10, {**HOT, **WORN})
    assert (node.wish, node.tainted) == ((), False)
    assert "HiSparseNodePolicy broken" in node.report.refused
    node.policies = (document("young", ACTS, 9),)
    await node.polls(1, {**HOT, **WORN})
    assert node.tainted, "when it is gone the other one is in force"


async def test_a_policy_that_a_finalizer_holds_is_gone_all_the_same(node: Node) -> None:
    node.policies = (document("p", ACTS),)
    await node.polls(10, {**HOT, **WORN})
    assert node.wish
    node.policies[0]["metadata"]["deletionTimestamp"] = "2026-11-30T12:00:00Z"
    await node.polls(1, {**HOT, **WORN})
    assert (node.wish, node.tainted, node.report.policy) == ((), False, None)


def test_the_report_says_so_in_a_condition_that_goes_with_the_fault() -> None:
    now = datetime(2026, 11, 30, 12, tzinfo=UTC)
    told = Report(refused="because of that")
    found = report.document(told, before={}, version="v", now=now)
    (condition,) = [one for one in found["conditions"] if one["type"] == "PolicyAccepted"]
    assert (condition["status"], condition["reason"], condition["message"]) == (
        "False",
        "InvalidSpec",
        "because of that",
    )
    again = report.document(told, before=found, version="v", now=now + timedelta(hours=1))
    assert again["conditions"][-1]["lastTransitionTime"] == condition["lastTransitionTime"]
    assert "PolicyAccepted" not in str(report.document(Report(), before=found, version="v", now=now))
    assert told.urgent != Report().urgent, "others are told at once"
