"""Readings as JSON documents: played in place of a machine, or recorded from one.

A folder holds one reading per *.json file, in the order of names, or *.jsonl files with one per line. The times of a
recording are kept apart as they were and moved to now, so that a recording of last year is not stale today.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from hisparse.errors import HiSparseError
from hisparse_agent.readers.wire import of_json, to_json
from hisparse_agent.readings import NodeReading

_LEAST_S: Final = 0.001


class ReplayError(HiSparseError):
    """A recording cannot be played; the message names the file and what is wrong in it."""


def load(folder: Path) -> Iterator[NodeReading]:
    """The readings of a folder, or of one file, in order. Raises ReplayError."""
    for path in _files(folder):
        lines = path.read_bytes().splitlines() if path.suffix == ".jsonl" else [path.read_bytes()]
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                yield of_json(NodeReading, json.loads(line))
            except (ValueError, RecursionError) as error:
                raise ReplayError(f"{path.name}, reading {number}: no reading of a recording: {error}") from error


def _files(folder: Path) -> list[Path]:
    if not folder.exists():
        raise ReplayError(f"{folder} is not there")
    if not folder.is_dir():
        return [folder]
    found = sorted((*folder.glob("*.json"), *folder.glob("*.jsonl")))
    if not found:
        raise ReplayError(f"{folder} has no *.json and no *.jsonl; record some with hisparse-agent --record {folder}")
    return found


class Player:
    """Plays recorded readings at the pace at which they were made, times speed. The last one stays for ever."""

    def __init__(
        self, folder: Path, *, interval_s: float = 15.0, speed: float = 1.0, node: str = "", repeat: bool = False
    ) -> None:
        if speed <= 0:
            raise ReplayError(f"speed {speed} is not above 0")
        self._folder, self._interval_s, self._speed, self._node, self._repeat = folder, interval_s, speed, node, repeat

    async def readings(self) -> AsyncIterator[NodeReading]:
        """Readings with the times of now. After the last one it comes again at every interval, as time goes on.

        With repeat the recording begins anew instead.
        """
        anchor: datetime | None = None
        last: NodeReading | None = None
        passed = 0.0
        while anchor is None or self._repeat:
            first: NodeReading | None = None
            for reading in load(self._folder):
                first = first or reading
                step = 0.0 if last is None else self._between(last, reading)
                await asyncio.sleep(max(0.0, step / self._speed))
                passed += step
                anchor = anchor or datetime.now(UTC)
                last = reading
                yield self._moved(reading, anchor, passed)
            if first is None:
                raise ReplayError(f"{self._folder} holds no reading")
        assert last is not None  # noqa: S101 - load gave at least one
        while True:
            await asyncio.sleep(max(_LEAST_S, self._interval_s / self._speed))
            passed += self._interval_s
            yield self._moved(last, anchor, passed)

    def _between(self, last: NodeReading, reading: NodeReading) -> float:
        between = reading.monotonic - last.monotonic
        return between if between > 0 else self._interval_s  # another run of the recorder, or the beginning again

    def _moved(self, reading: NodeReading, anchor: datetime, passed: float) -> NodeReading:
        """The reading as one that was made now: rates are over recorded time, whatever the speed."""
        return replace(
            reading,
            at=anchor + timedelta(seconds=passed),
            monotonic=passed,
            node=self._node or reading.node,
        )


class Recorder:
    """Writes each reading as a file of its own; the names sort as the readings came."""

    def __init__(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ReplayError(f"--record {folder}: {error.strerror}; give a folder that can be written") from error
        self._folder, self._number = folder, len(list(folder.glob("reading-*.json")))

    def write(self, reading: NodeReading) -> Path:
        """Write one. Raises OSError."""
        path = self._folder / f"reading-{self._number:06d}.json"
        path.write_bytes(text_of(reading))
        self._number += 1
        return path


def text_of(reading: NodeReading) -> bytes:
    """A reading as one JSON document."""
    return json.dumps(to_json(reading), indent=1).encode() + b"\n"
