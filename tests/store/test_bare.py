"""Bare keys, as any client may SET them: adopting, announcing, and the doubt about keys that are gone."""

import pytest

from tests.conservation import state_of
from tests.store.acts import PREFIX, an_end, armed, claim, finished, key_gone, read, running, settle
from timers.core.model import Status
from timers.store.bare import BareKeys, Heard, payload_of
from timers.store.store import Store

A = (PREFIX, "a")
KEY = f"{PREFIX}:a"
HOUR_MS = 3_600_000


async def put(store: Store, value: str = "1", *, ms: int | None = HOUR_MS) -> None:
    await store.connections.commands.set(KEY, value, px=ms)


async def adopt(store: Store, value: bytes = b"1") -> str:
    (code,) = await BareKeys(store).adopt(0, {A: value})
    return code


async def announce(store: Store, times: int = 1, *, since_ms: int = 0) -> str:
    (code,) = await BareKeys(store).announce(0, {A: Heard(times, since_ms)})
    return code


async def adopted(store: Store) -> None:
    await put(store)
    assert await adopt(store) == "adopted"


async def adopted_and_expired(store: Store) -> None:
    """A timer whose key was adopted in time and has expired since."""
    ms = 10
    await put(store, ms=ms)
    while await adopt(store) != "adopted":
        ms *= 2
        await put(store, ms=ms)
    await key_gone(store, KEY)


async def test_an_adopted_timer_is_scheduled_for_the_end_of_its_key(store: Store) -> None:
    await put(store, '{"email": 1}')
    assert await adopt(store, b'{"email": 1}') == "adopted"
    timer = await read(store)
    assert (timer.status, timer.payload, timer.version) == (Status.SCHEDULED, {"email": 1}, 1)
    assert timer.due_ms == await store.connections.commands.pexpiretime(KEY)
    state = await state_of(store)
    assert (state.due, state.triggers, set(state.adopted)) == ({}, set(), {A})
    assert await claim(store) == []


async def test_adopting_again_changes_nothing(store: Store) -> None:
    await adopted(store)
    assert await adopt(store) == "same"
    assert (await read(store)).version == 1


async def test_a_key_that_is_set_again_moves_its_timer(store: Store) -> None:
    await adopted(store)
    await put(store, "2", ms=2 * HOUR_MS)
    assert await adopt(store, b"2") == "moved"
    timer = await read(store)
    assert (timer.payload, timer.version) == (2, 2)
    assert timer.due_ms > timer.created_ms + HOUR_MS + 1000


async def test_a_key_that_has_changed_since_it_was_read_is_left_for_the_next_scan(store: Store) -> None:
    assert await adopt(store) == "gone"
    await put(store, "2")
    assert await adopt(store, b"1") == "gone"
    await put(store, "1", ms=None)
    assert await adopt(store, b"1") == "gone"
    assert await store.get([A]) == [None]


async def test_a_key_that_is_set_during_the_run_waits_for_its_end(store: Store) -> None:
    timer = await running(store)
    await put(store)
    assert await adopt(store) == "running"
    assert await announce(store) == "running"
    await settle(store, an_end(timer))
    assert await adopt(store) == "adopted"
    assert (await read(store)).occurrence == 2


async def test_a_key_in_place_of_a_timer_replaces_it(store: Store) -> None:
    await armed(store, due="+7200000", spec={"payload": "old"})
    await adopted(store)
    assert (await read(store)).payload == 1
    assert (await state_of(store)).due == {}


async def test_an_expired_key_makes_its_timer_due_once(store: Store) -> None:
    await adopted_and_expired(store)
    assert await announce(store) == "due"
    assert await announce(store) == "known"
    (timer,) = await claim(store)
    assert timer.payload == 1
    assert await announce(store, times=2) == "running"
    await settle(store, an_end(timer))
    assert await announce(store) == "known"


async def test_an_expiry_whose_run_is_under_way_is_known(store: Store) -> None:
    """Kept until after the run it would be told again where that lasts longer than the lock of the key."""
    assert await announce(store) == "due"
    (timer,) = await claim(store)
    assert await announce(store) == "known"
    await settle(store, an_end(timer))


async def test_a_key_that_was_set_to_end_sooner_and_did_is_due_at_once(store: Store) -> None:
    await adopted(store)
    await put(store, ms=1)
    await key_gone(store, KEY)
    assert await announce(store) == "due"
    (timer,) = await claim(store)
    assert timer.due_ms <= timer.updated_ms
    assert timer.history[-2].note == "its bare key was set again and expired"


async def test_an_expiry_that_is_told_late_does_not_fire_the_key_that_was_set_since(store: Store) -> None:
    await adopted(store)
    await put(store, ms=2 * HOUR_MS)
    assert await adopt(store) == "moved"
    assert await announce(store) == "known"
    assert await claim(store) == []


async def test_a_key_that_expired_before_it_was_seen_fires_with_its_name_alone(store: Store) -> None:
    assert await announce(store) == "due"
    (timer,) = await claim(store)
    assert (timer.payload, timer.history[0].note) == (None, "created")
    await settle(store, an_end(timer))
    assert await announce(store, times=2) == "due"
    (timer,) = await claim(store)
    assert timer.occurrence == 2


async def answered(store: Store, *, ago_ms: int) -> int:
    """A key that expired and fired so long ago; answers when that was."""
    assert await announce(store) == "due"
    (timer,) = await claim(store)
    await settle(store, an_end(timer))
    at_ms = await store.now_ms() - ago_ms
    await store.connections.commands.set(f"timers:{{0}}:bare:{PREFIX}:a", f"1 {at_ms}", keepttl=True)
    return at_ms


async def test_an_expiry_that_is_told_again_long_after_it_was_answered_is_known(store: Store) -> None:
    at_ms = await answered(store, ago_ms=6_000)
    assert await announce(store, since_ms=at_ms - 1) == "known"
    assert await claim(store) == []


async def test_an_expiry_long_after_one_that_was_answered_is_due(store: Store) -> None:
    at_ms = await answered(store, ago_ms=6_000)
    assert await announce(store, since_ms=at_ms) == "due"


async def test_of_two_expiries_at_once_the_second_is_due_also_for_who_has_answered_neither(store: Store) -> None:
    at_ms = await answered(store, ago_ms=1_000)
    assert await announce(store, times=1, since_ms=at_ms) == "known"
    assert await announce(store, times=2, since_ms=at_ms - 1) == "due"


async def expired(store: Store, how: str) -> None:
    """A key that expired so: unseen; unseen, over a finished timer; adopted; adopted and set again; unheard."""
    bare = BareKeys(store)
    if how == "over another":
        await finished(store)
    elif how == "set again":
        await adopted(store)
        await put(store, ms=1)
        await key_gone(store, KEY)
    elif how != "unseen":
        await adopted_and_expired(store)
    if how == "unheard":
        await bare.conclude(0, (await bare.look(0, 0, 10))[0], deleted=False)
    else:
        assert await announce(store) == "due"


@pytest.mark.parametrize("how", ["unseen", "over another", "adopted", "set again", "unheard"])
async def test_an_expiry_that_is_told_again_when_its_lock_is_gone_is_known_from_the_record(
    store: Store, how: str
) -> None:
    """By a pod that stood still for more than a minute."""
    before_ms = await store.now_ms() - 1
    await expired(store, how)
    (timer,) = await claim(store)
    await settle(store, an_end(timer, Status.SCHEDULED, due_ms=timer.due_ms + HOUR_MS, occurrence=2))
    assert await store.connections.commands.delete(f"timers:{{0}}:bare:{KEY}") == 1
    rearmed = await read(store)
    assert await announce(store, since_ms=before_ms) == "known"
    assert await read(store) == rearmed
    assert await announce(store, since_ms=await store.now_ms()) == "due"


async def test_a_key_over_a_finished_timer_is_a_new_life(store: Store) -> None:
    await finished(store, status=Status.FAILED)
    assert await announce(store) == "due"
    (timer,) = await claim(store)
    assert (timer.occurrence, timer.attempt) == (2, 1)


async def test_a_cancelled_timer_takes_its_key_along(store: Store) -> None:
    await adopted(store)
    assert (await store.cancel(*A)).code == "cancelled"
    assert not await store.connections.commands.exists(KEY)
    assert (await state_of(store)).adopted == {}


async def test_a_purged_timer_takes_its_key_along(store: Store) -> None:
    await adopted(store)
    assert (await store.cancel(*A, purge=True)).code == "purged"
    assert not await store.connections.commands.exists(KEY)


@pytest.mark.parametrize("due", ["", "+7200000"])
async def test_a_changed_timer_is_no_longer_its_keys(store: Store, due: str) -> None:
    """Else the next scan would undo the change."""
    await adopted(store)
    assert (await store.reschedule(*A, due=due, spec={"payload": 2})).code == "changed"
    assert not await store.connections.commands.exists(KEY)
    state = await state_of(store)
    assert (state.adopted, set(state.due), state.triggers) == ({}, {A}, {A})


async def test_a_replaced_timer_is_no_longer_its_keys(store: Store) -> None:
    await adopted(store)
    await armed(store, if_exists="replace", due="+7200000")
    assert not await store.connections.commands.exists(KEY)


async def test_a_deleted_key_cancels_its_timer(store: Store) -> None:
    bare = BareKeys(store)
    await adopted(store)
    await store.connections.commands.delete(KEY)
    gone, looked = await bare.look(0, 0, 10)
    assert looked == 1
    await bare.conclude(0, gone, deleted=True)
    timer = await read(store)
    assert (timer.status, timer.history[-1].note) == (Status.CANCELLED, "its bare key was deleted")


async def test_a_key_that_may_have_expired_unheard_makes_its_timer_due(store: Store) -> None:
    bare = BareKeys(store)
    await adopted_and_expired(store)
    gone, _ = await bare.look(0, 0, 10)
    assert [(timer.prefix, timer.id) for timer in gone] == [A]
    await bare.conclude(0, gone, deleted=False)
    assert len(await claim(store)) == 1


async def test_an_expiry_that_was_heard_before_it_was_taken_for_unheard_is_known(store: Store) -> None:
    bare = BareKeys(store)
    await adopted_and_expired(store)
    heard_ms = await store.now_ms()
    await key_gone(store, await passing(store))
    gone, _ = await bare.look(0, 0, 10)
    await bare.conclude(0, gone, deleted=False)
    (timer,) = await claim(store)
    await settle(store, an_end(timer))
    assert await announce(store, since_ms=heard_ms) == "known"
    assert await announce(store, since_ms=await store.now_ms()) == "due"


async def passing(store: Store) -> str:
    """A key that is there for a millisecond, so that one has passed when it is gone."""
    await store.connections.commands.set("passing", "1", px=1)
    return "passing"


async def test_a_key_that_came_back_is_neither_deleted_nor_expired(store: Store) -> None:
    bare = BareKeys(store)
    await adopted_and_expired(store)
    gone, _ = await bare.look(0, 0, 10)
    await put(store)
    await bare.conclude(0, gone, deleted=True)
    await bare.conclude(0, gone, deleted=False)
    assert (await read(store)).status is Status.SCHEDULED
    assert set((await state_of(store)).adopted) == {A}


async def test_what_was_found_of_a_key_is_not_concluded_of_the_one_that_was_set_and_is_gone_since(store: Store) -> None:
    bare = BareKeys(store)
    await adopted(store)
    await store.connections.commands.delete(KEY)
    before, _ = await bare.look(0, 0, 10)
    await put(store, "2", ms=2 * HOUR_MS)
    assert await adopt(store, b"2") == "moved"
    await store.connections.commands.delete(KEY)
    for deleted in (True, False):
        await bare.conclude(0, before, deleted=deleted)
        assert set((await state_of(store)).adopted) == {A}
    await bare.conclude(0, (await bare.look(0, 0, 10))[0], deleted=True)
    assert (await read(store)).status is Status.CANCELLED


async def test_a_key_that_lost_its_ttl_is_no_timer_any_more(store: Store) -> None:
    await adopted(store)
    await store.connections.commands.persist(KEY)
    assert await BareKeys(store).look(0, 0, 10) == ([], 1)
    assert (await read(store)).status is Status.CANCELLED
    assert await store.connections.commands.exists(KEY)


async def test_a_look_at_keys_that_are_there_changes_nothing(store: Store) -> None:
    await adopted(store)
    assert await BareKeys(store).look(0, 0, 10) == ([], 1)
    assert await BareKeys(store).look(0, 1, 10) == ([], 0)
    assert (await read(store)).version == 1


async def test_an_overdue_key_without_an_event_is_noticed(store: Store) -> None:
    await adopted(store)
    redis = store.connections.commands
    await redis.delete(KEY)
    await redis.zadd("timers:{0}:adopted", {KEY: 1000})
    assert (await store.touch(0)).bare_overdue
    await store.cancel(*A)


async def test_a_scan_finds_names_and_values(store: Store) -> None:
    redis, bare = store.connections.commands, BareKeys(store)
    await redis.set("reminder:a", "1", px=HOUR_MS)
    await redis.hset("reminder:hash", "x", "1")
    for stranger in ("UPPER:a", "no-colon", "timers:a", "a:b c"):
        await redis.set(stranger, "x")
    await armed(store, "service-made", due="+3600000")
    found, cursor = [], -1
    while cursor:
        cursor, some = await bare.scan(max(cursor, 0))
        found += some
    assert sorted(found) == [("reminder", "a"), ("reminder", "hash")]
    assert await bare.values([*found, ("reminder", "missing")]) == {("reminder", "a"): b"1"}
    assert await bare.values([]) == {}
    for stranger in ("timers:a", "reminder:hash"):
        await redis.delete(stranger)


@pytest.mark.parametrize(
    ("value", "payload"),
    [
        (b"hello", "hello"),
        (b'{"a": [1]}', {"a": [1]}),
        (b"", ""),
        (b"\xff", "\ufffd"),
        (b"NaN", "NaN"),
        (b"[" * 100_000, None),
        (b"x" * 70_000, None),
        (b"null", None),
    ],
)
def test_what_a_value_becomes(value: bytes, payload: object) -> None:
    assert payload_of(value) == payload
