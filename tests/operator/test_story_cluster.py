"""`kubectl get events` tells one life in order; the commands of docs/troubleshooting.md do what they say."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from hisparse_toolkit.troubleshooting_page import FILE

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.cluster,
    pytest.mark.timeout(240),
]

Namespace = Any  # of conftest.py, from which a test module cannot import
NAME = "small"
PAGE = Path(__file__).parents[2] / "docs" / FILE
OURS = f"involvedObject.kind=HiSparseInference,involvedObject.name={NAME}"
COLUMNS = "custom-columns=TYPE:.type,REASON:.reason,MESSAGE:.message"
SPEC: dict[str, Any] = {
    "model": {"huggingFace": {"repo": "meta-llama/Llama-3.1-8B-Instruct"}},
    "context": {"maxTokens": 65536},
    "resources": {"gpus": 1},
    "replicas": 2,
}


def is_ready(space: Namespace) -> bool:
    return bool(space.observed(NAME) and space.condition("Ready", NAME).get("status") == "True")


def events(space: Namespace, *words: str) -> list[tuple[str, str]]:
    """Reason and message of each row, as kubectl prints them."""
    text = space.kubectl(
        "-n", space.name, "get", "events", "--field-selector", OURS, "--no-headers", "-o", COLUMNS, *words
    ).stdout
    rows = [line.split(maxsplit=2) for line in text.splitlines()]
    return [(reason, message.strip()) for _, reason, message in rows]


def described(space: Namespace) -> list[str]:
    """Reasons in the order of kubectl describe."""
    text = space.kubectl("-n", space.name, "describe", "hsi", NAME).stdout.partition("\nEvents:\n")[2]
    return [line.split()[1] for line in text.splitlines() if line.split()[:1] in (["Normal"], ["Warning"])]


def in_order(wanted: list[str], found: list[str]) -> bool:
    rest = iter(found)
    return all(word in rest for word in wanted)


def test_kubectl_get_events_tells_the_story_of_a_rollout_in_order(everywhere: Namespace) -> None:
    space = everywhere
    space.operators.leading()
    space.create(NAME, **SPEC)
    space.until(lambda: is_ready(space), "two replicas are ready", 90)
    first = space.inference(NAME)["status"]["currentRevision"]
    space.edit(NAME, {"restartToken": "one"})
    space.until(
        lambda: is_ready(space) and space.inference(NAME)["status"]["currentRevision"] != first, "it has rolled", 90
    )
    second = space.inference(NAME)["status"]["currentRevision"]
    space.until(lambda: "RolloutComplete" in [reason for reason, _ in events(space)], "the end is told")

    plain = events(space)
    found = [reason for reason, _ in plain]
    start, _, end = "RevisionCreated", "PlanFits", found.index("RolloutStarted")
    assert in_order([start, "PlanFits", "Ready"], found[: end - 1])
    assert in_order([start, "RolloutStarted", "NotReady", "Ready", "RolloutComplete"], found)
    assert found.count(start) == 2
    assert found[-1] == "RolloutComplete"

    # with the timestamps of whole seconds too
    for key in (".metadata.creationTimestamp", ".lastTimestamp", ".firstTimestamp"):
        assert events(space, f"--sort-by={key}") == plain, key
    assert described(space) == found

    for _, message in plain:
        assert re.fullmatch(r"[A-Z0-9s].*[^.:;, ]\.", message), message
        assert re.search(r"\d", message), message
    started = dict(plain)["RolloutStarted"]
    assert started.startswith(f"2 pods move to revision {second} in place, one at a time: at least 1 of 2 goes on")
    assert (
        dict(plain)["RolloutComplete"]
        == f"All 2 replicas are of revision {second} and serve; {first} has no pods left."
    )


def test_whoever_deletes_or_edits_a_child_is_told(everywhere: Namespace) -> None:
    space = everywhere
    space.operators.leading()
    space.create(NAME, **SPEC)
    space.until(lambda: is_ready(space), "two replicas are ready", 90)
    assert "ChildPutBack" not in dict(events(space))
    where = ("-n", space.name)
    space.kubectl(*where, "delete", "pdb", NAME)
    space.until(lambda: "ChildPutBack" in dict(events(space)), "the deletion is told")
    assert dict(events(space))["ChildPutBack"].startswith(f"PodDisruptionBudget {NAME} was deleted, and the operator")
    spec = '{"spec":{"ports":[{"port":8000,"name":"http","targetPort":9}]}}'
    space.kubectl(*where, "patch", "service", NAME, "--field-manager=kubectl-edit", "--type=merge", "-p", spec)
    wanted = f'Service {NAME} was changed by field manager "kubectl-edit", and the operator has put it back.'
    space.until(lambda: any(message.startswith(wanted) for _, message in events(space)), "the edit is told")
    space.kubectl(*where, "scale", "rs", space.child("ReplicaSet"), "--replicas=1")
    space.until(
        lambda: any(m.startswith("ReplicaSet ") and '"kubectl"' in m for _, m in events(space)), "the scale is told"
    )
    space.until(lambda: is_ready(space), "all is well again", 60)
    assert [reason for reason, _ in events(space)].count("ChildPutBack") == 3


def commands() -> list[list[str]]:
    text = PAGE.read_text()
    blocks = [line for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL) for line in block.splitlines()]
    inline = re.findall(r"`([^`]+)`", re.sub(r"```sh\n.*?```", "", text, flags=re.DOTALL))
    lines = {" ".join(one.split("  #")[0].split(" | ")[0].split()) for one in (*blocks, *inline)}
    return [shlex.split(line) for line in sorted(lines) if line.startswith("kubectl ")]


NO_KUBELET_HERE = {"logs", "port-forward"}
CHANGES = {"delete", "annotate", "label", "scale", "patch", "cordon", "uncordon", "rollout", "apply"}
OF_AN_INSTALLATION = ("-n", "hisparse"), ("-n", "hisparse-nodes")


def test_the_commands_of_the_page_work(everywhere: Namespace) -> None:
    """Those that read, and those that change as a dry run; there are no kubelets here, nor an installation."""
    space = everywhere
    space.operators.leading()
    space.create(NAME, **SPEC)
    space.until(lambda: is_ready(space), "two replicas are ready", 90)
    listed = json.loads(space.kubectl("-n", space.name, "get", "pods", "-o", "json").stdout)["items"]
    pod = listed[0]
    node = pod["spec"]["nodeName"]
    meta = {"apiVersion": "inference.hisparse.dev/v1alpha1", "metadata": {"name": node}}
    policy = {"kind": "HiSparseNodePolicy", "spec": {"nodeSelector": {"nobody": "has"}}}
    for document in (meta | {"kind": "HiSparseNode"}, meta | policy):
        space.kubectl("apply", "-f", "-", input=json.dumps(document))
    filled = {
        "NAMESPACE": space.name,
        "NAME": NAME,
        "POD": pod["metadata"]["name"],
        "NODE": node,
        "POLICY": node,
        "KIND": "service",
        "CHILD": NAME,
    }
    done = 0
    for _, *words in commands():
        if tuple(words[:2]) in OF_AN_INSTALLATION:
            continue
        verb = words[2] if words[0] == "-n" else words[0]
        if verb in NO_KUBELET_HERE or not words[1:]:
            continue
        line = [re.sub(r"[A-Z]{3,}", lambda found: filled.get(found[0], found[0]), word) for word in words]
        if verb == "apply":
            line = [*line[:-1], str(PAGE.parents[1] / line[-1])]
        if verb in CHANGES:
            line.append("--dry-run=server")
        answer = space.kubectl(*line, check=False)
        # `auth can-i` says no by its exit code
        assert answer.returncode == 0 or (verb == "auth" and answer.stdout.strip() == "no"), (line, answer.stderr)
        done += 1
    assert done > 40
    space.kubectl("delete", "hsn,hsnp", node)
