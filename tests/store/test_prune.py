"""prune: it removes finished records after their retention, in bounded batches, and nothing else."""

from typing import Any

import pytest
import time_machine

from tests.conservation import state_of
from tests.store.acts import DAY_MS, PREFIX, armed, cancelled, finished, in_status, prune, read, running
from timers.core.model import Status
from timers.store import upkeep
from timers.store.store import Store

FINISHED = [Status.COMPLETED, Status.FAILED, Status.UNHANDLED, Status.CANCELLED]


@pytest.mark.parametrize("status", FINISHED)
async def test_a_record_stays_for_its_retention_and_then_goes(
    frozen: Store, clock: time_machine.Traveller, status: Status
) -> None:
    await in_status(frozen, status)
    clock.shift(DAY_MS / 1000)
    assert await prune(frozen, retention_ms=DAY_MS, most=10) == 0
    clock.shift(0.001)
    assert await prune(frozen, retention_ms=DAY_MS, most=10) == 1
    assert await frozen.get([(PREFIX, "a")]) == [None]
    state = await state_of(frozen)
    assert (state.finished, state.counts) == ({}, {})


async def test_unfinished_records_stay_for_ever(frozen: Store, clock: time_machine.Traveller) -> None:
    await running(frozen, "runs")
    await armed(frozen, "waits", due="+1")
    clock.shift(1000 * DAY_MS)
    assert await prune(frozen, retention_ms=0, most=10) == 0


async def test_retention_counts_from_the_newest_end(frozen: Store, clock: time_machine.Traveller) -> None:
    await finished(frozen, status=Status.FAILED)
    clock.shift(3600)
    await frozen.rearm(PREFIX, "a", cause="retried")
    clock.shift(3600)
    await frozen.cancel(PREFIX, "a")
    assert await prune(frozen, retention_ms=1000, most=10) == 0
    clock.shift(1.001)
    assert await prune(frozen, retention_ms=1000, most=10) == 1


async def test_a_batch_is_bounded_and_takes_the_oldest_of_a_queue(frozen: Store, clock: time_machine.Traveller) -> None:
    for number in range(5):
        await cancelled(frozen, str(number))
        clock.shift(1)
    assert await prune(frozen, retention_ms=0, most=2) == 2
    assert [(await frozen.get([(PREFIX, str(number))]))[0] is None for number in range(5)] == [
        True, True, False, False, False,
    ]  # fmt: skip
    assert await prune(frozen, retention_ms=0, most=2) == 2
    assert await prune(frozen, retention_ms=0, most=2) == 1
    assert await prune(frozen, retention_ms=0, most=2) == 0


async def test_all_queues_and_statuses_share_a_batch(store: Store) -> None:
    for prefix in ("x", "y"):
        for timer_id, status in (("1", Status.COMPLETED), ("2", Status.FAILED)):
            await finished(store, timer_id, status, prefix=prefix)
    assert await prune(store, retention_ms=-1, most=3) == 3
    assert await prune(store, retention_ms=-1, most=3) == 1


async def test_a_timer_that_was_armed_again_is_not_removed(store: Store) -> None:
    await finished(store)
    await armed(store, if_exists="replace", due="+3600000")
    assert await prune(store, retention_ms=-1, most=10) == 0
    assert (await read(store)).status is Status.SCHEDULED


@pytest.mark.parametrize("status", [Status.FAILED, Status.UNHANDLED])
async def test_a_failed_or_unhandled_timer_does_not_go_with_the_completed_ones(
    frozen: Store, clock: time_machine.Traveller, status: Status
) -> None:
    await in_status(frozen, status)
    await in_status(frozen, Status.COMPLETED, "done")
    clock.shift(1000 * DAY_MS / 1000)
    pruned = await upkeep.prune(frozen, 0, retention_ms=DAY_MS, retention_failed_ms=None, most=10)
    assert (pruned.number, pruned.failed) == (1, [])
    assert (await read(frozen)).status is status
    assert await prune(frozen, retention_ms=DAY_MS, retention_failed_ms=1001 * DAY_MS, most=10) == 0


async def test_what_goes_of_failed_and_unhandled_timers_is_named(frozen: Store, clock: time_machine.Traveller) -> None:
    for number, status in enumerate((Status.FAILED, Status.FAILED, Status.UNHANDLED, Status.COMPLETED), 1):
        await finished(frozen, str(number), status)
        clock.shift(1)
    pruned = await upkeep.prune(frozen, 0, retention_ms=0, retention_failed_ms=0, most=10)
    assert pruned.number == 4
    assert sorted(pruned.failed) == [(PREFIX, Status.FAILED, 2, "1"), (PREFIX, Status.UNHANDLED, 1, "3")]


async def test_failed_calls_of_the_service_go_with_the_completed_timers_of_callers(
    frozen: Store, clock: time_machine.Traveller
) -> None:
    """A dead receiver would otherwise leave them behind without end."""
    await finished(frozen, status=Status.FAILED, prefix="timers.hook-1")
    clock.shift(DAY_MS / 1000 + 1)
    pruned = await upkeep.prune(frozen, 0, retention_ms=DAY_MS, retention_failed_ms=None, most=10)
    assert pruned.failed == [("timers.hook-1", Status.FAILED, 1, "a")]


PREFIXES = 1500
"""Enough for a hash table, of which a scan answers a part."""


async def test_among_many_prefixes_no_call_looks_at_all_of_them(real: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "COUNTS", 100)
    redis: Any = real.connections.commands
    await redis.hset("timers:{0}:counts", mapping={f"c p{number}": 1 for number in range(PREFIXES)})
    await redis.zadd("timers:{0}:finished:c:p7", {"a": 1})
    cursor, calls, removed, is_last = "0", 0, 0, False
    while not is_last:
        await redis.config_resetstat()
        pruned = await upkeep.prune(real, 0, retention_ms=0, retention_failed_ms=None, most=10, cursor=cursor)
        looked = (await redis.info("commandstats")).get("cmdstat_zrangebyscore", {}).get("calls", 0)
        assert looked <= 200
        calls, removed, cursor, is_last = calls + 1, removed + pruned.number, pruned.cursor, pruned.is_last
    assert removed == 1
    assert calls > 5
    await redis.delete("timers:{0}:counts")


async def test_large_records_are_removed_in_several_calls(frozen: Store, clock: time_machine.Traveller) -> None:
    """Five hundred payloads of 64 KiB in one script would hold the server up for long."""
    for number in range(30):
        await cancelled(frozen, str(number), spec={"payload": "x" * 60_000})
    clock.shift(1)
    removed = list[upkeep.Pruned]()
    while not removed or not removed[-1].is_last:
        removed.append(await upkeep.prune(frozen, 0, retention_ms=0, retention_failed_ms=0, most=500))
    assert [each.number for each in removed] == [17, 13]
