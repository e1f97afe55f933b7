"""Which children there should be in this pass, and which should go."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hisparse_operator.decide import render, revisions
from hisparse_operator.decide.identity import (
    Family,
    Parent,
    is_going,
    is_written,
    name_of,
    named,
    ref,
    revision_of,
)
from hisparse_operator.decide.intent import Intent
from hisparse_operator.decide.podtemplate import engine_port
from hisparse_operator.decide.revisions import PLAN_FILE, Revision
from hisparse_operator.decide.rollout import Fleet, Phase, Step
from hisparse_operator.settings import OperatorSettings
from hisparse_operator.world import Object, Ref

_DEFAULT_MAX_UNAVAILABLE = 1
_COLLECTORS = frozenset({"foregroundDeletion", "orphan"})
"""Finalizers that Kubernetes' own garbage collector sets, and takes away again by itself."""


@dataclass(frozen=True)
class Children:
    """The children of one inference, given what is wanted and the step to take."""

    parent: Parent
    kin: Family
    intent: Intent
    known: tuple[Revision, ...]
    wanted: int
    step: Step | None
    fleets: tuple[Fleet, ...]
    settings: OperatorSettings

    @property
    def port(self) -> int:
        """The Service's port; the frozen one while the spec cannot be read."""
        if self.intent.spec is not None:
            return engine_port(self.intent.spec)
        launch = self.intent.target.launch if self.intent.target else {}
        return int((launch.get("engine") or {}).get("port", 8000))

    @cached_property
    def documents(self) -> tuple[dict[str, Any], ...]:
        """What should be, in the order of writing: first what is remembered, last what makes or ends pods."""
        target = self.intent.target
        if target is None or self.step is None or self.intent.quiet:
            return ()
        documents = [target.document(self.parent), *self._shared()]
        if self.step.victims:
            documents += self._marks()
        for revision in self._alive:
            documents += [render.config_map(self.parent, revision)]
        # the target first: where the API server refuses its template, no old one has shrunk for it
        for revision in sorted(self._alive, key=lambda one: one.hash != target.hash):
            documents += [render.replica_set(self.parent, revision, self.step.replicas.get(revision.hash, 0))]
        return (*documents, *self._unknown())

    def conflicts(self) -> tuple[str, ...]:
        """Names that we need and somebody else has, and who that is."""
        taken = ((doc, self.kin.holder(doc)) for doc in self.documents)
        return tuple(f"{doc['kind']} {name_of(doc)} belongs to {holder}" for doc, holder in taken if holder)

    def held(self) -> tuple[str, ...]:
        """Children that we want, that were deleted, and that somebody's finalizer keeps."""
        wanted = {(doc["kind"], name_of(doc)) for doc in self.documents}
        return tuple(
            f"{kind} {name_of(live)} was deleted at {live['metadata']['deletionTimestamp']} and is held by the "
            f"finalizer {', '.join(finalizers)}"
            for kind, live in self._live()
            if kind != "Pod" and (kind, name_of(live)) in wanted and is_going(live) and (finalizers := _held_by(live))
        )

    def writable(self) -> tuple[dict[str, Any], ...]:
        """The documents without those that have to wait until another object of that name is gone."""
        going = {(kind, name_of(obj)) for kind, obj in self._live() if is_going(obj)}
        going |= {(kind, name_of(live)) for _, kind, live in self._spoiled}
        return tuple(
            doc for doc in self.documents if self.kin.holder(doc) is None and (doc["kind"], name_of(doc)) not in going
        )

    def deletions(self) -> tuple[Ref, ...]:
        """What nobody needs any more."""
        if self.intent.target is None or self.step is None or self.intent.quiet:
            return ()
        return tuple(ref(obj, api_version, kind) for api_version, kind, obj in self._unneeded() if not is_going(obj))

    @cached_property
    def _alive(self) -> tuple[Revision, ...]:
        """Revisions that have pods, or should: they keep their ReplicaSet and ConfigMap."""
        target = self.intent.target
        everything = (*(one for one in self.known if target is None or one.hash != target.hash), target)
        return tuple(one for one in everything if one is not None and self._needed(one.hash))

    def _needed(self, revision: str) -> bool:
        present = any(fleet.present for fleet in self.fleets if fleet.revision == revision)
        wanted = self.step.replicas.get(revision, 0) if self.step else 0
        return bool(present or wanted or (self.intent.target and self.intent.target.hash == revision))

    @cached_property
    def _spoiled(self) -> tuple[tuple[str, str, Object], ...]:
        """Plans and revisions that somebody made anew with other content.

        They cannot be changed, so they have to be deleted first. No pod notices.
        """
        frozen = {self.parent.child(one.hash): {PLAN_FILE: one.plan_json()} for one in self._alive}
        plans = [
            ("v1", "ConfigMap", live)
            for live in self.kin.ours.config_maps
            if live.get("immutable") and name_of(live) in frozen and (live.get("data") or {}) != frozen[name_of(live)]
        ]
        target = self.intent.target
        live = named(self.kin.ours.controller_revisions, self.parent.child(target.hash)) if target else None
        if target is None or live is None or live.get("data") == target.data():
            return tuple(plans)
        return (*plans, ("apps/v1", "ControllerRevision", live))

    def _shared(self) -> list[dict[str, Any]]:
        return render.shared_children(
            self.parent,
            port=self.port,
            replicas=self.wanted,
            max_unavailable=self._max_unavailable(),
            network_policy=self._network_policy(),
            revisions=self._alive,
        )

    def _max_unavailable(self) -> int:
        spec = self.intent.spec
        if spec is not None:
            return (spec.disruption.max_unavailable if spec.disruption else None) or _DEFAULT_MAX_UNAVAILABLE
        live = named(self.kin.ours.disruption_budgets, self.parent.child())
        value = ((live or {}).get("spec") or {}).get("maxUnavailable")
        return value if isinstance(value, int) else _DEFAULT_MAX_UNAVAILABLE

    def _network_policy(self) -> bool:
        spec = self.intent.spec
        if spec is not None:
            return spec.networking is None or spec.networking.network_policy is not False
        return named(self.kin.ours.network_policies, self.parent.child()) is not None

    def _marks(self) -> Iterator[dict[str, Any]]:
        """pod-deletion-cost, where a ReplicaSet has a choice at all; and who gets the place that a pod gives up."""
        step, target = self.step, self.intent.target
        for victim in step.victims if step else ():
            heir = target.hash if target and step and step.phase is Phase.REPLACE and victim.scheduled else None
            if heir or (step and step.replicas.get(victim.revision, 0) > 0):
                yield render.goes_first(self.parent, victim, heir)

    def _unknown(self) -> Iterator[dict[str, Any]]:
        """ReplicaSets of ours whose revision nobody remembers: scaled as the others, otherwise left as they are."""
        names = {one.hash for one in self._alive}
        for live in self.kin.ours.replica_sets:
            revision = revision_of(live)
            if revision and revision not in names and self._needed(revision) and self.step is not None:
                yield render.as_it_is(self.parent, live, self.step.replicas.get(revision, 0))

    def _unneeded(self) -> Iterator[tuple[str, str, Object]]:
        ours = self.kin.ours
        for api_version, kind, objects in (
            ("apps/v1", "ReplicaSet", ours.replica_sets),
            ("v1", "ConfigMap", ours.config_maps),
        ):
            for child in objects:
                revision = revision_of(child)
                if not revision and is_written(child):  # its label was lost
                    revision = self.parent.revision_in(name_of(child))
                if revision and not self._needed(revision):
                    yield api_version, kind, child
        yield from self._spoiled
        # the one that was rolled out last is what a person goes back to
        rolled_out = (self.kin.ours.inference.get("status") or {}).get("currentRevision", "")
        keep = frozenset({rolled_out, *(one.hash for one in self._alive)})
        for old in revisions.outdated(self.known, keep, self.settings.revision_history_limit):
            if (obj := named(ours.controller_revisions, self.parent.child(old.hash))) is not None:
                yield "apps/v1", "ControllerRevision", obj
        name = self.parent.child()
        if self.wanted <= 1 and (obj := named(ours.disruption_budgets, name)) is not None:
            yield "policy/v1", "PodDisruptionBudget", obj
        if not self._network_policy() and (obj := named(ours.network_policies, name)) is not None:
            yield "networking.k8s.io/v1", "NetworkPolicy", obj

    def _live(self) -> Iterator[tuple[str, Object]]:
        ours = self.kin.ours
        by_kind: Mapping[str, tuple[Object, ...]] = {
            "ControllerRevision": ours.controller_revisions,
            "ReplicaSet": ours.replica_sets,
            "Pod": ours.pods,
            "ConfigMap": ours.config_maps,
            "Service": ours.services,
            "ServiceAccount": ours.service_accounts,
            "NetworkPolicy": ours.network_policies,
            "PodDisruptionBudget": ours.disruption_budgets,
        }
        for kind, objects in by_kind.items():
            for obj in objects:
                yield kind, obj


def _held_by(obj: Object) -> list[str]:
    return [one for one in obj["metadata"].get("finalizers") or () if one not in _COLLECTORS]
