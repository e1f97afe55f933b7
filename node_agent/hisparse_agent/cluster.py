"""What the agent knows of the cluster: its own Node, the pods on it, the policies. Reads only; followed by watches."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from hisparse.errors import UnitError
from hisparse.nodes.in_force import Policy, in_force, policy_of
from hisparse.nodes.policy import PLURAL as POLICIES
from hisparse.units import parse_quantity
from hisparse_agent.kube import GROUP_PATH, Api, Mirror
from hisparse_agent.pods import Declared, ExporterPod, declared
from hisparse_agent.readings import Absence, EnginePod, Missing, Number

GPU_RESOURCE: Final = "nvidia.com/gpu"
GPU_COUNT_LABEL: Final = "nvidia.com/gpu.count"
_UNSEEN: Final = Missing(Absence.UNKNOWN, "the API server has not answered yet")


@dataclass(frozen=True)
class NodeObject:
    """The own Node: what of it is looked at."""

    name: str
    uid: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    taints: tuple[Mapping[str, Any], ...]
    conditions: tuple[Mapping[str, Any], ...]
    unschedulable: bool
    gpus: Number


@dataclass(frozen=True)
class View:
    """What is known now. node None and pods Missing before the API server has answered once.

    policies None: not known, which is no reason to put anything back; an empty tuple is.
    """

    node: NodeObject | None = None
    pods: tuple[EnginePod, ...] | Missing = _UNSEEN
    rdma: bool = False
    exporters: tuple[ExporterPod, ...] = ()
    policies: tuple[Policy, ...] | None = None

    @property
    def policy(self) -> Policy | None:
        """The policy that the node is under; its spec is None where it cannot be used."""
        return None if self.node is None else in_force(self.policies or (), self.node.labels)


def node_object(node: Mapping[str, Any]) -> NodeObject:
    """The parts of a Node that are looked at."""
    meta, spec, status = node["metadata"], node.get("spec") or {}, node.get("status") or {}
    labels = meta.get("labels") or {}
    return NodeObject(
        name=meta["name"],
        uid=meta["uid"],
        labels=labels,
        annotations=meta.get("annotations") or {},
        taints=tuple(spec.get("taints") or ()),
        conditions=tuple(status.get("conditions") or ()),
        unschedulable=bool(spec.get("unschedulable")),
        gpus=_promised(labels, status.get("capacity") or {}),
    )


def _promised(labels: Mapping[str, str], capacity: Mapping[str, str]) -> Number:
    """GPUs that the node should have: feature discovery counts cards, the device plugin what it offers.

    The larger counts: a card that is lost leaves the one that is refreshed sooner.
    """
    counts = []
    for text in (labels.get(GPU_COUNT_LABEL), capacity.get(GPU_RESOURCE)):
        with contextlib.suppress(UnitError):
            counts += [parse_quantity(str(text))] if text is not None else []
    # where a card is shared, what the device plugin offers is no count of cards
    if labels.get(GPU_COUNT_LABEL, "").isdigit() and labels.get("nvidia.com/gpu.replicas", "1") not in ("", "1"):
        counts = counts[:1]
    if labels.get("nvidia.com/mig.strategy") == "single" and labels.get("nvidia.com/mig.config", "").startswith("all-"):
        counts = []
    if not counts:
        return Missing(
            Absence.UNSUPPORTED, f"neither {GPU_COUNT_LABEL} nor {GPU_RESOURCE} says how many there should be"
        )
    return max(counts)


class Cluster:
    """Follows what concerns this node."""

    def __init__(self, api: Api, node: str) -> None:
        self._node: Mirror[NodeObject] = Mirror(
            api, "/api/v1/nodes", {"fieldSelector": f"metadata.name={node}"}, node_object
        )
        self._pods: Mirror[Declared] = Mirror(api, "/api/v1/pods", {"fieldSelector": f"spec.nodeName={node}"}, declared)
        self._policies: Mirror[Policy] = Mirror(api, f"{GROUP_PATH}/{POLICIES}", {}, policy_of)

    @contextlib.asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        """Follow while the block runs."""
        tasks = [
            asyncio.create_task(mirror.run(), name=name)
            for name, mirror in (("node", self._node), ("pods", self._pods), ("policies", self._policies))
        ]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def answered(self, limit_s: float) -> bool:
        """Wait until everything has been asked for once and answered; False where that takes longer."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                for mirror in (self._node, self._pods, self._policies):
                    await mirror.answered.wait()
                return True
        return False

    @property
    def heard(self) -> float | None:
        """When the API server said something last, by the monotonic clock."""
        return max((one for one in (self._node.heard, self._pods.heard) if one is not None), default=None)

    def view(self) -> View:
        """What is known now; asks nobody."""
        pods = self._pods.objects
        engines = tuple(one.engine for one in pods if one.engine is not None)
        missing = Missing(Absence.UNKNOWN, self._pods.refused) if self._pods.refused else _UNSEEN
        return View(
            node=next(iter(self._node.objects), None),
            pods=tuple(sorted(engines, key=lambda one: one.subject)) if self._pods.synced else missing,
            rdma=any(one.rdma for one in pods),
            exporters=tuple(one.exporter for one in pods if one.exporter is not None),
            policies=self._policies.objects if self._policies.known else None,
        )
