"""hisparse-launch: PID 1 of the engine container.

hisparse-launch --plan /etc/hisparse/plan.json -- vllm serve MODEL --flag ...
hisparse-launch --install DIR

Checks the container, starts the engine, answers the probes, drains on preStop or SIGTERM, forwards signals,
reaps orphans and ends with the engine's exit code. Standard library only, Python 3.10 or later: it also runs
inside engine images that are not ours.
"""

import argparse
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from hisparse_engine import plan as plans
from hisparse_engine import preflight, readiness
from hisparse_engine.child import Child, adopt_orphans
from hisparse_engine.container import Container
from hisparse_engine.install import install
from hisparse_engine.plan import Plan
from hisparse_engine.server import listen
from hisparse_engine.watch import Engine, Watch

BAD_USAGE = 2
PREFLIGHT_FAILED = 3
CANNOT_EXECUTE = 126
NOT_FOUND = 127
TERMINATED = 128 + signal.SIGTERM
SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGCHLD})
TICK_S = 0.2
# After SIGKILL a process may stay in the kernel while it unpins memory; the container's end waits for it.
AFTER_KILL_S = 10.0
BY_THEMSELVES_S = 1.0


def main() -> NoReturn:
    """Entry point of the command and of the zipapp."""
    sys.exit(run(tuple(sys.argv[1:])))


def run(words: tuple[str, ...]) -> int:
    """Do what the command line says; returns the exit code."""
    # Blocked signals stay pending until we ask for them: none is lost before the child is there to get it.
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    options, command = _arguments(words)
    if options.install:
        say(f"wrote {install(options.install)}")
        return 0
    try:
        plan = plans.parse(options.plan.read_text(encoding="utf-8"))
    except (OSError, UnicodeError) as error:
        return fail(BAD_USAGE, f"--plan {options.plan}: cannot be read ({error}); mount the plan there")
    except plans.PlanError as error:
        return fail(BAD_USAGE, f"--plan {options.plan}: {error}")
    container = Container()
    if not _preflight(plan, container):
        return PREFLIGHT_FAILED
    return _serve(plan, command, container)


def say(line: str) -> None:
    """One line of our own between the engine's."""
    # one write, so that lines of several threads stay whole; a log that nobody reads must not end the engine
    with suppress(OSError):
        print(f"hisparse-launch: {line}\n", end="", flush=True)


def fail(code: int, line: str) -> int:
    """Say why we give up."""
    say(f"error: {line}")
    return code


def _arguments(words: tuple[str, ...]) -> tuple[argparse.Namespace, tuple[str, ...]]:
    split = words.index("--") if "--" in words else len(words)
    command = words[split + 1 :]
    parser = argparse.ArgumentParser(
        prog="hisparse-launch", usage="%(prog)s --plan FILE -- COMMAND ... | --install DIR"
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--plan", type=Path, metavar="FILE", help="the launch plan, a JSON file")
    what.add_argument("--install", type=Path, metavar="DIR", help="write DIR/hisparse-launch.pyz and end")
    options = parser.parse_args(words[:split])
    if options.plan and not command:
        parser.error("no command; write it after --, e.g. -- vllm serve MODEL")
    return options, command


def _preflight(plan: Plan, container: Container) -> bool:
    sweep = preflight.sweep(container.shared_memory())
    if sweep.note:
        say(f"warning: {sweep.note}")
    for name in sweep.remove:
        removed = container.remove(name)
        say(f"removed stale /dev/shm/{name}" if removed else f"warning: may not remove stale /dev/shm/{name}")
    findings = preflight.check(plan.memory, container.reading())
    for finding in findings:
        say(f"{'error' if finding.fatal else 'warning'}: {finding.line}")
    return not any(finding.fatal for finding in findings)


def _serve(plan: Plan, command: tuple[str, ...], container: Container) -> int:
    watch = Watch(plan.engine, Engine(plan.engine.port, readiness.api_key(command, os.environ)), say)
    try:
        server = listen(plan.launcher_port, watch, plan.drain_key)
    except OSError as error:
        return fail(BAD_USAGE, f"launcher.port: {plan.launcher_port} cannot be opened ({error}); choose a free one")
    server.serve()
    try:
        return _supervise(plan, command, container, watch)
    finally:
        watch.stop()
        server.close()


def _supervise(plan: Plan, command: tuple[str, ...], container: Container, watch: Watch) -> int:
    if signal.sigpending() & {signal.SIGTERM, signal.SIGINT}:
        return fail(TERMINATED, "told to stop before the engine was started")
    adopt_orphans()
    try:
        child = Child(command, os.environ, container)
    except OSError as error:
        code = NOT_FOUND if isinstance(error, FileNotFoundError) else CANNOT_EXECUTE
        return fail(code, f"cannot run {command[0]}: {error.strerror}")
    # the words may hold keys, so only the program and their number are told
    arguments = len(command) - 1
    say(f"started {command[0]} with {arguments} arguments as pid {child.pid}, probes on {plan.launcher_port}")
    watch.start()
    code = _wait(child, watch)
    say(f"the engine ended with exit code {code}")
    watch.child_gone()
    _end_leftovers(child, plan.engine.shutdown_s)
    return code


def _wait(child: Child, watch: Watch) -> int:
    """Until the engine ends. SIGTERM drains first, then goes on once; SIGINT, a person's, goes on at once."""
    terminating = forwarded = False
    while child.exit_code is None:
        info = signal.sigtimedwait(SIGNALS, TICK_S)
        number = info.si_signo if info else None
        if number == signal.SIGTERM:
            say("SIGTERM again: already stopping" if terminating else "SIGTERM: draining, then stopping the engine")
            terminating = True
            watch.begin_drain()
        elif number == signal.SIGINT:
            say("SIGINT: stopping the engine now")
            child.tell(signal.SIGINT)
        if terminating and not forwarded and watch.drain_over():
            forwarded = True
            say("SIGTERM goes to the engine")
            child.tell(signal.SIGTERM)
        child.reap()
    return child.exit_code


def _end_leftovers(child: Child, patience_s: float) -> None:
    """An engine core and its workers outlive a killed API server, and would keep GPUs and pool."""
    # Python's resource tracker ends by itself, a moment after its parent, and is deaf to SIGTERM.
    if _all_gone(child, BY_THEMSELVES_S):
        return
    left = child.leftovers()
    say(f"{len(left)} process(es) outlived the engine, SIGTERM to {_pids(left)}")
    child.tell_all(left, signal.SIGTERM)
    if _all_gone(child, patience_s):
        return
    say(f"SIGKILL to {_pids(child.leftovers())}, still there {patience_s:g} s after SIGTERM")
    if not _all_gone(child, AFTER_KILL_S, kill=True):
        say(f"warning: {_pids(child.leftovers())} still there after SIGKILL; the node may need a look")


def _all_gone(child: Child, patience_s: float, *, kill: bool = False) -> bool:
    deadline = time.monotonic() + patience_s
    child.reap()
    while left := child.leftovers():
        if time.monotonic() >= deadline:
            return False
        if kill:
            child.tell_all(left, signal.SIGKILL)
        signal.sigtimedwait({signal.SIGCHLD}, TICK_S)
        child.reap()
    return True


def _pids(pids: tuple[int, ...]) -> str:
    return ", ".join(str(pid) for pid in pids) or "none"


if __name__ == "__main__":
    main()
