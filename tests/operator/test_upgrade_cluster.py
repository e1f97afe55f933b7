"""A newer operator and a newer CRD beside pods that run, on a real API server: no pod restarts."""

import json
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = [pytest.mark.cluster, pytest.mark.chaos, pytest.mark.timeout(300)]

Namespace = Any  # of conftest.py, from which a test module cannot import
NAME = "small"
CRD = Path(__file__).parents[2] / "crds" / "inference.hisparse.dev_hisparseinferences.yaml"

# templates of another version that really are others, other images, another planner, and a field with a default
NEWER = """
import dataclasses
from hisparse import engine, spec

engine.TEMPLATE_VERSION = 2

class NewerSpec(spec.HiSparseInferenceSpec):
    new_thing: int = 5

spec.HiSparseInferenceSpec = NewerSpec

from hisparse.plan import Plan
from hisparse_operator.decide import planning, podtemplate

render, plan_once = podtemplate.pod_template, planning.plan

def template(*arguments):
    made = render(*arguments)
    made["spec"]["containers"][0]["env"].append({"name": "NEWER", "value": "yes"})
    return made

def plan(*arguments):
    made = plan_once(*arguments)
    return dataclasses.replace(made, max_requests=made.max_requests + 1) if isinstance(made, Plan) else made

podtemplate.pod_template, planning.plan = template, plan

from hisparse_operator.__main__ import main
raise SystemExit(main())
"""
IMAGES = ("--engine-image", "elsewhere/engine:2", "--launcher-image", "elsewhere/launcher:2")


def spec(**rest: Any) -> dict[str, Any]:
    model = {"huggingFace": {"repo": "meta-llama/Llama-3.1-8B-Instruct"}}
    return {"model": model, "context": {"maxTokens": 65536}, "resources": {"gpus": 1}, **rest}


def leading(space: Namespace, *words: str, program: tuple[str, ...] = ("-m", "hisparse_operator")) -> Any:
    found = space.operators.start("--resync", "2s", *words, program=program)
    space.until(lambda: found.leads() or found.process.poll() is not None, "the operator leads", 90)
    return found


def newer_operator(space: Namespace) -> Any:
    return leading(space, *IMAGES, program=("-c", NEWER))


def running(space: Namespace, replicas: int) -> None:
    def ready() -> bool:
        status = space.inference(NAME).get("status") or {}
        ready = space.condition("Ready", NAME).get("status") == "True"
        return bool(space.observed(NAME) and ready and status["servingReplicas"] == replicas)

    space.until(ready, f"{replicas} serve", 90)


def items(space: Namespace, kind: str) -> list[dict[str, Any]]:
    text = space.kubectl("-n", space.name, "get", kind, "-l", f"inference.hisparse.dev/inference={NAME}", "-o", "json")
    found: list[dict[str, Any]] = json.loads(text.stdout)["items"]
    return found


def pods(space: Namespace) -> dict[str, int]:
    """The pods by uid, and how often their engine was restarted."""
    return {
        one["metadata"]["uid"]: sum(status["restartCount"] for status in one["status"].get("containerStatuses") or ())
        for one in items(space, "pods")
    }


def templates(space: Namespace) -> list[tuple[str, int, Any]]:
    """The ReplicaSets with their generation, which every change of their spec raises."""
    return [(one["metadata"]["uid"], one["metadata"]["generation"], one["spec"]) for one in items(space, "replicasets")]


def test_a_newer_operator_restarts_no_pod_and_says_what_it_would_do_otherwise(everywhere: Namespace) -> None:
    space = everywhere
    operator = leading(space)
    space.create(NAME, **spec(replicas=2))
    running(space, 2)
    kept, made, children = pods(space), templates(space), space.settled()
    assert operator.stop() == 0
    written = len(space.writes())

    operator = newer_operator(space)

    def warned() -> list[str]:
        found: list[str] = space.inference(NAME)["status"]["plan"].get("warnings") or []
        return [one for one in found if "maxNumSeqs" in one]

    (note,) = space.until(warned, "status says what today's plan would do")
    assert "change spec.restartToken to take it" in note
    space.settled()
    assert pods(space) == kept
    assert templates(space) == made
    assert space.children() == children, "no child was written"
    assert all("/status" in one or "/events" in one for one in space.writes()[written:])

    # one more pod of the same revision is what the others are
    space.edit(NAME, {"replicas": 3})
    running(space, 3)
    assert kept.items() <= pods(space).items()
    images = {one["spec"]["containers"][0]["image"] for one in items(space, "pods")}
    assert len(images) == 1
    assert "elsewhere/engine:2" not in images

    # asked for, it comes
    space.edit(NAME, {"restartToken": "take-it"})
    space.until(lambda: not kept.keys() & pods(space).keys(), "all pods are new", 90)
    running(space, 3)
    assert {one["spec"]["containers"][0]["image"] for one in items(space, "pods")} == {"elsewhere/engine:2"}
    assert not warned()
    assert 'result="bug"' not in operator.page("/metrics")


@pytest.fixture
def newer_crd(everywhere: Namespace) -> Iterator[str]:
    """A CRD with one more field, which has a default, and another default of a field that there was."""
    newer = yaml.safe_load(CRD.read_text())
    properties = newer["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    assert properties["replicas"]["default"] == 1
    properties["replicas"]["default"] = 2
    properties["newThing"] = {"type": "integer", "default": 5, "description": "New."}
    yield yaml.safe_dump(newer)
    everywhere.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(CRD))


def test_a_newer_crd_under_a_running_operator_restarts_no_pod(everywhere: Namespace, newer_crd: str) -> None:
    space = everywhere
    operator = leading(space)
    space.create(NAME, **spec())
    running(space, 1)
    kept, made = pods(space), deepcopy(templates(space))

    space.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", input=newer_crd)
    space.until(lambda: space.inference(NAME)["spec"].get("newThing") == 5, "the API server fills the field in")

    def accepted() -> str:
        return str(space.condition("Accepted", NAME)["message"])

    space.edit(NAME, {"disruption": {"maxUnavailable": 1}})
    space.until(lambda: "spec.newThing is a field of a newer CRD" in accepted(), "status names what it leaves out")
    assert space.condition("Accepted", NAME)["status"] == "True"
    assert space.inference(NAME)["spec"]["replicas"] == 1, "what was stored keeps its value"
    running(space, 1)
    assert pods(space) == kept
    assert templates(space) == made

    # the operator follows, and knows the field
    assert operator.process.poll() is None
    assert operator.stop() == 0
    operator = newer_operator(space)
    space.until(lambda: accepted() == "the spec can be used as it is", "the field is known")
    space.settled()
    assert pods(space) == kept
    assert templates(space) == made
    space.edit(NAME, {"replicas": 2})
    running(space, 2)
    assert kept.items() <= pods(space).items()
    # a person who asks for something else with it gets it
    space.edit(NAME, {"newThing": 6})
    space.until(lambda: not kept.keys() & pods(space).keys(), "the pods are new", 90)
    running(space, 2)
    assert 'result="bug"' not in operator.page("/metrics")
