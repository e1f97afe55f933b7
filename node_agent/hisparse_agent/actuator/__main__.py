"""The command line of `hisparse-actuator`. Every option has an environment variable HISPARSE_ACTUATOR_<OPTION>.

It polls the wish of the agent, changes the host within its bounds, and puts everything back when it is told to stop.
It needs root on the host, and no network at all.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

import structlog

from hisparse.errors import UnitError
from hisparse.units import exact_seconds
from hisparse_agent import logs
from hisparse_agent.actuator.act import Actuator
from hisparse_agent.actuator.hosts import MachineHost
from hisparse_agent.exchange import lost_records, read_records, read_wish, write_records
from hisparse_agent.records import Phase, Record, Wish

_PREFIX: Final = "HISPARSE_ACTUATOR_"
_LOCK: Final = ".actuator.lock"
# root's, and with the sticky bit: the agent's group adds its own file and touches nobody else's
_FOLDER_MODE: Final = 0o1770
_BAD: Final = frozenset({Phase.REVERT_FAILED, Phase.REFUSED, Phase.FOREIGN})
_log = structlog.get_logger()


def parser(environment: dict[str, str]) -> argparse.ArgumentParser:
    """The options; the environment supplies what the command line leaves out."""
    found = argparse.ArgumentParser(
        prog="hisparse-actuator", description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )

    def option(name: str, default: str, text: str, **rest: object) -> None:
        variable = _PREFIX + name.removeprefix("--").replace("-", "_").upper()
        found.add_argument(name, default=environment.get(variable, default), help=text, **rest)  # type: ignore[arg-type]

    option("--state-dir", "/var/lib/hisparse/node", "the folder of the host that is shared with the agent", type=Path)
    option("--agent-group", "", "number of the agent's group, which may write its wish into that folder")
    option("--root", "/", "where /proc and /sys are", type=Path)
    option("--interval", "2s", "how often the wish is read", type=_seconds)
    option(
        "--nvml-deadline", "5s", "how long NVML may take; stopping takes at most about three times this", type=_seconds
    )
    option("--log-format", "auto", "console on a terminal, else json", choices=("auto", "json", "console"))
    option("--log-level", "info", "the least that is logged", choices=("debug", "info", "warning", "error"))
    found.add_argument("--once", action="store_true", help="do what is wanted once, and leave it in force")
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Run until told to stop. The exit status is 1 where something of ours could not be put back, or is not known."""
    found = parser(dict(os.environ))
    words = found.parse_args(arguments)
    if words.agent_group and not words.agent_group.isdigit():
        found.error(f'--agent-group: "{words.agent_group}" is no number of a group; write 65532, for example')
    if not (words.root / "proc" / "sys").is_dir():
        found.error(f"--root: {words.root} has no proc/sys; name the folder in which the host's /proc and /sys are")
    logs.configure(words.log_format, words.log_level)
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    try:
        _prepare(words.state_dir, words.agent_group)
    except OSError as error:
        # a disk that has turned read-only holds records all the same, and what they tell of has to be put back
        _log.error("state folder not prepared", error=str(error))
    if not _alone(_lock(words.state_dir), stopped):
        sys.exit(0)
    sys.exit(_run(words, stopped))


def _run(words: argparse.Namespace, stopped: threading.Event) -> int:
    folder: Path = words.state_dir
    try:
        before = read_records(folder, own=True)
    except OSError as error:
        _log.error("records not readable", error=str(error))
        return 1
    if before.fault:
        _log.error("records lost", fault=before.fault)
    idle = _why_idle(folder)
    host = MachineHost(words.root, words.nvml_deadline)
    actuator = Actuator(host, partial(write_records, folder), _told, idle=idle)
    _written(partial(actuator.start, before.content))
    _log.info("started", state_dir=str(folder), root=str(words.root), holding=len(actuator.holding), idle=idle)
    try:
        while True:
            _written(partial(actuator.poll, _wish(folder)))
            if words.once:
                return 0
            if stopped.wait(words.interval):
                break
    except Exception:  # noqa: BLE001 - whatever it was, what is in force goes first
        # started again we may fail in the same way, for ever, and what is in force would stay as long
        _log.exception("a poll failed: everything is put back")
        _written(actuator.stop)
        return 1
    _written(actuator.stop)
    _log.info("stopped", holding=len(actuator.holding))
    return 1 if actuator.holding else 0


def _why_idle(folder: Path) -> str:
    """Why nothing new may be done: what an earlier run changed is not known, and nobody but a person can tell."""
    lost = lost_records(folder)
    if lost is None:
        return ""
    _log.error("idle until a person has looked at lost records", file=str(lost))
    return f"records of earlier changes could not be read: put back what {lost.name} tells of and remove that file"


def _written(step: Callable[[datetime, float], None]) -> None:
    """Take a step whose records may not get onto the disk: what it put back is put back all the same."""
    try:
        step(_now(), time.monotonic())
    except OSError as error:
        _log.error("records not written", error=str(error))


def _wish(folder: Path) -> Wish | None:
    found = read_wish(folder)
    if found.fault:
        _log.warning("wish not readable", fault=found.fault)
    return found.content


def _told(record: Record) -> None:
    level = _log.warning if record.phase in _BAD else _log.info
    level(
        record.phase.value,
        action=record.action,
        verb=record.verb.value,
        target=record.target,
        old=record.old,
        new=record.new,
        message=record.message,
        check=record.check,
        policy=record.policy,
    )


def _prepare(folder: Path, group: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if group:
        # to be its owner, too: the sticky bit does not hold an owner back
        os.chown(folder, os.geteuid(), int(group))
        folder.chmod(_FOLDER_MODE)


def _lock(folder: Path) -> int:
    path = folder / _LOCK
    with contextlib.suppress(OSError):
        if path.lstat().st_uid != os.geteuid():
            path.unlink()  # whoever may write into the folder could hold it for ever
    flags = os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(path, flags | os.O_RDWR | os.O_CREAT, 0o600)
    except OSError:
        return os.open(path, flags | os.O_RDONLY)  # of an earlier run, on a disk that has turned read-only


def _alone(lock: int, stopped: threading.Event) -> bool:
    """Wait until no other actuator of this node runs; False where we are told to stop meanwhile."""
    waiting = False
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not waiting:
                _log.info("waiting for another actuator of this node to end")
            waiting = True
            if stopped.wait(1):
                return False
        else:
            return True


def _now() -> datetime:
    return datetime.now(UTC)


def _seconds(text: str) -> float:
    try:
        return float(exact_seconds(text))
    except UnitError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


if __name__ == "__main__":
    main()
