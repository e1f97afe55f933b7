"""The launch plan: what the operator worked out, mounted into the pod as one JSON file.

Unknown keys are ignored, so that an older launcher can read a newer operator's plan.
"""

import json
from dataclasses import dataclass
from typing import Any

SCHEMA = "hisparse.dev/launch/v1"
HIGHEST_PORT = 65535


class PlanError(Exception):
    """The plan cannot be used; the message names the field, its value and the next step."""


@dataclass(frozen=True)
class EnginePlan:
    """The engine process: where it answers and how long each phase of its life may take."""

    served_name: str
    port: int = 8000
    startup_s: float = 1800.0
    drain_s: float = 300.0
    endpoint_grace_s: float = 10.0
    shutdown_s: float = 120.0


@dataclass(frozen=True)
class MemoryPlan:
    """Host memory that the engine will take; zero bytes means that nothing is to be checked."""

    shm_bytes: int = 0
    host_pool_bytes: int = 0
    shared_pool: bool = True
    tensor_parallel: int = 1


@dataclass(frozen=True)
class Plan:
    """Everything the launcher is told."""

    engine: EnginePlan
    memory: MemoryPlan
    launcher_port: int = 8001
    drain_key: str = ""


def parse(text: str) -> Plan:
    """Read plan.json; raises PlanError with a message for the person who wrote it."""
    try:
        document = json.loads(text)
    except ValueError as error:
        raise PlanError(f"it is not JSON ({error}); mount the operator's ConfigMap or write valid JSON") from error
    if not isinstance(document, dict):
        raise PlanError(f"the top level is {_kind(document)}, not an object")
    if document.get("schema") != SCHEMA:
        raise PlanError(
            f"schema: {document.get('schema')!r} is not {SCHEMA!r}; use an operator and a launcher of the same release"
        )
    engine = _section(document, "engine")
    memory = _section(document, "memory")
    launcher = _section(document, "launcher")
    return Plan(
        engine=EnginePlan(
            served_name=_text(engine, "engine", "servedName", None),
            port=_port(engine, "engine", EnginePlan.port),
            startup_s=_seconds(engine, "startupSeconds", EnginePlan.startup_s),
            drain_s=_seconds(engine, "drainSeconds", EnginePlan.drain_s),
            endpoint_grace_s=_seconds(engine, "endpointGraceSeconds", EnginePlan.endpoint_grace_s),
            shutdown_s=_seconds(engine, "shutdownSeconds", EnginePlan.shutdown_s),
        ),
        memory=MemoryPlan(
            shm_bytes=_whole(memory, "memory", "shmBytes", MemoryPlan.shm_bytes, at_least=0),
            host_pool_bytes=_whole(memory, "memory", "hostPoolBytes", MemoryPlan.host_pool_bytes, at_least=0),
            shared_pool=_flag(memory, "memory", "sharedPool", default=MemoryPlan.shared_pool),
            tensor_parallel=_whole(memory, "memory", "tensorParallel", MemoryPlan.tensor_parallel, at_least=1),
        ),
        launcher_port=_port(launcher, "launcher", Plan.launcher_port),
        drain_key=_key(launcher),
    )


def _section(document: dict[str, Any], name: str) -> dict[str, Any]:
    value = document.get(name, {})
    if not isinstance(value, dict):
        raise PlanError(f"{name}: {_kind(value)} is not an object")
    return value


def _text(section: dict[str, Any], parent: str, key: str, default: str | None) -> str:
    value = section.get(key, default)
    if value is None:
        raise PlanError(f"{parent}.{key} is missing; it names the model as /v1/models lists it")
    if not isinstance(value, str) or not value:
        raise PlanError(f"{parent}.{key}: {value!r} is not a text with at least one character")
    return value


def _key(launcher: dict[str, Any]) -> str:
    value = launcher.get("drainKey", "")
    if not isinstance(value, str):
        raise PlanError(f"launcher.drainKey: {_kind(value)} is not a text")
    return value


def _whole(section: dict[str, Any], parent: str, key: str, default: int, *, at_least: int) -> int:
    value = section.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        raise PlanError(f"{parent}.{key}: {value!r} is not a whole number of at least {at_least}")
    return value


def _port(section: dict[str, Any], parent: str, default: int) -> int:
    value = _whole(section, parent, "port", default, at_least=1)
    if value > HIGHEST_PORT:
        raise PlanError(f"{parent}.port: {value} is above {HIGHEST_PORT}")
    return value


def _seconds(section: dict[str, Any], key: str, default: float) -> float:
    value = section.get(key, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < float("inf"):
        raise PlanError(f"engine.{key}: {value!r} is not a number of seconds of at least 0")
    return float(value)


def _flag(section: dict[str, Any], parent: str, key: str, *, default: bool) -> bool:
    value = section.get(key, default)
    if not isinstance(value, bool):
        raise PlanError(f"{parent}.{key}: {value!r} is neither true nor false")
    return value


def _kind(value: object) -> str:
    if value is None:
        return "null"
    return {list: "a list", str: "a text", bool: "true or false", dict: "an object"}.get(type(value), "a number")
