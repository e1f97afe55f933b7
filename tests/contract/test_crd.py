"""The generated CRDs are what an API server takes, and what the models say."""

import json
import re
import secrets
import time
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
from hisparse_toolkit.generate import INFERENCE, NODE, POLICY, RESOURCES, NotStructuralError, Resource, structural

CRDS = Path(__file__).parents[2] / "crds"
KUBERNETES = "1.34"
# what `kubectl apply` keeps in an annotation, and the API server's limit on all annotations
LAST_APPLIED_LIMIT = 262_144
WANTED_SIZE = 200 * 1024

NOT_STRUCTURAL = ("$ref", "$defs", "const", "uniqueItems", "prefixItems", "discriminator", "examples", "deprecated")

Node = dict[str, Any]


@pytest.fixture(params=RESOURCES, ids=lambda one: one.kind, scope="module")
def resource(request: pytest.FixtureRequest) -> Resource:
    found: Resource = request.param
    return found


@pytest.fixture(scope="module")
def schema(resource: Resource) -> Node:
    return schema_of(resource)


def schema_of(resource: Resource) -> Node:
    found: Node = generate.crd(resource)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return found


def parts(schema: Node) -> list[str]:
    return [one for one in ("spec", "status") if one in schema["properties"]]


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
    written = {path.name for path in tmp_path.iterdir()}
    assert written == {path.name for path in CRDS.iterdir()} == {*(one.file for one in RESOURCES), "README.md"}
    for name in written:
        assert (CRDS / name).read_text() == (tmp_path / name).read_text(), f"crds/{name} is stale; run make generate"


def test_the_same_models_give_the_same_file(resource: Resource) -> None:
    assert generate.crd_text(resource) == generate.crd_text(resource)
    assert yaml.safe_load(generate.crd_text(resource)) == generate.crd(resource)


def test_the_crd_is_valid_in_the_strict_sense(resource: Resource) -> None:
    kubernetes_validate.validate(generate.crd(resource), KUBERNETES, strict=True)


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


def test_the_crd_fits_into_a_plain_apply(resource: Resource) -> None:
    assert len(generate.crd_text(resource)) < WANTED_SIZE
    assert len(json.dumps(generate.crd(resource))) < LAST_APPLIED_LIMIT


@pytest.mark.parametrize("resource", [INFERENCE, POLICY], ids=lambda one: one.kind, indirect=True)
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
    for part in parts(schema):
        for path, node in nodes(schema["properties"][part], part):
            if not path.endswith("[]") and not path.endswith((".name", ".mountPath")):
                assert node.get("description", "").endswith("."), path


def test_every_field_is_in_the_reference(resource: Resource, schema: Node) -> None:
    reference = generate.reference().split(f"# {resource.kind} (")[1].split("\n# ")[0]
    for part in parts(schema):
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


@pytest.mark.parametrize(
    ("resource", "short_name", "scope", "plain", "wide"),
    [
        pytest.param(
            INFERENCE,
            "hsi",
            "Namespaced",
            ["Ready", "Reason", "Replicas", "Model", "Context", "Tier", "Pool", "MaxConc", "Age"],
            ["Nodes", "Endpoint", "Revision"],
            id="inference",
        ),
        pytest.param(
            NODE,
            "hsn",
            "Cluster",
            ["State", "Faults", "GPUs", "Driver", "Observed", "Age"],
            ["Reason", "Policy", "PutBack", "Muted", "Agent"],
            id="node",
        ),
        pytest.param(
            POLICY,
            "hsnp",
            "Cluster",
            ["DryRun", "Accepted", "InForce", "Nodes", "Breaker", "Age"],
            [],
            id="policy",
        ),
    ],
    indirect=["resource"],
)
def test_names_and_columns_are_those_of_the_api(
    resource: Resource, schema: Node, short_name: str, scope: str, plain: list[str], wide: list[str]
) -> None:
    spec = generate.crd(resource)["spec"]
    assert spec["names"]["shortNames"] == [short_name]
    assert spec["scope"] == scope
    (version,) = spec["versions"]
    columns = {one["name"]: one.get("priority", 0) for one in version["additionalPrinterColumns"]}
    assert list(columns) == [*plain, *wide]
    assert [name for name, priority in columns.items() if priority] == wide
    known = {path.removeprefix(".").replace("[]", "") for path, _ in nodes(schema)}
    for column in version["additionalPrinterColumns"]:
        path = column["jsonPath"].split("[?")[0].replace("[*]", "").removeprefix(".")
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


def test_the_name_is_judged_at_the_root() -> None:
    schema = schema_of(INFERENCE)
    assert len(schema["x-kubernetes-validations"]) == len(NAME_RULES)
    assert schema["properties"]["metadata"] == {"type": "object"}


def test_a_node_has_nothing_to_set_and_a_policy_does_nothing_unless_it_says_so() -> None:
    assert set(schema_of(NODE)["properties"]) == {"apiVersion", "kind", "metadata", "status"}
    assert "required" not in schema_of(NODE)
    assert schema_of(POLICY)["properties"]["spec"]["properties"]["dryRun"]["default"] is True


@pytest.mark.cluster
def test_a_plain_apply_installs_it(cluster: Cluster, resource: Resource) -> None:
    """Client-side, so that the whole file has to fit into an annotation."""
    cluster.kubectl("apply", "-f", str(CRDS / resource.file))
    name = f"{resource.plural}.inference.hisparse.dev"
    cluster.kubectl("wait", "--for=create", f"crd/{name}", "--timeout=20s")
    cluster.kubectl("wait", "--for=condition=Established", f"crd/{name}", "--timeout=20s")
    installed = json.loads(cluster.kubectl("get", "crd", name, "-o", "json").stdout)
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
        "NAME", "READY", "REASON", "REPLICAS", "MODEL", "CONTEXT", "TIER", "POOL", "MAXCONC", "AGE", "NODES",
        "ENDPOINT", "REVISION",
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


def served(cluster: Cluster, resource: Resource) -> None:
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(CRDS / resource.file))
    deadline = time.monotonic() + 30
    path = f"/apis/inference.hisparse.dev/v1alpha1/{resource.plural}?limit=1"
    while cluster.kubectl("get", "--raw", path, check=False).returncode:
        assert time.monotonic() < deadline, f"{resource.plural} are not served"
        time.sleep(0.1)


@pytest.mark.cluster
def test_a_node_lists_as_an_engineer_expects(cluster: Cluster) -> None:
    served(cluster, NODE)
    name = f"n-{secrets.token_hex(3)}"
    document = {"apiVersion": "inference.hisparse.dev/v1alpha1", "kind": "HiSparseNode", "metadata": {"name": name}}
    cluster.kubectl("create", "-f", "-", input=json.dumps(document))
    status = {
        "state": "Critical",
        "faults": 2,
        "gpus": 8,
        "inventory": {"driver": "580.159.04"},
        "observedAt": "2026-11-29T00:00:00Z",
        "policy": "all",
        "agentVersion": "0.1.0",
        "conditions": [
            {
                "type": "Healthy",
                "status": "False",
                "reason": "LinksDown",
                "message": "m",
                "lastTransitionTime": "2026-11-29T00:00:00Z",
            }
        ],
    }
    patch = json.dumps({"status": status})
    cluster.kubectl("patch", f"hsn/{name}", "--subresource=status", "--type=merge", "-p", patch)
    wide = cluster.kubectl("get", "hsn", name, "-o", "wide").stdout.splitlines()
    assert wide[0].split() == [
        "NAME", "STATE", "FAULTS", "GPUS", "DRIVER", "OBSERVED", "AGE", "REASON", "POLICY", "PUTBACK", "MUTED",
        "AGENT",
    ]  # fmt: skip
    row = wide[1].split()
    assert row[:5] == [name, "Critical", "2", "8", "580.159.04"]
    assert row[7:] == ["LinksDown", "all", "0.1.0"]
    cluster.kubectl("delete", "hsn", name)


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("spec", "refused"),
    [
        pytest.param({}, None, id="an empty policy is a dry run"),
        pytest.param(
            {
                "nodeSelector": {"nvidia.com/gpu.present": "true"},
                "remedies": [{"verb": "power-cap", "parameters": {"stepPercent": 10}}, {"verb": "sysctl"}],
                "budget": {"maxNodes": "10%", "perNodePerHour": 1, "perNodePerDay": 3},
                "breaker": {"percent": 20, "window": "10m"},
                "taint": "PreferNoSchedule",
                "dryRun": False,
            },
            None,
            id="everything at once",
        ),
        pytest.param(
            {"remedies": [{"verb": "sysctl", "parameters": {"sysctl": "vm.overcommit_memory"}}]},
            "vm.overcommit_memory",
            id="a setting that the actuator does not write",
        ),
        pytest.param(
            {"remedies": [{"verb": "sysctl", "parameters": {"stepPercent": 10}}]},
            "stepPercent",
            id="a parameter of another verb",
        ),
        pytest.param({"remedies": [{"verb": "reboot"}]}, "Unsupported value", id="a verb that is not in the list"),
        pytest.param(
            {"budget": {"perNodePerHour": 4, "perNodePerDay": 3}}, "perNodePerDay", id="more in an hour than in a day"
        ),
    ],
)
def test_the_api_server_judges_a_policy(cluster: Cluster, spec: Node, refused: str | None) -> None:
    served(cluster, POLICY)
    name = f"p-{secrets.token_hex(3)}"
    document = {
        "apiVersion": "inference.hisparse.dev/v1alpha1",
        "kind": "HiSparseNodePolicy",
        "metadata": {"name": name},
        "spec": spec,
    }
    done = cluster.kubectl("create", "-f", "-", input=json.dumps(document), check=False)
    if refused is not None:
        assert done.returncode == 1
        assert refused in done.stderr
        return
    assert done.returncode == 0, done.stderr
    row = cluster.kubectl("get", "hsnp", name).stdout.splitlines()[1].split()
    assert row[1] == str(spec.get("dryRun", True)).lower()
    cluster.kubectl("delete", "hsnp", name)
