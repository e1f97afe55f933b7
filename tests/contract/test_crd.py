"""The generated CRD is what an API server takes, and what the models say."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import kubernetes_validate
import pytest
import yaml
from bad_input import SMALLEST
from installed import install_crd
from pydantic import BaseModel, Field

from hisparse.rules import ExactlyOne, Form, Rule, Strict, cel_text
from hisparse.spec import NAME_RULES, PLURAL
from hisparse_testenv.shared import Cluster
from hisparse_toolkit import generate
from hisparse_toolkit.generate import NotStructuralError, structural

CRDS = Path(__file__).parents[2] / "crds"
KUBERNETES = "1.34"
# what `kubectl apply` keeps in an annotation, and the API server's limit on all annotations
LAST_APPLIED_LIMIT = 262_144
WANTED_SIZE = 200 * 1024

NOT_STRUCTURAL = ("$ref", "$defs", "const", "uniqueItems", "prefixItems", "discriminator", "examples", "deprecated")

Node = dict[str, Any]


@pytest.fixture(scope="module")
def schema() -> Node:
    found: Node = generate.crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return found


def nodes(node: Node, path: str = "") -> Iterator[tuple[str, Node]]:
    yield path, node
    for name, child in node.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(node.get(key), dict):
            yield from nodes(node[key], f"{path}[]")


def pitfalls(node: Node) -> list[str]:
    """What an API server refuses or ignores, and no validator of manifests catches (style.md 5.1)."""
    found = []
    for path, one in nodes(node):
        int_or_text = one.get("x-kubernetes-int-or-string", False)
        if not int_or_text and not isinstance(one.get("type"), str):
            found.append(f"{path}: no type")
        if "anyOf" in one and not int_or_text:
            found.append(f"{path}: a union")
        found += [f"{path}: {key}" for key in NOT_STRUCTURAL if key in one]
        if isinstance(one.get("exclusiveMinimum"), int) and not isinstance(one.get("exclusiveMinimum"), bool):
            found.append(f"{path}: a number as exclusiveMinimum")
        if "properties" in one and "additionalProperties" in one:
            found.append(f"{path}: properties beside additionalProperties")
        if isinstance(one.get("additionalProperties"), bool):
            found.append(f"{path}: additionalProperties is no schema")
        if one.get("format") == "duration":
            found.append(f"{path}: format duration")
        if "default" in one and one["default"] is None:
            found.append(f"{path}: null as default")
        if one.get("type") == "array" and "x-kubernetes-list-type" not in one:
            found.append(f"{path}: a list without a type")
        if re.search(r"\(\?[=!<]", json.dumps(one.get("x-kubernetes-validations", ""))):
            found.append(f"{path}: a pattern that RE2 cannot read")
    return found


def test_the_files_are_what_the_models_say(tmp_path: Path) -> None:
    """`make generate` was run after the last change of a model."""
    generate.write(tmp_path)
    for name in (generate.CRD_FILE, generate.REFERENCE_FILE):
        assert (CRDS / name).read_text() == (tmp_path / name).read_text(), f"crds/{name} is stale; run make generate"


def test_the_same_models_give_the_same_file() -> None:
    assert generate.crd_text() == generate.crd_text()
    assert yaml.safe_load(generate.crd_text()) == generate.crd()


def test_the_crd_is_valid_in_the_strict_sense() -> None:
    kubernetes_validate.validate(generate.crd(), KUBERNETES, strict=True)


def test_the_crd_has_none_of_the_known_pitfalls(schema: Node) -> None:
    assert pitfalls(schema) == []


def test_the_linter_sees_each_pitfall() -> None:
    bad: Node = {
        "type": "object",
        "properties": {
            "a": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
            "b": {"const": 1, "type": "integer"},
            "c": {"type": "array", "items": {"$ref": "#/$defs/x"}, "uniqueItems": True},
            "d": {"type": "object", "properties": {}, "additionalProperties": False},
            "e": {"type": "string", "format": "duration", "examples": ["PT5S"]},
            "f": {"type": "integer", "exclusiveMinimum": 0},
            "g": {"type": "string", "x-kubernetes-validations": [{"rule": 'self.matches("(?!x)")'}]},
        },
    }
    assert len(pitfalls(bad)) == 14


def test_the_crd_fits_into_a_plain_apply() -> None:
    assert len(generate.crd_text()) < WANTED_SIZE
    assert len(json.dumps(generate.crd())) < LAST_APPLIED_LIMIT


def test_everything_that_a_rule_walks_has_an_end(schema: Node) -> None:
    """The API server multiplies; what has no limit counts as endless, and the CRD is refused."""
    spec = schema["properties"]["spec"]
    for path, node in nodes(spec, "spec"):
        if node.get("type") == "array":
            assert "maxItems" in node, path
        if "additionalProperties" in node:
            assert "maxProperties" in node, path
        if node.get("type") == "string":
            assert "maxLength" in node or "enum" in node, path


def test_every_field_is_explained(schema: Node) -> None:
    for part in ("spec", "status"):
        for path, node in nodes(schema["properties"][part], part):
            if not path.endswith("[]") and not path.endswith((".name", ".mountPath")):
                assert node.get("description", "").endswith("."), path


def test_every_field_is_in_the_reference(schema: Node) -> None:
    reference = generate.reference()
    for part in ("spec", "status"):
        for path, node in nodes(schema["properties"][part], part):
            if "." in path and not path.endswith("[]") and "preserve-unknown" not in json.dumps(node):
                assert f"| `{path}` |" in reference, path


def test_every_rule_has_words_without_line_breaks(schema: Node) -> None:
    """A message with a line break is replaced by the API server's own."""
    for path, node in nodes(schema):
        for rule in node.get("x-kubernetes-validations", ()):
            assert rule["message"], path
            assert "\n" not in rule["message"] + rule.get("messageExpression", ""), path


def test_every_rule_reads_well_in_the_reference() -> None:
    assert "(value)" not in generate.reference()


def test_names_and_columns_are_those_of_the_api(schema: Node) -> None:
    spec = generate.crd()["spec"]
    assert spec["names"]["shortNames"] == ["hsi"]
    assert spec["scope"] == "Namespaced"
    (version,) = spec["versions"]
    columns = {one["name"]: one.get("priority", 0) for one in version["additionalPrinterColumns"]}
    assert list(columns) == [
        "Ready", "Reason", "Replicas", "Model", "Context", "Tier", "Pool", "MaxConc", "Age", "Endpoint", "Revision",
    ]  # fmt: skip
    assert [name for name, priority in columns.items() if priority] == ["Endpoint", "Revision"]
    known = {path.removeprefix(".") for path, _ in nodes(schema)}
    for column in version["additionalPrinterColumns"]:
        path = column["jsonPath"].split("[")[0].removeprefix(".")
        assert path in known or path.startswith("metadata."), path


def test_a_union_is_refused_when_it_is_generated() -> None:
    class Either(BaseModel):
        one: int | str

    with pytest.raises(NotStructuralError, match=r"Either\.one: a union; use one optional field per case"):
        structural(Either)


def test_a_model_without_an_end_is_refused_when_it_is_generated() -> None:
    with pytest.raises(NotStructuralError, match="contains itself"):
        structural(Tree)


class Tree(BaseModel):
    below: "Tree | None" = None


def test_one_word_becomes_an_enum_and_none_no_default() -> None:
    class Words(BaseModel):
        one: Literal["a"]
        maybe: Literal["a", "b"] | None = None

    assert structural(Words)["properties"] == {
        "one": {"type": "string", "enum": ["a"]},
        "maybe": {"type": "string", "enum": ["a", "b"]},
    }


def test_a_rule_of_one_field_does_not_reach_another_of_the_same_type() -> None:
    class Two(Strict):
        judged: Annotated[str, Field(max_length=8), Form("[a-z]+", "a word", "write one")]
        free: Annotated[str, Field(max_length=8)]

    properties = structural(Two)["properties"]
    assert "x-kubernetes-validations" in properties["judged"]
    assert "x-kubernetes-validations" not in properties["free"]


def test_what_only_python_can_judge_is_not_in_the_crd() -> None:
    class Half(Strict):
        a: int | None = None
        b: int | None = None
        rules = (ExactlyOne(("a", "b"), "keep one"), Rule(None, "never", lambda _: True))

    assert len(structural(Half)["x-kubernetes-validations"]) == 1


def test_a_literal_in_cel_keeps_its_quotes_and_backslashes() -> None:
    assert cel_text('a"b\\c') == r'"a\"b\\c"'


def test_the_name_is_judged_at_the_root(schema: Node) -> None:
    assert len(schema["x-kubernetes-validations"]) == len(NAME_RULES)
    assert schema["properties"]["metadata"] == {"type": "object"}


@pytest.mark.cluster
def test_a_plain_apply_installs_it(cluster: Cluster) -> None:
    """Client-side, so that the whole file has to fit into an annotation."""
    cluster.kubectl("apply", "-f", str(CRDS / generate.CRD_FILE))
    install_crd(cluster)
    installed = json.loads(cluster.kubectl("get", "crd", f"{PLURAL}.inference.hisparse.dev", "-o", "json").stdout)
    conditions = {one["type"]: one["status"] for one in installed["status"]["conditions"]}
    assert conditions.get("NonStructuralSchema", "False") == "False"
    assert conditions["NamesAccepted"] == "True"


@pytest.mark.cluster
def test_an_object_scales_and_lists_as_a_user_expects(cluster: Cluster, namespace: str) -> None:
    install_crd(cluster)
    cluster.kubectl("apply", "-n", namespace, "-f", "-", input=json.dumps(SMALLEST))
    # `kubectl scale` reads the present number: the one default of the schema
    cluster.kubectl("scale", "-n", namespace, "hsi/glm-5-3", "--replicas=3", "--current-replicas=1")
    status = {
        "status": {
            "replicas": 3,
            "readyReplicas": 2,
            "selector": "a=b",
            "model": "GLM-5.3",
            "mode": {"effective": "HiSparse", "reason": "it pays"},
            "plan": {"feasible": True, "hostPool": "384Gi", "maxConcurrencyAtMaxTokens": "7.14"},
            "endpoint": {"url": "http://glm-5-3:8000"},
            "currentRevision": "abc",
            "conditions": [
                {
                    "type": "Ready",
                    "status": "True",
                    "reason": "Proven",
                    "message": "m",
                    "lastTransitionTime": "2026-11-29T00:00:00Z",
                }
            ],
        }
    }
    cluster.kubectl(
        "patch", "-n", namespace, "hsi/glm-5-3", "--subresource=status", "--type=merge", "-p", json.dumps(status)
    )
    wide = cluster.kubectl("get", "hsi", "-n", namespace, "-o", "wide").stdout.splitlines()
    assert wide[0].split() == [
        "NAME", "READY", "REASON", "REPLICAS", "MODEL", "CONTEXT", "TIER", "POOL", "MAXCONC", "AGE", "ENDPOINT", "REVISION",
    ]  # fmt: skip
    row = wide[1].split()
    assert row[:9] == ["glm-5-3", "True", "Proven", "2", "GLM-5.3", "1048576", "HiSparse", "384Gi", "7.14"]
    assert row[10:] == ["http://glm-5-3:8000", "abc"]
    explained = cluster.kubectl("explain", "hsi.spec.context.maxTokens").stdout
    assert "Longest request in tokens" in explained
    scale = json.loads(
        cluster.kubectl(
            "get", "--raw", f"/apis/inference.hisparse.dev/v1alpha1/namespaces/{namespace}/{PLURAL}/glm-5-3/scale"
        ).stdout
    )
    assert scale["spec"]["replicas"] == 3
    assert scale["status"] == {"replicas": 3, "selector": "a=b"}
