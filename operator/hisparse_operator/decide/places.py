"""Where a pod of a revision may be: its frozen template against every node, by the scheduler's own rules.

What is free is left out: that is the scheduler's word. So this says where a new pod cannot come, never that it can.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from hisparse_operator.decide import admission
from hisparse_operator.decide.capacity import amount, millis
from hisparse_operator.decide.identity import name_of
from hisparse_operator.world import Object

_CPU: Final = "cpu"
CORDONED: Final = "is cordoned"


@dataclass(frozen=True)
class Places:
    """Nodes as a pod of this template sees them, judged when somebody asks. nodes None: nobody may look."""

    nodes: Sequence[Object] | None
    template: Mapping[str, Any]

    def may_hold(self, node: str) -> bool:
        """Whether nothing that we can see keeps the pod from this node."""
        return self.nodes is None or self._fault(node) is None

    def why_not(self, node: str) -> str:
        """What keeps the pod from this node, to be read after its name; empty where nothing does."""
        return (self._fault(node) or "") if self.nodes is not None else ""

    def covers(self, other: Places) -> bool:
        """Whether the pod may be wherever a pod of the other template may."""
        return self.nodes is None or other.candidates <= self.candidates

    @cached_property
    def candidates(self) -> frozenset[str]:
        """All nodes that may hold the pod, as far as we can see."""
        return frozenset(name for name in self._by_name if self.may_hold(name))

    @cached_property
    def _by_name(self) -> Mapping[str, Object]:
        return {name_of(node): node for node in self.nodes or ()}

    def _fault(self, name: str) -> str | None:
        node = self._by_name.get(name)
        return "does not exist any more" if node is None else _fault(node, self.template.get("spec") or {})


def _fault(node: Object, spec: Mapping[str, Any]) -> str | None:
    if admission.is_cordoned(node):
        return CORDONED
    if (taint := admission.untolerated(node, spec.get("tolerations") or ())) is not None:
        return f"has the taint {admission.told(taint)}"
    if not admission.matches_selector(node, spec.get("nodeSelector") or {}):
        return "does not match placement.nodeSelector"
    if not admission.matches_affinity(node, spec.get("affinity") or {}):
        return "has another GPU product than the plan is for, or does not match placement.affinity"
    for resource, wanted in _requests(spec).items():
        read = millis if resource == _CPU else amount
        offered = str(((node.get("status") or {}).get("allocatable") or {}).get(resource, "0"))
        if read(offered) < read(wanted):
            return f"has {offered} {resource} and a pod takes {wanted}"
    return None


def _requests(spec: Mapping[str, Any]) -> Mapping[str, str]:
    """What the engine asks for; sidecars, which ask for little, are left to the scheduler."""
    container: Mapping[str, Any] = next(iter(spec.get("containers") or ()), {})
    asked = (container.get("resources") or {}).get("requests") or {}
    return {str(resource): str(wanted) for resource, wanted in asked.items()}
