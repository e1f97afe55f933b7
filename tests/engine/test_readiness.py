"""What the probes say and when a drain ends: tables over views."""

from dataclasses import replace

import pytest

from hisparse_engine import plan as plans
from hisparse_engine import readiness
from hisparse_engine.plan import EnginePlan
from hisparse_engine.readiness import DrainStep, Look, View

PLAN = EnginePlan(served_name="m", startup_s=100, drain_s=30, endpoint_grace_s=10)
NOW = 1000.0
WELL = Look(NOW - 1, 200, 200, ("other", "m"))


def view(look: Look | None = WELL, *, was_ready: bool = True, draining: bool = False, gone: bool = False) -> View:
    return View(started_at=NOW - 42, look=look, was_ready=was_ready, draining=draining, child_gone=gone)


@pytest.mark.parametrize(
    ("seen", "reason", "alive", "started"),
    [
        pytest.param(view(), "Ready", True, True, id="well"),
        pytest.param(view(was_ready=False), "Ready", True, True, id="well for the first time"),
        pytest.param(view(None, was_ready=False), "EngineStarting", True, False, id="nothing heard yet"),
        pytest.param(
            view(Look(NOW, None, problem="x"), was_ready=False), "EngineStarting", True, False, id="no port yet"
        ),
        pytest.param(view(Look(NOW, None, problem="x")), "EngineSilent", True, True, id="port lost"),
        pytest.param(view(Look(NOW, 500)), "EngineSilent", True, True, id="health odd"),
        pytest.param(view(Look(NOW, 503)), "EngineDead", False, True, id="engine core dead"),
        pytest.param(view(Look(NOW, 503), was_ready=False), "EngineDead", False, False, id="dead before ready"),
        pytest.param(view(Look(NOW, 200, 401)), "ModelsRefused", True, True, id="key missing"),
        pytest.param(view(Look(NOW, 200, 500)), "EngineSilent", True, True, id="models odd"),
        pytest.param(view(Look(NOW, 200, 200, ("mm",))), "ModelMissing", True, True, id="another model"),
        pytest.param(view(Look(NOW - 6, 200, 200, ("m",))), "LookTooOld", True, True, id="an old answer is no answer"),
        pytest.param(view(draining=True), "Draining", True, True, id="draining"),
        pytest.param(view(draining=True, gone=True), "EngineGone", False, True, id="gone"),
    ],
)
def test_probes(seen: View, reason: str, alive: bool, started: bool) -> None:
    answer = readiness.ready(PLAN, seen, NOW)
    assert (answer.reason, answer.ok) == (reason, reason == "Ready")
    assert readiness.alive(seen).ok is alive
    assert readiness.started(PLAN, seen, NOW).ok is started


def test_a_slow_start_says_how_far_it_is() -> None:
    refused = view(Look(NOW, None, problem="connection refused"), was_ready=False)
    line = readiness.ready(PLAN, refused, NOW).line
    assert line == "starting, 42 s of engine.startupSeconds 100: port 8000: connection refused"
    assert (
        "142 s of engine.startupSeconds 100 (late)"
        in readiness.ready(PLAN, replace(refused, started_at=NOW - 142), NOW).line
    )


def step(
    elapsed_s: float,
    load: int | None,
    quiet_looks: int = 0,
    *,
    was_ready: bool = True,
    dead: bool = False,
    gone: bool = False,
) -> DrainStep:
    return DrainStep(elapsed_s, load, quiet_looks, was_ready, dead, gone)


@pytest.mark.parametrize(
    ("at", "end"),
    [
        pytest.param(step(1, 0, 9), None, id="endpoints may still send"),
        pytest.param(step(11, 0, 1), None, id="one quiet look is not enough"),
        pytest.param(step(11, 0, 2), "drained: no request runs or waits after 11.0 s", id="quiet"),
        pytest.param(step(39, 2), None, id="requests still run"),
        pytest.param(step(39, None), None, id="unknown is not idle"),
        pytest.param(
            step(40, 2), "drain limit: 2 request(s) still in flight after engine.drainSeconds 30", id="the limit"
        ),
        pytest.param(
            step(40, None),
            "drain limit: an unknown number of request(s) still in flight after engine.drainSeconds 30",
            id="the limit, unknown",
        ),
        pytest.param(step(0, None, was_ready=False), "nothing to drain: the engine was never ready", id="never ready"),
        pytest.param(step(0, 3, dead=True), "nothing left to drain: the engine core is dead", id="dead"),
        pytest.param(step(0, None, gone=True), "drained: the engine process has ended", id="gone"),
    ],
)
def test_drained(at: DrainStep, end: str | None) -> None:
    assert readiness.drained(PLAN, at) == end


@pytest.mark.parametrize(
    ("text", "load"),
    [
        pytest.param(
            '# HELP vllm:num_requests_running x\nvllm:num_requests_running{engine="0",model_name="a } b"} 2.0\n'
            'vllm:num_requests_running{engine="1"} 1.0\nvllm:num_requests_waiting{engine="0"} 4.0\n'
            'vllm:num_requests_waiting_by_reason{reason="capacity"} 4.0\n',
            7,
            id="all engines, each series once",
        ),
        pytest.param("vllm:num_requests_running 1\nvllm:num_requests_waiting 0\n", 1, id="no labels"),
        pytest.param('vllm:num_requests_running{engine="0"} 0.0\n', None, id="half is unknown"),
        pytest.param("vllm:num_requests_running odd\nvllm:num_requests_waiting 0\n", None, id="odd is unknown"),
        pytest.param("vllm:num_requests_running NaN\nvllm:num_requests_waiting 0\n", None, id="NaN is unknown"),
        pytest.param("", None, id="statistics off"),
    ],
)
def test_load(text: str, load: int | None) -> None:
    assert readiness.load(text) == load


@pytest.mark.parametrize(
    ("body", "names"),
    [(b'{"data": [{"id": "a"}, {"id": "b"}]}', ("a", "b")), (b"{}", ()), (b"<html>", ()), (b"[1]", ()), (b"\xff", ())],
)
def test_model_names(body: bytes, names: tuple[str, ...]) -> None:
    assert readiness.model_names(body) == names


@pytest.mark.parametrize(
    ("command", "environment", "key"),
    [
        pytest.param(("vllm", "serve"), {}, None, id="none"),
        pytest.param(("vllm",), {"VLLM_API_KEY": "e"}, "e", id="environment"),
        pytest.param(("vllm",), {"VLLM_API_KEY": ""}, None, id="an empty one is none"),
        pytest.param(("vllm", "--api-key", "f"), {"VLLM_API_KEY": "e"}, "f", id="the flag goes first"),
        pytest.param(("vllm", "--api-key=f"), {}, "f", id="the flag with an equals sign"),
    ],
)
def test_api_key(command: tuple[str, ...], environment: dict[str, str], key: str | None) -> None:
    assert readiness.api_key(command, environment) == key


HEAD = '{"schema": "hisparse.dev/launch/v1", '


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('"engine": []}', "engine: a list is not an object"),
        ('"engine": null}', "engine: null is not an object"),
        ('"engine": {"servedName": ""}}', "engine.servedName: '' is not a text"),
        ('"engine": {"servedName": "m", "port": "8000"}}', "engine.port: '8000' is not a whole number"),
        ('"engine": {"servedName": "m", "port": 70000}}', "engine.port: 70000 is above 65535"),
        ('"engine": {"servedName": "m", "drainSeconds": -1}}', "engine.drainSeconds: -1 is not a number of seconds"),
        ('"engine": {"servedName": "m", "drainSeconds": NaN}}', "engine.drainSeconds: nan is not"),
        ('"engine": {"servedName": "m"}, "launcher": {"port": 0}}', "launcher.port: 0 is not a whole number"),
        ('"engine": {"servedName": "m"}, "memory": {"shmBytes": true}}', "memory.shmBytes: True is not a whole"),
        ('"engine": {"servedName": "m"}, "memory": {"sharedPool": 1}}', "memory.sharedPool: 1 is neither"),
        ('"engine": {"servedName": "m"}, "memory": {"tensorParallel": 0}}', "memory.tensorParallel: 0 is not"),
    ],
)
def test_a_plan_that_is_wrong_names_the_field(text: str, told: str) -> None:
    with pytest.raises(plans.PlanError) as caught:
        plans.parse(HEAD + text)
    assert told in str(caught.value)


def test_a_short_plan_has_good_defaults() -> None:
    plan = plans.parse(HEAD + '"engine": {"servedName": "m", "later": 1}}')
    assert plan == plans.Plan(EnginePlan("m"), plans.MemoryPlan())
    assert (plan.engine.port, plan.launcher_port, plan.engine.drain_s) == (8000, 8001, 300)
