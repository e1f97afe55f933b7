"""Which nodes can hold a replica, which cannot, and why.

Allocatable, labels and taints are judged here. What is free at this moment is the scheduler's word.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from itertools import groupby
from typing import Any, Final

from hisparse.errors import UnitError
from hisparse.hardware import GPUS, Gpu, NodeClass, gpu_of_product
from hisparse.spec import HiSparseInferenceSpec
from hisparse.units import GIB, format_bytes, parse_quantity
from hisparse_operator.decide import admission
from hisparse_operator.decide.identity import labels_of, name_of
from hisparse_operator.world import Object

PRODUCT_LABEL: Final = "nvidia.com/gpu.product"
GPU_RESOURCE: Final = "nvidia.com/gpu"
CPU_PER_GPU: Final = 1
DEFAULT_TOLERATION: Final[Mapping[str, Any]] = {"key": GPU_RESOURCE, "operator": "Exists"}


class Rejection(StrEnum):
    """Why a node cannot hold a replica; shortfalls of a plan add their own reason."""

    SELECTOR_MISMATCH = "SelectorMismatch"
    NO_GPUS = "NoGPUs"
    TOO_FEW_GPUS = "TooFewGPUs"
    NO_PRODUCT_LABEL = "NoProductLabel"
    PRODUCT_NOT_LISTED = "ProductNotListed"
    UNKNOWN_PRODUCT = "UnknownProduct"
    CORDONED = "Cordoned"
    TAINT_NOT_TOLERATED = "TaintNotTolerated"
    LOCAL_DISK_INSUFFICIENT = "LocalDiskInsufficient"
    HOST_MEMORY_INSUFFICIENT = "HostMemoryInsufficient"
    CPU_INSUFFICIENT = "CPUInsufficient"


@dataclass(frozen=True)
class Needs:
    """What a replica asks of a node, before any plan is made. disk_named: disk_bytes is resources.ephemeralStorage."""

    gpus: int
    gpu_resource: str = GPU_RESOURCE
    products: tuple[str, ...] = ()
    memory_bytes: int | None = None
    disk_bytes: int = 0
    disk_named: bool = False
    cpu: str = "0"
    tolerations: tuple[Mapping[str, Any], ...] = (DEFAULT_TOLERATION,)
    selector: Mapping[str, str] = field(default_factory=dict)
    affinity: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Rejected:
    """Nodes that cannot hold a replica for one reason; the message is about the example."""

    reason: str
    product: str | None
    nodes: tuple[str, ...]
    message: str

    def document(self) -> dict[str, Any]:
        """One entry of status.capacity.rejected."""
        entry = {"reason": self.reason, "count": len(self.nodes), "message": self.message, "exampleNode": self.nodes[0]}
        return entry | ({"product": self.product} if self.product else {})


@dataclass(frozen=True)
class Offer:
    """Nodes of one kind that nothing forbids: same product, same number of GPUs, same memory to the GiB."""

    node_class: NodeClass
    nodes: tuple[str, ...]

    def rejected(self, reason: str, message: str) -> Rejected:
        """The same nodes, once a plan has shown that they are too small."""
        return Rejected(reason, self.node_class.product, self.nodes, message)


@dataclass(frozen=True)
class Survey:
    """What the nodes offer. unlabelled: they have the GPUs, and no label that says which."""

    offers: tuple[Offer, ...]
    rejected: tuple[Rejected, ...]
    any_labelled: bool
    unlabelled: tuple[Object, ...] = ()

    @property
    def products_seen(self) -> frozenset[str]:
        """Products that the nodes carry, whether or not they can be used now."""
        return frozenset(
            product
            for product in (*(offer.node_class.product for offer in self.offers), *(r.product for r in self.rejected))
            if product
        )


def needs_of(spec: HiSparseInferenceSpec, disk_bytes: int) -> Needs:
    """The needs of one replica."""
    resources, placement = spec.resources, spec.placement
    return Needs(
        gpus=resources.gpus,
        gpu_resource=resources.gpu_resource_name or GPU_RESOURCE,
        products=tuple(resources.gpu_products or ()),
        memory_bytes=parse_quantity(resources.memory) if resources.memory else None,
        disk_bytes=parse_quantity(resources.ephemeral_storage) if resources.ephemeral_storage else disk_bytes,
        disk_named=resources.ephemeral_storage is not None,
        cpu=resources.cpu or str(CPU_PER_GPU * resources.gpus),
        tolerations=tolerations_of(spec),
        selector=(placement.node_selector or {}) if placement else {},
        affinity=(placement.affinity or {}) if placement else {},
    )


def tolerations_of(spec: HiSparseInferenceSpec) -> tuple[Mapping[str, Any], ...]:
    """The user's tolerations and the one that every GPU pod needs; a custom GPU resource may be the taint's name."""
    placement = spec.placement
    given = tuple(placement.tolerations or ()) if placement else ()
    resource = spec.resources.gpu_resource_name or GPU_RESOURCE
    ours = tuple({"key": key, "operator": "Exists"} for key in sorted({GPU_RESOURCE, resource}))
    return tuple(one for one in ours if one not in given) + given


def survey(nodes: Iterable[Object], needs: Needs) -> Survey:
    """Judge every node by itself and group the rest by what they offer."""
    ordered = sorted(nodes, key=name_of)
    offered: list[tuple[NodeClass, str]] = []
    rejected: list[tuple[str, str | None, str, str]] = []
    unlabelled: list[Object] = []
    for node in ordered:
        product = labels_of(node).get(PRODUCT_LABEL)
        if (fault := _fault(node, product, needs)) is not None:
            rejected.append((fault[0].value, product, name_of(node), fault[1]))
            if fault[0] is Rejection.NO_PRODUCT_LABEL and _fault(node, None, needs, labelled=False) is None:
                unlabelled.append(node)
            continue
        gpu = gpu_of_product(product or "")
        if gpu is not None and product is not None:
            offered.append((_node_class(gpu, product, node, needs), name_of(node)))
    return Survey(
        offers=_offers(offered),
        rejected=grouped(Rejected(reason, product, (name,), message) for reason, product, name, message in rejected),
        any_labelled=any(PRODUCT_LABEL in labels_of(node) for node in ordered),
        unlabelled=tuple(unlabelled),
    )


def grouped(rejected: Iterable[Rejected]) -> tuple[Rejected, ...]:
    """One entry per reason and product, most nodes first."""
    by_cause: dict[tuple[str, str | None], Rejected] = {}
    for one in rejected:
        same = by_cause.get((one.reason, one.product))
        nodes = one.nodes if same is None else tuple(sorted((*same.nodes, *one.nodes)))
        message = one.message if same is None or nodes[0] == one.nodes[0] else same.message
        by_cause[one.reason, one.product] = Rejected(one.reason, one.product, nodes, message)
    return tuple(sorted(by_cause.values(), key=lambda one: (-len(one.nodes), one.reason, one.product or "")))


def named_classes(products: Sequence[str], needs: Needs, memory_bytes: int | None) -> tuple[NodeClass, ...]:
    """Classes for products that a person names and no node shows; memory_bytes None is not judged."""
    return tuple(
        NodeClass(gpu=gpu, gpus=needs.gpus, host_memory_bytes=memory_bytes, product=product)
        for product in products
        if (gpu := gpu_of_product(product)) is not None
    )


def known_products() -> str:
    """Products whose memory we know, for messages."""
    return ", ".join(product for gpu in GPUS for product in gpu.products)


def allocatable(node: Object, resource: str) -> int:
    """Allocatable amount of a resource, 0 where the node does not list it."""
    text = ((node.get("status") or {}).get("allocatable") or {}).get(resource)
    return amount(str(text)) if text is not None else 0


@lru_cache(maxsize=4096)  # nodes of a cluster say the same few amounts over and over
def amount(text: str) -> int:
    """The whole number of a quantity, 0 where it is none."""
    try:
        return parse_quantity(text)
    except UnitError:
        return 0


def millis(text: str) -> int:
    """CPU in thousandths of a core: "191500m" is less than "192"."""
    return amount(text[:-1]) if text.endswith("m") else amount(f"{text}k")


def _fault(node: Object, product: str | None, needs: Needs, *, labelled: bool = True) -> tuple[Rejection, str] | None:
    name, gpus = name_of(node), allocatable(node, needs.gpu_resource)
    if not admission.matches_selector(node, needs.selector) or not admission.matches_affinity(node, needs.affinity):
        return Rejection.SELECTOR_MISMATCH, f"{name} does not match placement.nodeSelector or placement.affinity"
    if gpus == 0:
        return Rejection.NO_GPUS, f"{name} has no allocatable {needs.gpu_resource}"
    if gpus < needs.gpus:
        return (
            Rejection.TOO_FEW_GPUS,
            (
                f"{name} has {gpus} {needs.gpu_resource} and a replica takes {needs.gpus}; lower resources.gpus or use "
                "larger nodes"
            ),
        )
    if labelled and (fault := _product_fault(name, product, needs)) is not None:
        return fault
    if admission.is_cordoned(node):
        return Rejection.CORDONED, f"{name} is cordoned; kubectl uncordon {name} when it may take pods again"
    if (taint := admission.untolerated(node, needs.tolerations)) is not None:
        return (
            Rejection.TAINT_NOT_TOLERATED,
            f"{name} has the taint {admission.told(taint)}; add it to placement.tolerations if the pods may run there",
        )
    return _size_fault(node, needs)


def _product_fault(name: str, product: str | None, needs: Needs) -> tuple[Rejection, str] | None:
    if not product:
        return (
            Rejection.NO_PRODUCT_LABEL,
            (
                f"{name} has no label {PRODUCT_LABEL}; install GPU feature discovery or name a product in "
                "resources.gpuProducts"
            ),
        )
    if needs.products and product not in needs.products:
        return (
            Rejection.PRODUCT_NOT_LISTED,
            f"{name} has {product}, and resources.gpuProducts lists {', '.join(needs.products)}",
        )
    if gpu_of_product(product) is None:
        return (
            Rejection.UNKNOWN_PRODUCT,
            f"{name} has {product}, whose memory this release does not know; known are {known_products()}",
        )
    return None


def _size_fault(node: Object, needs: Needs) -> tuple[Rejection, str] | None:
    name = name_of(node)
    disk, memory = allocatable(node, "ephemeral-storage"), allocatable(node, "memory")
    if disk < needs.disk_bytes:
        has = f"{name} has {format_bytes(disk)} of local disk and"
        wanted = format_bytes(needs.disk_bytes)
        return (
            Rejection.LOCAL_DISK_INSUFFICIENT,
            f"{has} resources.ephemeralStorage is {wanted}; lower it or use nodes with a larger disk"
            if needs.disk_named
            else f"{has} a replica takes {wanted}; set model.cache, so that weights are kept there, "
            "or resources.ephemeralStorage if less is enough",
        )
    cpu = str(((node.get("status") or {}).get("allocatable") or {}).get("cpu", "0"))
    if millis(cpu) < millis(needs.cpu):
        return Rejection.CPU_INSUFFICIENT, f"{name} has {cpu} CPUs and a replica takes {needs.cpu}; lower resources.cpu"
    if needs.memory_bytes is not None and memory < needs.memory_bytes:
        return (
            Rejection.HOST_MEMORY_INSUFFICIENT,
            (
                f"{name} has {format_bytes(memory)} of memory and resources.memory is "
                f"{format_bytes(needs.memory_bytes)}; lower it or use larger nodes"
            ),
        )
    return None


def _node_class(gpu: Gpu, product: str, node: Object, needs: Needs) -> NodeClass:
    # nodes of one kind differ by a few MiB of what firmware and kernel take; a plan is not made for each
    memory = allocatable(node, "memory") // GIB * GIB
    return NodeClass(
        gpu=gpu,
        gpus=allocatable(node, needs.gpu_resource),
        host_memory_bytes=memory,
        product=product,
    )


def _offers(offered: Sequence[tuple[NodeClass, str]]) -> tuple[Offer, ...]:
    def kind(pair: tuple[NodeClass, str]) -> tuple[str, int, int]:
        return pair[0].product, pair[0].gpus, pair[0].host_memory_bytes or 0

    found = []
    for _, group in groupby(sorted(offered, key=lambda pair: (kind(pair), pair[1])), key=kind):
        members = list(group)
        first = members[0][0]
        node_class = NodeClass(first.gpu, first.gpus, first.host_memory_bytes, first.product)
        found.append(Offer(node_class, tuple(name for _, name in members)))
    return tuple(found)
