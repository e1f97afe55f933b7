"""Have this machine swap, a little and for real: a program gives its pages away and touches them again. Needs root."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psutil

FILE_BYTES: Final = 64 * 1024**2
LIMIT_S: Final = 60
# madvise(2): 21 is MADV_PAGEOUT, which writes the pages out at once, whatever vm.swappiness says
_GIVE_AWAY: Final = """
import mmap, time
pages = mmap.mmap(-1, 4 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
while True:
    for place in range(0, len(pages), mmap.PAGESIZE):
        pages[place] = 1
    pages.madvise(21)
    time.sleep(0.5)
"""


class CannotSwapError(Exception):
    """Swap is off here and cannot be switched on; the message says why."""


@contextlib.contextmanager
def swapping(folder: Path) -> Iterator[None]:
    """While the block runs. Where the machine has no swap a file in the folder is one for that long."""
    with contextlib.ExitStack() as stack:
        if psutil.swap_memory().total == 0:
            file = folder / "swap"
            _switch_on(file)
            stack.callback(_run, "swapoff", file)
        program = stack.enter_context(subprocess.Popen([sys.executable, "-c", _GIVE_AWAY]))
        stack.callback(program.kill)
        yield


def _switch_on(file: Path) -> None:
    file.touch(mode=0o600)
    with file.open("wb") as handle:
        # no holes: the kernel refuses a sparse file
        handle.write(bytes(FILE_BYTES))
    for words in (("mkswap", file), ("swapon", file)):
        if fault := _run(*words):
            raise CannotSwapError(f"{words[0]}: {fault}")


def _run(*words: str | Path) -> str:
    """What a command says where it fails; empty where it does not."""
    try:
        done = subprocess.run([*words], capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except FileNotFoundError:
        return "not installed"
    return "" if done.returncode == 0 else done.stderr.strip() or f"exit {done.returncode}"
