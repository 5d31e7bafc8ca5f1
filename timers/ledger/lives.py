"""Owns that nothing which was read of Redis before a loss is written to the ledger after it.

A life of a shard is the time until it loses data. Whoever gives the ledger's timers back says first, here, which life
they are for. From then on nothing of an earlier one is written. So what a slow pod or a caller has read of the lost
data is either in the rows that are given back, or nowhere: a version that both lives have given is not kept twice.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Final

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from timers.errors import Unavailable
from timers.ledger import rows
from timers.ledger.rows import Row
from timers.ledger.schema import facts

Lives = Mapping[int, str]
"""By shard."""

LIFE: Final = "life"
"""The kind of these facts. Their names are shards."""


async def known(connection: AsyncConnection, shards: Collection[int]) -> dict[int, str]:
    """The life of each of these shards, as far as one was said."""
    return await _read(connection, _asked(shards))


async def begin(connection: AsyncConnection, shard: int, before: str | None, life: str) -> bool:
    """Say that a shard has another life than `before`, which the caller knew before it asked Redis. False if somebody
    else has said one meanwhile: that may be a later one."""
    if before is None:
        new = insert(facts).values(kind=LIFE, name=str(shard), value=life).on_conflict_do_nothing()
        return (await connection.execute(new)).rowcount == 1
    of_it = sa.and_(facts.c.kind == LIFE, facts.c.name == str(shard), facts.c.value == before)
    return (await connection.execute(sa.update(facts).where(of_it).values(value=life))).rowcount == 1


async def save(connection: AsyncConnection, lives: Lives, changed: Iterable[Row]) -> None:
    """Write rows as `rows.save`. Raises Unavailable if one of these shards has another life by now: then nothing may be
    written. Until the transaction ends, none begins."""
    now = await _read(connection, _asked(lives).with_for_update(read=True))
    if any(now.get(shard, life) != life for shard, life in lives.items()):
        raise Unavailable("Redis has lost data during this change, and perhaps the change: repeat it")
    await rows.save(connection, changed)


def _asked(shards: Collection[int]) -> sa.Select[tuple[str, str]]:
    names = map(str, shards)
    asked = sa.select(facts.c.name, facts.c.value).where(facts.c.kind == LIFE, facts.c.name.in_(names))
    return asked.order_by(facts.c.name)


async def _read(connection: AsyncConnection, asked: sa.Select[tuple[str, str]]) -> dict[int, str]:
    return {int(row.name): row.value for row in await connection.execute(asked)}
