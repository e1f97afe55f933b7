"""One node's agent: a reading comes, it is judged, it is told, and what may be done about it is decided.

    reading -> judge -> report, conditions, Events -> writer
                  └-> remedies (policy, budget of the pool, records) -> wish for the actuator, taint -> writer

The findings go out before anybody asks for leave to act: a Lease that cannot be had delays no news.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final, Protocol

import structlog
from pydantic import TypeAdapter, ValidationError

from hisparse.errors import Transient
from hisparse.nodes.catalogue import Verb
from hisparse.nodes.checks import BY_ID
from hisparse.nodes.findings import Finding
from hisparse.nodes.in_force import Policy
from hisparse.nodes.policy import DEFAULT_BREAKER_PERCENT, DEFAULT_BREAKER_WINDOW, HiSparseNodePolicySpec
from hisparse.nodes.report import ActionStatus, Inventory
from hisparse.units import parse_duration
from hisparse_agent import exchange
from hisparse_agent.cluster import NodeObject, View
from hisparse_agent.history import History
from hisparse_agent.judge.judge import judge
from hisparse_agent.judge.ledger import Ledger
from hisparse_agent.kube import Refused, back_off
from hisparse_agent.metrics import Metrics, Snapshot
from hisparse_agent.pool import PoolLease
from hisparse_agent.publish import conditions, events, report
from hisparse_agent.publish.conditions import Patient, Taint
from hisparse_agent.publish.events import Known, Notice
from hisparse_agent.publish.report import Report
from hisparse_agent.publish.writer import Publication, Writer
from hisparse_agent.readings import Absence, Missing, NodeReading, Nvml
from hisparse_agent.records import Phase, Records, Wanted, Wish
from hisparse_agent.remedies import slots, tainting
from hisparse_agent.remedies.allowance import SlotState, Where, taint_refusal
from hisparse_agent.remedies.ours import (
    UNMUTE_ANNOTATION,
    Mute,
    NodeMarks,
    in_force,
    lifted,
    mute_of,
    uncordoned,
    unmuting_command,
)
from hisparse_agent.remedies.plan import Circumstances, Outcome, Standing, after_restart, hold, step, why_gone

log: Final = structlog.get_logger(__name__)
UNSURE_S: Final = (slots.SILENT - slots.MARGIN - slots.RENEWED).total_seconds()
"""After a start it may be unknown for so long whether we hold a slot; then another node may have it."""
REPEAT: Final = timedelta(hours=1)
"""What is still refused, or still only said, is told again after this long."""
_COUNT_S: Final = 300.0
"""How often the nodes of a pool are counted."""
_MUTES: Final = TypeAdapter(tuple[Mute, ...])


class Source(Protocol):
    """Where readings come from: machine.Machine or replay.Player."""

    def readings(self) -> AsyncIterator[NodeReading]:
        """Readings, each when it is due."""


@dataclass(frozen=True)
class _Remedied:
    """What was decided about remedies in one poll."""

    outcome: Outcome
    taint: Taint | None
    notices: tuple[Notice, ...]


class Agent:
    """One node. writer and pool None: nothing is published (no cluster)."""

    def __init__(
        self,
        node: str,
        *,
        view: Callable[[], View],
        writer: Writer | None,
        pool: PoolLease | None,
        metrics: Metrics,
        state: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._node, self._view, self._writer, self._pool = node, view, writer, pool
        self._metrics, self._state, self._clock = metrics, state, clock
        self._history, self._ledger = History(), Ledger()
        self._known: Known = {}
        self._patient = Patient()
        self._inventory: Inventory | None = None
        self._actions: tuple[ActionStatus, ...] = ()
        self._standing: Standing | None = None
        self._mutes: tuple[Mute, ...] = ()
        self._marks: NodeMarks | None = None
        self._node_uid = ""
        self._unsure_since: float | None = None
        self._taint: Taint | None = None
        self._told: dict[tuple[str, ...], datetime] = {}
        self._mutes_told: frozenset[str] = frozenset()
        self._stuck = ""
        self._why_gone: dict[str, str] = {}
        self._size: tuple[float, str, int] | None = None
        self._seeded = writer is None
        self.polled_at: float | None = None
        """When the last poll ended, by the monotonic clock."""

    async def run(self, source: Source, each: Callable[[NodeReading], None] | None = None) -> None:
        """Poll until cancelled. each is called with every reading, before it is judged."""
        seed = asyncio.create_task(self._seed(), name="seed")
        try:
            async for reading in source.readings():
                begun = self._clock()
                if each is not None:
                    each(reading)
                await self.poll(reading)
                if seed.done():
                    seed.result()  # what it did not expect ends us, or nothing would ever be told
                self.polled_at = self._clock()
                self._metrics.polled(self.polled_at - begun)
        finally:
            seed.cancel()
            await asyncio.gather(seed, return_exceptions=True)

    async def poll(self, reading: NodeReading) -> None:
        """Judge one reading, tell of it, and decide what may be done."""
        view = self._view()
        records = self._records()
        policy = view.policy
        spec = policy.spec if policy else None
        judgement = judge(
            reading,
            self._history.readings,
            self._ledger,
            overrides={one.check: one for one in (spec.checks if spec else None) or ()},
            own_caps=_own_caps(records),
        )
        self._history.add(reading)
        self._ledger = judgement.ledger
        findings = tuple(judgement.findings)
        standing = events.standing(self._known, findings)
        notices = list(events.of_findings(self._known, findings)) if self._seeded else []
        if self._seeded:
            self._known = events.after(self._known, findings)
        self._patient = conditions.patient(self._patient, conditions.judged(standing, BY_ID))
        self._inventory = report.inventory_of(reading, self._inventory)
        about = Report(
            findings=findings,
            inventory=self._inventory,
            actions=self._actions,
            policy=policy.name if policy and spec else None,
            unread=_unread(reading),
            muted=self._muted(),
            refused=self._refused(policy, reading.at),
            stuck=report.stuck(records, reading.at),
        )
        notices += self._of_stuck(about.stuck)
        self._publish(about, self._taint, notices)
        done = await self._remedy(reading, findings, standing, view, records)
        self._taint = done.taint
        actions = self._action_statuses(reading, records, done.outcome)
        notices = [*events.of_actions(self._actions, actions, self._why_gone), *done.notices]
        self._actions = actions
        self._mutes = done.outcome.mutes
        self._publish(replace(about, actions=actions, muted=self._muted()), self._taint, notices)
        self._metrics.snapshot = Snapshot(
            reading=reading,
            findings=findings,
            records=records.records if records else (),
            pin_window=bool(judgement.pin_window),
            slot=self._pool is not None and self._pool.holds,
            breaker_open=self._breaker_open(),
            stuck=bool(about.stuck),
        )

    def _of_stuck(self, stuck: str) -> tuple[Notice, ...]:
        """Told when it begins."""
        if not self._seeded:
            return ()
        began, self._stuck = bool(stuck) and not self._stuck, stuck
        return (Notice("Warning", "PutBackFailed", stuck),) if began else ()

    def _publish(self, about: Report, taint: Taint | None, notices: Iterable[Notice]) -> None:
        if not self._seeded:
            return
        notices = tuple(notices)
        for one in notices:
            (log.warning if one.type == "Warning" else log.info)(one.message, reason=one.reason)
        if self._writer is None:
            return
        note = _MUTES.dump_json(self._mutes).decode() if self._mutes else ""
        self._writer.publish(Publication(about, self._patient.told, taint, note=note), notices)

    async def _seed(self) -> None:
        """Learn what the last run left, so that nothing is said or undone twice. Until then nothing is published."""
        failures = 0
        while self._writer is not None and not self._seeded:
            try:
                left = await self._writer.published()
            except (Transient, Refused) as error:
                log.warning("what was published before is not known yet", error=str(error))
                await asyncio.sleep(max(getattr(error, "retry_seconds", 0.0), back_off(failures)))
                failures += 1
            else:
                self._known, self._actions, self._taint = left.known, left.actions, left.taint
                told = conditions.told_before(left.conditions)
                self._patient = Patient(told.told, self._patient.blind) if not self._patient.told else self._patient
                self._mutes = _read_mutes(left.note)
                self._mutes_told = frozenset(one.check for one in self._mutes)
                self._seeded = True

    def _refused(self, policy: Policy | None, now: datetime) -> str:
        """Why the policy of the node cannot be used; empty where it can, or where there is none."""
        if policy is None or not policy.fault:
            return ""
        if self._is_new(("policy", policy.name, policy.fault), now):
            log.warning("policy not used", policy=policy.name, fault=policy.fault)
        return (
            f"nothing is done on this node, and thresholds are the catalogue's, because the HiSparseNodePolicy "
            f"{policy.name} cannot be used: {policy.fault}"
        )

    # --- remedies ----------------------------------------------------------------------------------------------------

    async def _remedy(
        self,
        reading: NodeReading,
        findings: tuple[Finding, ...],
        standing: tuple[Finding, ...],
        view: View,
        records: Records | None,
    ) -> _Remedied:
        if self._standing is None:
            self._standing = after_restart(records)
        now, policy = reading.at, view.policy
        spec = policy.spec if policy else None
        about = Circumstances(
            findings=findings,
            policy=spec,
            policy_name=policy.name if policy else "",
            checks=BY_ID,
            reading=reading,
            records=records,
            slot=SlotState.UNKNOWN,
            breaker_open=None,
            now=now,
            mutes=self._mutes,
            unmute=view.node.annotations.get(UNMUTE_ANNOTATION, "") if view.node else "",
            where=Where(self._node, self._pool.namespace) if self._pool is not None else Where(self._node),
        )
        if view.policies is None or view.node is None or not self._seeded:
            # not to know the policy is no reason to put back what it allowed, nor to begin anything
            return self._held_on(about)
        self._look_at_marks(view.node, now)
        self._mutes = lifted(self._mutes, about.unmute)
        about = replace(about, mutes=self._mutes)
        if policy is None or spec is None or self._pool is None:
            outcome = step(self._standing, about)
            return await self._done(outcome, None, about, asked=None)
        asked = tainting.asked(findings, standing, spec, self._mutes, now, self._taint)
        critical = tainting.is_critical(findings, spec)
        trouble = critical or bool(self._standing.actions) or self._taint is not None or self._pool.holds
        if trouble:
            await self._look_at_pool(policy, spec, now, critical=critical)
            # where nobody knows how many there are, the least budget
            most = slots.most_nodes(spec.budget.max_nodes if spec.budget else None, await self._pool_size(spec) or 1)
            slot = self._or_lost(self._pool.slot(most, now))
            about = replace(about, slot=slot, breaker_open=self._breaker_open())
            about = await self._with_slot(self._standing, about, asked, most)
        else:
            self._unsure_since = None
        outcome = step(self._standing, about)
        taint = tainting.allowed(asked, self._taint, about.slot, dry_run=spec.dry_run, breaker_open=about.breaker_open)
        return await self._done(outcome, taint, about, asked=asked)

    def _held_on(self, about: Circumstances) -> _Remedied:
        outcome = hold(self._standing or Standing(), replace(about, slot=self._or_lost(about.slot)))
        self._standing = outcome.standing
        self._wish(outcome.wish, about.now)
        return _Remedied(outcome, self._taint, ())

    def _or_lost(self, slot: SlotState) -> SlotState:
        """The slot of the last run is not ours for ever because nobody can look: lost, where it is unknown too long."""
        if slot is not SlotState.UNKNOWN:
            self._unsure_since = None
            return slot
        if self._unsure_since is None:
            self._unsure_since = self._clock()
        return SlotState.LOST if self._clock() - self._unsure_since >= UNSURE_S else slot

    async def _look_at_pool(
        self, policy: Policy, spec: HiSparseNodePolicySpec, now: datetime, *, critical: bool
    ) -> None:
        assert self._pool is not None  # noqa: S101 - the caller looked
        seen = await self._pool.look(policy.name)
        if seen.pool is None:
            return
        window = timedelta(
            seconds=parse_duration((spec.breaker.window if spec.breaker else None) or DEFAULT_BREAKER_WINDOW)
        )
        percent = (spec.breaker.percent if spec.breaker else None) or DEFAULT_BREAKER_PERCENT
        size = await self._pool_size(spec)

        def now_so(pool: slots.Pool) -> slots.Pool:
            return slots.brought_up_to_date(
                pool, self._node, critical=critical, size=size, percent=percent, window=window, now=now
            )

        if now_so(seen.pool) != seen.pool:
            await self._pool.change(now_so)

    async def _with_slot(self, before: Standing, about: Circumstances, asked: Taint | None, most: int) -> Circumstances:
        """Take a slot where one is needed and free; what is known after that."""
        assert self._pool is not None  # noqa: S101 - the caller looked
        assert about.policy is not None  # noqa: S101 - the caller looked
        if about.slot is not SlotState.FREE:
            return about
        wants = step(before, about).needs_slot or (
            asked is not None and not about.policy.dry_run and about.breaker_open is False
        )
        if not wants:
            return about
        node = self._node
        taken = await self._pool.change(lambda pool: slots.take(pool, node, most, about.now))
        return replace(about, slot=self._pool.slot(most, about.now) if taken else SlotState.FULL)

    async def _done(
        self, outcome: Outcome, taint: Taint | None, about: Circumstances, *, asked: Taint | None
    ) -> _Remedied:
        self._remember_why(outcome, about)
        self._standing = outcome.standing
        self._wish(outcome.wish, about.now)
        notices = (
            *self._tell(outcome, about),
            *self._tell_of_mutes(outcome.mutes),
            *self._tell_of_taint(asked, taint, outcome, about),
        )
        if (
            self._pool is not None
            and self._pool.holds
            and not outcome.wish
            and taint is None
            and self._taint is None
            and not (self._marks and self._marks.tainted_for)
            and not _holding(about.records)
        ):
            node = self._node
            if await self._pool.change(lambda pool: slots.release(pool, node)):
                self._pool.forget()
        return _Remedied(outcome, taint, notices)

    def _look_at_marks(self, node: NodeObject, now: datetime) -> None:
        """Mute what a person took off the node. Another Node of this name had nothing to take off."""
        own = conditions.own_taint(node.taints)
        marks = NodeMarks(own.check if own else None, node.unschedulable)
        if self._marks is not None and node.uid == self._node_uid:
            active = [one.check for one in self._standing.actions] if self._standing else []
            # while we do not want it, it was we who removed it
            ours = self._taint is None or self._marks.tainted_for != self._taint.check
            found = uncordoned(self._marks, marks, removed_by_us=ours, active=active, now=now)
            self._mutes = in_force((*self._mutes, *found), now)
        self._marks, self._node_uid = marks, node.uid

    async def _pool_size(self, spec: HiSparseNodePolicySpec) -> int | None:
        """Nodes under the policy; counted now and then, None where nobody knows."""
        assert self._pool is not None  # noqa: S101 - the caller looked
        selector = dict(spec.node_selector or {})
        key = str(sorted(selector.items()))
        if self._size is None or self._size[1] != key or self._clock() - self._size[0] > _COUNT_S:
            count = await self._pool.size(selector)
            if count is None:
                return self._size[2] if self._size is not None and self._size[1] == key else None
            self._size = (self._clock(), key, max(1, count))
        return self._size[2]

    def _breaker_open(self) -> bool | None:
        if self._pool is None or self._pool.seen.pool is None:
            return None
        return self._pool.seen.pool.opened is not None

    # --- what is told of it ------------------------------------------------------------------------------------------

    def _remember_why(self, outcome: Outcome, about: Circumstances) -> None:
        """Why actions left the wish; it is told when the actuator has put them back."""
        left = {one.id for one in outcome.wish}
        known = {one.action for one in (about.records.records if about.records else ())}
        gone = [one for one in (self._standing.actions if self._standing else ()) if one.id not in left]
        kept = {name: why for name, why in self._why_gone.items() if name in known and name not in left}
        self._why_gone = kept | {one.id: why_gone(one, about, outcome.mutes) for one in gone}

    def _tell(self, outcome: Outcome, about: Circumstances) -> Iterable[Notice]:
        for decision in outcome.decisions:
            if self._is_new(("decision", *decision.key), about.now):
                outcome_word = "allowed" if decision.refusal is None else decision.refusal.gate.value.lower()
                self._metrics.remedy(decision.action.verb.value, outcome_word, dry_run=decision.would)
                yield events.of_decision(decision, _subjects(about.reading))
        for note in outcome.notes:
            if self._is_new(("note", note.verb, note.check, note.message), about.now):
                yield Notice("Normal", "RemedyNote", f"{note.check}: {note.message}")

    def _tell_of_mutes(self, mutes: tuple[Mute, ...]) -> Iterable[Notice]:
        for mute in mutes:
            if mute.check not in self._mutes_told:
                yield Notice("Normal", "Muted", _mute_words(mute, self._node))
        self._mutes_told = frozenset(one.check for one in mutes)

    def _tell_of_taint(
        self, asked: Taint | None, taint: Taint | None, outcome: Outcome, about: Circumstances
    ) -> Iterable[Notice]:
        dry = about.policy.dry_run if about.policy else True
        wanted = tainting.wanted(about.findings, about.policy, outcome.mutes, about.now, self._taint)
        if wanted is not None and dry and self._is_new(("taint", wanted.check, wanted.effect), about.now):
            what = f"{conditions.TAINT_KEY}={wanted.check}:{wanted.effect}"
            yield Notice(
                "Normal", "WouldTaint", f"would taint the node with {what} (policy {about.policy_name}, dry run)"
            )
        if asked is not None and taint is None and not dry:
            refusal = taint_refusal(about.policy_name, about.slot, about.breaker_open, about.where)
            if refusal is not None and self._is_new(("no taint", asked.check, asked.effect, refusal.gate), about.now):
                what = f"{conditions.TAINT_KEY}={asked.check}:{asked.effect}"
                yield Notice("Normal", "TaintRefused", f"taint {what} refused: {refusal.message}")
        if taint != self._taint:
            if taint is not None:
                what = f"{conditions.TAINT_KEY}={taint.check}:{taint.effect}"
                yield Notice("Warning", "Tainted", f"the node gets the taint {what} (policy {about.policy_name})")
            elif self._taint is not None and not self._taken_off(self._taint, outcome.mutes, about.now):
                yield Notice("Normal", "TaintRemoved", f"the taint for {self._taint.check} goes from the node")

    def _taken_off(self, taint: Taint, mutes: tuple[Mute, ...], now: datetime) -> bool:
        """Whether a person took the taint off before us; then its check is muted, and that is told."""
        return mute_of(taint.check, mutes, now) is not None and not (self._marks and self._marks.tainted_for)

    def _muted(self) -> tuple[str, ...]:
        return tuple(_mute_words(one, self._node) for one in self._mutes)

    def _is_new(self, key: tuple[str, ...], now: datetime) -> bool:
        last = self._told.get(key)
        if last is not None and timedelta() <= now - last < REPEAT:
            return False
        self._told = {one: at for one, at in self._told.items() if timedelta() <= now - at < REPEAT} | {key: now}
        return True

    def _action_statuses(
        self, reading: NodeReading, records: Records | None, outcome: Outcome
    ) -> tuple[ActionStatus, ...]:
        found = records.records if records else ()
        return report.action_statuses(found, outcome.wish, _subjects(reading), reading.at)

    # --- the actuator ------------------------------------------------------------------------------------------------

    def _records(self) -> Records | None:
        if self._state is None:
            return None
        found = exchange.read_records(self._state, own=False)
        if found.fault:
            log.warning("records not readable", fault=found.fault)
        return found.content

    def _wish(self, actions: tuple[Wanted, ...], now: datetime) -> None:
        """Write the wish at every poll: an actuator that hears nothing puts everything back."""
        if self._state is None or not self._state.is_dir():
            return
        boot_id = self._history.readings[-1].host.boot_id if self._history.readings else ""
        try:
            exchange.write_wish(self._state, Wish(now, boot_id if isinstance(boot_id, str) else "", actions))
        except OSError as error:
            log.warning("wish not written", error=str(error), folder=str(self._state))


def _own_caps(records: Records | None) -> dict[str, int]:
    """Power limits in milliwatts that are ours, by the GPU's UUID."""
    return {
        one.target: int(one.new)
        for one in (records.records if records else ())
        if one.verb is Verb.POWER_CAP and one.phase.holds and one.new.isdigit()
    }


def _holding(records: Records | None) -> bool:
    return any(one.phase.holds and one.phase is not Phase.REVERT_FAILED for one in (records.records if records else ()))


def _unread(reading: NodeReading) -> tuple[str, ...]:
    """Sources that could not be read, with the reason; figures in a reason would make the report change."""
    sources = (
        ("NVML", reading.nvml),
        ("memory", reading.memory.total),
        ("pods", reading.pods),
        ("kernel log", reading.xids),
    )
    return tuple(
        f"{name}: {value.why}"
        for name, value in sources
        if isinstance(value, Missing) and value.absence is Absence.UNKNOWN
    )


def _mute_words(mute: Mute, node: str) -> str:
    undo = unmuting_command(node, mute.check)
    return f"{mute.check} asks for nothing until {report.stamp(mute.until)}, since {mute.why}; to undo: {undo}"


def _subjects(reading: NodeReading) -> dict[str, str]:
    """What people call the GPUs, by UUID."""
    gpus = reading.nvml.gpus if isinstance(reading.nvml, Nvml) else ()
    return {gpu.uuid: gpu.subject for gpu in gpus if gpu.uuid}


def _read_mutes(note: str) -> tuple[Mute, ...]:
    try:
        return tuple(one for one in _MUTES.validate_json(note) if one.until.tzinfo is not None) if note else ()
    except ValidationError:
        log.warning("the note of the last run cannot be read", note=note[:200])
        return ()
