"""`hisparse check`: every check of the node agent, once, on this machine, with no cluster."""

from __future__ import annotations

import asyncio
import platform
import signal
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from hisparse.nodes.catalogue import Pace
from hisparse.nodes.checks import DECIDING
from hisparse.nodes.findings import WORST_FIRST, Finding, State, worst
from hisparse.units import format_bytes
from hisparse_agent.cluster import View
from hisparse_agent.history import History
from hisparse_agent.judge.judge import once
from hisparse_agent.judge.verdict import BEING_WATCHED
from hisparse_agent.machine import Machine, Paces, Places
from hisparse_agent.publish.report import inventory_of, stamp
from hisparse_agent.readers.pci import count_gpus
from hisparse_agent.readings import Absence, Missing, NodeReading, Number, Nvml
from hisparse_agent.replay import ReplayError, load
from hisparse_toolkit.answering import Answer
from hisparse_toolkit.problems import ExitCode, bad
from hisparse_toolkit.sheet import Columns, Sheet, Tone

_QUIET: Final = (State.OK, State.UNSUPPORTED)
_WORDS: Final = {
    Tone.YES: ("Healthy", "HEALTHY"),
    Tone.WARNING: ("Warnings", "WARNINGS"),
    Tone.NO: ("Critical", "CRITICAL"),
    Tone.UNKNOWN: ("Unknown", "COULD NOT FIND OUT"),
}
_NO_CLUSTER: Final = Missing(Absence.UNSUPPORTED, "this command asks no cluster; the node agent does")
_MOST_IN_A_LINE: Final = 24
"""Columns that names of checks and subjects take before they are broken over lines."""
_RUN: Final = 3
"""So many subjects with numbers that follow one another are told as a range."""


@dataclass(frozen=True)
class Question:
    """What is asked. rdma: an engine here uses an RDMA connector. every: show what is Ok or Unsupported, too.

    replay is a recording that is judged in place of this machine: its last reading, and rates from those before.
    """

    rdma: bool
    every: bool
    replay: Path | None
    deadline_s: float


def answer(question: Question) -> Answer:
    """Read, judge and tell. Changes nothing on the machine. Raises BadInputError where a recording is of no use."""
    readings = [_machine(question)] if question.replay is None else _recorded(question.replay)
    *history, reading = [_with_connector(one) for one in readings] if question.rdma else readings
    findings = tuple(sorted(once(reading, history), key=lambda one: WORST_FIRST.index(one.state)))
    tone = tone_of(findings)
    return Answer(
        tone,
        _WORDS[tone][0],
        lambda _: _sheet(question, reading, findings, tone),
        lambda: {
            "observedAt": stamp(reading.at),
            "inventory": inventory_of(reading).model_dump(mode="json", by_alias=True),
            "findings": [finding_json(one) for one in findings],
        },
        from_manifest=True,
    )


def _machine(question: Question) -> NodeReading:
    try:
        return asyncio.run(_read(question))
    except asyncio.CancelledError:
        raise SystemExit(ExitCode.TERMINATED) from None


async def _read(question: Question) -> NodeReading:
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - asyncio.run made it
    # as Ctrl-C does: the NVML child must not stay behind in a call that hangs
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    machine = Machine(
        platform.node(),
        lambda: View(pods=()),
        places=Places(),
        paces=Paces(nvml_deadline=question.deadline_s),
    )
    try:
        reading = await machine.read()
    finally:
        await machine.close()
    # nobody was asked for these: that there are none would be a guess
    reading = replace(reading, pods=_NO_CLUSTER, exporter=_NO_CLUSTER)
    return replace(reading, expected_gpus=promised(reading.nvml, count_gpus(Places().root)))


def promised(nvml: Nvml | Missing, on_the_bus: Number) -> Number:
    """How many GPUs the PCI bus promises where no Node object does.

    Only where NVML shows none: of the GPUs of its machine a container may have been given a part.
    """
    if isinstance(nvml, Nvml) and nvml.gpus:
        return _NO_CLUSTER
    if isinstance(on_the_bus, Missing):
        return on_the_bus
    return on_the_bus or _NO_CLUSTER


def _with_connector(reading: NodeReading) -> NodeReading:
    if isinstance(reading.rdma, Missing):
        return reading
    return replace(reading, rdma=replace(reading.rdma, declared=True))


def _recorded(place: Path) -> list[NodeReading]:
    """The last reading of GPUs, behind those that rates are taken from."""
    history = History()
    last: NodeReading | None = None
    try:
        for reading in load(place):
            history.add(reading)
            # between two readings of GPUs are some that hold the counters of the first
            if last is None or Pace.GPU in reading.fresh:
                last = reading
    except (OSError, ReplayError) as error:
        raise bad("--replay", str(error)) from error
    if last is None:
        raise bad("--replay", f"{place} holds no reading; record some with hisparse-agent --record")
    return [*(one for one in history.readings if one is not last), last]


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


def _sheet(question: Question, reading: NodeReading, findings: tuple[Finding, ...], tone: Tone) -> Sheet:
    later = tuple(one for one in findings if one.state is State.UNKNOWN and one.reason == BEING_WATCHED)
    now = tuple(one for one in findings if one not in later)
    by_state = {state: tuple(one for one in now if one.state is state) for state in WORST_FIRST}
    told = tuple(state for state in WORST_FIRST if by_state[state] and (question.every or state not in _QUIET))
    counts = [f"{len(found)} {state.value}" for state, found in by_state.items() if found]
    counts += [f"{len(later)} later"] if later else []
    quiet = () if question.every else _QUIET
    above = {one.check for state in told for one in by_state[state]}
    notes = [f"{state.value} {_checks(by_state[state], above)}" for state in quiet if by_state[state]]
    notes += [f"Later {_checks(later, set())}"] if later else []
    return Sheet(
        tone,
        _WORDS[tone][1],
        ", ".join(counts),
        facts=_facts(reading),
        tables=tuple(_table(state, by_state[state]) for state in told),
        notes=tuple(notes),
        legend=" ".join(_legend(question, reading, later=bool(later))),
    )


def _checks(findings: Iterable[Finding], above: Collection[str]) -> str:
    """The names, those apart of which a table above tells on other subjects."""
    names = list(dict.fromkeys(one.check for one in findings))
    here, elsewhere = [one for one in names if one not in above], [one for one in names if one in above]
    return "; ".join([", ".join(here)] * bool(here) + [f"elsewhere {', '.join(elsewhere)}"] * bool(elsewhere))


def _legend(question: Question, reading: NodeReading, *, later: bool) -> Iterator[str]:
    if later:
        yield "Later: rates, which take readings over minutes; the node agent has them."
    if question.replay is None:
        yield "Nothing was changed on this machine."
    if isinstance(reading.rdma, Missing) or not reading.rdma.declared:
        yield "--rdma judges the path of an RDMA connector, too."
    if not question.every:
        yield "--all says why a check is Ok or Unsupported."


def _table(state: State, findings: tuple[Finding, ...]) -> Columns:
    return Columns(state.value, ("check", "of", "what was found"), tuple(_rows(findings)), texts=(0, 1, 2))


def _rows(findings: Iterable[Finding]) -> Iterator[tuple[str, str, str]]:
    """One row for all that is said in the same words: of several subjects, and by several checks of the same ones."""
    subjects: dict[tuple[str, str], list[str]] = {}
    for one in findings:
        subjects.setdefault((one.check, one.message), []).append(one.subject)
    checks: dict[tuple[str, str], list[str]] = {}
    for (check, message), found in subjects.items():
        checks.setdefault((in_short(found), message), []).append(check)
    for (of, message), names in checks.items():
        yield _broken(names), of, message


def in_short(subjects: Sequence[str]) -> str:
    """The subjects in a few words: "gpu-0 to gpu-3, gpu-6"."""
    parts: list[list[str]] = []
    for subject in subjects:
        if parts and _follows(parts[-1][-1], subject):
            parts[-1].append(subject)
        else:
            parts.append([subject])
    told = [part if len(part) < _RUN else [f"{part[0]} to {part[-1]}"] for part in parts]
    return _broken([subject for part in told for subject in part])


def _follows(before: str, subject: str) -> bool:
    (kind, _, number), (next_kind, _, next_number) = before.rpartition("-"), subject.rpartition("-")
    numbers = number.isdecimal() and next_number.isdecimal()
    return numbers and kind == next_kind and int(next_number) == int(number) + 1


def _broken(names: Sequence[str]) -> str:
    # what must stay together is kept so by a sign that no name has
    held = ", ".join(name.replace(" ", "\0") for name in names)
    lines = textwrap.wrap(held, _MOST_IN_A_LINE, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines).replace("\0", " ")


def _facts(reading: NodeReading) -> tuple[tuple[str, str], ...]:
    nvml, host = reading.nvml, reading.host
    if isinstance(nvml, Missing):
        gpus = f"none judged: {nvml.why}"
    else:
        names = [one.product or "GPU without a name" for one in nvml.gpus]
        kinds = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names)) or "none"
        gpus = f"{kinds}; driver {nvml.driver or 'not told'}, CUDA {nvml.cuda or 'not told'}"
    total, available = reading.memory.total, reading.memory.available
    memory = (
        f"{format_bytes(available)} available of {format_bytes(total)}"
        if isinstance(total, int) and isinstance(available, int)
        else "not read"
    )
    kernel = host.kernel if isinstance(host.kernel, str) else "not read"
    return (("GPUs", gpus), ("host memory", memory), ("kernel", kernel))
