"""Keeps looking at the engine: the poller behind the probes, and the drain."""

import http.client
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from hisparse_engine import readiness
from hisparse_engine.plan import EnginePlan
from hisparse_engine.readiness import Answer, DrainStep, Look, View

LOOK_EVERY_S = 0.5
LOOK_TIMEOUT_S = 2.0
LARGEST_ANSWER_BYTES = 64 << 20


class Engine:
    """The engine's HTTP side, as seen from the same network namespace."""

    def __init__(self, port: int, key: str | None) -> None:
        self._port = port
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}

    def look(self) -> Look:
        """Ask /health, and /v1/models where that is well."""
        try:
            health, _ = self._get("/health")
            if health != readiness.OK:
                return Look(time.monotonic(), health)
            status, body = self._get("/v1/models", self._headers)
        except (OSError, http.client.HTTPException) as error:
            return Look(time.monotonic(), None, problem=_problem(error))
        names = readiness.model_names(body) if status == readiness.OK else ()
        return Look(time.monotonic(), health, status, names)

    def load(self) -> int | None:
        """Requests running or waiting; None when the engine does not say."""
        try:
            status, body = self._get("/metrics")
        except (OSError, http.client.HTTPException):
            return None
        return readiness.load(body.decode(errors="replace")) if status == readiness.OK else None

    def _get(self, path: str, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=LOOK_TIMEOUT_S)
        try:
            connection.request("GET", path, headers=headers or {})
            with connection.getresponse() as response:
                return response.status, response.read(LARGEST_ANSWER_BYTES)
        finally:
            connection.close()


class Watch:
    """The shared state of poller, probes and drain. One lock guards one frozen View."""

    def __init__(self, plan: EnginePlan, engine: Engine, say: Callable[[str], None]) -> None:
        self._plan = plan
        self._engine = engine
        self._say = say
        self._lock = threading.Lock()
        self._view = View(started_at=time.monotonic())
        self._told = ""
        self._ended = threading.Event()
        self._drain_asked = False
        self._drain_over = threading.Event()
        self._drain_line = "the drain failed, see the log"
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Begin to look."""
        self._run(self._poll, "poller")

    def child_gone(self) -> None:
        """The engine process has ended: answer so, and let a drain end."""
        with self._lock:
            self._view = replace(self._view, child_gone=True)
        self._ended.set()

    def stop(self) -> None:
        """End the threads; bounded by the time-out of one look."""
        self._ended.set()
        for thread in self._threads:
            thread.join(timeout=2 * LOOK_TIMEOUT_S)

    def ready(self) -> Answer:
        """/readyz."""
        return readiness.ready(self._plan, self._snapshot(), time.monotonic())

    def alive(self) -> Answer:
        """/livez."""
        return readiness.alive(self._snapshot())

    def started(self) -> Answer:
        """/startedz."""
        return readiness.started(self._plan, self._snapshot(), time.monotonic())

    def begin_drain(self) -> None:
        """Refuse new requests from now on and wait for those in flight; a second call changes nothing."""
        with self._lock:
            self._view = replace(self._view, draining=True)
            first, self._drain_asked = not self._drain_asked, True
            self._told = "Draining"
        if first:
            self._run(self._drain, "drain")

    def drain_over(self) -> bool:
        """Whether a drain was asked for and has ended."""
        return self._drain_over.is_set()

    def wait_drained(self) -> str:
        """Block until the drain has ended; says how."""
        self._drain_over.wait()
        return self._drain_line

    def _snapshot(self) -> View:
        with self._lock:
            return self._view

    def _run(self, target: Callable[[], None], name: str) -> None:
        thread = threading.Thread(target=target, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _poll(self) -> None:
        while not self._ended.is_set():
            look = self._engine.look()
            with self._lock:
                view = replace(self._view, look=look)
                answer = readiness.ready(self._plan, view, look.at)
                self._view = replace(view, was_ready=view.was_ready or answer.ok)
                news, self._told = answer.reason != self._told, answer.reason
            if news:
                self._say(f"{answer.reason}: {answer.line}")
            self._ended.wait(LOOK_EVERY_S)

    def _drain(self) -> None:
        try:
            self._drain_line = self._until_drained()
            self._say(self._drain_line)
        finally:
            # whatever happened: SIGTERM must reach the engine, and the preStop hook must get its answer
            self._drain_over.set()

    def _until_drained(self) -> str:
        began = time.monotonic()
        self._say("Draining: no new requests from now on")
        quiet_looks = 0
        while True:
            load = self._engine.load()
            quiet_looks = quiet_looks + 1 if load == 0 else 0
            view = self._snapshot()
            step = DrainStep(
                elapsed_s=time.monotonic() - began,
                load=load,
                quiet_looks=quiet_looks,
                was_ready=view.was_ready,
                engine_dead=readiness.dead(view),
                child_gone=view.child_gone,
            )
            if line := readiness.drained(self._plan, step):
                return line
            self._ended.wait(LOOK_EVERY_S)


def _problem(error: Exception) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, TimeoutError):
        return f"no answer within {LOOK_TIMEOUT_S:g} s"
    return f"no usable answer ({type(error).__name__})"
