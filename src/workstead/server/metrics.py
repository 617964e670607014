"""Prometheus metrics: request counts and durations as they happen, all others computed at each scrape."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily

if TYPE_CHECKING:
    from workstead.server.state import ServerState
    from workstead.server.streams import Hub

_TIMES = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """The metrics of one server."""

    def __init__(self, front: ServerState, hub: Hub) -> None:
        self._registry = CollectorRegistry()
        labels = ("method", "route", "status")
        self._requests = Counter("aw_http_requests", "Requests that were answered.", labels, registry=self._registry)
        self._seconds = Histogram(
            "aw_http_request_seconds",
            "Time from the head of a request to the end of its answer.",
            ("method", "route"),
            registry=self._registry,
            buckets=_TIMES,
        )
        self._registry.register(_Present(front, hub))

    def count(self, scope: Any, status: int, seconds: float) -> None:
        """Count one answered request. Only known routes become labels: arbitrary paths would grow without limit."""
        route = getattr(scope.get("route"), "path", "") or "other"
        method = scope["method"] if status != 405 else "other"
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(method, route).observe(seconds)

    def text(self) -> bytes:
        """Return all metrics in the Prometheus text format."""
        return generate_latest(self._registry)


class _Present:
    """Collector of the metrics that are computed at a scrape."""

    def __init__(self, front: ServerState, hub: Hub) -> None:
        self._front, self._hub = front, hub

    def describe(self) -> list[GaugeMetricFamily]:
        return []

    def collect(self) -> Iterator[GaugeMetricFamily]:
        front = self._front
        yield _by("aw_workspaces", "Workspaces by state.", "state", (each.state for each in front.workspaces.list()))
        yield _by("aw_runs", "Runs by state.", "state", (each.state for each in front.workspaces.runs()))
        approvals = len(front.workspaces.approvals())
        yield GaugeMetricFamily("aw_approvals_open", "Questions that nobody has answered.", approvals)
        yield GaugeMetricFamily("aw_events", "Events in the log.", front.workspaces.last_position())
        yield GaugeMetricFamily("aw_streams_open", "Streams of events and output.", self._hub.open_streams)
        damaged = len(front.workspaces.damage())
        yield GaugeMetricFamily("aw_damaged", "Things that the verification in the background found damaged.", damaged)
        free, total = front.workspaces.disk()
        yield GaugeMetricFamily("aw_disk_free_bytes", "Free space where workspaces are.", free)
        yield GaugeMetricFamily("aw_disk_bytes", "All space where workspaces are.", total)


def _by(name: str, text: str, label: str, values: Iterator[str]) -> GaugeMetricFamily:
    counts: dict[str, int] = {}
    for value in values:
        counts[value] = counts.get(value, 0) + 1
    family = GaugeMetricFamily(name, text, labels=[label])
    for value, count in sorted(counts.items()):
        family.add_metric([value], count)
    return family
