"""touch: it touches what is due, moves nothing, and says when to look again. Also what wakes a sweeper earlier."""

from typing import Any

import pytest
import time_machine

from tests.conservation import conserved, state_of
from tests.store.acts import LEASE_MS, PREFIX, an_end, armed, arming, claim, finished, lease_ended, running, settle
from tests.store.listening import wakes
from timers.core.model import Status, Timer
from timers.store import queries
from timers.store.store import TOUCH_LIMIT, Store


async def test_an_empty_shard_has_nothing_due_and_nothing_planned(store: Store) -> None:
    touched = await store.touch(0)
    assert (touched.next_ms, touched.due, touched.lost) == (None, {}, False)


async def commands(store: Store) -> int:
    """How many commands the server has run since the last reset, those of scripts too."""
    stats: Any = await store.connections.commands.info("commandstats")
    return sum(stat["calls"] for name, stat in stats.items() if not name.startswith("cmdstat_config"))


async def test_a_look_that_finds_nothing_due_takes_five_commands(real: Store) -> None:
    await real.arm([arming("a", prefix=f"p{n}", due="+3600000") for n in range(50)])
    await real.touch(0)
    await real.connections.commands.config_resetstat()
    await real.touch(0)
    assert await commands(real) == 5


async def test_the_next_look_is_at_the_earliest_due(store: Store) -> None:
    await armed(store, "late", due="+2000000")
    early = await armed(store, "early", due="+1000000")
    await armed(store, "other", prefix="other", due="+1500000")
    touched = await store.touch(0)
    assert (touched.next_ms, touched.due) == (early.due_ms, {})


async def test_the_next_look_is_at_the_end_of_the_earliest_lease(frozen: Store) -> None:
    await running(frozen)
    await armed(frozen, "later", due="+3600000")
    assert (await frozen.touch(0)).next_ms == await frozen.now_ms() + LEASE_MS


async def test_due_queues_are_named_with_their_earliest_due(store: Store) -> None:
    now_ms = await store.now_ms()
    await armed(store, "a", due=f"@{now_ms - 20}")
    await armed(store, "b", due=f"@{now_ms - 30}")
    await armed(store, "c", prefix="other", due=f"@{now_ms - 10}")
    later = await armed(store, "d", due="+3600000")
    touched = await store.touch(0)
    assert touched.due == {PREFIX: now_ms - 30, "other": now_ms - 10}
    await claim(store)
    await claim(store, prefix="other")
    assert later.due_ms in (await state_of(store)).heads.values()


async def test_behind_what_is_due_the_next_of_the_queue_is_planned(
    frozen: Store, clock: time_machine.Traveller
) -> None:
    await armed(frozen, "due")
    soon = await armed(frozen, "soon", due="+700")
    clock.shift(0.010)
    touched = await frozen.touch(0)
    assert touched.due.keys() == {PREFIX}
    assert touched.next_ms == soon.due_ms


async def test_a_touch_moves_nothing(store: Store) -> None:
    await armed(store, due="@1000")
    before = (await state_of(store)).due
    for _ in range(3):
        await store.touch(0)
    assert (await state_of(store)).due == before
    assert len(await claim(store)) == 1


async def test_a_trigger_of_this_very_millisecond_needs_a_second_look(frozen: Store) -> None:
    """Redis expires strictly after the deadline."""
    await armed(frozen)
    touched = await frozen.touch(0)
    assert touched.due == {PREFIX: await frozen.now_ms()}
    assert touched.next_ms == await frozen.now_ms() + 1


async def test_a_foreign_value_over_a_trigger_does_not_keep_a_sweeper_busy(
    frozen: Store, clock: time_machine.Traveller
) -> None:
    await armed(frozen)
    await frozen.connections.commands.set(f"{PREFIX}:{{0}}:a", "mine")
    clock.shift(1)
    touched = await frozen.touch(0)
    assert (touched.next_ms, set(touched.due)) == (None, {PREFIX})


async def test_touching_removes_due_triggers_and_expired_leases(real: Store) -> None:
    await running(real, "runs", lease_ms=1)
    (timer,) = await real.get([(PREFIX, "runs")])
    assert timer is not None
    await armed(real, "due", due="+1")
    await lease_ended(real, timer)
    while await real.now_ms() <= timer.due_ms + 1 or (await real.touch(0)).next_ms is not None:
        pass
    assert not await real.connections.commands.keys(f"{PREFIX}:*")
    assert (await real.orphans(0))[0] == [(PREFIX, "runs")]


async def test_no_more_triggers_than_the_limit_are_touched_at_once(real: Store) -> None:
    """If a script published many more, the server could disconnect even a fast subscriber."""
    redis: Any = real.connections.commands
    # Meanwhile only touched keys may expire.
    await redis.execute_command("DEBUG", "SET-ACTIVE-EXPIRE", "0")
    try:
        await real.arm([arming(str(i), due="@1000") for i in range(TOUCH_LIMIT + 50)])
        await redis.config_resetstat()
        await real.touch(0)
        info = await redis.info("stats")
    finally:
        await redis.execute_command("DEBUG", "SET-ACTIVE-EXPIRE", "1")
    assert info["expired_keys"] <= TOUCH_LIMIT


async def test_a_paused_queue_is_not_touched(store: Store) -> None:
    await armed(store)
    await store.pause(PREFIX, paused=True)
    touched = await store.touch(0)
    assert touched.due == {}
    await store.pause(PREFIX, paused=False)
    assert (await store.touch(0)).due.keys() == {PREFIX}


async def test_a_short_block_of_a_queue_does_not_shorten_a_longer_one(
    frozen: Store, clock: time_machine.Traveller
) -> None:
    await armed(frozen)
    await frozen.block(0, {PREFIX: 10_000})
    await frozen.block(0, {PREFIX: 1_000})
    clock.shift(5)
    assert (await frozen.touch(0)).due == {}
    clock.shift(6)
    assert (await frozen.touch(0)).due.keys() == {PREFIX}


async def test_a_queue_whose_block_is_over_is_named_before_its_timers_count_as_ready(
    frozen: Store, clock: time_machine.Traveller
) -> None:
    await armed(frozen)
    await armed(frozen, prefix="idle", due="+20000")
    await frozen.block(0, {PREFIX: 1_000, "idle": 1_000})
    for seconds, blocked in ((1.0, {PREFIX}), (0.2, {PREFIX}), (0.1, set[str]())):
        clock.shift(seconds)
        assert (await frozen.touch(0)).due.keys() == {PREFIX}
        state = await state_of(frozen)
        assert (set(state.heads), state.blocked) == ({PREFIX, "idle"} - blocked, blocked)


async def test_a_queue_that_is_blocked_again_is_named_no_more(frozen: Store, clock: time_machine.Traveller) -> None:
    await armed(frozen)
    await frozen.block(0, {PREFIX: 1_000})
    clock.shift(1)
    assert (await frozen.touch(0)).due.keys() == {PREFIX}
    await frozen.block(0, {PREFIX: 1_000})
    assert (await frozen.touch(0)).due == {}


async def test_a_pod_that_joins_ends_all_blocks_except_pauses(frozen: Store, clock: time_machine.Traveller) -> None:
    """It may have other limits than the pods before it. A queue with due timers is named for a moment first."""
    for prefix in ("limited", "paused"):
        await armed(frozen, prefix=prefix)
    await armed(frozen, prefix="idle", due="+20000")
    await frozen.pause("paused", paused=True)
    await frozen.block(0, {"limited": 3_600_000, "idle": 3_600_000})
    clock.shift(1)
    assert (await frozen.touch(0)).due == {}
    for _ in range(2):
        assert (await frozen.touch(0, joins=True)).due.keys() == {"limited"}
        assert (await state_of(frozen)).blocked == {"limited", "paused"}
    clock.shift(0.3)
    assert (await frozen.touch(0)).due.keys() == {"limited"}
    assert (await state_of(frozen)).blocked == {"paused"}


async def test_a_queue_whose_due_timers_were_taken_goes_on_at_once(
    frozen: Store, clock: time_machine.Traveller
) -> None:
    """Until then nobody would touch what becomes due in it."""
    await armed(frozen)
    await frozen.block(0, {PREFIX: 1_000})
    clock.shift(1)
    await frozen.touch(0)
    await claim(frozen)
    await frozen.touch(0)
    assert (await state_of(frozen)).blocked == set()


async def test_a_run_with_a_live_lease_is_no_orphan(store: Store) -> None:
    await running(store)
    assert (await store.orphans(0))[0] == []


async def test_a_lost_run_of_a_paused_queue_is_no_orphan_until_the_queue_resumes(store: Store) -> None:
    await lease_ended(store, await running(store, lease_ms=1))
    await store.pause(PREFIX, paused=True)
    assert (await store.orphans(0))[0] == []
    await store.pause(PREFIX, paused=False)
    assert (await store.orphans(0))[0] == [(PREFIX, "a")]


async def test_looks_that_continue_where_the_last_ended_reach_all_orphans(real: Store) -> None:
    """No matter how many nobody takes."""
    ids = {str(number) for number in range(TOUCH_LIMIT + 1)}
    await real.arm([arming(timer_id) for timer_id in ids])
    lost: list[Timer] = []
    while len(lost) < len(ids):
        lost += await claim(real, 200, lease_ms=1)
    await lease_ended(real, lost[-1])
    first, rank = await real.orphans(0)
    second, end = await real.orphans(0, rank)
    assert (len(first), rank, len(second), end) == (TOUCH_LIMIT, TOUCH_LIMIT, 1, 0)
    assert {timer_id for _, timer_id in first + second} == ids


async def test_an_extended_lease_is_looked_at_later(frozen: Store, clock: time_machine.Traveller) -> None:
    timer = await running(frozen)
    clock.shift(20)
    await frozen.extend(0, [timer], pod="pod-1", lease_ms=LEASE_MS)
    clock.shift(15)
    touched = await frozen.touch(0)
    assert (touched.lost, touched.next_ms) == (False, await frozen.now_ms() + LEASE_MS - 15_000)


@pytest.mark.parametrize(
    ("due_ms", "woken"), [(0, True), (500, True), (29_000, True), (40_000, False), (3_600_000, False)]
)
async def test_arming_wakes_the_sweepers_for_timers_due_before_their_next_look(
    store: Store, due_ms: int, woken: bool
) -> None:
    async with wakes(store) as heard:
        timer = await armed(store, due=f"+{due_ms}")
        assert await heard() == ([f"{{0}} {timer.due_ms}"] if woken else [])


async def test_the_horizon_is_half_a_minute(frozen: Store) -> None:
    async with wakes(frozen) as heard:
        first = await armed(frozen, "a", due="+30000")
        await armed(frozen, "b", due="+30001")
        assert await heard() == [f"{{0}} {first.due_ms}"]


async def test_a_batch_wakes_once_for_its_earliest(store: Store) -> None:
    async with wakes(store) as heard:
        await store.arm([arming("a", due="+900"), arming("b", due="@5"), arming("c", due="+3600000")])
        assert await heard() == ["{0} 5"]


async def test_every_way_of_becoming_due_soon_wakes(store: Store) -> None:
    await armed(store, "moved", due="+3600000")
    await armed(store, "replaced", due="+3600000")
    await finished(store, "revived", status=Status.FAILED)
    retried = await running(store, "retried")
    async with wakes(store) as heard:
        await store.reschedule(PREFIX, "moved", due="@1")
        await armed(store, "replaced", due="@2", if_exists="replace")
        await settle(store, an_end(retried, Status.SCHEDULED, due_ms=3))
        answer = await store.rearm(PREFIX, "revived", cause="-")
        assert answer.timer is not None
        await store.pause(PREFIX, paused=False)
        found = await heard()
    assert found[:4] == ["{0} 1", "{0} 2", "{0} 3", f"{{0}} {answer.timer.due_ms}"]
    assert len(found) == 5


async def test_claims_cancels_and_leases_wake_nobody(store: Store) -> None:
    timer = await running(store)
    await armed(store, "b", due="+3600000")
    async with wakes(store) as heard:
        await store.extend(0, [timer], pod="pod-1", lease_ms=LEASE_MS)
        await settle(store, an_end(timer))
        await store.cancel(PREFIX, "b")
        await store.touch(0)
        assert await heard() == []


async def test_one_look_at_a_thousand_queues_with_many_due_each_blocked_the_server(frozen: Store) -> None:
    """All queues share one budget; called again with the returned rank, the looks reach all queues."""
    news = [arming(str(n), prefix=f"p{i}") for i in range(50) for n in range(TOUCH_LIMIT // 10)]
    await frozen.arm(news)
    looks = [await frozen.touch(0)]
    while looks[-1].next_rank:
        looks.append(await frozen.touch(0, looks[-1].next_rank))
    assert [len(look.due) for look in looks] == [10, 10, 10, 10, 10]
    assert len({prefix for look in looks for prefix in look.due}) == 50


async def test_more_queues_than_a_look_takes_are_named_by_the_next(store: Store) -> None:
    await store.arm([arming("a", prefix=f"p{i}") for i in range(TOUCH_LIMIT + 100)])
    first = await store.touch(0)
    second = await store.touch(0, first.next_rank)
    assert (len(first.due), len(second.due), second.next_rank) == (TOUCH_LIMIT, 100, 0)
    assert not first.due.keys() & second.due.keys()


async def test_queues_that_became_due_last_come_first(store: Store) -> None:
    """A thousand overdue queues hid a timer that had just become due."""
    now_ms = await store.now_ms()
    await store.arm([arming("a", prefix=f"late{i}", due=f"@{now_ms - 60_000}") for i in range(TOUCH_LIMIT)])
    await store.arm([arming("a", prefix="punctual", due=f"@{now_ms - 1}")])
    assert next(iter((await store.touch(0)).due)) == "punctual"


async def test_a_thousand_paused_queues_do_not_hide_another(store: Store) -> None:
    await store.arm([arming("a", prefix=f"p{i}") for i in range(TOUCH_LIMIT)])
    for i in range(TOUCH_LIMIT):
        await store.pause(f"p{i}", paused=True)
    await store.arm([arming("a", prefix="other"), arming("b", prefix="p1")])
    touched = await store.touch(0)
    assert (list(touched.due), touched.next_rank) == (["other"], 0)
    assert len((await queries.due(store))[0]) == TOUCH_LIMIT + 1
    await conserved(store)
    await store.pause("p1", paused=False)
    assert (await store.touch(0)).due.keys() == {"other", "p1"}
    await conserved(store)
