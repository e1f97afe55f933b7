"""A cluster in a dict: just enough API server, ReplicaSet controller, scheduler and kubelet to run a rollout on."""

import pickle
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from hisparse_operator.decide import admission
from hisparse_operator.decide.conditions import status_of
from hisparse_operator.decide.reasons import ConditionType, EventReason, Reason
from hisparse_operator.decide.reconcile import reconcile, wants_hub, wants_logs
from hisparse_operator.kinds import FIELD_MANAGER, LABEL
from hisparse_operator.settings import OperatorSettings
from hisparse_operator.world import Event, HubFiles, Outcome, Sight, World

START = datetime(2026, 11, 29, 12, tzinfo=UTC)
BAD = "--enable-nonsense"
"""Pods whose engine has this argument crash."""
SETTINGS = OperatorSettings()
GRACE = timedelta(seconds=60)
REFUSED = {"podTemplate": {"annotations": {"refused": "yes"}}}
"""In a spec: the API server refuses its ReplicaSet."""
UNMADE = {"placement": {"priorityClassName": "nope"}}
"""In a spec: the API server takes its ReplicaSet and refuses its pods."""
H200 = "NVIDIA-H200"
_APPLIED = {"manager": FIELD_MANAGER, "operation": "Apply"}
"""What the API server notes on an object that we write; which fields they are is not modelled."""


def node(name: str, *, product: str | None = H200, gpus: int = 8, memory: str = "2Ti", **spec: Any) -> dict[str, Any]:
    labels = {"kubernetes.io/hostname": name} | ({"nvidia.com/gpu.product": product} if product else {})
    allocatable = {"cpu": "192", "memory": memory, "ephemeral-storage": "8Ti"}
    if gpus:
        allocatable["nvidia.com/gpu"] = str(gpus)
    return {"metadata": {"name": name, "labels": labels}, "spec": spec, "status": {"allocatable": allocatable}}


def dense(**changes: Any) -> dict[str, Any]:
    """A small spec that plans quickly and takes a whole node."""
    spec: dict[str, Any] = {
        "model": {"huggingFace": {"repo": "meta-llama/Llama-3.1-70B", "revision": "a" * 40}},
        "context": {"maxTokens": 131072},
        "resources": {"gpus": 8},
    }
    return spec | changes


def inference(spec: Mapping[str, Any], **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": "inference.hisparse.dev/v1alpha1",
        "kind": "HiSparseInference",
        "metadata": {"name": "llama", "namespace": "serving", "uid": "uid-of-llama", "generation": 1} | metadata,
        "spec": dict(spec),
    }


def finding(check: str, subject: str, state: str = "Critical", **rest: Any) -> dict[str, Any]:
    """One finding of a node agent."""
    stamp = START.strftime("%Y-%m-%dT%H:%M:%SZ")
    said = {"since": stamp, "reason": "Found", "message": f"{check} of {subject} is not as it should be."}
    return {"check": check, "subject": subject, "state": state, **said, **rest}


_T = TypeVar("_T")


def copied(value: _T) -> _T:
    """A deep copy; much faster than copy.deepcopy, which these tests would spend most of their time in."""
    made: _T = pickle.loads(pickle.dumps(value))  # noqa: S301 - our own
    return made


class RefusedError(Exception):
    """The API server does not take a document."""


class SmallCluster:
    """One inference and its children."""

    def __init__(
        self, spec: Mapping[str, Any], nodes: list[dict[str, Any]], settings: OperatorSettings = SETTINGS
    ) -> None:
        self.inference = inference(spec)
        self.nodes: list[dict[str, Any]] | None = nodes
        self.settings = settings
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}
        self.now = START
        self.events: list[Event] = []
        self.hub: HubFiles | None = None
        self.log = "ValueError: nothing that anybody knows"
        self.full: set[str] = set()
        """Nodes that somebody else fills."""
        self.reports: dict[str, dict[str, Any]] = {}
        """What node agents say, by node."""
        self.report_sight = Sight.ABSENT
        self.hanging: set[str] = set()
        """Pods that do not end."""
        self.unrouted: set[str] = set()
        """Pods that the Service has no endpoint of."""
        self._serial = 0

    # --- the operator -------------------------------------------------------------------------------------------

    def world(self) -> World:
        def kind(name: str) -> tuple[dict[str, Any], ...]:
            # watches select by the label
            return tuple(obj for (of, _), obj in sorted(self.objects.items()) if of == name and LABEL in _labels(obj))

        world = World(
            inference=self.inference,
            controller_revisions=kind("ControllerRevision"),
            replica_sets=kind("ReplicaSet"),
            pods=kind("Pod"),
            config_maps=kind("ConfigMap"),
            services=kind("Service"),
            service_accounts=kind("ServiceAccount"),
            network_policies=kind("NetworkPolicy"),
            disruption_budgets=kind("PodDisruptionBudget"),
            endpoint_slices=self._slices(),
            nodes=None if self.nodes is None else tuple(self.nodes),
            node_reports=tuple(self.reports.values()) if self.report_sight is Sight.SEEN else (),
            report_sight=self.report_sight,
        )
        if wants_hub(world) is not None:
            world = replace(world, hub=self.hub)
        return replace(world, previous_logs=dict.fromkeys(wants_logs(world), self.log))

    def decide(self) -> Outcome:
        """What the operator wants now; the world must not be changed by asking."""
        world = self.world()
        before = copied(world)
        outcome = reconcile(world, self.now, self.settings)
        assert world == before, "reconcile changed its input"
        return outcome

    def operate(self) -> int:
        """One pass: decide and apply. Returns the number of writes."""
        self.now += timedelta(seconds=1)
        outcome = self.decide()
        try:
            writes = sum(self._apply(document) for document in outcome.apply)
        except RefusedError:
            return 0  # nothing after it is written
        for reference in outcome.delete:
            live = self.objects.get((reference.kind, reference.name))
            if live is not None and live["metadata"]["uid"] == reference.uid:
                self.delete(reference.kind, reference.name)
                writes += 1
        if outcome.status is not None and outcome.status != self.inference.get("status"):
            self.inference["status"] = copied(outcome.status)
            writes += 1
        self.events += outcome.events
        conditions = (outcome.status or {}).get("conditions", ())
        assert {condition["reason"] for condition in conditions} <= set(Reason)
        assert {event.reason for event in outcome.events} <= {*Reason, *EventReason, *ConditionType}
        return writes

    def _apply(self, document: Mapping[str, Any]) -> int:
        key = (document["kind"], document["metadata"]["name"])
        live = self.objects.get(key)
        assert document["metadata"]["namespace"] == "serving"
        if document["kind"] == "Pod":
            if live is None or live["metadata"]["uid"] != document["metadata"]["uid"]:
                return 0
            annotations = live["metadata"].setdefault("annotations", {})
            changed = any(annotations.get(k) != v for k, v in document["metadata"]["annotations"].items())
            annotations.update(document["metadata"]["annotations"])
            return int(changed)
        if document["kind"] == "ReplicaSet" and "refused" in document["spec"]["template"]["metadata"]["annotations"]:
            raise RefusedError(key)
        if live is None:
            created = copied(dict(document))
            created["metadata"] |= {"uid": self._uid(), "managedFields": [copied(_APPLIED)]}
            self.objects[key] = created
            return 1
        assert "deletionTimestamp" not in live["metadata"], f"{key} is being deleted"
        wanted = copied(dict(document))
        if document["kind"] == "ControllerRevision":
            assert live["data"] == wanted["data"], "the API server refuses a change of ControllerRevision.data"
        if document["kind"] == "ConfigMap" and live.get("immutable"):
            assert live["data"] == wanted["data"], "the API server refuses a change of an immutable ConfigMap"
        if in_place(live, wanted):
            return 0
        live.update({name: value for name, value in wanted.items() if name != "metadata"})
        live["metadata"].update(wanted["metadata"])
        live["metadata"]["managedFields"] = [copied(_APPLIED)]
        return 1

    # --- people -------------------------------------------------------------------------------------------------

    def edit(self, spec: Mapping[str, Any]) -> None:
        self.inference["spec"] = dict(spec)
        self.inference["metadata"]["generation"] += 1

    def scale(self, replicas: int) -> None:
        self.edit({**self.inference["spec"], "replicas": replicas})

    def delete(self, kind: str, name: str) -> None:
        if kind == "Pod":
            self.evict(name)
            return
        gone = self.objects.pop((kind, name))
        if kind == "ReplicaSet":
            for pod in self._of(gone):
                if not _going(pod):
                    self._terminate(pod)

    def orphan(self, name: str) -> None:
        """Delete a ReplicaSet and leave its pods: kubectl delete --cascade=orphan."""
        gone = self.objects.pop(("ReplicaSet", name))
        for pod in self._of(gone):
            pod["metadata"]["ownerReferences"] = []

    def lose(self, name: str) -> None:
        """Delete a ReplicaSet; its pods go when the garbage collector comes by."""
        del self.objects["ReplicaSet", name]

    def unlabel(self, kind: str, name: str, label: str) -> None:
        self.objects[kind, name]["metadata"]["labels"].pop(label, None)

    def evict(self, name: str, *, hangs: bool = False) -> None:
        """Delete a pod by hand, or by a drain."""
        pod = self.objects["Pod", name]
        if hangs and pod["spec"].get("nodeName"):
            self.hanging.add(name)
        if not _going(pod):
            self._terminate(pod)

    def cordon(self, name: str, *, on: bool = True) -> None:
        for one in self.nodes or ():
            if one["metadata"]["name"] == name:
                one["spec"]["unschedulable"] = on

    def report(self, name: str, *findings: dict[str, Any], age: timedelta = timedelta(0)) -> None:
        """The agent of a node reports; there are reports in this cluster from now on."""
        self.report_sight = Sight.SEEN
        observed = (self.now - age).strftime("%Y-%m-%dT%H:%M:%SZ")
        self.reports[name] = {
            "metadata": {"name": name, "uid": f"report-of-{name}", "resourceVersion": "1"},
            "status": {"observedAt": observed, "findings": list(findings)},
        }

    def heal(self) -> None:
        """Everything outside of the operator is well again."""
        for one in self.nodes or ():
            one["spec"].pop("unschedulable", None)
        self.full.clear()
        self.hanging.clear()
        self.unrouted.clear()
        for rs in self.replica_sets():
            rs["metadata"]["labels"][LABEL] = self.inference["metadata"]["name"]
        for pod in self.pods():
            # what belongs to nobody
            if not pod["metadata"]["ownerReferences"] and not _going(pod):
                self._terminate(pod)

    # --- Kubernetes ---------------------------------------------------------------------------------------------

    def pods(self) -> list[dict[str, Any]]:
        return [obj for (kind, _), obj in sorted(self.objects.items()) if kind == "Pod"]

    def replica_sets(self) -> list[dict[str, Any]]:
        return [obj for (kind, _), obj in sorted(self.objects.items()) if kind == "ReplicaSet"]

    def control(self) -> None:
        """The ReplicaSet controller: one round."""
        for rs in self.replica_sets():
            selected = rs["spec"]["selector"]["matchLabels"].items()
            for pod in self.pods():
                fits = selected <= _labels(pod).items()
                if fits and not pod["metadata"]["ownerReferences"] and not _going(pod):
                    pod["metadata"]["ownerReferences"] = [_owner(rs)]
                elif not fits and pod in self._of(rs):
                    pod["metadata"]["ownerReferences"] = []
            active = [p for p in self._of(rs) if not _going(p) and p["status"].get("phase") != "Failed"]
            surplus = len(active) - rs["spec"]["replicas"]
            for pod in sorted(active, key=_goes_first)[: max(0, surplus)]:
                self._terminate(pod)
            for _ in range(-surplus):
                if rs["spec"]["template"]["spec"].get("priorityClassName") == "nope":
                    said = {"type": "ReplicaFailure", "status": "True", "message": "no PriorityClass nope was found"}
                    rs["status"] = {"conditions": [said]}
                else:
                    self._make_pod(rs)

    def collect(self) -> None:
        """The garbage collector: pods whose ReplicaSet is gone."""
        uids = {rs["metadata"]["uid"] for rs in self.replica_sets()}
        for pod in self.pods():
            owners = pod["metadata"]["ownerReferences"]
            if owners and owners[0]["uid"] not in uids and not _going(pod):
                self._terminate(pod)

    def _of(self, rs: Mapping[str, Any]) -> list[dict[str, Any]]:
        uid = rs["metadata"]["uid"]
        return [p for p in self.pods() if any(one["uid"] == uid for one in p["metadata"]["ownerReferences"])]

    def schedule(self) -> None:
        """The scheduler: one pod takes a whole node, until it is gone."""
        taken = {pod["spec"].get("nodeName") for pod in self.pods()}
        free = [n for n in self.nodes or () if n["metadata"]["name"] not in taken | self.full]
        for pod in self.pods():
            if pod["spec"].get("nodeName") or _going(pod):
                continue
            found = next((one for one in free if _admits(one, pod)), None)
            if found is not None:
                free.remove(found)
                pod["spec"]["nodeName"] = found["metadata"]["name"]
                pod["status"]["conditions"] = [{"type": "PodScheduled", "status": "True"}]
            else:
                message = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."
                pod["status"]["conditions"] = [
                    {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
                ]

    def start(self, name: str | None = None) -> None:
        """The kubelet: pods that have a node get ready, or crash if they are bad."""
        for pod in self.pods():
            if not pod["spec"].get("nodeName") or _going(pod) or name not in (None, pod["metadata"]["name"]):
                continue
            if BAD in pod["spec"]["containers"][0]["args"]:
                self.crash(pod)
            else:
                self.set_ready(pod, ready=True)

    def set_ready(self, pod: dict[str, Any], *, ready: bool) -> None:
        pod["status"]["phase"] = "Running"
        pod["status"]["conditions"] = [
            {"type": "PodScheduled", "status": "True"},
            {"type": "Ready", "status": "True" if ready else "False"},
        ]
        status = {"name": "engine", "started": ready, "restartCount": 0, "state": {"running": {}}}
        old = pod["status"].get("containerStatuses", [status])[0]
        pod["status"]["containerStatuses"] = [status | {"restartCount": old["restartCount"], "started": True}]

    def crash(self, pod: dict[str, Any], code: int = 1, reason: str = "Error") -> None:
        old = pod["status"].get("containerStatuses", [{"restartCount": 0}])[0]
        stamp = (START + timedelta(minutes=self._serial)).strftime("%Y-%m-%dT%H:%M:%SZ")
        if (old.get("state") or {}).get("waiting"):
            return
        pod["status"]["phase"] = "Running"
        pod["status"]["conditions"] = [
            {"type": "PodScheduled", "status": "True"},
            {"type": "Ready", "status": "False"},
        ]
        pod["status"]["containerStatuses"] = [
            {
                "name": "engine",
                "started": False,
                "restartCount": old["restartCount"] + 1,
                "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s"}},
                "lastState": {"terminated": {"exitCode": code, "reason": reason, "finishedAt": stamp}},
            }
        ]

    def finish(self, name: str | None = None) -> None:
        """Pods that are being deleted are gone."""
        for pod in self.pods():
            if _going(pod) and name in (None, pod["metadata"]["name"]) and pod["metadata"]["name"] not in self.hanging:
                del self.objects["Pod", pod["metadata"]["name"]]

    # --- together -----------------------------------------------------------------------------------------------

    def settle(self, rounds: int = 60) -> int:
        """Run everything until nothing changes. Returns the number of rounds."""
        for count in range(rounds):
            before = copied((self.objects, self.inference))
            self.operate()
            self.collect()
            self.control()
            self.schedule()
            self.start()
            self.finish()
            self.schedule()
            if before == (self.objects, self.inference):
                return count
        raise AssertionError(f"no rest after {rounds} rounds")

    @staticmethod
    def is_ready(pod: Mapping[str, Any]) -> bool:
        return _is_ready(pod)

    def serving(self) -> int:
        return sum(_is_ready(pod) and not _going(pod) for pod in self.pods())

    def condition(self, kind: ConditionType) -> Mapping[str, Any]:
        return status_of(self.inference.get("status", {}).get("conditions", ()), kind)

    def reason(self, kind: ConditionType) -> str:
        found = self.condition(kind)
        return f"{found.get('status')}/{found.get('reason')}"

    @property
    def status(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.inference["status"]
        return found

    def names(self, kind: str) -> list[str]:
        return sorted(name for of, name in self.objects if of == kind)

    def _slices(self) -> tuple[dict[str, Any], ...]:
        if ("Service", "llama") not in self.objects:
            return ()
        endpoints = [
            {
                "targetRef": {"kind": "Pod", "name": pod["metadata"]["name"]},
                "conditions": {"ready": _is_ready(pod) and not _going(pod)},
            }
            for pod in self.pods()
            if pod["metadata"]["name"] not in self.unrouted
        ]
        return ({"metadata": {"name": "llama-x"}, "endpoints": endpoints},)

    def _make_pod(self, rs: Mapping[str, Any]) -> None:
        template = copied(rs["spec"]["template"])
        name = f"{rs['metadata']['name']}-{self._serial:05d}"
        metadata = template["metadata"] | {
            "name": name,
            "namespace": "serving",
            "uid": self._uid(),
            "ownerReferences": [_owner(rs)],
            "creationTimestamp": (START + timedelta(seconds=self._serial)).strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        self.objects["Pod", name] = {"metadata": metadata, "spec": template["spec"], "status": {"phase": "Pending"}}

    def _terminate(self, pod: dict[str, Any]) -> None:
        if pod["spec"].get("nodeName"):
            pod["metadata"]["deletionTimestamp"] = (self.now + GRACE).strftime("%Y-%m-%dT%H:%M:%SZ")
        else:
            del self.objects["Pod", pod["metadata"]["name"]]

    def _uid(self) -> str:
        self._serial += 1
        return f"uid-{self._serial}"


def in_place(live: Mapping[str, Any], document: Mapping[str, Any]) -> bool:
    """Whether applying the document would change nothing."""
    if document["kind"] == "Pod":
        marks = (live["metadata"].get("annotations") or {}).items()
        return bool(document["metadata"]["annotations"].items() <= marks)
    current = {name: live.get(name) for name in document if name != "metadata"}
    ours = {name: live["metadata"].get(name) for name in document["metadata"]}
    return {**current, "metadata": ours} == document


def rollouts(cluster: SmallCluster) -> Iterator[int]:
    """Run to rest, giving the number of serving pods after each step of anybody."""
    for _ in range(80):
        before = copied((cluster.objects, cluster.inference))
        kubernetes = (cluster.collect, cluster.control, cluster.schedule, cluster.start, cluster.finish)
        for actor in (cluster.operate, *kubernetes):
            actor()
            yield cluster.serving()
        if before == (cluster.objects, cluster.inference):
            return
    raise AssertionError("no rest")


def _going(pod: Mapping[str, Any]) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def _labels(obj: Mapping[str, Any]) -> dict[str, str]:
    labels: dict[str, str] = obj["metadata"].get("labels") or {}
    return labels


def _owner(rs: Mapping[str, Any]) -> dict[str, Any]:
    return {"kind": "ReplicaSet", "name": rs["metadata"]["name"], "uid": rs["metadata"]["uid"], "controller": True}


def _admits(one: Mapping[str, Any], pod: Mapping[str, Any]) -> bool:
    spec = pod["spec"]
    selected = (spec.get("nodeSelector") or {}).items() <= _labels(one).items()
    fits = admission.matches_affinity(one, spec.get("affinity") or {})
    return selected and fits and not one["spec"].get("unschedulable")


def _is_ready(pod: Mapping[str, Any]) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", ()))


def _goes_first(pod: Mapping[str, Any]) -> tuple[bool, bool, int, str]:
    """The order of the ReplicaSet controller (ActivePodsWithRanks), as far as it matters here."""
    cost = int((pod["metadata"].get("annotations") or {}).get("controller.kubernetes.io/pod-deletion-cost", 0))
    youngest = "".join(chr(255 - ord(c)) for c in pod["metadata"]["creationTimestamp"])
    return ("nodeName" in pod["spec"], _is_ready(pod), cost, youngest)
