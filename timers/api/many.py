"""Owns the calls on many timers at once: lists, batches, actions by filter."""

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from aiohttp import web

from timers.api.answer import answer, encoded, joined, of_bytes
from timers.api.body import BATCH_LIMIT_BYTES, as_object, media_type, read_json, read_lines, read_query
from timers.api.operations import JSON, NDJSON, route
from timers.api.problems import problem_body
from timers.api.scope import Visible, nothing_of, quota_of, visible_to
from timers.api.tracing import traceparent_of
from timers.client import BATCH_LIMIT, LIST_LIMIT, Armed, TimerClient
from timers.client.actions import Counts, Stop, check_action
from timers.core.spec import NewTimer
from timers.errors import Busy, Checks, FieldError, InvalidInput, TimersError, shown
from timers.store.filters import Filter
from timers.store.listing import PAGE_LIMIT

_LINES: Final = (NDJSON, "application/ndjson", "application/jsonl", "application/x-jsonlines")
"""The names that programs have for a JSON value a line; none of them is registered."""

_FILTERS: Final = ("prefix", "status", "tag", "due_after", "due_before")
_ACTION: Final = ("action", "filter", "dry_run", "delay", "due_at", "cursor")

ACTIONS_AT_ONCE: Final = 2
"""Actions of one pod at a time: each keeps a quarter of the connections to Redis busy."""

ACTION_LIMIT: Final = 1000
"""Timers that pass the filter with which a call of an action ends, after the page it is at; its cursor goes on."""

ACTION_SECONDS: Final = 5.0
"""How long a call of an action may take, however few timers pass its filter: half of what any call may."""

Wish = NewTimer | TimersError
"""A timer of a batch, or why it is none."""


class ManyRoutes:
    """List, create and change many timers."""

    def __init__(self, client: TimerClient) -> None:
        self._client = client
        self._acting = 0

    def routes(self) -> Sequence[web.RouteDef]:
        """What to add to an application."""
        return (
            route("listTimers", self.list),
            route("createTimers", self.create),
            route("actOnTimers", self.act),
        )

    async def list(self, request: web.Request) -> web.Response:
        """200 a page."""
        query = read_query(request, (*_FILTERS, "limit", "cursor"))
        page = await self._client.page(
            {"visible": visible_to(request), **{name: query[name] for name in _FILTERS if name in query}},
            limit=_number(query["limit"]) if "limit" in query else LIST_LIMIT,
            cursor=query.get("cursor"),
        )
        items = await joined(page.items, lambda timer: encoded(timer.to_json()))
        return of_bytes(b'{"items":[' + items + b'],"next_cursor":' + encoded(page.next_cursor) + b"}")

    async def create(self, request: web.Request) -> web.Response:
        """200 a result for each timer, in order."""
        read_query(request)
        wishes, visible = [_wish(value) for value in await _read_batch(request)], visible_to(request)
        if visible is not None:
            wishes = [nothing_of(w.prefix) if isinstance(w, NewTimer) and not visible(w.prefix) else w for w in wishes]
        news = [wish for wish in wishes if isinstance(wish, NewTimer)]
        traceparent, quota = traceparent_of(request), quota_of(request)
        came = iter(await self._client.batch(news, traceparent=traceparent, quota=quota) if news else ())
        results = [_result(next(came) if isinstance(wish, NewTimer) else wish) for wish in wishes]
        return answer({"results": results})

    async def act(self, request: web.Request) -> web.Response:
        """200 the counts, and where to go on."""
        read_query(request)
        spec = as_object(await read_json(request))
        checks, visible = Checks(), visible_to(request)
        checks.of(lambda names: _refuse_unknown(spec, names), _ACTION)
        action = checks.of(check_action, spec.get("action"))
        wanted = checks.of(lambda given: _filter(given, visible), spec.get("filter", {}))
        dry_run = checks.of(_dry_run, spec.get("dry_run", False))
        cursor = checks.of(_cursor, spec.get("cursor"))
        checks.end()
        if self._acting >= ACTIONS_AT_ONCE:
            raise Busy(f"{self._acting} actions are under way on this pod, as many as it runs; try again soon")
        self._acting += 1
        try:
            counts = await self._client.act(
                action or "purge",
                wanted or Filter(),
                dry_run=dry_run is not False,
                cursor=cursor,
                stop=_enough_for(request),
                **{name: spec[name] for name in ("delay", "due_at") if name in spec},
            )
        finally:
            self._acting -= 1
        return answer(counts.to_json())


def _number(text: str) -> Any:
    """The number that a text writes; any other text, or one too long for a limit, as it is."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= len(str(PAGE_LIMIT)) else text


async def _read_batch(request: web.Request) -> Sequence[Any]:
    """The timers as they were sent; a line that is not JSON is its error."""
    if media_type(request, (JSON, *_LINES)) in _LINES:
        values: Any = await read_lines(request, BATCH_LIMIT_BYTES)
    else:
        spec = as_object(await read_json(request, limit_bytes=BATCH_LIMIT_BYTES))
        _refuse_unknown(spec, ("timers",))
        values = spec.get("timers")
    if not isinstance(values, list) or len(values) > BATCH_LIMIT:
        given = f"{len(values)} timers" if isinstance(values, list) else values
        raise InvalidInput.of("timers", given, f"a list of at most {BATCH_LIMIT} timers")
    return values


def _wish(value: Any) -> Wish:
    if isinstance(value, TimersError):
        return value
    try:
        return NewTimer.parse(as_object(value))
    except TimersError as error:
        return error


def _result(came: Armed | TimersError) -> dict[str, Any]:
    if isinstance(came, TimersError):
        body = problem_body(came)
        return {"status": body["status"], "problem": body}
    return {"status": 201 if came.created else 200, "timer": came.timer.to_json()}


def _refuse_unknown(spec: Mapping[str, Any], known: Sequence[str]) -> None:
    unknown = [FieldError(name, shown(spec[name]), "no field of that name") for name in spec if name not in known]
    if unknown:
        raise InvalidInput(unknown)


def _filter(spec: Any, visible: Visible | None) -> Filter:
    checks = Checks()
    try:
        given = as_object(spec)
        checks.of(lambda names: _refuse_unknown(given, names), _FILTERS)
        known = {name: given[name] for name in _FILTERS if name in given}
        wanted = checks.of(lambda fields: Filter.parse(**fields, visible=visible), known)
        checks.end()
    except InvalidInput as error:
        raise error.under("filter") from None
    return wanted or Filter()


def _dry_run(value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidInput.of("dry_run", value, "true or false")
    return value


def _cursor(value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise InvalidInput.of("cursor", value, "a next_cursor that an action has answered")
    return value


def _enough_for(request: web.Request) -> Stop:
    """Whether a call of an action has done enough, or nobody waits for its answer any more."""
    until = time.monotonic() + ACTION_SECONDS

    def enough(counts: Counts) -> bool:
        gone = request.transport is None or request.transport.is_closing()
        return gone or counts.matched >= ACTION_LIMIT or time.monotonic() > until

    return enough
