"""Modules that a quantization config names, and whether a module of the model is among them."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from hisparse.weights.fields import UnknownError

_MOST_GLOBS = 1024
_LONGEST_PATTERN = 256

_LITERAL = r"(?:\w|\\\.|\.\*|\.|-)*"
_SIMPLE = re.compile(rf"\^?(?P<before>{_LITERAL})(?:\((?P<choices>[\w|]+)\))?(?P<after>{_LITERAL})(?P<end>\$?)")


@dataclass(frozen=True)
class ModuleNames:
    """Plain names, also of a part of the path, and patterns in the signs of a shell."""

    plain: frozenset[str]
    globs: tuple[str, ...] = ()

    def holds(self, name: str) -> bool:
        """Whether a run of the name's components is named, or a pattern fits the whole name."""
        return (
            self._names_a_run(name)
            or any(name[:length] in self._heads for length in self._head_lengths)
            or any(pattern.match(name) for pattern in self._patterns)
        )

    def _names_a_run(self, name: str) -> bool:
        parts = name.split(".")
        for start, run in enumerate(parts):
            if run not in self._first_parts:
                continue
            if run in self.plain:
                return True
            longer = run
            for part in parts[start + 1 :]:
                longer = f"{longer}.{part}"
                if longer in self.plain:
                    return True
        return False

    # configs name hundreds of modules, and every module of every layer is looked up: sets instead of a search

    @cached_property
    def _first_parts(self) -> frozenset[str]:
        return frozenset(name.split(".", 1)[0] for name in self.plain)

    @cached_property
    def _heads(self) -> frozenset[str]:
        """What stands before the star of patterns that are no more than that."""
        return frozenset(glob[:-1] for glob in self.globs if _is_head(glob))

    @cached_property
    def _head_lengths(self) -> tuple[int, ...]:
        return tuple(sorted({len(head) for head in self._heads}))

    @cached_property
    def _patterns(self) -> tuple[re.Pattern[str], ...]:
        return tuple(re.compile(fnmatch.translate(glob)) for glob in self.globs if not _is_head(glob))


def module_names(patterns: object) -> ModuleNames:
    """Raises SpecError for a pattern in a form that this package does not read."""
    if isinstance(patterns, str) or not isinstance(patterns, Sequence):
        raise UnknownError("quantization_config")
    plain: set[str] = set()
    globs: set[str] = set()
    for pattern in patterns:
        if len(str(pattern)) > _LONGEST_PATTERN:
            raise UnknownError("quantization_config")
        for text in _expanded(str(pattern)):
            bare = _bare(text)
            (globs if _has_signs(bare) else plain).add(bare)
    if len(globs) > _MOST_GLOBS:
        raise UnknownError("quantization_config")
    return ModuleNames(frozenset(plain), tuple(sorted(globs)))


def _has_signs(text: str) -> bool:
    return any(sign in text for sign in "*?[")


def _is_head(glob: str) -> bool:
    return glob.endswith("*") and not _has_signs(glob[:-1])


def _expanded(pattern: str) -> tuple[str, ...]:
    """The globs of a compressed-tensors "re:" pattern; what is no more than literals, ".*" and one choice is read.

    A dot without a backslash is read as a dot. Patterns are user input, so none runs as a regular expression.
    """
    if not pattern.startswith("re:"):
        return (pattern,)
    match = _SIMPLE.fullmatch(pattern.removeprefix("re:"))
    if match is None:
        raise UnknownError(pattern)
    before, choices, after, end = match["before"], match["choices"], match["after"], match["end"]
    tail = "" if end else "*"
    return tuple(
        f"{before}{choice}{after}{tail}".replace(".*", "*").replace("\\.", ".")
        for choice in (choices.split("|") if choices else [""])
    )


def _bare(name: str) -> str:
    """A module's name without the wrappers that differ between checkpoints of one model."""
    while (short := re.sub(r"^(model|language_model|backbone)\.", "", name)) != name:
        name = short
    return name
