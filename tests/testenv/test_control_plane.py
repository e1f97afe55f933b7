"""Starting, finding again and stopping; two control planes side by side."""

import os
from pathlib import Path

import psutil
import pytest

from hisparse_testenv import process, tools
from hisparse_testenv.control_plane import ControlPlane
from hisparse_testenv.process import StartError
from hisparse_testenv.shared import Cluster
from hisparse_testenv.simulated import SimulatedNodes


@pytest.mark.cluster
def test_a_second_control_plane_runs_beside_the_first_and_stop_leaves_nothing(cluster: Cluster, tmp_path: Path) -> None:
    with ControlPlane.start(tmp_path) as plane, SimulatedNodes.start(plane) as nodes:
        assert plane.server != cluster.control_plane.server
        assert plane.audit_log is None
        nodes.add_node("h100", product="NVIDIA-H100-80GB-HBM3", gpus=4, gpu_memory_mib=81559)
        assert plane.kubectl("get", "nodes", "-o", "name").stdout.split() == ["node/h100"]
        assert ControlPlane.attach(tmp_path) == plane
        running = (*plane.processes, *nodes.processes)
        assert len(running) == 5
    assert not [one.name for one in running if process.alive(one)]
    assert not [one for one in psutil.process_iter(["cmdline"]) if str(tmp_path) in " ".join(one.info["cmdline"] or ())]
    assert ControlPlane.attach(tmp_path) is None
    # the shared one is untouched
    assert cluster.kubectl("get", "--raw", "/readyz").stdout == "ok"


def test_what_ends_while_it_is_waited_for_shows_the_end_of_its_log(tmp_path: Path) -> None:
    log = tmp_path / "quitter.log"
    one = process.spawn("quitter", ["sh", "-c", "echo no such flag; exit 3"], log)
    with pytest.raises(StartError, match=r"quitter ended while waiting for its port(?s:.*)no such flag"):
        process.wait_for("its port", lambda: False, [one], timeout_s=10)


def test_a_process_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    log = tmp_path / "stubborn.log"
    one = process.spawn("stubborn", ["sh", "-c", "trap '' TERM; echo set; while :; do sleep 1; done"], log)
    process.wait_for("the trap", lambda: "set" in log.read_text(), [one], timeout_s=10)
    process.stop([one], grace_s=0.2)
    assert not process.alive(one)


def test_a_reused_process_id_is_not_ours() -> None:
    me = process.Process("me", os.getpid(), started=1.0, log="")
    assert not process.alive(me)
    process.stop([me])


@pytest.mark.parametrize(
    ("text", "version"),
    [
        pytest.param("Kubernetes v1.34.4\n", "v1.34.4", id="kube-apiserver"),
        pytest.param("etcd Version: 3.6.4\nGit SHA: 1\nGo Version: go1.26.8", "v3.6.4", id="etcd"),
        pytest.param("kwok version v0.7.0 go1.24 (linux/amd64)", "v0.7.0", id="kwok"),
        pytest.param("Client Version: v1.32.4-dispatcher", "v1.32.4", id="a kubectl with a suffix"),
        pytest.param("unknown flag", None, id="no version at all"),
    ],
)
def test_version_in(text: str, version: str | None) -> None:
    assert tools.version_in(text) == version


def test_without_go_the_error_names_the_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    with pytest.raises(tools.ToolError, match="building the test control plane: `go` is not on PATH"):
        tools.ensure("control-plane", print)


def test_kubebuilder_assets_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = tmp_path / "etcd"
    given.write_text("#!/bin/sh\n")
    given.chmod(0o755)
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    etcd = next(tool for tool in tools.GROUPS["control-plane"] if tool.name == "etcd")
    assert tools.find(etcd) == given
