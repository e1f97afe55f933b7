"""The table of rights: nothing is asked for that it lacks, and it holds nothing that is dangerous."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import yaml
from kubernetes.aio import client

from hisparse_operator import kinds, rights
from hisparse_operator.cluster import watch
from hisparse_operator.cluster.kube import Api
from hisparse_operator.kinds import CHILDREN, INFERENCE, NODE, OWN_LEASE, POD, Kind
from hisparse_operator.wiring import Options
from hisparse_toolkit import rbac

SECRET = Kind("v1", "Secret", "secrets")
NOWHERE = client.Configuration(host="http://127.0.0.1:9")  # nothing may be sent
ROLES: list[dict[str, Any]] = list(yaml.safe_load_all(rbac.text()))
RULES = [rule for role in ROLES for rule in role["rules"]]


@pytest.mark.parametrize(
    "ask",
    [
        pytest.param(lambda api: api.get(SECRET, "n", "x"), id="read a Secret"),
        pytest.param(lambda api: anext(api.pages(SECRET, None)), id="list Secrets"),
        pytest.param(lambda api: api.watch(SECRET, "1", lambda *_: None, 1), id="watch Secrets"),
        pytest.param(lambda api: api.get(POD, "n", "x"), id="read one pod"),
        pytest.param(lambda api: api.create(POD, {"metadata": {"namespace": "n", "name": "x"}}), id="create a pod"),
        pytest.param(lambda api: api.delete(POD, "n", "x", None), id="delete a pod"),
        pytest.param(lambda api: api.delete(INFERENCE, "n", "x", None), id="delete an inference"),
        pytest.param(lambda api: api.merge(NODE, "n", "x", {}), id="patch a node"),
        pytest.param(lambda api: api.replace(POD, {"metadata": {"namespace": "n", "name": "x"}}), id="replace a pod"),
        pytest.param(lambda api: api.log(SECRET, "n", "x", {}), id="the log of what has none"),
        pytest.param(
            lambda api: api.apply(POD, {"metadata": {"namespace": "n", "name": "x"}}, "m", force=False),
            id="apply a pod that may be new",
        ),
        pytest.param(
            lambda api: api.apply(POD, {"metadata": {"name": "x"}}, "m", force=True, subresource="ephemeralcontainers"),
            id="another subresource",
        ),
    ],
)
async def test_a_request_that_no_right_covers_cannot_be_sent(ask: Any) -> None:
    async with Api(NOWHERE) as api:
        with pytest.raises(rights.UndeclaredError, match="not declared"):
            await ask(api)


def test_every_kind_of_request_is_tried_above() -> None:
    """A new method of Api has to be judged too."""
    public = {name for name, _ in inspect.getmembers(Api, inspect.isfunction) if not name.startswith("_")}
    assert public == {"get", "pages", "watch", "apply", "create", "merge", "replace", "delete", "log"}


@pytest.mark.parametrize("namespaces", [(), ("team",)])
def test_everything_that_is_watched_may_be(namespaces: tuple[str, ...]) -> None:
    async def never() -> client.Configuration:
        raise AssertionError

    options = Options(lease_namespace="team", namespaces=namespaces)
    assert watch.registry(options.watched, never, lambda *_: None, print) is not None
    with pytest.raises(rights.UndeclaredError):
        watch.registry((SECRET,), never, lambda *_: None, print)


def test_no_role_gives_secrets_wildcards_or_more_rights() -> None:
    for rule in RULES:
        words = {*rule["apiGroups"], *rule["resources"], *rule["verbs"]}
        assert not {"secrets", "*", "escalate", "bind", "impersonate", "deletecollection"} & words, rule
        assert not {"pods/exec", "pods/attach", "serviceaccounts/token", "nodes/proxy", "roles"} & words, rule
        assert "nonResourceURLs" not in rule


def test_what_lies_in_no_namespace_is_in_the_role_for_the_whole_cluster_alone() -> None:
    for role in rights.ROLES:
        for right in role.rights:
            assert all(kind.namespaced for kind in right.kinds) or role is rights.WHOLE_CLUSTER


def test_every_kind_of_the_table_of_kinds_has_rights() -> None:
    declared = {kind for role in rights.ROLES for right in role.rights for kind in right.kinds}
    known = {one for one in vars(kinds).values() if isinstance(one, Kind)} | set(CHILDREN)
    assert declared == known
    assert OWN_LEASE in declared


def test_one_rule_is_about_one_group() -> None:
    mixed = rights.Right((POD, OWN_LEASE), ("list",))
    with pytest.raises(ValueError, match="one API group"):
        list(rbac._rule(mixed))
