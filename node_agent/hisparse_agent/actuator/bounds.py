"""What the actuator may set, whatever it is asked for. Pure.

A change that is not let through here cannot reach the host: `hosts` turns only these targets into paths and cards.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from hisparse.nodes.catalogue import Verb
from hisparse.nodes.policy import ALLOWED_SYSCTLS, LEAST_POWER_PERCENT, LONGEST_TTL
from hisparse.units import format_watts, parse_duration
from hisparse_agent.records import ALL_CPUS

LONGEST_TTL_SECONDS: Final = parse_duration(LONGEST_TTL)
"""Whatever the wish says."""

CPU_SETTINGS: Final = ("scaling_governor", "energy_performance_preference")
GPU_UUID: Final = re.compile(r"GPU-[0-9A-Fa-f-]{8,64}")
ONE_CPU: Final = re.compile(rf"cpu[0-9]{{1,5}}/(?:{'|'.join(CPU_SETTINGS)})")
_NUMBER = re.compile(r"[0-9]{1,9}")
_WORD = re.compile(r"[a-z_]{1,32}")


@dataclass(frozen=True)
class PowerLimits:
    """What a card allows, in milliwatts (NVML's power management limit, its default and its constraints)."""

    default: int
    least: int
    most: int


@dataclass(frozen=True)
class Setting:
    """One setting as the host has it now. power is there for a card, offered for cpufreq."""

    target: str
    present: str
    power: PowerLimits | None = None
    offered: tuple[str, ...] = ()


def is_target(verb: Verb, target: str) -> bool:
    """Whether a wish may name this target for this verb."""
    if verb is Verb.POWER_CAP:
        return GPU_UUID.fullmatch(target) is not None
    if verb is Verb.SYSCTL:
        return target in ALLOWED_SYSCTLS
    return target in {f"{ALL_CPUS}/{setting}" for setting in CPU_SETTINGS}


def is_recorded_target(verb: Verb, target: str) -> bool:
    """Whether a record may name this target: as in a wish, but for CPUs, which are recorded one by one."""
    if verb is Verb.CPUFREQ:
        return ONE_CPU.fullmatch(target) is not None
    return is_target(verb, target)


def refusal(verb: Verb, setting: Setting, new: str) -> str | None:
    """Why a setting may not be changed to this, or None where it may."""
    if not is_recorded_target(verb, setting.target):
        return f"{setting.target} is nothing that {verb} changes"
    if verb is Verb.CPUFREQ:
        return _cpufreq(setting, new)
    if _NUMBER.fullmatch(new) is None or _NUMBER.fullmatch(setting.present) is None:
        return f"{setting.target}: from {setting.present} to {new} is no change of whole numbers"
    if verb is Verb.SYSCTL:
        return _sysctl(setting, new)
    return _power_cap(setting, int(new))


def may_restore(verb: Verb, setting: Setting, old: str) -> bool:
    """Whether an old value is one that the host can have had. Records are files, and files can be damaged.

    Wider than `refusal`: a node may have had a value from before that we would never set.
    """
    if not is_recorded_target(verb, setting.target):
        return False
    if verb is Verb.CPUFREQ:
        return old in setting.offered
    if _NUMBER.fullmatch(old) is None:
        return False
    return setting.power is None or setting.power.least <= int(old) <= setting.power.most


def _power_cap(setting: Setting, new: int) -> str | None:
    if setting.power is None:
        return f"{setting.target}: the limits of the card are not known"
    present, default = int(setting.present), setting.power.default
    floor = max(setting.power.least, -(-default * LEAST_POWER_PERCENT // 100))
    if new == present:
        also = ", the card's default" if new == default else ""
        return f"{setting.target}: {format_watts(new)} is the present limit{also}: nothing to do"
    if new >= default:
        return f"{setting.target}: {format_watts(new)} caps nothing; the card's default is {format_watts(default)}"
    if new > present:
        return f"{setting.target}: {format_watts(new)} would raise the present limit of {format_watts(present)}"
    if new < floor:
        return (
            f"{setting.target}: {format_watts(new)} is below {format_watts(floor)}, the more of the card's minimum and "
            f"{LEAST_POWER_PERCENT} % of its default"
        )
    return None


def _sysctl(setting: Setting, new: str) -> str | None:
    least, most = ALLOWED_SYSCTLS[setting.target]
    if int(new) == int(setting.present):
        return f"{setting.target} is {new} as it is: nothing to do"
    if not least <= int(new) <= most:
        return f"{setting.target}: {new} is not between {least} and {most}"
    if new != str(int(new)):
        return f"{setting.target}: write {int(new)}, not {new}"  # reading it back would not give the same text
    return None


def _cpufreq(setting: Setting, new: str) -> str | None:
    if new == setting.present:
        return f"{setting.target} is {new} as it is: nothing to do"
    if _WORD.fullmatch(new) is None or new not in setting.offered:
        return f"{setting.target}: the driver offers {', '.join(setting.offered) or 'nothing'}, and not {new}"
    return None
