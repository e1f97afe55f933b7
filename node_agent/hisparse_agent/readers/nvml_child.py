"""The process that talks to NVML, so that a call that never returns stops this process and not the agent.

python -m hisparse_agent.readers.nvml_child

A request is one line {"request": N, "slow": bool} on standard input, its answer one line on standard output:
{"request": N, "nvml": {...}} with a readings.Nvml, or {"request": N, "error": text, "kind": a wire.Refusal}.
slow asks anew for what costs NVML milliseconds (energy, error counters, the paths between GPUs) and for what hardly
ever changes; without it these are as they were last time. It ends when its input does. It only reads: nothing here
changes a setting.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from ctypes import byref
from dataclasses import replace
from functools import partial
from typing import Any, Final, TextIO, TypeVar, cast

from hisparse_agent.readers import nvml_fields as nf
from hisparse_agent.readers.nvml_fields import Answer, Code, Field
from hisparse_agent.readers.wire import Refusal, to_json
from hisparse_agent.readings import (
    Absence,
    Fabric,
    Faults,
    GpuReading,
    Heat,
    Missing,
    NvLink,
    Nvml,
    Pcie,
    Power,
    Xid,
)

try:
    import pynvml  # type: ignore[import-untyped]
except ImportError:
    pynvml = None

T = TypeVar("T")

IN_MIG: Final = Missing(Absence.UNSUPPORTED, "MIG")
NO_LINKS: Final = Missing(Absence.UNSUPPORTED, "NVML refuses every link: there is no NVLink, or it is hidden")
NO_LIBRARY: Final = "no NVIDIA driver: libnvidia-ml.so.1 is not there"
NO_BINDINGS: Final = "nvidia-ml-py is not installed"
MISMATCH: Final = "driver/library version mismatch: NVML is not of the version of the loaded driver"
EVENT_WORDS: Final = "an event of NVML, which has no words"
MOST_XIDS: Final = 64
"""In one answer; the others are in the next."""
NVLINK_PEERS: Final = 2
"""NVML_P2P_CAPS_INDEX_NVLINK."""
PORT_FIELDS: Final = (Field.LINK_STATE, Field.LINK_SPEED)
NO_GPU: Final = GpuReading(index=-1)


class _LostError(Exception):
    """NVML says that the GPU which is being read is gone."""


class Session:
    """NVML, started when it is first asked, and what is worth remembering from one request to the next."""

    def __init__(self) -> None:
        self._started = False
        self._stale = False
        self._throttle: dict[int, nf.ThrottleIds] = {}
        self._known: dict[int, GpuReading] = {}
        # answers of slow calls, by GPU or by pair of GPUs
        self._slow = True
        self._kept: dict[int, dict[tuple[int, int], Answer]] = {}
        self._lasting: dict[tuple[int, object], Any] = {}
        self._paths: dict[tuple[int, int], int | Missing] = {}
        self._events: object = None

    def read(self, *, slow: bool) -> Nvml:
        """Everything of every GPU. Raises NVMLError when NVML does not start or cannot tell what GPUs there are."""
        begun = time.monotonic()
        self._slow = slow
        self._start()
        try:
            found = self._everything()
        except pynvml.NVMLError:
            self._stale = True
            raise
        return replace(found, seconds=time.monotonic() - begun)

    def _everything(self) -> Nvml:
        driver, cuda = pynvml.nvmlSystemGetDriverVersion(), pynvml.nvmlSystemGetCudaDriverVersion()
        handles = [self._handle(index) for index in range(pynvml.nvmlDeviceGetCount())]
        gpus = [self._gpu(index, handle) for index, handle in enumerate(handles)]
        peers = self._peers(gpus, handles)
        gpus = [gpu if gpu.lost else replace(gpu, peers=peers[gpu.index]) for gpu in gpus]
        return Nvml(driver, nf.cuda_version(cuda), tuple(gpus), xids=self._xids(handles))

    def _start(self) -> None:
        if self._started and self._stale:
            self._started = False
            # a driver that has gone away has nothing to shut down
            with suppress(pynvml.NVMLError):
                pynvml.nvmlShutdown()
        if not self._started:
            pynvml.nvmlInit()
            self._started, self._stale = True, False
            for remembered in (self._throttle, self._kept, self._lasting, self._paths):
                remembered.clear()
            self._events = None

    def _asked(self, call: Callable[[], T]) -> T | Missing:
        """What a call returns, or why it returned nothing."""
        try:
            return call()
        except pynvml.NVMLError as error:
            self._note(error.value)
            return nf.refusal(error.value, str(error))

    def _note(self, code: int) -> None:
        if code == Code.GPU_IS_LOST:
            raise _LostError
        self._stale = self._stale or code in nf.STALE

    def _handle(self, index: int) -> object:
        """NVML's handle, a Missing, or None for a GPU that is lost already."""
        try:
            return self._asked(lambda: pynvml.nvmlDeviceGetHandleByIndex(index))
        except _LostError:
            return None

    # --- what the driver tells by itself ---

    def _xids(self, handles: Sequence[object]) -> tuple[Xid, ...] | Missing:
        """Xids since the last request. They need no privilege, as the kernel log does, and have no words."""
        if self._events is None:
            listening = self._listening(handles)
            if isinstance(listening, Missing) and listening.absence is Absence.UNKNOWN:
                return listening
            self._events = listening
        if isinstance(self._events, Missing):
            return self._events
        seen: list[Xid] = []
        while len(seen) < MOST_XIDS:
            try:
                event = pynvml.nvmlEventSetWait_v2(self._events, 0)
            except pynvml.NVMLError as error:
                if error.value in (Code.TIMEOUT, Code.GPU_IS_LOST):
                    break
                self._note(error.value)
                return nf.refusal(error.value, str(error))
            seen.append(Xid(int(event.eventData), time.monotonic(), self._bus(event.device), EVENT_WORDS))
        return tuple(seen)

    def _listening(self, handles: Sequence[object]) -> object:
        """A set of events of all GPUs, or why there is none: of a part of them the rest would look well."""
        unread = next((handle for handle in handles if isinstance(handle, Missing)), None)
        if unread is not None:
            return unread
        try:
            events = pynvml.nvmlEventSetCreate()
            for handle in handles:
                if handle is not None:
                    pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, events)
        except pynvml.NVMLError as error:
            if error.value != Code.GPU_IS_LOST:
                self._note(error.value)
            return nf.refusal(error.value, str(error))
        return events

    def _bus(self, handle: object) -> str:
        try:
            pci = self._asked(lambda: pynvml.nvmlDeviceGetPciInfo(handle))
        except _LostError:
            return ""
        return "" if isinstance(pci, Missing) else nf.pci_address(pci.busId)

    # --- one GPU ---

    def _gpu(self, index: int, handle: object) -> GpuReading:
        known = self._known.get(index, replace(NO_GPU, index=index))
        if isinstance(handle, Missing):
            return replace(known, links=handle, fabric=handle)
        try:
            if handle is not None:
                known = self._identity(known, handle)
                self._known[index] = known
                return self._state(known, handle)
        except _LostError:
            self._forget(index)
        return replace(known, lost=True)

    def _forget(self, index: int) -> None:
        """Whatever comes back in the place of a GPU that was lost is asked for everything."""
        self._kept.pop(index, None)
        self._lasting = {key: value for key, value in self._lasting.items() if key[0] != index}

    def _identity(self, known: GpuReading, handle: object) -> GpuReading:
        uuid = self._asked(lambda: pynvml.nvmlDeviceGetUUID(handle))
        product = self._asked(lambda: pynvml.nvmlDeviceGetName(handle))
        pci = self._asked(lambda: pynvml.nvmlDeviceGetPciInfo(handle))
        return replace(
            known,
            uuid=known.uuid if isinstance(uuid, Missing) else uuid,
            product=known.product if isinstance(product, Missing) else product,
            pci=known.pci if isinstance(pci, Missing) else nf.pci_address(pci.busId),
        )

    def _state(self, gpu: GpuReading, handle: object) -> GpuReading:
        def asked(function: Callable[..., T], *arguments: int) -> T | Missing:
            return self._asked(lambda: function(handle, *arguments))

        def lasting(function: Callable[..., T], *arguments: int) -> T | Missing:
            """What changes with a reset of the GPU at most: asked again with what is slow, or where it failed."""
            key = (gpu.index, (function, arguments))
            if self._slow or nf.is_passing(self._lasting.get(key)):
                self._lasting[key] = asked(function, *arguments)
            return cast("T | Missing", self._lasting[key])

        pci = lasting(pynvml.nvmlDeviceGetPciInfo)
        mig = lasting(pynvml.nvmlDeviceGetMigMode)
        memory = asked(pynvml.nvmlDeviceGetMemoryInfo, pynvml.nvmlMemory_v2)
        utilisation = asked(pynvml.nvmlDeviceGetUtilizationRates)
        processes = asked(pynvml.nvmlDeviceGetComputeRunningProcesses)
        in_mig = mig if isinstance(mig, Missing) else bool(mig[0])
        answers, links = self._fields_and_links(gpu.index, handle, in_mig=in_mig is True)

        def number(field: Field) -> int | Missing:
            return nf.number(answers[field])

        return replace(
            gpu,
            # the upper half is the device, the lower NVIDIA
            device_id=pci if isinstance(pci, Missing) else pci.pciDeviceId >> 16,
            memory=memory if isinstance(memory, Missing) else memory.total,
            memory_used=memory if isinstance(memory, Missing) else memory.used,
            utilisation_percent=utilisation if isinstance(utilisation, Missing) else utilisation.gpu,
            mig=in_mig,
            links=links,
            fabric=self._fabric(handle),
            heat=Heat(
                gpu=self._temperature(handle),
                margin=asked(pynvml.nvmlDeviceGetMarginTemperature),
                hbm=number(Field.MEMORY_TEMPERATURE),
                gpu_limit=lasting(pynvml.nvmlDeviceGetTemperatureThreshold, pynvml.NVML_TEMPERATURE_THRESHOLD_GPU_MAX),
                slowdown=lasting(pynvml.nvmlDeviceGetTemperatureThreshold, pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN),
                hbm_limit=lasting(pynvml.nvmlDeviceGetTemperatureThreshold, pynvml.NVML_TEMPERATURE_THRESHOLD_MEM_MAX),
            ),
            throttle=nf.throttle(
                answers, self._throttle_ids(gpu.index, answers), asked(pynvml.nvmlDeviceGetCurrentClocksEventReasons)
            ),
            power=Power(
                draw=number(Field.POWER_INSTANT),
                limit=asked(pynvml.nvmlDeviceGetPowerManagementLimit),
                default=number(Field.POWER_DEFAULT),
                least=number(Field.POWER_LEAST),
                most=number(Field.POWER_MOST),
                enforced=number(Field.POWER_ENFORCED),
                requested=number(Field.POWER_REQUESTED),
                energy_mj=number(Field.TOTAL_ENERGY),
                persistent=nf.switch(asked(pynvml.nvmlDeviceGetPersistenceMode)),
            ),
            pcie=Pcie(
                generation=asked(pynvml.nvmlDeviceGetCurrPcieLinkGeneration),
                most_generation=lasting(pynvml.nvmlDeviceGetMaxPcieLinkGeneration),
                width=asked(pynvml.nvmlDeviceGetCurrPcieLinkWidth),
                most_width=lasting(pynvml.nvmlDeviceGetMaxPcieLinkWidth),
                replays=number(Field.PCIE_REPLAYS),
                correctable=number(Field.PCIE_CORRECTABLE),
                nonfatal=number(Field.PCIE_NONFATAL),
                fatal=number(Field.PCIE_FATAL),
            ),
            faults=Faults(
                recovery_action=number(Field.RECOVERY_ACTION),
                remap_pending=nf.switch(number(Field.REMAP_PENDING)),
                remap_failed=nf.switch(number(Field.REMAP_FAILURE)),
                double_bit=number(Field.ECC_DOUBLE_BIT_VOLATILE),
            ),
            processes=processes if isinstance(processes, Missing) else len(processes),
        )

    def _temperature(self, handle: object) -> int | Missing:
        """The newer call, or the one that drivers before it have and that CUDA 14 drops."""
        sensor = pynvml.NVML_TEMPERATURE_GPU
        try:
            return int(pynvml.nvmlDeviceGetTemperatureV(handle, sensor))
        except pynvml.NVMLError as error:
            if error.value not in nf.ABSENT:
                self._note(error.value)
                return nf.refusal(error.value, str(error))
        return self._asked(lambda: int(pynvml.nvmlDeviceGetTemperature(handle, sensor)))

    def _fabric(self, handle: object) -> Fabric | Missing:
        refused = Missing(Absence.UNSUPPORTED, "nvidia-ml-py has no form for it")
        # a driver from before the third form refuses it, and the second has no summary
        for name in ("c_nvmlGpuFabricInfo_v3_t", "c_nvmlGpuFabricInfo_v2_t"):
            if not hasattr(pynvml, name):
                continue
            info = getattr(pynvml, name)()
            done = self._asked(partial(pynvml.nvmlDeviceGetGpuFabricInfoV, handle, byref(info)))
            if not isinstance(done, Missing):
                summary = getattr(info, "healthSummary", 0)
                return nf.fabric(state=info.state, status=info.status, mask=info.healthMask, summary=summary)
            refused = done
            if refused.absence is not Absence.UNSUPPORTED:
                break
        return refused

    # --- field values ---

    def _values(self, handle: object, pairs: Sequence[tuple[int, int]]) -> list[Answer]:
        """One answer for each (field, scope). A call that fails as a whole is the same answer for all of them."""
        try:
            values = pynvml.nvmlDeviceGetFieldValues(handle, pairs)
        except pynvml.NVMLError as error:
            self._note(error.value)
            return [Answer(error.value, error=str(error))] * len(pairs)
        return [self._answer(value.nvmlReturn, value.valueType, value.value) for value in values]

    def _answer(self, code: int, kind: int, union: object) -> Answer:
        if code != Code.SUCCESS:
            self._note(code)
            return Answer(code, error=str(pynvml.NVMLError(code)))
        member = nf.MEMBERS.get(kind)
        return Answer(code, kind, getattr(union, member) if member else 0)

    def _fields_and_links(
        self, index: int, handle: object, *, in_mig: bool
    ) -> tuple[dict[int, Answer], tuple[NvLink, ...] | Missing]:
        """The values of the GPU and of its links."""
        ids = [int(field) for field in (*nf.FAST_FIELDS, *self._throttle_fields(index))]
        # the states tell how many links there are: by the first that is refused
        ports = [] if in_mig else [(int(field), link) for field in PORT_FIELDS for link in range(nf.MOST_LINKS)]
        found = self._values(handle, [*((field, 0) for field in ids), *ports])
        answers, by_port = dict(zip(ids, found, strict=False)), found[len(ids) :]
        states, speeds = by_port[: nf.MOST_LINKS], by_port[nf.MOST_LINKS :]
        count = nf.count_links(states)
        kept = self._slow_values(index, handle, count)
        answers |= {field: kept[field, 0] for field in nf.SLOW_FIELDS}
        if not count:
            return answers, IN_MIG if in_mig else NO_LINKS
        return answers, tuple(
            nf.link(link, states[link], speeds[link], [kept[field, link] for field in nf.LINK_COUNTERS])
            for link in range(count)
        )

    def _slow_values(self, index: int, handle: object, count: int) -> dict[tuple[int, int], Answer]:
        # by link and not by field: NVML answers the counters of one link together three times as fast
        counters = [(int(field), link) for link in range(count) for field in nf.LINK_COUNTERS]
        pairs = [*((int(field), 0) for field in nf.SLOW_FIELDS), *counters]
        kept = self._kept.get(index, {})
        if self._slow or kept.keys() != set(pairs):
            kept = dict(zip(pairs, self._values(handle, pairs), strict=True))
            self._kept[index] = kept if nf.settled(kept.values()) else {}
        return kept

    def _throttle_fields(self, index: int) -> Sequence[int]:
        return self._throttle[index].all if index in self._throttle else nf.UNDECIDED

    def _throttle_ids(self, index: int, answers: Mapping[int, Answer]) -> nf.ThrottleIds | Missing:
        """Found out once for each GPU: the same driver does not move its fields."""
        if index in self._throttle:
            return self._throttle[index]
        ids = nf.chosen_throttle(answers)
        if not isinstance(ids, Missing):
            self._throttle[index] = ids
        return ids

    # --- between GPUs ---

    def _peers(self, gpus: Sequence[GpuReading], handles: Sequence[object]) -> list[dict[int, int] | Missing]:
        """For each GPU the state of the NVLink path to each other one. The path is the same both ways."""
        found: list[dict[int, int] | Missing] = [handle if isinstance(handle, Missing) else {} for handle in handles]
        readable = [gpu.index for gpu in gpus if not gpu.lost and not isinstance(handles[gpu.index], Missing)]
        for place, one in enumerate(readable):
            for other in readable[place + 1 :]:
                try:
                    state = self._path(one, other, handles)
                except _LostError:
                    # it was lost since it was read, and the next request will say so
                    continue
                for here, there in ((one, other), (other, one)):
                    paths = found[here]
                    if isinstance(state, Missing):
                        found[here] = state
                    elif isinstance(paths, dict):
                        paths[there] = state
        return found

    def _path(self, one: int, other: int, handles: Sequence[object]) -> int | Missing:
        if self._slow or (one, other) not in self._paths:
            self._paths.pop((one, other), None)
            ask = partial(pynvml.nvmlDeviceGetP2PStatus, handles[one], handles[other], NVLINK_PEERS)
            state: int | Missing = self._asked(ask)
            if isinstance(state, Missing) and state.absence is Absence.UNKNOWN:
                return state
            self._paths[one, other] = state
        return self._paths[one, other]


def main() -> int:
    """Answers requests until there are no more."""
    # Ctrl-C is for the parent, which then closes our input
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = _own_output()
    session = Session()
    for line in sys.stdin:
        request = json.loads(line)
        answer, over = _answer(session, slow=request["slow"])
        print(json.dumps({"request": request["request"], **answer}), file=answers, flush=True)
        if over:
            break
    return 0


def _own_output() -> TextIO:
    """Standard output for answers alone: whatever a library prints goes to standard error."""
    own = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)
    return own


def _answer(session: Session, *, slow: bool) -> tuple[dict[str, object], bool]:
    """The answer, and whether this process is over with it."""
    if pynvml is None:
        return {"error": NO_BINDINGS, "kind": Refusal.NO_DRIVER}, False
    try:
        return {"nvml": to_json(session.read(slow=slow))}, False
    except pynvml.NVMLError as error:
        if error.value == Code.LIBRARY_NOT_FOUND:
            return {"error": NO_LIBRARY, "kind": Refusal.NO_DRIVER}, False
        if error.value == Code.LIBRARY_MISMATCH:
            return {"error": MISMATCH, "kind": Refusal.MISMATCH}, True
        return {"error": f"NVML: {error}", "kind": Refusal.ERROR}, False


if __name__ == "__main__":
    sys.exit(main())
