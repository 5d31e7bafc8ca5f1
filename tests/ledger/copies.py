"""Compares the ledger with Redis."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from sqlalchemy import select, text

from tests.waiting import eventually
from timers.client.copies import row_of
from timers.errors import LedgerUnavailable
from timers.ledger.database import Database
from timers.ledger.rows import Row
from timers.ledger.schema import PURGED, timers
from timers.store import keys
from timers.store.following import LEDGER, server_of, stages
from timers.store.store import Store


@asynccontextmanager
async def read_only(database: Database) -> AsyncIterator[None]:
    """The database lets this process read and not write, as many do while their disk is full."""
    mode = f"ALTER DATABASE {database.engine.url.database} SET default_transaction_read_only ="
    on, off = ["PRAGMA query_only = 1"], ["PRAGMA query_only = 0"]
    if database.dialect == "postgresql":
        on, off = [f"{mode} on"], ["SET TRANSACTION READ WRITE", f"{mode} off"]
    await _change(database, on)
    yield
    await _change(database, off)


@asynccontextmanager
async def full_disk(database: Database) -> AsyncIterator[None]:
    """The database lets this process change what it has, and add nothing: SQLite's own limit of pages, and a trigger
    with the error of PostgreSQL, stand for the disk."""
    on, off = ["PRAGMA max_page_count = 1"], ["PRAGMA max_page_count = 1000000"]  # what is there may stay
    if database.dialect == "postgresql":
        raises = "RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE disk_full USING MESSAGE = 'no space'; END $$"
        on = [
            f"CREATE FUNCTION full_disk() {raises}",
            "CREATE TRIGGER full_disk BEFORE INSERT ON timers_timers FOR EACH ROW EXECUTE FUNCTION full_disk()",
        ]
        off = ["DROP FUNCTION full_disk CASCADE"]
    await _change(database, on)
    yield
    await _change(database, off)


async def _change(database: Database, statements: Iterable[str]) -> None:
    async with database.transaction(writes=False) as connection:
        for statement in statements:
            await connection.execute(text(statement))
    if database.dialect == "postgresql":
        await database.engine.dispose()  # the change is for new connections


async def failed(database: Database) -> None:
    """An access fails, as when a server breaks off."""
    with pytest.raises(LedgerUnavailable):
        async with database.transaction() as connection:
            await connection.execute(text("SELECT 1 FROM timers_nothing"))


async def in_ledger(database: Database) -> dict[str, Row]:
    """The rows by member, without those of removed timers."""
    async with database.transaction() as connection:
        asked = select(*(timers.c[name] for name in Row._fields)).where(timers.c.status != PURGED)
        return {f"{row.prefix}:{row.id}": row for row in map(Row._make, await connection.execute(asked))}


async def in_redis(store: Store) -> dict[str, Row]:
    """As `in_ledger`, of the records in Redis."""
    found = dict[str, Row]()
    for redis in [node.commands for node in store.connections.nodes]:
        names: list[Any] = sorted(await redis.keys("timers:{*}:rec:*"))
        async with redis.pipeline(transaction=False) as asked:
            for name in names:
                asked.hgetall(name)
            for name, records in zip(names, await asked.execute(), strict=True):
                shard = int(name[len(b"timers:{") : name.index(b"}")])
                for member, record in records.items():
                    row = row_of(shard, *keys.identity_of(member.decode()), record)
                    assert row is not None
                    found[f"{row.prefix}:{row.id}"] = row
    return found


async def say(store: Store, shard: int, stage: str) -> None:
    """Let a shard be at a stage, given as `<what> <place>`, on the server that runs."""
    await store.connections.commands.hset(f"{keys.root(shard)}hooks", LEDGER, f"{stage} {(await server_of(store))[0]}")


async def agreed(database: Database, store: Store) -> dict[str, Row]:
    """Wait until the ledger has exactly what Redis has, and return that."""

    async def same() -> bool:
        return await in_ledger(database) == await in_redis(store)

    await eventually(same, "the ledger has what Redis has")
    return await in_redis(store)


async def whole(store: Store) -> None:
    """Wait until the first shard and the ledger agree, on the server that runs."""

    async def is_whole() -> bool:
        return (await stages(store, [0]))[0].is_whole

    await eventually(is_whole, "the shard and the ledger agree")
