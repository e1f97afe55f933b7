from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisparse.errors import HiSparseError, UnitError
from hisparse.units import (
    GIB,
    MIB,
    TIB,
    exact_seconds,
    format_bytes,
    format_duration,
    format_quantity,
    format_watts,
    parse_duration,
    parse_quantity,
    parse_tokens,
)

BYTES = st.integers(min_value=0, max_value=2**63 - 1)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        pytest.param("0", 0, id="zero"),
        pytest.param("200Gi", 200 * GIB, id="binary"),
        pytest.param("1.5Ti", 1536 * GIB, id="a fraction that comes out whole"),
        pytest.param("1.1Ti", 1209462790554, id="a fraction that does not is rounded up, without floating point"),
        pytest.param("200G", 200 * 10**9, id="decimal is decimal"),
        pytest.param("2e3", 2000, id="an exponent"),
        pytest.param("1E", 10**18, id="E alone is exa"),
        pytest.param("1E3", 1000, id="E with digits is an exponent"),
        pytest.param("500m", 1, id="half a CPU rounds up"),
        pytest.param("1n", 1, id="nano"),
        pytest.param(".5Gi", GIB // 2, id="no digit before the point"),
        pytest.param("5.", 5, id="no digit behind the point"),
        pytest.param("-1.5", -2, id="negative rounds away from zero, as in Kubernetes"),
        pytest.param("+3Ki", 3072, id="an explicit sign"),
        pytest.param("9007199254740993", 2**53 + 1, id="beyond the whole numbers of a float"),
    ],
)
def test_a_quantity_is_an_exact_number(text: str, number: int) -> None:
    assert parse_quantity(text) == number


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "Gi",
        "200GB",
        "200gi",
        "200 Gi",
        "200KI",
        "1,5Gi",
        "1e",
        "1e999",
        "0x10",
        "٣Gi",
        "1_000",
        "--1",
        "1Gi\n",
    ],
)
def test_what_is_no_quantity_is_told_with_an_example(text: str) -> None:
    with pytest.raises(UnitError, match=r'is not a quantity; write a number .* as in "200Gi"') as caught:
        parse_quantity(text)
    assert f'"{text}"' in str(caught.value)


def test_a_unit_error_is_ours_and_a_value_error() -> None:
    assert issubclass(UnitError, HiSparseError)
    assert issubclass(UnitError, ValueError)


@given(BYTES)
def test_a_formatted_quantity_reads_back(count: int) -> None:
    assert parse_quantity(format_quantity(count)) == count


@given(st.integers(min_value=1, max_value=1023), st.sampled_from(["", "Ki", "Mi", "Gi", "Ti", "Pi"]))
def test_a_short_quantity_stays_as_it_was_written(number: int, suffix: str) -> None:
    assert format_quantity(parse_quantity(f"{number}{suffix}")) == f"{number}{suffix}"


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0"), (1000, "1000"), (1536 * MIB, "1536Mi"), (200 * GIB, "200Gi"), (2 * TIB, "2Ti")],
)
def test_a_quantity_is_the_shortest_exact_one(count: int, text: str) -> None:
    assert format_quantity(count) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        pytest.param(0, "0 B", id="nothing"),
        pytest.param(1023, "1023 B", id="below a KiB"),
        pytest.param(16_386 * 3_276_800, "50.01 GiB", id="the least host pool of GLM-5.3 at 1M"),
        pytest.param(GIB - 1, "1.00 GiB", id="never 1024.00 MiB"),
        pytest.param(2 * TIB, "2.00 TiB", id="terabytes of host memory"),
        pytest.param(-GIB, "-1.00 GiB", id="a shortfall"),
    ],
)
def test_bytes_for_people_are_binary(count: int, text: str) -> None:
    assert format_bytes(count) == text


@given(BYTES)
def test_bytes_for_people_are_within_half_a_hundredth(count: int) -> None:
    number, unit = format_bytes(count).split(" ")
    size = 1 if unit == "B" else parse_quantity(f"1{unit.removesuffix('B')}")
    assert abs(Fraction(number) * size - count) <= Fraction(size, 200)
    assert Fraction(number) < 1024 or unit == "EiB"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        ("0s", 0),
        ("15m", 900),
        ("1h30m", 5400),
        ("1.5h", 5400),
        ("500ms", 1),
        ("1m0.5s", 61),
        ("90s", 90),
        (".5h", 1800),
        ("1µs", 1),
    ],
)
def test_a_duration_is_whole_seconds_rounded_up(text: str, seconds: int) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "15", "-5m", "5 m", "5min", "1d", "PT5S", "m", "1h30"])
def test_what_is_no_duration_is_told_with_an_example(text: str) -> None:
    with pytest.raises(UnitError, match=r'is not a duration; write numbers with the units .* "15m"') as caught:
        parse_duration(text)
    assert f'"{text}"' in str(caught.value)


@given(st.integers(min_value=0, max_value=10**9))
def test_a_formatted_duration_reads_back(seconds: int) -> None:
    assert parse_duration(format_duration(seconds)) == seconds


@pytest.mark.parametrize(("seconds", "text"), [(0, "0s"), (90, "1m30s"), (3600, "1h"), (5400, "1h30m"), (3601, "1h1s")])
def test_a_duration_has_no_empty_parts(seconds: int, text: str) -> None:
    assert format_duration(seconds) == text


def test_a_negative_duration_has_no_text() -> None:
    with pytest.raises(UnitError, match="-1 seconds is negative"):
        format_duration(-1)


def test_durations_compare_without_rounding() -> None:
    assert exact_seconds("500ms") < exact_seconds("1s")


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("1048576", 1048576), ("128K", 131072), ("128k", 131072), ("1M", 1048576), ("1.5M", 1572864), ("0.5k", 512)],
)
def test_tokens_of_the_command_line_are_binary(text: str, tokens: int) -> None:
    assert parse_tokens(text) == tokens


@pytest.mark.parametrize("text", ["", "0", "-1", "1G", "1 M", "1.3", "0.0001K", "1e6", "1,000"])
def test_what_is_no_count_of_tokens_is_told_with_an_example(text: str) -> None:
    with pytest.raises(UnitError, match=r'is not a count of tokens; .* "128K" or "1M"') as caught:
        parse_tokens(text)
    assert f'"{text}"' in str(caught.value)


def test_a_long_text_is_shortened_in_the_message() -> None:
    with pytest.raises(UnitError, match=r"\.\.\. \(1048576 characters\)"):
        parse_quantity("x" * 2**20)


def test_watts_are_exact() -> None:
    assert (format_watts(700_000), format_watts(612_500), format_watts(612_050)) == ("700 W", "612.5 W", "612.05 W")
