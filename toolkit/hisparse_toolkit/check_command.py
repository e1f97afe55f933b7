"""`hisparse check`: every check of the node agent, once, on this machine, with no cluster."""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hisparse.nodes.findings import Finding, State, worst
from hisparse.units import format_bytes
from hisparse_agent.cluster import View
from hisparse_agent.judge.judge import once
from hisparse_agent.machine import Machine, Paces, Places
from hisparse_agent.publish.report import inventory_of, stamp
from hisparse_agent.readings import Missing, NodeReading
from hisparse_agent.replay import ReplayError, load
from hisparse_toolkit.answering import Answer
from hisparse_toolkit.problems import bad
from hisparse_toolkit.sheet import Columns, Sheet, Tone

DECIDING: Final = ("gpu.lost", "nvlink.links", "thermal.margin", "rdma.path", "host.mem.available")
"""Checks without which there is no answer: where one of them could not be read, the command could not find out."""

_ORDER: Final = (State.CRITICAL, State.WARN, State.UNKNOWN, State.OK, State.UNSUPPORTED)
_WORDS: Final = {
    Tone.YES: ("Healthy", "HEALTHY"),
    Tone.WARNING: ("Warnings", "WARNINGS"),
    Tone.NO: ("Critical", "CRITICAL"),
    Tone.UNKNOWN: ("Unknown", "COULD NOT FIND OUT"),
}
_LEGEND: Final = "One reading: what is a rate needs the agent, which polls. Nothing was changed on this machine."


@dataclass(frozen=True)
class Question:
    """What is asked. rdma: an engine here uses an RDMA connector. every: show what is Ok or Unsupported, too.

    replay is a recording that is judged in place of this machine, the last reading of it.
    """

    rdma: bool
    every: bool
    replay: Path | None
    deadline_s: float


def answer(question: Question) -> Answer:
    """Read, judge and tell. Changes nothing on the machine. Raises BadInputError where a recording is of no use."""
    reading = asyncio.run(_read(question)) if question.replay is None else _recorded(question.replay)
    findings = tuple(sorted(once(reading), key=lambda one: _ORDER.index(one.state)))
    tone = tone_of(findings)
    return Answer(
        tone,
        _WORDS[tone][0],
        lambda _: _sheet(reading, findings, tone, every=question.every),
        lambda: {
            "observedAt": stamp(reading.at),
            "inventory": inventory_of(reading).model_dump(mode="json", by_alias=True, exclude_none=True),
            "findings": [finding_json(one) for one in findings],
        },
        from_manifest=True,
    )


async def _read(question: Question) -> NodeReading:
    machine = Machine(
        platform.node(),
        lambda _: View(pods=(), rdma=question.rdma),
        places=Places(),
        paces=Paces(nvml_deadline=question.deadline_s),
    )
    try:
        return await machine.read()
    finally:
        await machine.close()


def _recorded(place: Path) -> NodeReading:
    try:
        readings = list(load(place))
    except (OSError, ReplayError) as error:
        raise bad("--replay", str(error)) from error
    if not readings:
        raise bad("--replay", f"{place} holds no reading; record some with hisparse-agent --record")
    return readings[-1]


def tone_of(findings: tuple[Finding, ...]) -> Tone:
    """No for a critical finding, else Unknown where what decides could not be read, else a warning, else Yes."""
    found = worst(tuple(one.state for one in findings if one.state.is_fault))
    if found is State.CRITICAL:
        return Tone.NO
    if any(one.check in DECIDING and one.state is State.UNKNOWN for one in findings):
        return Tone.UNKNOWN
    return Tone.WARNING if found is State.WARN else Tone.YES


def finding_json(one: Finding) -> Mapping[str, Any]:
    """A finding as HiSparseNode spells it, without since: all began now."""
    return {
        "check": one.check,
        "subject": one.subject,
        "state": one.state.value,
        "reason": one.reason,
        "message": one.message,
        "value": one.value,
        "limit": one.limit,
        "unit": one.unit or None,
    }


# --- for people ------------------------------------------------------------------------------------------------------


def _sheet(reading: NodeReading, findings: tuple[Finding, ...], tone: Tone, *, every: bool) -> Sheet:
    by_state = {state: tuple(one for one in findings if one.state is state) for state in _ORDER}
    told = tuple(state for state in _ORDER if by_state[state] and (every or state not in _QUIET))
    return Sheet(
        tone,
        _WORDS[tone][1],
        ", ".join(f"{len(found)} {state.value}" for state, found in by_state.items() if found),
        facts=_facts(reading),
        tables=tuple(_table(state, by_state[state]) for state in told),
        notes=tuple(
            f"{state.value}  {', '.join(dict.fromkeys(one.check for one in by_state[state]))}"
            for state in _QUIET
            if by_state[state] and not every
        ),
        legend=_LEGEND if every else f"{_LEGEND} --all says why a check is Ok or Unsupported.",
    )


_QUIET: Final = (State.OK, State.UNSUPPORTED)


def _table(state: State, findings: tuple[Finding, ...]) -> Columns:
    rows = tuple((one.check, one.subject, one.message) for one in findings)
    return Columns("", (state.value, "of", "what was found"), rows, texts=(0, 1, 2))


def _facts(reading: NodeReading) -> tuple[tuple[str, str], ...]:
    nvml, host = reading.nvml, reading.host
    if isinstance(nvml, Missing):
        gpus = nvml.why
    else:
        names = [one.product for one in nvml.gpus]
        kinds = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names)) or "none"
        gpus = f"{kinds}; driver {nvml.driver}, CUDA {nvml.cuda}"
    total, available = reading.memory.total, reading.memory.available
    memory = (
        f"{format_bytes(available)} available of {format_bytes(total)}"
        if isinstance(total, int) and isinstance(available, int)
        else "not read"
    )
    kernel = host.kernel if isinstance(host.kernel, str) else "not read"
    return (("GPUs", gpus), ("host memory", memory), ("kernel", kernel))
