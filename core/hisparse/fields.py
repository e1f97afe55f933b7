"""Types of single fields: a form, its rule and its words, used by the blocks of `hisparse.spec`."""

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, TypeAlias

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from hisparse.reserved import (
    ENGINE_CONTAINER,
    FLAG_NAME_CEL,
    RESERVED_ENV,
    RESERVED_FLAGS,
    RESERVED_KEY_PREFIXES,
    RESERVED_NAME_PREFIX,
    RESERVED_PATHS,
    check_argument,
    flag_name,
)
from hisparse.rules import (
    AtLeastQuantity,
    Between,
    Form,
    IsQuantity,
    Rule,
    Term,
    cel_list,
    cel_map,
    cel_text,
)

_MAX_MAP: Final = 64
MAX_CONFIG_BYTES: Final = 256 * 1024


class IntOrText:
    """A quantity in YAML may be a bare number; inside it is always text."""

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(
            lambda value: str(value) if type(value) is int else value,
            core_schema.str_schema(strict=True, max_length=64),
        )

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {
            "x-kubernetes-int-or-string": True,
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "maxLength": 64,
        }


class _FreeForm:
    """A Kubernetes object passed on as it is; only the fields that the operator judges are declared."""

    def __init__(self, **declared: JsonSchemaValue) -> None:
        self.declared = declared

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        fields = {
            name: core_schema.typed_dict_field(
                core_schema.str_schema(strict=True, max_length=schema["maxLength"], min_length=1)
            )
            for name, schema in self.declared.items()
        }
        return core_schema.typed_dict_schema(fields, extra_behavior="allow") if fields else handler(source)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        free: JsonSchemaValue = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        if self.declared:
            free |= {"properties": dict(self.declared), "required": sorted(self.declared)}
        return free


def _text(longest: int) -> JsonSchemaValue:
    return {"type": "string", "minLength": 1, "maxLength": longest}


_CONTROL: Final = r"\x00-\x1f\x7f"
NoNul: Final = Rule(
    r'!self.contains("\u0000")',
    "holds a NUL, which no process can be given; remove it",
    lambda text: "\0" not in text,
    must="no NUL",
)

_BINARY: Final = 'write a number and, without a space, Ki, Mi, Gi or Ti, as in "200Gi"'
FreeForm: TypeAlias = Annotated[dict[str, Any], _FreeForm()]
Positive: TypeAlias = Annotated[int, Between(1, 2**53 - 1, "set a whole number above 0")]
Layers: TypeAlias = Annotated[int, Between(1, 1024, "set the number that the model's config.json gives")]
Count: TypeAlias = Annotated[int, Between(0, 1024, "set the number that the model's config.json gives")]
Width: TypeAlias = Annotated[int, Between(1, 1_048_576, "set the number that the model's config.json gives")]

_DNS_LABEL: Final = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
ObjectName: TypeAlias = Annotated[
    str,
    Field(max_length=253),
    Form(
        rf"{_DNS_LABEL}(?:\.{_DNS_LABEL})*",
        "the name of an object",
        'write lower-case letters, digits and "-", as in "model-weights"',
    ),
]
AbsolutePath: TypeAlias = Annotated[
    str,
    Field(max_length=1024),
    Form(rf"/(?:[^/:\s{_CONTROL}]+/?)*", "an absolute path", 'start it with "/", as in "/mnt/models/glm-5.3"'),
    Rule(
        '!self.split("/").exists(part, part == "..")',
        '"{self}" leads upwards; write the path without ".."',
        lambda value: ".." not in value.split("/"),
        must='without ".."',
    ),
]
RelativePath: TypeAlias = Annotated[
    str,
    Field(max_length=1024),
    Form(
        rf"[^/:\s{_CONTROL}]+(?:/[^/:\s{_CONTROL}]+)*/?",
        "a path inside the volume",
        'write it without a leading "/", as in "glm-5.3"',
    ),
    Rule(
        '!self.split("/").exists(part, part == "..")',
        '"{self}" leads out of the volume; write the path without ".."',
        lambda value: ".." not in value.split("/"),
        must='without ".."',
    ),
]
LabelValue: TypeAlias = Annotated[
    str,
    Field(max_length=63),
    Form(
        r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?)?",
        "the value of a label",
        'write letters, digits, "-", "_" and ".", with a letter or digit at both ends',
    ),
]
_LABEL_KEY: Final = r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_LABEL_KEY_FORM: Final = re.compile(_LABEL_KEY)


def _no_key(keys: Mapping[str, object]) -> list[str]:
    return [key for key in keys if _LABEL_KEY_FORM.fullmatch(key) is None]


_KEY_MATCHES: Final = f"key.matches({cel_text(f'^{_LABEL_KEY}$')})"
# JSON schema has propertyNames for this; a structural schema has not.
LabelKeys: Final = Rule(
    f"self.all(key, {_KEY_MATCHES})",
    '{wrong} is not a key; write name or domain/name, as in "example.com/team"',
    lambda keys: not _no_key(keys),
    terms={"wrong": Term(f"self.map(key, !{_KEY_MATCHES}, key)", _no_key)},
    must="keys are name or domain/name",
)
Tokens: TypeAlias = Annotated[int, Between(1, 16_777_216, "set a number of tokens, for example 1048576")]
Sequences: TypeAlias = Annotated[int, Between(1, 4096, "set how many requests may run at once")]
Parallel: TypeAlias = Annotated[int, Between(1, 64, "set how many ways the model is split")]
Memory: TypeAlias = Annotated[
    str, IntOrText(), IsQuantity(_BINARY), AtLeastQuantity("1Gi", "add the unit, for example 200Gi")
]


def _reserved_flag(argument: str) -> bool:
    return argument.startswith("-") and flag_name(argument) in RESERVED_FLAGS


Argument: TypeAlias = Annotated[
    str,
    Field(max_length=4096),
    NoNul,
    Rule(
        f'!self.startsWith("-") || !({FLAG_NAME_CEL} in {cel_list(tuple(RESERVED_FLAGS))})',
        '"{name}" {why}',
        lambda argument: not _reserved_flag(argument),
        must="none that the operator owns or that vLLM does not know (core/hisparse/reserved.py)",
        terms={
            "name": Term(FLAG_NAME_CEL, flag_name),
            "why": Term(
                f"{cel_map(RESERVED_FLAGS)}[{FLAG_NAME_CEL}]",
                lambda argument: RESERVED_FLAGS[flag_name(argument)],
            ),
        },
    ),
    # The API server cannot know which abbreviations vLLM's parser completes; the operator says this.
    Rule(
        None,
        "{why}",
        lambda argument: _reserved_flag(argument) or check_argument(argument) is None,
        terms={"why": Term("", check_argument)},
    ),
    Rule(
        r'!self.matches("^-[^= ]* ")',
        '"{self}" is a flag and its value in one item, which the engine reads as one word; '
        'make two items of it, or write "--flag=value"',
        lambda argument: not (argument.startswith("-") and " " in argument.split("=")[0]),
        must='a flag and its value are two items, or "--flag=value"',
    ),
]


def OwnKeys(what: str) -> Rule:  # noqa: N802  reads as a type beside Annotated's others
    """Keys of labels or annotations outside the operator's prefixes."""
    mine = " || ".join(f'key.startsWith("{prefix}")' for prefix in RESERVED_KEY_PREFIXES)

    def taken(value: Mapping[str, str]) -> list[str]:
        return [key for key in value if key.startswith(RESERVED_KEY_PREFIXES)]

    return Rule(
        f"!self.exists(key, {mine})",
        f"{{taken}} belongs to the operator; remove it, or use {what} of your own domain",
        lambda value: not taken(value),
        terms={"taken": Term(f"self.map(key, {mine}, key)", taken)},
        must=f"no key that begins with {', '.join(RESERVED_KEY_PREFIXES)}",
    )


_MOUNT_TAKEN: Final = " || ".join(
    f'self.mountPath == "{path}" || self.mountPath.startsWith("{path}/")'
    f' || "{path}".startsWith(self.mountPath.endsWith("/") ? self.mountPath : self.mountPath + "/")'
    for path in RESERVED_PATHS
)


def _mount_taken(mount: Mapping[str, Any]) -> bool:
    where = mount["mountPath"]
    above = where if where.endswith("/") else f"{where}/"
    return any(where == path or where.startswith(f"{path}/") or path.startswith(above) for path in RESERVED_PATHS)


def _own_name(what: str) -> Rule:
    return Rule(
        f'!self.name.startsWith("{RESERVED_NAME_PREFIX}") && self.name != "{ENGINE_CONTAINER}"',
        f'the name "{{name}}" belongs to the operator; give the {what} another',
        lambda value: not value["name"].startswith(RESERVED_NAME_PREFIX) and value["name"] != ENGINE_CONTAINER,
        must=f"name neither {ENGINE_CONTAINER} nor {RESERVED_NAME_PREFIX}...",
    )


VolumeObject: TypeAlias = Annotated[dict[str, Any], _FreeForm(name=_text(63)), _own_name("volume")]
ContainerObject: TypeAlias = Annotated[dict[str, Any], _FreeForm(name=_text(63)), _own_name("container")]
MountObject: TypeAlias = Annotated[
    dict[str, Any],
    _FreeForm(name=_text(63), mountPath=_text(1024)),
    Rule(
        f"!({_MOUNT_TAKEN})",
        f'the path "{{mountPath}}" belongs to the operator ({", ".join(RESERVED_PATHS)}); mount it elsewhere',
        lambda mount: not _mount_taken(mount),
        must=f"mountPath neither in nor above {', '.join(RESERVED_PATHS)}",
    ),
    Rule(
        '!self.mountPath.contains("//")',
        'the path "{mountPath}" has "//" in it; write it with single "/"',
        lambda mount: "//" not in mount["mountPath"],
        must='no "//" in mountPath',
    ),
    _own_name("volume that is mounted"),
    Rule(
        'self.mountPath.startsWith("/")',
        'the path "{mountPath}" is not absolute; start it with "/"',
        lambda mount: bool(mount["mountPath"].startswith("/")),
        must="mountPath is absolute",
    ),
]


def _config_bytes(value: Any) -> int:  # noqa: ANN401  a config.json holds anything
    return len(json.dumps(value, separators=(",", ":"), default=str))


ModelConfig: TypeAlias = Annotated[
    dict[str, Any],
    _FreeForm(),
    Rule(
        None,
        f"{{size}} bytes are more than a config.json of {MAX_CONFIG_BYTES} bytes; "
        "keep the fields that describe the model",
        lambda value: _config_bytes(value) <= MAX_CONFIG_BYTES,
        terms={"size": Term("", _config_bytes)},
    ),
]
EnvName: TypeAlias = Annotated[
    str,
    Field(max_length=253),
    Form(r"[A-Za-z_][A-Za-z0-9_]*", "the name of a variable", 'write letters, digits and "_"'),
    Rule(
        f"!(self in {cel_list(tuple(RESERVED_ENV))})",
        '"{self}" {why}',
        lambda name: name not in RESERVED_ENV,
        must="none that the operator owns (core/hisparse/reserved.py)",
        terms={"why": Term(f"{cel_map(RESERVED_ENV)}[self]", lambda name: RESERVED_ENV[name])},
    ),
]

NodeSelector: TypeAlias = Annotated[dict[str, LabelValue], Field(max_length=_MAX_MAP), LabelKeys]
Labels: TypeAlias = Annotated[dict[str, LabelValue], Field(max_length=_MAX_MAP), LabelKeys, OwnKeys("a label")]
Annotations: TypeAlias = Annotated[
    dict[str, Annotated[str, Field(max_length=16_384)]],
    Field(max_length=_MAX_MAP),
    LabelKeys,
    OwnKeys("an annotation"),
]
