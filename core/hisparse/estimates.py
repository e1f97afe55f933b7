"""Seconds that no rule of the engine gives: measured once, labelled as estimates wherever they show.

Measured on one and two H200 SXM with vLLM 0.33 (docs/engine-facts.md); bands are in the tests.
"""

from __future__ import annotations

from fractions import Fraction

from hisparse.model import ModelFacts
from hisparse.units import GIB

HOST_READ_SLOWDOWN = Fraction(27, 10)
"""Inter-token latency of a request that reads KV from host over one that reads HBM: 2.68-2.70 at 1 to 11 requests."""

ENDPOINT_GRACE_SECONDS = 10
"""Between not ready and the last request that an endpoint controller or client still sends."""

SHUTDOWN_TIMEOUT_SECONDS = 60
"""What vLLM itself waits for requests after SIGTERM; the launcher has drained before."""

AUTO_GAIN = 3
"""Concurrency gain from which mode Auto takes the tier: below it host reads cost more than they gain."""


def pin_seconds(pool: int, *, ranks: int, shared: bool) -> Fraction:
    """Fault-in and registration of the host pool: (0.37 + 0.04 x ranks) s per GiB; private pools pay per rank."""
    gib = Fraction(pool, GIB)
    return gib * Fraction(37 + 4 * ranks, 100) if shared else gib * ranks * Fraction(41, 100)


def offload_pin_seconds(size: int) -> Fraction:
    """Fault-in of an OffloadingConnector region, one thread: 0.65 s per GiB."""
    return Fraction(size, GIB) * Fraction(65, 100)


def load_seconds(model: ModelFacts, *, downloads: bool) -> Fraction:
    """Reading weights at 1 GiB/s from local storage, or fetching them at 0.25 GiB/s. Plain assumptions."""
    rate = Fraction(1, 4) if downloads else Fraction(1)
    return Fraction(model.weight_bytes, GIB) / rate


FIXED_START_SECONDS = 93
"""Imports, worker start and CUDA graphs: 80 s + 13 s."""


def teardown_seconds(pool: int, offload: int, *, ranks: int, shared: bool) -> Fraction:
    """From SIGTERM of an idle engine until its memory is back.

    One rank: 4 s, unpin at 55 GiB/s, free at 0.08 s per GiB. Shared pool: 13 s, every rank unpins the whole pool
    (67 GiB/s in sum), tmpfs pages are freed at 15.6 GiB/s.
    """
    gib, offload_gib = Fraction(pool, GIB), Fraction(offload, GIB)
    if shared:
        return 13 + gib * ranks / 67 + (gib + offload_gib) * 10 / 156
    physical = gib * ranks + offload_gib
    return (4 if ranks == 1 else 13) + physical / 55 + physical * Fraction(8, 100)
