"""`hisparse demo` on a control plane of its own and on one that exists: what it shows, and that nothing is left."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from hisparse_testenv import shared
from hisparse_testenv.control_plane import ControlPlane
from hisparse_testenv.process import cache_dir
from hisparse_testenv.simulated import SimulatedNodes

ROOT = Path(__file__).parents[2]
CRD_FILE = ROOT / "crds" / "inference.hisparse.dev_hisparseinferences.yaml"
CRD = "hisparseinferences.inference.hisparse.dev"
DEMO = [sys.executable, "-m", "hisparse_toolkit", "demo"]
LIMIT_S = 240
SHOWN = (
    "ok Ready is True",
    "ok PlanFeasible names a shortfall",
    "ok it has no pods",
    "ok each replica has a node of its own",
    "ok no child is left",
    "ok everything showed what it should",
)


def run_folder(pid: int) -> Path:
    return cache_dir() / "run" / f"demo-{pid}"


def processes_about(text: str) -> list[str]:
    return [
        " ".join(one.info["cmdline"])
        for one in psutil.process_iter(["cmdline"])
        if one.info["cmdline"] and any(text in word for word in one.info["cmdline"])
    ]


@pytest.mark.cluster
def test_the_demo_shows_what_it_should_and_leaves_nothing(tmp_path: Path) -> None:
    # from another folder: it finds its checkout itself
    with subprocess.Popen(DEMO, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as demo:
        told, _ = demo.communicate(timeout=LIMIT_S)
    assert demo.returncode == 0, told
    for words in SHOWN:
        assert words in told
    assert "$ kubectl apply -f examples/glm-5.3-1m.yaml" in told
    assert "\x1b" not in told
    assert not run_folder(demo.pid).exists()
    assert processes_about(f"demo-{demo.pid}") == []


def stopped(words: list[str], number: signal.Signals) -> tuple[int, int, str]:
    """Start a demo, stop it once its operator has been started; (process id, exit code, what it said)."""
    # a shell that runs the suite in the background has its children ignore SIGINT
    with subprocess.Popen(
        ["env", "--default-signal", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if "hisparse_operator" in line:
                break
        time.sleep(0.5)
        demo.send_signal(number)
        told, _ = demo.communicate(timeout=LIMIT_S)
    return demo.pid, demo.returncode, told


@pytest.mark.chaos
@pytest.mark.cluster
def test_a_demo_that_is_stopped_by_hand_leaves_nothing() -> None:
    pid, code, told = stopped(DEMO, signal.SIGINT)
    assert code == 130, told
    assert "stopped by hand; what was started is gone again" in told
    assert "FAILED" not in told
    assert not run_folder(pid).exists()
    assert processes_about(f"demo-{pid}") == []


@pytest.fixture(scope="module")
def somebodys_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    state = tmp_path_factory.mktemp("cluster")
    try:
        plane = ControlPlane.start(state)
        nodes = SimulatedNodes.start(plane)
        for name in ("node-a", "node-b"):
            nodes.add_node(name)
        yield plane
    finally:
        shared.stop_all(state)


def demo_on(plane: ControlPlane, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": f"{plane.kubectl_path.parent}:{os.environ['PATH']}"}
    return subprocess.run(
        [*DEMO, "--kubeconfig", str(plane.kubeconfig), *words],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def namespaces(plane: ControlPlane) -> str:
    return plane.kubectl("get", "namespaces", "-o", "name").stdout


def names_of_the_crd(plane: ControlPlane) -> str:
    return plane.kubectl("get", "crd", CRD, "-o", "jsonpath={.spec.names}").stdout


@pytest.mark.chaos
@pytest.mark.cluster
def test_on_a_cluster_that_exists_it_cleans_up_what_it_made(somebodys_cluster: ControlPlane) -> None:
    done = demo_on(somebodys_cluster)
    assert done.returncode == 0, done.stdout
    assert "ok everything showed what it should" in done.stdout
    assert "hisparse-demo" not in namespaces(somebodys_cluster)
    assert somebodys_cluster.kubectl("get", "crd", "-o", "name").stdout == ""


@pytest.mark.chaos
@pytest.mark.cluster
def test_a_demo_that_is_terminated_cleans_up_as_well(somebodys_cluster: ControlPlane) -> None:
    _, code, told = stopped([*DEMO, "--kubeconfig", str(somebodys_cluster.kubeconfig)], signal.SIGTERM)
    assert code == 143, told
    assert "stopped by SIGTERM" in told
    assert "hisparse-demo" not in namespaces(somebodys_cluster)
    assert somebodys_cluster.kubectl("get", "crd", "-o", "name").stdout == ""
    assert processes_about(str(somebodys_cluster.kubeconfig)) == []


@pytest.mark.chaos
@pytest.mark.cluster
def test_a_crd_of_another_version_is_left_alone(somebodys_cluster: ControlPlane) -> None:
    older = CRD_FILE.read_text().replace("hsi", "hsiold")
    somebodys_cluster.kubectl("apply", "--server-side", "-f", "-", input=older)
    before = names_of_the_crd(somebodys_cluster)
    try:
        done = demo_on(somebodys_cluster)
        assert done.returncode == 2, done.stdout
        assert "add --yes to replace it" in done.stdout
        assert names_of_the_crd(somebodys_cluster) == before
        assert "hisparse-demo" not in namespaces(somebodys_cluster)
    finally:
        somebodys_cluster.kubectl("delete", "crd", CRD)


@pytest.mark.parametrize(
    ("cache", "told"),
    [("/proc/nowhere", "cannot be made"), ("file", "cannot be made")],
)
def test_a_cache_that_cannot_be_written_is_one_line(tmp_path: Path, cache: str, told: str) -> None:
    (tmp_path / "file").write_text("")
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / cache)}
    done = subprocess.run(DEMO, capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert (done.returncode, done.stdout) == (4, "")
    (line,) = done.stderr.splitlines()
    assert told in line
    assert "set XDG_CACHE_HOME to a folder that can" in line


def test_a_wait_is_a_number() -> None:
    done = subprocess.run([*DEMO, "--wait", "0"], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (2, "--wait: 0 is below 1; write for example 60\n")


def test_without_a_kubeconfig_there_it_says_so(tmp_path: Path) -> None:
    done = subprocess.run(
        [*DEMO, "--kubeconfig", str(tmp_path / "none")], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert "is not a file; name a kubeconfig" in done.stderr


@pytest.mark.cluster
def test_a_cluster_that_cannot_be_asked_is_not_found_out(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("not a kubeconfig")
    done = subprocess.run(
        [*DEMO, "--kubeconfig", str(tmp_path / "config")], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 4
    assert "FAILED kubectl get crd" in done.stdout
