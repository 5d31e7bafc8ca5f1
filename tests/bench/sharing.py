"""Measures how pods share one queue: every timer once, who ran how many, and what each further pod costs."""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Final

from tests.bench.report import Benchmark, Column, Row, worst
from tests.bench.stage import Stage
from tests.bench.starts import Lateness, Tally
from tests.bench.usage import Usage

IDLE_S: Final = 4.0

_COLUMNS: Final = (
    Column("pods"),
    worst("lost"),
    worst("twice"),
    Column("least"),
    Column("most"),
    Column("scripts/timer", 2),
    Column("idle scripts/s", 1),
    Column("pods µs/timer"),
    Column("server µs/timer"),
    Column("start p50 ms", 1),
    Column("p99", 1),
    worst("max", 1),
)


def benchmark(counts: Sequence[int], per_s: int, over_s: float) -> Benchmark:
    """The benchmark for some numbers of pods at a rate for a time."""
    return Benchmark(
        "pods",
        f"{per_s}/s on one queue for {over_s:g} s; least and most: timers of one pod; scripts without the idle ones",
        _COLUMNS,
        partial(_measure, counts, per_s, over_s),
        "pods on other machines, pods of unequal room, several shards",
    )


async def _measure(counts: Sequence[int], per_s: int, over_s: float, stage: Stage) -> list[Row]:
    return [await _with_pods(stage, count, round(per_s * over_s), over_s) for count in counts]


async def _with_pods(stage: Stage, count: int, timers: int, over_s: float) -> Row:
    prefix = stage.fresh("timed")
    async with stage.pods(count) as pods:
        idle = await _idle(stage)
        await stage.arm_ahead(prefix, timers, round(over_s * 1000))
        begin = await Usage.so_far(stage.redis, pods)
        await stage.completed(prefix, timers, timeout_s=over_s + 30)
        used = (await Usage.so_far(stage.redis, pods)).since(begin)
    starts = stage.starts(prefix)
    tally = Tally.of(starts, timers)
    late = Lateness.of((start.start_late_ms for start in starts), timers)
    shares = sorted(tally.by_pod.values())
    least = shares[0] if len(shares) == count else 0
    idle_per_s = idle.scripts / idle.seconds
    scripts = used.scripts - idle_per_s * used.seconds
    cost = (scripts / timers, idle_per_s, used.pods_s / timers * 1e6, used.server_s / timers * 1e6)
    return (str(count), tally.lost, tally.again, least, shares[-1], *cost, late.p50_ms, late.p99_ms, late.max_ms)


async def _idle(stage: Stage) -> Usage:
    begin = await Usage.so_far(stage.redis)
    await asyncio.sleep(IDLE_S)
    return (await Usage.so_far(stage.redis)).since(begin)
