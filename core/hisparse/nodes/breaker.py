"""The breaker of a pool as it stands in the pool's Lease: agents open it there, people close it, the operator tells.

One Lease per HiSparseNodePolicy, in the namespace of the node agents, named LEASE_PREFIX and the policy's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from pydantic import TypeAdapter, ValidationError

from hisparse.spec import GROUP

ANNOTATION: Final = f"{GROUP}/breaker"
"""A person closes the breaker by removing this one."""
LEASE_PREFIX: Final = "hisparse-pool-"


@dataclass(frozen=True)
class Opened:
    """Why the breaker is open. said is what a person wrote there in place of our words; it is kept."""

    since: datetime | None = None
    nodes: int = 0
    pool: int = 0
    said: str = ""

    @property
    def text(self) -> str:
        """As it stands in the annotation."""
        return self.said or _OPENED.dump_json(self).decode()


_OPENED: Final = TypeAdapter(Opened)


def closing_command(namespace: str, policy: str) -> str:
    """The command with which a person closes the breaker of a policy's pool."""
    return f"kubectl annotate lease -n {namespace} {LEASE_PREFIX}{policy} {ANNOTATION}-"


def opened(annotations: Mapping[str, str]) -> Opened | None:
    """What the annotations of a Lease say; None while the breaker is closed.

    A breaker that cannot be read is open: whatever a person or a newer version wrote there, it says stop.
    """
    text = annotations.get(ANNOTATION)
    if text is None:
        return None
    try:
        return _OPENED.validate_json(text)
    except ValidationError:
        return Opened(said=text)
