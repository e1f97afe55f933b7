"""What Prometheus reads. Declared once; what follows from the cache is counted at scrape, so nothing goes stale."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as package_version
from typing import Any, Final

import prometheus_client as prometheus
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hisparse_operator.cluster.cache import Cache

_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


def own_version() -> str:
    """The version of the installed package."""
    try:
        return package_version("hisparse")
    except PackageNotFoundError:
        return "unknown"


class Metrics:
    """One registry for one operator (no module global: tests run several)."""

    def __init__(self) -> None:
        self.registry = prometheus.CollectorRegistry()
        build = prometheus.Gauge(
            "hisparse_build_info", "Always 1.", ["component", "version", "python"], registry=self.registry
        )
        build.labels("operator", own_version(), platform.python_version()).set(1)
        prometheus.ProcessCollector(registry=self.registry)
        self._reconcile = prometheus.Histogram(
            "hisparse_operator_reconcile_duration_seconds",
            "Time of one pass over one object, reads and writes included.",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._reconciles = prometheus.Counter(
            "hisparse_operator_reconciles",
            "Passes by result: ok, wrote, look (status alone, while writes wait), taken (somebody else has a child), "
            "spec, transient, refused, bug.",
            ["result"],
            registry=self.registry,
        )
        self._requests = prometheus.Counter(
            "hisparse_operator_api_requests",
            "Requests to the API server by the operator itself, without watches and without kopf's lists.",
            ["verb", "resource", "code"],
            registry=self.registry,
        )
        self._request_seconds = prometheus.Histogram(
            "hisparse_operator_api_request_duration_seconds",
            "Time of one such request.",
            ["verb"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._watch_events = prometheus.Counter(
            "hisparse_operator_watch_events",
            "Changes that watches told of, with their lists.",
            ["kind"],
            registry=self.registry,
        )
        self._missed = prometheus.Counter(
            "hisparse_operator_watch_missed",
            "Inferences that a whole list had otherwise than kopf's watches. Should stay at rest.",
            ["kind"],
            registry=self.registry,
        )

    def reconciled(self, result: str, seconds: float) -> None:
        """One pass has ended."""
        self._reconcile.observe(seconds)
        self._reconciles.labels(result).inc()

    def request(self, verb: str, resource: str, code: str, seconds: float) -> None:
        """One request has ended (kube.Observer)."""
        self._requests.labels(verb, resource, code).inc()
        self._request_seconds.labels(verb).observe(seconds)

    def watch_event(self, kind: str) -> None:
        """A list or a watch told of a change."""
        self._watch_events.labels(kind).inc()

    def watch_missed(self, kind: str) -> None:
        """A list told of a change that no watch had told of."""
        self._missed.labels(kind).inc()

    def gauge(self, name: str, text: str, read: Callable[[], float | None]) -> None:
        """A gauge read at scrape; absent while it is None."""
        self.registry.register(_Reading(name, text, read))

    def objects(self, cache: Cache) -> None:
        """Count the objects by condition at scrape."""
        self.registry.register(_Objects(cache))

    def text(self) -> bytes:
        """The page that Prometheus scrapes."""
        page: bytes = prometheus.generate_latest(self.registry)
        return page


class _Reading(Collector):
    def __init__(self, name: str, text: str, read: Callable[[], float | None]) -> None:
        self._name, self._text, self._read = name, text, read

    def collect(self) -> Iterator[Metric]:
        family = GaugeMetricFamily(self._name, self._text)
        if (value := self._read()) is not None:
            family.add_metric([], value)
        yield family


class _Objects(Collector):
    def __init__(self, cache: Cache) -> None:
        self._cache = cache

    def collect(self) -> Iterator[Metric]:
        total = GaugeMetricFamily("hisparse_operator_objects", "HiSparseInference objects known.")
        inferences = self._cache.inferences()
        total.add_metric([], len(inferences))
        yield total
        counts: Counter[tuple[str, str]] = Counter()
        for one in inferences:
            conditions: list[dict[str, Any]] = (one.get("status") or {}).get("conditions") or []
            counts.update((str(each["type"]), str(each["status"])) for each in conditions)
        family = GaugeMetricFamily(
            "hisparse_operator_objects_by_condition", "Objects by condition.", labels=["condition", "status"]
        )
        for labels, count in sorted(counts.items()):
            family.add_metric(labels, count)
        yield family
