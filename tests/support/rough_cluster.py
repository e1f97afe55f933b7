"""The small cluster where everything may go wrong: passes that die, worlds that are old, writes that are refused.

What it adds to SmallCluster: a pass may end after any of its writes; it may decide on an older snapshot of some kinds
while its writes go to the present, with the checks of cluster/apply.py (uid and resource version of what it saw, the
owner, what is still being deleted); the operator's clock is its own; the operator may be of a newer release. A ledger
holds every pod that ends against the pass that caused it.

What it does not model: field ownership (an apply replaces whole top-level fields, and the labels as a whole), slices
that lag behind their pods, the wait after a refused write (each pass tries again), and who keeps undoing our writes.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from simulator import GRACE, RefusedError, SmallCluster, copied, in_place

from hisparse_operator.cluster.apply import owner_of
from hisparse_operator.decide.blocked import Blocked, Hindrance, blocked_status
from hisparse_operator.decide.conditions import status_of
from hisparse_operator.decide.identity import is_going, labels_of, revision_of
from hisparse_operator.decide.reasons import ConditionType, Reason
from hisparse_operator.decide.reconcile import reconcile
from hisparse_operator.kinds import LABEL
from hisparse_operator.world import Outcome, Ref

KINDS = (
    "HiSparseInference",
    "ControllerRevision",
    "ReplicaSet",
    "Pod",
    "ConfigMap",
    "Service",
    "ServiceAccount",
    "NetworkPolicy",
    "PodDisruptionBudget",
)
_KEPT = 8


class StaleError(Exception):
    """The API server says 409, or what we want to write is still being deleted: the pass ends and is tried again."""


class TakenError(Exception):
    """A name that we need is somebody else's."""


class KilledError(Exception):
    """The process is gone, or the connection."""


@dataclass(frozen=True)
class Snapshot:
    """The world at some moment. disturbed: how much people and nodes had done to pods by then."""

    objects: Mapping[tuple[str, str], dict[str, Any]]
    inference: dict[str, Any]
    disturbed: int


@dataclass(frozen=True)
class Pass:
    """What a pass saw and said. wanted: the replicas of the spec that it saw. led: pods that it saw in the cluster's
    ReplicaSets, or without one."""

    wanted: int
    led: int
    disturbed: int
    status: Mapping[str, Any]

    @property
    def target(self) -> str:
        return str(self.status.get("updateRevision", ""))

    @property
    def progressing(self) -> str:
        return str(status_of(self.status.get("conditions") or (), ConditionType.PROGRESSING).get("reason", ""))

    def told(self) -> str:
        return f"wanted {self.wanted}, saw {self.led}, target {self.target}, Progressing {self.progressing}"


@dataclass
class Ledger:
    """Who told each ReplicaSet its number last (None: a person), and what people and nodes did to pods."""

    told: dict[str, Pass | None] = field(default_factory=dict)
    disturbed: int = 0

    def lowered(self, revision: str, before: int, after: int, cause: Pass) -> None:
        """A pass takes pods of a revision: its status has to name the cause."""
        what = f"revision {revision} goes from {before} to {after} ({cause.told()})"
        assert cause.led > cause.wanted or revision != cause.target, f"{what}: it is the target, and none is too many"
        assert cause.progressing not in (Reason.COMPLETE, Reason.PAUSED, Reason.PLAN_ONLY, ""), (
            f"{what}: nobody says so"
        )

    def ended(self, cause: Pass | None, before: int, after: int) -> None:
        """A pod was ended for its ReplicaSet's number, or with it; how many served before and after."""
        if cause is None or cause.disturbed != self.disturbed:
            return  # a person, or the pass could not know what happened since
        assert after >= min(before, cause.wanted - 1), f"{before} served, now {after} ({cause.told()})"


class RoughCluster(SmallCluster):
    """One inference whose operator, API server and people do their worst."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.ledger = Ledger()
        self.skew = timedelta(0)
        """How far the operator's clock is off."""
        self.release: Callable[[], AbstractContextManager[Any]] = nullcontext
        """The release of the operator, to be entered while it decides."""
        self.refusing: set[str] = set()
        """Kinds that the API server refuses to write."""
        self.filled: dict[str, Any] = {}
        """What the API server fills into every spec that it reads."""
        self.foreign: dict[tuple[str, str], dict[str, Any]] = {}
        self.beside: dict[tuple[str, str], dict[str, Any]] = {}
        """Objects of people that stand beside ours for good, and have our label."""
        self._actor: Pass | str = "person"
        self._history: list[Snapshot] = []
        self._floor: dict[str, int] = {}
        self._taken = 0
        self.remember()

    # --- what the operator sees ---------------------------------------------------------------------------------

    def remember(self) -> None:
        """A moment that a lagging watch may still show later."""
        now = Snapshot(self.objects, self.inference, self.ledger.disturbed)
        if self._history and self._history[-1] == now:
            return
        self._history.append(copied(now))
        self._taken += 1
        del self._history[:-_KEPT]

    def restart(self) -> None:
        """A new process lists everything."""
        self.remember()
        self._floor = dict.fromkeys(KINDS, self._taken)

    def lagging(self, kinds: frozenset[str], age: int) -> Snapshot:
        """The present, with some kinds as they were; never older than what this process has seen or written."""
        self.remember()
        parts = {
            kind: self._at(max(self._taken - age, self._floor.get(kind, 0)) if kind in kinds else self._taken)
            for kind in KINDS
        }
        for kind in KINDS:
            self._floor[kind] = max(self._floor.get(kind, 0), self._taken - age if kind in kinds else self._taken)
        objects = {key: obj for kind, part in parts.items() for key, obj in part.objects.items() if key[0] == kind}
        disturbed = min(part.disturbed for part in parts.values())
        return Snapshot(objects, parts["HiSparseInference"].inference, disturbed)

    def long_ago(self, age: int) -> Snapshot:
        """What another process, that does not lead any more, saw last."""
        self.remember()
        return self._at(self._taken - age)

    def _at(self, moment: int) -> Snapshot:
        return self._history[max(0, len(self._history) - 1 - (self._taken - moment))]

    # --- passes -------------------------------------------------------------------------------------------------

    def operate(self) -> int:
        return self.attempt(self.lagging(frozenset(), 0))

    def attempt(self, seen: Snapshot, limit: int | None = None, *, lost: bool = False, theirs: bool = False) -> int:
        """One pass that saw this and ends after so many writes. lost: the answer of the last one does not come.

        theirs: of another process.
        """
        self.now += timedelta(seconds=1)
        outcome = self._decided(seen)
        cause = self._pass(seen, outcome)
        done: list[str] = []
        try:
            for write in self._writes(seen, outcome, cause):
                _check(done, limit)
                if (kind := write()) is not None:
                    done.append(kind)
        except (RefusedError, TakenError) as error:
            self._block(error)
        except (StaleError, KilledError):
            pass
        else:
            self.events += outcome.events
        if not theirs:
            self.remember()
            for kind in done[: len(done) - lost]:
                self._floor[kind] = self._taken
        return len(done)

    def _decided(self, seen: Snapshot) -> Outcome:
        with self._as_seen(seen), self.release():
            return self.decide()

    @contextmanager
    def _as_seen(self, seen: Snapshot) -> Iterator[None]:
        present = self.objects, self.inference, self.now
        self.objects, self.inference, self.now = dict(seen.objects), seen.inference, self.now + self.skew
        try:
            yield
        finally:
            self.objects, self.inference, self.now = present

    def _pass(self, seen: Snapshot, outcome: Outcome) -> Pass:
        sets = [obj for (kind, _), obj in seen.objects.items() if kind == "ReplicaSet" and LABEL in labels_of(obj)]
        told = {revision_of(one): int(one["spec"]["replicas"]) for one in sets if not is_going(one)}
        pods = [obj for (kind, _), obj in seen.objects.items() if kind == "Pod" and not is_going(obj)]
        lost = sum(revision_of(pod) not in told and pod["status"].get("phase") != "Failed" for pod in pods)
        raw = seen.inference["spec"].get("replicas", 1)
        led = sum(told.values()) + lost
        return Pass(raw if isinstance(raw, int) else led, led, seen.disturbed, outcome.status or {})

    def _writes(self, seen: Snapshot, outcome: Outcome, cause: Pass) -> Iterator[Callable[[], str | None]]:
        """The writes of a pass in their order; each says what it wrote, None if nothing had to be."""
        known = {}
        for document in outcome.apply:
            key = (document["kind"], document["metadata"]["name"])
            known[key] = self._look(key, seen)
        for document in outcome.apply:
            key = (document["kind"], document["metadata"]["name"])
            yield lambda document=document, key=key: self._apply_child(document, known[key], cause)  # type: ignore[misc]
        for reference in outcome.delete:
            yield lambda reference=reference: self._delete_child(reference, seen, cause)  # type: ignore[misc]
        if outcome.status is not None:
            yield lambda: self._apply_status(outcome.status or {}, seen)

    def _look(self, key: tuple[str, str], seen: Snapshot) -> dict[str, Any] | None:
        """The object as the pass knows it: from its watches, which select by our label, else asked for."""
        live = seen.objects.get(key)
        if live is None or LABEL not in labels_of(live):
            live = copied(self.objects.get(key))
            if live is not None and not owner_of(live, seen.inference) and not is_going(live):
                # nothing was decided on it: the watches have to show it first, and need its label for that
                self.objects[key]["metadata"].setdefault("labels", {})[LABEL] = "llama"
                raise StaleError(key)
        if live is None:
            return None
        if key[0] != "Pod" and owner_of(live, seen.inference):
            raise TakenError(key)
        if is_going(live):
            raise StaleError(key)
        return live

    def _apply_child(self, document: Mapping[str, Any], known: dict[str, Any] | None, cause: Pass) -> str | None:
        kind, key = document["kind"], (document["kind"], document["metadata"]["name"])
        present = self.objects.get(key)
        if known is not None and in_place(known, document):
            return None  # as it was seen: no request is made, so nobody finds out that it has changed
        if known != present:
            raise StaleError(key)
        if kind in self.refusing:
            raise RefusedError(key)
        before = int(present["spec"]["replicas"]) if kind == "ReplicaSet" and present is not None else 0
        if not self._apply(document):
            return None
        if kind == "ReplicaSet":
            after = int(document["spec"]["replicas"])
            live = self.objects[key]
            if after < before:
                self.ledger.lowered(revision_of(live), before, after, cause)
            if after != before:
                self.ledger.told[live["metadata"]["uid"]] = cause
        return str(kind)

    def _delete_child(self, reference: Ref, seen: Snapshot, cause: Pass) -> str | None:
        key = (reference.kind, reference.name)
        live = self.objects.get(key)
        if live is None or live["metadata"]["uid"] != reference.uid:
            return None
        if live != seen.objects.get(key):
            return None
        assert not self.is_foreign(key), f"{key} is somebody else's and was deleted"
        pods = [pod for pod in self._of(live) if not is_going(pod)] if reference.kind == "ReplicaSet" else []
        if pods:
            self.ledger.lowered(revision_of(live), len(pods), 0, cause)
        self._actor = cause
        self.delete(reference.kind, reference.name)
        self._actor = "person"
        return reference.kind

    def _apply_status(self, status: Mapping[str, Any], seen: Snapshot) -> str | None:
        if self.inference != seen.inference:
            raise StaleError("HiSparseInference")
        if status == self.inference.get("status"):
            return None
        self.inference["status"] = copied(dict(status))
        return "HiSparseInference"

    def _block(self, error: RefusedError | TakenError) -> None:
        """As cluster's worker does: the status says why nothing goes on, with the world as it is now."""
        reason = Hindrance.CHILD_CONFLICT if isinstance(error, TakenError) else Hindrance.REFUSED
        world = self.world()
        with self.release():
            outcome = reconcile(world, self.now + self.skew, self.settings)
        if outcome.status is not None:
            blocked = Blocked(reason, f"{error}")
            self.inference["status"] = blocked_status(outcome.status, world, blocked, self.now + self.skew)

    # --- people and nodes ---------------------------------------------------------------------------------------

    def edit(self, spec: Mapping[str, Any]) -> None:
        super().edit({**spec, **self.filled})

    def disturb(self) -> None:
        """Somebody else takes pods, or keeps them from serving."""
        self.ledger.disturbed += 1

    def tell(self, name: str, replicas: int) -> None:
        """kubectl scale rs"""
        live = self.objects["ReplicaSet", name]
        live["spec"]["replicas"] = replicas
        self.ledger.told[live["metadata"]["uid"]] = None

    def intrude(self, kind: str, name: str, *, labelled: bool) -> None:
        """Somebody else makes an object of a name that we need, or will need."""
        self.objects.pop((kind, name), None)
        metadata: dict[str, Any] = {"name": name, "namespace": "serving", "uid": self._uid()}
        if labelled:
            owner = {"kind": "HiSparseInference", "name": "llama", "uid": "uid-of-a-namesake", "controller": True}
            metadata |= {"labels": {LABEL: "llama"}, "ownerReferences": [owner]}
        made: dict[str, Any] = {
            "kind": kind,
            "metadata": metadata,
            "data": {"of": "another"},
            "spec": {"of": "another"},
        }
        self.objects[kind, name] = made
        self.foreign[kind, name] = copied(made)

    def stand_beside(self, kind: str, name: str, *, owned: bool) -> None:
        """Somebody makes an object with our label: a copy of one of ours, or one to be collected with the inference."""
        if (kind, name) in self.objects:
            return
        metadata: dict[str, Any] = {
            "name": name,
            "namespace": "serving",
            "uid": self._uid(),
            "labels": {LABEL: "llama"},
        }
        if owned:
            uid = self.inference["metadata"]["uid"]
            metadata["ownerReferences"] = [{"kind": "HiSparseInference", "name": "llama", "uid": uid}]
        self.objects[kind, name] = {"kind": kind, "metadata": metadata, "data": {"of": "a person"}}
        self.beside[kind, name] = copied(self.objects[kind, name])

    def is_foreign(self, key: tuple[str, str]) -> bool:
        live, foreign = self.objects.get(key), self.foreign.get(key) or self.beside.get(key)
        return live is not None and foreign is not None and live["metadata"]["uid"] == foreign["metadata"]["uid"]

    def heal(self) -> None:
        self.refusing.clear()
        for key in self.foreign:
            if self.is_foreign(key):
                del self.objects[key]
        self.foreign.clear()
        for (kind, _), obj in self.objects.items():
            # who took labels and owners away gives them back, as the operator asks for
            if kind != "Pod":
                obj["metadata"].setdefault("labels", {})[LABEL] = self.inference["metadata"]["name"]
        super().heal()

    # --- Kubernetes ---------------------------------------------------------------------------------------------

    def control(self) -> None:
        self._actor = "kubernetes"
        super().control()
        self._actor = "person"

    def collect(self) -> None:
        self._actor = "garbage"
        super().collect()
        self._actor = "person"

    def _terminate(self, pod: dict[str, Any]) -> None:
        before = self.serving()
        owner = next((one["uid"] for one in pod["metadata"].get("ownerReferences") or ()), "")
        super()._terminate(pod)
        if isinstance(self._actor, Pass):
            self.ledger.ended(self._actor, before, self.serving())
        elif self._actor == "kubernetes":
            self.ledger.ended(self.ledger.told.get(owner), before, self.serving())
        else:
            self.disturb()


def _check(done: list[str], limit: int | None) -> None:
    if limit is not None and len(done) >= limit:
        raise KilledError


def rest(cluster: RoughCluster) -> None:
    """Run everything until nothing changes, deadlines of pods included."""
    cluster.settle()
    cluster.now += GRACE + timedelta(seconds=30)
    cluster.settle()
