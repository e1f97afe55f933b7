"""Logs: one JSON object a line, or readable lines on a terminal. Libraries' records take the same way."""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, Literal, TextIO

import structlog
from structlog.tracebacks import ExceptionDictTransformer
from structlog.typing import ExcInfo, Processor

from hisparse.redaction import PLAIN, Redaction, one_line, printable

Format = Literal["auto", "json", "console"]
_LOUD: Final = ("kopf", "aiohttp", "asyncio", "kubernetes")
_TRACE: Final = "exc_info"
_redaction: ContextVar[Redaction] = ContextVar("redaction", default=PLAIN)


@contextmanager
def hiding(redaction: Redaction) -> Iterator[None]:
    """What is logged meanwhile by this task is redacted so."""
    token = _redaction.set(redaction)
    try:
        yield
    finally:
        _redaction.reset(token)


def _values(_: object, __: str, entry: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """No secret in any value of an entry, nor in what was made of an exception."""
    hidden = _redaction.get()
    for key, value in entry.items():
        if key != _TRACE:  # printed later
            entry[key] = _value(value, hidden)
    return entry


def _value(value: Any, hidden: Redaction) -> Any:  # noqa: ANN401 - what is logged
    match value:
        case str():
            return str(hidden.over(value))
        case dict():
            return {key: _value(part, hidden) for key, part in value.items()}
        case list() | tuple():
            return [_value(part, hidden) for part in value]
        case bool() | int() | float() | None:
            return value
        case _:
            return hidden.over(str(value))


def _lines(_: object, __: str, entry: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """For a terminal: one line an entry, whatever the values hold."""
    for key, value in entry.items():
        if isinstance(value, str) and key != "stack":
            entry[key] = one_line(value)
    return entry


def _print_trace(stream: TextIO, exc_info: ExcInfo) -> None:
    text = "".join(traceback.format_exception(*exc_info))
    stream.write("\n" + printable(_redaction.get().over(text)).rstrip())


def configure(form: Format, level: str) -> None:
    """Set up logging for the process."""
    console = form == "console" or (form == "auto" and sys.stderr.isatty())
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    rendering: list[Processor] = (
        [
            _values,
            _lines,
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=_print_trace),
        ]
        if console
        # without the values of local variables: they hold whole objects
        else [
            structlog.processors.ExceptionRenderer(ExceptionDictTransformer(show_locals=False)),
            _values,
            structlog.processors.JSONRenderer(),
        ]
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendering],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in _LOUD:
        # kopf tells of every event at INFO and DEBUG
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
