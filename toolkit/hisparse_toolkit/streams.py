"""stdout and stderr that cannot bring a command down: a reader that has gone, a full disk, a narrow encoding."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TextIO, cast

LEAST_WIDTH: Final = 40


class Outlet:
    """A text stream that writes what it can: after a fault the rest is dropped, and `fault` says what happened.

    What the encoding cannot hold is written as the escape of its code point.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.fault: OSError | None = None

    def write(self, text: str) -> int:
        """Write a text, all of it as far as the caller is concerned."""
        if self.fault is None:
            try:
                self._stream.write(self._encodable(text))
            except OSError as error:
                self._give_up(error)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Bring out what is held back."""
        if self.fault is None:
            try:
                self._stream.flush()
            except OSError as error:
                self._give_up(error)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  whatever else the stream can do
        return getattr(self._stream, name)

    def _encodable(self, text: str) -> str:
        encoding = self._stream.encoding or "utf-8"
        try:
            text.encode(encoding)
        except UnicodeEncodeError:
            return text.encode(encoding, "backslashreplace").decode(encoding)
        return text

    def _give_up(self, error: OSError) -> None:
        self.fault = error
        # the interpreter flushes once more at its end, and would complain in its own words
        with contextlib.suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)


@dataclass(frozen=True)
class Outlets:
    """Both streams while a command runs."""

    out: Outlet
    err: Outlet

    def unwritable(self) -> str | None:
        """Why the answer could not be written, None where it was or where its reader did not want the rest."""
        self.out.flush()
        fault = self.out.fault
        return None if fault is None or isinstance(fault, BrokenPipeError) else fault.strerror or str(fault)


@contextlib.contextmanager
def outlets() -> Iterator[Outlets | None]:
    """Guard stdout and stderr while the block runs; None where stdout is closed."""
    before = sys.stdout, sys.stderr
    # a stream that was closed before we started is None
    err = Outlet(cast("TextIO | None", sys.stderr) or open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, PTH123
    sys.stderr = cast("TextIO", err)
    try:
        if cast("TextIO | None", sys.stdout) is None:
            yield None
            return
        out = Outlet(sys.stdout)
        sys.stdout = cast("TextIO", out)
        yield Outlets(out, err)
    finally:
        err.flush()
        sys.stdout, sys.stderr = before


def tell(text: object) -> None:
    """One fault on stderr: a line, wrapped where a person reads it on a terminal."""
    width = _terminal_width()
    print(text if width is None else wrapped(str(text), width), file=sys.stderr)


def print_json(document: Mapping[str, Any]) -> None:
    """The answer on stdout as JSON: in ASCII, so that it is the same in every encoding."""
    print(json.dumps(document, indent=2))


def wrapped(text: str, width: int) -> str:
    """The text in lines of at most `width`, the later ones set in; words that are longer stay whole."""
    return "\n".join(
        textwrap.fill(line, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
        for line in text.splitlines()
    )


def wished_width() -> int | None:
    """What COLUMNS asks for, where it asks for something."""
    wish = os.environ.get("COLUMNS", "")
    # six digits are wider than anything that is looked at
    return max(LEAST_WIDTH, int(wish)) if wish.isascii() and wish.isdigit() and 0 < len(wish) < 6 else None  # noqa: PLR2004


def _terminal_width() -> int | None:
    if not sys.stderr.isatty():
        return None
    try:
        return wished_width() or max(LEAST_WIDTH, os.get_terminal_size(sys.stderr.fileno()).columns)
    except (OSError, ValueError):
        return None
