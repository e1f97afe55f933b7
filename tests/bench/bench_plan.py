"""How long a plan takes in process, as ratios within one run: `make bench`.

Machines differ and are shared, so the figure to compare between commits is the ratio to parsing one manifest.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable

from hisparse.hardware import NodeClass, gpu_named
from hisparse.model import facts_for
from hisparse.planner import plan
from hisparse.spec import parse_spec
from hisparse.target import target_of
from hisparse.units import TIB

MANIFEST = {
    "model": {"huggingFace": {"repo": "zai-org/GLM-5.3-FP8"}},
    "context": {"maxTokens": 1_048_576},
    "resources": {"gpus": 8},
}


def milliseconds(work: Callable[[], object], rounds: int = 50) -> float:
    """Median of several runs."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1000


def main() -> None:
    spec = parse_spec(MANIFEST)
    model, target = facts_for(spec.model), target_of(spec)
    h200 = gpu_named("h200")
    if h200 is None:
        raise SystemExit("h200 is not in the table of GPUs")
    node = NodeClass(h200, 8, 2 * TIB, "NVIDIA-H200")
    small = NodeClass(h200, 8, 64 * 2**30, "NVIDIA-H200")
    parse = milliseconds(lambda: parse_spec(MANIFEST))
    rows = {
        "parse one manifest": parse,
        "plan that fits": milliseconds(lambda: plan(model, node, target)),
        "plan that falls short, with advice": milliseconds(lambda: plan(model, small, target)),
    }
    for name, value in rows.items():
        print(f"{name:36} {value:8.3f} ms   {value / parse:6.2f} x parse")
    empty = milliseconds(lambda: subprocess.run([sys.executable, "-c", "pass"], check=True), rounds=5)
    words = [sys.executable, "-m", "hisparse_toolkit", "plan", "--model", "GLM-5.3", "--context", "1M", "--gpus", "8"]
    whole = milliseconds(lambda: subprocess.run(words, stdout=subprocess.DEVNULL, check=True), rounds=5)
    print(f"{'the command, start to end':36} {whole:8.0f} ms   {whole / empty:6.2f} x an empty Python")


if __name__ == "__main__":
    main()
