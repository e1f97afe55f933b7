"""The fields of a config.json that weights are counted from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from hisparse.config import ConfigFields
from hisparse.errors import SpecError

LARGEST: Final = 16_777_216
"""More than any size of a model."""


class UnknownError(SpecError):
    """What `key` of a config.json says, or leaves out, does not tell the weights. Readers answer None."""

    def __init__(self, key: str) -> None:
        super().__init__("spec.model.config", f"{key} does not say what the weights are")


class WeightFields(ConfigFields):
    """A config.json whose fields go by several keys: the first that is not null counts."""

    def first(self, *keys: str) -> Any:  # noqa: ANN401 - whatever JSON holds
        """The value of the first key that is not null."""
        return next((value for key in keys if (value := self.get(key)) is not None), None)

    def count(self, *keys: str, default: int | None = None) -> int:
        """A whole number from 0 (from 1 where there is no default). Raises SpecError for anything else."""
        found = next((key for key in keys if self.get(key) is not None), keys[0])
        return self.whole(found, default=default, least=1 if default is None else 0)

    def flag(self, *keys: str, default: bool) -> bool:
        """True or false; what is neither is passed over."""
        return next((value for key in keys if isinstance(value := self.get(key), bool)), default)

    def per_layer(self, key: str, layers: int) -> tuple[str, ...] | None:
        """One word per layer; None where the key is absent. Raises SpecError where words are missing."""
        words = self.names(key)
        if words is not None and len(words) < layers:
            raise UnknownError(key)
        return None if words is None else words[:layers]

    def part(self, key: str) -> Mapping[str, Any] | None:
        """The config of another part of the model, such as its vision tower."""
        value = self._top.get(key)
        return value if isinstance(value, Mapping) else None
