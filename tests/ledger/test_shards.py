"""A db that was lost gets the number of shards that it had, though nobody says it again."""

import pytest
from sqlalchemy import select

from tests.engine.fleet import Calls, Fleet
from tests.ledger.copies import agreed
from tests.members import declare
from tests.waiting import eventually
from timers.client import TimerClient, open_redis
from timers.errors import ConfigurationError
from timers.ledger import rows
from timers.ledger.database import Database
from timers.ledger.schema import timers
from timers.settings import Settings


async def lost(fleet: Fleet, database: Database) -> None:
    """A db of several shards whose ledger is all that is left."""
    pod = await fleet.pod(Calls(), ledger=database)
    await fleet.client.create("note", "a", delay="24h")
    await agreed(database, fleet.store)
    await fleet.kill(pod)
    await fleet.redis.flushall()


async def test_a_pod_of_an_emptied_db_takes_it_from_the_ledger(
    sharded: Fleet, database: Database, ledger_url: str
) -> None:
    await lost(sharded, database)
    settings = Settings.model_validate({"ledger_url": ledger_url})
    store = await open_redis(sharded.url, settings, joins=True)
    assert store.shards == sharded.store.shards > 1
    await store.connections.close()
    assert await sharded.redis.hget("timers:meta", "shards") == str(store.shards).encode()


async def test_so_does_a_client_that_is_first(sharded: Fleet, database: Database, ledger_url: str) -> None:
    await lost(sharded, database)
    await declare(sharded.store, "note")
    async with TimerClient(sharded.url, ledger=ledger_url) as client:
        await client.create("note", "b", delay="24h")
    assert await sharded.redis.hget("timers:meta", "shards") == str(sharded.store.shards).encode()


async def test_what_was_removed_is_forgotten_only_where_its_shard_is_followed(
    sharded: Fleet, database: Database
) -> None:
    """A shard that is away or not checked yet may come back with an older copy, in which it is still scheduled."""
    removed = [rows.tombstone("note", f"in-{shard}", shard, version=2, created=1, at_ms=1) for shard in range(4)]
    async with database.transaction() as connection:
        await rows.save(connection, removed)
    await sharded.pod(Calls(), ledger=database, shard_subset=(0, 1))

    async def left() -> set[int]:
        async with database.transaction(writes=False) as connection:
            return set((await connection.execute(select(timers.c.shard))).scalars())

    async def are_forgotten() -> bool:
        return not {0, 1} & await left()

    await eventually(are_forgotten, "those of the pod's shards are forgotten")
    assert await left() == {2, 3}


async def test_a_pod_waits_for_the_ledger_rather_than_guess(fleet: Fleet) -> None:
    settings = Settings.model_validate({"ledger_url": "sqlite+aiosqlite:////nowhere/ledger.db"})
    await fleet.redis.flushall()
    with pytest.raises(ConfigurationError, match="TIMERS_LEDGER_URL: the ledger is not available"):
        await open_redis(fleet.url, settings, joins=True)
    assert not await fleet.redis.exists("timers:meta")
    store = await open_redis(fleet.url, settings)
    await store.connections.close()
