"""What fails where a timer is written: the database, Redis, a run, a delete. Nothing is lost, and nobody is told a
create that is not kept."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from tests import postgres
from tests.engine.fleet import Calls, Fleet, notes
from tests.engine.own import OwnServer
from tests.ledger.copies import agreed, in_ledger, whole
from tests.waiting import eventually
from timers.client import TimerClient, client_over, open_store
from timers.client.fleet import Declared
from timers.core.model import Status, Timer
from timers.errors import LedgerUnavailable, NotFound, Unavailable
from timers.ledger.database import Database
from timers.processor import Context
from timers.store.servers import connect

LATER = "24h"


@pytest.fixture
async def client(own: OwnServer, database: Database, ledger_url: str) -> AsyncIterator[TimerClient]:
    client = client_over(await open_store(connect(own.url)), ledger=ledger_url)
    yield client
    await client.close()


async def rename(database: Database, *, away: bool) -> None:
    """Let the database fail, or be well again."""
    names = "timers_timers RENAME TO away" if away else "away RENAME TO timers_timers"
    async with database.transaction() as connection:
        await connection.execute(text(f"ALTER TABLE {names}"))


async def test_the_database_fails_and_the_create_is_refused(
    own: OwnServer, client: TimerClient, database: Database
) -> None:
    fleet = await Fleet.over(own.url)
    await rename(database, away=True)
    with pytest.raises(LedgerUnavailable):
        await client.create("note", "a", delay=LATER)
    with pytest.raises(NotFound):
        await fleet.client.get("note", "a")
    await rename(database, away=False)
    assert (await client.create("note", "a", delay=LATER)).durability == "ledger"
    await fleet.close()


async def test_redis_fails_after_the_database_and_the_timer_is_armed_later(
    own: OwnServer, client: TimerClient, database: Database
) -> None:
    fleet = await Fleet.over(own.url)
    calls = Calls()
    await fleet.pod(calls, ledger=database)
    await whole(fleet.store)
    await client.counts()
    own.down()
    client._declared = Declared(fleet.store, fresh_seconds=0)
    assert not (await client.create("note", "a", delay="0s")).armed
    await own.up()
    await fleet.completed("a")
    assert len(calls) == 1
    await fleet.close()


async def test_redis_goes_away_in_a_run_whose_end_is_written_when_it_is_back(
    own: OwnServer, database: Database
) -> None:
    fleet = await Fleet.over(own.url)

    async def act(_timer: Timer, _context: Context) -> None:
        own.down()

    calls = Calls(act=act)
    await fleet.pod(calls, ledger=database)
    await whole(fleet.store)
    await fleet.client.create("note", "a", delay="0s")

    async def ended() -> bool:
        return len(calls) == 1

    await eventually(ended, "it runs")
    await own.up()
    await fleet.completed("a")
    assert (await agreed(database, fleet.store))["note:a"].status == "completed"
    assert len(calls) == 1
    await fleet.close()


async def test_an_error_in_a_run_is_a_failed_try_with_its_reason(fleet: Fleet, database: Database) -> None:
    async def act(timer: Timer, _context: Context) -> None:
        if timer.attempt == 1:
            raise ConnectionResetError("connection reset by peer")

    await fleet.pod(Calls(act=act), ledger=database)
    await fleet.client.create("note", "a", delay="0s", retry={"base": "1ms"})
    timer = await fleet.completed("a")
    assert (timer.attempt, timer.occurrence, timer.failures) == (2, 1, 1)
    row = (await agreed(database, fleet.store))["note:a"]
    assert (row.status, row.attempt, row.failures) == ("completed", 2, 1)
    assert "ConnectionResetError: connection reset by peer" in str(notes(timer))
    assert "ConnectionResetError: connection reset by peer" in row.history


async def test_an_end_that_is_not_written_runs_again_under_the_same_idempotency_key(
    fleet: Fleet, database: Database
) -> None:
    first, second = Calls(), Calls()
    pod = await fleet.pod(first, ledger=database)
    await whole(fleet.store)
    await pod.worker.supervisors[2].stop()  # what writes ends
    await fleet.client.create("note", "a", delay="0s")

    async def ran() -> bool:
        return len(first) == 1

    await eventually(ran, "it ran")
    await fleet.kill(pod)
    await fleet.pod(second, name="b", ledger=database)
    await fleet.expire_lease("a")
    await fleet.completed("a")
    assert [c.idempotency_key for c in (*first.contexts, *second.contexts)] == [first.contexts[0].idempotency_key] * 2
    assert second.contexts[0].token > first.contexts[0].token


async def test_the_database_fails_in_a_run_and_its_end_is_copied_later(fleet: Fleet, database: Database) -> None:
    async def act(_timer: Timer, _context: Context) -> None:
        await rename(database, away=True)

    calls = Calls(act=act)
    await fleet.pod(calls, ledger=database)
    await fleet.client.create("note", "a", delay=LATER)
    await agreed(database, fleet.store)
    await fleet.client.fire("note", "a")
    await fleet.completed("a")
    await rename(database, away=False)
    assert (await agreed(database, fleet.store))["note:a"].status == "completed"
    assert len(calls) == 1


async def test_a_full_disk_refuses_creates_and_loses_no_change(
    fleet: Fleet, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """SQLite's own limit of pages stands for the disk: the error is the same."""
    url = f"sqlite+aiosqlite:///{tmp_path_factory.mktemp('full')}/ledger.db"
    database = Database(url)
    await database.upgrade()
    client = client_over(fleet.store, ledger=url)
    assert client.ledger is not None
    async with client.ledger.transaction() as connection:
        pages = (await connection.execute(text("PRAGMA page_count"))).scalar()
        await connection.execute(text(f"PRAGMA max_page_count = {pages}"))

    async def fill() -> None:
        for number in range(100):
            await client.create("note", str(number), delay=LATER, payload="x" * 4000)

    with pytest.raises(LedgerUnavailable, match="full"):
        await fill()
    there = set(await in_ledger(database))
    assert {f"note:{timer.id}" async for timer in fleet.client.iterate()} == there
    async with client.ledger.transaction() as connection:
        await connection.execute(text("PRAGMA max_page_count = 100000"))
    await client.create("note", "after", delay=LATER)
    await client.ledger.close()
    await database.close()


async def test_a_role_without_the_right_to_write_refuses_creates_and_copies_later(
    fleet: Fleet, tmp_path_factory: pytest.TempPathFactory
) -> None:
    url = postgres.new_database()
    owner = Database(url)
    await owner.upgrade()
    role = f"reader_{url.partition('/t')[2][:20].partition('?')[0]}"

    async def run(*statements: str) -> None:
        engine = create_async_engine(url)
        async with engine.begin() as tx:
            for statement in statements:
                await tx.execute(text(statement))
        await engine.dispose()

    await run(f"CREATE ROLE {role} LOGIN", f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}")
    reader = url.replace("postgres@", f"{role}@", 1)
    client = client_over(fleet.store, ledger=reader)
    with pytest.raises(LedgerUnavailable, match="permission denied"):
        await client.create("note", "a", delay=LATER)
    pod = await fleet.pod(Calls(), ledger=Database(reader))
    made = await client.create("note", "fast", delay=LATER, durability="fast")
    assert made.status is Status.SCHEDULED

    async def waits() -> bool:
        return "permission denied" in pod.worker.health().services["ledger"] and pod.worker.health().ready

    await eventually(waits, "the pod says what it waits for, and is ready")
    await run(
        f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}", f"GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO {role}"
    )
    assert set(await agreed(owner, fleet.store)) == {"note:fast"}
    assert client.ledger is not None
    await client.ledger.close()
    await fleet.drain(pod)
    await run(f"DROP OWNED BY {role}", f"DROP ROLE {role}")
    await owner.close()


async def test_a_loss_in_a_change_is_told_rather_than_answered(
    own: OwnServer, client: TimerClient, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The change is lost with Redis before the ledger has it, and the state before it was given back."""
    fleet = await Fleet.over(own.url)
    pod = await fleet.pod(Calls(), ledger=database)
    await client.create("note", "a", delay=LATER)
    await agreed(database, fleet.store)
    await fleet.drain(pod)  # it would copy the change
    do = Database.do

    async def late(database: Database, work: Any, **options: Any) -> Any:
        given = getattr(work, "keywords", {})
        if "lives" in given and any(row.status == "cancelled" for row in given["changed"]):
            monkeypatch.undo()
            await fleet.redis.flushall()
            await fleet.pod(Calls(), name="b", ledger=database)
            await whole(fleet.store)
        return await do(database, work, **options)

    monkeypatch.setattr(Database, "do", late)
    with pytest.raises(Unavailable, match="lost data during this change"):
        await client.cancel("note", "a")
    assert (await fleet.client.get("note", "a")).status is Status.SCHEDULED
    await client.cancel("note", "a")
    assert (await agreed(database, fleet.store))["note:a"].status == "cancelled"
    await fleet.close()
