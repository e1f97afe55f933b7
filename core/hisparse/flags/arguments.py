"""The flags and variables of one release, and when a name came and went (the data are in known.py)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from functools import cache
from types import MappingProxyType

from hisparse.dialect import PINNED_VERSION
from hisparse.flags.known import CONNECTORS, FLAGS, KEYS, LIMITS, PAIRED_SINCE, PROGRAMS, RELEASES, VARIABLES


class Takes(StrEnum):
    """What follows a flag."""

    ALONE = "alone"
    SWITCH = "switch"
    """Nothing; --no-NAME is its opposite."""
    OPTIONAL = "optional"
    ONE = "one"
    MANY = "many"


class Type(StrEnum):
    """What a value has to be."""

    TEXT = ""
    INT = "int"
    FLOAT = "float"
    COUNT = "count"
    """A whole number, 1k or 1M (utils/argparse_utils.py)."""
    JSON = "json"
    OBJECT = "object"
    """A JSON object."""


@dataclass(frozen=True)
class Limit:
    """One bound of a number, by pydantic's name for it: ge, gt, le or lt."""

    bound: str
    number: Fraction

    def holds(self, number: Fraction) -> bool:
        """Whether a number keeps to it."""
        return {
            "ge": number >= self.number,
            "gt": number > self.number,
            "le": number <= self.number,
            "lt": number < self.number,
        }[self.bound]

    def __str__(self) -> str:
        return f"{_BOUND_WORDS[self.bound]} {self.number}"


_BOUND_WORDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}


@dataclass(frozen=True)
class Flag:
    """One spelling of one flag; `long` is the spelling that it stands for."""

    name: str
    long: str
    takes: Takes
    type: Type
    values: tuple[str, ...] = ()
    default: str = ""
    negative: bool = False
    """It switches `long` off."""


@dataclass(frozen=True)
class Span:
    """The first and the last release that had something; last is None where the newest has it."""

    first: str
    last: str | None

    def __contains__(self, release: str) -> bool:
        begin, end = RELEASES.index(self.first), RELEASES.index(self.last) if self.last else len(RELEASES)
        return begin <= RELEASES.index(release) <= end

    def __str__(self) -> str:
        if self.last is None:
            return f"since {self.first}"
        return f"in {self.first}" if self.first == self.last else f"from {self.first} to {self.last}"


_PAIRS = {"--enable-": "--disable-", "--disable-": "--enable-"}


def release_of(version: str) -> str | None:
    """The release that "0.33.0", "v0.33.1" or "0.33" belongs to; None where its flags have not been read."""
    parts = version.strip().removeprefix("v").split(".")
    short = ".".join(parts[:2])
    return short if short in RELEASES else None


def pinned_release() -> str:
    """The release that this project runs."""
    return PINNED_VERSION


@cache
def flags_of(release: str) -> Mapping[str, Flag]:
    """Every spelling that the parser of a release takes."""
    found: dict[str, Flag] = {
        name: Flag(name, "--help", Takes.ALONE, Type.TEXT)
        for name in ("-h", "--help")  # argparse's own
    }
    for name, long, takes, kind, values, default, first, last in FLAGS:
        if release in Span(first, last or None):
            found[name] = Flag(name, long, Takes(takes), Type(kind), tuple(values.split()), default)
    for flag in [*found.values()]:
        if flag.takes is Takes.SWITCH and flag.name.startswith("--"):
            for name in _negatives(flag.name, release):
                found.setdefault(
                    name, Flag(name, flag.long, Takes.SWITCH, Type.TEXT, default=flag.default, negative=True)
                )
    return MappingProxyType(found)


def _negatives(name: str, release: str) -> list[str]:
    names = [f"--no-{name.removeprefix('--')}"]
    if PAIRED_SINCE and RELEASES.index(release) >= RELEASES.index(PAIRED_SINCE):
        names += [f"{other}{name.removeprefix(prefix)}" for prefix, other in _PAIRS.items() if name.startswith(prefix)]
    return names


@cache
def limits_of(release: str) -> Mapping[str, tuple[Limit, ...]]:
    """The bounds of the numbers of a release's flags, by long name; none are known before 0.30."""
    return MappingProxyType(
        {name: limits_in(bounds) for name, bounds, first, last in LIMITS if release in Span(first, last or None)}
    )


def limits_in(bounds: str) -> tuple[Limit, ...]:
    """Bounds as they are listed: "gt=0 le=1"."""
    pairs = (bound.partition("=") for bound in bounds.split())
    return tuple(Limit(bound, Fraction(number)) for bound, _, number in pairs)


@cache
def variables_of(release: str) -> frozenset[str]:
    """The environment variables that a release's envs.py reads."""
    return frozenset(name for name, first, last in VARIABLES if release in Span(first, last or None))


@cache
def keys_of(kind: str, release: str) -> tuple[str, ...]:
    """The keys of one JSON argument, by the name of its class in vLLM."""
    return tuple(
        name.removeprefix(f"{kind}.")
        for name, first, last in KEYS
        if name.startswith(f"{kind}.") and release in Span(first, last or None)
    )


@cache
def connectors_of(release: str) -> tuple[str, ...]:
    """The KV connectors that a release knows by name (kv_connector/factory.py); empty where it keeps no list."""
    return tuple(name for name, first, last in CONNECTORS if release in Span(first, last or None))


def connector_history(name: str) -> Span | None:
    """From when to when a KV connector was there."""
    return _whole([Span(first, last or None) for one, first, last in CONNECTORS if one == name])


@cache
def _rows() -> Mapping[str, tuple[tuple[Takes, Span], ...]]:
    """What followed a flag, and when, by name."""
    found: dict[str, list[tuple[Takes, Span]]] = {}
    for name, _, takes, _, _, _, first, last in FLAGS:
        found.setdefault(name, []).append((Takes(takes), Span(first, last or None)))
    return MappingProxyType({name: tuple(rows) for name, rows in found.items()})


def flag_history(name: str) -> Span | None:
    """From when to when a flag was there; None for one that no release read here had."""
    bare = name.removeprefix("--no-")
    positive = f"--{bare}" if bare != name else name
    return _whole([span for one in {name, positive} for _, span in _rows().get(one, ())])


def takes_in_history(name: str) -> Takes | None:
    """What followed a flag when it was last there."""
    rows = _rows().get(name, ())
    return max(rows, key=lambda row: RELEASES.index(row[1].first))[0] if rows else None


def variable_history(name: str) -> Span | None:
    """The same of an environment variable."""
    return _whole([Span(first, last or None) for one, first, last in VARIABLES if one == name])


def program_history(name: str) -> Span | None:
    """The same of a module that `python -m` runs."""
    return _whole([Span(first, last or None) for one, first, last in PROGRAMS if one == name])


def is_later(span: Span, release: str) -> bool:
    """Whether something came after a release."""
    return RELEASES.index(span.first) > RELEASES.index(release)


def _whole(spans: list[Span]) -> Span | None:
    if not spans:
        return None
    first = min(spans, key=lambda one: RELEASES.index(one.first)).first
    last = max(spans, key=lambda one: RELEASES.index(one.last) if one.last else len(RELEASES)).last
    return Span(first, last)
