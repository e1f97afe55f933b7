"""One declaration, two judges: the API server (CEL in the CRD) and Python, with the same words.

A `Rule` holds an expression for the API server and a predicate for Python. As metadata of a field,
`Annotated[int, Between(1, 64, "...")]`, it judges the field's value; in `Strict.rules` it judges a whole block and
may point at one of its fields. pydantic runs the predicate, and the JSON schema carries the expression as
`x-kubernetes-validations`. `minimum`, `pattern` and the like are not used: the API server's words for them name
neither the limit's meaning nor the next step.

Messages are templates. `{self}` is the value; `{a.b}` is the value at that path below it, "not set" where absent;
`{name}` is a `Term` of the rule. A rule without an expression is judged by Python alone.
"""

import dataclasses
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Any, ClassVar, Final, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationError,
    model_validator,
)
from pydantic.alias_generators import to_camel, to_snake
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError, core_schema

from hisparse.errors import UnitError
from hisparse.units import exact_seconds, parse_quantity

RULE_ERROR: Final = "hisparse_rule"
VALIDATIONS: Final = "x-kubernetes-validations"
NOT_SET: Final = "not set"

_PLACEHOLDER = re.compile(r"\{([A-Za-z.]+)\}")


@dataclass(frozen=True)
class Term:
    """A word of a message that is worked out: a CEL expression of type string, and the same in Python."""

    cel: str
    python: Callable[[Any], object]


@dataclass(frozen=True, eq=False)  # typing needs metadata that hashes, and a rule is only ever itself
class Rule:
    """Something that has to hold; `holds` and `cel` say the same. `field` is where the fault is shown, below self.

    `must` is what holds where the rule does, without a value in it: for the reference, and what the API server says
    where the message itself fails. `reads` are paths that the rule looks at and its message does not name; see `names`.
    """

    cel: str | None
    message: str
    holds: Callable[[Any], bool]
    field: str = ""
    terms: Mapping[str, Term] = dataclasses.field(default_factory=lambda: MappingProxyType({}))
    reads: tuple[str, ...] = ()
    must: str = ""

    def fault(self, value: object) -> str | None:
        """The message, where the rule does not hold for this value."""
        return None if self.holds(value) else _PLACEHOLDER.sub(lambda found: self._word(found[1], value), self.message)

    def validation(self) -> dict[str, str] | None:
        """The rule as an entry of x-kubernetes-validations; None where only Python can judge it."""
        if self.cel is None:
            return None
        entry = {"rule": self.cel}
        names = [found[1] for found in _PLACEHOLDER.finditer(self.message)]
        entry["message"] = (names and self.must) or _PLACEHOLDER.sub("(value)", self.message)
        if names:
            # format() and not "+": the API server cannot tell how long string(self) is, and refuses the sum as too dear
            words = ", ".join(self.terms[name].cel if name in self.terms else _cel_word(name) for name in names)
            template = _PLACEHOLDER.sub("%s", self.message.replace("%", "%%"))
            entry["messageExpression"] = f"{cel_text(template)}.format([{words}])"
        if self.field:
            entry["fieldPath"] = f".{self.field}"
        return entry

    def names(self) -> tuple[str, ...]:
        """The paths that the rule looks at, below self: while one of them is itself at fault, the rule has no say."""
        paths = (found[1] for found in _PLACEHOLDER.finditer(self.message) if found[1] not in self.terms)
        return tuple(path for path in (self.field, *self.reads, *paths) if path and path != "self")

    def _word(self, name: str, value: object) -> str:
        if name in self.terms:
            return _text(self.terms[name].python(value))
        return _text(value if name == "self" else at_path(value, name))

    def _check(self, value: object) -> object:
        if (message := self.fault(value)) is not None:
            raise PydanticCustomError(RULE_ERROR, "{message}", {"message": message})
        return value

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return with_rules(handler(schema), (self,), handler)


class Strict(BaseModel):
    """A block of an object: frozen, camelCase outside, nothing unknown, and judged by `rules` as a whole."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        populate_by_name=True,
        use_attribute_docstrings=True,
        strict=True,
    )
    rules: ClassVar[tuple[Rule, ...]] = ()

    @model_validator(mode="after")
    def _judge(self) -> Self:
        # A ValidationError raised here is merged by pydantic with its locations, so that every broken rule is told.
        faults = [
            InitErrorDetails(
                type=PydanticCustomError(RULE_ERROR, "{message}", {"message": message, "rule": rule}),
                loc=tuple(rule.field.split(".")) if rule.field else (),
                input=None,
            )
            for rule in self.rules
            if (message := rule.fault(self)) is not None
        ]
        if faults:
            raise ValidationError.from_exception_data(type(self).__name__, faults)
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return with_rules(handler(schema), cls.rules, handler)


def with_rules(schema: JsonSchemaValue, rules: tuple[Rule, ...], handler: GetJsonSchemaHandler) -> JsonSchemaValue:
    """The schema with the rules that the API server can judge added to it."""
    entries = [entry for rule in rules if (entry := rule.validation()) is not None]
    if entries:
        # a field's rules belong to the field, not to the type that other fields share
        target = handler.resolve_ref_schema(schema)
        present = target.setdefault(VALIDATIONS, [])
        present.extend(entry for entry in entries if entry not in present)
    return schema


def at_path(value: object, path: str) -> object:
    """What stands at a camelCase path below a model or mapping; None where nothing does."""
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else getattr(value, to_snake(name), None)
        if value is None:
            break
    return value


def cel_text(text: str) -> str:
    """A CEL string literal."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def cel_list(texts: tuple[str, ...]) -> str:
    """A CEL list of strings."""
    return f"[{', '.join(cel_text(text) for text in texts)}]"


def cel_map(texts: Mapping[str, str]) -> str:
    """A CEL map from string to string."""
    return f"{{{', '.join(f'{cel_text(key)}: {cel_text(value)}' for key, value in texts.items())}}}"


def cel_has(*paths: str) -> str:
    """CEL for: every field on each of these paths below self is present."""
    steps: dict[str, None] = {}
    for path in paths:
        names = path.split(".")
        steps |= {f"has(self.{'.'.join(names[: end + 1])})": None for end in range(len(names))}
    return " && ".join(steps)


def cel_or(path: str, default: str) -> str:
    """CEL for: the value at this path below self, else the default."""
    return f"({cel_has(path)} ? self.{path} : {default})"


def _cel_word(path: str) -> str:
    if path == "self":
        return "string(self)"
    return f"({cel_has(path)} ? string(self.{path}) : {cel_text(NOT_SET)})"


def _text(value: object) -> str:
    if value is None:
        return NOT_SET
    if isinstance(value, bool | list):
        # as CEL writes them
        return json.dumps(value, ensure_ascii=False)
    return str(value.value if isinstance(value, Enum) else value)


def Between(low: int, high: int, advice: str) -> Rule:  # noqa: N802  reads as a type beside Annotated's others
    """A whole number from low to high."""
    return Rule(
        f"self >= {low} && self <= {high}",
        f"{{self}} is not between {low} and {high}; {advice}",
        lambda value: bool(low <= value <= high),
        must=f"{low} to {high}",
    )


def MultipleOf(step: int, advice: str) -> Rule:  # noqa: N802
    """A whole number of steps."""
    return Rule(
        f"self % {step} == 0",
        f"{{self}} is not a multiple of {step}; {advice}",
        lambda value: value % step == 0,
        must=f"a multiple of {step}",
    )


def Form(pattern: str, what: str, advice: str) -> Rule:  # noqa: N802
    """A text of one form. The pattern is RE2 without ^ and $: it always covers the whole text."""
    compiled = re.compile(pattern)
    return Rule(
        f"self.matches({cel_text(f'^(?:{pattern})$')})",
        f'"{{self}}" is not {what}; {advice}',
        lambda value: compiled.fullmatch(value) is not None,
        must=f"{what}; {advice}",
    )


def OneOf(known: tuple[str, ...], what: str) -> Rule:  # noqa: N802
    """One of a few texts, where the schema's own enum would not say what the field is about."""
    return Rule(
        f"self in {cel_list(known)}",
        f'"{{self}}" is not {what}; set one of {", ".join(known)}',
        lambda value: value in known,
        must=f"one of {', '.join(known)}",
    )


def ExactlyOne(fields: tuple[str, ...], advice: str) -> Rule:  # noqa: N802
    """A union: one of the block's fields is set, and only one."""
    count = " + ".join(f"(has(self.{name}) ? 1 : 0)" for name in fields)
    given = " + ".join(f"(has(self.{name}) ? [{cel_text(name)}] : [])" for name in fields)

    def present(value: object) -> list[str]:
        return [name for name in fields if at_path(value, name) is not None]

    return Rule(
        f"{count} == 1",
        f"exactly one of {', '.join(fields)} is needed, and {{given}} is set; {advice}",
        lambda value: len(present(value)) == 1,
        terms={"given": Term(given, present)},
        must=f"exactly one of {', '.join(fields)}",
    )


def AllOrNone(fields: tuple[str, ...], advice: str) -> Rule:  # noqa: N802
    """Fields that only mean something together."""
    first, *others = fields
    missing = " + ".join(f"(has(self.{name}) ? [] : [{cel_text(name)}])" for name in fields)

    def absent(value: object) -> list[str]:
        return [name for name in fields if at_path(value, name) is None]

    return Rule(
        # has() of a field is a bool of its own, so that two of them compare
        " && ".join(f"has(self.{first}) == has(self.{other})" for other in others),
        f"{' and '.join(fields)} are set together, and {{missing}} is not set; {advice}",
        lambda value: len(absent(value)) in (0, len(fields)),
        terms={"missing": Term(missing, absent)},
        must=f"{' and '.join(fields)} together",
    )


def NotAbove(low: str, high: str, advice: str) -> Rule:  # noqa: N802
    """One count of the block is at most another; judged where both are set."""

    def holds(value: object) -> bool:
        small, large = at_path(value, low), at_path(value, high)
        return not isinstance(small, int) or not isinstance(large, int) or small <= large

    return Rule(
        f"!({cel_has(low, high)}) || self.{low} <= self.{high}",
        f"{{{low}}} is above {high}, which is {{{high}}}; {advice}",
        holds,
        field=low,
        must=f"{low} at most {high}",
    )


_POSITIVE_QUANTITY: Final = 'isQuantity(string(self)) && quantity(string(self)).compareTo(quantity("0")) > 0'


def IsQuantity(advice: str) -> Rule:  # noqa: N802
    """A Kubernetes quantity above zero."""
    return Rule(
        _POSITIVE_QUANTITY,
        f'"{{self}}" is not a quantity above 0; {advice}',
        lambda value: (_quantity(value) or 0) > 0,
        must=f"a quantity above 0; {advice}",
    )


def AtLeastQuantity(least: str, advice: str) -> Rule:  # noqa: N802
    """A quantity that is not so small that its unit must have been forgotten; other faults are IsQuantity's."""

    def holds(value: str) -> bool:
        count = _quantity(value)
        return count is None or count <= 0 or count >= parse_quantity(least)

    return Rule(
        f"!({_POSITIVE_QUANTITY}) || quantity(string(self)).compareTo(quantity({cel_text(least)})) >= 0",
        f'"{{self}}" is less than {least}, and a number without a unit counts bytes; {advice}',
        holds,
        must=f"at least {least}",
    )


# four parts of five digits stay within the 64 bits of duration()
_DURATION_FORM: Final = r"(?:[0-9]{1,5}(?:\.[0-9]{1,3})?(?:ms|s|m|h)){1,4}"


def cel_is_duration(path: str = "") -> str:
    """CEL for: the text at this path below self has the form of a duration, so that duration() will not fail on it."""
    return f"self{path and f'.{path}'}.matches({cel_text(f'^{_DURATION_FORM}$')})"


def DurationBetween(low: str, high: str, advice: str) -> tuple[Rule, Rule]:  # noqa: N802
    """Go duration text within bounds, as two rules: its form, then its size."""
    least, most = exact_seconds(low), exact_seconds(high)
    compiled = re.compile(_DURATION_FORM)

    def within(value: str) -> bool:
        return compiled.fullmatch(value) is None or least <= exact_seconds(value) <= most

    return (
        Form(_DURATION_FORM, "a duration", 'write numbers with the units h, m, s or ms, as in "15m" or "1h30m"'),
        Rule(
            f'!{cel_is_duration()} || (duration(self) >= duration("{low}") && duration(self) <= duration("{high}"))',
            f'"{{self}}" is not between {low} and {high}; {advice}',
            within,
            must=f"{low} to {high}",
        ),
    )


def NotLonger(low: str, high: str, why: str) -> Rule:  # noqa: N802
    """One duration of the block is at most another; judged where both are set."""

    def holds(block: object) -> bool:
        short, long = at_path(block, low), at_path(block, high)
        return not isinstance(short, str) or not isinstance(long, str) or exact_seconds(short) <= exact_seconds(long)

    return Rule(
        f"!({cel_has(low, high)}) || !{cel_is_duration(low)} || !{cel_is_duration(high)}"
        f" || duration(self.{low}) <= duration(self.{high})",
        f"{{{high}}} is shorter than {low}, which is {{{low}}}; {why}",
        holds,
        field=high,
        must=f"{high} at least {low}",
    )


def _quantity(value: object) -> int | None:
    try:
        return parse_quantity(str(value))
    except UnitError:
        return None
