"""Two writers of one field: whoever undoes what we write makes us write more and more rarely.

Only a write that somebody has undone counts. A rollout writes the status often, and nobody undoes it.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from hisparse_operator.kinds import FIELD_MANAGER, STATUS_MANAGER
from hisparse_operator.world import Object

FREE: Final = 5
"""So many times in a row we put it back at once."""
QUIET_S: Final = 10.0
"""So long, or two intervals, without being undone ends the row."""
FIRST_S: Final = 2.0
LONGEST_S: Final = 300.0
_REMEMBERED: Final = 1024


@dataclass
class _Row:
    generation: int
    times: int = 0
    last: float = 0.0
    interval: float = 0.0


class Contest:
    """Counts, for each place that we write, how often in a row somebody undid it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._rows: OrderedDict[str, _Row] = OrderedDict()

    def wait(self, place: str, generation: int) -> float:
        """Seconds until an undone write may be repeated, 0 where at once. An edit by the user begins anew."""
        row = self._rows.get(place)
        if row is None or row.generation != generation:
            return 0.0
        return max(0.0, row.last + row.interval - self._clock())

    def undone(self, place: str, generation: int) -> bool:
        """We repeat a write that somebody undid; whether this is one of a row that should be told of."""
        now = self._clock()
        row = self._rows.get(place)
        if row is None or row.generation != generation or now - row.last > max(QUIET_S, 2 * row.interval):
            row = self._rows[place] = _Row(generation)
            while len(self._rows) > _REMEMBERED:
                self._rows.popitem(last=False)
        self._rows.move_to_end(place)
        row.times, row.last = row.times + 1, now
        if row.times < FREE:
            return False
        row.interval = min(max(FIRST_S, 2 * row.interval), LONGEST_S)
        return True


def contested(live: Object, subresource: str = "") -> str:
    """Who undoes our writes, as managedFields tell, and what to do about it; the same text each time."""
    what = "the status" if subresource else f"{live['kind']} {live['metadata']['name']}"
    entries = [
        entry
        for entry in live["metadata"].get("managedFields") or ()
        if entry.get("subresource", "") == subresource and entry.get("manager") not in (FIELD_MANAGER, STATUS_MANAGER)
    ]
    names = list(dict.fromkeys(str(one["manager"]) for one in sorted(entries, key=_when, reverse=True)))
    rarely = (
        f"{what} was changed {FREE} times in a row after this operator had written it, so it is written more rarely"
    )
    if names:
        others = ", ".join(f'"{name}"' for name in names[:3])
        return (
            f"{rarely} from now on. Field manager {others} writes it too (kubectl get -o yaml --show-managed-fields "
            "has the fields): make that writer leave it alone"
        )
    ours = STATUS_MANAGER if subresource else FIELD_MANAGER
    return (
        f'{rarely} from now on. The other writer has our own name, "{ours}": two operators serve this namespace with '
        "different leases. Stop one of them, or give each its own --namespace"
    )


def put_back(kind: str, name: str, live: Object | None) -> str:
    """What a person undid, who, as far as managedFields tell, and what to edit instead. live: as it was found."""
    instead = (
        "Edit the HiSparseInference instead; spec.paused: true makes the operator leave its children alone for a while."
    )
    if live is None:
        return f"{kind} {name} was deleted, and the operator has made it again. {instead}"
    entries = live["metadata"].get("managedFields") or ()
    ours = max((_when(one) for one in entries if one.get("manager") == FIELD_MANAGER), default="")
    # the status is the business of controllers; a scale is written by people, and the API server gives it no time
    others = [
        one
        for one in entries
        if one.get("manager") not in (FIELD_MANAGER, STATUS_MANAGER)
        and one.get("subresource", "") != "status"
        and (not _when(one) or _when(one) >= ours)
    ]
    last = max(others, key=_when, default=None)
    who = "somebody whom its managedFields do not name" if last is None else f'field manager "{last["manager"]}"'
    return f"{kind} {name} was changed by {who}, and the operator has put it back. {instead}"


def _when(entry: Object) -> str:
    return str(entry.get("time", ""))
