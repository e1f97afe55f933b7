"""The operator put together: lease, watches, cache, queue, workers, health; and how all of it ends.

    lease --- leads ---> kopf: inferences --> cache --> queue --> workers: observe -> reconcile -> apply
      reflectors: children, nodes, reports --^            ^-- resync

    policies of node agents, Leases of their pools, nodes --> keeper of their status

It stands by until it holds the lease and ends when it loses it: the pod's restart is the way back.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import signal
import socket
import threading
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import aiohttp
import kopf
import structlog

from hisparse.errors import Transient
from hisparse_operator import health
from hisparse_operator.cluster import watch
from hisparse_operator.cluster.apply import Applier
from hisparse_operator.cluster.cache import Cache, Change, Key, key_of
from hisparse_operator.cluster.hub import HuggingFace, NoHub
from hisparse_operator.cluster.kube import WRITE_S, Api, ApiError, NotFoundError, load_configuration
from hisparse_operator.cluster.leader import Leader, Times
from hisparse_operator.cluster.observe import Decisions, Observer
from hisparse_operator.cluster.optional import OptionalReflector
from hisparse_operator.cluster.policies import PolicyKeeper
from hisparse_operator.cluster.recorder import Recorder
from hisparse_operator.cluster.reflector import Reflector
from hisparse_operator.cluster.relist import relist
from hisparse_operator.decide import degraded
from hisparse_operator.kinds import (
    CHILDREN,
    INFERENCE,
    NODE,
    NODE_POLICY,
    NODE_REPORT,
    OWN_LEASE,
    POOL_LEASE,
    Kind,
)
from hisparse_operator.metrics import Metrics, own_version
from hisparse_operator.worker import Worker
from hisparse_operator.workqueue import WorkQueue

log: Final = structlog.get_logger(__name__)
_CHILD_DELAY_S: Final = 0.05
_NODE_DELAY_S: Final = 0.5
_CRD_WAIT_S: Final = 5.0
_LAST_PAGE_S: Final = 0.5
"""The last page of a list has reached us by then: kopf hands each object to a task of its own."""
_RARELY: Final = 100_000
"""New objects of Python between two looks of the garbage collector."""
_SECOND_LIST_S: Final = 15.0
_LEAST_LIST_S: Final = 60.0
_DRAIN_S: Final = 3.0
_KOPF_ENDS_S: Final = 3.0
_ENDS_S: Final = 15.0
"""Longer than all waits of an orderly end together."""


@dataclass(frozen=True)
class Options:
    """What the command line says. No namespaces: the whole cluster, nodes included."""

    lease_namespace: str
    namespaces: tuple[str, ...] = ()
    agents_namespace: str = "hisparse-nodes"
    kubeconfig: Path | None = None
    context: str | None = None
    host: str | None = None
    port: int = 8080
    resync_s: float = 600.0
    workers: int = 4
    hub: str | None = None
    times: Times = field(default_factory=Times)
    limits: health.Limits = field(default_factory=health.Limits)

    @property
    def watched(self) -> tuple[Kind, ...]:
        """What kopf watches: inferences, and where we may our own lease, whose renewals show that events come."""
        seen = not self.namespaces or self.lease_namespace in self.namespaces
        return (INFERENCE, OWN_LEASE) if seen else (INFERENCE,)

    @property
    def reflected(self) -> tuple[Kind, ...]:
        """What else there must be."""
        return CHILDREN if self.namespaces else (NODE, *CHILDREN)


class Operator:
    """One process of the operator."""

    def __init__(
        self,
        options: Options,
        decisions: Decisions,
        api: Api,
        lease_api: Api,
        metrics: Metrics,
        hub: Any,  # noqa: ANN401
    ) -> None:
        self._options = options
        self._api = api
        self._metrics = metrics
        self._cache = Cache()
        self._queue: WorkQueue[Key] = WorkQueue()
        self._identity = f"{socket.gethostname()}_{uuid.uuid4().hex[:12]}"
        self._leader = Leader(lease_api, options.lease_namespace, self._identity, options.times)
        api.may_write = lambda: self._leader.leads
        observer = Observer(api, self._cache, hub, decisions, nodes=not options.namespaces)
        recorder = Recorder(api, _utc_now, self._identity)
        applier = Applier(api, self._cache, recorder, on_change=self._poke)
        self._worker = Worker(
            self._queue, observer, decisions, applier, recorder, metrics, resync_s=options.resync_s, now=_utc_now
        )
        self._keeper = (
            None if options.namespaces else PolicyKeeper(api, self._cache, _utc_now, options.agents_namespace)
        )
        self._needed = self._of_what_must_be()
        self._reflectors = self._needed + (() if self._keeper is None else self._of_agents(self._keeper))
        self._lag = health.LoopLag()
        self._leads = False
        self._to_watch = {kind.path(scope) for kind in options.watched for scope in self._scopes(kind)}
        self._watching = asyncio.Event()
        self._synced = asyncio.Event()
        self._last_event: float | None = None
        self._publish()

    async def run(self) -> int:
        """Run until SIGTERM (0) or until something ends that should not (1)."""
        stop = asyncio.Event()
        pages = health.application(self._metrics, self._vitals, self._options.limits)
        async with _task(self._lag.watch()), health.serving(pages, self._options.host, self._options.port) as port:
            log.info("started", version=own_version(), identity=self._identity, port=port)
            with _signals(stop):
                try:
                    if not await _first(self._leader.acquire(), stop.wait()):
                        return 0
                except ApiError as error:
                    _tell("lease", error)
                    return 1
                self._leads = True
                return await self._lead(stop)

    async def _lead(self, stop: asyncio.Event) -> int:
        workers = [asyncio.create_task(self._work(), name="worker") for _ in range(self._options.workers)]
        others = [
            asyncio.create_task(self._leader.hold(), name="lease"),
            asyncio.create_task(self._sync(), name="whole lists"),
            asyncio.create_task(stop.wait(), name="signal"),
        ]
        others += [asyncio.create_task(one.run(), name=f"watch of {one.kind.plural}") for one in self._reflectors]
        if self._keeper is not None:
            workers.append(asyncio.create_task(self._keep(self._keeper), name="policies"))
        others.append(asyncio.create_task(self._watch(stop), name="watches"))
        done, _ = await asyncio.wait([*workers, *others], return_when=asyncio.FIRST_COMPLETED)
        _end_for_certain()
        told: set[int] = set()
        for task in done:
            if task.cancelled():  # by somebody else; what comes after must not be left out for it
                log.error("cancelled", task=task.get_name())
            elif error := task.exception():
                # without rights several lists are refused at once; one of them says what to do
                if (status := getattr(error, "status", 0)) not in told:
                    _tell(task.get_name(), error)
                told |= {status} if cause(error) else set()
            else:
                log.info("ended", task=task.get_name())
        await self._end(workers, others)
        return 0 if stop.is_set() else 1

    async def _end(self, workers: list[asyncio.Task[None]], others: list[asyncio.Task[Any]]) -> None:
        """Finish the writes in flight, only then let another replica write, then the rest."""
        self._queue.close()
        if self._keeper is not None:
            self._keeper.close()
        _, late = await asyncio.wait(workers, timeout=_DRAIN_S if self._synced.is_set() else 0)
        self._api.may_write = lambda: False
        if late:  # a long pass: it stops at its next write, and the one in flight ends within this time
            _, late = await asyncio.wait(late, timeout=WRITE_S)
        await _cancelled(*late, others[0])
        await self._leader.release()
        self._leads = False
        await _cancelled(*others[1:])

    async def _work(self) -> None:
        await self._synced.wait()
        await self._worker.run()

    async def _keep(self, keeper: PolicyKeeper) -> None:
        await self._synced.wait()
        await keeper.run()

    def _of_what_must_be(self) -> tuple[Reflector, ...]:
        def on_change(change: Change) -> None:
            self._metrics.watch_event(change.kind.kind)
            self._poke(change)

        return tuple(
            Reflector(self._api, self._cache, kind, on_change, namespace=scope)
            for kind in self._options.reflected
            for scope in self._scopes(kind)
        )

    def _of_agents(self, keeper: PolicyKeeper) -> tuple[OptionalReflector, ...]:
        """Those of the kinds that the node agents bring."""

        def on_change(change: Change) -> None:
            self._metrics.watch_event(change.kind.kind)
            keeper.changed(change)

        return (
            OptionalReflector(self._api, self._cache, NODE_REPORT, self._on_report, self._poke_all),
            OptionalReflector(self._api, self._cache, NODE_POLICY, on_change, keeper.poke),
            OptionalReflector(
                self._api,
                self._cache,
                POOL_LEASE,
                on_change,
                keeper.poke,
                namespace=self._options.agents_namespace,
            ),
        )

    async def _watch(self, stop: asyncio.Event) -> None:
        """Kopf, once there is something to watch; ends only by an error."""
        await self._await_crd()
        kinds = self._options.watched
        older = asyncio.all_tasks()

        async def credentials() -> Any:  # noqa: ANN401
            return await load_configuration(self._options.kubeconfig, self._options.context)

        tasks = await kopf.spawn_tasks(
            registry=watch.registry(kinds, credentials, self._on_event, self._on_watch),
            settings=watch.settings(kinds),
            clusterwide=not self._options.namespaces,
            namespaces=self._options.namespaces,
            # else kopf asks who the user is, and the uid of a container has no name
            identity=self._identity,  # type: ignore[arg-type]
        )
        self._last_event = time.monotonic()  # watches that never tell of anything grow old too
        _install(stop)  # kopf has put its own signal handlers in place
        # not kopf.run_tasks: where one task fails it waits for the others to end, which may be for ever, before it
        # says so; meanwhile nothing is watched
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            # its watches too, and at once: one that sees the session closed waits for ever for another login
            going = asyncio.all_tasks() - older
            for task in going:
                task.cancel()
            await asyncio.wait(going, timeout=_KOPF_ENDS_S)

    async def _await_crd(self) -> None:
        """Until we may list the inferences. Raises ApiError for a missing right, which kopf would take long to tell of.

        Kopf never comes back to a kind that does not exist when it starts.
        """
        while True:
            try:
                for scope in self._scopes(INFERENCE):
                    async with contextlib.aclosing(self._api.pages(INFERENCE, scope, size=1)) as pages:
                        await anext(pages)
            except NotFoundError:
                log.warning("the CRD is not installed; waiting for it", kind=INFERENCE.plural)
            except Transient as error:
                log.warning("waiting for the API server", error=str(error))
            else:
                return
            await asyncio.sleep(_CRD_WAIT_S)

    async def _sync(self) -> None:
        """The first pass comes when all there is was listed; then whole lists of the inferences, now and then."""
        with _rare_collections():
            for one in self._reflectors:
                await one.known.wait()
            await self._watching.wait()
            await asyncio.sleep(_LAST_PAGE_S)
        self._synced.set()
        log.info("synced", objects=len(self._cache.keys()))
        _settle_memory()
        await asyncio.sleep(_SECOND_LIST_S)
        while True:
            every_s = max(self._options.resync_s, _LEAST_LIST_S) if await self._relist() else _LEAST_LIST_S
            _settle_memory()
            await asyncio.sleep(every_s * random.uniform(0.9, 1.1))  # noqa: S311

    async def _relist(self) -> bool:
        """Whole lists of the inferences, for what kopf's watches have not told of; whether they came to their end."""
        try:
            for scope in self._scopes(INFERENCE):
                await relist(self._api, self._cache, INFERENCE, scope, self._missed)
        except (Transient, ApiError) as error:
            log.warning("not listed", error=cause(error) or str(error))
            return False
        return True

    def _missed(self, change: Change) -> None:
        self._metrics.watch_missed(change.kind.kind)
        self._poke(change)

    def _scopes(self, kind: Kind) -> tuple[str | None, ...]:
        return self._options.namespaces if kind.namespaced and self._options.namespaces else (None,)

    def _on_event(self, kind: Kind, sort: str | None, item: Mapping[str, Any]) -> None:
        self._last_event = time.monotonic()
        self._metrics.watch_event(kind.kind)
        if kind == OWN_LEASE:
            return
        change = self._cache.remove(kind, item) if sort == "DELETED" else self._cache.put(kind, item)
        if change is not None:
            self._poke(change)

    def _on_watch(self, path: str) -> None:
        # a proxy may serve the API below a path of its own
        self._to_watch = {one for one in self._to_watch if not path.endswith(one)}
        if not self._to_watch:
            self._watching.set()

    def _on_report(self, change: Change) -> None:
        self._metrics.watch_event(NODE_REPORT.kind)
        item = change.new or change.old
        if item is not None and degraded.is_news(change.old, change.new, _utc_now()):
            for key in self._cache.keys_on(item["metadata"]["name"]):
                self._queue.add(key, _NODE_DELAY_S)

    def _poke_all(self) -> None:
        for each in self._cache.keys():  # noqa: SIM118 - not a dict
            self._queue.add(each, _NODE_DELAY_S)

    def _poke(self, change: Change) -> None:
        """Queue the inferences that a change may concern."""
        if change.kind == NODE:
            if self._synced.is_set():  # before, each inference is queued as it is listed
                self._poke_all()
            if self._keeper is not None:
                self._keeper.changed(change)
            return
        for item in (change.old, change.new):
            key = None if item is None else key_of(change.kind, item)
            if key is None:
                continue
            if change.kind != INFERENCE:
                self._queue.add(key, _CHILD_DELAY_S)
            else:
                self._queue.add(key, urgent=_edited(change))

    def _vitals(self) -> health.Vitals:
        now = time.monotonic()
        ages = [one.silence for one in self._needed] if self._leads else []
        if self._leads and OWN_LEASE in self._options.watched and self._last_event is not None:
            ages.append(now - self._last_event)
        return health.Vitals(
            loop_lag=self._lag.seconds,
            watch_age=max(ages, default=None),
            lease_age=now - self._leader.last_contact,
            leads=self._leads,
            synced=self._synced.is_set(),
        )

    def _publish(self) -> None:
        gauge = self._metrics.gauge
        gauge("hisparse_operator_leader", "1 while this replica may write.", lambda: float(self._leader.leads))
        gauge("hisparse_operator_queue_depth", "Objects that could be worked on now.", lambda: len(self._queue))
        gauge("hisparse_operator_queue_delayed", "Objects that wait for their time.", lambda: self._queue.delayed)
        gauge("hisparse_operator_workers_busy", "Passes that run now.", lambda: self._queue.held)
        gauge("hisparse_operator_loop_lag_seconds", "How late the event loop runs.", lambda: self._lag.seconds)
        gauge(
            "hisparse_operator_watch_age_seconds",
            "Since the watch of the kind that was not heard of for longest; at most about 70 at rest.",
            lambda: self._vitals().watch_age,
        )
        self._metrics.objects(self._cache)


async def run(options: Options, decisions: Decisions) -> int:
    """Run one operator; the exit code."""
    configuration = await load_configuration(options.kubeconfig, options.context)
    metrics = Metrics()
    async with (
        Api(configuration, metrics.request) as api,
        # a connection of its own: renewals never queue behind other requests
        Api(configuration, metrics.request) as lease_api,
        aiohttp.ClientSession(trust_env=True) as session,
    ):
        hub = HuggingFace(session, options.hub) if options.hub else NoHub()
        return await Operator(options, decisions, api, lease_api, metrics, hub).run()


def cause(error: BaseException) -> str | None:
    """What ended the operator, in a sentence with the next step; None for what needs its traceback."""
    # kopf's own errors have a status too
    match getattr(error, "status", None):
        case 401:
            return f"the API server does not know who we are ({error}): renew the credentials and start it again"
        case 403:
            return (
                f"a right is missing ({error}): apply operator/deploy/rbac.yaml for the user that the operator runs as "
                "and start it again"
            )
        case 404:
            return (
                f"the API server does not know {INFERENCE.plural}.{INFERENCE.group} any more ({error}): somebody has "
                "deleted the CRD, and with it every object; install crds/ again and start the operator, which waits "
                "for the CRD"
            )
        case 410:
            return (
                f"the API server has forgotten the rest of a list ({error}), as it does when etcd was restored or a "
                "list took very long; nothing is to be done, the operator lists anew when it starts again"
            )
        case _:
            return None


def _tell(task: str, error: BaseException) -> None:
    if (said := cause(error)) is not None:
        log.error("ended", task=task, error=said)
    else:
        log.error("ended", task=task, exc_info=error)


def _edited(change: Change) -> bool:
    """Whether somebody else than us changed the object: a new one, another spec, labels or annotations."""
    if change.old is None or change.new is None:
        return True
    old, new = change.old["metadata"], change.new["metadata"]
    return any(old.get(part) != new.get(part) for part in ("uid", "generation", "labels", "annotations"))


def _end_for_certain() -> None:
    """Whatever a task does that will not be cancelled: a process that writes nothing any more must not live on."""
    limit = threading.Timer(_ENDS_S, os._exit, (1,))
    limit.daemon = True
    limit.start()


@contextlib.contextmanager
def _rare_collections() -> Iterator[None]:
    """While lists are taken in hardly anything is garbage, and looking for it was a fifth of a start."""
    before = gc.get_threshold()
    gc.set_threshold(_RARELY, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _settle_memory() -> None:
    """Most of what is in memory now stays there: the garbage collector looks at it once, and not at every turn.

    A look at all that is known of 1,000 objects holds up everything for half a second, and it came every 20 s.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def _utc_now() -> datetime:
    return datetime.now(UTC)


def _install(stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)


@contextlib.contextmanager
def _signals(stop: asyncio.Event) -> Iterator[None]:
    _install(stop)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().remove_signal_handler(number)


@contextlib.asynccontextmanager
async def _task(work: Awaitable[None]) -> AsyncIterator[None]:
    task = asyncio.ensure_future(work)
    try:
        yield
    finally:
        await _cancelled(task)


async def _first(wanted: Awaitable[None], other: Awaitable[object]) -> bool:
    """Whether the wanted one came first; the later one is cancelled."""
    tasks: list[asyncio.Future[Any]] = [asyncio.ensure_future(wanted), asyncio.ensure_future(other)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if tasks[0].done():
            tasks[0].result()
            return True
        return False
    finally:
        await _cancelled(*tasks)


async def _cancelled(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
