"""Quotes and dashes that word processors put in place of plain ones. To a shell and to vLLM they are letters."""

from __future__ import annotations

from typing import Final

DASHES: Final = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212"
"""What becomes of a hyphen."""

_SINGLE: Final = "\u2018\u2019\u201a\u201b\u2032\u2039\u203a"
_DOUBLE: Final = "\u201c\u201d\u201e\u201f\u2033\u00ab\u00bb"
QUOTES: Final = _SINGLE + _DOUBLE
"""What becomes of quotes."""


def fault(text: str, *, is_json: bool = False) -> str:
    """What such letters make of a value; "" where they are part of a text, as the apostrophe of it's."""
    if not text:
        return ""
    if text[0] in QUOTES or text[-1] in QUOTES or (is_json and any(letter in QUOTES for letter in text)):
        return "has quotes that a word processor made; the shell takes them for letters of the value"
    if " " not in text and not is_json and any(letter in DASHES for letter in text):
        return "has a dash that a word processor made, which is another letter than the hyphen"
    return ""


def plain(text: str) -> str:
    """The text as it was meant: hyphens for dashes, and no quotes around it."""
    text = text.translate(dict.fromkeys(map(ord, DASHES), "-"))
    text = text.strip(QUOTES).translate(dict.fromkeys(map(ord, _DOUBLE), '"') | dict.fromkeys(map(ord, _SINGLE), "'"))
    return f"'{text}'" if " " in text or '"' in text else text
