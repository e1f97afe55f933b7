"""What each vLLM release understands and reports, as data. Nothing else in the project compares versions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Dialect:
    """One release. The connector alone switches HiSparse on in all of them.

    host_gauges: reports the usage of the host pool. checks_pool_minimum: refuses a pool under one request of
    max_model_len, instead of failing later.
    """

    version: str
    host_gauges: bool
    checks_pool_minimum: bool


DIALECTS: Final = (
    Dialect("0.30", host_gauges=False, checks_pool_minimum=False),
    Dialect("0.32", host_gauges=True, checks_pool_minimum=True),
    Dialect("0.33", host_gauges=True, checks_pool_minimum=True),
)
"""Those whose flags, logs and metrics have been read or run (0.31 has not)."""

PINNED_VERSION: Final = "0.33"
"""The release that engine_image/ is built from."""


def dialect(version: str) -> Dialect:
    """The dialect of "0.33", "0.33.0" and the like; that of the newest release where the version is not known."""
    short = ".".join(version.split(".")[:2])
    return next((one for one in DIALECTS if one.version == short), DIALECTS[-1])
