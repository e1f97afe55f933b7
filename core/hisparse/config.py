"""A Hugging Face config.json seen through model.facts: the fact wins, then the config, then the default.

Fields of the language model may be nested under text_config or llm_config.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hisparse.errors import SpecError
from hisparse.spec import ModelFactsSpec

_LARGEST = 16_777_216
"""More than any field of a config.json: positions are the largest that models have."""

_WIDTHS = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1}


class ConfigFields:
    """One config.json. Every fault is a SpecError that names the model.facts entry which would supply the value."""

    def __init__(self, config: Mapping[str, Any], facts: ModelFactsSpec | None = None) -> None:
        nested = config.get("text_config") or config.get("llm_config")
        self._top = config
        self.text: Mapping[str, Any] = nested if isinstance(nested, Mapping) else config
        self._facts: Mapping[str, Any] = (facts or ModelFactsSpec()).model_dump(by_alias=True, exclude_none=True)

    def get(self, key: str) -> Any:  # noqa: ANN401 - whatever JSON holds
        """The value of `key`, None where it is absent or null."""
        value = self.text.get(key)
        return self._top.get(key) if value is None else value

    def fact(self, name: str) -> Any:  # noqa: ANN401 - whatever the spec's schema lets through
        """What model.facts says, None where it says nothing."""
        return self._facts.get(name)

    def number(self, key: str, fact: str, *, default: int | None = None, least: int | None = None) -> int:
        """A count of at least 0 (at least 1 where there is no default), and no larger than any model has."""
        value = self._facts.get(fact, self.get(key))
        if value is None:
            value = default
        lowest = least if least is not None else (1 if default is None else 0)
        if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= _LARGEST:
            wanted = f"a whole number from {lowest} to {_LARGEST}"
            said = "is missing from" if value is None else f"is {value!r}, not {wanted}, in"
            raise SpecError(f"spec.model.facts.{fact}", f"{key} {said} the model's config.json; set it here")
        return value

    def whole(self, key: str, *, default: int | None = None, least: int = 0) -> int:
        """A count that model.facts has no entry for."""
        value = self.get(key)
        if value is None:
            value = default
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _LARGEST:
            said = "is missing" if value is None else f"is {value!r}, not a whole number of at least {least}"
            raise SpecError("spec.model.config", f"{key} {said}; put the model's whole config.json here")
        return value

    def names(self, key: str) -> tuple[str, ...] | None:
        """A list of words, None where the key is absent. Raises SpecError where it is something else."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, Sequence) or isinstance(value, str):
            raise SpecError("spec.model.config", f"{key} is {value!r}, not a list; put the model's config.json here")
        return tuple(str(one) for one in value)

    def architecture(self) -> str:
        """The first of `architectures`."""
        fact = self._facts.get("architecture")
        names = [fact] if fact else self._top.get("architectures") or self.text.get("architectures")
        if not isinstance(names, Sequence) or isinstance(names, str) or not names or not isinstance(names[0], str):
            raise SpecError(
                "spec.model.facts.architecture",
                "architectures is missing from the model's config.json; set it here, e.g. LlamaForCausalLM",
            )
        return str(names[0])

    def dtype(self) -> str:
        """The model's own dtype."""
        return str(self.get("dtype") or self.get("torch_dtype") or "bfloat16").removeprefix("torch.")

    def dtype_width(self) -> int:
        """Bytes of one element of the model's own dtype; 2 for a name that is not known."""
        return _WIDTHS.get(self.dtype(), 2)

    def kv_width(self) -> int:
        """Bytes of one element that "auto" stores: float32 models are served in 16 bits unless the engine is told."""
        return 2
