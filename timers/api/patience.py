"""Owns how long a request may take: not longer than it makes sense to wait for Redis."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from aiohttp import web

from timers.api.operations import operation_of
from timers.api.tracing import Handler
from timers.errors import Unavailable

PATIENCE_SECONDS: Final = 10.0
"""From the last byte of the request to the answer: Redis may take half of it for one command."""

_UNBOUNDED: Final = frozenset({"streamEvents", "actOnTimers"})
"""A stream has no end, and an action works through as many timers as there are."""

_DEADLINE: Final = web.RequestKey("deadline", asyncio.Timeout)


@web.middleware
async def answer_in_time(request: web.Request, handler: Handler) -> web.StreamResponse:
    """503 for a request whose answer takes too long."""
    operation = operation_of(request)
    # What is public does not wait for Redis, but for the readiness, which has a patience of its own.
    if operation is not None and (operation.right is None or operation.id in _UNBOUNDED):
        return await handler(request)
    try:
        async with asyncio.timeout(PATIENCE_SECONDS) as deadline:
            request[_DEADLINE] = deadline
            return await handler(request)
    except TimeoutError:
        raise Unavailable(
            f"Redis did not answer within {PATIENCE_SECONDS:g} seconds, so nobody knows whether this was done; a PUT, "
            "and a create with an id and if_exists 'keep', can be repeated safely"
        ) from None


@contextmanager
def not_counting(request: web.Request) -> Iterator[None]:
    """The time within is the client's: it has a deadline of its own."""
    deadline = request.get(_DEADLINE)
    if deadline is None:
        yield
        return
    deadline.reschedule(None)
    try:
        yield
    finally:
        deadline.reschedule(asyncio.get_running_loop().time() + PATIENCE_SECONDS)
