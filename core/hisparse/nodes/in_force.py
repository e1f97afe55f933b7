"""Which HiSparseNodePolicy is in force on which node. The agent and the operator both ask here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from hisparse.errors import SpecError
from hisparse.nodes.acceptance import accepted
from hisparse.nodes.breaker import LEASE_PREFIX
from hisparse.nodes.policy import HiSparseNodePolicySpec

_LONGEST_NAME: Final = 253
"""Of an object of Kubernetes whose name is a DNS subdomain."""


@dataclass(frozen=True)
class Policy:
    """A policy as it stands. created is metav1.Time, which sorts as text.

    spec is None where it cannot be used, and faults say why. Such a policy still holds its nodes: nothing is done
    there, by a younger one neither, since whoever set these nodes apart did not mean that one. leaving: it is being
    deleted, which is the stop switch, whatever finalizer still holds it.
    """

    name: str
    created: str
    selector: Mapping[str, str] = field(default_factory=dict)
    spec: HiSparseNodePolicySpec | None = None
    faults: tuple[SpecError, ...] = ()
    leaving: bool = False

    @property
    def fault(self) -> str:
        """Why it cannot be used, in one line; empty where it can."""
        return "; ".join(str(one) for one in self.faults)

    @property
    def age(self) -> tuple[str, str]:
        """What policies are sorted by, the oldest first; by name where two are of one second."""
        return (self.created, self.name)

    def selects(self, labels: Mapping[str, str]) -> bool:
        """Whether it is for a node with these labels."""
        return all(labels.get(name) == value for name, value in self.selector.items())


def policy_of(document: Mapping[str, Any]) -> Policy:
    """A HiSparseNodePolicy object, judged. Never raises for what stands in its spec."""
    meta, raw = document["metadata"], document.get("spec") or {}
    spec: HiSparseNodePolicySpec | None = None
    faults: tuple[SpecError, ...] = ()
    try:
        spec = accepted(raw)
        _leave_room(meta["name"])
    except SpecError as error:
        spec, faults = None, error.errors
    selector = raw.get("nodeSelector") or {}
    # no API server lets another form through; were it so, it would be for every node, which does least
    readable = isinstance(selector, Mapping) and all(isinstance(value, str) for value in selector.values())
    return Policy(
        name=meta["name"],
        created=str(meta.get("creationTimestamp", "")),
        selector=dict(selector) if readable else {},
        spec=spec,
        faults=faults,
        leaving="deletionTimestamp" in meta,
    )


def _leave_room(name: str) -> None:
    """The budget of a policy lies in a Lease that is named after it; without one nobody could ever act."""
    most = _LONGEST_NAME - len(LEASE_PREFIX)
    if len(name) > most:
        raise SpecError("metadata.name", f"{len(name)} characters are too long; {most} are the most")


def in_force(policies: Iterable[Policy], labels: Mapping[str, str]) -> Policy | None:
    """The policy that a node with these labels is under: of those that select it the oldest."""
    mine = (one for one in policies if not one.leaving and one.selects(labels))
    return min(mine, key=lambda one: one.age, default=None)
