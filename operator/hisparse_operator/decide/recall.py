"""Answers given before. A pass asks the same of the same spec and the same nodes again and again.

The functions stay pure: what they are asked about is never changed in place, so an answer holds for as long as the
very same value comes by.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Generic, TypeVar

from hisparse.errors import SpecErrors
from hisparse.spec import HiSparseInferenceSpec, name_faults, parse_stored_spec
from hisparse_operator.world import Object

T = TypeVar("T")
REMEMBERED: Final = 2048
"""Answers of one kind; with more different specs than that a pass is as slow as the first one."""


@dataclass(frozen=True, eq=False)
class Same(Generic[T]):
    """A value as a key: equal to itself only. The key keeps it alive, so no other value can get its id."""

    value: T

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.value is other.value


def spec_of(inference: Object) -> tuple[HiSparseInferenceSpec, tuple[str, ...]]:
    """The spec of an object, and the fields that only a newer CRD knows; for the same text the very same value.

    Raises SpecErrors.
    """
    raw, metadata = inference.get("spec") or {}, inference["metadata"]
    try:
        found = _sound(json.dumps(raw, default=str))
    except SpecErrors:
        found = None
    # what is wrong is told in one go, with the faults of the name
    return parse_stored_spec(raw, metadata=metadata) if found is None or name_faults(metadata) else found


@lru_cache(maxsize=REMEMBERED)
def _sound(text: str) -> tuple[HiSparseInferenceSpec, tuple[str, ...]]:
    return parse_stored_spec(json.loads(text), metadata={})
