"""What a process remembers of what it wrote: bounded, and by digests."""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from typing import Any, Final

MOST: Final = 32768


def digest(value: object) -> str:
    """Equal for equal JSON values."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def remember(memory: OrderedDict[str, Any], key: str, value: object, *, most: int = MOST) -> None:
    """Remember it as the newest, and forget the oldest where there are too many."""
    memory[key] = value
    memory.move_to_end(key)
    while len(memory) > most:
        memory.popitem(last=False)
