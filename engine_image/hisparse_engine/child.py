"""The engine as a child process: start it, reap it, and leave nothing of it behind."""

import ctypes
import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from signal import Signals

from hisparse_engine.container import Container

PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Become the parent of orphaned descendants even where we are not PID 1 (shared process namespace)."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


class Child:
    """One engine process and all that it starts. Its session and group number is its pid."""

    def __init__(self, command: tuple[str, ...], environment: Mapping[str, str], container: Container) -> None:
        """Start it; raises OSError when the program cannot be run."""
        self._container = container
        self.exit_code: int | None = None
        # Our signals are blocked and Python ignores SIGPIPE: the child gets an empty mask and the defaults.
        self.pid = os.posix_spawnp(
            command[0],
            command,
            environment,
            setsid=True,
            setsigmask=(),
            setsigdef=(signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTERM, signal.SIGINT, signal.SIGHUP),
        )

    def tell(self, number: Signals) -> None:
        """To the API server alone, which stops its core and workers in order; a group signal would not."""
        if self.exit_code is None:
            os.kill(self.pid, number)

    def reap(self) -> None:
        """Collect every ended process, ours and orphans, without waiting."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.pid:
                code = os.waitstatus_to_exitcode(status)
                self.exit_code = code if code >= 0 else 128 - code

    def leftovers(self) -> tuple[int, ...]:
        """What outlived the API server: its session, its group, and orphans that we adopted."""
        me = os.getpid()
        return tuple(
            process.pid
            for process in self._container.processes()
            if process.pid != me
            and process.state not in "ZX"
            and (me == process.parent or self.pid in (process.group, process.session))
        )

    def tell_all(self, pids: tuple[int, ...], number: Signals) -> None:
        """Signal each; those that ended meanwhile are fine."""
        for pid in pids:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
