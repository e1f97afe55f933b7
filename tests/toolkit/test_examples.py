"""Each manifest of examples/ plans as its header says, and the operator makes children of each that fits."""

import json
import re
from pathlib import Path

import pytest

from hisparse_toolkit.cli import main

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))


@pytest.fixture(autouse=True)
def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HISPARSE_NO_HUB", "1")


def test_there_are_examples() -> None:
    assert {path.name for path in EXAMPLES} >= {"glm-5.3-1m.yaml", "does-not-fit.yaml", "private-weights.yaml"}


@pytest.mark.parametrize("path", [pytest.param(path, id=path.stem) for path in EXAMPLES])
def test_an_example_plans_as_its_header_says(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    header = re.search(r"^# plan: (\w+)$", path.read_text(), re.MULTILINE)
    assert header is not None, "the header says `# plan: <verdict>`"
    main(["plan", "-f", str(path), "--json", "--host-memory", "2Ti"])
    assert json.loads(capsys.readouterr().out)["verdict"] == header[1]


@pytest.mark.parametrize("path", [pytest.param(path, id=path.stem) for path in EXAMPLES])
def test_the_command_of_an_example_is_one_that_it_names(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = re.search(r"^#   hisparse (.*)$", path.read_text(), re.MULTILINE)
    assert line is not None, "the header holds a command to try"
    words = [str(path) if word == f"examples/{path.name}" else word for word in line[1].split()]
    assert str(path) in words
    assert main(words) in (0, 1, 3)
    assert capsys.readouterr().err == ""


def test_what_does_not_fit_names_two_ways_out(capsys: pytest.CaptureFixture[str]) -> None:
    path = next(path for path in EXAMPLES if path.name == "does-not-fit.yaml")
    main(["plan", "-f", str(path), "--json"])
    short = json.loads(capsys.readouterr().out)["shortfall"]
    assert short["reason"] == "HBMInsufficient"
    # one request, and the block that the engine holds back
    assert short["needed"] == 80 * 1024**3 + 80 * 16 * 1024
    assert "context.maxTokens" in short["limit"]["remedy"]
    assert "resources.gpus to 4" in short["limit"]["remedy"]
