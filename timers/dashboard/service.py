"""Owns the pages about the service: prefixes, pods, the server and API keys."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from aiohttp import web

from timers.access import RIGHTS, ApiKey, Scope, make_key, parse_rights
from timers.api.auth import acting, caller_of, require_visible, visible_to
from timers.api.operations import route
from timers.client.doctor import examine
from timers.client.fleet import read_prefixes
from timers.core.durations import MINUTE_MS
from timers.core.fields import OWN_PREFIXES, is_own
from timers.core.hooks import Hook
from timers.dashboard.render import redirect
from timers.dashboard.site import Parts, form_of, is_admin, number_of, pairs_of, show
from timers.errors import Forbidden, InvalidInput, shown
from timers.store import alarms, outbox, queries
from timers.store.callers import REVOKED
from timers.store.checkup import server_facts
from timers.store.cooperative import CachedRead
from timers.store.filters import Filter

PREFIXES_A_PAGE: Final = 100
VIEWS_SECONDS: Final = 1.5
CHECKS_SECONDS: Final = 30.0
"""How long the doctor's findings count. The doctor waits for an event and reads many keys, so it does not run at
every refresh."""


class ServicePages:
    """`/ui/prefixes`, `/ui/pods`, `/ui/server`, `/ui/keys`."""

    def __init__(self, parts: Parts, *, views_seconds: float = VIEWS_SECONDS) -> None:
        self._parts, self._client, self._views_seconds = parts, parts.client, views_seconds
        self._prefixes = CachedRead(lambda: read_prefixes(parts.store), views_seconds)
        self._checks = CachedRead(lambda: examine(parts.store), CHECKS_SECONDS)

    def routes(self) -> Sequence[web.RouteDef]:
        """The routes to add to an application."""
        return (
            route("prefixesPage", self.prefixes),
            route("actOnPrefix", self.act_on_prefix),
            route("podsPage", self.pods),
            route("serverPage", self.server),
            route("acknowledge", self.acknowledge),
            route("keysPage", self.keys),
            route("makeKey", self.make_key),
            route("revokeKey", self.revoke_key),
        )

    async def prefixes(self, request: web.Request) -> web.Response:
        """Answers 200 with the prefixes that the caller may see, a page at a time."""
        words = request.query.get("q", "").strip()
        asked = Filter(prefix=f"{OWN_PREFIXES}*" if is_own(words) else None).seen_by(visible_to(request))
        covers = asked.covering()
        found = [view for view in await self._prefixes.get() if words in view.prefix and covers(view.prefix)]
        after = request.query.get("after", "")
        rest = [view for view in found if view.prefix > after]
        views, now_ms = rest[:PREFIXES_A_PAGE], round(self._parts.store.clock.now_ms())
        with_ends = [view.prefix for view in views if any(status.finished for status in view.counts)]
        return show(
            request,
            "prefixes",
            title="Prefixes",
            section="prefixes",
            now_ms=now_ms,
            views=views,
            ended=await queries.ended(self._parts.store, with_ends, now_ms - MINUTE_MS),
            total=len(found),
            more=rest[PREFIXES_A_PAGE - 1].prefix if len(rest) > PREFIXES_A_PAGE else None,
            words=words,
        )

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
        self._prefixes = CachedRead(lambda: read_prefixes(self._parts.store), self._views_seconds)
        return redirect(f"/ui/prefixes?q={prefix}")

    async def pods(self, request: web.Request) -> web.Response:
        """Answers 200 with the live pods."""
        return show(
            request,
            "pods",
            title="Pods",
            section="pods",
            now_ms=await self._parts.store.now_ms(),
            pods=[(pod, pod.to_json()) for pod in await self._client.pods()],
            visible=visible_to(request) or (lambda _: True),
        )

    async def server(self, request: web.Request) -> web.Response:
        """Answers 200 with the doctor's findings and what the server says about itself."""
        checks = await self._checks.get()
        order = {"fail": 0, "warn": 1, "ok": 2}
        return show(
            request,
            "server",
            title="Server",
            section="server",
            now_ms=await self._parts.store.now_ms(),
            checks=sorted(checks, key=lambda check: order.get(check.level, 0)),
            info=await server_facts(self._parts.store),
            **await self._hooks(),
            alarms=await alarms.ringing(self._parts.store),
            shards=self._parts.store.shards,
            losses=self._client.losses,
        )

    async def _hooks(self) -> Mapping[str, Any]:
        """What the shards are asked to post, and how much of it waits."""
        store = self._parts.store
        shards = await outbox.lengths(store, range(store.shards))
        lines = sorted({line for known, _ in shards for line in known})
        return {
            "hooks": [hook for line in lines if (hook := Hook.parse(line)) is not None],
            "waiting": sum(waiting for _, waiting in shards),
        }

    async def acknowledge(self, request: web.Request) -> web.Response:
        """Answers 303 back to the server's page, after ending the warnings of lost data."""
        await form_of(request)
        await self._client.acknowledge_losses()
        return redirect("/ui/server")

    async def keys(self, request: web.Request) -> web.Response:
        """Answers 200 with the keys in Redis."""
        return await self._keys(request)

    async def _keys(self, request: web.Request, *, status: int = 200, **values: Any) -> web.Response:
        _require_admin(request)
        entries = await self._parts.callers.entries()
        rows = [_row(key_id, entry) for key_id, entry in entries.items()]
        told = {"made": None, "wrong": "", "form": {}, **values}
        rows = sorted(rows, key=lambda row: (row["revoked"], row["key"].options.get("made", "") if row["key"] else ""))
        return show(
            request, "keys", status=status, title="API keys", section="keys", rights_known=RIGHTS, rows=rows, **told
        )

    async def make_key(self, request: web.Request) -> web.Response:
        """Answers 200 with the new key, shown only this once, or 422 with the form and what is wrong."""
        _require_admin(request)
        pairs = await pairs_of(request)
        form = dict(pairs)
        try:
            secret, kept = _made(form, [value for name, value in pairs if name == "right"])
        except InvalidInput as error:
            return await self._keys(request, status=422, wrong=str(error), form=form)
        await self._parts.callers.keep(kept.id, kept.entry)
        return await self._keys(request, made=secret)

    async def revoke_key(self, request: web.Request) -> web.Response:
        """Answers 303 back to the keys."""
        _require_admin(request)
        await form_of(request)
        await self._parts.callers.revoke(request.match_info["key"])
        return redirect("/ui/keys")


def _require_admin(request: web.Request) -> None:
    caller = caller_of(request)
    if caller is None or not is_admin(caller):
        raise Forbidden("only a key with every right over every prefix may make and revoke keys")


def _made(form: Mapping[str, str], rights: Sequence[str]) -> tuple[str, ApiKey]:
    """A new key as the form asks for it. Raises InvalidInput."""
    return make_key(
        Scope.parse(form.get("prefixes", "").replace(",", " ").split()),
        parse_rights(rights),
        rate=form.get("rate", "").strip() or None,
        pending=number_of(form, "pending"),
        most_prefixes=number_of(form, "most_prefixes"),
        name=form.get("name", "").strip() or None,
        made=datetime.now(UTC).date().isoformat(),
    )


def _row(key_id: str, entry: str) -> dict[str, Any]:
    try:
        key = None if entry == REVOKED else ApiKey.parse(entry)
    except InvalidInput:
        key = None
    return {"id": key_id, "key": key, "revoked": entry == REVOKED}
