"""What engine pods declare: anybody who may create pods writes it, so nothing in it may stop the agent."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hisparse.units import GIB
from hisparse_agent.pods import Declared, declared
from hisparse_agent.readings import Absence, Missing

DEEP = "[" * 100_000 + "]" * 100_000


def engine(*words: str, shm: str | None = "400Gi") -> Declared:
    volumes = [{"name": "shm", "emptyDir": {"medium": "Memory", **({"sizeLimit": shm} if shm else {})}}]
    found = declared(
        {
            "metadata": {
                "namespace": "ns", "name": "one-0", "uid": "u",
                "labels": {"inference.hisparse.dev/inference": "one", "app.kubernetes.io/component": "engine"},
            },
            "spec": {
                "volumes": volumes,
                "containers": [
                    {
                        "name": "engine", "command": ["vllm", "serve"], "args": list(words),
                        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
                    }
                ],
            },
            "status": {"phase": "Running"},
        }
    )  # fmt: skip
    assert found is not None
    return found


def transfer(**settings: Any) -> str:
    return "--kv-transfer-config=" + json.dumps({"kv_connector": "X", "kv_connector_extra_config": settings})


@pytest.mark.parametrize(
    ("words", "shm", "pool"),
    [
        pytest.param((transfer(host_pool_gib=64),), "400Gi", 64 * GIB, id="one pool for all ranks"),
        pytest.param(
            (transfer(host_pool_gib=64), "--tensor-parallel-size=8"), "1Gi", 512 * GIB, id="one for each rank"
        ),
        pytest.param((transfer(host_pool_gib=0.5),), None, GIB // 2, id="a fraction"),
        pytest.param((transfer(cpu_bytes_to_use=7),), None, 7, id="offload"),
        pytest.param((), None, 0, id="none"),
    ],
)
def test_the_pool_that_an_engine_will_pin(words: tuple[str, ...], shm: str | None, pool: int) -> None:
    found = engine(*words, shm=shm).engine
    assert found is not None
    assert found.pool == pool


@pytest.mark.parametrize(
    "words",
    [
        (transfer(cpu_bytes_to_use=float("inf")),),
        (transfer(cpu_bytes_to_use=float("nan")),),
        (transfer(host_pool_gib="1/0"),),
        (transfer(host_pool_gib="1e999999999"),),
        (transfer(host_pool_gib=-5),),
        (transfer(host_pool_gib=[1]),),
        (transfer(host_pool_gib=10**4000),),
        ("--tensor-parallel-size=many",),
        ('--kv-transfer-config={"kv_connector_extra_config": "text"}',),
    ],
)
def test_a_figure_that_is_none_is_unknown(words: tuple[str, ...]) -> None:
    found = engine(*words).engine
    assert found is not None
    assert isinstance(found.pool, Missing)
    assert found.pool.absence is Absence.UNKNOWN


@pytest.mark.parametrize(
    "text", [DEEP, "{", "[1, 2]", '"x"', "null", '{"kv_connector_extra_config": {"connectors": {}}}']
)
def test_a_config_of_another_form_declares_nothing(text: str) -> None:
    found = engine(f"--kv-transfer-config={text}")
    assert found.engine is not None
    assert found.rdma is False
    assert found.engine.pool == 0
