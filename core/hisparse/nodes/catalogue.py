"""The checks of a node as one typed table: thresholds, hysteresis, remedies and the words for people.

The figures are those of docs/node-checks.md, which is generated from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType


class NodeCondition(StrEnum):
    """Conditions of the Node object that findings feed."""

    GPU = "HiSparseGpuHealthy"
    LINK = "HiSparseLinkHealthy"
    HOST_MEMORY = "HiSparseHostMemoryHealthy"


class Subject(StrEnum):
    """What a check judges one by one."""

    GPU = "gpu"
    NUMA = "numa"
    POD = "pod"
    NIC = "nic"
    HOST = "host"


class Pace(StrEnum):
    """How often a signal is read."""

    HOST = "5s"
    GPU = "15s"
    CONFIG = "60s"


class Verb(StrEnum):
    """The closed list of what the actuator can do."""

    POWER_CAP = "power-cap"
    SYSCTL = "sysctl"
    CPUFREQ = "cpufreq"


@dataclass(frozen=True)
class Threshold:
    """From where a value is a warning and from where it is critical; None where it never is.

    Numbers are exact text in the check's unit, compared as fractions; rising says that more is worse.
    """

    warn: str | None = None
    critical: str | None = None
    rising: bool = True


@dataclass(frozen=True)
class Check:
    """One row of the catalogue.

    enter_polls readings in a row turn a subject worse, leave_polls turn it better again. leave_polls None: only a
    person, or another boot, ends it. boot_grace_s and pin_grace: how long after boot, and whether during a pin
    window, a fault is not taken for one. profiles are thresholds of single GPU products, by the name in
    hisparse.hardware; threshold is that of all others.
    """

    id: str
    subject: Subject
    signal: str
    reason: str
    summary: str
    remedy: str
    runbook: str
    source: str
    pace: Pace = Pace.GPU
    unit: str = ""
    threshold: Threshold = Threshold()
    profiles: Mapping[str, Threshold] = field(default_factory=lambda: MappingProxyType({}))
    enter_polls: int = 3
    leave_polls: int | None = 10
    boot_grace_s: int = 0
    pin_grace: bool = False
    condition: NodeCondition | None = None
    taints: bool = False
    verbs: tuple[Verb, ...] = ()
    cost: str = ""
    """What a fault costs those who are served from the node; empty where it costs nothing by itself."""

    def threshold_of(self, product: str | None) -> Threshold:
        """The thresholds for a GPU product."""
        return self.profiles.get(product or "", self.threshold)
