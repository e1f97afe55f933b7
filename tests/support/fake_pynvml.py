"""NVML without a GPU, for the NVML child: the real nvidia-ml-py on a library that answers from a scenario.

`environment(folder, scenario)` prepares what a child process needs; it then imports this as `pynvml`. Only the C library
is replaced, so names, structures, unions, return codes and error classes are those of nvidia-ml-py. The scenario is read
again whenever it has changed: `write` is how a test changes the state between, or in the middle of, two polls.

A scenario is what captures.scenario_of gives ([nvmlReturn, type, value] for each field, what is not there answers
NOT_SUPPORTED), and besides:
  "library": false     libnvidia-ml.so.1 cannot be loaded
  "init": code         nvmlInit fails
  "all": code          every call and field of a GPU answers this
  "missing": [names]   functions that the library does not have
  "xids": [[gpu, number]]  events, each told once: a test appends
  "at": {name: what}   a call of this name: "hang" until the scenario says otherwise, "stuck" the same and deaf to
                       SIGTERM until then as in an ioctl, "die", "print" on standard output, or a return code
"""

import ctypes
import functools
import importlib.metadata
import importlib.util
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final

VARIABLE: Final = "FAKE_NVML_SCENARIO"
NOT_SUPPORTED: Final = 3
INVALID_ARGUMENT: Final = 2
FABRIC_VERSIONS: Final = (0x02000024, 0x03000028)
NONSENSE: Final = 0xDEAD
"""Stands in every value that NVML did not fill."""
UNAFFECTED: Final = ("nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetFieldValues")
"""What "all" lets through: the last puts the code into each value."""
LINK_FIELDS: Final = frozenset({161, 162, 163, 164, 165})
MEMBERS: Final = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
NUMBERS: Final = (
    "CurrPcieLinkGeneration",
    "CurrPcieLinkWidth",
    "CurrentClocksEventReasons",
    "MaxPcieLinkGeneration",
    "MaxPcieLinkWidth",
    "PersistenceMode",
    "PowerManagementLimit",
)


def environment(folder: Path, scenario: Mapping[str, Any]) -> dict[str, str]:
    """Variables for a child that shall see this scenario. Its file is scenario.json in the folder."""
    (folder / "pynvml.py").write_text("import sys\nimport fake_pynvml\nsys.modules[__name__] = fake_pynvml.load()\n")
    write(folder, scenario)
    path = os.pathsep.join([str(folder), str(Path(__file__).parent)])
    return {**os.environ, "PYTHONPATH": path, VARIABLE: str(folder / "scenario.json")}


def write(folder: Path, scenario: Mapping[str, Any]) -> None:
    """From now on this is so."""
    new = folder / "scenario.new"
    new.write_text(json.dumps(scenario))
    new.replace(folder / "scenario.json")


def load() -> ModuleType:
    """nvidia-ml-py, with this library in place of NVIDIA's."""
    file = importlib.metadata.distribution("nvidia-ml-py").locate_file("pynvml.py")
    spec = importlib.util.spec_from_file_location("pynvml", str(file))
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    # it looks itself up there while it is loaded
    sys.modules["pynvml"] = module
    spec.loader.exec_module(module)
    library = Library(Path(os.environ[VARIABLE]), module)
    module.CDLL = library.opened  # type: ignore[attr-defined]
    return module


class Library:
    """The functions of libnvidia-ml.so.1 that are asked for, each a return code."""

    def __init__(self, path: Path, module: ModuleType) -> None:
        self._path = path
        self._module = module
        self._seen: object = None
        self._scenario: dict[str, Any] = {}
        self._told = 0

    def opened(self, name: str) -> "Library":
        if self._now().get("library") is False:
            raise OSError(f"{name}: cannot open shared object file: No such file or directory")
        return self

    def __getattr__(self, name: str) -> Any:
        known: Callable[..., int] | None = getattr(type(self), f"_{name}", None)
        if known is None and (which := name.removeprefix("nvmlDeviceGet")) in NUMBERS:
            known = functools.partial(Library._number, which=which)
        if known is None or name in self._now().get("missing", ()):
            raise AttributeError(name)
        return functools.partial(self._called, name, known)

    def _now(self) -> dict[str, Any]:
        status = self._path.stat()
        seen = (status.st_mtime_ns, status.st_ino)
        if seen != self._seen:
            self._scenario, self._seen = json.loads(self._path.read_text()), seen
        return self._scenario

    def _called(self, name: str, function: Callable[..., int], *arguments: Any) -> int:
        what = self._now().get("at", {}).get(name)
        if isinstance(what, int):
            return what
        if what == "die":
            os._exit(3)
        if what == "print":
            os.write(1, b'{"request": 1, "nvml": "from a library"}\n')
        if what == "hang":
            self._wait(name, what)
        if what == "stuck":
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
            self._wait(name, what)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        everything = self._now().get("all")
        if everything is not None and name.startswith("nvmlDeviceGet") and name not in UNAFFECTED:
            return int(everything)
        return function(self, *arguments)

    def _wait(self, name: str, what: str) -> None:
        while self._now().get("at", {}).get(name) == what:
            time.sleep(0.01)

    def _gpu(self, handle: Any) -> dict[str, Any]:
        return self._now()["gpus"][_index(handle)]  # type: ignore[no-any-return]

    def _call(self, handle: Any, which: str) -> Any:
        """(code, value) of a call that the scenario keeps."""
        value = self._gpu(handle)["calls"].get(which, {"ret": NOT_SUPPORTED})
        return (value["ret"], None) if isinstance(value, dict) and "ret" in value else (0, value)

    # --- the library's functions, by their names ---

    def _nvmlInitWithFlags(self, _flags: int) -> int:  # noqa: N802
        return int(self._now().get("init", 0))

    def _nvmlShutdown(self) -> int:  # noqa: N802
        return 0

    def _nvmlEventSetCreate(self, out: Any) -> int:  # noqa: N802
        ctypes.pointer(out._obj)[0] = ctypes.cast(1, self._module.c_nvmlEventSet_t)
        return 0

    def _nvmlDeviceRegisterEvents(self, handle: Any, kinds: Any, _events: Any) -> int:  # noqa: N802
        assert kinds.value == self._module.nvmlEventTypeXidCriticalError
        return int(self._gpu(handle).get("events", 0))

    def _nvmlEventSetWait_v2(self, _events: Any, out: Any, _limit: Any) -> int:  # noqa: N802
        waiting = self._now().get("xids", [])[self._told :]
        if not waiting:
            return int(self._module.NVML_ERROR_TIMEOUT)
        gpu, number = waiting[0]
        self._told += 1
        out._obj.device = ctypes.cast(gpu + 1, self._module.c_nvmlDevice_t)
        out._obj.eventType, out._obj.eventData = self._module.nvmlEventTypeXidCriticalError, number
        return 0

    def _nvmlErrorString(self, code: int) -> bytes:  # noqa: N802
        return f"error {code}".encode()

    def _nvmlSystemGetDriverVersion(self, text: Any, _size: Any) -> int:  # noqa: N802
        text.value = self._now()["driver"].encode()
        return 0

    def _nvmlSystemGetCudaDriverVersion(self, out: Any) -> int:  # noqa: N802
        out._obj.value = self._now()["cuda"]
        return 0

    def _nvmlDeviceGetCount_v2(self, out: Any) -> int:  # noqa: N802
        out._obj.value = len(self._now()["gpus"])
        return 0

    def _nvmlDeviceGetHandleByIndex_v2(self, index: Any, out: Any) -> int:  # noqa: N802
        if code := self._now()["gpus"][index.value].get("handle", 0):
            return int(code)
        ctypes.pointer(out._obj)[0] = ctypes.cast(index.value + 1, self._module.c_nvmlDevice_t)
        return 0

    def _nvmlDeviceGetName(self, handle: Any, text: Any, _size: Any) -> int:  # noqa: N802
        text.value = self._gpu(handle)["name"].encode()
        return 0

    def _nvmlDeviceGetUUID(self, handle: Any, text: Any, _size: Any) -> int:  # noqa: N802
        text.value = self._gpu(handle)["uuid"].encode()
        return 0

    def _nvmlDeviceGetPciInfo_v3(self, handle: Any, out: Any) -> int:  # noqa: N802
        gpu = self._gpu(handle)
        out._obj.busId = gpu["bus"].encode()
        out._obj.pciDeviceId = int(gpu["device"], 16)
        return 0

    def _number(self, handle: Any, out: Any, *, which: str) -> int:
        code, value = self._call(handle, which)
        if not code:
            out._obj.value = value
        return int(code)

    def _nvmlDeviceGetMigMode(self, handle: Any, current: Any, pending: Any) -> int:  # noqa: N802
        code, value = self._call(handle, "MigMode")
        if not code:
            current._obj.value, pending._obj.value = value
        return int(code)

    def _nvmlDeviceGetMemoryInfo_v2(self, handle: Any, out: Any) -> int:  # noqa: N802
        code, value = self._call(handle, "MemoryInfo")
        if not code:
            out._obj.total, out._obj.reserved, out._obj.used = value["total"], value["reserved"], value["used"]
        return int(code)

    def _nvmlDeviceGetUtilizationRates(self, handle: Any, out: Any) -> int:  # noqa: N802
        code, value = self._call(handle, "UtilizationRates")
        if not code:
            out._obj.gpu = value
        return int(code)

    def _nvmlDeviceGetComputeRunningProcesses_v3(self, handle: Any, count: Any, array: Any) -> int:  # noqa: N802
        code, value = self._call(handle, "ComputeRunningProcesses")
        if code or not value:
            count._obj.value = 0
            return int(code)
        count._obj.value = value
        if array is None:
            return int(self._module.NVML_ERROR_INSUFFICIENT_SIZE)
        return 0

    def _nvmlDeviceGetTemperatureV(self, handle: Any, out: Any) -> int:  # noqa: N802
        code, value = self._call(handle, "Temperature")
        if not code:
            out._obj.temperature = value
        return int(code)

    def _nvmlDeviceGetTemperature(self, handle: Any, _sensor: Any, out: Any) -> int:  # noqa: N802
        return self._number(handle, out, which="Temperature")

    def _nvmlDeviceGetMarginTemperature(self, handle: Any, out: Any) -> int:  # noqa: N802
        code, value = self._call(handle, "MarginTemperature")
        if not code:
            out._obj.marginTemperature = value
        return int(code)

    def _nvmlDeviceGetTemperatureThreshold(self, handle: Any, which: Any, out: Any) -> int:  # noqa: N802
        code, values = self._call(handle, "TemperatureThreshold")
        if code or str(which.value) not in values:
            return int(code or NOT_SUPPORTED)
        out._obj.value = values[str(which.value)]
        return 0

    def _nvmlDeviceGetP2PStatus(self, one: Any, other: Any, which: Any, out: Any) -> int:  # noqa: N802
        assert which == self._module.NVML_P2P_CAPS_INDEX_NVLINK
        here, there = _index(one), _index(other)
        state = self._gpu(one)["peers"][there - (there > here)]
        if isinstance(state, dict):
            return int(state["ret"])
        out._obj.value = state
        return 0

    def _nvmlDeviceGetGpuFabricInfoV(self, handle: Any, out: Any) -> int:  # noqa: N802
        fabric = self._gpu(handle)["fabric"]
        # an older driver knows fewer forms of the structure
        if out._obj.version not in self._now().get("fabric_versions", FABRIC_VERSIONS):
            return int(self._module.NVML_ERROR_ARGUMENT_VERSION_MISMATCH)
        if "ret" in fabric:
            return int(fabric["ret"])
        for name, value in fabric.items():
            if hasattr(out._obj, name):
                setattr(out._obj, name, value)
        return 0

    def _nvmlDeviceGetFieldValues(self, handle: Any, count: Any, out: Any) -> int:  # noqa: N802
        gpu, everything = self._gpu(handle), self._now().get("all")
        ports = [port for number, port in gpu["links"] for _ in range(number)]
        for value in list(out._obj)[: count.value]:
            if value.fieldId in LINK_FIELDS:
                # beyond the last link the argument is not valid; a GPU that hides NVLink supports none of it
                refusal = [INVALID_ARGUMENT if ports else NOT_SUPPORTED, 0, 0]
                answer = ports[value.scopeId].get(str(value.fieldId)) if value.scopeId < len(ports) else refusal
            else:
                answer = gpu["fields"].get(str(value.fieldId))
            code, kind, number = answer or [NOT_SUPPORTED, 0, 0]
            value.nvmlReturn = code if everything is None else everything
            value.value.ullVal = NONSENSE
            if not value.nvmlReturn:
                value.valueType = kind
                setattr(value.value, MEMBERS[kind], number)
        return 0


def _index(handle: Any) -> int:
    return int(ctypes.cast(handle, ctypes.c_void_p).value or 0) - 1
