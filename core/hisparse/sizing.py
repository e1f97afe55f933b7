"""The reverse questions: the longest context of given GPUs, and the fewest GPUs for a given context.

Nothing is computed here that the planner does not compute: both are searches over its answers. A search is exact
because each one is over a single mode and a single KV dtype, where what fits at some length fits at every shorter one.
Mode Auto has no such order, since its choice depends on the length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

from hisparse.acceptance import accept, possible_dtypes, tier_obstacle
from hisparse.hardware import Gpu, NodeClass
from hisparse.lengths import at_length, last_that
from hisparse.model import ModelFacts
from hisparse.plan import Mode, Plan, Shortfall, Target
from hisparse.planner import plan, plan_without_advice
from hisparse.room import GPU_COUNTS
from hisparse.rope import RopeAdvice, RopeState, rope_advice
from hisparse.rounding import cdiv, number_text
from hisparse.units import GIB

MOST_TOKENS: Final = 16_777_216
"""The largest context.maxTokens that a spec takes."""

_USUAL_FACTORS: Final = (2, 4, 8)
"""RoPE factors that model cards name."""

_FIRST_PART: Final = 16


# --- the longest context ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Way:
    """One mode and KV dtype, and the longest requests that it holds: `tokens` is 0 where it holds none.

    plan is the plan at that length. beyond says why one token more does not fit; empty where positions end there.
    """

    mode: Mode
    kv_dtype: str
    tokens: int
    plan: Plan | None
    beyond: str


@dataclass(frozen=True)
class RopeStep:
    """What one scaling would give: the longest context with that factor, memory included."""

    factor: int
    tokens: int


@dataclass(frozen=True)
class LongestContext:
    """The longest requests that one replica holds, `requests` of them at once.

    ways are all modes and dtypes that the question allows, the longest first; where two are equal, the one that loses
    less. plan is the answer as the planner gives it for the target as asked; shortfall is why not even one token fits.
    Both are None where one fits and `requests` of them do not.
    positions is the longest request that the model can count as asked. memory_tokens is what memory alone would hold,
    at most MOST_TOKENS. rope is what a context of memory_tokens would have to set, where positions bind.
    """

    model: ModelFacts
    node: NodeClass
    target: Target
    requests: int
    ways: tuple[Way, ...]
    plan: Plan | None
    shortfall: Shortfall | None
    positions: int
    memory_tokens: int
    rope: RopeAdvice | None

    @property
    def tokens(self) -> int:
        """The answer; 0 where not even one token fits."""
        return self.plan.target.max_tokens if self.plan else 0

    @property
    def positions_bind(self) -> bool:
        """Whether the model's positions end before the memory does."""
        return 0 < self.tokens == self.positions < self.memory_tokens

    @property
    def rope_steps(self) -> tuple[RopeStep, ...]:
        """What RoPE scaling would give: the usual factors, and the one that takes all the memory."""
        found = self.rope
        if found is None or found.state is not RopeState.NEEDS_SCALING or found.factor is None:
            return ()
        base, whole = found.original_positions or self.model.rope.trained, int(found.factor)
        factors = sorted({whole, *(one for one in _USUAL_FACTORS if one < whole)})
        steps = (RopeStep(factor, min(base * factor, self.memory_tokens)) for factor in factors)
        return tuple(step for step in steps if step.tokens > self.positions)


def longest_context(model: ModelFacts, node: NodeClass, target: Target, *, requests: int = 1) -> LongestContext:
    """The largest max_tokens with which `target` fits, to the token; its own max_tokens does not matter.

    requests: how many of that length have to run at once. Positions are those of the model, or those that the target's
    RoPE scaling reaches.
    """
    positions = positions_of(model, target)
    first = plan(model, node, at_length(model, target, 1))
    if isinstance(first, Shortfall):
        return LongestContext(model, node, target, requests, (), None, first, positions, 0, None)
    ways = tuple(_way(model, node, one, positions, requests) for one in _single(model, target))
    # a stable sort: modes and dtypes are tried in the order of what they lose
    ways = tuple(sorted(ways, key=lambda way: -way.tokens))
    best = ways[0]
    memory = best.tokens
    if best.tokens == positions:
        memory = max(
            _longest(model, node, one, requests, low=positions, high=MOST_TOKENS)
            for one in _single(model, target)
            if any(way.tokens == positions and _is_way(one, way) for way in ways)
        )
    if best.plan is None:
        # one token fits, and not `requests` of them
        return LongestContext(model, node, target, requests, ways, None, None, positions, 0, None)
    wish = at_length(model, target, best.tokens)
    asked = plan(model, node, wish)
    sound = isinstance(asked, Plan) and _held(asked) >= requests and not accept(model, wish)
    answer = asked if isinstance(asked, Plan) and sound else _chosen(best.plan, asked, first, target, requests)
    rope = rope_advice(model.rope, memory) if memory > positions else None
    return LongestContext(model, node, target, requests, ways, answer, None, positions, memory, rope)


def _chosen(best: Plan, asked: Plan | Shortfall, first: Plan, target: Target, requests: int) -> Plan:
    """The longest way's plan with the reasons of what nobody asked for.

    Where the target as asked ends in the same, its own reason holds, and where one token (`first`) ends in the same KV
    dtype that one's; else it is the length that decided.
    """
    of = f" for {requests:,} requests at once" if requests > 1 else ""
    why = f"holds the longest context{of}"
    mode_reason, dtype_reason = best.mode_reason, best.kv_dtype_reason
    if target.mode == "Auto":
        same = isinstance(asked, Plan) and asked.mode is best.mode
        mode_reason = (
            asked.mode_reason if isinstance(asked, Plan) and same else tier_obstacle(best.model, target) or why
        )
    if target.kv_dtype == "Auto":
        reasons = (one.kv_dtype_reason for one in (asked, first) if isinstance(one, Plan) and _same_dtype(one, best))
        dtype_reason = next(reasons, why)
    return replace(best, mode_reason=mode_reason, kv_dtype_reason=dtype_reason)


def _same_dtype(one: Plan, other: Plan) -> bool:
    return one.kv_dtype == other.kv_dtype


def longest_tokens(model: ModelFacts, node: NodeClass, target: Target, *, requests: int = 1) -> int:
    """The same answer as a number alone; 0 where not even one token fits."""
    if isinstance(plan_without_advice(model, node, at_length(model, target, 1)), Shortfall):
        return 0
    positions = positions_of(model, target)
    return max(_longest(model, node, one, requests, low=0, high=positions) for one in _single(model, target))


def positions_of(model: ModelFacts, target: Target) -> int:
    """The longest request that the model can count, with the target's RoPE scaling where it has one."""
    if target.rope_factor is None:
        return min(MOST_TOKENS, model.max_positions)
    reached = int(target.rope_factor * (target.rope_original_tokens or model.rope.trained))
    return min(MOST_TOKENS, max(model.max_positions, reached))


def _single(model: ModelFacts, target: Target) -> Iterator[Target]:
    """The target with one mode and one dtype: those that Auto may end in, the one that loses least first."""
    modes: tuple[str, ...] = (target.mode,)
    if target.mode == "Auto":
        modes = (Mode.NONE.value,) if tier_obstacle(model, target) else (Mode.NONE.value, Mode.HISPARSE.value)
    for dtype in possible_dtypes(model, target):
        for mode in modes:
            yield replace(target, mode=mode, kv_dtype=dtype)


def _is_way(target: Target, way: Way) -> bool:
    return (target.mode, target.kv_dtype) == (way.mode.value, way.kv_dtype)


def _way(model: ModelFacts, node: NodeClass, target: Target, positions: int, requests: int) -> Way:
    tokens = _longest(model, node, target, requests, low=0, high=positions)
    found = plan_without_advice(model, node, at_length(model, target, tokens)) if tokens else None
    beyond = "" if tokens == positions else _why_not(model, node, at_length(model, target, tokens + 1), requests)
    return Way(Mode(target.mode), target.kv_dtype, tokens, found if isinstance(found, Plan) else None, beyond)


def _longest(model: ModelFacts, node: NodeClass, target: Target, requests: int, *, low: int, high: int) -> int:
    """The largest length from `low` (taken for granted) to `high` that fits."""

    def attempt(tokens: int) -> Plan | None:
        answer = plan_without_advice(model, node, at_length(model, target, tokens))
        return answer if isinstance(answer, Plan) and _held(answer) >= requests else None

    if attempt(high) is not None:
        return high
    return _last(attempt, requests, low, high)


def _last(attempt: Callable[[int], Plan | None], requests: int, low: int, high: int) -> int:
    """The last length before `high` (which does not fit) that fits.

    A bisection that asks first where the last plan's own HBM would end: that is right but for what grows with
    max_model_len outside the KV budget, so a handful of plans is enough.
    """
    known = attempt(low) if low else None
    hinted, part = False, _FIRST_PART
    while high - low > 1:
        hint = high if known is None or hinted else _reach(known, requests, high)
        # a hint that failed was a little too far: one part of what is left is taken off
        hinted = hint < high
        guess = max(low + 1, hint if hinted else high - max(1, (high - low) // part))
        found = attempt(guess)
        if found is not None:
            low, known, hinted = guess, found, False
            part *= _FIRST_PART
        else:
            high = guess
            part = part if hinted else 2
    return low


def _reach(known: Plan, requests: int, high: int) -> int:
    """The longest requests below `high` that the HBM of this plan would hold; `high` where it holds those too."""
    return last_that(lambda tokens: _would_hold(known, requests, tokens), known.target.max_tokens, high)


def _would_hold(known: Plan, requests: int, tokens: int) -> bool:
    plain, tiered = known.plain, known.tiered
    each = cdiv(requests, known.target.data)
    if tiered is None:
        return plain.holds(known.kv_budget, tokens) and plain.concurrency(known.gpu_blocks, tokens) >= each
    free = known.gpu_blocks - plain.reserved_blocks
    return tiered.admission_blocks(tokens) <= free and tiered.gpu_concurrency(known.gpu_blocks, tokens) >= each


def _held(answer: Plan) -> int:
    """Whole requests of max_tokens at once: each data-parallel rank holds whole ones."""
    ranks = answer.target.data
    return ranks * int(answer.at_max.tier / ranks)


def _why_not(model: ModelFacts, node: NodeClass, target: Target, requests: int) -> str:
    answer = plan_without_advice(model, node, target)
    return answer.limit.message if isinstance(answer, Shortfall) else _too_few(answer, requests)


def _too_few(answer: Plan, requests: int) -> str:
    tokens = answer.target.max_tokens
    length = "1 token" if tokens == 1 else f"{tokens:,} tokens"
    return f"{number_text(answer.at_max.tier)} requests of {length} run at once and {requests:,} are wanted"


# --- the fewest GPUs -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fleet:
    """The fewest GPUs of one kind that hold the target, in `plan`; reason is why none do, empty where some do."""

    node: NodeClass
    plan: Plan | None
    reason: str

    @property
    def gpu(self) -> Gpu:
        """The kind of GPU."""
        return self.node.gpu

    @property
    def gpus(self) -> int:
        """How many; 0 where no number does."""
        return self.plan.target.gpus if self.plan else 0

    @property
    def memory_bytes(self) -> int:
        """Memory of all of them."""
        return self.gpus * self.gpu.memory_bytes


def fewest_gpus(
    model: ModelFacts, nodes: Iterable[NodeClass], target: Target, *, requests: int = 1
) -> tuple[Fleet, ...]:
    """The fewest GPUs of each node class that hold `target` on one node, by tensor parallelism alone.

    Fewest first, then least memory in all; what cannot hold it comes last. GPUs and parallelism of the target do not
    matter. requests: how many of max_tokens have to run at once.
    """
    fleets = [_fleet(model, node, target, requests) for node in nodes]
    # a few hundredths of a GiB are drivers, not kinds; what is alike stays in the order of the nodes
    return tuple(sorted(fleets, key=lambda one: (one.plan is None, one.gpus, round(Fraction(one.memory_bytes, GIB)))))


def on_gpus(target: Target, gpus: int) -> Target:
    """The same wish on `gpus` GPUs, all of them one tensor-parallel group."""
    return replace(target, gpus=gpus, tensor=None, data=1, pipeline=1, decode_context=1, kv_bytes=None)


def allowed_counts(model: ModelFacts, node: NodeClass, target: Target) -> tuple[tuple[int, ...], str]:
    """(numbers of GPUs of one node that the model's heads allow, why there is none)."""
    counts = [count for count in GPU_COUNTS if count <= node.gpus]
    faults = {count: accept(model, on_gpus(target, count)) for count in counts}
    good = tuple(count for count in counts if not faults[count])
    return good, "" if good else faults[counts[-1]][0].message


def _holding(model: ModelFacts, node: NodeClass, target: Target, requests: int) -> Plan | Shortfall:
    """What Auto would choose, or what holds more of the longest requests where that holds too few of them.

    Auto looks at usual lengths; whoever asks for many long requests at once has said what matters more.
    """
    chosen = plan_without_advice(model, node, target)
    if not isinstance(chosen, Plan) or _held(chosen) >= requests:
        return chosen
    others = (plan_without_advice(model, node, one) for one in _single(model, target))
    plans = [chosen, *(one for one in others if isinstance(one, Plan))]
    return next((one for one in plans if _held(one) >= requests), max(plans, key=_held))


def _fleet(model: ModelFacts, node: NodeClass, target: Target, requests: int) -> Fleet:
    counts, reason = allowed_counts(model, node, target)
    if not counts:
        return Fleet(node, None, reason)
    for count in counts:
        answer = _holding(model, node, on_gpus(target, count), requests)
        if isinstance(answer, Plan):
            if _held(answer) >= requests:
                return Fleet(node, answer, "")
            reason = _too_few(answer, requests)
            continue
        reason = answer.limit.message
        if answer.hopeless:
            return Fleet(node, None, reason)
    return Fleet(node, None, f"{counts[-1]} are too few: {reason}")
