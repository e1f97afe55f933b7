"""Would a server-side apply change anything? Judged from the live object and its managedFields, without a request.

It would not when every field of our document has the wanted value, our manager owns it, and our manager owns
nothing else. managedFields holds paths as a tree of "f:name" (a field), 'k:{"name":"x"}' (the element of a list
that is a map), "v:..." (the element of a list that is a set) and "." (the thing itself); an empty node owns
everything under it, as for a list that is replaced as a whole.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any, Final

from hisparse_operator.world import Object

_IDENTITY: Final = frozenset(
    {"name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "managedFields"}
)
_QUANTITIES: Final = frozenset({"limits", "requests", "sizeLimit"})
_QUANTITY: Final = re.compile(r"(?P<number>\d+(?:\.\d+)?(?:[eE][+-]?\d{1,2})?)(?P<suffix>[numkMGTPE]?|[KMGTPE]i)")
_FACTORS: Final = {
    suffix: Fraction(10) ** power
    for suffix, power in zip(("n", "u", "m", "", "k", "M", "G", "T", "P", "E"), range(-9, 21, 3), strict=True)
} | {f"{letter}i": Fraction(1024) ** power for power, letter in enumerate("KMGTPE", start=1)}
_MISSING: Final = object()


def owned_fields(live: Object, manager: str, subresource: str = "") -> Mapping[str, Any] | None:
    """The tree of what a manager owns by server-side apply, None if it never applied or nothing says what."""
    for entry in live["metadata"].get("managedFields") or ():
        if (entry.get("manager"), entry.get("operation"), entry.get("subresource", "")) == (
            manager,
            "Apply",
            subresource,
        ):
            fields: Mapping[str, Any] | None = entry.get("fieldsV1")
            return fields
    return None


def in_place(live: Object, document: Object, manager: str, subresource: str = "") -> bool:
    """Whether applying the document would change neither the live object nor who owns what."""
    owned = owned_fields(live, manager, subresource)
    if owned is None:
        return False
    wanted = {key: value for key, value in document.items() if key not in ("apiVersion", "kind", "metadata")}
    meta = {key: value for key, value in document["metadata"].items() if key not in _IDENTITY}
    if meta:
        wanted["metadata"] = meta
    return _matches(wanted, live, owned, quantity=False)


def _matches(wanted: Any, live: Any, owned: Mapping[str, Any], *, quantity: bool) -> bool:  # noqa: ANN401
    parts = {part: below for part, below in owned.items() if part != "."}
    if not parts:
        return _equal(wanted, live, quantity=quantity)
    if isinstance(wanted, Mapping):
        return _mapping_matches(wanted, live, parts, quantity=quantity)
    if isinstance(wanted, Sequence) and not isinstance(wanted, str):
        return _list_matches(wanted, live, parts)
    return False


def _mapping_matches(wanted: Mapping[str, Any], live: object, owned: Mapping[str, Any], *, quantity: bool) -> bool:
    if {f"f:{name}" for name in wanted} != set(owned):
        return False
    present = live if isinstance(live, Mapping) else {}
    return all(
        _matches(value, present.get(name, _MISSING), owned[f"f:{name}"], quantity=quantity or name in _QUANTITIES)
        for name, value in wanted.items()
    )


def _list_matches(wanted: Sequence[Any], live: object, owned: Mapping[str, Any]) -> bool:
    if len(wanted) != len(owned) or not isinstance(live, Sequence):
        return False
    for part, below in owned.items():
        sort, _, text = part.partition(":")
        key = _key(text)
        if sort == "v":
            if key not in wanted or key not in live:
                return False
            continue
        # the API server fills in a key's default (protocol: TCP), which our document may leave out
        mine = [one for one in wanted if all(one.get(name, value) == value for name, value in key.items())]
        theirs = [one for one in live if all(one.get(name) == value for name, value in key.items())]
        if len(mine) != 1 or len(theirs) != 1:
            return False
        # and owns the defaulted key in our name
        inner = {name: value for name, value in below.items() if name[2:] in mine[0] or name[2:] not in key}
        if not _matches(mine[0], theirs[0], inner, quantity=False):
            return False
    return True


@lru_cache(maxsize=4096)
def _key(text: str) -> Any:  # noqa: ANN401 - JSON
    return json.loads(text)


def _equal(wanted: Any, live: Any, *, quantity: bool) -> bool:  # noqa: ANN401
    if wanted == live:
        return True
    if live is _MISSING:
        # the API server drops zero values of optional fields
        return wanted in ("", 0, False, None) or wanted in ({}, [], ())
    if isinstance(wanted, Mapping) and isinstance(live, Mapping):
        # an empty struct that was applied owns itself only; defaults may have come into it
        return not wanted or (
            set(wanted) <= set(live)
            and all(_equal(value, live[key], quantity=quantity) for key, value in wanted.items())
        )
    if isinstance(wanted, list | tuple) and isinstance(live, list):
        return len(wanted) == len(live) and all(
            _equal(one, other, quantity=quantity) for one, other in zip(wanted, live, strict=True)
        )
    return quantity and _exact(wanted) is not None and _exact(wanted) == _exact(live)


def _exact(quantity: object) -> Fraction | None:
    """The number that a quantity means, not rounded: the API server rewrites 2048Gi to 2Ti and 0.5 to 500m."""
    if (match := _QUANTITY.fullmatch(str(quantity))) is None:
        return None
    return Fraction(match["number"]) * _FACTORS[match["suffix"]]
