"""One db at a time uses a ledger: the second of two live copies is refused, and told how to take over."""

import asyncio
from functools import partial

import pytest
from redis.asyncio import Redis
from sqlalchemy import text

from tests.engine.fleet import Calls, Fleet, joined
from tests.ledger.copies import agreed, whole
from tests.waiting import eventually
from timers.engine.following import claim_ledger
from timers.errors import LedgerUnavailable
from timers.ledger.database import Database
from timers.ledger.facts import hold


async def asked(database: Database, server: str, *known: str, epoch: str = "e") -> str | None:
    return await database.do(partial(hold, epoch=epoch, server=server, shards=1, known=known))


async def test_the_second_live_copy_is_refused_until_the_first_is_silent(database: Database) -> None:
    assert await asked(database, "one") is None
    assert await asked(database, "one", epoch="after a loss") is None
    other = await asked(database, "two")
    assert other is not None
    assert other.startswith("another Redis db (one, epoch ")
    assert "6 s after its last pod this one takes over" in other
    assert await asked(database, "two", "one") is None, "a restart of the same server"
    async with database.transaction() as connection:
        await connection.execute(text("UPDATE timers_epochs SET seen = seen - 6001"))
    assert await asked(database, "three") is None


async def test_of_two_copies_that_begin_in_one_moment_one_is_refused(database: Database, ledger_url: str) -> None:
    others = Database(ledger_url)
    for number in range(10):
        async with database.transaction() as connection:
            await connection.execute(text("DELETE FROM timers_epochs"))
        answers = await asyncio.gather(asked(database, f"one {number}"), asked(others, f"two {number}"))
        assert [*map(type, answers)].count(str) == 1
    await others.close()


async def test_a_pod_of_the_second_copy_leaves_the_ledger_alone(fleet: Fleet, database: Database) -> None:
    assert await asked(database, "original") is None
    pod = await fleet.pod(Calls(), ledger=database)

    async def refused() -> bool:
        return "another Redis db (original" in pod.worker.health().services["ledger"]

    await eventually(refused, "the pod says so")
    await fleet.client.create("note", "a", delay="24h")
    async with database.transaction() as connection:
        assert (await connection.execute(text("SELECT count(*) FROM timers_timers"))).scalar() == 0
        await connection.execute(text("UPDATE timers_epochs SET seen = seen - 6001"))
    await agreed(database, fleet.store)


async def test_a_db_of_another_number_on_the_same_server_is_refused(fleet: Fleet, database: Database) -> None:
    """It was given all timers of the first, and both ran them."""
    pod = await fleet.pod(Calls(), ledger=database)
    await whole(fleet.store)
    url = fleet.url.replace("db=0", "db=1")
    async with Redis.from_url(url) as redis:
        await redis.flushdb()
        elsewhere = await joined(url)
        try:
            with pytest.raises(LedgerUnavailable, match=r"another Redis db \(.*, epoch \w+, db 0\) uses this ledger"):
                await claim_ledger(elsewhere, database)
            await fleet.drain(pod)
            async with database.transaction() as connection:
                await connection.execute(text("UPDATE timers_epochs SET epoch = 'of an earlier version'"))
            await claim_ledger(elsewhere, database)
        finally:
            await elsewhere.connections.close()
            await redis.flushdb()
