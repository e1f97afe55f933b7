"""Reasons of Scheduled, WorkloadReady and TierActive."""

from __future__ import annotations

from typing import Final

from hisparse_operator.decide.catalogue.entry import (
    DESCRIBE,
    DESCRIBE_POD,
    LAST_FAILURE,
    NODES,
    NOTHING,
    PODS,
    PREVIOUS_LOG,
    Entry,
)
from hisparse_operator.decide.conditions import Status
from hisparse_operator.decide.reasons import ConditionType, Reason

_SCHEDULED: Final = ConditionType.SCHEDULED
_WORKLOAD: Final = ConditionType.WORKLOAD_READY
_TIER: Final = ConditionType.TIER_ACTIVE
_NOT_READY: Final = (ConditionType.READY, Status.FALSE)

ENTRIES: Final = (
    Entry(
        Reason.ALL_SCHEDULED,
        ((_SCHEDULED, Status.TRUE),),
        "Every pod that should exist has a node.",
        f"{PODS}.",
        NOTHING,
    ),
    Entry(
        Reason.INSUFFICIENT_GPU,
        ((_SCHEDULED, Status.FALSE), _NOT_READY),
        "The scheduler finds no node with enough free GPUs. Pods that have a node go on.",
        f"{DESCRIBE_POD} has the scheduler's count; `kubectl describe node NODE` lists who holds the GPUs of a node.",
        "Free GPUs or add a node; or lower spec.replicas or spec.resources.gpus. The pod starts by itself once there "
        "is room.",
    ),
    Entry(
        Reason.INSUFFICIENT_MEMORY,
        ((_SCHEDULED, Status.FALSE), _NOT_READY),
        "The scheduler finds no node with enough free memory for the pod, whose request holds the host pool.",
        f"{DESCRIBE_POD}, and `kubectl describe node NODE` for what is requested there.",
        "Free memory on a node with the GPUs, or lower spec.kvTier.hostPool.",
    ),
    Entry(
        Reason.TAINT_MISMATCH,
        ((_SCHEDULED, Status.FALSE), _NOT_READY),
        "The nodes that are left have taints that the pod does not tolerate. A taint "
        "inference.hisparse.dev/degraded is a node agent's, which found a fault there.",
        f"{DESCRIBE_POD}, and `kubectl get nodes -o custom-columns=NAME:.metadata.name,TAINTS:.spec.taints`.",
        "Add the toleration to spec.placement.tolerations where the nodes are meant for this; else mend the nodes.",
    ),
    Entry(
        Reason.PVC_NOT_BOUND,
        ((_SCHEDULED, Status.FALSE), _NOT_READY),
        "A PersistentVolumeClaim that the pod mounts does not exist or is not bound.",
        f"`kubectl -n NAMESPACE get pvc`, and {DESCRIBE_POD}.",
        "Create the claim that spec.model.pvc or spec.model.cache.pvc names, or correct the name.",
    ),
    Entry(
        Reason.SCHEDULING_GATED,
        ((_SCHEDULED, Status.FALSE), _NOT_READY),
        "Somebody, usually a queue such as Kueue, holds the pod back with a scheduling gate.",
        "`kubectl -n NAMESPACE get pod POD -o jsonpath='{.spec.schedulingGates}'` names the gate.",
        "Ask whoever owns the gate; a queue removes it when it is this pod's turn.",
    ),
    Entry(
        Reason.NODES_CORDONED,
        ((_SCHEDULED, Status.FALSE), _NOT_READY),
        "The nodes that could take the pod are cordoned.",
        f"{NODES} shows SchedulingDisabled.",
        "`kubectl uncordon NODE` for one that is well again.",
    ),
    Entry(
        Reason.UNSCHEDULABLE,
        ((_SCHEDULED, Status.FALSE), _NOT_READY),
        "The scheduler cannot place the pod, for a reason that has no word of its own here.",
        f"{DESCRIBE_POD}: the message is the scheduler's.",
        "Follow the scheduler's message; spec.placement and spec.resources are what it judges.",
    ),
    Entry(
        Reason.QUOTA_EXCEEDED,
        ((_SCHEDULED, Status.FALSE), _NOT_READY),
        "A ResourceQuota of the namespace refuses the pod, so it does not exist.",
        "`kubectl -n NAMESPACE describe quota`.",
        "Raise the quota, delete what is not needed any more, or lower spec.replicas.",
    ),
    Entry(
        Reason.PODS_REFUSED,
        ((_SCHEDULED, Status.FALSE), _NOT_READY),
        "The API server refuses the pods of a ReplicaSet: an admission policy, pod security, a PriorityClass that does "
        "not exist.",
        "`kubectl -n NAMESPACE describe rs -l inference.hisparse.dev/inference=NAME`: the message is the API server's.",
        "Change what it names in spec.podTemplate or spec.placement; pod security of level restricted needs "
        "spec.podTemplate.securityContext with a user.",
    ),
    Entry(
        Reason.WAITING_FOR_PODS,
        ((_SCHEDULED, Status.UNKNOWN), _NOT_READY),
        "The pods have not been made, or not been looked at by the scheduler, yet. This takes seconds.",
        f"{PODS}.",
        "Wait. If it stays for a minute look whether kube-controller-manager runs, and a scheduler of the name "
        "spec.placement.schedulerName.",
    ),
    Entry(
        Reason.MINIMUM_REPLICAS_READY,
        ((_WORKLOAD, Status.TRUE),),
        "Every wanted replica is of the present spec's revision and ready.",
        f"{PODS}.",
        NOTHING,
    ),
    Entry(
        Reason.STARTING,
        ((_WORKLOAD, Status.FALSE), _NOT_READY),
        "Pods of this revision load their weights or wait for a node, and none has failed.",
        "`kubectl -n NAMESPACE logs POD -c engine` shows how far it is; the message has the start-up budget.",
        "Wait until the budget is over; then it is killed and the reason is StartupTimeout. Weights that every start "
        "downloads are faster with spec.model.cache.",
    ),
    Entry(
        Reason.CRASH_LOOP,
        ((_WORKLOAD, Status.FALSE), _NOT_READY),
        "A container of the pod ends again and again.",
        f"{LAST_FAILURE} has the exit code, the known cause and the last lines; {PREVIOUS_LOG} has all of them.",
        "Do what status.lastFailure.advice says. Without a known cause: undo the last edit of spec.engine; "
        "`hisparse flags 'vllm serve ...'` judges a command line.",
    ),
    Entry(
        Reason.OOM_KILLED,
        ((_WORKLOAD, Status.FALSE), _NOT_READY),
        "A container went over its memory limit and was killed by the kernel.",
        f"{DESCRIBE_POD}: Last State has OOMKilled, Limits has the limit.",
        "Lower spec.kvTier.hostPool or raise spec.resources.memory.",
    ),
    Entry(
        Reason.STARTUP_TIMEOUT,
        ((_WORKLOAD, Status.FALSE), _NOT_READY),
        "The engine was not up within its start-up budget and was killed.",
        f"{PREVIOUS_LOG} shows what it was doing when the time was over.",
        "Raise spec.lifecycle.startupBudget, or give it faster weights with spec.model.cache.",
    ),
    Entry(
        Reason.IMAGE_PULL_FAILED,
        ((_WORKLOAD, Status.FALSE), _NOT_READY),
        "An image of the pod cannot be had.",
        f"{DESCRIBE_POD}: the message is the container runtime's.",
        "Correct spec.engine.image, or name the registry's Secret in spec.engine.pullSecrets.",
    ),
    Entry(
        Reason.CONTAINER_CONFIG_ERROR,
        ((_WORKLOAD, Status.FALSE), _NOT_READY),
        "A Secret, ConfigMap or mount that the pod names cannot be used.",
        f"{DESCRIBE_POD}, then `kubectl -n NAMESPACE get secrets,configmaps`.",
        "Create what is missing, or correct its name in spec.engine.env, spec.engine.envFrom, "
        "spec.model.huggingFace.tokenSecret or spec.networking.apiKeySecret.",
    ),
    Entry(
        Reason.NOT_ROLLED_OUT,
        ((_WORKLOAD, Status.FALSE), _NOT_READY),
        "No pod of the present spec may be made now; those of an earlier one stay.",
        f"{DESCRIBE}: Progressing says why.",
        "Follow the reason of Progressing, Accepted or PlanFeasible.",
    ),
    Entry(
        Reason.DISABLED,
        ((_TIER, Status.FALSE),),
        "This plan has no host tier. That is no fault: with spec.kvTier.mode Auto it is taken only where it pays.",
        "`kubectl -n NAMESPACE get hsi NAME -o jsonpath='{.status.mode.reason}'` says why.",
        f"{NOTHING} Or set spec.kvTier.mode to have a tier all the same.",
    ),
    Entry(
        Reason.NOT_REPORTED,
        ((_TIER, Status.UNKNOWN),),
        "A tier is planned, and this release does not ask the engine yet whether it is on.",
        "`kubectl -n NAMESPACE logs POD -c engine` has the engine's own lines about its KV transfer.",
        NOTHING,
    ),
)
