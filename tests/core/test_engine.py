"""The command, environment and launch document that a plan turns into."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction

import pytest
from shapes import GLM, LLAMA_8B, QWEN_72B, glm_target, h200

from hisparse.dialect import DIALECTS, dialect
from hisparse.engine import command, environment, launch_document, serve_flags
from hisparse.plan import Plan, Target
from hisparse.planner import plan
from hisparse.reserved import check_argument
from hisparse.spec import ENGINE_VERSIONS
from hisparse.units import GIB


def planned(**changes: object) -> Plan:
    got = plan(GLM, h200(), glm_target(**changes))
    assert isinstance(got, Plan)
    return got


def value(p: Plan, name: str) -> str | None:
    return next((f.value for f in serve_flags(p, served_name="glm") if f.name == name), None)


def test_hisparse_with_the_indexer_offload_is_a_multi_connector() -> None:
    transfer = json.loads(value(planned(host_pool_bytes=384 * GIB), "--kv-transfer-config") or "")
    assert transfer["kv_connector"] == "MultiConnector"
    first, second = transfer["kv_connector_extra_config"]["connectors"]
    assert first["kv_connector_extra_config"] == {"host_pool_gib": 384}
    assert second["kv_connector"] == "OffloadingConnector"
    assert second["kv_connector_extra_config"]["cpu_bytes_to_use"] > 160 * GIB


def test_hisparse_alone() -> None:
    transfer = json.loads(value(planned(indexer_offload=False), "--kv-transfer-config") or "")
    assert transfer["kv_connector"] == "HiSparseConnector"
    assert transfer["kv_role"] == "kv_both"


def test_no_tier_has_no_connector() -> None:
    p = plan(LLAMA_8B, h200(1), Target(max_tokens=8192, gpus=1))
    assert isinstance(p, Plan)
    assert value(p, "--kv-transfer-config") is None
    assert value(p, "--kv-cache-dtype") == "bfloat16"


def test_the_kv_dtype_is_never_left_to_the_engine() -> None:
    assert value(planned(), "--kv-cache-dtype") == "fp8"


def test_tuning_goes_where_the_release_accepts_it() -> None:
    tuning = json.loads(value(planned(device_buffer_tokens=6144), "--attention-config") or "")
    assert tuning == {"hisparse_config": {"device_buffer_size": 6144}}


# the user's own comes later on the command line and wins; nothing of ours depends on it
MAY_BE_OVERRIDDEN = {"--disable-access-log-for-endpoints"}


def test_rope_scaling_brings_the_base_along() -> None:
    """vLLM sets rope_parameters as a whole: without its base a model would turn with 10,000."""
    target = Target(max_tokens=65_536, gpus=8, rope_factor=Fraction(2), rope_original_tokens=32_768)
    p = plan(QWEN_72B, h200(), target)
    assert isinstance(p, Plan)
    assert json.loads(value(p, "--hf-overrides") or "") == {
        "rope_parameters": {
            "rope_type": "yarn",
            "factor": 2.0,
            "original_max_position_embeddings": 32_768,
            "rope_theta": 1_000_000,
        },
        "max_position_embeddings": 65_536,
    }
    linear = plan(QWEN_72B, h200(), replace(target, rope_type="Linear"))
    assert isinstance(linear, Plan)
    assert "max_position_embeddings" not in json.loads(value(linear, "--hf-overrides") or "")


def test_every_flag_has_a_reason_and_is_refused_in_engine_args() -> None:
    for flag in serve_flags(planned(), served_name="glm", trust_remote_code=True):
        assert flag.why
        if flag.name in MAY_BE_OVERRIDDEN:
            continue
        assert check_argument(flag.name) is not None, f"{flag.name} is ours: engine.args must not set it too"


def test_the_command_puts_the_users_arguments_last() -> None:
    words = command("m", serve_flags(planned(), served_name="glm"), ("--seed", "7"))
    assert words[:3] == ("vllm", "serve", "m")
    assert words[-2:] == ("--seed", "7")


def test_workers_get_time_to_unpin() -> None:
    p = planned()
    env = {e.name: e.value for e in environment(p)}
    assert int(env["VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS"]) > p.seconds.teardown
    assert int(env["VLLM_ENGINE_READY_TIMEOUT_S"]) >= 1200


def test_the_launch_document_is_json_of_whole_numbers() -> None:
    document = launch_document(planned(), served_name="glm", engine_port=8000, launcher_port=8001)
    assert json.loads(json.dumps(document)) == document
    assert document["schema"] == "hisparse.dev/launch/v1"
    memory = document["memory"]
    assert memory["shmBytes"] > memory["hostPoolBytes"] > 0


@pytest.mark.parametrize(("text", "version"), [("0.32", "0.32"), ("0.32.0", "0.32"), ("9.9", "0.33")])
def test_dialects(text: str, version: str) -> None:
    assert dialect(text).version == version


def test_the_api_knows_the_same_versions() -> None:
    assert tuple(d.version for d in DIALECTS) == ENGINE_VERSIONS
