"""extend and rescue: who holds a run, for how long, and who takes it over."""

from collections import Counter

import pytest
import time_machine

from tests.conservation import state_of
from tests.store.acts import (
    LEASE_MS,
    OTHER,
    POD,
    PREFIX,
    an_end,
    armed,
    arming,
    claim,
    in_status,
    lease_ended,
    lease_key,
    put_in_place_of_lease,
    read,
    running,
    settle,
)
from timers.core.model import Status, Timer
from timers.store.store import Store

A = (PREFIX, "a")


async def extend(store: Store, *timers: Timer, pod: str = POD, lease_ms: int = LEASE_MS) -> list[Timer]:
    return await store.extend(0, timers, pod=pod, lease_ms=lease_ms)


async def abandon(store: Store, *runs: str, before_ms: int | None = None) -> list[str]:
    before_ms = await store.now_ms() + 1 if before_ms is None else before_ms
    return await store.abandon(0, PREFIX, runs, before_ms=before_ms, most=10, pod=OTHER)


async def rescue(store: Store, *timer_ids: str, pod: str = OTHER, lease_ms: int = LEASE_MS) -> list[Timer]:
    found = await store.rescue(0, [(PREFIX, timer_id) for timer_id in timer_ids], pod=pod, lease_ms=lease_ms)
    return found.timers


async def test_a_lease_is_extended_from_now(frozen: Store, clock: time_machine.Traveller) -> None:
    timer = await running(frozen)
    clock.shift(20)
    assert await extend(frozen, timer) == []
    assert await frozen.connections.commands.pttl(lease_key(timer)) == LEASE_MS
    assert (await state_of(frozen)).leases == {A: await frozen.now_ms() + LEASE_MS}


async def test_extending_is_no_change_of_the_timer(store: Store) -> None:
    timer = await running(store)
    await extend(store, timer)
    after = await read(store)
    assert (after.version, after.token, after.attempt) == (timer.version, timer.token, timer.attempt)


async def test_an_expired_lease_that_nobody_took_is_taken_again(store: Store) -> None:
    timer = await running(store, lease_ms=1)
    await lease_ended(store, timer)
    assert await extend(store, timer) == []
    assert (await state_of(store)).held == {A: f"{POD} {timer.token}"}
    assert await rescue(store, "a") == []


async def test_a_lease_under_an_old_token_is_lost(store: Store) -> None:
    late = await running(store, lease_ms=1)
    await lease_ended(store, late)
    (rescued,) = await rescue(store, "a")
    assert await extend(store, late) == [late]
    assert (await state_of(store)).held == {A: f"{OTHER} {rescued.token}"}
    assert await extend(store, rescued, pod=OTHER) == []


async def test_the_lease_of_an_ended_run_is_lost_and_does_not_come_back(store: Store) -> None:
    timer = await running(store)
    await settle(store, an_end(timer))
    assert await extend(store, timer) == [timer]
    assert (await state_of(store)).held == {}


async def test_the_lease_of_a_removed_timer_is_lost(store: Store) -> None:
    timer = await running(store)
    await settle(store, an_end(timer), retention_ms=0)
    assert await extend(store, timer) == [timer]


async def test_lost_leases_of_a_batch_are_named(store: Store) -> None:
    await store.arm([arming(timer_id) for timer_id in "abc"])
    a, b, c = await claim(store)
    await settle(store, an_end(b))
    assert await extend(store, a, b, c) == [b]


async def test_a_rescue_counts_as_claim_and_as_failure(store: Store) -> None:
    lost = await running(store, lease_ms=1, spec={"payload": 1})
    await lease_ended(store, lost)
    (timer,) = await rescue(store, "a")
    assert (timer.status, timer.attempt, timer.failures, timer.version) == (Status.RUNNING, 2, 1, lost.version + 1)
    assert timer.token > lost.token
    assert timer.spec == {"payload": 1}
    entry = timer.history[0]
    assert (entry.status, entry.attempt, entry.pod, entry.note) == (Status.RUNNING, 2, OTHER, "rescue")
    state = await state_of(store)
    assert state.held == {A: f"{OTHER} {timer.token}"}
    assert state.counts == {(Status.RUNNING, PREFIX): 1}


async def test_a_run_that_was_lost_and_that_nobody_serves_ends_as_unhandled(store: Store) -> None:
    """As at a rescue, there is a new token, which fences the old pod, and one more failure, but no attempt."""
    lost = await running(store, lease_ms=1, spec={"payload": 1})
    await lease_ended(store, lost)
    assert await abandon(store, "a") == ["a"]
    timer = await read(store)
    assert (timer.status, timer.attempt, timer.failures, timer.version) == (Status.UNHANDLED, 1, 1, lost.version + 1)
    assert timer.token > lost.token
    assert timer.lease is None
    entry = timer.history[0]
    assert (entry.status, entry.attempt, entry.pod) == (Status.UNHANDLED, 1, OTHER)
    assert entry.note == "its pod died or lost the lease, and no live pod serves the prefix"
    state = await state_of(store)
    assert (state.held, state.leases, state.due) == ({}, {}, {})
    assert state.finished == {(Status.UNHANDLED, A): timer.updated_ms}
    assert state.counts == {(Status.UNHANDLED, PREFIX): 1}
    assert await abandon(store, "a") == []
    assert await extend(store, lost) == [lost]
    assert await settle(store, an_end(lost)) == ["fenced"]
    assert await read(store) == timer
    assert (await store.rearm(PREFIX, "a", cause="again")).code == "changed"
    (again,) = await claim(store)
    assert (again.attempt, again.failures, again.spec) == (2, 0, {"payload": 1})
    assert again.token > timer.token


async def test_a_run_is_left_alone_that_is_leased_of_another_queue_paused_or_lost_since(store: Store) -> None:
    leased = await running(store, "leased")
    others = await running(store, "x", prefix="others", lease_ms=1)
    lost = await running(store, "lost", lease_ms=1)
    for timer in (others, lost):
        await lease_ended(store, timer)
    expired_ms = (await state_of(store)).leases[PREFIX, "lost"]
    runs = ("leased", "x", "nothing", "lost")
    assert await abandon(store, *runs, before_ms=round(expired_ms)) == []
    await store.pause(PREFIX, paused=True)
    assert await abandon(store, *runs) == []
    await store.pause(PREFIX, paused=False)
    assert await abandon(store, *runs) == ["lost"]
    for timer in (leased, others):
        assert (await read(store, timer.id, timer.prefix)).version == timer.version


async def test_a_run_whose_lease_another_program_has_replaced_can_be_unhandled_too(store: Store) -> None:
    lost = await running(store, lease_ms=1)
    await lease_ended(store, lost)
    await put_in_place_of_lease(store, lost, "list")
    assert await abandon(store, "a") == ["a"]
    assert (await state_of(store)).held == {}


async def test_a_live_lease_is_not_rescued(store: Store) -> None:
    timer = await running(store)
    assert await rescue(store, "a") == []
    assert (await read(store)).token == timer.token


@pytest.mark.parametrize("kind", ["string", "string with a TTL", "list"])
async def test_a_run_whose_lease_another_program_has_replaced_is_seen_without_one_and_rescued(
    store: Store, kind: str
) -> None:
    timer = await running(store, lease_ms=1)
    await lease_ended(store, timer)
    await put_in_place_of_lease(store, timer, kind)
    assert (await read(store)).lease is None
    assert (await store.orphans(0))[0] == [A]
    (rescued,) = await rescue(store, "a", pod=OTHER)
    assert (await state_of(store)).held == {A: f"{OTHER} {rescued.token}"}
    assert await rescue(store, "a", pod="pod-3") == []


async def test_a_run_is_rescued_once(store: Store) -> None:
    await lease_ended(store, await running(store, lease_ms=1))
    assert len(await rescue(store, "a", pod=OTHER)) == 1
    assert await rescue(store, "a", pod="pod-3") == []


async def test_a_rescued_run_is_looked_at_again_when_its_new_lease_ends(
    frozen: Store, clock: time_machine.Traveller
) -> None:
    await running(frozen, lease_ms=1)
    clock.shift(1)
    assert len(await rescue(frozen, "a")) == 1
    assert (await state_of(frozen)).leases == {A: await frozen.now_ms() + LEASE_MS}


async def test_a_rescued_run_can_be_lost_and_rescued_again(store: Store) -> None:
    await lease_ended(store, await running(store, lease_ms=1))
    (second,) = await rescue(store, "a", lease_ms=1)
    await lease_ended(store, second)
    (third,) = await rescue(store, "a", pod="pod-3")
    assert (third.attempt, third.failures) == (3, 2)
    assert third.token > second.token


@pytest.mark.parametrize("status", [status for status in Status if status not in (Status.RUNNING, Status.RETRYING)])
async def test_a_timer_that_is_not_running_is_not_rescued(store: Store, status: Status) -> None:
    before = await in_status(store, status)
    assert await rescue(store, "a", "missing") == []
    assert (await read(store)).version == before.version


async def test_a_leftover_entry_of_an_ended_run_is_cleared(store: Store) -> None:
    await in_status(store, Status.COMPLETED)
    await store.connections.commands.zadd("timers:{0}:leases", {f"{PREFIX}:a": 1000})
    assert (await store.orphans(0))[0] == [A]
    assert await rescue(store, "a") == []
    assert (await state_of(store)).leases == {}


async def test_a_run_of_a_paused_queue_waits_for_its_rescue(store: Store) -> None:
    await lease_ended(store, await running(store, lease_ms=1))
    await store.pause(PREFIX, paused=True)
    assert await rescue(store, "a") == []
    assert (await state_of(store)).leases.keys() == {A}
    await store.pause(PREFIX, paused=False)
    assert len(await rescue(store, "a")) == 1


async def test_orphans_among_live_runs_are_found(store: Store) -> None:
    await store.arm([arming(str(i)) for i in range(6)])
    dying = await claim(store, 3, lease_ms=1)
    await claim(store, 3)
    for timer in dying:
        await lease_ended(store, timer)
    orphans, _ = await store.orphans(0)
    assert sorted(orphans) == [(PREFIX, timer.id) for timer in dying]
    assert [timer.id for timer in await rescue(store, *(timer_id for _, timer_id in orphans))] == [
        "0",
        "1",
        "2",
    ]


async def test_a_reader_sees_who_runs_the_timer_and_until_when(frozen: Store, clock: time_machine.Traveller) -> None:
    await running(frozen)
    clock.shift(10)
    lease = (await read(frozen)).lease
    assert lease is not None
    assert lease.pod == POD
    # The reader's estimate of the server's clock is only as precise as the answer was fast.
    assert abs(lease.expires_ms - (await frozen.now_ms() + LEASE_MS - 10_000)) < 5000


async def test_an_expired_lease_is_not_shown(store: Store) -> None:
    timer = await running(store, lease_ms=1)
    await lease_ended(store, timer)
    assert (await read(store)).lease is None


async def test_rescue_gives_each_run_its_own_token(store: Store) -> None:
    await store.arm([arming(str(i)) for i in range(3)])
    for timer in await claim(store, lease_ms=1):
        await lease_ended(store, timer)
    tokens = [timer.token for timer in await rescue(store, "0", "1", "2")]
    assert len(set(tokens)) == 3


async def test_a_hand_back_leaves_no_lease(store: Store) -> None:
    timer = await running(store)
    await settle(store, an_end(timer, Status.SCHEDULED, due_ms=timer.due_ms, note="handed back"))
    assert (await state_of(store)).held == {}
    assert len(await claim(store, pod=OTHER)) == 1
    await armed(store, "b")


def count_calls(store: Store) -> Counter[str]:
    """How often each script is called from now on."""
    calls = Counter[str]()
    store.called = lambda script, _seconds: calls.update((script,))
    return calls


@pytest.mark.parametrize(("bytes_each", "times"), [(10, 1), (60_000, 3)])
async def test_one_call_reads_few_large_records(store: Store, bytes_each: int, times: int) -> None:
    """A full batch with payloads of 64 KiB would hold the server up for long, each time leases are extended."""
    await store.arm([arming(f"{number:02}", spec={"payload": "x" * bytes_each}) for number in range(40)])
    runs = [timer for _ in range(2) for timer in await claim(store, 40)]
    stale = runs[39]._replace(token=1)
    calls = count_calls(store)
    assert await extend(store, *runs[:39], stale, lease_ms=1) == [stale]
    for timer in runs:
        await store.connections.commands.delete(lease_key(timer))
    ids = [timer.id for timer in runs]
    rescued = list[str]()
    while len(rescued) < len(ids):  # a poll finds the rest again
        rescued += [timer.id for timer in await rescue(store, *ids[len(rescued) :])]
    assert rescued == ids
    for timer in runs[:20]:
        await store.connections.commands.delete(lease_key(timer))
    await store.arm([arming(f"due-{number:02}", spec={"payload": "x" * bytes_each}) for number in range(20)])
    late_ms = await store.now_ms() + 2 * LEASE_MS
    ended = await store.abandon(0, PREFIX, ids, before_ms=late_ms, most=19, pod=OTHER)
    assert ended == [*(f"due-{number:02}" for number in range(19)), *ids[:20]]
    assert (calls["extend"], calls["rescue"], calls["abandon"]) == (times, times, times)
