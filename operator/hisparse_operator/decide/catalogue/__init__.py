"""The catalogue: what each word of the operator means, where it may stand, how to check it, what to do.

Pure data. docs/troubleshooting.md is generated from it. A condition whose reason may not stand in it with its status
fails every test of the operator (tests/operator/conftest.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from hisparse_operator.decide.catalogue import events, nodes, pods, progress, specs, types
from hisparse_operator.decide.catalogue.entry import Entry, EventEntry, Stand, TypeEntry

TYPES: Final[tuple[TypeEntry, ...]] = types.ENTRIES
REASONS: Final[tuple[Entry, ...]] = (*specs.ENTRIES, *pods.ENTRIES, *progress.ENTRIES, *nodes.ENTRIES)
EVENTS: Final[tuple[EventEntry, ...]] = events.ENTRIES

STANDS: Final[Mapping[str, frozenset[Stand]]] = MappingProxyType(
    {str(entry.word): frozenset(entry.stands) for entry in REASONS}
)
"""By reason: the conditions that it may be the reason of, and with which status."""


def may_stand(condition: str, status: str, reason: str) -> bool:
    """Whether a condition of this type may have this status for this reason."""
    return (condition, status) in STANDS.get(reason, frozenset())
