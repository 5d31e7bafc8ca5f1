"""What Redis loses the ledger gives back: every timer, none that had ended again, and everything that only grows."""

import asyncio
from collections.abc import Iterable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
from sqlalchemy.ext.asyncio import AsyncConnection

from tests.engine.fleet import Calls, Fleet, Held, until
from tests.ledger.copies import agreed, in_ledger, say
from tests.ledger.test_doctor import check_of
from tests.life.test_backup import exported, imported
from tests.life.test_limits import Busy, arm, ended, ids
from tests.members import declare
from tests.waiting import eventually
from timers.client import Armed, client_over, copies, open_store
from timers.client.fleet import Declared
from timers.core.fields import encode
from timers.core.model import Status, Timer
from timers.engine.following import Following
from timers.errors import LedgerUnavailable, NoProcessor
from timers.ledger import facts, rows
from timers.ledger.database import Database
from timers.ledger.rows import Row
from timers.store.following import RESTORE, Stage, stages
from timers.store.restoring import PAGE_BYTES
from timers.store.servers import connect


async def whole(fleet: Fleet, *names: str) -> dict[str, Timer]:
    """Wait until these timers are there again."""
    found = await fleet.store.get([("note", name) for name in names])

    async def back() -> bool:
        found[:] = await fleet.store.get([("note", name) for name in names])
        return None not in found

    await eventually(back, "the timers are back")
    return {timer.id: timer for timer in found if timer is not None}


async def lost(fleet: Fleet, database: Database, number: int) -> None:
    """The ledger has so many timers, `00` and so on, and neither their pod nor the db is there any more."""
    pod = await fleet.pod(Calls(), ledger=database)
    for each in range(number):
        await fleet.client.create("note", f"{each:02}", delay="24h")
    await agreed(database, fleet.store)
    await fleet.kill(pod)
    await fleet.redis.flushall()


async def test_the_ledger_has_what_redis_has_after_two_losses_in_a_row(
    fleet: Fleet, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger learns what was given back after the first only once the second pod has read its rows."""
    await lost(fleet, database, 3)
    first: list[Row] = []
    pages, saves = rows.page, rows.save

    async def held(connection: AsyncConnection, rows: Iterable[Row]) -> None:
        first.extend(rows)
        await asyncio.Event().wait()

    monkeypatch.setattr(rows, "save", held)
    slow = await fleet.pod(Calls(), ledger=database)
    await until(lambda: len(first) == 3, "the first pod has given all back")
    await fleet.kill(slow)
    await fleet.redis.flushall()

    async def after_the_read(database: Database, *asked: Any, **options: Any) -> Any:
        found = await pages(database, *asked, **options)
        if first:
            monkeypatch.setattr(rows, "save", saves)
            await database.do(partial(saves, rows=first.copy()))
            first.clear()
        return found

    monkeypatch.setattr(rows, "page", after_the_read)
    await fleet.pod(Calls(), ledger=database)
    await whole(fleet, "00", "01", "02")
    await agreed(database, fleet.store)
    assert not first


async def test_nothing_is_given_back_from_rows_that_were_read_before_another_loss(
    fleet: Fleet, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A timer that was cancelled after its row was read, and before Redis lost its data again, starts no more."""
    await lost(fleet, database, 3)
    async with database.transaction() as connection:  # they are due as soon as they are there
        await connection.exec_driver_sql("UPDATE timers_timers SET due = due - 90000000")
    pages, calls = rows.page, Calls()

    async def before_the_loss(*asked: Any, **options: Any) -> Any:
        found = await pages(*asked, **options)
        monkeypatch.setattr(rows, "page", pages)
        async with database.transaction() as connection:  # what a client's cancel leaves there
            await rows.save(connection, [row._replace(status="cancelled", version=row.version + 1) for row in found])
        await fleet.redis.flushall()
        return found

    monkeypatch.setattr(rows, "page", before_the_loss)
    await fleet.pod(calls, ledger=database)
    back = await whole(fleet, "00", "01", "02")
    await agreed(database, fleet.store)
    assert {timer.status for timer in back.values()} == {Status.CANCELLED}
    assert not calls


async def test_a_lost_db_is_restored(sharded: Fleet, database: Database) -> None:
    calls = Calls()
    await sharded.pod(calls, ledger=database)
    client = sharded.client
    for number in range(40):
        await client.create("note", f"later{number}", delay="24h", payload={"number": number})
        await client.create("note", f"done{number}", delay="0s")
    await client.create("note", "again", delay="0s", repeat={"every": "1d"})
    await client.create("note", "cancelled", delay="24h")
    await client.cancel("note", "cancelled")

    async def ended() -> bool:
        return (await client.counts())["note"].get(Status.COMPLETED) == 40 and len(calls) == 41

    await eventually(ended, "the due ones have run")
    before = await agreed(database, sharded.store)
    await sharded.redis.flushall()
    back = await whole(sharded, *(member.partition(":")[2] for member in before))
    after = await agreed(database, sharded.store)
    assert set(after) == set(before)
    for member, row in after.items():
        old = before[member]
        assert (row.status, row.occurrence, row.attempt) == (old.status, old.occurrence, old.attempt)
        assert (row.due, row.created, row.spec, row.progress) == (old.due, old.created, old.spec, old.progress)
        assert row.version > old.version
        assert row.token >= old.token
    assert len(calls) == 41, "nothing that had ended ran again"
    assert back["later7"].history[0].note == "restored from the ledger after a loss"
    assert back["later7"].payload == {"number": 7}
    assert (await client.counts())["note"] == {Status.SCHEDULED: 41, Status.COMPLETED: 40, Status.CANCELLED: 1}


async def test_a_count_of_what_was_restored_that_takes_too_long_holds_up_no_restore(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, asked = 1000.0, list[float]()
    monkeypatch.setattr("timers.engine.following.time", SimpleNamespace(monotonic=lambda: now))

    async def too_slow(*_: object) -> float:
        nonlocal now
        asked.append(now)
        now += 30
        raise LedgerUnavailable("no answer for 30 s")

    monkeypatch.setattr(copies, "share_until", too_slow)
    following = Following(cast("Any", SimpleNamespace(store=None)), cast("Any", None), database)
    for _ in range(200):
        await following._reached(0, Stage(RESTORE.what, "note:x"))
        now += 1
    assert asked == [1000, 1185], "it counts for a sixth of the time at most"


async def test_a_run_under_way_starts_again_as_the_same_occurrence_with_a_higher_token(
    fleet: Fleet, database: Database
) -> None:
    held = Held()
    await fleet.pod(held, ledger=database)
    await fleet.client.create("note", "a", delay="0s")

    async def copied() -> bool:
        return (
            len(held) == 1
            and (await in_ledger(database)).get("note:a", None) is not None
            and ((await in_ledger(database))["note:a"].status == "running")
        )

    await eventually(copied, "the ledger knows of the run")
    await fleet.redis.flushall()

    async def again() -> bool:
        return len(held) == 2

    await eventually(again, "it runs again")
    first, second = held.contexts
    assert first.idempotency_key == second.idempotency_key
    assert second.token > first.token
    held.release.set()
    assert (await agreed(database, fleet.store))["note:a"].occurrence == 1


async def test_what_came_due_meanwhile_runs_once(fleet: Fleet, database: Database) -> None:
    calls = Calls()
    pod = await fleet.pod(calls, ledger=database)
    for number in range(50):
        await fleet.client.create("note", str(number), delay="24h")
    await agreed(database, fleet.store)
    await fleet.kill(pod)
    await fleet.redis.flushall()
    async with database.transaction() as connection:
        await connection.exec_driver_sql("UPDATE timers_timers SET due = due - 90000000")
    later = Calls()
    await fleet.pod(later, name="b", ledger=database)

    async def ran() -> bool:
        return len(later) == 50

    await eventually(ran, "all run")
    assert sorted(later.ids, key=int) == [str(number) for number in range(50)]
    await agreed(database, fleet.store)
    assert len(later) == 50


async def test_what_came_due_meanwhile_keeps_to_the_limits_of_its_processor(fleet: Fleet, database: Database) -> None:
    """However much comes back at once, and on whichever pods, receivers get no more than on any other day."""
    await declare(fleet.store, "mail")
    pod = await fleet.pod(Calls(), Calls("mail"), ledger=database)
    for prefix in ("note", "mail"):
        await arm(fleet, ids(60), prefix, delay="24h")
    await agreed(database, fleet.store)
    await fleet.kill(pod)
    await fleet.redis.flushall()
    async with database.transaction() as connection:
        await connection.exec_driver_sql("UPDATE timers_timers SET due = due - 90000000")
    began_ms = await fleet.store.now_ms()
    busy, mail = Busy(concurrency=3), Calls("mail", rate="100/s")
    for name in ("b", "c"):
        await fleet.pod(busy, mail, name=name, ledger=database)
    await until(lambda: len(busy) + len(mail) == 120, "all have started")
    sent = await ended(fleet, ids(60), "mail")
    await ended(fleet, ids(60))
    assert busy.most[""] <= 3
    starts = sorted(entry.at_ms for timer in sent for entry in timer.history if entry.status is Status.RUNNING)
    assert len(starts) == 60
    for before, at_ms in enumerate(starts):
        assert before <= (at_ms + 1 - began_ms) / 10 + 5


async def test_another_pod_goes_on_where_a_killed_one_was(
    fleet: Fleet, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await lost(fleet, database, 60)
    asked: list[str] = []
    pages = rows.page

    async def small(database: Database, shard: int, prefix: str, timer_id: str, **_: int) -> object:
        asked.append(timer_id)
        if len(asked) == 6:
            await asyncio.Event().wait()  # here the pod dies: two pages are under way
        return (await pages(database, shard, prefix, timer_id))[:10]

    monkeypatch.setattr(rows, "page", small)
    monkeypatch.setattr("timers.engine.following.SHARE_SECONDS", 0)
    dying = await fleet.pod(Calls(), name="b", ledger=database)

    async def stuck() -> bool:
        return len(asked) == 6

    await eventually(stuck, "half of it is restored")
    assert dying.worker.following is not None
    assert dying.worker.following.share == 0.5
    assert (await check_of(fleet, database)).said == "shards still being restored from the ledger: 0 (rebuild, 50 %)"
    await fleet.kill(dying)
    await fleet.pod(Calls(), name="c", ledger=database)
    assert len(await agreed(database, fleet.store)) == 60
    assert asked[:6] == ["", "09", "19", "29", "39", "49"]
    assert asked[6:8] == ["29", "39"]


async def test_large_timers_are_given_back_in_small_pages(
    fleet: Fleet, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand timers with the largest payloads, in pages of a thousand, took a pod a GiB of memory."""
    await lost(fleet, database, 1)
    (row,) = await rows.page(database, 0, "", "")
    spec = encode({"payload": "x" * 60_000})
    async with database.transaction() as connection:
        await rows.save(connection, [row._replace(id=f"big-{each:03}", spec=spec) for each in range(400)])
    pages, sizes = rows.page, list[int]()

    async def noted(*asked: Any, **options: Any) -> Sequence[Row]:
        found = await pages(*asked, **options)
        sizes.append(sum(len(each.spec) for each in found))
        return found

    monkeypatch.setattr(rows, "page", noted)
    await fleet.pod(Calls(), ledger=database)
    assert len(await agreed(database, fleet.store)) == 401
    assert max(sizes) < PAGE_BYTES


async def test_a_check_ends_although_timers_change_all_the_time(
    fleet: Fleet, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes on in the order of change, so what changes meanwhile comes last."""
    kept = Row("note", "", 0, "scheduled", 1, 0, 0, 0, 1, 9000, 1000, 1000, "{}", "", "")
    async with database.transaction() as connection:
        await rows.save(connection, [kept._replace(id=f"{each:03}", changed=9000 - each) for each in range(100)])
    pages, late = rows.page, list[str]()

    async def busy(*asked: Any, **options: Any) -> Sequence[Row]:
        found = await pages(*asked, **options)
        late.append(f"late-{len(late)}")
        async with database.transaction() as connection:
            await rows.save(connection, [kept._replace(id=late[-1], changed=9000 + len(late))])
        return found

    monkeypatch.setattr(rows, "page", busy)
    last = list[str]()
    async for (_, timer_id), _codes in copies.give_back(fleet.store, database, 0, since_ms=1000, dry_run=True):
        last.append(timer_id)
        assert len(last) < 9, "it looks again and again"
    assert last == ["036", "late-0"]


async def test_a_pod_that_dies_between_redis_and_the_ledger_leaves_no_difference(
    fleet: Fleet, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await lost(fleet, database, 20)
    given = asyncio.Event()

    async def hang(*_: object, **__: object) -> None:
        given.set()
        await asyncio.Event().wait()

    with monkeypatch.context() as patched:
        patched.setattr(rows, "save", hang)
        dying = await fleet.pod(Calls(), name="b", ledger=database)
        await given.wait()
        assert (await whole(fleet, "07"))["07"].version == 1002
        await fleet.kill(dying)
    await fleet.pod(Calls(), name="c", ledger=database)
    assert {row.version for row in (await agreed(database, fleet.store)).values()} == {1002}


async def test_what_was_restored_is_written_to_the_ledger_once(
    fleet: Fleet, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await lost(fleet, database, 20)
    save, written = rows.save, list[str]()

    async def counted(connection: AsyncConnection, rows: Iterable[rows.Row]) -> None:
        some = list(rows)
        written.extend(row.id for row in some)
        await save(connection, some)

    monkeypatch.setattr(rows, "save", counted)
    await fleet.pod(Calls(), name="b", ledger=database)
    await agreed(database, fleet.store)

    async def follows() -> bool:
        return (await stages(fleet.store, [0]))[0].is_whole

    await eventually(follows, "the shard is whole")
    await fleet.client.create("note", "later", delay="24h", durability="fast")
    await agreed(database, fleet.store)
    assert sorted(written) == [*(f"{number:02}" for number in range(20)), "later"]


async def test_what_was_removed_and_imported_again_stays(fleet: Fleet, database: Database) -> None:
    await fleet.pod(Calls(), ledger=database)
    for name in ("a", "b"):
        await fleet.client.create("note", name, delay="24h", payload=name)
    await agreed(database, fleet.store)
    lines = await exported(fleet)
    await fleet.client.cancel("note", "a", purge=True)
    await fleet.client.cancel("note", "b")
    await fleet.client.cancel("note", "b", purge=True)

    async def are_gone() -> bool:
        return not await in_ledger(database)

    await eventually(are_gone, "the ledger knows that they were removed")
    assert (await imported(fleet, lines, ledger=database)).by_result["timers"] == {"restored": 2}
    found = await agreed(database, fleet.store)
    assert {name: row.status for name, row in found.items()} == {"note:a": "scheduled", "note:b": "scheduled"}
    await fleet.redis.flushall()
    assert {timer.payload for timer in (await whole(fleet, "a", "b")).values()} == {"a", "b"}


async def test_a_prefix_that_only_the_ledger_knows_is_accepted(
    fleet: Fleet, database: Database, ledger_url: str
) -> None:
    """Redis has just lost what was declared, and no pod has said it again."""
    client = client_over(await open_store(connect(fleet.url)), ledger=ledger_url)
    pod = await fleet.pod(Calls(), ledger=database)
    await client.create("note", "before", delay="24h")
    await fleet.kill(pod)
    await fleet.redis.flushall()
    await fleet.store.identity.refresh()
    client._declared = Declared(fleet.store, fresh_seconds=0)
    assert (await client.create("note", "single", delay="24h")).armed
    (batch,) = await client.batch([{"prefix": "note", "id": "batch", "delay": "24h"}])
    assert isinstance(batch, Armed)
    with pytest.raises(NoProcessor):
        await client.create("other", "x", delay="24h")
    await say(fleet.store, 0, "whole 1")
    await fleet.redis.delete("timers:{pods}:declared")  # as `timers prefixes forget`
    with pytest.raises(NoProcessor):
        await client.create("note", "forgotten", delay="24h")
    await client.close()


async def test_a_pod_says_its_prefixes_to_the_ledger_before_it_works(
    fleet: Fleet, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loss before its first copy of what is declared must not make the ledger refuse them."""

    async def stands(_: Following) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(Following, "run", stands)
    await fleet.pod(Calls(), ledger=database)
    assert ("declared", "note") in await database.do(facts.read, writes=False)
