"""Owns sharing the event loop while thousands of things are worked through."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from typing import Final, TypeVar

T = TypeVar("T")

TURN_SECONDS: Final = 0.005
"""How long one turn of the loop may be worked through: a timer that is due meanwhile is no later than this."""


async def by_turns(things: Iterable[T]) -> AsyncIterator[T]:
    """The things, one after the other; whenever a turn is used up, whoever else waits for the loop goes first."""
    began = time.perf_counter()
    for thing in things:
        yield thing
        if time.perf_counter() - began >= TURN_SECONDS:
            await asyncio.sleep(0)
            began = time.perf_counter()
