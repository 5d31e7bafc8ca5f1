"""The clock of the SQL server is an hour ahead of Redis' or behind it: nothing is early, late or lost for that."""

import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
from sqlalchemy import event, select, text
from sqlalchemy.engine import Engine

from tests.engine.fleet import Calls, Fleet
from tests.ledger.copies import agreed
from timers.core.model import Status
from timers.ledger import arm
from timers.ledger.database import Database
from timers.ledger.schema import now_ms

HOUR_MS = 3_600_000


@contextmanager
def sqlite_ahead(hours: int) -> Iterator[None]:
    """For every connection to SQLite meanwhile."""

    def opened(connection: Any, _record: object) -> None:
        connection.create_function("julianday", 1, lambda _now: 2440587.5 + time.time() / 86_400 + hours / 24)

    event.listen(Engine, "connect", opened)
    yield
    event.remove(Engine, "connect", opened)


async def set_ahead(database: Database, hours: int) -> None:
    """For every connection to this database of PostgreSQL from now on."""
    name = database.engine.url.database
    async with database.transaction() as connection:
        for statement in (
            "CREATE SCHEMA ahead",
            f"""CREATE FUNCTION ahead.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE
            AS $$ SELECT pg_catalog.clock_timestamp() + interval '{hours} hours' $$""",
            f"ALTER DATABASE {name} SET search_path = ahead, pg_catalog",
        ):
            await connection.execute(text(statement))
    await database.close()


@pytest.fixture(params=[1, -1], ids=["ahead", "behind"])
async def apart(request: pytest.FixtureRequest, ledger_url: str) -> AsyncIterator[Database]:
    """A database with the ledger's tables and such a clock."""
    database, hours = Database(ledger_url), request.param
    if database.dialect == "postgresql":
        await set_ahead(database, hours)
    with sqlite_ahead(hours) if database.dialect == "sqlite" else nullcontext():
        await database.upgrade()
        async with database.transaction() as connection:
            ahead_ms = (await connection.execute(select(now_ms()))).scalar_one() - time.time() * 1000
        assert abs(ahead_ms - hours * HOUR_MS) < HOUR_MS / 2
        yield database
        await database.close()


async def test_clocks_that_differ_change_no_due_time_and_lose_nothing(fleet: Fleet, apart: Database) -> None:
    calls = Calls()
    pod = await fleet.pod(calls, ledger=apart)
    before_ms = await fleet.store.now_ms()
    async with apart.transaction() as connection:
        await arm(connection, "note", "now", delay=0)
        await arm(connection, "note", "soon", delay="30m")
        await arm(connection, "note", "later", delay="2h", repeat={"every": "1h"})
    await fleet.completed("now")
    found = [await fleet.reached(Status.SCHEDULED, timer_id) for timer_id in ("soon", "later")]
    for timer, delay_ms in zip(found, (HOUR_MS / 2, 2 * HOUR_MS), strict=True):
        assert 0 <= timer.due_ms - before_ms - delay_ms < HOUR_MS / 4
    kept = await agreed(apart, fleet.store)
    await fleet.kill(pod)
    await fleet.redis.flushall()
    await fleet.pod(calls, name="b", ledger=apart)
    back = await agreed(apart, fleet.store)
    assert {name: row.due for name, row in back.items()} == {name: row.due for name, row in kept.items()}
    assert calls.ids == ["now"]
