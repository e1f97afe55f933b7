"""What was read from a node in one poll, as frozen data. Nothing is judged here.

A value that could not be had is a `Missing` that says why: UNKNOWN where reading failed this time, UNSUPPORTED where
the machine has no such thing or hides it. Sizes are bytes, times seconds, temperatures degrees Celsius, power
milliwatts (as NVML gives it), throttle times nanoseconds, error counts since the driver was loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from types import MappingProxyType
from typing import Final, TypeVar

from hisparse.nodes.catalogue import Pace
from hisparse.nodes.findings import pod_subject

T = TypeVar("T")
NVLINK_XIDS: Final = range(144, 151)
"""Xids of NVLink errors, of which the words Fatal and Nonfatal say how bad they are."""


class Absence(StrEnum):
    """Why a value is not there."""

    UNKNOWN = "Unknown"
    UNSUPPORTED = "Unsupported"


@dataclass(frozen=True)
class Missing:
    """A value that could not be read."""

    absence: Absence
    why: str


UNREAD: Final = Missing(Absence.UNKNOWN, "it was not read")

Number = int | Missing
Text = str | Missing
Switch = bool | Missing


def known(value: T | Missing) -> T | None:
    """The value; None where it could not be read."""
    return None if isinstance(value, Missing) else value


def is_unsupported(value: object) -> bool:
    """Whether the machine has no such value, or hides it."""
    return isinstance(value, Missing) and value.absence is Absence.UNSUPPORTED


# --- one GPU ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NvLink:
    """One NVLink port. state: 0 inactive, 1 active, 2 sleep, 3 active with traffic off (NVML field 165).

    bytes_per_second is the capacity of one direction (field 164), which an inactive link does not tell. replays,
    recoveries and crc_errors are counters (161-163).
    """

    index: int
    state: Number = UNREAD
    bytes_per_second: Number = UNREAD
    replays: Number = UNREAD
    recoveries: Number = UNREAD
    crc_errors: Number = UNREAD

    @property
    def is_active(self) -> bool:
        """Whether it carries traffic when asked to: it is active, or asleep to save power."""
        return self.state in (1, 2)


@dataclass(frozen=True)
class Fabric:
    """NVML's fabric information. state: 0 not supported, 1 not started, 2 in progress, 3 completed; status: nvmlReturn.

    health_mask and health_summary are None where NVML has none (N/A).
    """

    state: int
    status: int
    health_mask: int | None = None
    health_summary: int | None = None


@dataclass(frozen=True)
class Heat:
    """Degrees. margin is what is left until the GPU throttles; gpu_limit, slowdown and hbm_limit are thresholds."""

    gpu: Number = UNREAD
    margin: Number = UNREAD
    hbm: Number = UNREAD
    gpu_limit: Number = UNREAD
    slowdown: Number = UNREAD
    hbm_limit: Number = UNREAD


@dataclass(frozen=True)
class Throttle:
    """Time spent throttled, in ns since the driver was loaded, by cause; reasons are the bits of this moment."""

    sw_power_ns: Number = UNREAD
    sw_thermal_ns: Number = UNREAD
    hw_thermal_ns: Number = UNREAD
    power_brake_ns: Number = UNREAD
    reasons: Number = UNREAD


@dataclass(frozen=True)
class Power:
    """Milliwatts. limit is what is set now; requested what was asked of the driver, enforced what is in force."""

    draw: Number = UNREAD
    limit: Number = UNREAD
    default: Number = UNREAD
    least: Number = UNREAD
    most: Number = UNREAD
    enforced: Number = UNREAD
    requested: Number = UNREAD
    energy_mj: Number = UNREAD
    persistent: Switch = UNREAD


@dataclass(frozen=True)
class Pcie:
    """The link to the host. Counters since boot; they are not zero on a healthy GPU."""

    generation: Number = UNREAD
    most_generation: Number = UNREAD
    width: Number = UNREAD
    most_width: Number = UNREAD
    replays: Number = UNREAD
    correctable: Number = UNREAD
    nonfatal: Number = UNREAD
    fatal: Number = UNREAD


@dataclass(frozen=True)
class Faults:
    """recovery_action: NVML field 230; double_bit is the volatile count of uncorrected ECC errors."""

    recovery_action: Number = UNREAD
    remap_pending: Switch = UNREAD
    remap_failed: Switch = UNREAD
    double_bit: Number = UNREAD


@dataclass(frozen=True)
class GpuReading:
    """One GPU. pci is its address as sysfs spells it ("0000:1b:00.0"); product as NVML names it ("NVIDIA H200").

    lost: NVML said that the GPU is gone; everything else is unread then. numa_node comes from sysfs, where -1 is
    unknown and not node 0. peers are the NVLink peer-to-peer states by the index of the other GPU (0 is OK).
    """

    index: int
    uuid: str = ""
    product: str = ""
    pci: str = ""
    device_id: Number = UNREAD
    memory: Number = UNREAD
    memory_used: Number = UNREAD
    utilisation_percent: Number = UNREAD
    mig: Switch = UNREAD
    lost: bool = False
    links: tuple[NvLink, ...] | Missing = UNREAD
    peers: Mapping[int, int] | Missing = UNREAD
    fabric: Fabric | Missing = UNREAD
    heat: Heat = Heat()
    throttle: Throttle = Throttle()
    power: Power = Power()
    pcie: Pcie = Pcie()
    faults: Faults = Faults()
    processes: Number = UNREAD
    numa_node: Number = UNREAD

    @property
    def subject(self) -> str:
        """What a finding about it names."""
        return f"gpu-{self.index}"

    @property
    def active_links(self) -> Number:
        """How many of its NVLink ports are active."""
        return self.links if isinstance(self.links, Missing) else sum(link.is_active for link in self.links)

    # a reading is looked at again at every poll of the next ten minutes, and has 18 ports

    @cached_property
    def crc_errors(self) -> Number:
        """Those of all its ports; Missing where one could not be read."""
        return _sum(self.links, lambda link: link.crc_errors)

    @cached_property
    def link_recoveries(self) -> Number:
        """Those of all its ports; Missing where one could not be read."""
        return _sum(self.links, lambda link: link.recoveries)


def _sum(links: tuple[NvLink, ...] | Missing, pick: Callable[[NvLink], Number]) -> Number:
    if isinstance(links, Missing):
        return links
    total = 0
    for link in links:
        if is_unsupported(link.state):
            continue  # no port of this GPU
        value = pick(link)
        if isinstance(value, Missing):
            return value
        total += value
    return total


@dataclass(frozen=True)
class Xid:
    """One Xid (or SXid) of the kernel log or of NVML's events. at is seconds since boot; pci may be empty.

    fatal is the severity that the text itself has (NVLINK_XIDS, SXids), None where it has none.
    """

    number: int
    at: float
    pci: str
    text: str
    fatal: bool | None = None


@dataclass(frozen=True)
class Nvml:
    """One answer of the NVML child. seconds is how long it took, xids what the driver told since the one before."""

    driver: str
    cuda: str
    gpus: tuple[GpuReading, ...]
    seconds: float = 0.0
    xids: tuple[Xid, ...] | Missing = UNREAD


# --- the host --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pressure:
    """Share of time, in percent over the last minute, that some or all tasks waited."""

    some: float
    full: float


@dataclass(frozen=True)
class NumaNode:
    """One node of memory. pinned_pages is nr_foll_pin_acquired less released."""

    index: int
    total: Number = UNREAD
    free: Number = UNREAD
    file_cache: Number = UNREAD
    pinned_pages: Number = UNREAD


@dataclass(frozen=True)
class Memory:
    """Host memory. pinned_pages as in NumaNode: pages that long-term pins hold, once per rank for a shared pool.

    swap_in, swap_out and major_faults are counters of pages.
    """

    total: Number = UNREAD
    available: Number = UNREAD
    shmem: Number = UNREAD
    swap_total: Number = UNREAD
    swap_free: Number = UNREAD
    pinned_pages: Number = UNREAD
    page_bytes: int = 4096
    swap_in: Number = UNREAD
    swap_out: Number = UNREAD
    major_faults: Number = UNREAD
    pressure: Pressure | Missing = UNREAD
    nodes: tuple[NumaNode, ...] | Missing = UNREAD

    @property
    def pinned_bytes(self) -> Number:
        """Bytes under long-term pins. A pool that ranks share is counted once for each of them."""
        return self.bytes_of(self.pinned_pages)

    def bytes_of(self, pages: Number) -> Number:
        """Pages of this machine as bytes."""
        return pages if isinstance(pages, Missing) else pages * self.page_bytes


@dataclass(frozen=True)
class Cpufreq:
    """driver such as intel_pstate or acpi-cpufreq; governors and preferences (EPP) that CPUs have now.

    offered are the governors that the driver takes.
    """

    driver: str
    governors: tuple[str, ...]
    offered: tuple[str, ...] = ()
    preferences: tuple[str, ...] | Missing = UNREAD
    offered_preferences: tuple[str, ...] | Missing = UNREAD


@dataclass(frozen=True)
class Host:
    """Settings and versions. sysctls by their dotted name, those of `readers.settings.SYSCTLS` only."""

    kernel: Text = UNREAD
    boot_id: Text = UNREAD
    uptime: Number = UNREAD
    open_module: Switch = UNREAD
    modules: frozenset[str] | Missing = UNREAD
    sysctls: Mapping[str, str] | Missing = UNREAD
    huge_pages: Text = UNREAD
    shmem_huge_pages: Text = UNREAD
    cpufreq: Cpufreq | Missing = UNREAD


@dataclass(frozen=True)
class Nic:
    """One port of an RDMA NIC. rate is bits per second; link_downed a counter."""

    name: str
    port: int
    state: Text = UNREAD
    rate: Number = UNREAD
    link_downed: Number = UNREAD


@dataclass(frozen=True)
class Rdma:
    """The path from NICs to GPU memory. declared: a connector of an engine on this node asks for it.

    peermem_registered: nv_mem is among /sys/kernel/mm/memory_peers. dma_buf: the kernel can (P2PDMA, 5.12 or newer).
    """

    declared: bool
    peermem_loaded: Switch = UNREAD
    peermem_registered: Switch = UNREAD
    dma_buf: Switch = UNREAD
    nics: tuple[Nic, ...] | Missing = UNREAD


@dataclass(frozen=True)
class ShmFile:
    """An offload file of an engine in a pod's /dev/shm. opened: whether a process has it open."""

    name: str
    size: int
    opened: Switch = UNREAD


@dataclass(frozen=True)
class EnginePod:
    """An engine pod on this node: what it declares, and what its cgroup counts.

    pool is the host pool that its plan declares, limit its memory limit. oom_kills and max_events are counters.
    """

    namespace: str
    name: str
    uid: str
    inference: str = ""
    pool: Number = UNREAD
    limit: Number = UNREAD
    running: bool = False
    memory: Number = UNREAD
    shmem: Number = UNREAD
    anon: Number = UNREAD
    oom_kills: Number = UNREAD
    max_events: Number = UNREAD
    pressure: Pressure | Missing = UNREAD
    files: tuple[ShmFile, ...] | Missing = UNREAD

    @property
    def subject(self) -> str:
        """What a finding about it names."""
        return pod_subject(self.namespace, self.name)


@dataclass(frozen=True)
class ExporterGpu:
    """What dcgm-exporter says of one GPU; energy in millijoules. None: it has no such series."""

    uuid: str
    energy_mj: int | None = None
    temperature: float | None = None
    power_mw: int | None = None
    last_xid: int | None = None


@dataclass(frozen=True)
class Exporter:
    """One scrape of the own node's dcgm-exporter."""

    pod: str
    seconds: float
    gpus: tuple[ExporterGpu, ...]


# --- all of it -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NodeReading:
    """Everything of one poll. at is the wall clock, monotonic seconds since some start, for rates.

    expected_gpus is what the Node object or GPU feature discovery promises. fresh are the paces whose signals were read
    anew; those of the others are what they were in the poll before.
    """

    at: datetime
    monotonic: float
    node: str = ""
    nvml: Nvml | Missing = UNREAD
    expected_gpus: Number = UNREAD
    memory: Memory = Memory()
    host: Host = Host()
    rdma: Rdma | Missing = UNREAD
    pods: tuple[EnginePod, ...] | Missing = UNREAD
    xids: tuple[Xid, ...] | Missing = UNREAD
    exporter: Exporter | Missing = UNREAD
    labels: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    annotations: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    fresh: frozenset[Pace] = frozenset(Pace)
