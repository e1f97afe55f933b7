"""The checks before the start: tables over readings, and readings of made-up and of real kernels' files."""

import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hisparse_engine import preflight
from hisparse_engine.container import HOST_IPC_NAMESPACE, Container
from hisparse_engine.plan import MemoryPlan
from hisparse_engine.preflight import UNLIMITED_BYTES, Reading, Shm, Sweep

GIB = 1 << 30
ROOMY = Reading(shm_free_bytes=512 * GIB, memory_limit_bytes=1024 * GIB, kernel=(6, 8))
SHARED = MemoryPlan(shm_bytes=400 * GIB, host_pool_bytes=384 * GIB, shared_pool=True, tensor_parallel=8)
PRIVATE = MemoryPlan(shm_bytes=8 * GIB, host_pool_bytes=48 * GIB, shared_pool=False, tensor_parallel=8)


def reading(
    shm: int | None = 512 * GIB, limit: int | None = 1024 * GIB, kernel: tuple[int, int] | None = (6, 8)
) -> Reading:
    return Reading(shm, limit, kernel)


@pytest.mark.parametrize(
    ("memory", "found", "fatal", "told"),
    [
        pytest.param(SHARED, ROOMY, None, "", id="all fits"),
        pytest.param(MemoryPlan(), reading(0, GIB, (4, 18)), None, "", id="nothing planned, nothing checked"),
        pytest.param(SHARED, reading(shm=400 * GIB), None, "", id="shm just fits"),
        pytest.param(
            SHARED,
            reading(shm=64 << 20),
            True,
            "memory.shmBytes: the engine needs 400.0 GiB in /dev/shm, 64.0 MiB are free; mount an emptyDir",
            id="shm is the runtime's 64 MiB",
        ),
        pytest.param(SHARED, reading(shm=None), False, "shm could not be read", id="shm unknown"),
        pytest.param(
            SHARED,
            reading(limit=128 * GIB),
            True,
            "memory.hostPoolBytes: the host pool takes 384.0 GiB, the container's memory limit is 128.0 GiB",
            id="limit below the pool",
        ),
        pytest.param(
            SHARED,
            reading(limit=390 * GIB),
            False,
            "shm and the host pool may take 400.0 GiB, the container's memory limit is 390.0 GiB",
            id="limit between pool and shm",
        ),
        pytest.param(SHARED, reading(limit=400 * GIB), None, "", id="limit just fits"),
        pytest.param(SHARED, reading(limit=None), None, "", id="limit unknown"),
        pytest.param(SHARED, reading(limit=UNLIMITED_BYTES), None, "", id="no limit"),
        pytest.param(
            PRIVATE,
            reading(limit=383 * GIB),
            True,
            "the host pool takes 384.0 GiB (8 private copies)",
            id="a private pool counts once per rank",
        ),
        pytest.param(
            PRIVATE, reading(limit=391 * GIB), False, "may take 392.0 GiB", id="a private pool comes on top of shm"
        ),
        pytest.param(SHARED, reading(kernel=(5, 4)), False, "kernel 5.4 is older than 5.14", id="old kernel"),
        pytest.param(SHARED, reading(kernel=(5, 14)), None, "", id="5.14 is new enough"),
        pytest.param(SHARED, reading(kernel=None), None, "", id="kernel unknown"),
    ],
)
def test_check(memory: MemoryPlan, found: Reading, fatal: bool | None, told: str) -> None:
    findings = preflight.check(memory, found)
    assert [finding.fatal for finding in findings] == ([] if fatal is None else [fatal])
    assert all(told in finding.line for finding in findings)


def test_all_findings_are_told_at_once() -> None:
    assert [finding.fatal for finding in preflight.check(SHARED, Reading(0, GIB, (4, 18)))] == [True, True, False]


NAMES = ("cuda.shm.0.1f.1", "other", "psm_0a1b2c3d", "sem.mp-x1", "vllm_offload_hisparse_1_dp0.mmap")
STALE = ("cuda.shm.0.1f.1", "psm_0a1b2c3d", "sem.mp-x1", "vllm_offload_hisparse_1_dp0.mmap")


@pytest.mark.parametrize(
    ("shm", "wanted"),
    [
        pytest.param(Shm(NAMES, frozenset(), own=True), Sweep(STALE), id="nobody maps them"),
        pytest.param(Shm(NAMES, frozenset(STALE[1:]), own=True), Sweep(STALE[:1]), id="mapped ones stay"),
        pytest.param(Shm(("other",), None, own=False), Sweep(()), id="nothing of ours"),
        pytest.param(
            Shm(NAMES, None, own=True),
            Sweep((), "some process's maps cannot be read: 4 leftover file(s) in /dev/shm stay"),
            id="unknown never acts",
        ),
        pytest.param(
            Shm(NAMES, frozenset(), own=False),
            Sweep((), "shared memory is the host's: 4 file(s) may belong to other engines and stay"),
            id="the host's is not ours to sweep",
        ),
    ],
)
def test_sweep(shm: Shm, wanted: Sweep) -> None:
    assert preflight.sweep(shm) == wanted


@pytest.mark.parametrize(
    ("release", "version"),
    [
        ("6.18.44-fc", (6, 18)),
        ("5.14.0-427.13.1.el9_4.x86_64", (5, 14)),
        ("4.18", (4, 18)),
        ("6.1-rc3", (6, 1)),
        ("strange", None),
    ],
)
def test_kernel_version(release: str, version: tuple[int, int] | None) -> None:
    assert preflight.kernel_version(release) == version


def container(root: Path, cgroup: str) -> Container:
    for folder in ("shm", "proc/self/ns", "cgroup"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    (root / "proc/self/cgroup").write_text(cgroup)
    return Container(shm=root / "shm", proc=root / "proc", cgroup=root / "cgroup")


@pytest.mark.parametrize(
    ("cgroup", "files", "limit"),
    [
        pytest.param("0::/\n", {"memory.max": "1073741824\n"}, GIB, id="v2, own namespace"),
        pytest.param("0::/\n", {"memory.max": "max\n"}, UNLIMITED_BYTES, id="v2, no limit"),
        pytest.param("0::/a/b\n", {"a/b/memory.max": "max", "a/memory.max": "5"}, 5, id="v2, a group above binds"),
        pytest.param(
            "4:memory:/kubepods/pod1/c1\n0::/\n",
            {"memory/memory.limit_in_bytes": "7\n"},
            7,
            id="v1, the host's path does not exist here",
        ),
        pytest.param(
            "4:cpu,memory:/x\n",
            {"memory/x/memory.limit_in_bytes": "9223372036854771712\n"},
            UNLIMITED_BYTES,
            id="v1, no limit",
        ),
        pytest.param("0::/\n", {}, None, id="no such file: unknown"),
        pytest.param("0::/\n", {"memory.max": "odd\n"}, None, id="not a number: unknown"),
    ],
)
def test_memory_limit(tmp_path: Path, cgroup: str, files: dict[str, str], limit: int | None) -> None:
    made = container(tmp_path, cgroup)
    for name, text in files.items():
        path = tmp_path / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert made.reading().memory_limit_bytes == limit


def test_no_dev_shm_at_all_is_no_room(tmp_path: Path) -> None:
    assert Container(shm=tmp_path / "none").reading().shm_free_bytes == 0


@pytest.mark.parametrize(("link", "own"), [(HOST_IPC_NAMESPACE, False), ("ipc:[4026532179]", True), (None, False)])
def test_whose_shared_memory(tmp_path: Path, link: str | None, own: bool) -> None:
    made = container(tmp_path, "0::/\n")
    if link:
        (tmp_path / "proc/self/ns/ipc").symlink_to(link)
    assert made.shared_memory().own is own


def test_a_real_process_s_mapping_is_seen(tmp_path: Path) -> None:
    for name in ("psm_held", "psm_left"):
        (tmp_path / name).write_bytes(bytes(mmap.PAGESIZE))
    holds = (
        "import mmap, os, sys\n"
        "file = os.open(sys.argv[1], os.O_RDWR)\n"
        "held = mmap.mmap(file, 0)\n"
        "os.close(file)\n"
        "print('held', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", holds, str(tmp_path / "psm_held")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == b"held\n"
        # on a shared machine some processes cannot be looked at, so only these two are shown
        proc = tmp_path / "proc"
        proc.mkdir()
        for pid in (os.getpid(), process.pid):
            (proc / str(pid)).symlink_to(f"/proc/{pid}")
        found = Container(shm=tmp_path, proc=proc).shared_memory()
        process.communicate()
    assert found.names == ("psm_held", "psm_left")
    assert found.mapped == frozenset({"psm_held"})


def test_a_process_that_hides_its_mappings_makes_them_unknown(tmp_path: Path) -> None:
    (tmp_path / "psm_left").touch()
    (tmp_path / "proc/7/maps").mkdir(parents=True)
    assert Container(shm=tmp_path, proc=tmp_path / "proc").shared_memory().mapped is None


def test_a_file_in_our_way_is_removed_or_told(tmp_path: Path) -> None:
    (tmp_path / "psm_1").touch()
    (tmp_path / "psm_2").mkdir()
    made = Container(shm=tmp_path)
    assert made.remove("psm_1")
    assert made.remove("psm_1")
    assert not made.remove("psm_2")


def test_the_process_table_knows_us() -> None:
    (me,) = (process for process in Container().processes() if process.pid == os.getpid())
    assert (me.parent, me.group, me.session) == (os.getppid(), os.getpgrp(), os.getsid(0))


def test_a_process_with_an_odd_name_is_read(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7/stat").write_text("7 (a) b (c) S 1 7 7 0 -1")
    (process,) = Container(proc=tmp_path).processes()
    assert (process.parent, process.group, process.session, process.state) == (1, 7, 7, "S")
