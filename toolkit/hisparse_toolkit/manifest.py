"""One HiSparseInference from a file or from stdin, refused with the place and the reason where it is not one."""

from __future__ import annotations

import difflib
import math
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TextIO, cast

import yaml

from hisparse.spec import API_VERSION, GROUP, KIND
from hisparse_toolkit.problems import BadInputError, NotFoundOutError, Problem, bad

STDIN: Final = "-"
# the API server's own limit on the body of a request
MAX_BYTES: Final = 3 * 1024**2
# what a short text with anchors may stand for once every alias is written out
MAX_VALUES: Final = 100_000
MAX_DEPTH: Final = 64

_BASE: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_FLOAT: Final = "tag:yaml.org,2002:float"


class _Loader(_BASE):  # type: ignore[misc]
    """YAML as kubectl reads it: 1e6 is a number there, and text for PyYAML."""

    def number(self, node: Any) -> float | str:  # noqa: ANN401  a node of whichever parser
        """The number; a text where it is too large for one, as kubectl has it."""
        value = float(self.construct_yaml_float(node))
        return str(node.value) if math.isinf(value) and "inf" not in node.value.lower() else value


_Loader.add_implicit_resolver(
    _FLOAT, re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)[eE][-+]?[0-9]+$"), "-+.0123456789"
)
_Loader.add_constructor(_FLOAT, _Loader.number)
_KEY_TAGS: Final = ("tag:yaml.org,2002:str", "tag:yaml.org,2002:merge")


@dataclass(frozen=True)
class Manifest:
    """A whole HiSparseInference. Only its frame has been judged: the spec is still what the file says."""

    source: str
    name: str
    namespace: str
    document: Mapping[str, Any]

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The metadata as they stand in the file."""
        metadata: Mapping[str, Any] = self.document["metadata"]
        return metadata

    @property
    def spec(self) -> Mapping[str, Any]:
        """The spec as it stands in the file."""
        spec: Mapping[str, Any] = self.document["spec"]
        return spec


def read_manifest(path: str) -> Manifest:
    """Read the one HiSparseInference that `path` holds; "-" is stdin. Raises BadInputError."""
    if not path:
        raise bad("--file", "is empty; name a manifest, or - for stdin")
    source = "stdin" if path == STDIN else path
    return manifest_in(_text(_content(path, source), source), source)


def manifest_in(text: str, source: str) -> Manifest:
    """The one HiSparseInference in a YAML or JSON text. Raises BadInputError."""
    documents = _documents(text, source)
    if not documents:
        raise bad(source, f"is empty; write one {KIND}, as in examples/glm-5.3-1m.yaml")
    if len(documents) > 1:
        held = ", ".join(f"{number}: {_title(one)}" for number, one in enumerate(documents, start=1))
        raise bad(source, f"holds {len(documents)} documents ({held}); give a file with one {KIND} and nothing else")
    return _framed(documents[0], source)


def _content(path: str, source: str) -> bytes:
    try:
        if path == STDIN:
            if cast("TextIO | None", sys.stdin) is None:
                raise NotFoundOutError([Problem(source, "is closed; name a file, or pass the manifest through a pipe")])
            content = sys.stdin.buffer.read(MAX_BYTES + 1)
        else:
            with Path(path).open("rb") as file:
                content = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise bad(source, f"does not exist{_near_file(Path(path))}") from None
    except IsADirectoryError:
        raise bad(source, "is a directory; name one file in it") from None
    except (OSError, ValueError) as error:
        # a path may hold a null byte, which is a ValueError
        raise bad(source, f"cannot be read ({error}); name a file that can") from None
    if len(content) > MAX_BYTES:
        raise bad(source, f"is larger than {MAX_BYTES // 1024**2} MiB, which no API server takes; name a manifest")
    return content


def _near_file(path: Path) -> str:
    try:
        names = [entry.name for entry in path.parent.iterdir() if entry.is_file()]
    except OSError:
        return f"; there is no folder {path.parent} either"
    close = difflib.get_close_matches(path.name, names, n=1)
    return f"; did you mean {path.parent / close[0]}?" if close else "; name a file that does, or - for stdin"


def _text(content: bytes, source: str) -> str:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise bad(source, f"is not text: byte {error.start} is not UTF-8; name a YAML file") from None
    if "\0" in text:
        raise bad(source, "is not text: it holds null bytes; name a YAML file")
    return text


def _documents(text: str, source: str) -> list[Any]:
    loader = _Loader(text)
    found: list[Any] = []
    try:
        while loader.check_node():
            node = loader.get_node()
            _judge(node, source)
            value = loader.construct_document(node)
            if value is not None:
                found.append(value)
    except yaml.MarkedYAMLError as error:
        raise bad(f"{source}{_line(error.problem_mark or error.context_mark)}", _yaml_fault(error)) from None
    except (yaml.YAMLError, ValueError, RecursionError, OverflowError) as error:
        # ValueError: a date or number of an impossible value, e.g. 2026-02-30
        raise bad(source, f"is not YAML: {' '.join(str(error).split())}; correct it") from None
    finally:
        loader.dispose()
    return found


def _yaml_fault(error: yaml.MarkedYAMLError) -> str:
    words = ", ".join(part for part in (error.context, error.problem) if part)
    return f"is not YAML: {words}; correct this line or the one before it"


def _line(mark: Any) -> str:  # noqa: ANN401  yaml's marks have no common type
    return "" if mark is None else f" line {mark.line + 1}"


def _judge(root: Any, source: str) -> None:  # noqa: ANN401  a node of whichever parser
    """Refuse what a person cannot mean or a machine cannot hold, before anything is built from it."""
    sizes: dict[int, int] = {}
    open_nodes: set[int] = set()

    def size(node: Any, depth: int) -> int:  # noqa: ANN401
        key = id(node)
        if key in open_nodes:
            raise bad(f"{source}{_line(node.start_mark)}", "an anchor holds itself; write the value out")
        if key in sizes:
            return sizes[key]
        if depth > MAX_DEPTH:
            raise bad(f"{source}{_line(node.start_mark)}", f"is nested deeper than {MAX_DEPTH} levels; flatten it")
        open_nodes.add(key)
        total = 1 + sum(size(child, depth + 1) for child in _children(node, source))
        open_nodes.discard(key)
        if total > MAX_VALUES:
            message = f"stands for more than {MAX_VALUES:,} values once its anchors are written out; write less"
            raise bad(f"{source}{_line(node.start_mark)}", message)
        sizes[key] = total
        return total

    if root is not None:
        size(root, 0)


def _children(node: Any, source: str) -> Iterator[Any]:  # noqa: ANN401
    if isinstance(node, yaml.SequenceNode):
        yield from node.value
    elif isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            name = _key(key, source)
            if name in seen:
                message = f'"{name}" is set twice; keep one of them'
                raise bad(f"{source}{_line(key.start_mark)}", message)
            seen.add(name)
            yield value


def _key(node: Any, source: str) -> str:  # noqa: ANN401
    if node.tag not in _KEY_TAGS:
        said = node.value if isinstance(node, yaml.ScalarNode) else "a list or block"
        raise bad(f"{source}{_line(node.start_mark)}", f"the name of a field is {said}, not text; put it in quotes")
    return str(node.value)


def _framed(document: Any, source: str) -> Manifest:  # noqa: ANN401
    if not isinstance(document, dict):
        raise bad(source, f"is {_title(document)}, not an object; write apiVersion, kind, metadata and spec")
    _judge_kind(document, source)
    metadata, spec = document.get("metadata"), document.get("spec")
    problems = []
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if not isinstance(metadata, dict) or name in (None, ""):
        problems.append(Problem("metadata.name", "is needed and not set; name the object, as in glm-5-3"))
    elif not isinstance(name, str):
        problems.append(Problem("metadata.name", f'{name!r} is not text; put it in quotes, as in "glm-5-3"'))
    if spec is None:
        problems.append(Problem("spec", "is needed and not set; set model, context and resources"))
    elif not isinstance(spec, dict):
        problems.append(Problem("spec", "is not a block of fields; indent its fields below it"))
    if problems:
        raise BadInputError(problems)
    assert isinstance(metadata, dict)  # noqa: S101  no problem was found
    return Manifest(source, str(name), str(metadata.get("namespace") or "default"), document)


def _judge_kind(document: Mapping[str, Any], source: str) -> None:
    version, kind = document.get("apiVersion"), document.get("kind")
    problems = []
    if kind != KIND:
        said = "is needed and not set" if kind is None else f'"{kind}" in {source} is not what this command reads'
        problems.append(Problem("kind", f"{said}; set {KIND}{_near_kind(kind)}"))
    if version != API_VERSION:
        said = "is needed and not set" if version is None else f'"{version}" is not what this release reads'
        problems.append(Problem("apiVersion", f"{said}; set {API_VERSION}"))
    if problems:
        ours = kind == KIND or (isinstance(version, str) and version.startswith(f"{GROUP}/"))
        # of a stranger only the kind matters; its apiVersion is right for what it is
        raise BadInputError(problems if ours or kind is None else problems[:1])


def _near_kind(kind: object) -> str:
    if kind == "List":
        return " (give its items one by one)"
    return ""


def _title(document: Any) -> str:  # noqa: ANN401
    if not isinstance(document, dict):
        return "a list" if isinstance(document, list) else "a single value"
    metadata = document.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    kind = document.get("kind") or "an object without kind"
    return f"{kind} {name}" if name else str(kind)
