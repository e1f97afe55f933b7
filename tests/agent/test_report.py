"""The status of HiSparseNode: what it says, and when two of them say the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from node_readings import Watch, changed, healthy

from hisparse.nodes.catalogue import Verb
from hisparse.nodes.checks import BY_ID
from hisparse.nodes.findings import Finding, State
from hisparse.nodes.report import MOST_ACTIONS, MOST_FINDINGS, HiSparseNodeStatus
from hisparse_agent.publish import conditions, report
from hisparse_agent.publish.conditions import Patient
from hisparse_agent.publish.report import Report
from hisparse_agent.publish.writer import Publication, Writer
from hisparse_agent.readings import Absence, Missing
from hisparse_agent.records import ACTUATOR_SILENT, Change, Phase, Record, Records, Wanted

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)


def found(
    check: str, state: State, subject: str = "gpu-0", *, message: str = "m", value: str | None = None, reason: str = ""
) -> Finding:
    return Finding(check, subject, state, reason or f"{state.value}Reason", message, NOW, value, "2", "celsius")


def test_faults_come_first_and_the_worst_is_the_state() -> None:
    findings = (
        found("a", State.OK),
        found("b", State.UNSUPPORTED),
        found("c", State.UNKNOWN),
        found("d", State.WARN),
        found("e", State.CRITICAL),
        found("a", State.CRITICAL, "gpu-1"),
    )
    status = report.document(Report(findings), before={}, version="1", now=NOW)
    assert [(one["check"], one["subject"]) for one in status["findings"]] == [
        ("a", "gpu-1"), ("e", "gpu-0"), ("d", "gpu-0"), ("c", "gpu-0"), ("a", "gpu-0"), ("b", "gpu-0"),
    ]  # fmt: skip
    assert (status["state"], status["faults"]) == ("Critical", 3)
    assert status["observedAt"] == "2026-11-29T12:00:00Z"
    HiSparseNodeStatus.model_validate(status)


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        pytest.param({"value": "53", "message": "53 C"}, True, id="a figure moves"),
        pytest.param({"state": State.WARN}, False, id="a state changes"),
        pytest.param({"reason": "Other"}, False, id="a reason changes"),
        pytest.param({"subject": "gpu-1"}, False, id="another subject"),
    ],
)
def test_two_reports_differ_by_what_they_say_and_not_by_their_figures(changes: dict[str, object], same: bool) -> None:
    before = Report((found("thermal.margin", State.OK, value="52", message="52 C"),))
    after = Report((replace(before.findings[0], **changes),))  # type: ignore[arg-type]
    assert (before.essence == after.essence) is same


def test_a_fault_that_comes_or_goes_is_urgent_and_a_reason_of_something_unread_is_not() -> None:
    quiet = Report((found("a", State.OK), found("b", State.UNKNOWN)))
    assert quiet.urgent == Report((found("a", State.OK), found("b", State.OK))).urgent
    assert quiet.urgent != Report((found("a", State.WARN), found("b", State.UNKNOWN))).urgent


def test_a_status_fits_its_schema_however_much_there_is_to_say() -> None:
    findings = tuple(found("c", State.OK, f"gpu-{number}", message="x" * 5000) for number in range(MOST_FINDINGS + 5))
    findings += (found("bad", State.CRITICAL),)
    status = report.document(Report(findings), before={}, version="1", now=NOW)
    assert len(status["findings"]) == MOST_FINDINGS
    assert status["findings"][0]["check"] == "bad"
    assert max(len(one["message"]) for one in status["findings"]) <= report.MESSAGE_LIMIT
    assert len(HiSparseNodeStatus.model_validate(status).findings or ()) == MOST_FINDINGS


@pytest.mark.parametrize(
    ("states", "status", "reason"),
    [
        pytest.param((State.OK,), "True", "NoFault", id="all well"),
        pytest.param((State.OK, State.UNKNOWN), "True", "NoFault", id="one sensor is silent"),
        pytest.param((State.OK, State.WARN), "True", "WarnReason", id="a warning is no fault of health"),
        pytest.param((State.OK, State.CRITICAL), "False", "CriticalReason", id="critical"),
        pytest.param((State.UNKNOWN, State.UNSUPPORTED), "Unknown", "UnknownReason", id="nothing was read"),
        pytest.param((State.UNSUPPORTED,), "Unknown", "NothingToJudge", id="nothing is there"),
        pytest.param((), "Unknown", "NothingToJudge", id="no finding"),
    ],
)
def test_not_to_know_is_not_to_be_healthy(states: tuple[State, ...], status: str, reason: str) -> None:
    findings = tuple(found(f"c{number}", state) for number, state in enumerate(states))
    document = report.document(Report(findings), before={}, version="1", now=NOW)
    healthy_now = next(one for one in document["conditions"] if one["type"] == "Healthy")
    assert (healthy_now["status"], healthy_now["reason"]) == (status, reason)


def health(findings: tuple[Finding, ...], before: dict[str, object] | None = None, *, waits: bool = False) -> list[str]:
    document = report.document(Report(findings, waits=waits), before=before or {}, version="1", now=NOW)
    said = {one["type"]: one for one in document["conditions"]}
    return [said["Healthy"]["status"], said["Healthy"]["reason"], said["Observed"]["status"]]


def test_what_decides_and_is_not_known_is_not_healthy() -> None:
    well = (found("gpu.lost", State.OK), found("xid", State.OK))
    blind = (found("gpu.count", State.UNKNOWN, "host", reason="NotRead"), *well)
    assert health(well) == ["True", "NoFault", "True"]
    assert health(blind) == ["Unknown", "NotRead", "False"]
    assert health((*blind, found("thermal.hbm", State.WARN)))[0] == "Unknown"
    assert health((*blind, found("thermal.hbm", State.CRITICAL)))[0] == "False"
    before = report.document(Report(well), before={}, version="1", now=NOW)
    assert health(blind, before, waits=True)[:2] == ["True", "NoFault"], "a moment changes nothing"
    assert health(blind, before)[:2] == ["Unknown", "NotRead"]
    assert health((*blind, found("xid", State.CRITICAL, "gpu-1")), before, waits=True)[0] == "False"
    assert Report(blind, waits=True).essence != Report(blind).essence, "when the moment is over that is news"


def test_the_time_of_a_condition_moves_with_its_status_only() -> None:
    later = NOW + timedelta(minutes=5)
    first = report.document(Report((found("a", State.OK),)), before={}, version="1", now=NOW)
    warned = report.document(Report((found("a", State.WARN),)), before=first, version="1", now=later)
    bad = report.document(Report((found("a", State.CRITICAL),)), before=warned, version="1", now=later)
    times = [one["conditions"][0]["lastTransitionTime"] for one in (first, warned, bad)]
    assert times == [report.stamp(NOW), report.stamp(NOW), report.stamp(later)]


def test_what_cannot_be_read_and_what_is_muted_is_told() -> None:
    document = report.document(
        Report((), unread=("NVML: no answer",), muted=("thermal.margin until then: somebody",)),
        before={},
        version="1",
        now=NOW,
    )
    told = {one["type"]: (one["status"], one["message"]) for one in document["conditions"]}
    assert told["Observed"] == ("False", "could not be read: NVML: no answer")
    assert told["Muted"] == ("True", "thermal.margin until then: somebody")


def test_the_inventory_of_a_node() -> None:
    inventory = report.inventory_of(healthy())
    assert inventory.driver == "580.159.04"
    assert inventory.host_memory == "2048Gi"
    assert inventory.host_memory_by_numa == ["1024Gi", "1024Gi"]
    assert inventory.gpus is not None
    first, second = inventory.gpus
    assert (first.index, first.uuid, first.nvlinks, first.pci_gen, first.pci_width, first.numa_node) == (
        0, "GPU-0", 18, 5, 16, 0,
    )  # fmt: skip
    assert second.index == 1


def test_the_inventory_says_the_same_from_poll_to_poll() -> None:
    assert report.inventory_of(healthy(0)) == report.inventory_of(healthy(9))
    slow = changed(healthy(), {"nvml.gpus.0.pcie.generation": 1, "memory.total": 2048 * 2**30 + 4096})
    assert report.inventory_of(slow) == report.inventory_of(healthy())


def test_gpus_that_were_there_stay_in_the_inventory_while_nvml_is_silent() -> None:
    before = report.inventory_of(healthy())
    silent = changed(healthy(), {"nvml": Missing(Absence.UNKNOWN, "no answer")})
    assert report.inventory_of(silent, before).gpus == before.gpus
    assert report.inventory_of(silent).gpus is None


def record(phase: Phase, *, action: str = "a", target: str = "GPU-0", ended: datetime | None = None) -> Record:
    return Record(
        action, Verb.POWER_CAP, target, "700000", "630000", "hot", "thermal.margin", "p", NOW, 3600, "boot", phase,
        ended=ended,
    )  # fmt: skip


def test_actions_in_force_come_first_and_old_ones_go() -> None:
    records = (
        record(Phase.REVERTED, action="old", ended=NOW - timedelta(hours=25)),
        record(Phase.REVERTED, action="ended", ended=NOW - timedelta(hours=1)),
        record(Phase.IN_FORCE),
        record(Phase.RECORDED, action="begun", target="GPU-1"),
    )
    shown = report.action_statuses(records, (), {"GPU-0": "gpu-0"}, NOW)
    assert [(one.id, one.target, one.phase) for one in shown] == [
        ("a", "gpu-0", "InForce"), ("begun", "GPU-1", "Wanted"), ("ended", "gpu-0", "Reverted"),
    ]  # fmt: skip
    assert (shown[0].old, shown[0].new, shown[0].ttl) == ("700000", "630000", "1h")


def test_a_wish_without_a_record_is_wanted() -> None:
    wish = Wanted("w", Verb.SYSCTL, (Change("vm.swappiness", "10"),), "swaps", "host.swap", "p", 3600, NOW)
    (shown,) = report.action_statuses((), (wish,), {}, NOW)
    assert (shown.id, shown.target, shown.phase, shown.old) == ("w", "vm.swappiness", "Wanted", None)
    assert len(report.action_statuses((record(Phase.IN_FORCE, action="w", target="x"),), (wish,), {}, NOW)) == 1


def test_no_more_actions_than_the_schema_takes() -> None:
    records = tuple(record(Phase.IN_FORCE, target=f"GPU-{number}") for number in range(MOST_ACTIONS + 9))
    assert len(report.action_statuses(records, (), {}, NOW)) == MOST_ACTIONS


@pytest.mark.parametrize(
    ("records", "since", "words"),
    [
        pytest.param((record(Phase.IN_FORCE),), timedelta(seconds=60), "", id="in force and looked after"),
        pytest.param((record(Phase.IN_FORCE),), ACTUATOR_SILENT, "put back by hand GPU-0 to 700 W", id="silent"),
        pytest.param((record(Phase.REVERTED, ended=NOW),), timedelta(days=1), "", id="silent with nothing in force"),
        pytest.param(
            (replace(record(Phase.REVERT_FAILED), message="the host kept our value"),),
            timedelta(),
            "GPU-0 is still 630 W: put it back to 700 W by hand (the host kept our value)",
            id="it cannot be put back",
        ),
    ],
)
def test_what_nobody_puts_back_is_told_to_people(records: tuple[Record, ...], since: timedelta, words: str) -> None:
    stuck = report.stuck(Records(NOW - since, records), NOW)
    assert words in stuck
    assert bool(words) is bool(stuck)
    document = report.document(Report((), stuck=stuck), before={}, version="1", now=NOW)
    told = {one["type"]: one["message"] for one in document["conditions"]}
    assert told.get("PutBack", "") == stuck
    assert Report((), stuck=stuck).urgent != Report((), stuck=stuck + "!").urgent


def test_without_records_there_is_nothing_to_put_back() -> None:
    assert report.stuck(None, NOW) == ""


class Api:
    """It has every object, and keeps the status that was written last."""

    def __init__(self) -> None:
        self.status: dict[str, Any] = {}

    async def get(self, path: str) -> dict[str, Any] | None:
        del path
        return {"metadata": {"name": "n", "uid": "u"}, "status": self.status}

    async def send(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        content: str = "",
        query: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        del method, content, query
        if "hisparsenodes" in path and path.endswith("/status"):
            self.status = dict((body or {})["status"])
        return {"metadata": {"name": "n", "uid": "u"}, "status": self.status}


async def test_healthy_is_as_patient_as_the_conditions_of_the_node() -> None:
    watch, patient, api = Watch(), Patient(), Api()
    writer = Writer(api, "n", "v", clock=lambda: 1000.0 * watch.poll, now=lambda: NOW)
    told = []
    for poll in range(8):
        blind = {"nvml": Missing(Absence.UNKNOWN, "no answer")} if poll in (2, 3) or poll > 4 else {}
        findings = watch.watch(blind).findings
        patient = conditions.patient(patient, conditions.judged(findings, BY_ID))
        writer.publish(Publication(Report(findings), patient.told))
        await writer.step()
        told.append(next(one["status"] for one in api.status["conditions"] if one["type"] == "Healthy"))
    assert told == ["True", "True", "True", "True", "True", "True", "True", "Unknown"]
