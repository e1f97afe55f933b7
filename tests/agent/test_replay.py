"""Recordings: what is written comes back the same, and is played as if it were now."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from captures import NAMES, reading_of
from node_readings import POLL_S, healthy

from hisparse.nodes.catalogue import Pace
from hisparse_agent.history import History
from hisparse_agent.readers.wire import of_json
from hisparse_agent.readings import NodeReading
from hisparse_agent.replay import Player, Recorder, ReplayError, load, text_of


@pytest.mark.parametrize("name", NAMES)
def test_a_reading_comes_back_as_it_was(name: str) -> None:
    reading = reading_of(name)
    assert of_json(NodeReading, json.loads(text_of(reading))) == reading


def test_a_whole_node_comes_back_as_it_was() -> None:
    assert of_json(NodeReading, json.loads(text_of(healthy(3)))) == healthy(3)


def test_what_is_recorded_is_loaded_in_its_order(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    readings = [healthy(poll) for poll in range(12)]
    for reading in readings[:11]:
        recorder.write(reading)
    Recorder(tmp_path).write(readings[11])  # the next run goes on
    assert list(load(tmp_path)) == readings


def test_one_file_may_hold_many(tmp_path: Path) -> None:
    lines = [text_of(healthy(poll)).replace(b"\n", b"") for poll in range(3)]
    (tmp_path / "all.jsonl").write_bytes(b"\n".join([*lines, b""]))
    assert list(load(tmp_path)) == [healthy(poll) for poll in range(3)]
    assert list(load(tmp_path / "all.jsonl")) == [healthy(poll) for poll in range(3)]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        pytest.param({}, "has no", id="an empty folder"),
        pytest.param({"a.json": "{"}, "a.json, reading 1", id="no JSON"),
        pytest.param(
            {"a.jsonl": '\n{"at": "2026-11-29T12:00:00Z"}\n'}, "a.jsonl, reading 2: .*monotonic is missing", id="a part"
        ),
    ],
)
def test_what_cannot_be_played_is_named(tmp_path: Path, files: dict[str, str], message: str) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(ReplayError, match=message):
        list(load(tmp_path))


async def played(player: Player, count: int, monkeypatch: pytest.MonkeyPatch) -> tuple[list[float], list[NodeReading]]:
    """The first readings, and how long was waited before each."""
    waits: list[float] = []
    found: list[NodeReading] = []

    async def slept(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", slept)
    async for reading in player.readings():
        found.append(reading)
        if len(found) == count:
            break
    return waits, found


@pytest.mark.parametrize(("speed", "step"), [(1.0, POLL_S), (10.0, POLL_S / 10)])
async def test_it_is_played_at_its_own_pace_and_the_last_one_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, speed: float, step: float
) -> None:
    recorder = Recorder(tmp_path)
    for poll in range(3):
        recorder.write(healthy(poll))
    before = datetime.now(UTC)
    waits, readings = await played(Player(tmp_path, speed=speed, node="me"), 6, monkeypatch)
    assert waits == pytest.approx([0] + [step] * 5)
    assert {one.node for one in readings} == {"me"}
    assert [one.monotonic for one in readings] == [poll * POLL_S for poll in range(6)]
    assert [one.at - readings[0].at for one in readings] == [timedelta(seconds=poll * POLL_S) for poll in range(6)]
    assert before <= readings[0].at <= datetime.now(UTC)
    assert readings[5].nvml == healthy(2).nvml


async def test_it_may_begin_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(tmp_path)
    for poll in range(2):
        recorder.write(healthy(poll))
    _, readings = await played(Player(tmp_path, repeat=True), 5, monkeypatch)
    assert [one.nvml for one in readings] == [healthy(poll % 2).nvml for poll in range(5)]
    monotonic = [one.monotonic for one in readings]
    assert monotonic == sorted(set(monotonic)), "time goes on"


def test_a_speed_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ReplayError, match="not above 0"):
        Player(tmp_path, speed=0)


def test_history_keeps_a_quarter_of_an_hour_of_whole_readings() -> None:
    history = History()
    for poll in range(200):
        history.add(healthy(poll))
    kept = history.readings
    assert kept[-1] == healthy(199)
    assert kept[-1].monotonic - kept[0].monotonic == 900
    history.add(NodeReading(healthy(200).at, healthy(200).monotonic, fresh=frozenset({Pace.HOST})))
    assert history.readings == kept, "GPUs of that one are those of the reading before"
    history.add(healthy(0))
    assert history.readings == (healthy(0),), "another run began"


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ReplayError, match=r"--record .*file/x: Not a directory; give a folder"):
        Recorder(tmp_path / "file" / "x")
