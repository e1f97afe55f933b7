"""Small files of /proc, /sys and cgroups: read with a limit; what cannot be read says why and never raises.

A missing file alone does not tell a machine that lacks something from a folder that was never mounted here. So a
caller names what lies beside it on every machine: if that is there, the thing itself is UNSUPPORTED, else UNKNOWN.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hisparse.units import KIB, MIB
from hisparse_agent.readings import Absence, Missing, Number, Text

LIMIT: Final = MIB
"""Bytes; the longest that is read here, a kernel's configuration, has some 300 kB."""

ENTRIES: Final = 8192
"""Names in one folder; no machine has more CPUs."""

_NUMBER = re.compile(r"[0-9]{1,20}", re.ASCII)
_KIB = re.compile(r"([0-9]{1,20}) kB", re.ASCII)


def unknown(path: Path, why: str) -> Missing:
    """A value of a file that could not be had this time."""
    return Missing(Absence.UNKNOWN, f"{path}: {why}")


def unsupported(path: Path, why: str) -> Missing:
    """A value that this machine does not have or hides."""
    return Missing(Absence.UNSUPPORTED, f"{path}: {why}")


def not_read(path: Path, error: OSError, beside: Path | None = None) -> Missing:
    """What an error of the operating system means for the value in a file."""
    if error.errno == errno.EOPNOTSUPP:
        # pressure files of a kernel that was started with psi=0
        return unsupported(path, "this kernel has it switched off")
    if error.errno == errno.ENOENT and beside is not None and is_there(beside) and not _dangles(path):
        return unsupported(path, "this machine has no such file")
    return unknown(path, error.strerror or type(error).__name__)


def is_there(path: Path) -> bool:
    """Whether it can be seen from here. Path.exists raises without rights to a folder above."""
    try:
        path.stat()
    except OSError:
        return False
    return True


def _dangles(path: Path) -> bool:
    """Whether the way to it ends in a link that leads nowhere: there is something, and it cannot be seen from here."""
    nearest = next((step for step in (path, *path.parents) if os.path.lexists(step)), path)
    return os.path.lexists(nearest) and not is_there(nearest)


def read_bytes(path: Path, *, beside: Path | None = None, limit: int = LIMIT) -> bytes | Missing:
    """A regular file of at most `limit` bytes."""
    try:
        # a pipe in its place must not hold the agent up
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError as error:
        return not_read(path, error, beside)
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            return unknown(path, "is not a regular file")
        content = bytearray()
        while len(content) <= limit and (part := os.read(file, limit + 1 - len(content))):
            content += part
    except OSError as error:
        return not_read(path, error, beside)
    finally:
        os.close(file)
    if len(content) > limit:
        return unknown(path, f"is longer than {limit} bytes")
    return bytes(content)


def read_text(path: Path, *, beside: Path | None = None, limit: int = LIMIT) -> Text:
    """The whole text of a file, which may be empty.

    The kernel ends every line, so a text without its last line end was cut, perhaps inside a number: UNKNOWN.
    """
    content = read_bytes(path, beside=beside, limit=limit)
    if isinstance(content, Missing):
        return content
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return unknown(path, "is not text")
    if "\0" in text:
        return unknown(path, "is not text")
    if text and not text.endswith("\n"):
        return unknown(path, "ends in the middle of a line")
    return text


def read_value(path: Path, form: re.Pattern[str], *, beside: Path | None = None) -> Text:
    """The one line of a file, without blanks at its ends; UNKNOWN unless all of it has this form."""
    text = read_text(path, beside=beside)
    if isinstance(text, Missing):
        return text
    value = text.strip()
    if not value:
        return unknown(path, "is empty")
    if form.fullmatch(value) is None:
        return unknown(path, f"has an unexpected form: {value[:60]!r}")
    return value


def read_number(path: Path, *, beside: Path | None = None) -> Number:
    """The one whole number of a file."""
    value = read_value(path, _NUMBER, beside=beside)
    return value if isinstance(value, Missing) else int(value)


def list_names(path: Path, *, beside: Path | None = None, limit: int = ENTRIES) -> tuple[str, ...] | Missing:
    """Sorted names in a folder of at most `limit` entries."""
    names: list[str] = []
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                names.append(entry.name)
                if len(names) > limit:
                    return unknown(path, f"has more than {limit} entries")
    except OSError as error:
        return not_read(path, error, beside)
    return tuple(sorted(names))


@dataclass(frozen=True)
class Table:
    """A file of one named number per line, such as vmstat ("name 1") or meminfo ("Name:  1 kB")."""

    path: Path
    rows: Mapping[str, str] | Missing

    def count(self, key: str, *, beside: str | None = None) -> Number:
        """A plain number. A key that is not there is UNSUPPORTED where `beside` is, else UNKNOWN."""
        return self._number(key, _NUMBER, 1, beside)

    def size(self, key: str) -> Number:
        """Bytes of a number that the file gives in kB, by which the kernel means KiB."""
        return self._number(key, _KIB, KIB, None)

    def _number(self, key: str, form: re.Pattern[str], unit: int, beside: str | None) -> Number:
        if isinstance(self.rows, Missing):
            return self.rows
        value = self.rows.get(key)
        if value is None:
            if beside in self.rows:
                return unsupported(self.path, f"this kernel has no {key}")
            return unknown(self.path, f"does not have {key}")
        match = form.fullmatch(value)
        if match is None:
            return unknown(self.path, f"{key} has an unexpected form: {value[:60]!r}")
        return int(match[match.lastindex or 0]) * unit


def read_table(path: Path, *, separator: str = " ", prefix: str = "", beside: Path | None = None) -> Table:
    """Rows of a file by name. A name that comes twice has no number: which is right would be a guess."""
    text = read_text(path, beside=beside)
    if isinstance(text, Missing):
        return Table(path, text)
    rows: dict[str, str] = {}
    for line in text.split("\n"):
        key, found, value = line.removeprefix(prefix).partition(separator)
        if found:
            rows[key.strip()] = "more than one line" if key.strip() in rows else value.strip()
    return Table(path, rows)
