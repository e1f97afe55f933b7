"""What Prometheus reads: figures that others keep, and of a reading only what was read."""

from __future__ import annotations

from pathlib import Path

import pytest
from node_readings import NOT_READ, NOT_THERE, Watch, changed, healthy

from hisparse.nodes.findings import State
from hisparse_agent.cluster import View
from hisparse_agent.machine import Machine, Places
from hisparse_agent.metrics import NUMBERS, Metrics, Snapshot
from hisparse_agent.readings import NodeReading


def page(metrics: Metrics) -> dict[str, float]:
    lines = [line.rpartition(" ") for line in metrics.text().decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}


def page_of(reading: NodeReading) -> dict[str, float]:
    metrics = Metrics()
    metrics.snapshot = Snapshot(reading)
    return page(metrics)


def test_a_counter_that_somebody_else_keeps_is_read_at_each_scrape() -> None:
    kept: list[float | None] = [None]
    metrics = Metrics()
    metrics.counter("hisparse_node_things", "Things.", lambda: kept[0])
    assert "hisparse_node_things_total" not in page(metrics)
    for count in (3, 5):
        kept[0] = count
        assert page(metrics)["hisparse_node_things_total"] == count
    assert "# TYPE hisparse_node_things_total counter" in metrics.text().decode()


def test_a_gauge_that_is_not_known_has_no_sample() -> None:
    kept: list[float | None] = [7]
    metrics = Metrics()
    metrics.gauge("hisparse_node_level", "A level.", lambda: kept[0])
    assert page(metrics)["hisparse_node_level"] == 7
    kept[0] = None
    assert "hisparse_node_level" not in page(metrics)


async def test_records_of_the_kernel_log_that_were_lost_are_told(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.write_text("6,5,1000,-;x\n6,6,1001,-;x\n6,10,1002,-;x\n")
    machine = Machine("node-1", lambda: View(pods=()), places=Places(root=tmp_path, kernel_log=log))
    try:
        assert machine.lost_log_records == 0
        await machine.read()
        assert machine.lost_log_records == 3
    finally:
        await machine.close()


def test_a_node_that_somebody_has_to_put_back_is_told() -> None:
    metrics = Metrics()
    for stuck in (False, True):
        metrics.snapshot = Snapshot(healthy(0), stuck=stuck)
        assert page(metrics)["hisparse_node_remediation_stuck"] == stuck


@pytest.mark.parametrize("missing", [NOT_READ, NOT_THERE])
def test_what_was_not_read_has_no_sample(missing: object) -> None:
    edits = {"nvml.gpus.0.links": missing, "nvml.gpus.0.heat.margin": missing, "memory.available": missing}
    before, after = page_of(healthy()), page_of(changed(healthy(), edits))
    gone = {name for name in before if name not in after and name.startswith("hisparse_node_")}
    assert gone == {
        'hisparse_node_gpu_nvlink_active{gpu="gpu-0"}',
        'hisparse_node_gpu_nvlink_capacity_bytes_per_second{gpu="gpu-0"}',
        'hisparse_node_gpu_thermal_margin_celsius{gpu="gpu-0"}',
        "hisparse_node_memory_available_bytes",
    }


def test_a_port_without_its_speed_leaves_the_capacity_out() -> None:
    found = page_of(changed(healthy(), {"nvml.gpus.0.links.3.bytes_per_second": NOT_READ}))
    assert found['hisparse_node_gpu_nvlink_active{gpu="gpu-0"}'] == 18
    assert 'hisparse_node_gpu_nvlink_capacity_bytes_per_second{gpu="gpu-0"}' not in found


def test_every_finding_has_its_state_and_its_value() -> None:
    metrics = Metrics()
    findings = Watch().watch({"nvml.gpus.0.heat.margin": 2}, polls=4).findings
    metrics.snapshot = Snapshot(healthy(), findings)
    found = page(metrics)
    states = {name: value for name, value in found.items() if name.startswith("hisparse_node_check_status")}
    assert len(states) == len(findings)
    assert found['hisparse_node_check_status{check="thermal.margin",subject="gpu-0"}'] == NUMBERS[State.CRITICAL] == 2
    assert found['hisparse_node_check_value{check="thermal.margin",subject="gpu-0",unit="celsius"}'] == 2
    assert not [name for name in found if "check_value" in name and "pcie.link" in name], "words have no sample"
