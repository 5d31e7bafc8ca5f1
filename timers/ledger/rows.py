"""Owns the rows of timers: how a record is kept in SQL, and that a row never goes back to an older state."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from timers.core.fields import encode
from timers.core.model import Status
from timers.ledger.database import Database
from timers.ledger.schema import PURGED, timers

Identity = tuple[str, str]
"""(prefix, id)."""

_Insert = postgresql.Insert | sqlite.Insert

SAVED: Final = 1000
"""Rows that one statement writes."""


class Row(NamedTuple):
    """A timer as the ledger keeps it: the head of its record, and the record's other lines as they are."""

    prefix: str
    id: str
    shard: int
    status: str
    version: int
    token: int
    attempt: int
    failures: int
    occurrence: int
    due: int
    created: int
    changed: int
    spec: str
    progress: str
    history: str


class NewRow(NamedTuple):
    """What tells a timer that nobody has run or changed from another one."""

    prefix: str
    id: str
    shard: int
    due: int
    created: int
    spec: str
    progress: str


_UNTRIED: Final = {
    "status": Status.SCHEDULED.value,
    "version": 1,
    "token": 0,
    "attempt": 0,
    "failures": 0,
    "occurrence": 1,
    "history": "",
}

IDENTITY: Final = sa.tuple_(timers.c.prefix, timers.c.id)
_COLUMNS: Final = [timers.c[name] for name in Row._fields]


def tombstone(prefix: str, id: str, shard: int, *, version: int, created: int, at_ms: int) -> Row:
    """The row of a timer that was removed."""
    return Row(prefix, id, shard, PURGED, version, 0, 0, 0, 1, created, created, at_ms, "{}", "", "")


async def save(connection: AsyncConnection, rows: Iterable[Row]) -> None:
    """Write rows, each unless there is a newer one: of a later life of the timer, or of the same life and as new."""
    dialect = connection.dialect.name
    for some in _some(rows):
        await connection.execute(
            _UPSERTS[dialect], _columns(some) if dialect == "postgresql" else [*map(_fields, some)]
        )


def _some(rows: Iterable[Row]) -> Iterator[Sequence[Row]]:
    """The newest of each timer's rows, as many as a statement takes. In one order, because two transactions that write
    the same rows in different orders would wait for each other."""
    newest = sorted({(row.prefix, row.id): row for row in sorted(rows, key=age)}.values())
    return (newest[start : start + SAVED] for start in range(0, len(newest), SAVED))


def _columns(rows: Sequence[Row] | Sequence[NewRow]) -> dict[str, list[Any]]:
    return dict(zip(rows[0]._fields, map(list, zip(*rows, strict=True)), strict=True))


def _fields(row: Row) -> dict[str, Any]:
    return row._asdict()


async def insert(connection: AsyncConnection, rows: Sequence[NewRow]) -> set[Identity]:
    """Write rows of timers that the ledger does not have, or whose earlier life was removed; of one timer's rows the
    first, as Redis does. Returns those that were written."""
    dialect, written = connection.dialect.name, set()
    first = sorted({(row.prefix, row.id): row for row in reversed(rows)}.values())
    for start in range(0, len(first), SAVED):
        some = first[start : start + SAVED]
        given: dict[str, Any] = _columns(some) if dialect == "postgresql" else {"rows": encode(some)}
        found = (await connection.execute(_INSERTS[dialect], given)).all()
        written |= {(prefix, timer_id) for prefix, timer_id in found}
    return written


async def page(database: Database, shard: int, prefix: str, id: str, *, since_ms: int = 0) -> Sequence[Row]:
    """The next rows of a shard after a prefix and id, changed since a time, without those of removed timers."""
    asked = sa.select(*_COLUMNS).where((prefix, id) < IDENTITY, timers.c.shard == shard, timers.c.status != PURGED)
    if since_ms:
        asked = asked.where(timers.c.changed >= since_ms)
    in_order = asked.order_by(timers.c.prefix, timers.c.id).limit(SAVED)
    return await database.do(partial(_read, in_order), writes=False)


async def _read(asked: sa.Select[Any], connection: AsyncConnection) -> list[Row]:
    return [Row._make(row) for row in (await connection.execute(asked)).all()]


async def reshard(database: Database, shard_of: Callable[[str, str], int]) -> int:
    """Give every row the shard in which its timer lies now. Returns how many had another."""
    asked = sa.select(timers.c.prefix, timers.c.id, timers.c.shard).order_by(timers.c.prefix, timers.c.id).limit(SAVED)
    last, changed = ("", ""), 0
    while True:
        rest = asked.where(last < IDENTITY)
        found = await database.do(partial(_fetched, rest), writes=False)
        if not found:
            return changed
        wrong = [
            {"its_prefix": prefix, "its_id": timer_id, "its_shard": right}
            for prefix, timer_id, shard in found
            if (right := shard_of(prefix, timer_id)) != shard
        ]
        if wrong:
            await database.do(partial(_execute, _RESHARD, wrong))
        last, changed = (found[-1][0], found[-1][1]), changed + len(wrong)


async def _fetched(asked: sa.Select[Any], connection: AsyncConnection) -> Sequence[Any]:
    return list((await connection.execute(asked)).all())


async def _execute(said: sa.Update, given: Sequence[dict[str, Any]], connection: AsyncConnection) -> None:
    await connection.execute(said, given)


_RESHARD: Final = (
    sa.update(timers)
    .where(timers.c.prefix == sa.bindparam("its_prefix"), timers.c.id == sa.bindparam("its_id"))
    .values(shard=sa.bindparam("its_shard"))
)


async def count(database: Database) -> dict[int, int]:
    """By shard: how many timers it has, without removed ones."""
    asked = (
        sa.select(timers.c.shard, sa.func.count().label("number"))
        .where(timers.c.status != PURGED)
        .group_by(timers.c.shard)
    )
    found = await database.do(lambda connection: connection.execute(asked.order_by(timers.c.shard)), writes=False)
    return {row.shard: row.number for row in found}


async def find(connection: AsyncConnection, identities: Collection[Identity]) -> dict[Identity, Row]:
    """The rows of these timers, without those of removed ones."""
    found: dict[Identity, Row] = {}
    wanted = list(identities)
    for start in range(0, len(wanted), SAVED):
        asked = sa.select(*_COLUMNS).where(IDENTITY.in_(wanted[start : start + SAVED]), timers.c.status != PURGED)
        found |= {(row.prefix, row.id): row for row in await _read(asked, connection)}
    return found


async def take_back(connection: AsyncConnection, made: Iterable[tuple[str, str, int]]) -> None:
    """Delete rows of timers that did not come to be: prefix, id and creation of each."""
    for prefix, timer_id, created in made:
        of_it = sa.and_(timers.c.prefix == prefix, timers.c.id == timer_id, timers.c.created == created)
        await connection.execute(sa.delete(timers).where(of_it, timers.c.version == 1))


async def await_arming(connection: AsyncConnection, made: Iterable[tuple[str, str, int]]) -> None:
    """Note that Redis does not have these new timers yet: prefix, id and creation of each."""
    for prefix, timer_id, created in made:
        of_it = sa.and_(timers.c.prefix == prefix, timers.c.id == timer_id, timers.c.created == created)
        await connection.execute(sa.update(timers).where(of_it).values(pending=True))


async def pending(database: Database, shards: Collection[int]) -> Sequence[Row]:
    """Some timers that Redis does not have yet."""
    asked = sa.select(*_COLUMNS).where(timers.c.pending, timers.c.shard.in_(shards), timers.c.status != PURGED)
    return await database.do(partial(_read, asked.limit(SAVED)), writes=False)


async def armed(connection: AsyncConnection, made: Iterable[Row]) -> None:
    """Note that Redis has these timers now."""
    for row in made:
        of_it = sa.and_(timers.c.prefix == row.prefix, timers.c.id == row.id, timers.c.created == row.created)
        await connection.execute(sa.update(timers).where(of_it).values(pending=False))


async def clean(database: Database, before_ms: int) -> None:
    """Delete the rows of timers that were removed before, batch after batch."""
    old = sa.select(timers.c.prefix, timers.c.id).where(timers.c.status == PURGED, timers.c.changed < before_ms)
    gone = sa.delete(timers).where(IDENTITY.in_(old.limit(SAVED)))
    while (await database.do(lambda connection: connection.execute(gone))).rowcount >= SAVED:
        pass


def age(row: Row) -> tuple[int, int]:
    """What tells the newer of two states of a timer."""
    return row.created, row.version


def _upsert(insert: _Insert, *, only_removed: bool = False) -> _Insert:
    """Write what is newer than the row that is there; `only_removed`: if that is of a timer that was removed."""
    new, rest = insert.excluded, [name for name in Row._fields if name not in ("prefix", "id")]
    newer = sa.tuple_(new.created, new.version) > sa.tuple_(timers.c.created, timers.c.version)
    if only_removed:
        newer = sa.and_(timers.c.status == PURGED, new.created > timers.c.created)
    return insert.on_conflict_do_update(
        index_elements=["prefix", "id"], set_={name: new[name] for name in rest} | {"pending": sa.false()}, where=newer
    )


def _of_arrays(fields: Sequence[str]) -> sa.FromClause:
    """The rows of arrays, one for each column, so that the statement is the same for any number of rows."""
    arrays = [
        sa.cast(sa.bindparam(name), postgresql.ARRAY(sa.BigInteger if name in _NUMBERS else sa.Text)) for name in fields
    ]
    return sa.func.unnest(*arrays).table_valued(*fields).render_derived()


def _new_of_arrays() -> sa.Select[Any]:
    found = _of_arrays(NewRow._fields)
    return _new({name: found.c[name] for name in NewRow._fields})


def _new_of_json() -> sa.Select[Any]:
    """As `_new_of_arrays`, of a list of lists in JSON: thousands of parameters would be rendered anew each time."""
    each = sa.func.json_each(sa.bindparam("rows", type_=sa.Text)).table_valued("value")
    parts = {name: sa.func.json_extract(each.c.value, f"$[{place}]") for place, name in enumerate(NewRow._fields)}
    return _new(parts).where(sa.text("true"))  # without a condition ON CONFLICT would be read as that of a join


def _new(given: Mapping[str, sa.ColumnElement[Any]]) -> sa.Select[Any]:
    """All columns of new rows of which these are given."""
    rest: dict[str, sa.ColumnElement[Any]] = {name: sa.literal(value) for name, value in _UNTRIED.items()}
    rest |= {"changed": given["created"]}
    return sa.select(*({**rest, **given}[name] for name in Row._fields))


_NUMBERS: Final = {name for name, kind in Row.__annotations__.items() if kind is int}


_INTO: Final[Mapping[str, _Insert]] = {"sqlite": sqlite.insert(timers), "postgresql": postgresql.insert(timers)}
_ARRAYS: Final = _of_arrays(Row._fields)
_UPSERTS: Final = {
    "sqlite": _upsert(_INTO["sqlite"]),
    "postgresql": _upsert(
        _INTO["postgresql"].from_select(Row._fields, sa.select(*(_ARRAYS.c[name] for name in Row._fields)))
    ),
}
_INSERTS: Final = {
    dialect: _upsert(_INTO[dialect].from_select(Row._fields, new), only_removed=True).returning(
        timers.c.prefix, timers.c.id
    )
    for dialect, new in (("sqlite", _new_of_json()), ("postgresql", _new_of_arrays()))
}
