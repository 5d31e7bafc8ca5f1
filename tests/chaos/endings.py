"""What is left in the service after a run: its counts, its records, and keys that should be gone."""

import asyncio
import contextlib
import re
from collections.abc import Sequence
from typing import Final

from redis.asyncio import Redis

from tests.chaos.findings import Completion, Counts, EndState
from tests.chaos.pods import until
from tests.chaos.processors import PREFIX
from timers import Status, TimerClient
from timers.errors import NotFound

_COUNTS: Final = "timers:{0}:counts"
_LASTING: Final = re.compile(r"timers:(meta|\{pods\}:\w+|canary:.+|\{0\}:(token|counts|rec:..|finished:.:.+))")
"""Keys of one shard that may be there while nothing is armed: see the protocol. Due index, leases, triggers may not."""

_READ_AT_ONCE: Final = 16


async def by_status(redis: Redis) -> dict[str, int]:
    """The service's count of the chaos timers in each status, by the letter that stands for it."""
    raw = await redis.hgetall(_COUNTS)
    pairs = ((str(field).split(" ", 1), int(number)) for field, number in raw.items())
    return {letter: number for (letter, prefix), number in pairs if prefix == PREFIX}


async def drained(redis: Redis, *, timeout_s: float) -> None:
    """Waits until nothing is scheduled or running any more, but no longer than that: what is still open is judged."""

    async def nothing_open() -> bool:
        found = await by_status(redis)
        return found.get("s", 0) == 0 and found.get("r", 0) == 0

    with contextlib.suppress(TimeoutError):
        await until(nothing_open, timeout_s=timeout_s, what="the end of all timers")


async def final_counts(redis: Redis) -> Counts:
    """The service's counts, and the keys that nothing accounts for."""
    found = await by_status(redis)
    keys = [str(key) async for key in redis.scan_iter(count=1000)]
    return Counts(
        finished=sum(found.get(letter, 0) for letter in "cfu"),
        cancelled=found.get("x", 0),
        scheduled=found.get("s", 0),
        running=found.get("r", 0),
        leftover_keys=tuple(sorted(key for key in keys if not _LASTING.fullmatch(key))),
    )


async def end_states(client: TimerClient, ids: Sequence[str]) -> dict[str, EndState]:
    """The records of the timers, by `prefix/id`; those that have none are left out."""
    found: dict[str, EndState] = {}
    waiting = iter(ids)

    async def read() -> None:
        for timer_id in waiting:
            state = await _end_state(client, timer_id)
            if state is not None:
                found[f"{PREFIX}/{timer_id}"] = state

    await asyncio.gather(*(read() for _ in range(_READ_AT_ONCE)))
    return found


async def _end_state(client: TimerClient, timer_id: str) -> EndState | None:
    try:
        timer = await client.get(PREFIX, timer_id)
    except NotFound:
        return None
    error = timer.last_error
    return EndState(
        status=timer.status.value,
        token=timer.token,
        attempt=timer.attempt,
        reason="" if error is None else str(error["reason"]),
        completions=tuple(
            Completion(entry.attempt, entry.at_ms) for entry in timer.history if entry.status is Status.COMPLETED
        ),
    )
