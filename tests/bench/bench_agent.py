"""What the node agent costs a node of eight GPUs, and how soon a fault shows in the Node's condition.

`python tests/bench/bench_agent.py [MINUTES]` (default 5) runs the agent as it runs in production: polls every 15 s in
real time, /proc and /sys of this machine, a real API server, Prometheus scraping every 30 s and the kubelet's probes.
Only NVML is a fake one (eight healthy H200 of a capture), which answers in Python: a real one takes other times, which
tests/bench/cost_gpu.py measures. CPU is that of both processes, user and system, from /proc/PID/stat.

It exits with 1 where a limit is missed.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
# a script finds the modules of its own folder only
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

import captures  # noqa: E402 - found by the line above
import fake_pynvml  # noqa: E402
from tests.bench.figures import Row, cpu_seconds, mebibytes  # noqa: E402

from hisparse.nodes.catalogue import NodeCondition  # noqa: E402
from hisparse.nodes.checks import CHECKS  # noqa: E402
from hisparse_testenv.control_plane import ControlPlane  # noqa: E402

NODE: Final = "bench-node"
INTERVAL_S: Final = 15
MOST_CPU_PERCENT: Final = 0.5
MOST_MIB: Final = 110
SLACK_S: Final = 2
SCRAPE_S: Final = 30
PROBE_S: Final = 10
"""agent.yaml: readiness every 10 s, liveness every 20 s."""
WARM_UP_S: Final = 75
"""Longer than the slowest pace, so that each kind of reading was made once."""
LINK_DOWN: Final = {"164": [3, 0, 0], "165": [0, 1, 0]}
FAULTS: Final = {
    "nvlink.links": (NodeCondition.LINK, "18 links fall to 9"),
    "thermal.margin": (NodeCondition.GPU, "a margin of 1 C"),
}
"""One for each condition, so that the second does not have to wait for the first to be over."""


class Agent:
    """The agent's process and its NVML child, on a machine whose NVML answers from a scenario."""

    def __init__(self, folder: Path, plane: ControlPlane) -> None:
        self._folder = folder
        self.scenario = captures.scenario_of("sim_healthy")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.log = folder / "agent.log"
        words = [
            *("--kubeconfig", str(plane.kubeconfig), "--node", NODE, "--namespace", "default"),
            *("--interval", f"{INTERVAL_S}s", "--listen", f"127.0.0.1:{self.port}", "--log-format", "json"),
        ]
        with self.log.open("wb") as sink:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "hisparse_agent", *words],
                stdout=sink,
                stderr=subprocess.STDOUT,
                env=fake_pynvml.environment(folder, self.scenario),
            )

    def becomes(self, change: Mapping[str, Any]) -> None:
        """From now on the first GPU answers otherwise."""
        self.scenario["gpus"][0] |= change
        fake_pynvml.write(self._folder, self.scenario)

    def page(self, path: str) -> str:
        """A page of the agent."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
            return str(answer.read().decode())

    @property
    def ready(self) -> bool:
        """Whether it has judged its node; False while there is no page yet."""
        try:
            return bool(self.page("/readyz"))
        except OSError:
            return False

    def pids(self) -> dict[str, int]:
        """Its processes by what they are."""
        own = self.process.pid
        children = Path(f"/proc/{own}/task/{own}/children").read_text().split()
        if self.process.poll() is not None or len(children) != 1:
            raise SystemExit(f"the agent does not run as it should:\n{self.log.read_text()[-3000:]}")
        return {"agent": own, "NVML child": int(children[0])}

    def stop(self) -> None:
        """End it."""
        self.process.terminate()
        self.process.wait(30)


def shared_mebibytes(pid: int) -> float:
    """Memory of a process in which what it shares counts in parts (PSS)."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:"))


def cost(agent: Agent, minutes: float) -> list[Row]:
    """CPU and memory of both processes at the pace of production."""
    begun = time.monotonic()
    pids = agent.pids()
    before = {name: cpu_seconds(pid) for name, pid in pids.items()}
    most = dict.fromkeys(pids, 0.0)
    polls = _polls(agent)
    beat = 0
    while time.monotonic() - begun < minutes * 60:
        beat += 1
        agent.page("/readyz")
        if beat % (SCRAPE_S // PROBE_S) == 0:
            agent.page("/metrics")
        for name, pid in pids.items():
            most[name] = max(most[name], mebibytes(pid))
        time.sleep(PROBE_S)
    seconds = time.monotonic() - begun
    shares = {name: 100 * (cpu_seconds(pid) - before[name]) / seconds for name, pid in pids.items()}
    if agent.pids() != pids:
        raise SystemExit("the NVML child was started anew while it was measured")
    print(f"{seconds:.0f} s in real time, {_polls(agent) - polls:.0f} polls of the host, every third of the GPUs too;")
    # hyperthreads share a core: on a busy machine the same work takes more CPU time
    print(f"meanwhile the load of this machine's {os.cpu_count()} CPUs was {os.getloadavg()[1]:.1f}\n")
    shared = sum(shared_mebibytes(pid) for pid in pids.values())
    return [
        *(Row(f"CPU, {name}", share, None, "% of core") for name, share in shares.items()),
        Row("CPU, both", sum(shares.values()), MOST_CPU_PERCENT, "% of core"),
        *(Row(f"memory (RSS), {name}", size, None, "MiB") for name, size in most.items()),
        Row("memory (RSS), both", sum(most.values()), MOST_MIB, "MiB"),
        Row("memory, what both share counted once (PSS)", shared, None, "MiB"),
    ]


def _polls(agent: Agent) -> float:
    name = "hisparse_node_poll_duration_seconds_count "
    return next(float(line.removeprefix(name)) for line in agent.page("/metrics").splitlines() if line.startswith(name))


def latency(agent: Agent, plane: ControlPlane, check: str) -> Row:
    """Seconds from a fault in what NVML answers to the Node's condition at the API server."""
    condition, words = FAULTS[check]
    row = next(one for one in CHECKS if one.id == check)
    polls = row.critical_enter_polls or row.enter_polls
    gpu = agent.scenario["gpus"][0]
    begun = time.monotonic()
    if check == "thermal.margin":
        agent.becomes({"calls": {**gpu["calls"], "MarginTemperature": 1, "Temperature": 86}})
    else:
        active = gpu["links"][0][1]
        agent.becomes({"links": [[9, active], [9, {**active, **LINK_DOWN}]]})
    limit = polls * INTERVAL_S + SLACK_S
    _until(plane, condition, "False", 3 * limit)
    return Row(f"fault to condition: {words} ({polls} polls)", time.monotonic() - begun, limit, "s")


def _until(plane: ControlPlane, condition: NodeCondition, status: str, limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while _status(plane, condition) != status:
        if time.monotonic() > deadline:
            raise SystemExit(f"{condition} did not become {status} within {limit_s:g} s")
        time.sleep(0.1)


def _status(plane: ControlPlane, condition: NodeCondition) -> str:
    live = plane.api.request("GET", f"/api/v1/nodes/{NODE}")
    return next((one["status"] for one in live["status"].get("conditions") or () if one["type"] == condition), "")


def main() -> None:
    """Measure, print, and say whether a limit was missed."""
    minutes = float(sys.argv[1]) if len(sys.argv) > 1 else 5.0
    node = {"metadata": {"name": NODE}, "status": {"capacity": {"nvidia.com/gpu": "8"}}}
    with tempfile.TemporaryDirectory(prefix="hisparse-bench-") as name:
        folder = Path(name)
        with ControlPlane.start(folder / "plane", say=lambda _: None) as plane:
            plane.kubectl("apply", "--server-side", "-f", str(ROOT / "crds"))
            plane.api.request("POST", "/api/v1/nodes", node)
            agent = Agent(folder, plane)
            try:
                _until(plane, NodeCondition.LINK, "True", 60)
                time.sleep(WARM_UP_S)
                rows = cost(agent, minutes)
                rows += [latency(agent, plane, check) for check in FAULTS]
            finally:
                agent.stop()
    for row in rows:
        print("  ".join(row.cells()))
    missed = [row for row in rows if row.missed]
    if missed:
        print(json.dumps({"missed": [row.what for row in missed]}))
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
