"""What the node agent says of a machine with real GPUs, and what it sees while an engine would pin its pool.

`python tests/bench/check_gpu.py FOLDER` needs a driver and PyTorch with CUDA and takes about a minute. It writes the
document of `hisparse check`, the readings themselves (for --replay) and, poll by poll, the checks that pinning moves,
while 32 GiB of host memory are page-locked and let go again. Reads only: no setting of a card or the host is touched.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

from hisparse_agent.cluster import View
from hisparse_agent.judge.judge import judge
from hisparse_agent.judge.ledger import Ledger
from hisparse_agent.machine import Machine, Paces
from hisparse_agent.readers.wire import to_json
from hisparse_agent.readings import NodeReading
from hisparse_toolkit.cli import main as hisparse

PINNED_GIB: Final = 32
WATCHED: Final = ("xid", "pin.window", "host.mem.pinned", "host.mem.available", "nvml.latency")
POLLS: Final = 46


def main() -> None:
    """Write everything into the folder given."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    code = hisparse(["check", "--all"])
    print(f"exit code {code}")
    readings, polls = asyncio.run(_watch())
    lines = [json.dumps(to_json(one), separators=(",", ":")) for one in readings]
    (folder / "readings.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "pinning.json").write_text(json.dumps(polls, indent=1) + "\n")
    for poll in polls:
        print(json.dumps(poll))


async def _watch() -> tuple[list[NodeReading], list[dict[str, Any]]]:
    machine = Machine("gpu", lambda: View(pods=()), paces=Paces(host=1.0, gpu=1.0, config=60.0))
    readings: list[NodeReading] = []
    polls: list[dict[str, Any]] = []
    book = Ledger()
    holder = threading.Thread(target=_pin)
    try:
        while len(readings) < POLLS:
            reading = await machine.read()
            judged = judge(reading, readings, book)
            book = judged.ledger
            readings.append(reading)
            polls.append(
                {
                    "second": round(reading.monotonic - readings[0].monotonic, 1),
                    "pinWindow": judged.pin_window,
                    "pinnedPages": reading.memory.pinned_pages
                    if isinstance(reading.memory.pinned_pages, int)
                    else reading.memory.pinned_pages.why,
                    "findings": {
                        one.check: [one.state.value, one.value, one.message]
                        for one in judged.findings
                        if one.check in WATCHED
                    },
                }
            )
            if len(readings) == 4:
                holder.start()
            await asyncio.sleep(1.0)
    finally:
        await machine.close()
    holder.join()
    return readings, polls


def _pin() -> None:
    torch: Any = importlib.import_module("torch")  # not a package of this project
    began = time.monotonic()
    # what an engine does: page-locked by the driver, in pieces as large as its allocator asks for
    pieces = [torch.empty(1 << 30, dtype=torch.uint8, pin_memory=True) for _ in range(PINNED_GIB)]
    print(f"pinned {len(pieces)} GiB in {time.monotonic() - began:.1f} s")
    time.sleep(4)
    del pieces
    torch._C._host_emptyCache()


if __name__ == "__main__":
    main()
