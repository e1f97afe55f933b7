"""Processes that outlive the Python process that started them, found again by their recorded id."""

import contextlib
import fcntl
import http.client
import json
import os
import signal
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

STOP_GRACE_S = 10.0
KILL_GRACE_S = 5.0
POLL_S = 0.05


class StartError(RuntimeError):
    """Something did not start; the message names it and shows the end of its log."""


@dataclass(frozen=True)
class Process:
    """One process that we started. `started` guards against a reused process id."""

    name: str
    pid: int
    started: float
    log: str


def spawn(name: str, argv: Sequence[str | Path], log: Path, env: Mapping[str, str] | None = None) -> Process:
    """Start a process in a session of its own, its output appended to `log`.

    It is no child object of ours on purpose: it may outlive us, and `stop` may be called by another process.
    """
    words = [str(word) for word in argv]
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    pid = os.posix_spawnp(words[0], words, {**os.environ, **(env or {})}, file_actions=actions, setsid=True)
    try:
        started = psutil.Process(pid).create_time()
    except psutil.NoSuchProcess as error:
        raise StartError(f"{name} ended at once\n{tail(log)}") from error
    return Process(name, pid, started, str(log))


def alive(process: Process) -> bool:
    """Whether this very process still runs; a child of ours that has ended is reaped on the way."""
    try:
        found = psutil.Process(process.pid)
        if found.create_time() != process.started:
            return False
        # a leader of threads is a zombie before its last thread has ended: only the reaping tells
        return os.waitpid(process.pid, os.WNOHANG)[0] != process.pid
    except ChildProcessError:
        # whoever started it has yet to reap it, or it runs
        with contextlib.suppress(psutil.NoSuchProcess):
            return found.status() != psutil.STATUS_ZOMBIE
        return False
    except psutil.NoSuchProcess:
        return False


def stop(processes: Sequence[Process], grace_s: float = STOP_GRACE_S) -> None:
    """End these processes: SIGTERM, and SIGKILL for those that still run after `grace_s`."""
    for sign, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, KILL_GRACE_S)):
        for process in processes:
            if alive(process):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, sign)
        deadline = time.monotonic() + wait_s
        while time.monotonic() < deadline and any(alive(process) for process in processes):
            time.sleep(POLL_S)
    if left := [f"{process.name} (pid {process.pid})" for process in processes if alive(process)]:
        raise RuntimeError(f"still running after SIGKILL: {', '.join(left)}; look at them with ps")


def tail(log: Path, lines: int = 20) -> str:
    """The last lines of a log, headed by its path."""
    if not log.exists():
        return f"{log}: no log was written"
    text = log.read_text(errors="replace").splitlines()[-lines:]
    return "\n".join([f"--- end of {log}", *text])


def wait_for(
    what: str,
    check: Callable[[], bool],
    processes: Sequence[Process],
    *,
    timeout_s: float,
    poll_s: float = POLL_S,
) -> None:
    """Wait until `check` holds; raise StartError as soon as one of `processes` ends, or after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not check():
        for process in processes:
            if not alive(process):
                raise StartError(f"{process.name} ended while waiting for {what}\n{tail(Path(process.log))}")
        if time.monotonic() > deadline:
            logs = "\n".join(tail(Path(process.log)) for process in processes[-1:])
            raise StartError(f"{what}: not there after {timeout_s:.0f} s\n{logs}")
        time.sleep(poll_s)


def http_ok(host: str, port: int, path: str, context: ssl.SSLContext | None = None) -> bool:
    """Whether a GET answers 200; any failure to connect is a no."""
    connection = (
        http.client.HTTPSConnection(host, port, timeout=5, context=context)
        if context
        else http.client.HTTPConnection(host, port, timeout=5)
    )
    try:
        connection.request("GET", path)
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def free_ports(count: int) -> tuple[int, ...]:
    """Ports of 127.0.0.1 that were free a moment ago, all different."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return tuple(int(one.getsockname()[1]) for one in sockets)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file; the kernel drops it when the holder dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def cache_dir() -> Path:
    """Where built tools, images and run states live; XDG_CACHE_HOME moves it."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hisparse"


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Replace a JSON file in one step, so that a reader never sees half of it."""
    fresh = path.with_suffix(".tmp")
    fresh.write_text(json.dumps(value, indent=2) + "\n")
    fresh.replace(path)


def read_json(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file, None if there is no such file."""
    try:
        value: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    return value


def to_record(processes: Sequence[Process]) -> list[dict[str, Any]]:
    """Processes as JSON."""
    return [asdict(process) for process in processes]


def from_record(record: Mapping[str, Any] | None) -> tuple[Process, ...]:
    """The processes in a state record, in the order in which they were started."""
    return tuple(Process(**one) for one in (record or {}).get("processes", ()))
