"""NVML's field values: their ids, what an answer means by its type and return code, and which ids to trust. Pure.

Sources: the NVML headers of CUDA 12.6 to 13.1 (ids, value types, return codes), and the answers of an H200 with driver
580.159.04 (which ids answer, and that a value of type 0 from an integer field is a field that was not filled).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from hisparse_agent.readings import Absence, Fabric, Missing, Number, NvLink, Switch, Throttle

BYTES_PER_MEGABYTE: Final = 1_000_000
"""NVML's link speed is decimal: 26562 MB/s is what nvidia-smi prints as 26.562 GB/s."""

MOST_LINKS: Final = 36
"""NVML_NVLINK_MAX_LINKS of CUDA 13. A GPU refuses the links that it does not have."""

NO_FABRIC: Final = 0
"""NVML_GPU_FABRIC_STATE_NOT_SUPPORTED."""

PCI_DOMAIN_DIGITS: Final = 4
"""sysfs writes at least so many; NVML always writes eight."""


class Code(IntEnum):
    """nvmlReturn_t, as far as something follows from it."""

    SUCCESS = 0
    UNINITIALIZED = 1
    INVALID_ARGUMENT = 2
    NOT_SUPPORTED = 3
    TIMEOUT = 10
    LIBRARY_NOT_FOUND = 12
    FUNCTION_NOT_FOUND = 13
    GPU_IS_LOST = 15
    LIBRARY_MISMATCH = 18
    VERSION_MISMATCH = 25
    UNKNOWN = 999


ABSENT: Final = frozenset({Code.INVALID_ARGUMENT, Code.NOT_SUPPORTED, Code.FUNCTION_NOT_FOUND, Code.VERSION_MISMATCH})
"""The GPU or the driver has no such thing: asking again changes nothing."""

STALE: Final = frozenset({Code.UNINITIALIZED, Code.LIBRARY_MISMATCH, Code.UNKNOWN})
"""The driver may have been changed or restarted under us: NVML has to be initialised again."""


class ValueType(IntEnum):
    """nvmlValueType_t: which member of the value union is the value."""

    DOUBLE = 0
    UNSIGNED_INT = 1
    UNSIGNED_LONG = 2
    UNSIGNED_LONG_LONG = 3
    SIGNED_LONG_LONG = 4
    SIGNED_INT = 5
    UNSIGNED_SHORT = 6


MEMBERS: Final[Mapping[int, str]] = {
    ValueType.DOUBLE: "dVal",
    ValueType.UNSIGNED_INT: "uiVal",
    ValueType.UNSIGNED_LONG: "ulVal",
    ValueType.UNSIGNED_LONG_LONG: "ullVal",
    ValueType.SIGNED_LONG_LONG: "sllVal",
    ValueType.SIGNED_INT: "siVal",
    ValueType.UNSIGNED_SHORT: "usVal",
}


class Field(IntEnum):
    """Field ids that mean the same in every driver that we take."""

    ECC_DOUBLE_BIT_VOLATILE = 4
    SW_POWER_CAP_TIME = 74
    THERMAL_POLICY_TIME = 75
    MEMORY_TEMPERATURE = 82
    TOTAL_ENERGY = 83
    PCIE_REPLAYS = 94
    REMAP_PENDING = 144
    REMAP_FAILURE = 145
    LINK_REPLAYS = 161
    LINK_RECOVERIES = 162
    LINK_CRC_ERRORS = 163
    LINK_SPEED = 164
    LINK_STATE = 165
    PCIE_CORRECTABLE = 173
    PCIE_NONFATAL = 179
    PCIE_FATAL = 180
    POWER_INSTANT = 186
    POWER_LEAST = 187
    POWER_MOST = 188
    POWER_DEFAULT = 189
    POWER_ENFORCED = 190
    POWER_REQUESTED = 192
    RECOVERY_ACTION = 230


LINK_COUNTERS: Final = (Field.LINK_REPLAYS, Field.LINK_RECOVERIES, Field.LINK_CRC_ERRORS)
"""Dear: 0.75 ms for a link, on an H200 with driver 580.159.04, whether one of them is asked or all three."""
SLOW_FIELDS: Final = (
    Field.TOTAL_ENERGY,
    Field.PCIE_REPLAYS,
    Field.PCIE_CORRECTABLE,
    Field.PCIE_NONFATAL,
    Field.PCIE_FATAL,
)
"""Dear as well: there 4 ms for the energy and 0.2 to 0.4 ms for each of the others."""
FAST_FIELDS: Final = tuple(
    field
    for field in Field
    if field not in {*SLOW_FIELDS, *LINK_COUNTERS, Field.LINK_SPEED, Field.LINK_STATE, Field.THERMAL_POLICY_TIME}
)
"""Some microseconds each."""


@dataclass(frozen=True)
class ThrottleIds:
    """Ids of the time counters that have moved between drivers."""

    sw_thermal: int
    hw_thermal: int
    power_brake: int

    @property
    def all(self) -> tuple[int, int, int]:
        """In the order of the header."""
        return self.sw_thermal, self.hw_thermal, self.power_brake


NEW_THROTTLE: Final = ThrottleIds(269, 270, 271)
"""CUDA 13.1 and later, where 251 to 253 are about power smoothing. Driver 580.159.04 answers these."""
OLD_THROTTLE: Final = ThrottleIds(251, 252, 253)
"""CUDA 12.9 and 13.0."""
THROTTLE_PROBE: Final = (*NEW_THROTTLE.all, *OLD_THROTTLE.all)
UNDECIDED: Final = (*THROTTLE_PROBE, Field.THERMAL_POLICY_TIME)
"""What is asked while it is open which ids these are; the last stands in for them."""


@dataclass(frozen=True)
class Answer:
    """One entry that nvmlDeviceGetFieldValues filled. error is NVML's own text for a code that is not success."""

    code: int
    kind: int = ValueType.DOUBLE
    value: float = 0
    error: str = ""


def refusal(code: int, text: str) -> Missing:
    """What a call or field is instead of a value."""
    return Missing(Absence.UNSUPPORTED if code in ABSENT else Absence.UNKNOWN, f"NVML: {text}")


def number(answer: Answer) -> Number:
    """The value of a field that is a whole number in every driver."""
    if answer.code != Code.SUCCESS:
        return refusal(answer.code, answer.error)
    if answer.kind == ValueType.DOUBLE or answer.kind not in MEMBERS:
        return Missing(Absence.UNKNOWN, "NVML says success and has not filled the value in")
    return int(answer.value)


def settled(answers: Iterable[Answer]) -> bool:
    """Whether all of them may be kept for a while: what failed is asked again soon."""
    return all(answer.code in {Code.SUCCESS, *ABSENT} for answer in answers)


def is_passing(value: object) -> bool:
    """Whether there is no answer yet, or one that may be another at the next try."""
    return value is None or (isinstance(value, Missing) and value.absence is Absence.UNKNOWN)


def switch(value: Number) -> Switch:
    """A number that is 0 or 1 as yes or no."""
    return value if isinstance(value, Missing) else value != 0


def chosen_throttle(answers: Mapping[int, Answer]) -> ThrottleIds | Missing:
    """Which ids hold the throttle times, from one answer for each of THROTTLE_PROBE, or why that cannot be told.

    A set counts only when all of it answers with a 64-bit counter. Where both sets do, one of them is something else.
    """
    if not settled(answers[field] for field in THROTTLE_PROBE):
        return Missing(Absence.UNKNOWN, "NVML failed when it was asked which fields have the throttle times")
    whole = [ids for ids in (NEW_THROTTLE, OLD_THROTTLE) if all(_is_counter(answers[field]) for field in ids.all)]
    if len(whole) == 1:
        return whole[0]
    return Missing(Absence.UNSUPPORTED, "this driver has no field, or two, that may be the throttle time")


def throttle(answers: Mapping[int, Answer], ids: ThrottleIds | Missing, reasons: Number) -> Throttle:
    """Throttle times by the chosen ids; without them the old counter of the thermal policy is all that there is."""
    power = number(answers[Field.SW_POWER_CAP_TIME])
    if isinstance(ids, Missing):
        return Throttle(power, number(answers[Field.THERMAL_POLICY_TIME]), ids, ids, reasons)
    sw_thermal, hw_thermal, power_brake = (number(answers[field]) for field in ids.all)
    return Throttle(power, sw_thermal, hw_thermal, power_brake, reasons)


def count_links(states: Sequence[Answer]) -> int:
    """How many links the GPU has: those before the first whose *state* is refused.

    An inactive link answers 0 for its state; only its speed is refused.
    """
    return next((index for index, answer in enumerate(states) if answer.code in ABSENT), len(states))


def link(index: int, state: Answer, speed: Answer, counters: Sequence[Answer]) -> NvLink:
    """One link; counters are the answers for LINK_COUNTERS."""
    megabytes = number(speed)
    replays, recoveries, crc_errors = (number(counter) for counter in counters)
    return NvLink(
        index=index,
        state=number(state),
        bytes_per_second=megabytes if isinstance(megabytes, Missing) else megabytes * BYTES_PER_MEGABYTE,
        replays=replays,
        recoveries=recoveries,
        crc_errors=crc_errors,
    )


def fabric(*, state: int, status: int, mask: int, summary: int) -> Fabric | Missing:
    """Fabric information. In the mask and in the summary 0 means that NVML has none: Hopper in one node has neither.

    State 0 is NVML's way to say that there is no fabric; a VM that hides NVLink gives it with a status of success.
    """
    if state == NO_FABRIC:
        return Missing(Absence.UNSUPPORTED, "NVML says that this GPU has no fabric, or it is hidden")
    return Fabric(state, status, mask or None, summary or None)


def pci_address(bus_id: str) -> str:
    """NVML's "00000000:1B:00.0" as sysfs spells it, "0000:1b:00.0"."""
    domain, _, rest = bus_id.lower().partition(":")
    return f"{domain.lstrip('0').rjust(PCI_DOMAIN_DIGITS, '0')}:{rest}"


def cuda_version(version: int) -> str:
    """NVML's 13010 is "13.1"."""
    return f"{version // 1000}.{version % 1000 // 10}"


def _is_counter(answer: Answer) -> bool:
    return answer.code == Code.SUCCESS and answer.kind == ValueType.UNSIGNED_LONG_LONG
