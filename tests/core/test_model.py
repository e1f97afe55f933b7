"""Reading config.json: what is understood, what is refused, and that a refusal names the way out."""

from __future__ import annotations

from typing import Any

import pytest

from hisparse import catalogue
from hisparse.architectures import Attention
from hisparse.config import ConfigFields
from hisparse.errors import SpecError
from hisparse.experts import expert_layers
from hisparse.hardware import gpu_named
from hisparse.layers import IndexerKeys
from hisparse.model import facts_for, needs_hub, read_config, served_name
from hisparse.rows import packs_scales
from hisparse.spec import HuggingFaceSource, ModelFactsSpec, ModelSpec, PvcSource
from hisparse.units import GIB

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
}
DSA: dict[str, Any] = {
    "architectures": ["GlmMoeDsaForCausalLM"],
    "num_hidden_layers": 8,
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "index_head_dim": 128,
    "index_topk": 2048,
    "max_position_embeddings": 65_536,
}


def read(config: dict[str, Any], facts: ModelFactsSpec | None = None, weights: int | None = GIB) -> Any:
    return read_config(config, name="test", facts=facts, weight_bytes=weights, weight_source="test")


@pytest.mark.parametrize("entry", catalogue.ENTRIES, ids=lambda entry: entry.repo)
def test_every_catalogue_entry_loads_under_all_its_names(entry: catalogue.Entry) -> None:
    for repo in (entry.repo, *entry.aliases):
        facts = facts_for(ModelSpec(hugging_face=HuggingFaceSource(repo=repo)))
        assert facts.weight_bytes == entry.weight_bytes
        assert facts.layers > 0
        assert entry.source


def test_glm_53_and_its_alias_weigh_703_7_gib() -> None:
    for repo in ("zai-org/GLM-5.3", "zai-org/GLM-5.3-FP8"):
        facts = facts_for(ModelSpec(hugging_face=HuggingFaceSource(repo=repo)))
        assert f"{facts.weight_bytes / GIB:.1f}" == "703.7"
        assert facts.attention is Attention.DSA


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        pytest.param({}, Attention.GQA, id="8 of 32 heads"),
        pytest.param({"num_key_value_heads": 32}, Attention.MHA, id="as many as heads"),
        pytest.param({"num_key_value_heads": 1}, Attention.MQA, id="one"),
        pytest.param({"num_key_value_heads": None}, Attention.MHA, id="not given"),
    ],
)
def test_dense_kinds(changes: dict[str, Any], kind: Attention) -> None:
    facts = read(LLAMA | changes)
    assert facts.attention is kind
    assert facts.head_dim == 128


def test_a_text_config_is_looked_into() -> None:
    inner = {key: value for key, value in LLAMA.items() if key != "architectures"}
    nested = {"architectures": ["Mistral3ForConditionalGeneration"], "text_config": inner, "hidden_size": 9}
    facts = read(nested)
    assert (facts.layers, facts.hidden_size, facts.kv_head_counts) == (32, 4096, (8,))


@pytest.mark.parametrize(
    ("changes", "layers"),
    [
        pytest.param({}, tuple(range(8)), id="an indexer in every layer"),
        pytest.param({"index_topk_freq": 4, "index_skip_topk_offset": 3}, (0, 1, 2, 6), id="every fourth after three"),
        pytest.param({"index_topk_freq": 4}, (0, 1, 5), id="the engine's own offset is 2"),
        pytest.param({"index_topk_pattern": "FFSSFSSS"}, (0, 1, 4), id="a pattern of letters"),
        pytest.param({"indexer_types": ["full", "shared"] * 4}, (0, 2, 4, 6), id="a list of words"),
        pytest.param({"index_topk_pattern": "FS"}, (0, 2, 3, 4, 5, 6, 7), id="layers past the pattern own one"),
    ],
)
def test_index_share(changes: dict[str, Any], layers: tuple[int, ...]) -> None:
    facts = read(DSA | changes)
    assert facts.indexer is not None
    assert facts.indexer.layers == layers


@pytest.mark.parametrize(("count", "layers"), [(4, (0, 1, 2, 6)), (8, tuple(range(8)))], ids=["as its pattern", "all"])
def test_a_count_of_indexers_that_says_which(count: int, layers: tuple[int, ...]) -> None:
    config = DSA | {"index_topk_freq": 4, "index_skip_topk_offset": 3}
    facts = read(config, ModelFactsSpec(index_layers=count))
    assert facts.indexer is not None
    assert facts.indexer.layers == layers


def test_a_count_of_indexers_that_does_not_say_which_is_refused() -> None:
    with pytest.raises(SpecError, match="but not which"):
        read(DSA, ModelFactsSpec(index_layers=5))


def test_only_yarn_has_trained_positions_below_the_engines_own() -> None:
    llama3 = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}
    assert read(LLAMA | {"rope_scaling": llama3}).rope.trained == 8192 == LLAMA["max_position_embeddings"]
    assert read(LLAMA | {"max_position_embeddings": 131_072, "rope_scaling": llama3}).rope.trained == 131_072
    assert read(LLAMA | {"rope_scaling": yarn}).rope.trained == 2048


def test_mla_without_an_indexer() -> None:
    facts = read(DSA | {"architectures": ["DeepseekV3ForCausalLM"]})
    assert facts.attention is Attention.MLA
    assert facts.indexer is None


@pytest.mark.parametrize(
    ("config", "field", "says"),
    [
        pytest.param(
            {**LLAMA, "architectures": None}, "architecture", "architectures is missing", id="no architecture"
        ),
        pytest.param(
            {**LLAMA, "architectures": ["MambaForCausalLM"]},
            "architecture",
            "MambaForCausalLM",
            id="unknown architecture",
        ),
        pytest.param({**LLAMA, "num_hidden_layers": None}, "layers", "num_hidden_layers is missing", id="no layers"),
        pytest.param({**LLAMA, "num_hidden_layers": 0}, "layers", "is 0", id="zero layers"),
        pytest.param({**LLAMA, "num_hidden_layers": "32"}, "layers", "is '32'", id="layers as text"),
        pytest.param({**LLAMA, "num_attention_heads": -1}, "attentionHeads", "is -1", id="negative heads"),
        pytest.param({**LLAMA, "max_position_embeddings": None}, "maxPositions", "missing", id="no positions"),
        pytest.param({**DSA, "kv_lora_rank": None}, "kvLoraRank", "missing", id="MLA without a latent width"),
        pytest.param({**DSA, "index_head_dim": None}, "indexHeadDim", "missing", id="DSA without an indexer width"),
        pytest.param({**DSA, "index_topk": True}, "indexTopK", "is True", id="a boolean is not a number"),
    ],
)
def test_a_missing_or_wrong_field_names_the_fact_that_supplies_it(
    config: dict[str, Any], field: str, says: str
) -> None:
    with pytest.raises(SpecError) as caught:
        read(config)
    assert caught.value.field == f"spec.model.facts.{field}"
    assert says in caught.value.message


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        pytest.param({"layer_types": ["full_attention"]}, "names 1 of 2 layers", id="fewer kinds than layers"),
        pytest.param({"layer_types": "full_attention"}, "not a list", id="a word in place of a list"),
        pytest.param(
            {"layer_types": ["linear_attention", "full_attention"]}, "linear_attention", id="states in a dense model"
        ),
        pytest.param(
            {"layer_types": ["full_attention", "sliding_attention"]}, "sliding_window is missing", id="no window"
        ),
    ],
)
def test_layers_that_cannot_be_sized_are_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(SpecError, match=says):
        read(LLAMA | {"num_hidden_layers": 2} | changes)


def test_a_window_makes_layers_look_less_far() -> None:
    assert read(LLAMA | {"sliding_window": 4096}).attention is Attention.WINDOWED


def test_a_sliding_window_that_is_switched_off_is_full_attention() -> None:
    assert read(LLAMA | {"sliding_window": 4096, "use_sliding_window": False}).attention is Attention.GQA


class TestWeights:
    def test_facts_win(self) -> None:
        assert read(LLAMA, ModelFactsSpec(weights="15Gi")).weight_bytes == 15 * GIB

    def test_parameter_count_times_dtype(self) -> None:
        facts = read(LLAMA, ModelFactsSpec(parameter_count=8_000_000_000), weights=None)
        assert facts.weight_bytes == 16_000_000_000

    def test_fp8_counts_one_byte(self) -> None:
        config = LLAMA | {"quantization_config": {"quant_method": "fp8"}}
        assert read(config, ModelFactsSpec(parameter_count=8_000_000_000), weights=None).weight_bytes == 8_000_000_000

    def test_an_unknown_quantisation_is_not_guessed(self) -> None:
        config = LLAMA | {"quantization_config": {"quant_method": "awq"}}
        with pytest.raises(SpecError, match="'awq'"):
            read(config, ModelFactsSpec(parameter_count=8), weights=None)

    def test_an_unknown_dtype_is_not_guessed(self) -> None:
        config = LLAMA | {"torch_dtype": "float6"}
        with pytest.raises(SpecError, match="'float6'"):
            read(config, ModelFactsSpec(parameter_count=8), weights=None)

    def test_unknown_weights_are_asked_for(self) -> None:
        with pytest.raises(SpecError) as caught:
            read(LLAMA, weights=None)
        assert caught.value.field == "spec.model.facts.weights"

    def test_the_index_of_the_hub(self) -> None:
        spec = ModelSpec(hugging_face=HuggingFaceSource(repo="someone/model"))
        facts = facts_for(spec, hub_config=LLAMA, hub_index={"metadata": {"total_size": 123}})
        assert facts.weight_bytes == 123


ERNIE: dict[str, Any] = LLAMA | {
    "architectures": ["Ernie4_5_MoeForCausalLM"],
    "intermediate_size": 12_288,
    "moe_num_experts": 64,
    "moe_k": 6,
    "moe_intermediate_size": 1536,
    "moe_layer_start_index": 1,
    "moe_layer_end_index": -1,
    "moe_layer_interval": 1,
}
HUNYUAN: dict[str, Any] = LLAMA | {
    "architectures": ["HunYuanMoEV1ForCausalLM"],
    "intermediate_size": 3072,
    "num_experts": 64,
    "moe_topk": [8] * 32,
    "moe_intermediate_size": [3072] * 32,
}
MIXTRAL: dict[str, Any] = LLAMA | {
    "architectures": ["MixtralForCausalLM"],
    "intermediate_size": 14_336,
    "vocab_size": 32_000,
    "num_local_experts": 8,
}
GEMMA: dict[str, Any] = LLAMA | {
    "architectures": ["Gemma4ForCausalLM"],
    "intermediate_size": 2112,
    "vocab_size": 262_144,
    "sliding_window": 1024,
    "layer_types": ["sliding_attention"] * 32,
    "num_experts": 128,
    "top_k_experts": 8,
    "moe_intermediate_size": 704,
}


class TestExperts:
    @pytest.mark.parametrize(
        ("config", "experts", "chosen", "width", "dense", "mixtures"),
        [
            pytest.param(ERNIE, 64, 6, 1536, 12_288, 31, id="Ernie 4.5: keys of its own, from the second layer on"),
            pytest.param(HUNYUAN, 64, 8, 3072, 3072, 32, id="HunYuan: a list with a number for each layer"),
            pytest.param(GEMMA, 128, 8, 704, 2112, 32, id="Gemma 4: top_k_experts, counted tensor by tensor"),
            pytest.param(
                MIXTRAL | {"num_experts_per_tok": 2}, 8, 2, 14_336, 0, 32, id="Mixtral: its MLP width is an expert's"
            ),
        ],
    )
    def test_are_read_under_every_name(
        self, config: dict[str, Any], experts: int, chosen: int, width: int, dense: int, mixtures: int
    ) -> None:
        facts = read(config, weights=1000 * GIB)
        assert (facts.experts, facts.experts_per_token) == (experts, chosen)
        assert (facts.expert_width, facts.dense_width) == (width, dense)
        parameters = mixtures * experts * 3 * 4096 * width
        if facts.checkpoint is None:
            assert facts.expert_bytes == 2 * parameters
        else:
            assert facts.checkpoint.parameters.experts == parameters
            assert facts.expert_bytes == int(1000 * GIB * facts.checkpoint.expert_share)
        assert facts.active_parameters < facts.parameters

    def test_in_8_bits_are_counted_with_their_scales(self) -> None:
        fp8 = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
        matrices = 31 * 64 * 3
        assert read(ERNIE | fp8, weights=1000 * GIB).expert_bytes == matrices * (4096 * 1536 + 32 * 12 * 4)
        left_alone = fp8["quantization_config"] | {"modules_to_not_convert": ["experts"]}
        found = read(ERNIE | {"quantization_config": left_alone}, weights=1000 * GIB)
        assert found.expert_bytes == 2 * matrices * 4096 * 1536

    def test_of_glm_53_weigh_what_the_calculator_says(self) -> None:
        facts = facts_for(ModelSpec(hugging_face=HuggingFaceSource(repo="zai-org/GLM-5.3")))
        assert f"{facts.expert_bytes / GIB:.1f}" == "684.1"

    def test_of_kimi_are_most_of_its_bytes_in_4_bits(self) -> None:
        facts = facts_for(ModelSpec(hugging_face=HuggingFaceSource(repo="moonshotai/Kimi-K2-Thinking")))
        assert facts.expert_bytes == 60 * 384 * 3 * 7168 * 2048 * 9 // 16

    def test_a_top_k_that_is_not_known_is_asked_for_where_it_is_needed(self) -> None:
        facts = read(MIXTRAL)
        assert (facts.experts, facts.top_k) == (8, None)
        with pytest.raises(SpecError, match="num_experts_per_tok is missing, and test has 8 experts") as caught:
            _ = facts.experts_per_token
        assert caught.value.field == "spec.model.config"
        with pytest.raises(SpecError, match="num_experts_per_tok"):
            _ = facts.active_parameters
        with pytest.raises(SpecError, match="num_experts_per_tok"):
            facts_for(ModelSpec(pvc=PvcSource(claim_name="w"), config=MIXTRAL, facts=ModelFactsSpec(weights="90Gi")))

    @pytest.mark.parametrize(
        "config",
        [
            pytest.param(LLAMA, id="no experts"),
            pytest.param(HUNYUAN | {"num_experts": 1}, id="one expert is an MLP"),
            pytest.param(GEMMA | {"enable_moe_block": False}, id="switched off"),
        ],
    )
    def test_a_dense_model_has_none(self, config: dict[str, Any]) -> None:
        facts = read(config)
        assert (facts.experts, facts.experts_per_token, facts.expert_bytes, facts.expert_width) == (0, 0, 0, 0)
        assert facts.active_parameters <= facts.parameters

    @pytest.mark.parametrize(
        "changes",
        [
            pytest.param({"num_experts": "eight"}, id="text"),
            pytest.param({"num_experts": True}, id="a truth value"),
            pytest.param({"moe_topk": [8, "8"]}, id="text in a list"),
            pytest.param({"moe_topk": []}, id="an empty list"),
        ],
    )
    def test_what_is_no_number_is_refused(self, changes: dict[str, Any]) -> None:
        with pytest.raises(SpecError) as caught:
            read(HUNYUAN | changes)
        assert caught.value.field == "spec.model.config"


@pytest.mark.parametrize(
    ("changes", "layers"),
    [
        pytest.param({}, (0, 1, 2, 3, 4, 5), id="all"),
        pytest.param({"mlp_layer_types": ["dense", *["sparse"] * 5]}, (1, 2, 3, 4, 5), id="named"),
        pytest.param({"mlp_only_layers": [0, 3]}, (1, 2, 4, 5), id="all but some"),
        pytest.param({"decoder_sparse_step": 2}, (1, 3, 5), id="every second, counted from 1"),
        pytest.param({"interleave_moe_layer_step": 3}, (2, 5), id="Llama 4"),
        pytest.param({"first_k_dense_replace": 2, "moe_layer_freq": 2}, (2, 4), id="DeepSeek"),
        pytest.param({"moe_layer_freq": [0, 1, 1, 0, 1, 1]}, (1, 2, 4, 5), id="a flag for each layer"),
        pytest.param({"moe_layer_start_index": 1, "moe_layer_end_index": 4}, (1, 2, 3, 4), id="Ernie: from and to"),
        pytest.param({"moe_layer_start_index": 4, "moe_layer_end_index": -1}, (4, 5), id="Ernie: to the last"),
        pytest.param({"expert_layer_period": 2, "expert_layer_offset": 1}, (1, 3, 5), id="Jamba"),
    ],
)
def test_which_layers_have_experts(changes: dict[str, Any], layers: tuple[int, ...]) -> None:
    found = expert_layers(ConfigFields({"num_experts": 8} | changes), 6)
    assert tuple(index for index, has in enumerate(found) if has) == layers


@pytest.mark.parametrize(
    ("repo", "indexed", "packed"),
    [
        pytest.param("zai-org/GLM-5.3", True, True, id="DSA"),
        pytest.param("zai-org/GLM-5.3-Flash", True, False, id="latent rows without rotated keys"),
        pytest.param("deepseek-ai/DeepSeek-V3", False, False, id="MLA"),
        pytest.param("meta-llama/Llama-3.1-8B-Instruct", False, False, id="dense"),
    ],
)
def test_an_indexer_packs_rows_that_have_rotated_keys(repo: str, indexed: bool, packed: bool) -> None:
    facts = facts_for(ModelSpec(hugging_face=HuggingFaceSource(repo=repo)))
    assert facts.has_indexer == indexed
    h200 = gpu_named("h200")
    assert h200
    if facts.latent is not None:
        assert packs_scales(facts.latent, h200, sparse=facts.has_indexer) == packed
    owners = tuple(i for i, layer in enumerate(facts.caches) if any(isinstance(one, IndexerKeys) for one in layer))
    assert owners == (facts.indexer.layers if facts.indexer else ())


def test_an_unknown_model_suggests_the_near_one() -> None:
    with pytest.raises(SpecError, match=r"did you mean zai-org/GLM-5\.3"):
        facts_for(ModelSpec(hugging_face=HuggingFaceSource(repo="zai-org/GLM5.3")))


def test_which_models_need_the_hub() -> None:
    assert not needs_hub(ModelSpec(hugging_face=HuggingFaceSource(repo="zai-org/GLM-5.3")))
    assert needs_hub(ModelSpec(hugging_face=HuggingFaceSource(repo="someone/model")))
    assert not needs_hub(ModelSpec(hugging_face=HuggingFaceSource(repo="someone/model"), config=LLAMA))
    assert not needs_hub(ModelSpec(pvc=PvcSource(claim_name="weights"), config=LLAMA))


def test_served_names() -> None:
    assert served_name(ModelSpec(hugging_face=HuggingFaceSource(repo="zai-org/GLM-5.3-FP8"))) == "GLM-5.3-FP8"
    assert served_name(ModelSpec(pvc=PvcSource(claim_name="weights", path="models/mine/"))) == "mine"


@pytest.mark.parametrize("entry", [pytest.param(one, id=one.repo) for one in catalogue.ENTRIES])
def test_facts_are_values(entry: catalogue.Entry) -> None:
    """Equal where they were read twice, and hashable: plans are compared and kept by them."""
    first, second = (read_config(entry.config, name=entry.repo, weight_bytes=entry.weight_bytes) for _ in range(2))
    assert first == second
    assert hash(first) == hash(second)
