"""Status of policies for nodes: whether each can be used, where it is in force, whether its breaker is closed."""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from hisparse.errors import Transient
from hisparse.nodes import breaker
from hisparse.nodes.breaker import Opened
from hisparse.nodes.in_force import in_force, policy_of
from hisparse.nodes.policy import PolicyStatus
from hisparse_operator.cluster.cache import Cache, Change
from hisparse_operator.cluster.kube import Api, ApiError, Conflict, LeaseLostError, NotFoundError
from hisparse_operator.cluster.policies import PolicyKeeper
from hisparse_operator.decide.catalogue import may_stand
from hisparse_operator.decide.policies import Fleet, statuses
from hisparse_operator.kinds import NODE, NODE_POLICY, POOL_LEASE, STATUS_MANAGER, Kind
from hisparse_operator.world import Sight

Runner = Callable[[Coroutine[Any, Any, Any]], Any]
NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
LATER = NOW + timedelta(hours=1)
BAD: dict[str, Any] = {"remedies": [{"verb": "power-cap", "checks": ["thermal.margn"]}]}

Document = dict[str, Any]


def policy(name: str, created: int = 0, /, selector: Mapping[str, str] | None = None, **spec: Any) -> Document:
    meta = {
        "name": name,
        "uid": f"uid-{name}",
        "resourceVersion": "5",
        "generation": 3,
        "creationTimestamp": f"2026-11-30T10:00:{created:02}Z",
    }
    return {"metadata": meta, "spec": spec | ({"nodeSelector": dict(selector)} if selector else {})}


def node(name: str, **labels: str) -> Document:
    return {"metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": "1", "labels": labels}}


def lease(name: str, said: str | None = None) -> Document:
    annotations = {} if said is None else {breaker.ANNOTATION: said}
    meta = {"namespace": "agents", "name": f"hisparse-pool-{name}", "uid": name, "resourceVersion": "1"}
    return {"metadata": meta | {"annotations": annotations}}


def fleet(*policies: Document, nodes: tuple[Document, ...] = (), **rest: Any) -> Fleet:
    given = {"leases": (), "lease_sight": Sight.SEEN, "agents_namespace": "agents", **rest}
    return Fleet(policies=policies, nodes=nodes, **given)


def judged(*policies: Document, now: datetime = NOW, **rest: Any) -> dict[str, Document]:
    return {one["metadata"]["name"]: dict(status) for one, status in statuses(fleet(*policies, **rest), now)}


def said(status: Document, kind: str) -> tuple[str, str]:
    """Status and reason in one word, and the message."""
    found = next(one for one in status["conditions"] if one["type"] == kind)
    return f"{found['status']}/{found['reason']}", found["message"]


NODES = tuple(node(f"n{number}", tier="gold" if number < 3 else "rest") for number in range(5))


def test_a_policy_alone_is_in_force_on_all_that_it_selects() -> None:
    found = judged(policy("all"), policy("gold", 1, {"tier": "gold"}), nodes=NODES)
    assert found["all"]["selected"] == 5
    assert said(found["all"], "Accepted")[0] == "True/Valid"
    word, message = said(found["all"], "InForce")
    assert word == "True/InForce"
    assert message == "on all 5 nodes that it selects, as a dry run: it says what would be done, and does nothing"
    assert found["all"]["observedGeneration"] == 3
    assert {one["observedGeneration"] for one in found["all"]["conditions"]} == {3}


def test_the_younger_says_which_older_one_wins_and_where() -> None:
    found = judged(policy("rest", 9, dryRun=False), policy("gold", 1, {"tier": "gold"}, dryRun=False), nodes=NODES[:5])
    assert found["gold"]["selected"] == 3
    assert said(found["gold"], "InForce") == ("True/InForce", "on all 3 nodes that it selects")
    assert found["rest"]["selected"] == 2
    word, message = said(found["rest"], "InForce")
    assert word == "True/PartlyOverlapped"
    assert message == "on 2 of the 5 nodes that it selects; the older policy gold wins on 3 nodes (n0, n1, n2)"


def test_one_that_wins_nowhere_says_so_and_what_to_do() -> None:
    found = judged(policy("old"), policy("b", 5, {"tier": "gold"}), policy("a", 5, {"tier": "gold"}), nodes=NODES[:4])
    for name in ("a", "b"):
        assert found[name]["selected"] == 0
        word, message = said(found[name], "InForce")
        assert word == "False/Overlapped"
        assert "on none of the 3 nodes that it selects: the older policy old wins on 3 nodes (n0, n1, n2)" in message
        assert "narrow one spec.nodeSelector" in message


def test_of_one_second_the_name_decides() -> None:
    found = judged(policy("b", 5), policy("a", 5), nodes=NODES)
    assert (found["a"]["selected"], found["b"]["selected"]) == (5, 0)


def test_several_older_ones_are_told_by_age_and_not_all_of_them() -> None:
    nodes = tuple(node(f"n{number}", pool=str(number)) for number in range(6))
    older = [policy(f"p{number}", 20 - number, {"pool": str(number)}) for number in range(5)]
    message = said(judged(policy("all", 30), *older, nodes=nodes)["all"], "InForce")[1]
    assert "the older policy p4 wins on 1 node (n4), the older policy p3 wins on 1 node (n3)" in message
    assert message.endswith("p2 wins on 1 node (n2), and 2 more")


def test_one_that_cannot_be_used_says_why_and_holds_its_nodes() -> None:
    found = judged(policy("bad", 1, {"tier": "gold"}, **BAD), policy("young", 2), nodes=NODES)
    word, message = said(found["bad"], "Accepted")
    assert word == "False/InvalidSpec"
    assert 'spec.remedies[0].checks[0]: "thermal.margn" is no check of this release; did you mean' in message
    assert found["bad"]["selected"] == 0
    word, message = said(found["bad"], "InForce")
    assert word == "False/NotAccepted"
    assert "nothing is done on the 3 nodes that it holds, by a younger policy neither" in message
    word, message = said(found["young"], "InForce")
    assert word == "True/PartlyOverlapped"
    assert "the older policy bad (which cannot be used, so that nothing is done there) wins on 3 nodes" in message


def test_labels_that_nobody_has() -> None:
    found = judged(policy("none", 0, {"tier": "platinum", "a": "b"}), nodes=NODES)
    assert said(found["none"], "InForce") == (
        "False/NoNodesSelected",
        "no node has the labels a=b, tier=platinum of spec.nodeSelector",
    )
    assert said(judged(policy("all"))["all"], "InForce") == ("False/NoNodesSelected", "there is no node")


def test_one_that_is_being_deleted_is_in_force_nowhere() -> None:
    going = policy("going")
    going["metadata"]["deletionTimestamp"] = "2026-11-30T11:00:00Z"
    found = judged(going, policy("young", 9), nodes=NODES)
    assert (found["going"]["selected"], found["young"]["selected"]) == (0, 5)
    assert said(found["going"], "InForce")[0] == "False/BeingDeleted"
    assert said(judged(going, nodes=NODES)["going"], "InForce")[0] == "False/BeingDeleted"


@pytest.mark.parametrize(
    ("leases", "word", "words"),
    [
        pytest.param((), "True/BreakerClosed", "stops nothing", id="nobody has asked yet"),
        pytest.param((lease("all"),), "True/BreakerClosed", "stops nothing", id="closed"),
        pytest.param((lease("other", "x"),), "True/BreakerClosed", "stops nothing", id="that of another"),
        pytest.param(
            (lease("all", Opened(NOW, 4, 9).text),),
            "False/BreakerOpen",
            "it opened at 2026-11-30T12:00:00Z, when 4 of 9 nodes had a critical finding: nothing new begins until a "
            "person closes it with kubectl -n agents annotate lease hisparse-pool-all inference.hisparse.dev/breaker-",
            id="open",
        ),
        pytest.param((lease("all", "stop it"),), "False/BreakerOpen", "it is open: nothing new", id="a person's words"),
    ],
)
def test_the_breaker_is_that_of_the_lease(leases: tuple[Document, ...], word: str, words: str) -> None:
    found = said(judged(policy("all"), leases=leases)["all"], "BreakerClosed")
    assert found[0] == word
    assert words in found[1]


def test_leases_that_we_may_not_see_are_unknown() -> None:
    word, message = said(judged(policy("all"), lease_sight=Sight.HIDDEN)["all"], "BreakerClosed")
    assert word == "Unknown/PoolsHidden"
    assert "bind the ClusterRole hisparse-operator-pools there" in message


def test_a_transition_time_moves_with_the_status_alone() -> None:
    one = policy("all", 5)
    one["status"] = judged(one, nodes=NODES)["all"]
    assert judged(one, nodes=NODES, now=LATER)["all"] == one["status"], "the same says the same an hour later"
    after = judged(one, policy("gold", selector={"tier": "gold"}), nodes=NODES, now=LATER)["all"]
    times = {each["type"]: each["lastTransitionTime"] for each in after["conditions"]}
    assert said(after, "InForce")[0] != said(one["status"], "InForce")[0]
    assert set(times.values()) == {"2026-11-30T12:00:00Z"}, "another reason is no transition"
    after = judged(one, now=LATER)["all"]
    times = {each["type"]: each["lastTransitionTime"] for each in after["conditions"]}
    assert times["InForce"] == "2026-11-30T13:00:00Z"
    assert times["Accepted"] == "2026-11-30T12:00:00Z"


def test_the_status_is_one_of_the_crd_and_every_word_is_explained() -> None:
    found = judged(policy("bad", **BAD), policy("all", 1), nodes=NODES)
    for status in found.values():
        whole = PolicyStatus.model_validate(status)
        assert whole.model_dump(by_alias=True, exclude_none=True) == status
        assert all(may_stand(one.type, one.status, one.reason) for one in whole.conditions or ())


def test_the_operator_and_the_agent_count_the_same_nodes() -> None:
    policies = [
        policy("a", 3, {"x": "1"}),
        policy("b", 2, {"y": "1"}),
        policy("c", 4),
        policy("d", 1, {"x": "2"}, **BAD),
    ]
    nodes = tuple(node(f"n{x}{y}", x=str(x), y=str(y)) for x in range(3) for y in range(2))
    found = judged(*policies, nodes=nodes)
    usable = [in_force([policy_of(one) for one in policies], one["metadata"]["labels"]) for one in nodes]
    for name, status in found.items():
        assert status["selected"] == sum(
            one is not None and one.name == name and one.spec is not None for one in usable
        )


# --- the shell: when it looks, and what it writes --------------------------------------------------------------------


@dataclass
class Server(Api):
    """Takes statuses; or answers as told."""

    answers: deque[Exception] = field(default_factory=deque)
    written: list[tuple[float, str]] = field(default_factory=list)
    version: int = 50

    async def apply(
        self, kind: Kind, document: Mapping[str, Any], manager: str, *, force: bool, subresource: str | None = None
    ) -> dict[str, Any]:
        assert (kind, manager, force, subresource) == (NODE_POLICY, STATUS_MANAGER, True, "status")
        assert set(document["metadata"]) == {"name", "resourceVersion"}
        self.written.append((round(asyncio.get_running_loop().time(), 3), document["metadata"]["name"]))
        if self.answers:
            raise self.answers.popleft()
        self.version += 100
        whole = policy(document["metadata"]["name"])
        generation = document["status"]["observedGeneration"]
        whole["metadata"] |= {"resourceVersion": str(self.version), "generation": generation}
        return whole | {"status": document["status"]}


def cache_of(*policies: Document, nodes: tuple[Document, ...] = NODES) -> Cache:
    cache = Cache()
    for kind, items in ((NODE_POLICY, policies), (NODE, nodes)):
        for item in items:
            cache.put(kind, item)
    for kind in (NODE_POLICY, POOL_LEASE):
        cache.see(kind, Sight.SEEN)
    return cache


def play(
    on_jumping_time: Runner, cache: Cache, server: Server, *steps: Callable[[PolicyKeeper], None], gap: float = 60
) -> list[tuple[float, str]]:
    """Let it run, with a step every `gap` seconds; what it wrote, and when."""

    async def run() -> None:
        keeper = PolicyKeeper(server, cache, lambda: NOW, "agents")
        task = asyncio.ensure_future(keeper.run())
        for step in steps:
            await asyncio.sleep(gap)
            assert not task.done(), "it never ends by itself"
            step(keeper)
        await asyncio.sleep(gap)
        keeper.close()
        await task

    on_jumping_time(run())
    return server.written


def put(cache: Cache, kind: Kind, item: Document) -> Callable[[PolicyKeeper], None]:
    def step(keeper: PolicyKeeper) -> None:
        change = cache.put(kind, item)
        if change is not None:
            keeper.changed(change)

    return step


def test_a_status_is_written_once_and_not_again_while_it_is_true(on_jumping_time: Runner) -> None:
    cache = cache_of(policy("a"), policy("b", 1))
    written = play(on_jumping_time, cache, Server(), *[PolicyKeeper.poke] * 5)
    assert written == [(0.2, "a"), (0.2, "b")]


def test_many_nodes_that_come_make_one_round(on_jumping_time: Runner) -> None:
    cache = cache_of(policy("a"))

    def wave(keeper: PolicyKeeper) -> None:
        for number in range(100):
            put(cache, NODE, node(f"new-{number}"))(keeper)

    assert play(on_jumping_time, cache, Server(), wave) == [(0.2, "a"), (70.0, "a")]


def test_what_a_node_says_of_itself_is_no_news(on_jumping_time: Runner) -> None:
    cache = cache_of(policy("a"))
    same = node("n0", tier="gold") | {"spec": {"unschedulable": True}}
    same["metadata"]["resourceVersion"] = "2"
    rounds = []
    keeper = PolicyKeeper(Server(), cache, lambda: NOW, "agents")

    async def run() -> None:
        for step in (put(cache, NODE, same), put(cache, NODE, node("n9"))):
            step(keeper)
            rounds.append(keeper._queue.delayed)
        keeper.close()

    on_jumping_time(run())
    assert rounds == [0, 1]


def test_an_edit_is_answered_at_once_and_a_foreign_status_later(on_jumping_time: Runner) -> None:
    cache = cache_of(policy("a"))
    edited = policy("a", **BAD)
    edited["metadata"] |= {"resourceVersion": "200", "generation": 4}
    foreign = policy("a", **BAD)
    foreign["metadata"] |= {"resourceVersion": "300", "generation": 4}
    foreign["status"] = {"selected": 99}
    server = Server()
    steps = (put(cache, NODE_POLICY, edited), put(cache, NODE_POLICY, foreign))
    assert play(on_jumping_time, cache, server, *steps) == [(0.2, "a"), (60.2, "a"), (130.0, "a")]


def test_a_breaker_that_opens_is_told_at_once(on_jumping_time: Runner) -> None:
    cache = cache_of(policy("a"))
    renewed = lease("a", "stop")
    renewed["metadata"] |= {"resourceVersion": "2"}
    renewed["metadata"]["annotations"] |= {"inference.hisparse.dev/slots": "[]"}
    server = Server()
    written = play(
        on_jumping_time, cache, server, put(cache, POOL_LEASE, lease("a", "stop")), put(cache, POOL_LEASE, renewed)
    )
    assert written == [(0.2, "a"), (60.2, "a")], "who holds a slot is no news"


@pytest.mark.parametrize(
    ("answer", "least"),
    [
        pytest.param(Transient("down", retry_seconds=7), 7, id="the server says when"),
        pytest.param(LeaseLostError("no"), 0.3, id="the lease may be lost"),
        pytest.param(ApiError(403, "Forbidden", "no"), 60, id="no right"),
    ],
)
def test_what_fails_is_tried_again(on_jumping_time: Runner, answer: Exception, least: float) -> None:
    written = play(on_jumping_time, cache_of(policy("a")), Server(deque([answer])), gap=200)
    assert [name for _, name in written] == ["a", "a"]
    assert written[1][0] - written[0][0] >= least


def test_one_that_is_refused_does_not_keep_the_others_from_theirs(on_jumping_time: Runner) -> None:
    server = Server(deque([ApiError(422, "Invalid", "no")]))
    assert play(on_jumping_time, cache_of(policy("a"), policy("b")), server)[:2] == [(0.2, "a"), (0.2, "b")]


@pytest.mark.parametrize("answer", [NotFoundError(404, "NotFound", "gone"), Conflict("Conflict", "newer")])
def test_one_that_changed_meanwhile_is_left_to_its_watch(on_jumping_time: Runner, answer: Exception) -> None:
    assert play(on_jumping_time, cache_of(policy("a")), Server(deque([answer]))) == [(0.2, "a")]


def test_a_bug_ends_nothing(on_jumping_time: Runner) -> None:
    server = Server(deque([ZeroDivisionError("bug")]))
    written = play(on_jumping_time, cache_of(policy("a")), server)
    assert [name for _, name in written] == ["a", "a"]


def test_kinds_that_we_do_not_see_are_left_alone(on_jumping_time: Runner) -> None:
    cache = cache_of(policy("a"))
    cache.see(NODE_POLICY, Sight.HIDDEN)
    assert play(on_jumping_time, cache, Server(), PolicyKeeper.poke) == []


def test_of_a_lease_the_cache_keeps_the_breaker() -> None:
    cache = cache_of()
    assert isinstance(cache.put(POOL_LEASE, lease("a")), Change)
    noisy = lease("a")
    noisy["metadata"] |= {"resourceVersion": "2", "annotations": {"inference.hisparse.dev/slots": "[]"}}
    assert cache.put(POOL_LEASE, noisy) is None
    assert [one["metadata"]["annotations"] for one in cache.optional(POOL_LEASE)] == [{}]
