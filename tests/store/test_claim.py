"""claim: never early, earliest first, one winner, and what it changes."""

import pytest
import time_machine

from tests.conservation import state_of
from tests.store.acts import (
    LEASE_MS,
    OTHER,
    POD,
    PREFIX,
    armed,
    arming,
    claim,
    in_status,
    lease_key,
    put_in_place_of_lease,
    read,
    running,
    trigger_key,
)
from tests.waiting import eventually
from timers.core.model import Status, Timer
from timers.store.store import Store


async def test_a_claim_makes_the_timer_run(store: Store) -> None:
    await armed(store, spec={"payload": 7})
    (timer,) = await claim(store)
    assert (timer.status, timer.attempt, timer.failures, timer.version, timer.payload) == (Status.RUNNING, 1, 0, 2, 7)
    assert timer.lease is not None
    assert timer.lease.pod == POD
    entry = timer.history[0]
    assert (entry.status, entry.attempt, entry.pod, entry.note) == (Status.RUNNING, 1, POD, "sweep")
    assert entry.lateness_ms == entry.at_ms - timer.due_ms >= 0
    state = await state_of(store)
    assert (state.due, state.heads, state.triggers) == ({}, {}, set())
    assert state.held == {(PREFIX, "a"): f"{POD} {timer.token}"}
    assert state.leases.keys() == {(PREFIX, "a")}
    assert state.counts == {(Status.RUNNING, PREFIX): 1}


async def test_the_lease_ends_after_its_length(frozen: Store) -> None:
    timer = await running(frozen)
    assert await frozen.connections.commands.pttl(lease_key(timer)) == LEASE_MS
    assert (await state_of(frozen)).leases == {(PREFIX, "a"): await frozen.now_ms() + LEASE_MS}


async def test_due_now_is_due(frozen: Store) -> None:
    await armed(frozen, due=f"@{await frozen.now_ms()}")
    assert len(await claim(frozen)) == 1


async def test_a_timer_due_in_the_next_millisecond_is_not_due(frozen: Store, clock: time_machine.Traveller) -> None:
    await armed(frozen, due="+1")
    assert await claim(frozen) == []
    clock.shift(0.000_9)
    assert await claim(frozen) == []
    clock.shift(0.000_2)
    assert len(await claim(frozen)) == 1


async def test_the_last_of_many_in_one_millisecond_is_due_with_the_first(
    frozen: Store, clock: time_machine.Traveller
) -> None:
    """Fractions of the score keep their order, and must not make them later."""
    await frozen.arm([arming(f"{i:04}", due="+1") for i in range(1100)])
    assert await claim(frozen, 1100) == []
    clock.shift(0.001)
    assert len(await claim(frozen, 1100)) == 1100


async def test_no_claim_comes_before_the_due_time(real: Store) -> None:
    due_ms = await real.now_ms() + 40
    await real.arm([arming(str(i), due=f"@{due_ms + i}") for i in range(10)])
    found: list[Timer] = []

    async def all_claimed() -> bool:
        found.extend(await claim(real, 3))
        return len(found) == 10

    await eventually(all_claimed, "the claim of all ten")
    assert [timer.id for timer in found] == [str(i) for i in range(10)]
    assert all(timer.history[0].at_ms >= timer.due_ms for timer in found)


async def test_a_future_timer_behind_a_due_one_stays(store: Store) -> None:
    await armed(store, "due")
    future = await armed(store, "future", due="+3600000")
    assert [timer.id for timer in await claim(store)] == ["due"]
    state = await state_of(store)
    assert state.heads == {PREFIX: future.due_ms}
    assert state.triggers == {(PREFIX, "future")}


async def test_the_earliest_due_comes_first(store: Store) -> None:
    now_ms = await store.now_ms()
    for timer_id, ago_ms in (("c", 1), ("a", 300), ("d", 0), ("b", 20)):
        await armed(store, timer_id, due=f"@{now_ms - ago_ms}")
    assert [timer.id for timer in await claim(store, 3)] == ["a", "b", "c"]
    assert [timer.id for timer in await claim(store, 3)] == ["d"]


async def test_no_more_than_wanted_are_taken_and_more_is_said(store: Store) -> None:
    await store.arm([arming(str(i)) for i in range(5)])
    found = await store.claim(0, [(PREFIX, 2)], pod=POD, lease_ms=LEASE_MS, cause="event")
    assert (len(found.timers), found.more) == (2, {PREFIX})
    found = await store.claim(0, [(PREFIX, 4)], pod=POD, lease_ms=LEASE_MS, cause="event")
    assert (len(found.timers), found.more) == (3, set())


async def test_several_queues_in_one_claim(store: Store) -> None:
    await store.arm([arming(str(i), prefix=prefix) for prefix in ("x", "y", "z") for i in range(3)])
    found = await store.claim(0, [("x", 2), ("y", 5), ("none", 5)], pod=POD, lease_ms=LEASE_MS, cause="event")
    assert [timer.key for timer in found.timers] == ["x:0", "x:1", "y:0", "y:1", "y:2"]
    assert found.more == {"x"}
    assert set((await state_of(store)).heads) == {"x", "z"}


async def test_a_timer_is_claimed_by_one_pod_only(store: Store) -> None:
    await armed(store)
    assert len(await claim(store, pod=POD)) == 1
    assert await claim(store, pod=OTHER) == []


async def test_a_timer_with_a_lease_is_left_until_the_lease_ends(store: Store) -> None:
    """A lease of any pod means that a run may be in progress."""
    timer = await armed(store)
    await store.connections.commands.set(lease_key(timer), "foreign 1", px=3_600_000)
    await armed(store, "b")
    assert [claimed.id for claimed in await claim(store)] == ["b"]
    state = await state_of(store)
    assert (set(state.due), state.counts[Status.SCHEDULED, PREFIX]) == ({(PREFIX, "a")}, 1)
    await store.connections.commands.delete(lease_key(timer))
    assert [claimed.id for claimed in await claim(store)] == ["a"]


@pytest.mark.parametrize("kind", ["string", "string with a TTL", "list"])
async def test_a_foreign_key_in_place_of_a_lease_holds_up_no_timer(store: Store, kind: str) -> None:
    timer = await armed(store)
    await put_in_place_of_lease(store, timer, kind)
    (claimed,) = await claim(store)
    assert (await state_of(store)).held == {(PREFIX, "a"): f"{POD} {claimed.token}"}
    assert 0 < await store.connections.commands.pttl(lease_key(timer)) <= LEASE_MS


@pytest.mark.parametrize("status", [Status.RUNNING, Status.COMPLETED, Status.CANCELLED])
async def test_an_entry_without_a_scheduled_timer_is_dropped(store: Store, status: Status) -> None:
    """An interrupted script left it, or another program."""
    timer = await in_status(store, status)
    await store.connections.commands.zadd(f"timers:{{0}}:due:{PREFIX}", {"a": 1000})
    await armed(store, "b")
    assert [claimed.id for claimed in await claim(store)] == ["b"]
    after = await read(store)
    assert (after.status, after.version, after.token) == (timer.status, timer.version, timer.token)
    assert (await state_of(store)).due == {}


async def test_a_foreign_set_over_a_trigger_loses_nothing(real: Store) -> None:
    timer = await armed(real, due="+1")
    await real.connections.commands.set(trigger_key(timer), "mine now")

    async def touched() -> bool:
        return PREFIX in (await real.touch(0)).due

    await eventually(touched, "the queue being due")
    assert [claimed.id for claimed in await claim(real)] == ["a"]
    assert not await real.connections.commands.exists(trigger_key(timer))


async def test_a_foreign_delete_of_a_trigger_loses_nothing(real: Store) -> None:
    timer = await armed(real, due="+1")
    await real.connections.commands.delete(trigger_key(timer))

    async def claimed() -> bool:
        return bool((await real.touch(0)).due) and bool(await claim(real))

    await eventually(claimed, "touch and claim finding the timer")


async def test_a_paused_queue_is_not_claimed(store: Store) -> None:
    await armed(store)
    assert await store.pause(PREFIX, paused=True)
    assert not await store.pause(PREFIX, paused=True)
    assert await claim(store) == []
    assert await store.pause(PREFIX, paused=False)
    assert not await store.pause(PREFIX, paused=False)
    assert len(await claim(store)) == 1


async def test_behind_a_backlog_half_a_batch_goes_to_the_punctual(frozen: Store, clock: time_machine.Traveller) -> None:
    await frozen.arm([arming(f"late-{i}") for i in range(20)])
    clock.shift(60)
    await frozen.arm([arming(f"new-{i}") for i in range(20)])
    found = [timer.id for timer in await claim(frozen, 6)]
    assert sorted(found) == ["late-0", "late-1", "late-2", "new-0", "new-1", "new-2"]


async def test_a_queue_that_runs_one_at_a_time_keeps_its_order_behind_a_backlog(
    frozen: Store, clock: time_machine.Traveller
) -> None:
    await frozen.arm([arming("late-0"), arming("late-1")])
    clock.shift(60)
    await armed(frozen, "new")
    found = await frozen.claim(0, [(PREFIX, 2)], pod=POD, lease_ms=LEASE_MS, cause="event", in_order=True)
    assert [timer.id for timer in found.timers] == ["late-0", "late-1"]


async def test_a_claim_takes_no_more_large_records_than_the_server_bears(store: Store) -> None:
    """Two hundred payloads of 64 KiB would hold it up for long. What is left is named and comes next."""
    await store.arm([arming(f"{i:02}", spec={"payload": "x" * 60_000}) for i in range(40)])

    async def take() -> tuple[list[str], set[str]]:
        claimed = await store.claim(0, [(PREFIX, 30), ("other", 5)], pod=POD, lease_ms=LEASE_MS, cause="sweep")
        return [timer.id for timer in claimed.timers], set(claimed.more)

    await armed(store, "small", prefix="other")
    first, more = await take()
    assert first == [f"{i:02}" for i in range(28)]
    assert more == {PREFIX, "other"}
    rest, more = await take()
    assert rest == [*(f"{i:02}" for i in range(28, 40)), "small"]
    assert not more
