"""What a person sees who starts a program of the agent in a way that cannot work: one sentence and no trace."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest


def run(module: str, *words: str) -> tuple[int, str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HISPARSE_")}
    done = subprocess.run(
        [sys.executable, "-m", module, *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=environment,
    )
    return done.returncode, done.stdout + done.stderr


def test_an_address_that_is_taken() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        code, said = run("hisparse_agent", "--offline", "--listen", address)
    assert code == 1
    assert f"--listen {address}: " in said
    assert "give another address" in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("content", "words"),
    [
        pytest.param(None, "No such file or directory; name a --kubeconfig", id="it is not there"),
        pytest.param("a: [", "is no kubeconfig that can be used", id="no YAML"),
        pytest.param("kind: Config\n", "it has no 'current-context'", id="a part is missing"),
        pytest.param("- 1\n", "is no kubeconfig that can be used", id="a list"),
    ],
)
def test_a_kubeconfig_that_is_none(tmp_path: Path, content: str | None, words: str) -> None:
    path = tmp_path / "config"
    if content is not None:
        path.write_text(content)
    code, said = run("hisparse_agent", "--node", "n", "--kubeconfig", str(path))
    assert code == 1
    assert str(path) in said
    assert words in said
    assert "Traceback" not in said


def test_an_actuator_without_a_host(tmp_path: Path) -> None:
    state = tmp_path / "state"
    code, said = run("hisparse_agent.actuator", "--root", str(tmp_path), "--state-dir", str(state))
    assert code == 2
    assert "has no proc/sys" in said
    assert not state.exists()
