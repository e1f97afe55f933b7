"""Write crds/ from the models of the core: the three CRDs, and a reference of their fields. And what else comes from
tables: docs/node-checks.md, docs/troubleshooting.md and the operator's roles.

    python -m hisparse_toolkit.generate [CRDS [DOCS [DEPLOY]]]

What pydantic emits is not yet what an API server accepts; `Structural` closes the gap and refuses what has no
structural form, so that a mistake shows here and not at `kubectl apply`.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from hisparse.nodes import policy, report
from hisparse.rules import VALIDATIONS, Rule
from hisparse.spec import GROUP, KIND, NAME_RULES, PLURAL, VERSION, HiSparseInferenceSpec
from hisparse.status import HiSparseInferenceStatus
from hisparse_toolkit import node_checks_page, rbac, troubleshooting_page

REFERENCE_FILE: Final = "README.md"

Column = tuple[str, str, str, int]
"""Heading, type, path and priority of a column of `kubectl get`; 1 shows it with -o wide only."""

_AGE: Final[Column] = ("Age", "date", ".metadata.creationTimestamp", 0)


def _condition(wanted: str, part: str) -> str:
    return f'.status.conditions[?(@.type=="{wanted}")].{part}'


@dataclass(frozen=True)
class Resource:
    """One kind: its models and what a list of it shows. spec None: the object has a status and nothing else."""

    kind: str
    plural: str
    short_name: str
    scope: str
    source: str
    spec: type[BaseModel] | None
    status: type[BaseModel]
    columns: tuple[Column, ...]
    scales: bool = False
    name_rules: tuple[Rule, ...] = ()

    @property
    def file(self) -> str:
        """Name of its file below crds/."""
        return f"{GROUP}_{self.plural}.yaml"


INFERENCE: Final = Resource(
    kind=KIND,
    plural=PLURAL,
    short_name="hsi",
    scope="Namespaced",
    source="core/hisparse/spec.py",
    spec=HiSparseInferenceSpec,
    status=HiSparseInferenceStatus,
    columns=(
        ("Ready", "string", _condition("Ready", "status"), 0),
        ("Reason", "string", _condition("Ready", "reason"), 0),
        ("Replicas", "integer", ".status.readyReplicas", 0),
        ("Model", "string", ".status.model", 0),
        ("Context", "integer", ".spec.context.maxTokens", 0),
        ("Tier", "string", ".status.mode.effective", 0),
        ("Pool", "string", ".status.plan.hostPool", 0),
        ("MaxConc", "string", ".status.plan.maxConcurrencyAtMaxTokens", 0),
        _AGE,
        ("Nodes", "string", _condition("Degraded", "reason"), 1),
        ("Endpoint", "string", ".status.endpoint.url", 1),
        ("Revision", "string", ".status.currentRevision", 1),
    ),
    scales=True,
    name_rules=NAME_RULES,
)

NODE: Final = Resource(
    kind=report.KIND,
    plural=report.PLURAL,
    short_name="hsn",
    scope="Cluster",
    source="core/hisparse/nodes/report.py",
    spec=None,
    status=report.HiSparseNodeStatus,
    columns=(
        ("State", "string", ".status.state", 0),
        ("Faults", "integer", ".status.faults", 0),
        ("GPUs", "integer", ".status.gpus", 0),
        ("Driver", "string", ".status.inventory.driver", 0),
        ("Observed", "date", ".status.observedAt", 0),
        _AGE,
        ("Reason", "string", _condition("Healthy", "reason"), 1),
        ("Policy", "string", ".status.policy", 1),
        ("PutBack", "string", _condition("PutBack", "reason"), 1),
        ("Muted", "string", _condition("Muted", "status"), 1),
        ("Agent", "string", ".status.agentVersion", 1),
    ),
)

POLICY: Final = Resource(
    kind=policy.KIND,
    plural=policy.PLURAL,
    short_name="hsnp",
    scope="Cluster",
    source="core/hisparse/nodes/policy.py",
    spec=policy.HiSparseNodePolicySpec,
    status=policy.PolicyStatus,
    columns=(
        ("DryRun", "boolean", ".spec.dryRun", 0),
        ("Accepted", "string", _condition("Accepted", "status"), 0),
        ("InForce", "string", _condition("InForce", "reason"), 0),
        ("Nodes", "integer", ".status.selected", 0),
        ("Breaker", "string", _condition("BreakerClosed", "reason"), 0),
        _AGE,
    ),
)

RESOURCES: Final = (INFERENCE, NODE, POLICY)
CRD_FILE: Final = INFERENCE.file

# What the API server takes in a structural schema, as far as we use it; anything else is an error here.
_KEYS: Final = frozenset(
    {
        "type", "format", "enum", "description", "default", "items", "properties", "additionalProperties", "required",
        "anyOf", "minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties",
        "x-kubernetes-int-or-string", "x-kubernetes-list-type", "x-kubernetes-list-map-keys",
        "x-kubernetes-preserve-unknown-fields", VALIDATIONS,
    }
)  # fmt: skip


class NotStructuralError(Exception):
    """A model has no form that an API server accepts; the message holds the path and what to use instead."""


class Structural(GenerateJsonSchema):
    """JSON schema as the API server wants it: no null, no defaults of None, enums in place of const."""

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        """An optional field is one that may be absent; an explicit null is refused."""
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        """Absent stays absent: only a real value becomes a default of the schema."""
        if schema.get("default") is None:
            return self.generate_inner(schema["schema"])
        return super().default_schema(schema)

    def literal_schema(self, schema: core_schema.LiteralSchema) -> JsonSchemaValue:
        """One word or many, it is an enum of texts."""
        return {"type": "string", "enum": [str(word) for word in schema["expected"]]}

    def timedelta_schema(self, schema: core_schema.TimedeltaSchema) -> JsonSchemaValue:  # noqa: ARG002  pydantic calls it so
        """A duration is Go text; pydantic would write ISO 8601, which the API server refuses."""
        raise NotStructuralError("timedelta has no structural form; use text and hisparse.rules.DurationBetween")


def structural(model: type[BaseModel]) -> JsonSchemaValue:
    """The structural schema of a model, references put in place."""
    raw = model.model_json_schema(by_alias=True, schema_generator=Structural, mode="validation")
    return _shaped(raw, raw.get("$defs", {}), model.__name__, ())


def _shaped(
    node: Mapping[str, Any], definitions: Mapping[str, Any], path: str, seen: tuple[str, ...]
) -> JsonSchemaValue:
    if reference := node.get("$ref"):
        name = reference.rsplit("/", 1)[-1]
        if name in seen:
            raise NotStructuralError(f"{path}: {name} contains itself; a structural schema has an end")
        # what the field says of itself wins over what its type says
        node = {**definitions[name], **{key: value for key, value in node.items() if key != "$ref"}}
        seen = (*seen, name)
    shaped: JsonSchemaValue = {}
    for key, value in node.items():
        if key in ("$defs", "title") or (key == "additionalProperties" and isinstance(value, bool)):
            continue  # unknown fields are refused by strict clients and pruned by the server
        if key not in _KEYS:
            raise NotStructuralError(f"{path}: {key} is no part of a structural schema")
        match key:
            case "properties":
                shaped[key] = {name: _shaped(one, definitions, f"{path}.{name}", seen) for name, one in value.items()}
            case "items" | "additionalProperties":
                shaped[key] = _shaped(value, definitions, f"{path}[]", seen)
            case "description":
                shaped[key] = " ".join(value.split())
            case _:
                shaped[key] = value
    return _completed(shaped, path)


def _completed(node: JsonSchemaValue, path: str) -> JsonSchemaValue:
    if node.get("x-kubernetes-int-or-string"):
        return node
    if "anyOf" in node or "type" not in node:
        raise NotStructuralError(f"{path}: a union; use one optional field per case and ExactlyOne")
    if node["type"] == "integer":
        node["format"] = "int64"
    if node["type"] == "array":
        node.setdefault("x-kubernetes-list-type", "atomic")
    return node


def crd(resource: Resource = INFERENCE) -> dict[str, Any]:
    """The CustomResourceDefinition of a kind."""
    schema = _root(resource)
    subresources: dict[str, Any] = {"status": {}}
    if resource.scales:
        subresources["scale"] = {
            "specReplicasPath": ".spec.replicas",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{resource.plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": resource.scope,
            "names": {
                "kind": resource.kind,
                "listKind": f"{resource.kind}List",
                "plural": resource.plural,
                "singular": resource.kind.lower(),
                "shortNames": [resource.short_name],
                "categories": ["inference"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": subresources,
                    "additionalPrinterColumns": [
                        {"name": name, "type": kind, "jsonPath": path} | ({"priority": level} if level else {})
                        for name, kind, path, level in resource.columns
                    ],
                    "schema": {"openAPIV3Schema": schema},
                }
            ],
        },
    }


def _root(resource: Resource) -> dict[str, Any]:
    """The schema of a whole object."""
    status = structural(resource.status)
    spec = structural(resource.spec) if resource.spec else None
    root: dict[str, Any] = {"description": (spec or status)["description"], "type": "object"}
    if spec is not None:
        root["required"] = ["spec"]
    root["properties"] = {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"type": "object"},
        **({"spec": spec} if spec is not None else {}),
        "status": status,
    }
    if resource.name_rules:
        root[VALIDATIONS] = [rule.validation() for rule in resource.name_rules]
    return root


def crd_text(resource: Resource = INFERENCE) -> str:
    """The CRD as a file."""
    header = f"# Generated by `make generate` from {resource.source}. Do not edit.\n"
    return header + yaml.dump(crd(resource), Dumper=_Plain, sort_keys=False, allow_unicode=True, width=110)


class _Plain(yaml.SafeDumper):
    """Lists indented below their key, and no anchors for parts that occur twice."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002
        super().increase_indent(flow, False)  # noqa: FBT003


def reference() -> str:
    """Every field of the CRDs as tables: path, type, rule, meaning."""
    lines = ["<!-- Generated by `make generate` from core/hisparse. Do not edit. -->"]
    for resource in RESOURCES:
        lines += [*_chapter(resource), ""]
    return "\n".join(lines[:-1]) + "\n"


def _chapter(resource: Resource) -> list[str]:
    schema = crd(resource)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    subresources = "subresources `status` and `scale`" if resource.scales else "subresource `status`"
    scope = "" if resource.scope == "Namespaced" else " Cluster scoped;"
    lines = [
        f"# {resource.kind} (`{GROUP}/{VERSION}`)",
        "",
        f"{schema['description']}{scope} {'Short' if not scope else 'short'} name `{resource.short_name}`; "
        f"{subresources}.",
    ]
    lines += _NOTES[resource.kind]
    if resource.name_rules:
        name = {
            "type": "string",
            "description": "Name of the object and of its Service.",
            VALIDATIONS: schema[VALIDATIONS],
        }
        lines += ["", "## metadata", *_HEADING, _row("metadata.name", name, required=True)]
    for part in (one for one in ("spec", "status") if one in schema["properties"]):
        lines += ["", f"## {part}", *_HEADING]
        lines += [
            _row(path, node, required=required) for path, node, required in _fields(part, schema["properties"][part])
        ]
    return lines


_HEADING: Final = ("| field | type | rule | meaning |", "|---|---|---|---|")
_NOTES: Final[Mapping[str, tuple[str, ...]]] = {
    INFERENCE.kind: (
        "",
        "Quantities are Kubernetes quantities (`200Gi`), durations Go text (`15m`), counts of tokens whole numbers.",
        "An optional field that is absent is worked out, and `status.plan` shows what came out.",
    ),
    NODE.kind: ("", "Named as its node and written by the node agent. Values that change all the time are metrics."),
    POLICY.kind: (
        "",
        "Of two policies that select one node the older is in force; where it cannot be used, nothing is done there.",
    ),
}


def _fields(path: str, node: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any], bool]]:
    if rules := [rule for rule in node.get(VALIDATIONS, ()) if node.get("properties") and path.count(".") == 0]:
        yield path, {"type": "object", VALIDATIONS: rules, "description": node.get("description", "")}, True
    needed = node.get("required", ())
    for name, child in node.get("properties", {}).items():
        yield f"{path}.{name}", child, name in needed
        yield from _fields(f"{path}.{name}", child)
    items = node.get("items")
    if isinstance(items, dict) and "properties" in items:
        yield from _fields(f"{path}[]", items)


def _row(path: str, node: Mapping[str, Any], *, required: bool) -> str:
    words = ["**required**"] if required and not path.startswith("status") else []
    if "default" in node:
        words.append(f"default {json.dumps(node['default'])}")
    words += [_escaped(f"one of {', '.join(node['enum'])}")] if "enum" in node else []
    own = (
        node.get(VALIDATIONS, []),
        *(node.get(key, {}).get(VALIDATIONS, []) for key in ("items", "additionalProperties")),
    )
    words += [_escaped(rule["message"]) for rules in own for rule in rules]
    return f"| `{path}` | {_type(node)} | {'<br>'.join(words)} | {_escaped(node.get('description', ''))} |"


def _type(node: Mapping[str, Any]) -> str:
    if node.get("x-kubernetes-int-or-string"):
        return "quantity"
    if node["type"] == "array":
        return f"list of {_type(node['items'])}"
    if "additionalProperties" in node:
        return f"map of {_type(node['additionalProperties'])}"
    if node.get("x-kubernetes-preserve-unknown-fields"):
        return "free-form object"
    return str(node["type"])


def _escaped(text: str) -> str:
    return text.replace("|", r"\|").replace("<", "&lt;")


def write(directory: Path) -> None:
    """Write all files."""
    directory.mkdir(parents=True, exist_ok=True)
    for resource in RESOURCES:
        (directory / resource.file).write_text(crd_text(resource), encoding="utf-8")
    (directory / REFERENCE_FILE).write_text(reference(), encoding="utf-8")


def write_pages(directory: Path) -> None:
    """Write the pages that come from tables of the core and of the operator."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / node_checks_page.FILE).write_text(node_checks_page.page(), encoding="utf-8")
    (directory / troubleshooting_page.FILE).write_text(troubleshooting_page.page(), encoding="utf-8")


def write_roles(directory: Path) -> None:
    """Write the roles of the operator."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / rbac.FILE).write_text(rbac.text(), encoding="utf-8")


_PLACES: Final = ("crds", "docs", "operator/deploy")


def main() -> None:
    """Write the generated files below the directories given, or into those of the working directory."""
    crds, docs, deploy, *_ = (*sys.argv[1:], *_PLACES[len(sys.argv[1:]) :])
    write(Path(crds))
    write_pages(Path(docs))
    write_roles(Path(deploy))


if __name__ == "__main__":
    main()
