"""Owns the pages about the service: prefixes, pods, the server and API keys."""

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from aiohttp import web

from timers.access import RIGHTS, ApiKey, make_key
from timers.api.auth import Auth, acting, as_seen_by, caller_of, nothing_of, require_visible, visible_to
from timers.api.operations import page_at
from timers.client import TimerClient
from timers.client.fleet import LATE_MS, PrefixView, read_obstacle, read_prefixes
from timers.core.fields import OWN_PREFIXES, is_own
from timers.core.hooks import Hook
from timers.core.model import Status, Timer
from timers.dashboard.many import FAILING, failures_of
from timers.dashboard.render import Chart, bars, clock_of, redirect
from timers.dashboard.site import Pages, form_of, number_of, paged, pairs_of
from timers.doctor.checks import server_facts
from timers.doctor.examining import examine
from timers.errors import Forbidden, InvalidInput, shown
from timers.store import alarms, outbox, queries
from timers.store.callers import REVOKED
from timers.store.cooperative import CachedRead, cooperatively
from timers.store.filters import Filter
from timers.store.listing import read_page
from timers.store.membership import Membership
from timers.store.starts import bucket_of, quantiles_ms
from timers.store.store import Store

PREFIXES_A_PAGE: Final = 30
DUE_SHOWN: Final = 8
VIEWS_SECONDS: Final = 1.5
LOOK_SECONDS: Final = 3.0
LOOKS: Final = 16
"""How long what the page of a prefix shows counts, and for how many prefixes it is kept."""

STARTS_FROM: Final = 50
"""Timers that tell how late a prefix is: so many that completed last, and so many that are due next and ran before."""

PERIODS: Final = {"hour": (12, 300_000, "five minutes"), "day": (24, 3_600_000, "an hour")}
"""What the charts of a prefix show: the number of bars, the ms of each, and that in words."""

CHECKS_SECONDS: Final = 30.0
"""How long the doctor's findings count. The doctor waits for an event and reads many keys, so it does not run at
every refresh."""


class ServicePages(Pages):
    def __init__(self, store: Store, client: TimerClient, auth: Auth) -> None:
        super().__init__(store, client, auth)
        self._prefixes = CachedRead(lambda: _worst_first(store), VIEWS_SECONDS)
        self._looks = lru_cache(LOOKS)(lambda prefix: CachedRead(lambda: self._look(prefix), LOOK_SECONDS))
        self._checks = CachedRead(lambda: examine(store, ledger=client.ledger), CHECKS_SECONDS)

    @page_at("GET prefixes", "read")
    async def prefixes(self, request: web.Request) -> web.Response:
        """Answers 200 with the prefixes that the caller may see, a page at a time, those with trouble first."""
        words = request.query.get("q", "").strip()
        asked = Filter(prefix=f"{OWN_PREFIXES}*" if is_own(words) else None).seen_by(visible_to(request))
        covers = asked.covering()
        found = [view for view in await self._prefixes.get() if words in view.prefix and covers(view.prefix)]
        views, place = paged(request, found, PREFIXES_A_PAGE)
        return self._show(
            request,
            "prefixes",
            views=views,
            ended=await self._ended("hour", {view.prefix: view.counts for view in views}),
            words=words,
            **place,
        )

    @page_at("GET prefixes/{prefix}", "read")
    async def prefix(self, request: web.Request) -> web.Response:
        """Answers 200 with a prefix, or 404 if there is no such prefix."""
        prefix = request.match_info["prefix"]
        require_visible(request, prefix)
        views = {view.prefix: view for view in await self._prefixes.get()}
        if prefix not in views:
            views = {view.prefix: view for view in await self._prefixes.since(time.monotonic())}
        if prefix not in views:
            raise nothing_of(prefix)
        view, store = views[prefix], self._store
        looked = await self._looks(prefix).get()
        scheduled = await read_page(store, Filter(prefix=prefix, status=(Status.SCHEDULED,)), limit=DUE_SHOWN)
        now_ms, coming, blocked = round(store.clock.now_ms()), scheduled.items, list[tuple[Timer, str]]()
        if coming and coming[0].due_ms < now_ms - LATE_MS:
            first, roster = coming[0], await Membership(store).read()
            blocked = [(first, await read_obstacle(store, roster, prefix, store.shard_of(prefix, first.id)))]
        return self._show(
            request,
            "prefix",
            view=view,
            blocked=blocked,
            next=coming[len(blocked) :],
            periods=PERIODS,
            **looked,
        )

    async def _look(self, prefix: str) -> Mapping[str, Any]:
        """What ended in the last hour and day, why timers fail, and how late the newest runs began."""
        counts: dict[Status, int] = {}
        async for _, _, status, n in queries.counted(self._store, prefix):
            counts[status] = counts.get(status, 0) + n
        starts = Counter[int]()
        for status in (Status.COMPLETED, Status.SCHEDULED):
            wanted = Filter(prefix=prefix, status=(status,))
            page = await read_page(self._store, wanted, limit=STARTS_FROM, newest=status is Status.COMPLETED)
            entries = [entry for timer in page.items for entry in timer.history]
            starts.update(bucket_of(entry.lateness_ms) for entry in entries if entry.lateness_ms is not None)
        return {
            "charts": {name: (await self._ended(name, {prefix: counts}))[prefix] for name in PERIODS},
            "failures": await failures_of(self._store, prefix, counts),
            "late": quantiles_ms(starts),
            "starts": starts.total(),
        }

    async def _ended(self, period: str, counts: Mapping[str, Mapping[Status, int]]) -> Mapping[str, tuple[int, Chart]]:
        """By prefix, how many of its timers ended in the hour or the day, and a chart of them."""
        steps, step_ms, _ = PERIODS[period]
        store, made = self._store, dict[str, tuple[int, Chart]]()
        begins = round(store.clock.now_ms()) // step_ms * step_ms - (steps - 1) * step_ms
        for prefix, found in (await queries.ended(store, counts, step_ms=step_ms, steps=steps)).items():
            series = [(str(status), found.get(status, [0] * steps)) for status in (*FAILING, Status.COMPLETED)]
            said = [
                f"{clock_of(begins + i * step_ms)}: {_said(values)}"
                for i, values in enumerate(zip(*(values for _, values in series), strict=True))
            ]
            total = [sum(values) for _, values in series]
            labels = [clock_of(begins), "now"]
            made[prefix] = sum(total), bars(series, said, labels, f"{prefix} in the last {period}: {_said(total)}")
        return made

    @page_at("POST prefixes/{prefix}/{action}", "operate")
    async def act_on_prefix(self, request: web.Request) -> web.Response:
        """Answers 303 back to the prefixes, after pausing or resuming a prefix or taking back its declaration."""
        await form_of(request)
        prefix, action = request.match_info["prefix"], request.match_info["action"]
        require_visible(request, prefix)
        client = acting(self._client, request)
        acts: dict[str, Callable[[str], Awaitable[object]]] = {
            "pause": client.pause,
            "resume": client.resume,
            "forget": client.forget,
        }
        if action not in acts:
            raise web.HTTPNotFound(text=f"{shown(action)} is not an action for a prefix")
        await acts[action](prefix)
        self._prefixes = CachedRead(lambda: _worst_first(self._store), VIEWS_SECONDS)
        return redirect(f"/ui/prefixes?q={prefix}")

    @page_at("GET pods", "read")
    async def pods(self, request: web.Request) -> web.Response:
        visible = visible_to(request)
        pods = [(pod, as_seen_by(visible, pod.to_json())) for pod in await self._client.pods()]
        return self._show(request, "pods", pods=pods)

    @page_at("GET server", "read", of_all=True)
    async def server(self, request: web.Request) -> web.Response:
        """Answers 200 with the doctor's findings and what the server says about itself."""
        checks = await self._checks.get()
        order = {"fail": 0, "warn": 1, "ok": 2}
        return self._show(
            request,
            "server",
            checks=sorted(checks, key=lambda check: order.get(check.level, 0)),
            info=await server_facts(self._store),
            **await self._hooks(),
            alarms=await alarms.active(self._store),
            shards=self._store.shards,
            losses=self._client.losses,
        )

    async def _hooks(self) -> Mapping[str, Any]:
        """What the shards are asked to post, and how much of it waits."""
        shards = await outbox.lengths(self._store, range(self._store.shards))
        lines = sorted({line for known, _ in shards for line in known})
        return {
            "hooks": [hook for line in lines if (hook := Hook.parse(line)) is not None],
            "waiting": sum(waiting for _, waiting in shards),
        }

    @page_at("POST server/acknowledge", "operate", of_all=True)
    async def acknowledge(self, request: web.Request) -> web.Response:
        """Answers 303 back to the server's page, after ending the warnings of lost data."""
        await form_of(request)
        await self._client.acknowledge_losses()
        return redirect("/ui/server")

    @page_at("GET keys", "operate", of_all=True)
    async def keys(self, request: web.Request, *, status: int = 200, **values: Any) -> web.Response:
        _require_admin(request)
        entries = await self._auth.callers.entries()
        rows: list[dict[str, Any]] = [
            {"id": key_id, "key": ApiKey.kept(entry), "revoked": entry == REVOKED} for key_id, entry in entries.items()
        ]
        context = {"made": None, "wrong": "", "form": {}, **values}
        rows = sorted(rows, key=lambda row: (row["revoked"], row["key"].options.get("made", "") if row["key"] else ""))
        return self._show(request, "keys", status=status, rights_known=RIGHTS, rows=rows, **context)

    @page_at("POST keys", "operate", of_all=True)
    async def make_key(self, request: web.Request) -> web.Response:
        """Answers 200 with the new key, shown only this once, or 422 with the form and what is wrong."""
        _require_admin(request)
        pairs = await pairs_of(request)
        form = dict(pairs)
        try:
            secret, kept = _made(form, [value for name, value in pairs if name == "right"])
        except InvalidInput as error:
            return await self.keys(request, status=422, wrong=str(error), form=form)
        await self._auth.callers.keep(kept.id, kept.entry)
        return await self.keys(request, made=secret)

    @page_at("POST keys/{key}/revoke", "operate", of_all=True)
    async def revoke_key(self, request: web.Request) -> web.Response:
        _require_admin(request)
        await form_of(request)
        await self._auth.callers.revoke(request.match_info["key"])
        return redirect("/ui/keys")


def _said(numbers: Iterable[int]) -> str:
    """The numbers of one place in a chart, in words."""
    named = zip((*FAILING, Status.COMPLETED), numbers, strict=True)
    return ", ".join(f"{n} {status}" for status, n in named if n) or "nothing ended"


async def _worst_first(store: Store) -> list[PrefixView]:
    """The prefixes, those with trouble first: those of which nothing runs, then by how many timers fail."""
    views, now_ms = await read_prefixes(store), store.clock.now_ms()

    def trouble(view: PrefixView) -> tuple[bool, int, int]:
        is_late = view.next_due_ms is not None and view.next_due_ms < now_ms - LATE_MS
        failed = view.counts.get(Status.FAILED, 0) + view.counts.get(Status.UNHANDLED, 0)
        return is_late, failed, view.counts.get(Status.RETRYING, 0)

    found = [(trouble(view), view) async for view in cooperatively(views)]
    return [view for _, view in sorted(found, key=lambda each: each[0], reverse=True)]


def _require_admin(request: web.Request) -> None:
    caller = caller_of(request)
    if caller is None or not caller.may_make_keys:
        raise Forbidden("only a key with every right over every prefix may make and revoke keys")


def _made(form: Mapping[str, str], rights: Sequence[str]) -> tuple[str, ApiKey]:
    """A new key as the form asks for it. Raises InvalidInput."""
    return make_key(
        form.get("prefixes", "").replace(",", " ").split(),
        rights,
        rate=form.get("rate", "").strip() or None,
        pending=number_of(form, "pending"),
        most_prefixes=number_of(form, "most_prefixes"),
        name=form.get("name", "").strip() or None,
    )
