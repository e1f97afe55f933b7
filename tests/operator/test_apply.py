"""The writer against a real API server: what it sends, what it leaves alone, what it gives up."""

from collections.abc import AsyncIterator
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import pytest_asyncio
from listed import listed

from hisparse.errors import Transient
from hisparse_operator.cluster import kube
from hisparse_operator.cluster.apply import Applied, Applier, ChildTakenError
from hisparse_operator.cluster.cache import Cache
from hisparse_operator.cluster.contest import Contest
from hisparse_operator.cluster.kube import Api, ApiError, Conflict, LeaseLostError, load_configuration
from hisparse_operator.cluster.ownership import in_place
from hisparse_operator.cluster.recorder import REPEAT_RARELY_S, Recorder
from hisparse_operator.cluster.relist import relist
from hisparse_operator.decide.identity import ref
from hisparse_operator.kinds import BY_NAME, EVENT, FIELD_MANAGER, INFERENCE, LABEL, STATUS_MANAGER, Kind
from hisparse_operator.world import Event, Outcome, Ref
from hisparse_testenv.shared import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.filterwarnings("ignore:unclosed transport:ResourceWarning")]

SERVICE, CONFIG_MAP = BY_NAME["v1", "Service"], BY_NAME["v1", "ConfigMap"]
LABELS = {"app.kubernetes.io/name": "hisparse", "inference.hisparse.dev/inference": "glm"}


@dataclass
class Scene:
    api: Api
    namespace: str
    inference: dict[str, Any]
    now: datetime = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
    requests: list[tuple[str, str, str]] = field(default_factory=list)

    def count(self, verb: str, resource: str, code: str, seconds: float) -> None:
        del seconds
        self.requests.append((verb, resource, code))

    def writes(self) -> list[tuple[str, str, str]]:
        """Requests other than reads since the last call."""
        found = [one for one in self.requests if one[0] not in ("get", "list")]
        self.requests.clear()
        return found

    def owner(self) -> dict[str, Any]:
        return {
            "apiVersion": INFERENCE.api_version,
            "kind": INFERENCE.kind,
            "name": "glm",
            "uid": self.inference["metadata"]["uid"],
            "controller": True,
            "blockOwnerDeletion": True,
        }

    def child(self, api_version: str, kind: str, name: str = "glm", **rest: Any) -> dict[str, Any]:
        meta = {"name": name, "namespace": self.namespace, "labels": LABELS, "ownerReferences": [self.owner()]}
        return {"apiVersion": api_version, "kind": kind, "metadata": meta, **rest}

    def config_map(self, **data: str) -> dict[str, Any]:
        return self.child("v1", "ConfigMap", data=data)

    async def cache(self) -> Cache:
        """What a fresh process would know."""
        cache = Cache()
        for kind in BY_NAME.values():
            await relist(self.api, cache, kind, self.namespace, lambda _: None)
        self.requests.clear()
        return cache

    def recorder(self) -> Recorder:
        return Recorder(self.api, lambda: self.now)

    async def applier(self) -> Applier:
        return Applier(self.api, await self.cache(), self.recorder())

    async def live(self, kind: Kind, name: str = "glm") -> dict[str, Any]:
        found = await self.api.get(kind, self.namespace, name)
        assert found is not None
        return found

    async def edit(self, kind: Kind, patch: dict[str, Any], name: str = "glm") -> None:
        """Somebody else changes an object."""
        await self.api.merge(kind, self.namespace, name, patch)


@pytest_asyncio.fixture
async def scene(installed: Cluster, namespace: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scene]:
    # the same client plays people here, who may do more than the operator (test_rights.py holds that to its table)
    monkeypatch.setattr(kube, "need", lambda *_, **__: None)
    found: list[Scene] = []
    configuration = await load_configuration(installed.kubeconfig)
    async with Api(configuration, lambda *request: found[0].count(*request) if found else None) as api:
        document = {
            "apiVersion": INFERENCE.api_version,
            "kind": INFERENCE.kind,
            "metadata": {"name": "glm", "namespace": namespace},
            "spec": {
                "model": {"huggingFace": {"repo": "zai-org/GLM-5.3-FP8"}},
                "context": {"maxTokens": 1048576},
                "resources": {"gpus": 8},
            },
        }
        found.append(Scene(api, namespace, await api.create(INFERENCE, document)))
        yield found[0]


def everything(scene: Scene) -> tuple[dict[str, Any], ...]:
    """All kinds that we write, with what the API server fills in or writes differently."""
    container = {
        "name": "engine",
        "image": "registry.example/vllm:1",
        "command": ["hisparse-launch"],
        "ports": [{"name": "http", "containerPort": 8000}],
        "env": [
            {"name": "EMPTY", "value": ""},
            {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        ],
        "resources": {
            "requests": {"cpu": "0.5", "memory": "2048Gi", "nvidia.com/gpu": 8},
            "limits": {"memory": "2048Gi", "nvidia.com/gpu": 8},
        },
        "startupProbe": {"httpGet": {"path": "/readyz", "port": 8001}, "failureThreshold": 120},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}, {"name": "plan", "mountPath": "/etc/hisparse"}],
    }
    pod = {
        "metadata": {"labels": LABELS | {"inference.hisparse.dev/revision": "abc"}},
        "spec": {
            "automountServiceAccountToken": False,
            "containers": [container],
            "volumes": [
                {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1024Mi"}},
                {"name": "plan", "configMap": {"name": "glm"}},
                {"name": "tmp", "emptyDir": {}},
            ],
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [
                            {"matchExpressions": [{"key": "nvidia.com/gpu.product", "operator": "In", "values": ["x"]}]}
                        ]
                    }
                }
            },
        },
    }
    selector = {"matchLabels": {"inference.hisparse.dev/inference": "glm", "inference.hisparse.dev/revision": "abc"}}
    return (
        scene.child("v1", "ServiceAccount", automountServiceAccountToken=False),
        scene.config_map(**{"plan.json": "{}"}),
        scene.child("apps/v1", "ControllerRevision", revision=1, data={"plan": {"gpus": 8, "empty": {}, "none": None}}),
        scene.child(
            "v1",
            "Service",
            spec={"selector": LABELS, "ports": [{"name": "http", "port": 8000, "targetPort": "http"}]},
        ),
        scene.child(
            "networking.k8s.io/v1",
            "NetworkPolicy",
            spec={
                "podSelector": {"matchLabels": LABELS},
                "policyTypes": ["Ingress"],
                "ingress": [{"ports": [{"port": 8000}]}],
            },
        ),
        scene.child(
            "policy/v1", "PodDisruptionBudget", spec={"maxUnavailable": 1, "selector": {"matchLabels": LABELS}}
        ),
        scene.child("apps/v1", "ReplicaSet", spec={"replicas": 0, "selector": selector, "template": pod}),
    )


async def test_every_kind_is_in_place_after_one_apply_as_a_fresh_process_sees_it(scene: Scene) -> None:
    outcome = Outcome(apply=everything(scene))
    assert await (await scene.applier()).apply(scene.inference, outcome) == Applied(children=7)
    cache = await scene.cache()
    for document in outcome.apply:
        kind = BY_NAME[document["apiVersion"], document["kind"]]
        live = cache.get(kind, scene.namespace, "glm")
        assert live is not None
        assert in_place(live, document, FIELD_MANAGER), document["kind"]
    assert await (await scene.applier()).apply(scene.inference, outcome) == Applied()
    assert scene.requests == []


def _changes() -> list[Any]:
    def image(document: dict[str, Any]) -> None:
        document["spec"]["template"]["metadata"]["labels"]["more"] = "x"

    def cpu(document: dict[str, Any]) -> None:
        document["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "600m"

    def gone(document: dict[str, Any]) -> None:
        del document["spec"]["template"]["spec"]["containers"][0]["command"]

    def toleration(document: dict[str, Any]) -> None:
        document["spec"]["template"]["spec"]["tolerations"].append({"key": "x", "operator": "Exists"})

    def volume(document: dict[str, Any]) -> None:
        document["spec"]["template"]["spec"]["volumes"].pop()

    def given_up(document: dict[str, Any]) -> None:
        del document["spec"]["replicas"]

    return [
        pytest.param(change, id=text)
        for change, text in (
            (image, "another label"),
            (cpu, "another quantity"),
            (gone, "a field that is no longer wanted"),
            (toleration, "one more element of a list that is owned as a whole"),
            (volume, "one element less of a list that is a map"),
            (given_up, "a field that is given up"),
        )
    ]


@pytest.mark.parametrize("change", _changes())
async def test_a_changed_document_is_seen(scene: Scene, change: Any) -> None:
    wanted = everything(scene)[-1]
    await (await scene.applier()).apply(scene.inference, Outcome(apply=(wanted,)))
    live = (await scene.cache()).get(BY_NAME["apps/v1", "ReplicaSet"], scene.namespace, "glm")
    assert live is not None
    assert in_place(live, wanted, FIELD_MANAGER)
    changed = deepcopy(wanted)
    change(changed)
    assert not in_place(live, changed, FIELD_MANAGER)


async def test_a_field_that_is_no_longer_applied_goes_and_what_others_set_stays(scene: Scene) -> None:
    applier = await scene.applier()
    await applier.apply(scene.inference, Outcome(apply=(scene.config_map(ours="1", old="1"),)))
    await scene.edit(CONFIG_MAP, {"data": {"theirs": "1"}})
    applier = await scene.applier()
    assert (await applier.apply(scene.inference, Outcome(apply=(scene.config_map(ours="1"),)))).children == 1
    assert (await scene.live(CONFIG_MAP))["data"] == {"ours": "1", "theirs": "1"}


async def test_an_edit_of_our_field_is_put_back_by_one_write(scene: Scene) -> None:
    wanted = Outcome(apply=(scene.config_map(ours="1"),))
    await (await scene.applier()).apply(scene.inference, wanted)
    await scene.edit(CONFIG_MAP, {"data": {"ours": "2"}})
    applier = await scene.applier()
    assert (await applier.apply(scene.inference, wanted)).children == 1
    assert (await scene.live(CONFIG_MAP))["data"] == {"ours": "1"}
    assert scene.writes() == [("apply", "configmaps", "200")]
    assert await applier.apply(scene.inference, wanted) == Applied(), "the cache knows our own write"


@pytest.mark.parametrize("labels", [{}, LABELS], ids=["no labels, so that no watch tells of it", "our labels"])
async def test_what_another_controller_owns_is_never_taken_and_nothing_is_half_applied(
    scene: Scene, labels: dict[str, str]
) -> None:
    theirs = scene.child("v1", "ConfigMap", data={"a": "1"})
    # a real one: the garbage collector deletes what an owner that does not exist is said to own
    web = await scene.api.create(CONFIG_MAP, {"metadata": {"namespace": scene.namespace, "name": "web"}})
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "web", "uid": web["metadata"]["uid"], "controller": True}
    theirs["metadata"] |= {"labels": labels, "ownerReferences": [owner]}
    created = await scene.api.create(CONFIG_MAP, theirs)
    applier = await scene.applier()
    children = (scene.child("v1", "ServiceAccount"), scene.config_map(a="2"), scene.child("v1", "Service"))
    wanted = Outcome(apply=children, status={"replicas": 1})
    with pytest.raises(ChildTakenError, match="ConfigMap glm exists and belongs to ConfigMap web"):
        await applier.apply(scene.inference, wanted)
    assert scene.writes() == []
    live = await scene.live(CONFIG_MAP)
    assert live["metadata"]["resourceVersion"] == created["metadata"]["resourceVersion"]


async def test_a_users_object_without_owner_and_labels_is_not_taken_an_orphan_of_ours_is(scene: Scene) -> None:
    theirs = scene.config_map(a="1")
    theirs["metadata"] |= {"labels": {}, "ownerReferences": []}
    await scene.api.create(CONFIG_MAP, theirs)
    applier = await scene.applier()
    wanted = Outcome(apply=(scene.config_map(a="2"),))
    with pytest.raises(ChildTakenError, match="belongs to somebody else"):
        await applier.apply(scene.inference, wanted)
    await scene.edit(CONFIG_MAP, {"metadata": {"labels": LABELS}})
    with pytest.raises(Transient, match="have not shown it yet"):
        await applier.apply(scene.inference, wanted)
    assert (await applier.apply(scene.inference, wanted)).children == 1
    assert (await scene.live(CONFIG_MAP))["metadata"]["ownerReferences"] == [scene.owner()]


async def test_a_new_child_with_a_hash_in_its_name_takes_one_request(scene: Scene) -> None:
    applier = await scene.applier()
    hashed = scene.child("v1", "ConfigMap", "glm-abc", data={"a": "1"})
    assert (await applier.apply(scene.inference, Outcome(apply=(hashed,)))).children == 1
    assert scene.requests == [("apply", "configmaps", "201")]


async def test_of_a_new_child_with_a_name_that_people_use_it_asks_first(scene: Scene) -> None:
    applier = await scene.applier()
    assert (await applier.apply(scene.inference, Outcome(apply=(scene.child("v1", "ServiceAccount"),)))).children == 1
    assert scene.requests == [("get", "serviceaccounts", "404"), ("apply", "serviceaccounts", "201")]


async def test_an_object_that_no_watch_tells_of_is_not_written_even_where_nothing_of_it_would_change(
    scene: Scene,
) -> None:
    theirs = scene.config_map(a="1")
    theirs["metadata"] |= {"labels": {}, "ownerReferences": []}
    created = await scene.api.create(CONFIG_MAP, theirs)
    wanted = scene.config_map(a="1")
    wanted["metadata"] |= {"labels": {}, "ownerReferences": []}
    with pytest.raises(ChildTakenError):
        await (await scene.applier()).apply(scene.inference, Outcome(apply=(wanted,)))
    assert (await scene.live(CONFIG_MAP))["metadata"]["resourceVersion"] == created["metadata"]["resourceVersion"]


async def test_a_namesake_made_behind_our_back_is_not_written(scene: Scene) -> None:
    """The cache is behind: deleted and made anew by somebody since."""
    await (await scene.applier()).apply(scene.inference, Outcome(apply=(scene.config_map(a="1"),)))
    applier = await scene.applier()
    await scene.api.delete(CONFIG_MAP, scene.namespace, "glm", None)
    await scene.api.create(CONFIG_MAP, scene.config_map(a="theirs"))
    with pytest.raises(Conflict, match=r"uid|modified"):
        await applier.apply(scene.inference, Outcome(apply=(scene.config_map(a="2"),)))
    assert (await scene.live(CONFIG_MAP))["data"] == {"a": "theirs"}


async def test_what_the_watches_have_not_shown_yet_is_not_written(scene: Scene) -> None:
    """Another leader has made it: nothing was decided on it, as how many pods it has."""
    behind = await scene.applier()
    await (await scene.applier()).apply(scene.inference, Outcome(apply=(scene.config_map(a="1"),)))
    with pytest.raises(Transient, match="have not shown it yet"):
        await behind.apply(scene.inference, Outcome(apply=(scene.config_map(a="2"),)))
    assert (await scene.live(CONFIG_MAP))["data"] == {"a": "1"}
    assert (await behind.apply(scene.inference, Outcome(apply=(scene.config_map(a="2"),)))).children == 1


async def test_what_has_lost_our_label_gets_it_back_and_nothing_else(scene: Scene) -> None:
    """The watches do not show it, so that nothing was decided on it: its content may be what has to be kept."""
    await (await scene.applier()).apply(scene.inference, Outcome(apply=(scene.config_map(a="1"),)))
    await scene.edit(CONFIG_MAP, {"metadata": {"labels": {LABEL: None}}})
    applier = await scene.applier()
    with pytest.raises(Transient, match="have not shown it yet"):
        await applier.apply(scene.inference, Outcome(apply=(scene.config_map(a="2"),)))
    live = await scene.live(CONFIG_MAP)
    assert live["data"] == {"a": "1"}
    assert live["metadata"]["labels"][LABEL] == "glm"


async def test_a_delete_does_not_take_what_was_changed_since(scene: Scene) -> None:
    """A ReplicaSet without pods, say, that another leader has filled again."""
    await (await scene.applier()).apply(scene.inference, Outcome(apply=(scene.config_map(a="1"),)))
    applier = await scene.applier()
    seen = await scene.live(CONFIG_MAP)
    await scene.edit(CONFIG_MAP, {"data": {"a": "2"}})
    gone = ref(seen, "v1", "ConfigMap")
    assert await applier.apply(scene.inference, Outcome(delete=(gone,))) == Applied()
    gone = ref(await scene.live(CONFIG_MAP), "v1", "ConfigMap")
    assert (await applier.apply(scene.inference, Outcome(delete=(gone,)))).children == 1


async def test_a_delete_names_the_very_object(scene: Scene) -> None:
    await (await scene.applier()).apply(scene.inference, Outcome(apply=(scene.config_map(a="1"),)))
    applier = await scene.applier()
    uid = (await scene.live(CONFIG_MAP))["metadata"]["uid"]
    assert await applier.apply(scene.inference, Outcome(delete=(Ref("v1", "ConfigMap", "glm", "0"),))) == Applied()
    gone = Outcome(delete=(Ref("v1", "ConfigMap", "glm", uid),))
    assert (await applier.apply(scene.inference, gone)).children == 1
    assert await scene.api.get(CONFIG_MAP, scene.namespace, "glm") is None
    assert (await applier.apply(scene.inference, gone)).children == 1, "a second delete of what is gone is no error"


def status(*types: str, replicas: int = 1) -> dict[str, Any]:
    return {
        "observedGeneration": 1,
        "replicas": replicas,
        "conditions": [
            {
                "type": one,
                "status": "False",
                "reason": "Starting",
                "message": "0 of 1",
                "observedGeneration": 1,
                "lastTransitionTime": "2026-11-29T12:00:00Z",
            }
            for one in types
        ],
    }


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        pytest.param("\U0001f6ab denied, \U0001d4b3", None, id="beyond the 16 bits of JSON's escapes"),
        pytest.param("\x00 \x1b \x7f \x85 \x9f", None, id="controls"),
        pytest.param("\u2028 \u2029 \ufeff \ufffe \uffff", None, id="what YAML does not print"),
        pytest.param("\\ud83d\\ude80 \\U0001f680 \\x07", None, id="text that looks like an escape"),
        pytest.param("half \ud83d of a pair", "half \ufffd of a pair", id="half a pair"),
    ],
)
async def test_any_text_is_written_as_it_is(scene: Scene, text: str, kept: str | None) -> None:
    applier = await scene.applier()
    await applier.apply(scene.inference, Outcome(apply=(scene.config_map(a=text),)))
    assert (await scene.live(CONFIG_MAP))["data"]["a"] == (kept or text)
    assert await applier.apply(scene.inference, Outcome(apply=(scene.config_map(a=kept or text),))) == Applied()


async def test_status_is_one_write_when_it_differs_and_none_when_not(scene: Scene) -> None:
    applier = await scene.applier()
    assert (await applier.apply(scene.inference, Outcome(status=status("Ready", "Available")))).status
    assert not (await applier.apply(scene.inference, Outcome(status=status("Ready", "Available")))).status
    assert scene.writes() == [("apply", "hisparseinferences", "200")]
    applier = await scene.applier()
    assert not (await applier.apply(scene.inference, Outcome(status=status("Ready", "Available")))).status
    with pytest.raises(Conflict, match="modified"):  # computed from what was there before that write
        await applier.apply(scene.inference, Outcome(status=status("Available", replicas=2)))
    inference = await scene.live(INFERENCE)
    assert (await applier.apply(inference, Outcome(status=status("Available", replicas=2)))).status
    live = await scene.live(INFERENCE)
    assert [one["type"] for one in live["status"]["conditions"]] == ["Available"]
    assert {entry["manager"] for entry in live["metadata"]["managedFields"] if entry.get("subresource")} == {
        STATUS_MANAGER
    }


async def test_status_of_an_object_that_was_made_anew_is_refused(scene: Scene) -> None:
    applier = await scene.applier()
    await scene.api.delete(INFERENCE, scene.namespace, "glm", None)
    document = {key: scene.inference[key] for key in ("apiVersion", "kind", "spec")}
    await scene.api.create(INFERENCE, document | {"metadata": {"namespace": scene.namespace, "name": "glm"}})
    with pytest.raises(Conflict):
        await applier.apply(scene.inference, Outcome(status=status("Ready")))
    assert "status" not in await scene.live(INFERENCE)


async def test_an_event_is_posted_once_and_counted_when_it_comes_back(scene: Scene) -> None:
    applier = await scene.applier()
    starting = Outcome(events=(Event("Normal", "Starting", "0 of 1 engines ready"),))
    assert (await applier.apply(scene.inference, starting)).events == 1
    assert (await applier.apply(scene.inference, starting)).events == 0, "in the same breath"
    scene.now += timedelta(seconds=11)
    assert (await applier.apply(scene.inference, starting)).events == 1, "an outage that comes back is told"
    found = await listed(scene.api, EVENT, scene.namespace)
    (event,) = [one for one in found if one["involvedObject"]["kind"] == INFERENCE.kind]
    assert (event["count"], event["reportingComponent"], event["lastTimestamp"]) == (
        2,
        "hisparse-operator",
        "2026-11-29T12:00:11Z",
    )


async def test_events_of_one_second_are_listed_in_the_order_in_which_they_were_posted(scene: Scene) -> None:
    recorder = scene.recorder()
    # in the order of the alphabet and of any digest these would stand otherwise
    told = [f"{number * 7 % 20}: so it went" for number in range(20)]
    for message in told:
        assert await recorder.post(scene.inference, Event("Normal", "Told", message))
    scene.now -= timedelta(seconds=30)  # a clock that was set back
    assert await recorder.post(scene.inference, Event("Normal", "Told", "the last"))
    found = await listed(scene.api, EVENT, scene.namespace)
    assert [one["message"] for one in found if one["reason"] == "Told"] == [*told, "the last"]


async def test_an_event_that_has_expired_is_posted_anew(scene: Scene) -> None:
    recorder, starting = scene.recorder(), Event("Normal", "Starting", "0 of 1 engines ready")
    assert await recorder.post(scene.inference, starting)
    found = await listed(scene.api, EVENT, scene.namespace)
    await scene.api.delete(EVENT, scene.namespace, found[0]["metadata"]["name"], None)
    scene.now += timedelta(hours=1)
    assert await recorder.post(scene.inference, starting)
    found = await listed(scene.api, EVENT, scene.namespace)
    assert [one["count"] for one in found if one["reason"] == "Starting"] == [1]


async def test_an_event_that_each_try_posts_again_is_counted_rarely(scene: Scene) -> None:
    recorder, refused = scene.recorder(), Event("Warning", "Refused", "no")
    assert await recorder.post(scene.inference, refused, repeat_s=REPEAT_RARELY_S)
    scene.now += timedelta(minutes=9)
    assert not await recorder.post(scene.inference, refused, repeat_s=REPEAT_RARELY_S)
    scene.now += timedelta(minutes=2)
    assert await recorder.post(scene.inference, refused, repeat_s=REPEAT_RARELY_S)


async def test_a_long_event_is_cut_after_a_word(scene: Scene) -> None:
    recorder = scene.recorder()
    assert await recorder.post(scene.inference, Event("Warning", "Refused", "word " * 1000))
    found = await listed(scene.api, EVENT, scene.namespace)
    (event,) = [one for one in found if one["involvedObject"]["kind"] == INFERENCE.kind]
    assert event["message"].endswith("word ...")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


async def contested_events(scene: Scene) -> list[str]:
    found = await listed(scene.api, EVENT, scene.namespace)
    return [one["message"] for one in found if one["reason"] == "WriteContested"]


async def test_of_two_that_write_one_status_each_writes_it_more_and_more_rarely(scene: Scene) -> None:
    clock = Clock()
    ours = Applier(scene.api, cache := await scene.cache(), scene.recorder(), contest=Contest(clock))
    writes = 0
    for number in range(500):
        clock.now += 0.02
        # the other one has our name, as a second operator has
        theirs = {**scene.inference, "metadata": {"namespace": scene.namespace, "name": "glm"}}
        document = {key: theirs[key] for key in ("apiVersion", "kind", "metadata")} | {
            "status": status(replicas=number)
        }
        cache.put(
            INFERENCE, await scene.api.apply(INFERENCE, document, STATUS_MANAGER, force=True, subresource="status")
        )
        live = cache.get(INFERENCE, scene.namespace, "glm")
        assert live is not None
        applied = await ours.apply(live, Outcome(status=status("Ready", replicas=1000), events=()))
        writes += applied.status
        assert applied.status or (applied.again_s or 0) > 0, "it says when to come back"
        if number > 60 and not applied.status:
            break
    assert writes <= 6
    (told,) = await contested_events(scene)
    assert "two operators serve this namespace" in told
    clock.now += 1000
    live = await scene.live(INFERENCE)
    assert (await ours.apply(live, Outcome(status=status("Ready", replicas=1001)))).status, "later it is written again"


async def test_a_rollout_may_write_the_status_as_often_as_it_likes(scene: Scene) -> None:
    ours = Applier(scene.api, cache := await scene.cache(), scene.recorder(), contest=Contest(Clock()))
    for number in range(30):
        live = cache.get(INFERENCE, scene.namespace, "glm")
        assert live is not None
        assert (await ours.apply(live, Outcome(status=status("Ready", replicas=number)))).status
    assert await contested_events(scene) == []


async def test_a_child_that_somebody_keeps_changing_is_put_back_more_and_more_rarely(scene: Scene) -> None:
    clock = Clock()
    ours = Applier(scene.api, cache := await scene.cache(), scene.recorder(), contest=Contest(clock))
    wanted = Outcome(apply=(scene.config_map(a="1"), scene.child("v1", "ServiceAccount")))
    assert (await ours.apply(scene.inference, wanted)).children == 2
    writes = 0
    for number in range(20):
        clock.now += 0.1
        theirs = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": scene.namespace, "name": "glm"}}
        await scene.api.apply(CONFIG_MAP, theirs | {"data": {"a": f"theirs {number}"}}, "argocd", force=True)
        cache.put(CONFIG_MAP, await scene.live(CONFIG_MAP))
        applied = await ours.apply(scene.inference, wanted)
        writes += applied.children
        assert applied.children or (applied.again_s or 0) > 0
    assert writes <= 6
    (told,) = await contested_events(scene)
    assert "ConfigMap glm was changed" in told
    assert 'Field manager "argocd" writes it too' in told
    other = Outcome(apply=(scene.config_map(a="2"),))
    assert (await ours.apply(scene.inference, other)).children == 1, "what we did not write before is no repetition"
    edited = {**scene.inference, "metadata": {**scene.inference["metadata"], "generation": 2}}
    await scene.edit(CONFIG_MAP, {"data": {"a": "theirs"}})
    cache.put(CONFIG_MAP, await scene.live(CONFIG_MAP))
    assert (await ours.apply(edited, other)).children == 1, "an edit of the object begins anew"


async def put_back_events(scene: Scene) -> list[str]:
    found = await listed(scene.api, EVENT, scene.namespace)
    return [one["message"] for one in found if one["reason"] == "ChildPutBack"]


async def test_a_child_that_a_person_edits_is_put_back_and_the_person_is_named(scene: Scene) -> None:
    wanted = Outcome(apply=(scene.config_map(a="1"), scene.child("v1", "ServiceAccount")))
    assert (await (await scene.applier()).apply(scene.inference, wanted)).children == 2
    # another process of ours, which finds everything in place
    applier = Applier(scene.api, cache := await scene.cache(), scene.recorder())
    assert await applier.apply(scene.inference, wanted) == Applied()
    theirs = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": scene.namespace, "name": "glm"}}
    await scene.api.apply(CONFIG_MAP, theirs | {"data": {"a": "2"}}, "kubectl-edit", force=True)
    cache.put(CONFIG_MAP, await scene.live(CONFIG_MAP))
    assert (await applier.apply(scene.inference, wanted)).children == 1
    assert await applier.apply(scene.inference, wanted) == Applied()
    (told,) = await put_back_events(scene)
    assert told == (
        'ConfigMap glm was changed by field manager "kubectl-edit", and the operator has put it back. Edit the '
        "HiSparseInference instead; spec.paused: true makes the operator leave its children alone for a while."
    )


async def test_a_child_that_a_person_deletes_is_made_again_and_that_is_told(scene: Scene) -> None:
    applier = Applier(scene.api, cache := await scene.cache(), scene.recorder())
    wanted = Outcome(apply=(scene.config_map(a="1"),))
    await applier.apply(scene.inference, wanted)
    live = await scene.live(CONFIG_MAP)
    await scene.api.delete(CONFIG_MAP, scene.namespace, "glm", None)
    cache.remove(CONFIG_MAP, live, dead=True)
    assert (await applier.apply(scene.inference, wanted)).children == 1
    (told,) = await put_back_events(scene)
    assert told.startswith("ConfigMap glm was deleted, and the operator has made it again. ")


async def test_what_the_operator_itself_changed_or_deleted_is_no_news(scene: Scene) -> None:
    applier = Applier(scene.api, cache := await scene.cache(), scene.recorder())
    for _ in range(2):
        for value in ("1", "2"):
            await applier.apply(scene.inference, Outcome(apply=(scene.config_map(a=value),)))
        live = cache.get(CONFIG_MAP, scene.namespace, "glm")
        assert live is not None
        gone = Outcome(delete=(Ref("v1", "ConfigMap", "glm", live["metadata"]["uid"]),))
        assert (await applier.apply(scene.inference, gone)).children == 1
        await applier.apply(scene.inference, Outcome(apply=(scene.config_map(a="2"),)))
    assert await put_back_events(scene) == []


async def test_while_a_replica_set_is_fought_over_nothing_that_counts_on_it_is_written(scene: Scene) -> None:
    clock = Clock()
    ours = Applier(scene.api, cache := await scene.cache(), scene.recorder(), contest=Contest(clock))
    first = everything(scene)[-1]
    second = deepcopy(first) | {"metadata": first["metadata"] | {"name": "second"}}
    kind = BY_NAME["apps/v1", "ReplicaSet"]

    async def apply_first() -> Applied:
        while True:
            try:
                return await ours.apply(scene.inference, Outcome(apply=(first,)))
            except Conflict:  # its controller has written its status since; the cache has that now
                continue

    await apply_first()
    for number in range(7):
        await scene.edit(kind, {"spec": {"replicas": number + 1, "minReadySeconds": number}})
        cache.put(kind, await scene.live(kind))
        applied = await apply_first()
    assert applied.again_s
    gone = Ref("apps/v1", "ReplicaSet", "glm", cache.get(kind, scene.namespace, "glm")["metadata"]["uid"])  # type: ignore[index]
    applied = await ours.apply(scene.inference, Outcome(apply=(first, second), delete=(gone,)))
    assert applied.children == 0


async def test_a_refusal_says_what_was_refused(scene: Scene) -> None:
    wanted = deepcopy(everything(scene)[-1])
    wanted["spec"]["template"]["spec"]["tolerations"].append({"bogus": 1})
    with pytest.raises(ApiError, match="field not declared in schema") as caught:
        await (await scene.applier()).apply(scene.inference, Outcome(apply=(wanted,)))
    assert caught.value.document == wanted


async def test_nothing_is_written_without_the_lease(scene: Scene) -> None:
    applier = await scene.applier()
    scene.api.may_write = lambda: False
    with pytest.raises(LeaseLostError):
        await applier.apply(scene.inference, Outcome(apply=(scene.config_map(a="1"),)))
    assert scene.writes() == []


async def test_what_the_api_server_refuses_is_no_reason_to_retry(scene: Scene) -> None:
    wanted = scene.child("v1", "Service", spec={"ports": [{"port": 99999999}]})
    with pytest.raises(ApiError, match="422"):
        await (await scene.applier()).apply(scene.inference, Outcome(apply=(wanted,)))


async def test_a_server_that_is_not_there_is_transient(scene: Scene) -> None:
    configuration = deepcopy(scene.api.configuration)
    configuration.host = "https://127.0.0.1:1"
    async with Api(configuration) as api:
        with pytest.raises(Transient, match="onnect"):
            await api.get(SERVICE, scene.namespace, "glm")


def test_nobody_is_told_to_delete_a_replica_set_without_what_that_costs() -> None:
    told = {kind: str(ChildTakenError(kind, "glm", "Deployment other")) for kind in ("ReplicaSet", "Service")}
    assert "the pods of a ReplicaSet end with it" in told["ReplicaSet"]
    assert "remove that ownerReference" in told["ReplicaSet"]
    assert "pods" not in told["Service"]
