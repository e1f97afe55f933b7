"""The status document: what the operator found, whole, in an order that does not move."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from hisparse.model import served_name
from hisparse_operator.decide import conditions, failures, planstatus
from hisparse_operator.decide.conditions import Condition
from hisparse_operator.decide.identity import Parent
from hisparse_operator.decide.judge import Scene
from hisparse_operator.decide.reasons import ConditionType, Reason
from hisparse_operator.decide.rollout import Phase

_FAILING = frozenset(
    {
        Reason.CRASH_LOOP,
        Reason.OOM_KILLED,
        Reason.STARTUP_TIMEOUT,
        Reason.IMAGE_PULL_FAILED,
        Reason.CONTAINER_CONFIG_ERROR,
    }
)


def document(
    scene: Scene,
    judged: tuple[Condition, ...],
    *,
    parent: Parent,
    port: int,
    generation: int,
    previous_logs: Mapping[str, str],
    now: datetime,
) -> dict[str, Any]:
    """The whole status. Only lastTransitionTime looks at the clock, and only where a condition changed."""
    before, target = scene.before, scene.intent.target
    pods = tuple(pod for fleet in scene.fleets for pod in fleet.pods)
    status: dict[str, Any] = {
        "observedGeneration": generation,
        "phase": phase(scene, judged),
        "model": served_name(scene.intent.spec.model) if scene.intent.spec else before.get("model"),
        "replicas": len(scene.active),
        "readyReplicas": sum(pod.ready for pod in scene.active),
        "updatedReplicas": len(scene.new.active),
        "servingReplicas": scene.serving,
        "selector": ",".join(f"{key}={value}" for key, value in sorted(parent.selector().items())),
        "currentRevision": current_revision(scene),
        "updateRevision": target.hash if target else None,
        "mode": _mode(scene),
        "plan": _plan(scene),
        "capacity": scene.intent.planned.capacity if scene.intent.planned else None,
        "lastFailure": failures.last_failure(pods, previous_logs, before.get("lastFailure")),
        "endpoint": _endpoint(parent, port) if target else None,
        "conditions": conditions.documents(judged, old=before.get("conditions") or (), generation=generation, now=now),
    }
    return {key: value for key, value in status.items() if value is not None}


def current_revision(scene: Scene) -> str | None:
    """The revision that was rolled out last: the old one until every wanted pod is of the new one and serves.

    None before anything has served.
    """
    if scene.intent.target is None:
        return None
    if scene.wanted and scene.step is not None and scene.step.phase is Phase.COMPLETE:
        return scene.target
    if said := scene.before.get("currentRevision"):
        return str(said)
    # a status that was lost: whatever serves most
    serving = [fleet for fleet in scene.fleets if fleet.serving]
    best = max(serving, key=lambda fleet: (fleet.serving, fleet.revision), default=None)
    return best.revision if best else None


def phase(scene: Scene, judged: tuple[Condition, ...]) -> str:
    """One word for people; nothing may depend on it."""
    by_type = {condition.type: condition for condition in judged}
    spec, feasible = scene.intent.spec, by_type.get(ConditionType.PLAN_FEASIBLE)
    workload, scheduled = by_type.get(ConditionType.WORKLOAD_READY), by_type.get(ConditionType.SCHEDULED)
    rules = (
        (not scene.intent.accepted.true, "Invalid"),
        (spec is not None and bool(spec.plan_only), "Planned"),
        (spec is not None and bool(spec.paused), "Paused"),
        (by_type[ConditionType.READY].true, "Ready"),
        (not scene.intent.rolled_out, "DoesNotFit" if feasible and feasible.status == "False" else "Planning"),
        (scene.wanted == 0 and not scene.active, "Stopped"),
        (workload is not None and workload.reason in _FAILING, "Degraded" if scene.serving else "Failed"),
        (bool(scene.old), "RollingOut"),
        (scheduled is not None and scheduled.status == "False", "WaitingForCapacity"),
    )
    return next((word for holds, word in rules if holds), "Starting")


def _mode(scene: Scene) -> Mapping[str, Any] | None:
    if scene.intent.target is not None and scene.intent.target.mode:
        return scene.intent.target.mode
    planned = scene.intent.planned
    return planstatus.mode_of(planned.plan) if planned and planned.plan else None


def _plan(scene: Scene) -> dict[str, Any] | None:
    """The frozen plan where pods run it, with a note where today's would differ; else today's."""
    target, planned = scene.intent.target, scene.intent.planned
    today = planstatus.of_plan(planned.plan) if planned and planned.plan else None
    if target is not None and target.plan and (scene.intent.rolled_out or planned is None):
        return planstatus.noted(target.plan, today)
    if planned is not None and planned.shortfall is not None:
        return planstatus.of_shortfall(planned.shortfall)
    return today


def _endpoint(parent: Parent, port: int) -> dict[str, Any]:
    return {"url": f"http://{parent.name}.{parent.namespace}.svc:{port}", "service": parent.name}
