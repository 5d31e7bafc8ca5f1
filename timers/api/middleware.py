"""Owns how a request can be followed, and how long it may take: no longer than it makes sense to wait for Redis
or the ledger."""

import asyncio
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any, Final

from aiohttp import web
from aiohttp.typedefs import Handler

from timers.api.operations import operation_of
from timers.core.fields import check_traceparent
from timers.errors import InvalidInput, LedgerUnavailable, TimersError, Unavailable
from timers.logs import request_id

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


REQUEST_SECONDS: Final = 10.0
"""From the last byte of the request to the answer. One Redis command may take half of it."""


Waiting = Callable[[], frozenset[str]]


class Deadlines:
    """The deadlines of an application's requests. They share one timer of the loop, set to the first deadline; that
    request has usually ended by then. An `asyncio.timeout` for each request would cost a twentieth of a create."""

    def __init__(self, seconds: float = REQUEST_SECONDS, ledger: Waiting = frozenset) -> None:
        """`ledger` tells the ids of the requests that wait for the ledger."""
        self._seconds, self._ledger = seconds, ledger
        self._running: dict[asyncio.Task[Any], float] = {}
        """When the requests' deadlines expire, by the loop's clock."""
        self._expired: dict[asyncio.Task[Any], frozenset[str]] = {}
        """The requests that waited for the ledger when each deadline was over."""
        self._next_expiry: asyncio.TimerHandle | None = None

    @web.middleware
    async def answer_in_time(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer 503 to a request that takes too long."""
        operation = operation_of(request)
        # Streams have no end. Public calls do not wait for Redis, except readiness, which has its own time limit.
        if operation is not None and (operation.right is None or operation.is_endless):
            return await handler(request)
        task, request[_DEADLINES] = request.task, self
        cancelled_before = task.cancelling()
        self.begin(task)
        try:
            return await handler(request)
        except (asyncio.CancelledError, TimeoutError) as error:
            # Others may have cancelled the request too; their cancellation continues.
            is_ours = task in self._expired and task.cancelling() - 1 <= cancelled_before
            if isinstance(error, asyncio.CancelledError) and not is_ours:
                raise
            raise self._late(request, self._expired.get(task, frozenset())) from None
        finally:
            self.end(task)
            if task in self._expired:
                del self._expired[task]
                task.uncancel()

    def _late(self, request: web.Request, waiting: frozenset[str]) -> TimersError:
        """Names what did not answer. A write may wait for the ledger in the access of another request: callers at the
        same time share commits."""
        within = f"did not answer within {self._seconds:g} seconds"
        if request_id.get() in waiting or (waiting and request.method not in ("GET", "HEAD")):
            return LedgerUnavailable(f"the ledger {within}")
        return Unavailable(f"Redis {within}")

    def begin(self, task: asyncio.Task[Any]) -> None:
        """Start the deadline of a request, or start it anew."""
        self._running[task] = at = task.get_loop().time() + self._seconds
        if self._next_expiry is None:
            self._next_expiry = task.get_loop().call_at(at, self._expire_due)

    def end(self, task: asyncio.Task[Any]) -> None:
        """Stop the deadline of a request."""
        self._running.pop(task, None)

    def _expire_due(self) -> None:
        """Cancel the requests whose deadlines are over, and come again when the next one is."""
        self._next_expiry, loop = None, asyncio.get_running_loop()
        now, waiting = loop.time(), self._ledger()
        for task in [task for task, at in self._running.items() if at <= now]:
            self.end(task)
            self._expired[task] = waiting
            task.cancel()
        if self._running:
            self._next_expiry = loop.call_at(min(self._running.values()), self._expire_due)


_DEADLINES: Final = web.RequestKey("deadlines", Deadlines)


@contextmanager
def not_counting(request: web.Request) -> Iterator[None]:
    """Do not count the time within this context. It is the client's, and has its own deadline."""
    deadlines = request.get(_DEADLINES)
    if deadlines is None:
        yield
        return
    deadlines.end(request.task)
    try:
        yield
    finally:
        deadlines.begin(request.task)
