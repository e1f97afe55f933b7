"""What the agent knows of the cluster, and when."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from hisparse.errors import Transient
from hisparse_agent.cluster import Cluster
from hisparse_agent.kube import Refused
from hisparse_agent.readings import Absence, Missing

NOW = datetime(2026, 11, 30, tzinfo=UTC)


class Server:
    """Answers lists, after a while; a list that is in refused is not for us."""

    def __init__(self, *, after_s: float = 0.0, away: bool = False, refused: str = "nothing") -> None:
        self._after_s, self._away, self._refused = after_s, away, refused

    async def send(self, _method: str, path: str, **_: Any) -> Mapping[str, Any]:
        await asyncio.sleep(self._after_s)
        if self._away:
            raise Transient("nobody there", retry_seconds=0)
        if path.endswith(self._refused):
            raise Refused(403, "Forbidden", "not for you")
        return {"metadata": {"resourceVersion": "1"}, "items": []}

    async def watch(self, *_: Any) -> AsyncIterator[Mapping[str, Any]]:
        await asyncio.sleep(3600)
        yield {}


async def test_the_first_look_is_at_what_the_cluster_has_said() -> None:
    cluster = Cluster(Server(after_s=0.1), "n")  # type: ignore[arg-type]
    async with cluster.following():
        assert isinstance(cluster.view().pods, Missing)
        assert await cluster.answered(30) is True
        assert cluster.view().pods == ()
        assert cluster.view().policies == ()


async def test_a_server_that_is_away_is_not_waited_for() -> None:
    cluster = Cluster(Server(away=True), "n")  # type: ignore[arg-type]
    async with cluster.following():
        assert await cluster.answered(0.1) is False
        assert cluster.view().policies is None


@pytest.mark.parametrize("refused", ["/pods", "/nodes", "/hisparsenodepolicies"])
async def test_a_refusal_is_an_answer(refused: str) -> None:
    cluster = Cluster(Server(refused=refused), "n")  # type: ignore[arg-type]
    async with cluster.following():
        assert await cluster.answered(30) is True
        pods = cluster.view().pods
        if refused == "/pods":
            assert isinstance(pods, Missing)
            assert (pods.absence, pods.why) == (Absence.UNKNOWN, "403 Forbidden: not for you")
        else:
            assert pods == ()
