"""What one user asked a real API server, as its audit log has it, and which rules of RBAC that needed."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CREATED = 201


@dataclass(frozen=True)
class Request:
    """One request for a resource. resource has the subresource in it, as in pods/log."""

    user: str
    verb: str
    group: str
    resource: str
    namespace: str
    name: str
    uri: str
    code: int
    ended: str
    node: str
    """That the token of a pod names."""

    @property
    def changes(self) -> bool:
        return self.verb not in ("get", "list", "watch")

    @property
    def rights(self) -> frozenset[str]:
        """The verbs of RBAC that it takes: a patch that made an object needed the right to create it too."""
        return frozenset({self.verb, "create"}) if self.code == CREATED else frozenset({self.verb})

    @property
    def is_optional(self) -> bool:
        """Leases of node agents are looked at where the operator may, and a no is an answer (Sight.HIDDEN)."""
        return (self.resource, self.verb, self.name) == ("leases", "list", "")


def asked(log: Path, user: str) -> Iterator[Request]:
    """What a user asked for, in order; what is no resource (discovery) is left out."""
    with log.open() as lines:
        for line in lines:
            if user not in line:
                continue
            entry = json.loads(line)
            if entry["user"]["username"] == user and "resource" in entry.get("objectRef", {}):
                yield _request(entry)


def forbidden(log: Path, users: Collection[str]) -> list[Request]:
    """Requests of these users that RBAC refused (a 403 of admission is something else)."""
    with log.open() as lines:
        entries = (json.loads(line) for line in lines if '"forbid"' in line)
        return [_request(entry) for entry in entries if entry["user"]["username"] in users]


def _request(entry: Mapping[str, Any]) -> Request:
    about = entry.get("objectRef") or {}
    tail = f"/{about['subresource']}" if about.get("subresource") else ""
    return Request(
        user=entry["user"]["username"],
        verb=entry["verb"],
        group=about.get("apiGroup", ""),
        resource=f"{about.get('resource', '')}{tail}",
        namespace=about.get("namespace", ""),
        name=about.get("name", ""),
        uri=entry["requestURI"],
        code=int((entry.get("responseStatus") or {}).get("code", 0)),
        ended=entry["stageTimestamp"],
        node=next(iter(entry["user"].get("extra", {}).get("authentication.kubernetes.io/node-name", ())), ""),
    )


Grant = tuple[str, str, str]
"""Group, resource and verb."""


def granted(rules: Iterable[Mapping[str, Any]]) -> set[Grant]:
    """What the rules of a role allow, one by one."""
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def needed(requests: Iterable[Request]) -> set[Grant]:
    """What these requests took."""
    return {(one.group, one.resource, verb) for one in requests for verb in one.rights}
