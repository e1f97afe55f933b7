"""What is remembered between passes never outlives what it was made of."""

from datetime import UTC, datetime
from typing import Any

import pytest
import simulator

from hisparse.errors import SpecErrors
from hisparse_operator.cluster.cache import Cache
from hisparse_operator.decide import planning
from hisparse_operator.decide.recall import spec_of
from hisparse_operator.decide.reconcile import reconcile
from hisparse_operator.kinds import NODE
from hisparse_operator.settings import OperatorSettings
from hisparse_operator.world import World

NOW = datetime(2026, 11, 30, tzinfo=UTC)


def feasible(inference: dict[str, Any], nodes: tuple[dict[str, Any], ...]) -> str:
    outcome = reconcile(World(inference, nodes=nodes), NOW, OperatorSettings())
    assert outcome.status is not None
    return str(next(one["status"] for one in outcome.status["conditions"] if one["type"] == "PlanFeasible"))


def test_objects_of_one_text_share_the_spec_and_another_text_does_not() -> None:
    one, other = simulator.inference(simulator.dense()), simulator.inference(simulator.dense(), name="other")
    assert spec_of(one) is spec_of(other)
    assert spec_of(simulator.inference(simulator.dense(replicas=2))) is not spec_of(one)


def test_a_bad_name_is_told_though_the_same_spec_is_known_to_be_good() -> None:
    spec_of(simulator.inference(simulator.dense()))
    with pytest.raises(SpecErrors, match="cannot name a Service"):
        spec_of(simulator.inference(simulator.dense(), name="1-llama"))


def test_every_fault_is_told_each_time() -> None:
    bad = simulator.inference(simulator.dense(context={"maxTokens": "many"}), name="1-llama")
    for _ in range(2):
        with pytest.raises(SpecErrors) as caught:
            spec_of(bad)
        assert {one.field for one in caught.value.errors} == {"metadata.name", "spec.context.maxTokens"}


def test_a_plan_is_made_once_for_the_same_nodes_and_again_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    plan_for = planning.plan_for

    def counted(*words: Any) -> planning.Planned:
        made.append(words)
        return plan_for(*words)

    monkeypatch.setattr(planning, "plan_for", counted)
    inference = simulator.inference(simulator.dense())
    free, cordoned = (simulator.node("a"),), (simulator.node("a", unschedulable=True),)
    assert [feasible(inference, nodes) for nodes in (free, free, cordoned, free)] == ["True", "True", "False", "True"]
    assert len(made) == 2


def node(version: int, **spec: Any) -> dict[str, Any]:
    found = simulator.node("a", **spec)
    found["metadata"] |= {"uid": "uid-a", "resourceVersion": str(version)}
    return found


def test_the_nodes_are_the_same_tuple_until_one_changes_in_what_matters() -> None:
    cache = Cache()
    cache.put(NODE, node(1))
    before = cache.nodes()
    cache.put(NODE, node(2))
    assert cache.nodes() is before, "a heartbeat"
    cache.put(NODE, node(3, unschedulable=True))
    assert cache.nodes() is not before
    assert cache.nodes()[0]["spec"]["unschedulable"]
    cache.remove(NODE, node(4))
    assert cache.nodes() == ()
