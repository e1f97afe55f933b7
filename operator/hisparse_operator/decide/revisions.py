"""Revisions: what the user meant, as a hash, and what was made of it, frozen.

The hash covers the user's intent and the template version. It never covers what the API server or a newer operator
fills in, so an upgrade restarts nobody. A ControllerRevision keeps the pod template and the plan exactly as they were
made; a revision that exists is never rendered again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

from hisparse.engine import TEMPLATE_VERSION
from hisparse.spec import HiSparseInferenceSpec
from hisparse_operator.decide import planstatus
from hisparse_operator.decide.identity import (
    HASH_LENGTH,
    REVISION_LABEL,
    Parent,
    labels_of,
    name_of,
    named,
    revision_of,
)
from hisparse_operator.kinds import GROUP
from hisparse_operator.world import Object, World

TEMPLATE_ANNOTATION: Final = f"{GROUP}/template-version"
PLAN_FILE: Final = "plan.json"
NOT_OF_THE_POD: Final[dict[str, Any]] = {
    "replicas": True,
    "paused": True,
    "plan_only": True,
    "disruption": True,
    "networking": {"network_policy"},
    # resolved first, so that naming the version that is in force restarts nobody
    "engine": {"template_version"},
}
"""Fields that shape no pod. Every other field that a user sets is part of the intent, also one that is new."""


@dataclass(frozen=True)
class Revision:
    """One frozen revision. number grows with use: the one that was wanted last has the highest.

    plan and mode are status.plan and status.mode as they were; version is the engine's.
    """

    hash: str
    number: int
    template_version: int
    template: Mapping[str, Any]
    launch: Mapping[str, Any]
    plan: Mapping[str, Any]
    mode: Mapping[str, Any]
    products: tuple[str, ...] = ()
    version: str = ""

    def data(self) -> dict[str, Any]:
        """What the ControllerRevision holds."""
        return {
            "templateVersion": self.template_version,
            "template": self.template,
            "launch": self.launch,
            "plan": self.plan,
            "mode": self.mode,
            "products": list(self.products),
            "engineVersion": self.version,
        }

    def document(self, parent: Parent) -> dict[str, Any]:
        """The ControllerRevision."""
        return {
            "apiVersion": "apps/v1",
            "kind": "ControllerRevision",
            "metadata": {
                "name": parent.child(self.hash),
                "namespace": parent.namespace,
                "labels": parent.labels(self.hash),
                "ownerReferences": parent.owner_references(),
            },
            "revision": self.number,
            "data": self.data(),
        }

    def plan_json(self) -> str:
        """The content of plan.json, byte for byte the same each time."""
        return self._plan_json

    @cached_property
    def _plan_json(self) -> str:
        return json.dumps(self.launch, indent=2, sort_keys=True) + "\n"


def intent_hash(spec: HiSparseInferenceSpec, template_version: int) -> str:
    """The name of what the user asked for. A value that is the default asks for nothing: the API server may have
    filled it in, and it did not when the field was new.
    """
    intent = spec.model_dump(
        mode="json", by_alias=True, exclude_none=True, exclude_defaults=True, exclude=NOT_OF_THE_POD
    )
    text = json.dumps(
        {"intent": _without_empty(intent), "templateVersion": template_version}, sort_keys=True, separators=(",", ":")
    )
    return hashlib.sha256(text.encode()).hexdigest()[:HASH_LENGTH]


def sticky_template_version(spec: HiSparseInferenceSpec, known: Sequence[Revision], world: World) -> int:
    """engine.templateVersion, else that of the revision that was wanted last, else today's.

    Its ReplicaSet says it where nothing else is left of the revision.
    """
    if spec.engine is not None and spec.engine.template_version is not None:
        return spec.engine.template_version
    last = (world.inference.get("status") or {}).get("updateRevision")
    if (held := by_hash(known, last)) is not None:
        return held.template_version
    left = sorted(world.replica_sets, key=lambda one: (revision_of(one) == last, one["spec"].get("replicas", 1)))
    if left and (revision_of(left[-1]) == last or not known):
        return _template_version(left[-1])
    return known[-1].template_version if known else TEMPLATE_VERSION


def as_it_was(made: Revision, world: World) -> Revision:
    """A revision that is made anew, with what its ReplicaSet and the status still tell of it. Its launch is today's."""
    left = next((one for one in world.replica_sets if revision_of(one) == made.hash), None)
    if left is None:
        return made
    status: Mapping[str, Any] = world.inference.get("status") or {}
    told = status if status.get("updateRevision") == made.hash else {}
    return replace(
        made,
        template=left["spec"]["template"],
        plan=planstatus.without_note(told.get("plan") or made.plan),
        mode=told.get("mode") or made.mode,
    )


def read(world: World) -> tuple[Revision, ...]:
    """All revisions that there are traces of, the one wanted last at the end."""
    stored = [revision for obj in world.controller_revisions if (revision := _stored(obj)) is not None]
    names = {revision.hash for revision in stored}
    lost = [
        revision
        for replica_set in world.replica_sets
        if revision_of(replica_set) not in names | {""} and (revision := _recovered(replica_set, world)) is not None
    ]
    return tuple(sorted(stored + lost, key=lambda revision: (revision.number, revision.hash)))


def by_hash(revisions: Iterable[Revision], wanted: str | None) -> Revision | None:
    """The revision of that hash."""
    return next((revision for revision in revisions if revision.hash == wanted), None)


def newest(revision: Revision, known: Sequence[Revision]) -> Revision:
    """The same revision with the highest number: it is the one wanted now."""
    others = [other.number for other in known if other.hash != revision.hash]
    highest = max(others, default=0)
    return revision if revision.number > highest else replace(revision, number=highest + 1)


def outdated(known: Sequence[Revision], keep: frozenset[str], limit: int) -> tuple[Revision, ...]:
    """Revisions beyond the history limit, oldest first. Those in `keep` (wanted, or with pods) do not count."""
    idle = [revision for revision in known if revision.hash not in keep]
    return tuple(idle[: max(0, len(idle) - limit)])


def _stored(obj: Object) -> Revision | None:
    """A ControllerRevision of ours. Anybody may make one with our labels: without our data it is not a revision."""
    data = obj.get("data")
    revision = labels_of(obj).get(REVISION_LABEL) or name_of(obj).rpartition("-")[2]
    if not isinstance(data, Mapping) or not _is_revision(data):
        return None
    return Revision(
        hash=revision,
        number=int(obj.get("revision", 0)),
        template_version=data["templateVersion"],
        template=data["template"],
        launch=data["launch"],
        plan=data.get("plan") or {},
        mode=data.get("mode") or {},
        products=tuple(data.get("products") or ()),
        version=str(data.get("engineVersion", "")),
    )


def _is_revision(data: Mapping[str, Any]) -> bool:
    """Whether this can have been written by us: everything that pods are made from is there."""
    template = data.get("template")
    spec = template.get("spec") if isinstance(template, Mapping) else None
    containers = spec.get("containers") if isinstance(spec, Mapping) else None
    blocks = (data.get(name, {}) for name in ("plan", "mode"))
    return (
        isinstance(containers, Sequence)
        and bool(containers)
        and all(isinstance(one, Mapping) for one in (*containers, *blocks))
        and isinstance(data.get("launch"), Mapping)
        and isinstance(data.get("templateVersion"), int)
        and isinstance(data.get("products", []), list)
    )


def _recovered(replica_set: Object, world: World) -> Revision | None:
    """A revision whose ControllerRevision is gone, read back from its ReplicaSet, its plan and the status."""
    config_map = named(world.config_maps, name_of(replica_set))
    try:
        launch = json.loads(((config_map or {}).get("data") or {}).get(PLAN_FILE, ""))
    except ValueError:
        return None
    digest = revision_of(replica_set)
    status: Mapping[str, Any] = world.inference.get("status") or {}
    shown = status if status.get("updateRevision") == digest else {}
    return Revision(
        hash=digest,
        number=0,
        template_version=_template_version(replica_set),
        template=replica_set["spec"]["template"],
        launch=launch,
        plan=planstatus.without_note(shown.get("plan") or {}),
        mode=shown.get("mode") or {},
        version=labels_of(replica_set).get("app.kubernetes.io/version", ""),
    )


def _template_version(replica_set: Object) -> int:
    said = str((replica_set["metadata"].get("annotations") or {}).get(TEMPLATE_ANNOTATION, ""))
    return int(said) if said.isdecimal() else TEMPLATE_VERSION  # a person may have changed it


def _without_empty(value: Any) -> Any:  # noqa: ANN401 - JSON
    """Without empty blocks: `engine: {}` asks for the same as no engine at all."""
    if isinstance(value, Mapping):
        return {key: kept for key, part in value.items() if (kept := _without_empty(part)) not in ({}, [])}
    return value
