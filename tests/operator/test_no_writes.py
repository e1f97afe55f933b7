"""Issue proof 3: fifty converged objects and a hundred resyncs make no write but the lease's, while one is edited."""

import re
import sys
import time
from typing import Any

import pytest

pytestmark = [pytest.mark.chaos, pytest.mark.cluster, pytest.mark.timeout(280)]

Namespace = Any  # of conftest.py, from which a test module cannot import
OBJECTS = 50
RESYNCS = 100
EDITED = "small-7"
PASSES = 'hisparse_operator_reconciles_total{result="ok"}'


def spec(**rest: Any) -> dict[str, Any]:
    model = {"huggingFace": {"repo": "meta-llama/Llama-3.1-8B-Instruct"}}
    return {"model": model, "context": {"maxTokens": 65536}, "resources": {"gpus": 1}, **rest}


def requests(page: str) -> dict[str, float]:
    """The operator's own requests by verb and resource; leases apart, and the whole lists once a minute at most."""
    found: dict[str, float] = {}
    for line in page.splitlines():
        match = re.match(r"hisparse_operator_api_requests_total\{(.*)\} (.*)", line)
        if match and "leases" not in match[1] and 'verb="list"' not in match[1]:
            found[match[1]] = float(match[2])
    return found


def test_fifty_converged_objects_and_a_hundred_resyncs(everywhere: Namespace) -> None:
    space = everywhere
    operator = space.operators.leading("--resync", "200ms")
    names = [f"small-{number}" for number in range(OBJECTS)]
    for name in names:
        space.create(name, **spec())
    for name in names:
        space.until(lambda name=name: space.condition("Available", name).get("status") == "True", f"{name} serves", 120)
    quiet = len(space.writes())

    def rests() -> bool:
        nonlocal quiet
        before, quiet = quiet, len(space.writes())
        time.sleep(2)
        return before == quiet == len(space.writes())

    space.until(rests, "all have converged", 60)

    before, asked = space.writes(), requests(operator.page("/metrics"))
    begun, passes = time.monotonic(), operator.metric(PASSES) or 0.0
    half = passes + OBJECTS * RESYNCS / 2
    space.until(lambda: (operator.metric(PASSES) or 0) > half, "fifty resyncs", 100)
    assert space.writes() == before, "no write at a fixed point"
    assert requests(operator.page("/metrics")) == asked, "nor a read"

    space.edit(EDITED, {"engine": {"args": ["--seed=7"]}})
    space.until(
        lambda: space.observed(EDITED) and space.condition("Available", EDITED)["status"] == "True", "it rolls", 120
    )
    assert operator.metric(PASSES)
    space.until(lambda: (operator.metric(PASSES) or 0) > passes + OBJECTS * RESYNCS, "a hundred resyncs", 100)
    seconds = time.monotonic() - begun

    written = space.writes()[len(before) :]
    assert written, "the edited object was worked on"
    others = [one for one in written if EDITED not in one and "/events" not in one]
    assert not others, "and no other one was"
    sys.stdout.write(
        f"{(operator.metric(PASSES) or 0) - passes:.0f} passes in {seconds:.0f} s; {len(written)} writes for the edit"
    )
    assert operator.stop() == 0
