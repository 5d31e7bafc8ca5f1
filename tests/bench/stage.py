"""Where a benchmark takes place: a server of its own, a client as callers have it, and pods as processes."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from random import Random
from typing import Final

from redis.asyncio import Redis

from tests.bench.pods import Pods, pods
from tests.bench.starts import Start, read_starts
from tests.chaos.pods import until
from tests.members import declare
from tests.servers import start_server
from timers import NewTimer, TimerClient
from timers.client import BATCH_LIMIT, client_over, open_store
from timers.embedded import EmbeddedServer, Family
from timers.store import keys
from timers.store.servers import connect
from timers.store.store import Store

DAY_MS: Final = 24 * 3600 * 1000
LEASE_MS: Final = 30_000

LEAD_MS: Final = 2_000
ARMED_PER_S: Final = 4_000
"""A cautious guess, so that all timers are armed before the first is due."""


@dataclass(frozen=True, slots=True)
class Stage:
    """What a benchmark works with. `redis` looks at the server from outside, `servers` at each one if there are more;
    `store` and `client` are the service's, at `url`."""

    server: EmbeddedServer
    url: str
    redis: Redis
    servers: Sequence[Redis]
    store: Store
    client: TimerClient
    folder: Path
    rng: Random
    _numbers: Iterator[int] = field(default_factory=count)

    def fresh(self, kind: str) -> str:
        """A prefix that nothing has used yet: `bench-<kind>-<n>`, served by the processor `bench-<kind>`."""
        return f"bench-{kind}-{next(self._numbers)}"

    def pods(self, number: int, *, lease_ms: int = LEASE_MS) -> AbstractAsyncContextManager[Pods]:
        """So many working pods for as long as the block lasts. Their starts are read with `starts`."""
        return pods(self.url, self.redis, self.folder / f"crew-{next(self._numbers)}", number, lease_ms)

    def starts(self, prefix: str) -> list[Start]:
        """The starts of a prefix on whatever pods."""
        return [start for crew in self.folder.glob("crew-*") for start in read_starts(crew, prefix)]

    async def arm(self, prefix: str, due_ms: Sequence[int]) -> None:
        """Arm a timer for each due time, in batches as a caller would. Raises ValueError if one is refused."""
        news = [NewTimer(prefix=prefix, id=f"user-{i:07}", due_at=due) for i, due in enumerate(due_ms)]
        await self.arm_all(news)

    async def arm_all(self, news: Sequence[NewTimer]) -> None:
        """Arm timers in full batches. Raises ValueError if one is refused."""
        for start in range(0, len(news), BATCH_LIMIT):
            results = await self.client.batch(news[start : start + BATCH_LIMIT])
            if refused := [result for result in results if isinstance(result, Exception)]:
                raise ValueError(f"{len(refused)} timers refused, the first: {refused[0]}")

    async def arm_others(self, prefix: str, number: int) -> None:
        """Arm timers that are not due while anything is measured: one to two days from now."""
        now_ms = await self.store.now_ms()
        for start in range(0, number, BATCH_LIMIT):
            some = range(start, min(start + BATCH_LIMIT, number))
            due_ms = [now_ms + DAY_MS + self.rng.randrange(DAY_MS) for _ in some]
            await self.client.batch(
                [NewTimer(prefix=prefix, id=f"other-{i:07}", due_at=due) for i, due in zip(some, due_ms, strict=True)]
            )

    async def arm_ahead(self, prefix: str, number: int, over_ms: int) -> int:
        """Arm timers due at random over a span that begins when all are armed; answers its begin.

        Raises RuntimeError where arming took longer than that: the lateness of such timers would not be the service's.
        """
        begin_ms = await self.store.now_ms() + LEAD_MS + number * 1000 // ARMED_PER_S
        await self.arm(prefix, [begin_ms + self.rng.randrange(over_ms) for _ in range(number)])
        if self.store.clock.now_ms() > begin_ms - LEAD_MS / 2:
            raise RuntimeError(f"{number} timers were not armed in time; this machine is too busy")
        return begin_ms

    async def completed(self, prefix: str, number: int, *, timeout_s: float) -> bool:
        """Wait until so many timers of a prefix are completed; False when they are not in time."""

        return await self._counted("c", prefix, number, timeout_s=timeout_s)

    async def scheduled(self, prefix: str, number: int, *, timeout_s: float = 60) -> bool:
        """As `completed`, for timers that are scheduled."""
        return await self._counted("s", prefix, number, timeout_s=timeout_s)

    async def _counted(self, letter: str, prefix: str, number: int, *, timeout_s: float) -> bool:
        async def happened() -> bool:
            async with self.redis.pipeline(transaction=False) as asked:
                for shard in range(self.store.shards):
                    asked.hget(f"{keys.root(shard)}counts", f"{letter} {prefix}")
                return sum(int(counted or 0) for counted in await asked.execute()) >= number

        try:
            await until(happened, timeout_s=timeout_s, what=f"{number} timers")
        except TimeoutError:
            return False
        return True


@asynccontextmanager
async def repeated(act: Callable[[], Awaitable[None]], *, every_s: float) -> AsyncIterator[None]:
    """Do it again and again while the block lasts. Ended by a flag, because redis-py may swallow a cancellation."""
    over = asyncio.Event()

    async def run() -> None:
        while not over.is_set():
            await act()
            await asyncio.sleep(every_s)

    running = asyncio.create_task(run())
    try:
        yield
    finally:
        over.set()
        await running


class Stopwatch:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._begin = time.perf_counter()

    def seconds(self) -> float:
        """So far."""
        return time.perf_counter() - self._begin


@asynccontextmanager
async def stage(folder: Path, family: Family, seed: int, options: Sequence[str] = ()) -> AsyncIterator[Stage]:
    """A fresh server of that family with the embedded server's own settings, then `options`."""
    async with (
        await start_server(family, folder, *options) as server,
        Redis.from_url(server.url, decode_responses=True) as redis,
    ):
        store = await opened(server.url)
        async with client_over(store) as client:
            yield Stage(server, server.url, redis, (redis,), store, client, folder, Random(seed))


async def opened(url: str, shards: int | None = None) -> Store:
    """The db at a URL, which knows the benchmarks' processors; a new one gets so many shards."""
    store = await open_store(connect(url), shards=shards)
    await declare(store, "bench-noop", "bench-timed", "bench-hang")
    return store
