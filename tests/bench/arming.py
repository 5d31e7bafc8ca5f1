"""Measures how fast one client arms timers: in batches, and one call after the other."""

from functools import partial
from typing import Final

from tests.bench.references import pipelined_set_per_s, set_round_trips_per_s
from tests.bench.report import Benchmark, Column, Row
from tests.bench.stage import DAY_MS, Stage, Stopwatch
from tests.bench.usage import Usage
from timers import NewTimer

PAYLOAD: Final = {"email": "someone@example.org", "plan": "trial-1", "source": "web"}

_COLUMNS: Final = (
    Column("way"),
    Column("timers/s"),
    Column("server µs/timer", 1),
    Column("SET PX/s the same way"),
    Column("of those", 2),
)


def benchmark(batched: int, single: int) -> Benchmark:
    """The benchmark for so many timers in batches and so many one by one."""
    return Benchmark(
        "arming",
        f"{batched:,} timers in batches of 1,000, {single:,} one by one, with a payload of 67 bytes, one client",
        _COLUMNS,
        partial(_measure, batched, single),
        "the HTTP API, several clients at once, timers that repeat or replace others",
    )


async def _measure(batched: int, single: int, stage: Stage) -> list[Row]:
    redis = stage.store.connections.commands
    return [
        await _row(stage, "client.batch", batched, await pipelined_set_per_s(redis, batched)),
        await _row(stage, "client.create", single, await set_round_trips_per_s(redis, single)),
    ]


async def _row(stage: Stage, way: str, timers: int, reference_per_s: float) -> Row:
    prefix = stage.fresh("noop")
    begin = await Usage.so_far(stage.redis)
    per_s = await (_batched if way == "client.batch" else _single)(stage, prefix, timers)
    used = (await Usage.so_far(stage.redis)).since(begin)
    return way, per_s, used.server_s / timers * 1e6, reference_per_s, per_s / reference_per_s


async def _batched(stage: Stage, prefix: str, timers: int) -> float:
    now_ms, watch = await stage.store.now_ms(), Stopwatch()
    for start in range(0, timers, 1000):
        await stage.arm_all(
            [
                NewTimer(prefix=prefix, id=f"user-{i:07}", due_at=now_ms + DAY_MS + i, payload=PAYLOAD)
                for i in range(start, min(start + 1000, timers))
            ]
        )
    return timers / watch.seconds()


async def _single(stage: Stage, prefix: str, timers: int) -> float:
    watch = Stopwatch()
    for i in range(timers):
        await stage.client.create(prefix, f"user-{i:07}", delay="1d", payload=PAYLOAD)
    return timers / watch.seconds()
