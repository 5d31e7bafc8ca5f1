"""Owns that one db at a time uses a ledger: two that live side by side, such as a restored copy beside its original,
would run the same timers twice and take each other's rows for their own."""

from collections.abc import Collection
from typing import Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from timers.ledger.schema import epochs, now_ms

HELD_MS: Final = 6_000
"""For so long after the last sign of life of its pods a db holds the ledger."""


class Holder(NamedTuple):
    """A db that holds the ledger: its epoch, the identity of its Redis server, and how long ago its pods said so."""

    epoch: str
    server: str
    ago_ms: int

    def __str__(self) -> str:
        return (
            f"another Redis server ({self.server[:12]}, epoch {self.epoch}) uses this ledger, "
            f"last {self.ago_ms / 1000:.1f} s ago; stop its pods, or give this service a ledger of its own. "
            f"{HELD_MS // 1000} s after its last pod this one takes over"
        )


async def last_shards(connection: AsyncConnection) -> int | None:
    """The number of shards of the db that has used the ledger last; None if none has."""
    return (await connection.execute(sa.select(epochs.c.shards).order_by(epochs.c.seen.desc()).limit(1))).scalar()


async def hold(
    connection: AsyncConnection, epoch: str, server: str, shards: int, known: Collection[str]
) -> Holder | None:
    """Say that pods of this db are alive. Returns who holds the ledger if that is a server which is not `known` to be
    an earlier one of this db; then nothing was changed."""
    ago = now_ms() - epochs.c.seen
    others = sa.select(epochs.c.epoch, epochs.c.server, ago).where(
        ago < HELD_MS, epochs.c.server.not_in([server, *known])
    )
    found = (await connection.execute(others.order_by(ago).limit(1))).first()
    if found is not None:
        return Holder(*found)
    # Pods that start now do not know them.
    await connection.execute(sa.delete(epochs).where(epochs.c.server.in_([each for each in known if each != server])))
    values = {"epoch": epoch, "server": server, "shards": shards, "made": now_ms(), "seen": now_ms()}
    said = (
        insert(epochs)
        .values(**values)
        .on_conflict_do_update(index_elements=["epoch", "server"], set_={"seen": now_ms(), "shards": shards})
    )
    await connection.execute(said)
    return None
