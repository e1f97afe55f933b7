"""`hisparse models`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hisparse import catalogue
from hisparse_toolkit.cli import main


def test_lists_every_model(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["models"]) == 0
    lines = capsys.readouterr().out.splitlines()
    listed = [line.split()[0] for line in lines[1:]]
    known = [one.repo for one in catalogue.ENTRIES]
    assert listed[: len(known)] == known
    assert listed[len(known) + 1 :] == [other for one in catalogue.ENTRIES for other in one.aliases]


def test_lists_those_with_a_word_in_their_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "GPT-oss"]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]]
    assert names == ["openai/gpt-oss-20b", "openai/gpt-oss-120b"]


@pytest.mark.parametrize("columns", ["40", "60", "80", "100"])
def test_no_name_is_cut(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert main(["models"]) == 0
    words = capsys.readouterr().out.split()
    assert {one.repo for one in catalogue.ENTRIES if len(one.repo) <= int(columns)} <= set(words)
    assert {f"{one.config['max_position_embeddings']:,}" for one in catalogue.ENTRIES[:1]} <= set(words)


@pytest.mark.parametrize("name", ["DeepSeek-R1", "Llama-3.1-70B"])
def test_another_name_is_found_and_shown(capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert main(["models", name]) == 0
    words = capsys.readouterr().out.split()
    assert any(word.endswith(f"/{name}") for word in words)


def test_a_word_that_no_name_has_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "--json", "nothing-like-it"]) == 2
    found = json.loads(capsys.readouterr().out)
    assert (found["verdict"], found["exitCode"], found["models"]) == ("BadInput", 2, None)
    assert "nothing-like-it" in found["errors"][0]["message"]
    assert main(["models", "--json", "--bogus"]) == 2
    assert json.loads(capsys.readouterr().out)["errors"][0]["field"] == "--bogus"


def test_a_word_that_no_name_has(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "nothing-like-it"]) == 2
    assert "nothing-like-it" in capsys.readouterr().err


def test_json_has_the_documented_fields(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "glm-5.3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "hisparse.dev/models/v1"
    page = (Path(__file__).parents[2] / "docs" / "reference" / "models-json.md").read_text()
    assert all(f"models[].{key}" in page for key in found["models"][0])
