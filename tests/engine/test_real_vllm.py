"""hisparse-launch with a real vLLM (CPU build) as its child. Needs a 6 GB download on first use."""

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hisparse_testenv import vllm_cpu

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]

ENGINE_IMAGE = Path(__file__).parents[2] / "engine_image"
LONGEST_START_S = 600.0
LONGEST_WAIT_S = 240.0
# about two seconds on an idle machine: still running when SIGTERM comes after its first token
STREAM_TOKENS = 4_000


@dataclass
class Pod:
    """A launcher and its vLLM."""

    launcher_port: int
    engine_port: int
    process: subprocess.Popen[bytes]
    log_path: Path

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def ask(self, path: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.launcher_port, timeout=LONGEST_WAIT_S)
        try:
            connection.request("GET", path)
            with connection.getresponse() as response:
                return response.status, response.read().decode()
        except ConnectionRefusedError:
            return 0, ""
        finally:
            connection.close()

    def until(self, question: Callable[[], bool], longest_s: float) -> None:
        deadline = time.monotonic() + longest_s
        while not question():
            assert self.process.poll() is None, self.log()[-4000:]
            assert time.monotonic() < deadline, self.log()[-4000:]
            time.sleep(0.2)

    def complete(self, **body: Any) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        connection = http.client.HTTPConnection("127.0.0.1", self.engine_port, timeout=LONGEST_WAIT_S)
        text = json.dumps({"model": "tiny", "temperature": 0, "ignore_eos": True} | body)
        headers = {"Content-Type": "application/json", "Authorization": "Bearer a-key"}
        connection.request("POST", "/v1/completions", text, headers)
        return connection, connection.getresponse()


@pytest.fixture(scope="module")
def vllm() -> vllm_cpu.VllmCpu:
    return vllm_cpu.ensure(print)


@pytest.fixture
def pod(tmp_path: Path, vllm: vllm_cpu.VllmCpu) -> Iterator[Pod]:
    model = vllm_cpu.tiny_model(tmp_path / "model")
    with socket.socket() as first, socket.socket() as second:
        first.bind(("127.0.0.1", 0))
        second.bind(("127.0.0.1", 0))
        engine_port, launcher_port = first.getsockname()[1], second.getsockname()[1]
    plan = {
        "schema": "hisparse.dev/launch/v1",
        "engine": {"port": engine_port, "servedName": "tiny", "endpointGraceSeconds": 1, "drainSeconds": 200},
        "launcher": {"port": launcher_port},
        "memory": {"shmBytes": 1 << 20},
    }
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    (tmp_path / "home").mkdir()
    python = shutil.which(f"python{vllm_cpu.PYTHON}", path=f"{sys.base_prefix}/bin:{os.environ['PATH']}")
    if python is None:
        pytest.skip(f"no Python {vllm_cpu.PYTHON} here, for which the environment is built")
    serve = (python, "-m", "vllm.entrypoints.cli.main", "serve", str(model), "--served-model-name", "tiny")
    words = (
        *(*serve, *vllm_cpu.SERVE_FLAGS, "--max-model-len", str(STREAM_TOKENS + 1000), "--port", str(engine_port)),
        *("--shutdown-timeout", "60", "--disable-access-log-for-endpoints", "/health,/metrics,/v1/models"),
    )
    environment = os.environ | vllm_cpu.serve_environment()
    environment |= {"HOME": str(tmp_path / "home"), "VLLM_API_KEY": "a-key"}
    environment["PYTHONPATH"] = f"{ENGINE_IMAGE}:{vllm.directory}"
    with (tmp_path / "log").open("wb") as output:
        process = subprocess.Popen(
            [python, "-m", "hisparse_engine.launch", "--plan", str(tmp_path / "plan.json"), "--", *words],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
        )
    made = Pod(launcher_port, engine_port, process, tmp_path / "log")
    yield made
    # asked to end so that the launcher ends vLLM's own processes; killing it would leave them
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
    process.wait(timeout=LONGEST_WAIT_S)


def test_a_stream_survives_drain_and_sigterm(pod: Pod) -> None:
    pod.until(lambda: pod.ask("/livez")[0] == 200, LONGEST_START_S)
    assert pod.ask("/readyz")[0] == 503
    pod.until(lambda: pod.ask("/readyz")[0] == 200, LONGEST_START_S)
    assert pod.ask("/startedz")[0] == 200

    connection, response = pod.complete(prompt="hello", max_tokens=8)
    with response:
        answer = json.loads(response.read())
    connection.close()
    assert answer["usage"]["completion_tokens"] == 8

    connection, response = pod.complete(
        prompt="hello", max_tokens=STREAM_TOKENS, stream=True, stream_options={"include_usage": True}
    )
    first = response.readline()
    assert first.startswith(b"data: ")
    pod.process.send_signal(signal.SIGTERM)
    pod.until(lambda: pod.ask("/readyz")[1].startswith("Draining: "), LONGEST_WAIT_S)
    assert pod.ask("/livez")[0] == 200
    pod.process.send_signal(signal.SIGTERM)
    with response:
        lines = [line for line in response.read().split(b"\n\n") if line]
    connection.close()
    assert lines[-1] == b"data: [DONE]"
    assert json.loads(lines[-2].removeprefix(b"data: "))["usage"]["completion_tokens"] == STREAM_TOKENS
    assert json.loads(lines[-3].removeprefix(b"data: "))["choices"][0]["finish_reason"] == "length"
    assert pod.process.wait(timeout=LONGEST_WAIT_S) == 0
    assert "drained: no request runs or waits after " in pod.log()
    assert "outlived" not in pod.log()
    assert "a-key" not in pod.log()


def test_nothing_of_vllm_outlives_a_killed_api_server(pod: Pod) -> None:
    pod.until(lambda: pod.ask("/readyz")[0] == 200, LONGEST_START_S)
    started = next(line for line in pod.log().splitlines() if line.startswith("hisparse-launch: started"))
    server = int(started.partition(" as pid ")[2].partition(",")[0])
    assert len(_session(server)) > 1
    os.kill(server, signal.SIGKILL)
    assert pod.process.wait(timeout=LONGEST_WAIT_S) == 137
    assert _session(server) == []


def _session(leader: int) -> list[int]:
    """Every process of the session that `leader` began, zombies left out."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, session = path.read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue
        if int(session) == leader and state not in "ZX":
            found.append(int(path.parent.name))
    return found
