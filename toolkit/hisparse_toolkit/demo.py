"""`hisparse demo`: the main job end to end, every command shown, every claim checked."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hisparse_testenv.process import StartError, cache_dir
from hisparse_testenv.tools import ToolError
from hisparse_toolkit.demo_cluster import CRD, Ground, RefusedError, existing_ground, local_ground
from hisparse_toolkit.kubectl import Kubectl, StepError
from hisparse_toolkit.manifest import Manifest, read_manifest
from hisparse_toolkit.narrator import Narrator
from hisparse_toolkit.operator_process import OperatorProcess, start_operator, stopped_at_end
from hisparse_toolkit.paint import console_for
from hisparse_toolkit.problems import ExitCode
from hisparse_toolkit.streams import tell

FITS: Final = Path("examples/glm-5.3-1m.yaml")
DOES_NOT_FIT: Final = Path("examples/does-not-fit.yaml")
CRD_FILE: Final = Path("crds/inference.hisparse.dev_hisparseinferences.yaml")
CHILDREN: Final = "rs,pods,svc,cm,sa,netpol,pdb,controllerrevisions"
OURS: Final = "-l=inference.hisparse.dev/inference"

_POLL_S: Final = 0.5
_GONE_LIMIT_S: Final = 60.0
_CONDITIONS: Final = 'jsonpath={range .status.conditions[*]}{.type}={.status} {.reason}: {.message}{"\\n"}{end}'
_NODE_COLUMNS: Final = (
    "custom-columns=NAME:.metadata.name,PRODUCT:.metadata.labels.nvidia\\.com/gpu\\.product,"
    "GPUS:.status.allocatable.nvidia\\.com/gpu,MEMORY:.status.allocatable.memory"
)


@dataclass(frozen=True)
class DemoOptions:
    """What the command line says. wait_s bounds every wait for the cluster."""

    kubeconfig: Path | None = None
    keep: bool = False
    yes: bool = False
    wait_s: int = 60


def run_demo(options: DemoOptions) -> int:
    """Play the demo and return the exit code: 0 only where every step showed what it should."""
    root = checkout()
    if root is None:
        tell("demo: needs the source checkout with examples/ and crds/; run `make demo` there")
        return ExitCode.BAD_INPUT
    if options.kubeconfig is not None and not options.kubeconfig.is_file():
        tell(f"--kubeconfig: {options.kubeconfig} is not a file; name a kubeconfig")
        return ExitCode.BAD_INPUT
    problem = _cache_problem()
    if problem is not None:
        tell(f"demo: {problem}; set XDG_CACHE_HOME to a folder that can")
        return ExitCode.UNKNOWN
    narrator = Narrator(console_for())
    left = "--keep leaves what was started" if options.keep else "what was started is gone again"
    try:
        with _interruptible(), contextlib.chdir(root):
            return _play(options, narrator)
    except RefusedError as error:
        tell(f"demo: {error}")
        return ExitCode.BAD_INPUT
    except (StartError, ToolError, StepError) as error:
        # before the first step: there is no cluster to show anything on
        narrator.failed(str(error))
        return ExitCode.UNKNOWN
    except _TerminatedError:
        narrator.stopped(f"by SIGTERM; {left}")
        return ExitCode.TERMINATED
    except KeyboardInterrupt:
        narrator.stopped(f"by hand; {left}")
        return ExitCode.INTERRUPTED


def _cache_problem() -> str | None:
    """Why nothing can be started or built here, None where it can: the demo's state is in the cache."""
    folder = cache_dir() / "run"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return f"{folder} cannot be made ({error.strerror})"
    return None if os.access(folder, os.W_OK | os.X_OK) else f"{folder} cannot be written"


def checkout() -> Path | None:
    """The folder with examples/ and crds/: the checkout that this module runs from, else the current folder."""
    places = (Path(__file__).resolve().parents[2], Path.cwd())
    return next((one for one in places if all((one / file).is_file() for file in (FITS, DOES_NOT_FIT, CRD_FILE))), None)


class _TerminatedError(KeyboardInterrupt):
    """SIGTERM, which like Ctrl-C is no Exception: nothing between here and the end takes it for a fault."""


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """SIGTERM ends the demo as Ctrl-C does: with everything cleaned up."""

    def interrupt(number: int, frame: object) -> None:
        del number, frame
        raise _TerminatedError

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _play(options: DemoOptions, narrator: Narrator) -> int:
    if options.kubeconfig is None:
        narrator.step("A local Kubernetes with two simulated servers, eight H200 each")
        ground_of: AbstractContextManager[Ground] = local_ground(narrator, keep=options.keep)
    else:
        narrator.step("A namespace of its own on the cluster of the kubeconfig")
        ground_of = existing_ground(
            narrator, options.kubeconfig.absolute(), CRD_FILE, keep=options.keep, yes=options.yes
        )
    with ground_of as ground:
        problem = _story(ground, narrator, options)
        if problem is not None:
            narrator.failed(problem)
    if problem is not None:
        return ExitCode.NO
    left = "" if options.keep else "; nothing is left running"
    narrator.shown(f"everything showed what it should, in {narrator.elapsed_s:.0f} s{left}")
    return ExitCode.YES


def _story(ground: Ground, narrator: Narrator, options: DemoOptions) -> str | None:
    """Play every step on this ground; the reason why it ended early, None where all is well."""
    story = Story(ground, narrator, options.wait_s, read_manifest(str(FITS)), read_manifest(str(DOES_NOT_FIT)))
    operator: OperatorProcess | None = None
    try:
        story.nodes()
        story.install()
        operator = story.operator()
        with stopped_at_end(operator, keep=options.keep):
            story.plan()
            story.serve()
            story.refuse()
            story.scale()
            if not options.keep:
                story.delete()
    except StepError as error:
        if operator is not None:
            narrator.say(f"the end of the operator's log ({ground.log}):")
            narrator.output(operator.log_end())
        return str(error)
    finally:
        if options.keep:
            _tell_kept(ground, narrator, operator)
    return None


def _tell_kept(ground: Ground, narrator: Narrator, operator: OperatorProcess | None) -> None:
    narrator.step("Kept, as --keep asks; to remove it all:")
    if operator is not None:
        narrator.command(f"kill {operator.running.pid}")
    if ground.local:
        narrator.command(f"python -m hisparse_testenv down --state {ground.log.parent.parent}")
        return
    narrator.command(f"kubectl delete namespace {ground.kubectl.namespace}")
    if not ground.has_crd:
        narrator.command(f"kubectl delete crd {CRD}")


class Story:
    """The steps, in order. Each shows something and raises StepError where it is not there."""

    def __init__(self, ground: Ground, narrator: Narrator, wait_s: int, fits: Manifest, does_not_fit: Manifest) -> None:
        self._ground = ground
        self._tell = narrator
        self._wait_s = wait_s
        self._fits = fits
        self._refused = does_not_fit

    @property
    def _kubectl(self) -> Kubectl:
        return self._ground.kubectl

    def nodes(self) -> None:
        """The nodes and what they have."""
        self._kubectl.show("get", "nodes", "-o", _NODE_COLUMNS)

    def install(self) -> None:
        """The CRD, by plain kubectl."""
        self._tell.step("The CRD")
        if self._ground.has_crd:
            self._tell.say("the cluster has this very CRD already; it is left alone")
        else:
            self._kubectl.show("apply", "--server-side", "--force-conflicts", "-f", str(CRD_FILE))
        self._until_served()
        self._kubectl.show("wait", "--for=condition=Established", f"crd/{CRD}", "--timeout=30s")

    def operator(self) -> OperatorProcess | None:
        """The operator, as a process of this machine."""
        if not self._ground.runs_operator:
            return None
        self._tell.step("The operator")
        namespace = self._kubectl.namespace or "default"
        if self._ground.alone_in:
            self._tell.say("this cluster has objects of others: the operator serves the demo's namespace alone")
        operator = start_operator(
            self._kubectl.kubeconfig,
            self._ground.log,
            self._tell,
            lease_namespace=namespace,
            namespace=self._ground.alone_in,
        )
        self._tell.shown("it leads and has seen what it serves")
        return operator

    def plan(self) -> None:
        """The plan, which needs no cluster."""
        self._tell.step("What will happen, before anything is applied: the plan")
        words = ["plan", "-f", str(FITS), "--host-memory", "2Ti"]
        self._tell.command(shlex.join(["hisparse", *words]))
        begun = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "hisparse_toolkit", *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        took = time.monotonic() - begun
        text, _, rest = done.stdout.partition("export ")
        self._tell.output(text + ("...\n" if rest else "") + done.stderr)
        if done.returncode not in (ExitCode.YES, ExitCode.WARNING):
            raise StepError(f"hisparse plan ended with {done.returncode}, expected 0 or 1")
        warned = ", with warnings" if done.returncode == ExitCode.WARNING else ""
        self._tell.shown(f"it fits{warned}; the answer took {took:.1f} s")

    def serve(self) -> None:
        """The object is applied, planned, its pods are scheduled and it becomes Ready."""
        name = self._fits.name
        self._tell.step("Apply it: planned, scheduled, Ready")
        self._kubectl.show("apply", "-f", str(FITS))
        self._wait(f"hsi/{name}", "condition=Ready")
        self._kubectl.show("get", "hsi", name, "-o", "wide")
        self._kubectl.show("get", "pods", "-o", "wide", f"-l=inference.hisparse.dev/inference={name}")
        self._kubectl.show("get", CHILDREN.replace("pods,", ""), f"-l=inference.hisparse.dev/inference={name}")
        self._kubectl.show("get", "hsi", name, "-o", _CONDITIONS)
        self._kubectl.show("get", "hsi", name, "-o", 'jsonpath={.status.plan.summary}{"\\n"}')
        self._kubectl.show("describe", "hsi", name, shown_from="Events:")
        self._check("Ready is True", self._condition(name, "Ready"), lambda one: one["status"] == "True")
        pods = self._pods(name)
        self._check("one pod runs, on a node that fits", len(pods), lambda count: count == 1)

    def refuse(self) -> None:
        """An object that does not fit says why and gets no pods."""
        name = self._refused.name
        self._tell.step("Apply one that does not fit: it says why, and gets no pods")
        self._kubectl.show("apply", "-f", str(DOES_NOT_FIT))
        self._wait(f"hsi/{name}", "condition=PlanFeasible=False")
        self._kubectl.show("get", "hsi", "-o", "wide")
        self._kubectl.show("get", "hsi", name, "-o", _CONDITIONS)
        condition = self._condition(name, "PlanFeasible")
        self._check("PlanFeasible names a shortfall", condition["reason"], lambda one: one == "HBMInsufficient")
        self._check("the message says what to change", condition["message"], lambda one: "maxTokens" in one)
        self._check("it has no pods", len(self._pods(name)), lambda count: count == 0)

    def scale(self) -> None:
        """A second replica on the second node, and back."""
        name = self._fits.name
        self._tell.step("Scale it to both nodes")
        self._kubectl.show("scale", f"hsi/{name}", "--replicas=2")
        self._wait(f"hsi/{name}", "jsonpath={.status.readyReplicas}=2")
        self._wait(f"hsi/{name}", "condition=Ready")
        self._kubectl.show("get", "pods", "-o", "wide", f"-l=inference.hisparse.dev/inference={name}")
        nodes = sorted({pod["spec"].get("nodeName", "none") for pod in self._pods(name)})
        self._check("each replica has a node of its own", nodes, lambda seen: len(seen) == 2)  # noqa: PLR2004

    def delete(self) -> None:
        """Deleting the objects leaves nothing."""
        self._tell.step("Delete them: nothing is left")
        limit = f"--timeout={self._wait_s}s"
        self._kubectl.show("delete", "-f", str(FITS), "-f", str(DOES_NOT_FIT), limit, limit_s=self._wait_s + 30)
        begun = time.monotonic()
        with self._tell.busy(
            "waiting until the garbage collector has taken the children: usually 1 to 40 s, as it looks for new CRDs "
            "every 30 s"
        ):
            while self._children() and time.monotonic() - begun < _GONE_LIMIT_S:
                time.sleep(_POLL_S)
        self._kubectl.show("get", CHILDREN, OURS)
        self._check("no child is left", self._children(), lambda left: not left)

    def _until_served(self) -> None:
        """Wait until a fresh CRD has conditions: kubectl wait stumbles over one whose conditions are still null."""
        begun = time.monotonic()
        while not ((self._kubectl.read("crd", CRD) or {}).get("status") or {}).get("conditions"):
            if time.monotonic() - begun > self._wait_s:
                raise StepError(f"crd/{CRD} has no conditions after {self._wait_s} s")
            time.sleep(_POLL_S)

    # --- looking at the cluster ------------------------------------------------------------------------------

    def _wait(self, what: str, condition: str) -> None:
        limit = f"--timeout={self._wait_s}s"
        words = ("wait", what, f"--for={condition}", limit)
        try:
            self._kubectl.show(*words, limit_s=self._wait_s + 30)
        except StepError as error:
            name = what.rpartition("/")[2]
            seen = self._kubectl.quietly("get", "hsi", name, "-o", _CONDITIONS).stdout.strip()
            raise StepError(f"{error}\nits conditions then:\n{seen or 'none'}") from None

    def _condition(self, name: str, kind: str) -> dict[str, Any]:
        conditions = self._kubectl.read("hsi", name).get("status", {}).get("conditions", ())
        found: dict[str, Any] | None = next((one for one in conditions if one["type"] == kind), None)
        if found is None:
            raise StepError(f"hsi/{name} has no condition {kind}")
        return found

    def _pods(self, name: str) -> list[dict[str, Any]]:
        return self._kubectl.items("pods", f"-l=inference.hisparse.dev/inference={name}")

    def _children(self) -> list[str]:
        return [f"{one['kind']} {one['metadata']['name']}" for one in self._kubectl.items(CHILDREN, OURS)]

    def _check(self, claim: str, seen: Any, holds: Callable[[Any], bool]) -> None:  # noqa: ANN401
        if not holds(seen):
            raise StepError(f"{claim}: expected, and seen was {seen}")
        self._tell.shown(claim)
