"""What a person sees who applies, reads, scales, breaks and mends an object (issue proof 4), on simulated nodes."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(280)]

Namespace = Any  # of conftest.py, from which a test module cannot import
LLAMA = {
    "model": {"huggingFace": {"repo": "meta-llama/Llama-3.1-8B-Instruct"}},
    "context": {"maxTokens": 65536},
    "resources": {"gpus": 1},
}


def kubectl(space: Namespace, *words: str) -> str:
    found: str = space.kubectl("-n", space.name, *words).stdout
    return found


def ready(space: Namespace, name: str = "glm") -> None:
    kubectl(space, "wait", "--for=condition=Ready", f"hsi/{name}", "--timeout=90s")


def pods(space: Namespace, name: str) -> list[dict[str, Any]]:
    selector = f"inference.hisparse.dev/inference={name}"
    found: list[dict[str, Any]] = json.loads(kubectl(space, "get", "pods", "-l", selector, "-o", "json"))["items"]
    return found


def reasons(space: Namespace) -> list[str]:
    events = json.loads(kubectl(space, "get", "events", "-o", "json"))["items"]
    return [one["reason"] for one in events if one["involvedObject"]["kind"] == "HiSparseInference"]


def test_the_smallest_manifest(everywhere: Namespace) -> None:
    space = everywhere
    space.operators.leading()
    space.create()
    ready(space)

    header, row = kubectl(space, "get", "hsi", "-o", "wide").splitlines()
    assert header.split() == [
        *("NAME", "READY", "REASON", "REPLICAS", "MODEL", "CONTEXT", "TIER", "POOL", "MAXCONC", "AGE"),
        *("NODES", "ENDPOINT", "REVISION"),
    ]
    for word in ("glm", "True", "GLM-5.3-FP8", "1048576", "HiSparse"):
        assert word in row.split(), row
    status = space.inference()["status"]
    assert status["mode"]["effective"] == "HiSparse"
    assert "does not fit in plain KV" in status["mode"]["reason"]
    assert status["replicas"] == status["readyReplicas"] == status["servingReplicas"] == 1
    assert status["plan"]["feasible"] is True
    assert status["capacity"]["candidateNodes"] >= 2

    (pod,) = pods(space, "glm")
    engine = pod["spec"]["containers"][0]
    assert engine["command"][0] == "hisparse-launch"
    assert engine["args"][:3] == ["vllm", "serve", "zai-org/GLM-5.3-FP8"]
    assert engine["resources"]["requests"]["memory"] == engine["resources"]["limits"]["memory"]
    assert not pod["spec"]["automountServiceAccountToken"]

    described = kubectl(space, "describe", "hsi", "glm")
    for word in ("PlanFeasible", "Binding Limit", "RevisionCreated", "Endpoint"):
        assert word in described, described
    assert "RevisionCreated" in reasons(space)


def test_scale_up_and_down(everywhere: Namespace) -> None:
    space = everywhere
    space.operators.leading()
    space.create("small", **LLAMA)
    ready(space, "small")
    kubectl(space, "scale", "hsi/small", "--replicas=3")
    space.until(lambda: space.inference("small")["status"].get("readyReplicas") == 3, "three are ready", 60)
    assert "poddisruptionbudget.policy/small" in kubectl(space, "get", "pdb", "-o", "name")
    kubectl(space, "scale", "hsi/small", "--replicas=1")
    space.until(lambda: len(pods(space, "small")) == 1, "one is left", 60)
    space.until(lambda: not kubectl(space, "get", "pdb", "-o", "name").strip(), "one pod has no budget", 60)
    kubectl(space, "scale", "hsi/small", "--replicas=0")
    space.until(lambda: not pods(space, "small"), "none is left", 60)


def test_a_change_rolls_one_at_a_time_and_never_below_the_promise(everywhere: Namespace) -> None:
    space = everywhere
    space.operators.leading()
    space.create("small", **LLAMA, replicas=3)
    ready(space, "small")
    first = space.inference("small")["status"]["currentRevision"]
    served = [space.inference("small")["status"]]

    def rolled() -> bool:
        status = space.inference("small")["status"]
        served.append(status)
        return bool(status["currentRevision"] != first and status.get("updatedReplicas") == 3)

    space.edit("small", {"engine": {"args": ["--seed=7"]}})
    space.until(rolled, "all three are of the new revision", 120)
    ready(space, "small")
    least = min(served, key=lambda status: status.get("servingReplicas", 0))
    assert least.get("servingReplicas", 0) >= 2, json.dumps(least)

    def arguments() -> list[bool]:
        return ["--seed=7" in pod["spec"]["containers"][0]["args"] for pod in pods(space, "small")]

    space.until(lambda: arguments() == [True] * 3, "the last of the old ones is gone", 30)


def test_an_invalid_edit_leaves_the_running_revision_untouched(everywhere: Namespace) -> None:
    space = everywhere
    space.operators.leading()
    space.create("small", **LLAMA)
    ready(space, "small")
    before = [pod["metadata"]["uid"] for pod in pods(space, "small")]
    space.edit("small", {"context": {"maxTokens": 1048576}})
    space.until(lambda: space.condition("Accepted", "small").get("status") == "False", "it is refused", 30)
    message = space.condition("Accepted", "small")["message"]
    assert message.startswith("spec.context.maxTokens: 1048576 is above the 131072 positions")
    assert space.condition("Available", "small")["status"] == "True"
    assert space.condition("Ready", "small")["status"] == "False"
    assert [pod["metadata"]["uid"] for pod in pods(space, "small")] == before
    space.edit("small", {"context": {"maxTokens": 65536}})
    ready(space, "small")
    assert [pod["metadata"]["uid"] for pod in pods(space, "small")] == before


def test_one_that_does_not_fit_says_what_binds_and_what_would_lift_it(everywhere: Namespace) -> None:
    space = everywhere
    space.operators.leading()
    space.create("glm", resources={"gpus": 4})
    space.until(lambda: space.condition("PlanFeasible").get("status") == "False", "it does not fit", 30)
    found = space.condition("PlanFeasible")
    assert found["reason"] == "HBMInsufficient"
    assert "set resources.gpus to 8" in found["message"]
    assert not pods(space, "glm")
    status = space.inference()["status"]
    assert status["capacity"]["candidateNodes"] == 0
    (rejected,) = [one for one in status["capacity"]["rejected"] if one["reason"] == "HBMInsufficient"]
    assert rejected["count"] >= 2
    space.edit("glm", {"resources": {"gpus": 8}})
    ready(space)


def test_plan_only_makes_nothing(everywhere: Namespace) -> None:
    space = everywhere
    space.operators.leading()
    space.create("glm", planOnly=True)
    space.until(lambda: space.condition("PlanFeasible").get("status") == "True", "it is planned", 30)
    assert space.inference()["status"]["plan"]["hostPool"]
    assert not space.children()


def test_a_crashing_engine_is_told_in_status(everywhere: Namespace) -> None:
    space = everywhere
    space.operators.leading()
    outcome = {"annotations": {"testenv.hisparse.dev/outcome": "oom"}}
    space.create("small", **LLAMA, podTemplate=outcome)
    space.until(lambda: space.inference("small").get("status", {}).get("lastFailure"), "the failure is told", 60)
    failure = space.inference("small")["status"]["lastFailure"]
    assert failure["reason"] == "OOMKilled"
    assert failure["exitCode"] == 137
    assert failure["pod"].startswith("small-")
    assert space.condition("Ready", "small")["status"] == "False"
    assert space.condition("WorkloadReady", "small")["reason"] in {"OOMKilled", "CrashLoop"}


def test_what_the_scheduler_says_is_shown(everywhere: Namespace) -> None:
    space = everywhere
    space.operators.leading()
    space.create("small", **{**LLAMA, "resources": {"gpus": 8}}, replicas=20)

    def why() -> bool:
        found = space.condition("Scheduled", "small")
        return found.get("status") == "False" and "nvidia.com/gpu" in found["message"]

    space.until(why, "some cannot be placed", 60)
    kubectl(space, "delete", "hsi", "small")
    space.until(lambda: not pods(space, "small"), "the GPUs are free for the next test", 60)
