"""A whole pass with secrets in everything that others say: none of them is written to the API server or the log."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import re
from collections.abc import Callable, Coroutine, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
import structlog
from simulator import SETTINGS, SmallCluster, dense, node

from hisparse.errors import Transient
from hisparse.redaction import HIDDEN
from hisparse_operator import logs
from hisparse_operator.cluster.apply import Applier
from hisparse_operator.cluster.cache import Cache, Key
from hisparse_operator.cluster.hub import NoHub
from hisparse_operator.cluster.kube import Api, ApiError
from hisparse_operator.cluster.observe import Decisions, Observer
from hisparse_operator.cluster.recorder import Recorder
from hisparse_operator.decide import shown
from hisparse_operator.decide.reconcile import reconcile, wants_hub, wants_logs
from hisparse_operator.kinds import CHILDREN, INFERENCE, NODE, POD, Kind
from hisparse_operator.metrics import Metrics
from hisparse_operator.worker import Worker
from hisparse_operator.workqueue import WorkQueue
from hisparse_operator.world import World

Run = Callable[[Coroutine[Any, Any, Any]], Any]
KEY = Key("serving", "llama")
KNOWN = 'correct horse\\battery "staple"'
"""Known from the spec alone: it has no form, and every quoting changes it."""
SHORT = "swordfish"
FORM = "hf_AbCdEfGhIjKlMnOpQrSt"
"""Known by its form alone: it comes from a Secret."""
SECRETS = (KNOWN, json.dumps(KNOWN)[1:-1], SHORT, FORM)
FRAGMENTS = ("horse", "battery", "staple", SHORT, "KlMnOp")
SAID = f"it was {json.dumps(KNOWN)}, {SHORT} and {FORM}\nERROR fake line \x1b[31mof a log"
SPEC = dense(
    engine={
        "env": [{"name": "MY_API_KEY", "value": KNOWN}, {"name": "TOKENIZERS_PARALLELISM", "value": "false"}],
        "args": ["--dashboard-key", SHORT],
    }
)


class Recording(Api):
    """Takes everything, and answers as an API server does that knows all there is."""

    def __init__(self, log: str, refusal: Exception | None) -> None:
        self.text = log
        self.refusal = refusal
        self.statuses: list[Mapping[str, Any]] = []
        self.events: list[Mapping[str, Any]] = []
        self.version = 100

    async def get(self, kind: Kind, namespace: str | None, name: str) -> dict[str, Any] | None:
        del kind, namespace, name
        return None

    async def log(self, kind: Kind, namespace: str, name: str, query: Mapping[str, Any]) -> str:
        del kind, namespace, name, query
        return self.text

    async def apply(
        self, kind: Kind, document: Mapping[str, Any], manager: str, *, force: bool, subresource: str | None = None
    ) -> dict[str, Any]:
        del manager, force
        self.version += 1
        meta = {"uid": f"uid-{self.version}", **document["metadata"], "resourceVersion": str(self.version)}
        if subresource == "status":
            self.statuses.append(document["status"])
            return {**document, "spec": SPEC, "metadata": {**meta, "generation": 1}}
        if kind.kind == "ReplicaSet" and self.refusal is not None:
            raise self.refusal
        return {**document, "metadata": meta}

    async def create(self, kind: Kind, document: Mapping[str, Any]) -> dict[str, Any]:
        assert kind.kind == "Event"
        self.events.append(document)
        return dict(document)


def settled() -> SmallCluster:
    """An inference whose pod ran for a while."""
    cluster = SmallCluster(SPEC, [node("n0")])
    cluster.settle()
    return cluster


def cache_of(world: World, status: Mapping[str, Any]) -> Cache:
    """What the watches know; the pod is now as `status` says."""
    cache, numbers = Cache(), itertools.count(1)

    def put(kind: Kind, one: Mapping[str, Any], **rest: Any) -> None:
        meta = {"uid": f"uid-{next(numbers)}", **one["metadata"], "resourceVersion": str(next(numbers))}
        cache.put(kind, {"apiVersion": kind.api_version, "kind": kind.kind, **one, **rest, "metadata": meta})

    put(INFERENCE, world.inference)
    for one in world.nodes or ():
        put(NODE, one)
    for kind in CHILDREN:
        for one in getattr(world, kind.world or ""):
            put(kind, one, **(now_is(one, status) if kind is POD and status else {}))
    return cache


def now_is(pod: Mapping[str, Any], status: Mapping[str, Any]) -> dict[str, Any]:
    node_name = {} if status == UNSCHEDULED else {"nodeName": "n0"}
    return {
        "spec": {**{key: one for key, one in pod["spec"].items() if key != "nodeName"}, **node_name},
        "status": status,
    }


def waiting(reason: str) -> dict[str, Any]:
    return {"containerStatuses": [{"name": "engine", "state": {"waiting": {"reason": reason, "message": SAID}}}]}


CRASHED = {
    "containerStatuses": [
        {
            "name": "engine",
            "restartCount": 3,
            "state": {"waiting": {"reason": "CrashLoopBackOff", "message": SAID}},
            "lastState": {
                "terminated": {"exitCode": 1, "reason": "Error", "message": SAID, "finishedAt": "2026-11-29T12:00:00Z"}
            },
        }
    ]
}
UNSCHEDULED = {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": SAID}]}
EVICTED = {"phase": "Failed", "reason": "Evicted", "message": SAID, "startTime": "2026-11-29T12:00:00Z"}
# the cut is in the middle of a secret
LONG = "x" * 500 + f" {FORM} {KNOWN}\n" + "y" * (1024 - 1 - len(KNOWN) - len(FORM) // 2)


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level
    structlog.reset_defaults()


@pytest.mark.parametrize("form", ["json", "console"])
@pytest.mark.parametrize(
    ("status", "log", "refusal"),
    [
        pytest.param(waiting("ErrImagePull"), "", None, id="a registry"),
        pytest.param(waiting("CreateContainerConfigError"), "", None, id="the kubelet"),
        pytest.param(UNSCHEDULED, "", None, id="the scheduler"),
        pytest.param(EVICTED, "", None, id="an eviction"),
        pytest.param(CRASHED, SAID, None, id="the log of a crash"),
        pytest.param(CRASHED, f"GatedRepoError: 401 Client Error {SAID}", None, id="a known crash"),
        pytest.param(CRASHED, LONG, None, id="a log that is cut"),
        pytest.param(
            {}, "", ApiError(422, "Invalid", f"spec.template.spec.containers[0].env[3]: {SAID}"), id="a refusal"
        ),
        pytest.param({}, "", ApiError(403, "Forbidden", "x " * 200 + SAID * 30), id="a long refusal"),
        pytest.param({}, "", Transient(SAID), id="a webhook that is down"),
        pytest.param({}, "", RuntimeError(SAID), id="a bug"),
    ],
)
def test_no_secret_is_told(
    on_jumping_time: Run,
    capsys: pytest.CaptureFixture[str],
    form: Any,
    status: Mapping[str, Any],
    log: str,
    refusal: Exception | None,
) -> None:
    logs.configure(form, "debug")
    api, queue = Recording(log, refusal), WorkQueue[Key](chance=lambda: 0.0)
    cache = cache_of(settled().world(), status)
    decisions = Decisions(partial(reconcile, settings=SETTINGS), wants_hub=wants_hub, wants_logs=wants_logs)

    def now() -> datetime:
        return datetime(2026, 11, 29, 12, 5, tzinfo=UTC)

    recorder = Recorder(api, now)
    worker = Worker(
        queue,
        Observer(api, cache, NoHub(), decisions, nodes=True),
        decisions,
        Applier(api, cache, recorder),
        recorder,
        Metrics(),
        resync_s=600,
        now=now,
    )

    async def story() -> None:
        queue.add(KEY)
        task = asyncio.create_task(worker.run())
        await asyncio.sleep(60)
        queue.close()
        await task

    on_jumping_time(story())
    told = json.dumps([api.statuses, api.events], ensure_ascii=False)
    printed = capsys.readouterr().err
    assert api.statuses
    assert api.events or isinstance(refusal, Transient)
    conditions = {one["type"]: one for one in api.statuses[0]["conditions"]}
    assert conditions["Accepted"]["status"] == "True", conditions["Accepted"]["message"]
    if form == "json":
        assert all(json.loads(line) for line in printed.splitlines())
    for text in (*strings([api.statuses, api.events]), told, printed):
        for secret in SECRETS:
            assert secret not in text
            assert not [one for one in FRAGMENTS if one in text], "half a secret is too much"
            for quoted in (repr(secret)[1:-1], json.dumps(secret)[1:-1]):
                assert quoted not in text
    assert HIDDEN in told
    # no line of a message or of the log looks as if somebody else had written it
    for document in api.events:
        assert document["message"].isprintable()
    assert all(one["message"].isprintable() for each in api.statuses for one in each["conditions"])
    assert "\x1b[31mof" not in printed
    if not isinstance(refusal, RuntimeError):
        assert not re.search(r"^ERROR fake line", printed, re.MULTILINE)


def test_a_message_with_a_secret_is_news_once() -> None:
    """What the status shows is compared with what would be shown, not with what was said."""
    cluster = SmallCluster(dense(engine={"args": [f"--dashboard-key {SHORT}"]}), [node("n0")])
    cluster.operate()
    assert HIDDEN in str(cluster.status)
    assert SHORT not in str(cluster.status)
    cluster.inference["status"] = shown.status(cluster.status, shown.redaction_of(cluster.inference))
    cluster.events.clear()
    cluster.operate()
    assert not cluster.events


def strings(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case Mapping():
            for part in value.values():
                yield from strings(part)
        case list() | tuple():
            for part in value:
                yield from strings(part)
