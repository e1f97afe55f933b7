"""Offload files that engines left in their pods' /dev/shm, seen through the kubelet's folder of the pod.

vLLM keeps the host side of a shared pool in a file there and takes its name away once every worker has it, so while
an engine runs there is usually nothing to see. What is seen is an engine that starts, or one that was killed before it
came so far: the file lives as long as the pod, across restarts of its containers, and counts as its memory.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hisparse.reserved import SHM_VOLUME
from hisparse_agent.readers.cgroups import POD_UID
from hisparse_agent.readers.kernel_files import list_names, not_read, unknown, unsupported
from hisparse_agent.readings import Absence, Missing, ShmFile, Switch

VOLUME: Final = f"volumes/kubernetes.io~empty-dir/{SHM_VOLUME}"
"""The volume that the operator mounts at /dev/shm of an engine."""

OFFLOAD_FILE: Final = re.compile(r"vllm_(?:offload|ec)_.+", re.DOTALL)
"""Host pool and KV offload, and the encoder cache (vLLM 0.33, shared_offload_region.py and ec_shared_region.py)."""

_ENTRIES: Final = 4096
_STAT_BLOCK: Final = 512  # unit of st_blocks, whatever the file system
_NO_RIGHT: Final = (errno.EACCES, errno.EPERM)
_GONE: Final = (errno.ENOENT, errno.ESRCH)
_MAPS_LINE: Final = 8192
_MAPS_LINES: Final = 200_000

# only the first part of a line: the path may be anything
_MAPPED: Final = re.compile(
    rb"[0-9a-f]+-[0-9a-f]+ [-rwxsp]{4} [0-9a-f]+ ([0-9a-f]{1,5}):([0-9a-f]{1,5}) ([0-9]{1,20}) "
)
_PROCESSES: Final = 100_000

Inode = tuple[int, int]


@dataclass(frozen=True)
class _Found:
    name: str
    size: int
    inode: Inode


def read_files(kubelet_root: Path, proc: Path, uid: str) -> tuple[ShmFile, ...] | Missing:
    """Offload files of one pod, by name. kubelet_root is the host's /var/lib/kubelet, proc its /proc.

    size is the memory that a file holds now, which is less than its length while it is being filled. Whether a
    process has it open, by a descriptor or a mapping, is looked up only if there is a file, and then in all processes
    of the machine: some tenths of a second on a large node, so once a minute is often enough.

    UNSUPPORTED where the kubelet's folder is not shown to us or closed to us; UNKNOWN where the pod is not in it, or
    where its volume looks empty because the mount did not reach us.
    """
    if POD_UID.fullmatch(uid) is None:
        return Missing(Absence.UNKNOWN, f"{uid[:60]!r} is not the uid of a pod")
    pods = kubelet_root / "pods"
    folder = pods / uid / VOLUME
    try:
        if not pods.is_dir():
            return unsupported(pods, "the kubelet's folder is not here")
        found, others = _offload_files(folder)
        if not found and not others and folder.stat().st_dev == folder.parent.stat().st_dev:
            # /dev/shm is a file system of its own; without mount propagation only its empty mount point is seen
            return unknown(folder, "is empty and no file system is mounted on it here")
    except OSError as error:
        if error.errno in _NO_RIGHT:
            return unsupported(folder, error.strerror or "closed to us")
        if error.errno == errno.EFBIG:
            return unknown(folder, f"has more than {_ENTRIES} entries")
        return not_read(folder, error, pods / uid)
    opened = _opened(proc, {file.inode for file in found})
    return tuple(ShmFile(_printable(file.name), file.size, _answer(opened, file)) for file in found)


def _offload_files(folder: Path) -> tuple[list[_Found], int]:
    """The files, by name, and how many other entries there are. Raises EFBIG beyond a limit: pods write here."""
    found: list[_Found] = []
    others = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            if len(found) + others == _ENTRIES:
                raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
            facts = entry.stat(follow_symlinks=False)
            if OFFLOAD_FILE.fullmatch(entry.name) and stat.S_ISREG(facts.st_mode):
                found.append(_Found(entry.name, facts.st_blocks * _STAT_BLOCK, (facts.st_dev, facts.st_ino)))
            else:
                others += 1
    return sorted(found, key=lambda file: file.name), others


def _printable(name: str) -> str:
    return "".join(letter if letter.isascii() and letter.isprintable() else "?" for letter in name)


@dataclass(frozen=True)
class _Opened:
    """inodes that processes have open; hidden says why others may be open as well."""

    inodes: frozenset[Inode]
    hidden: Missing | None


def _answer(opened: _Opened, file: _Found) -> Switch:
    if file.inode in opened.inodes:
        return True
    return opened.hidden if opened.hidden is not None else False


def _opened(proc: Path, sought: set[Inode]) -> _Opened:
    if not sought:
        return _Opened(frozenset(), None)
    hidden = _not_the_hosts(proc)
    held: set[Inode] = set()
    entries = list_names(proc, limit=_PROCESSES)
    if isinstance(entries, Missing):
        return _Opened(frozenset(), entries)
    processes = [entry for entry in entries if entry.isascii() and entry.isdigit()]
    # a running engine is nearly always found by its descriptors, which cost less to look at
    for look in (_descriptors, _mappings):
        for process in processes:
            try:
                for inode in look(proc / process):
                    held |= {inode} & sought
                    if held == sought:
                        return _Opened(frozenset(held), None)
            except OSError as error:
                if error.errno in _NO_RIGHT:
                    hidden = hidden or unsupported(proc / process, "its open files are hidden from us")
                elif error.errno not in _GONE:
                    hidden = hidden or not_read(proc / process, error)
    return _Opened(frozenset(held), hidden)


def _not_the_hosts(proc: Path) -> Missing | None:
    """Kernel threads live only in the machine's own process list: where they are missing, so are other processes."""
    try:
        if (proc / "2/comm").read_bytes() == b"kthreadd\n":
            return None
    except OSError:
        pass
    return unsupported(proc, "does not show all processes of the machine")


def _descriptors(process: Path) -> Iterator[Inode]:
    """Inodes behind those descriptors whose name could be an offload file.

    Others are not followed: a file on a dead network mount would hold the agent up.
    """
    with os.scandir(process / "fd") as descriptors:
        for descriptor in descriptors:
            try:
                target = os.readlink(descriptor.path)  # noqa: PTH115 - there may be 100,000; a Path for each is slow
                if OFFLOAD_FILE.fullmatch(target.rpartition("/")[2]):
                    facts = descriptor.stat()
                    yield facts.st_dev, facts.st_ino
            except OSError as error:
                if error.errno not in _GONE:
                    raise


def _mappings(process: Path) -> Iterator[Inode]:
    """Inodes that are mapped. vLLM closes its descriptors of all but the first file of a large pool.

    A line is "address rights offset major:minor inode path", the device in hexadecimal.
    """
    with (process / "maps").open("rb") as maps:
        for _ in range(_MAPS_LINES):
            line = maps.readline(_MAPS_LINE)
            if not line:
                return
            match = _MAPPED.match(line) if b"/vllm_" in line else None
            if match is not None:
                yield os.makedev(int(match[1], 16), int(match[2], 16)), int(match[3])
    raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
