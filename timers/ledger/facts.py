"""Owns the rows of facts: what a db needs besides its timers."""

from collections.abc import Collection, Mapping
from typing import Final

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from timers.ledger.schema import facts

KEY: Final = "key"

Fact = tuple[str, str]
"""(kind, name)."""


async def read(connection: AsyncConnection) -> dict[Fact, str]:
    """All facts."""
    found = await connection.execute(sa.select(facts.c.kind, facts.c.name, facts.c.value))
    return {(kind, name): value for kind, name, value in found}


async def has_keys(connection: AsyncConnection) -> bool:
    """Whether there are API keys among them."""
    asked = sa.select(facts.c.name).where(facts.c.kind == KEY).limit(1)
    return (await connection.execute(asked)).first() is not None


async def write(connection: AsyncConnection, changed: Mapping[Fact, str], gone: Collection[Fact]) -> None:
    """Write facts and delete others."""
    said = insert(facts)
    upsert = said.on_conflict_do_update(index_elements=["kind", "name"], set_={"value": said.excluded.value})
    for kind, name in sorted(gone):
        await connection.execute(sa.delete(facts).where(facts.c.kind == kind, facts.c.name == name))
    if changed:
        given = [{"kind": kind, "name": name, "value": value} for (kind, name), value in sorted(changed.items())]
        await connection.execute(upsert, given)
