"""The children, as documents for server-side apply. Deterministic: the same input gives the same bytes.

What belongs to a revision comes from the frozen revision and from nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from hisparse.model import ModelFacts
from hisparse.spec import HiSparseInferenceSpec
from hisparse_operator.decide import planstatus, podtemplate
from hisparse_operator.decide.identity import ROOM_ANNOTATION, Parent, revision_of
from hisparse_operator.decide.planning import Planned, engine_version
from hisparse_operator.decide.pods import EnginePod
from hisparse_operator.decide.revisions import PLAN_FILE, TEMPLATE_ANNOTATION, Revision
from hisparse_operator.settings import OperatorSettings
from hisparse_operator.world import Object

DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"
_GOES_FIRST: Final = "-1000"


def new_revision(
    parent: Parent,
    digest: str,
    template_version: int,
    spec: HiSparseInferenceSpec,
    model: ModelFacts,
    planned: Planned,
    settings: OperatorSettings,
) -> Revision:
    """Freeze what today's planner and templates make of the spec. The number is given later."""
    plan = planned.plan
    if plan is None:
        raise ValueError(f"{parent.child(digest)} cannot be frozen without a plan")
    return Revision(
        hash=digest,
        number=0,
        template_version=template_version,
        template=podtemplate.pod_template(parent, digest, spec, model, planned, settings),
        launch=podtemplate.launch_document(parent, digest, spec, plan),
        plan=planstatus.of_plan(plan),
        mode=planstatus.mode_of(plan),
        products=planned.products,
        version=engine_version(spec),
    )


def config_map(parent: Parent, revision: Revision) -> dict[str, Any]:
    """plan.json, for the launcher. Immutable: the kubelet need not watch it, and nobody can change a running plan."""
    return {
        **_child(parent, "v1", "ConfigMap", revision.hash, revision.version),
        "immutable": True,
        "data": {PLAN_FILE: revision.plan_json()},
    }


def replica_set(parent: Parent, revision: Revision, replicas: int) -> dict[str, Any]:
    """One revision's pods."""
    document = _child(parent, "apps/v1", "ReplicaSet", revision.hash, revision.version)
    document["metadata"]["annotations"] = {TEMPLATE_ANNOTATION: str(revision.template_version)}
    document["spec"] = {
        "replicas": replicas,
        "selector": {"matchLabels": parent.selector(revision.hash)},
        "template": dict(revision.template),
    }
    return document


def as_it_is(parent: Parent, live: Object, replicas: int) -> dict[str, Any]:
    """A ReplicaSet of ours whose revision is lost: only its number of pods is decided."""
    metadata = live["metadata"]
    return {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {
            "name": metadata["name"],
            "namespace": parent.namespace,
            "labels": {**(metadata.get("labels") or {}), **parent.labels(revision_of(live))},
            "ownerReferences": parent.owner_references(),
        },
        "spec": {
            "replicas": replicas,
            "selector": live["spec"]["selector"],
            "template": live["spec"]["template"],
        },
    }


def shared_children(
    parent: Parent,
    *,
    port: int,
    replicas: int,
    max_unavailable: int,
    network_policy: bool,
    revisions: Sequence[Revision],
) -> list[dict[str, Any]]:
    """What all revisions share: ServiceAccount, Service, and, where wanted, disruption budget and network policy."""
    documents = [service_account(parent), service(parent, port)]
    if replicas > 1:
        documents.append(disruption_budget(parent, max_unavailable))
    if network_policy:
        documents.append(network_policy_of(parent, revisions))
    return documents


def service_account(parent: Parent) -> dict[str, Any]:
    """The engine asks nothing of the API server, so it gets no token."""
    return {**_child(parent, "v1", "ServiceAccount"), "automountServiceAccountToken": False}


def service(parent: Parent, port: int) -> dict[str, Any]:
    """Where requests go: the pods of all revisions that are ready."""
    document = _child(parent, "v1", "Service")
    document["spec"] = {
        "type": "ClusterIP",
        "selector": parent.selector(),
        "ports": [
            {"name": podtemplate.HTTP, "port": port, "targetPort": podtemplate.HTTP, "protocol": "TCP"},
        ],
    }
    return document


def disruption_budget(parent: Parent, max_unavailable: int) -> dict[str, Any]:
    """How many replicas a drain of nodes may take. One that is not ready protects nothing and may always go."""
    return {
        **_child(parent, "policy/v1", "PodDisruptionBudget"),
        "spec": {
            "maxUnavailable": max_unavailable,
            "selector": {"matchLabels": parent.selector()},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }


def network_policy_of(parent: Parent, revisions: Iterable[Revision]) -> dict[str, Any]:
    """Only declared ports can be reached: the engine's ranks talk over ports of their own that trust whoever connects.

    The launcher's is left out: whoever reaches /drain takes the pod out of service. The kubelet does (a node reaches
    its own pods whatever a policy says).

    Requests and scrapers may come from anywhere in the cluster; the API key is the lock for requests. Egress is left
    open: weights come from the hub or from wherever a mirror is, and a name service from wherever the cluster has it.
    """
    ports = sorted(
        {
            (int(port["containerPort"]), str(port.get("protocol", "TCP")))
            for revision in revisions
            for container in (revision.template.get("spec") or {}).get("containers") or ()
            for port in container.get("ports") or ()
            if isinstance(port.get("containerPort"), int) and port.get("name") != podtemplate.LAUNCHER
        }
    )
    return {
        **_child(parent, "networking.k8s.io/v1", "NetworkPolicy"),
        "spec": {
            "podSelector": {"matchLabels": parent.selector()},
            "policyTypes": ["Ingress"],
            "ingress": [{"ports": [{"port": port, "protocol": protocol} for port, protocol in ports]}],
        },
    }


def goes_first(parent: Parent, pod: EnginePod, heir: str | None) -> dict[str, Any]:
    """Marks the pod that its ReplicaSet should take, and the revision that gets its place.

    With the uid, nothing is made where the pod is gone.
    """
    room = {ROOM_ANNOTATION: heir} if heir else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod.name,
            "namespace": parent.namespace,
            "uid": pod.uid,
            "annotations": {DELETION_COST: _GOES_FIRST, **room},
        },
    }


def _child(
    parent: Parent, api_version: str, kind: str, revision: str | None = None, version: str | None = None
) -> dict[str, Any]:
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {
            "name": parent.child(revision),
            "namespace": parent.namespace,
            "labels": parent.labels(revision, version),
            "ownerReferences": parent.owner_references(),
        },
    }
