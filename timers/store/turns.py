"""Owns sharing the event loop: long work in turns, services in parallel parts, and waiting with a limit."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Coroutine, Iterable
from typing import Any, Final, TypeVar

T = TypeVar("T")

TURN_SECONDS: Final = 0.005
"""How long one turn of the loop may take: a timer that becomes due meanwhile is at most this late."""


async def in_turns(items: Iterable[T]) -> AsyncIterator[T]:
    """Yield the items one by one; whenever a turn is used up, let others use the loop first."""
    began = time.perf_counter()
    for item in items:
        yield item
        if time.perf_counter() - began >= TURN_SECONDS:
            await asyncio.sleep(0)
            began = time.perf_counter()


async def side_by_side(parts: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run the parts of a service until one fails or is cancelled; then end all. A `TaskGroup` would continue without a
    part that was cancelled."""
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        await asyncio.gather(*tasks)
    finally:
        for part in tasks:
            part.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def set_within(event: asyncio.Event, seconds: float | None) -> bool:
    """Wait until the event is set, at most `seconds` (None: no limit). Returns whether it is set."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()
