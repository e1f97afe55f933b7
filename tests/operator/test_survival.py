"""Whatever happens, in any order, the operator comes to rest, says why it takes a pod, and takes none without a cause."""

import copy
import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from rough_cluster import KINDS, RoughCluster, rest
from simulator import BAD, GRACE, REFUSED, SETTINGS, UNMADE, dense, node

from hisparse import spec as spec_module
from hisparse.spec import HiSparseInferenceSpec, parse_stored_spec
from hisparse_operator.decide import planning, podtemplate, recall, revisions
from hisparse_operator.decide.identity import REVISION_LABEL, is_going
from hisparse_operator.decide.planning import model_facts
from hisparse_operator.decide.reasons import ConditionType
from hisparse_operator.kinds import LABEL
from hisparse_operator.settings import OperatorSettings

render_template = podtemplate.pod_template
NEWER_SETTINGS = OperatorSettings(engine_image="hisparse-engine:newer", launcher_image="hisparse-engine:newer")


class NewerSpec(HiSparseInferenceSpec):
    """With a field that has a default, which the API server fills in."""

    new_thing: int = 5


@contextmanager
def newer_release() -> Iterator[None]:
    """The operator of a release whose templates are another version, and are really others."""

    def template(*arguments: Any) -> dict[str, Any]:
        made = render_template(*arguments)
        made["spec"]["containers"][0]["env"].append({"name": "NEWER", "value": "yes"})
        made["spec"]["terminationGracePeriodSeconds"] += 1
        return made

    with ExitStack() as stack:
        stack.enter_context(patch.object(spec_module, "HiSparseInferenceSpec", NewerSpec))
        stack.enter_context(patch.object(revisions, "TEMPLATE_VERSION", 2))
        stack.enter_context(patch.object(podtemplate, "pod_template", template))
        yield


GOOD = [
    dense(replicas=1),
    dense(replicas=2),
    dense(replicas=3),
    dense(replicas=2, restartToken="b"),
    dense(replicas=3, restartToken="c"),
    dense(replicas=0),
    dense(replicas=2, engine={}),
]
OTHER = [
    dense(replicas=2, engine={"args": [BAD]}),
    dense(replicas=3, engine={"args": [BAD]}, restartToken="c"),
    dense(replicas=2, context={"maxTokens": 0}),
    dense(replicas="two"),
    dense(replicas=2, context={"maxTokens": 10_000_000}),
    dense(replicas=2, model={"huggingFace": {"repo": "nobody/nothing"}}),
    dense(replicas=3, **REFUSED),
    dense(replicas=3, **UNMADE),
    dense(replicas=3, placement={"nodeSelector": {"kubernetes.io/hostname": "node-1"}}),
]
AT_REST = [dense(replicas=2, restartToken="b", paused=True), dense(replicas=2, planOnly=True)]
SHARED = ["Service", "ServiceAccount", "NetworkPolicy", "PodDisruptionBudget"]
FROZEN = ["ControllerRevision", "ConfigMap"]

KUBERNETES = ["collect", "control", "schedule", "start", "finish"]

writes = st.integers(0, 12)
age = st.integers(1, 6)
which = st.integers(0, 9)
some_kinds = st.frozensets(st.sampled_from(KINDS), min_size=1)


noisy = precondition(lambda self: not self.quiet)
"""A rule that takes pods, or asks for others."""


class Survival(RuleBasedStateMachine):
    """Rules that take no pod keep `calm`: the pods of the last rest have to be there still."""

    def __init__(self) -> None:
        super().__init__()
        self.cluster = RoughCluster(dense(replicas=2), [node(f"node-{index}") for index in range(4)])
        self.gone: list[dict[str, Any]] = []
        self.calm: frozenset[str] | None = None
        self.intruded = False
        self.quiet = False
        self.asleep = self.cluster.long_ago(0)

    @initialize(replicas=st.integers(1, 3), quiet=st.booleans())
    def first_made(self, replicas: int, *, quiet: bool) -> None:
        self.quiet = quiet
        self.cluster.scale(replicas)
        rest(self.cluster)
        self.calm = self.pods()

    # --- the operator -------------------------------------------------------------------------------------------

    @rule()
    def passes(self) -> None:
        self.cluster.operate()

    @rule(writes=writes, lost=st.booleans())
    def a_pass_is_killed(self, writes: int, *, lost: bool) -> None:
        self.cluster.attempt(self.cluster.lagging(frozenset(), 0), writes, lost=lost)
        self.cluster.restart()

    @rule(writes=writes, lost=st.booleans())
    def writes_fail_in_the_middle_of_a_pass(self, writes: int, *, lost: bool) -> None:
        self.cluster.attempt(self.cluster.lagging(frozenset(), 0), writes, lost=lost)

    @rule(rounds=st.integers(1, 4))
    def rounds_go_by(self, rounds: int) -> None:
        for _ in range(rounds):
            self.cluster.operate()
            for actor in KUBERNETES:
                getattr(self.cluster, actor)()

    @rule(kinds=some_kinds, age=age, writes=writes)
    def a_pass_sees_some_kinds_as_they_were(self, kinds: frozenset[str], age: int, writes: int) -> None:
        self.cluster.attempt(self.cluster.lagging(kinds, age), writes)

    @rule()
    def a_leader_falls_asleep(self) -> None:
        self.asleep = self.cluster.long_ago(0)
        self.cluster.restart()

    @rule(writes=writes)
    def an_old_leader_wakes_up_in_the_middle_of_a_pass(self, writes: int) -> None:
        before = set(self.cluster.objects)
        self.cluster.attempt(self.asleep, writes, theirs=True)
        if any(kind == "ReplicaSet" for kind, _ in set(self.cluster.objects) - before):
            self.intruded = True

    @rule(newer=st.booleans())
    def the_operator_is_of_another_release(self, *, newer: bool) -> None:
        self.cluster.release = newer_release if newer else ExitStack
        self.cluster.settings = NEWER_SETTINGS if newer else SETTINGS
        self.cluster.restart()

    @rule()
    def the_crd_gets_a_field_with_a_default(self) -> None:
        self.cluster.filled = {"newThing": 5}
        self.cluster.inference["spec"] |= self.cluster.filled

    @rule(hours=st.sampled_from([-1, 0, 24]))
    def the_clock_jumps(self, hours: int) -> None:
        self.cluster.skew = timedelta(hours=hours)

    # --- Kubernetes ---------------------------------------------------------------------------------------------

    @rule(actor=st.sampled_from(KUBERNETES))
    def kubernetes_acts(self, actor: str) -> None:
        getattr(self.cluster, actor)()

    @rule()
    def time_passes(self) -> None:
        self.cluster.now += GRACE + timedelta(seconds=30)

    @rule(kind=st.sampled_from(["ReplicaSet", "Service", "ConfigMap"]))
    def the_api_server_refuses(self, kind: str) -> None:
        self.cluster.refusing ^= {kind}

    # --- people, who take no pod --------------------------------------------------------------------------------

    @rule(part=st.sampled_from(["status", "labels", "annotations"]))
    def the_inference_is_replaced(self, part: str) -> None:
        if part == "status":
            self.cluster.inference.pop("status", None)
        else:
            self.cluster.inference["metadata"].pop(part, None)

    @rule(kind=st.sampled_from(SHARED + FROZEN), which=which)
    def a_child_is_deleted(self, kind: str, which: int) -> None:
        self.take(kind, which, self.cluster.objects.pop)

    @rule(kinds=st.frozensets(st.sampled_from(SHARED + FROZEN), min_size=1))
    def all_children_of_some_kinds_are_deleted(self, kinds: frozenset[str]) -> None:
        for key in [key for key in self.cluster.objects if key[0] in kinds]:
            del self.cluster.objects[key]
            self.cluster.beside.pop(key, None)

    @rule(
        kind=st.sampled_from([*SHARED, *FROZEN, "ReplicaSet"]),
        which=which,
        part=st.sampled_from(["labels", "annotations", "ownerReferences", LABEL, REVISION_LABEL]),
    )
    def metadata_of_a_child_is_wiped(self, kind: str, which: int, part: str) -> None:
        def wipe(key: tuple[str, str]) -> None:
            metadata = self.cluster.objects[key]["metadata"]
            metadata.get("labels", {}).pop(part, None)
            metadata.pop(part, None)

        self.take(kind, which, wipe)

    @rule(kind=st.sampled_from(SHARED + FROZEN), which=which)
    def a_child_is_made_anew_with_other_content(self, kind: str, which: int) -> None:
        def spoil(key: tuple[str, str]) -> None:
            made = copy.deepcopy(self.cluster.objects[key])
            made["metadata"] |= {"uid": self.cluster._uid(), "managedFields": []}
            made |= {"data": {"template": {}}} if kind in FROZEN else {"spec": {}}
            self.cluster.objects[key] = made

        self.take(kind, which, spoil)

    @rule(which=which)
    def the_template_of_a_replica_set_is_edited(self, which: int) -> None:
        def edit(key: tuple[str, str]) -> None:
            self.cluster.objects[key]["spec"]["template"]["spec"]["containers"][0]["image"] = "by-hand"

        self.take("ReplicaSet", which, edit)

    @rule(kind=st.sampled_from(SHARED), labelled=st.booleans())
    def a_name_that_we_need_is_somebody_elses(self, kind: str, *, labelled: bool) -> None:
        self.cluster.intrude(kind, "llama", labelled=labelled)

    @rule(name=st.sampled_from(["llama-chat-template", "chat-template", "llama-0123456789"]), owned=st.booleans())
    def somebody_makes_an_object_with_our_label(self, name: str, *, owned: bool) -> None:
        """To be collected with the inference, or as a copy of one of ours."""
        self.cluster.stand_beside("ConfigMap", name, owned=owned)

    @rule(which=which, labelled=st.booleans())
    def a_revision_is_made_anew_by_somebody_else(self, which: int, *, labelled: bool) -> None:
        kind = FROZEN[which % 2]
        self.take(kind, which, lambda key: self.cluster.intrude(kind, key[1], labelled=labelled))

    # --- people and nodes, who mean it --------------------------------------------------------------------------

    @noisy
    @rule(spec=st.one_of(st.sampled_from(GOOD), st.sampled_from(GOOD + OTHER + AT_REST)))
    def the_spec_is_edited(self, spec: dict[str, Any]) -> None:
        if spec | self.cluster.filled != self.cluster.inference["spec"]:
            self.calm = None
            self.cluster.edit(copy.deepcopy(spec))

    @noisy
    @rule(replicas=st.integers(0, 3))
    def it_is_scaled(self, replicas: int) -> None:
        self.calm = None
        self.cluster.scale(replicas)

    @rule(spec=st.sampled_from(GOOD + OTHER))
    def an_edit_is_reverted_at_once(self, spec: dict[str, Any]) -> None:
        before = self.cluster.inference["spec"]
        self.cluster.edit(copy.deepcopy(spec))
        self.cluster.edit(before)

    @noisy
    @rule(which=which, replicas=st.integers(0, 3))
    def a_replica_set_is_scaled_by_hand(self, which: int, replicas: int) -> None:
        self.calm = None
        self.take("ReplicaSet", which, lambda key: self.cluster.tell(key[1], replicas))

    @noisy
    @rule(which=which, how=st.sampled_from(["delete", "orphan", "lose", "by label"]))
    def a_replica_set_is_taken_away(self, which: int, how: str) -> None:
        self.calm = None
        self.cluster.disturb()

        def away(key: tuple[str, str]) -> None:
            if how == "delete":
                self.cluster.delete(*key)
            elif how == "by label":
                self.cluster.unlabel(*key, LABEL)
            else:
                getattr(self.cluster, how)(key[1])

        self.take("ReplicaSet", which, away)

    @noisy
    @rule(which=which, what=st.sampled_from(["evict", "hang", "unready", "unlabel", "fail", "orphan", "unroute"]))
    def a_pod_is_hit(self, which: int, what: str) -> None:
        self.calm = None
        self.cluster.disturb()

        def hit(key: tuple[str, str]) -> None:
            pod = self.cluster.objects[key]
            if what in ("evict", "hang"):
                self.cluster.evict(key[1], hangs=what == "hang")
            elif what == "unroute":  # the controller of EndpointSlices does not get to it
                self.cluster.unrouted.add(key[1])
            elif what == "unlabel":
                self.cluster.unlabel(*key, REVISION_LABEL)
            elif what == "orphan":
                pod["metadata"]["ownerReferences"] = []
            elif not pod["spec"].get("nodeName"):
                pass
            elif what == "unready":
                self.cluster.set_ready(pod, ready=False)
            else:
                self.cluster.set_ready(pod, ready=False)
                pod["status"] |= {"phase": "Failed", "reason": "Evicted"}

        self.take("Pod", which, hit)

    @rule(which=which, what=st.sampled_from(["cordon", "uncordon", "full", "free"]))
    def a_node_changes(self, which: int, what: str) -> None:
        self.cluster.disturb()
        if not self.cluster.nodes:
            return
        name = self.cluster.nodes[which % len(self.cluster.nodes)]["metadata"]["name"]
        if what in ("cordon", "uncordon"):
            self.cluster.cordon(name, on=what == "cordon")
        elif what == "full":
            self.cluster.full.add(name)
        else:
            self.cluster.full.discard(name)

    @noisy
    @rule(which=which)
    def a_node_vanishes(self, which: int) -> None:
        if not self.cluster.nodes:
            return
        self.calm = None
        self.cluster.disturb()
        gone = self.cluster.nodes.pop(which % len(self.cluster.nodes))
        self.gone.append(gone)
        for pod in self.cluster.pods():
            if pod["spec"].get("nodeName") == gone["metadata"]["name"]:
                self.cluster.evict(pod["metadata"]["name"], hangs=True)

    @rule(product=st.sampled_from(["NVIDIA-H100-80GB-HBM3", "NVIDIA-B200", None]))
    def a_node_of_another_kind_comes(self, product: str | None) -> None:
        if self.cluster.nodes is not None and len(self.cluster.nodes) < 6:
            self.cluster.nodes.append(node(f"other-{self.cluster._uid()}", product=product))

    # --- rest ---------------------------------------------------------------------------------------------------

    @rule()
    def everything_comes_to_rest(self) -> None:
        rest(self.cluster)
        self.still()
        if self.cluster.reason(ConditionType.READY) == "True/Proven":
            self.calm, self.intruded = self.pods(), False

    @invariant()
    def nobody_is_taken_over(self) -> None:
        for key, obj in (self.cluster.foreign | self.cluster.beside).items():
            live = self.cluster.objects.get(key)
            # one that a person deleted since may be ours now
            assert live is None or live == obj or live["metadata"]["uid"] != obj["metadata"]["uid"]

    @invariant()
    def ready_is_what_the_numbers_say(self) -> None:
        if self.cluster.reason(ConditionType.READY).startswith("True/"):
            counts = ("replicas", "readyReplicas", "updatedReplicas", "servingReplicas")
            assert len({self.cluster.status[one] for one in counts}) == 1, self.cluster.status

    @invariant()
    def no_pod_goes_while_nobody_asks_for_anything(self) -> None:
        self.cluster.remember()
        if self.calm is None:
            return
        pods = self.pods()
        assert self.calm <= pods, "a pod was taken, and nobody asked for anything"
        assert self.intruded or pods <= self.calm, "a pod was made, and nobody asked for anything"

    def teardown(self) -> None:
        rest(self.cluster)
        self.still()
        self.cluster.heal()
        if self.cluster.nodes is not None:
            self.cluster.nodes += self.gone
        good = dense(replicas=2, restartToken="final")
        self.cluster.edit(good)
        rest(self.cluster)
        self.still()
        assert self.cluster.serving() == len(self.cluster.names("Pod")) == 2
        assert self.cluster.reason(ConditionType.READY) == "True/Proven"
        revision = f"llama-{self.cluster.status['updateRevision']}"
        ours = [name for name in self.cluster.names("ConfigMap") if ("ConfigMap", name) not in self.cluster.beside]
        assert self.cluster.names("ReplicaSet") == ours == [revision]
        assert revision in self.cluster.names("ControllerRevision")
        for kind in SHARED:
            assert self.cluster.names(kind) == ["llama"]

    # --- helpers ------------------------------------------------------------------------------------------------

    def pods(self) -> frozenset[str]:
        return frozenset(pod["metadata"]["uid"] for pod in self.cluster.pods() if not is_going(pod))

    def take(self, kind: str, which: int, act: Callable[[tuple[str, str]], object]) -> None:
        """Do something to one object of a kind, if there is one that is not somebody else's."""
        if keys := sorted(key for key in self.cluster.objects if key[0] == kind and not self.cluster.is_foreign(key)):
            act(keys[which % len(keys)])

    def still(self) -> None:
        self.cluster.events.clear()
        assert self.cluster.operate() == 0
        assert self.cluster.events == []


@contextmanager
def remembered() -> Iterator[None]:
    """Specs are parsed, and facts of models read, once for each release: both are most of what a pass costs."""
    specs: dict[tuple[str, str], Any] = {}
    facts: dict[tuple[str, str], Any] = {}

    def parse(text: str) -> Any:
        key = (spec_module.HiSparseInferenceSpec.__name__, text)
        if key not in specs:
            specs[key] = parse_stored_spec(json.loads(text), metadata={})
        return specs[key]

    def read(spec: Any, hub: Any) -> Any:
        key = (spec.model.model_dump_json(exclude_unset=True), repr(hub))
        if key not in facts:
            facts[key] = model_facts(spec, hub)
        return facts[key]

    with patch.object(recall, "_sound", parse), patch.object(planning, "model_facts", read):
        yield


def survive(examples: int, steps: int) -> None:
    with remembered():
        run_state_machine_as_test(
            Survival,
            settings=settings(
                max_examples=examples,
                stateful_step_count=steps,
                deadline=None,
                derandomize=not os.environ.get("HYPOTHESIS_PROFILE"),
                database=None,
                suppress_health_check=list(HealthCheck),
            ),
        )


def test_the_operator_survives_anything() -> None:
    survive(examples=20, steps=25)


@pytest.mark.faults
@pytest.mark.timeout(900)
def test_the_operator_survives_anything_for_long() -> None:
    survive(examples=200, steps=50)


# --- what the machine found, one by one ----------------------------------------------------------------------------


def rested(replicas: int = 2) -> RoughCluster:
    cluster = RoughCluster(dense(replicas=replicas), [node(f"node-{index}") for index in range(4)])
    rest(cluster)
    return cluster


def test_an_old_leader_that_has_not_seen_a_replica_set_does_not_scale_it() -> None:
    """It asks for the object before it writes it, and finds one on whose pods it has decided nothing."""
    cluster = RoughCluster(dense(replicas=2), [node(f"node-{index}") for index in range(4)])
    asleep = cluster.long_ago(0)
    cluster.scale(3)
    rest(cluster)
    cluster.attempt(asleep, theirs=True)
    cluster.control()
    assert cluster.serving() == 3


def test_a_late_delete_does_not_take_a_replica_set_that_was_filled_again() -> None:
    cluster = rested()
    first, good = cluster.status["currentRevision"], cluster.inference["spec"]
    cluster.edit(dense(replicas=2, restartToken="b"))
    for _ in range(80):
        asleep = cluster.long_ago(0)
        # one write each, so that there is a pass that only deletes
        cluster.attempt(cluster.lagging(frozenset(), 0), 1)
        if f"llama-{first}" not in cluster.names("ReplicaSet"):
            break
        for actor in KUBERNETES:
            getattr(cluster, actor)()
    # this one was about to delete it; the leader since then has not, and goes back to it
    cluster.objects, cluster.inference = copy.deepcopy(dict(asleep.objects)), copy.deepcopy(asleep.inference)
    cluster.edit(good)
    rest(cluster)
    pods = cluster.names("Pod")
    assert cluster.status["currentRevision"] == first
    cluster.attempt(asleep, theirs=True)
    assert f"llama-{first}" in cluster.names("ReplicaSet")
    assert cluster.names("Pod") == pods
    assert cluster.serving() == 2


@pytest.mark.parametrize("kind", ["ControllerRevision", "ReplicaSet", "ConfigMap", "Service"])
def test_a_child_that_has_lost_its_labels_gets_them_back(kind: str) -> None:
    """Without them the watches do not show it: a ControllerRevision was taken for lost, and what was read back from
    its ReplicaSet written over it, which the API server refuses for ever."""
    cluster = rested()
    pods = cluster.names("Pod")
    for (of, _), obj in cluster.objects.items():
        if of == kind:
            del obj["metadata"]["labels"]
    rest(cluster)
    assert cluster.reason(ConditionType.READY) == "True/Proven"
    assert cluster.names("Pod") == pods
    assert all(LABEL in obj["metadata"]["labels"] for obj in cluster.objects.values())


@pytest.mark.parametrize("kind", ["ControllerRevision", "ReplicaSet", "ConfigMap"])
def test_a_child_without_owner_and_revision_label_is_known_by_its_name(kind: str) -> None:
    """It was taken for lost, and what was read back written over it, which the API server refuses for ever."""
    cluster = rested()
    pods = cluster.names("Pod")
    (name,) = cluster.names(kind)
    metadata = cluster.objects[kind, name]["metadata"]
    del metadata["ownerReferences"], metadata["labels"][REVISION_LABEL]
    rest(cluster)
    assert cluster.reason(ConditionType.READY) == "True/Proven"
    assert cluster.names("Pod") == pods
    assert metadata["labels"][REVISION_LABEL] in name
    cluster.edit(dense(replicas=2, restartToken="b"))
    rest(cluster)
    if kind != "ControllerRevision":  # which is history
        assert name not in cluster.names(kind)


@pytest.mark.parametrize("also_lost", [(), ("status",)], ids=["the status is there", "the status is lost too"])
def test_what_is_left_of_a_revision_keeps_its_template_version(also_lost: tuple[str, ...]) -> None:
    """Its record and its plan were deleted while the operator was upgraded: its ReplicaSet says what it was."""
    cluster = rested()
    pods, template = cluster.names("Pod"), copy.deepcopy(cluster.replica_sets()[0]["spec"]["template"])
    cluster.release, cluster.settings = newer_release, NEWER_SETTINGS
    cluster.restart()
    for key in [key for key in cluster.objects if key[0] in FROZEN]:
        del cluster.objects[key]
    for part in also_lost:
        del cluster.inference[part]
    rest(cluster)
    assert cluster.reason(ConditionType.READY) == "True/Proven"
    assert cluster.names("Pod") == pods
    (left,) = cluster.replica_sets()
    assert left["spec"]["template"] == template


@pytest.mark.parametrize("newer_first", [True, False], ids=["the operator first", "the CRD first"])
def test_a_field_with_a_default_restarts_no_pod(*, newer_first: bool) -> None:
    cluster = rested()
    pods, revision = cluster.names("Pod"), cluster.status["updateRevision"]
    steps = [lambda: setattr(cluster, "release", newer_release), lambda: cluster.inference["spec"].update(newThing=5)]
    for step in steps if newer_first else reversed(steps):
        step()
        rest(cluster)
        assert cluster.reason(ConditionType.READY) == "True/Proven"
        assert cluster.names("Pod") == pods
        assert cluster.status["updateRevision"] == revision
    cluster.edit({**cluster.inference["spec"], "newThing": 6})
    rest(cluster)
    assert cluster.status["updateRevision"] != revision, "a value that is not the default is asked for"


def test_a_field_that_only_a_newer_crd_knows_is_named_and_left_out() -> None:
    cluster = rested()
    cluster.edit({**cluster.inference["spec"], "newThing": 5, "context": {"maxTokens": 131072, "odd": {"a": 1}}})
    rest(cluster)
    accepted = cluster.condition(ConditionType.ACCEPTED)
    assert accepted["status"] == "True"
    assert "spec.newThing, spec.context.odd are fields of a newer CRD" in accepted["message"].replace(
        "spec.context.odd, spec.newThing", "spec.newThing, spec.context.odd"
    )
    assert cluster.reason(ConditionType.READY) == "True/Proven"
