"""Records are put back out of a copy: whole, only if they are newer, and as often as somebody likes."""

from typing import Any

import pytest

from tests.conftest import SharedServers
from tests.conservation import conserved, state_of
from tests.servers import Kind
from tests.store import acts
from tests.store.acts import DAY_MS, HOUR_MS, LEASE_MS, POD, PREFIX, armed, claim, read, running, settle
from tests.store.backends import open_store
from tests.store.listening import wakes
from timers.core.model import Status
from timers.store import keys, upkeep
from timers.store.codec import RecordParts, taken_apart
from timers.store.restoring import Restored, restore
from timers.store.store import Store

FINISHED = [Status.COMPLETED, Status.FAILED, Status.UNHANDLED, Status.CANCELLED]
EXPORT = "imported 2026-11-23T00:00:00Z"


async def copied(store: Store) -> list[Restored]:
    """Every record, as Redis has it."""
    found: list[Restored] = []
    redis: Any = store.connections.commands
    for key in await redis.keys("timers:{*}:rec:*"):
        fields = await redis.hgetall(key)
        for member, record in fields.items():
            made = Restored.of(*keys.identity_of(keys.text(member)), taken_apart(record))
            found.append(made._replace(record=record))
    return sorted(found)


async def emptied(store: Store) -> None:
    """Empty the db under the store, as another server that takes over with nothing."""
    await store.connections.commands.flushdb()
    await store.identity.renew()


async def one_of_each(store: Store) -> None:
    """A timer in each status, and one that is retrying."""
    for status in Status:
        if status is not Status.RETRYING:
            await acts.in_status(store, status, status.value)
    await acts.retrying(store, "again", since="2026-11-20T00:00:00Z")


def changed(copy: Restored, **parts: Any) -> Restored:
    return Restored.of(copy.prefix, copy.id, taken_apart(copy.record)._replace(**parts))


def a_copy(timer_id: str = "a", **parts: Any) -> Restored:
    """A completed timer out of a copy."""
    made = RecordParts(
        "c", 3, 1, 0, 1, 17, 1000, 2000, b'{"payload":1}', b"", (b"2000 r 1 p 0 - event", b"2500 c 1 p - - completed")
    )
    return Restored.of(PREFIX, timer_id, made._replace(**parts))


async def test_a_lost_db_comes_back_as_it_was(store: Store) -> None:
    await one_of_each(store)
    there, before = await copied(store), await state_of(store)
    await emptied(store)
    assert await restore(store, there) == ["restored"] * len(there)
    after = await state_of(store)
    assert await copied(store) == there
    assert after.counts == before.counts
    assert after.due == before.due
    assert after.finished == before.finished
    assert after.retrying.keys() == before.retrying.keys()
    assert after.token == max(timer.token for timer in before.records.values())
    assert after.triggers == {name for name, due in after.due.items() if due > after.now_ms}
    await conserved(store)


async def test_to_put_it_back_again_changes_nothing(store: Store) -> None:
    await one_of_each(store)
    there, before = await copied(store), await state_of(store)
    assert await restore(store, there) == ["kept"] * len(there)
    await emptied(store)
    await restore(store, there)
    (dump, _), codes = [await copied(store), await state_of(store)], await restore(store, there)
    assert codes == ["kept"] * len(there)
    assert await copied(store) == dump == there
    assert (await state_of(store)).leases.keys() == before.leases.keys()


async def test_two_in_one_call_count_as_one(store: Store) -> None:
    assert await restore(store, [a_copy(), a_copy(), a_copy(version=2), a_copy(version=4)]) == [
        "restored",
        "kept",
        "kept",
        "restored",
    ]
    assert (await read(store)).version == 4


@pytest.mark.parametrize("there", [status for status in Status if status is not Status.RETRYING])
@pytest.mark.parametrize("given", ["s", "r", "c", "f", "u", "x"])
async def test_a_newer_record_takes_the_place_of_one_in_any_status(store: Store, there: Status, given: str) -> None:
    old = await acts.in_status(store, there)
    if there is Status.RUNNING:
        await store.connections.commands.delete(acts.lease_key(old))
    (copy,) = await copied(store)
    newer = changed(copy, status=given, version=old.version + 1, due_ms=old.due_ms + HOUR_MS)
    assert await restore(store, [newer]) == ["restored"]
    assert await copied(store) == [newer]
    await conserved(store)


async def test_what_is_there_stays_if_it_is_as_new(store: Store) -> None:
    timer = await acts.finished(store)
    (copy,) = await copied(store)
    older = [
        copy,
        changed(copy, version=timer.version - 1, status="s"),
        changed(copy, created_ms=timer.created_ms - 1, version=timer.version + 5, status="s"),
    ]
    assert await restore(store, older) == ["kept"] * 3
    assert await copied(store) == [copy]


async def test_a_later_timer_of_the_same_name_is_newer_whatever_its_version(store: Store) -> None:
    timer = await acts.finished(store)
    (copy,) = await copied(store)
    later = changed(copy, created_ms=timer.created_ms + 1, version=1, status="s", history=())
    assert await restore(store, [later]) == ["restored"]
    assert await copied(store) == [later]


async def test_a_live_run_is_left_alone_until_its_lease_is_gone(store: Store) -> None:
    timer = await running(store)
    (copy,) = await copied(store)
    newer = changed(copy, status="s", version=9)
    assert await restore(store, [newer]) == ["running"]
    assert await copied(store) == [copy]
    await store.connections.commands.delete(acts.lease_key(timer))
    assert await restore(store, [newer]) == ["restored"]
    assert await settle(store, acts.an_end(timer)) == ["already"]
    assert (await read(store)).status is Status.SCHEDULED


async def test_a_run_goes_on_whose_pod_has_outlived_the_db(store: Store) -> None:
    timer = await running(store)
    there = await copied(store)
    await emptied(store)
    assert await restore(store, there) == ["restored"]
    assert await store.extend(0, [timer], pod=POD, lease_ms=LEASE_MS) == []
    assert await settle(store, acts.an_end(timer)) == ["settled"]


async def test_a_run_whose_pod_is_gone_is_rescued(store: Store) -> None:
    await running(store)
    there = await copied(store)
    await emptied(store)
    await restore(store, there)
    lost, _ = await store.orphans(0)
    assert lost == [(PREFIX, "a")]
    rescued = await store.rescue(0, lost, pod=POD, lease_ms=LEASE_MS)
    assert [(timer.attempt, timer.failures) for timer in rescued.timers] == [(2, 1)]


async def test_a_lease_that_outlived_its_record_is_kept_for_its_run_alone(store: Store) -> None:
    timer = await running(store)
    there, redis = await copied(store), store.connections.commands
    await redis.hdel(acts.bucket_of(timer.key), timer.key)
    assert await restore(store, there) == ["restored"]
    assert await redis.pttl(acts.lease_key(timer)) > 0
    await conserved(store)
    await redis.hdel(acts.bucket_of(timer.key), timer.key)
    assert await restore(store, [changed(there[0], token=timer.token - 1)]) == ["restored"]
    assert not await redis.exists(acts.lease_key(timer))
    await conserved(store)
    await redis.hdel(acts.bucket_of(timer.key), timer.key)
    await redis.set(acts.lease_key(timer), f"{POD} {timer.token}", px=LEASE_MS)
    assert await restore(store, [changed(there[0], status="s")]) == ["restored"]
    assert not await redis.exists(acts.lease_key(timer))
    await redis.zrem("timers:{0}:leases", timer.key)
    await redis.hdel("timers:{0}:counts", f"r {PREFIX}")


async def test_what_was_due_meanwhile_fires_at_once_and_once(store: Store) -> None:
    await armed(store, due="+3600000")
    (copy,) = await copied(store)
    await emptied(store)
    past = changed(copy, due_ms=1000)
    await restore(store, [past])
    assert [timer.due_ms for timer in await claim(store)] == [1000]
    assert await restore(store, [past]) == ["kept"]
    assert await claim(store) == []


async def test_sweepers_hear_of_what_is_due(real: Store) -> None:
    await real.identity.make()
    async with wakes(real) as heard:
        await restore(real, [a_copy(status="s")])
        assert await heard() == ["{0} 2000"]


async def test_tokens_rise_above_those_of_the_copy(store: Store) -> None:
    ahead = (await store.now_ms() + DAY_MS) * 1000
    await restore(store, [a_copy(token=ahead)])
    assert (await running(store, "b")).token > ahead
    assert await restore(store, [a_copy(token=2**53, version=9)]) == ["unreadable"]
    assert (await running(store, "c")).token > ahead


async def test_a_finished_timer_is_kept_for_as_long_as_since_its_end(store: Store) -> None:
    now = await store.now_ms()
    ends = {"old": now - 2 * DAY_MS, "new": now - 1000}
    history = {name: (b"%d c 1 p - - completed" % at, b"%d c 1 - - - imported x" % now) for name, at in ends.items()}
    await restore(store, [a_copy(name, history=lines) for name, lines in history.items()], cause=EXPORT)
    assert (await state_of(store)).finished == {(Status.COMPLETED, (PREFIX, name)): at for name, at in ends.items()}
    assert await acts.prune(store, retention_ms=DAY_MS, most=10) == 1
    assert await store.get([(PREFIX, "old")]) == [None]


async def test_the_history_says_that_it_was_imported(store: Store) -> None:
    assert await restore(store, [a_copy()], cause=EXPORT) == ["restored"]
    timer = await read(store)
    assert (timer.version, timer.history[0].cause, timer.history[0].text) == (4, "imported", EXPORT.partition(" ")[2])
    assert timer.history[0].note == "imported from 2026-11-23T00:00:00Z"
    assert [entry.cause for entry in timer.history] == ["imported", "completed", "event", "created"]
    assert await restore(store, [a_copy()], cause=EXPORT) == ["kept"]


async def test_keep_keeps_whatever_is_there(store: Store) -> None:
    await armed(store, due="+3600000")
    assert await restore(store, [a_copy(created_ms=9 * 10**12)], if_exists="keep") == ["kept"]
    assert await restore(store, [a_copy("b")], if_exists="keep") == ["restored"]


async def test_replace_goes_on_from_the_newer_one_once(store: Store) -> None:
    there = await acts.finished(store)
    older = a_copy(status="s", version=1, attempt=0, history=())
    assert await restore(store, [older], if_exists="replace", cause=EXPORT) == ["restored"]
    (timer,) = await claim(store)
    assert (timer.created_ms, timer.version) == (there.created_ms, there.version + 2)
    assert timer.token > there.token
    assert timer.idempotency_key != there.idempotency_key
    assert await settle(store, acts.an_end(timer)) == ["settled"]
    assert await restore(store, [older], if_exists="replace", cause=EXPORT) == ["kept"]
    assert await restore(store, [older], if_exists="replace", cause=f"{EXPORT}, another") == ["restored"]


async def test_replace_keeps_the_occurrence_of_which_it_knows_all_starts(store: Store) -> None:
    timer = await acts.finished(store)
    (copy,) = await copied(store)
    again = changed(copy, status="s")
    assert await restore(store, [again], if_exists="replace", cause=EXPORT) == ["restored"]
    assert (await read(store)).idempotency_key == timer.idempotency_key


@pytest.mark.parametrize("shards", [1, 3, 16])
async def test_many_go_to_their_shards(servers: SharedServers, kind: Kind, shards: int) -> None:
    many = [a_copy(f"{status}{i}", status=status) for i in range(250) for status in "scfx"]
    async with open_store(servers, kind, shards=shards) as store:
        assert await restore(store, many) == ["restored"] * len(many)
        assert await restore(store, many) == ["kept"] * len(many)


async def test_shards_of_another_epoch_are_founded(store: Store) -> None:
    await armed(store, "b", due="+3600000")
    other = Store(store.connections)
    await other.identity.refresh()
    await store.connections.commands.flushdb()
    assert await restore(other, [a_copy()]) == ["restored"]
    await store.identity.refresh()


async def test_a_db_of_the_old_format_gets_the_old_format(store: Store) -> None:
    store.identity.newest = 1
    assert await restore(store, [a_copy(progress=b'{"step":1}')]) == ["restored"]
    (copy,) = await copied(store)
    assert copy.record.startswith(b"1 c 3 17 1 0 1 2000 1000 2\n{")
    assert taken_apart(copy.record) == taken_apart(a_copy(progress=b'{"step":1}').record)
    assert await restore(store, [copy]) == ["kept"]


async def test_what_cannot_be_read_stops_nothing(store: Store) -> None:
    records = [
        a_copy("a", status="z"),
        a_copy("b"),
        Restored(PREFIX, "c", b"3 c from tomorrow"),
        Restored(PREFIX, "d", b""),
    ]
    assert await restore(store, records) == ["unreadable", "restored", "unreadable", "unreadable"]


async def test_a_record_of_a_newer_format_stays(store: Store) -> None:
    await armed(store, due="+3600000")
    redis, member = store.connections.commands, f"{PREFIX}:a"
    record = await redis.hget(acts.bucket_of(member), member)
    await redis.hset(acts.bucket_of(member), member, b"3 x")
    assert await restore(store, [a_copy()]) == ["newer"]
    await redis.hset(acts.bucket_of(member), member, record)


async def test_a_damaged_record_makes_room_for_the_copy(store: Store) -> None:
    await armed(store, due="+3600000")
    member = f"{PREFIX}:a"
    await store.connections.commands.hset(acts.bucket_of(member), member, b"garbage")
    assert await restore(store, [a_copy()]) == ["restored"]
    assert (await state_of(store)).quarantine.keys() == {(PREFIX, "a")}


@pytest.mark.parametrize(("lost", "given"), [("s", "s"), ("s", "c"), ("r", "r"), ("c", "c")])
async def test_entries_of_a_lost_record_are_counted_once(store: Store, lost: str, given: str) -> None:
    await restore(store, [a_copy(status=lost)])
    member = f"{PREFIX}:a"
    await store.connections.commands.hdel(acts.bucket_of(member), member)
    assert await restore(store, [a_copy(status=given)]) == ["restored"]


async def test_one_that_waited_for_a_bare_key_does_not_any_more(store: Store) -> None:
    assert await restore(store, [a_copy(status="w")]) == ["restored"]
    assert [timer.id for timer in await claim(store)] == ["a"]


async def test_hooks_hear_nothing_of_it(store: Store) -> None:
    await store.connections.commands.hset("timers:{0}:hooks", "arctfux * timers.hook-0123456789abcdef", 1)
    await restore(store, [a_copy(status=status, timer_id=status) for status in "srcfux"])
    assert not await store.connections.commands.exists("timers:{0}:outbox")


async def test_a_queue_that_is_paused_stays_so(store: Store) -> None:
    await store.pause(PREFIX, paused=True)
    await restore(store, [a_copy(status="s")])
    assert await claim(store) == []
    state = await state_of(store)
    assert (state.heads, state.blocked_heads) == ({}, {PREFIX: 2000})


async def test_an_audit_finds_nothing_after_it(store: Store) -> None:
    await one_of_each(store)
    there = await copied(store)
    await emptied(store)
    await restore(store, there, cause=EXPORT)
    assert [found async for found in upkeep.audit(store, 0) if found] == []


@pytest.mark.parametrize(
    "record",
    [
        b"",
        b"2 s",
        b"1 s 1 2 3\n{}\n",
        b"1 z 1 0 0 0 1 1000 1000 0\n{}\n",
        b"1 s 1 0 0 0 1 1000 1000 0\n{}",
        b"3 " + bytes(60),
    ],
)
def test_what_is_no_record_is_not_taken_apart(record: bytes) -> None:
    with pytest.raises(ValueError, match=r"record|unpack"):
        taken_apart(record)


@pytest.mark.parametrize("number", ["version", "token", "due_ms"])
def test_a_number_that_a_record_cannot_hold_is_refused(number: str) -> None:
    parts: dict[str, Any] = {number: 2**70}
    with pytest.raises(ValueError, match="too large"):
        a_copy(**parts)
