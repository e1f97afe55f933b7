from pathlib import Path
from typing import Any

import pytest
import yaml

from hisparse_operator.__main__ import options_of, parser
from hisparse_operator.kinds import LEASE
from hisparse_operator.wiring import Options

POOLS = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["list", "watch"]}
DEPLOY = Path(__file__).parents[2] / "operator" / "deploy"


def options(*words: str, **environment: str) -> Options:
    return options_of(parser(environment).parse_args(words))


def test_defaults() -> None:
    found = options()
    assert (found.namespaces, found.lease_namespace, found.host, found.port) == ((), "default", None, 8080)
    assert (found.resync_s, found.workers, found.hub) == (600, 4, "https://huggingface.co")
    assert (found.kubeconfig, found.context) == (None, None)


def test_the_command_line_wins_over_the_environment() -> None:
    environment = {
        "HISPARSE_OPERATOR_RESYNC": "5m",
        "HISPARSE_OPERATOR_WORKERS": "2",
        "HISPARSE_OPERATOR_NAMESPACE": "a,b",
        "HISPARSE_OPERATOR_LEASE_NAMESPACE": "system",
    }
    found = options("--workers", "8", **environment)
    assert (found.resync_s, found.workers, found.namespaces, found.lease_namespace) == (300, 8, ("a", "b"), "system")
    found = options("--namespace", "c", "--namespace", "d", "--namespace", "c", "--no-hub", **environment)
    assert (found.namespaces, found.hub) == (("c", "d"), None)


@pytest.mark.parametrize(
    ("listen", "host", "port"),
    [(":9000", None, 9000), ("127.0.0.1:0", "127.0.0.1", 0), ("[::1]:80", "::1", 80)],
)
def test_listen(listen: str, host: str | None, port: int) -> None:
    found = options("--listen", listen)
    assert (found.host, found.port) == (host, port)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        pytest.param(("--listen", "8080"), "--listen", id="no colon"),
        pytest.param(("--workers", "0"), "--workers: 0 is less than 1", id="no workers"),
    ],
)
def test_what_cannot_be(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        options(*words)


def test_a_bad_duration_names_the_form(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        options("--resync", "ten minutes")
    assert "--resync" in capsys.readouterr().err


def test_in_namespaced_mode_nodes_are_not_looked_at_and_the_lease_only_where_we_may() -> None:
    everywhere, here, elsewhere = (
        options("--lease-namespace", "system"),
        options("--namespace", "a", "--lease-namespace", "a"),
        options("--namespace", "a", "--lease-namespace", "system"),
    )
    assert {kind.kind for kind in everywhere.reflected} - {kind.kind for kind in here.reflected} == {"Node"}
    assert {kind.kind for kind in here.watched} - {kind.kind for kind in elsewhere.watched} == {"Lease"}


def rules() -> list[dict[str, Any]]:
    roles = list(yaml.safe_load_all((DEPLOY / "rbac.yaml").read_text()))
    return [rule for role in roles for rule in role["rules"]]


def test_pools_are_read_and_only_where_somebody_binds_the_role() -> None:
    roles = list(yaml.safe_load_all((DEPLOY / "rbac.yaml").read_text()))
    assert [role["metadata"]["name"] for role in roles if POOLS in role["rules"]] == ["hisparse-operator-pools"]
    assert not [role for role in roles if role["kind"].endswith("Binding")]
    assert options().agents_namespace == "hisparse-nodes"
    assert options("--agents-namespace", "gpu-agents").agents_namespace == "gpu-agents"


def test_the_roles_give_neither_secrets_nor_wildcards() -> None:
    for rule in rules():
        assert "secrets" not in rule["resources"]
        assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
        if "leases" in rule["resources"] and rule["verbs"] != ["create"] and rule != POOLS:
            assert rule["resourceNames"] == [LEASE]


def test_the_roles_let_us_see_what_we_watch() -> None:
    readable = {
        (group, resource)
        for rule in rules()
        if {"list", "watch"} <= set(rule["verbs"])
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    assert {(kind.group, kind.plural) for kind in options().watched} <= readable
