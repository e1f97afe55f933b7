"""Writes the launcher as one file, for engine images that are not ours."""

import shutil
import tempfile
import zipapp
from pathlib import Path

NAME = "hisparse-launch.pyz"
MODE = 0o755


def install(directory: Path) -> Path:
    """Write DIRECTORY/hisparse-launch.pyz, readable by every user; a reader never sees half a file."""
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory, prefix=".hisparse-") as temporary:
        archive = Path(temporary) / NAME
        package = Path(__file__).parent
        if package.is_dir():
            _pack(package, Path(temporary) / "source", archive)
        else:
            # we run from such a file ourselves, which then is where the package seems to lie
            shutil.copyfile(package.parent, archive)
        archive.chmod(MODE)
        return archive.rename(directory / NAME)


def _pack(package: Path, source: Path, archive: Path) -> None:
    shutil.copytree(package, source / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    zipapp.create_archive(source, archive, interpreter="/usr/bin/env python3", main="hisparse_engine.launch:main")
