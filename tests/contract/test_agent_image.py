"""The agent's image and its manifests are of one mind: accounts, port, programs."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import agent_image
import pytest
import yaml

ROOT = Path(__file__).parents[2]
TEXT = agent_image.DOCKERFILE.read_text()
SETTINGS = agent_image.settings_of(TEXT)
SCRIPTS: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]


def pod_of(name: str) -> dict[str, Any]:
    documents = yaml.safe_load_all((ROOT / "node_agent" / "deploy" / name).read_text())
    found: dict[str, Any] = next(one for one in documents if one["kind"] == "DaemonSet")["spec"]["template"]["spec"]
    return found


def containers(name: str) -> dict[str, dict[str, Any]]:
    pod = pod_of(name)
    return {one["name"]: {**pod["securityContext"], **one, **one["securityContext"]} for one in pod["containers"]}


@pytest.mark.parametrize("name", ["agent.yaml", "actuator.yaml"])
def test_the_agent_runs_as_the_account_of_its_image(name: str) -> None:
    agent = containers(name)["agent"]
    assert SETTINGS["User"] == f"{agent['runAsUser']}:{agent['runAsGroup']}"
    assert re.findall(r"^EXPOSE (\d+)$", TEXT, re.MULTILINE) == [str(agent["ports"][0]["containerPort"])]


@pytest.mark.parametrize(("name", "own"), [("agent.yaml", set()), ("actuator.yaml", {"/var/lib/hisparse/node"})])
def test_of_the_host_a_pod_has_proc_and_sys_and_its_own_folder(name: str, own: set[str]) -> None:
    # not the kubelet's: secrets of every pod lie there
    paths = {one["hostPath"]["path"] for one in pod_of(name)["volumes"] if "hostPath" in one}
    assert paths == {"/proc", "/sys"} | own


def test_the_folder_that_both_share_is_the_agents_groups() -> None:
    found = containers("actuator.yaml")
    assert f"--agent-group={found['agent']['runAsGroup']}" in found["actuator"]["args"]
    (state,) = {word for one in found.values() for word in one["args"] if word.startswith("--state-dir=")}
    mounts = {(one["name"], one["mountPath"]) for each in found.values() for one in each["volumeMounts"]}
    assert ("state", state.removeprefix("--state-dir=")) in mounts


def test_both_programs_are_in_the_image_and_on_its_path() -> None:
    assert SETTINGS["Entrypoint"] == ["hisparse-agent"]
    assert containers("actuator.yaml")["actuator"]["command"] == ["hisparse-actuator"]
    assert {name: f"{module}:main" for name, module in agent_image.PROGRAMS.items()} == {
        name: SCRIPTS[name] for name in agent_image.PROGRAMS
    }
    environment = SETTINGS["Env"]
    assert isinstance(environment, list)
    assert any(one.startswith("PATH=/opt/hisparse/bin:") for one in environment)


def test_what_is_copied_is_what_the_distribution_is_built_of() -> None:
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    copied = re.findall(r"^COPY (\S+) \1$", TEXT, re.MULTILINE)
    assert {one.split("/")[0] for one in wheel["packages"]} == set(copied)
