"""Readings of a node that is well in every respect, and of the same node with single values changed.

The node has two H200 SXM, an engine pod with a pinned pool, RDMA ports and a dcgm-exporter; it is made up. Values that
the judge compares with measured ones (ports, speeds, temperatures, limits) are those of a real H200.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any, Final

from hisparse.nodes.findings import Finding
from hisparse.nodes.policy import CheckOverride
from hisparse_agent.judge.judge import Judgement, judge
from hisparse_agent.judge.ledger import Ledger
from hisparse_agent.readings import (
    Absence,
    Cpufreq,
    EnginePod,
    Exporter,
    ExporterGpu,
    Fabric,
    Faults,
    GpuReading,
    Heat,
    Host,
    Memory,
    Missing,
    Nic,
    NodeReading,
    NumaNode,
    NvLink,
    Nvml,
    Pcie,
    Power,
    Pressure,
    Rdma,
    ShmFile,
    Throttle,
)

GIB: Final = 2**30
NS: Final = 10**9
POLL_S: Final = 15
START: Final = datetime(2026, 11, 29, 12, tzinfo=UTC)
UPTIME: Final = 100_000
POOL: Final = 400 * GIB
LINK: Final = 26_562_000_000

NOT_READ: Final = Missing(Absence.UNKNOWN, "the test did not read it")
NOT_THERE: Final = Missing(Absence.UNSUPPORTED, "the test has none")

Edits = Mapping[str, Any]
"""New values by dotted path, such as "nvml.gpus.0.heat.margin"; a function is called with the number of the poll."""


def gpu(index: int, poll: int) -> GpuReading:
    return GpuReading(
        index=index,
        uuid=f"GPU-{index}",
        product="NVIDIA H200",
        pci=f"0000:{0x1B + index:02x}:00.0",
        device_id=0x2335,
        memory=143_771 * 2**20,
        memory_used=100 * GIB,
        utilisation_percent=90,
        mig=False,
        links=tuple(NvLink(port, 1, LINK, 0, 0, 0) for port in range(18)),
        peers=MappingProxyType({1 - index: 0}),
        fabric=Fabric(3, 0, 0x1AA, 1),
        heat=Heat(gpu=52, margin=35, hbm=60, gpu_limit=87, slowdown=89, hbm_limit=95),
        # at its power limit half of the time
        throttle=Throttle(poll * POLL_S * NS // 2, 0, 0, 0, 0x4),
        power=Power(
            625_000, 700_000, 700_000, 200_000, 700_000, 700_000, 700_000, poll * POLL_S * 625_000, persistent=True
        ),
        pcie=Pcie(5, 5, 16, 16, 2, 0, 0, 0),
        faults=Faults(recovery_action=0, remap_pending=False, remap_failed=False, double_bit=0),
        processes=1,
        numa_node=index,
    )


def healthy(poll: int = 0) -> NodeReading:
    """The node at a poll; its counters move as those of a node at work do."""
    gpus = (gpu(0, poll), gpu(1, poll))
    return NodeReading(
        at=START + timedelta(seconds=poll * POLL_S),
        monotonic=1000.0 + poll * POLL_S,
        node="node-1",
        nvml=Nvml("580.159.04", "13.0", gpus, 0.02),
        expected_gpus=2,
        memory=Memory(
            total=2048 * GIB,
            available=1500 * GIB,
            shmem=POOL,
            swap_total=8 * GIB,
            swap_free=8 * GIB,
            pinned_pages=POOL // 4096,
            swap_in=5000,
            swap_out=7000,
            major_faults=900,
            pressure=Pressure(0.0, 0.0),
            nodes=tuple(NumaNode(index, 1024 * GIB, 700 * GIB, 50 * GIB, POOL // 2 // 4096) for index in range(2)),
        ),
        host=Host(
            kernel="6.8.0-50-generic",
            boot_id="boot-1",
            uptime=UPTIME + poll * POLL_S,
            open_module=True,
            modules=frozenset({"nvidia"}),
            sysctls=MappingProxyType(
                {
                    "vm.swappiness": "10",
                    "vm.zone_reclaim_mode": "0",
                    "vm.overcommit_memory": "0",
                    "kernel.numa_balancing": "0",
                }
            ),
            huge_pages="madvise",
            shmem_huge_pages="never",
            cpufreq=Cpufreq("intel_pstate", ("powersave",), ("performance", "powersave"), ("performance",)),
        ),
        rdma=Rdma(
            declared=True,
            peermem_loaded=False,
            peermem_registered=False,
            dma_buf=True,
            nics=(Nic("mlx5_0", 1, "ACTIVE", 400 * 10**9, 0),),
        ),
        pods=(
            EnginePod(
                namespace="chat",
                name="glm-0",
                uid="pod-uid-0",
                inference="glm",
                pool=POOL,
                limit=600 * GIB,
                running=True,
                memory=450 * GIB,
                shmem=POOL,
                anon=40 * GIB,
                oom_kills=0,
                max_events=0,
                pressure=Pressure(0.0, 0.0),
                files=(ShmFile("vllm_offload_0.mmap", POOL, opened=True),),
            ),
        ),
        xids=(),
        exporter=Exporter("dcgm-exporter-x", 0.1, tuple(ExporterGpu(one.uuid, poll * 9_000_000) for one in gpus)),
    )


def changed(reading: Any, edits: Edits, poll: int = 0) -> Any:
    """The reading with other values, by dotted path."""
    for path, value in edits.items():
        reading = _with(reading, path.split("."), value(poll) if callable(value) else value)
    return reading


def _with(node: Any, path: list[str], value: Any) -> Any:
    if not path:
        return value
    head, *rest = path
    if isinstance(node, tuple):
        items = list(node)
        chosen = range(len(items)) if head == "*" else (int(head),)
        for index in chosen:
            items[index] = _with(items[index], rest, value)
        return tuple(items)
    if isinstance(node, Mapping):
        key: Any = int(head) if head.isdigit() else ".".join(path)
        return MappingProxyType({**node, key: value})
    return replace(node, **{head: _with(getattr(node, head), rest, value)})


@dataclass
class Watch:
    """An agent's loop without the agent: it keeps history and ledger, and judges reading after reading."""

    ledger: Ledger = field(default_factory=Ledger)
    history: tuple[NodeReading, ...] = ()
    overrides: Mapping[str, CheckOverride] = field(default_factory=dict)
    own_caps: Mapping[str, int] = field(default_factory=dict)
    poll: int = 0
    kept: int = 60

    def see(self, reading: NodeReading) -> Judgement:
        judgement = judge(reading, self.history, self.ledger, overrides=self.overrides, own_caps=self.own_caps)
        self.history = (*self.history, reading)[-self.kept :]
        self.ledger = judgement.ledger
        return judgement

    def watch(
        self, edits: Edits | None = None, polls: int = 1, *, base: Callable[[int], NodeReading] = healthy
    ) -> Judgement:
        """The judgement after that many polls of the node with these values changed."""
        assert polls > 0
        for _ in range(polls):
            judgement = self.see(changed(base(self.poll), edits or {}, self.poll))
            self.poll += 1
        return judgement


def finding(findings: Sequence[Finding], check: str, subject: str | None = None) -> Finding:
    """The one finding of a check, on a subject where there are several."""
    found = [one for one in findings if one.check == check and subject in (None, one.subject)]
    assert len(found) == 1, (check, subject, [one.subject for one in found])
    return found[0]
