"""Variants side by side: each row is the planner's own answer for the one thing that it changes."""

from __future__ import annotations

from dataclasses import replace

from shapes import GLM, LLAMA_70B, MILLION, glm_target, gpu, h200, model

from hisparse import hybrid
from hisparse.comparison import Axis, Row, compare, variants
from hisparse.hardware import NodeClass
from hisparse.losses import OF_DTYPE, OF_MODE, dtype_losses, losses
from hisparse.plan import Mode, Plan, Shortfall, Target
from hisparse.planner import plan
from hisparse.rows import KV_DTYPES
from hisparse.sizing import longest_tokens
from hisparse.spec import KvCacheDtype

FLASH = model("zai-org/GLM-5.3-Flash")
DTYPES = tuple(KV_DTYPES)


def by_value(rows: tuple[Row, ...], axis: Axis) -> dict[str, Row]:
    return {row.variant.value: row for row in rows if row.variant.axis is axis}


def test_one_thing_changes_at_a_time() -> None:
    asked, *others = variants(LLAMA_70B, h200(), Target(131_072, gpus=4), dtypes=DTYPES)
    assert asked.axis is Axis.ASKED
    for one in others:
        back = {
            Axis.MODE: replace(one.target, mode="Auto"),
            Axis.KV_DTYPE: replace(one.target, kv_dtype="Auto"),
            Axis.GPUS: replace(one.target, gpus=4),
        }[one.axis]
        assert back == asked.target
        assert one.target != asked.target


def test_the_default_set() -> None:
    found = [(one.axis, one.value) for one in variants(GLM, h200(), glm_target(), dtypes=("Bf16", "Fp8"))]
    assert found == [
        (Axis.ASKED, ""),
        (Axis.MODE, "HiSparse"),
        (Axis.MODE, "Offload"),
        (Axis.MODE, "None"),
        (Axis.KV_DTYPE, "Bf16"),
        (Axis.KV_DTYPE, "Fp8"),
        (Axis.GPUS, "1"),
        (Axis.GPUS, "2"),
        (Axis.GPUS, "4"),
    ]


def test_hisparse_is_no_variant_of_a_dense_model() -> None:
    modes = [one.value for one in variants(LLAMA_70B, h200(), Target(8192, gpus=4), dtypes=()) if one.axis is Axis.MODE]
    assert modes == ["Offload", "None"]


def test_rows_are_the_planners_answers() -> None:
    rows = compare(variants(GLM, h200(), glm_target(), dtypes=("Bf16", "Fp8")))
    for row in rows:
        variant = row.variant
        assert row.answer == plan(variant.model, variant.node, variant.target)
        assert row.longest == longest_tokens(variant.model, variant.node, variant.target)
        if isinstance(row.answer, Plan):
            assert (row.at_max, row.at_typical) == (row.answer.at_max.tier, row.answer.at_typical.tier)
            assert (row.kv_bytes, row.host_bytes) == (row.answer.kv_budget, row.answer.host.pod)
            assert row.longest >= MILLION
        else:
            assert (row.at_max, row.host_bytes, row.losses) == (None, None, ())
            assert row.longest < MILLION


def test_plain_kv_of_glm_ends_before_a_million_and_the_tier_does_not() -> None:
    modes = by_value(compare(variants(GLM, h200(), glm_target(), dtypes=())), Axis.MODE)
    assert isinstance(modes["None"].answer, Shortfall)
    assert 0 < modes["None"].longest < MILLION
    assert modes["HiSparse"].longest == MILLION
    assert modes["HiSparse"].positions_bind


def test_a_dtype_that_the_cache_cannot_have_says_so() -> None:
    rows = by_value(compare(variants(GLM, h200(), glm_target(), dtypes=DTYPES)), Axis.KV_DTYPE)
    row = rows["TurboQuantK8V4"]
    assert (row.answer, row.longest) == (None, 0)
    assert "TurboQuantK8V4" in row.refusal


def test_models_and_kinds_stand_beside_the_question_alone() -> None:
    b200 = NodeClass(gpu("b200"), 8, None, "NVIDIA-B200")
    found = list(variants(GLM, h200(), glm_target(), dtypes=DTYPES, models=[FLASH], nodes=[b200]))
    assert [(one.axis, one.value) for one in found] == [
        (Axis.ASKED, ""),
        (Axis.MODEL, FLASH.name),
        (Axis.GPU_KIND, "b200"),
    ]
    rows = compare(found)
    assert all(row.plan for row in rows)
    assert rows[1].plan is not None
    assert rows[1].plan.model is FLASH


def test_a_model_with_fewer_positions_says_how_far_it_goes() -> None:
    row = compare(variants(GLM, h200(), glm_target(), dtypes=(), models=[LLAMA_70B]))[1]
    assert row.plan is None
    assert "131072 positions" in row.refusal
    assert (row.longest, row.positions_bind) == (131_072, True)


class TestWhatIsLost:
    def test_every_dtype_and_mode_has_an_entry_with_a_source(self) -> None:
        assert set(OF_DTYPE) == set(KV_DTYPES) == {one.value for one in KvCacheDtype} - {"Auto"}
        assert set(OF_MODE) == set(Mode)
        assert all(one.what and one.source for some in (*OF_DTYPE.values(), *OF_MODE.values()) for one in some)

    def test_divergences_are_those_that_the_codecs_carry(self) -> None:
        measured = {
            "Fp8": hybrid.FP8,
            "Int8PerTokenHead": hybrid.INT8_TOKEN,
            "Int4PerTokenHead": hybrid.RHT_INT4_ZERO,
            "TurboQuant4BitNc": hybrid.TURBO4,
            "TurboQuant3BitNc": hybrid.TURBO3,
        }
        for dtype, codec in measured.items():
            told = next(one.what for one in OF_DTYPE[dtype] if one.what.startswith("KL "))
            assert told.removesuffix(" against 16 bits") in codec.quality

    def test_nothing_is_lost_in_16_bits_and_no_answer_changes_with_the_tier(self) -> None:
        assert all(one.lossless for one in losses(Mode.HISPARSE, "Bf16", GLM))
        assert not all(one.lossless for one in losses(Mode.NONE, "Fp8", LLAMA_70B))

    def test_fp8_of_sparse_attention_is_another_format(self) -> None:
        assert dtype_losses("Fp8", GLM) != dtype_losses("Fp8", LLAMA_70B)

    def test_fp8_of_latent_rows_is_not_measured(self) -> None:
        for repo in ("deepseek-ai/DeepSeek-V3", "zai-org/GLM-5.3-Flash"):
            (one,) = dtype_losses("Fp8", model(repo))
            assert one.what.startswith("not measured")

    def test_a_dtype_that_nobody_measured_says_so(self) -> None:
        (one,) = dtype_losses("Fp2", LLAMA_70B)
        assert one.what == "not measured"
