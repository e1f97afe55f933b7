"""Readings as JSON and back, for the pipe between the NVML child and its parent, and for recordings.

Strict on the way in: what comes out has exactly the types that `readings` declares, or FormatError says where not.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from datetime import datetime
from enum import StrEnum
from functools import cache
from typing import TypeVar, Union, cast, get_args, get_origin, get_type_hints

from hisparse_agent.readings import Missing

T = TypeVar("T")


class Refusal(StrEnum):
    """Why the NVML child answers with an error instead of readings."""

    NO_DRIVER = "NoDriver"
    """NVIDIA's library is not on this machine: not a fault, there is nothing to read."""
    MISMATCH = "Mismatch"
    """The library is not the loaded driver's. A process keeps the library that it has loaded, so this child is over."""
    ERROR = "Error"
    """NVML did not start or cannot say which GPUs there are. The next request starts it again."""


class FormatError(ValueError):
    """It is not what was promised."""


def to_json(value: object) -> object:
    """What json.dumps takes."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_json(getattr(value, field.name)) for field in fields(value)}
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
    return cast("T", _of(kind, data, "$"))


def _of(kind: object, data: object, where: str) -> object:
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return _of_union(get_args(kind), data, where)
    if origin is tuple:
        return tuple(_of(get_args(kind)[0], item, f"{where}[{index}]") for index, item in enumerate(_list(data, where)))
    if origin is frozenset:
        return frozenset(_of(get_args(kind)[0], item, where) for item in _list(data, where))
    if origin is not None and issubclass(origin, Mapping):
        key_kind, item_kind = get_args(kind)
        return {
            _key(key_kind, key, where): _of(item_kind, item, f"{where}.{key}")
            for key, item in _object(data, where).items()
        }
    if is_dataclass(kind):
        return _of_dataclass(cast("type", kind), _object(data, where), where)
    if kind is float and type(data) is int:
        return float(data)
    plain = cast("type", kind)
    if plain is datetime or issubclass(plain, StrEnum):
        parse = datetime.fromisoformat if plain is datetime else cast("Callable[[str], object]", plain)
        try:
            return parse(cast("str", data))
        except (TypeError, ValueError) as error:
            raise FormatError(f"{where}: {error}") from error
    # bool is a subclass of int, and a flag is not a number
    if type(data) is not plain:
        raise FormatError(f"{where}: {plain.__name__} expected, not {type(data).__name__}")
    return data


def _of_union(kinds: tuple[object, ...], data: object, where: str) -> object:
    if data is None and types.NoneType in kinds:
        return None
    missing = isinstance(data, dict) and data.keys() == {"absence", "why"}
    rest = [kind for kind in kinds if kind is not types.NoneType and (kind is Missing) == missing]
    if len(rest) != 1:
        raise FormatError(f"{where}: not one of {', '.join(str(kind) for kind in kinds)}")
    return _of(rest[0], data, where)


def _of_dataclass(kind: type, data: Mapping[str, object], where: str) -> object:
    hints = _hints(kind)
    if unknown := data.keys() - hints.keys():
        raise FormatError(f"{where}: unknown field {min(unknown)}")
    # a recording made before a field was added reads as if it had not been read
    needed = {field.name for field in fields(kind) if field.default is MISSING and field.default_factory is MISSING}
    if lacking := needed - data.keys():
        raise FormatError(f"{where}: {min(lacking)} is missing")
    return kind(**{name: _of(hints[name], item, f"{where}.{name}") for name, item in data.items()})


def _list(data: object, where: str) -> list[object]:
    if not isinstance(data, list):
        raise FormatError(f"{where}: a list was expected")
    return data


def _object(data: object, where: str) -> dict[str, object]:
    if not isinstance(data, dict):
        raise FormatError(f"{where}: an object was expected")
    return data


def _key(kind: type, key: str, where: str) -> object:
    try:
        return cast("object", kind(key))
    except ValueError as error:
        raise FormatError(f"{where}: key {key!r} is not {kind.__name__}") from error


@cache
def _hints(kind: type) -> dict[str, object]:
    return get_type_hints(kind)
