"""What pods of the own node declare, read from their specs. Pure.

An engine's words say all that is needed, so the agent has no right to read ConfigMaps: the pool, how many copies of
it, and whether a connector asks for RDMA.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

from hisparse.errors import UnitError
from hisparse.reserved import COMPONENT_LABEL, ENGINE_COMPONENT, ENGINE_CONTAINER, INFERENCE_LABEL
from hisparse.units import GIB, parse_quantity
from hisparse_agent.readings import Absence, EnginePod, Missing, Number

_RDMA_CONNECTORS: Final = ("Nixl", "Mooncake")
"""Begin the names of vLLM's connectors that register memory with a NIC."""
_FIGURE: Final = re.compile(r"[0-9]{1,18}(?:\.[0-9]{1,18})?", re.ASCII)
_SHM: Final = "/dev/shm"
_EXPORTER_LABELS: Final = (
    ("app", "nvidia-dcgm-exporter"),  # the GPU operator's
    ("app.kubernetes.io/name", "dcgm-exporter"),  # the chart's
    ("app", "dcgm-exporter"),
)


@dataclass(frozen=True)
class ExporterPod:
    """A dcgm-exporter of the own node and where it listens."""

    name: str
    address: str


@dataclass(frozen=True)
class Declared:
    """One pod of the node that matters here: an engine, with whether it wants RDMA, or an exporter."""

    engine: EnginePod | None = None
    rdma: bool = False
    exporter: ExporterPod | None = None


def declared(pod: Mapping[str, Any]) -> Declared | None:
    """What a pod object declares; None for one that is neither or is over."""
    meta, status = pod["metadata"], pod.get("status") or {}
    if status.get("phase") in ("Failed", "Succeeded"):
        return None
    labels = meta.get("labels") or {}
    if any(labels.get(name) == value for name, value in _EXPORTER_LABELS):
        address = str(status.get("podIP") or "")
        return Declared(exporter=ExporterPod(f"{meta['namespace']}/{meta['name']}", address)) if address else None
    if INFERENCE_LABEL not in labels or labels.get(COMPONENT_LABEL) != ENGINE_COMPONENT:
        return None
    containers: Sequence[Mapping[str, Any]] = (pod.get("spec") or {}).get("containers") or ()
    container = next((one for one in containers if one.get("name") == ENGINE_CONTAINER), {})
    words = tuple(str(word) for word in (*(container.get("command") or ()), *(container.get("args") or ())))
    connectors = tuple(_connectors(_flag(words, "--kv-transfer-config")))
    return Declared(
        engine=EnginePod(
            namespace=meta["namespace"],
            name=meta["name"],
            uid=meta["uid"],
            inference=labels[INFERENCE_LABEL],
            pool=_pool(words, connectors, _shm_bytes(pod, container)),
            limit=_limit(container),
            running=_is_running(status),
        ),
        rdma=any(str(one.get("kv_connector", "")).startswith(_RDMA_CONNECTORS) for one in connectors),
    )


def _pool(words: Sequence[str], connectors: Sequence[Mapping[str, Any]], shm: int | None) -> Number:
    """Bytes of host memory that the engine will pin: the pool and each copy of it, and what it offloads.

    A pool in /dev/shm is one for all ranks; where /dev/shm is too small for it, every rank has its own.
    """
    try:
        ranks, replicas = (
            int(_figure(_flag(words, "--tensor-parallel-size") or 1)),
            int(_figure(_flag(words, "--data-parallel-size") or 1)),
        )
        settings = [one.get("kv_connector_extra_config") or {} for one in connectors]
        pool = sum(int(_figure(one.get("host_pool_gib", 0)) * GIB) for one in settings) * replicas
        offloaded = sum(int(_figure(one.get("cpu_bytes_to_use", 0))) for one in settings) * replicas
    except (ValueError, AttributeError):
        return Missing(Absence.UNKNOWN, "the engine's --kv-transfer-config or parallel sizes cannot be read")
    copies = 1 if shm is None or shm >= pool + offloaded else ranks
    return pool * copies + offloaded


def _figure(value: object) -> Fraction:
    """A figure of somebody's own command line: "1e999999999" would take hours. Raises ValueError."""
    if _FIGURE.fullmatch(str(value)) is None:
        raise ValueError(value)
    return Fraction(str(value))


def _connectors(text: str) -> Iterator[Mapping[str, Any]]:
    """The connectors of a --kv-transfer-config, those inside a MultiConnector too."""
    try:
        found = json.loads(text) if text else None
    except (ValueError, RecursionError):
        return
    waiting = [found]
    while waiting:
        one = waiting.pop()
        if isinstance(one, Mapping):
            yield one
            settings = one.get("kv_connector_extra_config")
            inner = settings.get("connectors") if isinstance(settings, Mapping) else None
            waiting += inner if isinstance(inner, list) else []


def _flag(words: Sequence[str], name: str) -> str:
    """The value of a flag, in either spelling; the last one counts. Empty where it is absent."""
    value = ""
    for place, word in enumerate(words):
        if word == name and place + 1 < len(words):
            value = words[place + 1]
        elif word.startswith(f"{name}="):
            value = word.partition("=")[2]
    return value


def _limit(container: Mapping[str, Any]) -> Number:
    text = ((container.get("resources") or {}).get("limits") or {}).get("memory")
    if text is None:
        return Missing(Absence.UNSUPPORTED, "the container has no memory limit")
    return _bytes(text)


def _shm_bytes(pod: Mapping[str, Any], container: Mapping[str, Any]) -> int | None:
    """Size of /dev/shm, None where the pod does not say it."""
    mounted = {one.get("name") for one in container.get("volumeMounts") or () if one.get("mountPath") == _SHM}
    for volume in (pod.get("spec") or {}).get("volumes") or ():
        size = (volume.get("emptyDir") or {}).get("sizeLimit")
        if volume.get("name") in mounted and size is not None:
            found = _bytes(size)
            return found if isinstance(found, int) else None
    return None


def _bytes(text: object) -> Number:
    try:
        return parse_quantity(str(text))
    except UnitError as error:
        return Missing(Absence.UNKNOWN, str(error))


def _is_running(status: Mapping[str, Any]) -> bool:
    """Whether the engine's container runs."""
    return any(
        one.get("name") == ENGINE_CONTAINER and (one.get("state") or {}).get("running") is not None
        for one in status.get("containerStatuses") or ()
    )
