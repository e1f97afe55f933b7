"""Offload files that engines left in their pods' /dev/shm."""

import ctypes
import mmap
import os
import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisparse_agent.readers import shm
from hisparse_agent.readers.shm import VOLUME, read_files
from hisparse_agent.readings import Absence, Missing, ShmFile

UID = "7c9e6679-7425-40de-944b-e07fc1f90ae7"
OFFLOAD = "vllm_offload_hisparse_1234567890123456789_dp0.mmap"


class Node(NamedTuple):
    """A kubelet's folder with one engine pod, and a /proc with a kernel thread and no other process."""

    kubelet: Path
    proc: Path

    @property
    def volume(self) -> Path:
        return self.kubelet / "pods" / UID / VOLUME

    def file(self, name: str = OFFLOAD, size: int = 64 * 1024) -> Path:
        path = self.volume / name
        path.write_bytes(b"\1" * size)
        return path

    def process(self, number: int) -> Path:
        process = self.proc / str(number)
        (process / "fd").mkdir(parents=True)
        (process / "maps").write_text("55d0c0a00000-55d0c0a02000 r--p 00000000 fe:00 5678 /usr/bin/python3\n")
        return process

    def read(self) -> tuple[ShmFile, ...] | Missing:
        return read_files(self.kubelet, self.proc, UID)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    node = Node(tmp_path / "kubelet", tmp_path / "proc")
    node.volume.mkdir(parents=True)
    (node.volume / "sem.mp-abcd").touch()
    (node.process(2) / "comm").write_text("kthreadd\n")
    (node.process(1) / "comm").write_text("systemd\n")
    return node


def absence(value: object) -> Absence | None:
    return value.absence if isinstance(value, Missing) else None


def only(files: tuple[ShmFile, ...] | Missing) -> ShmFile:
    assert isinstance(files, tuple)
    assert len(files) == 1
    return files[0]


def test_a_file_that_nobody_has_open(node: Node) -> None:
    path = node.file()
    found = only(node.read())
    assert found == ShmFile(OFFLOAD, path.stat().st_blocks * 512, opened=False)
    assert found.size >= 64 * 1024


def test_size_is_what_it_holds_and_not_its_length(node: Node) -> None:
    path = node.file()
    os.truncate(path, 2**40)
    assert only(node.read()).size < 2**30


def test_files_of_other_names_and_other_kinds_are_left_out(node: Node) -> None:
    node.file("psm_0a1b2c3d")
    node.file("other_vllm_offload_x.mmap")
    (node.volume / "vllm_offload_folder").mkdir()
    (node.volume / "vllm_offload_link").symlink_to(node.file("cuda.shm.0"))
    os.mkfifo(node.volume / "vllm_offload_pipe")
    assert node.read() == ()


def test_segments_of_a_large_pool_and_the_encoder_cache_are_found(node: Node) -> None:
    names = ["vllm_ec_1.mmap", "vllm_offload_1.mmap", "vllm_offload_1.mmap.1", "vllm_offload_1.mmap.2"]
    for name in reversed(names):
        node.file(name)
    files = node.read()
    assert isinstance(files, tuple)
    assert [file.name for file in files] == names


def test_a_descriptor_of_a_process_opens_it(node: Node) -> None:
    path = node.file()
    other = node.file("vllm_offload_other.mmap")
    (node.process(4711) / "fd" / "33").symlink_to(path)
    files = node.read()
    assert isinstance(files, tuple)
    assert {file.name: file.opened for file in files} == {OFFLOAD: True, other.name: False}


def test_a_file_of_the_same_name_in_another_pod_does_not_open_it(node: Node, tmp_path: Path) -> None:
    node.file()
    (tmp_path / OFFLOAD).write_bytes(b"another inode")
    (node.process(4711) / "fd" / "33").symlink_to(tmp_path / OFFLOAD)
    assert only(node.read()).opened is False


def test_a_mapping_without_a_descriptor_opens_it(node: Node) -> None:
    facts = node.file().stat()
    device = f"{os.major(facts.st_dev):02x}:{os.minor(facts.st_dev):02x}"
    maps = node.process(4711) / "maps"
    line = f"7f0000000000-7f0000010000 rw-s 00000000 {device} {facts.st_ino}          /dev/shm/{OFFLOAD}\n"
    maps.write_text(maps.read_text() + line)
    assert only(node.read()).opened is True
    maps.write_text(line.replace(str(facts.st_ino), "1"))
    assert only(node.read()).opened is False


@pytest.mark.parametrize(
    "lines", ["/vllm_offload_x", "x /vllm_\n", "0-1 rw-s 0 zz:00 1 /vllm_offload_x\n", "/vllm_" + "9" * 20000 + "\n"]
)
def test_strange_lines_of_a_map_open_nothing(node: Node, lines: str) -> None:
    node.file()
    (node.process(4711) / "maps").write_text(lines)
    assert only(node.read()).opened is False


def test_a_process_that_ended_meanwhile_hides_nothing(node: Node) -> None:
    node.file()
    gone = node.process(4711)
    shutil.rmtree(gone / "fd")
    (gone / "maps").unlink()
    (node.process(4712) / "fd" / "5").symlink_to("/dev/shm/vllm_offload_gone.mmap (deleted)")
    assert only(node.read()).opened is False


def test_processes_that_hide_their_files_leave_the_question_open(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    path = node.file()
    engine, stranger = node.process(4711), node.process(100)
    real = os.scandir

    def scandir(folder: Path) -> object:
        if Path(folder) == stranger / "fd":
            raise PermissionError(13, "Permission denied")
        return real(folder)

    monkeypatch.setattr(os, "scandir", scandir)
    opened = only(node.read()).opened
    assert isinstance(opened, Missing)
    assert opened.absence is Absence.UNSUPPORTED
    assert "/100" in opened.why
    (engine / "fd" / "33").symlink_to(path)
    assert only(node.read()).opened is True


def test_a_process_that_cannot_be_read_for_another_reason_is_unknown(node: Node) -> None:
    node.file()
    process = node.process(4711)
    shutil.rmtree(process / "fd")
    (process / "fd").touch()
    assert absence(only(node.read()).opened) is Absence.UNKNOWN


def test_a_list_of_processes_that_is_not_the_machines_denies_nothing(node: Node) -> None:
    path = node.file()
    shutil.rmtree(node.proc / "2")
    assert absence(only(node.read()).opened) is Absence.UNSUPPORTED
    (node.process(2) / "comm").write_text("python3\n")
    assert absence(only(node.read()).opened) is Absence.UNSUPPORTED
    (node.proc / "2/fd/3").symlink_to(path)
    assert only(node.read()).opened is True


def test_no_proc_is_unknown(node: Node) -> None:
    node.file()
    shutil.rmtree(node.proc)
    assert isinstance(only(node.read()).opened, Missing)


def test_no_kubelet_folder_is_unsupported(tmp_path: Path) -> None:
    assert absence(read_files(tmp_path / "nowhere", tmp_path, UID)) is Absence.UNSUPPORTED


def test_a_pod_that_is_not_there_is_unknown(node: Node) -> None:
    other = UID[:-1] + "8"
    assert absence(read_files(node.kubelet, node.proc, other)) is Absence.UNKNOWN


def test_a_pod_without_the_volume_is_unsupported(node: Node) -> None:
    shutil.rmtree(node.volume)
    assert absence(node.read()) is Absence.UNSUPPORTED


def test_a_closed_kubelet_folder_is_unsupported(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_folder: Path) -> object:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "scandir", refuse)
    assert absence(node.read()) is Absence.UNSUPPORTED


def test_an_empty_mount_point_is_not_an_empty_file_system(node: Node) -> None:
    (node.volume / "sem.mp-abcd").unlink()
    assert absence(node.read()) is Absence.UNKNOWN


def test_a_file_or_a_link_to_nowhere_in_its_place_is_unknown(node: Node) -> None:
    shutil.rmtree(node.volume)
    node.volume.touch()
    assert absence(node.read()) is Absence.UNKNOWN
    node.volume.unlink()
    node.volume.symlink_to("nowhere")
    assert absence(node.read()) is Absence.UNKNOWN


def test_more_entries_than_an_engine_makes_are_unknown(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shm, "_ENTRIES", 3)
    for index in range(3):
        node.file(f"vllm_offload_{index}", 1)
    assert absence(node.read()) is Absence.UNKNOWN


def test_a_name_is_printable(node: Node) -> None:
    node.file("vllm_offload_\udcff\n\x1b[31m\u202e", 1)
    assert only(node.read()).name == "vllm_offload_???[31m?"


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="this machine has no /dev/shm")
def test_this_process_is_found_by_descriptor_and_by_mapping() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        node = Node(Path(folder), Path("/proc"))
        node.volume.mkdir(parents=True)
        path = node.file(size=mmap.PAGESIZE)
        with path.open("r+b") as file:
            assert only(node.read()).opened is True
            # Python's own mmap keeps a descriptor
            address = libc.mmap(None, mmap.PAGESIZE, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), 0)
        assert not [link for link in Path("/proc/self/fd").iterdir() if os.path.realpath(link) == str(path)]
        assert only(node.read()).opened is True
        libc.munmap(address, mmap.PAGESIZE)
        assert only(node.read()).opened is not True


def test_this_machine_has_no_such_pod_and_says_so() -> None:
    answer = read_files(Path("/var/lib/kubelet"), Path("/proc"), UID)
    assert isinstance(answer, Missing)
    assert "/var/lib/kubelet" in answer.why


@given(uid=st.text(max_size=80), line=st.binary(max_size=200))
def test_nothing_makes_it_raise(tmp_path_factory: pytest.TempPathFactory, uid: str, line: bytes) -> None:
    base = tmp_path_factory.getbasetemp() / "shm-fuzz"
    node = Node(base / "kubelet", base / "proc")
    if not base.exists():
        node.volume.mkdir(parents=True)
        node.file()
        node.process(2)
    (node.proc / "2/comm").write_bytes(b"kthreadd\n")
    (node.proc / "2/maps").write_bytes(b"7f00-7f01 rw-s 0 " + line + b" /dev/shm/vllm_offload_x\n")
    assert isinstance(node.read(), tuple)
    assert isinstance(read_files(node.kubelet, node.proc, uid), Missing)
