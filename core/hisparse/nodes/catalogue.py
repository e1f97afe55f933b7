"""The checks of a node as one typed table: thresholds, hysteresis, remedies and the words for people.

The figures are those of docs/node-checks.md, which is generated from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from types import MappingProxyType

from hisparse.nodes.findings import State
from hisparse.units import parse_duration


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

    @property
    def seconds(self) -> int:
        """The time between two readings."""
        return parse_duration(self.value)


class Verb(StrEnum):
    """The closed list of what the actuator can do."""

    POWER_CAP = "power-cap"
    SYSCTL = "sysctl"
    CPUFREQ = "cpufreq"


@dataclass(frozen=True)
class Threshold:
    """From where a value is a warning and from where it is critical; None where it never is.

    Numbers are exact text in the check's unit, compared as fractions; rising says that more is worse. inclusive: the
    limit itself is a fault already. leave: a fault ends only beyond this value, where that is not where it began.
    apart: warn and critical are limits of two signals, so that either may be the larger.
    """

    warn: str | None = None
    critical: str | None = None
    rising: bool = True
    inclusive: bool = False
    leave: str | None = None
    apart: bool = False

    def state_of(self, value: Fraction | int) -> State:
        """The verdict on a value, without any patience."""
        if self._reached(value, self.critical):
            return State.CRITICAL
        return State.WARN if self._reached(value, self.warn) else State.OK

    def ended_by(self, value: Fraction | int) -> bool:
        """Whether a value counts towards the end of a fault; between warn and leave it does not."""
        if self.state_of(value) is not State.OK:
            return False
        return self.leave is None or (value < Fraction(self.leave) if self.rising else value > Fraction(self.leave))

    def _reached(self, value: Fraction | int, limit: str | None) -> bool:
        if limit is None:
            return False
        bound = Fraction(limit)
        if value == bound:
            return self.inclusive
        return value > bound if self.rising else value < bound


@dataclass(frozen=True)
class Check:
    """One row of the catalogue.

    enter_polls readings in a row turn a subject worse (critical_enter_polls to critical, where that differs),
    leave_polls turn it better again. leave_polls None: only a person, or another boot, ends it; critical_stays says so
    of critical alone. boot_grace_s and pin_grace: how long after boot, and whether during a pin window, a fault is not
    taken for one. profiles are thresholds of single GPU products, by the name in hisparse.hardware; threshold is that
    of all others. warn_when and critical_when say in words what a threshold does not say, or not alone ("{limit}"
    stands for it); a level with neither is never reached. decides: while it is Unknown on any subject nobody can say
    that what it judges is well, so its condition is Unknown, too, unless something is critical.
    """

    id: str
    subject: Subject
    signal: str
    reason: str
    summary: str
    remedy: str
    runbook: str
    source: str
    warn_when: str = ""
    critical_when: str = ""
    pace: Pace = Pace.GPU
    unit: str = ""
    threshold: Threshold = Threshold()
    profiles: Mapping[str, Threshold] = field(default_factory=lambda: MappingProxyType({}))
    enter_polls: int = 3
    critical_enter_polls: int | None = None
    leave_polls: int | None = 10
    critical_stays: bool = False
    boot_grace_s: int = 0
    pin_grace: bool = False
    condition: NodeCondition | None = None
    decides: bool = False
    taints: bool = False
    verbs: tuple[Verb, ...] = ()
    cost: str = ""
    """What a fault costs those who are served from the node; empty where it costs nothing by itself."""

    @property
    def anchor(self) -> str:
        """Where its section of docs/node-checks.md begins: what stands behind the # of a link."""
        return self.id.replace(".", "-").replace("_", "-")

    def threshold_of(self, product: str | None) -> Threshold:
        """The thresholds for a GPU product."""
        return self.profiles.get(product or "", self.threshold)
