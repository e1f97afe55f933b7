"""The catalogue: complete, consistent, and in words that a person can act on."""

from __future__ import annotations

import re
from fractions import Fraction

import pytest

from hisparse.hardware import gpu_named
from hisparse.nodes.catalogue import Check, Pace, Threshold, Verb
from hisparse.nodes.checks import BY_ID, CHECKS
from hisparse.nodes.findings import State
from hisparse_agent.judge.judge import JUDGES

EACH = pytest.mark.parametrize("row", CHECKS, ids=lambda row: row.id)
UNITS = {"", "bytes", "celsius", "watts", "ratio", "count", "seconds"}


def test_every_check_is_judged_and_everything_judged_is_a_check() -> None:
    assert {row.id for row in CHECKS} == set(JUDGES)
    assert len(CHECKS) == len(JUDGES)


def test_a_check_is_found_by_its_id() -> None:
    assert BY_ID["nvlink.links"].reason == "NvlinkLinksDown"
    with pytest.raises(KeyError):
        BY_ID["nvlink.width"]


def test_reasons_are_one_word_and_name_one_check() -> None:
    reasons = [row.reason for row in CHECKS]
    assert len(set(reasons)) == len(reasons)
    assert all(re.fullmatch(r"[A-Z][A-Za-z]+", reason) for reason in reasons)


@EACH
def test_a_check_says_all_that_a_person_needs(row: Check) -> None:
    assert re.fullmatch(r"[a-z0-9_]+(\.[a-z0-9_]+){0,2}", row.id)
    assert row.signal
    assert row.summary.endswith(".")
    assert row.source
    assert row.unit in UNITS
    assert "`" in row.runbook or row.id == "throttle.sw_power"
    assert row.remedy[0].islower()
    assert not row.remedy.endswith("."), "it is the end of a message"
    assert not row.cost or row.cost.endswith(".")


@EACH
def test_patience_is_at_least_one_reading(row: Check) -> None:
    assert row.enter_polls >= 1
    assert row.critical_enter_polls is None or 1 <= row.critical_enter_polls <= row.enter_polls
    assert row.leave_polls is None or row.leave_polls >= 1
    assert row.boot_grace_s >= 0


@EACH
def test_limits_are_numbers_in_the_right_order(row: Check) -> None:
    if row.id == "host.mem.psi":
        return  # its two limits are of two figures
    for limits in (row.threshold, *row.profiles.values()):
        numbers = [Fraction(text) for text in (limits.leave, limits.warn, limits.critical) if text is not None]
        assert numbers == sorted(numbers, reverse=not limits.rising)


def test_profiles_are_products_that_the_project_knows() -> None:
    for row in CHECKS:
        for name in row.profiles:
            known = gpu_named(name)
            assert known is not None
            assert known.name == name


def test_a_tainting_check_feeds_a_condition_and_says_what_it_costs() -> None:
    for row in CHECKS:
        if row.taints:
            assert row.condition is not None, row.id
            assert row.cost, row.id


def test_only_these_checks_may_ask_for_an_action() -> None:
    assert {row.id: row.verbs for row in CHECKS if row.verbs} == {
        "thermal.margin": (Verb.POWER_CAP,),
        "thermal.hbm": (Verb.POWER_CAP,),
        "throttle.hw_thermal": (Verb.POWER_CAP,),
        "host.mem.psi": (Verb.SYSCTL,),
        "host.swap": (Verb.SYSCTL,),
        "host.cpufreq": (Verb.CPUFREQ,),
    }


def test_the_figures_that_the_mission_names() -> None:
    margin = BY_ID["thermal.margin"]
    assert (margin.threshold.warn, margin.threshold.critical, margin.threshold.leave) == ("10", "2", "15")
    seconds = {Pace.GPU: 15}[margin.pace]
    assert margin.enter_polls * seconds == 300
    assert (margin.critical_enter_polls or 0) * seconds == 60
    assert (margin.leave_polls or 0) * seconds == 600
    links = BY_ID["nvlink.links"]
    assert {name: limits.critical for name, limits in links.profiles.items()} == {
        "h200": "18",
        "h100": "18",
        "h20": "18",
        "b200": "18",
        "a100-80": "12",
        "a100-40": "12",
        "h100-nvl": "12",
    }
    assert (links.enter_polls, links.leave_polls, links.boot_grace_s) == (3, 20, 300)
    memory = BY_ID["host.mem.available"].threshold
    assert (memory.warn, memory.critical) == (str(50 * 2**30), str(16 * 2**30))


@pytest.mark.parametrize(
    ("limits", "value", "state", "ended"),
    [
        pytest.param(Threshold("0.01", "0.1"), "0.01", State.OK, True, id="at a limit that is still good"),
        pytest.param(Threshold("0.01", "0.1"), "0.010001", State.WARN, False, id="just above it"),
        pytest.param(Threshold("0.01", "0.1"), "0.11", State.CRITICAL, False, id="above the second"),
        pytest.param(
            Threshold("90", "95", inclusive=True), "90", State.WARN, False, id="at a limit that is bad already"
        ),
        pytest.param(Threshold("1", "0.9", rising=False), "1", State.OK, True, id="less is worse: at the limit"),
        pytest.param(Threshold("1", "0.9", rising=False), "0.9", State.WARN, False, id="less is worse: at the second"),
        pytest.param(Threshold("1", "0.9", rising=False), "0.5", State.CRITICAL, False, id="less is worse: far below"),
        pytest.param(Threshold(), "7", State.OK, True, id="no limits"),
        pytest.param(
            Threshold("10", "2", rising=False, inclusive=True, leave="15"), "10", State.WARN, False, id="margin 10"
        ),
        pytest.param(
            Threshold("10", "2", rising=False, inclusive=True, leave="15"), "2", State.CRITICAL, False, id="margin 2"
        ),
        pytest.param(
            Threshold("10", "2", rising=False, inclusive=True, leave="15"),
            "15",
            State.OK,
            False,
            id="margin 15 ends nothing",
        ),
        pytest.param(
            Threshold("10", "2", rising=False, inclusive=True, leave="15"), "16", State.OK, True, id="margin 16 does"
        ),
        pytest.param(Threshold("10", leave="5"), "7", State.OK, False, id="more is worse, between leave and warn"),
        pytest.param(Threshold("10", leave="5"), "4", State.OK, True, id="more is worse, past leave"),
    ],
)
def test_a_value_against_its_limits(limits: Threshold, value: str, state: State, ended: bool) -> None:
    assert limits.state_of(Fraction(value)) is state
    assert limits.ended_by(Fraction(value)) is ended
