"""What the store's tests do to timers, in the fewest words: arm one, have it running, end its run."""

import hashlib
from typing import Any, Final

from tests.waiting import eventually
from timers.core.decide import Transition
from timers.core.model import NO_PROGRESS, Status, Timer
from timers.store.store import Arming, Reply, Settlement, Store

PREFIX: Final = "reminder"
POD: Final = "pod-1"
OTHER: Final = "pod-2"
LEASE_MS: Final = 30_000
DAY_MS: Final = 24 * 3600 * 1000


def arming(timer_id: str = "a", *, due: str = "+0", spec: dict[str, Any] | None = None, **more: Any) -> Arming:
    """An order to arm `reminder:<id>`, due now."""
    return Arming(more.pop("prefix", PREFIX), timer_id, due, spec or {}, **more)


async def put(store: Store, timer_id: str = "a", **more: Any) -> Reply:
    """Arm one timer."""
    (answer,) = await store.arm([arming(timer_id, **more)])
    return answer


async def armed(store: Store, timer_id: str = "a", **more: Any) -> Timer:
    """A timer that is now scheduled."""
    answer = await put(store, timer_id, **more)
    assert answer.code in ("created", "replaced")
    assert answer.timer is not None
    return answer.timer


async def claim(
    store: Store, most: int = 100, *, prefix: str = PREFIX, pod: str = POD, lease_ms: int = LEASE_MS, shard: int = 0
) -> list[Timer]:
    """Claim what is due of one queue."""
    return (await store.claim(shard, [(prefix, most)], pod=pod, lease_ms=lease_ms, cause="sweep")).timers


async def running(store: Store, timer_id: str = "a", *, lease_ms: int = LEASE_MS, **more: Any) -> Timer:
    """A timer that is now running on `pod-1`."""
    timer = await armed(store, timer_id, **more)
    (claimed,) = await claim(store, prefix=timer.prefix, lease_ms=lease_ms)
    return claimed


def an_end(timer: Timer, status: Status = Status.COMPLETED, note: str = "", **changes: Any) -> Settlement:
    """The end of a run: as the timer is, but in that status, with that note and those changes."""
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
    """Write ends; answers their codes."""
    return await store.settle(0, ends, pod=pod, retention_ms=retention_ms)


async def finished(store: Store, timer_id: str = "a", status: Status = Status.COMPLETED, **more: Any) -> Timer:
    """A timer that has run and is now in that status."""
    ended = an_end(await running(store, timer_id, **more), status)
    assert await settle(store, ended) == ["settled"]
    return await read(store, timer_id, ended.timer.prefix)


async def cancelled(store: Store, timer_id: str = "a", **more: Any) -> Timer:
    """A timer that was cancelled before it was due."""
    await armed(store, timer_id, due="+3600000", **more)
    answer = await store.cancel(PREFIX, timer_id)
    assert answer.timer is not None
    return answer.timer


async def read(store: Store, timer_id: str = "a", prefix: str = PREFIX) -> Timer:
    """The timer as it is now."""
    (timer,) = await store.get([(prefix, timer_id)])
    assert timer is not None
    return timer


async def in_status(store: Store, status: Status, timer_id: str = "a") -> Timer:
    """A timer in the given status; a scheduled one is due in an hour."""
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
    """Waits until a key has expired; looking is what makes the server delete it."""

    async def gone() -> bool:
        return not await store.connections.commands.exists(key)

    await eventually(gone, f"the end of {key}")


async def lease_ended(store: Store, timer: Timer) -> None:
    """Waits until the timer's lease has run out: its key, and its end in the index. A server, the fake one above all,
    may read its clock anew between the two."""
    await key_gone(store, lease_key(timer))
    end_ms = await store.connections.commands.zscore("timers:{0}:leases", timer.key)

    async def passed() -> bool:
        return end_ms is None or await store.now_ms() > end_ms

    await eventually(passed, f"the end of the lease of {timer.key}")


async def put_in_place_of_lease(store: Store, timer: Timer, kind: str) -> None:
    """A stranger's key, a `string` or a `list`, without a TTL."""
    redis, key = store.connections.commands, lease_key(timer)
    await redis.delete(key)
    if kind == "string":
        await redis.set(key, b"\xff stranger")
    else:
        await redis.rpush(key, "stranger")


def lease_key(timer: Timer) -> str:
    return f"timers:{{0}}:lease:{timer.key}"


def trigger_key(timer: Timer) -> str:
    return f"{timer.prefix}:{{0}}:{timer.id}"


def bucket_of(member: str) -> str:
    """The hash that holds the record, by the protocol's rule and not by the script's."""
    return f"timers:{{0}}:rec:{hashlib.sha1(member.encode(), usedforsecurity=False).hexdigest()[:2]}"
