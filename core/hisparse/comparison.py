"""Variants of one question side by side: what each one fits, holds, takes and loses.

Variants change one thing of the question at a time, so that a row says what that one thing does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction

from hisparse.acceptance import accept, tier_obstacle
from hisparse.hardware import NodeClass
from hisparse.lengths import at_length
from hisparse.losses import Loss, losses
from hisparse.model import ModelFacts
from hisparse.plan import Mode, Plan, Resource, Shortfall, Target
from hisparse.planner import plan
from hisparse.room import GPU_COUNTS
from hisparse.sizing import longest_tokens, on_gpus, positions_of


class Axis(StrEnum):
    """What a variant changes."""

    ASKED = "as asked"
    MODE = "mode"
    KV_DTYPE = "KV dtype"
    GPUS = "GPUs"
    MODEL = "model"
    GPU_KIND = "GPU kind"


@dataclass(frozen=True)
class Variant:
    """One question of the table; value is what its axis is set to."""

    axis: Axis
    value: str
    model: ModelFacts
    node: NodeClass
    target: Target


@dataclass(frozen=True)
class Row:
    """The answer for one variant. answer is None where the question itself does not hold; refusal says why.

    longest is the largest max_tokens with which the variant fits, 0 where none does; positions_bind says that the
    model's positions end there.
    """

    variant: Variant
    answer: Plan | Shortfall | None
    refusal: str
    longest: int
    positions_bind: bool
    losses: tuple[Loss, ...]

    @property
    def plan(self) -> Plan | None:
        """The plan, where the variant fits."""
        return self.answer if isinstance(self.answer, Plan) else None

    @property
    def at_max(self) -> Fraction | None:
        """Requests of the asked length at once."""
        return self.plan.at_max.tier if self.plan else None

    @property
    def at_typical(self) -> Fraction | None:
        """Requests of the typical length at once."""
        return self.plan.at_typical.tier if self.plan else None

    @property
    def kv_bytes(self) -> int | None:
        """HBM for KV on each GPU; of what does not fit as well, and None where no plan got so far."""
        if isinstance(self.answer, Shortfall):
            return self.answer.available if self.answer.limit.resource is Resource.HBM else None
        return self.plan.kv_budget if self.plan else None

    @property
    def host_bytes(self) -> int | None:
        """Host memory of the pod."""
        return self.plan.host.pod if self.plan else None


def variants(
    model: ModelFacts,
    node: NodeClass,
    target: Target,
    *,
    dtypes: Sequence[str],
    models: Sequence[ModelFacts] = (),
    nodes: Sequence[NodeClass] = (),
) -> Iterator[Variant]:
    """The question as asked, and each mode, KV dtype, number of GPUs, model and GPU kind in turn.

    dtypes are those that a spec may name. With models or nodes, only those are varied. What is the same as the
    question asked is left out.
    """
    yield Variant(Axis.ASKED, "", model, node, target)
    for other in models:
        yield Variant(Axis.MODEL, other.name, other, node, _for_model(other, target))
    for kind in nodes:
        yield Variant(Axis.GPU_KIND, kind.gpu.name, model, kind, replace(target, kv_bytes=None))
    if models or nodes:
        return
    for mode in Mode:
        if mode.value != target.mode and _applies(mode, model, target):
            yield Variant(Axis.MODE, mode.value, model, node, replace(target, mode=mode.value))
    for dtype in dtypes:
        if dtype != target.kv_dtype:
            yield Variant(Axis.KV_DTYPE, dtype, model, node, replace(target, kv_dtype=dtype))
    for count in GPU_COUNTS:
        if count != target.gpus and count <= node.gpus:
            yield Variant(Axis.GPUS, str(count), model, node, on_gpus(target, count))


def compare(found: Iterable[Variant]) -> tuple[Row, ...]:
    """The table, one row for each variant, in their order."""
    return tuple(_row(variant) for variant in found)


def _applies(mode: Mode, model: ModelFacts, target: Target) -> bool:
    return mode is not Mode.HISPARSE or not tier_obstacle(model, target)


def _for_model(model: ModelFacts, target: Target) -> Target:
    """The same wish for another model: its scaling is its own."""
    scaled = target.rope_factor is not None and target.max_tokens > model.max_positions
    wish = replace(target, kv_bytes=None)
    return wish if scaled else replace(wish, rope_factor=None, rope_original_tokens=None)


def _row(variant: Variant) -> Row:
    model, node, target = variant.model, variant.node, variant.target
    # a length beyond the positions is a fault of the question, and still there is a longest one
    faults = accept(model, at_length(model, target, min(target.max_tokens, positions_of(model, target))))
    if faults:
        return Row(variant, None, faults[0].message, 0, positions_bind=False, losses=())
    longest = longest_tokens(model, node, target)
    bind = 0 < longest == positions_of(model, target)
    if faults := accept(model, target):
        return Row(variant, None, faults[0].message, longest, positions_bind=bind, losses=())
    answer = plan(model, node, target)
    lost = losses(answer.mode, answer.kv_dtype, model) if isinstance(answer, Plan) else ()
    return Row(variant, answer, "", longest, positions_bind=bind, losses=lost)
