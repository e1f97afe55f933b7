"""When a node may carry our taint."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from hisparse.nodes.findings import Finding, State
from hisparse.nodes.policy import HiSparseNodePolicySpec, TaintEffect
from hisparse_agent.publish.conditions import Taint
from hisparse_agent.remedies import tainting
from hisparse_agent.remedies.allowance import SlotState
from hisparse_agent.remedies.ours import Mute

NOW = datetime(2026, 11, 30, tzinfo=UTC)
EFFECT = TaintEffect.PREFER_NO_SCHEDULE
LINKS = Taint("nvlink.links", EFFECT)
SPEC = HiSparseNodePolicySpec(taint=EFFECT, dry_run=False)
DOWN = Finding("nvlink.links", "gpu-0", State.CRITICAL, "NvlinkLinksDown", "9 of 18", NOW)
UNREAD = Finding("nvlink.links", "gpu-0", State.UNKNOWN, "NotRead", "no answer", NOW)
MUTED = (Mute("nvlink.links", NOW + timedelta(hours=1), "you took it off"),)


@pytest.mark.parametrize("breaker_open", [True, False, None])
@pytest.mark.parametrize("slot", list(SlotState))
@pytest.mark.parametrize("present", [None, LINKS])
def test_a_new_taint_needs_a_slot_and_a_closed_breaker_and_one_that_is_there_a_slot(
    slot: SlotState, present: Taint | None, *, breaker_open: bool | None
) -> None:
    found = tainting.allowed(LINKS, present, slot, dry_run=False, breaker_open=breaker_open)
    if slot is SlotState.HELD:
        assert found == (LINKS if present or breaker_open is False else None)
    else:
        assert found == (present if slot is SlotState.UNKNOWN else None)
    assert tainting.allowed(LINKS, present, slot, dry_run=True, breaker_open=breaker_open) is None
    assert tainting.allowed(None, present, slot, dry_run=False, breaker_open=breaker_open) is None


def test_what_cannot_be_read_keeps_a_taint_and_brings_none() -> None:
    assert tainting.asked((DOWN,), (DOWN,), SPEC, (), NOW, None) == LINKS
    assert tainting.asked((UNREAD,), (DOWN,), SPEC, (), NOW, LINKS) == LINKS
    assert tainting.asked((UNREAD,), (DOWN,), SPEC, (), NOW, None) is None
    assert tainting.asked((DOWN,), (DOWN,), SPEC, MUTED, NOW, LINKS) is None


@pytest.mark.parametrize(
    ("spec", "critical"), [(SPEC, True), (HiSparseNodePolicySpec(dry_run=False), False)], ids=["taints", "nothing"]
)
def test_only_what_the_policy_could_do_something_about_counts_for_the_breaker(
    spec: HiSparseNodePolicySpec, *, critical: bool
) -> None:
    assert tainting.is_critical((DOWN,), spec) is critical
    assert not tainting.is_critical((UNREAD,), spec)
