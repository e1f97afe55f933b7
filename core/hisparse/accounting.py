"""How each vLLM release counts KV cache: the rules that changed between releases, as data.

Read in the wheels of the releases that are named (v1/core/kv_cache_utils.py and kv_cache_planning.py,
v1/kv_cache_interface.py, config/vllm.py, config/model.py, envs.py). Releases between two of them were not all read: a
rule is dated by the first release that was seen to have it.

spec.engine.version takes the releases of dialect.py only. The older rows are for logs of other people's engines, which
the planner is held against (docs/kv-logs.md).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

from hisparse.dialect import release


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
    and Blackwell; later releases let the attention backend choose. requests_in_blocks: the logged concurrency counts
    whole blocks per request (before, tokens over length). latent_hybrid_step: blocks of latent rows beside recurrent
    states are multiples of it. blackwell_wide_heads: beside states, heads of 256 on Blackwell have blocks of 32 tokens
    and multiples. sampling_copies: float32 copies of the logits of max_num_seqs requests that are alive at the peak of
    the profile run: 9.6 in eight logs of 0.10 to 0.16, 3.9 to 4.1 in six of 0.18 to 0.26 (docs/kv-logs.md).
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
    requests_in_blocks: bool = True
    latent_hybrid_step: int = 64
    blackwell_wide_heads: bool = True
    sampling_copies: Fraction = Fraction(48, 5)


_OLDEST: Final = Accounting(
    padded_latent_bytes=256, speculative_states=False, flash_mla_blocks=True, requests_in_blocks=False
)
_V1: Final = replace(_OLDEST, padded_latent_bytes=1)
_0_9_1: Final = replace(_V1, requests_in_blocks=True)
_0_12: Final = replace(_0_9_1, even_groups=Fraction(5, 4))
_0_15: Final = replace(_0_12, speculative_states=True)
_0_18: Final = replace(_0_15, flash_mla_blocks=False, blackwell_wide_heads=False, sampling_copies=Fraction(4))
_0_19: Final = replace(_0_18, even_groups=Fraction(3, 2))
_0_20: Final = replace(_0_19, graphs_in_budget=True, latent_hybrid_step=1)
_0_20_1: Final = replace(_0_20, tokens_by_concurrency=True)
_0_26: Final = replace(_0_20_1, async_batches=True, hybrid_prefix_caching=True)
_0_27: Final = replace(_0_26, latent_hybrid_step=128)
_0_29: Final = replace(_0_27, null_block_reserved=True)
_0_32: Final = replace(_0_29, checkpoint_states=True)
_0_33: Final = replace(_0_32, delta_net_checkpoints=True)

_RULES: Final[tuple[tuple[tuple[int, int, int], Accounting], ...]] = (
    ((0, 33, 0), _0_33),
    ((0, 32, 0), _0_32),
    ((0, 29, 0), _0_29),
    ((0, 27, 0), _0_27),
    ((0, 26, 0), _0_26),
    ((0, 20, 1), _0_20_1),
    ((0, 20, 0), _0_20),
    ((0, 19, 0), _0_19),
    ((0, 18, 0), _0_18),
    ((0, 15, 0), _0_15),
    ((0, 12, 0), _0_12),
    ((0, 9, 1), _0_9_1),
    ((0, 8, 0), _V1),
    ((0, 0, 0), _OLDEST),
)


def accounting(version: str) -> Accounting:
    """The rules of "0.33", "v0.11.2" and the like, and of a release after the last one that was read: the newest.

    Raises SpecError where the text names no release.
    """
    number = release(version)
    return next(rules for since, rules in _RULES if number >= since)
