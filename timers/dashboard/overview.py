"""Owns the first page: whether all is well, what was fired, and what is due next."""

import asyncio
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from aiohttp import web

from timers.access import ApiKey
from timers.api.auth import Auth, prefixes_of, visible_to
from timers.api.credentials import is_secure
from timers.api.operations import call
from timers.api.requests import refuse_query
from timers.client import TimerClient
from timers.client.fleet import LATE_MS, UNSIGNED, Fleet, Stats, read_blocked, read_stats, shortened
from timers.client.opening import ask_ledger
from timers.core.durations import in_units
from timers.core.fields import is_own
from timers.core.model import Status
from timers.dashboard.render import Chart, bars, clock_of, lines
from timers.dashboard.site import Pages
from timers.doctor.checks import any_full
from timers.errors import Moving
from timers.store import alarms, keys, queries
from timers.store.cooperative import CachedRead
from timers.store.filters import Filter, Visible
from timers.store.identity import Move
from timers.store.membership import Roster
from timers.store.queries import FAILING_MS
from timers.store.scripts import FULL
from timers.store.starts import FAILED, RETRIED, Ring, due_load, next_timers, past_starts, quantiles_ms, total
from timers.store.store import Store

HOUR_MS: Final = 3_600_000
STATS_SECONDS: Final = 1.5
LOAD_SECONDS: Final = 20.0
LOAD_PATIENCE_SECONDS: Final = 0.02
"""How long a page waits for the first count of the coming load. In a large db the next look shows it."""

LEDGER_PATIENCE_SECONDS: Final = 0.6
"""How long a page waits for the ledger to answer."""

SCOPES: Final = 16
"""For how many different sets of prefixes, of API keys, the coming load is kept."""

NEXT: Final = 8


FAILING_SHOWN: Final = 3
OWN_SHOWN: Final = 20
"""How many prefixes are looked at, for the reasons why their timers fail."""

MANY: Final = 10
"""So many timers of a prefix that fail and are tried again are no chance, however short the time."""

_FAIL: Final = (Status.RETRYING, Status.FAILED)
"""What calls of hooks and messages of alarms are that do not arrive."""

RINGS: Final = {"hour": "a minute", "day": "half an hour"}
"""What the charts of fired timers show, and what each bar is. They count timers of all prefixes."""


class Trouble(NamedTuple):
    """Something that is wrong (`warn` or `bad`), and the page where one sees more: its address and what it is called.
    Without an address there is none that the caller may open."""

    level: str
    said: str
    where: str = ""
    called: str = ""


class Seen(NamedTuple):
    """What tells whether all is well, and what was fired. `paused` are paused prefixes with due timers, `failing` says
    why timers of a prefix fail and are tried again, and `calls` does so for the service's own: calls of hooks, messages
    of alarms. `moving` is set while the service is moved, and where it has left; `ledger` says why this pod cannot use
    its ledger."""

    stats: Stats
    moving: Move | None
    is_full: bool
    paused: Sequence[str]
    failing: Sequence[tuple[str, str]]
    calls: Sequence[tuple[str, str]]
    fired: Mapping[str, Ring]
    failed: Mapping[str, Ring]
    ringing: Sequence[alarms.Alarm]
    ledger: str | None = None


FINE: Final = "All is well."


def health(seen: Seen, visible: Visible | None, *, is_empty: bool = False) -> list[Trouble]:
    """What an operator should know, the worst first, and what is wrong now before what failed in the past; without
    figures over all prefixes for whoever sees only some. If nothing is wrong, one sentence of the level `ok`."""
    found = [*_bad(seen, visible), *_warnings(seen, visible)]
    for status, why in ((Status.UNHANDLED, ": no pod ran the processor they need."), (Status.FAILED, " for good.")):
        if n := seen.stats.by_status[status]:
            found.append(Trouble("warn", f"{n} {status}{why}", "/ui/failed", "Failures"))
    if found:
        return found
    if visible is not None or is_empty:
        return [Trouble("ok", f"{FINE} No timer has been armed yet." if is_empty else FINE)]
    fired = seen.stats.lateness_ms["p99"]
    if fired is None:
        return [Trouble("ok", f"{FINE} Timers fire on time. Nothing has fired in the last five minutes.")]
    on_time = f"Timers fire on time. 99 % start within {fired} ms."
    were_late = f"Timers were late in the last five minutes: 99 % started within {in_units(fired)}."
    return [Trouble("ok", f"{FINE} {on_time if fired <= LATE_MS else were_late}")]


def _bad(seen: Seen, visible: Visible | None) -> Iterator[Trouble]:
    stats = seen.stats
    server = ("/ui/server", "Server") if visible is None else ("", "")
    if stats.losses and visible is not None:
        yield Trouble("bad", "Data was lost. Whoever operates the service sees how much.")
    for loss in stats.losses if visible is None else ():
        yield Trouble("bad", f"Data was lost: {loss}.", *server)
    if seen.moving is not None:
        why = str(seen.moving.error) if visible is None else Moving.problem.title
        yield Trouble("bad", f"Nothing is armed or started here: {why}.", *server)
    if seen.is_full:
        yield Trouble("bad", f"{FULL}.", *server)
    if seen.ledger is not None:
        why = seen.ledger if visible is None else seen.ledger.partition(":")[0]
        yield Trouble("bad", f"What has to be in the ledger is refused, such as new timers: {why}.", *server)
    for prefix, said in {prefix: said for pod in stats.pods for prefix, said in pod.lacks.items()}.items():
        if visible is None or visible(prefix):
            yield Trouble("bad", f"Timers of {prefix!r} cannot run: {said}.", *_page_of(prefix))
    yield from _standstill(stats, visible)


def _standstill(stats: Stats, visible: Visible | None) -> Iterator[Trouble]:
    """Why nothing fires, or timers fire late."""
    if stats.fleet.unsigned:
        why, *server = (f": {stats.fleet.unsigned}", "/ui/server", "Server") if visible is None else ("",)
        yield Trouble("bad", f"{UNSIGNED}{why}.", *server)
    elif not any(pod.works for pod in stats.pods):
        yield Trouble("bad", "No worker is alive, so nothing fires until one starts.", "/ui/pods", "Pods")
    elif stats.late_ms > LATE_MS:
        since, where = in_units(stats.late_ms), "/ui/timers?status=scheduled&due_before=0s"
        yield Trouble("bad", f"Timers are late: the oldest has been due for {since}.", where, "Due timers")


def _warnings(seen: Seen, visible: Visible | None) -> Iterator[Trouble]:
    stats, unserved = seen.stats, seen.stats.fleet.unserved
    works = any(pod.works for pod in stats.pods)
    for prefix, said in seen.failing:
        yield Trouble("warn", said, *_page_of(prefix))
    for prefix, said in seen.calls if visible is None else ():
        where = f"/ui/timers?{urlencode({'prefix': prefix, 'status': _FAIL}, doseq=True)}"
        yield Trouble("warn", said, where, "Calls")
    if unserved.shards and visible is None:
        yield Trouble("warn", f"Shards without a live pod: {shortened(unserved.shards)}.", "/ui/pods", "Pods")
    for prefixes, why in (
        (unserved.prefixes, "no live pod serves"),
        (seen.paused, "somebody has paused"),
        (stats.fleet.held_back(seen.paused), "a limit holds back"),
    ):
        shown = [prefix for prefix in prefixes if not is_own(prefix) and (visible is None or visible(prefix))]
        if shown and works:
            page = _page_of(shown[0]) if len(shown) == 1 else ("/ui/prefixes", "Prefixes")
            yield Trouble("warn", f"Timers are due, but {why} {shortened(shown)}.", *page)
    if stats.notifications != "ok" and works:
        how = "arrive late" if stats.notifications == "late" else "do not arrive"
        said = f"Redis's notifications {how}: the sweep finds timers, up to a second late."
        yield Trouble("warn", said, *(("/ui/server", "Server") if visible is None else ("/ui/pods", "Pods")))


def _page_of(prefix: str) -> tuple[str, str]:
    return f"/ui/prefixes/{prefix}", prefix


class OverviewPage(Pages):
    def __init__(self, store: Store, client: TimerClient, auth: Auth) -> None:
        super().__init__(store, client, auth)
        self._whole = CachedRead(self._read, STATS_SECONDS)
        self._asked = CachedRead(partial(ask_ledger, client.ledger), STATS_SECONDS)
        self._load = lru_cache(SCOPES)(lambda prefixes: CachedRead(lambda: self._loaded(prefixes), LOAD_SECONDS))

    @call("getDashboard")
    async def page(self, request: web.Request) -> web.Response:
        refuse_query(request)
        visible, now_ms = visible_to(request), round(self._store.clock.now_ms())
        seen = await self._seen(visible)
        stats, by_status = seen.stats, seen.stats.by_status
        rings = [fired_charts(name, ring, seen.failed[name]) for name, ring in seen.fired.items()]
        wanted = Filter().seen_by(visible)
        is_empty = not any(by_status.values()) and not any(ring["total"] for ring in rings)
        rows = await due_rows(self._store, stats.fleet, wanted)
        # Last, because counting keeps the server busy.
        load = await self._load(prefixes_of(request)).soon(LOAD_PATIENCE_SECONDS)
        return self._show(
            request,
            "overview",
            health=health(seen, visible, is_empty=is_empty),
            alarms=seen.ringing,
            by_status=by_status,
            stats=stats,
            working=[pod for pod in stats.pods if pod.works],
            rings=rings,
            load=load and _load_chart(load[0], now_ms),
            load_is_whole=load is None or load[1],
            first=await self._first(request, stats.fleet.roster, wanted.covering()) if is_empty else None,
            **rows,
        )

    async def _first(self, request: web.Request, roster: Roster, covers: Visible) -> Mapping[str, Any]:
        """What an example of a first timer needs: a prefix that the caller may use, if possible one with a live pod and
        without an effect, and the addresses of this service and of its server."""
        known = sorted(filter(covers, roster.declared), key=lambda p: (not roster.serving(p), p != "log", p))
        prefix = known[0] if known else "hello"
        origin = f"{'https' if is_secure(request) else 'http'}://{request.host}"
        sees_all = visible_to(request) is None
        return {
            "prefix": prefix,
            "is_declared": bool(known),
            "url": shlex.quote(f"{origin}/v1/timers/{prefix}/first"),
            "redis_cli": f"redis-cli {self._store.connections.options}" if sees_all else "redis-cli",
            "needs_key": await self._auth.asks_for_keys(),
        }

    async def _seen(self, visible: Visible | None) -> Seen:
        """What the page shows; who does not see all prefixes sees neither starts nor alarms."""
        seen = await self._whole.get()
        if visible is None:
            return seen
        stats = await self._client.stats(visible=visible)
        failing = await _failing(self._store, stats)
        return seen._replace(stats=stats, failing=failing, fired={}, failed={}, ringing=[])

    async def _read(self) -> Seen:
        seen = await read_seen(self._store, await read_stats(self._store, by_prefix=False))
        with suppress(TimeoutError):  # which is told once it has lasted
            async with asyncio.timeout(LEDGER_PATIENCE_SECONDS):
                await self._asked.get()
        return seen._replace(ledger=None if self._client.ledger is None else self._client.ledger.trouble)

    async def _loaded(self, prefixes: tuple[str, ...]) -> tuple[Sequence[int], bool]:
        visible = ApiKey("", prefixes, frozenset()).sees
        return await due_load(self._store, step_ms=HOUR_MS, steps=24, wanted=Filter().seen_by(visible))


async def read_seen(store: Store, stats: Stats) -> Seen:
    """What there is to see beside the figures. Raises Unavailable."""
    paused = {due.prefix for due in stats.fleet.due if due.kind == "blocked" and not is_own(due.prefix)}
    return Seen(
        stats,
        store.identity.moving,
        await any_full(store.connections),
        sorted(paused.intersection(await queries.paused(store) if paused else ())),
        await _failing(store, stats),
        await _failing_calls(store, stats.fleet.roster),
        await past_starts(store),
        await past_starts(store, keys.FAILED_ROOT),
        await alarms.active(store),
    )


async def _failing(store: Store, stats: Stats) -> list[tuple[str, str]]:
    """Why timers fail and are tried again, of the prefixes where many do, or one has for long."""
    found: list[tuple[str, str]] = []
    for prefix, n, ms in [each for each in stats.retrying if each[1] >= MANY or each[2] > FAILING_MS][:FAILING_SHOWN]:
        newest = await queries.endings(store, prefix, Status.RETRYING, 1)
        why = queries.error_text(newest[0].error) if newest else queries.NO_ERROR
        fail = "timer fails and is retried" if n == 1 else "timers fail and are retried, the first"
        found.append((prefix, f"{prefix}: {n} {fail} for {in_units(ms)}: {why}."))
    return found


async def _failing_calls(store: Store, roster: Roster) -> list[tuple[str, str]]:
    """Why calls of hooks and messages of alarms do not arrive."""
    found: list[tuple[str, str]] = []
    for prefix in [prefix for prefix in sorted(roster.declared) if is_own(prefix)][:OWN_SHOWN]:
        newest = [each for status in _FAIL for each in await queries.endings(store, prefix, status, 1)]
        if newest:
            why = queries.error_text(newest[0].error)
            found.append((prefix, f"Calls of hooks or messages of alarms do not arrive ({prefix}): {why}."))
    return found[:FAILING_SHOWN]


async def due_rows(store: Store, fleet: Fleet, wanted: Filter) -> Mapping[str, Any]:
    """What is due next, and the first timers of prefixes with due timers that nothing starts, with the reason."""
    covers = wanted.covering()
    blocked = await read_blocked(store, fleet, covers, NEXT)
    if waiting := {timer.prefix for timer, _ in blocked}:  # these must not hide what may run
        wanted = wanted.seen_by(lambda prefix: prefix not in waiting and covers(prefix))
    return {"blocked": blocked, "next": await next_timers(store, NEXT, wanted)}


def fired_charts(name: str, ring: Ring, failures: Ring) -> Mapping[str, Any]:
    """The data of a ring: how many timers fired in each step, how many attempts failed, and how late they were."""
    slots = list(ring)
    fired = [sum(counts.values()) for counts in ring.values()]
    failed, retried = ([failures.get(at_ms, {}).get(kind, 0) for at_ms in slots] for kind in (FAILED, RETRIED))
    fine = [max(0, n - f - r) for n, f, r in zip(fired, failed, retried, strict=True)]
    late = [quantiles_ms(counts) for counts in ring.values()]
    overall = quantiles_ms(total(ring))
    labels = [clock_of(slots[0]), clock_of(slots[len(slots) // 2]), "now"]
    said = [
        f"{clock_of(at_ms)}: {n} fired{_failures(f, r)}" + (f", late p50 {q['p50']} ms, p99 {q['p99']} ms" if n else "")
        for at_ms, n, f, r, q in zip(slots, fired, failed, retried, late, strict=True)
    ]
    summary = f"{sum(fired)} fired in the last {name}{_failures(sum(failed), sum(retried))}"
    lateness = f"Lateness in the last {name}: p50 {overall['p50']} ms, p99 {overall['p99']} ms, max {overall['max']} ms"
    return {
        "name": name,
        "step": RINGS[name],
        "total": sum(fired),
        "latest": fired[-2],
        "overall": overall,
        "fired": bars(
            [("failed", failed), ("retrying", retried), ("fired", fine)],
            said,
            labels,
            f"{summary}, at most {max(fired)} in {RINGS[name]}",
        ),
        "late": lines([("p99", [q["p99"] for q in late]), ("p50", [q["p50"] for q in late])], labels, lateness),
    }


def _failures(failed: int, retried: int) -> str:
    return (f", {retried} tried again" if retried else "") + (f", {failed} failed for good" if failed else "")


def _load_chart(counts: Sequence[int], now_ms: int) -> Chart:
    hours = [now_ms + hour * HOUR_MS for hour in range(len(counts))]
    said = [f"{clock_of(at)} to {clock_of(at + HOUR_MS)}: {n} due" for at, n in zip(hours, counts, strict=True)]
    summary = f"{sum(counts)} timers are due in the next 24 hours, at most {max(counts)} in an hour"
    return bars([("due", counts)], said, ["now", "in 12 h", "in 24 h"], summary)
