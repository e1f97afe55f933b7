"""NVML, read by a child process that may be given up: a call that sits in the driver cannot be stopped from outside.

There is one child at a time. It is asked, and answers within the deadline or is done with: SIGTERM, a short wait, and
then it is left alone. It is never killed: SIGKILL of a monitor that sits in an ioctl has frozen GPUs
(NVIDIA/dcgm-exporter#84), and a second one would only queue up behind it. So as long as an abandoned child lives no
other is started, and after every failure the next start waits longer.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Final, cast

from hisparse_agent.readers.wire import FormatError, Refusal, of_json
from hisparse_agent.readings import Absence, Missing, Nvml

COMMAND: Final = (sys.executable, "-m", "hisparse_agent.readers.nvml_child")
SLOW_S: Final = 150.0
"""How often the child asks NVML for what is dear (energy, error counters, paths between GPUs) and for what lasts (MIG,
limits of temperature). In between a reading has them as of the last time; the other values are those of the moment.
Half of the shortest time over which errors are judged. tests/bench/cost_gpu.py on two H200, taken times four, at polls
of 15 s: 0.47 % of a core, and 0.67 % if it were 60 s."""
LINE_LIMIT: Final = 2**20
"""Bytes. Sixteen GPUs of which nothing can be read take a tenth of it."""
FIRST_BACK_OFF_S: Final = 10.0
"""Less than a poll: the first restart is at the next one."""
LONGEST_BACK_OFF_S: Final = 300.0
GRACE_S: Final = 2.0
"""How long a child may take to end after SIGTERM before it counts as abandoned."""
LOOK_S: Final = 0.02


@dataclass(frozen=True)
class Counters:
    """What the reader tells of itself.

    restarts are starts of a child besides the first; seconds is how long the last call took, whatever came of it;
    outstanding is the number of children that were given up and have not ended: 0 or 1.
    """

    restarts: int = 0
    seconds: float = 0.0
    outstanding: int = 0


class _BrokenError(Exception):
    """The child does not do what it promised, and is of no use any more."""


@dataclass(frozen=True)
class _Child:
    process: subprocess.Popen[bytes]
    requests: IO[bytes]
    answers: asyncio.StreamReader
    transport: asyncio.ReadTransport

    async def ask(self, request: int, *, slow: bool) -> Mapping[str, object]:
        """The answer to one request. Raises _BrokenError."""
        try:
            # a line is far below what a pipe holds, and there is never a second one in it: this does not block
            self.requests.write(json.dumps({"request": request, "slow": slow}).encode() + b"\n")
            line = await self.answers.readline()
        except (BrokenPipeError, ConnectionResetError) as error:
            raise _BrokenError("the NVML child has ended") from error
        except ValueError as error:
            raise _BrokenError("the NVML child answers with more than there can be to say") from error
        if not line.endswith(b"\n"):
            raise _BrokenError("the NVML child has ended")
        try:
            answer = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise _BrokenError("the NVML child answers with something that is not JSON") from error
        if not isinstance(answer, dict) or answer.get("request") != request:
            raise _BrokenError("the NVML child answers with something else than was asked")
        return answer

    def let_go(self) -> None:
        """Close the pipes, which ends a child that listens, and ask it to end."""
        self.requests.close()
        self.transport.close()
        self.process.terminate()


class NvmlReader:
    """Reads every GPU of this machine. clock is seconds that only go forward."""

    def __init__(
        self,
        command: Sequence[str] = COMMAND,
        *,
        environment: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.monotonic,
        grace: float = GRACE_S,
    ) -> None:
        self._command = tuple(command)
        self._environment = environment
        self._clock = clock
        self._grace = grace
        self._turn = asyncio.Lock()
        self._child: _Child | None = None
        self._abandoned: subprocess.Popen[bytes] | None = None
        self._starts = 0
        self._requests = 0
        self._failures = 0
        self._not_before = 0.0
        self._slow_from = 0.0
        self._last_failure = Missing(Absence.UNKNOWN, "NVML was not read")
        self._seconds = 0.0

    @property
    def counters(self) -> Counters:
        """As of now."""
        return Counters(max(0, self._starts - 1), self._seconds, int(self._is_abandoned()))

    async def read(self, *, deadline: float) -> Nvml | Missing:
        """Everything that NVML tells, or why it tells nothing; deadline is the seconds that this may take.

        UNSUPPORTED on a machine without NVIDIA's driver. While a restart is held back the reason stays that of the
        last failure.
        """
        async with self._turn:
            if self._is_abandoned():
                return self._last_failure
            if self._child is None and self._failures and self._clock() < self._not_before:
                return self._last_failure
            begun = self._clock()
            try:
                async with asyncio.timeout(deadline):
                    return await self._asked(begun)
            except TimeoutError:
                return await self._failed(f"NVML did not answer within {deadline:g} s")
            except _BrokenError as error:
                return await self._failed(str(error))
            except asyncio.CancelledError:
                # its answer would be taken for that of the next request
                self._abandon()
                raise
            finally:
                self._seconds = self._clock() - begun

    async def close(self) -> None:
        """End the child, which frees every handle on the driver. A later read starts another one."""
        async with self._turn:
            await self._end()

    async def _asked(self, now: float) -> Nvml | Missing:
        if self._child is None:
            self._child = await self._started()
        self._requests += 1
        slow = now >= self._slow_from
        answer = await self._child.ask(self._requests, slow=slow)
        if "error" in answer:
            return await self._refused(str(answer["error"]), str(answer.get("kind")))
        try:
            nvml = of_json(Nvml, answer.get("nvml"))
        except FormatError as error:
            raise _BrokenError(f"the NVML child answers with something that is not a reading: {error}") from error
        self._failures = 0
        if slow:
            self._slow_from = now + SLOW_S
        return nvml

    async def _refused(self, text: str, kind: str) -> Missing:
        if kind == Refusal.MISMATCH:
            # only another process loads the other library
            raise _BrokenError(text)
        self._failures = 0
        return Missing(Absence.UNSUPPORTED if kind == Refusal.NO_DRIVER else Absence.UNKNOWN, text)

    async def _started(self) -> _Child:
        try:
            process = subprocess.Popen(  # noqa: ASYNC220 - asyncio's own kills the child when it is closed
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, env=self._environment
            )
        except OSError as error:
            raise _BrokenError(f"the NVML child does not start: {error}") from error
        self._starts += 1
        # from here on it has to be waited for, even if this is cancelled
        self._abandoned = process
        answers = asyncio.StreamReader(limit=LINE_LIMIT)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(answers), process.stdout
        )
        self._abandoned = None
        return _Child(process, cast("IO[bytes]", process.stdin), answers, transport)

    async def _failed(self, why: str) -> Missing:
        self._last_failure = Missing(Absence.UNKNOWN, why)
        self._failures += 1
        await self._end()
        back_off = FIRST_BACK_OFF_S * 2 ** min(self._failures - 1, 10)
        self._not_before = self._clock() + min(back_off, LONGEST_BACK_OFF_S)
        return self._last_failure

    async def _end(self) -> None:
        self._abandon()
        looks = round(self._grace / LOOK_S)
        while self._is_abandoned() and looks > 0:
            await asyncio.sleep(LOOK_S)
            looks -= 1

    def _abandon(self) -> None:
        if self._child is not None:
            self._child.let_go()
            self._abandoned, self._child = self._child.process, None
        elif self._abandoned is not None:
            # it was given up while it started
            cast("IO[bytes]", self._abandoned.stdin).close()
            self._abandoned.terminate()

    def _is_abandoned(self) -> bool:
        if self._abandoned is not None and self._abandoned.poll() is not None:
            self._abandoned = None
        return self._abandoned is not None
