"""Findings, readings, policies and checks for tests of the remedies, as short as they can be said."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from hisparse.nodes.catalogue import Check
from hisparse.nodes.checks import CHECKS
from hisparse.nodes.findings import Finding, State
from hisparse.nodes.policy import HiSparseNodePolicySpec, parse_policy
from hisparse_agent.readings import Cpufreq, GpuReading, Host, Missing, NodeReading, Nvml, Power
from hisparse_agent.records import Change, Phase, Record, Records, Wanted

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
BOOT = "5a1f0b1e-0000-4000-8000-000000000001"
BY_ID: Mapping[str, Check] = MappingProxyType({check.id: check for check in CHECKS})
UUIDS = tuple(f"GPU-0000000{index}-0000-4000-8000-000000000000" for index in range(8))
CAP = {"verb": "power-cap"}
SWAPPINESS = {"verb": "sysctl"}
GOVERNOR = {"verb": "cpufreq"}


def policy(*remedies: Mapping[str, Any], **rest: Any) -> HiSparseNodePolicySpec:
    return parse_policy({"remedies": list(remedies), "dryRun": False, **rest})


def hot(index: int, state: State = State.CRITICAL, check: str = "thermal.margin") -> Finding:
    return finding(check, f"gpu-{index}", state)


def finding(check: str, subject: str = "host", state: State = State.CRITICAL) -> Finding:
    return Finding(check, subject, state, "Reason", "what was found", NOW)


def gpu(index: int, limit: int = 700_000, default: int = 700_000, least: int = 200_000) -> GpuReading:
    power = Power(limit=limit, default=default, least=least, most=default)
    return GpuReading(index, uuid=UUIDS[index], product="NVIDIA H200", power=power)


def reading(
    *gpus: GpuReading, sysctls: Mapping[str, str] | None = None, cpufreq: Cpufreq | Missing | None = None
) -> NodeReading:
    host = Host(sysctls={"vm.swappiness": "60"} if sysctls is None else sysctls)
    if cpufreq is not None:
        host = replace(host, cpufreq=cpufreq)
    return NodeReading(NOW, 0.0, nvml=Nvml("580", "13", gpus or tuple(gpu(index) for index in range(8))), host=host)


def records_of(actions: Sequence[Wanted], phase: Phase = Phase.IN_FORCE, at: datetime = NOW) -> Records:
    return Records(at, tuple(record_of(action, change, phase, at) for action in actions for change in action.changes))


def record_of(action: Wanted, change: Change, phase: Phase, at: datetime, target: str = "", old: str = "old") -> Record:
    ended = None if phase.holds else at
    return Record(
        action.id, action.verb, target or change.target, old, change.new, action.reason, action.check, action.policy,
        action.since, action.ttl_seconds, BOOT, phase, ended=ended,
    )  # fmt: skip
