"""The operator as a process where its writes are refused: what status, Events and log say meanwhile."""

import json
import sys
import time
from collections import Counter
from typing import Any

import pytest
import yaml

from hisparse.redaction import HIDDEN

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

Namespace = Any  # of conftest.py, from which a test module cannot import
SMALL: dict[str, Any] = {
    "model": {"huggingFace": {"repo": "meta-llama/Llama-3.1-8B-Instruct"}},
    "context": {"maxTokens": 65536},
    "resources": {"gpus": 1, "gpuProducts": ["NVIDIA-H200"]},
}
TYPO = {"placement": {"tolerations": [{"bogus": 1}]}}


def ready(space: Namespace) -> bool:
    status = space.inference().get("status") or {}
    return bool(status.get("servingReplicas") == 1 and space.condition("WorkloadReady").get("status") == "True")


def errors(operator: Any) -> list[dict[str, Any]]:
    return [one for one in operator.lines() if one["level"] == "error"]


def test_a_typo_in_a_free_form_block_is_told_with_our_field_and_the_status_follows_the_pods(space: Namespace) -> None:
    operator = space.operators.leading()
    space.create(**SMALL)
    space.until(lambda: ready(space), "it serves", 60)
    served = space.inference()["status"]["updateRevision"]
    space.edit("glm", TYPO)
    found = space.until(lambda: (one := space.condition("Ready")).get("reason") == "Refused" and one, "it is told", 10)
    assert found["status"] == "False"
    assert "spec.placement.tolerations[0].bogus: field not declared in schema" in found["message"]
    assert "Correct spec.placement.tolerations[0]" in found["message"]
    going = space.condition("Progressing")
    assert (going["status"], going["reason"], going["message"]) == ("False", "Refused", found["message"])
    status = space.inference()["status"]
    assert space.observed()
    assert status["phase"] != "Ready"
    assert f"ControllerRevision/glm-{status['updateRevision']}" in space.children()
    reasons = space.kubectl("-n", space.name, "get", "events", "-o", "jsonpath={.items[*].reason}").stdout
    assert "Refused" in reasons

    # the pod goes while the writes wait
    before = len([one for one in operator.lines() if one["event"] == "blocked"])
    space.kubectl("-n", space.name, "scale", "replicasets.apps", f"glm-{served}", "--replicas=0")
    space.until(lambda: space.inference()["status"]["servingReplicas"] == 0, "the status says so at once", 8)
    after = len([one for one in operator.lines() if one["event"] == "blocked"])
    assert after - before <= 1, "and not by trying all the time"

    space.edit("glm", {"placement": None})
    space.until(lambda: ready(space), "it is as before", 60)
    assert space.inference()["status"]["updateRevision"] == served
    assert space.condition("Progressing")["reason"] != "Refused"
    assert operator.metric('hisparse_operator_reconciles_total{result="bug"}') is None
    assert errors(operator) == []


def test_a_new_object_with_a_typo_has_a_status(space: Namespace) -> None:
    operator = space.operators.leading()
    space.create(**SMALL, **TYPO)
    space.until(lambda: space.condition("Ready").get("reason") == "Refused", "it is told", 10)
    space.kubectl("-n", space.name, "delete", "hsi", "glm")
    space.until(lambda: operator.metric("hisparse_operator_objects") == 0, "it is gone")
    time.sleep(1)
    assert errors(operator) == []


def test_a_key_that_the_api_server_quotes_is_told_to_nobody(space: Namespace) -> None:
    key = "Correct_Horse_8675309"
    sidecar = {
        "name": "proxy",
        "image": "proxy:1",
        "env": [{"name": "PROXY_API_KEY", "value": key}],
        "ports": [{"name": key, "containerPort": 8443}],  # no port has such a name, and the refusal quotes it
    }
    operator = space.operators.leading()
    space.create(**SMALL, podTemplate={"sidecars": [sidecar]})
    said = space.until(lambda: (one := space.condition("Ready")).get("reason") == "Refused" and one, "it is refused")
    assert "spec.podTemplate.sidecars" in said["message"]
    assert HIDDEN in said["message"]
    events = space.until(
        lambda: "Refused" in (text := space.kubectl("-n", space.name, "get", "events", "-o", "json").stdout) and text,
        "an Event says so",
    )
    assert HIDDEN in operator.log.read_text()
    for text in (events, json.dumps(space.inference()["status"]), operator.log.read_text()):
        assert key not in text


def test_a_webhook_that_is_down_is_told_after_some_tries(space: Namespace) -> None:
    name = f"down-{space.name}"
    webhook = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": name},
        "webhooks": [
            {
                "name": "down.example.com",
                "clientConfig": {"url": "https://127.0.0.1:1/"},
                "rules": [
                    {"apiGroups": ["apps"], "apiVersions": ["v1"], "resources": ["replicasets"], "operations": ["*"]}
                ],
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": space.name}},
                "sideEffects": "None",
                "admissionReviewVersions": ["v1"],
            }
        ],
    }
    space.kubectl("apply", "-f", "-", input=yaml.safe_dump(webhook))
    try:
        space.operators.leading()
        space.create(**SMALL)
        found = space.until(
            lambda: (one := space.condition("Ready")).get("reason") == "NotWritten" and one, "it is told", 60
        )
        assert "down.example.com" in found["message"]
        assert space.condition("Progressing")["status"] == "False"
    finally:
        space.kubectl("delete", "validatingwebhookconfiguration", name)
    space.until(lambda: ready(space), "it goes on by itself", 90)


@pytest.mark.parametrize("binding", ["hisparse-operator", "hisparse-operator-lease"])
def test_a_missing_right_at_the_start_is_one_sentence(space: Namespace, binding: str) -> None:
    space.operators.lose_rights()
    space.kubectl("-n", space.name, "delete", "rolebinding", binding)
    operator = space.operators.start()
    assert operator.process.wait(30) == 1
    (told,) = errors(operator)
    assert "operator/deploy/rbac.yaml" in told["error"]
    assert "is forbidden" in told["error"]
    assert "exception" not in told
    assert "Traceback" not in operator.log.read_text()


def test_two_operators_that_see_different_things_do_not_write_against_each_other_all_the_time(
    everywhere: Namespace,
) -> None:
    space = everywhere
    space.operators.leading()
    space.create(**{**SMALL, "resources": {"gpus": 1}})
    space.until(lambda: ready(space), "it serves", 60)
    other = f"{space.name}-lease"
    space.kubectl("create", "namespace", other)
    space.kubectl(
        "-n", other, "create", "rolebinding", "all", "--clusterrole=cluster-admin", f"--user={space.operators.user}"
    )
    second = space.operators.leading("--namespace", space.name, "--lease-namespace", other)
    begun = len(space.writes())
    time.sleep(15)
    written = Counter(one.split("?")[0] for one in space.writes()[begun:] if one.endswith(" 200"))
    statuses = sum(count for place, count in written.items() if place.endswith("/status"))
    sys.stdout.write(f"{statuses} status writes in 15 s: {written}\n")
    assert statuses < 40, written
    assert second.process.poll() is None
    events = json.loads(space.kubectl("-n", space.name, "get", "events", "-o", "json").stdout)["items"]
    told = [one for one in events if one["reason"] == "WriteContested"]
    assert told
    assert all("two operators serve this namespace" in one["message"] for one in told)
    by = [one["reportingInstance"] for one in told]
    assert len(by) == len(set(by)), "each of them tells once"
    space.kubectl("delete", "namespace", other, "--wait=false")


WITH_A_BUG = """
import hisparse_operator.__main__ as program
real = program.reconcile

def reconcile(world, now, settings):
    if "boom" in world.inference["metadata"].get("annotations", {}):
        raise AttributeError("'str' object has no attribute 'get'")
    return real(world, now, settings)

program.reconcile = reconcile
program.main()
"""


def test_a_bug_is_told_in_status_and_event_and_is_over_with_the_edit(space: Namespace) -> None:
    operator = space.operators.leading(program=("-c", WITH_A_BUG))
    space.create(**SMALL)
    space.until(lambda: ready(space), "it serves", 60)
    space.kubectl("-n", space.name, "annotate", "hsi", "glm", "boom=1")
    found = space.until(lambda: (one := space.condition("Ready")).get("reason") == "InternalError" and one, "told", 10)
    assert "AttributeError: 'str' object has no attribute 'get'" in found["message"]
    assert space.condition("Progressing")["status"] == "False"
    status = space.inference()["status"]
    assert (status["servingReplicas"], status["readyReplicas"], status["phase"]) == (1, 1, "Degraded")
    assert space.condition("Available")["status"] == "True", "the pod goes on serving"
    reasons = space.kubectl("-n", space.name, "get", "events", "-o", "jsonpath={.items[*].reason}").stdout
    assert "InternalError" in reasons
    space.kubectl("-n", space.name, "annotate", "hsi", "glm", "boom-")
    space.until(lambda: ready(space) and space.condition("Ready")["reason"] != "InternalError", "over", 10)
    assert operator.process.poll() is None
