"""A policy may set exactly the thresholds that the agent looks at: no line of it is ever without effect."""

from __future__ import annotations

from typing import Any

import pytest
from node_readings import changed, healthy

from hisparse.nodes.catalogue import Check, Threshold
from hisparse.nodes.checks import CHECKS
from hisparse_agent.history import History
from hisparse_agent.judge.judge import judge
from hisparse_agent.judge.ledger import Ledger
from hisparse_agent.judge.view import View
from hisparse_agent.readings import Nvml

_NVML = healthy(0).nvml
assert isinstance(_NVML, Nvml)
GPUS = len(_NVML.gpus)


def test_the_thresholds_of_the_catalogue_are_those_that_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: set[str] = set()
    original = View.limits

    def limits(view: View, check: Check, *arguments: Any, **named: Any) -> Threshold:
        asked.add(check.id)
        return original(view, check, *arguments, **named)

    monkeypatch.setattr(View, "limits", limits)
    history, ledger = History(), Ledger()
    for poll in range(60):
        # nobody uses the GPUs, or a leak of pins could not be told from use
        idle: dict[str, object] = {f"nvml.gpus.{index}.processes": 0 for index in range(GPUS)} | {
            "pods": (),
            "memory.pinned_pages": 0,
        }
        reading = changed(healthy(poll), idle if poll > 50 else {})
        judgement = judge(reading, history.readings, ledger)
        history.add(reading)
        ledger = judgement.ledger
    limited = {
        one.id for one in CHECKS if any(each.warn or each.critical for each in (one.threshold, *one.profiles.values()))
    }
    assert asked == limited
