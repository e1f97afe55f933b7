"""Estimated seconds against the runs that they were taken from, each within its stated band."""

from __future__ import annotations

import pytest
from shapes import GLM, gpu

from hisparse import estimates
from hisparse.prefill import prefill_seconds
from hisparse.units import GIB

BAND = 0.20
"""Pinning and teardown: within 20 % of every measured run."""


@pytest.mark.parametrize(
    ("pool_gib", "ranks", "shared", "measured"),
    [
        pytest.param(84, 1, False, 30.0, id="84 GiB private"),
        pytest.param(64, 1, False, 28.0, id="64 GiB private"),
        pytest.param(100, 2, True, 45.1, id="100 GiB shared by two ranks"),
    ],
)
def test_pinning(pool_gib: int, ranks: int, shared: bool, measured: float) -> None:
    assert float(estimates.pin_seconds(pool_gib * GIB, ranks=ranks, shared=shared)) == pytest.approx(measured, rel=BAND)


def test_pinning_an_offload_region() -> None:
    assert float(estimates.offload_pin_seconds(16 * GIB)) == pytest.approx(10.4, rel=0.01)


@pytest.mark.parametrize(
    ("pool_gib", "offload_gib", "ranks", "shared", "measured"),
    [
        pytest.param(84, 0, 1, False, 11.1, id="84 GiB private"),
        pytest.param(64, 0, 1, False, 9.7, id="64 GiB private"),
        pytest.param(4, 0, 1, False, 4.0, id="4 GiB private"),
        pytest.param(84, 16, 1, False, 16.3, id="84 GiB private and 16 GiB of offload"),
        pytest.param(100, 0, 2, True, 22.5, id="100 GiB shared by two ranks"),
    ],
)
def test_teardown(pool_gib: int, offload_gib: int, ranks: int, shared: bool, measured: float) -> None:
    got = estimates.teardown_seconds(pool_gib * GIB, offload_gib * GIB, ranks=ranks, shared=shared)
    assert float(got) == pytest.approx(measured, rel=BAND)


@pytest.mark.parametrize(
    ("tokens", "measured"),
    [
        pytest.param(65_536, 5.6, id="64K"),
        pytest.param(131_072, 14.3, id="128K"),
        pytest.param(974_848, 383, id="975K"),
    ],
)
def test_prefill_of_a_glm_rank(tokens: int, measured: float) -> None:
    assert prefill_seconds(GLM, gpu("h200"), tokens, ranks=8) == pytest.approx(measured, rel=0.10)
