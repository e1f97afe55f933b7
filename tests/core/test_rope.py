"""Positions of real models' configs, and the setting that vLLM needs to go beyond them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisparse.errors import SpecError
from hisparse.rope import RopeAdvice, RopeState, read_rope, rope_advice

# the fields of public config.json files that say something about positions
QWEN_2_5 = {"model_type": "qwen2", "max_position_embeddings": 32_768, "rope_theta": 1_000_000.0}
QWEN_3 = {"model_type": "qwen3", "max_position_embeddings": 40_960, "rope_theta": 1_000_000, "rope_scaling": None}
LLAMA_3_1: Mapping[str, Any] = {
    "model_type": "llama",
    "max_position_embeddings": 131_072,
    "rope_theta": 500_000.0,
    "rope_scaling": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
}
DEEPSEEK_V3: Mapping[str, Any] = {
    "model_type": "deepseek_v3",
    "max_position_embeddings": 163_840,
    "rope_theta": 10_000,
    "rope_scaling": {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 40,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
        "type": "yarn",
    },
}
KIMI_K2_0905: Mapping[str, Any] = {
    "model_type": "kimi_k2",
    "max_position_embeddings": 262_144,
    "rope_theta": 50_000.0,
    "rope_scaling": {
        "beta_fast": 1.0,
        "beta_slow": 1.0,
        "factor": 64.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
        "type": "yarn",
    },
}
GPT_OSS: Mapping[str, Any] = {
    "model_type": "gpt_oss",
    "max_position_embeddings": 131_072,
    "rope_theta": 150_000,
    "rope_scaling": {
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "rope_type": "yarn",
        "truncate": False,
    },
}
GEMMA_3: Mapping[str, Any] = {
    "model_type": "gemma3_text",
    "max_position_embeddings": 131_072,
    "rope_theta": 1_000_000,
    "rope_local_base_freq": 10_000,
    "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
}
GEMMA_3_NESTED: Mapping[str, Any] = {
    "model_type": "gemma3_text",
    "max_position_embeddings": 131_072,
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1_000_000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    },
}
GEMMA_4: Mapping[str, Any] = {
    "text_config": {
        "model_type": "gemma4_text",
        "max_position_embeddings": 262_144,
        "rope_parameters": {
            "full_attention": {
                "rope_type": "proportional",
                "partial_rotary_factor": 0.25,
                "rope_theta": 1_000_000.0,
            },
            "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
        },
    }
}
MISTRAL = {"model_type": "mistral", "max_position_embeddings": 32_768, "rope_theta": 1_000_000.0}
PHI_3: Mapping[str, Any] = {
    "model_type": "phi3",
    "max_position_embeddings": 131_072,
    "original_max_position_embeddings": 4096,
    "rope_theta": 10_000.0,
    "rope_scaling": {"long_factor": [1.08, 1.1], "short_factor": [1.0, 1.02], "type": "longrope"},
}
DYNAMIC: Mapping[str, Any] = {
    "model_type": "internlm2",
    "max_position_embeddings": 32_768,
    "rope_theta": 1_000_000,
    "rope_scaling": {"type": "dynamic", "factor": 2.0},
}
LINEAR: Mapping[str, Any] = {
    "model_type": "llama",
    "max_position_embeddings": 4096,
    "rope_theta": 10_000.0,
    "rope_scaling": {"type": "linear", "factor": 4},
}
QWEN_2_5_VL: Mapping[str, Any] = {
    "model_type": "qwen2_5_vl",
    "text_config": {
        "model_type": "qwen2_5_vl_text",
        "max_position_embeddings": 128_000,
        "rope_theta": 1_000_000.0,
        "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
    },
}
GLM_5_3 = {"model_type": "glm_moe_dsa", "max_position_embeddings": 1_048_576, "rope_theta": 8_000_000}
GLM_4 = {
    "model_type": "glm4_moe",
    "max_position_embeddings": 131_072,
    "rope_theta": 10_000,
    "partial_rotary_factor": 0.5,
}


def advice(config: Mapping[str, Any], tokens: int) -> RopeAdvice:
    return rope_advice(read_rope(config), tokens)


def overridden(config: Mapping[str, Any], answer: RopeAdvice) -> dict[str, Any]:
    """The config as vLLM has it after --hf-overrides: dicts at the top replaced, those under text_config merged."""
    assert answer.hf_overrides is not None
    result = {key: value for key, value in config.items() if key != "rope_scaling"}
    for key, value in json.loads(answer.hf_overrides).items():
        if key == "text_config":
            inner = {name: old for name, old in config[key].items() if name != "rope_scaling"}
            result[key] = {**inner, **value}
        else:
            result[key] = value
    return result


@pytest.mark.parametrize(
    ("config", "accepted", "rows"),
    [
        pytest.param(QWEN_2_5, 32_768, 32_768, id="Qwen2.5"),
        pytest.param(QWEN_3, 40_960, 40_960, id="Qwen3"),
        pytest.param(LLAMA_3_1, 131_072, 131_072, id="Llama-3.1: llama3 takes the positions as they stand"),
        pytest.param(DEEPSEEK_V3, 163_840, 163_840, id="DeepSeek-V3: 4096 x 40"),
        pytest.param(KIMI_K2_0905, 262_144, 262_144, id="Kimi-K2: 4096 x 64"),
        pytest.param(GPT_OSS, 131_072, 131_072, id="gpt-oss: 4096 x 32"),
        pytest.param(GEMMA_3, 131_072, 131_072, id="Gemma 3: its factor 8 is not applied again"),
        pytest.param(GEMMA_3_NESTED, 131_072, 131_072, id="Gemma 3 as transformers 5 writes it"),
        pytest.param(GEMMA_4, 262_144, 262_144, id="Gemma 4, proportional"),
        pytest.param(PHI_3, 131_072, 131_072, id="Phi-3, longrope"),
        pytest.param(LINEAR, 16_384, 16_384, id="linear: positions x factor"),
        pytest.param(DYNAMIC, 65_536, 32_768, id="dynamic: accepted, but the table does not grow"),
        pytest.param(QWEN_2_5_VL, 128_000, 128_000, id="mrope under text_config"),
    ],
)
def test_what_the_config_takes(config: Mapping[str, Any], accepted: int, rows: int) -> None:
    facts = read_rope(config)
    assert (facts.accepted, facts.rows, facts.usable) == (accepted, rows, min(accepted, rows))


@pytest.mark.parametrize(
    ("config", "tokens", "state"),
    [
        pytest.param(QWEN_2_5, 32_768, RopeState.NATIVE, id="Qwen2.5 to its end"),
        pytest.param(QWEN_2_5, 32_769, RopeState.NEEDS_SCALING, id="Qwen2.5, one more"),
        pytest.param(QWEN_3, 40_960, RopeState.NATIVE, id="Qwen3 with the room for its answer"),
        pytest.param(QWEN_3, 131_072, RopeState.NEEDS_SCALING, id="Qwen3 at 128K"),
        pytest.param(LLAMA_3_1, 131_072, RopeState.SCALED_IN_CONFIG, id="Llama-3.1 at 128K"),
        pytest.param(LLAMA_3_1, 2_097_152, RopeState.NEEDS_SCALING, id="Llama-3.1 at 2M"),
        pytest.param(DEEPSEEK_V3, 163_840, RopeState.SCALED_IN_CONFIG, id="DeepSeek-V3 to its end"),
        pytest.param(DEEPSEEK_V3, 2048, RopeState.SCALED_IN_CONFIG, id="YaRN is static, short contexts too"),
        pytest.param(KIMI_K2_0905, 262_144, RopeState.SCALED_IN_CONFIG, id="Kimi-K2"),
        pytest.param(GPT_OSS, 131_072, RopeState.SCALED_IN_CONFIG, id="gpt-oss"),
        pytest.param(GEMMA_3, 131_072, RopeState.SCALED_IN_CONFIG, id="Gemma 3"),
        pytest.param(GEMMA_3, 131_073, RopeState.CANNOT_SCALE, id="Gemma 3, one more"),
        pytest.param(GEMMA_3_NESTED, 131_072, RopeState.SCALED_IN_CONFIG, id="Gemma 3, nested"),
        pytest.param(GEMMA_4, 262_144, RopeState.NATIVE, id="Gemma 4"),
        pytest.param(GEMMA_4, 1_000_000, RopeState.CANNOT_SCALE, id="Gemma 4 at 1M"),
        pytest.param(MISTRAL, 32_768, RopeState.NATIVE, id="Mistral"),
        pytest.param(PHI_3, 4096, RopeState.NATIVE, id="longrope with the short factors"),
        pytest.param(PHI_3, 4097, RopeState.SCALED_IN_CONFIG, id="longrope with the long factors"),
        pytest.param(PHI_3, 131_073, RopeState.CANNOT_SCALE, id="longrope beyond"),
        pytest.param(DYNAMIC, 32_768, RopeState.NATIVE, id="dynamic: its factor does nothing in vLLM"),
        pytest.param(DYNAMIC, 65_536, RopeState.NEEDS_SCALING, id="dynamic: accepted by vLLM, and still wrong"),
        pytest.param(LINEAR, 16_384, RopeState.SCALED_IN_CONFIG, id="linear"),
        pytest.param(QWEN_2_5_VL, 128_000, RopeState.NATIVE, id="mrope is no scaling"),
    ],
)
def test_states(config: Mapping[str, Any], tokens: int, state: RopeState) -> None:
    answer = advice(config, tokens)
    assert answer.state is state
    assert (answer.hf_overrides is not None) is (state is RopeState.NEEDS_SCALING)
    assert bool(answer.trap) is (state in (RopeState.NEEDS_SCALING, RopeState.CANNOT_SCALE))


def test_glm_needs_nothing_up_to_a_million() -> None:
    assert advice(GLM_5_3, 1_048_576).state is RopeState.NATIVE
    assert advice(GLM_5_3, 1_048_577).factor == 2


@pytest.mark.parametrize(
    ("config", "tokens", "factor", "original"),
    [
        pytest.param(QWEN_3, 131_072, 4, 32_768, id="the model card of Qwen3: 4 from 32,768, not from 40,960"),
        pytest.param(QWEN_3, 65_536, 2, 32_768, id="the model card of Qwen3 at 64K"),
        pytest.param(QWEN_2_5, 131_072, 4, 32_768, id="the model card of Qwen2.5"),
        pytest.param(QWEN_2_5, 100_000, 4, 32_768, id="rounded up"),
        pytest.param(LLAMA_3_1, 2_097_152, 16, 131_072, id="Llama-3.1 counts from its stretched positions"),
        pytest.param(DEEPSEEK_V3, 1_048_576, 256, 4096, id="YaRN counts from its own original positions"),
        pytest.param(MISTRAL, 131_072, 4, 32_768, id="Mistral"),
        pytest.param(LINEAR, 32_768, 8, 4096, id="linear stays linear"),
    ],
)
def test_factors(config: Mapping[str, Any], tokens: int, factor: int, original: int) -> None:
    answer = advice(config, tokens)
    assert (answer.factor, answer.original_positions) == (Fraction(factor), original)


def test_the_override_of_qwen3() -> None:
    """The engine replaces RoPE parameters as a whole, and for YaRN takes the positions as already scaled."""
    assert json.loads(advice(QWEN_3, 131_072).hf_overrides or "") == {
        "rope_parameters": {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 32_768,
            "rope_theta": 1_000_000,
        },
        "max_position_embeddings": 131_072,
    }


def test_the_override_repeats_what_the_old_parameters_held() -> None:
    deepseek = json.loads(advice(DEEPSEEK_V3, 327_680).hf_overrides or "")["rope_parameters"]
    assert deepseek == {
        "rope_type": "yarn",
        "factor": 80.0,
        "original_max_position_embeddings": 4096,
        "rope_theta": 10_000,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    }
    assert json.loads(advice(GLM_4, 262_144).hf_overrides or "")["rope_parameters"]["partial_rotary_factor"] == 0.5
    llama = json.loads(advice(LLAMA_3_1, 262_144).hf_overrides or "")["rope_parameters"]
    assert "low_freq_factor" not in llama


def test_an_override_under_text_config() -> None:
    assert json.loads(advice(QWEN_2_5_VL, 256_000).hf_overrides or "") == {
        "text_config": {
            "rope_parameters": {
                "rope_type": "yarn",
                "factor": 2.0,
                "original_max_position_embeddings": 128_000,
                "rope_theta": 1_000_000.0,
                "mrope_section": [16, 24, 24],
            },
            "max_position_embeddings": 256_000,
        }
    }


def test_linear_keeps_the_positions_and_writes_a_float() -> None:
    """vLLM multiplies positions by a linear factor itself, and iterates over a whole number as if it were a list."""
    written = advice(LINEAR, 32_768).hf_overrides or ""
    assert '"factor":8.0' in written
    assert "max_position_embeddings" not in json.loads(written)


def test_a_model_card_setting_that_forgets_the_positions() -> None:
    """Since 0.30 YaRN alone lifts nothing: the positions in config.json have to be the scaled ones."""
    scaled = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32_768}
    config = QWEN_2_5 | {"rope_scaling": scaled}
    assert read_rope(config).usable == 32_768
    answer = advice(config, 131_072)
    assert answer.state is RopeState.NEEDS_SCALING
    assert json.loads(answer.hf_overrides or "")["max_position_embeddings"] == 131_072
    assert advice(config | {"max_position_embeddings": 131_072}, 131_072).state is RopeState.SCALED_IN_CONFIG


def test_positions_without_a_row_are_not_usable() -> None:
    """A YaRN config with more positions than original x factor starts, and reads past its table."""
    scaled = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32_768}
    facts = read_rope(QWEN_2_5 | {"max_position_embeddings": 131_072, "rope_scaling": scaled})
    assert (facts.accepted, facts.usable) == (131_072, 65_536)
    assert rope_advice(facts, 131_072).factor == 4


def test_every_key_that_holds_the_length_is_raised() -> None:
    answer = advice(QWEN_2_5 | {"seq_length": 8192, "max_position_embeddings": 32_768}, 16_384)
    assert answer.usable == 8192
    written = json.loads(answer.hf_overrides or "")
    assert {key: written[key] for key in written if key != "rope_parameters"} == {
        "max_position_embeddings": 16_384,
        "seq_length": 16_384,
    }


def test_model_max_length_wins() -> None:
    """Command-R: vLLM takes model_max_length over max_position_embeddings."""
    config = {"model_type": "cohere", "max_position_embeddings": 8192, "model_max_length": 131_072, "rope_theta": 8e6}
    assert read_rope(config).usable == 131_072


@pytest.mark.parametrize(
    ("config", "says"),
    [
        pytest.param(GEMMA_3, "full_attention, sliding_attention", id="layer types"),
        pytest.param(PHI_3, "every dimension", id="longrope"),
        pytest.param({"model_type": "gpt2", "n_positions": 1024}, "neither RoPE", id="no RoPE"),
        pytest.param({**QWEN_2_5, "dual_chunk_attention_config": {"chunk_size": 8192}}, "dual chunk", id="dual chunk"),
        pytest.param(
            {"max_position_embeddings": 4096, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
            "does not name the rope_theta",
            id="no base",
        ),
        pytest.param(
            {**QWEN_2_5, "rope_scaling": {"rope_type": "dynamic", "alpha": 1000.0, "factor": 1.0}},
            "the place of dynamic",
            id="alpha changes the base",
        ),
        pytest.param({**QWEN_2_5, "rope_parameters": {"use_fope": True}}, "the place of fope", id="fope"),
    ],
)
def test_what_cannot_be_scaled_says_why_and_how_far_it_goes(config: Mapping[str, Any], says: str) -> None:
    facts = read_rope(config)
    answer = rope_advice(facts, 10_000_000)
    assert answer.state is RopeState.CANNOT_SCALE
    assert says in answer.sentence
    assert f"lower the context to {facts.usable:,}" in answer.sentence
    assert "VLLM_ALLOW_LONG_MAX_MODEL_LEN" in answer.trap


def test_a_type_that_vllm_does_not_know_stops_it_at_any_length() -> None:
    answer = advice(QWEN_2_5 | {"rope_scaling": {"rope_type": "spiral", "factor": 2.0}}, 1)
    assert answer.state is RopeState.CANNOT_SCALE
    assert '"spiral"' in answer.sentence


def test_the_cost_is_told() -> None:
    assert "static" in advice(QWEN_3, 131_072).cost
    assert "llama3 scaling that the model was trained with" in advice(LLAMA_3_1, 2_097_152).cost
    assert "published with factor 40" in advice(DEEPSEEK_V3, 1_048_576).cost
    assert "long factors" in advice(PHI_3, 131_072).cost
    assert not advice(QWEN_3, 32_768).cost


def test_the_trap_is_told_apart() -> None:
    assert "have no rotation" in advice(QWEN_3, 131_072).trap
    # the table of YaRN is longer than the positions: vLLM would read it, but the config does not vouch for it
    assert "outside what config.json promises" in advice({**DEEPSEEK_V3, "max_position_embeddings": 4096}, 8192).trap


def test_the_fact_takes_the_place_of_a_length_that_config_json_leaves_to_its_class() -> None:
    """config.json of Gemma 3 4B and 27B names no positions: transformers fills them in."""
    config = {key: value for key, value in GEMMA_3.items() if key != "max_position_embeddings"}
    with pytest.raises(SpecError, match="max_position_embeddings is missing") as caught:
        read_rope(config)
    assert caught.value.field == "spec.model.facts.maxPositions"
    assert read_rope(config, max_positions=131_072).usable == 131_072


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"max_position_embeddings": "32768"}, id="length as text"),
        pytest.param({"max_position_embeddings": True}, id="length as a truth value"),
        pytest.param({"rope_scaling": {"rope_type": "yarn", "factor": "4"}}, id="factor as text"),
        pytest.param({"rope_scaling": {"rope_type": "yarn", "factor": 0}}, id="factor of nothing"),
        pytest.param({"rope_scaling": {"rope_type": "yarn", "factor": float("nan")}}, id="factor that is no number"),
        pytest.param(
            {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 0}},
            id="original positions of nothing",
        ),
    ],
)
def test_a_config_that_makes_no_sense(change: Mapping[str, Any]) -> None:
    with pytest.raises(SpecError) as caught:
        read_rope({**QWEN_2_5, **change})
    assert caught.value.field == "spec.model.config"


@pytest.mark.parametrize(
    ("scaling", "rows"),
    [
        pytest.param({"rope_type": "linear", "factor": 4.0}, 32_768, id="not stretched by a linear factor"),
        pytest.param(
            {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 8192}, 32_768, id="nor cut by YaRN"
        ),
    ],
)
def test_dual_chunk_attention_has_a_rotation_for_the_positions_of_the_config(
    scaling: Mapping[str, Any], rows: int
) -> None:
    """rotary_embedding/__init__.py builds its table from max_position_embeddings, whatever the scaling says."""
    plain = read_rope(QWEN_2_5 | {"rope_scaling": scaling})
    chunked = read_rope(QWEN_2_5 | {"rope_scaling": scaling, "dual_chunk_attention_config": {"chunk_size": 8192}})
    assert chunked.rows == chunked.usable == rows
    assert plain.rows != rows


def test_a_null_factor_is_one() -> None:
    """vLLM warns and goes on with 1."""
    facts = read_rope(MISTRAL | {"rope_scaling": {"rope_type": "linear", "factor": None}})
    assert facts.usable == 32_768
    assert rope_advice(facts, 32_768).state is RopeState.NATIVE


SCALABLE = (
    QWEN_2_5,
    QWEN_3,
    LLAMA_3_1,
    DEEPSEEK_V3,
    KIMI_K2_0905,
    GPT_OSS,
    MISTRAL,
    DYNAMIC,
    LINEAR,
    QWEN_2_5_VL,
    GLM_4,
)


@given(config=st.sampled_from(SCALABLE), tokens=st.integers(1, 16_777_216))
def test_the_override_reaches_what_was_asked_and_one_factor_less_does_not(
    config: Mapping[str, Any], tokens: int
) -> None:
    answer = advice(config, tokens)
    if answer.factor is None or answer.original_positions is None:
        assert tokens <= answer.usable
        return
    after = advice(overridden(config, answer), tokens)
    assert after.state is RopeState.SCALED_IN_CONFIG
    assert after.usable == answer.factor * answer.original_positions >= tokens
    assert (answer.factor - 1) * answer.original_positions < tokens
