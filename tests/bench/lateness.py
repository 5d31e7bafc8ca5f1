"""Measures lateness beside many other armed timers, and that of plain Redis expiry beside the same ones."""

import asyncio
import time
from functools import partial
from typing import Final

from redis.asyncio import Redis

from tests.bench.references import round_trips_ms
from tests.bench.report import Benchmark, Column, Row, worst
from tests.bench.stage import Stage
from tests.bench.starts import Lateness, Tally
from tests.chaos.pods import until
from tests.waiting import DEADLINE_SECONDS

SPREAD_S: Final = 10.0
PLAIN_WAIT_S: Final = 20.0
"""How long after the last due a plain key is waited for; what has not expired by then counts as never."""

_COLUMNS: Final = (
    Column("way"),
    worst("never"),
    Column("claim p50 ms", 1),
    Column("p99", 1),
    worst("max", 1),
    Column("start p50 ms", 1),
    Column("p99", 1),
    worst("max", 1),
)


def benchmark(timers: int, others: int) -> Benchmark:
    """The benchmark for so many timers beside so many others."""
    title = f"{timers:,} timers over {SPREAD_S:g} s beside {others:,} armed ones, 1 pod; then as many plain keys"
    return Benchmark(
        "lateness",
        title,
        _COLUMNS,
        partial(_measure, timers, others),
        "several shards, payloads, a network between the pod and the server",
    )


async def _measure(timers: int, others: int, stage: Stage) -> list[Row]:
    prefix = stage.fresh("timed")
    await stage.arm_others(prefix, others)
    return [*await _timers(stage, prefix, timers), await _plain(stage, timers)]


async def _timers(stage: Stage, prefix: str, timers: int) -> list[Row]:
    async with stage.pods(1):
        await stage.arm_ahead(prefix, timers, round(SPREAD_S * 1000))
        async with round_trips_ms(stage.redis) as took_ms:
            await stage.completed(prefix, timers, timeout_s=60)
    starts = stage.starts(prefix)
    claim = Lateness.of((start.claim_late_ms for start in starts), timers)
    start = Lateness.of((start.start_late_ms for start in starts), timers)
    took = Lateness.of(took_ms, len(took_ms))
    lost = Tally.of(starts, timers).lost
    return [
        ("timers", lost, claim.p50_ms, claim.p99_ms, claim.max_ms, start.p50_ms, start.p99_ms, start.max_ms),
        ("a PING beside them", "", "", "", "", took.p50_ms, took.p99_ms, took.max_ms),
    ]


async def _plain(stage: Stage, keys: int) -> Row:
    """Bare keys without anybody who touches them, heard by a subscriber that does nothing else."""
    heard: dict[str, float] = {}
    hearing = asyncio.create_task(_hear(stage.redis, heard))

    async def subscribed() -> bool:
        ((_, subscribers),) = await stage.redis.pubsub_numsub("__keyevent@0__:expired")
        return int(subscribers) > 0

    await until(subscribed, timeout_s=DEADLINE_SECONDS, what="the subscription")
    due_ms = await _set_plain(stage, keys)

    async def all_heard() -> bool:
        return len(heard) == keys

    try:
        await until(all_heard, timeout_s=SPREAD_S + PLAIN_WAIT_S, what="the events of all plain keys")
    except TimeoutError:
        pass
    finally:
        hearing.cancel()
    late = Lateness.of((at_ms - due_ms[key] for key, at_ms in heard.items()), keys)
    return "plain Redis expiry", keys - len(heard), "", "", "", late.p50_ms, late.p99_ms, late.max_ms


async def _hear(redis: Redis, heard: dict[str, float]) -> None:
    async with redis.pubsub(ignore_subscribe_messages=True) as pubsub:
        await pubsub.subscribe("__keyevent@0__:expired")
        async for event in pubsub.listen():
            if event["data"].startswith("plain:"):
                heard[event["data"]] = time.time() * 1000


async def _set_plain(stage: Stage, keys: int) -> dict[str, int]:
    first_ms = await stage.store.now_ms() + 1000
    due_ms = {f"plain:{i}": first_ms + stage.rng.randrange(round(SPREAD_S * 1000)) for i in range(keys)}
    pipe = stage.redis.pipeline(transaction=False)
    for key, due in due_ms.items():
        pipe.set(key, "1", pxat=due)
    await pipe.execute()
    return due_ms
