"""Policies for nodes: what is wrong with one that no schema can know, and which one is in force."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisparse.errors import SpecErrors
from hisparse.nodes import breaker
from hisparse.nodes.acceptance import accepted, faults
from hisparse.nodes.breaker import Opened
from hisparse.nodes.catalogue import Verb
from hisparse.nodes.checks import CHECKS
from hisparse.nodes.in_force import Policy, in_force, policy_of
from hisparse.nodes.policy import ALLOWED_SYSCTLS, parse_policy

Document = dict[str, Any]


def told(**spec: Any) -> list[str]:
    return [str(one) for one in faults(parse_policy(spec))]


# --- what may be asked for -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({}, id="nothing"),
        pytest.param({"taint": "NoSchedule", "dryRun": False}, id="a taint alone"),
        pytest.param({"remedies": [{"verb": verb.value} for verb in Verb]}, id="every verb as it is"),
        pytest.param({"checks": [{"check": "thermal.margin", "warn": "12", "critical": "4"}]}, id="both levels"),
        pytest.param({"checks": [{"check": "thermal.margin", "critical": "-1"}]}, id="a negative margin"),
        pytest.param({"checks": [{"check": "thermal.hbm", "warn": "95"}]}, id="warn where critical is"),
        pytest.param({"checks": [{"check": "nvlink.links", "critical": "8"}]}, id="a level of single products"),
        pytest.param({"checks": [{"check": "host.mem.psi", "critical": "0.01"}]}, id="limits of two signals"),
        pytest.param({"checks": [{"check": "gpu.lost", "enabled": False}]}, id="switched off"),
        pytest.param({"checks": [{"check": one.id, "enterPolls": 2} for one in CHECKS]}, id="patience of every check"),
        pytest.param(
            {
                "remedies": [
                    {"verb": "power-cap", "checks": ["thermal.margin"], "parameters": {"stepPercent": 5}},
                    {"verb": "power-cap", "checks": ["thermal.hbm"]},
                    {"verb": "sysctl", "checks": ["host.swap"]},
                    {"verb": "sysctl", "parameters": {"sysctl": "kernel.numa_balancing", "value": 0}},
                    {"verb": "sysctl", "parameters": {"sysctl": "vm.zone_reclaim_mode", "value": 0}},
                    {"verb": "cpufreq", "parameters": {"governor": "performance"}},
                    {"verb": "cpufreq", "parameters": {"preference": "performance"}},
                ]
            },
            id="each remedy for something else",
        ),
    ],
)
def test_what_can_be_used(spec: Document) -> None:
    assert told(**spec) == []
    assert accepted(spec) == parse_policy(spec)


@pytest.mark.parametrize("check", [one for one in CHECKS if one.threshold.warn or one.threshold.critical], ids=str)
def test_the_thresholds_of_the_catalogue_are_ones_that_a_policy_may_set(check: Any) -> None:
    levels = {name: level for name in ("warn", "critical") if (level := getattr(check.threshold, name))}
    assert told(checks=[{"check": check.id, **levels}]) == []


# --- thresholds ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "field", "words"),
    [
        pytest.param(
            {"check": "nvlink.link"}, "check", 'is no check of this release; did you mean "nvlink.links"?', id="a typo"
        ),
        pytest.param(
            {"check": "Thermal.Margin", "warn": "5"}, "check", 'did you mean "thermal.margin"?', id="letters of another case"
        ),
        pytest.param({"check": "zzz"}, "check", '"zzz" is no check of this release', id="nothing is near"),
        pytest.param({"check": "gpu.lost", "critical": "1"}, "critical", "has no threshold to set", id="no threshold"),
        pytest.param({"check": "host.memcg", "warn": "1"}, "warn", "has no threshold to set", id="none that is looked at"),
        pytest.param({"check": "pin.window", "warn": "1"}, "warn", "has no threshold to set", id="never a fault"),
        pytest.param({"check": "nvlink.links", "warn": "17"}, "warn", "has no warn to set", id="the other level only"),
        pytest.param({"check": "nvlink.errors", "critical": "5"}, "critical", "has no critical to set", id="never critical"),
        pytest.param(
            {"check": "host.mem.pinned", "warn": "85"}, "warn", "is no share; write a number between 0 and 1", id="percent"
        ),
        pytest.param({"check": "power.oob", "critical": "-0.1"}, "critical", "is no share", id="below every share"),
        pytest.param({"check": "host.swap", "warn": "-1"}, "warn", "is never reached", id="negative pages"),
        pytest.param({"check": "host.mem.numa", "warn": "-1"}, "warn", "bytes are not negative", id="negative bytes"),
        pytest.param({"check": "nvlink.links", "critical": "0"}, "critical", "whole number", id="no links"),
        pytest.param({"check": "nvlink.links", "critical": "17.5"}, "critical", "whole number", id="half a link"),
        pytest.param(
            {"check": "thermal.hbm", "warn": "98", "critical": "97"},
            "critical",
            "warn 98 is above critical 97, and more is worse",
            id="rising, the wrong way round",
        ),
        pytest.param(
            {"check": "thermal.margin", "warn": "3", "critical": "8"},
            "critical",
            "warn 3 is below critical 8, and less is worse",
            id="falling, the wrong way round",
        ),
        pytest.param(
            {"check": "thermal.hbm", "warn": "96"},
            "warn",
            "warn 96 is above critical 95 (the catalogue's)",
            id="beyond the level that stays",
        ),
        pytest.param(
            {"check": "thermal.margin", "critical": "11"},
            "critical",
            "warn 10 (the catalogue's) is below critical 11",
            id="critical alone, before the warning",
        ),
        pytest.param({"check": "gpu.lost", "leavePolls": 3}, "leavePolls", "ends with another boot", id="only a boot ends it"),
    ],
)  # fmt: skip
def test_an_override_that_cannot_be_used(override: Document, field: str, words: str) -> None:
    (said,) = told(checks=[{"check": "xid", "enterPolls": 2}, override])
    assert said.startswith(f"spec.checks[1].{field}: ")
    assert words in said


def test_numbers_are_compared_exactly_and_not_as_text() -> None:
    assert told(checks=[{"check": "host.swap", "warn": "900", "critical": "1000"}]) == []
    (said,) = told(checks=[{"check": "thermal.hbm", "warn": "94.000001", "critical": "94"}])
    assert "warn 94.000001 is above critical 94" in said


def test_one_check_has_one_override() -> None:
    (said,) = told(checks=[{"check": "xid"}, {"check": "thermal.hbm"}, {"check": "xid", "enabled": False}])
    assert said == 'spec.checks[2].check: "xid" is in spec.checks[0] already; make one entry of both'


# --- remedies --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("remedies", "field", "words"),
    [
        pytest.param(
            [{"verb": "power-cap", "checks": ["thermal.margn"]}],
            "remedies[0].checks[0]",
            'did you mean "thermal.margin"?',
            id="a typo",
        ),
        pytest.param(
            [{"verb": "power-cap", "checks": ["thermal.hbm", "ecc.uncorrected"]}],
            "remedies[0].checks[1]",
            'power-cap is no remedy for "ecc.uncorrected"; it is one for thermal.margin, thermal.hbm, throttle.hw_thermal',
            id="for what it does not help",
        ),
        pytest.param(
            [{"verb": "cpufreq", "checks": ["host.swap"]}],
            "remedies[0].checks[0]",
            "it is one for host.cpufreq",
            id="another verb's check",
        ),
        pytest.param(
            [{"verb": "sysctl", "checks": []}],
            "remedies[0].checks",
            "names no check, so that nothing would ever ask for sysctl; remove the line, which means host.mem.psi, "
            "host.swap",
            id="no check",
        ),
        pytest.param(
            [{"verb": "sysctl", "parameters": {"sysctl": "vm.zone_reclaim_mode"}}],
            "remedies[0].parameters.value",
            "is not set, and 10 is not allowed for vm.zone_reclaim_mode; set 0",
            id="the default is out of its range",
        ),
        pytest.param(
            [{"verb": "sysctl", "parameters": {"sysctl": "kernel.numa_balancing", "value": 2}}],
            "remedies[0].parameters.value",
            "2 is not allowed for kernel.numa_balancing; set 0 to 1",
            id="a value out of its range",
        ),
        pytest.param(
            [{"verb": "power-cap"}, {"verb": "power-cap", "checks": ["thermal.hbm"], "ttl": "2h"}],
            "remedies[1]",
            "spec.remedies[0] is for power-cap of the GPU and thermal.hbm already",
            id="twice the same",
        ),
        pytest.param(
            [{"verb": "sysctl"}, {"verb": "sysctl", "parameters": {"sysctl": "vm.swappiness", "value": 5}}],
            "remedies[1]",
            "vm.swappiness and host.mem.psi, host.swap",
            id="twice the same sysctl, once by default",
        ),
    ],
)  # fmt: skip
def test_a_remedy_that_cannot_be_used(remedies: list[Document], field: str, words: str) -> None:
    (said,) = told(remedies=remedies)
    assert said.startswith(f"spec.{field}: ")
    assert words in said


def test_a_remedy_for_what_is_switched_off() -> None:
    off = [{"check": name, "enabled": False} for name in ("host.swap", "host.mem.psi")]
    assert told(checks=off[:1], remedies=[{"verb": "sysctl"}]) == [], "the other check still asks"
    (said,) = told(checks=off, remedies=[{"verb": "sysctl"}])
    assert said.startswith("spec.remedies[0]: every check that asks for sysctl is switched off")
    (said,) = told(checks=off[:1], remedies=[{"verb": "sysctl", "checks": ["host.mem.psi", "host.swap"]}])
    assert said.startswith('spec.remedies[0].checks[1]: "host.swap" is switched off')


def test_every_fault_is_told_at_once() -> None:
    spec = {
        "checks": [{"check": "no", "warn": "1"}, {"check": "xid", "critical": "1"}],
        "remedies": [{"verb": "power-cap", "checks": ["xid"]}, {"verb": "sysctl", "checks": []}],
    }
    with pytest.raises(SpecErrors) as caught:
        accepted(spec)
    assert [one.field for one in caught.value.errors] == [
        "spec.checks[0].check",
        "spec.checks[1].critical",
        "spec.remedies[0].checks[0]",
        "spec.remedies[1].checks",
    ]


def test_what_the_schema_refuses_is_refused_first() -> None:
    with pytest.raises(SpecErrors, match="reboot") as caught:
        accepted({"remedies": [{"verb": "reboot", "checks": []}]})
    assert [one.field for one in caught.value.errors] == ["spec.remedies[0].verb"]


_IDS = st.sampled_from([*(one.id for one in CHECKS), "no.such"])
_LEVELS = st.sampled_from(["-1", "0", "0.5", "1", "2", "10", "95", "5000"])


@given(
    st.lists(
        st.fixed_dictionaries(
            {"check": _IDS}, optional={"warn": _LEVELS, "critical": _LEVELS, "enabled": st.booleans()}
        ),
        max_size=4,
    ),
    st.lists(
        st.fixed_dictionaries(
            {"verb": st.sampled_from([one.value for one in Verb])},
            optional={"checks": st.lists(_IDS, max_size=3)},
        ),
        max_size=3,
    ),
)
def test_what_is_accepted_is_what_the_agent_can_do(checks: list[Document], remedies: list[Document]) -> None:
    spec = parse_policy({"checks": checks, "remedies": remedies})
    if faults(spec):
        return
    by_id = {one.id: one for one in CHECKS}
    overrides = {one.check: one for one in spec.checks or ()}
    assert len(overrides) == len(checks)
    for override in overrides.values():
        row = by_id[override.check]
        for limit in (row.threshold, *row.profiles.values()):
            warn, critical = override.warn or limit.warn, override.critical or limit.critical
            if warn and critical and not limit.apart:
                assert Fraction(warn) == Fraction(critical) or (Fraction(warn) < Fraction(critical)) is limit.rising
    for remedy in spec.remedies or ():
        assert remedy.checks is None or remedy.checks
        for name in remedy.checks or ():
            assert remedy.verb in by_id[name].verbs
            assert name not in overrides or overrides[name].enabled is not False


def test_the_default_of_each_sysctl_is_judged_as_the_actuator_judges_it() -> None:
    for name, (least, most) in ALLOWED_SYSCTLS.items():
        for value in range(101):
            said = told(remedies=[{"verb": "sysctl", "parameters": {"sysctl": name, "value": value}}])
            assert (said == []) is (least <= value <= most), (name, value)


# --- which one is in force -------------------------------------------------------------------------------------------


def document(name: str, created: int = 0, /, selector: Mapping[str, str] | None = None, **spec: Any) -> Document:
    meta = {"name": name, "creationTimestamp": f"2026-11-30T12:00:{created:02}Z"}
    return {"metadata": meta, "spec": spec | ({} if selector is None else {"nodeSelector": dict(selector)})}


def winner(documents: Sequence[Document], **labels: str) -> str | None:
    found = in_force([policy_of(one) for one in documents], labels)
    return None if found is None else found.name


def test_the_older_wins_then_the_name() -> None:
    assert winner([document("b", 5), document("a", 6), document("c", 4)]) == "c"
    assert winner([document("b", 5), document("a", 5)]) == "a"
    assert winner([]) is None


def test_a_policy_is_for_nodes_with_all_its_labels() -> None:
    gold = document("gold", 1, {"tier": "gold", "zone": "a"})
    rest = document("rest", 2)
    assert winner([gold, rest], tier="gold", zone="a", more="x") == "gold"
    assert winner([gold, rest], tier="gold") == "rest"
    assert winner([gold], tier="gold", zone="b") is None


def test_one_that_cannot_be_used_holds_its_nodes_and_does_nothing_there() -> None:
    broken = document("broken", 1, {"tier": "gold"}, remedies=[{"verb": "sysctl", "checks": []}], dryRun=False)
    young = document("young", 2, taint="NoSchedule", dryRun=False)
    found = in_force([policy_of(broken), policy_of(young)], {"tier": "gold"})
    assert found is not None
    assert (found.name, found.spec) == ("broken", None)
    assert found.fault.startswith("spec.remedies[0].checks: names no check")
    assert winner([broken, young]) == "young"


def test_one_of_a_form_that_we_do_not_know_holds_its_nodes_too() -> None:
    newer = document("newer", 1, {"tier": "gold"}, inventedLater=True)
    assert winner([newer, document("young", 2)], tier="gold") == "newer"
    found = policy_of(newer)
    assert found.spec is None
    assert "inventedLater" in found.fault
    assert policy_of({"metadata": {"name": "x"}, "spec": {"nodeSelector": ["no"]}}).selects({})


def test_one_that_is_being_deleted_is_gone() -> None:
    going = document("going", 1)
    going["metadata"] |= {"deletionTimestamp": "2026-11-30T13:00:00Z", "finalizers": ["foregroundDeletion"]}
    assert winner([going]) is None
    assert winner([going, document("young", 2)]) == "young"


@given(
    st.lists(
        st.builds(
            document,
            st.sampled_from("abcdef"),
            st.integers(0, 9),
            st.dictionaries(st.sampled_from("xy"), st.sampled_from("12"), max_size=2),
        ),
        max_size=6,
        unique_by=lambda one: one["metadata"]["name"],
    ),
    st.dictionaries(st.sampled_from("xy"), st.sampled_from("12"), max_size=2),
    st.randoms(use_true_random=False),
)
def test_the_order_in_which_they_come_does_not_matter(documents: list[Document], labels: dict[str, str], chance: Any) -> None:  # fmt: skip
    policies = [policy_of(one) for one in documents]
    found = in_force(policies, labels)
    chance.shuffle(policies)
    assert in_force(policies, labels) == found
    mine = [one for one in policies if one.selects(labels)]
    assert (found is None) is (mine == [])
    assert found is None or all(found.age <= one.age for one in mine)


def test_a_name_leaves_room_for_that_of_its_lease() -> None:
    assert policy_of(document("p" * 239)).spec is not None
    found = policy_of(document("p" * 240))
    assert (found.spec, found.fault) == (None, "metadata.name: 240 characters are too long; 239 are the most")


def test_a_policy_is_a_value() -> None:
    assert policy_of(document("a")) == policy_of(document("a"))
    assert policy_of(document("a")) == Policy("a", "2026-11-30T12:00:00Z", {}, parse_policy({}))


# --- the breaker -----------------------------------------------------------------------------------------------------


def test_the_breaker_is_what_its_annotation_says() -> None:
    since = datetime(2026, 11, 30, 12, tzinfo=UTC)
    assert breaker.opened({}) is None
    opened = Opened(since, nodes=3, pool=9)
    assert breaker.opened({breaker.ANNOTATION: opened.text}) == opened
    assert json.loads(opened.text)["nodes"] == 3


@pytest.mark.parametrize("text", ["", "closed", "false", "{}x", "null", '{"nodes": "many"}'])
def test_a_breaker_that_cannot_be_read_is_open_and_keeps_its_words(text: str) -> None:
    found = breaker.opened({breaker.ANNOTATION: text})
    assert found == Opened(said=text)
    assert not text or found.text == text
