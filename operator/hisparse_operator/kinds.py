"""The kinds of object that the operator reads and writes, as one table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from hisparse.nodes import policy, report
from hisparse.reserved import INFERENCE_LABEL

GROUP: Final = "inference.hisparse.dev"
LABEL: Final = INFERENCE_LABEL
"""On every child: the name of the inference that it belongs to. Watches select by its presence."""
FIELD_MANAGER: Final = "hisparse-operator"
STATUS_MANAGER: Final = "hisparse-operator-status"
LEASE: Final = "hisparse-operator"


@dataclass(frozen=True)
class Kind:
    """Where one kind lives in the API; `world` is the field of World that holds its objects."""

    api_version: str
    kind: str
    plural: str
    world: str | None = None
    namespaced: bool = True
    selector: str | None = LABEL
    field_selector: str | None = None

    @property
    def group(self) -> str:
        """The API group, empty for the core."""
        return self.api_version.rpartition("/")[0]

    @property
    def version(self) -> str:
        """The version without the group."""
        return self.api_version.rpartition("/")[2]

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """The URL path of one object, or of the list of them in a namespace (None: in all)."""
        root = f"/apis/{self.api_version}" if self.group else f"/api/{self.api_version}"
        scope = f"/namespaces/{namespace}" if self.namespaced and namespace is not None else ""
        tail = "".join(f"/{part}" for part in (name, subresource) if part is not None)
        return f"{root}{scope}/{self.plural}{tail}"


INFERENCE: Final = Kind(f"{GROUP}/v1alpha1", "HiSparseInference", "hisparseinferences", selector=None)
NODE: Final = Kind("v1", "Node", "nodes", "nodes", namespaced=False, selector=None)
NODE_REPORT: Final = Kind(f"{GROUP}/v1alpha1", report.KIND, report.PLURAL, namespaced=False, selector=None)
"""What the node agents found; a cluster without them need not have this kind."""
NODE_POLICY: Final = Kind(f"{GROUP}/v1alpha1", policy.KIND, policy.PLURAL, namespaced=False, selector=None)
"""What the node agents may do; as optional as their reports."""
POOL_LEASE: Final = Kind("coordination.k8s.io/v1", "Lease", "leases", selector=None)
"""Leases in the namespace of the node agents, of which each policy has one."""
EVENT: Final = Kind("v1", "Event", "events", selector=None)
OWN_LEASE: Final = Kind(
    "coordination.k8s.io/v1", "Lease", "leases", selector=None, field_selector=f"metadata.name={LEASE}"
)
CHILDREN: Final = (
    Kind("apps/v1", "ControllerRevision", "controllerrevisions", "controller_revisions"),
    Kind("apps/v1", "ReplicaSet", "replicasets", "replica_sets"),
    Kind("v1", "Pod", "pods", "pods"),
    Kind("v1", "ConfigMap", "configmaps", "config_maps"),
    Kind("v1", "Service", "services", "services"),
    Kind("v1", "ServiceAccount", "serviceaccounts", "service_accounts"),
    Kind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies", "network_policies"),
    Kind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets", "disruption_budgets"),
    Kind("discovery.k8s.io/v1", "EndpointSlice", "endpointslices", "endpoint_slices"),
)
POD: Final = CHILDREN[2]
BY_NAME: Final = {(kind.api_version, kind.kind): kind for kind in (INFERENCE, NODE, *CHILDREN)}


def kind_of(api_version: str, kind: str) -> Kind:
    """The entry of the table; a kind that is not in it is a bug, since we may neither watch nor write it."""
    try:
        return BY_NAME[api_version, kind]
    except KeyError:
        raise LookupError(f"{api_version} {kind} is not in hisparse_operator.kinds") from None
