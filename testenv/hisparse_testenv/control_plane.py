"""etcd, kube-apiserver, kube-controller-manager and kube-scheduler as ordinary processes, without root."""

import ipaddress
import json
import os
import shutil
import socket
import ssl
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from hisparse_testenv import process, tools
from hisparse_testenv.api import Api
from hisparse_testenv.pki import Pair, create_authority, issue, write_key, write_public
from hisparse_testenv.process import Process, StartError

# the benchmarking range of RFC 2544: nothing of ours looks like somebody's private network
POD_RANGE: Final = "198.18.0.0/16"
SERVICE_RANGE: Final = "198.19.0.0/16"
LOOPBACK: Final = "127.0.0.1"

START_LIMIT_S: Final = 60.0
KUBECTL_LIMIT_S: Final = 120.0
ATTEMPTS: Final = 3
TMPFS: Final = Path("/dev/shm")
TMPFS_ROOM_BYTES: Final = 2 * 1024**3
ADMIN_GROUPS: Final = ("system:masters",)
NAMES: Final = (
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
)
# one file says all: a rotated log would lose what a "no writes" test looks for
AUDIT_LOG_MIB: Final = 4096
_LEASES: Final = {"group": "coordination.k8s.io", "resources": ["leases"]}
AUDIT_POLICY: Final[dict[str, Any]] = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        # heartbeats of kubelets, kwok and the API server itself; the Leases of our own programs are of interest
        *(
            {"level": "None", "userGroups": [group], "resources": [_LEASES]}
            for group in ("system:masters", "system:nodes")
        ),
        {"level": "None", "nonResourceURLs": ["/healthz*", "/livez*", "/readyz*", "/openapi*"]},
        {"level": "Metadata"},
    ],
}


def _first_address(network: str) -> str:
    return str(ipaddress.ip_network(network)[1])


def own_address() -> str:
    """The address of this machine that a pod can reach: the one its default route would use.

    Raises StartError on a machine without a route.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # connecting a datagram socket sends nothing; the address is of the documentation range
            probe.connect(("203.0.113.1", 9))
        except OSError as error:
            raise StartError(f"this machine has no route for pods to reach the API server: {error}") from error
        return str(probe.getsockname()[0])


def _data_dir(state: Path) -> Path:
    try:
        if shutil.disk_usage(TMPFS).free >= TMPFS_ROOM_BYTES and os.access(TMPFS, os.W_OK):
            return Path(tempfile.mkdtemp(prefix="hisparse-etcd-", dir=TMPFS))
    except FileNotFoundError:
        pass
    folder = state / "etcd"
    folder.mkdir(mode=0o700)
    return folder


def kubeconfig(path: Path, server: str, authority: Pair, user: Pair) -> Path:
    """Write a kubeconfig that names the certificates by their paths."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "hisparse", "cluster": {"server": server, "certificate-authority": str(authority.cert)}}],
        "users": [
            {
                "name": "hisparse",
                "user": {"client-certificate": str(user.cert), "client-key": str(user.key)},
            }
        ],
        "contexts": [{"name": "hisparse", "context": {"cluster": "hisparse", "user": "hisparse"}}],
        "current-context": "hisparse",
    }
    path.write_text(json.dumps(config, indent=2) + "\n")
    path.chmod(0o600)
    return path


@dataclass(frozen=True)
class ControlPlane:
    """A running control plane. As a context manager it stops when the block ends."""

    state: Path
    server: str
    kubeconfig: Path
    audit_log: Path | None
    kubectl_path: Path
    reachable_from_pods: bool = False

    @classmethod
    def start(
        cls,
        state: Path,
        *,
        audit: bool = False,
        audit_policy: Path | None = None,
        reachable_from_pods: bool = False,
        say: Callable[[str], None] = print,
    ) -> "ControlPlane":
        """Start a fresh control plane whose files lie in `state`; what an earlier one left there goes away.

        `audit` logs every request (by default without bodies, heartbeats and health checks) to `audit_log`, each
        line written before its answer is sent. `reachable_from_pods` binds to every address of this machine;
        otherwise only 127.0.0.1 answers. Raises StartError with the end of the log of what did not start.
        """
        found = tools.ensure("control-plane", say)
        state = state.absolute()
        begun = time.monotonic()
        for attempt in range(1, ATTEMPTS + 1):
            stop_state(state)
            _clean(state)
            try:
                plane = _start(
                    state,
                    found,
                    audit=audit,
                    audit_policy=audit_policy,
                    reachable_from_pods=reachable_from_pods,
                )
            except StartError as error:
                stop_state(state)
                # another process took a port between our look and its use
                if attempt == ATTEMPTS or "address already in use" not in str(error):
                    raise
            except BaseException:
                stop_state(state)
                raise
            else:
                took = time.monotonic() - begun
                say(f"control plane {tools.KUBERNETES} ready in {took:.1f} s at {plane.server}")
                return plane
        raise AssertionError("unreachable: the last attempt returns or raises")

    @classmethod
    def attach(cls, state: Path) -> "ControlPlane | None":
        """The control plane that runs in `state`, None unless all of its processes do."""
        record = process.read_json(state / RECORD)
        if record is None or "server" not in record:
            return None
        if not all(process.alive(one) for one in process.from_record(record)):
            return None
        log = record["audit_log"]
        return cls(
            state.absolute(),
            record["server"],
            state.absolute() / "kubeconfig",
            Path(log) if log else None,
            Path(record["kubectl"]),
            reachable_from_pods=record["reachable_from_pods"],
        )

    @property
    def authority(self) -> Pair:
        """The authority that signed all certificates of this cluster."""
        return Pair(self.state / "pki" / "ca.crt", self.state / "pki" / "ca.key")

    @property
    def api(self) -> Api:
        """Plain requests as the administrator."""
        pki = self.state / "pki"
        return Api(self.server, self.authority, Pair(pki / "admin.crt", pki / "admin.key"))

    @property
    def processes(self) -> tuple[Process, ...]:
        """The components, in the order in which they were started."""
        return process.from_record(process.read_json(self.state / RECORD))

    def user(self, name: str, groups: Sequence[str] = ()) -> Path:
        """A kubeconfig for a user of this name and these groups, with a certificate of its own."""
        stem = name.replace(":", "-").replace("/", "-")
        pair = issue(self.authority, stem, name, groups=groups)
        return kubeconfig(self.state / f"{stem}.kubeconfig", self.server, self.authority, pair)

    def kubectl(
        self,
        *args: str,
        input: str | None = None,  # noqa: A002 - the name that subprocess.run gives it
        check: bool = True,
        timeout_s: float = KUBECTL_LIMIT_S,
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl as the administrator; with `check`, a failure raises with what it printed."""
        done = subprocess.run(
            [self.kubectl_path, f"--kubeconfig={self.kubeconfig}", *args],
            input=input,
            stdin=subprocess.DEVNULL if input is None else None,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        if check and done.returncode:
            raise RuntimeError(f"kubectl {' '.join(args)}: exit {done.returncode}\n{done.stderr or done.stdout}")
        return done

    def stop(self) -> None:
        """Stop all components and drop their data; logs and certificates stay."""
        stop_state(self.state)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


RECORD: Final = "control-plane.json"


def stop_state(state: Path) -> None:
    """Stop whatever control plane `state` records, running, half started or dead; harmless to repeat."""
    record = process.read_json(state / RECORD)
    if record is None:
        return
    components = process.from_record(record)
    # clients first, so that each can still talk to its server while it ends
    for names in (("kube-scheduler", "kube-controller-manager"), ("kube-apiserver",), ("etcd",)):
        process.stop([one for one in components if one.name in names])
    shutil.rmtree(record["data"], ignore_errors=True)
    (state / RECORD).unlink(missing_ok=True)


def _clean(state: Path) -> None:
    state.mkdir(parents=True, exist_ok=True)
    for name in ("pki", "logs", "etcd"):
        shutil.rmtree(state / name, ignore_errors=True)
    (state / "logs").mkdir()
    (state / "audit.log").unlink(missing_ok=True)


def _apiserver_words(pki: Path, pairs: dict[str, Pair], etcd_port: int, port: int, address: str | None) -> list[str]:
    # without an address for pods there is nothing to publish as the endpoint of the `kubernetes` Service
    reach = (
        [f"--bind-address={LOOPBACK}", f"--advertise-address={LOOPBACK}", "--endpoint-reconciler-type=none"]
        if address is None
        else ["--bind-address=0.0.0.0", f"--advertise-address={address}"]
    )
    return [
        *reach,
        f"--secure-port={port}",
        f"--etcd-servers=http://{LOOPBACK}:{etcd_port}",
        f"--service-cluster-ip-range={SERVICE_RANGE}",
        f"--client-ca-file={pairs['ca'].cert}",
        f"--tls-cert-file={pairs['apiserver'].cert}",
        f"--tls-private-key-file={pairs['apiserver'].key}",
        f"--kubelet-client-certificate={pairs['kubelet-client'].cert}",
        f"--kubelet-client-key={pairs['kubelet-client'].key}",
        "--kubelet-preferred-address-types=InternalIP",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={pki / 'service-accounts.pub'}",
        f"--service-account-signing-key-file={pki / 'service-accounts.key'}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
    ]


def _controller_manager_words(pki: Path, ca: Pair, config: Path) -> list[str]:
    return [
        f"--kubeconfig={config}",
        f"--root-ca-file={ca.cert}",
        f"--service-account-private-key-file={pki / 'service-accounts.key'}",
        f"--cluster-signing-cert-file={ca.cert}",
        f"--cluster-signing-key-file={ca.key}",
        "--use-service-account-credentials=true",
        "--leader-elect=false",
        "--secure-port=0",
    ]


def _start(
    state: Path, found: dict[str, Path], *, audit: bool, audit_policy: Path | None, reachable_from_pods: bool
) -> ControlPlane:
    pki = state / "pki"
    address = own_address() if reachable_from_pods else None
    etcd_port, peer_port, port = process.free_ports(3)
    server = f"https://{address or LOOPBACK}:{port}"
    ca = create_authority(pki)
    names = (LOOPBACK, _first_address(SERVICE_RANGE), *NAMES, *([address] if address else []))
    pairs = {
        "ca": ca,
        "apiserver": issue(ca, "apiserver", "kube-apiserver", names=names),
        "kubelet-client": issue(ca, "kubelet-client", "kube-apiserver-kubelet-client", groups=ADMIN_GROUPS),
        "admin": issue(ca, "admin", "kubernetes-admin", groups=ADMIN_GROUPS),
    }
    write_public(pki / "service-accounts.pub", write_key(pki / "service-accounts.key"))
    log = state / "audit.log" if audit or audit_policy else None
    record: dict[str, Any] = {"data": str(_data_dir(state)), "processes": []}
    started: list[Process] = []

    def component(name: str, words: Sequence[str | Path]) -> None:
        started.append(process.spawn(name, [found[name], *words], state / "logs" / f"{name}.log"))
        record["processes"] = process.to_record(started)
        process.write_json(state / RECORD, record)

    process.write_json(state / RECORD, record)
    client_url, peer_url = (f"http://{LOOPBACK}:{one}" for one in (etcd_port, peer_port))
    component(
        "etcd",
        [
            f"--data-dir={record['data']}",
            f"--listen-client-urls={client_url}",
            f"--advertise-client-urls={client_url}",
            f"--listen-peer-urls={peer_url}",
            f"--initial-advertise-peer-urls={peer_url}",
            f"--initial-cluster=default={peer_url}",
            "--unsafe-no-fsync",
            "--log-level=warn",
        ],
    )
    process.wait_for("etcd", lambda: process.http_ok(LOOPBACK, etcd_port, "/health"), started, timeout_s=START_LIMIT_S)

    words = _apiserver_words(pki, pairs, etcd_port, port, address)
    if log:
        policy = audit_policy or state / "audit-policy.json"
        if audit_policy is None:
            policy.write_text(json.dumps(AUDIT_POLICY, indent=2) + "\n")
        words += [f"--audit-log-path={log}", f"--audit-policy-file={policy}", "--audit-log-mode=blocking"]
        words += [f"--audit-log-maxsize={AUDIT_LOG_MIB}"]
    component("kube-apiserver", words)
    trust = ssl.create_default_context(cafile=str(ca.cert))
    process.wait_for(
        "kube-apiserver",
        lambda: process.http_ok(LOOPBACK, port, "/readyz", trust),
        started,
        timeout_s=START_LIMIT_S,
    )

    kubeconfig(state / "kubeconfig", server, ca, pairs["admin"])
    plane = ControlPlane(state, server, state / "kubeconfig", log, found["kubectl"], reachable_from_pods)
    manager = plane.user("system:kube-controller-manager")
    component("kube-controller-manager", _controller_manager_words(pki, ca, manager))
    scheduler = plane.user("system:kube-scheduler")
    component("kube-scheduler", [f"--kubeconfig={scheduler}", "--leader-elect=false", "--secure-port=0"])
    # no pod can be made in a namespace before the controller manager has given it this account
    process.wait_for(
        "the default service account",
        lambda: plane.api.get("/api/v1/namespaces/default/serviceaccounts/default") is not None,
        started,
        timeout_s=START_LIMIT_S,
    )
    record |= {
        "server": server,
        "audit_log": str(log) if log else None,
        "kubectl": str(found["kubectl"]),
        "reachable_from_pods": reachable_from_pods,
    }
    process.write_json(state / RECORD, record)
    return plane
