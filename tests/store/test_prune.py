"""prune: it removes finished records after their retention, in bounded batches, and nothing else."""

import pytest
import time_machine

from tests.conservation import state_of
from tests.store.acts import DAY_MS, PREFIX, armed, cancelled, finished, in_status, read, running
from timers.core.model import Status
from timers.store.store import Store

FINISHED = [Status.COMPLETED, Status.FAILED, Status.UNHANDLED, Status.CANCELLED]


@pytest.mark.parametrize("status", FINISHED)
async def test_a_record_stays_for_its_retention_and_then_goes(
    frozen: Store, clock: time_machine.Traveller, status: Status
) -> None:
    await in_status(frozen, status)
    clock.shift(DAY_MS / 1000)
    assert await frozen.prune(0, retention_ms=DAY_MS, most=10) == 0
    clock.shift(0.001)
    assert await frozen.prune(0, retention_ms=DAY_MS, most=10) == 1
    assert await frozen.get([(PREFIX, "a")]) == [None]
    state = await state_of(frozen)
    assert (state.finished, state.counts) == ({}, {})


async def test_unfinished_records_stay_for_ever(frozen: Store, clock: time_machine.Traveller) -> None:
    await running(frozen, "runs")
    await armed(frozen, "waits", due="+1")
    clock.shift(1000 * DAY_MS)
    assert await frozen.prune(0, retention_ms=0, most=10) == 0


async def test_retention_counts_from_the_newest_end(frozen: Store, clock: time_machine.Traveller) -> None:
    await finished(frozen, status=Status.FAILED)
    clock.shift(3600)
    await frozen.rearm(PREFIX, "a", cause="retried")
    clock.shift(3600)
    await frozen.cancel(PREFIX, "a")
    assert await frozen.prune(0, retention_ms=1000, most=10) == 0
    clock.shift(1.001)
    assert await frozen.prune(0, retention_ms=1000, most=10) == 1


async def test_a_batch_is_bounded_and_takes_the_oldest_of_a_queue(frozen: Store, clock: time_machine.Traveller) -> None:
    for number in range(5):
        await cancelled(frozen, str(number))
        clock.shift(1)
    assert await frozen.prune(0, retention_ms=0, most=2) == 2
    assert [(await frozen.get([(PREFIX, str(number))]))[0] is None for number in range(5)] == [
        True, True, False, False, False,
    ]  # fmt: skip
    assert await frozen.prune(0, retention_ms=0, most=2) == 2
    assert await frozen.prune(0, retention_ms=0, most=2) == 1
    assert await frozen.prune(0, retention_ms=0, most=2) == 0


async def test_all_queues_and_statuses_share_a_batch(store: Store) -> None:
    for prefix in ("x", "y"):
        for timer_id, status in (("1", Status.COMPLETED), ("2", Status.FAILED)):
            await finished(store, timer_id, status, prefix=prefix)
    assert await store.prune(0, retention_ms=-1, most=3) == 3
    assert await store.prune(0, retention_ms=-1, most=3) == 1


async def test_a_timer_that_was_armed_again_is_not_removed(store: Store) -> None:
    await finished(store)
    await armed(store, if_exists="replace", due="+3600000")
    assert await store.prune(0, retention_ms=-1, most=10) == 0
    assert (await read(store)).status is Status.SCHEDULED
