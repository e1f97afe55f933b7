"""All readers together on one machine: what is read when, and that a source that hangs or lies holds up no other."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import captures
import fake_pynvml
import pytest

from hisparse.nodes.catalogue import Pace
from hisparse.nodes.findings import State
from hisparse_agent import machine as composed
from hisparse_agent.cluster import NodeObject, View
from hisparse_agent.judge.judge import judge, once
from hisparse_agent.judge.ledger import Ledger
from hisparse_agent.machine import RELEASE_ANNOTATION, Machine, Paces, Places
from hisparse_agent.pods import ExporterPod
from hisparse_agent.readers.nvml import NvmlReader
from hisparse_agent.readings import Absence, EnginePod, Memory, Missing, Nvml, ShmFile

PACES = Paces()
NODE = NodeObject("n", "u", {}, {}, (), (), unschedulable=False, gpus=2)
POD = EnginePod(namespace="ns", name="engine", uid="6ba7b810-9dad-11d1-80b4-00c04fd430c8")


class Node:
    """A machine with two H200 whose cluster and time the test makes up."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.scenario: dict[str, Any] = captures.scenario_of("h200_x2_idle")
        environment = fake_pynvml.environment(folder, self.scenario)
        self.now = 1000.0
        self.view = View(node=NODE, pods=(POD,))
        self.machine = Machine(
            "n",
            lambda: self.view,
            places=Places(kernel_log=folder / "no-kmsg", kubelet=folder),
            paces=PACES,
            nvml=NvmlReader(environment=environment, clock=lambda: self.now),
            clock=lambda: self.now,
            now=lambda: datetime.now(UTC),
        )


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    found = Node(tmp_path)
    yield found
    await found.machine.close()


async def test_each_kind_is_read_at_its_own_pace(node: Node) -> None:
    fresh = []
    for _ in range(13):
        fresh.append((await node.machine.read()).fresh)
        node.now += PACES.host
    every, host, gpu = frozenset(Pace), frozenset({Pace.HOST}), frozenset({Pace.HOST, Pace.GPU})
    assert fresh == [every, host, host, gpu, host, host, gpu, host, host, gpu, host, host, every]


async def test_what_is_not_due_is_what_it_was(node: Node) -> None:
    first = await node.machine.read()
    node.scenario["gpus"][0]["calls"]["Temperature"] = 77
    fake_pynvml.write(node.folder, node.scenario)
    node.now += PACES.host
    second = await node.machine.read()
    assert (second.nvml, second.host, second.rdma) == (first.nvml, first.host, first.rdma)
    node.now += PACES.gpu
    third = await node.machine.read()
    assert isinstance(third.nvml, Nvml)
    assert third.nvml.gpus[0].heat.gpu == 77


async def test_files_of_pods_are_looked_for_with_the_gpus(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []

    def files(_: Path, __: Path, uid: str) -> tuple[ShmFile, ...]:
        looks.append(node.now)
        return (ShmFile(uid, len(looks), opened=False),)

    monkeypatch.setattr(composed, "read_files", files)
    begun, seen = node.now, []
    for _ in range(4):
        pods = (await node.machine.read()).pods
        assert isinstance(pods, tuple)
        seen.append(pods[0].files)
        node.now += PACES.host
    assert looks == [begun, begun + PACES.gpu]
    assert seen == [(ShmFile(POD.uid, 1, opened=False),)] * 3 + [(ShmFile(POD.uid, 2, opened=False),)]
    node.view = View(node=NODE, pods=(replace(POD, uid="another"),))
    pods = (await node.machine.read()).pods
    assert isinstance(pods, tuple)
    assert pods[0].files == Missing(Absence.UNKNOWN, "its /dev/shm was not looked at yet")


async def test_xids_are_those_of_nvml_where_the_kernel_log_is_not_for_us(node: Node) -> None:
    fake_pynvml.write(node.folder, node.scenario | {"xids": [[1, 79]]})
    first = await node.machine.read()
    assert not isinstance(first.xids, Missing)
    assert [xid.number for xid in first.xids] == [79]
    found = [one for one in once(first) if one.check == "xid" and one.state is State.CRITICAL]
    assert [one.subject for one in found] == ["gpu-1"]
    node.now += PACES.host
    assert (await node.machine.read()).xids == (), "each is told once, at its pace"


async def test_that_xids_cannot_be_read_is_said_between_two_readings_of_gpus_too(node: Node) -> None:
    """Or the report would say something else at every poll."""
    node.view = replace(node.view, node=replace(NODE, annotations={RELEASE_ANNOTATION: "true"}))
    first = await node.machine.read()
    assert isinstance(first.xids, Missing)
    node.now += PACES.host
    assert (await node.machine.read()).xids == first.xids


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Reading of memory that hangs until the event is set, as a file of /sys does whose driver hangs."""
    free = threading.Event()

    def read(_: Path) -> Memory:
        free.wait(60)
        return Memory(total=1)

    monkeypatch.setattr(composed, "read_memory", read)
    monkeypatch.setattr(composed, "_FILES_S", 0.2)
    yield free
    free.set()


async def test_an_xid_that_was_read_too_late_for_its_poll_is_told_in_the_next(
    stuck: threading.Event, tmp_path: Path
) -> None:
    node = Node(tmp_path)
    (tmp_path / "no-kmsg").write_text("4,1,9000000,-;NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.\n")
    assert isinstance((await node.machine.read()).xids, Missing)
    stuck.set()
    node.now += PACES.host
    assert Pace.GPU not in (await node.machine.read()).fresh
    node.now += PACES.gpu
    xids = (await node.machine.read()).xids
    assert not isinstance(xids, Missing)
    assert [xid.number for xid in xids] == [79]
    await node.machine.close()


async def test_files_that_hang_are_unknown_and_hold_up_no_gpu(stuck: threading.Event, tmp_path: Path) -> None:
    node = Node(tmp_path)
    threads = threading.active_count()
    for _ in range(3):
        reading = await node.machine.read()
        assert isinstance(reading.nvml, Nvml)
        assert reading.memory == Memory()
        assert isinstance(reading.pods, Missing)
        assert isinstance(reading.xids, Missing)
        node.now += PACES.gpu
    assert threading.active_count() <= threads + 1, "no second thread waits beside the first"
    findings = judge(reading, (), Ledger()).findings
    assert not [one for one in findings if one.check.startswith("host.mem") and one.state.is_fault]
    stuck.set()
    while isinstance((await node.machine.read()).memory.total, Missing):  # noqa: ASYNC110 - a thread ends
        await asyncio.sleep(0.01)
    await node.machine.close()


async def test_a_release_lets_go_of_nvml_until_it_is_over(node: Node) -> None:
    await node.machine.read()
    child = node.machine.nvml._child
    assert child
    node.view = View(node=replace(NODE, annotations={RELEASE_ANNOTATION: "true"}))
    node.now += PACES.gpu
    reading = await node.machine.read()
    assert isinstance(reading.nvml, Missing)
    assert reading.nvml.absence is Absence.UNKNOWN
    assert child.process.poll() is not None, "nothing of ours holds a card open"
    node.view = View(node=NODE)
    node.now += PACES.gpu
    assert isinstance((await node.machine.read()).nvml, Nvml)


async def test_numa_node_minus_one_is_unknown_on_every_gpu(tmp_path: Path) -> None:
    root = tmp_path / "root"
    for gpu in captures.scenario_of("h200_x2_idle")["gpus"]:
        device = root / "sys/bus/pci/devices" / gpu["bus"].lower()[4:]
        device.mkdir(parents=True)
        (device / "numa_node").write_text("-1\n")
    node = Node(tmp_path)
    node.machine._places = replace(node.machine._places, root=root)
    nvml = (await node.machine.read()).nvml
    await node.machine.close()
    assert isinstance(nvml, Nvml)
    absences = [gpu.numa_node.absence for gpu in nvml.gpus if isinstance(gpu.numa_node, Missing)]
    assert absences == [Absence.UNKNOWN] * 2


async def test_an_exporter_that_does_not_answer_is_unknown_and_the_rest_is_read(node: Node) -> None:
    node.view = View(node=NODE, pods=(), exporters=(ExporterPod("dcgm-exporter-x", "127.0.0.1"),))
    node.machine._places = replace(node.machine._places, exporter_port=1)
    reading = await node.machine.read()
    assert isinstance(reading.exporter, Missing)
    assert reading.exporter.absence is Absence.UNKNOWN
    assert isinstance(reading.nvml, Nvml)
    assert isinstance(reading.memory.total, int)


async def test_a_host_whose_files_are_closed_or_not_there_is_unknown_and_no_fault(tmp_path: Path) -> None:
    node = Node(tmp_path)
    root = tmp_path / "root"
    for path in ("proc/meminfo", "proc/vmstat", "sys/devices/system/cpu/online"):
        place = root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(place)
    node.machine._places = Places(root, root / "cgroups", None, root / "kmsg")
    reading = await node.machine.read()
    await node.machine.close()
    findings = judge(reading, (), Ledger()).findings
    of_host = [one for one in findings if one.check.startswith("host.")]
    assert of_host
    assert not [one for one in of_host if one.state.is_fault]
