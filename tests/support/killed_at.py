"""SIGKILL of a process at one exact place: at its next write to a file, before the kernel does it or just after.

Nothing in the program helps with it. The process is traced (ptrace(2)) from system call to system call, and killed
while it stands still at the entry of the write, which then never happens, or at its exit. x86-64, and a right to trace.
"""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import time
from pathlib import Path
from typing import Final

_SEIZE, _INTERRUPT, _SYSCALL, _CALL_INFO = 0x4206, 0x4207, 24, 0x420E
_MARK_CALLS: Final = 1  # PTRACE_O_TRACESYSGOOD: a stop at a call has bit 7 set in its signal
_WALL: Final = 0x40000000
_EVENT_STOP: Final = 128
_ENTRY: Final = 1
_WRITE: Final = 1  # its number on x86-64
_INFO_BYTES: Final = 88
_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long


class Trap:
    """A process that is traced, and stands still until `wait` lets it go on."""

    def __init__(self, pid: int, file: str, *, after: bool) -> None:
        """file is the end of a path as /proc/PID/fd shows it. after: the write is done before the process ends."""
        self._pid, self._file, self._after = pid, file, after
        self._written = False
        _ptrace(_SEIZE, pid, _MARK_CALLS)
        _ptrace(_INTERRUPT, pid)

    def wait(self, limit_s: float) -> None:
        """Let it run to the place and kill it there. Raises AssertionError where it does not come by in time."""
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            found, status = os.waitpid(self._pid, os.WNOHANG | _WALL)
            if not found:
                time.sleep(0.0005)
                continue
            assert os.WIFSTOPPED(status), f"process {self._pid} ended before it came to {self._file}: {status:#x}"
            if self._is_there(status):
                self._kill()
                return
            _ptrace(_SYSCALL, self._pid, _passed_on(status))
        self._kill()
        raise AssertionError(f"process {self._pid} did not write to {self._file} within {limit_s:g} s")

    def _is_there(self, status: int) -> bool:
        if os.WSTOPSIG(status) != signal.SIGTRAP | 0x80:
            return False
        info = ctypes.create_string_buffer(_INFO_BYTES)
        _ptrace(_CALL_INFO, self._pid, ctypes.addressof(info), size=_INFO_BYTES)
        # struct ptrace_syscall_info: op, three unused bytes, architecture, two pointers; then of an entry the call's
        # number and its arguments
        if info.raw[0] != _ENTRY:
            return self._written
        number, descriptor = struct.unpack_from("=QQ", info.raw, 24)
        if number == _WRITE and str(Path(f"/proc/{self._pid}/fd/{descriptor}").readlink()).endswith(self._file):
            self._written = self._after
            return not self._after
        return False

    def _kill(self) -> None:
        os.kill(self._pid, signal.SIGKILL)
        while True:
            try:
                _, status = os.waitpid(self._pid, _WALL)
            except ChildProcessError:
                return
            if not os.WIFSTOPPED(status):
                return


def _passed_on(status: int) -> int:
    """The signal that the process gets: none of those that are there for the tracer only."""
    number = os.WSTOPSIG(status)
    return 0 if status >> 16 == _EVENT_STOP or number == signal.SIGTRAP | 0x80 else number


def _ptrace(request: int, pid: int, data: int = 0, *, size: int = 0) -> None:
    if _libc.ptrace(request, pid, size, data) < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"ptrace {request:#x} of {pid}: {os.strerror(number)}")
