import pytest

from hisparse.nodes.catalogue import Verb
from hisparse_agent.actuator.bounds import (
    PowerLimits,
    Setting,
    is_recorded_target,
    is_target,
    may_restore,
    refusal,
)

GPU = "GPU-11111111-2222-3333-4444-555555555555"
H200 = PowerLimits(default=700_000, least=200_000, most=700_000)


def card(present: int = 700_000, limits: PowerLimits = H200) -> Setting:
    return Setting(GPU, str(present), power=limits)


@pytest.mark.parametrize(
    ("present", "limits", "new", "why"),
    [
        pytest.param(700_000, H200, "630000", None, id="one step below the default"),
        pytest.param(700_000, H200, "490000", None, id="70 % of the default is the floor and still allowed"),
        pytest.param(700_000, H200, "489999", "below 490 W", id="a milliwatt below the floor"),
        pytest.param(
            700_000,
            H200,
            "700000",
            "700 W is the present limit, the card's default: nothing to do",
            id="an H200 capped to 700 W is an H200",
        ),
        pytest.param(630_000, H200, "630000", "630 W is the present limit: nothing to do", id="as it is"),
        pytest.param(630_000, H200, "700000", "caps nothing", id="the default is no cap"),
        pytest.param(700_000, H200, "800000", "caps nothing", id="what cannot be set at all"),
        pytest.param(560_000, H200, "630000", "would raise", id="a person's lower limit is not raised"),
        pytest.param(
            600_000,
            PowerLimits(default=600_000, least=500_000, most=600_000),
            "450000",
            "below 500 W",
            id="the card's minimum is above 70 %",
        ),
        pytest.param(700_000, H200, "-1", "no change of whole numbers", id="negative"),
        pytest.param(700_000, H200, "6e5", "no change of whole numbers", id="not digits"),
        pytest.param(
            700_000,
            H200,
            "\u0669\u0660\u0660\u0660\u0660\u0660",
            "no change of whole numbers",
            id="digits of another script",
        ),
        pytest.param(700_000, H200, "630000\n", "no change of whole numbers", id="a line end"),
    ],
)
def test_a_power_cap_lies_between_floor_and_default_and_only_lowers(
    present: int, limits: PowerLimits, new: str, why: str | None
) -> None:
    found = refusal(Verb.POWER_CAP, card(present, limits), new)
    assert found is None if why is None else why in (found or "")


@pytest.mark.parametrize(
    ("name", "present", "new", "why"),
    [
        pytest.param("vm.swappiness", "60", "10", None, id="swappiness"),
        pytest.param("vm.swappiness", "60", "0", None, id="the least"),
        pytest.param("vm.swappiness", "60", "101", "not between 0 and 100", id="more than we write"),
        pytest.param("vm.swappiness", "10", "10", "nothing to do", id="as it is"),
        pytest.param("vm.swappiness", "60", "010", "write 10", id="a text that would not read back"),
        pytest.param("vm.swappiness", "", "10", "no change of whole numbers", id="an empty file"),
        pytest.param("vm.zone_reclaim_mode", "1", "0", None, id="zone reclaim off"),
        pytest.param("vm.zone_reclaim_mode", "0", "1", "not between 0 and 0", id="zone reclaim never on"),
        pytest.param("kernel.numa_balancing", "1", "0", None, id="NUMA balancing off"),
        pytest.param("vm.drop_caches", "0", "3", "is nothing that sysctl changes", id="not on the list"),
        pytest.param("kernel.core_pattern", "core", "|/bin/sh", "is nothing that sysctl changes", id="an attack"),
        pytest.param("vm.swappiness/../../kernel/panic", "0", "1", "is nothing that sysctl changes", id="a path"),
    ],
)
def test_a_sysctl_is_on_the_list_and_within_its_range(name: str, present: str, new: str, why: str | None) -> None:
    found = refusal(Verb.SYSCTL, Setting(name, present), new)
    assert found is None if why is None else why in (found or "")


@pytest.mark.parametrize(
    ("target", "present", "offered", "new", "why"),
    [
        pytest.param(
            "cpu0/scaling_governor", "powersave", ("performance", "powersave"), "performance", None, id="governor"
        ),
        pytest.param(
            "cpu12/energy_performance_preference",
            "balance_performance",
            ("default", "performance", "balance_performance"),
            "performance",
            None,
            id="preference",
        ),
        pytest.param(
            "cpu0/scaling_governor",
            "powersave",
            ("powersave",),
            "performance",
            "the driver offers powersave",
            id="not offered",
        ),
        pytest.param(
            "cpu0/scaling_governor",
            "powersave",
            (),
            "performance",
            "the driver offers nothing",
            id="nothing is offered",
        ),
        pytest.param(
            "cpu0/scaling_governor", "performance", ("performance",), "performance", "nothing to do", id="as it is"
        ),
        pytest.param(
            "cpu0/scaling_max_freq", "1", ("1", "2"), "2", "is nothing that cpufreq changes", id="another file"
        ),
        pytest.param("cpu0/../x/scaling_governor", "a", ("b",), "b", "is nothing that cpufreq changes", id="a path"),
    ],
)
def test_a_cpu_setting_is_one_of_two_and_its_value_one_that_is_offered(
    target: str, present: str, offered: tuple[str, ...], new: str, why: str | None
) -> None:
    found = refusal(Verb.CPUFREQ, Setting(target, present, offered=offered), new)
    assert found is None if why is None else why in (found or "")


@pytest.mark.parametrize("verb", list(Verb))
@pytest.mark.parametrize(
    "target",
    ["", "/", "../../etc/passwd", "vm.overcommit_memory", "cpu1/../scaling_governor", "GPU-", "gpu-0", "cpu\n/x"],
)
def test_what_is_not_on_the_list_is_no_target(verb: Verb, target: str) -> None:
    assert not is_target(verb, target)
    assert not is_recorded_target(verb, target)


def test_a_target_belongs_to_its_verb_alone() -> None:
    every = {
        Verb.POWER_CAP: GPU,
        Verb.SYSCTL: "vm.swappiness",
        Verb.CPUFREQ: "cpu/scaling_governor",
    }
    for verb in Verb:
        assert [other for other, target in every.items() if is_target(verb, target)] == [verb]
    assert not is_recorded_target(Verb.CPUFREQ, "cpu/scaling_governor"), "records name the CPU"


@pytest.mark.parametrize(
    ("verb", "setting", "old", "may"),
    [
        pytest.param(Verb.POWER_CAP, card(), "700000", True, id="the default"),
        pytest.param(Verb.POWER_CAP, card(), "300000", True, id="a person's limit that we would never set"),
        pytest.param(Verb.POWER_CAP, card(), "700001", False, id="above what the card takes"),
        pytest.param(Verb.SYSCTL, Setting("vm.swappiness", "10"), "180", True, id="kernels take up to 200"),
        pytest.param(Verb.SYSCTL, Setting("vm.swappiness", "10"), "60; reboot", False, id="no number"),
        pytest.param(Verb.SYSCTL, Setting("kernel.panic", "10"), "60", False, id="a forged record"),
        pytest.param(Verb.CPUFREQ, Setting("cpu0/scaling_governor", "a", offered=("a", "b")), "b", True, id="offered"),
        pytest.param(Verb.CPUFREQ, Setting("cpu0/scaling_governor", "a", offered=("a",)), "b", False, id="not offered"),
    ],
)
def test_only_a_value_that_the_host_can_have_had_is_put_back(verb: Verb, setting: Setting, old: str, may: bool) -> None:
    assert may_restore(verb, setting, old) is may
