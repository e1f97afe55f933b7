"""What a reading of real GPUs costs the NVML child: CPU by kind of call, and of whole readings as the agent asks them.

`PYTHONPATH=core:node_agent python tests/bench/cost_gpu.py` needs a driver and nvidia-ml-py and takes about a minute. CPU
is user and system time of this process, which is where a call of the driver is counted. It only reads.
"""

from __future__ import annotations

import json
import resource
import statistics
import time
from collections.abc import Callable
from typing import Final

import pynvml  # type: ignore[import-untyped]

from hisparse_agent.readers import nvml_fields as nf
from hisparse_agent.readers.nvml import SLOW_S
from hisparse_agent.readers.nvml_child import Session
from hisparse_agent.readers.wire import to_json

POLL_S: Final = 15
GPUS: Final = 8
ROUNDS: Final = 40
PAUSE_S: Final = 4
PAUSED: Final = 10
_CALLS: Final = (
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetName",
    "nvmlDeviceGetPciInfo",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetUtilizationRates",
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetMarginTemperature",
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetPowerManagementLimit",
    "nvmlDeviceGetPersistenceMode",
    "nvmlDeviceGetCurrPcieLinkGeneration",
    "nvmlDeviceGetMaxPcieLinkGeneration",
    "nvmlDeviceGetCurrPcieLinkWidth",
    "nvmlDeviceGetMaxPcieLinkWidth",
)


def milliseconds(work: Callable[[], object], rounds: int = ROUNDS) -> tuple[float, float]:
    """CPU and wall time of one call, the mean of several."""
    work()
    before, begun = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    for _ in range(rounds):
        work()
    wall, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu * 1000 / rounds, wall * 1000 / rounds


def show(name: str, work: Callable[[], object]) -> float:
    """Measure and print one kind of call."""
    try:
        cpu, wall = milliseconds(work)
    except pynvml.NVMLError as error:
        print(f"{name:44} {error}")
        return 0.0
    print(f"{name:44} {cpu:9.3f} ms CPU {wall:9.3f} ms")
    return cpu


def after_a_pause(session: Session, *, slow: bool) -> float:
    """CPU milliseconds of one reading."""
    time.sleep(PAUSE_S)
    before = time.process_time()
    json.dumps(to_json(session.read(slow=slow)))
    return (time.process_time() - before) * 1000


def main() -> None:
    """Print the table."""
    pynvml.nvmlInit()
    handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    one = handles[0]
    print(f"{len(handles)} GPUs, driver {pynvml.nvmlSystemGetDriverVersion()}; each call {ROUNDS} times\n")

    def fields(pairs: list[tuple[int, int]]) -> Callable[[], object]:
        return lambda: pynvml.nvmlDeviceGetFieldValues(one, pairs)

    for name in _CALLS:
        show(name, lambda name=name: getattr(pynvml, name)(one))  # type: ignore[misc]
    thresholds = range(3)
    show("3 temperature thresholds", lambda: [pynvml.nvmlDeviceGetTemperatureThreshold(one, 1) for _ in thresholds])
    show("temperature", lambda: pynvml.nvmlDeviceGetTemperature(one, 0))
    for field in (*nf.FAST_FIELDS, *nf.SLOW_FIELDS):
        show(f"field {field.value} {field.name}", fields([(int(field), 0)]))
    show("all fast fields at once", fields([(int(field), 0) for field in nf.FAST_FIELDS]))
    for ids in (nf.NEW_THROTTLE, nf.OLD_THROTTLE):
        show(f"throttle times {ids.all}", fields([(field, 0) for field in ids.all]))
    for field in (nf.Field.LINK_STATE, nf.Field.LINK_SPEED, *nf.LINK_COUNTERS):
        show(f"field {field.value} {field.name} of 18 links", fields([(int(field), link) for link in range(18)]))
    counters = [(int(field), link) for link in range(18) for field in nf.LINK_COUNTERS]
    show("all counters of 18 links", fields(counters))
    for other in handles[1:2]:
        show("path to another GPU", lambda other=other: pynvml.nvmlDeviceGetP2PStatus(one, other, 2))  # type: ignore[misc]

    print()
    session = Session()
    session.read(slow=True)
    show("a reading of all GPUs, as JSON", lambda: to_json(session.read(slow=False)))
    show("the same with what is slow", lambda: to_json(session.read(slow=True)))
    # in production nothing is warm: a reading after a pause costs about a third more
    quick = statistics.median(after_a_pause(session, slow=False) for _ in range(PAUSED))
    slow = statistics.median(after_a_pause(session, slow=True) for _ in range(PAUSED // 2))
    print(f"after a pause of {PAUSE_S} s: {quick:.1f} ms, and {slow:.1f} ms with what is slow")
    each = GPUS / len(handles)
    for seconds in (60, int(SLOW_S), 300):
        share = each * (quick * (seconds // POLL_S - 1) + slow) / (seconds * 1000) * 100
        print(f"{GPUS} GPUs by extrapolation, slow values every {seconds} s: {share:.2f} % of a core")


if __name__ == "__main__":
    main()
