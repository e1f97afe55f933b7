"""What is wrong with a pod, in the words of whoever said so."""

from typing import Any

import pytest

from hisparse_operator.decide import failures, pods
from hisparse_operator.decide.reasons import Reason
from hisparse_operator.world import World


def pod(
    status: dict[str, Any] | None = None, *, name: str = "p", node: str | None = "n", **more: Any
) -> dict[str, Any]:
    container = {
        "name": "engine",
        "resources": {"limits": {"memory": "64Gi"}},
        "startupProbe": {"periodSeconds": 10, "failureThreshold": 120},
    }
    engine = {"name": "engine", "restartCount": 0, "started": False, "state": {}} | (status or {})
    return {
        "metadata": {"name": name, "uid": name, "labels": {"inference.hisparse.dev/revision": "r"}},
        "spec": {"containers": [container]} | ({"nodeName": node} if node else {}),
        "status": {"phase": "Running", "containerStatuses": [engine]} | more,
    }


def waiting(why: str, message: str = "said so", **last: Any) -> dict[str, Any]:
    status: dict[str, Any] = {"state": {"waiting": {"reason": why, "message": message}}}
    return status | ({"lastState": {"terminated": last}, "restartCount": 3} if last else {})


def read(raw: dict[str, Any]) -> pods.EnginePod:
    (found,) = pods.read([raw], ())
    return found


@pytest.mark.parametrize(
    ("status", "reason", "words"),
    [
        pytest.param({}, None, (), id="loading"),
        pytest.param(waiting("ContainerCreating"), None, (), id="being created"),
        pytest.param(
            waiting("ImagePullBackOff", "no such image"), Reason.IMAGE_PULL_FAILED, ("no such image",), id="image"
        ),
        pytest.param(
            waiting("CreateContainerConfigError", 'secret "hf" not found'),
            Reason.CONTAINER_CONFIG_ERROR,
            ('secret "hf" not found',),
            id="a secret is missing",
        ),
        pytest.param(
            waiting("CrashLoopBackOff", exitCode=1, reason="Error"),
            Reason.CRASH_LOOP,
            ("3 times", "exit code 1"),
            id="crash loop",
        ),
        pytest.param(
            waiting("CrashLoopBackOff", exitCode=137, reason="OOMKilled"),
            Reason.OOM_KILLED,
            ("64Gi", "resources.memory"),
            id="out of memory, with the limit",
        ),
        pytest.param(
            waiting(
                "CrashLoopBackOff",
                exitCode=137,
                reason="Error",
                startedAt="2026-11-29T12:00:00Z",
                finishedAt="2026-11-29T12:20:30Z",
            ),
            Reason.STARTUP_TIMEOUT,
            ("1230 s", "1200 s", "lifecycle.startupBudget"),
            id="killed at the end of its start-up budget",
        ),
        pytest.param(
            waiting(
                "CrashLoopBackOff",
                exitCode=137,
                reason="Error",
                startedAt="2026-11-29T12:00:00Z",
                finishedAt="2026-11-29T12:01:00Z",
            ),
            Reason.CRASH_LOOP,
            ("exit code 137",),
            id="killed long before that",
        ),
        pytest.param(
            waiting("CrashLoopBackOff", exitCode=1, reason="Error") | {"restartCount": 0},
            Reason.CRASH_LOOP,
            ("once", "exit code 1"),
            id="crash loop before the kubelet counts a restart",
        ),
        pytest.param(
            waiting("CrashLoopBackOff", "back-off 5m0s restarting failed container"),
            Reason.CRASH_LOOP,
            ("back-off 5m0s",),
            id="crash loop without a last state",
        ),
        pytest.param(
            {"state": {"terminated": {"exitCode": 3, "reason": "Error"}}},
            Reason.CRASH_LOOP,
            ("once", "exit code 3"),
            id="ended a moment ago",
        ),
        pytest.param(
            {
                "state": {"running": {}},
                "lastState": {"terminated": {"exitCode": 0, "reason": "Completed"}},
                "restartCount": 1,
            },
            None,
            (),
            id="ended well and starts again",
        ),
    ],
)
def test_trouble(status: dict[str, Any], reason: Reason | None, words: tuple[str, ...]) -> None:
    found = failures.trouble_of(read(pod(status)))
    assert (found.reason if found else None) is reason
    assert all(word in (found.message if found else "") for word in words)


def test_a_pod_that_is_ready_is_in_no_trouble_whatever_happened_before() -> None:
    crashed = waiting("x", exitCode=1) | {"state": {"running": {}}, "started": True}
    assert failures.trouble_of(read(pod(crashed, conditions=[{"type": "Ready", "status": "True"}]))) is None


def test_a_pod_that_crashed_is_not_fresh_whatever_the_kubelet_counts() -> None:
    assert read(pod()).fresh
    assert not read(pod(waiting("CrashLoopBackOff", exitCode=1) | {"restartCount": 0})).fresh
    assert not read(pod(waiting("CrashLoopBackOff"))).fresh


def test_an_init_container_is_in_trouble_too() -> None:
    raw = pod(initContainerStatuses=[{"name": "hisparse-install", **waiting("ErrImagePull", "401")}])
    found = failures.trouble_of(read(raw))
    assert found is not None
    assert found.reason is Reason.IMAGE_PULL_FAILED


@pytest.mark.parametrize(
    ("condition", "reason"),
    [
        pytest.param({}, Reason.WAITING_FOR_PODS, id="nobody has looked"),
        pytest.param({"status": "False", "reason": "SchedulingGated"}, Reason.SCHEDULING_GATED, id="a queue holds it"),
        pytest.param(
            "2 Insufficient nvidia.com/gpu, 1 node(s) had untolerated taint {a: }", Reason.INSUFFICIENT_GPU, id="GPUs"
        ),
        pytest.param("3 Insufficient example.com/gpu", Reason.INSUFFICIENT_GPU, id="a GPU resource of another name"),
        pytest.param("2 Insufficient memory", Reason.INSUFFICIENT_MEMORY, id="memory"),
        pytest.param("1 node(s) had untolerated taint {team: vision}", Reason.TAINT_MISMATCH, id="taint"),
        pytest.param(
            "0/2 nodes are available: 2 node(s) had untolerated taint {node.kubernetes.io/unschedulable: }",
            Reason.NODES_CORDONED,
            id="cordoned: a taint that nobody should tolerate",
        ),
        pytest.param("0/2 nodes are available: 2 node(s) were unschedulable", Reason.NODES_CORDONED, id="cordoned"),
        pytest.param(
            "1 node(s) had untolerated taint {node.kubernetes.io/unreachable: }", Reason.UNSCHEDULABLE, id="down"
        ),
        pytest.param(
            "1 node(s) had untolerated taint {node.kubernetes.io/unschedulable: }, 1 node(s) had untolerated taint "
            "{team: vision}",
            Reason.TAINT_MISMATCH,
            id="cordoned and tainted",
        ),
        pytest.param('persistentvolumeclaim "w" not found', Reason.PVC_NOT_BOUND, id="claim"),
        pytest.param("pod has unbound immediate PersistentVolumeClaims", Reason.PVC_NOT_BOUND, id="claim not bound"),
        pytest.param("3 node(s) didn't match Pod's node affinity/selector", Reason.UNSCHEDULABLE, id="anything else"),
    ],
)
def test_the_schedulers_word(condition: str | dict[str, str], reason: Reason) -> None:
    said = (
        condition
        if isinstance(condition, dict)
        else {"status": "False", "reason": "Unschedulable", "message": condition}
    )
    raw = pod(node=None, conditions=[{"type": "PodScheduled", **said}] if said else [])
    found = failures.scheduling_of(read(raw), "example.com/gpu")
    assert found is not None
    assert found[0] is reason
    if isinstance(condition, str):
        assert condition in found[1]


def ended(name: str, time: str, code: int = 1) -> dict[str, Any]:
    return pod(waiting("CrashLoopBackOff", exitCode=code, reason="Error", finishedAt=time), name=name)


EARLY, LATE = "2026-11-29T12:00:00Z", "2026-11-29T13:00:00Z"


def test_the_latest_failure_counts() -> None:
    found = failures.last_failure([read(ended("a", LATE)), read(ended("b", EARLY))], {}, None)
    assert found == {"pod": "a", "reason": "Error", "exitCode": 1, "time": LATE}


def test_an_older_failure_does_not_replace_the_known_one() -> None:
    known = {"pod": "gone", "reason": "Error", "exitCode": 2, "time": LATE, "signature": "Unknown"}
    assert failures.last_failure([read(ended("b", EARLY))], {}, known) == known
    assert failures.last_failure([], {}, known) == known
    assert failures.last_failure([], {}, None) is None


def test_a_log_tail_is_at_most_a_kib_of_whole_characters() -> None:
    found = failures.last_failure([read(ended("a", LATE))], {"a": "ä" * 5000}, None)
    assert found is not None
    assert len(found["logTail"].encode()) <= 1024
    assert set(found["logTail"]) == {"ä"}


def test_what_the_log_said_stays_with_the_same_failure() -> None:
    first = failures.last_failure([read(ended("a", LATE))], {"a": "cudaHostRegister failed: out of memory"}, None)
    assert first is not None
    assert first["signature"] == "HostRegisterFailed"
    assert "locked-memory limits" in first["advice"]
    assert failures.last_failure([read(ended("a", LATE))], {}, first) == first


def test_an_evicted_pod_is_a_failure_in_the_kubelets_words() -> None:
    raw = pod(phase="Failed", reason="Evicted", message="The node was low on resource: memory.", startTime=EARLY)
    assert failures.last_failure([read(raw)], {}, None) == {
        "pod": "p",
        "reason": "Evicted",
        "time": EARLY,
        "signature": "Unknown",
        "logTail": "The node was low on resource: memory.",
    }


def test_a_pod_that_was_asked_to_stop_has_not_failed() -> None:
    raw = ended("a", LATE, code=143)
    raw["metadata"]["deletionTimestamp"] = LATE
    assert failures.last_failure([read(raw)], {}, None) is None
    assert failures.wants_logs(World({"metadata": {"name": "x"}}, pods=(raw,))) == ()


@pytest.mark.parametrize(
    ("known", "wants"),
    [
        pytest.param(None, ("a",), id="nothing is known"),
        pytest.param({"pod": "a", "time": LATE, "exitCode": 1}, ("a",), id="known, its log was not read"),
        pytest.param({"pod": "a", "time": LATE, "exitCode": 1, "signature": "Unknown"}, (), id="read, nothing found"),
        pytest.param({"pod": "a", "time": EARLY, "exitCode": 1, "signature": "Unknown"}, ("a",), id="it failed again"),
    ],
)
def test_a_log_is_asked_for_once_per_failure(known: dict[str, Any] | None, wants: tuple[str, ...]) -> None:
    inference = {"metadata": {"name": "x"}} | ({"status": {"lastFailure": known}} if known else {})
    world = World(inference, pods=(ended("a", LATE), ended("b", EARLY)))
    assert failures.wants_logs(world) == wants
