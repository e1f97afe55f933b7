"""Published claims about long contexts against the planner's own arithmetic: the tables of docs/claims.md.

`python tests/bench/claims.py` prints them, `--write` puts them into the page, `--check` exits 1 when the page is out of
date. Numbers of a claim are those that were published; every other number is computed here when the page is made.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

from hisparse.claims import judge_rate, judge_seconds
from hisparse.decode import HOST_READ_RUNS, Spread, decode_bound, kv_bytes_read, measured_gain
from hisparse.estimates import HOST_READ_SLOWDOWN
from hisparse.hardware import Gpu, NodeClass, gpu_named
from hisparse.hybrid import hssp
from hisparse.model import ModelFacts, facts_for, read_config
from hisparse.plan import Mode, Plan, Resource, Target
from hisparse.planner import plan
from hisparse.prefill import prefill
from hisparse.rounding import decimal
from hisparse.rows import KV_DTYPES
from hisparse.spec import HuggingFaceSource, ModelSpec
from hisparse.units import GIB, TIB, format_bytes

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "claims.md"
BEGIN, END = "<!-- begin: tests/bench/claims.py -->", "<!-- end -->"

MILLION = 1_048_576
BF16, FP8, INT4 = KV_DTYPES["Bf16"], KV_DTYPES["Fp8"], KV_DTYPES["Int4PerTokenHead"]

L2_BYTES = 50_000_000
"""L2 cache of an H200 (data sheet of the Hopper architecture)."""

ESTIMATE_ERROR = GIB
"""What the estimated terms of a plan (activations, CUDA context, graphs) may be off by on one GPU, about."""

H200_WATTS = 700
"""Default power limit of the SXM card (data sheet; nvidia-smi says the same)."""


@dataclass(frozen=True)
class Row:
    """One claim, what arithmetic says of it, and the command that shows it with its exit code."""

    claim: str
    arithmetic: str
    verdict: str
    command: str | None = None
    code: int = 0


def page_tables() -> str:
    """All tables as Markdown."""
    sections = (
        ("Does it fit", fits()),
        ("Bytes of keys and values", sizes()),
        ("The codec", codec()),
        ("Speed", speeds()),
        ("Hardware", hardware()),
    )
    return "\n".join(line for title, rows in sections for line in _section(title, rows))


def all_rows() -> tuple[Row, ...]:
    """Every row of the page."""
    return (*fits(), *sizes(), *codec(), *speeds(), *hardware())


# --- memory --------------------------------------------------------------------------------------------------------


def fits() -> tuple[Row, ...]:
    """The dense 32B shape at 1,048,576 tokens on A100 80 GB."""
    dense = model("shape/dense-32b")
    four_bit = replace(dense, weight_bytes=16_000_000_000)
    ask = f"hisparse plan --model shape/dense-32b --context {MILLION} --gpu a100-80"
    return (
        _fit(
            "Two A100: BF16 weights, FP8 KV, TP 2",
            plan_of(dense, 2, "Fp8"),
            f"{ask} --gpus 2 --kv-dtype Fp8",
        ),
        _fit(
            "One A100: INT4 weights, INT4 KV, TP 1",
            plan_of(four_bit, 1, "Int4PerTokenHead"),
            f"{ask} --gpus 1 --kv-dtype Int4PerTokenHead --weights 16G",
        ),
        _fit(
            "Four A100: BF16 weights, BF16 KV, TP 4",
            plan_of(dense, 4, "Bf16"),
            f"{ask} --gpus 4 --kv-dtype Bf16",
        ),
    )


def plan_of(dense: ModelFacts, gpus: int, dtype: str) -> tuple[str, str, int]:
    """(verdict, arithmetic, exit code) of 1,048,576 tokens on so many A100 80 GB."""
    answer = plan(
        dense,
        NodeClass(gpu("a100-80"), 8, None, "NVIDIA-A100-SXM4-80GB"),
        Target(max_tokens=MILLION, gpus=gpus, kv_dtype=dtype),
    )
    if isinstance(answer, Plan):
        needed, there, code = answer.plain.needed_bytes(MILLION), answer.kv_budget, int(bool(answer.warnings))
    else:
        if answer.limit.resource is not Resource.HBM:
            raise ValueError(answer.limit.message)
        needed, there, code = answer.needed, answer.available, 3
    return (
        fit_verdict(there - needed),
        f"{format_bytes(needed)} of KV and {format_bytes(there)} left for it on each GPU",
        code,
    )


def fit_verdict(over: int) -> str:
    """Whether KV fits with `over` bytes to spare on each GPU, or how many are missing where that is negative."""
    words = f"{format_bytes(abs(over))} {'over' if over >= 0 else 'short'} on each GPU"
    verdict = f"true: fits, {words}" if over >= 0 else f"false: {words}"
    return f"{verdict}; the estimates are no better than that" if abs(over) < ESTIMATE_ERROR else verdict


def _fit(claim: str, found: tuple[str, str, int], command: str) -> Row:
    verdict, arithmetic, code = found
    return Row(f"{claim}: 1,048,576 tokens of a dense 32B model", arithmetic, verdict, command, code)


def sizes() -> tuple[Row, ...]:
    """Bytes per token."""
    wide, dense, glm = wide_shape(), model("shape/dense-32b"), model("zai-org/GLM-5.3-FP8")
    token = token_bytes(wide, BF16.name)
    million = token * 1_000_000
    cold = 96_200_000_000 // 840_000
    four_bits = token // 4
    dense_token = token_bytes(dense, "Bf16")
    return (
        Row(
            "128 layers x 128 heads x 128 dimensions in fp16: a million tokens take 4.2 GB",
            f"keys and values are 2 x 128 x 128 x 128 x 2 B = {token:,} B per token, {_tera(million)} TB per million",
            f"false: {_times(Fraction(million, 4_200_000_000))} times too small",
        ),
        Row(
            "96.2 GB of host memory hold the cold part of 840,000 tokens of that shape",
            f"that is {cold:,} B per token; at 4 bits without any scales the shape takes {four_bits:,} B, "
            f"{_tera(840_000 * four_bits)} TB in all; the dense 32B shape would take "
            f"{_giga(840_000 * dense_token // 4)} GB",
            f"false: {_times(Fraction(four_bits, cold))} times too small",
        ),
        Row(
            "GLM-5.3 is such a 128-layer model, with 48 GB of weights",
            f"{glm.layers} layers of {glm.attention.value}, {glm.parameters // 10**9:,} billion parameters, "
            f"{format_bytes(glm.weight_bytes)} of FP8 weights; {glm_token():,} B of KV per token on each GPU",
            "false",
            "hisparse plan --model GLM-5.3-FP8 --context 1M --gpus 8 --host-memory 2Ti",
        ),
        Row(
            "98 to 128 GB of host memory serve 8 requests of a million tokens of GLM-5.3",
            f"one request of 1,048,576 tokens takes {format_bytes(host_request())} of host pool; 128 GB are "
            f"{format_bytes(128 * 10**9)}",
            f"false: they hold {128 * 10**9 // host_request()}",
            "hisparse plan --model GLM-5.3-FP8 --context 1M --gpus 8 --host-memory 2Ti",
        ),
        Row(
            "40 layers x 8 KV heads x 128 dimensions in bf16: 163,840 B per token, 160 GiB for 1,048,576",
            f"2 x 40 x 8 x 128 x 2 B = {dense_token:,} B; {format_bytes(dense_token * MILLION)}",
            "true",
        ),
        Row(
            "A warm zone of recent pages lives in a 128 MB L2 cache",
            f"one request of 131,072 tokens of an 8B model (32 layers, 8 KV heads) takes {_giga(warm_bytes())} GB at "
            f"4.25 bits; the L2 of an H200 is {L2_BYTES // 10**6} MB and no program places pages there",
            f"false: {_times(Fraction(warm_bytes(), L2_BYTES))} times the cache",
        ),
    )


def glm_token() -> int:
    """Bytes of KV that the plan of GLM-5.3 at a million tokens counts per token on each GPU."""
    return glm_plan().plain.token_bytes


def host_request() -> int:
    """Bytes of host pool that one request of 1,048,576 tokens of GLM-5.3 takes."""
    tier = glm_plan().tiered
    if tier is None:
        raise TypeError(tier)
    return tier.host_request_blocks(MILLION) * tier.host_block_bytes


def glm_plan() -> Plan:
    """GLM-5.3-FP8 at a million tokens on 8 x H200 with 2 TiB of host memory."""
    node = NodeClass(gpu("h200"), 8, 2 * TIB, "NVIDIA-H200")
    answer = plan(model("zai-org/GLM-5.3-FP8"), node, Target(max_tokens=MILLION, gpus=8))
    if not isinstance(answer, Plan) or answer.mode is not Mode.HISPARSE:
        raise TypeError(answer)
    return answer


def warm_bytes() -> int:
    """131,072 tokens of an 8B model at 4.25 bits."""
    small = model("meta-llama/Llama-3.1-8B-Instruct")
    return kv_bytes_read(small, gpu("h200"), INT4, tokens=131_072, tensor=1)


# --- the codec -------------------------------------------------------------------------------------------------------


def codec() -> tuple[Row, ...]:
    """A sparse code of 8 of 64 atoms for vectors of 128 values."""
    plain, six = vector_bits(), vector_bits(index_bits=6)
    alone = Fraction(8 * (16 + 10))
    blocks = tuple((tokens, Fraction(2048) / vector_bits(block_tokens=tokens)) for tokens in (100, 1000, 5000))
    return (
        Row(
            "8 coefficients of 16 bits and 8 indices of 10 bits are 224 bits per vector, 9.1 times smaller",
            f"the sum is {int(alone)} bits; with its dictionary of 64 atoms for every 1,000 tokens, "
            f"{decimal(plain - alone)} bits a vector, it is {decimal(plain)} bits; with 6-bit indices {decimal(six)}",
            f"false: {decimal(2048 / plain)} times, {decimal(2048 / six)} with 6-bit indices",
        ),
        Row(
            "With blocks of 100, 1,000 and 5,000 tokens it is 7.3, 9.1 and 10.2 times smaller",
            "each block carries its own dictionary of 64 x 128 x 16 bits: "
            + ", ".join(f"{tokens:,} tokens {decimal(ratio)} times" for tokens, ratio in blocks),
            "false",
        ),
    )


def vector_bits(*, index_bits: int = 10, block_tokens: int = 1000) -> Fraction:
    """Bits of one vector of 128 values, its part of the block's dictionary included."""
    code = hssp(index_bits=index_bits, block_tokens=block_tokens)
    return 128 * code.bits_per_value(128, block_tokens)


# --- speed -----------------------------------------------------------------------------------------------------------


def speeds() -> tuple[Row, ...]:
    """Seconds and tokens per second."""
    dense, a100, h200 = model("shape/dense-32b"), gpu("a100-80"), gpu("h200")
    long = prefill(dense, a100, 800_000, ranks=2)
    judged = judge_seconds(long, Fraction(78))
    ask = "hisparse time --model shape/dense-32b --context 800000 --gpus 2 --gpu a100-80"
    wide = prefill(wide_shape(), h200, 1_000_000, ranks=8)
    step = Fraction(10, 187)
    short, far = (
        decode_bound(dense, a100, FP8, tokens=tokens, requests=1, spread=Spread(2)) for tokens in (8192, 800_000)
    )
    rate = judge_rate(far, Fraction(28))
    row = glm_plan().at_typical
    one, _, eleven = HOST_READ_RUNS
    if row.gain is None or row.speedup is None:
        raise TypeError(row)
    weights = Fraction(48_000_000_000, 8 * h200.hbm_bytes_per_second)
    return (
        Row(
            "800,000 tokens prefilled in 78 s by a dense 32B model on two A100",
            f"{_power(long.work.total)} FLOP; {_whole(judged.bound)} s at 100 % of 2 x "
            f"{a100.bf16_flops // 10**12} TFLOPS, {_whole(judged.usual[0])} to {_whole(judged.usual[1])} s at a usual "
            "60 to 40 %",
            f"impossible: about {int(judged.times)} times too fast",
            f"{ask} --claim 78s",
            3,
        ),
        Row(
            "That model decodes 28 tokens/s behind 800,000 tokens on two A100",
            f"at most {decimal(rate.bound)} at {a100.hbm_bytes_per_second // 10**9:,} GB/s and fp8 KV; usually "
            f"{decimal(rate.usual[1])} to {decimal(rate.usual[0])}",
            "plausible",
            f"{ask} --kv-dtype Fp8 --claim-tokens-per-second 28",
        ),
        Row(
            "Its decode speed does not depend on the length of the context",
            f"a step reads {_giga(far.reads.weights)} GB of weights and {_giga(far.reads.kv)} GB of KV on each GPU: at "
            f"most {decimal(far.each)} tokens/s behind 800,000 tokens, {decimal(short.each)} behind 8,192",
            f"false: {decimal(short.each / far.each)} times slower",
            f"{ask} --kv-dtype Fp8 --batch 1",
        ),
        Row(
            "18.7 tokens/s at batch 1 with 0.13 ms of computation per token",
            f"a token takes {decimal(1000 * step)} ms; 48 GB of weights over 8 H200 alone are "
            f"{decimal(1000 * weights)} ms at the data sheet's bandwidth",
            f"inconsistent: {_times(step / Fraction(13, 100_000))} times 0.13 ms",
        ),
        Row(
            "1M tokens in and 128 out in 1.82 s, with the 128-layer shape on 8 H200",
            f"128 tokens at 18.7 tokens/s are {decimal(128 * step)} s; attention of the prompt is "
            f"{_power(wide.work.attention)} FLOP, {_whole(attention_seconds(wide.work.attention, h200))} s at 100 % of "
            f"8 x {h200.bf16_flops // 10**12} TFLOPS",
            f"impossible: {_times(attention_seconds(wide.work.attention, h200) / Fraction(182, 100))} times faster "
            "than the peak",
        ),
        Row(
            "9 times the KV capacity is 9 times the throughput",
            f"GLM-5.3 on 8 H200 at {row.tokens:,} tokens: {decimal(row.gain)} times the requests, and host reads make "
            f"each token {decimal(HOST_READ_SLOWDOWN).rstrip('0')} times slower; measured on one rank, {eleven.decoding} "
            f"requests against {one.decoding}: {decimal(measured_gain(one, eleven))} times the tokens/s",
            f"capacity true at this length; throughput at most {decimal(row.speedup)} times",
            "hisparse plan --model GLM-5.3-FP8 --context 1M --gpus 8 --host-memory 2Ti",
        ),
    )


def attention_seconds(flop: int, card: Gpu) -> Fraction:
    """Seconds of so much arithmetic on eight cards at their peak."""
    return Fraction(flop, 8 * card.bf16_flops)


# --- hardware --------------------------------------------------------------------------------------------------------


def hardware() -> tuple[Row, ...]:
    """What cards and links give."""
    h200 = gpu("h200")
    host, nvlink = h200.host_bytes_per_second, h200.nvlink_bytes_per_second
    return (
        Row(
            "NVLink joins an H200 to its CPU at 120 GB/s",
            f"H200 servers have x86 CPUs on PCIe gen5 x16: {decimal(Fraction(host, 10**9))} GB/s measured one way; "
            f"NVLink, {nvlink // 10**9} GB/s one way, joins GPUs to one another",
            f"false: {decimal(Fraction(120 * 10**9, host))} times what was measured",
        ),
        Row(
            "Cold pages are reached in 0.11 ms per token",
            f"in 0.11 ms that link moves {decimal(Fraction(11 * host, 10**5) / 10**6)} MB; reading the dense 32B "
            f"shape's KV of 800,000 tokens at 4 bits takes {_whole(cold_seconds() * 1000)} ms",
            "impossible without choosing few pages",
            "hisparse time --model shape/dense-32b --context 800000 --gpus 1 --kv-dtype Int4PerTokenHead --batch 1",
        ),
        Row(
            "An H200 has 846 TFLOPS of FP16 at 800 W",
            f"{h200.bf16_flops // 10**12} TFLOPS dense, {H200_WATTS} W by its data sheet",
            "false",
        ),
    )


def cold_seconds() -> Fraction:
    """Seconds of a decode step that reads all KV of the dense 32B shape at 4 bits from host memory."""
    dense = model("shape/dense-32b")
    return decode_bound(dense, gpu("h200"), INT4, tokens=800_000, requests=1, kv_in_host=True).seconds


# --- shapes and numbers ----------------------------------------------------------------------------------------------


def model(repo: str) -> ModelFacts:
    """A model of the catalogue."""
    return facts_for(ModelSpec(hugging_face=HuggingFaceSource(repo=repo)))


def wide_shape() -> ModelFacts:
    """The shape of a published calculation: 128 layers, 128 heads, 128 dimensions, 48 GB of fp16 weights."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": 128,
        "hidden_size": 16_384,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "head_dim": 128,
        "max_position_embeddings": MILLION,
        "dtype": "float16",
    }
    return read_config(config, name="128 x 128 x 128", weight_bytes=48_000_000_000, weight_source="the claim")


def gpu(name: str) -> Gpu:
    """A GPU that is known."""
    found = gpu_named(name)
    if found is None:
        raise KeyError(name)
    return found


def token_bytes(facts: ModelFacts, dtype: str) -> int:
    """Bytes of one token's keys and values on all GPUs together."""
    return kv_bytes_read(facts, gpu("h200"), KV_DTYPES[dtype], tokens=1, tensor=1)


def _times(ratio: Fraction) -> str:
    return f"{int(ratio):,}"


def _whole(value: Fraction) -> str:
    return f"{int(value):,}"


def _giga(size: int) -> str:
    return decimal(Fraction(size, 10**9))


def _tera(size: int) -> str:
    return decimal(Fraction(size, 10**12))


def _power(value: int) -> str:
    digits = str(value)
    return f"{digits[0]}.{digits[1:3]}e{len(digits) - 1}"


def _section(title: str, rows: Sequence[Row]) -> list[str]:
    lines = [f"### {title}", "", "| claim | arithmetic | verdict |", "| --- | --- | --- |"]
    lines += [f"| {row.claim} | {row.arithmetic} | {row.verdict} |" for row in rows]
    shown = [row for row in rows if row.command is not None]
    if shown:
        commands = dict.fromkeys(f"{row.command}  # exit code {row.code}" for row in shown)
        lines += ["", "```sh", *commands, "```"]
    return [*lines, ""]


def main(arguments: Sequence[str]) -> int:
    """0; 1 when --check finds the page out of date; 2 for arguments that mean nothing."""
    if set(arguments) - {"--check", "--write"}:
        print(__doc__, file=sys.stderr)
        return 2
    tables = page_tables()
    if not arguments:
        print(tables, end="")
        return 0
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    current = f"{before}{BEGIN}\n{tables}\n{END}{after}"
    if "--write" in arguments:
        PAGE.write_text(current)
        return 0
    if text != current:
        print(f"{PAGE.relative_to(ROOT)} is out of date: run python tests/bench/claims.py --write", file=sys.stderr)
    return int(text != current)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
