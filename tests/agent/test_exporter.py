"""dcgm-exporter as a real server on a real port: good pages, and all the ways in which one can be of no use."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from hisparse_agent.readers import exporter
from hisparse_agent.readers.exporter import LIMIT_BYTES, parse, read_exporter
from hisparse_agent.readings import Absence, Exporter, ExporterGpu, Missing

OLD = """\
# HELP DCGM_FI_DEV_GPU_TEMP GPU temperature (in C).
# TYPE DCGM_FI_DEV_GPU_TEMP gauge
DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-a",device="nvidia0",modelName="NVIDIA H200",Hostname="gpu-a",DCGM_FI_DRIVER_VERSION="580.159.04"} 33
DCGM_FI_DEV_GPU_TEMP{gpu="1",UUID="GPU-b",device="nvidia1",modelName="NVIDIA H200",Hostname="gpu-a"} 34
# HELP DCGM_FI_DEV_POWER_USAGE Power draw (in W).
# TYPE DCGM_FI_DEV_POWER_USAGE gauge
DCGM_FI_DEV_POWER_USAGE{gpu="0",UUID="GPU-a",Hostname="gpu-a"} 76.412
# HELP DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION Total energy consumption since boot (in mJ).
# TYPE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION counter
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{gpu="0",UUID="GPU-a",Hostname="gpu-a"} 1204417771
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{gpu="1",UUID="GPU-b",Hostname="gpu-a"} 9223372036854775794
# HELP DCGM_FI_DEV_XID_ERRORS Value of the last XID error encountered.
# TYPE DCGM_FI_DEV_XID_ERRORS gauge
DCGM_FI_DEV_XID_ERRORS{gpu="0",UUID="GPU-a",Hostname="gpu-a",err_code="0",err_msg="No Error"} 0
# HELP DCGM_FI_DEV_FB_USED Framebuffer memory used (in MiB).
# TYPE DCGM_FI_DEV_FB_USED gauge
DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-a",Hostname="gpu-a"} 131072
"""
NEW = """\
# HELP DCGM_FI_DEV_GPU_TEMP_CELSIUS GPU temperature
# TYPE DCGM_FI_DEV_GPU_TEMP_CELSIUS gauge
DCGM_FI_DEV_GPU_TEMP_CELSIUS{gpu="0",UUID="GPU-a",hostname="gpu-a"} 33
# TYPE DCGM_FI_DEV_BOARD_POWER_WATTS gauge
DCGM_FI_DEV_BOARD_POWER_WATTS{gpu="0",UUID="GPU-a",hostname="gpu-a"} 76.412
# TYPE DCGM_FI_DEV_XID_ERROR gauge
DCGM_FI_DEV_XID_ERROR{gpu="0",UUID="GPU-a",hostname="gpu-a"} 79
"""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[int]:
    pages = web.Application()
    pages.add_routes([web.get("/metrics", handler)])
    runner = web.AppRunner(pages, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


async def scraped(handler: Handler, node: str = "gpu-a", limit_s: float = 5.0) -> Exporter | Missing:
    async with serving(handler) as port, aiohttp.ClientSession() as session:
        return await read_exporter(session, "127.0.0.1", pod="ns/dcgm", node=node, port=port, limit_s=limit_s)


def page(text: str, status: int = 200) -> Handler:
    async def handler(_: web.Request) -> web.Response:
        return web.Response(text=text, status=status)

    return handler


async def test_a_page_with_old_names() -> None:
    found = await scraped(page(OLD))
    assert isinstance(found, Exporter)
    assert found.pod == "ns/dcgm"
    assert found.gpus == (
        ExporterGpu("GPU-a", energy_mj=1204417771, temperature=33.0, power_mw=76412, last_xid=0),
        # its energy is one of DCGM's words for "blank"
        ExporterGpu("GPU-b", energy_mj=None, temperature=34.0),
    )


async def test_a_page_with_new_names() -> None:
    found = await scraped(page(NEW))
    assert isinstance(found, Exporter)
    assert found.gpus == (ExporterGpu("GPU-a", temperature=33.0, power_mw=76412, last_xid=79),)


@pytest.mark.parametrize(
    "value",
    ["9223372036854775792", "9223372036854775794", "9223372036854775807", "NaN", "+Inf"],
)
def test_what_is_no_value_is_no_value(value: str) -> None:
    text = f'DCGM_FI_DEV_GPU_TEMP{{UUID="GPU-a"}} {value}\nDCGM_FI_DEV_POWER_USAGE{{UUID="GPU-a"}} 70\n'
    assert parse(text, "") == (ExporterGpu("GPU-a", power_mw=70000),)


@pytest.mark.parametrize(
    ("told", "node", "fits"),
    [
        pytest.param("gpu-a", "gpu-a", True, id="the node"),
        pytest.param("gpu-a.example.org", "gpu-a", True, id="its long name"),
        pytest.param("gpu-a", "gpu-a.example.org", True, id="its short name"),
        pytest.param("nvidia-dcgm-exporter-x7z2k", "gpu-a", True, id="the exporter's pod"),
        pytest.param("gpu-b", "gpu-a", False, id="another"),
    ],
)
async def test_a_page_of_another_node_is_not_believed(told: str, node: str, fits: bool) -> None:
    found = await scraped(page(OLD.replace('Hostname="gpu-a"', f'Hostname="{told}"')), node)
    assert isinstance(found, Exporter) is fits
    if isinstance(found, Missing):
        assert "the node gpu-b" in found.why


@pytest.mark.parametrize(
    ("handler", "why"),
    [
        pytest.param(page("no", 500), "answered 500", id="an error"),
        pytest.param(page("", 302), "answered 302", id="sent elsewhere"),
        pytest.param(page(""), "no series of a GPU", id="nothing"),
        pytest.param(page("<html>not metrics</html>"), "no series of a GPU", id="another page"),
        pytest.param(page("DCGM_FI_DEV_GPU_TEMP{UUID= 3\n"), "cannot be read", id="garbage"),
        pytest.param(page('DCGM_FI_DEV_GPU_TEMP{UUID="a"} warm\n'), "cannot be read", id="a word for a number"),
    ],
)
async def test_what_is_of_no_use_is_unknown_and_says_why(handler: Handler, why: str) -> None:
    found = await scraped(handler)
    assert isinstance(found, Missing)
    assert found.absence is Absence.UNKNOWN
    assert found.why.startswith("dcgm-exporter ns/dcgm: ")
    assert why in found.why


async def test_a_page_without_end_is_cut_at_ten_mebibytes() -> None:
    sent = 0

    async def handler(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        answer = web.StreamResponse()
        await answer.prepare(request)
        line = b'DCGM_FI_DEV_FB_USED{UUID="GPU-a"} 1\n' * 2000
        while True:
            await answer.write(line)
            sent += len(line)

    found = await scraped(handler)
    assert isinstance(found, Missing)
    assert "longer than 10 MiB" in found.why
    assert LIMIT_BYTES < sent < 4 * LIMIT_BYTES


async def test_a_page_of_nearly_ten_mebibytes_is_read() -> None:
    padding = "# " + "x" * 998 + "\n"
    found = await scraped(page(padding * (LIMIT_BYTES // 1001 - 10) + OLD))
    assert isinstance(found, Exporter)
    assert len(found.gpus) == 2


async def test_one_that_is_too_slow_is_given_up() -> None:
    async def never(_: web.Request) -> web.StreamResponse:
        await asyncio.sleep(3600)
        raise AssertionError

    async def drips(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        while True:
            await answer.write(b"#\n")
            await asyncio.sleep(0.02)

    for handler in (never, drips):
        found = await scraped(handler, limit_s=0.3)
        assert isinstance(found, Missing)
        assert "no page within 0.3 s" in found.why


async def test_one_that_does_not_listen() -> None:
    async with serving(page(OLD)) as port:
        pass
    async with aiohttp.ClientSession() as session:
        found = await read_exporter(session, "127.0.0.1", pod="ns/dcgm", node="gpu-a", port=port)
    assert isinstance(found, Missing)


async def test_a_stale_page_is_told_as_it_is() -> None:
    """The same energy twice: that it stands still is for the judge to see."""
    first, second = await scraped(page(OLD)), await scraped(page(OLD))
    assert isinstance(first, Exporter)
    assert isinstance(second, Exporter)
    assert first.gpus == second.gpus


def test_the_names_are_read_in_both_spellings() -> None:
    assert len(exporter._WANTED) == 8
