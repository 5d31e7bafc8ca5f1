"""Owns the rows of timers: how a record is kept in SQL, that a row never goes back to an older state, and how new the
rows are."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext.asyncio import AsyncConnection

from timers.core.model import Status
from timers.errors import Unavailable
from timers.ledger.database import Database
from timers.ledger.facts import Lives, lives_of
from timers.ledger.many import SAVED, among, delete_some, execute, fetch, rows_given
from timers.ledger.schema import IS_GONE, IS_LIVE, IS_PENDING, PURGED, timers

Identity = tuple[str, str]
"""(prefix, id)."""


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


class RowAge(NamedTuple):
    """How new a row is, by creation (epoch ms) and version, and whether its timer was removed."""

    age: tuple[int, int]
    gone: bool


_AGE: Final = ("created", "version", "changed")
_NAME: Final = (timers.c.prefix, timers.c.id)
_AGES: Final = (*_NAME, timers.c.created, timers.c.version, timers.c.status)
_REMOVALS: Final = (timers.c.changed, *_NAME, timers.c.created, timers.c.version)
_IDENTITY: Final = sa.tuple_(*_NAME)
_COLUMNS: Final = [timers.c[name] for name in Row._fields]


def tombstone(prefix: str, id: str, shard: int, *, version: int, created: int, at_ms: int) -> Row:
    """The row of a timer that was removed."""
    return Row(prefix, id, shard, PURGED, version, 0, 0, 0, 1, created, created, at_ms, "{}", "", "")


async def save(connection: AsyncConnection, rows: Iterable[Row]) -> None:
    """Write rows, each unless there is one as new: of a later life of the timer, or of the same life and as late."""
    # In one order, because two transactions that write the same rows in different orders would wait for each other.
    newest: dict[Identity, Row] = {}
    for row in rows:
        there = newest.setdefault(row[:2], row)
        if there is not row and age(there) < age(row):
            newest[row[:2]] = row
    await execute(connection, _UPSERT, sorted(newest.values()))


async def save_in(connection: AsyncConnection, lives: Lives, changed: Iterable[Row]) -> None:
    """Write rows as `save`. Raises Unavailable if one of these shards has another life by now: then nothing may be
    written. Until the transaction ends, none begins."""
    now = await lives_of(connection, lives, stay=True)
    if any(now.get(shard, life) != life for shard, life in lives.items()):
        raise Unavailable("Redis has lost data during this change, and perhaps the change: repeat it")
    await save(connection, changed)


async def insert(connection: AsyncConnection, rows: Sequence[NewRow]) -> set[Identity]:
    """Write rows of timers that the ledger does not have, or whose earlier life was removed; of one timer's rows the
    first, as Redis does. Returns those that were written."""
    some = sorted({row[:2]: row for row in reversed(rows)}.values())
    if connection.dialect.name == "sqlite":  # nobody else can write meanwhile
        there = await ages(connection, [row[:2] for row in some])
        await execute(connection, _INSERT, some)
        return {row[:2] for row in some if _is_free(row, there.get(row[:2]))}
    return {(prefix, timer_id) for prefix, timer_id in await execute(connection, _INSERT_RETURNING, some)}


def _is_free(row: NewRow, there: RowAge | None) -> bool:
    return there is None or (there.gone and there.age[0] < row.created)


async def page(
    database: Database, shard: int, prefix: str, id: str, *, since_ms: int | None = None, most: int = SAVED
) -> Sequence[Row]:
    """The next rows of a shard after a prefix and id, without those of removed timers. With `since_ms`, in the order in
    which they changed, after this time, prefix and id."""
    asked = _next(shard, (prefix, id), _COLUMNS, since_ms).where(timers.c.status != PURGED)
    found = map(Row._make, await _read(database, asked.limit(most)))
    return [*found] if since_ms is None else sorted(found, key=lambda row: (row.changed, *row[:2]))


async def page_of_ages(database: Database, shard: int, prefix: str, id: str) -> dict[Identity, RowAge]:
    """As `page`, how new the rows are, also those of removed timers."""
    return _ages(await _read(database, _next(shard, (prefix, id), _AGES)))


async def page_of_gone(
    database: Database, shard: int, since_ms: int, prefix: str, id: str
) -> dict[tuple[int, str, str], tuple[int, int]]:
    """The next timers of a shard that were removed, after this time, prefix and id, and of what age they were."""
    asked = _next(shard, (prefix, id), _REMOVALS, since_ms).where(IS_GONE)
    return {(at_ms, *name): (created, version) for at_ms, *name, created, version in await _read(database, asked)}


async def ages(connection: AsyncConnection, identities: Collection[Identity]) -> dict[Identity, RowAge]:
    """How new the rows of these timers are, as far as there are any."""
    return _ages(await execute(connection, _FIND_AGES, list(identities)))


def _ages(found: Iterable[tuple[Any, ...]]) -> dict[Identity, RowAge]:
    return {
        (prefix, id): RowAge((created, version), status == PURGED) for prefix, id, created, version, status in found
    }


def _next(
    shard: int, after: Identity, columns: Sequence[sa.Column[Any]], since_ms: int | None = None
) -> sa.Select[Any]:
    order, last = (_NAME, after) if since_ms is None else ((timers.c.changed, *_NAME), (since_ms, *after))
    return sa.select(*columns).where(last < sa.tuple_(*order), timers.c.shard == shard).order_by(*order).limit(SAVED)


async def _read(database: Database, asked: sa.Select[Any]) -> list[tuple[Any, ...]]:
    return sorted(await database.do(partial(fetch, asked=asked), writes=False))


async def reshard(database: Database, shard_of: Callable[[str, str], int]) -> int:
    """Give every row the shard in which its timer lies now. Returns how many had another."""
    asked = sa.select(*_NAME, timers.c.shard).order_by(*_NAME).limit(SAVED)
    last, changed = ("", ""), 0
    while found := await _read(database, asked.where(last < _IDENTITY)):
        right = [(prefix, timer_id, shard_of(prefix, timer_id)) for prefix, timer_id, _ in found]
        wrong = [new for new, old in zip(right, found, strict=True) if new != old]
        await database.do(partial(execute, statement=_MOVE, rows=wrong))
        last, changed = right[-1][:2], changed + len(wrong)
    return changed


async def count(database: Database) -> dict[int, int]:
    """By shard: how many timers it has, without removed ones."""
    asked = sa.select(timers.c.shard, sa.func.count()).where(timers.c.status != PURGED).group_by(timers.c.shard)
    return dict(await _read(database, asked))


async def count_live(database: Database, shard: int) -> int:
    """How many timers of a shard are scheduled or run."""
    asked = sa.select(sa.func.count()).where(timers.c.shard == shard, IS_LIVE)
    ((number,),) = await _read(database, asked)
    return int(number)


async def share_until(database: Database, shard: int, prefix: str, id: str) -> float:
    """Which part of a shard's rows, without those of removed timers, is not behind a prefix and id."""
    is_done = sa.case(((prefix, id) >= _IDENTITY, 1.0), else_=0.0)
    asked = sa.select(sa.func.avg(is_done)).where(timers.c.shard == shard, timers.c.status != PURGED)
    ((share,),) = await _read(database, asked)
    return 1.0 if share is None else float(share)


async def find(connection: AsyncConnection, identities: Collection[Identity]) -> dict[Identity, Row]:
    """The rows of these timers, without those of removed ones."""
    found = await execute(connection, _FIND, list(identities))
    return {(row.prefix, row.id): row for row in map(Row._make, found)}


async def pending(
    database: Database, shards: Collection[int], *, without: Collection[str] = ()
) -> list[tuple[int, Identity]]:
    """Some timers that Redis does not have yet, each with its shard, `without` those of some prefixes."""
    asked = sa.select(timers.c.shard, *_NAME).where(IS_PENDING, timers.c.shard.in_(shards))
    asked = asked.where(timers.c.status != PURGED, timers.c.prefix.not_in(without))
    return [(shard, (prefix, timer_id)) for shard, prefix, timer_id in await _read(database, asked.limit(SAVED))]


async def waiting(connection: AsyncConnection, identities: Collection[Identity]) -> set[Identity]:
    """Those of these timers that Redis does not have yet."""
    found = await execute(connection, _FIND_PENDING, list(identities))
    return {(prefix, timer_id) for prefix, timer_id in found}


async def clean(database: Database, shards: Collection[int], before_ms: int) -> None:
    """Delete the rows of timers of these shards that were removed before, batch after batch."""
    gone = delete_some(timers, IS_GONE, timers.c.changed < before_ms, timers.c.shard.in_(shards))
    while (await database.do(lambda connection: connection.execute(gone))).rowcount >= SAVED:
        pass


def age(row: Row) -> tuple[int, int, int]:
    """What tells the newer of two states of a timer. A change in an older copy of Redis' data, before it was checked,
    may have a version that the ledger has already. Then the later one counts, which is still there."""
    return row.created, row.version, row.changed


def _upsert(given: sa.FromClause, *, only_removed: bool = False) -> postgresql.Insert:
    """Write rows that are given and newer than the row that is there; `only_removed`: if that is of a timer that was
    removed. A new timer is given without the columns that are the same for all of them."""
    untried = Row("", "", 0, Status.SCHEDULED.value, 1, 0, 0, 0, 1, 0, 0, 0, "", "", "")._asdict()
    same = {name: sa.literal(value) for name, value in untried.items()}
    columns: Mapping[str, sa.ColumnElement[Any]] = {**same, "changed": given.c.created, **dict(given.c.items())}
    # Without a condition SQLite would read ON CONFLICT as that of a join.
    whole = sa.select(*(columns[name] for name in Row._fields)).where(sa.text("true"))
    insert = postgresql.insert(timers).from_select(Row._fields, whole)
    new, rest = insert.excluded, [name for name in Row._fields if name not in ("prefix", "id")]
    newer = sa.tuple_(*(new[name] for name in _AGE)) > sa.tuple_(*(timers.c[name] for name in _AGE))
    if only_removed:
        newer = sa.and_(timers.c.status == PURGED, new.created > timers.c.created)
    return insert.on_conflict_do_update(
        index_elements=["prefix", "id"], set_={name: new[name] for name in rest} | {"pending": sa.false()}, where=newer
    )


_INSERT: Final = _upsert(rows_given(NewRow.__annotations__), only_removed=True)
_INSERT_RETURNING: Final = _INSERT.returning(*_NAME)
_UPSERT: Final = _upsert(rows_given(Row.__annotations__))

_MOVED: Final = rows_given({"prefix": str, "id": str, "shard": int})
_OF_IT: Final = sa.and_(timers.c.prefix == _MOVED.c.prefix, timers.c.id == _MOVED.c.id)
_MOVE: Final = sa.update(timers).where(_OF_IT).values(shard=_MOVED.c.shard)

_AMONG: Final = among(*_NAME)
_FIND: Final = sa.select(*_COLUMNS).where(_AMONG, timers.c.status != PURGED)
_FIND_AGES: Final = sa.select(*_AGES).where(_AMONG)
_FIND_PENDING: Final = sa.select(*_NAME).where(_AMONG, timers.c.pending)

FORGET_REMOVED: Final = sa.delete(timers).where(_AMONG, timers.c.status == PURGED)
"""Deletes what is left of removed timers, so that they can come back as they were. Is given identities."""

_THESE: Final = among(*_NAME, timers.c.created)
TAKE_BACK: Final = sa.delete(timers).where(_THESE, timers.c.version == 1)
"""Deletes rows of timers that did not come to be. Is given prefix, id and creation of each, and so are the next two."""

AWAIT_ARMING: Final = sa.update(timers).where(_THESE).values(pending=sa.true())
"""Notes that Redis does not have these new timers yet."""

ARMED: Final = sa.update(timers).where(_THESE).values(pending=sa.false())
"""Notes that Redis has these timers now."""
