"""Owns sharing: of the event loop by long work, of a service by parts side by side, of what was read by all who ask."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from typing import Any, Final, Generic, TypeVar

from timers.errors import Unavailable

T = TypeVar("T")

SLICE_SECONDS: Final = 0.005
"""How long work may keep the loop: a timer that becomes due meanwhile is at most this late."""

PATIENCE_SECONDS: Final = 1.0
"""How long a caller waits for news of a value that it knows already."""


async def cooperatively(items: Iterable[T]) -> AsyncIterator[T]:
    """Yield the items one by one; let others use the loop after each SLICE_SECONDS."""
    began = time.perf_counter()
    for item in items:
        yield item
        if time.perf_counter() - began >= SLICE_SECONDS:
            await asyncio.sleep(0)
            began = time.perf_counter()


async def side_by_side(parts: Iterable[Coroutine[Any, Any, object]]) -> None:
    """Run the parts of a service until one fails or is cancelled; then end all. A `TaskGroup` would continue without a
    part that was cancelled."""
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        await asyncio.gather(*tasks)
    finally:
        await cancelled(tasks)


async def cancelled(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel these and wait until they have ended, however."""
    ending = [*tasks]
    for task in ending:
        task.cancel()
    await asyncio.gather(*ending, return_exceptions=True)


def shared(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """A task for all who wait for it. If nobody does any more, asyncio does not complain of its error."""
    task = asyncio.create_task(work)
    task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    return task


async def set_within(event: asyncio.Event, seconds: float | None) -> bool:
    """Wait until the event is set, at most `seconds` (None: no limit). Returns whether it is set."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()


class Turn:
    """The place of one of several calls that are sent in order, each prepared while those before are under way."""

    def __init__(self, before: "Turn | None") -> None:
        self._before, self._is_over = before, asyncio.Event()

    async def then(self, call: Callable[[], Awaitable[T]]) -> T:
        """What a call returns that is made after those before. The next is made once this one waits."""
        if self._before is not None:
            await self._before._is_over.wait()
        self._is_over.set()
        return await call()

    def end(self, _ended: object = None) -> None:
        """Let the next go on, also if this one was never made."""
        self._is_over.set()


class CachedRead(Generic[T]):
    """A value that is read at most once in `seconds`, however many ask for it. All who wait share one reading, which
    continues even if whoever began it is cancelled."""

    def __init__(self, read: Callable[[], Awaitable[T]], seconds: float) -> None:
        self._read, self._seconds = read, seconds
        self._read_at = float("-inf")
        self._reading: asyncio.Task[T] | None = None
        self.last: T | None = None
        """The value as it was last read; None before that."""

    async def get(self) -> T:
        """The value. Raises what the reading raises."""
        if self.last is None or time.monotonic() - self._read_at > self._seconds:
            return await asyncio.shield(self._renewing())
        return self.last

    async def known(self, *, oldest_seconds: float = float("inf")) -> T:
        """As `get`; while Redis is not available, or does not answer within PATIENCE_SECONDS, the value as it was last
        read, at most `oldest_seconds` ago. Raises Unavailable if it was not."""
        if self.last is None or time.monotonic() - self._read_at > oldest_seconds:
            return await self.get()
        if time.monotonic() - self._read_at <= self._seconds:
            return self.last
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                return await self.get()
        except (TimeoutError, Unavailable):
            return self.last

    async def soon(self, patience_seconds: float) -> T | None:
        """The value without waiting for a new one, which is read meanwhile if it is time. Waits this long for the first
        value; None if it takes longer."""
        if time.monotonic() - self._read_at > self._seconds:
            reading = self._renewing()
            if self.last is None:
                await asyncio.wait([reading], timeout=patience_seconds)
        return self.last

    async def since(self, at: float) -> T:
        """The value as it was read at that moment of `time.monotonic()` or later."""
        while self.last is None or self._read_at < at:
            await asyncio.shield(self._renewing())
        return self.last

    def _renewing(self) -> asyncio.Task[T]:
        if self._reading is None or self._reading.done():
            self._reading = shared(self._renew())
        return self._reading

    async def _renew(self) -> T:
        asked_at = time.monotonic()
        value = await self._read()
        self.last, self._read_at = value, asked_at
        return value
