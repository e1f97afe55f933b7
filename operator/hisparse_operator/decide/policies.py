"""Status of every HiSparseNodePolicy: whether it can be used, where it is in force, whether its breaker is closed.

What is wrong with a policy, and which one wins on a node, is said by hisparse.nodes, where the node agents ask as well.
This is about all nodes with the labels, whether or not an agent runs there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from hisparse.nodes import breaker
from hisparse.nodes.in_force import Policy, in_force, policy_of
from hisparse_operator.decide.conditions import Condition, Status, documents, timestamp
from hisparse_operator.decide.identity import name_of
from hisparse_operator.decide.reasons import ConditionType, Reason
from hisparse_operator.world import Object, Sight

_NAMED: Final = 3


@dataclass(frozen=True)
class Fleet:
    """What the statuses are made of. leases are those of the agents' namespace, empty unless lease_sight is SEEN."""

    policies: Sequence[Object]
    nodes: Sequence[Object]
    leases: Sequence[Object]
    lease_sight: Sight
    agents_namespace: str


@dataclass(frozen=True)
class _Ground:
    """The nodes that a policy selects, by the policy that they are under. The own name is among the keys."""

    under: Mapping[str, tuple[str, ...]]

    @property
    def selected(self) -> int:
        return sum(len(nodes) for nodes in self.under.values())

    def held_by(self, policy: str) -> int:
        return len(self.under.get(policy, ()))


def statuses(fleet: Fleet, now: datetime) -> tuple[tuple[Object, Object], ...]:
    """Each policy with the status that it should have."""
    policies = {name_of(one): policy_of(one) for one in fleet.policies}
    grounds = _grounds(tuple(policies.values()), fleet.nodes)
    leases = {name_of(one): one for one in fleet.leases}
    return tuple(
        (document, _status(document, policies, grounds[name_of(document)], leases, fleet, now))
        for document in fleet.policies
    )


def _status(
    document: Object,
    policies: Mapping[str, Policy],
    ground: _Ground,
    leases: Mapping[str, Object],
    fleet: Fleet,
    now: datetime,
) -> Object:
    policy = policies[name_of(document)]
    conditions = (
        _accepted(policy),
        _in_force(policy, ground, policies),
        _breaker(policy, leases.get(f"{breaker.LEASE_PREFIX}{policy.name}"), fleet),
    )
    generation = int(document["metadata"].get("generation", 0))
    old = (document.get("status") or {}).get("conditions") or ()
    return {
        "observedGeneration": generation,
        "selected": ground.held_by(policy.name) if policy.spec is not None else 0,
        "conditions": documents(conditions, old=old, generation=generation, now=now),
    }


def _grounds(policies: Sequence[Policy], nodes: Iterable[Object]) -> Mapping[str, _Ground]:
    under: dict[str, dict[str, list[str]]] = {policy.name: defaultdict(list) for policy in policies}
    for node in nodes:
        labels = node["metadata"].get("labels") or {}
        mine = [policy for policy in policies if policy.selects(labels)]
        winner = in_force(mine, labels)
        for policy in mine:
            # one that is being deleted loses to nobody, and holds nothing
            under[policy.name]["" if winner is None else winner.name].append(name_of(node))
    return {
        name: _Ground({winner: tuple(sorted(found)) for winner, found in ground.items()})
        for name, ground in under.items()
    }


def _accepted(policy: Policy) -> Condition:
    kind = ConditionType.ACCEPTED
    if policy.spec is not None:
        return Condition(kind, Status.TRUE, Reason.VALID, "it asks for nothing that this release cannot do")
    return Condition(
        kind,
        Status.FALSE,
        Reason.INVALID_SPEC,
        f"{policy.fault}; until this is mended nothing of the policy is used",
    )


def _in_force(policy: Policy, ground: _Ground, policies: Mapping[str, Policy]) -> Condition:
    kind = ConditionType.IN_FORCE
    if policy.leaving:
        return Condition(kind, Status.FALSE, Reason.BEING_DELETED, "it is being deleted: what it allowed is put back")
    if ground.selected == 0:
        labels = ", ".join(f"{name}={value}" for name, value in sorted(policy.selector.items()))
        told = f"no node has the labels {labels} of spec.nodeSelector" if labels else "there is no node"
        return Condition(kind, Status.FALSE, Reason.NO_NODES_SELECTED, told)
    held = ground.held_by(policy.name)
    others = _others(policy, ground, policies)
    if policy.spec is None:
        told = (
            f"it cannot be used (see Accepted); nothing is done on the {_nodes(held)} that it holds, by a younger "
            "policy neither"
        )
        return Condition(kind, Status.FALSE, Reason.NOT_ACCEPTED, f"{told}; {others}" if others else told)
    if held == 0:
        return Condition(
            kind,
            Status.FALSE,
            Reason.OVERLAPPED,
            f"on none of the {_nodes(ground.selected)} that it selects: {others}; narrow one spec.nodeSelector, or "
            "delete one policy",
        )
    mode = ", as a dry run: it says what would be done, and does nothing" if policy.spec.dry_run else ""
    if others:
        told = f"on {held} of the {_nodes(ground.selected)} that it selects{mode}; {others}"
        return Condition(kind, Status.TRUE, Reason.PARTLY_OVERLAPPED, told)
    every = "the only node" if held == 1 else f"all {held} nodes"
    return Condition(kind, Status.TRUE, Reason.IN_FORCE, f"on {every} that it selects{mode}")


def _others(policy: Policy, ground: _Ground, policies: Mapping[str, Policy]) -> str:
    """Which older policies win where, the oldest first."""
    winners = [policies[name] for name in ground.under if name not in ("", policy.name)]
    parts = []
    for winner in sorted(winners, key=lambda one: one.age):
        nodes = ground.under[winner.name]
        unusable = "" if winner.spec is not None else " (which cannot be used, so that nothing is done there)"
        parts.append(f"the older policy {winner.name}{unusable} wins on {_nodes(len(nodes))} ({_named(nodes)})")
    more = f", and {len(parts) - _NAMED} more" if len(parts) > _NAMED else ""
    return ", ".join(parts[:_NAMED]) + more


def _named(nodes: Sequence[str]) -> str:
    return ", ".join(nodes[:_NAMED]) + (f" and {len(nodes) - _NAMED} more" if len(nodes) > _NAMED else "")


def _nodes(count: int) -> str:
    return f"{count} {'node' if count == 1 else 'nodes'}"


def _breaker(policy: Policy, lease: Object | None, fleet: Fleet) -> Condition:
    kind = ConditionType.BREAKER_CLOSED
    if fleet.lease_sight is not Sight.SEEN:
        return Condition(
            kind,
            Status.UNKNOWN,
            Reason.POOLS_HIDDEN,
            f"the operator may not read the Leases of the namespace {fleet.agents_namespace}; bind the ClusterRole "
            "hisparse-operator-pools there, by a RoleBinding",
        )
    opened = None if lease is None else breaker.opened(lease["metadata"].get("annotations") or {})
    if opened is None:
        return Condition(kind, Status.TRUE, Reason.BREAKER_CLOSED, "it is closed, and stops nothing")
    if opened.said or opened.since is None:
        why = "it is open"
    else:
        why = (
            f"it opened at {timestamp(opened.since)}, when {opened.nodes} of {_nodes(opened.pool)} had a critical "
            "finding"
        )
    return Condition(
        kind,
        Status.FALSE,
        Reason.BREAKER_OPEN,
        f"{why}: nothing new begins until a person closes it with kubectl -n {fleet.agents_namespace} annotate lease "
        f"{breaker.LEASE_PREFIX}{policy.name} {breaker.ANNOTATION}-",
    )
