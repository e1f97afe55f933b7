"""What reconcile sees and what it asks for: the two values between observe, reconcile and apply."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

Object = Mapping[str, Any]
"""A Kubernetes object as the API server returned it. Never changed in place."""


@dataclass(frozen=True)
class HubFiles:
    """A public model's files from the hub; a field is None where the file could not be had, `problem` says why."""

    config: Object | None
    safetensors_index: Object | None
    problem: str | None = None


class Sight(Enum):
    """Whether we see a kind that need not be there, as the reports of the node agents."""

    SEEN = auto()
    ABSENT = auto()
    """The kind is not installed."""
    HIDDEN = auto()
    """We may not look (namespaced mode, or a right is missing)."""


@dataclass(frozen=True)
class World:
    """One inference and everything that bears on it, read once at the start of a pass.

    Children are those that carry our labels, whoever owns them. nodes is None where the operator may not look
    (namespaced mode). node_reports are HiSparseNode objects, empty unless report_sight is SEEN. previous_logs maps a
    pod to the last lines of its engine container's previous run, read only for a failure that the status does not name
    yet.
    """

    inference: Object
    controller_revisions: tuple[Object, ...] = ()
    replica_sets: tuple[Object, ...] = ()
    pods: tuple[Object, ...] = ()
    config_maps: tuple[Object, ...] = ()
    services: tuple[Object, ...] = ()
    service_accounts: tuple[Object, ...] = ()
    network_policies: tuple[Object, ...] = ()
    disruption_budgets: tuple[Object, ...] = ()
    endpoint_slices: tuple[Object, ...] = ()
    nodes: tuple[Object, ...] | None = ()
    node_reports: tuple[Object, ...] = ()
    report_sight: Sight = Sight.ABSENT
    hub: HubFiles | None = None
    previous_logs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Ref:
    """One object of the inference's namespace.

    uid guards a delete: never a namesake made since we looked. version does too: never an object that was changed
    since, as a ReplicaSet without pods that another leader has filled again.
    """

    api_version: str
    kind: str
    name: str
    uid: str | None = None
    version: str | None = None


@dataclass(frozen=True)
class Event:
    """An Event on the inference, posted after the write that it describes."""

    type: str
    reason: str
    message: str


@dataclass(frozen=True)
class Outcome:
    """What should be: apply sends only what differs, in this order, then status, then events.

    apply holds whole server-side-apply documents of ours (ownership given up by leaving a field out).
    A Pod in it is not a child but a mark (an annotation), with the uid of the pod that is meant.
    status is the whole wanted status; None leaves it alone. retry_seconds asks for another look.
    """

    apply: tuple[Object, ...] = ()
    delete: tuple[Ref, ...] = ()
    status: Object | None = None
    events: tuple[Event, ...] = ()
    retry_seconds: int | None = None
