"""The NVML reader with its real child process, on nvidia-ml-py and a library that answers from a scenario."""

import asyncio
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import captures
import fake_pynvml
import pytest

from hisparse_agent.readers.nvml import COMMAND, LONGEST_BACK_OFF_S, SLOW_S, NvmlReader
from hisparse_agent.readings import Absence, Fabric, GpuReading, Missing, Nvml

PLENTY = 60.0
"""Seconds that no answer takes, however busy the machine is."""
SHORT = 0.2
"""For a child that is known to be up and hangs."""
HANG = {"nvmlDeviceGetName": "hang"}
STUCK = {"nvmlDeviceGetName": "stuck"}
NOT_SUPPORTED, LOST, MISMATCH, UNKNOWN_ERROR, DRIVER_NOT_LOADED = 3, 15, 18, 999, 9


class Machine:
    """A machine whose NVML answers as the test says, and the reader that reads it."""

    def __init__(self, folder: Path, scenario: Mapping[str, Any], command: tuple[str, ...] = COMMAND) -> None:
        self.folder = folder
        self.scenario = dict(scenario)
        self.now = 100.0
        environment = fake_pynvml.environment(folder, scenario)
        self.reader = NvmlReader(command, environment=environment, clock=lambda: self.now, grace=10.0)

    def becomes(self, **changes: Any) -> None:
        self.scenario |= changes
        fake_pynvml.write(self.folder, self.scenario)

    def gpu(self, index: int = 0) -> dict[str, Any]:
        """The answers of one GPU, to be changed before becomes()."""
        return self.scenario["gpus"][index]  # type: ignore[no-any-return]

    async def read(self, deadline: float = PLENTY) -> Nvml | Missing:
        return await self.reader.read(deadline=deadline)

    async def nvml(self) -> Nvml:
        found = await self.read()
        assert isinstance(found, Nvml), found
        return found

    async def missing(self, absence: Absence = Absence.UNKNOWN, *, deadline: float = PLENTY) -> str:
        found = await self.read(deadline)
        assert isinstance(found, Missing)
        assert found.absence is absence
        return found.why

    async def is_over(self) -> None:
        """Wait until the child that was given up has ended."""
        while self.reader.counters.outstanding:  # noqa: ASYNC110 - nothing else tells of the end of a process
            await asyncio.sleep(0.01)


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[Machine]:
    """Two healthy H200 with NVLink up."""
    one = Machine(tmp_path, captures.scenario_of("h200_x2_idle"))
    yield one
    one.becomes(at={})
    await one.reader.close()
    assert one.reader.counters.outstanding == 0


def without_reasons(value: Any) -> Any:
    """The same with every `why` blank: only those of the child say what NVML said."""
    if isinstance(value, Missing):
        return Missing(value.absence, "")
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{field.name: without_reasons(getattr(value, field.name)) for field in fields(value)})
    return tuple(without_reasons(item) for item in value) if isinstance(value, tuple) else value


def values_of(gpu: GpuReading) -> Iterator[tuple[str, object]]:
    """Every value that was read of a GPU, except who it is."""
    for field in fields(gpu):
        value = getattr(gpu, field.name)
        if is_dataclass(value) and not isinstance(value, Missing | Fabric):
            yield from ((f"{field.name}.{inner.name}", getattr(value, inner.name)) for inner in fields(value))
        elif field.name not in ("index", "uuid", "product", "lost", "numa_node"):
            yield field.name, value


# --- what is there ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", captures.RAW)
async def test_the_answers_of_a_capture_become_its_reading(name: str, tmp_path: Path) -> None:
    machine = Machine(tmp_path, captures.scenario_of(name))
    found = await machine.nvml()
    await machine.reader.close()
    assert found.seconds > 0
    assert without_reasons(replace(found, seconds=0.0)) == without_reasons(captures.reading_of(name).nvml)


async def test_one_child_answers_poll_after_poll(machine: Machine) -> None:
    first = await machine.nvml()
    machine.gpu()["calls"]["Temperature"] = 77
    machine.becomes()
    second = await machine.nvml()
    assert (first.gpus[0].heat.gpu, second.gpus[0].heat.gpu) == (36, 77)
    assert machine.reader.counters.restarts == 0


async def test_the_processes_of_a_gpu_are_counted(machine: Machine) -> None:
    machine.gpu(1)["calls"]["ComputeRunningProcesses"] = 3
    machine.becomes()
    assert [gpu.processes for gpu in (await machine.nvml()).gpus] == [0, 3]


async def test_a_link_that_goes_down_stays_a_link(machine: Machine) -> None:
    assert len(links_up(await machine.nvml())) == 18
    active = machine.gpu()["links"][0][1]
    machine.gpu()["links"] = [[9, active], [9, {**active, "164": [3, 0, 0], "165": [0, 1, 0]}]]
    machine.becomes()
    found = await machine.nvml()
    links = found.gpus[0].links
    assert isinstance(links, tuple)
    assert len(links) == 18
    assert links_up(found) == list(range(9))
    speed = links[17].bytes_per_second
    assert isinstance(speed, Missing)
    assert speed.absence is Absence.UNSUPPORTED


def links_up(found: Nvml) -> list[int]:
    links = found.gpus[0].links
    assert isinstance(links, tuple)
    return [link.index for link in links if link.state == 1]


async def test_a_link_whose_state_fails_once_is_unknown_and_does_not_end_the_list(machine: Machine) -> None:
    active = machine.gpu()["links"][0][1]
    machine.gpu()["links"] = [[4, active], [1, {**active, "165": [UNKNOWN_ERROR, 0, 0]}], [13, active]]
    machine.becomes()
    links = (await machine.nvml()).gpus[0].links
    assert isinstance(links, tuple)
    assert len(links) == 18
    assert links[4].state == Missing(Absence.UNKNOWN, "NVML: Unknown Error")


async def test_mig_has_no_links(machine: Machine) -> None:
    machine.gpu()["calls"]["MigMode"] = [1, 1]
    machine.becomes()
    gpu, other = (await machine.nvml()).gpus
    assert gpu.mig is True
    assert gpu.links == Missing(Absence.UNSUPPORTED, "MIG")
    assert isinstance(other.links, tuple)
    assert gpu.heat.gpu == 36


async def test_hidden_nvlink_is_unsupported(machine: Machine) -> None:
    machine.gpu()["links"] = []
    machine.gpu()["fabric"] = {"ret": NOT_SUPPORTED}
    machine.becomes()
    gpu = (await machine.nvml()).gpus[0]
    assert isinstance(gpu.links, Missing)
    assert isinstance(gpu.fabric, Missing)
    assert (gpu.links.absence, gpu.fabric.absence) == (Absence.UNSUPPORTED, Absence.UNSUPPORTED)


async def test_an_older_driver_fills_the_older_form_of_the_fabric(machine: Machine) -> None:
    machine.gpu()["fabric"] = {"state": 3, "status": 0, "healthMask": 0x1A9, "healthSummary": 3}
    machine.becomes(fabric_versions=[0x02000024])
    assert (await machine.nvml()).gpus[0].fabric == Fabric(3, 0, health_mask=0x1A9, health_summary=None)


async def test_an_older_driver_has_the_older_call_for_the_temperature(machine: Machine) -> None:
    machine.becomes(missing=["nvmlDeviceGetTemperatureV"])
    assert (await machine.nvml()).gpus[0].heat.gpu == 36


async def test_a_function_that_the_driver_lacks_is_unsupported(machine: Machine) -> None:
    machine.becomes(missing=["nvmlDeviceGetMarginTemperature"])
    assert (await machine.nvml()).gpus[0].heat.margin == Missing(Absence.UNSUPPORTED, "NVML: Function Not Found")


async def test_a_call_without_permission_is_unknown(machine: Machine) -> None:
    machine.gpu()["calls"]["MemoryInfo"] = {"ret": 4}
    machine.becomes()
    assert (await machine.nvml()).gpus[0].memory == Missing(Absence.UNKNOWN, "NVML: Insufficient Permissions")


async def test_a_gpu_that_may_not_be_opened_leaves_the_others_readable(machine: Machine) -> None:
    machine.gpu()["handle"] = 4
    machine.becomes()
    closed, other = (await machine.nvml()).gpus
    assert not closed.lost
    assert closed.links == closed.peers == Missing(Absence.UNKNOWN, "NVML: Insufficient Permissions")
    assert other.heat.gpu == 34
    assert other.peers == {}


async def test_two_gpus_without_a_path_say_so_both_ways(machine: Machine) -> None:
    machine.gpu()["peers"] = [5]
    machine.becomes()
    assert [gpu.peers for gpu in (await machine.nvml()).gpus] == [{1: 5}, {0: 5}]
    machine.gpu()["peers"] = [{"ret": NOT_SUPPORTED}]
    machine.becomes()
    machine.now += SLOW_S
    refused = Missing(Absence.UNSUPPORTED, "NVML: Not Supported")
    assert [gpu.peers for gpu in (await machine.nvml()).gpus] == [refused, refused]


# --- what is dear is asked now and then --------------------------------------------------------------------------------


async def test_counters_that_are_dear_are_as_of_the_last_time(machine: Machine) -> None:
    first = await machine.nvml()
    machine.gpu()["calls"]["Temperature"] = 70
    machine.gpu()["fields"]["83"] = [0, 3, 9_999_999]
    machine.gpu()["fields"]["94"] = [0, 1, 50]
    machine.gpu()["links"] = [[18, {**machine.gpu()["links"][0][1], "163": [0, 3, 8]}]]
    machine.gpu()["peers"] = [5]
    machine.becomes()
    machine.now += SLOW_S - 1
    soon = (await machine.nvml()).gpus[0]
    assert soon == replace(first.gpus[0], heat=replace(first.gpus[0].heat, gpu=70))
    machine.now += 1
    later = (await machine.nvml()).gpus[0]
    assert isinstance(later.links, tuple)
    assert {link.crc_errors for link in later.links} == {8}
    assert (later.power.energy_mj, later.pcie.replays, later.peers) == (9_999_999, 50, {1: 5})


async def test_what_failed_is_asked_again_at_the_next_poll(machine: Machine) -> None:
    machine.gpu()["fields"]["83"] = [10, 0, 0]
    machine.gpu()["peers"] = [{"ret": 10}]
    machine.becomes()
    failed = (await machine.nvml()).gpus[0]
    assert failed.power.energy_mj == failed.peers == Missing(Absence.UNKNOWN, "NVML: Timeout")
    machine.gpu()["fields"]["83"] = [0, 3, 77]
    machine.gpu()["peers"] = [0]
    machine.becomes()
    mended = (await machine.nvml()).gpus[0]
    assert (mended.power.energy_mj, mended.peers) == (77, {1: 0})


async def test_what_lasts_is_asked_again_with_what_is_dear_or_where_it_failed(machine: Machine) -> None:
    machine.gpu()["calls"]["MigMode"] = {"ret": UNKNOWN_ERROR}
    machine.becomes()
    assert isinstance((await machine.nvml()).gpus[0].mig, Missing)
    machine.gpu()["calls"]["MigMode"] = [0, 0]
    machine.becomes()
    assert (await machine.nvml()).gpus[0].mig is False
    limit = (await machine.nvml()).gpus[0].heat.slowdown
    machine.gpu()["calls"]["MigMode"] = [1, 1]
    machine.gpu()["calls"]["TemperatureThreshold"] = {"1": 70}
    machine.becomes()
    soon = (await machine.nvml()).gpus[0]
    assert (soon.mig, soon.heat.slowdown) == (False, limit)
    machine.now += SLOW_S
    later = (await machine.nvml()).gpus[0]
    assert (later.mig, later.heat.slowdown) == (True, 70)


async def test_a_link_more_is_asked_at_once(machine: Machine) -> None:
    every = machine.gpu()["links"][0][1]
    machine.gpu()["links"] = [[17, every]]
    machine.becomes()
    await machine.nvml()
    machine.gpu()["links"] = [[18, {**every, "161": [0, 3, 4]}]]
    machine.becomes()
    links = (await machine.nvml()).gpus[0].links
    assert isinstance(links, tuple)
    assert [link.replays for link in links] == [4] * 18


async def test_a_new_child_knows_nothing_of_the_old(machine: Machine) -> None:
    await machine.nvml()
    await machine.reader.close()
    machine.gpu()["fields"]["83"] = [0, 3, 1]
    machine.becomes()
    assert (await machine.nvml()).gpus[0].power.energy_mj == 1


# --- the throttle counters, whose ids have moved ---------------------------------------------------------------------

NEW = {"269": [0, 3, 1], "270": [0, 3, 2], "271": [0, 3, 3]}
OLD = {"251": [0, 3, 4], "252": [0, 3, 5], "253": [0, 3, 6]}
NONE = {number: [NOT_SUPPORTED, 0, 0] for number in (*NEW, *OLD)}


async def throttle_times(machine: Machine, answers: Mapping[str, Any]) -> list[object]:
    machine.gpu()["fields"] |= {"75": [0, 3, 7], **NONE, **answers}
    machine.becomes()
    found = (await machine.nvml()).gpus[0].throttle
    times = (found.sw_thermal_ns, found.hw_thermal_ns, found.power_brake_ns)
    return [time.absence if isinstance(time, Missing) else time for time in times]


async def test_the_ids_that_answered_first_are_asked_from_then_on(machine: Machine) -> None:
    assert await throttle_times(machine, OLD) == [4, 5, 6]
    # what answers now under the other ids is something else: the driver has not changed
    assert await throttle_times(machine, NEW | OLD) == [4, 5, 6]


@pytest.mark.parametrize("answers", [{}, NEW | OLD, {**NEW, "270": [0, 1, 2]}], ids=["neither", "both", "odd-type"])
async def test_ids_that_cannot_be_told_leave_the_thermal_policy(machine: Machine, answers: Mapping[str, Any]) -> None:
    assert await throttle_times(machine, answers) == [7, Absence.UNSUPPORTED, Absence.UNSUPPORTED]


async def test_a_probe_that_failed_is_tried_again(machine: Machine) -> None:
    failed = {number: [10, 0, 0] for number in NEW}
    assert await throttle_times(machine, failed | OLD) == [7, Absence.UNKNOWN, Absence.UNKNOWN]
    assert await throttle_times(machine, NEW) == [1, 2, 3]


# --- what the driver tells by itself -----------------------------------------------------------------------------------


def numbers(nvml: Nvml) -> list[tuple[str, int]]:
    assert not isinstance(nvml.xids, Missing)
    return [(xid.pci, xid.number) for xid in nvml.xids]


async def test_an_xid_is_told_once_and_with_its_card(machine: Machine) -> None:
    first = await machine.nvml()
    assert numbers(first) == []
    one, other = (gpu.pci for gpu in first.gpus)
    machine.becomes(xids=[[1, 79], [0, 31]])
    assert numbers(await machine.nvml()) == [(other, 79), (one, 31)]
    assert numbers(await machine.nvml()) == []
    machine.becomes(xids=[[1, 79], [0, 31], [0, 48]])
    assert numbers(await machine.nvml()) == [(one, 48)]


async def test_of_very_many_xids_the_rest_comes_later(machine: Machine) -> None:
    machine.becomes(xids=[[0, number] for number in range(100)])
    found = [*numbers(await machine.nvml()), *numbers(await machine.nvml())]
    assert [number for _, number in found] == list(range(100))


@pytest.mark.parametrize(("code", "absence"), [(NOT_SUPPORTED, Absence.UNSUPPORTED), (UNKNOWN_ERROR, Absence.UNKNOWN)])
async def test_a_card_that_tells_nothing_makes_no_card_look_well(machine: Machine, code: int, absence: Absence) -> None:
    machine.gpu(1)["events"] = code
    machine.becomes(xids=[[0, 79]])
    found = (await machine.nvml()).xids
    assert isinstance(found, Missing)
    assert found.absence is absence
    machine.gpu(1)["events"] = 0
    machine.becomes()
    again = (await machine.nvml()).xids
    # what is not there is not asked for again; what could not be had for a moment is
    assert isinstance(again, Missing) is (absence is Absence.UNSUPPORTED)


async def test_nvml_that_is_started_again_tells_again(machine: Machine) -> None:
    await machine.nvml()
    machine.becomes(at={"nvmlEventSetWait_v2": UNKNOWN_ERROR})
    found = (await machine.nvml()).xids
    assert isinstance(found, Missing)
    machine.becomes(at={}, xids=[[0, 79]])
    assert [number for _, number in numbers(await machine.nvml())] == [79]


# --- what goes wrong, and that it is over afterwards -----------------------------------------------------------------


async def test_not_supported_for_everything_is_unsupported_for_everything(machine: Machine) -> None:
    machine.becomes(all=NOT_SUPPORTED)
    for gpu in (await machine.nvml()).gpus:
        values = dict(values_of(gpu))
        assert values.pop("pci") == ""
        absences = {name: value.absence if isinstance(value, Missing) else value for name, value in values.items()}
        assert absences == dict.fromkeys(values, Absence.UNSUPPORTED)
        assert not gpu.lost
    machine.becomes(all=None)
    machine.now += SLOW_S
    healthy = await machine.nvml()
    assert without_reasons(replace(healthy, seconds=0.0)) == without_reasons(captures.reading_of("h200_x2_idle").nvml)


@pytest.mark.parametrize("where", ["call", "field", "handle"])
async def test_a_lost_gpu_is_lost_and_the_others_are_read(machine: Machine, where: str) -> None:
    before = await machine.nvml()
    gpu = machine.gpu()
    gpu["peers"] = [{"ret": LOST}]
    if where == "call":
        kept = gpu["calls"]["Temperature"]
        gpu["calls"]["Temperature"] = {"ret": LOST}
    elif where == "field":
        kept = gpu["fields"]["186"]
        gpu["fields"]["186"] = [LOST, 0, 0]
    else:
        gpu["handle"] = LOST
    machine.becomes()
    lost, other = (await machine.nvml()).gpus
    known = before.gpus[0]
    assert lost == GpuReading(index=0, uuid=known.uuid, product=known.product, pci=known.pci, lost=True)
    assert other == replace(before.gpus[1], peers={})
    gpu["peers"] = [0]
    if where == "handle":
        gpu["handle"] = 0
    else:
        section, key = ("calls", "Temperature") if where == "call" else ("fields", "186")
        gpu[section][key] = kept
    machine.becomes()
    assert (await machine.nvml()).gpus == before.gpus


async def test_a_gpu_that_is_lost_between_two_calls_takes_nobody_with_it(machine: Machine) -> None:
    machine.gpu()["peers"] = [{"ret": LOST}]
    machine.becomes()
    assert [(gpu.lost, gpu.peers) for gpu in (await machine.nvml()).gpus] == [(False, {}), (False, {})]


async def test_a_child_that_hangs_is_ended_and_replaced_at_the_next_poll(machine: Machine) -> None:
    await machine.nvml()
    machine.becomes(at=HANG)
    assert await machine.missing(deadline=SHORT) == "NVML did not answer within 0.2 s"
    assert machine.reader.counters.outstanding == 0
    machine.becomes(at={})
    machine.now += 15
    await machine.nvml()
    assert machine.reader.counters.restarts == 1


async def test_a_child_that_hears_no_signal_is_left_alone_and_no_other_is_started(tmp_path: Path) -> None:
    machine = Machine(tmp_path, captures.scenario_of("h200_x2_idle"))
    machine.reader._grace = 0.1
    await machine.nvml()
    assert machine.reader._child
    process = machine.reader._child.process
    machine.becomes(at=STUCK)
    why = await machine.missing(deadline=SHORT)
    assert machine.reader.counters.outstanding == 1
    # for as long as it takes, however often it is asked
    for _ in range(3):
        machine.now += LONGEST_BACK_OFF_S
        assert await machine.missing() == why
    await machine.reader.close()
    assert process.poll() is None
    assert machine.reader.counters.restarts == 0
    # the call returns at last: the signal that waited ends it, and nothing harder did
    machine.becomes(at={})
    await machine.is_over()
    assert process.returncode == -signal.SIGTERM
    await machine.nvml()
    assert machine.reader.counters.restarts == 1
    await machine.reader.close()


async def test_each_failure_holds_the_next_start_back_for_longer(machine: Machine) -> None:
    machine.becomes(at={"nvmlDeviceGetName": "die"})
    waits = []
    for _ in range(7):
        await machine.missing()
        starts, begun = machine.reader.counters.restarts, machine.now
        while machine.reader.counters.restarts == starts:
            machine.now += 5
            await machine.missing()
        waits.append(machine.now - begun)
        # the failure that ended the wait is counted too: let its own wait pass
        machine.now = machine.reader._not_before
    assert waits == sorted(waits)
    assert waits[0] == 10 * 1
    assert waits[-1] == LONGEST_BACK_OFF_S
    machine.becomes(at={})
    await machine.nvml()
    machine.becomes(at={"nvmlDeviceGetName": "die"})
    await machine.missing()
    machine.becomes(at={})
    machine.now += 10
    await machine.nvml()


async def test_a_child_that_dies_is_unknown_until_it_is_back(machine: Machine) -> None:
    await machine.nvml()
    machine.becomes(at={"nvmlDeviceGetUUID": "die"})
    why = await machine.missing()
    assert why == "the NVML child has ended"
    # held back: the same words, so that nothing is published anew
    assert await machine.missing() == why
    machine.becomes(at={})
    machine.now += 15
    await machine.nvml()
    assert machine.reader.counters.restarts == 1


async def test_a_child_that_died_between_two_polls_is_noticed(machine: Machine) -> None:
    await machine.nvml()
    assert machine.reader._child
    process = machine.reader._child.process
    process.terminate()
    process.wait()
    assert await machine.missing() == "the NVML child has ended"
    machine.now += 15
    await machine.nvml()


GARBAGE = {
    "not-json": ("print('Xid 79!', flush=True)", "not JSON"),
    "half-a-line": ("sys.stdout.write('{\"request\": 1, '); sys.stdout.flush(); sys.exit()", "has ended"),
    "endless-line": ("sys.stdout.write('x' * 2**21); sys.stdout.flush()", "more than there can be to say"),
    "nested": ("print('[' * 500_000, flush=True)", "not JSON"),
    "a-list": ("print('[1]', flush=True)", "something else than was asked"),
    "another-answer": ('print(\'{"request": 7, "nvml": {}}\', flush=True)', "something else than was asked"),
    "not-a-reading": ('print(\'{"request": 1, "nvml": {"driver": 5}}\', flush=True)', "not a reading"),
    "nothing-in-it": ("print('{\"request\": 1}', flush=True)", "not a reading"),
}


@pytest.mark.parametrize(("code", "why"), GARBAGE.values(), ids=GARBAGE)
async def test_garbage_is_unknown_and_ends_the_child(tmp_path: Path, code: str, why: str) -> None:
    script, mended = tmp_path / "child.py", tmp_path / "mended"
    script.write_text(
        "import os, runpy, sys, time\n"
        f"if os.path.exists({str(mended)!r}):\n"
        "    runpy.run_module('hisparse_agent.readers.nvml_child', run_name='__main__')\n"
        "sys.stdin.readline()\n"
        f"{code}\n"
        "time.sleep(600)\n"
    )
    machine = Machine(tmp_path, captures.scenario_of("h200_x2_idle"), (sys.executable, str(script)))
    assert why in await machine.missing()
    assert machine.reader.counters.outstanding == 0
    mended.touch()
    machine.now += 15
    assert len((await machine.nvml()).gpus) == 2
    assert machine.reader.counters.restarts == 1
    await machine.reader.close()


async def test_what_a_library_prints_is_not_taken_for_an_answer(machine: Machine) -> None:
    machine.becomes(at={"nvmlDeviceGetName": "print"})
    assert len((await machine.nvml()).gpus) == 2
    assert len((await machine.nvml()).gpus) == 2


async def test_a_child_that_does_not_start_is_unknown(tmp_path: Path) -> None:
    machine = Machine(tmp_path, captures.scenario_of("h200_x2_idle"), (str(tmp_path / "not-there"),))
    assert "does not start" in await machine.missing()
    assert machine.reader.counters.restarts == 0


async def test_a_mismatch_of_driver_and_library_needs_another_process(machine: Machine) -> None:
    machine.becomes(init=MISMATCH)
    assert "mismatch" in await machine.missing()
    # the library of the new driver is there at the next poll
    machine.becomes(init=0)
    machine.now += 15
    await machine.nvml()
    assert machine.reader.counters.restarts == 1


async def test_a_driver_that_is_changed_under_the_child_is_seen(machine: Machine) -> None:
    await machine.nvml()
    machine.becomes(at={"nvmlDeviceGetCount_v2": UNKNOWN_ERROR}, init=MISMATCH)
    assert await machine.missing() == "NVML: Unknown Error"
    assert "mismatch" in await machine.missing()


async def test_an_unknown_error_of_one_value_starts_nvml_again(machine: Machine) -> None:
    machine.gpu()["calls"]["MarginTemperature"] = {"ret": UNKNOWN_ERROR}
    machine.becomes()
    assert (await machine.nvml()).gpus[0].heat.margin == Missing(Absence.UNKNOWN, "NVML: Unknown Error")
    machine.gpu()["calls"]["MarginTemperature"] = 51
    machine.becomes(init=DRIVER_NOT_LOADED)
    assert await machine.missing() == "NVML: Driver Not Loaded"
    machine.becomes(init=0)
    assert (await machine.nvml()).gpus[0].heat.margin == 51
    assert machine.reader.counters.restarts == 0


async def test_a_value_that_is_only_unsupported_does_not(machine: Machine) -> None:
    machine.gpu()["calls"]["MarginTemperature"] = {"ret": NOT_SUPPORTED}
    machine.becomes()
    await machine.nvml()
    machine.becomes(init=DRIVER_NOT_LOADED)
    await machine.nvml()


async def test_a_machine_without_the_driver_is_unsupported_until_it_has_one(machine: Machine) -> None:
    machine.becomes(library=False)
    for _ in range(2):
        why = await machine.missing(Absence.UNSUPPORTED)
        assert why == "no NVIDIA driver: libnvidia-ml.so.1 is not there"
    machine.becomes(library=True)
    await machine.nvml()
    assert machine.reader.counters.restarts == 0


async def test_this_machine_answers_with_gpus_or_has_no_driver() -> None:
    reader = NvmlReader()
    found = await reader.read(deadline=PLENTY)
    await reader.close()
    assert isinstance(found, Nvml) or found.absence is Absence.UNSUPPORTED or shutil.which("nvidia-smi")


async def test_without_the_bindings_it_is_unsupported(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "pynvml.py").write_text("raise ImportError\n")
    assert await machine.missing(Absence.UNSUPPORTED) == "nvidia-ml-py is not installed"


# --- asking ----------------------------------------------------------------------------------------------------------


async def test_after_close_a_read_starts_again(machine: Machine) -> None:
    await machine.nvml()
    await machine.reader.close()
    await machine.nvml()
    assert machine.reader.counters.restarts == 1


async def test_a_read_that_is_cancelled_leaves_no_answer_behind(machine: Machine) -> None:
    await machine.nvml()
    machine.becomes(at=HANG)
    task = asyncio.ensure_future(machine.read())
    await asyncio.sleep(0.05)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    machine.gpu()["calls"]["Temperature"] = 61
    machine.becomes(at={})
    await machine.is_over()
    assert (await machine.nvml()).gpus[0].heat.gpu == 61


async def test_a_read_that_is_cancelled_before_the_child_is_up_leaves_nothing_behind(machine: Machine) -> None:
    task = asyncio.ensure_future(machine.read())
    await asyncio.sleep(0)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    await machine.is_over()
    await machine.nvml()


async def test_ctrl_c_is_for_the_parent(machine: Machine) -> None:
    await machine.nvml()
    assert machine.reader._child
    machine.reader._child.process.send_signal(signal.SIGINT)
    await machine.nvml()
    assert machine.reader.counters.restarts == 0


def test_the_child_ends_with_its_parent(tmp_path: Path) -> None:
    environment = fake_pynvml.environment(tmp_path, captures.scenario_of("h200_x2_idle"))
    request = b'{"request": 1, "slow": true}\n'
    done = subprocess.run(COMMAND, input=request, env=environment, capture_output=True, check=True, timeout=PLENTY)
    assert done.stdout.count(b"\n") == 1


async def test_two_reads_at_once_take_turns(machine: Machine) -> None:
    found = await asyncio.gather(machine.read(), machine.read())
    assert all(isinstance(one, Nvml) for one in found)
    assert machine.reader.counters.restarts == 0


async def test_the_seconds_of_a_call_are_those_of_the_clock(machine: Machine) -> None:
    await machine.nvml()
    ticks = iter((5.0, 7.5))
    machine.reader._clock = lambda: next(ticks)
    await machine.nvml()
    machine.reader._clock = lambda: machine.now
    assert machine.reader.counters.seconds == 2.5
