"""`hisparse models`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hisparse import catalogue
from hisparse_toolkit.cli import main


def test_lists_every_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == [one.repo for one in catalogue.ENTRIES]


def test_lists_those_with_a_word_in_their_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "GPT-oss"]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]]
    assert names == ["openai/gpt-oss-20b", "openai/gpt-oss-120b"]


def test_a_word_that_no_name_has(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "nothing-like-it"]) == 2
    assert "nothing-like-it" in capsys.readouterr().err


def test_json_has_the_documented_fields(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "glm-5.3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "hisparse.dev/models/v1"
    page = (Path(__file__).parents[2] / "docs" / "reference" / "models-json.md").read_text()
    assert all(f"models[].{key}" in page for key in found["models"][0])
