"""The operator that serves a whole cluster: nodes, a CRD that goes and comes, tokens instead of certificates."""

import json
import time
from pathlib import Path
from typing import Any

import aiohttp
import kubernetes.aio.config.incluster_config as incluster
import pytest
from listed import listed

from hisparse_operator.cluster import kube, watch
from hisparse_operator.kinds import INFERENCE

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

Namespace = Any  # of conftest.py, from which a test module cannot import


def spec(**rest: Any) -> dict[str, Any]:
    model = {"huggingFace": {"repo": "meta-llama/Llama-3.1-8B-Instruct"}}
    return {"model": model, "context": {"maxTokens": 65536}, "resources": {"gpus": 1}, **rest}


def test_a_node_that_changes_wakes_the_objects_and_a_heartbeat_does_not(everywhere: Namespace) -> None:
    space = everywhere
    space.kubectl("label", "node", "gpu-6", "example.com/zone-")
    operator = space.operators.leading()
    space.create("one", **spec())
    space.until(lambda: space.condition("Available", "one").get("status") == "True", "it serves", 60)
    time.sleep(2)

    def passes() -> float:
        return sum(
            operator.metric(f'hisparse_operator_reconciles_total{{result="{result}"}}') or 0
            for result in ("ok", "wrote")
        )

    before = passes()
    beat = '{"status":{"conditions":[{"type":"Ready","lastHeartbeatTime":"2026-01-01T00:00:00Z"}]}}'
    space.kubectl("patch", "node", "gpu-6", "--subresource=status", "--type=strategic", "-p", beat)
    time.sleep(2)
    assert passes() == before
    space.kubectl("label", "node", "gpu-6", "example.com/zone=x")
    space.until(lambda: passes() > before, "the label wakes the objects")
    space.kubectl("label", "node", "gpu-6", "example.com/zone-")
    space.kubectl("-n", space.name, "delete", "hsi", "--all")


def test_it_waits_for_the_crd_and_ends_when_the_crd_goes(everywhere: Namespace) -> None:
    space = everywhere
    crds = str(Path(__file__).parents[2] / "crds")
    operator = space.operators.leading()
    space.kubectl("delete", "-f", crds, "--timeout=60s")
    assert operator.process.wait(60) == 1, "a watch that dies ends the process"
    (told,) = [one for one in operator.lines() if one["level"] == "error"]
    assert "somebody has deleted the CRD" in told["error"]
    assert "exception" not in told
    operator = space.operators.start()
    space.until(lambda: "not installed" in operator.log.read_text(), "it waits for the CRD")
    assert operator.page("/healthz") == "ok\n"
    assert not operator.leads()
    space.kubectl("apply", "--server-side", "-f", crds)
    space.until(operator.leads, "it goes on", 40)
    space.until(lambda: space.api.get(space.path()) is not None, "the API is served")
    space.create("one", **spec())
    space.until(lambda: space.observed("one"), "and works")
    assert operator.stop() == 0


def service_account(space: Namespace) -> str:
    """A service account with the operator's rights, and a token for it."""
    space.kubectl("-n", space.name, "create", "serviceaccount", "hisparse-operator")
    subject = f"--serviceaccount={space.name}:hisparse-operator"
    for name in ("hisparse-operator", "hisparse-operator-cluster"):
        space.kubectl("create", "clusterrolebinding", f"{name}-{space.name}", f"--clusterrole={name}", subject)
    space.kubectl("-n", space.name, "create", "rolebinding", "token-lease", "--role=hisparse-operator-lease", subject)
    return str(space.kubectl("-n", space.name, "create", "token", "hisparse-operator").stdout)


def test_a_token_in_a_kubeconfig_is_enough(everywhere: Namespace, tmp_path: Path) -> None:
    space = everywhere
    plane = space.operators.cluster.control_plane
    place = tmp_path / "token.kubeconfig"
    user = {"name": "token", "user": {"token": service_account(space)}}
    cluster = {"server": plane.server, "certificate-authority": str(plane.authority.cert)}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [user],
        "contexts": [{"name": "by-token", "context": {"cluster": "c", "user": "token"}}],
    }
    place.write_text(json.dumps(config))
    operator = space.operators.leading("--kubeconfig", str(place), "--context", "by-token")
    space.create("one", **spec())
    space.until(lambda: space.observed("one"), "it works")
    assert (operator.metric("hisparse_operator_watch_age_seconds") or 99) < 15, "kopf logs in too"
    assert operator.stop() == 0


async def test_in_a_pod_both_clients_use_the_service_account(
    everywhere: Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = everywhere
    plane = space.operators.cluster.control_plane
    (tmp_path / "token").write_text(service_account(space))
    (tmp_path / "ca.crt").write_bytes(plane.authority.cert.read_bytes())
    host, _, port = plane.server.removeprefix("https://").rpartition(":")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
    monkeypatch.setattr(kube, "SERVICE_ACCOUNT", tmp_path)
    monkeypatch.setattr(incluster, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(incluster, "SERVICE_CERT_FILENAME", str(tmp_path / "ca.crt"))
    configuration = await kube.load_configuration()
    async with kube.Api(configuration) as api:
        await listed(api, INFERENCE)
    found = await watch.connection(configuration)
    connector = aiohttp.TCPConnector(ssl=found.as_ssl_context())
    async with (
        aiohttp.ClientSession(connector=connector, headers=found.as_http_headers()) as session,
        session.get(found.server + INFERENCE.path()) as answer,
    ):
        assert answer.status == 200
