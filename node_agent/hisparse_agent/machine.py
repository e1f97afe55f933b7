"""This machine as readings: composes the readers, each at its own pace, and what the cluster says of the node.

What reads files runs in a thread with a deadline, one at a time: a file of /sys can hang with its driver, and neither
the agent nor its liveness may hang with it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Generic, TypeVar

import aiohttp

from hisparse.nodes.catalogue import Pace
from hisparse.spec import GROUP
from hisparse_agent.cluster import View
from hisparse_agent.readers.cgroups import read_pod
from hisparse_agent.readers.exporter import PORT, read_exporter
from hisparse_agent.readers.kernel_log import KernelLog
from hisparse_agent.readers.meminfo import read_memory
from hisparse_agent.readers.nvml import NvmlReader
from hisparse_agent.readers.pci import read_numa_node
from hisparse_agent.readers.rdma import read_rdma
from hisparse_agent.readers.settings import read_host
from hisparse_agent.readers.shm import read_files
from hisparse_agent.readings import (
    Absence,
    EnginePod,
    Exporter,
    Host,
    Memory,
    Missing,
    NodeReading,
    Number,
    Nvml,
    Rdma,
    ShmFile,
    Xid,
)

T = TypeVar("T")
RELEASE_ANNOTATION: Final = f"{GROUP}/release-gpus"
"""On a Node, "true" makes the agent let go of NVML: for a reset of GPUs or another driver."""
_FILES_S: Final = 5.0
_NO_EXPORTER: Final = Missing(Absence.UNSUPPORTED, "no dcgm-exporter pod runs on this node")
_NOT_LOOKED: Final = Missing(Absence.UNKNOWN, "its /dev/shm was not looked at yet")
_RELEASED: Final = Missing(Absence.UNKNOWN, f"the node's annotation {RELEASE_ANNOTATION} keeps us from NVML")


@dataclass(frozen=True)
class Places:
    """Where things are: root is the host's /, or where its /proc and /sys are mounted. kubelet None: not mounted."""

    root: Path = Path("/")
    cgroups: Path = Path("/sys/fs/cgroup")
    kubelet: Path | None = Path("/var/lib/kubelet")
    kernel_log: Path = Path("/dev/kmsg")
    exporter_port: int = PORT


@dataclass(frozen=True)
class Paces:
    """Seconds between two readings of one kind, and how long NVML may take. host is the time between two polls."""

    host: float = Pace.HOST.seconds
    gpu: float = Pace.GPU.seconds
    config: float = Pace.CONFIG.seconds
    nvml_deadline: float = 10.0

    @classmethod
    def of(cls, interval_s: float) -> Paces:
        """The paces that go with another time between two readings of GPUs."""
        share = interval_s / cls.gpu
        return cls(cls.host * share, interval_s, cls.config * share, max(1.0, min(1.0, share) * cls.nvml_deadline))


@dataclass(frozen=True)
class _Files:
    """What the files of one poll said; config is read more rarely."""

    memory: Memory
    pods: tuple[EnginePod, ...] | Missing
    xids: tuple[Xid, ...] | Missing
    config: tuple[Host, Rdma] | None


class Machine:
    """Reads the node that it runs on. view is what the cluster says; it may be empty."""

    def __init__(
        self,
        node: str,
        view: Callable[[], View],
        *,
        places: Places = Places(),
        paces: Paces = Paces(),
        nvml: NvmlReader | None = None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._node, self._view, self._places, self._paces = node, view, places, paces
        self._nvml = nvml or NvmlReader()
        self._clock, self._now = clock, now
        self._log = KernelLog(places.kernel_log)
        self._threads: _OneAtATime[_Files] = _OneAtATime(_FILES_S)
        self._session: aiohttp.ClientSession | None = None
        self._host = Host()
        self._rdma: Rdma | Missing = Missing(Absence.UNKNOWN, "not read yet")
        self._gpu: Nvml | Missing = Missing(Absence.UNKNOWN, "NVML was not read yet")
        self._exporter: Exporter | Missing = _NO_EXPORTER
        self._xids: tuple[Xid, ...] | Missing = ()
        self._late: tuple[Xid, ...] = ()
        self._numa: dict[str, Number] = {}
        self._left: dict[str, tuple[ShmFile, ...] | Missing] = {}
        self._gpu_at: float | None = None
        self._config_at: float | None = None

    @property
    def nvml(self) -> NvmlReader:
        """The reader of NVML, for what it tells of itself."""
        return self._nvml

    @property
    def lost_log_records(self) -> int:
        """Records that the kernel overwrote before the agent read them: an Xid may be among them."""
        return self._log.lost

    async def readings(self) -> AsyncIterator[NodeReading]:
        """A reading now and at every pace of the host; a late one is not made up for."""
        due = self._clock()
        while True:
            yield await self.read()
            due = max(due + self._paces.host, self._clock())
            await asyncio.sleep(due - self._clock())

    async def read(self) -> NodeReading:
        """One reading. What is not due yet is what it was."""
        at, begun = self._now(), self._clock()
        view = self._view()
        config = self._is_due(self._config_at, self._paces.config)
        gpu = self._is_due(self._gpu_at, self._paces.gpu)
        files, nvml, exporter = await asyncio.gather(
            self._threads.run(lambda: self._files(view, gpu=gpu, config=config)),
            self._read_nvml(view) if gpu else _ready(self._gpu),
            self._read_exporter(view) if gpu else _ready(self._exporter),
        )
        self._gpu, self._exporter = nvml, exporter
        if isinstance(files, Missing):
            files = _Files(Memory(), files, files, None)
        # each line comes once, and after files that hung in a poll that does not judge it
        lines = files.xids if isinstance(files.xids, Missing) else (*self._late, *files.xids)
        if gpu:
            self._gpu_at, self._xids = begun, _xids(lines, nvml)
        elif not isinstance(self._xids, Missing):
            self._xids = ()
        if not isinstance(lines, Missing):
            self._late = () if gpu else lines
        if files.config is not None:
            (self._host, self._rdma), self._config_at = files.config, begun
        node = view.node
        return NodeReading(
            at=at,
            monotonic=begun,
            node=self._node,
            nvml=nvml,
            expected_gpus=node.gpus if node else Missing(Absence.UNSUPPORTED, "no Node object says how many"),
            memory=files.memory,
            host=self._host,
            rdma=self._rdma,
            pods=files.pods,
            xids=self._xids,
            exporter=exporter,
            labels=node.labels if node else {},
            annotations=node.annotations if node else {},
            fresh=frozenset({Pace.HOST} | ({Pace.GPU} if gpu else set()) | ({Pace.CONFIG} if config else set())),
        )

    async def close(self) -> None:
        """End the child and every connection."""
        self._log.close()
        await self._nvml.close()
        if self._session is not None:
            await self._session.close()

    def _is_due(self, last: float | None, pace: float) -> bool:
        # half a poll early is on time: polls are not exact
        return last is None or self._clock() - last >= pace - self._paces.host / 2

    async def _read_nvml(self, view: View) -> Nvml | Missing:
        if view.node is not None and view.node.annotations.get(RELEASE_ANNOTATION) == "true":
            await self._nvml.close()
            return _RELEASED
        found = await self._nvml.read(deadline=self._paces.nvml_deadline)
        if isinstance(found, Missing):
            return found
        return replace(found, gpus=tuple(replace(gpu, numa_node=self._numa_of(gpu.pci)) for gpu in found.gpus))

    def _numa_of(self, pci: str) -> Number:
        """The NUMA node next to a card; a card does not move."""
        if not pci:
            return Missing(Absence.UNKNOWN, "its PCI address is not known")
        if pci not in self._numa:
            self._numa[pci] = read_numa_node(self._places.root, pci)
        return self._numa[pci]

    async def _read_exporter(self, view: View) -> Exporter | Missing:
        if not view.exporters:
            return _NO_EXPORTER
        if self._session is None:
            self._session = aiohttp.ClientSession()
        pod = view.exporters[0]
        return await read_exporter(
            self._session, pod.address, pod=pod.name, node=self._node, port=self._places.exporter_port
        )

    def _files(self, view: View, *, gpu: bool, config: bool) -> _Files:
        places = self._places
        pods = view.pods
        if not isinstance(pods, Missing):
            if gpu:
                self._left = {pod.uid: self._left_files(pod) for pod in pods}
            pods = tuple(
                replace(read_pod(places.cgroups, pod), files=self._left.get(pod.uid, _NOT_LOOKED)) for pod in pods
            )
        found = (read_host(places.root), read_rdma(places.root, declared=view.rdma)) if config else None
        # every line comes once, so it is asked for when it is judged
        return _Files(read_memory(places.root), pods, self._log.poll() if gpu else (), found)

    def _left_files(self, pod: EnginePod) -> tuple[ShmFile, ...] | Missing:
        """Dear where there are any: then all processes of the node are looked at. So at the pace of its judge."""
        if self._places.kubelet is None:
            return Missing(Absence.UNSUPPORTED, "the kubelet's folder is not mounted")
        return read_files(self._places.kubelet, self._places.root / "proc", pod.uid)


def _xids(log: tuple[Xid, ...] | Missing, nvml: Nvml | Missing) -> tuple[Xid, ...] | Missing:
    """The lines of the kernel log, or where that is not for us what NVML told."""
    if not isinstance(log, Missing) or log.absence is Absence.UNKNOWN:
        return log
    told = nvml if isinstance(nvml, Missing) else nvml.xids
    return log if isinstance(told, Missing) and told.absence is Absence.UNSUPPORTED else told


async def _ready(value: T) -> T:
    return value


class _OneAtATime(Generic[T]):
    """Work in a thread with a deadline. While one hangs no other is started."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._running: asyncio.Future[T] | None = None

    async def run(self, work: Callable[[], T]) -> T | Missing:
        """What the work gives, Missing where it takes too long."""
        if self._running is None:
            self._running = asyncio.ensure_future(asyncio.to_thread(work))
        done, _ = await asyncio.wait([self._running], timeout=self._limit_s)
        if not done:
            return Missing(Absence.UNKNOWN, f"files of the host were not read within {self._limit_s:g} s")
        finished, self._running = self._running, None
        return finished.result()
