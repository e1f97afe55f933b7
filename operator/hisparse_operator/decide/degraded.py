"""Condition Degraded: what the node agents found on the nodes of our pods, and what it costs. It moves nothing.

    a fault on a node of a pod -> True; else a node that nobody reports of -> Unknown; else False
    no HiSparseNode kind in the cluster -> no condition

A pod counts while it starts or serves; one that ends is no longer what people are served from. A finding about
another pod concerns that pod alone, and one of a check that costs nothing by itself (the agent's own sources) nobody.
Every other finding concerns each pod of the node, one about a single GPU too: the API does not say which GPUs a pod
holds.

No message has an age in it, only the time of the last report: a status that says the same is not written again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from pydantic import ValidationError

from hisparse.nodes import checks
from hisparse.nodes.findings import POD_SUBJECT, State, pod_subject
from hisparse.nodes.report import STALE_SECONDS, FindingStatus
from hisparse.units import format_bytes, format_duration, shortened
from hisparse_operator.decide.conditions import Condition, Status, share, timestamp
from hisparse_operator.decide.identity import name_of
from hisparse_operator.decide.pods import EnginePod
from hisparse_operator.decide.reasons import ConditionType, Reason
from hisparse_operator.world import Object, Sight

_STALE: Final = timedelta(seconds=STALE_SECONDS)
_NAMED: Final = 3
_TEXT_LIMIT: Final = 160
_COUNTED: Final = ("", "count", "ratio")
_FAULTS: Final = tuple(state.value for state in State if state.is_fault)


@dataclass(frozen=True)
class Report:
    """What an agent said of its node. observed is None where it has not said anything that we can use; flaw says why.

    unread: checks that it could not do this time. They are no faults, and no word for the node either.
    """

    node: str
    observed: datetime | None = None
    faults: tuple[FindingStatus, ...] = ()
    unread: int = 0
    flaw: str = "has no report"

    def fresh(self, now: datetime) -> bool:
        """Whether it speaks of now. One from a time that is yet to come cannot be judged either."""
        return self.observed is not None and abs(now - self.observed) <= _STALE


@dataclass(frozen=True)
class Reports:
    """The HiSparseNode objects by node, as they are to be read at a moment."""

    sight: Sight
    by_node: Mapping[str, Object]
    now: datetime

    @classmethod
    def of(cls, sight: Sight, reports: Iterable[Object], now: datetime) -> Reports:
        """Sorts HiSparseNode objects; each is read when somebody asks."""
        return cls(sight, {name_of(one): one for one in reports}, now)

    def on(self, node: str) -> Report:
        """That of one node."""
        found = self.by_node.get(node)
        return Report(node) if found is None else read(found)


def read(report: Object) -> Report:
    """One HiSparseNode. Never raises: what cannot be read is not known."""
    node, status = name_of(report), report.get("status") or {}
    if not status.get("observedAt"):
        return Report(node)
    findings = status.get("findings") or ()
    try:
        observed = datetime.fromisoformat(str(status["observedAt"]))
        faults = tuple(FindingStatus.model_validate(one) for one in findings if one.get("state") in _FAULTS)
    except (ValidationError, ValueError):
        observed, faults = None, ()
    if observed is None or observed.tzinfo is None:
        return Report(node, flaw="has a report that this operator cannot read (use an agent of the same release)")
    return Report(node, observed, faults, sum(one.get("state") == State.UNKNOWN.value for one in findings))


def is_news(old: Object | None, new: Object | None, now: datetime) -> bool:
    """Whether a change of a report can change a status: another fault, or a node that was silent speaks.

    Values move all the time; they are brought up to date when something else asks for a pass.
    """
    if old is None or new is None:
        return True
    before, after = read(old), read(new)
    return _shape(before) != _shape(after) or not before.fresh(now)


def _shape(report: Report) -> tuple[bool, frozenset[tuple[str, str, State]]]:
    return report.observed is None, frozenset((one.check, one.subject, one.state) for one in report.faults)


def next_look(reports: Reports, pods: Iterable[EnginePod]) -> datetime | None:
    """When the first report of a node of these pods grows too old; None where none can."""
    nodes = {pod.node for pod in pods if pod.node}
    seen = [reports.on(node) for node in nodes] if reports.sight is Sight.SEEN else []
    moments = (one.observed for one in seen if one.observed is not None and one.fresh(reports.now))
    first = min(moments, default=None)
    # at this very moment it is not too old yet
    return None if first is None else first + _STALE + timedelta(seconds=1)


def degraded(reports: Reports, pods: Sequence[EnginePod]) -> Condition | None:
    """The condition for pods that start or serve; None where the cluster has no reports."""
    kind = ConditionType.DEGRADED
    if reports.sight is Sight.ABSENT:
        return None
    if reports.sight is Sight.HIDDEN:
        return Condition(
            kind,
            Status.UNKNOWN,
            Reason.NODE_REPORTS_HIDDEN,
            "the operator may not read HiSparseNode objects (it serves single namespaces, or lacks the rights of the "
            "ClusterRole hisparse-operator-cluster), so nothing is known of the nodes",
        )
    placed = [pod for pod in pods if pod.node]
    if not placed:
        return Condition(kind, Status.FALSE, Reason.NO_PODS_ON_NODES, "no pod has a node")
    nodes = sorted({pod.node for pod in placed})
    faults = {node: _concerning(reports, node, placed) for node in nodes}
    silent = [report for node in nodes if not (report := reports.on(node)).fresh(reports.now)]
    if any(faults.values()):
        return _faulty(faults, silent, placed, reports.now)
    if silent:
        known = any(report.observed is not None for report in silent)
        reason = Reason.NODE_REPORT_STALE if known else Reason.NODE_NOT_REPORTED
        count = sum(pod.node in {report.node for report in silent} for pod in placed)
        told = share(
            count, len(placed), "is on a node whose state is not known", "are on nodes whose state is not known"
        )
        return Condition(kind, Status.UNKNOWN, reason, f"{told}: {_silence(silent, reports.now)}")
    told = share(
        len(placed),
        len(placed),
        "is on a node without a fault that concerns it",
        "are on nodes without a fault that concerns them",
    )
    return Condition(kind, Status.FALSE, Reason.NODES_HEALTHY, told + _unread([reports.on(node) for node in nodes]))


def _concerning(reports: Reports, node: str, pods: Iterable[EnginePod]) -> tuple[FindingStatus, ...]:
    """The faults of a node that concern its pods of ours, the worst first."""
    report = reports.on(node)
    if not report.fresh(reports.now):
        return ()
    ours = {pod_subject(pod.raw["metadata"].get("namespace", ""), pod.name) for pod in pods if pod.node == node}
    found = [
        one
        for one in report.faults
        if (not one.subject.startswith(POD_SUBJECT) or one.subject in ours) and _cost(one.check) != ""
    ]
    return tuple(sorted(found, key=lambda one: (one.state is not State.CRITICAL, one.check, one.subject)))


def _faulty(
    faults: Mapping[str, Sequence[FindingStatus]], silent: Sequence[Report], pods: Sequence[EnginePod], now: datetime
) -> Condition:
    critical = {node for node, found in faults.items() if any(one.state is State.CRITICAL for one in found)}
    bad = sorted((node for node, found in faults.items() if found), key=lambda node: (node not in critical, node))
    priced: set[str] = set()
    parts = [_of_node(node, faults[node], priced) for node in bad[:_NAMED]]
    if (more := len(bad) - _NAMED) > 0:
        parts.append(f"and {more} more {'node' if more == 1 else 'nodes'}")
    if silent:
        parts.append(f"beside them, {_silence(silent, now)}")
    told = share(
        sum(pod.node in bad for pod in pods), len(pods), "is on a node with a fault", "are on nodes with a fault"
    )
    parts.append(f"kubectl describe hsn {bad[0]} says what to do")
    reason = Reason.NODE_CRITICAL if critical else Reason.NODE_WARNING
    return Condition(ConditionType.DEGRADED, Status.TRUE, reason, f"{told}: {'; '.join(parts)}")


def _of_node(node: str, faults: Sequence[FindingStatus], priced: set[str]) -> str:
    more = len(faults) - _NAMED
    told = ", ".join(_fault(one, priced) for one in faults[:_NAMED]) + (f" and {more} more" if more > 0 else "")
    return f"node {node}: {told}"


def _fault(fault: FindingStatus, priced: set[str]) -> str:
    """One fault; what a check costs is said once in a message."""
    values = [_value(fault.value, fault.unit)] if fault.value is not None else []
    values += [f"limit {_value(fault.limit, fault.unit)}"] if fault.limit is not None else []
    told = f"{shortened(fault.check)} of {shortened(fault.subject, _TEXT_LIMIT)} is {fault.state.value}"
    told += f" ({', '.join(values)})" if values else ""
    if fault.check in priced:
        return told
    priced.add(fault.check)
    cost = _cost(fault.check)
    # without one it is a check of a later release: the agent's own words
    return f"{told}: {shortened(fault.message.rstrip('.'), _TEXT_LIMIT) if cost is None else cost}"


def _cost(name: str) -> str | None:
    """What a fault of that check costs, to be read within a sentence; None for a check that we do not know."""
    if (check := checks.BY_ID.get(name)) is None:
        return None
    cost = check.cost.rstrip(".")
    # a word of ordinary letters, not one like NCCL or KV
    return f"{cost[:1].lower()}{cost[1:]}" if cost[1:2].islower() else cost


def _value(text: str, unit: str | None) -> str:
    text = shortened(text)
    if unit == "bytes" and text.isdigit():
        return format_bytes(int(text))
    return text if (unit or "") in _COUNTED else f"{text} {shortened(unit or '')}"


def _silence(silent: Sequence[Report], now: datetime) -> str:
    """Of which nodes nothing is known, since when, and the next step."""
    parts = [f"node {report.node} {_why_silent(report, now)}" for report in silent[:_NAMED]]
    if (more := len(silent) - _NAMED) > 0:
        parts.append(f"and {more} more")
    where = silent[0].node
    return (
        f"{'; '.join(parts)}; see whether its hisparse-agent runs: "
        f"kubectl get pods -A --field-selector spec.nodeName={where}"
    )


def _why_silent(report: Report, now: datetime) -> str:
    if report.observed is None:
        return report.flaw
    said = timestamp(report.observed)
    if report.observed > now:
        return f"reports a time that is yet to come ({said}): set its clock"
    return f"reported last at {said}, more than {format_duration(STALE_SECONDS)} ago"


def _unread(reports: Sequence[Report]) -> str:
    """Checks that could not be done are no faults; that they were not done is said."""
    count = sum(report.unread for report in reports)
    where = next((report.node for report in reports if report.unread), None)
    if where is None:
        return ""
    return f"; {count} {'check' if count == 1 else 'checks'} could not be done (kubectl describe hsn {where})"
