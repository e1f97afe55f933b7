"""What the watches have told us, newest version of each object. Pure bookkeeping: no requests, no clock.

Three sources feed it, in any order: watch events, the answers to our own writes (so that a pass never sees less
than what we wrote before), and whole lists: at the start, after a watch that expired, and of the inferences now and
then (kopf never tells of what was deleted before it lists again). The resource version decides which of them is newer.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from hisparse.nodes import breaker
from hisparse.nodes.findings import State
from hisparse_operator.cluster.pool import Pool
from hisparse_operator.kinds import (
    CHILDREN,
    FIELD_MANAGER,
    INFERENCE,
    LABEL,
    NODE,
    NODE_POLICY,
    NODE_REPORT,
    POD,
    POOL_LEASE,
    STATUS_MANAGER,
    Kind,
)
from hisparse_operator.world import Object, Sight

_GRAVES: Final = 4096
_OF_THE_TEMPLATE: Final = frozenset(
    {"affinity", "securityContext", "tolerations", "topologySpreadConstraints", "volumes"}
)
_OF_THE_CONTAINER: Final = frozenset(
    {"args", "command", "env", "envFrom", "lifecycle", "securityContext", "volumeMounts"}
)
_LARGEST: Final = {"ControllerRevision": "data", "ReplicaSet": "spec"}
"""What is large, changes seldom and is much the same in many objects."""
_OURS: Final = (FIELD_MANAGER, STATUS_MANAGER)
_TOLD_STATES: Final = frozenset({State.CRITICAL.value, State.WARN.value, State.UNKNOWN.value})


@dataclass(frozen=True, order=True)
class Key:
    """One inference."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True)
class Change:
    """What the cache learned: the object before and now, None where there is none."""

    kind: Kind
    old: Object | None
    new: Object | None


def key_of(kind: Kind, item: Object) -> Key | None:
    """The inference that an object belongs to, by our label."""
    meta = item["metadata"]
    if kind == INFERENCE:
        return Key(meta["namespace"], meta["name"])
    owner = (meta.get("labels") or {}).get(LABEL)
    return Key(meta["namespace"], owner) if owner and kind.namespaced else None


def version(item: Object) -> int:
    """The resource version as a number: of two versions of objects of one kind the larger is the newer."""
    return int(item["metadata"]["resourceVersion"])


def node_facts(node: Object) -> Mapping[str, Any]:
    """What of a node may change a decision: no heartbeat times, no list of images."""
    status = node.get("status") or {}
    meta = node["metadata"]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            key: meta[key] for key in ("name", "uid", "resourceVersion", "labels", "deletionTimestamp") if key in meta
        },
        "spec": {
            key: value
            for key, value in (node.get("spec") or {}).items()
            if key in ("taints", "unschedulable", "providerID")
        },
        "status": {
            "capacity": status.get("capacity") or {},
            "allocatable": status.get("allocatable") or {},
            "conditions": [
                {key: one[key] for key in ("type", "status", "reason") if key in one}
                for one in status.get("conditions") or ()
            ],
        },
    }


def report_facts(report: Object) -> Object:
    """What of a node agent's report may change a decision: when it was made, and what is not well or not known."""
    meta, status = report["metadata"], report.get("status") or {}
    findings = [one for one in status.get("findings") or () if one.get("state") in _TOLD_STATES]
    return {
        "apiVersion": NODE_REPORT.api_version,
        "kind": NODE_REPORT.kind,
        "metadata": {key: meta[key] for key in ("name", "uid", "resourceVersion") if key in meta},
        "status": {key: status[key] for key in ("observedAt",) if key in status} | {"findings": findings},
    }


def pool_facts(lease: Object) -> Object:
    """What of a pool's Lease is told: whether its breaker is open. Who holds a slot changes all the time."""
    meta = lease["metadata"]
    said = {key: text for key, text in (meta.get("annotations") or {}).items() if key == breaker.ANNOTATION}
    kept = {key: meta[key] for key in ("namespace", "name", "uid", "resourceVersion") if key in meta}
    return {"apiVersion": POOL_LEASE.api_version, "kind": POOL_LEASE.kind, "metadata": kept | {"annotations": said}}


def pod_facts(pod: Object) -> Object:
    """A pod without what its ReplicaSet's template says as well: half of it, and there are more pods than anything."""
    spec = {key: value for key, value in (pod.get("spec") or {}).items() if key not in _OF_THE_TEMPLATE}
    for sort in ("initContainers", "containers"):
        if sort in spec:
            spec[sort] = [{key: one[key] for key in one if key not in _OF_THE_CONTAINER} for one in spec[sort]]
    return {**pod, "spec": spec}


def slim(kind: Kind, item: Object) -> Object:
    """The parts worth keeping in memory."""
    if kind == NODE:
        return node_facts(item)
    if kind == NODE_REPORT:
        return report_facts(item)
    if kind == POOL_LEASE:
        return pool_facts(item)
    if kind == POD:
        item = pod_facts(item)
    meta = item["metadata"]
    if "managedFields" not in meta:
        return item
    # we never write these two, so who owns which field of them is of no use
    owners = [] if kind.kind in ("Pod", "EndpointSlice") else [_owner(entry) for entry in meta["managedFields"]]
    rest = {key: value for key, value in meta.items() if key != "managedFields"}
    return {**item, "metadata": rest | ({"managedFields": owners} if owners else {})}


def _owner(entry: Object) -> Object:
    """An entry of managedFields: of somebody else's it is never asked which fields they are, only whose."""
    return {key: value for key, value in entry.items() if key != "fieldsV1" or entry.get("manager") in _OURS}


def _same(old: Object, new: Object) -> bool:
    """Whether two versions of an object, as we keep them, differ in nothing that matters."""

    def bare(item: Object) -> Object:
        meta = {key: value for key, value in item["metadata"].items() if key != "resourceVersion"}
        return {**item, "metadata": meta}

    return bare(old) == bare(new)


class Cache:
    """The objects that concern us, by kind and name, and by the inference that they belong to.

    Whoever watches a kind that need not be there says here whether we see it.
    """

    def __init__(self) -> None:
        self._items: dict[Kind, dict[tuple[str, str], Object]] = {
            kind: {} for kind in (INFERENCE, NODE, NODE_REPORT, NODE_POLICY, POOL_LEASE, *CHILDREN)
        }
        self._children: dict[Kind, dict[Key, set[tuple[str, str]]]] = {kind: defaultdict(set) for kind in CHILDREN}
        self._pool = Pool()
        self._whole: dict[Kind, tuple[Object, ...]] = {}
        self._graves: OrderedDict[str, float] = OrderedDict()
        self._listed: dict[tuple[Kind, str | None], int] = {}
        self._sights: dict[Kind, Sight] = {}

    def get(self, kind: Kind, namespace: str, name: str) -> Object | None:
        """One object, None if we know of none."""
        return self._items[kind].get((namespace, name))

    def inference(self, key: Key) -> Object | None:
        """One inference."""
        return self.get(INFERENCE, key.namespace, key.name)

    def children(self, kind: Kind, key: Key) -> tuple[Object, ...]:
        """The objects of a kind that carry this inference's label, by name."""
        places = self._children[kind].get(key, ())
        return tuple(self._items[kind][place] for place in sorted(places))

    def nodes(self) -> tuple[Object, ...]:
        """All nodes, by name. The very same tuple until one changes in what matters (decide/recall.py counts on it)."""
        return self._all(NODE)

    def node_reports(self) -> tuple[Object, ...]:
        """All reports of node agents, by name; none where we do not see them (any more)."""
        return self.optional(NODE_REPORT)

    def optional(self, kind: Kind) -> tuple[Object, ...]:
        """All objects of a kind that need not be there, by name; none where we do not see it (any more)."""
        return self._all(kind) if self.sight(kind) is Sight.SEEN else ()

    def sight(self, kind: Kind) -> Sight:
        """Whether we see a kind that need not be there."""
        return self._sights.get(kind, Sight.ABSENT)

    def see(self, kind: Kind, sight: Sight) -> None:
        """Somebody has found out whether we see it."""
        self._sights[kind] = sight

    def keys_on(self, node: str) -> tuple[Key, ...]:
        """The inferences with a pod on this node."""
        return tuple(
            key
            for key, places in self._children[POD].items()
            if any((self._items[POD][place].get("spec") or {}).get("nodeName") == node for place in places)
        )

    def inferences(self) -> tuple[Object, ...]:
        """All inferences."""
        return tuple(self._items[INFERENCE].values())

    def keys(self) -> tuple[Key, ...]:
        """The keys of all inferences."""
        return tuple(Key(*place) for place in self._items[INFERENCE])

    def put(self, kind: Kind, item: Object, *, listed: bool = False) -> Change | None:
        """Take in a version of an object; None if it is no news.

        An answer that comes after a whole list may have an object that was gone when the list was made (`listed` says
        that the object is of a list itself): no watch would ever tell that it is.
        """
        meta = item["metadata"]
        place = (meta.get("namespace", ""), meta["name"])
        old = self._items[kind].get(place)
        floor = 0 if listed else self._floor(kind, place[0])
        known = max(self._graves.get(meta["uid"], 0), floor if old is None else version(old))
        if version(item) <= known:
            return None
        new = self._shared(kind, slim(kind, item), old)
        self._items[kind][place] = new
        self._index(kind, place, old, new)
        if kind in (NODE, POOL_LEASE) and old is not None and _same(old, new):
            return None
        self._whole.pop(kind, None)
        return Change(kind, old, new)

    def remove(self, kind: Kind, item: Object, *, dead: bool = False) -> Change | None:
        """The object is gone as of this version. A namesake made since then stays.

        A watch with a selector also says so of an object that lost its label; it may come back with a newer version.
        `dead` says that we deleted this very object ourselves, so that no version of it is ever news again.
        """
        meta = item["metadata"]
        self._bury(meta["uid"], float("inf") if dead else version(item))
        place = (meta.get("namespace", ""), meta["name"])
        old = self._items[kind].get(place)
        if old is None or old["metadata"]["uid"] != meta["uid"]:
            return None
        del self._items[kind][place]
        self._whole.pop(kind, None)
        self._index(kind, place, old, None)
        return Change(kind, old, None)

    def retain(self, kind: Kind, namespace: str | None, uids: Collection[str], list_version: str) -> tuple[Change, ...]:
        """Remove what a whole list of a kind in a namespace (None: in all) does not have, unless it is newer."""
        gone = [
            item
            for (where, _), item in self._items[kind].items()
            if namespace in (None, where) and item["metadata"]["uid"] not in uids and version(item) <= int(list_version)
        ]
        changes = [self.remove(kind, item) for item in gone]
        self._listed[kind, namespace] = max(int(list_version), self._listed.get((kind, namespace), 0))
        return tuple(change for change in changes if change is not None)

    def _floor(self, kind: Kind, namespace: str) -> int:
        """The newest version at which a list had all objects there."""
        return max(self._listed.get((kind, None), 0), self._listed.get((kind, namespace), 0))

    def _all(self, kind: Kind) -> tuple[Object, ...]:
        found = self._whole.get(kind)
        if found is None:
            found = self._whole[kind] = tuple(self._items[kind][place] for place in sorted(self._items[kind]))
        return found

    def _shared(self, kind: Kind, new: Object, old: Object | None) -> Object:
        """The same with its large parts shared: of one object over time, and among objects."""
        meta, before = new["metadata"], {} if old is None else old["metadata"]
        if "managedFields" in meta:
            # the tree of what we own is as large as the object
            owners = self._one(meta["managedFields"], before.get("managedFields"))
            new = {**new, "metadata": {**meta, "managedFields": owners}}
        part = _LARGEST.get(kind.kind)
        if part is not None and part in new:
            new = {**new, part: self._one(new[part], None if old is None else old.get(part))}
        return new

    def _one(self, value: object, before: object) -> object:
        return before if value == before else self._pool.one(value)

    def _index(self, kind: Kind, place: tuple[str, str], old: Object | None, new: Object | None) -> None:
        if kind not in self._children:
            return
        for item, present in ((old, False), (new, True)):
            if item is None or (key := key_of(kind, item)) is None:
                continue
            places = self._children[kind][key]
            if present:
                places.add(place)
                continue
            places.discard(place)
            if not places:
                del self._children[kind][key]

    def _bury(self, uid: str, version: float) -> None:
        # a late event must not bring it back; uids never return, so old graves may go
        self._graves[uid] = version
        while len(self._graves) > _GRAVES:
            self._graves.popitem(last=False)
