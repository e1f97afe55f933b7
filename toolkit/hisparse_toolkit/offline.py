"""The operator's own decision about one manifest, without a cluster: its pure reconcile over a made-up world."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from hisparse_operator.decide.capacity import GPU_RESOURCE, PRODUCT_LABEL
from hisparse_operator.decide.reconcile import reconcile
from hisparse_operator.kinds import CHILDREN
from hisparse_operator.settings import OperatorSettings
from hisparse_operator.world import HubFiles, Object, World

_NO_UID: Final = "00000000-0000-0000-0000-000000000000"
_LONG_AGO: Final = datetime(1970, 1, 1, tzinfo=UTC)
# the operator writes what others depend on first and the rest once it sees it
_MOST_PASSES: Final = 8


@dataclass(frozen=True)
class Rendered:
    """The children, in the order in which they are written, and the conditions that say why there are none.

    warnings are those of the plan.
    """

    children: tuple[Object, ...]
    conditions: tuple[Mapping[str, Any], ...]
    warnings: tuple[str, ...] = ()

    def condition(self, kind: str) -> Mapping[str, Any] | None:
        """The condition of one type, None where the operator would not set it."""
        return next((one for one in self.conditions if one["type"] == kind), None)


def node(product: str, gpus: int, memory_bytes: int) -> dict[str, Any]:
    """One node of the kind that is asked about; the disk never binds, since nobody said how large it is."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "any-node", "labels": {PRODUCT_LABEL: product}},
        "spec": {},
        "status": {
            "allocatable": {
                GPU_RESOURCE: str(gpus),
                "memory": str(memory_bytes),
                "cpu": "1024",
                "ephemeral-storage": "1Pi",
                "pods": "110",
            },
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def render(inference: Object, nodes: tuple[Object, ...], hub: HubFiles | None, settings: OperatorSettings) -> Rendered:
    """Let the operator decide until it has nothing more to write."""
    metadata = {"namespace": "default", "uid": _NO_UID, "generation": 1, **inference["metadata"]}
    world = World(inference={**inference, "metadata": metadata}, nodes=nodes, hub=hub)
    written: dict[tuple[str, str], Object] = {}
    status: Object = {}
    for _ in range(_MOST_PASSES):
        outcome = reconcile(world, _LONG_AGO, settings)
        status = outcome.status or status
        fresh = {_key(one): one for one in outcome.apply if written.get(_key(one)) != one}
        if not fresh:
            break
        written |= fresh
        world = _with(world, written, status)
    return Rendered(
        tuple(_ownerless(one) for one in written.values()),
        tuple(status.get("conditions", ())),
        tuple((status.get("plan") or {}).get("warnings") or ()),
    )


def _key(document: Object) -> tuple[str, str]:
    return str(document["kind"]), str(document["metadata"]["name"])


def _with(world: World, written: Mapping[tuple[str, str], Object], status: Object) -> World:
    seen = {
        kind.world: tuple(one for (name, _), one in written.items() if name == kind.kind)
        for kind in CHILDREN
        if kind.world is not None
    }
    inference = {**world.inference, "status": status}
    return dataclasses.replace(world, inference=inference, **seen)  # type: ignore[arg-type]


def _ownerless(document: Object) -> Object:
    """Without the owner: its uid is only known in a cluster, and a wrong one has the child deleted at once."""
    metadata = {key: value for key, value in document["metadata"].items() if key != "ownerReferences"}
    return {**document, "metadata": metadata}
