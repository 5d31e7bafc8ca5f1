"""Measures what is lost and how late the rest is while every subscription is cut ten times a second."""

from contextlib import nullcontext
from functools import partial
from typing import Final

from tests.bench.report import Benchmark, Column, Row, worst
from tests.bench.stage import Stage, repeated
from tests.bench.starts import Lateness, Tally

CUT_EVERY_S: Final = 0.1

_COLUMNS: Final = (
    Column("subscriptions"),
    Column("cuts"),
    worst("lost"),
    worst("twice"),
    Column("start p50 ms", 1),
    Column("p99", 1),
    worst("max", 1),
)


def benchmark(timers: int, over_s: float) -> Benchmark:
    """The benchmark for so many timers over a time."""
    return Benchmark(
        "cuts",
        f"{timers:,} timers over {over_s:g} s, 1 pod; again with CLIENT KILL TYPE pubsub every {CUT_EVERY_S:g} s",
        _COLUMNS,
        partial(_measure, timers, over_s),
        "half-open connections, a subscriber that is cut because it is slow",
    )


async def _measure(timers: int, over_s: float, stage: Stage) -> list[Row]:
    async with stage.pods(1):
        return [await _fired(stage, timers, over_s, cut=False), await _fired(stage, timers, over_s, cut=True)]


async def _fired(stage: Stage, timers: int, over_s: float, *, cut: bool) -> Row:
    prefix = stage.fresh("timed")
    await stage.arm_ahead(prefix, timers, round(over_s * 1000))
    cuts = 0

    async def cut_all() -> None:
        nonlocal cuts
        cuts += await stage.redis.client_kill_filter(_type="pubsub")

    async with repeated(cut_all, every_s=CUT_EVERY_S) if cut else nullcontext():
        await stage.completed(prefix, timers, timeout_s=over_s + 60)
    starts = stage.starts(prefix)
    tally = Tally.of(starts, timers)
    late = Lateness.of((start.start_late_ms for start in starts), timers)
    return "cut" if cut else "kept", cuts, tally.lost, tally.again, late.p50_ms, late.p99_ms, late.max_ms
