"""The container that we run in: /dev/shm, cgroup limit, kernel, processes. Only reads, and one unlink."""

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hisparse_engine import preflight

# PROC_IPC_INIT_INO in linux/proc_ns.h: the inode of the host's IPC namespace, the same on every kernel.
HOST_IPC_NAMESPACE = "ipc:[4026531839]"


@dataclass(frozen=True)
class Process:
    """One line of the process table."""

    pid: int
    parent: int
    group: int
    session: int
    state: str


@dataclass(frozen=True)
class Container:
    """Where the kernel shows itself; other roots are for tests."""

    shm: Path = Path("/dev/shm")
    proc: Path = Path("/proc")
    cgroup: Path = Path("/sys/fs/cgroup")

    def reading(self) -> preflight.Reading:
        """All that the checks want to know."""
        return preflight.Reading(
            shm_free_bytes=self._shm_free_bytes(),
            memory_limit_bytes=preflight.limit_bytes(self._limit_texts()),
            kernel=preflight.kernel_version(os.uname().release),
        )

    def shared_memory(self) -> preflight.Shm:
        """What lies in /dev/shm, and which of it some process maps."""
        try:
            names = tuple(sorted(entry.name for entry in self.shm.iterdir() if entry.is_file()))
        except OSError:
            names = ()
        return preflight.Shm(names=names, mapped=self._mapped() if names else frozenset(), own=self._own_ipc())

    def remove(self, name: str) -> bool:
        """Remove one file of /dev/shm; False where we may not."""
        try:
            (self.shm / name).unlink(missing_ok=True)
        except OSError:
            return False
        return True

    def processes(self) -> tuple[Process, ...]:
        """The process table; processes that end meanwhile are left out."""
        return tuple(process for pid in self._pids() if (process := self._process(pid)))

    def _pids(self) -> list[int]:
        return [int(entry.name) for entry in self.proc.iterdir() if entry.name.isdecimal()]

    def _process(self, pid: int) -> Process | None:
        try:
            text = (self.proc / str(pid) / "stat").read_text(errors="replace")
        except OSError:
            return None
        # the command name stands in brackets and may hold spaces and brackets itself
        state, parent, group, session = text.rpartition(")")[2].split()[:4]
        return Process(pid, int(parent), int(group), int(session), state)

    def _shm_free_bytes(self) -> int | None:
        try:
            status = os.statvfs(self.shm)
        except FileNotFoundError:
            return 0
        except OSError:
            return None
        return status.f_bavail * status.f_frsize

    def _mapped(self) -> frozenset[str] | None:
        prefix = f"{self.shm}/"
        names = set()
        for pid in self._pids():
            try:
                maps = (self.proc / str(pid) / "maps").read_text(errors="surrogateescape")
            except (FileNotFoundError, ProcessLookupError):
                continue
            except OSError:
                return None
            # a line is: address perms offset device inode path
            paths = (line.split(maxsplit=5)[5:] for line in maps.splitlines())
            names |= {path[0].removeprefix(prefix) for path in paths if path and path[0].startswith(prefix)}
        return frozenset(names)

    def _own_ipc(self) -> bool:
        try:
            return str((self.proc / "self/ns/ipc").readlink()) != HOST_IPC_NAMESPACE
        except OSError:
            return False

    def _limit_texts(self) -> tuple[str, ...]:
        """The limit files of our group and of every group above it, cgroup v2 and v1.

        With a cgroup namespace our group shows as /; without one (v1 runtimes) the path is the host's and
        may not exist below our mount, whose root then is our group.
        """
        try:
            lines = (self.proc / "self/cgroup").read_text().splitlines()
        except OSError:
            lines = []
        texts = []
        for line in [*lines, "0::/", "0:memory:/"]:
            _, controllers, path = line.split(":", 2)
            if controllers == "":
                base, name = self.cgroup, "memory.max"
            elif "memory" in controllers.split(","):
                base, name = self.cgroup / "memory", "memory.limit_in_bytes"
            else:
                continue
            group = base / path.lstrip("/")
            for folder in (group, *group.parents):
                with suppress(OSError):
                    texts.append((folder / name).read_text())
                if folder == base:
                    break
        return tuple(texts)
