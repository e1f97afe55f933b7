"""The power limits of the cards, in a process of its own: a card that hangs takes this process and not the actuator.

A request comes on stdin and an answer goes to stdout, both JSON. The request has "set", a list of {uuid, expected,
new}, and "read", a list of UUIDs; the answer has for each of them the limits after the sets, or an error. A limit is
set only where the present one is the expected one. All limits are milliwatts.
"""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any


def main() -> None:
    """Answer one request."""
    request = json.load(sys.stdin)
    json.dump(answer(request), sys.stdout)


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """The answer to one request."""
    # Its module has no types. Importing it opens nothing; a machine without the driver fails at nvmlInit.
    pynvml = importlib.import_module("pynvml")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return {"error": f"NVML: {error}"}
    faults = {change["uuid"]: _set(pynvml, change) for change in request["set"]}
    return {
        "set": {uuid: fault for uuid, fault in faults.items() if fault is not None},
        "read": {uuid: _limits(pynvml, uuid) for uuid in request["read"]},
    }


def _set(nvml: Any, change: dict[str, Any]) -> str | None:  # noqa: ANN401  a module without types
    try:
        handle = nvml.nvmlDeviceGetHandleByUUID(change["uuid"])
        present = nvml.nvmlDeviceGetPowerManagementLimit(handle)
        if present != change["expected"]:
            return f"the limit is {present} mW and no longer {change['expected']} mW"
        nvml.nvmlDeviceSetPowerManagementLimit(handle, change["new"])
    except nvml.NVMLError as error:
        return f"NVML: {error}"
    return None


def _limits(nvml: Any, uuid: str) -> dict[str, Any]:  # noqa: ANN401  as above
    try:
        handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
        least, most = nvml.nvmlDeviceGetPowerManagementLimitConstraints(handle)
        return {
            "present": nvml.nvmlDeviceGetPowerManagementLimit(handle),
            "default": nvml.nvmlDeviceGetPowerManagementDefaultLimit(handle),
            "least": least,
            "most": most,
        }
    except nvml.NVMLError as error:
        return {"error": f"NVML: {error}"}


if __name__ == "__main__":
    main()
