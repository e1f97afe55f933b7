"""Our KV arithmetic against vLLM's own planning code, run on the CPU: every number equal, to the byte and the block.

vllm_layout.py answers inside vLLM's environment; this side asks, and compares with hisparse.layout and hisparse.tier.
The answers that record_layouts.py has written down for `make test` are asked for again. What is asked beside them:
every architecture of the catalogue on four generations of GPU, every other entry once, and seeded samples of layouts
that no model has. docs/kv-logs.md says what this leaves out.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import pytest
from recorded_layouts import REACHES, VERSIONS, record_of, recorded, setting_of
from vllm_answers import Answers, NotInstalledError, answers_of, layers_said

from hisparse import catalogue
from hisparse.architectures import FAMILIES
from hisparse.hardware import GPUS, Gpu
from hisparse.layers import (
    Cache,
    ChunkedAttention,
    FullAttention,
    IndexerKeys,
    LayerCaches,
    RecurrentState,
    SlidingWindow,
)
from hisparse.layout import Drafting, KvLayout, kv_layout
from hisparse.model import ModelFacts, read_config
from hisparse.pipeline import pipeline_split
from hisparse.rows import KV_DTYPES, attention_row_bytes, state_bytes
from hisparse.tier import HiSparseLayout, hisparse_layout
from hisparse_testenv import vllm_sources

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

SEED = 20261129
DENSE_SAMPLES = 240
HYBRID_SAMPLES = 110
DTYPES = ("Bf16", "Fp8", "Int8PerTokenHead", "Int4PerTokenHead")
TURBO = tuple(name for name, dtype in KV_DTYPES.items() if dtype.packed)
GENERATIONS = ((9, 0), (8, 0), (10, 0), (12, 0))


@dataclass(frozen=True)
class Asked:
    """One question, and the model that it is about."""

    question: dict[str, Any]
    model: ModelFacts

    @property
    def id(self) -> str:
        return str(self.question["id"])

    @property
    def gpu(self) -> Gpu:
        return replace(GPUS[0], capability=tuple(self.question["capability"]))

    @property
    def drafting(self) -> Drafting:
        drafted = self.question["drafted"]
        return Drafting(self.model.drafts[: len(self.question["drafts"])], drafted)

    def layout(self, version: str) -> KvLayout:
        """Our answer about a cache wholly in HBM."""
        asked = self.question
        return kv_layout(
            self.model,
            asked["ours"],
            self.gpu,
            tensor=asked["tensor"],
            pipeline=asked["pipeline"],
            context=asked["context"],
            batched_tokens=asked["batched"],
            version=version,
            drafting=self.drafting,
            block_tokens=asked["block_size"],
            prefix_caching=asked["caching"],
        )

    def pools(self) -> HiSparseLayout:
        """Our answer about HiSparse."""
        asked = self.question
        return hisparse_layout(
            self.model,
            asked["ours"],
            self.gpu,
            in_flight_tokens=self.layout(VERSIONS[0]).in_flight_tokens,
            shared=asked["tensor"] > 1,
            device_buffer=asked["device_buffer"],
            mtp_layers=len(asked["drafts"]),
            draft_tokens=asked["drafted"],
        )


def _has(model: ModelFacts, kind: type[Cache]) -> bool:
    return any(isinstance(cache, kind) for layer in model.caches for cache in layer)


def _ask(name: str, model: ModelFacts, config: Mapping[str, Any], dtype: str = "Bf16", **changes: Any) -> Asked:
    drafted = changes.get("drafted", 0)
    drafts = layers_said(model.drafts[:1]) if drafted else []
    question: dict[str, Any] = {
        "ask": "plain",
        "config": config,
        "layers": layers_said(model.caches),
        "drafts": drafts,
        "sparse": _has(model, IndexerKeys),
        "capability": (9, 0),
        "dtype": KV_DTYPES[dtype].engine,
        "ours": dtype,
        "block_size": None,
        "caching": True,
        "tensor": 1,
        "pipeline": 1,
        "context": 1,
        "batched": 8192,
        "drafted": 0,
        "lengths": (131_072, 1000),
        "shares": (3.7, 0.4),
        **changes,
    }
    words = (f"{key}={question[key]}" for key in ("tensor", "pipeline", "drafted", "caching") if key in changes)
    generation = "".join(map(str, question["capability"]))
    return Asked({"id": " ".join((name, dtype, f"sm{generation}", *words)), **question}, model)


def _entry(entry: catalogue.Entry) -> ModelFacts:
    return read_config(entry.config, name=entry.repo, weight_bytes=1)


# --- questions: the catalogue --------------------------------------------------------------------------------------


def _of_catalogue() -> Iterator[Asked]:
    """The first entry of each architecture in all ways, every other entry in one."""
    seen: set[str] = set()
    chance = random.Random(SEED)  # noqa: S311 - a repeatable sample
    for entry in catalogue.ENTRIES:
        model = _entry(entry)
        if model.architecture not in seen:
            seen.add(model.architecture)
            yield from _all_ways(entry, model)
        yield _ask(
            f"{entry.repo} once",
            model,
            entry.config,
            chance.choice(("Bf16", "Fp8")),
            batched=chance.choice((2048, 16_384)),
            lengths=(chance.randint(1, 1_000_000),),
        )


def _all_ways(entry: catalogue.Entry, model: ModelFacts) -> Iterator[Asked]:
    sparse = _has(model, IndexerKeys)
    for generation in GENERATIONS:
        # vLLM has no sparse MLA for Ampere, and stores fp8 whatever it is told on SM120
        if sparse and generation[0] in (8, 12):
            continue
        for dtype in ("Bf16", "Fp8"):
            yield _ask(entry.repo, model, entry.config, dtype, capability=generation)
    yield _ask(entry.repo, model, entry.config, caching=False)
    yield _ask(entry.repo, model, entry.config, tensor=2 if model.has_states else 8)
    yield _ask(entry.repo, model, entry.config, pipeline=4)
    if model.drafts:
        yield _ask(entry.repo, model, entry.config, drafted=3)


# --- questions: layouts that no model has --------------------------------------------------------------------------


def _turns(local: Cache, full: Cache, layers: int, every: int) -> tuple[LayerCaches, ...]:
    return tuple((full if (index + 1) % every == 0 else local,) for index in range(layers))


def _dense_caches(chance: random.Random, kind: str) -> tuple[LayerCaches, ...]:
    layers, every = chance.randint(2, 70), chance.randint(2, 8)
    heads, dim = chance.choice((1, 2, 3, 4, 5, 8, 10, 16, 32)), chance.choice((64, 80, 96, 112, 128, 160, 192, 256))
    window, chunk = chance.choice((128, 512, 513, 1000, 1024, 4095, 4096)), chance.choice((1024, 8191, 8192))
    full, local = FullAttention(heads, dim, dim), SlidingWindow(heads, dim, dim, window)
    if kind == "window":
        return _turns(local, full, layers, every)
    if kind == "chunk":
        return _turns(ChunkedAttention(heads, dim, dim, chunk), full, layers, every)
    if kind == "unequal heads":
        other = chance.choice((64, 128, 256, 512))
        return _turns(local, FullAttention(chance.choice((1, 2, 4, 8, 16)), other, other), layers, every)
    if kind == "two windows":
        wider = replace(local, window=2 * window)
        return tuple((chance.choice((full, local, wider)),) for _ in range(layers))
    if kind == "two sizes":
        return tuple((chance.choice((full, replace(full, kv_heads=2 * heads))),) for _ in range(layers))
    if kind == "shared":
        owners = max(2, layers // 2)
        turns = _turns(local, full, layers, every)
        return tuple(caches if index < owners else () for index, caches in enumerate(turns))
    if kind == "narrow values":
        return ((FullAttention(heads, 192, 128),),) * layers
    return ((full,),) * layers


def _dense() -> Iterator[Asked]:
    chance = random.Random(SEED)  # noqa: S311 - a repeatable sample
    base = _entry(catalogue.ENTRIES[0])
    kinds = ("full", "window", "chunk", "unequal heads", "two windows", "two sizes", "shared", "narrow values")
    for number in range(DENSE_SAMPLES):
        kind = chance.choice(kinds)
        caches = _dense_caches(chance, kind)
        full = next((one for layer in caches for one in layer if isinstance(one, FullAttention)), None)
        draft = full or FullAttention(4, 128, 128)
        model = replace(
            base,
            architecture="LlamaForCausalLM",
            indexer=None,
            caches=caches,
            drafts=((draft,),),
        )
        yield _ask(
            f"sample {number} {kind}",
            model,
            {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": len(caches), "num_attention_heads": 32},
            chance.choice(DTYPES[:2] if kind == "narrow values" else DTYPES),
            capability=chance.choice(GENERATIONS[:2]),
            tensor=chance.choice((1, 2, 4, 8)),
            # a rank without any cache makes vLLM itself fail
            pipeline=1 if kind == "shared" else min(len(caches), chance.choice((1, 1, 2, 4))),
            context=chance.choice((1, 1, 2)) if kind == "full" else 1,
            drafted=chance.choice((0, 0, 1, 3)),
            batched=chance.choice((2048, 8192, 16_384)),
            block_size=chance.choice((None, None, 32, 64)),
            lengths=(chance.randint(1, 2_000_000),),
            shares=(chance.uniform(0.1, 9), chance.uniform(1, 90)),
        )


def _turbo() -> Iterator[Asked]:
    base = _entry(next(one for one in catalogue.ENTRIES if "Llama-3.1-8B" in one.repo))
    for dtype in TURBO:
        for layers, heads, dim in ((32, 8, 128), (28, 4, 128), (36, 8, 64), (62, 8, 256), (3, 2, 128)):
            full = FullAttention(heads, dim, dim)
            model = replace(base, caches=((full,),) * layers, drafts=((full,),))
            config = {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": layers, "num_attention_heads": 32}
            for changes in ({}, {"tensor": 4, "pipeline": 2}, {"drafted": 2}, {"block_size": 64}):
                yield _ask(
                    f"{layers} x {heads} x {dim} {changes.get('block_size', '')}", model, config, dtype, **changes
                )


# --- questions: recurrent states -------------------------------------------------------------------------------------

Config = dict[str, Any]


def _delta_net(chance: random.Random) -> Config:
    keys = chance.choice((8, 16, 32))
    newer = chance.random() < 0.5
    # only Qwen3.5 and later read the dtype of their state from the config
    own: Config = {"mamba_ssm_dtype": "float32"} if newer and chance.random() < 0.5 else {}
    return {
        "architectures": ["Qwen3_5MoeForCausalLM" if newer else "Qwen3NextForCausalLM"],
        "linear_num_key_heads": keys,
        "linear_num_value_heads": keys * chance.choice((1, 2, 4)),
        "linear_key_head_dim": 128,
        "linear_value_head_dim": chance.choice((64, 128)),
        "linear_conv_kernel_dim": 4,
        "num_key_value_heads": chance.choice((2, 4, 8)),
        "head_dim": chance.choice((128, 256)),
        "full_attention_interval": chance.randint(2, 6),
        **own,
    }


def _nemotron(chance: random.Random) -> Config:
    pattern = "M*" + "".join(chance.choice("MM-E*") for _ in range(chance.randint(10, 60)))
    return {
        "architectures": ["NemotronHForCausalLM"],
        "hybrid_override_pattern": pattern,
        "num_hidden_layers": len(pattern),
        "mamba_num_heads": chance.choice((64, 96, 128)),
        "mamba_head_dim": chance.choice((64, 80)),
        "ssm_state_size": 128,
        "n_groups": 8,
        "conv_kernel": 4,
        "num_key_value_heads": chance.choice((2, 8)),
        "head_dim": 128,
        "mamba_ssm_cache_dtype": chance.choice(("float32", "float16")),
    }


def _granite(chance: random.Random) -> Config:
    kinds = [
        "mamba",
        "attention",
        *(chance.choice(("mamba",) * 5 + ("attention",)) for _ in range(chance.randint(6, 38))),
    ]
    heads = chance.choice((64, 128))
    return {
        "architectures": ["GraniteMoeHybridForCausalLM"],
        "layer_types": kinds,
        "num_hidden_layers": len(kinds),
        "hidden_size": heads * 32,
        "mamba_expand": 2,
        "mamba_n_heads": heads,
        "mamba_d_head": 64,
        "mamba_d_state": chance.choice((128, 256)),
        "mamba_n_groups": chance.choice((1, 8)),
        "mamba_d_conv": 4,
        "num_key_value_heads": chance.choice((4, 8)),
        "head_dim": 128,
    }


def _falcon(chance: random.Random) -> Config:
    heads = chance.choice((24, 32, 48))
    return {
        "architectures": ["FalconH1ForCausalLM"],
        "num_hidden_layers": chance.randint(4, 44),
        "mamba_d_ssm": heads * 64,
        "mamba_expand": 2,
        "mamba_n_heads": heads,
        "mamba_d_head": 64,
        "mamba_d_state": chance.choice((128, 256)),
        "mamba_n_groups": chance.choice((1, 2)),
        "mamba_d_conv": 4,
        "num_key_value_heads": chance.choice((2, 4)),
        "head_dim": chance.choice((64, 128)),
    }


def _short_convolutions(chance: random.Random) -> Config:
    rest = (chance.choice(("conv", "conv", "full_attention")) for _ in range(chance.randint(4, 30)))
    kinds = ["conv", "full_attention", *rest]
    return {
        "architectures": ["Lfm2ForCausalLM"],
        "model_type": "lfm2",
        "layer_types": kinds,
        "num_hidden_layers": len(kinds),
        "conv_L_cache": 3,
        "conv_dim": 2048,
        "hidden_size": 2048,
        "num_key_value_heads": 8,
        "head_dim": 64,
    }


def _jamba(chance: random.Random) -> Config:
    return {
        "architectures": ["JambaForCausalLM"],
        "model_type": "jamba",
        "num_hidden_layers": chance.choice((8, 16, 32)),
        "attn_layer_period": 8,
        "attn_layer_offset": 4,
        "mamba_expand": 2,
        "mamba_d_state": 16,
        "mamba_d_conv": 4,
        "num_key_value_heads": 8,
        "head_dim": 128,
    }


def _kimi(chance: random.Random) -> Config:
    layers = chance.choice((12, 27))
    linear = {"head_dim": 128, "num_heads": 32, "short_conv_kernel_size": 4}
    linear["kda_layers"] = [one + 1 for one in range(layers) if (one + 1) % 4]  # type: ignore[assignment]
    return {
        "architectures": ["KimiLinearForCausalLM"],
        "num_hidden_layers": layers,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "linear_attn_config": linear,
    }


HYBRIDS: tuple[Callable[[random.Random], Config], ...] = (
    _delta_net,
    _delta_net,
    _nemotron,
    _granite,
    _falcon,
    _short_convolutions,
    _jamba,
    _kimi,
)


def _hybrids() -> Iterator[Asked]:
    chance = random.Random(SEED)  # noqa: S311 - a repeatable sample
    for number in range(HYBRID_SAMPLES):
        family = chance.choice(HYBRIDS)
        config: Config = {
            "num_hidden_layers": chance.randint(6, 64),
            "num_attention_heads": 32,
            "hidden_size": 4096,
            "max_position_embeddings": 262_144,
            "torch_dtype": "bfloat16",
            **family(chance),
        }
        model = read_config(config, name="sample", weight_bytes=1)
        attending = next(layer for layer in model.caches if layer and not isinstance(layer[0], RecurrentState))
        drafts = family in (_delta_net, _nemotron, _granite, _falcon, _kimi)
        yield _ask(
            f"sample {number} {family.__name__}",
            replace(model, drafts=(attending[:1],)),
            config,
            chance.choice(("Bf16", "Bf16", "Fp8")),
            capability=chance.choice(GENERATIONS),
            tensor=chance.choice((1, 2) if family is _short_convolutions else (1, 1, 2, 4)),
            pipeline=chance.choice((1, 1, 2)),
            drafted=chance.choice((0, 0, 1, 3)) if drafts else 0,
            caching=chance.random() < 0.7,
            batched=chance.choice((2048, 8192)),
            lengths=(chance.randint(1000, 1_500_000),),
            shares=(chance.uniform(0.1, 9), chance.uniform(1, 90)),
        )


# --- questions: HiSparse ---------------------------------------------------------------------------------------------


def _hisparse() -> Iterator[Asked]:
    for repo in ("zai-org/GLM-5.3", "zai-org/GLM-5.2", "zai-org/GLM-5.1", "deepseek-ai/DeepSeek-V3.2"):
        entry = catalogue.lookup(repo)
        assert entry is not None
        model = _entry(entry)
        for dtype, generation in (("Fp8", (9, 0)), ("Bf16", (9, 0)), ("Fp8", (10, 0)), ("Bf16", (10, 0))):
            for tensor, drafted, batched in ((1, 0, 8192), (8, 0, 2048), (2, 1, 8192), (8, 3, 32_768), (4, 5, 16_384)):
                yield _ask(
                    repo,
                    model,
                    entry.config,
                    dtype,
                    ask="hisparse_pools",
                    capability=generation,
                    tensor=tensor,
                    drafted=drafted,
                    batched=batched,
                    lengths=(1_048_576, 131_073, 7),
                    shares=(0.6, 3.3),
                    # what it is by itself, and a size that is no whole number of blocks
                    device_buffer=None if batched != 2048 else (drafted + 1) * 2048 + 100,
                )


# --- questions: single numbers -----------------------------------------------------------------------------------------


def _small() -> list[dict[str, Any]]:
    asked: list[dict[str, Any]] = [
        {"id": f"{layers} layers on {ranks} ranks", "ask": "pipeline", "layers": layers, "ranks": ranks}
        for layers in (*range(8, 40), 61, 62, 78, 80, 126)
        for ranks in (1, 2, 3, 4, 5, 8)
    ]
    asked += [
        {
            "id": f"{KV_DTYPES[name].engine} {dim} {layers}",
            "ask": "turboquant",
            "ours": name,
            "dtype": KV_DTYPES[name].engine,
            "head_dim": dim,
            "layers": layers,
        }
        for name in TURBO
        for dim in (64, 80, 96, 112, 128, 192, 256)
        for layers in (1, 2, 3, 4, 5, 32)
    ]
    return asked + [{"id": f"state {number}", "ask": "state", **one} for number, one in enumerate(_states())]


def _states() -> Iterator[dict[str, Any]]:
    """Shapes, ranks and drafted tokens for the calculators, each with the state that it stands for here."""
    chance = random.Random(SEED)  # noqa: S311 - a repeatable sample
    for _ in range(200):
        tensor, drafted = chance.choice((1, 2, 4, 8)), chance.choice((0, 1, 3, 5))
        heads, dim, size = 8 * chance.randint(1, 16), chance.choice((64, 80, 128)), chance.choice((64, 128, 256))
        taps, width = chance.choice((2, 3, 4)), chance.choice((2, 4))
        groups, keys = chance.choice((1, 2, 3, 4, 8)), 8 * chance.randint(1, 8)
        both = {"tp_world_size": tensor, "num_spec": drafted}
        mamba2 = RecurrentState(
            heads * dim, taps, groups=groups, group_channels=size, heads=heads, rows=dim, columns=size
        )
        delta = RecurrentState(2 * keys * 128 + heads * dim, taps, heads=heads, rows=dim, columns=128, width=width)
        kda = RecurrentState(3 * heads * dim, taps, heads=heads, rows=dim, columns=dim, width=width)
        short = RecurrentState(heads * dim, taps, speculative_taps=False)
        mamba1 = RecurrentState(heads * dim, taps, heads=heads * dim, rows=1, columns=16, speculative_taps=False)
        linear = RecurrentState(heads=heads, rows=dim, columns=dim)
        for shape, state, arguments, widths in (
            (
                "mamba2_state_shape",
                mamba2,
                {
                    **both,
                    "intermediate_size": heads * dim,
                    "n_groups": groups,
                    "num_heads": heads,
                    "head_dim": dim,
                    "state_size": size,
                    "conv_kernel": taps + 1,
                },
                (2, 2),
            ),
            (
                "gated_delta_net_state_shape",
                delta,
                {
                    **both,
                    "num_k_heads": keys,
                    "num_v_heads": heads,
                    "head_k_dim": 128,
                    "head_v_dim": dim,
                    "conv_kernel_size": taps + 1,
                },
                (2, width),
            ),
            (
                "kda_state_shape",
                kda,
                {**both, "num_heads": heads, "head_dim": dim, "conv_kernel_size": taps + 1},
                (2, width),
            ),
            (
                "short_conv_state_shape",
                short,
                {"tp_world_size": tensor, "intermediate_size": heads * dim, "conv_kernel": taps + 1},
                (2,),
            ),
            (
                "mamba1_state_shape",
                mamba1,
                {"tp_world_size": tensor, "intermediate_size": heads * dim, "state_size": 16, "conv_kernel": taps + 1},
                (2, 2),
            ),
            ("linear_attention_state_shape", linear, {"tp_size": tensor, "num_heads": heads, "head_dim": dim}, (2,)),
        ):
            yield {
                "shape": shape,
                "arguments": arguments,
                "widths": widths,
                "state": asdict(state),
                "tensor": tensor,
                "drafted": drafted,
            }


# --- asking ----------------------------------------------------------------------------------------------------------

PLAIN = {one.id: one for one in (*_of_catalogue(), *_dense(), *_turbo(), *_hybrids())}
POOLS = {one.id: one for one in _hisparse()}
SMALL = {one["id"]: one for one in _small()}
RECORDED = {(version, one["rule"]): one for version in VERSIONS for one in recorded(version)}
SETTINGS = {one.id: one for one in map(setting_of, RECORDED.values())}


@pytest.fixture(scope="module")
def answered(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Answers]:
    """What each release answers to all questions."""
    questions = [one.question for one in (*PLAIN.values(), *POOLS.values())]
    questions += [*SMALL.values(), *(one.question() for one in SETTINGS.values())]
    try:
        return answers_of(questions, tmp_path_factory.mktemp("vllm"))
    except NotInstalledError as error:
        pytest.fail(str(error))


# --- comparing ---------------------------------------------------------------------------------------------------------


def _largest(answer: Mapping[str, Any]) -> int:
    """The pipeline rank whose blocks are largest, the first of them."""
    sizes = answer["block_bytes"]
    return int(sizes.index(max(sizes)))


def _group(reach: str, layers: int, block: int, size: int) -> tuple[str, int, int, int]:
    # without prefix caching the engine says max_model_len for the block of a state, which nothing reads
    return reach, layers, 0 if reach == "state" else block, size


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", PLAIN)
def test_cache_in_hbm(answered: dict[str, Answers], name: str, version: str) -> None:
    answer = answered[version][name]
    assert "error" not in answer, answer
    layout = PLAIN[name].layout(version)
    groups = answer["workers"][_largest(answer)]
    assert sorted(_group(one.reach.value, one.layers, one.block_tokens, one.bytes) for one in layout.groups) == sorted(
        _group(REACHES[one["kind"]], one["layers"], one["block_size"], one["bytes"]) for one in groups
    )
    assert layout.block_bytes == max(answer["block_bytes"])
    for plan in answer["plans"]:
        tokens = plan["tokens"]
        assert layout.request_bytes(tokens) == plan["needed"]
        for fit in plan["budgets"]:
            budget = fit["budget"]
            assert layout.holds(budget, tokens) is fit["starts"]
            if not fit["starts"]:
                longest = layout.longest(budget, tokens)
                assert longest == fit["longest"]
                # the engine prints what the first pipeline rank that fails could hold; the last word is the least
                printed = fit["estimate"]
                assert printed == longest if len(answer["block_bytes"]) == 1 else printed >= longest
                continue
            blocks = fit["blocks"]
            assert layout.blocks_in(budget) == blocks
            assert float(layout.concurrency(blocks, tokens)) == fit["concurrency"]
            # the engine multiplies a rounded quotient, which can cost one token of the exact number
            assert int(blocks / layout.request_blocks(tokens) * tokens) == fit["logged"]
            assert 0 <= layout.logged_tokens(blocks, tokens) - fit["logged"] <= 1


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", POOLS)
def test_hisparse_pools(answered: dict[str, Answers], name: str, version: str) -> None:
    answer = answered[version][name]
    assert "error" not in answer, answer
    pools = POOLS[name].pools()
    assert {key: answer[key] for key in ("gpu_block_bytes", "host_block_bytes", "shared", "groups", "hot_blocks")} == {
        "gpu_block_bytes": pools.gpu_block_bytes,
        "host_block_bytes": pools.host_block_bytes,
        "shared": pools.shared,
        "groups": pools.groups,
        "hot_blocks": [pools.hot_blocks],
    }
    for plan in answer["plans"]:
        tokens = plan["tokens"]
        admission, steady, host = (
            pools.admission_blocks(tokens),
            pools.steady_blocks(tokens),
            pools.host_request_blocks(tokens),
        )
        assert admission * pools.gpu_block_bytes == plan["needed"]
        for fit in plan["fits"]:
            gpu_blocks = fit["gpu_bytes"] // pools.gpu_block_bytes
            host_blocks = fit["host_bytes"] // pools.host_block_bytes
            # the GPU pool keeps its null block back
            starts = gpu_blocks > admission and host_blocks >= pools.minimum_host_blocks(tokens)
            assert starts is fit["starts"], fit
            if starts:
                assert (gpu_blocks, host_blocks) == (fit["gpu_blocks"], fit["host_blocks"])
                assert float(pools.admission_concurrency(gpu_blocks, host_blocks, tokens)) == fit["admission"]
                assert min(1 + (gpu_blocks - admission) / steady, host_blocks / host) == fit["steady"]
                exact = float(pools.concurrency(gpu_blocks, host_blocks, tokens))
                assert exact == pytest.approx(fit["steady"], rel=1e-12)


@pytest.mark.parametrize(("version", "rule"), RECORDED)
def test_what_is_recorded_is_what_vllm_answers(answered: dict[str, Answers], version: str, rule: str) -> None:
    """tests/data/vllm/ is up to date; `python tests/engine/record_layouts.py` renews it."""
    record = RECORDED[version, rule]
    setting = setting_of(record)
    assert record_of(setting, answered[version][setting.id]) == record


@pytest.mark.parametrize("version", VERSIONS)
def test_single_numbers(answered: dict[str, Answers], version: str) -> None:
    wrong = {}
    for name, asked in SMALL.items():
        answer = answered[version][name]
        ours = _ours(asked)
        if {key: answer.get(key) for key in ours} != ours:
            wrong[name] = (ours, answer)
    assert not wrong


def _ours(asked: Mapping[str, Any]) -> dict[str, Any]:
    if asked["ask"] == "pipeline":
        return {"split": list(pipeline_split(asked["layers"], asked["ranks"]))}
    if asked["ask"] == "turboquant":
        one = FullAttention(1, asked["head_dim"], asked["head_dim"])
        return {"slot": attention_row_bytes(one, KV_DTYPES[asked["ours"]], tensor=1)}
    state = RecurrentState(**asked["state"])
    return {"bytes": state_bytes(state, tensor=asked["tensor"], speculative=asked["drafted"])}


@pytest.mark.parametrize("version", VERSIONS)
def test_architectures_are_those_that_vllm_serves(version: str) -> None:
    found = vllm_sources.found(version)
    if found is None:
        pytest.fail(f"vLLM {version} is not installed; run `make test-engine`")
    registry = (found[0] / "vllm/model_executor/models/registry.py").read_text()
    assert [name for name in FAMILIES if f'"{name}"' not in registry] == []
