"""What reconcile says and does, story by story, on a small cluster."""

import copy
import json
from typing import Any

import pytest
from simulator import BAD, H200, SETTINGS, SmallCluster, dense, inference, node

from hisparse import engine
from hisparse.planner import plan as plan_once
from hisparse.status import HiSparseInferenceStatus
from hisparse_operator.decide import planning, revisions
from hisparse_operator.decide.reasons import ConditionType, EventReason, Reason
from hisparse_operator.decide.reconcile import HUB_RETRY_SECONDS, reconcile, wants_hub, wants_logs
from hisparse_operator.settings import OperatorSettings
from hisparse_operator.world import HubFiles, World

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "hidden_size": 8192,
    "num_hidden_layers": 80,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
STRANGER = {"huggingFace": {"repo": "somebody/unheard-of"}}


def running(spec: dict[str, Any] | None = None, count: int = 2, **settings: Any) -> SmallCluster:
    cluster = SmallCluster(
        spec or dense(replicas=2), [node(f"n{i}") for i in range(count)], OperatorSettings(**settings)
    )
    cluster.settle()
    cluster.events.clear()
    return cluster


def expressions(*all_of: dict[str, Any]) -> dict[str, Any]:
    return {"matchExpressions": list(all_of)}


def reasons(cluster: SmallCluster) -> list[str]:
    return [event.reason for event in cluster.events]


# --- every word ------------------------------------------------------------------------------


def test_reasons_and_types_have_the_form_that_metav1_asks_for() -> None:
    assert all(word.isalnum() and word[0].isupper() for word in (*Reason, *EventReason, *ConditionType))


# --- the usual life ----------------------------------------------------------------------------------------------


def test_from_ten_lines_to_ready() -> None:
    cluster = SmallCluster(dense(), [node("n0")])
    cluster.operate()
    assert cluster.status["phase"] == "Starting"
    assert cluster.reason(ConditionType.READY) == "False/WaitingForPods"
    cluster.control()
    cluster.schedule()
    cluster.operate()
    assert cluster.reason(ConditionType.WORKLOAD_READY) == "False/Starting"
    assert "start-up budget" in cluster.condition(ConditionType.READY)["message"]
    cluster.settle()
    assert cluster.status["phase"] == "Ready"
    assert cluster.status["endpoint"] == {"url": "http://llama.serving.svc:8000", "service": "llama"}
    assert {one["type"]: f"{one['status']}/{one['reason']}" for one in cluster.status["conditions"]} == {
        "Accepted": "True/Valid",
        "PlanFeasible": "True/Fits",
        "Scheduled": "True/AllScheduled",
        "WorkloadReady": "True/MinimumReplicasReady",
        "TierActive": "False/Disabled",
        "RouteReady": "True/EndpointsReady",
        "Available": "True/Serving",
        "Progressing": "True/Complete",
        "Ready": "True/Proven",
    }
    assert reasons(cluster) == [
        "RevisionCreated",
        "PlanWarning",
        "PlanFits",
        "Scheduled",
        "Ready",  # which says what WorkloadReady and Available would
    ]
    assert all(not event.message[0].islower() and event.message.endswith(".") for event in cluster.events)


def test_conditions_that_nobody_can_judge_are_absent() -> None:
    types = {condition["type"] for condition in running().status["conditions"]}
    assert types.isdisjoint({"Verified", "ModelReady", "Degraded"})


def test_every_condition_names_the_generation_and_the_transition_moves_only_with_the_status() -> None:
    cluster = running()
    before = {condition["type"]: condition for condition in cluster.status["conditions"]}
    cluster.edit(dense(replicas=2, disruption={"maxUnavailable": 2}))
    cluster.operate()
    for condition in cluster.status["conditions"]:
        assert condition["observedGeneration"] == 2
        assert condition["lastTransitionTime"] == before[condition["type"]]["lastTransitionTime"]


def test_an_unpinned_model_is_warned_of_once_per_revision() -> None:
    spec = dense(model={"huggingFace": {"repo": "meta-llama/Llama-3.1-70B", "revision": "main"}})
    cluster = SmallCluster(spec, [node("n0")])
    cluster.settle()
    warnings = [event for event in cluster.events if event.reason == "PlanWarning" and "revision main" in event.message]
    assert len(warnings) == 1
    assert "revision main" in warnings[0].message
    cluster.scale(0)
    cluster.settle()
    assert reasons(cluster).count("PlanWarning") == 2, "once per revision: unpinned, and downloaded at every start"


def test_scaled_to_zero_is_said_and_is_not_ready() -> None:
    cluster = running()
    cluster.scale(0)
    cluster.settle()
    assert cluster.status["phase"] == "Stopped"
    assert cluster.reason(ConditionType.READY) == "False/ScaledToZero"
    assert cluster.reason(ConditionType.AVAILABLE) == "False/ScaledToZero"
    assert cluster.status["replicas"] == 0
    cluster.scale(1)
    cluster.settle()
    assert cluster.reason(ConditionType.READY) == "True/Proven"


def test_scaling_to_zero_is_one_event_and_no_warning() -> None:
    cluster = running()
    cluster.scale(0)
    cluster.settle()
    assert [(event.type, event.reason) for event in cluster.events] == [("Normal", "ScaledToZero")]
    assert cluster.reason(ConditionType.WORKLOAD_READY) == "False/ScaledToZero"
    assert not any("0 of 0" in condition["message"] for condition in cluster.status["conditions"])


@pytest.mark.parametrize("replicas", [1, 2])
def test_numbers_and_words_agree(replicas: int) -> None:
    cluster = SmallCluster(dense(replicas=replicas), [node(f"n{i}") for i in range(2)])
    cluster.settle()
    said = {condition["type"]: condition["message"] for condition in cluster.status["conditions"]}
    expected = {
        1: ("1 of 1 pod has a node", "1 of 1 pod takes requests", "1 of 1 replica is ready and takes requests"),
        2: ("2 of 2 pods have a node", "2 of 2 pods take requests", "2 of 2 replicas are ready and take requests"),
    }[replicas]
    assert said["Scheduled"] == expected[0]
    assert said["Available"] == expected[1]
    assert said["Ready"].endswith(expected[2])


def test_whole_requests_are_printed_as_whole_numbers() -> None:
    spec = dense(context={"maxTokens": 1}, model={"huggingFace": {"repo": "meta-llama/Llama-3.1-8B-Instruct"}})
    cluster = SmallCluster(spec, [node("n0")])
    cluster.settle()
    summary = cluster.status["plan"]["summary"]
    assert "requests of 1 token at once" in summary
    assert ".00" not in summary


def test_a_pod_without_a_node_waits_for_one_and_does_not_start() -> None:
    cluster = SmallCluster(dense(replicas=2), [node("n0")])
    cluster.settle()
    message = cluster.condition(ConditionType.WORKLOAD_READY)["message"]
    assert "waits for a node" in message
    assert "start-up budget" not in message


def test_a_small_node_that_holds_back_the_plan_is_an_event() -> None:
    cluster = SmallCluster(dense(), [node("n0"), node("n1", product="NVIDIA-L40S", memory="1Ti")])
    cluster.settle()
    (note,) = [event.message for event in cluster.events if "because of node n1" in event.message]
    assert "set resources.gpuProducts [NVIDIA-H200]" in note


def test_an_object_that_is_being_deleted_gets_nothing_new() -> None:
    world = World(inference(dense(), deletionTimestamp="2026-11-29T12:00:00Z"), nodes=(node("n0"),))
    outcome = reconcile(world, SmallCluster(dense(), []).now, SETTINGS)
    assert (outcome.apply, outcome.delete, outcome.status) == ((), (), None)


# --- what cannot be used, or does not fit ------------------------------------------------------------------------


def test_an_invalid_spec_makes_nothing() -> None:
    cluster = SmallCluster(dense(resources={"gpus": 0}), [node("n0")])
    cluster.settle()
    assert cluster.reason(ConditionType.READY) == "False/InvalidSpec"
    assert "spec.resources.gpus" in cluster.condition(ConditionType.READY)["message"]
    assert cluster.objects == {}
    assert cluster.status["phase"] == "Invalid"
    assert reasons(cluster)[:1] == ["InvalidSpec"]


BLOCKS: list[tuple[dict[str, Any], str]] = [
    ({"placement": {"affinity": {"nodeAffinity": "x"}}}, "spec.placement.affinity.nodeAffinity"),
    ({"placement": {"affinity": {"nodeAffinity": {REQUIRED: {}}}}}, f"nodeAffinity.{REQUIRED}.nodeSelectorTerms"),
    (
        {"placement": {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": "x"}}}}},
        f"nodeAffinity.{REQUIRED}.nodeSelectorTerms",
    ),
    (
        {
            "placement": {
                "affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [expressions({"operator": "In"})]}}}
            }
        },
        "nodeSelectorTerms[0].matchExpressions[0].key",
    ),
    (
        {"placement": {"affinity": {"podAntiAffinity": {REQUIRED: [{"labelSelector": {}}]}}}},
        f"podAntiAffinity.{REQUIRED}[0].topologyKey",
    ),
    ({"placement": {"tolerations": [{"key": 5}]}}, "spec.placement.tolerations[0].key"),
    ({"placement": {"tolerations": [{"tolerationSeconds": True}]}}, "spec.placement.tolerations[0].tolerationSeconds"),
    ({"placement": {"topologySpread": [{"maxSkew": 1}]}}, "spec.placement.topologySpread[0].topologyKey"),
    (
        {"engine": {"env": [{"name": "A", "valueFrom": {"secretKeyRef": "x"}}]}},
        "spec.engine.env[0].valueFrom.secretKeyRef",
    ),
    ({"engine": {"envFrom": [{"secretRef": "x"}]}}, "spec.engine.envFrom[0].secretRef"),
    ({"podTemplate": {"volumes": [{"name": "v", "emptyDir": 1}]}}, "spec.podTemplate.volumes[0].emptyDir"),
    (
        {"podTemplate": {"volumeMounts": [{"name": "v", "mountPath": "/v", "readOnly": "yes"}]}},
        "spec.podTemplate.volumeMounts[0].readOnly",
    ),
    ({"podTemplate": {"sidecars": [{"name": "s"}]}}, "spec.podTemplate.sidecars[0].image"),
    (
        {"podTemplate": {"sidecars": [{"name": "s", "image": "s:1", "ports": [{"containerPort": "http"}]}]}},
        "spec.podTemplate.sidecars[0].ports[0].containerPort",
    ),
    ({"podTemplate": {"securityContext": {"runAsUser": "root"}}}, "spec.podTemplate.securityContext.runAsUser"),
    (
        {"podTemplate": {"containerSecurityContext": {"capabilities": {"add": "ALL"}}}},
        "spec.podTemplate.containerSecurityContext.capabilities.add",
    ),
]


@pytest.mark.parametrize(("block", "field"), BLOCKS, ids=[field for _, field in BLOCKS])
def test_a_free_form_block_of_the_wrong_shape_is_named_and_costs_nothing(block: dict[str, Any], field: str) -> None:
    cluster = running()
    kept = cluster.names("Pod")
    cluster.edit(dense(replicas=2, **block))
    cluster.settle()
    assert cluster.reason(ConditionType.ACCEPTED) == "False/InvalidSpec"
    assert f"{field}: " in cluster.condition(ConditionType.READY)["message"]
    assert cluster.names("Pod") == kept


def test_fields_that_a_newer_kubernetes_may_have_are_passed_on() -> None:
    cluster = SmallCluster(
        dense(
            placement={"tolerations": [{"key": "a", "operator": "Gt", "value": "5", "newer": {"x": 1}}]},
            podTemplate={"volumes": [{"name": "v", "newer": {"x": 1}}], "securityContext": {"newer": 1}},
            engine={"envFrom": [{"newerRef": {}}]},
        ),
        [node("n0")],
    )
    cluster.settle()
    assert cluster.reason(ConditionType.READY) == "True/Proven"


def test_each_new_fault_of_a_spec_is_an_event_and_the_same_one_is_not() -> None:
    cluster = SmallCluster(dense(resources={"gpus": 0}), [node("n0")])
    cluster.settle()
    cluster.edit(dense(networking={"port": 8001}))
    cluster.settle()
    told = [event.message for event in cluster.events if event.reason == "InvalidSpec"]
    assert len(told) == 2
    assert "spec.networking.port: 8001" in told[1]


def test_what_no_schema_can_know_is_refused_with_field_and_number() -> None:
    cluster = SmallCluster(dense(context={"maxTokens": 2_000_000}), [node("n0")])
    cluster.settle()
    message = cluster.condition(ConditionType.ACCEPTED)["message"]
    assert cluster.reason(ConditionType.ACCEPTED) == "False/InvalidSpec"
    assert "spec.context.maxTokens" in message
    assert "2000000" in message
    assert cluster.objects == {}


def test_a_spec_that_turns_invalid_leaves_pods_and_children_alone_and_in_place() -> None:
    cluster = running()
    before = copy.deepcopy(cluster.objects)
    cluster.edit(dense(replicas=2, kvTier={"mode": "HiSparse"}, engine={"args": ["--max-model-len", "5"]}))
    cluster.settle()
    assert cluster.objects == before
    assert cluster.reason(ConditionType.ACCEPTED) == "False/InvalidSpec"
    assert cluster.reason(ConditionType.AVAILABLE) == "True/Serving"
    assert cluster.reason(ConditionType.WORKLOAD_READY) == "False/NotRolledOut"
    cluster.delete("Service", "llama")
    cluster.settle()
    assert cluster.names("Service") == ["llama"], "what an invalid spec holds is still put back"


def test_what_does_not_fit_makes_no_pods_and_says_what_would() -> None:
    cluster = SmallCluster(dense(resources={"gpus": 1}), [node("n0", product="NVIDIA-L40S")])
    cluster.settle()
    assert cluster.reason(ConditionType.READY) == "False/HBMInsufficient"
    assert cluster.status["phase"] == "DoesNotFit"
    assert cluster.status["plan"]["feasible"] is False
    assert cluster.status["plan"]["cheapestChange"]
    assert cluster.status["capacity"]["rejected"][0]["exampleNode"] == "n0"
    assert cluster.objects == {}


def test_a_change_that_does_not_fit_leaves_the_running_revision() -> None:
    cluster = running()
    pods = cluster.names("Pod")
    cluster.edit(dense(replicas=2, resources={"gpus": 8, "memory": "4Ti"}))
    cluster.settle()
    assert cluster.names("Pod") == pods
    assert cluster.reason(ConditionType.PLAN_FEASIBLE) == "False/NoMatchingNodes"
    assert cluster.reason(ConditionType.AVAILABLE) == "True/Serving"
    assert cluster.reason(ConditionType.READY) == "False/NoMatchingNodes"


def test_cordoned_nodes_take_nothing_from_what_runs() -> None:
    cluster = running()
    for one in cluster.nodes or ():
        one["spec"]["unschedulable"] = True
    cluster.settle()
    assert cluster.reason(ConditionType.READY) == "True/Proven"
    assert cluster.status["capacity"] == {
        "candidateNodes": 0,
        "rejected": [
            {
                "reason": "Cordoned",
                "count": 2,
                "product": H200,
                "exampleNode": "n0",
                "message": "n0 is cordoned; kubectl uncordon n0 when it may take pods again",
            }
        ],
    }
    cluster.edit(dense(replicas=2, restartToken="b"))
    cluster.settle()
    assert cluster.serving() == 2, "no healthy pod is taken while a new one would have no place"
    assert cluster.reason(ConditionType.PLAN_FEASIBLE) == "False/NoMatchingNodes"


def test_where_we_may_not_look_pods_run_and_the_plan_is_unknown() -> None:
    cluster = running()
    cluster.nodes = None
    cluster.edit(dense(replicas=2, restartToken="b"))
    cluster.operate()
    assert cluster.reason(ConditionType.PLAN_FEASIBLE) == "Unknown/NodesNotVisible"
    assert "gpuProducts" in cluster.condition(ConditionType.PLAN_FEASIBLE)["message"]
    assert "capacity" not in cluster.status


def test_ready_does_not_wait_for_a_plan_that_nobody_may_check() -> None:
    cluster = SmallCluster(dense(resources={"gpus": 8, "gpuProducts": [H200]}), [node("n0", product=None)])
    cluster.settle()
    assert cluster.reason(ConditionType.PLAN_FEASIBLE) == "Unknown/NoGPULabels"
    assert cluster.reason(ConditionType.READY) == "True/Proven"


# --- the hub -----------------------------------------------------------------------------------------------------


def test_the_hub_is_asked_for_a_model_that_nothing_is_known_of() -> None:
    def asked(spec: dict[str, Any]) -> tuple[str, str] | None:
        return wants_hub(World(inference(spec)))

    assert asked(dense()) is None, "the catalogue knows it"
    assert asked(dense(model=STRANGER)) == ("somebody/unheard-of", "main")
    assert asked(dense(model={**STRANGER, "config": CONFIG})) is None
    assert asked({"model": "nonsense"}) is None


def test_without_the_hub_the_plan_is_unknown_and_says_what_to_paste() -> None:
    cluster = SmallCluster(dense(model=STRANGER), [node("n0")])
    cluster.hub = HubFiles(None, None, "the hub answered 401")
    cluster.settle()
    assert cluster.reason(ConditionType.READY) == "False/UnknownModelFacts"
    message = cluster.condition(ConditionType.PLAN_FEASIBLE)["message"]
    assert all(word in message for word in ("401", "spec.model.config", "spec.model.facts"))
    assert cluster.objects == {}
    assert cluster.decide().retry_seconds == HUB_RETRY_SECONDS
    cluster.hub = HubFiles(CONFIG, {"metadata": {"total_size": 141_107_412_992}})
    cluster.settle()
    assert cluster.reason(ConditionType.READY) == "True/Proven"
    assert cluster.decide().retry_seconds is None


def test_a_frozen_revision_does_not_ask_the_hub_again() -> None:
    cluster = SmallCluster(dense(model=STRANGER), [node("n0")])
    cluster.hub = HubFiles(CONFIG, {"metadata": {"total_size": 141_107_412_992}})
    cluster.settle()
    assert wants_hub(cluster.world()) is None
    cluster.hub = HubFiles(None, None, "gone")
    cluster.settle()
    assert cluster.reason(ConditionType.READY) == "True/Proven"


def test_an_architecture_that_cannot_be_sized_is_unsupported_not_unknown() -> None:
    strange = {**CONFIG, "architectures": ["MambaForCausalLM"]}
    cluster = SmallCluster(dense(model={**STRANGER, "config": strange}), [node("n0")])
    cluster.settle()
    assert cluster.reason(ConditionType.ACCEPTED) == "False/UnsupportedModel"
    assert "MambaForCausalLM" in cluster.condition(ConditionType.ACCEPTED)["message"]


# --- revisions ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"replicas": 1},
        {"disruption": {"maxUnavailable": 2}},
        {"networking": {"networkPolicy": False}},
        {"engine": {}},
        {"engine": {"templateVersion": 1}},
    ],
    ids=str,
)
def test_what_shapes_no_pod_makes_no_revision(change: dict[str, Any]) -> None:
    cluster = running()
    pods = set(cluster.names("Pod"))
    cluster.edit(dense(**({"replicas": 2} | change)))
    cluster.settle()
    assert len(cluster.names("ControllerRevision")) == 1
    assert set(cluster.names("Pod")) <= pods


def test_a_newer_operator_restarts_nobody_and_only_notes_that_its_plan_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = running(dense(replicas=2, kvTier={"mode": "Offload"}))
    before = copy.deepcopy(cluster.objects)
    monkeypatch.setattr("hisparse.planner._OFFLOAD_CEILING", 32 * 2**30)
    monkeypatch.setattr(planning, "plan", plan_once)
    monkeypatch.setattr(revisions, "TEMPLATE_VERSION", 2)
    monkeypatch.setattr(engine, "TEMPLATE_VERSION", 2)
    cluster.settings = OperatorSettings(engine_image="engine:newer", launcher_image="engine:newer")
    cluster.settle()
    assert cluster.objects == before
    notes = [text for text in cluster.status["plan"]["warnings"] if "today's plan would differ" in text]
    assert len(notes) == 1
    assert "hostPool 32Gi instead of 64Gi" in notes[0]
    assert "restartToken" in notes[0]


def test_a_template_version_is_sticky_until_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = running()
    for module in ("hisparse_operator.decide.revisions", "hisparse.acceptance"):
        monkeypatch.setattr(f"{module}.TEMPLATE_VERSION", 2)
    cluster.edit(dense(replicas=2, restartToken="b"))
    cluster.settle()
    versions = {
        obj["data"]["templateVersion"] for (kind, _), obj in cluster.objects.items() if kind == "ControllerRevision"
    }
    assert versions == {1}
    cluster.edit(dense(replicas=2, restartToken="b", engine={"templateVersion": 2}))
    cluster.settle()
    taken = cluster.status["updateRevision"]
    cluster.edit(dense(replicas=2, restartToken="b"))
    cluster.settle()
    assert cluster.status["updateRevision"] == taken, "no longer naming it goes back to nothing"


def test_a_template_version_that_we_do_not_know_is_refused() -> None:
    cluster = SmallCluster(dense(engine={"templateVersion": 9}), [node("n0")])
    cluster.settle()
    assert cluster.reason(ConditionType.ACCEPTED) == "False/InvalidSpec"
    assert "engine.templateVersion: 9" in cluster.condition(ConditionType.ACCEPTED)["message"]


def test_history_keeps_as_many_revisions_as_it_should_and_the_one_that_served() -> None:
    cluster = running(dense(), revision_history_limit=2)
    for token in "abcd":
        cluster.edit(dense(restartToken=token))
        cluster.settle()
    assert len(cluster.names("ControllerRevision")) == 3
    for token in "efg":
        cluster.edit(dense(restartToken=token, engine={"args": [BAD]}))
        cluster.settle()
    assert f"llama-{cluster.status['currentRevision']}" in cluster.names("ControllerRevision")
    cluster.edit(dense(restartToken="d"))
    cluster.settle()
    assert cluster.reason(ConditionType.READY) == "True/Proven"


def test_the_revision_that_is_wanted_has_the_highest_number() -> None:
    cluster = running(dense())
    first = cluster.status["updateRevision"]
    cluster.edit(dense(restartToken="b"))
    cluster.settle()
    cluster.edit(dense())
    cluster.settle()
    numbers = {name: obj["revision"] for (kind, name), obj in cluster.objects.items() if kind == "ControllerRevision"}
    assert max(numbers, key=lambda name: numbers[name]) == f"llama-{first}"


@pytest.mark.parametrize(
    "kind", ["ReplicaSet", "ConfigMap", "Service", "ServiceAccount", "NetworkPolicy", "ControllerRevision"]
)
def test_a_child_that_was_deleted_by_hand_is_put_back_as_it_was(kind: str) -> None:
    cluster = running()
    name = cluster.names(kind)[0]
    before = copy.deepcopy(cluster.objects[kind, name])
    cluster.delete(kind, name)
    cluster.settle()
    after = cluster.objects[kind, name]
    for obj in (before, after):
        del obj["metadata"]["uid"]
        obj.get("data", {}).pop("products", None)  # cannot be read back, and is only for people
    assert after == before
    assert cluster.reason(ConditionType.READY) == "True/Proven"


def test_all_revisions_lost_at_once_restarts_nobody() -> None:
    cluster = running()
    pods = cluster.names("Pod")
    for name in cluster.names("ControllerRevision"):
        cluster.delete("ControllerRevision", name)
    del cluster.inference["status"]
    cluster.settle()
    assert cluster.names("Pod") == pods
    assert len(cluster.names("ControllerRevision")) == 1


def test_an_edited_replica_set_goes_back_to_the_frozen_template() -> None:
    cluster = running()
    name = cluster.names("ReplicaSet")[0]
    live = cluster.objects["ReplicaSet", name]
    frozen = copy.deepcopy(live["spec"])
    live["spec"]["template"]["spec"]["containers"][0]["args"].append("--edited")
    live["spec"]["replicas"] = 7
    cluster.operate()
    assert cluster.objects["ReplicaSet", name]["spec"] == frozen


def test_a_plan_that_somebody_replaced_is_deleted_and_made_again() -> None:
    cluster = running()
    name = cluster.names("ConfigMap")[0]
    good = copy.deepcopy(cluster.objects["ConfigMap", name]["data"])
    cluster.objects["ConfigMap", name]["data"] = {"plan.json": "{}"}
    cluster.settle()
    assert cluster.objects["ConfigMap", name]["data"] == good


@pytest.mark.parametrize(
    "data",
    [{"template": {}}, {}, None, {"template": {"spec": {"containers": [{}]}}, "templateVersion": "x"}, "longer"],
    ids=str,
)
def test_a_broken_revision_is_deleted_and_made_again(data: Any) -> None:
    cluster = running()
    name, pods = cluster.names("ControllerRevision")[0], cluster.names("Pod")
    live = cluster.objects["ControllerRevision", name]
    good = copy.deepcopy(live["data"])
    live["data"] = {**good, "more": 1} if data == "longer" else data
    cluster.settle()
    again = dict(cluster.objects["ControllerRevision", name]["data"])
    assert again | {"products": good["products"]} == good
    assert cluster.names("Pod") == pods
    cluster.edit(dense(replicas=2, restartToken="b"))
    cluster.settle()
    assert cluster.reason(ConditionType.READY) == "True/Proven"


def test_a_replica_set_that_is_being_deleted_is_waited_for() -> None:
    cluster = running()
    name = cluster.names("ReplicaSet")[0]
    cluster.objects["ReplicaSet", name]["metadata"]["deletionTimestamp"] = "2026-11-29T12:00:00Z"
    cluster.operate()  # the simulator fails on a write to it
    cluster.delete("ReplicaSet", name)
    cluster.settle()
    assert cluster.reason(ConditionType.READY) == "True/Proven"


def test_a_child_that_a_finalizer_holds_is_named_with_what_holds_it() -> None:
    cluster = running()
    service = cluster.objects["Service", "llama"]["metadata"]
    service["deletionTimestamp"], service["finalizers"] = "2026-11-29T12:00:00Z", ["example.com/lb"]
    cluster.operate()
    progressing = cluster.condition(ConditionType.PROGRESSING)
    assert (progressing["status"], progressing["reason"]) == ("True", "Complete")
    assert (
        "Service llama was deleted at 2026-11-29T12:00:00Z and is held by the finalizer example.com/lb: made "
        "again once the finalizer is removed, by whoever set it"
    ) in progressing["message"]
    cluster.edit(dense(replicas=2, paused=True))
    cluster.operate()
    assert "is held by" not in cluster.condition(ConditionType.PROGRESSING)["message"], "nothing is made while paused"
    cluster.edit(dense(replicas=2))
    service["finalizers"] = ["foregroundDeletion"]  # which goes by itself
    cluster.operate()
    assert "is held by" not in cluster.condition(ConditionType.PROGRESSING)["message"]


def test_a_held_child_that_nobody_needs_is_no_news() -> None:
    cluster = running()
    budget = cluster.objects["PodDisruptionBudget", "llama"]["metadata"]
    cluster.scale(1)
    budget["deletionTimestamp"], budget["finalizers"] = "2026-11-29T12:00:00Z", ["example.com/policy"]
    cluster.operate()
    assert "is held by" not in cluster.condition(ConditionType.PROGRESSING)["message"]


@pytest.mark.parametrize("name", ["llama-chat-template", "chat-template", "llama-0123456789"])
@pytest.mark.parametrize("owned", [True, False], ids=["owned", "labelled"])
def test_what_a_person_keeps_beside_our_children_stays(name: str, *, owned: bool) -> None:
    cluster = running()
    labels, owner = {"inference.hisparse.dev/inference": "llama"}, {"kind": "HiSparseInference", "uid": "uid-of-llama"}
    meta = {"name": name, "namespace": "serving", "uid": "u", "labels": labels} | (
        {"ownerReferences": [owner]} if owned else {}
    )
    theirs = {"kind": "ConfigMap", "metadata": meta, "data": {"a": "b"}}
    cluster.objects["ConfigMap", name] = copy.deepcopy(theirs)
    for token in "bcdefghijklmn":  # more than the history keeps
        cluster.edit(dense(replicas=2, restartToken=token))
        cluster.settle()
    assert cluster.objects["ConfigMap", name] == theirs
    assert cluster.reason(ConditionType.READY) == "True/Proven"


# --- whose child is it -------------------------------------------------------------------------------------------


def test_leftovers_of_a_deleted_namesake_are_not_adopted() -> None:
    cluster = running()
    cluster.inference = inference(dense(replicas=2), uid="uid-of-another-llama")
    outcome = cluster.decide()
    assert outcome.apply == ()
    assert outcome.delete == ()
    assert outcome.retry_seconds is not None
    cluster.operate()
    assert cluster.reason(ConditionType.PROGRESSING) == "False/ChildConflict"
    assert cluster.reason(ConditionType.READY) == "False/ChildConflict"
    message = cluster.condition(ConditionType.READY)["message"]
    assert "ServiceAccount llama belongs to HiSparseInference llama" in message
    assert "wait if a namesake was just deleted" in message
    cluster.objects.clear()
    cluster.settle()
    assert cluster.reason(ConditionType.READY) == "True/Proven"


def test_nobody_is_told_to_delete_a_replica_set_that_serves() -> None:
    cluster = running()
    (name,) = cluster.names("ReplicaSet")
    pods = cluster.names("Pod")
    owner = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "other", "uid": "u", "controller": True}
    theirs = cluster.objects["ReplicaSet", name]["metadata"]
    theirs["ownerReferences"] = [owner]
    cluster.operate()
    message = cluster.condition(ConditionType.PROGRESSING)["message"]
    assert f"ReplicaSet {name} belongs to Deployment other; " in message
    assert "remove the foreign ownerReference instead" in message
    del theirs["ownerReferences"]
    cluster.settle()
    assert cluster.reason(ConditionType.READY) == "True/Proven"
    assert cluster.names("Pod") == pods


def test_orphans_are_adopted_without_a_restart() -> None:
    cluster = running()
    pods = cluster.names("Pod")
    for (kind, _), obj in cluster.objects.items():
        if kind != "Pod":
            del obj["metadata"]["ownerReferences"]
    cluster.inference = inference(dense(replicas=2), uid="uid-of-another-llama")
    cluster.settle()
    assert cluster.names("Pod") == pods
    assert cluster.reason(ConditionType.READY) == "True/Proven"


# --- paused, planOnly --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("field", "reason"), [("paused", "Paused"), ("planOnly", "PlanOnly")])
def test_nothing_but_status_is_written(field: str, reason: str) -> None:
    cluster = running()
    before = copy.deepcopy(cluster.objects)
    cluster.edit(dense(replicas=1, restartToken="b", **{field: True}))
    cluster.settle()
    assert cluster.objects == before
    assert cluster.reason(ConditionType.PROGRESSING) == f"False/{reason}"
    assert reason in reasons(cluster)
    assert cluster.reason(ConditionType.AVAILABLE) == "True/Serving"
    assert cluster.status["plan"]["feasible"] is True
    cluster.edit(dense(replicas=1, restartToken="b"))
    cluster.settle()
    assert cluster.reason(ConditionType.READY) == "True/Proven"


def test_paused_holds_beside_a_fault_too() -> None:
    cluster = running()
    cluster.edit(dense(replicas=2, paused=True, context={"maxTokens": 0}))
    cluster.delete("Service", "llama")
    cluster.settle()
    assert cluster.names("Service") == []
    assert cluster.reason(ConditionType.ACCEPTED) == "False/InvalidSpec"


def test_paused_from_the_start_says_why_there_are_no_pods() -> None:
    cluster = SmallCluster(dense(paused=True), [node("n0")])
    cluster.settle()
    assert cluster.objects == {}
    assert cluster.reason(ConditionType.READY) == "False/Paused"
    cluster.edit(dense())
    cluster.settle()
    assert cluster.reason(ConditionType.READY) == "True/Proven"


def test_a_record_that_was_lost_is_put_back_and_not_told_of_again() -> None:
    cluster = running()
    cluster.delete("ControllerRevision", cluster.names("ControllerRevision")[0])
    cluster.settle()
    assert len(cluster.names("ControllerRevision")) == 1
    assert reasons(cluster) == []


def test_plan_only_from_the_start_makes_only_a_plan() -> None:
    cluster = SmallCluster(dense(planOnly=True), [node("n0")])
    cluster.settle()
    assert cluster.objects == {}
    assert cluster.status["plan"]["feasible"] is True
    assert cluster.status["phase"] == "Planned"
    assert cluster.reason(ConditionType.READY) == "False/PlanOnly"


# --- what goes wrong with pods -----------------------------------------------------------------------------------


def test_a_failure_is_named_by_its_signature_and_read_once() -> None:
    cluster = SmallCluster(dense(engine={"args": [BAD]}), [node("n0")])
    cluster.log = (
        "INFO start\r\n(EngineCore pid=71) ValueError: HiSparse host pool has 8525 blocks but max_model_len needs 16386; "
        "increase host_pool_gib.\r\nRuntimeError: Engine core initialization failed. See root cause above."
    )
    cluster.settle()
    failure = cluster.status["lastFailure"]
    assert failure["signature"] == "HostPoolTooSmall"
    assert "8525 blocks" in failure["logTail"]
    assert failure["exitCode"] == 1
    assert wants_logs(cluster.world()) == ()
    assert reasons(cluster).count("EngineFailed") == 1
    assert cluster.reason(ConditionType.READY) == "False/CrashLoop"
    assert cluster.status["phase"] == "Failed"
    told = next(event for event in cluster.events if event.reason == "EngineFailed")
    assert "HostPoolTooSmall" in told.message


def test_a_failure_is_remembered_when_its_pod_is_gone() -> None:
    cluster = SmallCluster(dense(engine={"args": [BAD]}), [node("n0")])
    cluster.settle()
    failure = cluster.status["lastFailure"]
    cluster.edit(dense())
    cluster.settle()
    assert cluster.reason(ConditionType.READY) == "True/Proven"
    assert cluster.status["lastFailure"] == failure


def test_a_pod_that_restarts_after_the_rollout_is_not_a_failed_rollout() -> None:
    cluster = running()
    cluster.crash(cluster.pods()[0], code=137, reason="OOMKilled")
    cluster.operate()
    assert cluster.reason(ConditionType.PROGRESSING) == "True/Complete"
    assert cluster.reason(ConditionType.WORKLOAD_READY) == "False/OOMKilled"
    assert cluster.reason(ConditionType.AVAILABLE) == "True/Serving"
    assert cluster.status["phase"] == "Degraded"
    assert "NotReady" in reasons(cluster)


def test_a_quota_speaks_in_its_own_words() -> None:
    cluster = SmallCluster(dense(), [node("n0")])
    cluster.operate()
    (rs,) = cluster.replica_sets()
    message = 'pods "llama-x" is forbidden: exceeded quota: team'
    rs["status"] = {"conditions": [{"type": "ReplicaFailure", "status": "True", "message": message}]}
    cluster.operate()
    assert cluster.reason(ConditionType.SCHEDULED) == "False/QuotaExceeded"
    assert "exceeded quota: team" in cluster.condition(ConditionType.READY)["message"]


def test_a_note_on_the_plan_does_not_pile_up_when_revisions_are_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = running(dense(kvTier={"mode": "Offload"}))
    monkeypatch.setattr("hisparse.planner._OFFLOAD_CEILING", 32 * 2**30)
    monkeypatch.setattr(planning, "plan", plan_once)
    for _ in range(3):
        cluster.settle()
        cluster.delete("ControllerRevision", cluster.names("ControllerRevision")[0])
    cluster.settle()
    assert sum("would differ" in text for text in cluster.status["plan"]["warnings"]) == 1


def test_the_status_is_what_the_schema_knows() -> None:
    for spec in (dense(), dense(engine={"args": [BAD]}), dense(resources={"gpus": 64}), dense(planOnly=True)):
        cluster = SmallCluster(spec, [node("n0"), node("n1", unschedulable=True)])
        cluster.settle()
        status = dict(cluster.status)
        read = HiSparseInferenceStatus.model_validate(status).model_dump(by_alias=True, exclude_unset=True, mode="json")
        assert json.dumps(read, sort_keys=True) == json.dumps(status, sort_keys=True)
