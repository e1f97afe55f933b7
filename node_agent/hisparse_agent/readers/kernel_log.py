"""Xids and SXids of the kernel log, read from /dev/kmsg as they come.

Only records of the kernel itself count: whoever may write to /dev/kmsg can write any line, but not as the kernel.
"""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from typing import Final

from hisparse.units import MIB
from hisparse_agent.readers.kernel_files import unknown, unsupported
from hisparse_agent.readings import NVLINK_XIDS, Missing, Xid

FALLEN_OFF_THE_BUS: Final = 79
"""The Xid of a GPU that is gone. Drivers also say so in a line without a number, and sometimes only there."""

_CHUNK: Final = 16384  # more than the longest record; a read of less is refused
# a flood of records is read on in the next poll; /dev/kmsg gives one record per read
_READS_PER_POLL: Final = 20_000
_BYTES_PER_POLL: Final = 8 * MIB
_TEXT: Final = 300
_MICROSECONDS: Final = 10**6
_FACILITY: Final = 3  # bits of the priority below the facility, which is 0 for the kernel
_NO_RIGHT: Final = (errno.EACCES, errno.EPERM)

# "6,1234,227996636,-;text": priority, sequence number, microseconds since boot, flags
_RECORD = re.compile(r"([0-9]{1,10}),([0-9]{1,19}),([0-9]{1,19}),[^;]{0,200};(.*)", re.ASCII)
_ESCAPED = re.compile(r"\\x([0-9a-f]{2})", re.ASCII)
_PCI: Final = r"(?P<domain>[0-9A-Fa-f]{4,8}):(?P<slot>[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2})(?P<function>\.[0-7])?"
_XID = re.compile(
    rf"(?:NVRM|nvidia-nvswitch[0-9]{{1,3}}): (?P<kind>S?Xid) \((?:PCI:)?{_PCI}[^)]{{0,40}}\): "
    r"(?P<number>[0-9]{1,6})(?:, ?(?P<rest>.*))?",
    re.ASCII,
)
# an SXid comes with more lines of the same number that only have registers in them
_REST_OF_SXID = re.compile(r"(?:Data \{|Severity [0-9])", re.ASCII)
_LOST = re.compile(r"NVRM: .*\bfallen off the bus\b", re.ASCII)
_ADDRESS = re.compile(_PCI, re.ASCII)
_LINK_SEVERITY = re.compile(r"[A-Z0-9_]{1,40} (?P<word>Nonfatal|Non-fatal|Fatal)\b", re.ASCII)
_SWITCH_SEVERITY = re.compile(r"(?P<word>Nonfatal|Non-fatal|Fatal)\b", re.ASCII)


class KernelLog:
    """A kernel log that is read once: every poll gives what came since the one before.

    The first poll gives what the kernel still has since boot. `lost` counts records that the kernel overwrote before
    they were read here.
    """

    def __init__(self, path: Path) -> None:
        self.lost = 0
        self._path = path
        self._file: int | None = None
        self._unfinished = b""
        self._last: int | None = None
        self._read_before: int | None = None

    def poll(self) -> tuple[Xid, ...] | Missing:
        """New Xids in the order of the log; never waits.

        UNSUPPORTED without the right to read it (CAP_SYSLOG) or without a log; UNKNOWN if what is there is no log.
        """
        if self._file is None:
            try:
                self._file = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
            except OSError as error:
                return self._refused(error)
        xids: list[Xid] = []
        size = lines = records = 0
        failure: Missing | None = None
        for _ in range(_READS_PER_POLL):
            if size > _BYTES_PER_POLL:
                break
            try:
                content = os.read(self._file, _CHUNK)
            except BlockingIOError:
                break
            except BrokenPipeError:
                continue  # overwritten since the last read; the next one goes on with the oldest that is left
            except OSError as error:
                failure = self._refused(error)
                self.close()
                break
            if not content:
                break
            size += len(content)
            *whole, self._unfinished = (self._unfinished + content).split(b"\n")
            self._unfinished = self._unfinished[-_CHUNK:]
            for line in whole:
                # " KEY=value" belongs to the record above
                if line.startswith(b" "):
                    continue
                lines += 1
                match = _RECORD.fullmatch(line.decode(errors="replace"))
                if match is not None:
                    records += 1
                    xids += self._taken(match)
        if not xids and failure is not None:
            return failure
        if lines and not records:
            return unknown(self._path, "has no records of a kernel log")
        return tuple(xids)

    def close(self) -> None:
        """Let go of the log. A later poll opens it again and does not repeat what was read."""
        if self._file is not None:
            os.close(self._file)
        self._file, self._unfinished = None, b""
        if self._last is not None:
            self._read_before, self._last = self._last, None

    def _refused(self, error: OSError) -> Missing:
        if error.errno in _NO_RIGHT:
            return unsupported(self._path, f"{error.strerror}; reading the kernel log needs CAP_SYSLOG")
        if error.errno == errno.ENOENT:
            return unsupported(self._path, "there is no kernel log here")
        return unknown(self._path, error.strerror or type(error).__name__)

    def _taken(self, record: re.Match[str]) -> list[Xid]:
        priority, sequence, microseconds = (int(record[group]) for group in (1, 2, 3))
        if self._read_before is not None and sequence <= self._read_before:
            return []
        previous = self._last if self._last is not None else self._read_before
        if previous is not None and sequence > previous + 1:
            self.lost += sequence - previous - 1
        self._last = sequence
        if priority >> _FACILITY:
            return []
        xid = parse_xid(record[4], microseconds / _MICROSECONDS)
        return [] if xid is None else [xid]


def parse_xid(message: str, at: float) -> Xid | None:
    """The Xid or SXid of one message of the kernel, or None.

    An SXid keeps its own number, all of which are above 10000. A GPU that has fallen off the bus is a 79 however the
    driver says it. The address is spelled as sysfs does, with function 0 where the message has none; it is empty where
    the message has no address. `fatal` is set only where the text of a message of this kind has a word for it.
    """
    text = " ".join(_ESCAPED.sub(lambda escape: chr(int(escape[1], 16)), message).split())
    match = _XID.match(text)
    if match is not None:
        rest = match["rest"] or ""
        number = int(match["number"])
        if match["kind"] == "SXid" and _REST_OF_SXID.match(rest):
            return None
        return Xid(number, at, _address(match), text[:_TEXT], fatal=_fatal(match["kind"], number, rest))
    if _LOST.match(text):
        address = _ADDRESS.search(text)
        return Xid(FALLEN_OFF_THE_BUS, at, _address(address) if address else "", text[:_TEXT])
    return None


def _address(match: re.Match[str]) -> str:
    return f"{int(match['domain'], 16):04x}:{match['slot'].lower()}{match['function'] or '.0'}"


def _fatal(kind: str, number: int, rest: str) -> bool | None:
    if kind == "SXid":
        severity = _SWITCH_SEVERITY.match(rest)
    elif number in NVLINK_XIDS:
        severity = _LINK_SEVERITY.match(rest)
    else:
        severity = None
    return None if severity is None else severity["word"] == "Fatal"
