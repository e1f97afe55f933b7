"""Says what the probes answer and when a drain is over: pure decisions over frozen views."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass

from hisparse_engine.plan import EnginePlan

# A look older than this means that the poller hangs: we do not know, so we are not ready.
OLDEST_LOOK_S = 5.0
OK = 200
UNAUTHORIZED = 401
UNAVAILABLE = 503
# Two looks without a request: one alone may fall between a request's arrival and its place in the queue.
QUIET_LOOKS = 2


@dataclass(frozen=True)
class Look:
    """One look at the engine. Status None means no answer, and `problem` says why."""

    at: float
    health: int | None
    models_status: int | None = None
    models: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True)
class View:
    """What the launcher knows at one instant."""

    started_at: float
    look: Look | None = None
    was_ready: bool = False
    draining: bool = False
    child_gone: bool = False


@dataclass(frozen=True)
class Answer:
    """One answer of a probe: `reason` is from a closed set, `line` is for people."""

    ok: bool
    reason: str
    line: str


@dataclass(frozen=True)
class DrainStep:
    """Where a drain stands. `load` is running + waiting requests, None where the engine does not say."""

    elapsed_s: float
    load: int | None
    quiet_looks: int
    was_ready: bool
    engine_dead: bool
    child_gone: bool


def ready(plan: EnginePlan, view: View, now: float) -> Answer:
    """Whether new requests may come."""
    if view.child_gone:
        return Answer(ok=False, reason="EngineGone", line="the engine process has ended")
    if view.draining:
        return Answer(
            ok=False,
            reason="Draining",
            line="requests in flight are finished, new ones go elsewhere",
        )
    look = view.look
    if look is None:
        return _starting(plan, view, now, "nothing heard from the engine yet")
    age_s = now - look.at
    if age_s > OLDEST_LOOK_S:
        return Answer(ok=False, reason="LookTooOld", line=f"the last look at the engine is {age_s:.0f} s old")
    if look.health == UNAVAILABLE:
        return Answer(ok=False, reason="EngineDead", line="/health answers 503: the engine core is dead")
    if look.health != OK:
        told = look.problem or f"/health answers {look.health}"
        return _silent(plan, view, now, f"port {plan.port}: {told}")
    return _models(plan, view, look, now)


def alive(view: View) -> Answer:
    """Whether a restart would help: only a dead engine, never a slow or a starting one."""
    if view.child_gone:
        return Answer(ok=False, reason="EngineGone", line="the engine process has ended")
    if dead(view):
        return Answer(ok=False, reason="EngineDead", line="/health answers 503: the engine core is dead")
    return Answer(ok=True, reason="Alive", line="the engine process runs")


def started(plan: EnginePlan, view: View, now: float) -> Answer:
    """Like ready, but once true it stays."""
    if view.was_ready:
        return Answer(ok=True, reason="Started", line="the engine has been ready")
    return ready(plan, view, now)


def dead(view: View) -> bool:
    """The engine itself said that it cannot serve any more."""
    return view.look is not None and view.look.health == UNAVAILABLE


def drained(plan: EnginePlan, step: DrainStep) -> str | None:
    """How the drain ended, or None while it goes on."""
    if step.child_gone:
        return "drained: the engine process has ended"
    if step.engine_dead:
        return "nothing left to drain: the engine core is dead"
    if not step.was_ready:
        return "nothing to drain: the engine was never ready"
    if step.elapsed_s < plan.endpoint_grace_s:
        return None
    if step.load == 0 and step.quiet_looks >= QUIET_LOOKS:
        return f"drained: no request runs or waits after {step.elapsed_s:.1f} s"
    if step.elapsed_s < plan.endpoint_grace_s + plan.drain_s:
        return None
    left = "an unknown number of" if step.load is None else str(step.load)
    return f"drain limit: {left} request(s) still in flight after engine.drainSeconds {plan.drain_s:g}"


def load(metrics: str) -> int | None:
    """Running plus waiting requests, over all engines of a data-parallel server; None without the series."""
    wanted = {"vllm:num_requests_running", "vllm:num_requests_waiting"}
    seen = set()
    total = 0.0
    for line in metrics.splitlines():
        name = line.partition("{")[0].partition(" ")[0]
        if name not in wanted:
            continue
        try:
            total += float(line.rpartition("}")[2].split()[0] if "}" in line else line.split()[1])
        except (ValueError, IndexError):
            return None
        seen.add(name)
    return round(total) if seen == wanted and math.isfinite(total) else None


def model_names(body: bytes) -> tuple[str, ...]:
    """The model names in an answer of /v1/models; empty when it is something else."""
    try:
        entries = json.loads(body)["data"]
        return tuple(str(entry["id"]) for entry in entries)
    except (ValueError, KeyError, TypeError):
        return ()


def api_key(command: tuple[str, ...], environment: Mapping[str, str]) -> str | None:
    """The key that the engine asks for: its --api-key goes before VLLM_API_KEY, as in vLLM itself."""
    for index, word in enumerate(command):
        if word.startswith("--api-key="):
            return word.partition("=")[2]
        if word == "--api-key" and index + 1 < len(command):
            return command[index + 1]
    return environment.get("VLLM_API_KEY") or None


def _models(plan: EnginePlan, view: View, look: Look, now: float) -> Answer:
    if look.models_status == UNAUTHORIZED:
        return Answer(
            ok=False,
            reason="ModelsRefused",
            line="/v1/models answers 401: the launcher needs the key too, set VLLM_API_KEY on the container",
        )
    if look.models_status != OK:
        told = look.problem or f"/v1/models answers {look.models_status}"
        return _silent(plan, view, now, f"port {plan.port}: {told}")
    if plan.served_name not in look.models:
        listed = ", ".join(look.models) or "no model"
        return Answer(
            ok=False,
            reason="ModelMissing",
            line=f"engine.servedName {plan.served_name!r} is not served; /v1/models lists {listed}",
        )
    return Answer(ok=True, reason="Ready", line=f"serving {plan.served_name}")


def _silent(plan: EnginePlan, view: View, now: float, told: str) -> Answer:
    if not view.was_ready:
        return _starting(plan, view, now, told)
    return Answer(ok=False, reason="EngineSilent", line=told)


def _starting(plan: EnginePlan, view: View, now: float, told: str) -> Answer:
    elapsed_s = now - view.started_at
    late = " (late)" if elapsed_s > plan.startup_s else ""
    return Answer(
        ok=False,
        reason="EngineStarting",
        line=f"starting, {elapsed_s:.0f} s of engine.startupSeconds {plan.startup_s:g}{late}: {told}",
    )
