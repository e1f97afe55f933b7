from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisparse.nodes import breaker
from hisparse_agent.remedies import slots
from hisparse_agent.remedies.slots import BrokenLeaseError, Pool

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
WINDOW = timedelta(minutes=10)
MINUTE = timedelta(minutes=1)


def taken(*nodes: str, most: int = 10, at: datetime = NOW) -> Pool:
    pool = Pool()
    for node in nodes:
        found = slots.take(pool, node, most, at)
        assert found is not None
        pool = found
    return pool


@pytest.mark.parametrize(
    ("text", "nodes", "most"),
    [
        pytest.param(None, 200, 20, id="10 % where nothing is said"),
        pytest.param(None, 19, 1, id="rounded down"),
        pytest.param(None, 3, 1, id="at least one"),
        pytest.param("10%", 0, 1, id="even of an empty pool"),
        pytest.param("100%", 7, 7, id="all"),
        pytest.param("29%", 100, 29, id="exact, where floating point gives 28.999"),
        pytest.param("3", 200, 3, id="a number"),
    ],
)
def test_the_budget_of_a_pool(text: str | None, nodes: int, most: int) -> None:
    assert slots.most_nodes(text, nodes) == most


def test_a_slot_is_taken_kept_and_given_back() -> None:
    pool = taken("a", most=1)
    assert slots.take(pool, "b", 1, NOW) is None
    again = slots.take(pool, "a", 1, NOW + MINUTE)
    assert again is not None
    assert [(slot.node, slot.since, slot.renewed) for slot in again.slots] == [("a", NOW, NOW + MINUTE)]
    assert slots.take(slots.release(again, "a"), "b", 1, NOW) is not None


def test_a_silent_holder_loses_its_slot_and_learns_of_it() -> None:
    pool = taken("a", most=1)
    later = NOW + slots.SILENT
    assert slots.take(pool, "b", 1, later - timedelta(seconds=1)) is None
    assert slots.renew(pool, "a", later) is None
    other = slots.take(pool, "b", 1, later)
    assert other is not None
    assert [slot.node for slot in other.slots] == ["b"]
    assert slots.renew(other, "a", later) is None


def test_a_holder_stops_counting_on_its_slot_before_another_can_take_it() -> None:
    last = max(second for second in range(2000) if slots.may_count_on(NOW, NOW + timedelta(seconds=second)))
    assert slots.take(taken("a", most=1), "b", 1, NOW + timedelta(seconds=last) + slots.MARGIN) is None


def test_holders_renew_apart_from_one_another_and_long_before_they_have_to() -> None:
    ages = {slots.renewal(f"node-{number}") for number in range(100)}
    assert len(ages) > 50
    assert max(ages) * 2 <= slots.SILENT - slots.MARGIN, "the second try is in time as well"
    assert min(ages) >= 4 * MINUTE
    assert slots.renewal("node-1") == slots.renewal("node-1")


def test_a_clock_that_runs_far_ahead_holds_nothing_for_ever() -> None:
    assert slots.take(taken("a", most=1, at=NOW + timedelta(days=30)), "b", 1, NOW) is not None


def test_a_smaller_budget_takes_nothing_away_and_gives_nothing() -> None:
    pool = taken("a", "b", "c")
    assert slots.take(pool, "d", 1, NOW) is None
    assert slots.renew(pool, "c", NOW) is not None


@pytest.mark.parametrize(
    ("marked", "pool_nodes", "opens"),
    [
        pytest.param(40, 200, True, id="20 % is enough"),
        pytest.param(39, 200, False, id="one less is not"),
        pytest.param(1, 1, False, id="one node is no storm in a pool of one"),
        pytest.param(1, 5, False, id="nor in a pool of five"),
        pytest.param(2, 5, True, id="two are"),
    ],
)
def test_the_breaker(marked: int, pool_nodes: int, opens: bool) -> None:
    pool = Pool()
    for number in range(marked):
        pool = slots.mark(pool, f"n{number}", WINDOW, NOW + timedelta(seconds=number))
    found = slots.judge(pool, pool_nodes, 20, WINDOW, NOW + MINUTE)
    assert (found.opened is not None) is opens


def test_marks_leave_the_window_and_the_breaker_does_not_close_by_itself() -> None:
    pool = slots.mark(slots.mark(Pool(), "a", WINDOW, NOW), "a", WINDOW, NOW + MINUTE)
    assert slots.judge(pool, 2, 20, WINDOW, NOW + MINUTE).opened is None, "the same node twice is one node"
    late = slots.mark(pool, "b", WINDOW, NOW + WINDOW + MINUTE)
    assert [one.node for one in late.critical] == ["b"]
    opened = slots.judge(slots.mark(pool, "b", WINDOW, NOW + MINUTE), 2, 20, WINDOW, NOW + MINUTE)
    assert opened.opened
    assert slots.judge(opened, 2, 20, WINDOW, NOW + timedelta(days=9)) == opened
    annotations = {name: text for name, text in slots.annotations_of(opened).items() if text is not None}
    del annotations[breaker.ANNOTATION]
    closed = slots.parse(annotations)
    assert slots.judge(closed, 2, 20, WINDOW, NOW + MINUTE) == closed, "what opened it does not open it again"
    again = slots.mark(slots.mark(closed, "a", WINDOW, NOW + MINUTE), "b", WINDOW, NOW + MINUTE)
    assert slots.judge(again, 2, 20, WINDOW, NOW + MINUTE).opened, "nodes that are critical still do"
    assert slots.judge(slots.parse(annotations), 2, 20, WINDOW, NOW + timedelta(days=9)).opened is None


def test_an_annotation_that_cannot_be_read_stops_everything() -> None:
    with pytest.raises(BrokenLeaseError, match="delete"):
        slots.parse({slots.SLOTS_ANNOTATION: "[{]"})
    with pytest.raises(BrokenLeaseError, match="zone"):
        slots.parse({slots.CRITICAL_ANNOTATION: '[{"node": "a", "at": "2026-11-30T12:00:00"}]'})
    stopped = slots.parse({breaker.ANNOTATION: "closed for the holidays"})
    assert stopped.opened
    assert slots.annotations_of(stopped)[breaker.ANNOTATION] == "closed for the holidays"
    assert slots.parse({}) == Pool()


NODES = st.sampled_from([f"n{number}" for number in range(6)])
STEPS = st.lists(
    st.tuples(st.sampled_from(["take", "renew", "release", "mark"]), NODES, st.integers(0, 1200)), max_size=40
)


@given(steps=STEPS, most=st.integers(1, 4))
def test_no_sequence_holds_more_than_the_budget_and_the_lease_holds_all_of_it(
    steps: list[tuple[str, str, int]], most: int
) -> None:
    pool, now = Pool(), NOW
    counting: dict[str, datetime] = {}
    for verb, node, seconds in steps:
        now += timedelta(seconds=seconds)
        if verb == "take" and (found := slots.take(pool, node, most, now)):
            pool, counting[node] = found, now
        elif verb == "renew":
            renewed = slots.renew(pool, node, now)
            pool = renewed or pool
            counting |= {node: now} if renewed else {}
            if renewed is None:
                counting.pop(node, None)
        elif verb == "release":
            pool = slots.release(pool, node)
            counting.pop(node, None)
        elif verb == "mark":
            pool = slots.judge(slots.mark(pool, node, WINDOW, now), 6, 50, WINDOW, now)
        acting = [holder for holder, at in counting.items() if slots.may_count_on(at, now)]
        assert len(acting) <= most
        annotations = {name: text for name, text in slots.annotations_of(pool).items() if text is not None}
        assert slots.parse(annotations) == pool
