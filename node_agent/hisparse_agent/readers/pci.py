"""Which NUMA node a GPU hangs on, as sysfs tells it."""

from __future__ import annotations

import re
from pathlib import Path

from hisparse_agent.readers.kernel_files import read_value, unknown
from hisparse_agent.readings import Absence, Missing, Number

_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII)
_NODE = re.compile(r"-1|[0-9]{1,4}", re.ASCII)


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
