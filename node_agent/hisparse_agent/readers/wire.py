"""Readings as JSON and back, for the pipe between the NVML child and its parent, and for recordings.

Strict on the way in: what comes out has exactly the types that `readings` declares, or FormatError says where not.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from datetime import datetime
from enum import StrEnum
from functools import cache
from typing import Final, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from hisparse_agent.readings import Missing

T = TypeVar("T")
Reader = Callable[[object], object]
_PLAIN: Final = frozenset({int, str, bool, float, types.NoneType})
_MISSING_KEYS: Final = frozenset({"absence", "why"})


class Refusal(StrEnum):
    """Why the NVML child answers with an error instead of readings."""

    NO_DRIVER = "NoDriver"
    """NVIDIA's library is not on this machine: not a fault, there is nothing to read."""
    MISMATCH = "Mismatch"
    """The library is not the loaded driver's. A process keeps the library that it has loaded, so this child is over."""
    ERROR = "Error"
    """NVML did not start or cannot say which GPUs there are. The next request starts it again."""


class FormatError(ValueError):
    """It is not what was promised. steps are the way to it, from the outside in."""

    def __init__(self, problem: str, *steps: str) -> None:
        super().__init__(problem)
        self._problem, self._steps = problem, steps

    def within(self, step: str) -> FormatError:
        """The same trouble, told of the value that this one is part of."""
        return FormatError(self._problem, step, *self._steps)

    def __str__(self) -> str:
        return f"${''.join(self._steps)}: {self._problem}"


def to_json(value: object) -> object:
    """What json.dumps takes."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if names := _field_names(cast("Hashable", kind)):
        return {name: to_json(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [to_json(item) for item in value]
    if isinstance(value, frozenset):
        return sorted(str(item) for item in value)
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, StrEnum):
        return value.value
    return value


def of_json(kind: type[T], data: object) -> T:
    """The value of this type that to_json wrote. Raises FormatError."""
    return cast("T", _reader(cast("Hashable", kind))(data))


@cache
def _field_names(kind: Hashable) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind)) if is_dataclass(kind) else ()


# --- from JSON: for each type one function, made when it is first needed, since types do not change and polls are many


@cache
def _reader(kind: object) -> Reader:
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return _union(get_args(kind))
    if origin in (tuple, frozenset):
        return _sequence(cast("Callable[[Iterable[object]], object]", origin), _reader(get_args(kind)[0]))
    if origin is not None and issubclass(origin, Mapping):
        return _mapping(*get_args(kind))
    plain = cast("type", kind)
    if is_dataclass(plain):
        return _dataclass(plain)
    if plain is datetime:
        return _parsed(cast("Callable[[str], object]", datetime.fromisoformat))
    if issubclass(plain, StrEnum):
        return _parsed(plain)
    return _plain(plain)


def _plain(kind: type) -> Reader:
    def read(data: object) -> object:
        # bool is a subclass of int, and a flag is not a number
        if type(data) is kind:
            return data
        if kind is float and type(data) is int:
            return float(data)
        raise FormatError(f"{kind.__name__} expected, not {type(data).__name__}")

    return read


def _parsed(parse: Callable[[str], object]) -> Reader:
    def read(data: object) -> object:
        try:
            return parse(cast("str", data))
        except (TypeError, ValueError) as error:
            raise FormatError(str(error)) from error

    return read


def _sequence(make: Callable[[Iterable[object]], object], item: Reader) -> Reader:
    def read(data: object) -> object:
        if not isinstance(data, list):
            raise FormatError("a list was expected")
        found: list[object] = []
        try:
            for one in data:
                found.append(item(one))  # noqa: PERF401 - how many there are says where the trouble is
        except FormatError as error:
            raise error.within(f"[{len(found)}]") from error
        return make(found)

    return read


def _mapping(key_kind: type, item_kind: object) -> Reader:
    item = _reader(item_kind)

    def read(data: object) -> object:
        found: dict[object, object] = {}
        for key, one in _object(data).items():
            try:
                named = key_kind(key)
            except ValueError as error:
                raise FormatError(f"key {key!r} is not {key_kind.__name__}") from error
            try:
                found[named] = item(one)
            except FormatError as error:
                raise error.within(f".{key}") from error
        return found

    return read


def _union(kinds: tuple[object, ...]) -> Reader:
    """One of these, Missing told by its keys; of the others there is one at most."""
    missing = _reader(Missing)
    others = [_reader(kind) for kind in kinds if kind not in (types.NoneType, Missing)]
    refused = f"not one of {', '.join(str(kind) for kind in kinds)}"

    def read(data: object) -> object:
        if data is None and types.NoneType in kinds:
            return None
        if Missing in kinds and isinstance(data, dict) and data.keys() == _MISSING_KEYS:
            return missing(data)
        if len(others) != 1:
            raise FormatError(refused)
        return others[0](data)

    return read


def _dataclass(kind: type) -> Reader:
    hints = get_type_hints(kind)
    readers = {name: _reader(hint) for name, hint in hints.items()}
    # a recording made before a field was added reads as if it had not been read
    needed = {field.name for field in fields(kind) if field.default is MISSING and field.default_factory is MISSING}

    def read(data: object) -> object:
        given = _object(data)
        if unknown := given.keys() - readers.keys():
            raise FormatError(f"unknown field {min(unknown)}")
        if lacking := needed - given.keys():
            raise FormatError(f"{min(lacking)} is missing")
        values: dict[str, object] = {}
        name = ""
        try:
            for name, one in given.items():
                values[name] = readers[name](one)
        except FormatError as error:
            raise error.within(f".{name}") from error
        return kind(**values)

    return read


def _object(data: object) -> dict[str, object]:
    if not isinstance(data, dict):
        raise FormatError("an object was expected")
    return data
