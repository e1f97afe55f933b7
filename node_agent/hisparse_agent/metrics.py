"""What Prometheus reads: the findings and readings of the last poll, counted at scrape, and the agent about itself.

What was not read has no sample: absent rather than wrong.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as package_version
from typing import Final

import prometheus_client as prometheus
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hisparse.nodes.findings import Finding, State
from hisparse_agent.publish.writer import Counts
from hisparse_agent.readings import GpuReading, Missing, NodeReading, Number, NvLink, Nvml, Pressure, known
from hisparse_agent.records import Phase, Record

NUMBERS: Final = {
    State.OK: 0,
    State.WARN: 1,
    State.CRITICAL: 2,
    State.UNKNOWN: 3,
    State.UNSUPPORTED: 4,
}
_SECONDS: Final = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_NS: Final = 10**9
_Family = GaugeMetricFamily | CounterMetricFamily


def own_version() -> str:
    """The version of the installed package."""
    try:
        return package_version("hisparse")
    except PackageNotFoundError:
        return "unknown"


@dataclass(frozen=True)
class Snapshot:
    """What the last poll found. pin_window: an engine fills its pool now. slot: whether the node holds one.

    stuck: the node carries a change that nobody puts back: that failed, or the actuator is silent.
    """

    reading: NodeReading
    findings: tuple[Finding, ...] = ()
    records: tuple[Record, ...] = ()
    pin_window: bool = False
    slot: bool = False
    breaker_open: bool | None = None
    stuck: bool = False


class Metrics:
    """One registry for one node."""

    def __init__(self) -> None:
        self.registry = prometheus.CollectorRegistry()
        self.snapshot: Snapshot | None = None
        build = prometheus.Gauge(
            "hisparse_build_info", "Always 1.", ["component", "version", "python"], registry=self.registry
        )
        build.labels("agent", own_version(), platform.python_version()).set(1)
        prometheus.ProcessCollector(registry=self.registry)
        self._poll = prometheus.Histogram(
            "hisparse_node_poll_duration_seconds",
            "Time of one poll: reading, judging and handing over.",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._requests = prometheus.Counter(
            "hisparse_node_api_requests", "Requests to the API server.", ["verb", "resource", "code"],
            registry=self.registry,
        )  # fmt: skip
        self._remedies = prometheus.Counter(
            "hisparse_node_remediation_actions",
            "Remedies that were asked for, by outcome: allowed, or the gate that refused.",
            ["verb", "outcome", "dry_run"],
            registry=self.registry,
        )
        self.registry.register(_Findings(lambda: self.snapshot))
        self.registry.register(_Readings(lambda: self.snapshot))

    def polled(self, seconds: float) -> None:
        """One poll has ended."""
        self._poll.observe(seconds)

    def request(self, verb: str, resource: str, code: str) -> None:
        """One request has ended (kube.Observer)."""
        self._requests.labels(verb, resource, code).inc()

    def remedy(self, verb: str, outcome: str, *, dry_run: bool) -> None:
        """A remedy was asked for."""
        self._remedies.labels(verb, outcome, str(dry_run).lower()).inc()

    def writes(self, counts: Counts, clock: Callable[[], float]) -> None:
        """Count the writes of a writer at scrape."""
        self.registry.register(_Writes(counts, clock))

    def gauge(self, name: str, text: str, read: Callable[[], float | None]) -> None:
        """A gauge read at scrape; absent while it is None."""
        self.registry.register(_Figure(lambda: GaugeMetricFamily(name, text), read))

    def counter(self, name: str, text: str, read: Callable[[], float | None]) -> None:
        """A counter read at scrape; absent while it is None. The page adds _total to its name."""
        self.registry.register(_Figure(lambda: CounterMetricFamily(name, text), read))

    def text(self) -> bytes:
        """The page that Prometheus scrapes."""
        page: bytes = prometheus.generate_latest(self.registry)
        return page


class _Figure(Collector):
    """One figure that somebody else keeps."""

    def __init__(self, family: Callable[[], _Family], read: Callable[[], float | None]) -> None:
        self._family, self._read = family, read

    def collect(self) -> Iterator[Metric]:
        family = self._family()
        if (value := self._read()) is not None:
            family.add_metric([], value)
        yield family


class _Writes(Collector):
    def __init__(self, counts: Counts, clock: Callable[[], float]) -> None:
        self._counts, self._clock = counts, clock

    def collect(self) -> Iterator[Metric]:
        writes = CounterMetricFamily(
            "hisparse_node_api_writes", "Writes by object and outcome.", labels=["object", "outcome"]
        )
        for (target, outcome), count in sorted(self._counts.writes.items()):
            writes.add_metric([target, outcome], count)
        yield writes
        dropped = CounterMetricFamily("hisparse_node_events_dropped", "Events that were too many or too old to post.")
        dropped.add_metric([], self._counts.dropped_events)
        yield dropped
        age = GaugeMetricFamily("hisparse_node_publish_age_seconds", "Since the last write that the API server took.")
        if self._counts.last_success is not None:
            age.add_metric([], self._clock() - self._counts.last_success)
        yield age


class _Findings(Collector):
    def __init__(self, snapshot: Callable[[], Snapshot | None]) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        status = GaugeMetricFamily(
            "hisparse_node_check_status",
            "State of a check on a subject: 0 ok, 1 warn, 2 critical, 3 unknown, 4 unsupported.",
            labels=["check", "subject"],
        )
        value = GaugeMetricFamily(
            "hisparse_node_check_value",
            "What a check found, in the unit of the check (a base unit, or words, which have no sample).",
            labels=["check", "subject", "unit"],
        )
        actions = GaugeMetricFamily(
            "hisparse_node_remediation_in_force",
            "Changes of host state that the node carries, by verb and phase.",
            labels=["verb", "phase"],
        )
        if (now := self._snapshot()) is not None:
            for one in now.findings:
                status.add_metric([one.check, one.subject], NUMBERS[one.state])
                if (number := _decimal(one.value)) is not None and one.unit:
                    value.add_metric([one.check, one.subject, one.unit], number)
            held = [one for one in now.records if one.phase.holds]
            for verb, phase in sorted({(one.verb.value, one.phase.value) for one in held}):
                same = [one for one in held if (one.verb.value, one.phase.value) == (verb, phase)]
                actions.add_metric([verb, phase], len(same))
            yield from _remedies(now)
        yield from (status, value, actions)


def _remedies(now: Snapshot) -> Iterator[Metric]:
    failed = sum(one.phase is Phase.REVERT_FAILED for one in now.records)
    yield _plain("hisparse_node_remediation_revert_failed", "Changes that could not be put back.", failed)
    text = "1 while a person has to put a change back: that failed, or the actuator is silent with one in force."
    yield _plain("hisparse_node_remediation_stuck", text, int(now.stuck))
    yield _plain("hisparse_node_budget_slot", "1 while the node holds a slot of its pool's budget.", int(now.slot))
    is_open = None if now.breaker_open is None else int(now.breaker_open)
    yield _plain("hisparse_node_breaker_open", "1 while the breaker of the pool is open; absent if unknown.", is_open)
    yield _plain("hisparse_node_pin_window", "1 while an engine fills and pins its pool.", int(now.pin_window))


class _Readings(Collector):
    """Figures for graphs, those that decide KV offload."""

    def __init__(self, snapshot: Callable[[], Snapshot | None]) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        now = self._snapshot()
        if now is None:
            return
        reading = now.reading
        at = reading.at.timestamp()
        yield _plain("hisparse_node_last_reading_timestamp_seconds", "When the node was read last.", at)
        memory = reading.memory
        for name, text, number in (
            ("memory_total", "Memory of the host.", memory.total),
            ("memory_available", "MemAvailable: what can be had without swapping.", memory.available),
            ("memory_shmem", "Shared memory; host pools are in here.", memory.shmem),
        ):
            yield _plain(f"hisparse_node_{name}_bytes", text, known(number))
        yield _plain(
            "hisparse_node_memory_pinned_bytes",
            "Bytes that long-term pins hold, counted once per rank for a shared pool.",
            known(memory.pinned_bytes),
        )
        yield _pressure(memory.pressure)
        yield from _gpus(reading)


def _gpus(reading: NodeReading) -> Iterator[Metric]:
    gpus = reading.nvml.gpus if isinstance(reading.nvml, Nvml) else ()

    def each(name: str, text: str, value: Callable[[GpuReading], float | None]) -> Metric:
        family = GaugeMetricFamily(f"hisparse_node_gpu_{name}", text, labels=["gpu"])
        for gpu in gpus:
            if (number := value(gpu)) is not None:
                family.add_metric([gpu.subject], number)
        return family

    yield each("temperature_celsius", "GPU temperature.", lambda gpu: known(gpu.heat.gpu))
    yield each("thermal_margin_celsius", "Degrees until the GPU throttles.", lambda gpu: known(gpu.heat.margin))
    yield each("memory_temperature_celsius", "HBM temperature.", lambda gpu: known(gpu.heat.hbm))
    yield each("power_watts", "Power draw.", lambda gpu: _thousandth(gpu.power.draw))
    yield each("power_limit_watts", "Power limit that is set.", lambda gpu: _thousandth(gpu.power.limit))
    yield each("nvlink_active", "NVLink ports that are active.", lambda gpu: known(gpu.active_links))
    yield each(
        "nvlink_capacity_bytes_per_second",
        "Capacity of the active NVLink ports, one direction; not their traffic.",
        lambda gpu: _capacity(gpu.links),
    )
    yield each("pcie_generation", "PCIe generation of the link to the host.", lambda gpu: known(gpu.pcie.generation))
    yield each("pcie_width", "PCIe lanes of the link to the host.", lambda gpu: known(gpu.pcie.width))
    throttled = CounterMetricFamily(
        "hisparse_node_gpu_throttled_seconds",
        "Time for which clocks were held down, by cause.",
        labels=["gpu", "cause"],
    )
    for gpu in gpus:
        for cause, value in (
            ("sw_power", gpu.throttle.sw_power_ns),
            ("sw_thermal", gpu.throttle.sw_thermal_ns),
            ("hw_thermal", gpu.throttle.hw_thermal_ns),
            ("power_brake", gpu.throttle.power_brake_ns),
        ):
            if (number := known(value)) is not None:
                throttled.add_metric([gpu.subject, cause], number / _NS)
    yield throttled
    seconds = reading.nvml.seconds if isinstance(reading.nvml, Nvml) else None
    yield _plain("hisparse_node_nvml_read_seconds", "How long NVML took for the last reading.", seconds)


def _pressure(pressure: Pressure | Missing) -> Metric:
    family = GaugeMetricFamily(
        "hisparse_node_memory_pressure_ratio",
        "Share of the last minute that tasks waited for memory.",
        labels=["tasks"],
    )
    if not isinstance(pressure, Missing):
        family.add_metric(["some"], pressure.some / 100)
        family.add_metric(["full"], pressure.full / 100)
    return family


def _plain(name: str, text: str, value: float | None) -> Metric:
    family = GaugeMetricFamily(name, text)
    if value is not None:
        family.add_metric([], value)
    return family


def _thousandth(value: Number) -> float | None:
    return None if isinstance(value, Missing) else value / 1000


def _capacity(links: tuple[NvLink, ...] | Missing) -> int | None:
    if isinstance(links, Missing):
        return None
    rates = [link.bytes_per_second for link in links if link.is_active]
    told = [rate for rate in rates if not isinstance(rate, Missing)]
    return sum(told) if len(told) == len(rates) else None


def _decimal(text: str | None) -> float | None:
    try:
        return None if text is None else float(Fraction(text))
    except (ValueError, ZeroDivisionError):
        return None
