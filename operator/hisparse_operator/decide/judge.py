"""The conditions, each judged from what is there. What cannot be judged yet is absent, never True."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from hisparse.units import format_duration
from hisparse_operator.decide.capacity import GPU_RESOURCE
from hisparse_operator.decide.conditions import Condition, Status
from hisparse_operator.decide.failures import Trouble, refusal_of, scheduling_of, trouble_of
from hisparse_operator.decide.intent import Intent, plan_feasible
from hisparse_operator.decide.pods import EnginePod
from hisparse_operator.decide.reasons import ConditionType, Reason
from hisparse_operator.decide.rollout import Fleet, Phase, Step
from hisparse_operator.world import Object

_NO_TIER: Final = "None"


@dataclass(frozen=True)
class Scene:
    """Everything that a condition may look at. before is the old status."""

    intent: Intent
    wanted: int
    step: Step | None
    fleets: tuple[Fleet, ...]
    replica_sets: tuple[Object, ...]
    before: Mapping[str, Any]
    conflicts: tuple[str, ...] = ()

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
        return tuple(fleet for fleet in self.fleets if fleet.revision != self.target and fleet.places)

    @property
    def active(self) -> tuple[EnginePod, ...]:
        """Pods that count."""
        return tuple(pod for fleet in self.fleets for pod in fleet.active)

    @property
    def serving(self) -> int:
        """Pods that take requests, of any revision."""
        return sum(fleet.serving for fleet in self.fleets)

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
    )
    return tuple(condition for condition in judged if condition is not None)


def _scheduled(scene: Scene) -> Condition | None:
    if scene.intent.target is None:
        return None
    expected = sum(fleet.replicas for fleet in scene.fleets)
    told = f"{sum(pod.scheduled for pod in scene.active)} of {max(expected, scene.wanted)} pods have a node"
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
    ready = sum(pod.ready for pod in scene.new.active)
    told = f"{ready} of {scene.wanted} replicas of revision {scene.target} are ready"
    if ready == scene.wanted == len(scene.new.active) and not any(fleet.active for fleet in scene.old):
        return Condition(kind, Status.TRUE, Reason.MINIMUM_REPLICAS_READY, told)
    if scene.troubles:
        first = scene.troubles[0]
        return Condition(kind, Status.FALSE, first.reason, f"{told}; {first.message}")
    loading = [pod.name for pod in scene.new.active if not pod.ready]
    if loading:
        told += f"; {', '.join(loading[:3])} {'is' if len(loading) == 1 else 'are'} starting{_budget(scene)}"
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
        return Condition(kind, Status.TRUE, Reason.ENDPOINTS_READY, f"the Service has {_pods(scene.serving)} behind it")
    if scene.wanted == 0:
        return Condition(kind, Status.FALSE, Reason.SCALED_TO_ZERO, "spec.replicas is 0; scale up to serve")
    return Condition(kind, Status.FALSE, Reason.NO_ENDPOINTS, "no pod behind the Service takes requests")


def _available(scene: Scene) -> Condition:
    kind = ConditionType.AVAILABLE
    if scene.serving:
        return Condition(kind, Status.TRUE, Reason.SERVING, f"{_pods(scene.serving)} of {scene.wanted} take requests")
    if scene.wanted == 0:
        return Condition(kind, Status.FALSE, Reason.SCALED_TO_ZERO, "spec.replicas is 0; scale up to serve")
    return Condition(kind, Status.FALSE, Reason.NO_SERVING_REPLICAS, f"0 pods of {scene.wanted} take requests")


def _progressing(scene: Scene) -> Condition:
    kind, spec, step = ConditionType.PROGRESSING, scene.intent.spec, scene.step
    if scene.conflicts:
        return Condition(
            kind,
            Status.FALSE,
            Reason.CHILD_CONFLICT,
            f"{', '.join(scene.conflicts)} belongs to another owner; delete it, or wait if a namesake was just deleted",
        )
    if spec is not None and spec.plan_only:
        stay = f"; {_pods(len(scene.active))} made earlier stay as they are" if scene.active else ""
        return Condition(kind, Status.FALSE, Reason.PLAN_ONLY, f"spec.planOnly is true: only status is written{stay}")
    if spec is not None and spec.paused:
        return Condition(
            kind, Status.FALSE, Reason.PAUSED, "spec.paused is true: rollout, scale and repair of children stand still"
        )
    if step is None or scene.intent.target is None:
        return Condition(kind, Status.FALSE, Reason.HELD, "no pods are made; Accepted and PlanFeasible say why")
    moving = bool(scene.old)
    told = f"{len(scene.new.active)} of {scene.wanted} pods are of revision {scene.target}"
    if step.phase is Phase.COMPLETE and scene.intent.rolled_out:
        return Condition(kind, Status.TRUE, Reason.COMPLETE, told)
    if not scene.intent.rolled_out or step.phase is Phase.HELD:
        return Condition(
            kind, Status.FALSE, Reason.HELD, f"{told}; what runs is held: Accepted and PlanFeasible say why"
        )
    if not moving and _was_complete(scene):
        return Condition(kind, Status.TRUE, Reason.COMPLETE, told)
    if scene.troubles:
        stop = "; healthy pods of older revisions are left alone" if moving else ""
        return Condition(kind, Status.FALSE, Reason.NEW_REVISION_FAILING, f"{told}; {scene.troubles[0].message}{stop}")
    reason = Reason.NEW_REVISION if moving else Reason.SCALING
    return Condition(kind, Status.TRUE, reason, f"{told}; {step.phase.value}")


def _was_complete(scene: Scene) -> bool:
    """A pod of a finished rollout that restarts is WorkloadReady's news; the rollout stays complete."""
    done = scene.before.get("updateRevision") == scene.target and scene.new.replicas == scene.wanted
    return done and any(
        condition.get("type") == ConditionType.PROGRESSING.value and condition.get("reason") == Reason.COMPLETE.value
        for condition in scene.before.get("conditions") or ()
    )


def _ready(
    scene: Scene, feasible: Condition | None, progressing: Condition, running: Sequence[Condition | None]
) -> Condition:
    """The worst of the others bubbles up, in the order in which one would mend them."""
    causes: list[Condition | None] = [scene.intent.accepted]
    stopped = (Reason.CHILD_CONFLICT, Reason.PLAN_ONLY)
    if not scene.intent.rolled_out or (feasible is not None and feasible.status is Status.FALSE):
        # pods that run have shown that they fit; without them Unknown is not good enough
        causes.append(feasible)
    if progressing.reason in stopped or not scene.intent.rolled_out:
        causes.append(progressing)
    if scene.wanted == 0 and scene.intent.rolled_out:
        causes.append(
            Condition(ConditionType.READY, Status.FALSE, Reason.SCALED_TO_ZERO, "spec.replicas is 0; scale up to serve")
        )
    causes += running
    worst = next((cause for cause in causes if cause is not None and not cause.true), None)
    if worst is None:
        told = f"revision {scene.target}: {scene.wanted} of {scene.wanted} replicas are ready and take requests"
        return Condition(ConditionType.READY, Status.TRUE, Reason.PROVEN, told)
    return Condition(ConditionType.READY, Status.FALSE, worst.reason, worst.message)


def _gpu_resource(scene: Scene) -> str:
    spec = scene.intent.spec
    return (spec.resources.gpu_resource_name if spec else None) or GPU_RESOURCE


def _budget(scene: Scene) -> str:
    launch = scene.intent.target.launch if scene.intent.target else {}
    seconds = (launch.get("engine") or {}).get("startupSeconds")
    return f" (start-up budget {format_duration(int(seconds))})" if seconds else ""


def _pods(count: int) -> str:
    return f"{count} pod" if count == 1 else f"{count} pods"
