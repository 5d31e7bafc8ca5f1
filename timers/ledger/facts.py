"""Owns what the ledger knows of a db besides its timers: facts, in which life each shard is, and that one db at a time
uses a ledger.

A life of a shard is the time until it loses data. Whoever gives the ledger's timers back says first, here, which life
they are for. From then on nothing of an earlier one is written. So what a slow pod or a caller has read of the lost
data is either in the rows that are given back, or nowhere: a version that both lives have given is not kept twice.

Two dbs that live side by side, such as a restored copy beside its original, would run the same timers twice and take
each other's rows for their own.
"""

from collections.abc import Collection, Mapping
from typing import Final

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from timers.ledger.many import among, execute, rows_given
from timers.ledger.schema import epochs, facts, now_ms

KEY: Final = "key"
_AGREED: Final = "agreed"
"""The kind of one fact: when pods last followed, by the Redis server's clock. Pods tell Redis once it is committed."""

OLDER_MS: Final = 60_000
"""A database that says this much less than Redis lacks commits: it was set back, or is not the last one. One that was
promoted with less lag is still compared and repaired."""

_SET_BACK: Final = (
    "the ledger is not available: its database is {} minutes older than what Redis has agreed with, restored from a "
    "backup or another one than before, so timers that were removed since would run. Drop its tables, then run "
    "`timers db upgrade` and `timers db refill`"
)

_HELD: Final = (
    "another Redis db ({server:.12}, epoch {epoch}) uses this ledger, last {seconds:.1f} s ago; stop its pods, or give "
    "this service a ledger of its own. {held} s after its last pod this one takes over"
)

_LIFE: Final = "life"
"""The kind of facts whose names are shards."""

HELD_MS: Final = 6_000
"""For so long after the last sign of life of its pods a db holds the ledger."""

Fact = tuple[str, str]
"""(kind, name)."""

Lives = Mapping[int, str]
"""By shard."""

_GIVEN: Final = rows_given({"kind": str, "name": str, "value": str})
_INSERT: Final = insert(facts).from_select(["kind", "name", "value"], sa.select(*_GIVEN.c).where(sa.true()))
_WRITE: Final = _INSERT.on_conflict_do_update(index_elements=["kind", "name"], set_={"value": _INSERT.excluded.value})
_ONE_BY_ONE: Final = sa.text(f"LOCK TABLE {epochs.name} IN SHARE ROW EXCLUSIVE MODE")
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
    new = insert(facts).values(kind=_LIFE, name=str(shard), value=life).on_conflict_do_nothing()
    of_it = sa.and_(facts.c.kind == _LIFE, facts.c.name == str(shard), facts.c.value == before)
    said = new if before is None else sa.update(facts).where(of_it).values(value=life)
    return (await connection.execute(said)).rowcount == 1


async def older(connection: AsyncConnection, told_ms: int) -> str | None:
    """How it is said that the database was set back, if it was. One that says no time is new, or only pods of an
    earlier version have used it."""
    await _alone(connection)  # who fills the table again would find what was read here written over it
    said_ms = await _agreed_ms(connection)
    return _SET_BACK.format((told_ms - said_ms) // 60_000) if 0 < said_ms < told_ms - OLDER_MS else None


async def follow_on(connection: AsyncConnection, now_ms: int) -> int:
    """Say that pods follow now. Returns what to tell Redis once this is committed: it never goes back."""
    said_ms = max(now_ms, await _agreed_ms(connection) + 1)
    await write(connection, {(_AGREED, ""): str(said_ms)}, ())
    return said_ms


async def _alone(connection: AsyncConnection) -> None:
    """Wait for others who write about dbs. On SQLite nobody else can write anyway."""
    if connection.dialect.name == "postgresql":
        await connection.execute(_ONE_BY_ONE)


async def _agreed_ms(connection: AsyncConnection) -> int:
    return int((await connection.execute(sa.select(facts.c.value).where(facts.c.kind == _AGREED))).scalar() or 0)


async def last_shards(connection: AsyncConnection) -> int | None:
    """The number of shards of the db that has used the ledger last; None if none has."""
    return (await connection.execute(sa.select(epochs.c.shards).order_by(epochs.c.seen.desc()).limit(1))).scalar()


async def hold(connection: AsyncConnection, epoch: str, server: str, shards: int, known: Collection[str]) -> str | None:
    """Say that pods of this db are alive; its `epoch` is followed by `/` and its number. Returns a sentence on who
    holds the ledger if that is a db of another number, or of a server which is not `known` to be an earlier one of this
    db; then nothing was changed. An earlier version says no number."""
    await _alone(connection)  # two that begin in one moment would not see each other
    ago, number = now_ms() - epochs.c.seen, epoch.partition("/")[2]
    is_other = sa.and_(epochs.c.epoch.contains("/"), epochs.c.epoch.not_like(f"%/{number}"))
    others = sa.select(epochs.c.epoch, epochs.c.server, ago).where(
        ago < HELD_MS, sa.or_(epochs.c.server.not_in([server, *known]), is_other)
    )
    found = (await connection.execute(others.order_by(ago).limit(1))).first()
    if found is not None:
        other, its_server, ago_ms = found
        other = other.replace("/", ", db ")
        return _HELD.format(epoch=other, server=its_server, seconds=ago_ms / 1000, held=HELD_MS // 1000)
    # Pods that start now do not know them.
    await connection.execute(sa.delete(epochs).where(epochs.c.server.in_([each for each in known if each != server])))
    said = insert(epochs).values(epoch=epoch, server=server, shards=shards, made=now_ms(), seen=now_ms())
    again = {"seen": now_ms(), "shards": shards}
    await connection.execute(said.on_conflict_do_update(index_elements=["epoch", "server"], set_=again))
    return None
