"""How many pods each revision should have now: one step of a rollout in place.

GPUs are scarce, so a new pod gets the place of an old one. The promise: a rollout alone never takes a serving pod
while fewer than all wanted replicas serve; so served replicas stay at wanted - 1 or above, and where a new pod does
not come up nothing further is taken. There is no memory between passes: every step follows from what is there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from hisparse_operator.decide.pods import EnginePod


class Phase(Enum):
    """What the rollout is waiting for, or about to do."""

    COMPLETE = "nothing left to do"
    SCALE_DOWN = "more pods than wanted"
    SCALE_UP = "a place is free for a new pod"
    REPLACE = "an old pod makes room"
    WAIT_GONE = "an old pod is on its way out"
    WAIT_READY = "a new pod is not serving yet"
    HELD = "old pods stay: no step is allowed"


@dataclass(frozen=True)
class Fleet:
    """The pods of one revision, and how many its ReplicaSet is told to keep (0 where there is no ReplicaSet)."""

    revision: str
    replicas: int
    pods: tuple[EnginePod, ...] = ()

    @property
    def active(self) -> tuple[EnginePod, ...]:
        """Pods that the ReplicaSet counts."""
        return tuple(pod for pod in self.pods if pod.active)

    @property
    def places(self) -> int:
        """Places that are taken: pods that are going hold their GPUs until they are gone."""
        return max(self.replicas, sum(not pod.finished for pod in self.pods))

    @property
    def serving(self) -> int:
        """Pods that take requests."""
        return sum(pod.serving for pod in self.pods)

    @property
    def settled(self) -> bool:
        """Whether every pod that should be there serves, and no other is there."""
        return self.serving == self.replicas == self.places

    def slots(self) -> Iterator[EnginePod | None]:
        """One entry per wanted replica, worst first; None where the pod does not exist yet."""
        active = sorted(self.active, key=EnginePod.worth)
        yield from [None] * max(0, self.replicas - len(active))
        yield from active[max(0, len(active) - self.replicas) :]


@dataclass(frozen=True)
class Step:
    """Replicas per revision as they should be now; `victims` are the pods that make room."""

    phase: Phase
    replicas: Mapping[str, int]
    victims: tuple[EnginePod, ...] = field(default=())


def step(wanted: int, target: str, fleets: Sequence[Fleet], *, advance: bool = True) -> Step:
    """The next step towards `wanted` pods of revision `target`.

    advance=False (the newest spec is invalid or does not fit) keeps the number of pods and takes no old one.
    """
    new = next((fleet for fleet in fleets if fleet.revision == target), Fleet(target, 0))
    old = [fleet for fleet in fleets if fleet.revision != target]
    now = {fleet.revision: fleet.replicas for fleet in fleets} | {target: new.replicas}

    surplus = sum(now.values()) - wanted
    if surplus > 0:
        return _take(Phase.SCALE_DOWN, now, _cheapest(new, old)[:surplus])
    free = wanted - sum(fleet.places for fleet in old)
    if free > new.replicas:
        return Step(Phase.SCALE_UP, now | {target: free})
    if not any(fleet.places for fleet in old):
        phase = Phase.COMPLETE if new.settled else Phase.WAIT_READY
        return Step(phase, now)
    if any(fleet.places > fleet.replicas for fleet in old):
        return Step(Phase.WAIT_GONE, now)
    if not advance:
        return Step(Phase.HELD, now)
    return _replace(new, old, now)


def _replace(new: Fleet, old: Sequence[Fleet], now: Mapping[str, int]) -> Step:
    slots = [(fleet.revision, slot) for fleet in old for slot in fleet.slots()]
    never_up = [(revision, slot) for revision, slot in slots if slot is None or slot.fresh]
    if never_up:
        return _take(Phase.REPLACE, now, never_up)
    if not new.settled:
        return Step(Phase.WAIT_READY, now)
    # no place is free and every new pod serves: where the worst old pod serves too, all wanted replicas do
    return _take(Phase.REPLACE, now, [min(slots, key=_worth)])


def _cheapest(new: Fleet, old: Sequence[Fleet]) -> list[tuple[str, EnginePod | None]]:
    """Slots in the order in which scaling down takes them: what does not serve first, then what is old."""
    slots = [(1, new.revision, slot) for slot in new.slots()]
    slots += [(0, fleet.revision, slot) for fleet in old for slot in fleet.slots()]
    slots.sort(key=lambda entry: (_serves(entry[2]), entry[0], _worth(entry[1:])))
    return [(revision, slot) for _, revision, slot in slots]


def _take(phase: Phase, now: Mapping[str, int], slots: Sequence[tuple[str, EnginePod | None]]) -> Step:
    replicas = dict(now)
    for revision, _ in slots:
        replicas[revision] -= 1
    return Step(phase, replicas, tuple(slot for _, slot in slots if slot is not None))


def _serves(slot: EnginePod | None) -> bool:
    return slot is not None and slot.serving


def _worth(entry: tuple[str, EnginePod | None]) -> tuple[bool, bool, int, str, str]:
    return entry[1].worth() if entry[1] is not None else (False, False, 0, "", entry[0])
