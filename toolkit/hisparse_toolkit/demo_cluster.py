"""Where the demo plays: a control plane of its own with simulated nodes, or a cluster that exists.

Both leave things as they found them: the first is removed as a whole, of the second only what was made here.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum, auto
from pathlib import Path
from typing import Any, Final

import psutil

from hisparse_testenv import process, shared, tools
from hisparse_testenv.control_plane import ControlPlane
from hisparse_testenv.simulated import SimulatedNodes
from hisparse_toolkit.kubectl import Kubectl, StepError
from hisparse_toolkit.narrator import Narrator

NODES: Final = ("gpu-0", "gpu-1")
CRD: Final = "hisparseinferences.inference.hisparse.dev"
KEPT: Final = "demo-kept"
_PREFIX: Final = "demo-"
_DELETE_LIMIT_S: Final = 90.0
_DIFFERS: Final = 1
_LEASE: Final = "hisparse-operator"


@dataclass(frozen=True)
class Ground:
    """A cluster to play on. log is where the operator's output goes. has_crd: our CRD is there as it should be.

    runs_operator: nobody else's operator serves this cluster, so the demo starts one; alone_in says in which
    namespace it has to stay, because objects of others are there.
    """

    kubectl: Kubectl
    log: Path
    local: bool
    has_crd: bool = False
    runs_operator: bool = True
    alone_in: str | None = None


class RefusedError(Exception):
    """The demo would change what is not its own; the message says how to allow it."""


# --- a cluster of its own ----------------------------------------------------------------------------------------


@contextmanager
def local_ground(narrator: Narrator, *, keep: bool) -> Iterator[Ground]:
    """A fresh control plane and two simulated servers with eight H200 each."""
    _sweep()
    folder = process.cache_dir() / "run" / (KEPT if keep else f"{_PREFIX}{os.getpid()}")
    try:
        with narrator.busy("starting etcd and Kubernetes: usually 5 to 15 s, once 14 minutes of building before"):
            plane = ControlPlane.start(folder, say=narrator.say)
        with narrator.busy("starting kwok, which plays the kubelets of two nodes: usually 2 to 5 s"):
            nodes = SimulatedNodes.start(plane, say=narrator.say)
            for name in NODES:
                nodes.add_node(name)
        narrator.say("to look around from another shell while this runs:")
        narrator.command(f"export KUBECONFIG={plane.kubeconfig} PATH={plane.kubectl_path.parent}:$PATH")
        kubectl = Kubectl(plane.kubectl_path, plane.kubeconfig, None, narrator)
        yield Ground(kubectl, folder / "logs" / "hisparse-operator.log", local=True)
    finally:
        if not keep:
            with _undisturbed(), narrator.busy("stopping everything: usually 1 to 3 s"):
                shared.stop_all(folder)
                shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """A second Ctrl-C does not leave half of it behind."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _sweep() -> None:
    """Remove what demos left behind that could not clean up, killed for example."""
    for folder in (process.cache_dir() / "run").glob(f"{_PREFIX}*"):
        owner = folder.name.removeprefix(_PREFIX)
        if owner.isdigit() and not psutil.pid_exists(int(owner)):
            shared.stop_all(folder)
            shutil.rmtree(folder, ignore_errors=True)


# --- a cluster that exists ---------------------------------------------------------------------------------------


@contextmanager
def existing_ground(narrator: Narrator, kubeconfig: Path, crd: Path, *, keep: bool, yes: bool) -> Iterator[Ground]:
    """A namespace of its own on somebody's cluster. Raises RefusedError before anything is changed."""
    kubectl = Kubectl(_kubectl_path(narrator), kubeconfig, None, narrator)
    found = _judge_crd(kubectl, crd, yes=yes)
    holder = _operator_holder(kubectl)
    if holder is not None:
        narrator.say(f"an operator serves this cluster already ({holder}); the demo uses it and starts none")
    namespace = f"hisparse-demo-{secrets.token_hex(3)}"
    others = [] if found is _Crd.ABSENT else kubectl.items(CRD, "-A")
    state = process.cache_dir() / "run" / f"demo-log-{namespace}"
    state.mkdir(parents=True, exist_ok=True)
    narrator.command(f"export KUBECONFIG={kubeconfig}")
    try:
        kubectl.show("create", "namespace", namespace)
        placed = Kubectl(kubectl.path, kubeconfig, namespace, narrator)
        alone = namespace if others else None
        yield Ground(
            placed,
            state / "hisparse-operator.log",
            local=False,
            has_crd=found is _Crd.SAME,
            runs_operator=holder is None,
            alone_in=alone,
        )
    finally:
        if not keep:
            with _undisturbed():
                _clean(kubectl, namespace, drop_crd=found is _Crd.ABSENT)
                shutil.rmtree(state, ignore_errors=True)


def _kubectl_path(narrator: Narrator) -> Path:
    own = shutil.which("kubectl")
    return Path(own) if own else tools.ensure("control-plane", narrator.say)["kubectl"]


class _Crd(Enum):
    """What the cluster has where ours should be."""

    ABSENT = auto()
    SAME = auto()
    OTHER = auto()


def _judge_crd(kubectl: Kubectl, crd: Path, *, yes: bool) -> _Crd:
    """Look, and refuse to go on where somebody else's CRD would be replaced without being asked to."""
    if kubectl.read("crd", CRD) is None:
        return _Crd.ABSENT
    done = kubectl.quietly("diff", "--server-side", "--force-conflicts", "-f", str(crd))
    if done.returncode > _DIFFERS:
        raise StepError(f"kubectl diff -f {crd} ended with {done.returncode}: {done.stderr.strip()}")
    if done.returncode == 0:
        return _Crd.SAME
    if not yes:
        raise RefusedError(
            f"the cluster has a CRD {CRD} that differs from {crd}; add --yes to replace it (it stays replaced), or "
            "use another cluster"
        )
    return _Crd.OTHER


def _operator_holder(kubectl: Kubectl) -> str | None:
    """Who holds the operator's Lease in any namespace; an abandoned one is no holder."""
    for lease in kubectl.items("lease", "-A", f"--field-selector=metadata.name={_LEASE}"):
        spec = lease["spec"]
        renewed, holder = spec.get("renewTime"), spec.get("holderIdentity")
        if not renewed or not holder:
            continue
        age = datetime.now(UTC) - datetime.fromisoformat(renewed)
        if age < timedelta(seconds=4 * int(spec.get("leaseDurationSeconds") or 15)):
            return f"{holder} in namespace {lease['metadata']['namespace']}"
    return None


def _clean(kubectl: Kubectl, namespace: str, *, drop_crd: bool) -> None:
    """Remove what was made here, each part even where another could not be removed."""
    limit = f"--timeout={_DELETE_LIMIT_S:g}s"
    wanted = [("delete", "namespace", namespace, "--ignore-not-found", limit)]
    if drop_crd and not any(one["metadata"]["namespace"] != namespace for one in _instances(kubectl)):
        wanted.append(("delete", "crd", CRD, "--ignore-not-found", limit))
    for words in wanted:
        try:
            kubectl.show(*words, limit_s=_DELETE_LIMIT_S + 10)
        except (StepError, OSError, subprocess.SubprocessError) as error:
            kubectl.narrator.failed(f"cleaning up: {error}")


def _instances(kubectl: Kubectl) -> list[dict[str, Any]]:
    try:
        return kubectl.items(CRD, "-A") if kubectl.read("crd", CRD) is not None else []
    except StepError:
        # better to leave the CRD than to take somebody's objects with it
        return [{"metadata": {"namespace": "unknown"}}]
