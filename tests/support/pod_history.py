"""Every pod that was ever seen in a namespace, and how many served at each time: what a status may hide."""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
import threading
import time
import urllib.parse
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from hisparse_testenv.api import Api

REVISION = "inference.hisparse.dev/revision"


@dataclass
class Seen:
    """One pod. Times are those of this machine's monotonic clock."""

    name: str
    revision: str
    made: float
    deleted: float | None = None
    """When its deletion was asked for."""


@dataclass
class PodHistory:
    """Watches the pods of a namespace on a thread while the block runs."""

    api: Api
    namespace: str
    pods: dict[str, Seen] = field(default_factory=dict)
    serving: list[tuple[float, int]] = field(default_factory=list)
    """How many pods were ready and not being deleted, after each change."""

    def __enter__(self) -> Self:
        found = self.api.request("GET", self._path)
        self._ready: set[str] = set()
        for item in found["items"]:
            self._take("ADDED", item)
        address = urllib.parse.urlsplit(self.api.server)
        context = ssl.create_default_context(cafile=str(self.api.authority.cert))
        context.load_cert_chain(self.api.user.cert, self.api.user.key)
        self._connection = http.client.HTTPSConnection(address.hostname or "", address.port, context=context)
        version = found["metadata"]["resourceVersion"]
        self._connection.request("GET", f"{self._path}?watch=true&timeoutSeconds=3600&resourceVersion={version}")
        self._answer = self._connection.getresponse()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._connection.sock is not None:
            self._connection.sock.close()

    @property
    def _path(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"

    def made(self, since: float = 0.0) -> list[Seen]:
        """Pods made since a time."""
        return [one for one in self.pods.values() if one.made >= since]

    def deleted(self, since: float = 0.0) -> list[Seen]:
        """Pods whose deletion was asked for since a time."""
        return [one for one in self.pods.values() if one.deleted is not None and one.deleted >= since]

    def least_serving(self, since: float) -> int:
        """The fewest ready pods at any time since then."""
        before = [count for at, count in self.serving if at < since]
        return min([count for at, count in self.serving if at >= since] + before[-1:])

    def _read(self) -> None:
        with contextlib.suppress(OSError, ValueError, http.client.HTTPException, AttributeError):
            while line := self._answer.readline():
                event = json.loads(line)
                if event["type"] in ("ADDED", "MODIFIED", "DELETED"):
                    self._take(event["type"], event["object"])

    def _take(self, sort: str, pod: dict[str, Any]) -> None:
        meta, now = pod["metadata"], time.monotonic()
        labels = meta.get("labels") or {}
        seen = self.pods.setdefault(meta["uid"], Seen(meta["name"], labels.get(REVISION, ""), now))
        if seen.deleted is None and (sort == "DELETED" or meta.get("deletionTimestamp")):
            seen.deleted = now
        conditions = (pod.get("status") or {}).get("conditions") or ()
        ready = any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
        if ready and seen.deleted is None:
            self._ready.add(meta["uid"])
        else:
            self._ready.discard(meta["uid"])
        self.serving.append((now, len(self._ready)))
