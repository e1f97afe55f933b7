"""Which nodes can hold a replica, and what PlanFeasible makes of it."""

from typing import Any

import pytest
from simulator import H200, SETTINGS, dense, node

from hisparse.model import facts_for
from hisparse.spec import parse_spec
from hisparse_operator.decide import admission
from hisparse_operator.decide.capacity import DEFAULT_TOLERATION, GPU_RESOURCE, Needs, survey
from hisparse_operator.decide.places import Places
from hisparse_operator.decide.planning import Planned, plan_for

TAINT = {"key": "team", "value": "vision", "effect": "NoSchedule"}
GPU_TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
ZONE_A = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]
        }
    }
}


@pytest.mark.parametrize(
    ("one", "needs", "reason"),
    [
        pytest.param(node("n"), {}, None, id="fits"),
        pytest.param(node("n", taints=[GPU_TAINT]), {}, None, id="the usual taint of GPU nodes is tolerated"),
        pytest.param(node("n", gpus=0), {}, "NoGPUs", id="a node without GPUs"),
        pytest.param(node("n", gpus=4), {}, "TooFewGPUs", id="too few GPUs"),
        pytest.param(node("n", product=None), {}, "NoProductLabel", id="nobody says which GPU"),
        pytest.param(node("n", product="Tesla-K80"), {}, "UnknownProduct", id="a GPU that we know nothing of"),
        pytest.param(node("n"), {"products": ("NVIDIA-L40S",)}, "ProductNotListed", id="another product was named"),
        pytest.param(node("n", unschedulable=True), {}, "Cordoned", id="cordoned"),
        pytest.param(node("n", taints=[TAINT]), {}, "TaintNotTolerated", id="somebody else's taint"),
        pytest.param(node("n", taints=[TAINT | {"effect": "PreferNoSchedule"}]), {}, None, id="a soft taint"),
        pytest.param(node("n"), {"selector": {"zone": "a"}}, "SelectorMismatch", id="node selector"),
        pytest.param(node("n"), {"affinity": ZONE_A}, "SelectorMismatch", id="required node affinity"),
        pytest.param(node("n"), {"disk_bytes": 2**50}, "LocalDiskInsufficient", id="no room for the download"),
        pytest.param(node("n"), {"memory_bytes": 2**50}, "HostMemoryInsufficient", id="resources.memory is too much"),
        pytest.param(node("n"), {"cpu": "5000"}, "CPUInsufficient", id="resources.cpu is too much"),
        pytest.param(node("n"), {"cpu": "192"}, None, id="every core of the node"),
        pytest.param(node("n"), {"cpu": "192001m"}, "CPUInsufficient", id="a thousandth of a core too much"),
        pytest.param(node("n"), {"gpu_resource": "nvidia.com/mig"}, "NoGPUs", id="another resource name"),
    ],
)
def test_a_node_is_judged(one: dict[str, Any], needs: dict[str, Any], reason: str | None) -> None:
    found = survey([one], Needs(gpus=8, **needs))
    assert [rejected.reason for rejected in found.rejected] == ([reason] if reason else [])
    assert len(found.offers) == (0 if reason else 1)
    if reason:
        assert "n" in found.rejected[0].message


def test_nodes_are_grouped_by_reason_and_product_with_one_example() -> None:
    found = survey([node("b", gpus=4), node("a", gpus=4), node("c", unschedulable=True)], Needs(gpus=8))
    assert [rejected.document() for rejected in found.rejected] == [
        {
            "reason": "TooFewGPUs",
            "count": 2,
            "product": H200,
            "exampleNode": "a",
            "message": "a has 4 nvidia.com/gpu and a replica takes 8; lower resources.gpus or use larger nodes",
        },
        {
            "reason": "Cordoned",
            "count": 1,
            "product": H200,
            "exampleNode": "c",
            "message": "c is cordoned; kubectl uncordon c when it may take pods again",
        },
    ]


@pytest.mark.parametrize(
    ("toleration", "covers"),
    [
        ({"operator": "Exists"}, True),
        ({"key": "team", "operator": "Exists"}, True),
        ({"key": "team", "value": "vision"}, True),
        ({"key": "team", "operator": "Equal", "value": "vision", "effect": "NoSchedule"}, True),
        ({"key": "team", "value": "speech"}, False),
        ({"key": "team", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "other", "operator": "Exists"}, False),
        ({}, False),
    ],
)
def test_tolerations_as_the_scheduler_reads_them(toleration: dict[str, str], *, covers: bool) -> None:
    assert admission.tolerates(toleration, TAINT) is covers


@pytest.mark.parametrize(
    ("expression", "matches"),
    [
        ({"key": "size", "operator": "In", "values": ["8", "9"]}, True),
        ({"key": "size", "operator": "NotIn", "values": ["9"]}, True),
        ({"key": "missing", "operator": "NotIn", "values": ["9"]}, True),
        ({"key": "size", "operator": "Exists"}, True),
        ({"key": "size", "operator": "DoesNotExist"}, False),
        ({"key": "size", "operator": "Gt", "values": ["7"]}, True),
        ({"key": "size", "operator": "Lt", "values": ["7"]}, False),
        ({"key": "word", "operator": "Gt", "values": ["7"]}, False),
        ({"key": "size", "operator": "Near", "values": ["7"]}, False),
    ],
)
def test_node_affinity_as_the_scheduler_reads_it(expression: dict[str, Any], *, matches: bool) -> None:
    one = {"metadata": {"name": "n", "labels": {"size": "8", "word": "big"}}}
    term = {"matchExpressions": [expression]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}
    assert admission.matches_affinity(one, affinity) is matches


def planned(nodes: list[dict[str, Any]] | None, **spec: Any) -> Planned:
    parsed = parse_spec(dense(**spec))
    return plan_for(parsed, facts_for(parsed.model), nodes, SETTINGS)


def named(*products: str) -> dict[str, Any]:
    return {"resources": {"gpus": 8, "gpuProducts": list(products)}}


@pytest.mark.parametrize(
    ("nodes", "spec", "answer", "runs", "products"),
    [
        pytest.param([node("a")], {}, "True/Fits", True, (H200,), id="one node fits"),
        pytest.param(
            [node("a"), node("b", product="NVIDIA-L40S", memory="1Ti")],
            {},
            "True/Fits",
            True,
            (H200, "NVIDIA-L40S"),
            id="two kinds fit: the affinity lists both",
        ),
        pytest.param([node("a", unschedulable=True)], {}, "False/NoMatchingNodes", False, (), id="all are cordoned"),
        pytest.param([], {}, "Unknown/NoGPULabels", False, (), id="no node at all"),
        pytest.param([node("a", product=None)], {}, "Unknown/NoGPULabels", False, (), id="no node has a label"),
        pytest.param(
            [node("a", product=None)],
            named(H200),
            "Unknown/NoGPULabels",
            True,
            (),
            id="no label, but a product is named: pods without an affinity that could never match",
        ),
        pytest.param(
            [node("a", product="NVIDIA-L40S")],
            named(H200),
            "Unknown/NoMatchingNodes",
            True,
            (H200,),
            id="the named product is not there now: an autoscaler may bring it",
        ),
        pytest.param(
            [node("a")], named("NVIDIA-H2000"), "False/NoMatchingNodes", False, (), id="nobody knows the named product"
        ),
        pytest.param(None, {}, "Unknown/NodesNotVisible", True, None, id="we may not look: the assumed GPU"),
        pytest.param(None, named("NVIDIA-L40S"), "Unknown/NodesNotVisible", True, ("NVIDIA-L40S",), id="named instead"),
        pytest.param(None, named("Nothing"), "False/NoMatchingNodes", False, (), id="we may not look, product unknown"),
        pytest.param(
            [node("a", product="NVIDIA-L40S")],
            {"resources": {"gpus": 1}},
            "False/HBMInsufficient",
            False,
            (),
            id="70B on one small GPU",
        ),
        pytest.param(
            [node("a", memory="16Gi")], {}, "False/HostMemoryInsufficient", False, (), id="hardly any host memory"
        ),
    ],
)
def test_plan_feasible(
    nodes: list[dict[str, Any]] | None,
    spec: dict[str, Any],
    answer: str,
    products: tuple[str, ...] | None,
    *,
    runs: bool,
) -> None:
    got = planned(nodes, **spec)
    assert f"{got.status}/{got.reason}" == answer
    assert got.runs is runs
    if products is not None:
        assert got.products == products
    assert (got.capacity is None) == (nodes is None)


def test_a_shortfall_has_numbers_and_the_cheapest_change() -> None:
    got = planned([node("a", product="NVIDIA-L40S")], resources={"gpus": 1})
    assert "GiB" in got.message
    assert "resources.gpus" in got.message or "model" in got.message
    assert got.capacity is not None
    assert got.capacity["candidateNodes"] == 0
    assert got.capacity["rejected"][0]["reason"] == "HBMInsufficient"


def test_no_matching_nodes_tells_each_cause() -> None:
    got = planned([node("a", unschedulable=True), node("b", taints=[TAINT]), node("c", gpus=2)])
    assert all(word in got.message for word in ("Cordoned", "TaintNotTolerated", "TooFewGPUs", "team=vision"))


def test_the_flags_come_from_the_smallest_kind_of_node() -> None:
    both = planned([node("a"), node("b", product="NVIDIA-L40S", memory="1Ti")])
    assert both.plan is not None
    assert both.plan.node.product == "NVIDIA-L40S"


def test_local_disk_advises_what_helps() -> None:
    named_it = planned([node("a")], resources={"gpus": 8, "ephemeralStorage": "900Ti"}).message
    assert "resources.ephemeralStorage is 900.00 TiB; lower it" in named_it
    assert "model.cache" not in named_it
    small = node("a")
    small["status"]["allocatable"]["ephemeral-storage"] = "1Gi"
    assert "set model.cache" in planned([small]).message


def test_cpu_that_no_node_has_does_not_fit() -> None:
    got = planned([node("a")], resources={"gpus": 8, "cpu": "5000"})
    assert f"{got.status}/{got.reason}" == "False/NoMatchingNodes"
    assert "a has 192 CPUs and a replica takes 5000; lower resources.cpu" in got.message


def test_a_small_node_that_holds_back_the_plan_of_all_is_named() -> None:
    small = node("old-7", product="NVIDIA-L40S", memory="1Ti")
    (note,) = planned([node("a"), node("b"), small]).notes
    assert note == (
        "planned for NVIDIA-L40S because of node old-7, and 2 nodes with NVIDIA-H200 could hold more; set "
        "resources.gpuProducts [NVIDIA-H200] to plan for it"
    )
    assert planned([node("a"), node("b")]).notes == ()
    assert planned([node("a"), small], **named(H200)).notes == ()


TEMPLATE: dict[str, Any] = {
    "spec": {
        "containers": [{"name": "engine", "resources": {"requests": {"cpu": "8", "memory": "1Ti", GPU_RESOURCE: "8"}}}],
        "nodeSelector": {"kubernetes.io/hostname": "n"},
        "affinity": {},
        "tolerations": [DEFAULT_TOLERATION],
    }
}


@pytest.mark.parametrize(
    ("one", "why"),
    [
        (node("n"), ""),
        (node("n", taints=[GPU_TAINT]), ""),
        (node("n", unschedulable=True), "is cordoned"),
        (node("n", taints=[TAINT]), "has the taint team=vision:NoSchedule"),
        (node("m"), "does not exist any more"),
        (node("n", memory="512Gi"), "has 512Gi memory and a pod takes 1Ti"),
        (node("n", gpus=4), "has 4 nvidia.com/gpu and a pod takes 8"),
    ],
)
def test_a_node_is_judged_for_a_frozen_template(one: dict[str, Any], why: str) -> None:
    places = Places([one], TEMPLATE)
    assert places.why_not("n") == why
    assert places.may_hold("n") is (why == "")
    assert Places(None, TEMPLATE).may_hold("n")


def test_places_cover_those_of_a_template_that_may_be_in_fewer() -> None:
    anywhere = {"spec": {key: value for key, value in TEMPLATE["spec"].items() if key != "nodeSelector"}}
    both = [node("n"), node("m")]
    assert Places(both, anywhere).covers(Places(both, TEMPLATE))
    assert not Places(both, TEMPLATE).covers(Places(both, anywhere))
    assert Places(None, TEMPLATE).covers(Places(None, anywhere))


def test_lifecycle_overrides_the_estimates() -> None:
    got = planned([node("a")], lifecycle={"startupBudget": "2h", "workerShutdown": "20m"})
    assert got.plan is not None
    seconds = got.plan.seconds
    assert (seconds.startup_budget, seconds.worker_shutdown) == (7200, 1200)
    assert seconds.termination_grace >= seconds.drain + 1200
