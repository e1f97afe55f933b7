"""`hisparse render` prints what the operator would write, and its command is the one that `hisparse plan` shows."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from hisparse.units import parse_quantity
from hisparse_toolkit.cli import main

EXAMPLES = Path(__file__).parents[2] / "examples"
FITTING = [path for path in sorted(EXAMPLES.glob("*.yaml")) if path.name != "does-not-fit.yaml"]


@pytest.fixture(autouse=True)
def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HISPARSE_NO_HUB", "1")


def rendered(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    assert main(["render", *words]) in (0, 1)
    return list(yaml.safe_load_all(capsys.readouterr().out))


@pytest.mark.parametrize("path", [pytest.param(path, id=path.stem) for path in FITTING])
def test_the_children_of_an_example(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kinds = {child["kind"] for child in rendered(capsys, "-f", str(path))}
    assert kinds >= {"ControllerRevision", "ReplicaSet", "Service", "ServiceAccount", "ConfigMap", "NetworkPolicy"}


@pytest.mark.parametrize("path", [pytest.param(path, id=path.stem) for path in FITTING])
def test_the_pods_run_what_the_plan_shows(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    children = rendered(capsys, "-f", str(path))
    pod = next(child for child in children if child["kind"] == "ReplicaSet")["spec"]["template"]["spec"]
    engine = next(container for container in pod["containers"] if container["name"] == "engine")
    main(["plan", "-f", str(path), "--host-memory", "2Ti", "--json"])
    plan = json.loads(capsys.readouterr().out)["plan"]
    assert engine["args"] == plan["command"]
    environment = {one["name"]: one.get("value") for one in engine["env"]}
    assert {one["name"]: one["value"] for one in plan["environment"]}.items() <= environment.items()


@pytest.mark.parametrize("path", [pytest.param(path, id=path.stem) for path in FITTING])
def test_the_pods_ask_for_what_the_plan_shows(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    children = rendered(capsys, "-f", str(path))
    pod = next(child for child in children if child["kind"] == "ReplicaSet")["spec"]["template"]["spec"]
    engine = next(container for container in pod["containers"] if container["name"] == "engine")
    requests = engine["resources"]["requests"]
    main(["plan", "-f", str(path), "--host-memory", "2Ti", "--json"])
    shown = json.loads(capsys.readouterr().out)["plan"]["pod"]
    disk = requests.get("ephemeral-storage")
    assert shown == {"cpu": requests["cpu"], "ephemeralStorageBytes": parse_quantity(disk) if disk else None}


@pytest.mark.parametrize("path", [pytest.param(path, id=path.stem) for path in FITTING])
@pytest.mark.parametrize("batched", [None, 32768])
def test_render_warns_as_plan_does(
    path: Path, batched: int | None, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    manifest = yaml.safe_load(path.read_text())
    if batched:
        manifest["spec"]["context"]["maxBatchedTokens"] = batched
    (tmp_path / "m.yaml").write_text(yaml.safe_dump(manifest))
    code = main(["plan", "-f", str(tmp_path / "m.yaml"), "--host-memory", "2Ti", "--json"])
    warnings = json.loads(capsys.readouterr().out)["plan"]["warnings"]
    assert main(["render", "-f", str(tmp_path / "m.yaml")]) == code == (1 if warnings else 0)
    told = capsys.readouterr()
    assert told.err.splitlines() == [f"warning: {warning}" for warning in warnings]
    assert list(yaml.safe_load_all(told.out))


def test_nothing_rendered_names_an_owner_that_no_cluster_knows(capsys: pytest.CaptureFixture[str]) -> None:
    for child in rendered(capsys, "-f", str(EXAMPLES / "glm-5.3-1m.yaml")):
        assert "ownerReferences" not in child["metadata"]


def test_what_does_not_fit_is_three_and_says_what_the_operator_would(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["render", "-f", str(EXAMPLES / "does-not-fit.yaml")]) == 3
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("llama-70b-1m: HBMInsufficient: NVIDIA-H200: one request of 1,048,576 tokens needs")


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        pytest.param(("--product", "h300"), 2, "--product: ", id="no such GPU"),
        pytest.param(("--node-memory", "2TB"), 2, "--node-memory: ", id="no quantity"),
        pytest.param(("--node-memory", "64Gi"), 3, "HostMemoryInsufficient", id="too little memory"),
        pytest.param(("--node-gpus", "4"), 3, "NoMatchingNodes", id="too few GPUs"),
        pytest.param(("--node-gpus", "x"), 2, '--node-gpus: "x" is not a whole number of at least 1', id="no number"),
        pytest.param(("--node-gpus", "0"), 2, "--node-gpus: 0 is below 1", id="nodes without GPUs"),
    ],
)
def test_what_is_not_rendered(capsys: pytest.CaptureFixture[str], words: tuple[str, ...], code: int, told: str) -> None:
    assert main(["render", "-f", str(EXAMPLES / "glm-5.3-1m.yaml"), *words]) == code
    assert told in capsys.readouterr().err


def test_the_products_of_the_nodes_may_be_named_shortly(capsys: pytest.CaptureFixture[str]) -> None:
    children = rendered(capsys, "-f", str(EXAMPLES / "llama-3.1-8b.yaml"), "--product", "l40s", "--node-gpus", "2")
    assert "NVIDIA-L40S" in json.dumps(children)


def test_without_a_manifest_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["render"]) == 2
    assert capsys.readouterr().err == (
        "--file: is needed and not set; name a manifest, as in -f examples/glm-5.3-1m.yaml\n"
    )


def test_planned_only_has_no_children(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    manifest = yaml.safe_load((EXAMPLES / "glm-5.3-1m.yaml").read_text())
    manifest["spec"]["planOnly"] = True
    (tmp_path / "m.yaml").write_text(yaml.safe_dump(manifest))
    assert main(["render", "-f", str(tmp_path / "m.yaml")]) == 2
    assert "planOnly" in capsys.readouterr().err
