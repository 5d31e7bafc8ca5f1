"""Measures what it costs that timers due at one instant lie in as many prefixes, and how late another is meanwhile."""

import asyncio
from functools import partial
from typing import Final

from tests.bench.report import Benchmark, Column, Row
from tests.bench.stage import Stage
from tests.chaos.pods import until
from timers import NewTimer

PROBE_AFTER_MS: Final = 200
WARM_UP: Final = 2_000

_COLUMNS: Final = (
    Column("timers/s, one prefix"),
    Column("timers/s, a prefix each"),
    Column("of one prefix's", 2),
    Column("probe ms late, one prefix"),
    Column("probe ms late, a prefix each"),
)


def benchmark(timers: int) -> Benchmark:
    """The benchmark for so many timers."""
    return Benchmark(
        "spread",
        f"{timers:,} timers due in one millisecond, in one prefix and in a prefix each, 1 pod, a processor that does "
        f"nothing; a probe in a prefix of its own is due {PROBE_AFTER_MS} ms later",
        _COLUMNS,
        partial(_measure, timers),
        "several pods, shards",
    )


async def _measure(timers: int, stage: Stage) -> list[Row]:
    async with stage.pods(1):
        await _drained(stage, WARM_UP, 1)
        one_s, one_ms = await _drained(stage, timers, 1)
        each_s, each_ms = await _drained(stage, timers, timers)
    return [(timers / one_s, timers / each_s, one_s / each_s, one_ms, each_ms)]


async def _drained(stage: Stage, timers: int, prefixes: int) -> tuple[float, float]:
    """Seconds by the server's clock from due until nothing is due or running, and how late the probe started, in ms."""
    kind, probe = stage.fresh("noop"), stage.fresh("timed")
    due_ms = await stage.store.now_ms() + 2_000 + timers // 4
    await stage.arm_all(
        [NewTimer(prefix=f"{kind}-{i % prefixes}", id=f"user-{i:07}", due_at=due_ms) for i in range(timers)]
    )
    await stage.client.create(probe, "probe", due_at=due_ms + PROBE_AFTER_MS)
    await asyncio.sleep(stage.store.clock.seconds_until(due_ms))

    async def is_drained() -> bool:
        return not await stage.redis.zcard("timers:{0}:heads") and not await stage.redis.zcard("timers:{0}:leases")

    await until(is_drained, timeout_s=180, what=f"the end of {timers} timers in {prefixes} prefixes")
    seconds = (await stage.store.now_ms() - due_ms) / 1000
    (start,) = stage.starts(probe)
    return seconds, start.start_late_ms
