"""Models that need no look-up: their config.json as far as the planner reads it, with sources.

One module per family. To add a model, see CONTRIBUTING.md. A test loads every entry.
"""

from __future__ import annotations

import difflib

from hisparse.catalogue import (
    deepseek,
    gemma,
    glm,
    gpt_oss,
    kimi,
    llama,
    mistral,
    qwen2,
    qwen3,
    qwen_hybrid,
    shapes,
)
from hisparse.catalogue.entry import Entry

__all__ = ["ENTRIES", "Entry", "lookup", "suggest"]

ENTRIES: tuple[Entry, ...] = (
    *glm.ENTRIES,
    *deepseek.ENTRIES,
    *kimi.ENTRIES,
    *llama.ENTRIES,
    *qwen2.ENTRIES,
    *qwen3.ENTRIES,
    *qwen_hybrid.ENTRIES,
    *gpt_oss.ENTRIES,
    *gemma.ENTRIES,
    *mistral.ENTRIES,
    *shapes.ENTRIES,
)

_USUAL_ENDINGS = ("-instruct", "-it", "-chat")
"""What people leave out of a name: the tuned model is meant, and the base has the same shape."""

_BY_NAME = {name.lower(): entry for entry in ENTRIES for name in (entry.repo, *entry.aliases)}


def lookup(name: str) -> Entry | None:
    """The entry of a repo; the organisation and a usual ending may be left out, case does not matter."""
    wanted = name.lower()
    if wanted in _BY_NAME:
        return _BY_NAME[wanted]
    if "/" in wanted:
        return None
    last_parts = {known.rsplit("/", 1)[-1]: entry for known, entry in reversed(_BY_NAME.items())}
    spelled = (wanted, *(wanted + ending for ending in _USUAL_ENDINGS))
    return next((last_parts[one] for one in spelled if one in last_parts), None)


def suggest(name: str) -> str | None:
    """The known repo whose name is nearest, if one is near."""
    names: dict[str, str] = {}
    for known in _BY_NAME:
        names.setdefault(known.rsplit("/", 1)[-1], known)
    near = difflib.get_close_matches(name.lower().rsplit("/", 1)[-1], names, n=1, cutoff=0.75)
    if not near:
        return None
    entry = _BY_NAME[names[near[0]]]
    return next(known for known in (entry.repo, *entry.aliases) if known.lower() == names[near[0]])
