"""`hisparse flags` as a person and as a script sees it: exit codes, words, lines."""

import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from hisparse.flags.verdict import Kind, Severity
from hisparse_toolkit.cli import main
from hisparse_toolkit.flags_command import CODES, MAX_BYTES, SCHEMA, VERDICTS

GOOD = "vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 8192"
WARNED = f"{GOOD} --disable-log-stats"
REFUSED = f"{GOOD} --swap-space 128"
HYBRID = "vllm serve m --kv-cache-dtype hybrid_hisparse --api-key s3cret"


@pytest.fixture(autouse=True)
def width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(("flags", *words))
    told = capsys.readouterr()
    return code, told.out, told.err


def as_json(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    code, out, _ = run(capsys, "--json", *words)
    document: dict[str, Any] = json.loads(out)
    assert document["exitCode"] == code
    assert document["schema"] == SCHEMA
    return document


def pipe_in(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


# --- answers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "code", "verdict"),
    [(GOOD, 0, "Ok"), (WARNED, 1, "Warning"), (REFUSED, 3, "Refused"), ("vllm serve 'm", 2, "BadInput")],
)
def test_exit_codes_and_verdicts(capsys: pytest.CaptureFixture[str], text: str, code: int, verdict: str) -> None:
    assert run(capsys, text)[0] == code
    document = as_json(capsys, text)
    assert (document["exitCode"], document["verdict"]) == (code, verdict)


def test_the_screen(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, REFUSED)
    lines = out.splitlines()
    assert (code, err) == (3, "")
    assert lines[0] == "REFUSED  vLLM 0.33 does not start with this: 1 fault"
    text = " ".join(out.split())
    assert "ok --max-model-len 8192 real" in text
    assert "refused --swap-space 128 removed: vLLM had it from 0.4 to 0.17; the engine never swaps" in text
    assert "instead: host_pool_gib of the HiSparseConnector" in text
    assert "(v1/core/sched/scheduler.py)" in text
    assert "Judged for vLLM 0.33: the release that hisparse runs." in text


def test_what_is_pasted_stays_on_one_line_and_nothing_else_is_wide(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, HYBRID)
    pasted = [line for line in out.splitlines() if line.startswith("(1) ")]
    assert len(pasted) == 1
    assert pasted[0].endswith('"kv_connector_extra_config":{"host_pool_gib":N}}\' --kv-cache-dtype fp8')
    assert "N is a number of GiB, and hisparse plan says how many." in out
    assert [line for line in out.splitlines() if len(line) > 100 and not line.startswith("(1) ")] == []
    assert [line for line in out.splitlines() if line != line.rstrip()] == []
    assert "s3cret" not in out


def test_a_control_sequence_in_the_paste_does_not_reach_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "vllm serve m --chat-template \x1b[31mred --x\x1b[0m 1 \x1b]0;title\x07")
    assert not {"\x1b", "\x07"} & set(out)
    assert "\x1b" not in run(capsys, "\x1b[31mls")[2]


def test_what_it_says_to_write_is_fine(capsys: pytest.CaptureFixture[str]) -> None:
    items = {item["name"]: item for item in as_json(capsys, HYBRID)["items"]}
    better = items["--kv-cache-dtype"]["instead"].replace(":N}", ":384}")
    assert run(capsys, f"vllm serve zai-org/GLM-5.3 -tp 8 {better}")[0] == 0


def test_other_programs_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert as_json(capsys, f"{GOOD} 2>&1 | tee log")["notJudged"] == ["tee"]
    assert "Not vLLM, and not judged: tee." in run(capsys, f"{GOOD} 2>&1 | tee log")[1]


def test_the_command_of_a_plan_is_fine(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HISPARSE_NO_HUB", "1")
    main(("plan", "--model", "GLM-5.3-FP8", "--context", "1M", "--gpus", "8", "--host-memory", "2Ti", "--json"))
    command = json.loads(capsys.readouterr().out)["plan"]["command"]
    assert any("HiSparseConnector" in word for word in command)
    assert run(capsys, "--", *command)[0] == 0


@pytest.mark.parametrize(
    "words",
    [
        ("--model", "GLM-5.3-FP8", "--context", "1M", "--gpus", "8", "--host-memory", "2Ti"),
        ("--model", "GLM-5.3", "--context", "1M", "--gpus", "8"),
        ("--model", "Llama-3.1-8B", "--context", "128K", "--gpus", "1"),
        ("--model", "Qwen3-32B", "--context", "128K", "--gpus", "2", "--rope-factor", "4", "--rope-original", "32768"),
        ("--model", "gpt-oss-20b", "--context", "128K", "--gpus", "1", "--gpu", "rtx-4090"),
        ("--model", "DeepSeek-V3.2", "--context", "128K", "--gpus", "8", "--mtp-tokens", "1"),
    ],
)
def test_the_script_of_a_plan_is_fine(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setenv("HISPARSE_NO_HUB", "1")
    assert main(("plan", *words)) in (0, 1)
    lines = capsys.readouterr().out.splitlines()
    begin, end = (
        next(at for at, line in enumerate(lines) if line.startswith(head)) for head in ("export ", "vllm serve")
    )
    script = "\n".join(lines[begin : end + 1])
    assert "flags=(" in script
    pipe_in(monkeypatch, script.encode())
    code, out, _ = run(capsys, "-")
    assert (code, out.splitlines()[0]) == (0, "OK  vLLM 0.33 knows everything in this")


def test_nothing_judged_is_no_ok(capsys: pytest.CaptureFixture[str]) -> None:
    text = "vllm bench serve --model x"
    code, out, _ = run(capsys, text)
    assert (code, out.splitlines()[0][:27]) == (4, "UNKNOWN  nothing was judged")
    document = as_json(capsys, text)
    assert (document["exitCode"], document["verdict"]) == (4, "Unknown")
    assert [(item["kind"], item["effect"]) for item in document["items"]] == [("NotJudged", "Unknown")]
    code, out, _ = run(capsys, f"{text}; {GOOD}")
    assert (code, out.splitlines()[0]) == (
        0,
        "OK  vLLM 0.33 knows everything that was judged, which is not all of this",
    )


def test_an_image_without_a_release_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "docker run vllm/vllm-openai:latest --model m")
    assert "the image's tag latest names no release" in " ".join(out.split())


def test_what_the_operator_has_is_said_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "vllm serve m -tp 8 --port 9000")
    owned = [item for item in as_json(capsys, "vllm serve m -tp 8 --port 9000")["items"] if item["operator"]]
    assert f"operator sets or refuses {len(owned)} of these itself; --json says which" in " ".join(out.split())


# --- input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ("vllm", "serve", "m", "--swap-space", "128", "-tp", "8", "-O3"),
        ("--", "vllm", "serve", "m", "--swap-space", "128"),
        ("--swap-space 128",),
        ("--", "--swap-space", "128"),
        ("export X=1; vllm serve m \\\n --swap-space 128",),
    ],
)
def test_ways_to_give_a_command(capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    code, out, _ = run(capsys, *words)
    assert code == 3
    assert "--swap-space 128" in out


@pytest.mark.parametrize(
    "text",
    [
        "services:\n  vllm:\n    image: vllm/vllm-openai:v0.33.0\n    command: --model m --swap-space 4\n",
        'args: ["--model", "m", "--swap-space", "4"]',
        "args:\n  - --model=m\n  - --swap-space\n  - '4'\n",
        "kind: Service\n---\nkind: Pod\nspec:\n  containers:\n  - image: vllm/vllm-openai\n    args: [--swap-space=4]",
        'kubectl apply -f - <<EOF\nspec: {containers: [{image: vllm/x, args: ["--swap-space", "4"]}]}\nEOF\n',
        'FROM vllm/vllm-openai\nCMD ["--model", "m", "--swap-space", "4"]',
    ],
)
def test_manifests(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(text)
    pipe_in(monkeypatch, text.encode())
    for words in (("-f", str(file)), ("-",), (text,)):
        code, out, _ = run(capsys, *words)
        assert code == 3
        assert "--swap-space 4" in out


@pytest.mark.parametrize("words", [("-",), ("-f", "-"), ("--file", "-")])
def test_stdin(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]) -> None:
    pipe_in(monkeypatch, f"\ufeff{REFUSED}\n".encode())
    assert run(capsys, *words)[0] == 3


def test_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    script = tmp_path / "start.sh"
    script.write_text(f"#!/bin/sh\nset -e\n{GOOD} \\\n  --port 9000\n")
    assert run(capsys, "-f", str(script))[0] == 0


@pytest.mark.parametrize(
    ("version", "code"), [("0.16", 0), ("0.16.0", 0), ("0.32", 3), ("0.33.0", 3), ("0.99", 2), ("new", 2), ("", 2)]
)
def test_releases(capsys: pytest.CaptureFixture[str], version: str, code: int) -> None:
    assert run(capsys, "--engine-version", version, REFUSED)[0] == code


@pytest.mark.parametrize("words", [("--json", "--engine-version"), ("--json", "vllm", "plan", "--engine-version")])
def test_an_option_without_a_value_has_the_document_of_this_command(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    document = as_json(capsys, *words)
    assert document["verdict"] == "BadInput"
    assert [error["field"] for error in document["errors"]] == ["--engine-version"]


def test_a_release_that_was_not_read_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, err = run(capsys, "--engine-version", "0.99", GOOD)
    assert out == ""
    assert err == '--engine-version: "0.99" is not a release whose flags have been read; set one from 0.4 to 0.33\n'
    document = as_json(capsys, "docker run vllm/vllm-openai:v0.98.1 --model m")
    assert document["engineVersion"] == "0.33"
    assert "0.98" in document["engineVersionFrom"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "command: is empty"),
        (("",), "command: is empty"),
        (("ls -l",), "starts no vLLM"),
        (('vllm serve "m',), 'line 1 opens a double quote (") that nothing closes'),
        (("-f", "/does/not/exist"), "/does/not/exist: cannot be read (No such file or directory)"),
        (("-f", "/"), "cannot be read (Is a directory)"),
        (("-f", "a\0b"), "cannot be read"),
        (("-f", "x", "vllm serve m"), "--file: and a command were both given"),
        (("--engine-version",), "has no value"),
        (('services:\n  a: {image: "b',), "looks like YAML, which cannot be read in line 2"),
        (("args: [{{ .Values.args }}]",), "render a chart before you paste it"),
        (("args: {}\n? [a]: b",), "looks like YAML"),
        (("args: " + "[" * 5000,), "looks like YAML"),
        (("args: [2026-02-30]",), "looks like YAML"),
        (("args: ['--port', 8000]",), 'put it in quotes: "8000"'),
        (("services: {a: {image: nginx}}",), "no container that starts vLLM (nginx)"),
    ],
)
def test_bad_input(capsys: pytest.CaptureFixture[str], words: tuple[str, ...], says: str) -> None:
    code, out, err = run(capsys, *words)
    assert (code, out) == (2, "")
    assert says in err


@pytest.mark.parametrize(("content", "says"), [(b"vllm serve \xff", "byte 11"), (b"x" * (MAX_BYTES + 1), "larger")])
def test_stdin_that_is_no_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, content: bytes, says: str
) -> None:
    pipe_in(monkeypatch, content)
    code, _, err = run(capsys, "-")
    assert code == 2
    assert says in err


def test_stdin_that_is_closed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert run(capsys, "-")[0] == 4
    monkeypatch.setattr(sys, "stdin", None)
    assert as_json(capsys, "-")["verdict"] == "Unknown"


# --- the documented schema -----------------------------------------------------------------------------------------


def keys_in(value: Any, path: str = "") -> set[str]:
    if isinstance(value, dict):
        return {key for name, inner in value.items() for key in keys_in(inner, f"{path}.{name}" if path else name)}
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return {key for inner in value for key in keys_in(inner, f"{path}[]")}
    return {path}


def test_every_key_and_kind_is_documented(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "flags-json.md").read_text()
    named = set(re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE))
    good, bad = as_json(capsys, REFUSED), as_json(capsys, "ls")
    found = (keys_in(good) | keys_in(bad)) - {"items", "errors"}
    assert found == named
    words = set(re.findall(r"^\| (\w+) \|", page, re.MULTILINE)) - {"verdict", "kind", "key"}
    assert words == {kind.value for kind in Kind} | {*VERDICTS.values(), "BadInput", "Unknown"}


def test_both_documents_have_the_same_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(as_json(capsys, GOOD)) == list(as_json(capsys, "ls"))


def test_every_severity_has_a_code_and_a_word() -> None:
    assert set(CODES) == set(VERDICTS) == set(Severity)
