"""Reasons of Accepted and PlanFeasible."""

from __future__ import annotations

from typing import Final

from hisparse_operator.decide.catalogue.entry import CAPACITY, DESCRIBE, NODES, NOTHING, PLAN, Entry
from hisparse_operator.decide.conditions import Status
from hisparse_operator.decide.reasons import ConditionType, Reason

_ACCEPTED: Final = ConditionType.ACCEPTED
_FEASIBLE: Final = ConditionType.PLAN_FEASIBLE
_NOT_READY: Final = (ConditionType.READY, Status.FALSE)

ENTRIES: Final = (
    Entry(
        Reason.VALID,
        ((_ACCEPTED, Status.TRUE),),
        "This operator, and the engine release that the spec names, can do what the spec asks for.",
        f"{DESCRIBE}, or `kubectl describe hsnp POLICY` for a policy.",
        NOTHING,
    ),
    Entry(
        Reason.INVALID_SPEC,
        ((_ACCEPTED, Status.FALSE), _NOT_READY),
        "A field has a value that cannot be used. Pods of an earlier, valid spec stay as they are; of a policy nothing "
        "is used, and what it allowed before is put back.",
        f"The message names every field, its value and its limit: {DESCRIBE}, or `kubectl describe hsnp POLICY`. "
        "`kubectl explain hsi.spec` and `kubectl explain hsnp.spec` have the rules.",
        "Correct the fields that are named and apply again. To go back: apply the earlier manifest, whose revision is "
        "kept.",
    ),
    Entry(
        Reason.UNSUPPORTED_MODEL,
        ((_ACCEPTED, Status.FALSE), _NOT_READY),
        "The planner cannot size this model: its config.json is of an architecture that this release does not know, or "
        "lacks a number.",
        f"{PLAN} says the same without the cluster; `hisparse models` lists the models that need no config.json.",
        "Set the entry of spec.model.facts that the message names. An architecture that this release does not know "
        "waits for one that does.",
    ),
    Entry(
        Reason.FITS,
        ((_FEASIBLE, Status.TRUE),),
        "At least one kind of node holds a replica, or the pods that run have shown that it fits.",
        "`kubectl -n NAMESPACE get hsi NAME -o jsonpath='{.status.plan}'` has the numbers, and what binds.",
        NOTHING,
    ),
    Entry(
        Reason.HBM_INSUFFICIENT,
        ((_FEASIBLE, Status.FALSE), _NOT_READY),
        "The GPUs of one replica are too small for the weights, the workspace and one request of "
        "spec.context.maxTokens.",
        f"`kubectl -n NAMESPACE get hsi NAME -o jsonpath='{{.status.plan.cheapestChange}}'` has the next step; {PLAN} "
        "shows every term.",
        "Do what status.plan.cheapestChange says: more spec.resources.gpus, a smaller spec.context.maxTokens, or "
        "larger GPUs. `hisparse fit-gpus -f FILE` and `hisparse fit-context -f FILE` find the limits.",
    ),
    Entry(
        Reason.HOST_MEMORY_INSUFFICIENT,
        ((_FEASIBLE, Status.FALSE), _NOT_READY),
        "The pod (weights that are loaded, the host pool, /dev/shm) takes more memory than any node with the GPUs can "
        "give.",
        f"{CAPACITY} says what each kind of node has; `kubectl describe node NODE` has what is allocatable.",
        "Lower spec.kvTier.hostPool, or spec.resources.memory where it was set; or add nodes with more memory.",
    ),
    Entry(
        Reason.NO_MATCHING_NODES,
        ((_FEASIBLE, Status.FALSE), (_FEASIBLE, Status.UNKNOWN), _NOT_READY),
        "False: no node can take a replica. Unknown: no node has a product of spec.resources.gpuProducts now; the plan "
        "is made for it, and pods wait until such a node comes (an autoscaler may bring it).",
        f"{CAPACITY} says why not, by kind of node with one as an example; then {NODES}.",
        "Remove what rejects the nodes: uncordon them, tolerate their taint in spec.placement.tolerations, correct "
        "spec.placement.nodeSelector or spec.resources.gpuProducts, or ask for fewer spec.resources.gpus.",
    ),
    Entry(
        Reason.NO_GPU_LABELS,
        ((_FEASIBLE, Status.UNKNOWN), _NOT_READY),
        "No node carries the label nvidia.com/gpu.product, so nobody can say which GPU it has. Pods are made only "
        "where spec.resources.gpuProducts names one.",
        f"{NODES}.",
        "Install NVIDIA GPU feature discovery (part of the GPU operator), or name the product in "
        "spec.resources.gpuProducts.",
    ),
    Entry(
        Reason.NODES_NOT_VISIBLE,
        ((_FEASIBLE, Status.UNKNOWN), _NOT_READY),
        "The operator serves single namespaces or lacks the right to list nodes: the plan rests on "
        "spec.resources.gpuProducts, or on H200 where it is absent. Pods are made; the scheduler knows the nodes.",
        "`kubectl auth can-i list nodes --as=system:serviceaccount:hisparse:hisparse-operator`.",
        "Name the product in spec.resources.gpuProducts, so that the plan is for the right GPU; or bind the "
        "ClusterRole hisparse-operator-cluster and start the operator without `--namespace`.",
    ),
    Entry(
        Reason.UNKNOWN_MODEL_FACTS,
        ((_FEASIBLE, Status.UNKNOWN), _NOT_READY),
        "The config.json of the model could not be read from the hub (not there, gated, no way out of the cluster). It "
        "is tried again every five minutes.",
        f"{DESCRIBE}: the message has what the hub answered.",
        "Put the model's config.json into spec.model.config and the size of its weights into spec.model.facts.weights, "
        "or let the operator reach the hub.",
    ),
)
