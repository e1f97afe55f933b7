"""Which objects are ours: names, labels, owner references; and how to read any object's metadata."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from hisparse.reserved import COMPONENT_LABEL, ENGINE_COMPONENT
from hisparse_operator.kinds import FIELD_MANAGER, GROUP, INFERENCE, LABEL
from hisparse_operator.world import Object, Ref, World

REVISION_LABEL: Final = f"{GROUP}/revision"
HASH_LENGTH: Final = 10
_HASH: Final = re.compile(f"[0-9a-f]{{{HASH_LENGTH}}}")
ROOM_ANNOTATION: Final = f"{GROUP}/makes-room-for"
"""On a pod that a rollout takes: the revision that gets its place."""
MANAGED_BY: Final = "hisparse-operator"


@dataclass(frozen=True)
class Parent:
    """The inference as its children see it."""

    name: str
    namespace: str
    uid: str

    def child(self, revision: str | None = None) -> str:
        """Deterministic, so that a lost object is put back under the name that others know."""
        return f"{self.name}-{revision}" if revision else self.name

    def revision_in(self, name: str) -> str:
        """The revision that a child's name speaks of, empty where it speaks of none."""
        head, _, revision = name.rpartition("-")
        return revision if head == self.name and _HASH.fullmatch(revision) else ""

    def owner_references(self) -> list[dict[str, Any]]:
        """One controller reference; deleting the inference waits for no child."""
        return [
            {
                "apiVersion": INFERENCE.api_version,
                "kind": INFERENCE.kind,
                "name": self.name,
                "uid": self.uid,
                "controller": True,
                "blockOwnerDeletion": False,
            }
        ]

    def labels(self, revision: str | None = None, version: str | None = None) -> dict[str, str]:
        """Labels of a child. version is the engine's: the operator's own would change every child at an upgrade."""
        labels = {
            "app.kubernetes.io/name": "hisparse",
            "app.kubernetes.io/instance": self.name,
            COMPONENT_LABEL: ENGINE_COMPONENT,
            "app.kubernetes.io/managed-by": MANAGED_BY,
            LABEL: self.name,
        }
        if version:
            labels["app.kubernetes.io/version"] = version
        if revision:
            labels[REVISION_LABEL] = revision
        return labels

    def selector(self, revision: str | None = None) -> dict[str, str]:
        """What picks our engine pods, of one revision or of all; a verification Job's pods are not engines."""
        selector = {LABEL: self.name, COMPONENT_LABEL: ENGINE_COMPONENT}
        return selector | {REVISION_LABEL: revision} if revision else selector


@dataclass(frozen=True)
class Family:
    """The world sorted by whose child it is.

    An object with another controller is `foreign`: a namesake that was deleted and made again leaves such objects until
    they are collected. One without a controller is ours to adopt (left by a deletion that orphaned it, or restored from
    a backup) if it has the name that we would give it and we have written it, or know its revision; our labels alone
    are on every copy that somebody makes of a child.
    """

    ours: World
    foreign: Mapping[tuple[str, str], str]
    """Kind and name of what others control, and who does."""

    def holder(self, document: Object) -> str | None:
        """Who else holds the name that this document wants."""
        return self.foreign.get((str(document["kind"]), name_of(document)))


def parent_of(inference: Object) -> Parent:
    """The inference's identity."""
    metadata = inference["metadata"]
    return Parent(metadata["name"], metadata.get("namespace", "default"), metadata.get("uid", ""))


def family(world: World, parent: Parent) -> Family:
    """Sort the children. Pods follow the ReplicaSet that controls them."""
    foreign: dict[tuple[str, str], str] = {}
    records = (one for one in world.controller_revisions if controller_uid(one) in (None, parent.uid))
    revisions = frozenset(revision_of(one) or parent.revision_in(name_of(one)) for one in records) - {""}

    def mine(kind: str, objects: Iterable[Object]) -> tuple[Object, ...]:
        for one in objects:
            controller = _controller(one)
            if controller is not None and controller["uid"] != parent.uid:
                foreign[kind, name_of(one)] = f"{controller['kind']} {controller['name']}"
        return tuple(one for one in objects if _is_ours(one, parent, revisions))

    strange = {uid_of(rs) for rs in world.replica_sets if not _is_ours(rs, parent, revisions)}
    ours = World(
        inference=world.inference,
        controller_revisions=mine("ControllerRevision", world.controller_revisions),
        replica_sets=mine("ReplicaSet", world.replica_sets),
        pods=tuple(pod for pod in world.pods if controller_uid(pod) not in strange),
        config_maps=mine("ConfigMap", world.config_maps),
        services=mine("Service", world.services),
        service_accounts=mine("ServiceAccount", world.service_accounts),
        network_policies=mine("NetworkPolicy", world.network_policies),
        disruption_budgets=mine("PodDisruptionBudget", world.disruption_budgets),
        endpoint_slices=world.endpoint_slices,
        nodes=world.nodes,
        hub=world.hub,
        previous_logs=world.previous_logs,
    )
    return Family(ours, foreign)


def _is_ours(child: Object, parent: Parent, revisions: Collection[str]) -> bool:
    """revisions: those of which we have a record."""
    owners = child["metadata"].get("ownerReferences") or ()
    if (controller := controller_uid(child)) is not None or any(one.get("uid") == parent.uid for one in owners):
        return controller in (None, parent.uid)
    labelled = revision_of(child)
    revision = labelled or parent.revision_in(name_of(child))
    if name_of(child) != parent.child(revision or None):
        return False
    return is_written(child) or not revision or labelled in revisions


def is_written(child: Object) -> bool:
    """Whether the operator has written the object: a copy that somebody makes does not say so."""
    return any(one.get("manager") == FIELD_MANAGER for one in child["metadata"].get("managedFields") or ())


def name_of(obj: Object) -> str:
    """metadata.name."""
    return str(obj["metadata"]["name"])


def uid_of(obj: Object) -> str | None:
    """metadata.uid, None for a document that was never written."""
    uid = obj["metadata"].get("uid")
    return str(uid) if uid else None


def labels_of(obj: Object) -> Mapping[str, str]:
    """metadata.labels, empty where there are none."""
    labels: Mapping[str, str] = obj["metadata"].get("labels") or {}
    return labels


def revision_of(child: Object) -> str:
    """The revision of a child: a ReplicaSet's selector says it, which nobody can change; a label goes with a typo."""
    selector = (child.get("spec") or {}).get("selector")
    selected = selector.get("matchLabels") if isinstance(selector, Mapping) else None
    return str((selected or {}).get(REVISION_LABEL) or labels_of(child).get(REVISION_LABEL, ""))


def controller_uid(obj: Object) -> str | None:
    """The uid of the owner that controls the object."""
    controller = _controller(obj)
    return None if controller is None else str(controller["uid"])


def controller_name(obj: Object) -> str | None:
    """The name of the owner that controls the object."""
    controller = _controller(obj)
    return None if controller is None else str(controller["name"])


def _controller(obj: Object) -> Mapping[str, Any] | None:
    owners = obj["metadata"].get("ownerReferences") or ()
    return next((owner for owner in owners if owner.get("controller")), None)


def is_going(obj: Object) -> bool:
    """Whether somebody has deleted the object and it is on its way out."""
    return obj["metadata"].get("deletionTimestamp") is not None


def named(objects: Iterable[Object], name: str) -> Object | None:
    """The object of that name."""
    return next((obj for obj in objects if name_of(obj) == name), None)


def ref(obj: Object, api_version: str, kind: str) -> Ref:
    """A delete of exactly this object. Items of a list come without their kind, hence the arguments."""
    return Ref(api_version, kind, name_of(obj), uid_of(obj), obj["metadata"].get("resourceVersion"))
