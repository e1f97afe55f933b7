"""The hub is asked once, for two files, within a deadline, and never where it is switched off."""

import json
import logging
import time
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub.errors import EntryNotFoundError

from hisparse_toolkit import hub
from hisparse_toolkit.problems import NotFoundOutError


@pytest.fixture(autouse=True)
def nothing_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in hub.OFF_VARIABLES:
        monkeypatch.delenv(name, raising=False)


def serve(monkeypatch: pytest.MonkeyPatch, folder: Path, files: dict[str, Any]) -> list[dict[str, Any]]:
    asked: list[dict[str, Any]] = []

    def download(repo: str, name: str, **rest: Any) -> str:
        asked.append({"repo": repo, "name": name, **rest})
        if name not in files:
            raise EntryNotFoundError(f"404: {name}")
        (folder / name).write_text(json.dumps(files[name]))
        return str(folder / name)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    return asked


def ask() -> hub.HubFiles:
    return hub.hub_files("some/model", "abc", off=hub.why_off(no_hub=False), near=None)


def test_two_files_without_a_token(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = serve(monkeypatch, tmp_path, {hub.CONFIG: {"a": 1}, hub.INDEX: {"metadata": {"total_size": 5}}})
    assert ask() == hub.HubFiles({"a": 1}, {"metadata": {"total_size": 5}})
    assert [one["name"] for one in asked] == [hub.CONFIG, hub.INDEX]
    assert {(one["repo"], one["revision"], one["token"]) for one in asked} == {("some/model", "abc", False)}


def test_a_model_of_one_file_has_no_index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    serve(monkeypatch, tmp_path, {hub.CONFIG: {"a": 1}})
    assert ask() == hub.HubFiles({"a": 1}, None)


@pytest.mark.parametrize(
    ("files", "told"),
    [
        pytest.param({}, "EntryNotFoundError", id="no config"),
        pytest.param({hub.CONFIG: [1]}, "not a JSON object", id="a config that is none"),
    ],
)
def test_no_answer_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, files: dict[str, Any], told: str
) -> None:
    serve(monkeypatch, tmp_path, files)
    with pytest.raises(NotFoundOutError, match=told) as caught:
        ask()
    assert "--model FILE" in str(caught.value)


def test_a_hub_that_never_answers_costs_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "DEADLINE_S", 0.1)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda *_, **__: time.sleep(1))
    with pytest.raises(NotFoundOutError, match=r"no answer within 0\.1 s.*--no-hub does not wait for the hub"):
        ask()


def test_what_the_library_would_print_is_one_reason(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def download(*_: Any, **__: Any) -> str:
        for attempt in (1, 2):
            logging.getLogger("huggingface_hub.utils._http").warning(
                "'[Errno -2] Name or service not known' thrown while requesting HEAD https://x/y [%s]", attempt
            )
        time.sleep(1)
        return ""

    monkeypatch.setattr(hub, "DEADLINE_S", 0.3)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    with pytest.raises(NotFoundOutError) as caught:
        ask()
    assert "no answer within 0.3 s, last [Errno -2] Name or service not known" in str(caught.value)
    assert "--model FILE" in str(caught.value)
    assert "--weights" in str(caught.value)
    assert "HF_ENDPOINT" in str(caught.value)
    assert "\n" not in str(caught.value)
    told = capfd.readouterr()
    assert (told.out, told.err) == ("", "")


@pytest.mark.parametrize(
    ("name", "value", "off"),
    [
        ("HISPARSE_NO_HUB", "1", "HISPARSE_NO_HUB=1"),
        ("HISPARSE_NO_HUB", "0", None),
        ("HF_HUB_OFFLINE", "1", "HF_HUB_OFFLINE=1"),
        ("HF_HUB_OFFLINE", "", None),
    ],
)
def test_what_switches_it_off(monkeypatch: pytest.MonkeyPatch, name: str, value: str, off: str | None) -> None:
    monkeypatch.setenv(name, value)
    assert hub.why_off(no_hub=False) == off
    assert hub.why_off(no_hub=True) == "--no-hub"


def test_switched_off_it_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HISPARSE_NO_HUB", "1")
    monkeypatch.setattr(hub, "_download", lambda *_: pytest.fail("asked"))
    with pytest.raises(NotFoundOutError, match="HISPARSE_NO_HUB=1"):
        ask()
