"""Reading config.json: what is understood, what is refused, and that a refusal names the way out."""

from __future__ import annotations

from typing import Any

import pytest

from hisparse import catalogue
from hisparse.architectures import Attention
from hisparse.errors import SpecError
from hisparse.model import facts_for, needs_hub, read_config, served_name
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

    def test_unknown_weights_are_asked_for(self) -> None:
        with pytest.raises(SpecError) as caught:
            read(LLAMA, weights=None)
        assert caught.value.field == "spec.model.facts.weights"

    def test_the_index_of_the_hub(self) -> None:
        spec = ModelSpec(hugging_face=HuggingFaceSource(repo="someone/model"))
        facts = facts_for(spec, hub_config=LLAMA, hub_index={"metadata": {"total_size": 123}})
        assert facts.weight_bytes == 123


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
