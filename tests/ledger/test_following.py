"""The ledger follows: every change reaches it, in whatever state either side is, and nothing is taken from it without
proof."""

import hashlib
from collections.abc import Collection

import pytest
from sqlalchemy import select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from tests.engine.fleet import Calls, Fleet, Held
from tests.ledger.copies import agreed, in_ledger, say, whole
from tests.waiting import eventually
from timers import NewTimer
from timers.client.copies import given_back, row_of, row_of_timer
from timers.core.model import Timer
from timers.core.outcome import Fail, Rearm, Retry
from timers.engine import comparing, following
from timers.ledger.database import Database
from timers.ledger.facts import Lives
from timers.ledger.rows import Row, save, save_in
from timers.ledger.schema import PURGED, timers
from timers.processor import Context
from timers.store import keys
from timers.store.codec import RecordParts, put_together, readable
from timers.store.following import LEDGER, Note, Stage, advance, notes, stages
from timers.store.store import Store


async def test_every_kind_of_change_is_copied(sharded: Fleet, database: Database) -> None:
    async def act(timer: Timer, _context: Context) -> Rearm | None:
        match timer.id:
            case "fails":
                raise Fail("no")
            case "retries":
                raise Retry(after="1h")
            case "rearms":
                return Rearm(after="1h")
        return None

    await sharded.pod(Calls(act=act), ledger=database)
    client = sharded.client
    for name in ("fails", "retries", "rearms", "done"):
        await client.create("note", name, delay="0s", payload={"name": name})
    await client.create("note", "repeats", delay="0s", repeat={"every": "1d"})
    for name in ("later", "moved", "cancelled", "purged"):
        await client.create("note", name, delay="24h", payload="Zoë")
    await client.change("note", "moved", delay="48h", tags=["x"])
    await client.cancel("note", "cancelled")
    await client.cancel("note", "purged", purge=True)

    async def ended() -> bool:
        return [(await client.get("note", name)).attempt for name in ("fails", "retries", "done")] == [1, 1, 1]

    await eventually(ended, "the runs end")
    rows = await agreed(database, sharded.store)
    assert {row.id: row.status for row in rows.values()} == {
        "fails": "failed",
        "retries": "scheduled",
        "rearms": "scheduled",
        "done": "completed",
        "repeats": "scheduled",
        "later": "scheduled",
        "moved": "scheduled",
        "cancelled": "cancelled",
    }
    assert rows["note:moved"].spec == '{"payload":"Zoë","tags":["x"]}'
    assert rows["note:fails"].progress.startswith('{"last_error":')
    assert not await changes_left(sharded)


async def changes_left(fleet: Fleet) -> int:
    """How many notes lie in Redis, once the pod has taken those away that it has written."""
    redis, names = fleet.redis, [f"{keys.root(shard)}changed" for shard in range(fleet.store.shards)]

    async def none() -> bool:
        return not any([await redis.exists(name) for name in names])

    await eventually(none, "the notes are taken away")
    return sum([await redis.hlen(name) for name in names])


async def test_what_was_there_before_the_ledger_is_copied(fleet: Fleet, database: Database) -> None:
    for number in range(1200):
        await fleet.client.create("note", f"{number:04}", delay="24h")
    await fleet.pod(Calls(), ledger=database)
    assert len(await agreed(database, fleet.store)) == 1200


async def test_the_note_of_a_run_that_has_just_begun_waits(fleet: Fleet) -> None:
    await fleet.client.create("note", "a", delay="24h")
    await notes(fleet.store, 0, 0)  # from now on changes are noted
    now_us, members = round(await fleet.store.now_ms()) * 1000, (b"note:just", b"note:long")
    names = [f"timers:{{0}}:rec:{hashlib.sha1(member, usedforsecurity=False).hexdigest()[:2]}" for member in members]
    for member, name, begun_us in zip(members, names, (now_us + 60_000_000, now_us - 60_000_000), strict=True):
        record = put_together(RecordParts("r", 2, 1, 0, 1, begun_us, 1, 1, b"{}", b"", ()))
        await fleet.redis.hset(name, member, record)
        await fleet.redis.hset("timers:{0}:changed", member, "1 2")
    found = await notes(fleet.store, 0, 0)
    assert ([note.member for note in found.notes], found.fresh, found.left) == (["note:long"], 1, 2)
    assert (await notes(fleet.store, 0, 0, found.notes)).left == 1
    for member, name in zip(members, names, strict=True):
        await fleet.redis.hdel(name, member)


async def test_more_notes_than_one_call_takes_are_taken_away(fleet: Fleet) -> None:
    await notes(fleet.store, 0, 0)
    for start in range(0, 1200, 400):
        await fleet.client.batch(NewTimer(prefix="note", id=f"{start + i}", delay="24h") for i in range(400))
    gathered: list[Note] = []
    cursor = -1
    while cursor:
        found = await notes(fleet.store, 0, max(cursor, 0))
        gathered, cursor = [*gathered, *found.notes], found.cursor
    await fleet.client.change("note", "7", tags=["x"])
    found = await notes(fleet.store, 0, 0, gathered)
    assert [(note.member, note.noted.split()[1]) for note in found.notes] == [("note:7", b"2")]
    assert (len({note.member for note in gathered}), found.left) == (1200, 1)


async def test_many_removals_are_not_one_transaction(
    fleet: Fleet, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The notes of removed timers, as they wait after a time without the database, have no records to add up."""
    await fleet.client.create("note", "a", delay="24h")
    await fleet.pod(Calls(), ledger=database)
    await agreed(database, fleet.store)
    written = list[int]()

    async def counted(connection: AsyncConnection, *, lives: Lives, changed: Collection[Row]) -> None:
        await save_in(connection, lives=lives, changed=changed)
        written.append(len(changed))

    monkeypatch.setattr(following, "save_in", counted)
    created_ms = (await fleet.client.get("note", "a")).created_ms
    await fleet.redis.hset("timers:{0}:changed", mapping={f"note:x{i}": f"{created_ms} 1 gone" for i in range(9000)})
    assert not await changes_left(fleet)
    assert sum(written) >= 9000
    assert max(written) < 6000, "in transactions of about a MiB"


async def test_large_records_are_read_in_parts_and_all_copied(fleet: Fleet, database: Database) -> None:
    """Five hundred payloads of 64 KiB in one answer would hold the server up for long."""
    await notes(fleet.store, 0, 0)
    await fleet.client.batch(
        NewTimer(prefix="note", id=f"{i:03}", delay="24h", payload="x" * 60_000) for i in range(100)
    )
    found = await notes(fleet.store, 0, 0)
    assert (len(found.notes), found.left) == (17, 100)
    assert found.large >= len(found.notes)
    await fleet.pod(Calls(), ledger=database)
    assert len(await agreed(database, fleet.store)) == 100
    assert not await changes_left(fleet)


async def test_without_a_ledger_nothing_is_noted(fleet: Fleet) -> None:
    await fleet.pod(Calls())
    await fleet.client.create("note", "a", delay="24h")
    assert not await fleet.redis.exists("timers:{0}:changed")
    assert await fleet.redis.hget("timers:{0}:hooks", LEDGER) is None


async def test_a_removed_timer_leaves_a_tombstone_and_a_later_life_replaces_it(
    fleet: Fleet, database: Database
) -> None:
    await fleet.pod(Calls(), ledger=database)

    async def whole() -> bool:
        return (await stages(fleet.store, [0]))[0].is_whole

    await eventually(whole, "the ledger follows")
    for _ in range(3):
        await fleet.client.create("note", "a", delay="24h", payload={"secret": 1})
        await fleet.client.cancel("note", "a", purge=True)

    async def statuses() -> list[str]:
        async with database.transaction() as connection:
            return [row.status for row in await connection.execute(select(timers.c.status))]

    async def purged() -> bool:
        return await statuses() == [PURGED]

    await eventually(purged, "the tombstone is there")
    async with database.transaction() as connection:
        (row,) = await connection.execute(select(timers))
        assert "secret" not in str(row)
    await fleet.client.create("note", "a", delay="24h")
    assert (await agreed(database, fleet.store))["note:a"].version == 1


async def test_a_timer_in_an_abolished_time_zone_keeps_its_spec_in_its_row(fleet: Fleet) -> None:
    spec = b'{"payload":1,"repeat":{"every":"1d","timezone":"Mars/Olympus"}}'
    timer = readable("note", "a", put_together(RecordParts("s", 1, 0, 0, 1, 1, 1, 1, spec, b"", ())))
    assert timer is not None
    assert row_of_timer(fleet.store, timer).spec == spec.decode()


async def test_a_record_that_is_missing_without_a_word_deletes_no_row(fleet: Fleet, database: Database) -> None:
    await fleet.pod(Calls(), ledger=database)
    await fleet.client.create("note", "a", delay="24h")
    row = (await agreed(database, fleet.store))["note:a"]
    async with database.transaction() as connection:
        await save(connection, [row._replace(id="b")])
    await fleet.redis.hset("timers:{0}:changed", "note:b", "1 99")
    await changes_left(fleet)
    assert set(await in_ledger(database)) == {"note:a", "note:b"}


async def test_a_record_that_no_column_can_hold_stops_no_other(fleet: Fleet, database: Database) -> None:
    late = (b"99999999999999999999 x 0 - - - cancelled",)
    for token, spec, history in ((2**63, b"{}", ()), (1, b"{\0}", ()), (1, b"{}", late)):
        parts = RecordParts("s", 1, 0, 0, 1, token, 1, 1, spec, b"", history)
        assert row_of(0, "note", "foreign", put_together(parts)) is None
    await fleet.pod(Calls(), ledger=database)
    bad = put_together(RecordParts("x", 1, 0, 0, 1, 2**63, 1, 1, b"{}", b"", ()))
    await fleet.client.create("note", "a", delay="24h")
    await fleet.redis.hset("timers:{0}:rec:00", "note:foreign", bad)
    await fleet.redis.hset("timers:{0}:changed", "note:foreign", "1 1")
    await changes_left(fleet)
    assert set(await in_ledger(database)) == {"note:a"}
    await fleet.redis.hdel("timers:{0}:rec:00", "note:foreign")


@pytest.mark.parametrize("noted", ["rubbish", "x y gone", "1 99999999999999999999 gone"])
async def test_a_note_that_another_program_wrote_stops_no_other(fleet: Fleet, database: Database, noted: str) -> None:
    await fleet.pod(Calls(), ledger=database)
    await fleet.client.create("note", "a", delay="24h")
    await fleet.redis.hset("timers:{0}:changed", "note:foreign", noted)
    await changes_left(fleet)
    assert set(await in_ledger(database)) == {"note:a"}


async def test_a_database_that_is_away_stops_no_timer_and_loses_no_change(
    fleet: Fleet, database: Database, ledger_url: str
) -> None:
    calls = Calls()
    pod = await fleet.pod(calls, ledger=database)
    await fleet.client.create("note", "before", delay="24h")
    await agreed(database, fleet.store)
    async with database.transaction() as connection:
        await connection.execute(text("ALTER TABLE timers_timers RENAME TO away"))
    for number in range(20):
        await fleet.client.create("note", str(number), delay="0s")

    async def waits() -> bool:
        state = pod.worker.health().services["ledger"]
        return len(calls) == 20 and state.startswith("waiting: the ledger is not available")

    await eventually(waits, "all run, and the service says what it waits for")
    assert pod.worker.health().ready
    async with database.transaction() as connection:
        await connection.execute(text("ALTER TABLE away RENAME TO timers_timers"))
    assert len(await agreed(database, fleet.store)) == 21


async def test_another_pod_goes_on_where_a_killed_one_was(fleet: Fleet, database: Database) -> None:
    held = Held()
    first = await fleet.pod(held, ledger=database)
    await fleet.client.create("note", "a", delay="0s")

    async def runs() -> bool:
        return len(held) == 1

    await eventually(runs, "it runs")
    await fleet.kill(first)
    await fleet.client.create("note", "b", delay="24h")
    await fleet.pod(Calls(), name="b", ledger=database)
    await agreed(database, fleet.store)


async def test_the_next_pod_copies_what_a_dead_one_leaves_before_its_death_is_known(
    sharded: Fleet, database: Database
) -> None:
    # With such beats nobody notices a death.
    pods = [await sharded.pod(Calls(), name=name, ledger=database, beat_ms=600_000) for name in ("a", "b")]
    for pod in pods:
        await pod.worker.peers.beat()
    await sharded.client.create("note", "before", delay="24h")
    await agreed(database, sharded.store)
    await changes_left(sharded)
    await pods[0].freeze()
    for number in range(3 * sharded.store.shards):
        await sharded.client.create("note", str(number), delay="24h")
    assert len(await agreed(database, sharded.store)) == 3 * sharded.store.shards + 1
    await changes_left(sharded)
    await sharded.kill(pods[0])


async def test_a_pod_that_leads_no_shard_lacks_nothing(fleet: Fleet, database: Database) -> None:
    """The lowest share of all pods is what a board shows."""
    pods = [await fleet.pod(Calls(), name=name, ledger=database) for name in ("a", "b")]

    async def one_leads() -> bool:
        return len([pod for pod in pods if list(pod.worker.peers.led(range(fleet.store.shards)))]) == 1

    await eventually(one_leads, "the pods know of each other")

    async def have_all() -> bool:
        return all(pod.worker.following is not None and pod.worker.following.share == 1.0 for pod in pods)

    await eventually(have_all, "both have all")


async def test_a_shard_that_another_pod_has_completed_lacks_nothing(
    fleet: Fleet, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    overtaken = list[bool]()

    async def overtake(store: Store, shard: int, stage: Stage, reached: Stage) -> bool:
        if not overtaken:
            await say(store, shard, f"whole {await store.now_ms()}")
        overtaken.append(not await advance(store, shard, stage, reached))
        return not overtaken[-1]

    monkeypatch.setattr(following, "advance", overtake)
    pod = await fleet.pod(Calls(), ledger=database)
    copying = pod.worker.following
    assert copying is not None

    async def has_all() -> bool:
        return bool(overtaken) and copying.share == 1.0

    await eventually(has_all, "it has all")
    assert overtaken == [True]


@pytest.mark.parametrize("stage", ["whole", "check", "copy 32"])
async def test_another_database_gets_all_timers_when_a_pod_with_it_starts(
    fleet: Fleet, database: Database, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis said that it agreed with the ledger, with the one before. If it was lost then, the new one had nothing."""
    monkeypatch.setattr(comparing, "COUNT_SECONDS", comparing.PASS_SECONDS)
    await fleet.client.create("note", "a", delay="24h")
    await notes(fleet.store, 0, 0)
    what, _, place = stage.partition(" ")
    now_ms = await fleet.store.now_ms()
    await say(fleet.store, 0, f"{what} {place or now_ms}")
    if what == "check":
        await fleet.redis.hset(f"{keys.root(0)}hooks", LEDGER, f"whole {now_ms} another-server")
    await fleet.redis.delete(f"{keys.root(0)}changed")
    await given_back(fleet.store, database, [("note", "a")])  # a caller that has the new setting before the pods
    await fleet.pod(Calls(), ledger=database)
    assert list(await agreed(database, fleet.store)) == ["note:a"]
    await whole(fleet.store)
