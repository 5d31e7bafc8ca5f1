"""Shows what `memory.py` measures as one of the benchmarks."""

from collections.abc import Sequence
from functools import partial
from typing import Final

from tests.bench import memory
from tests.bench.report import Benchmark, Column, Row
from tests.bench.stage import Stage

_COLUMNS: Final = (Column("what"), Column("bytes/timer"))


def benchmark(timers: int) -> Benchmark:
    """The benchmark for so many timers."""
    return Benchmark(
        "memory",
        f"{timers:,} timers, ids of 16 bytes, payloads of 60, no append-only file; layouts and parts, then whole ones",
        _COLUMNS,
        partial(_measure, timers),
        "timers with a long history, finished ones, fragmentation",
        ("--appendonly", "no"),
    )


async def _measure(timers: int, stage: Stage) -> Sequence[Row]:
    return list((await memory.measure(stage.server, timers)).items())
