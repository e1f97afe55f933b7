"""The readings of the last minutes, for rates.

Only those with GPUs read anew: the others hold the counters of the reading before, which would make rates wrong.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from hisparse.nodes.catalogue import Pace
from hisparse_agent.readings import NodeReading

KEPT_S: Final = 900.0
"""The longest window that a check looks back (ten minutes), and room for polls that come late."""
MOST: Final = 400


class History:
    """Readings, oldest first. What is older than `kept_s` before the newest one goes, but never all of them."""

    def __init__(self, kept_s: float = KEPT_S) -> None:
        self._kept_s = kept_s
        self._readings: deque[NodeReading] = deque(maxlen=MOST)

    def add(self, reading: NodeReading) -> None:
        """Take the newest one. One that is older than the last (another run of a replay) begins anew."""
        if Pace.GPU not in reading.fresh:
            return
        if self._readings and reading.monotonic < self._readings[-1].monotonic:
            self._readings.clear()
        self._readings.append(reading)
        while reading.monotonic - self._readings[0].monotonic > self._kept_s:
            self._readings.popleft()

    @property
    def readings(self) -> tuple[NodeReading, ...]:
        """What is kept, oldest first."""
        return tuple(self._readings)
