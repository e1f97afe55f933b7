"""NVLink and the fabric behind it: ports, capacity, errors, peers.

Capacity is what active ports can carry, never what they carry now: an idle GPU moves nothing and is well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from types import MappingProxyType
from typing import Final

from hisparse.hardware import gpu_named
from hisparse.nodes.catalogue import Check
from hisparse.nodes.checks import BY_ID
from hisparse.nodes.findings import State
from hisparse_agent.judge.rates import Change, change, lasted, of_gpu
from hisparse_agent.judge.verdict import (
    BOOT_GRACE,
    Verdict,
    absent,
    fine,
    gigabytes_per_second,
    graded,
    percent,
    plain,
    unknown,
    unsupported,
)
from hisparse_agent.judge.view import Judge, Moment, View, each_gpu, unless_lost
from hisparse_agent.readings import Absence, Fabric, GpuReading, Missing, Number, NvLink, is_unsupported

LINK_BYTES_PER_SECOND: Final[Mapping[str, int]] = MappingProxyType(
    {
        "h200": 26_562_000_000,
        "h100": 26_562_000_000,
        "h100-nvl": 26_562_000_000,
        "a100-80": 25_000_000_000,
        "a100-40": 25_000_000_000,
    }
)
"""One direction of a port, as field 164 reports it: measured on H200, H100 and A100 from public nvidia-smi output."""

CRC_WINDOW_S: Final = 300
RECOVERY_WINDOW_S: Final = 600
RECOVERIES: Final = 2
FABRIC_BOOT_S: Final = 300
FABRIC_IN_PROGRESS_S: Final = 120

_RUN: Final = 3
"""So many ports that follow one another are told as a range."""

_SXM: Final = frozenset({"h200", "h100", "h20", "b200"})
"""Products of which every card sits on a board with NVSwitch."""

_FABRIC_COMPLETED: Final = 3
_FABRIC_STATES: Final = MappingProxyType({0: "not supported", 1: "not started", 2: "in progress", 3: "completed"})

_HEALTH_GROUPS: Final = (
    (0, "degraded bandwidth", State.CRITICAL),
    (2, "route recovery", State.WARN),
    (4, "an unhealthy route", State.CRITICAL),
    (6, "access timeout recovery", State.CRITICAL),
)
"""Shift of a 2-bit group in the health mask, its name, and what its fault means. 0 not supported, 1 yes, 2 no."""

_MISCONFIGURED_SHIFT: Final = 8
_MISCONFIGURED: Final = MappingProxyType(
    {
        2: "a wrong system GUID",
        3: "a wrong chassis serial number",
        4: "no partition",
        5: "too few NVLinks",
        6: "incompatible firmware",
        7: "a wrong location",
        8: "an invalid state",
    }
)
_SUMMARY_UNHEALTHY: Final = 2
_SUMMARY_LIMITED: Final = 3


def is_sxm(product: str) -> bool:
    """Whether a product, as NVML names it, sits on a board whose GPUs are all joined."""
    known = gpu_named(product)
    return "SXM" in product or (known is not None and known.name in _SXM)


def _ports(gpu: GpuReading) -> tuple[NvLink, ...] | Missing:
    """The ports that the GPU has; a reader may have asked for more than there are."""
    if gpu.mig is True:
        return Missing(Absence.UNSUPPORTED, "NVLink cannot be asked for while the GPU is in MIG mode")
    if isinstance(gpu.links, Missing):
        return gpu.links
    there = tuple(link for link in gpu.links if not is_unsupported(link.state))
    if not there:
        return Missing(Absence.UNSUPPORTED, "the GPU has no NVLink, or this machine hides it")
    unread = next((link.state for link in there if isinstance(link.state, Missing)), None)
    return there if unread is None else unread


def _active(ports: tuple[NvLink, ...]) -> tuple[NvLink, ...]:
    return tuple(link for link in ports if link.is_active)


def expected_ports(view: View, gpu: GpuReading) -> tuple[int, str] | Missing:
    """How many ports should be active, and who says so.

    The product on boards with NVSwitch, and on bridged cards once a bridge was seen; else the most that this card ever
    had active. Missing where that proves nothing: a board's card of which some ports were never seen active, and the
    product promises nothing, may have lost them before anybody looked.
    """
    baseline = view.ledger.links.get(view.holder(gpu))
    seen = baseline.active if baseline else 0
    if not isinstance(gpu.links, Missing):
        seen = max(seen, len(_active(gpu.links)))
    limits = view.limits(BY_ID["nvlink.links"], gpu.product)
    promised = int(Fraction(limits.critical or 0))
    if promised > 0 and (is_sxm(gpu.product) or seen):
        override = view.overrides.get("nvlink.links")
        source = "as the policy says" if override and override.critical else f"{gpu.product} has {promised}"
        return promised, source
    ports = _ports(gpu)
    if is_sxm(gpu.product) and isinstance(ports, tuple) and seen < len(ports):
        why = (
            f"no more than {seen} of the {len(ports)} NVLink ports were ever active, and how many this board joins is "
            "not known; set critical of nvlink.links in a HiSparseNodePolicy"
        )
        return Missing(Absence.UNKNOWN, why)
    if seen:
        return seen, "the most that were ever active on this card"
    return Missing(Absence.UNSUPPORTED, "no NVLink port of this card was ever active: it has no bridge")


def _links(view: View, _row: Check, gpu: GpuReading) -> Verdict:
    ports = _ports(gpu)
    if isinstance(ports, Missing):
        return absent(gpu.subject, ports, "NVLink")
    expected = expected_ports(view, gpu)
    if isinstance(expected, Missing):
        return absent(gpu.subject, expected, "NVLink")
    wanted, source = expected
    active = _active(ports)
    down = [link.index for link in ports if link not in active]
    message = f"{len(active)} of {wanted} NVLink ports are active ({source})"
    if len(active) >= wanted:
        return fine(gpu.subject, message, value=str(len(active)), limit=str(wanted))
    names = f", port{'s' * (len(down) > 1)} {_ranges(down)} {'are' if len(down) > 1 else 'is'} not" if down else ""
    return Verdict(gpu.subject, State.CRITICAL, f"{message}{names}", str(len(active)), str(wanted))


def _ranges(numbers: Sequence[int]) -> str:
    """Rising numbers for people: "0, 2, 9-17"."""
    rows: list[list[int]] = []
    for number in numbers:
        if rows and number == rows[-1][-1] + 1:
            rows[-1].append(number)
        else:
            rows.append([number])
    told = [[f"{row[0]}-{row[-1]}"] if len(row) >= _RUN else [str(one) for one in row] for row in rows]
    return ", ".join(one for row in told for one in row)


def capacity(ports: tuple[NvLink, ...]) -> int | Missing:
    """Bytes/s that the active ports can carry, both directions together (NVML field 164, times two)."""
    total = 0
    for link in _active(ports):
        if isinstance(link.bytes_per_second, Missing):
            return link.bytes_per_second
        total += 2 * link.bytes_per_second
    return total


def _capacity(view: View, row: Check, gpu: GpuReading) -> Verdict:
    ports = _ports(gpu)
    if isinstance(ports, Missing):
        return absent(gpu.subject, ports, "NVLink")
    expected = expected_ports(view, gpu)
    if isinstance(expected, Missing):
        return absent(gpu.subject, expected, "NVLink")
    there = capacity(ports)
    if isinstance(there, Missing):
        return absent(gpu.subject, there, "speed of an active NVLink port")
    rate = _full_rate(view, gpu, ports)
    if rate <= 0:
        return unknown(gpu.subject, "no port is active and the full speed of this product's ports is not known")
    wanted = 2 * expected[0] * rate
    share = Fraction(there, wanted)
    message = (
        f"active NVLink ports can carry {gigabytes_per_second(there)} both ways, {percent(share)} of the "
        f"{gigabytes_per_second(wanted)} of {expected[0]} ports"
    )
    return graded(gpu.subject, share, view.limits(row, gpu.product), message)


def _full_rate(view: View, gpu: GpuReading, ports: tuple[NvLink, ...]) -> int:
    known = gpu_named(gpu.product)
    if known is not None and known.name in LINK_BYTES_PER_SECOND:
        return LINK_BYTES_PER_SECOND[known.name]
    baseline = view.ledger.links.get(view.holder(gpu))
    now = max((link.bytes_per_second for link in _active(ports) if isinstance(link.bytes_per_second, int)), default=0)
    return max(now, baseline.bytes_per_second if baseline else 0)


def _errors(view: View, row: Check, gpu: GpuReading) -> Verdict:
    ports = _ports(gpu)
    if isinstance(ports, Missing):
        return absent(gpu.subject, ports, "NVLink")
    key = view.holder(gpu)
    crc = _worst(view, key, ports, lambda one: one.crc_errors, CRC_WINDOW_S, total=lambda one: one.crc_errors)
    recoveries = _worst(
        view, key, ports, lambda one: one.recoveries, RECOVERY_WINDOW_S, total=lambda one: one.link_recoveries
    )
    if not isinstance(recoveries, Missing) and recoveries[1].amount >= RECOVERIES:
        port, rise = recoveries
        message = f"NVLink port {port} has recovered {rise.amount} times in 10 minutes; more than once is a fault"
        return Verdict(gpu.subject, State.CRITICAL, message, str(rise.amount), str(RECOVERIES))
    if isinstance(crc, Missing):
        return absent(gpu.subject, crc, "NVLink CRC errors")
    port, rise = crc
    verdict = graded(
        gpu.subject,
        rise.per_minute,
        view.limits(row, gpu.product),
        f"NVLink port {port} counts {plain(rise.per_minute)} CRC errors a minute, and no port more"
        if rise.amount
        else "no NVLink port has counted a CRC error in 5 minutes",
    )
    if verdict.state is State.OK and isinstance(recoveries, Missing):
        return absent(gpu.subject, recoveries, "NVLink recoveries")
    return verdict


def _worst(
    view: View,
    key: str,
    ports: tuple[NvLink, ...],
    pick: Callable[[NvLink], Number],
    window_s: int,
    *,
    total: Callable[[GpuReading], Number],
) -> tuple[int, Change] | Missing:
    """The port whose counter rose most, and by how much; Missing where one of them cannot be said."""
    # most polls see no error at all: one sum tells, without a window for each of 18 ports
    of_all = change(view, of_gpu(key, total), window_s=window_s)
    if isinstance(of_all, Missing):
        return of_all
    if of_all.amount == 0:
        return ports[0].index, of_all
    worst: tuple[int, Change] | None = None
    for port in ports:
        rise = change(view, of_gpu(key, _of_port(port.index, pick)), window_s=window_s)
        if isinstance(rise, Missing):
            return rise
        if worst is None or rise.amount > worst[1].amount:
            worst = (port.index, rise)
    return worst if worst is not None else Missing(Absence.UNSUPPORTED, "the GPU has no NVLink port")


def _of_port(index: int, pick: Callable[[NvLink], Number]) -> Callable[[GpuReading], Number]:
    def read(gpu: GpuReading) -> Number:
        if isinstance(gpu.links, Missing):
            return gpu.links
        return next(
            (pick(link) for link in gpu.links if link.index == index), Missing(Absence.UNKNOWN, "the port was not read")
        )

    return read


def _peers(view: View, _row: Check, gpu: GpuReading) -> Verdict:
    ports = _ports(gpu)
    if isinstance(ports, Missing):
        return absent(gpu.subject, ports, "NVLink")
    if isinstance(gpu.peers, Missing):
        return absent(gpu.subject, gpu.peers, "peer to peer status")
    if not gpu.peers:
        return unsupported(gpu.subject, "the node has no other GPU to reach")
    closed = sorted(index for index, status in gpu.peers.items() if status != 0)
    if not closed:
        others = f"all {len(gpu.peers)} other GPUs are" if len(gpu.peers) > 1 else "the other GPU is"
        return fine(gpu.subject, f"{others} reachable over NVLink")
    if not is_sxm(gpu.product):
        return unsupported(gpu.subject, "cards of this product are joined by bridges, and which are is not known")
    if _has_ports_down(view, gpu):
        return unknown(gpu.subject, "NVLink ports are down, so peers may be out of reach: see nvlink.links")
    there = {other.index: other for other in view.gpus}
    closed = [index for index in closed if index not in there or not _has_ports_down(view, there[index])]
    if not closed:
        return unknown(gpu.subject, "NVLink ports of the peers that are out of reach are down: see nvlink.links")
    names = ", ".join(f"gpu-{index}" for index in closed)
    message = f"all NVLink ports are active and {names} {'are' if len(closed) > 1 else 'is'} not reachable over them"
    return Verdict(gpu.subject, State.CRITICAL, message, str(len(closed)), "0")


def _has_ports_down(view: View, gpu: GpuReading) -> bool:
    """Whether a GPU's own ports explain that it cannot be reached; also where nobody can say."""
    ports, expected = _ports(gpu), expected_ports(view, gpu)
    if gpu.lost or isinstance(ports, Missing) or isinstance(expected, Missing):
        return True
    return len(_active(ports)) < expected[0]


def _fabric_state(view: View, _row: Check, gpu: GpuReading) -> Verdict:
    fabric = gpu.fabric
    if isinstance(fabric, Missing):
        return absent(gpu.subject, fabric, "fabric")
    name = _FABRIC_STATES.get(fabric.state, str(fabric.state))
    if fabric.state == 0:
        return unsupported(gpu.subject, "the GPU is on no NVLink fabric, or this machine hides it")
    if fabric.state == _FABRIC_COMPLETED:
        if fabric.status == 0:
            return fine(gpu.subject, "the fabric is set up: state completed, status success")
        return Verdict(
            gpu.subject, State.CRITICAL, f"the fabric is completed with status {fabric.status}; 0 is success"
        )
    uptime = view.reading.host.uptime
    if isinstance(uptime, Missing):
        return unknown(gpu.subject, f"the fabric is {name}, and how long after boot could not be read: {uptime.why}")
    if uptime >= FABRIC_BOOT_S:
        message = f"the fabric is {name} {uptime} s after boot; it should be completed within {FABRIC_BOOT_S} s"
        return Verdict(gpu.subject, State.CRITICAL, message, str(uptime), str(FABRIC_BOOT_S))
    key = view.holder(gpu)
    if lasted(view, lambda moment: _not_ready(moment, key), seconds=FABRIC_IN_PROGRESS_S):
        message = f"the fabric has been {name} for {FABRIC_IN_PROGRESS_S} s"
        return Verdict(gpu.subject, State.WARN, message, limit=str(FABRIC_IN_PROGRESS_S))
    return unknown(gpu.subject, f"the fabric is {name}, {uptime} s after boot", reason=BOOT_GRACE)


def _not_ready(moment: Moment, key: str) -> bool:
    gpu = moment.gpus.get(key)
    return gpu is not None and isinstance(gpu.fabric, Fabric) and gpu.fabric.state in (1, 2)


def fabric_faults(mask: int) -> tuple[tuple[str, State], ...]:
    """What a health mask says is wrong. In its 2-bit groups 1 is the fault and 2 is healthy, so 0x1AA is healthy."""
    faults = [(name, state) for shift, name, state in _HEALTH_GROUPS if mask >> shift & 0b11 == 1]
    configuration = mask >> _MISCONFIGURED_SHIFT & 0b1111
    if configuration > 1:
        faults.append((_MISCONFIGURED.get(configuration, f"configuration fault {configuration}"), State.CRITICAL))
    return tuple(faults)


def _fabric_health(_view: View, _row: Check, gpu: GpuReading) -> Verdict:
    fabric = gpu.fabric
    if isinstance(fabric, Missing):
        return absent(gpu.subject, fabric, "fabric")
    if fabric.state == 0 or (not fabric.health_mask and fabric.health_summary is None):
        return unsupported(gpu.subject, "this fabric reports no health (as on a single Hopper node)")
    if fabric.state != _FABRIC_COMPLETED:
        return unknown(gpu.subject, "the fabric is not set up yet: see fabric.state")
    mask = fabric.health_mask or 0
    faults = fabric_faults(mask)
    shown = f"health mask {mask:#x}"
    if faults:
        state = State.CRITICAL if any(state is State.CRITICAL for _, state in faults) else State.WARN
        names = ", ".join(name for name, _ in faults)
        return Verdict(gpu.subject, state, f"the fabric reports {names} ({shown})", f"{mask:#x}")
    if fabric.health_summary == _SUMMARY_UNHEALTHY:
        return Verdict(gpu.subject, State.CRITICAL, f"the fabric reports itself unhealthy ({shown})", f"{mask:#x}")
    if fabric.health_summary == _SUMMARY_LIMITED:
        return Verdict(gpu.subject, State.WARN, f"the fabric reports limited capacity ({shown})", f"{mask:#x}")
    return fine(gpu.subject, f"the fabric reports no fault ({shown})", value=f"{mask:#x}")


JUDGES: Final[Mapping[str, Judge]] = MappingProxyType(
    {
        "nvlink.links": each_gpu(unless_lost(_links)),
        "nvlink.capacity": each_gpu(unless_lost(_capacity)),
        "nvlink.errors": each_gpu(unless_lost(_errors)),
        "nvlink.p2p": each_gpu(unless_lost(_peers)),
        "fabric.state": each_gpu(unless_lost(_fabric_state)),
        "fabric.health": each_gpu(unless_lost(_fabric_health)),
    }
)
