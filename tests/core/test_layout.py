"""Rules of the block layout that hold for every model: order, boundaries, groups.

Numbers are in test_kv_logs.py and test_recorded_layouts.py, exactness in test_exact.py.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shapes import GLM, LLAMA_8B, gpu, model

from hisparse import catalogue
from hisparse.architectures import Attention
from hisparse.errors import SpecError
from hisparse.grouping import Reach
from hisparse.layers import (
    ChunkedAttention,
    FullAttention,
    IndexerKeys,
    Latent,
    LayerCaches,
    RecurrentState,
    SlidingWindow,
)
from hisparse.layout import Drafting, KvLayout, kv_layout
from hisparse.model import ModelFacts, read_config
from hisparse.pipeline import pipeline_split
from hisparse.rows import KV_DTYPES, attention_row_bytes, state_bytes
from hisparse.units import GIB

H200 = gpu("h200")
FULL = FullAttention(8, 128, 128)
LOCAL = SlidingWindow(8, 128, 128, 1024)
DELTA = RecurrentState(
    conv_channels=8192, conv_taps=3, heads=32, rows=128, columns=128, width=4
)  # a gated delta net of Qwen3.5's kind


def with_layers(*layers: LayerCaches) -> ModelFacts:
    return replace(LLAMA_8B, caches=layers, attention=Attention.WINDOWED)


def laid_out(*layers: LayerCaches, **how: Any) -> KvLayout:
    return kv_layout(with_layers(*layers), how.pop("dtype", "Bf16"), H200, **how)


# --- groups, worked out by hand -----------------------------------------------------------------------------------


def test_layers_of_two_kinds_are_grouped_by_the_smaller_count() -> None:
    """Gemma 3: 10 full and 52 windowed layers are 1 + 6 groups of 10, with 8 layers of padding."""
    full: list[LayerCaches] = [(FULL,)]
    local: list[LayerCaches] = [(LOCAL,)]
    layers = full * 10 + local * 52
    got = laid_out(*layers)
    assert [(g.reach, g.layers + g.padding) for g in got.groups] == [(Reach.FULL, 10)] + [(Reach.WINDOW, 10)] * 6
    assert sum(g.padding for g in got.groups) == 8
    assert got.block_bytes == 10 * 16 * 4096


@pytest.mark.parametrize(
    ("version", "size"),
    [("0.11", 12), ("0.13", 13), ("0.33", 13)],
)
def test_nearly_even_counts_take_the_larger_size(version: str, size: int) -> None:
    """gpt-oss with a draft layer: 12 windowed and 13 full layers."""
    layers: list[LayerCaches] = [(LOCAL,), (FULL,)]
    got = laid_out(*layers * 12, version=version, drafting=Drafting(((FULL,),), 1))
    assert max(g.layers + g.padding for g in got.groups) == size


def test_unequal_shapes_are_made_equal_by_longer_blocks() -> None:
    """Gemma 4: full layers with half the bytes per token get blocks of twice the tokens."""
    got = laid_out((FullAttention(4, 128, 128),), (LOCAL,))
    assert {g.reach: g.block_tokens for g in got.groups} == {Reach.FULL: 32, Reach.WINDOW: 16}


def test_pages_that_do_not_divide_are_padded() -> None:
    got = laid_out((FullAttention(3, 128, 128),), (LOCAL,))
    assert {g.bytes for g in got.groups} == {16 * 4096}


@pytest.mark.parametrize(("tokens", "blocks"), [(16, 2), (1024, 65), (100_000, 1 + 1088)])
def test_a_window_holds_itself_and_what_is_in_flight(tokens: int, blocks: int) -> None:
    """ceil(min(1023 + 2 x 8192, L) / 16) + 1, and a block more than a window of whole blocks."""
    got = laid_out((LOCAL,), (LOCAL,))
    assert got.request_blocks(tokens) == blocks


def test_a_chunk_holds_itself_and_what_is_in_flight() -> None:
    got = laid_out((ChunkedAttention(8, 128, 128, 8192),), batched_tokens=2048, version="0.11")
    assert got.request_blocks(1_000_000) == (8192 + 2048) // 16


def test_attention_blocks_are_as_large_as_a_state() -> None:
    state = state_bytes(DELTA, tensor=1)
    got = laid_out((DELTA,), (FULL,))
    block = next(g.block_tokens for g in got.groups if g.reach is Reach.FULL)
    assert block % 16 == 0
    assert (block - 16) * 4096 < state <= block * 4096


@pytest.mark.parametrize(
    ("version", "kind", "step"), [("0.17", "b200", 32), ("0.18", "b200", 16), ("0.17", "h200", 16)]
)
def test_wide_heads_beside_states_had_longer_blocks_on_blackwell(version: str, kind: str, step: int) -> None:
    """vLLM 0.17, model_executor/models/config.py: FlashInfer had no blocks of 16 tokens for heads of 256 there."""
    layers = ((DELTA,), (FullAttention(4, 256, 256),))
    got = kv_layout(with_layers(*layers), "Bf16", gpu(kind), version=version, prefix_caching=False)
    block = next(g.block_tokens for g in got.groups if g.reach is Reach.FULL)
    needed = -(-state_bytes(DELTA, tensor=1) // (4 * 512 * 2))
    assert block == -(-needed // step) * step
    assert -(-needed // 16) % 2, "the same for both steps"


def test_attention_blocks_are_as_large_as_the_largest_state() -> None:
    small = replace(DELTA, heads=4)
    both, alone = (laid_out(*states, (FULL,)) for states in (((small,), (DELTA,)), ((DELTA,),)))
    assert {g.block_tokens for g in both.groups} == {g.block_tokens for g in alone.groups}


@pytest.mark.parametrize(("version", "concurrency"), [("0.9.0", Fraction(1600, 1601)), ("0.9.1", Fraction(100, 101))])
def test_the_logged_concurrency_counts_whole_blocks(version: str, concurrency: Fraction) -> None:
    got = laid_out((FULL,), version=version)
    assert got.logged_concurrency(100, 1601) == concurrency
    assert got.concurrency(100, 1601) == Fraction(100, 101)


@pytest.mark.parametrize(
    ("version", "caching", "drafted", "states"),
    [
        pytest.param("0.19", None, 0, 1, id="prefix caching of hybrids was off"),
        pytest.param("0.33", None, 0, 2, id="it is on: one state to write, one to copy from"),
        pytest.param("0.33", False, 3, 4, id="every drafted token keeps a state"),
        pytest.param("0.11", None, 3, 1, id="and did not before 0.15"),
    ],
)
def test_states_of_one_request(version: str, caching: bool | None, drafted: int, states: int) -> None:
    got = laid_out((DELTA,), (FULL,), version=version, prefix_caching=caching, drafting=Drafting((), drafted))
    assert [g.states for g in got.groups if g.reach is Reach.STATE] == [states]


def test_layers_without_a_cache_cost_nothing() -> None:
    assert laid_out((FULL,), (), ()).block_bytes == laid_out((FULL,)).block_bytes


@pytest.mark.parametrize(
    ("layers", "ranks", "split"),
    [(32, 1, (32,)), (32, 4, (8, 8, 8, 8)), (61, 2, (31, 30)), (61, 4, (15, 15, 16, 15)), (78, 4, (19, 20, 20, 19))],
)
def test_what_does_not_divide_goes_to_the_ranks_before_the_last(
    layers: int, ranks: int, split: tuple[int, ...]
) -> None:
    assert pipeline_split(layers, ranks) == split


def test_a_split_of_other_layers_is_refused() -> None:
    with pytest.raises(ValueError, match="does not name 2 ranks of 32 layers"):
        kv_layout(LLAMA_8B, "Bf16", H200, pipeline=2, layer_split=(16, 15))


def test_the_fullest_pipeline_rank_decides() -> None:
    whole, half = (kv_layout(LLAMA_8B, "Bf16", H200, pipeline=ranks).block_bytes for ranks in (1, 2))
    assert half * 2 == whole
    assert kv_layout(LLAMA_8B, "Bf16", H200, pipeline=2, layer_split=(8, 24)).block_bytes * 32 == whole * 24


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        pytest.param("Bf16", 4096, id="16 bits"),
        pytest.param("Fp8", 2048, id="8 bits"),
        pytest.param("Int8PerTokenHead", 8 * (256 + 8), id="and a float32 scale per head of K and V"),
        pytest.param("Int4PerTokenHead", 8 * (128 + 8), id="4 bits and the same scales"),
        pytest.param("TurboQuantK8V4", 8 * (128 + 64 + 4), id="fp8 keys, 4 bits with scale and zero"),
        pytest.param("TurboQuant4BitNc", 8 * (64 + 2 + 64 + 4), id="codes with a norm"),
        pytest.param("TurboQuantK3V4Nc", 8 * (48 + 2 + 64 + 4), id="3-bit keys"),
        pytest.param("TurboQuant3BitNc", 8 * (48 + 2 + 48 + 4), id="3 bits of both"),
    ],
)
def test_bytes_of_one_token(dtype: str, expected: int) -> None:
    assert attention_row_bytes(FULL, KV_DTYPES[dtype], tensor=1) == expected


def test_turboquant_keeps_the_ends_of_a_dense_model() -> None:
    """Four of 32 layers stay in 16 bits; all share one table with blocks of 32 tokens."""
    got = kv_layout(LLAMA_8B, "TurboQuant3BitNc", H200)
    assert [(g.layers, g.block_tokens) for g in got.groups] == [(32, 32)]
    assert got.block_bytes == 32 * (4 * 4096 + 28 * 8 * (48 + 2 + 48 + 4))


def test_latent_rows_are_whole_on_every_rank() -> None:
    assert kv_layout(GLM, "Fp8", H200, tensor=8).block_bytes == kv_layout(GLM, "Fp8", H200).block_bytes


# --- every model of the catalogue ---------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", [pytest.param(one, id=one.repo) for one in catalogue.ENTRIES])
def test_every_model_of_the_catalogue_can_be_laid_out(entry: catalogue.Entry) -> None:
    facts = read_config(entry.config, name=entry.repo, weight_bytes=entry.weight_bytes)
    for dtype in ("Bf16", "Fp8"):
        got = kv_layout(facts, dtype, H200)
        assert got.request_bytes(8192) > 0
        assert got.longest(80 * GIB, 10**7) > 0


def test_flash_takes_a_tenth_of_the_standard_model() -> None:
    """GLM-5.3-Flash: 11 latent layers in place of 78, pooled indexer keys, and states that do not grow."""
    flash = kv_layout(model("zai-org/GLM-5.3-Flash"), "Bf16", H200)
    standard = kv_layout(GLM, "Bf16", H200)
    assert 7 < Fraction(standard.request_bytes(1_048_576), flash.request_bytes(1_048_576)) < 9


# --- properties -----------------------------------------------------------------------------------------------------

HEADS = st.sampled_from([1, 2, 4, 8])
DIMS = st.sampled_from([64, 128, 256])
FULLS = st.builds(lambda heads, dim: FullAttention(heads, dim, dim), HEADS, DIMS)
LOCALS = st.builds(lambda heads, dim, window: SlidingWindow(heads, dim, dim, window), HEADS, DIMS, st.integers(1, 8192))
CHUNKS = st.builds(lambda heads, dim: ChunkedAttention(heads, dim, dim, 8192), HEADS, DIMS)
STATES = st.builds(
    RecurrentState,
    conv_channels=st.sampled_from([0, 2048, 8192]),
    conv_taps=st.integers(0, 3),
    heads=st.sampled_from([8, 32]),
    rows=st.sampled_from([64, 128]),
    columns=st.sampled_from([64, 128]),
    width=st.sampled_from([2, 4]),
)
PAIRS = st.one_of(
    st.tuples(FULLS, LOCALS),
    st.tuples(FULLS, CHUNKS),
    st.tuples(FULLS, STATES),
    st.tuples(FULLS, FULLS),
    st.tuples(st.just(Latent(512, 64)), STATES),
    st.tuples(st.just(Latent(512, 64)), st.just(IndexerKeys(128))),
)


@st.composite
def layouts(draw: st.DrawFn) -> KvLayout:
    first, second = draw(PAIRS)
    layers: list[LayerCaches] = [(first,)] * draw(st.integers(1, 12)) + [(second,)] * draw(st.integers(0, 24))
    return kv_layout(
        with_layers(*draw(st.permutations(layers))),
        draw(st.sampled_from(["Bf16", "Fp8"])),
        H200,
        tensor=draw(st.sampled_from([1, 2, 4, 8])),
        pipeline=draw(st.integers(1, min(3, len(layers)))),
        batched_tokens=draw(st.sampled_from([512, 2048, 8192])),
        version=draw(st.sampled_from(["0.10", "0.13", "0.19", "0.26", "0.33"])),
    )


LENGTHS = st.integers(1, 2_000_000)


@given(layout=layouts(), tokens=LENGTHS, more=st.integers(1, 100_000))
def test_more_context_never_needs_less(layout: KvLayout, tokens: int, more: int) -> None:
    assert layout.request_blocks(tokens + more) >= layout.request_blocks(tokens)


@given(layout=layouts(), budget=st.integers(0, 200 * GIB), more=st.integers(0, GIB), tokens=LENGTHS)
def test_more_memory_never_shrinks_the_answer(layout: KvLayout, budget: int, more: int, tokens: int) -> None:
    assert layout.blocks_in(budget + more) >= layout.blocks_in(budget)
    assert layout.longest(budget + more, 2_000_000) >= layout.longest(budget, 2_000_000)
    assert layout.holds(budget + more, tokens) or not layout.holds(budget, tokens)


@given(layout=layouts(), budget=st.integers(0, 200 * GIB))
def test_the_longest_request_fits_and_the_next_does_not(layout: KvLayout, budget: int) -> None:
    most = 2_000_000
    longest = layout.longest(budget, most)
    assert longest == 0 or layout.holds(budget, longest)
    assert longest == most or not layout.holds(budget, longest + 1)


@given(layout=layouts(), tokens=LENGTHS)
def test_the_smallest_pool_that_starts_has_not_a_byte_too_many(layout: KvLayout, tokens: int) -> None:
    needed = layout.needed_bytes(tokens)
    assert layout.holds(needed, tokens)
    assert not layout.holds(needed - 1, tokens)
    assert layout.concurrency(layout.blocks_in(needed), tokens) >= 1


@given(layout=layouts())
def test_every_block_has_room_for_what_its_group_keeps(layout: KvLayout) -> None:
    assert all(group.bytes <= layout.block_bytes for group in layout.groups)
    assert max(group.bytes for group in layout.groups) == layout.block_bytes


@given(facts=st.sampled_from([LLAMA_8B, GLM]), dtype=st.sampled_from(["Bf16", "Fp8"]))
def test_more_ranks_never_hold_more_each(facts: ModelFacts, dtype: str) -> None:
    sizes = [kv_layout(facts, dtype, H200, tensor=ranks).block_bytes for ranks in (1, 2, 4, 8, 16)]
    assert sizes == sorted(sizes, reverse=True)


def test_an_unknown_architecture_is_refused() -> None:
    with pytest.raises(SpecError, match="is not an architecture"):
        read_config({"architectures": ["DeepseekV4ForCausalLM"], "num_hidden_layers": 1}, name="x", weight_bytes=1)
