"""SIGKILL before every write of a reconcile: the next start converges, and no pod is made twice or restarted.

Killed before write n and killed after write n-1 leave the same cluster, so that one run for each write says it all. How
many writes there are is found by counting: a life goes on until nobody is killed any more.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from fault_proxy import Asked, Call, FaultProxy, nothing
from pod_history import PodHistory

pytestmark = [pytest.mark.faults, pytest.mark.cluster, pytest.mark.timeout(1500)]

Namespace = Any  # of conftest.py, from which a test module cannot import
Running = Any
NAME = "small"
REPLICAS = 2
MOST_WRITES = 80


def spec(**rest: Any) -> dict[str, Any]:
    model = {"huggingFace": {"repo": "meta-llama/Llama-3.1-8B-Instruct"}}
    return {
        "model": model,
        "context": {"maxTokens": 65536},
        "resources": {"gpus": 1},
        "replicas": REPLICAS,
        **rest,
    }


class Lives:
    """One namespace, one operator after another, each behind the same proxy."""

    def __init__(self, space: Namespace, proxy: FaultProxy) -> None:
        self.space = space
        self.proxy = proxy
        self.operator = self._start()

    def _start(self) -> Running:
        # an operator that was killed leaves its lease for 15 s; that it waits so long is test_leader.py's matter
        lease = f"/apis/coordination.k8s.io/v1/namespaces/{self.space.name}/leases/hisparse-operator"
        if self.space.api.get(lease) is not None:
            self.space.api.request("DELETE", lease)
        return self.space.operators.leading(kubeconfig=self.proxy.kubeconfig)

    def with_kill_before(self, number: int, work: Callable[[], None]) -> bool:
        """Do some work, with the operator killed before its next but so many write; whether it came to that."""
        killed: list[Asked] = []
        first = max((one.number for one in self.proxy.seen), default=0)
        process = self.operator.process

        def kill(asked: Asked) -> Call | None:
            if asked.number != first + number or killed:
                return None
            killed.append(asked)
            # the request is never passed on: the process is gone before that
            return Call(lambda: os.kill(process.pid, signal.SIGKILL))

        self.proxy.rule = kill
        work()
        self.space.until(lambda: killed or self.converged(), f"killed before write {number}, or converged", 60)
        if killed:
            process.wait(10)
            self.proxy.rule = nothing
            sys.stdout.write(f"killed before write {number}: {killed[0].method} {killed[0].path}\n")
            self.operator = self._start()
            self.space.until(self.converged, f"converged after a kill before write {number}", 60)
        self.proxy.rule = nothing
        self.space.settled()
        assert self.converged()
        return bool(killed)

    def converged(self) -> bool:
        """The status says that all is done, for this generation."""
        return bool(self.space.converged(NAME))


@pytest.fixture
def lives(space: Namespace) -> Iterator[Lives]:
    """An operator that can be killed."""
    with FaultProxy(space.operators.cluster.control_plane, space.operators.user) as proxy:
        yield Lives(space, proxy)


def test_killed_before_any_write_of_a_creation_it_converges_to_the_same_objects(lives: Lives) -> None:
    space, reference = lives.space, set[str]()
    number = 0
    while True:
        number += 1
        with PodHistory(space.api, space.name) as history:
            killed = lives.with_kill_before(number, lambda: space.create(NAME, **spec()))
            assert len(history.made()) == REPLICAS, "each pod is made once"
            assert not history.deleted(), "and none is restarted"
        shape = space.shape(NAME)
        reference = reference or shape
        assert shape == reference
        space.api.request("DELETE", space.path(NAME))
        space.until(lambda: not space.children(), "everything is collected", 60)
        if not killed:
            break
        assert number < MOST_WRITES
    sys.stdout.write(f"{number - 1} writes of a creation\n")
    assert number > len(reference), "each child at least is a write"


def test_killed_before_any_write_of_a_rollout_it_converges_and_serves_all_along(lives: Lives) -> None:
    space = lives.space
    space.create(NAME, **spec())
    space.until(lives.converged, "it serves", 60)
    space.settled()
    reference = space.shape(NAME)
    number = 0
    while True:
        number += 1
        args = [f"--seed={number}"]
        with PodHistory(space.api, space.name) as history:
            begun = time.monotonic()
            killed = lives.with_kill_before(number, partial(space.edit, NAME, {"engine": {"args": args}}))
            assert space.shape(NAME) == reference
            assert len(history.made(begun)) == REPLICAS, "each pod of the new revision is made once"
            assert len(history.deleted(begun)) == REPLICAS, "and each old one goes once"
            assert history.least_serving(begun) >= REPLICAS - 1
        if not killed:
            break
        assert number < MOST_WRITES
    sys.stdout.write(f"{number - 1} writes of a rollout\n")
    revisions = [one for one in space.children() if one.startswith("ControllerRevision/")]
    # five to go back to, the one that runs, and the one that ran when the last pass looked
    assert len(revisions) <= 7, "old revisions were forgotten all along"
