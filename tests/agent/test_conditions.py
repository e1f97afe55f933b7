"""Conditions and taint of the Node: what turns them, what never does."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from node_readings import NOT_READ, NOT_THERE, Watch

from hisparse.nodes.catalogue import NodeCondition
from hisparse.nodes.checks import CHECKS, DECIDING
from hisparse.nodes.findings import Finding, State
from hisparse.nodes.policy import TaintEffect
from hisparse_agent.publish import conditions, events
from hisparse_agent.publish.conditions import BLIND_POLLS, TAINT_KEY, Judged, Patient, Taint
from hisparse_agent.readings import Missing

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
BY_ID = {check.id: check for check in CHECKS}
LINK, GPU, MEMORY = "nvlink.links", "gpu.lost", "host.mem.available"
ERRORS = "nvlink.errors"


def found(check: str, state: State, subject: str = "gpu-0") -> Finding:
    return Finding(check, subject, state, f"{state.value}Reason", f"{check} is {state.value}", NOW)


def told(*findings: Finding) -> dict[str, tuple[str, str]]:
    return {one.type.value: (one.status, one.reason) for one in conditions.judged(findings, BY_ID)}


@pytest.mark.parametrize(
    ("states", "status", "reason"),
    [
        pytest.param((State.OK, State.OK), "True", "LinksHealthy", id="well"),
        pytest.param((State.OK, State.WARN), "True", "WarnReason", id="a warning leaves it True and is named"),
        pytest.param((State.OK, State.CRITICAL), "False", "CriticalReason", id="critical"),
        pytest.param(
            (State.OK, State.UNKNOWN), "True", "LinksHealthy", id="one card is silent where silence does not decide"
        ),
        pytest.param((State.UNKNOWN, State.UNKNOWN), "Unknown", "Unread", id="all are"),
        pytest.param((State.UNSUPPORTED, State.UNSUPPORTED), "Unknown", "Unsupported", id="hidden by a VM"),
        pytest.param((State.UNSUPPORTED, State.UNKNOWN), "Unknown", "Unread", id="hidden and silent"),
    ],
)
def test_what_makes_a_condition(states: tuple[State, ...], status: str, reason: str) -> None:
    findings = [found(ERRORS, state, f"gpu-{number}") for number, state in enumerate(states)]
    assert told(*findings)[NodeCondition.LINK.value] == (status, reason)


@pytest.mark.parametrize("check", DECIDING)
def test_what_decides_and_is_not_known_makes_its_condition_unknown(check: str) -> None:
    row = BY_ID[check]
    assert row.condition is not None
    other = next(one.id for one in CHECKS if one.condition is row.condition and not one.decides)
    silent = [found(check, State.OK), found(check, State.UNKNOWN, "gpu-1"), found(other, State.OK)]
    (said,) = [one for one in conditions.judged(silent, BY_ID) if one.type is row.condition]
    assert (said.status, said.reason) == ("Unknown", "UnknownReason")
    assert said.message == f"{check} on gpu-1: {check} is Unknown"
    assert told(*silent, found(other, State.WARN, "gpu-1"))[row.condition.value][0] == "Unknown"
    assert told(*silent, found(other, State.CRITICAL, "gpu-1"))[row.condition.value][0] == "False"
    without = [found(check, State.UNSUPPORTED), found(other, State.OK)]
    assert told(*without)[row.condition.value][0] == "True", "a machine that has none of it is not blind"


def test_every_condition_has_a_check_that_decides() -> None:
    assert {BY_ID[check].condition for check in DECIDING} == set(NodeCondition)


@pytest.mark.parametrize("nvml", [NOT_THERE, NOT_READ], ids=["no library", "silent"])
def test_a_node_whose_gpus_cannot_be_seen_is_not_called_healthy(nvml: Missing) -> None:
    patient, statuses = Patient(), []
    watch = Watch()
    for poll in range(10):
        edits = {"nvml": nvml, "expected_gpus": 8} if poll >= 5 else {}
        findings = watch.watch(edits).findings
        patient = conditions.patient(patient, conditions.judged(findings, BY_ID))
        statuses.append({one.type: one.status for one in patient.told})
    assert [one[NodeCondition.GPU] for one in statuses] == ["True"] * 7 + ["Unknown"] * 3
    assert [one[NodeCondition.LINK] for one in statuses] == ["True"] * 7 + ["Unknown"] * 3
    assert {one[NodeCondition.HOST_MEMORY] for one in statuses} == {"True"}
    (said,) = [one for one in patient.told if one.type is NodeCondition.GPU]
    assert nvml.why in said.message


def test_one_check_is_not_called_checks() -> None:
    (said,) = [one for one in conditions.judged([found(GPU, State.OK)], BY_ID) if one.type is NodeCondition.GPU]
    assert said.message == "1 check found no fault"


def test_each_condition_looks_at_its_own_checks() -> None:
    said = told(found(LINK, State.CRITICAL), found(GPU, State.OK), found(MEMORY, State.WARN, "host"))
    assert said == {
        "HiSparseGpuHealthy": ("True", "GpusHealthy"),
        "HiSparseLinkHealthy": ("False", "CriticalReason"),
        "HiSparseHostMemoryHealthy": ("True", "WarnReason"),
    }


def test_a_check_that_feeds_no_condition_changes_none() -> None:
    free = next(check.id for check in CHECKS if check.condition is None)
    assert told(found(free, State.CRITICAL), found(GPU, State.OK)) == told(found(GPU, State.OK))


def test_a_message_names_every_subject_and_has_an_end() -> None:
    findings = [found(LINK, State.CRITICAL, f"gpu-{number}") for number in range(400)]
    (said,) = [one for one in conditions.judged(findings, BY_ID) if one.type is NodeCondition.LINK]
    assert "gpu-0, gpu-1, gpu-10" in said.message
    assert len(said.message) <= 1024


def judged(status: str, reason: str = "R", message: str = "m") -> Judged:
    return Judged(NodeCondition.GPU, status, reason, message)


@pytest.mark.parametrize(
    ("after", "moves"),
    [
        pytest.param(judged("True", "Other", "other"), False, id="reason and message"),
        pytest.param(judged("False"), True, id="status"),
    ],
)
def test_the_transition_time_moves_with_the_status_alone(after: Judged, moves: bool) -> None:
    (first,) = conditions.documents([judged("True")], [], NOW)
    later = NOW + timedelta(hours=1)
    (second,) = conditions.documents([after], [{"type": "Ready", "status": "True"}, first], later)
    assert (second["lastTransitionTime"] != first["lastTransitionTime"]) is moves
    assert second["lastHeartbeatTime"] != first["lastHeartbeatTime"]


def unread() -> Judged:
    return judged("Unknown", conditions.UNREAD)


def test_a_condition_that_cannot_be_judged_for_a_moment_stays() -> None:
    patient = conditions.patient(Patient(), [judged("True")])
    for _ in range(BLIND_POLLS - 1):
        patient = conditions.patient(patient, [unread()])
        assert patient.told == (judged("True"),)
    patient = conditions.patient(patient, [unread()])
    assert patient.told == (unread(),)
    assert conditions.patient(patient, [judged("True")]).told == (judged("True"),), "and comes back at once"


@given(st.lists(st.sampled_from(["True", "False", "Unknown"]), min_size=1, max_size=40))
def test_silence_never_turns_a_condition_within_three_polls(polls: list[str]) -> None:
    patient = Patient()
    run = 0
    for poll in polls:
        before = patient.told
        run = run + 1 if poll == "Unknown" else 0
        patient = conditions.patient(patient, [unread() if poll == "Unknown" else judged(poll)])
        if 0 < run < BLIND_POLLS and before:
            assert patient.told == before
        if not run:
            assert patient.told[0].status == poll


def test_a_fault_that_cannot_be_read_any_more_is_still_told() -> None:
    known = events.after({}, [found(LINK, State.CRITICAL), found(LINK, State.OK, "gpu-1")])
    silent = [found(LINK, State.UNKNOWN), found(LINK, State.UNKNOWN, "gpu-1")]
    for findings in (silent, [found(LINK, State.UNKNOWN, "host")]):
        kept = events.standing(known, findings)
        assert told(*kept)["HiSparseLinkHealthy"] == ("False", "CriticalReason")
        known = events.after(known, findings)
    assert told(*events.standing(known, [found(LINK, State.OK)]))["HiSparseLinkHealthy"] == ("True", "LinksHealthy")


def test_what_is_judged_no_more_is_forgotten() -> None:
    known = events.after({}, [found(LINK, State.CRITICAL, "gpu-7"), found(GPU, State.CRITICAL)])
    kept = events.standing(known, [found(LINK, State.OK, "gpu-0"), found(GPU, State.UNSUPPORTED)])
    assert {one.state for one in kept} == {State.OK, State.UNSUPPORTED}


def test_what_the_last_run_told_is_where_the_next_one_begins() -> None:
    documents = conditions.documents([judged("False", "Lost", "gone")], [], NOW)
    before = conditions.told_before([{"type": "Ready", "status": "True"}, *documents])
    assert before.told == (judged("False", "Lost", "gone"),)


# --- the taint -------------------------------------------------------------------------------------------------------

OTHERS = [
    {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"},
    {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute", "timeAdded": "2026-11-29T11:00:00Z"},
]
PREFER = TaintEffect.PREFER_NO_SCHEDULE


def test_only_a_critical_finding_of_a_check_that_taints_asks_for_one() -> None:
    assert conditions.wanted_taint([found(LINK, State.CRITICAL)], BY_ID, PREFER) == Taint(LINK, PREFER)
    assert conditions.wanted_taint([found(LINK, State.CRITICAL)], BY_ID, None) is None
    for state in (State.WARN, State.UNKNOWN, State.UNSUPPORTED, State.OK):
        assert conditions.wanted_taint([found(LINK, state)], BY_ID, PREFER) is None
    free = next(check.id for check in CHECKS if not check.taints)
    assert conditions.wanted_taint([found(free, State.CRITICAL)], BY_ID, PREFER) is None


def test_of_several_checks_the_one_that_the_node_carries_stays() -> None:
    both = [found(LINK, State.CRITICAL), found(GPU, State.CRITICAL)]
    assert conditions.wanted_taint(both, BY_ID, PREFER) == Taint(GPU, PREFER)
    assert conditions.wanted_taint(both, BY_ID, PREFER, Taint(LINK, PREFER)) == Taint(LINK, PREFER)
    assert conditions.wanted_taint(both[1:], BY_ID, PREFER, Taint(LINK, PREFER)) == Taint(GPU, PREFER)


@pytest.mark.parametrize("wanted", [None, Taint(LINK, PREFER), Taint(GPU, TaintEffect.NO_SCHEDULE)])
@pytest.mark.parametrize(
    "ours",
    [
        pytest.param([], id="none"),
        pytest.param([Taint(LINK, PREFER).document], id="ours"),
        pytest.param([Taint(LINK, PREFER).document, Taint(GPU, TaintEffect.NO_SCHEDULE).document], id="two of ours"),
        pytest.param([{"key": TAINT_KEY, "effect": "NoExecute"}], id="a foreign form of ours"),
    ],
)
def test_nobody_elses_taint_is_touched(ours: list[dict[str, str]], wanted: Taint | None) -> None:
    live = [OTHERS[0], *ours, OTHERS[1]]
    written = conditions.tainted(live, wanted, NOW)
    result = live if written is None else written
    assert [one for one in result if one["key"] != TAINT_KEY] == OTHERS
    assert conditions.own_taint(result) == wanted
    assert conditions.tainted(result, wanted, NOW) is None, "a second look writes nothing"
