"""The formulas of hisparse.hbm in the words of a calculator, with its constants."""

from __future__ import annotations

from dataclasses import replace

from hisparse.accounting import accounting
from hisparse.architectures import Attention
from hisparse.arithmetic import Figure, ceil_of, figure, floor_of, least_of, most_of
from hisparse.hbm import (
    ACTIVATION_WIDTH,
    BATCHED_TOKENS,
    EIGHT_BIT_ROUTED_COPIES,
    FLOAT32,
    HIDDEN_COPIES,
    USUAL_VOCABULARY,
    WORKSPACE,
    forward_bytes,
    most_sequences,
    position_table_bytes,
)
from hisparse.plan import Plan, Shortfall


def term_figure(answer: Plan | Shortfall, name: str, tokens: int) -> Figure | None:
    """The formula of a term, by its name; None for what was measured, or counted tensor by tensor.

    tokens is max_num_batched_tokens.
    """
    batched = figure(tokens)
    match name:
        case "left free":
            free = _free(answer)
            return free - least_of(_workspace(batched), free) if _has_workspace(answer) else free
        case "prefill workspace":
            return least_of(_workspace(batched), _free(answer))
        case "weights" if answer.model.checkpoint is None:
            return _even_weights(answer)
        case "peak activation":
            return most_of(_forward(answer, batched), _sampling(answer))
        case "position tables":
            return _positions(answer)
    return None


def term_factors(answer: Plan | Shortfall, name: str) -> str:
    """Whose numbers stand in the formula of a term; "" where the term says it all."""
    model = answer.model
    match name:
        case "prefill workspace":
            return f"{WORKSPACE:,} B were measured at {BATCHED_TOKENS:,} tokens (docs/engine-facts.md)"
        case "peak activation":
            forward = f"{ACTIVATION_WIDTH} B a value, {HIDDEN_COPIES} copies of hidden_size {model.hidden_size:,}"
            copies = accounting(answer.target.engine_version).sampling_copies
            logits = f"{model.vocabulary or USUAL_VOCABULARY:,} logits of {FLOAT32} B"
            return f"{forward} and the widest layer's own; of a request {copies} copies of {logits}"
        case "position tables" if model.attention is Attention.DSA:
            each = position_table_bytes(model, 1)
            return f"{each:,} B of each token: of sparse MLA 1.8 to 2.2 KiB were measured (docs/engine-facts.md)"
        case "position tables":
            width = model.latent.rope_dim if model.latent else model.head_dim
            return f"{ACTIVATION_WIDTH} B for each of {width:,} rotated dimensions of a position"
    return ""


def _free(answer: Plan | Shortfall) -> Figure:
    total, percent = figure(answer.node.gpu.memory_bytes), figure(answer.target.utilization_percent)
    return total - floor_of(total * percent / figure(100))


def _has_workspace(answer: Plan | Shortfall) -> bool:
    return any(term.name == "prefill workspace" for term in answer.hbm)


def _workspace(batched: Figure) -> Figure:
    return floor_of(figure(WORKSPACE) * batched / figure(BATCHED_TOKENS))


def _even_weights(answer: Plan | Shortfall) -> Figure:
    """Where no tensor is known: divided over the ranks, and experts over those of all data-parallel ranks."""
    target, model = answer.target, answer.model
    ranks = target.tp * target.pipeline
    if target.data == 1 or not model.expert_bytes:
        return ceil_of(figure(model.weight_bytes) / figure(ranks))
    rest = figure(model.weight_bytes) - figure(model.expert_bytes)
    return ceil_of(rest / figure(ranks)) + ceil_of(figure(model.expert_bytes) / figure(ranks * target.data))


def _forward(answer: Plan | Shortfall, batched: Figure) -> Figure:
    model, ranks = answer.model, figure(answer.target.tp)
    hidden = figure(model.hidden_size)
    widest = ceil_of(figure(3) * figure(model.dense_width) / ranks)
    if model.experts_per_token:
        expert = hidden + ceil_of(figure(3) * figure(model.expert_width) / ranks)
        routed = figure(model.experts_per_token) * expert
        widest = most_of(widest, routed * figure(EIGHT_BIT_ROUTED_COPIES) if _regroups(answer) else routed)
    return batched * figure(ACTIVATION_WIDTH) * (figure(HIDDEN_COPIES) * hidden + widest)


def _regroups(answer: Plan | Shortfall) -> bool:
    """Whether hisparse.hbm counts the experts' tokens twice: it says more than of the same model in 16 bits."""
    model, gpu = answer.model, answer.node.gpu
    wide = replace(model, weight_width=2, dense_width=0)
    here = replace(model, dense_width=0)
    return forward_bytes(here, gpu, tensor=1, tokens=1) > forward_bytes(wide, gpu, tensor=1, tokens=1)


def _sampling(answer: Plan | Shortfall) -> Figure:
    copies = figure(accounting(answer.target.engine_version).sampling_copies)
    vocabulary = figure(answer.model.vocabulary or USUAL_VOCABULARY)
    return floor_of(copies * figure(most_sequences(answer.target)) * vocabulary * figure(FLOAT32))


def _positions(answer: Plan | Shortfall) -> Figure:
    model, tokens = answer.model, figure(answer.target.max_tokens)
    if model.attention is Attention.DSA:
        return figure(position_table_bytes(model, 1)) * tokens
    width = model.latent.rope_dim if model.latent else model.head_dim
    return figure(ACTIVATION_WIDTH) * figure(width) * most_of(tokens, figure(model.max_positions))
