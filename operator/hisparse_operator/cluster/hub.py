"""config.json and the safetensors index of a public model, by plain HTTPS. Never with a token: no Secret is read."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol
from urllib.parse import quote

import aiohttp

from hisparse_operator.world import HubFiles

ENDPOINT: Final = "https://huggingface.co"
DEADLINE_S: Final = 10.0
_RETRY_S: Final = 300.0
_MOVING_S: Final = 3600.0
_REMEMBERED: Final = 256
_CONFIG_BYTES: Final = 2 * 1024**2
_INDEX_BYTES: Final = 64 * 1024**2
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_OK, _NOT_FOUND = 200, 404
_DENIED: Final = (401, 403)


class Hub(Protocol):
    """Where a model's files come from."""

    async def files(self, repo: str, revision: str) -> HubFiles:
        """The files of one revision; never raises for what the network or the hub does."""


class NoHub:
    """The hub is switched off (--no-hub)."""

    async def files(self, repo: str, revision: str) -> HubFiles:
        """Say so."""
        del revision
        return HubFiles(None, None, f"reading {repo} from the hub is switched off (--no-hub); set spec.model.config")


@dataclass(frozen=True)
class _Kept:
    files: HubFiles
    until: float


class _UnavailableError(Exception):
    """A file could not be had; the message says why."""


class HuggingFace:
    """The hub over HTTPS, remembered per revision: a commit for good, a branch for an hour, a failure for minutes."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        endpoint: str = ENDPOINT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._session = session
        self._endpoint = endpoint.rstrip("/")
        self._clock = clock
        self._kept: OrderedDict[tuple[str, str], _Kept] = OrderedDict()
        self._locks: defaultdict[tuple[str, str], asyncio.Lock] = defaultdict(asyncio.Lock)

    async def files(self, repo: str, revision: str) -> HubFiles:
        """The files of one revision; fifty objects of one model ask the hub once."""
        place = (repo, revision)
        async with self._locks[place]:
            kept = self._kept.get(place)
            if kept is None or kept.until <= self._clock():
                files = await self._fetch(repo, revision)
                lasts = _RETRY_S if files.problem else float("inf") if _COMMIT.fullmatch(revision) else _MOVING_S
                self._kept[place] = kept = _Kept(files, self._clock() + lasts)
                self._kept.move_to_end(place)
                while len(self._kept) > _REMEMBERED:
                    old, _ = self._kept.popitem(last=False)
                    self._locks.pop(old, None)
            return kept.files

    async def _fetch(self, repo: str, revision: str) -> HubFiles:
        try:
            async with asyncio.timeout(DEADLINE_S):
                config = await self._file(repo, revision, "config.json", _CONFIG_BYTES)
                index = await self._file(repo, revision, "model.safetensors.index.json", _INDEX_BYTES)
        except _UnavailableError as error:
            return HubFiles(None, None, str(error))
        except TimeoutError:
            problem = f"{self._endpoint} did not answer within {DEADLINE_S:g} s; set spec.model.config"
            return HubFiles(None, None, problem)
        except (aiohttp.ClientError, OSError) as error:
            return HubFiles(None, None, f"{self._endpoint} cannot be reached ({error}); set spec.model.config")
        if config is None:
            return HubFiles(None, None, f"{repo} at {revision} has no config.json on the hub; set spec.model.config")
        # a map of every tensor to its file is megabytes; only the sum of sizes is ever used
        return HubFiles(config, index and {"metadata": index.get("metadata") or {}})

    async def _file(self, repo: str, revision: str, name: str, limit: int) -> dict[str, Any] | None:
        url = f"{self._endpoint}/{quote(repo)}/resolve/{quote(revision, safe='')}/{name}"
        async with self._session.get(url) as answer:
            if answer.status == _NOT_FOUND:
                return None
            if answer.status in _DENIED:
                raise _UnavailableError(
                    f"{repo} is private, gated or unknown on the hub, and the operator reads no Secret; "
                    "set spec.model.config to the model's config.json"
                )
            if answer.status != _OK:
                raise _UnavailableError(f"the hub answered {answer.status} for {name} of {repo}; set spec.model.config")
            body = bytearray()
            async for chunk in answer.content.iter_chunked(65536):
                body += chunk
                if len(body) > limit:
                    raise _UnavailableError(f"{name} of {repo} is larger than {limit} bytes; set spec.model.config")
        try:
            parsed = json.loads(bytes(body))
        except ValueError as error:
            raise _UnavailableError(f"{name} of {repo} is not JSON ({error}); set spec.model.config") from error
        if not isinstance(parsed, dict):
            raise _UnavailableError(f"{name} of {repo} is not a JSON object; set spec.model.config")
        return parsed
