"""Owns the Prometheus metrics of a pod: names, labels and buckets; docs/reference.md explains each.

No label holds text that a caller sent: no id, and as prefix only the declared prefix that serves the timer.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import nan
from typing import Any, Final, NamedTuple, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Summary, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from timers.core.model import Status
from timers.core.outcome import Outcome
from timers.engine.observer import Observer
from timers.engine.worker import PodHealth

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4
"""The content type of `render`'s text."""

LATENESS_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 60, 300)
LOOP_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5, 30)
CLAIM_SIZES: Final = (0, 1, 2, 5, 10, 25, 50, 100, 200)
RUN_SECONDS: Final = (0.001, 0.005, 0.025, 0.1, 0.5, 1, 5, 30, 120, 600)

OUTCOMES: Final = (*(kind.__name__.lower() for kind in get_args(Outcome)), "lost")
"""How a run can end."""


class Figures(NamedTuple):
    """What Redis tells at a scrape. By declared prefix: `counts`, its timers by status; `uncovered`, how many of its
    prefixes have due timers that no pod takes; `failing_ms`, how long a retrying timer has failed. `shards` are those
    that no pod takes. `posted` changes wait in the outboxes for a pod, the oldest for `posted_ms`."""

    counts: Mapping[str, Mapping[Status, int]] = {}
    uncovered: Mapping[str, int] = {}
    shards: Sequence[int] = ()
    overdue_ms: float = nan
    posted: float = nan
    posted_ms: float = nan
    failing_ms: Mapping[str, int] = {}


class Metrics(Observer):
    """Counts what the engine reports, and renders it with the db's counts at a scrape."""

    def __init__(self) -> None:
        super().__init__()
        self._registry = CollectorRegistry()
        self._make_counted()
        self._make_read()

    def _make_counted(self) -> None:
        """The metrics that the engine reports as things happen."""
        ours: dict[str, Any] = {"registry": self._registry}
        prefix = ["prefix"]
        self._lateness = Histogram(
            "timers_lateness_seconds", "From due to start", prefix, buckets=LATENESS_SECONDS, **ours
        )
        self._runs = Histogram("timers_run_seconds", "From start to end", prefix, buckets=RUN_SECONDS, **ours)
        self._ended = Counter("timers_runs_total", "Runs ended", ["prefix", "outcome"], **ours)
        self._retried = Counter("timers_retries_total", "Runs that another try follows", prefix, **ours)
        self._refused = Counter("timers_refused_total", "Late results refused", prefix, **ours)
        self._rescued = Counter("timers_rescued_total", "Runs rescued", prefix, **ours)
        self._removed = Counter(
            "timers_removed_total", "Failed and unhandled timers removed by retention", ["prefix", "status"], **ours
        )
        self._claimed = Counter("timers_claimed_total", "Timers claimed, by what made the pod ask", ["cause"], **ours)
        self._sizes = Histogram("timers_claim_size", "Timers that a claim brought", buckets=CLAIM_SIZES, **ours)
        self._bare = Counter("timers_bare_keys_total", "Bare keys adopted, and what became of them", ["what"], **ours)
        self._subscribed = Counter("timers_subscriptions_total", "Subscriptions confirmed", **ours)
        self._gaps = Counter("timers_subscription_gap_seconds_total", "Time without a subscription", **ours)
        self._calls = Summary("timers_redis_call_seconds", "Calls of scripts in Redis", ["script"], **ours)
        self._loop = Histogram("timers_loop_lag_seconds", "Lateness of the event loop", buckets=LOOP_SECONDS, **ours)
        self._dropped = Counter("timers_events_dropped_total", "Changes that slow listeners lost", **ours)
        self._unposted = Counter("timers_unposted_total", "Changes that a hook does not hear of", **ours)
        self._known_dropped = 0

    def _make_read(self) -> None:
        """The metrics that are read at a scrape."""
        ours: dict[str, Any] = {"registry": self._registry}
        self._up = Gauge("timers_redis_up", "1 while this pod can read Redis", **ours)
        self._timers = Gauge("timers_timers", "Timers in the db", ["prefix", "status"], **ours)
        self._retrying = Gauge("timers_retrying", "Scheduled timers whose last attempt failed", ["prefix"], **ours)
        self._failing = Gauge(
            "timers_retrying_seconds", "How long the first of these timers has failed", ["prefix"], **ours
        )
        self._shards = Gauge("timers_uncovered_shards", "1 where no pod takes it", ["shard"], **ours)
        self._prefixes = Gauge("timers_uncovered_prefixes", "Prefixes with due timers, no pod", ["prefix"], **ours)
        self._losses = Gauge("timers_data_losses", "Losses of data that nobody has acknowledged", **ours)
        self._overdue = Gauge("timers_overdue_seconds", "How long the oldest due timer that may run waits", **ours)
        self._posted = Gauge("timers_outbox_entries", "Changes that wait for a pod to arm their calls", **ours)
        self._posted_age = Gauge("timers_outbox_seconds", "How long the oldest of these changes has waited", **ours)
        self._running = Gauge("timers_running", "Processors being run on this pod", **ours)
        self._abandoned = Gauge(
            "timers_abandoned", "Plain functions that keep running in their threads without a run", **ours
        )
        self._claim_wait = Gauge(
            "timers_claim_wait_seconds", "How long the first of the due queues waits for a claim of this pod", **ours
        )
        self._newer = Gauge("timers_newer_format", "Timers met lately that only a later version can read", **ours)
        self._ready = Gauge("timers_ready", "1 while this pod is ready", **ours)
        self._hearing = Gauge("timers_notifications_ok", "1 while notifications arrive in time", **ours)
        self._lag = Gauge("timers_notification_lag_seconds", "How late the newest notification came", **ours)

    def serves(self, prefixes: Iterable[str]) -> None:
        """See Observer. The counters begin at 0, because a rate does not see the first value of a series."""
        for prefix in prefixes:
            for outcome in OUTCOMES:
                self._ended.labels(prefix, outcome)
            for counter in (self._retried, self._refused, self._rescued):
                counter.labels(prefix)
            for status in (Status.FAILED, Status.UNHANDLED):
                self._removed.labels(prefix, status.value)

    def started(self, prefix: str, lateness_ms: int) -> None:
        """See Observer."""
        super().started(prefix, lateness_ms)
        self._lateness.labels(prefix).observe(lateness_ms / 1000)

    def ended(self, prefix: str, outcome: str, seconds: float) -> None:
        """See Observer."""
        self._runs.labels(prefix).observe(seconds)
        self._ended.labels(prefix, outcome).inc()

    def retried(self, prefix: str) -> None:
        """See Observer."""
        self._retried.labels(prefix).inc()

    def refused(self, prefix: str) -> None:
        """See Observer."""
        self._refused.labels(prefix).inc()

    def rescued(self, prefix: str) -> None:
        """See Observer."""
        self._rescued.labels(prefix).inc()

    def removed(self, prefix: str, status: str, count: int) -> None:
        """See Observer."""
        self._removed.labels(prefix, status).inc(count)

    def claimed(self, cause: str, count: int) -> None:
        """See Observer."""
        self._claimed.labels(cause).inc(count)
        self._sizes.observe(count)

    def bare_key(self, what: str) -> None:
        """See Observer."""
        self._bare.labels(what).inc()

    def loop_late(self, seconds: float) -> None:
        """See Observer."""
        self._loop.observe(seconds)

    def called(self, script: str, seconds: float) -> None:
        """See Observer."""
        self._calls.labels(script).observe(seconds)

    def resubscribed(self, gap_seconds: float) -> None:
        """See Observer."""
        self._subscribed.inc()
        self._gaps.inc(gap_seconds)

    def unposted(self, count: int) -> None:
        """See Observer."""
        self._unposted.inc(count)

    def render(self, figures: Figures | None, health: PodHealth | None, *, losses: int, dropped: int) -> bytes:
        """The exposition text. `figures` is None if Redis does not answer: what only Redis knows is left out or NaN
        then. `health` is None without a worker. `dropped` counts since the process began."""
        self._dropped.inc(dropped - self._known_dropped)
        self._known_dropped = dropped
        self._losses.set(losses)
        self._up.set(figures is not None)
        self._take(figures or Figures())
        self._ready.set(figures is not None if health is None else health.ready)
        if health is not None:
            self._running.set(health.running)
            self._abandoned.set(health.abandoned)
            self._claim_wait.set(health.claim_wait_seconds)
            self._newer.set(health.newer)
            self._hearing.set(nan if figures is None else health.notifications == "ok")
            self._lag.set(nan if figures is None else health.lag_seconds)
        return generate_latest(self._registry)

    def _take(self, figures: Figures) -> None:
        self._overdue.set(figures.overdue_ms / 1000)
        self._posted.set(figures.posted)
        self._posted_age.set(figures.posted_ms / 1000)
        for gauge in (self._timers, self._shards, self._prefixes, self._retrying, self._failing):
            gauge.clear()
        for prefix, statuses in figures.counts.items():
            for status, n in statuses.items():
                if status is Status.RETRYING:  # among the scheduled ones, so that a sum counts each timer once
                    self._retrying.labels(prefix).set(n)
                else:
                    self._timers.labels(prefix, status.value).set(n)
        for prefix, ms in figures.failing_ms.items():
            self._failing.labels(prefix).set(ms / 1000)
        for shard in figures.shards:
            self._shards.labels(shard).set(1)
        for prefix, n in figures.uncovered.items():
            self._prefixes.labels(prefix).set(n)
