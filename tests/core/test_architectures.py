"""Caches of each layer by architecture, and bytes of states against vLLM's own shapes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from hisparse.architectures import NEMOTRON_BLOCKS, anatomy, layer_count
from hisparse.config import ConfigFields
from hisparse.errors import SpecError
from hisparse.layers import ChunkedAttention, FullAttention, RecurrentState, SlidingWindow
from hisparse.rows import state_bytes

BASE: dict[str, Any] = {
    "num_hidden_layers": 6,
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "sliding_window": 512,
    "attention_chunk_size": 8192,
}
MAMBA2: dict[str, Any] = {"mamba_num_heads": 64, "mamba_head_dim": 64, "ssm_state_size": 128, "conv_kernel": 4}


def kinds(architecture: str, config: dict[str, Any]) -> list[str]:
    found = anatomy(ConfigFields(config), architecture)
    return ["+".join(type(cache).__name__ for cache in layer) for layer in found.layers]


@pytest.mark.parametrize(
    ("architecture", "changes", "full"),
    [
        pytest.param("GptOssForCausalLM", {}, [1, 3, 5], id="every second"),
        pytest.param("Gemma3ForCausalLM", {}, [5], id="every sixth"),
        pytest.param("Gemma3ForCausalLM", {"sliding_window_pattern": 3}, [2, 5], id="as the config says"),
        pytest.param("Gemma4ForCausalLM", {}, [5], id="Gemma 4, every sixth"),
        pytest.param("Cohere2ForCausalLM", {}, [3], id="every fourth"),
    ],
)
def test_layers_in_turns(architecture: str, changes: dict[str, Any], full: list[int]) -> None:
    found = kinds(architecture, BASE | changes)
    assert [index for index, kind in enumerate(found) if kind == FullAttention.__name__] == full
    assert set(found) == {FullAttention.__name__, SlidingWindow.__name__}


@pytest.mark.parametrize(
    ("changes", "full"),
    [
        pytest.param({}, [3], id="every fourth has no RoPE"),
        pytest.param({"no_rope_layers": [1, 1, 0, 1, 1, 0]}, [2, 5], id="as the config says"),
        pytest.param({"attention_chunk_size": None}, [0, 1, 2, 3, 4, 5], id="no chunks"),
    ],
)
def test_chunks_of_llama_4(changes: dict[str, Any], full: list[int]) -> None:
    found = kinds("Llama4ForCausalLM", BASE | changes)
    assert [index for index, kind in enumerate(found) if kind == FullAttention.__name__] == full
    assert set(found) <= {FullAttention.__name__, ChunkedAttention.__name__}


@pytest.mark.parametrize(
    "layers",
    [
        pytest.param({"hybrid_override_pattern": "M*-EMM"}, id="letters"),
        pytest.param({"layers_block_type": ["mamba", "attention", "mlp", "moe", "mamba", "mamba"]}, id="names"),
        pytest.param(
            {"num_hidden_layers": None, "hybrid_override_pattern": "M*-EMM"}, id="letters, which count the layers"
        ),
        pytest.param(
            {"num_hidden_layers": None, "layers_block_type": ["mamba", "attention", "mlp", "moe", "mamba", "mamba"]},
            id="names, which count the layers",
        ),
    ],
)
def test_blocks_of_nemotron(layers: dict[str, Any]) -> None:
    config = BASE | MAMBA2 | {"n_groups": 8} | layers
    assert layer_count(ConfigFields(config)) == 6
    assert Counter(kinds("NemotronHForCausalLM", config)) == {"RecurrentState": 3, "FullAttention": 1, "": 2}


@pytest.mark.parametrize(
    ("layers", "says"),
    [
        pytest.param({"hybrid_override_pattern": "M*M"}, "names 3 of 6 layers", id="fewer letters than layers"),
        pytest.param({"hybrid_override_pattern": "M*X-EM"}, "has X", id="a letter that nobody knows"),
        pytest.param({}, "names 0 of 6 layers", id="neither"),
    ],
)
def test_blocks_that_cannot_be_sized_are_refused(layers: dict[str, Any], says: str) -> None:
    with pytest.raises(SpecError, match=says):
        kinds("NemotronHForCausalLM", BASE | MAMBA2 | {"n_groups": 8} | layers)


def test_every_block_of_nemotron_has_its_caches() -> None:
    config = BASE | MAMBA2 | {"n_groups": 8, "hybrid_override_pattern": "".join(NEMOTRON_BLOCKS) + "MM"}
    assert len(kinds("NemotronHForCausalLM", config)) == 6


@pytest.mark.parametrize(
    ("groups", "tensor", "drafted", "expected"),
    [
        # MambaStateShapeCalculator.mamba2_state_shape by hand: (4096 + 2 x groups x 128) / tensor channels, 3 taps (and
        # one per drafted token), 2 bytes; 64 / tensor heads of 64 x 128, 2 bytes
        pytest.param(8, 1, 0, 6144 * 3 * 2 + 64 * 64 * 128 * 2, id="one rank"),
        pytest.param(8, 4, 0, 1536 * 3 * 2 + 16 * 64 * 128 * 2, id="ranks divide the groups"),
        pytest.param(8, 16, 0, 512 * 3 * 2 + 4 * 64 * 128 * 2, id="more ranks than groups: 16 groups"),
        pytest.param(1, 4, 0, 1280 * 3 * 2 + 16 * 64 * 128 * 2, id="one group on every rank"),
        pytest.param(6, 4, 0, 1280 * 3 * 2 + 16 * 64 * 128 * 2, id="ranks do not divide the groups: as many as ranks"),
        pytest.param(8, 4, 2, 1536 * 5 * 2 + 16 * 64 * 128 * 2, id="two drafted tokens"),
    ],
)
def test_states_of_mamba_2(groups: int, tensor: int, drafted: int, expected: int) -> None:
    config = BASE | MAMBA2 | {"n_groups": groups, "hybrid_override_pattern": "M*-EMM"}
    config |= {"mamba_ssm_cache_dtype": "bfloat16"}
    (state,) = anatomy(ConfigFields(config), "NemotronHForCausalLM").layers[0]
    assert isinstance(state, RecurrentState)
    assert state_bytes(state, tensor=tensor, speculative=drafted) == expected


@pytest.mark.parametrize(
    ("state", "tensor", "expected"),
    [
        # gated_delta_net_state_shape: (2 x 16 x 128 + 32 x 128) / 4 channels, 3 taps; 32 / 4 heads of 128 x 128
        pytest.param(
            RecurrentState(conv_channels=8192, conv_taps=3, heads=32, rows=128, columns=128),
            4,
            2048 * 3 * 2 + 8 * 128 * 128 * 2,
            id="gated delta net",
        ),
        # mamba1_state_shape: 8192 / 2 channels, 3 taps; 8192 / 2 x 16
        pytest.param(
            RecurrentState(conv_channels=8192, conv_taps=3, heads=8192, rows=1, columns=16),
            2,
            4096 * 3 * 2 + 4096 * 16 * 2,
            id="Mamba 1",
        ),
        # linear_attention_state_shape: 64 / 8 heads of 96 x 96, no convolution
        pytest.param(RecurrentState(heads=64, rows=96, columns=96), 8, 8 * 96 * 96 * 2, id="lightning attention"),
        # short_conv_state_shape: 2048 / 2 channels, 2 taps
        pytest.param(RecurrentState(conv_channels=2048, conv_taps=2), 2, 1024 * 2 * 2, id="short convolution"),
    ],
)
def test_states_of_other_recurrences(state: RecurrentState, tensor: int, expected: int) -> None:
    assert state_bytes(state, tensor=tensor) == expected
