"""Owns the server-sent events (WHATWG HTML §9.2): it sends the timers' changes to each listener as fast as it reads."""

import asyncio
import json
from collections import Counter
from collections.abc import Coroutine
from functools import lru_cache
from typing import Any, Final

from aiohttp import web

from timers.api.auth import AUTH, caller_of, visible_to
from timers.api.operations import EVENTS, LAST_EVENT_ID, PrefixQuery, call
from timers.api.requests import REQUEST_ID, read_query
from timers.client import TimerClient, feed_of
from timers.client.feed import LOG_LIMIT, Dropped, Event, FeedListener, Wants, event_json
from timers.errors import Busy
from timers.logs import request_id
from timers.store.filters import Filter
from timers.store.notifications import Change

HEARTBEAT_SECONDS: Final = 15.0
"""After this much silence a comment is sent. It keeps proxies from closing the stream, and finds listeners that are
gone without a word."""

STALL_SECONDS: Final = 30.0
"""How long a listener may accept nothing before it is cut off."""

END_SECONDS: Final = 0.2
"""How long a listener may take to accept the end of its stream before it is cut off."""

LISTENERS: Final = 256
"""Listeners of one pod at a time. Each change is written to every one of them."""

LISTENERS_OF_KEY: Final = 64
"""Of these, how many one API key may have: a quarter, so that no tenant shuts the others out."""

LINGER_SECONDS: Final = 60.0
"""How long a pod remembers changes after its last listener has left, for listeners that come back."""

LOOK_SECONDS: Final = 0.7
"""How often a stream looks whether its listener is there, and whether its key still opens it."""

AT_ONCE: Final = 100
"""How many events are written to a listener before others get their turn."""


class EventRoutes:
    """`/v1/events`, for a limited number of listeners at a time."""

    def __init__(self, client: TimerClient, *, linger_seconds: float = LINGER_SECONDS) -> None:
        self._client, self._linger_seconds = client, linger_seconds
        self._of_key: Counter[str] = Counter()

    @call("streamEvents")
    async def stream(self, request: web.Request) -> web.StreamResponse:
        wants = _wants(request)
        if self._of_key.total() >= LISTENERS:
            raise Busy(f"this pod has {LISTENERS} listeners, its maximum; try again later")
        caller = caller_of(request)
        key = caller.id if caller else ""
        if key and self._of_key[key] >= LISTENERS_OF_KEY:
            raise Busy(f"this API key has {LISTENERS_OF_KEY} listeners on this pod, its maximum; close some")
        self._of_key[key] += 1
        try:
            return await self._stream(request, wants)
        finally:
            self._of_key -= Counter((key,))  # which leaves no zeros

    async def _stream(self, request: web.Request, wants: Wants | None) -> web.StreamResponse:
        feed = await feed_of(self._client)
        # All headers must be there now: a stream is sent while it is being made, so nobody can add to them later.
        named = {REQUEST_ID: request_id.get() or ""}
        response = web.StreamResponse(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no", **named})
        response.content_type = EVENTS
        await response.prepare(request)
        listener = feed.join(wants, request.headers.get(LAST_EVENT_ID))
        try:
            await self._while_open(request, self._pass_on(listener, response))
            async with asyncio.timeout(END_SECONDS):
                await response.write_eof()
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
        except ConnectionError:
            pass  # the listener has gone, so there is nobody to tell
        finally:
            await feed.leave(listener, self._linger_seconds)
        return response

    async def _while_open(self, request: web.Request, passing_on: Coroutine[Any, Any, None]) -> None:
        """Pass on until that ends, the listener has closed the connection, or the caller loses the right to listen.
        Raises what passing on raises. Without a look at the connection, who has left would keep a place until the next
        write, and all who come back after a moment without network would find none."""
        passing = asyncio.create_task(passing_on)
        try:
            while not passing.done() and request.transport is not None and await request.app[AUTH].still_lets(request):
                await asyncio.wait([passing], timeout=LOOK_SECONDS)
            if passing.done():
                await passing
        finally:
            passing.cancel()
            await asyncio.gather(passing, return_exceptions=True)

    async def _pass_on(self, listener: FeedListener, response: web.StreamResponse) -> None:
        """Write events as they come, everything that waits at a time, until the feed ends."""
        while True:
            try:
                async with asyncio.timeout(HEARTBEAT_SECONDS):
                    event = await listener.next()
            except TimeoutError:
                place = "" if listener.place is None else f"id: {listener.place}\n"
                await write(response, f": still here\n{place}\n".encode())
                continue
            if event is None:
                return
            await write(response, b"".join(map(_encoded, (event, *listener.waiting(AT_ONCE)))))
            await asyncio.sleep(0)


def _wants(request: web.Request) -> Wants | None:
    asked, visible = read_query(request, PrefixQuery), visible_to(request)
    if asked.prefix is None and visible is None:
        return None
    wanted = Filter(prefix=asked.prefix).seen_by(visible)
    covers = wanted.covering()
    return lambda change: covers(change.prefix)


async def write(response: web.StreamResponse, data: bytes) -> None:
    """Send the data. Raises TimeoutError if the listener accepts nothing."""
    async with asyncio.timeout(STALL_SECONDS):
        await response.write(data)


def _encoded(event: Event) -> bytes:
    """An event as it is sent. A `dropped` event has no id. So a listener that comes back with the id of the event
    before it gets the dropped changes again, as far as the pod remembers them."""
    if isinstance(event, Change):
        return _encoded_change(event)
    place = b"" if isinstance(event, Dropped) else f"id: {event.place}\n".encode()
    return place + _body(event)


@lru_cache(maxsize=LOG_LIMIT)
def _encoded_change(change: Change) -> bytes:
    """A change as it is sent, encoded once for all listeners."""
    return f"id: {change.place}\n".encode() + _body(change)


def _body(event: Event) -> bytes:
    name, data = event_json(event)
    return f"event: {name}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()
