"""The two files through which agent and actuator speak, read and written so that neither can mislead the other.

The folder should belong to root and carry the sticky bit: then the agent's account can add and replace its own file
and nobody else's. What is read is a regular file of limited size, never through a link, of this format and of sane
lengths; anything else is kept aside as *.broken and is nothing. Writing replaces the whole file and is on the disk
when it returns; what could not be read again is not written.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

from hisparse.units import KIB, MIB
from hisparse_agent.records import FORMAT, RECORDS_FILE, WANTED_FILE, Records, Wish

MOST_ACTIONS: Final = 32
"""Actions of one wish. Each of a node's GPUs, at most 16, may have its own; the other verbs have five targets."""
MOST_CHANGES: Final = 64
"""Settings of one action; a node has at most 16 GPUs, and CPUs are named together."""
MOST_TEXT: Final = 1024
"""Characters of any one text of the records."""
MOST_WISHED_TEXT: Final = 256
"""Characters of any one text of a wish. It goes into records, and messages about it are longer."""
_WISH_BYTES: Final = 256 * KIB
_RECORDS_BYTES: Final = 8 * MIB
_MODE: Final = 0o644
_NO_FILE: Final = frozenset({errno.ELOOP, errno.ENXIO})
"""What opening says of a link and of a socket."""


class BrokenFileError(Exception):
    """What lies there is not what it should be; the message says why."""


@dataclass(frozen=True)
class _Envelope:
    """format is looked at before anything else, so that another version's file is told as that."""

    format: int


@dataclass(frozen=True)
class _WishFile(_Envelope):
    content: Wish


@dataclass(frozen=True)
class _RecordsFile(_Envelope):
    content: Records


_Content = TypeVar("_Content")


@dataclass(frozen=True)
class Found(Generic[_Content]):
    """What was read. content is None where nothing was, and fault says why where there should have been something."""

    content: _Content | None
    fault: str = ""


_ENVELOPE: Final = TypeAdapter(_Envelope)
_WISH: Final = TypeAdapter(_WishFile)
_RECORDS: Final = TypeAdapter(_RecordsFile)


def read_wish(folder: Path) -> Found[Wish]:
    """What the agent wants. The actuator calls this, and keeps a broken file aside."""
    try:
        text = _read(folder / WANTED_FILE, _WISH_BYTES, owner=None)
        if text is None:
            return Found(None)
        return Found(_of_sane_size(_parsed(_WISH, text, MOST_WISHED_TEXT).content))
    except BrokenFileError as error:
        _keep_aside(folder / WANTED_FILE)
        return Found(None, f"{WANTED_FILE}: {error}")
    except OSError as error:
        return Found(None, f"{WANTED_FILE}: it cannot be read: {error.strerror}")


def read_records(folder: Path, *, own: bool) -> Found[Records]:
    """What the actuator did. own says that the actuator itself asks.

    It believes only a file of its own account, because old values are written back from there, and keeps another one
    aside. The agent only reads. Raises OSError where own records are there and cannot be read now: they may be sound,
    and whoever went on without them would lose every old value.
    """
    path = folder / RECORDS_FILE
    try:
        text = _read(path, _RECORDS_BYTES, owner=os.geteuid() if own else None)
        records = None if text is None else _parsed(_RECORDS, text, MOST_TEXT).content
    except BrokenFileError as error:
        if own:
            _keep_aside(path)
        return Found(None, f"{RECORDS_FILE}: {error}")
    except OSError as error:
        if own:
            raise
        return Found(None, f"{RECORDS_FILE}: it cannot be read: {error.strerror}")
    return Found(records)


def lost_records(folder: Path) -> Path | None:
    """Records that were kept aside as broken and that nobody has looked at yet: a person removes the file."""
    aside = _aside(folder / RECORDS_FILE)
    return aside if os.path.lexists(aside) else None


def write_wish(folder: Path, wish: Wish) -> None:
    """Replace wanted.json. Raises OSError."""
    _replace(folder / WANTED_FILE, _WISH.dump_json(_WishFile(FORMAT, wish), indent=1))


def write_records(folder: Path, records: Records) -> None:
    """Replace records.json. Raises OSError; nothing may be changed on the host before this has returned."""
    text = _RECORDS.dump_json(_RecordsFile(FORMAT, records), indent=1)
    if len(text) > _RECORDS_BYTES or _longest_text(records) > MOST_TEXT:
        raise OSError(errno.EFBIG, "the records are larger than what is read again")
    _replace(folder / RECORDS_FILE, text)


def _read(path: Path, limit: int, owner: int | None) -> bytes | None:
    try:
        # without O_NONBLOCK a FIFO in its place would hold us for ever
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in _NO_FILE:
            raise BrokenFileError(f"it cannot be opened: {error.strerror}") from error
        raise
    try:
        about = os.fstat(handle)
        if not stat.S_ISREG(about.st_mode):
            raise BrokenFileError("it is not a regular file")
        if owner is not None and about.st_uid != owner:
            raise BrokenFileError(f"it belongs to account {about.st_uid} and not to {owner}")
        with open(handle, "rb", closefd=False) as file:
            text = file.read(limit + 1)
    finally:
        os.close(handle)
    if len(text) > limit:
        raise BrokenFileError(f"it is larger than {limit} bytes")
    return text


def _parsed(adapter: TypeAdapter[_Content], text: bytes, most_text: int) -> _Content:
    try:
        version = _ENVELOPE.validate_json(text, strict=True).format
        if version != FORMAT:
            raise BrokenFileError(f"its format is {version}, and this program reads {FORMAT}")
        content = adapter.validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise BrokenFileError(f"{'.'.join(map(str, first['loc'])) or 'it'}: {first['msg']}") from error
    if _longest_text(content) > most_text:
        raise BrokenFileError(f"a text of it has more than {most_text} characters")
    if any(isinstance(value, datetime) and value.tzinfo is None for value in _leaves(content)):
        raise BrokenFileError("a time of it has no zone")
    return content


def _longest_text(content: object) -> int:
    return max((len(value) for value in _leaves(content) if isinstance(value, str)), default=0)


def _of_sane_size(wish: Wish) -> Wish:
    if len(wish.actions) > MOST_ACTIONS or any(len(action.changes) > MOST_CHANGES for action in wish.actions):
        raise BrokenFileError(f"it has more than {MOST_ACTIONS} actions, or one of more than {MOST_CHANGES} changes")
    return wish


def _leaves(value: Any) -> Iterator[object]:  # noqa: ANN401  any of our dataclasses
    if is_dataclass(value):
        for field in fields(value):
            yield from _leaves(getattr(value, field.name))
    elif isinstance(value, tuple):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def _keep_aside(path: Path) -> None:
    # A folder may stand in its place, or the file be another account's: then it stays and is broken next time too.
    with contextlib.suppress(OSError):
        path.replace(_aside(path))


def _aside(path: Path) -> Path:
    return path.with_name(f"{path.name}.broken")


def _replace(path: Path, text: bytes) -> None:
    fresh = path.with_name(f".{path.name}.new")
    try:
        fresh.unlink(missing_ok=True)  # of one who was killed while writing
    except OSError:
        # the other side has put a folder there
        fresh = path.with_name(f".{path.name}.{secrets.token_hex(8)}.new")
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, _MODE)
    with open(handle, "wb") as file:  # noqa: PTH123  a descriptor, not a path
        os.fchmod(file.fileno(), _MODE)  # whatever the umask says, the other side has to read it
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)  # the new name, too, has to survive a power cut
    finally:
        os.close(folder)
