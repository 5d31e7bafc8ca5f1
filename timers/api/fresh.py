"""Owns sharing what is read from Redis among all who ask for it."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Fresh(Generic[Value]):
    """A value that is read at most once in `seconds`, however many ask for it. All who wait share one reading, which
    continues even if whoever began it is cancelled."""

    def __init__(self, read: Callable[[], Awaitable[Value]], seconds: float) -> None:
        self._read, self._seconds = read, seconds
        self._read_at = float("-inf")
        self._reading: asyncio.Task[Value] | None = None
        self.last: Value | None = None
        """The value as it was last read; None before that."""

    async def get(self) -> Value:
        """The value. Raises what the reading raises."""
        if self.last is None or self._is_old():
            return await asyncio.shield(self._renewing())
        return self.last

    async def soon(self, patience_seconds: float) -> Value | None:
        """The value without waiting for a new one, which is read meanwhile if it is time. Waits this long for the first
        value; None if it takes longer."""
        if self._is_old():
            reading = self._renewing()
            if self.last is None:
                await asyncio.wait([reading], timeout=patience_seconds)
        return self.last

    def _is_old(self) -> bool:
        return time.monotonic() - self._read_at > self._seconds

    def _renewing(self) -> asyncio.Task[Value]:
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._renew())
            # Takes note of an error that nobody waits for any more, so that asyncio does not complain.
            self._reading.add_done_callback(lambda read: read.cancelled() or read.exception())
        return self._reading

    async def _renew(self) -> Value:
        asked_at = time.monotonic()
        value = await self._read()
        self.last, self._read_at = value, asked_at
        return value
