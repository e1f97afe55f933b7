"""Events are about changes: none is repeated, none is made of silence."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from hisparse.nodes.catalogue import Verb
from hisparse.nodes.findings import Finding, State
from hisparse.nodes.report import ActionStatus
from hisparse_agent.publish import events, report
from hisparse_agent.publish.report import Report
from hisparse_agent.records import NO_LONGER_WANTED, Change, Wanted
from hisparse_agent.remedies.allowance import Decision, Gate, Refusal

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)


def found(state: State, subject: str = "gpu-0", check: str = "nvlink.links") -> Finding:
    return Finding(check, subject, state, "LinksDown", "9 of 18 are active", NOW)


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        pytest.param(None, State.CRITICAL, ["Warning"], id="a fault is new"),
        pytest.param(None, State.OK, [], id="health is no news"),
        pytest.param(State.OK, State.WARN, ["Warning"], id="it gets worse"),
        pytest.param(State.WARN, State.CRITICAL, ["Warning"], id="and worse"),
        pytest.param(State.CRITICAL, State.WARN, ["Warning"], id="it gets a little better"),
        pytest.param(State.CRITICAL, State.CRITICAL, [], id="the same again"),
        pytest.param(State.CRITICAL, State.OK, ["Normal"], id="it is over"),
        pytest.param(State.CRITICAL, State.UNKNOWN, [], id="silence"),
        pytest.param(State.CRITICAL, State.UNSUPPORTED, ["Normal"], id="it is judged no more"),
        pytest.param(State.UNSUPPORTED, State.OK, [], id="it appears"),
    ],
)
def test_what_is_an_event(before: State | None, after: State, told: list[str]) -> None:
    known = events.after({}, [found(before)]) if before else {}
    assert [one.type for one in events.of_findings(known, [found(after)])] == told


def test_a_fault_that_is_seen_again_after_silence_is_no_news() -> None:
    known = events.after({}, [found(State.CRITICAL)])
    known = events.after(known, [found(State.UNKNOWN)])
    assert events.of_findings(known, [found(State.CRITICAL)]) == ()
    known = events.after(known, [found(State.UNKNOWN, "host")])
    assert events.of_findings(known, [found(State.CRITICAL)]) == ()


def test_all_subjects_of_a_check_are_one_event() -> None:
    notices = events.of_findings({}, [found(State.CRITICAL, f"gpu-{number}") for number in range(8)])
    assert [one.message for one in notices] == [
        "Critical: nvlink.links on gpu-0, gpu-1, gpu-2, gpu-3, gpu-4, gpu-5, gpu-6, gpu-7: 9 of 18 are active"
    ]


def test_an_agent_that_starts_again_repeats_nothing() -> None:
    findings = (found(State.CRITICAL), found(State.OK, "gpu-1"), found(State.UNKNOWN, "gpu-2"))
    status = report.document(Report(findings), before={}, version="1", now=NOW)
    known = events.known_from(status)
    assert set(known) == {("nvlink.links", "gpu-0"), ("nvlink.links", "gpu-1")}
    assert known["nvlink.links", "gpu-0"] == findings[0]
    assert events.of_findings(known, findings) == ()


@pytest.mark.parametrize(
    "status", [{}, {"findings": None}, {"findings": [{"check": "a", "state": "Bad"}, {"since": "x"}, {}]}]
)
def test_a_status_that_cannot_be_read_tells_nothing(status: dict[str, object]) -> None:
    assert events.known_from(status) == {}


def action(phase: str, target: str = "gpu-0", message: str | None = None) -> ActionStatus:
    return ActionStatus(
        id="a", verb="power-cap", target=target, old="700000", new="630000", phase=phase,
        reason="thermal.margin gpu-0: hot", policy="p", message=message,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("before", "after", "reasons"),
    [
        pytest.param((), ("Wanted",), [], id="a wish is not yet an act"),
        pytest.param(("Wanted",), ("InForce",), ["RemedyInForce"], id="done"),
        pytest.param(("InForce",), ("InForce",), [], id="as before"),
        pytest.param(("InForce",), ("Reverted",), ["RemedyReverted"], id="put back"),
        pytest.param(("InForce",), ("Foreign",), ["RemedyForeign"], id="somebody else"),
        pytest.param(("InForce",), (), [], id="it left the record"),
    ],
)
def test_what_is_told_of_an_action(before: tuple[str, ...], after: tuple[str, ...], reasons: list[str]) -> None:
    notices = events.of_actions([action(one) for one in before], [action(one) for one in after])
    assert [one.reason for one in notices] == reasons


def test_all_targets_of_an_action_are_one_event_with_both_values() -> None:
    (notice,) = events.of_actions([], [action("InForce"), action("InForce", "gpu-1")])
    assert notice.message == "power-cap of gpu-0, gpu-1 set from 700 W to 630 W (policy p, for thermal.margin on gpu-0)"
    (notice,) = events.of_actions([], [action("RevertFailed", message="NVML says no")])
    assert (notice.type, notice.message) == (
        "Warning", "power-cap of gpu-0, which had set 630 W in place of 700 W: NVML says no "
        "(policy p, for thermal.margin on gpu-0)",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("said", "why", "told"),
    [
        pytest.param(
            NO_LONGER_WANTED, "thermal.margin has cleared", "thermal.margin has cleared", id="the agent knows"
        ),
        pytest.param(NO_LONGER_WANTED, "", NO_LONGER_WANTED, id="nobody knows"),
        pytest.param("its time is over", "thermal.margin has cleared", "its time is over", id="the actuator knows"),
    ],
)
def test_why_an_action_was_put_back(said: str, why: str, told: str) -> None:
    (notice,) = events.of_actions([action("InForce")], [action("Reverted", message=said)], {"a": why})
    assert notice.message == (
        f"power-cap of gpu-0 put back to 700 W after 630 W: {told} (policy p, for thermal.margin on gpu-0)"
    )


def test_a_decision_is_told_in_units_and_the_reason_first() -> None:
    reason = "thermal.margin gpu-0: 1 C are left; check fans"
    asked = Wanted("a", Verb.POWER_CAP, (Change("GPU-0", "630000"),), reason, "thermal.margin", "h200", 3600, NOW)
    refused = Refusal(Gate.BREAKER, "the breaker of policy h200 is open; close it")
    messages = [
        events.of_decision(Decision(asked, refusal, would), {"GPU-0": "gpu-0"}).message
        for refusal, would in ((refused, False), (refused, True), (None, False), (None, True))
    ]
    assert messages == [
        "power-cap of gpu-0 to 630 W refused: the breaker of policy h200 is open; close it (for thermal.margin on gpu-0)",
        "power-cap of gpu-0 to 630 W would be refused: the breaker of policy h200 is open; close it "
        "(for thermal.margin on gpu-0, dry run)",
        "power-cap of gpu-0 to 630 W asked of the actuator (policy h200, for thermal.margin on gpu-0)",
        "would do power-cap of gpu-0 to 630 W: the policy is a dry run (policy h200, for thermal.margin on gpu-0)",
    ]


def test_the_object_is_about_the_node_and_lies_in_default() -> None:
    notices = events.of_findings({}, [found(State.CRITICAL), found(State.WARN, check="thermal.margin")])
    times = (NOW, NOW + timedelta(microseconds=1))
    documents = [
        events.document(notice, node="gpu-a", uid="u", instance="i", at=at)
        for notice, at in zip(notices, times, strict=True)
    ]
    assert len({one["metadata"]["name"] for one in documents}) == 2
    for one in documents:
        assert one["metadata"]["namespace"] == "default"
        assert one["involvedObject"] == {"apiVersion": "v1", "kind": "Node", "name": "gpu-a", "uid": "u"}
