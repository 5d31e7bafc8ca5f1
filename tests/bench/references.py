"""What a figure is compared with, measured in the same run: bare Redis commands by the same kind of client."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from redis.asyncio import Redis

from tests.bench.stage import Stopwatch, repeated

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


@asynccontextmanager
async def round_trips_ms(redis: Redis) -> AsyncIterator[list[float]]:
    """What a bare `PING` takes while the block lasts: the machine's own noise in every lateness."""
    took_ms: list[float] = []

    async def ping() -> None:
        watch = Stopwatch()
        await redis.ping()
        took_ms.append(watch.seconds() * 1000)

    async with repeated(ping, every_s=0.02):
        yield took_ms
