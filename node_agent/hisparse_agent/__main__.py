"""The command line of `hisparse-agent`. Every option has an environment variable HISPARSE_AGENT_<OPTION>."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Final

import structlog

from hisparse.errors import HiSparseError, UnitError
from hisparse.units import exact_seconds
from hisparse_agent import credentials, health, logs
from hisparse_agent.cluster import Cluster, View
from hisparse_agent.kube import Api
from hisparse_agent.loop import Agent, Source
from hisparse_agent.machine import Machine, Paces, Places
from hisparse_agent.metrics import Metrics, own_version
from hisparse_agent.pool import PoolLease
from hisparse_agent.publish.writer import Pace, Writer
from hisparse_agent.readings import NodeReading
from hisparse_agent.replay import Player, Recorder
from hisparse_agent.settings import Settings

log: Final = structlog.get_logger(__name__)
_PREFIX: Final = "HISPARSE_AGENT_"
_FLUSH_S: Final = 3.0
_ANSWER_S: Final = 3.0
"""A report without what the cluster says would stand for a minute; an API server that is away is not waited for."""


def parser(environment: dict[str, str]) -> argparse.ArgumentParser:
    """The options; the environment supplies what the command line leaves out."""
    found = argparse.ArgumentParser(
        prog="hisparse-agent", description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )

    def option(name: str, default: str, text: str, **rest: object) -> None:
        variable = _PREFIX + name.removeprefix("--").replace("-", "_").upper()
        found.add_argument(name, default=environment.get(variable, default), help=text, **rest)  # type: ignore[arg-type]

    option("--node", environment.get("NODE_NAME", ""), "name of the own Node; the host name if empty")
    option("--namespace", "", "where the Leases of pools lie; the own namespace if empty")
    option(
        "--interval", "15s", "time between two readings of GPUs; the host is read three times as often", type=_seconds
    )
    option("--host", "/", "the host's root, or a folder with its /proc and /sys", type=Path, metavar="DIR")
    option("--cgroups", "/sys/fs/cgroup", "the host's cgroups", type=Path, metavar="DIR")
    option("--kubelet", "/var/lib/kubelet", "the kubelet's folder, for files in pods' /dev/shm", metavar="DIR")
    option("--kernel-log", "/dev/kmsg", "the kernel log; it needs CAP_SYSLOG", type=Path, metavar="FILE")
    option("--exporter-port", "9400", "port of dcgm-exporter's pods", type=int)
    option("--state-dir", "", "the folder that is shared with hisparse-actuator; none if empty", metavar="DIR")
    option("--listen", ":9401", "HOST:PORT of /healthz, /readyz and /metrics; no HOST means every address")
    option("--quiet-writes", "60s", "least time between two writes of an object without news of a fault", type=_seconds)
    option("--heartbeat", "270s", "a report is written at least this often; 300s is promised", type=_seconds)
    option("--replay", "", "play recorded readings in place of the machine", metavar="DIR")
    option("--replay-speed", "1", "times as fast as they were recorded", type=float)
    option("--record", "", "write every reading into this folder", metavar="DIR")
    option("--kubeconfig", "", "credentials; the pod's service account if empty", metavar="FILE")
    option("--context", "", "the context of the kubeconfig")
    option("--log-format", "auto", "console on a terminal, else json", choices=("auto", "json", "console"))
    option("--log-level", "info", "the least that is logged", choices=("debug", "info", "warning", "error"))
    found.add_argument("--replay-repeat", action="store_true", help="begin anew at the end of the recording")
    found.add_argument("--offline", action="store_true", help="no API server: metrics and logs only")
    found.add_argument("--version", action="version", version=own_version())
    return found


def settings_of(words: argparse.Namespace) -> Settings:
    """The parsed command line. Raises ValueError with a message for the user."""
    host, colon, port = words.listen.rpartition(":")
    if not colon or not port.isdigit():
        raise ValueError(f'--listen: "{words.listen}" is not HOST:PORT; write ":9401" or "127.0.0.1:9401"')
    if words.interval <= 0:
        raise ValueError(f"--interval: {words.interval:g} s is not above 0")
    if words.replay_speed <= 0:
        raise ValueError(f"--replay-speed: {words.replay_speed:g} is not above 0")
    if words.replay and words.record:
        raise ValueError("--replay and --record: what is played is recorded already; give one of them")
    return Settings(
        node=words.node or socket.gethostname(),
        namespace=words.namespace or _own_namespace(),
        kubeconfig=Path(words.kubeconfig) if words.kubeconfig else None,
        context=words.context or None,
        offline=words.offline,
        host=host.strip("[]") or None,
        port=int(port),
        interval_s=words.interval,
        state=Path(words.state_dir) if words.state_dir else None,
        places=Places(
            root=words.host,
            cgroups=words.cgroups,
            kubelet=Path(words.kubelet) if words.kubelet else None,
            kernel_log=words.kernel_log,
            exporter_port=words.exporter_port,
        ),
        paces=Paces.of(words.interval),
        writes=Pace(quiet=words.quiet_writes, heartbeat=words.heartbeat),
        replay=Path(words.replay) if words.replay else None,
        replay_speed=words.replay_speed,
        replay_repeat=words.replay_repeat,
        record=Path(words.record) if words.record else None,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the agent until it is told to stop."""
    found = parser(dict(os.environ))
    words = found.parse_args(arguments)
    try:
        settings = settings_of(words)
    except ValueError as error:
        found.error(str(error))
    logs.configure(words.log_format, words.log_level)
    try:
        sys.exit(asyncio.run(run(settings)))
    except (HiSparseError, credentials.CredentialsError) as error:
        log.error("ended", error=str(error))  # noqa: TRY400 - the text says it all
        sys.exit(1)


async def run(settings: Settings) -> int:
    """Run one agent; the exit code is 0 after SIGTERM."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    metrics = Metrics()
    started = time.monotonic()
    async with contextlib.AsyncExitStack() as stack:
        view: Callable[[], View] = View
        writer = pool = None
        if not settings.offline:
            api = await stack.enter_async_context(Api(_credentials(settings), metrics.request))
            cluster = Cluster(api, settings.node)
            await stack.enter_async_context(cluster.following())
            await cluster.answered(_ANSWER_S)
            view = cluster.view
            writer = Writer(api, settings.node, own_version(), pace=settings.writes)
            pool = PoolLease(api, settings.namespace, settings.node)
            metrics.writes(writer.counts, time.monotonic)
            metrics.gauge(
                "hisparse_node_watch_age_seconds",
                "Since the API server said something through a watch.",
                lambda: None if cluster.heard is None else time.monotonic() - cluster.heard,
            )
        agent = Agent(settings.node, view=view, writer=writer, pool=pool, metrics=metrics, state=settings.state)
        pages = health.application(
            metrics,
            lambda: time.monotonic() - (agent.polled_at or started),
            settings.interval_s,
            lambda: agent.polled_at is not None,
        )
        port = await stack.enter_async_context(health.serving(pages, settings.host, settings.port))
        source = await stack.enter_async_context(_source(settings, view, metrics))
        log.info("started", version=own_version(), node=settings.node, port=port, interval_s=settings.interval_s)
        each = Recorder(settings.record).write if settings.record is not None else None
        work = [asyncio.create_task(agent.run(source, _kept(each)), name="poll")]
        work += [asyncio.create_task(writer.run(), name="writer")] if writer is not None else []
        ended = asyncio.create_task(stop.wait(), name="signal")
        await asyncio.wait([*work, ended], return_when=asyncio.FIRST_COMPLETED)
        for task in (*work, ended):
            task.cancel()
        results = await asyncio.gather(*work, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                raise result
        if writer is not None:
            await writer.flush(_FLUSH_S)
        log.info("stopped", node=settings.node)
    return 0


@contextlib.asynccontextmanager
async def _source(settings: Settings, view: Callable[[], View], metrics: Metrics) -> AsyncIterator[Source]:
    if settings.replay is not None:
        yield Player(
            settings.replay,
            interval_s=settings.interval_s,
            speed=settings.replay_speed,
            node=settings.node,
            repeat=settings.replay_repeat,
        )
        return
    machine = Machine(settings.node, view, places=settings.places, paces=settings.paces)
    nvml = machine.nvml
    metrics.counter("hisparse_node_nvml_restarts", "Restarts of the NVML child.", lambda: nvml.counters.restarts)
    metrics.gauge(
        "hisparse_node_nvml_abandoned", "NVML children that were given up and live.", lambda: nvml.counters.outstanding
    )
    metrics.counter(
        "hisparse_node_kernel_log_lost_records",
        "Records of the kernel log that were overwritten before they were read; an Xid may be among them.",
        lambda: machine.lost_log_records,
    )
    try:
        yield machine
    finally:
        await machine.close()


def _kept(write: Callable[[NodeReading], object] | None) -> Callable[[NodeReading], None] | None:
    if write is None:
        return None

    def keep(reading: NodeReading) -> None:
        try:
            write(reading)
        except OSError as error:
            log.warning("reading not recorded", error=str(error))

    return keep


def _credentials(settings: Settings) -> credentials.Credentials:
    if settings.kubeconfig is not None or settings.context is not None:
        path = settings.kubeconfig or Path.home() / ".kube" / "config"
        return credentials.from_kubeconfig(path, settings.context)
    return credentials.in_cluster()


def _own_namespace() -> str:
    place = credentials.SERVICE_ACCOUNT / "namespace"
    return place.read_text().strip() if place.exists() else "hisparse"


def _seconds(text: str) -> float:
    try:
        return float(exact_seconds(text))
    except UnitError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


if __name__ == "__main__":
    main()
