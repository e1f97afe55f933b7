"""How each vLLM release counts KV cache: the rules that changed between releases, as data.

Read in the wheels of the releases that are named (v1/core/kv_cache_utils.py and kv_cache_planning.py,
v1/kv_cache_interface.py, config/vllm.py, config/model.py, envs.py). Releases between two of them were not all read: a
rule is dated by the first release that was seen to have it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final


@dataclass(frozen=True)
class Accounting:
    """The rules of one release.

    even_groups: kinds of layers whose counts differ by less than this factor share one group size, the larger count;
    None where the smaller count always is the size. tokens_by_concurrency: the logged token count is concurrency x
    max_model_len (before, blocks // groups x block). graphs_in_budget: the estimate for CUDA graphs is taken off the
    KV budget. async_batches: with async scheduling one batch more than pipeline ranks is in flight, and a window holds
    all of them. hybrid_prefix_caching: on by default for models with recurrent states, which then keep two states
    instead of one. null_block_reserved: one block is held back when a request is checked against the pool.
    padded_latent_bytes: MLA rows are rounded up to this many bytes. speculative_states: every drafted token keeps a
    state of its own. checkpoint_states: Mamba2, and Kimi delta attention by FlashKDA, keep one state more while
    prefixes are cached, which a prefill exports on its way. delta_net_checkpoints: gated delta nets by FlashInfer do
    so too, and their blocks are multiples of 64 tokens. flash_mla_blocks: dense MLA has blocks of 64 tokens on Hopper
    and Blackwell; later releases let the attention backend choose.
    """

    even_groups: Fraction | None = None
    tokens_by_concurrency: bool = False
    graphs_in_budget: bool = False
    async_batches: bool = False
    hybrid_prefix_caching: bool = False
    null_block_reserved: bool = False
    padded_latent_bytes: int = 1
    speculative_states: bool = True
    checkpoint_states: bool = False
    delta_net_checkpoints: bool = False
    flash_mla_blocks: bool = False


_V0: Final = Accounting(padded_latent_bytes=256, speculative_states=False, flash_mla_blocks=True)
_V1: Final = replace(_V0, padded_latent_bytes=1)
_V0_12: Final = replace(_V1, even_groups=Fraction(5, 4))
_V0_15: Final = replace(_V0_12, speculative_states=True)
_V0_19: Final = replace(_V0_15, even_groups=Fraction(3, 2), flash_mla_blocks=False)
_V0_20: Final = replace(_V0_19, tokens_by_concurrency=True, graphs_in_budget=True)
_V0_26: Final = replace(_V0_20, async_batches=True, hybrid_prefix_caching=True)
_V0_29: Final = replace(_V0_26, null_block_reserved=True)
_V0_32: Final = replace(_V0_29, checkpoint_states=True)
_V0_33: Final = replace(_V0_32, delta_net_checkpoints=True)

_RULES: Final[tuple[tuple[tuple[int, int], Accounting], ...]] = (
    ((0, 33), _V0_33),
    ((0, 32), _V0_32),
    ((0, 29), _V0_29),
    ((0, 26), _V0_26),
    ((0, 20), _V0_20),
    ((0, 19), _V0_19),
    ((0, 15), _V0_15),
    ((0, 12), _V0_12),
    ((0, 9), _V1),
    ((0, 0), _V0),
)
_VERSION: Final = re.compile(r"(\d+)\.(\d+)")


def accounting(version: str) -> Accounting:
    """The rules of "0.33", "0.11.2" and the like; those of the newest release where the text names none."""
    found = _VERSION.match(version)
    if found is None:
        return _V0_33
    number = (int(found[1]), int(found[2]))
    return next(rules for since, rules in _RULES if number >= since)
