from typing import Any

import pytest

from hisparse_operator.cluster.contest import FREE, LONGEST_S, Contest, contested, put_back


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def fight(contest: Contest, clock: Clock, seconds: float, generation: int = 1) -> int:
    """Somebody undoes each write at once, for so long; our writes."""
    writes, end = 0, clock.now + seconds
    while clock.now < end:
        if not contest.wait("p", generation):
            contest.undone("p", generation)
            writes += 1
        clock.now += 0.02
    return writes


def test_a_write_that_is_undone_once_in_a_while_is_repeated_at_once() -> None:
    clock = Clock()
    contest = Contest(clock)
    for _ in range(50):
        assert contest.wait("p", 1) == 0
        assert not contest.undone("p", 1)
        clock.now += 11


def test_who_is_undone_again_and_again_writes_more_and_more_rarely() -> None:
    clock = Clock()
    contest = Contest(clock)
    assert fight(contest, clock, 10) <= FREE + 3
    assert fight(contest, clock, 3600) < 25
    contest.undone("p", 1)
    assert contest.wait("p", 1) == LONGEST_S
    assert contest.wait("another", 1) == 0


def test_a_fight_is_told_of_from_the_fifth_write_on() -> None:
    contest = Contest(Clock())
    assert [contest.undone("p", 1) for _ in range(6)] == [False] * 4 + [True] * 2


def test_an_edit_begins_anew() -> None:
    clock = Clock()
    contest = Contest(clock)
    fight(contest, clock, 100)
    assert contest.wait("p", 1) > 0
    assert contest.wait("p", 2) == 0
    assert not contest.undone("p", 2)


def test_a_fight_that_is_over_is_forgotten() -> None:
    clock = Clock()
    contest = Contest(clock)
    fight(contest, clock, 10)
    clock.now += 3 * LONGEST_S
    assert not contest.undone("p", 1)
    assert contest.wait("p", 1) == 0


def entry(manager: str, subresource: str = "", time: str = "") -> dict[str, Any]:
    return {"manager": manager, "operation": "Update", "subresource": subresource, "time": time}


@pytest.mark.parametrize(
    ("entries", "subresource", "text"),
    [
        pytest.param(
            [entry("kubectl-edit", "status", "1"), entry("argocd", "status", "2"), entry("kubectl", "")],
            "status",
            'Field manager "argocd", "kubectl-edit" writes it too',
            id="of the status, the last one first",
        ),
        pytest.param(
            [entry("kubectl-scale"), entry("kube-controller-manager", "status")], "", '"kubectl-scale"', id="of a child"
        ),
        pytest.param([entry("hisparse-operator-status", "status")], "status", "two operators serve", id="our like"),
        pytest.param([], "", 'our own name, "hisparse-operator"', id="our like, of a child"),
    ],
)
def test_the_other_writer_is_named(entries: list[dict[str, Any]], subresource: str, text: str) -> None:
    live = {"kind": "Service", "metadata": {"name": "glm", "managedFields": entries}}
    assert text in contested(live, subresource)


@pytest.mark.parametrize(
    ("entries", "who"),
    [
        pytest.param([entry("kubectl-edit", "", "3"), entry("helm", "", "4")], 'field manager "helm"', id="the last"),
        pytest.param([entry("kubectl", "scale")], 'field manager "kubectl"', id="a scale"),
        pytest.param([entry("kube-controller-manager", "status", "3")], "do not name", id="a status is no edit"),
        pytest.param([entry("helm", "", "1")], "do not name", id="from before our own write"),
    ],
)
def test_who_changed_a_child_is_named_where_managed_fields_tell(entries: list[dict[str, Any]], who: str) -> None:
    fields = [entry("hisparse-operator", "", "2"), *entries]
    told = put_back("Service", "glm", {"metadata": {"name": "glm", "managedFields": fields}})
    assert told.startswith("Service glm was changed by ")
    assert who in told
    assert "Edit the HiSparseInference instead" in told
