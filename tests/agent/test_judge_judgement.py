"""The whole judgement: grace, blindness, cards that move, boots, policies, and what holds for any reading."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from node_readings import GIB, NOT_READ, NOT_THERE, START, UPTIME, Watch, changed, finding, gpu, healthy

from hisparse.nodes.catalogue import Pace
from hisparse.nodes.checks import BY_ID, CHECKS
from hisparse.nodes.findings import Finding, State
from hisparse.nodes.policy import CheckOverride
from hisparse_agent.judge.judge import MAINTENANCE_ANNOTATION, UPGRADE_LABEL, judge, once
from hisparse_agent.judge.ledger import Ledger
from hisparse_agent.readings import Missing, NodeReading, Nvml, Xid

LOW_MEMORY = {"memory.available": GIB}
LINK_DOWN = {"nvml.gpus.0.links.3.state": 0}
HOT = {"nvml.gpus.0.heat.margin": 1}


def states(findings: tuple[Finding, ...], name: str) -> dict[str, State]:
    return {one.subject: one.state for one in findings if one.check == name}


# --- grace -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("edits", "reason", "memory_too"),
    [
        pytest.param(
            {"annotations": {MAINTENANCE_ANNOTATION: "fans, ticket 12"}}, "Maintenance", True, id="maintenance"
        ),
        pytest.param({"labels": {UPGRADE_LABEL: "drain-required"}}, "DriverUpgrade", False, id="driver upgrade"),
    ],
)
def test_in_maintenance_and_upgrades_a_fault_is_not_taken_for_one(
    edits: dict[str, Any], reason: str, memory_too: bool
) -> None:
    findings = Watch().watch({**LINK_DOWN, **HOT, **LOW_MEMORY, **edits}, polls=30).findings
    for name in ("nvlink.links", "thermal.margin"):
        found = finding(findings, name, "gpu-0")
        assert (found.state, found.reason) == (State.UNKNOWN, reason)
        assert ("fans, ticket 12" in found.message) is (reason == "Maintenance")
    assert finding(findings, "nvlink.links", "gpu-1").state is State.OK
    memory = finding(findings, "host.mem.available").state
    assert memory is (State.UNKNOWN if memory_too else State.CRITICAL)


@pytest.mark.parametrize(
    "edits",
    [
        pytest.param({"annotations": {MAINTENANCE_ANNOTATION: ""}}, id="an empty annotation is none"),
        pytest.param({"labels": {UPGRADE_LABEL: "upgrade-done"}}, id="an upgrade that is done"),
    ],
)
def test_what_is_no_grace(edits: dict[str, Any]) -> None:
    assert (
        finding(Watch().watch({**LINK_DOWN, **edits}, polls=3).findings, "nvlink.links", "gpu-0").state
        is State.CRITICAL
    )


def test_a_fault_that_was_proved_before_is_withheld_in_maintenance_and_told_again_after_it() -> None:
    watch = Watch()
    watch.watch({"nvml.gpus.0.lost": True})
    during = watch.watch({"annotations": {MAINTENANCE_ANNOTATION: "yes"}}, polls=5)
    found = finding(during.findings, "gpu.lost", "gpu-0")
    assert (found.state, found.reason) == (State.UNKNOWN, "Maintenance")
    assert "before it: the driver has lost the GPU" in found.message
    after = finding(watch.watch().findings, "gpu.lost", "gpu-0")
    assert (after.state, after.since) == (State.CRITICAL, START)


# --- blindness -------------------------------------------------------------------------------------------------------


def test_while_nvml_is_silent_every_gpu_is_unknown_and_critical_at_once_when_it_is_still_bad() -> None:
    watch = Watch()
    before = finding(watch.watch(LINK_DOWN, polls=3).findings, "nvlink.links", "gpu-0")
    blind = watch.watch({"nvml": NOT_READ}, polls=30)
    assert states(blind.findings, "nvlink.links") == {"gpu-0": State.UNKNOWN, "gpu-1": State.UNKNOWN}
    again = watch.watch(LINK_DOWN)
    assert states(again.findings, "nvlink.links") == {"gpu-0": State.CRITICAL, "gpu-1": State.OK}
    assert finding(again.findings, "nvlink.links", "gpu-0").since == before.since


def test_blindness_counts_for_no_good_poll() -> None:
    watch = Watch()
    watch.watch(LINK_DOWN, polls=3)
    watch.watch({"nvml": NOT_READ}, polls=30)
    assert finding(watch.watch(polls=19).findings, "nvlink.links", "gpu-0").state is State.CRITICAL
    assert finding(watch.watch().findings, "nvlink.links", "gpu-0").state is State.OK


def test_of_a_lost_gpu_only_that_is_told() -> None:
    lost = replace(
        gpu(0, 0), lost=True, uuid="", product="", pci="", links=NOT_READ, heat=replace(gpu(0, 0).heat, margin=0)
    )
    watch = Watch()
    watch.watch(polls=45)
    findings = watch.watch({"nvml.gpus.0": lost}, polls=3).findings
    assert {one.check for one in findings if one.state.is_fault} == {"gpu.lost"}
    assert "see gpu.lost" in finding(findings, "thermal.margin", "gpu-0").message


# --- cards, boots ----------------------------------------------------------------------------------------------------


def test_a_finding_follows_its_card_when_indices_move() -> None:
    watch = Watch()
    watch.watch(LINK_DOWN, polls=3)
    reading = healthy(watch.poll)
    assert isinstance(reading.nvml, Nvml)
    swapped = (
        replace(gpu(1, watch.poll), index=0),
        replace(changed(gpu(0, watch.poll), {"links.3.state": 0}), index=1),
    )
    moved = watch.see(replace(reading, nvml=replace(reading.nvml, gpus=swapped)))
    assert states(moved.findings, "nvlink.links") == {"gpu-0": State.OK, "gpu-1": State.CRITICAL}


def test_a_card_that_is_gone_is_counted_and_not_told_of() -> None:
    watch = Watch()
    watch.watch(LINK_DOWN, polls=3)
    reading = healthy(watch.poll)
    assert isinstance(reading.nvml, Nvml)
    only = replace(reading, nvml=replace(reading.nvml, gpus=(replace(gpu(1, 0), index=0),)))
    for poll in range(3):
        judgement = watch.see(replace(only, monotonic=only.monotonic + 15 * poll))
    assert states(judgement.findings, "nvlink.links") == {"gpu-0": State.OK}
    assert finding(judgement.findings, "gpu.count").state is State.CRITICAL


def test_what_only_a_boot_ends_is_ended_by_a_boot_and_by_a_person() -> None:
    watch = Watch()
    watch.watch({"nvml.gpus.0.lost": True})
    assert finding(watch.watch(polls=300).findings, "gpu.lost", "gpu-0").state is State.CRITICAL
    looked_at = replace(watch, ledger=watch.ledger.forget("gpu.lost", "GPU-0"))
    assert finding(looked_at.watch().findings, "gpu.lost", "gpu-0").state is State.OK
    booted = watch.watch({"host.boot_id": "boot-2"})
    assert finding(booted.findings, "gpu.lost", "gpu-0").state is State.OK


def test_rates_are_not_taken_over_a_boot() -> None:
    watch = Watch()
    watch.watch({"pods.0.oom_kills": 3}, polls=3)
    found = finding(watch.watch({"host.boot_id": "boot-2", "pods.0.oom_kills": 9}).findings, "host.memcg")
    assert found.state is State.UNKNOWN
    assert "needs a second reading" in found.message


# --- the kernel log --------------------------------------------------------------------------------------------------


def line(number: int, *, pci: str = "0000:1b:00", at: float = UPTIME, fatal: bool | None = None) -> Xid:
    return Xid(number, at, pci, f"Xid {number}", fatal)


@pytest.mark.parametrize(
    ("xid", "state"),
    [
        pytest.param(line(79), State.CRITICAL, id="fallen off the bus"),
        pytest.param(line(94), State.WARN, id="contained ECC error"),
        pytest.param(line(63), State.WARN, id="row remap"),
        pytest.param(line(13), State.OK, id="an application's"),
        pytest.param(line(43), State.OK, id="an application's too"),
        pytest.param(line(149, fatal=True), State.CRITICAL, id="its word is Fatal"),
        pytest.param(line(145, fatal=False), State.WARN, id="its word is Nonfatal"),
        pytest.param(line(146), State.WARN, id="a link error without a word"),
        pytest.param(line(20034, fatal=True), State.CRITICAL, id="a switch's"),
        pytest.param(line(94, at=UPTIME - 3601), State.OK, id="a warning of more than an hour ago"),
        pytest.param(line(79, at=60.0), State.CRITICAL, id="a fatal one stays for the boot"),
        pytest.param(line(79, pci="00000000:1B:00.0"), State.CRITICAL, id="the address in NVML's spelling"),
    ],
)
def test_xids_by_class(xid: Xid, state: State) -> None:
    findings = once(changed(healthy(), {"xids": (xid,)}))
    assert states(findings, "xid") == {"gpu-0": state, "gpu-1": State.OK}


def test_a_reader_that_gives_a_line_once_is_enough() -> None:
    watch = Watch()
    watch.watch(polls=2)
    watch.watch({"xids": (line(94), line(79, pci="0000:1c:00"))})
    assert states(watch.watch(polls=238).findings, "xid") == {"gpu-0": State.WARN, "gpu-1": State.CRITICAL}
    assert states(watch.watch(polls=3).findings, "xid") == {"gpu-0": State.OK, "gpu-1": State.CRITICAL}


def test_a_line_of_nobody_is_the_hosts_and_one_while_nvml_is_silent_is_still_its_cards() -> None:
    watch = Watch()
    watch.watch()
    findings = watch.watch({"nvml": NOT_READ, "xids": (line(119), line(79, pci="0000:ff:00"))}).findings
    assert states(findings, "xid") == {"gpu-0": State.CRITICAL, "gpu-1": State.OK, "host": State.CRITICAL}


# --- policies and paces ----------------------------------------------------------------------------------------------


def test_a_check_that_is_switched_off_says_so() -> None:
    watch = Watch(overrides={"nvlink.links": CheckOverride(check="nvlink.links", enabled=False)})
    found = finding(watch.watch(LINK_DOWN, polls=5).findings, "nvlink.links")
    assert (found.subject, found.state, found.reason) == ("host", State.UNSUPPORTED, "SwitchedOff")


def test_a_policy_changes_limits_and_patience() -> None:
    watch = Watch(
        overrides={"thermal.margin": CheckOverride(check="thermal.margin", critical="36", warn="40", enter_polls=2)}
    )
    assert finding(watch.watch().findings, "thermal.margin", "gpu-0").state is State.UNKNOWN
    found = finding(watch.watch().findings, "thermal.margin", "gpu-0")
    assert (found.state, found.value, found.limit) == (State.CRITICAL, "35", "36")


SMALL_AND_WARM = {
    "memory.total": 100 * GIB,
    "memory.available": 20 * GIB,
    "nvml.gpus.0.heat.hbm": 86,
    "nvml.gpus.0.heat.hbm_limit": 95,
}


@pytest.mark.parametrize("edits", [{}, SMALL_AND_WARM, HOT, LINK_DOWN, LOW_MEMORY])
def test_another_patience_is_no_other_limit(edits: dict[str, Any]) -> None:
    reading = changed(healthy(), edits)
    patient = {row.id: CheckOverride(check=row.id, enter_polls=7, leave_polls=9) for row in CHECKS}
    assert once(reading, overrides=patient) == once(reading)


def test_what_was_not_read_anew_counts_no_poll() -> None:
    first = judge(changed(healthy(0), {**LINK_DOWN, **LOW_MEMORY}), (), Ledger())
    ledger = first.ledger
    for poll in range(1, 3):
        reading = changed(healthy(poll), {**LINK_DOWN, **LOW_MEMORY})
        judgement = judge(replace(reading, fresh=frozenset({Pace.HOST})), (), ledger)
        ledger = judgement.ledger
    assert finding(judgement.findings, "host.mem.available").state is State.CRITICAL
    assert finding(judgement.findings, "nvlink.links", "gpu-0") == finding(first.findings, "nvlink.links", "gpu-0")


def test_once_has_no_patience_and_no_rates() -> None:
    findings = once(changed(healthy(), LINK_DOWN))
    assert finding(findings, "nvlink.links", "gpu-0").state is State.CRITICAL
    for name in ("throttle.hw_thermal", "nvlink.errors", "pcie.errors", "host.swap", "host.memcg", "exporter.fresh"):
        found = next(one for one in findings if one.check == name)
        assert found.state is State.UNKNOWN
        assert "needs a second reading" in found.message


# --- what holds for any reading --------------------------------------------------------------------------------------


@pytest.mark.parametrize("absence", [NOT_READ, NOT_THERE], ids=["unread", "not there"])
def test_a_machine_of_which_nothing_is_known_has_no_fault(absence: Missing) -> None:
    empty = NodeReading(
        at=START, monotonic=0.0, nvml=absence, rdma=absence, pods=absence, xids=absence, exporter=absence
    )
    findings = Watch().watch({}, polls=30, base=lambda poll: replace(empty, monotonic=float(poll * 15))).findings
    assert {one.check for one in findings} == {row.id for row in CHECKS}
    assert not [one for one in findings if one.state.is_fault or one.state is State.OK]


st.register_type_strategy(Missing, st.sampled_from([NOT_READ, NOT_THERE]))
READINGS = st.from_type(NodeReading)


def _leaves(node: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of a reading that is a number, a switch, a text or absent, by its path."""
    if is_dataclass(node) and not isinstance(node, Missing):
        for one in fields(node):
            yield from _leaves(getattr(node, one.name), f"{path}.{one.name}" if path else one.name)
    elif isinstance(node, tuple):
        for index, each in enumerate(node):
            yield from _leaves(each, f"{path}.{index}")
    elif isinstance(node, int | str | Missing):
        yield path, node


ODD_NUMBERS: list[Any] = [0, -1, 1, 3, 2**63, -(2**63)]
ODD: list[Any] = [NOT_READ, NOT_THERE, *ODD_NUMBERS]
NEVER_MISSING = ("page_bytes", "health_mask")
"""Fields that are numbers, whatever was read."""
ODD_TEXTS: list[Any] = ["", "NVIDIA H100 NVL", "NVIDIA L40S", "0000:1c:00.0", "999.1", "1: DOWN"]
PATHS = [path for path, _ in _leaves(healthy())]
MUTATIONS = st.dictionaries(st.sampled_from(PATHS), st.integers(0, 63), min_size=1, max_size=8)


def _mutated(poll: int, mutations: Mapping[str, int]) -> NodeReading:
    reading = healthy(poll)
    old = dict(_leaves(reading))
    for path, choice in mutations.items():
        pool = ODD_TEXTS if isinstance(old[path], str) else ODD_NUMBERS if path.endswith(NEVER_MISSING) else ODD
        reading = changed(reading, {path: pool[choice % len(pool)]})
    return reading


@settings(deadline=None, max_examples=60)
@given(st.lists(MUTATIONS, min_size=1, max_size=4))
def test_odd_values_in_a_node_at_work_are_no_error(story: list[Mapping[str, int]]) -> None:
    watch = Watch()
    watch.watch(polls=2)
    for mutations in story:
        reading = _mutated(watch.poll, mutations)
        watch.poll += 1
        assert {one.check for one in watch.see(reading).findings} == {row.id for row in CHECKS}
        once(reading)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.lists(READINGS, min_size=1, max_size=3))
def test_any_reading_gives_a_finding_for_every_check_and_never_an_error(readings: list[NodeReading]) -> None:
    watch = Watch()
    for reading in readings:
        findings = watch.see(reading).findings
        assert {one.check for one in findings} == {row.id for row in CHECKS}
        for one in findings:
            assert one.message
            assert one.reason
            if one.state.is_fault:
                assert one.reason == BY_ID[one.check].reason
                assert one.message.endswith(BY_ID[one.check].remedy)
        assert {one.check for one in once(reading)} == {row.id for row in CHECKS}


CHANGES: list[dict[str, Any]] = [
    {},
    {},
    LINK_DOWN,
    HOT,
    LOW_MEMORY,
    {"nvml": NOT_READ},
    {"nvml": NOT_THERE},
    {"memory.available": NOT_READ},
    {"nvml.gpus.0.links": NOT_READ},
    {"nvml.gpus.0.mig": True},
    {"annotations": MappingProxyType({MAINTENANCE_ANNOTATION: "x"})},
    {"host.uptime": 30},
]
EDITS = st.lists(st.sampled_from(CHANGES), max_size=2).map(lambda parts: dict(ChainMap(*reversed(parts))))


def _fits(edits: Mapping[str, Any]) -> Mapping[str, Any]:
    """Without paths below a value that is missing."""
    return {path: value for path, value in edits.items() if not ("nvml" in edits and path.startswith("nvml."))}


@settings(deadline=None, max_examples=25)
@given(st.lists(EDITS, min_size=1, max_size=40))
def test_unknown_never_leads_to_a_fault_and_no_fault_is_younger_than_its_polls(story: list[Mapping[str, Any]]) -> None:
    watch = Watch()
    bad: dict[tuple[str, str], int] = {}
    for edits in story:
        kept = {
            path: value
            for path, value in _fits(edits).items()
            if not (path.startswith("nvml.gpus.0.links.") and "nvml.gpus.0.links" in edits)
        }
        reading = changed(healthy(watch.poll), kept)
        watch.poll += 1
        alone = {(one.check, one.subject): one.state for one in once(reading)}
        for one in watch.see(reading).findings:
            key = (one.check, one.subject)
            if one.check not in ("nvlink.links", "host.mem.available"):
                continue
            state = alone.get(key, State.UNKNOWN)
            bad[key] = bad.get(key, 0) + 1 if state.is_fault else 0
            if state in (State.UNKNOWN, State.UNSUPPORTED):
                assert one.state in (State.UNKNOWN, State.UNSUPPORTED)
            if one.state.is_fault and one.since == reading.at:
                assert bad[key] >= BY_ID[one.check].enter_polls


@settings(deadline=None, max_examples=20)
@given(st.permutations(range(4)), st.integers(0, 3))
def test_the_order_of_gpus_does_not_matter(order: list[int], ill: int) -> None:
    def reading(poll: int, sequence: list[int]) -> NodeReading:
        cards = [replace(gpu(index, poll), numa_node=index % 2, peers={}) for index in range(4)]
        cards[ill] = changed(cards[ill], {"links.3.state": 0, "heat.margin": 1})
        return replace(healthy(poll), nvml=Nvml("580.159.04", "13.0", tuple(cards[index] for index in sequence), 0.02))

    def told(sequence: list[int]) -> set[tuple[str, str, State, str]]:
        watch = Watch()
        for poll in range(5):
            judgement = watch.see(reading(poll, sequence))
        return {(one.check, one.subject, one.state, one.message) for one in judgement.findings}

    assert told(order) == told([0, 1, 2, 3])
