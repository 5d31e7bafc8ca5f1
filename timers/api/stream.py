"""Owns the server-sent events (WHATWG HTML §9.2): the timers' life, to each listener as fast as it reads."""

import asyncio
import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from aiohttp import web

from timers.api.body import read_query
from timers.api.operations import EVENTS, route
from timers.api.requests import LAST_EVENT_ID, EventsQuery
from timers.api.scope import visible_to
from timers.api.tracing import REQUEST_ID
from timers.client import TimerClient
from timers.client.feed import QUEUE_LIMIT, Dropped, Event, Listener, Wants, event_json
from timers.errors import Busy
from timers.logs import request_id
from timers.store.filters import Filter
from timers.store.queries import Change

HEARTBEAT_SECONDS: Final = 15.0
"""Silence after which a comment is sent: it keeps proxies from closing, and finds listeners that are gone."""

STALL_SECONDS: Final = 30.0
"""A listener that takes nothing for so long is cut off."""

LISTENERS: Final = 256
"""Listeners of one pod at a time: each change is written to each of them."""

LINGER_SECONDS: Final = 60.0
"""How long a pod goes on remembering changes once its last listener has left, for those that come back."""

AT_ONCE: Final = 100
"""Events written to a listener before others get their turn."""


class EventRoutes:
    """`/v1/events`, for so many listeners at a time."""

    def __init__(self, client: TimerClient, most: int = LISTENERS, *, linger_seconds: float = LINGER_SECONDS) -> None:
        self._client, self._most, self._linger_seconds = client, most, linger_seconds
        self._listening = 0

    def routes(self) -> Sequence[web.RouteDef]:
        """What to add to an application."""
        return (route("streamEvents", self.stream),)

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """200 events until one of the two sides closes."""
        wants = _wants(request)
        if self._listening >= self._most:
            raise Busy(f"{self._most} listeners follow the events of this pod, as many as it takes; try again later")
        self._listening += 1
        try:
            return await self._stream(request, wants)
        finally:
            self._listening -= 1

    async def _stream(self, request: web.Request, wants: Wants | None) -> web.StreamResponse:
        feed = await self._client.feed()
        # Nobody can add to the headers later: a stream is sent while it is being made.
        named = {REQUEST_ID: request_id.get() or ""}
        response = web.StreamResponse(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no", **named})
        response.content_type = EVENTS
        await response.prepare(request)
        listener = feed.join(wants, request.headers.get(LAST_EVENT_ID))
        try:
            await self._pass_on(listener, response)
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
        except ConnectionError:
            pass  # it has gone: there is nobody to tell
        finally:
            await feed.leave(listener, self._linger_seconds)
        return response

    async def _pass_on(self, listener: Listener, response: web.StreamResponse) -> None:
        """Write what happens, all that waits at a time, until the feed ends."""
        while True:
            try:
                async with asyncio.timeout(HEARTBEAT_SECONDS):
                    event = await listener.next()
            except TimeoutError:
                place = "" if listener.place is None else f"id: {listener.place}\n"
                await write(response, f": still here\n{place}\n".encode())
                continue
            if event is None:
                await response.write_eof()
                return
            await write(response, b"".join(map(_encoded, (event, *listener.waiting(AT_ONCE)))))
            await asyncio.sleep(0)


def _wants(request: web.Request) -> Wants | None:
    asked, visible = read_query(request, EventsQuery), visible_to(request)
    if asked.prefix is None and visible is None:
        return None
    wanted = Filter(prefix=asked.prefix).seen_by(visible)
    return lambda change: wanted.covers(change.prefix)


async def write(response: web.StreamResponse, data: bytes) -> None:
    """Send it; TimeoutError for a listener that takes nothing."""
    async with asyncio.timeout(STALL_SECONDS):
        await response.write(data)


def _encoded(event: Event) -> bytes:
    """An event as it is sent. What was dropped has no id: who comes back with that of the event before hears it again,
    as far as it is remembered."""
    if isinstance(event, Change):
        return _encoded_change(event)
    place = b"" if isinstance(event, Dropped) else f"id: {event.place}\n".encode()
    return place + _body(event)


@lru_cache(maxsize=4 * QUEUE_LIMIT)
def _encoded_change(change: Change) -> bytes:
    """A change as it is sent, made once for all listeners."""
    return f"id: {change.place}\n".encode() + _body(change)


def _body(event: Event) -> bytes:
    name, data = event_json(event)
    return f"event: {name}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()
