"""What holds whatever happens: findings come and go, people change things, programs are killed, nodes reboot.

The pure core runs against a node in memory: `plan.step` is the agent, `act.Actuator` the actuator, with a kill possible
at every single touch of the host and of the disk.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any, Final

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from remedy_shapes import BY_ID, CAP, NOW, SWAPPINESS, UUIDS, finding, gpu, hot, policy, reading

from hisparse.nodes.catalogue import Verb
from hisparse.nodes.findings import State
from hisparse.nodes.policy import HiSparseNodePolicySpec
from hisparse.units import parse_duration
from hisparse_agent.actuator import bounds
from hisparse_agent.actuator.act import SILENT, Actuator
from hisparse_agent.actuator.bounds import PowerLimits, Setting
from hisparse_agent.actuator.hosts import Step
from hisparse_agent.readings import NodeReading
from hisparse_agent.records import Change, Phase, Records, Wanted, Wish
from hisparse_agent.remedies import slots
from hisparse_agent.remedies.allowance import Gate, SlotState
from hisparse_agent.remedies.ours import Mute
from hisparse_agent.remedies.plan import Circumstances, Outcome, Standing, after_restart, step

SWAP: Final = "vm.swappiness"
CARDS: Final = UUIDS[:3]
H200: Final = PowerLimits(700_000, 200_000, 700_000)
FRESH: Final[Mapping[str, str]] = MappingProxyType(
    {SWAP: "60", CARDS[0]: "700000", CARDS[1]: "650000", CARDS[2]: "700000"}
)
CPUS: Final = ("cpu0/scaling_governor", "cpu1/scaling_governor")
OFFERED: Final = ("performance", "powersave", "schedutil")


class Killed(BaseException):
    """SIGKILL: nothing in the program may catch it."""


class Disk:
    """What outlives a program."""

    def __init__(self) -> None:
        self.records: Records | None = None
        self.wish: Wish | None = None


class Node:
    """A host in memory. It knows who wrote each value last, which no host does."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self.values = dict(values)
        self.boot = 1
        self.ours: dict[str, str] = {}
        """By target, the value that the actuator wrote last, until it is put back or somebody else's."""
        self.before: dict[str, str] = {}
        self.dark: set[str] = set()
        """Targets that do not answer."""
        self.writes = 0
        self.fuse: int | None = None
        """So many touches more, and whoever touches is killed."""

    def boot_id(self) -> str:
        return f"boot-{self.boot}"

    def burn(self) -> None:
        if self.fuse is not None:
            self.fuse -= 1
            if self.fuse < 0:
                self.fuse = None
                raise Killed

    def targets(self, verb: Verb, target: str) -> tuple[str, ...]:
        return CPUS if verb is Verb.CPUFREQ and target == "cpu/scaling_governor" else (target,)

    def look(self, verb: Verb, targets: Sequence[str]) -> dict[str, Setting | str]:
        self.burn()
        return {target: self._setting(verb, target) for target in targets}

    def _setting(self, verb: Verb, target: str) -> Setting | str:
        if target in self.dark or target not in self.values:
            return f"{target} does not answer"
        return Setting(
            target,
            self.values[target],
            power=H200 if verb is Verb.POWER_CAP else None,
            offered=OFFERED if verb is Verb.CPUFREQ else (),
        )

    def change(self, verb: Verb, steps: Sequence[Step]) -> dict[str, str]:
        faults = {}
        for one in steps:
            self.burn()
            if one.target in self.dark or self.values.get(one.target) != one.expected:
                faults[one.target] = "it is not as expected"
                continue
            self._write(verb, one)
        return faults

    def _write(self, verb: Verb, one: Step) -> None:
        self.writes += 1
        if self.ours.get(one.target) == one.expected:
            assert one.new == self.before[one.target], "what is put back is what was there"
            del self.ours[one.target]
        else:
            setting = self._setting(verb, one.target)
            assert isinstance(setting, Setting)
            assert bounds.refusal(verb, setting, one.new) is None, "and what is set is within the bounds"
            assert one.target not in self.ours, "and never on top of our own"
            self.ours[one.target], self.before[one.target] = one.new, one.expected
        self.values[one.target] = one.new

    def person(self, target: str, value: str) -> None:
        self.values[target] = value
        if self.ours.get(target) != value:
            self.ours.pop(target, None)

    def reboot(self, values: Mapping[str, str]) -> None:
        self.boot += 1
        self.values = dict(values)
        self.ours.clear()


# what leads to actions comes more often than what prevents them, or most stories would be quiet ones
STATES = st.sampled_from([State.CRITICAL, State.CRITICAL, State.CRITICAL, *State])
SLOTS = st.sampled_from([SlotState.HELD, SlotState.HELD, SlotState.FREE, *SlotState])
SETTINGS = st.sampled_from(sorted(FRESH))
VALUES = st.integers(0, 100).map(str)
LIMITS = st.integers(200_000, 700_000).map(str)


class Story(RuleBasedStateMachine):
    """One node, its agent and its actuator, and everybody who may step in."""

    @initialize(per_hour=st.integers(1, 3), more=st.integers(0, 3), ttl=st.sampled_from(["5m", "1h", "3h"]))
    def begin(self, per_hour: int, more: int, ttl: str) -> None:
        self.per_hour, self.per_day = per_hour, per_hour + more
        budget = {"perNodePerHour": per_hour, "perNodePerDay": self.per_day}
        self.spec = policy({**CAP, "ttl": ttl}, {**SWAPPINESS, "ttl": ttl}, budget=budget)
        self.said = policy({**CAP, "ttl": ttl}, {**SWAPPINESS, "ttl": ttl}, budget=budget, dryRun=True)
        self.policy: HiSparseNodePolicySpec | None = self.spec
        self.node, self.disk, self.now = Node(FRESH), Disk(), NOW
        self.states = dict.fromkeys(FRESH, State.OK)
        self.slot, self.breaker = SlotState.HELD, False
        self.mutes: tuple[Mute, ...] = ()
        self.actuator: Actuator | None = None
        self.standing: Standing | None = Standing()
        self.begun: dict[str, datetime] = {}
        self.touched: set[str] = set()
        self.ever_dark: set[str] = set()
        self.ttl = timedelta(seconds=parse_duration(ttl))
        self.start_actuator()

    # --- what happens ------------------------------------------------------------------------------------------------

    @rule(setting=SETTINGS, state=STATES)
    def find(self, setting: str, state: State) -> None:
        self.states[setting] = state
        self.pass_time(100)

    @rule(value=VALUES)
    def somebody_sets_swappiness(self, value: str) -> None:
        self.touched.add(SWAP)
        self.node.person(SWAP, value)

    @rule(card=st.sampled_from(CARDS), value=LIMITS)
    def somebody_sets_a_limit(self, card: str, value: str) -> None:
        self.touched.add(card)
        self.node.person(card, value)

    @rule(setting=SETTINGS, seconds=st.integers(1, 400))
    def a_setting_does_not_answer_for_a_while(self, setting: str, seconds: int) -> None:
        self.node.dark.add(setting)
        self.ever_dark.add(setting)
        self.pass_time(seconds)
        self.node.dark.clear()

    @rule(slot=SLOTS, breaker=st.sampled_from([False, False, False, True]))
    def the_pool_changes(self, slot: SlotState, breaker: bool) -> None:
        self.slot, self.breaker = slot, breaker

    @rule(which=st.sampled_from(["real", "real", "dry", "none"]))
    def the_policy_changes(self, which: str) -> None:
        self.policy = {"real": self.spec, "dry": self.said, "none": None}[which]

    @rule(check=st.sampled_from(["thermal.margin", "host.swap"]), minutes=st.integers(1, 200))
    def somebody_uncordons(self, check: str, minutes: int) -> None:
        self.mutes = (Mute(check, self.now + timedelta(minutes=minutes), "uncordoned"),)

    @rule(setting=SETTINGS, state=STATES, touches=st.integers(0, 8))
    def the_actuator_is_killed_in_its_work(self, setting: str, state: State, touches: int) -> None:
        self.the_actuator_starts()
        self.states[setting] = state
        self.node.fuse = touches
        self.pass_time(100)
        self.node.fuse = None
        self.actuator = None

    @rule()
    def the_actuator_stops(self) -> None:
        if self.actuator is not None:
            self.actuator.stop(self.now, self.tick)
            left = {record.target for record in self.actuator.holding}
            assert set(self.node.ours) <= left, "what is ours is put back or told"
            assert not left, "and everything that answers is put back"
            self.actuator = None

    @rule()
    def the_actuator_starts(self) -> None:
        if self.actuator is None:
            self.start_actuator()

    @rule(restart=st.sampled_from([True, True, False]))
    def the_agent_stops(self, restart: bool) -> None:
        self.standing = after_restart(self.disk.records) if restart else None

    @rule()
    def the_agent_starts(self) -> None:
        if self.standing is None:
            self.standing = after_restart(self.disk.records)

    @rule(configured=st.dictionaries(st.sampled_from(sorted(FRESH)), st.just("540000"), max_size=1))
    def the_node_boots(self, configured: dict[str, str]) -> None:
        # what a person has written into the node's configuration comes back, and ours does not
        self.node.reboot({**FRESH, **{name: value if name != SWAP else "10" for name, value in configured.items()}})
        self.actuator = None
        self.the_agent_stops(restart=True)
        self.start_actuator()

    @rule(seconds=st.one_of(st.integers(1, 60), st.integers(60, 4000), st.integers(20_000, 90_000)))
    def pass_time(self, seconds: int) -> None:
        # programs poll all the time; a long stretch is cut so that neither takes the other for silent
        while seconds > 0:
            self.now += timedelta(seconds=min(seconds, 100))
            seconds -= 100
            self.agent_polls()
            self.actuator_polls()
            self.check_what_stays()
            if seconds > 2000 and self.settled():
                self.now += timedelta(seconds=seconds - 200)
                seconds = 200
        self.check_rate()

    # --- what is checked ---------------------------------------------------------------------------------------------

    @invariant()
    def whatever_the_host_carries_of_ours_is_on_the_disk(self) -> None:
        if not hasattr(self, "node"):
            return
        holding = {
            (record.target, record.old, record.new)
            for record in (self.disk.records.records if self.disk.records else ())
            if record.phase.holds
        }
        assert {(target, self.node.before[target], new) for target, new in self.node.ours.items()} <= holding

    @invariant()
    def one_record_at_most_holds_a_setting(self) -> None:
        if hasattr(self, "disk") and self.disk.records:
            targets = [record.target for record in self.disk.records.records if record.phase.holds]
            assert len(targets) == len(set(targets))

    @precondition(lambda self: self.actuator is not None and self.standing is not None)
    @rule()
    def when_all_is_well_everything_is_as_before(self) -> None:
        before = self.states, self.node.dark
        self.states, self.node.dark = dict.fromkeys(FRESH, State.OK), set()
        for _ in range(5):
            self.now += timedelta(seconds=100)
            self.agent_polls()
            self.actuator_polls()
        assert self.node.ours == {}
        assert self.actuator is not None
        assert self.actuator.holding == ()
        for target in set(FRESH) - self.touched:
            if self.node.boot == 1:
                assert self.node.values[target] == FRESH[target]
        self.states, self.node.dark = before

    # --- the programs ------------------------------------------------------------------------------------------------

    @property
    def tick(self) -> float:
        return (self.now - NOW).total_seconds()

    def settled(self) -> bool:
        """Whether nothing at all goes on, so that time may pass at one go."""
        idle = all(not state.is_fault for state in self.states.values())
        return idle and self.actuator is not None and not self.actuator.holding and self.standing is not None

    def start_actuator(self) -> None:
        def save(records: Records) -> None:
            self.node.burn()
            self.disk.records = records
            for record in records.records:
                if record.phase is not Phase.REFUSED:
                    self.begun.setdefault(record.action, record.since)

        self.actuator = Actuator(self.node, save, lambda _: None)
        self.actuator.start(self.disk.records, self.now, self.tick)

    def actuator_polls(self) -> None:
        if self.actuator is None:
            return
        try:
            self.actuator.poll(self.disk.wish, self.now, self.tick)
        except Killed:
            self.actuator = None

    def agent_polls(self) -> None:
        if self.standing is None:
            return
        about = Circumstances(
            findings=(
                *(hot(index, self.states[card]) for index, card in enumerate(CARDS)),
                finding("host.swap", state=self.states[SWAP]),
            ),
            policy=self.policy,
            policy_name="p",
            checks=BY_ID,
            reading=self.seen(),
            records=self.disk.records,
            slot=self.slot,
            breaker_open=self.breaker,
            now=self.now,
            mutes=self.mutes,
        )
        outcome = step(self.standing, about)
        self.standing = outcome.standing
        self.check_decisions(outcome, about)
        self.disk.wish = Wish(self.now, self.node.boot_id(), outcome.wish)

    def seen(self) -> NodeReading:
        cards = (gpu(index, int(self.node.values[card])) for index, card in enumerate(CARDS))
        return reading(*cards, sysctls={SWAP: self.node.values[SWAP]})

    def check_decisions(self, outcome: Outcome, about: Circumstances) -> None:
        if self.policy is None or self.policy.dry_run:
            assert outcome.wish == ()
        muted = {mute.check for mute in outcome.mutes}
        assert not {action.check for action in outcome.wish} & muted
        targets = [change.target for action in outcome.wish for change in action.changes]
        assert len(targets) == len(set(targets))
        for decision in outcome.decisions:
            assert all(self.states[change.target] is State.CRITICAL for change in decision.action.changes)
            if decision.allowed:
                assert about.slot in (SlotState.HELD, SlotState.FREE)
                assert not self.breaker

    def check_what_stays(self) -> None:
        """Nothing stays without a wish that is heard, a policy that allows it and time left; what failed comes later."""
        if self.actuator is None:
            return
        left = set(self.node.ours) - self.ever_dark
        if self.standing is None and (self.disk.wish is None or self.now - self.disk.wish.written > SILENT):
            assert not left, "the agent is silent"
        if self.standing is not None and (self.policy is None or self.policy.dry_run):
            assert not left, "nothing allows it"
        for record in self.actuator.holding:
            assert record.target in self.ever_dark or self.now - record.since < self.ttl

    def check_rate(self) -> None:
        times = sorted(self.begun.values())
        for limit, span in ((self.per_hour, timedelta(hours=1)), (self.per_day, timedelta(days=1))):
            for earlier, later in zip(times, times[limit:], strict=False):
                assert later - earlier >= span, f"more than {limit} in {span}"


Story.TestCase.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
TestStory = Story.TestCase


# --- one remedy, applied and put back ----------------------------------------------------------------------------------


TARGETS = {
    Verb.POWER_CAP: st.sampled_from([*CARDS, "gpu-0", "", "vm.swappiness"]),
    Verb.SYSCTL: st.sampled_from(["vm.swappiness", "kernel.numa_balancing", "vm.drop_caches", "../x", CARDS[0]]),
    Verb.CPUFREQ: st.sampled_from(["cpu/scaling_governor", "cpu0/scaling_governor", "cpu/scaling_max_freq"]),
}
NOISE = st.one_of(st.integers(-5, 800_000).map(str), st.sampled_from(OFFERED), st.text(max_size=8))
SENSIBLE = {
    Verb.POWER_CAP: st.integers(480, 700).map(lambda watts: str(watts * 1000)),
    Verb.SYSCTL: st.integers(0, 101).map(str),
    Verb.CPUFREQ: st.sampled_from(OFFERED),
}


@st.composite
def changes(draw: st.DrawFn) -> tuple[Verb, tuple[Change, ...]]:
    verb = draw(st.sampled_from(Verb))
    news = st.one_of(SENSIBLE[verb], SENSIBLE[verb], NOISE)
    return verb, tuple(draw(st.lists(st.builds(Change, TARGETS[verb], news), max_size=5)))


def wanted(verb: Verb, made: tuple[Change, ...], name: str = "a") -> Wanted:
    return Wanted(name, verb, made, "r", "host.swap", "p", 3600, NOW)


def machine() -> Node:
    return Node({**FRESH, "kernel.numa_balancing": "1", "vm.drop_caches": "0", **dict.fromkeys(CPUS, "powersave")})


def running(node: Node) -> Actuator:
    actuator = Actuator(node, lambda _: None, lambda _: None)
    actuator.start(None, NOW, 0)
    return actuator


@given(asked=st.lists(changes(), max_size=4), foreign=st.dictionaries(st.sampled_from([*FRESH, *CPUS]), NOISE))
def test_putting_back_gives_what_was_there_but_for_what_somebody_else_has_changed(
    asked: list[tuple[Verb, tuple[Change, ...]]], foreign: dict[str, str]
) -> None:
    node = machine()
    before = dict(node.values)
    actuator = running(node)
    actions = tuple(wanted(verb, made, str(number)) for number, (verb, made) in enumerate(asked))
    actuator.poll(Wish(NOW, node.boot_id(), actions), NOW, 0)
    in_force = {record.target: record.new for record in actuator.records if record.phase is Phase.IN_FORCE}
    assert node.values == {**before, **in_force}
    assert set(in_force) <= {*FRESH, *CPUS, "kernel.numa_balancing"}, "nothing outside the list"
    for target, value in foreign.items():
        node.person(target, value)
    actuator.stop(NOW, 0)
    assert actuator.holding == ()
    for target, value in node.values.items():
        if target in foreign and foreign[target] != in_force.get(target):
            assert value == foreign[target]
        else:
            assert value == before[target]


@given(asked=st.lists(changes(), min_size=1, max_size=3), touches=st.integers(0, 15), wanted_still=st.booleans())
def test_a_kill_at_any_moment_leaves_nothing_that_the_next_start_does_not_know(
    asked: list[tuple[Verb, tuple[Change, ...]]], touches: int, wanted_still: bool
) -> None:
    node, saved = machine(), [Records(NOW, ())]
    before = dict(node.values)

    def save(records: Records) -> None:
        node.burn()
        saved.append(records)

    actions = tuple(wanted(verb, made, str(number)) for number, (verb, made) in enumerate(asked))
    wish = Wish(NOW, node.boot_id(), actions)
    try:
        actuator = Actuator(node, save, lambda _: None)
        actuator.start(None, NOW, 0)
        node.fuse = touches
        actuator.poll(wish, NOW, 0)
        actuator.poll(Wish(NOW, node.boot_id(), ()), NOW, 1)
    except Killed:
        pass
    node.fuse = None
    again = Actuator(node, save, lambda _: None)
    again.start(saved[-1], NOW, 2)
    carried = {record.target: record.new for record in again.holding}
    assert node.ours == carried, "what the host carries is known exactly"
    again.poll(wish if wanted_still else None, NOW, 3)
    again.stop(NOW, 4)
    assert node.values == before


# --- from finding to action ----------------------------------------------------------------------------------------------


def about(**changed: Any) -> Circumstances:
    usual = Circumstances(
        findings=(),
        policy=policy(CAP, SWAPPINESS),
        policy_name="p",
        checks=BY_ID,
        reading=reading(*(gpu(index) for index in range(3))),
        records=Records(NOW, ()),
        slot=SlotState.HELD,
        breaker_open=False,
        now=NOW,
    )
    return replace(usual, **changed)


QUIET = st.sampled_from([State.UNKNOWN, State.UNSUPPORTED, State.OK, State.WARN])
FINDINGS = st.one_of(
    st.builds(hot, st.integers(0, 2), QUIET, st.sampled_from(["thermal.margin", "thermal.hbm", "throttle.hw_thermal"])),
    st.builds(finding, st.sampled_from(["host.swap", "host.mem.psi", "xid"]), st.just("host"), QUIET),
)


@given(findings=st.lists(FINDINGS, max_size=10), dry=st.booleans())
def test_what_is_not_known_and_what_is_not_critical_never_acts(findings: list[Any], dry: bool) -> None:
    found = step(Standing(would=dry), about(findings=tuple(findings), policy=policy(CAP, SWAPPINESS, dryRun=dry)))
    assert (found.wish, found.decisions) == ((), ())


@given(findings=st.lists(FINDINGS, max_size=6), card=st.integers(0, 2), dry=st.booleans())
def test_a_critical_finding_with_policy_and_budget_acts(findings: list[Any], card: int, dry: bool) -> None:
    seen = about(findings=(*findings, hot(card)), policy=policy(CAP, SWAPPINESS, dryRun=dry))
    found = step(Standing(would=dry), seen)
    (decision,) = found.decisions
    assert decision.allowed
    assert decision.would is dry
    assert decision.action.changes == (Change(UUIDS[card], "630000"),)
    assert found.wish == (() if dry else (decision.action,))
    node = machine()
    actuator = running(node)
    actuator.poll(Wish(NOW, node.boot_id(), found.wish), NOW, 0)
    assert node.writes == (0 if dry else 1), "a dry run never writes"
    assert (node.values[UUIDS[card]] != FRESH[UUIDS[card]]) is not dry


@given(slot=st.sampled_from(SlotState), breaker=st.none() | st.booleans(), minutes=st.none() | st.integers(0, 120))
def test_a_dry_run_decides_as_the_real_thing(slot: SlotState, breaker: bool | None, minutes: int | None) -> None:
    mutes = () if minutes is None else (Mute("thermal.margin", NOW + timedelta(minutes=minutes), "x"),)
    seen = about(findings=(hot(0),), slot=slot, breaker_open=breaker, mutes=mutes)
    real = step(Standing(would=False), seen)
    said = step(Standing(), replace(seen, policy=policy(CAP, SWAPPINESS, dryRun=True)))
    assert [replace(one, would=True) for one in real.decisions] == list(said.decisions)


def test_the_agents_bounds_and_the_actuators_are_the_same() -> None:
    """Every step that the agent may ask for on a card is one that the actuator takes."""
    for percent in (1, 7, 10, 29, 30):
        for default in (300_000, 350_000, 600_000, 700_000, 700_500):
            for limit in range(200_000, default + 1, 17_300):
                spec = policy({**CAP, "parameters": {"stepPercent": percent}})
                seen = about(findings=(hot(0),), policy=spec, reading=reading(gpu(0, limit, default)))
                for decision in step(Standing(would=False), seen).decisions:
                    (change,) = decision.action.changes
                    setting = Setting(change.target, str(limit), power=PowerLimits(default, 200_000, default))
                    assert bounds.refusal(Verb.POWER_CAP, setting, change.new) is None


def test_silence_is_put_back_well_before_a_lost_slot_is_anothers() -> None:
    assert SILENT < slots.MARGIN


def test_the_rate_holds_where_the_actuator_comes_late() -> None:
    spec = policy({**CAP, "ttl": "3h"})
    first = step(Standing(would=False), about(findings=(hot(0),), policy=spec))
    later = NOW + timedelta(hours=2)
    pending = step(
        first.standing,
        about(findings=(hot(0), hot(1)), policy=spec, now=later, records=Records(later, ())),
    )
    assert pending.wish == first.wish
    (refused,) = pending.decisions
    assert refused.refusal
    assert refused.refusal.gate is Gate.RATE, "what waits for the actuator may be done only now"
