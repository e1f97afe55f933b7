"""Whether an apply would change anything, from the live object alone. test_apply.py asks a real API server."""

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisparse_operator.cluster.ownership import in_place

MANAGER = "hisparse-operator"
META = {"name": "x", "namespace": "n", "uid": "u", "resourceVersion": "7"}

_words = st.text("abc", min_size=1, max_size=2)
_leaves = st.one_of(st.integers(0, 3), st.booleans(), _words, st.lists(_words, max_size=2))
_trees = st.dictionaries(
    _words,
    st.recursive(_leaves, lambda inner: st.dictionaries(_words, inner, min_size=1, max_size=3), max_leaves=5),
    max_size=3,
)


def owned(value: Any) -> dict[str, Any]:
    """What the API server records for an applied value without a schema: maps by field, everything else as a whole."""
    if not isinstance(value, dict) or not value:
        return {}
    return {f"f:{name}": owned(inner) for name, inner in value.items()}


def live(spec: dict[str, Any], fields: dict[str, Any] | None = None) -> dict[str, Any]:
    entry = {
        "manager": MANAGER,
        "operation": "Apply",
        "fieldsV1": {"f:spec": owned(spec) if fields is None else fields},
    }
    return {"metadata": {**META, "managedFields": [entry]}, "spec": deepcopy(spec)}


def document(spec: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "X", "metadata": META, "spec": spec}


@given(_trees)
def test_what_was_applied_is_in_place_also_among_fields_of_others(spec: dict[str, Any]) -> None:
    there = live(spec)
    assert in_place(there, document(spec), MANAGER)
    there["spec"]["theirs"] = 1
    there["metadata"]["managedFields"].append({"manager": "kubectl", "operation": "Update", "fieldsV1": {}})
    assert in_place(there, document(spec), MANAGER)
    assert not in_place(there, document(spec), "somebody-else")


@given(_trees, _trees)
def test_another_document_is_seen(spec: dict[str, Any], other: dict[str, Any]) -> None:
    # the API server drops zero values, so those are no difference
    if spec and _plain(spec) != _plain(other):
        assert not in_place(live(spec), document(other), MANAGER)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    # as text, since Python takes True for 1
    return str(value)


@given(_trees)
def test_a_value_that_somebody_took_is_seen(spec: dict[str, Any]) -> None:
    for name in spec:
        fields = {part: below for part, below in owned(spec).items() if part != f"f:{name}"}
        assert not in_place(live(spec, fields or {"f:none": {}}), document(spec), MANAGER)


@pytest.mark.parametrize(
    ("wanted", "there", "same"),
    [
        pytest.param("2048Gi", "2Ti", True, id="as the API server writes it"),
        pytest.param(8, "8", True, id="a number"),
        pytest.param("0.5", "500m", True, id="a fraction"),
        pytest.param("1e3", "1k", True, id="an exponent"),
        pytest.param("500m", "1", False, id="not rounded"),
        pytest.param("1Gi", "1G", False, id="binary is not decimal"),
        pytest.param("many", "2", False, id="no quantity"),
    ],
)
def test_quantities(wanted: Any, there: str, same: bool) -> None:
    spec = {"limits": {"memory": there}}
    assert in_place(live(spec), document({"limits": {"memory": wanted}}), MANAGER) is same


@pytest.mark.parametrize(
    ("ports", "same"),
    [
        pytest.param([{"containerPort": 80, "name": "a"}], True, id="a key that the API server filled in"),
        pytest.param([{"containerPort": 80, "name": "b"}], False, id="another name"),
        pytest.param([{"containerPort": 81, "name": "a"}], False, id="another key"),
        pytest.param([], False, id="none"),
        pytest.param([{"containerPort": 80, "name": "a"}, {"containerPort": 81}], False, id="one more"),
    ],
)
def test_a_list_that_is_a_map(ports: list[dict[str, Any]], same: bool) -> None:
    key = 'k:{"containerPort":80,"protocol":"TCP"}'
    fields: dict[str, Any] = {"f:ports": {key: {".": {}, "f:containerPort": {}, "f:name": {}}}}
    there = live({"ports": [{"containerPort": 80, "protocol": "TCP", "name": "a"}]}, fields)
    assert in_place(there, document({"ports": ports}), MANAGER) is same


def test_a_list_that_is_a_set() -> None:
    there = live({"finalizers": ["theirs", "ours"]}, {"f:finalizers": {'v:"ours"': {}}})
    assert in_place(there, document({"finalizers": ["ours"]}), MANAGER)
    assert not in_place(there, document({"finalizers": ["theirs"]}), MANAGER)


def test_the_status_has_an_owner_of_its_own() -> None:
    there = live({"a": 1})
    assert not in_place(there, document({"a": 1}), MANAGER, "status")
    there["metadata"]["managedFields"][0]["subresource"] = "status"
    assert in_place(there, document({"a": 1}), MANAGER, "status")
    assert not in_place(there, document({"a": 1}), MANAGER)
