"""Every capture gives exactly the findings that its hardware implies: what must be Ok, and not merely no alarm.

Each capture stands for its GPUs; the rest of the node is the well one of node_readings, so that every check of the
catalogue has something to look at. The table below is what the README of the captures and the hardware's own figures
say, by check; it was not copied from what the program answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any, Final

import captures
import pytest
from node_readings import NS, POLL_S, UPTIME, Watch, changed, finding, gpu, healthy

from hisparse.nodes.catalogue import NodeCondition, Subject
from hisparse.nodes.checks import BY_ID, CHECKS
from hisparse.nodes.findings import Finding, State
from hisparse.nodes.policy import TaintEffect
from hisparse_agent.judge.heat import HW_THERMAL, POWER_BRAKE, SW_POWER, SW_THERMAL
from hisparse_agent.judge.judge import once
from hisparse_agent.metrics import Metrics, Snapshot
from hisparse_agent.publish.conditions import judged, wanted_taint
from hisparse_agent.publish.report import inventory_of
from hisparse_agent.readers.kernel_log import KernelLog, parse_xid
from hisparse_agent.readers.meminfo import read_memory
from hisparse_agent.readers.pci import read_numa_node
from hisparse_agent.readers.rdma import read_rdma
from hisparse_agent.readers.settings import read_host
from hisparse_agent.readings import Exporter, ExporterGpu, GpuReading, NodeReading, Number, Nvml

LONG: Final = 45
"""Polls that fill every window and use up every patience: 11 minutes."""

OK, WARN, CRITICAL, UNKNOWN, UNSUPPORTED = State

GPU_CHECKS: Final = tuple(row.id for row in CHECKS if row.subject is Subject.GPU)
NVLINK: Final = ("nvlink.links", "nvlink.capacity", "nvlink.errors", "nvlink.p2p")
LINKS: Final = (*NVLINK, "fabric.state", "fabric.health")
HEAT: Final = (
    "thermal.margin",
    "thermal.hbm",
    "throttle.hw_thermal",
    "throttle.sw_thermal",
    "throttle.power_brake",
    "throttle.sw_power",
)
RATES: Final = ("nvlink.errors", "pcie.errors", *(name for name in HEAT if name.startswith("throttle.")))
"""Checks of a GPU that compare readings: one by itself leaves them Unknown."""

NAMES: Final = [pytest.param(name, marks=pytest.mark.xdist_group(f"capture-{name}")) for name in captures.NAMES]
"""What eleven minutes of one capture show is found once, by one worker."""

States = Mapping[str, State]


def all_of(names: tuple[str, ...], state: State) -> States:
    return dict.fromkeys(names, state)


# --- what a GPU must show --------------------------------------------------------------------------------------------

WELL: Final[States] = all_of(GPU_CHECKS, OK)
"""A healthy SXM card on a board whose fabric reports its health."""

REAL_PAIR: Final = {**WELL, "fabric.health": UNSUPPORTED}
"""A single Hopper node has no fabric health: the mask is N/A."""

REAL_HIDDEN: Final = {**WELL, **all_of(LINKS, UNSUPPORTED)}
"""The machine hides NVLink and fabric: nothing is wrong, and nothing can be said."""

SIMULATED: Final = {**WELL, "gpu.recovery_action": UNSUPPORTED, "ecc.uncorrected": UNSUPPORTED}
"""The simulation answers neither the recovery action nor the volatile count of double bit errors."""

REAL_TEXT: Final = {
    **WELL,
    "nvlink.p2p": UNSUPPORTED,  # one GPU
    "fabric.health": UNSUPPORTED,  # N/A
    "nvlink.errors": UNKNOWN,  # nvidia-smi -q and nvlink -s have no error counters
    "pcie.errors": UNKNOWN,  # they have replays, and not the serious ones
}

LINKS_ONLY: Final = {**all_of(GPU_CHECKS, UNKNOWN), "gpu.lost": OK, "xid": OK}
"""The text of a link query alone: whatever it does not say is not known."""

LOST: Final = {**all_of(GPU_CHECKS, UNKNOWN), "gpu.lost": CRITICAL, "xid": OK}
"""Nothing else is said of a lost card, although the simulation still answers its link states."""


def other(states: States, **changes: State) -> States:
    """The same with single checks otherwise; _ stands for the dot."""
    return {**states, **{name.replace("__", "."): state for name, state in changes.items()}}


HOST: Final[States] = {**all_of(tuple(row.id for row in CHECKS if row.subject is not Subject.GPU), OK)}
"""The well node around the card."""

NO_VERSION: Final = other(HOST, driver__floor=UNKNOWN, driver__rules=UNKNOWN)
"""The texts of link queries do not say which driver wrote them."""


class Told:
    """What one capture must show after it was watched: per GPU (all others as `rest`), and of the host."""

    def __init__(self, rest: States, host: States = HOST, **gpus: States) -> None:
        self.rest, self.host = rest, host
        self.gpus = {name.replace("_", "-"): states for name, states in gpus.items()}

    def of(self, subject: str) -> States:
        return self.gpus.get(subject, self.rest)


TABLE: Final[Mapping[str, Told]] = {
    # real H200
    "h200_x2_idle": Told(REAL_PAIR),
    "h200_x2_traffic": Told(REAL_PAIR),
    "h200_x2_load": Told(REAL_PAIR),
    "h200_vm_nvlink_hidden": Told(REAL_HIDDEN),
    # the shape of real ones, as texts
    "h200_idle": Told(REAL_TEXT),
    "h200_load": Told(REAL_TEXT),
    "h200_mig": Told({**LINKS_ONLY, **all_of(NVLINK, UNSUPPORTED)}, NO_VERSION),
    "h100_nvlink": Told(other(LINKS_ONLY, nvlink__links=OK, nvlink__capacity=OK), NO_VERSION),
    "h100_dcgmi": Told(other(LINKS_ONLY, nvlink__links=OK), NO_VERSION),  # letters, and no speed
    "a100_nvlink": Told(other(LINKS_ONLY, nvlink__links=OK, nvlink__capacity=OK), NO_VERSION),
    "a100_all_inactive": Told(other(LINKS_ONLY, nvlink__links=CRITICAL, nvlink__capacity=CRITICAL), NO_VERSION),
    # what one port of a B200 carries was not measured, so that its capacity is no share of anything
    "b200_all_inactive": Told(other(LINKS_ONLY, nvlink__links=CRITICAL), NO_VERSION),
    # four of six: on some boards by design, so that it is neither well nor a fault
    "v100_partly_inactive": Told(LINKS_ONLY, NO_VERSION),
    "bmc_power_cap": Told(other(LINKS_ONLY, power__oob=CRITICAL), NO_VERSION),
    # simulated: GPU 0 of eight has the fault
    "sim_healthy": Told(SIMULATED),
    "sim_links_9_of_18": Told(
        SIMULATED,
        # peers and fabric stay good: only the count and what it carries show it
        gpu_0=other(SIMULATED, nvlink__links=CRITICAL, nvlink__capacity=CRITICAL),
    ),
    "sim_links_all_inactive": Told(
        # nobody reaches GPU 0, which is its fault and not theirs
        other(SIMULATED, nvlink__p2p=UNKNOWN),
        gpu_0=other(SIMULATED, nvlink__links=CRITICAL, nvlink__capacity=CRITICAL, nvlink__p2p=UNKNOWN),
    ),
    "sim_nvlink_errors": Told(SIMULATED, gpu_0=other(SIMULATED, nvlink__errors=CRITICAL)),
    "sim_fabric_degraded_bw": Told(SIMULATED, gpu_0=other(SIMULATED, fabric__health=CRITICAL)),
    "sim_fabric_no_partition": Told(SIMULATED, gpu_0=other(SIMULATED, fabric__health=CRITICAL)),
    "sim_fabric_in_progress": Told(SIMULATED, gpu_0=other(SIMULATED, fabric__state=CRITICAL, fabric__health=UNKNOWN)),
    "sim_throttle_hw_thermal": Told(
        SIMULATED, gpu_0=other(SIMULATED, thermal__margin=CRITICAL, throttle__hw_thermal=CRITICAL)
    ),
    "sim_throttle_power_brake": Told(SIMULATED, gpu_0=other(SIMULATED, throttle__power_brake=CRITICAL)),
    "sim_pcie_gen3_x8": Told(SIMULATED, gpu_0=other(SIMULATED, pcie__link=CRITICAL)),
    "sim_power_capped_500w": Told(SIMULATED, gpu_0=other(SIMULATED, power__oob=CRITICAL)),
    "sim_ecc_uncorrectable": Told(SIMULATED, gpu_0=other(SIMULATED, ecc__remap=CRITICAL)),
    "sim_gpu_lost": Told(SIMULATED, gpu_0=LOST),
}


# --- the node of a capture -------------------------------------------------------------------------------------------


def node_of(name: str, poll: int = 0) -> NodeReading:
    """The well node with the capture's GPUs, at a poll: what a capture shows goes on while it is watched.

    A throttle time runs while its bit is set, energy as the card draws it, and link errors where there were some.
    """
    nvml = captures.reading_of(name).nvml
    assert isinstance(nvml, Nvml)
    gpus = tuple(_at(replace(gpu, numa_node=gpu.index % 2), poll) for gpu in nvml.gpus)
    exporter = Exporter("dcgm-exporter-x", 0.1, tuple(ExporterGpu(gpu.uuid, poll * 9_000_000) for gpu in gpus))
    return replace(
        healthy(poll), nvml=replace(nvml, gpus=gpus, seconds=0.02), expected_gpus=len(gpus), exporter=exporter
    )


def _at(gpu: GpuReading, poll: int) -> GpuReading:
    throttle = gpu.throttle
    bits = throttle.reasons if isinstance(throttle.reasons, int) else 0

    def ran(counter: Number, bit: int) -> Number:
        return counter + poll * POLL_S * NS if isinstance(counter, int) and bits & bit else counter

    links = gpu.links
    if isinstance(links, tuple):
        links = tuple(
            replace(
                link,
                replays=_more(link.replays, poll),
                recoveries=_more(link.recoveries, poll),
                crc_errors=_more(link.crc_errors, poll),
            )
            for link in links
        )
    return replace(
        gpu,
        links=links,
        throttle=replace(
            throttle,
            sw_power_ns=ran(throttle.sw_power_ns, SW_POWER),
            sw_thermal_ns=ran(throttle.sw_thermal_ns, SW_THERMAL),
            hw_thermal_ns=ran(throttle.hw_thermal_ns, HW_THERMAL),
            power_brake_ns=ran(throttle.power_brake_ns, POWER_BRAKE),
        ),
    )


def _more(counter: Number, poll: int) -> Number:
    return counter + 100 * poll if isinstance(counter, int) and counter else counter


@cache
def watched(name: str) -> tuple[Finding, ...]:
    return Watch().watch(polls=LONG, base=lambda poll: node_of(name, poll)).findings


def table_of(findings: tuple[Finding, ...]) -> dict[tuple[str, str], State]:
    return {(one.check, one.subject): one.state for one in findings}


def expected(name: str) -> dict[tuple[str, str], State]:
    nvml = captures.reading_of(name).nvml
    assert isinstance(nvml, Nvml)
    subjects = {
        Subject.NUMA: ("numa-0", "numa-1"),
        Subject.POD: ("pod-chat/glm-0",),
        Subject.NIC: ("nic-mlx5_0:1",),
        Subject.HOST: ("host",),
    }
    told: dict[tuple[str, str], State] = {}
    for row in CHECKS:
        if row.subject is Subject.GPU:
            told |= {(row.id, gpu.subject): TABLE[name].of(gpu.subject)[row.id] for gpu in nvml.gpus}
        else:
            told |= {(row.id, subject): TABLE[name].host[row.id] for subject in subjects[row.subject]}
    # pressure is of the node and of each engine pod
    told[("host.mem.psi", "pod-chat/glm-0")] = TABLE[name].host["host.mem.psi"]
    # memory is judged next to GPUs only
    near = {f"numa-{gpu.index % 2}" for gpu in nvml.gpus}
    return {key: state for key, state in told.items() if key[0] != "host.mem.numa" or key[1] in near}


def different(found: Mapping[Any, State], wanted: Mapping[Any, State]) -> dict[Any, tuple[State | None, State | None]]:
    """Where they differ: (found, wanted)."""
    keys = [*wanted, *(key for key in found if key not in wanted)]
    return {key: (found.get(key), wanted.get(key)) for key in keys if found.get(key) is not wanted.get(key)}


# --- the table -------------------------------------------------------------------------------------------------------


def test_every_capture_has_its_row() -> None:
    assert set(TABLE) == set(captures.NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_after_eleven_minutes_a_capture_shows_exactly_this(name: str) -> None:
    assert different(table_of(watched(name)), expected(name)) == {}


@pytest.mark.parametrize("name", NAMES)
def test_one_reading_shows_the_same_but_what_is_a_rate(name: str) -> None:
    def at_once(check_id: str, state: State) -> State:
        waits = check_id in (*RATES, "host.swap", "host.memcg", "pin.window", "exporter.fresh")
        return UNKNOWN if waits and state is not UNSUPPORTED else state

    wanted = {key: at_once(key[0], state) for key, state in expected(name).items()}
    assert different(table_of(once(node_of(name))), wanted) == {}


@pytest.mark.parametrize("name", NAMES)
def test_a_fault_says_what_is_wrong_and_what_to_do(name: str) -> None:
    for one in watched(name):
        row = BY_ID[one.check]
        if one.state.is_fault:
            assert one.reason == row.reason
            assert one.message.endswith(f"; {row.remedy}")
        else:
            assert row.remedy not in one.message


# --- what the mission names ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["h200_x2_idle", "h200_x2_traffic", "h200_x2_load"])
def test_two_healthy_h200_are_well_in_links_fabric_and_heat(name: str) -> None:
    findings = watched(name)
    for subject in ("gpu-0", "gpu-1"):
        states = {row: finding(findings, row, subject).state for row in (*NVLINK, "fabric.state", *HEAT)}
        assert states == all_of((*NVLINK, "fabric.state", *HEAT), OK)
        links = finding(findings, "nvlink.links", subject)
        assert (links.value, links.limit) == ("18", "18")
        assert "956.2 GB/s both ways, 100.0 %" in finding(findings, "nvlink.capacity", subject).message


def test_the_power_cap_of_a_loaded_card_is_information() -> None:
    findings = watched("h200_x2_load")
    busy, idle = (finding(findings, "throttle.sw_power", subject) for subject in ("gpu-0", "gpu-1"))
    assert (busy.state, busy.value, idle.value) == (OK, "1", "0")
    assert "at its power limit for 100.0 % of the last 5 minutes, which is normal under load" in busy.message
    told = judged(findings, {row.id: row for row in CHECKS})
    assert [(one.status, "warning" in one.message) for one in told] == [("True", False)] * 3


def test_counters_of_a_healthy_card_are_no_error_by_themselves() -> None:
    """The card in the VM counted two PCIe replays since boot; the simulation's link errors count when they rise."""
    assert finding(watched("h200_vm_nvlink_hidden"), "pcie.errors", "gpu-0").state is OK
    still = Watch().watch(polls=LONG, base=lambda poll: replace(healthy(poll), nvml=node_of("sim_nvlink_errors").nvml))
    assert finding(still.findings, "nvlink.errors", "gpu-0").state is OK


def test_where_nvlink_is_hidden_no_condition_speaks_of_it_as_a_fault() -> None:
    told = {one.type: one for one in judged(watched("h200_vm_nvlink_hidden"), {row.id: row for row in CHECKS})}
    assert told[NodeCondition.LINK].status == "True"
    assert told[NodeCondition.GPU].status == "True"


# --- 18 links falling to 9 -------------------------------------------------------------------------------------------

NINE_WORDS: Final = "9 of 18 NVLink ports are active (NVIDIA H200 has 18), ports 9-17 are not"
NINE_REMEDY: Final = BY_ID["nvlink.links"].remedy


def nvlink_samples(reading: NodeReading) -> tuple[int, int]:
    """(active ports, capacity of one direction in bytes/s) of GPU 0, as Prometheus reads them."""
    metrics = Metrics()
    metrics.snapshot = Snapshot(reading)
    lines = [line.rpartition(" ") for line in metrics.text().decode().splitlines() if not line.startswith("#")]
    values = {name.removeprefix("hisparse_node_gpu_nvlink_"): value for name, _, value in lines}
    active, rate = (values[f'{name}{{gpu="gpu-0"}}'] for name in ("active", "capacity_bytes_per_second"))
    return int(float(active)), int(float(rate))


def test_eighteen_links_falling_to_nine() -> None:
    catalogue = {row.id: row for row in CHECKS}
    watch, story = Watch(), []
    for poll, name in enumerate([*["sim_healthy"] * 3, *["sim_links_9_of_18"] * 4, *["sim_healthy"] * 21]):
        reading = node_of(name, poll)
        findings = watch.see(reading).findings
        links, capacity = (finding(findings, one, "gpu-0") for one in ("nvlink.links", "nvlink.capacity"))
        (told,) = [one for one in judged(findings, catalogue) if one.type is NodeCondition.LINK]
        taint = wanted_taint(findings, catalogue, TaintEffect.PREFER_NO_SCHEDULE)
        assert (links.value, capacity.value) == (("9", "0.5") if name == "sim_links_9_of_18" else ("18", "1"))
        assert (links.limit, links.unit, capacity.unit) == ("18", "count", "ratio")
        story.append((links.state, capacity.state, told.status, told.reason, taint and taint.check, links.message))
        # nothing else shows it, on this GPU or another
        bad = {(one.check, one.subject) for one in findings if one.state.is_fault}
        assert bad <= {("nvlink.links", "gpu-0"), ("nvlink.capacity", "gpu-0")}
        if poll == 5:
            assert (links.reason, links.since) == ("NvlinkLinksDown", reading.at)
            assert told.message.startswith(f"nvlink.links on gpu-0: {NINE_WORDS}")
            assert "478.1 GB/s both ways, 50.0 % of the 956.2 GB/s of 18 ports" in capacity.message

    well = (OK, OK, "True", "LinksHealthy", None)
    down = (CRITICAL, CRITICAL, "False", "NvlinkLinksDown", "nvlink.links")
    whole, fault = "18 of 18 NVLink ports are active (NVIDIA H200 has 18)", f"{NINE_WORDS}; {NINE_REMEDY}"
    assert story == [
        *[(*well, whole)] * 3,
        *[(*well, f"{NINE_WORDS}: {poll} of 3 polls that make it a fault") for poll in (1, 2)],
        *[(*down, fault)] * 2,
        *[
            (*down, f"{NINE_WORDS}; now: {whole} ({poll} of 20 polls that end it); {NINE_REMEDY}")
            for poll in range(1, 20)
        ],
        *[(*well, whole)] * 2,
    ]


def test_the_capacity_is_that_of_the_active_links_whatever_they_carry() -> None:
    """In bytes/s of one direction, from the states and speeds of the ports: idle, after 20 GiB of traffic, loaded."""
    for name in ("h200_x2_idle", "h200_x2_traffic", "h200_x2_load", "sim_healthy"):
        assert nvlink_samples(node_of(name)) == (18, 478_116_000_000)
    assert nvlink_samples(node_of("sim_links_9_of_18")) == (9, 239_058_000_000)
    assert nvlink_samples(node_of("sim_links_all_inactive")) == (0, 0)


def test_a_port_that_sleeps_counts_everywhere_and_one_without_traffic_nowhere() -> None:
    for state, active in ((1, 18), (2, 18), (3, 17), (0, 17)):
        reading = changed(healthy(), {"nvml.gpus.0.links.4.state": state})
        assert nvlink_samples(reading) == (active, active * 26_562_000_000)
        assert inventory_of(reading).gpus is not None
        assert [one.nvlinks for one in inventory_of(reading).gpus or ()] == [active, 18]
        assert finding(once(reading), "nvlink.links", "gpu-0").value == str(active)


# --- the host of the card in the VM ----------------------------------------------------------------------------------


def test_the_virtual_machine_of_the_hidden_card() -> None:
    """Its meminfo is a capture of an idle host of 126 GiB; its NUMA node tells 4.5 of 132 GB and the card -1."""
    root = captures.DATA.parent / "host/h200-vm"
    reading = captures.with_gpu(
        captures.reading_of("h200_vm_nvlink_hidden", memory=read_memory(root), host=read_host(root)),
        0,
        numa_node=read_numa_node(root, "0000:00:03.0"),
    )
    found = table_of(once(replace(reading, rdma=read_rdma(root, declared=False), pods=(), xids=())))
    pods = ("host.mem.fit", "host.pool.unpinned", "host.pool.orphan", "host.memcg")
    wanted = {
        **all_of(("gpu.count", "driver.floor", "driver.rules", "host.mem.available", "host.mem.pinned"), OK),
        **all_of(("host.swap", "host.pool.leak", "host.sysctl", "host.thp", "nvml.latency"), OK),
        **all_of((*pods, "rdma.path", "rdma.nic"), UNSUPPORTED),  # no engine is there, so no connector either
        **all_of(("host.mem.psi", "host.cpufreq"), UNSUPPORTED),  # the kernel has neither
        "host.mem.numa": UNSUPPORTED,  # the machine hides it
        **all_of(("pin.window", "exporter.fresh"), UNKNOWN),
    }
    assert different({name: state for (name, subject), state in found.items() if subject == "host"}, wanted) == {}


# --- the kernel log --------------------------------------------------------------------------------------------------


def cards(*buses: str) -> Nvml:
    gpus = tuple(replace(gpu(0, 0), index=at, uuid=f"GPU-{at}", pci=f"0000:{bus}:00.0") for at, bus in enumerate(buses))
    return Nvml("580.159.04", "13.0", gpus, 0.02)


def xid_states(*, uptime: int) -> dict[str, State]:
    log = KernelLog(captures.DATA.parent / "host/kernel-log/xids.kmsg")
    xids = log.poll()
    log.close()
    reading = changed(healthy(), {"nvml": cards("1b", "4d", "07", "9b", "b3", "c1"), "host.uptime": uptime})
    return {one.subject: one.state for one in once(replace(reading, xids=xids)) if one.check == "xid"}


def test_lines_of_the_kernel_log_by_their_number_or_by_their_own_word() -> None:
    """A GSP timeout; a Fatal link with a Nonfatal one after it; a contained error; two cards off the bus; a switch."""
    fatal = {"gpu-0": CRITICAL, "gpu-1": CRITICAL, "gpu-3": CRITICAL, "gpu-4": CRITICAL, "host": CRITICAL}
    assert xid_states(uptime=400) == {**fatal, "gpu-2": WARN, "gpu-5": OK}
    assert xid_states(uptime=400 + 2 * 3600) == {**fatal, "gpu-2": OK, "gpu-5": OK}, "a warning is old after an hour"


@pytest.mark.parametrize(
    ("text", "state"),
    [
        pytest.param("NVRM: Xid (PCI:0000:1b:00): 13, pid='<unknown>', Graphics SM Warp Exception", OK, id="program"),
        pytest.param(
            "NVRM: Xid (PCI:0000:1b:00): 43, pid=2924, name=pt_main_thread, Ch 00000008", OK, id="and its end"
        ),
        pytest.param("NVRM: Xid (PCI:0000:1b:00): 145, RLW_RXPIPE Nonfatal XC0 i0 Link 13", WARN, id="Nonfatal"),
        pytest.param("NVRM: Xid (PCI:0000:1b:00): 145, RLW_RXPIPE Fatal XC0 i0 Link 13", CRITICAL, id="Fatal"),
        pytest.param("NVRM: Xid (PCI:0000:1b:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 00", CRITICAL, id="link"),
        pytest.param("NVRM: Xid (PCI:0000:1b:00): 119, pid=2024, Timeout after 6s of waiting", CRITICAL, id="GSP"),
        pytest.param("NVRM: GPU 0000:1b:00.0: GPU has fallen off the bus.", CRITICAL, id="no number at all"),
    ],
)
def test_the_word_of_a_line_decides_before_its_number(text: str, state: State) -> None:
    xid = parse_xid(text, UPTIME - 10)
    assert xid is not None
    assert finding(once(replace(healthy(), xids=(xid,))), "xid", "gpu-0").state is state
