"""`hisparse plan` as a person and as a script sees it: exit codes, words, lines."""

import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from bad_input import BAD_INPUT, SMALLEST, BadInput

from hisparse_toolkit import hub
from hisparse_toolkit.cli import main
from hisparse_toolkit.counts import RANGES
from hisparse_toolkit.hub import HubFiles
from hisparse_toolkit.model_source import near_model
from hisparse_toolkit.option_words import in_options
from hisparse_toolkit.problems import NotFoundOutError, Problem

GLM = ("plan", "--model", "GLM-5.3-FP8", "--context", "1M", "--gpus", "8", "--host-memory", "2Ti")
SIZES = re.compile(r"(KV of one request|short before it|missing) +([0-9.]+) GiB")
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "num_hidden_layers": 40,
    "hidden_size": 5120,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 1048576,
    "dtype": "bfloat16",
}


@pytest.fixture(autouse=True)
def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HISPARSE_NO_HUB", "1")
    monkeypatch.delenv("COLUMNS", raising=False)


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(words)
    told = capsys.readouterr()
    return code, told.out, told.err


# --- the screen ----------------------------------------------------------------------------------------------------


def test_the_screen_of_glm_at_a_million_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, *GLM)
    lines = out.splitlines()
    assert (code, err) == (0, "")
    assert lines[0] == "FITS  zai-org/GLM-5.3-FP8 at 1,048,576 tokens on 8 x H200, per replica"
    text = " ".join(out.split())
    for words in (
        "HiSparse: one request of 1,048,576 tokens does not fit in plain KV",
        "53,940 B on each GPU in plain KV; with the tier 51,200 B of host pool",
        "52.68 GiB in plain KV; with the tier 50.00 GiB of host pool + 3.46 GiB of HBM; smallest pool 50.01 GiB",
        "HBM of each GPU, 139.81 GiB",
        "times the concurrency, expected decode speed-up ~",
        "pays above",
        "peak activation ~ 2.25 GiB",
        "Memory is binary: 1 GiB = 1,073,741,824 B",
        '"kv_connector":"HiSparseConnector"',
        "--max-model-len 1048576 # --context",
        'vllm serve zai-org/GLM-5.3-FP8 "${flags[@]}"',
    ):
        assert words in text


def test_one_screen_is_enough(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, *GLM)
    lines = out.splitlines()
    assert len(lines) <= 50
    # only what is meant to be pasted may be longer than the page
    assert [line for line in lines if len(line) > 100 and "--kv-transfer-config" not in line] == []
    assert [line for line in lines if line != line.rstrip()] == []


def test_a_pipe_gets_no_colour_and_the_same_text_anywhere(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, first, _ = run(capsys, *GLM)
    monkeypatch.setenv("TERM", "xterm-256color")
    _, second, _ = run(capsys, *GLM)
    assert "\x1b" not in first
    assert first == second


def test_the_plot_is_drawn_without_colour_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, *GLM, "--plot")
    assert "requests at once by their length in tokens" in out
    assert "\x1b" not in out


def test_a_model_without_a_tier_has_no_columns_about_one(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "plan", "-m", "Llama-3.1-8B", "--context", "128K", "--gpus", "1")
    assert code == 0
    assert "with tier" not in out
    assert "worth it" not in out


# --- exit codes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        pytest.param(GLM, 0, "FITS", id="fits"),
        pytest.param((*GLM, "--batched-tokens", "32768"), 1, "warning", id="fits, and prefill may run out of memory"),
        pytest.param((*GLM, "--mode", "none"), 3, "set --mode HiSparse", id="does not fit without the tier"),
        pytest.param((*GLM, "--host-memory", "64Gi"), 3, "HostMemory", id="the node has too little memory"),
        pytest.param((*GLM[:-4], "--gpus", "16", "--node-gpus", "8"), 3, "node has 8", id="more GPUs than a node has"),
        pytest.param(
            ("plan", "-m", "Llama-3.1-70B", "--context", "128K", "--gpus", "2", "--gpu", "h100"),
            3,
            "or set --gpus to 4",
            id="weights that are too large",
        ),
    ],
)
def test_answers(capsys: pytest.CaptureFixture[str], words: tuple[str, ...], code: int, told: str) -> None:
    got, out, err = run(capsys, *words)
    assert (got, err) == (code, "")
    assert told in " ".join(out.split())


@pytest.mark.parametrize(
    ("words", "told"),
    [
        pytest.param(("plam",), "Did you mean 'plan'", id="a wrong command"),
        pytest.param(("plan", "--contxt", "1M"), "did you mean --context?", id="a wrong option"),
        pytest.param(("plan", "--bogus"), "hisparse plan: --bogus is no option of this command\n", id="far from any"),
        pytest.param(("plan", "-f"), "-f has no value; write one after it, as in -f FILE", id="an option alone"),
        pytest.param(("plan", "--plot=3"), "--plot is a switch and takes no value", id="a switch with a value"),
        pytest.param(("plan", "8"), "8 belongs to no option; write the option before it", id="a word too many"),
        pytest.param(
            (*GLM, "--gpus", "many"),
            '--gpus: "many" is not a whole number from 1 to 64; write digits, as in 8',
            id="words",
        ),
        pytest.param((*GLM, "--gpus", "1.5"), '--gpus: "1.5" is not a whole number from 1 to 64', id="half a GPU"),
        pytest.param((*GLM, "--gpus", "1e9"), '--gpus: "1e9" is not a whole number', id="an exponent"),
        pytest.param((*GLM, "--gpus", "٨"), '--gpus: "٨" is not a whole number', id="digits of another script"),
        pytest.param((*GLM, "--gpus", "9" * 30), "is not a whole number from 1 to 64", id="thirty digits"),
        pytest.param((*GLM, "--gpus", ""), '--gpus: "" is not a whole number', id="an empty number"),
        pytest.param((*GLM, "--gpus", "65"), "65 is not between 1 and 64", id="more GPUs than a spec takes"),
        pytest.param((*GLM, "--gpus", "-1"), "-1 is not between 1 and 64", id="a negative number"),
        pytest.param(
            (*GLM, "--utilization", "0.92"),
            "is not a whole number of percent from 50 to 97; write digits, as in 92",
            id="a share",
        ),
        pytest.param((*GLM, "--data", "2"), "with --data 2 give --tensor 4 (unless said it is all 8 GPUs)", id="data"),
        pytest.param(
            (*GLM, "--pipeline", "3"), "--pipeline 3 needs a multiple of 3 GPUs", id="ways that do not divide"
        ),
        pytest.param((*GLM, "--sharing", "all"), "spec.kvTier.sharing", id="no such sharing"),
        pytest.param((*GLM, "--rope-factor", "2"), "spec.context.ropeScaling: type Yarn needs", id="half a scaling"),
        pytest.param((*GLM, "--rope-original", "8K"), "--rope-factor: is needed and not set", id="the other half"),
        pytest.param(("plan", "-f", ""), "--file: is empty; name a manifest, or - for stdin", id="an empty file name"),
        pytest.param(("plan",), "--model: is needed", id="nothing asked"),
        pytest.param(
            ("plan", "-m", "GML-5.3", "--context", "8K", "--gpus", "1"), "did you mean GLM-5.3?", id="a near model"
        ),
        pytest.param(
            ("plan", "-m", "nothing-like-it", "--context", "8K", "--gpus", "1"),
            "hisparse models lists the",
            id="no such model",
        ),
        pytest.param(
            ("plan", "-m", "./no/config.json"), "--model: ./no/config.json does not exist", id="no such config"
        ),
        pytest.param((*GLM, "--gpu", "h300"), "did you mean h200? (known: h200, h100", id="no such GPU"),
        pytest.param((*GLM, "--context", "1X"), '--context: "1X" is not a count of tokens', id="no count"),
        pytest.param((*GLM, "--host-memory", "2TB"), '--host-memory: "2TB" is not a quantity', id="no quantity"),
        pytest.param((*GLM, "--host-memory", "2"), '"2" is below 1Gi', id="a quantity without its unit"),
        pytest.param((*GLM, "--node-gpus", "0"), "--node-gpus: 0 is below 1", id="a node without GPUs"),
        pytest.param((*GLM, "--context", "2M"), "1048576 positions of zai-org/GLM-5.3-FP8", id="longer than the model"),
        pytest.param(
            ("plan", "-m", "Llama-3.1-70B", "--context", "2M", "--gpus", "4"),
            "or set --rope-factor 16 --rope-original 131072 if",
            id="and the options that scale",
        ),
        pytest.param(
            (*GLM, "--kv-memory", "300Gi"),
            "--kv-memory: 300.00 GiB is more than all the 139.81 GiB",
            id="a large cache",
        ),
        pytest.param((*GLM, "--kv-memory", "30.5"), '"30.5" is less than 1Mi', id="a cache without its unit"),
        pytest.param((*GLM, "--gpu", "h200,b200"), "hisparse compare --gpu-kinds", id="two kinds of GPU"),
        pytest.param((*GLM, "--context", "1,00"), '"1,00" is not a count of tokens', id="digits in no group"),
        pytest.param(
            ("plan", "-m", "Llama-3-70B", "--context", "8K", "--gpus", "1"), "did you mean Llama-3.1-70B?", id="kin"
        ),
        pytest.param((*GLM, "--context", "2M"), "[--context]", id="and the option that sets it"),
        pytest.param((*GLM, "--gpus", "7"), "[--gpus]", id="GPUs that do not divide the heads"),
        pytest.param((*GLM, "--mode", "hybrid"), "spec.kvTier.mode", id="no such mode"),
        pytest.param((*GLM, "--host-pool", "40Gi", "--mode", "hisparse"), "50.01 GiB", id="a pool under one request"),
        pytest.param(("plan", "-m", "GLM-5.3"), "--context: is needed and not set; give the longest", id="no context"),
        pytest.param(("plan", "-m", "GLM-5.3"), "as in --gpus 8", id="no GPUs, told in the same run"),
        pytest.param(("plan", "-f", "no.yaml"), "no.yaml: does not exist", id="no such manifest"),
    ],
)
def test_bad_input_is_two(capsys: pytest.CaptureFixture[str], words: tuple[str, ...], told: str) -> None:
    code, out, err = run(capsys, *words)
    assert (code, out) == (2, "")
    assert told in err


@pytest.mark.parametrize(
    ("option", "text", "field"),
    [
        (option, str(limit), field)
        for option, field in (
            ("--gpus", "resources.gpus"),
            ("--concurrency", "context.maxConcurrentRequests"),
            ("--batched-tokens", "context.maxBatchedTokens"),
            ("--utilization", "resources.gpuMemoryUtilizationPercent"),
            ("--tensor", "parallelism.tensor"),
            ("--data", "parallelism.data"),
            ("--pipeline", "parallelism.pipeline"),
        )
        for limit in (RANGES[option].least - 1, (RANGES[option].most or 0) + 1)
    ],
)
def test_the_limits_that_are_told_are_those_of_the_spec(
    capsys: pytest.CaptureFixture[str], option: str, text: str, field: str
) -> None:
    _, _, err = run(capsys, *GLM, option, text)
    assert f"spec.{field}: {text} is not between {RANGES[option].least} and {RANGES[option].most};" in err


@pytest.mark.parametrize(
    ("words", "flags"),
    [
        pytest.param(
            ("--tensor", "4", "--pipeline", "2", "--mode", "None", "--context", "64K"),
            ["--pipeline-parallel-size", "2"],
            id="pipeline",
        ),
        pytest.param(("--expert",), ["--enable-expert-parallel"], id="expert"),
    ],
)
def test_options_of_the_engine_become_flags(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], flags: list[str]
) -> None:
    _, out, err = run(capsys, *GLM, *words, "--json")
    assert err == ""
    command = json.loads(out)["plan"]["command"]
    at = command.index(flags[0])
    assert command[at : at + len(flags)] == flags


def test_a_scaling_needs_no_type(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("-m", "Llama-3.1-8B", "--context", "256K", "--gpus", "2", "--rope-factor", "2", "--rope-original", "128K")
    code, out, err = run(capsys, "plan", *words, "--json")
    # what the scaling costs is a warning
    assert (code, err) == (1, "")
    command = " ".join(json.loads(out)["plan"]["command"])
    assert '"rope_type":"yarn"' in command.replace(" ", "")


def test_a_pool_per_rank_may_be_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, *GLM, "--sharing", "private", "--json")
    document = json.loads(out)
    assert (document["plan"] or {"host": {"poolShared": False}})["host"]["poolShared"] is False


def test_one_run_tells_every_fault(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("plan", "-m", "GML-5.3", "--context", "1X", "--host-memory", "2TB", "--gpu", "h300", "--gpus", "8")
    _, _, err = run(capsys, *words)
    assert [line.partition(":")[0] for line in err.splitlines()] == ["--model", "--context", "--host-memory", "--gpu"]
    _, _, err = run(capsys, "plan", "-m", "GML-5.3", "--gpus", "x", "--mode", "hybrid")
    assert [line.partition(":")[0] for line in err.splitlines()] == [
        "--model",
        "--gpus",
        "--context",
        "spec.kvTier.mode",
    ]


def test_nothing_said_is_three_options_that_are_missing(capsys: pytest.CaptureFixture[str]) -> None:
    _, _, err = run(capsys, "plan")
    assert [line.partition(":")[0] for line in err.splitlines()] == ["--model", "--context", "--gpus"]
    assert all("is needed and not set; " in line and ", as in --" in line for line in err.splitlines())


def test_a_folder_that_is_no_model_says_what_it_lacks(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, _, err = run(capsys, "plan", "-m", str(tmp_path), "--context", "8K", "--gpus", "1")
    assert code == 2
    assert f"--model: {tmp_path} is a folder without a config.json" in err


def test_a_folder_may_have_the_name_of_a_model(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "GLM-5.3").mkdir()
    monkeypatch.chdir(tmp_path)
    assert run(capsys, "plan", "-m", "GLM-5.3", "--context", "8K", "--gpus", "8")[0] == 0


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("GML-5.3", "zai-org/GLM-5.3"),
        ("zai/GLM-5.3-FP9", "zai-org/GLM-5.3-FP8"),
        ("meta/Llama-3.1-8B-Instrukt", "meta-llama/Llama-3.1-8B-Instruct"),
        ("Qwen/Qwen3-9B", None),
        ("Qwen3-72B-Instruct", None),
        ("meta-llama/Llama-3.1-11B-Instruct", None),
        ("zai-org/GLM-4.6", None),
        ("Llama-3-70B", "meta-llama/Llama-3.1-70B"),
        ("Qwen3-235B", "Qwen/Qwen3-235B-A22B"),
        ("Qwen3-Next-80B", "Qwen/Qwen3-Next-80B-A3B-Instruct"),
        ("Llama-4-70B", None),
        ("nothing", None),
    ],
)
def test_a_near_name_is_of_the_same_family_and_size(name: str, near: str | None) -> None:
    assert near_model(name) == near


def test_a_model_that_nobody_knows_is_four(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "plan", "-m", "some/model", "--context", "8K", "--gpus", "1")
    assert (code, out) == (4, "")
    assert "HISPARSE_NO_HUB=1" in err
    assert "--weights" in err


def test_a_near_repository_is_suggested(capsys: pytest.CaptureFixture[str]) -> None:
    _, _, err = run(capsys, "plan", "-m", "zai/GLM-5.3-FP9", "--no-hub", "--context", "8K", "--gpus", "1")
    assert "did you mean zai-org/GLM-5.3-FP8?" in err
    assert "--no-hub" in err


def test_no_words_print_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys)
    assert (code, out) == (2, "")
    assert "plan" in err


@pytest.mark.parametrize("command", ["plan", "render", "demo"])
def test_help_has_examples_and_exit_codes(capsys: pytest.CaptureFixture[str], command: str) -> None:
    code, out, _ = run(capsys, command, "--help")
    assert code == 0
    assert f"hisparse {command}" in out
    assert "Exit codes" in out
    assert "hsi glm " not in out


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--version")
    assert code == 0
    assert out.startswith("hisparse ")


# --- manifests -----------------------------------------------------------------------------------------------------


def stdin_of(monkeypatch: pytest.MonkeyPatch, manifest: Any) -> None:
    text = yaml.dump(manifest, Dumper=yaml.CSafeDumper, allow_unicode=True)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))


def test_a_manifest_from_stdin(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    stdin_of(monkeypatch, SMALLEST)
    code, out, _ = run(capsys, "plan", "-f", "-")
    assert code == 1
    assert out.startswith("FITS, with warnings  zai-org/GLM-5.3-FP8 at 1,048,576 tokens")


PINNED = {"revision": "0123456789abcdef0123456789abcdef01234567"}


@pytest.mark.parametrize(
    ("model", "code", "warned"),
    [
        ({"huggingFace": {"repo": "zai-org/GLM-5.3-FP8"}}, 1, ["no revision is set", "every start downloads"]),
        ({"huggingFace": {"repo": "zai-org/GLM-5.3-FP8", **PINNED}}, 1, ["every start downloads"]),
        (
            {
                "huggingFace": {"repo": "zai-org/GLM-5.3-FP8", **PINNED},
                "cache": {"pvc": {"claimName": "models"}},
            },
            0,
            [],
        ),
    ],
)
def test_what_the_manifest_itself_is_warned_about(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    model: dict[str, Any],
    code: int,
    warned: list[str],
) -> None:
    manifest = {**SMALLEST, "spec": {**SMALLEST["spec"], "model": model}}
    stdin_of(monkeypatch, manifest)
    got, out, _ = run(capsys, "plan", "-f", "-", "--json")
    document = json.loads(out)
    assert (got, document["exitCode"]) == (code, code)
    assert len(document["plan"]["warnings"]) == len(warned)
    for full, start in zip(document["plan"]["warnings"], warned, strict=True):
        assert full.startswith(start)


def test_numbers_that_kubectl_takes(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    text = yaml.safe_dump(SMALLEST).replace("1048576", "1e6").replace("gpus: 8", "gpus: 8.0")
    assert "1e6" in text
    assert "8.0" in text
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    code, out, err = run(capsys, "plan", "-f", "-", "--json")
    assert (code, err) == (1, "")
    assert json.loads(out)["request"]["maxTokens"] == 1_000_000


def test_options_win_over_the_manifest(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    stdin_of(monkeypatch, SMALLEST)
    code, out, _ = run(capsys, "plan", "-f", "-", "--context", "512K", "--gpus", "4")
    assert code == 3
    assert "at 524,288 tokens on 4 x H200" in out


def test_the_products_of_the_manifest_are_planned_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    resources = {"gpus": 8, "gpuProducts": ["NVIDIA-H200", "NVIDIA-H100-80GB-HBM3"]}
    stdin_of(monkeypatch, {**SMALLEST, "spec": {**SMALLEST["spec"], "resources": resources}})
    code, out, _ = run(capsys, "plan", "-f", "-")
    assert code == 1
    assert "8 x H200" in out


def test_a_product_that_nobody_knows_is_four(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    resources = {"gpus": 8, "gpuProducts": ["NVIDIA-X999"]}
    stdin_of(monkeypatch, {**SMALLEST, "spec": {**SMALLEST["spec"], "resources": resources}})
    code, _, err = run(capsys, "plan", "-f", "-")
    assert code == 4
    assert 'spec.resources.gpuProducts: nothing is known of "NVIDIA-X999"' in err


@pytest.mark.parametrize("case", [pytest.param(one, id=one.id) for one in BAD_INPUT])
def test_every_mistake_of_the_table_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, case: BadInput
) -> None:
    stdin_of(monkeypatch, case.manifest)
    code, out, err = run(capsys, "plan", "-f", "-")
    assert (code, out) == (2, ""), err
    line = next((line for line in err.splitlines() if line.startswith(case.field)), "")
    for word in case.must_mention:
        assert word in line, err


# --- a model of one's own ------------------------------------------------------------------------------------------


def config_in(folder: Path, **changes: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps({**CONFIG, **changes}))
    return path


def test_a_config_and_the_size_of_its_weights(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = config_in(tmp_path)
    words = ("plan", "-m", str(path), "--weights", "60Gi", "--context", "1M", "--gpus", "1", "--kv-dtype", "bf16")
    code, out, _ = run(capsys, *words)
    assert code == 3
    assert "one request of 1,048,576 tokens needs 160.00 GiB of KV" in " ".join(out.split())


def test_the_index_beside_the_config_gives_the_weights(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config_in(tmp_path)
    index = {"metadata": {"total_size": 60 * 1024**3}, "weight_map": {}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    code, out, _ = run(capsys, "plan", "-m", str(tmp_path), "--context", "8K", "--gpus", "2")
    assert code == 0
    assert f"vllm serve {tmp_path}" in out


@pytest.mark.parametrize("named", ["config.json", "."], ids=["its file", "its folder"])
def test_a_fact_that_a_config_lacks_is_added_there(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, named: str
) -> None:
    config_in(tmp_path, num_hidden_layers=None)
    code, _, err = run(capsys, "plan", "-m", str(tmp_path / named), "--context", "8K", "--gpus", "1")
    assert code == 2
    assert f"; add it to {tmp_path / 'config.json'}" in err
    assert "set it here" not in err


@pytest.mark.parametrize(
    ("said", "means"),
    [
        ("55.3 GiB", "55.30 GiB"),
        ("55.3GiB", "55.30 GiB"),
        ("55.3Gi", "55.30 GiB"),
        ("512 MiB", "512.00 MiB"),
    ],
)
def test_the_memory_of_a_log_is_taken_as_it_is_printed(
    capsys: pytest.CaptureFixture[str], said: str, means: str
) -> None:
    _, out, _ = run(capsys, *GLM, "--kv-memory", said)
    assert f"KV cache {means}" in " ".join(out.split())


@pytest.mark.parametrize("said", ["1,000,000", "1_000_000", "1000000", "1e6"])
def test_a_million_tokens_as_people_type_it(capsys: pytest.CaptureFixture[str], said: str) -> None:
    _, out, _ = run(capsys, *GLM, "--context", said)
    assert "at 1,000,000 tokens" in out.splitlines()[0]


def test_what_is_missing_adds_up(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, *GLM, "--gpus", "4")
    found = {name: round(100 * float(size)) for name, size in SIZES.findall(out)}
    assert found["KV of one request"] + found["short before it"] == found["missing"]
    assert f"({found['short before it'] / 100:.2f} GiB short" in " ".join(out.split())


def test_a_reason_is_told_to_its_end(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def reasons(columns: str) -> str:
        monkeypatch.setenv("COLUMNS", columns)
        _, out, _ = run(capsys, *GLM)
        first = re.search(r"^(?:# |export )", out, re.MULTILINE)
        assert first is not None
        script = out[first.start() : out.index("~ estimate. ")]
        assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0
        return script

    wide, narrow = reasons("400"), reasons("60")
    assert "..." not in narrow
    assert sorted(words_of_comments(wide)) == sorted(words_of_comments(narrow))


def words_of_comments(script: str) -> list[str]:
    return [word for line in script.splitlines() for word in line.partition("# ")[2].split()]


def test_whoever_wrote_a_manifest_reads_of_its_fields(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = {**SMALLEST["spec"], "resources": {"gpus": 4}}
    text = yaml.safe_dump({**SMALLEST, "spec": spec})
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    _, out, _ = run(capsys, "plan", "-f", "-")
    assert "set resources.gpus to 8" in out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("set resources.gpus to 8", "set --gpus to 8"),
        ("set kvTier.hostPool.size to 12Gi or lower context.maxTokens", "set --host-pool to 12Gi or lower --context"),
        ("set parallelism.expert to true", "add --expert"),
        (
            "set context.ropeScaling {type: Linear, factor: '2', originalMaxTokens: 4096} if",
            "set --rope-factor 2 --rope-original 4096 --rope-type Linear if",
        ),
        ("set kvTier.hiSparse.deviceBufferTokens to 1", "set kvTier.hiSparse.deviceBufferTokens to 1"),
        ("the model.config.json and its resources", "the model.config.json and its resources"),
    ],
)
def test_fields_in_words_of_options(text: str, said: str) -> None:
    assert in_options(text) == said


def test_without_a_size_the_option_that_gives_it_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, _, err = run(capsys, "plan", "-m", str(config_in(tmp_path)), "--context", "8K", "--gpus", "1")
    assert code == 2
    assert err.rstrip().endswith("[--weights]")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        pytest.param("{", "is not JSON", id="half an object"),
        pytest.param("[1]", "is not a JSON object", id="a list"),
        pytest.param(
            '{"architectures": ["NobodyForCausalLM"]}', "NobodyForCausalLM", id="an architecture nobody knows"
        ),
        pytest.param("[" * 100_000, "is not JSON", id="a hundred thousand brackets"),
    ],
)
def test_a_config_that_is_none(capsys: pytest.CaptureFixture[str], tmp_path: Path, content: str, told: str) -> None:
    (tmp_path / "config.json").write_text(content)
    code, _, err = run(capsys, "plan", "-m", str(tmp_path), "--context", "8K", "--gpus", "1", "--weights", "1Gi")
    assert code == 2
    assert told in err


def test_a_model_of_the_hub(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    files = HubFiles(CONFIG, {"metadata": {"total_size": 60 * 1024**3}})
    monkeypatch.setattr(hub, "hub_files", lambda *_, **__: files)
    code, out, _ = run(capsys, "plan", "-m", "some/model", "--context", "8K", "--gpus", "2")
    assert code == 0
    assert "vllm serve some/model" in out


# --- json ----------------------------------------------------------------------------------------------------------


def no_floats(value: Any) -> bool:
    if isinstance(value, dict):
        return all(no_floats(one) for one in value.values())
    if isinstance(value, list):
        return all(no_floats(one) for one in value)
    return not isinstance(value, float)


KEYS = ["schema", "verdict", "exitCode", "model", "node", "request", "plan", "shortfall", "errors"]


@pytest.mark.parametrize(
    ("words", "verdict", "code"),
    [
        pytest.param(GLM, "Fits", 0, id="fits"),
        pytest.param((*GLM, "--batched-tokens", "32768"), "FitsWithWarnings", 1, id="warns"),
        pytest.param((*GLM, "--gpus", "7"), "BadInput", 2, id="bad input"),
        pytest.param((*GLM, "--mode", "None"), "DoesNotFit", 3, id="does not fit"),
        pytest.param(("plan", "-m", "a/b", "--context", "1", "--gpus", "1"), "Unknown", 4, id="unknown"),
        pytest.param(("plan", "--gpus", "1.5"), "BadInput", 2, id="no number"),
        pytest.param(("plan", "--bogus"), "BadInput", 2, id="no option"),
        pytest.param(("plan", "8"), "BadInput", 2, id="a word too many"),
        pytest.param(("plan",), "BadInput", 2, id="nothing asked"),
        pytest.param(("plan", "-f", "no.yaml"), "BadInput", 2, id="no such file"),
    ],
)
def test_json_always_has_the_same_keys(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], verdict: str, code: int
) -> None:
    got, out, _ = run(capsys, *words, "--json")
    document = json.loads(out)
    assert got == code
    assert list(document) == KEYS
    assert (document["schema"], document["verdict"], document["exitCode"]) == ("hisparse.dev/plan/v1", verdict, code)
    assert no_floats(document)
    assert (document["plan"] is not None) == (code in (0, 1))
    assert (document["shortfall"] is not None) == (code == 3)
    assert bool(document["errors"]) == (code in (2, 4))


def test_json_holds_whole_bytes_and_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, *GLM, "--json")
    plan = json.loads(out)["plan"]
    assert plan["plainLayout"]["tokenBytes"] == 53_940
    assert plan["tierLayout"]["hostBlockBytes"] == 3_276_800
    assert plan["tierLayout"]["minimumPoolBytes"] == 16_386 * 3_276_800
    assert sum(term["bytes"] for term in plan["hbmPerGpu"]) == json.loads(out)["node"]["gpuMemoryBytes"]
    assert plan["command"][:3] == ["vllm", "serve", "zai-org/GLM-5.3-FP8"]
    assert all(flag["why"] for flag in plan["flags"])


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ((), ["for imports", "to download weights", "to pin the host pool", "to pin the indexer offload"]),
        (("--mode", "Offload", "--context", "128K"), ["for imports", "to download weights", "to pin the offload pool"]),
        (("--mode", "None", "--context", "128K"), ["for imports", "to download weights"]),
    ],
)
def test_the_parts_of_a_start_add_up(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], names: list[str]
) -> None:
    _, out, _ = run(capsys, *GLM, *words, "--json")
    seconds = json.loads(out)["plan"]["seconds"]
    assert sum(part["seconds"] for part in seconds["startupParts"]) == seconds["startup"]
    assert [part["name"].partition(",")[0] for part in seconds["startupParts"]] == names


def documented_keys() -> set[str]:
    page = Path(__file__).parents[2] / "docs" / "reference" / "plan-json.md"
    return {word for line in page.read_text().splitlines() if line.startswith("| `") for word in line.split("`")[1:2]}


def paths(value: Any, prefix: str = "") -> set[str]:
    if isinstance(value, dict):
        return {found for key, one in value.items() for found in paths(one, f"{prefix}.{key}" if prefix else key)}
    if isinstance(value, list):
        inner = {found for one in value if isinstance(one, dict) for found in paths(one, f"{prefix}[]")}
        return inner or {prefix}
    return {prefix}


def test_the_reference_page_lists_every_key(capsys: pytest.CaptureFixture[str]) -> None:
    seen: set[str] = set()
    manifest = ("plan", "-f", str(Path(__file__).parents[2] / "examples" / "glm-5.3-1m.yaml"))
    for words in (GLM, manifest, (*GLM, "--mode", "None"), (*GLM, "--gpus", "7"), (*GLM, "--host-memory", "64Gi")):
        _, out, _ = run(capsys, *words, "--json")
        seen |= paths(json.loads(out))
    # null and an empty list stand for the block that they can be
    missing = {
        key
        for key in seen - documented_keys()
        if not any(one.startswith((f"{key}.", f"{key}[]")) for one in documented_keys())
    }
    assert missing == set()


def test_problems_are_told_on_stderr_as_well(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, err = run(capsys, *GLM, "--gpus", "7", "--json")
    (error,) = json.loads(out)["errors"]
    assert err.strip() == f"{error['field']}: {error['message']}"


def test_not_found_out_is_an_error_of_its_own() -> None:
    assert NotFoundOutError([Problem("a", "b")]).code == 4
