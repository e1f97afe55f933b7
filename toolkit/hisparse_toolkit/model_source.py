"""The model that --model means: a known name, a public repository, or a config.json of this machine."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hisparse import catalogue
from hisparse_toolkit import hub
from hisparse_toolkit.problems import bad

MAX_CONFIG_BYTES: Final = 4 * 1024**2


@dataclass(frozen=True)
class LocalModel:
    """A config.json of this machine, as it was named, and what lies beside it."""

    path: str
    folder: str
    config: Mapping[str, Any]
    index: Mapping[str, Any] | None

    def as_source(self) -> dict[str, Any]:
        """The `model` block of a spec that means this model."""
        return {"hostPath": {"path": self.folder}, "config": dict(self.config)}


def local_model(name: str | None) -> LocalModel | None:
    """The model behind --model where that is a file or a folder."""
    if name is None:
        return None
    path = Path(name).expanduser()
    try:
        if path.is_dir():
            path /= hub.CONFIG
            if not path.is_file():
                known = catalogue.lookup(name) is not None
                if known or not name.startswith((".", "/", "~")):
                    # a folder here may have the name of a model
                    return None
                message = f"{name} is a folder without a {hub.CONFIG}; name the model's config.json, or its folder"
                raise bad("--model", message)
        if not path.is_file():
            if name.endswith(".json") or name.startswith((".", "/", "~")):
                raise bad("--model", f"{name} does not exist; name a config.json, a folder that holds one, or a model")
            return None
    except ValueError:
        # a null byte
        return None
    index = path.with_name(hub.INDEX)
    return LocalModel(
        path=str(path),
        folder=_folder(path),
        config=_json_object(path),
        index=_json_object(index, limit=hub.MAX_BYTES) if path.name == hub.CONFIG and index.is_file() else None,
    )


def _folder(config: Path) -> str:
    """Where vLLM would find the weights: beside the config.json, else a name made from the file's."""
    place = str(config.resolve().parent)
    if config.name == hub.CONFIG and re.fullmatch(r"(?:/[^/:\s]+)+", place):
        return place
    return "/models/" + (re.sub(r"[^-A-Za-z0-9_.]+", "-", config.stem).strip("-.") or "model")


def _json_object(path: Path, limit: int = MAX_CONFIG_BYTES) -> Mapping[str, Any]:
    try:
        if path.stat().st_size > limit:
            raise bad("--model", f"{path} is larger than {limit // 1024**2} MiB; name the model's config.json")
        value = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise bad("--model", f"{path} cannot be read ({error.strerror}); name a config.json that can") from None
    except (ValueError, RecursionError) as error:
        message = f"{path} is not JSON ({str(error).splitlines()[0]}); name the model's config.json"
        raise bad("--model", message) from None
    if not isinstance(value, dict):
        raise bad("--model", f"{path} is not a JSON object; name the model's config.json")
    return value


def named_source(name: str) -> dict[str, Any]:
    """The `model` block of a spec that means a model by its name; the owner may be left out for a known one."""
    entry = catalogue.lookup(name)
    if entry is not None:
        wanted = name.lower()
        spelled = (one for one in (entry.repo, *entry.aliases) if wanted in (one.lower(), last_part(one).lower()))
        return {"huggingFace": {"repo": next(spelled, entry.repo)}}
    if "/" not in name:
        near = near_model(name)
        hint = f"; did you mean {last_part(near)}?" if near else ""
        raise bad(
            "--model",
            f'"{name}" is not in the catalogue{hint} (hisparse models lists the {len(catalogue.ENTRIES)} that are; any '
            "public model as owner/name; any other as the path of its config.json)",
        )
    return {"huggingFace": {"repo": name}}


def near_model(name: str) -> str | None:
    """The known model that was meant: one of the same family and size, as far as both say them.

    Names of other models are near as texts (Qwen3-32B and Qwen2-72B), and their plans have nothing in common.
    """
    near = catalogue.suggest(name)
    if near is None or _version(near) != _version(name):
        return _kin(name)
    sizes, known = _sizes(name), _sizes(near)
    return _kin(name) if sizes and known and sizes != known else near


def _kin(name: str) -> str | None:
    """The known model that has every size and word of the name, in the same version: Llama-3.1-70B for Llama-3-70B."""
    sizes, words, version = _sizes(name), _words(name), _version(name)
    if not sizes or version is None:
        return None
    known = [one for entry in catalogue.ENTRIES for one in (entry.repo, *entry.aliases)]
    kin = [
        one for one in known if sizes <= _sizes(one) and words <= _words(one) and _is_of_version(_version(one), version)
    ]
    # the plainest of them
    return min(kin, key=lambda one: len(last_part(one)), default=None)


def _is_of_version(known: str | None, said: str) -> bool:
    return known is not None and (known == said or known.startswith(f"{said}."))


def _sizes(name: str) -> set[str]:
    """Parameters as names say them: 235b and 22b of Qwen3-235B-A22B."""
    return set(re.findall(r"\d+(?:\.\d+)?b\b", last_part(name).lower()))


def _words(name: str) -> set[str]:
    """What a name says beside numbers."""
    return set(re.findall(r"[a-z]{2,}", last_part(name).lower()))


def _version(name: str) -> str | None:
    """The first number of a name, which belongs to its family: 5.3 of GLM-5.3-FP8, 3 of Qwen3-32B."""
    found = re.search(r"\d+(?:\.\d+)*", last_part(name))
    return found[0] if found else None


def last_part(repo: str) -> str:
    return repo.rsplit("/", 1)[-1]
