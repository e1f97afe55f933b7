"""GPUs that are gone, errors that the driver reports, and the driver itself."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from hisparse.nodes.catalogue import Check
from hisparse.nodes.findings import State
from hisparse.units import GIB, format_bytes
from hisparse_agent.judge.ledger import Card
from hisparse_agent.judge.verdict import HOST, Verdict, absent, fine, graded, unknown, unsupported
from hisparse_agent.judge.view import Judge, View, each_gpu, of_host, unless_lost
from hisparse_agent.readings import NVLINK_XIDS, Absence, GpuReading, Missing, Xid

RECOVERY_ACTIONS: Final = MappingProxyType(
    {
        1: "a reset of the GPU",
        2: "a reboot of the node",
        3: "to drain peer to peer work",
        4: "to drain the GPU and reset it",
        5: "to recover IMEX",
        6: "a reset of the bus",
        7: "a reboot of the system",
    }
)
"""NVML field 230; 6 and 7 in newer headers only."""

_DRAIN_P2P: Final = 3

XID_WARN: Final = frozenset({63, 94})
XID_CRITICAL: Final = frozenset(
    {46, 48, 62, 64, 74, 79, 95, 109, 110, 119, 120, 136, 140, 142, 143, 151, 155, 156, 158}
)

XID_DECAY_S: Final = 3600

FLOOR: Final = (535, 129, 3)
ADVICE: Final = (580,)
CUDA_FLOOR: Final = (12, 3)

LEAKING_KERNELS: Final = ((6, 11), (6, 14))
"""From the first to before the second."""

REGION_LIMIT: Final = 512 * GIB
REGION_DRIVER: Final = 580

_NUMBERS: Final = re.compile(r"[0-9]{1,9}")
_PCI: Final = re.compile(r"([0-9a-f]+):([0-9a-f]{2}):([0-9a-f]{2})(?:\.[0-7])?", re.IGNORECASE)


# --- what is there ---------------------------------------------------------------------------------------------------


def _count(view: View, _row: Check) -> Verdict:
    nvml, expected = view.reading.nvml, view.reading.expected_gpus
    if isinstance(expected, Missing):
        return absent(HOST, expected, "number of GPUs that the node promises")
    if isinstance(nvml, Missing):
        return absent(HOST, nvml, "NVML")
    if expected == 0 and not nvml.gpus:
        return unsupported(HOST, "the node has no GPU and promises none")
    message = f"NVML lists {len(nvml.gpus)} of {expected} GPUs"
    state = State.OK if len(nvml.gpus) >= expected else State.CRITICAL
    return Verdict(HOST, state, message, str(len(nvml.gpus)), str(expected))


def _lost(_view: View, _row: Check, gpu: GpuReading) -> Verdict:
    if gpu.lost:
        return Verdict(gpu.subject, State.CRITICAL, "the driver has lost the GPU", "lost")
    return fine(gpu.subject, "the GPU answers")


def _recovery(_view: View, _row: Check, gpu: GpuReading) -> Verdict:
    action = gpu.faults.recovery_action
    if isinstance(action, Missing):
        return absent(gpu.subject, action, "recovery action")
    if action == 0:
        return fine(gpu.subject, "the driver asks for no recovery", value="0", limit="0")
    words = RECOVERY_ACTIONS.get(action, "an action that this release does not know")
    state = State.WARN if action == _DRAIN_P2P else State.CRITICAL
    return Verdict(gpu.subject, state, f"the driver asks for {words} (recovery action {action})", str(action), "0")


def _remap(_view: View, _row: Check, gpu: GpuReading) -> Verdict:
    failed, pending = gpu.faults.remap_failed, gpu.faults.remap_pending
    if failed is True:
        return Verdict(gpu.subject, State.CRITICAL, "a memory row could not be remapped: the card has no spare left")
    if isinstance(failed, Missing):
        return absent(gpu.subject, failed, "row remapping")
    if isinstance(pending, Missing):
        return absent(gpu.subject, pending, "row remapping")
    if pending:
        return Verdict(gpu.subject, State.WARN, "a memory row is remapped at the next reset of the GPU")
    return fine(gpu.subject, "no row remapping is pending or has failed")


def _uncorrected(view: View, row: Check, gpu: GpuReading) -> Verdict:
    count = gpu.faults.double_bit
    if isinstance(count, Missing):
        return absent(gpu.subject, count, "uncorrected ECC errors")
    message = f"{count} uncorrected ECC error{'s' * (count != 1)} since the driver was loaded"
    return graded(gpu.subject, count, view.limits(row, gpu.product), message)


# --- the kernel log --------------------------------------------------------------------------------------------------


def xid_state(xid: Xid) -> State:
    """How bad a line is: by its own word where it has one (NVLink Xids and SXids), else by its number."""
    if xid.fatal is not None:
        return State.CRITICAL if xid.fatal else State.WARN
    if xid.number in XID_CRITICAL:
        return State.CRITICAL
    return State.WARN if xid.number in XID_WARN or xid.number in NVLINK_XIDS else State.OK


def _xids(view: View, row: Check) -> Iterable[Verdict]:
    xids = view.reading.xids
    cards = _cards(view)
    if isinstance(xids, Missing):
        return tuple(
            replace(absent(card.subject, xids, "kernel log"), holder=card.uuid or card.subject) for card in cards
        ) or (absent(HOST, xids, "kernel log"),)
    known = {bus: card for card in cards if (bus := _bus(card.pci))}
    by_subject: dict[str, list[Xid]] = {card.subject: [] for card in cards} or {HOST: []}
    for xid in _lines(view):
        bus = _bus(xid.pci)
        card = known.get(bus) if bus else None
        if card is not None:
            by_subject[card.subject].append(xid)
        elif xid_state(xid) is not State.OK:
            by_subject.setdefault(HOST, []).append(xid)
    if (row.id, HOST) in view.ledger.standings:
        by_subject.setdefault(HOST, [])
    holders = {card.subject: card.uuid or card.subject for card in cards}
    return tuple(
        replace(_worst_xid(view, subject, lines), holder=holders.get(subject, subject))
        for subject, lines in by_subject.items()
    )


def _lines(view: View) -> tuple[Xid, ...]:
    """Lines of this reading, and critical ones of those before: a reader gives each line once."""
    lines: dict[Xid, None] = {}
    for moment in view.past:
        xids = moment.reading.xids
        if not isinstance(xids, Missing):
            newest = moment is view.past[-1]
            lines.update({xid: None for xid in xids if newest or xid_state(xid) is State.CRITICAL})
    return tuple(lines)


def _cards(view: View) -> tuple[Card, ...]:
    """GPUs of this reading; where NVML does not answer, those that were seen last."""
    if isinstance(view.reading.nvml, Missing):
        return tuple(view.ledger.cards.values())
    return tuple(
        Card(view.holder(gpu), gpu.subject, gpu.pci or (card.pci if card else ""))
        for gpu in view.gpus
        for card in (view.ledger.cards.get(gpu.subject),)
    )


def _bus(pci: str) -> tuple[int, int, int] | None:
    """Domain, bus and device: NVML writes eight digits of domain, sysfs four, and the log leaves the function out."""
    match = _PCI.search(pci)
    return (int(match[1], 16), int(match[2], 16), int(match[3], 16)) if match else None


def _worst_xid(view: View, subject: str, xids: list[Xid]) -> Verdict:
    critical = [xid for xid in xids if xid_state(xid) is State.CRITICAL]
    if critical:
        return Verdict(subject, State.CRITICAL, _xid_words(critical), str(critical[-1].number))
    recent = [xid for xid in xids if xid_state(xid) is State.WARN and _is_new(view, xid)]
    if recent:
        return Verdict(subject, State.WARN, _xid_words(recent), str(recent[-1].number))
    return fine(subject, "no Xid that speaks of a fault of the node was seen")


def _is_new(view: View, xid: Xid) -> bool:
    """Whether a line counts now: it was in no earlier reading, and is not older than its time of decay."""
    for moment in view.past[:-1]:
        if not isinstance(moment.reading.xids, Missing) and xid in moment.reading.xids:
            return False
    uptime = view.reading.host.uptime
    return isinstance(uptime, Missing) or uptime - xid.at <= XID_DECAY_S


def _xid_words(xids: list[Xid]) -> str:
    last = xids[-1]
    more = f" and {len(xids) - 1} more" if len(xids) > 1 else ""
    where = f" on {last.pci}" if last.pci else ""
    return f"Xid {last.number}{where}{more}: {last.text[:120].strip()}"


# --- the driver ------------------------------------------------------------------------------------------------------


def version(text: str) -> tuple[int, ...]:
    """The numbers of a version: "580.159.04" is (580, 159, 4); empty where there are none."""
    return tuple(int(number) for number in _NUMBERS.findall(text)[:4])


def _no_version(driver: str) -> str:
    return f'"{driver}" is not a version of the driver' if driver else "NVML does not tell the version of the driver"


def _floor(view: View, _row: Check) -> Verdict:
    nvml = view.reading.nvml
    if isinstance(nvml, Missing):
        return absent(HOST, nvml, "NVML")
    driver, cuda = version(nvml.driver), version(nvml.cuda)
    if not driver:
        return unknown(HOST, _no_version(nvml.driver))
    if driver < FLOOR:
        return Verdict(HOST, State.CRITICAL, f"driver {nvml.driver} is below 535.129.03", nvml.driver, "535.129.03")
    if cuda and cuda < CUDA_FLOOR:
        return Verdict(HOST, State.CRITICAL, f"the driver takes CUDA up to {nvml.cuda}, below 12.3", nvml.cuda, "12.3")
    if driver < ADVICE:
        return Verdict(HOST, State.WARN, f"driver {nvml.driver} is below 580", nvml.driver, "580")
    return fine(HOST, f"driver {nvml.driver}, CUDA up to {nvml.cuda or 'unknown'}", value=nvml.driver, limit="580")


def _rules(view: View, _row: Check) -> Verdict:
    kernel = view.reading.host.kernel
    matches = []
    if isinstance(kernel, str) and LEAKING_KERNELS[0] <= version(kernel)[:2] < LEAKING_KERNELS[1]:
        matches.append(f"kernel {kernel} loses memory when a long-term pin fails (6.11 to 6.13)")
    nvml = view.reading.nvml
    if not isinstance(nvml, Missing) and version(nvml.driver)[:1] >= (REGION_DRIVER,):
        matches += [
            f"driver {nvml.driver} does not register one region of 512 GiB or more, "
            f"and {pod.subject} declares a pool of {format_bytes(pod.pool)}"
            for pod in view.pods
            if isinstance(pod.pool, int) and pod.pool >= REGION_LIMIT
        ]
    if matches:
        return Verdict(HOST, State.WARN, "; ".join(matches))
    if isinstance(kernel, Missing):
        return absent(HOST, kernel, "version of the kernel")
    if isinstance(nvml, Missing):
        return absent(HOST, nvml, "NVML")
    if not version(nvml.driver):
        return unknown(HOST, _no_version(nvml.driver))
    if isinstance(view.reading.pods, Missing) and view.reading.pods.absence is Absence.UNKNOWN:
        return absent(HOST, view.reading.pods, "engine pods")
    return fine(HOST, f"no known fault of kernel {kernel} and driver {nvml.driver} applies here")


JUDGES: Final[Mapping[str, Judge]] = MappingProxyType(
    {
        "gpu.count": of_host(_count),
        "gpu.lost": each_gpu(_lost),
        "gpu.recovery_action": each_gpu(unless_lost(_recovery)),
        "xid": _xids,
        "ecc.remap": each_gpu(unless_lost(_remap)),
        "ecc.uncorrected": each_gpu(unless_lost(_uncorrected)),
        "driver.floor": of_host(_floor),
        "driver.rules": of_host(_rules),
    }
)
