"""Settings and versions of the host that decide how fast its memory and CPUs are."""

from __future__ import annotations

import re
from pathlib import Path
from types import MappingProxyType
from typing import Final

from hisparse_agent.readers.kernel_files import read_text, read_value, unknown, unsupported
from hisparse_agent.readings import Absence, Cpufreq, Host, Missing, Number, Switch, Text

SYSCTLS: Final = ("vm.swappiness", "kernel.numa_balancing", "vm.zone_reclaim_mode", "vm.overcommit_memory")

_WORD = re.compile(r"[!-~]{1,200}", re.ASCII)
_WORDS = re.compile(r"[!-~]{1,60}(?: [!-~]{1,60}){0,31}", re.ASCII)
_BOOT_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
_UPTIME = re.compile(r"([0-9]{1,12})\.[0-9]{2} [0-9]{1,15}\.[0-9]{2}", re.ASCII)
_INTEGER = re.compile(r"-?[0-9]{1,10}", re.ASCII)
_MODULE = re.compile(
    r"(?P<name>[!-~]{1,100}) [0-9]{1,20} (?:[0-9]{1,10}|-) [!-~]{1,8000} (?P<state>Live|Loading|Unloading) 0x.{0,100}",
    re.ASCII,
)
_CHOICE = re.compile(r"(?:[a-z_]+ )*\[(?P<chosen>[a-z_]+)\](?: [a-z_]+)*", re.ASCII)
_RANGE = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?", re.ASCII)
_MOST_CPUS: Final = 8192


def read_host(root: Path) -> Host:
    """Settings below `root`, which is / or where the host's /proc and /sys are mounted."""
    proc, sys = root / "proc", root / "sys"
    return Host(
        kernel=read_kernel(root),
        boot_id=read_value(proc / "sys/kernel/random/boot_id", _BOOT_ID),
        uptime=_uptime(proc / "uptime"),
        open_module=_open_module(proc),
        modules=read_modules(root),
        sysctls=_sysctls(proc / "sys"),
        huge_pages=_chosen(sys / "kernel/mm/transparent_hugepage/enabled", sys / "kernel/mm"),
        shmem_huge_pages=_chosen(sys / "kernel/mm/transparent_hugepage/shmem_enabled", sys / "kernel/mm"),
        cpufreq=_cpufreq(sys / "devices/system/cpu"),
    )


def read_kernel(root: Path) -> Text:
    """The kernel's release, as uname -r says it."""
    return read_value(root / "proc/sys/kernel/osrelease", _WORD)


def read_modules(root: Path) -> frozenset[str] | Missing:
    """Names of the modules that are loaded for good, with underscores; one that is still loading is not among them.

    UNSUPPORTED for a kernel that loads none.
    """
    path = root / "proc/modules"
    text = read_text(path, beside=root / "proc/meminfo")
    if isinstance(text, Missing):
        return text
    names: set[str] = set()
    for line in text.splitlines():
        match = _MODULE.fullmatch(line)
        if match is None:
            return unknown(path, f"has an unexpected form: {line[:60]!r}")
        if match["state"] == "Live":
            names.add(match["name"])
    return frozenset(names)


def _uptime(path: Path) -> Number:
    """Whole seconds since boot."""
    value = read_value(path, _UPTIME)
    return value if isinstance(value, Missing) else int(value.partition(".")[0])


def _open_module(proc: Path) -> Switch:
    """Whether the NVIDIA driver is the open one, which DMA-BUF needs. UNSUPPORTED: no such driver is loaded."""
    path = proc / "driver/nvidia/version"
    text = read_text(path, beside=proc / "meminfo")
    if isinstance(text, Missing):
        return text
    first = next((line for line in text.splitlines() if line.startswith("NVRM version:")), "")
    if "Kernel Module" not in first:
        return unknown(path, f"has an unexpected form: {text[:60]!r}")
    return "Open Kernel Module" in first


def _sysctls(folder: Path) -> MappingProxyType[str, str] | Missing:
    """Those of SYSCTLS that this kernel has. One that is there and cannot be read makes all of them UNKNOWN.

    A name that is not in the answer is therefore a setting that does not exist here (no NUMA, say), never one that
    failed.
    """
    values: dict[str, str] = {}
    for name in SYSCTLS:
        value = read_value(folder / name.replace(".", "/"), _INTEGER, beside=folder / "kernel/osrelease")
        if isinstance(value, str):
            values[name] = value
        elif value.absence is Absence.UNKNOWN:
            return value
    return MappingProxyType(values) if values else unsupported(folder, "has none of " + ", ".join(SYSCTLS))


def _chosen(path: Path, beside: Path) -> Text:
    """The word in brackets of "always [madvise] never"."""
    value = read_value(path, _CHOICE, beside=beside)
    if isinstance(value, Missing):
        return value
    return value[value.index("[") + 1 : value.index("]")]


def _cpufreq(folder: Path) -> Cpufreq | Missing:
    """Frequency settings of the CPUs that are online. UNSUPPORTED without a driver, as in most virtual machines.

    All CPUs share one driver, so what it offers is read from the first. A CPU that is not online refuses to answer.
    """
    cpus = _online(folder / "online")
    if isinstance(cpus, Missing):
        return cpus
    first = folder / f"cpu{cpus[0]}"
    driver = read_value(first / "cpufreq/scaling_driver", _WORD, beside=first)
    if isinstance(driver, Missing):
        return driver
    governors = _of_cpus(folder, cpus, "scaling_governor")
    if isinstance(governors, Missing):
        return governors
    offered = _words(first / "cpufreq/scaling_available_governors", first / "cpufreq/scaling_driver")
    return Cpufreq(
        driver=driver,
        governors=governors,
        offered=() if isinstance(offered, Missing) else offered,
        preferences=_of_cpus(folder, cpus, "energy_performance_preference"),
        offered_preferences=_words(
            first / "cpufreq/energy_performance_available_preferences", first / "cpufreq/scaling_driver"
        ),
    )


def _online(path: Path) -> list[int] | Missing:
    """CPUs of a list such as "0-63,128"."""
    value = read_value(path, _WORD)
    if isinstance(value, Missing):
        return value
    cpus: set[int] = set()
    for part in value.split(","):
        match = _RANGE.fullmatch(part)
        if match is None or int(match[2] or match[1]) >= _MOST_CPUS:
            return unknown(path, f"has an unexpected form: {value[:60]!r}")
        cpus.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return sorted(cpus) or unknown(path, f"has an unexpected form: {value[:60]!r}")


def _of_cpus(folder: Path, cpus: list[int], name: str) -> tuple[str, ...] | Missing:
    """The distinct values that CPUs have; UNKNOWN if that of one is, UNSUPPORTED if none has any."""
    values: set[str] = set()
    refused: Missing | None = None
    for cpu in cpus:
        own = folder / f"cpu{cpu}/cpufreq"
        value = read_value(own / name, _WORD, beside=own / "scaling_driver")
        if isinstance(value, str):
            values.add(value)
        elif value.absence is Absence.UNKNOWN:
            return value
        else:
            refused = value
    return tuple(sorted(values)) if values or refused is None else refused


def _words(path: Path, beside: Path) -> tuple[str, ...] | Missing:
    value = read_value(path, _WORDS, beside=beside)
    return value if isinstance(value, Missing) else tuple(value.split(" "))
