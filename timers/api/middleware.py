"""Owns how a request can be followed, and how long it may take: no longer than it makes sense to wait for Redis."""

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from types import TracebackType
from typing import Any, Final

from aiohttp import web
from aiohttp.typedefs import Handler

from timers.api.operations import operation_of
from timers.core.fields import check_traceparent
from timers.errors import InvalidInput, Unavailable
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


class Deadlines:
    """The deadlines of an application's requests. They share one timer of the loop, set to the first deadline; that
    request has usually ended by then. An `asyncio.timeout` for each request would cost a twentieth of a create."""

    def __init__(self, seconds: float = REQUEST_SECONDS) -> None:
        self._seconds = seconds
        self._running: set[Deadline] = set()
        self._next_expiry: asyncio.TimerHandle | None = None

    @web.middleware
    async def answer_in_time(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer 503 to a request that takes too long."""
        operation = operation_of(request)
        # Streams have no end. Public calls do not wait for Redis, except readiness, which has its own time limit.
        if operation is not None and (operation.right is None or operation.is_endless):
            return await handler(request)
        try:
            with Deadline(self, request.task) as deadline:
                request[_DEADLINE] = deadline
                return await handler(request)
        except TimeoutError:
            raise Unavailable(f"Redis did not answer within {self._seconds:g} seconds") from None

    def begin(self, deadline: "Deadline") -> None:
        """Restart the deadline."""
        loop = deadline.task.get_loop()
        deadline.at = loop.time() + self._seconds
        self._running.add(deadline)
        if self._next_expiry is None:
            self._wake_at(deadline.at)

    def end(self, deadline: "Deadline") -> None:
        """Stop the deadline."""
        self._running.discard(deadline)

    def _wake_at(self, at: float) -> None:
        self._next_expiry = asyncio.get_running_loop().call_at(at, self._expire_due)

    def _expire_due(self) -> None:
        """Expire the deadlines that are over, and come again when the next one is."""
        self._next_expiry, now = None, asyncio.get_running_loop().time()
        for deadline in [each for each in self._running if each.at <= now]:
            self.end(deadline)
            deadline.expire()
        if self._running:
            self._wake_at(min(each.at for each in self._running))


class Deadline:
    """The deadline of the task that enters it. When it expires, the task is cancelled, and leaving it raises
    TimeoutError, as `asyncio.timeout` does. (`asyncio.timeout` looks up the current task, which before Python 3.12
    takes as long as everything else here.)"""

    __slots__ = ("_cancelled_before", "_deadlines", "_expired", "at", "task")

    def __init__(self, deadlines: Deadlines, task: asyncio.Task[Any]) -> None:
        self._deadlines, self.task = deadlines, task
        self._cancelled_before = task.cancelling()
        self._expired = False
        self.at = float("inf")
        """When it expires, by the loop's clock."""

    def __enter__(self) -> "Deadline":
        self._deadlines.begin(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._deadlines.end(self)
        # Others may have cancelled the task too; their cancellation continues.
        if self._expired and self.task.uncancel() <= self._cancelled_before and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def expire(self) -> None:
        """Cancel the task."""
        self._expired = True
        self.task.cancel()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the deadline within this context, and restart it afterwards."""
        self._deadlines.end(self)
        try:
            yield
        finally:
            self._deadlines.begin(self)


_DEADLINE: Final = web.RequestKey("deadline", Deadline)


@contextmanager
def not_counting(request: web.Request) -> Iterator[None]:
    """Do not count the time within this context. It is the client's, and has its own deadline."""
    deadline = request.get(_DEADLINE)
    if deadline is None:
        yield
        return
    with deadline.paused():
        yield
