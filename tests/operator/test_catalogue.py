"""The catalogue is complete: every word has an entry, and what the operator can judge may stand where it does."""

import ast
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from simulator import SmallCluster, dense, node

import hisparse_operator
from hisparse_operator.decide.catalogue import EVENTS, REASONS, STANDS, TYPES, may_stand
from hisparse_operator.decide.conditions import Condition, Status
from hisparse_operator.decide.reasons import ConditionType, EventReason, Reason

SOURCES = Path(hisparse_operator.__file__).parent


def test_every_word_has_one_entry() -> None:
    assert sorted(entry.word for entry in TYPES) == sorted(ConditionType)
    assert sorted(entry.word for entry in REASONS) == sorted(Reason)
    assert sorted(entry.word for entry in EVENTS) == sorted(EventReason)


def test_every_condition_has_a_reason_for_good_and_one_for_ill() -> None:
    for kind in ConditionType:
        statuses = {status for stands in STANDS.values() for of, status in stands if of is kind}
        assert len(statuses) >= 2, kind


def test_a_reason_that_is_not_of_its_condition_is_noticed() -> None:
    assert may_stand("Scheduled", "False", "InsufficientGPU")
    assert not may_stand("Scheduled", "True", "InsufficientGPU")
    assert not may_stand("Available", "False", "InsufficientGPU")
    assert not may_stand("Scheduled", "False", "Nonsense")
    with pytest.raises(AssertionError, match="Available False InsufficientGPU is not in"):
        Condition(ConditionType.AVAILABLE, Status.FALSE, Reason.INSUFFICIENT_GPU, "this fixture works")


@cache
def attributes() -> frozenset[str]:
    """All that is written with a dot, outside of the catalogue and of the words themselves."""
    files = [path for path in SOURCES.rglob("*.py") if "catalogue" not in path.parts and path.name != "reasons.py"]
    return frozenset(
        ast.unparse(one)
        for path in files
        for one in ast.walk(ast.parse(path.read_text()))
        if isinstance(one, ast.Attribute)
    )


@pytest.mark.parametrize("word", [*Reason, *EventReason], ids=str)
def test_every_word_is_used_outside_of_the_catalogue(word: Reason | EventReason) -> None:
    """One that nothing gives any more would be a lie in the page."""
    wanted = f"{type(word).__name__}.{word.name}"
    # shortfalls bring the word itself (planning.Reason(shortfall.reason))
    planner = "\n".join(path.read_text() for path in (SOURCES.parents[1] / "core" / "hisparse").glob("shortfall.py"))
    assert wanted in attributes() or f'"{word.value}"' in planner


# --- words of others that become ours ----------------------------------------------------------------------------


def first_pod(cluster: SmallCluster) -> dict[str, Any]:
    cluster.operate()
    cluster.control()
    (pod,) = cluster.pods()
    return pod


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        pytest.param("0/9 nodes are available: 9 Insufficient memory.", "InsufficientMemory", id="memory"),
        pytest.param("0/9 nodes are available: 9 Insufficient nvidia.com/gpu.", "InsufficientGPU", id="GPUs"),
        pytest.param("1 node(s) had untolerated taint(s) {team: search}.", "TaintMismatch", id="a taint"),
        pytest.param('persistentvolumeclaim "weights" not found', "PVCNotBound", id="a claim"),
        pytest.param("9 node(s) were unschedulable.", "NodesCordoned", id="a cordon"),
        pytest.param("9 node(s) had volume node affinity conflict.", "Unschedulable", id="anything else"),
    ],
)
def test_what_the_scheduler_says_has_a_word(said: str, reason: str) -> None:
    cluster = SmallCluster(dense(), [node("n0")])
    pod = first_pod(cluster)
    pod["status"]["conditions"] = [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": said}
    ]
    cluster.operate()
    assert cluster.reason(ConditionType.SCHEDULED) == cluster.reason(ConditionType.READY) == f"False/{reason}"


def test_a_gate_has_a_word() -> None:
    cluster = SmallCluster(dense(), [node("n0")])
    pod = first_pod(cluster)
    pod["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]
    cluster.operate()
    assert cluster.reason(ConditionType.SCHEDULED) == cluster.reason(ConditionType.READY) == "False/SchedulingGated"


ENDED = {"exitCode": 137, "reason": "Error", "startedAt": "2026-01-01T00:00:00Z", "finishedAt": "2026-01-02T00:00:00Z"}


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        pytest.param({"state": {"waiting": {"reason": "ErrImagePull"}}}, "ImagePullFailed", id="image"),
        pytest.param(
            {"state": {"waiting": {"reason": "CreateContainerConfigError"}}}, "ContainerConfigError", id="configuration"
        ),
        pytest.param({"lastState": {"terminated": ENDED}}, "StartupTimeout", id="too slow"),
        pytest.param({"lastState": {"terminated": ENDED | {"reason": "OOMKilled"}}}, "OOMKilled", id="memory"),
        pytest.param({"lastState": {"terminated": ENDED | {"exitCode": 1}}}, "CrashLoop", id="crash"),
    ],
)
def test_what_the_kubelet_says_has_a_word(state: dict[str, Any], reason: str) -> None:
    cluster = SmallCluster(dense(), [node("n0")])
    pod = first_pod(cluster)
    cluster.schedule()
    pod["status"]["containerStatuses"] = [{"name": "engine", "restartCount": 0, "state": {}, **state}]
    cluster.operate()
    assert cluster.reason(ConditionType.WORKLOAD_READY) == cluster.reason(ConditionType.READY) == f"False/{reason}"
    assert cluster.reason(ConditionType.PROGRESSING) == "False/NewRevisionFailing"
