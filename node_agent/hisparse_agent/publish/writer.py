"""The only writer to the API server: the node's report, its conditions and taint, and Events.

It keeps the latest of what it was told and nothing older. What is new about a fault goes out at once, everything else
at most once a minute for each object, a heartbeat before five minutes are over, and nothing where nothing changed.
While the API server is away it tries again, more and more rarely, and then writes what is true by then.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Protocol

import structlog

from hisparse.errors import Transient
from hisparse.nodes.report import HEARTBEAT_SECONDS, KIND, PLURAL, ActionStatus
from hisparse.spec import GROUP, VERSION
from hisparse_agent.kube import APPLY, GROUP_PATH, MERGE, NOT_FOUND, STRATEGIC, Conflict, Refused, back_off
from hisparse_agent.publish import conditions, events, report
from hisparse_agent.publish.conditions import Judged, Taint
from hisparse_agent.publish.events import Known, Notice
from hisparse_agent.publish.report import Report

log: Final = structlog.get_logger(__name__)
FIELD_MANAGER: Final = "hisparse-agent"
NOTE_ANNOTATION: Final = f"{GROUP}/agent-note"
MOST_EVENTS: Final = 100
EVENT_AGE_S: Final = 3600.0
"""An Event that could not be posted for so long is of no use to anybody."""
IDLE_S: Final = 5.0
"""How long it waits for news where nothing is left to write but heartbeats; news come with every poll."""
_TAINT_TRIES: Final = 5


class Api(Protocol):
    """What is used of kube.Api."""

    async def get(self, path: str) -> dict[str, Any] | None:
        """One object, None where there is none."""

    async def send(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        content: str = ...,
        query: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """One request."""


@dataclass(frozen=True)
class Pace:
    """Seconds. quiet is the least time between two writes of one object without news about a fault.

    heartbeat is when a report that says nothing new is written again: earlier than promised, since a write takes time
    and may fail. urgent is the least time between two writes with news. look is how often it is looked.
    """

    quiet: float = 60.0
    heartbeat: float = HEARTBEAT_SECONDS * 0.9
    urgent: float = 1.0
    look: float = 0.5


@dataclass(frozen=True)
class Publication:
    """All that should be true of the node in the API. note is what the next run of the agent has to know, as text."""

    report: Report
    conditions: tuple[Judged, ...] = ()
    taint: Taint | None = None
    note: str = ""

    @property
    def conditions_essence(self) -> tuple[tuple[str, str, str], ...]:
        """What the conditions say, messages left out."""
        return tuple(one.essence for one in self.conditions)


@dataclass(frozen=True)
class Left:
    """What a run of the agent leaves to the next one: verdicts, actions, the note, and what the Node carries of it."""

    known: Known
    actions: tuple[ActionStatus, ...]
    note: str
    conditions: tuple[Mapping[str, Any], ...]
    taint: Taint | None


@dataclass
class _Written:
    """What one object was last written as; at is None before the first time."""

    essence: object = None
    urgent: object = None
    at: float | None = None
    failures: int = 0
    not_before: float = 0.0

    def differs(self, essence: object) -> bool:
        """Whether this has not been written."""
        return self.at is None or self.essence != essence


@dataclass
class Counts:
    """For metrics: writes by object and outcome."""

    writes: dict[tuple[str, str], int] = field(default_factory=dict)
    last_success: float | None = None
    dropped_events: int = 0

    def add(self, target: str, outcome: str) -> None:
        """One more."""
        self.writes[target, outcome] = self.writes.get((target, outcome), 0) + 1


class Writer:
    """Publishes for one node."""

    def __init__(
        self,
        api: Api,
        node: str,
        version: str,
        *,
        instance: str = "",
        pace: Pace = Pace(),
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._api, self._node, self._version = api, node, version
        self._instance, self._pace, self._clock, self._now = instance or node, pace, clock, now
        self._latest: Publication | None = None
        self._status: Mapping[str, Any] = {}
        self._live: Mapping[str, Any] | None = None
        self._node_uid = ""
        self._report, self._conditions, self._taint = _Written(), _Written(), _Written()
        self._note = _Written(essence="")
        self._notices: deque[tuple[float, datetime, Notice]] = deque()
        self._noticed = 0
        self._news = asyncio.Event()
        self.counts = Counts()

    def publish(self, publication: Publication, notices: tuple[Notice, ...] = ()) -> None:
        """Take what is true now. Returns at once; what was there before and is not written yet is forgotten."""
        waits = bool(publication.conditions) and not any(one.is_blind for one in publication.conditions)
        self._latest = replace(publication, report=replace(publication.report, waits=waits))
        for notice in notices:
            if len(self._notices) >= MOST_EVENTS:
                self._notices.popleft()
                self.counts.dropped_events += 1
            # an Event is named after its time, and two of one name are one for the API server
            self._notices.append((self._clock(), self._now() + timedelta(microseconds=self._noticed), notice))
            self._noticed += 1
        self._news.set()

    async def published(self) -> Left:
        """What the last run of the agent left. Raises Transient and Refused."""
        live = await self._api.get(self._path()) or {}
        node = await self._read_node()
        note = ((live.get("metadata") or {}).get("annotations") or {}).get(NOTE_ANNOTATION, "")
        self._note.essence = self._note.urgent = note
        taints = (node.get("spec") or {}).get("taints") or ()
        return Left(
            known=events.known_from(live.get("status") or {}),
            actions=events.actions_from(live.get("status") or {}),
            note=note,
            conditions=tuple((node.get("status") or {}).get("conditions") or ()),
            taint=conditions.own_taint(taints),
        )

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await self.step()
            self._news.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._pace.look if self._is_behind() else IDLE_S):
                    await self._news.wait()
            # a poll brings news twice
            await asyncio.sleep(min(self._pace.look, 0.05))

    async def step(self) -> None:
        """Write what is due now."""
        latest = self._latest
        if latest is None:
            return
        if self._due(self._report, latest.report.essence, latest.report.urgent):
            await self._attempt("HiSparseNode", self._report, self._write_report, latest)
        said = latest.conditions_essence
        if latest.conditions and self._due(self._conditions, said, said):
            await self._attempt("conditions", self._conditions, self._write_conditions, latest)
        if self._due(self._taint, latest.taint, latest.taint):
            await self._attempt("taint", self._taint, self._write_taint, latest)
        if latest.note != self._note.essence and self._live is not None and self._clock() >= self._note.not_before:
            await self._attempt("note", self._note, self._write_note, latest)
        if self._notices and self._clock() >= self._report.not_before:
            await self._post()

    def _is_behind(self) -> bool:
        """Whether something is to be written, now or when its pace allows."""
        latest = self._latest
        if latest is None:
            return False
        said = latest.conditions_essence
        return (
            bool(self._notices)
            or self._report.differs(latest.report.essence)
            or (bool(latest.conditions) and self._conditions.differs(said))
            or self._taint.differs(latest.taint)
            or latest.note != self._note.essence
        )

    async def flush(self, limit_s: float) -> None:
        """Write what is not written yet, for a process that ends. At most so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                for written in (self._report, self._conditions, self._taint):
                    written.not_before = 0.0
                await self.step()

    def _due(self, written: _Written, essence: object, urgent: object) -> bool:
        now = self._clock()
        if now < written.not_before:
            return False
        if written.at is None:
            return True
        since = now - written.at
        if urgent != written.urgent:
            return since >= self._pace.urgent
        if essence != written.essence:
            return since >= self._pace.quiet
        # the taint has no age: one that a person took off must not come back with a heartbeat
        if since < self._pace.heartbeat or written is self._taint:
            return False
        return written is self._report or self._is_between_reports(now)

    def _is_between_reports(self, now: float) -> bool:
        """Whether the report is neither just written nor soon due: heartbeats of a node come one at a time.

        Only the report's has a promised age, so that it is the other one that waits.
        """
        apart = min(self._pace.quiet, self._pace.heartbeat / 3)
        return self._report.at is None or apart <= now - self._report.at <= self._pace.heartbeat - apart

    async def _attempt(
        self, target: str, written: _Written, write: Callable[[Publication], Any], latest: Publication
    ) -> None:
        try:
            await write(latest)
        except (Transient, Refused) as error:
            wait = max(getattr(error, "retry_seconds", 0.0), back_off(written.failures))
            # no right to write will not come within seconds; a vanished object may
            written.failures += 1
            written.not_before = self._clock() + wait
            self.counts.add(target, "refused" if isinstance(error, Refused) else "failed")
            log.warning("not written", target=target, error=str(error), again_s=round(wait, 1))
        else:
            written.failures, written.not_before = 0, 0.0
            written.at = self._clock()
            self.counts.add(target, "written")
            self.counts.last_success = written.at

    async def _write_report(self, latest: Publication) -> None:
        if self._live is None:
            self._live = await self._created()
            self._status = self._live.get("status") or {}
        status = report.document(latest.report, before=self._status, version=self._version, now=self._now())
        body = {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": KIND,
            "metadata": {"name": self._node},
            "status": status,
        }
        try:
            answer = await self._api.send(
                "PATCH",
                f"{self._path()}/status",
                body,
                content=APPLY,
                query={"fieldManager": FIELD_MANAGER, "force": "true"},
            )
        except Refused as error:
            if error.status == NOT_FOUND:
                # somebody deleted it, and the note with it: made again with the next try
                self._live, self._note.essence = None, ""
            raise
        self._status = answer.get("status") or {}
        self._report.essence, self._report.urgent = latest.report.essence, latest.report.urgent

    async def _created(self) -> Mapping[str, Any]:
        """The object as it is, made where it is not there. It goes with its Node."""
        live = await self._api.get(self._path())
        node = await self._read_node()
        if live is not None:
            owners = live["metadata"].get("ownerReferences") or ()
            if any(one.get("uid") == self._node_uid for one in owners):
                return live
            # a Node of this name was deleted and made again: the report is the new one's from now on
            patch = {"metadata": {"ownerReferences": [_owner(self._node, self._node_uid)]}}
            return await self._api.send("PATCH", self._path(), patch, content=MERGE)
        document = {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": KIND,
            "metadata": {
                "name": self._node,
                "labels": {"app.kubernetes.io/name": "hisparse", "app.kubernetes.io/managed-by": FIELD_MANAGER},
                "ownerReferences": [_owner(self._node, node["metadata"]["uid"])],
            },
        }
        return await self._api.send("POST", f"{GROUP_PATH}/{PLURAL}", document)

    async def _read_node(self) -> dict[str, Any]:
        node = await self._api.get(f"/api/v1/nodes/{self._node}")
        if node is None:
            raise Transient(f"there is no Node {self._node}", retry_seconds=0)
        if node["metadata"]["uid"] != self._node_uid:
            self._taint.at = None  # another Node of this name has not been looked at
        self._node_uid = node["metadata"]["uid"]
        return node

    async def _write_conditions(self, latest: Publication) -> None:
        node = await self._read_node()
        before = (node.get("status") or {}).get("conditions") or ()
        documents = conditions.documents(latest.conditions, before, self._now())
        await self._api.send(
            "PATCH",
            f"/api/v1/nodes/{self._node}/status",
            {"status": {"conditions": documents}},
            content=STRATEGIC,
            query={"fieldManager": FIELD_MANAGER},
        )
        self._conditions.essence = self._conditions.urgent = latest.conditions_essence

    async def _write_taint(self, latest: Publication) -> None:
        for _ in range(_TAINT_TRIES):
            node = await self._read_node()
            taints = (node.get("spec") or {}).get("taints") or ()
            changed = conditions.tainted(taints, latest.taint, self._now())
            if changed is None:
                break
            # the version makes it fail where anybody wrote meanwhile: the list is one field, and theirs would be lost
            version = node["metadata"]["resourceVersion"]
            body = {"metadata": {"resourceVersion": version}, "spec": {"taints": changed or None}}
            try:
                await self._api.send("PATCH", f"/api/v1/nodes/{self._node}", body, content=MERGE)
            except Conflict:
                continue
            log.info("taint", taint=latest.taint.document if latest.taint else None)
            break
        else:
            raise Transient(f"Node {self._node} changes faster than its taints can be written", retry_seconds=0)
        self._taint.essence = self._taint.urgent = latest.taint

    async def _write_note(self, latest: Publication) -> None:
        patch = {"metadata": {"annotations": {NOTE_ANNOTATION: latest.note or None}}}
        await self._api.send("PATCH", self._path(), patch, content=MERGE)
        self._note.essence = latest.note

    async def _post(self) -> None:
        """Post what waits, after the report that it speaks of. A conflict means that it is there already."""
        while self._notices:
            queued, at, notice = self._notices[0]
            if self._clock() - queued < EVENT_AGE_S:
                try:
                    if not self._node_uid:
                        await self._read_node()
                    document = events.document(
                        notice, node=self._node, uid=self._node_uid, instance=self._instance, at=at
                    )
                    await self._api.send("POST", "/api/v1/namespaces/default/events", document)
                except Conflict:
                    pass
                except Transient as error:
                    self._report.not_before = self._clock() + max(error.retry_seconds, back_off(0))
                    self.counts.add("event", "failed")
                    return
                except Refused as error:
                    log.warning("event not posted", error=str(error))
                    self.counts.add("event", "refused")
                else:
                    self.counts.add("event", "written")
            else:
                self.counts.dropped_events += 1
            self._notices.popleft()

    def _path(self) -> str:
        return f"{GROUP_PATH}/{PLURAL}/{self._node}"


def _owner(node: str, uid: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid}
