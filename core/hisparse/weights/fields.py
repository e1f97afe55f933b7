"""The fields of a config.json that weights are counted from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hisparse.config import ConfigFields
from hisparse.errors import SpecError


class UnknownError(SpecError):
    """What `key` of a config.json says, or leaves out, does not tell the weights. Readers answer None."""

    def __init__(self, key: str) -> None:
        super().__init__("spec.model.config", f"{key} does not say what the weights are")


class WeightFields(ConfigFields):
    """A config.json as weights are counted from it: model.facts do not change what the files hold."""

    def part(self, key: str) -> Mapping[str, Any] | None:
        """The config of another part of the model, such as its vision tower."""
        value = self._top.get(key)
        return value if isinstance(value, Mapping) else None
