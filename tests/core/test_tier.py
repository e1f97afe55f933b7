"""The engine's page arithmetic, against what vLLM computed, logged or refused with."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shapes import DENSE_32B, GLM, LLAMA_70B, MILLION, gib, glm_target, gpu, h200, model

from hisparse.architectures import Attention, Indexer
from hisparse.hardware import Gpu
from hisparse.layout import Drafting, KvLayout, kv_layout
from hisparse.model import ModelFacts, read_config
from hisparse.plan import Plan
from hisparse.planner import plan
from hisparse.rows import KV_DTYPES, latent_row_bytes
from hisparse.tier import HiSparseLayout, hisparse_layout, indexer_count, indexer_offload_token_bytes
from hisparse.units import GIB

H200 = gpu("h200")
BLACKWELL = replace(H200, name="b200", capability=(10, 0))


def layout(
    facts: ModelFacts = GLM,
    *,
    dtype: str = "Fp8",
    on: Gpu = H200,
    shared: bool = True,
    mtp: int = 0,
    batched: int = 8192,
) -> HiSparseLayout:
    return hisparse_layout(
        facts, dtype, on, in_flight_tokens=2 * batched, shared=shared, mtp_layers=mtp, draft_tokens=3 * mtp
    )


def plain_layout(
    facts: ModelFacts, dtype: str, on: Gpu, *, tensor: int, pipeline: int = 1, mtp_layers: int = 0
) -> KvLayout:
    drafting = Drafting(facts.drafts[:mtp_layers], 3 * mtp_layers)
    return kv_layout(facts, dtype, on, tensor=tensor, pipeline=pipeline, drafting=drafting)


def twelve_layers() -> ModelFacts:
    return replace(GLM, caches=GLM.caches[:12], indexer=Indexer(layers=(0, 1, 2, 6, 10), head_dim=128, top_k=2048))


@pytest.mark.parametrize(
    ("dtype", "on", "mtp", "latent", "total", "gpu_block", "host_block"),
    [
        pytest.param("Fp8", H200, 0, 51_168, 53_940, 209_920, 3_276_800, id="fp8_ds_mla on an H200"),
        pytest.param("Fp8", BLACKWELL, 0, 44_928, 47_700, 184_320, 2_875_392, id="plain fp8 on Blackwell"),
        pytest.param("Bf16", H200, 0, 89_856, 92_628, 294_912, 5_750_784, id="bf16"),
        pytest.param("Fp8", H200, 1, 51_824, 54_728, 209_920, 3_317_760, id="fp8_ds_mla with the MTP layer"),
    ],
)
def test_glm_bytes(dtype: str, on: Gpu, mtp: int, latent: int, total: int, gpu_block: int, host_block: int) -> None:
    assert GLM.latent is not None
    assert latent_row_bytes(GLM.latent, KV_DTYPES[dtype], on, sparse=True) * (GLM.layers + mtp) == latent
    for tensor in (1, 2, 4, 8):
        assert plain_layout(GLM, dtype, on, tensor=tensor, mtp_layers=mtp).token_bytes == total
    got = layout(dtype=dtype, on=on, mtp=mtp)
    assert (got.gpu_block_bytes, got.host_block_bytes) == (gpu_block, host_block)


def test_glm_has_21_indexers_in_20_hot_groups() -> None:
    assert GLM.indexer is not None
    assert GLM.indexer.layers == (0, 1, 2, *range(6, 75, 4))
    assert indexer_count(GLM) == 21
    assert layout().groups == 20
    assert layout(mtp=1).groups == 21


@pytest.mark.parametrize(
    ("leaders", "runs"),
    [
        pytest.param((0, 6), (6, 3), id="the first layer leads"),
        pytest.param((3, 6), (3, 3, 3), id="three layers before the first leader"),
        pytest.param((8,), (8, 1), id="all but the last"),
    ],
)
def test_layers_before_the_first_indexer_are_a_run_of_their_own(
    leaders: tuple[int, ...], runs: tuple[int, ...]
) -> None:
    """Nine layers, whose few indexer keys are smaller than any run: nothing is packed together (v1/hisparse/layout.py)."""
    pool = layout(replace(GLM, caches=GLM.caches[:9], indexer=Indexer(layers=leaders, head_dim=128, top_k=2048)))
    assert (pool.groups, pool.gpu_block_bytes) == (len(runs), max(runs) * 64 * 656)


@pytest.mark.parametrize(("version", "batches"), [("0.33", 2), ("0.32", 2)])
def test_what_is_in_flight_is_one_rule_for_both_layouts(version: str, batches: int) -> None:
    """Async scheduling keeps one batch more in flight than there are pipeline stages."""
    answer = plan(GLM, h200(), glm_target(engine_version=version))
    assert isinstance(answer, Plan)
    assert answer.tiered is not None
    assert answer.tiered.in_flight_tokens == answer.plain.in_flight_tokens == batches * answer.max_batched_tokens


@pytest.mark.parametrize(
    ("repo", "token", "indexer"),
    [
        pytest.param("deepseek-ai/DeepSeek-V3.2", 61 * 656 + 8_052, 61, id="DeepSeek-V3.2: an indexer in every layer"),
        pytest.param("zai-org/GLM-5.2", 53_940, 21, id="GLM-5.2: as GLM-5.3"),
    ],
)
def test_other_dsa_models(repo: str, token: int, indexer: int) -> None:
    facts = model(repo)
    assert plain_layout(facts, "Fp8", H200, tensor=8).token_bytes == token
    assert indexer_count(facts) == indexer


def test_glm_51_has_an_indexer_in_every_layer() -> None:
    glm51 = model("zai-org/GLM-5.1")
    assert plain_layout(glm51, "Fp8", H200, tensor=8).token_bytes == 61_464
    assert plain_layout(glm51, "Fp8", H200, tensor=8, mtp_layers=1).token_bytes == 62_252
    assert plain_layout(glm51, "Bf16", H200, tensor=8).token_bytes == 100_152


def test_minimum_host_pool_for_a_million_tokens() -> None:
    pool = layout()
    assert pool.minimum_host_blocks(MILLION) == 16_386
    least = pool.minimum_host_blocks(MILLION) * pool.host_block_bytes
    assert gib(50.00) < least < gib(50.01)


@pytest.mark.parametrize(
    ("kv_gib", "plain", "steady", "admission"),
    [
        pytest.param(17.85, "0.34", "4.87", "4.01", id="17.85 GiB of KV"),
        pytest.param(25.7, "0.49", "7.14", "5.77", id="25.7 GiB of KV"),
        pytest.param(30.5, "0.58", "8.53", "6.85", id="30.5 GiB of KV"),
    ],
)
def test_million_token_requests_by_hbm(kv_gib: float, plain: str, steady: str, admission: str) -> None:
    pool = layout()
    blocks = gib(kv_gib) // pool.gpu_block_bytes
    without = plain_layout(GLM, "Fp8", H200, tensor=8)
    assert f"{float(without.concurrency(gib(kv_gib) // without.block_bytes, MILLION)):.2f}" == plain
    assert f"{float(pool.gpu_concurrency(blocks, MILLION)):.2f}" == steady
    assert f"{float(pool.admission_concurrency(blocks, 10**9, MILLION)):.2f}" == admission


def test_speculation_and_large_batches_cost_requests() -> None:
    pool = layout(mtp=1, batched=32_768)
    blocks = gib(17.85) // pool.gpu_block_bytes
    assert f"{float(pool.gpu_concurrency(blocks, MILLION)):.2f}" == "3.53"
    assert f"{float(pool.admission_concurrency(blocks, 10**9, MILLION)):.2f}" == "2.21"


class TestRealRuns:
    """What vLLM 0.33 logged on one and two H200 (docs/engine-facts.md)."""

    def test_one_gpu_84_gib(self) -> None:
        pool = layout(shared=False)
        assert pool.host_block_bytes == 3_274_752
        gpu_blocks, host_blocks = 8 * GIB // pool.gpu_block_bytes, 84 * GIB // pool.host_block_bytes
        assert (gpu_blocks, host_blocks) == (40_920, 27_542)
        assert f"{float(pool.concurrency(gpu_blocks, host_blocks, MILLION)):.2f}" == "1.68"
        admission = pool.admission_concurrency(gpu_blocks, host_blocks, MILLION)
        assert int(admission * MILLION) == 1_762_688
        assert f"{float(pool.concurrency(gpu_blocks, host_blocks, 131_840)):.1f}" == "10.6"

    def test_one_gpu_64_gib(self) -> None:
        pool = layout(shared=False)
        host_blocks = 64 * GIB // pool.host_block_bytes
        assert host_blocks == 20_984
        assert f"{float(pool.concurrency(40_920, host_blocks, MILLION)):.2f}" == "1.28"

    def test_two_gpus_100_gib_shared(self) -> None:
        pool = layout(shared=True)
        host_blocks = 100 * GIB // pool.host_block_bytes
        assert host_blocks == 32_768
        assert f"{float(pool.concurrency(40_920, host_blocks, MILLION)):.2f}" == "2.00"
        admission = pool.admission_concurrency(40_920, host_blocks, MILLION)
        assert f"{float(admission):.2f}" == "1.80"
        assert int(admission * MILLION) == 1_883_239

    @pytest.mark.parametrize(
        ("kv_gib", "tokens"),
        [pytest.param(8, 159_195, id="8 GiB"), pytest.param(80, 1_592_084, id="80 GiB")],
    )
    def test_baseline(self, kv_gib: int, tokens: int) -> None:
        plain = plain_layout(GLM, "Fp8", H200, tensor=1)
        blocks = kv_gib * GIB // plain.block_bytes
        assert int(plain.concurrency(blocks, 140_000) * 140_000) == tokens

    def test_twelve_layer_smoke(self) -> None:
        pool = layout(twelve_layers(), shared=False)
        assert GIB // pool.gpu_block_bytes == 6_393
        assert 4 * GIB // pool.host_block_bytes == 8_525
        assert pool.minimum_host_blocks(MILLION) == 16_386

    def test_twelve_layers_need_2_81_gib_to_admit_a_million(self) -> None:
        pool = layout(twelve_layers(), shared=False)
        assert f"{pool.admission_blocks(MILLION) * pool.gpu_block_bytes / GIB:.2f}" == "2.81"

    def test_twelve_layers_without_the_tier_need_8_33_gib(self) -> None:
        plain = plain_layout(twelve_layers(), "Fp8", H200, tensor=1)
        assert f"{plain.request_bytes(MILLION) / GIB:.2f}" == "8.33"

    def test_twelve_layers_without_the_tier_hold_503_296_tokens_in_4_gib(self) -> None:
        """One block of the pool is never given to a request."""
        plain = plain_layout(twelve_layers(), "Fp8", H200, tensor=1)
        assert plain.longest(4 * GIB, MILLION) == 503_296

    @pytest.mark.parametrize(("tensor", "expected"), [(1, 2_816), (2, 5_568), (8, 22_208)])
    def test_indexer_offload_per_token(self, tensor: int, expected: int) -> None:
        assert indexer_offload_token_bytes(GLM, tensor=tensor) == expected

    def test_the_layout_knows_its_offload(self) -> None:
        """22 indexers with the MTP layer, of 64 x 132 B on each of two ranks, in whole 4 KiB pages."""
        pool = hisparse_layout(
            GLM, "Fp8", H200, in_flight_tokens=16_384, shared=True, tensor=2, mtp_layers=1, draft_tokens=3
        )
        assert pool.offload_token_bytes == Fraction(91 * 4096, 64)


@pytest.mark.parametrize(
    ("facts", "dtype", "tensor", "expected"),
    [
        pytest.param(DENSE_32B, "Bf16", 1, 163_840, id="40 layers, 8 KV heads of 128, bf16"),
        pytest.param(DENSE_32B, "Fp8", 1, 81_920, id="the same in fp8"),
        pytest.param(DENSE_32B, "Bf16", 8, 20_480, id="one KV head per rank"),
        pytest.param(DENSE_32B, "Bf16", 16, 20_480, id="heads replicated once ranks outnumber them"),
        pytest.param(LLAMA_70B, "Bf16", 4, 81_920, id="Llama 70B over 4"),
    ],
)
def test_dense_bytes_per_token(facts: ModelFacts, dtype: str, tensor: int, expected: int) -> None:
    assert plain_layout(facts, dtype, H200, tensor=tensor).token_bytes == expected


def test_the_pipeline_rank_with_the_most_indexers_counts() -> None:
    assert plain_layout(GLM, "Fp8", H200, tensor=4, pipeline=2).token_bytes == 39 * 656 + 12 * 132


def test_a_dense_million_tokens_take_160_gib() -> None:
    assert plain_layout(DENSE_32B, "Bf16", H200, tensor=1).token_bytes * MILLION == 160 * GIB


def test_multi_query_attention_keeps_one_head() -> None:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": 10,
        "hidden_size": 1024,
        "num_attention_heads": 8,
        "num_key_value_heads": 1,
        "max_position_embeddings": 4096,
    }
    facts = read_config(config, name="mqa", weight_bytes=GIB, weight_source="test")
    assert facts.attention is Attention.MQA
    assert plain_layout(facts, "Bf16", H200, tensor=4).token_bytes == 10 * 2 * 128 * 2


LAYOUTS = st.builds(
    layout,
    dtype=st.sampled_from(["Fp8", "Bf16"]),
    shared=st.booleans(),
    mtp=st.integers(0, 1),
    batched=st.sampled_from([2048, 8192, 32_768]),
)


@given(pool=LAYOUTS, blocks=st.integers(1, 400_000), host=st.integers(1, 400_000), tokens=st.integers(1, MILLION))
def test_more_blocks_never_hold_fewer_requests(pool: HiSparseLayout, blocks: int, host: int, tokens: int) -> None:
    here = pool.concurrency(blocks, host, tokens)
    assert pool.concurrency(blocks + 1, host, tokens) >= here
    assert pool.concurrency(blocks, host + 1, tokens) >= here
    assert isinstance(here, Fraction)


@given(pool=LAYOUTS, blocks=st.integers(1, 400_000), tokens=st.integers(1, MILLION - 1))
def test_longer_requests_never_fit_more_often(pool: HiSparseLayout, blocks: int, tokens: int) -> None:
    assert pool.gpu_concurrency(blocks, tokens + 1) <= pool.gpu_concurrency(blocks, tokens)
    assert pool.steady_blocks(tokens) <= pool.admission_blocks(tokens)
