import asyncio
import time
from dataclasses import replace

import aiohttp
import pytest

from hisparse_operator.cluster.cache import Cache
from hisparse_operator.health import Limits, LoopLag, Vitals, application, serving, unwell
from hisparse_operator.kinds import INFERENCE
from hisparse_operator.metrics import Metrics

WELL = Vitals(loop_lag=0.01, watch_age=3, lease_age=3, leads=True, synced=True)


@pytest.mark.parametrize(
    ("vitals", "wrong"),
    [
        pytest.param(WELL, (), id="well"),
        pytest.param(replace(WELL, watch_age=None, leads=False), (), id="a replica that waits watches nothing"),
        pytest.param(
            replace(WELL, watch_age=121), ("watch without a word: 121.0 s, at most 120 s",), id="no event comes"
        ),
        pytest.param(replace(WELL, loop_lag=11), ("event loop lag: 11.0 s, at most 10 s",), id="the loop is blocked"),
        pytest.param(
            replace(WELL, lease_age=200), ("last answer about the lease: 200.0 s, at most 120 s",), id="no answer"
        ),
    ],
)
def test_unwell(vitals: Vitals, wrong: tuple[str, ...]) -> None:
    assert unwell(vitals, Limits()) == wrong


async def test_the_pages() -> None:
    metrics, cache, now = Metrics(), Cache(), WELL
    metrics.objects(cache)
    metrics.gauge("hisparse_operator_watch_age_seconds", "Age.", lambda: now.watch_age)
    metrics.reconciled("ok", 0.01)
    conditions = [{"type": "Ready", "status": "True"}]
    meta = {"namespace": "n", "name": "a", "uid": "u", "resourceVersion": "1"}
    cache.put(INFERENCE, {"metadata": meta, "status": {"conditions": conditions}})
    pages = application(metrics, lambda: now, Limits())
    async with serving(pages, "127.0.0.1", 0) as port, aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:

        async def page(path: str) -> tuple[int, str]:
            async with session.get(path) as answer:
                return answer.status, await answer.text()

        assert await page("/healthz") == (200, "ok\n")
        assert await page("/readyz") == (200, "leading\n")
        status, text = await page("/metrics")
        assert status == 200
        for line in (
            'hisparse_operator_objects_by_condition{condition="Ready",status="True"} 1.0',
            'hisparse_operator_reconciles_total{result="ok"} 1.0',
            "hisparse_operator_objects 1.0",
            "hisparse_operator_watch_age_seconds 3.0",
            'hisparse_build_info{component="operator"',
        ):
            assert line in text
        now = replace(WELL, synced=False, watch_age=None)
        assert (await page("/readyz"))[0] == 503
        assert "\nhisparse_operator_watch_age_seconds " not in (await page("/metrics"))[1], "absent rather than wrong"
        now = replace(WELL, loop_lag=99)
        assert (await page("/healthz"))[0] == 503
        now = replace(WELL, leads=False, synced=False)
        assert await page("/readyz") == (200, "standing by\n")


async def test_a_blocked_loop_shows() -> None:
    lag = LoopLag()
    watching = asyncio.create_task(lag.watch())
    await asyncio.sleep(0.01)
    time.sleep(1.0)  # noqa: ASYNC251 - the very thing that must not happen
    assert lag.seconds > 0.3
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
