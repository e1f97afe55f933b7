"""How many pods each revision should have now: one step of a rollout in place.

GPUs are scarce, so a new pod gets the place of an old one. The promise: a rollout alone never takes a serving pod
while fewer than all wanted replicas serve; so served replicas stay at wanted - 1 or above, and where a new pod does
not come up nothing further is taken. And none is taken for a pod that cannot come: the new ReplicaSet has to be there
(the API server takes its template), and the place that is given up has to be one that the new pod may have. There is
no memory between passes: every step follows from what is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from hisparse_operator.decide.pods import EnginePod


class Phase(Enum):
    """What the rollout is waiting for, or about to do."""

    COMPLETE = "nothing left to do"
    SCALE_DOWN = "more pods than wanted"
    SCALE_UP = "a place is free for a new pod"
    PREPARE = "the new ReplicaSet is made first"
    REPLACE = "an old pod makes room"
    WAIT_GONE = "an old pod is on its way out"
    WAIT_READY = "a new pod is not serving yet"
    WAIT_OLD = "an old pod is not serving yet, and its node may not take a new one"
    NO_PLACE = "no old pod is on a node that may take a new one"
    HELD = "old pods stay: no step is allowed"


@dataclass(frozen=True)
class Fleet:
    """The pods of one revision, and how many its ReplicaSet is told to keep.

    live: the ReplicaSet is there. Where it is not, nobody has told it anything: it keeps the pods that it has.
    """

    revision: str
    replicas: int
    pods: tuple[EnginePod, ...] = ()
    live: bool = True

    @property
    def active(self) -> tuple[EnginePod, ...]:
        """Pods that the ReplicaSet counts."""
        return tuple(pod for pod in self.pods if pod.active)

    @property
    def present(self) -> bool:
        """Whether there is anything of it, or should be."""
        return self.replicas > 0 or any(not pod.finished for pod in self.pods)

    @property
    def places(self) -> int:
        """Places that are taken: a pod that makes room holds its GPUs until it is gone.

        Any other pod that is going has been replaced by its ReplicaSet already. Whether its GPUs are what the next
        pod waits for is the scheduler's to say.
        """
        return max(self.replicas, len(self.active)) + sum(pod.leaving for pod in self.pods)

    @property
    def serving(self) -> int:
        """Pods that take requests."""
        return sum(pod.serving for pod in self.pods)

    @property
    def settled(self) -> bool:
        """Whether every pod that should be there serves, and no other is there."""
        return self.serving == self.replicas == len(self.active)

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


@dataclass(frozen=True)
class Terms:
    """What the world around the pods allows.

    advance: False where the newest spec is invalid or does not fit: the number of pods is kept and no old one taken.
    may_go: whether a new pod may have this pod's place. covers: whether it may be wherever pods of that revision may;
    else one without a node could still come up where a new one never will. failing: a pod of the target does not come
    up. refused: the API server refuses pods of the target.
    """

    advance: bool = True
    may_go: Callable[[EnginePod], bool] = lambda _: True
    covers: Callable[[str], bool] = lambda _: True
    failing: bool = False
    refused: bool = False


def step(wanted: int, target: str, fleets: Sequence[Fleet], terms: Terms | None = None) -> Step:
    """The next step towards `wanted` pods of revision `target`."""
    terms = terms or Terms()
    new = next((fleet for fleet in fleets if fleet.revision == target), Fleet(target, 0, live=False))
    old = [fleet for fleet in fleets if fleet.revision != target]
    now = {fleet.revision: fleet.replicas for fleet in fleets} | {target: new.replicas}

    surplus = sum(now.values()) - wanted
    if surplus > 0:
        return _take(Phase.SCALE_DOWN, now, _cheapest(new, old)[:surplus])
    free = wanted - sum(fleet.places for fleet in old)
    if free > new.replicas:
        return Step(Phase.SCALE_UP, now | _more(new, old, free, terms))
    if not any(fleet.places for fleet in old):
        phase = Phase.COMPLETE if new.settled else Phase.WAIT_READY
        return Step(phase, now)
    if any(fleet.places > fleet.replicas for fleet in old):
        return Step(Phase.WAIT_GONE, now)
    if not terms.advance:
        return Step(Phase.HELD, now)
    return _replace(new, old, now, terms)


def _more(new: Fleet, old: Sequence[Fleet], free: int, terms: Terms) -> dict[str, int]:
    """Who gets the free places: the target, unless it has shown that its pods do not come up and another's serve."""
    if stand_ins := _stand_ins(new, old, terms):
        best = max(stand_ins, key=lambda fleet: (fleet.serving, fleet.revision))
        return {best.revision: best.replicas + free - new.replicas}
    return {new.revision: free}


def _stand_ins(new: Fleet, old: Sequence[Fleet], terms: Terms) -> list[Fleet]:
    """Old revisions that serve, where the target has shown that its pods do not come up: free places are theirs."""
    if not (terms.failing or terms.refused) or not new.replicas:
        return []
    return [fleet for fleet in old if fleet.live and fleet.serving]


def _replace(new: Fleet, old: Sequence[Fleet], now: Mapping[str, int], terms: Terms) -> Step:
    if terms.refused:
        return Step(Phase.WAIT_READY, now)
    slots = [(fleet.revision, slot) for fleet in old for slot in fleet.slots()]
    # what a stand-in was given is not taken from it again at once
    stand_ins = {fleet.revision for fleet in _stand_ins(new, old, terms)}
    never_up = [
        (revision, slot) for revision, slot in slots if revision not in stand_ins and _is_no_loss(revision, slot, terms)
    ]
    if not never_up and not new.settled:
        return Step(Phase.WAIT_READY, now)
    # no place is free and every new pod serves: where the worst old pod serves too, all wanted replicas do
    worst = min(slots, key=_worth)
    can_go = [(revision, slot) for revision, slot in slots if slot is None or terms.may_go(slot)]
    if _serves(worst[1]):
        taken = sorted(can_go, key=_worth)[:1]
    else:
        taken = never_up or [entry for entry in can_go if entry == worst]
    if not taken:
        return Step(Phase.WAIT_OLD if can_go else Phase.NO_PLACE, now)
    if not new.live:
        return Step(Phase.PREPARE, now)
    return _take(Phase.REPLACE, now, taken)


def _is_no_loss(revision: str, slot: EnginePod | None, terms: Terms) -> bool:
    """Never been up, and the new pod can come wherever this one could."""
    if slot is None or not slot.scheduled:
        return terms.covers(revision) and (slot is None or slot.fresh)
    return slot.fresh and terms.may_go(slot)


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
