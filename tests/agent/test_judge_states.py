"""Every check in all five states, and its patience: into a fault, out of it, and what it is told as meanwhile.

A row says how the well node of node_readings differs. Where a state cannot be, the row says why.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, Final

import pytest
from node_readings import GIB, NOT_READ, NOT_THERE, NS, POLL_S, POOL, UPTIME, Edits, Watch, finding

from hisparse.nodes.checks import BY_ID, CHECKS
from hisparse.nodes.findings import Finding, State
from hisparse_agent.judge.judge import JUDGES, Judgement
from hisparse_agent.judge.ledger import Ledger
from hisparse_agent.judge.standing import patience_of
from hisparse_agent.judge.view import view_of
from hisparse_agent.readings import Fabric, Pressure, Xid
from hisparse_toolkit.node_checks_page import levels_of

LONG: Final = 45
"""Polls that fill every window: 11 minutes."""


@dataclass(frozen=True)
class Row:
    """A node that differs from the well one, and the subject that is looked at; first well for some polls."""

    subject: str
    edits: Edits
    polls: int = LONG
    well: int = 0


def gpu0(edits: Mapping[str, Any], *, polls: int = LONG, well: int = 0) -> Row:
    return Row("gpu-0", {f"nvml.gpus.0.{path}": value for path, value in edits.items()}, polls, well)


def host(edits: Edits, *, polls: int = LONG, well: int = 0) -> Row:
    return Row("host", edits, polls, well)


def pod(edits: Mapping[str, Any], *, polls: int = LONG, well: int = 0, other: Edits | None = None) -> Row:
    named = {f"pods.0.{path}": value for path, value in edits.items()}
    return Row("pod-chat/glm-0", {**named, **(other or {})}, polls, well)


def rising(per_second: float) -> Any:
    """A counter that rises steadily; of nanoseconds, so that a share is given by 1e9 times it."""
    return lambda poll: int(poll * POLL_S * per_second)


NVML_SILENT: Final = Row("host", {"nvml": NOT_READ})
NO_NVML: Final = Row("host", {"nvml": NOT_THERE, "expected_gpus": 0})
NO_PODS: Final = host({"pods": ()})
PODS_UNREAD: Final = host({"pods": NOT_READ})
INFORMATION: Final = "it is information and never a fault"
TWO_STATES: Final = "it is or it is not"

ROWS: Final[Mapping[str, Mapping[State, Row | str]]] = {
    "gpu.count": {
        State.WARN: "a GPU that is missing is never only a warning",
        State.CRITICAL: host({"expected_gpus": 3}),
        State.UNKNOWN: host({"expected_gpus": NOT_READ}),
        State.UNSUPPORTED: host({"expected_gpus": NOT_THERE}),
    },
    "gpu.lost": {
        State.WARN: TWO_STATES,
        State.CRITICAL: gpu0({"lost": True}, polls=1),
        State.UNKNOWN: NVML_SILENT,
        State.UNSUPPORTED: NO_NVML,
    },
    "gpu.recovery_action": {
        State.WARN: gpu0({"faults.recovery_action": 3}),
        State.CRITICAL: gpu0({"faults.recovery_action": 1}),
        State.UNKNOWN: gpu0({"faults.recovery_action": NOT_READ}),
        State.UNSUPPORTED: gpu0({"faults.recovery_action": NOT_THERE}),
    },
    "xid": {
        State.WARN: Row("gpu-0", {"xids": (Xid(94, UPTIME, "0000:1b:00", "Contained ECC error"),)}, 2),
        State.CRITICAL: Row(
            "gpu-0", {"xids": (Xid(79, UPTIME - 9000, "0000:1b:00", "GPU has fallen off the bus."),)}, 1
        ),
        State.UNKNOWN: Row("gpu-0", {"xids": NOT_READ}),
        State.UNSUPPORTED: Row("gpu-0", {"xids": NOT_THERE}),
    },
    "ecc.remap": {
        State.WARN: gpu0({"faults.remap_pending": True}, polls=1),
        State.CRITICAL: gpu0({"faults.remap_failed": True}, polls=1),
        State.UNKNOWN: gpu0({"faults.remap_pending": NOT_READ}),
        State.UNSUPPORTED: gpu0({"faults.remap_failed": NOT_THERE}),
    },
    "ecc.uncorrected": {
        State.WARN: "lost data is never only a warning",
        State.CRITICAL: gpu0({"faults.double_bit": 1}, polls=1),
        State.UNKNOWN: gpu0({"faults.double_bit": NOT_READ}),
        State.UNSUPPORTED: gpu0({"faults.double_bit": NOT_THERE}),
    },
    "nvlink.links": {
        State.WARN: "one link that is down is a fault already",
        State.CRITICAL: gpu0({"links.17.state": 0, "links.17.bytes_per_second": NOT_THERE}, polls=3),
        State.UNKNOWN: gpu0({"links.17.state": NOT_READ}),
        State.UNSUPPORTED: gpu0({"links": NOT_THERE}),
    },
    "nvlink.capacity": {
        State.WARN: gpu0({"links.0.bytes_per_second": 13_281_000_000}),
        State.CRITICAL: gpu0({"links.0.state": 0, "links.1.state": 0}),
        State.UNKNOWN: gpu0({"links.3.bytes_per_second": NOT_READ}),
        State.UNSUPPORTED: gpu0({"mig": True}),
    },
    "nvlink.errors": {
        State.WARN: gpu0({"links.3.crc_errors": rising(2)}),
        State.CRITICAL: gpu0({"links.3.recoveries": lambda poll: poll // 20}),
        State.UNKNOWN: gpu0({"links.3.crc_errors": NOT_READ}),
        State.UNSUPPORTED: gpu0({"links": NOT_THERE}),
    },
    "nvlink.p2p": {
        State.WARN: "a peer that cannot be reached is never only a warning",
        State.CRITICAL: gpu0({"peers.1": 5}),
        State.UNKNOWN: gpu0({"peers": NOT_READ}),
        State.UNSUPPORTED: gpu0({"peers": {}}),
    },
    "fabric.state": {
        State.WARN: Row("gpu-0", {"nvml.gpus.0.fabric": Fabric(2, 0), "host.uptime": 200}, 11),
        State.CRITICAL: gpu0({"fabric": Fabric(2, 0)}, polls=3),
        State.UNKNOWN: gpu0({"fabric": NOT_READ}),
        State.UNSUPPORTED: gpu0({"fabric": Fabric(0, 0)}),
    },
    "fabric.health": {
        State.WARN: gpu0({"fabric": Fabric(3, 0, 0x1A6, 2)}),
        State.CRITICAL: gpu0({"fabric": Fabric(3, 0, 0x1A9, 3)}),
        State.UNKNOWN: gpu0({"fabric": Fabric(2, 0, 0x1AA, 1)}),
        State.UNSUPPORTED: gpu0({"fabric": Fabric(3, 0)}),
    },
    "thermal.margin": {
        State.WARN: gpu0({"heat.margin": 10}, polls=20),
        State.CRITICAL: gpu0({"heat.margin": 2}, polls=4),
        State.UNKNOWN: gpu0({"heat.margin": 0}),
        State.UNSUPPORTED: gpu0({"heat.margin": NOT_THERE, "heat.gpu_limit": NOT_THERE}),
    },
    "thermal.hbm": {
        State.WARN: gpu0({"heat.hbm": 90}, polls=20),
        State.CRITICAL: gpu0({"heat.hbm": 95}, polls=20),
        State.UNKNOWN: gpu0({"heat.hbm": NOT_READ}),
        State.UNSUPPORTED: gpu0({"heat.hbm": NOT_THERE}),
    },
    "throttle.hw_thermal": {
        State.WARN: gpu0({"throttle.hw_thermal_ns": rising(0.02 * NS)}),
        State.CRITICAL: gpu0({"throttle.hw_thermal_ns": rising(0.2 * NS)}),
        State.UNKNOWN: gpu0({"throttle.hw_thermal_ns": lambda poll: 10**12 - poll}),
        State.UNSUPPORTED: gpu0({"throttle.hw_thermal_ns": NOT_THERE, "throttle.reasons": NOT_THERE}),
    },
    "throttle.sw_thermal": {
        State.WARN: gpu0({"throttle.sw_thermal_ns": rising(0.06 * NS)}),
        State.CRITICAL: gpu0({"throttle.sw_thermal_ns": rising(0.31 * NS)}),
        State.UNKNOWN: gpu0({"throttle.sw_thermal_ns": NOT_READ}),
        State.UNSUPPORTED: gpu0({"throttle.sw_thermal_ns": NOT_THERE, "throttle.reasons": NOT_THERE}),
    },
    "throttle.power_brake": {
        State.WARN: gpu0({"throttle.power_brake_ns": rising(0.001 * NS)}, polls=4),
        State.CRITICAL: gpu0({"throttle.power_brake_ns": rising(0.2 * NS)}),
        State.UNKNOWN: gpu0({"throttle.power_brake_ns": NOT_READ}),
        State.UNSUPPORTED: gpu0({"throttle.power_brake_ns": NOT_THERE, "throttle.reasons": NOT_THERE}),
    },
    "throttle.sw_power": {
        State.WARN: INFORMATION,
        State.CRITICAL: INFORMATION,
        State.UNKNOWN: gpu0({"throttle.sw_power_ns": NOT_READ}),
        State.UNSUPPORTED: gpu0({"throttle.sw_power_ns": NOT_THERE, "throttle.reasons": NOT_THERE}),
    },
    "power.oob": {
        State.WARN: gpu0({"power.limit": 650_000, "power.requested": 650_000, "power.enforced": 650_000}),
        State.CRITICAL: gpu0({"power.enforced": 500_000}),
        State.UNKNOWN: gpu0({"power.enforced": NOT_READ}),
        State.UNSUPPORTED: gpu0({"power.enforced": NOT_THERE, "power.limit": NOT_THERE}),
    },
    "power.persistence": {
        State.WARN: gpu0({"power.persistent": False}, polls=1),
        State.CRITICAL: "a setting is never critical by itself",
        State.UNKNOWN: gpu0({"power.persistent": NOT_READ}),
        State.UNSUPPORTED: gpu0({"power.persistent": NOT_THERE}),
    },
    "pcie.link": {
        State.WARN: gpu0({"pcie.generation": 4}),
        State.CRITICAL: gpu0({"pcie.width": 8}),
        State.UNKNOWN: gpu0({"product": "NVIDIA H100 PCIe", "utilisation_percent": 5, "pcie.generation": 1}),
        State.UNSUPPORTED: gpu0({"pcie.generation": NOT_THERE}),
    },
    "pcie.errors": {
        State.WARN: gpu0({"pcie.replays": rising(0.5)}),
        State.CRITICAL: gpu0({"pcie.nonfatal": rising(0.01)}),
        State.UNKNOWN: gpu0({"pcie.replays": NOT_READ}),
        State.UNSUPPORTED: gpu0({"pcie.replays": NOT_THERE}),
    },
    "driver.floor": {
        State.WARN: host({"nvml.driver": "570.124.06"}, polls=1),
        State.CRITICAL: host({"nvml.driver": "535.104.12"}, polls=1),
        State.UNKNOWN: host({"nvml.driver": "unknown"}),
        State.UNSUPPORTED: NO_NVML,
    },
    "driver.rules": {
        State.WARN: host({"host.kernel": "6.11.0-9-generic"}, polls=1),
        State.CRITICAL: "a known fault that has not struck is advice",
        State.UNKNOWN: host({"host.kernel": NOT_READ}),
        State.UNSUPPORTED: NO_NVML,
    },
    "rdma.path": {
        State.WARN: host({"host.open_module": False}),
        State.CRITICAL: "transfers go on through host memory",
        State.UNKNOWN: host({"host.open_module": False, "rdma.peermem_registered": NOT_READ}),
        State.UNSUPPORTED: host({"rdma.declared": False}),
    },
    "rdma.nic": {
        State.WARN: Row("nic-mlx5_0:1", {"rdma.nics.0.rate": 200 * 10**9}, 3, well=1),
        State.CRITICAL: Row("nic-mlx5_0:1", {"rdma.nics.0.state": "DOWN"}, 3, well=1),
        State.UNKNOWN: Row("nic-mlx5_0:1", {"rdma.nics.0.state": NOT_READ}),
        State.UNSUPPORTED: Row("nic-mlx5_0:1", {"rdma.nics.0.state": "DOWN"}),
    },
    "host.mem.available": {
        State.WARN: host({"memory.available": 49 * GIB}, polls=3),
        State.CRITICAL: host({"memory.available": 15 * GIB}, polls=3),
        State.UNKNOWN: host({"memory.available": NOT_READ}),
        State.UNSUPPORTED: host({"memory.available": NOT_THERE}),
    },
    "host.mem.fit": {
        State.WARN: pod({"running": False}, polls=1, other={"memory.available": POOL + 10 * GIB}),
        State.CRITICAL: pod({"running": False}, polls=1, other={"memory.available": POOL - 1}),
        State.UNKNOWN: pod({"shmem": NOT_READ}),
        State.UNSUPPORTED: pod({"pool": NOT_THERE}),
    },
    "host.mem.psi": {
        State.WARN: host({"memory.pressure": Pressure(12.5, 1.0)}, polls=2),
        State.CRITICAL: host({"memory.pressure": Pressure(20.0, 6.0)}, polls=2),
        State.UNKNOWN: host({"memory.pressure": Pressure(float("nan"), 0.0)}),
        State.UNSUPPORTED: host({"memory.pressure": NOT_THERE}),
    },
    "host.mem.numa": {
        State.WARN: Row("numa-0", {"memory.nodes.0.free": 2 * GIB, "memory.nodes.0.file_cache": 10 * GIB}),
        State.CRITICAL: Row("numa-0", {"memory.nodes.0.free": 2 * GIB, "memory.nodes.0.file_cache": GIB}),
        State.UNKNOWN: Row("numa-0", {"memory.nodes.0.free": NOT_READ}),
        State.UNSUPPORTED: host({"memory.nodes": NOT_THERE}),
    },
    "host.mem.pinned": {
        State.WARN: Row("numa-0", {"memory.nodes.0.pinned_pages": 900 * GIB // 4096, "memory.nodes.0.free": 50 * GIB}),
        State.CRITICAL: Row(
            "numa-0",
            {
                "memory.nodes.0.pinned_pages": 1000 * GIB // 4096,
                "memory.nodes.0.free": GIB,
                "memory.nodes.0.file_cache": GIB,
            },
        ),
        State.UNKNOWN: host({"memory.nodes": NOT_READ, "memory.pinned_pages": NOT_READ}),
        State.UNSUPPORTED: host({"memory.nodes": NOT_READ, "memory.pinned_pages": NOT_THERE}),
    },
    "host.swap": {
        State.WARN: host({"memory.swap_out": rising(150)}),
        State.CRITICAL: host({"memory.swap_in": rising(6000)}),
        State.UNKNOWN: host({"memory.swap_in": NOT_READ}),
        State.UNSUPPORTED: host({"memory.swap_in": NOT_THERE}),
    },
    "host.pool.unpinned": {
        State.WARN: pod({}, other={"memory.pinned_pages": 0, "memory.swap_total": 0}),
        State.CRITICAL: pod({}, other={"memory.pinned_pages": 0}),
        State.UNKNOWN: pod({}, other={"memory.pinned_pages": NOT_READ}),
        State.UNSUPPORTED: pod({"shmem": NOT_THERE}),
    },
    "host.pool.orphan": {
        State.WARN: pod({"files.0.opened": False, "files.0.size": GIB}),
        State.CRITICAL: pod({"files.0.opened": False}),
        State.UNKNOWN: pod({"files.0.opened": NOT_READ}),
        State.UNSUPPORTED: pod({"files": NOT_THERE}),
    },
    "host.pool.leak": {
        State.WARN: host({"nvml.gpus.*.processes": 0, "pods": (), "memory.pinned_pages": 5 * GIB // 4096}),
        State.CRITICAL: host({"nvml.gpus.*.processes": 0, "pods": ()}),
        State.UNKNOWN: host({"nvml.gpus.*.processes": NOT_READ, "pods": ()}),
        State.UNSUPPORTED: host({"memory.pinned_pages": NOT_THERE}),
    },
    "host.memcg": {
        State.WARN: pod({"max_events": rising(1)}, polls=2),
        State.CRITICAL: pod({"oom_kills": rising(1)}, polls=2),
        State.UNKNOWN: pod({"oom_kills": NOT_READ}),
        State.UNSUPPORTED: pod({"oom_kills": NOT_THERE}),
    },
    "host.sysctl": {
        State.WARN: host({"host.sysctls.vm.swappiness": "60"}, polls=1),
        State.CRITICAL: "a setting is never critical by itself",
        State.UNKNOWN: host({"host.sysctls": NOT_READ}),
        State.UNSUPPORTED: host({"host.sysctls": NOT_THERE}),
    },
    "host.thp": {
        State.WARN: host({"host.huge_pages": "never"}, polls=1),
        State.CRITICAL: "a setting is never critical by itself",
        State.UNKNOWN: host({"host.huge_pages": NOT_READ}),
        State.UNSUPPORTED: host({"host.huge_pages": NOT_THERE}),
    },
    "host.cpufreq": {
        State.WARN: host({"host.cpufreq.preferences": ("balance_performance",)}, polls=1),
        State.CRITICAL: "a setting is never critical by itself",
        State.UNKNOWN: host({"host.cpufreq": NOT_READ}),
        State.UNSUPPORTED: host({"host.cpufreq": NOT_THERE}),
    },
    "nvml.latency": {
        State.WARN: host({"nvml.seconds": 1.5}, polls=3),
        State.CRITICAL: "who cannot see does not call it critical",
        State.UNKNOWN: NVML_SILENT,
        State.UNSUPPORTED: NO_NVML,
    },
    "pin.window": {
        State.WARN: INFORMATION,
        State.CRITICAL: INFORMATION,
        State.UNKNOWN: host({}, polls=1),
        State.UNSUPPORTED: host({"memory.pinned_pages": NOT_THERE, "memory.shmem": NOT_THERE}),
    },
    "exporter.fresh": {
        State.WARN: host({"exporter.gpus.0.energy_mj": 5}),
        State.CRITICAL: "old figures are no fault of the node",
        State.UNKNOWN: host({"exporter": NOT_READ}),
        State.UNSUPPORTED: host({"exporter": NOT_THERE}),
    },
}

# the package's `judge` is the function
judging = import_module("hisparse_agent.judge.judge")

CASES = [(name, state, row) for name, states in ROWS.items() for state, row in states.items() if isinstance(row, Row)]


def _once(name: str, state: State) -> pytest.MarkDecorator:
    """What one row shows is found by one worker, for all tests of it."""
    return pytest.mark.xdist_group(f"state-{name}-{state.value}")


STATES = [pytest.param(name, state, marks=_once(name, state)) for name, state, _ in CASES]
FAULTS = [pytest.param(*case, marks=_once(*case[:2])) for case in CASES if case[1].is_fault]


def test_every_check_has_a_row_for_every_state_or_a_reason_why_not() -> None:
    assert set(ROWS) == {row.id for row in CHECKS}
    for name, states in ROWS.items():
        assert set(states) == set(State) - {State.OK}, name


@pytest.mark.parametrize("name", list(ROWS))
def test_the_catalogue_tells_of_the_faults_that_there_are(name: str) -> None:
    faults = {state for state, row in ROWS[name].items() if state.is_fault and isinstance(row, Row)}
    assert levels_of(BY_ID[name]) == faults


@cache
def _well() -> Judgement:
    return Watch().watch(polls=LONG)


@pytest.mark.parametrize("name", list(ROWS))
def test_a_well_node_is_ok_in_every_check(name: str) -> None:
    found = [one for one in _well().findings if one.check == name]
    assert found
    assert {one.state for one in found} == {State.OK}, [one.message for one in found]


@cache
def _run(name: str, state: State) -> tuple[Finding, Watch]:
    row = ROWS[name][state]
    assert isinstance(row, Row)
    watch = Watch()
    with _only(name):
        if row.well:
            watch.watch(polls=row.well)
        return finding(watch.watch(row.edits, row.polls).findings, name, row.subject), watch


@contextmanager
def _only(name: str) -> Iterator[None]:
    """With one check in the catalogue: the others would be judged for nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(judging, "CHECKS", (BY_ID[name],))
        yield


@pytest.mark.parametrize(("name", "state"), STATES)
def test_the_state_is_found(name: str, state: State) -> None:
    found = _run(name, state)[0]
    assert found.state is state, found.message
    assert found.message
    assert "Missing(" not in found.message
    if state.is_fault:
        assert found.reason == BY_ID[name].reason
        assert found.message.endswith(BY_ID[name].remedy), "a fault names the next step"


@pytest.mark.parametrize(("name", "state", "row"), FAULTS)
def test_other_subjects_are_left_alone(name: str, state: State, row: Row) -> None:
    others = [one for one in _run(name, state)[1].ledger.findings if one.check == name and one.subject != row.subject]
    assert {one.state for one in others} <= {State.OK, State.UNKNOWN, State.UNSUPPORTED}


@pytest.mark.parametrize(("name", "state", "row"), FAULTS)
def test_it_is_a_fault_after_its_polls_and_not_before_and_ends_as_patiently(name: str, state: State, row: Row) -> None:
    """Against the verdicts on the single readings: what is told follows them by exactly the polls of the table."""
    with _only(name):
        _follow(name, state, row)


def _follow(name: str, state: State, row: Row) -> None:
    patience = patience_of(BY_ID[name], None)
    leave = patience.leave_of(state)
    watch = Watch()
    watch.watch(polls=LONG)
    raw: list[State] = []
    told: list[State] = []
    begins = None
    for number in range(LONG + 60 + (leave or 0)):
        bad = number < row.polls + 5
        before = (watch.history, watch.ledger)
        found = finding(watch.watch(row.edits if bad else {}, 1).findings, name, row.subject)
        told.append(found.state)
        raw.append(_raw(name, row.subject, watch, *before))
        if found.state is state and begins is None:
            begins = number
            need = patience.critical_enter if state is State.CRITICAL else patience.enter
            assert all(one.is_fault for one in raw[-need:])
            assert len(raw) == need or raw[-need - 1] is not state or told[-2] is not State.OK
        if begins is not None and not bad and found.state is State.OK:
            assert leave is not None, "only another boot ends it"
            assert raw[-leave:] == [State.OK] * leave
            assert len(raw) == leave or raw[-leave - 1] is not State.OK or told[-leave - 1].is_fault is False
            return
    assert begins is not None
    assert leave is None, f"it did not end: {found.message}"
    assert told[-1] is state


def _raw(name: str, subject: str, watch: Watch, history: Any, ledger: Ledger) -> State:
    """The verdict on one reading alone."""
    view = view_of(watch.history[-1], history, ledger, {}, {})
    return next(verdict.state for verdict in JUDGES[name](view, BY_ID[name]) if verdict.subject == subject)
