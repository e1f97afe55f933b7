"""Whether the node is to carry our taint: what asks for it, and whether that is allowed. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from hisparse.nodes.checks import BY_ID
from hisparse.nodes.findings import Finding, State
from hisparse.nodes.policy import HiSparseNodePolicySpec
from hisparse_agent.publish.conditions import Taint, wanted_taint
from hisparse_agent.remedies.allowance import SlotState
from hisparse_agent.remedies.ours import Mute, mute_of
from hisparse_agent.remedies.wishes import checks_of


def is_critical(findings: Iterable[Finding], spec: HiSparseNodePolicySpec) -> bool:
    """Whether something critical asks for what the policy can do; this is what the breaker counts."""
    wanted = {name for remedy in spec.remedies or () for name in checks_of(remedy, BY_ID)}
    return any(
        one.state is State.CRITICAL
        and (one.check in wanted or (spec.taint is not None and one.check in BY_ID and BY_ID[one.check].taints))
        for one in findings
    )


def wanted(
    findings: Iterable[Finding],
    spec: HiSparseNodePolicySpec | None,
    mutes: tuple[Mute, ...],
    now: datetime,
    present: Taint | None,
) -> Taint | None:
    """The taint that these findings want, those of muted checks left out."""
    if spec is None:
        return None
    heard = [one for one in findings if mute_of(one.check, mutes, now) is None]
    return wanted_taint(heard, BY_ID, spec.taint, present)


def asked(
    findings: Sequence[Finding],
    standing: Sequence[Finding],
    spec: HiSparseNodePolicySpec,
    mutes: tuple[Mute, ...],
    now: datetime,
    present: Taint | None,
) -> Taint | None:
    """The taint that is asked for. standing has faults that cannot be read now: they keep a taint and bring none."""
    if (taint := wanted(findings, spec, mutes, now, present)) is not None:
        return taint
    kept = wanted(standing, spec, mutes, now, present)
    return kept if kept is not None and present is not None and kept.check == present.check else None


def allowed(
    taint: Taint | None, present: Taint | None, slot: SlotState, *, dry_run: bool, breaker_open: bool | None
) -> Taint | None:
    """The taint that the node may carry now; present is the one that it has from us."""
    if taint is None or dry_run:
        return None
    if slot is SlotState.HELD and (breaker_open is False or present is not None):
        return taint
    # whether we may keep it is not known while the Lease cannot be read; a lost slot is known
    return present if slot is SlotState.UNKNOWN else None
