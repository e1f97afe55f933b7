"""The rights that the operator's requests need, and no others: one table, from which deploy/rbac.yaml is generated.

Each request is looked up here before it is sent (kube.py) and each watch before it begins (watch.py), so that code
which asks for more fails in the first test that runs it. tests/operator/test_rights_cluster.py reads in the API
server's audit log that every line is used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from hisparse_operator.kinds import (
    CHILDREN,
    EVENT,
    INFERENCE,
    LEASE,
    NODE,
    NODE_POLICY,
    NODE_REPORT,
    OWN_LEASE,
    POD,
    POOL_LEASE,
    Kind,
)


class UndeclaredError(RuntimeError):
    """A request that no line of this table allows: a bug here, and 403 in every cluster."""


@dataclass(frozen=True)
class Right:
    """What may be done with some kinds of one API group. names: only with objects of these names."""

    kinds: tuple[Kind, ...]
    verbs: tuple[str, ...]
    subresource: str = ""
    names: tuple[str, ...] = ()
    why: str = ""

    @property
    def resources(self) -> tuple[str, ...]:
        """The resources as RBAC names them."""
        tail = f"/{self.subresource}" if self.subresource else ""
        return tuple(f"{kind.plural}{tail}" for kind in self.kinds)


@dataclass(frozen=True)
class Role:
    """Rights that are bound together. namespace is None for a ClusterRole."""

    name: str
    rights: tuple[Right, ...]
    why: str
    namespace: str | None = None


_CHILD: Final = {kind.plural: kind for kind in CHILDREN}
_SEEN: Final = ("list", "watch")
# server-side apply is a patch, and a create where the object is new; after a conflict what is there is asked for
_KEPT: Final = ("get", *_SEEN, "create", "patch")

SERVED: Final = Role(
    "hisparse-operator",
    why=f"""\
The rights that the operator's code needs, and no others (tests/operator run it with exactly these).
Served namespaces: bind {LEASE} by a ClusterRoleBinding (whole cluster) or by a RoleBinding in each namespace
(--namespace); the second needs no {LEASE}-cluster, and no {LEASE}-pools.""",
    rights=(
        Right((INFERENCE,), ("get", *_SEEN)),
        Right((INFERENCE,), ("patch",), "status"),
        Right(
            (_CHILD["controllerrevisions"], _CHILD["replicasets"]),
            (*_KEPT, "delete"),
            why="children: server-side apply is a patch, and a create where the object is new",
        ),
        Right((_CHILD["configmaps"],), (*_KEPT, "delete")),
        Right((_CHILD["services"], _CHILD["serviceaccounts"]), _KEPT),
        Right((_CHILD["networkpolicies"],), (*_KEPT, "delete")),
        Right((_CHILD["poddisruptionbudgets"],), (*_KEPT, "delete")),
        Right((POD,), (*_SEEN, "patch"), why="pods are made and deleted by ReplicaSets; we only mark which goes first"),
        Right((POD,), ("get",), "log"),
        Right((_CHILD["endpointslices"],), _SEEN),
        Right((EVENT,), ("get", "create", "patch"), why="an Event that comes again is counted"),
    ),
)
WHOLE_CLUSTER: Final = Role(
    "hisparse-operator-cluster",
    why="What lies in no namespace, for an operator that serves the whole cluster.",
    rights=(
        Right((NODE,), _SEEN),
        Right((NODE_REPORT,), _SEEN, why="what the node agents report; without it the condition Degraded is Unknown"),
        Right(
            (NODE_POLICY,),
            _SEEN,
            why="what the node agents may do: the operator says of each policy whether it can be used and where it is "
            "in force",
        ),
        Right((NODE_POLICY,), ("patch",), "status"),
        Right(
            (OWN_LEASE,),
            _SEEN,
            names=(LEASE,),
            why="its own lease only, through which it sees that watch events come",
        ),
    ),
)
POOLS: Final = Role(
    "hisparse-operator-pools",
    why="""\
Bound by a RoleBinding in the namespace of the node agents (hisparse-nodes), if there is one: whether the breaker of a
policy is open stands in a Lease there. Without it the condition BreakerClosed is Unknown.""",
    rights=(Right((POOL_LEASE,), _SEEN),),
)
OWN_NAMESPACE: Final = Role(
    "hisparse-operator-lease",
    namespace="hisparse",
    why="in the operator's own namespace",
    rights=(
        Right((OWN_LEASE,), ("get", *_SEEN, "update"), names=(LEASE,)),
        Right((OWN_LEASE,), ("create",), why="a create has no name yet that could be compared"),
    ),
)
ROLES: Final = (SERVED, WHOLE_CLUSTER, POOLS, OWN_NAMESPACE)

_DECLARED: Final = frozenset(
    (verb, kind, right.subresource)
    for role in ROLES
    for right in role.rights
    for kind in right.kinds
    for verb in right.verbs
)


def need(kind: Kind, *verbs: str, subresource: str | None = None) -> None:
    """Raise UndeclaredError unless the table allows all of this."""
    for verb in verbs:
        if (verb, kind, subresource or "") not in _DECLARED:
            what = f"{kind.plural}/{subresource}" if subresource else kind.plural
            raise UndeclaredError(f"{verb} {what} is not declared in hisparse_operator.rights; add it there")
