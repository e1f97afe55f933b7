"""What should be: the whole decision of one pass, as a value. No I/O, no clock, no memory between passes.

    spec -> intent (accepted? fits? which revision?) -> rollout step -> children -> conditions -> status, events

`wants_hub` and `wants_logs` name the two slow reads that a pass may need; everything else is always read.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from hisparse_operator.decide import degraded, events, failures, intent, judge, pods, revisions, rollout, shown, status
from hisparse_operator.decide.children import Children
from hisparse_operator.decide.conditions import Status
from hisparse_operator.decide.identity import Parent, family, is_going, labels_of, parent_of, revision_of
from hisparse_operator.decide.intent import Intent
from hisparse_operator.decide.judge import Scene
from hisparse_operator.decide.places import Places
from hisparse_operator.decide.pods import EnginePod
from hisparse_operator.decide.reasons import Reason
from hisparse_operator.decide.revisions import Revision
from hisparse_operator.decide.rollout import Fleet, Step, Terms
from hisparse_operator.settings import OperatorSettings
from hisparse_operator.world import Object, Outcome, World

HUB_RETRY_SECONDS: Final = 300
CONFLICT_RETRY_SECONDS: Final = 30


def wants_hub(world: World) -> tuple[str, str] | None:
    """(repository, revision) whose config.json and index the hub should be asked for; None where nothing needs them."""
    return intent.hub_model(world)


def wants_logs(world: World) -> tuple[str, ...]:
    """Pods whose last ended run should be read, so that status.lastFailure can name its cause."""
    return failures.wants_logs(world)


def reconcile(world: World, now: datetime, settings: OperatorSettings) -> Outcome:
    """Children, deletions, status and Events as they should be."""
    if is_going(world.inference):
        return Outcome()  # owner references take the children; making new ones would be wrong
    parent = parent_of(world.inference)
    kin = family(world, parent)
    known = revisions.read(kin.ours)
    wish = intent.resolve(kin.ours, parent, known, settings)
    seen = pods.read(kin.ours.pods, kin.ours.endpoint_slices, now)
    remembered = {one.hash for one in known} | ({wish.target.hash} if wish.target else set())
    fleets = _fleets(kin.ours, seen, remembered)
    wanted = _wanted(world.inference, wish, fleets)
    places = Places(world.nodes, wish.target.template if wish.target else {})
    step = _step(wish, wanted, fleets, kin.ours, places, known)
    children = Children(parent, kin, wish, known, wanted, step, fleets, settings)
    scene = Scene(
        intent=wish,
        wanted=wanted,
        step=step,
        fleets=fleets,
        replica_sets=kin.ours.replica_sets,
        before=world.inference.get("status") or {},
        conflicts=children.conflicts(),
        places=places,
        strays=_strays(seen, fleets, parent),
        held=children.held(),
        name=parent.name,
        reports=degraded.Reports.of(world.report_sight, world.node_reports, now),
    )
    hidden = shown.redaction_of(world.inference)
    judged = tuple(replace(one, message=shown.message(one.message, hidden)) for one in judge.conditions(scene))
    report = status.document(
        scene,
        judged,
        parent=parent,
        port=children.port,
        generation=int(world.inference["metadata"].get("generation", 1)),
        previous_logs=world.previous_logs,
        now=now,
    )
    return Outcome(
        apply=children.writable(),
        delete=children.deletions(),
        status=report,
        events=events.events(scene, judged, report),
        retry_seconds=_retry(scene, now),
    )


def _fleets(world: World, seen: Iterable[EnginePod], remembered: Iterable[str]) -> tuple[Fleet, ...]:
    """The pods by revision. Whose ReplicaSet is gone, or on its way out, keeps the pods that it has.

    Without a ReplicaSet, and with nothing to make one from, pods that stay cannot be led: they are strays.
    """
    told: dict[str, int] = {}
    live: set[str] = set()
    for replica_set in world.replica_sets:
        revision = revision_of(replica_set)
        if is_going(replica_set):
            told.setdefault(revision, 0)
        else:
            live.add(revision)
            told[revision] = int(replica_set["spec"].get("replicas", 1))
    led = {*told, *remembered}
    by_name: dict[str, list[EnginePod]] = {name: [] for name in told}
    for pod in seen:
        if pod.revision in told or (not pod.finished and (pod.revision in led or pod.terminating)):
            by_name.setdefault(pod.revision, []).append(pod)
    return tuple(
        Fleet(name, told[name] if name in live else sum(pod.active for pod in mine), tuple(mine), live=name in live)
        for name, mine in sorted(by_name.items())
        if name
    )


def _strays(seen: Iterable[EnginePod], fleets: Iterable[Fleet], parent: Parent) -> tuple[EnginePod, ...]:
    """Pods behind our Service that belong to no revision: somebody took their label away."""
    known = {pod.uid for fleet in fleets for pod in fleet.pods}
    ours = parent.selector().items()
    return tuple(
        pod
        for pod in seen
        if pod.active and pod.uid not in known and all(labels_of(pod.raw).get(key) == value for key, value in ours)
    )


def _wanted(inference: Object, wish: Intent, fleets: Iterable[Fleet]) -> int:
    """spec.replicas; where the spec cannot be read, its replicas if they can, else as many as there are."""
    if wish.spec is not None:
        return wish.spec.replicas
    raw: Any = (inference.get("spec") or {}).get("replicas", 1)
    if isinstance(raw, int) and not isinstance(raw, bool) and raw >= 0:
        return raw
    return sum(fleet.replicas for fleet in fleets)


def _step(
    wish: Intent,
    wanted: int,
    fleets: tuple[Fleet, ...],
    ours: World,
    places: Places,
    known: Iterable[Revision],
) -> Step | None:
    if wish.target is None:
        return None
    target = wish.target.hash
    # where today nothing fits (nodes cordoned, gone), a new pod would have no place: no healthy one is taken for it
    fits = wish.planned is None or wish.planned.status is not Status.FALSE
    new = [pod for fleet in fleets if fleet.revision == target for pod in fleet.active]
    templates = {one.hash: one.template for one in known}
    terms = Terms(
        advance=wish.rolled_out and fits,
        may_go=lambda pod: not pod.scheduled or failures.trouble_of(pod) is not None or places.may_hold(pod.node),
        covers=lambda revision: places.covers(Places(places.nodes, templates.get(revision, {}))),
        failing=any(failures.trouble_of(pod) is not None for pod in new),
        refused=any(revision_of(one) == target and failures.refusal_of(one) is not None for one in ours.replica_sets),
    )
    return rollout.step(wanted, target, fleets, terms)


def _retry(scene: Scene, now: datetime) -> int | None:
    """Where time alone changes something: the hub answers again, leftovers are collected, a pod should have ended,
    the report of a node gets too old.
    """
    moments = [CONFLICT_RETRY_SECONDS] if scene.conflicts else []
    planned = scene.intent.planned
    if planned is not None and planned.reason is Reason.UNKNOWN_MODEL_FACTS and not scene.intent.rolled_out:
        moments.append(HUB_RETRY_SECONDS)
    due = [pods.due(pod.raw) for fleet in scene.fleets for pod in fleet.pods if not pod.overdue and not pod.finished]
    due.append(degraded.next_look(scene.reports, scene.active) if scene.reports is not None else None)
    moments += [max(1, math.ceil((moment - now).total_seconds())) for moment in due if moment is not None]
    return min(moments, default=None)
