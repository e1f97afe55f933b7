"""config.json and the size of the weights of a public model, through huggingface-hub and its cache.

Nothing here runs unless a model is in neither the catalogue nor a file, and nothing here can hang.
"""

from __future__ import annotations

import json
import logging
import os
import re
import threading
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hisparse_toolkit.problems import NotFoundOutError, Problem

DEADLINE_S: Final = 7.0
OFF_VARIABLES: Final = ("HISPARSE_NO_HUB", "HF_HUB_OFFLINE")
CONFIG: Final = "config.json"
INDEX: Final = "model.safetensors.index.json"
# a map of every tensor to its file is megabytes; more than this is no index
MAX_BYTES: Final = 64 * 1024**2

_ADVICE: Final = (
    "give the model's config.json as --model FILE (spec.model.config) and the size of its weights as --weights "
    "(spec.model.facts.weights), or set HF_ENDPOINT to a mirror that can be reached"
)


@dataclass(frozen=True)
class HubFiles:
    """What the hub has of one revision; `index` is None for a model that is one file."""

    config: Mapping[str, Any]
    index: Mapping[str, Any] | None


def why_off(*, no_hub: bool) -> str | None:
    """What switched the hub off, None where it may be asked."""
    if no_hub:
        return "--no-hub"
    on = (None, "", "0", "false", "no", "off")
    return next((f"{name}={os.environ[name]}" for name in OFF_VARIABLES if _value(name) not in on), None)


def _value(name: str) -> str | None:
    value = os.environ.get(name)
    return None if value is None else value.lower()


def hub_files(repo: str, revision: str | None, *, off: str | None, near: str | None) -> HubFiles:
    """The files of a public repository. Raises NotFoundOutError with what to do instead."""
    hint = f" (did you mean {near}?)" if near else ""
    if off is not None:
        message = f"{repo} is not in the catalogue{hint} and the hub is switched off ({off}); {_ADVICE}"
        raise NotFoundOutError([Problem("spec.model", message)])
    found: list[HubFiles] = []
    failed: list[str] = []
    overheard = _Overheard()

    def ask() -> None:
        try:
            found.append(_download(repo, revision, overheard))
        except Exception as error:  # noqa: BLE001  whatever the library and the network come up with is no answer
            failed.append(f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}")

    # a daemon, so that a connection that never answers does not keep the command from ending
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(DEADLINE_S)
    if found:
        return found[0]
    why = failed[0].rstrip(": ") if failed else f"no answer within {DEADLINE_S:g} s{overheard.last}"
    message = f"{repo} is not in the catalogue{hint} and the Hugging Face hub did not give its files ({why}); {_ADVICE}"
    message += "; --no-hub does not wait for the hub"
    raise NotFoundOutError([Problem("spec.model", message)])


class _Overheard(logging.Handler):
    """Takes what the library would print while it tries again and again, and keeps why."""

    def __init__(self) -> None:
        super().__init__()
        self.last = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the reason of a failed try."""
        reason = re.match(r"'(.{1,200}?)' thrown while requesting", record.getMessage())
        if reason:
            self.last = f", last {reason[1]}"


def _download(repo: str, revision: str | None, overheard: logging.Handler) -> HubFiles:
    # read when it is imported
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    from huggingface_hub import hf_hub_download  # noqa: PLC0415  costs a second; most plans never need it
    from huggingface_hub.errors import EntryNotFoundError  # noqa: PLC0415

    logging.getLogger("huggingface_hub").handlers[:] = [overheard]
    warnings.simplefilter("ignore")

    def fetch(name: str) -> Mapping[str, Any]:
        # no token: what the operator cannot read either would only work here
        path = Path(hf_hub_download(repo, name, revision=revision, token=False, etag_timeout=DEADLINE_S / 2))
        if path.stat().st_size > MAX_BYTES:
            raise ValueError(f"{name} is larger than {MAX_BYTES // 1024**2} MiB")
        value = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(value, dict):
            raise TypeError(f"{name} is not a JSON object")
        return value

    config = fetch(CONFIG)
    try:
        index = fetch(INDEX)
    except EntryNotFoundError:
        return HubFiles(config, None)
    return HubFiles(config, index)
