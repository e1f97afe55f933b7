import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from hisparse_operator import logs


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level
    structlog.reset_defaults()


def test_a_bug_is_one_line_of_json_without_the_values_of_variables(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("json", "info")
    try:
        value = "of a variable"
        assert not value
    except AssertionError:
        structlog.get_logger("hisparse_operator.worker").exception("bug", inference="team/glm")
    structlog.get_logger("x").debug("not at this level")
    (line,) = capsys.readouterr().err.splitlines()
    entry = json.loads(line)
    assert (entry["event"], entry["inference"], entry["level"]) == ("bug", "team/glm", "error")
    assert entry["exception"][0]["exc_type"] == "AssertionError"
    assert '"locals"' not in line


def test_libraries_take_the_same_way_but_only_from_warning_on(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("json", "info")
    logging.getLogger("kopf.objects").info("every event")
    logging.getLogger("kopf.objects").warning("something %s", "odd")
    (line,) = capsys.readouterr().err.splitlines()
    assert json.loads(line)["event"] == "something odd"


def test_console_lines_are_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("console", "debug")
    structlog.get_logger("x").info("started", port=8080)
    assert "started" in (line := capsys.readouterr().err)
    assert "port=8080" in line
