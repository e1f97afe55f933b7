"""Whether operator or node agent grow while a cluster changes all the time.

`python tests/bench/bench_soak.py [MINUTES] [--objects N]` (default 30 and 100) runs the operator with objects of which one
is edited or scaled, or loses a pod or a node, twice a second; and beside it the agent of one node whose NVML is a fake one. Memory of
each process is read every ten seconds. After the warm-up (a third of the time, ten minutes at most) a straight line is
laid through the readings by least squares: a leak shows as a slope far above its own standard error.

It exits with 1 where a slope is over its limit and the error does not explain it.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
# a script finds the modules of its own folder only
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

from tests.bench.bench_agent import NODE, Agent  # noqa: E402 - the path has to be there first
from tests.bench.bench_scale import churned_nodes, disturb, renew, settled  # noqa: E402
from tests.bench.figures import machine, mebibytes  # noqa: E402
from tests.bench.fleet import Fleet, until  # noqa: E402
from tests.bench.pages import table  # noqa: E402

SCRIPT: Final = "tests/bench/bench_soak.py"
EVERY_S: Final = 10.0
DISTURB_EVERY_S: Final = 0.5
SEEDS: Final = 3
"""Old revisions are kept, ten for each object: with few values all of them are there before the line begins."""
LONGEST_WARM_UP_S: Final = 600.0
MOST_MIB_PER_HOUR: Final = 10.0
ERRORS: Final = 3.0
"""A slope this many standard errors over the limit is no accident."""
_LEAST_READINGS: Final = 3


def slope(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Slope of the line through (x, y) by least squares, and its standard error."""
    count = len(points)
    if count < _LEAST_READINGS:
        raise SystemExit(f"{count} readings after the warm-up are too few for a slope; give more minutes")
    mean_x, mean_y = (sum(point[axis] for point in points) / count for axis in (0, 1))
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    found = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    rest = sum((y - mean_y - found * (x - mean_x)) ** 2 for x, y in points)
    return found, math.sqrt(rest / (count - 2) / spread)


def soak(folder: Path, objects: int, minutes: float) -> tuple[dict[str, list[tuple[float, float]]], Counter[str], str]:
    """Readings (hours, MiB) of each process, what was done meanwhile, and how the operator's passes ended."""
    readings: dict[str, list[tuple[float, float]]] = {}
    did: Counter[str] = Counter()
    nodes = churned_nodes(objects)
    with Fleet.start(folder, nodes) as fleet:
        fleet.session.send(
            "POST", "/api/v1/nodes", {"metadata": {"name": NODE}, "status": {"capacity": {"nvidia.com/gpu": "8"}}}
        )
        agent = Agent(folder, fleet.plane)
        try:
            fleet.create(objects)
            operator = fleet.start_operator()
            until(lambda: operator.ready, "the operator leads", 60)
            until(lambda: bool(agent.ready), "the agent has judged its node", 120)
            dice = random.Random(11)  # noqa: S311 - the same churn each time
            begun = time.monotonic()
            due = begun
            while (now := time.monotonic()) - begun < 60 * minutes:
                if now >= due:
                    due += EVERY_S
                    pids = {"operator": operator.process.pid, **agent.pids()}
                    for name, pid in pids.items():
                        readings.setdefault(name, []).append(((now - begun) / 3600, mebibytes(pid)))
                    # Prometheus does the same
                    operator.page("/metrics"), agent.page("/metrics")
                did[disturb(fleet, dice, objects, nodes, SEEDS)] += 1
                time.sleep(DISTURB_EVERY_S)
            passes = operator.readings().passes
            _, left = settled(fleet, objects)
        finally:
            agent.stop()
    told = ", ".join(f"{count} {result}" for result, count in passes.most_common())
    return readings, did, f"{told}; {left} of {objects} objects never came to rest afterwards"


def main(words: Sequence[str]) -> int:
    """Measure, print, and say whether something grows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("minutes", type=float, nargs="?", default=30.0)
    parser.add_argument("--objects", type=int, default=100)
    parser.add_argument("--write", action="store_true", help="put the table into docs/benchmarks.md")
    given = parser.parse_args(words)
    minutes, objects = given.minutes, given.objects
    with tempfile.TemporaryDirectory(prefix="hisparse-bench-") as name:
        readings, did, passes = soak(Path(name), objects, minutes)
    warm = min(LONGEST_WARM_UP_S, 60 * minutes / 3) / 3600
    rows: list[Sequence[str]] = [
        ["process", "MiB after the warm-up", "MiB at the end", "slope in MiB an hour", "limit", ""],
        ["---", "---:", "---:", "---:", "---", "---"],
    ]
    grows = False
    for process, points in readings.items():
        late = [point for point in points if point[0] >= warm]
        found, error = slope(late)
        missed = found - ERRORS * error > MOST_MIB_PER_HOUR
        grows = grows or missed
        told = f"{found:+.2f} ± {error:.2f}"
        limit = f"at most {MOST_MIB_PER_HOUR:g}"
        rows.append([process, f"{late[0][1]:.1f}", f"{late[-1][1]:.1f}", told, limit, "MISSED" if missed else ""])
    what = ", ".join(f"{count} {kind}" for kind, count in sorted(did.items()))
    part = (
        f"{minutes:g} minutes, of which {60 * warm:.0f} are the warm-up, on a machine with {machine()}. "
        f"{objects} objects on {churned_nodes(objects)} nodes; {what}. Passes of the operator: {passes}.\n\n{table(rows)}"
    )
    print(part)
    if given.write:
        renew(SCRIPT, part)
    return int(grows)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
