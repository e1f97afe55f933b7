"""The operator as a container image, from the lock and this checkout, without Docker.

The same steps as operator/Dockerfile: the locked packages of the extra, then the project itself; on the test
environment's own base image.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from hisparse_testenv import images
from hisparse_testenv.images import Image
from hisparse_testenv.vllm_cpu import find_uv

ROOT = Path(__file__).parents[2]
REFERENCE = "testenv.hisparse.dev/hisparse-operator:e2e"
FOLDER = "/opt/hisparse"
LIMIT_S = 300


def operator_image() -> Image:
    """Build it; packages come from uv's cache where they are there."""
    settings = {
        "Entrypoint": ["python3", "-m", "hisparse_operator"],
        "Env": [f"PYTHONPATH={FOLDER}", f"PATH={images.PATH}", "PYTHONDONTWRITEBYTECODE=1"],
        "User": "65532:65532",
    }
    return images.image_with(installed_files("operator", FOLDER), images.base_image(), REFERENCE, settings=settings)


def installed_files(extra: str, place: str) -> dict[str, bytes]:
    """The project with the packages of one extra as the lock pins them, as files below a folder of an image."""
    with tempfile.TemporaryDirectory(prefix=f"hisparse-{extra}-") as folder:
        target = Path(folder) / "site"
        locked = Path(folder) / "locked.txt"
        exported = _uv("export", "--frozen", "--no-dev", "--extra", extra, "--no-emit-project", "--quiet")
        locked.write_text(exported)
        install = ("pip", "install", "--quiet", "--target", str(target), "--python-version", "3.11")
        _uv(*install, "-r", str(locked))
        _uv(*install, "--no-deps", str(ROOT))
        return {
            f"{place}/{path.relative_to(target)}": path.read_bytes()
            for path in target.rglob("*")
            if path.is_file() and path.suffix != ".pyc"
        }


def _uv(*words: str) -> str:
    done = subprocess.run(
        [find_uv(), *words], cwd=ROOT, capture_output=True, text=True, check=False, timeout=LIMIT_S, env=_environment()
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in {"PIP_FIND_LINKS", "VIRTUAL_ENV"}}
