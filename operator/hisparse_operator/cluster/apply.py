"""The only writer: sends of an Outcome what differs from the live objects, then the status, then the Events."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import structlog

from hisparse.errors import HiSparseError, Transient
from hisparse_operator.cluster.cache import Cache, Change, Key
from hisparse_operator.cluster.contest import Contest, contested, put_back
from hisparse_operator.cluster.kube import Api, ApiError, Conflict, NotFoundError
from hisparse_operator.cluster.memory import digest, remember
from hisparse_operator.cluster.ownership import in_place, owned_fields
from hisparse_operator.cluster.recorder import REPEAT_RARELY_S, Recorder
from hisparse_operator.decide import shown
from hisparse_operator.decide.reasons import EventReason
from hisparse_operator.kinds import FIELD_MANAGER, INFERENCE, LABEL, POD, STATUS_MANAGER, Kind, kind_of
from hisparse_operator.world import Event, Object, Outcome, Ref

log: Final = structlog.get_logger(__name__)
_REPLICA_SET: Final = "ReplicaSet"
_OF_NO_OBJECT: Final = "1"
"""A resource version: etcd's first, older than any object."""


class ChildTakenError(HiSparseError):
    """An object of this name belongs to somebody else; we never take it over. The user renames or deletes one."""

    def __init__(self, kind: str, name: str, owner: str) -> None:
        pods = (
            "; the pods of a ReplicaSet end with it, so if it was made for this inference make it ours again instead: "
            "remove that ownerReference, or give it back its labels"
        )
        super().__init__(
            f"{kind} {name} exists and belongs to {owner}; delete or rename it, or rename this HiSparseInference"
            + (pods if kind == _REPLICA_SET else "")
        )


@dataclass(frozen=True)
class Applied:
    """What a pass wrote. again_s: seconds until what somebody keeps undoing may be written again."""

    children: int = 0
    status: bool = False
    events: int = 0
    again_s: float | None = None

    @property
    def writes(self) -> int:
        """How many writes, Events left out."""
        return self.children + self.status


def owner_of(live: Object, inference: Object) -> str | None:
    """Who else an object belongs to, None if it is ours (or an orphan of ours) to write."""
    meta = live["metadata"]
    owners = meta.get("ownerReferences") or ()
    ours = [one for one in owners if one.get("uid") == inference["metadata"]["uid"]]
    controller = next((one for one in owners if one.get("controller") and one not in ours), None)
    if controller is not None:
        return f"{controller['kind']} {controller['name']}"
    if ours:
        return None
    labels = meta.get("labels") or {}
    # left behind by `kubectl delete --cascade=orphan` or a restored backup: ours to adopt
    if labels.get(LABEL) == inference["metadata"]["name"]:
        return None
    return "somebody else (it has no owner and not our labels)"


def _unheard(change: Change) -> None:
    del change


class Applier:
    """Writes outcomes. Remembers what it wrote in the cache, so that the next pass sees it.

    Every write names the version of the object that it was decided upon. Where there is another one by now (an
    edit that the watches have not brought yet, another leader's write while this process stood still) it is a Conflict:
    the object is read, and `on_change` hears of it as of a watch event.
    """

    def __init__(
        self,
        api: Api,
        cache: Cache,
        recorder: Recorder,
        contest: Contest | None = None,
        on_change: Callable[[Change], None] = _unheard,
    ) -> None:
        self._api = api
        self._on_change = on_change
        self._cache = cache
        self._recorder = recorder
        self._settled: OrderedDict[str, str] = OrderedDict()
        self._sent: OrderedDict[str, str] = OrderedDict()
        self._contest = contest or Contest()

    async def apply(self, inference: Object, outcome: Outcome) -> Applied:
        """Make it so, in order. Raises ChildTakenError before anything is written, Transient and ApiError as they come.

        A name with a revision's hash that somebody else has is found only when it is to be written; what makes or ends
        pods comes last.
        """
        pending: list[tuple[Kind, Object, Object | None]] = []
        for document in outcome.apply:
            kind, live = await self._look(inference, document)
            if live is None or not self._settled_already(kind, live, document):
                pending.append((kind, document, live))
            elif (place := _place(kind, document, "")) not in self._sent:
                # as good as sent by us: another process of ours has, and whoever changes it now undoes it
                remember(self._sent, place, _sent_as(inference, document))
        children, waits = await self._write(inference, pending, outcome)
        status, wait = False, 0.0
        if outcome.status is not None:
            wanted = shown.status(outcome.status, shown.redaction_of(inference))
            status, wait = await self._apply_status(inference, wanted)
        events = 0
        if not wait:  # else nothing remembers that they were posted
            for event in outcome.events:
                events += await self._recorder.post(inference, event)
        return Applied(children, status, events, min((one for one in (*waits, wait) if one), default=None))

    async def _write(
        self, inference: Object, pending: Iterable[tuple[Kind, Object, Object | None]], outcome: Outcome
    ) -> tuple[int, list[float]]:
        """Children written and deleted, and how long those have to wait that somebody keeps undoing."""
        meta = inference["metadata"]
        key = Key(meta["namespace"], meta["name"])
        children, waits = 0, []
        for kind, document, live in pending:
            if wait := await self._apply_child(inference, kind, document, live):
                waits.append(wait)
                if kind.kind == _REPLICA_SET:
                    return children, waits  # the others count on it
            else:
                children += 1
        for reference in outcome.delete:
            children += await self._delete(key, reference)
        return children, waits

    async def _look(self, inference: Object, document: Object) -> tuple[Kind, Object | None]:
        """The object that a document is about, as the watches know it.

        One that they do not know may exist without our labels: a name that a person may well have used is asked for.
        """
        kind = kind_of(document["apiVersion"], document["kind"])
        meta = document["metadata"]
        if meta.get("namespace") != inference["metadata"]["namespace"]:
            raise ValueError(f"{kind.kind} {meta['name']} is not in the namespace of its inference")
        live = self._cache.get(kind, meta["namespace"], meta["name"])
        if live is None and kind is POD:
            raise Conflict("NotFound", f"Pod {meta['name']} is gone; there is nothing to mark")
        if live is not None:
            _check_ours(inference, kind, live)
        elif meta["name"] == inference["metadata"]["name"]:
            await self._reveal(inference, kind, meta["name"])
        return kind, live

    async def _reveal(self, inference: Object, kind: Kind, child: str) -> None:
        """Raise ChildTakenError or Transient if there is such an object though the watches do not know it.

        If it is ours they have not told of it yet, or never will, since it has lost our label. Nothing was decided on
        it, as on how many pods a ReplicaSet has: the next pass shall.
        """
        live = await self._api.get(kind, inference["metadata"]["namespace"], child)
        if live is None:
            return
        _check_ours(inference, kind, live)
        meta, name = live["metadata"], inference["metadata"]["name"]
        if (meta.get("labels") or {}).get(LABEL) != name:
            patch = {"metadata": {"uid": meta["uid"], "labels": {LABEL: name}}}
            live = await self._api.merge(kind, meta["namespace"], meta["name"], patch)
            log.info("label given back", inference=f"{meta['namespace']}/{name}", kind=kind.kind, name=meta["name"])
        self._cache.put(kind, live)
        raise Transient(f"{kind.kind} {meta['name']} is ours, and the watches have not shown it yet", retry_seconds=1)

    async def _apply_child(self, inference: Object, kind: Kind, document: Object, live: Object | None) -> float:
        """Write a child; not 0 are the seconds that this has to wait."""
        meta, wanted = document["metadata"], document
        place, sent = _place(kind, document, ""), _sent_as(inference, document)
        # the same once more, or one that is gone: somebody has changed or deleted it since
        before = self._sent.get(place, "")
        undone = kind is not POD and (before == sent or (live is None and before.startswith(_sent_by(inference))))
        if undone and (wait := self._contest.wait(place, _generation(inference))):
            return wait
        if live is not None:
            # with the uid the API server refuses to make a new object or to change a namesake
            known = {part: live["metadata"][part] for part in ("uid", "resourceVersion")}
            document = {**document, "metadata": known | meta}
        else:
            # One that the watches do not know may exist without our labels, and then it is not ours. No object has this
            # version, so the API server makes a new one or refuses.
            document = {**document, "metadata": {"resourceVersion": _OF_NO_OBJECT, **meta}}
        try:
            answer = await self._api.apply(kind, document, FIELD_MANAGER, force=live is not None)
        except Conflict:
            if kind is POD:
                raise  # pods change all the time, and their ReplicaSet's news bring another pass
            if live is not None:
                await self._look_again(kind, meta["namespace"], meta["name"])
                raise
            await self._reveal(inference, kind, meta["name"])
            raise
        except ApiError as error:
            error.document = wanted
            raise
        self._cache.put(kind, answer)
        self._settle(kind, answer, document)
        remember(self._sent, place, sent)
        if undone and not await self._undone(inference, place, live or answer):
            event = Event("Warning", EventReason.CHILD_PUT_BACK.value, put_back(kind.kind, meta["name"], live))
            await self._recorder.post(inference, event)
        log.info(
            "child applied",
            inference=f"{meta['namespace']}/{inference['metadata']['name']}",
            kind=kind.kind,
            name=meta["name"],
            action="create" if live is None else "update",
        )
        return 0.0

    async def _undone(self, inference: Object, place: str, live: Object, subresource: str = "") -> bool:
        """Count that somebody undid our write; whether it is the last of a row, which is told here."""
        if not self._contest.undone(place, _generation(inference)):
            return False
        event = Event("Warning", EventReason.WRITE_CONTESTED.value, contested(live, subresource))
        log.warning("contested", place=place, message=event.message)
        await self._recorder.post(inference, event, repeat_s=REPEAT_RARELY_S)
        return True

    async def _delete(self, key: Key, reference: Ref) -> int:
        kind, name = kind_of(reference.api_version, reference.kind), reference.name
        live = self._cache.get(kind, key.namespace, name)
        if live is not None and live["metadata"].get("deletionTimestamp"):
            return 0
        try:
            answer = await self._api.delete(kind, key.namespace, name, reference.uid, reference.version)
        except NotFoundError:
            answer = {}
        except Conflict:
            await self._look_again(kind, key.namespace, name)
            return 0  # made or changed since we looked; that brings us back
        if answer.get("kind") == kind.kind:  # it lingers (a pod in its grace period); else it is gone
            self._cache.put(kind, answer)
        elif live is not None:
            self._cache.remove(kind, live, dead=True)
        self._sent.pop(f"{kind.plural}/{key.namespace}/{name}/", None)  # made again, it was not somebody else's doing
        log.info("child deleted", inference=str(key), kind=kind.kind, name=name)
        return 1

    async def _apply_status(self, inference: Object, status: Object) -> tuple[bool, float]:
        """Whether it had to be written; and the seconds that this has to wait."""
        meta = inference["metadata"]
        # the watches may have brought a newer one since the pass began
        live = self._cache.get(INFERENCE, meta["namespace"], meta["name"]) or inference
        document = {
            "apiVersion": INFERENCE.api_version,
            "kind": INFERENCE.kind,
            # a uid is not looked at here; the version says that the status speaks of the object as it is now
            "metadata": {key: meta[key] for key in ("namespace", "name", "resourceVersion")},
            "status": status,
        }
        if self._settled_already(INFERENCE, live, document, STATUS_MANAGER, "status"):
            return False, 0.0
        # by uid: a namesake's status is not one that somebody changed
        place, generation = f"{_place(INFERENCE, document, 'status')}/{meta['uid']}", _generation(live)
        # not as we left it: somebody else has written it since
        found = digest(live.get("status"))
        undone = self._sent.get(place, found) != found
        if undone and (wait := self._contest.wait(place, generation)):
            return False, wait
        try:
            answer = await self._api.apply(INFERENCE, document, STATUS_MANAGER, force=True, subresource="status")
        except Conflict:
            await self._look_again(INFERENCE, meta["namespace"], meta["name"])
            raise
        self._cache.put(INFERENCE, answer)
        self._settle(INFERENCE, answer, document, STATUS_MANAGER, "status")
        remember(self._sent, place, digest(answer.get("status")))
        if undone:
            await self._undone(inference, place, live, "status")
        return True, 0.0

    async def _look_again(self, kind: Kind, namespace: str, name: str) -> None:
        """A conflict says that the cache is behind, and a watch that is dead without a word never catches up."""
        live, old = await self._api.get(kind, namespace, name), self._cache.get(kind, namespace, name)
        change = None
        if live is not None and (kind == INFERENCE or LABEL in (live["metadata"].get("labels") or {})):
            change = self._cache.put(kind, live)
        elif old is not None:  # gone, or without the label by which we would see what becomes of it
            change = self._cache.remove(kind, old, dead=live is None)
        if change is not None:
            self._on_change(change)

    def _settled_already(
        self, kind: Kind, live: Object, document: Object, manager: str = FIELD_MANAGER, subresource: str = ""
    ) -> bool:
        if in_place(live, document, manager, subresource):
            return True
        place = _place(kind, document, subresource)
        return self._settled.get(place) == _fingerprint(live, document, manager, subresource)

    def _settle(
        self, kind: Kind, answer: Object, document: Object, manager: str = FIELD_MANAGER, subresource: str = ""
    ) -> None:
        """Where the API server wrote our document in a form that we cannot see as equal, do not send it again.

        Whoever changes one of its fields takes it from us, so as long as we own the same fields nothing changed.
        """
        if not in_place(answer, document, manager, subresource):
            place = _place(kind, document, subresource)
            remember(self._settled, place, _fingerprint(answer, document, manager, subresource))


def _check_ours(inference: Object, kind: Kind, live: Object) -> None:
    """Raise for an object that is not ours to write, and for one that is on its way out."""
    name = live["metadata"]["name"]
    # a pod belongs to its ReplicaSet; we only mark it, and the document's uid says which one we mean
    if kind is not POD and (owner := owner_of(live, inference)):
        raise ChildTakenError(kind.kind, name, owner)
    if live["metadata"].get("deletionTimestamp"):
        raise Transient(f"{kind.kind} {name} is still being deleted", retry_seconds=1)


def _generation(inference: Object) -> int:
    return int(inference["metadata"].get("generation", 0))


def _place(kind: Kind, document: Object, subresource: str) -> str:
    meta = document["metadata"]
    return f"{kind.plural}/{meta['namespace']}/{meta['name']}/{subresource}"


def _sent_by(inference: Object) -> str:
    """A namesake of the inference has another uid, and its children are others."""
    return f"{inference['metadata']['uid']}/"


def _sent_as(inference: Object, document: Object) -> str:
    return _sent_by(inference) + digest(document)


def _fingerprint(live: Object, document: Object, manager: str, subresource: str) -> str:
    meta = {key: value for key, value in document["metadata"].items() if key != "resourceVersion"}
    wanted = {**document, "metadata": {**meta, "uid": live["metadata"]["uid"]}}
    return digest([wanted, owned_fields(live, manager, subresource)])
