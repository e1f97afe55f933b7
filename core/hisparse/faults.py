"""From a mapping to a model, or to every fault that can be told at once, in words for the person who wrote it."""

import difflib
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic.alias_generators import to_camel
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from hisparse.errors import SpecError, SpecErrors
from hisparse.fields import IntOrText
from hisparse.rules import RULE_ERROR, Rule
from hisparse.units import shortened

# what a float holds to the last digit, and what JSON numbers are as well in most programs
_LARGEST: Final = 2**53
_Model = TypeVar("_Model", bound=BaseModel)
_Path: TypeAlias = tuple[str | int, ...]


def judged(model: type[_Model], raw: Mapping[str, object], root: str) -> _Model:
    """The model that the mapping holds. Raises SpecErrors; fields are told as paths below `root`."""
    # Through JSON, because that is what the API server sees: "8" is no number there, and a date is text.
    document = _whole(model, json.loads(json.dumps(raw, default=str)))
    nulls = list(_nulls(model, document, ()))
    faults = [(path, "null is no value; remove the line, or write one") for path, optional in nulls if not optional]
    # a default of the schema fills a null, so that one is as good as absent
    document = _without(document, [path for path, _ in nulls])
    try:
        sound = _validated(model, document)
    except ValidationError as error:
        faults = _all_faults(model, document, error, faults)
    else:
        if not faults:
            return sound
    raise SpecErrors(SpecError(_field(root, path), message) for path, message in faults)


def known(model: type[BaseModel], raw: Mapping[str, object], root: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The mapping without fields that the model does not have, and the paths of those below `root`."""
    document = json.loads(json.dumps(raw, default=str))
    paths = list(_strange(model, document, ()))
    return _without(document, paths), tuple(_field(root, path) for path in paths)


def _strange(model: type[BaseModel], value: object, path: _Path) -> Iterator[_Path]:
    if isinstance(value, list):
        for place, item in enumerate(value):
            yield from _strange(model, item, (*path, place))
    if not isinstance(value, dict):
        return
    blocks = {to_camel(name): list(_models(field.annotation)) for name, field in model.model_fields.items()}
    for step, given in value.items():
        if step not in blocks:
            yield (*path, step)
        elif len(blocks[step]) == 1:
            yield from _strange(blocks[step][0], given, (*path, step))


def _validated(model: type[_Model], document: object) -> _Model:
    return model.model_validate_json(json.dumps(document), by_alias=True, by_name=False)


def _whole(model: type[BaseModel], value: Any) -> Any:  # noqa: ANN401  JSON
    """The document with 1e6 and 8.0 as the whole numbers that they are for the API server.

    Only where a field of ours is a number or a quantity: what is passed on as it is (config.json, volumes) keeps its
    floats.
    """
    if isinstance(value, list):
        return [_whole(model, item) for item in value]
    if not isinstance(value, dict):
        return value
    found = dict(value)
    for name, field in model.model_fields.items():
        step = to_camel(name)
        given = found.get(step)
        if isinstance(given, float) and given.is_integer() and abs(given) < _LARGEST and _counts(field):
            found[step] = int(given)
        for block in _models(field.annotation):
            found |= {step: _whole(block, given)} if isinstance(given, dict | list) else {}
    return found


def _counts(field: object) -> bool:
    """Whether a field, or one branch of it, takes a whole number."""
    return field is int or isinstance(field, IntOrText) or any(_counts(part) for part in _parts(field))


def _parts(field: object) -> tuple[object, ...]:
    if isinstance(field, FieldInfo):
        return (field.annotation, *field.metadata)
    # of Annotated and of unions; a list or mapping of numbers is no number
    inner = (*getattr(field, "__args__", ()), *getattr(field, "__metadata__", ()))
    return () if getattr(field, "__origin__", None) in (list, dict) else inner


def _nulls(model: type[BaseModel], value: object, path: _Path) -> Iterator[tuple[_Path, bool]]:
    """Fields that are written and null, and whether the schema has a default for them."""
    if isinstance(value, list):
        for place, item in enumerate(value):
            yield from _nulls(model, item, (*path, place))
    if not isinstance(value, dict):
        return
    for name, field in model.model_fields.items():
        step = to_camel(name)
        if step in value and value[step] is None:
            yield (*path, step), field.default is not None and not field.is_required()
        for block in _models(field.annotation):
            yield from _nulls(block, value.get(step), (*path, step))


def _all_faults(
    model: type[BaseModel], document: object, error: ValidationError, known: list[tuple[_Path, str]]
) -> list[tuple[_Path, str]]:
    """Every fault: a block's rules are judged once all in it is sound, so look again without what is not."""
    faults = list(known)
    bad = [path for path, _ in known]
    new = [detail for detail in error.errors(include_url=False) if _heard(detail, bad)]
    while new:
        faults += [(_path(detail), _message(model, detail)) for detail in new]
        bad += [_path(detail) for detail in new]
        try:
            _validated(model, _without(json.loads(json.dumps(document)), bad))
        except ValidationError as again:
            new = [
                detail
                for detail in again.errors(include_url=False)
                if detail["type"] == RULE_ERROR and _heard(detail, bad)
            ]
        else:
            break
    return faults


def _heard(detail: ErrorDetails, bad: list[_Path]) -> bool:
    """Whether the fault is one of the object, and not of the holes that we made in it."""
    return _path(detail) not in bad and not _touches(detail, _path(detail), bad)


def _touches(detail: ErrorDetails, path: _Path, bad: list[_Path]) -> bool:
    """Whether a broken rule looks at a field that was left out, and so speaks of a hole that we made."""
    rule = detail.get("ctx", {}).get("rule")
    if not isinstance(rule, Rule):
        return False
    block = path[: len(path) - len(rule.field.split("."))] if rule.field else path
    names = [(*block, *name.split(".")) for name in rule.names()]
    if not names:
        return any(one[: len(block)] == block for one in bad)
    # A block that lost a field is still there, which is all that a rule asks; a list that lost an item is another.
    return any(
        name[: len(one)] == one or (one[: len(name)] == name and isinstance(one[len(name)], int))
        for name in names
        for one in bad
    )


def _without(raw: Any, paths: list[_Path]) -> Any:  # noqa: ANN401  JSON
    for path in sorted(paths, key=_depth_and_place, reverse=True):
        at = raw
        try:
            for step in path[:-1]:
                at = at[step]
            if path:
                del at[path[-1]]
        except (KeyError, IndexError, TypeError):
            continue
    return raw


def _depth_and_place(path: _Path) -> tuple[int, list[tuple[bool, int, str]]]:
    # later items of a list go first, so that earlier ones keep their place
    return len(path), [(isinstance(step, int), step if isinstance(step, int) else 0, str(step)) for step in path]


def _path(detail: ErrorDetails) -> _Path:
    return tuple(detail["loc"])


def _field(root: str, path: _Path) -> str:
    steps = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return f"{root}{steps}"


def _message(model: type[BaseModel], detail: ErrorDetails) -> str:
    """What to tell for an error that pydantic found itself; rules bring their own words."""
    kind, given = detail["type"], _shown(detail.get("input"))
    context = detail.get("ctx", {})
    path = _path(detail)
    if kind == RULE_ERROR:
        return str(context["message"])
    if kind == "missing":
        return f"is needed and not set; {_meaning(model, path)}"
    if kind == "extra_forbidden":
        return f"unknown field{nearest(str(path[-1]), _siblings(model, path))}"
    if kind == "enum":
        known = [word.strip("'") for word in str(context["expected"]).replace(" or ", ", ").split(", ")]
        return f"{given} is not known; set one of {', '.join(known)}{nearest(given.strip(chr(34)), known)}"
    if kind in _TYPES:
        return f"{given} is not {_TYPES[kind]}"
    if kind in _LENGTHS:
        limit = next(iter(context[key] for key in ("max_length", "min_length") if key in context))
        return f"{given} is {_LENGTHS[kind].format(limit=limit)}"
    return f"{given}: {detail['msg']}"


_TYPES: Final[Mapping[str, str]] = {
    "int_type": "a whole number; write digits without quotes, as in 8",
    "int_parsing": "a whole number; write digits without quotes, as in 8",
    "int_from_float": "a whole number; write digits without a point, as in 8",
    "int_parsing_size": "a whole number of 64 bits; write a smaller one",
    "string_type": 'text; put it in quotes, as in "0.33"',
    "bool_type": "true or false; write one of them without quotes",
    "list_type": "a list; start each item with a dash",
    "dict_type": "a block of fields; indent its fields below it",
    "model_type": "a block of fields; indent its fields below it",
    "model_attributes_type": "a block of fields; indent its fields below it",
}
_LENGTHS: Final[Mapping[str, str]] = {
    "string_too_long": "too long; {limit} characters are the most",
    "string_too_short": "too short; {limit} characters are the least",
    "too_long": "too many; {limit} are the most",
    "too_short": "too few; {limit} are the least",
}


def _shown(value: object) -> str:
    if isinstance(value, str):
        return f'"{shortened(value)}"'
    return shortened(json.dumps(value, default=str))


def nearest(name: str, known: list[str]) -> str:
    """What somebody may have meant, as the end of a message; empty where nothing is near."""
    folded = {other.lower(): other for other in known}
    close = difflib.get_close_matches(name.lower(), folded, n=1)
    return f'; did you mean "{folded[close[0]]}"?' if close else ""


def _meaning(model: type[BaseModel], path: _Path) -> str:
    """The next step where a field is not there: what it means, and what a block needs to hold."""
    block = _block(model, path[:-1])
    field = (
        next((field for name, field in block.model_fields.items() if to_camel(name) == path[-1]), None)
        if block
        else None
    )
    if field is None or not field.description:
        return "set it"
    meaning = _lowered(field.description)
    inner = next(_models(field.annotation), None)
    needs = [(to_camel(name), one) for name, one in inner.model_fields.items() if one.is_required()] if inner else []
    if not needs:
        return f"set it ({meaning})"
    told = ", ".join(f"{name} ({_lowered(one.description or name)})" for name, one in needs)
    return f"set its {told}"


def _lowered(description: str) -> str:
    """The first line of a docstring, inside a sentence."""
    line = description.split("\n", maxsplit=1)[0].rstrip(".")
    # GPUs and vLLM stay as they are
    return f"{line[0].lower()}{line[1:]}" if line[1:2].islower() else line


def _siblings(model: type[BaseModel], path: _Path) -> list[str]:
    block = _block(model, path[:-1])
    return [to_camel(name) for name in block.model_fields] if block else []


def _block(model: type[BaseModel], path: _Path) -> type[BaseModel] | None:
    """The model that stands at a path."""
    block = model
    for step in path:
        if isinstance(step, int):
            continue
        field = next((field for name, field in block.model_fields.items() if to_camel(name) == step), None)
        models = list(_models(field.annotation)) if field else []
        if not models:
            return None
        block = models[0]
    return block


def _models(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in getattr(annotation, "__args__", ()):
        yield from _models(inner)
