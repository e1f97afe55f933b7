"""The experts of a mixture as a config.json names them: how many, how wide, how many a token uses, in which layers.

Sources: vLLM 0.33, transformers_utils/config.py (CONFIG_FIELD_ALIASES) and the model files deepseek_v2.py,
qwen3_moe.py, ernie45_moe.py, llama4.py, jamba.py, gemma4.py and gpt_oss.py; HunYuan-A13B, whose widths are a list.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from hisparse.config import ConfigFields, of_each_layer

_COUNT: Final = ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts")
_PER_TOKEN: Final = (
    "num_experts_per_tok",
    "num_experts_per_token",
    "top_k_experts",
    "experts_per_token",
    "moe_topk",
    "moe_top_k",
    "moe_k",
)
_WIDTH: Final = ("moe_intermediate_size", "expert_intermediate_size", "intermediate_size")


@dataclass(frozen=True)
class ExpertFields:
    """Routed experts of a model; count is 0 for a dense one.

    per_token are those that one token uses, None where the config does not say; width is that of an expert's MLP (the
    widest, where layers differ), None likewise.
    """

    count: int = 0
    per_token: int | None = None
    width: int | None = None


def read_experts(fields: ConfigFields) -> ExpertFields:
    """The experts that a config.json names. Raises SpecError where a field is not a number."""
    count = fields.widest(*_COUNT) or 0
    # one expert is an MLP to HunYuan and Jamba, and has its size
    if count <= 1 or not fields.flag("enable_moe_block", default=True):
        return ExpertFields()
    return ExpertFields(count, fields.widest(*_PER_TOKEN) or None, fields.widest(*_WIDTH) or None)


def expert_layers(fields: ConfigFields, layers: int) -> tuple[bool, ...]:
    """Which layers of the backbone of a mixture have experts. Raises SpecError where a field has another form."""
    kinds = fields.names("mlp_layer_types")
    if kinds is not None:
        return tuple(kind == "sparse" for kind in of_each_layer(kinds, layers, "mlp_layer_types"))
    flags = fields.get("moe_layer_freq")
    if isinstance(flags, list | tuple):
        return tuple(bool(one) for one in of_each_layer(flags, layers, "moe_layer_freq"))
    dense = fields.get("mlp_only_layers")
    never = dense if isinstance(dense, list | tuple) else ()
    # a layer has experts where its place divides the first of these, and its place counted from 1 the second
    every = fields.count("moe_layer_freq", default=1) or 1
    step = fields.count("decoder_sparse_step", "moe_layer_interval", "interleave_moe_layer_step", default=1) or 1
    first = fields.count("first_k_dense_replace", "moe_layer_start_index", "moe_layer_num_skipped", default=0)
    # Ernie writes -1 for the last layer
    last = layers if fields.get("moe_layer_end_index") == -1 else fields.count("moe_layer_end_index", default=layers)
    period = fields.count("expert_layer_period", default=1) or 1
    offset = fields.count("expert_layer_offset", default=0)
    return tuple(
        first <= index <= last
        and index not in never
        and index % every == 0
        and (index + 1) % step == 0
        and index % period == offset % period
        for index in range(layers)
    )
