"""RoPE positions: what a config.json takes without more scaling, and what a longer context would have to set.

The rules are those of vLLM 0.30 to 0.33, which agree; releases before 0.30 took original x factor for YaRN and ignored
max_position_embeddings. Sources in vLLM 0.33: config/model.py `_get_and_verify_max_len` (what it accepts),
transformers_utils/model_arch_config_convertor.py `derive_max_model_len_and_key` (the keys of the length),
transformers_utils/config.py `patch_legacy_rope_type` (old names), config/model.py `_apply_dict_overrides` (how
--hf-overrides lands) and model_executor/layers/rotary_embedding/ (types, their keys and the rows of their tables).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from typing import Any, Final

from hisparse.config import nested_model
from hisparse.errors import SpecError
from hisparse.rounding import ceil


class RopeState(StrEnum):
    """How a context length stands to the positions of a model."""

    NATIVE = "Native"
    """The model has these positions and nothing is stretched."""
    SCALED_IN_CONFIG = "ScaledInConfig"
    """The config.json itself stretches positions far enough; nothing has to be set."""
    NEEDS_SCALING = "NeedsScaling"
    """Too long for the config as it is; RopeAdvice.hf_overrides would reach it."""
    CANNOT_SCALE = "CannotScale"
    """Too long, and no setting of vLLM reaches it."""


_ALREADY_SCALED: Final = frozenset({"longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling"})
"""Types whose max_position_embeddings vLLM takes as it stands; that of the others it multiplies by the factor."""

_YARN: Final = frozenset({"yarn", "deepseek_yarn", "deepseek_llama_scaling"})
"""Types whose rotation table has original x factor rows. DeepSeek models turn every type into one of the last two."""

_REPLACEABLE: Final = _YARN | {"default", "llama3", "linear", "dynamic"}
"""Types that YaRN (or, for linear, a larger factor) can take the place of."""

_KNOWN: Final = _REPLACEABLE | {"longrope", "proportional", "ntk", "mllama4", "bailing_mrope", "openpangu"}
"""What rotary_embedding/__init__.py builds; anything else stops vLLM at start-up."""

_RENAMED: Final = {"su": "longrope", "mrope": "default", "telechat3-yarn": "yarn"}

_LENGTH_KEYS: Final = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "model_max_length",
    "max_target_positions",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)
_OF_THE_OLD_TYPE: Final = frozenset(
    {"low_freq_factor", "high_freq_factor", "alpha", "max_trained_positions", "short_factor", "long_factor"}
)
_NAMED_APART: Final = frozenset({"rope_type", "type", "factor", "original_max_position_embeddings", "rope_theta"})

_ANSWER_ROOM: Final = {("qwen3", 40_960): 32_768, ("qwen3_moe", 40_960): 32_768}
"""Trained positions where max_position_embeddings also counts room for the answer, by model type and positions.

Source: model cards of Qwen3, which scale from 32,768.
"""


@dataclass(frozen=True)
class RopeParameters:
    """One set of RoPE parameters, with the names that vLLM gives to old types.

    factor is None where the config has none (or null). original_positions is original_max_position_embeddings.
    carried are the other keys, which an override must repeat: partial_rotary_factor, mrope_section, beta_fast.
    """

    rope_type: str
    factor: Fraction | None
    original_positions: int | None
    theta: int | float | None
    carried: Mapping[str, Any] = field(hash=False)

    @property
    def stretches(self) -> bool:
        """Whether positions are turned in another way than the plain base and width say.

        Dynamic scaling by a factor does not: its base comes out unchanged unless max_trained_positions is set
        (dynamic_ntk_scaling_rope.py). By alpha it does (dynamic_ntk_alpha_rope.py).
        """
        if self.rope_type in ("llama3", "longrope"):
            return True
        if self.rope_type == "dynamic":
            return not self.carried.keys().isdisjoint({"alpha", "max_trained_positions"})
        return self.rope_type in (*_YARN, "linear", "ntk") and (self.factor or 1) != 1

    @property
    def replaceable(self) -> bool:
        """Whether YaRN, or a larger linear factor, can take the place of this set."""
        if self.carried.get("use_fope") or (self.rope_type == "dynamic" and self.stretches):
            return False
        return self.rope_type in _REPLACEABLE


@dataclass(frozen=True)
class RopeFacts:
    """What a config.json says about positions.

    positions is the length that vLLM derives from it before any factor, lengths the keys that hold one.
    parameters are empty where the config names no RoPE, several where layer types differ (layer_types names them).
    nested: the language model sits under text_config. dual_chunk: dual chunk attention, whose table knows no scaling.
    """

    model_type: str
    positions: int
    lengths: Mapping[str, int] = field(hash=False)
    parameters: tuple[RopeParameters, ...]
    layer_types: tuple[str, ...]
    nested: bool
    dual_chunk: bool

    @property
    def accepted(self) -> int:
        """The largest --max-model-len that vLLM starts with: `_get_and_verify_max_len`.

        Where several sets differ, the last factor counts, as there. Gemma 3 is exempt from factors by name.
        """
        factor = Fraction(1)
        if "gemma3" not in self.model_type:
            for one in self.parameters:
                if one.rope_type not in _ALREADY_SCALED and one.factor is not None:
                    factor = one.factor
        return int(self.positions * factor)

    @property
    def rows(self) -> int:
        """Positions for which vLLM builds a rotation: the fewest of all parameter sets.

        YaRN: original x factor. Linear: positions x factor. All others, dynamic and ntk included: positions.
        """
        return min((self._rows(one) for one in self.parameters), default=self.positions)

    def _rows(self, one: RopeParameters) -> int:
        if self.dual_chunk or one.factor is None:
            return self.positions
        if one.rope_type in _YARN:
            return int((one.original_positions or self.positions) * one.factor)
        return int(self.positions * one.factor) if one.rope_type == "linear" else self.positions

    @property
    def usable(self) -> int:
        """The longest context without further scaling: accepted by vLLM and with a rotation for every position."""
        return min(self.accepted, self.rows)

    @property
    def trained(self) -> int:
        """Positions that a YaRN factor counts from.

        The original ones of a YaRN config; else those of the config, since llama3, longrope and Gemma 3 were trained
        at the stretched length.
        """
        originals = [one.original_positions for one in self.parameters if one.rope_type in _YARN]
        if originals and originals[0] is not None:
            return originals[0]
        return _ANSWER_ROOM.get((self.model_type, self.positions), self.positions)


@dataclass(frozen=True)
class RopeAdvice:
    """The answer for one context length.

    usable is what the config takes as it is. factor, original_positions and hf_overrides (the JSON of --hf-overrides)
    are set in state NeedsScaling only. cost says what the scaling in force, or the advised one, does to answers; trap
    why the environment variable that silences vLLM is no way out. Both are empty where there is nothing to say.
    """

    state: RopeState
    sentence: str
    usable: int
    factor: Fraction | None = None
    original_positions: int | None = None
    hf_overrides: str | None = None
    cost: str = ""
    trap: str = ""


def read_rope(config: Mapping[str, Any], *, max_positions: int | None = None) -> RopeFacts:
    """The RoPE facts of a config.json: rope_scaling or rope_parameters, flat or by layer type, also under text_config.

    max_positions takes the place of the config's length (model.facts.maxPositions); vLLM reads its own config, so it
    changes nothing there. Raises SpecError where neither has one, or where a factor or length is not a number.
    """
    inner = nested_model(config)
    text = config
    if inner is not None:
        text = {**config, **{key: value for key, value in inner.items() if value is not None}}
    lengths = {key: _count(text, key) for key in _LENGTH_KEYS if text.get(key) is not None}
    # Cohere's model_max_length wins; of the other keys the smallest does
    positions = max_positions or lengths.get("model_max_length") or min(lengths.values(), default=0)
    if not positions:
        raise SpecError(
            "spec.model.facts.maxPositions",
            "max_position_embeddings is missing from the model's config.json; set it here",
        )
    found = text.get("rope_scaling") or text.get("rope_parameters")
    layers: tuple[str, ...] = ()
    sets: list[Mapping[str, Any]] = [found] if isinstance(found, Mapping) else []
    if isinstance(found, Mapping) and (by_layer := _by_layer(found)):
        layers, sets = tuple(by_layer), list(by_layer.values())
    elif "rope_local_base_freq" in text or "gemma3" in str(text.get("model_type")):
        # the form of Gemma 3 before transformers 5: the flat set is that of the global layers
        layers = ("full_attention", "sliding_attention")
        sets = [*sets, {"rope_theta": text.get("rope_local_base_freq")}]
    elif not sets and _theta(text) is not None:
        sets = [{}]
    return RopeFacts(
        model_type=str(text.get("model_type") or ""),
        positions=positions,
        lengths=lengths,
        parameters=tuple(_parameters(one, text, positions) for one in sets),
        layer_types=layers,
        nested=text is not config,
        dual_chunk=isinstance(text.get("dual_chunk_attention_config"), Mapping),
    )


def _by_layer(found: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The sets of rope_parameters that are nested by layer type; no flat set holds a mapping.

    Scalars beside them are dropped, and so are layer types without RoPE (null), as in vLLM's `iter_rope_parameters`.
    """
    return {str(key): value for key, value in found.items() if isinstance(value, Mapping)}


def _parameters(one: Mapping[str, Any], text: Mapping[str, Any], positions: int) -> RopeParameters:
    name = str(one.get("rope_type") or one.get("type") or "default")
    rope_type = _RENAMED.get(name, name)
    carried = {key: value for key, value in one.items() if key not in _NAMED_APART}
    for key in ("partial_rotary_factor", "rotary_pct", "rotary_emb_fraction"):
        if text.get(key) is not None:
            carried.setdefault("partial_rotary_factor", text[key])
    original = None
    if rope_type in _ALREADY_SCALED:
        # Phi-3 has it beside the set; transformers falls back to the positions
        key = "original_max_position_embeddings"
        original = next((_count(place, key) for place in (one, text) if place.get(key) is not None), positions)
    return RopeParameters(
        rope_type=rope_type,
        factor=_factor(one),
        original_positions=original,
        theta=_theta(one) or _theta(text),
        carried=carried,
    )


def _count(place: Mapping[str, Any], key: str) -> int:
    value = place[key]
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise SpecError("spec.model.config", f"{key} is {value!r}, not a whole number of at least 1; correct it")
    return value


def _factor(one: Mapping[str, Any]) -> Fraction | None:
    value = one.get("factor")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise SpecError("spec.model.config", f"the RoPE factor is {value!r}, not a number above 0; correct it")
    return Fraction(str(value))


def _theta(place: Mapping[str, Any]) -> int | float | None:
    for key in ("rope_theta", "rotary_emb_base"):
        value = place.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
            return value
    return None


def rope_advice(facts: RopeFacts, tokens: int) -> RopeAdvice:
    """Whether a context of `tokens` needs scaling, and the setting that vLLM 0.33 would need."""
    unknown = sorted({one.rope_type for one in facts.parameters} - _KNOWN)
    if unknown:
        sentence = f'vLLM knows no rope_type "{unknown[0]}" and does not start; correct rope_scaling in config.json.'
        return RopeAdvice(RopeState.CANNOT_SCALE, sentence, usable=0)
    if tokens <= facts.usable:
        return _reached(facts, tokens)
    beyond = f"{tokens:,} tokens are more than the {facts.usable:,} that the config takes"
    if reason := obstacle(facts):
        sentence = f"{beyond}, and {reason}; lower the context to {facts.usable:,}."
        return RopeAdvice(RopeState.CANNOT_SCALE, sentence, usable=facts.usable, trap=_trap(facts, tokens))
    old = facts.parameters[0]
    rope_type = "linear" if old.rope_type == "linear" else "yarn"
    base = facts.positions if rope_type == "linear" else facts.trained
    # whole numbers, as on model cards (2, 4, 32, 40, 64); the smallest one costs short prompts least
    factor = Fraction(ceil(Fraction(tokens, base)))
    label = "YaRN" if rope_type == "yarn" else "linear scaling"
    return RopeAdvice(
        RopeState.NEEDS_SCALING,
        f"{beyond}: they need {label} with factor {factor} from {base:,} positions.",
        usable=facts.usable,
        factor=factor,
        original_positions=base,
        hf_overrides=rope_overrides(facts, rope_type, factor, base),
        cost=scaling_cost(facts, rope_type, factor, base),
        trap=_trap(facts, tokens),
    )


def _reached(facts: RopeFacts, tokens: int) -> RopeAdvice:
    # up to its original positions longrope keeps to the short factors (phi3_long_rope_scaled_rope.py)
    scaled = [
        one
        for one in facts.parameters
        if one.stretches and not (one.rope_type == "longrope" and tokens <= (one.original_positions or 0))
    ]
    if not scaled:
        sentence = f"{tokens:,} tokens are within the {facts.usable:,} positions of the model; nothing to set."
        return RopeAdvice(RopeState.NATIVE, sentence, usable=facts.usable)
    one = scaled[0]
    counted = f" with factor {format_factor(one.factor)}" if one.factor is not None else ""
    source = f" from {one.original_positions:,} positions" if one.original_positions else ""
    return RopeAdvice(
        RopeState.SCALED_IN_CONFIG,
        f"The config scales RoPE ({one.rope_type}{counted}{source}) and takes {facts.usable:,} tokens; nothing to set.",
        usable=facts.usable,
        cost=(
            f"Above {one.original_positions or 0:,} tokens of max-model-len vLLM uses the long factors for every "
            "prompt, short ones too."
            if one.rope_type == "longrope"
            else "The scaling is in force at every length, short prompts too, as the model was published."
        ),
    )


def obstacle(facts: RopeFacts) -> str | None:
    """Why no setting helps, as a clause; None where one does."""
    if not facts.parameters:
        return "config.json names neither RoPE parameters nor a rope_theta, so there is nothing to scale"
    if facts.dual_chunk:
        return "dual chunk attention has its own rotation table, which takes no scaling"
    if len(facts.parameters) > 1 or facts.layer_types:
        return f"its layer types ({', '.join(facts.layer_types)}) turn positions differently, so no one setting fits"
    one = facts.parameters[0]
    if one.rope_type == "longrope":
        return "longrope has a factor for every dimension, searched for this one length"
    if not one.replaceable:
        name = "fope" if one.carried.get("use_fope") else one.rope_type
        return f"no scaling of vLLM can take the place of {name}"
    if one.theta is None:
        return "an override replaces all RoPE parameters, but config.json does not name the rope_theta to repeat"
    return None


def rope_overrides(facts: RopeFacts, rope_type: str, factor: Fraction, base: int) -> str:
    """The JSON of --hf-overrides for a scaling by `factor` from `base` positions; `obstacle` has to be None.

    vLLM replaces a rope_parameters at the top as a whole, after old names were translated, and merges one under
    text_config; so every key that matters is repeated, with its new name. Numbers are floats because
    linear_scaling_rope.py fails on a whole one. Only YaRN takes the positions as already scaled.
    """
    old = facts.parameters[0]
    parameters: dict[str, Any] = {"rope_type": rope_type, "factor": float(factor)}
    if rope_type == "yarn":
        parameters["original_max_position_embeddings"] = base
    parameters["rope_theta"] = old.theta
    parameters |= {key: value for key, value in old.carried.items() if key not in _OF_THE_OLD_TYPE}
    overrides: dict[str, Any] = {"rope_parameters": parameters}
    if rope_type == "yarn":
        longest = int(factor * base)
        keys = {"max_position_embeddings", *(key for key, length in facts.lengths.items() if length < longest)}
        overrides |= {key: longest for key in _LENGTH_KEYS if key in keys}
    return json.dumps({"text_config": overrides} if facts.nested else overrides, separators=(",", ":"))


def scaling_cost(facts: RopeFacts, rope_type: str, factor: Fraction, base: int) -> str:
    """What a scaling by `factor` from `base` positions does to answers; `obstacle` has to be None."""
    old, by = facts.parameters[0], format_factor(factor)
    if rope_type == "linear":
        return (
            f"Linear scaling divides every position by {by}, in short prompts too; a model that was not trained at "
            "this factor loses accuracy at every length."
        )
    cost = (
        f"YaRN in vLLM is static: factor {by} turns every prompt, also those that fit {base:,} positions, and their "
        "answers may get worse. Use it only where long prompts are the rule and the model card names it."
    )
    if old.rope_type == "llama3":
        return f"{cost} It also replaces the llama3 scaling that the model was trained with: measure recall first."
    if old.rope_type in _YARN and (old.factor or 1) < factor:
        return f"{cost} The model was published with factor {format_factor(old.factor)}: measure recall first."
    return cost


def _trap(facts: RopeFacts, tokens: int) -> str:
    if facts.rows < tokens:
        after = f"positions from {facts.rows:,} on have no rotation, so answers turn to noise or the engine dies"
    else:
        after = f"positions from {facts.usable:,} on are outside what config.json promises"
    return f"VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 only silences vLLM's refusal: {after}. Leave it unset."


def format_factor(value: Fraction | None) -> str:
    """A factor as people write it: 4, 0.5, 1.25."""
    exact = Fraction(1) if value is None else value
    return str(exact.numerator) if exact.denominator == 1 else f"{float(exact):g}"
