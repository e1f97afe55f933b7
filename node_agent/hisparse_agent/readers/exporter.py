"""dcgm-exporter of the own node: one scrape of its pod. Whether it is fresh is judged by the energy counter, not here.

Its Service may answer from any node, so the pod is asked by its address (facts of the GPU operator's Service: no
internalTrafficPolicy). DCGM 4.6 renamed its fields; both spellings are read.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from hisparse.units import MIB
from hisparse_agent.readings import Absence, Exporter, ExporterGpu, Missing

PORT: Final = 9400
LIMIT_BYTES: Final = 10 * MIB
LIMIT_S: Final = 5.0
_OK: Final = 200
_BLANK: Final = 0x7FFFFFFFFFFFFFF0
"""Values from here on are DCGM's words for blank, not found, not supported and no permission (dcgm_structs.h)."""

_ENERGY: Final = ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "DCGM_FI_DEV_TOTAL_ENERGY_MILLIJOULES")
_TEMPERATURE: Final = ("DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_GPU_TEMP_CELSIUS")
_POWER: Final = ("DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_BOARD_POWER_WATTS")
_XID: Final = ("DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_XID_ERROR")
_WANTED: Final = frozenset((*_ENERGY, *_TEMPERATURE, *_POWER, *_XID))
_HOST_LABELS: Final = ("Hostname", "hostname")


@dataclass
class _Gpu:
    """The samples of one GPU, by metric."""

    values: dict[str, float] = field(default_factory=dict)

    def get(self, names: Iterable[str]) -> float | None:
        return next((self.values[name] for name in names if name in self.values), None)


class WrongNodeError(Exception):
    """The page speaks of another node."""


async def read_exporter(
    session: aiohttp.ClientSession, address: str, *, pod: str, node: str, port: int = PORT, limit_s: float = LIMIT_S
) -> Exporter | Missing:
    """One scrape. Missing, with the reason, for whatever cannot be used."""
    begun = time.monotonic()
    host = f"[{address}]" if ":" in address else address
    try:
        async with (
            asyncio.timeout(limit_s),
            session.get(f"http://{host}:{port}/metrics", allow_redirects=False) as answer,
        ):
            if answer.status != _OK:
                return _unknown(pod, f"it answered {answer.status}")
            page = await _page(answer.content)
    except TimeoutError:
        return _unknown(pod, f"it gave no page within {limit_s:g} s")
    except (aiohttp.ClientError, OSError) as error:
        return _unknown(pod, str(error) or type(error).__name__)
    if page is None:
        return _unknown(pod, f"its page is longer than {LIMIT_BYTES // MIB} MiB")
    try:
        gpus = parse(page, node)
    except WrongNodeError as error:
        return _unknown(pod, str(error))
    except (ValueError, KeyError, IndexError) as error:
        return _unknown(pod, f"its page cannot be read: {error}")
    if not gpus:
        return _unknown(pod, "its page has no series of a GPU")
    return Exporter(pod, time.monotonic() - begun, gpus)


async def _page(stream: aiohttp.StreamReader) -> str | None:
    """The page, None where it is too long. Lines that nobody wants are dropped as they come."""
    kept: list[bytes] = []
    size, rest = 0, b""
    async for part in stream.iter_any():
        size += len(part)
        if size > LIMIT_BYTES:
            return None
        *lines, rest = (rest + part).split(b"\n")
        kept += [line for line in lines if _is_wanted(line)]
    if _is_wanted(rest):
        kept.append(rest)
    return b"\n".join([*kept, b""]).decode(errors="replace")


def _is_wanted(line: bytes) -> bool:
    name = line.partition(b"{")[0].partition(b" ")[0]
    return name.decode(errors="replace") in _WANTED


def parse(page: str, node: str) -> tuple[ExporterGpu, ...]:
    """The GPUs of a page, in the order of their UUIDs. Raises WrongNodeError, and ValueError for no such page."""
    found: dict[str, _Gpu] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name not in _WANTED:
                continue
            _check_node(sample.labels, node)
            # an instance of MIG has the counters of its card
            uuid = sample.labels.get("UUID") or sample.labels.get("uuid") or ""
            if uuid and _is_value(sample.value):
                found.setdefault(uuid, _Gpu()).values[sample.name] = sample.value
    return tuple(_gpu(uuid, found[uuid]) for uuid in sorted(found))


def _check_node(labels: Mapping[str, str], node: str) -> None:
    told = next((labels[name] for name in _HOST_LABELS if labels.get(name)), "")
    # it may be the short name of the node, or the name of the exporter's pod where it is not told the node's
    if node and told and told.partition(".")[0] != node.partition(".")[0] and "exporter" not in told:
        raise WrongNodeError(f"its page speaks of the node {told}")


def _is_value(value: float) -> bool:
    return math.isfinite(value) and value < _BLANK


def _gpu(uuid: str, one: _Gpu) -> ExporterGpu:
    energy, power, xid = one.get(_ENERGY), one.get(_POWER), one.get(_XID)
    return ExporterGpu(
        uuid=uuid,
        energy_mj=None if energy is None else int(energy),
        temperature=one.get(_TEMPERATURE),
        power_mw=None if power is None else round(power * 1000),
        last_xid=None if xid is None else int(xid),
    )


def _unknown(pod: str, why: str) -> Missing:
    return Missing(Absence.UNKNOWN, f"dcgm-exporter {pod}: {why}")
