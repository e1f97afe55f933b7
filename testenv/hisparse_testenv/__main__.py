"""Command line of the test environment: python -m hisparse_testenv up."""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from hisparse_testenv import process, shared, tools
from hisparse_testenv.api import ApiError
from hisparse_testenv.control_plane import ControlPlane
from hisparse_testenv.images import ImageError
from hisparse_testenv.process import StartError
from hisparse_testenv.real_node import RealNode, RealNodeError
from hisparse_testenv.simulated import GPU_TAINT, SimulatedNodes

FAILED: Final = 1
NOT_RUNNING: Final = 3


def _running(state: Path) -> ControlPlane | None:
    plane = ControlPlane.attach(state)
    if plane is None:
        print(f"nothing runs in {state}; start it with: python -m hisparse_testenv up --state {state}")
    return plane


def _up(options: argparse.Namespace) -> int:
    state: Path = options.state
    plane = ControlPlane.attach(state)
    if plane is None:
        shared.stop_all(state)
        plane = ControlPlane.start(state, audit=options.audit, reachable_from_pods=options.real)
    elif options.real and not plane.reachable_from_pods:
        print("the control plane that runs here is closed to pods; run `down` first, then `up --real`")
        return FAILED
    simulated = SimulatedNodes.attach(plane) or SimulatedNodes.start(plane)
    for number in range(options.simulated):
        name = f"gpu-{number}"
        if plane.api.get(f"/api/v1/nodes/{name}") is None:
            # on a mixed cluster a pod must ask to be simulated
            simulated.add_node(name, taints=[GPU_TAINT] if options.real else ())
    if options.real:
        node = RealNode.attach(plane) or RealNode.start(plane)
        if options.gpus:
            node.advertise_gpus(options.gpus)
    print(f"\nexport KUBECONFIG={plane.kubeconfig}")
    print(f"{plane.kubectl_path} get nodes")
    print(f"python -m hisparse_testenv down --state {state}")
    return 0


def _down(options: argparse.Namespace) -> int:
    shared.stop_all(options.state)
    print(f"stopped; logs are in {options.state / 'logs'}")
    return 0


def _status(options: argparse.Namespace) -> int:
    records = ("control-plane.json", "simulated.json", "real-node.json")
    found = [one for name in records for one in process.from_record(process.read_json(options.state / name))]
    for one in found:
        print(f"{one.name:26} {'running' if process.alive(one) else 'ended':8} pid {one.pid:<8} {one.log}")
    plane = _running(options.state)
    if plane is None:
        return NOT_RUNNING
    print(f"\n{plane.kubectl('get', 'nodes').stdout}\nexport KUBECONFIG={plane.kubeconfig}")
    return 0


def _tools(options: argparse.Namespace) -> int:
    for group in [options.group] if options.group else list(tools.GROUPS):
        for name, path in tools.ensure(group, print).items():
            print(f"{name:26} {path}")
    return 0


def _kubeconfig(options: argparse.Namespace) -> int:
    plane = _running(options.state)
    if plane is None:
        return NOT_RUNNING
    print(plane.kubeconfig)
    return 0


def _add_node(options: argparse.Namespace) -> int:
    plane = _running(options.state)
    if plane is None:
        return NOT_RUNNING
    nodes = SimulatedNodes.attach(plane) or SimulatedNodes.start(plane)
    nodes.add_node(
        options.node,
        product=options.product,
        gpus=options.gpus,
        memory=options.memory,
        gpu_memory_mib=options.gpu_memory_mib,
        taints=[GPU_TAINT] if options.taint else (),
    )
    print(f"node {options.node} is ready")
    return 0


def _import_image(options: argparse.Namespace) -> int:
    plane = _running(options.state)
    node = RealNode.attach(plane) if plane else None
    if node is None:
        print("no real node runs here; start one with: up --real")
        return NOT_RUNNING
    node.import_image(options.archive)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m hisparse_testenv", description="A real Kubernetes control plane on this machine."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, act: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        one = commands.add_parser(name, help=text, description=text)
        one.set_defaults(act=act)
        one.add_argument(
            "--state",
            type=lambda text: Path(text).absolute(),
            default=process.cache_dir() / "run" / "default",
            help="folder of the running cluster (default: %(default)s)",
        )
        return one

    up = command("up", _up, "start a control plane and its nodes; what already runs stays")
    up.add_argument("--simulated", type=int, default=2, metavar="N", help="simulated 8-GPU servers (default: 2)")
    up.add_argument("--real", action="store_true", help="make this machine a node as well (root, Debian 12)")
    up.add_argument("--gpus", type=int, default=0, metavar="N", help="GPUs that the real node claims to have")
    up.add_argument("--audit", action="store_true", help="log every request to STATE/audit.log")
    command("down", _down, "stop everything that was started in the state folder")
    command("status", _status, "show processes and nodes")
    tools_command = command("tools", _tools, "find or build the binaries and print their paths")
    tools_command.add_argument("--group", choices=sorted(tools.GROUPS), help="one group (default: all)")
    command("kubeconfig", _kubeconfig, "print the path of the administrator's kubeconfig")
    add = command("add-node", _add_node, "add a simulated GPU server")
    add.add_argument("node", help="name of the node")
    add.add_argument("--product", default="NVIDIA-H200")
    add.add_argument("--gpus", type=int, default=8)
    add.add_argument("--memory", default="2Ti", help="main memory (default: %(default)s)")
    add.add_argument("--gpu-memory-mib", type=int, default=143771)
    add.add_argument("--taint", action="store_true", help="taint it nvidia.com/gpu=present:NoSchedule")
    load = command("import-image", _import_image, "load a docker-archive into the real node")
    load.add_argument("archive", type=Path)
    return parser


def main(words: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0, 1 for a failure that is explained, 3 if nothing runs."""
    options = _parser().parse_args(words)
    act: Callable[[argparse.Namespace], int] = options.act
    try:
        return act(options)
    except (tools.ToolError, StartError, RealNodeError, ImageError, ApiError) as error:
        print(f"error: {error}", file=sys.stderr)
        return FAILED


if __name__ == "__main__":
    sys.exit(main())
