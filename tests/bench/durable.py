"""Measures what waiting for the disk or the replicas costs, beside `fast` on the same server and on a plain one."""

import asyncio
import statistics
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from typing import Final

from redis.asyncio import Redis

from tests.bench.arming import PAYLOAD
from tests.bench.report import Benchmark, Column, Row
from tests.bench.stage import DAY_MS, Stage, Stopwatch
from tests.chaos.pods import until
from tests.members import declare
from tests.servers import free_port, start_server
from timers import NewTimer
from timers.client import client_over, open_store
from timers.core.shapes import Durability
from timers.embedded import EmbeddedServer
from timers.store.servers import connect

CALLERS: Final = 64

_COLUMNS: Final = (
    Column("server"),
    Column("way"),
    Column("durability"),
    Column("timers/s"),
    Column("ms each", 2),
    Column("of fast on the plain server", 2),
)

_Way = Callable[[Stage, Durability], Awaitable[float]]
"""Seconds for arming."""


def benchmark(batched: int, together: int, single: int, rounds: int) -> Benchmark:
    """The benchmark for so many timers in batches, by callers at the same time, and one by one, all in each round."""
    return Benchmark(
        "durability",
        f"medians of {rounds} rounds of {batched:,} timers in batches of 1,000, {together:,} by {CALLERS} callers at "
        f"once, {single:,} one by one; all servers in turn in each round",
        _COLUMNS,
        partial(_measure, batched, together, single, rounds),
        "HTTP; replicas on other machines; disks of servers (a flush of this one took what `one by one` says)",
    )


_SERVERS: Final[Sequence[tuple[str, Sequence[Durability], Sequence[str], int]]] = (
    ("everysec", ("fast",), (), 0),
    ("everysec, 2 replicas", ("fast", "replicated"), (), 2),
    ("always", ("fast", "fsync"), ("--appendfsync", "always"), 0),
)
"""Each with the durabilities to measure on it, its options, and how many replicas it has."""


async def _measure(batched: int, together: int, single: int, rounds: int, stage: Stage) -> Sequence[Row]:
    ways: list[tuple[str, int, int, _Way]] = [
        ("batches", batched, 1, partial(_batches, batched)),
        (f"{CALLERS} callers", together, CALLERS, partial(_callers, CALLERS, together)),
        ("one by one", single, 1, partial(_callers, 1, single)),
    ]
    found: list[Row] = []
    async with AsyncExitStack() as ends:
        stages = [
            (server, levels, await _opened(stage, options, replicas, ends))
            for server, levels, options, replicas in _SERVERS
        ]
        for way, number, callers, arm in ways:
            took: dict[tuple[str, Durability], list[float]] = {}
            for _ in range(rounds + 1):
                for server, levels, on in stages:
                    for level in levels:
                        took.setdefault((server, level), []).append(await arm(on, level))
            plain = took["everysec", "fast"][1:]
            for (server, level), (_warm, *seconds) in took.items():
                ratios = [one / other for one, other in zip(plain, seconds, strict=True)]
                each_s = statistics.median(seconds) / number
                found.append((server, way, level, 1 / each_s, each_s * callers * 1000, statistics.median(ratios)))
    return found


async def _opened(stage: Stage, options: Sequence[str], replicas: int, ends: AsyncExitStack) -> Stage:
    started = await _start(stage, options, replicas)
    for one in started:
        ends.push_async_callback(one.stop)
    store = await open_store(connect(started[0].url))
    client = await ends.enter_async_context(client_over(store))
    await declare(store, "bench-noop")
    return replace(stage, server=started[0], store=store, client=client)


async def _start(stage: Stage, options: Sequence[str], replicas: int) -> list[EmbeddedServer]:
    """A server, and replicas that have what it has."""
    folder, port, at_once = stage.folder / stage.fresh("server"), free_port(), ("--repl-diskless-sync-delay", "0")
    started = [await start_server(stage.server.family, folder, "--port", str(port), *at_once, *options)]
    for n in range(replicas):
        given = ("--port", str(free_port()), "--replicaof", f"127.0.0.1 {port}", *at_once)
        started.append(await start_server(stage.server.family, folder / f"replica-{n}", *given))
    async with Redis.from_url(started[0].url) as redis:

        async def all_there() -> bool:
            info = await redis.info("replication")
            return all(info.get(f"slave{n}", {}).get("state") == "online" for n in range(replicas))

        await until(all_there, timeout_s=60, what="the replicas")
    return started


def _new(prefix: str, number: int, level: Durability, due_ms: int) -> NewTimer:
    return NewTimer(prefix=prefix, id=f"user-{number:07}", due_at=due_ms, payload=PAYLOAD, durability=level)


async def _batches(timers: int, stage: Stage, level: Durability) -> float:
    prefix, due_ms, watch = stage.fresh("noop"), await stage.store.now_ms() + DAY_MS, Stopwatch()
    for start in range(0, timers, 1000):
        await stage.arm_all([_new(prefix, n, level, due_ms) for n in range(start, min(start + 1000, timers))])
    return watch.seconds()


async def _callers(callers: int, timers: int, stage: Stage, level: Durability) -> float:
    prefix, due_ms, numbers = stage.fresh("noop"), await stage.store.now_ms() + DAY_MS, iter(range(timers))

    async def call() -> None:
        for number in numbers:
            armed = await stage.client.arm(_new(prefix, number, level, due_ms))
            if armed.timer.durability not in ("", level):
                raise RuntimeError(f"a timer was {armed.timer.durability}, not {level}")

    watch = Stopwatch()
    await asyncio.gather(*(call() for _ in range(callers)))
    return watch.seconds()
