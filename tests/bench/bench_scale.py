"""The operator with many objects: cold start, edits, restart, rest; and what the API server costs meanwhile.

`python tests/bench/bench_scale.py [--objects N] [--churn MINUTES] [--churned N] [--write]` (default 1000 and 5) takes about a quarter
of an hour on two cores. The API server, its controllers and the scheduler are real and share this machine with the
operator; kwok plays the kubelets, so every pod is scheduled and gets Ready. `--write` puts the tables into
docs/benchmarks.md.

It exits with 1 where a limit is missed.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
# a script finds the modules of its own folder only
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

from tests.bench.figures import Row, machine, mebibytes  # noqa: E402
from tests.bench.fleet import (  # noqa: E402
    GPUS_PER_NODE,
    LABEL,
    OBJECTS,
    Cost,
    Fleet,
    Meter,
    Readings,
    Watch,
    is_converged,
    until,
)
from tests.bench.pages import renewed, table  # noqa: E402

from hisparse_testenv.api import MERGE_PATCH  # noqa: E402 - the path has to be there first

PAGE: Final = "docs/benchmarks.md"
SCRIPT: Final = "tests/bench/bench_scale.py"
COLD_S: Final = 60.0
MOST_MIB: Final = 300.0
EDIT_S: Final = 1.0
RESTART_S: Final = 10.0
QUIET_S: Final = 5.0
"""So long without a write, and everything is converged."""
LIMIT_S: Final = 1200.0
EDITS: Final = 200
EDIT_EVERY_S: Final = 0.25
RESYNC_S: Final = 30
RESYNCS: Final = 3
CHURN_OBJECTS: Final = 300
CHURN_REPLICAS: Final = 3
CHURN_EVERY_S: Final = 1.0
SPARE_NODES: Final = 5
SETTLE_S: Final = 300.0
SHARES: Final = (0.5, 0.99)


@dataclass
class Result:
    """Rows with their limits, and the cost of each phase by process and by verb."""

    rows: list[Row] = field(default_factory=list)
    costs: dict[str, Cost] = field(default_factory=dict)
    requests: dict[str, Readings] = field(default_factory=dict)

    def add(self, what: str, value: float, unit: str, limit: float | None = None) -> None:
        """Keep a figure, and show it at once: the whole takes long."""
        row = Row(what, value, limit, unit)
        self.rows.append(row)
        print("  ".join(row.cells()), flush=True)

    def page(self) -> str:
        """The tables of the page."""
        names = [*dict.fromkeys(name for cost in self.costs.values() for name in cost.cpu)]
        cpu = [["CPU seconds", *self.costs], ["---", *["---:"] * len(self.costs)]]
        cpu += [[name, *(f"{cost.cpu.get(name, 0):.1f}" for cost in self.costs.values())] for name in names]
        cpu += [["**together**", *(f"{sum(cost.cpu.values()):.1f}" for cost in self.costs.values())]]
        cpu += [["wall clock", *(f"{cost.seconds:.1f} s" for cost in self.costs.values())]]
        served = sum((cost.served for cost in self.costs.values()), Counter[str]())
        asked = [["requests", *self.costs], ["---", *["---:"] * len(self.costs)]]
        asked += [
            [f"answered by the API server, {verb}", *(f"{cost.served[verb]}" for cost in self.costs.values())]
            for verb, _ in served.most_common()
        ]
        own = sum((one.by_verb for one in self.requests.values()), Counter[str]())
        asked += [
            [f"sent by the operator, {verb}", *(f"{one.by_verb[verb]}" for one in self.requests.values())]
            for verb, _ in own.most_common()
        ]
        head = [["figure", "measured", "limit", ""], ["---", "---:", "---", "---"]]
        when = datetime.now(UTC).strftime("%Y-%m-%d")
        where = f"Measured {when} on a machine with {machine()}; its load was {os.getloadavg()[2]:.1f} at the end.\n\n"
        rows = table([*head, *(row.cells() for row in self.rows)])
        return f"{where}{rows}\n{table(cpu)}\n{table(asked)}"


def scale(folder: Path, objects: int, result: Result) -> None:
    """Cold start, edits of idle objects, restart and rest."""
    nodes = -(-objects // GPUS_PER_NODE) + SPARE_NODES
    with Fleet.start(folder, nodes) as fleet:
        fleet.create(objects)
        _cold(fleet, objects, result)
        _edits(fleet, objects, result)
        _restart(fleet, objects, result)


def _cold(fleet: Fleet, objects: int, result: Result) -> None:
    operator = fleet.start_operator()
    meter = Meter.start(fleet)
    seconds = _converged(fleet, objects, operator.begun)
    cost, readings = meter.stop(), operator.readings()
    result.costs["cold start"], result.requests["cold start"] = cost, readings
    result.add(f"{objects} objects from cold start to converged", seconds, "s", COLD_S)
    result.add("memory of the operator meanwhile (most RSS)", mebibytes(operator.process.pid, "VmHWM"), "MiB", MOST_MIB)
    result.add("requests of the operator for each object", sum(readings.by_verb.values()) / objects, "requests")
    result.add("passes for each object", sum(readings.passes.values()) / objects, "passes")
    result.add("requests that the API server answered for each object", sum(cost.served.values()) / objects, "requests")
    result.add("CPU of the operator for each object", 1000 * cost.cpu["operator"] / objects, "ms")
    result.add("CPU of everything else for each object", 1000 * _others(cost) / objects, "ms")


def _converged(fleet: Fleet, objects: int, begun: float) -> float:
    """Seconds from `begun` to the operator's last write, once all objects serve and nothing is written any more."""
    operator = fleet.operator
    assert operator is not None
    writes, last, looked = -1, begun, 0.0
    while True:
        now = time.monotonic()
        if (count := operator.readings().writes) != writes:
            writes, last = count, now
        # a whole list costs the API server something, so it is asked for once nothing seems to happen
        if now - last >= QUIET_S and now - looked >= QUIET_S:
            looked = now
            if sum(map(is_converged, fleet.session.items(OBJECTS))) == objects:
                return last - begun
        if now - begun > LIMIT_S:
            done = sum(map(is_converged, fleet.session.items(OBJECTS)))
            raise SystemExit(f"{done} of {objects} objects converged within {LIMIT_S:g} s")
        time.sleep(1)


def _edits(fleet: Fleet, objects: int, result: Result) -> None:
    """From the edit of one idle object to the ReplicaSet of its new revision, as a watch of our own sees it."""
    operator = fleet.operator
    assert operator is not None
    seen: dict[str, float] = {}
    arrived = threading.Condition()

    def take(event: dict[str, Any], now: float) -> None:
        if event["type"] == "ADDED":
            with arrived:
                seen[event["object"]["metadata"]["labels"][LABEL]] = now
                arrived.notify_all()

    Watch(fleet.plane, f"/apis/apps/v1/replicasets?labelSelector={LABEL}", take)
    meter, before = Meter.start(fleet), operator.readings()
    latencies = []
    # each object once, spread over all of them
    step = max(1, objects // EDITS)
    for number in range(0, min(objects, EDITS * step), step):
        name = f"llama-{number:04}"
        begun = time.monotonic()
        patch = {"spec": {"engine": {"args": [f"--seed={number}"]}}}
        fleet.session.send("PATCH", f"{OBJECTS}/{name}", patch, MERGE_PATCH)
        with arrived:
            if not arrived.wait_for(lambda name=name: name in seen, 60):  # type: ignore[misc]
                raise SystemExit(f"the edit of {name} was not applied within 60 s")
        latencies.append(seen[name] - begun)
        time.sleep(EDIT_EVERY_S)
    _converged(fleet, objects, time.monotonic())
    result.costs["edits"], result.requests["edits"] = meter.stop(), operator.readings().since(before)
    told = f"edit of the spec to its new ReplicaSet, {len(latencies)} edits at {objects} idle objects"
    cuts = statistics.quantiles(latencies, n=100, method="inclusive")
    result.add(f"{told}: median", cuts[49], "s")
    result.add(f"{told}: p99", cuts[98], "s", EDIT_S)
    result.add("memory of the operator after the edits (RSS)", mebibytes(operator.process.pid), "MiB")


def _restart(fleet: Fleet, objects: int, result: Result) -> None:
    fleet.stop_operator()
    before = fleet.versions()
    operator = fleet.start_operator("--resync", f"{RESYNC_S}s")
    meter = Meter.start(fleet)
    until(lambda: operator.ready, "the operator is ready again", 120, poll_s=0.05)
    result.add(f"restart with {objects} converged objects: ready", time.monotonic() - operator.begun, "s", RESTART_S)
    passes = RESYNCS * objects
    until(lambda: sum(operator.readings().passes.values()) >= objects, "each object is looked at", 120)
    looked = time.monotonic() - operator.begun
    result.add("the same: each object looked at", looked, "s")
    result.costs["restart"], result.requests["restart"] = meter.stop(), operator.readings()
    at_rest, asked = Meter.start(fleet), operator.readings()
    until(
        lambda: sum(operator.readings().since(asked).passes.values()) >= passes,
        "the resyncs",
        RESYNCS * RESYNC_S * 4 + 60,
        poll_s=2,
    )
    told = f"{RESYNCS} resyncs"
    rest = operator.readings().since(asked)
    result.costs[told], result.requests[told] = at_rest.stop(), rest
    writes = operator.readings().writes + len(before.items() ^ fleet.versions().items())
    result.add("writes after the restart, resyncs included", writes, "writes", 0)
    single = sum(count for verb, count in rest.by_verb.items() if verb != "list")
    result.add("requests at rest for each object and resync, whole lists apart", single / passes, "requests", 0)
    result.add("whole lists at rest", rest.by_verb["list"], "requests")
    cost = result.costs[told]
    result.add("CPU of a pass at rest", 1000 * cost.cpu["operator"] / sum(rest.passes.values()), "ms")
    result.add("memory of the operator at rest (RSS)", mebibytes(operator.process.pid), "MiB", MOST_MIB)


def churn(folder: Path, objects: int, minutes: float, result: Result) -> None:
    """Objects of three replicas while people edit and scale them, cordon nodes and delete pods."""
    nodes = churned_nodes(objects)
    with Fleet.start(folder, nodes) as fleet:
        fleet.create(objects, replicas=CHURN_REPLICAS)
        operator = fleet.start_operator()
        _converged(fleet, objects, operator.begun)
        meter, before = Meter.start(fleet), operator.readings()
        dice = random.Random(7)  # noqa: S311 - the same churn each time
        depth, lag, did = [0.0], [0.0], Counter[str]()
        ends = time.monotonic() + 60 * minutes
        while time.monotonic() < ends:
            begun = time.monotonic()
            did[disturb(fleet, dice, objects, nodes)] += 1
            gauges = operator.readings().gauges
            depth.append(gauges.get("queue_depth", 0))
            lag.append(gauges.get("loop_lag_seconds", 0))
            time.sleep(max(0.0, CHURN_EVERY_S - (time.monotonic() - begun)))
        told = "churn"
        result.costs[told], result.requests[told] = meter.stop(), operator.readings().since(before)
        rested, left = settled(fleet, objects)
        done = result.requests[told]
        name = f"churn ({objects} objects of {CHURN_REPLICAS} replicas, {nodes} nodes)"
        words = ", ".join(f"{count} {what}" for what, count in sorted(did.items()))
        result.add(f"{name}: {words} in {minutes:g} min; left unconverged", left, "objects", 0)
        result.add("churn: writes of the operator", done.writes / minutes, "a minute")
        for share in SHARES:
            result.add(f"churn: {share:.0%} of the passes took at most", done.quantile(share), "s")
        result.add("churn: longest queue", max(depth), "objects")
        result.add("churn: largest lag of the event loop", max(lag), "s")
        result.add("churn: last disturbance to converged", rested, "s")
        bad = sum(done.passes[one] for one in ("bug", "spec", "refused", "taken"))
        result.add("churn: passes that ended in a bug or a refusal", bad, "passes", 0)
        result.add("churn: passes to be tried again", done.passes["transient"], "passes")
        result.add(
            "churn: memory of the operator (most RSS)", mebibytes(operator.process.pid, "VmHWM"), "MiB", MOST_MIB
        )


def churned_nodes(objects: int) -> int:
    """Nodes for these objects while a quarter of the nodes is cordoned: twice the GPUs that they take."""
    return max(3, objects * 2 // 3)


def settled(fleet: Fleet, objects: int) -> tuple[float, int]:
    """End the churn: seconds until all objects have converged, and how many never did."""
    for node in fleet.session.items("/api/v1/nodes"):
        if node["spec"].get("unschedulable"):
            patch = {"spec": {"unschedulable": False}}
            fleet.session.send("PATCH", f"/api/v1/nodes/{node['metadata']['name']}", patch, MERGE_PATCH)
    begun = time.monotonic()
    while True:
        left = objects - sum(map(is_converged, fleet.session.items(OBJECTS)))
        seconds = time.monotonic() - begun
        if not left or seconds > SETTLE_S:
            return seconds, left
        time.sleep(1)


def disturb(fleet: Fleet, dice: random.Random, objects: int, nodes: int, seeds: int = 1000) -> str:
    """One thing that people do to a cluster; what it was. An edit takes one of so many values."""
    session = fleet.session
    what = dice.choice(
        ("edits", "edits", "scalings", "scalings", "deleted pods", "cordons", "uncordons", "uncordons", "uncordons")
    )
    name = f"llama-{dice.randrange(objects):04}"
    node = f"gpu-{dice.randrange(nodes):03}"
    match what:
        case "edits":
            patch: dict[str, Any] = {"spec": {"engine": {"args": [f"--seed={dice.randrange(seeds)}"]}}}
            session.send("PATCH", f"{OBJECTS}/{name}", patch, MERGE_PATCH)
        case "scalings":
            session.send("PATCH", f"{OBJECTS}/{name}", {"spec": {"replicas": dice.randint(1, 4)}}, MERGE_PATCH)
        case "deleted pods":
            pods = session.items(f"/api/v1/namespaces/default/pods?labelSelector={LABEL}%3D{name}")
            if pods:
                # it may have gone meanwhile
                session.text("DELETE", f"/api/v1/namespaces/default/pods/{dice.choice(pods)['metadata']['name']}")
        case _:
            cordoned = {"spec": {"unschedulable": what == "cordons"}}
            session.send("PATCH", f"/api/v1/nodes/{node}", cordoned, MERGE_PATCH)
    return what


def renew(script: str, part: str) -> None:
    """Put a script's part into the page."""
    page = ROOT / PAGE
    page.write_text(renewed(page.read_text(), script, part))


def _others(cost: Cost) -> float:
    return sum(seconds for name, seconds in cost.cpu.items() if name != "operator")


def main(words: Sequence[str] | None = None) -> int:
    """Measure, print, and say whether a limit was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--objects", type=int, default=1000, help="objects of the first part; 0 leaves it out")
    parser.add_argument("--churn", type=float, default=5.0, metavar="MINUTES", help="0 leaves the second part out")
    parser.add_argument("--churned", type=int, default=CHURN_OBJECTS, help="objects of the second part")
    parser.add_argument("--write", action="store_true", help=f"put the tables into {PAGE}")
    given = parser.parse_args(words)
    result = Result()
    with tempfile.TemporaryDirectory(prefix="hisparse-bench-") as folder:
        if given.objects:
            scale(Path(folder) / "scale", given.objects, result)
        if given.churn:
            churn(Path(folder) / "churn", given.churned, given.churn, result)
    print(f"\n{result.page()}")
    if given.write:
        renew(SCRIPT, result.page())
    return int(any(row.missed for row in result.rows))


if __name__ == "__main__":
    sys.exit(main())
