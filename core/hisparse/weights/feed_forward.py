"""Tensors of what follows the mixer of a layer: a dense MLP, or a router with experts."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from hisparse.config import LARGEST
from hisparse.experts import expert_layers, read_experts
from hisparse.rounding import round_up
from hisparse.weights.families import Backbone
from hisparse.weights.fields import UnknownError
from hisparse.weights.tensors import Part, Split, Tensor, norm


def sparse_layers(model: Backbone) -> tuple[bool, ...]:
    """Which layers of the backbone have experts."""
    if not read_experts(model.fields).count:
        return (False,) * model.layers
    return expert_layers(model.fields, model.layers)


def feed_forward(model: Backbone, *, sparse: bool) -> Iterator[Tensor]:
    """The MLP of one layer. sparse: with experts."""
    fields, hidden, moe = model.fields, model.hidden, model.family.moe
    experts = read_experts(fields).count
    granite = model.architecture == "GraniteMoeHybridForCausalLM"
    if granite:
        width = fields.count("shared_intermediate_size")
        yield from mlp(model, Part.SHARED_EXPERTS if experts else Part.DENSE_MLP, "shared_mlp", width)
    if not sparse:
        if not granite:
            yield from mlp(model, Part.DENSE_MLP, "mlp", _dense_width(model))
        return
    if model.architecture.startswith("Gemma4"):
        # the dense MLP stands beside the experts
        yield from mlp(model, Part.DENSE_MLP, "mlp", _dense_width(model))
        for number in range(3):
            yield norm(f"moe_layernorm_{number}", hidden)
        yield norm("router.scale", hidden + experts)
    yield from mixture(model, hidden)
    shared = fields.count("shared_expert_intermediate_size", default=0)
    if shared:
        yield from mlp(model, Part.SHARED_EXPERTS, f"{moe}.shared_expert", shared)
        yield norm(f"{moe}.shared_expert_gate", hidden)
    elif number := fields.count("n_shared_experts", default=0):
        yield from mlp(model, Part.SHARED_EXPERTS, f"{moe}.shared_experts", number * _expert_width(model))


def mlp(model: Backbone, part: Part, prefix: str, width: int) -> Iterator[Tensor]:
    """A dense MLP or the shared experts, `width` wide in between."""
    split = Split.SHARED_EXPERTS if part is Part.SHARED_EXPERTS else Split.DIVIDED
    bias = model.fields.flag("mlp_bias", default=False)
    for name in ("gate_proj", "up_proj") if model.family.gated else ("up_proj",):
        yield Tensor(part, f"{prefix}.{name}", width, model.hidden, split=split, bias=bias)
    yield Tensor(part, f"{prefix}.down_proj", model.hidden, width, split=split, by_columns=True, bias=bias)


def mixture(model: Backbone, features: int) -> Iterator[Tensor]:
    """Router and routed experts that take `features` features."""
    family, experts, width = model.family, read_experts(model.fields).count, _expert_width(model)
    gate, up, down = (f"{family.moe}.experts.0.{name}" for name in family.expert_names)
    part, split, bias = Part.EXPERTS, Split.EXPERTS, family.expert_bias
    for name in (gate, up) if family.gated else (up,):
        yield Tensor(part, name, width, features, copies=experts, split=split, bias=bias)
    yield Tensor(part, down, features, width, copies=experts, split=split, by_columns=True, bias=bias)
    router = f"{family.moe}.{family.router}"
    yield Tensor(
        Part.OTHER, router, experts, model.hidden, split=Split.REPLICATED, linear=False, bias=family.router_bias
    )


def _expert_width(model: Backbone) -> int:
    width = read_experts(model.fields).width
    if width is None:
        raise UnknownError("moe_intermediate_size")
    return width


def _dense_width(model: Backbone) -> int:
    """Width of the dense MLP; LFM2 derives it from block_ff_dim."""
    fields = model.fields
    if model.architecture != "Lfm2ForCausalLM":
        return fields.count("intermediate_size")
    width = fields.count("block_ff_dim", "intermediate_size")
    if not fields.flag("block_auto_adjust_ff_dim", default=True):
        return width
    multiplier = fields.get("block_ffn_dim_multiplier")
    multiplier = 1 if multiplier is None else multiplier
    if isinstance(multiplier, bool) or not isinstance(multiplier, int | float) or not 0 < multiplier <= LARGEST:
        raise UnknownError("block_ffn_dim_multiplier")
    width = int(Fraction(str(multiplier)) * (2 * width // 3))
    return round_up(width, fields.count("block_multiple_of", default=256) or 1)
