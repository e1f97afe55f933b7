"""The host as the actuator sees it: three kinds of settings that can be looked at and changed. All I/O is here."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from hisparse.nodes.catalogue import Verb
from hisparse_agent.actuator.bounds import PowerLimits, Setting, is_recorded_target
from hisparse_agent.records import ALL_CPUS

_MOST_TEXT: Final = 4096
_OFFERED: Final = {
    "scaling_governor": "scaling_available_governors",
    "energy_performance_preference": "energy_performance_available_preferences",
}


@dataclass(frozen=True)
class Step:
    """One setting from what it has to be now to what it shall be."""

    target: str
    expected: str
    new: str


class Host(Protocol):
    """What `act` needs of a host. Nothing here raises for a setting that is not there or does not answer."""

    def boot_id(self) -> str:
        """The kernel's boot id. Raises OSError."""
        ...

    def targets(self, verb: Verb, target: str) -> tuple[str, ...]:
        """The settings that a wish's target means: every CPU for "cpu/...", else itself."""
        ...

    def look(self, verb: Verb, targets: Sequence[str]) -> Mapping[str, Setting | str]:
        """The settings as they are now, or why one cannot be read."""
        ...

    def change(self, verb: Verb, steps: Sequence[Step]) -> Mapping[str, str]:
        """Make the changes; what is not as expected stays. Faults by target; look to see what became of it."""
        ...


class MachineHost:
    """The machine that we run on, or a folder that looks like one."""

    def __init__(self, root: Path, deadline_s: float) -> None:
        self._root = root
        self._power = _PowerChild(deadline_s)

    def boot_id(self) -> str:
        return (self._root / "proc/sys/kernel/random/boot_id").read_text().strip()

    def targets(self, verb: Verb, target: str) -> tuple[str, ...]:
        if verb is not Verb.CPUFREQ:
            return (target,)
        setting = target.removeprefix(f"{ALL_CPUS}/")
        cpus = [path for path in self._cpus().glob("cpu[0-9]*") if (path / "cpufreq" / setting).exists()]
        return tuple(f"{path.name}/{setting}" for path in sorted(cpus, key=lambda path: int(path.name[3:])))

    def look(self, verb: Verb, targets: Sequence[str]) -> Mapping[str, Setting | str]:
        if verb is Verb.POWER_CAP:
            return self._power.look(targets)
        return {target: self._look(verb, target) for target in targets}

    def change(self, verb: Verb, steps: Sequence[Step]) -> Mapping[str, str]:
        if verb is Verb.POWER_CAP:
            return self._power.change(steps)
        faults = ((step.target, self._change(verb, step)) for step in steps)
        return {target: fault for target, fault in faults if fault}

    def _look(self, verb: Verb, target: str) -> Setting | str:
        path = self._path(verb, target)
        try:
            offered: tuple[str, ...] = ()
            if verb is Verb.CPUFREQ:
                offered = tuple(_read(path.with_name(_OFFERED[path.name])).split())
            return Setting(target, _read(path), offered=offered)
        except (OSError, UnicodeDecodeError) as error:
            return f"{target} cannot be read: {_cause(error)}"

    def _change(self, verb: Verb, step: Step) -> str:
        path = self._path(verb, step.target)
        try:
            present = _read(path)
            if present != step.expected:
                return f"{step.target} is {present} and no longer {step.expected}"
            _write(path, step.new)
        except (OSError, UnicodeDecodeError) as error:
            return f"{step.target} cannot be written: {_cause(error)}"
        return ""

    def _path(self, verb: Verb, target: str) -> Path:
        if not is_recorded_target(verb, target) or verb is Verb.POWER_CAP:
            raise ValueError(f"{target} is no file of {verb}")
        if verb is Verb.SYSCTL:
            return self._root / "proc/sys" / target.replace(".", "/")
        cpu, _, setting = target.partition("/")
        return self._cpus() / cpu / "cpufreq" / setting

    def _cpus(self) -> Path:
        return self._root / "sys/devices/system/cpu"


class _PowerChild:
    """NVML power limits through a child process with a deadline, and never a second child beside one that hangs.

    Past the deadline it is asked to end and then left alone: it sits in a call of the driver, where a SIGKILL would do
    nothing good. What it was to set may still come to pass, so that the caller has to look again later.
    """

    def __init__(self, deadline_s: float) -> None:
        self._deadline_s = deadline_s
        self._hanging: subprocess.Popen[bytes] | None = None

    def look(self, uuids: Sequence[str]) -> Mapping[str, Setting | str]:
        answer = self._ask({"set": [], "read": list(uuids)})
        if isinstance(answer, str):
            return dict.fromkeys(uuids, answer)
        return {uuid: _limits(uuid, answer) for uuid in uuids}

    def change(self, steps: Sequence[Step]) -> Mapping[str, str]:
        asked = [{"uuid": step.target, "expected": int(step.expected), "new": int(step.new)} for step in steps]
        answer = self._ask({"set": asked, "read": []})
        if isinstance(answer, str):
            return {step.target: answer for step in steps}
        faults = answer.get("set", {})
        return {step.target: str(faults[step.target]) for step in steps if step.target in faults}

    def _ask(self, request: dict[str, Any]) -> dict[str, Any] | str:
        if self._hanging is not None:
            if self._hanging.poll() is None:
                return "an earlier call of NVML still hangs"
            self._hanging = None
        try:
            child = subprocess.Popen(
                # -P: nothing is imported from the folder in which we happen to run
                [sys.executable, "-P", "-m", "hisparse_agent.actuator.nvml_power"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        except OSError as error:
            return f"no process could be started that asks NVML: {_cause(error)}"
        try:
            text, _ = child.communicate(json.dumps(request).encode(), timeout=self._deadline_s)
        except subprocess.TimeoutExpired:
            child.terminate()
            for pipe in (child.stdin, child.stdout):
                with contextlib.suppress(OSError):
                    if pipe is not None:
                        pipe.close()
            self._hanging = child
            return f"NVML did not answer within {self._deadline_s:g} s"
        try:
            answer = json.loads(text)
        except ValueError:
            return f"the process that asks NVML ended with {child.returncode} and without an answer"
        if not isinstance(answer, dict):
            return "the process that asks NVML gave no answer that can be read"
        return str(answer["error"]) if "error" in answer else answer


def _limits(uuid: str, answer: dict[str, Any]) -> Setting | str:
    found = answer.get("read", {}).get(uuid, {})
    numbers = [found.get(name) for name in ("present", "default", "least", "most")]
    if not all(isinstance(number, int) and number > 0 for number in numbers):
        return f"{uuid}: {found.get('error', 'NVML gave no limits')}"
    present, default, least, most = numbers
    return Setting(uuid, str(present), power=PowerLimits(default, least, most))


def _read(path: Path) -> str:
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with open(handle, "rb") as file:  # noqa: PTH123  a descriptor, not a path
        return file.read(_MOST_TEXT).decode().strip()


def _write(path: Path, value: str) -> None:
    # no O_CREAT: a setting that is not there is no setting
    handle = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.write(handle, f"{value}\n".encode())  # one write: the kernel takes it whole or refuses it
    finally:
        os.close(handle)


def _cause(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error)
