"""Measures what a page of a list costs among few timers and among many."""

from collections.abc import AsyncIterator, Sequence
from functools import partial
from statistics import median
from typing import Any, Final

from tests.bench.report import Benchmark, Column, Row
from tests.bench.stage import DAY_MS, Stage, Stopwatch

PAGE: Final = 100
READS: Final = 100

_COLUMNS: Final = (
    Column("timers"),
    Column("page"),
    Column("ms", 2),
    Column("of the same among few", 2),
)


def benchmark(few: int, many: int) -> Benchmark:
    """The benchmark for two numbers of timers of one prefix."""
    return Benchmark(
        "pages",
        f"the median of {READS} pages of {PAGE} timers each, read by the client",
        _COLUMNS,
        partial(_measure, few, many),
        "filters that most timers do not pass: such a page ends after ten times its length, or 2,000",
    )


async def _measure(few: int, many: int, stage: Stage) -> list[Row]:
    rows: list[Row] = []
    among_few: dict[str, float] = {}
    prefix = stage.fresh("noop")
    for number in (few, many):
        await stage.arm_others(prefix, number)
        for page, reads in _kinds(stage, prefix):
            ms = await _median_ms(reads)
            rows.append((f"{number:,}", page, ms, ms / among_few.setdefault(page, ms)))
    return rows


def _kinds(stage: Stage, prefix: str) -> Sequence[tuple[str, AsyncIterator[float]]]:
    now_ms = round(stage.store.clock.now_ms())
    return (
        ("the first", _same(stage, prefix=prefix)),
        ("from the middle of the due times", _same(stage, prefix=prefix, due_after=now_ms + DAY_MS * 3 // 2)),
        ("one after the other by cursor", _following(stage, prefix)),
    )


async def _same(stage: Stage, **wanted: Any) -> AsyncIterator[float]:
    for _ in range(READS):
        watch = Stopwatch()
        await stage.client.list(limit=PAGE, **wanted)
        yield watch.seconds() * 1000


async def _following(stage: Stage, prefix: str) -> AsyncIterator[float]:
    cursor: str | None = None
    for _ in range(READS):
        watch = Stopwatch()
        page = await stage.client.list(limit=PAGE, cursor=cursor, prefix=prefix)
        yield watch.seconds() * 1000
        cursor = page.next_cursor


async def _median_ms(reads: AsyncIterator[float]) -> float:
    return median([ms async for ms in reads])
