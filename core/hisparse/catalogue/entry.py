"""What the catalogue knows of one model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Entry:
    """One model. aliases are other repos with the same geometry and weights.

    config is its config.json as far as a planner reads it, nested where the file nests it. Whole numbers that a file
    writes as 500000.0 are integers.
    weight_bytes is what the files hold, MTP layers and vision towers included, except that a tied embedding counts
    once and that weight_source says where the engine keeps more. source says where the config was read.
    """

    repo: str
    config: Mapping[str, Any]
    weight_bytes: int
    weight_source: str
    source: str
    aliases: tuple[str, ...] = field(default=())
