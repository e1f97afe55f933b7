"""The closed set of condition types, reasons and event reasons: all that the operator can say.

Scripts and alerts match on these words. A word that is not here is never written (a test holds us to it), and one
that is here keeps its meaning. Where each may stand, what it means, how to check it and what to do: decide/catalogue,
from which docs/troubleshooting.md is generated.
"""

from __future__ import annotations

from enum import StrEnum


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
    # Ready and Progressing, where an outcome could not be put in place
    REFUSED = "Refused"
    NOT_WRITTEN = "NotWritten"
    INTERNAL_ERROR = "InternalError"
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


class EventReason(StrEnum):
    """Reasons of Events that are not those of a condition, nor the type of one that became True."""

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
    WRITE_CONTESTED = "WriteContested"
