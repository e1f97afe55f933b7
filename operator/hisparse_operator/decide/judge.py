"""The conditions, each judged from what is there. What cannot be judged yet is absent, never True."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from hisparse.units import format_duration
from hisparse_operator.decide.capacity import GPU_RESOURCE
from hisparse_operator.decide.conditions import Condition, Status, share, status_of
from hisparse_operator.decide.degraded import Reports, degraded
from hisparse_operator.decide.failures import Trouble, refusal_of, scheduling_of, trouble_of
from hisparse_operator.decide.identity import REVISION_LABEL, controller_name, name_of
from hisparse_operator.decide.intent import Intent, plan_feasible
from hisparse_operator.decide.places import CORDONED, Places
from hisparse_operator.decide.pods import EnginePod
from hisparse_operator.decide.reasons import ConditionType, Reason
from hisparse_operator.decide.rollout import Fleet, Phase, Step
from hisparse_operator.kinds import LABEL
from hisparse_operator.world import Object

_NO_TIER: Final = "None"
_NAMED: Final = 3
_ROLLING: Final = frozenset(
    {Reason.NEW_REVISION, Reason.NEW_REVISION_FAILING, Reason.NO_PLACE, Reason.POD_STUCK_TERMINATING}
)
_ZERO: Final = "spec.replicas is 0; scale up to serve"


@dataclass(frozen=True)
class Scene:
    """Everything that a condition may look at. before is the old status; strays are pods of no revision; conflicts and
    held are children that somebody else owns, or keeps from going.

    reports are those of the node agents; None where there are none to look at.
    """

    intent: Intent
    wanted: int
    step: Step | None
    fleets: tuple[Fleet, ...]
    replica_sets: tuple[Object, ...]
    before: Mapping[str, Any]
    conflicts: tuple[str, ...] = ()
    held: tuple[str, ...] = ()
    places: Places = field(default_factory=lambda: Places(None, {}))
    strays: tuple[EnginePod, ...] = ()
    name: str = ""
    reports: Reports | None = None

    @property
    def target(self) -> str:
        """Hash of the revision that pods should be of, empty where there is none."""
        return self.intent.target.hash if self.intent.target else ""

    @property
    def new(self) -> Fleet:
        """Pods of the target."""
        return next((fleet for fleet in self.fleets if fleet.revision == self.target), Fleet(self.target, 0))

    @property
    def old(self) -> tuple[Fleet, ...]:
        """Revisions on their way out."""
        return tuple(fleet for fleet in self.fleets if fleet.revision != self.target and fleet.present)

    @property
    def active(self) -> tuple[EnginePod, ...]:
        """Pods that count."""
        return tuple(pod for fleet in self.fleets for pod in fleet.active)

    @property
    def serving(self) -> int:
        """Pods that take requests, of any revision."""
        return sum(fleet.serving for fleet in self.fleets)

    @property
    def overdue(self) -> tuple[EnginePod, ...]:
        """Deleted pods that should have ended by now, of any revision."""
        return tuple(pod for fleet in self.fleets for pod in fleet.pods if pod.overdue and not pod.finished)

    @property
    def was_rolling(self) -> bool:
        """Whether the old status speaks of a rollout that has not come to its end.

        Its last pod has no old one beside it, and a revert ends in the revision where it began.
        """
        told = status_of(self.before.get("conditions") or (), ConditionType.PROGRESSING)
        return told.get("reason") in {reason.value for reason in _ROLLING}

    @property
    def moving(self) -> bool:
        """Whether pods are moving to another revision."""
        same = self.before.get("updateRevision") == self.target
        return bool(self.old) or (same and self.was_rolling)

    @property
    def troubles(self) -> tuple[Trouble, ...]:
        """What keeps pods of the target from getting ready."""
        return tuple(trouble for pod in self.new.active if (trouble := trouble_of(pod)) is not None)


def conditions(scene: Scene) -> tuple[Condition, ...]:
    """All conditions in the order in which one reads them."""
    scheduled = _scheduled(scene)
    feasible = plan_feasible(scene.intent, all_scheduled=scheduled is not None and scheduled.true)
    workload, route = _workload_ready(scene), _route_ready(scene)
    judged = (
        scene.intent.accepted,
        feasible,
        scheduled,
        workload,
        _tier_active(scene),
        route,
        _available(scene),
        progressing := _progressing(scene),
        _ready(scene, feasible, progressing, (scheduled, workload, route)),
        # told and no more: neither Ready nor Available looks at it
        degraded(scene.reports, scene.active) if scene.reports is not None else None,
    )
    return tuple(condition for condition in judged if condition is not None)


def _scheduled(scene: Scene) -> Condition | None:
    if scene.intent.target is None:
        return None
    expected = sum(fleet.replicas for fleet in scene.fleets)
    if not expected and not scene.wanted and not scene.active:
        return Condition(ConditionType.SCHEDULED, Status.TRUE, Reason.ALL_SCHEDULED, "no pod is wanted")
    told = share(sum(pod.scheduled for pod in scene.active), max(expected, scene.wanted), "has a node", "have a node")
    for pod in scene.active:
        if (said := scheduling_of(pod, _gpu_resource(scene))) is not None:
            status = Status.UNKNOWN if said[0] is Reason.WAITING_FOR_PODS else Status.FALSE
            return Condition(ConditionType.SCHEDULED, status, said[0], f"{told}; {said[1]}")
    for replica_set in scene.replica_sets:
        if (refused := refusal_of(replica_set)) is not None:
            return Condition(ConditionType.SCHEDULED, Status.FALSE, refused[0], f"{told}; {refused[1]}")
    if len(scene.active) < max(expected, scene.wanted):
        return Condition(
            ConditionType.SCHEDULED, Status.UNKNOWN, Reason.WAITING_FOR_PODS, f"{told}; the others are not made yet"
        )
    return Condition(ConditionType.SCHEDULED, Status.TRUE, Reason.ALL_SCHEDULED, told)


def _workload_ready(scene: Scene) -> Condition | None:
    """Of this generation only: pods of an older revision prove nothing about this spec."""
    kind = ConditionType.WORKLOAD_READY
    if scene.intent.target is None:
        return None
    if not scene.intent.rolled_out:
        return Condition(
            kind,
            Status.FALSE,
            Reason.NOT_ROLLED_OUT,
            f"no pod is of this generation; revision {scene.target} stays as it is",
        )
    if scene.wanted == 0:
        return Condition(kind, Status.FALSE, Reason.SCALED_TO_ZERO, _ZERO)
    ready, what = sum(pod.ready for pod in scene.new.active), f"of revision {scene.target}"
    if ready > scene.wanted:
        return Condition(
            kind, Status.FALSE, Reason.STARTING, f"{ready} replicas {what} are ready and {scene.wanted} wanted"
        )
    told = share(ready, scene.wanted, f"{what} is ready", f"{what} are ready", "replica")
    if ready == scene.wanted == len(scene.new.active) and not any(fleet.active for fleet in scene.old):
        return Condition(kind, Status.TRUE, Reason.MINIMUM_REPLICAS_READY, told)
    if scene.troubles:
        first = scene.troubles[0]
        return Condition(kind, Status.FALSE, first.reason, f"{told}; {first.message}")
    loading = [pod.name for pod in scene.new.active if pod.scheduled and not pod.ready]
    waiting = [pod.name for pod in scene.new.active if not pod.scheduled]
    if loading:
        told += f"; {_names(loading)} {'is' if len(loading) == 1 else 'are'} starting{_budget(scene)}"
    if waiting:
        told += f"; {_names(waiting)} {'waits' if len(waiting) == 1 else 'wait'} for a node"
    if scene.step is not None and scene.step.phase is Phase.NO_PLACE:
        return Condition(kind, Status.FALSE, Reason.NOT_ROLLED_OUT, f"{told}; Progressing says why no more are made")
    return Condition(kind, Status.FALSE, Reason.STARTING, told)


def _tier_active(scene: Scene) -> Condition | None:
    target, planned = scene.intent.target, scene.intent.planned
    mode = target.mode if target is not None else None
    if mode is None and planned is not None and planned.plan is not None:
        mode = {"effective": planned.plan.mode.value, "reason": planned.plan.mode_reason}
    if not mode:
        return None
    if mode.get("effective") == _NO_TIER:
        return Condition(
            ConditionType.TIER_ACTIVE, Status.FALSE, Reason.DISABLED, f"no host tier: {mode.get('reason')}"
        )
    return Condition(
        ConditionType.TIER_ACTIVE,
        Status.UNKNOWN,
        Reason.NOT_REPORTED,
        f"{mode.get('effective')} is planned ({mode.get('reason')}); the engine has not been asked",
    )


def _route_ready(scene: Scene) -> Condition | None:
    if scene.intent.target is None:
        return None
    kind = ConditionType.ROUTE_READY
    if scene.serving:
        return Condition(
            kind, Status.TRUE, Reason.ENDPOINTS_READY, f"the Service {scene.name} has {_pods(scene.serving)} behind it"
        )
    if scene.wanted == 0:
        return Condition(kind, Status.FALSE, Reason.SCALED_TO_ZERO, _ZERO)
    return Condition(kind, Status.FALSE, Reason.NO_ENDPOINTS, f"no pod behind the Service {scene.name} takes requests")


def _available(scene: Scene) -> Condition:
    kind = ConditionType.AVAILABLE
    told = share(scene.serving, max(scene.wanted, scene.serving), "takes requests", "take requests")
    if scene.serving:
        return Condition(kind, Status.TRUE, Reason.SERVING, told)
    if scene.wanted == 0:
        return Condition(kind, Status.FALSE, Reason.SCALED_TO_ZERO, _ZERO)
    return Condition(kind, Status.FALSE, Reason.NO_SERVING_REPLICAS, told)


def _progressing(scene: Scene) -> Condition:
    judged = _progress(scene)
    notes = (*_held(scene), *_overdue(scene), *stray_notes(scene))
    return replace(judged, message="; ".join((judged.message, *notes)))


def _progress(scene: Scene) -> Condition:
    kind, spec, step = ConditionType.PROGRESSING, scene.intent.spec, scene.step
    if scene.conflicts:
        return Condition(kind, Status.FALSE, Reason.CHILD_CONFLICT, _taken(scene))
    if spec is not None and spec.plan_only:
        stay = f"; {_pods(len(scene.active))} made earlier stay as they are" if scene.active else ""
        return Condition(
            kind,
            Status.FALSE,
            Reason.PLAN_ONLY,
            f"spec.planOnly is true: only status is written until it is false{stay}",
        )
    if spec is not None and spec.paused:
        return Condition(
            kind,
            Status.FALSE,
            Reason.PAUSED,
            "spec.paused is true: rollout, scale and repair of children stand still until it is false",
        )
    if step is None or scene.intent.target is None:
        return Condition(kind, Status.FALSE, Reason.HELD, "no pods are made; Accepted and PlanFeasible say why")
    told = _moved(scene)
    if step.phase is Phase.COMPLETE and scene.intent.rolled_out:
        return Condition(kind, Status.TRUE, Reason.COMPLETE, told)
    if not scene.intent.rolled_out or step.phase is Phase.HELD:
        return Condition(
            kind, Status.FALSE, Reason.HELD, f"{told}; what runs is held: Accepted and PlanFeasible say why"
        )
    if step.phase is Phase.NO_PLACE:
        return Condition(kind, Status.FALSE, Reason.NO_PLACE, f"{told}; {_no_place(scene)}")
    if not scene.moving and _was_complete(scene):
        return Condition(kind, Status.TRUE, Reason.COMPLETE, told)
    proven = scene.before.get("currentRevision") == scene.target and not scene.moving
    if scene.troubles and not proven:
        stop = (
            "; healthy pods of older revisions are left alone, and what is added meanwhile is of a revision that "
            "serves; correct the spec, or apply the earlier one again, whose revision is kept"
            if scene.old
            else "; correct the spec"
        )
        told = f"{told}; {scene.troubles[0].message}{stop}"
        return Condition(kind, Status.FALSE, Reason.NEW_REVISION_FAILING, told)
    if scene.overdue:
        return Condition(kind, Status.FALSE, Reason.POD_STUCK_TERMINATING, told)
    reason = Reason.NEW_REVISION if scene.moving else Reason.SCALING
    return Condition(kind, Status.TRUE, reason, f"{told}; {step.phase.value}")


def _moved(scene: Scene) -> str:
    if scene.wanted == 0:
        return f"no pod is wanted; the next will be of revision {scene.target}"
    what = f"of revision {scene.target}"
    return share(len(scene.new.active), scene.wanted, f"is {what}", f"are {what}")


def _was_complete(scene: Scene) -> bool:
    """A pod of a finished rollout that restarts is WorkloadReady's news; the rollout stays complete.

    A pod that was lost and made again (its node was drained) has to come up first.
    """
    new, told = scene.new, status_of(scene.before.get("conditions") or (), ConditionType.PROGRESSING)
    return (
        scene.before.get("updateRevision") == scene.target
        and new.replicas == scene.wanted == len(new.active)
        and not any(pod.fresh for pod in new.active)
        and told.get("reason") == Reason.COMPLETE.value
    )


def _no_place(scene: Scene) -> str:
    """Which old pods stay, on which nodes, what keeps the new ones from there, and what one can do."""
    stay = [pod for fleet in scene.old for pod in fleet.active if pod.scheduled]
    where = [f"{pod.name} is on {pod.node}, which {scene.places.why_not(pod.node)}" for pod in stay]
    told = _listed(where) if where else "no old pod has a node"
    lift = next((pod.node for pod in stay if scene.places.why_not(pod.node) == CORDONED), None)
    steps = [f"kubectl uncordon {lift}"] if lift else []
    steps += ["raise spec.replicas by one, so that a new pod is made beside the old ones"]
    steps += ["delete an old pod that may go"] if scene.step and scene.places.candidates else []
    return f"no old pod is on a node that may take a new one, so none is taken for it: {told}; {', or '.join(steps)}"


def _taken(scene: Scene) -> str:
    """Who has names that we need. The pods of a ReplicaSet go with it, and they may serve."""
    step = "delete what is not needed, or wait if a namesake was just deleted"
    pods = (
        "; the pods of a ReplicaSet end with it, so if it was made for this inference remove the foreign "
        "ownerReference instead (kubectl edit rs; an owner whose selector matches takes it again), and it is taken "
        "back as it is"
    )
    sets = [one for one in scene.conflicts if one.startswith("ReplicaSet ")]
    told = _listed((*sets, *(one for one in scene.conflicts if one not in sets)))
    return f"{told}; {step}{pods if sets else ''}"


def _held(scene: Scene) -> tuple[str, ...]:
    if not scene.held:
        return ()
    return (f"{_listed(scene.held)}: made again once the finalizer is removed, by whoever set it",)


def _overdue(scene: Scene) -> tuple[str, ...]:
    late = [f"pod {pod.name} on node {pod.node or 'none'} should have ended at {pod.ends}" for pod in scene.overdue]
    if not late:
        return ()
    return (f"{_listed(late)}; if the node is gone: kubectl delete pod {scene.overdue[0].name} --force",)


def stray_notes(scene: Scene) -> tuple[str, ...]:
    """What to know, and to do, about pods behind the Service that belong to no revision."""
    names = [pod.name for pod in scene.strays]
    if not names:
        return ()
    belong, take, are = ("belongs", "takes", "is") if len(names) == 1 else ("belong", "take", "are")
    seen = {name_of(replica_set) for replica_set in scene.replica_sets} | {None}
    lost = next((owner for pod in scene.strays if (owner := controller_name(pod.raw)) not in seen), None)
    why, step = (
        (f"ReplicaSet {lost} has lost the label {LABEL}", f"kubectl label rs {lost} {LABEL}={scene.name}")
        if lost
        else (f"the label {REVISION_LABEL} was removed or changed", f"kubectl delete pod {names[0]}")
    )
    return (
        f"{_names(names)} {belong} to no revision ({why}): {take} requests and GPUs and {are} counted nowhere; {step}",
    )


def _ready(
    scene: Scene, feasible: Condition | None, progressing: Condition, running: Sequence[Condition | None]
) -> Condition:
    """The worst of the others bubbles up, in the order in which one would mend them."""
    causes: list[Condition | None] = [scene.intent.accepted]
    stopped = (Reason.CHILD_CONFLICT, Reason.PLAN_ONLY, Reason.NO_PLACE)
    if not scene.intent.rolled_out or (feasible is not None and feasible.status is Status.FALSE):
        # pods that run have shown that they fit; without them Unknown is not good enough
        causes.append(feasible)
    if progressing.reason in stopped or not scene.intent.rolled_out:
        causes.append(progressing)
    if scene.wanted == 0 and scene.intent.rolled_out:
        causes.append(Condition(ConditionType.READY, Status.FALSE, Reason.SCALED_TO_ZERO, _ZERO))
    causes += running
    worst = next((cause for cause in causes if cause is not None and not cause.true), None)
    if worst is not None and worst.reason is Reason.WAITING_FOR_PODS and progressing.reason is Reason.PAUSED:
        worst = progressing  # nothing makes them
    if worst is not None:
        return Condition(ConditionType.READY, Status.FALSE, worst.reason, worst.message)
    what = f"revision {scene.target}"
    if scene.new.serving < scene.wanted:
        told = share(scene.new.serving, scene.wanted, "is ready and takes", "are ready and take", "replica")
        message = f"{what}: {told} requests; the Service {scene.name} has no endpoint of the others yet"
        return Condition(ConditionType.READY, Status.FALSE, Reason.NO_ENDPOINTS, message)
    told = share(scene.wanted, scene.wanted, "is ready and takes requests", "are ready and take requests", "replica")
    return Condition(ConditionType.READY, Status.TRUE, Reason.PROVEN, f"{what}: {told}")


def _gpu_resource(scene: Scene) -> str:
    spec = scene.intent.spec
    return (spec.resources.gpu_resource_name if spec else None) or GPU_RESOURCE


def _budget(scene: Scene) -> str:
    launch = scene.intent.target.launch if scene.intent.target else {}
    seconds = (launch.get("engine") or {}).get("startupSeconds")
    return f" (start-up budget {format_duration(int(seconds))})" if seconds else ""


def _pods(count: int) -> str:
    return f"{count} pod" if count == 1 else f"{count} pods"


def _names(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def _listed(told: Sequence[str]) -> str:
    more = len(told) - _NAMED
    return "; ".join(told[:_NAMED]) + (f"; and {more} more" if more > 0 else "")
