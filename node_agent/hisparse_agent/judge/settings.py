"""Settings of the kernel that decide how a host with a large pinned pool behaves. None is critical by itself."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from hisparse.nodes.catalogue import Check
from hisparse.nodes.findings import State
from hisparse_agent.judge.verdict import HOST, Verdict, absent, fine, unsupported
from hisparse_agent.judge.view import Judge, View, of_host
from hisparse_agent.readings import Cpufreq, Missing

MOST_SWAPPINESS: Final = 10
STRICT_OVERCOMMIT: Final = "2"
EPP_DRIVERS: Final = frozenset({"intel_pstate", "amd-pstate-epp", "amd_pstate_epp"})
"""Drivers that choose frequencies themselves: their governor says little, the energy preference decides."""

PERFORMANCE: Final = "performance"


def _sysctl(view: View, _row: Check) -> Verdict:
    sysctls = view.reading.host.sysctls
    if isinstance(sysctls, Missing):
        return absent(HOST, sysctls, "sysctls")
    off = []
    swap = view.reading.memory.swap_total
    swappiness = sysctls.get("vm.swappiness", "")
    if isinstance(swap, int) and swap > 0 and _number(swappiness) > MOST_SWAPPINESS:
        off.append(("vm.swappiness", swappiness, f"at most {MOST_SWAPPINESS} where swap is on"))
    if _number(reclaim := sysctls.get("vm.zone_reclaim_mode", "")) > 0:
        off.append(("vm.zone_reclaim_mode", reclaim, "0"))
    if (overcommit := sysctls.get("vm.overcommit_memory", "")) == STRICT_OVERCOMMIT:
        off.append(("vm.overcommit_memory", overcommit, "0 or 1"))
    if off:
        message = "; ".join(f"{name} is {value} and should be {wanted}" for name, value, wanted in off)
        return Verdict(HOST, State.WARN, message, off[0][1], off[0][2])
    return fine(HOST, f"kernel settings suit a pinned pool{_balancing(view, sysctls)}")


def _balancing(view: View, sysctls: Mapping[str, str]) -> str:
    """Told and not judged: reports go both ways, so it is to be measured."""
    nodes = view.reading.memory.nodes
    if sysctls.get("kernel.numa_balancing", "0") == "0" or isinstance(nodes, Missing) or len(nodes) <= 1:
        return ""
    return "; kernel.numa_balancing is on, which helps some hosts and stalls others: measure before you change it"


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() else 0


def _huge_pages(view: View, _row: Check) -> Verdict:
    enabled = view.reading.host.huge_pages
    if isinstance(enabled, Missing):
        return absent(HOST, enabled, "transparent huge pages")
    shmem = view.reading.host.shmem_huge_pages
    also = "" if isinstance(shmem, Missing) else f", {shmem} for shared memory"
    message = f"transparent huge pages are set to {enabled}{also}"
    if enabled == "never":
        return Verdict(HOST, State.WARN, message, enabled, "always or madvise")
    return fine(HOST, message, value=enabled, limit="always or madvise")


def _cpufreq(view: View, _row: Check) -> Verdict:
    cpufreq = view.reading.host.cpufreq
    if isinstance(cpufreq, Missing):
        return absent(HOST, cpufreq, "cpufreq")
    governors = sorted(set(cpufreq.governors))
    if not governors:
        return unsupported(HOST, "no CPU has a governor")
    if governors == [PERFORMANCE]:
        return fine(HOST, f"{cpufreq.driver} runs the governor performance", value=PERFORMANCE, limit=PERFORMANCE)
    if cpufreq.driver in EPP_DRIVERS and not isinstance(cpufreq.preferences, Missing):
        return _preference(cpufreq, sorted(set(cpufreq.preferences)))
    value = ", ".join(governors)
    return Verdict(HOST, State.WARN, f"{cpufreq.driver} runs the governor {value}", value, PERFORMANCE)


def _preference(cpufreq: Cpufreq, preferences: list[str]) -> Verdict:
    value = ", ".join(preferences) or "none"
    message = f"{cpufreq.driver} chooses frequencies itself, with the energy preference {value}"
    if preferences == [PERFORMANCE]:
        return fine(HOST, message, value=value, limit=PERFORMANCE)
    return Verdict(HOST, State.WARN, message, value, PERFORMANCE)


JUDGES: Final[Mapping[str, Judge]] = MappingProxyType(
    {
        "host.sysctl": of_host(_sysctl),
        "host.thp": of_host(_huge_pages),
        "host.cpufreq": of_host(_cpufreq),
    }
)
