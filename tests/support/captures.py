"""The captures in tests/data/nodes as readings. Written without the agent's own decoding, so that each checks the other.

`reading_of(name)` for every name in NAMES. `scenario_of(name)` for those in RAW: their NVML answers, value by value, as
fake_pynvml plays them. README.md beside the data says what is real, what was made anew and what is simulated.
"""

import copy
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Final

from hisparse_agent.readings import (
    UNREAD,
    Absence,
    Fabric,
    Faults,
    GpuReading,
    Heat,
    Missing,
    NodeReading,
    Number,
    NvLink,
    Nvml,
    Pcie,
    Power,
    Switch,
    Throttle,
)

DATA: Final = Path(__file__).resolve().parents[1] / "data/nodes"
AT: Final = datetime(2026, 11, 29, 12, tzinfo=UTC)
NODE: Final = "node-1"
MIB: Final = 2**20
ADDRESSES: Final = ("1B", "43", "52", "61", "9D", "C3", "D1", "DF")
"""Where the eight GPUs of a simulated node sit: made up."""
LOST: Final = 15
UNSUPPORTED: Final = Missing(Absence.UNSUPPORTED, "the capture says that there is none")
UNKNOWN: Final = Missing(Absence.UNKNOWN, "the capture has an error for it")

RAW: Final = tuple(sorted(path.stem for path in DATA.glob("*.json")))
"""Captures of NVML answers."""
TEXTS: Final[Mapping[str, tuple[str, ...]]] = {
    "a100_all_inactive": ("a100_all_inactive_nvlink_s.txt",),
    "a100_nvlink": ("a100_nvlink_s.txt",),
    "b200_all_inactive": ("b200_all_inactive_nvlink_s.txt",),
    "bmc_power_cap": ("bmc_power_cap_smi_q.txt",),
    "h100_dcgmi": ("h100_dcgmi_nvlink_s.txt",),
    "h100_nvlink": ("h100_nvlink_s.txt",),
    "h200_idle": ("h200_idle_smi_q.txt", "h200_nvlink_s.txt"),
    "h200_load": ("h200_load_smi_q.txt", "h200_nvlink_s.txt"),
    "h200_mig": ("h200_mig_nvlink_s.txt",),
    "v100_partly_inactive": ("v100_partly_inactive_nvlink_s.txt",),
}
"""Captures of command output. They lack much: what is not in the text is unread."""
NAMES: Final = (*RAW, *sorted(TEXTS))

LINKS_OF: Final = {"NVIDIA A100-SXM4-80GB": 12, "NVIDIA B200": 18}
"""nvidia-smi does not say how many links there are when all are inactive; NVML does."""
PORT_STATES: Final = {"U": 1, "D": 0}
REASONS: Final = {
    "Idle": 0x1,
    "Applications Clocks Setting": 0x2,
    "SW Power Cap": 0x4,
    "HW Slowdown": 0x8,
    "Sync Boost": 0x10,
    "SW Thermal Slowdown": 0x20,
    "HW Slowdown/HW Thermal Slowdown": 0x40,
    "HW Slowdown/HW Power Brake Slowdown": 0x80,
    "Display Clock Setting": 0x100,
}


def reading_of(name: str, **changes: Any) -> NodeReading:
    """What the agent would have read, with other fields of NodeReading changed."""
    nvml = _nvml_of(name)
    reading = NodeReading(at=AT, monotonic=0.0, node=NODE, nvml=nvml, expected_gpus=len(nvml.gpus))
    return replace(reading, **changes)


def with_gpu(reading: NodeReading, index: int, **changes: Any) -> NodeReading:
    """The same reading with fields of one GPU changed."""
    assert isinstance(reading.nvml, Nvml)
    gpus = tuple(replace(gpu, **changes) if gpu.index == index else gpu for gpu in reading.nvml.gpus)
    return replace(reading, nvml=replace(reading.nvml, gpus=gpus))


def scenario_of(name: str) -> dict[str, Any]:
    """NVML's answers of a capture in RAW. The GPU is the caller's to change."""
    raw = json.loads((DATA / f"{name}.json").read_text())
    if name.startswith("sim_"):
        return _node_of_eight(raw)
    return dict(raw)


@cache
def _nvml_of(name: str) -> Nvml:
    if name in RAW:
        return nvml_of(scenario_of(name))
    gpus: dict[int, dict[str, Any]] = {}
    driver, cuda = "", ""
    for file in TEXTS[name]:
        text = (DATA / file).read_text()
        if file.endswith("_smi_q.txt"):
            tree = _tree(text)
            driver, cuda = tree.get("Driver Version", ""), tree.get("CUDA Version", "")
            for index, gpu in enumerate(value for key, value in tree.items() if key.startswith("GPU ")):
                gpus.setdefault(index, {}).update(_smi_gpu(gpu))
        else:
            for index, found in (_dcgmi_links(text) if "gpuId" in text else _smi_links(text)).items():
                gpus.setdefault(index, {}).update(found)
    return Nvml(driver, cuda, tuple(GpuReading(index=index, **fields) for index, fields in sorted(gpus.items())))


# --- raw answers -----------------------------------------------------------------------------------------------------


def nvml_of(scenario: Mapping[str, Any]) -> Nvml:
    """What an agent must make of these answers."""
    cuda = scenario["cuda"]
    gpus = tuple(_gpu_of(index, gpu) for index, gpu in enumerate(scenario["gpus"]))
    return Nvml(driver=scenario["driver"], cuda=f"{cuda // 1000}.{cuda % 1000 // 10}", gpus=gpus, xids=())


def _node_of_eight(raw: dict[str, Any]) -> dict[str, Any]:
    """The simulation wrote down GPU 0 of eight; the others are as in the healthy one."""
    healthy = json.loads((DATA / "sim_healthy.json").read_text())
    gpus = [copy.deepcopy(healthy["gpus"][0]) for _ in range(8)]
    _merge(gpus[0], raw.get("gpu0", {}))
    for index, gpu in enumerate(gpus):
        gpu["uuid"] = f"GPU-00000000-0000-0000-0000-{index:012d}"
        gpu["bus"] = f"00000000:{ADDRESSES[index]}:00.0"
        if index:
            gpu["peers"][0] = gpus[0]["peers"][index - 1]
    return {"driver": healthy["driver"], "cuda": healthy["cuda"], "gpus": gpus}


def _merge(into: dict[str, Any], changes: Mapping[str, Any]) -> None:
    for key, value in changes.items():
        if isinstance(value, dict) and "ret" not in value:
            _merge(into[key], value)
        else:
            into[key] = value


def _value(answer: Any) -> Any:
    """Of a call: the value itself, {"ret": code}, or None where the capture lacks it."""
    if answer is None:
        return UNSUPPORTED
    if isinstance(answer, dict) and "ret" in answer:
        return UNSUPPORTED if answer["ret"] in (2, 3) else UNKNOWN
    return answer


def _field(answer: list[Any] | None) -> Number:
    """Of a field: [nvmlReturn, type, value]."""
    ret, kind, value = answer or (3, 0, 0)
    if ret:
        return UNSUPPORTED if ret in (2, 3) else UNKNOWN
    return int(value) if kind else UNKNOWN


def _flag(value: Number) -> Switch:
    return value if isinstance(value, Missing) else value != 0


def _gpu_of(index: int, gpu: Mapping[str, Any]) -> GpuReading:
    calls, fields = gpu["calls"], {int(key): _field(value) for key, value in gpu["fields"].items()}
    bus = gpu["bus"].lower()
    found = GpuReading(index=index, uuid=gpu["uuid"], product=gpu["name"], pci=bus[4:])
    codes = [
        answer["ret"] for answer in [*calls.values(), gpu["fabric"]] if isinstance(answer, dict) and "ret" in answer
    ]
    if LOST in codes or LOST in [answer[0] for answer in gpu["fields"].values()]:
        return replace(found, lost=True)

    def call(name: str) -> Any:
        return _value(calls.get(name))

    def field(number: int) -> Number:
        return fields.get(number, UNSUPPORTED)

    thresholds, memory, mig = calls.get("TemperatureThreshold", {}), calls.get("MemoryInfo", {}), call("MigMode")
    in_mig = isinstance(mig, list) and bool(mig[0])
    return replace(
        found,
        device_id=int(gpu["device"], 16) >> 16,
        memory=_value(memory.get("total")),
        memory_used=_value(memory.get("used")),
        utilisation_percent=call("UtilizationRates"),
        mig=in_mig if isinstance(mig, list) else mig,
        links=UNSUPPORTED if in_mig else _links_of(gpu["links"]),
        peers={other + (other >= index): state for other, state in enumerate(gpu["peers"]) if state != LOST},
        fabric=_fabric_of(gpu["fabric"]),
        heat=Heat(
            gpu=call("Temperature"),
            margin=call("MarginTemperature"),
            hbm=field(82),
            gpu_limit=_value(thresholds.get("3")),
            slowdown=_value(thresholds.get("1")),
            hbm_limit=_value(thresholds.get("2")),
        ),
        throttle=_throttle_of(fields, call("CurrentClocksEventReasons")),
        power=Power(
            draw=field(186),
            limit=call("PowerManagementLimit"),
            default=field(189),
            least=field(187),
            most=field(188),
            enforced=field(190),
            requested=field(192),
            energy_mj=field(83),
            persistent=_flag(call("PersistenceMode")),
        ),
        pcie=Pcie(
            generation=call("CurrPcieLinkGeneration"),
            most_generation=call("MaxPcieLinkGeneration"),
            width=call("CurrPcieLinkWidth"),
            most_width=call("MaxPcieLinkWidth"),
            replays=field(94),
            correctable=field(173),
            nonfatal=field(179),
            fatal=field(180),
        ),
        faults=Faults(
            recovery_action=field(230),
            remap_pending=_flag(field(144)),
            remap_failed=_flag(field(145)),
            double_bit=field(4),
        ),
        processes=call("ComputeRunningProcesses"),
    )


def _links_of(runs: list[Any]) -> tuple[NvLink, ...] | Missing:
    ports = [port for count, port in runs for _ in range(count)]
    if not ports:
        return UNSUPPORTED
    links = []
    for index, port in enumerate(ports):
        speed = _field(port.get("164"))
        links.append(
            NvLink(
                index=index,
                state=_field(port.get("165")),
                bytes_per_second=speed if isinstance(speed, Missing) else speed * 1_000_000,
                replays=_field(port.get("161")),
                recoveries=_field(port.get("162")),
                crc_errors=_field(port.get("163")),
            )
        )
    return tuple(links)


def _fabric_of(answer: Mapping[str, int]) -> Fabric | Missing:
    if "ret" in answer:
        return _value(answer)  # type: ignore[no-any-return]
    if not answer["state"]:
        return UNSUPPORTED
    return Fabric(answer["state"], answer["status"], answer["healthMask"] or None, answer["healthSummary"] or None)


def _throttle_of(fields: Mapping[int, Number], reasons: Number) -> Throttle:
    def whole(numbers: tuple[int, ...]) -> bool:
        return all(isinstance(fields.get(number), int) for number in numbers)

    new, old = (269, 270, 271), (251, 252, 253)
    power = fields.get(74, UNSUPPORTED)
    if whole(new) == whole(old):
        return Throttle(power, fields.get(75, UNSUPPORTED), UNSUPPORTED, UNSUPPORTED, reasons)
    first, second, third = (fields[number] for number in (new if whole(new) else old))
    return Throttle(power, first, second, third, reasons)


# --- command output --------------------------------------------------------------------------------------------------


def _tree(text: str) -> dict[str, Any]:
    """nvidia-smi -q: a line with a colon is a value, one without opens a section; depth is four spaces."""
    root: dict[str, Any] = {}
    path = [root]
    for line in text.splitlines():
        if not line.strip() or line.startswith("="):
            continue
        depth = (len(line) - len(line.lstrip())) // 4
        key, colon, value = line.strip().partition(" : ")
        del path[depth + 1 :]
        if colon:
            path[-1].setdefault(key.strip(), value.strip())
            # "HW Slowdown" has a value and two entries below it
            path.append(path[-1].setdefault(f"{key.strip()}/", {}))
        else:
            path.append(path[-1].setdefault(key.strip(), {}))
    return root


def _smi_gpu(gpu: Mapping[str, Any]) -> dict[str, Any]:
    def number(*keys: str, scale: int = 1) -> Number:
        value: Any = gpu
        for key in keys:
            value = value.get(key, {})
        if not value:
            return UNREAD
        if value == "N/A":
            return UNSUPPORTED
        return round(float(re.sub(r"( .*|x)$", "", value)) * scale)

    power, reasons = gpu.get("GPU Power Readings", {}), gpu.get("Clocks Event Reasons")
    found: dict[str, Any] = {}
    if power:
        found["power"] = Power(
            draw=number("GPU Power Readings", "Instantaneous Power Draw", scale=1000),
            limit=number("GPU Power Readings", "Current Power Limit", scale=1000),
            default=number("GPU Power Readings", "Default Power Limit", scale=1000),
            least=number("GPU Power Readings", "Min Power Limit", scale=1000),
            most=number("GPU Power Readings", "Max Power Limit", scale=1000),
            enforced=number("GPU Power Readings", "Current Power Limit", scale=1000),
            requested=number("GPU Power Readings", "Requested Power Limit", scale=1000),
            persistent=gpu["Persistence Mode"] == "Enabled" if "Persistence Mode" in gpu else UNREAD,
        )
    if reasons is None:
        return found
    sections = {**reasons, **{f"HW Slowdown/{key}": value for key, value in reasons["HW Slowdown/"].items()}}
    temperature, counters = gpu["Temperature"], "Clocks Event Reasons Counters"
    # T.Limit counts down to the limit of the GPU, the offsets are below it; of HBM only the offset is told
    limit = int(temperature["GPU Current Temp"][:-2]) + int(temperature["GPU T.Limit Temp"][:-2])
    states = {"Completed": 3, "In Progress": 2, "Not Started": 1}
    return found | {
        "uuid": gpu["GPU UUID"],
        "product": gpu["Product Name"],
        "pci": gpu["PCI"]["Bus Id"].lower()[4:],
        "device_id": int(gpu["PCI"]["Device Id"], 16) >> 16,
        "memory": number("FB Memory Usage", "Total", scale=MIB),
        "memory_used": number("FB Memory Usage", "Used", scale=MIB),
        "utilisation_percent": number("Utilization", "GPU"),
        "mig": gpu["MIG Mode"]["Current"] == "Enabled",
        "peers": {},
        "fabric": Fabric(states[gpu["Fabric"]["State"]], 0),
        "heat": Heat(
            gpu=number("Temperature", "GPU Current Temp"),
            margin=number("Temperature", "GPU T.Limit Temp"),
            hbm=number("Temperature", "Memory Current Temp"),
            gpu_limit=limit,
            slowdown=limit - int(temperature["GPU Slowdown T.Limit Temp"][:-2]),
        ),
        "throttle": Throttle(
            sw_power_ns=number(counters, "SW Power Capping", scale=1000),
            sw_thermal_ns=number(counters, "SW Thermal Slowdown", scale=1000),
            hw_thermal_ns=number(counters, "HW Thermal Slowdown", scale=1000),
            power_brake_ns=number(counters, "HW Power Braking", scale=1000),
            reasons=sum(bit for key, bit in REASONS.items() if sections[key] == "Active"),
        ),
        "pcie": Pcie(
            generation=number("PCI", "GPU Link Info", "PCIe Generation", "Current"),
            most_generation=number("PCI", "GPU Link Info", "PCIe Generation", "Max"),
            width=number("PCI", "GPU Link Info", "Link Width", "Current"),
            most_width=number("PCI", "GPU Link Info", "Link Width", "Max"),
            replays=number("PCI", "Replays Since Reset"),
        ),
        "faults": Faults(
            recovery_action={"None": 0}[gpu["GPU Recovery Action"]],
            remap_pending=gpu["Remapped Rows"]["Pending"] == "Yes",
            remap_failed=gpu["Remapped Rows"]["Remapping Failure Occurred"] == "Yes",
            double_bit=number("ECC Errors", "Volatile", "DRAM Uncorrectable"),
        ),
        "processes": 0 if gpu["Processes"] == "None" else UNREAD,
    }


def _smi_links(text: str) -> dict[int, dict[str, Any]]:
    """nvidia-smi nvlink -s, in the four shapes that it takes."""
    gpus: dict[int, dict[str, Any]] = {}
    for block in re.split(r"(?m)^(?=GPU )", text)[1:]:
        head = re.match(r"GPU (\d+): (.*) \(UUID: (.*)\)", block)
        assert head
        found: dict[str, Any] = {"product": head[2], "uuid": head[3]}
        ports = re.findall(r"Link \d+: (?:([\d.]+) GB/s|<inactive>)", block)
        if "MIG mode" in block:
            found |= {"mig": True, "links": UNSUPPORTED}
        elif "all links are inactive" in block.lower():
            found["links"] = tuple(_port(index, "") for index in range(LINKS_OF[head[2]]))
        else:
            found["links"] = tuple(_port(index, speed) for index, speed in enumerate(ports))
        gpus[int(head[1])] = found
    return gpus


def _port(index: int, speed: str) -> NvLink:
    if not speed:
        return NvLink(index, state=0, bytes_per_second=UNSUPPORTED)
    return NvLink(index, state=1, bytes_per_second=round(float(speed) * 1000) * 1_000_000)


def _dcgmi_links(text: str) -> dict[int, dict[str, Any]]:
    """dcgmi nvlink -s: a letter for each link, and no speed."""
    return {
        int(number): {
            "links": tuple(NvLink(index, state=PORT_STATES[key]) for index, key in enumerate(letters.split()))
        }
        for number, letters in re.findall(r"gpuId (\d+):\n +([UDX_ ]+)\n", text)
    }
