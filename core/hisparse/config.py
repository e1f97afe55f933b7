"""A Hugging Face config.json seen through model.facts: the fact wins, then the config, then the default.

Fields of the language model may be nested under text_config or llm_config.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, TypeVar

from hisparse.errors import SpecError
from hisparse.spec import ModelFactsSpec

LARGEST: Final = 16_777_216
"""More than any field of a config.json: positions are the largest that models have."""

Word = TypeVar("Word")

DTYPE_BYTES: Final[Mapping[str, int]] = MappingProxyType(
    {"float32": 4, "float": 4, "bfloat16": 2, "float16": 2, "half": 2}
)
"""Bytes of one element of the dtypes that a config.json names for what is not quantised."""


def nested_model(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The language model's part of a config.json that wraps one; None where it is the file itself."""
    nested = config.get("text_config") or config.get("llm_config")
    return nested if isinstance(nested, Mapping) else None


def in_turns(layers: int, every: int, other: str) -> tuple[str, ...]:
    """layer_types of a model whose every n-th layer is full attention and whose rest is `other`."""
    return tuple(other if (index + 1) % every else "full_attention" for index in range(layers))


def of_each_layer(words: Sequence[Word], layers: int, key: str = "layer_types") -> tuple[Word, ...]:
    """One word (or flag) for each of the backbone's layers. Raises SpecError where `key` has too few."""
    if len(words) < layers:
        raise SpecError(
            "spec.model.config",
            f"{key} names {len(words)} of {layers} layers; put the model's whole config.json here",
        )
    return tuple(words[:layers])


class ConfigFields:
    """One config.json. Every fault is a SpecError that names the model.facts entry which would supply the value."""

    def __init__(self, config: Mapping[str, Any], facts: ModelFactsSpec | None = None) -> None:
        nested = nested_model(config)
        self._top = config
        self.text: Mapping[str, Any] = config if nested is None else nested
        self._facts: Mapping[str, Any] = (facts or ModelFactsSpec()).model_dump(by_alias=True, exclude_none=True)

    def get(self, key: str) -> Any:  # noqa: ANN401 - whatever JSON holds
        """The value of `key`, None where it is absent or null."""
        value = self.text.get(key)
        return self._top.get(key) if value is None else value

    def first(self, *keys: str) -> Any:  # noqa: ANN401 - whatever JSON holds
        """The value of the first key that is not null."""
        return next((value for key in keys if (value := self.get(key)) is not None), None)

    def fact(self, name: str) -> Any:  # noqa: ANN401 - whatever the spec's schema lets through
        """What model.facts says, None where it says nothing."""
        return self._facts.get(name)

    def number(self, key: str, fact: str, *, default: int | None = None, least: int | None = None) -> int:
        """A count of at least 0 (at least 1 where there is no default), and no larger than any model has."""
        value = self._facts.get(fact, self.get(key))
        if value is None:
            value = default
        lowest = least if least is not None else (1 if default is None else 0)
        if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= LARGEST:
            wanted = f"a whole number from {lowest} to {LARGEST}"
            said = "is missing from" if value is None else f"is {value!r}, not {wanted}, in"
            raise SpecError(f"spec.model.facts.{fact}", f"{key} {said} the model's config.json; set it here")
        return value

    def whole(self, key: str, *, default: int | None = None, least: int = 0) -> int:
        """A count that model.facts has no entry for."""
        value = self.get(key)
        if value is None:
            value = default
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= LARGEST:
            said = "is missing" if value is None else f"is {value!r}, not a whole number of at least {least}"
            raise SpecError("spec.model.config", f"{key} {said}; put the model's whole config.json here")
        return value

    def count(self, *keys: str, default: int | None = None) -> int:
        """A whole number of the first key that is not null: from 0, or from 1 where there is no default."""
        found = next((key for key in keys if self.get(key) is not None), keys[0])
        return self.whole(found, default=default, least=1 if default is None else 0)

    def widest(self, *keys: str) -> int | None:
        """The same for fields that may also be a list with a number for each layer: the largest. None where absent."""
        found = next((key for key in keys if self.get(key) is not None), None)
        if found is None:
            return None
        value = self.get(found)
        if not isinstance(value, list | tuple):
            return self.whole(found)
        numbers = [one for one in value if isinstance(one, int) and not isinstance(one, bool) and 0 <= one <= LARGEST]
        if not numbers or len(numbers) < len(value):
            raise SpecError("spec.model.config", f"{found} is {value!r}, not whole numbers; put its config.json here")
        return max(numbers)

    def flag(self, *keys: str, default: bool) -> bool:
        """True or false; what is neither is passed over."""
        return next((value for key in keys if isinstance(value := self.get(key), bool)), default)

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

    def dtype_bytes(self) -> int | None:
        """Bytes of one element of the model's own dtype; None for a name that is not known."""
        return DTYPE_BYTES.get(self.dtype())
