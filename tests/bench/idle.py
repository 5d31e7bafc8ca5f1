"""Measures what pods cost while nothing is due."""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Final

from tests.bench.report import Benchmark, Column, Row
from tests.bench.stage import DAY_MS, Stage
from tests.bench.usage import Usage
from timers import NewTimer

_COLUMNS: Final = (
    Column("prefixes"),
    Column("pods"),
    Column("requests/s", 1),
    Column("scripts/s", 1),
    Column("commands in all/s", 1),
    Column("pods ms CPU/s", 1),
    Column("server ms CPU/s", 1),
)


def benchmark(prefixes: Sequence[int], counts: Sequence[int], over_s: float) -> Benchmark:
    """The benchmark for some numbers of prefixes with one timer each, and of pods."""
    return Benchmark(
        "idle",
        f"nothing due for {over_s:g} s, one timer armed in each prefix; commands in all: also those that scripts call",
        _COLUMNS,
        partial(_measure, prefixes, counts, over_s),
        "many shards; API, dashboard and metrics",
    )


async def _measure(prefixes: Sequence[int], counts: Sequence[int], over_s: float, stage: Stage) -> list[Row]:
    rows: list[Row] = []
    armed = 0
    for wanted in prefixes:
        await _arm_prefixes(stage, range(armed, wanted))
        armed = wanted
        rows += [await _idle(stage, wanted, count, over_s) for count in counts]
    return rows


async def _arm_prefixes(stage: Stage, numbers: Sequence[int]) -> None:
    due_ms = await stage.store.now_ms() + DAY_MS
    await stage.arm_all([NewTimer(prefix=f"bench-noop-idle-{n}", id="user-1", due_at=due_ms) for n in numbers])


async def _idle(stage: Stage, prefixes: int, count: int, over_s: float) -> Row:
    async with stage.pods(count) as pods:
        begin = await Usage.so_far(stage.redis, pods)
        await asyncio.sleep(over_s)
        used = (await Usage.so_far(stage.redis, pods)).since(begin)
    asked = (used.requests, used.scripts, used.commands)
    busy = (used.pods_s * 1000, used.server_s * 1000)
    return (f"{prefixes:,}", str(count), *(amount / used.seconds for amount in (*asked, *busy)))
