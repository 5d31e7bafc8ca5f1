"""Measures how long a timer waits when the pod that runs it is killed: from `kill -9` to its start on another pod."""

import asyncio
import time
from collections.abc import Sequence
from functools import partial
from typing import Final

from tests.bench.pods import Pods
from tests.bench.report import Benchmark, Column, Row, worst
from tests.bench.stage import Stage
from tests.bench.starts import Lateness, Start
from tests.chaos.pods import until
from tests.waiting import DEADLINE_SECONDS

_COLUMNS: Final = (
    Column("TIMERS_LEASE s", 1),
    Column("kills a run"),
    Column("takeover p50 s", 2),
    worst("max s", 2),
    worst("beyond it"),
)


def benchmark(leases_ms: Sequence[int], trials: int) -> Benchmark:
    """The benchmark for some leases, so many kills each."""
    return Benchmark(
        "takeover",
        "2 pods, `kill -9` of the one that runs the timer, within TIMERS_LEASE of its start; that is also the limit",
        _COLUMNS,
        partial(_measure, leases_ms, trials),
        "pods that are paused or cut off instead of killed; many runs lost at once",
    )


async def _measure(leases_ms: Sequence[int], trials: int, stage: Stage) -> list[Row]:
    return [await _with_lease(stage, lease_ms, trials) for lease_ms in leases_ms]


async def _with_lease(stage: Stage, lease_ms: int, trials: int) -> Row:
    async with stage.pods(2, lease_ms=lease_ms) as pods:
        took_s = [await _trial(stage, pods, lease_ms) for _ in range(trials)]
    late = Lateness.of((seconds * 1000 for seconds in took_s), trials)
    beyond = sum(seconds > lease_ms / 1000 for seconds in took_s)
    return lease_ms / 1000, trials, late.p50_ms / 1000, late.max_ms / 1000, beyond


async def _trial(stage: Stage, pods: Pods, lease_ms: int) -> float:
    prefix = stage.fresh("hang")
    await stage.arm(prefix, [await stage.store.now_ms() + 100])
    first = await _start(stage, prefix, 1, timeout_s=DEADLINE_SECONDS)
    await asyncio.sleep(stage.rng.uniform(0, lease_ms / 1000))
    killed_ms = time.time() * 1000
    await pods.kill(next(pod for pod in pods.live if pod.name == first.pod))
    second = await _start(stage, prefix, 2, timeout_s=lease_ms / 1000 + 60)
    await pods.start(1)
    return (second.at_ms - killed_ms) / 1000


async def _start(stage: Stage, prefix: str, attempt: int, *, timeout_s: float) -> Start:
    found: list[Start] = []

    async def happened() -> bool:
        found[:] = [start for start in stage.starts(prefix) if start.attempt == attempt]
        return bool(found)

    await until(happened, timeout_s=timeout_s, what=f"the start of attempt {attempt}")
    return found[0]
