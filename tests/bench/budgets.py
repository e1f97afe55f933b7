"""What our sum of a GPU's memory leaves for KV, against the logs that print it: the table of docs/kv-logs.md.

`python tests/bench/budgets.py` prints it, `--write` puts it into the page, `--check` exits 1 when it is out of date.
Only logs of a catalogue model on a whole card whose memory, utilisation and weights line are known.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

ROOT = Path(__file__).parents[2]
# a script finds the modules of its own folder only
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

from kv_logs import Case, cases, release_of  # noqa: E402 - the path has to be there first
from tests.bench.pages import run, table  # noqa: E402

from hisparse import catalogue  # noqa: E402
from hisparse.hardware import NodeClass, gpu_named  # noqa: E402
from hisparse.hbm import hbm_terms  # noqa: E402
from hisparse.model import read_config  # noqa: E402
from hisparse.plan import Target  # noqa: E402
from hisparse.units import GIB  # noqa: E402

_LARGE = 70 * GIB
_CARDS = {"H200": "h200", "B200": "b200", "H100": "h100", "A100": "a100-80", "L40S": "l40s"}


def comparable() -> Iterator[tuple[Case, int, int]]:
    """(case, bytes for KV by our sum, by the log) with the engine's own defaults for what the log does not say."""
    for case in cases():
        entry = catalogue.lookup(case["model"])
        card = next((gpu_named(name) for word, name in _CARDS.items() if word in case["gpu"]), None)
        utilization = case.get("gpu_memory_utilization")
        log = case["log"]
        if entry is None or card is None or not utilization or "avail_gib" not in log or case["max_model_len"] is None:
            continue
        if case["tp"] * case["pp"] * case["dp"] > 8 or "NVL" in case["gpu"]:
            continue
        if "total_gib" in log:
            card = replace(card, memory_bytes=int(Fraction(str(log["total_gib"])) * GIB))
        facts = read_config(entry.config, name=entry.repo, weight_bytes=entry.weight_bytes)
        requests = case.get("max_num_seqs") or (1024 if card.memory_bytes > _LARGE else 256)
        batch = case.get("max_num_batched_tokens") or (8192 if card.memory_bytes > _LARGE else 2048)
        target = Target(
            max_tokens=case["max_model_len"],
            gpus=case["tp"] * case["pp"],
            tensor=case["tp"],
            pipeline=case["pp"],
            max_requests=requests,
            utilization_percent=round(100 * utilization),
            engine_version=release_of(case),
        )
        _, left = hbm_terms(facts, NodeClass(card, 8, None, card.name), target, batch)
        yield case, left, int(Fraction(str(log["avail_gib"])) * GIB)


def part() -> str:
    """Medians and every case."""
    found = list(comparable())
    errors = [Fraction(left - logged, logged) for _, left, logged in found]
    rows = [["case", "vLLM", "GPU", "logged GiB", "ours", "error"], ["---", "---", "---", "---:", "---:", "---:"]]
    for (case, left, logged), error in zip(found, errors, strict=True):
        said = [f"{size / GIB:.2f}" for size in (logged, left)]
        rows.append([case["id"], case["vllm_version"], case["gpu"], *said, f"{float(100 * error):+.1f} %"])
    ordered = sorted(errors)
    return (
        f"{len(found)} logs: median {float(100 * statistics.median(errors)):+.1f} %, from "
        f"{float(100 * ordered[0]):+.1f} % to {float(100 * ordered[-1]):+.1f} %; plus promises KV that is not there.\n\n"
        f"{table(rows)}"
    )


def main(arguments: Sequence[str]) -> int:
    """0; 1 when --check finds the page out of date; 2 for arguments that mean nothing."""
    return run("docs/kv-logs.md", "tests/bench/budgets.py", part, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
