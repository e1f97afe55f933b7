"""What whoever installs the agent decides. Read once at start."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from hisparse_agent.machine import Paces, Places
from hisparse_agent.publish.writer import Pace


@dataclass(frozen=True)
class Settings:
    """The parsed command line.

    node is the name of the own Node. interval_s is the time between two readings of GPUs. state is the folder that is
    shared with the actuator, None where there is none. With offline nothing is sent to an API server. replay is a
    recording that is played in place of the machine, record a folder that readings are written to.
    """

    node: str
    namespace: str = "hisparse"
    kubeconfig: Path | None = None
    context: str | None = None
    offline: bool = False
    host: str | None = None
    port: int = 9401
    interval_s: float = 15.0
    state: Path | None = None
    places: Places = field(default_factory=Places)
    paces: Paces = field(default_factory=Paces)
    writes: Pace = field(default_factory=Pace)
    replay: Path | None = None
    replay_speed: float = 1.0
    replay_repeat: bool = False
    record: Path | None = None
