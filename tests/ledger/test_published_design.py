"""The published design's worked example, and its reload of the last three days, with the ledger on."""

from collections.abc import AsyncIterator

import pytest
from sqlalchemy import update

from tests.engine.fleet import DAY_MS, Calls, Fleet, notes, until
from tests.ledger.copies import agreed, in_ledger, in_redis
from tests.life.past import make_older
from tests.life.test_ladder import LADDER, SECOND_MS, waiting
from timers.client import TimerClient, client_over
from timers.core.durations import parse_time
from timers.core.model import Timer
from timers.ledger import rows
from timers.ledger.database import Database
from timers.ledger.schema import timers
from timers.processor import Context

HOUR_MS = 3_600_000
DAYS = (0, 1, 2, 3)


@pytest.fixture
async def client(fleet: Fleet, database: Database, ledger_url: str) -> AsyncIterator[TimerClient]:
    client = client_over(fleet.store, ledger=ledger_url)
    yield client
    assert client.ledger is not None
    await client.ledger.close()


async def pass_time(fleet: Fleet, database: Database, by_ms: int) -> None:
    """Make the timer older in Redis and in the ledger, while no pod copies."""
    await make_older(fleet, "note", "x", by_ms)
    async with database.transaction() as connection:
        await connection.execute(timers.delete())
        await rows.save(connection, (await in_redis(fleet.store)).values())


async def test_two_failures_and_a_success_are_tries_after_5_30_and_60_seconds(
    fleet: Fleet, client: TimerClient, database: Database
) -> None:
    """10:00:00 armed, 10:00:05 fails, 10:00:35 fails, 10:01:35 succeeds, at level 3: so says the ledger each time."""

    async def act(timer: Timer, _context: Context) -> None:
        if timer.attempt < 3:
            raise ConnectionError("refused")

    calls = Calls(act=act)
    armed = await client.create("note", "x", retry={"backoff": LADDER})
    assert armed.durability == "ledger"
    row = (await in_ledger(database))["note:x"]
    waits_ms = [row.due - row.created]
    for failures in (1, 2):
        await pass_time(fleet, database, waits_ms[-1])
        pod = await fleet.pod(calls, ledger=database)
        timer = await waiting(fleet, failures)
        assert timer.last_error is not None
        row = (await agreed(database, fleet.store))["note:x"]
        assert (row.status, row.attempt, row.failures) == ("scheduled", failures, failures)
        waits_ms.append(row.due - parse_time(timer.last_error["at"], "at"))
        await fleet.drain(pod)
    await pass_time(fleet, database, waits_ms[-1])
    await fleet.pod(calls, ledger=database)
    assert waits_ms == [5 * SECOND_MS, 30 * SECOND_MS, 60 * SECOND_MS]
    await fleet.completed("x")
    row = (await agreed(database, fleet.store))["note:x"]
    assert (row.status, row.attempt, row.failures) == ("completed", 3, 2)
    assert calls.attempts == [1, 2, 3]


async def test_what_came_due_in_the_last_three_days_and_before_runs_after_a_loss(
    fleet: Fleet, client: TimerClient, database: Database
) -> None:
    pod = await fleet.pod(Calls(), ledger=database)
    for day in DAYS:
        await client.create("note", f"due{day}", delay="1h", payload=day)
        await client.create("note", f"done{day}", delay=0)
        await client.create("note", f"skipped{day}", delay="1h", missed="skip")
        await client.create("note", f"later{day}", delay="7d")
        await fleet.completed(f"done{day}")
    await agreed(database, fleet.store)
    await fleet.kill(pod)
    await fleet.redis.flushall()
    async with database.transaction() as connection:
        for day in DAYS:
            by_ms = day * DAY_MS + 2 * HOUR_MS
            moved = {name: timers.c[name] - by_ms for name in ("due", "created", "changed")}
            await connection.execute(update(timers).where(timers.c.id.endswith(str(day))).values(moved))
    calls = Calls()
    await fleet.pod(calls, name="b", ledger=database)
    await until(lambda: len(calls) == len(DAYS), "what was due has run")
    for day in DAYS:
        assert notes(await fleet.completed(f"skipped{day}"))[-1].endswith("missed policy skip")
    found = await agreed(database, fleet.store)
    assert sorted(calls.ids) == [f"due{day}" for day in DAYS]
    assert {timer.id: timer.payload for timer in calls.timers} == {f"due{day}": day for day in DAYS}
    for day in DAYS:
        due, done, later = (found[f"note:{name}{day}"] for name in ("due", "done", "later"))
        assert [row.status for row in (due, done, later)] == ["completed", "completed", "scheduled"]
        assert later.due - later.created == 7 * DAY_MS
    assert len(calls) == len(DAYS)
