"""Patience: how many readings make a fault, and how many end one."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisparse.nodes.checks import BY_ID
from hisparse.nodes.findings import State
from hisparse.nodes.policy import CheckOverride
from hisparse_agent.judge.standing import Patience, Standing, patience_of, step
from hisparse_agent.judge.verdict import Verdict

START = datetime(2026, 11, 29, 12, tzinfo=UTC)
O, W, C = State.OK, State.WARN, State.CRITICAL  # noqa: E741 - rows of one letter read as a story
U, N = State.UNKNOWN, State.UNSUPPORTED
USUAL = Patience(enter=3, critical_enter=3, leave=4, critical_stays=False)
LETTERS = {"o": O, "w": W, "c": C, "u": U, "n": N}


def at(poll: int) -> datetime:
    return START + timedelta(seconds=15 * poll)


def verdicts(letters: str) -> list[Verdict]:
    """o Ok, w Warn, c Critical, u Unknown, n Unsupported, - Ok that does not end a fault yet."""
    return [
        Verdict("gpu-0", O, "between", ended=False) if letter == "-" else Verdict("gpu-0", LETTERS[letter], letter)
        for letter in letters
    ]


def story(readings: Sequence[Verdict], patience: Patience = USUAL) -> list[Standing]:
    standing: Standing | None = None
    told = []
    for poll, verdict in enumerate(readings):
        standing = step(standing, verdict, patience, at(poll))
        told.append(standing)
    return told


def told(letters: str, patience: Patience = USUAL) -> str:
    names = {state: letter for letter, state in LETTERS.items()}
    return "".join(names[standing.told] for standing in story(verdicts(letters), patience))


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        pytest.param("ooo", "ooo", id="well from the first reading on"),
        pytest.param("ccc", "uuc", id="bad from the first reading on is being watched, and counts as poll 1"),
        pytest.param("occc", "oooc", id="seen well before: Ok until the third bad reading"),
        pytest.param("occocc", "oooooo", id="a good reading between breaks the row"),
        pytest.param("occucc", "ooouoo", id="a blind reading between breaks the row"),
        pytest.param("wwcccc", "uuwwcc", id="warnings lead to Warn, then to Critical"),
        pytest.param("wcc", "uuw", id="readings of both levels make the milder one"),
        pytest.param("cccoooo", "uucccco", id="four good readings end it"),
        pytest.param("cccooocoooo", "uucccccccco", id="a relapse starts the count again"),
        pytest.param(
            "cccooo-oooo",
            "uuccccwwwwo",
            id="a value between the limits breaks the row of good ones, and is milder than critical",
        ),
        pytest.param("ccc----oooo", "uuccccwwwwo", id="from Critical by Warn to Ok"),
        pytest.param("cccwwww", "uuccccw", id="warnings long enough turn Critical into Warn"),
        pytest.param("cccuuuuuc", "uucuuuuuc", id="critical, blind, still bad: critical at once"),
        pytest.param("cccuuuuuoooo", "uucuuuuuccco", id="critical, blind, well: blindness was no good reading"),
        pytest.param("cccooouo", "uuccccuc", id="blindness breaks a row of good readings"),
        pytest.param("cccnnnc", "uucnnnc", id="unsupported is told at once and holds nothing"),
        pytest.param("uuu", "uuu", id="never read"),
        pytest.param("oun", "oun", id="both are told without waiting"),
    ],
)
def test_what_is_told(seen: str, expected: str) -> None:
    assert told(seen) == expected


def test_a_check_without_an_end_stays_until_another_boot() -> None:
    manual = Patience(enter=1, critical_enter=1, leave=None, critical_stays=False)
    assert told("co" + "o" * 500, manual) == "c" * 502
    assert told("wo" + "o" * 500, manual) == "w" * 502


def test_only_the_critical_state_may_stay_for_good() -> None:
    xid = Patience(enter=1, critical_enter=1, leave=2, critical_stays=True)
    assert told("woo", xid) == "wwo"
    assert told("cooooo", xid) == "cccccc"


def test_critical_may_need_fewer_readings_than_a_warning() -> None:
    thermal = Patience(enter=20, critical_enter=4, leave=40, critical_stays=False)
    assert told("o" + "c" * 4, thermal) == "ooooc"
    assert told("o" + "w" * 20, thermal) == "o" * 20 + "w"
    assert told("o" + "c" * 4 + "o" * 40, thermal) == "ooooc" + "c" * 39 + "o"


def test_a_fault_that_is_seen_again_is_as_old_as_it_was() -> None:
    steps = story(verdicts("occcuuc"))
    assert steps[3].since == at(3)
    assert (steps[4].told, steps[4].since, steps[5].since) == (U, at(4), at(4))
    assert (steps[6].told, steps[6].since) == (C, at(3))


def test_since_moves_with_the_state_only() -> None:
    steps = story(verdicts("oooccccooooo"))
    assert [standing.since for standing in steps] == [at(0)] * 5 + [at(5)] * 5 + [at(10)] * 2


def test_the_proof_of_a_fault_is_its_last_bad_reading() -> None:
    readings = [*verdicts("cc"), Verdict("gpu-0", C, "the last bad one"), *verdicts("o")]
    assert story(readings)[-1].proof == readings[2]


def test_a_policy_sets_the_patience_of_both_levels() -> None:
    row = BY_ID["thermal.margin"]
    assert patience_of(row, None) == Patience(20, 4, 40, critical_stays=False)
    assert patience_of(row, CheckOverride(check=row.id, enter_polls=7, leave_polls=9)) == Patience(
        7, 7, 9, critical_stays=False
    )
    assert patience_of(BY_ID["gpu.lost"], None).leave is None


PATIENCES = st.builds(
    Patience,
    enter=st.integers(1, 5),
    critical_enter=st.integers(1, 5),
    leave=st.one_of(st.none(), st.integers(1, 6)),
    critical_stays=st.booleans(),
)
SEEN = st.text(alphabet="owcun-", max_size=80)
RANK = {O: 0, W: 1, C: 2}


@given(SEEN, PATIENCES)
def test_what_cannot_be_read_is_never_told_as_a_fault(seen: str, patience: Patience) -> None:
    for verdict, standing in zip(verdicts(seen), story(verdicts(seen), patience), strict=True):
        if verdict.state in (U, N):
            assert standing.told is verdict.state


@given(SEEN, PATIENCES)
def test_a_fault_begins_only_with_enough_bad_readings_in_a_row(seen: str, patience: Patience) -> None:
    readings = verdicts(seen)
    before = 0
    for poll, standing in enumerate(story(readings, patience)):
        rank = RANK[standing.held] if standing.held else 0
        if rank > before:
            row = patience.critical_enter if rank == RANK[C] else patience.enter
            last = [verdict.state for verdict in readings[max(0, poll + 1 - row) : poll + 1]]
            assert len(last) == row
            assert all(RANK.get(state, 0) >= rank for state in last)
        before = rank


@given(SEEN, PATIENCES)
def test_a_fault_ends_only_with_enough_milder_readings_in_a_row(seen: str, patience: Patience) -> None:
    readings = verdicts(seen)
    held: State | None = None
    for poll, standing in enumerate(story(readings, patience)):
        if held is not None and held.is_fault and standing.held is not None and RANK[standing.held] < RANK[held]:
            leave = patience.leave_of(held)
            assert leave is not None, "nothing ends it"
            last = readings[max(0, poll + 1 - leave) : poll + 1]
            assert len(last) == leave
            assert all(RANK.get(verdict.state, 9) < RANK[held] for verdict in last)
            if standing.held is O:
                assert all(verdict.state is O and verdict.ended for verdict in last)
        held = standing.held


@given(SEEN, PATIENCES)
def test_since_is_never_later_than_the_reading_and_moves_only_with_the_state(seen: str, patience: Patience) -> None:
    steps = story(verdicts(seen), patience)
    for poll, (before, now) in enumerate(pairwise(steps), start=1):
        assert now.since <= at(poll)
        if now.told is before.told:
            assert now.since == before.since


@given(SEEN, PATIENCES)
def test_a_fault_always_has_a_reading_that_showed_it(seen: str, patience: Patience) -> None:
    for standing in story(verdicts(seen), patience):
        if standing.told.is_fault:
            assert standing.proof is not None
            assert standing.proof.state.is_fault


def test_a_fault_that_steps_down_without_a_warning_keeps_its_proof() -> None:
    steps = story(verdicts("cccwwwo"))
    assert (steps[-1].told, steps[-1].proof) == (W, verdicts("c")[0])
    assert steps[-2].told is C, "three readings that are milder are not enough"
