"""Reading model files, from a real HTTP server on this machine."""

import json
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web

from hisparse_operator.cluster.hub import HuggingFace, NoHub

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Site:
    url: str = ""
    now: float = 0.0
    asked: Counter[str] = field(default_factory=Counter)
    status: int = 200
    body: str = json.dumps({"model_type": "llama"})

    async def answer(self, request: web.Request) -> web.Response:
        self.asked[request.path] += 1
        assert "Authorization" not in request.headers
        if request.path.endswith("index.json"):
            index = {"metadata": {"total_size": 7}, "weight_map": {"a": "b"}}
            return web.json_response(index) if "sharded" in request.path else web.Response(status=404)
        return web.Response(status=self.status, text=self.body)


@pytest_asyncio.fixture
async def site() -> AsyncIterator[Site]:
    found = Site()
    pages = web.Application()
    pages.router.add_get("/{path:.*}", found.answer)
    runner = web.AppRunner(pages)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    found.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield found
    await runner.cleanup()


@pytest_asyncio.fixture
async def hub(site: Site) -> AsyncIterator[HuggingFace]:
    async with aiohttp.ClientSession() as session:
        yield HuggingFace(session, site.url, clock=lambda: site.now)


async def test_config_and_the_sum_of_the_index(site: Site, hub: HuggingFace) -> None:
    files = await hub.files("org/sharded", COMMIT)
    assert (files.config, files.problem) == ({"model_type": "llama"}, None)
    assert files.safetensors_index == {"metadata": {"total_size": 7}}
    assert set(site.asked) == {
        f"/org/sharded/resolve/{COMMIT}/config.json",
        f"/org/sharded/resolve/{COMMIT}/model.safetensors.index.json",
    }


async def test_a_model_in_one_file_has_no_index(hub: HuggingFace) -> None:
    files = await hub.files("org/small", COMMIT)
    assert (files.safetensors_index, files.problem) == (None, None)


@pytest.mark.parametrize(
    ("revision", "after_s", "times"),
    [
        pytest.param(COMMIT, 10**9, 1, id="a commit is asked for once"),
        pytest.param("main", 3599, 1, id="a branch once"),
        pytest.param("main", 3601, 2, id="an hour"),
    ],
)
async def test_remembered(site: Site, hub: HuggingFace, revision: str, after_s: float, times: int) -> None:
    await hub.files("org/small", revision)
    site.now = after_s
    await hub.files("org/small", revision)
    assert site.asked[f"/org/small/resolve/{revision}/config.json"] == times


@pytest.mark.parametrize(
    ("status", "body", "problem"),
    [
        pytest.param(401, "", "private, gated or unknown", id="gated"),
        pytest.param(403, "", "private, gated or unknown", id="forbidden"),
        pytest.param(404, "", "has no config.json", id="no config"),
        pytest.param(503, "", "the hub answered 503", id="down"),
        pytest.param(200, "<html>", "is not JSON", id="a page of a proxy"),
        pytest.param(200, "[]", "is not a JSON object", id="a list"),
        pytest.param(200, " " * (2 * 1024**2 + 1), "is larger than", id="too much"),
    ],
)
async def test_problems_name_the_way_out_and_are_asked_again_slowly(
    site: Site, hub: HuggingFace, status: int, body: str, problem: str
) -> None:
    site.status, site.body = status, body
    for after_s, times in ((0, 1), (299, 1), (301, 2)):
        site.now = after_s
        files = await hub.files("org/small", "main")
        assert (files.config, files.safetensors_index) == (None, None)
        assert problem in (files.problem or "")
        assert "spec.model.config" in (files.problem or "")
        assert site.asked["/org/small/resolve/main/config.json"] == times


async def test_a_hub_that_cannot_be_reached_is_a_problem_and_no_error() -> None:
    async with aiohttp.ClientSession() as session:
        files = await HuggingFace(session, "http://127.0.0.1:1").files("org/small", "main")
    assert "cannot be reached" in (files.problem or "")


async def test_switched_off() -> None:
    assert "--no-hub" in ((await NoHub().files("org/small", "main")).problem or "")
