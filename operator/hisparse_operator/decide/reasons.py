"""The closed catalogue of condition types, reasons and event reasons: what the operator can say, and what it means.

Scripts and alerts match on these words. A word that is not here is never written (a test holds us to it), and one
that is here keeps its meaning.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final


class ConditionType(StrEnum):
    """True is the good state of each but Degraded. One that nothing can judge yet is absent, never True."""

    ACCEPTED = "Accepted"
    PLAN_FEASIBLE = "PlanFeasible"
    SCHEDULED = "Scheduled"
    WORKLOAD_READY = "WorkloadReady"
    TIER_ACTIVE = "TierActive"
    ROUTE_READY = "RouteReady"
    AVAILABLE = "Available"
    PROGRESSING = "Progressing"
    READY = "Ready"
    DEGRADED = "Degraded"
    # of a HiSparseNodePolicy, beside Accepted
    IN_FORCE = "InForce"
    BREAKER_CLOSED = "BreakerClosed"


class Reason(StrEnum):
    """Why a condition has its status."""

    # Accepted
    VALID = "Valid"
    INVALID_SPEC = "InvalidSpec"
    UNSUPPORTED_MODEL = "UnsupportedModel"
    # PlanFeasible
    FITS = "Fits"
    HBM_INSUFFICIENT = "HBMInsufficient"
    HOST_MEMORY_INSUFFICIENT = "HostMemoryInsufficient"
    NO_MATCHING_NODES = "NoMatchingNodes"
    NO_GPU_LABELS = "NoGPULabels"
    NODES_NOT_VISIBLE = "NodesNotVisible"
    UNKNOWN_MODEL_FACTS = "UnknownModelFacts"
    # Scheduled
    ALL_SCHEDULED = "AllScheduled"
    INSUFFICIENT_GPU = "InsufficientGPU"
    INSUFFICIENT_MEMORY = "InsufficientMemory"
    TAINT_MISMATCH = "TaintMismatch"
    PVC_NOT_BOUND = "PVCNotBound"
    SCHEDULING_GATED = "SchedulingGated"
    NODES_CORDONED = "NodesCordoned"
    UNSCHEDULABLE = "Unschedulable"
    QUOTA_EXCEEDED = "QuotaExceeded"
    PODS_REFUSED = "PodsRefused"
    WAITING_FOR_PODS = "WaitingForPods"
    # WorkloadReady
    MINIMUM_REPLICAS_READY = "MinimumReplicasReady"
    STARTING = "Starting"
    CRASH_LOOP = "CrashLoop"
    OOM_KILLED = "OOMKilled"
    STARTUP_TIMEOUT = "StartupTimeout"
    IMAGE_PULL_FAILED = "ImagePullFailed"
    CONTAINER_CONFIG_ERROR = "ContainerConfigError"
    NOT_ROLLED_OUT = "NotRolledOut"
    # TierActive
    DISABLED = "Disabled"
    NOT_REPORTED = "NotReported"
    # RouteReady, Available
    ENDPOINTS_READY = "EndpointsReady"
    NO_ENDPOINTS = "NoEndpoints"
    SERVING = "Serving"
    NO_SERVING_REPLICAS = "NoServingReplicas"
    SCALED_TO_ZERO = "ScaledToZero"
    # Progressing
    NEW_REVISION = "NewRevision"
    SCALING = "Scaling"
    COMPLETE = "Complete"
    NEW_REVISION_FAILING = "NewRevisionFailing"
    NO_PLACE = "NoPlaceForNewRevision"
    POD_STUCK_TERMINATING = "PodStuckTerminating"
    HELD = "Held"
    PAUSED = "Paused"
    PLAN_ONLY = "PlanOnly"
    CHILD_CONFLICT = "ChildConflict"
    # Ready
    PROVEN = "Proven"
    REFUSED = "Refused"
    # Degraded
    NODE_CRITICAL = "NodeCritical"
    NODE_WARNING = "NodeWarning"
    NODES_HEALTHY = "NodesHealthy"
    NO_PODS_ON_NODES = "NoPodsOnNodes"
    NODE_NOT_REPORTED = "NodeNotReported"
    NODE_REPORT_STALE = "NodeReportStale"
    NODE_REPORTS_HIDDEN = "NodeReportsHidden"
    # InForce
    IN_FORCE = "InForce"
    PARTLY_OVERLAPPED = "PartlyOverlapped"
    OVERLAPPED = "Overlapped"
    NO_NODES_SELECTED = "NoNodesSelected"
    NOT_ACCEPTED = "NotAccepted"
    BEING_DELETED = "BeingDeleted"
    # BreakerClosed
    BREAKER_CLOSED = "BreakerClosed"
    BREAKER_OPEN = "BreakerOpen"
    POOLS_HIDDEN = "PoolsHidden"


MEANING: Final[Mapping[Reason, str]] = MappingProxyType(
    {
        Reason.VALID: "the spec can be used by this operator and the engine version that it names",
        Reason.INVALID_SPEC: "a field has to be edited; pods of an earlier, valid spec stay as they are, and what a "
        "policy allowed is put back",
        Reason.UNSUPPORTED_MODEL: "the planner cannot size this model; the message names the model.facts entry to set",
        Reason.FITS: "at least one kind of node holds a replica; status.plan has the numbers",
        Reason.HBM_INSUFFICIENT: "GPU memory is too small for weights, workspace and one request of maxTokens",
        Reason.HOST_MEMORY_INSUFFICIENT: "the pod needs more memory than the nodes can give",
        Reason.NO_MATCHING_NODES: "no node can take a replica; status.capacity.rejected says why, node by node",
        Reason.NO_GPU_LABELS: "no node carries nvidia.com/gpu.product, so nobody can say which GPU it has",
        Reason.NODES_NOT_VISIBLE: "the operator may not look at nodes; the plan rests on the product that was named",
        Reason.UNKNOWN_MODEL_FACTS: "the model's config.json or size is not known; set model.config or model.facts",
        Reason.ALL_SCHEDULED: "every pod that should exist has a node",
        Reason.INSUFFICIENT_GPU: "the scheduler finds no node with enough free GPUs",
        Reason.INSUFFICIENT_MEMORY: "the scheduler finds no node with enough free memory",
        Reason.TAINT_MISMATCH: "the nodes that are left have taints that the pod does not tolerate",
        Reason.PVC_NOT_BOUND: "a volume claim of the pod does not exist or is not bound",
        Reason.SCHEDULING_GATED: "somebody (a queue) holds the pod back with a scheduling gate",
        Reason.NODES_CORDONED: "the nodes that are left are cordoned; kubectl uncordon one",
        Reason.UNSCHEDULABLE: "the scheduler's message has the cause",
        Reason.QUOTA_EXCEEDED: "a ResourceQuota of the namespace refuses the pod",
        Reason.PODS_REFUSED: "the API server refuses the pod; the message is its own",
        Reason.WAITING_FOR_PODS: "the pods have not been created, or looked at by the scheduler, yet",
        Reason.MINIMUM_REPLICAS_READY: "every wanted replica is of this generation and ready",
        Reason.STARTING: "pods of this generation are loading and have not failed",
        Reason.CRASH_LOOP: "the engine ends again and again; status.lastFailure has the cause",
        Reason.OOM_KILLED: "the engine went over its memory limit and was killed",
        Reason.STARTUP_TIMEOUT: "the engine was not up within its start-up budget and was killed",
        Reason.IMAGE_PULL_FAILED: "an image cannot be had; the message is the container runtime's",
        Reason.CONTAINER_CONFIG_ERROR: "a Secret, ConfigMap or mount that the pod names cannot be used",
        Reason.NOT_ROLLED_OUT: "no pod of this generation may be made now; Progressing says why",
        Reason.DISABLED: "this plan has no host tier; status.mode says why",
        Reason.NOT_REPORTED: "nobody has asked the engine yet whether its tier is on",
        Reason.ENDPOINTS_READY: "the Service has endpoints that take requests",
        Reason.NO_ENDPOINTS: "the Service has no endpoint that takes requests",
        Reason.SERVING: "at least one replica, of whichever revision, takes requests",
        Reason.NO_SERVING_REPLICAS: "no replica takes requests",
        Reason.SCALED_TO_ZERO: "spec.replicas is 0",
        Reason.NEW_REVISION: "pods move to a new revision, one at a time",
        Reason.SCALING: "pods are being added or removed",
        Reason.COMPLETE: "nothing is left to do",
        Reason.NEW_REVISION_FAILING: "a pod of the new revision does not start; healthy old ones are left alone",
        Reason.NO_PLACE: "no old pod is on a node that may take a new one, so none is taken; see the message",
        Reason.POD_STUCK_TERMINATING: "a deleted pod should have ended by now; the message names it and its node",
        Reason.HELD: "the spec is invalid or does not fit: what runs stays as it is",
        Reason.PAUSED: "spec.paused is true: nothing but status is written",
        Reason.PLAN_ONLY: "spec.planOnly is true: nothing but status is written",
        Reason.CHILD_CONFLICT: "an object that belongs to somebody else has a name that we need",
        Reason.PROVEN: "accepted, planned, ready and routed, all for this generation",
        Reason.REFUSED: "the API server refuses one of our writes; the message is its own",
        Reason.NODE_CRITICAL: "a node agent found something critical on a node of a pod; the message has what it costs",
        Reason.NODE_WARNING: "a node agent warns of a node of a pod; the message has what it costs",
        Reason.NODES_HEALTHY: "every node of a pod has a fresh report, with no fault that concerns the pod",
        Reason.NO_PODS_ON_NODES: "no pod has a node, so there is no node to judge",
        Reason.NODE_NOT_REPORTED: "a node of a pod has no HiSparseNode that can be used; its agent may not run",
        Reason.NODE_REPORT_STALE: "the agent of a node of a pod is silent; what it said last counts no more",
        Reason.NODE_REPORTS_HIDDEN: "the operator may not read HiSparseNode objects",
        Reason.IN_FORCE: "the policy is in force on every node that it selects",
        Reason.PARTLY_OVERLAPPED: "the policy is in force, but on some of its nodes an older one is; see the message",
        Reason.OVERLAPPED: "on every node that the policy selects an older one is in force",
        Reason.NO_NODES_SELECTED: "no node has the labels of the policy's nodeSelector",
        Reason.NOT_ACCEPTED: "the policy cannot be used, and nothing is done on the nodes that it holds",
        Reason.BEING_DELETED: "the policy is being deleted, and what it allowed is put back",
        Reason.BREAKER_CLOSED: "remedies and taints may begin, within the budget",
        Reason.BREAKER_OPEN: "too many nodes were critical at once: nothing begins until a person closes the breaker",
        Reason.POOLS_HIDDEN: "the operator may not read the Leases in the namespace of the node agents",
    }
)


class EventReason(StrEnum):
    """Reasons of Events that are not those of a condition."""

    PLAN_FITS = "PlanFits"
    REVISION_CREATED = "RevisionCreated"
    PLAN_WARNING = "PlanWarning"
    ROLLOUT_STARTED = "RolloutStarted"
    ROLLOUT_COMPLETE = "RolloutComplete"
    ENGINE_FAILED = "EngineFailed"
    UNAVAILABLE = "Unavailable"
    NOT_READY = "NotReady"
    STRAY_POD = "StrayPod"
    CHILD_PUT_BACK = "ChildPutBack"
    INTERNAL_ERROR = "InternalError"


EVENT_MEANING: Final[Mapping[EventReason, str]] = MappingProxyType(
    {
        EventReason.PLAN_FITS: "PlanFeasible became True",
        EventReason.REVISION_CREATED: "the intent changed; its plan and pod template are frozen now",
        EventReason.PLAN_WARNING: "the plan fits and has a drawback that one should know",
        EventReason.ROLLOUT_STARTED: "pods begin to move to another revision",
        EventReason.ROLLOUT_COMPLETE: "every wanted pod is of the update revision and ready",
        EventReason.ENGINE_FAILED: "an engine container ended with a failure that was not known before",
        EventReason.UNAVAILABLE: "Available became False",
        EventReason.STRAY_POD: "a pod behind the Service belongs to no revision any more (its label was removed)",
        EventReason.CHILD_PUT_BACK: "somebody changed or deleted a child, and the operator has put it back",
        EventReason.NOT_READY: "Ready became False",
        EventReason.INTERNAL_ERROR: "a bug in the operator; its log has the trace, and it tries again",
    }
)
