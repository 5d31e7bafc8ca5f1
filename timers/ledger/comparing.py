"""Owns what a comparison with Redis reads of the ledger: how new its rows are, and how many it has."""

from collections.abc import Collection
from functools import partial
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from timers.ledger.database import Database
from timers.ledger.many import among, fetch
from timers.ledger.rows import IDENTITY, SAVED, Identity
from timers.ledger.schema import LIVE, PURGED, timers


class RowAge(NamedTuple):
    """How new a row is, by creation (epoch ms) and version, and whether its timer was removed."""

    age: tuple[int, int]
    gone: bool


_AGE = (timers.c.prefix, timers.c.id, timers.c.created, timers.c.version, timers.c.status)


async def page(
    database: Database, shard: int, prefix: str, id: str, *, gone_since_ms: int | None = None
) -> dict[Identity, RowAge]:
    """The next rows of a shard after a prefix and id, in their order; with `gone_since_ms` only those of timers that
    were removed since."""
    asked = sa.select(*_AGE).where((prefix, id) < IDENTITY, timers.c.shard == shard)
    if gone_since_ms is not None:
        asked = asked.where(timers.c.status == PURGED, timers.c.changed >= gone_since_ms)
    in_order = asked.order_by(timers.c.prefix, timers.c.id).limit(SAVED)
    return await database.do(partial(_read, in_order), writes=False)


async def ages(database: Database, identities: Collection[Identity]) -> dict[Identity, RowAge]:
    """How new the rows of these timers are, as far as there are any."""

    async def read(connection: AsyncConnection) -> dict[Identity, RowAge]:
        return await _read(sa.select(*_AGE).where(among(connection, _AGE[:2], identities)), connection)

    return await database.do(read, writes=False)


async def _read(asked: sa.Select[Any], connection: AsyncConnection) -> dict[Identity, RowAge]:
    return {
        (prefix, timer_id): RowAge((created, version), status == PURGED)
        for prefix, timer_id, created, version, status in sorted(await fetch(connection, asked))
    }


async def count_live(database: Database, shard: int) -> int:
    """How many timers of a shard are scheduled or run."""
    asked = sa.select(sa.func.count()).where(timers.c.shard == shard, timers.c.status.in_(LIVE))
    return (await database.do(lambda connection: connection.execute(asked), writes=False)).scalar_one()


async def share_until(database: Database, shard: int, prefix: str, id: str) -> float:
    """Which part of a shard's rows, without those of removed timers, is not behind a prefix and id."""
    until = sa.case(((prefix, id) >= IDENTITY, 1))
    asked = sa.select(sa.func.count(until), sa.func.count()).where(timers.c.shard == shard, timers.c.status != PURGED)
    done, number = (await database.do(lambda connection: connection.execute(asked), writes=False)).one()
    return float(done / number) if number else 1.0
