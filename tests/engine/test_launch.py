"""hisparse-launch as a real process with a real HTTP server (fake_engine.py) as its child."""

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pytest

LONGEST_WAIT_S = 20.0
ENGINE_IMAGE = Path(__file__).parents[2] / "engine_image"
FAKE_ENGINE = Path(__file__).with_name("fake_engine.py")
COMMAND = (sys.executable, "-m", "hisparse_engine.launch")
# A container of our own: PID 1, its own /proc, its own /dev/shm.
CONTAINER = (
    "unshare",
    "--user",
    "--map-root-user",
    "--pid",
    "--fork",
    "--kill-child",
    "--mount",
    "--ipc",
    "--mount-proc",
)
QUIET = 'vllm:num_requests_running{engine="0"} 0.0\nvllm:num_requests_waiting{engine="0"} 0.0\n'


def wait_until(question: Callable[[], object], what: str) -> None:
    """A bounded wait; how long it took is never judged."""
    deadline = time.monotonic() + LONGEST_WAIT_S
    while not question():
        assert time.monotonic() < deadline, f"never happened: {what}"
        time.sleep(0.02)


def get(
    port: int, path: str, headers: dict[str, str] | None = None, timeout_s: float = LONGEST_WAIT_S
) -> tuple[int, str]:
    """Status and text of one GET; status 0 while nobody listens."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    try:
        connection.request("GET", path, headers=headers or {})
        with connection.getresponse() as response:
            return response.status, response.read().decode()
    except ConnectionRefusedError:
        return 0, ""
    finally:
        connection.close()


def free_ports() -> tuple[int, int]:
    with socket.socket() as first, socket.socket() as second:
        first.bind(("127.0.0.1", 0))
        second.bind(("127.0.0.1", 0))
        return int(first.getsockname()[1]), int(second.getsockname()[1])


def running(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


@dataclass
class Lab:
    """One launcher with its engine's folder. Nothing runs before `launch`."""

    folder: Path
    engine_port: int
    launcher_port: int
    plan: dict[str, Any]
    output: IO[bytes]
    process: subprocess.Popen[bytes] | None = None

    def put(self, name: str, text: str = "") -> None:
        temporary = self.folder / f".{name}"
        temporary.write_text(text)
        temporary.rename(self.folder / name)

    def read(self, name: str) -> str:
        path = self.folder / name
        return path.read_text() if path.exists() else ""

    def engine(self, *words: str) -> tuple[str, ...]:
        port, folder = str(self.engine_port), str(self.folder)
        return (sys.executable, str(FAKE_ENGINE), "--port", port, "--folder", folder, *words)

    def launch(
        self,
        *command: str,
        launcher: tuple[str, ...] = COMMAND,
        before: tuple[str, ...] = (),
        environment: dict[str, str] | None = None,
    ) -> subprocess.Popen[bytes]:
        self.put("plan.json", json.dumps(self.plan))
        words = (
            *before,
            *launcher,
            "--plan",
            str(self.folder / "plan.json"),
            "--",
            *(command or self.engine()),
        )
        self.process = subprocess.Popen(
            words,
            stdout=self.output,
            stderr=subprocess.STDOUT,
            env=os.environ | {"PYTHONPATH": str(ENGINE_IMAGE)} | (environment or {}),
        )
        return self.process

    def launch_ready(self, *words: str, environment: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
        self.put("ready")
        process = self.launch(*self.engine(*words), environment=environment)
        self.until_ready()
        return process

    def until_ready(self) -> None:
        wait_until(lambda: self.ask("/readyz")[0] == 200, "ready")

    def until_answer(self, path: str, status: int, text: str) -> None:
        def holds() -> bool:
            got = self.ask(path)
            return got[0] == status and text in got[1]

        wait_until(holds, f"{path} answers {status} with {text!r}")

    def ask(self, path: str, headers: dict[str, str] | None = None) -> tuple[int, str]:
        return get(self.launcher_port, path, headers)

    def tell(self, number: signal.Signals) -> None:
        assert self.process
        self.process.send_signal(number)

    def exit_code(self) -> int:
        assert self.process
        return self.process.wait(timeout=LONGEST_WAIT_S)

    def log(self) -> str:
        return Path(self.output.name).read_bytes().decode()

    def until_log(self, text: str) -> None:
        wait_until(lambda: text in self.log(), f"{text!r} in the log")

    def request(self) -> "Request":
        return Request(self.engine_port)

    def end(self) -> None:
        self.output.close()
        if self.process:
            self.process.kill()
            self.process.wait()
        self._sweep()
        # a process that was about to become the engine has no words for a moment
        time.sleep(0.05)
        self._sweep()

    def _sweep(self) -> None:
        """End what a killed launcher leaves behind: every process of ours names this test's folder."""
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                if os.fsencode(self.folder) in path.read_bytes() and int(path.parent.name) != os.getpid():
                    os.kill(int(path.parent.name), signal.SIGKILL)


class Request:
    """One streaming request in flight, read by a thread of its own."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LONGEST_WAIT_S)
        self._connection.request("GET", "/v1/completions")
        self._response = self._connection.getresponse()
        assert self._response.read(6) == b"first "

    def rest(self) -> bytes:
        with self._response:
            rest = self._response.read()
        self._connection.close()
        return rest


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    engine_port, launcher_port = free_ports()
    plan = {
        "schema": "hisparse.dev/launch/v1",
        "engine": {
            "version": "0.33",
            "port": engine_port,
            "servedName": "tiny",
            "startupSeconds": 60,
            "drainSeconds": 60,
            "endpointGraceSeconds": 0,
            "shutdownSeconds": 10,
        },
        "launcher": {"port": launcher_port},
        "memory": {"shmBytes": 0, "hostPoolBytes": 0, "sharedPool": True, "tensorParallel": 8},
        "aKeyOfANewerOperator": {},
    }
    with (tmp_path / "log").open("wb") as output:
        made = Lab(tmp_path, engine_port, launcher_port, plan, output)
        yield made
        made.end()


# --- usage ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "told"),
    [
        pytest.param(None, "cannot be read", id="no file"),
        pytest.param("{", "is not JSON", id="half a file"),
        pytest.param("[]", "the top level is a list", id="not an object"),
        pytest.param('{"schema": "hisparse.dev/launch/v9"}', "schema: 'hisparse.dev/launch/v9'", id="another schema"),
        pytest.param('{"schema": "hisparse.dev/launch/v1"}', "engine.servedName is missing", id="no model name"),
    ],
)
def test_an_unusable_plan_ends_with_2_and_says_why(lab: Lab, text: str | None, told: str) -> None:
    path = lab.folder / "bad.json"
    if text is not None:
        path.write_text(text)
    done = subprocess.run(
        [*COMMAND, "--plan", str(path), "--", "touch", str(lab.folder / "ran")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout.startswith("hisparse-launch: error: --plan ")
    assert told in done.stdout
    assert "Traceback" not in done.stderr
    assert not (lab.folder / "ran").exists()


@pytest.mark.parametrize("words", [pytest.param((), id="nothing"), pytest.param(("--plan", "x"), id="no command")])
def test_bad_usage_ends_with_2(words: tuple[str, ...]) -> None:
    done = subprocess.run([*COMMAND, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "usage: hisparse-launch --plan FILE -- COMMAND" in done.stderr


def test_a_taken_port_ends_with_2_before_the_engine_starts(lab: Lab) -> None:
    with socket.socket() as other:
        other.bind(("0.0.0.0", lab.launcher_port))  # noqa: S104 - the launcher binds all addresses too
        other.listen()
        lab.launch()
        assert lab.exit_code() == 2
    assert f"launcher.port: {lab.launcher_port} cannot be opened" in lab.log()
    assert not lab.read("pid")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        pytest.param(("sh", "-c", "exit 0"), 0, id="success"),
        pytest.param(("sh", "-c", "exit 7"), 7, id="its own code"),
        pytest.param(("sh", "-c", "kill -9 $$"), 137, id="killed by signal 9"),
        pytest.param(("no-such-program-here",), 127, id="not found"),
        pytest.param(("/etc/passwd",), 126, id="not executable"),
    ],
)
def test_the_engine_s_exit_code_is_ours(lab: Lab, words: tuple[str, ...], code: int) -> None:
    lab.launch(*words)
    assert lab.exit_code() == code


def test_the_engine_s_output_comes_through_as_it_is(lab: Lab) -> None:
    lab.launch(sys.executable, "-c", r"import os; os.write(1, b'a\r\nb'); os.write(2, b'c\r\n')")
    assert lab.exit_code() == 0
    assert "a\r\nbc\r\n" in lab.log()


def test_the_engine_gets_default_signals(lab: Lab) -> None:
    asks = "import signal; print('blocked', sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])))"
    lab.launch(sys.executable, "-c", asks)
    assert lab.exit_code() == 0
    assert "blocked []" in lab.log()


def test_no_secret_is_logged(lab: Lab) -> None:
    lab.put("exit", "0")
    lab.launch(*lab.engine("--api-key", "s3cret-word"), environment={"VLLM_API_KEY": "s3cret-env"})
    assert lab.exit_code() == 0
    assert "s3cret" not in lab.log()


# --- probes --------------------------------------------------------------------------------------------------


def test_probes_from_start_to_ready(lab: Lab) -> None:
    lab.launch()
    lab.until_answer("/readyz", 503, "EngineStarting: starting, ")
    lab.until_answer("/readyz", 503, "connection refused")
    assert lab.ask("/startedz")[0] == 503
    assert lab.ask("/livez") == (200, "Alive: the engine process runs\n")
    lab.put("ready")
    lab.until_ready()
    assert lab.ask("/readyz") == (200, "Ready: serving tiny\n")
    assert lab.ask("/startedz")[0] == 200
    assert lab.ask("/nothing")[0] == 404


def test_another_model_is_not_ours(lab: Lab) -> None:
    lab.put("ready")
    lab.launch(*lab.engine("--name", "other"))
    lab.until_answer("/readyz", 503, "ModelMissing: engine.servedName 'tiny' is not served; /v1/models lists other")
    assert lab.ask("/livez")[0] == 200


def test_a_dead_engine_is_neither_ready_nor_alive_but_was_started(lab: Lab) -> None:
    lab.launch_ready()
    lab.put("health", "503")
    lab.until_answer("/livez", 503, "EngineDead: /health answers 503")
    assert lab.ask("/readyz")[0] == 503
    assert lab.ask("/startedz")[0] == 200
    assert lab.ask("/drain") == (200, "nothing left to drain: the engine core is dead\n")


def test_an_engine_that_hangs_is_alive_but_not_ready_and_answers_come_at_once(lab: Lab) -> None:
    lab.launch_ready()
    lab.put("slow")
    lab.until_answer("/readyz", 503, "EngineSilent: ")
    assert lab.ask("/livez")[0] == 200
    (lab.folder / "slow").unlink()
    lab.until_ready()


@pytest.mark.parametrize(
    "words",
    [pytest.param((), id="from the environment"), pytest.param(("--api-key", "k2"), id="from the flag")],
)
def test_the_engine_s_key_is_used(lab: Lab, words: tuple[str, ...]) -> None:
    lab.launch_ready(*words, environment={"VLLM_API_KEY": "k1"})
    assert get(lab.engine_port, "/v1/models")[0] == 401


def test_an_unknown_key_is_named(lab: Lab) -> None:
    lab.put("ready")
    lab.launch("env", "VLLM_API_KEY=k", *lab.engine())
    lab.until_answer("/readyz", 503, "ModelsRefused: /v1/models answers 401")


def test_other_addresses_of_the_machine_answer_too(lab: Lab) -> None:
    lab.launch()
    wait_until(lambda: lab.ask("/livez")[0] == 200, "the server listens")
    if socket.has_dualstack_ipv6():
        with socket.create_connection(("::1", lab.launcher_port), timeout=LONGEST_WAIT_S):
            pass
    with socket.create_connection(("127.0.0.2", lab.launcher_port), timeout=LONGEST_WAIT_S):
        pass


# --- drain and signals ---------------------------------------------------------------------------------------


def test_drain_waits_for_the_running_request_for_two_callers_at_once(lab: Lab) -> None:
    lab.launch_ready()
    request = lab.request()
    answers: list[tuple[int, str]] = []
    callers = [threading.Thread(target=lambda: answers.append(lab.ask("/drain"))) for _ in range(2)]
    for caller in callers:
        caller.start()
    lab.until_answer("/readyz", 503, "Draining: ")
    assert lab.ask("/livez")[0] == 200
    assert lab.ask("/startedz")[0] == 200
    assert answers == []
    lab.put("finish")
    assert request.rest() == b"last"
    for caller in callers:
        caller.join(timeout=LONGEST_WAIT_S)
    assert answers[0] == answers[1]
    assert answers[0][0] == 200
    assert answers[0][1].startswith("drained: no request runs or waits after ")
    assert lab.ask("/drain") == answers[0]
    assert lab.ask("/readyz")[0] == 503
    assert lab.read("signals") == ""


def test_a_drain_with_a_key_is_not_for_everybody(lab: Lab) -> None:
    lab.plan["launcher"]["drainKey"] = "a-key"
    lab.launch_ready()
    status, line = lab.ask("/drain")
    assert (status, "X-Hisparse-Drain-Key" in line) == (403, True)
    assert lab.ask("/drain", headers={"X-Hisparse-Drain-Key": "another"})[0] == 403
    assert lab.ask("/readyz")[0] == 200, "nothing drains"
    assert lab.ask("/drain", headers={"X-Hisparse-Drain-Key": "a-key"})[0] == 200
    assert lab.ask("/readyz")[0] == 503


def test_drain_gives_endpoints_time_to_go(lab: Lab) -> None:
    lab.plan["engine"]["endpointGraceSeconds"] = 1
    lab.launch_ready()
    status, line = lab.ask("/drain")
    assert status == 200
    assert float(line.split()[-2]) >= 1


@pytest.mark.parametrize(
    ("metrics", "left"),
    [
        pytest.param(QUIET.replace('waiting{engine="0"} 0.0', 'waiting{engine="0"} 3.0'), "3", id="waiting requests"),
        pytest.param("", "an unknown number of", id="an engine without statistics"),
    ],
)
def test_a_drain_has_an_end(lab: Lab, metrics: str, left: str) -> None:
    lab.plan["engine"]["drainSeconds"] = 1
    lab.launch_ready()
    lab.put("metrics", metrics)
    assert lab.ask("/drain") == (
        200,
        f"drain limit: {left} request(s) still in flight after engine.drainSeconds 1\n",
    )


def test_sigterm_drains_first_and_a_second_one_cuts_nothing_short(lab: Lab) -> None:
    lab.launch_ready()
    request = lab.request()
    lab.tell(signal.SIGTERM)
    lab.until_answer("/readyz", 503, "Draining: ")
    lab.tell(signal.SIGTERM)
    lab.until_log("SIGTERM again: already stopping")
    assert lab.read("signals") == ""
    lab.put("finish")
    assert request.rest() == b"last"
    assert lab.exit_code() == 0
    assert lab.read("signals") == "SIGTERM\nstopped with 0 running\n"


def test_after_a_drain_sigterm_goes_straight_on(lab: Lab) -> None:
    lab.launch_ready()
    assert lab.ask("/drain")[0] == 200
    lab.tell(signal.SIGTERM)
    assert lab.exit_code() == 0
    assert lab.read("signals").startswith("SIGTERM\n")


def test_sigterm_while_starting_goes_straight_on(lab: Lab) -> None:
    lab.plan["engine"]["endpointGraceSeconds"] = 600
    lab.launch()
    wait_until(lambda: lab.read("pid"), "the engine runs")
    wait_until(lambda: lab.log().count("CR LF"), "the engine listens to signals")
    lab.tell(signal.SIGTERM)
    assert lab.exit_code() == 0
    assert lab.read("signals") == "SIGTERM\n"
    assert "nothing to drain: the engine was never ready" in lab.log()


def test_sigint_goes_on_at_once(lab: Lab) -> None:
    lab.launch_ready()
    lab.request()
    lab.tell(signal.SIGINT)
    assert lab.exit_code() == 0
    assert lab.read("signals") == "SIGINT\nstopped with 1 running\n"


def test_sigterm_before_the_engine_is_started_starts_none(lab: Lab) -> None:
    # a blocked signal stays pending over exec: the launcher's first instruction finds SIGTERM there
    pending = (
        "import os, signal, sys\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
        "os.execv(sys.argv[1], sys.argv[1:])\n"
    )
    lab.launch(before=(sys.executable, "-c", pending))
    assert lab.exit_code() == 143
    assert "told to stop before the engine was started" in lab.log()
    assert not lab.read("pid")


# --- processes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("workers", "patience_s", "told"),
    [
        pytest.param(
            ("polite", "polite"),
            10,
            "2 process(es) outlived the engine, SIGTERM to",
            id="they end on SIGTERM",
        ),
        pytest.param(("polite", "deaf"), 0.2, "SIGKILL to", id="they are killed"),
    ],
)
def test_no_worker_outlives_a_killed_api_server(
    lab: Lab, workers: tuple[str, ...], patience_s: float, told: str
) -> None:
    lab.plan["engine"]["shutdownSeconds"] = patience_s
    lab.launch_ready("--workers", *workers)
    wait_until(lambda: lab.read("workers").count("\n") == 2, "both workers run")
    pids = [int(line) for line in lab.read("workers").split()]
    os.kill(int(lab.read("pid")), signal.SIGKILL)
    assert lab.exit_code() == 137
    assert [pid for pid in pids if running(pid)] == []
    assert told in lab.log()


def test_while_the_rest_is_ended_the_container_is_not_alive(lab: Lab) -> None:
    lab.plan["engine"]["shutdownSeconds"] = 60
    lab.launch_ready("--workers", "deaf")
    wait_until(lambda: lab.read("workers"), "the worker runs")
    os.kill(int(lab.read("pid")), signal.SIGKILL)
    lab.until_answer("/livez", 503, "EngineGone: the engine process has ended")
    assert lab.ask("/readyz")[0] == 503
    assert lab.ask("/drain") == (200, "drained: the engine process has ended\n")
    os.kill(int(lab.read("workers")), signal.SIGKILL)
    assert lab.exit_code() == 137


def test_orphans_become_ours_and_leave_no_zombie(lab: Lab) -> None:
    process = lab.launch(*lab.engine("--orphan"))
    wait_until(lambda: lab.read("orphan"), "the orphan has ended")
    pid = int(lab.read("orphan").split()[0])
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), "the orphan is reaped")
    assert process.poll() is None


# --- as the container's first process ------------------------------------------------------------------------


@pytest.fixture
def container(lab: Lab) -> Callable[[str], subprocess.Popen[bytes]]:
    if not shutil.which("unshare") or subprocess.run([*CONTAINER, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine lets nobody make namespaces (unshare)")

    def start(prepare: str) -> subprocess.Popen[bytes]:
        script = f'mount -t tmpfs -o size=64m tmpfs /dev/shm && {prepare} && exec "$@"'
        return lab.launch(before=(*CONTAINER, "sh", "-ec", script, "sh"))

    return start


def first_process(unshare: subprocess.Popen[bytes]) -> int:
    children = Path(f"/proc/{unshare.pid}/task/{unshare.pid}/children")
    wait_until(children.read_text, "the container's first process")
    return int(children.read_text().split()[0])


def test_as_pid_1_it_sweeps_starts_drains_and_ends(
    lab: Lab, container: Callable[[str], subprocess.Popen[bytes]]
) -> None:
    lab.plan["memory"]["shmBytes"] = 32 << 20
    lab.put("ready")
    process = container("head -c 48M /dev/zero > /dev/shm/vllm_offload_hisparse_1_dp0.mmap && touch /dev/shm/other")
    lab.until_ready()
    assert "removed stale /dev/shm/vllm_offload_hisparse_1_dp0.mmap\n" in lab.log()
    assert "other" not in lab.log()
    os.kill(first_process(process), signal.SIGTERM)
    assert lab.exit_code() == 0
    assert lab.read("signals").startswith("SIGTERM\n")


def test_a_small_shared_memory_ends_with_3(lab: Lab, container: Callable[[str], subprocess.Popen[bytes]]) -> None:
    lab.plan["memory"]["shmBytes"] = 128 << 20
    container("true")
    assert lab.exit_code() == 3
    assert (
        "hisparse-launch: error: memory.shmBytes: the engine needs 128.0 MiB in /dev/shm, 64.0 MiB are free; "
        "mount an emptyDir with medium Memory and a larger sizeLimit at /dev/shm"
    ) in lab.log()
    assert not lab.read("pid")


# --- the zipapp ----------------------------------------------------------------------------------------------


def test_installed_as_one_file_it_runs_and_installs_itself(lab: Lab, tmp_path: Path) -> None:
    first = tmp_path / "a" / "hisparse-launch.pyz"
    done = subprocess.run([*COMMAND, "--install", str(first.parent)], capture_output=True, text=True, check=True)
    assert done.stdout == f"hisparse-launch: wrote {first}\n"
    assert [path.name for path in first.parent.iterdir()] == [first.name]
    assert first.stat().st_mode & 0o777 == 0o755
    # no site packages and no PYTHONPATH, as in an image that is not ours
    alone = (sys.executable, "-I", "-S")
    second = tmp_path / "b" / "hisparse-launch.pyz"
    # the engine image has it on PATH under the command's name
    command = first.rename(tmp_path / "hisparse-launch")
    subprocess.run([*alone, str(command), "--install", str(second.parent)], capture_output=True, check=True)
    assert second.read_bytes() == command.read_bytes()
    assert second.stat().st_mode & 0o777 == 0o755
    lab.put("ready")
    lab.launch(launcher=(*alone, str(second)))
    lab.until_ready()
    lab.tell(signal.SIGTERM)
    assert lab.exit_code() == 0
