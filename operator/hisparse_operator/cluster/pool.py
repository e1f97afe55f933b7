"""Equal parts of objects, kept once. Revisions of one inference differ in a flag or two, and so do their siblings."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Final

_PARTS: Final = 8192
_TEXTS: Final = 16384
_LONG: Final = 200
_NO_FIELDS: Final[dict[str, Any]] = {}


class Pool:
    """Gives for a JSON value an equal one that others hold as well. What comes out of it is never changed in place.

    It knows the parts that were used last; a part that it has forgotten is merely kept twice.
    """

    def __init__(self, parts: int = _PARTS, texts: int = _TEXTS) -> None:
        self._most_parts, self._most_texts = parts, texts
        self._texts: dict[str, str] = {}
        # by the identity of what is in them: an entry keeps that alive, so no id in a key is ever another's
        self._parts: OrderedDict[tuple[Any, ...], Any] = OrderedDict()

    def __len__(self) -> int:
        """Parts that it knows."""
        return len(self._parts)

    def one(self, value: Any) -> Any:  # noqa: ANN401 - JSON
        """An equal value of the same types."""
        key: tuple[Any, ...]
        made: Any
        if isinstance(value, str):
            return self._text(value)
        # most parts are known texts, or the empty leaves of managedFields: a call for each would be most of what a
        # start takes with many objects
        known_text = self._texts.get
        if isinstance(value, dict):
            made = {
                known_text(name) or self._text(name): (known_text(part) or self._text(part))
                if type(part) is str
                else _NO_FIELDS
                if part == _NO_FIELDS
                else self.one(part)
                for name, part in value.items()
            }
            key = (dict, *made, *map(id, made.values()))
        elif isinstance(value, list):
            made = [(known_text(part) or self._text(part)) if type(part) is str else self.one(part) for part in value]
            key = (list, *map(id, made))
        else:
            return value
        known = self._parts.get(key)
        if known is not None:
            self._parts.move_to_end(key)
            return known
        self._parts[key] = made
        if len(self._parts) > self._most_parts:
            self._parts.popitem(last=False)
        return made

    def _text(self, text: str) -> str:
        if len(text) > _LONG:
            return text
        if len(self._texts) >= self._most_texts:
            self._texts.clear()
        return self._texts.setdefault(text, text)
