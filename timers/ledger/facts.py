"""Owns the rows of facts: what a db needs besides its timers, and in which life each shard is.

A life of a shard is the time until it loses data. Whoever gives the ledger's timers back says first, here, which life
they are for. From then on nothing of an earlier one is written. So what a slow pod or a caller has read of the lost
data is either in the rows that are given back, or nowhere: a version that both lives have given is not kept twice.
"""

from collections.abc import Collection, Mapping
from typing import Final

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from timers.ledger.many import among, execute, rows_given
from timers.ledger.schema import facts

KEY: Final = "key"
_LIFE: Final = "life"
"""The kind of facts whose names are shards."""

Fact = tuple[str, str]
"""(kind, name)."""

Lives = Mapping[int, str]
"""By shard."""

_GIVEN: Final = rows_given({"kind": str, "name": str, "value": str})
_INSERT: Final = insert(facts).from_select(["kind", "name", "value"], sa.select(*_GIVEN.c).where(sa.true()))
_WRITE: Final = _INSERT.on_conflict_do_update(index_elements=["kind", "name"], set_={"value": _INSERT.excluded.value})
_DELETE: Final = sa.delete(facts).where(among(facts.c.kind, facts.c.name))


async def read(connection: AsyncConnection) -> dict[Fact, str]:
    """All facts."""
    found = await connection.execute(sa.select(facts.c.kind, facts.c.name, facts.c.value))
    return {(kind, name): value for kind, name, value in found}


async def has_keys(connection: AsyncConnection) -> bool:
    """Whether there are API keys, which a db that was lost gets back."""
    asked = sa.select(facts.c.name).where(facts.c.kind == KEY).limit(1)
    return (await connection.execute(asked)).first() is not None


async def write(connection: AsyncConnection, changed: Mapping[Fact, str], gone: Collection[Fact]) -> None:
    """Write facts and delete others."""
    await execute(connection, _DELETE, sorted(gone))
    await execute(connection, _WRITE, sorted((kind, name, value) for (kind, name), value in changed.items()))


async def lives_of(connection: AsyncConnection, shards: Collection[int], *, stay: bool = False) -> dict[int, str]:
    """The life of each of these shards, as far as one was said. If they are to `stay`, none begins until the
    transaction ends."""
    asked = sa.select(facts.c.name, facts.c.value).where(facts.c.kind == _LIFE, facts.c.name.in_(map(str, shards)))
    asked = asked.order_by(facts.c.name)
    found = await connection.execute(asked.with_for_update(read=True) if stay else asked)
    return {int(name): value for name, value in found}


async def begin_life(connection: AsyncConnection, shard: int, before: str | None, life: str) -> bool:
    """Say that a shard has another life than `before`, which the caller knew before it asked Redis. False if somebody
    else has said one meanwhile: that may be a later one."""
    if before is None:
        new = insert(facts).values(kind=_LIFE, name=str(shard), value=life).on_conflict_do_nothing()
        return (await connection.execute(new)).rowcount == 1
    of_it = sa.and_(facts.c.kind == _LIFE, facts.c.name == str(shard), facts.c.value == before)
    return (await connection.execute(sa.update(facts).where(of_it).values(value=life))).rowcount == 1
