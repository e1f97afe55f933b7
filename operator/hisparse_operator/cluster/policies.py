"""Keeps the status of every HiSparseNodePolicy true. One round looks at all of them; nothing is written that is so."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

import structlog

from hisparse.errors import Transient
from hisparse_operator.cluster.cache import Cache, Change
from hisparse_operator.cluster.kube import Api, ApiError, Conflict, LeaseLostError, NotFoundError
from hisparse_operator.decide.policies import Fleet, statuses
from hisparse_operator.kinds import NODE, NODE_POLICY, POOL_LEASE, STATUS_MANAGER
from hisparse_operator.workqueue import WorkQueue
from hisparse_operator.world import Object

log: Final = structlog.get_logger(__name__)
_ROUND: Final = "policies"
_EDIT_DELAY_S: Final = 0.2
_QUIET_DELAY_S: Final = 10.0
"""Nodes come and go in numbers; and somebody who keeps writing a status must not make us answer each time."""
_REFUSED_S: Final = 60.0


class PolicyKeeper:
    """Writes statuses of policies. `run` is to begin once nodes, policies and Leases have been listed."""

    def __init__(self, api: Api, cache: Cache, now: Callable[[], datetime], agents_namespace: str) -> None:
        self._api = api
        self._cache = cache
        self._now = now
        self._agents_namespace = agents_namespace
        self._queue: WorkQueue[str] = WorkQueue()

    def poke(self) -> None:
        """Look at all policies soon."""
        self._queue.add(_ROUND, _EDIT_DELAY_S)

    def changed(self, change: Change) -> None:
        """Look at all policies, if this change of a node, a policy or a Lease can be news for them."""
        if change.kind == NODE and _labels(change.old) == _labels(change.new):
            return
        soon = change.kind == POOL_LEASE or (change.kind == NODE_POLICY and _edited(change))
        self._queue.add(_ROUND, _EDIT_DELAY_S if soon else _QUIET_DELAY_S)

    def close(self) -> None:
        """End `run` after the write in flight."""
        self._queue.close()

    async def run(self) -> None:
        """Work until closed. A bug in here must not take the inferences down with it: it is logged and tried again."""
        self.poke()
        while (key := await self._queue.get()) is not None:
            try:
                await self._round()
            except (Transient, LeaseLostError) as error:
                wait = self._queue.fail(key, error.retry_seconds if isinstance(error, Transient) else 0.0)
                log.warning("policies: retrying", error=str(error), after_s=round(wait, 1))
            except ApiError as error:
                wait = self._queue.fail(key, _REFUSED_S)
                log.error("policies: status refused", error=str(error), after_s=round(wait, 1))  # noqa: TRY400 - says all
            except Exception:
                wait = self._queue.fail(key)
                log.exception("policies: bug", after_s=round(wait, 1))
            else:
                self._queue.forget(key)
            finally:
                self._queue.done(key)

    async def _round(self) -> None:
        fleet = Fleet(
            policies=self._cache.optional(NODE_POLICY),
            nodes=self._cache.nodes(),
            leases=self._cache.optional(POOL_LEASE),
            lease_sight=self._cache.sight(POOL_LEASE),
            agents_namespace=self._agents_namespace,
        )
        refused: ApiError | None = None
        for document, status in statuses(fleet, self._now()):
            if (document.get("status") or {}) == status:
                continue
            try:
                await self._write(document, status)
            except (NotFoundError, Conflict) as error:
                # its watch brings what is there now, and with it another round
                log.info("policy changed meanwhile", policy=document["metadata"]["name"], error=str(error))
            except ApiError as error:
                refused = error
        if refused is not None:
            raise refused

    async def _write(self, document: Object, status: Object) -> None:
        meta = document["metadata"]
        wanted: dict[str, Any] = {
            "apiVersion": NODE_POLICY.api_version,
            "kind": NODE_POLICY.kind,
            # the version says that the status speaks of the object as it is now
            "metadata": {key: meta[key] for key in ("name", "resourceVersion")},
            "status": status,
        }
        answer = await self._api.apply(NODE_POLICY, wanted, STATUS_MANAGER, force=True, subresource="status")
        self._cache.put(NODE_POLICY, answer)
        log.info("policy", policy=meta["name"], selected=status["selected"], conditions=_short(status))


def _labels(node: Object | None) -> object:
    return None if node is None else node["metadata"].get("labels") or {}


def _edited(change: Change) -> bool:
    """Whether a person did something to a policy: it is new, gone, or has another spec."""
    if change.old is None or change.new is None:
        return True
    old, new = change.old["metadata"], change.new["metadata"]
    return any(old.get(part) != new.get(part) for part in ("uid", "generation", "deletionTimestamp"))


def _short(status: Object) -> dict[str, str]:
    return {one["type"]: f"{one['status']}/{one['reason']}" for one in status["conditions"]}
