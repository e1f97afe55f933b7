"""Does it fit somewhere: model facts, one plan per kind of node, and what PlanFeasible says about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

from hisparse.acceptance import accept
from hisparse.dialect import PINNED_VERSION
from hisparse.errors import SpecErrors
from hisparse.hardware import NodeClass, gpu_named
from hisparse.model import ModelFacts, facts_for, needs_hub
from hisparse.plan import Plan, Shortfall, Target
from hisparse.planner import plan as plan_once
from hisparse.planner import smallest
from hisparse.rounding import round_up
from hisparse.spec import HiSparseInferenceSpec
from hisparse.target import target_of
from hisparse.units import GIB, format_bytes
from hisparse_operator.decide import planstatus
from hisparse_operator.decide.capacity import (
    PRODUCT_LABEL,
    Needs,
    Offer,
    Rejected,
    Rejection,
    Survey,
    allocatable,
    grouped,
    known_products,
    named_classes,
    needs_of,
    survey,
)
from hisparse_operator.decide.conditions import Status
from hisparse_operator.decide.reasons import Reason
from hisparse_operator.settings import OperatorSettings
from hisparse_operator.world import HubFiles, Object

_SHOWN_REJECTIONS: Final = 4

# the same few kinds of node and specs come by at every pass, and a plan depends on nothing else
plan: Final = lru_cache(maxsize=2048)(plan_once)


@dataclass(frozen=True)
class Planned:
    """What the planner says today. plan carries the flags, made for the smallest kind of node that fits.

    products are what the pods' node affinity lists; empty where no label could hold them. runs: a new revision may
    get pods. capacity is status.capacity, None where the operator may not look. notes are warnings about the choice.
    """

    status: Status
    reason: Reason
    message: str
    plan: Plan | None = None
    shortfall: Shortfall | None = None
    products: tuple[str, ...] = ()
    capacity: Mapping[str, Any] | None = None
    runs: bool = False
    notes: tuple[str, ...] = ()


def model_facts(spec: HiSparseInferenceSpec, hub: HubFiles | None) -> ModelFacts | Planned:
    """The model's facts; Planned where they cannot be had now. Raises SpecError where a fact is missing for good."""
    if needs_hub(spec.model) and (hub is None or hub.config is None):
        repo = spec.model.hugging_face.repo if spec.model.hugging_face else ""
        problem = hub.problem if hub is not None and hub.problem else "the hub was not asked"
        return Planned(
            Status.UNKNOWN,
            Reason.UNKNOWN_MODEL_FACTS,
            f"spec.model.huggingFace.repo: config.json of {repo} could not be read ({problem}); put it into "
            "spec.model.config and the size of the weights into spec.model.facts.weights",
        )
    return facts_for(
        spec.model,
        hub_config=hub.config if hub else None,
        hub_index=hub.safetensors_index if hub else None,
    )


def check(spec: HiSparseInferenceSpec, model: ModelFacts) -> None:
    """Raise SpecErrors for what no schema can know."""
    if faults := accept(model, target_of(spec)):
        raise SpecErrors(faults)


def plan_for(
    spec: HiSparseInferenceSpec, model: ModelFacts, nodes: Sequence[Object] | None, settings: OperatorSettings
) -> Planned:
    """Plan a replica for every kind of node that is there, or that was named."""
    target = target_of(spec)
    needs = needs_of(spec, download_bytes(spec, model))
    if nodes is None:
        return _unseen(spec, model, target, needs, settings)
    seen = survey(nodes, needs)
    if seen.offers:
        return _seen(model, target, seen)
    if needs.products and not seen.products_seen & set(needs.products):
        return _named(model, target, needs, seen)
    capacity = _capacity((), seen.rejected)
    if not seen.any_labelled:
        return Planned(
            Status.UNKNOWN,
            Reason.NO_GPU_LABELS,
            f"no node carries the label {PRODUCT_LABEL}, so no plan can be made; install GPU feature discovery, or "
            f"name the product in resources.gpuProducts (known: {known_products()})",
            capacity=capacity,
        )
    return Planned(
        Status.FALSE,
        Reason.NO_MATCHING_NODES,
        f"no node can hold a replica of {needs.gpus} {needs.gpu_resource}: {_told(seen.rejected)}",
        capacity=capacity,
    )


def download_bytes(spec: HiSparseInferenceSpec, model: ModelFacts) -> int:
    """Local disk for weights that every start downloads: 10 % more than they are, for files that are being written."""
    if spec.model.hugging_face is None or spec.model.cache is not None:
        return 0
    return round_up(model.weight_bytes * 11 // 10, GIB)


def engine_version(spec: HiSparseInferenceSpec) -> str:
    """The vLLM release whose flags and metrics apply."""
    return (spec.engine.version if spec.engine else None) or PINNED_VERSION


def _seen(model: ModelFacts, target: Target, seen: Survey) -> Planned:
    results = [(offer, plan(model, offer.node_class, target)) for offer in seen.offers]
    plans = [(offer, result) for offer, result in results if isinstance(result, Plan)]
    short = [(offer, result) for offer, result in results if isinstance(result, Shortfall)]
    rejected = [*seen.rejected, *(offer.rejected(result.reason, _says(result)) for offer, result in short)]
    if not plans:
        closest = min((result for _, result in short), key=lambda result: result.distance)
        return Planned(
            Status.FALSE,
            _reason(closest),
            f"{closest.node.product}: {_says(closest)}",
            shortfall=closest,
            capacity=_capacity((), rejected),
        )
    chosen = smallest([result for _, result in plans])
    holds = [offer for offer, _ in plans if (offer.node_class.host_memory_bytes or 0) >= chosen.host.pod]
    rejected += [
        offer.rejected(
            Rejection.HOST_MEMORY_INSUFFICIENT,
            f"{offer.nodes[0]} has {format_bytes(offer.node_class.host_memory_bytes or 0)} of memory and the pod takes "
            f"{format_bytes(chosen.host.pod)}; lower kvTier.hostPool to use it",
        )
        for offer, _ in plans
        if offer not in holds
    ]
    capacity = _capacity(holds, rejected)
    if not holds:
        return Planned(
            Status.FALSE,
            Reason.HOST_MEMORY_INSUFFICIENT,
            f"the pod takes {format_bytes(chosen.host.pod)} of memory and no node with the GPUs has it; lower "
            "resources.memory or kvTier.hostPool",
            plan=chosen,
            capacity=capacity,
        )
    products = tuple(sorted({offer.node_class.product for offer in holds}))
    count = sum(len(offer.nodes) for offer in holds)
    return Planned(
        Status.TRUE,
        Reason.FITS,
        f"fits {count} {'node' if count == 1 else 'nodes'} with {', '.join(products)}",
        plan=chosen,
        products=products,
        capacity=capacity,
        runs=True,
        notes=_held_back(chosen, plans),
    )


def _held_back(chosen: Plan, plans: Sequence[tuple[Offer, Plan]]) -> tuple[str, ...]:
    """One pod template has to run on every kind of node that fits, so the smallest decides for all; that is said."""
    product = chosen.node.product
    better: dict[str, int] = {}
    for offer, other in plans:
        if other.node.product != product and planstatus.summary(other) != planstatus.summary(chosen):
            better[other.node.product] = better.get(other.node.product, 0) + len(offer.nodes)
    if not better:
        return ()
    small = [name for offer, _ in plans if offer.node_class.product == product for name in offer.nodes]
    others = f" and {len(small) - 1} more" if len(small) > 1 else ""
    count = sum(better.values())
    more = f"{count} {'node' if count == 1 else 'nodes'} with {', '.join(sorted(better))} could hold more"
    return (
        f"planned for {product} because of node {small[0]}{others}, and {more}; set resources.gpuProducts "
        f"[{', '.join(sorted(better))}] to plan for {'it' if len(better) == 1 else 'them'}",
    )


def _named(model: ModelFacts, target: Target, needs: Needs, seen: Survey) -> Planned:
    """No node shows a product that was named: it may be an autoscaler's to bring, or nobody labels the nodes."""
    capacity = _capacity((), seen.rejected)
    unlabelled = seen.unlabelled if not seen.any_labelled else ()
    memory = min((allocatable(node, "memory") for node in unlabelled), default=None)
    classes = named_classes(needs.products, needs, memory)
    if not classes:
        return replace(_nothing_known(needs.products), capacity=capacity)
    if unlabelled:
        reason = Reason.NO_GPU_LABELS
        why = f"no node carries {PRODUCT_LABEL}, so nobody has checked it; pods go wherever the GPUs are free"
    elif seen.any_labelled:
        reason, why = Reason.NO_MATCHING_NODES, "no node has it now; pods wait until one comes"
    else:
        reason, why = Reason.NO_GPU_LABELS, f"no node carries {PRODUCT_LABEL} now; pods wait until one does"
    assumed = _assumed(model, target, classes, reason, f"planned for {{}}, as resources.gpuProducts says: {why}")
    return replace(assumed, capacity=capacity, products=() if unlabelled else assumed.products)


def _unseen(
    spec: HiSparseInferenceSpec, model: ModelFacts, target: Target, needs: Needs, settings: OperatorSettings
) -> Planned:
    assumed = gpu_named(settings.assumed_gpu)
    products = needs.products or (assumed.products if assumed else ())
    classes = named_classes(products, needs, None)
    if not classes:
        return _nothing_known(products)
    source = "resources.gpuProducts says" if spec.resources.gpu_products else "nothing else is named (set gpuProducts)"
    return _assumed(
        model,
        target,
        classes,
        Reason.NODES_NOT_VISIBLE,
        f"this operator may not look at nodes: planned for {{}}, as {source}; the scheduler knows whether one is there",
    )


def _assumed(model: ModelFacts, target: Target, classes: Iterable[NodeClass], reason: Reason, message: str) -> Planned:
    results = [plan(model, node_class, target) for node_class in classes]
    plans = [result for result in results if isinstance(result, Plan)]
    if not plans:
        short = min(
            (result for result in results if isinstance(result, Shortfall)),
            key=lambda result: result.distance,
        )
        return Planned(Status.FALSE, _reason(short), f"{short.node.product}: {_says(short)}", shortfall=short)
    products = tuple(sorted({result.node.product for result in plans}))
    return Planned(
        Status.UNKNOWN,
        reason,
        message.format(", ".join(products)),
        plan=smallest(plans),
        products=products,
        runs=True,
    )


def _nothing_known(products: Sequence[str]) -> Planned:
    return Planned(
        Status.FALSE,
        Reason.NO_MATCHING_NODES,
        f"resources.gpuProducts: the memory of {', '.join(products)} is not known to this release; known are "
        f"{known_products()}",
    )


def _capacity(holds: Sequence[Offer], rejected: Iterable[Rejected]) -> dict[str, Any]:
    told = [one.document() for one in grouped(rejected)]
    return {"candidateNodes": sum(len(offer.nodes) for offer in holds)} | ({"rejected": told} if told else {})


def _reason(shortfall: Shortfall) -> Reason:
    """A shortfall's reason is one of ours; the planner and we share the words."""
    return Reason(shortfall.reason)


def _says(shortfall: Shortfall) -> str:
    return f"{shortfall.limit.message}; {shortfall.limit.remedy}"


def _told(rejected: Sequence[Rejected]) -> str:
    if not rejected:
        return "there is no node at all"
    told = [f"{len(one.nodes)} {one.reason} ({one.message})" for one in rejected[:_SHOWN_REJECTIONS]]
    more = len(rejected) - len(told)
    return "; ".join(told) + (f"; and {more} more in status.capacity.rejected" if more > 0 else "")
