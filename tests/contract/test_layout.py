"""What the folder tree promises: decision 1, and that nothing of a machine is published."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def tracked(*patterns: str) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "--", *patterns],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [ROOT / name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


def test_no_package_marker_in_a_top_level_folder_or_under_tests() -> None:
    for folder in (path for path in ROOT.iterdir() if path.is_dir()):
        assert not (folder / "__init__.py").exists(), f"{folder.name}/__init__.py would shadow a module (decision 1)"
    assert not list((ROOT / "tests").rglob("__init__.py"))


def test_the_standard_library_still_works_from_the_root() -> None:
    subprocess.run([sys.executable, "-c", "import operator; operator.add(1, 2)"], cwd=ROOT, check=True)


def test_every_package_is_typed_and_in_the_wheel() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert len(packages) == 5
    for package in (*packages, "testenv/hisparse_testenv"):
        assert (ROOT / package / "__init__.py").is_file()
        assert (ROOT / package / "py.typed").is_file()


@pytest.mark.parametrize(
    ("pattern", "what"),
    [
        pytest.param(r"(^|[^\w.])/(?:work|farm|root)/", "a path of one machine", id="machine paths"),
        pytest.param(r"\b(?:TODO|FIXME|XXX)\b", "a mark that was left behind", id="marks"),
    ],
)
def test_nothing_of_a_workplace_is_published(pattern: str, what: str) -> None:
    wanted = re.compile(pattern, re.MULTILINE)
    here = Path(__file__).name
    for path in tracked("*.py", "*.md", "*.yaml", "*.toml", "*.sh", "Makefile", "Dockerfile", ".ci/run"):
        if path.name == here:
            continue
        found = wanted.search(path.read_text())
        assert found is None, f"{path.relative_to(ROOT)} holds {what}: {found.group(0).strip()}"
