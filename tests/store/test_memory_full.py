"""maxmemory with noeviction: new timers are refused entirely, and everything that ends or moves a timer still works."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.conservation import conserved, state_of
from tests.store.acts import (
    LEASE_MS,
    OTHER,
    POD,
    PREFIX,
    an_end,
    armed,
    arming,
    bucket_of,
    claim,
    finished,
    lease_ended,
    prune,
    running,
    settle,
)
from tests.store.test_bare import adopt, adopted_and_expired, resolve
from tests.store.test_bare import put as put_bare
from timers.core.model import Status
from timers.doctor import checks as checkup
from timers.errors import Full
from timers.store import codec, notifications
from timers.store.membership import Member, Membership
from timers.store.restoring import Restored, restore
from timers.store.store import Store


@asynccontextmanager
async def full(store: Store) -> AsyncIterator[None]:
    """Keeps the server at its memory limit."""
    redis: Any = store.connections.commands
    await redis.config_set("maxmemory", 1)
    try:
        yield
    finally:
        await redis.config_set("maxmemory", 0)


async def test_a_new_timer_is_refused_whole(real: Store) -> None:
    await armed(real, "there", due="+3600000")
    before = await state_of(real)
    async with full(real):
        with pytest.raises(Full, match="maxmemory"):
            await armed(real, "new")
        with pytest.raises(Full, match="maxmemory"):
            await real.arm([arming("there", if_exists="replace"), arming("new")])
    after = await state_of(real)
    after.now_ms = before.now_ms
    assert after == before


async def test_nothing_is_put_back_out_of_a_copy(real: Store) -> None:
    record = codec.HEAD.pack(b"2 ", b"s", 1, 0, 0, 1, 0, 1000, 2000) + b"{}\n"
    async with full(real):
        with pytest.raises(Full, match="maxmemory"):
            await restore(real, [Restored(PREFIX, "a", record)])
    assert await restore(real, [Restored(PREFIX, "a", record)]) == ["restored"]


async def test_the_canary_is_armed_and_the_state_is_reported(real: Store) -> None:
    redis = real.connections.commands
    assert not await checkup.is_full(redis)
    async with full(real):
        assert await checkup.is_full(redis)
        key = await notifications.set_canary(redis, f"{{0}}{POD}", 60_000)
        assert await notifications.touch_canary(redis, key)
    await redis.delete(key)


async def test_existing_timers_can_be_read_at_maxmemory(real: Store) -> None:
    await armed(real, due="+3600000")
    async with full(real):
        assert (await real.get([(PREFIX, "a")]))[0] is not None
        assert (await real.touch(0)).next_ms is not None


async def test_due_timers_run_and_end(real: Store) -> None:
    await real.arm([arming(timer_id) for timer_id in "abc"])
    async with full(real):
        assert (await real.touch(0)).due.keys() == {PREFIX}
        a, b, c = await claim(real)
        assert await real.extend(0, [a, b, c], pod=POD, lease_ms=LEASE_MS) == []
        ends = [an_end(a), an_end(b, Status.FAILED), an_end(c, Status.SCHEDULED, due_ms=c.due_ms)]
        assert await settle(real, *ends) == ["settled"] * 3
        (c,) = await claim(real)
        assert await settle(real, an_end(c), retention_ms=0) == ["settled"]
        await conserved(real)


async def test_a_lease_that_expired_meanwhile_is_taken_again(real: Store) -> None:
    timer = await running(real, lease_ms=1)
    await lease_ended(real, timer)
    async with full(real):
        assert await real.extend(0, [timer], pod=POD, lease_ms=LEASE_MS) == []
    assert (await state_of(real)).held.keys() == {(PREFIX, "a")}


async def test_orphans_are_rescued(real: Store) -> None:
    await lease_ended(real, await running(real, lease_ms=1))
    async with full(real):
        assert (await real.orphans(0))[0] == [(PREFIX, "a")]
        found = await real.rescue(0, [(PREFIX, "a")], pod=OTHER, lease_ms=LEASE_MS)
        assert await settle(real, *map(an_end, found.timers), pod=OTHER) == ["settled"]


async def test_orphans_that_no_pod_serves_end_unhandled(real: Store) -> None:
    await lease_ended(real, await running(real, lease_ms=1))
    before_ms = await real.now_ms() + 1
    async with full(real):
        assert await real.abandon(0, PREFIX, ["a"], before_ms=before_ms, most=10, pod=OTHER) == ["a"]


async def test_timers_can_be_cancelled_moved_purged_and_expelled(real: Store) -> None:
    await real.arm([arming(timer_id, due="+3600000") for timer_id in ("a", "b", "c")])
    await finished(real, "old", Status.FAILED)
    async with full(real):
        assert (await real.cancel(PREFIX, "a")).code == "cancelled"
        assert (await real.cancel(PREFIX, "b", purge=True)).code == "purged"
        assert (await real.reschedule(PREFIX, "c", due="+7200000")).code == "changed"
        assert (await real.rearm(PREFIX, "old", cause="-")).code == "changed"
        assert await prune(real, retention_ms=-1, most=10) == 1


async def test_pods_still_hear_of_each_other(real: Store) -> None:
    first, second = Membership(real), Membership(real)
    for membership, pod in ((first, "a"), (second, "b")):
        await membership.beat(Member(pod))
    async with full(real):
        await second.beat(Member("b", running=1))
        assert {member.pod: member.running for member in (await first.read()).members} == {"a": 0, "b": 1}
        await second.leave("b")
        assert [member.pod for member in (await first.beat(Member("a"))).members] == ["a"]


async def test_a_timer_that_cannot_be_read_does_not_stop_the_others(real: Store) -> None:
    await real.arm([arming("bad"), arming("good")])
    await real.connections.commands.hset(bucket_of(f"{PREFIX}:bad"), f"{PREFIX}:bad", b"garbage")
    async with full(real):
        found = await real.claim(0, [(PREFIX, 5)], pod=POD, lease_ms=LEASE_MS, cause="event")
    assert [timer.id for timer in found.timers] == ["good"]


async def test_an_adopted_timer_becomes_due(real: Store) -> None:
    await adopted_and_expired(real)
    async with full(real):
        assert await resolve(real, "expired") == "due"
        assert len(await claim(real)) == 1


async def test_no_key_is_adopted(real: Store) -> None:
    await put_bare(real)
    async with full(real):
        with pytest.raises(Full):
            await adopt(real)
