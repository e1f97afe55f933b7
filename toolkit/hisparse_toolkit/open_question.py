"""Questions that leave something open: the length of the requests, the number of GPUs, or the scaling of positions."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from hisparse.errors import UnitError
from hisparse.hardware import GPUS, NodeClass
from hisparse.rope import RopeAdvice, RopeState, rope_advice
from hisparse.rules import at_path
from hisparse_toolkit.counts import bounded
from hisparse_toolkit.counts import tokens as tokens_of
from hisparse_toolkit.manifest import Manifest
from hisparse_toolkit.problems import BadInputError
from hisparse_toolkit.question import Options, Question, question_of

_ANY_LENGTH: Final = "1"
_ANY_GPUS: Final = "1"


@dataclass(frozen=True)
class Scaled:
    """A sound question, and the RoPE scaling that was taken for granted because nobody said one."""

    question: Question
    assumed: RopeAdvice | None

    @property
    def warnings(self) -> tuple[str, ...]:
        """What has to be set for the answer to hold, and what it costs; empty where nothing was assumed."""
        found = self.assumed
        if found is None:
            return ()
        return (
            f"positions: {found.sentence} This answer takes that for granted: --rope-factor {found.factor} "
            f"--rope-original {found.original_positions}. {found.cost}",
        )

    def beside(self, others: tuple[str, ...]) -> tuple[str, ...]:
        """These warnings and a plan's own, without what the plan says of the same scaling once more."""
        cost = self.assumed.cost if self.assumed is not None and self.assumed.cost else None
        return (*self.warnings, *(one for one in others if cost is None or cost not in one))


def without_length(manifest: Manifest | None, options: Options) -> Question:
    """A question whose maxTokens does not matter. Raises NoAnswerError."""
    if manifest is not None:
        return question_of(manifest, options)
    short = replace(options, context=options.typical or _ANY_LENGTH)
    if options.rope_factor is None and options.rope_original is None:
        return question_of(None, short)
    # scaling is only sound beyond the positions, and those have to be known first
    plain = question_of(None, replace(short, rope_factor=None, rope_original=None, rope_type=None))
    return question_of(None, replace(options, context=str(plain.model.max_positions + 1)))


def without_gpus(manifest: Manifest | None, options: Options) -> Scaled:
    """A question whose number of GPUs does not matter. Raises NoAnswerError."""
    return scaled(manifest, options if manifest is not None else replace(options, gpus=_ANY_GPUS))


def scaled(manifest: Manifest | None, options: Options) -> Scaled:
    """The question; where it is too long for the model's positions alone, with the scaling that would reach it.

    Raises NoAnswerError.
    """
    try:
        return Scaled(question_of(manifest, options), None)
    except BadInputError as error:
        found = _scaling(manifest, options)
        if found is None:
            raise
        if found.factor is None or found.original_positions is None:
            raise error from None
        kind = "Linear" if '"linear"' in (found.hf_overrides or "") else "Yarn"
        reached = replace(
            options,
            rope_factor=str(found.factor),
            rope_original=str(found.original_positions),
            rope_type=kind,
        )
        return Scaled(question_of(manifest, reached), found)


def _scaling(manifest: Manifest | None, options: Options) -> RopeAdvice | None:
    """The scaling that the length needs; None where that is not what is at fault, or where none is known."""
    spec: Any = manifest.spec if manifest else {}
    if options.rope_factor is not None or options.rope_original is not None or at_path(spec, "context.ropeScaling"):
        return None
    try:
        tokens = tokens_of(options.context) if options.context is not None else at_path(spec, "context.maxTokens")
        typical = at_path(spec, "context.typicalTokens")
        short = options.typical or (str(typical) if isinstance(typical, int) else _ANY_LENGTH)
        model = question_of(manifest, replace(options, context=short)).model
    except (BadInputError, UnitError):
        return None
    if not isinstance(tokens, int) or tokens <= model.max_positions:
        return None
    found = rope_advice(model.rope, tokens)
    return found if found.state is RopeState.NEEDS_SCALING else None


def requests_of(options: Options) -> int:
    """How many requests have to run at once: --concurrency, else one."""
    return 1 if options.concurrency is None else bounded("--concurrency", options.concurrency)


def kinds(question: Question, manifest: Manifest | None, options: Options) -> tuple[NodeClass, ...]:
    """The node classes to try: the GPU that was named, else the manifest's products, else every GPU that is known."""
    named = options.gpu is not None or (manifest is not None and question.spec.resources.gpu_products)
    if named:
        return question.nodes
    node = question.nodes[0]
    return tuple(NodeClass(gpu, node.gpus, node.host_memory_bytes, gpu.products[0]) for gpu in GPUS)


def plan_command(file: str | None, options: Options, **changes: str | None) -> str:
    """The `hisparse plan` that gives the same answer, as one types it."""
    wish = replace(options, **changes)  # type: ignore[arg-type]
    words = ["hisparse", "plan", *(("-f", file) if file is not None else ())]
    for field in fields(wish):
        value, name = getattr(wish, field.name), field.name.replace("_", "-")
        if isinstance(value, bool):
            words += [f"--{name}"] if value else ([f"--no-{name}"] if field.name == "expert" else [])
        elif value is not None:
            words += [f"--{name}", value]
    return shlex.join(words)
