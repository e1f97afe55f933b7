"""Writes tests/data/vllm/: what vLLM's own planning code answers about settings that each show one rule.

    python tests/engine/record_layouts.py

Takes a minute or two and needs what `make test-engine` prepares. `make test` holds the planner against the files, so
that a rule that is broken is noticed on a machine without vLLM; the engine lane says when a file is out of date.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from recorded_layouts import Setting, path_of, record_of, turns_of
from vllm_answers import VERSIONS, answers_of

from hisparse import catalogue
from hisparse.layers import Cache, ChunkedAttention, FullAttention, SlidingWindow
from hisparse.rows import KV_DTYPES

FULL = FullAttention(8, 128, 128)
LOCAL = SlidingWindow(8, 128, 128, 1024)
HOPPER, AMPERE, BLACKWELL, WORKSTATION = (9, 0), (8, 0), (10, 0), (12, 0)


def settings() -> Iterator[Setting]:
    """Every family on every generation that it runs on, and what each special rule is about."""
    yield from _dense()
    yield from _turboquant()
    yield from _windows()
    yield from _latent()
    yield from _hybrids()
    yield from _checkpoints()
    yield from _pooled()


def _of(*turns: tuple[int, tuple[Cache, ...]], **how: Any) -> Setting:
    return Setting(turns=turns_of(*((times, tuple((cache,) for cache in turn)) for times, turn in turns)), **how)


def _dense() -> Iterator[Setting]:
    llama = Setting("", repo="meta-llama/Llama-3.1-8B-Instruct")
    for dtype in ("Bf16", "Fp8", "Int8PerTokenHead", "Int4PerTokenHead"):
        yield replace(llama, rule=f"bytes of a dense row, {dtype}", dtype=dtype)
    yield replace(llama, rule="ranks beyond the KV heads hold copies", tensor=16)
    yield replace(llama, rule="tokens are spread over decode-context ranks", context=2, tensor=2)
    yield replace(llama, rule="a drafted token adds a layer on the last of 4 ranks", pipeline=4, drafted=1)
    yield replace(llama, rule="a block size that was asked for", block_tokens=64)
    yield _of((20, (FULL,)), (7, (FullAttention(16, 128, 128),)), rule="full layers of two sizes share one table")
    yield _of((14, (FullAttention(4, 192, 128),)), rule="values narrower than keys", tensor=2)


def _turboquant() -> Iterator[Setting]:
    odd = FullAttention(2, 88, 88)
    for dtype in (name for name, one in KV_DTYPES.items() if one.packed):
        yield _of((32, (FULL,)), rule=f"the ends of a dense model stay in 16 bits, {dtype}", dtype=dtype, tensor=2)
    yield _of((12, (odd,)), rule="slots are of even size", dtype="TurboQuantK3V4Nc")
    yield _of((3, (FULL,)), rule="no more than half of the layers are ends", dtype="TurboQuant3BitNc", drafted=2)
    yield Setting("hybrids have no ends in 16 bits", repo="Qwen/Qwen3-Next-80B-A3B-Instruct", dtype="TurboQuant4BitNc")


def _windows() -> Iterator[Setting]:
    yield Setting("52 windowed and 10 full layers in groups of 10", repo="google/gemma-3-27b-it")
    yield Setting("windows over 4 pipeline ranks", repo="google/gemma-3-27b-it", pipeline=4, dtype="Fp8", tensor=8)
    yield Setting("full layers of half the size have longer blocks", repo="google/gemma-4-31B-it", batched=2048)
    yield Setting("windows with a full draft layer", repo="openai/gpt-oss-20b", drafted=1)
    yield _of((10, (LOCAL, LOCAL, FULL)), rule="twice as many are not nearly even")
    yield _of((10, (LOCAL, FULL)), (5, (LOCAL,)), rule="half as many again are not nearly even")
    yield _of((10, (LOCAL, FULL)), (4, (LOCAL,)), rule="14 and 10 are nearly even")
    yield _of((9, (LOCAL, FullAttention(3, 128, 128))), rule="a page that does not divide the largest is padded")
    yield _of((6, (LOCAL, replace(LOCAL, window=2048), FULL)), rule="windows of two lengths are two kinds")
    yield _of((12, (SlidingWindow(8, 128, 128, 513), FULL)), rule="a window of no whole blocks", lengths=(131_072, 513))
    yield _of(
        (12, (ChunkedAttention(8, 128, 128, 8191),) * 3 + (FULL,)),
        rule="a chunk of no whole blocks",
        lengths=(131_072, 20_000),
    )


def _latent() -> Iterator[Setting]:
    for generation, dtype in product((HOPPER, AMPERE, BLACKWELL, WORKSTATION), ("Bf16", "Fp8")):
        name = f"latent rows of sm{generation[0]}{generation[1]}, {dtype}"
        yield Setting(name, repo="deepseek-ai/DeepSeek-V3", dtype=dtype, capability=generation, lengths=(131_071, 7))
    # no sparse MLA for Ampere, and SM120 stores fp8 whatever it is told
    for generation, dtype in product((HOPPER, BLACKWELL), ("Bf16", "Fp8")):
        name = f"sparse latent rows of sm{generation[0]}{generation[1]}, {dtype}"
        yield Setting(name, repo="zai-org/GLM-5.3", dtype=dtype, capability=generation, tensor=8)
    yield Setting(
        "a draft layer and its indexer on the last rank", repo="deepseek-ai/DeepSeek-V3.2", drafted=3, pipeline=4
    )


def _hybrids() -> Iterator[Setting]:
    kimi: dict[str, Any] = {
        "architectures": ["KimiLinearForCausalLM"],
        "num_hidden_layers": 27,
        "num_attention_heads": 32,
        "hidden_size": 4096,
        "max_position_embeddings": 262_144,
        "torch_dtype": "bfloat16",
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "linear_attn_config": {
            "head_dim": 128,
            "num_heads": 32,
            "short_conv_kernel_size": 4,
            "kda_layers": [one + 1 for one in range(27) if (one + 1) % 4],
        },
    }
    for generation in (HOPPER, BLACKWELL):
        for dtype, tensor in (("Bf16", 1), ("Fp8", 4)):
            name = f"blocks of latent hybrids are multiples of 128, sm{generation[0]}{generation[1]} {dtype}"
            yield Setting(name, config=kimi, dtype=dtype, capability=generation, tensor=tensor)
    yield Setting("latent hybrids without prefix caching", config=kimi, caching=False, pipeline=2)
    falcon = {
        "architectures": ["FalconH1ForCausalLM"],
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "hidden_size": 4096,
        "max_position_embeddings": 262_144,
        "torch_dtype": "bfloat16",
        "mamba_d_ssm": 2048,
        "mamba_expand": 2,
        "mamba_n_heads": 32,
        "mamba_d_head": 64,
        "mamba_d_state": 256,
        "mamba_n_groups": 1,
        "mamba_d_conv": 4,
        "num_key_value_heads": 4,
        "head_dim": 128,
    }
    yield Setting("a layer that attends and recurs", config=falcon, drafted=1)
    yield Setting("groups of a state that TP does not divide", config=falcon, tensor=4, dtype="Fp8")
    lfm = {
        "architectures": ["Lfm2ForCausalLM"],
        "model_type": "lfm2",
        "layer_types": ["conv", "conv", "full_attention"] * 5 + ["conv"],
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "conv_L_cache": 3,
        "conv_dim": 2048,
        "hidden_size": 2048,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "max_position_embeddings": 128_000,
        "torch_dtype": "bfloat16",
    }
    yield Setting("states smaller than a block of 16 tokens", config=lfm, tensor=2)
    jamba = {
        "architectures": ["JambaForCausalLM"],
        "model_type": "jamba",
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "hidden_size": 4096,
        "max_position_embeddings": 262_144,
        "torch_dtype": "bfloat16",
        "attn_layer_period": 8,
        "attn_layer_offset": 4,
        "mamba_expand": 2,
        "mamba_d_state": 16,
        "mamba_d_conv": 4,
        "num_key_value_heads": 8,
        "head_dim": 128,
    }
    yield Setting("Mamba states never come from inside a prefill", config=jamba)


def _checkpoints() -> Iterator[Setting]:
    next_ = Setting("", repo="Qwen/Qwen3-Next-80B-A3B-Instruct")
    for generation in (HOPPER, AMPERE, BLACKWELL, WORKSTATION):
        name = f"states of a gated delta net, sm{generation[0]}{generation[1]}"
        yield replace(next_, rule=name, capability=generation, tensor=2)
    yield replace(next_, rule="no prefix caching, no second state", caching=False, dtype="Fp8")
    yield Setting("a draft layer, and a state for each of 3 tokens", repo="Qwen/Qwen3.5-27B", drafted=3)
    narrow = {
        "architectures": ["Qwen3NextForCausalLM"],
        "num_hidden_layers": 24,
        "num_attention_heads": 32,
        "hidden_size": 4096,
        "max_position_embeddings": 262_144,
        "torch_dtype": "bfloat16",
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_key_head_dim": 64,
        "linear_value_head_dim": 64,
        "linear_conv_kernel_dim": 4,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "full_attention_interval": 4,
    }
    for generation in (HOPPER, BLACKWELL):
        name = f"narrow delta nets export on Hopper alone, sm{generation[0]}{generation[1]}"
        yield Setting(name, config=narrow, capability=generation)
    nemotron = {
        "architectures": ["NemotronHForCausalLM"],
        "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
        "num_hidden_layers": 52,
        "num_attention_heads": 32,
        "hidden_size": 2688,
        "max_position_embeddings": 262_144,
        "torch_dtype": "bfloat16",
        "mamba_num_heads": 64,
        "mamba_head_dim": 64,
        "ssm_state_size": 128,
        "n_groups": 8,
        "conv_kernel": 4,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "mamba_ssm_cache_dtype": "float32",
    }
    yield Setting("a Mamba2 prefill exports a state on every GPU", config=nemotron, capability=AMPERE)
    yield Setting("Mamba2 with 3 drafted tokens and fp8 keys", config=nemotron, dtype="Fp8", drafted=3, tensor=2)


def _pooled() -> Iterator[Setting]:
    flash = Setting("", repo="zai-org/GLM-5.3-Flash")
    for generation, dtype in product((HOPPER, BLACKWELL), ("Bf16", "Fp8")):
        name = f"pooled indexer keys beside latent rows and states, sm{generation[0]}{generation[1]} {dtype}"
        yield replace(flash, rule=name, capability=generation, dtype=dtype)
    yield replace(flash, rule="a ring of keys that grows with drafting", drafted=3)
    yield replace(flash, rule="and in powers of two", drafted=5)
    yield replace(flash, rule="pooled keys over 4 pipeline ranks", pipeline=4)
    yield replace(flash, rule="pooled keys without prefix caching", caching=False, tensor=4)
    narrow = _few(states=33, sparse=11, pool=4)
    narrow["text_config"] |= {"linear_head_dim": 64, "linear_attn_config": {"num_heads": 64, "head_dim": 64}}
    yield Setting("narrow delta attention exports no state", config=narrow)
    larger = _few(states=54, sparse=8, pool=2)
    yield Setting("of two group sizes with as much padding the larger", config=larger, dtype="Fp8")
    yield Setting("no more states in a group than its block has room for", config=_few(states=4, sparse=3, pool=4))


def _few(*, states: int, sparse: int, pool: int) -> dict[str, Any]:
    """GLM-5.3-Flash with other numbers of layers, and one indexer row for `pool` tokens."""
    entry = catalogue.lookup("zai-org/GLM-5.3-Flash")
    assert entry is not None
    kinds = ["linear_attention"] * states + ["deepseek_sparse_attention"] * sparse
    text = {**entry.config["text_config"], "num_hidden_layers": len(kinds), "layer_types": kinds, "index_kpool": pool}
    return {**entry.config, "text_config": text}


def main() -> None:
    """Ask both releases, and write a file for each."""
    asked = {one.id: one for one in settings()}
    with tempfile.TemporaryDirectory() as folder:
        answers = answers_of((one.question() for one in asked.values()), Path(folder))
    for version in VERSIONS:
        records = [record_of(one, answers[version][name]) for name, one in asked.items()]
        lines = ",\n".join(json.dumps(record) for record in records)
        path = path_of(version)
        path.parent.mkdir(exist_ok=True)
        path.write_text(f'{{"vllm": "{version}", "layouts": [\n{lines}\n]}}\n')
        sys.stdout.write(f"{path}: {len(records)} layouts\n")


if __name__ == "__main__":
    main()
