"""NVIDIA's GPUs on the PCI bus and the NUMA nodes that they hang on, as sysfs tells it: no driver is needed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from hisparse_agent.readers.kernel_files import list_names, read_value, unknown
from hisparse_agent.readings import Absence, Missing, Number

_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII)
_NODE = re.compile(r"-1|[0-9]{1,4}", re.ASCII)
_HEX = re.compile(r"0x[0-9a-f]{4,6}", re.ASCII)
_NVIDIA: Final = "0x10de"
_DISPLAY: Final = "0x03"
"""The base class of display controllers, 3D ones without an output among them; NVSwitches are bridges, 0x06."""


def read_numa_node(root: Path, pci: str) -> Number:
    """The node of the GPU at an address that is spelled as in sysfs, such as 0000:1b:00.0.

    -1 is what the kernel says when the firmware told it nothing: UNKNOWN, and not node 0. UNSUPPORTED for a kernel
    without NUMA. NVML does not answer this question on x86.
    """
    if _ADDRESS.fullmatch(pci) is None:
        return Missing(Absence.UNKNOWN, f"{pci[:60]!r} is not a PCI address as sysfs spells it")
    device = root / "sys/bus/pci/devices" / pci
    path = device / "numa_node"
    value = read_value(path, _NODE, beside=device)
    if isinstance(value, Missing):
        return value
    if value == "-1":
        return unknown(path, "-1, the firmware does not say which node")
    return int(value)


def count_gpus(root: Path) -> Number:
    """How many of NVIDIA's display controllers are on the bus, driver or not. UNSUPPORTED on a machine without PCI.

    A container sees all devices of its machine, and may have been given a part of them.
    """
    bus = root / "sys/bus"
    devices = bus / "pci/devices"
    names = list_names(devices, beside=bus)
    if isinstance(names, Missing):
        return names
    count = 0
    for name in names:
        vendor = read_value(devices / name / "vendor", _HEX)
        if isinstance(vendor, Missing):
            return vendor
        if vendor != _NVIDIA:
            continue
        kind = read_value(devices / name / "class", _HEX)
        if isinstance(kind, Missing):
            return kind
        count += kind.startswith(_DISPLAY)
    return count
