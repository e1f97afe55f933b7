"""Bytes of HybridHiSparse: three tiers of KV for dense models, by codec, page and context length.

The last `hot_tokens` and the first `sink_tokens` stay bf16 in HBM. Every older page keeps a warm base code and a score
code in HBM, and a cold residual (or the whole page in another code) in pinned host memory. Nothing is dropped.

Every size counts all that is stored: scales, zero points, norms, page headers, codebooks and dictionaries. All figures
are integers or exact Fractions, per tensor-parallel rank unless a name says otherwise. Quality figures that codecs
carry were measured on SmolLM2-135M-Instruct (head_dim 64, prefix of 7,680 tokens swapped for its decoded code, next
512 tokens scored); they rank codecs and promise nothing for other models.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final, Literal

from hisparse.errors import SpecError
from hisparse.rounding import cdiv, ceil

_FP16_BYTES: Final = 2
_FP16_BITS: Final = 16
_SCALE_AND_ZERO: Final = 2 * _FP16_BITS

PAGE_HEADER_BYTES: Final = 32
"""Hash of the tokens, state, reference count, attention mass and last use; one per page, layer and KV head."""

SUB_PAGE_TOKENS: Final = 16
"""Tokens that are scored and selected together; a page is a whole number of them."""

_LANE_DIMS: Final = 8
"""head_dim is a multiple of this, so that 16 tokens of any whole-byte row start at 16 bytes for vector loads."""

_PQ_CENTROIDS: Final = 256


@dataclass(frozen=True)
class Codec:
    """How one page of K, or of V, is stored; a sum of terms, each of them 0 unless set.

    dims_per_code and code_bits: codes of code_bits bits, one for so many channels of one token.
    token_bits: side data of one token (scale, norm, or all of a sparse code).
    group_dims and group_bits: side data of one token for every group of channels.
    channel_tokens and channel_bits: side data of one channel for every group of tokens; 0 tokens means the page.
    dictionary_atoms and dictionary_tokens: fp16 atoms learnt anew for every so many tokens.
    centroids: fp16 codebook entries of head_dim values in all, per layer and KV head. head_bits: other fp16 parameters
    per channel and layer-head (mean, scales). shared_atoms: fp16 atoms per layer, for all its heads.
    """

    name: str
    quality: str
    code_bits: int = 0
    dims_per_code: int = 1
    token_bits: int = 0
    group_dims: int = 0
    group_bits: int = 0
    channel_tokens: int = 0
    channel_bits: int = 0
    dictionary_atoms: int = 0
    dictionary_tokens: int = 0
    centroids: int = 0
    head_bits: int = 0
    shared_atoms: int = 0

    def token_bytes(self, head_dim: int) -> int:
        """Bytes of one token's own row, rounded up to whole bytes: codes and what belongs to this token alone."""
        groups = cdiv(head_dim, self.group_dims) if self.group_dims else 0
        codes = cdiv(head_dim, self.dims_per_code) * self.code_bits
        return cdiv(codes, 8) + cdiv(self.token_bits + groups * self.group_bits, 8)

    def _side(self, head_dim: int, tokens: int) -> Fraction:
        groups = cdiv(tokens, self.channel_tokens) if self.channel_tokens else 1
        size = Fraction(head_dim * groups * self.channel_bits, 8)
        if self.dictionary_atoms:
            size += Fraction(self.dictionary_atoms * head_dim * _FP16_BYTES * tokens, self.dictionary_tokens)
        return size

    def side_bytes(self, head_dim: int, tokens: int) -> int:
        """Bytes of a page that belong to all its tokens: scales per channel, and its part of a dictionary."""
        return ceil(self._side(head_dim, tokens))

    def page_bytes(self, head_dim: int, tokens: int) -> int:
        """Bytes of a page of `tokens`, one layer and KV head, K or V alone, without the page header."""
        return tokens * self.token_bytes(head_dim) + self.side_bytes(head_dim, tokens)

    def bits_per_value(self, head_dim: int, tokens: int) -> Fraction:
        """Bits of one of the tokens x head_dim values of a page; all but the page header and shared codebooks counted.

        Not rounded: a page's part of a dictionary need not be whole bytes.
        """
        return 8 * (tokens * self.token_bytes(head_dim) + self._side(head_dim, tokens)) / (tokens * head_dim)

    def head_bytes(self, head_dim: int) -> int:
        """Bytes that every layer and KV head needs once, whatever the context: codebooks, means and scales."""
        return self.centroids * head_dim * _FP16_BYTES + cdiv(self.head_bits * head_dim, 8)

    def layer_bytes(self, head_dim: int) -> int:
        """Bytes that every layer needs once for all its heads: a universal dictionary."""
        return self.shared_atoms * head_dim * _FP16_BYTES


BF16: Final = Codec("bf16", "exact", code_bits=16)
FP8: Final = Codec("fp8", "e4m3, scale 1: KL 0.00064, top-1 98.0 %", code_bits=8)
INT8_TOKEN: Final = Codec("int8-token", "KL 0.00001, top-1 100 %", code_bits=8, token_bits=_SCALE_AND_ZERO)
INT4_TOKEN: Final = Codec(
    "int4-token", "no rotation: KL 0.00487, top-1 95.5 %", code_bits=4, token_bits=_SCALE_AND_ZERO
)
RHT_INT4: Final = Codec(
    "rht-int4",
    "random Hadamard rotation, fp16 scale with a 4-bit zero point in its mantissa; not measured in this form",
    code_bits=4,
    token_bits=_FP16_BITS,
)
RHT_INT4_ZERO: Final = replace(
    RHT_INT4,
    name="rht-int4-zero",
    quality="the same with an fp16 zero point of its own: KL 0.00312, top-1 96.3 %; the size of vLLM 0.33's "
    "int4_per_token_head too, whose zero point is in a float32 scale",
    token_bits=_SCALE_AND_ZERO,
)
TURBO2: Final = Codec(
    "turbo2", "rotation, Lloyd-Max, fp16 norm: KL 0.110, top-1 82.4 %", code_bits=2, token_bits=_FP16_BITS
)
TURBO3: Final = replace(TURBO2, name="turbo3", quality="the same at 3 bits: KL 0.0138, top-1 93.6 %", code_bits=3)
TURBO4: Final = replace(TURBO2, name="turbo4", quality="the same at 4 bits: KL 0.00312, top-1 96.7 %", code_bits=4)
OPQ2: Final = Codec(
    "opq2",
    "8 bits for 4 channels; the rotation of V folds into the output projection; K and V: KL 0.00772, top-1 94.3 %",
    code_bits=8,
    dims_per_code=4,
    centroids=_PQ_CENTROIDS,
)
PQ2_PAIR: Final = replace(
    OPQ2,
    name="pq2-pair",
    quality="8 bits for two RoPE pairs of pre-RoPE K, mean per channel, scale per pair; "
    "V exact: KL 0.00708, top-1 96.1 %",
    head_bits=_FP16_BITS + _FP16_BITS // 2,
)
PQ1: Final = replace(
    OPQ2,
    name="pq1",
    quality="8 bits for 8 channels of K; as a score code it selects 85.2 % of the attention mass (oracle 86.2 %)",
    dims_per_code=8,
)
INT4_CHANNEL: Final = Codec(
    "int4-channel",
    "per channel over a page; as the residual of OPQ-2b on the top 512 of 7,548 tokens: KL 0.00062, top-1 98.0 %",
    code_bits=4,
    channel_bits=_SCALE_AND_ZERO,
)
INT2_CHANNEL: Final = Codec(
    "int2-channel",
    "per channel over a page; as the residual of OPQ-2b on all tokens: KL 0.00178, top-1 96.9 %",
    code_bits=2,
    channel_bits=_SCALE_AND_ZERO,
)
KIVI2_K: Final = Codec(
    "kivi2-k",
    "per channel in groups of 32 tokens; with kivi2-v: KL 0.148, top-1 81.2 %",
    code_bits=2,
    channel_tokens=32,
    channel_bits=_SCALE_AND_ZERO,
)
KIVI2_V: Final = Codec(
    "kivi2-v",
    "per token in groups of 32 channels; with kivi2-k: KL 0.148, top-1 81.2 %",
    code_bits=2,
    group_dims=32,
    group_bits=_SCALE_AND_ZERO,
)
KIVI4_V: Final = replace(
    KIVI2_V, name="kivi4-v", quality="with K int4 per channel: KL 0.00228, top-1 97.9 %", code_bits=4
)


def lexico(nonzeros: int, *, atoms: int = 1024, coefficient_bits: int = 8, quality: str = "not measured") -> Codec:
    """A sparse code over a dictionary that all heads of a layer share: Lexico (ICML 2025), at a fixed sparsity.

    One token is `nonzeros` pairs of index and coefficient, and 16 bits of norm and count. By error threshold the number
    of nonzeros varies per token; then this is the size of an average token.
    """
    index_bits = (atoms - 1).bit_length()
    return Codec(
        f"lexico-{nonzeros}-of-{atoms}",
        quality,
        token_bits=nonzeros * (index_bits + coefficient_bits) + _FP16_BITS,
        shared_atoms=atoms,
    )


def hssp(
    nonzeros: int = 8,
    *,
    atoms: int = 64,
    block_tokens: int = 1000,
    index_bits: int = 10,
    quality: str = "not measured at this size",
) -> Codec:
    """The article's sparse code as it is written: fp16 coefficients, 10-bit indices, a dictionary for every block.

    The article leaves the dictionary out of its size and adds 8 x 16 + 8 x 10 up to 224 bits; it is 208. 64 atoms need
    6 index bits, which is what index_bits=6 counts.
    """
    return Codec(
        f"hssp-{nonzeros}-of-{atoms}-per-{block_tokens}",
        quality,
        token_bits=nonzeros * (_FP16_BITS + index_bits),
        dictionary_atoms=atoms,
        dictionary_tokens=block_tokens,
    )


LEXICO4: Final = lexico(4, quality="KL 0.0916, top-1 86.3 %")
LEXICO8: Final = lexico(8, quality="KL 0.0323, top-1 90.4 %")
LEXICO16: Final = lexico(16, quality="KL 0.00416, top-1 97.1 %")
HSSP: Final = hssp(quality="as written: KL 0.0833, top-1 86.5 %, no 8-digit passkey found outside the hot window")

CODECS: Final = (
    BF16,
    FP8,
    INT8_TOKEN,
    INT4_TOKEN,
    RHT_INT4,
    RHT_INT4_ZERO,
    TURBO2,
    TURBO3,
    TURBO4,
    OPQ2,
    PQ2_PAIR,
    PQ1,
    INT4_CHANNEL,
    INT2_CHANNEL,
    KIVI2_K,
    KIVI2_V,
    KIVI4_V,
    LEXICO4,
    LEXICO8,
    LEXICO16,
    HSSP,
)


def codec_named(name: str, field: str = "spec.kvTier.hybrid.warmCodec") -> Codec:
    """The codec of that name. Raises SpecError for the field that named it."""
    found = next((codec for codec in CODECS if codec.name == name), None)
    if found is None:
        raise SpecError(field, f'"{name}" is no codec; use one of {", ".join(codec.name for codec in CODECS)}')
    return found


@dataclass(frozen=True)
class TierBits:
    """Bits per value of an encoded token in HBM and in host memory, page headers included, codebooks not."""

    hot: Fraction
    hbm: Fraction
    host: Fraction


@dataclass(frozen=True)
class HybridGeometry:
    """One request's KV under HybridHiSparse, on one tensor-parallel rank.

    kv_heads are those of the model; a rank holds its share, at least one. None for warm means that HBM keeps no base
    code of an encoded page, None for cold that nothing goes to host memory; not both for K or for V. score is a code of
    K kept for choosing pages alone; None where the base code serves.
    cached_tokens: cold tokens per layer and KV head for which HBM has slots, so that a page that is asked for again is
    not fetched again. exempt_layers: indices of layers that stay bf16 in HBM throughout.
    """

    layers: int
    kv_heads: int
    head_dim: int
    warm_k: Codec | None
    warm_v: Codec | None
    cold_k: Codec | None
    cold_v: Codec | None
    score: Codec | None = None
    tensor: int = 1
    page_tokens: int = 64
    sub_page_tokens: int = SUB_PAGE_TOKENS
    hot_tokens: int = 32_768
    sink_tokens: int = 64
    cached_tokens: int = 0
    exempt_layers: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Raise SpecError for a geometry that has no layout."""
        self._check_shape()
        for tensor, warm, cold in (("K", self.warm_k, self.cold_k), ("V", self.warm_v, self.cold_v)):
            if warm is None and cold is None:
                raise SpecError(
                    "spec.kvTier.hybrid",
                    f"{tensor} has neither a warm nor a cold code: old tokens would be lost",
                )
        if self.cached_tokens and self.cold_k is None and self.cold_v is None:
            raise SpecError("spec.kvTier.hybrid.coldCodec", "slots for cold pages need a cold code; set one")

    def _check_shape(self) -> None:
        sub, page = self.sub_page_tokens, self.page_tokens
        if sub < SUB_PAGE_TOKENS or sub % SUB_PAGE_TOKENS or page < sub or page % sub:
            raise SpecError(
                "spec.kvTier.hybrid.pageTokens",
                f"{page} tokens in sub-pages of {sub}: a page is a whole number of sub-pages, a sub-page a multiple of "
                f"{SUB_PAGE_TOKENS}; set for example 64",
            )
        if self.head_dim < _LANE_DIMS or self.head_dim % _LANE_DIMS:
            raise SpecError(
                "spec.model.facts.headDim", f"{self.head_dim} is not a multiple of {_LANE_DIMS}; no codec packs it"
            )
        if min(self.hot_tokens, self.sink_tokens, self.cached_tokens) < 0:
            raise SpecError("spec.kvTier.hybrid.hotTokens", "a count of tokens is below 0; set 0 or more")
        if self.kv_heads % self.tensor and self.tensor % self.kv_heads:
            raise SpecError(
                "spec.parallelism.tensor",
                f"tensor parallel size {self.tensor} and {self.kv_heads} KV heads do not divide one another",
            )
        exempt = set(self.exempt_layers)
        if len(exempt) != len(self.exempt_layers) or not exempt <= set(range(self.layers)):
            raise SpecError(
                "spec.kvTier.hybrid.exemptLayers",
                f"{list(self.exempt_layers)} are not different layers from 0 to {self.layers - 1}",
            )

    @property
    def rank_heads(self) -> int:
        """KV heads on one rank: divided over the ranks, and replicated once ranks outnumber them."""
        return max(1, self.kv_heads // self.tensor)

    @property
    def tiered_layers(self) -> int:
        """Layers that have tiers."""
        return self.layers - len(self.exempt_layers)

    def pages(self, tokens: int) -> int:
        """Pages of a context."""
        return cdiv(tokens, self.page_tokens)

    @property
    def hot_pages(self) -> int:
        """bf16 pages that a long context keeps: sinks, the window, and the page that is being filled.

        The window moves on by whole pages, so without that page it would fall below hot_tokens.
        """
        return self.pages(self.sink_tokens) + self.pages(self.hot_tokens) + 1

    def encoded_pages(self, tokens: int) -> int:
        """Pages of a context that have left the hot window."""
        return max(0, self.pages(tokens) - self.hot_pages)

    # --- one page, one layer, one KV head ---------------------------------------------------------------------------

    @property
    def hot_page_bytes(self) -> int:
        """HBM of a bf16 page, K and V, with its header."""
        return 2 * BF16.page_bytes(self.head_dim, self.page_tokens) + PAGE_HEADER_BYTES

    @property
    def encoded_page_bytes(self) -> int:
        """HBM of an encoded page: score code, base codes of K and V, header."""
        return self._bytes(self.score, self.warm_k, self.warm_v) + PAGE_HEADER_BYTES

    @property
    def cold_payload_bytes(self) -> int:
        """Cold codes of a page, K and V: what a fetch moves. The header is in HBM already."""
        return self._bytes(self.cold_k, self.cold_v)

    @property
    def host_page_bytes(self) -> int:
        """Host memory of an encoded page, with its header; 0 without a cold tier."""
        return self.cold_payload_bytes + PAGE_HEADER_BYTES if self.cold_payload_bytes else 0

    def _bytes(self, *codecs: Codec | None) -> int:
        return sum(codec.page_bytes(self.head_dim, self.page_tokens) for codec in codecs if codec is not None)

    def bits_per_value(self) -> TierBits:
        """Bits per value of K and V together, in the hot window and of an encoded page in HBM and in host memory."""
        values = 2 * self.page_tokens * self.head_dim
        return TierBits(
            hot=Fraction(8 * self.hot_page_bytes, values),
            hbm=Fraction(8 * self.encoded_page_bytes, values),
            host=Fraction(8 * self.host_page_bytes, values),
        )

    # --- a whole context on one rank --------------------------------------------------------------------------------

    @property
    def fixed_bytes(self) -> int:
        """HBM that does not grow with the context: codebooks, dictionaries, and slots for fetched pages."""
        # K and V have a codebook each, even under one codec; tiers of the same tensor share it
        of_k = {codec for codec in (self.score, self.warm_k, self.cold_k) if codec is not None}
        of_v = {codec for codec in (self.warm_v, self.cold_v) if codec is not None}
        heads = self.tiered_layers * self.rank_heads
        books = sum(
            heads * codec.head_bytes(self.head_dim) + self.tiered_layers * codec.layer_bytes(self.head_dim)
            for codec in (*of_k, *of_v)
        )
        return books + heads * self.pages(self.cached_tokens) * self.cold_payload_bytes

    @property
    def _early_bytes(self) -> int:
        """HBM of one more page while the hot window fills."""
        return self.rank_heads * self.layers * self.hot_page_bytes

    @property
    def _late_bytes(self) -> int:
        """HBM of one more page once the window is full: the page that leaves it is encoded."""
        exempt = len(self.exempt_layers) * self.hot_page_bytes
        return self.rank_heads * (self.tiered_layers * self.encoded_page_bytes + exempt)

    def hbm_bytes(self, tokens: int) -> int:
        """HBM of one request of `tokens`, fixed_bytes included."""
        encoded = self.encoded_pages(tokens)
        return self.fixed_bytes + (self.pages(tokens) - encoded) * self._early_bytes + encoded * self._late_bytes

    def host_bytes(self, tokens: int) -> int:
        """Pinned host memory of one request of `tokens`, for this rank alone; every rank has its own."""
        return self.encoded_pages(tokens) * self.rank_heads * self.tiered_layers * self.host_page_bytes

    def node_host_bytes(self, tokens: int) -> int:
        """Pinned host memory of all ranks together; a replicated KV head is counted on each of its ranks."""
        return self.tensor * self.host_bytes(tokens)

    def hbm_tokens(self, hbm: int) -> int:
        """The largest context whose hbm_bytes are at most `hbm`, as if host memory had no end; 0 where none fits."""
        left = hbm - self.fixed_bytes
        if left < 0:
            return 0
        early = min(self.hot_pages, left // self._early_bytes)
        if early < self.hot_pages:
            return early * self.page_tokens
        return (early + (left - early * self._early_bytes) // self._late_bytes) * self.page_tokens

    def host_tokens(self, host: int) -> int | None:
        """The largest context whose host_bytes are at most `host`; None where it never needs host memory."""
        page = self.rank_heads * self.tiered_layers * self.host_page_bytes
        return None if page == 0 else (self.hot_pages + max(0, host) // page) * self.page_tokens

    def max_tokens(self, hbm: int, host: int) -> int:
        """The largest context that both memories of this rank hold: the inverse of hbm_bytes and host_bytes."""
        most = self.hbm_tokens(hbm)
        by_host = self.host_tokens(host)
        return most if by_host is None else min(most, by_host)

    def binding(self, hbm: int, host: int) -> Literal["hbm", "host"]:
        """Which memory ends the context first; HBM where both do."""
        by_host = self.host_tokens(host)
        return "host" if by_host is not None and by_host < self.hbm_tokens(hbm) else "hbm"

    def bytes_fetched_per_step(
        self, refined_tokens: int, miss: Fraction, *, unit: Literal["page", "sub_page"] = "page"
    ) -> int:
        """Bytes that one decoded token reads from host memory on this rank, on average, rounded up.

        refined_tokens are those whose cold code is wanted, per layer and KV head; `miss` is the fraction that has no
        slot in HBM. unit "page": they fill whole pages, which are fetched whole. "sub_page": each selected sub-page
        lies in another page and is fetched alone, with the scales of its whole page: the worst case.
        """
        if not 0 <= miss <= 1:
            raise ValueError(f"a miss fraction lies between 0 and 1, not {miss}")
        if unit == "page":
            size, count = self.cold_payload_bytes, self.pages(refined_tokens)
        else:
            cold = [codec for codec in (self.cold_k, self.cold_v) if codec is not None]
            size = sum(
                self.sub_page_tokens * codec.token_bytes(self.head_dim)
                + codec.side_bytes(self.head_dim, self.page_tokens)
                for codec in cold
            )
            count = cdiv(refined_tokens, self.sub_page_tokens)
        return ceil(miss * count * size * self.rank_heads * self.tiered_layers)
