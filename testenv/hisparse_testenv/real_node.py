"""This machine as a node that runs real pods: containerd, runc, CNI, kubelet, kube-proxy. Needs root."""

import contextlib
import hashlib
import os
import shutil
import subprocess
import time
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import psutil

from hisparse_testenv import images, process, tools
from hisparse_testenv.api import MERGE_PATCH
from hisparse_testenv.control_plane import POD_RANGE, ControlPlane, kubeconfig, own_address
from hisparse_testenv.images import Image
from hisparse_testenv.pki import issue
from hisparse_testenv.process import Process
from hisparse_testenv.simulated import gpu_labels

RECORD: Final = "real-node.json"
# the lower half of the pod range; simulated pods have the upper one
NODE_PODS: Final = "198.18.0.0/17"
CNI_BIN: Final = Path("/usr/lib/cni")
CNI_NETWORK: Final = "hisparse-testenv"
NAMESPACE: Final = "k8s.io"
CGROUP_ROOT: Final = "kubepods"
# what the lane needs and the Debian package that has it
PACKAGES: Final[dict[str, str]] = {
    "/usr/bin/containerd": "containerd",
    "/usr/sbin/runc": "runc",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
    "/usr/sbin/iptables": "iptables",
    "/usr/sbin/debootstrap": "debootstrap",
    "/bin/ip": "iproute2",
    "/bin/mount": "mount",
}
APT_LIMIT_S: Final = 900
START_LIMIT_S: Final = 90.0
DRAIN_LIMIT_S: Final = 30.0
COMMAND_LIMIT_S: Final = 300
FAMILIES: Final = ("iptables", "ip6tables")
HEADS: Final = ("KUBE-", "CNI-")


class RealNodeError(RuntimeError):
    """This machine cannot be a node; the message says why and what to do."""


def why_not() -> str | None:
    """What keeps this machine from being a node, None if nothing does: for tests that skip."""
    if os.geteuid() != 0:
        return "a real node needs root"
    if not Path("/etc/debian_version").exists() or shutil.which("apt-get") is None:
        return "a real node needs Debian 12 (apt-get and its containerd, runc and CNI packages)"
    return None


def install_packages(say: Callable[[str], None]) -> None:
    """Install the Debian packages that are missing."""
    missing = [package for path, package in PACKAGES.items() if not Path(path).exists()]
    if not missing:
        return
    say(f"installing Debian packages {' '.join(missing)}: usually half a minute")
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "-y", "-q", "--no-install-recommends", *missing]
    for words in (install, ["apt-get", "update", "-q"], install):
        done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=APT_LIMIT_S, check=False)
        if done.returncode == 0 and words is install:
            return
    raise RealNodeError(f"{' '.join(install)}: exit {done.returncode}\n{done.stderr[-2000:]}")


def _run(*words: str | Path, check: bool = True, limit_s: int = COMMAND_LIMIT_S) -> str:
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=limit_s, check=False)
    if check and done.returncode:
        raise RealNodeError(f"{' '.join(map(str, words))}: exit {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


@dataclass(frozen=True)
class _Places:
    """Where a node keeps its things: short paths, since a socket path has at most 107 bytes."""

    folder: Path
    run: Path
    bridge: str

    @property
    def socket(self) -> Path:
        return self.run / "containerd.sock"


def _places(state: Path) -> _Places:
    mark = hashlib.sha256(str(state.absolute()).encode()).hexdigest()[:8]
    name = f"hisparse-{mark}"
    return _Places(Path("/var/lib") / name, Path("/run") / name, f"hisp{mark}")


def _snapshotter(folder: Path) -> str:
    """Overlayfs where the kernel lets us mount one here, else plain copies."""
    parts = [folder / "probe" / name for name in ("lower", "upper", "work", "merged")]
    for part in parts:
        part.mkdir(parents=True, exist_ok=True)
    lower, upper, work, merged = parts
    words = ["mount", "-t", "overlay", "overlay", "-o", f"lowerdir={lower},upperdir={upper},workdir={work}"]
    works = subprocess.run([*words, str(merged)], capture_output=True, check=False).returncode == 0
    if works:
        _run("umount", merged)
    shutil.rmtree(folder / "probe")
    return "overlayfs" if works else "native"


def _containerd_config(places: _Places, snapshotter: str) -> str:
    # restrict_oom_score_adj: root without CAP_SYS_RESOURCE may not lower it, and every sandbox would die
    return f"""\
version = 2
root = "{places.folder}/containerd"
state = "{places.run}/containerd"
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.snapshotter.v1.btrfs"]

[grpc]
  address = "{places.socket}"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{images.PAUSE_REFERENCE}"
  restrict_oom_score_adj = true
  stream_server_address = "127.0.0.1"
  netns_mounts_under_state_dir = true

[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "{CNI_BIN}"
  conf_dir = "{places.folder}/cni"

[plugins."io.containerd.grpc.v1.cri".containerd]
  snapshotter = "{snapshotter}"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
"""


def _cni_config(places: _Places) -> dict[str, Any]:
    return {
        "cniVersion": "0.4.0",
        "name": CNI_NETWORK,
        "plugins": [
            {
                "type": "bridge",
                "bridge": places.bridge,
                "isGateway": True,
                "ipMasq": True,
                "hairpinMode": True,
                "ipam": {
                    "type": "host-local",
                    "dataDir": str(places.folder / "addresses"),
                    "ranges": [[{"subnet": NODE_PODS}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": True}},
        ],
    }


def _kubelet_config(places: _Places, authority: Path, cert: Path, key: Path, ports: Sequence[int]) -> dict[str, Any]:
    nearly_nothing = {"memory.available": "50Mi", "nodefs.available": "100Mi", "imagefs.available": "100Mi"}
    port, health = ports
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "port": port,
        "healthzPort": health,
        "healthzBindAddress": "127.0.0.1",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(authority)},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(cert),
        "tlsPrivateKeyFile": str(key),
        "containerRuntimeEndpoint": f"unix://{places.socket}",
        "cgroupDriver": "cgroupfs",
        "failCgroupV1": False,
        "failSwapOn": False,
        "enforceNodeAllocatable": [],
        "localStorageCapacityIsolation": False,
        "evictionHard": nearly_nothing,
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "registerNode": True,
        "syncFrequency": "10s",
        "nodeStatusUpdateFrequency": "10s",
        "serializeImagePulls": True,
        "volumePluginDir": str(places.folder / "volume-plugins"),
        "podLogsDir": str(places.folder / "pod-logs"),
    }


def _proxy_config(config: Path, name: str, address: str, ports: Sequence[int]) -> dict[str, Any]:
    health, metrics = ports
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": str(config)},
        "mode": "iptables",
        "clusterCIDR": POD_RANGE,
        "hostnameOverride": name,
        "bindAddress": address,
        # a reply must come back through us also between two pods on the one bridge
        "iptables": {"masqueradeAll": True},
        "conntrack": {"maxPerCore": 0},
        "healthzBindAddress": f"127.0.0.1:{health}",
        "metricsBindAddress": f"127.0.0.1:{metrics}",
    }


def _refuse_neighbours() -> None:
    for one in psutil.process_iter(["name"]):
        if one.info["name"] == "kubelet":
            raise RealNodeError(
                f"a kubelet already runs here (pid {one.pid}); a machine can be only one node: stop it first"
            )


@dataclass(frozen=True)
class RealNode:
    """This machine as a node. As a context manager it stops when the block ends and takes its traces away."""

    control_plane: ControlPlane
    name: str

    @classmethod
    def start(cls, control_plane: ControlPlane, *, name: str = "real-0", say: Callable[[str], None] = print) -> Self:
        """Join this machine to a control plane that was started with `reachable_from_pods`.

        Raises RealNodeError without root or Debian, StartError with the end of the log of what did not start.
        """
        if reason := why_not():
            raise RealNodeError(reason)
        if not control_plane.reachable_from_pods:
            raise RealNodeError("pods could not reach this control plane; start it with reachable_from_pods=True")
        stop_state(control_plane.state)
        _refuse_neighbours()
        install_packages(say)
        found = tools.ensure("real-node", say)
        pause = images.pause_image(say)
        begun = time.monotonic()
        try:
            node = cls(control_plane, name)
            _start(node, found, pause)
        except BaseException:
            stop_state(control_plane.state)
            raise
        say(f"node {name} ready in {time.monotonic() - begun:.1f} s")
        return node

    @classmethod
    def attach(cls, control_plane: ControlPlane) -> Self | None:
        """The node that runs beside this control plane, None unless all of its processes do."""
        record = process.read_json(control_plane.state / RECORD)
        if record is None or not all(map(process.alive, process.from_record(record))):
            return None
        return cls(control_plane, record["name"])

    @property
    def processes(self) -> tuple[Process, ...]:
        """containerd, kubelet and kube-proxy, as recorded in the state folder."""
        return process.from_record(process.read_json(self.control_plane.state / RECORD))

    def advertise_gpus(self, count: int, product: str = "NVIDIA-H200", *, gpu_memory_mib: int = 143771) -> None:
        """Give the node `count` GPUs that pods can ask for; nothing is mounted into these pods."""
        api, path = self.control_plane.api, f"/api/v1/nodes/{self.name}"
        labels = gpu_labels(product, count, gpu_memory_mib)
        api.request("PATCH", path, {"metadata": {"labels": labels}}, MERGE_PATCH)
        amount = {"nvidia.com/gpu": str(count)}
        api.request("PATCH", f"{path}/status", {"status": {"capacity": amount, "allocatable": amount}}, MERGE_PATCH)

    def import_image(self, image: Image | Path) -> None:
        """Load a docker-archive into containerd; pods use it with imagePullPolicy Never or IfNotPresent."""
        path = image.path if isinstance(image, Image) else image
        _ctr(_places(self.control_plane.state), "images", "import", str(path))

    def stop(self) -> None:
        """Stop all pods and processes of the node and take away mounts, bridge and packet rules."""
        stop_state(self.control_plane.state)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _ctr(places: _Places, *words: str, check: bool = True) -> str:
    return _run("ctr", f"--address={places.socket}", f"--namespace={NAMESPACE}", *words, check=check)


def _start(node: RealNode, found: Mapping[str, Path], pause: Image) -> None:
    plane = node.control_plane
    places, logs = _places(plane.state), plane.state / "logs"
    address = own_address()
    for folder in (places.folder, places.run, places.folder / "cni"):
        folder.mkdir(parents=True, exist_ok=True)
    started: list[Process] = []
    record: dict[str, Any] = {
        "name": node.name,
        "kube_proxy": str(found["kube-proxy"]),
        # rules of others must stay: chains that were here before are not ours to remove
        "chains_before": {family: _chains(family) for family in FAMILIES},
        "ip_forward_before": Path("/proc/sys/net/ipv4/ip_forward").read_text().strip(),
        "processes": [],
    }

    def component(name: str, *words: str | Path) -> None:
        started.append(process.spawn(name, words, logs / f"{name}.log"))
        record["processes"] = process.to_record(started)
        process.write_json(plane.state / RECORD, record)

    process.write_json(plane.state / RECORD, record)
    (places.folder / "containerd.toml").write_text(_containerd_config(places, _snapshotter(places.folder)))
    process.write_json(places.folder / "cni" / "10-hisparse.conflist", _cni_config(places))
    component("containerd", "containerd", f"--config={places.folder / 'containerd.toml'}")
    process.wait_for(
        "containerd",
        lambda: places.socket.exists() and "Version" in _ctr(places, "version", check=False),
        started,
        timeout_s=START_LIMIT_S,
    )
    node.import_image(pause)

    port, health, proxy_health, metrics = process.free_ports(4)
    user = issue(
        plane.authority,
        f"node-{node.name}",
        f"system:node:{node.name}",
        groups=("system:nodes",),
        names=(node.name, address),
    )
    config = kubeconfig(plane.state / f"node-{node.name}.kubeconfig", plane.server, plane.authority, user)
    kubelet_config = places.folder / "kubelet.json"
    process.write_json(
        kubelet_config, _kubelet_config(places, plane.authority.cert, user.cert, user.key, (port, health))
    )
    component(
        "kubelet",
        found["kubelet"],
        f"--config={kubelet_config}",
        f"--kubeconfig={config}",
        f"--root-dir={places.folder / 'kubelet'}",
        f"--hostname-override={node.name}",
        f"--node-ip={address}",
    )
    # the identity has its rights from the RBAC default role system:node-proxier
    proxy_user = plane.user("system:kube-proxy")
    proxy_config = places.folder / "kube-proxy.json"
    process.write_json(proxy_config, _proxy_config(proxy_user, node.name, address, (proxy_health, metrics)))
    component("kube-proxy", found["kube-proxy"], f"--config={proxy_config}")
    process.wait_for(
        f"node {node.name}",
        lambda: _ready(plane.api.get(f"/api/v1/nodes/{node.name}")),
        started,
        timeout_s=START_LIMIT_S,
        poll_s=0.2,
    )


def _ready(node: Mapping[str, Any] | None) -> bool:
    if node is None:
        return False
    conditions = {one["type"]: one["status"] for one in node["status"].get("conditions", ())}
    taints = {one["key"] for one in node["spec"].get("taints", ())}
    return conditions.get("Ready") == "True" and "node.kubernetes.io/not-ready" not in taints


def _chains(family: str) -> list[str]:
    """Packet-filter chains whose names say kube-proxy or CNI, as table/chain."""
    if shutil.which(f"{family}-save") is None:
        return []
    found, table = [], ""
    for line in _run(f"{family}-save", check=False).splitlines():
        if line.startswith("*"):
            table = line[1:]
        elif line.startswith(":") and line[1:].startswith(HEADS):
            found.append(f"{table}/{line[1:].split()[0]}")
    return found


def _drop_chains(family: str, before: Sequence[str]) -> None:
    """Remove the chains that came since, and the rules that jump to them."""
    names = {chain.split("/", 1)[1] for chain in set(_chains(family)) - set(before)}
    if not names:
        return
    lines = _run(f"{family}-save").splitlines()
    kept = [line for line in lines if not (set(line.removeprefix(":").split()) & names)]
    words = [f"{family}-restore"]
    subprocess.run(words, input="\n".join(kept) + "\n", text=True, timeout=COMMAND_LIMIT_S, check=True)


def _delete_pods(plane: ControlPlane, name: str, kubelet: Process) -> None:
    """Have the kubelet end its pods the orderly way, with their networks; what is left is swept later."""
    selector = urllib.parse.quote(f"spec.nodeName={name}")
    api = plane.api
    api.request("PATCH", f"/api/v1/nodes/{name}", {"spec": {"unschedulable": True}}, MERGE_PATCH)
    deadline = time.monotonic() + DRAIN_LIMIT_S
    while time.monotonic() < deadline and process.alive(kubelet):
        pods = api.request("GET", f"/api/v1/pods?fieldSelector={selector}")["items"]
        if not pods:
            return
        for pod in pods:
            meta = pod["metadata"]
            if "deletionTimestamp" not in meta:
                path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}?gracePeriodSeconds=1"
                with contextlib.suppress(RuntimeError):
                    api.request("DELETE", path)
        time.sleep(0.2)


def _shims(places: _Places) -> list[Process]:
    found: list[Process] = []
    for one in psutil.process_iter(["name", "cmdline", "create_time"]):
        words = one.info["cmdline"] or []
        if words and "containerd-shim" in words[0] and any(str(places.socket) in word for word in words):
            found.append(Process(one.info["name"], one.pid, one.info["create_time"], ""))
    return found


def _in_containers(places: _Places) -> list[Process]:
    """Whatever our shims still hold, deepest first."""
    found: list[Process] = []
    for shim in _shims(places):
        with contextlib.suppress(psutil.NoSuchProcess):
            below = reversed(psutil.Process(shim.pid).children(recursive=True))
            found.extend(Process(one.name(), one.pid, one.create_time(), "") for one in below)
    return found


def _unmount(*folders: Path) -> None:
    mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    heads = tuple(f"{folder}/" for folder in folders)
    for mount in sorted(mounts, key=len, reverse=True):
        if mount.startswith(heads):
            _run("umount", "--lazy", mount, check=False)


def _drop_cgroups() -> None:
    # version 1 has a tree for each controller, version 2 one for all
    root = Path("/sys/fs/cgroup")
    for top in (*root.glob(f"*/{CGROUP_ROOT}"), *root.glob(CGROUP_ROOT)):
        for folder in sorted(top.rglob("*/"), key=lambda path: len(path.parts), reverse=True):
            with contextlib.suppress(OSError):
                folder.rmdir()
        with contextlib.suppress(OSError):
            top.rmdir()


def stop_state(state: Path) -> None:
    """Stop the node that `state` records and clear up after it; harmless to repeat."""
    record = process.read_json(state / RECORD)
    if record is None:
        return
    places = _places(state)
    components = {one.name: one for one in process.from_record(record)}
    plane = ControlPlane.attach(state)
    if plane and "kubelet" in components and process.alive(components["kubelet"]):
        # a node that never registered has no pods to end
        with contextlib.suppress(RuntimeError, OSError):
            _delete_pods(plane, record["name"], components["kubelet"])
    process.stop([one for name, one in components.items() if name in ("kubelet", "kube-proxy")])
    process.stop(_in_containers(places), grace_s=1)
    process.stop([one for name, one in components.items() if name == "containerd"])
    process.stop(_shims(places), grace_s=1)
    _unmount(places.folder, places.run)
    if shutil.which("ip"):
        _run("ip", "link", "delete", places.bridge, check=False)
    for family, before in record["chains_before"].items():
        _drop_chains(family, before)
    Path("/proc/sys/net/ipv4/ip_forward").write_text(record["ip_forward_before"])
    _drop_cgroups()
    for folder in (places.folder, places.run):
        shutil.rmtree(folder, ignore_errors=True)
    (state / RECORD).unlink(missing_ok=True)
