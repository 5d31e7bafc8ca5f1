"""Counts of timers that will soon be due and of those that fired, over shards and queues, within bounds."""

import random
from typing import Any

import pytest
import time_machine

from tests.conftest import SharedServers
from tests.store.acts import armed
from tests.store.backends import open_store
from timers.core.model import Status
from timers.store import keys
from timers.store.filters import Filter
from timers.store.queries import ended
from timers.store.starts import FAILED, add_starts, due_load, next_timers, past_starts, total
from timers.store.store import Arming, Store

HOUR = 3_600_000


async def test_each_hour_counts_what_is_due_in_it(store: Store) -> None:
    for timer_id, minutes in [("a", 10), ("b", 50), ("c", 70), ("d", 60 * 23 + 30), ("e", 60 * 24 + 10)]:
        await armed(store, timer_id, due=f"+{minutes * 60_000}")
    await armed(store, "other", due=f"+{70 * 60_000}", prefix="other")
    counts, is_whole = await due_load(store, step_ms=HOUR, steps=24)
    assert (counts[0], counts[1], counts[23], sum(counts)) == (2, 2, 1, 5)
    assert is_whole
    seen, _ = await due_load(store, step_ms=HOUR, steps=24, wanted=Filter(prefix="other"))
    assert sum(seen) == 1


async def test_a_queue_with_many_timers_is_counted_like_one_with_few(store: Store) -> None:
    rng = random.Random(1)
    minutes = [rng.randrange(1, 24 * 60 - 1) for _ in range(300)]
    await store.arm([Arming("many", str(i), f"+{minute * 60_000 + 30_000}", {}) for i, minute in enumerate(minutes)])
    counts, _ = await due_load(store, step_ms=HOUR, steps=24)
    assert list(counts) == [sum(minute // 60 == hour for minute in minutes) for hour in range(24)]


async def test_the_next_are_those_due_first_over_all_queues_and_shards(servers: SharedServers) -> None:
    async with open_store(servers, "redis", shards=4) as store:
        order = [Arming(f"p{i % 5}", f"t{i}", f"+{(i * 7 % 40 + 1) * 60_000}", {}) for i in range(40)]
        await store.arm(order)
        found = await next_timers(store, 8)
        assert [timer.id for timer in found] == [a.id for a in sorted(order, key=lambda a: int(a.due[1:]))[:8]]
        only = await next_timers(store, 8, Filter(prefix="p3"))
        assert {timer.prefix for timer in only} == {"p3"}


async def test_starts_add_up_over_pods_and_expire_later(frozen: Store, clock: time_machine.Traveller) -> None:
    await add_starts(frozen, {1: 2, 9: 1})
    await add_starts(frozen, {9: 4})
    clock.shift(60)
    await add_starts(frozen, {3: 1})
    fired = await past_starts(frozen)
    assert (len(fired["hour"]), len(fired["day"])) == (60, 48)
    assert list(fired["hour"].values())[-2:] == [{1: 2, 9: 5}, {3: 1}]
    assert total(fired["day"]) == {1: 2, 9: 5, 3: 1}
    clock.shift(3600)
    fired = await past_starts(frozen)
    assert (total(fired["hour"]), total(fired["day"]).total()) == ({}, 8)
    await add_starts(frozen, {2: 1})
    assert await frozen.connections.commands.hlen("timers:{fired}:hour") == 2


async def test_a_full_ring_is_a_few_kilobytes(frozen: Store, clock: time_machine.Traveller) -> None:
    for _ in range(49):
        await add_starts(frozen, dict.fromkeys(range(10, 30), 999))
        clock.shift(1800)
    size = 0
    for name in ("hour", "day"):
        held: dict[Any, Any] = await frozen.connections.commands.hgetall(f"timers:{{fired}}:{name}")
        assert len(held) <= 60
        size += sum(len(field) + len(value) for field, value in held.items())
    assert size < 16_000


@pytest.mark.parametrize("held", [b"", b"nonsense", b"12 4", b"29916666 9:x"])
async def test_a_slot_that_cannot_be_read_counts_as_empty(frozen: Store, held: bytes) -> None:
    await frozen.connections.commands.hset("timers:{fired}:hour", "26", held)
    assert total((await past_starts(frozen))["hour"]) == {}
    await add_starts(frozen, {1: 1})
    assert total((await past_starts(frozen))["hour"]) == {1: 1}


async def test_a_foreign_value_in_place_of_a_ring_is_moved_aside(real: Store) -> None:
    redis = real.connections.commands
    await redis.set("timers:{fired}:hour", "foreign")
    await past_starts(real)
    await add_starts(real, {1: 1})
    assert total((await past_starts(real))["hour"]) == {1: 1}
    assert await redis.delete("timers:{fired}:displaced:timers:{fired}:hour") == 1


async def test_ends_and_failures_of_prefixes_are_counted_by_time_over_all_shards(servers: SharedServers) -> None:
    async with open_store(servers, "redis", shards=4) as store:
        redis, now_ms = store.connections.commands, await store.now_ms()
        indexes = [(0, "finished:c:p", 0), (3, "finished:c:p", 60_000), (1, "retrying:p", 1)]
        for shard, index, ms in indexes:
            await redis.zadd(f"timers:{{{shard}}}:{index}", {f"t{shard}": now_ms - ms, "old": now_ms - 3 * HOUR})
        wanted = {"p": [Status.COMPLETED, Status.RETRYING], "none": ()}
        found = await ended(store, wanted, step_ms=HOUR, steps=2)
        assert {status: sum(numbers) for status, numbers in found["p"].items()} == {
            Status.COMPLETED: 2,
            Status.RETRYING: 1,
        }
        assert found["p"][Status.COMPLETED][-1] >= 1
        assert found["none"] == {}
        for shard, index, _ in indexes:  # without a record
            await redis.delete(f"timers:{{{shard}}}:{index}")


async def test_failed_attempts_have_rings_of_their_own(frozen: Store) -> None:
    await add_starts(frozen, {1: 2})
    await add_starts(frozen, {FAILED: 3}, keys.FAILED_ROOT)
    rings = await past_starts(frozen), await past_starts(frozen, keys.FAILED_ROOT)
    assert [dict(total(ring["day"])) for ring in rings] == [{1: 2}, {FAILED: 3}]
