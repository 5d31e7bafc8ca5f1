"""What a figure is compared with, measured in the same run: bare Redis commands by the same kind of client."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from redis.asyncio import Redis

from tests.bench.stage import Stage, Stopwatch

SCRIPT_BATCH: Final = 250
LIFE_MS: Final = 3600 * 1000


async def pipelined_set_per_s(redis: Redis, number: int) -> float:
    """`SET PX` of plain keys in pipelines of as many as the service arms with one script."""
    watch = Stopwatch()
    for start in range(0, number, SCRIPT_BATCH):
        pipe = redis.pipeline(transaction=False)
        for i in range(start, min(start + SCRIPT_BATCH, number)):
            pipe.set(f"reference:{i}", "1", px=LIFE_MS)
        await pipe.execute()
    seconds = watch.seconds()
    await _forget(redis, number)
    return number / seconds


async def set_round_trips_per_s(redis: Redis, number: int, *, only_new: bool = False) -> float:
    """`SET PX` one by one, each answer awaited; with `only_new` `SET NX PX`, the lock of "one claim an event"."""
    watch = Stopwatch()
    for i in range(number):
        await redis.set(f"reference:{i}", "1", px=LIFE_MS, nx=only_new)
    seconds = watch.seconds()
    await _forget(redis, number)
    return number / seconds


async def _forget(redis: Redis, number: int) -> None:
    for start in range(0, number, SCRIPT_BATCH):
        await redis.delete(*(f"reference:{i}" for i in range(start, min(start + SCRIPT_BATCH, number))))


class RoundTrips:
    """What one bare `PING` from another process took meanwhile: the noise of the machine in every lateness."""

    def __init__(self) -> None:
        self.took_ms: list[float] = []

    async def take(self, redis: Redis) -> None:
        """One after the other until cancelled."""
        while True:
            watch = Stopwatch()
            await redis.ping()
            self.took_ms.append(watch.seconds() * 1000)
            await asyncio.sleep(0.02)


@asynccontextmanager
async def round_trips(stage: Stage) -> AsyncIterator[RoundTrips]:
    """Measures round trips for as long as the block lasts."""
    trips = RoundTrips()
    taking = asyncio.create_task(trips.take(stage.redis))
    try:
        yield trips
    finally:
        taking.cancel()
