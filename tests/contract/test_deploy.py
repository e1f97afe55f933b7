"""What `kubectl apply -f operator/deploy/` installs: valid in the strict sense and complete."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from hisparse import engine
from hisparse_operator.kinds import LEASE
from hisparse_testenv.shared import Cluster
from hisparse_toolkit import generate, rbac

DEPLOY = Path(__file__).parents[2] / "operator" / "deploy"
DOCUMENTS: list[dict[str, Any]] = [
    one for path in sorted(DEPLOY.glob("*.yaml")) for one in yaml.safe_load_all(path.read_text())
]


def named(kind: str, name: str) -> list[dict[str, Any]]:
    return [one for one in DOCUMENTS if one["kind"] == kind and one["metadata"]["name"] == name]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda one: f"{one['kind']} {one['metadata']['name']}")
def test_every_document_is_valid(document: dict[str, Any]) -> None:
    kubernetes_validate.validate(document, "1.34", strict=True)


def test_the_roles_are_what_the_table_of_rights_says(tmp_path: Path) -> None:
    generate.write_roles(tmp_path)
    assert (DEPLOY / rbac.FILE).read_text() == (tmp_path / rbac.FILE).read_text(), "run make generate"


def test_every_binding_names_a_role_and_an_account_that_are_there() -> None:
    for binding in (one for one in DOCUMENTS if one["kind"].endswith("Binding")):
        assert named(binding["roleRef"]["kind"], binding["roleRef"]["name"])
        for subject in binding["subjects"]:
            assert named("ServiceAccount", subject["name"])


def test_the_lease_that_may_be_updated_is_the_operators_own() -> None:
    (role,) = named("Role", "hisparse-operator-lease")
    assert role["rules"][0]["resourceNames"] == [LEASE]


def test_the_images_are_those_of_this_release() -> None:
    (deployment,) = named("Deployment", "hisparse-operator")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert f"--engine-image={engine.PINNED_IMAGE}" in container["args"]
    assert f"--launcher-image={engine.PINNED_IMAGE}" in container["args"]


@pytest.mark.cluster
def test_a_real_api_server_takes_it(cluster: Cluster) -> None:
    cluster.kubectl("create", "namespace", "hisparse", check=False)
    done = cluster.kubectl("apply", "--dry-run=server", "-f", str(DEPLOY / "operator.yaml"))
    assert "deployment.apps/hisparse-operator created" in done.stdout
