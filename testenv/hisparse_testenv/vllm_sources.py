"""The Python files of a vLLM release that has no CPU build, to be run with the packages of one that has.

Its planning of KV caches is plain Python, so it answers on any machine; engines are started from vllm_cpu alone.
`python -m hisparse_testenv.vllm_sources` prepares both.
"""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from hisparse_testenv import vllm_cpu
from hisparse_testenv.process import cache_dir

VERSION = "0.33.0"
# the platform is told by the `cpu` in it
_NAMED = f"{VERSION}+cpu"


def found(version: str) -> tuple[Path, ...] | None:
    """The folders that PYTHONPATH needs for this release, None where it is not prepared."""
    packages = cache_dir() / "vllm-cpu" / vllm_cpu.VERSION
    folders = (packages,) if version == vllm_cpu.VERSION else (_home() / version, packages)
    return folders if all(folder.is_dir() for folder in folders) else None


def ensure(say: Callable[[str], None]) -> tuple[Path, ...]:
    """Prepare the CPU build and the files of the newer release, unless they are there."""
    packages = vllm_cpu.ensure(say).directory
    directory = _home() / VERSION
    if directory.is_dir():
        return directory, packages
    uv = vllm_cpu.find_uv()
    _home().mkdir(parents=True, exist_ok=True)
    say(f"fetching the Python files of vLLM {VERSION} into {directory} (once; a wheel of 340 MB)")
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=_home(), prefix=".building-") as temporary:
        target = Path(temporary) / "target"
        _install(uv, Path(temporary), target)
        _keep_python(target)
        target.chmod(0o755)
        try:
            target.rename(directory)
        except OSError:
            # another process was faster; both are the same
            if not directory.is_dir():
                raise
    say(f"fetched vLLM {VERSION} in {time.monotonic() - began:.0f} s")
    return directory, packages


def _home() -> Path:
    return cache_dir() / "vllm-sources"


def _install(uv: str, folder: Path, target: Path) -> None:
    done = subprocess.run(
        [
            uv,
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--python",
            vllm_cpu.PYTHON,
            "--target",
            target,
            f"vllm=={VERSION}",
        ],
        cwd=folder,
        env=os.environ | {"UV_NO_CONFIG": "1", "UV_NO_CACHE": "1"},
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        raise vllm_cpu.CannotBuildError(f"uv could not fetch vllm {VERSION}: {done.stderr.strip()[-2000:]}")


def _keep_python(target: Path) -> None:
    """Compiled kernels are for CUDA and most of the size."""
    for path in target.rglob("*"):
        if path.is_file() and path.suffix in (".so", ".a", ".cubin", ".fatbin"):
            path.unlink()
    for path in target.glob("*.dist-info"):
        shutil.rmtree(path)
    folder = target / f"vllm-{_NAMED}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {_NAMED}\n")


if __name__ == "__main__":
    for one in ensure(print):
        print(one)
