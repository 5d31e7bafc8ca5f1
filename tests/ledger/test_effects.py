"""`once`: an occurrence's effects are committed once, and each run of it ends alike."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, make_url, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from tests.engine.fleet import Calls, Fleet
from tests.unit.samples import NoTimers, a_timer
from timers.core.model import Status, Timer
from timers.core.outcome import AlreadyDone, Done, Rearm, Retry, decode_outcome, encode_outcome
from timers.errors import InvalidInput
from timers.ledger import arm, cancel, once
from timers.ledger.database import Database
from timers.ledger.effects import KEPT_MS, clean
from timers.ledger.schema import effects
from timers.processor import BlockingContext, Context, Processor, processor
from timers.store.codec import encode_cause

DRIVERS = ("sqlite", "asyncpg", "psycopg")
LOG: Any = logging.getLogger("test")


@pytest.fixture
async def engine(database: Database, ledger_url: str) -> AsyncIterator[AsyncEngine]:
    """An application's own engine, as it would make it."""
    made = create_async_engine(ledger_url)
    async with made.begin() as tx:
        await tx.execute(text("CREATE TABLE charges (id TEXT)"))
    yield made
    await made.dispose()


@pytest.fixture
def blocking(database: Database, ledger_url: str) -> Iterator[Engine]:
    url = make_url(ledger_url)
    made = create_engine(url.set(drivername="sqlite" if database.dialect == "sqlite" else "postgresql+psycopg"))
    yield made
    made.dispose()


def context_of(timer: Timer) -> Context:
    return Context(timer.token, timer.idempotency_key, None, LOG, None, NoTimers())


def charge(id: str = "a") -> Any:
    return text("INSERT INTO charges VALUES (:id)").bindparams(id=id)


async def charges(engine: AsyncEngine) -> list[str]:
    async with engine.connect() as tx:
        return sorted((await tx.execute(text("SELECT id FROM charges"))).scalars())


async def test_a_second_run_ends_as_the_first(engine: AsyncEngine) -> None:
    context = context_of(a_timer(id="x:y"))
    async with engine.begin() as tx, once(tx, context):
        await tx.execute(charge())
    for _ in range(2):
        with pytest.raises(AlreadyDone) as again:
            async with engine.begin() as tx, once(tx, context):
                raise AssertionError("not reached")
        assert again.value.outcome == Done()
    assert await charges(engine) == ["a"]


@pytest.mark.parametrize(
    "outcome",
    [
        Done("paid", {"sum": 3}),
        Rearm(after="1h30m", payload={"next": 2}),
        Rearm(after=90.5),
        Rearm(at=datetime(2030, 1, 1, tzinfo=UTC), payload=None),
    ],
)
def test_an_outcome_is_kept(outcome: Done | Rearm) -> None:
    kept = decode_outcome(encode_outcome(outcome))
    assert encode_outcome(kept) == encode_outcome(outcome)
    if isinstance(outcome, Rearm):
        assert isinstance(kept, Rearm)
        assert kept.payload == outcome.payload


@pytest.mark.parametrize("note", ["caf\udce9 charged", "a\nb\0c", "", "x" * 10_000])
async def test_a_note_is_kept_as_the_history_shows_it(engine: AsyncEngine, note: str) -> None:
    context = context_of(a_timer())
    async with engine.begin() as tx, once(tx, context) as done:
        done.ends(Done(note))
    with pytest.raises(AlreadyDone) as again:
        async with engine.begin() as tx, once(tx, context):
            raise AssertionError("not reached")
    assert isinstance(again.value.outcome, Done)
    assert encode_cause("completed", again.value.outcome.note) == encode_cause("completed", note)


async def test_how_the_first_ended_is_passed_on(engine: AsyncEngine) -> None:
    context = context_of(a_timer())
    async with AsyncSession(engine) as tx, tx.begin(), once(tx, context) as done:
        await tx.execute(charge())
        done.ends(Rearm(after="1d", payload=2))
    with pytest.raises(AlreadyDone) as again:
        async with AsyncSession(engine) as tx, tx.begin(), once(tx, context):
            raise AssertionError("not reached")
    assert encode_outcome(again.value.outcome) == encode_outcome(Rearm(after="1d", payload=2))


async def test_a_block_that_fails_is_done_again(engine: AsyncEngine) -> None:
    context = context_of(a_timer())
    with suppress(ZeroDivisionError):
        async with engine.begin() as tx, once(tx, context):
            await tx.execute(charge())
            raise ZeroDivisionError
    async with engine.begin() as tx, once(tx, context):
        await tx.execute(charge())
    assert await charges(engine) == ["a"]


async def test_the_next_occurrence_has_its_own_effects(engine: AsyncEngine) -> None:
    for occurrence in (1, 2, 5):
        async with engine.begin() as tx, once(tx, context_of(a_timer(occurrence=occurrence))):
            await tx.execute(charge(str(occurrence)))
    with pytest.raises(AlreadyDone):
        async with engine.begin() as tx, once(tx, context_of(a_timer(occurrence=4))):
            raise AssertionError("not reached")
    async with engine.begin() as tx, once(tx, context_of(a_timer(created_ms=7))):
        await tx.execute(charge("another life"))
    assert await charges(engine) == ["1", "2", "5", "another life"]


def test_plain_transactions(engine: AsyncEngine, blocking: Engine) -> None:
    context = BlockingContext(1, a_timer().idempotency_key, None, LOG, None, NoTimers())
    with blocking.begin() as tx, once(tx, context) as done:
        tx.execute(charge())
        done.ends(Done("paid"))
    with pytest.raises(AlreadyDone) as again, Session(blocking) as session, session.begin(), once(session, context):
        raise AssertionError("not reached")
    assert again.value.outcome == Done("paid")


async def test_a_stalled_run_is_waited_for_but_not_for_ever(
    engine: AsyncEngine, ledger_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("timers.ledger.effects.WAIT_MS", 100)
    context = context_of(a_timer())
    async with engine.connect() as other:
        before = await setting(other)
    async with engine.begin() as stalled, once(stalled, context):
        with pytest.raises(Retry, match="still in its transaction") as waited:
            async with engine.begin() as tx, once(tx, context):
                raise AssertionError("not reached")
        assert waited.value.snooze
        await stalled.execute(charge())
    with pytest.raises(AlreadyDone):
        async with engine.begin() as tx, once(tx, context):
            raise AssertionError("not reached")
    async with engine.begin() as tx, once(tx, context_of(a_timer(occurrence=2))):
        assert await setting(tx) == before, "the application's own bound holds again"
    assert await charges(engine) == ["a"]


async def setting(tx: AsyncConnection) -> object:
    asked = "PRAGMA busy_timeout" if tx.dialect.name == "sqlite" else "SHOW lock_timeout"
    return (await tx.execute(text(asked))).scalar_one()


async def test_a_run_that_waited_ends_as_the_one_it_waited_for(engine: AsyncEngine) -> None:
    context, inside, ended = context_of(a_timer()), asyncio.Event(), list[object]()

    async def run() -> None:
        try:
            async with engine.begin() as tx, once(tx, context):
                inside.set()
                await tx.execute(charge())
                await asyncio.sleep(0.05)
            ended.append("first")
        except (AlreadyDone, Retry) as error:
            ended.append(type(error))

    await asyncio.gather(run(), run(), run())
    assert ended == ["first", AlreadyDone, AlreadyDone]
    assert await charges(engine) == ["a"]


async def test_what_could_not_be_undone_is_refused(engine: AsyncEngine, blocking: Engine) -> None:
    context = context_of(a_timer())

    async def refused(tx: AsyncConnection, how: str) -> None:
        with pytest.raises(InvalidInput, match=how):
            async with once(tx, context):
                raise AssertionError("not reached")

    async with engine.connect() as tx:
        await refused(tx, "it has not begun a transaction")
    async with engine.execution_options(isolation_level="AUTOCOMMIT").begin() as tx:
        await refused(tx, "its isolation level is AUTOCOMMIT")
    async with engine.begin() as tx, tx.begin_nested():
        await refused(tx, "savepoint")
    async with engine.begin() as tx:
        await tx.execute(charge())
        await refused(tx, "it has executed a statement already")
        await tx.rollback()
    with blocking.begin() as plain:
        plain.execute(charge())
        with pytest.raises(InvalidInput, match="already"), once(plain, context):
            raise AssertionError("not reached")
        plain.rollback()
    assert await charges(engine) == []


async def test_a_block_that_commits_by_itself_passes_on_its_end(engine: AsyncEngine, blocking: Engine) -> None:
    """How it ended was written into a transaction that nobody committed, so a second run ended as `Done()`."""
    contexts = [context_of(a_timer(id=name)) for name in "ab"]
    async with AsyncSession(engine) as session:
        await session.begin()
        async with once(session, contexts[0]) as effects:
            await session.execute(charge("a"))
            effects.ends(Rearm(after="1d"))
            await session.commit()
    with blocking.connect() as connection:
        connection.begin()
        with once(connection, contexts[1]) as effects:
            connection.execute(charge("b"))
            connection.commit()
            effects.ends(Rearm(after="1d"))
    for context in contexts:
        with pytest.raises(AlreadyDone) as again:
            async with engine.begin() as tx, once(tx, context):
                raise AssertionError("not reached")
        assert again.value.outcome == Rearm(after="1d")
    assert await charges(engine) == ["a", "b"]


async def test_a_registry_stands_for_the_session_of_its_caller(engine: AsyncEngine, blocking: Engine) -> None:
    """As `db.session` of Flask-SQLAlchemy, and its twin that is awaited."""
    plain = scoped_session(sessionmaker(blocking))
    awaited = async_scoped_session(async_sessionmaker(engine), asyncio.current_task)
    with plain.begin(), once(plain, context_of(a_timer(id="a"))):
        plain.execute(charge("a"))
    assert arm(plain, "note", "a", delay="1h") == "a"
    plain.commit()
    async with awaited.begin(), once(awaited, context_of(a_timer(id="b"))):
        await awaited.execute(charge("b"))
    assert await arm(awaited, "note", "b", delay="1h") == "b"
    assert await cancel(awaited, "note", "b") == "b"
    await awaited.commit()
    plain.remove()
    await awaited.remove()
    assert await charges(engine) == ["a", "b"]
    async with engine.connect() as tx:
        found = await tx.execute(text("SELECT id, action FROM timers_inbox ORDER BY seq"))
    assert [tuple(row) for row in found] == [("a", "create"), ("b", "create"), ("b", "cancel")]


@pytest.mark.parametrize("end", ["rollback", "commit"])
async def test_a_block_that_goes_on_in_another_transaction_is_refused(
    engine: AsyncEngine, blocking: Engine, end: str
) -> None:
    """That has no row, and would be done again."""

    async def run(tx: AsyncSession) -> None:
        async with once(tx, context_of(a_timer())):
            await getattr(tx, end)()
            await tx.execute(charge())

    def run_plain(tx: Connection) -> None:
        with once(tx, context_of(a_timer(id="b"))):
            getattr(tx, end)()
            tx.execute(charge())

    async with AsyncSession(engine) as tx:
        await tx.begin()
        with pytest.raises(InvalidInput, match="ended it and begun another"):
            await run(tx)
    with blocking.connect() as plain:
        plain.begin()
        with pytest.raises(InvalidInput, match="ended it and begun another"):
            run_plain(plain)
    assert await charges(engine) == []


async def test_serialization_failures_count_no_failure(engine: AsyncEngine, fleet: Fleet, database: Database) -> None:
    if database.dialect == "sqlite":
        pytest.skip("SQLite has one writer")
    strict = engine.execution_options(isolation_level="SERIALIZABLE")
    met = list[Exception]()

    async def act(timer: Timer, context: Context) -> None:
        try:
            async with strict.begin() as tx, once(tx, context):
                await tx.execute(text("SELECT count(*) FROM charges"))
                await tx.execute(charge(timer.id))
                if not met:
                    async with strict.begin() as other:
                        await other.execute(text("SELECT count(*) FROM charges"))
                        await other.execute(charge("other"))
        except DBAPIError as error:
            met.append(error)
            raise

    await fleet.pod(Calls(act=act))
    await fleet.client.create("note", "a", delay=0)
    timer = await fleet.completed("a")
    assert len(met) == 1
    assert (timer.attempt, timer.failures, timer.last_error) == (2, 0, None)
    assert await charges(engine) == ["a", "other"]


async def test_a_run_after_a_death_passes_on_the_end(engine: AsyncEngine, fleet: Fleet) -> None:
    """The first run commits and never settles; the next pod's run ends as it would have."""
    committed = asyncio.Event()

    async def act(timer: Timer, context: Context) -> Rearm:
        try:
            async with engine.begin() as tx, once(tx, context) as done:
                await tx.execute(charge(f"{timer.id}{timer.occurrence}"))
                return done.ends(Rearm(after="1h", payload="next"))
        finally:
            if timer.attempt == 1:
                committed.set()
                await asyncio.Event().wait()

    first = await fleet.pod(Calls(act=act), name="a")
    await fleet.client.create("note", "a", delay=0)
    await committed.wait()
    await fleet.kill(first)
    await fleet.pod(Calls(act=act), name="b")
    await fleet.expire_lease("a")
    timer = await fleet.reached(Status.SCHEDULED, "a")
    assert (timer.occurrence, timer.payload) == (2, "next")
    assert await charges(engine) == ["a1"]


async def test_plain_processors(engine: AsyncEngine, fleet: Fleet, blocking: Engine) -> None:
    runs = list[int]()

    @processor("note")
    def pay(timer: Timer, context: BlockingContext) -> Done:
        runs.append(timer.attempt)
        with blocking.begin() as tx, once(tx, context) as done:
            tx.execute(charge(timer.id))
            paid = done.ends(Done("paid"))
        if timer.attempt == 1:
            raise RuntimeError("after the commit")
        return paid

    assert isinstance(pay, Processor)
    await fleet.pod(pay)
    await fleet.client.create("note", "a", delay=0, retry={"base": "1ms"})
    timer = await fleet.completed("a")
    assert timer.history[0].note == "paid"
    assert runs == [1, 2]
    assert await charges(engine) == ["a"]


async def test_rows_go_after_three_months(engine: AsyncEngine, database: Database) -> None:
    for number in (1, 2):
        async with engine.begin() as tx, once(tx, context_of(a_timer(id=str(number)))):
            pass
    async with database.transaction() as connection:
        await connection.execute(effects.update().where(effects.c.id == "1").values(at=effects.c.at - KEPT_MS - 1))
    await clean(database)
    async with database.transaction() as connection:
        assert (await connection.execute(select(effects.c.id))).scalars().all() == ["2"]
