"""From the spec to the revision that pods should be of: accepted, planned, frozen or found frozen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

from hisparse.errors import SpecError, SpecErrors
from hisparse.model import ModelFacts, needs_hub
from hisparse.spec import HiSparseInferenceSpec
from hisparse_operator.decide import planning, planstatus, render, revisions, shapes
from hisparse_operator.decide.conditions import Condition, Status
from hisparse_operator.decide.identity import Parent, family, parent_of
from hisparse_operator.decide.planning import Planned
from hisparse_operator.decide.reasons import ConditionType, Reason
from hisparse_operator.decide.recall import REMEMBERED, Same, spec_of
from hisparse_operator.decide.revisions import Revision
from hisparse_operator.settings import OperatorSettings
from hisparse_operator.world import HubFiles, Object, World


@dataclass(frozen=True)
class Intent:
    """What the spec comes to.

    spec is None where it cannot be read. digest names the revision of this spec, None likewise. target is the
    revision that pods should be of: that of this spec, or, where there is none (invalid, does not fit), the one that
    was wanted last, which is then held. created: target is new in this pass. quiet: paused or planOnly is true, also
    beside something that cannot be read.
    """

    accepted: Condition
    spec: HiSparseInferenceSpec | None = None
    planned: Planned | None = None
    digest: str | None = None
    target: Revision | None = None
    created: bool = False
    quiet: bool = False

    @property
    def rolled_out(self) -> bool:
        """Whether the target is the revision of this spec."""
        return self.target is not None and self.target.hash == self.digest and self.accepted.true


def hub_model(world: World) -> tuple[str, str] | None:
    """The repository and revision whose files on the hub are needed; None where nothing would be done with them."""
    try:
        spec, _ = spec_of(world.inference)
    except SpecError:
        return None
    source = spec.model.hugging_face
    if source is None or not needs_hub(spec.model):
        return None
    ours = family(world, parent_of(world.inference)).ours
    known = revisions.read(ours)
    digest = _digest(Same(spec), revisions.sticky_template_version(spec, known, ours))
    if revisions.by_hash(known, digest) is not None:
        return None  # frozen: what the hub says today changes nothing
    return source.repo, source.revision or "main"


def resolve(world: World, parent: Parent, known: tuple[Revision, ...], settings: OperatorSettings) -> Intent:
    """Judge the spec and find, or make, its revision. known are those that exist, the last wanted at the end."""
    raw = world.inference.get("spec") or {}
    quiet = raw.get("paused") is True or raw.get("planOnly") is True
    return replace(_resolve(world, parent, known, settings), quiet=quiet)


def _resolve(world: World, parent: Parent, known: tuple[Revision, ...], settings: OperatorSettings) -> Intent:
    held = _held(world, known)
    try:
        spec, strange = spec_of(world.inference)
    except SpecError as error:
        return Intent(_refused(error, Reason.INVALID_SPEC), target=held)
    if wrong := _shape_faults(Same(spec)):
        return Intent(_refused(SpecErrors(wrong), Reason.INVALID_SPEC), target=held)
    template_version = revisions.sticky_template_version(spec, known, world)
    digest = _digest(Same(spec), template_version)
    found = revisions.by_hash(known, digest)
    facts = _facts(Same(spec), Same(world.hub))
    if isinstance(facts, Condition):
        return Intent(facts, spec=spec, digest=digest, target=found or held)

    accepted = Condition(ConditionType.ACCEPTED, Status.TRUE, Reason.VALID, _accepted(strange))
    if isinstance(facts, Planned):
        return Intent(accepted, spec, facts, digest, revisions.newest(found, known) if found else held)
    planned = _planner(Same(world.nodes), settings)(Same(spec), Same(facts))
    if found is not None:
        return Intent(accepted, spec, planned, digest, revisions.newest(found, known))
    if not planned.runs or spec.paused or spec.plan_only:
        return Intent(accepted, spec, planned, digest, held)
    made = render.new_revision(parent, digest, template_version, spec, facts, planned, settings)
    made = revisions.as_it_was(made, world)
    return Intent(accepted, spec, planned, digest, revisions.newest(made, known), created=True)


def plan_feasible(intent: Intent, *, all_scheduled: bool) -> Condition | None:
    """PlanFeasible. A revision that exists and runs has proved that it fits, whatever is free or cordoned today."""
    today = intent.planned
    if today is None:
        return None
    wanted = ConditionType.PLAN_FEASIBLE
    plan = today.plan
    if not intent.rolled_out or intent.created or intent.target is None:
        said = f"{today.message}: {planstatus.summary(plan)}" if plan is not None and today.runs else today.message
        return Condition(wanted, today.status, today.reason, said)
    frozen = f"revision {intent.target.hash} ({intent.target.plan.get('summary', 'planned earlier')})"
    if today.runs:
        return Condition(wanted, today.status, today.reason, f"{frozen}; {today.message}")
    if all_scheduled or today.reason is Reason.UNKNOWN_MODEL_FACTS:
        return Condition(
            wanted,
            Status.TRUE,
            Reason.FITS,
            f"{frozen} was planned before and stays; a new plan could not be made today: {today.message}",
        )
    return Condition(wanted, today.status, today.reason, f"{today.message}; {frozen} was planned before and stays")


def _held(world: World, known: tuple[Revision, ...]) -> Revision | None:
    """The revision that was wanted last: the status says it; the highest number does where the status is lost."""
    said = (world.inference.get("status") or {}).get("updateRevision")
    return revisions.by_hash(known, said) or (known[-1] if known else None)


def _accepted(strange: tuple[str, ...]) -> str:
    if not strange:
        return "the spec can be used as it is"
    are = "is a field" if len(strange) == 1 else "are fields"
    return (
        f"the spec can be used; {', '.join(strange)} {are} of a newer CRD that this operator does not know and leaves "
        "out: upgrade the operator"
    )


@lru_cache(maxsize=REMEMBERED)
def _shape_faults(spec: Same[HiSparseInferenceSpec]) -> tuple[SpecError, ...]:
    return shapes.faults(spec.value)


@lru_cache(maxsize=REMEMBERED)
def _digest(spec: Same[HiSparseInferenceSpec], template_version: int) -> str:
    return revisions.intent_hash(spec.value, template_version)


@lru_cache(maxsize=REMEMBERED)
def _facts(spec: Same[HiSparseInferenceSpec], hub: Same[HubFiles | None]) -> ModelFacts | Planned | Condition:
    """The model's facts, Planned where they cannot be had now, a Condition where the spec is refused for them."""
    try:
        facts = planning.model_facts(spec.value, hub.value)
    except SpecError as error:
        return _refused(error, Reason.UNSUPPORTED_MODEL)
    try:
        if isinstance(facts, ModelFacts):
            planning.check(spec.value, facts)
    except SpecError as error:
        return _refused(error, Reason.INVALID_SPEC)
    return facts


@lru_cache(maxsize=2)
def _planner(
    nodes: Same[tuple[Object, ...] | None], settings: OperatorSettings
) -> Callable[[Same[HiSparseInferenceSpec], Same[ModelFacts]], Planned]:
    """Plans for these nodes. What was planned for the nodes as they were before goes with them."""

    @lru_cache(maxsize=REMEMBERED)
    def plan_for(spec: Same[HiSparseInferenceSpec], facts: Same[ModelFacts]) -> Planned:
        return planning.plan_for(spec.value, facts.value, nodes.value, settings)

    return plan_for


def _refused(error: SpecError, reason: Reason) -> Condition:
    told = "; ".join(str(one) for one in error.errors)
    return Condition(ConditionType.ACCEPTED, Status.FALSE, reason, told)
