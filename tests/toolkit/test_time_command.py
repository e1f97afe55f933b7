"""`hisparse time` as a person and as a script sees it."""

from __future__ import annotations

import json
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from hisparse_toolkit.cli import main
from hisparse_toolkit.time_numbers import power

DENSE = ("time", "--model", "shape/dense-32b", "--context", "800000", "--gpus", "2", "--gpu", "a100-80")
GLM = ("time", "--model", "GLM-5.3-FP8", "--context", "1M", "--gpus", "8")
GLM_128K = ("time", "--model", "GLM-5.3-FP8", "--context", "128K", "--gpus", "8", "--mode", "HiSparse")
KEYS = [
    "schema",
    "verdict",
    "exitCode",
    "model",
    "node",
    "request",
    "fits",
    "batchFits",
    "prefill",
    "prefillEfficiency",
    "allReduceMilliseconds",
    "decode",
    "decodeBandwidth",
    "decodeFromHost",
    "tier",
    "claims",
    "errors",
]


@pytest.fixture(autouse=True)
def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HISPARSE_NO_HUB", "1")
    monkeypatch.delenv("COLUMNS", raising=False)


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(words)
    told = capsys.readouterr()
    return code, told.out, told.err


def document(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    _, out, _ = run(capsys, *words, "--json")
    found: dict[str, Any] = json.loads(out)
    return found


# --- the screen ----------------------------------------------------------------------------------------------------


def test_the_screen_of_an_impossible_claim(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, *DENSE, "--claim", "78s")
    lines = out.splitlines()
    assert (code, err) == (3, "")
    assert lines[0] == "IMPOSSIBLE  shape/dense-32b at 800,000 tokens on 2 x A100-SXM4-80GB"
    text = " ".join(out.split())
    for words in (
        "800,000 tokens prefilled in 78 s: about 10 times too fast",
        "3.13e17 FLOP = 5.11e16 for 2 x 31,999,687,680 parameters per token + 2.62e17 for attention",
        "of the tensor cores' peak (2 x 312 TFLOPS of a100-80, BF16) it would still take 502 s; at a usual 40-60 % "
        "~ 837 s to 1,256 s (20m56s)",
        "FLOP at 40 % of the dense peak; all-reduces of 2 ranks take ~ 2.2 s of it if nothing overlaps",
        "all KV read from host memory at 27 GB/s for every token: at most",
        "800,000 3.13e17 ~ 1,256 s (20m56s)",
    ):
        assert words in text
    assert len(lines) <= 40
    assert [line for line in lines if len(line) > 100 or line != line.rstrip()] == []


def test_the_screen_of_a_sparse_model(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, *GLM)
    text = " ".join(out.split())
    assert (code, err) == (0, "")
    assert out.startswith("ESTIMATES  zai-org/GLM-5.3-FP8 at 1,048,576 tokens on 8 x H200")
    for words in (
        "fit to measured prefills of one tensor-parallel rank of GLM-5.3 on H200, dummy experts, scaled by layers",
        "far from what was measured: one rank of GLM-5.3 with small experts took 10.85, 12.34, 14.10 ms a step",
        "rows from host add +18.22, +20.94, +24.00 ms a step at 1, 4, 11 requests, 2.7 times as long",
        "plain KV holds not even one request, so only the tier serves it at all",
        "fit, low fit, high",
    ):
        assert words in text
    assert "from host " not in text.replace("rows from host ", "")


def test_from_how_many_requests_the_tier_pays(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, *GLM_128K)
    found = re.search(r"(\d+) requests decode as much as the (\d+) that plain KV holds", " ".join(out.split()))
    assert found is not None
    tier, plain = map(int, found.groups())
    assert tier == -(-plain * 27 // 10)
    assert document(capsys, *GLM_128K)["tier"]["breakEvenRequests"] == tier


def test_a_context_that_does_not_fit_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, *DENSE[:5], "--gpus", "1", "--gpu", "l40s")
    assert code == 1
    assert out.splitlines()[0].endswith(": DOES NOT FIT in memory")
    assert document(capsys, *DENSE[:5], "--gpus", "1", "--gpu", "l40s")["verdict"] == "EstimatedWithWarnings"
    assert "does not fit (" in " ".join(out.split())
    assert "so this cannot be run as asked" in " ".join(out.split())


def test_no_nvlink_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, *DENSE[:5], "--gpus", "4", "--gpu", "l40s")
    assert "all-reduces of 4 ranks without NVLink come on top" in " ".join(out.split())


def test_arithmetic_that_binds_a_large_batch(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("time", "-m", "Llama-3.1-8B", "--context", "1K", "--gpus", "1", "--batch", "4096")
    code, out, _ = run(capsys, *words, "--claim-tokens-per-second", "1")
    assert code == 0
    assert "of HBM bandwidth (4,800 GB/s)" in " ".join(out.split())
    _, out, _ = run(capsys, *words[:4], "16", *words[5:], "--claim-tokens-per-second", "100000")
    assert "of the tensor cores' peak (989 TFLOPS of h200, BF16)" in " ".join(out.split())


@pytest.mark.parametrize(
    ("value", "text"),
    [
        pytest.param(999_999, "999,999", id="short"),
        pytest.param(1_000_000, "1.00e6", id="a million"),
        pytest.param(313_344_131_072_000_000, "3.13e17", id="cut off"),
        pytest.param(1_999_999, "1.99e6", id="not rounded up"),
    ],
)
def test_powers(value: int, text: str) -> None:
    assert power(value) == text


# --- verdicts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        pytest.param(("--claim", "78s"), 3, "IMPOSSIBLE", id="ten times too fast"),
        pytest.param(("--claim", "10m"), 1, "IMPLAUSIBLE", id="faster than anybody"),
        pytest.param(("--claim", "10m"), 1, "1.39 times as fast as usual", id="by how much"),
        pytest.param(("--claim", "14m"), 0, "within what is usual", id="usual"),
        pytest.param(("--claim", "13m30s"), 0, "faster than usual, and possible", id="between usual and best"),
        pytest.param(("--claim-tokens-per-second", "28"), 0, "PLAUSIBLE", id="a decode speed"),
        pytest.param(("--claim-tokens-per-second", "30"), 1, "IMPLAUSIBLE", id="more than a copy reaches"),
        pytest.param(("--claim-tokens-per-second", "124.3"), 3, "about 4 times too fast", id="beyond the memory"),
        pytest.param(
            ("--claim-tokens-per-second", "28", "--batch", "8"), 3, "for 8 requests of 800,000", id="of each of many"
        ),
        pytest.param(("--claim", "20m", "--claim-tokens-per-second", "99"), 3, "IMPOSSIBLE", id="the worse of two"),
    ],
)
def test_claims(capsys: pytest.CaptureFixture[str], words: tuple[str, ...], code: int, told: str) -> None:
    got, out, err = run(capsys, *DENSE, "--kv-dtype", "fp8", *words)
    assert (got, err) == (code, "")
    assert told in " ".join(out.split())


@pytest.mark.parametrize(
    ("words", "field"),
    [
        pytest.param(("--claim", "fast"), "--claim", id="no time"),
        pytest.param(("--claim", "0s"), "--claim", id="no time at all"),
        pytest.param(("--claim", "9" * 18 + "h"), "--claim", id="longer than anything"),
        pytest.param(("--claim-tokens-per-second", "-1"), "--claim-tokens-per-second", id="backwards"),
        pytest.param(("--claim-tokens-per-second", "0"), "--claim-tokens-per-second", id="standing still"),
        pytest.param(("--claim-tokens-per-second", "1e3"), "--claim-tokens-per-second", id="an exponent"),
        pytest.param(("--batch", "0"), "--batch", id="nobody"),
        pytest.param(("--batch", "4097"), "--batch", id="more than a spec takes"),
        pytest.param(("--batch", "٨"), "--batch", id="digits of another script"),
        pytest.param(("--gpus", "many"), "--gpus", id="an option of every command"),
    ],
)
def test_bad_input(capsys: pytest.CaptureFixture[str], words: tuple[str, ...], field: str) -> None:
    code, out, err = run(capsys, *DENSE, *words)
    assert (code, out) == (2, "")
    assert err.startswith(f"{field}: ")
    found = document(capsys, *DENSE, *words)
    assert [one["field"] for one in found["errors"]] == [field]


def test_every_fault_of_the_claims_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, *DENSE, "--claim", "x", "--claim-tokens-per-second", "x", "--batch", "x")
    assert code == 2
    assert [line.split(":")[0] for line in err.splitlines()] == ["--claim", "--claim-tokens-per-second", "--batch"]


# --- figures beside figures ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        pytest.param(("--claim", "1ms"), "prefilled in 0.001 s: about", id="a millisecond"),
        pytest.param(("--claim", "1us"), "prefilled in 0.000001 s: about", id="a microsecond"),
        pytest.param(("--claim", "12.75s"), "prefilled in 12.75 s: about", id="two decimals"),
        pytest.param(("--claim", "7m40.125s"), "prefilled in 460.125 s: ", id="above a minute"),
        pytest.param(("--claim", "2h"), "prefilled in 7,200 s (2h): ", id="hours"),
        pytest.param(("--claim-tokens-per-second", "18.777"), "18.777 tokens/s each", id="three decimals of a rate"),
        pytest.param(("--claim-tokens-per-second", "12345.5"), "12,345.5 tokens/s each", id="thousands of a rate"),
    ],
)
def test_a_claim_is_shown_as_it_was_given(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], shown: str
) -> None:
    assert shown in " ".join(run(capsys, *GLM, *words)[1].split())


def test_a_bound_never_looks_like_the_claim_that_it_rules_out(capsys: pytest.CaptureFixture[str]) -> None:
    plain = document(capsys, *GLM, "--claim", "1s")["claims"][0]["bound"]
    # ever closer to the bound from below: its last decimal is what the claim loses
    for places in range(2, 9):
        bound = document(capsys, *GLM, "--claim", f"{plain}s")["claims"][0]["bound"]
        code, out, _ = run(capsys, *GLM, "--claim", f"{plain}s")
        shown = re.search(r"would still take ([\d.]+) s", " ".join(out.split()))
        assert shown is not None
        assert code == 3
        assert bound == shown[1]
        assert Fraction(shown[1]) > Fraction(plain)
        assert len(shown[1]) >= len(plain)
        plain = shown[1][: shown[1].index(".") + 1 + places]
    assert run(capsys, *GLM, "--claim", "12.79s")[0] == 1


@pytest.mark.parametrize("words", [("--claim", "1000tok/s"), ("--claim", "1000 tokens/s"), ("--claim", "1000tps")])
def test_a_speed_is_no_time(capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    code, _, err = run(capsys, *DENSE, *words)
    assert (code, err) == (2, f'--claim: "{words[1]}" is a speed and no time; write --claim-tokens-per-second 1000\n')
    assert run(capsys, *DENSE, "--claim-tokens-per-second", words[1])[2].endswith("write 1000\n")


def test_every_unit_that_is_taken_is_offered(capsys: pytest.CaptureFixture[str]) -> None:
    _, _, err = run(capsys, *DENSE, "--claim", "5x")
    for unit in ("h", "m", "s", "ms", "us"):
        assert re.search(rf"\b{unit}\b", err)
        assert run(capsys, *DENSE, "--claim", f"5{unit}")[0] != 2


# --- what was measured ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        # 29.07 ms a step with rows from host: 34.39 tokens/s, and 45.86 a quarter below that
        pytest.param((*GLM, "--claim-tokens-per-second", "500", "--batch", "1"), 1, "10 times too fast", id="far off"),
        pytest.param((*GLM, "--claim-tokens-per-second", "45.8", "--batch", "1"), 0, "27.51 to 45.86", id="within"),
        pytest.param((*GLM, "--claim-tokens-per-second", "45.9", "--batch", "1"), 1, "29.07", id="just above"),
        pytest.param((*GLM, "--claim-tokens-per-second", "34", "--batch", "4"), 0, "12.34 ms and 20.94 ms", id="four"),
        # more requests than were measured: bandwidth says more
        pytest.param((*GLM, "--claim-tokens-per-second", "9", "--batch", "100"), 0, "60-85 % ~", id="bandwidth"),
        pytest.param(
            (*GLM, "--gpu", "b200", "--claim-tokens-per-second", "500", "--batch", "1"), 0, "60-85 % ~", id="faster GPU"
        ),
        pytest.param(
            (*GLM[:4], "8K", *GLM[5:], "--mode", "None", "--claim-tokens-per-second", "90", "--batch", "1"),
            0,
            "a step took 10.85 ms: 92.16 tokens/s",
            id="without the tier",
        ),
    ],
)
def test_a_decode_speed_is_held_against_what_was_measured(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], code: int, told: str
) -> None:
    got, out, _ = run(capsys, *words)
    assert got == code
    text = " ".join(out.split())
    assert told in text or told == "29.07"


@pytest.mark.parametrize(("batch", "fits"), [("9", True), ("10", False), ("100", False)])
def test_a_batch_that_does_not_fit_is_said(capsys: pytest.CaptureFixture[str], batch: str, *, fits: bool) -> None:
    code, out, _ = run(capsys, *GLM, "--batch", batch)
    assert code == (0 if fits else 1)
    assert ("DO NOT FIT in memory" in out.splitlines()[0]) is not fits
    assert (f"at once and not {batch} requests, so this cannot be run" in " ".join(out.split())) is not fits
    found = document(capsys, *GLM, "--batch", batch)
    assert (found["batchFits"], found["fits"]) == (fits, True)
    assert document(capsys, *GLM)["batchFits"] is None


# --- JSON ----------------------------------------------------------------------------------------------------------


def no_floats(value: Any) -> bool:
    if isinstance(value, dict):
        return all(no_floats(one) for one in value.values())
    if isinstance(value, list):
        return all(no_floats(one) for one in value)
    return not isinstance(value, float)


@pytest.mark.parametrize(
    ("words", "verdict", "code"),
    [
        pytest.param(GLM, "Estimated", 0, id="no claim"),
        pytest.param((*DENSE, "--claim", "20m"), "Plausible", 0, id="plausible"),
        pytest.param((*DENSE, "--claim", "10m"), "Implausible", 1, id="implausible"),
        pytest.param((*DENSE, "--claim", "78s"), "Impossible", 3, id="impossible"),
        pytest.param((*DENSE, "--claim", "soon"), "BadInput", 2, id="a claim that is none"),
        pytest.param((*DENSE, "--bogus"), "BadInput", 2, id="an option that is none"),
        pytest.param(("time", "-m", "a/b", "--context", "1K", "--gpus", "1"), "Unknown", 4, id="not known offline"),
    ],
)
def test_json_always_has_the_same_keys(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], verdict: str, code: int
) -> None:
    got, out, _ = run(capsys, *words, "--json")
    found = json.loads(out)
    assert got == code
    assert list(found) == KEYS
    assert (found["schema"], found["verdict"], found["exitCode"]) == ("hisparse.dev/time/v1", verdict, code)
    assert no_floats(found)
    assert bool(found["errors"]) == (code in (2, 4))
    assert bool(found["prefill"]) == (code not in (2, 4))


def test_json_figures(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, *DENSE, "--kv-dtype", "fp8", "--claim", "78s", "--batch", "1")
    last = found["prefill"][-1]
    assert last["parameterFlop"] == 2 * 31_999_687_680 * 800_000
    assert last["flop"] == last["parameterFlop"] + last["attentionFlop"]
    assert last["boundMilliseconds"] == last["flop"] * 1000 // (2 * 312 * 10**12)
    (step,) = found["decode"]
    assert (step["weightBytesPerGpu"], step["kvBytesPerGpu"]) == (32_000_000_000, 40_960 * 800_000)
    (claim,) = found["claims"]
    assert (claim["kind"], claim["claimed"], claim["bound"]) == ("prefillSeconds", "78.00", "502.15")
    assert claim["timesFasterThanUsual"] == "10.72"
    # whole numbers of milliseconds, in the order of the screen
    assert claim["usual"] == ["836.92", "1255.38"]


def test_concurrency_goes_as_far_as_memory(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, *GLM_128K)
    counts = [one["requests"] for one in found["decode"]]
    assert counts[:4] == [1, 2, 4, 8]
    assert counts == sorted(counts)
    assert counts[-1] == int(float(found["tier"]["tierRequests"]))
    speeds = [float(one["tokensPerSecondEachAtMost"]) for one in found["decode"]]
    assert speeds == sorted(speeds, reverse=True)


def test_a_manifest_is_read_as_plan_reads_it(capsys: pytest.CaptureFixture[str]) -> None:
    manifest = Path(__file__).parents[2] / "examples" / "glm-5.3-1m.yaml"
    found = document(capsys, "time", "-f", str(manifest))
    assert found["request"]["maxTokens"] == 1_048_576
    assert found["model"]["attention"] == "DSA"


def paths(value: Any, prefix: str = "") -> set[str]:
    if isinstance(value, dict):
        return {found for key, one in value.items() for found in paths(one, f"{prefix}.{key}" if prefix else key)}
    if isinstance(value, list):
        inner = {found for one in value if isinstance(one, dict) for found in paths(one, f"{prefix}[]")}
        return inner or {prefix}
    return {prefix}


def test_the_reference_page_lists_every_key_and_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    page = Path(__file__).parents[2] / "docs" / "reference" / "time-json.md"
    seen: set[str] = set()
    for words in ((*DENSE, "--claim", "78s", "--claim-tokens-per-second", "9"), GLM_128K, (*DENSE, "--claim", "x")):
        seen |= paths(document(capsys, *words))
    # what is null or empty in one of them is an object or a list of objects in another
    seen = {one for one in seen if not any(other.startswith((f"{one}.", f"{one}[]")) for other in seen)}
    listed = set(re.findall(r"^\| `([a-z][A-Za-z0-9.\[\]]*)` \|", page.read_text(), re.MULTILINE))
    assert listed == seen
