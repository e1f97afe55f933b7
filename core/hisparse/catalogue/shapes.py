"""Shapes without a public model."""

from __future__ import annotations

from hisparse.catalogue.entry import Entry

ENTRIES: tuple[Entry, ...] = (
    Entry(
        repo="shape/dense-32b",
        config={
            "architectures": ["Qwen3ForCausalLM"],
            "num_hidden_layers": 40,
            "hidden_size": 5120,
            "intermediate_size": 46_720,
            "vocab_size": 151_936,
            "tie_word_embeddings": True,
            "num_attention_heads": 40,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 1_048_576,
            "dtype": "bfloat16",
        },
        weight_bytes=64_000_000_000,
        weight_source="32e9 parameters x 2 bytes",
        source=(
            "no public model: the dense 32B shape of published claims, kept so that they can be checked; the width of "
            "the MLP is what makes 32e9 parameters of it"
        ),
    ),
)
