"""Power limits without a GPU: stands in for pynvml in the actuator's child process, with its state in a file.

`install(folder, cards)` makes a folder for PYTHONPATH and the state; a test changes the state with `write`. Keys beside
the cards: "hang" (nvmlInit never comes back), "refuse" (setting fails), "round" (milliwatts to whose multiple a limit
is rounded down), "garbage" (something else on standard output).
"""

import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

VARIABLE = "FAKE_POWER_NVML"


class NVMLError(Exception):
    pass


def install(folder: Path, state: dict[str, Any]) -> dict[str, str]:
    """Variables for a process whose children shall see this."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(__file__, folder / "pynvml.py")
    write(folder, state)
    # ours first, and the code under test wherever it is found now
    return {**os.environ, "PYTHONPATH": str(folder), VARIABLE: str(folder / "power.json")}


def write(folder: Path, state: dict[str, Any]) -> None:
    fresh = folder / "power.new"
    fresh.write_text(json.dumps(state))
    fresh.replace(folder / "power.json")


def read(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "power.json").read_text())
    return found


def card(limit: int = 700_000, default: int = 700_000, least: int = 200_000) -> dict[str, int]:
    """An H200 SXM: default and most are 700 W, least is 200 W."""
    return {"limit": limit, "default": default, "least": least, "most": default}


def _state() -> dict[str, Any]:
    return read(Path(os.environ[VARIABLE]).parent)


def nvmlInit() -> None:  # noqa: N802
    state = _state()
    if state.get("garbage"):
        sys.stdout.write("a library says hello\n")
    if "hang" in state:
        while "hang" in _state():
            time.sleep(0.05)


def nvmlDeviceGetHandleByUUID(uuid: str) -> str:  # noqa: N802
    if uuid not in _state():
        raise NVMLError("Not Found")
    return uuid


def nvmlDeviceGetPowerManagementLimit(handle: str) -> int:  # noqa: N802
    return int(_state()[handle]["limit"])


def nvmlDeviceGetPowerManagementDefaultLimit(handle: str) -> int:  # noqa: N802
    return int(_state()[handle]["default"])


def nvmlDeviceGetPowerManagementLimitConstraints(handle: str) -> list[int]:  # noqa: N802
    found = _state()[handle]
    return [found["least"], found["most"]]


def nvmlDeviceSetPowerManagementLimit(handle: str, limit: int) -> None:  # noqa: N802
    state = _state()
    if state.get("refuse"):
        raise NVMLError("Insufficient Permissions")
    step = int(state.get("round", 1))
    state[handle]["limit"] = limit // step * step
    write(Path(os.environ[VARIABLE]).parent, state)
