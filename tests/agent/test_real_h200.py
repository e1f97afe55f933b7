"""What two real, idle H200 with NVLink up gave, and what pinning 32 GiB of host memory there looks like."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest

from hisparse.nodes.checks import CHECKS
from hisparse.nodes.findings import Finding, State
from hisparse.units import GIB
from hisparse_agent.history import History
from hisparse_agent.judge.judge import judge
from hisparse_agent.judge.ledger import Ledger
from hisparse_agent.replay import load

DATA: Final = Path(__file__).parents[1] / "data" / "nodes"
CARDS: Final = ("gpu-0", "gpu-1")
OF_EACH_CARD: Final = (
    "gpu.lost",
    "gpu.recovery_action",
    "xid",
    "ecc.remap",
    "ecc.uncorrected",
    "nvlink.links",
    "nvlink.capacity",
    "nvlink.p2p",
    "fabric.state",
    "pcie.link",
    "thermal.margin",
    "thermal.hbm",
    "power.oob",
    "power.persistence",
)
OF_THE_HOST: Final = (
    "driver.floor",
    "driver.rules",
    "host.mem.available",
    "host.mem.psi",
    "host.mem.pinned",
    "host.swap",
    "host.pool.leak",
    "host.sysctl",
    "host.thp",
    "nvml.latency",
)


def states(findings: list[dict[str, Any]]) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for one in findings:
        found[one["check"]][one["subject"]] = one["state"]
    return found


def test_the_named_checks_are_ok_on_idle_healthy_cards() -> None:
    document = json.loads((DATA / "documents" / "h200_x2_check.json").read_text())
    assert (document["verdict"], document["exitCode"]) == ("Healthy", 0)
    found = states(document["findings"])
    assert {name: found[name] for name in OF_EACH_CARD} == {name: dict.fromkeys(CARDS, "Ok") for name in OF_EACH_CARD}
    assert {name: found[name] for name in OF_THE_HOST} == {name: {"host": "Ok"} for name in OF_THE_HOST}
    assert not {"Warn", "Critical"} & {state for of_check in found.values() for state in of_check.values()}
    assert set(found) == {row.id for row in CHECKS}


@cache
def polls() -> list[tuple[float, int, bool, tuple[Finding, ...]]]:
    """Second, pinned bytes, whether a pin window is open, findings."""
    history, ledger, found = History(), Ledger(), []
    for reading in load(DATA / "h200_x2_pinning"):
        judged = judge(reading, history.readings, ledger)
        ledger = judged.ledger
        history.add(reading)
        assert isinstance(reading.memory.pinned_pages, int)
        found.append((reading.monotonic, reading.memory.pinned_pages * 4096, judged.pin_window, judged.findings))
    return found


def test_pinned_bytes_are_seen_and_open_a_pin_window_while_they_rise() -> None:
    pinned = [one for _, one, _, _ in polls()]
    assert max(pinned) == 32 * GIB + 8 * 2**20
    assert pinned[0] == 0
    assert pinned[-1] < GIB
    pairs = list(itertools.pairwise(polls()))
    fast = [later[1] - earlier[1] > GIB * (later[0] - earlier[0]) for earlier, later in pairs]
    assert fast == [False] * 3 + [True] * 6 + [False] * 6, "at 1.3 to 2.0 GiB a second"
    assert [later[2] for _, later in pairs] == fast


@pytest.mark.parametrize("name", [*OF_EACH_CARD, *OF_THE_HOST])
def test_nothing_is_called_a_fault_while_an_engine_would_fill_its_pool(name: str) -> None:
    for second, _, _, findings in polls():
        of_check = {one.state for one in findings if one.check == name}
        assert of_check <= {State.OK, State.UNKNOWN}, f"second {second:.0f}"
    assert {one.state for one in polls()[-1][3] if one.check == name} == {State.OK}


def test_the_check_of_pinned_bytes_says_how_many() -> None:
    most = max(polls(), key=lambda poll: poll[1])
    (found,) = (one for one in most[3] if one.check == "host.mem.pinned")
    assert found.message == "32.01 GiB of 251.77 GiB are pinned, 12.7 %"
