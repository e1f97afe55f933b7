"""hisparse-operator as a process of this machine, for the demo: started, watched until it is ready, stopped."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hisparse_testenv import process
from hisparse_toolkit.narrator import Narrator

READY_LIMIT_S: Final = 60.0
LOOPBACK: Final = "127.0.0.1"


@dataclass(frozen=True)
class OperatorProcess:
    """A running operator."""

    running: process.Process

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return process.alive(self.running)

    def log_end(self, lines: int = 20) -> str:
        """The end of its log."""
        return process.tail(Path(self.running.log), lines)

    def stop(self) -> None:
        """Stop it; harmless to repeat."""
        process.stop([self.running])


def start_operator(
    kubeconfig: Path, log: Path, narrator: Narrator, *, lease_namespace: str, namespace: str | None
) -> OperatorProcess:
    """Start the operator and wait until it leads and has seen the cluster. namespace: serve this one alone."""
    (port,) = process.free_ports(1)
    words = [
        sys.executable,
        "-m",
        "hisparse_operator",
        f"--kubeconfig={kubeconfig}",
        f"--lease-namespace={lease_namespace}",
        f"--listen={LOOPBACK}:{port}",
        "--log-format=json",
        "--no-hub",
        *([f"--namespace={namespace}"] if namespace else []),
    ]
    narrator.command(f"{shlex.join(['python', *words[1:]])} &")
    started = OperatorProcess(process.spawn("hisparse-operator", words, log))
    try:
        process.wait_for(
            "hisparse-operator",
            lambda: process.http_ok(LOOPBACK, port, "/readyz"),
            [started.running],
            timeout_s=READY_LIMIT_S,
        )
    except BaseException:
        started.stop()
        raise
    return started


@contextmanager
def stopped_at_end(operator: OperatorProcess | None, *, keep: bool) -> Iterator[None]:
    """Stop the operator when the block ends, however it ends."""
    try:
        yield
    finally:
        if operator is not None and not keep:
            operator.stop()
