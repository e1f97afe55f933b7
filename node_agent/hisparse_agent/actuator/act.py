"""Record, act, read back, put back. The order of things is what makes a kill at any moment harmless.

    Recorded ──act, read back──> InForce ──no longer wanted, TTL, silence, stop──> put back ──> Reverted
        │                           │                                                │
        │ not done                  └── somebody else's value ──> Foreign            └── failed ──> RevertFailed, again
        └──> Refused

A record is on the disk before the host is touched. So whatever the host carries of ours has a record, and the next
start finds out by looking whose the present value is (`ours.whose`). An action is taken up once: when its records
have ended, the same wish does nothing more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import groupby
from typing import Final

from hisparse.nodes.catalogue import Verb
from hisparse_agent.actuator import bounds
from hisparse_agent.actuator.bounds import Setting
from hisparse_agent.actuator.hosts import Host, Step
from hisparse_agent.records import (
    NO_LONGER_WANTED,
    Change,
    Phase,
    Record,
    Records,
    Wanted,
    Wish,
    covers,
    is_over,
    spelled,
)
from hisparse_agent.remedies.ours import Whose, whose

SILENT: Final = timedelta(minutes=2)
"""A wish older than this is none. The agent writes one at least every 15 s; eight missed ones are no accident."""
WATCH_S: Final = 60
"""How often a setting in force is looked at. Looking at cards starts a process, so that it is not done each poll."""
HEARTBEAT: Final = timedelta(minutes=1)
"""Records are written at least this often, so that the agent sees that we run."""
FIRST_RETRY_S: Final = 4
LAST_RETRY_S: Final = 300
"""What failed is tried again after twice the time, up to this: every try at a card that hangs costs a kernel error."""
REMEMBERED: Final = timedelta(hours=48)
"""Ended records are kept this long: the rate limit counts a day, and a mute lasts one."""
LEAST_REMEMBERED: Final = 20
MOST_RECORDS: Final = 4096
"""With more than this there is no new action: what cannot be written down is not done."""
_MOST_TARGET: Final = 128
_MOST_MESSAGE: Final = 512

Save = Callable[[Records], None]
"""Puts the records on the disk. Raises OSError."""
Tell = Callable[[Record], None]
"""Hears of every record whose phase or message has changed."""


class Actuator:
    """The records, and the host that they are of. Time is an argument: now is the wall clock, tick only ever grows."""

    def __init__(self, host: Host, save: Save, tell: Tell, *, idle: str = "") -> None:
        """Say in idle why nothing new is done, whatever is wished; what is in force is put back all the same."""
        self._host = host
        self._idle = idle
        self._save_records = save
        self._tell = tell
        self._boot_id = host.boot_id()
        self._records: dict[tuple[str, str], Record] = {}
        self._saved: tuple[Record, ...] | None = None
        self._saved_at: datetime | None = None
        self._retries: dict[tuple[str, str], tuple[float, float]] = {}
        self._watched: float | None = None

    @property
    def records(self) -> tuple[Record, ...]:
        """All records: those that hold first, then the ended ones, the newest first."""
        held = [record for record in self._records.values() if record.phase.holds]
        ended = [record for record in self._records.values() if not record.phase.holds]
        return (*held, *sorted(ended, key=lambda record: record.ended or record.since, reverse=True))

    @property
    def holding(self) -> tuple[Record, ...]:
        """Records of what the host may still carry."""
        return tuple(record for record in self._records.values() if record.phase.holds)

    def start(self, before: Records | None, now: datetime, tick: float) -> None:
        """Take over what an earlier run wrote down, and find out how far it came. Raises OSError."""
        self._records = {(record.action, record.target): record for record in (before.records if before else ())}
        self._settle(self.holding, now, tick)
        self._save(now)

    def poll(self, wish: Wish | None, now: datetime, tick: float) -> None:
        """Make the host what the wish says.

        Raises OSError where the records cannot be written; then nothing new is done.
        """
        wanted, silence = heard(wish, self._boot_id, now)
        self._settle([one for one in self.holding if self._is_unsettled(one) and self._due(one, tick)], now, tick)
        if self._watched is None or tick - self._watched >= WATCH_S:
            self._watch(now)
            self._watched = tick
        for why, records in self._unwanted(wanted, silence, now, tick):
            self._put_back(records, why, now, tick)
        self._save(now)
        for action in wanted:
            self._take_up(action, now, tick)

    def stop(self, now: datetime, tick: float) -> None:
        """Put everything back, whether or not it failed before; what is left is in `holding`. Raises OSError."""
        self._put_back(self.holding, "the actuator stops", now, tick)
        self._save(now)

    # --- finding out -------------------------------------------------------------------------------------------------

    def _settle(self, records: Sequence[Record], now: datetime, tick: float) -> None:
        """Find out what became of a change that was cut off."""
        for record, seen in self._look(records):
            if isinstance(seen, str):
                self._failed(record, record.phase, seen, tick)
                continue
            answer = whose(record, seen.present, self._boot_id)
            if answer is Whose.OURS:
                if record.phase is not Phase.REVERT_FAILED:
                    self._set(record, Phase.IN_FORCE)
            elif answer is Whose.FOREIGN:
                self._foreign(record, seen, now)
            elif record.boot_id != self._boot_id:
                self._end(record, Phase.REVERTED, "it is gone with the reboot", now)
            elif record.phase is Phase.RECORDED:
                self._end(record, Phase.REVERTED, "it was cut off before it was done", now)
            else:
                self._end(record, Phase.REVERTED, "it had been put back when the actuator started", now)

    def _is_unsettled(self, record: Record) -> bool:
        return record.phase is Phase.RECORDED or record.boot_id != self._boot_id

    def _watch(self, now: datetime) -> None:
        """See whether what is in force is still ours. Back at the old value while we run is a person's doing, too."""
        for record, seen in self._look([one for one in self.holding if one.phase is Phase.IN_FORCE]):
            if isinstance(seen, Setting) and whose(record, seen.present, self._boot_id) is not Whose.OURS:
                self._foreign(record, seen, now)

    def _look(self, records: Sequence[Record]) -> Iterator[tuple[Record, Setting | str]]:
        for verb, of_verb in _by_verb(records):
            sound = [record for record in of_verb if bounds.is_recorded_target(verb, record.target)]
            seen = self._host.look(verb, [record.target for record in sound]) if sound else {}
            for record in of_verb:
                yield record, seen.get(record.target, f"{record.target} is nothing that {verb} changes")

    # --- putting back ------------------------------------------------------------------------------------------------

    def _unwanted(
        self, wanted: Sequence[Wanted], silence: str, now: datetime, tick: float
    ) -> list[tuple[str, list[Record]]]:
        found: dict[str, list[Record]] = {}
        for record in self.holding:
            why = _why_not(record, wanted, silence, now)
            if why and self._due(record, tick):
                found.setdefault(why, []).append(record)
        return list(found.items())

    def _put_back(self, records: Sequence[Record], why: str, now: datetime, tick: float) -> None:
        ours: list[Record] = []
        for record, seen in self._look(records):
            if isinstance(seen, str):
                self._failed(record, Phase.REVERT_FAILED, seen, tick)
                continue
            answer = whose(record, seen.present, self._boot_id)
            if answer is Whose.EARLIER:
                self._end(record, Phase.REVERTED, why, now)
            elif answer is Whose.FOREIGN:
                self._foreign(record, seen, now)
            elif not bounds.may_restore(record.verb, seen, record.old):
                self._failed(record, Phase.REVERT_FAILED, f"{record.old} can never have been its value", tick)
            else:
                ours.append(record)
        for verb, of_verb in _by_verb(ours):
            faults = self._host.change(verb, [Step(record.target, record.new, record.old) for record in of_verb])
            for record, seen in self._look(of_verb):
                present = seen.present if isinstance(seen, Setting) else None
                if present == record.old:
                    self._end(record, Phase.REVERTED, why, now)
                elif isinstance(seen, Setting) and present != record.new:
                    self._foreign(record, seen, now)
                else:
                    fault = faults.get(record.target) or (seen if isinstance(seen, str) else "the host kept our value")
                    self._failed(record, Phase.REVERT_FAILED, fault, tick)

    # --- acting ------------------------------------------------------------------------------------------------------

    def _take_up(self, action: Wanted, now: datetime, tick: float) -> None:
        """Do what an action asks for, unless it has been taken up before or is over."""
        if any(known == action.id for known, _ in self._records) or _is_over(action.since, action.ttl_seconds, now):
            return
        if len(self._records) >= MOST_RECORDS:
            return
        fresh = self._considered(action, now)
        if not fresh or len(self._records) + len(fresh) > MOST_RECORDS:
            return
        for record in fresh:
            self._records[record.action, record.target] = record
        try:
            self._save(now)
        except OSError:
            # not written down, so not done; the next poll tries again
            for record in fresh:
                del self._records[record.action, record.target]
            raise
        for record in fresh:
            self._tell(record)
        self._act([record for record in fresh if record.phase is Phase.RECORDED], now, tick)
        self._save(now)

    def _considered(self, action: Wanted, now: datetime) -> list[Record]:
        """A record for each setting of an action: Recorded where it may be changed, else Refused."""
        targets = {
            change.target: self._host.targets(action.verb, change.target)
            for change in action.changes
            if bounds.is_target(action.verb, change.target)
        }
        # one look for all of them: looking at cards starts a process, and whoever waits for us to stop waits for it
        every = tuple(dict.fromkeys(target for of_change in targets.values() for target in of_change))
        seen = self._host.look(action.verb, every) if every else {}
        found: list[Record] = []
        for change in action.changes:
            if change.target not in targets:
                found.append(self._refused(action, change, f"it is nothing that {action.verb} changes", now))
                continue
            records = [self._judged(action, change, target, seen[target], now) for target in targets[change.target]]
            if action.verb is Verb.CPUFREQ:
                # of hundreds of CPUs only those are written down that are not as wanted
                records = [record for record in records if record.old != record.new]
            found += records or [self._refused(action, change, "nothing here is left to change", now)]
        first = {record.target: record for record in reversed(found)}
        return list(first.values())[::-1]

    def _judged(self, action: Wanted, change: Change, target: str, seen: Setting | str, now: datetime) -> Record:
        if isinstance(seen, str):
            return self._refused(action, replace(change, target=target), seen, now)
        record = self._record(action, target, seen.present, change.new, now)
        why = bounds.refusal(action.verb, seen, change.new)
        if why is None and not bounds.may_restore(action.verb, seen, seen.present):
            why = f"{target} is {seen.present}, and that could not be put back"
        if any(held.target == target for held in self.holding):
            why = "another action holds it"
        if self._idle:
            why = self._idle
        return record if why is None else _ended(record, Phase.REFUSED, why, now)

    def _act(self, records: Sequence[Record], now: datetime, tick: float) -> None:
        for verb, of_verb in _by_verb(records):
            faults = self._host.change(verb, [Step(record.target, record.old, record.new) for record in of_verb])
            for record, seen in self._look(of_verb):
                fault = faults.get(record.target, "")
                if isinstance(seen, str):
                    self._failed(record, Phase.RECORDED, fault or seen, tick)
                elif seen.present == record.new:
                    self._set(record, Phase.IN_FORCE)
                elif seen.present == record.old or fault:
                    self._end(record, Phase.REFUSED, fault or "the host kept its value", now)
                else:
                    self._undo_rounded(record, seen, now, tick)

    def _undo_rounded(self, record: Record, seen: Setting, now: datetime, tick: float) -> None:
        """The host made another value of ours: not what was allowed, so back to the old one."""
        self._host.change(record.verb, [Step(record.target, seen.present, record.old)])
        message = f"the host made {spelled(record.verb, seen.present)} of it"
        for again, now_seen in self._look([record]):
            if isinstance(now_seen, Setting) and now_seen.present == record.old:
                self._end(again, Phase.REFUSED, message, now)
            else:
                # what the host has is still of our making, and no stranger's
                self._failed(replace(again, new=seen.present), Phase.REVERT_FAILED, message, tick)

    # --- records -----------------------------------------------------------------------------------------------------

    def _record(self, action: Wanted, target: str, old: str, new: str, now: datetime) -> Record:
        return Record(
            action=action.id,
            verb=action.verb,
            target=target,
            old=old,
            new=new,
            reason=action.reason,
            check=action.check,
            policy=action.policy,
            since=now,
            ttl_seconds=max(0, min(action.ttl_seconds, bounds.LONGEST_TTL_SECONDS)),
            boot_id=self._boot_id,
            phase=Phase.RECORDED,
        )

    def _refused(self, action: Wanted, change: Change, why: str, now: datetime) -> Record:
        record = self._record(action, change.target[:_MOST_TARGET], "", change.new[:_MOST_TARGET], now)
        return _ended(record, Phase.REFUSED, why, now)

    def _set(self, record: Record, phase: Phase, message: str = "", ended: datetime | None = None) -> None:
        fresh = replace(record, phase=phase, message=message[:_MOST_MESSAGE], ended=ended)
        if fresh == record:
            return
        self._records[record.action, record.target] = fresh
        self._tell(fresh)

    def _end(self, record: Record, phase: Phase, message: str, now: datetime) -> None:
        self._retries.pop((record.action, record.target), None)
        self._set(record, phase, message, now)

    def _foreign(self, record: Record, seen: Setting, now: datetime) -> None:
        where = "after a reboot, so by the node's own configuration" if record.boot_id != self._boot_id else "since"
        self._end(
            record,
            Phase.FOREIGN,
            f"somebody has set it to {spelled(record.verb, seen.present)} {where}: left alone",
            now,
        )

    def _failed(self, record: Record, phase: Phase, message: str, tick: float) -> None:
        key = (record.action, record.target)
        _, delay = self._retries.get(key, (0.0, FIRST_RETRY_S / 2))
        delay = min(2 * delay, LAST_RETRY_S)
        self._retries[key] = (tick + delay, delay)
        self._set(record, phase, message)

    def _due(self, record: Record, tick: float) -> bool:
        return tick >= self._retries.get((record.action, record.target), (tick, 0.0))[0]

    def _save(self, now: datetime) -> None:
        self._forget(now)
        records = self.records
        if records == self._saved and self._saved_at is not None and abs(now - self._saved_at) < HEARTBEAT:
            return
        self._save_records(Records(now, records))
        self._saved, self._saved_at = records, now

    def _forget(self, now: datetime) -> None:
        ended = [record for record in self.records if not record.phase.holds]
        for record in ended[LEAST_REMEMBERED:]:
            if record.ended is None or now - record.ended >= REMEMBERED:
                del self._records[record.action, record.target]


def _ended(record: Record, phase: Phase, message: str, now: datetime) -> Record:
    return replace(record, phase=phase, message=message[:_MOST_MESSAGE], ended=now)


def heard(wish: Wish | None, boot_id: str, now: datetime) -> tuple[tuple[Wanted, ...], str]:
    """The actions that are wanted, or none and why."""
    if wish is None:
        return (), "there is no wish of the agent"
    if wish.boot_id != boot_id:
        return (), "the wish of the agent is of another boot"
    if abs(now - wish.written) > SILENT:
        return (), "the agent has been silent for more than 2 minutes"
    return wish.actions, ""


def _why_not(record: Record, wanted: Iterable[Wanted], silence: str, now: datetime) -> str:
    """Why a change is to be put back; empty where it stays."""
    if record.phase is Phase.REVERT_FAILED:
        return "it could be put back at last"  # once it was to go, it goes
    if silence:
        return silence
    if _is_over(record.since, record.ttl_seconds, now):
        return "its time is over"
    still = any(
        action.id == record.action and covers(change.target, record.target) and change.new == record.new
        for action in wanted
        for change in action.changes
    )
    return "" if still else NO_LONGER_WANTED


def _is_over(since: datetime, ttl_seconds: int, now: datetime) -> bool:
    # clamped, because a wish may hold any number and timedelta does not take every one
    return is_over(since, max(0, min(ttl_seconds, bounds.LONGEST_TTL_SECONDS)), now)


def _by_verb(records: Iterable[Record]) -> list[tuple[Verb, list[Record]]]:
    ordered = sorted(records, key=lambda record: record.verb)
    return [(verb, list(of_verb)) for verb, of_verb in groupby(ordered, key=lambda record: record.verb)]
