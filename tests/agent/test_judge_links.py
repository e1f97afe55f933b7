"""NVLink and the fabric: ports against the expected ones, capacity, peers, and what a machine may hide."""

from __future__ import annotations

from typing import Any

import pytest
from node_readings import LINK, NOT_READ, NOT_THERE, Watch, changed, finding, healthy

from hisparse.nodes.findings import State
from hisparse.nodes.policy import CheckOverride
from hisparse_agent.judge.judge import once
from hisparse_agent.judge.links import fabric_faults
from hisparse_agent.readings import Fabric, NvLink, Pcie

INACTIVE = {"state": 0, "bytes_per_second": NOT_THERE}
NINE_DOWN = {f"nvml.gpus.0.links.{port}.{name}": value for port in range(9, 18) for name, value in INACTIVE.items()}


def links(active: int, total: int, rate: int = LINK) -> tuple[NvLink, ...]:
    return tuple(
        NvLink(port, 1, rate, 0, 0, 0) if port < active else NvLink(port, 0, NOT_THERE, 0, 0, 0)
        for port in range(total)
    )


@pytest.mark.parametrize(
    ("down", "words"),
    [
        pytest.param((5,), "port 5 is not", id="one"),
        pytest.param((0, 1, 9), "ports 0, 1, 9 are not", id="a pair is no range"),
        pytest.param((0, 2, 3, 4, 17), "ports 0, 2-4, 17 are not", id="a range between others"),
        pytest.param(range(18), "ports 0-17 are not", id="all"),
    ],
)
def test_ports_that_are_down_are_told_in_ranges(down: tuple[int, ...], words: str) -> None:
    edits = {f"nvml.gpus.0.links.{port}.state": 0 for port in down}
    assert f", {words};" in finding(once(changed(healthy(), edits)), "nvlink.links", "gpu-0").message


def test_one_peer_is_not_called_all() -> None:
    assert finding(once(healthy()), "nvlink.p2p", "gpu-0").message == "the other GPU is reachable over NVLink"


def card(product: str, ports: Any, **edits: Any) -> dict[str, Any]:
    named = {"product": product, "links": ports, **edits}
    return {f"nvml.gpus.{index}.{path}": value for index in range(2) for path, value in named.items()}


def test_18_links_falling_to_9_is_critical_after_three_polls_and_only_the_count_shows_it() -> None:
    watch = Watch()
    watch.watch(polls=45)
    for poll in (1, 2):
        found = finding(watch.watch(NINE_DOWN).findings, "nvlink.links", "gpu-0")
        assert (found.state, found.value) == (State.OK, "9")
        assert f"{poll} of 3 polls that make it a fault" in found.message
    findings = watch.watch(NINE_DOWN).findings
    down = finding(findings, "nvlink.links", "gpu-0")
    assert (down.state, down.reason, down.value, down.limit, down.unit) == (
        State.CRITICAL,
        "NvlinkLinksDown",
        "9",
        "18",
        "count",
    )
    assert down.message.startswith("9 of 18 NVLink ports are active (NVIDIA H200 has 18), ports 9-17 are not; run ")
    low = finding(findings, "nvlink.capacity", "gpu-0")
    assert (low.state, low.value, low.limit, low.unit) == (State.CRITICAL, "0.5", "0.9", "ratio")
    assert "478.1 GB/s both ways, 50.0 % of the 956.2 GB/s of 18 ports" in low.message
    # the other signals stay good, on this GPU and the other
    for check in ("nvlink.p2p", "fabric.state", "fabric.health", "nvlink.errors"):
        assert finding(findings, check, "gpu-0").state is State.OK
    assert finding(findings, "nvlink.links", "gpu-1").state is State.OK


def test_links_that_come_back_end_it_after_twenty_polls() -> None:
    watch = Watch()
    watch.watch(NINE_DOWN, polls=3)
    held = finding(watch.watch(polls=19).findings, "nvlink.links", "gpu-0")
    assert held.state is State.CRITICAL
    assert "19 of 20 polls that end it" in held.message
    assert finding(watch.watch().findings, "nvlink.links", "gpu-0").state is State.OK


def test_right_after_boot_links_that_train_are_no_fault() -> None:
    watch = Watch()
    young = finding(watch.watch({**NINE_DOWN, "host.uptime": 299}, polls=10).findings, "nvlink.links", "gpu-0")
    assert (young.state, young.reason) == (State.UNKNOWN, "BootGrace")
    old = finding(watch.watch({**NINE_DOWN, "host.uptime": 300}, polls=3).findings, "nvlink.links", "gpu-0")
    assert old.state is State.CRITICAL, "three polls count from the end of the grace"


@pytest.mark.parametrize(
    ("edits", "state", "value", "limit"),
    [
        pytest.param(card("NVIDIA H200", links(18, 18)), State.OK, "18", "18", id="H200"),
        pytest.param(
            card("NVIDIA H200", (*links(18, 18), *(NvLink(port, NOT_THERE) for port in range(18, 36)))),
            State.OK,
            "18",
            "18",
            id="asked for 36, has 18",
        ),
        pytest.param(card("NVIDIA H100 80GB HBM3", links(17, 18)), State.CRITICAL, "17", "18", id="H100 with one down"),
        pytest.param(card("NVIDIA A100-SXM4-80GB", links(12, 12, 25_000_000_000)), State.OK, "12", "12", id="A100"),
        pytest.param(card("NVIDIA A100-SXM4-80GB", links(0, 12)), State.CRITICAL, "0", "12", id="A100, all inactive"),
        pytest.param(
            card("NVIDIA H100 NVL", links(12, 18)), State.OK, "12", "12", id="H100 NVL has 12 of 18 by design"
        ),
        pytest.param(card("NVIDIA H100 NVL", links(6, 18)), State.CRITICAL, "6", "12", id="H100 NVL, a bridge lost"),
        pytest.param(
            card("NVIDIA H100 NVL", links(0, 18)), State.UNSUPPORTED, None, None, id="H100 NVL without a bridge"
        ),
        pytest.param(
            card("NVIDIA B300 SXM6 AC", links(18, 18)),
            State.OK,
            "18",
            "18",
            id="nobody promises: what is seen is learned",
        ),
        pytest.param(card("NVIDIA B200", links(0, 18)), State.CRITICAL, "0", "18", id="B200, all inactive"),
        pytest.param(
            card("Tesla V100-SXM2-32GB", links(4, 6)),
            State.UNKNOWN,
            None,
            None,
            id="nobody promises and some were never up: not known to be well",
        ),
        pytest.param(
            card("NVIDIA B300 SXM6 AC", links(0, 18)), State.UNKNOWN, None, None, id="nobody promises, and none is up"
        ),
        pytest.param(card("NVIDIA L40S", ()), State.UNSUPPORTED, None, None, id="no NVLink at all"),
        pytest.param(card("NVIDIA H200", NOT_THERE), State.UNSUPPORTED, None, None, id="a machine that hides it"),
        pytest.param(
            card("NVIDIA H200", tuple(NvLink(port, NOT_THERE, NOT_THERE) for port in range(18))),
            State.UNSUPPORTED,
            None,
            None,
            id="hidden port by port",
        ),
        pytest.param(
            card("NVIDIA H200", links(18, 18), mig=True), State.UNSUPPORTED, None, None, id="MIG refuses the question"
        ),
        pytest.param(card("NVIDIA H200", NOT_READ), State.UNKNOWN, None, None, id="not read"),
    ],
)
def test_ports_against_what_the_product_has(
    edits: dict[str, Any], state: State, value: str | None, limit: str | None
) -> None:
    found = finding(once(changed(healthy(), edits)), "nvlink.links", "gpu-0")
    assert (found.state, found.value, found.limit) == (state, value, limit)


def test_a_port_asleep_is_there_and_one_with_traffic_off_is_not() -> None:
    asleep = once(changed(healthy(), {"nvml.gpus.0.links.4.state": 2}))
    off = once(changed(healthy(), {"nvml.gpus.0.links.4.state": 3}))
    assert finding(asleep, "nvlink.links", "gpu-0").state is State.OK
    assert finding(off, "nvlink.links", "gpu-0").state is State.CRITICAL


def test_what_was_learned_outlives_a_boot() -> None:
    watch = Watch()
    watch.watch(card("NVIDIA B300 SXM6 AC", links(18, 18)))
    booted = {**card("NVIDIA B300 SXM6 AC", links(16, 18)), "host.boot_id": "boot-2"}
    found = finding(watch.watch(booted, polls=3).findings, "nvlink.links", "gpu-0")
    assert (found.state, found.value, found.limit) == (State.CRITICAL, "16", "18")
    assert "the most that were ever active on this card" in found.message


def test_a_policy_says_how_many_ports_there_should_be() -> None:
    watch = Watch(overrides={"nvlink.links": CheckOverride(check="nvlink.links", critical="9", enter_polls=1)})
    assert finding(watch.watch(NINE_DOWN).findings, "nvlink.links", "gpu-0").state is State.OK
    lost = {**NINE_DOWN, "nvml.gpus.0.links.8.state": 0}
    assert finding(watch.watch(lost).findings, "nvlink.links", "gpu-0").state is State.CRITICAL


def test_capacity_of_slow_links_is_a_warning() -> None:
    slow = changed(healthy(), {"nvml.gpus.0.links.0.bytes_per_second": LINK // 2})
    found = finding(once(slow), "nvlink.capacity", "gpu-0")
    assert (found.state, found.value) == (State.WARN, "0.9722")


def test_traffic_plays_no_part_an_idle_gpu_has_its_full_capacity() -> None:
    idle = changed(healthy(), {"nvml.gpus.0.utilisation_percent": 0, "nvml.gpus.0.processes": 0})
    assert finding(once(idle), "nvlink.capacity", "gpu-0").state is State.OK


@pytest.mark.parametrize(
    ("edits", "state"),
    [
        pytest.param({"nvml.gpus.0.peers.1": 5}, State.CRITICAL, id="links up, peer not OK"),
        pytest.param({"nvml.gpus.0.peers.1": 5, **NINE_DOWN}, State.UNKNOWN, id="links down: nvlink.links says so"),
        pytest.param(NINE_DOWN, State.OK, id="links down and the peer still OK"),
        pytest.param(
            {"nvml.gpus.0.peers.1": 5, "nvml.gpus.1.links.3.state": 0},
            State.UNKNOWN,
            id="the peer's links are down: its nvlink.links says so",
        ),
        pytest.param(
            {"nvml.gpus.0.peers.1": 5, "nvml.gpus.1.lost": True}, State.UNKNOWN, id="the peer is lost: gpu.lost says so"
        ),
        pytest.param(
            {"nvml.gpus.0.peers": {7: 5}}, State.CRITICAL, id="the peer is not listed and nothing explains it"
        ),
        pytest.param(
            {**card("NVIDIA A100 80GB PCIe", links(12, 12)), "nvml.gpus.0.peers.1": 5},
            State.UNSUPPORTED,
            id="bridged cards: who is joined is not known",
        ),
        pytest.param({"nvml.gpus.0.mig": True}, State.UNSUPPORTED, id="MIG"),
    ],
)
def test_peers(edits: dict[str, Any], state: State) -> None:
    assert finding(once(changed(healthy(), edits)), "nvlink.p2p", "gpu-0").state is state


@pytest.mark.parametrize(
    ("mask", "names"),
    [
        pytest.param(0x1AA, (), id="healthy"),
        pytest.param(0x1A9, ("degraded bandwidth",), id="degraded bandwidth"),
        pytest.param(0x1A6, ("route recovery",), id="route recovery"),
        pytest.param(0x19A, ("an unhealthy route",), id="unhealthy route"),
        pytest.param(0x16A, ("access timeout recovery",), id="access timeout"),
        pytest.param(0x4AA, ("no partition",), id="no partition"),
        pytest.param(0x5A9, ("degraded bandwidth", "too few NVLinks"), id="two at once"),
        pytest.param(0x9AA, ("configuration fault 9",), id="a fault of a newer driver"),
        pytest.param(0, (), id="nothing is supported"),
    ],
)
def test_in_a_group_of_the_health_mask_1_is_the_fault_and_2_is_healthy(mask: int, names: tuple[str, ...]) -> None:
    assert tuple(name for name, _ in fabric_faults(mask)) == names


@pytest.mark.parametrize(
    ("fabric", "uptime", "state"),
    [
        pytest.param(Fabric(3, 0), 9000, State.OK, id="completed, success"),
        pytest.param(Fabric(3, 0), 20, State.OK, id="completed right after boot"),
        pytest.param(Fabric(3, 999), 9000, State.CRITICAL, id="completed with an error"),
        pytest.param(Fabric(2, 0), 299, State.UNKNOWN, id="in progress after boot"),
        pytest.param(Fabric(2, 0), 300, State.CRITICAL, id="in progress five minutes after boot"),
        pytest.param(Fabric(1, 0), 9000, State.CRITICAL, id="not started"),
        pytest.param(Fabric(2, 0), NOT_READ, State.UNKNOWN, id="nobody knows when it booted"),
        pytest.param(Fabric(0, 0), 9000, State.UNSUPPORTED, id="no fabric, or hidden"),
    ],
)
def test_fabric_state(fabric: Fabric, uptime: Any, state: State) -> None:
    reading = changed(healthy(), {"nvml.gpus.0.fabric": fabric, "host.uptime": uptime})
    assert finding(once(reading), "fabric.state", "gpu-0").state is state


def test_a_link_that_recovers_twice_in_ten_minutes_is_critical_and_once_is_not() -> None:
    watch = Watch()
    watch.watch(polls=45)
    once_only = watch.watch({"nvml.gpus.0.links.3.recoveries": 1}, polls=20)
    assert finding(once_only.findings, "nvlink.errors", "gpu-0").state is State.OK
    twice = finding(watch.watch({"nvml.gpus.0.links.3.recoveries": 2}).findings, "nvlink.errors", "gpu-0")
    assert twice.state is State.CRITICAL
    assert "port 3 has recovered 2 times" in twice.message


def test_the_rate_is_that_of_the_worst_port_and_not_their_sum() -> None:
    def spread(poll: int) -> int:
        return poll * 20  # 80 a minute on each of two ports

    edits = {"nvml.gpus.0.links.3.crc_errors": spread, "nvml.gpus.0.links.4.crc_errors": spread}
    found = finding(Watch().watch(edits, polls=45).findings, "nvlink.errors", "gpu-0")
    assert (found.state, found.value) == (State.OK, "80")


# --- PCIe ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("product", "load", "pcie", "state"),
    [
        pytest.param("NVIDIA H200", 0, Pcie(5, 5, 16, 16), State.OK, id="as it should be"),
        pytest.param("NVIDIA H200", 0, Pcie(4, 5, 16, 16), State.WARN, id="SXM is judged when idle"),
        pytest.param("NVIDIA H200", 0, Pcie(3, 5, 8, 16), State.CRITICAL, id="gen3 x8"),
        pytest.param("NVIDIA H200", 0, Pcie(5, 5, 8, 16), State.CRITICAL, id="half of the lanes"),
        pytest.param("NVIDIA H200", 0, Pcie(3, 5, 16, 16), State.CRITICAL, id="gen3"),
        pytest.param("NVIDIA L40S", 20, Pcie(1, 4, 16, 16), State.UNKNOWN, id="other cards lower it when idle"),
        pytest.param("NVIDIA L40S", 21, Pcie(1, 4, 16, 16), State.CRITICAL, id="and must not under load"),
        pytest.param("NVIDIA L40S", NOT_READ, Pcie(1, 4, 16, 16), State.UNKNOWN, id="load not read"),
        pytest.param("NVIDIA L40S", 0, Pcie(4, 4, 16, 16), State.OK, id="full speed needs no load"),
        pytest.param("Tesla V100-SXM2-32GB", 0, Pcie(3, 3, 16, 16), State.OK, id="a card that has gen3 at most"),
        pytest.param("NVIDIA H200", 0, Pcie(5, 5, 16, NOT_READ), State.UNKNOWN, id="not read"),
    ],
)
def test_pcie_link(product: str, load: Any, pcie: Pcie, state: State) -> None:
    edits = {"nvml.gpus.0.product": product, "nvml.gpus.0.utilisation_percent": load, "nvml.gpus.0.pcie": pcie}
    assert finding(once(changed(healthy(), edits)), "pcie.link", "gpu-0").state is state


def test_counters_of_a_healthy_card_are_not_zero_and_count_only_when_they_rise() -> None:
    many = {"nvml.gpus.0.pcie": Pcie(5, 5, 16, 16, replays=857, correctable=44, nonfatal=3, fatal=1)}
    assert finding(Watch().watch(many, polls=45).findings, "pcie.errors", "gpu-0").state is State.OK
