"""Permits: what a limited prefix may start in the whole fleet, by concurrency, by rate and in order."""

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest
import time_machine

from tests.conftest import SharedServers
from tests.store.acts import LEASE_MS, OTHER, POD, PREFIX, an_end, armed, arming, claim, settle
from tests.store.backends import Backend, open_store
from timers.core.policies import Limits, Rate
from timers.store.permits import Permits, Reservation
from timers.store.scripts import Call
from timers.store.servers.connections import Scripts
from timers.store.store import Store

TWO = Limits(concurrency=2)
THREE_AT_ONCE = Limits(rate=Rate(interval_us=100_000, burst=3))


async def reserve(
    permits: Permits, limits: Limits, most: int, *, pod: str = POD, lease_ms: int = LEASE_MS
) -> Reservation:
    return (await permits.reserve({PREFIX: (limits, most)}, pod=pod, lease_ms=lease_ms))[PREFIX]


async def test_no_more_are_reserved_than_may_run_in_the_fleet(store: Store) -> None:
    here, there = Permits(store), Permits(store)
    first = await reserve(here, TWO, 5)
    assert (first.count, first.wait_ms, len(set(first.permits))) == (2, 0, 2)
    assert (await reserve(there, TWO, 5, pod=OTHER)).count == 0
    await here.release(first.permits[:1])
    await here.release(first.permits[:1])
    assert (await reserve(there, TWO, 5, pod=OTHER)).count == 1


async def test_each_prefix_has_its_own_permits(store: Store) -> None:
    permits = Permits(store)
    assert (await reserve(permits, TWO, 5)).count == 2
    assert (await permits.reserve({"other": (TWO, 5)}, pod=POD, lease_ms=LEASE_MS))["other"].count == 2


async def test_unused_reservations_are_given_back(store: Store) -> None:
    permits = Permits(store)
    reserved = await reserve(permits, TWO, 2)
    await permits.give_back([(reserved, 1)])
    assert (await reserve(permits, TWO, 2)).count == 1


async def test_a_dead_pods_permits_end_with_its_lease(frozen: Store, clock: time_machine.Traveller) -> None:
    permits = Permits(frozen)
    assert (await reserve(permits, TWO, 2, lease_ms=1000)).count == 2
    clock.shift(0.999)
    assert (await reserve(permits, TWO, 2, pod=OTHER)).count == 0
    clock.shift(0.001)
    assert (await reserve(permits, TWO, 2, pod=OTHER)).count == 2


async def test_permits_that_are_kept_outlive_the_lease(frozen: Store, clock: time_machine.Traveller) -> None:
    permits = Permits(frozen)
    reserved = await reserve(permits, TWO, 2, lease_ms=1000)
    clock.shift(0.5)
    await permits.keep(reserved.permits[:1], 1000)
    clock.shift(0.9)
    assert (await reserve(permits, TWO, 2, pod=OTHER)).count == 1


async def test_a_continuing_run_gets_its_permit_back(store: Store) -> None:
    """As after an outage that outlasted the lease."""
    permits = Permits(store)
    reserved = await reserve(permits, TWO, 2)
    await permits.release(reserved.permits)
    await permits.keep(reserved.permits, LEASE_MS)
    assert (await reserve(permits, TWO, 2, pod=OTHER)).count == 0


async def test_a_permit_that_is_released_while_it_is_kept_does_not_come_back(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The heartbeat keeps permits from another thread. The run ends after it has looked."""
    permits, keeping, go_on = Permits(store), threading.Event(), threading.Event()
    reserved, order = await reserve(permits, TWO, 2), list[str]()
    run_all = store.run_all

    async def in_order(name: str, calls: Sequence[Call], via: Scripts | None = None) -> list[Any]:
        if name == "keep":
            keeping.set()
            go_on.wait()
        order.append(name)
        return [] if name == "keep" else await run_all(name, calls, via)

    monkeypatch.setattr(store, "run_all", in_order)
    kept = asyncio.create_task(asyncio.to_thread(asyncio.run, permits.keep(reserved.permits, LEASE_MS)))
    await asyncio.to_thread(keeping.wait)
    released = asyncio.create_task(permits.release(reserved.permits))
    await asyncio.sleep(0)
    go_on.set()
    await asyncio.gather(kept, released)
    assert order == ["keep", "release"]


async def test_nothing_remains_of_a_prefix_whose_pods_are_gone(frozen: Store, clock: time_machine.Traveller) -> None:
    both = Limits(concurrency=2, rate=Rate(interval_us=1000, burst=1))
    await reserve(Permits(frozen), both, 1, lease_ms=1000)
    assert len(await frozen.connections.commands.keys("timers:{limits:*")) == 2
    clock.shift(1.1)
    assert await frozen.connections.commands.keys("timers:{limits:*") == []


async def test_many_permits_are_kept_and_released_in_one_round_trip_each(real: Store) -> None:
    permits, limits = Permits(real), Limits(concurrency=1000)
    reserved = await reserve(permits, limits, 1000)
    other = (await permits.reserve({"other": (limits, 3)}, pod=POD, lease_ms=LEASE_MS))["other"]
    await permits.keep((*reserved.permits, *other.permits), LEASE_MS)
    await permits.release((*reserved.permits, *other.permits))
    assert (await reserve(permits, limits, 1000)).count == 1000


async def test_a_rate_lets_a_burst_through_and_says_how_long_to_wait(
    frozen: Store, clock: time_machine.Traveller
) -> None:
    permits = Permits(frozen)

    async def take() -> tuple[int, int]:
        reserved = await reserve(permits, THREE_AT_ONCE, 9)
        return reserved.count, reserved.wait_ms

    assert await take() == (3, 100)
    clock.shift(0.060)
    assert await take() == (0, 40)
    clock.shift(0.040)
    assert await take() == (1, 100)
    clock.shift(0.250)
    assert await take() == (2, 50)
    clock.shift(10)
    assert await take() == (3, 100)


@pytest.mark.parametrize("before", ["1/m", "1/h", "10/d"])
async def test_after_a_slower_rate_the_next_start_is_no_further_than_this_rate_puts_it(
    frozen: Store, clock: time_machine.Traveller, before: str
) -> None:
    permits = Permits(frozen)
    assert (await reserve(permits, Limits(rate=Rate.parse(before)), 1)).count == 1
    reserved = await reserve(permits, THREE_AT_ONCE, 1)
    assert reserved.count or reserved.wait_ms <= 100
    clock.shift(0.100)
    assert (await reserve(permits, THREE_AT_ONCE, 1)).count == 1


@pytest.mark.parametrize("used", [0, 1, 2])
async def test_starts_that_were_not_made_do_not_count_for_the_rate(
    frozen: Store, clock: time_machine.Traveller, used: int
) -> None:
    permits = Permits(frozen)
    reserved = await reserve(permits, THREE_AT_ONCE, 3)
    await permits.give_back([(reserved, used)])
    clock.shift(0.010)
    assert (await reserve(permits, THREE_AT_ONCE, 3)).count == 3 - used


async def test_the_stricter_limit_applies_and_nothing_else_is_spent(frozen: Store) -> None:
    permits = Permits(frozen)
    both = Limits(concurrency=2, rate=THREE_AT_ONCE.rate)
    reserved = await reserve(permits, both, 9)
    assert (reserved.count, reserved.wait_ms, len(reserved.permits)) == (2, 0, 2)
    assert (await reserve(permits, both, 9)).count == 0
    await permits.release(reserved.permits)
    assert (await reserve(permits, both, 9)).count == 1


async def test_the_earliest_over_all_shards_comes_next(servers: SharedServers, backend: Backend) -> None:
    async with open_store(servers, backend, shards=4) as store:
        permits, now_ms = Permits(store), await store.now_ms()
        assert await permits.next_shards([PREFIX]) == {PREFIX: None}
        ids = [f"n{number}" for number in range(12)]
        await store.arm([arming(ids[i], due=f"@{now_ms - 100 - i}") for i in range(12)])
        for timer_id in reversed(ids):
            shard = store.shard_of(PREFIX, timer_id)
            assert await permits.next_shards([PREFIX]) == {PREFIX: shard}
            (timer,) = await claim(store, 1, shard=shard)
            assert timer.id == timer_id
            assert await permits.next_shards([PREFIX]) == {PREFIX: None}
            assert await store.settle(shard, [an_end(timer)], pod=POD, retention_ms=0) == ["settled"]


async def test_a_run_without_a_permit_holds_up_a_queue_that_runs_one_at_a_time(store: Store) -> None:
    """It belongs to a dead or frozen pod, and is rescued first."""
    permits = Permits(store)
    await store.arm([arming("a"), arming("b")])
    (timer,) = await claim(store, 1)
    assert await permits.next_shards([PREFIX]) == {PREFIX: None}
    await settle(store, an_end(timer))
    assert await permits.next_shards([PREFIX]) == {PREFIX: 0}
    await armed(store, "c", due="+3600000")
