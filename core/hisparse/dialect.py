"""What each vLLM release understands and reports, as data, and the one reader of a version's text.

How a release counts KV cache is in accounting.py, which flags it has in flags/known.py; nothing else compares versions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from hisparse.errors import SpecError


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

_VERSION: Final = re.compile(r"v?(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?(?:(?:[.+-]|rc)\S*)?")


def release(version: str) -> tuple[int, int, int]:
    """The numbers of "0.33", "v0.33.1" or "0.33.0rc1+cu129", 0 for a patch that is left out.

    Raises SpecError where a text names no release.
    """
    found = _VERSION.fullmatch(version.strip())
    if found is None:
        raise SpecError(
            "spec.engine.version",
            f'"{version}" names no vLLM release; set one such as "{PINNED_VERSION}", or leave it out',
        )
    return int(found[1]), int(found[2]), int(found[3] or 0)


def dialect(version: str) -> Dialect:
    """The newest dialect that is not younger than a version.

    Raises SpecError where the text names no release, or one before those with HiSparse.
    """
    number = release(version)
    known = next((one for one in reversed(DIALECTS) if release(one.version) <= number), None)
    if known is None:
        raise SpecError(
            "spec.engine.version", f"{version} has no HiSparse; the first release with it is {DIALECTS[0].version}"
        )
    return known
