from datetime import datetime
from typing import Any

import pytest

from hisparse.errors import Transient
from hisparse.redaction import HIDDEN
from hisparse_operator.cluster.cache import Cache, Key
from hisparse_operator.cluster.hub import NoHub
from hisparse_operator.cluster.kube import Api
from hisparse_operator.cluster.observe import Decisions, Observer, ended_run
from hisparse_operator.kinds import INFERENCE, NODE, POD
from hisparse_operator.world import Outcome, World

KEY = Key("team", "glm")


class Logs(Api):
    """An API server of which only logs are asked."""

    def __init__(self, answer: str | Exception) -> None:
        self.answer = answer
        self.asked: list[Any] = []

    async def log(self, kind: Any, namespace: str, name: str, query: Any) -> str:
        del kind
        self.asked.append((namespace, name, query))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def item(name: str, version: int, **rest: Any) -> dict[str, Any]:
    labels = {"inference.hisparse.dev/inference": "glm"}
    meta = {"namespace": "team", "name": name, "uid": name, "resourceVersion": str(version), "labels": labels}
    return {"metadata": meta, **rest}


def pod(state: str) -> dict[str, Any]:
    statuses = [{"name": "sidecar", "state": {"running": {}}}, {"name": "engine", "state": {state: {"exitCode": 1}}}]
    return item("glm-abc", 2, status={"containerStatuses": statuses})


def nothing(world: World, now: datetime) -> Outcome:
    del world, now
    return Outcome()


def observer(api: Api, cache: Cache, *, logs: tuple[str, ...] = (), nodes: bool = True) -> Observer:
    wants = Decisions(nothing, wants_hub=lambda _: ("org/m", "main") if logs else None, wants_logs=lambda _: logs)
    return Observer(api, cache, NoHub(), wants, nodes=nodes)


def filled(state: str = "waiting") -> Cache:
    cache = Cache()
    cache.put(INFERENCE, item("glm", 1))
    cache.put(POD, pod(state))
    cache.put(NODE, {"metadata": {"name": "gpu-0", "uid": "n", "resourceVersion": "3"}})
    return cache


async def test_a_world_from_the_cache_asks_nothing() -> None:
    api = Logs("")
    world = await observer(api, filled()).world(KEY)
    assert world is not None
    assert [one["metadata"]["name"] for one in world.pods] == ["glm-abc"]
    assert world.nodes is not None
    assert [one["metadata"]["name"] for one in world.nodes] == ["gpu-0"]
    assert (world.hub, world.previous_logs, api.asked) == (None, {}, [])
    assert await observer(api, filled()).world(Key("team", "other")) is None


async def test_where_it_may_not_look_there_are_no_nodes() -> None:
    world = await observer(Logs(""), filled(), nodes=False).world(KEY)
    assert world is not None
    assert world.nodes is None


@pytest.mark.parametrize(
    ("state", "previous"),
    [
        pytest.param("waiting", "true", id="waiting to be restarted"),
        pytest.param("running", "true", id="running again"),
        pytest.param("terminated", "false", id="not restarted yet"),
    ],
)
async def test_the_log_of_the_run_that_ended(state: str, previous: str) -> None:
    api = Logs("one\r\n 50%\r100%\r\ncause\n")
    world = await observer(api, filled(state), logs=("glm-abc", "unknown")).world(KEY)
    assert world is not None
    assert world.previous_logs == {"glm-abc": "one\n 50%\n100%\ncause\n"}
    assert world.hub is not None
    ((namespace, name, query),) = api.asked
    assert (namespace, name, query["container"], query["tailLines"]) == ("team", "glm-abc", "engine", 400)
    assert query["previous"] == previous


async def test_a_log_is_without_the_secrets_of_the_spec_before_anybody_cuts_it() -> None:
    api = Logs("INFO args: {'api_key': ['sk-0123456789']}\n\x1b[31mvery private words\x1b[0m hf_abcdefgh\n")
    cache = filled()
    key = {"name": "MY_API_KEY", "value": "very private words"}
    cache.put(INFERENCE, item("glm", 9, spec={"engine": {"env": [key]}}))
    world = await observer(api, cache, logs=("glm-abc",)).world(KEY)
    assert world is not None
    assert world.previous_logs == {"glm-abc": f"INFO args: {{'api_key': ['{HIDDEN}']}}\n{HIDDEN} {HIDDEN}\n"}


async def test_a_log_that_cannot_be_had_is_empty() -> None:
    world = await observer(Logs(Transient("the node is down")), filled(), logs=("glm-abc",)).world(KEY)
    assert world is not None
    assert world.previous_logs == {"glm-abc": ""}


def test_pieces() -> None:
    assert not ended_run(item("fresh", 1))
