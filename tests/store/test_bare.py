"""Bare keys, as any client may SET them: adopting, resolving, and announcing their expiries."""

import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.conservation import state_of
from tests.store.acts import (
    PREFIX,
    an_end,
    armed,
    bucket_of,
    cancelled,
    claim,
    finished,
    key_gone,
    read,
    running,
    settle,
)
from timers.bare.keys import GONE, NO_TTL, PAGE_SIZE, BareKeys, Heard, KeyState, spec_of
from timers.core.durations import MAX_TIME_MS
from timers.core.model import Status, Timer
from timers.store import scripts
from timers.store.store import Store

A = (PREFIX, "a")
KEY = f"{PREFIX}:a"
HOUR_MS = 3_600_000
LEAD_MS = 200


async def put(store: Store, value: str = "1", *, ms: int | None = HOUR_MS) -> None:
    await store.connections.commands.set(KEY, value, px=ms)


async def inspect(store: Store) -> KeyState:
    states, _ = await BareKeys(store).inspect([A], LEAD_MS)
    return states[A]


async def known(store: Store) -> int | None:
    """The key's deadline that the shard knows."""
    return (await inspect(store)).known_ms


async def adopt(store: Store, *, heard: Heard | None = None) -> str:
    """Adopt the key as it is now; empty if it is gone."""
    state = (await inspect(store))._replace(heard=heard)
    return "" if state.deadline_ms == GONE else (await BareKeys(store).report("adopted", {A: state}))[A]


async def resolve(store: Store, what: str, *, known_ms: int | None = None, heard: Heard | None = None) -> str:
    """Tell the shard what happened to a key that it knows."""
    seen = KeyState(known_ms or await known(store), GONE, heard=heard)
    return (await BareKeys(store).report(what, {A: seen}))[A]


async def announce(store: Store, number: int = 1, *, since_ms: int = 1, alone: str = "") -> str:
    """Report an expiry, as a pod that heard a canary long ago, unless it says otherwise."""
    return (await BareKeys(store).announce({A: Heard(since_ms, alone, number)}))[A]


async def adopted(store: Store) -> Timer:
    await put(store)
    assert await adopt(store) == "adopted"
    return await read(store)


async def adopted_and_expired(store: Store, *, heard: Heard | None = None) -> None:
    """A timer whose key was adopted in time, by a pod that had heard an expiry before, and then expired."""
    code, ms = "", 10
    while code != "adopted":
        ms *= 2
        await put(store, ms=ms)
        code = await adopt(store, heard=heard)
    await key_gone(store, KEY)


async def test_an_adopted_timer_is_scheduled_for_the_end_of_its_key(store: Store) -> None:
    await put(store, '{"email": 1}')
    assert await adopt(store) == "adopted"
    timer = await read(store)
    assert (timer.status, timer.payload, timer.version) == (Status.SCHEDULED, {"email": 1}, 2)
    assert [entry.cause for entry in timer.history] == ["bare-adopted", "created"]
    assert timer.due_ms == await store.connections.commands.pexpiretime(KEY) == await known(store)
    state = await state_of(store)
    assert (set(state.due), state.triggers) == ({A}, {A})


async def _inspect_while(
    act: Callable[[], Awaitable[object]], store: Store, monkeypatch: pytest.MonkeyPatch
) -> KeyState:
    """Read the key, whose time is near. Between its deadline and its value, something happens to it."""
    asked = scripts.read

    async def act_first(*args: Any) -> list[Any]:
        monkeypatch.undo()
        await act()
        return await asked(*args)

    monkeypatch.setattr(scripts, "read", act_first)
    states, _ = await BareKeys(store).inspect([A], 2 * HOUR_MS)
    return states[A]


async def test_a_value_is_read_with_its_own_deadline(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    await put(store, '"first"')
    state = await _inspect_while(lambda: put(store, '"second"', ms=3 * HOUR_MS), store, monkeypatch)
    assert state == KeyState(None, await store.connections.commands.pexpiretime(KEY), b'"second"')


@pytest.mark.parametrize("end", ["delete", "persist"])
async def test_what_becomes_of_a_key_while_it_is_read(end: str, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    await put(store)
    deadline_ms = await store.connections.commands.pexpiretime(KEY)
    state = await _inspect_while(lambda: getattr(store.connections.commands, end)(KEY), store, monkeypatch)
    assert state == KeyState(None, deadline_ms if end == "delete" else NO_TTL)


async def test_an_adopted_timer_is_not_claimed_before_its_key_was_looked_at_once_more(store: Store) -> None:
    await adopted_and_expired(store)
    assert await claim(store) == []
    assert await resolve(store, "expired") == "due"
    assert [timer.payload for timer in await claim(store)] == [1]


async def test_a_key_that_exists_shortly_before_its_deadline_releases_its_timer(store: Store) -> None:
    timer = await adopted(store)
    assert await resolve(store, "there") == "waits"
    assert await resolve(store, "ending") == "due"
    after = await read(store)
    assert (after.due_ms, after.history[0].cause) == (timer.due_ms, "bare-due")
    assert await resolve(store, "there") == "spare"


async def test_a_key_without_a_timer_is_deleted_unless_it_was_set_again(store: Store) -> None:
    bare = BareKeys(store)
    timer = await adopted(store)
    assert await bare.take({A: timer.due_ms - 1, (PREFIX, "other"): 1}) == []
    assert await bare.take({A: timer.due_ms}) == [A]
    assert not await store.connections.commands.exists(KEY)
    await store.cancel(*A)


async def test_a_key_that_is_set_again_moves_its_timer(store: Store) -> None:
    await adopted(store)
    await put(store, "2", ms=2 * HOUR_MS)
    assert await adopt(store) == "moved"
    timer = await read(store)
    assert (timer.payload, timer.version) == (2, 3)
    assert timer.due_ms > timer.created_ms + HOUR_MS + 1000
    assert (await state_of(store)).due == {A: timer.due_ms}


async def test_an_outdated_look_at_a_key_changes_nothing(store: Store) -> None:
    bare, timer = BareKeys(store), await adopted(store)
    for known_ms in (None, timer.due_ms - 1):
        assert await bare.report("adopted", {A: KeyState(known_ms, timer.due_ms + 1, b"2")}) == {A: "stale"}
    for what in ("there", "ending", "expired", "deleted"):
        assert await resolve(store, what, known_ms=timer.due_ms - 1) == "stale"
    assert await read(store) == timer


async def test_an_expired_key_is_not_adopted(store: Store) -> None:
    assert await BareKeys(store).report("adopted", {A: KeyState(None, await store.now_ms(), b"1")}) == {A: "stale"}
    assert await store.get([A]) == [None]


async def test_a_key_that_is_set_during_the_run_waits_for_its_end(store: Store) -> None:
    assert await announce(store) == "due"
    (timer,) = await claim(store)
    await put(store)
    assert await adopt(store) == "running"
    assert await announce(store, 2) == "running"
    await settle(store, an_end(timer))
    assert await adopt(store) == "adopted"
    assert (await read(store)).occurrence == 2


async def test_a_key_that_is_set_during_the_run_of_its_adopted_timer_is_adopted_after_it(store: Store) -> None:
    await adopted_and_expired(store)
    assert await resolve(store, "ending") == "due"
    (timer,) = await claim(store)
    await put(store)
    assert await adopt(store) == "running"
    assert await known(store) is None
    await settle(store, an_end(timer))
    assert await adopt(store) == "adopted"


async def set_during_the_run(store: Store, ms: int) -> Timer:
    """A key that was found during a run of its timer. Returns the run."""
    assert await announce(store) == "due"
    (timer,) = await claim(store)
    await put(store, '"second"', ms=ms)
    assert await adopt(store) == "running"
    return timer


async def after_run(store: Store) -> str:
    bare = BareKeys(store)
    assert await bare.meanwhile() == [A]
    return (await bare.after_runs({A: (await inspect(store)).deadline_ms == GONE}))[A]


@pytest.mark.parametrize("is_heard", [False, True])
async def test_a_key_that_was_found_during_the_run_and_expired_fires_with_its_value(
    store: Store, *, is_heard: bool
) -> None:
    """Nobody may have heard it, because the pod died. It fired without its value, or was lost."""
    timer = await set_during_the_run(store, 500)
    await key_gone(store, KEY)
    assert await after_run(store) == "running"
    if is_heard:
        assert await announce(store, 2) == "running"
    await settle(store, an_end(timer))
    assert await (announce(store, 2) if is_heard else after_run(store)) == ("look" if is_heard else "adopted")
    assert await resolve(store, "expired", heard=Heard(1, "", 2) if is_heard else None) == "due"
    assert await announce(store, 2) == "known"
    (timer,) = await claim(store)
    assert (timer.payload, timer.occurrence) == ("second", 2)
    await settle(store, an_end(timer))
    assert await BareKeys(store).meanwhile() == []
    assert await announce(store, 2) == "known"


@pytest.mark.parametrize("retention_ms", [HOUR_MS, 0])
async def test_a_key_that_was_found_during_the_run_is_adopted_after_it(store: Store, retention_ms: int) -> None:
    timer = await set_during_the_run(store, HOUR_MS)
    assert await after_run(store) == "running"
    await settle(store, an_end(timer), retention_ms=retention_ms)
    assert await after_run(store) == "adopted"
    assert (await read(store)).due_ms == await known(store)
    assert await BareKeys(store).after_runs({A: False}) == {A: "stale"}


async def test_a_key_that_was_deleted_during_the_run_is_forgotten(store: Store) -> None:
    timer = await set_during_the_run(store, HOUR_MS)
    await store.connections.commands.delete(KEY)
    assert await after_run(store) == "forgotten"
    await settle(store, an_end(timer))
    assert await BareKeys(store).after_runs({A: True}) == {A: "stale"}


async def test_a_key_that_was_set_again_during_the_run_and_expired_sooner_fires_without_value(store: Store) -> None:
    timer = await set_during_the_run(store, HOUR_MS)
    assert await announce(store, 2) == "running"
    await settle(store, an_end(timer))
    assert await announce(store, 2) == "due"
    assert [timer.payload for timer in await claim(store)] == [None]


async def test_an_earlier_expiry_reported_again_forgets_no_key_that_was_found_since(store: Store) -> None:
    """Pods repeat what they heard during a run, twice a second. The key fired without its value."""
    assert await announce(store) == "due"
    (timer,) = await claim(store)
    assert await announce(store, 2) == "running"
    await put(store, '"third"', ms=500)
    assert await adopt(store) == "running"
    again = Heard(1, "", 2, again=True)
    assert await BareKeys(store).announce({A: again}) == {A: "running"}
    await key_gone(store, KEY)
    assert await announce(store, 3) == "running"
    await settle(store, an_end(timer))
    assert await BareKeys(store).announce({A: again}) == {A: "look"}
    assert await resolve(store, "expired", heard=again) == "due"
    (timer,) = await claim(store)
    assert (timer.payload, timer.occurrence) == ("third", 2)
    await settle(store, an_end(timer))
    assert await announce(store, 2) == "known"
    assert await announce(store, 3) == "due"


async def test_what_was_found_during_an_earlier_occurrence_is_forgotten(store: Store) -> None:
    """A pod of an earlier version has adopted the key after the run, and it has fired."""
    timer = await set_during_the_run(store, HOUR_MS)
    await settle(store, an_end(timer))
    await armed(store, if_exists="replace", due="+7200000")
    assert await after_run(store) == "stale"
    assert (await read(store)).payload is None


async def test_a_key_in_place_of_a_timer_replaces_it(store: Store) -> None:
    await armed(store, due="+7200000", spec={"payload": "old"})
    await adopted(store)
    timer = await read(store)
    assert (timer.payload, (await state_of(store)).due) == (1, {A: timer.due_ms})


async def test_an_expired_key_makes_its_timer_due_once(store: Store) -> None:
    """The shard knows the key, so a pod reads it first. Then all others that heard the expiry come too late."""
    await adopted_and_expired(store)
    assert await announce(store) == "look"
    assert await resolve(store, "expired") == "due"
    assert await announce(store) == "known"
    (timer,) = await claim(store)
    assert timer.payload == 1
    assert await announce(store) == "known"
    await settle(store, an_end(timer))
    assert await announce(store) == "known"


async def test_an_expiry_whose_run_is_under_way_is_known(store: Store) -> None:
    """If a pod held the report back until the run ended, the key's lock might be gone and the expiry fire twice."""
    assert await announce(store) == "due"
    (timer,) = await claim(store)
    assert await announce(store) == "known"
    await settle(store, an_end(timer))


async def test_a_key_that_was_set_again_and_expired_sooner_is_due_at_once(store: Store) -> None:
    await adopted(store)
    await put(store, ms=1)
    await key_gone(store, KEY)
    assert await announce(store) == "look"
    assert await resolve(store, "expired") == "due"
    (timer,) = await claim(store)
    assert timer.due_ms <= timer.updated_ms


async def test_a_key_that_expired_before_it_was_seen_fires_with_its_name_alone(store: Store) -> None:
    assert await announce(store) == "due"
    (timer,) = await claim(store)
    assert (timer.payload, timer.history[-1].note) == (None, "created")
    await settle(store, an_end(timer))
    assert await announce(store, 2) == "due"
    (timer,) = await claim(store)
    assert timer.occurrence == 2


BEFORE, NEWEST = -900, -500
"""When two canaries expired, in ms from the answer to an expiry between them."""


async def answered(store: Store, number: int = 1, *, alone: str = "") -> int:
    """A key that expired after a canary that a pod heard, or after it had subscribed, and fired. Returns when."""
    at_ms = await store.now_ms()
    assert await announce(store, number, since_ms=at_ms + BEFORE, alone=alone) == "due"
    (timer,) = await claim(store)
    await settle(store, an_end(timer))
    return at_ms


async def test_pods_that_heard_the_same_canary_report_the_same_expiry(store: Store) -> None:
    at_ms = await answered(store, 3)
    for number, code in ((1, "known"), (3, "known"), (4, "due")):
        assert await announce(store, number, since_ms=at_ms + BEFORE) == code


async def test_what_came_after_a_later_canary_is_a_later_expiry(store: Store) -> None:
    """Though that canary expired before the answer: who answered had not heard it when the key expired."""
    at_ms = await answered(store, 3)
    assert await announce(store, 7, since_ms=at_ms + BEFORE - 1) == "known"
    assert await announce(store, since_ms=at_ms + NEWEST) == "due"
    assert await announce(store, 4, since_ms=at_ms + BEFORE) == "known"


async def test_an_expiry_that_a_pod_hears_after_it_has_subscribed_is_due(store: Store) -> None:
    at_ms = await answered(store)
    assert await announce(store, since_ms=at_ms + NEWEST, alone="new") == "known"
    assert await announce(store, since_ms=await store.now_ms() + 1, alone="new") == "due"


async def test_an_expiry_that_a_pod_heard_right_after_it_had_subscribed_fires_once(store: Store) -> None:
    """The others know it by the canary before, and by that they know the next."""
    at_ms = await answered(store, alone="new")
    assert await announce(store, 7, since_ms=at_ms + BEFORE - 1) == "known"
    assert await announce(store, 7, since_ms=at_ms + BEFORE - 1) == "known"
    assert await announce(store, 8, since_ms=at_ms + BEFORE - 1) == "due"


async def test_an_expiry_after_a_canary_that_a_new_pod_had_not_heard_is_a_later_one(store: Store) -> None:
    """Though that canary expired before the answer."""
    at_ms = await answered(store, alone="new")
    assert await announce(store, since_ms=at_ms + NEWEST) == "due"


async def test_two_expiries_that_only_a_new_pod_heard_both_fire(store: Store) -> None:
    at_ms = await answered(store, alone="new")
    assert await announce(store, since_ms=at_ms + NEWEST, alone="newer") == "known"
    assert await announce(store, since_ms=at_ms + BEFORE, alone="new") == "known"
    assert await announce(store, 2, since_ms=at_ms + BEFORE, alone="new") == "due"


@pytest.mark.parametrize("alone", ["", "new"])
@pytest.mark.parametrize("is_heard", [False, True])
async def test_the_expiry_after_one_that_a_read_found_is_due(store: Store, *, alone: str, is_heard: bool) -> None:
    """If a pod had read the key because it heard that, the next may even be reported before what others heard."""
    await adopted_and_expired(store)
    first = Heard(await store.now_ms() - 1_000, alone, 1)
    assert await resolve(store, "expired", heard=first if is_heard else None) == "due"
    (timer,) = await claim(store)
    await settle(store, an_end(timer))
    bare, second = BareKeys(store), first._replace(number=2)
    for _ in range(0 if is_heard else 2):
        assert await bare.announce({A: first}) == {A: "known"}
    assert await bare.announce({A: second}) == {A: "due"}
    (timer,) = await claim(store)
    await settle(store, an_end(timer))
    assert await bare.announce({A: first}) == {A: "known"}
    assert await bare.announce({A: second}) == {A: "known"}


async def test_the_expiry_after_one_that_two_reads_found_is_due(store: Store) -> None:
    """The faster one had not heard that; the number of the slower one passed for no answer, and the next one for it."""
    await adopted_and_expired(store)
    first, known_ms = Heard(await store.now_ms() - 1_000, "", 1), await known(store)
    assert await resolve(store, "expired") == "due"
    assert await resolve(store, "expired", known_ms=known_ms, heard=first) == "stale"
    (timer,) = await claim(store)
    await settle(store, an_end(timer))
    bare = BareKeys(store)
    assert await bare.announce({A: first._replace(number=2)}) == {A: "due"}
    assert await bare.announce({A: first}) == {A: "known"}


async def test_an_answered_report_that_led_to_a_read_is_not_what_that_found(store: Store) -> None:
    """The pod that had read the key for the last time died before it deleted it, and the key was set again."""
    await adopted_and_expired(store)
    first = Heard(await store.now_ms() - 1_000, "", 1)
    assert await resolve(store, "ending") == "due"
    (timer,) = await claim(store)
    await settle(store, an_end(timer))
    await adopted_and_expired(store, heard=first)
    assert await resolve(store, "expired", heard=first) == "due"
    (timer,) = await claim(store)
    await settle(store, an_end(timer))
    bare = BareKeys(store)
    assert await bare.announce({A: first._replace(number=2)}) == {A: "known"}
    assert await bare.announce({A: first._replace(number=3)}) == {A: "due"}


async def test_an_old_report_that_led_to_a_read_is_not_what_that_found(store: Store) -> None:
    at_ms = await answered(store, 3)
    await adopted_and_expired(store)
    assert await resolve(store, "expired", heard=Heard(at_ms + BEFORE, "", 2)) == "due"
    (timer,) = await claim(store)
    await settle(store, an_end(timer))
    for number, code in ((3, "known"), (4, "known"), (5, "due")):
        assert await announce(store, number, since_ms=at_ms + BEFORE) == code


async def test_an_answer_of_an_earlier_version_counts(store: Store) -> None:
    """Its lock says how often the key had expired by then, and when."""
    await answered(store)
    at_ms = await store.now_ms() + 1  # not the time of the answer before, which this version knows better
    await store.connections.commands.set(f"timers:{{0}}:answered:{KEY}", f"1 {at_ms}", keepttl=True)
    assert await announce(store, 2, since_ms=at_ms) == "known"
    assert await announce(store, since_ms=at_ms + 1) == "due"


async def test_a_pod_that_subscribes_in_the_millisecond_of_an_answer_may_have_heard_the_same(store: Store) -> None:
    await answered(store)
    found = await store.connections.commands.get(f"timers:{{0}}:answered:{KEY}")
    assert found is not None
    at_ms = int(found.split()[1])
    assert await announce(store, since_ms=at_ms, alone="new") == "known"
    assert await announce(store, since_ms=at_ms + 1, alone="newer") == "due"


@pytest.mark.parametrize("has_lock", [False, True])
async def test_an_answer_from_before_the_clock_was_set_back_hides_no_expiry(store: Store, *, has_lock: bool) -> None:
    """Its time lies ahead; so does that of the last canary of then, by which pods count until they hear the next."""
    redis, now_ms = store.connections.commands, await store.now_ms()
    before_ms, stale_ms = now_ms + 3_600_000, now_ms + 3_599_000
    assert await announce(store, since_ms=now_ms) == "due"
    (timer,) = await claim(store)
    await settle(store, an_end(timer))
    if has_lock:
        await redis.set(f"timers:{{0}}:answered:{KEY}", f"0 {before_ms}", keepttl=True)
        await redis.set(f"timers:{{0}}:expiry:{KEY}", f"{stale_ms - 1}@ 1 {before_ms}", keepttl=True)
    else:
        assert await redis.delete(f"timers:{{0}}:answered:{KEY}") == 1
        record: Any = await redis.hget(bucket_of(KEY), KEY)
        changed = re.sub(rb"bare-expired \d+", b"bare-expired %d" % before_ms, record)
        assert changed != record
        await redis.hset(bucket_of(KEY), KEY, changed)
    for since_ms, number, code in (
        (stale_ms, 1, "due"),
        (stale_ms, 1, "known"),
        (now_ms + 1, 1, "due"),
        (stale_ms, 2, "known"),
    ):
        assert await announce(store, number, since_ms=since_ms) == code
        if code == "due":
            (timer,) = await claim(store)
            await settle(store, an_end(timer))


async def expired(store: Store, how: str) -> None:
    """A key that expired unseen; adopted; or adopted and set again to end earlier."""
    if how == "set again":
        await adopted(store)
    elif how == "adopted":
        await adopted_and_expired(store)
    if how in ("adopted", "set again"):
        assert await resolve(store, "expired") == "due"
    else:
        assert await announce(store) == "due"


@pytest.mark.parametrize("how", ["unseen", "adopted", "set again"])
async def test_an_expiry_reported_again_after_its_lock_is_known_from_the_record(store: Store, how: str) -> None:
    """A pod that was frozen for more than a minute reports it."""
    before_ms = await store.now_ms() - 1
    await expired(store, how)
    (timer,) = await claim(store)
    await settle(store, an_end(timer))
    assert await store.connections.commands.delete(f"timers:{{0}}:answered:{KEY}") == 1
    ended = await read(store)
    assert await announce(store, since_ms=before_ms) == "known"
    assert await read(store) == ended
    assert await announce(store, since_ms=await store.now_ms() + 1) == "due"


@pytest.mark.parametrize("status", [Status.COMPLETED, Status.FAILED, Status.UNHANDLED])
async def test_a_key_named_like_a_finished_timer_of_a_key_starts_its_next_occurrence(
    store: Store, status: Status
) -> None:
    assert await announce(store) == "due"
    (timer,) = await claim(store)
    await settle(store, an_end(timer, status))
    assert await announce(store, 2) == "due"
    (timer,) = await claim(store)
    assert (timer.occurrence, timer.attempt) == (2, 1)


async def rearmed_of_key(store: Store) -> None:
    """A timer of a key whose run has armed it again."""
    assert await announce(store) == "due"
    (timer,) = await claim(store)
    await settle(store, an_end(timer, Status.SCHEDULED, due_ms=timer.due_ms + HOUR_MS, occurrence=2))


async def replaced_by_the_api(store: Store) -> None:
    """A timer of a key that the API has replaced and cancelled since."""
    await adopted(store)
    await armed(store, if_exists="replace", due="+7200000")
    assert await resolve(store, "deleted") == "forgotten"
    await store.cancel(*A)


async def changed_by_the_api(store: Store) -> None:
    """A scheduled timer that follows its key no longer."""
    await adopted(store)
    await store.reschedule(*A, due="+7200000")
    assert await resolve(store, "deleted") == "forgotten"


@pytest.mark.parametrize(
    "before",
    [
        lambda store: armed(store, due="+3600000", spec={"payload": 1}),
        running,
        cancelled,
        finished,
        lambda store: finished(store, status=Status.FAILED),
        lambda store: finished(store, status=Status.UNHANDLED),
        rearmed_of_key,
        replaced_by_the_api,
        changed_by_the_api,
    ],
    ids=["scheduled", "running", "cancelled", "completed", "failed", "unhandled", "re-armed", "replaced", "changed"],
)
async def test_a_forged_expiry_changes_no_timer_that_was_armed_otherwise(
    store: Store, before: Callable[[Store], Awaitable[object]]
) -> None:
    """Whoever may PUBLISH ran scheduled and cancelled timers at once, with the payload `null`."""
    await before(store)
    record, due = await store.connections.commands.hget(bucket_of(KEY), KEY), (await state_of(store)).due
    for times in (2, 3):
        assert await announce(store, times, since_ms=await store.now_ms() + 1) == "refused"
    assert await store.connections.commands.hget(bucket_of(KEY), KEY) == record
    assert (await state_of(store)).due == due
    assert await claim(store) == []


async def test_a_forged_expiry_of_a_waiting_timer_asks_for_a_look_at_its_key(store: Store) -> None:
    """Also if the shard has lost that it knows the key: without a look, the timer ran with the payload `null`."""
    timer = await adopted(store)
    for lost in (False, True):
        if lost:
            assert await store.connections.commands.zrem("timers:{0}:bare", KEY) == 1
        assert await announce(store, since_ms=await store.now_ms() + 1) == "look"
        assert await resolve(store, "there") == "waits"
    assert (await read(store), await known(store)) == (timer, timer.due_ms)


async def test_a_key_over_a_timer_of_the_api_is_a_key_from_then_on(store: Store) -> None:
    await armed(store, due="+7200000")
    await adopted(store)
    assert await resolve(store, "deleted") == "cancelled"
    assert await announce(store) == "due"


@pytest.mark.parametrize("purge", [False, True])
async def test_the_key_of_a_cancelled_timer_is_spare_until_it_is_gone(store: Store, purge: bool) -> None:
    """So the next scan deletes it instead of adopting it again."""
    timer = await adopted(store)
    assert (await store.cancel(*A, purge=purge)).code == ("purged" if purge else "cancelled")
    assert await known(store) == timer.due_ms
    assert await resolve(store, "there") == "spare"
    assert await BareKeys(store).take({A: timer.due_ms}) == [A]
    assert await resolve(store, "deleted") == "forgotten"
    assert await known(store) is None


@pytest.mark.parametrize("due", ["", "+7200000"])
async def test_a_changed_timer_no_longer_follows_its_key(store: Store, due: str) -> None:
    """Otherwise the next scan would undo the change."""
    await adopted(store)
    assert (await store.reschedule(*A, due=due, spec={"payload": 2})).code == "changed"
    changed = await read(store)
    assert await resolve(store, "there") == "spare"
    assert await resolve(store, "deleted") == "forgotten"
    assert await read(store) == changed
    state = await state_of(store)
    assert (set(state.due), state.triggers) == ({A}, {A})


async def test_a_replaced_timer_no_longer_follows_its_key(store: Store) -> None:
    await adopted(store)
    await armed(store, if_exists="replace", due="+7200000")
    assert await resolve(store, "there") == "spare"


async def test_the_expiry_of_a_key_whose_timer_was_changed_is_known(store: Store) -> None:
    await adopted_and_expired(store)
    assert (await store.reschedule(*A, due="+7200000")).code == "changed"
    assert await announce(store) == "look"
    assert await resolve(store, "expired") == "forgotten"
    assert await announce(store) == "known"
    assert await announce(store, since_ms=await store.now_ms() + 1) == "refused"


async def test_a_key_that_is_set_and_expires_after_its_timer_was_cancelled_fires(store: Store) -> None:
    await adopted(store)
    await store.cancel(*A)
    assert await announce(store) == "look"
    assert await resolve(store, "expired") == "forgotten"
    assert await announce(store) == "due"


@pytest.mark.parametrize(("what", "cause"), [("deleted", "bare-deleted"), ("lost-ttl", "bare-lost-ttl")])
async def test_a_deleted_key_cancels_its_timer(store: Store, what: str, cause: str) -> None:
    await adopted(store)
    assert await resolve(store, what) == "cancelled"
    timer = await read(store)
    assert (timer.status, timer.history[0].cause) == (Status.CANCELLED, cause)
    assert await known(store) is None


async def test_an_expiry_that_was_heard_before_the_look_that_found_it_is_known(store: Store) -> None:
    await adopted_and_expired(store)
    heard_ms = await store.now_ms()
    await key_gone(store, await passing(store))
    assert await resolve(store, "expired") == "due"
    (timer,) = await claim(store)
    await settle(store, an_end(timer))
    assert await announce(store, since_ms=heard_ms) == "known"
    assert await announce(store, since_ms=await store.now_ms() + 1) == "due"


async def passing(store: Store) -> str:
    """A key that lives for 1 ms, so that at least 1 ms has passed when it is gone."""
    await store.connections.commands.set("passing", "1", px=1)
    return "passing"


async def test_an_unreadable_record_is_made_again_from_its_key(store: Store) -> None:
    await adopted(store)
    await store.connections.commands.hset(bucket_of(KEY), KEY, "broken")
    assert await resolve(store, "there") == "stale"
    assert KEY in {":".join(name) for name in (await state_of(store)).quarantine}
    assert await adopt(store) == "adopted"


async def test_the_known_keys_come_in_the_order_of_their_deadlines(store: Store) -> None:
    redis, bare, now_ms = store.connections.commands, BareKeys(store), await store.now_ms()
    for timer_id, after_ms in (("b", 2000), ("a", 1000), ("c", 3000)):
        key = KeyState(None, now_ms + after_ms * 1000, b"1")
        assert await bare.report("adopted", {(PREFIX, timer_id): key}) == {(PREFIX, timer_id): "adopted"}
    found = await bare.known_until(now_ms + 2_000_000)
    assert list(found.items()) == [(A, now_ms + 1_000_000), ((PREFIX, "b"), now_ms + 2_000_000)]
    assert await bare.known_until(now_ms) == {}
    cursor, page = await bare.scan_known(0, 0)
    assert (cursor, sorted(page)) == (0, [A, (PREFIX, "b"), (PREFIX, "c")])
    assert await inspect(store) == KeyState(now_ms + 1_000_000, GONE)
    assert not await redis.exists(KEY)


async def test_known_keys_that_the_user_may_not_read_hide_no_others(store: Store) -> None:
    """There may be any number of them, and their deadlines may have passed long ago."""
    redis, bare = store.connections.commands, BareKeys(store)
    secret = {f"secret:{number}": number for number in range(2 * PAGE_SIZE + 1)}
    await redis.zadd("timers:{0}:bare", {**secret, KEY: 10_000})
    assert len(await bare.known_until(20_000)) == PAGE_SIZE
    store.refusals.denied("PEXPIRETIME secret:0")
    assert await bare.known_until(20_000) == {A: 10_000}
    assert await bare.known_until(9_999) == {}


async def test_a_scan_finds_names_and_values(store: Store) -> None:
    redis, bare = store.connections.commands, BareKeys(store)
    await redis.set("reminder:a", "1", px=HOUR_MS)
    await redis.hset("reminder:hash", "x", "1")
    await redis.pexpire("reminder:hash", HOUR_MS)
    for foreign in ("UPPER:a", "no-colon", "a:b c"):
        await redis.set(foreign, "x")
    await armed(store, "service-made", due="+3600000")
    found, cursor = [], -1
    while cursor:
        cursor, some = await bare.scan(max(cursor, 0))
        found += some
    assert sorted(found) == [("reminder", "a"), ("reminder", "hash"), ("timers", "meta")]
    found.remove(("timers", "meta"))  # no processor has the prefix `timers`
    states, _ = await bare.inspect([*found, ("reminder", "missing")], LEAD_MS)
    assert {name: seen.value for (_, name), seen in states.items()} == {"a": b"1", "hash": None, "missing": None}
    await redis.delete("reminder:hash")


@pytest.mark.parametrize(
    ("value", "payload"),
    [
        (b"hello", "hello"),
        (b'{"a": [1]}', {"a": [1]}),
        (b"", ""),
        (b"\xff", "\ufffd"),
        (b"NaN", "NaN"),
        (b"[" * 60_000, "[" * 60_000),
        (b"[" * 100_000, None),
        (b"x" * 65_536, "x" * 65_536),
        (b"x" * 65_537, None),
        (b"\n" * 65_536, "\n" * 65_536),
        (b"\0" * 65_536, "\0" * 65_536),
        (b'"' * 33_000, '"' * 33_000),
        (b"\xff" * 65_536, "\ufffd" * 65_536),
        (b"[" + b"1e15," * 13_000 + b"0]", [1e15] * 13_000 + [0]),
        (b"null", None),
    ],
)
def test_what_a_value_becomes(value: bytes, payload: object) -> None:
    """The limit is that of the value as it was SET, whatever its JSON takes."""
    assert spec_of(value).get("payload") == payload


async def test_a_value_that_is_too_large_is_told_once(store: Store) -> None:
    """A key is reported when it is found, shortly before its deadline, and when it is deleted."""
    bare, large = BareKeys(store), b"x" * 65_537
    due_ms = await store.now_ms() + HOUR_MS
    with capture_logs() as logs:
        assert await bare.report("adopted", {A: KeyState(None, due_ms, large)}) == {A: "adopted"}
        assert await bare.report("ending", {A: KeyState(due_ms, due_ms, large)}) == {A: "due"}
        assert await bare.report("deleted", {A: KeyState(due_ms, due_ms, large)}) == {A: "forgotten"}
        assert await bare.report("adopted", {A: KeyState(None, due_ms + 1, large)}) == {A: "adopted"}
    said = [(line["timer"], line["bytes"], line["log_level"]) for line in logs]
    assert said == [(KEY, 65_537, "warning")] * 2
    assert (await read(store)).payload is None


async def test_the_largest_value_is_read_back_whole(store: Store) -> None:
    await put(store, "\x01" * 65_536)
    assert await adopt(store) == "adopted"
    assert (await read(store)).payload == "\x01" * 65_536


async def test_a_key_that_ends_after_all_times_is_left_alone(store: Store) -> None:
    """The record of one could not be read: a time has thirteen digits."""
    await store.connections.commands.set(KEY, "1", pxat=MAX_TIME_MS + 1)
    assert (await inspect(store)).deadline_ms == NO_TTL
    await store.connections.commands.set(KEY, "1", pxat=MAX_TIME_MS)
    assert await adopt(store) == "adopted"
    assert (await read(store)).due_ms == MAX_TIME_MS


async def test_a_foreign_value_in_the_place_of_the_known_keys_stops_no_scan(store: Store) -> None:
    await store.connections.commands.set("timers:{0}:bare", "foreign")
    await put(store)
    bare = BareKeys(store)
    assert await bare.scan_known(0, 0) == (0, [])
    assert await adopt(store) == "adopted"
    assert await known(store) is not None
