from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from remedy_shapes import (
    BY_ID,
    CAP,
    GOVERNOR,
    NOW,
    SWAPPINESS,
    UUIDS,
    finding,
    gpu,
    hot,
    policy,
    reading,
    record_of,
    records_of,
)

from hisparse.nodes.catalogue import Verb
from hisparse.nodes.findings import Finding, State
from hisparse.nodes.policy import HiSparseNodePolicySpec
from hisparse_agent.readings import UNREAD, Cpufreq, NodeReading, Power
from hisparse_agent.records import Change, Phase, Records, Wanted
from hisparse_agent.remedies.wishes import BETWEEN_STEPS, Basis, Wishes, held, wishes

MINUTE = timedelta(minutes=1)
INTEL = Cpufreq(
    driver="intel_pstate",
    governors=("powersave",),
    offered=("performance", "powersave"),
    preferences=("balance_performance",),
    offered_preferences=("default", "performance", "balance_performance", "power"),
)
ACPI = Cpufreq("acpi-cpufreq", ("schedutil",), ("performance", "schedutil"))


def wished(
    findings: list[Finding],
    spec: HiSparseNodePolicySpec,
    *,
    seen: NodeReading | None = None,
    before: tuple[Wanted, ...] = (),
    records: Records | None = None,
    now: datetime = NOW,
    named: str = "p",
) -> Wishes:
    return wishes(Basis(tuple(findings), spec, named, BY_ID, seen or reading(), now), before, records)


def only(found: Wishes) -> Wanted:
    (action,) = found.asked
    return action


def test_one_action_lowers_every_hot_gpu_by_a_step_of_its_default() -> None:
    action = only(wished([hot(1), hot(5)], policy(CAP)))
    assert action.changes == (Change(UUIDS[1], "630000"), Change(UUIDS[5], "630000"))
    assert (action.verb, action.check, action.policy, action.ttl_seconds) == (
        Verb.POWER_CAP,
        "thermal.margin",
        "p",
        3600,
    )
    assert action.since == NOW


@pytest.mark.parametrize(
    ("parameters", "card", "new"),
    [
        pytest.param({}, gpu(0), "630000", id="10 % where nothing is said"),
        pytest.param({"stepPercent": 20}, gpu(0), "560000", id="20 %"),
        pytest.param({"stepPercent": 30}, gpu(0, limit=600_000), "490000", id="not below 70 % of the default"),
        pytest.param({}, gpu(0, limit=650_000), "580000", id="from a person's limit, not from the default"),
        pytest.param(
            {"stepPercent": 7}, gpu(0, limit=350_000, default=350_000), "326000", id="rounded up to whole watts"
        ),
        pytest.param(
            {}, gpu(0, limit=600_000, default=600_000, least=580_000), "580000", id="not below the card's minimum"
        ),
    ],
)
def test_a_step(parameters: dict[str, Any], card: Any, new: str) -> None:
    action = only(wished([hot(0)], policy({**CAP, "parameters": parameters}), seen=reading(card)))
    assert action.changes == (Change(UUIDS[0], new),)


@pytest.mark.parametrize(
    ("card", "note"),
    [
        pytest.param(
            gpu(0, least=700_000),
            "gpu-0: a cap to 700 W is the default of the card: nothing to do",
            id="700 W is the default",
        ),
        pytest.param(
            gpu(0, limit=490_000),
            "gpu-0: it is capped to 490 W, and 490 W is the least: nothing to do",
            id="at the floor",
        ),
        pytest.param(
            gpu(0, limit=400_000),
            "gpu-0: it is capped to 400 W, and 490 W is the least: nothing to do",
            id="a person went below it",
        ),
        pytest.param(
            replace(gpu(0), power=Power()), "gpu-0: its power limits cannot be read", id="a card that does not tell"
        ),
        pytest.param(gpu(1), "gpu-0: no such GPU can be read", id="a card that is gone"),
    ],
)
def test_where_there_is_nothing_to_do_it_says_so(card: Any, note: str) -> None:
    found = wished([hot(0)], policy(CAP), seen=reading(card))
    assert found.asked == ()
    assert [one.message for one in found.notes] == [note]


@pytest.mark.parametrize("state", [State.OK, State.WARN, State.UNKNOWN, State.UNSUPPORTED])
def test_only_a_critical_finding_starts_an_action(state: State) -> None:
    found = wished([hot(0, state), finding("host.swap", state=state)], policy(CAP, SWAPPINESS))
    assert (found.asked, found.notes) == ((), ())


@pytest.mark.parametrize(
    ("checks", "asks"),
    [
        pytest.param(None, True, id="the catalogue's"),
        pytest.param(["thermal.margin"], True, id="named"),
        pytest.param(["thermal.hbm"], False, id="another is named"),
        pytest.param([], False, id="none"),
    ],
)
def test_a_remedy_is_for_its_checks(checks: list[str] | None, asks: bool) -> None:
    remedy = CAP if checks is None else {**CAP, "checks": checks}
    assert bool(wished([hot(0)], policy(remedy)).asked) is asks


def after(findings: list[Finding], later: timedelta = MINUTE, **rest: Any) -> Wishes:
    """What is wanted later, when GPU 0 and 1 have been capped."""
    before = only(wished([hot(0), hot(1)], policy(CAP)))
    records = rest.pop("records", records_of([before]))
    spec = rest.pop("spec", policy(CAP))
    return wished(findings, spec, before=(before,), records=records, now=NOW + later, **rest)


@pytest.mark.parametrize(
    ("findings", "left"),
    [
        pytest.param([hot(0), hot(1)], {0, 1}, id="still hot"),
        pytest.param([hot(0, State.WARN), hot(1, State.WARN)], {0, 1}, id="a little cooler is no reason to let loose"),
        pytest.param([hot(0, State.OK), hot(1)], {1}, id="one has cooled: that one is put back"),
        pytest.param([hot(0, State.OK), hot(1, State.OK)], set(), id="both have"),
        pytest.param([hot(0, State.UNKNOWN), hot(1, State.UNKNOWN)], {0, 1}, id="not knowing ends nothing"),
        pytest.param(
            [hot(0, State.OK), hot(0, State.UNSUPPORTED, "thermal.hbm"), hot(1)],
            {1},
            id="a check that this card never had does not hold it",
        ),
        pytest.param([hot(0, State.OK), hot(0, check="thermal.hbm"), hot(1)], {0, 1}, id="another check took over"),
        pytest.param([], set(), id="no longer judged"),
    ],
)
def test_how_long_an_action_goes_on(findings: list[Finding], left: set[int]) -> None:
    found = after(findings)
    assert found.asked == ()
    targets = {change.target for action in found.standing for change in action.changes}
    assert targets == {UUIDS[index] for index in left}
    assert {action.id for action in found.standing} <= {"power-cap-thermal.margin-20261130T120000"}


def test_an_action_ends_with_its_time_with_its_remedy_and_with_its_records() -> None:
    still = [hot(0), hot(1)]
    assert after(still, timedelta(minutes=59)).standing
    assert not after(still, timedelta(minutes=60)).standing
    assert not after(still, spec=policy(SWAPPINESS)).standing
    assert not after(still, spec=policy({**CAP, "checks": ["thermal.hbm"]})).standing
    before = only(wished([hot(0), hot(1)], policy(CAP)))
    ended = records_of([before], Phase.REVERTED)
    assert not after(still, records=ended).standing
    one = replace(ended, records=(ended.records[0], records_of([before]).records[1]))
    (left,) = after(still, records=one).standing
    assert [change.target for change in left.changes] == [UUIDS[1]]


def test_a_card_that_is_gone_ends_it_and_nvml_that_is_silent_does_not() -> None:
    gone = reading(*(gpu(index) for index in range(2, 8)))
    assert not after([], seen=gone).standing
    assert after([], seen=replace(gone, nvml=UNREAD)).standing


def test_the_next_step_waits_for_the_first_to_show_its_effect_and_goes_on_from_there() -> None:
    still = [hot(0), hot(1, State.WARN)]
    assert after(still, BETWEEN_STEPS - timedelta(seconds=1)).asked == ()
    found = after(still, BETWEEN_STEPS)
    assert only(found).changes == (Change(UUIDS[0], "560000"),)
    assert only(found).id != found.standing[0].id
    before = only(wished([hot(0), hot(1)], policy(CAP)))
    for phase in (Phase.RECORDED, Phase.REVERT_FAILED):
        assert after(still, BETWEEN_STEPS, records=records_of([before], phase)).asked == (), "it is not in force"


def test_a_gpu_that_turns_hot_later_is_an_action_of_its_own() -> None:
    found = after([hot(0), hot(1), hot(2)])
    assert only(found).changes == (Change(UUIDS[2], "630000"),)
    assert len(found.standing) == 1


@pytest.mark.parametrize("check", ["host.swap", "host.mem.psi"])
def test_a_host_that_swaps_gets_swappiness_10_and_the_operator_is_told_that_the_pool_does_not_fit(check: str) -> None:
    found = wished([finding(check)], policy(SWAPPINESS))
    assert only(found).changes == (Change("vm.swappiness", "10"),)
    (note,) = found.notes
    assert note.check == check
    assert "does not fit" in note.message
    assert "kvTier.hostPool" in note.message
    assert "swap is not enlarged" in note.message


@pytest.mark.parametrize(
    ("parameters", "sysctls", "new", "note"),
    [
        pytest.param({}, {"vm.swappiness": "60"}, "10", "", id="the default"),
        pytest.param({"value": 0}, {"vm.swappiness": "60"}, "0", "", id="zero is a value"),
        pytest.param({}, {"vm.swappiness": "10"}, None, "is 10 as it is: nothing to do", id="as it is"),
        pytest.param({}, {"vm.swappiness": "1"}, None, "swaps less than 10 would", id="never raised"),
        pytest.param({}, {}, None, "cannot be read", id="not read"),
        pytest.param(
            {"sysctl": "kernel.numa_balancing", "value": 0}, {"kernel.numa_balancing": "1"}, "0", "", id="another"
        ),
    ],
)
def test_a_sysctl(parameters: dict[str, Any], sysctls: dict[str, str], new: str | None, note: str) -> None:
    spec = policy({**SWAPPINESS, "parameters": parameters})
    found = wished([finding("host.swap")], spec, seen=reading(sysctls=sysctls))
    assert [change.new for action in found.asked for change in action.changes] == ([] if new is None else [new])
    assert note in " ".join(one.message for one in found.notes)


@pytest.mark.parametrize(
    ("cpufreq", "parameters", "change", "note"),
    [
        pytest.param(INTEL, {}, Change("cpu/energy_performance_preference", "performance"), "", id="a driver that chooses itself"),
        pytest.param(INTEL, {"governor": "performance"}, Change("cpu/scaling_governor", "performance"), "", id="a governor that is asked for"),
        pytest.param(ACPI, {}, Change("cpu/scaling_governor", "performance"), "", id="a driver with governors"),
        pytest.param(ACPI, {"preference": "performance"}, Change("cpu/scaling_governor", "performance"), "", id="it has no preference"),
        pytest.param(ACPI, {"governor": "ondemand"}, None, "acpi-cpufreq offers no scaling_governor ondemand", id="not offered"),
        pytest.param(replace(ACPI, governors=("performance",)), {}, None, "on every CPU: nothing to do", id="as it is"),
        pytest.param(
            replace(ACPI, governors=("performance", "schedutil")), {}, Change("cpu/scaling_governor", "performance"), "", id="on some CPUs"
        ),
        pytest.param(UNREAD, {}, None, "cannot be read", id="a virtual machine without it"),
    ],
)  # fmt: skip
def test_the_processor_by_its_driver(cpufreq: Any, parameters: Any, change: Change | None, note: str) -> None:
    spec = policy({**GOVERNOR, "parameters": parameters})
    # a check of configuration knows no Critical
    found = wished([finding("host.cpufreq", state=State.WARN)], spec, seen=reading(cpufreq=cpufreq))
    assert [one for action in found.asked for one in action.changes] == ([] if change is None else [change])
    assert note in " ".join(one.message for one in found.notes)


def test_a_governor_in_force_on_some_cpus_still_stands() -> None:
    spec = policy(GOVERNOR)
    cause = finding("host.cpufreq", state=State.WARN)
    before = only(wished([cause], spec, seen=reading(cpufreq=ACPI)))
    (change,) = before.changes
    one = record_of(before, change, Phase.FOREIGN, NOW, "cpu0/scaling_governor")
    other = record_of(before, change, Phase.IN_FORCE, NOW, "cpu1/scaling_governor")
    both = Records(NOW, (other, one))
    found = wished([cause], spec, seen=reading(cpufreq=ACPI), before=(before,), records=both)
    assert (found.standing, found.asked) == ((before,), ())
    gone = Records(NOW, (one, replace(other, phase=Phase.REVERTED)))
    assert not wished([cause], spec, seen=reading(cpufreq=ACPI), before=(before,), records=gone).standing


def test_two_remedies_never_ask_for_one_target() -> None:
    first = {**SWAPPINESS, "parameters": {"value": 20}}
    found = wished([finding("host.swap")], policy(first, SWAPPINESS))
    assert only(found).changes == (Change("vm.swappiness", "20"),)


def test_two_remedies_of_one_verb_for_one_check_are_two_actions() -> None:
    other = {**SWAPPINESS, "parameters": {"sysctl": "kernel.numa_balancing", "value": 0}}
    seen = reading(sysctls={"vm.swappiness": "60", "kernel.numa_balancing": "1"})
    found = wished([finding("host.swap")], policy(SWAPPINESS, other), seen=seen)
    assert [change.target for action in found.asked for change in action.changes] == [
        "vm.swappiness",
        "kernel.numa_balancing",
    ]
    # the actuator takes up an id once, and the rate limit counts ids
    assert len({action.id for action in found.asked}) == 2


def test_an_action_goes_with_the_policy_that_allowed_it() -> None:
    still = [hot(0), hot(1)]
    assert after(still, named="p").standing
    assert not after(still, named="another").standing


@pytest.mark.parametrize(
    ("remedy", "stays"),
    [
        pytest.param({**SWAPPINESS}, True, id="as it was"),
        pytest.param({**SWAPPINESS, "ttl": "3h"}, True, id="a longer time is for the next one"),
        pytest.param({**SWAPPINESS, "ttl": "1m"}, False, id="a shorter time"),
        pytest.param({**SWAPPINESS, "parameters": {"value": 20}}, False, id="another value"),
        pytest.param(
            {**SWAPPINESS, "parameters": {"sysctl": "kernel.numa_balancing", "value": 0}}, False, id="another setting"
        ),
    ],
)
def test_a_policy_that_was_edited_allows_what_it_says_now(remedy: dict[str, Any], stays: bool) -> None:
    before = only(wished([finding("host.swap")], policy(SWAPPINESS)))
    found = wished(
        [finding("host.swap")], policy(remedy), before=(before,), records=records_of([before]), now=NOW + 2 * MINUTE
    )
    assert bool(found.standing) is stays


def test_a_check_that_the_policy_switches_off_ends_its_action() -> None:
    before = only(wished([finding("host.swap")], policy(SWAPPINESS)))
    off = policy(SWAPPINESS, checks=[{"check": "host.swap", "enabled": False}])
    gone = [finding("host.swap", state=State.UNSUPPORTED)]
    assert not wished(gone, off, before=(before,), records=records_of([before])).standing


def test_a_governor_stays_though_its_check_is_good_because_of_it() -> None:
    spec = policy(GOVERNOR)
    before = only(wished([finding("host.cpufreq", state=State.WARN)], spec, seen=reading(cpufreq=ACPI)))
    good = [finding("host.cpufreq", state=State.OK)]
    seen = reading(cpufreq=replace(ACPI, governors=("performance",)))
    rest: dict[str, Any] = {"seen": seen, "before": (before,), "records": records_of([before])}
    assert wished(good, spec, now=NOW + 59 * MINUTE, **rest).standing == (before,)
    assert not wished(good, spec, now=NOW + 60 * MINUTE, **rest).standing, "its time is over"
    assert not wished(good, policy(CAP), **rest).standing, "the policy has no such remedy any more"


def test_a_clock_that_was_a_year_ahead_keeps_no_action() -> None:
    assert after([hot(0), hot(1)], -timedelta(seconds=5)).standing
    assert not after([hot(0), hot(1)], -timedelta(days=365)).standing


@pytest.mark.parametrize(
    ("findings", "later", "left"),
    [
        pytest.param([hot(0), hot(1)], MINUTE, {0, 1}, id="still hot"),
        pytest.param([hot(0, State.UNKNOWN), hot(1, State.OK)], MINUTE, {0}, id="one has cooled"),
        pytest.param([hot(0), hot(1)], 60 * MINUTE, set(), id="its time is over"),
    ],
)
def test_while_the_policy_is_not_known_what_has_cleared_ends_all_the_same(
    findings: list[Finding], later: timedelta, left: set[int]
) -> None:
    before = only(wished([hot(0), hot(1)], policy(CAP)))
    basis = Basis(tuple(findings), policy(), "", BY_ID, reading(), NOW + later)
    kept = held(basis, (before,), records_of([before]))
    assert {change.target for action in kept for change in action.changes} == {UUIDS[index] for index in left}
