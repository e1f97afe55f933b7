"""Memory of the host: /proc/meminfo, /proc/vmstat, /proc/pressure/memory and /sys/devices/system/node.

Pinned bytes show nowhere else: neither Mlocked, Unevictable nor a process's VmLck counts what CUDA pins. vmstat counts
a page once for every pin that holds it, so a pool of 100 GiB that two ranks share reads 200 GiB (measured with vLLM
0.33 on two H200). The raw number is kept here; whoever judges it divides by the ranks.

On hosts with lxcfs, /proc/meminfo may be that of a container. Its total differs from that of the NUMA nodes then.
"""

from __future__ import annotations

import mmap
import re
from fractions import Fraction
from pathlib import Path
from typing import Final

from hisparse.units import format_bytes
from hisparse_agent.readers.kernel_files import Table, list_names, read_table, read_text, unknown
from hisparse_agent.readings import Absence, Memory, Missing, NumaNode, Number, Pressure

NODE_TOLERANCE: Final = Fraction(1, 100)
"""Share of MemTotal by which the sum of the nodes may differ: a machine whose memory grows is read in two steps."""

# Every CPU may hold back 125 of a counter (mm/vmstat.c, calculate_normal_threshold), for two counters and 1024 CPUs.
# Releases that are seen before their acquisitions make less than nothing of that size.
_LAG_PAGES: Final = 2 * 125 * 1024

_NODE = re.compile(r"node([0-9]{1,4})", re.ASCII)
_PERCENT: Final = r"([0-9]{1,3}\.[0-9]{2})"
_PRESSURE = re.compile(
    rf"some avg10={_PERCENT} avg60={_PERCENT} avg300={_PERCENT} total=[0-9]{{1,20}}\n"
    rf"full avg10={_PERCENT} avg60={_PERCENT} avg300={_PERCENT} total=[0-9]{{1,20}}\n",
    re.ASCII,
)
_SOME_60, _FULL_60 = 2, 5
_ALL: Final = 100.0

# present in every vmstat, of the machine and of a node: without it the file is no vmstat
_IN_EVERY_VMSTAT: Final = "nr_free_pages"


def read_memory(root: Path) -> Memory:
    """Host memory below `root`, which is / or where the host's /proc and /sys are mounted.

    pinned_pages needs Linux 5.7; swap counters need a kernel with swap. page_bytes is that of the running kernel.
    """
    proc = root / "proc"
    meminfo = read_table(proc / "meminfo", separator=":")
    vmstat = read_table(proc / "vmstat")
    total = _positive(meminfo.size("MemTotal"), meminfo.path)
    return Memory(
        total=total,
        available=meminfo.size("MemAvailable"),
        shmem=meminfo.size("Shmem"),
        swap_total=meminfo.size("SwapTotal"),
        swap_free=meminfo.size("SwapFree"),
        pinned_pages=_pinned(vmstat),
        page_bytes=mmap.PAGESIZE,
        swap_in=vmstat.count("pswpin", beside=_IN_EVERY_VMSTAT),
        swap_out=vmstat.count("pswpout", beside=_IN_EVERY_VMSTAT),
        major_faults=vmstat.count("pgmajfault", beside=_IN_EVERY_VMSTAT),
        pressure=read_pressure(proc / "pressure" / "memory", beside=meminfo.path),
        nodes=_nodes(root / "sys/devices/system", total),
    )


def read_pressure(path: Path, *, beside: Path) -> Pressure | Missing:
    """Shares of the last minute in percent, from a pressure file of the machine or of a cgroup.

    UNSUPPORTED where the kernel has no PSI: not built in, or psi=0.
    """
    text = read_text(path, beside=beside)
    if isinstance(text, Missing):
        return text
    match = _PRESSURE.fullmatch(text)
    if match is None:
        return unknown(path, f"has an unexpected form: {text[:60]!r}")
    some, full = float(match[_SOME_60]), float(match[_FULL_60])
    if max(some, full) > _ALL:
        return unknown(path, f"says more than 100 percent: {max(some, full)}")
    return Pressure(some=some, full=full)


def _positive(total: Number, path: Path) -> Number:
    return unknown(path, "MemTotal is 0") if total == 0 else total


def _pinned(vmstat: Table) -> Number:
    acquired = vmstat.count("nr_foll_pin_acquired", beside=_IN_EVERY_VMSTAT)
    released = vmstat.count("nr_foll_pin_released", beside=_IN_EVERY_VMSTAT)
    if isinstance(acquired, Missing):
        return acquired
    if isinstance(released, Missing):
        return released
    if released > acquired + _LAG_PAGES:
        return unknown(vmstat.path, f"more pins released ({released}) than acquired ({acquired})")
    return max(0, acquired - released)


def _nodes(system: Path, total: Number) -> tuple[NumaNode, ...] | Missing:
    """The nodes, if together they are the machine's memory.

    A virtual machine whose memory grows has said 4.5 of its 132 GB in its only node; such nodes mean nothing.
    """
    folder = system / "node"
    names = list_names(folder, beside=system)
    if isinstance(names, Missing):
        return names
    indices = sorted(int(match[1]) for name in names if (match := _NODE.fullmatch(name)))
    if not indices:
        return unknown(folder, "has no nodes")
    nodes = tuple(_node(folder / f"node{index}", index) for index in indices)
    if isinstance(total, Missing):
        return unknown(folder, f"cannot be held against the machine's total ({total.why})")
    in_sum = 0
    for node in nodes:
        if isinstance(node.total, Missing):
            return node.total
        in_sum += node.total
    if abs(in_sum - total) > total * NODE_TOLERANCE:
        sums = f"its nodes have {format_bytes(in_sum)} together, and MemTotal says {format_bytes(total)}"
        return Missing(Absence.UNSUPPORTED, f"this machine hides its NUMA memory: {sums} ({folder})")
    return nodes


def _node(folder: Path, index: int) -> NumaNode:
    """file_cache is what the kernel can drop: both file lists, without shared memory, which FilePages would include."""
    meminfo = read_table(folder / "meminfo", separator=":", prefix=f"Node {index} ")
    active, inactive = meminfo.size("Active(file)"), meminfo.size("Inactive(file)")
    if isinstance(active, Missing):
        file_cache: Number = active
    elif isinstance(inactive, Missing):
        file_cache = inactive
    else:
        file_cache = active + inactive
    return NumaNode(
        index=index,
        total=meminfo.size("MemTotal"),
        free=meminfo.size("MemFree"),
        file_cache=file_cache,
        pinned_pages=_pinned(read_table(folder / "vmstat")),
    )
