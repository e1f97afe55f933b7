"""Whatever the network or the API server does to the operator's requests: no edit is lost, no child is made twice,
nothing spins, and once it is over the status catches up.
"""

import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from fault_proxy import Answer, Asked, Cut, Expired, Fault, FaultProxy, Hang, Rule, Slow, Stale, Swapped, nothing
from pod_history import PodHistory

from hisparse_operator import health
from hisparse_operator.cluster.kube import SILENT_S

pytestmark = [pytest.mark.faults, pytest.mark.cluster, pytest.mark.timeout(280)]

Namespace = Any  # of conftest.py, from which a test module cannot import
NAME = "small"
REPLICAS = 2
LASTS_S = 6.0
CATCHES_UP_S = 45.0
MOST_A_SECOND = 12.0
"""Requests of any kind while a fault lasts. Ten kinds are watched; at the pace of one a second each that leaves two."""
BURST = 120
"""Besides: lists and watches that begin anew at once, and what a pass sends."""


def spec(**rest: Any) -> dict[str, Any]:
    model = {"huggingFace": {"repo": "meta-llama/Llama-3.1-8B-Instruct"}}
    return {"model": model, "context": {"maxTokens": 65536}, "resources": {"gpus": 1}, "replicas": REPLICAS, **rest}


def writes(fault: Fault) -> Rule:
    """All writes but those of the lease."""
    return lambda asked: fault if asked.number else None


def lists(fault: Fault) -> Rule:
    return lambda asked: fault if asked.lists and not asked.of_lease else None


def watches(fault: Fault, *plurals: str) -> Rule:
    return lambda asked: fault if asked.watches and (not plurals or asked.plural in plurals) else None


def reads(fault: Fault) -> Rule:
    return lambda asked: fault if asked.method == "GET" and not asked.watches and not asked.of_lease else None


def some(*rules: Rule) -> Rule:
    """The first of them that has something to say."""
    return lambda asked: next((fault for rule in rules if (fault := rule(asked))), None)


def now_and_then(seed: int, share: float, *faults: Fault) -> Rule:
    """One of these faults, on a share of all requests and events."""
    chance = random.Random(seed)  # noqa: S311 - no secret

    def rule(asked: Asked) -> Fault | None:
        del asked
        return chance.choice(faults) if chance.random() < share else None

    return rule


FAULTS: dict[str, Rule] = {
    "409 to every write": writes(Answer(409)),
    "409 to every write that was done": writes(Answer(409, done=True)),
    "410 to every list and watch": some(lists(Answer(410)), watches(Answer(410))),
    "410 within every watch": watches(Expired()),
    "422 to every write": writes(Answer(422)),
    "429 with Retry-After to everything": lambda asked: None if asked.of_lease else Answer(429, retry_after=2),
    "500 to every write": writes(Answer(500)),
    "500 to every write that was done": writes(Answer(500, done=True)),
    "503 to everything": lambda asked: None if asked.of_lease else Answer(503),
    "no answer to writes": writes(Hang()),
    "no answer to writes that were done": writes(Hang(done=True)),
    "no answer to reads": reads(Hang()),
    "every connection is cut": lambda asked: None if asked.of_lease else Cut(),
    "every write is cut when it is done": writes(Cut(done=True)),
    "watches are cut at their first event": watches(Cut()),
    "watches tell of nothing": watches(Hang(), "hisparseinferences", "replicasets", "pods"),
    "lists are old": some(lists(Stale()), watches(Expired())),
    "everything is slow": lambda asked: None if asked.of_lease else Slow(1.5),
    "events come in another order": watches(Swapped()),
    "a mixture": now_and_then(
        7,
        0.3,
        Answer(409),
        Answer(500, done=True),
        Answer(429, retry_after=1),
        Cut(),
        Cut(done=True),
        Slow(0.5),
        Expired(),
    ),
}


class Behind:
    """A namespace, and an operator behind a proxy."""

    def __init__(self, space: Namespace, proxy: FaultProxy) -> None:
        self.space = space
        self.proxy = proxy
        self.operator = space.operators.leading("--resync", "20s", kubeconfig=proxy.kubeconfig)

    def until_converged(self, what: str, limit_s: float = 60.0) -> None:
        """Wait; an operator that gave up is started again, as its pod would be."""

        def there() -> bool:
            if (code := self.operator.process.poll()) is not None:
                assert code == 1, "it ends with an error"
                sys.stdout.write("the operator gave up and is started again\n")
                self.operator = self.space.operators.leading("--resync", "20s", kubeconfig=self.proxy.kubeconfig)
            return bool(self.space.converged(NAME))

        self.space.until(there, what, limit_s)


@pytest.fixture
def behind(space: Namespace) -> Iterator[Behind]:
    """An operator that leads, behind a proxy."""
    with FaultProxy(space.operators.cluster.control_plane, space.operators.user) as proxy:
        yield Behind(space, proxy)


@pytest.mark.parametrize("fault", FAULTS, ids=[one.replace(" ", "-") for one in FAULTS])
def test_edits_in_a_fault_are_neither_lost_nor_done_twice(behind: Behind, fault: str) -> None:
    space, proxy = behind.space, behind.proxy
    space.create(NAME, **spec())
    behind.until_converged("it serves")
    space.settled()
    reference = space.shape(NAME)
    service = space.child("Service")

    with PodHistory(space.api, space.name) as history:
        begun = time.monotonic()
        proxy.rule = FAULTS[fault]
        for number in range(3):  # three edits, in the middle of which a person deletes a child
            space.edit(NAME, {"engine": {"args": [f"--seed={number}"]}})
            if number == 1:
                space.kubectl("-n", space.name, "delete", "service", service)
            time.sleep(LASTS_S / 3)
        asked = proxy.asked(begun)
        proxy.rule = nothing
        proxy.cut_watches()
        healed = time.monotonic()
        behind.until_converged(f"the status catches up after: {fault}", CATCHES_UP_S)
        sys.stdout.write(
            f"{fault}: {len(asked)} requests in {healed - begun:.0f} s, caught up after "
            f"{time.monotonic() - healed:.1f} s\n"
        )
        space.settled()

        assert len(asked) < BURST + MOST_A_SECOND * (healed - begun), Counter(
            (one.method, one.plural, one.watches) for one in asked
        ).most_common(5)
        assert space.inference(NAME)["spec"]["engine"]["args"] == ["--seed=2"]
        (engine,) = pod_args(space)
        assert "--seed=2" in engine, "the last edit is what runs"
        assert space.shape(NAME) == reference, "the same children, none twice, and the deleted one is back"
        per_revision = Counter(one.revision for one in history.made(begun))
        assert all(count <= REPLICAS for count in per_revision.values()), per_revision
        assert history.least_serving(begun) >= REPLICAS - 1


def pod_args(space: Namespace) -> set[tuple[str, ...]]:
    """The arguments of the engines that run."""
    pods = space.api.request("GET", f"/api/v1/namespaces/{space.name}/pods")["items"]
    assert len(pods) == REPLICAS
    return {tuple(one["spec"]["containers"][0]["args"]) for one in pods}


def test_a_watch_that_died_without_a_word_is_noticed(behind: Behind) -> None:
    """The watch of one kind is dead while the others live, so that no age of the last event shows it."""
    space = behind.space
    space.create(NAME, **spec())
    behind.until_converged("it serves")
    space.settled()
    behind.proxy.rule = watches(Hang(), "hisparseinferences")
    space.edit(NAME, {"replicas": 1})  # the event that the proxy swallows, after which the connection is dead
    time.sleep(1)
    behind.proxy.rule = nothing
    space.edit(NAME, {"replicas": 2, "engine": {"args": ["--seed=5"]}})
    behind.until_converged("a dead watch is replaced, or the whole list shows the edit", 110)


def test_a_dead_watch_of_a_child_is_noticed(behind: Behind) -> None:
    """Nobody tells of it: no event of another kind, and no whole list of this one comes now and then."""
    space = behind.space
    space.create(NAME, **spec())
    behind.until_converged("it serves")
    space.settled()
    behind.proxy.rule = watches(Hang(), "services")
    # the proxy swallows this event, after which the connection is dead
    space.kubectl("-n", space.name, "annotate", "service", NAME, "a=b")
    space.kubectl("-n", space.name, "delete", "service", NAME)
    time.sleep(1)
    behind.proxy.rule = nothing
    path = f"/api/v1/namespaces/{space.name}/services/{NAME}"
    space.until(lambda: space.api.get(path), "the Service is put back", SILENT_S + 30)


def test_without_an_api_server_it_ends_instead_of_living_on(behind: Behind) -> None:
    """Its lease runs out, so that another replica may lead; the pod's restart is the way back."""
    space = behind.space
    space.create(NAME, **spec())
    behind.until_converged("it serves")
    behind.proxy.rule = lambda _: Cut()
    behind.proxy.cut_watches()
    space.until(lambda: behind.operator.process.poll() is not None, "it ends", 30)
    assert behind.operator.process.returncode == 1
    behind.proxy.rule = nothing
    space.edit(NAME, {"engine": {"args": ["--seed=9"]}})
    behind.until_converged("the next start converges")


def test_liveness_finds_a_loop_that_is_stuck(space: Namespace) -> None:
    """What a bug that blocks the event loop looks like to the kubelet: no answer in time, or 503."""
    program = (
        "-c",
        "import time; from hisparse_operator import __main__ as m; from hisparse_operator.decide import reconcile as r;"
        "m.reconcile = lambda *_, **__: time.sleep(3600);"
        "m.main()",
    )
    operator = space.operators.leading(program=program)
    assert operator.page("/healthz") == "ok\n"
    space.create(NAME, **spec())
    space.until(lambda: operator.page("/healthz") != "ok\n", "liveness fails", 30)
    assert operator.process.poll() is None, "it is the kubelet who ends it"
    operator.process.send_signal(signal.SIGKILL)


def test_a_kind_that_cannot_be_watched_any_more_is_unwell(behind: Behind) -> None:
    """What is known of it grows old, and must not be acted upon for long: the kubelet starts it again."""
    operator, space = behind.operator, behind.space
    space.create(NAME, **spec())
    behind.until_converged("it serves")
    behind.proxy.rule = lambda one: Answer(503) if one.plural == "pods" and one.method == "GET" else None
    behind.proxy.cut_watches()
    limit = health.Limits().watch_age
    space.until(lambda: operator.page("/healthz") != "ok\n", "liveness fails", limit + 30)
    assert (operator.metric("hisparse_operator_watch_age_seconds") or 0) > limit
    assert operator.process.poll() is None
    behind.proxy.rule = nothing
    space.until(lambda: operator.page("/healthz") == "ok\n", "the pods are watched again", 30)
