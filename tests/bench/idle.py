"""Measures what pods cost while nothing is due."""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Final

from tests.bench.report import Benchmark, Column, Row
from tests.bench.stage import DAY_MS, Stage
from tests.bench.usage import Usage
from timers import NewTimer

CALM_S: Final = 60.0
CALMED_PER_S: Final = 4_000
"""By when scans for bare keys have become as rare as they get: after a minute, and a second for so many keys."""

_COLUMNS: Final = (
    Column("prefixes"),
    Column("armed"),
    Column("pods"),
    Column("requests/s", 1),
    Column("scripts/s", 1),
    Column("commands in all/s", 1),
    Column("pods ms CPU/s", 1),
    Column("server ms CPU/s", 1),
)


def benchmark(prefixes: Sequence[int], counts: Sequence[int], others: int, over_s: float) -> Benchmark:
    """The benchmark for some numbers of prefixes with one timer each, and of pods; then for one pod beside so many
    armed timers, once it has found that there are no bare keys."""
    return Benchmark(
        "idle",
        f"nothing due for {over_s:g} s; commands in all: also those that scripts call",
        _COLUMNS,
        partial(_measure, prefixes, counts, others, over_s),
        "many shards; API, dashboard and metrics",
    )


async def _measure(
    prefixes: Sequence[int], counts: Sequence[int], others: int, over_s: float, stage: Stage
) -> list[Row]:
    rows: list[Row] = []
    armed = 0
    for wanted in prefixes:
        await _arm_prefixes(stage, range(armed, wanted))
        armed = wanted
        rows += [await _idle(stage, wanted, armed, count, over_s) for count in counts]
    await stage.arm_others("bench-noop-others", others)
    calm_s = CALM_S + others / CALMED_PER_S
    return [*rows, await _idle(stage, armed + 1, armed + others, 1, over_s, after_s=calm_s)]


async def _arm_prefixes(stage: Stage, numbers: Sequence[int]) -> None:
    due_ms = await stage.store.now_ms() + DAY_MS
    await stage.arm_all([NewTimer(prefix=f"bench-noop-idle-{n}", id="user-1", due_at=due_ms) for n in numbers])


async def _idle(stage: Stage, prefixes: int, armed: int, count: int, over_s: float, *, after_s: float = 0.0) -> Row:
    async with stage.pods(count) as pods:
        await asyncio.sleep(after_s)
        begin = await Usage.so_far(stage.redis, pods)
        await asyncio.sleep(over_s)
        used = (await Usage.so_far(stage.redis, pods)).since(begin)
    asked = (used.requests, used.scripts, used.commands)
    busy = (used.pods_s * 1000, used.server_s * 1000)
    return (f"{prefixes:,}", f"{armed:,}", str(count), *(amount / used.seconds for amount in (*asked, *busy)))
