from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from remedy_shapes import BY_ID, CAP, GOVERNOR, NOW, SWAPPINESS, UUIDS, finding, hot, policy, reading, records_of

from hisparse.nodes.catalogue import Verb
from hisparse.nodes.findings import State
from hisparse_agent.records import ACTUATOR_SILENT, Change, Phase, Record, Records, Wanted
from hisparse_agent.remedies.allowance import (
    Gate,
    Situation,
    SlotState,
    Taken,
    Where,
    decide,
    history_of,
    taint_refusal,
)
from hisparse_agent.remedies.ours import (
    MUTE,
    Mute,
    NodeMarks,
    Whose,
    in_force,
    mute_of,
    mutes_of,
    uncordoned,
    whose,
)
from hisparse_agent.remedies.plan import Circumstances, Outcome, Standing, after_restart, step, why_gone

ACTION = Wanted("a", Verb.POWER_CAP, (Change(UUIDS[0], "630000"),), "hot", "thermal.margin", "p", 3600, NOW)
FINE = Situation(policy(CAP), SlotState.FREE, False, (), Records(NOW, ()), NOW)  # noqa: FBT003  read as a table
HOUR = timedelta(hours=1)


@pytest.mark.parametrize(
    ("changed", "gate"),
    [
        pytest.param({}, None, id="nothing stands in the way"),
        pytest.param({"slot": SlotState.HELD}, None, id="the slot is ours"),
        pytest.param({"policy": None}, Gate.POLICY, id="no policy"),
        pytest.param({"policy": policy(SWAPPINESS)}, Gate.POLICY, id="a policy without the remedy"),
        pytest.param({"slot": SlotState.FULL}, Gate.BUDGET, id="no slot"),
        pytest.param({"slot": SlotState.LOST}, Gate.BUDGET, id="the slot is lost"),
        pytest.param({"slot": SlotState.UNKNOWN}, Gate.BUDGET, id="the Lease cannot be read"),
        pytest.param({"breaker_open": True}, Gate.BREAKER, id="the breaker is open"),
        pytest.param({"breaker_open": None}, Gate.BREAKER, id="the breaker is not known"),
        pytest.param({"mutes": (Mute("thermal.margin", NOW + HOUR, "x"),)}, Gate.MUTE, id="muted"),
        pytest.param({"mutes": (Mute("thermal.margin", NOW, "x"),)}, None, id="no longer muted"),
        pytest.param({"mutes": (Mute("host.swap", NOW + HOUR, "x"),)}, None, id="another check is muted"),
        pytest.param({"records": None}, Gate.ACTUATOR, id="no actuator"),
        pytest.param({"records": Records(NOW - ACTUATOR_SILENT, ())}, Gate.ACTUATOR, id="the actuator is silent"),
    ],
)
def test_each_gate(changed: dict[str, Any], gate: Gate | None) -> None:
    found = decide(ACTION, replace(FINE, **changed), ())
    assert (found.refusal.gate if found.refusal else None) is gate
    assert found.allowed is (gate is None)


def test_the_gates_are_asked_in_their_order() -> None:
    nothing_works = Situation(
        policy(SWAPPINESS), SlotState.FULL, True, (Mute("thermal.margin", NOW + HOUR, "x"),), None, NOW  # noqa: FBT003
    )  # fmt: skip
    repaired: list[dict[str, Any]] = [
        {"policy": policy(CAP)},
        {"slot": SlotState.HELD},
        {},
        {"breaker_open": False},
        {"mutes": ()},
    ]
    history: tuple[Taken, ...] = (Taken("x", NOW),)
    gates: list[Gate] = []
    for repair in [{}, *repaired]:
        nothing_works = replace(nothing_works, **repair)
        if len(gates) == 3:
            history = ()
        found = decide(ACTION, nothing_works, history).refusal
        assert found
        gates.append(found.gate)
    assert gates == list(Gate)


@pytest.mark.parametrize(
    ("ages_minutes", "budget", "allowed", "again"),
    [
        pytest.param([], {}, True, "", id="the first"),
        pytest.param([59], {}, False, "12:01", id="one within the hour"),
        pytest.param([60], {}, True, "", id="an hour ago"),
        pytest.param([70, 140, 210], {}, False, "08:30", id="three within the day"),
        pytest.param([70, 140, 24 * 60], {}, True, "", id="the third a day ago"),
        pytest.param([10, 20], {"perNodePerHour": 3, "perNodePerDay": 10}, True, "", id="a wider budget"),
        pytest.param([-30], {}, False, "", id="a clock that was set back gives nothing away"),
    ],
)
def test_the_rate(ages_minutes: list[int], budget: dict[str, int], allowed: bool, again: str) -> None:
    history = [Taken(str(age), NOW - timedelta(minutes=age)) for age in ages_minutes]
    spec = policy(CAP, budget=budget)
    found = decide(ACTION, replace(FINE, policy=spec), history)
    assert found.allowed is allowed
    if found.refusal:
        assert found.refusal.gate is Gate.RATE
        assert again in found.refusal.message


def test_one_action_counts_once_however_many_cards_it_is_on_and_even_where_it_was_refused() -> None:
    both = replace(ACTION, changes=(*ACTION.changes, Change(UUIDS[1], "630000")))
    refused = replace(ACTION, id="b", since=NOW - HOUR)
    old = replace(ACTION, id="c", since=NOW - timedelta(days=1))
    records = Records(
        NOW,
        (
            *records_of([both]).records,
            *records_of([refused], Phase.REFUSED).records,
            *records_of([old], Phase.REVERTED).records,
        ),
    )
    assert [taken.id for taken in history_of(records, [Taken("a", NOW)], NOW)] == ["b", "a"]


def test_a_dry_run_gives_the_same_decisions_and_asks_for_no_actuator() -> None:
    dry = replace(FINE, policy=policy(CAP, dryRun=True))
    assert decide(ACTION, replace(dry, records=None), ()).allowed
    assert decide(ACTION, dry, ()).would
    for changed in ({"slot": SlotState.FULL}, {"breaker_open": True}):
        real, said = decide(ACTION, replace(FINE, **changed), ()), decide(ACTION, replace(dry, **changed), ())
        assert real.refusal == said.refusal
        assert (real.would, said.would) == (False, True)


# --- whose -----------------------------------------------------------------------------------------------------------

RECORD = Record("a", Verb.SYSCTL, "vm.swappiness", "60", "10", "r", "host.swap", "p", NOW, 60, "boot", Phase.IN_FORCE)


@pytest.mark.parametrize(
    ("present", "boot", "answer"),
    [
        pytest.param("10", "boot", Whose.OURS, id="as we set it"),
        pytest.param("60", "boot", Whose.EARLIER, id="as it was"),
        pytest.param("30", "boot", Whose.FOREIGN, id="somebody else's"),
        pytest.param("60", "other", Whose.EARLIER, id="gone with the reboot"),
        pytest.param("30", "other", Whose.EARLIER, id="the new boot's own value"),
        pytest.param("10", "other", Whose.FOREIGN, id="ours after a reboot is the node's own configuration"),
    ],
)
def test_whose_a_value_is(present: str, boot: str, answer: Whose) -> None:
    assert whose(RECORD, present, boot) is answer


def test_a_changed_value_mutes_its_check_for_a_day() -> None:
    records = Records(NOW, (replace(RECORD, phase=Phase.FOREIGN, ended=NOW),))
    (mute,) = mutes_of(records, NOW)
    assert (mute.check, mute.until) == ("host.swap", NOW + MUTE)
    assert mutes_of(records, NOW + MUTE) == ()
    assert mutes_of(replace(records, records=(replace(RECORD, phase=Phase.REVERTED, ended=NOW),)), NOW) == ()
    assert mutes_of(None, NOW) == ()


@pytest.mark.parametrize(
    ("before", "after", "by_us", "muted"),
    [
        pytest.param(NodeMarks("xid"), NodeMarks(), False, ["xid"], id="a person takes the taint off"),
        pytest.param(NodeMarks("xid"), NodeMarks(), True, [], id="we take it off"),
        pytest.param(NodeMarks(), NodeMarks(), False, [], id="there was none"),
        pytest.param(NodeMarks(unschedulable=True), NodeMarks(), False, ["host.swap"], id="a person uncordons"),
        pytest.param(
            NodeMarks("xid", unschedulable=True),
            NodeMarks("xid"),
            False,
            ["host.swap", "xid"],
            id="and the taint stays",
        ),
        pytest.param(NodeMarks(), NodeMarks(unschedulable=True), False, [], id="a person cordons"),
    ],
)
def test_an_uncordon_mutes(before: NodeMarks, after: NodeMarks, by_us: bool, muted: list[str]) -> None:
    found = uncordoned(before, after, removed_by_us=by_us, active=["host.swap"], now=NOW)
    assert [mute.check for mute in found] == muted
    assert all(mute.until == NOW + MUTE for mute in found)


def test_the_longer_mute_counts() -> None:
    short, long = Mute("x", NOW + HOUR, "a"), Mute("x", NOW + MUTE, "b")
    assert in_force([long, short], NOW) == in_force([short, long], NOW) == (long,)
    assert mute_of("x", [short], NOW + HOUR) is None


# --- one poll after the other ----------------------------------------------------------------------------------------


def circumstances(**changed: Any) -> Circumstances:
    usual = Circumstances(
        findings=(hot(0),),
        policy=policy(CAP),
        policy_name="p",
        checks=BY_ID,
        reading=reading(),
        records=Records(NOW, ()),
        slot=SlotState.HELD,
        breaker_open=False,
        now=NOW,
    )
    return replace(usual, **changed)


def acted() -> Outcome:
    found = step(Standing(would=False), circumstances())
    assert found.wish
    return found


def later(minutes: int, before: Outcome, **changed: Any) -> Outcome:
    now = NOW + timedelta(minutes=minutes)
    records = changed.pop("records", replace(records_of(before.wish), written=now))
    return step(before.standing, circumstances(now=now, records=records, **changed))


def test_a_wish_stays_the_same_as_long_as_it_is_wanted() -> None:
    first = acted()
    assert first.needs_slot
    second = later(1, first)
    assert second.wish == first.wish
    assert second.decisions == ()
    cool = later(2, second, findings=(hot(0, State.OK),))
    assert cool.wish == ()
    assert not cool.needs_slot


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"policy": None}, id="the policy goes"),
        pytest.param({"policy": policy(CAP, dryRun=True)}, id="the policy turns to dry run"),
        pytest.param({"policy": policy(SWAPPINESS)}, id="the remedy goes"),
        pytest.param({"slot": SlotState.LOST}, id="the slot is lost"),
        pytest.param({"slot": SlotState.FULL}, id="others have the slots"),
        pytest.param({"mutes": (Mute("thermal.margin", NOW + HOUR, "x"),)}, id="a person mutes the check"),
    ],
)
def test_an_action_is_put_back(changed: dict[str, Any]) -> None:
    assert later(1, acted(), **changed).wish == ()


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"slot": SlotState.UNKNOWN, "breaker_open": None}, id="the API server is down"),
        pytest.param({"slot": SlotState.FREE}, id="the slot ran out and is free again"),
        pytest.param({"breaker_open": True}, id="the breaker opens"),
        pytest.param({"records": None}, id="the records cannot be read for once"),
    ],
)
def test_an_action_in_force_stays(changed: dict[str, Any]) -> None:
    first = acted()
    assert later(1, first, **changed).wish == first.wish


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"breaker_open": True}, id="the breaker opens"),
        pytest.param({"breaker_open": None}, id="the Lease cannot be read"),
        pytest.param({"slot": SlotState.LOST}, id="the slot is lost"),
    ],
)
def test_what_the_actuator_has_not_taken_up_is_withdrawn_when_a_gate_closes(changed: dict[str, Any]) -> None:
    first = acted()
    nothing_done = {"records": Records(NOW, ())}
    assert later(0, first, **nothing_done).wish == first.wish
    found = later(0, first, **nothing_done, **changed)
    assert found.wish == ()
    assert found.decisions[0].refusal, "and it is told"
    assert later(0, found, **nothing_done).wish, "it was none of the actions of this hour"


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        pytest.param({"policy": None}, "the policy p is gone", id="no policy"),
        pytest.param({"policy": policy(CAP, dryRun=True)}, "dry run", id="dry run"),
        pytest.param({"policy": policy(SWAPPINESS)}, "no remedy power-cap any more", id="the remedy goes"),
        pytest.param({"slot": SlotState.LOST}, "lost its slot", id="the slot is lost"),
        pytest.param({"now": NOW + timedelta(days=2)}, "its time is over", id="its time is over"),
        pytest.param({"findings": (hot(0, State.OK),)}, "thermal.margin has cleared", id="cleared"),
        pytest.param({}, "", id="nobody knows"),
    ],
)
def test_why_an_action_left_the_wish(changed: dict[str, Any], why: str) -> None:
    found = why_gone(acted().wish[0], circumstances(**changed), ())
    assert why in found
    assert bool(found) is bool(why)


def test_a_mute_tells_why_an_action_left_the_wish() -> None:
    assert "x" in why_gone(acted().wish[0], circumstances(), (Mute("thermal.margin", NOW + HOUR, "x"),))


@pytest.mark.parametrize(
    ("unmute", "acts"),
    [
        pytest.param("", False, id="nothing is lifted"),
        pytest.param("host.swap", False, id="another check"),
        pytest.param("host.swap, thermal.margin", True, id="this one"),
        pytest.param("all", True, id="all"),
    ],
)
def test_a_person_lifts_a_mute(unmute: str, acts: bool) -> None:
    muted = (Mute("thermal.margin", NOW + HOUR, "x"),)
    foreign = Records(NOW, (replace(RECORD, check="thermal.margin", phase=Phase.FOREIGN, ended=NOW),))
    wide = policy(CAP, budget={"perNodePerHour": 2})
    for changed in ({"mutes": muted}, {"records": foreign}):
        found = step(Standing(would=False), circumstances(policy=wide, unmute=unmute, **changed))
        assert bool(found.wish) is acts
        assert bool(found.mutes) is not acts


@pytest.mark.parametrize(
    ("changed", "step"),
    [
        pytest.param(
            {"breaker_open": True},
            "kubectl annotate lease -n ns hisparse-pool-p inference.hisparse.dev/breaker-",
            id="breaker",
        ),
        pytest.param({"slot": SlotState.FULL}, "kubectl get lease -n ns hisparse-pool-p", id="budget"),
        pytest.param({"records": None}, "node_agent/deploy/actuator.yaml", id="no actuator"),
        pytest.param({"records": Records(NOW - ACTUATOR_SILENT, ())}, "spec.nodeName=n", id="silent actuator"),
        pytest.param(
            {"mutes": (Mute("thermal.margin", NOW + HOUR, "x"),)},
            "kubectl annotate node n inference.hisparse.dev/unmute=thermal.margin",
            id="mute",
        ),
    ],
)
def test_a_refusal_names_the_next_step(changed: dict[str, Any], step: str) -> None:
    found = decide(ACTION, replace(FINE, where=Where("n", "ns"), **changed), ()).refusal
    assert found
    assert step in found.message


def test_a_taint_passes_budget_and_breaker() -> None:
    where = Where("n", "ns")
    assert taint_refusal("p", SlotState.HELD, False, where) is None  # noqa: FBT003  read as a table
    for slot, is_open, gate in (
        (SlotState.FULL, True, Gate.BUDGET),
        (SlotState.HELD, True, Gate.BREAKER),
        (SlotState.HELD, None, Gate.BREAKER),
    ):
        found = taint_refusal("p", slot, is_open, where)
        assert found
        assert found.gate is gate


def test_after_a_persons_change_the_check_is_left_alone_for_a_day() -> None:
    first = acted()
    (foreign,) = records_of(first.wish, Phase.FOREIGN).records
    found = later(61, first, records=Records(NOW + timedelta(minutes=61), (foreign,)))
    assert found.wish == ()
    (refused,) = found.decisions
    assert refused.refusal
    assert refused.refusal.gate is Gate.MUTE
    day = int(MUTE.total_seconds()) // 60 + 60
    assert later(day, found, records=Records(NOW + timedelta(minutes=day), (foreign,))).wish


def test_the_next_step_takes_the_place_of_the_first() -> None:
    wide = policy(CAP, budget={"perNodePerHour": 2})
    first = later(0, Outcome(Standing(would=False)), policy=wide, findings=(hot(0), hot(1)), records=Records(NOW, ()))
    found = later(10, first, policy=wide, findings=(hot(0), hot(1, State.WARN)))
    assert [(action.since, action.changes) for action in found.wish] == [
        (NOW, (Change(UUIDS[1], "630000"),)),
        (NOW + timedelta(minutes=10), (Change(UUIDS[0], "560000"),)),
    ]
    targets = [change.target for action in found.wish for change in action.changes]
    assert len(targets) == len(set(targets))


def test_a_dry_run_says_once_what_it_would_do_and_nothing_comes_of_it_when_it_ends() -> None:
    dry = policy(CAP, dryRun=True)
    first = step(Standing(), circumstances(policy=dry, records=None))
    assert first.wish == ()
    assert not first.needs_slot
    (said,) = first.decisions
    assert said.allowed
    assert said.would
    second = later(1, first, policy=dry, records=None)
    assert second.decisions == ()
    assert second.standing.actions == first.standing.actions
    full = later(2, second, slot=SlotState.FULL, records=Records(NOW + timedelta(minutes=2), ()))
    assert full.wish == (), "what was only said has passed no gate"
    real = later(3, second, records=Records(NOW + timedelta(minutes=3), ()))
    assert real.wish, "and what was only said uses nothing of the rate"
    assert real.wish[0].id != first.standing.actions[0].id


def test_of_two_remedies_that_are_asked_for_at_once_the_rate_lets_one_through() -> None:
    found = step(
        Standing(would=False),
        circumstances(findings=(finding("host.swap"), hot(0)), policy=policy(SWAPPINESS, CAP)),
    )
    assert [decision.allowed for decision in found.decisions] == [True, False]
    assert [action.verb for action in found.wish] == [Verb.SYSCTL]


def test_an_agent_that_starts_again_goes_on_with_what_the_host_carries() -> None:
    first = acted()
    assert after_restart(records_of(first.wish)) == Standing(first.wish, would=False)
    assert after_restart(records_of(first.wish, Phase.REVERTED)) == Standing()
    assert after_restart(None) == Standing()
    cpus = [replace(RECORD, verb=Verb.CPUFREQ, target=f"cpu{n}/scaling_governor", new="performance") for n in (0, 1)]
    (action,) = after_restart(Records(NOW, tuple(cpus))).actions
    assert action.changes == (Change("cpu/scaling_governor", "performance"),)
    spec = policy(GOVERNOR)
    cause = finding("host.swap")
    assert not step(Standing((action,), would=False), circumstances(policy=spec, findings=(cause,))).wish


def test_a_refusal_is_told_once() -> None:
    full = circumstances(slot=SlotState.FULL)
    first = step(Standing(would=False), full)
    second = step(first.standing, replace(full, now=NOW + HOUR))
    assert first.decisions[0].action.id != second.decisions[0].action.id
    assert first.decisions[0].key == second.decisions[0].key
    assert first.decisions[0].key != step(first.standing, circumstances(breaker_open=True)).decisions[0].key
