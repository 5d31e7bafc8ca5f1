"""Owns the calls on many timers at once: lists, batches and actions by filter."""

import time
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from aiohttp import web

from timers.api.answer import answer, encoded, joined, of_bytes, problem_body
from timers.api.auth import acting, nothing_of, visible_to
from timers.api.body import BATCH_LIMIT_BYTES, media_type, parsed, read_json, read_lines, read_query
from timers.api.middleware import traceparent_of
from timers.api.operations import JSON, NDJSON, Batch, route
from timers.client import Armed, TimerClient
from timers.client.actions import BulkAction, Counts, Stop
from timers.core.spec import NewTimer
from timers.errors import Busy, InvalidInput, Refused, TimersError
from timers.store.filters import Visible
from timers.store.listing import PageRequest

_LINES: Final = (NDJSON, "application/ndjson", "application/jsonl", "application/x-jsonlines")
"""The media types that programs use for one JSON value a line. None of them is registered."""

ACTIONS_AT_ONCE: Final = 2
"""Actions that a pod runs at a time. Each keeps a quarter of the connections to Redis busy."""

ACTION_LIMIT: Final = 1000
"""An action's call ends after the page on which this many timers have passed the filter. Its cursor continues from
there."""

ACTION_SECONDS: Final = 5.0
"""How long an action's call may take, even if few timers pass its filter: half of what any call may take."""


def many_routes(client: TimerClient) -> Sequence[web.RouteDef]:
    """The routes to add to an application: list, create and change many timers."""
    acting_now = 0

    async def act(request: web.Request) -> web.Response:
        """Answers 200 with the counts and a cursor to continue with."""
        nonlocal acting_now
        asked = parsed(request, BulkAction.parse, await read_json(request))
        if acting_now >= ACTIONS_AT_ONCE:
            raise Busy(f"this pod runs {acting_now} actions, its maximum; try again soon")
        visible = asked.model_copy(update={"filter": asked.filter.seen_by(visible_to(request))})
        acting_now += 1
        try:
            counts = await acting(client, request).act(visible, stop=_enough_for(request))
        finally:
            acting_now -= 1
        return answer(counts.to_json())

    return (
        route("listTimers", partial(_list, client)),
        route("createTimers", partial(_create, client)),
        route("actOnTimers", act),
    )


async def _list(client: TimerClient, request: web.Request) -> web.Response:
    """Answers 200 with a page."""
    page = await client.page(read_query(request, PageRequest).seen_by(visible_to(request)))
    items = await joined(page.items, lambda timer: encoded(timer.to_json()))
    return of_bytes(b'{"items":[' + items + b'],"next_cursor":' + encoded(page.next_cursor) + b"}")


async def _create(client: TimerClient, request: web.Request) -> web.Response:
    """Answers 200 with a result for each timer, in order."""
    values, visible = await _read_batch(request), visible_to(request)
    wishes = [_parse_entry(value, visible) for value in values]
    results = await acting(client, request).batch(wishes, traceparent=traceparent_of(request))
    return answer({"results": [_result(each) for each in results]})


async def _read_batch(request: web.Request) -> Sequence[Any]:
    """The timers as they were sent. A line that is not JSON becomes its error."""
    if media_type(request, (JSON, *_LINES)) in _LINES:
        body: Any = {"timers": await read_lines(request, BATCH_LIMIT_BYTES)}
    else:
        body = await read_json(request, limit_bytes=BATCH_LIMIT_BYTES)
    return parsed(request, Batch.parse, body).timers


def _parse_entry(value: Any, visible: Visible | None) -> NewTimer | InvalidInput | Refused:
    if isinstance(value, InvalidInput):
        return value
    try:
        new = NewTimer.parse(value)
    except InvalidInput as error:
        return error
    return new if visible is None or visible(new.prefix) else nothing_of(new.prefix)


def _result(came: Armed | TimersError) -> dict[str, Any]:
    if isinstance(came, TimersError):
        body = problem_body(came)
        return {"status": body["status"], "problem": body}
    return {"status": 201 if came.created else 200, "timer": came.timer.to_json()}


def _enough_for(request: web.Request) -> Stop:
    """A test of whether an action's call has done enough, or its client has gone."""
    until = time.monotonic() + ACTION_SECONDS

    def enough(counts: Counts) -> bool:
        gone = request.transport is None or request.transport.is_closing()
        return gone or counts.matched >= ACTION_LIMIT or time.monotonic() > until

    return enough
