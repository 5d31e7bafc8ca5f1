"""Measures how fast one pod drains timers that are all due at one instant, and what each costs."""

import asyncio
from functools import partial
from typing import Final

from tests.bench.pods import Pods
from tests.bench.references import pipelined_set_per_s, set_round_trips_per_s
from tests.bench.report import Benchmark, Column, Row
from tests.bench.stage import Stage
from tests.bench.usage import Usage

WARM_UP: Final = 2_000
REFERENCE: Final = 5_000

_COLUMNS: Final = (
    Column("timers/s"),
    Column("pod µs/timer", 1),
    Column("server µs/timer", 1),
    Column("SET NX round trips/s"),
    Column("times those", 1),
    Column("pipelined SET PX/s"),
    Column("times those", 2),
)


def benchmark(timers: int) -> Benchmark:
    """The benchmark for so many timers."""
    return Benchmark(
        "burst",
        f"{timers:,} timers due in one millisecond, 1 pod, a processor that does nothing, after {WARM_UP:,} to warm up",
        _COLUMNS,
        partial(_measure, timers),
        "processors that work, several pods, larger payloads",
    )


async def _measure(timers: int, stage: Stage) -> list[Row]:
    round_trips = await set_round_trips_per_s(stage.store.connections.commands, REFERENCE, only_new=True)
    pipelined = await pipelined_set_per_s(stage.store.connections.commands, 4 * REFERENCE)
    async with stage.pods(1) as pods:
        await _drained(stage, pods, WARM_UP)
        seconds, used = await _drained(stage, pods, timers)
    per_s = timers / seconds
    cost_us = (used.pods_s / timers * 1e6, used.server_s / timers * 1e6)
    return [(per_s, *cost_us, round_trips, per_s / round_trips, pipelined, per_s / pipelined)]


async def _drained(stage: Stage, pods: Pods, timers: int) -> tuple[float, Usage]:
    """Seconds by the server's clock from due to the last settled end, and what was used."""
    prefix = stage.fresh("noop")
    due_ms = await stage.arm_ahead(prefix, timers, 1)
    await asyncio.sleep(stage.store.clock.seconds_until(due_ms) - 0.05)
    begin = await Usage.so_far(stage.redis, pods)
    if not await stage.completed(prefix, timers, timeout_s=120):
        raise RuntimeError(f"{timers} timers were not drained within 120 s")
    used = (await Usage.so_far(stage.redis, pods)).since(begin)
    finished = f"timers:{{0}}:finished:c:{prefix}"
    (newest,) = await stage.redis.zrange(finished, -1, -1)
    last_ms = await stage.redis.zscore(finished, str(newest))
    return (float(last_ms or 0) - due_ms) / 1000, used
