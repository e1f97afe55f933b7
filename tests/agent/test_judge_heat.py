"""Heat, throttling and power: margin and share of time, never a bare temperature; the power cap is information."""

from __future__ import annotations

from typing import Any

import pytest
from node_readings import NOT_READ, NOT_THERE, NS, POLL_S, Watch, changed, finding, healthy

from hisparse.nodes.findings import State
from hisparse.nodes.policy import CheckOverride
from hisparse_agent.judge.judge import once
from hisparse_agent.readings import Heat, Power


def margin(value: int) -> dict[str, Any]:
    return {"nvml.gpus.0.heat.margin": value, "nvml.gpus.0.heat.gpu": 87 - value}


def told(watch: Watch, edits: dict[str, Any], polls: int) -> str:
    """One letter per poll: o Ok, w Warn, c Critical, u Unknown."""
    states = [finding(watch.watch(edits).findings, "thermal.margin", "gpu-0").state for _ in range(polls)]
    return "".join(state.value[0].lower() for state in states)


def test_two_degrees_for_a_minute_are_critical_and_ten_for_five_minutes_a_warning() -> None:
    assert told(Watch(poll=1), margin(2), 4) == "uuuc"
    watch = Watch()
    watch.watch()
    assert told(watch, margin(10), 20) == "o" * 19 + "w"


@pytest.mark.parametrize(
    ("left", "words"),
    [
        (-1, "the GPU is 1 C above where it begins to throttle"),
        (1, "1 C is left until the GPU throttles"),
        (2, "2 C are left until the GPU throttles"),
    ],
)
def test_no_margin_is_told_as_less_than_nothing(left: int, words: str) -> None:
    heat = {"nvml.gpus.0.heat.margin": left, "nvml.gpus.0.heat.gpu": 87}
    assert finding(once(changed(healthy(), heat)), "thermal.margin", "gpu-0").message.startswith(words)


def test_it_ends_when_more_than_fifteen_degrees_were_left_for_ten_minutes() -> None:
    watch = Watch()
    watch.watch(margin(2), polls=4)
    assert told(watch, margin(15), 100) == "c" * 39 + "w" * 61, "15 is not hot any more and ends nothing"
    assert told(watch, margin(16), 40) == "w" * 39 + "o"


def test_a_gpu_at_85_degrees_with_margin_is_well() -> None:
    warm = {"nvml.gpus.0.heat": Heat(gpu=85, margin=11, hbm=80, gpu_limit=96, slowdown=98, hbm_limit=105)}
    assert told(Watch(), warm, 30) == "o" * 30


@pytest.mark.parametrize(
    ("heat", "state", "value"),
    [
        pytest.param(Heat(gpu=33, margin=54, gpu_limit=87), State.OK, "54", id="idle H200"),
        pytest.param(Heat(gpu=90, margin=-1, gpu_limit=87), State.CRITICAL, "-1", id="past the limit"),
        pytest.param(Heat(gpu=87, margin=0, gpu_limit=87), State.CRITICAL, "0", id="at the limit"),
        pytest.param(Heat(gpu=82, margin=0, gpu_limit=87), State.CRITICAL, "0", id="near the limit is believed"),
        pytest.param(Heat(gpu=81, margin=0, gpu_limit=87), State.UNKNOWN, None, id="not near the limit is not"),
        pytest.param(Heat(gpu=33, margin=-3, slowdown=89), State.UNKNOWN, None, id="a cool card without margin"),
        pytest.param(Heat(gpu=NOT_READ, margin=0, gpu_limit=87), State.UNKNOWN, None, id="nothing to confirm it with"),
        pytest.param(Heat(gpu=90, margin=0), State.UNKNOWN, None, id="no limit to compare with"),
        pytest.param(
            Heat(gpu=60, margin=NOT_THERE, gpu_limit=93), State.OK, "33", id="A100: the limit less the temperature"
        ),
        pytest.param(Heat(gpu=92, margin=NOT_THERE, gpu_limit=93), State.CRITICAL, "1", id="A100, hot"),
        pytest.param(Heat(gpu=60, margin=NOT_THERE), State.UNSUPPORTED, None, id="neither margin nor limit"),
        pytest.param(Heat(gpu=60, margin=NOT_READ, gpu_limit=93), State.UNKNOWN, None, id="a margin that was not read"),
    ],
)
def test_margin(heat: Heat, state: State, value: str | None) -> None:
    found = finding(once(changed(healthy(), {"nvml.gpus.0.heat": heat})), "thermal.margin", "gpu-0")
    assert (found.state, found.value) == (state, value), found.message


@pytest.mark.parametrize(
    ("hbm", "own", "state"),
    [
        pytest.param(89, 95, State.OK, id="below"),
        pytest.param(90, 95, State.WARN, id="warning"),
        pytest.param(95, 95, State.CRITICAL, id="critical"),
        pytest.param(82, 87, State.WARN, id="the card's own limit is lower"),
        pytest.param(87, 87, State.CRITICAL, id="at the card's own limit"),
        pytest.param(90, 105, State.WARN, id="a higher limit of the card raises nothing"),
        pytest.param(90, NOT_READ, State.WARN, id="no limit of the card"),
    ],
)
def test_memory_of_the_gpu(hbm: int, own: Any, state: State) -> None:
    edits = {"nvml.gpus.0.heat.hbm": hbm, "nvml.gpus.0.heat.hbm_limit": own}
    assert finding(once(changed(healthy(), edits)), "thermal.hbm", "gpu-0").state is state


def test_a_policy_limit_counts_as_it_is() -> None:
    limits = {"thermal.hbm": CheckOverride(check="thermal.hbm", warn="97", critical="99")}
    hot = changed(healthy(), {"nvml.gpus.0.heat.hbm": 96, "nvml.gpus.0.heat.hbm_limit": 87})
    assert finding(once(hot, overrides=limits), "thermal.hbm", "gpu-0").state is State.OK


def hot(share: str) -> dict[str, Any]:
    numerator, denominator = (int(part) for part in share.split("/"))
    return {"nvml.gpus.0.throttle.hw_thermal_ns": lambda poll: poll * POLL_S * NS * numerator // denominator}


@pytest.mark.parametrize(
    ("share", "state", "value"),
    [
        pytest.param("1/100", State.OK, "0.01", id="one percent is still good"),
        pytest.param("2/100", State.WARN, "0.02", id="two are not"),
        pytest.param("10/100", State.WARN, "0.1", id="ten percent is not critical yet"),
        pytest.param("11/100", State.CRITICAL, "0.11", id="eleven are"),
    ],
)
def test_throttling_is_a_share_of_the_last_five_minutes(share: str, state: State, value: str) -> None:
    found = finding(Watch().watch(hot(share), polls=30).findings, "throttle.hw_thermal", "gpu-0")
    assert (found.state, found.value, found.unit) == (state, value, "ratio")


def test_a_window_that_is_too_short_is_unknown_and_says_how_long_it_takes() -> None:
    watch = Watch()
    first = finding(watch.watch(hot("1/2")).findings, "throttle.hw_thermal", "gpu-0")
    assert first.state is State.UNKNOWN
    assert "needs a second reading" in first.message
    later = finding(watch.watch(hot("1/2"), polls=10).findings, "throttle.hw_thermal", "gpu-0")
    assert later.state is State.UNKNOWN
    assert "needs 300 s of readings and has 150 s" in later.message


def test_a_counter_that_went_backwards_is_unknown_until_it_has_left_the_window() -> None:
    watch = Watch()
    watch.watch(hot("0/1"), polls=30)

    def reloaded(poll: int) -> int:
        return 0 if poll >= 30 else poll

    watch.watch({"nvml.gpus.0.throttle.hw_thermal_ns": 500}, polls=1)
    states = [
        finding(
            watch.watch({"nvml.gpus.0.throttle.hw_thermal_ns": reloaded}).findings, "throttle.hw_thermal", "gpu-0"
        ).state
        for _ in range(25)
    ]
    assert states == [State.UNKNOWN] * 20 + [State.OK] * 5


@pytest.mark.parametrize(
    ("bad_polls", "state"), [pytest.param(0, State.OK, id="never"), pytest.param(21, State.CRITICAL, id="always")]
)
def test_without_a_counter_the_share_of_readings_with_the_bit_counts(bad_polls: int, state: State) -> None:
    watch = Watch()
    silent = {"nvml.gpus.0.throttle.hw_thermal_ns": NOT_THERE}
    watch.watch(silent, polls=25)
    edits = {**silent, "nvml.gpus.0.throttle.reasons": 0x48 if bad_polls else 0x4}
    assert finding(watch.watch(edits, polls=21).findings, "throttle.hw_thermal", "gpu-0").state is state


def test_the_power_cap_under_full_load_is_information() -> None:
    always = {"nvml.gpus.0.throttle.sw_power_ns": lambda poll: poll * POLL_S * NS}
    found = finding(Watch().watch(always, polls=45).findings, "throttle.sw_power", "gpu-0")
    assert (found.state, found.value) == (State.OK, "1")
    assert "normal under load" in found.message


def test_the_power_brake_in_three_polls_in_a_row_is_a_warning() -> None:
    watch = Watch()
    watch.watch(polls=30)
    pulled = {"nvml.gpus.0.throttle.power_brake_ns": lambda poll: (poll - 29) * 1000}
    states = [finding(watch.watch(pulled).findings, "throttle.power_brake", "gpu-0").state for _ in range(3)]
    assert states == [State.OK, State.OK, State.WARN]


def test_the_power_brake_once_is_no_fault() -> None:
    watch = Watch()
    watch.watch(polls=30)
    found = finding(
        watch.watch({"nvml.gpus.0.throttle.power_brake_ns": 10**9}, polls=10).findings, "throttle.power_brake", "gpu-0"
    )
    assert found.state is State.OK


# --- power -----------------------------------------------------------------------------------------------------------


def power(limit: int, requested: int, enforced: int) -> dict[str, Any]:
    return {
        "nvml.gpus.0.power": Power(600_000, limit, 700_000, 200_000, 700_000, enforced, requested, 1, persistent=True)
    }


@pytest.mark.parametrize(
    ("edits", "state", "words"),
    [
        pytest.param(power(700_000, 700_000, 700_000), State.OK, "700 W", id="nobody caps it"),
        pytest.param(
            power(500_000, 700_000, 500_000), State.CRITICAL, "500 W are enforced of 700 W", id="a BMC caps it"
        ),
        pytest.param(
            power(500_000, 500_000, 500_000),
            State.CRITICAL,
            "the power limit is 500 W on a GPU with a default of 700 W",
            id="somebody set 500 W",
        ),
        pytest.param(power(560_000, 560_000, 560_000), State.WARN, "560 W", id="80 % is a warning"),
        pytest.param(power(559_000, 559_000, 559_000), State.CRITICAL, "559 W", id="less is critical"),
    ],
)
def test_power_that_others_cap(edits: dict[str, Any], state: State, words: str) -> None:
    found = finding(once(changed(healthy(), edits)), "power.oob", "gpu-0")
    assert found.state is state
    assert words in found.message


def test_a_cap_of_our_own_is_no_fault_and_a_lower_one_is() -> None:
    ours = Watch(own_caps={"GPU-0": 630_000})
    found = finding(ours.watch(power(630_000, 630_000, 630_000), polls=3).findings, "power.oob", "gpu-0")
    assert found.state is State.OK
    assert "a cap of this project of 630 W" in found.message
    capped = finding(ours.watch(power(600_000, 630_000, 600_000), polls=3).findings, "power.oob", "gpu-0")
    assert capped.state is State.WARN


def test_a_default_that_is_no_power_is_not_divided_by() -> None:
    nothing = changed(healthy(), {"nvml.gpus.0.power.default": 0})
    assert finding(once(nothing), "power.oob", "gpu-0").state is State.UNKNOWN
