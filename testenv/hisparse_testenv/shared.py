"""One control plane for all processes of a test session, started by whoever needs it first."""

import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from hisparse_testenv import control_plane, real_node, simulated
from hisparse_testenv.control_plane import ControlPlane
from hisparse_testenv.process import cache_dir, locked
from hisparse_testenv.real_node import RealNode
from hisparse_testenv.simulated import SimulatedNodes

PREFIX: Final = "session-"
SIMULATED: Final = "simulated"
REAL: Final = "real"


@dataclass(frozen=True)
class Cluster:
    """A control plane with simulated nodes, and what a test wants of them."""

    control_plane: ControlPlane
    simulated: SimulatedNodes
    kubeconfig: Path
    audit_log: Path

    def kubectl(
        self,
        *args: str,
        input: str | None = None,  # noqa: A002 - the name that subprocess.run gives it
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl as the administrator; with `check`, a failure raises with what it printed."""
        return self.control_plane.kubectl(*args, input=input, check=check)

    def add_node(
        self,
        name: str,
        *,
        product: str = "NVIDIA-H200",
        gpus: int = 8,
        memory: str = "2Ti",
        gpu_memory_mib: int = 143771,
        taints: Sequence[Mapping[str, str]] = (),
        labels: Mapping[str, str] | None = None,
    ) -> None:
        """Add a simulated GPU server; the other tests of the session see it too, so remove it afterwards."""
        self.simulated.add_node(
            name,
            product=product,
            gpus=gpus,
            memory=memory,
            gpu_memory_mib=gpu_memory_mib,
            taints=taints,
            labels=labels,
        )


@dataclass(frozen=True)
class RealCluster:
    """A control plane that pods can reach, with this machine as its node."""

    control_plane: ControlPlane
    node: RealNode
    kubeconfig: Path

    def kubectl(
        self,
        *args: str,
        input: str | None = None,  # noqa: A002 - the name that subprocess.run gives it
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl as the administrator; with `check`, a failure raises with what it printed."""
        return self.control_plane.kubectl(*args, input=input, check=check)


def session_folder(owner: int) -> Path:
    """The folder of the session whose first process has this id."""
    return cache_dir() / "run" / f"{PREFIX}{owner}"


def stop_all(state: Path) -> None:
    """Stop everything that a state folder records; the node first: it needs the API server to end well."""
    real_node.stop_state(state)
    simulated.stop_state(state)
    control_plane.stop_state(state)


def _gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def sweep() -> None:
    """Stop and remove what sessions left behind whose first process is gone."""
    for folder in (cache_dir() / "run").glob(f"{PREFIX}*"):
        owner = folder.name.removeprefix(PREFIX)
        if owner.isdigit() and _gone(int(owner)):
            end_session(folder)


def end_session(folder: Path) -> None:
    """Stop what a session has running and remove its folder; harmless if it never started anything."""
    for name in (REAL, SIMULATED):
        stop_all(folder / name)
    shutil.rmtree(folder, ignore_errors=True)


def shared_cluster(folder: Path, nodes: int, say: Callable[[str], None]) -> Cluster:
    """The cluster of a session, started on first use: an audit log and `nodes` simulated 8-GPU servers."""
    state = folder / SIMULATED
    with locked(folder / ".lock"):
        plane = ControlPlane.attach(state)
        kwok = SimulatedNodes.attach(plane) if plane else None
        if plane is None or kwok is None:
            stop_all(state)
            plane = ControlPlane.start(state, audit=True, say=say)
            kwok = SimulatedNodes.start(plane, say=say)
            for number in range(nodes):
                kwok.add_node(f"gpu-{number}")
    return Cluster(plane, kwok, plane.kubeconfig, plane.state / "audit.log")


def shared_real_cluster(folder: Path, say: Callable[[str], None]) -> RealCluster:
    """The real node of a session, started on first use; needs root on Debian."""
    state = folder / REAL
    with locked(folder / ".lock"):
        plane = ControlPlane.attach(state)
        node = RealNode.attach(plane) if plane else None
        if plane is None or node is None:
            stop_all(state)
            plane = ControlPlane.start(state, reachable_from_pods=True, say=say)
            node = RealNode.start(plane, say=say)
    return RealCluster(plane, node, plane.kubeconfig)
