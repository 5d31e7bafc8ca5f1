"""Short helpers for the store's tests: arm a timer, have it running, end its run."""

import hashlib
from typing import Any, Final

from tests.waiting import eventually
from timers.core.decide import Transition
from timers.core.model import NO_PROGRESS, Progress, Status, Timer
from timers.store import upkeep
from timers.store.store import Arming, Reply, Settlement, Store

PREFIX: Final = "reminder"
POD: Final = "pod-1"
OTHER: Final = "pod-2"
LEASE_MS: Final = 30_000
HOUR_MS: Final = 3600 * 1000
DAY_MS: Final = 24 * HOUR_MS


def arming(timer_id: str = "a", *, due: str = "+0", spec: dict[str, Any] | None = None, **more: Any) -> Arming:
    """The arming of `reminder:<id>`, due now."""
    return Arming(more.pop("prefix", PREFIX), timer_id, due, spec or {}, **more)


async def put(store: Store, timer_id: str = "a", **more: Any) -> Reply:
    """Arm one timer."""
    return (await store.arm([arming(timer_id, **more)]))[0]


async def armed(store: Store, timer_id: str = "a", **more: Any) -> Timer:
    """Arm a timer; it is scheduled."""
    answer = await put(store, timer_id, **more)
    assert answer.code in ("created", "replaced")
    assert answer.timer is not None
    return answer.timer


async def claim(
    store: Store, most: int = 100, *, prefix: str = PREFIX, pod: str = POD, lease_ms: int = LEASE_MS, shard: int = 0
) -> list[Timer]:
    """Claim the due timers of one queue."""
    return (await store.claim(shard, [(prefix, most)], pod=pod, lease_ms=lease_ms, cause="sweep")).timers


async def running(store: Store, timer_id: str = "a", *, lease_ms: int = LEASE_MS, **more: Any) -> Timer:
    """Arm and claim a timer; it runs on `pod-1`."""
    timer = await armed(store, timer_id, **more)
    (claimed,) = await claim(store, prefix=timer.prefix, lease_ms=lease_ms)
    return claimed


def an_end(timer: Timer, status: Status = Status.COMPLETED, note: str = "", **changes: Any) -> Settlement:
    """The end of a run: the timer unchanged but for this status, note and these changes."""
    kept = Transition(
        status,
        timer.due_ms,
        timer.attempt,
        timer.failures,
        timer.occurrence,
        NO_PROGRESS,
        cause=("completed", note or status.value),
    )
    return Settlement(timer, kept._replace(**changes))


async def settle(store: Store, *ends: Settlement, pod: str = POD, retention_ms: int = DAY_MS) -> list[str]:
    """Write ends and return their codes. Failed timers have the retention of the others."""
    return await store.settle(0, ends, pod=pod, retention_ms=retention_ms, keeps_failed=retention_ms > 0)


async def prune(
    store: Store, *, retention_ms: int, retention_failed_ms: int | None = None, most: int, shard: int = 0
) -> int:
    """Prune once, from the beginning; says how many records went. Without a retention of their own, failed timers have
    that of the others."""
    failed_ms = retention_ms if retention_failed_ms is None else retention_failed_ms
    pruned = await upkeep.prune(store, shard, retention_ms=retention_ms, retention_failed_ms=failed_ms, most=most)
    return pruned.number


async def finished(store: Store, timer_id: str = "a", status: Status = Status.COMPLETED, **more: Any) -> Timer:
    """A timer that has run and ended with this status."""
    ended = an_end(await running(store, timer_id, **more), status)
    assert await settle(store, ended) == ["settled"]
    return await read(store, timer_id, ended.timer.prefix)


async def retrying(store: Store, timer_id: str = "a", *, prefix: str = PREFIX, **error: str) -> None:
    """A timer that has failed and is due again in an hour. `error` is of its last error."""
    timer = await running(store, timer_id, prefix=prefix)
    progress = Progress(last_error={"type": "OSError", "reason": "mail is down", **error})
    due_ms = timer.due_ms + HOUR_MS
    end = an_end(timer, Status.SCHEDULED, due_ms=due_ms, failures=timer.failures + 1, progress=progress)
    assert await settle(store, end) == ["settled"]


async def cancelled(store: Store, timer_id: str = "a", **more: Any) -> Timer:
    """A timer that was cancelled before it was due."""
    await armed(store, timer_id, due="+3600000", **more)
    answer = await store.cancel(PREFIX, timer_id)
    assert answer.timer is not None
    return answer.timer


async def read(store: Store, timer_id: str = "a", prefix: str = PREFIX) -> Timer:
    """Read a timer."""
    (timer,) = await store.get([(prefix, timer_id)])
    assert timer is not None
    return timer


async def in_status(store: Store, status: Status, timer_id: str = "a") -> Timer:
    """A timer in this status; a scheduled one is due in an hour."""
    match status:
        case Status.SCHEDULED:
            return await armed(store, timer_id, due="+3600000")
        case Status.RUNNING:
            return await running(store, timer_id)
        case Status.CANCELLED:
            return await cancelled(store, timer_id)
        case _:
            return await finished(store, timer_id, status)


async def key_gone(store: Store, key: str) -> None:
    """Wait until a key has expired. Each look makes the server delete it if it is due."""

    async def gone() -> bool:
        return not await store.connections.commands.exists(key)

    await eventually(gone, f"the end of {key}")


async def lease_ended(store: Store, timer: Timer) -> None:
    """Wait until the timer's lease has ended, both its key and its score in the index. A server, and above all the fake
    one, may read its clock again between the two."""
    await key_gone(store, lease_key(timer))
    end_ms = await store.connections.commands.zscore("timers:{0}:leases", timer.key)

    async def passed() -> bool:
        return end_ms is None or await store.now_ms() > end_ms

    await eventually(passed, f"the end of the lease of {timer.key}")


async def put_list(redis: Any, key: str) -> None:
    """Replace a key by a foreign list."""
    await redis.delete(key)
    await redis.rpush(key, "foreign")


async def put_in_place_of_lease(store: Store, timer: Timer, kind: str) -> None:
    """Replace the lease by a foreign key: a `string`, a `string with a TTL` or a `list`."""
    redis, key = store.connections.commands, lease_key(timer)
    if kind == "list":
        await put_list(redis, key)
    else:
        await redis.set(key, b"\xff foreign", px=3_600_000 if "TTL" in kind else None)


def lease_key(timer: Timer) -> str:
    return f"timers:{{0}}:lease:{timer.key}"


def trigger_key(timer: Timer) -> str:
    return f"{timer.prefix}:{{0}}:{timer.id}"


def bucket_of(member: str) -> str:
    """The hash that holds the record, computed by the protocol's rule and not by the scripts."""
    return f"timers:{{0}}:rec:{hashlib.sha1(member.encode(), usedforsecurity=False).hexdigest()[:2]}"
