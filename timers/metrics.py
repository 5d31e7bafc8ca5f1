"""Owns the Prometheus metrics of a pod: names, labels and buckets. No label holds what a caller has sent: neither an id
nor a prefix, but the declared prefix that serves it."""

from collections.abc import Mapping, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from timers.core.model import Status
from timers.engine.observer import Observer
from timers.engine.worker import Health

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4
"""Of what `render` gives."""

LATENESS_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 60, 300)
RUN_SECONDS: Final = (0.001, 0.005, 0.025, 0.1, 0.5, 1, 5, 30, 120, 600)


class Metrics(Observer):
    """Counts what the engine reports, and renders it with the db's counts at a scrape."""

    def __init__(self) -> None:
        super().__init__()
        self._registry = CollectorRegistry()
        self._lateness = Histogram(
            "timers_lateness_seconds",
            "From due to start",
            ["prefix"],
            registry=self._registry,
            buckets=LATENESS_SECONDS,
        )
        self._runs = Histogram(
            "timers_run_seconds", "From start to end", ["prefix"], registry=self._registry, buckets=RUN_SECONDS
        )
        self._ended = Counter("timers_runs_total", "Runs ended", ["prefix", "outcome"], registry=self._registry)
        self._refused = Counter("timers_refused_total", "Late results refused", ["prefix"], registry=self._registry)
        self._rescued = Counter("timers_rescued_total", "Runs rescued", ["prefix"], registry=self._registry)
        self._subscribed = Counter("timers_subscriptions_total", "Subscriptions confirmed", registry=self._registry)
        self._timers = Gauge("timers_timers", "Timers in the db", ["prefix", "status"], registry=self._registry)
        self._shards = Gauge("timers_uncovered_shards", "1 where no pod takes it", ["shard"], registry=self._registry)
        self._prefixes = Gauge(
            "timers_uncovered_prefixes", "Prefixes with due timers, no pod", ["prefix"], registry=self._registry
        )
        self._losses = Gauge(
            "timers_data_losses", "Losses of data that nobody has acknowledged", registry=self._registry
        )
        self._overdue = Gauge(
            "timers_overdue_seconds", "How long the oldest due timer that may run waits", registry=self._registry
        )
        self._running = Gauge("timers_running", "Processors being run on this pod", registry=self._registry)
        self._abandoned = Gauge(
            "timers_abandoned", "Plain functions that go on in their threads without a run", registry=self._registry
        )
        self._ready = Gauge("timers_ready", "1 while this pod is ready", registry=self._registry)
        self._hearing = Gauge(
            "timers_notifications_ok", "1 while notifications arrive in time", registry=self._registry
        )

    def started(self, prefix: str, lateness_ms: int) -> None:
        """See Observer."""
        super().started(prefix, lateness_ms)
        self._lateness.labels(prefix).observe(lateness_ms / 1000)

    def ended(self, prefix: str, outcome: str, seconds: float) -> None:
        """See Observer."""
        self._runs.labels(prefix).observe(seconds)
        self._ended.labels(prefix, outcome).inc()

    def refused(self, prefix: str) -> None:
        """See Observer."""
        self._refused.labels(prefix).inc()

    def rescued(self, prefix: str) -> None:
        """See Observer."""
        self._rescued.labels(prefix).inc()

    def resubscribed(self) -> None:
        """See Observer."""
        self._subscribed.inc()

    def render(
        self,
        counts: Mapping[str, Mapping[Status, int]],
        uncovered: Mapping[str, int],
        shards: Sequence[int],
        overdue_ms: float,
        health: Health | None,
        *,
        losses: int,
    ) -> bytes:
        """The exposition text. `counts` and `uncovered` have declared prefixes: the timers of each by status, and of
        how many of its prefixes timers are due that no pod takes; `shards` are those that none takes; `overdue_ms` is
        NaN where it is not known."""
        self._losses.set(losses)
        self._overdue.set(overdue_ms / 1000)
        for gauge in (self._timers, self._shards, self._prefixes):
            gauge.clear()
        for prefix, statuses in counts.items():
            for status, n in statuses.items():
                self._timers.labels(prefix, status.value).set(n)
        for shard in shards:
            self._shards.labels(shard).set(1)
        for prefix, n in uncovered.items():
            self._prefixes.labels(prefix).set(n)
        if health is not None:
            self._running.set(health.running)
            self._abandoned.set(health.abandoned)
            self._ready.set(health.ready)
            self._hearing.set(health.notifications == "ok")
        return generate_latest(self._registry)
