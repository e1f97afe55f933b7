"""The binaries of a control plane: found, or built from source once and cached by version."""

import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hisparse_testenv.process import cache_dir, locked

KUBERNETES: Final = "v1.34.4"
ETCD: Final = "v3.6.4"
KWOK: Final = "v0.7.0"

MODULES: Final = Path(__file__).parent.parent / "modules"
BUILD_LIMIT_S: Final = 3600
PROBE_LIMIT_S: Final = 20


class ToolError(RuntimeError):
    """A tool can be neither found nor built; the message names the step and what to do."""


def _kubernetes_ldflags() -> str:
    # without these the server says v0.0.0-master+$Format, which kubectl and Helm refuse to parse
    major, minor, _ = KUBERNETES.removeprefix("v").split(".")
    stamps = {"gitVersion": KUBERNETES, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    return " ".join(f"-X {package}.{key}={value}" for package in packages for key, value in stamps.items())


@dataclass(frozen=True)
class Source:
    """Where some tools come from: one `go` invocation builds any number of them.

    `module` is a folder under testenv/modules whose go.mod pins every dependency; without one, `go install
    package@version` does. `usual` is said to the user before a build.
    """

    version: str
    usual: str
    module: str | None = None
    ldflags: str = ""


@dataclass(frozen=True)
class Tool:
    """One binary. `says` asks it for its version, for a tool that is found on PATH."""

    name: str
    package: str
    source: Source
    says: tuple[str, ...] = ("--version",)


_KUBERNETES = Source(
    KUBERNETES,
    "7 to 12 minutes on 2 cores; 1 to 2 where most of it is compiled",
    module="kubernetes",
    ldflags=_kubernetes_ldflags(),
)
_ETCD = Source(ETCD, "1 to 2 minutes on 2 cores", module="etcd")
_KWOK = Source(KWOK, "2 to 3 minutes on 2 cores")


def _kubernetes(name: str, says: tuple[str, ...] = ("--version",)) -> Tool:
    return Tool(name, f"k8s.io/kubernetes/cmd/{name}", _KUBERNETES, says)


GROUPS: Final[dict[str, tuple[Tool, ...]]] = {
    "control-plane": (
        _kubernetes("kube-apiserver"),
        _kubernetes("kube-controller-manager"),
        _kubernetes("kube-scheduler"),
        _kubernetes("kubectl", ("version", "--client")),
        Tool("etcd", "go.etcd.io/etcd/server/v3", _ETCD),
        Tool("kwok", "sigs.k8s.io/kwok/cmd/kwok", _KWOK),
    ),
    "real-node": (_kubernetes("kubelet"), _kubernetes("kube-proxy")),
}


def cached(tool: Tool) -> Path:
    """Where our own build of a tool lies, built or not."""
    return cache_dir() / "bin" / tool.source.version / tool.name


def version_in(text: str) -> str | None:
    """The first full version in what a tool prints, with its v: `etcd Version: 3.6.4` gives v3.6.4."""
    found = re.search(r"\bv?(\d+\.\d+\.\d+)\b", text)
    return f"v{found[1]}" if found else None


def _on_path(tool: Tool) -> Path | None:
    place = shutil.which(tool.name)
    if place is None:
        return None
    try:
        answer = subprocess.run([place, *tool.says], capture_output=True, text=True, timeout=PROBE_LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return Path(place) if version_in(answer.stdout) == tool.source.version else None


def find(tool: Tool) -> Path | None:
    """A tool that needs no build: of KUBEBUILDER_ASSETS, of our cache, or of PATH in our version."""
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if assets and os.access(given := Path(assets) / tool.name, os.X_OK):
        return given
    ours = cached(tool)
    return ours if os.access(ours, os.X_OK) else _on_path(tool)


def _go() -> str:
    go = shutil.which("go")
    if go is None:
        raise ToolError(
            "building the test control plane: `go` is not on PATH. Install Go 1.24 or newer, or point "
            "KUBEBUILDER_ASSETS at a folder that holds the binaries."
        )
    return go


def build_command(source: Source, tools: Sequence[Tool], into: Path) -> list[str]:
    """The `go` words that build these tools of one source into a folder."""
    ldflags = f"-s -w {source.ldflags}".strip()
    if source.module is None:
        # GOBIN says where to
        return [
            "install",
            "-trimpath",
            "-ldflags",
            ldflags,
            *(f"{t.package}@{source.version}" for t in tools),
        ]
    # a package named after its version (etcd's server/v3) would be called v3: a lone one is named by -o
    target = str(into / tools[0].name) if len(tools) == 1 else f"{into}/"
    words = ["build", "-mod=readonly", "-trimpath", "-ldflags", ldflags, "-o", target]
    return [*words, *(tool.package for tool in tools)]


def build(source: Source, tools: Sequence[Tool], say: Callable[[str], None]) -> None:
    """Build tools of one source in one go invocation and move them into the cache, whole or not at all."""
    go = _go()
    place = cache_dir() / "bin" / source.version
    with locked(place / ".lock"):
        missing = [tool for tool in tools if not cached(tool).exists()]
        if not missing:
            return
        names = ", ".join(tool.name for tool in missing)
        if source.module is not None and not (MODULES / source.module / "go.mod").exists():
            raise ToolError(f"building {names}: {MODULES / source.module} is missing; run from a source checkout")
        say(f"building {names} {source.version} with {go}: usually {source.usual}")
        begun = time.monotonic()
        with tempfile.TemporaryDirectory(prefix=".build-", dir=place) as folder:
            done = subprocess.run(
                [go, *build_command(source, missing, Path(folder))],
                cwd=MODULES / source.module if source.module else folder,
                env={**os.environ, "CGO_ENABLED": "0", "GOBIN": folder},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=BUILD_LIMIT_S,
                check=False,
            )
            if done.returncode:
                end = "\n".join(done.stdout.splitlines()[-20:])
                raise ToolError(f"building {names} {source.version}: go ended with {done.returncode}\n{end}")
            for tool in missing:
                (Path(folder) / tool.name).replace(cached(tool))
        say(f"built {names} in {time.monotonic() - begun:.0f} s, kept in {place}")


def go_build(module: Path, target: Path, say: Callable[[str], None]) -> None:
    """Build the program of a module of our own, static, into `target`."""
    say(f"building {target.name} from {module.name}: usually seconds")
    words = [_go(), "build", "-trimpath", "-ldflags", "-s -w", "-o", str(target), "."]
    done = subprocess.run(
        words,
        cwd=module,
        env={**os.environ, "CGO_ENABLED": "0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=BUILD_LIMIT_S,
        check=False,
    )
    if done.returncode:
        raise ToolError(f"building {target.name}: go ended with {done.returncode}\n{done.stdout}")


def ensure(group: str, say: Callable[[str], None]) -> dict[str, Path]:
    """The binaries of a group by name, built first where they are missing.

    Raises ToolError if a build is needed and Go is missing, or if the build fails.
    """
    if group not in GROUPS:
        raise ToolError(f"tool group {group!r} is unknown; one of {', '.join(GROUPS)}")
    tools = GROUPS[group]
    found = {tool.name: find(tool) for tool in tools}
    missing = [tool for tool in tools if found[tool.name] is None]
    for source in dict.fromkeys(tool.source for tool in missing):
        # one invocation a source, so that what its tools share compiles once
        build(source, [tool for tool in missing if tool.source == source], say)
    return {tool.name: found[tool.name] or cached(tool) for tool in tools}
