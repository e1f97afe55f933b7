"""fit-context, fit-gpus, compare, explain and curve as a person and as a script see them."""

from __future__ import annotations

import io
import json
import re
import shlex
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from bad_input import BAD_INPUT, SMALLEST, BadInput
from formulas import evaluated
from rich.console import Console

from hisparse.hardware import GPUS
from hisparse_toolkit import asking, cli
from hisparse_toolkit.answering import SCHEMAS
from hisparse_toolkit.cli import main
from hisparse_toolkit.question import Options
from hisparse_toolkit.sheet import Columns
from hisparse_toolkit.sheet_paint import columns

ROOT = Path(__file__).parents[2]
LLAMA = ("--model", "Llama-3.1-8B")
GLM = ("--model", "GLM-5.3-FP8", "--context", "1M", "--gpus", "8")
COMMANDS = ("fit-context", "fit-gpus", "compare", "explain", "curve")


@pytest.fixture(autouse=True)
def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HISPARSE_NO_HUB", "1")
    monkeypatch.delenv("COLUMNS", raising=False)


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(words)
    told = capsys.readouterr()
    return code, told.out, told.err


def document(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    _, out, err = run(capsys, *words, "--json")
    assert err == ""
    found: dict[str, Any] = json.loads(out)
    return found


def flowing(text: str) -> str:
    return " ".join(text.split())


def stdin_of(monkeypatch: pytest.MonkeyPatch, manifest: Any) -> None:
    text = yaml.dump(manifest, Dumper=yaml.CSafeDumper, allow_unicode=True)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))


# --- the first line is the answer ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "code", "first"),
    [
        pytest.param(
            ("fit-context", *LLAMA, "--gpus", "1", "--kv-dtype", "bf16"),
            0,
            "UP TO 131,072 tokens  meta-llama/Llama-3.1-8B on 1 x H200, per replica",
            id="a context that fits",
        ),
        pytest.param(
            ("fit-context", *LLAMA, "--gpus", "1", "--gpu", "rtx-4090"), 1, "UP TO ", id="a context with a warning"
        ),
        pytest.param(
            ("fit-context", "--model", "Llama-3.1-70B", "--gpus", "1", "--gpu", "l4"),
            3,
            "NO CONTEXT FITS  meta-llama/Llama-3.1-70B on 1 x L4, per replica",
            id="no context",
        ),
        pytest.param(("fit-gpus", *LLAMA, "--context", "8K"), 0, "1 x ", id="GPUs that are enough"),
        pytest.param(
            ("fit-gpus", "--model", "Llama-3.1-405B", "--context", "128K", "--gpu", "l4"),
            3,
            "NO l4 NODE IS ENOUGH  meta-llama/Llama-3.1-405B at 131,072 tokens, up to 8 GPUs of one node",
            id="no number of them",
        ),
        pytest.param(
            ("compare", *GLM), 0, "2 OF 7 FIT  zai-org/GLM-5.3-FP8 at 1,048,576 tokens on 8 x H200", id="a comparison"
        ),
        pytest.param(
            ("compare", *GLM[:-1], "4"),
            3,
            "NONE FITS ON 4 x H200  zai-org/GLM-5.3-FP8 at 1,048,576 tokens; 8 GPUs do",
            id="a comparison where only more GPUs would do",
        ),
        pytest.param(
            ("compare", "--model", "Llama-3.1-405B", "--context", "128K", "--gpus", "1", "--gpu", "l4"),
            3,
            "0 OF ",
            id="a comparison of what does not fit",
        ),
        pytest.param(
            ("explain", *GLM), 0, "FITS  zai-org/GLM-5.3-FP8 at 1,048,576 tokens on 8 x H200: how", id="an explanation"
        ),
        pytest.param(("explain", *GLM, "--mode", "none"), 3, "DOES NOT FIT  zai-org", id="of a shortfall"),
        pytest.param(("curve", *GLM), 0, "9.", id="a curve"),
        pytest.param(
            ("curve", *LLAMA, "--context", "1", "--gpus", "1"),
            0,
            "57,116 REQUESTS  meta-llama/Llama-3.1-8B of 1 token on 1 x H200",
            id="a curve of one point",
        ),
        pytest.param(("curve", *GLM, "--gpus", "4"), 3, "DOES NOT FIT  zai-org", id="no curve"),
    ],
)
def test_the_first_line_is_the_answer(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], code: int, first: str
) -> None:
    got, out, err = run(capsys, *words)
    assert (got, err) == (code, "")
    assert out.startswith(first)


TABLES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "kinds": (
        ("fit-gpus", "--model", "Qwen3-32B", "--context", "128K"),
        ("rtx-pro-6000", "139.81 GiB", "Bf16", "None", "1 x h200"),
    ),
    "variants": (
        ("compare", *LLAMA, "--gpus", "1", "--context", "128K"),
        ("TurboQuant4BitNc", "Int8PerTokenHead", "mode Offload", "26.24", "loses"),
    ),
    "points": (("curve", *GLM), ("1,048,576", "9.20", "x 13.73", "ratio")),
    "steps": (("time", *GLM), ("1,048,576", "estimate", "tokens/s", "bound")),
    "lengths": (("plan", *GLM), ("1,048,576", "9.20", "speed-up", "termination grace")),
}


@pytest.mark.parametrize("columns", ["40", "60", "80", "100"])
@pytest.mark.parametrize("table", TABLES)
def test_no_cell_is_cut(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, table: str, columns: str
) -> None:
    words, cells = TABLES[table]
    monkeypatch.setenv("COLUMNS", columns)
    _, out, _ = run(capsys, *words)
    assert [cell for cell in cells if cell not in out] == []


def drawn(table: Columns, width: int) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    with console.capture() as capture:
        console.print(columns(table, width))
    return capture.get()


@pytest.mark.parametrize("width", range(30, 70, 3))
def test_a_narrow_table_has_less_or_is_a_stack(width: int) -> None:
    rows = (("row-one-of-it", "1,048,576", "139.81 GiB", "a b"), ("row-two", "7", "1.00 GiB", "c d"))
    table = Columns("a title", ("name", "how many", "memory in all", "marks"), rows, texts=(0, 3), optional=(2,))
    out = drawn(table, width)
    words = out.split()
    assert all(len(line) <= width for line in out.splitlines())
    for row in rows:
        for index, cell in enumerate(row):
            assert set(cell.split()) <= set(words) or (index == 2 and "no room for: memory in all" in flowing(out))


def test_a_table_with_room_is_as_it_was() -> None:
    table = Columns("", ("name", "how many"), (("one", "1,000"),))
    assert [line.rstrip() for line in drawn(table, 40).splitlines()] == ["name  how many", "one      1,000"]


@pytest.mark.parametrize("command", ["fit-context", "compare", "explain", "curve"])
def test_a_page_is_a_hundred_columns_wide_and_without_colour(capsys: pytest.CaptureFixture[str], command: str) -> None:
    words = [word for word in GLM if command != "fit-context" or word not in ("--context", "1M")]
    _, out, _ = run(capsys, command, *words)
    lines = out.splitlines()
    assert "\x1b" not in out
    assert [line for line in lines if len(line) > 100 and not line.startswith("hisparse plan")] == []
    assert [line for line in lines if line != line.rstrip()] == []


# --- fit-context -----------------------------------------------------------------------------------------------------


def test_the_plan_of_the_longest_context_fits_and_one_token_more_does_not(capsys: pytest.CaptureFixture[str]) -> None:
    words = (*LLAMA, "--gpus", "1", "--gpu", "rtx-4090", "--kv-dtype", "fp8")
    found = document(capsys, "fit-context", *words)
    longest = found["maxTokens"]
    assert found["binds"] == "Memory"
    assert run(capsys, "plan", *words, "--context", str(longest))[0] in (0, 1)
    assert run(capsys, "plan", *words, "--context", str(longest + 1))[0] == 3


@pytest.mark.parametrize(
    "words",
    [
        ("fit-context", *LLAMA, "--gpus", "1", "--gpu", "rtx-4090"),
        ("fit-context", "--model", "GLM-5.3-FP8", "--gpus", "8", "--host-memory", "2Ti"),
        ("fit-context", "--model", "Llama-3.1-8B", "--gpus", "2", "--rope-factor", "4", "--rope-original", "128K"),
        ("fit-gpus", "--model", "Llama-3.3-70B-Instruct", "--context", "2M"),
        ("fit-gpus", "--model", "GLM-5.3-FP8", "--context", "1M", "--host-memory", "2Ti"),
    ],
    ids=" ".join,
)
def test_the_command_at_the_end_plans_it(capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    code, out, _ = run(capsys, *words)
    command = out.splitlines()[-1]
    assert command.startswith("hisparse plan ")
    planned, _, err = run(capsys, *shlex.split(command)[1:])
    assert (planned in (0, 1), err) == (True, "")
    assert code in (0, 1)


def test_positions_bind_and_scaling_is_offered(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("fit-context", "--model", "Llama-3.3-70B-Instruct", "--gpus", "4")
    _, out, _ = run(capsys, *words)
    text = flowing(out)
    assert "binds positions: the model counts 131,072; memory would hold 2," in text
    assert "262,144 with factor 2" in text
    assert "--rope-factor N --rope-original 131072" in text
    found = document(capsys, *words)
    assert (found["binds"], found["positions"], found["maxTokens"]) == ("Positions", 131_072, 131_072)
    assert found["rope"]["state"] == "NeedsScaling"
    assert found["rope"]["steps"][0] == {"factor": 2, "maxTokens": 262_144}


def test_requests_at_once_shorten_the_context(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("fit-context", "--model", "GLM-5.3-FP8", "--gpus", "8")
    many = document(capsys, *words, "--concurrency", "50")
    assert many["requests"] == 50
    assert 0 < many["maxTokens"] < document(capsys, *words)["maxTokens"]
    assert float(many["plan"]["concurrencyAtMaxTokens"]) >= 50


@pytest.mark.parametrize("model", ["GLM-5.3", "GLM-5.3-Flash", "Llama-3.1-70B", "gpt-oss-20b", "Qwen3-32B", "Kimi-K2"])
@pytest.mark.parametrize("concurrency", ["1", "8", "30", "200"])
def test_nobody_is_said_to_have_asked_for_what_was_chosen(
    capsys: pytest.CaptureFixture[str], model: str, concurrency: str
) -> None:
    words = ("fit-context", "--model", model, "--gpus", "8", "--concurrency", concurrency)
    _, out, _ = run(capsys, *words)
    assert "says so" not in out
    if not out.startswith("UP TO"):
        return
    asked = flowing(run(capsys, *words, "--kv-dtype", document(capsys, *words)["plan"]["kvCacheDtype"])[1])
    assert "--kv-dtype says so" in asked


def test_a_choice_for_many_requests_says_for_how_many(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("fit-context", "--model", "Llama-3.1-70B", "--gpus", "4", "--gpu", "h100", "--concurrency", "8")
    text = flowing(run(capsys, *words)[1])
    assert "KV cache Fp8: holds the longest context for 8 requests at once" in text
    assert "tier None: GQA model: HiSparse needs a DSA indexer" in text


def test_every_way_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "fit-context", "--model", "GLM-5.3-FP8", "--gpus", "8")
    assert [(way["mode"], way["kvCacheDtype"]) for way in found["ways"]] == [("HiSparse", "Fp8"), ("None", "Fp8")]
    assert found["ways"][0]["maxTokens"] > found["ways"][1]["maxTokens"]
    assert found["ways"][1]["beyond"]


def test_a_manifest_is_asked_for_its_longest(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    short = {**SMALLEST["spec"], "context": {"maxTokens": 65_536, "typicalTokens": 8_192}}
    stdin_of(monkeypatch, {**SMALLEST, "spec": short})
    code, out, err = run(capsys, "fit-context", "-f", "-", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["maxTokens"] == 1_048_576
    stdin_of(monkeypatch, SMALLEST)
    _, out, _ = run(capsys, "fit-context", "-f", "-", "--mode", "None")
    assert out.splitlines()[-1].startswith("hisparse plan -f - ")


# --- fit-gpus --------------------------------------------------------------------------------------------------------


def test_every_kind_is_answered_for(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "fit-gpus", "--model", "Llama-3.1-70B", "--context", "128K")
    names = [one["gpu"] for one in (*found["fleets"], *found["refused"])]
    assert sorted(names) == sorted(gpu.name for gpu in GPUS)
    order = [(one["gpus"], round(one["memoryBytes"] / 2**30)) for one in found["fleets"]]
    assert order == sorted(order)
    assert all(one["reason"] for one in found["refused"])


def test_fewer_of_them_do_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--model", "Llama-3.1-70B", "--context", "128K", "--gpu", "h100")
    (fleet,) = document(capsys, "fit-gpus", *words)["fleets"]
    assert fleet["gpus"] > 1
    assert run(capsys, "plan", *words, "--gpus", str(fleet["gpus"]))[0] in (0, 1)
    assert run(capsys, "plan", *words, "--gpus", str(fleet["gpus"] // 2))[0] == 3


def test_a_length_beyond_the_positions_says_both_memory_and_scaling(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("fit-gpus", "--model", "Llama-3.3-70B-Instruct", "--context", "2M", "--gpu", "h200")
    code, out, _ = run(capsys, *words)
    text = flowing(out)
    assert code == 1
    assert text.startswith("4 x h200 ARE ENOUGH")
    assert "they need YaRN with factor 16 from 131,072 positions" in text
    assert "--rope-factor 16 --rope-original 131072" in text
    found = document(capsys, *words)
    assert (found["assumedScaling"]["factor"], found["assumedScaling"]["originalTokens"]) == ("16", 131_072)


@pytest.mark.parametrize(
    "words",
    [
        ("fit-gpus", "--model", "Qwen3-32B", "--context", "128K"),
        ("curve", "--model", "Qwen3-32B", "--context", "128K", "--gpus", "2"),
        ("explain", "--model", "Qwen3-32B", "--context", "128K", "--gpus", "2"),
        ("compare", "--model", "Qwen3-32B", "--context", "128K", "--gpus", "2"),
        ("fit-gpus", "--model", "Llama-3.3-70B-Instruct", "--context", "2M", "--gpu", "h200"),
        ("fit-context", "--model", "Qwen3-32B", "--gpus", "2", "--rope-factor", "2", "--rope-original", "32768"),
        ("fit-context", "--model", "Qwen3-32B", "--gpus", "2"),
    ],
)
def test_what_scaling_costs_is_said_once(capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    text = flowing(run(capsys, *words)[1])
    for factor in set(re.findall(r"YaRN in vLLM is static: (factor \S+) turns", text)):
        assert text.count(f"YaRN in vLLM is static: {factor} turns") == 1
    if "fit-context" not in words:
        assert "YaRN in vLLM is static" in text


def test_a_scaling_that_was_asked_for_is_not_assumed(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--model", "Llama-3.3-70B-Instruct", "--context", "2M", "--gpu", "h200")
    found = document(capsys, "fit-gpus", *words, "--rope-factor", "16", "--rope-original", "128K")
    assert found["assumedScaling"] is None
    assert found["fleets"][0]["gpus"] == 4


def test_a_model_that_cannot_be_scaled_is_bad_input(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "fit-gpus", "--model", "GLM-5.3-Flash", "--context", "2M")
    assert (code, out) == (2, "")
    assert "1048576 positions" in err


def test_the_products_of_a_manifest_are_the_kinds(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    resources = {"gpus": 8, "gpuProducts": ["NVIDIA-H200", "NVIDIA-H100-80GB-HBM3"]}
    stdin_of(monkeypatch, {**SMALLEST, "spec": {**SMALLEST["spec"], "resources": resources}})
    _, out, _ = run(capsys, "fit-gpus", "-f", "-", "--json")
    found = json.loads(out)
    assert [one["gpu"] for one in found["fleets"]] == ["h200"]
    assert [one["gpu"] for one in found["refused"]] == ["h100"]


def test_one_gpu_has_as_much_as_each(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "fit-gpus", *LLAMA, "--context", "8K")
    sizes = re.findall(r"^1 x \S+ +(\S+ GiB) +(\S+ GiB)", out, re.MULTILINE)
    assert sizes
    assert [pair for pair in sizes if pair[0] != pair[1]] == []


def test_remedies_are_told_in_options(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "fit-context", "--model", "Llama-3.1-70B", "--gpus", "1", "--gpu", "l4")
    assert "change  set --gpus to 8" in out
    _, out, _ = run(capsys, "curve", *GLM, "--gpus", "4")
    assert "change  set --gpus to 8" in out


# --- compare ---------------------------------------------------------------------------------------------------------


def test_models_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("compare", "--models", "GLM-5.3-FP8,GLM-5.3-Flash", "--context", "1M", "--gpus", "8")
    found = document(capsys, *words)
    assert [row["model"] for row in found["rows"]] == ["zai-org/GLM-5.3-FP8", "zai-org/GLM-5.3-Flash"]
    assert [row["mode"] for row in found["rows"]] == ["HiSparse", "None"]
    assert found["rows"][0]["kvBytes"] < found["rows"][1]["kvBytes"]
    _, out, _ = run(capsys, *words)
    assert "GLM-5.3-Flash" in out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ("--models", "GLM-5.3,zai-org/GLM-5.3"),
            "models GLM-5.3 and zai-org/GLM-5.3 are all zai-org/GLM-5.3, which is asked about anyway",
        ),
        (("--model", "GLM-5.3", "--models", "GLM-5.3"), "models GLM-5.3 is zai-org/GLM-5.3, which"),
        (("--model", "GLM-5.3", "--gpu", "h200", "--gpu-kinds", "h200"), "GPU kinds h200 is h200, which"),
        (("--model", "GLM-5.3", "--models", "GLM-5.3-FP8"), None),
        (("--model", "GLM-5.3", "--gpu-kinds", "h200,b200"), None),
        (("--model", "GLM-5.3"), None),
    ],
)
def test_names_that_mean_what_is_asked_about_are_told(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], told: str | None
) -> None:
    text = flowing(run(capsys, "compare", *words, "--context", "1M", "--gpus", "8")[1])
    assert ("asked about anyway" in text) is (told is not None)
    assert told is None or told in text


def test_what_is_lost_has_a_mark_and_a_source(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "compare", *GLM)
    marks = {one["mark"] for one in found["losses"]}
    assert marks == {mark for row in found["rows"] for mark in row["losses"]}
    assert all(one["source"] for one in found["losses"])
    _, out, _ = run(capsys, "compare", *GLM)
    assert "a token takes ~2.7 times as long once requests read from host" in flowing(out)


def test_kinds_of_gpu_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(
        capsys, "compare", "--model", "Llama-3.1-70B", "--context", "128K", "--gpus", "4", "--gpu-kinds", "h100,b200"
    )
    assert [row["gpu"] for row in found["rows"]] == ["h200", "h100", "b200"]
    assert [row["axis"] for row in found["rows"]] == ["Asked", "GpuKind", "GpuKind"]


def test_every_kind_and_model_once_and_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("compare", "--context", "128K", "--gpus", "4")
    kinds = document(capsys, *words, "--model", "Llama-3.1-70B", "--gpu-kinds", "h200,b200,B200")
    assert [row["gpu"] for row in kinds["rows"]] == ["h200", "b200"]
    models = document(capsys, *words, "--models", "Llama-3.1-70B,Qwen3-32B,qwen3-32b", "--kv-dtype", "fp8")
    assert [row["model"] for row in models["rows"]] == ["meta-llama/Llama-3.1-70B", "Qwen/Qwen3-32B"]
    _, out, _ = run(capsys, *words, "--model", "Llama-3.1-70B", "--gpu-kinds", "h200,b200")
    assert "as asked" not in out
    _, out, _ = run(capsys, *words, "--models", "Llama-3.1-70B,Qwen3-32B")
    assert "as asked" not in out
    assert "\nLlama-3.1-70B " in out


def test_a_reason_is_told_once_for_all_that_have_it(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "compare", *GLM, "--gpus", "4")
    assert flowing(out).count("weights take 175.32 GiB") == 1
    assert all(name in out for name in ("as asked,", "mode HiSparse,", "mode Offload,", "KV dtype Fp8"))


def test_what_the_question_comes_to_anyway_is_one_row(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "compare", *LLAMA, "--context", "128K", "--gpus", "1")
    rows = re.findall(r"^(?:as asked|mode \w+|KV dtype) .*$", out, re.MULTILINE)
    cells = [re.sub(r"^(?:as asked|mode \w+|KV dtype) +", "", row) for row in rows]
    assert len(cells) == len(set(cells)) > 3


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--models", "GLM-5.3,,X"), '--models: "GLM-5.3,,X" has an empty name'),
        (("--models", "GLM-5.3,GML-5.4"), '--models: "GML-5.4" is not in the catalogue'),
        (("--model", "GLM-5.3", "--gpu-kinds", "h300"), '--gpu-kinds: "h300" is not a GPU'),
    ],
)
def test_names_that_nobody_knows(capsys: pytest.CaptureFixture[str], words: tuple[str, ...], told: str) -> None:
    code, out, err = run(capsys, "compare", *words, "--context", "1M", "--gpus", "8")
    assert (code, out) == (2, "")
    assert told in err


# --- explain ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        GLM,
        ("--model", "gpt-oss-20b", "--context", "128K", "--gpus", "1", "--gpu", "rtx-4090"),
        (*LLAMA, "--context", "128K", "--gpus", "1", "--gpu", "rtx-4090"),
    ],
    ids=["tier", "windows", "shortfall"],
)
def test_a_pocket_calculator_comes_to_the_same(capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    found = document(capsys, "explain", *words)
    steps = [step for section in found["sections"] for step in section["steps"]]
    with_formula = [step for step in steps if step["formula"]]
    assert len(with_formula) > len(steps) // 2
    for step in with_formula:
        value = evaluated(step["formula"])
        if isinstance(step["value"], int):
            assert value == step["value"]
        else:
            assert f"{int(value * 100) / 100:.2f}" == step["value"]


def test_the_printed_formulas_are_those_of_the_document(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "explain", *GLM)
    _, out, _ = run(capsys, "explain", *GLM)
    text = flowing(out)
    for section in found["sections"]:
        for step in section["steps"]:
            assert step["name"] in text
            assert step["formula"] is None or f"= {step['formula']} [" in text


# --- curve -----------------------------------------------------------------------------------------------------------


def test_two_plots_with_a_tier_and_one_without(capsys: pytest.CaptureFixture[str]) -> None:
    _, tiered, _ = run(capsys, "curve", *GLM)
    _, plain, _ = run(capsys, "curve", *LLAMA, "--context", "128K", "--gpus", "1")
    for out in (tiered, plain):
        assert "requests at once by their length in tokens" in out
    assert "capacity ratio, HiSparse over plain KV" in tiered
    assert "capacity ratio" not in plain
    points = document(capsys, "curve", *GLM)["points"]
    assert (points[0]["tokens"], points[-1]["tokens"]) == (8_192, 1_048_576)


@pytest.mark.parametrize(
    "words",
    [
        ("curve", *LLAMA, "--context", "1", "--gpus", "1"),
        ("curve", *LLAMA, "--context", "128K", "--gpus", "8"),
        ("compare", *LLAMA, "--context", "1", "--gpus", "8"),
        ("explain", *LLAMA, "--context", "1", "--gpus", "1"),
        ("fit-gpus", *LLAMA, "--context", "1", "--gpu", "h200"),
        ("fit-context", *LLAMA, "--gpus", "8", "--typical", "1", "--concurrency", "2000"),
        ("plan", *LLAMA, "--context", "1", "--gpus", "1"),
        ("time", *LLAMA, "--context", "1", "--gpus", "1", "--batch", "4000"),
        ("time", *LLAMA, "--context", "1K", "--gpus", "1", "--batch", "4000", "--claim-tokens-per-second", "5000"),
    ],
)
def test_counts_have_separators_and_their_own_noun(capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    _, out, _ = run(capsys, *words)
    # the script to paste has flags, which take digits alone, and plots have axes of their own; what binds and the
    # sources in brackets are the core's sentences
    script = re.compile(r"export |flags=|  -|binds|hisparse |vllm |.*[┤│┬]")
    text = "\n".join(line for line in out.splitlines() if not script.match(line))
    text = re.sub(r"\[[^]]*\]", "", text)
    assert re.findall(r"\b1 (?:tokens|requests|REQUESTS)\b", text) == []
    assert re.findall(r"(?<![\d,.])\d{4,}(?:\.\d+)? (?:requests|tokens|REQUESTS|times)\b", text) == []
    assert re.findall(r"\d\.00 (?:requests|REQUESTS|of 1|TO)", text) == []


@pytest.mark.parametrize("context", ["1", "16", "8K", "8193"])
def test_a_curve_of_one_or_two_points_is_drawn(capsys: pytest.CaptureFixture[str], context: str) -> None:
    code, out, err = run(capsys, "curve", *LLAMA, "--context", context, "--gpus", "1")
    assert (code, err) == (0, "")
    assert "REQUESTS" in out


# --- all of them -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--bogus",), "--bogus is no option of this command"),
        ((), "--model: is needed and not set"),
        (("--model", "GML-5.3"), "did you mean GLM-5.3?"),
        (("--model", "GLM-5.3", "--host-memory", "2TB"), '--host-memory: "2TB" is not a quantity'),
        (("--model", "GLM-5.3", "--concurrency", "many"), '--concurrency: "many" is not a whole number'),
        (("--model", "GLM-5.3", "--concurrency", "5000"), "5000"),
        (("-f", "no.yaml"), "no.yaml: does not exist"),
        (("word",), "word belongs to no option"),
    ],
    ids=str,
)
def test_bad_input_is_two(capsys: pytest.CaptureFixture[str], command: str, words: tuple[str, ...], told: str) -> None:
    code, out, err = run(capsys, command, *words)
    assert (code, out) == (2, "")
    assert told in err
    assert "Traceback" not in err
    code, out, _ = run(capsys, command, *words, "--json")
    found = json.loads(out)
    assert (code, found["verdict"], found["schema"]) == (2, "BadInput", f"hisparse.dev/{command}/v1")
    assert list(found) == ["schema", "verdict", "exitCode", *SCHEMAS[command].keys, "errors"]
    assert found["errors"]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_model_that_nobody_knows_is_four(capsys: pytest.CaptureFixture[str], command: str) -> None:
    words = ("--context", "8K") if command != "fit-context" else ()
    more = ("--gpus", "1") if command != "fit-gpus" else ()
    code, out, err = run(capsys, command, "--model", "some/model", *words, *more)
    assert (code, out) == (4, "")
    assert "HISPARSE_NO_HUB=1" in err


@pytest.mark.parametrize("command", ["fit-context", "fit-gpus"])
@pytest.mark.parametrize("case", [pytest.param(one, id=one.id) for one in BAD_INPUT])
def test_no_manifest_brings_a_command_down(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, case: BadInput, command: str
) -> None:
    stdin_of(monkeypatch, case.manifest)
    code, _, err = run(capsys, command, "-f", "-")
    # what only the length or the GPUs made wrong may be right here
    assert code in (0, 1, 2, 3)
    assert (code == 2) == (err != "")


def no_floats(value: Any) -> bool:
    if isinstance(value, dict):
        return all(no_floats(one) for one in value.values())
    if isinstance(value, list):
        return all(no_floats(one) for one in value)
    return not isinstance(value, float)


def documented(page: str) -> set[str]:
    text = (ROOT / "docs" / "reference" / f"{page}-json.md").read_text()
    return {word for line in text.splitlines() if line.startswith("| `") for word in line.split("`")[1:2]}


def shared_with_plan() -> set[str]:
    """Keys of the blocks that have the same form in every document."""
    return {key for key in documented("plan") if key.startswith(("model.", "node.", "request."))}


def paths(value: Any, prefix: str = "") -> set[str]:
    if isinstance(value, dict):
        return {found for key, one in value.items() for found in paths(one, f"{prefix}.{key}" if prefix else key)}
    if isinstance(value, list):
        inner = {found for one in value if isinstance(one, dict) for found in paths(one, f"{prefix}[]")}
        return inner or {prefix}
    return {prefix}


ASKED: dict[str, list[tuple[str, ...]]] = {
    "fit-context": [
        ("--model", "Llama-3.3-70B-Instruct", "--gpus", "4"),
        (*LLAMA, "--gpus", "1", "--gpu", "rtx-4090"),
        (*LLAMA, "--gpus", "1", "--gpu", "a10g"),
        ("--model", "GLM-5.3", "--gpus", "7"),
        ("--model", "Llama-3.1-70B", "--gpus", "1", "--gpu", "l4"),
    ],
    "fit-gpus": [("--model", "Llama-3.3-70B-Instruct", "--context", "2M"), (*LLAMA, "--context", "8K")],
    "compare": [GLM, ("--model", "Llama-3.3-70B-Instruct", "--context", "2M", "--gpus", "4")],
    "explain": [
        GLM,
        (*LLAMA, "--context", "128K", "--gpus", "1", "--gpu", "rtx-4090"),
        (*LLAMA, "--context", "256K", "--gpus", "2"),
    ],
    "curve": [GLM, (*LLAMA, "--context", "256K", "--gpus", "2"), (*GLM, "--gpus", "4")],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_the_reference_page_lists_every_key_and_no_other(capsys: pytest.CaptureFixture[str], command: str) -> None:
    seen: set[str] = set()
    for words in ASKED[command]:
        _, out, _ = run(capsys, command, *words, "--json")
        found = json.loads(out)
        assert list(found) == ["schema", "verdict", "exitCode", *SCHEMAS[command].keys, "errors"]
        assert no_floats(found)
        assert out.isascii()
        seen |= paths(found)
    own = documented(command)
    told = own | shared_with_plan()
    # null and an empty list stand for the block that they can be
    blocks = {key for key in seen if any(one.startswith((f"{key}.", f"{key}[]")) for one in told)}
    assert seen - told - blocks == set()
    assert {key for key in own - seen if not key.startswith("errors[]")} == set()


def examples(command: str) -> list[tuple[str, ...]]:
    texts: dict[str, str] = {
        "fit-context": cli._FIT_CONTEXT_HELP,
        "fit-gpus": cli._FIT_GPUS_HELP,
        "compare": cli._COMPARE_HELP,
        "explain": cli._EXPLAIN_HELP,
        "curve": cli._CURVE_HELP,
    }
    return [tuple(shlex.split(line)[1:]) for line in texts[command].splitlines() if line.startswith("  hisparse ")]


@pytest.mark.parametrize("words", [words for command in COMMANDS for words in examples(command)], ids=" ".join)
def test_the_examples_of_the_help_give_answers(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.chdir(ROOT)
    code, out, err = run(capsys, *words)
    assert (code in (0, 1), err) == (True, "")
    assert out


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_examples_and_exit_codes(capsys: pytest.CaptureFixture[str], command: str) -> None:
    code, out, _ = run(capsys, command, "-h")
    assert code == 0
    assert f"hisparse {command}" in out
    assert "Exit codes" in out
    assert len(examples(command)) >= 2


def test_the_options_of_a_question_are_all_asked_for() -> None:
    assert {*asking._OPTIONS, "no_hub"} == {field.name for field in fields(Options)}


def test_what_an_open_question_leaves_out_is_no_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--context is no option" in run(capsys, "fit-context", "--context", "8K")[2]
    told = run(capsys, "fit-gpus", "--gpus", "8")[2]
    assert "--gpus is no option" in told
    assert "--node-gpus limits it" in told


@pytest.mark.parametrize("command", COMMANDS)
def test_json_loads_nothing_heavy(command: str) -> None:
    heavy = ("kopf", "kubernetes", "torch", "huggingface_hub", "plotext", "rich.table", "hisparse_operator")
    words = [command, *ASKED[command][0], "--json"]
    program = (
        "import sys\nfrom hisparse_toolkit.cli import main\n"
        f"main({words!r})\nprint([name for name in {heavy!r} if name in sys.modules], file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr.strip() == "[]"


def test_no_machine_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    for command in COMMANDS:
        _, out, _ = run(capsys, command, *ASKED[command][0])
        assert not re.search(r"/(?:work|tmp|root)/", out)
