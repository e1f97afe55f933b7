"""What of an inference's texts may be shown in its status, its Events and the log: the one place that knows.

Messages of API servers, kubelets and engines pass through here before they are compared or cut. The applier sends
everything through once more, so that no path can be forgotten.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from hisparse.redaction import Redaction, one_line, printable
from hisparse_operator.world import Object

_LINES: Final = "logTail"
_TEXTS: Final = frozenset({"message", "summary", "bindingMessage", "cheapestChange", "warnings", "advice", "note"})
"""Fields of the status that hold sentences; all others are words and numbers of our own."""


def redaction_of(inference: Object) -> Redaction:
    """Hides what the spec of this inference keeps secret, and what looks like a secret."""
    return Redaction.of_spec(inference.get("spec"))


def message(text: str, redaction: Redaction) -> str:
    """One line, without secrets."""
    return one_line(redaction.over(printable(text)))


def log(text: str, redaction: Redaction) -> str:
    """Lines of a log, without secrets. Before it is cut, since half a key has no form any more."""
    # vLLM's progress bars end in carriage returns
    return redaction.over(printable(text.replace("\r\n", "\n").replace("\r", "\n")))


def status(document: Object, redaction: Redaction) -> dict[str, Any]:
    """A whole status, as it may be written."""
    return {key: _part(key, value, redaction) for key, value in document.items()}


def _part(key: str, value: Any, redaction: Redaction) -> Any:  # noqa: ANN401 - JSON
    match value:
        case str() if key == _LINES:
            return log(value, redaction)
        case str() if key in _TEXTS:
            return message(value, redaction)
        case Mapping():
            return {name: _part(name, part, redaction) for name, part in value.items()}
        case list() | tuple():
            return [_part(key, part, redaction) for part in value]
        case _:
            return value
