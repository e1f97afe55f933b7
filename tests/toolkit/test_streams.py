"""Exit codes mean what they say whatever stdout, stdin, stderr and the encoding are like, in a process of its own."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from hisparse_toolkit import cli, plan_command
from hisparse_toolkit.cli import main
from hisparse_toolkit.streams import Outlet, wished_width, wrapped

HISPARSE = f"{sys.executable} -m hisparse_toolkit"
FITS = f"{HISPARSE} plan -m GLM-5.3-FP8 --context 1M --gpus 8 --host-memory 2Ti"
DOES_NOT_FIT = f"{FITS} --mode None"
PLAIN = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "HISPARSE_DEBUG")}
PLAIN["HISPARSE_NO_HUB"] = "1"


def bash(line: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a line in bash; its first command's exit code is echoed last where it is a pipe."""
    return subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, check=False, timeout=60, env=PLAIN | environment
    )


@pytest.mark.parametrize(
    ("command", "code", "reader"), [(FITS, 0, "true"), (f"{FITS} --json", 0, "head -1"), (DOES_NOT_FIT, 3, "true")]
)
def test_a_reader_that_has_seen_enough_changes_no_code(command: str, code: int, reader: str) -> None:
    # the pipe's reader is gone before we write
    done = bash(f"{{ sleep 0.1; {command}; echo $? >&2; }} | {reader}")
    assert done.stderr == f"{code}\n"


@pytest.mark.parametrize("command", [FITS, f"{HISPARSE} --version"])
@pytest.mark.parametrize(("where", "told"), [(">/dev/full", "No space left on device"), (">&-", "is closed")])
def test_an_answer_that_cannot_be_written_is_four(command: str, where: str, told: str) -> None:
    done = bash(f"{command} {where}")
    assert done.returncode == 4
    (line,) = done.stderr.splitlines()
    assert line.startswith("stdout: ")
    assert told in line


@pytest.mark.parametrize("where", ["2>/dev/full", "2>&-"])
def test_without_a_stderr_the_answer_is_the_same(where: str) -> None:
    done = bash(f"{HISPARSE} plan -m GLM-5.3 --gpus 8 --json {where}")
    assert done.returncode == 2
    assert json.loads(done.stdout)["verdict"] == "BadInput"


def test_a_closed_stdin_is_four() -> None:
    done = bash(f"{HISPARSE} plan -f - <&-")
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr == "stdin: is closed; name a file, or pass the manifest through a pipe\n"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_narrow_encoding_gets_marks_that_it_has(encoding: str) -> None:
    done = bash(f"{FITS} --plot", PYTHONIOENCODING=encoding)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.isascii()
    assert "* HiSparse" in done.stdout
    assert "\\u" not in done.stdout


def test_what_no_encoding_has_is_escaped() -> None:
    done = bash(f"{FITS} --gpus ٨ --json", PYTHONIOENCODING="ascii")
    assert done.returncode == 2
    assert "\\u0668" in done.stderr
    assert "٨" in json.loads(done.stdout)["errors"][0]["message"]


def test_names_that_are_no_text_are_told() -> None:
    done = bash(f"{HISPARSE} plan -m $'\\xff' --context 8K --gpus 1")
    assert done.returncode == 2
    assert "\\udcff" in done.stderr


def test_a_story_goes_on_without_its_reader() -> None:
    """The demo tells what it does while it cleans up: a reader that has gone must not keep it from that."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stream:
        outlet = Outlet(stream)
        for _ in range(3):
            print("x" * 100_000, file=outlet, flush=True)
        outlet.writelines(["a", "b"])
    assert isinstance(outlet.fault, BrokenPipeError)


# --- a bug ---------------------------------------------------------------------------------------------------------


def broken(*_: object, **__: object) -> None:
    raise ZeroDivisionError("a figure of nothing\nand more")


def test_a_bug_is_no_answer(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("HISPARSE_DEBUG", raising=False)
    monkeypatch.setattr(plan_command, "answer_to", broken)
    assert main(["plan", "-m", "GLM-5.3", "--context", "8K", "--gpus", "8"]) == 70
    (line,) = capsys.readouterr().err.splitlines()
    assert "this is a bug of hisparse (ZeroDivisionError: a figure of nothing)" in line
    assert "HISPARSE_DEBUG=1" in line


def test_and_shows_where_if_asked(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("HISPARSE_DEBUG", "1")
    monkeypatch.setattr(plan_command, "answer_to", broken)
    assert main(["plan", "-m", "GLM-5.3", "--context", "8K", "--gpus", "8"]) == 70
    assert "in broken" in capsys.readouterr().err


def test_streams_are_given_back(capsys: pytest.CaptureFixture[str]) -> None:
    before = sys.stdout, sys.stderr
    cli.main(["--version"])
    assert (sys.stdout, sys.stderr) == before
    assert capsys.readouterr().out.startswith("hisparse ")


# --- the width -----------------------------------------------------------------------------------------------------


def test_columns_is_honoured_without_a_terminal() -> None:
    wide, narrow = (bash(FITS, COLUMNS=columns).stdout for columns in ("140", "60"))
    text = [line for line in narrow.splitlines() if not line.startswith(("export", " ", "flags", "vllm"))]
    assert max(len(line) for line in text) <= 60
    assert len(wide.splitlines()) < len(bash(FITS).stdout.splitlines()) < len(narrow.splitlines())


@pytest.mark.parametrize(
    ("columns", "width"),
    [("", None), ("0", 40), ("1", 40), ("-5", None), ("many", None), ("٨", None), ("9" * 30, None), ("72", 72)],
)
def test_what_columns_may_ask_for(monkeypatch: pytest.MonkeyPatch, columns: str, width: int | None) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert wished_width() == width


def test_a_long_fault_is_wrapped_for_a_terminal(tmp_path: Path) -> None:
    config = {"architectures": ["NobodyForCausalLM"], "num_hidden_layers": 4}
    (tmp_path / "config.json").write_text(json.dumps(config))
    command = f"{HISPARSE} plan -m {tmp_path} --context 8K --gpus 1 --weights 1Gi"
    line = bash(command)
    assert len(line.stderr.splitlines()) == 1
    ours, terminal = pty.openpty()
    environment = PLAIN | {"COLUMNS": "60"}
    subprocess.run(["bash", "-c", command], stderr=terminal, check=False, timeout=60, env=environment)
    os.close(terminal)
    told = os.read(ours, 65_536).decode()
    os.close(ours)
    assert len(told.splitlines()) > 1
    assert all(len(one) <= 60 or " " not in one.strip() for one in told.splitlines())
    assert told.split() == line.stderr.split()


def test_wrapping_keeps_words_whole() -> None:
    assert wrapped("spec.model: a-very-long-name is far", 20) == "spec.model:\n  a-very-long-name\n  is far"
    assert wrapped(f"a {'b' * 30} c", 20) == f"a\n  {'b' * 30}\n  c"
