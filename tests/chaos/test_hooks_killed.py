"""Pods are killed while a receiver gets every change: no change is lost, and those of each timer come in order."""

import json
import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from redis.asyncio import Redis

from tests.chaos.faults import kill
from tests.chaos.pods import Pods, until
from tests.chaos.processors import PREFIX
from tests.chaos.server import Server
from tests.chaos.witness import Witness
from tests.waiting import DEADLINE_SECONDS
from tests.webhooks.receivers import LOOPBACK, receiving
from timers import NewTimer, TimerClient
from timers.core.hooks import letter_of

TIMERS: Final = 120
KILLS: Final = 2


async def test_pods_killed_between_a_change_and_its_call_lose_none(tmp_path: Path) -> None:
    lines, rng = tmp_path / "history", random.Random(20_261_122)
    lines.mkdir()
    async with receiving() as receiver, await Server.start("redis", tmp_path) as server:
        settings = {
            "TIMERS_LEASE": "1500ms",
            "TIMERS_HOOKS": f"all@{PREFIX}={receiver.url}",
            "TIMERS_WEBHOOK_ALLOW": LOOPBACK,
        }
        async with (
            Redis.from_url(server.url, decode_responses=True) as redis,
            TimerClient(server.url) as client,
            Pods(server.url, redis, lines, settings) as pods,
        ):
            witness = Witness(lines, "driver")
            await pods.start(2)
            await client.batch([_timer(number) for number in range(TIMERS)])
            for number in range(1, KILLS + 1):
                await until(
                    partial(_has, receiver.received, 60 * number), timeout_s=DEADLINE_SECONDS, what="more calls"
                )
                await kill(witness, pod := rng.choice(await pods.one_to_spare()))
                await pods.replace(pod)
            await until(lambda: _all_told(redis), timeout_s=120, what="the end of all timers and calls")
            witness.close()
            timers = [await client.get(PREFIX, f"t{n}") for n in range(TIMERS)]
    told: dict[str, list[int]] = {}
    for request in receiver.received:
        data = json.loads(request.body)["data"]
        if data["version"] not in told.setdefault(data["id"], []):  # a call that was in progress is repeated
            told[data["id"]].append(data["version"])
    for timer in timers:
        versions = range(timer.version - len(timer.history) + 1, timer.version + 1)
        assert told[timer.id] == [
            v for v, entry in zip(versions, reversed(timer.history), strict=True) if letter_of(entry)
        ]


def _timer(number: int) -> NewTimer:
    behaviour = {"run_ms": number % 50, "fail_first": int(number % 10 == 0)}
    return NewTimer(prefix=PREFIX, id=f"t{number}", delay=number / TIMERS, payload=behaviour)


async def _has(received: Sequence[object], count: int) -> bool:
    return len(received) >= count


async def _all_told(redis: Redis) -> bool:
    counts = await redis.hkeys("timers:{0}:counts")
    return not await redis.xlen("timers:{0}:outbox") and not any(str(field)[0] in "sr" for field in counts)
