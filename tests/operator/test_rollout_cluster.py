"""A rollout, a revert, an invalid edit, scaling and deletion on a real API server with simulated nodes."""

from typing import Any

import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

Namespace = Any  # of conftest.py, from which a test module cannot import
NAME = "small"


def spec(**rest: Any) -> dict[str, Any]:
    model = {"huggingFace": {"repo": "meta-llama/Llama-3.1-8B-Instruct"}}
    return {"model": model, "context": {"maxTokens": 65536}, "resources": {"gpus": 1}, **rest}


def is_ready(space: Namespace) -> bool:
    return bool(space.observed(NAME) and space.condition("Ready", NAME).get("status") == "True")


def status(space: Namespace) -> dict[str, Any]:
    found: dict[str, Any] = space.inference(NAME).get("status") or {}
    return found


def test_a_life(everywhere: Namespace) -> None:
    space = everywhere
    operator = space.operators.leading("--resync", "2s")
    space.create(NAME, **spec(replicas=3))
    space.until(lambda: is_ready(space), "three replicas are ready", 90)
    first = status(space)["currentRevision"]
    assert any(one.startswith("PodDisruptionBudget/") for one in space.children())

    # a rollout: the promise is watched from outside
    served: list[int] = []

    def rolled() -> bool:
        now = status(space)
        served.append(int(now.get("servingReplicas", 0)))
        # the last new pod may be ready a moment before the Service sends to it
        return is_ready(space) and now["currentRevision"] != first

    space.edit(NAME, {"restartToken": "one"})
    space.until(rolled, "the new revision is ready", 90)
    second = status(space)["currentRevision"]
    assert min(served) >= 2, served
    sets = [one for one in space.children() if one.startswith("ReplicaSet/")]
    assert sets == [f"ReplicaSet/{NAME}-{second}"]

    # an edit that only the operator can refuse
    pods = sorted(one for one in space.children() if one.startswith("Pod/"))
    space.edit(NAME, {"context": {"maxTokens": 9_000_000}})
    space.until(lambda: space.condition("Accepted", NAME).get("status") == "False", "it is refused")
    assert "spec.context.maxTokens" in space.condition("Ready", NAME)["message"]
    assert space.condition("Available", NAME)["status"] == "True"
    assert sorted(one for one in space.children() if one.startswith("Pod/")) == pods

    # back to what there was at first: its frozen revision
    space.edit(NAME, {"context": {"maxTokens": 65536}, "restartToken": None})
    space.until(lambda: is_ready(space) and status(space)["currentRevision"] == first, "the first one again", 90)

    space.kubectl("-n", space.name, "scale", "hsi", NAME, "--replicas=1")
    space.until(lambda: is_ready(space) and status(space)["replicas"] == 1, "one replica", 60)
    assert not any(one.startswith("PodDisruptionBudget/") for one in space.children())

    # a conflict is no refusal: the object had changed since it was looked at, and is looked at again
    refused = [one for one in space.writes() if not one.endswith((" 200", " 201", " 409"))]
    assert not refused, refused
    assert 'result="bug"' not in operator.page("/metrics")
    assert operator.stop() == 0
    space.kubectl("-n", space.name, "delete", "hsi", NAME, "--timeout=30s")
    space.until(lambda: not space.children(), "everything went with it, without the operator", 60)
