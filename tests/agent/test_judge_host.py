"""Memory of the host and why it is low, pools of pods, RDMA, settings, and the watching itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from node_readings import GIB, NOT_READ, NOT_THERE, POOL, Watch, changed, finding, healthy

from hisparse.nodes.findings import State
from hisparse.nodes.policy import CheckOverride
from hisparse_agent.judge.judge import once
from hisparse_agent.readings import Cpufreq, ExporterGpu, NumaNode, Pressure, Rdma, ShmFile

# --- MemAvailable ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("total", "available", "state", "limit"),
    [
        pytest.param(2048 * GIB, 50 * GIB, State.OK, 50 * GIB, id="large host at 50 GiB"),
        pytest.param(2048 * GIB, 50 * GIB - 1, State.WARN, 50 * GIB, id="large host below 50 GiB"),
        pytest.param(2048 * GIB, 16 * GIB - 1, State.CRITICAL, 16 * GIB, id="large host below 16 GiB"),
        pytest.param(100 * GIB, 10 * GIB, State.OK, 10 * GIB, id="small host at 10 %"),
        pytest.param(100 * GIB, 10 * GIB - 1, State.WARN, 10 * GIB, id="small host below 10 %"),
        pytest.param(100 * GIB, 3 * GIB - 1, State.CRITICAL, 3 * GIB, id="small host below 3 %"),
    ],
)
def test_available_memory_against_bytes_or_a_share_whichever_is_less(
    total: int, available: int, state: State, limit: int
) -> None:
    reading = changed(healthy(), {"memory.total": total, "memory.available": available})
    found = finding(once(reading), "host.mem.available")
    assert (found.state, found.value, found.limit, found.unit) == (state, str(available), str(limit), "bytes")


def test_a_policy_limit_counts_as_it_is_on_a_small_host_too() -> None:
    low = changed(healthy(), {"memory.total": 100 * GIB, "memory.available": 5 * GIB})
    limits = {"host.mem.available": CheckOverride(check="host.mem.available", warn="1000000", critical="1000")}
    assert finding(once(low, overrides=limits), "host.mem.available").state is State.OK


LOW = {"memory.available": 10 * GIB, "memory.pinned_pages": 0}


@pytest.mark.parametrize(
    ("edits", "words"),
    [
        pytest.param(
            {"memory.pinned_pages": 1600 * GIB // 4096},
            "1.56 TiB are pinned (a shared pool counts once per rank) and cannot be reclaimed",
            id="pins",
        ),
        pytest.param(
            {"memory.nodes.1.free": GIB, "memory.nodes.1.file_cache": GIB},
            "NUMA node 1 is exhausted (2.00 GiB left)",
            id="a NUMA node",
        ),
        pytest.param(
            {"memory.pressure": Pressure(30.5, 12.0)},
            "programs wait for memory 30.5 % of the time, all of them 12.0 %",
            id="pressure",
        ),
        pytest.param(
            {"pods.0.running": False},
            "pod-chat/glm-0 still has to fill 400.00 GiB of its pool, which will not fit",
            id="a pool that will not fit",
        ),
        pytest.param({}, "no pins, NUMA node, pressure or pool explains it", id="nothing that is known"),
    ],
)
def test_low_memory_says_why(edits: dict[str, Any], words: str) -> None:
    found = finding(once(changed(healthy(), {**LOW, **edits})), "host.mem.available")
    assert found.state is State.CRITICAL
    assert words in found.message
    assert "below 16.00 GiB" in found.message


# --- NUMA and pins ---------------------------------------------------------------------------------------------------


def nodes(*free: int) -> tuple[NumaNode, ...]:
    return tuple(NumaNode(index, 1024 * GIB, each * GIB, 0, 0) for index, each in enumerate(free))


@pytest.mark.parametrize(
    ("free", "states"),
    [
        pytest.param((400, 400), (State.OK, State.OK), id="enough on both"),
        pytest.param((15, 30), (State.WARN, State.OK), id="less than 16 GiB"),
        pytest.param((3, 10), (State.CRITICAL, State.WARN), id="less than 4 GiB"),
        pytest.param((100, 400), (State.WARN, State.OK), id="four times as much on the other"),
        pytest.param((101, 400), (State.OK, State.OK), id="not quite four times"),
    ],
)
def test_memory_next_to_the_gpus(free: tuple[int, int], states: tuple[State, State]) -> None:
    findings = once(changed(healthy(), {"memory.nodes": nodes(*free)}))
    assert tuple(finding(findings, "host.mem.numa", f"numa-{index}").state for index in range(2)) == states


def test_only_nodes_with_a_gpu_are_judged() -> None:
    findings = once(changed(healthy(), {"memory.nodes": nodes(400, 2), "nvml.gpus.1.numa_node": 0}))
    assert finding(findings, "host.mem.numa").subject == "numa-0"


@pytest.mark.parametrize(
    ("edits", "state", "words"),
    [
        pytest.param(
            {"nvml.gpus.*.numa_node": -1}, State.UNKNOWN, "sysfs says -1, which is no node", id="-1 is not node 0"
        ),
        pytest.param({"nvml.gpus.*.numa_node": NOT_THERE}, State.UNSUPPORTED, "", id="the machine does not tell"),
    ],
)
def test_nodes_that_are_not_known(edits: dict[str, Any], state: State, words: str) -> None:
    found = finding(once(changed(healthy(), edits)), "host.mem.numa")
    assert found.state is state
    assert words in found.message


def test_a_host_with_one_node_needs_nobody_to_say_where_the_gpus_are() -> None:
    one = (NumaNode(0, 2048 * GIB, 3 * GIB, 0, 0),)
    found = finding(once(changed(healthy(), {"memory.nodes": one, "nvml.gpus.*.numa_node": -1})), "host.mem.numa")
    assert (found.subject, found.state) == ("numa-0", State.CRITICAL)


def test_pins_of_a_shared_pool_are_bounded_by_what_is_neither_free_nor_cache() -> None:
    # 250 GiB shared by 8 ranks: the kernel counts 2,000 of the 1,024 GiB of the node
    edits = {"memory.nodes.0.pinned_pages": 2000 * GIB // 4096, "memory.nodes.0.free": 700 * GIB}
    found = finding(once(changed(healthy(), edits)), "host.mem.pinned", "numa-0")
    assert found.state is State.OK
    assert "274.00 GiB of 1.00 TiB are pinned" in found.message
    assert "counted as 1.95 TiB: a shared pool counts once per rank" in found.message


# --- pods ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pod", "available", "state"),
    [
        pytest.param({"running": False}, POOL * 2, State.OK, id="starts, and there is room"),
        pytest.param({"running": False}, POOL * 110 // 100, State.OK, id="ten percent spare are enough"),
        pytest.param({"running": False}, POOL * 109 // 100, State.WARN, id="less is a warning"),
        pytest.param({"running": False}, POOL - 1, State.CRITICAL, id="does not fit"),
        pytest.param(
            {"running": True, "shmem": 0, "anon": 0}, POOL - 1, State.CRITICAL, id="runs and has not filled it"
        ),
        pytest.param({"running": True}, GIB, State.OK, id="holds it already"),
        pytest.param({"running": True, "shmem": 0, "anon": POOL}, GIB, State.OK, id="holds it as anonymous memory"),
        pytest.param({"running": False, "limit": POOL - 1}, POOL * 9, State.CRITICAL, id="above its own limit"),
        pytest.param({"running": False, "pool": 0}, 0, State.OK, id="no pool"),
        pytest.param({"running": False, "limit": NOT_READ}, POOL * 9, State.OK, id="no limit known"),
        pytest.param({"running": False}, NOT_READ, State.UNKNOWN, id="available memory not read"),
    ],
)
def test_a_pool_fits(pod: dict[str, Any], available: Any, state: State) -> None:
    edits = {**{f"pods.0.{name}": value for name, value in pod.items()}, "memory.available": available}
    assert finding(once(changed(healthy(), edits)), "host.mem.fit").state is state


def test_pods_that_start_together_share_what_is_available() -> None:
    reading = healthy()
    assert isinstance(reading.pods, tuple)
    pods = tuple(replace(reading.pods[0], name=f"glm-{index}", uid=str(index), running=False) for index in range(2))
    findings = once(changed(reading, {"pods": pods, "memory.available": POOL * 3 // 2}))
    found = finding(findings, "host.mem.fit", "pod-chat/glm-0")
    assert found.state is State.CRITICAL
    assert "with 400.00 GiB for other pods" in found.message


def test_a_pool_is_called_unpinned_only_after_ten_minutes() -> None:
    watch = Watch()
    unpinned = {"memory.pinned_pages": 0}
    early = finding(watch.watch(unpinned, polls=20).findings, "host.pool.unpinned")
    assert (early.state, early.reason) == (State.UNKNOWN, "BeingWatched")
    assert finding(watch.watch(unpinned, polls=25).findings, "host.pool.unpinned").state is State.CRITICAL


def test_small_shared_memory_is_no_pool() -> None:
    small = {"pods.0.shmem": 8 * GIB - 1, "memory.pinned_pages": 0}
    assert finding(Watch().watch(small, polls=45).findings, "host.pool.unpinned").state is State.OK


def test_a_file_in_use_beside_a_left_one_is_not_counted() -> None:
    files = (ShmFile("vllm_offload_new", POOL, opened=True), ShmFile("vllm_offload_old", 3 * GIB, opened=False))
    found = finding(Watch().watch({"pods.0.files": files}, polls=45).findings, "host.pool.orphan")
    assert (found.state, found.value) == (State.WARN, str(3 * GIB))
    assert "vllm_offload_old" in found.message
    assert "vllm_offload_new" not in found.message


def test_pins_with_a_process_on_a_gpu_are_no_leak() -> None:
    busy = {"pods": (), "nvml.gpus.0.processes": 0, "nvml.gpus.1.processes": 1}
    assert finding(Watch().watch(busy, polls=5).findings, "host.pool.leak").state is State.OK


def test_an_oom_kill_is_told_for_an_hour_and_names_the_pool() -> None:
    watch = Watch()
    watch.watch(polls=2)
    killed = {"pods.0.oom_kills": 1}
    first = finding(watch.watch(killed).findings, "host.memcg")
    assert first.state is State.CRITICAL
    assert "ended 1 processes" in first.message
    assert "holds 400.00 GiB of shared memory" in first.message
    last = finding(watch.watch(killed, polls=239).findings, "host.memcg")
    assert last.state is State.CRITICAL
    assert "ended 1 processes" in last.message
    assert finding(watch.watch(killed).findings, "host.memcg").state is State.OK


def test_a_new_pod_of_the_same_name_does_not_inherit_a_finding() -> None:
    watch = Watch()
    watch.watch(polls=2)
    watch.watch({"pods.0.oom_kills": 1})
    fresh = finding(watch.watch({"pods.0.uid": "another", "pods.0.oom_kills": 0}, polls=2).findings, "host.memcg")
    assert fresh.state is State.OK


def test_pressure_of_a_pod_is_its_own_finding() -> None:
    findings = once(changed(healthy(), {"pods.0.pressure": Pressure(40.0, 20.0)}))
    assert finding(findings, "host.mem.psi", "pod-chat/glm-0").state is State.CRITICAL
    assert finding(findings, "host.mem.psi", "host").state is State.OK


def test_a_host_without_swap_does_not_swap() -> None:
    found = finding(once(changed(healthy(), {"memory.swap_total": 0})), "host.swap")
    assert (found.state, found.message) == (State.OK, "swap is off")


# --- RDMA ------------------------------------------------------------------------------------------------------------


def rdma(*, declared: bool = True, loaded: Any = False, registered: Any = False, dma_buf: Any = True) -> Rdma:
    return Rdma(declared, loaded, registered, dma_buf, ())


@pytest.mark.parametrize(
    ("path", "open_module", "state", "words"),
    [
        pytest.param(
            rdma(declared=False),
            False,
            State.UNSUPPORTED,
            "is not needed: no engine on this node declares an RDMA connector",
            id="no connector",
        ),
        pytest.param(rdma(), True, State.OK, "nvidia-peermem is not needed", id="open module and DMA-BUF"),
        pytest.param(rdma(loaded=True, registered=True), False, State.OK, "registered", id="closed module, registered"),
        pytest.param(
            rdma(),
            False,
            State.WARN,
            "the closed one and nvidia-peermem is not registered; run modprobe nvidia-peermem",
            id="closed module, not loaded",
        ),
        pytest.param(
            rdma(loaded=True), False, State.WARN, "is loaded but not registered", id="loaded is not registered"
        ),
        pytest.param(rdma(dma_buf=False), True, State.WARN, "has no DMA-BUF", id="open module, old kernel"),
        pytest.param(rdma(dma_buf=False, registered=True), True, State.OK, "registered", id="old kernel, registered"),
        pytest.param(rdma(dma_buf=NOT_READ), True, State.UNKNOWN, "", id="DMA-BUF not known"),
        pytest.param(rdma(), NOT_READ, State.UNKNOWN, "", id="module not known"),
        pytest.param(rdma(registered=NOT_READ), False, State.UNKNOWN, "", id="registration not known"),
        pytest.param(rdma(registered=NOT_READ), True, State.OK, "", id="nobody needs to know the registration"),
        pytest.param(rdma(registered=True), NOT_READ, State.OK, "", id="nobody needs to know the module"),
    ],
)
def test_peermem_is_needed_or_not_and_says_why(path: Rdma, open_module: Any, state: State, words: str) -> None:
    found = finding(once(changed(healthy(), {"rdma": path, "host.open_module": open_module})), "rdma.path")
    assert found.state is state
    assert words in found.message
    if path.declared is False:
        assert found.reason == "NotNeeded"


# --- settings and versions -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("edits", "state"),
    [
        pytest.param({"host.sysctls.vm.swappiness": "60"}, State.WARN, id="60 with swap"),
        pytest.param({"host.sysctls.vm.swappiness": "60", "memory.swap_total": 0}, State.OK, id="60 without swap"),
        pytest.param({"host.sysctls.vm.zone_reclaim_mode": "1"}, State.WARN, id="zone reclaim"),
        pytest.param({"host.sysctls.vm.overcommit_memory": "2"}, State.WARN, id="strict overcommit"),
        pytest.param({"host.sysctls.kernel.numa_balancing": "1"}, State.OK, id="NUMA balancing is told only"),
        pytest.param({"host.sysctls": {}}, State.OK, id="none of them there"),
    ],
)
def test_sysctls(edits: dict[str, Any], state: State) -> None:
    found = finding(once(changed(healthy(), edits)), "host.sysctl")
    assert found.state is state
    if "host.sysctls.kernel.numa_balancing" in edits:
        assert "measure before you change it" in found.message


@pytest.mark.parametrize(
    ("cpufreq", "state"),
    [
        pytest.param(Cpufreq("acpi-cpufreq", ("performance",)), State.OK, id="governor performance"),
        pytest.param(Cpufreq("acpi-cpufreq", ("performance", "schedutil")), State.WARN, id="not on every CPU"),
        pytest.param(
            Cpufreq("intel_pstate", ("powersave",), preferences=("performance",)),
            State.OK,
            id="intel_pstate: the preference counts",
        ),
        pytest.param(
            Cpufreq("intel_pstate", ("powersave",), preferences=("balance_power",)),
            State.WARN,
            id="intel_pstate: another preference",
        ),
        pytest.param(
            Cpufreq("intel_pstate", ("performance",), preferences=("balance_power",)),
            State.OK,
            id="intel_pstate: the governor overrides it",
        ),
        pytest.param(Cpufreq("intel_pstate", ("powersave",)), State.WARN, id="preference not read"),
        pytest.param(Cpufreq("acpi-cpufreq", ()), State.UNSUPPORTED, id="no CPU has one"),
    ],
)
def test_cpu_frequencies(cpufreq: Cpufreq, state: State) -> None:
    assert finding(once(changed(healthy(), {"host.cpufreq": cpufreq})), "host.cpufreq").state is state


@pytest.mark.parametrize(
    ("driver", "cuda", "state"),
    [
        pytest.param("580.159.04", "13.0", State.OK, id="580"),
        pytest.param("535.129.03", "12.3", State.WARN, id="the floor itself"),
        pytest.param("535.129.02", "12.3", State.CRITICAL, id="below the floor"),
        pytest.param("545.10", "12.2", State.CRITICAL, id="old CUDA"),
        pytest.param("9.1", "", State.CRITICAL, id="compared as numbers"),
        pytest.param("1000.1", "", State.OK, id="and not as text"),
    ],
)
def test_versions(driver: str, cuda: str, state: State) -> None:
    assert finding(once(changed(healthy(), {"nvml.driver": driver, "nvml.cuda": cuda})), "driver.floor").state is state


@pytest.mark.parametrize(
    ("edits", "words"),
    [
        pytest.param({"host.kernel": "6.10.14"}, "", id="6.10"),
        pytest.param({"host.kernel": "6.11.0-9-generic"}, "6.11.0-9-generic loses memory", id="6.11"),
        pytest.param({"host.kernel": "6.13.7"}, "6.13.7 loses memory", id="6.13"),
        pytest.param({"host.kernel": "6.14.0"}, "", id="6.14"),
        pytest.param({"pods.0.pool": 512 * GIB}, "declares a pool of 512.00 GiB", id="512 GiB with 580"),
        pytest.param({"pods.0.pool": 512 * GIB, "nvml.driver": "570.1"}, "", id="512 GiB with 570"),
    ],
)
def test_known_faults(edits: dict[str, Any], words: str) -> None:
    found = finding(once(changed(healthy(), edits)), "driver.rules")
    assert found.state is (State.WARN if words else State.OK)
    assert words in found.message


# --- the watching itself ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gib_per_poll", "counter", "opens"),
    [
        pytest.param(16, "memory.pinned_pages", True, id="pins rise by more than 1 GiB/s"),
        pytest.param(15, "memory.pinned_pages", False, id="exactly 1 GiB/s"),
        pytest.param(16, "memory.shmem", True, id="shared memory rises"),
        pytest.param(-50, "memory.shmem", False, id="a fall is no window"),
    ],
)
def test_the_pin_window(gib_per_poll: int, counter: str, opens: bool) -> None:
    page = 4096 if counter.endswith("pages") else 1
    watch = Watch()
    watch.watch(polls=5)
    judgement = watch.watch({counter: (POOL + gib_per_poll * GIB) // page})
    assert judgement.pin_window is opens
    found = finding(judgement.findings, "pin.window")
    assert found.state is State.OK
    assert ("an engine fills its pool" in found.message) is opens


def pins(poll: int) -> int:
    return (POOL + poll * 40 * GIB) // 4096


def test_while_an_engine_pins_slow_nvml_and_a_stale_exporter_are_no_faults() -> None:
    stalled = {"nvml.seconds": 9.0, "exporter.gpus.0.energy_mj": 5, "exporter.gpus.1.energy_mj": 5}
    findings = Watch().watch({**stalled, "memory.pinned_pages": pins}, polls=40).findings
    for check in ("nvml.latency", "exporter.fresh"):
        found = finding(findings, check)
        assert (found.state, found.reason) == (State.UNKNOWN, "PinWindow")
    afterwards = Watch().watch(stalled, polls=40).findings
    assert {finding(afterwards, check).state for check in ("nvml.latency", "exporter.fresh")} == {State.WARN}


def test_a_fault_of_nvml_that_was_proved_before_is_withheld_while_an_engine_pins() -> None:
    watch = Watch()
    assert finding(watch.watch({"nvml.seconds": 9.0}, polls=5).findings, "nvml.latency").state is State.WARN
    during = finding(watch.watch({"nvml.seconds": 9.0, "memory.pinned_pages": pins}, polls=2).findings, "nvml.latency")
    assert (during.state, during.reason) == (State.UNKNOWN, "PinWindow")


def test_one_slow_poll_of_many_is_no_fault() -> None:
    watch = Watch()
    watch.watch(polls=25)
    found = finding(watch.watch({"nvml.seconds": 30.0}).findings, "nvml.latency")
    assert (found.state, found.value) == (State.OK, "0.02")


def test_an_exporter_is_stale_after_two_minutes_without_energy() -> None:
    watch = Watch()
    watch.watch(polls=10)
    frozen = {"exporter.gpus.0.energy_mj": 5}
    # eight polls are two minutes after the first frozen one, and it takes two
    states = [finding(watch.watch(frozen).findings, "exporter.fresh").state for _ in range(12)]
    assert states == [State.OK] * 9 + [State.WARN] * 3


def test_an_exporter_of_another_node_is_not_judged() -> None:
    other = (ExporterGpu("GPU-of-another-node", 5),)
    found = finding(Watch().watch({"exporter.gpus": other}, polls=20).findings, "exporter.fresh")
    assert found.state is State.UNKNOWN
    assert "not this node's" in found.message
