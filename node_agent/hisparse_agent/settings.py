"""What whoever installs the agent decides. Read once at start."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hisparse_agent.machine import Paces, Places
from hisparse_agent.publish.writer import Pace


@dataclass(frozen=True)
class Settings:
    """The parsed command line, where the defaults are.

    node is the name of the own Node. interval_s is the time between two readings of GPUs. state is the folder that is
    shared with the actuator, None where there is none. With offline nothing is sent to an API server. replay is a
    recording that is played in place of the machine, record a folder that readings are written to.
    """

    node: str
    namespace: str
    kubeconfig: Path | None
    context: str | None
    offline: bool
    host: str | None
    port: int
    interval_s: float
    state: Path | None
    places: Places
    paces: Paces
    writes: Pace
    replay: Path | None
    replay_speed: float
    replay_repeat: bool
    record: Path | None
