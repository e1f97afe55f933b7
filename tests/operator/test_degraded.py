"""Condition Degraded in the simulated cluster: every case of what node agents say, or do not say."""

import copy
import math
from datetime import timedelta
from typing import Any

import pytest
from simulator import SmallCluster, dense, finding, node

from hisparse.nodes import checks
from hisparse.nodes.catalogue import Check, Subject
from hisparse.nodes.report import STALE_SECONDS
from hisparse_operator.decide import degraded
from hisparse_operator.decide.conditions import MESSAGE_LIMIT
from hisparse_operator.decide.reasons import ConditionType
from hisparse_operator.world import Sight

DEGRADED = ConditionType.DEGRADED
STALE = timedelta(seconds=STALE_SECONDS)
COST = "all-reduce between its GPUs is slower"
SENTENCE = "All-reduce between its GPUs is slower."
LINKS = finding("test.links", "gpu-3", value="9", limit="18", unit="count")
HEAT = finding("test.heat", "gpu-0", "Warn", value="8", limit="10", unit="celsius")
CHEAP = finding("test.cheap", "host", "Warn")


@pytest.fixture(autouse=True)
def _catalogue(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three checks whose words do not change with the real ones."""

    def check(name: str, cost: str) -> Check:
        return Check(name, Subject.GPU, "-", "-", "-", "-", "-", "-", cost=cost)

    found = (check("test.links", SENTENCE), check("test.heat", "NCCL waits."), check("test.cheap", ""))
    monkeypatch.setattr(checks, "BY_ID", {one.id: one for one in found})


def running(replicas: int = 1, nodes: int = 2) -> SmallCluster:
    """At rest, with pods on the first nodes."""
    cluster = SmallCluster(dense(replicas=replicas), [node(f"n{i}") for i in range(nodes)])
    cluster.settle()
    cluster.events.clear()
    return cluster


def told(cluster: SmallCluster) -> str:
    """What Degraded says after a pass."""
    cluster.operate()
    return str(cluster.condition(DEGRADED).get("message", ""))


def events(cluster: SmallCluster) -> list[tuple[str, str]]:
    return [(event.type, event.reason) for event in cluster.events]


# --- who may look ------------------------------------------------------------------------------------------------


def test_without_the_kind_there_is_no_such_condition() -> None:
    cluster = running()
    assert "Degraded" not in {one["type"] for one in cluster.status["conditions"]}


def test_it_comes_with_the_kind_and_goes_with_it() -> None:
    cluster = running()
    cluster.report("n0", LINKS)
    cluster.operate()
    assert cluster.reason(DEGRADED) == "True/NodeCritical"
    cluster.report_sight = Sight.ABSENT
    cluster.operate()
    assert "Degraded" not in {one["type"] for one in cluster.status["conditions"]}


def test_where_we_may_not_look_it_is_unknown_and_says_so() -> None:
    cluster = running()
    cluster.report_sight = Sight.HIDDEN
    assert "may not read HiSparseNode" in told(cluster)
    assert cluster.reason(DEGRADED) == "Unknown/NodeReportsHidden"
    assert cluster.reason(ConditionType.READY) == "True/Proven"
    assert cluster.events == []


# --- faults ------------------------------------------------------------------------------------------------------


def test_a_fault_is_told_with_node_subject_check_values_cost_and_next_step() -> None:
    cluster = running()
    cluster.report("n0", LINKS)
    assert told(cluster) == (
        f"1 of 1 pod is on a node with a fault: node n0: test.links of gpu-3 is Critical (9, limit 18): {COST}; "
        "kubectl describe hsn n0 says what to do"
    )
    assert cluster.reason(DEGRADED) == "True/NodeCritical"


def test_it_moves_nothing_and_no_other_condition() -> None:
    cluster = running()
    before, objects = copy.deepcopy(cluster.status), copy.deepcopy(cluster.objects)
    cluster.report("n0", LINKS)
    cluster.settle()
    after = copy.deepcopy(cluster.status)
    assert after["conditions"].pop()["type"] == "Degraded"
    assert after == before
    assert cluster.objects == objects


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        pytest.param([], "False/NodesHealthy", id="nothing"),
        pytest.param([finding("test.links", "gpu-0", "Ok")], "False/NodesHealthy", id="ok"),
        pytest.param([finding("test.links", "gpu-0", "Unknown")], "False/NodesHealthy", id="not read"),
        pytest.param([finding("test.links", "gpu-0", "Unsupported")], "False/NodesHealthy", id="not there"),
        pytest.param([HEAT], "True/NodeWarning", id="a warning"),
        pytest.param([HEAT, LINKS], "True/NodeCritical", id="a warning and something critical"),
        pytest.param([finding("test.heat", "numa-0", "Warn")], "True/NodeWarning", id="of a NUMA node"),
        pytest.param(
            [finding("test.heat", "pod-serving/other", "Critical")], "False/NodesHealthy", id="of another pod"
        ),
        pytest.param([finding("test.heat", "pod-llama/llama", "Critical")], "False/NodesHealthy", id="of a stranger"),
        pytest.param([CHEAP], "False/NodesHealthy", id="of what costs nothing by itself"),
        pytest.param([finding("test.new", "gpu-0", "Enormous")], "False/NodesHealthy", id="a state of a later release"),
    ],
)
def test_which_findings_count(found: list[dict[str, Any]], reason: str) -> None:
    cluster = running()
    cluster.report("n0", *found)
    cluster.operate()
    assert cluster.reason(DEGRADED) == reason


def test_a_finding_about_our_pod_counts() -> None:
    cluster = running()
    (pod,) = cluster.names("Pod")
    cluster.report("n0", finding("test.heat", f"pod-serving/{pod}", "Warn"))
    assert f"test.heat of pod-serving/{pod} is Warn: NCCL waits" in told(cluster)


def test_nodes_without_a_pod_of_ours_do_not_count() -> None:
    cluster = running()
    cluster.report("n0")
    cluster.report("n1", LINKS)
    assert told(cluster) == "1 of 1 pod is on a node without a fault that concerns it"


def test_a_pod_that_only_starts_counts_and_one_that_ends_does_not() -> None:
    cluster = SmallCluster(dense(), [node("n0"), node("n1")])
    cluster.operate()
    cluster.control()
    cluster.report("n0", LINKS)
    assert told(cluster) == "no pod has a node"
    assert cluster.reason(DEGRADED) == "False/NoPodsOnNodes"
    cluster.schedule()
    cluster.operate()
    assert cluster.reason(DEGRADED) == "True/NodeCritical"
    cluster.start()
    cluster.evict(cluster.names("Pod")[0], hangs=True)
    cluster.report("n1")
    cluster.control()
    cluster.schedule()
    assert told(cluster) == "1 of 1 pod is on a node without a fault that concerns it", "the new one is on n1"


def test_a_check_that_this_release_does_not_know_has_the_words_of_the_agent() -> None:
    cluster = running()
    cluster.report("n0", finding("test.new", "gpu-0", "Warn", message="It hums. " + "x" * 5000))
    said = told(cluster)
    assert "test.new of gpu-0 is Warn: It hums. xxx" in said
    assert len(said) < 500


def test_bytes_are_readable() -> None:
    cluster = running()
    size = finding("test.links", "numa-0", "Warn", value="4294967296", limit="17179869184", unit="bytes")
    cluster.report("n0", size)
    assert "test.links of numa-0 is Warn (4.00 GiB, limit 16.00 GiB)" in told(cluster)


def test_the_cost_of_a_check_is_said_once_and_lists_are_short() -> None:
    cluster = running(replicas=5, nodes=5)
    for number in range(5):
        cluster.report(f"n{number}", *(finding("test.links", f"gpu-{gpu}", "Warn") for gpu in range(8)))
    cluster.report("n4", LINKS)
    said = told(cluster)
    assert said.startswith("5 of 5 pods are on nodes with a fault: node n4: test.links of gpu-3 is Critical"), (
        "the worst"
    )
    assert said.count(COST) == 1
    assert "gpu-2 is Warn and 5 more; node n1:" in said
    assert "; and 2 more nodes; kubectl describe hsn n4 says" in said
    assert "node n2" not in said


def test_the_message_is_bounded_whatever_an_agent_says() -> None:
    cluster = running(replicas=4, nodes=4)
    for number in range(4):
        long = {"value": "9" * 9000, "limit": "x" * 9000, "unit": "y" * 9000, "message": "z" * 9000}
        found = (finding(f"test.{'v' * 9000}{i}", f"gpu-{'w' * 9000}", **long) for i in range(512))
        cluster.report(f"n{number}", *found)
    assert len(told(cluster)) < 8000 < MESSAGE_LIMIT


def test_every_check_of_the_catalogue_has_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    counted = 0
    for check in checks.CHECKS:
        cluster = running()
        cluster.report("n0", finding(check.id, "gpu-0", "Warn", value="1", limit="2", unit=check.unit))
        said = told(cluster)
        if check.cost:
            start = check.cost.rstrip(".")[1:]
            assert f"{check.id} of gpu-0 is Warn (1" in said
            assert f"{start}; kubectl" in said
        assert (cluster.reason(DEGRADED) == "True/NodeWarning") is bool(check.cost), check.id
        counted += bool(check.cost)
    assert 0 < counted <= len(checks.CHECKS)


# --- what is not known -------------------------------------------------------------------------------------------


def test_a_node_without_a_report_is_unknown_with_a_next_step() -> None:
    cluster = running()
    cluster.report("n1")
    assert told(cluster) == (
        "1 of 1 pod is on a node whose state is not known: node n0 has no report; see whether its hisparse-agent runs: "
        "kubectl get pods -A --field-selector spec.nodeName=n0"
    )
    assert cluster.reason(DEGRADED) == "Unknown/NodeNotReported"


def test_a_report_grows_old_at_its_second_and_the_message_stands_still() -> None:
    cluster = running()
    cluster.report("n0")
    said_at = cluster.reports["n0"]["status"]["observedAt"]
    observed = cluster.now
    cluster.now = observed + STALE - timedelta(seconds=1)
    cluster.operate()
    assert cluster.now - observed == STALE
    assert cluster.reason(DEGRADED) == "False/NodesHealthy"
    assert cluster.operate() == 1
    assert cluster.reason(DEGRADED) == "Unknown/NodeReportStale"
    said = cluster.condition(DEGRADED)["message"]
    assert f"node n0 reported last at {said_at}, more than 15m ago" in said
    for _ in range(3):
        cluster.now += timedelta(hours=1)
        assert cluster.operate() == 0, "no write while nothing changes"
    assert cluster.condition(DEGRADED)["message"] == said


def test_old_faults_do_not_count() -> None:
    cluster = running()
    cluster.report("n0", LINKS, age=STALE + timedelta(seconds=1))
    cluster.operate()
    assert cluster.reason(DEGRADED) == "Unknown/NodeReportStale"


def test_faults_win_over_what_is_not_known_and_both_are_told() -> None:
    cluster = running(replicas=2)
    cluster.report("n0", LINKS)
    cluster.report("n1", age=timedelta(hours=1))
    said = told(cluster)
    assert cluster.reason(DEGRADED) == "True/NodeCritical"
    assert said.startswith("1 of 2 pods is on a node with a fault: node n0: ")
    assert "; beside them, node n1 reported last at 2026-11-29T11:" in said


def test_one_silent_node_of_two_makes_it_unknown() -> None:
    cluster = running(replicas=2)
    cluster.report("n0")
    assert told(cluster).startswith("1 of 2 pods is on a node whose state is not known: node n1 has no report")


def test_many_silent_nodes_are_counted() -> None:
    cluster = running(replicas=5, nodes=5)
    cluster.report("elsewhere")
    said = told(cluster)
    assert said.startswith("5 of 5 pods are on nodes whose state is not known: node n0 has no report; node n1")
    assert "; and 2 more; see whether" in said


@pytest.mark.parametrize(
    ("status", "words", "reason"),
    [
        pytest.param({}, "n0 has no report", "NodeNotReported", id="nothing yet"),
        pytest.param({"observedAt": "yesterday"}, "cannot read", "NodeNotReported", id="no time"),
        pytest.param({"observedAt": "2026-11-29T12:00:00"}, "cannot read", "NodeNotReported", id="no time zone"),
        pytest.param(
            {"observedAt": "2026-11-29T12:00:00Z", "findings": [{"state": "Warn"}]},
            "cannot read",
            "NodeNotReported",
            id="half a finding",
        ),
        pytest.param(
            {"observedAt": "2026-11-29T02:00:00+02:00"},
            "last at 2026-11-29T00:00:00Z",
            "NodeReportStale",
            id="an offset",
        ),
        pytest.param(
            {"observedAt": "2030-01-01T00:00:00Z"}, "yet to come (2030-01-01", "NodeReportStale", id="a clock ahead"
        ),
    ],
)
def test_reports_that_say_nothing(status: dict[str, Any], words: str, reason: str) -> None:
    cluster = running()
    cluster.report("n0")
    cluster.reports["n0"]["status"] = status
    assert words in told(cluster)
    assert cluster.reason(DEGRADED) == f"Unknown/{reason}"


def test_checks_that_could_not_be_done_are_mentioned() -> None:
    cluster = running()
    cluster.report("n0", finding("test.links", "gpu-0", "Unknown"), finding("test.heat", "gpu-0", "Unsupported"))
    assert told(cluster) == (
        "1 of 1 pod is on a node without a fault that concerns it; 1 check could not be done (kubectl describe hsn n0)"
    )


# --- time and news -----------------------------------------------------------------------------------------------


def test_the_next_look_is_when_the_oldest_report_grows_too_old() -> None:
    cluster = running(replicas=2)
    cluster.report("n0", age=timedelta(minutes=2))
    cluster.report("n1", age=timedelta(minutes=5))
    cluster.report("elsewhere", age=timedelta(minutes=14))
    wait = cluster.decide().retry_seconds
    assert wait == 601
    cluster.now += timedelta(seconds=wait)
    cluster.operate()
    assert cluster.reason(DEGRADED) == "Unknown/NodeReportStale"
    wait = cluster.decide().retry_seconds
    assert wait == 179, "the pass took a second"
    cluster.now += timedelta(seconds=wait)
    assert cluster.decide().retry_seconds is None, "all are silent: nothing is to come"


@pytest.mark.parametrize("sight", [Sight.ABSENT, Sight.HIDDEN])
def test_without_reports_there_is_nothing_to_wait_for(sight: Sight) -> None:
    cluster = running()
    cluster.report_sight = sight
    cluster.operate()
    assert cluster.decide().retry_seconds is None


def test_heartbeats_and_moving_values_are_no_news_and_the_rest_is() -> None:
    cluster = running()

    def report(*found: dict[str, Any], age: int = 0) -> dict[str, Any]:
        cluster.report("n0", *found, age=timedelta(seconds=age))
        return cluster.reports["n0"]

    def news(old: dict[str, Any] | None, new: dict[str, Any] | None) -> bool:
        return degraded.is_news(old, new, cluster.now)

    assert not news(report(LINKS, age=300), report(LINKS))
    assert not news(report(LINKS), report({**LINKS, "value": "8", "message": "another"}))
    assert not news(report(), report(finding("test.links", "gpu-0", "Unknown")))
    assert news(report(LINKS), report())
    assert news(report(), report(HEAT))
    assert news(report(HEAT), report({**HEAT, "state": "Critical"}))
    assert news(report(LINKS), report({**LINKS, "subject": "gpu-4"}))
    assert not news(report(age=STALE_SECONDS), report())
    assert news(report(age=STALE_SECONDS + 1), report()), "it was silent"
    assert news(None, report())
    assert news(report(), None)


def test_news_is_exactly_what_changes_a_status() -> None:
    """Every pair of reports that is no news leaves status and reason as they are."""
    cluster = running()
    sayings: list[dict[str, Any]] = []
    for age in (0, 60, STALE_SECONDS - 1, STALE_SECONDS + 60):
        for found in ((), (LINKS,), (HEAT,), (LINKS, HEAT), ({**LINKS, "value": "3"},)):
            cluster.report("n0", *found, age=timedelta(seconds=age))
            sayings.append(copy.deepcopy(cluster.reports["n0"]))
    silent = 0
    for old in sayings:
        for new in sayings:
            if new["status"]["observedAt"] < old["status"]["observedAt"] or degraded.is_news(old, new, cluster.now):
                continue
            said = []
            for each in (old, new):
                cluster.reports["n0"] = each
                conditions = (cluster.decide().status or {})["conditions"]
                said.append([(one["status"], one["reason"]) for one in conditions if one["type"] == "Degraded"])
            assert said[0] == said[1], (old, new)
            silent += 1
    assert silent > len(sayings) / 2, "most pairs of equal findings are no news"


# --- events ------------------------------------------------------------------------------------------------------


def test_events_on_change_only() -> None:
    cluster = running()
    cluster.report("n0")
    cluster.operate()
    assert cluster.events == [], "that all is well from the start is no news"
    cluster.report("n0", HEAT)
    for _ in range(3):
        cluster.operate()
    assert events(cluster) == [("Warning", "NodeWarning")]
    assert cluster.events[0].message.startswith("1 of 1 pod is on a node with a fault: ")
    cluster.report("n0", HEAT, LINKS)
    for _ in range(3):
        cluster.operate()
    cluster.report("n0", {**HEAT, "value": "9"}, LINKS)
    cluster.operate()
    assert events(cluster)[1:] == [("Warning", "NodeCritical")]
    cluster.report("n0")
    for _ in range(3):
        cluster.operate()
    assert events(cluster)[2:] == [("Normal", "NodesHealthy")]
    cluster.now += STALE
    for _ in range(3):
        cluster.operate()
    assert events(cluster)[3:] == [("Normal", "NodeReportStale")]
    cluster.report("n0")
    cluster.operate()
    assert len(cluster.events) == 4, "that the agent is back is no news"


def test_the_transition_time_moves_only_with_the_status() -> None:
    cluster = running()
    cluster.report("n0", HEAT)
    cluster.operate()
    since = cluster.condition(DEGRADED)["lastTransitionTime"]
    cluster.report("n0", LINKS)
    cluster.operate()
    assert cluster.condition(DEGRADED)["lastTransitionTime"] == since
    cluster.report("n0")
    cluster.operate()
    assert cluster.condition(DEGRADED)["lastTransitionTime"] > since


def test_at_rest_nothing_is_written_however_often_the_agent_reports() -> None:
    cluster = running()
    cluster.report("n0", LINKS)
    cluster.settle()
    for _ in range(math.ceil(STALE_SECONDS / 60) * 3):
        cluster.now += timedelta(minutes=1)
        cluster.report("n0", LINKS)
        assert cluster.operate() == 0


def test_a_first_pod_on_a_node_without_an_agent_is_no_event() -> None:
    cluster = SmallCluster(dense(), [node("n0")])
    cluster.report_sight = Sight.SEEN
    cluster.settle()
    assert cluster.reason(DEGRADED) == "Unknown/NodeNotReported"
    assert "NodeNotReported" not in [event.reason for event in cluster.events]
