"""Memory of an engine pod as its cgroup counts it, version 2 or 1, under the names of either cgroup driver."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from hisparse_agent.readers.kernel_files import is_there, list_names, read_number, read_table, unknown
from hisparse_agent.readers.meminfo import read_pressure
from hisparse_agent.readings import Absence, EnginePod, Missing, Number

POD_UID: Final = re.compile(r"[0-9A-Za-z]{1,64}(?:-[0-9A-Za-z]{1,64}){0,8}", re.ASCII)
"""A pod's uid becomes part of a path, so nothing else may."""

_QOS: Final = ("", "burstable", "besteffort")
# kind starts its kubelets with a cgroup root of their own
_ROOTS: Final = ("", "kubelet")


def read_pod(cgroup_root: Path, pod: EnginePod) -> EnginePod:
    """The pod with memory, shmem, anon, oom_kills, max_events and pressure filled in; nothing else changes.

    cgroup_root is the host's /sys/fs/cgroup. Bytes are those of all its containers together, with memory that is
    charged to the pod itself (/dev/shm). The counters of version 1 are those of the containers that live now: a
    restart takes its own away. Version 1 has no pressure (UNSUPPORTED).
    """
    if is_there(cgroup_root / "cgroup.controllers"):
        folder = _folder(cgroup_root, pod.uid)
        return _nothing(pod, folder) if isinstance(folder, Missing) else _version_2(folder, pod)
    if is_there(cgroup_root / "memory"):
        folder = _folder(cgroup_root / "memory", pod.uid)
        return _nothing(pod, folder) if isinstance(folder, Missing) else _version_1(folder, pod)
    return _nothing(pod, unknown(cgroup_root, "no cgroups are mounted here"))


def pod_folders(uid: str) -> tuple[Path, ...]:
    """Where a kubelet may have put the pod, below the root of the hierarchy.

    The systemd driver nests slices, each with the name of those above it, and `-` in a uid becomes `_` because it
    separates them. Guaranteed pods have no class of their own.
    """
    folders: list[Path] = []
    for root in _ROOTS:
        for qos in _QOS:
            folders.append(Path(root, "kubepods", qos, f"pod{uid}"))
            slices = [part for part in (root, "kubepods", qos, f"pod{uid.replace('-', '_')}") if part]
            folders.append(Path(*(f"{'-'.join(slices[: end + 1])}.slice" for end in range(len(slices)))))
    return tuple(folders)


def _folder(root: Path, uid: str) -> Path | Missing:
    if POD_UID.fullmatch(uid) is None:
        return Missing(Absence.UNKNOWN, f"{uid[:60]!r} is not the uid of a pod")
    for folder in pod_folders(uid):
        if is_there(root / folder):
            return root / folder
    return unknown(root, f"there is no cgroup of pod {uid}")


def _nothing(pod: EnginePod, why: Missing) -> EnginePod:
    return replace(pod, memory=why, shmem=why, anon=why, oom_kills=why, max_events=why, pressure=why)


def _version_2(folder: Path, pod: EnginePod) -> EnginePod:
    usage = read_table(folder / "memory.stat")
    events = read_table(folder / "memory.events")
    return replace(
        pod,
        memory=read_number(folder / "memory.current"),
        shmem=usage.count("shmem"),
        anon=usage.count("anon"),
        oom_kills=events.count("oom_kill"),
        max_events=events.count("max"),
        pressure=read_pressure(folder / "memory.pressure", beside=folder / "memory.current"),
    )


def _version_1(folder: Path, pod: EnginePod) -> EnginePod:
    """total_ marks the numbers that count what is below; rss is what version 2 calls anon."""
    usage = read_table(folder / "memory.stat")
    return replace(
        pod,
        memory=read_number(folder / "memory.usage_in_bytes"),
        shmem=usage.count("total_shmem"),
        anon=usage.count("total_rss"),
        oom_kills=_in_tree(folder, lambda own: read_table(own / "memory.oom_control").count("oom_kill")),
        max_events=_in_tree(folder, lambda own: read_number(own / "memory.failcnt")),
        pressure=Missing(Absence.UNSUPPORTED, f"{folder}: version 1 of cgroups has no memory.pressure"),
    )


def _in_tree(folder: Path, count_of: Callable[[Path], Number]) -> Number:
    """Sum over the pod and its containers: version 1 counts an event where it happened and nowhere above."""
    names = list_names(folder)
    if isinstance(names, Missing):
        return names
    total = 0
    for own in (folder, *(folder / name for name in names if is_there(folder / name / "memory.stat"))):
        count = count_of(own)
        if isinstance(count, Missing):
            return count
        total += count
    return total
