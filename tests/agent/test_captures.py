"""The captures say what their README says, and survive the way through JSON."""

import json
from dataclasses import replace
from datetime import UTC, datetime

import captures
import pytest

from hisparse_agent.readers.wire import FormatError, of_json, to_json
from hisparse_agent.readings import (
    UNREAD,
    Absence,
    Exporter,
    ExporterGpu,
    Fabric,
    GpuReading,
    Host,
    Missing,
    NodeReading,
    Nvml,
)


def gpus_of(name: str) -> tuple[GpuReading, ...]:
    nvml = captures.reading_of(name).nvml
    assert isinstance(nvml, Nvml)
    return nvml.gpus


def active_of(gpu: GpuReading) -> tuple[int, int] | Absence:
    """(active, all) links."""
    if isinstance(gpu.links, Missing):
        return gpu.links.absence
    return sum(link.state == 1 for link in gpu.links), len(gpu.links)


@pytest.mark.parametrize(
    ("name", "links"),
    [
        ("a100_all_inactive", [(0, 12)]),
        ("a100_nvlink", [(12, 12)] * 8),
        ("b200_all_inactive", [(0, 18)]),
        ("bmc_power_cap", [Absence.UNKNOWN]),
        ("h100_dcgmi", [(18, 18)] * 2),
        ("h100_nvlink", [(18, 18)]),
        ("h200_idle", [(18, 18)]),
        ("h200_load", [(18, 18)]),
        ("h200_mig", [Absence.UNSUPPORTED]),
        ("h200_vm_nvlink_hidden", [Absence.UNSUPPORTED]),
        ("h200_x2_idle", [(18, 18)] * 2),
        ("h200_x2_load", [(18, 18)] * 2),
        ("h200_x2_traffic", [(18, 18)] * 2),
        ("sim_gpu_lost", [Absence.UNKNOWN] + [(18, 18)] * 7),
        ("sim_healthy", [(18, 18)] * 8),
        ("sim_links_9_of_18", [(9, 18)] + [(18, 18)] * 7),
        ("sim_links_all_inactive", [(0, 18)] + [(18, 18)] * 7),
        ("v100_partly_inactive", [(4, 6)]),
    ],
)
def test_links(name: str, links: list[object]) -> None:
    assert [active_of(gpu) for gpu in gpus_of(name)] == links


def test_every_active_link_of_a_hopper_has_the_same_speed() -> None:
    for name in ("h100_nvlink", "h200_idle", "h200_x2_load", "sim_healthy"):
        for gpu in gpus_of(name):
            assert isinstance(gpu.links, tuple)
            assert {link.bytes_per_second for link in gpu.links} == {26_562_000_000}


def test_two_real_cards_under_load() -> None:
    busy, idle = gpus_of("h200_x2_load")
    # SW power cap, which is normal at 690 W of 700
    assert (busy.throttle.reasons, idle.throttle.reasons) == (0x4, 0)
    assert (busy.throttle.sw_power_ns, busy.throttle.hw_thermal_ns) == (7868737184, 0)
    assert (busy.heat.gpu, busy.heat.margin, busy.heat.hbm) == (59, 29, 47)
    assert (busy.power.draw, busy.power.limit, busy.power.enforced) == (680_993, 700_000, 700_000)
    assert busy.peers == {1: 0}
    assert busy.fabric == Fabric(3, 0)
    assert busy.device_id == 0x2335


def test_the_card_whose_nvlink_is_hidden() -> None:
    (gpu,) = gpus_of("h200_vm_nvlink_hidden")
    assert isinstance(gpu.fabric, Missing)
    assert gpu.fabric.absence is Absence.UNSUPPORTED
    assert (gpu.heat.gpu_limit, gpu.heat.slowdown, gpu.heat.hbm_limit) == (87, 89, 95)
    assert gpu.pcie.replays == 2
    assert gpu.peers == {}


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("sim_ecc_uncorrectable", "faults.remap_failed", True),
        ("sim_fabric_degraded_bw", "fabric", Fabric(3, 0, 0x1A9, 3)),
        ("sim_fabric_in_progress", "fabric", Fabric(2, 0, 0x1AA, 1)),
        ("sim_fabric_no_partition", "fabric", Fabric(3, 0, 0x4AA, 2)),
        ("sim_gpu_lost", "lost", True),
        ("sim_healthy", "fabric", Fabric(3, 0, 0x1AA, 1)),
        ("sim_links_all_inactive", "peers", dict.fromkeys(range(1, 8), 5)),
        ("sim_links_9_of_18", "peers", dict.fromkeys(range(1, 8), 0)),
        ("sim_pcie_gen3_x8", "pcie.generation", 3),
        ("sim_pcie_gen3_x8", "pcie.width", 8),
        ("sim_pcie_gen3_x8", "pcie.most_width", 16),
        ("sim_power_capped_500w", "power.enforced", 500_000),
        ("sim_power_capped_500w", "power.default", 700_000),
        ("sim_throttle_hw_thermal", "throttle.hw_thermal_ns", 183602),
        ("sim_throttle_hw_thermal", "heat.margin", -1),
        ("sim_throttle_power_brake", "throttle.power_brake_ns", 182570),
        ("sim_throttle_power_brake", "throttle.reasons", 0x88),
        ("bmc_power_cap", "power.enforced", 480_000),
        ("bmc_power_cap", "power.requested", 700_000),
        ("h200_idle", "heat.margin", 56),
        ("h200_idle", "throttle.reasons", 0x1),
        ("h200_load", "power.draw", 611_070),
        ("h200_load", "heat.slowdown", 89),
        ("h200_mig", "mig", True),
    ],
)
def test_what_a_capture_is_about(name: str, field: str, value: object) -> None:
    found: object = gpus_of(name)[0]
    for part in field.split("."):
        found = getattr(found, part)
    assert found == value


def test_link_errors_are_those_of_one_link() -> None:
    gpu = gpus_of("sim_nvlink_errors")[0]
    assert isinstance(gpu.links, tuple)
    assert {link.index: link.replays for link in gpu.links if link.replays} == {3: 119963}


def test_the_other_gpus_of_a_simulated_node_are_healthy() -> None:
    healthy = gpus_of("sim_healthy")
    for name in captures.RAW:
        if name.startswith("sim_"):
            assert [replace(gpu, peers={}) for gpu in gpus_of(name)[1:]] == [
                replace(gpu, peers={}) for gpu in healthy[1:]
            ]
    assert len({gpu.uuid for gpu in healthy} | {gpu.pci for gpu in healthy}) == 16


def test_a_reading_is_changed_where_it_is_asked_to() -> None:
    reading = captures.reading_of("h200_x2_idle", monotonic=30.0)
    assert (reading.monotonic, reading.expected_gpus, reading.at) == (30.0, 2, captures.AT)
    hot = captures.with_gpu(reading, 1, lost=True)
    assert isinstance(hot.nvml, Nvml)
    assert [gpu.lost for gpu in hot.nvml.gpus] == [False, True]


# --- readings as JSON ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", captures.NAMES)
def test_a_reading_comes_back_from_json_as_it_was(name: str) -> None:
    reading = captures.reading_of(name)
    assert of_json(NodeReading, json.loads(json.dumps(to_json(reading)))) == reading


def test_every_kind_of_value_comes_back() -> None:
    reading = NodeReading(
        at=datetime(2026, 11, 29, 12, 0, 1, 500, tzinfo=UTC),
        monotonic=1.25,
        nvml=Missing(Absence.UNSUPPORTED, "no driver"),
        host=Host(modules=frozenset({"nvidia", "ib_core"}), sysctls={"vm.swappiness": "60"}, open_module=True),
        exporter=Exporter("pod", 0.5, (ExporterGpu("GPU-1", energy_mj=None, temperature=31.0),)),
        labels={"a": "b"},
    )
    assert of_json(NodeReading, json.loads(json.dumps(to_json(reading)))) == reading


def test_a_whole_number_of_seconds_is_a_number_of_seconds() -> None:
    assert of_json(Nvml, {"driver": "", "cuda": "", "gpus": [], "seconds": 1}) == Nvml("", "", (), 1.0)


def test_what_a_recording_lacks_was_not_read() -> None:
    found = of_json(Nvml, {"driver": "1", "cuda": "2", "gpus": [{"index": 0}]})
    assert found.gpus == (GpuReading(index=0),)
    assert found.gpus[0].memory == UNREAD


@pytest.mark.parametrize(
    ("data", "where"),
    [
        (None, r"\$: an object"),
        ([], r"\$: an object"),
        ({"driver": "1", "cuda": "2"}, "gpus is missing"),
        ({"driver": 1, "cuda": "2", "gpus": []}, r"\$\.driver: str expected, not int"),
        ({"driver": "1", "cuda": "2", "gpus": {}}, r"\$\.gpus: a list"),
        ({"driver": "1", "cuda": "2", "gpus": [], "more": 1}, "unknown field more"),
        ({"driver": "1", "cuda": "2", "gpus": [{"index": True}]}, r"gpus\[0\]\.index: int expected, not bool"),
        ({"driver": "1", "cuda": "2", "gpus": [{"index": 0, "memory": "much"}]}, r"memory: int expected, not str"),
        ({"driver": "1", "cuda": "2", "gpus": [{"index": 0, "peers": {"x": 0}}]}, "key 'x' is not int"),
        (
            {"driver": "1", "cuda": "2", "gpus": [{"index": 0, "memory": {"absence": "Maybe", "why": ""}}]},
            "Maybe",
        ),
        ({"driver": "1", "cuda": "2", "gpus": [{"index": 0, "memory": {"absence": 3, "why": ""}}]}, "absence"),
        (
            {"driver": "1", "cuda": "2", "gpus": [{"index": {"absence": "Unknown", "why": ""}}]},
            "int expected, not dict",
        ),
    ],
)
def test_what_is_not_a_reading_says_where(data: object, where: str) -> None:
    with pytest.raises(FormatError, match=where):
        of_json(Nvml, data)
