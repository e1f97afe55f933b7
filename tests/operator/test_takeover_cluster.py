"""Two operators: the leader is killed, or stands still for longer than its lease holds. Never do both write."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fault_proxy import FaultProxy

pytestmark = [pytest.mark.chaos, pytest.mark.cluster, pytest.mark.timeout(180)]

Namespace = Any  # of conftest.py, from which a test module cannot import
Running = Any
LEASE_S = 15.0
NAME = "small"
FROZEN_AT_A_WRITE = """
import os, signal, sys
from pathlib import Path
from hisparse_operator import __main__
from hisparse_operator.cluster import kube

marker = Path(sys.argv.pop(1))
ask = kube.Api._json

async def stand_still(self, verb, kind, path, **rest):
    if verb == "apply" and kind.kind == "ReplicaSet" and marker.exists():
        marker.unlink()
        os.kill(os.getpid(), signal.SIGSTOP)  # the lease was ours when we looked; here whole minutes go by
    return await ask(self, verb, kind, path, **rest)

kube.Api._json = stand_still
__main__.main()
"""


def spec(**rest: Any) -> dict[str, Any]:
    model = {"huggingFace": {"repo": "meta-llama/Llama-3.1-8B-Instruct"}}
    return {"model": model, "context": {"maxTokens": 65536}, "resources": {"gpus": 1}, **rest}


class Two:
    """Two operators of one namespace, each behind a proxy of its own that knows what it wrote and when."""

    def __init__(self, space: Namespace, first: FaultProxy, second: FaultProxy) -> None:
        self.space, self.first, self.second = space, first, second

    def replicas(self) -> int:
        path = f"/apis/apps/v1/namespaces/{self.space.name}/replicasets"
        return sum(one["spec"]["replicas"] for one in self.space.api.request("GET", path)["items"])

    def serves(self, replicas: int) -> bool:
        return bool(
            self.space.observed(NAME)
            and self.space.condition("Ready", NAME).get("status") == "True"
            and self.replicas() == replicas
        )

    def done(self, proxy: FaultProxy, since: float) -> list[str]:
        """Writes that the API server has done for an operator since a time, leases apart."""
        return [
            f"{one.method} {one.path}"
            for one in proxy.asked(since)
            if one.number and proxy.answered.get(one.number, 500) < 300
        ]


@pytest.fixture
def two(space: Namespace) -> Iterator[Two]:
    """Proxies for two operators."""
    plane, user = space.operators.cluster.control_plane, space.operators.user
    with FaultProxy(plane, user) as first, FaultProxy(plane, user) as second:
        yield Two(space, first, second)


def test_a_killed_leader_is_followed_when_its_lease_has_run_out(two: Two) -> None:
    space = two.space
    leader = space.operators.leading(kubeconfig=two.first.kubeconfig)
    other = space.operators.start(kubeconfig=two.second.kubeconfig)
    space.create(NAME, **spec())
    space.until(lambda: two.serves(1), "it serves")
    space.until(lambda: other.page("/readyz") == "standing by\n", "the other stands by")

    killed = time.monotonic()
    leader.stop(signal.SIGKILL)
    space.edit(NAME, {"replicas": 2})
    space.until(lambda: two.serves(2), "the other has taken over", LEASE_S + 15)
    sys.stdout.write(f"followed {time.monotonic() - killed:.1f} s after the kill\n")
    first_write = min(one.at for one in two.second.asked(killed) if one.number)
    assert first_write - killed > LEASE_S - 5, "not before the lease ran out, less what had passed since its renewal"


def test_a_leader_that_stood_still_for_longer_than_its_lease_writes_nothing_any_more(two: Two) -> None:
    space = two.space
    leader = space.operators.leading(kubeconfig=two.first.kubeconfig)
    other = space.operators.start(kubeconfig=two.second.kubeconfig)
    space.create(NAME, **spec())
    space.until(lambda: two.serves(1), "it serves")
    space.until(lambda: other.page("/readyz") == "standing by\n", "the other stands by")

    os.kill(leader.process.pid, signal.SIGSTOP)
    stopped = time.monotonic()
    space.edit(NAME, {"replicas": 2})
    space.until(lambda: two.serves(2), "the other has taken over", LEASE_S + 15)
    assert other.leads()
    os.kill(leader.process.pid, signal.SIGCONT)
    assert leader.process.wait(20) == 1, "it ends, to be started as the one that waits"
    assert not two.done(two.first, stopped), "and has written nothing since"
    assert two.serves(2)
    space.settled()


def test_a_leader_that_stood_still_between_look_and_write_changes_nothing(two: Two, tmp_path: Path) -> None:
    """The one write that no lease can hold back: it may begin, and then the process sleeps before it is sent."""
    space, marker = two.space, tmp_path / "stand-still"
    leader = space.operators.leading(program=("-c", FROZEN_AT_A_WRITE, str(marker)), kubeconfig=two.first.kubeconfig)
    space.create(NAME, **spec(replicas=2))
    space.until(lambda: two.serves(2), "it serves")
    space.settled()
    other = space.operators.start(kubeconfig=two.second.kubeconfig)
    space.until(lambda: other.page("/readyz") == "standing by\n", "the other stands by")

    marker.touch()
    space.edit(NAME, {"replicas": 1})  # what the leader is about to write when it falls asleep
    space.until(lambda: not marker.exists(), "it stands still")
    asleep = time.monotonic()
    space.edit(NAME, {"replicas": 3})
    space.until(lambda: two.serves(3), "the other has taken over", LEASE_S + 15)
    os.kill(leader.process.pid, signal.SIGCONT)
    assert leader.process.wait(20) == 1
    assert two.done(two.first, asleep) == [], "what it had decided before is refused, for the object has changed"
    assert two.replicas() == 3
    assert other.leads()
