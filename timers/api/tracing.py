"""Owns how a request can be followed: its id on every log line, answer and problem, and the trace that it belongs
to."""

import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Final

from aiohttp import web

from timers.core.fields import check_traceparent
from timers.errors import InvalidInput
from timers.logs import request_id

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

REQUEST_ID: Final = "X-Request-Id"

_random: Final = Random()  # noqa: S311 (an id, not a secret)

_SANE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/+=-]{0,127}")


@contextmanager
def new_request() -> Iterator[str]:
    """A request with a new id, for as long as the context lasts."""
    made = _made()
    outer = request_id.set(made)
    try:
        yield made
    finally:
        request_id.reset(outer)


def _made() -> str:
    """96 random bits, so two requests practically never share an id."""
    return f"{_random.getrandbits(96):024x}"


@web.middleware
async def follow(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Give the request the id that it brings, if that is sane, or else a new one."""
    given = request.headers.get(REQUEST_ID)
    name = given if given is not None and _SANE.fullmatch(given) else _made()
    outer = request_id.set(name)  # the next request on the same connection runs in the same context
    try:
        response = await handler(request)
    finally:
        request_id.reset(outer)
    if not response.prepared:
        response.headers[REQUEST_ID] = name
    return response


def traceparent_of(request: web.Request) -> str | None:
    """The trace of the request (W3C Trace Context §3.2). A malformed one counts as none, as the standard asks."""
    given = request.headers.getall("traceparent", [])
    try:
        return check_traceparent(given[0]) if len(given) == 1 else None
    except InvalidInput:
        return None
