"""Container images without a Docker daemon: docker-archive files of tar layers, for `ctr images import`."""

import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

from hisparse_testenv import tools
from hisparse_testenv.process import cache_dir, locked

BASE_VERSION: Final = "1"
SUITE: Final = "bookworm"
BASE_REFERENCE: Final = f"testenv.hisparse.dev/base:{BASE_VERSION}"
PAUSE_REFERENCE: Final = "testenv.hisparse.dev/pause:1"
# python3-minimal lacks http.server; the libraries are those that vLLM and torch load on a CPU
BASE_PACKAGES: Final = (
    "ca-certificates",
    "python3",
    "python3-yaml",
    "libgomp1",
    "libnuma1",
    "libtcmalloc-minimal4",
    "curl",
    "iproute2",
    "procps",
)
PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
DEBOOTSTRAP_LIMIT_S: Final = 1800
EXECUTABLE: Final = 0o755


class ImageError(RuntimeError):
    """An image cannot be made; the message names the step."""


@dataclass(frozen=True)
class Image:
    """A docker-archive file and the name that pods use for what is in it."""

    path: Path
    reference: str


def images_dir() -> Path:
    """Where images are kept between runs."""
    return cache_dir() / "images" / BASE_VERSION


def _digest(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _add_bytes(archive: tarfile.TarFile, name: str, data: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    entry.mode = mode
    archive.addfile(entry, io.BytesIO(data))


def _layer(files: Mapping[str, bytes], modes: Mapping[str, int]) -> bytes:
    """A layer of these files; the folders above them are made with it."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        made: set[PurePosixPath] = set()
        for name in sorted(files):
            place = PurePosixPath(name.lstrip("/"))
            for parent in reversed(place.parents[:-1]):
                if parent not in made:
                    entry = tarfile.TarInfo(str(parent))
                    entry.type, entry.mode = tarfile.DIRTYPE, EXECUTABLE
                    archive.addfile(entry)
                    made.add(parent)
            data = files[name]
            # a script must be runnable, and a mapping of bytes has no place for a mode
            mode = EXECUTABLE if data.startswith((b"#!", b"\x7fELF")) else 0o644
            _add_bytes(archive, str(place), data, modes.get(name, mode))
    return buffer.getvalue()


def _pack(path: Path, reference: str, layers: Sequence[Path], settings: Mapping[str, Any]) -> Image:
    """Write a docker-archive: the layers, one config and manifest.json."""
    config = {
        "architecture": "amd64",
        "os": "linux",
        "created": "1970-01-01T00:00:00Z",
        "config": {"Env": [f"PATH={PATH}"], **settings},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{_digest(layer)}" for layer in layers]},
        "history": [{"created": "1970-01-01T00:00:00Z", "created_by": "hisparse-testenv"} for _ in layers],
    }
    data = json.dumps(config).encode()
    config_name = f"{hashlib.sha256(data).hexdigest()}.json"
    names = [f"{number}/layer.tar" for number in range(len(layers))]
    manifest = [{"Config": config_name, "RepoTags": [reference], "Layers": names}]
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".tmp")
    with tarfile.open(fresh, "w") as archive:
        _add_bytes(archive, config_name, data)
        for name, layer in zip(names, layers, strict=True):
            archive.add(layer, name, recursive=False)
        _add_bytes(archive, "manifest.json", json.dumps(manifest).encode())
    fresh.replace(path)
    return Image(path, reference)


def pause_image(say: Callable[[str], None] = print) -> Image:
    """The image that holds a pod's namespaces: one static program of ours."""
    target = images_dir() / "pause.tar"
    with locked(images_dir() / ".lock"):
        if target.exists():
            return Image(target, PAUSE_REFERENCE)
        with tempfile.TemporaryDirectory(dir=images_dir()) as folder:
            binary = Path(folder) / "pause"
            tools.go_build(tools.MODULES / "pause", binary, say)
            layer = Path(folder) / "layer.tar"
            layer.write_bytes(_layer({"pause": binary.read_bytes()}, {}))
            return _pack(target, PAUSE_REFERENCE, [layer], {"Entrypoint": ["/pause"]})


def base_image(say: Callable[[str], None] = print) -> Image:
    """A small Debian with Python and the shared libraries of vLLM on a CPU; built once, as root."""
    target = images_dir() / "base.tar"
    with locked(images_dir() / ".lock"):
        if target.exists():
            return Image(target, BASE_REFERENCE)
        if os.geteuid() != 0 or shutil.which("debootstrap") is None:
            raise ImageError(
                "building the base image needs root and debootstrap; "
                "run as root after: apt-get install --no-install-recommends debootstrap"
            )
        say("building the base image with debootstrap: usually 2 to 3 minutes")
        begun = time.monotonic()
        with tempfile.TemporaryDirectory(dir=images_dir()) as folder:
            root, log = Path(folder) / "root", images_dir() / "debootstrap.log"
            words = [
                "debootstrap",
                "--variant=minbase",
                f"--include={','.join(BASE_PACKAGES)}",
                SUITE,
                str(root),
            ]
            with log.open("w") as handle:
                done = subprocess.run(
                    words, stdout=handle, stderr=subprocess.STDOUT, timeout=DEBOOTSTRAP_LIMIT_S, check=False
                )
            if done.returncode:
                end = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
                raise ImageError(f"debootstrap ended with {done.returncode}; end of {log}\n{end}")
            for clutter in (
                "var/cache/apt",
                "var/lib/apt/lists",
                "usr/share/doc",
                "usr/share/man",
                "usr/share/locale",
            ):
                shutil.rmtree(root / clutter, ignore_errors=True)
                (root / clutter).mkdir(parents=True)
            (root / "etc/resolv.conf").unlink(missing_ok=True)
            (root / "etc/hostname").unlink(missing_ok=True)
            layer = Path(folder) / "layer.tar"
            with tarfile.open(layer, "w") as archive:
                for entry in sorted(root.iterdir()):
                    archive.add(entry, entry.name)
            image = _pack(target, BASE_REFERENCE, [layer], {"Cmd": ["/bin/sh"]})
        say(f"built the base image in {time.monotonic() - begun:.0f} s: {target}")
        return image


def image_with(
    files: Mapping[str, bytes],
    base: Image,
    reference: str,
    *,
    modes: Mapping[str, int] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Image:
    """`base` with one more layer that holds these files, under a name of its own.

    A file that begins with #! or is an ELF binary becomes executable; `modes` says otherwise. `settings`
    are those of an image config (Entrypoint, Cmd, Env, User, WorkingDir) and replace those of the base.
    """
    seed = hashlib.sha256(f"{reference}{base.path.stat().st_mtime_ns}{settings}{modes}".encode())
    for name in sorted(files):
        seed.update(name.encode() + b"\0" + hashlib.sha256(files[name]).digest())
    target = images_dir() / "derived" / f"{seed.hexdigest()[:16]}.tar"
    with locked(images_dir() / ".lock"):
        if target.exists():
            return Image(target, reference)
        with tempfile.TemporaryDirectory(dir=images_dir()) as folder, tarfile.open(base.path) as archive:
            archive.extractall(folder, filter="data")
            manifest = json.loads((Path(folder) / "manifest.json").read_text())[0]
            inherited = json.loads((Path(folder) / manifest["Config"]).read_text())["config"]
            layer = Path(folder) / "added.tar"
            layer.write_bytes(_layer(files, modes or {}))
            layers = [*(Path(folder) / name for name in manifest["Layers"]), layer]
            # as in a Dockerfile: the words of the base's Cmd mean nothing to a new Entrypoint
            if settings and "Entrypoint" in settings:
                inherited.pop("Cmd", None)
            return _pack(target, reference, layers, {**inherited, **(settings or {})})
