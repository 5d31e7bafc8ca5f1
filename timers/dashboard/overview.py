"""Owns the first page: whether all is well, what was fired, and what is due next."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final

from aiohttp import web

from timers.access import Scope
from timers.api.auth import scope_of, visible_to
from timers.api.body import refuse_query
from timers.api.operations import route
from timers.client.fleet import Stats, read_stats
from timers.core.durations import in_units
from timers.core.model import Status
from timers.dashboard import charts
from timers.dashboard.site import Parts, show
from timers.store import alarms
from timers.store.cooperative import CachedRead
from timers.store.filters import Filter, Visible
from timers.store.queries import FAILING_MS
from timers.store.starts import Ring, due_load, next_timers, past_starts, quantiles_ms, total

HOUR_MS: Final = 3_600_000
LATE_MS: Final = 2_000
"""Timers overdue by more than this are late. It is twice the sweep interval."""

STATS_SECONDS: Final = 1.5
LOAD_SECONDS: Final = 20.0
LOAD_PATIENCE_SECONDS: Final = 0.02
"""How long a page waits for the first count of the coming load. In a large db the next look shows it."""

SCOPES: Final = 16
"""For how many scopes of API keys the coming load is kept."""

NEXT: Final = 8


RINGS: Final = {"hour": "a minute", "day": "half an hour"}
"""What the charts of fired timers show, and what each bar is. They count timers of all prefixes."""


Seen = tuple[Stats, Mapping[str, Ring], Sequence[alarms.Alarm]]
"""The state of the service, the rings of past starts, and the alarms that ring."""


@dataclass(frozen=True, slots=True)
class Health:
    """One sentence on the state of the service. `level` is `ok`, `warn` or `bad`; `reasons` are everything that is
    wrong."""

    level: str
    said: str
    reasons: Sequence[str]


def health(stats: Stats, by_status: Mapping[Status, int], visible: Visible | None) -> Health:
    """What an operator should know first; without figures over all prefixes for whoever sees only some."""
    bad, warn = list(_bad(stats, visible)), list(_warnings(stats, by_status))
    warn += stats.unserved.warnings() if visible is None else []
    if bad:
        return Health("bad", bad[0], [*bad[1:], *warn])
    if warn:
        return Health("warn", warn[0], warn[1:])
    if visible is not None:
        return Health("ok", "All is well.", ())
    fired = stats.lateness_ms["p99"]
    on_time = "Nothing has fired in the last five minutes." if fired is None else f"99 % start within {fired} ms."
    return Health("ok", f"All is well. Timers fire on time. {on_time}", ())


def _bad(stats: Stats, visible: Visible | None) -> Sequence[str]:
    found = [f"Data was lost: {loss}." for loss in stats.losses]
    if found and visible is not None:
        found = ["Data was lost. Whoever operates the service sees how much."]
    lacks = {prefix: said for pod in stats.pods for prefix, said in pod.lacks.items()}
    found += [f"Timers of {p!r} stand still: {said}." for p, said in lacks.items() if visible is None or visible(p)]
    if not any(pod.works for pod in stats.pods):
        found.append("No worker is alive, so nothing fires until one starts.")
    elif stats.late_ms > LATE_MS:
        found.append(f"Timers are late: the oldest has been due for {in_units(stats.late_ms)}.")
    return found


def _warnings(stats: Stats, by_status: Mapping[Status, int]) -> Sequence[str]:
    found = []
    if stats.notifications != "ok" and any(pod.works for pod in stats.pods):
        how = "arrive late" if stats.notifications == "late" else "do not arrive"
        found.append(f"Redis's notifications {how}: the sweep finds timers, up to a second late.")
    if stats.failing_ms > FAILING_MS:
        n = by_status.get(Status.RETRYING, 0)
        found.append(f"{n} failed and are tried again, the first for {in_units(stats.failing_ms)}.")
    if n := by_status.get(Status.UNHANDLED, 0):
        found.append(f"{n} unhandled: no pod ran the processor they need.")
    if n := by_status.get(Status.FAILED, 0):
        found.append(f"{n} failed and need attention.")
    return found


class OverviewPage:
    """`/`."""

    def __init__(
        self,
        parts: Parts,
        *,
        stats_seconds: float = STATS_SECONDS,
        load_seconds: float = LOAD_SECONDS,
        load_patience_seconds: float = LOAD_PATIENCE_SECONDS,
    ) -> None:
        self._parts = parts
        self._whole = CachedRead(self._read, stats_seconds)
        self._load = lru_cache(SCOPES)(lambda scope: CachedRead(lambda: self._loaded(scope), load_seconds))
        self._load_patience_seconds = load_patience_seconds

    def routes(self) -> Sequence[web.RouteDef]:
        """The routes to add to an application."""
        return (route("getDashboard", self.page),)

    async def page(self, request: web.Request) -> web.Response:
        """Answers 200 with the page."""
        refuse_query(request)
        visible, now_ms = visible_to(request), round(self._parts.store.clock.now_ms())
        stats, fired, ringing = await self._seen(visible)
        by_status = dict.fromkeys(Status, 0)
        for counts in stats.counts.values():
            for status, n in counts.items():
                by_status[status] += n
        coming = await next_timers(self._parts.store, NEXT, Filter().seen_by(visible))
        # Last, because counting keeps the server busy.
        load = await self._load(scope_of(request)).soon(self._load_patience_seconds)
        return show(
            request,
            "overview",
            title="Overview",
            section="overview",
            now_ms=now_ms,
            health=health(stats, by_status, visible),
            alarms=ringing,
            by_status=by_status,
            stats=stats,
            working=[pod for pod in stats.pods if pod.works],
            rings=[_ring(name, step, fired[name]) for name, step in RINGS.items() if name in fired],
            load=load and _load_chart(load[0], now_ms),
            load_is_whole=load is None or load[1],
            next=coming,
        )

    async def _seen(self, visible: Visible | None) -> Seen:
        """What the page shows; who does not see all prefixes sees neither starts nor alarms."""
        if visible is None:
            return await self._whole.get()
        return await self._parts.client.stats(visible=visible), {}, []

    async def _read(self) -> Seen:
        store = self._parts.store
        return await read_stats(store, by_prefix=False), await past_starts(store), await alarms.ringing(store)

    async def _loaded(self, scope: Scope) -> tuple[Sequence[int], bool]:
        visible = None if scope.is_everything else scope.covers
        return await due_load(self._parts.store, step_ms=HOUR_MS, steps=24, wanted=Filter().seen_by(visible))


def _ring(name: str, step: str, ring: Ring) -> Mapping[str, Any]:
    """The data of a ring: how many timers fired in each step, and how late."""
    slots = list(ring)
    fired = [sum(counts.values()) for counts in ring.values()]
    late = [quantiles_ms(counts) for counts in ring.values()]
    overall = quantiles_ms(total(ring))
    labels = [_clock(slots[0]), _clock(slots[len(slots) // 2]), "now"]
    said = [
        f"{_clock(at_ms)}: {n} fired" + (f", late p50 {q['p50']} ms, p99 {q['p99']} ms" if n else "")
        for at_ms, n, q in zip(slots, fired, late, strict=True)
    ]
    summary = f"{sum(fired)} fired in the last {name}, at most {max(fired)} in {step}"
    lateness = f"Lateness in the last {name}: p50 {overall['p50']} ms, p99 {overall['p99']} ms, max {overall['max']} ms"
    return {
        "name": name,
        "step": step,
        "total": sum(fired),
        "latest": fired[-2],
        "overall": overall,
        "fired": charts.bars(fired, said, labels, summary),
        "late": charts.lines([("p99", [q["p99"] for q in late]), ("p50", [q["p50"] for q in late])], labels, lateness),
    }


def _load_chart(counts: Sequence[int], now_ms: int) -> charts.Chart:
    hours = [now_ms + hour * HOUR_MS for hour in range(len(counts))]
    said = [f"{_clock(at)} to {_clock(at + HOUR_MS)}: {n} due" for at, n in zip(hours, counts, strict=True)]
    summary = f"{sum(counts)} timers are due in the next 24 hours, at most {max(counts)} in an hour"
    return charts.bars(counts, said, ["now", "in 12 h", "in 24 h"], summary)


def _clock(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%H:%M UTC")
