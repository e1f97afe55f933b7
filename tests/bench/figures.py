"""What a benchmark reads of this machine's processes, and one figure with its limit."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Row:
    """One figure. limit None: it has none."""

    what: str
    value: float
    limit: float | None
    unit: str

    @property
    def missed(self) -> bool:
        """Whether it is over its limit."""
        return self.limit is not None and self.value > self.limit

    def cells(self) -> tuple[str, str, str, str]:
        """The row of a table."""
        limit = "" if self.limit is None else f"at most {self.limit:g} {self.unit}"
        return self.what, f"{self.value:.4g} {self.unit}", limit, "MISSED" if self.missed else ""


def cpu_seconds(pid: int) -> float:
    """User and system time of a process up to now."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def mebibytes(pid: int, name: str = "VmRSS") -> float:
    """Memory of a process by a field of /proc/PID/status: VmRSS now, VmHWM the most so far."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) / 1024
    raise SystemExit(f"process {pid} has no {name}: it has ended")


def machine() -> str:
    """This machine in words."""
    memory = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal"))
    return (
        f"{os.cpu_count()} CPUs, {int(memory.split()[1]) / 1024**2:.0f} GiB of memory, Python {sys.version.split()[0]}"
    )
