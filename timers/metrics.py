"""Owns the Prometheus metrics of a pod: names, labels and buckets; docs/reference.md explains each.

No label holds text that a caller sent: no id, and as prefix only the declared prefix that serves the timer.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import accumulate, product
from math import inf, nan
from typing import Final, get_args

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from timers.core.model import Status
from timers.core.outcome import Outcome
from timers.engine.pod import Counted, Measured, Observer
from timers.engine.worker import PodHealth
from timers.store.servers.durability import WAITS

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4
"""The content type of `render`'s text."""

LATENESS_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 60, 300)
LOOP_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5, 30)
CLAIM_SIZES: Final = (0, 1, 2, 5, 10, 25, 50, 100, 200)
RUN_SECONDS: Final = (0.001, 0.005, 0.025, 0.1, 0.5, 1, 5, 30, 120, 600)

COUNTERS: Final[Mapping[str, tuple[str, ...]]] = {
    "timers_runs_total": ("Runs ended", "prefix", "outcome"),
    "timers_retries_total": ("Failed runs that will be retried", "prefix"),
    "timers_refused_total": ("Late results refused", "prefix"),
    "timers_rescued_total": ("Runs rescued", "prefix"),
    "timers_removed_total": ("Failed and unhandled timers removed by retention", "prefix", "status"),
    "timers_claimed_total": ("Timers claimed, by what made the pod ask", "cause"),
    "timers_bare_keys_total": ("Bare keys adopted, and what became of them", "what"),
    "timers_subscriptions_total": ("Subscriptions confirmed",),
    "timers_subscription_gap_seconds_total": ("Time without a subscription",),
    "timers_events_dropped_total": ("Changes that slow listeners lost",),
    "timers_unposted_total": ("Changes that a hook does not hear of",),
    "timers_inbox_total": ("Rows of the ledger's inbox, done or refused", "how"),
    "timers_ledger_drift_total": ("Timers repaired that differed between the ledger and Redis", "side"),
    "timers_durable_total": ("Creates and ends that waited for more than Redis", "durability", "reached"),
}
HISTOGRAMS: Final[Mapping[str, tuple[Sequence[float], str, *tuple[str, ...]]]] = {
    "timers_lateness_seconds": (LATENESS_SECONDS, "Delay between due time and start", "prefix"),
    "timers_run_seconds": (RUN_SECONDS, "Time between start and end", "prefix"),
    "timers_claim_size": (CLAIM_SIZES, "Timers claimed in one call"),
    "timers_loop_lag_seconds": (LOOP_SECONDS, "Lateness of the event loop"),
}
"""What the engine reports as things happen: help text and labels, and for histograms first the buckets."""

GAUGES: Final[Mapping[str, tuple[str, ...]]] = {
    "timers_redis_up": ("1 while this pod can read this server, which is one of a cluster's primaries", "server"),
    "timers_redis_full": ("1 while a server is at its maxmemory and takes no new timers",),
    "timers_timers": ("Timers in the db", "prefix", "status"),
    "timers_retrying": ("Scheduled timers whose last attempt failed", "prefix"),
    "timers_retrying_seconds": ("How long the retrying timer that failed first has been failing", "prefix"),
    "timers_rights_missing": ("1 if this pod's Redis user was lately refused a right to the prefix", "prefix"),
    "timers_held_back_seconds": ("How long the first due timer was held back by a pause or a limit", "prefix", "by"),
    "timers_uncovered_shards": ("1 for a shard without a live pod", "shard"),
    "timers_uncovered_prefixes": ("Prefixes with due timers and no live pod", "prefix"),
    "timers_data_losses": ("Losses of data that nobody has acknowledged",),
    "timers_overdue_seconds": ("How long the oldest due timer that may run has waited",),
    "timers_outbox_entries": ("Changes whose hook calls no pod has armed yet",),
    "timers_outbox_seconds": ("How long the oldest change whose hook calls no pod has armed yet has waited",),
    "timers_quarantined": ("Timers in quarantine, because their records cannot be read",),
    "timers_running": ("Runs in progress on this pod",),
    "timers_abandoned": ("Plain functions still running in threads after their runs ended",),
    "timers_claim_wait_seconds": ("Wait of the longest-waiting due queue for a claim by this pod",),
    "timers_newer_format": ("Timers seen lately that only a later version can read",),
    "timers_ledger_up": ("1 while the ledger's database answers this pod and lets it write",),
    "timers_ledger_waiting": ("Changes that this pod has yet to copy to the ledger",),
    "timers_ledger_lag_seconds": ("Age of the oldest change that the ledger may lack",),
    "timers_ledger_share": ("Share of this pod's shards that was restored from the ledger and copied to it, 0 to 1",),
    "timers_inbox_seconds": ("How long the first row of the ledger's inbox has waited",),
    "timers_inbox_refused": ("Rows of the ledger's inbox that were refused",),
    "timers_ready": ("1 while this pod is ready",),
    "timers_notifications_ok": ("1 while notifications arrive in time",),
    "timers_notification_lag_seconds": ("How late the newest notification came",),
}
"""What is read at a scrape."""

OUTCOMES: Final = (*(kind.__name__.lower() for kind in get_args(Outcome)), "lost")
"""How a run can end."""


Labels = tuple[str, ...]

Figures = Mapping[str, Mapping[Labels, float]]
"""Gauges by name and labels."""

_UNKNOWN: Final = (
    *("timers_redis_full", "timers_overdue_seconds", "timers_outbox_entries", "timers_outbox_seconds"),
    "timers_quarantined",
)
"""Gauges without labels that only Redis knows."""


class _Buckets:
    __slots__ = ("_bounds", "_numbers", "_total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds, self._numbers, self._total = bounds, [0] * (len(bounds) + 1), 0.0

    def observe(self, value: float) -> None:
        self._numbers[bisect_left(self._bounds, value)] += 1
        self._total += value

    def cumulative(self) -> tuple[list[tuple[str, float]], float]:
        """How many values there are up to each bound, and their sum."""
        bounds = map(floatToGoString, (*self._bounds, inf))
        return list(zip(bounds, accumulate(self._numbers), strict=True)), self._total


class Metrics(Observer, Collector):
    """Counts what the engine reports in plain numbers, and renders it with the db's counts at a scrape: counting with
    the client's own objects took a fifth of a pod's time."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers = {
            name: defaultdict[Labels, float](float, {} if labels else {(): 0.0})
            for name, (_, *labels) in COUNTERS.items()
        }
        self._spreads = {
            name: defaultdict[Labels, _Buckets](partial(_Buckets, bounds), {} if labels else {(): _Buckets(bounds)})
            for name, (bounds, _, *labels) in HISTOGRAMS.items()
        }
        for durability, reached in product(WAITS, ("yes", "no")):
            self._numbers["timers_durable_total"][durability, reached] = 0
        for side in ("redis", "ledger"):
            self._numbers["timers_ledger_drift_total"][side,] = 0
        self._calls = defaultdict[str, _Buckets](partial(_Buckets, ()))
        self._registry = CollectorRegistry()
        self._read: Figures = {}
        self._registry.register(self)

    def collect(self) -> Iterable[Metric]:
        """See Collector. Another thread may count something new meanwhile."""
        for name, (said, *labels) in COUNTERS.items():
            counter = CounterMetricFamily(name, said, labels=labels)
            for key, number in list(self._numbers[name].items()):
                counter.add_metric(key, number)
            yield counter
        for name, (_, said, *labels) in HISTOGRAMS.items():
            histogram = HistogramMetricFamily(name, said, labels=labels)
            for key, spread in list(self._spreads[name].items()):
                histogram.add_metric(key, *spread.cumulative())
            yield histogram
        calls = SummaryMetricFamily("timers_redis_call_seconds", "Calls of scripts in Redis", labels=["script"])
        for script, spread in list(self._calls.items()):
            ((_, number),), seconds = spread.cumulative()
            calls.add_metric([script], int(number), seconds)
        yield calls
        for name, (said, *labels) in GAUGES.items():
            gauge = GaugeMetricFamily(name, said, labels=labels)
            for key, value in self._read.get(name, {}).items():
                gauge.add_metric(key, float(value))
            yield gauge

    describe = collect

    def serves(self, prefixes: Iterable[str]) -> None:
        """See Observer. The counters begin at 0, because a rate does not see the first value of a series."""
        for prefix in prefixes:
            for outcome in OUTCOMES:
                self._numbers["timers_runs_total"][prefix, outcome] += 0
            for name in ("retries", "refused", "rescued"):
                self._numbers[f"timers_{name}_total"][prefix,] += 0
            for status in (Status.FAILED, Status.UNHANDLED):
                self._numbers["timers_removed_total"][prefix, status.value] += 0

    def started(self, prefix: str, lateness_ms: int) -> None:
        super().started(prefix, lateness_ms)
        self._spreads["timers_lateness_seconds"][prefix,].observe(lateness_ms / 1000)

    def ended(self, prefix: str, outcome: str, seconds: float) -> None:
        self._spreads["timers_run_seconds"][prefix,].observe(seconds)
        self._numbers["timers_runs_total"][prefix, outcome] += 1

    def count(self, what: Counted, *labels: str, by: float = 1) -> None:
        self._numbers[f"timers_{what}_total"][labels] += by

    def measure(self, what: Measured, value: float) -> None:
        self._spreads[f"timers_{what}"][()].observe(value)

    def called(self, script: str, seconds: float) -> None:
        """A call of a script was answered."""
        self._calls[script].observe(seconds)

    def confirmed(self, durability: str, reached: bool, timers: int) -> None:
        """Writes waited for a durability, and reached it in time or not."""
        self._numbers["timers_durable_total"][durability, "yes" if reached else "no"] += timers

    def render(
        self,
        figures: Figures | None,
        health: PodHealth | None,
        *,
        ready: bool,
        servers: Mapping[str, bool],
        losses: int,
        dropped: int,
        ledger_up: bool | None = None,
        inbox_seconds: float | None = None,
    ) -> bytes:
        """The exposition text. `figures` are the gauges that only Redis knows, None if it does not answer: those that
        are missing are left out or NaN. `ready` is what `/readyz` says, `servers` by address which can be read.
        `health` is None without a worker. `dropped` counts since the process began. `ledger_up` is None without a
        ledger, `inbox_seconds` also while it does not answer."""
        self._numbers["timers_events_dropped_total"][()], is_up = dropped, any(servers.values())
        single: dict[str, float | None] = {
            "timers_data_losses": losses,
            "timers_ready": ready,
            "timers_ledger_up": ledger_up,
            "timers_inbox_seconds": inbox_seconds,
        }
        if health is not None:
            single |= {
                "timers_running": health.running,
                "timers_abandoned": health.abandoned,
                "timers_claim_wait_seconds": health.claim_wait_seconds,
                "timers_newer_format": health.newer,
                "timers_notifications_ok": health.notifications == "ok" if is_up else nan,
                "timers_notification_lag_seconds": health.lag_seconds if is_up else nan,
            }
        if health is not None and health.ledger is not None:
            single |= {
                "timers_ledger_waiting": health.ledger.waiting,
                "timers_ledger_lag_seconds": health.ledger.lag_seconds,
                "timers_ledger_share": health.ledger.share,
                "timers_inbox_refused": health.ledger.refused,
            }
        known = dict.fromkeys(_UNKNOWN, nan) | {name: value for name, value in single.items() if value is not None}
        up: Figures = {"timers_redis_up": {(server,): answers for server, answers in servers.items()}}
        self._read = {**{name: {(): value} for name, value in known.items()}, **up, **(figures or {})}
        return generate_latest(self._registry)
