"""Xids and SXids of the kernel log."""

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisparse_agent.readers.kernel_log import KernelLog, parse_xid
from hisparse_agent.readings import Absence, Missing, Xid

LOG = Path(__file__).parents[1] / "data" / "host" / "kernel-log" / "xids.kmsg"


def record(sequence: int, text: str, priority: int = 4) -> str:
    return f"{priority},{sequence},{sequence * 1000},-;{text}\n"


def xid(number: int) -> str:
    return f"NVRM: Xid (PCI:0000:1b:00): {number}, pid=1, name=python3, Ch 00000001"


def numbers(xids: tuple[Xid, ...] | Missing) -> list[int]:
    assert isinstance(xids, tuple)
    return [found.number for found in xids]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "kmsg").touch()
    return tmp_path / "kmsg"


def test_xids_of_a_server_are_read_by_number_address_and_severity() -> None:
    xids = KernelLog(LOG).poll()
    assert isinstance(xids, tuple)
    assert [(found.number, found.pci, found.fatal) for found in xids] == [
        (22013, "0000:85:00.0", False),
        (24007, "0000:83:00.0", True),
        (119, "0000:1b:00.0", None),
        (149, "0000:4d:00.0", True),
        (145, "0000:4d:00.0", False),
        (45, "0000:4d:00.0", None),
        (94, "0000:07:00.0", None),
        (79, "0000:9b:00.0", None),
        (79, "0000:9b:00.0", None),
        (79, "0000:b3:00.0", None),
    ]
    assert xids[2].at == 300.25
    assert xids[2].text.startswith("NVRM: Xid (PCI:0000:1b:00): 119, pid=41236, name=nvidia-smi, Timeout after 6s")


def test_a_line_that_a_process_wrote_is_no_xid() -> None:
    xids = KernelLog(LOG).poll()
    assert "may write here" in LOG.read_text()
    assert isinstance(xids, tuple)
    assert not [found for found in xids if "may write here" in found.text]


@pytest.mark.parametrize(
    ("text", "number", "pci", "fatal"),
    [
        pytest.param("NVRM: Xid (0000:03:00): 6, PE0001", 6, "0000:03:00.0", None, id="of an old driver"),
        pytest.param("NVRM: Xid (PCI:0000:03:00): 62", 62, "0000:03:00.0", None, id="without a text"),
        pytest.param("NVRM: Xid (PCI:10000:E1:00): 48, x", 48, "10000:e1:00.0", None, id="of a long domain"),
        pytest.param("NVRM: Xid (PCI:0000:03:00.1): 48, x", 48, "0000:03:00.1", None, id="with a function"),
        pytest.param(
            "NVRM: Xid (PCI:0018:01:00): 145, RLW_CTRL  Nonfatal  XC0 i0 Link 14 (0x1)",
            145,
            "0018:01:00.0",
            False,
            id="Nonfatal holds the word fatal",
        ),
        pytest.param(
            "NVRM: Xid (PCI:0019:01:00): 149, NETIR Fatal XC0 i0 Link -1 (0x1)", 149, "0019:01:00.0", True, id="Fatal"
        ),
        pytest.param(
            "NVRM: Xid (PCI:0019:01:00): 150, MPD Something XC0", 150, "0019:01:00.0", None, id="neither word"
        ),
        pytest.param(
            "NVRM: Xid (PCI:0019:01:00): 143, NETIR Fatal XC0",
            143,
            "0019:01:00.0",
            None,
            id="the word in an Xid whose number decides",
        ),
        pytest.param(
            "NVRM: Xid (PCI:0000:01:00): 144, pid=1, name=Fatal, x", 144, "0000:01:00.0", None, id="a process called so"
        ),
        pytest.param(
            "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 11001, Fatal, ingress invalid command",
            11001,
            "0000:c1:00.0",
            True,
            id="of a switch",
        ),
        pytest.param(
            "NVRM: GPU at 0000:01:00.0 has fallen off the bus.", 79, "0000:01:00.0", None, id="fallen off, no number"
        ),
        pytest.param("NVRM: fallen off the bus and is not responding.", 79, "", None, id="fallen off, no address"),
    ],
)
def test_one_message(text: str, number: int, pci: str, fatal: bool | None) -> None:
    found = parse_xid(text, 1.5)
    assert found is not None
    assert (found.number, found.at, found.pci, found.fatal) == (number, 1.5, pci, fatal)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "NVRM: GPU at PCI:0000:b3:00: GPU-00000000-0000-0000-0000-000000000006",
        "NVRM: Xid (PCI:0000:03:00): garbled, x",
        "python3: NVRM: Xid (PCI:0000:03:00): 79, x",
        "a disk has fallen off the bus",
        "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 11001, Data {0x0}",
        "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 11001, Severity 1 Engine instance 00",
        "nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping further processing",
    ],
)
def test_other_messages_are_no_xids(text: str) -> None:
    assert parse_xid(text, 0.0) is None


def test_a_long_text_is_cut() -> None:
    found = parse_xid(xid(13) + " x" * 5000, 0.0)
    assert found is not None
    assert len(found.text) == 300


def test_a_poll_gives_what_came_since_the_last(path: Path) -> None:
    log = KernelLog(path)
    path.write_text(record(1, xid(13)) + record(2, xid(43)))
    assert numbers(log.poll()) == [13, 43]
    assert log.poll() == ()
    with path.open("a") as file:
        file.write(record(3, xid(79)))
    assert numbers(log.poll()) == [79]
    log.close()


def test_a_record_that_is_not_all_there_waits(path: Path) -> None:
    log = KernelLog(path)
    whole = record(1, xid(79))
    path.write_text(whole[:30])
    assert log.poll() == ()
    with path.open("a") as file:
        file.write(whole[30:])
    assert numbers(log.poll()) == [79]
    log.close()


def test_a_log_that_is_opened_again_is_not_repeated(path: Path) -> None:
    log = KernelLog(path)
    path.write_text(record(1, xid(13)) + record(2, xid(43)))
    assert numbers(log.poll()) == [13, 43]
    log.close()
    with path.open("a") as file:
        file.write(record(3, xid(79)))
    assert numbers(log.poll()) == [79]
    log.close()
    log.close()
    assert log.poll() == ()
    assert log.lost == 0


def test_records_that_were_overwritten_are_counted(path: Path) -> None:
    log = KernelLog(path)
    path.write_text(record(5, "x") + record(6, "x") + record(10, xid(79)))
    assert numbers(log.poll()) == [79]
    assert log.lost == 3
    log.close()


def test_an_overwritten_record_does_not_end_the_poll(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[bytes | OSError] = [
        record(1, xid(13)).encode(),
        BrokenPipeError(),
        record(9, xid(79)).encode(),
        BlockingIOError(),
    ]

    def read(_file: int, _size: int) -> bytes:
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    log = KernelLog(path)
    monkeypatch.setattr("hisparse_agent.readers.kernel_log.os.read", read)
    assert numbers(log.poll()) == [13, 79]
    assert log.lost == 7
    log.close()


def test_what_was_read_before_an_error_is_given_and_the_error_after(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[bytes | OSError] = [record(1, xid(13)).encode(), OSError(errno.EIO, os.strerror(errno.EIO))]

    def read(_file: int, _size: int) -> bytes:
        answer = answers.pop(0) if answers else OSError(errno.EIO, os.strerror(errno.EIO))
        if isinstance(answer, OSError):
            raise answer
        return answer

    log = KernelLog(path)
    monkeypatch.setattr("hisparse_agent.readers.kernel_log.os.read", read)
    assert numbers(log.poll()) == [13]
    again = log.poll()
    assert isinstance(again, Missing)
    assert again.absence is Absence.UNKNOWN


def test_a_flood_is_read_in_more_than_one_poll(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = 0

    def read(_file: int, _size: int) -> bytes:
        nonlocal reads
        reads += 1
        return record(reads, "noise").encode()

    log = KernelLog(path)
    monkeypatch.setattr("hisparse_agent.readers.kernel_log.os.read", read)
    assert log.poll() == ()
    assert 1000 < reads < 100_000
    first = reads
    assert log.poll() == ()
    assert reads == 2 * first
    log.close()


def test_no_right_to_read_is_unsupported_and_says_which(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object) -> int:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr("hisparse_agent.readers.kernel_log.os.open", refuse)
    answer = KernelLog(path).poll()
    assert isinstance(answer, Missing)
    assert answer.absence is Absence.UNSUPPORTED
    assert "CAP_SYSLOG" in answer.why


def test_no_log_is_unsupported_and_may_come_later(tmp_path: Path) -> None:
    log = KernelLog(tmp_path / "kmsg")
    answer = log.poll()
    assert isinstance(answer, Missing)
    assert answer.absence is Absence.UNSUPPORTED
    (tmp_path / "kmsg").write_text(record(1, xid(79)))
    assert numbers(log.poll()) == [79]
    log.close()


@pytest.mark.parametrize("content", [b"no log\nat all\n", b"\x00\xff\n" * 40])
def test_a_file_that_is_no_log_is_unknown(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    answer = KernelLog(path).poll()
    assert isinstance(answer, Missing)
    assert answer.absence is Absence.UNKNOWN


def test_a_log_without_records_has_no_xids(path: Path) -> None:
    assert KernelLog(path).poll() == ()


def test_a_folder_is_unknown(tmp_path: Path) -> None:
    answer = KernelLog(tmp_path).poll()
    assert isinstance(answer, Missing)
    assert answer.absence is Absence.UNKNOWN


def test_a_pipe_without_a_writer_does_not_hold_it_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    log = KernelLog(tmp_path / "pipe")
    assert log.poll() == ()
    writer = os.open(tmp_path / "pipe", os.O_WRONLY)
    assert log.poll() == ()
    os.write(writer, record(1, xid(79)).encode())
    assert numbers(log.poll()) == [79]
    os.close(writer)
    log.close()


def test_this_machines_log_is_read_or_says_why() -> None:
    log = KernelLog(Path("/dev/kmsg"))
    answer = log.poll()
    if isinstance(answer, Missing):
        assert answer.absence is Absence.UNSUPPORTED
        assert "/dev/kmsg" in answer.why
    else:
        assert all(found.number > 0 for found in answer)
        assert isinstance(log.poll(), tuple)
    log.close()


@given(content=st.binary(max_size=400) | st.text("0123456789,-;NVRMXid ():.\n\\x", max_size=200).map(str.encode))
def test_no_content_makes_it_raise(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.kmsg"
    path.write_bytes(content)
    log = KernelLog(path)
    assert isinstance(log.poll(), Missing | tuple)
    log.close()


@given(
    head=st.sampled_from(["NVRM: Xid (PCI:0000:1b:00): ", "nvidia-nvswitch0: SXid (PCI:0000:85:00.0): ", "NVRM: "]),
    rest=st.text(max_size=80) | st.text("0123456789, \\x0aFatlNonf", max_size=40),
)
def test_no_message_makes_it_raise(head: str, rest: str) -> None:
    found = parse_xid(head + rest, 0.0)
    assert found is None or (str(found.number) in rest or found.number == 79)
