"""What should be: the whole decision of one pass, as a value. No I/O, no clock, no memory between passes.

    spec -> intent (accepted? fits? which revision?) -> rollout step -> children -> conditions -> status, events

`wants_hub` and `wants_logs` name the two slow reads that a pass may need; everything else is always read.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final

from hisparse_operator.decide import events, failures, intent, judge, pods, revisions, rollout, status
from hisparse_operator.decide.children import Children
from hisparse_operator.decide.conditions import Status
from hisparse_operator.decide.identity import REVISION_LABEL, family, is_going, labels_of, parent_of
from hisparse_operator.decide.intent import Intent
from hisparse_operator.decide.judge import Scene
from hisparse_operator.decide.reasons import Reason
from hisparse_operator.decide.rollout import Fleet, Step
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
    fleets = _fleets(kin.ours)
    wanted = _wanted(world.inference, wish, fleets)
    step = _step(wish, wanted, fleets)
    children = Children(parent, kin, wish, known, wanted, step, fleets, settings)
    scene = Scene(
        intent=wish,
        wanted=wanted,
        step=step,
        fleets=fleets,
        replica_sets=kin.ours.replica_sets,
        before=world.inference.get("status") or {},
        conflicts=children.conflicts(),
    )
    judged = judge.conditions(scene)
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
        retry_seconds=_retry(scene),
    )


def _fleets(world: World) -> tuple[Fleet, ...]:
    seen = pods.read(world.pods, world.endpoint_slices)
    replicas: dict[str, int] = {}
    for replica_set in world.replica_sets:
        # one that is being deleted keeps nothing, though its pods still hold their GPUs
        count = 0 if is_going(replica_set) else int(replica_set["spec"].get("replicas", 1))
        replicas[labels_of(replica_set).get(REVISION_LABEL, "")] = count
    names = sorted({*replicas, *(pod.revision for pod in seen if not pod.finished)} - {""})
    return tuple(
        Fleet(name, replicas.get(name, 0), tuple(pod for pod in seen if pod.revision == name)) for name in names
    )


def _wanted(inference: Object, wish: Intent, fleets: Iterable[Fleet]) -> int:
    """spec.replicas; where the spec cannot be read, its replicas if they can, else as many as there are."""
    if wish.spec is not None:
        return wish.spec.replicas
    raw: Any = (inference.get("spec") or {}).get("replicas", 1)
    if isinstance(raw, int) and not isinstance(raw, bool) and raw >= 0:
        return raw
    return sum(fleet.replicas for fleet in fleets)


def _step(wish: Intent, wanted: int, fleets: tuple[Fleet, ...]) -> Step | None:
    if wish.target is None:
        return None
    # where today nothing fits (nodes cordoned, gone), a new pod would have no place: no healthy one is taken for it
    fits = wish.planned is None or wish.planned.status is not Status.FALSE
    return rollout.step(wanted, wish.target.hash, fleets, advance=wish.rolled_out and fits)


def _retry(scene: Scene) -> int | None:
    """Where time alone changes something: the hub answers again, a namesake's leftovers are collected."""
    if scene.conflicts:
        return CONFLICT_RETRY_SECONDS
    planned = scene.intent.planned
    asks = planned is not None and planned.reason is Reason.UNKNOWN_MODEL_FACTS and not scene.intent.rolled_out
    return HUB_RETRY_SECONDS if asks else None
