"""What is left in the service after a run: its counts, its records, and keys that should be gone."""

import contextlib
import re
from collections import Counter
from collections.abc import Sequence
from typing import Final

from redis.asyncio import Redis

from tests.chaos.findings import Completion, Counts, EndState
from tests.chaos.pods import until
from tests.chaos.processors import PREFIXES, prefix_of
from tests.conservation import conserved
from tests.ledger.copies import agreed
from tests.waiting import patient
from timers import Status, Timer
from timers.client import open_store
from timers.core.model import RESTORED
from timers.ledger.database import Database
from timers.store.servers import connect

_LASTING: Final = re.compile(
    r"timers:(meta|\{(pods|fired)\}:\w+|\{access\}:booked|canary:.+|\{\d+\}:(token|epoch|mark|hooks|changed|agreed|inbox|outbox|counts|prefixes|bare|paused|blocked|rec:..|finished:.:.+))"
)
"""Keys of a shard that may be there while nothing is armed: see the protocol. Due index, leases, triggers may not."""

_PASSING: Final = re.compile(r"timers:(\{limits:.+\}:.+|\{access\}:bookings|\{\d+\}:(answered|expiry):.+)")
"""Keys that may be there as long as they go by themselves."""

_READ_AT_ONCE: Final = 250


async def by_status(redis: Redis) -> dict[str, int]:
    """The service's count of the chaos timers in each status, by the status letter."""
    found = Counter[str]()
    for shard in range(int(await redis.hget("timers:meta", "shards") or 1)):
        counts: dict[bytes, bytes] = await redis.hgetall(f"timers:{{{shard}}}:counts")  # type: ignore[assignment]
        for field, number in counts.items():
            letter, prefix = field.decode().split(" ", 1)
            found[letter] += int(number) if prefix in PREFIXES else 0
    return found


async def drained(redis: Redis, *, timeout_s: float) -> None:
    """Waits until nothing is scheduled or running, up to the limit. What is still open then is left to the checker."""

    async def nothing_open() -> bool:
        found = await by_status(redis)
        return found.get("s", 0) == 0 and found.get("r", 0) == 0

    with contextlib.suppress(TimeoutError):
        await until(nothing_open, timeout_s=timeout_s, what="the end of all timers")


async def final_counts(redis: Redis) -> Counts:
    """The service's counts, and the keys that belong to nothing."""
    found = await by_status(redis)
    keys = sorted([key.decode() async for key in redis.scan_iter(count=1000)])
    return Counts(
        finished=sum(found.get(letter, 0) for letter in "cfu"),
        cancelled=found.get("x", 0),
        scheduled=found.get("s", 0),
        running=found.get("r", 0),
        leftover_keys=tuple([key for key in keys if not await _may_stay(redis, key)]),
    )


async def _may_stay(redis: Redis, key: str) -> bool:
    if _PASSING.fullmatch(key):
        return await redis.pttl(key) != -1
    return _LASTING.fullmatch(key) is not None


async def end_states(url: str, ids: Sequence[str]) -> dict[str, EndState]:
    """The records of the timers, by `prefix/id`, without timers that have none."""
    connections = connect(patient(url))
    try:
        store = await open_store(connections)
        found: dict[str, EndState] = {}
        for start in range(0, len(ids), _READ_AT_ONCE):
            identities = [(prefix_of(timer_id), timer_id) for timer_id in ids[start : start + _READ_AT_ONCE]]
            timers = await store.get(identities)
            found |= {f"{timer.prefix}/{timer.id}": _end_state(timer) for timer in timers if timer is not None}
        return found
    finally:
        await connections.close()


def _end_state(timer: Timer) -> EndState:
    error = timer.last_error
    return EndState(
        status=timer.status.value,
        token=timer.token,
        attempt=timer.attempt,
        failures=timer.failures,
        reason="" if error is None else str(error["reason"]),
        completions=tuple(
            Completion(entry.attempt, entry.at_ms)
            for entry in timer.history
            if entry.status is Status.COMPLETED and RESTORED not in (entry.note or "")
        ),
        early_ms=max((-entry.lateness_ms for entry in timer.history if entry.lateness_ms is not None), default=0),
    )


async def same_in(ledger: Database, redis: Redis, url: str, *, timeout_s: float) -> None:
    """Waits until all timers have ended and the ledger has what Redis has, and checks that all is conserved there."""
    await drained(redis, timeout_s=timeout_s)
    connections = connect(patient(url))
    try:
        store = await open_store(connections)
        await agreed(ledger, store)
        await conserved(store)
    finally:
        await connections.close()
