"""Owns how long a request may take: not longer than it makes sense to wait for Redis."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Final

from aiohttp import web

from timers.api.operations import operation_of
from timers.api.tracing import Handler
from timers.errors import Unavailable

REQUEST_SECONDS: Final = 10.0
"""From the last byte of the request to the answer: Redis may take half of it for one command."""

_UNBOUNDED: Final = frozenset({"streamEvents", "liveStream"})
"""A stream has no end."""


class Deadlines:
    """The deadlines of an application's requests, with one timer of the loop for all: it is set to the first of them,
    which has mostly ended by then. An `asyncio.timeout` for each would be a twentieth of what a create costs."""

    def __init__(self) -> None:
        self._running: set[Deadline] = set()
        self._next_look: asyncio.TimerHandle | None = None

    @web.middleware
    async def answer_in_time(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """503 for a request whose answer takes too long."""
        operation = operation_of(request)
        # What is public does not wait for Redis, but for the readiness, which has a patience of its own.
        if operation is not None and (operation.right is None or operation.id in _UNBOUNDED):
            return await handler(request)
        try:
            with Deadline(self, request.task) as deadline:
                request[_DEADLINE] = deadline
                return await handler(request)
        except TimeoutError:
            raise Unavailable(f"Redis did not answer within {REQUEST_SECONDS:g} seconds") from None

    def begin(self, deadline: "Deadline") -> None:
        """Let the deadline run, anew."""
        loop = deadline.task.get_loop()
        deadline.at = loop.time() + REQUEST_SECONDS
        self._running.add(deadline)
        if self._next_look is None or self._next_look.when() > deadline.at:
            self._look_at(deadline.at)

    def end(self, deadline: "Deadline") -> None:
        """Let it run no more."""
        self._running.discard(deadline)

    def _look_at(self, at: float) -> None:
        if self._next_look is not None:
            self._next_look.cancel()
        self._next_look = asyncio.get_running_loop().call_at(at, self._look)

    def _look(self) -> None:
        """Expire what is over, and look again when the first of the others is."""
        self._next_look, now = None, asyncio.get_running_loop().time()
        for deadline in [each for each in self._running if each.at <= now]:
            self.end(deadline)
            deadline.expire()
        if self._running:
            self._look_at(min(each.at for each in self._running))


class Deadline:
    """Of the task that enters it, which is cancelled when it expires. Leaving it raises TimeoutError then, as
    `asyncio.timeout` does. (That asks for the task, which before Python 3.12 takes as long as all else here.)"""

    __slots__ = ("_cancelled_before", "_expired", "_patience", "at", "task")

    def __init__(self, patience: Deadlines, task: asyncio.Task[Any]) -> None:
        self._patience, self.task = patience, task
        self._cancelled_before = task.cancelling()
        self._expired = False
        self.at = float("inf")
        """When, by the loop's clock."""

    def __enter__(self) -> "Deadline":
        self._patience.begin(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._patience.end(self)
        # Somebody else may have cancelled the task as well; theirs goes on.
        if self._expired and self.task.uncancel() <= self._cancelled_before and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def expire(self) -> None:
        """Cancel the task."""
        self._expired = True
        self.task.cancel()

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """It does not run meanwhile, and begins anew afterwards."""
        self._patience.end(self)
        try:
            yield
        finally:
            self._patience.begin(self)


_DEADLINE: Final = web.RequestKey("deadline", Deadline)


@contextmanager
def not_counting(request: web.Request) -> Iterator[None]:
    """The time within is the client's: it has a deadline of its own."""
    deadline = request.get(_DEADLINE)
    if deadline is None:
        yield
        return
    with deadline.standing_still():
        yield
