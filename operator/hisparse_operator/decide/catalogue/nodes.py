"""Reasons of Degraded, and of the conditions of a HiSparseNodePolicy."""

from __future__ import annotations

from typing import Final

from hisparse.nodes import breaker
from hisparse_operator.decide.catalogue.entry import DESCRIBE, NOTHING, POLICY, Entry
from hisparse_operator.decide.conditions import Status
from hisparse_operator.decide.reasons import ConditionType, Reason

_DEGRADED: Final = ConditionType.DEGRADED
_IN_FORCE: Final = ConditionType.IN_FORCE
_BREAKER: Final = ConditionType.BREAKER_CLOSED
_AGENTS: Final = "`kubectl get pods -A --field-selector spec.nodeName=NODE`"
_LEASE: Final = f"`kubectl -n hisparse-nodes get lease {breaker.LEASE_PREFIX}POLICY -o yaml`"

ENTRIES: Final = (
    Entry(
        Reason.NODE_CRITICAL,
        ((_DEGRADED, Status.TRUE),),
        "A node agent found something critical on a node of a pod: the pod is slowed down or will fail. Nothing is "
        "moved by itself.",
        f"{DESCRIBE}: the message has node, check, value and cost. `kubectl describe hsn NODE` has every finding.",
        "Follow the check's runbook in [node-checks.md](node-checks.md). To move the pod: `kubectl cordon NODE`, then "
        "`kubectl -n NAMESPACE delete pod POD`.",
    ),
    Entry(
        Reason.NODE_WARNING,
        ((_DEGRADED, Status.TRUE),),
        "A node agent warns of a node of a pod: it is worth a look today.",
        "`kubectl describe hsn NODE`.",
        "Follow the check's runbook in [node-checks.md](node-checks.md).",
    ),
    Entry(
        Reason.NODES_HEALTHY,
        ((_DEGRADED, Status.FALSE),),
        "Every node of a pod has a fresh report without a fault that concerns the pod.",
        "`kubectl get hsn`. The message counts the checks that could not be done.",
        NOTHING,
    ),
    Entry(
        Reason.NO_PODS_ON_NODES,
        ((_DEGRADED, Status.FALSE),),
        "No pod has a node, so there is no node to judge.",
        f"{DESCRIBE}: Scheduled says why.",
        "Follow the reason of Scheduled.",
    ),
    Entry(
        Reason.NODE_NOT_REPORTED,
        ((_DEGRADED, Status.UNKNOWN),),
        "A node of a pod has no HiSparseNode that can be used: its agent does not run, or is of another release.",
        f"{_AGENTS} and `kubectl get hsn NODE`.",
        "Let the DaemonSet hisparse-agent run there (its node selector, tolerations, image), or bring agent and "
        "operator to one release.",
    ),
    Entry(
        Reason.NODE_REPORT_STALE,
        ((_DEGRADED, Status.UNKNOWN),),
        "The agent of a node of a pod has been silent for more than 15 minutes, or its clock is wrong; what it said "
        "last counts no more.",
        f"`kubectl get hsn NODE` shows when it observed; {_AGENTS}, then the log of its hisparse-agent.",
        "Start the agent again: `kubectl -n hisparse-nodes rollout restart daemonset/hisparse-agent`. Where the "
        "message says so set the node's clock.",
    ),
    Entry(
        Reason.NODE_REPORTS_HIDDEN,
        ((_DEGRADED, Status.UNKNOWN),),
        "The operator may not read HiSparseNode objects, so nothing is known of the nodes.",
        "`kubectl auth can-i list hisparsenodes --as=system:serviceaccount:hisparse:hisparse-operator`.",
        "Bind the ClusterRole hisparse-operator-cluster (operator/deploy/). An operator that serves single namespaces "
        "never looks at nodes: read `kubectl get hsn` yourself.",
    ),
    Entry(
        Reason.IN_FORCE,
        ((_IN_FORCE, Status.TRUE),),
        "The policy decides on every node that it selects. A dry run says what it would do and does nothing.",
        f"{POLICY}.",
        NOTHING,
    ),
    Entry(
        Reason.PARTLY_OVERLAPPED,
        ((_IN_FORCE, Status.TRUE),),
        "The policy decides on some of its nodes; on the others an older policy does.",
        f"{POLICY}: the message names the older policies and their nodes. `kubectl get hsnp` lists all.",
        "Narrow one spec.nodeSelector where this was not meant.",
    ),
    Entry(
        Reason.OVERLAPPED,
        ((_IN_FORCE, Status.FALSE),),
        "On every node that the policy selects an older policy decides.",
        f"{POLICY}: the message names the older policies and their nodes.",
        "Narrow one spec.nodeSelector, or delete one policy.",
    ),
    Entry(
        Reason.NO_NODES_SELECTED,
        ((_IN_FORCE, Status.FALSE),),
        "No node has the labels of spec.nodeSelector.",
        "`kubectl get nodes --show-labels`.",
        "Correct spec.nodeSelector, or label the nodes. A pool that an autoscaler has emptied needs nothing.",
    ),
    Entry(
        Reason.NOT_ACCEPTED,
        ((_IN_FORCE, Status.FALSE),),
        "The policy cannot be used, and nothing is done on the nodes that it holds, not by a younger policy either.",
        f"{POLICY}: Accepted names every fault.",
        "Correct the spec as Accepted says, or delete the policy.",
    ),
    Entry(
        Reason.BEING_DELETED,
        ((_IN_FORCE, Status.FALSE),),
        "The policy is being deleted, and what it allowed is put back.",
        f"`kubectl get hsn -o wide` shows PutBack by node; {POLICY} shows a finalizer that holds it.",
        "Wait. If it stays, remove the finalizer that somebody else has put on it.",
    ),
    Entry(
        Reason.BREAKER_CLOSED,
        ((_BREAKER, Status.TRUE),),
        "Remedies and taints may begin, within the budget.",
        f"{POLICY}.",
        NOTHING,
    ),
    Entry(
        Reason.BREAKER_OPEN,
        ((_BREAKER, Status.FALSE),),
        "Too many nodes of the policy were critical at once, so the cause is not a single node: nothing new begins.",
        f"`kubectl get hsn` shows which nodes are critical; {_LEASE} has when it opened.",
        f"Find the common cause (power, cooling, a driver roll-out), then close it: `kubectl -n hisparse-nodes "
        f"annotate lease {breaker.LEASE_PREFIX}POLICY {breaker.ANNOTATION}-`.",
    ),
    Entry(
        Reason.POOLS_HIDDEN,
        ((_BREAKER, Status.UNKNOWN),),
        "The operator may not read the Leases in the namespace of the node agents, where breakers are kept.",
        "`kubectl auth can-i list leases -n hisparse-nodes --as=system:serviceaccount:hisparse:hisparse-operator`.",
        "Bind the ClusterRole hisparse-operator-pools there by a RoleBinding (node_agent/deploy/rbac.yaml), and name "
        "the namespace with `--agents-namespace` where it is another one.",
    ),
)
